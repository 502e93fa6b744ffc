//! Eight processes at once on one store, new or not, embedded or shared.

use std::collections::BTreeMap;

use actum_testkit::event::{event, signal};
use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use serde_json::Value;

use super::actum;

const PROCESSES: usize = 8;

/// Each process has opened the store before any of them is given its document.
fn at_once(actum: &Program, documents: impl Fn(usize) -> Value) -> BTreeMap<String, usize> {
    let mut running: Vec<_> = (0..PROCESSES).map(|_| actum.start(&["ledger", "append", "--json", "-"], &[])).collect();
    // One answered document each shows that all are up.
    for (n, process) in running.iter_mut().enumerate() {
        assert!(process.send(&signal("t", &format!("up-{n}")).to_string()));
    }
    for process in &mut running {
        assert!(process.line().unwrap().contains("\"ok\":true"));
    }
    for (n, process) in running.iter_mut().enumerate() {
        assert!(process.send(&documents(n).to_string()));
    }
    let mut answers = BTreeMap::new();
    for mut process in running {
        let answer: Value = serde_json::from_str(&process.line().unwrap()).unwrap();
        let word = match (answer["ok"].as_bool(), answer["idempotent"].as_bool()) {
            (Some(true), Some(false)) => "created".to_owned(),
            (Some(true), Some(true)) => "idempotent".to_owned(),
            _ => answer["error"]["code"].as_str().unwrap().to_owned(),
        };
        *answers.entry(word).or_insert(0) += 1;
        process.finish();
    }
    answers
}

fn one_wins(actum: &Program) {
    // Even making the store is part of it: nobody has opened it before.
    let mut raced = BTreeMap::new();
    let first: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut process = actum.start(&["ledger", "append", "--json", "-"], &[]);
            process.send(&signal("t", "signal").to_string());
            process
        })
        .collect();
    for process in first {
        let (code, lines, errors) = process.finish();
        assert_eq!((code, lines.len()), (0, 1), "{errors:?}");
        let answer: Value = serde_json::from_str(&lines[0]).unwrap();
        *raced.entry(answer["idempotent"].as_bool()).or_insert(0) += 1;
    }
    assert_eq!(raced, BTreeMap::from([(Some(false), 1), (Some(true), 7)]));

    let same = at_once(actum, |_| event("t", "same", 1, "planned"));
    assert_eq!(same, BTreeMap::from([("created".into(), 1), ("idempotent".into(), 7)]));
    let different = at_once(actum, |n| {
        let mut document = event("t", "different", 1, "planned");
        document["payload"]["target"] = Value::from(format!("target-{n}"));
        document
    });
    assert_eq!(different, BTreeMap::from([("created".into(), 1), ("IDEMPOTENCY_CONFLICT".into(), 7)]));
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
    assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
}

#[test]
fn on_sqlite() {
    one_wins(&actum());
}

#[test]
fn on_postgres() {
    one_wins(&actum().on_store(&shared_url()));
}

/// Looking while others write: never a false alarm.
fn verified_while_appending(actum: &Program) {
    actum.run_with(&["ledger", "append"], signal("t", "signal").to_string().as_bytes()).ok();
    let mut appending = actum.start(&["ledger", "append", "--json", "-"], &[]);
    let mut n = 0;
    for _ in 0..15 {
        // Always some under way while the others look.
        for _ in 0..200 {
            n += 1;
            assert!(appending.send(&event("t", &format!("x-{n}"), 1, "planned").to_string()));
        }
        for arguments in [&["ledger", "verify", "--json"][..], &["store", "check", "--json"]] {
            let ended = actum.run(arguments);
            assert_eq!((ended.code, &ended.json()["valid"]), (0, &Value::from(true)), "{ended:?}");
        }
        for _ in 0..200 {
            assert!(appending.line().unwrap().contains("\"ok\":true"));
        }
    }
    assert_eq!(appending.finish().0, 0);
}

#[test]
fn verified_while_appending_on_sqlite() {
    verified_while_appending(&actum());
}

#[test]
fn verified_while_appending_on_postgres() {
    verified_while_appending(&actum().on_store(&shared_url()));
}

#[test]
fn on_a_postgres_of_another_isolation_level() {
    let url = shared_url();
    let name = url.rsplit('/').next().unwrap();
    actum_testkit::postgres::execute(
        &url,
        &format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"),
    );
    one_wins(&actum().on_store(&url));
}
