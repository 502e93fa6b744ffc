//! What commands answer with, as JSON Schemas: the fields that others may rely on. More fields may come with later versions, so
//! none of them forbids others. Asked by `openapi`; the tests hold real answers against them.

use actum_ledger::run::RunState;
use serde_json::{Map, Value, json};

/// The schema of what a command answers.
pub(super) fn schema(command: &[&str]) -> Value {
    match RESULTS.iter().find(|(of, _)| *of == command) {
        Some((_, made)) => made(),
        None => json!({}),
    }
}

/// What several of them refer to.
pub(super) fn shared() -> Map<String, Value> {
    [("RunResult", run()), ("RunStatus", status()), ("LedgerEntry", entry()), ("Authorization", authorization())]
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}

type Made = fn() -> Value;

/// Commands by the words that name them. What is not here may answer with any JSON.
const RESULTS: &[(&[&str], Made)] = &[
    (&["run"], || list("runs", shared_as("RunResult"))),
    (&["list"], || paged("runs", "next", shared_as("RunResult"))),
    (&["status"], || {
        let counts = object(&["runs", "metrics"], json!({"runs": counts(), "metrics": {"type": "object"}}));
        json!({"anyOf": [shared_as("RunStatus"), counts]})
    }),
    (&["resume"], || object(&["run_id"], json!({"run_id": id(), "forked": {"type": "boolean"}}))),
    (&["cancel"], || object(&["cancelled"], json!({"run_id": id(), "cancelled": {"type": "boolean"}}))),
    (&["gate"], || {
        object(
            &["decision", "decisionHash", "reasonCodes", "runId"],
            json!({
                "decision": {"type": "string", "enum": ["PASS", "FAIL"]}, "decisionHash": digest(), "runId": id(),
                "reasonCodes": {"type": "array", "items": {"type": "string"}}, "reasons": {"type": "array"},
            }),
        )
    }),
    (&["verify"], || {
        object(
            &["valid", "checks"],
            json!({"valid": {"type": "boolean"}, "checks": {"type": "array", "items": check()}}),
        )
    }),
    (&["receipt"], || {
        let signature = object(&["keyid", "sig"], json!({"keyid": {"type": "string"}, "sig": {"type": "string"}}));
        object(
            &["payload", "payloadType", "signatures"],
            json!({"payload": {"type": "string"}, "payloadType": {"type": "string"}, "signatures": {"type": "array", "items": signature}}),
        )
    }),
    (&["replay"], || {
        object(
            &["identical"],
            json!({"identical": {"type": "boolean"}, "expected_hash": maybe("string"), "actual_hash": maybe("string")}),
        )
    }),
    (&["contract", "show"], || {
        object(
            &["hash"],
            json!({"hash": maybe("string"), "schemaVersion": maybe("integer"), "fallbackUsed": maybe("boolean")}),
        )
    }),
    (&["tool", "call"], || {
        object(
            &["status", "evidence"],
            json!({
                "execution_id": {"type": "string"}, "status": {"type": "string"}, "exit_code": maybe("integer"),
                "interpretation": {"type": ["object", "null"]}, "evidence": {"type": "object"},
            }),
        )
    }),
    (&["tool", "list"], || list("tools", any_object())),
    (&["adapter", "list"], || list("adapters", any_object())),
    (&["approvals", "list"], || list("approvals", any_object())),
    (&["approvals", "show"], || {
        object(
            &["id", "state", "tool_id", "wants"],
            json!({
                "id": {"type": "string"}, "state": {"type": "string"}, "tool_id": {"type": "string"},
                "wants": {"type": "array", "items": {"type": "string"}}, "call": {"type": ["object", "null"]},
            }),
        )
    }),
    (&["signature", "list"], || list("signatures", any_object())),
    (&["artifact", "list"], || list("artifacts", any_object())),
    (&["pointer", "list"], || list("pointers", any_object())),
    (&["trace", "list"], || list("receipts", any_object())),
    (&["dataset", "list"], || list("datasets", any_object())),
    (&["policy", "reasons"], || {
        let reason = object(
            &["code", "number", "decision", "domain"],
            json!({"code": {"type": "string"}, "number": {"type": "integer"}, "decision": {"type": "string"}, "domain": {"type": "string"}}),
        );
        list("reasons", reason)
    }),
    (&["spend", "list"], || list("authorizations", shared_as("Authorization"))),
    (&["spend", "authorize"], || shared_as("Authorization")),
    (&["spend", "reservations"], || list("reservations", any_object())),
    (&["ledger", "list"], || paged("entries", "next_cursor", shared_as("LedgerEntry"))),
    (&["ledger", "show"], || shared_as("LedgerEntry")),
    (&["ledger", "consistency"], || {
        let size = json!({"type": "integer", "minimum": 1});
        object(
            &["from", "size", "root", "hashes"],
            json!({"from": size, "size": size, "root": digest(), "hashes": {"type": "array", "items": digest()}}),
        )
    }),
    (&["ledger", "checkpoint"], || {
        object(
            &["checkpoint", "origin", "root", "size"],
            json!({"checkpoint": {"type": "string"}, "origin": {"type": "string"}, "root": digest(), "size": {"type": "integer", "minimum": 0}}),
        )
    }),
    (&["ledger", "verify"], || object(&["valid"], json!({"valid": {"type": "boolean"}, "ledgers": {"type": "array"}}))),
    (&["ledger", "rejected"], || list("rejected", any_object())),
    (&["snapshot", "list"], || list("snapshots", snapshot())),
    (&["snapshot", "freeze"], snapshot),
    (&["token", "list"], || list("tokens", token())),
    (&["token", "create"], token),
    (&["schema"], any_object),
    (&["key", "show"], || {
        object(
            &["algorithm", "keyid", "public"],
            json!({"algorithm": {"const": "ed25519"}, "keyid": digest(), "public": digest(), "pem": {"type": "string"}}),
        )
    }),
];

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn any_object() -> Value {
    json!({"type": "object"})
}

