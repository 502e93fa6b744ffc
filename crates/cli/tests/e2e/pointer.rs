//! Pointers by way of the real binary: set, tried, promoted, taken back step by step, told with who and why; and who asks gets
//! what the pointer says.

use actum_predict::pointer::bucket;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::artifact::{ID, added, artifact_of};
use super::predict::{SIGNATURE, demo};
use super::run::asked;

/// A project with the signature and two artifacts beside its own.
pub(crate) fn pointed(actum: &Program) -> (String, String) {
    let a = added(actum, &artifact_of(actum, "A: {{ text }}"));
    let b = added(actum, &artifact_of(actum, "B: {{ text }}"));
    (a, b)
}

pub(crate) fn quiet() -> Program {
    let actum = actum();
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    actum
}

/// A change that has to succeed.
pub(crate) fn moved(actum: &Program, verb: &str, more: &[&str]) -> Value {
    asked(actum, &[&["pointer", verb, ID, "--reason", "because", "--json"], more].concat())
}

fn show(actum: &Program) -> Value {
    asked(actum, &["pointer", "show", ID, "--json"])
}

fn stands(actum: &Program) -> (Value, Value, Value) {
    let shown = show(actum);
    (shown["primary_artifact"].clone(), shown["canary_artifact"].clone(), shown["canary_percent"].clone())
}

