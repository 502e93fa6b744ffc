//! Driving one run: effect by effect, each outcome on record before the next begins. A run that was taken over goes on
//! from its journal; one that is lost is let go of without a word.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actum_contract::crash;
use actum_contract::id::Tenant;
use actum_kernel::{
    Agreed, ContractPeriod, Effect, Event, Finished, GoverningContract, Hands, SetBack, State, Status, Verdict, Why,
    code, decide, next,
};
use actum_ledger::draft;
use actum_ledger::journal::JournalError;
use actum_ledger::run::{End, Held, Run, RunState};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::agreement::{self, Agreement, BadAgreement, Lineage, Read};
use crate::change::attached;
use crate::desk::{NotWritten, Open, Pen, Stop};
use crate::entry::{About, close_before, contract_change, planned_id, snapshot_id, succeeded_id, time};
use crate::history::RunHistory;
use crate::wait::Waiter;
use crate::worker::{Engine, Watch};

/// Places where tests stop the process for good, in the order in which a run passes them.
pub const CRASH_POINTS: &[&str] = &[
    "run.taken",
    "run.begun",
    "run.frozen",
    "run.staged",
    "run.planned",
    "run.acted",
    "run.checked",
    "run.weighed",
    "run.tested",
    "run.published",
    "run.receipted",
    "run.ended",
];

/// How long a store that did not answer is left alone.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How long `actum run` waits before it takes up a run again that it had to put off.
const PUT_OFF_FOR: Duration = Duration::from_secs(1);

/// How often `actum run` takes a run up before it leaves it in the queue and ends.
const FOREGROUND_EPOCHS_MAX: u64 = 10;

/// How often a run is taken up before what keeps it from going on counts as its end.
const EPOCHS_MAX: u64 = 500;

/// Why there are no hands for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoHands {
    /// Something that is needed does not answer; later it may.
    PutOff(String),
    /// This machine cannot; another one may.
    Machine(String),
    Never(String),
    /// What the run was agreed on is not there any more; `code` says what.
    Refused {
        code: &'static str,
        message: String,
    },
}

impl NoHands {
    fn into_fault(self) -> Event {
        match self {
            Self::PutOff(message) | Self::Machine(message) | Self::Never(message) => {
                Event::Faulted { code: "WORKSPACE_UNAVAILABLE".into(), message, retryable: true }
            }
            Self::Refused { code, message } => Event::Faulted { code: code.into(), message, retryable: false },
        }
    }
}

/// Makes hands for runs.
pub trait Workshop: Send + Sync {
    /// `contract_hash` and `agreement` are what the run was agreed on, asserted; `state` is where it stands.
    fn take_up(
        &self,
        run: &Run,
        contract_hash: &str,
        agreement: &Agreement,
        state: &State,
    ) -> Result<Box<dyn Hands>, NoHands>;

    /// Whose runs these are.
    fn tenant(&self) -> Tenant;

    /// The name of this machine, as the history of a run keeps it.
    fn machine(&self) -> String {
        String::new()
    }

    /// The machine failed a run, for this reason; or it is well again.
    fn report_health(&self, _unwell: Option<&str>) {}

    /// Whether this machine can execute runs: room on the disk, open files, memory, cells. The reason if not.
    fn self_check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Workers that are known to be gone.
    fn gone(&self) -> Vec<String> {
        Vec::new()
    }

    /// These have no run any more that somebody would have to take over.
    fn forget(&self, _gone: &[String]) {}
}

pub(crate) struct Driver<'a> {
    pub waiter: &'a Waiter,
    pub workshop: &'a dyn Workshop,
    pub watch: &'a dyn Watch,
    pub owner: &'a str,
    /// What is interrupted here goes back into the queue, for others.
    pub hands_back: bool,
    pub lease: Duration,
    /// Why this machine is unwell, as the run reported that failed on it.
    pub unwell: &'a Mutex<Option<String>>,
    pub engine: &'a Engine,
}

