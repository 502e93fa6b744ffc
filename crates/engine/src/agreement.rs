//! What a run was agreed on, as its metadata keeps it: the seven keys of the contract, and everything else that was
//! settled when it was submitted. Workers go by this, never by their own surroundings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use actum_contract::agent::Agent;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::folder::FolderId;
use actum_contract::metadata::{self, ContractError, Stored};
use actum_contract::work::WorkItem;
use actum_contract::{Contract, ExecutionConfig, Layers, Partial, resolve};
use actum_kernel::{Agreed, Event, Phases};
use actum_ledger::journal::JournalError;
use actum_ledger::run::Run;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::entry;
use crate::wait::Waiter;

/// The part of the metadata that is no contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreement {
    pub work_item: WorkItem,
    pub agent: Agent,
    /// Absolute, on the machine that the run's place names; of a shared workspace, where its stages are to be seen.
    pub workspace: PathBuf,
    /// Which folder that was at submission. None if it is the project's own folder, which is not looked up by a name that a
    /// run could change, and in runs of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderId>,
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
    /// The digest of the configuration in force at submission. None if there was no configuration, and in runs of before
    /// this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
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
    /// The source's events are folded under the source's contracts. Not so in forks of the first version, whose own events
    /// build on a fold under the fork's contract.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub under_own_contracts: bool,
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
    #[error("the store has lost what the run was agreed on")]
    Missing,
    #[error("the metadata of the run cannot be read: {0}")]
    Unreadable(String),
    #[error("the run is no longer what was submitted: its work item, agent or workspace was altered")]
    Altered,
    #[error("the stored contract {} is not the one on record in the ledger, {}", .stored.hash, .recorded.hash)]
    ContractAltered { recorded: RecordedContract, stored: RecordedContract },
}

