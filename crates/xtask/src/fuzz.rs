//! `cargo xtask fuzz`: runs every target of `fuzz/` for a while, beginning with its seeds. It needs a nightly compiler,
//! which it never installs, never adds to the seeds, and never stops at the first target that finds something.

use crate::program;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const SECONDS_DEFAULT: u32 = 60;

pub(crate) fn run(seconds: u32) -> Result<(), String> {
    let targets = targets(&program::root().join("fuzz/fuzz_targets"))?;
    if !program::succeeds(nightly().arg("--version")) {
        return Err("fuzzing needs a nightly compiler: run `rustup toolchain install nightly --profile minimal`".into());
    }
    if !program::succeeds(program::cargo().args(["fuzz", "--version"])) {
        program::run(program::cargo().args(["install", "--locked", "cargo-fuzz"]))?;
    }
    let mut findings = Vec::new();
    for target in targets {
        println!("== fuzz {target} for {seconds} s");
        let time = format!("-max_total_time={seconds}");
        let limits = [&time, "-timeout=10", "-rss_limit_mb=4096"];
        let folders = folders(&program::root(), &target)?;
        if program::run(nightly().args(["fuzz", "run", &target]).args(folders).arg("--").args(limits)).is_err() {
            findings.push(target);
        }
    }
    if findings.is_empty() {
        return Ok(());
    }
    let list = findings.join(", ");
    Err(format!("found something or could not run: {list}; inputs are in fuzz/artifacts, the reason is above"))
}

/// The toolchain that rustup chose for this very program would win over `+nightly` in nested calls.
fn nightly() -> Command {
    let mut command = program::cargo();
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("RUSTDOC").arg("+nightly");
    command
}

/// Where inputs come from: the first folder also takes what the fuzzer finds worth keeping, the second is only read.
fn folders(root: &Path, target: &str) -> Result<[PathBuf; 2], String> {
    let [corpus, seeds] = ["corpus", "seeds"].map(|name| root.join("fuzz").join(name).join(target));
    if !seeds.is_dir() {
        return Err(format!("there are no seeds in {}", seeds.display()));
    }
    std::fs::create_dir_all(&corpus).map_err(|error| format!("cannot make {}: {error}", corpus.display()))?;
    Ok([corpus, seeds])
}

fn targets(folder: &Path) -> Result<Vec<String>, String> {
    let none = || format!("there are no fuzz targets in {}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(|_| none())?;
    let names = entries.flatten().filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    let mut targets: Vec<String> = names.collect();
    targets.sort();
    if targets.is_empty() { Err(none()) } else { Ok(targets) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_targets_is_an_error() {
        assert!(targets(Path::new("/nonexistent")).is_err());
        assert!(targets(&program::root().join("docs")).is_err());
    }

    #[test]
    fn every_target_begins_with_seeds() {
        for target in targets(&program::root().join("fuzz/fuzz_targets")).unwrap() {
            let seeds = program::root().join("fuzz/seeds").join(&target);
            assert!(std::fs::read_dir(seeds).is_ok_and(|mut files| files.next().is_some()), "{target}");
        }
        assert!(folders(Path::new("/nonexistent"), "canon").is_err());
    }

    #[test]
    fn targets_are_the_rust_files_in_order() {
        let found = targets(&program::root().join("crates/xtask/src")).unwrap();
        assert!(found.is_sorted() && found.contains(&"fuzz".to_owned()));
    }
}
