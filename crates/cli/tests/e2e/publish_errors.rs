//! Errors of the file system while a result is published (D-504): everything is rolled back or completed, and the error
//! is the file system's own. `strace` injects the errors, because no other means makes one system call of many fail.

use std::fs;

use actum_testkit::program::{Ended, Program, other, run as run_program};
use actum_testkit::tree::read;
use serde_json::json;

use super::run::{id, item, project, with};
use super::runs::{is_over, status, submit, until};

const FILES: usize = 30;

/// A project with a draft that modifies, adds and removes files. Returns the run.
fn with_draft() -> (Program, String) {
    let actum = project(&[("a", "for n in $(seq 20); do echo new > file-$n; done; rm gone-*; echo new > added")]);
    for n in 1..=20 {
        actum.file(&format!("file-{n}"), "old\n");
    }
    for n in 21..=FILES {
        actum.file(&format!("gone-{n}"), "old\n");
    }
    let work = with(item("i", "a"), "constraints", json!({"max_files": 100}));
    actum.file("work.json", work.to_string());
    let draft = actum.run(&["run", "--json", "--dry-run", "--set", "maxFilesPerStep=100", "work.json"]);
    assert_eq!(draft.code, 0, "{}{}", draft.stdout, draft.stderr);
    let run = id(&draft.json()["runs"][0]);
    (actum, run)
}

/// Runs a command of which some system calls fail.
fn run_with_fault(actum: &Program, arguments: &[&str], call: &str, errno: &str, when: &str) -> Ended {
    let mut strace = other("strace");
    strace.args(["-f", "-qqq", "-o", "/dev/null", "-e", "signal=none", "-e"]).arg(format!("trace={call}"));
    strace.arg("-e").arg(format!("inject={call}:error={errno}:when={when}"));
    strace.arg(env!("CARGO_BIN_EXE_actum")).args(arguments).current_dir(actum.folder()).env_clear();
    run_program(strace, b"")
}

fn is_new(actum: &Program) -> bool {
    let names = |prefix: &str, range: std::ops::RangeInclusive<usize>| {
        range.map(|n| fs::read_to_string(actum.path(&format!("{prefix}-{n}"))).unwrap_or_default()).collect::<Vec<_>>()
    };
    let (files, gone, added) = (names("file", 1..=20), names("gone", 21..=FILES), actum.path("added").exists());
    let all = |texts: &[String], text: &str| texts.iter().all(|found| found == text);
    if all(&files, "new\n") && all(&gone, "") && added {
        return true;
    }
    assert!(all(&files, "old\n") && all(&gone, "old\n") && !added, "mixed: {files:?} {gone:?} {added}");
    false
}

/// What each error is called in messages.
const REASONS: [(&str, &str); 4] = [
    ("EDQUOT", "quota exceeded"),
    ("EROFS", "read-only file system"),
    ("ENOSPC", "no space left on device"),
    ("EIO", "input/output error"),
];

/// Injects one kind of error into each of some calls, once (`N`) and for good (`N+`). Some of the commands must fail.
fn publishing_survives(call: &str, places: &[&str]) {
    assert!(failures_while_publishing(call, places) > 0, "no call of {call} failed");
}

