//! What the ledger is told about money beyond receipts: who authorized, who revoked, what was reconciled, what ran over.
//!
//! Made by the store, on its callers' side of the queue where all that they say is known there; and by `cli`, for a
//! reconciliation in somebody's name, and for tools behind which money is spent. Never decides anything.

use actum_contract::id::Tenant;
use serde_json::{Map, Value, json};

use super::{Authorization, How, Reservation};

pub const TYPE: &str = "spend_change";
pub const MODULE: &str = "spend";
pub const SOURCE: &str = "actum";

/// Why somebody did something, in bytes.
pub const REASON_BYTES_MAX: usize = 4 << 10;

/// The entry that says who issued an authorization. Its id follows from the authorization's.
pub fn document_of_authorization(new: &Authorization, actor: &str, why: &str) -> Value {
    let mut terms = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            terms.insert(key.to_owned(), value);
        }
    };
    put("id", json!(new.id));
    put("owner", json!(new.owner));
    put("autopilot", json!(new.autopilot));
    put("thread", json!(new.thread));
    put("run", json!(new.run));
    put("mode", json!(new.mode.word()));
    put("currency", json!(new.currency));
    put("max_total", json!(new.max_total));
    put("max_per_call", json!(new.max_per_call));
    put("max_per_day", json!(new.max_per_day));
    put("threshold", json!(new.threshold));
    put("within", json!(new.within));
    put("expires_ms", json!(new.expires_ms));
    let payload = json!({"action": "authorize", "authorization": terms, "actor": actor, "reason": why});
    document(&new.tenant, Some(format!("spend:authorization:{}:authorize", new.id)), payload)
}

/// The entry that says who revoked an authorization. Its id follows from the authorization's.
pub fn document_of_revocation(tenant: &Tenant, id: &str, actor: &str, why: &str) -> Value {
    let payload = json!({"action": "revoke", "authorization": {"id": id}, "actor": actor, "reason": why});
    document(tenant, Some(format!("spend:authorization:{id}:revoke")), payload)
}

/// The entry that says what a reservation was found to have come to. `reserved` is the reservation as it was found.
pub fn document_of_reconciliation(reserved: &Reservation, how: &How, actor: Option<&str>) -> Value {
    let (action, committed, reason) = match how {
        How::Commit { amount, .. } => ("reconcile_commit", *amount, reserved.reason.as_deref()),
        How::Release { reason } => ("reconcile_release", 0, Some(reason.as_str())),
        How::Unknown { reason } => ("reconcile_unknown", 0, Some(reason.as_str())),
    };
    let mut payload = settled(action, reserved, committed);
    if let How::Commit { correlation: Some(correlation), .. } = how {
        payload["correlation"] = json!(correlation);
    }
    if let Some(reason) = reason {
        payload["reason"] = json!(reason);
    }
    if let Some(actor) = actor {
        payload["actor"] = json!(actor);
    }
    document(&reserved.tenant, None, payload)
}

/// The entry that says that a call cost more than was reserved for it.
pub fn document_of_overrun(reserved: &Reservation, committed: u64) -> Value {
    let mut payload = settled("overrun", reserved, committed);
    payload["reason"] = json!(super::OVERRUN);
    document(&reserved.tenant, None, payload)
}

/// The action under which calls of tools that spend are on record.
pub const TOOL_SETTLEMENT: &str = "tool_settlement";

/// The id of the receipt of a call of a tool, which is that of its entry too.
pub fn tool_receipt_id(execution: &str) -> String {
    format!("spend:tool:{execution}")
}

/// The receipt of a call of a tool that spends, or was not allowed to. Its id follows from the execution's.
pub fn document_of_tool_settlement(
    tenant: &Tenant,
    robot: Option<&str>,
    execution: &str,
    mut told: Map<String, Value>,
) -> Value {
    told.insert("action".to_owned(), json!(TOOL_SETTLEMENT));
    let mut document = document(tenant, Some(tool_receipt_id(execution)), Value::Object(told));
    if let Some(robot) = robot {
        document["robotId"] = json!(robot);
    }
    document
}

fn settled(action: &str, reserved: &Reservation, committed: u64) -> Value {
    json!({
        "action": action, "authorization": reserved.authorization, "run": reserved.run, "call": reserved.call,
        "currency": reserved.currency, "reserved": reserved.amount, "committed": committed,
    })
}

fn document(tenant: &Tenant, id: Option<String>, payload: Value) -> Value {
    let mut document = json!({
        "tenantId": tenant.as_str(), "module": MODULE, "source": SOURCE, "type": TYPE, "payload": payload,
    });
    if let Some(id) = id {
        document["id"] = json!(id);
    }
    document
}