#[test]
fn a_pointer_is_moved_and_taken_back_step_by_step() {
    let actum = quiet();
    let (a, b) = pointed(&actum);
    let first = moved(&actum, "set", &["--primary", "baseline", "--actor", "alice", "--metadata", "{\"team\": \"x\"}"]);
    assert_eq!((&first["revision"], &first["before"], &first["changed"]), (&json!(1), &Value::Null, &json!(true)));
    let own = first["after"]["primary_artifact"].as_str().unwrap().to_owned();
    assert_eq!(asked(&actum, &["artifact", "show", &own, "--json"])["fits"], true, "it was registered");
    moved(&actum, "canary", &["--artifact", &a[..12], "--percent", "20", "--seed", "s1"]);
    assert_eq!(stands(&actum), (json!(own), json!(a), json!(20)));
    moved(&actum, "canary", &["--artifact", &a, "--percent", "50"]);
    let promoted = moved(&actum, "promote", &[]);
    assert_eq!((&promoted["action"], &promoted["revision"]), (&json!("promote"), &json!(4)));
    assert_eq!(stands(&actum), (json!(a), Value::Null, json!(0)));
    assert_eq!((&show(&actum)["rollout_seed"], &show(&actum)["metadata"]["team"]), (&json!("s1"), &json!("x")));
    moved(&actum, "promote", &["--artifact", &b]);
    assert_eq!(stands(&actum).0, json!(b));
    // 5 → what 4 left → what 3 left → what 2 left → what 1 left → nothing.
    let back: Vec<Value> = (0..4).map(|_| moved(&actum, "rollback", &[])).collect();
    let restores: Vec<_> = back.iter().map(|one| one["restores"].as_u64().unwrap()).collect();
    assert_eq!(restores, [4, 3, 2, 1]);
    assert_eq!(back[0]["after"]["primary_artifact"], a.as_str());
    assert_eq!((&back[1]["after"]["canary_percent"], &back[2]["after"]["canary_percent"]), (&json!(50), &json!(20)));
    assert_eq!(
        (stands(&actum), &show(&actum)["rollout_seed"]),
        ((json!(own), Value::Null, json!(0)), &json!("default"))
    );
    let none = actum.run(&["pointer", "rollback", ID, "--reason", "more", "--json"]);
    assert_eq!((none.code, &none.error()["code"]), (6, &json!("ROLLBACK_UNAVAILABLE")), "{}", none.stderr);
    // A new change after that is what the next one goes back behind: what was left is not come back to.
    moved(&actum, "set", &["--primary", &b]);
    assert_eq!(moved(&actum, "rollback", &[])["restores"], 1);
    assert_eq!(moved(&actum, "rollback", &["--to", "5"])["after"]["primary_artifact"], b.as_str());
    assert_eq!(moved(&actum, "rollback", &[])["restores"], 4, "one before that state");
    moved(&actum, "canary", &["--artifact", &b, "--percent", "1"]);
    let cleared = moved(&actum, "canary", &["--clear"]);
    assert_eq!((&cleared["action"], &cleared["after"]["canary_artifact"]), (&json!("clear_canary"), &Value::Null));
    assert_eq!(moved(&actum, "canary", &["--clear"])["changed"], false);
    let history = asked(&actum, &["pointer", "history", ID, "--json"])["history"].clone();
    let history = history.as_array().unwrap();
    let numbers: Vec<_> = history.iter().map(|one| one["revision"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=15).rev().collect::<Vec<_>>());
    for (newer, older) in history.iter().zip(&history[1..]) {
        assert_eq!(newer["before"], older["after"], "each begins where the one before it ended");
    }
    let last = history.last().unwrap();
    assert_eq!((&last["actor"], &last["reason"], &last["action"]), (&json!("alice"), &json!("because"), &json!("set")));
    assert!(last["at"].as_str().unwrap().starts_with("20"));
    assert!(actum.run(&["pointer", "history", ID]).ok().contains("rollback to 4"));
    let listed = asked(&actum, &["pointer", "list", "--json"]);
    assert_eq!((&listed["pointers"][0]["signature_id"], &listed["pointers"][0]["revision"]), (&json!(ID), &json!(15)));
    let text = actum.run(&["pointer", "set", ID, "--primary", &own, "--reason", "again"]).ok();
    assert!(text.contains(&format!("{a} → {own}")), "{text}");
    assert_eq!(actum.run(&["store", "check", "--json"]).json()["valid"], true);
    assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let actum = quiet();
    let (a, b) = pointed(&actum);
    let why = ["--reason", "x"];
    let refused = |arguments: &[&str], code: i32, word: &str| {
        let ended = actum.run(&[&["pointer"], arguments, &why[..]].concat());
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(word), "{arguments:?}: {word} is missing in {}", ended.stderr);
    };
    refused(&["canary", ID, "--artifact", &a, "--percent", "5"], 7, "no pointer");
    refused(&["promote", ID, "--artifact", &a], 7, "no pointer");
    refused(&["rollback", ID], 7, "no pointer");
    refused(&["set", "demo/None.v1", "--primary", "baseline"], 7, "no signature");
    refused(&["set", "actum/plan.v1", "--primary", "baseline"], 2, "built-in");
    refused(&["set", ID, "--primary", &a, "--if", "3"], 6, "A0902");
    moved(&actum, "set", &["--primary", &a]);
    let guard = |value: Value| actum.file("guard.json", value.to_string());
    let canary = ["canary", ID, "--artifact", &b, "--percent"];
    let with = |percent: &'static str, more: &[&'static str]| [&canary[..], &[percent], more].concat();
    let long_seed = "s".repeat(201);
    for (arguments, code, word) in [
        (vec!["set", ID, "--primary", "art_00000000"], 7, "no artifact"),
        (vec!["set", ID, "--primary", &b, "--if", "0"], 6, "revision 1"),
        (vec!["set", ID, "--primary", &b, "--key-scope", "planet"], 2, "key scope"),
        (vec!["set", ID, "--primary", &b, "--metadata", "[]"], 2, "--metadata"),
        (vec!["set", ID, "--primary", &b, "--metadata", "{"], 2, "--metadata"),
        (vec!["set", ID, "--primary", &b, "--seed", "a|b"], 2, "rollout_seed"),
        (vec!["set", ID, "--primary", &b, "--seed", ""], 2, "rollout_seed"),
        (vec!["set", ID, "--primary", &b, "--seed", &long_seed], 2, "rollout_seed"),
        (vec!["canary", ID], 2, "--artifact"),
        (vec!["canary", ID, "--artifact", &b], 2, "--percent"),
        (vec!["canary", ID, "--percent", "5"], 2, "--artifact"),
        (vec!["canary", ID, "--clear", "--artifact", &b, "--percent", "5"], 2, "--clear"),
        (vec!["canary", ID, "--artifact", &a, "--percent", "5"], 2, "primary_artifact"),
        (with("101", &[]), 2, "101"),
        (with("-1", &[]), 2, "-1"),
        (with("5", &["--guard", "missing.yaml"]), 2, "missing.yaml"),
        (vec!["promote", ID], 2, "no canary"),
        (vec!["promote", ID, "--artifact", "art_00000000"], 7, "no artifact"),
        (vec!["rollback", ID, "--to", "0"], 6, "A0903"),
        (vec!["rollback", ID, "--to", "1"], 6, "A0903"),
        (vec!["rollback", ID, "--to", "9"], 6, "A0903"),
        (vec!["rollback", ID, "--if", "2"], 6, "A0902"),
    ] {
        refused(&arguments, code, word);
    }
    for (value, word) in [
        (json!({}), "samples"),
        (json!({"samples": 0, "bounds": [{"metric": "cost", "max": 1}]}), "samples"),
        (json!({"samples": 5, "bounds": []}), "bounds"),
        (json!({"samples": 5, "bounds": [{"metric": "beauty", "max": 1}]}), "metric"),
        (json!({"samples": 5, "bounds": [{"metric": "cost"}]}), "bounds"),
        (json!({"samples": 5, "bounds": [{"metric": "cost", "max": 1}], "smaples": 1}), "smaples"),
        (json!([]), "object"),
    ] {
        guard(value);
        refused(&with("5", &["--guard", "guard.json"]), 2, word);
    }
    for arguments in [
        &["pointer", "set", ID, "--primary", &b][..],
        &["pointer", "set", ID, "--primary", &b, "--reason", " "],
        &["pointer", "set", ID, "--primary", &b, "--reason", "x", "--actor", ""],
        &["pointer", "set", ID, "--primary", &b, "--reason", &"x".repeat(5_000)],
        &["pointer", "nonsense", ID],
    ] {
        assert_eq!(actum.run(arguments).code, 2, "{arguments:?}");
    }
    for verb in ["show", "history", "guard", "select"] {
        assert_eq!(actum.run(&["pointer", verb, "demo/None.v1"]).code, 7, "{verb}");
        assert_eq!(actum.run(&["pointer", verb, "actum/plan.v1"]).code, 2, "{verb}");
    }
    assert_eq!(actum.run(&["pointer", "guard", ID]).code, 7, "there is none");
    assert_eq!(show(&actum)["revision"], 1);
    // Nobody moves one past the ledger.
    let forged = json!({
        "tenantId": "local", "module": "predict", "source": "actum", "type": "pointer_change",
        "id": format!("rollout:pointer:{ID}:2"), "payload": {},
    });
    assert_eq!(actum.run_with(&["ledger", "append", "-"], forged.to_string().as_bytes()).code, 2);
}

