//! Documents to append: valid unless a test makes them otherwise.

use actum_ledger::draft::{self, Submission};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A dependency for events to stand on.
pub fn signal(tenant: &str, id: &str) -> Value {
    json!({
        "id": id, "tenantId": tenant, "module": "test", "source": "test", "type": "signal",
        "createdAt": "2025-01-01T00:00:00Z", "payload": {"note": "a signal"}
    })
}

/// An execution event that may follow the usual path: coherent, dry run, one dependency called `signal`.
pub fn event(tenant: &str, execution: &str, attempt: u64, state: &str) -> Value {
    let mut event = json!({
        "tenantId": tenant, "robotId": "r-1", "module": "agent-builder", "source": "agent-builder",
        "type": "execution_event", "state": state, "createdAt": "2025-01-19T10:15:30.000Z",
        "payload": {
            "executionId": execution, "workflowVersion": "v1", "agentVersion": "v1", "executionContractVersion": "v1",
            "attempt": attempt, "target": "site_builder", "action": "plan_site_plan",
            "snapshotAt": "2025-01-19T10:00:00.000Z", "coherenceStatus": "coherent", "dryRun": true
        },
        "lineage": {"dependsOnLedgerIds": ["signal"]}
    });
    match state {
        "failed" => event["payload"]["error"] = json!({"code": "X", "message": "went wrong", "retryable": true}),
        "cancelled" => event["payload"]["cancelReason"] = json!("asked to"),
        "succeeded" => event["payload"]["result"] = json!({"summary": "done"}),
        _ => {}
    }
    event
}

/// An event of about `bytes` bytes, for measurements.
pub fn padded(tenant: &str, execution: &str, bytes: usize) -> Value {
    let mut event = event(tenant, execution, 1, "planned");
    let now = event.to_string().len();
    event["payload"]["externalRefs"] = json!({"padding": "x".repeat(bytes.saturating_sub(now + 30))});
    event
}

/// A document as the ledger reads it, at a fixed time.
pub fn submission(value: Value) -> Submission {
    draft::read(value.to_string().as_bytes(), "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time"))
}
