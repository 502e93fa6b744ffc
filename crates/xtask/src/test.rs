//! `cargo xtask test`: everything, on a fresh machine too. It never stops at the first failure; the last line it
//! prints is the sum.

use crate::agents::{self, Agents};
use crate::linters::{self, Linters};
use crate::model::{self, Model};
use crate::objects::{self, Objects};
use crate::postgres::{Cluster, SHARED_CLUSTER};
use crate::schemathesis::{self, Schemathesis};
use crate::servers::{self, Servers};
use crate::through;
use crate::verifiers::{self, Verifiers};
use crate::{demo, generate, install, program, tidy};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the sum does not hold, so that nobody takes it for more than it is.
const OPT_IN: &str = "not run, because they are opt-in: tests that need a real model (`cargo xtask test --model`); \
                      kills, random commands, a fleet and a soak at full size (`cargo xtask test --long`)";
const FAILED_NAMES_MAX: usize = 50;

/// Returns whether all went well.
pub(crate) fn run() -> bool {
    let mut report = Report::default();
    report.prepare("tools of the toolchain", install::tools);
    // Fetching waits for others and compiling for the processors: beside each other they take as long as one of them.
    let installing = std::thread::Builder::new().name("install".into()).spawn(install::missing);
    report.check("formatting", || program::run(program::cargo().args(["fmt", "--all", "--check"])));
    report.check("clippy", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        program::run(program::cargo().args(arguments))?;
        // Not among all targets, because nobody runs it along with the others; it has to compile all the same.
        let model = ["clippy", "--package", "actum", "--test", "model", "--locked", "--", "-D", "warnings"];
        program::run(program::cargo().args(model))
    });
    report.check("tidy", tidy::run);
    report.prepare("build", || program::run(program::cargo().args(["build", "--workspace", "--locked"])));
    report.prepare("install what is missing, begun beside the above", || {
        let installed = installing.map_err(|e| format!("there is no thread for it: {e}"))?.join();
        installed.unwrap_or_else(|_| Err("it panicked: look at the output above".to_owned()))
    });
    let mut cluster = None;
    report.prepare("throwaway PostgreSQL", || {
        cluster = Some(Cluster::try_start()?);
        Ok(())
    });
    let mut command = program::cargo();
    command.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    command.env(verifiers::FOLDER, Verifiers::place()).env(servers::FOLDER, Servers::place());
    command.env(agents::FOLDER, Agents::place()).env(objects::FOLDER, Objects::place());
    command.env(linters::FOLDER, Linters::place()).env(schemathesis::FOLDER, Schemathesis::place());
    match &cluster {
        Some(cluster) => command.env(SHARED_CLUSTER, cluster.url("postgres")),
        None => command.env_remove(SHARED_CLUSTER),
    };
    report.tests("tests", &mut command, &mut std::io::stdout());
    report.tests("tests by way of a server", &mut by_way_of_a_server(), &mut std::io::stdout());
    if is_root() {
        report.tests("tests as an ordinary user", &mut as_ordinary_user(), &mut std::io::stdout());
    }
    drop(cluster);
    report.check("generated files", generate::check);
    report.check("demo", demo::check);
    println!("\n{OPT_IN}");
    print!("{}", report.summary());
    report.failed == 0
}

/// The end-to-end tests once more, each with a server of its own that its commands are asked of.
fn by_way_of_a_server() -> Command {
    let mut command = program::cargo();
    command.args(["test", "--package", "actum", "--locked", "--no-fail-fast", "--test", "e2e", "--"]);
    command.args(through::FAMILIES);
    for (name, _) in through::LEFT_OUT {
        command.args(["--skip", name]);
    }
    command.env(through::MODE, "server").env(verifiers::FOLDER, Verifiers::place());
    command
}

/// Families that are run once more as an ordinary user, if all others were run as root. Those of the sandbox change the
/// user themselves.
const OF_ORDINARY_USER: [&str; 8] =
    ["obeyed::", "reload::", "trust::", "receipt::", "terminal::", "paths::", "witness::", "own_folders::"];

/// The verifiers of others are installed where root keeps such things; what they read does not depend on the user.
const NOT_OF_ORDINARY_USER: [&str; 3] = ["receipt::in_toto", "receipt::securesystemslib", "receipt::sigstore"];

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

fn as_ordinary_user() -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/as_ordinary_user.sh");
    let mut command = program::cargo();
    command.args(["test", "--package", "actum", "--locked", "--no-fail-fast", "--test", "e2e", "--config"]);
    command.arg(format!("target.'cfg(all())'.runner = ['unshare', '-m', 'sh', '{script}']"));
    command.arg("--").args(OF_ORDINARY_USER);
    for name in NOT_OF_ORDINARY_USER {
        command.args(["--skip", name]);
    }
    command
}

/// Tests that are run at full size by `test --long`, the variable that says how large they are, and their size.
const LONG: [(&str, &str, &str); 4] = [
    ("publish_kill::folder_is_whole", "ACTUM_PUBLISH_KILLS", "1000"),
    ("publish_kill::random_commands", "ACTUM_PUBLISH_SEEDS", "300"),
    ("soak::", "ACTUM_SOAK_RUNS", "5000"),
    ("fleet::", "ACTUM_FLEET_RUNS", "1000"),
];

/// The tests that the others run in small, one after the other at full size. Returns whether all went well.
pub(crate) fn run_long() -> bool {
    let mut report = Report::default();
    report.prepare("install what is missing", install::missing);
    for (name, variable, size) in LONG {
        let mut command = program::cargo();
        command.args(["test", "--package", "actum", "--locked", "--test", "e2e", "--", name]).env(variable, size);
        report.tests(&format!("{name} with {variable}={size}"), &mut command, &mut std::io::stdout());
    }
    print!("{}", report.summary());
    report.failed == 0
}

