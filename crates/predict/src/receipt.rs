//! Receipts: what is left of a call, or of a prediction, for whoever wants to know later. Made for success, denial and
//! failure alike; kept by `store` in the same transaction as the money. Never says what was asked, only its hash.

use std::fmt;

use actum_contract::digest::Digest;
use serde::Serialize;
use serde_json::{Value, json};

use crate::hash;
use crate::policy::{Decision, Inputs, REASONS_VERSION};
use crate::protocol::Usage;
use crate::signature::{CATALOG_VERSION, Hashes};
use crate::trace::Trace;

/// Hex digits of the hash that name a receipt.
const ID_DIGITS: usize = 24;

/// What is covered by that hash is about as long.
const COVERED_BYTES: usize = 2 << 10;

/// Bytes of a message of an error that are kept.
const MESSAGE_CHARS_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One call of a model.
    Call,
    /// What several calls came to.
    Prediction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Succeeded,
    Denied,
    Failed,
    /// An answer, made with less than it needed.
    Partial,
    /// Sent, and nobody knows what came of it.
    Unknown,
}

impl Status {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Partial => "partial",
            Self::Unknown => "unknown",
        }
    }
}

/// The money of a receipt, after it was settled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Budget {
    pub currency: String,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub spent: u64,
    pub reserved: u64,
    /// Without: no limit.
    pub remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Of the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrun: Option<u64>,
}

impl Budget {
    /// With the tokens of a usage.
    pub fn of(currency: &str, usage: &Usage) -> Self {
        Self {
            currency: currency.to_owned(),
            input_tokens: usage.input,
            output_tokens: usage.output,
            total_tokens: usage.input.saturating_add(usage.output),
            ..Self::default()
        }
    }
}

/// Times as they were read by whoever asked; RFC 3339.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Timing {
    pub started_at: String,
    pub completed_at: String,
    pub latency_ms: u64,
}

/// Why there is no answer, or only a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub reason_code: String,
    pub message: String,
}

/// All that a receipt is made from.
#[derive(Debug, Clone)]
pub struct Receipt<'r> {
    pub kind: Kind,
    pub run_id: &'r str,
    /// Of the call in its run: two equal calls are two receipts.
    pub ordinal: u64,
    pub prediction_id: &'r str,
    pub parent_prediction_id: Option<&'r str>,
    pub signature_id: &'r str,
    pub strategy_id: &'r str,
    pub hashes: &'r Hashes,
    pub params_hash: &'r str,
    /// Without an answer: of null.
    pub output_hash: Option<&'r str>,
    pub inputs: &'r Inputs,
    pub decision: &'r Decision,
    pub budget: Budget,
    pub timing: Timing,
    pub trace: Option<&'r Trace>,
    pub status: Status,
    pub error: Option<Failure>,
    pub provider: Option<&'r str>,
    pub model: Option<&'r str>,
    pub protocol: Option<&'r str>,
}

/// What the id of a receipt covers, in the order of canonical JSON. Timing is not among it.
const COVERED: [&str; 15] = [
    "budget",
    "compiled_id",
    "ordinal",
    "output_hash",
    "params_hash",
    "policy",
    "prediction_id",
    "program_hash",
    "prompt_hash",
    "run_id",
    "schema_hash",
    "signature_id",
    "strategy_id",
    "trace_hash",
    "trace_ref",
];

const TEXTS: [&str; 12] = [
    "receipt_id",
    "kind",
    "run_id",
    "prediction_id",
    "signature_id",
    "strategy_id",
    "compiled_id",
    "schema_hash",
    "prompt_hash",
    "program_hash",
    "params_hash",
    "output_hash",
];
const HASHES: [&str; 5] = ["schema_hash", "prompt_hash", "program_hash", "params_hash", "output_hash"];
const KINDS: [&str; 2] = ["call", "prediction"];
const STATUSES: [&str; 5] = ["succeeded", "denied", "failed", "partial", "unknown"];

