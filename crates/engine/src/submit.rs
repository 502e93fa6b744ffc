//! Submission: a work file's items become runs, each agreed on, hashed and on record before anything happens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use actum_contract::Contract;
use actum_contract::agent::Agent;
use actum_contract::digest::Digest;
use actum_contract::folder::FolderId;
use actum_contract::id::Tenant;
use actum_contract::work::{Publish, WorkItem};
use actum_ledger::journal::JournalError;
use actum_ledger::run::{Filter, NewRun, Run, RunState, Written};
use jiff::Timestamp;
use uuid::Uuid;

use crate::agreement::{self, Agreement, Lineage, Submitter};
use crate::entry::{self, About, Agreements, time};
use crate::wait::Waiter;

/// What is submitted. Items are in order: dependencies are among them.
#[derive(Debug)]
pub struct Wanted {
    pub tenant: Tenant,
    pub place: String,
    pub workspace: PathBuf,
    /// Which folder that is, if it is not the project's own.
    pub folder: Option<FolderId>,
    /// The name of a shared workspace.
    pub shared: Option<String>,
    /// The workspace as it is now.
    pub tree: String,
    pub contract: Contract,
    pub items: Vec<(WorkItem, Agent)>,
    pub draft: bool,
    pub by: Submitter,
    /// The digest of the configuration in force.
    pub config: Option<String>,
    /// The span of whoever submits, as a `traceparent`.
    pub trace: Option<String>,
    /// What whoever asks twice says both times: then it is submitted once.
    pub once: Option<Digest>,
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
    let Wanted { tenant, place, workspace, folder, shared, tree, contract, items, draft, by, config, trace, once } =
        wanted;
    let now = waiter.checked_time(&tenant)?;
    let order: Vec<String> = items.iter().map(|(item, _)| item.id.clone()).collect();
    let (submission, before) = match once {
        None => (Uuid::now_v7().to_string(), None),
        Some(once) => {
            // By the day, because the same may be wanted again on another one; yesterday's is asked for as long as it counts,
            // tomorrow's because the clock of another server may be ahead.
            let day = now.as_second() / DAY_SECONDS;
            let [today, others @ ..] = [day, day - 1, day + 1].map(|day| named_by(once, day).to_string());
            (today, Some(others))
        }
    };
    // The answer to the first time was lost on its way, or what the store said to it.
    if let Some(others) = before {
        for known in std::iter::once(&submission).chain(&others) {
            if let Some(first) = find(waiter, &tenant, known, &order, now)? {
                return Ok(first);
            }
        }
    }
    let owner = tenant.clone();
    let ids: BTreeMap<String, String> =
        items.iter().map(|(item, _)| (item.id.clone(), Uuid::now_v7().to_string())).collect();
    let snapshot_at = time(now);
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
            folder,
            shared: shared.clone(),
            draft,
            lineage,
            dependencies,
            fork_of: None,
            trace: trace.clone(),
            submitted_by: Some(by.clone()),
            config: config.clone(),
        };
        agreements.insert(run.id.clone(), agreement.digest());
        runs.push(NewRun { metadata: agreement::write(&contract, &agreement), ..run });
    }
    let place = shared.unwrap_or_else(|| workspace.display().to_string());
    // First of all: the rest stands on it.
    let agreed = Agreements { digests: &agreements, contract: &contract, by: &by };
    entries.insert(0, entry::snapshot(tenant.as_str(), &submission, (&place, &tree), &snapshot_at, &agreed));
    match waiter.wait(waiter.runs.submit(runs, entries))? {
        Written::Done => Ok(Submitted { submission, runs: made }),
        Written::Lost => Err(SubmitError::Exists),
        // Asked twice at once, of two servers: whoever was first stands in the ledger.
        Written::Refused(refusal) => {
            match once.map(|_| find(waiter, &owner, &submission, &order, now)).transpose()?.flatten() {
                Some(first) => Ok(first),
                None => Err(SubmitError::Refused(refusal.message)),
            }
        }
    }
}

/// For so long the same under the same key is the same submission, as answers are kept.
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// An id that the same gets all day.
fn named_by(once: Digest, day: i64) -> Uuid {
    let digest = Digest::sha256_parts(&[&once.0, &day.to_be_bytes()]);
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest.0).for_each(|(to, from)| *to = from);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// A submission that is there already, of the last day.
fn find(
    waiter: &Waiter,
    tenant: &Tenant,
    submission: &str,
    order: &[String],
    now: Timestamp,
) -> Result<Option<Submitted>, JournalError> {
    let filter = Filter { submission: Some(submission.to_owned()), limit: order.len().max(1), ..Filter::default() };
    let found = waiter.wait(waiter.runs.runs(tenant, filter))?;
    let since_ms = now.as_millisecond() - DAY_SECONDS * 1_000;
    let run_of = |item: &String| {
        let run = found.iter().find(|run| run.item == *item && run.created_ms >= since_ms)?;
        Some((run.id.clone(), item.clone()))
    };
    let runs: Vec<(String, String)> = order.iter().filter_map(run_of).collect();
    Ok((!runs.is_empty()).then(|| Submitted { submission: submission.to_owned(), runs }))
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
