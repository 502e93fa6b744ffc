//! Backup and restore as docs/operations.md tells it, line by line as it stands there: while runs are under way; then everything
//! is lost, and comes back elsewhere.

use std::fs;
use std::path::Path;

use actum_testkit::folder::Folder;
use actum_testkit::postgres::{find_binaries, shared_url};
use actum_testkit::program::{Ended, Program, other};
use serde_json::json;

use super::run::{asked, item};
use super::runs::{self, check, until};

const PAGE: &str = include_str!("../../../../docs/operations.md");

/// The lines that are typed, block by block, below a heading.
fn blocks(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = PAGE.split_once(&format!("### {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let section = rest.split("\n#").next().unwrap();
    let blocks = section.split("```\n").skip(1).step_by(2);
    blocks.map(|block| block.lines().filter_map(|line| line.strip_prefix("$ ")).collect()).collect()
}

/// Types a block in one shell, which stops at the first line that fails.
fn typed(lines: &[&str], project: &Path, backup: &Path, store: Option<&str>) -> Ended {
    let place = |text: &str| {
        text.replace("/srv/actum", &project.display().to_string()).replace("/backup", &backup.display().to_string())
    };
    let script: String = lines.iter().map(|line| format!("{}\n", place(line))).collect();
    let mut command = other("bash");
    let binary = Path::new(env!("CARGO_BIN_EXE_actum")).parent().unwrap().display().to_string();
    let postgres = find_binaries().map(|path| format!("{}:", path.display())).unwrap_or_default();
    command.args(["-euc", &script]).current_dir("/");
    command.env_clear().env("PATH", format!("{binary}:{postgres}/usr/bin:/bin")).env("HOME", backup);
    command.env("ACTUM_MACHINE", MACHINE);
    if let Some(store) = store {
        command.env("ACTUM_STORE", store);
    }
    actum_testkit::program::run(command, b"")
}

const MACHINE: &str = "the-old-one";

fn story(heading: &str, store: Option<&str>, next_store: Option<&str>) {
    let blocks = blocks(heading);
    assert_eq!(blocks.len(), 2, "a way there and a way back");
    let actum = runs::project("echo $1 >> lines").with_env("ACTUM_MACHINE", MACHINE);
    let on = |actum: Program, store: Option<&str>| match store {
        Some(store) => actum.with_env("ACTUM_STORE", store),
        None => actum,
    };
    let actum = on(actum, store);
    // One that is done, one that is under way, one that waits for it.
    actum.file("work.yaml", json!({"items": [item("done", "b")]}).to_string());
    let done = runs::submit(&actum, &[]).remove(0);
    runs::work(&actum, std::slice::from_ref(&done));
    let note = actum.run(&["ledger", "checkpoint"]).ok();
    let second = json!({"id": "after", "agent_id": "b", "description": "after", "dependencies": ["slow"]});
    actum.file("work.yaml", json!({"items": [item("slow", "b"), second]}).to_string());
    let waiting = runs::submit(&actum, &[]);
    let mut worker = actum.start(&["worker", "-q", "--lease", "15"], &[("ACTUM_CRASH_AT", "run.acted")]);
    until("it stands still", || worker.error_line().is_some_and(|line| line.starts_with("crash point")));

    let backup = Folder::new();
    let taken = typed(&blocks[0], actum.folder(), backup.path(), store);
    assert_eq!(taken.code, 0, "{}{}", taken.stdout, taken.stderr);

    worker.kill();
    let project = actum.folder().to_owned();
    fs::remove_dir_all(&project).unwrap();
    let restored = typed(&blocks[1], &project, backup.path(), next_store);
    assert_eq!(restored.code, 0, "{}{}", restored.stdout, restored.stderr);

    let actum = on(actum, next_store);
    check(&actum, &done, "what was done");
    backup.file("note", &note);
    let kept = backup.join("note").display().to_string();
    let verified = asked(&actum, &["ledger", "verify", "--json", "--checkpoint", &kept]);
    assert_eq!(verified["valid"], true, "{verified}");
    runs::work(&actum, &waiting);
    waiting.iter().for_each(|run| check(&actum, run, "what was not"));
    assert_eq!(asked(&actum, &["store", "check", "--json"])["valid"], true);
    // The next backup is like the first.
    let again = Folder::new();
    let taken = typed(&blocks[0], &project, again.path(), next_store);
    assert_eq!(taken.code, 0, "{}{}", taken.stdout, taken.stderr);
}

#[test]
fn a_sqlite_store_is_lost_and_comes_back() {
    story("SQLite", None, None);
}

#[test]
fn a_shared_store_is_lost_and_comes_back_in_another_database() {
    let (store, next) = (shared_url(), shared_url());
    story("PostgreSQL", Some(&store), Some(&next));
}
