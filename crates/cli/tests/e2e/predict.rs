//! Signatures, predictions, their receipts and traces, and why they were allowed: by way of the real binary, with a
//! scripted provider.

use std::fs;

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::run::asked;

pub(crate) const KEY: &str = "sk-a-real-key-0123456789abcdef";

pub(crate) const SIGNATURE: &str = r#"
namespace: demo
name: Sentiment
version: 1
description: Says how a text sounds.
input_schema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
output_schema: {type: object, properties: {label: {enum: [positive, negative]}}, required: [label], additionalProperties: false}
prompt_template: "How does this sound? {{ text }}"
program_template: direct.v1
"#;

/// A project with one provider at an address, with a price, and a key that only the environment knows.
pub(crate) fn project(kind: &str, base_url: &str) -> Program {
    let actum = actum().with_env("STUB_KEY", KEY);
    settle(&actum, kind, base_url, "");
    actum
}

fn settle(actum: &Program, kind: &str, base_url: &str, more: &str) {
    actum.file(
        "actum.toml",
        format!(
            "[providers.stub]\ntype = \"{kind}\"\nbase_url = \"{base_url}\"\nkey = \"env:STUB_KEY\"\nmodels = [\"stub-1\"]\n\
             {more}\n[prices.stub-1]\ninput = 1000000\noutput = 2000000\n"
        ),
    );
}

pub(crate) fn demo(upstream: &Upstream) -> Program {
    let actum = project("openai", &format!("{}/v1", upstream.url()));
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    actum
}

fn answer(text: &str) -> Script {
    Script::default().turn(Turn::text(text), Usage::new(40, 6))
}

fn predict(actum: &Program, more: &[&str]) -> (i32, Value) {
    let ended = actum.run(&[&["predict", "demo/Sentiment.v1", "--json"], more].concat());
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json())
}

const GOOD: [&str; 2] = ["--param", "text=good"];

#[test]
fn a_signature_is_registered_once_and_never_changes() {
    let actum = actum();
    actum.file("sentiment.yaml", SIGNATURE);
    let added = asked(&actum, &["signature", "add", "sentiment.yaml", "--json"]);
    assert_eq!(added["signatures"][0]["signature_id"], "demo/Sentiment.v1");
    let hash = added["signatures"][0]["schema_hash"].as_str().unwrap().to_owned();
    assert_eq!(hash.len(), 64);
    // The same again changes nothing; the order of members is no difference.
    assert_eq!(asked(&actum, &["signature", "add", "sentiment.yaml", "--json"])["signatures"][0]["idempotent"], true);
    actum.file("other.yaml", SIGNATURE.replace("How does", "How on earth does"));
    let refused = actum.run(&["signature", "add", "other.yaml", "--json"]);
    assert_eq!(refused.code, 6, "{}", refused.stderr);
    assert_eq!(refused.error()["code"], "SIGNATURE_CONFLICT");
    assert!(refused.stderr.contains("demo/Sentiment.v2"), "{}", refused.stderr);
    actum.file("other.yaml", SIGNATURE.replace("How does", "How on earth does").replace("version: 1", "version: 2"));
    let second = asked(&actum, &["signature", "add", "other.yaml", "--json"]);
    assert_eq!(second["signatures"][0]["schema_hash"], hash.as_str(), "the prompt is not part of it");
    let shown = asked(&actum, &["signature", "show", "demo/Sentiment.v2", "--json"]);
    assert_ne!(shown["prompt_hash"], added["signatures"][0]["prompt_hash"]);
    let listed = asked(&actum, &["signature", "list", "--json"]);
    assert_eq!(listed["signatures"].as_array().unwrap().len(), 2);
    assert_eq!(actum.run(&["signature", "show", "demo/None.v1"]).code, 7);
    // Nobody writes them into the ledger from outside, nor in our namespace.
    let forged =
        json!({"tenantId": "local", "module": "predict", "source": "me", "type": "signature_catalog", "payload": {}});
    assert_eq!(actum.run_with(&["ledger", "append", "-"], forged.to_string().as_bytes()).code, 2);
    actum.file("ours.yaml", SIGNATURE.replace("namespace: demo", "namespace: actum"));
    assert_eq!(actum.run(&["signature", "add", "ours.yaml"]).code, 2);
}

