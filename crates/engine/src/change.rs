//! What a person does to a run that exists: go on with it, go elsewhere from it, stop it.

use std::collections::BTreeMap;

use actum_contract::change::{ChangeError, change};
use actum_contract::metadata::ContractError;
use actum_contract::{Change, Contract, Intent, Layers, Partial, resolve};
use actum_kernel::{Event, GoverningContract, Phase, Status, Verdict, code};
use actum_ledger::draft;
use actum_ledger::journal::JournalError;
use actum_ledger::run::{NewRun, Run, RunState, Settle, Written};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::agreement::{self, Agreement, BadAgreement, ForkOf, Lineage, Read, Submitter};
use crate::desk::stored;
use crate::entry::{self, About, Agreements, time};
use crate::history::{events_of, state_of};
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
    #[error("another process has just changed the run; repeat the command")]
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

/// Continues a run under its own contract; under another one only if the intent says so. `by` asks for it; a fork is
/// submitted in that name.
pub fn resume(
    waiter: &Waiter,
    run: &Run,
    requested: &Partial,
    intent: Intent,
    by: Submitter,
) -> Result<Resumed, ResumeError> {
    let read = match agreement::read(&run.metadata) {
        Err(BadAgreement::Contract(ContractError::Unsupported { .. })) if intent == Intent::Fork => {
            return fork_unsupported(waiter, run, requested, by);
        }
        read => read?,
    };
    let changed = change(read.contract.config(), requested, intent)?;
    // A queued run that keeps its contract is only executed: the worker refuses it on record if it was altered.
    if !(changed == Change::Keep && matches!(run.state, RunState::Queued | RunState::Blocked)) {
        // A contract or agreement that was altered in the store must not reach the ledger as a new one.
        agreement::compare_with_ledger(waiter, run, &read)??;
    }
    match changed {
        Change::Fork(contract) => {
            // One that was forked itself, and did nothing of its own yet, stands where its source stood.
            let fork_of = match &read.agreement.fork_of {
                Some(earlier) if run.version == 0 => earlier.clone(),
                _ => ForkOf { run: run.id.clone(), events: run.version, under_own_contracts: true },
            };
            fork(waiter, run, &read.agreement, fork_of, contract, by)
        }
        Change::Keep => requeue(waiter, run, &read, None, &by),
        Change::Override(contract) => requeue(waiter, run, &read, Some(contract), &by),
    }
}

