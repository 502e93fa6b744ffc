//! Artifacts by way of the real binary: registered once and for good, refused where they are not whole, asked by name, and
//! never asked where they do not fit.

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::predict::{SIGNATURE, demo};
use super::run::asked;

pub(crate) const ID: &str = "demo/Sentiment.v1";

/// An artifact for the signature as it is registered, with another prompt.
pub(crate) fn artifact_of(actum: &Program, prompt: &str) -> Value {
    let signature = asked(actum, &["signature", "show", ID, "--json"]);
    json!({
        "signature_id": ID, "schema_hash": signature["schema_hash"], "prompt_hash": signature["prompt_hash"],
        "program_hash": signature["program_hash"], "prompt_template": prompt, "program_template": "direct.v1",
    })
}

/// Registers one; its id.
pub(crate) fn added(actum: &Program, artifact: &Value) -> String {
    actum.file("artifact.json", artifact.to_string());
    let told = asked(actum, &["artifact", "add", "artifact.json", "--json"]);
    told["artifacts"][0]["artifact_id"].as_str().unwrap().to_owned()
}

#[test]
fn an_artifact_is_registered_once_and_found_by_the_beginning_of_its_id() {
    let actum = actum();
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    let mut artifact = artifact_of(&actum, "Is {{ text }} nice?");
    artifact["label"] = json!("short");
    artifact["few_shot"] = json!([{"input": {"text": "great"}, "output": {"label": "positive"}}]);
    let id = added(&actum, &artifact);
    assert!(id.starts_with("art_") && id.len() == 28, "{id}");
    let again = asked(&actum, &["artifact", "add", "artifact.json", "--json"]);
    assert_eq!((&again["artifacts"][0]["idempotent"], &again["artifacts"][0]["fits"]), (&json!(true), &json!(true)));
    // What is shown can be added again, and is the same.
    let mut shown = asked(&actum, &["artifact", "show", &id[..12], "--json"]);
    assert_eq!((&shown["artifact_id"], &shown["fits"], &shown["label"]), (&json!(id), &json!(true), &json!("short")));
    shown.as_object_mut().unwrap().remove("fits");
    actum.file("again.yaml", serde_json::to_string(&json!([shown, artifact])).unwrap());
    let both = asked(&actum, &["artifact", "add", "again.yaml", "--json"]);
    assert!(
        both["artifacts"].as_array().unwrap().iter().all(|one| one["artifact_id"] == id && one["idempotent"] == true)
    );
    // The signature's own way, and one of a signature that nobody knows here.
    let own = asked(&actum, &["artifact", "add", "--of", ID, "--json"]);
    assert_eq!((&own["artifacts"][0]["few_shot"], &own["artifacts"][0]["fits"]), (&json!(0), &json!(true)));
    artifact["signature_id"] = json!("demo/Other.v1");
    actum.file("other.json", artifact.to_string());
    let other = actum.run(&["artifact", "add", "other.json", "--json"]);
    assert_eq!((other.code, other.stderr.as_str()), (0, ""));
    assert_eq!(other.json()["artifacts"][0]["fits"], Value::Null);
    let count = |more: &[&str]| {
        let listed = asked(&actum, &[&["artifact", "list", "--json"], more].concat());
        listed["artifacts"].as_array().unwrap().len()
    };
    assert_eq!((count(&[]), count(&["--signature", ID]), count(&["--signature", "demo/None.v1"])), (3, 2, 0));
    assert!(actum.run(&["artifact", "list"]).ok().contains("short"));
    for (arguments, code) in [
        (&["artifact", "show", "art_"][..], 7),
        (&["artifact", "show", "art_000000000000000000000000"], 7),
        (&["artifact", "show", "nonsense"], 7),
        (&["artifact", "add", "--of", "demo/None.v1"], 7),
        (&["artifact", "add"], 2),
        (&["artifact", "add", "missing.json"], 2),
    ] {
        assert_eq!(actum.run(arguments).code, code, "{arguments:?}");
    }
    // Nobody writes them into the ledger from outside.
    for forged in [
        json!({"tenantId": "local", "module": "predict", "source": "me", "type": "compiled_artifact", "payload": {}}),
        json!({"tenantId": "local", "module": "x", "source": "me", "type": "note", "id": format!("rollout:artifact:{id}"), "payload": {}}),
    ] {
        assert_eq!(actum.run_with(&["ledger", "append", "-"], forged.to_string().as_bytes()).code, 2);
    }
    assert_eq!(actum.run(&["store", "check", "--json"]).json()["valid"], true);
}

