//! Guards by way of the real binary: a canary that holds its bounds becomes the primary, one that does not is withdrawn, and
//! the ledger alone says by what.

use std::time::Duration;

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::artifact::ID;
use super::pointer::{moved, pointed};
use super::predict::demo;
use super::run::asked;

const RIGHT: &str = "{\"label\": \"positive\"}";

/// A project whose signature points to `a`, and to `b` for so many of a hundred, under a guard.
fn guarded(upstream: &Upstream, percent: &str, guard: &Value) -> (Program, String, String) {
    let actum = demo(upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a]);
    actum.file("guard.json", guard.to_string());
    moved(&actum, "canary", &["--artifact", &b, "--percent", percent, "--guard", "guard.json"]);
    (actum, a, b)
}

fn batch(actum: &Program, lines: &[Value]) -> Vec<Value> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    actum.run_with(&["predict", ID, "--batch", "-", "--json"], text.as_bytes()).json_lines()
}

/// So many questions, each with what is expected.
fn questions(count: usize, expected: &str) -> Vec<Value> {
    (0..count).map(|n| json!({"input": {"text": format!("t{n}")}, "expected": {"label": expected}})).collect()
}

fn newest(actum: &Program) -> Value {
    asked(actum, &["pointer", "history", ID, "--json"])["history"][0].clone()
}

/// Counts what the decision says it counted, from the ledger alone.
fn audited(actum: &Program, change: &Value) {
    let decision = &change["decision"];
    assert_eq!(change["actor"], "guard");
    assert_eq!(decision["reason_codes_version"], "runtime-policy-reasons.v1");
    assert_eq!(decision["evaluation_hash"].as_str().unwrap().len(), 64);
    let entries = asked(actum, &["ledger", "list", "--type", "prediction_receipt", "--limit", "1000", "--json"]);
    let (from, to) = (decision["range"]["from_seq"].as_u64().unwrap(), decision["range"]["to_seq"].as_u64().unwrap());
    let revision = change["revision"].as_u64().unwrap() - 1;
    let mut counted = [0, 0];
    for entry in entries["entries"].as_array().unwrap() {
        let id = entry["id"].as_str().unwrap();
        let whole = asked(actum, &["ledger", "show", id, "--json"]);
        let receipt = &whole["payload"]["receipt"];
        let is_sample = receipt["kind"] == "prediction"
            && receipt["policy"]["pointer_revision"] == revision
            && receipt["status"] != "denied";
        if is_sample && (from..=to).contains(&entry["seq"].as_u64().unwrap()) {
            counted[usize::from(receipt["policy"]["artifact_variant"] == "canary")] += 1;
        }
    }
    let evidence = &decision["evidence"];
    assert_eq!(
        [&evidence["primary"]["samples"], &evidence["canary"]["samples"]],
        [&json!(counted[0]), &json!(counted[1])]
    );
}

#[test]
fn a_canary_that_holds_is_promoted() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 3, "bounds": [
        {"metric": "error_rate", "max": 0.1}, {"metric": "cost", "max": 60}, {"metric": "latency_p95_ms", "max": 600_000},
        {"metric": "score", "min": 0.9},
    ]});
    let (actum, _, b) = guarded(&upstream, "100", &guard);
    let told = batch(&actum, &questions(5, "positive"));
    let revisions: Vec<_> = told.iter().map(|one| one["artifact"]["pointer_revision"].as_u64().unwrap()).collect();
    assert_eq!(revisions, [2, 2, 2, 3, 3], "the verdict falls with the third");
    assert_eq!((&told[2]["guard"]["action"], told[1].get("guard")), (&json!("promote"), None));
    let change = newest(&actum);
    assert_eq!((&change["action"], &change["after"]["primary_artifact"]), (&json!("promote"), &json!(b)));
    assert_eq!((&change["after"]["canary_artifact"], &change["after"]["guard"]), (&Value::Null, &Value::Null));
    assert_eq!(change["decision"]["reason_code"], "rollout.guard_promoted");
    audited(&actum, &change);
    assert_eq!(actum.run(&["store", "check", "--json"]).json()["valid"], true);
}

