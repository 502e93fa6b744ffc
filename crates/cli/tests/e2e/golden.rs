//! What people and scripts read, frozen: every looking command over a store that an earlier version wrote, as text and as JSON, and
//! the help of every command. After an intended change of a text, accept the snapshot (`cargo insta`); JSON only gains fields.

use actum_testkit::folder::Folder;
use actum_testkit::program::{Program, other};

use super::actum;

/// A project with its store: runs that were published, denied, failed, cancelled, kept and still wait; tools, a prediction, money,
/// snapshots, a token of another tenant.
const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/fixtures/golden.tgz");

const GREET: &str = "01a1f5c6-b765-708c-8de7-54c8eb8dcd06";
const BROKEN: &str = "01a1f5c6-b765-708c-8de7-54ca0aca16b4";
const MANY: &str = "01a1f5c6-b765-708c-8de7-54cb8b1f0784";
const RULES: &str = "01a1f5c6-b765-708c-8de7-54ccf89028b1";
const AFTER: &str = "01a1f5c6-b765-708c-8de7-54c9d19d44fd";
const DRAFT: &str = "01a1f5c6-b909-759d-9948-fabd5783f00a";
const QUEUED: &str = "01a1f5c6-b9ae-7141-bacf-a7a213fb9db6";
const CANCELLED: &str = "01a1f5c6-b9ae-7141-bacf-a7a6edda1479";

struct Golden {
    actum: Program,
    _home: Folder,
}

impl Golden {
    fn new() -> Self {
        let home = Folder::new();
        let actum = actum().with_env("ACTUM_MACHINE", "golden").with_env("HOME", &home.path().display().to_string());
        let done = other("tar").args(["-xzf", PROJECT, "-C"]).arg(actum.folder()).status().unwrap();
        assert!(done.success());
        Self { actum, _home: home }
    }

    /// Everything that a command says, with what differs from machine to machine replaced.
    fn said(&self, arguments: &[&str]) -> String {
        let ended = self.actum.run(arguments);
        let folder = self.actum.folder().display().to_string();
        let plain = |text: &str| text.replace(&folder, "[DIR]");
        let mut text = format!("$ actum {}\nexit {}\n", arguments.join(" "), ended.code);
        for (name, stream) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
            if !stream.is_empty() {
                text += &format!("── {name}\n{}\n", plain(stream).trim_end());
            }
        }
        text
    }
}

/// The name of a snapshot: the words of a command, with runs by their items.
fn name_of(arguments: &[&str]) -> String {
    let items = [
        (GREET, "greet"),
        (BROKEN, "broken"),
        (MANY, "many"),
        (RULES, "rules"),
        (AFTER, "after"),
        (DRAFT, "draft"),
        (QUEUED, "queued"),
        (CANCELLED, "cancelled"),
    ];
    let word = |word: &&str| items.iter().find(|(id, _)| id == word).map_or(*word, |(_, item)| item).to_owned();
    let words: Vec<String> = arguments.iter().map(word).collect();
    words.join("_").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn matches(arguments: &[&str]) {
    let golden = Golden::new();
    let text = golden.said(arguments);
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots/golden" }, {
        insta::assert_snapshot!(name_of(arguments), text);
    });
}

/// Commands that look at runs, for each of the runs of the project.
const OF_A_RUN: [&[&str]; 8] = [
    &["status"],
    &["logs"],
    &["diff"],
    &["diff", "--stat"],
    &["gate"],
    &["verify", "--key", "signer.pem"],
    &["receipt"],
    &["contract", "show"],
];

/// Commands that look at the whole project.
const OF_THE_PROJECT: [&[&str]; 24] = [
    &["list"],
    &["list", "--state", "failed"],
    &["status"],
    &["ledger", "list", "--limit", "8"],
    &["ledger", "verify"],
    &["ledger", "rejected"],
    &["snapshot", "list"],
    &["stage", "list"],
    &["workspace", "list"],
    &["tool", "list"],
    &["tool", "show", "TL-001", "--level", "L3"],
    &["adapter", "list"],
    &["adapter", "show", "ADP-001", "--level", "L3"],
    &["signature", "list"],
    &["signature", "show", "examples/Sentiment.v1"],
    &["artifact", "list"],
    &["pointer", "show", "examples/Sentiment.v1"],
    &["pointer", "history", "examples/Sentiment.v1"],
    &["spend", "list"],
    &["spend", "reservations"],
    &["trace", "list"],
    &["token", "list"],
    &["approvals", "list"],
    &["contract", "hash"],
];

fn of_run(run: &str) {
    for command in OF_A_RUN {
        let arguments: Vec<&str> = command.iter().copied().chain([run]).collect();
        matches(&arguments);
        matches(&[&arguments[..], &["--json"]].concat());
    }
}

#[test]
fn published_run_reads_as_before() {
    of_run(GREET);
}

#[test]
fn failed_run_reads_as_before() {
    of_run(BROKEN);
}

#[test]
fn denied_runs_read_as_before() {
    of_run(MANY);
    of_run(RULES);
}

#[test]
fn blocked_and_cancelled_runs_read_as_before() {
    for run in [AFTER, CANCELLED] {
        for command in [&["status"][..], &["logs"], &["gate"]] {
            let arguments: Vec<&str> = command.iter().copied().chain([run]).collect();
            matches(&arguments);
            matches(&[&arguments[..], &["--json"]].concat());
        }
    }
}

#[test]
fn kept_result_reads_as_before() {
    for command in [&["status"][..], &["diff"], &["gate"], &["verify", "--key", "signer.pem"]] {
        let arguments: Vec<&str> = command.iter().copied().chain([DRAFT]).collect();
        matches(&arguments);
        matches(&[&arguments[..], &["--json"]].concat());
    }
}

#[test]
fn project_reads_as_before() {
    for command in OF_THE_PROJECT {
        matches(command);
        matches(&[command, &["--json"]].concat());
    }
}

/// Mistakes are answered as before: message, hint, code.
#[test]
fn mistakes_are_answered_as_before() {
    for arguments in [
        &["status", "nothing"][..],
        &["run", "missing.yaml"],
        &["undo", BROKEN],
        &["apply", GREET],
        &["cancel", GREET],
        &["resume", CANCELLED],
        &["resume", BROKEN, "--set", "maxFilesPerStep=2"],
        &["ledger", "show", "nothing"],
        &["tool", "show", "TL-999"],
        &["predict", "no/Such.v1", "--input", "-"],
        &["contract", "hash", "--set", "maxFilesPerStep=0"],
    ] {
        matches(arguments);
        matches(&[arguments, &["--json"]].concat());
    }
}
