//! The desk of one run: hears that work has to stop, and writes events down under the run's epoch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actum_kernel::{Desk, Event, Recorded, Why};
use actum_ledger::draft::{self, Submission};
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::run::{Commit, End, Held, NewEvent, RunState, Written};
use serde_json::Value;

use crate::wait::Waiter;

/// Whether work on a run has to stop, and who wants to hear of it.
#[derive(Default)]
pub(crate) struct Stop(Mutex<Stopping>);

#[derive(Default)]
struct Stopping {
    why: Option<Why>,
    /// When the first reason came.
    since: Option<Instant>,
    calls: Vec<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stop({:?})", self.why())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stop {
    pub(crate) fn why(&self) -> Option<Why> {
        locked(&self.0).why.clone()
    }

    /// Returns whether this process was asked to end so long ago that it must not wait for the store any longer.
    pub(crate) fn has_to_end(&self) -> bool {
        let stopping = locked(&self.0);
        let is_over = |since: Instant| since.elapsed() >= ASKED_AGAIN_WHILE_ENDING;
        stopping.why == Some(Why::Interrupted) && stopping.since.is_some_and(is_over)
    }

    /// The first reason stays, but for the loss of the run, which goes before all others.
    pub(crate) fn stop(&self, why: Why) {
        let calls = {
            let mut stopping = locked(&self.0);
            if stopping.why.is_none() || why == Why::Lost {
                stopping.why = Some(why);
            }
            stopping.since.get_or_insert_with(Instant::now);
            std::mem::take(&mut stopping.calls)
        };
        calls.into_iter().for_each(|call| call());
    }

    pub(crate) fn on_stop(&self, call: Box<dyn FnOnce() + Send>) {
        let mut stopping = locked(&self.0);
        if stopping.why.is_none() {
            stopping.calls.push(call);
            return;
        }
        drop(stopping);
        call();
    }
}

/// How long a store that did not answer is left alone.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How long a store that does not answer is asked again once this process was asked to end.
const ASKED_AGAIN_WHILE_ENDING: Duration = Duration::from_secs(3);

/// What a worker writes about a run it holds.
pub(crate) struct Pen {
    pub held: Held,
    state: Mutex<Writing>,
    waiter: Waiter,
    stop: Arc<Stop>,
    /// How long a store that does not answer is asked again: as long as the lease may last.
    patience: Duration,
}

struct Writing {
    /// Events in the journal, those on their way among them.
    version: u64,
    /// What happened, and need not be on record before the next thing is done: what it tells of can be done again
    /// without anybody noticing.
    pending: Pending,
    /// What is on its way, and was not waited for.
    sent: Vec<(Commit, Work<'static, Written>)>,
}

#[derive(Default)]
struct Pending {
    events: Vec<NewEvent>,
    entries: Vec<Submission>,
    metadata: Option<String>,
}

/// Why something could not be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotWritten {
    #[error("lease lost to another worker")]
    Lost,
    #[error("the ledger refuses it: {0}")]
    Refused(String),
    #[error(transparent)]
    Store(#[from] JournalError),
}

impl Pen {
    pub(crate) fn new(held: Held, version: u64, waiter: Waiter, stop: Arc<Stop>, patience: Duration) -> Self {
        let state = Mutex::new(Writing { version, pending: Pending::default(), sent: Vec::new() });
        Self { held, state, waiter, stop, patience }
    }

    /// Keeps something for the next write.
    pub(crate) fn note(&self, events: &[Event], entries: Vec<Submission>, metadata: Option<String>) {
        let pending = &mut locked(&self.state).pending;
        pending.events.extend(events.iter().map(stored));
        pending.entries.extend(entries);
        pending.metadata = metadata.or(pending.metadata.take());
    }

    /// Lets others see what was kept, before something is done that takes its time. The next write waits for it.
    pub(crate) fn send(&self) {
        let mut state = locked(&self.state);
        if !state.pending.events.is_empty() {
            let commit = self.commit(&mut state, None);
            let sent = self.waiter.runs.commit(commit.clone());
            state.sent.push((commit, sent));
        }
    }

    /// Writes events down, with all that was kept: when this returns they are on record.
    pub(crate) fn write(&self, events: &[Event], entries: Vec<Submission>, end: Option<End>) -> Result<(), NotWritten> {
        if self.stop.why() == Some(Why::Lost) {
            return Err(NotWritten::Lost);
        }
        self.note(events, entries, None);
        let mut state = locked(&self.state);
        let before = state.version;
        let commit = self.commit(&mut state, end);
        let written = self.waiter.runs.commit(commit.clone());
        let mut sent = std::mem::take(&mut state.sent);
        sent.push((commit, written));
        let judged = self.judge_all(sent);
        if matches!(judged, Err(NotWritten::Refused(_))) {
            state.version = before;
        }
        judged
    }

