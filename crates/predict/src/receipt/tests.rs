//! Receipts of every end, what their ids cover, and what is found missing or changed.

use actum_contract::execution::Redactor;

use super::*;
use crate::pointer::Keys;
use crate::policy::evaluate;
use crate::{pointer, signature, trace};

#[test]
fn the_id_is_the_hash_of_what_it_covers() {
    let receipt = made(|_| {});
    let covered: serde_json::Map<String, Value> =
        COVERED.iter().map(|field| ((*field).to_owned(), receipt[*field].clone())).collect();
    assert_eq!(id(&receipt), format!("pred_{}", &hash::of(&Value::Object(covered))[..ID_DIGITS]));
    assert!(COVERED.is_sorted());
}

fn made(change: impl FnOnce(&mut Receipt<'_>)) -> Value {
    made_by(&Rollout::default(), change)
}

fn made_by(rollout: &Rollout, change: impl FnOnce(&mut Receipt<'_>)) -> Value {
    let signature = signature::gateway("messages");
    let (hashes, id) = (signature.hashes(), signature.id());
    let inputs = Inputs { policy_id: "p".to_owned(), ..Inputs::default() };
    let decision = evaluate(&inputs);
    let trace = trace::capture("run_1", &id, &json!({"a": 1}), &Redactor::default());
    let params_hash = hash::of(&json!({"q": 1}));
    let mut receipt = Receipt {
        kind: Kind::Call,
        run_id: "run_1",
        ordinal: 1,
        prediction_id: "prd_1",
        parent_prediction_id: None,
        signature_id: &id,
        strategy_id: "direct.v1",
        compiled_id: &compiled_id(&id, "direct.v1"),
        rollout,
        hashes: &hashes,
        params_hash: &params_hash,
        output_hash: None,
        inputs: &inputs,
        decision: &decision,
        budget: Budget::of("usd_micros", &Usage { input: 3, output: 4, ..Usage::default() }),
        timing: Timing { started_at: "a".to_owned(), completed_at: "b".to_owned(), latency_ms: 7 },
        trace: Some(&trace),
        status: Status::Denied,
        error: None,
        provider: None,
        model: None,
        protocol: None,
    };
    change(&mut receipt);
    receipt.to_json()
}

#[test]
fn a_receipt_is_whole_for_every_end() {
    for status in [Status::Succeeded, Status::Denied, Status::Failed, Status::Partial, Status::Unknown] {
        for kind in [Kind::Call, Kind::Prediction] {
            let receipt = made(|r| (r.status, r.kind) = (status, kind));
            assert_eq!(check(&receipt), Ok(()));
            assert_eq!(receipt["status"], status.word());
        }
    }
    let receipt = made(|_| ());
    assert_eq!(receipt["compiled_id"], "catalog:actum/gateway_messages.v1:direct.v1");
    assert_eq!(receipt["output_hash"], hash::of(&Value::Null));
    assert_eq!((&receipt["budget"]["total_tokens"], &receipt["budget"]["remaining"]), (&json!(7), &json!(null)));
    assert_eq!(check(&made(|r| r.trace = None)), Ok(()));
    let long = made(|r| r.error = Some(Failure { reason_code: "x".to_owned(), message: "y".repeat(5_000) }));
    assert_eq!(long["error"]["message"].as_str().unwrap().len(), MESSAGE_CHARS_MAX);
    // What was kept is decided again, and the same comes out.
    let inputs: Inputs = serde_json::from_value(receipt["policy"]["inputs"].clone()).unwrap();
    assert_eq!(evaluate(&inputs).evaluation_hash, receipt["policy"]["evaluation_hash"]);
}

#[test]
fn the_id_covers_all_but_the_time() {
    let first = made(|_| ());
    let id = |change: fn(&mut Receipt<'_>)| made(change)["receipt_id"].clone();
    assert!(
        first["receipt_id"].as_str().unwrap().starts_with("pred_") && first["receipt_id"].as_str().unwrap().len() == 29
    );
    assert_eq!(id(|r| r.timing.latency_ms = 99), first["receipt_id"]);
    assert_ne!(id(|r| r.ordinal = 2), first["receipt_id"]);
    assert_ne!(id(|r| r.run_id = "run_2"), first["receipt_id"]);
    assert_ne!(id(|r| r.compiled_id = "art_1"), first["receipt_id"]);
    assert_ne!(id(|r| r.budget.spent = 1), first["receipt_id"]);
    assert_ne!(id(|r| r.trace = None), first["receipt_id"]);
}

fn canary() -> Rollout {
    let pointer = Pointer::new("a/b.v1", "art_1").set_canary("art_2", 100);
    let selection = pointer.select(&Keys { user: Some("ann".to_owned()), ..Keys::default() });
    Rollout::of(&pointer, &selection, 7)
}

#[test]
fn a_receipt_says_what_a_pointer_has_decided() {
    let rollout = canary();
    let receipt = made_by(&rollout, |r| r.compiled_id = "art_2");
    assert_eq!(check(&receipt), Ok(()));
    let policy = &receipt["policy"];
    assert_eq!((&receipt["compiled_id"], &policy["compiled_id"]), (&json!("art_2"), &json!("art_2")));
    for (field, value) in [
        ("artifact_variant", json!("canary")),
        ("canary_percent", json!(100)),
        ("rollout_bucket", json!(pointer::bucket("a/b.v1", "default", "ann"))),
        ("rollout_seed", json!("default")),
        ("key_scope", json!("user")),
        ("bucket_algo", json!("sha256-be32-mod100.v1")),
        ("pointer_revision", json!(7)),
    ] {
        assert_eq!(policy[field], value, "{field}");
    }
    assert_eq!(receipt["receipt_version"], 2);
    // Who has no key of the scope has no bucket, and the pointer is told all the same.
    let none = Rollout { bucket: None, scope: Some("none"), variant: "primary", ..rollout };
    let receipt = made_by(&none, |_| ());
    assert_eq!((check(&receipt), &receipt["policy"]["key_scope"]), (Ok(()), &json!("none")));
    // Without a pointer nothing is said of it.
    let pinned = Rollout::pinned();
    for (receipt, variant) in [(made(|_| ()), "primary"), (made_by(&pinned, |_| ()), "pinned")] {
        let policy = receipt["policy"].as_object().unwrap();
        assert_eq!((check(&receipt), &policy["artifact_variant"]), (Ok(()), &json!(variant)));
        assert_eq!((&policy["canary_percent"], &policy["rollout_bucket"]), (&json!(0), &json!(null)));
        assert!(ROLLOUT.iter().all(|field| !policy.contains_key(*field)));
    }
    assert_ne!(made_by(&pinned, |_| ())["receipt_id"], made(|_| ())["receipt_id"]);
}

#[test]
fn what_is_wrong_with_a_rollout_is_found() {
    let rollout = canary();
    let good = made_by(&rollout, |_| ());
    for (field, value) in [
        ("artifact_variant", json!("other")),
        ("artifact_variant", json!(null)),
        ("canary_percent", json!(101)),
        ("canary_percent", json!("5")),
        ("rollout_bucket", json!(100)),
        ("rollout_bucket", json!("x")),
        ("rollout_seed", json!(null)),
        ("key_scope", json!(1)),
        ("bucket_algo", json!(null)),
        ("pointer_revision", json!("7")),
        ("pointer_revision", json!(null)),
    ] {
        let mut bad = good.clone();
        bad["policy"][field] = value.clone();
        bad["receipt_id"] = json!(id(&bad));
        let flaws = check(&bad).unwrap_err();
        assert!(flaws.len() == 1 && flaws[0].starts_with(&format!("policy.{field} must be ")), "{value}: {flaws:?}");
    }
    for version in [json!(1), json!(3), json!("2"), json!(null)] {
        let mut bad = good.clone();
        bad["receipt_version"] = version;
        assert!(check(&bad).unwrap_err()[0].contains("use a newer actum"));
    }
}

#[test]
fn what_is_missing_or_changed_is_found() {
    let good = made(|_| ());
    for field in
        TEXTS.into_iter().chain(["ordinal", "catalog_version", "status", "policy", "budget", "timing", "trace_hash"])
    {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(field);
        assert!(check(&bad).is_err(), "{field}");
    }
    for (part, fields) in [("policy", &POLICY[..]), ("budget", &BUDGET), ("timing", &TIMING)] {
        for field in fields {
            let mut bad = good.clone();
            bad[part].as_object_mut().unwrap().remove(*field);
            assert!(check(&bad).unwrap_err().iter().any(|flaw| flaw.contains(field)), "{part}.{field}");
        }
    }
    let mut bad = good;
    bad["budget"]["spent"] = json!(1);
    assert!(check(&bad).unwrap_err()[0].starts_with("receipt_id must be pred_"));
    assert!(check(&json!(null)).is_err() && check(&json!([])).is_err());
}