/// The same; returns how many commands failed.
fn failures_while_publishing(call: &str, places: &[&str]) -> usize {
    let mut failed = 0;
    for (n, place) in places.iter().enumerate() {
        let (errno, reason) = REASONS[n % REASONS.len()];
        let (actum, run) = with_draft();
        let before = read(actum.folder());
        let case = format!("{call} fails with {errno} at {place}");
        let applied = run_with_fault(&actum, &["apply", "--json", &run], call, errno, place);
        if applied.code == 0 {
            assert!(is_new(&actum), "{case}");
            continue;
        }
        failed += 1;
        let message = applied.stderr.to_lowercase();
        assert!(message.contains(reason), "{case}: {message}");
        // The next command completes or rolls back what the error has left pending; then both records agree.
        let shown = status(&actum, &run);
        let published = is_new(&actum);
        assert_eq!(shown["run"]["kept"], !published, "{case}: {shown}");
        if !published {
            assert_eq!(read(actum.folder()), before, "{case}");
            let again = actum.run(&["apply", "--json", &run]);
            assert_eq!(again.code, 0, "{case}: {}", again.stderr);
        }
        assert!(is_new(&actum), "{case}");
        let verified = actum.run(&["ledger", "verify", "--json"]);
        assert_eq!((verified.code, &verified.json()["valid"]), (0, &json!(true)), "{case}");
        assert_eq!(fs::read_dir(actum.path(".actum/workspace/pending")).into_iter().flatten().count(), 0, "{case}");
        assert_eq!(actum.run(&["undo", &run]).code, 0, "{case}");
        assert_eq!(read(actum.folder()), before, "{case}");
    }
    failed
}

#[test]
fn failing_renames_while_publishing_leave_no_mixed_folder() {
    publishing_survives("renameat2", &["1", "2", "5", "16", "25", "29", "30", "31", "3+", "17+", "30+"]);
}

#[test]
fn failing_plain_renames_while_publishing_leave_no_mixed_folder() {
    publishing_survives("rename", &["1", "2", "3", "4", "1+", "2+", "3+"]);
}

#[test]
fn failing_syncs_while_publishing_leave_no_mixed_folder() {
    publishing_survives("fsync", &["1", "2", "3", "5", "8", "12", "1+", "4+"]);
}

#[test]
fn failing_opens_while_publishing_leave_no_mixed_folder() {
    publishing_survives("openat", &["150", "180", "210", "240", "270"]);
}

#[test]
fn failing_writes_while_publishing_leave_no_mixed_folder() {
    // The first writes are the command's own preparations, then come contents, journal and records.
    publishing_survives("write", &["20", "30", "40", "50", "60", "40+", "60+"]);
}

#[test]
fn failing_data_syncs_while_publishing_leave_no_mixed_folder() {
    publishing_survives("fdatasync", &["1", "2", "3", "1+", "2+"]);
}

#[test]
fn failing_folders_and_removals_while_publishing_leave_no_mixed_folder() {
    publishing_survives("mkdir", &["1", "2", "3", "4", "5", "6", "1+"]);
    // What cannot be removed is left for later: that fails nothing.
    for call in ["unlink", "rmdir"] {
        failures_while_publishing(call, &["1", "2", "5", "1+"]);
    }
}

/// `undo` is a publication too: an error in it leaves the result in place or takes it back, never half of it.
#[test]
fn failing_undo_leaves_no_mixed_folder() {
    let mut failed = 0;
    for (n, (call, place)) in
        [("renameat2", "2"), ("renameat2", "17+"), ("write", "40"), ("fsync", "3"), ("rename", "2+")]
            .into_iter()
            .enumerate()
    {
        let (errno, reason) = REASONS[n % REASONS.len()];
        let (actum, run) = with_draft();
        let before = read(actum.folder());
        assert_eq!(actum.run(&["apply", &run]).code, 0);
        let case = format!("{call} fails with {errno} at {place}");
        let undone = run_with_fault(&actum, &["undo", "--json", &run], call, errno, place);
        if undone.code != 0 {
            failed += 1;
            assert!(undone.stderr.to_lowercase().contains(reason), "{case}: {}", undone.stderr);
            status(&actum, &run);
            if is_new(&actum) {
                let again = actum.run(&["undo", "--json", &run]);
                assert_eq!(again.code, 0, "{case}: {}", again.stderr);
            }
        }
        assert_eq!(read(actum.folder()), before, "{case}");
    }
    assert!(failed > 0, "no call failed");
}