#[test]
fn who_asks_gets_what_the_pointer_says_and_the_receipt_tells_why() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (a, b) = pointed(&actum);
    let predict = |more: &[&str]| asked(&actum, &[&["predict", ID, "--param", "text=x", "--json"], more].concat());
    let none = predict(&[]);
    assert_eq!(none["artifact"]["compiled_id"], format!("catalog:{ID}:direct.v1"));
    moved(&actum, "set", &["--primary", &a, "--seed", "alpha"]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "40"]);
    for n in 0..12 {
        let key = format!("user-{n}");
        let own = bucket(ID, "alpha", &key);
        let expected = if own < 40 { (&b, "canary") } else { (&a, "primary") };
        let told = predict(&["--key", &key]);
        let artifact = &told["artifact"];
        assert_eq!(
            (artifact["compiled_id"].as_str().unwrap(), artifact["variant"].as_str().unwrap()),
            (expected.0.as_str(), expected.1)
        );
        assert_eq!((&artifact["rollout_bucket"], &artifact["pointer_revision"]), (&json!(own), &json!(2)));
        let policy = &told["receipt"]["policy"];
        assert_eq!(
            (&policy["rollout_seed"], &policy["bucket_algo"]),
            (&json!("alpha"), &json!("sha256-be32-mod100.v1"))
        );
        assert_eq!((&policy["key_scope"], &policy["canary_percent"]), (&json!("key"), &json!(40)));
        let selected = asked(&actum, &["pointer", "select", ID, "--key", &key, "--json"]);
        assert_eq!((&selected["artifact"], &selected["bucket"]), (&artifact["compiled_id"], &json!(own)), "{selected}");
        let body = String::from_utf8_lossy(&upstream.calls().last().unwrap().body).into_owned();
        assert!(body.contains(if own < 40 { "B: x" } else { "A: x" }), "{body}");
        let receipt = told["receipt_id"].as_str().unwrap();
        assert_eq!(asked(&actum, &["policy", "explain", receipt, "--json"])["identical"], true);
    }
    // Without a key it is the run, and anybody finds the bucket again.
    let told = predict(&[]);
    let run = told["receipt"]["run_id"].as_str().unwrap();
    assert_eq!(told["artifact"]["rollout_bucket"], bucket(ID, "alpha", run));
    assert_eq!(told["receipt"]["policy"]["key_scope"], "run");
    // The calls below say the same as what is above them.
    let listed = asked(&actum, &["trace", "list", "--limit", "2", "--json"]);
    let [above, call] = [&listed["receipts"][0], &listed["receipts"][1]];
    assert_eq!(
        (&above["compiled_id"], &above["kind"], &call["kind"]),
        (&call["compiled_id"], &json!("prediction"), &json!("call"))
    );
    assert_eq!(above["policy"]["artifact_variant"], call["policy"]["artifact_variant"]);
    // A pointer by users takes no key, and says what it takes.
    moved(&actum, "set", &["--primary", &a, "--key-scope", "user"]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100"]);
    let refused = actum.run(&["predict", ID, "--param", "text=x", "--key", "k"]);
    assert!(refused.code == 2 && refused.stderr.contains("--user"), "{}", refused.stderr);
    let told = predict(&["--user", "u1"]);
    assert_eq!((&told["artifact"]["variant"], &told["artifact"]["key_scope"]), (&json!("canary"), &json!("user")));
    let nobody = predict(&["--run", "r1", "--thread", "t1"]);
    assert_eq!(
        (&nobody["artifact"]["variant"], &nobody["artifact"]["rollout_bucket"]),
        (&json!("primary"), &Value::Null)
    );
    assert_eq!(asked(&actum, &["pointer", "select", ID, "--key", "u1", "--json"])["scope"], "user");
    for (scope, flag) in [("run", "--run"), ("thread", "--thread"), ("autopilot", "--agent")] {
        moved(&actum, "set", &["--primary", &a, "--key-scope", scope]);
        moved(&actum, "canary", &["--artifact", &b, "--percent", "100"]);
        let told = predict(&[flag, "x1"]);
        assert_eq!((&told["artifact"]["variant"], &told["artifact"]["key_scope"]), (&json!("canary"), &json!(scope)));
        assert_eq!(told["artifact"]["rollout_bucket"], bucket(ID, "alpha", "x1"));
        let refused = actum.run(&["predict", ID, "--param", "text=x", "--key", "k"]);
        assert!(refused.code == 2 && refused.stderr.contains(flag), "{}", refused.stderr);
    }
    // Who names a model goes around it, and hears that.
    let around = actum.run(&["predict", ID, "--param", "text=x", "--model", "stub-1"]);
    assert!(around.code == 0 && around.stderr.contains("goes around the pointer"), "{}", around.stderr);
    let around = predict(&["--strategy", "direct.v1"]);
    assert_eq!(around["artifact"]["compiled_id"], format!("catalog:{ID}:direct.v1"));
    let text = actum.run(&["pointer", "select", ID, "--run", "x1"]).ok();
    assert!(text.contains("sha256-be32-mod100.v1") && text.contains("why"), "{text}");
}

