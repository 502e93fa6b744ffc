//! The governance decision on a run: whether what it did may be relied on. A function of what is on record.

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::metadata::{self, ContractError, Stored};
use actum_kernel::Event;
use actum_ledger::run::{Run, RunState};
use serde_json::{Map, Value, json};

use crate::agreement::BadAgreement;

const SCHEMA_VERSION: u64 = 1;

/// What is known of a run's receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Governed {
    Valid { path: String },
    Invalid(String),
}

/// `{decisionSchemaVersion, decision, reasonCodes, reasons, runId, contract, artifactRefs, decisionHash}`.
pub fn govern(run: &Run, events: &[Event], receipt: &Governed, refusal: Option<&BadAgreement>) -> Value {
    let mut reasons: Vec<(&str, String, Value)> = Vec::new();
    let fields: Map<String, Value> = serde_json::from_str(&run.metadata).unwrap_or_default();
    match metadata::check(&fields) {
        Ok(Stored::Contract(_)) => {}
        Ok(Stored::Legacy) => {
            reasons.push(("EXECUTION_CONTRACT_MISSING", "the run has no contract".into(), Value::Null));
        }
        Err(e @ ContractError::Unsupported { .. }) => {
            reasons.push(("UNSUPPORTED_CONTRACT", e.to_string(), e.details()));
        }
        Err(e @ ContractError::Mismatch { .. }) => reasons.push(("CONTRACT_MISMATCH", e.to_string(), e.details())),
    }
    if let Some(refusal) = refusal.filter(|refusal| reasons.iter().all(|(known, ..)| *known != refusal.code())) {
        reasons.push((refusal.code(), refusal.to_string(), refusal.details()));
    }
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    // What a worker refused stays refused, whatever the metadata says now.
    if let Some(code @ ("UNSUPPORTED_CONTRACT" | "CONTRACT_MISMATCH")) = outcome["error"]["code"].as_str()
        && reasons.iter().all(|(known, ..)| *known != code)
    {
        let known = if code == "CONTRACT_MISMATCH" { "CONTRACT_MISMATCH" } else { "UNSUPPORTED_CONTRACT" };
        let message = outcome["error"]["message"].as_str().unwrap_or_default().to_owned();
        reasons.push((known, message, outcome["error"]["details"].clone()));
    }
    if run.state != RunState::Succeeded {
        let details = json!({"state": run.state.word(), "error": outcome["error"]});
        reasons.push(("RUN_NOT_COMPLETE", format!("the run is {}", run.state), details));
    }
    let failed = |event: &Event| matches!(event, Event::Checked(checked) if !checked.failures.is_empty());
    let last =
        |heavy: bool| events.iter().rev().find(|e| matches!(e, Event::Checked(checked) if checked.heavy == heavy));
    let tested = events.iter().rev().find_map(|e| if let Event::Tested(tested) = e { Some(tested) } else { None });
    if last(false).is_none() && last(true).is_none() && tested.is_none() {
        let message = "nothing was validated: both validations are off, and there is no test command";
        reasons.push(("RUN_NOT_VALIDATED", message.into(), Value::Null));
    }
    let failing: Vec<&str> = [("light validation", last(false)), ("heavy validation", last(true))]
        .into_iter()
        .filter(|(_, event)| event.is_some_and(failed))
        .map(|(word, _)| word)
        .chain(tested.filter(|tested| !tested.passed).map(|_| "tests"))
        .collect();
    if !failing.is_empty() {
        reasons.push((
            "RUN_VALIDATION_FAILED",
            format!("{} failed", failing.join(" and ")),
            json!({"failed": failing}),
        ));
    }
    let pinned = events.iter().any(|e| matches!(e, Event::Frozen { .. }))
        && events.iter().any(|e| matches!(e, Event::Published { .. }));
    if run.state == RunState::Succeeded && (!pinned || outcome["undone"] == true) {
        let message =
            if pinned { "the result was taken back" } else { "the result is no published state of the workspace" };
        reasons.push(("RUN_UNPINNED", message.into(), Value::Null));
    }
    let mut artifacts = Vec::new();
    match receipt {
        Governed::Valid { path } => artifacts.push(json!({"kind": "receipt", "path": path})),
        Governed::Invalid(why) => reasons.push(("RECEIPT_INVALID", why.clone(), Value::Null)),
    }
    let material = fields.get(metadata::MATERIAL).cloned().unwrap_or(Value::Null);
    let contract = json!({
        "schemaVersion": fields.get(metadata::SCHEMA_VERSION),
        "hash": fields.get(metadata::HASH).cloned().unwrap_or_else(|| json!("missing")),
        "determinismPolicyVersion": material["determinismPolicyVersion"],
        "plannerPolicyVersion": material["plannerPolicyVersion"],
        "correctionRecipeVersion": material["correctionRecipeVersion"],
        "validationPolicyVersion": material["validationPolicyVersion"],
        "randomnessSeed": material.get("randomnessSeed").cloned().unwrap_or_else(|| json!("missing")),
    });
    let mut decision = json!({
        "decisionSchemaVersion": SCHEMA_VERSION,
        "decision": if reasons.is_empty() { "PASS" } else { "FAIL" },
        "reasonCodes": reasons.iter().map(|(code, ..)| *code).collect::<Vec<_>>(),
        "reasons": reasons.iter()
            .map(|(code, message, details)| json!({"code": code, "message": message, "details": details}))
            .collect::<Vec<_>>(),
        "runId": run.id,
        "contract": contract,
        "artifactRefs": artifacts,
    });
    let hash = canon::canonical(&decision).map(|text| Digest::sha256(&text).to_hex()).unwrap_or_default();
    decision["decisionHash"] = json!(hash);
    decision
}