fn list(name: &str, item: Value) -> Value {
    let mut shown = object(&[name], json!({}));
    shown["properties"][name] = json!({"type": "array", "items": item});
    shown
}

/// A list of which there may be more.
fn paged(name: &str, next: &str, item: Value) -> Value {
    let mut shown = list(name, item);
    shown["properties"][next] = self::next();
    shown
}

/// Where the next page begins.
pub(super) fn next() -> Value {
    let text = "Where the next page begins, for `cursor`; nothing if this is the last.";
    json!({"type": ["string", "null"], "description": text})
}

fn shared_as(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn maybe(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn id() -> Value {
    json!({"type": "string", "minLength": 1})
}

fn digest() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn state() -> Value {
    json!({"type": "string", "enum": RunState::ALL.map(RunState::word)})
}

fn counts() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}})
}

fn check() -> Value {
    object(&["name", "ok"], json!({"name": {"type": "string"}, "ok": maybe("boolean"), "detail": maybe("string")}))
}

fn run() -> Value {
    let files = json!({"type": "array", "items": {"type": "string"}});
    object(
        &["run_id", "item_id"],
        json!({
            "run_id": id(), "item_id": id(), "contract_hash": maybe("string"), "state": state(),
            "status": {"type": ["string", "null"]}, "attempt": {"type": "integer", "minimum": 0}, "receipt_id": maybe("string"),
            "modified_files": files, "created_files": files, "deleted_files": files, "output_hash": maybe("string"),
            "artifact_hashes": {"type": "object"}, "metrics": maybe("object"), "error_code": maybe("string"), "created_at": time(),
        }),
    )
}

fn status() -> Value {
    object(
        &["run_id", "item_id", "state", "attempt", "contract", "governance"],
        json!({
            "run_id": id(), "item_id": id(), "agent_id": {"type": "string"}, "state": state(),
            "attempt": {"type": "integer", "minimum": 0}, "created_at": time(), "updated_at": time(),
            "contract": object(&["schemaVersion", "hash", "material", "effectiveExecutionConfig", "fallbackUsed", "fallbackFields"], json!({})),
            "governance": object(&["supported"], json!({"supported": {"type": "boolean"}, "code": {"type": "string"}})),
            "events": {"type": "array", "items": object(&["n", "event", "at"], json!({"n": {"type": "integer"}, "at": time()}))},
            "result": {}, "error": object(&["code", "message"], json!({"code": {"type": "string"}, "message": {"type": "string"}})),
            "warnings": {"type": "array"},
        }),
    )
}

fn entry() -> Value {
    object(
        &["id", "tenantId", "type", "seq", "hash", "prev"],
        json!({
            "id": id(), "tenantId": id(), "type": {"type": "string"}, "module": {"type": "string"}, "source": {"type": "string"},
            "seq": {"type": "integer", "minimum": 0}, "hash": digest(), "prev": digest(), "createdAt": time(), "recordedAt": time(),
        }),
    )
}

fn authorization() -> Value {
    let amount = json!({"type": ["integer", "null"], "minimum": 0});
    object(
        &["authorization_id", "currency", "mode"],
        json!({
            "authorization_id": id(), "currency": {"type": "string"}, "mode": {"type": "string"}, "max_total": amount,
            "max_per_call": amount, "max_per_day": amount, "spent": amount, "reserved": amount,
        }),
    )
}

fn snapshot() -> Value {
    let number = json!({"type": "integer", "minimum": 0});
    object(&["id", "bytes", "files"], json!({"id": digest(), "bytes": number, "files": number}))
}

/// Without its secret, but where it is made.
fn token() -> Value {
    object(
        &["id", "name", "role", "tenant"],
        json!({
            "id": {"type": "string", "pattern": "^[0-9a-f]{16}$"}, "name": {"type": "string"}, "tenant": id(),
            "role": {"type": "string", "enum": ["reader", "operator", "approver", "admin"]},
            "token": {"type": "string", "pattern": "^actum_[0-9a-f]{16}_[0-9a-f]{64}$"}, "expires_at": {"type": ["string", "null"]},
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::super::shape::forms;
    use super::*;

    #[test]
    fn every_result_belongs_to_a_command_over_http_or_to_tokens() {
        for (command, made) in RESULTS {
            let is_known = forms().iter().any(|form| form.route.command == *command) || command[0] == "token";
            assert!(is_known, "{command:?}");
            assert!(made().is_object());
        }
    }
}
