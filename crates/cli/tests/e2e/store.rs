//! `actum store`: versions, copies, and stores of other programs.

use actum_testkit::event::signal;
use actum_testkit::postgres::{execute, shared_url};
use rusqlite::Connection;
use serde_json::json;

use super::actum;

#[test]
fn a_newer_store_is_refused_with_a_clear_message() {
    let sqlite = actum();
    sqlite.run_with(&["ledger", "append"], signal("t", "s").to_string().as_bytes()).ok();
    Connection::open(sqlite.path(".actum/actum.db")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let url = shared_url();
    let postgres = actum().on_store(&url);
    postgres.run_with(&["ledger", "append"], signal("t", "s").to_string().as_bytes()).ok();
    execute(&url, "UPDATE actum.store SET version = 99");
    for actum in [sqlite, postgres] {
        for arguments in [["ledger", "list"], ["store", "migrate"]] {
            let ended = actum.run(&arguments);
            assert_eq!(ended.code, 2);
            let message =
                "error[A0302]: the store has version 99, this program knows versions up to 8: use a newer actum";
            assert!(ended.stderr.starts_with(message), "{}", ended.stderr);
        }
    }
}

#[test]
fn migrate_makes_a_store_and_then_has_nothing_to_do() {
    for actum in [actum(), actum().on_store(&shared_url())] {
        assert_eq!(actum.run(&["store", "migrate", "--json"]).json(), json!({"from": 0, "to": 8}));
        assert_eq!(actum.run(&["store", "migrate"]).ok(), "the store has version 8 already\n");
    }
}

#[test]
fn somebody_elses_database_is_left_alone() {
    let actum = actum();
    let path = actum.path("other.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let ended = actum.run(&["ledger", "list", "--store", "other.db"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("not an actum store"), "{}", ended.stderr);
    let tables: i64 =
        Connection::open(&path).unwrap().query_row("SELECT count(*) FROM sqlite_master", [], |r| r.get(0)).unwrap();
    assert_eq!(tables, 1);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_backup_of_either_store_is_a_store_that_verifies() {
    for actum in [actum(), actum().on_store(&shared_url())] {
        let input: String = (0..300).map(|n| format!("{}\n", signal("t", &format!("s-{n}")))).collect();
        actum.run_with(&["ledger", "append", "-q"], input.as_bytes()).ok();
        actum.run_with(&["ledger", "append", "-q"], b"nonsense");
        let note = actum.run(&["ledger", "checkpoint"]).ok();
        actum.file("kept.note", &note);
        assert!(actum.run(&["store", "backup", "copy.db"]).ok().contains("verified: 1 ledger"));
        assert_eq!(actum.run(&["store", "backup", "copy.db"]).code, 2);
        let path = actum.path("copy.db");
        let copy = super::actum().on_store(path.to_str().unwrap());
        std::fs::create_dir(copy.path(".actum")).unwrap();
        std::fs::copy(actum.path(".actum/key.pem"), copy.path(".actum/key.pem")).unwrap();
        let kept = actum.path("kept.note");
        let verified = copy.run(&["ledger", "verify", "--checkpoint", kept.to_str().unwrap(), "--json"]).json();
        assert_eq!((&verified["valid"], &verified["ledgers"][0]["entries"]), (&json!(true), &json!(300)));
        assert_eq!(copy.run(&["ledger", "rejected", "--json"]).json()["rejected"].as_array().unwrap().len(), 1);
        assert_eq!(copy.run(&["store", "rebuild", "--json"]).json()["equal"], true);
    }
}

#[test]
fn a_store_that_may_only_be_read_can_be_looked_at() {
    use std::os::unix::fs::PermissionsExt as _;
    let actum = actum();
    actum.run_with(&["ledger", "append"], signal("t", "s").to_string().as_bytes()).ok();
    actum.run(&["ledger", "checkpoint"]).ok();
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(actum.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let files = || std::fs::read_dir(actum.path(".actum")).unwrap().count();
    let before = files();
    mode(".actum/actum.db", 0o444);
    mode(".actum", 0o555);
    // Root may write anywhere, so look as somebody who may not.
    let nobody = actum.as_nobody();
    for arguments in [&["ledger", "list"][..], &["ledger", "verify"], &["store", "check"], &["ledger", "show", "s"]] {
        let ended = nobody.run(arguments);
        assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.stderr);
    }
    let append = nobody.run_with(&["ledger", "append"], signal("t", "s-2").to_string().as_bytes());
    assert_eq!(append.code, 2);
    assert!(append.stderr.contains("may only be read"), "{}", append.stderr);
    mode(".actum", 0o755);
    assert_eq!(files(), before, "looking left something behind");
}
