//! A worker that stood still for longer than its lease has lost its run: another one finishes it, and whatever the first
//! does when it wakes leaves no trace.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::{Process, Program};
use actum_testkit::tree::{Leaves, read};
use serde_json::Value;

use super::runs::{check, check_project, end, entries, is_over, project, stages, status, submit, tag, until, worker};

/// Everything that a run has left: journal, ledger, workspace, and the files of its folder but for the log.
fn traces(actum: &Program, run: &str) -> (Value, Vec<Value>, Leaves, BTreeMap<PathBuf, Vec<u8>>) {
    let folder = fs::read_dir(actum.path(&format!(".actum/runs/{run}"))).unwrap().flatten();
    let files = folder.map(|entry| entry.path()).filter(|path| path.is_file() && !path.ends_with("log"));
    let files = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let ledger = ["execution_event", "receipt", "workspace_publication"].map(|kind| entries(actum, kind)).concat();
    (status(actum, run), ledger, read(actum.folder()), files)
}

/// Stops the first worker at a moment that `is_now` knows, and lets the second one finish.
fn fenced(actum: &Program, flags: &[&str], is_now: impl Fn(&str) -> bool) {
    const LEASE: [&str; 2] = ["--lease", "15"];
    // A moment that was missed comes again with the next run.
    let stopped = (0..10).find_map(|_| {
        let run = submit(actum, flags).remove(0);
        let first = worker(actum, &LEASE, &[]);
        until("the moment has come", || is_now(&run));
        first.signal("STOP");
        if !is_over(actum, &run) {
            return Some((run, first));
        }
        first.signal("CONT");
        end(first);
        None
    });
    let (run, first) = stopped.expect("it is stopped in time");
    let second = worker(actum, &LEASE, &[]);
    until("the second has finished it", || is_over(actum, &run));
    check(actum, &run, "before the first wakes");
    let before = traces(actum, &run);
    first.signal("CONT");
    // It has noticed when it has cleaned up behind itself.
    until("the first has let go of it", || stages(actum).is_empty());
    end(first);
    let after = traces(actum, &run);
    for (name, content) in &before.3 {
        assert!(after.3.get(name) == Some(content), "{} was written", name.display());
    }
    // What is large is not shown.
    assert_eq!((&after.0, &after.1, after.3.len()), (&before.0, &before.1, before.3.len()));
    assert!(after.2 == before.2, "the workspace was written");
    check(actum, &run, "after the first woke");
    end(second);
    check_project(actum, "fenced");
}

#[test]
fn a_worker_that_stood_still_while_its_agent_worked() {
    let actum = project("echo $1 >> lines; sleep 1").on_store(&shared_url());
    actum.file("work.yaml", "items: [{id: item, agent_id: a, description: d, test_command: 'true'}]\n");
    fenced(&actum, &[], |_| !Process::with_argument(&tag(&actum)).is_empty());
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "one\ntwo\n");
}

/// Between the last event and the end: what is large takes time to be written up.
#[test]
fn a_worker_that_stood_still_while_it_wrote_the_receipt() {
    let actum = project("for n in 1 2; do head -c 4900000 /dev/urandom > $n; done").on_store(&shared_url());
    actum.file("work.yaml", "items: [{id: item, agent_id: b, description: d, test_command: 'true'}]\n");
    let large = ["--set", "maxFileBytes=5000000", "--set", "maxTotalDiffBytes=10000000"];
    // It puts everything together in a folder of its own first.
    let is_writing = |run: &str| {
        let names = fs::read_dir(actum.path(&format!(".actum/runs/{run}"))).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with(".ended-"))
    };
    fenced(&actum, &large, is_writing);
}