#[test]
fn every_flaw_of_a_signature_is_told_with_its_place() {
    let actum = actum();
    for (flawed, words) in [
        (SIGNATURE.replace("direct.v1", "magic.v9"), "program_template"),
        (SIGNATURE.replace("version: 1", "version: 0"), "version"),
        (SIGNATURE.replace("type: object", "type: objekt"), "schema"),
        (SIGNATURE.replace("{{ text }}", "{{ text"), "prompt_template"),
        (SIGNATURE.replace("description:", "descripton:"), "description"),
        (format!("{SIGNATURE}\nsignature_id: demo/Other.v1\n"), "signature_id"),
        ("[1, 2]".to_owned(), "object"),
        ("a: [".to_owned(), "bad.yaml"),
    ] {
        actum.file("bad.yaml", &flawed);
        let refused = actum.run(&["signature", "add", "bad.yaml"]);
        assert_eq!(refused.code, 2, "{words}: {}", refused.stderr);
        assert!(refused.stderr.contains(words), "{words} is missing in {}", refused.stderr);
    }
    assert_eq!(asked(&actum, &["signature", "list", "--json"])["signatures"], json!([]));
}

#[test]
fn an_answer_is_checked_paid_for_and_receipted() {
    let upstream = Upstream::start(answer("```json\n{\"label\": \"positive\"}\n```"));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd", "--id", "auth_all"]).ok();
    let (code, told) = predict(&actum, &GOOD);
    assert_eq!(code, 0, "{told}");
    assert_eq!((&told["output"], &told["status"]), (&json!({"label": "positive"}), &json!("succeeded")));
    let receipt = &told["receipt"];
    for field in [
        "receipt_id",
        "run_id",
        "signature_id",
        "strategy_id",
        "compiled_id",
        "schema_hash",
        "prompt_hash",
        "program_hash",
        "params_hash",
        "output_hash",
        "policy",
        "budget",
        "timing",
        "catalog_version",
        "trace_ref",
        "trace_hash",
        "trace_storage",
    ] {
        assert!(!receipt[field].is_null(), "{field} is missing in {receipt}");
    }
    assert_eq!(receipt["policy"]["authorization_id"], "auth_all");
    assert_eq!(receipt["policy"]["reason_code"], "policy_allowed.default");
    // 40 tokens at 1 and 6 at 2 micros each.
    assert_eq!((&receipt["budget"]["spent"], &receipt["budget"]["total_tokens"]), (&json!(52), &json!(46)));
    let listed = asked(&actum, &["spend", "list", "--json"]);
    assert_eq!(
        (&listed["authorizations"][0]["spent"], &listed["authorizations"][0]["reserved"]),
        (&json!(52), &json!(0))
    );
    // Signed, and verified like any other.
    let path = told["receipt_path"].as_str().unwrap();
    let envelope: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(envelope["payloadType"], "application/vnd.in-toto+json");
    let verified = asked(&actum, &["verify", path, "--json"]);
    assert_eq!(verified["valid"], true, "{verified}");
    assert_eq!(verified["checks"].as_array().unwrap().len(), 6, "{verified}");
    // The schema was asked for, a limit was set, and the key went where it belongs.
    let call = &upstream.calls()[0];
    assert_eq!(call.json()["response_format"]["type"], "json_schema");
    assert!(call.json()["max_tokens"].is_u64());
    assert_eq!(call.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    // What was said can be read, and why it was allowed be found out again.
    let id = told["receipt_id"].as_str().unwrap();
    let trace = actum.run(&["trace", "show", id]).ok();
    assert!(trace.contains("How does this sound? good"), "{trace}");
    let explained = asked(&actum, &["policy", "explain", id, "--json"]);
    assert_eq!((&explained["identical"], &explained["decision"]), (&json!(true), &json!("allowed")));
    let prediction = told["prediction_id"].as_str().unwrap();
    assert_eq!(asked(&actum, &["policy", "explain", prediction, "--json"])["receipt_id"], id);
    assert_nothing_holds(&actum, KEY);
}

/// No file below `.actum` has these bytes.
pub(crate) fn assert_nothing_holds(actum: &Program, secret: &str) {
    let mut folders = vec![actum.path(".actum")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let bytes = fs::read(entry.path()).unwrap_or_default();
                    let is_there = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                    assert!(!is_there, "the key is in {}", entry.path().display());
                }
            }
        }
    }
}

