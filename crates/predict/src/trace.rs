//! Traces: how an answer came about, without secrets, under a name made from its content.
//!
//! Made by whoever asked; small ones stand in the receipt's row, large ones go to the blobs. Never stores anything itself.

use actum_contract::digest::Digest;
use actum_contract::execution::Redactor;
use serde_json::{Value, json};

use crate::{depth, hash, sanitise};

/// Largest trace that is kept in place.
pub const INLINE_BYTES_MAX: usize = 3_500;

/// Levels of a trace that is kept in place: what stands around it has some too, and every reader has its own bound.
const INLINE_DEPTH_MAX: usize = 32;

/// Hex digits of the hash that name a trace within its run.
const ID_DIGITS: usize = 20;

/// Names of fields that the summary of a large trace tells.
const KEYS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    Inline,
    External,
}

impl Storage {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::External => "external",
        }
    }
}

/// A trace that can be kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub trace_id: String,
    pub trace_ref: String,
    /// SHA-256 of `bytes`.
    pub trace_hash: String,
    pub signature_id: String,
    pub storage: Storage,
    /// Where it was put, if it was too large; whoever puts it there says so.
    pub artifact_uri: Option<String>,
    /// All of it, as canonical JSON.
    pub bytes: Vec<u8>,
    /// All of it, or what it is about.
    pub inline: Value,
}

/// Takes out what must not be kept, and names what is left.
pub fn capture(run_id: &str, signature_id: &str, payload: &Value, redactor: &Redactor) -> Trace {
    let clean = sanitise::sanitise(payload, redactor);
    let bytes = hash::canonical(&clean);
    let trace_hash = Digest::sha256(&bytes).to_hex();
    let trace_id = trace_hash[..ID_DIGITS].to_owned();
    let is_inline = bytes.len() <= INLINE_BYTES_MAX && !depth::is_deeper(&clean, INLINE_DEPTH_MAX);
    let (storage, inline) = match is_inline {
        true => (Storage::Inline, clean),
        false => (Storage::External, summary(signature_id, &clean, &trace_hash, bytes.len())),
    };
    Trace {
        trace_ref: format!("trace:{run_id}:{trace_id}"),
        trace_id,
        trace_hash,
        signature_id: signature_id.to_owned(),
        storage,
        artifact_uri: None,
        bytes,
        inline,
    }
}

fn summary(signature_id: &str, payload: &Value, trace_hash: &str, bytes: usize) -> Value {
    let mut keys: Vec<&String> = payload.as_object().into_iter().flatten().map(|(key, _)| key).collect();
    keys.sort();
    let keys: Vec<String> = keys.into_iter().take(KEYS_MAX).map(|key| key.chars().take(64).collect()).collect();
    let word = |field: &str| payload.get(field).filter(|value| value.is_string() || value.is_number()).cloned();
    json!({
        "summary": {
            "strategy_id": word("strategy_id"),
            "signature_id": signature_id,
            "max_iterations": word("max_iterations"),
            "keys": keys,
        },
        "hash": trace_hash,
        "offloaded_bytes": bytes,
    })
}

impl Trace {
    /// What is kept in place.
    pub fn to_json(&self) -> Value {
        self.clone().into_json()
    }

    /// The same of a trace that nobody needs any more.
    pub fn into_json(self) -> Value {
        let mut kept = json!({
            "trace_id": self.trace_id,
            "trace_ref": self.trace_ref,
            "trace_hash": self.trace_hash,
            "storage": self.storage.word(),
            "artifact_uri": self.artifact_uri,
            "signature_id": self.signature_id,
        });
        kept["payload"] = self.inline;
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_trace_stays_and_a_large_one_leaves_a_summary() {
        let redactor = Redactor::new(["topsecret"]);
        let small = capture("run_1", "a/b.v1", &json!({"said": "topsecret", "n": 1.0}), &redactor);
        assert_eq!(small.bytes, br#"{"n":1,"said":"[REDACTED]"}"#);
        assert_eq!((small.storage, &small.inline), (Storage::Inline, &json!({"said": "[REDACTED]", "n": 1.0})));
        assert_eq!(small.trace_ref, format!("trace:run_1:{}", &small.trace_hash[..20]));
        assert_eq!(small.trace_hash, Digest::sha256(&small.bytes).to_hex());
        let again = capture("run_1", "a/b.v1", &small.inline, &redactor);
        assert_eq!(again, small);

        let at = |bytes: usize| capture("r", "s", &json!({"x": "y".repeat(bytes - 8)}), &redactor);
        assert_eq!(
            (at(INLINE_BYTES_MAX).bytes.len(), at(INLINE_BYTES_MAX).storage),
            (INLINE_BYTES_MAX, Storage::Inline)
        );
        let large = at(INLINE_BYTES_MAX + 1);
        assert_eq!((large.storage, large.bytes.len()), (Storage::External, INLINE_BYTES_MAX + 1));
        assert_eq!(large.inline["summary"]["keys"], json!(["x"]));
        assert_eq!((&large.inline["hash"], &large.inline["offloaded_bytes"]), (&json!(large.trace_hash), &json!(3501)));
        assert!(large.to_json().to_string().len() < INLINE_BYTES_MAX);
    }

    #[test]
    fn a_deep_trace_leaves_a_summary_however_small_it_is() {
        let nested = |levels: usize| (1..levels).fold(json!({"x": 1}), |inner, _| json!({ "x": inner }));
        let at = |levels: usize| capture("r", "s", &nested(levels), &Redactor::new(["topsecret"]));
        assert_eq!(at(INLINE_DEPTH_MAX).storage, Storage::Inline);
        let deep = at(INLINE_DEPTH_MAX + 1);
        assert_eq!((deep.storage, &deep.inline["summary"]["keys"]), (Storage::External, &json!(["x"])));
        assert_eq!(deep.inline["hash"], json!(deep.trace_hash));
    }
}
