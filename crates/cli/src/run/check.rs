//! Validations and tests: what is declared is run in a cell on the stage, what is built in looks at changed files.
//! Whatever they change is taken back.

use std::collections::BTreeMap;

use actum_kernel::{Checked, Desk, Event, FILE_BYTES_LOOKED_AT, Failed, Kind, State, Tested, look_at};
use actum_sandbox::Ended;
use actum_workspace::deltas;

use super::act::failure_of;
use super::hands::{Done, RunHands};
use super::program::{Program, Ran};

/// What is kept of a failed check's message.
const MESSAGE_CHARS: usize = 4_000;
/// Failures that are listed; more say nothing new.
const FAILURES_MAX: usize = 50;

impl RunHands {
    pub(super) fn check(&mut self, state: &State, heavy: bool, left_ms: u64, desk: &dyn Desk) -> Done<Event> {
        let mut failures = if heavy { Vec::new() } else { self.look(state)? };
        let validation = &self.facts.agreement.work_item.validation;
        let commands = if heavy { validation.heavy.clone() } else { validation.light.clone() };
        let kind = if heavy { Kind::Build } else { Kind::Command };
        let (mut took_ms, mut timed_out) = (0, false);
        for command in &commands {
            let left = left_ms.saturating_sub(took_ms).max(1);
            let ran = self.run_check(command, state, left, desk)?;
            took_ms += ran.took_ms;
            if ran.report.ended == Ended::TimedOut {
                timed_out = true;
                break;
            }
            if let Some((_, why)) = failure_of(&ran) {
                let text = ran.tail();
                let message = if text.is_empty() { why } else { text };
                let skip = message.chars().count().saturating_sub(MESSAGE_CHARS);
                let message = message.chars().skip(skip).collect();
                failures.push(Failed { check: command.join(" "), kind, path: None, message });
            }
        }
        if !commands.is_empty() {
            self.restore(state)?;
        }
        failures.truncate(FAILURES_MAX);
        for failure in &failures {
            self.folder.note(&format!("✗ {}", failure.shown()));
        }
        Ok(Event::Checked(Checked { heavy, failures, timed_out, took_ms }))
    }

    /// Looks into everything that differs from the beginning.
    fn look(&self, state: &State) -> Done<Vec<Failed>> {
        let mut failures = Vec::new();
        let blobs = self.workspace.blobs();
        for change in deltas(&self.changes(state)?) {
            let Some(node) = change.after.filter(|node| node.kind.is_file()) else { continue };
            let bytes = blobs.read(node.digest)?;
            if bytes.len() as u64 <= FILE_BYTES_LOOKED_AT {
                failures.extend(look_at(&change.path.to_string(), &bytes, &parse));
            }
        }
        Ok(failures)
    }

    fn run_check(&mut self, command: &[String], state: &State, left_ms: u64, desk: &dyn Desk) -> Done<Ran> {
        let agent = self.facts.agreement.agent.clone();
        let program = Program {
            command,
            agent: &agent,
            environment: BTreeMap::new(),
            exchange: None,
            offer: None,
            left_ms,
            is_agents: false,
        };
        let grants = self.grants(state)?;
        self.folder.note(&format!("── {}", command.join(" ")));
        let ran = program.run(&self.shop, grants, &self.folder.log(), desk)?;
        self.remember(&ran);
        Ok(ran)
    }

    pub(super) fn test(&mut self, state: &State, left_ms: u64, desk: &dyn Desk) -> Done<Event> {
        let command = self.facts.agreement.work_item.test_command.clone().unwrap_or_default();
        let ran = self.run_check(&command, state, left_ms, desk)?;
        self.restore(state)?;
        let failure = failure_of(&ran);
        let text = [&ran.output.kept, &ran.errors.kept].map(|kept| String::from_utf8_lossy(kept).into_owned()).concat();
        self.folder.write("test.log", text.as_bytes())?;
        let exit_code = match &ran.report.ended {
            Ended::Exited(code) => Some(*code),
            _ => None,
        };
        let skip = text.chars().count().saturating_sub(MESSAGE_CHARS);
        let mut output: String = text.chars().skip(skip).collect();
        if output.trim().is_empty() {
            output = failure.as_ref().map(|(_, why)| why.clone()).unwrap_or_default();
        }
        Ok(Event::Tested(Tested {
            passed: failure.is_none(),
            timed_out: ran.report.ended == Ended::TimedOut,
            exit_code,
            tests_passed: count(&text, &["passed", "pass"]),
            tests_failed: count(&text, &["failed", "fail"]),
            output,
            took_ms: ran.took_ms,
        }))
    }
}

/// What is wrong with a document by its ending.
fn parse(ending: &str, bytes: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Some("it is not UTF-8".to_owned()) };
    match ending {
        "json" => serde_json::from_str::<serde::de::IgnoredAny>(text).err().map(|e| e.to_string()),
        "toml" => toml::from_str::<toml::Table>(text).err().map(|e| e.message().to_owned()),
        // A file may hold several documents.
        _ => serde_saphyr::from_multiple::<serde_json::Value>(text)
            .err()
            .map(|e| e.without_snippet().to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// How many tests a runner says have passed or failed: `7 passed`, `# pass 7`, over all its summaries.
fn count(text: &str, words: &[&str]) -> Option<u64> {
    let mut sum = None;
    for line in text.lines() {
        let parts: Vec<&str> =
            line.split(|c: char| !(c.is_alphanumeric() || c == '#')).filter(|part| !part.is_empty()).collect();
        let number = |part: Option<&&str>| part.and_then(|part| part.parse::<u64>().ok());
        for (at, part) in parts.iter().enumerate().filter(|(_, part)| words.contains(part)) {
            let before = at.checked_sub(1).and_then(|at| number(parts.get(at)));
            let is_tap = part.len() == 4 && at == 1 && parts[0] == "#";
            if let Some(n) = before.or_else(|| if is_tap { number(parts.get(at + 1)) } else { None }) {
                sum = Some(sum.unwrap_or(0) + n);
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_test_runners() {
        let cargo = "test result: ok. 12 passed; 0 failed; 1 ignored\ntest result: FAILED. 3 passed; 2 failed;";
        assert_eq!((count(cargo, &["passed", "pass"]), count(cargo, &["failed", "fail"])), (Some(15), Some(2)));
        let pytest = "===== 2 failed, 7 passed in 0.12s =====";
        assert_eq!((count(pytest, &["passed"]), count(pytest, &["failed"])), (Some(7), Some(2)));
        let node = "# tests 3\n# pass 2\n# fail 1\n";
        assert_eq!((count(node, &["passed", "pass"]), count(node, &["failed", "fail"])), (Some(2), Some(1)));
        assert_eq!(count("all well", &["passed", "pass"]), None);
    }

    #[test]
    fn documents_are_parsed_by_their_ending() {
        assert_eq!(parse("json", b"{\"a\": 1}"), None);
        assert!(parse("json", b"{").is_some());
        assert_eq!(parse("yaml", b"a: 1\n---\nb: 2\n"), None);
        assert!(parse("yaml", b"a: [1\n").is_some());
        assert!(parse("toml", b"a = \n").is_some() && parse("toml", b"a = 1\n").is_none());
        assert!(parse("json", b"\xff").is_some());
    }
}
