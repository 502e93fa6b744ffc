//! Clocks that are wrong, jump or differ (D-502), with libfaketime around the real binary, on both stores: the folder, the
//! run's record and the ledger always agree.

use std::fs;
use std::path::Path;

use actum_testkit::postgres::{shared_url, told};
use actum_testkit::program::{Process, Program};
use actum_testkit::tree::read;
use serde_json::{Value, json};

use super::actum;
use super::runs::{
    check, check_project, define, end, entries, history, is_over, state, status, submit, tag, until, work,
};

/// Debian's packages put it here.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const ONE: &str = "items: [{id: item, agent_id: b, description: d, test_command: 'true'}]\n";
/// Within this difference runs are executed.
const BOUND_SECONDS: f64 = 5.0;

fn one(step: &str, is_shared: bool) -> Program {
    let program = if is_shared { actum().on_store(&shared_url()) } else { actum() };
    define(&program, step);
    program.file("work.yaml", ONE);
    program
}

/// The environment of a process whose clock differs by so many seconds. Timers go on as they are.
fn skewed(seconds: f64) -> Vec<(String, String)> {
    let offset = format!("{seconds:+}");
    [
        ("LD_PRELOAD", LIBRARY),
        ("FAKETIME", &offset),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// The same, with an offset that is read from a file each time.
fn stepped(file: &Path) -> Vec<(String, String)> {
    let mut env = skewed(0.0);
    env.retain(|(name, _)| name != "FAKETIME");
    env.push(("FAKETIME_TIMESTAMP_FILE".into(), file.display().to_string()));
    env.push(("FAKETIME_NO_CACHE".into(), "1".into()));
    env
}

fn pairs(env: &[(String, String)]) -> Vec<(&str, &str)> {
    env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// The times at which the ledger recorded entries, oldest first.
fn recorded(actum: &Program) -> Vec<String> {
    let listed = actum.run(&["ledger", "list", "--json", "--limit", "1000"]).json();
    let mut rows: Vec<(u64, String)> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["seq"].as_u64().unwrap(), entry["recordedAt"].as_str().unwrap().to_owned()))
        .collect();
    rows.sort();
    rows.into_iter().map(|(_, at)| at).collect()
}

/// A worker whose clock differs from the submitter's: it executes the run, or refuses to begin and changes nothing.
fn worker_skew(is_shared: bool) {
    for seconds in [-0.05, 0.05, -0.3, -3.0, 0.3, 3.0, -3600.0, 3600.0, -86_400.0, 86_400.0] {
        let case = format!("{seconds:+} s");
        let actum = one("echo x >> lines", is_shared);
        let before = read(actum.folder());
        let run = submit(&actum, &[]).remove(0);
        let env = skewed(seconds);
        let mut worker = actum.start(&["worker"], &pairs(&env));
        if seconds.abs() < BOUND_SECONDS {
            until("the run is over", || is_over(&actum, &run));
            end(worker);
        } else {
            let refused = std::iter::from_fn(|| worker.error_line()).find(|line| line.contains("clock"));
            let line = refused.expect("it says why it takes nothing");
            assert!(line.contains("within"), "{case}: {line}");
            end(worker);
            assert_eq!((state(&actum, &run).as_str(), read(actum.folder())), ("queued", before), "{case}");
            assert_eq!(history(&actum, &run), ["planned 1"], "{case}");
            work(&actum, std::slice::from_ref(&run));
        }
        check(&actum, &run, &case);
        assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "x\n", "{case}");
        let times = recorded(&actum);
        assert!(times.is_sorted(), "{case}: {times:?}");
        check_project(&actum, &case);
    }
}

#[test]
fn worker_with_another_clock_executes_or_refuses_on_sqlite() {
    worker_skew(false);
}

#[test]
fn worker_with_another_clock_executes_or_refuses_on_postgres() {
    worker_skew(true);
}

