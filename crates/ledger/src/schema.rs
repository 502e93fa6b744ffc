//! JSON Schema of what may be appended, for other programs to check before they send.

use serde_json::{Value, json};

use crate::event::{self, Coherence, CoherencePolicy, State};
use crate::reserved;

/// The shape of an execution event. Rules between fields are in the description; the ledger checks all of them.
pub fn execution_event() -> Value {
    let text = json!({"type": "string", "pattern": "\\S"});
    let time = json!({"type": "string", "format": "date-time"});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "execution event",
        "description": "snapshotAt is at or before createdAt; failed needs error, cancelled needs cancelReason, neither has result; stale needs failed with COHERENCE_BLOCKED, retryable false.",
        "type": "object",
        "additionalProperties": false,
        "required": ["tenantId", "robotId", "module", "source", "type", "state", "createdAt", "payload", "lineage"],
        "properties": {
            "tenantId": text, "robotId": text,
            "module": {"const": event::MODULE}, "source": {"const": event::MODULE}, "type": {"const": event::TYPE},
            "state": {"enum": State::ALL.map(State::word)},
            "createdAt": time,
            "payload": {
                "type": "object",
                "required": ["executionId", "workflowVersion", "agentVersion", "executionContractVersion", "attempt",
                    "target", "action", "snapshotAt", "coherenceStatus", "dryRun"],
                "properties": {
                    "executionId": text, "workflowVersion": text, "agentVersion": text,
                    "executionContractVersion": {"const": event::CONTRACT_VERSION},
                    "attempt": {"type": "integer", "minimum": 1},
                    "target": text, "action": text, "snapshotAt": time,
                    "coherenceStatus": {"enum": Coherence::ALL.map(Coherence::word)},
                    "coherencePolicy": {"enum": CoherencePolicy::ALL.map(CoherencePolicy::word), "default": "block"},
                    "dryRun": {"type": "boolean"},
                    "result": {"type": "object"},
                    "error": {
                        "type": "object",
                        "required": ["code", "message", "retryable"],
                        "properties": {"code": text, "message": text, "retryable": {"type": "boolean"}},
                    },
                    "cancelReason": text,
                    "externalRefs": {"type": "object"},
                    "durationMs": {"type": "number", "minimum": 0},
                },
            },
            "lineage": lineage(true),
        },
    })
}

/// The shape of every other entry.
pub fn ledger_entry() -> Value {
    let text = json!({"type": "string", "pattern": "\\S"});
    let ours: Vec<_> = std::iter::once(event::TYPE).chain(reserved::types()).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ledger entry",
        "type": "object",
        "additionalProperties": false,
        "required": ["tenantId", "module", "source", "type", "payload"],
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
            "tenantId": text, "robotId": text, "module": text, "source": text,
            "type": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}$", "not": {"enum": ours}},
            "state": text,
            "createdAt": {"type": "string", "format": "date-time"},
            "payload": {"type": "object"},
            "lineage": lineage(false),
        },
    })
}

fn lineage(required: bool) -> Value {
    let ids = json!({"type": "array", "items": {"type": "string", "pattern": "\\S"}, "minItems": u8::from(required)});
    json!({
        "type": "object",
        "required": if required { vec!["dependsOnLedgerIds"] } else { vec![] },
        "properties": {
            "dependsOnLedgerIds": ids,
            "supersedes": {"type": "array", "items": {"type": "string", "pattern": "\\S"}},
            "rerunOfExecutionId": {"type": "string", "pattern": "\\S"},
        },
    })
}
