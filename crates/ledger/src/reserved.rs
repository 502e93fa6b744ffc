//! What only this program writes into the ledger: types and ids that a document from outside may not have.
//!
//! Called where such a document is read. Entries written before a name was reserved are not asked this, nor are ours.

use serde_json::Value;

use crate::refusal::Violation;
use crate::{access, head, pointer, registry, spend, webhook};

/// A type, and what writes it.
struct Type {
    name: &'static str,
    by: &'static str,
}

/// The types, but for execution events, which have rules of their own.
const TYPES: [Type; 22] = [
    Type { name: registry::TYPE, by: "the registry alone: use `actum tool` and `actum adapter`" },
    Type { name: spend::TYPE, by: "spending: use `actum spend`" },
    Type { name: "prediction_receipt", by: "predictions: use `actum predict`" },
    Type { name: "signature_catalog", by: "the catalogue alone: use `actum signature`" },
    Type { name: "compiled_artifact", by: "the artifact registry: use `actum artifact`" },
    Type { name: pointer::TYPE, by: "pointer changes: use `actum pointer`" },
    Type { name: "prediction_label", by: "labels: use `actum dataset label`" },
    Type { name: "prediction_dataset", by: "datasets: use `actum dataset`" },
    Type { name: "compile_report", by: "the compiler alone: use `actum compile`" },
    Type { name: "eval_report", by: "evaluations: use `actum eval`" },
    Type { name: "receipt", by: "the end of a run: use `actum run`" },
    Type { name: "workspace_snapshot", by: "a freeze: use `actum run`" },
    Type { name: "workspace_publication", by: "a publication: use `actum apply`" },
    Type { name: "tool_execution", by: "executions: use `actum exec` and `actum tool call`" },
    Type { name: access::TYPE, by: "token management: use `actum token`" },
    Type { name: head::TYPE, by: "a publication to a shared workspace: use `actum run`" },
    Type { name: "signing_key", by: "key management: use `actum key`" },
    Type { name: "approval_decision", by: "decisions about approvals: use `actum approve` and `actum deny`" },
    Type { name: webhook::TYPE, by: "webhook management: use `actum webhook`" },
    Type { name: "contract_change", by: "an override of a run's contract: use `actum resume`" },
    Type { name: "configuration_loaded", by: "a reload: use `actum config reload`" },
    Type { name: "end", by: "no command: the events of a run end with it" },
];

/// How ids begin that nobody else may bring.
const PREFIXES: [(&str, &str); 14] = [
    ("spend:", "changes about money"),
    ("prediction:", "predictions"),
    ("signature:", "signatures"),
    ("rollout:", "artifacts, pointers, datasets and what is found with them"),
    ("access:", "changes about who may enter"),
    ("key:", "keys that sign"),
    ("approval:", "answers to what waits for a person"),
    ("receipt:", "receipts of runs"),
    ("snapshot:", "snapshots of workspaces"),
    ("publication:", "publications"),
    ("execution:", "executions"),
    ("contract-change:", "changes of a run's contract"),
    (head::ID_PREFIX, "heads of shared workspaces"),
    (webhook::ID_PREFIX, "changes of webhooks"),
];

/// The names of the types.
pub(crate) fn types() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|reserved| reserved.name)
}

/// What a document that comes from outside says in our name.
pub(crate) fn forged(document: &Value) -> Option<Violation> {
    let text = |field: &str| document.get(field).and_then(Value::as_str);
    let kind = text("type").and_then(|kind| TYPES.iter().find(|reserved| reserved.name == kind));
    if let Some(Type { name, by }) = kind {
        return Some(Violation::new("type", format!("{name} is written by {by}")));
    }
    let id = text("id")?;
    let whose = match PREFIXES.iter().find(|(prefix, _)| id.starts_with(prefix)) {
        Some((_, whose)) => *whose,
        None if registry::is_entry_id(id) => "changes of the registry",
        None => return None,
    };
    Some(Violation::new("id", format!("has the form reserved for {whose}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_ours_is_not_taken_from_others() {
        let path = |document: Value| forged(&document).map(|violation| violation.path);
        let kinds = [
            "registry_change",
            "spend_change",
            "prediction_receipt",
            "signature_catalog",
            "compiled_artifact",
            "pointer_change",
            "prediction_label",
            "prediction_dataset",
            "compile_report",
            "eval_report",
            "receipt",
            "workspace_snapshot",
            "workspace_publication",
            "tool_execution",
            "access_change",
            "workspace_head",
            "signing_key",
            "approval_decision",
            "webhook_change",
            "contract_change",
            "configuration_loaded",
            "end",
        ];
        assert!(types().eq(kinds));
        for kind in kinds {
            assert_eq!(path(json!({"type": kind})).as_deref(), Some("type"), "{kind}");
        }
        for id in [
            "spend:x",
            "receipt:x",
            "snapshot:x",
            "publication:x",
            "execution:x",
            "spend:",
            "prediction:1",
            "signature:a/b.v1",
            "registry:tool:grep:1",
            "access:token:0:1",
            "access:",
            "webhook:",
            "approval:x",
            "contract-change:x:1",
        ] {
            assert_eq!(path(json!({"type": "note", "id": id})).as_deref(), Some("id"), "{id}");
        }
        for id in ["artifact:art_0", "pointer:@a/b.v1:1", "pointer:", "label:x", "dataset:0", "compile:c", "eval:e", ""]
        {
            let id = format!("rollout:{id}");
            assert_eq!(path(json!({"type": "note", "id": id})).as_deref(), Some("id"), "{id}");
        }
        for id in [
            "spend",
            "spending:1",
            "predictions:1",
            "registry:tool",
            "xspend:1",
            "rollout",
            "rollouts:1",
            "access",
            "accesses:1",
            "webhooks:1",
            "approvals:1",
            "contract:1",
        ] {
            assert_eq!(path(json!({"type": "note", "id": id})), None, "{id}");
        }
        assert_eq!(path(json!({"type": 7, "id": ["spend:"]})), None);
        assert_eq!(path(json!("spend_change")), None);
    }
}