/// A clock that jumps while the agent works: the run ends as if it had not.
fn step_during_run(is_shared: bool) {
    for seconds in [-30.0, 30.0, -0.05, -86_400.0, 86_400.0] {
        let case = format!("a step of {seconds:+} s");
        let actum = one("echo x >> lines; sleep 1", is_shared);
        let offset = actum.folder().with_extension("offset");
        fs::write(&offset, "+0\n").unwrap();
        let env = stepped(&offset);
        let running = actum.start(&["run", "--json", "work.yaml"], &pairs(&env));
        until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
        fs::write(&offset, format!("{seconds:+}\n")).unwrap();
        let (code, lines, errors) = running.finish();
        assert_eq!(code, 0, "{case}: {lines:?} {errors:?}");
        let shown: Value = serde_json::from_str(&lines.concat()).unwrap();
        let run = shown["runs"][0]["run_id"].as_str().unwrap().to_owned();
        check(&actum, &run, &case);
        let statement = fs::read(actum.path(&format!(".actum/runs/{run}/receipt.statement.json"))).unwrap();
        let predicate = &serde_json::from_slice::<Value>(&statement).unwrap()["predicate"];
        let times = ["startedOn", "finishedOn"].map(|name| predicate[name].as_str().unwrap().to_owned());
        assert!(times.is_sorted(), "{case}: {times:?}");
        let receipts = entries(&actum, "workspace_publication");
        assert_eq!(receipts.len(), 1, "{case}");
        assert!(recorded(&actum).is_sorted(), "{case}: {:?}", recorded(&actum));
        // A later run under the right clock goes on from there.
        let again = actum.run(&["run", "--json", "work.yaml"]);
        assert_eq!(again.code, 0, "{case}: {}{}", again.stdout, again.stderr);
        assert!(recorded(&actum).is_sorted(), "{case}");
        check_project(&actum, &case);
        let _ = fs::remove_file(&offset);
    }
}

#[test]
fn clock_that_steps_during_a_run_changes_nothing_on_sqlite() {
    step_during_run(false);
}

#[test]
fn clock_that_steps_during_a_run_changes_nothing_on_postgres() {
    step_during_run(true);
}

/// Beyond the bound nothing is begun: not by `run`, nor by `resume`, and doctor says why.
#[test]
fn wrong_clock_is_refused_before_anything_changes() {
    let actum = one("echo x >> lines; [ $ACTUM_ATTEMPT != 1 ]", false);
    let failed = actum.run(&["run", "--json", "work.yaml"]).json()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let before = (read(actum.folder()), recorded(&actum));
    for seconds in [-60.0, 60.0] {
        let env = skewed(seconds);
        for command in [&["run", "--json", "work.yaml"][..], &["resume", "--json", &failed]] {
            let (code, _, errors) = actum.start(command, &pairs(&env)).finish();
            let error: Value = serde_json::from_str(&errors.concat()).unwrap();
            assert_eq!((code, &error["error"]["code"]), (1, &json!("CLOCK_SKEW")), "{seconds} {command:?}");
            assert!(error["error"]["hint"].is_string());
        }
        assert_eq!((read(actum.folder()), recorded(&actum)), before, "{seconds}");
        let (_, lines, _) = actum.start(&["doctor", "--json"], &pairs(&env)).finish();
        let doctor: Value = serde_json::from_str(&lines.concat()).unwrap();
        assert_eq!(doctor["clock"]["ok"], false, "{doctor}");
    }
    assert_eq!(actum.run(&["doctor", "--json"]).json()["clock"]["ok"], true);
    assert_eq!(status(&actum, &failed)["attempt"], 1);
    assert_eq!(actum.run(&["resume", &failed]).code, 0);
}

/// A run that stops at each named place under one clock and goes on under another one.
fn clock_that_jumps_at_any_place(is_shared: bool, seconds: f64) {
    for place in actum_engine::CRASH_POINTS {
        let case = format!("{seconds:+} s until {place}, then {:+} s", -seconds);
        let url = is_shared.then(shared_url);
        let actum = url.iter().fold(actum(), |actum, url| actum.on_store(url));
        define(&actum, "echo $1 >> lines");
        // With a plan, so that every place is passed.
        actum.file("work.yaml", ONE.replace("agent_id: b", "agent_id: a"));
        let mut env = skewed(seconds);
        env.push(("ACTUM_CRASH_AT".into(), (*place).to_owned()));
        let mut running = actum.start(&["run", "--json", "work.yaml"], &pairs(&env));
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{case}");
        running.kill();
        let worker = actum.start(&["worker"], &pairs(&skewed(-seconds)));
        let run = match &url {
            Some(url) => told(url, "SELECT id FROM actum.run").remove(0),
            None => {
                let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
                database.query_row("SELECT id FROM run", [], |row| row.get(0)).unwrap()
            }
        };
        until("the run is over", || is_over(&actum, &run));
        end(worker);
        check(&actum, &run, &case);
        assert!(recorded(&actum).is_sorted(), "{case}: {:?}", recorded(&actum));
        assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "one\ntwo\n", "{case}");
        check_project(&actum, &case);
    }
}

