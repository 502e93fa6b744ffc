//! Limits: of a step by the contract, of a run by its work item.

use actum_contract::ExecutionConfig;
use actum_contract::work::Constraints;

use crate::event::Totals;

/// What is weighed at the door: how much a run touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub files: u64,
    pub tool_ops: u64,
    pub delta_size: u64,
}

/// The first rule that is broken, as a sentence.
pub fn admit(weighed: Admission, constraints: &Constraints) -> Result<(), String> {
    let Admission { files, tool_ops, delta_size } = weighed;
    for (what, found, max) in [
        ("files", files, constraints.max_files),
        ("tool ops", tool_ops, constraints.max_tool_ops),
        ("delta size", delta_size, constraints.max_delta_size),
    ] {
        if found > max {
            return Err(format!("Exceeded max {what}: {found} > {max}"));
        }
    }
    Ok(())
}

/// What of the contract's limits per step an act has broken.
pub(crate) fn step(totals: &Totals, config: &ExecutionConfig) -> Option<String> {
    if totals.changed > config.max_files_per_step {
        return Some(format!(
            "it changed {} files, maxFilesPerStep of the contract is {}",
            totals.changed, config.max_files_per_step
        ));
    }
    if totals.diff_bytes > config.max_total_diff_bytes {
        let (found, max) = (totals.diff_bytes, config.max_total_diff_bytes);
        return Some(format!("its diff has {found} bytes, maxTotalDiffBytes is {max}"));
    }
    if totals.largest_bytes > config.max_file_bytes {
        let path = totals.largest.as_deref().unwrap_or("a file");
        return Some(format!("{path} has {} bytes, maxFileBytes is {}", totals.largest_bytes, config.max_file_bytes));
    }
    match totals.env_files.first() {
        Some(path) if !config.allow_env_mutation => Some(format!("it changed {path}, allowEnvMutation is false")),
        _ => None,
    }
}

/// Whether a path is one of an environment file: `.env`, `.env.local`, in any folder.
pub fn is_env_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name == ".env" || name.starts_with(".env.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_rules_in_the_seeds_words() {
        let constraints = Constraints { max_files: 1, max_tool_ops: 2, max_delta_size: 3, timeout_ms: 1 };
        let weigh = |files, tool_ops, delta_size| admit(Admission { files, tool_ops, delta_size }, &constraints);
        assert_eq!(weigh(1, 2, 3), Ok(()));
        assert_eq!(weigh(2, 3, 4), Err("Exceeded max files: 2 > 1".into()));
        assert_eq!(weigh(1, 3, 4), Err("Exceeded max tool ops: 3 > 2".into()));
        assert_eq!(weigh(1, 2, 4), Err("Exceeded max delta size: 4 > 3".into()));
    }

    #[test]
    fn env_files() {
        assert!(is_env_file(".env") && is_env_file("a/b/.env") && is_env_file("a/.env.local"));
        assert!(!is_env_file("env") && !is_env_file(".environment") && !is_env_file("a.env"));
    }
}
