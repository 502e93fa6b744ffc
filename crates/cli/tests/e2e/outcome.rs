//! States and outcomes that must not contradict each other: undo and gate, duplicates, dependants, ids, damaged rows, and
//! what commands say about runs that wait or failed.

use std::fs;

use actum_testkit::postgres::{execute, shared_url};
use actum_testkit::program::Program;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::run::{asked, id, item, one, project, run, until_it_acts, with};
use super::runs::{end, state, submit, until, worker};

fn gate(actum: &Program, run: &str) -> i32 {
    actum.run(&["gate", run]).code
}

#[test]
fn refused_undo_leaves_the_run_pinned() {
    let actum = project(&[("a", "echo x > f")]);
    let (_, done) = one(&actum, with(item("i", "a"), "test_command", json!("test -e f")), &[]);
    let run = id(&done);
    actum.file("f", "mine\n");
    assert_eq!(actum.run(&["undo", &run]).code, 6, "every path was changed later");
    assert_eq!(gate(&actum, &run), 0, "{}", actum.run(&["gate", &run]).stdout);
    assert_ne!(asked(&actum, &["status", "--json", &run])["run"]["undone"], true);
    // An undo takes the result back, and an undo of the undo puts it in place again.
    actum.file("f", "x\n");
    let undone = actum.run(&["undo", "--json", &run]);
    assert_eq!((undone.code, gate(&actum, &run)), (0, 1));
    let publication = undone.json()["publication"].as_str().unwrap().to_owned();
    let mut next = publication;
    // Also an undo of that, and so on: the record always says what the folder holds.
    for is_in_place in [true, false, true, false] {
        let undone = actum.run(&["undo", "--json", &next]);
        assert_eq!((undone.code, gate(&actum, &run)), (0, i32::from(!is_in_place)), "{}", undone.stderr);
        assert_eq!(actum.path("f").exists(), is_in_place);
        next = undone.json()["publication"].as_str().unwrap().to_owned();
    }
}

/// An undo that names the publication of a run that is not over is refused, like one that names the run.
#[test]
fn undo_of_a_publication_waits_for_the_end_of_its_run() {
    let actum = project(&[("a", "echo x > f")]);
    let path = actum.file("work.json", item("i", "a").to_string());
    let go_on = actum.folder().with_extension("go-on");
    let until_file = go_on.display().to_string();
    let env = [("ACTUM_CRASH_AT", "run.published"), ("ACTUM_CRASH_UNTIL", until_file.as_str())];
    let mut running = actum.start(&["run", "--json", path.to_str().unwrap()], &env);
    assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")));
    let publication = fs::read_dir(actum.path(".actum/workspace/pending")).unwrap().flatten().next().unwrap();
    let publication = publication.file_name().into_string().unwrap();
    let refused = actum.run(&["undo", "--json", &publication]);
    assert_eq!((refused.code, &refused.error()["code"]), (6, &json!("RUN_STATE")), "{}", refused.stdout);
    fs::write(&go_on, "").unwrap();
    let (code, ..) = running.finish();
    assert!(code == 0 && actum.path("f").exists());
    assert_eq!(actum.run(&["undo", &publication]).code, 0);
    fs::remove_file(go_on).unwrap();
}

/// A kept result is applied or its run is resumed, never both.
#[test]
fn resume_waits_for_an_apply_that_is_under_way() {
    let actum = project(&[("a", "echo theirs > f; sleep 1")]);
    actum.file("f", "old\n");
    let path = actum.file("work.json", item("i", "a").to_string());
    let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    until_it_acts(&actum);
    actum.file("f", "mine\n");
    let (_, lines, _) = running.finish();
    let ended: Value = serde_json::from_str(&lines.concat()).unwrap();
    assert_eq!(ended["runs"][0]["error_code"], "PUBLISH_CONFLICT", "{ended}");
    let run = id(&ended["runs"][0]);
    actum.file("f", "old\n");
    let go_on = actum.folder().with_extension("go-on");
    let until_file = go_on.display().to_string();
    let env = [("ACTUM_CRASH_AT", "publish.marked"), ("ACTUM_CRASH_UNTIL", until_file.as_str())];
    let mut applying = actum.start(&["apply", &run], &env);
    while applying.error_line().is_some_and(|line| !line.starts_with("crash point")) {}
    let refused = actum.run(&["resume", "--detach", &run]);
    assert!(refused.code == 6 && refused.stderr.contains("is being changed by process"), "{}", refused.stderr);
    fs::write(&go_on, "").unwrap();
    let (code, _, errors) = applying.finish();
    assert_eq!((code, state(&actum, &run)), (0, "succeeded".to_owned()), "{errors:?}");
    assert_eq!(fs::read_to_string(actum.path("f")).unwrap(), "theirs\n");
    assert_eq!(actum.run(&["undo", &run]).code, 0);
    fs::remove_file(go_on).unwrap();
}