/// Only what needs a real model, with one that answers meanwhile. Returns whether all went well.
pub(crate) fn run_with_model() -> bool {
    let mut report = Report::default();
    report.prepare("install what is missing", install::missing);
    let mut running = None;
    report.prepare("a real model on loopback", || {
        running = Some(Model::start()?);
        Ok(())
    });
    if let Some(running) = &running {
        let mut command = program::cargo();
        command.args(["test", "--package", "actum", "--locked", "--no-fail-fast", "--test", "model"]);
        command.env(model::URL, running.url());
        report.tests("tests with a real model", &mut command, &mut std::io::stdout());
    }
    drop(running);
    print!("{}", report.summary());
    report.failed == 0
}

#[derive(Default)]
struct Report {
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
}

impl Report {
    /// A step that counts as one check.
    fn check(&mut self, name: &str, step: impl FnOnce() -> Result<(), String>) {
        if self.prepare(name, step) {
            self.passed += 1;
        }
    }

    /// A step that counts only when it fails: its success proves nothing about the project.
    fn prepare(&mut self, name: &str, step: impl FnOnce() -> Result<(), String>) -> bool {
        let started = begin(name);
        let outcome = step();
        end(name, started, outcome.is_ok());
        let Err(problem) = outcome else { return true };
        self.failed += 1;
        self.failures.push(format!("{name}: {problem}"));
        false
    }

    /// Runs test programs, passing on what they print and adding up their results.
    fn tests(&mut self, name: &str, command: &mut Command, screen: &mut dyn Write) {
        let started = begin(name);
        let before = self.failed;
        let outcome = self.stream(command, screen);
        if let Err(problem) = outcome {
            // A test program that did not compile or crashed has no result line.
            if self.failed == before {
                self.failed += 1;
            }
            self.failures.push(format!("{name}: {problem}"));
        }
        end(name, started, self.failed == before);
    }

    fn stream(&mut self, command: &mut Command, screen: &mut dyn Write) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("cannot run `cargo test`: {error}");
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(cannot)?;
        let mut lines = BufReader::new(child.stdout.take().expect("stdout was asked for as a pipe"));
        let mut names = Vec::new();
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).map_err(cannot)? > 0 {
            // A closed terminal must not end the count.
            let _ = screen.write_all(&line);
            let text = String::from_utf8_lossy(&line);
            names.extend(failed_test(&text).map(str::to_owned));
            if let Some([passed, failed, skipped]) = counts(&text) {
                self.passed += passed;
                self.failed += failed;
                self.skipped += skipped;
            }
            line.clear();
        }
        let status = child.wait().map_err(cannot)?;
        if status.success() {
            return Ok(());
        }
        names.truncate(FAILED_NAMES_MAX);
        let names = if names.is_empty() { "no test by name, look above".to_owned() } else { names.join(", ") };
        Err(format!("`{}` ended with {status}: {names}", program::words(command)))
    }

    fn summary(&self) -> String {
        let mut text = String::from("\n");
        for failure in &self.failures {
            text += &format!("failed: {failure}\n");
        }
        text += &format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            text += &format!(", {} skipped", self.skipped);
        }
        text + "\n"
    }
}

fn begin(name: &str) -> Instant {
    println!("\n== {name}");
    Instant::now()
}

fn end(name: &str, started: Instant, went_well: bool) {
    let outcome = if went_well { "ok" } else { "FAILED" };
    println!("== {name}: {outcome} after {:.1} s", started.elapsed().as_secs_f64());
}

/// Passed, failed and ignored from the last line of a test program.
fn counts(line: &str) -> Option<[u64; 3]> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |unit: &str| numbers.split("; ").find_map(|part| part.strip_suffix(unit)?.trim().parse().ok());
    Some([number(" passed")?, number(" failed")?, number(" ignored")?])
}

fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.trim_end().strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let good = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let bad = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        assert_eq!(counts(good), Some([3, 0, 1]));
        assert_eq!(counts(bad), Some([1, 2, 0]));
        assert_eq!(counts("running 3 tests\n"), None);
        assert_eq!(failed_test("test store::tests::crash ... FAILED\n"), Some("store::tests::crash"));
        assert_eq!(failed_test("test store::tests::crash ... ok\n"), None);
    }

    #[test]
    fn the_sum_holds_steps_and_tests() {
        let mut report = Report::default();
        assert!(report.prepare("set-up", || Ok(())));
        report.check("good", || Ok(()));
        report.check("bad", || Err("look here".into()));
        let lines =
            "echo 'test result: FAILED. 5 passed; 2 failed; 1 ignored; x'; echo 'test a::b ... FAILED'; exit 101";
        // Not on the real screen: the run that this test is part of would count these lines.
        let mut screen = Vec::new();
        report.tests("tests", Command::new("sh").args(["-c", lines]), &mut screen);
        assert!(screen.ends_with(b"test a::b ... FAILED\n"), "what the tests print is passed on");
        let summary = report.summary();
        assert!(summary.ends_with("\n6 passed, 3 failed, 1 skipped\n"), "{summary}");
        assert!(summary.contains("failed: bad: look here\n") && summary.contains(": a::b\n"), "{summary}");
    }

    #[test]
    fn tests_that_do_not_compile_are_one_failure() {
        let mut report = Report::default();
        report.tests("tests", Command::new("sh").args(["-c", "exit 101"]), &mut Vec::new());
        assert!(report.summary().ends_with("\n0 passed, 1 failed\n"));
    }

    #[test]
    fn nothing_skipped_is_not_mentioned() {
        let mut report = Report::default();
        report.check("good", || Ok(()));
        assert_eq!(report.summary(), "\n1 passed, 0 failed\n");
    }
}
