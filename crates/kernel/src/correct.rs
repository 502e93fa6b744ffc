//! Corrections: what each one answers, within which limits, and whether it led anywhere.

use actum_contract::ExecutionConfig;
use actum_contract::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::event::{Failed, Totals};

/// What kind of failure it is. Each kind has limits of its own for whoever mends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A file is not what its name says, or holds what no file should.
    Content,
    Secret,
    /// A declared fast command failed.
    Command,
    /// A declared thorough command failed: build, tests, lint.
    Build,
}

impl Kind {
    /// Files and bytes of diff that a correction of this kind may take.
    const fn limits(self) -> (u64, u64) {
        match self {
            Self::Content => (5, 100_000),
            Self::Secret => (5, 100_000),
            Self::Command => (8, 160_000),
            Self::Build => (12, 220_000),
        }
    }
}

/// A correction as it is declared before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// Of its sort, over all attempts of the run: 1, 2, …
    pub number: u64,
    /// Answers a heavy validation, not a light one.
    pub heavy: bool,
    pub kind: Kind,
    pub max_files: u64,
    pub max_diff_bytes: u64,
    /// What it answers.
    pub signature: String,
    pub blocking: u64,
}

impl Correction {
    /// The limits are those of the weightiest kind among the failures, and never above the contract's own.
    pub(crate) fn of(failures: &[Failed], heavy: bool, number: u64, config: &ExecutionConfig) -> Self {
        let kind = failures.iter().map(|failed| failed.kind).max().unwrap_or(Kind::Content);
        let (files, bytes) = kind.limits();
        Self {
            number,
            heavy,
            kind,
            max_files: files.min(config.max_files_per_step),
            max_diff_bytes: bytes.min(config.max_total_diff_bytes),
            signature: signature(failures),
            blocking: failures.len() as u64,
        }
    }

    /// What is wrong with what it really changed; nothing if it kept within its limits.
    pub(crate) fn audit(&self, totals: &Totals) -> Option<String> {
        if totals.changed == 0 {
            return Some("it changed nothing".to_owned());
        }
        if totals.changed > self.max_files {
            return Some(format!("it changed {} files, declared were at most {}", totals.changed, self.max_files));
        }
        (totals.diff_bytes > self.max_diff_bytes)
            .then(|| format!("its diff has {} bytes, declared were at most {}", totals.diff_bytes, self.max_diff_bytes))
    }
}

/// Longest piece of a message that tells one failure from another.
const SIGNATURE_CHARS: usize = 240;

/// What is the same for the same failures, whatever their order. Numbers are left out: times and addresses differ each
/// time, and lines move when something above them is mended.
pub fn signature(failures: &[Failed]) -> String {
    let mut lines: Vec<String> = failures
        .iter()
        .map(|failed| {
            let plain = failed.message.to_lowercase().chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
            let end: String = plain.chars().rev().take(SIGNATURE_CHARS).collect();
            format!("{}\0{}\0{end}", failed.check, failed.path.as_deref().unwrap_or_default())
        })
        .collect();
    lines.sort();
    Digest::sha256(lines.join("\n").as_bytes()).to_hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: Kind, message: &str) -> Failed {
        Failed { check: "c".into(), kind, path: None, message: message.into() }
    }

    #[test]
    fn limits_are_those_of_the_kind_and_never_above_the_contract() {
        let mut config = actum_contract::Contract::of(
            actum_contract::resolve(actum_contract::Layers {
                persisted: None,
                requested: &actum_contract::Partial::default(),
                env: &std::collections::BTreeMap::new(),
            })
            .unwrap()
            .config,
        )
        .config()
        .clone();
        let both = [failed(Kind::Content, "a"), failed(Kind::Command, "b")];
        let made = Correction::of(&both, false, 1, &config);
        assert_eq!((made.kind, made.max_files, made.max_diff_bytes), (Kind::Command, 8, 160_000));
        config.max_files_per_step = 2;
        config.max_total_diff_bytes = 5_000;
        let made = Correction::of(&both, false, 1, &config);
        assert_eq!((made.max_files, made.max_diff_bytes), (2, 5_000));
        let totals = |changed, diff_bytes| Totals { changed, diff_bytes, ..Totals::default() };
        assert!(made.audit(&totals(0, 0)).is_some());
        assert!(made.audit(&totals(3, 10)).is_some());
        assert!(made.audit(&totals(2, 5_001)).is_some());
        assert_eq!(made.audit(&totals(2, 5_000)), None);
    }

    #[test]
    fn the_same_failure_has_the_same_signature_in_any_order_and_at_any_time() {
        let (a, b) = (failed(Kind::Command, "Error at 10:31:07"), failed(Kind::Command, "other"));
        let later = failed(Kind::Command, "error at 11:02:59");
        assert_eq!(signature(&[a.clone(), b.clone()]), signature(&[b.clone(), later]));
        assert_ne!(signature(std::slice::from_ref(&a)), signature(&[b]));
        assert_ne!(signature(std::slice::from_ref(&a)), signature(&[a.clone(), a]));
    }
}
