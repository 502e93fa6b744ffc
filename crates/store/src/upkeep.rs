//! The operator's side of a store: check it, make its projections anew, copy it.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use actum_contract::id::Tenant;
use actum_ledger::checkpoint::Checkpoint;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::run::RunState;
use actum_ledger::spend::{Authorization, Sum, audit};
use actum_ledger::verify::Walk;

use crate::retention::{Forget, Forgotten, Queue};
use crate::spend::AUTHORIZATION;

/// What an operator may ask of a store.
pub trait Upkeep: Send + Sync {
    /// The version the database had when it was opened and the one it has now.
    fn versions(&self) -> (usize, usize);

    /// Asks the database itself whether it is sound.
    fn check_database(&self) -> Work<'_, Check>;

    /// Whether what is spent and reserved is what the reservations come to.
    fn check_spend(&self) -> Work<'_, Check>;

    /// Whether every run has what it was agreed on.
    fn check_runs(&self) -> Work<'_, Check>;

    /// Makes every projection from the journal and compares it with the stored one; with `replace`, puts the new
    /// ones in place where they differ. A journal that does not verify is refused: nothing is made from it.
    fn projections(&self, replace: bool) -> Work<'_, Vec<Projection>>;

    /// Writes a consistent copy as a SQLite store to a file that does not exist yet.
    fn backup<'a>(&'a self, to: &'a Path) -> Work<'a, ()>;

    /// Returns the bytes of a tenant's entries from a position on, and the position behind the last of them.
    fn entry_bytes<'a>(&'a self, tenant: &'a Tenant, from: u64) -> Work<'a, (u64, u64)>;

    /// Returns the bytes of a tenant's dead letters and kept answers.
    fn bytes_beside_log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, u64>;

    /// What waits for workers, and what they hold.
    fn queue(&self, now_ms: i64) -> Work<'_, Queue>;

    /// Lets go of what is older than it is to be kept. Safe while others write, and when others do the same.
    fn forget(&self, what: Forget) -> Work<'_, Forgotten>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub ok: bool,
    pub detail: String,
}

/// One projection, compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    pub name: &'static str,
    /// Rows that the journal yields.
    pub rows: u64,
    /// Rows that were stored and should not have been, or were not stored and should have been.
    pub differing: u64,
}

/// Makes the file that a copy goes to, before anything is in it: nobody else may read what a store holds.
pub(crate) fn make_private(file: &Path) -> Result<(), JournalError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    made.map(drop).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            JournalError::Unusable(format!("{} exists already; name another file", file.display()))
        }
        _ => JournalError::Unusable(format!(
            "cannot write {}: does its folder exist, and may you write there?",
            file.display()
        )),
    })
}

/// Entries read at a time while the journal is walked.
pub(crate) const WALK_ENTRIES: usize = 1_000;

/// A walk over a tenant's journal that must reach every kept checkpoint. Who signed them is not asked here: what one
/// says about the log is enough to stop a repair.
pub(crate) fn walk_of(tenant: &Tenant, notes: &[String]) -> Walk {
    let checkpoints = notes.iter().filter_map(|note| Checkpoint::parse(note).ok()).collect();
    Walk::new(tenant.clone(), checkpoints)
}

/// Tables of records about runs, money, kept answers and webhooks and their columns, for a copy: text, bytes, whole numbers and truth values only. Where a shared
/// store names the run and SQLite has its number instead, also how a row is put there.
pub(crate) const RECORD_TABLES: [(&str, &str, Option<&str>); 10] = [
    (
        "run",
        "tenant, id, submission, item, robot, place, state, attempt, epoch, version, owner, lease_until_ms, waits, \
         cancel, created_ms, updated_ms, error",
        None,
    ),
    (
        "run_text",
        "tenant, id, metadata",
        Some("INSERT INTO run_text (n, metadata) SELECT n, ?3 FROM run WHERE tenant = ?1 AND id = ?2"),
    ),
    (
        "run_outcome",
        "tenant, id, outcome",
        Some("INSERT INTO run_outcome (n, outcome) SELECT n, ?3 FROM run WHERE tenant = ?1 AND id = ?2"),
    ),
    (
        "run_event",
        "tenant, run, n, attempt, at_ms, kind, body",
        Some(
            "INSERT INTO run_event (run, n, attempt, at_ms, kind, body)
             SELECT n, ?3, ?4, ?5, ?6, ?7 FROM run WHERE tenant = ?1 AND id = ?2",
        ),
    ),
    ("run_dependency", "tenant, run, depends_on", None),
    ("capsule", "tenant, place, hash, run", None),
    ("spend_authorization", AUTHORIZATION, None),
    (
        "spend_reservation",
        "n, tenant, authorization_id, run, call, amount, currency, state, retry, idempotency_key, correlation, \
         committed, reason, approval, day, reserved_ms, deadline_ms, settled_ms, reconciled",
        None,
    ),
    ("kept_answer", "tenant, token, key, request_hash, status, content_type, body, exit, at_ms", None),
    (
        "webhook",
        "tenant, id, name, url, types, secret, created_ms, next_seq, failures, failing_since_ms, next_try_ms, last_error, \
         disabled, changes, owner, lease_until_ms",
        None,
    ),
];

/// What the reservations of each authorization come to, by the day they count for.
pub(crate) const SUMS: &str = "SELECT tenant, authorization_id, day,
        CAST(COALESCE(SUM(committed), 0) AS BIGINT),
        CAST(COALESCE(SUM(CASE WHEN state IN ('reserved', 'reconcile_required') THEN amount END), 0) AS BIGINT)
    FROM spend_reservation GROUP BY tenant, authorization_id, day";

/// The states of runs, as a list for SQL.
pub(crate) fn known_states() -> String {
    RunState::ALL.map(|state| format!("'{}'", state.word())).join(", ")
}

/// Returns the check of the runs: how many there are, and how many are not whole.
pub(crate) fn counted_runs((all, damaged): (i64, i64)) -> Check {
    let detail = match damaged {
        0 => format!("{all} runs are whole"),
        _ => format!("{damaged} of {all} runs are damaged: text, state or events are missing; `actum list` names them"),
    };
    Check { name: "runs", ok: damaged == 0, detail }
}

/// What an audit of the money found.
pub(crate) fn audited(all: &[Authorization], sums: &[Sum]) -> Check {
    let wrong = audit(all, sums);
    let detail = match wrong.first() {
        None => format!("{} authorizations agree with their reservations", all.len()),
        Some(first) => format!("{} figures do not agree: {first}", wrong.len()),
    };
    Check { name: "spend", ok: wrong.is_empty(), detail }
}

/// The projections, in the order in which they are reported.
pub(crate) const PROJECTIONS: [&str; 8] =
    ["ledger_log", "ledger_node", "execution", "superseded", "registry", "pointer", "token", "head"];
