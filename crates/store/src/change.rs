//! What a request does to one run, given what is stored of it. Shared by the dialects, which fetch and write.

use actum_ledger::run::{Commit, End, NewEvent, NewRun, Renewed, RunState, Settle};

use crate::request::Code;

/// What has to be known of a run to decide about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fact {
    pub state: RunState,
    pub attempt: u64,
    pub epoch: u64,
    pub version: u64,
    pub waits: u64,
    pub cancel: bool,
}

impl Fact {
    /// Whether a worker with this epoch still has it.
    pub(crate) fn is_held(&self, epoch: u64) -> bool {
        self.state == RunState::Running && self.epoch == epoch
    }

    /// What it becomes when it is to become this: nothing is queued while it waits for others.
    fn reaching(&self, state: RunState) -> RunState {
        match (state, self.waits) {
            (RunState::Queued | RunState::Blocked, 0) => RunState::Queued,
            (RunState::Queued | RunState::Blocked, _) => RunState::Blocked,
            (state, _) => state,
        }
    }
}

/// What has to be written about it.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub before: Fact,
    pub after: Fact,
    pub events: &'a [NewEvent],
    pub metadata: Option<&'a str>,
    /// Nobody holds it any longer.
    pub ended: Option<Ended<'a>>,
}

/// How a run left its worker's hands, or was settled without one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended<'a> {
    /// Whether the outcome is replaced, if only by none.
    pub replaces_outcome: bool,
    pub outcome: Option<&'a str>,
    pub error: Option<&'a str>,
    pub capsule: Option<&'a str>,
    pub forget_capsule: bool,
}

impl Change<'_> {
    /// How many more dependencies its dependants wait for now: −1, 0 or 1. `waits` of a run is at all times the number
    /// of its dependencies that are not succeeded.
    pub(crate) fn waits_for_it(&self) -> i64 {
        let succeeded = |fact: Fact| i64::from(fact.state == RunState::Succeeded);
        succeeded(self.before) - succeeded(self.after)
    }
}

/// Nothing if the worker no longer holds the run, or has not seen all of its journal.
pub(crate) fn commit<'a>(before: Fact, commit: &'a Commit, code: &'a Code) -> Option<Change<'a>> {
    if !before.is_held(commit.held.epoch) || before.version != commit.version {
        return None;
    }
    let mut after = before;
    after.version += commit.events.len() as u64;
    let ended = commit.end.as_ref().map(|End { state, outcome, capsule }| {
        after.state = before.reaching(*state);
        let (outcome, error, capsule) = (outcome.as_deref(), code.0.as_deref(), capsule.as_deref());
        Ended { replaces_outcome: true, outcome, error, capsule, forget_capsule: false }
    });
    Some(Change { before, after, events: &commit.events, metadata: commit.metadata.as_deref(), ended })
}

/// Nothing if the run is no longer what the caller has seen, or somebody holds it.
pub(crate) fn settle<'a>(before: Fact, settle: &'a Settle, code: &'a Code) -> Option<Change<'a>> {
    let seen = before.state == settle.from && before.version == settle.version;
    if !seen || before.state == RunState::Running {
        return None;
    }
    let mut after = before;
    after.version += settle.events.len() as u64;
    after.attempt = settle.attempt;
    let again = matches!(settle.to, RunState::Queued | RunState::Blocked);
    after.state = before.reaching(settle.to);
    after.cancel &= !again;
    let ended = Ended {
        replaces_outcome: again || settle.outcome.is_some(),
        outcome: settle.outcome.as_deref(),
        error: code.0.as_deref(),
        capsule: None,
        forget_capsule: settle.forget_capsule,
    };
    Some(Change { before, after, events: &settle.events, metadata: settle.metadata.as_deref(), ended: Some(ended) })
}

/// Nothing if nobody holds the run.
pub(crate) fn cancel(before: Fact) -> Option<Fact> {
    (before.state == RunState::Running).then_some(Fact { cancel: true, ..before })
}

/// Runs reported as doomed at a time; once they are settled the next ones show.
pub(crate) const DOOMED_MAX: i64 = 1_000;

/// Where a new run begins.
pub(crate) fn first_state(run: &NewRun, waits: u64) -> RunState {
    match (run.planned, waits) {
        (true, _) => RunState::Planned,
        (false, 0) => RunState::Queued,
        (false, _) => RunState::Blocked,
    }
}

/// What a worker hears about a run, given what is known of it if it still holds it.
pub(crate) fn renewed(run: &str, held: Option<Fact>) -> Renewed {
    Renewed { run: run.to_owned(), lost: held.is_none(), cancel: held.is_some_and(|fact| fact.cancel) }
}

/// What is worth telling a worker: that a run is to stop or, given nothing, that it is no longer held.
pub(crate) fn note(run: &str, cancel: Option<bool>) -> Option<Renewed> {
    (cancel != Some(false)).then(|| Renewed {
        run: run.to_owned(),
        lost: cancel.is_none(),
        cancel: cancel.unwrap_or(false),
    })
}
