//! Golden files of every version, and what is newer than this program.

use actum_contract::digest::Digest;
use serde_json::{Value, json};

use super::*;
use crate::compile::Job;
use crate::dataset::Slice;
use crate::guard::Guard;
use crate::metric::Metric;
use crate::{Artifact, Pointer, Signature, hash, policy};

/// A golden file: kind, version, name, text, and the SHA-256 it has for good.
type Golden = (Kind, u64, &'static str, &'static str, &'static str);

macro_rules! golden {
    ($kind:ident, $version:literal, $file:literal, $sha256:literal) => {
        (Kind::$kind, $version, $file, include_str!(concat!("../../golden/", $file, ".json")), $sha256)
    };
}

/// Payloads out of ledgers, as they were written: those of receipts of version 1 by the program before there were pointers.
/// A file that stands here is never changed: what has changed gets a new version and a file of its own.
const GOLDEN: [Golden; 15] = [
    golden!(Signature, 1, "signature_catalog.v1", "e86a16da8695a36769554b837f3905196ebc6885cb7ddd8dc73ce111e98b1816"),
    golden!(Receipt, 1, "prediction_receipt.v1", "8bc66ad94d49a4eb1d27749418fe8812048ad0bdf1b046cf8c2c68fd57173c0a"),
    golden!(
        Receipt,
        1,
        "prediction_receipt.v1.denied",
        "7ed822f287d68f14b0c346e55c21ea889c6aa6606f5477f6f4e4e434bebbd6c1"
    ),
    golden!(
        Receipt,
        1,
        "prediction_receipt.v1.paid",
        "0ac3c480071e431d2f0196472f169bd9f6ba3d027386c7e89efeb1ac833a466b"
    ),
    golden!(Receipt, 2, "prediction_receipt.v2", "f4639a5a8cfe727dc0fb5ed4a2e19c5f395adb1cdb649bccaf488e54e9993e1e"),
    golden!(
        Receipt,
        2,
        "prediction_receipt.v2.pointer",
        "bcd0b40823b2d92ccf8de184092661bc1a5a75119799ba8c62ea2f254d6e4040"
    ),
    golden!(Artifact, 1, "compiled_artifact.v1", "3ec8774946e7fbb13e727881319477e6dd78ecd5b5fd0454577503df54dc9017"),
    golden!(
        Artifact,
        1,
        "compiled_artifact.v1.label",
        "4e2efeac90fcd17e11d40c4763af7e61f67d6202f1d2520cd233cb2cf78dba21"
    ),
    golden!(Pointer, 1, "pointer_change.v1", "c25f6c6fce82d6595f7056dab32ec4dc3a80dc7b8f778b60bbd3002b0af3e0e7"),
    golden!(
        Pointer,
        1,
        "pointer_change.v1.decision",
        "91156dd6c4ba90fe11618044f16f21a98ea8429e7cfa6069b188c31e0ab532fb"
    ),
    golden!(Label, 1, "prediction_label.v1", "e7be0a309f9a20a6a74e2b1d2d409cd50414af8d705f03d89e97d7853307c8a0"),
    golden!(Label, 1, "prediction_label.v1.score", "c2debe262aa1047f9c38706425524ab266ff0b391cf9c35d19c3ab375b04e9c8"),
    golden!(Dataset, 1, "prediction_dataset.v1", "5791cdfebcfd9cef955fcd496717bd21fbdc09f2f13bd5acbc7e4f77bb1715e3"),
    golden!(Compile, 1, "compile_report.v1", "e46be79ab58a3a5f6adea775c0c5b7738f087a78715a918d0f73848e215396ad"),
    golden!(Eval, 1, "eval_report.v1", "169322836d46ee42c7849278b0a5001710385d8bf539cc7d0a475ecb9bfeec62"),
];

fn golden(name: &str) -> Value {
    let (.., text, _) = GOLDEN.iter().find(|(.., file, _, _)| *file == name).expect("there is a golden file");
    serde_json::from_str(text).expect("a golden file is JSON")
}

/// All of one kind and version.
fn all(kind: Kind, version: u64) -> Vec<Value> {
    let these = GOLDEN.iter().filter(|(of, n, ..)| (*of, *n) == (kind, version));
    let found: Vec<Value> = these.map(|(.., name, _, _)| golden(name)).collect();
    assert!(!found.is_empty(), "there is a golden file of {} of version {version}", kind.word());
    found
}

/// Everything but what only objects have in it, with its place.
fn leaves(value: &Value, at: &str, all: &mut Vec<(String, Value)>) {
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => fields.iter().for_each(|(name, inner)| leaves(inner, &format!("{at}/{name}"), all)),
        None => all.push((at.to_owned(), value.clone())),
    }
}