#[test]
fn interrupted_run_says_why() {
    let actum = project(&[("a", "sleep 60")]);
    let path = actum.file("work.json", item("i", "a").to_string());
    let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    until_it_acts(&actum);
    running.signal("INT");
    running.finish();
    let run = id(&asked(&actum, &["list", "--json"])["runs"][0]);
    let shown = asked(&actum, &["status", "--json", &run]);
    assert_eq!(shown["error"]["code"], "INTERRUPTED", "{shown}");
    assert!(actum.run(&["status", &run]).stdout.contains("resume"), "{}", actum.run(&["status", &run]).stdout);
}

/// D-505: a duplicate is a result that is still in place.
#[test]
fn reverted_result_may_be_produced_again() {
    let actum = project(&[("a", "echo x > x")]);
    assert_eq!(one(&actum, item("i", "a"), &[]).0, 0);
    fs::remove_file(actum.path("x")).unwrap();
    let (code, again) = one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 0, "{again}");
    assert!(actum.path("x").exists());
}

#[test]
fn result_that_is_in_place_is_a_duplicate() {
    let actum = project(&[("a", "echo x > x; sleep 2")]);
    let path = actum.file("work.json", item("i", "a").to_string());
    let start = || actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    let first = start();
    until_it_acts(&actum);
    let second = start();
    let ended = [first.finish(), second.finish()];
    let mut codes: Vec<i32> = ended.iter().map(|(code, ..)| *code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 3], "{ended:?}");
    assert!(ended.iter().any(|(_, lines, _)| lines.concat().contains("DUPLICATE_CAPSULE")), "{ended:?}");
}

fn dependent() -> (Program, String, String) {
    let actum = project(&[("a", "[ \"$ACTUM_ATTEMPT\" -gt 1 ]; echo a > a.txt"), ("b", "cat a.txt > b.txt")]);
    let (code, runs) = run(&actum, json!([item("a", "a"), with(item("b", "b"), "dependencies", json!(["a"]))]), &[]);
    assert_eq!((code, &runs[1]["error_code"]), (1, &json!("DEPENDENCY_FAILED")));
    let (a, b) = (id(&runs[0]), id(&runs[1]));
    (actum, a, b)
}

#[test]
fn dependant_resumed_too_early_can_be_resumed_again() {
    let (actum, a, b) = dependent();
    for _ in 0..2 {
        let early = actum.run(&["resume", "--json", &b]);
        assert_eq!(early.code, 1, "{}{}", early.stdout, early.stderr);
        assert_eq!(early.json()["runs"][0]["error_code"], "DEPENDENCY_FAILED");
    }
    // The old failure of the other one does not count.
    let resumed = actum.run(&["resume", "--json", &a]);
    assert_eq!((resumed.code, resumed.json()["runs"].as_array().unwrap().len()), (0, 1), "{}", resumed.stdout);
    let resumed = actum.run(&["resume", "--json", &b]);
    assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
    assert_eq!(fs::read_to_string(actum.path("b.txt")).unwrap(), "a\n");
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
}