fn requeue(
    waiter: &Waiter,
    run: &Run,
    read: &Read,
    contract: Option<Contract>,
    by: &Submitter,
) -> Result<Resumed, ResumeError> {
    match run.state {
        RunState::Succeeded if contract.is_some() => {
            return Err(ResumeError::State(
                run.state,
                "its contract cannot be changed any more; --fork starts a new run",
            ));
        }
        RunState::Succeeded => return Ok(Resumed::Complete),
        RunState::Running => return Err(ResumeError::State(run.state, "wait for it, or cancel it first")),
        RunState::Cancelled => {
            return Err(ResumeError::State(run.state, "that is for good; --fork starts another from it"));
        }
        RunState::Planned => return Err(ResumeError::State(run.state, "it waits for an outside publisher")),
        RunState::Queued | RunState::Blocked if contract.is_none() => return Ok(Resumed::Queued),
        RunState::Queued if is_publishing(waiter, run)? => {
            return Err(ResumeError::State(
                run.state,
                "its result is being published; resume it without a change first",
            ));
        }
        RunState::Queued | RunState::Blocked | RunState::Failed => {}
    }
    let failed = run.state == RunState::Failed;
    let attempt = run.attempt + u64::from(failed);
    let now = waiter.checked_time(&run.tenant)?;
    let lineage = Lineage { snapshot_at: time(now), snapshot: None, ..read.agreement.lineage.clone() };
    let agreement = Agreement { lineage: lineage.clone(), ..read.agreement.clone() };
    let (mut events, mut entries) = (Vec::new(), Vec::new());
    let mut number = match contract.is_some() || read.attached.is_some() {
        true => agreement::contract_changes(waiter, run)?,
        false => 0,
    };
    let mut change_to = |from: Option<&Contract>, to: &Contract| {
        number += 1;
        entries.push(entry::contract_change(run, number, (from, to), Some(by)));
    };
    if read.attached.is_some() {
        change_to(None, &read.contract);
        events.push(stored(&attached()));
    }
    if let Some(contract) = &contract {
        change_to(Some(&read.contract), contract);
        let what = format!("{}: {} → {}", agreement::OVERRIDDEN, read.contract.hash.to_hex(), contract.hash.to_hex());
        events.push(stored(&Event::Warned { what }));
        let (from, to) = (Box::new(governing(&read.contract)), Box::new(governing(contract)));
        events.push(stored(&Event::ContractChanged { from, to }));
    }
    let contract = contract.as_ref().unwrap_or(&read.contract);
    // What waits for others is planned when it begins: only then is it known what it stands on.
    if failed && agreement.dependencies.is_empty() {
        let hash = contract.hash.to_hex();
        let about = About { run, attempt, lineage: &lineage, contract_hash: &hash, external: false };
        entries.extend(entry::close_before(waiter, &about)?);
        entries.push(about.planned());
    }
    let settle = Settle {
        tenant: run.tenant.clone(),
        run: run.id.clone(),
        version: run.version,
        from: run.state,
        to: RunState::Queued,
        attempt,
        events,
        entries,
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

/// Whether the run's attempt has begun to publish, and no outcome of that is on record.
fn is_publishing(waiter: &Waiter, run: &Run) -> Result<bool, JournalError> {
    let state = state_of(waiter, run)?;
    Ok(state.is_some_and(|state| state.publishing.is_some() && !matches!(state.phase, Phase::Over(_))))
}

fn governing(contract: &Contract) -> GoverningContract {
    GoverningContract { hash: contract.hash.to_hex(), config: contract.config().clone() }
}

/// What a run's journal says of a contract that was attached to it.
pub(crate) fn attached() -> Event {
    Event::Warned { what: "the run had no contract; the default one was attached".to_owned() }
}

/// A fork of a run whose contract this runtime cannot judge: the same work under a contract of the present versions, from the
/// start, because what the source did means what its own versions say.
fn fork_unsupported(waiter: &Waiter, source: &Run, requested: &Partial, by: Submitter) -> Result<Resumed, ResumeError> {
    let agreement = agreement::read_without_contract(&source.metadata)?;
    if !agreement::compare_agreement(waiter, source, &agreement)? {
        return Err(BadAgreement::Altered.into());
    }
    // Its limits stay in force where they are certainly the recorded ones; else those of the defaults do.
    let persisted = agreement::recorded_config(waiter, source)?;
    let layers = Layers { persisted: persisted.as_ref(), requested, env: &BTreeMap::new() };
    let contract = Contract::of(resolve(layers).map_err(ChangeError::Bad)?.config);
    let fork_of = ForkOf { run: source.id.clone(), events: 0, under_own_contracts: true };
    fork(waiter, source, &agreement, fork_of, contract, by)
}

/// A new run that begins where this one is. The source keeps its contract and its journal; nothing is copied.
fn fork(
    waiter: &Waiter,
    source: &Run,
    agreement: &Agreement,
    fork_of: ForkOf,
    contract: Contract,
    by: Submitter,
) -> Result<Resumed, ResumeError> {
    if source.state == RunState::Running {
        return Err(ResumeError::State(source.state, "wait for it, or cancel it first"));
    }
    let now = waiter.checked_time(&source.tenant)?;
    let lineage = Lineage { snapshot_at: time(now), snapshot: None, ..agreement.lineage.clone() };
    let agreement = Agreement {
        lineage: lineage.clone(),
        fork_of: Some(fork_of),
        submitted_by: Some(by.clone()),
        ..agreement.clone()
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
    let digests = BTreeMap::from([(id.clone(), agreement.digest())]);
    let agreed = Agreements { digests: &digests, contract: &contract, by: &by };
    let at = lineage.snapshot_at.clone();
    let mut entries =
        vec![entry::snapshot(source.tenant.as_str(), &new.submission, (&folder, &source.id), &at, &agreed)];
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
    /// What was taken back is in place again.
    Redone { publication: String },
}

/// Writes that down, together with an entry of the ledger if what was done is nothing but that entry: both or neither. A run
/// that failed only because others were in the way has succeeded with it. `Lost` if somebody else has just changed the run.
pub fn note(waiter: &Waiter, run: &Run, done: &Done, entry: Option<Value>) -> Result<Written, JournalError> {
    let mut outcome: Value =
        run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    // Its worker writes the record of a run that it has claimed.
    if run.state == RunState::Running {
        return Ok(Written::Lost);
    }
    let (mut events, mut entries) = (Vec::new(), Vec::new());
    let (mut to, mut attempt) = (run.state, run.attempt);
    match done {
        Done::Applied { publication, drift } => {
            let published = (publication.clone(), drift.clone());
            events.push(Event::Published { publication: published.0, drift: published.1, after: None });
            outcome["drift"] = json!(drift);
            outcome["undone"] = json!(false);
            outcome["verdict"]["kept"] = json!(false);
            if let (RunState::Failed | RunState::Queued, Ok(read)) = (run.state, agreement::read(&run.metadata)) {
                // To the ledger that is another attempt, which had nothing left to do but this. One that was resumed
                // meanwhile, and that no worker has claimed, is that attempt.
                let is_failed = run.state == RunState::Failed;
                (to, attempt) = (RunState::Succeeded, run.attempt + u64::from(is_failed));
                let verdict = Verdict::success(false);
                let (hash, lineage) = (read.contract.hash.to_hex(), &read.agreement.lineage);
                let about = About { run, attempt, lineage, contract_hash: &hash, external: false };
                let result = json!({"status": verdict.status, "applied": publication});
                entries = entry::close_before(waiter, &about)?;
                entries.extend([about.planned(), about.running(), about.ended(&verdict, result)]);
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
        Done::Redone { publication } => {
            events.push(Event::Warned { what: format!("in place again by {publication}") });
            outcome["undone"] = json!(false);
        }
    }
    entries.extend(entry.map(draft::read_own));
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
    #[error("another process has just changed the run; repeat the command")]
    Lost,
    #[error("the run has published its result and waits for a worker to end it; undo it then")]
    Published,
    #[error("the ledger refuses it: {0}")]
    Refused(String),
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
    let begins = |event: &Event| matches!(event, Event::Begun { attempt, .. } if *attempt == run.attempt);
    let of_publication = events
        .iter()
        .skip_while(|event| !begins(event))
        .filter(|event| matches!(event, Event::Publishing { .. } | Event::Published { .. } | Event::Reverted { .. }));
    if of_publication.last().is_some_and(|event| !matches!(event, Event::Reverted { .. })) {
        return Err(CancelError::Published);
    }
    let is_begun = events.iter().any(begins);
    let message = if is_begun { "cancelled while no worker had it" } else { "cancelled before it began" };
    let verdict =
        Verdict { cancelled: true, retryable: false, ..Verdict::ended(Status::Failure, code::CANCELLED, message) };
    let read = agreement::read(&run.metadata);
    let entries = match &read {
        Ok(read) => {
            let hash = read.contract.hash.to_hex();
            let lineage = &read.agreement.lineage;
            let about = About { run, attempt: run.attempt, lineage, contract_hash: &hash, external: false };
            let waits_for_others = !read.agreement.dependencies.is_empty();
            match (run.state, is_begun, waits_for_others) {
                // To the ledger, publishing outside is nobody's here to cancel.
                (RunState::Planned, ..) => Vec::new(),
                (_, true, _) => vec![about.ended(&verdict, Value::Null)],
                (_, false, false) => vec![about.running(), about.ended(&verdict, Value::Null)],
                (_, false, true) if run.attempt == 1 => vec![about.blocked(message)],
                (_, false, true) => {
                    let mut entries = entry::close_before(waiter, &about)?;
                    entries.extend([about.planned(), about.running(), about.ended(&verdict, Value::Null)]);
                    entries
                }
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
        Written::Lost => Err(CancelError::Lost),
        Written::Refused(refusal) => Err(CancelError::Refused(refusal.message)),
    }
}
