//! The operator's side of a store: check it, make its projections anew, copy it.

use std::path::Path;

use actum_ledger::journal::Work;

/// What an operator may ask of a store.
pub trait Upkeep: Send + Sync {
    /// The version the database had when it was opened and the one it has now.
    fn versions(&self) -> (usize, usize);

    /// Asks the database itself whether it is sound.
    fn check_database(&self) -> Work<'_, Check>;

    /// Makes every projection from the journal and compares it with the stored one; with `replace`, puts the new
    /// ones in place where they differ.
    fn projections(&self, replace: bool) -> Work<'_, Vec<Projection>>;

    /// Writes a consistent copy as a SQLite store to a file that does not exist yet.
    fn backup<'a>(&'a self, to: &'a Path) -> Work<'a, ()>;
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

/// The projections, in the order in which they are reported.
pub(crate) const PROJECTIONS: [&str; 4] = ["ledger_log", "ledger_node", "execution", "superseded"];
