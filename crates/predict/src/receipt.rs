//! Receipts: what is left of a call, or of a prediction, for whoever wants to know later. Made for success, denial and
//! failure alike; kept by `store` in the same transaction as the money. Never says what was asked, only its hash.

use std::fmt;

use actum_contract::digest::Digest;
use serde::Serialize;
use serde_json::{Value, json};

use crate::hash;
use crate::pointer::{BUCKET_ALGO, Pointer, Selection};
use crate::policy::{Decision, Inputs, REASONS_VERSION};
use crate::protocol::Usage;
use crate::signature::{CATALOG_VERSION, Hashes};
use crate::trace::Trace;

/// Of the form receipts are written in. The first one did not say it.
pub const VERSION: u64 = 2;

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

/// How it came that this artifact was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    /// `primary`, `canary`, or `pinned`: named by whoever asked.
    pub variant: &'static str,
    pub canary_percent: u8,
    pub bucket: Option<u8>,
    pub seed: Option<String>,
    pub scope: Option<&'static str>,
    /// Of the pointer, if one has decided; without, a receipt says nothing of seed, scope and bucket algorithm.
    pub revision: Option<u64>,
}

/// As it is without a pointer.
impl Default for Rollout {
    fn default() -> Self {
        Self { variant: "primary", canary_percent: 0, bucket: None, seed: None, scope: None, revision: None }
    }
}

impl Rollout {
    /// What a pointer has selected, in this revision of it.
    pub fn of(pointer: &Pointer, selection: &Selection, revision: u64) -> Self {
        Self {
            variant: selection.variant.word(),
            canary_percent: pointer.canary_percent,
            bucket: selection.bucket,
            seed: Some(pointer.rollout_seed.clone()),
            scope: Some(selection.scope),
            revision: Some(revision),
        }
    }

    /// Of one that was named, whatever a pointer says.
    pub fn pinned() -> Self {
        Self { variant: "pinned", ..Self::default() }
    }
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
    /// What has answered: an artifact, or the signature by itself.
    pub compiled_id: &'r str,
    pub rollout: &'r Rollout,
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
/// Only where a pointer has decided.
const ROLLOUT: [&str; 4] = ["rollout_seed", "key_scope", "bucket_algo", "pointer_revision"];
const VARIANTS: [&str; 3] = ["primary", "canary", "pinned"];
const BUDGET: [&str; 7] =
    ["currency", "input_tokens", "output_tokens", "total_tokens", "spent", "reserved", "remaining"];
const TIMING: [&str; 3] = ["started_at", "completed_at", "latency_ms"];

impl Receipt<'_> {
    /// The receipt as it is kept.
    pub fn to_json(&self) -> Value {
        let (compiled_id, rollout) = (self.compiled_id, self.rollout);
        let output_hash = self.output_hash.map_or_else(|| hash::of(&Value::Null), str::to_owned);
        let mut receipt = json!({
            "receipt_version": VERSION,
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
                "artifact_variant": rollout.variant,
                "canary_percent": rollout.canary_percent,
                "rollout_bucket": rollout.bucket,
                "inputs": self.inputs,
            },
            "budget": self.budget,
            "timing": self.timing,
            "catalog_version": CATALOG_VERSION,
            "status": self.status,
        });
        if let Some(revision) = rollout.revision {
            let policy = &mut receipt["policy"];
            policy["rollout_seed"] = json!(rollout.seed);
            policy["key_scope"] = json!(rollout.scope);
            policy["bucket_algo"] = json!(BUCKET_ALGO);
            policy["pointer_revision"] = json!(revision);
        }
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
    let version = receipt.get("receipt_version");
    let is_known = version.is_none_or(|version| *version == VERSION);
    need(
        format_args!("receipt_version"),
        is_known,
        &format!("{VERSION} or missing; if it is newer, use a newer actum"),
    );
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
    need(
        format_args!("policy.artifact_variant"),
        one_of(&policy["artifact_variant"], &VARIANTS),
        "primary, canary or pinned",
    );
    let up_to = |value: &Value, max: u64| value.as_u64().is_some_and(|n| n <= max);
    need(format_args!("policy.canary_percent"), up_to(&policy["canary_percent"], 100), "a whole number from 0 to 100");
    let bucket = &policy["rollout_bucket"];
    need(format_args!("policy.rollout_bucket"), bucket.is_null() || up_to(bucket, 99), "from 0 to 99, or null");
    if ROLLOUT.iter().any(|field| !policy[*field].is_null()) {
        for field in &ROLLOUT[..3] {
            need(format_args!("policy.{field}"), policy[*field].is_string(), "text, there with the others");
        }
        let revision = &policy["pointer_revision"];
        need(format_args!("policy.pointer_revision"), revision.is_u64(), "a whole number, there with the others");
    }
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

pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests;
