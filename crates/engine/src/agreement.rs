//! What a run was agreed on, as its metadata keeps it: the seven keys of the contract, and everything else that was
//! settled when it was submitted. Workers go by this, never by their own surroundings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use actum_contract::agent::Agent;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::metadata::{self, ContractError, Stored};
use actum_contract::work::WorkItem;
use actum_contract::{Contract, Layers, Partial, resolve};
use actum_kernel::{Agreed, Phases};
use actum_ledger::journal::JournalError;
use actum_ledger::run::Run;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::wait::Waiter;

/// The part of the metadata that is no contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreement {
    pub work_item: WorkItem,
    pub agent: Agent,
    /// Absolute, on the machine that the run's place names; of a shared workspace, where its stages are to be seen.
    pub workspace: PathBuf,
    /// The name of the workspace, if it is a shared one: then there is no such folder anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// Everything but publishing.
    #[serde(default)]
    pub draft: bool,
    pub lineage: Lineage,
    /// The runs of the items it depends on.
    #[serde(default)]
    pub dependencies: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_of: Option<ForkOf>,
    /// The span of whoever submitted it, as a `traceparent`, for telemetry only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Nobody in runs of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<Submitter>,
}

/// Who submitted a run, or forked it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitter {
    pub actor: String,
    /// The id of his token, if he came in over a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// The run that another was forked from, and how many of its events were taken along.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOf {
    pub run: String,
    pub events: u64,
}

/// What a run stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lineage {
    /// Entries of the ledger.
    pub depends_on: Vec<String>,
    pub snapshot_at: String,
    /// The workspace it was planned on, if it is planned: inputs must still be the same when it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// Why metadata is not what a run can go by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAgreement {
    #[error(transparent)]
    Contract(#[from] ContractError),
    #[error("the metadata of the run cannot be read: {0}")]
    Unreadable(String),
    #[error("the run is no longer what was submitted: its work item, agent or workspace was altered")]
    Altered,
}

impl BadAgreement {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Contract(e) => e.code(),
            // Whoever altered that may have altered anything.
            Self::Unreadable(_) | Self::Altered => "CONTRACT_MISMATCH",
        }
    }

    pub fn details(&self) -> Value {
        match self {
            Self::Contract(e) => e.details(),
            Self::Unreadable(_) | Self::Altered => Value::Null,
        }
    }
}

impl Agreement {
    /// Whether whoever submitted it came in over a server: then its budget narrows what is allowed, and allows nothing.
    pub fn is_served(&self) -> bool {
        self.submitted_by.as_ref().is_some_and(|by| by.token.is_some())
    }

    /// Of everything that was settled at submission, which the contract does not cover: what stands in the ledger.
    pub fn digest(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or(Value::Null);
        // What a run stands on is found out later, and stands in its events.
        value.as_object_mut().map(|fields| fields.remove("lineage"));
        canon::canonical(&value).map(|text| Digest::sha256(&text).to_hex()).unwrap_or_default()
    }
}

/// Whether a run is still what was submitted: what it was agreed on is in the ledger, by its digest.
pub fn is_altered(waiter: &Waiter, run: &Run, agreement: &Agreement) -> Result<bool, JournalError> {
    let id = crate::entry::snapshot_id(&run.submission);
    let body = waiter.wait(waiter.journal.entry(&run.tenant, &id))?;
    let entry: Value = body.and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or(Value::Null);
    Ok(entry["payload"]["agreements"][&run.id] != agreement.digest().as_str())
}

/// A run's metadata, read and asserted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Read {
    pub contract: Contract,
    pub agreement: Agreement,
    /// It had no contract yet; this is the metadata with one.
    pub attached: Option<String>,
}

pub(crate) fn write(contract: &Contract, agreement: &Agreement) -> String {
    let mut all = metadata::write(contract);
    if let Ok(Value::Object(rest)) = serde_json::to_value(agreement) {
        all.extend(rest);
    }
    Value::Object(all).to_string()
}

/// Support first, then equality; a run without any contract gets one, the same wherever it is attached.
pub(crate) fn read(text: &str) -> Result<Read, BadAgreement> {
    let unreadable = |e: &dyn std::fmt::Display| BadAgreement::Unreadable(e.to_string());
    let fields: Map<String, Value> = serde_json::from_str(text).map_err(|e| unreadable(&e))?;
    let stored = metadata::check(&fields)?;
    let agreement: Agreement = serde_json::from_value(Value::Object(fields)).map_err(|e| unreadable(&e))?;
    Ok(match stored {
        Stored::Contract(contract) => Read { contract, agreement, attached: None },
        Stored::Legacy => {
            let layers = Layers { persisted: None, requested: &Partial::default(), env: &BTreeMap::new() };
            let contract = Contract::of(resolve(layers).map_err(|e| unreadable(&e))?.config);
            let attached = Some(write(&contract, &agreement));
            Read { contract, agreement, attached }
        }
    })
}

impl Read {
    pub(crate) fn agreed(&self) -> Agreed {
        let agent = &self.agreement.agent;
        Agreed {
            item: self.agreement.work_item.clone(),
            config: self.contract.config().clone(),
            phases: Phases { plan: agent.understands("plan"), correct: agent.understands("correct") },
            draft: self.agreement.draft,
        }
    }
}

/// What a run was agreed on: its contract and the rest, asserted.
pub fn read_agreement(text: &str) -> Result<(Contract, Agreement, Agreed), BadAgreement> {
    let read = read(text)?;
    let agreed = read.agreed();
    Ok((read.contract, read.agreement, agreed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_of_before_says_nobody_and_is_what_it_was() {
        let item = json!({"id": "i", "agent_id": "a", "description": "Do it."});
        let load = |_: &str| Err(String::new());
        let agent = Agent::read(&json!({"type": "command", "command": ["true"]}), "a", &load).unwrap();
        let old = Agreement {
            work_item: actum_contract::work::read_item(&item).unwrap(),
            agent,
            workspace: "/w".into(),
            shared: None,
            draft: false,
            lineage: Lineage { depends_on: Vec::new(), snapshot_at: String::new(), snapshot: None },
            dependencies: BTreeMap::new(),
            fork_of: None,
            trace: None,
            submitted_by: None,
        };
        let text = serde_json::to_string(&old).unwrap();
        assert!(!text.contains("submittedBy"));
        let read: Agreement = serde_json::from_str(&text).unwrap();
        assert!(read == old && !read.is_served());
        let by = |token: Option<&str>| Agreement {
            submitted_by: Some(Submitter { actor: "ann".into(), token: token.map(Into::into) }),
            ..old.clone()
        };
        assert!(!by(None).is_served() && by(Some("0")).is_served());
        // Nobody takes it out unseen.
        assert!(by(Some("0")).digest() != by(None).digest() && by(None).digest() != old.digest());
    }
}