impl Driver<'_> {
    /// Takes a claimed run to its end, or until it has to be let go of.
    pub(crate) fn drive(&self, run: &Run, stop: &Arc<Stop>) {
        let held = Held { tenant: run.tenant.clone(), run: run.id.clone(), epoch: run.epoch };
        let pen = Pen::new(held, run.version, self.waiter.clone(), Arc::clone(stop), self.lease);
        self.watch.taken(run);
        crash::pass(CRASH_POINTS, "run.taken");
        match self.try_drive(run, &pen, stop) {
            Ok(()) => {}
            Err(NotWritten::Lost) => self.watch.lost(run),
            Err(NotWritten::Refused(why)) => self.give_up(run, stop, &why),
            Err(e) => {
                self.watch.remark(run, &e.to_string());
                let is_away = matches!(e, NotWritten::Store(JournalError::Unavailable(_)));
                match is_away && run.epoch < EPOCHS_MAX {
                    true => self.give_back(run, stop, &e.to_string()),
                    // What repeats is not tried in a hurry: the lease runs out first.
                    false => self.watch.lost(run),
                }
            }
        }
    }

    /// Puts a run back into the queue after the store did not answer; for as long as the lease may last. Then it runs out,
    /// and another worker tries.
    fn give_back(&self, run: &Run, stop: &Arc<Stop>, why: &str) {
        // A process that was asked to end does not wait for a store that is silent: the lease runs out.
        if stop.has_to_end() {
            return self.watch.lost(run);
        }
        let until = Instant::now() + self.lease;
        let found = loop {
            match self.waiter.wait(self.waiter.runs.runs_named(&run.tenant, &run.id)) {
                Ok(found) => break found.into_iter().find(|found| found.id == run.id && found.epoch == run.epoch),
                Err(_) if Instant::now() < until && stop.why().is_none() => std::thread::sleep(ASKED_AGAIN_AFTER),
                Err(_) => break None,
            }
        };
        let Some(found) = found.filter(|found| found.state == RunState::Running) else { return self.watch.lost(run) };
        let held = Held { tenant: run.tenant.clone(), run: run.id.clone(), epoch: run.epoch };
        let pen = Pen::new(held, found.version, self.waiter.clone(), Arc::clone(stop), self.lease);
        if self.put_off(run, &pen, why).is_err() {
            self.watch.lost(run);
        }
    }

    /// The ledger does not take what happened, and will not take it next time either.
    fn give_up(&self, run: &Run, stop: &Arc<Stop>, why: &str) {
        let message = format!("the ledger refuses what happened: {why}");
        self.watch.remark(run, &message);
        let verdict =
            Verdict { retryable: false, ..Verdict::ended(Status::Failure, "LEDGER_REFUSED", message.clone()) };
        let found = self.waiter.wait(self.waiter.runs.runs_named(&run.tenant, &run.id)).unwrap_or_default();
        let Some(version) = found.iter().find(|found| found.id == run.id).map(|found| found.version) else { return };
        let held = Held { tenant: run.tenant.clone(), run: run.id.clone(), epoch: run.epoch };
        let pen = Pen::new(held, version, self.waiter.clone(), Arc::clone(stop), self.lease);
        let outcome = json!({"verdict": verdict, "error": {"code": "LEDGER_REFUSED", "message": message}});
        let end = End { state: RunState::Failed, outcome: Some(outcome.to_string()), capsule: None };
        if pen.write(&[Event::Ended(verdict.clone())], Vec::new(), Some(end)).is_ok() {
            self.watch.ended(run, &verdict);
        }
    }

    fn try_drive(&self, run: &Run, pen: &Pen, stop: &Arc<Stop>) -> Result<(), NotWritten> {
        let mut read = match agreement::read(&run.metadata) {
            Ok(read) => read,
            Err(bad) => return self.refuse(run, pen, &bad),
        };
        if let Err(bad) = agreement::compare_with_ledger(self.waiter, run, &read)? {
            return self.refuse(run, pen, &bad);
        }
        let (mut state, events) = match self.state_of(run, &read)? {
            Ok(found) => found,
            Err(why) => return self.refuse(run, pen, &BadAgreement::Unreadable(why)),
        };
        let is_new = !events.iter().any(|e| matches!(e, Event::Begun { attempt, .. } if *attempt == run.attempt));
        let written = self.begin(run, &mut read, &mut state, pen, is_new)?;
        // From here on what was just agreed on counts: receipts name it.
        let run = &Run { metadata: written.unwrap_or_else(|| run.metadata.clone()), ..run.clone() };
        crash::pass(CRASH_POINTS, "run.begun");
        // Asked for while nobody worked on it.
        if run.cancel {
            stop.stop(Why::Cancelled);
        }
        let hash = read.contract.hash.to_hex();
        let mut hands = match self.workshop.take_up(run, &hash, &read.agreement, &state) {
            Ok(hands) => hands,
            Err(NoHands::PutOff(why)) if self.may_put_off(run) => return self.put_off(run, pen, &why),
            Err(NoHands::Machine(why)) if self.may_put_off(run) => match self.set_back(run, &mut state, pen, &why)? {
                None => return Ok(()),
                Some(fault) => return self.end_without_hands(run, &read, &mut state, pen, fault),
            },
            // It may have published already: then it ends only by what became of that.
            Err(
                NoHands::PutOff(why)
                | NoHands::Machine(why)
                | NoHands::Never(why)
                | NoHands::Refused { message: why, .. },
            ) if state.publishing.is_some() && run.epoch < EPOCHS_MAX => {
                return self.put_off(run, pen, &why);
            }
            Err(why) => return self.end_without_hands(run, &read, &mut state, pen, why.into_fault()),
        };
        while let Some(effect) = next(&state) {
            self.watch.see(run, &state);
            if let Effect::Finish(verdict) = &effect {
                let finished = hands.finish(verdict, &state);
                // Machines have failed it often enough: it ends, if need be without a receipt.
                let is_given_up = verdict.code.as_deref() == Some(code::MACHINE_FAILED);
                let machines = hands.put_off().filter(|_| finished.is_err() && hands.is_machines_fault());
                let machines = machines.filter(|_| !is_given_up);
                if let Some(why) = machines.filter(|_| self.may_put_off(run))
                    && self.set_back(run, &mut state, pen, &why)?.is_none()
                {
                    return Ok(());
                }
                let away = hands.put_off().filter(|_| finished.is_err() && !is_given_up);
                if let Some(why) = away.filter(|_| self.may_put_off(run)) {
                    return self.put_off(run, pen, &why);
                }
                let finished = finished.unwrap_or_else(|why| {
                    self.watch.remark(run, &format!("there is no receipt: {why}"));
                    Finished { outcome: outcome_without_receipt(verdict, &state), entries: Vec::new() }
                });
                crash::pass(CRASH_POINTS, "run.receipted");
                self.end(run, &read, verdict, &[], pen, finished)?;
                crash::pass(CRASH_POINTS, "run.ended");
                hands.leave(verdict);
                self.watch.ended(run, verdict);
                return Ok(());
            }
            // What programs do takes its time, and people look on.
            if !matches!(effect, Effect::Freeze | Effect::Stage | Effect::Weigh | Effect::Publish) {
                pen.send();
            }
            // A process that was asked to stop begins nothing more. What may be published already is found out, though: an
            // attempt that has begun to publish ends only by what became of that.
            let is_publishing = effect == Effect::Publish && state.publishing.is_some();
            let event = match stop.why() {
                Some(Why::Lost) => return Err(NotWritten::Lost),
                Some(_) if !is_publishing => Event::Stopped { cancelled: false, reason: String::new() },
                _ => perform(&mut *hands, &effect, &mut state, stop, Some(pen)),
            };
            let machines = hands.put_off().filter(|_| hands.is_machines_fault() && !is_published(&event));
            if let Some(why) = machines {
                let too_many = match self.may_put_off(run) {
                    true => match self.set_back(run, &mut state, pen, &why)? {
                        None => return Ok(()),
                        fault => fault,
                    },
                    false => None,
                };
                // What became of a publication is unknown: the run has no end yet.
                if state.publishing.is_some() && hands.is_outcome_unknown() && run.epoch < EPOCHS_MAX {
                    return self.put_off(run, pen, &why);
                }
                let event = too_many.unwrap_or(event);
                let decision = decide(&mut state, event);
                pen.note(&decision.events, Vec::new(), None);
                continue;
            }
            let may_put_off = self.may_put_off(run) || (state.publishing.is_some() && run.epoch < EPOCHS_MAX);
            if let Some(why) = hands.put_off().filter(|_| may_put_off && !is_published(&event)) {
                return self.put_off(run, pen, &why);
            }
            match stop.why() {
                Some(Why::Lost) => return Err(NotWritten::Lost),
                // Another worker goes on where this one leaves.
                Some(Why::Interrupted) if self.hands_back && !is_published(&event) => {
                    let end = End { state: RunState::Queued, outcome: None, capsule: None };
                    pen.write(&[], Vec::new(), Some(end))?;
                    hands.leave(&Verdict::ended(Status::Failure, code::INTERRUPTED, "handed back"));
                    self.watch.handed_back(run);
                    return Ok(());
                }
                // What is published is published; everything else is given up.
                Some(why) if !is_published(&event) => {
                    let cancelled = why == Why::Cancelled;
                    let reason = if cancelled { "cancelled on request" } else { "interrupted; resume to go on" };
                    let decision = decide(&mut state, Event::Stopped { cancelled, reason: reason.to_owned() });
                    pen.note(&decision.events, Vec::new(), None);
                }
                _ => {
                    let place = crash_point(&event);
                    let is_result = is_result(&event);
                    let decision = decide(&mut state, event);
                    place.into_iter().for_each(|place| crash::pass(CRASH_POINTS, place));
                    match is_result {
                        true => pen.write(&decision.events, Vec::new(), None)?,
                        false => pen.note(&decision.events, Vec::new(), None),
                    }
                }
            }
        }
        Ok(())
    }

    /// What was taken up so often without an end is not kept from it by something that is away for a while.
    fn may_put_off(&self, run: &Run) -> bool {
        self.hands_back && run.epoch < EPOCHS_MAX
    }

    /// Ends an attempt that could not begin.
    fn end_without_hands(
        &self,
        run: &Run,
        read: &Read,
        state: &mut State,
        pen: &Pen,
        fault: Event,
    ) -> Result<(), NotWritten> {
        let decision = decide(state, fault);
        let verdict = verdict_of(state);
        let outcome = outcome_without_receipt(&verdict, state);
        self.end(run, read, &verdict, &decision.events, pen, Finished { outcome, entries: Vec::new() })
    }

    /// Gives a run back because of this machine, which claims nothing more until it is well again. Returns the end of the attempt
    /// instead if as many machines have failed it as may; an attempt that has begun to publish has no such end.
    fn set_back(&self, run: &Run, state: &mut State, pen: &Pen, why: &str) -> Result<Option<Event>, NotWritten> {
        self.watch.remark(run, &format!("set back: {why}"));
        self.doubt_machine(why);
        let set_back =
            SetBack { machine: self.workshop.machine(), worker: self.owner.to_owned(), reason: why.to_owned() };
        let decision = decide(state, Event::SetBack(set_back));
        if let Some(message) = state.too_many_set_backs().filter(|_| state.publishing.is_none()) {
            pen.note(&decision.events, Vec::new(), None);
            return Ok(Some(Event::Faulted { code: code::MACHINE_FAILED.into(), message, retryable: true }));
        }
        let outcome = Some(json!({"put_off": why}).to_string());
        pen.write(&decision.events, Vec::new(), Some(End { state: RunState::Queued, outcome, capsule: None }))?;
        self.watch.handed_back(run);
        Ok(None)
    }

    /// From here on this worker claims nothing until its self-check passes.
    fn doubt_machine(&self, why: &str) {
        *self.unwell.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.workshop.report_health(Some(why));
    }

    /// Gives a run back that cannot go on here and now; what it has done is on record.
    fn put_off(&self, run: &Run, pen: &Pen, why: &str) -> Result<(), NotWritten> {
        self.watch.remark(run, &format!("put off: {why}"));
        // `actum run` takes its own runs again at once: not in a hurry.
        match self.hands_back {
            true => self.doubt_machine(why),
            false if run.epoch < FOREGROUND_EPOCHS_MAX => std::thread::sleep(PUT_OFF_FOR),
            // Nothing else can be published to this workspace either: its next command tries again.
            false => self.engine.interrupt(),
        }
        let outcome = Some(json!({"put_off": why}).to_string());
        pen.write(&[], Vec::new(), Some(End { state: RunState::Queued, outcome, capsule: None }))?;
        self.watch.handed_back(run);
        Ok(())
    }

    /// The state of the run by its journal and those of the runs it was forked from, and its own events.
    fn state_of(&self, run: &Run, read: &Read) -> Result<Result<(State, Vec<Event>), String>, NotWritten> {
        Ok(RunHistory::load(self.waiter, run, read)?.map(|history| {
            let state = history.state().unwrap_or_else(|| State::new(read.agreed()));
            (state, history.own().to_vec())
        }))
    }

    /// The attempt begins, or is taken over. The metadata, if that is new.
    fn begin(
        &self,
        run: &Run,
        read: &mut Read,
        state: &mut State,
        pen: &Pen,
        is_new: bool,
    ) -> Result<Option<String>, NotWritten> {
        let mut entries = Vec::new();
        let mut metadata = read.attached.clone();
        if is_new {
            // An earlier version planned dependants when they were resumed.
            let is_planned = read.agreement.dependencies.is_empty() || is_recorded_as_planned(self.waiter, run)?;
            if !is_planned {
                // Only now is it known what it stands on.
                read.agreement.lineage.depends_on = vec![snapshot_id(&run.submission)];
                for (run_id, attempt, robot) in self.dependencies(run, &read.agreement)? {
                    read.agreement.lineage.depends_on.push(succeeded_id(&robot, &run_id, attempt));
                }
                // Later than all of them: the store's time, read after they were recorded.
                read.agreement.lineage.snapshot_at = time(self.waiter.store_time(&run.tenant)?);
                metadata = Some(agreement::write(&read.contract, &read.agreement));
            }
            let (hash, lineage) = (read.contract.hash.to_hex(), &read.agreement.lineage);
            let about = About { run, attempt: run.attempt, lineage, contract_hash: &hash, external: false };
            if !is_planned {
                entries.extend(close_before(self.waiter, &about)?);
                entries.push(about.planned());
            }
            entries.push(about.running());
        }
        let begun = Event::Begun { attempt: run.attempt, worker: self.owner.to_owned() };
        let mut events = decide(state, begun).events;
        if read.attached.is_some() {
            let number = agreement::contract_changes(self.waiter, run)? + 1;
            entries.push(contract_change(run, number, (None, &read.contract), None));
            events.extend(decide(state, attached()).events);
        }
        // Nothing that anybody could see is done before it is on its way, and nothing is kept before it is on record.
        pen.note(&events, entries, metadata.clone());
        Ok(metadata)
    }

    fn dependencies(&self, run: &Run, agreement: &Agreement) -> Result<Vec<(String, u64, String)>, NotWritten> {
        let mut found = Vec::new();
        for id in agreement.dependencies.values() {
            let runs = self.waiter.wait(self.waiter.runs.runs_named(&run.tenant, id))?;
            found.extend(
                runs.into_iter().filter(|other| other.id == *id).map(|other| (other.id, other.attempt, other.robot)),
            );
        }
        Ok(found)
    }

    /// The stored contract is not one that this worker can or may execute. Visible everywhere, and nothing was done.
    fn refuse(&self, run: &Run, pen: &Pen, bad: &BadAgreement) -> Result<(), NotWritten> {
        let verdict = Verdict { retryable: false, ..Verdict::ended(Status::Failure, bad.code(), bad.to_string()) };
        let lineage = lineage_of(run, self.waiter.store_time(&run.tenant)?);
        let hash = hash_of(&run.metadata);
        let about = About { run, attempt: run.attempt, lineage: &lineage, contract_hash: &hash, external: false };
        let error = json!({"code": bad.code(), "message": bad.to_string(), "details": bad.details()});
        let outcome =
            json!({"error": error, "verdict": verdict, "governance": {"code": bad.code(), "details": bad.details()}});
        let events =
            [Event::Begun { attempt: run.attempt, worker: self.owner.to_owned() }, Event::Ended(verdict.clone())];
        let end = End { state: RunState::Failed, outcome: Some(outcome.to_string()), capsule: None };
        let entries = vec![about.running(), about.ended(&verdict, Value::Null)];
        // One that was never planned cannot be said to run; the refusal itself has to be visible all the same.
        match pen.write(&events, entries, Some(end.clone())) {
            Err(NotWritten::Refused(_)) => pen.write(&events, vec![about.blocked(&bad.to_string())], Some(end))?,
            other => other?,
        }
        self.watch.ended(run, &verdict);
        Ok(())
    }

    fn end(
        &self,
        run: &Run,
        read: &Read,
        verdict: &Verdict,
        events: &[Event],
        pen: &Pen,
        finished: Finished,
    ) -> Result<(), NotWritten> {
        let (hash, lineage) = (read.contract.hash.to_hex(), &read.agreement.lineage);
        let about = About { run, attempt: run.attempt, lineage, contract_hash: &hash, external: false };
        let state = match verdict.status {
            Status::Success => RunState::Succeeded,
            _ if verdict.cancelled => RunState::Cancelled,
            _ => RunState::Failed,
        };
        let result = json!({
            "status": verdict.status, "receiptId": finished.outcome["result"]["receipt_id"],
            "outputHash": finished.outcome["result"]["output_hash"],
        });
        let mut entries = vec![about.ended(verdict, result)];
        entries.extend(finished.entries.into_iter().map(draft::read_own));
        let admitted = verdict.status == Status::Success && !verdict.kept;
        let capsule = finished.outcome["capsule"].as_str().filter(|_| admitted).map(ToOwned::to_owned);
        let end = End { state, outcome: Some(finished.outcome.to_string()), capsule };
        pen.write(events, entries, Some(end))
    }
}

