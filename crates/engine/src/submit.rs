//! Submission: a work file's items become runs, each agreed on, hashed and on record before anything happens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use actum_contract::Contract;
use actum_contract::agent::Agent;
use actum_contract::id::Tenant;
use actum_contract::work::{Publish, WorkItem};
use actum_ledger::journal::JournalError;
use actum_ledger::run::{NewRun, Run, RunState, Written};
use jiff::Timestamp;
use uuid::Uuid;

use crate::agreement::{self, Agreement, Lineage};
use crate::entry::{self, About, time};
use crate::wait::Waiter;

/// What is submitted. Items are in order: dependencies are among them.
#[derive(Debug)]
pub struct Wanted {
    pub tenant: Tenant,
    pub place: String,
    pub workspace: PathBuf,
    /// The workspace as it is now.
    pub tree: String,
    pub contract: Contract,
    pub items: Vec<(WorkItem, Agent)>,
    pub draft: bool,
}

/// A submission: its id, and the id of each item's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    pub submission: String,
    pub runs: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    Store(#[from] JournalError),
    #[error("the ledger refuses it: {0}")]
    Refused(String),
    #[error("runs of this submission are there already")]
    Exists,
}

pub fn submit(waiter: &Waiter, wanted: Wanted) -> Result<Submitted, SubmitError> {
    let Wanted { tenant, place, workspace, tree, contract, items, draft } = wanted;
    let submission = Uuid::now_v7().to_string();
    let ids: BTreeMap<String, String> =
        items.iter().map(|(item, _)| (item.id.clone(), Uuid::now_v7().to_string())).collect();
    let snapshot_at = time(Timestamp::now());
    let hash = contract.hash.to_hex();
    let (mut entries, mut agreements) = (Vec::new(), BTreeMap::new());
    let (mut runs, mut made) = (Vec::new(), Vec::new());
    for (item, agent) in items {
        let dependencies: BTreeMap<String, String> =
            item.dependencies.iter().filter_map(|id| Some((id.clone(), ids.get(id)?.clone()))).collect();
        let lineage = Lineage {
            depends_on: vec![entry::snapshot_id(&submission)],
            snapshot_at: snapshot_at.clone(),
            snapshot: dependencies.is_empty().then(|| tree.clone()),
        };
        let external = item.publish == Publish::External;
        let id = ids.get(&item.id).cloned().unwrap_or_default();
        let run = NewRun {
            tenant: tenant.clone(),
            id: id.clone(),
            submission: submission.clone(),
            item: item.id.clone(),
            robot: item.agent_id.clone(),
            place: place.clone(),
            planned: external,
            depends_on: dependencies.values().cloned().collect(),
            metadata: String::new(),
        };
        if dependencies.is_empty() || external {
            let about = row(&run);
            entries
                .push(About { run: &about, attempt: 1, lineage: &lineage, contract_hash: &hash, external }.planned());
        }
        made.push((id, item.id.clone()));
        let agreement = Agreement {
            work_item: item,
            agent,
            workspace: workspace.clone(),
            draft,
            lineage,
            dependencies,
            fork_of: None,
        };
        agreements.insert(run.id.clone(), agreement.digest());
        runs.push(NewRun { metadata: agreement::write(&contract, &agreement), ..run });
    }
    let place = workspace.display().to_string();
    // First of all: the rest stands on it.
    entries.insert(0, entry::snapshot(tenant.as_str(), &submission, (&place, &tree), &snapshot_at, &agreements));
    match waiter.wait(waiter.runs.submit(runs, entries))? {
        Written::Done => Ok(Submitted { submission, runs: made }),
        Written::Lost => Err(SubmitError::Exists),
        Written::Refused(refusal) => Err(SubmitError::Refused(refusal.message)),
    }
}

/// A new run as its events name it.
pub(crate) fn row(run: &NewRun) -> Run {
    Run {
        tenant: run.tenant.clone(),
        id: run.id.clone(),
        submission: run.submission.clone(),
        item: run.item.clone(),
        robot: run.robot.clone(),
        place: run.place.clone(),
        state: RunState::Queued,
        attempt: 1,
        epoch: 0,
        version: 0,
        owner: None,
        lease_until_ms: None,
        waits: 0,
        cancel: false,
        created_ms: 0,
        updated_ms: 0,
        metadata: run.metadata.clone(),
        outcome: None,
    }
}