#[test]
fn every_flaw_of_an_artifact_is_told_and_nothing_is_registered() {
    let actum = actum();
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    let good = artifact_of(&actum, "Is {{ text }} nice?");
    let with = |field: &str, value: Value| {
        let mut bad = good.clone();
        bad[field] = value;
        bad.to_string()
    };
    let without = |field: &str| {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(field);
        bad.to_string()
    };
    let shot = json!([{"input": {"text": "x"}, "output": {"label": "positive"}}]);
    let mut long = good.clone();
    long["program_template"] = json!({"strategy": "rlm_lite.v1", "long_inputs": ["text"]});
    long["few_shot"] = shot;
    for (text, word) in [
        (without("schema_hash"), "artifact_incompatible.missing_hash"),
        (without("prompt_hash"), "artifact_incompatible.missing_hash"),
        (without("program_hash"), "artifact_incompatible.missing_hash"),
        (with("schema_hash", json!("abc")), "schema_hash"),
        (with("signature_id", json!("nonsense")), "signature_id"),
        (with("artifact_id", json!("art_000000000000000000000000")), "artifact_id"),
        (with("version", json!(2)), "newer"),
        (with("prompt_template", json!("{{ text")), "prompt_template"),
        (with("program_template", json!("magic.v9")), "program_template"),
        (with("few_shot", json!([{"input": {}}])), "few_shot"),
        (with("few_shot", json!("many")), "few_shot"),
        (with("label", json!("x".repeat(300))), "label"),
        (with("promt_template", json!("x")), "did you mean prompt_template"),
        (long.to_string(), "direct.v1 only"),
        (json!([good, {"signature_id": ID}]).to_string(), "missing_hash"),
        ("[1, 2]".to_owned(), "object"),
        ("{".to_owned(), "bad.json"),
    ] {
        actum.file("bad.json", &text);
        let refused = actum.run(&["artifact", "add", "bad.json"]);
        assert_eq!(refused.code, 2, "{word}: {}", refused.stderr);
        assert!(refused.stderr.contains(word), "{word} is missing in {}", refused.stderr);
    }
    assert_eq!(asked(&actum, &["artifact", "list", "--json"])["artifacts"], json!([]));
}

#[test]
fn an_artifact_that_is_named_is_asked_with_its_examples() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let mut artifact = artifact_of(&actum, "Is {{ text }} nice?");
    artifact["few_shot"] = json!([{"input": {"text": "great"}, "output": {"label": "positive"}}]);
    let id = added(&actum, &artifact);
    let told = asked(&actum, &["predict", ID, "--param", "text=good", "--artifact", &id[..10], "--json"]);
    assert_eq!(told["artifact"]["compiled_id"], id.as_str(), "{told}");
    assert_eq!((&told["artifact"]["variant"], &told["artifact"]["pointer_revision"]), (&json!("pinned"), &Value::Null));
    assert_eq!((&told["receipt"]["compiled_id"], &told["receipt"]["receipt_version"]), (&json!(id), &json!(2)));
    let signature = asked(&actum, &["signature", "show", ID, "--json"]);
    assert_eq!(told["receipt"]["prompt_hash"], signature["prompt_hash"], "those of the signature");
    let body = String::from_utf8_lossy(&upstream.calls()[0].body).into_owned();
    assert!(body.contains("Is great nice?") && body.contains("Is good nice?"), "{body}");
    let receipt = told["receipt_id"].as_str().unwrap();
    assert_eq!(asked(&actum, &["policy", "explain", receipt, "--json"])["identical"], true);
    assert_eq!(asked(&actum, &["verify", told["receipt_path"].as_str().unwrap(), "--json"])["valid"], true);
    let own = asked(&actum, &["predict", ID, "--param", "text=good", "--artifact", "baseline", "--json"]);
    assert_eq!(own["artifact"]["variant"], "pinned");
    for more in [["--strategy", "direct.v1"], ["--model", "stub-1"]] {
        let refused = actum.run(&[&["predict", ID, "--param", "text=good", "--artifact", &id], &more[..]].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
    }
    assert_eq!(actum.run(&["predict", ID, "--param", "text=x", "--artifact", "art_00000000"]).code, 7);
}

#[test]
fn what_does_not_fit_asks_nobody_and_leaves_a_receipt() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let good = artifact_of(&actum, "Is {{ text }} nice?");
    for (field, value) in [
        ("schema_hash", json!("0".repeat(64))),
        ("prompt_hash", json!("0".repeat(64))),
        ("program_hash", json!("0".repeat(64))),
        ("signature_id", json!("demo/Other.v1")),
        ("few_shot", json!([{"input": {"text": 5}, "output": {"label": "positive"}}])),
        ("few_shot", json!([{"input": {"text": "x"}, "output": {"label": "green"}}])),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        actum.file("bad.json", bad.to_string());
        let added = actum.run(&["artifact", "add", "bad.json", "--json"]);
        assert_eq!(added.code, 0, "{}", added.stderr);
        let id = added.json()["artifacts"][0]["artifact_id"].as_str().unwrap().to_owned();
        if field != "signature_id" {
            assert!(added.stderr.contains("warning: "), "{field}: {}", added.stderr);
            let shown = asked(&actum, &["artifact", "show", &id, "--json"]);
            assert_eq!(shown["fits"], false);
        }
        let ended = actum.run(&["predict", ID, "--param", "text=good", "--artifact", &id, "--json"]);
        let told = ended.json();
        assert_eq!((ended.code, &told["status"]), (1, &json!("failed")), "{told}");
        assert_eq!(told["receipt"]["error"]["reason_code"], "artifact_incompatible.hash_mismatch");
        assert_eq!(told["receipt"]["compiled_id"], id.as_str());
        let receipt = told["receipt_id"].as_str().unwrap();
        assert_eq!(asked(&actum, &["policy", "explain", receipt, "--json"])["identical"], true);
        let trace = actum.run(&["trace", "show", receipt]).ok();
        assert!(trace.contains("hash_mismatch"), "{trace}");
        let plain = actum.run(&["predict", ID, "--param", "text=good", "--artifact", &id]);
        assert!(plain.code == 1 && plain.stderr.contains("A0901"), "{}", plain.stderr);
        // Nor is anybody pointed to it.
        let refused = actum.run(&["pointer", "set", ID, "--primary", &id, "--reason", "try", "--json"]);
        assert_eq!((refused.code, &refused.error()["code"]), (1, &json!("ARTIFACT_INCOMPATIBLE")), "{field}");
    }
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(asked(&actum, &["spend", "reservations", "--json"])["reservations"], json!([]));
    assert_eq!(actum.run(&["pointer", "show", ID]).code, 7);
}
