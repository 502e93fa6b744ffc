//! `actum pointer explain` on changes of every kind, by people and by guards, and what it says where something is missing.

use std::fs;

use actum_testkit::upstream::{Script, Upstream, Usage};
use serde_json::{Value, json};

use super::artifact::ID;
use super::pointer::{moved, pointed, quiet};
use super::predict::demo;
use super::run::asked;

fn explained(actum: &actum_testkit::program::Program, n: u64) -> Value {
    let ended = actum.run(&["pointer", "explain", ID, &n.to_string(), "--json"]);
    assert_eq!((ended.code, &ended.json()["identical"]), (0, &json!(true)), "{}{}", ended.stdout, ended.stderr);
    ended.json()
}

#[test]
fn changes_of_every_kind_follow_from_each_other() {
    let actum = quiet();
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a, "--metadata", "{\"share\": 1.50}", "--seed", "s"]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "7", "--seed", "t"]);
    moved(&actum, "canary", &["--clear"]);
    moved(&actum, "canary", &["--artifact", "baseline", "--percent", "0"]);
    moved(&actum, "promote", &[]);
    moved(&actum, "promote", &["--artifact", &b]);
    moved(&actum, "rollback", &[]);
    moved(&actum, "rollback", &["--to", "2"]);
    moved(&actum, "set", &["--primary", &b, "--key-scope", "user"]);
    moved(&actum, "rollback", &["--to", "8"]);
    for n in 1..=10 {
        let told = explained(&actum, n);
        assert_eq!((&told["revision"], &told["reason"], &told["again"]), (&json!(n), &json!("because"), &Value::Null));
    }
    assert_eq!(explained(&actum, 10)["restores"], 2);
    let text = actum.run(&["pointer", "explain", ID, "8"]).ok();
    assert!(text.contains("the state of revision 2") && text.contains("✓ decision: a person made it"), "{text}");
    for (signature, n, code) in [(ID, "0", 7), (ID, "11", 7), (ID, "-1", 2), (ID, "x", 2), ("demo/None.v1", "1", 7)] {
        let refused = actum.run(&["pointer", "explain", signature, n]);
        assert_eq!(refused.code, code, "{signature} {n}: {}", refused.stderr);
    }
    assert_eq!(actum.run(&["pointer", "explain", "actum/plan.v1", "1"]).code, 2);
    // Nobody moves a pointer in the name of a guard.
    let refused = actum.run(&["pointer", "set", ID, "--primary", &a, "--reason", "x", "--actor", "guard"]);
    assert!(refused.code == 2 && refused.stderr.contains("guard"), "{}", refused.stderr);
    assert_eq!(asked(&actum, &["pointer", "show", ID, "--json"])["revision"], 10);
}

#[test]
fn the_same_again_is_no_change_however_numbers_are_written() {
    let actum = quiet();
    let (a, b) = pointed(&actum);
    let set = ["--primary", &a, "--metadata", "{\"share\": 1.0}"];
    moved(&actum, "set", &set);
    assert_eq!(moved(&actum, "set", &set)["changed"], false);
    actum.file("guard.json", json!({"samples": 3, "bounds": [{"metric": "cost", "max": 60}]}).to_string());
    let canary = ["--artifact", &b, "--percent", "5", "--guard", "guard.json"];
    moved(&actum, "canary", &canary);
    // Otherwise what was counted so far would count no more.
    assert_eq!(moved(&actum, "canary", &canary)["changed"], false);
    assert_eq!(asked(&actum, &["pointer", "show", ID, "--json"])["revision"], 2);
}

#[test]
fn a_guard_is_judged_again_by_long_traces_or_it_says_what_is_missing() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a]);
    let guard = json!({"samples": 3, "bounds": [
        {"metric": "score", "min": 0.5}, {"metric": "cost", "max": 60}, {"metric": "latency_p95_ms", "max": 600_000},
    ]});
    actum.file("guard.json", guard.to_string());
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100", "--guard", "guard.json"]);
    let expected = ["positive", "positive", "negative", "positive"];
    let line =
        |label: &str| json!({"input": {"text": "long ".repeat(2_000)}, "expected": {"label": label}}).to_string();
    let lines: Vec<String> = expected.into_iter().map(line).collect();
    let told = actum.run_with(&["predict", ID, "--batch", "-", "--json"], lines.join("\n").as_bytes());
    assert_eq!(told.code, 0, "{}", told.stderr);
    let told = explained(&actum, 3);
    assert_eq!((&told["action"], &told["again"]["evidence"]["canary"]["score"]), (&json!("promote"), &json!(0.666667)));
    fs::remove_dir_all(actum.path(".actum/traces")).unwrap();
    let missing = actum.run(&["pointer", "explain", ID, "3"]);
    assert!(missing.code != 0 && missing.stderr.contains(".actum/traces"), "{} {}", missing.code, missing.stderr);
    explained(&actum, 2);
}
