//! What a store lets go of when its time is over, and what is asked of it for a look at the queue. Shared by the dialects.
//! Only answers kept for a day and documents that were refused: never the ledger, runs, money, pointers or tokens.

/// What is older than this goes; nothing: it stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forget {
    pub answers_before_ms: Option<i64>,
    pub letters_before_ns: Option<i64>,
    /// Only count.
    pub dry: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    pub answers: u64,
    pub letters: u64,
}

/// The queue of all tenants and places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queue {
    pub queued: u64,
    /// When the oldest of them was submitted.
    pub oldest_ms: Option<i64>,
    /// Runs that a worker holds.
    pub leases: u64,
    /// Of these, whose worker was not heard of in time.
    pub leases_over: u64,
}

pub(crate) const QUEUED: &str = "SELECT count(*), min(created_ms) FROM run WHERE state = 'queued'";
/// The first argument is now.
pub(crate) const LEASES: &str = "SELECT count(*), COALESCE(SUM(CASE WHEN lease_until_ms < $1 THEN 1 ELSE 0 END), 0)
    FROM run WHERE state = 'running'";
/// Rows that go in one statement, so that nobody waits long.
pub(crate) const FORGET_ROWS_MAX: i64 = 1_000;