#[test]
fn golden_files_never_change() {
    for (kind, version, name, text, sha256) in GOLDEN {
        assert_eq!(Digest::sha256(text.as_bytes()).to_hex(), sha256, "golden/{name}.json has changed");
        let begins = format!("{}.v{version}", kind.word());
        assert!(name == begins || name.starts_with(&format!("{begins}.")), "{name} is one of {begins}");
    }
}

#[test]
fn every_version_of_every_kind_has_one_and_is_read() {
    for kind in Kind::ALL {
        assert_eq!(kind.steps().len() as u64, kind.version() - FIRST, "a step for each version of {}", kind.word());
        for (version, written) in
            (FIRST..=kind.version()).flat_map(|n| all(kind, n).into_iter().map(move |one| (n, one)))
        {
            let said = written.pointer(kind.place()).and_then(Value::as_u64).unwrap_or(FIRST);
            assert_eq!(said, version, "{}", kind.word());
            let today = read(kind, written.clone()).unwrap();
            assert_eq!(today.pointer(kind.place()), Some(&json!(kind.version())), "{}", kind.word());
            assert_eq!(read(kind, today.clone()).unwrap(), today, "once is enough");
            if version == kind.version() {
                assert_eq!(today, written);
            }
            // Nothing gets lost on the way, and nothing but the version becomes something else.
            let mut before = Vec::new();
            leaves(&written, "", &mut before);
            for (at, value) in before.into_iter().filter(|(at, _)| at != kind.place()) {
                assert_eq!(today.pointer(&at), Some(&value), "{} {at}", kind.word());
            }
        }
        assert_eq!(Kind::read(kind.word()), Some(kind));
    }
    assert_eq!(Kind::read("execution_event"), None);
    let known = |(kind, version, ..): &Golden| (FIRST..=kind.version()).contains(version);
    assert!(GOLDEN.iter().all(known), "no golden file is of a version that nobody has written");
}

#[test]
fn what_is_newer_is_refused_by_name() {
    for kind in Kind::ALL {
        let known = kind.version();
        for said in
            [json!(known + 1), json!(u64::MAX), json!(0), json!(-1), json!(1.5), json!("1"), json!([1]), json!({})]
        {
            let mut payload = all(kind, known).remove(0);
            *payload.pointer_mut(kind.place()).unwrap() = said.clone();
            let newer = read(kind, payload).unwrap_err();
            assert_eq!(newer, Newer { kind, found: said.to_string(), known });
        }
    }
    let newer = read(Kind::Pointer, json!({"version": 7})).unwrap_err();
    let told = "a pointer_change of version 7 was found, and version 1 is the newest that is known: use a newer actum";
    assert_eq!(newer.to_string(), told);
}

#[test]
fn unknown_fields_are_kept() {
    for (kind, _, name, ..) in GOLDEN {
        let mut payload = golden(name);
        payload["later"] = json!({"a": [1]});
        if kind == Kind::Receipt {
            payload["receipt"]["later"] = json!(2);
            payload["receipt"]["policy"]["later"] = json!(3);
        }
        let today = read(kind, payload).unwrap();
        assert_eq!(today["later"], json!({"a": [1]}), "{}", kind.word());
        if kind == Kind::Receipt {
            assert_eq!((&today["receipt"]["later"], &today["receipt"]["policy"]["later"]), (&json!(2), &json!(3)));
        }
    }
}

#[test]
fn what_is_no_payload_stays_what_it_is() {
    for kind in Kind::ALL {
        for payload in [json!(null), json!([]), json!("x"), json!({}), json!({"receipt": 7}), json!({"version": null})]
        {
            assert_eq!(read(kind, payload.clone()).unwrap(), payload, "{}", kind.word());
        }
    }
    let odd = read(Kind::Receipt, json!({"receipt": {"policy": []}})).unwrap();
    assert_eq!(odd, json!({"receipt": {"policy": [], "receipt_version": 2}}));
}