#[test]
fn a_batch_is_checked_whole_and_asked_line_by_line() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "50"]);
    for (text, word) in [
        ("{\"input\": {\"text\": \"x\"}}\n{\"input\": ", "line 2"),
        ("{\"input\": {\"text\": \"x\"}}\n\n{\"inptu\": {}}", "line 3"),
        ("{\"input\": {\"text\": \"x\"}, \"score\": 2}", "score"),
        ("{\"input\": {\"text\": \"x\"}, \"user\": 7}", "user"),
        ("{\"input\": {\"text\": \"x\"}, \"key\": \"\"}", "key"),
        ("{\"input\": {\"text\": 7}}", "schema"),
        ("[]", "line 1"),
        ("\n \n", "no line"),
        ("", "no line"),
    ] {
        actum.file("bad.jsonl", text);
        let refused = actum.run(&["predict", ID, "--batch", "bad.jsonl"]);
        assert!(refused.code == 2 && refused.stderr.contains(word), "{text}: {}", refused.stderr);
    }
    assert_eq!(actum.run(&["predict", ID, "--batch", "missing.jsonl"]).code, 2);
    assert_eq!(actum.run(&["predict", ID, "--batch", "bad.jsonl", "--param", "text=x"]).code, 2);
    assert_eq!(upstream.requests().len(), 0, "nobody was asked");
    let line = |n: usize| json!({"input": {"text": format!("t{n}")}, "key": format!("k{n}"), "expected": {"label": "positive"}});
    let lines: String = (0..6).map(|n| format!("{}\n", line(n))).collect();
    actum.file("good.jsonl", &lines);
    let ended = actum.run(&["predict", ID, "--batch", "good.jsonl", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = ended.json_lines();
    assert_eq!(told.len(), 6);
    for (n, one) in told.iter().enumerate() {
        let expected = if bucket(ID, "default", &format!("k{n}")) < 50 { &b } else { &a };
        assert_eq!((&one["line"], &one["artifact"]["compiled_id"]), (&json!(n + 1), &json!(expected)));
    }
    let labels = asked(&actum, &["ledger", "list", "--type", "prediction_label", "--json"]);
    assert_eq!(labels["entries"].as_array().unwrap().len(), 6);
    // Through a pipe, as a table; and what goes wrong shows in the exit code.
    let piped = actum.run_with(&["predict", ID, "--batch", "-"], lines.as_bytes());
    assert_eq!((piped.code, piped.stdout.lines().count()), (0, 6), "{}", piped.stderr);
    let ids = asked(&actum, &["spend", "list", "--json"]);
    actum.run(&["spend", "revoke", ids["authorizations"][0]["authorization_id"].as_str().unwrap()]).ok();
    let denied = actum.run(&["predict", ID, "--batch", "good.jsonl", "--json"]);
    assert_eq!((denied.code, denied.json_lines().len()), (3, 6), "{}", denied.stderr);
    moved(&actum, "set", &["--primary", &a, "--key-scope", "user"]);
    let refused = actum.run(&["predict", ID, "--batch", "good.jsonl"]);
    assert!(refused.code == 2 && refused.stderr.contains("--user"), "{}", refused.stderr);
}