/// Fields inside of others; those that may be null have to be there all the same.
const POLICY: [&str; 13] = [
    "policy_id",
    "authorization_id",
    "authorization_mode",
    "decision",
    "reason_code",
    "reason_codes_version",
    "evaluation_hash",
    "compiled_id",
    "strategy_id",
    "artifact_variant",
    "canary_percent",
    "rollout_bucket",
    "inputs",
];
const BUDGET: [&str; 7] =
    ["currency", "input_tokens", "output_tokens", "total_tokens", "spent", "reserved", "remaining"];
const TIMING: [&str; 3] = ["started_at", "completed_at", "latency_ms"];

impl Receipt<'_> {
    /// The receipt as it is kept.
    pub fn to_json(&self) -> Value {
        let compiled_id = compiled_id(self.signature_id, self.strategy_id);
        let output_hash = self.output_hash.map_or_else(|| hash::of(&Value::Null), str::to_owned);
        let mut receipt = json!({
            "kind": self.kind,
            "run_id": self.run_id,
            "ordinal": self.ordinal,
            "prediction_id": self.prediction_id,
            "signature_id": self.signature_id,
            "strategy_id": self.strategy_id,
            "compiled_id": compiled_id,
            "schema_hash": self.hashes.schema_hash,
            "prompt_hash": self.hashes.prompt_hash,
            "program_hash": self.hashes.program_hash,
            "params_hash": self.params_hash,
            "output_hash": output_hash,
            "policy": {
                "policy_id": self.inputs.policy_id,
                "authorization_id": self.inputs.authorization_id,
                "authorization_mode": self.inputs.authorization_mode,
                "decision": self.decision.decision,
                "reason_code": self.decision.reason_code,
                "reason_codes_version": self.decision.reason_codes_version,
                "evaluation_hash": self.decision.evaluation_hash,
                "compiled_id": compiled_id,
                "strategy_id": self.strategy_id,
                "artifact_variant": "primary",
                "canary_percent": 0,
                "rollout_bucket": null,
                "inputs": self.inputs,
            },
            "budget": self.budget,
            "timing": self.timing,
            "catalog_version": CATALOG_VERSION,
            "status": self.status,
        });
        let texts = [
            ("parent_prediction_id", self.parent_prediction_id),
            ("provider", self.provider),
            ("model", self.model),
            ("protocol", self.protocol),
        ];
        for (field, text) in texts {
            if let Some(text) = text {
                receipt[field] = json!(text);
            }
        }
        if let Some(trace) = self.trace {
            receipt["trace_ref"] = json!(trace.trace_ref);
            receipt["trace_hash"] = json!(trace.trace_hash);
            receipt["trace_storage"] = json!(trace.storage.word());
            receipt["trace_artifact_uri"] = json!(trace.artifact_uri);
        }
        if let Some(Failure { reason_code, message }) = &self.error {
            let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
            receipt["error"] = json!({"reason_code": reason_code, "message": message});
        }
        receipt["receipt_id"] = json!(id(&receipt));
        receipt
    }
}

/// What answers where nothing was compiled.
pub fn compiled_id(signature_id: &str, strategy_id: &str) -> String {
    format!("catalog:{signature_id}:{strategy_id}")
}

/// The id that a receipt has to have.
pub fn id(receipt: &Value) -> String {
    // Every call has one: written out by itself, so that nothing is copied.
    let mut text = Vec::with_capacity(COVERED_BYTES);
    for field in COVERED {
        text.extend_from_slice(if text.is_empty() { b"{\"" } else { b",\"" });
        text.extend_from_slice(field.as_bytes());
        text.extend_from_slice(b"\":");
        text.extend_from_slice(&hash::canonical(&receipt[field]));
    }
    text.push(b'}');
    format!("pred_{}", &Digest::sha256(&text).to_hex()[..ID_DIGITS])
}

