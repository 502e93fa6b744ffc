//! kill -9 in the middle of appending, at random and at every named place; the server killed under a shared store.
//! Afterwards: no acknowledged entry is missing, none is doubled, the chain verifies.

use std::collections::{BTreeMap, BTreeSet};

use actum_testkit::dice::Dice;
use actum_testkit::event::{event, signal};
use actum_testkit::postgres::{Cluster, shared_url};
use actum_testkit::program::{Program, Running};
use serde_json::Value;

use super::actum;

/// What was acknowledged, as the producer saw it: id and place in the log.
#[derive(Default)]
struct Acknowledged(BTreeMap<String, u64>);

impl Acknowledged {
    fn note(&mut self, line: &str) {
        let answer: Value = serde_json::from_str(line).unwrap();
        assert_eq!(answer["ok"], true, "{line}");
        self.0.insert(answer["id"].as_str().unwrap().to_owned(), answer["seq"].as_u64().unwrap());
    }

    /// Compares with what the store holds.
    fn check(&self, actum: &Program) {
        let verified = actum.run(&["ledger", "verify", "--json"]).json();
        assert_eq!(verified["valid"], true, "{verified}");
        let (mut found, mut cursor) = (BTreeMap::new(), None::<String>);
        loop {
            let mut arguments = vec!["ledger", "list", "--json", "--limit", "1000"];
            arguments.extend(cursor.iter().flat_map(|c| ["--cursor", c.as_str()]));
            let page = actum.run(&arguments).json();
            for entry in page["entries"].as_array().unwrap() {
                let (id, seq) = (entry["id"].as_str().unwrap().to_owned(), entry["seq"].as_u64().unwrap());
                assert_eq!(found.insert(id.clone(), seq), None, "{id} is doubled");
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        let seqs: BTreeSet<_> = found.values().copied().collect();
        assert_eq!(seqs.len(), found.len());
        assert_eq!(seqs.last().copied().unwrap_or(0) + 1, found.len() as u64, "the sequence has a gap");
        for (id, seq) in &self.0 {
            assert_eq!(found.get(id), Some(seq), "acknowledged entry {id} is missing or moved");
        }
        assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
    }
}

/// The n-th document of a round: executions in their three states, so that the state machine is part of it.
fn document(round: u64, n: u64) -> Value {
    let execution = format!("r{round}-{}", n / 3);
    event("t", &execution, 1, ["planned", "running", "succeeded"][n as usize % 3])
}

fn start(actum: &Program, env: &[(&str, &str)]) -> Running {
    actum.start(&["ledger", "append", "--json", "-"], env)
}

/// Feeds documents until `acks` of them are acknowledged, always some ahead of the answers.
fn feed(process: &mut Running, round: u64, acks: u64, acknowledged: &mut Acknowledged) {
    const AHEAD: u64 = 24;
    for n in 0..acks + AHEAD {
        if !process.send(&document(round, n).to_string()) {
            break;
        }
    }
    for _ in 0..acks {
        match process.line() {
            Some(line) => acknowledged.note(&line),
            None => break,
        }
    }
}

fn killed_at_random(actum: &Program, rounds: u64) {
    actum.run_with(&["ledger", "append"], signal("t", "signal").to_string().as_bytes()).ok();
    let (mut dice, mut acknowledged) = (Dice::new(7), Acknowledged::default());
    for round in 0..rounds {
        let mut process = start(actum, &[]);
        feed(&mut process, round, dice.roll(40), &mut acknowledged);
        // What it had printed before it died was acknowledged too.
        process.kill().iter().for_each(|line| acknowledged.note(line));
        if round % 50 == 49 {
            acknowledged.check(actum);
        }
    }
    acknowledged.check(actum);
    assert!(acknowledged.0.len() as u64 > rounds, "hardly anything was acknowledged");
    // Sending a killed round again completes it.
    let again: String = (0..60).map(|n| format!("{}\n", document(rounds - 1, n))).collect();
    let ended = actum.run_with(&["ledger", "append", "--json"], again.as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.json_lines().iter().for_each(|line| acknowledged.note(&line.to_string()));
    acknowledged.check(actum);
}

#[test]
fn sqlite_killed_200_times_at_random() {
    killed_at_random(&actum(), 200);
}

#[test]
fn postgres_client_killed_at_random() {
    killed_at_random(&actum().on_store(&shared_url()), 50);
}

/// Stops at the place, is killed there, and then the store must hold exactly what the place promises.
fn killed_at_each_place(actum: &Program) {
    actum.run_with(&["ledger", "append"], signal("t", "signal").to_string().as_bytes()).ok();
    let mut acknowledged = Acknowledged::default();
    let mut round = 1_000;
    for place in actum_store::CRASH_POINTS.iter().filter(|p| p.starts_with("append.")) {
        for passing in 1..=3_u64 {
            round += 1;
            let mut process = start(actum, &[("ACTUM_CRASH_AT", &format!("{place}#{passing}"))]);
            for n in 0..passing - 1 {
                assert!(process.send(&document(round, n).to_string()));
                acknowledged.note(&process.line().unwrap());
            }
            assert!(process.send(&document(round, passing - 1).to_string()));
            assert_eq!(process.error_line().as_deref(), Some(format!("crash point {place}").as_str()));
            assert_eq!(process.kill(), Vec::<String>::new(), "{place}: an answer before the commit was through");
            acknowledged.check(actum);
            let last =
                actum.run_with(&["ledger", "append", "--json"], document(round, passing - 1).to_string().as_bytes());
            let there_already = *place == "append.committed";
            assert_eq!(last.json()["idempotent"], there_already, "{place}");
            acknowledged.note(last.stdout.trim());
        }
    }
    acknowledged.check(actum);
}

#[test]
fn sqlite_killed_at_each_place() {
    killed_at_each_place(&actum());
}

#[test]
fn postgres_client_killed_at_each_place() {
    killed_at_each_place(&actum().on_store(&shared_url()));
}

#[test]
fn killed_while_the_store_is_made_checked_or_signed() {
    for actum in [actum(), actum().on_store(&shared_url())] {
        let stop = |place: &str, arguments: &[&str]| {
            let mut process = actum.start(arguments, &[("ACTUM_CRASH_AT", place)]);
            assert_eq!(process.error_line().as_deref(), Some(format!("crash point {place}").as_str()));
            process.kill();
        };
        stop("migrate.applied", &["ledger", "list"]);
        assert_eq!(actum.run(&["store", "migrate", "--json"]).json()["from"], 0, "a half-made store is no store");
        actum.run_with(&["ledger", "append"], signal("t", "signal").to_string().as_bytes()).ok();
        stop("checkpoint.written", &["ledger", "checkpoint"]);
        let verified = actum.run(&["ledger", "verify", "--json"]).json();
        assert_eq!((&verified["valid"], &verified["ledgers"][0]["checkpoints"]), (&Value::from(true), &Value::from(0)));
        for place in ["rebuild.compared", "rebuild.replaced"] {
            stop(place, &["store", "rebuild"]);
            assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
        }
    }
}

#[test]
fn postgres_server_killed_200_times() {
    const ROUNDS: u64 = 200;
    let mut cluster = Cluster::start();
    let actum = actum().on_store(&cluster.create_database());
    actum.run_with(&["ledger", "append"], signal("t", "signal").to_string().as_bytes()).ok();
    let (mut dice, mut acknowledged) = (Dice::new(11), Acknowledged::default());
    let mut survived = 0;
    for round in 0..ROUNDS {
        let mut process = start(&actum, &[]);
        feed(&mut process, round, dice.roll(40), &mut acknowledged);
        cluster.stop_immediate();
        let (code, lines, errors) = process.finish();
        lines.iter().for_each(|line| acknowledged.note(line));
        // Either everything had been committed in time, or the loss is told; never silence.
        match code {
            0 => survived += 1,
            1 => assert!(errors.iter().any(|e| e.contains("STORE_UNAVAILABLE")), "{errors:?}"),
            other => panic!("exit {other}: {errors:?}"),
        }
        cluster.restart();
        if round % 50 == 49 {
            acknowledged.check(&actum);
        }
    }
    acknowledged.check(&actum);
    assert!(survived < ROUNDS, "the server was never killed in the middle");
    assert!(acknowledged.0.len() as u64 > ROUNDS);
}
