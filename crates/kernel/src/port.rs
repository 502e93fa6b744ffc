//! The ports through which effects are performed: hands for a run, and the desk they report to. Declared here,
//! implemented where file trees and cells are joined, called by the engine.

use serde_json::Value;

use crate::decide::Effect;
use crate::event::Event;
use crate::result::Verdict;
use crate::state::State;

/// Why work on a run has to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Somebody wants the run to end for good.
    Cancelled,
    /// Whoever works here has to leave; the run goes on later.
    Interrupted,
    /// Somebody else has the run: nothing may be written any more.
    Lost,
}

/// Where hands report, and hear whether to go on.
pub trait Desk: Sync {
    fn stopped(&self) -> Option<Why>;

    /// Calls back once work has to stop; at once if it has to already.
    fn on_stop(&self, call: Box<dyn FnOnce() + Send>);

    /// Writes an event down before something is done that cannot be taken back. Not if the run is lost: then nothing may
    /// be done.
    fn record(&self, event: Event) -> Recorded;

    /// The same together with an entry of the ledger: both or neither, and only by whoever has the run.
    fn record_with(&self, event: Event, entry: Value) -> Recorded;
}

/// What came of writing something down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Done,
    /// The ledger does not take the entry: somebody else was first.
    Refused,
    /// Somebody else has the run: nothing may be done.
    Lost,
    /// The store does not answer: whoever takes the run up again finds out.
    Unknown,
}

/// What perform effects of one run, in the order in which they are due. Made anew for a run that is taken over.
pub trait Hands: Send {
    /// Does it, and tells what came of it. What cannot be done is told as `Faulted`.
    fn perform(&mut self, effect: &Effect, state: &State, desk: &dyn Desk) -> Event;

    /// Why what was just asked could not be done here and now, though it may be later: the run is nobody's failure then, and
    /// goes back to whoever can.
    fn put_off(&self) -> Option<String> {
        None
    }

    /// Whether that is because of this machine: its disk, its memory, its cells. Another machine may do better.
    fn is_machines_fault(&self) -> bool {
        false
    }

    /// Whether it is unknown what became of a publication that was begun.
    fn is_outcome_unknown(&self) -> bool {
        false
    }

    /// The receipt and the result of an attempt that is over. Doing it twice does no harm.
    fn finish(&mut self, verdict: &Verdict, state: &State) -> Result<Finished, String>;

    /// What was finished is on record: what is no longer needed may go.
    fn leave(&mut self, verdict: &Verdict);
}

/// What is recorded with the end of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Finished {
    /// Result, receipt and whatever else is known, as it is shown.
    pub outcome: Value,
    /// For the ledger, beside the event.
    pub entries: Vec<Value>,
}