/// Performs an effect. What the hands had to record meanwhile is part of the state.
fn perform(hands: &mut dyn Hands, effect: &Effect, state: &mut State, stop: &Stop, pen: Option<&Pen>) -> Event {
    let desk = Open { stop, pen, recorded: Mutex::new(Vec::new()) };
    let event = hands.perform(effect, state, &desk);
    for recorded in desk.take() {
        drop(decide(state, recorded));
    }
    event
}

/// Repeats a run from the beginning with nothing recorded anywhere. Returns the state and the events at the end.
/// `contracts` are those the run had, oldest first; each comes into force after as many steps and acts as it did then. Empty:
/// that of `agreed` alone.
pub fn rehearse(mut agreed: Agreed, contracts: &[ContractPeriod], hands: &mut dyn Hands) -> (State, Vec<Event>) {
    let stop = Stop::default();
    let mut later = contracts.iter().peekable();
    let mut steps_governed = 0;
    if let Some(first) = later.next() {
        agreed.govern_by(&first.contract);
        steps_governed = first.steps.len();
    }
    let mut state = State::new(agreed);
    let mut events = decide(&mut state, Event::Begun { attempt: 1, worker: String::new() }).events;
    loop {
        while state.steps_done >= steps_governed
            && let Some(period) =
                later.next_if(|period| period.acts_before.is_none_or(|acts| state.accepted_act_count() >= acts))
        {
            steps_governed += period.steps.len();
            let from =
                GoverningContract { hash: state.agreed.contract_hash.clone(), config: state.agreed.config.clone() };
            let changed = Event::ContractChanged { from: Box::new(from), to: Box::new(period.contract.clone()) };
            events.extend(decide(&mut state, changed).events);
        }
        let Some(effect) = next(&state) else { break };
        if matches!(effect, Effect::Finish(_)) {
            break;
        }
        let event = perform(hands, &effect, &mut state, &stop, None);
        events.extend(decide(&mut state, event).events);
    }
    (state, events)
}