#[test]
fn a_receipt_of_the_first_version_had_no_pointer() {
    for written in all(Kind::Receipt, 1) {
        assert!(written["receipt"].get("receipt_version").is_none());
        let today = read(Kind::Receipt, written.clone()).unwrap();
        let mut expected = written;
        expected["receipt"]["receipt_version"] = json!(2);
        assert_eq!(today, expected);
        // As one of today without a pointer, and under its own id: who has it in either form can check it.
        assert_eq!(receipt::check(&today["receipt"]), Ok(()));
    }
}

#[test]
fn receipts_and_signatures_are_what_they_say() {
    for payload in [1, 2].into_iter().flat_map(|version| all(Kind::Receipt, version)) {
        assert_eq!(receipt::check(&payload["receipt"]), Ok(()));
        assert_eq!(payload["receipt"]["trace_hash"], payload["trace"]["trace_hash"]);
        assert_eq!(payload["trace"]["trace_hash"], hash::of(&payload["trace"]["payload"]));
        let inputs: policy::Inputs = serde_json::from_value(payload["receipt"]["policy"]["inputs"].clone()).unwrap();
        let again = policy::evaluate(&inputs);
        assert_eq!(again.evaluation_hash, payload["receipt"]["policy"]["evaluation_hash"]);
        assert_eq!(again.reason_code, payload["receipt"]["policy"]["reason_code"]);
    }
    let policy = |name: &str| golden(name)["receipt"]["policy"].clone();
    assert_eq!(policy("prediction_receipt.v1.denied")["decision"], "denied");
    assert!(policy("prediction_receipt.v2").get("pointer_revision").is_none());
    let pointed = policy("prediction_receipt.v2.pointer");
    assert_eq!((&pointed["artifact_variant"], &pointed["pointer_revision"]), (&json!("canary"), &json!(2)));
    let catalogued = golden("signature_catalog.v1");
    let hashes = signature().hashes();
    assert_eq!(hashes.schema_hash, catalogued["schema_hash"]);
    assert_eq!(hashes.prompt_hash, catalogued["prompt_hash"]);
    assert_eq!(hashes.program_hash, catalogued["program_hash"]);
}

fn signature() -> Signature {
    Signature::read(&golden("signature_catalog.v1")["signature"]).unwrap()
}

#[test]
fn artifacts_and_pointers_are_what_they_say() {
    for payload in all(Kind::Artifact, 1) {
        let artifact = Artifact::read(&payload["artifact"]).unwrap();
        assert_eq!(artifact.id(), text(&payload["artifact_id"]));
        assert_eq!(hash::canonical(&artifact.to_json()), hash::canonical(&payload["artifact"]));
        assert_eq!(artifact.bind(&signature()).unwrap().compiled_id, artifact.id());
    }
    for change in all(Kind::Pointer, 1) {
        for state in ["before", "after"] {
            assert_eq!(Pointer::read(&change[state]).unwrap().to_json(), change[state]);
        }
    }
    let decision = golden("pointer_change.v1.decision")["decision"].clone();
    assert_eq!(Guard::read(&decision["evidence"]["guard"]).unwrap().to_json(), decision["evidence"]["guard"]);
    let covered =
        json!({"verdict": "promote", "reason_code": policy::GUARD_PROMOTED, "evidence": decision["evidence"]});
    assert_eq!(hash::of(&covered), text(&decision["evaluation_hash"]));
    assert_eq!(decision["reason_codes_version"], policy::REASONS_VERSION);
}

#[test]
fn reports_are_what_they_say() {
    let report = golden("compile_report.v1");
    assert!(Job::read(&report["job"]).is_ok());
    let [signature, job, dataset, selected] =
        ["signature_id", "job_hash", "dataset_hash", "selected_artifact"].map(|field| text(&report[field]));
    assert_eq!(compile::report_id(&signature, &job, &dataset, &selected), text(&report["report_id"]));
    let eval = golden("eval_report.v1");
    let [report, artifact] = ["report_id", "artifact_id"].map(|field| text(&eval[field]));
    assert_eq!(compile::eval_id(&report, &artifact, Slice::Test), text(&eval["eval_id"]));
    assert!(Metric::read(&eval["metric"]).is_ok());
    let manifest = golden("prediction_dataset.v1");
    assert!(dataset::Split::read(&manifest["split"]).is_ok());
    let counts = ["train", "holdout", "test"].map(|part| manifest["counts"][part].as_u64().unwrap());
    assert_eq!(Some(counts.iter().sum()), manifest["counts"]["total"].as_u64());
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