/// What is tried breaks a bound, is withdrawn, and a person hears of it.
fn withdrawn(upstream: &Upstream, guard: &Value, lines: &[Value], word: &str) {
    let (actum, a, _) = guarded(upstream, "100", guard);
    let told = batch(&actum, lines);
    let change = newest(&actum);
    assert_eq!((&change["action"], &change["restores"]), (&json!("rollback"), &json!(1)), "{word}: {change}");
    assert_eq!(change["decision"]["reason_code"], "rollout.guard_rolled_back");
    assert!(change["reason"].as_str().unwrap().contains(word), "{word} is missing in {}", change["reason"]);
    assert_eq!((&change["after"]["primary_artifact"], &change["after"]["canary_percent"]), (&json!(a), &json!(0)));
    assert!(told.iter().any(|one| one["guard"]["action"] == "rollback"));
    audited(&actum, &change);
}

#[test]
fn a_canary_that_fails_is_withdrawn_before_all_samples_are_there() {
    let bad = || (Turn::Status(400, None), Usage::default());
    let script =
        [bad(), bad(), bad()].into_iter().fold(Script::default(), |script, (turn, usage)| script.turn(turn, usage));
    let upstream = Upstream::start(script.last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 100, "rollback_after": 3, "bounds": [{"metric": "error_rate", "max": 0.5}]});
    withdrawn(&upstream, &guard, &questions(5, "positive"), "error_rate");
}

#[test]
fn a_canary_that_costs_too_much_is_withdrawn() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(400, 6)));
    let guard = json!({"samples": 2, "bounds": [{"metric": "cost", "max": 100}]});
    withdrawn(&upstream, &guard, &questions(3, "positive"), "cost");
}

#[test]
fn a_canary_that_is_slow_is_withdrawn() {
    let slow = || Turn::Delay(Duration::from_millis(150), Box::new(Turn::text(RIGHT)));
    for metric in ["latency_mean_ms", "latency_p95_ms"] {
        let script = Script::default().turn(slow(), Usage::new(1, 1)).turn(slow(), Usage::new(1, 1));
        let upstream = Upstream::start(script);
        let guard = json!({"samples": 2, "bounds": [{"metric": metric, "max": 100}]});
        withdrawn(&upstream, &guard, &questions(2, "positive"), metric);
    }
}

#[test]
fn a_canary_that_is_wrong_is_withdrawn() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 2, "score": "exact_match", "bounds": [{"metric": "score", "min": 0.8}]});
    withdrawn(&upstream, &guard, &questions(2, "negative"), "score");
    let line = |score: f64| json!({"input": {"text": "x"}, "score": score});
    withdrawn(&upstream, &guard, &[line(0.9), line(0.1)], "score");
}

#[test]
fn a_canary_is_compared_with_the_primary() {
    let (cheap, dear) = (Usage::new(10, 1), Usage::new(1_000, 1));
    // The first three are the primary's.
    let script = (0..3).fold(Script::default(), |script, _| script.turn(Turn::text(RIGHT), cheap));
    let upstream = Upstream::start(script.last(RIGHT, dear));
    let guard = json!({"samples": 3, "bounds": [{"metric": "cost", "max": 1.5, "ratio_to_primary": true}]});
    let (actum, ..) = guarded(&upstream, "50", &guard);
    let mut keys = [Vec::new(), Vec::new()];
    for n in 0..40 {
        let key = format!("k{n}");
        let own = usize::from(actum_predict::pointer::bucket(ID, "default", &key) < 50);
        keys[own].push(json!({"input": {"text": "x"}, "key": key}));
    }
    batch(&actum, &keys[0][..3]);
    batch(&actum, &keys[1][..2]);
    let looked = asked(&actum, &["pointer", "guard", ID, "--json"]);
    assert_eq!((&looked["verdict"], &looked["change"]), (&json!("wait"), &Value::Null), "{looked}");
    batch(&actum, &keys[1][2..3]);
    let change = newest(&actum);
    assert_eq!(change["action"], "rollback", "{change}");
    audited(&actum, &change);
}