/// Whether a receipt is whole, and its id its own; if not, every flaw.
pub fn check(receipt: &Value) -> Result<(), Vec<String>> {
    let mut flaws = Vec::new();
    let mut need = |field: fmt::Arguments<'_>, is_good: bool, expected: &str| {
        if !is_good {
            flaws.push(format!("{field} must be {expected}"));
        }
    };
    for field in TEXTS {
        need(format_args!("{field}"), receipt[field].as_str().is_some_and(|text| !text.is_empty()), "text");
    }
    for field in HASHES {
        need(format_args!("{field}"), receipt[field].as_str().is_some_and(is_hash), "a SHA-256 in hex");
    }
    for field in ["ordinal", "catalog_version"] {
        need(format_args!("{field}"), receipt[field].is_u64(), "a whole number");
    }
    let one_of = |value: &Value, words: &[&str]| value.as_str().is_some_and(|word| words.contains(&word));
    need(format_args!("kind"), one_of(&receipt["kind"], &KINDS), "call or prediction");
    need(format_args!("status"), one_of(&receipt["status"], &STATUSES), &STATUSES.join(", "));
    for (part, fields) in [("policy", &POLICY[..]), ("budget", &BUDGET), ("timing", &TIMING)] {
        for field in fields {
            let is_there = receipt[part].as_object().is_some_and(|members| members.contains_key(*field));
            need(format_args!("{part}.{field}"), is_there, "there");
        }
    }
    let policy = &receipt["policy"];
    need(format_args!("policy.decision"), one_of(&policy["decision"], &["allowed", "denied"]), "allowed or denied");
    need(
        format_args!("policy.reason_codes_version"),
        policy["reason_codes_version"] == REASONS_VERSION,
        REASONS_VERSION,
    );
    need(
        format_args!("policy.evaluation_hash"),
        policy["evaluation_hash"].as_str().is_some_and(is_hash),
        "a SHA-256 in hex",
    );
    for field in ["input_tokens", "output_tokens", "total_tokens", "spent", "reserved"] {
        need(format_args!("budget.{field}"), receipt["budget"][field].is_u64(), "a whole number");
    }
    for field in ["trace_ref", "trace_hash", "trace_storage"] {
        let is_traced = receipt.get("trace_ref").is_some();
        need(
            format_args!("{field}"),
            receipt.get(field).is_some_and(Value::is_string) == is_traced,
            "there with the others",
        );
    }
    let own = id(receipt);
    need(format_args!("receipt_id"), receipt["receipt_id"] == own.as_str(), &own);
    if flaws.is_empty() { Ok(()) } else { Err(flaws) }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use actum_contract::execution::Redactor;

    use super::*;
    use crate::policy::evaluate;
    use crate::{signature, trace};

    #[test]
    fn the_id_is_the_hash_of_what_it_covers() {
        let receipt = made(|_| {});
        let covered: serde_json::Map<String, Value> =
            COVERED.iter().map(|field| ((*field).to_owned(), receipt[*field].clone())).collect();
        assert_eq!(id(&receipt), format!("pred_{}", &hash::of(&Value::Object(covered))[..ID_DIGITS]));
        assert!(COVERED.is_sorted());
    }

    fn made(change: impl FnOnce(&mut Receipt<'_>)) -> Value {
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
            first["receipt_id"].as_str().unwrap().starts_with("pred_")
                && first["receipt_id"].as_str().unwrap().len() == 29
        );
        assert_eq!(id(|r| r.timing.latency_ms = 99), first["receipt_id"]);
        assert_ne!(id(|r| r.ordinal = 2), first["receipt_id"]);
        assert_ne!(id(|r| r.run_id = "run_2"), first["receipt_id"]);
        assert_ne!(id(|r| r.budget.spent = 1), first["receipt_id"]);
        assert_ne!(id(|r| r.trace = None), first["receipt_id"]);
    }

    #[test]
    fn what_is_missing_or_changed_is_found() {
        let good = made(|_| ());
        for field in TEXTS.into_iter().chain([
            "ordinal",
            "catalog_version",
            "status",
            "policy",
            "budget",
            "timing",
            "trace_hash",
        ]) {
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
}