/// A run whose publication meets an error ends with the error's reason, or waits for a machine that can; its folder is
/// whole, and it can be resumed.
#[test]
fn run_that_cannot_publish_says_why_and_leaves_a_whole_folder() {
    for (call, errno, place, reason) in [
        ("renameat2", "EDQUOT", "4+", "quota exceeded"),
        ("renameat2", "EROFS", "1+", "read-only file system"),
        ("renameat2", "EIO", "9", "input/output error"),
    ] {
        let actum = project(&[("a", "for n in $(seq 20); do echo new > file-$n; done; rm gone-*; echo new > added")]);
        for n in 1..=FILES {
            actum.file(&format!("{}-{n}", if n <= 20 { "file" } else { "gone" }), "old\n");
        }
        actum.file("work.json", with(item("i", "a"), "constraints", json!({"max_files": 100})).to_string());
        let arguments = ["run", "--json", "--set", "maxFilesPerStep=100", "work.json"];
        let ran = run_with_fault(&actum, &arguments, call, errno, place);
        let case = format!("{call} fails with {errno} at {place}: {}{}", ran.stdout, ran.stderr);
        if ran.code != 0 {
            let said = format!("{}{}", ran.stdout, ran.stderr).to_lowercase();
            assert!(said.contains(reason), "{case}");
        }
        let listed = actum.run(&["list", "--json"]).json();
        let run = id(&listed["runs"][0]);
        let published = is_new(&actum);
        let shown = status(&actum, &run);
        assert_eq!(shown["state"] == "succeeded", published, "{case}");
        // What is known before the agent starts costs nothing.
        let has_acted = shown["events"].as_array().unwrap().iter().any(|event| event["event"] == "acted");
        assert_eq!(has_acted, place != "1+", "{case}: {shown}");
        if !published {
            assert_eq!(actum.run(&["resume", &run]).code, 0, "{case}");
            assert!(is_new(&actum), "{case}");
        }
    }
}

/// A worker whose machine cannot publish gives the run back; after some tries the run fails with that history. It is never
/// tried without end, and the folder stays as it was.
#[test]
fn worker_that_cannot_publish_gives_the_run_up_with_the_history() {
    let actum = project(&[("a", "echo new > f; echo new > g")]);
    actum.file("f", "old\n");
    actum.file("work.yaml", item("i", "a").to_string());
    let run = submit(&actum, &[]).remove(0);
    // The first exchange of names of every thread and process fails: that of each publication.
    let strace = "strace -f -qqq -o /dev/null -e signal=none -e trace=renameat2 -e inject=renameat2:error=EIO:when=1";
    let words: Vec<String> = strace.split(' ').map(str::to_owned).collect();
    let faulty = Program::new(env!("CARGO_BIN_EXE_actum")).started_by(&words);
    let worker = faulty.start(&["-C", actum.folder().to_str().unwrap(), "worker"], &[]);
    let set_backs = || {
        let events = status(&actum, &run)["events"].clone();
        events.as_array().unwrap().iter().filter(|event| event["event"] == "set_back").count()
    };
    for count in [3, 6, 9] {
        until("the run is given back", || set_backs() >= count);
    }
    until("the run is given up", || is_over(&actum, &run));
    // `strace` would leave the worker alive if it was killed itself.
    worker.below()[0].kill();
    worker.finish();
    let shown = status(&actum, &run);
    assert_eq!(shown["error"]["code"], "MACHINE_FAILED", "{shown}");
    let message = shown["error"]["message"].as_str().unwrap().to_lowercase();
    assert!(message.contains("input/output error") && message.contains("9 times"), "{message}");
    let events = shown["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["event"] == "reverted"), "{shown}");
    assert_eq!(fs::read_to_string(actum.path("f")).unwrap(), "old\n");
    assert!(!actum.path("g").exists());
    assert_eq!(actum.run(&["resume", &run]).code, 0);
    assert_eq!(fs::read_to_string(actum.path("f")).unwrap(), "new\n");
}
