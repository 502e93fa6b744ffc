//! The history of a run: its journal and those of the runs it was forked from, each event under the contract that was in
//! force when it was written.

use actum_kernel::{Agreed, Event, State};
use actum_ledger::journal::JournalError;
use actum_ledger::run::{Run, RunEvent};

use crate::agreement::{self, Read};
use crate::wait::Waiter;

/// Forks of forks that are followed.
const FORKS_MAX: usize = 100;

/// One journal, or the part of it that a fork took along.
#[derive(Debug)]
struct Segment {
    /// The agreement in force before the first event.
    agreed: Agreed,
    events: Vec<Event>,
}

/// Everything that led to where a run is.
#[derive(Debug)]
pub(crate) struct RunHistory {
    /// The runs it was forked from, oldest first; its own journal last.
    segments: Vec<Segment>,
}

impl RunHistory {
    /// Reads the journals. The inner error says which event or source cannot be read.
    pub(crate) fn load(waiter: &Waiter, run: &Run, read: &Read) -> Result<Result<Self, String>, JournalError> {
        // Most runs are taken up once, and have no journal yet.
        let rows = match run.version {
            0 => Vec::new(),
            _ => waiter.wait(waiter.runs.events(&run.tenant, &run.id, 0))?,
        };
        // Events are only ever added: fewer than there were when the row was read have been removed.
        if (rows.len() as u64) < run.version {
            return Ok(Err(format!("{} of its {} events are missing", run.version - rows.len() as u64, run.version)));
        }
        let own = match events_of(&rows) {
            Ok(events) => Segment { agreed: read.agreed().at_start(&events), events },
            Err(why) => return Ok(Err(why)),
        };
        if let Err(bad) = agreement::compare_changes(waiter, run, &own.events)? {
            return Ok(Err(bad));
        }
        let mut segments = vec![own];
        let mut next = read.agreement.fork_of.clone();
        for _ in 0..FORKS_MAX {
            // A fork that took nothing along depends on nothing of its source.
            let Some(fork) = next.take().filter(|fork| fork.events > 0) else { break };
            let found = waiter.wait(waiter.runs.runs_named(&run.tenant, &fork.run))?;
            let Some(source) = found.into_iter().find(|found| found.id == fork.run) else {
                return Ok(Err(format!("run {}, which it was forked from, is missing", fork.run)));
            };
            let of_source = |why: &dyn std::fmt::Display| format!("run {}, which it was forked from: {why}", fork.run);
            let read = match agreement::read(&source.metadata) {
                Ok(read) => read,
                Err(bad) => return Ok(Err(of_source(&bad))),
            };
            // The finished steps that were taken along mean what the source's contract says: it must be the recorded one.
            if let Err(bad) = agreement::compare_with_ledger(waiter, &source, &read)? {
                return Ok(Err(of_source(&bad)));
            }
            let rows = waiter.wait(waiter.runs.events(&run.tenant, &fork.run, 0))?;
            let mut events = match events_of(&rows) {
                Ok(events) => events,
                Err(why) => return Ok(Err(of_source(&why))),
            };
            if let Err(bad) = agreement::compare_changes(waiter, &source, &events)? {
                return Ok(Err(of_source(&bad)));
            }
            // The contract of before the first override, also if that override came after the fork.
            let by_fork = segments.last().map(|segment: &Segment| segment.agreed.clone());
            let agreed = match by_fork.filter(|_| !fork.under_own_contracts) {
                Some(by_fork) => by_fork,
                None => read.agreed().at_start(&events),
            };
            events.truncate(usize::try_from(fork.events).unwrap_or(usize::MAX));
            segments.push(Segment { agreed, events });
            next = read.agreement.fork_of;
        }
        segments.reverse();
        Ok(Ok(Self { segments }))
    }

    /// The state that all events lead to.
    pub(crate) fn state(&self) -> Option<State> {
        let mut segments = self.segments.iter();
        let first = segments.next()?;
        let mut state = State::new(first.agreed.clone());
        state.follow(&first.events);
        for segment in segments {
            state = state.forked(segment.agreed.clone());
            state.follow(&segment.events);
        }
        Some(state)
    }

    /// The run's own events.
    pub(crate) fn own(&self) -> &[Event] {
        self.segments.last().map_or(&[], |own| &own.events)
    }

    fn into_events(self) -> Vec<Event> {
        self.segments.into_iter().flat_map(|segment| segment.events).collect()
    }
}

/// All events that led to where a run is, those of its sources first. Leaves out sources that cannot be read.
pub fn full_history(waiter: &Waiter, run: &Run) -> Result<Vec<Event>, JournalError> {
    if let Ok(read) = agreement::read(&run.metadata)
        && let Ok(history) = RunHistory::load(waiter, run, &read)?
    {
        return Ok(history.into_events());
    }
    Ok(events_of(&waiter.wait(waiter.runs.events(&run.tenant, &run.id, 0))?).unwrap_or_default())
}

/// The state of a run by its journal. None if its metadata or its journal cannot be read.
pub fn state_of(waiter: &Waiter, run: &Run) -> Result<Option<State>, JournalError> {
    let Ok(read) = agreement::read(&run.metadata) else { return Ok(None) };
    Ok(RunHistory::load(waiter, run, &read)?.ok().and_then(|history| history.state()))
}

/// The events of a journal, read.
pub fn events_of(rows: &[RunEvent]) -> Result<Vec<Event>, String> {
    rows.iter()
        .map(|row| serde_json::from_str(&row.body).map_err(|e| format!("event {} of its journal: {e}", row.n)))
        .collect()
}
