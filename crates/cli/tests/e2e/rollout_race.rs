//! Many operators, one pointer, each in a loop of his own: every change has one author, who was told so; everybody else was told
//! who was before him; and all of it can be explained.

use std::collections::BTreeMap;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Upstream, Usage};
use serde_json::{Value, json};

use super::artifact::ID;
use super::pointer::{moved, pointed};
use super::run::asked;
use super::{actum, predict::SIGNATURE, predict::demo};

const OPERATORS: usize = 8;
const ROUNDS: usize = 3;
/// A name that all of them have.
const SHARED: &str = "cron";

/// What an operator was told of one move: nothing if there was nothing to move.
enum Heard {
    Made(Value),
    /// Who was before him, as the error says.
    Lost(Value),
    Nothing,
}

/// One operator: tries an artifact on some, makes it the one for all, and goes back; over and over.
fn operate(actum: &Program, n: usize, name: &str, tried: &str) -> Vec<Heard> {
    let moves = |round: usize| {
        // Who has the name of another one wants the same as he does.
        let own = if name == SHARED { 0 } else { n };
        let percent = (1 + round * OPERATORS + own).to_string();
        let mut canary = ["canary", "--artifact", tried, "--percent", &percent].map(str::to_owned).to_vec();
        // All have seen the first revision: one is before the others, however fast they are.
        canary.extend(["--if", "1"].map(str::to_owned).into_iter().filter(|_| round == 0));
        [canary, vec!["promote".to_owned()], vec!["rollback".to_owned()]]
    };
    let told = (0..ROUNDS).flat_map(moves).map(|words| {
        let mut all = vec!["pointer", &words[0], ID, "--json", "--reason", "mine", "--actor", name];
        all.extend(words[1..].iter().map(String::as_str));
        let ended = actum.run(&all);
        match ended.code {
            0 if ended.json()["changed"] == true => Heard::Made(ended.json()),
            0 => Heard::Nothing,
            // Another one withdrew what was to be promoted, promoted what was to be tried, or stands at the first state.
            2 => Heard::Nothing,
            6 if ended.error()["code"] == "POINTER_CONFLICT" => Heard::Lost(ended.error()),
            6 if ended.error()["code"] == "ROLLBACK_UNAVAILABLE" => Heard::Nothing,
            other => panic!("{all:?} ended with {other}: {}", ended.stderr),
        }
    });
    told.collect()
}

fn rivals(actum: &Program, name: impl Fn(usize) -> String + Sync) {
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    let (a, b) = pointed(actum);
    moved(actum, "set", &["--primary", &a, "--actor", "first"]);
    let heard: Vec<Heard> = std::thread::scope(|scope| {
        let (name, b) = (&name, &b);
        let all: Vec<_> = (0..OPERATORS).map(|n| scope.spawn(move || operate(actum, n, &name(n), b))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    let mut history = asked(actum, &["pointer", "history", ID, "--json"])["history"].as_array().unwrap().clone();
    history.reverse();
    let mut authors: BTreeMap<u64, Value> = BTreeMap::new();
    let mut lost = 0;
    for one in heard {
        match one {
            Heard::Made(told) => {
                let before = authors.insert(told["revision"].as_u64().unwrap(), told);
                assert!(before.is_none(), "two were told that they made it: {before:?}");
            }
            Heard::Lost(error) => {
                let winner = &error["details"];
                let kept = &history[usize::try_from(winner["revision"].as_u64().unwrap()).unwrap() - 1];
                for field in ["actor", "action", "reason", "after", "at"] {
                    assert_eq!(winner[field], kept[field], "{field}: {error}");
                }
                lost += 1;
            }
            Heard::Nothing => {}
        }
    }
    assert!(lost >= OPERATORS - 1, "all of them have seen the first revision");
    assert_eq!(history.len(), authors.len() + 1, "each change has somebody who was told so");
    for (at, kept) in history.iter().enumerate() {
        let n = at as u64 + 1;
        assert_eq!(kept["revision"], n, "without a gap");
        if at > 0 {
            assert_eq!(kept["before"], history[at - 1]["after"], "{n}");
            let told = &authors[&n];
            for field in ["actor", "action", "after", "restores"] {
                assert_eq!(told[field], kept[field], "{field} of {n}");
            }
        }
        let ended = actum.run(&["pointer", "explain", ID, &n.to_string(), "--json"]);
        assert_eq!((ended.code, &ended.json()["identical"]), (0, &json!(true)), "{}", ended.stdout);
    }
    for arguments in [["store", "check", "--json"], ["ledger", "verify", "--json"]] {
        assert_eq!(actum.run(&arguments).json()["valid"], true);
    }
}

fn operator(n: usize) -> String {
    format!("operator {n}")
}

#[test]
fn rivals_in_loops_on_sqlite() {
    rivals(&actum(), operator);
}

#[test]
fn rivals_in_loops_on_postgres() {
    rivals(&actum().on_store(&shared_url()), operator);
}

/// Scripts that all say the same: one of them makes a change, the others do not think that it was theirs.
#[test]
fn rivals_who_say_the_same_on_sqlite() {
    rivals(&actum(), |_| SHARED.to_owned());
}

#[test]
fn rivals_who_say_the_same_on_postgres() {
    rivals(&actum().on_store(&shared_url()), |_| SHARED.to_owned());
}

/// Those who ask, and label what they were told, all at once: what a guard has counted is what the ledger held then.
fn guarded(actum: &Program) {
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (a, b) = pointed(actum);
    moved(actum, "set", &["--primary", &a]);
    let guard = json!({"samples": 25, "bounds": [{"metric": "score", "min": 0.1}, {"metric": "cost", "max": 60}]});
    actum.file("guard.json", guard.to_string());
    moved(actum, "canary", &["--artifact", &b, "--percent", "100", "--guard", "guard.json"]);
    let line = |n: usize| {
        let label = if n.is_multiple_of(3) { "negative" } else { "positive" };
        json!({"input": {"text": format!("t{n}")}, "expected": {"label": label}}).to_string()
    };
    let lines = (0..10).map(line).collect::<Vec<_>>().join("\n");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let ask = || actum.run_with(&["predict", ID, "--batch", "-", "--json"], lines.as_bytes()).ok();
            scope.spawn(ask);
        }
    });
    let told = actum.run(&["pointer", "explain", ID, "3", "--json"]);
    assert_eq!((told.code, &told.json()["identical"]), (0, &json!(true)), "{}{}", told.stdout, told.stderr);
    assert_eq!((&told.json()["actor"], &told.json()["action"]), (&json!("guard"), &json!("promote")));
}

#[test]
fn a_guard_counts_what_the_ledger_held_on_sqlite() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    guarded(&demo(&upstream));
}

#[test]
fn a_guard_counts_what_the_ledger_held_on_postgres() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream).on_store(&shared_url());
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    guarded(&actum);
}