impl BadAgreement {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Contract(e) => e.code(),
            // Whoever altered that may have altered anything.
            Self::Unreadable(_) | Self::Altered | Self::ContractAltered { .. } => "CONTRACT_MISMATCH",
            Self::Missing => "STORE_DAMAGED",
        }
    }

    pub fn details(&self) -> Value {
        match self {
            Self::Contract(e) => e.details(),
            Self::ContractAltered { recorded, stored } => json!({"recorded": recorded, "stored": stored}),
            Self::Unreadable(_) | Self::Altered | Self::Missing => Value::Null,
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

/// Compares a run's metadata with the ledger: the agreement with the digest of its submission, the contract with the newest
/// one on record. The inner error says what was altered.
pub(crate) fn compare_with_ledger(
    waiter: &Waiter,
    run: &Run,
    read: &Read,
) -> Result<Result<(), BadAgreement>, JournalError> {
    let submitted = submission_entry(waiter, run)?;
    if submitted["payload"]["agreements"][&run.id] != read.agreement.digest().as_str() {
        return Ok(Err(BadAgreement::Altered));
    }
    let stored = RecordedContract::of(&read.contract);
    Ok(match recorded_contract(waiter, run, &submitted)? {
        Some(recorded) if !recorded.is(&stored) => Err(BadAgreement::ContractAltered { recorded, stored }),
        _ => Ok(()),
    })
}

/// Compares the changes of the contract in a run's journal with those in the ledger, and each config with its hash. The
/// inner error names the first that differs.
pub(crate) fn compare_changes(
    waiter: &Waiter,
    run: &Run,
    events: &[Event],
) -> Result<Result<(), String>, JournalError> {
    let in_journal = events.iter().filter_map(|event| match event {
        Event::ContractChanged { from, to } => Some((&**from, &**to)),
        _ => None,
    });
    let mut number = 0;
    let mut next_recorded = || -> Result<Value, JournalError> {
        loop {
            number += 1;
            let entry = entry_of(waiter, run, &entry::contract_change_id(&run.id, number))?;
            // A contract that was attached replaces none, and is no change in the journal.
            if entry.is_null() || !entry["payload"]["from"].is_null() {
                return Ok(entry);
            }
        }
    };
    for (from, to) in in_journal {
        let recorded = next_recorded()?;
        for (side, contract) in [("from", from), ("to", to)] {
            let is_recorded = recorded["payload"][side]["hash"] == contract.hash.as_str();
            if !is_recorded || Contract::of(contract.config.clone()).hash.to_hex() != contract.hash {
                return Ok(Err(format!("a change of its contract, to {}, is not the recorded one", to.hash)));
            }
        }
    }
    // Without it, events of before the change would be judged by the contract of after it.
    let left_out = next_recorded()?;
    if !left_out.is_null() {
        return Ok(Err(format!(
            "its journal lacks a change of its contract, to {}",
            left_out["payload"]["to"]["hash"]
        )));
    }
    Ok(Ok(()))
}

/// Fails if the agreement of a run, without its contract, is not what was submitted.
pub(crate) fn compare_agreement(waiter: &Waiter, run: &Run, agreement: &Agreement) -> Result<bool, JournalError> {
    Ok(submission_entry(waiter, run)?["payload"]["agreements"][&run.id] == agreement.digest().as_str())
}

fn submission_entry(waiter: &Waiter, run: &Run) -> Result<Value, JournalError> {
    entry_of(waiter, run, &entry::snapshot_id(&run.submission))
}

fn entry_of(waiter: &Waiter, run: &Run, id: &str) -> Result<Value, JournalError> {
    let body = waiter.wait(waiter.journal.entry(&run.tenant, id))?;
    Ok(body.and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or(Value::Null))
}

/// A contract as the ledger names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedContract {
    pub hash: String,
    /// The fields whose values came from the environment. None in entries that did not keep them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_fields: Option<Vec<String>>,
}

impl RecordedContract {
    pub(crate) fn of(contract: &Contract) -> Self {
        let names = contract.fallback_names().into_iter().map(ToOwned::to_owned).collect();
        Self { hash: contract.hash.to_hex(), fallback_fields: Some(names) }
    }

    fn is(&self, stored: &Self) -> bool {
        self.hash == stored.hash && (self.fallback_fields.is_none() || self.fallback_fields == stored.fallback_fields)
    }
}

/// How the journal of a run says that its contract was overridden.
pub(crate) const OVERRIDDEN: &str = "the contract was overridden";

/// How many changes of a run's contract the ledger holds.
pub(crate) fn contract_changes(waiter: &Waiter, run: &Run) -> Result<u64, JournalError> {
    Ok(newest_change(waiter, run)?.0)
}

/// The number of changes, and the contract the last of them led to.
fn newest_change(waiter: &Waiter, run: &Run) -> Result<(u64, Option<RecordedContract>), JournalError> {
    let (mut count, mut newest) = (0, None);
    loop {
        let found = entry_of(waiter, run, &entry::contract_change_id(&run.id, count + 1))?;
        if found.is_null() {
            return Ok((count, newest));
        }
        (count, newest) = (count + 1, serde_json::from_value(found["payload"]["to"].clone()).ok());
    }
}

/// The contract that the ledger says is in force: the last change, else the submission's. Submissions of the first version
/// did not keep it: there the run's `planned` event does.
fn recorded_contract(waiter: &Waiter, run: &Run, submitted: &Value) -> Result<Option<RecordedContract>, JournalError> {
    if let (1.., changed) = newest_change(waiter, run)? {
        // A change that names no contract cannot be relied on: then nothing matches it.
        let unknown = RecordedContract { hash: String::new(), fallback_fields: None };
        return Ok(Some(changed.unwrap_or(unknown)));
    }
    if let Ok(contract) = serde_json::from_value(submitted["payload"]["contract"].clone()) {
        return Ok(Some(contract));
    }
    // It overrode queued runs without a word in the ledger; their journals name it.
    let rows = waiter.wait(waiter.runs.events(&run.tenant, &run.id, 0))?;
    if rows.iter().any(|row| row.kind == "warned" && row.body.contains(OVERRIDDEN)) {
        return Ok(None);
    }
    let planned = entry_of(waiter, run, &entry::planned_id(&run.robot, &run.id, run.attempt))?;
    let hash = planned["payload"]["externalRefs"]["contractHash"].as_str();
    Ok(hash.map(|hash| RecordedContract { hash: hash.to_owned(), fallback_fields: None }))
}

/// The execution config in a run's metadata, if it is certainly the recorded one: it hashes to what the ledger holds, under
/// the present versions or within the stored material.
pub(crate) fn recorded_config(waiter: &Waiter, run: &Run) -> Result<Option<ExecutionConfig>, JournalError> {
    let Some(recorded) = recorded_contract(waiter, run, &submission_entry(waiter, run)?)? else { return Ok(None) };
    let fields: Map<String, Value> = serde_json::from_str(&run.metadata).unwrap_or_default();
    let config = |value: Option<&Value>| value.and_then(|value| ExecutionConfig::read(value).ok());
    if let Some(config) = config(fields.get(metadata::EFFECTIVE_CONFIG))
        && Contract::of(config.clone()).hash.to_hex() == recorded.hash
    {
        return Ok(Some(config));
    }
    let Some(material) = fields.get(metadata::MATERIAL) else { return Ok(None) };
    let hash = canon::canonical(material).map(|text| Digest::sha256(&text).to_hex()).unwrap_or_default();
    Ok((hash == recorded.hash).then(|| config(material.get("normalizedExecutionConfig"))).flatten())
}

/// Returns why a worker would refuse the run: its metadata cannot be read, is not supported, or differs from the ledger.
pub fn refusal(waiter: &Waiter, run: &Run) -> Result<Option<BadAgreement>, JournalError> {
    match read(&run.metadata) {
        Ok(read) => Ok(compare_with_ledger(waiter, run, &read)?.err()),
        Err(bad) => Ok(Some(bad)),
    }
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

/// Returns the agreement without its contract, which may be one that this runtime does not support.
pub fn read_without_contract(text: &str) -> Result<Agreement, BadAgreement> {
    serde_json::from_str(text).map_err(|e| BadAgreement::Unreadable(e.to_string()))
}

/// Support first, then equality; a run without any contract gets one, the same wherever it is attached.
pub(crate) fn read(text: &str) -> Result<Read, BadAgreement> {
    if text.is_empty() {
        return Err(BadAgreement::Missing);
    }
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
            contract_hash: self.contract.hash.to_hex(),
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
            folder: None,
            shared: None,
            draft: false,
            lineage: Lineage { depends_on: Vec::new(), snapshot_at: String::new(), snapshot: None },
            dependencies: BTreeMap::new(),
            fork_of: None,
            trace: None,
            submitted_by: None,
            config: None,
        };
        let text = serde_json::to_string(&old).unwrap();
        assert!(!text.contains("submittedBy") && !text.contains("folder"));
        let folder = Some(FolderId { device: 1, inode: u64::MAX });
        assert_ne!(Agreement { folder, ..old.clone() }.digest(), old.digest());
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