#[test]
fn a_wrong_answer_is_repaired_once() {
    let wrong = Turn::text("{\"label\": \"green\"}");
    let right = Turn::text("sorry: {\"label\": \"negative\"}");
    let upstream =
        Upstream::start(Script::default().turn(wrong.clone(), Usage::new(10, 1)).turn(right, Usage::new(20, 2)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (code, told) = predict(&actum, &GOOD);
    assert_eq!((code, &told["output"]["label"], &told["calls"]), (0, &json!("negative"), &json!(2)), "{told}");
    assert_eq!(told["budget"]["spent"], 10 + 2 + 20 + 4);
    assert_eq!(calls_and_sum(&actum), (2, 36));
    let twice = Upstream::start(Script::default().turn(wrong.clone(), Usage::new(1, 1)).turn(wrong, Usage::new(1, 1)));
    let actum = demo(&twice);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (code, told) = predict(&actum, &GOOD);
    assert_eq!((code, &told["status"]), (1, &json!("failed")), "{told}");
    assert_eq!(told["error"]["reason_code"], "predict_failed.invalid_output");
    assert_eq!(told["output"], Value::Null);
    let ended = actum.run(&[&["predict", "demo/Sentiment.v1"], &GOOD[..]].concat());
    assert!(ended.stderr.contains("A0803") || ended.code == 0, "{}", ended.stderr);
}

/// How many calls have receipts, and what they cost together.
fn calls_and_sum(actum: &Program) -> (usize, u64) {
    let listed = asked(actum, &["trace", "list", "--limit", "1000", "--json"]);
    let calls: Vec<&Value> =
        listed["receipts"].as_array().unwrap().iter().filter(|one| one["kind"] == "call").collect();
    (calls.len(), calls.iter().map(|call| call["budget"]["spent"].as_u64().unwrap()).sum())
}

#[test]
fn what_is_denied_asks_nobody_and_leaves_a_receipt() {
    let upstream = Upstream::start(answer("{\"label\": \"positive\"}"));
    let actum = demo(&upstream);
    let denied = |actum: &Program, reason: &str| {
        let (code, told) = predict(actum, &GOOD);
        let expected =
            if reason.ends_with("approval_required") || reason.ends_with("threshold_exceeded") { 8 } else { 3 };
        assert_eq!((code, &told["status"]), (expected, &json!("denied")), "{told}");
        assert_eq!(told["error"]["reason_code"], reason, "{told}");
        assert_eq!(told["receipt"]["policy"]["reason_code"], reason);
        let id = told["receipt_id"].as_str().unwrap();
        let explained = asked(actum, &["policy", "explain", id, "--json"]);
        assert_eq!((&explained["identical"], &explained["reason_code"]), (&json!(true), &json!(reason)));
    };
    denied(&actum, "policy_denied.authorization_missing");
    let authorize = |more: &[&str]| {
        let made = asked(&actum, &[&["spend", "authorize", "--json"], more].concat());
        made["authorization_id"].as_str().unwrap().to_owned()
    };
    // The newest of the same scope wins, and what denies is not gone around.
    authorize(&["--max-total", "10"]);
    denied(&actum, "policy_denied.budget_exhausted");
    authorize(&["--max-per-call", "10"]);
    denied(&actum, "policy_denied.per_call_exceeded");
    authorize(&["--max-per-day", "10"]);
    denied(&actum, "policy_denied.per_day_exceeded");
    authorize(&["--threshold", "10"]);
    denied(&actum, "policy_denied.threshold_exceeded");
    authorize(&["--mode", "interactive"]);
    denied(&actum, "policy_denied.approval_required");
    authorize(&["--mode", "deny"]);
    denied(&actum, "policy_denied.explicit_deny");
    let id = authorize(&["--max-total", "1usd"]);
    actum.run(&["spend", "revoke", &id]).ok();
    denied(&actum, "policy_denied.authorization_revoked");
    settle(&actum, "openai", &format!("{}/v1", upstream.url()), "[prices.other]\ninput = 1\noutput = 1\n");
    let text = fs::read_to_string(actum.path("actum.toml")).unwrap().replace("prices.stub-1", "prices.stub-2");
    actum.file("actum.toml", text);
    authorize(&["--max-total", "1usd"]);
    denied(&actum, "policy_denied.unpriced");
    assert_eq!(upstream.requests().len(), 0, "nobody was asked");
    assert_eq!(asked(&actum, &["spend", "reservations", "--json"])["reservations"], json!([]));
}

#[test]
fn a_person_agrees_once() {
    let upstream = Upstream::start(answer("{\"label\": \"positive\"}"));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--mode", "interactive"]).ok();
    assert_eq!(predict(&actum, &GOOD).0, 8);
    let waiting = asked(&actum, &["approvals", "list", "--json"])["approvals"][0].clone();
    assert!(waiting["wants"][0].as_str().unwrap().contains("usd_micros"), "{waiting}");
    actum.run(&["approve", waiting["id"].as_str().unwrap()]).ok();
    let (code, told) = predict(&actum, &GOOD);
    assert_eq!(code, 0, "{told}");
    let reserved = asked(&actum, &["spend", "reservations", "--json"])["reservations"][0].clone();
    assert_eq!(reserved["approval_id"], waiting["id"]);
    assert_eq!(predict(&actum, &GOOD).0, 8, "once");
}

#[test]
fn bad_input_is_told_before_anybody_is_asked() {
    let upstream = Upstream::start(answer("{}"));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (code, told) = predict(&actum, &["--param", "text:=5"]);
    assert_eq!((code, &told["error"]["reason_code"]), (2, &json!("predict_failed.invalid_input")), "{told}");
    for (arguments, code) in [
        (&["predict", "demo/None.v1"][..], 7),
        (&["predict", "demo/Sentiment.v1", "--input", "missing.json"], 2),
        (&["predict", "demo/Sentiment.v1", "--param", "text"], 2),
        (&["predict", "demo/Sentiment.v1", "--param", "text:={"], 2),
        (&["predict", "demo/Sentiment.v1", "--param", "text=x", "--strategy", "magic.v1"], 2),
        (&["predict", "demo/Sentiment.v1", "--param", "text=x", "--model", "other"], 7),
        (&["predict", "demo/Sentiment.v1", "--param", "text=x", "--provider", "other"], 7),
        (&["policy", "explain", "pred_000000000000000000000000"], 7),
        (&["trace", "show", "x"], 7),
    ] {
        let refused = actum.run(arguments);
        assert_eq!(refused.code, code, "{arguments:?}: {}", refused.stderr);
    }
    let refused = actum.run_with(&["predict", "demo/Sentiment.v1", "--input", "-"], b"{\"text\": ");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn anthropic_and_gemini_answer_the_same_signature() {
    for (kind, path) in [("anthropic", "/v1/messages"), ("gemini", "/v1beta/models/stub-1:generateContent")] {
        let turn = match kind {
            "anthropic" => Turn::tool("answer", json!({"label": "negative"})),
            _ => Turn::text("{\"label\": \"negative\"}"),
        };
        let upstream = Upstream::start(Script::default().turn(turn, Usage::new(100, 10)));
        let actum = project(kind, &upstream.url());
        actum.file("sentiment.yaml", SIGNATURE);
        actum.run(&["signature", "add", "sentiment.yaml"]).ok();
        actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
        let (code, told) = predict(&actum, &GOOD);
        assert_eq!((code, &told["output"]["label"]), (0, &json!("negative")), "{kind}: {told}");
        assert_eq!(told["budget"]["spent"], 120);
        let call = &upstream.calls()[0];
        assert_eq!(call.path, path);
        let header = if kind == "anthropic" { "x-api-key" } else { "x-goog-api-key" };
        assert_eq!(call.header(header), Some(KEY));
    }
}

#[test]
fn a_recording_answers_without_network_or_money() {
    let upstream = Upstream::start(answer("{\"label\": \"positive\"}"));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd", "--id", "auth_live"]).ok();
    let (code, live) = predict(&actum, &[&GOOD[..], &["--record", "answers.json"]].concat());
    assert_eq!(code, 0, "{live}");
    assert!(!fs::read_to_string(actum.path("answers.json")).unwrap().contains(KEY));
    drop(upstream);
    actum.run(&["spend", "revoke", "auth_live"]).ok();
    let actum = actum.with_env("STUB_KEY", "");
    actum.file("actum.toml", "[providers.stub]\ntype = \"recorded\"\nfile = \"answers.json\"\nmodels = [\"stub-1\"]\n");
    // A permission that was taken back is one still: without any, what is free needs none.
    let other = super::actum();
    for name in ["actum.toml", "answers.json", "sentiment.yaml"] {
        other.file(name, fs::read(actum.path(name)).unwrap());
    }
    other.run(&["signature", "add", "sentiment.yaml"]).ok();
    let (code, told) = predict(&other, &GOOD);
    assert_eq!((code, &told["output"]), (0, &live["output"]), "{told}");
    assert_eq!((&told["budget"]["spent"], &told["policy"]["authorization_mode"]), (&json!(0), &json!("system")));
    let (code, told) = predict(&other, &["--param", "text=bad"]);
    assert_eq!(code, 1, "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains("no answer to this"), "{told}");
}

#[test]
fn a_long_input_is_worked_on_by_operations_each_paid_for() {
    let notes: Vec<String> = (0..400).map(|n| format!("note {n}: nothing to see")).collect();
    let mut notes = notes.join("\n");
    notes.push_str("\nnote 400: the password of the shed is tulip\n");
    let op = |value: Value| Turn::text(value.to_string());
    let script = Script::default()
        .turn(op(json!({"op": "grep", "var": "notes", "pattern": "shed"})), Usage::new(300, 20))
        .turn(op(json!({"op": "final", "answer": {"answer": "tulip"}})), Usage::new(350, 10));
    let upstream = Upstream::start(script);
    let actum = project("openai", &format!("{}/v1", upstream.url()));
    actum.file(
        "find.yaml",
        "signature_id: demo/Find.v1\ninput_schema: {type: object, properties: {notes: {type: string}, question: {type: string}}, \
         required: [notes, question], additionalProperties: false}\noutput_schema: {type: object, properties: {answer: \
         {type: string}}, required: [answer], additionalProperties: false}\nprompt_template: \"{{ question }}\"\n\
         program_template: {strategy: rlm_lite.v1, long_inputs: [notes]}\n",
    );
    actum.run(&["signature", "add", "find.yaml"]).ok();
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let input = json!({"notes": notes, "question": "What is the password of the shed?"});
    let ended = actum.run_with(&["predict", "demo/Find.v1", "--input", "-", "--json"], input.to_string().as_bytes());
    let told = ended.json();
    assert_eq!((ended.code, &told["output"]), (0, &json!({"answer": "tulip"})), "{told}");
    assert_eq!(told["receipt"]["strategy_id"], "rlm_lite.v1");
    let (calls, sum) = calls_and_sum(&actum);
    assert_eq!((calls, sum), (2, 300 + 40 + 350 + 20));
    for call in upstream.calls() {
        let body = String::from_utf8_lossy(&call.body).into_owned();
        assert!(!body.contains("note 200: nothing"), "the long input stays outside");
    }
    let listed = asked(&actum, &["trace", "list", "--json"]);
    let receipts = listed["receipts"].as_array().unwrap();
    let above = receipts.iter().find(|one| one["kind"] == "prediction").unwrap();
    let below = receipts.iter().filter(|one| one["parent_prediction_id"] == above["prediction_id"]).count();
    assert_eq!(below, 2, "each call has its own receipt under its parent");
    let trace = asked(&actum, &["trace", "show", above["receipt_id"].as_str().unwrap(), "--json"]);
    assert_eq!(trace["trace"]["trace_hash"], above["trace_hash"]);
}

#[test]
fn a_long_trace_is_kept_beside_the_ledger_and_a_damaged_one_is_found() {
    let said = format!("{} {{\"label\": \"positive\"}}", "well, ".repeat(1_000));
    let upstream = Upstream::start(answer(&said));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let long = format!("text=call me at mail@example.com {}", "very ".repeat(3_000));
    let (code, told) = predict(&actum, &["--param", &long]);
    assert_eq!(code, 0, "{told}");
    let calls = asked(&actum, &["trace", "list", "--json"]);
    let call = calls["receipts"].as_array().unwrap().iter().find(|one| one["kind"] == "call").unwrap().clone();
    assert_eq!(call["trace_storage"], "external");
    let id = call["receipt_id"].as_str().unwrap();
    let shown = actum.run(&["trace", "show", id]).ok();
    assert!(
        shown.contains("very very")
            && shown.contains("well, well")
            && shown.contains("[REDACTED_EMAIL]")
            && !shown.contains("mail@example")
    );
    // Cleaning up snapshots leaves it alone.
    actum.run(&["snapshot", "gc"]).ok();
    actum.run(&["trace", "show", id]).ok();
    let packs = actum.path(".actum/traces/packs");
    let is_pack = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "pack");
    for entry in fs::read_dir(packs).unwrap().flatten().filter(is_pack) {
        let mut bytes = fs::read(entry.path()).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(entry.path(), bytes).unwrap();
    }
    let damaged = actum.run(&["trace", "show", id]);
    assert_eq!(damaged.code, 1, "{}", damaged.stderr);
}
