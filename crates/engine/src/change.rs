//! What a person does to a run that exists: go on with it, go elsewhere from it, stop it.

use actum_contract::change::{ChangeError, change};
use actum_contract::{Change, Contract, Intent, Partial};
use actum_kernel::{Event, Status, Verdict, code};
use actum_ledger::draft;
use actum_ledger::journal::JournalError;
use actum_ledger::run::{NewRun, Run, RunState, Settle, Written};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::agreement::{self, Agreement, BadAgreement, ForkOf, Lineage, Read, Submitter};
use crate::desk::stored;
use crate::drive::events_of;
use crate::entry::{self, About, time};
use crate::submit::row;
use crate::wait::Waiter;

/// What became of a wish to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// It had succeeded; there is nothing to go on with.
    Complete,
    /// It is in the queue, or already was.
    Queued,
    /// Another run, with a contract of its own.
    Forked(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("{0}")]
    Contract(String, &'static str, Value),
    #[error("the run is {0}: {1}")]
    State(RunState, &'static str),
    #[error("the run has just been changed by somebody else; look again")]
    Lost,
    #[error("the ledger refuses it: {0}")]
    Refused(String),
    #[error(transparent)]
    Store(#[from] JournalError),
}

impl From<BadAgreement> for ResumeError {
    fn from(bad: BadAgreement) -> Self {
        Self::Contract(bad.to_string(), bad.code(), bad.details())
    }
}

/// Goes on with a run under its own contract; with another one only if that was said plainly. `by`: who wants it; a fork is
/// his own submission.
pub fn resume(
    waiter: &Waiter,
    run: &Run,
    requested: &Partial,
    intent: Intent,
    by: Submitter,
) -> Result<Resumed, ResumeError> {
    let read = agreement::read(&run.metadata)?;
    let changed = change(read.contract.config(), requested, intent)?;
    match changed {
        Change::Fork(contract) => fork(waiter, run, &read, contract, by),
        Change::Keep => requeue(waiter, run, &read, None),
        Change::Override(contract) => requeue(waiter, run, &read, Some(contract)),
    }
}

fn requeue(waiter: &Waiter, run: &Run, read: &Read, contract: Option<Contract>) -> Result<Resumed, ResumeError> {
    match run.state {
        RunState::Succeeded => return Ok(Resumed::Complete),
        RunState::Running => return Err(ResumeError::State(run.state, "wait for it, or cancel it first")),
        RunState::Cancelled => {
            return Err(ResumeError::State(run.state, "that is for good; --fork starts another from it"));
        }
        RunState::Planned => return Err(ResumeError::State(run.state, "it is published by somebody outside")),
        RunState::Queued | RunState::Blocked if contract.is_none() => return Ok(Resumed::Queued),
        RunState::Queued | RunState::Blocked | RunState::Failed => {}
    }
    let failed = run.state == RunState::Failed;
    let attempt = run.attempt + u64::from(failed);
    let contract = contract.as_ref().unwrap_or(&read.contract);
    let lineage = Lineage { snapshot_at: time(Timestamp::now()), snapshot: None, ..read.agreement.lineage.clone() };
    let agreement = Agreement { lineage: lineage.clone(), ..read.agreement.clone() };
    let hash = contract.hash.to_hex();
    let about = About { run, attempt, lineage: &lineage, contract_hash: &hash, external: false };
    let mut events = Vec::new();
    if hash != read.contract.hash.to_hex() {
        let what = format!("the contract was overridden: {} → {hash}", read.contract.hash.to_hex());
        events.push(stored(&Event::Warned { what }));
    }
    let settle = Settle {
        tenant: run.tenant.clone(),
        run: run.id.clone(),
        version: run.version,
        from: run.state,
        to: RunState::Queued,
        attempt,
        events,
        entries: if failed { vec![about.planned()] } else { Vec::new() },
        metadata: Some(agreement::write(contract, &agreement)),
        outcome: None,
        forget_capsule: false,
    };
    match waiter.wait(waiter.runs.settle(settle))? {
        Written::Done => Ok(Resumed::Queued),
        Written::Lost => Err(ResumeError::Lost),
        Written::Refused(refusal) => Err(ResumeError::Refused(refusal.message)),
    }
}

/// A new run that begins where this one is. The source keeps its contract and its journal; nothing is copied.
fn fork(waiter: &Waiter, source: &Run, read: &Read, contract: Contract, by: Submitter) -> Result<Resumed, ResumeError> {
    if source.state == RunState::Running {
        return Err(ResumeError::State(source.state, "wait for it, or cancel it first"));
    }
    let lineage = Lineage { snapshot_at: time(Timestamp::now()), snapshot: None, ..read.agreement.lineage.clone() };
    // One that was forked itself, and did nothing of its own yet, stands where its source stood.
    let fork_of = match &read.agreement.fork_of {
        Some(earlier) if source.version == 0 => earlier.clone(),
        _ => ForkOf { run: source.id.clone(), events: source.version },
    };
    let agreement = Agreement {
        lineage: lineage.clone(),
        fork_of: Some(fork_of),
        submitted_by: Some(by.clone()),
        ..read.agreement.clone()
    };
    let id = Uuid::now_v7().to_string();
    let new = NewRun {
        tenant: source.tenant.clone(),
        id: id.clone(),
        submission: Uuid::now_v7().to_string(),
        item: source.item.clone(),
        robot: source.robot.clone(),
        place: source.place.clone(),
        planned: false,
        metadata: agreement::write(&contract, &agreement),
        depends_on: agreement.dependencies.values().cloned().collect(),
    };
    let folder = agreement.workspace.display().to_string();
    let agreements = std::collections::BTreeMap::from([(id.clone(), agreement.digest())]);
    let at = lineage.snapshot_at.clone();
    let mut entries =
        vec![entry::snapshot(source.tenant.as_str(), &new.submission, (&folder, &source.id), &at, &agreements, &by)];
    if agreement.dependencies.is_empty() {
        let (about, hash) = (row(&new), contract.hash.to_hex());
        entries.push(
            About { run: &about, attempt: 1, lineage: &lineage, contract_hash: &hash, external: false }.planned(),
        );
    }
    match waiter.wait(waiter.runs.submit(vec![new], entries))? {
        Written::Done => Ok(Resumed::Forked(id)),
        Written::Lost => Err(ResumeError::Lost),
        Written::Refused(refusal) => Err(ResumeError::Refused(refusal.message)),
    }
}

/// What somebody did about a run that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// What was kept is published.
    Applied { publication: String, drift: Vec<String> },
    /// What was published was taken back.
    Undone { publication: String },
}

/// Writes that down, together with an entry of the ledger if what was done is nothing but that entry: both or neither. A run
/// that failed only because others were in the way has succeeded with it. `Lost` if somebody else has just changed the run.
pub fn note(waiter: &Waiter, run: &Run, done: &Done, entry: Option<Value>) -> Result<Written, JournalError> {
    let mut outcome: Value =
        run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let (mut events, mut entries) = (Vec::new(), Vec::new());
    let (mut to, mut attempt) = (run.state, run.attempt);
    match done {
        Done::Applied { publication, drift } => {
            let published = (publication.clone(), drift.clone());
            events.push(Event::Published { publication: published.0, drift: published.1, after: None });
            outcome["drift"] = json!(drift);
            outcome["undone"] = json!(false);
            outcome["verdict"]["kept"] = json!(false);
            if let (RunState::Failed, Ok(read)) = (run.state, agreement::read(&run.metadata)) {
                // To the ledger that is another attempt, which had nothing left to do but this.
                (to, attempt) = (RunState::Succeeded, run.attempt + 1);
                let verdict = Verdict::success(false);
                let (hash, lineage) = (read.contract.hash.to_hex(), &read.agreement.lineage);
                let about = About { run, attempt, lineage, contract_hash: &hash, external: false };
                let result = json!({"status": verdict.status, "applied": publication});
                entries = vec![about.planned(), about.running(), about.ended(&verdict, result)];
                outcome["verdict"] = json!(verdict);
                outcome["error"] = Value::Null;
                outcome["result"]["status"] = json!(verdict.status);
                if let Some(fields) = outcome["result"].as_object_mut() {
                    fields.remove("error");
                }
                events.push(Event::Ended(verdict));
            }
        }
        Done::Undone { publication } => {
            events.push(Event::Warned { what: format!("undone by {publication}") });
            outcome["undone"] = json!(true);
        }
    }
    entries.extend(entry.map(|entry| draft::read_value(entry, Timestamp::now())));
    let settle = Settle {
        tenant: run.tenant.clone(),
        run: run.id.clone(),
        version: run.version,
        from: run.state,
        to,
        attempt,
        events: events.iter().map(stored).collect(),
        entries,
        metadata: None,
        outcome: Some(outcome.to_string()),
        forget_capsule: matches!(done, Done::Undone { .. }),
    };
    waiter.wait(waiter.runs.settle(settle))
}

/// What became of a wish to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not begun.
    AtOnce,
    /// Whoever works on it has been asked.
    Asked,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    #[error("the run is over: it is {0}")]
    Over(RunState),
    #[error("the run has just been changed by somebody else; look again")]
    Lost,
    #[error("the run has published its result and waits for a worker to end it; undo it then")]
    Published,
    #[error(transparent)]
    Store(#[from] JournalError),
}

pub fn cancel(waiter: &Waiter, run: &Run) -> Result<Cancelled, CancelError> {
    if run.state.is_over() {
        return Err(CancelError::Over(run.state));
    }
    if run.state == RunState::Running {
        return match waiter.wait(waiter.runs.ask_to_cancel(&run.tenant, &run.id))? {
            Written::Done => Ok(Cancelled::Asked),
            _ => Err(CancelError::Lost),
        };
    }
    // One that was given back after it had published is no longer to be stopped.
    let rows = waiter.wait(waiter.runs.events(&run.tenant, &run.id, 0))?;
    let events = events_of(&rows).unwrap_or_default();
    // Each who takes it up says that it begins; an attempt begins with the first of them.
    let is_begun = |event: &Event| matches!(event, Event::Begun { attempt, .. } if *attempt == run.attempt);
    let is_published = |event: &Event| matches!(event, Event::Publishing { .. } | Event::Published { .. });
    if events.iter().skip_while(|event| !is_begun(event)).any(is_published) {
        return Err(CancelError::Published);
    }
    let message = "cancelled before it began";
    let verdict =
        Verdict { cancelled: true, retryable: false, ..Verdict::ended(Status::Failure, code::CANCELLED, message) };
    let read = agreement::read(&run.metadata);
    let entries = match &read {
        Ok(read) => {
            let hash = read.contract.hash.to_hex();
            let lineage = &read.agreement.lineage;
            let about = About { run, attempt: run.attempt, lineage, contract_hash: &hash, external: false };
            let is_planned = read.agreement.dependencies.is_empty() || run.attempt > 1;
            match (run.state, is_planned) {
                // To the ledger, publishing outside is nobody's here to cancel.
                (RunState::Planned, _) => Vec::new(),
                (_, true) => vec![about.running(), about.ended(&verdict, Value::Null)],
                (_, false) => vec![about.blocked(message)],
            }
        }
        Err(_) => Vec::new(),
    };
    let outcome = json!({"verdict": verdict, "error": {"code": code::CANCELLED, "message": message}});
    let settle = Settle {
        tenant: run.tenant.clone(),
        run: run.id.clone(),
        version: run.version,
        from: run.state,
        to: RunState::Cancelled,
        attempt: run.attempt,
        events: vec![stored(&Event::Ended(verdict))],
        entries,
        metadata: None,
        outcome: Some(outcome.to_string()),
        forget_capsule: false,
    };
    match waiter.wait(waiter.runs.settle(settle))? {
        Written::Done => Ok(Cancelled::AtOnce),
        _ => Err(CancelError::Lost),
    }
}