    /// Waits for all that is on its way. From the first that the store did not answer on, all are sent again.
    fn judge_all(&self, sent: Vec<(Commit, Work<'static, Written>)>) -> Result<(), NotWritten> {
        let mut again = Vec::new();
        for (commit, work) in sent {
            let written = self.waiter.wait(work);
            match written {
                // Its answer does not count: the commit before it may be missing.
                _ if !again.is_empty() => again.push(commit),
                Ok(written) => self.judge(written)?,
                Err(JournalError::Unavailable(_)) => again.push(commit),
                Err(e) => return Err(e.into()),
            }
        }
        if again.is_empty() { Ok(()) } else { self.insist(again) }
    }

    /// Sends commits again that the store did not answer, for as long as the lease may last. No other worker writes about a run
    /// under our epoch, so its version says which of them arrived.
    fn insist(&self, mut again: Vec<Commit>) -> Result<(), NotWritten> {
        let until = Instant::now() + self.patience;
        loop {
            let row = match self.waiter.wait(self.waiter.runs.runs_named(&self.held.tenant, &self.held.run)) {
                Ok(found) => found.into_iter().find(|run| run.id == self.held.run),
                Err(e @ JournalError::Unavailable(_)) => {
                    self.wait_a_moment(until, e)?;
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            let Some(row) = row.filter(|row| row.epoch == self.held.epoch) else { return self.judge(Written::Lost) };
            // The end arrived, and nothing comes after it.
            if row.state != RunState::Running {
                return Ok(());
            }
            again.retain(|commit| commit.version + commit.events.len() as u64 > row.version || commit.end.is_some());
            let Some(next) = again.first().cloned() else { return Ok(()) };
            match self.waiter.wait(self.waiter.runs.commit(next)) {
                Ok(written) => {
                    self.judge(written)?;
                    again.remove(0);
                }
                Err(e @ JournalError::Unavailable(_)) => self.wait_a_moment(until, e)?,
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits before the store is asked again. Fails with the error if there is no time left for that.
    fn wait_a_moment(&self, until: Instant, e: JournalError) -> Result<(), NotWritten> {
        if Instant::now() >= until || self.stop.why() == Some(Why::Lost) || self.stop.has_to_end() {
            return Err(e.into());
        }
        std::thread::sleep(ASKED_AGAIN_AFTER);
        Ok(())
    }

    fn commit(&self, state: &mut Writing, end: Option<End>) -> Commit {
        let version = state.version;
        let Pending { events, entries, metadata } = std::mem::take(&mut state.pending);
        state.version += events.len() as u64;
        Commit { held: self.held.clone(), version, events, entries, metadata, end }
    }

    fn judge(&self, written: Written) -> Result<(), NotWritten> {
        match written {
            Written::Done => Ok(()),
            Written::Lost => {
                self.stop.stop(Why::Lost);
                Err(NotWritten::Lost)
            }
            Written::Refused(refusal) => Err(NotWritten::Refused(refusal.message)),
        }
    }
}

pub(crate) fn stored(event: &Event) -> NewEvent {
    let body = serde_json::to_string(event).unwrap_or_default();
    NewEvent { kind: event.kind().to_owned(), body }
}

/// The desk that hands are given.
pub(crate) struct Open<'a> {
    pub stop: &'a Stop,
    pub pen: Option<&'a Pen>,
    /// What was recorded while an effect was performed.
    pub recorded: Mutex<Vec<Event>>,
}

impl Desk for Open<'_> {
    fn stopped(&self) -> Option<Why> {
        self.stop.why()
    }

    fn on_stop(&self, call: Box<dyn FnOnce() + Send>) {
        self.stop.on_stop(call);
    }

    fn record(&self, event: Event) -> Recorded {
        self.put_down(event, Vec::new())
    }

    fn record_with(&self, event: Event, entry: Value) -> Recorded {
        // What was kept so far must not be lost with an entry that is refused.
        match self.pen.map_or(Ok(()), |pen| pen.write(&[], Vec::new(), None)) {
            Ok(()) => self.put_down(event, vec![draft::read_own(entry)]),
            Err(e) => came_of(&e),
        }
    }
}

fn came_of(e: &NotWritten) -> Recorded {
    match e {
        NotWritten::Lost => Recorded::Lost,
        NotWritten::Refused(_) => Recorded::Refused,
        NotWritten::Store(_) => Recorded::Unknown,
    }
}

impl Open<'_> {
    fn put_down(&self, event: Event, entries: Vec<Submission>) -> Recorded {
        match self.pen.map_or(Ok(()), |pen| pen.write(std::slice::from_ref(&event), entries, None)) {
            Ok(()) => {
                locked(&self.recorded).push(event);
                Recorded::Done
            }
            Err(e) => came_of(&e),
        }
    }

    pub(crate) fn take(self) -> Vec<Event> {
        self.recorded.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