/// What the agent has done is on record before anything else begins. Everything else is found out again.
fn is_result(event: &Event) -> bool {
    matches!(event, Event::Planned(_) | Event::Acted(_))
}

/// What has happened to the workspace has happened.
fn is_published(event: &Event) -> bool {
    matches!(event, Event::Published { .. } | Event::Conflicted { .. })
}

fn crash_point(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Frozen { .. } => "run.frozen",
        Event::Staged { .. } => "run.staged",
        Event::Planned(_) => "run.planned",
        Event::Acted(_) => "run.acted",
        Event::Checked(_) => "run.checked",
        Event::Weighed { .. } => "run.weighed",
        Event::Tested(_) => "run.tested",
        Event::Published { .. } => "run.published",
        _ => return None,
    })
}

fn verdict_of(state: &State) -> Verdict {
    match &state.phase {
        actum_kernel::Phase::Over(verdict) => verdict.clone(),
        _ => Verdict::ended(Status::Failure, "INTERNAL_ERROR", "the run has no end"),
    }
}

/// What is known of an end for which no receipt could be made.
fn outcome_without_receipt(verdict: &Verdict, state: &State) -> Value {
    json!({
        "verdict": verdict,
        "error": {"code": verdict.code, "message": verdict.message},
        "warnings": state.warnings,
    })
}

fn lineage_of(run: &Run, now: Timestamp) -> Lineage {
    let value: Value = serde_json::from_str(&run.metadata).unwrap_or(Value::Null);
    serde_json::from_value(value["lineage"].clone()).unwrap_or_else(|_| Lineage {
        depends_on: vec![snapshot_id(&run.submission)],
        snapshot_at: time(now),
        snapshot: None,
    })
}

/// Whether the ledger holds that this attempt was planned.
fn is_recorded_as_planned(waiter: &Waiter, run: &Run) -> Result<bool, NotWritten> {
    let id = planned_id(&run.robot, &run.id, run.attempt);
    Ok(run.attempt > 1 && waiter.wait(waiter.journal.entry(&run.tenant, &id))?.is_some())
}

fn hash_of(metadata: &str) -> String {
    let value: Value = serde_json::from_str(metadata).unwrap_or(Value::Null);
    value[actum_contract::metadata::HASH].as_str().unwrap_or("missing").to_owned()
}
