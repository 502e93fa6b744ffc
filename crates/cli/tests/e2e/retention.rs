//! Letting go of what is old: `actum store gc` and the clock of `actum serve`, with runs under way, with results that are
//! kept, and killed in the middle. Receipts, ledger and whatever can still be gone on with stay.

use std::fs;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use actum_testkit::tree;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::predict::demo;
use super::run::{asked, id, item, live, one, project, until_it_acts};
use super::runs::{check, until};
use super::serve::Server;

/// Nothing is kept for longer than it has to be.
const NOW: &str = "\n[retention]\nruns_days = 0\nsnapshots_days = 0\ntraces_days = 0\ndead_letters_days = 0\n";

fn settled(actum: Program) -> Program {
    let text = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", text + NOW);
    actum
}

fn files(actum: &Program, run: &str) -> Vec<String> {
    let all = fs::read_dir(actum.path(&format!(".actum/runs/{run}"))).into_iter().flatten().flatten();
    let mut names: Vec<String> = all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

const LEFT: [&str; 2] = ["RECEIPT.json", "receipt.statement.json"];

fn agents() -> Program {
    settled(project(&[
        ("good", "if test -e made; then echo again > again; fi; echo good > made"),
        ("bad", "test -e mended && echo fine > fine"),
        ("slow", "test -e go || sleep 60; echo slow > slow"),
    ]))
}

/// A run that succeeded, one that failed, one whose result is kept: everything a clean-up has to tell apart.
fn runs(actum: &Program) -> (String, String, String) {
    let (code, good) = one(actum, item("good", "good"), &[]);
    assert_eq!(code, 0, "{good}");
    let (code, bad) = one(actum, live(item("bad", "bad")), &[]);
    assert_eq!(code, 1, "{bad}");
    actum.file("made", "something else\n");
    let (code, kept) = one(actum, item("kept", "good"), &["--dry-run"]);
    assert_eq!((code, &kept["kept"]), (0, &json!(true)), "{kept}");
    (id(&good), id(&bad), id(&kept))
}

/// What holds after a clean-up, however often it was begun.
fn check_after(actum: &Program, (good, bad, kept): &(String, String, String), case: &str) {
    assert_eq!(files(actum, good), LEFT, "{case}");
    assert!(files(actum, bad).len() > 2 && files(actum, kept).len() > 2, "{case}");
    check(actum, good, case);
    // Who looks for what is gone hears why.
    for words in [["logs", good], ["diff", good], ["replay", good]] {
        assert!(actum.run(&words).stderr.contains("[retention]"), "{case}: {words:?}");
    }
    assert_eq!(asked(actum, &["ledger", "verify", "--json"])["valid"], true, "{case}");
    assert_eq!(asked(actum, &["store", "check", "--json"])["valid"], true, "{case}");
    assert_eq!(asked(actum, &["snapshot", "check", "--json"])["valid"], true, "{case}");
    let applied = actum.run(&["apply", kept]);
    assert_eq!(applied.code, 0, "{case}: {}", applied.stderr);
    actum.file("mended", "");
    let resumed = actum.run(&["resume", bad]);
    assert_eq!(resumed.code, 0, "{case}: {}{}", resumed.stdout, resumed.stderr);
}

#[test]
fn old_things_go_and_what_is_needed_stays() {
    for actum in [agents(), agents().on_store(&shared_url())] {
        let runs = runs(&actum);
        actum.run_with(&["ledger", "append", "-q"], b"nonsense");
        let before = tree::read(&actum.path(".actum/runs"));
        let would = asked(&actum, &["store", "gc", "--dry-run", "--json"]);
        assert_eq!((&would["dry_run"], &would["runs"], &would["dead_letters"]), (&json!(true), &json!(1), &json!(1)));
        assert!(would["snapshots"].as_u64() > Some(0) && would["bytes"].as_u64() > Some(0), "{would}");
        assert_eq!(tree::read(&actum.path(".actum/runs")), before);
        let text = actum.run(&["store", "gc", "--dry-run"]).ok();
        assert!(text.starts_with("would remove 1 folder of a run, "), "{text}");
        let done = asked(&actum, &["store", "gc", "--json"]);
        for name in ["runs", "snapshots", "publications", "dead_letters"] {
            assert_eq!(done[name], would[name], "{name}: {done} {would}");
        }
        assert_eq!(asked(&actum, &["store", "gc", "--json"])["runs"], 0);
        check_after(&actum, &runs, "after");
    }
}

#[test]
fn a_run_under_way_is_not_in_the_way_and_not_harmed() {
    let actum = agents();
    let runs = runs(&actum);
    actum.file("slow.yaml", item("slow", "slow").to_string());
    let running = actum.start(&["run", "--json", "slow.yaml"], &[]);
    let slow = until_it_acts(&actum);
    assert_eq!(asked(&actum, &["store", "gc", "--json"])["runs"], 1);
    running.signal("INT");
    let (_, _, errors) = running.finish();
    actum.file("go", "");
    let resumed = actum.run(&["resume", &slow]);
    assert_eq!(resumed.code, 0, "{}{} {errors:?}", resumed.stdout, resumed.stderr);
    fs::remove_file(actum.path("go")).unwrap();
    check_after(&actum, &runs, "beside a run");
}

#[test]
fn killed_anywhere_in_it_the_next_one_finishes() {
    for at in ["gc.file#1", "gc.file#3", "gc.runs", "gc.snapshots", "sweep.copied", "sweep.removed#1", "gc.traces"] {
        let actum = agents();
        let runs = runs(&actum);
        let mut running = actum.start(&["store", "gc"], &[("ACTUM_CRASH_AT", at)]);
        let is_reached = running.error_line().is_some_and(|line| line.starts_with("crash point"));
        assert!(is_reached || at == "gc.traces", "{at} is never passed");
        running.kill();
        actum.run(&["store", "gc"]).ok();
        check_after(&actum, &runs, at);
    }
}

#[test]
fn a_server_does_it_by_the_clock() {
    let upstream = Upstream::start(Script::default().turn(Turn::text(r#"{"label":"positive"}"#), Usage::new(40, 6)));
    let actum = demo(&upstream);
    let agents = "[agents.good]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", \"echo good > made\"]\n";
    let text = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{agents}{text}"));
    let actum = settled(actum);
    let good = id(&one(&actum, item("good", "good"), &[]).1);
    let allowed = ["spend", "authorize", "--json", "--id", "all", "--max-total", "1000000", "--reason", "test"];
    assert_eq!(actum.run(&allowed).code, 0);
    // Somebody reserves, and is gone.
    let asks = ["predict", "demo/Sentiment.v1", "--json", "--param", "text=good"];
    let mut asking = actum.start(&asks, &[("ACTUM_CRASH_AT", "model.reserved")]);
    assert!(asking.error_line().is_some_and(|line| line.starts_with("crash point")));
    asking.kill();
    let state = || asked(&actum, &["spend", "reservations", "--json"])["reservations"][0]["state"].clone();
    assert_eq!(state(), "reserved");
    let first = Server::start(&actum, &["--workers", "0", "--housekeeping", "1", "--log", "json", "-q"]);
    let second = Server::start(&actum, &["--workers", "0", "--housekeeping", "1"]);
    until("the reservation is marked", || state() == "reconcile_required");
    until("the run's files are gone", || files(&actum, &good) == LEFT);
    assert_eq!(second.stop().0, 0);
    let (code, errors) = first.stop();
    assert_eq!(code, 0, "{errors:?}");
    errors.iter().for_each(|line| drop(serde_json::from_str::<Value>(line).unwrap()));
    assert_eq!(asked(&actum, &["store", "check", "--json"])["valid"], true);
}

#[test]
fn a_trace_that_a_young_receipt_names_stays() {
    let upstream = Upstream::start(Script::default().turn(Turn::text(r#"{"label":"positive"}"#), Usage::new(40, 6)));
    let actum = settled(demo(&upstream));
    assert_eq!(actum.run(&["spend", "authorize", "--max-total", "1000usd"]).code, 0);
    let text = format!("text={}", "long ".repeat(20_000));
    let told = actum.run(&["predict", "demo/Sentiment.v1", "--json", "--param", &text]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let receipt = told.json()["receipt_id"].as_str().unwrap().to_owned();
    let packs = || fs::read_dir(actum.path(".actum/traces/packs")).into_iter().flatten().count();
    assert!(packs() > 0, "the trace stands in its receipt");
    let before = asked(&actum, &["store", "gc", "--dry-run", "--json"]);
    assert_eq!(before["traces"], 0, "{before}");
    assert_eq!(asked(&actum, &["store", "gc", "--json"])["traces"], 0);
    let shown = actum.run(&["trace", "show", &receipt, "--json"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains("long long"), "it is whole");
}

#[test]
fn days_are_numbers_and_nothing_else() {
    for (line, why) in [
        ("runs_days = -1", "a whole number of days"),
        ("runs_days = 1.5", "a whole number of days"),
        ("runs_days = \"7\"", "a whole number of days"),
        ("runs_days = 36501", "a whole number of days"),
        ("run_days = 7", "runs_days or snapshots_days"),
    ] {
        let actum = super::actum();
        actum.file("actum.toml", format!("[retention]\n{line}\n"));
        let ended = actum.run(&["store", "gc", "--json"]);
        assert_eq!(ended.code, 2, "{line}: {}", ended.stderr);
        assert!(ended.error()["message"].as_str().unwrap().contains(why), "{line}: {}", ended.stderr);
    }
    let actum = super::actum();
    actum.file("actum.toml", "[retention]\n");
    assert_eq!(actum.run(&["store", "gc"]).ok(), "removed nothing\n");
}
