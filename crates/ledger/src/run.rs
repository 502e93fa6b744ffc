//! Runs as a store keeps them: a row, its journal, its place in the queue. Declares the port `Runs`.
//!
//! Called by the engine; implemented in `store`, where every write is one atomic request that goes through the same
//! queue as an append, so that what waits together is committed together. What a run *does* is the kernel's to decide:
//! here its events are text.

use actum_contract::id::Tenant;

use crate::draft::Submission;
use crate::journal::Work;
use crate::refusal::Refusal;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunState {
    /// Waits for other runs.
    Blocked,
    /// Agreed, and left to a publisher outside.
    Planned,
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl RunState {
    pub const ALL: [Self; 7] =
        [Self::Blocked, Self::Planned, Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Planned => "planned",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// Nothing more happens by itself.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// A run as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub tenant: Tenant,
    /// Later ones sort after earlier ones; the oldest is claimed first.
    pub id: String,
    /// The work file that brought it, as handed in once.
    pub submission: String,
    pub item: String,
    pub robot: String,
    /// The machine and the project whose workers can take it.
    pub place: String,
    pub state: RunState,
    pub attempt: u64,
    /// Rises with every claim: whoever holds an older one has lost the run.
    pub epoch: u64,
    /// How many events its journal has.
    pub version: u64,
    pub owner: Option<String>,
    pub lease_until_ms: Option<i64>,
    /// Dependencies that have not succeeded yet.
    pub waits: u64,
    pub cancel: bool,
    pub created_ms: i64,
    pub updated_ms: i64,
    /// What was agreed: the seven keys of the contract, the work item and everything else that was settled at submission.
    pub metadata: String,
    /// What became of it, once something has: result, error, receipt.
    pub outcome: Option<String>,
}

/// A run to be added. Its state follows from what it waits for, unless it is `planned`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    pub tenant: Tenant,
    pub id: String,
    pub submission: String,
    pub item: String,
    pub robot: String,
    pub place: String,
    pub planned: bool,
    pub metadata: String,
    /// Runs of the same tenant that must succeed first.
    pub depends_on: Vec<String>,
}

/// An event of a run's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEvent {
    pub n: u64,
    pub attempt: u64,
    pub at_ms: i64,
    pub kind: String,
    pub body: String,
}

/// An event to be added: what happened, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub kind: String,
    pub body: String,
}

/// Who wants to work, and on what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub owner: String,
    pub place: String,
    pub lease_ms: u64,
    pub runs_max: usize,
    /// Only runs of this submission.
    pub submission: Option<String>,
    /// Only this run.
    pub run: Option<String>,
    /// Owners that are known to be gone: their leases count for nothing.
    pub dead: Vec<String>,
}

/// A run in the hands of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub tenant: Tenant,
    pub run: String,
    pub epoch: u64,
}

/// What a worker writes down about a run it holds. All of it or nothing.
#[derive(Debug, Clone)]
pub struct Commit {
    pub held: Held,
    /// Events the journal must have had; anything else means that somebody else has written.
    pub version: u64,
    pub events: Vec<NewEvent>,
    /// For the ledger.
    pub entries: Vec<Submission>,
    pub metadata: Option<String>,
    pub end: Option<End>,
}

/// What ends a run's stay with its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// One that is over; or `queued`, to hand it back.
    pub state: RunState,
    pub outcome: Option<String>,
    /// The capsule that was admitted with it.
    pub capsule: Option<String>,
}

/// A change to a run that nobody holds: to cancel, to fail with what it waited for, to begin again.
#[derive(Debug, Clone)]
pub struct Settle {
    pub tenant: Tenant,
    pub run: String,
    /// What it must still be, events and state; else nothing is done.
    pub version: u64,
    pub from: RunState,
    /// `Queued` becomes `Blocked` if it still waits for others.
    pub to: RunState,
    pub attempt: u64,
    pub events: Vec<NewEvent>,
    pub entries: Vec<Submission>,
    pub metadata: Option<String>,
    pub outcome: Option<String>,
    /// Forget the capsule it was admitted with: it was undone.
    pub forget_capsule: bool,
}

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    Done,
    /// Somebody else holds the run, or has changed it: nothing was written.
    Lost,
    /// The ledger does not take one of the entries: nothing was written.
    Refused(Refusal),
}

/// What a worker hears about a run it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    pub run: String,
    /// Somebody else has it now.
    pub lost: bool,
    pub cancel: bool,
}

/// Which runs are listed, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub state: Option<RunState>,
    pub submission: Option<String>,
    pub place: Option<String>,
    /// Runs with an id below this one.
    pub before: Option<String>,
    pub limit: usize,
    /// The one field of the metadata that is wanted, for lists that may be long. A store that has nothing to send may give all.
    pub only: Option<&'static str>,
}

/// The runs of every tenant. Whatever a write says is durable when it returns.
pub trait Runs: Send + Sync {
    /// Adds runs and their entries, all or none. The same ids again are `Lost`.
    fn submit(&self, runs: Vec<NewRun>, entries: Vec<Submission>) -> Work<'static, Written>;

    /// Takes the oldest runs of a place that are queued, or whose worker's lease is over; each gets a new epoch. One
    /// atomic statement: no two workers get the same.
    fn claim(&self, claim: Claim) -> Work<'static, Vec<Run>>;

    fn commit(&self, commit: Commit) -> Work<'static, Written>;

    fn settle(&self, settle: Settle) -> Work<'static, Written>;

    /// Lengthens the leases of what is still held.
    fn renew(&self, owner: String, lease_ms: u64, held: Vec<Held>) -> Work<'static, Vec<Renewed>>;

    /// Asks whoever holds the run to stop.
    fn ask_to_cancel(&self, tenant: &Tenant, run: &str) -> Work<'static, Written>;

    /// Of these runs, those that were asked to stop, and those that are no longer held under that epoch; reads only.
    fn look_after<'a>(&'a self, held: &'a [Held]) -> Work<'a, Vec<Renewed>>;

    /// The runs whose id begins so, oldest first, at most two: enough to tell one from several.
    fn runs_named<'a>(&'a self, tenant: &'a Tenant, prefix: &'a str) -> Work<'a, Vec<Run>>;

    fn runs<'a>(&'a self, tenant: &'a Tenant, filter: Filter) -> Work<'a, Vec<Run>>;

    /// How many runs there are in each state, by the code of their error, if they have one.
    fn counts<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<(RunState, Option<String>, u64)>>;

    fn events<'a>(&'a self, tenant: &'a Tenant, run: &'a str, from: u64) -> Work<'a, Vec<RunEvent>>;

    /// What a run depends on: ids and states.
    fn dependencies<'a>(&'a self, tenant: &'a Tenant, run: &'a str) -> Work<'a, Vec<(String, RunState)>>;

    /// Blocked runs of a place that wait for one that has failed or was cancelled, with the id of that one.
    fn doomed<'a>(&'a self, place: &'a str) -> Work<'a, Vec<(Run, String)>>;

    /// The run with which a capsule was admitted in that place.
    fn admitted<'a>(&'a self, tenant: &'a Tenant, place: &'a str, capsule: &'a str) -> Work<'a, Option<String>>;
}