#[test]
fn clock_that_jumps_at_any_place_of_a_run_changes_nothing() {
    clock_that_jumps_at_any_place(false, 4.0);
    clock_that_jumps_at_any_place(false, -4.0);
}

#[test]
fn clock_that_jumps_at_any_place_of_a_run_changes_nothing_on_postgres() {
    clock_that_jumps_at_any_place(true, 4.0);
    clock_that_jumps_at_any_place(true, -4.0);
}

/// The clock of one process jumps at each named place of a run, far beyond the bound: what has begun goes on by the store's
/// times, and ends as if nothing had happened.
fn clock_that_jumps_within_a_process(is_shared: bool, seconds: f64) {
    for place in actum_engine::CRASH_POINTS.iter().chain(&["run.publishing", "publish.marked", "run.applied"]) {
        let case = format!("a step of {seconds:+} s at {place}");
        let actum = if is_shared { actum().on_store(&shared_url()) } else { actum() };
        define(&actum, "echo $1 >> lines");
        actum.file("work.yaml", ONE.replace("agent_id: b", "agent_id: a"));
        let (offset, go_on) = (actum.folder().with_extension("offset"), actum.folder().with_extension("go-on"));
        fs::write(&offset, "+0\n").unwrap();
        let mut env = stepped(&offset);
        env.push(("ACTUM_CRASH_AT".into(), (*place).to_owned()));
        env.push(("ACTUM_CRASH_UNTIL".into(), go_on.display().to_string()));
        let mut running = actum.start(&["run", "--json", "work.yaml"], &pairs(&env));
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{case}");
        fs::write(&offset, format!("{seconds:+}\n")).unwrap();
        fs::write(&go_on, "").unwrap();
        let (code, lines, errors) = running.finish();
        assert_eq!(code, 0, "{case}: {lines:?} {errors:?}");
        let shown: Value = serde_json::from_str(&lines.concat()).unwrap();
        check(&actum, shown["runs"][0]["run_id"].as_str().unwrap(), &case);
        assert!(recorded(&actum).is_sorted(), "{case}: {:?}", recorded(&actum));
        assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "one\ntwo\n", "{case}");
        check_project(&actum, &case);
        for file in [&offset, &go_on] {
            let _ = fs::remove_file(file);
        }
    }
}

#[test]
fn clock_that_jumps_a_day_within_a_process_changes_nothing() {
    clock_that_jumps_within_a_process(false, -86_400.0);
    clock_that_jumps_within_a_process(false, 86_400.0);
}

#[test]
fn clock_that_jumps_a_day_within_a_process_changes_nothing_on_postgres() {
    clock_that_jumps_within_a_process(true, -86_400.0);
    clock_that_jumps_within_a_process(true, 86_400.0);
}

/// Daylight saving and leap seconds: times are instants, so a zone changes nothing, and a leap second is refused as text.
#[test]
fn time_zones_and_leap_seconds_change_nothing() {
    for zone in ["America/New_York", "Australia/Lord_Howe", "right/UTC"] {
        let actum = one("echo x >> lines", false).with_env("TZ", zone);
        let ended = actum.run(&["run", "--json", "work.yaml"]);
        assert_eq!(ended.code, 0, "{zone}: {}", ended.stderr);
        let run = ended.json()["runs"][0]["run_id"].as_str().unwrap().to_owned();
        check(&actum, &run, zone);
        assert!(recorded(&actum).iter().all(|at| at.ends_with('Z')), "{zone}");
    }
    let actum = actum();
    let leap = json!({
        "id": "leap", "tenantId": "t", "module": "m", "source": "s", "type": "note", "payload": {},
        "createdAt": "2016-12-31T23:59:60Z",
    });
    let refused = actum.run_with(&["ledger", "append", "--json"], leap.to_string().as_bytes());
    assert_eq!(refused.json()["error"]["code"], "VALIDATION_ERROR", "{}", refused.stdout);
}