/// D-511: an unset variable in CI never names a run.
#[test]
fn empty_and_ambiguous_ids_are_refused() {
    let actum = project(&[("a", "echo x > x")]);
    let (_, done) = one(&actum, with(item("i", "a"), "test_command", json!("true")), &[]);
    for command in ["gate", "resume", "cancel", "status", "undo", "apply", "diff", "receipt", "verify", "replay"] {
        let refused = actum.run(&[command, ""]);
        assert!(matches!(refused.code, 2 | 7), "{command}: {} {}{}", refused.code, refused.stdout, refused.stderr);
        assert!(!refused.stdout.contains("PASS"), "{command}");
    }
    let spend = actum.run(&["spend", "authorize", "--run", "", "--max-total", "5"]);
    assert_eq!(spend.code, 2, "{}{}", spend.stdout, spend.stderr);
    assert_eq!(state(&actum, &id(&done)), "succeeded");
    assert!(actum.path("x").exists());
    let (_, second) = one(&actum, item("j", "a"), &["--dry-run"]);
    let prefix: String =
        id(&done).chars().zip(id(&second).chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    for command in ["gate", "resume", "cancel", "status", "undo", "apply", "diff"] {
        let refused = actum.run(&[command, &prefix]);
        assert!(matches!(refused.code, 2 | 7), "{command}: {} {}", refused.code, refused.stdout);
    }
}

/// The database of a project, for tests that damage it.
enum Database {
    Sqlite(Connection),
    Postgres(String),
}

impl Database {
    fn of(actum: &Program, url: Option<String>) -> Self {
        url.map_or_else(|| Self::Sqlite(Connection::open(actum.path(".actum/actum.db")).unwrap()), Self::Postgres)
    }

    fn forget_text(&self, run: &str) {
        match self {
            Self::Sqlite(database) => {
                let sql = "DELETE FROM run_text WHERE n = (SELECT n FROM run WHERE id = ?1)";
                assert_eq!(database.execute(sql, [run]).unwrap(), 1);
            }
            Self::Postgres(url) => execute(url, &format!("DELETE FROM actum.run_text WHERE id = '{run}'")),
        }
    }

    fn set_unknown_state(&self, run: &str) {
        match self {
            Self::Sqlite(database) => {
                database.pragma_update(None, "ignore_check_constraints", true).unwrap();
                assert_eq!(database.execute("UPDATE run SET state = 'lost' WHERE id = ?1", [run]).unwrap(), 1);
            }
            Self::Postgres(url) => execute(url, &format!("UPDATE actum.run SET state = 'lost' WHERE id = '{run}'")),
        }
    }

    fn forget_third_event(&self, run: &str) {
        match self {
            Self::Sqlite(database) => {
                let sql = "DELETE FROM run_event WHERE run = (SELECT n FROM run WHERE id = ?1) AND n = 3";
                assert_eq!(database.execute(sql, [run]).unwrap(), 1);
            }
            Self::Postgres(url) => execute(url, &format!("DELETE FROM actum.run_event WHERE run = '{run}' AND n = 3")),
        }
    }
}

/// A project on SQLite, or on PostgreSQL.
fn stored(is_shared: bool) -> (Program, Option<String>) {
    let url = is_shared.then(shared_url);
    let actum = project(&[("a", "echo x > $ACTUM_WORK_ITEM_ID")]);
    (url.iter().fold(actum, |actum, url| actum.on_store(url)), url)
}

fn damaged_run_blocks_no_other(is_shared: bool) {
    let (actum, url) = stored(is_shared);
    actum.file("work.yaml", json!([item("one", "a"), item("two", "a")]).to_string());
    let runs = submit(&actum, &[]);
    Database::of(&actum, url).forget_text(&runs[0]);
    let check = actum.run(&["store", "check", "--json"]);
    assert_eq!(check.code, 1, "{}", check.stdout);
    assert!(check.stdout.contains("1 of 2 runs"), "{}", check.stdout);
    let worker = worker(&actum, &[], &[]);
    until("the other is done", || state(&actum, &runs[1]) == "succeeded");
    until("the damaged one is reported", || {
        let listed = asked(&actum, &["list", "--json"]);
        let row = listed["runs"].as_array().unwrap().iter().find(|row| row["run_id"] == runs[0].as_str()).cloned();
        row.is_some_and(|row| row["damaged"] == true && row["state"] == "failed")
    });
    end(worker);
    assert!(actum.path("two").exists() && !actum.path("one").exists());
}

#[test]
fn damaged_run_blocks_no_other_on_sqlite() {
    damaged_run_blocks_no_other(false);
}

#[test]
fn damaged_run_blocks_no_other_on_postgres() {
    damaged_run_blocks_no_other(true);
}

/// A row whose state is unknown, or a journal that has lost events, is found and hides no other run.
fn unknown_state_and_lost_events_are_found(is_shared: bool) {
    let (actum, url) = stored(is_shared);
    let (_, first) = one(&actum, item("one", "a"), &[]);
    let (_, second) = one(&actum, item("two", "a"), &[]);
    let database = Database::of(&actum, url);
    database.set_unknown_state(&id(&first));
    let listed = asked(&actum, &["list", "--json"]);
    let row = |run: &str| listed["runs"].as_array().unwrap().iter().find(|row| row["run_id"] == run).cloned().unwrap();
    assert_eq!((&row(&id(&first))["damaged"], &row(&id(&second))["state"]), (&json!(true), &json!("succeeded")));
    assert_eq!(actum.run(&["status"]).code, 0);
    let damaged = || actum.run(&["store", "check", "--json"]);
    assert!(damaged().code == 1 && damaged().stdout.contains("1 of 2 runs"), "{}", damaged().stdout);
    database.forget_third_event(&id(&second));
    assert!(damaged().stdout.contains("2 of 2 runs"), "{}", damaged().stdout);
}

#[test]
fn unknown_state_and_lost_events_are_found_on_sqlite() {
    unknown_state_and_lost_events_are_found(false);
}

#[test]
fn unknown_state_and_lost_events_are_found_on_postgres() {
    unknown_state_and_lost_events_are_found(true);
}

/// An undone result leaves the history: the same result may be produced again.
#[test]
fn undone_result_may_be_produced_again() {
    let actum = project(&[("a", "echo x > made")]);
    let (_, done) = one(&actum, item("i", "a"), &[]);
    assert_eq!(actum.run(&["undo", &id(&done)]).code, 0);
    let (code, again) = one(&actum, item("i", "a"), &[]);
    assert_eq!((code, &again["status"]), (0, &json!("success")), "{again}");
    assert!(actum.path("made").exists());
}

#[test]
fn status_logs_and_diff_say_what_happened() {
    let actum = project(&[("bad", "printf '{' > broken.json"), ("good", "echo x > x; echo y > y")]);
    let (_, failed) = one(&actum, item("i", "bad"), &[]);
    let run = id(&failed);
    for command in [&["status", &run][..], &["show", &run], &["logs", &run]] {
        let shown = actum.run(command).stdout;
        let is_named = shown.contains("broken.json") && shown.contains("does not parse: EOF while parsing");
        assert!(is_named, "{command:?} names the file and the reason: {shown}");
    }
    let failures = asked(&actum, &["status", "--json", &run])["failures"].clone();
    assert_eq!(failures[0]["path"], "broken.json", "{failures}");
    let (_, done) = one(&actum, item("j", "good"), &[]);
    let stat = actum.run(&["diff", "--stat", &id(&done)]).stdout;
    assert!(stat.contains("2 changes") && !stat.contains("+++"), "{stat}");
    assert_eq!(asked(&actum, &["diff", "--json", &id(&done)])["deltas"].as_array().unwrap().len(), 2);
}

#[test]
fn runs_that_wait_say_for_what() {
    let actum = project(&[("a", "true")]);
    let items = json!([item("a", "a"), with(item("b", "a"), "dependencies", json!(["a"]))]);
    actum.file("work.yaml", items.to_string());
    let runs = submit(&actum, &[]);
    let waiting = |run: &str| asked(&actum, &["status", "--json", run])["waiting"].as_str().unwrap().to_owned();
    assert!(waiting(&runs[0]).contains("actum worker"));
    assert!(waiting(&runs[1]).contains(&runs[0]));
    let shown: Value = asked(&actum, &["status", "--json", &runs[1]]);
    assert_eq!(shown["waits_for"][0]["run_id"], runs[0].as_str());
}