#[test]
fn a_guard_waits_keeps_and_is_looked_at() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 2, "promote": false, "bounds": [{"metric": "error_rate", "max": 0.1}]});
    let (actum, a, b) = guarded(&upstream, "100", &guard);
    batch(&actum, &questions(3, "positive"));
    let looked = asked(&actum, &["pointer", "guard", ID, "--json"]);
    assert_eq!((&looked["verdict"], &looked["revision"]), (&json!("keep"), &json!(2)), "{looked}");
    // Another percentage of the same artifact has the same guard, and samples of its own.
    let raised = moved(&actum, "canary", &["--artifact", &b, "--percent", "90"]);
    assert_eq!(raised["after"]["guard"], raised["before"]["guard"]);
    assert_eq!(asked(&actum, &["pointer", "guard", ID, "--json"])["verdict"], "wait");
    let other = moved(&actum, "canary", &["--artifact", "baseline", "--percent", "100"]);
    assert_eq!(other["after"]["guard"], Value::Null, "the guard of another canary does not hold for this one");
    // By itself nothing happens without somebody who asks; then a person may let it act, or only look.
    let broken = json!({"samples": 1, "bounds": [{"metric": "cost", "max": 1}]});
    actum.file("guard.json", broken.to_string());
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100", "--guard", "guard.json"]);
    // Denied ones are no samples.
    let ids = asked(&actum, &["spend", "list", "--json"]);
    actum.run(&["spend", "revoke", ids["authorizations"][0]["authorization_id"].as_str().unwrap()]).ok();
    batch(&actum, &questions(2, "positive"));
    let looked = asked(&actum, &["pointer", "guard", ID, "--json"]);
    assert_eq!((&looked["verdict"], &looked["evidence"]["canary"]["samples"]), (&json!("wait"), &json!(0)));
    // Killed between its answer and its guard, one asks; the next who looks acts.
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let mut killed = actum.start(&["predict", ID, "--param", "text=x"], &[("ACTUM_CRASH_AT", "pointer.appending")]);
    assert_eq!(killed.error_line().as_deref(), Some("crash point pointer.appending"));
    killed.kill();
    let looked = asked(&actum, &["pointer", "guard", ID, "--dry-run", "--json"]);
    assert_eq!((&looked["verdict"], &looked["change"]), (&json!("rollback"), &Value::Null));
    let acted = asked(&actum, &["pointer", "guard", ID, "--json"]);
    assert_eq!(
        (&acted["change"]["action"], &acted["change"]["after"]["primary_artifact"]),
        (&json!("rollback"), &json!(a))
    );
    audited(&actum, &newest(&actum));
    let text = actum.run(&["pointer", "guard", ID]);
    assert_eq!(text.code, 7, "it is gone with its canary: {}", text.stdout);
}

#[test]
fn a_guard_says_on_stderr_what_it_did() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 1, "bounds": [{"metric": "cost", "max": 1}]});
    let (actum, ..) = guarded(&upstream, "100", &guard);
    let ended = actum.run(&["predict", ID, "--param", "text=x"]);
    assert!(ended.code == 0 && ended.stderr.contains("guard: rollback as revision 3"), "{}", ended.stderr);
}

#[test]
fn of_many_who_see_the_same_one_moves_the_pointer() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 1, "bounds": [{"metric": "cost", "max": 1}]});
    let (actum, a, _) = guarded(&upstream, "100", &guard);
    let asking: Vec<_> = (0..6).map(|_| actum.start(&["predict", ID, "--param", "text=x", "--json"], &[])).collect();
    for process in asking {
        let (code, _, errors) = process.finish();
        assert_eq!((code, errors), (0, Vec::new()), "whoever is not first has nothing to do");
    }
    let change = newest(&actum);
    assert_eq!((&change["revision"], &change["after"]["primary_artifact"]), (&json!(3), &json!(a)));
    audited(&actum, &change);
    assert_eq!(actum.run(&["store", "check", "--json"]).json()["valid"], true);
}

#[test]
fn a_server_asks_it_by_the_clock() {
    let upstream = Upstream::start(Script::default().last(RIGHT, Usage::new(40, 6)));
    let guard = json!({"samples": 1, "bounds": [{"metric": "cost", "max": 1}]});
    let (actum, a, _) = guarded(&upstream, "100", &guard);
    // Killed between its answer and its guard.
    let mut killed = actum.start(&["predict", ID, "--param", "text=x"], &[("ACTUM_CRASH_AT", "pointer.appending")]);
    assert_eq!(killed.error_line().as_deref(), Some("crash point pointer.appending"));
    killed.kill();
    assert_eq!(newest(&actum)["revision"], 2);
    let server = super::serve::Server::start(&actum, &["--workers", "0", "--housekeeping", "1"]);
    super::runs::until("it is withdrawn", || newest(&actum)["revision"] == 3);
    assert_eq!(server.stop().0, 0);
    let change = newest(&actum);
    assert_eq!((&change["action"], &change["after"]["primary_artifact"]), (&json!("rollback"), &json!(a)));
    audited(&actum, &change);
}
