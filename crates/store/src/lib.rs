//! The database: the journal of the ledger, its projections, the runs and the money, on SQLite or PostgreSQL with one semantics;
//! and the blobs, contents by their digest, in packs in a local folder.
//!
//! Every decision is made by `actum_ledger`; this crate makes it atomic and durable. Joined in `cli`. No SQL stands
//! anywhere else, and every statement about a tenant's data takes that tenant.

mod access;
mod batch;
pub mod blob;
mod change;
mod crash;
mod migration;
mod postgres;
mod queue;
mod request;
mod retention;
mod spend;
mod sqlite;
mod tree;
mod upkeep;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;

use actum_ledger::Journal;
use actum_ledger::access::Access;
use actum_ledger::head::Heads;
use actum_ledger::journal::JournalError;
use actum_ledger::pointer::Pointers;
use actum_ledger::registry::Registry;
use actum_ledger::run::Runs;
use actum_ledger::spend::Spend;
use actum_ledger::webhook::Webhooks;

pub use crash::POINTS as CRASH_POINTS;
pub use migration::VERSION;
pub use retention::{Forget, Forgotten, Queue};
pub use upkeep::{Check, Projection, Upkeep};

/// Everything a store can do.
pub trait Store: Journal + Upkeep + Runs + Registry + Pointers + Spend + Access + Heads + Webhooks {}

impl<T: Journal + Upkeep + Runs + Registry + Pointers + Spend + Access + Heads + Webhooks> Store for T {}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Location {
    /// `postgres://…`, `sqlite:PATH`, or a plain path.
    pub fn parse(url: &str) -> Result<Self, BadLocation> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or(url);
        match path {
            "" => Err(BadLocation::Empty),
            path if path.contains("://") => Err(BadLocation::Scheme(url.to_owned())),
            path => Ok(Self::Sqlite(path.into())),
        }
    }

    /// The location without a password.
    pub fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => path.display().to_string(),
            Self::Postgres(url) => {
                // Parameters may hold a password too, so none is shown.
                let bare = url.split('?').next().unwrap_or_default();
                let (scheme, rest) = bare.split_once("://").unwrap_or(("postgres", bare));
                let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
                let user = user.split(':').next().unwrap_or_default();
                let at = if user.is_empty() { "" } else { "@" };
                format!("{scheme}://{user}{at}{place}")
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLocation {
    #[error("store location is empty")]
    Empty,
    #[error("store location {0:?} has a scheme this program does not know; use postgres://…, sqlite:PATH or a path")]
    Scheme(String),
}

/// What to do about a store of an older version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Older {
    /// Bring it up to date: one user, one program.
    Migrate,
    /// Refuse it: other programs may be using it.
    Refuse,
}

/// Opens a store; an empty one is made ready. A newer one is refused.
pub async fn open(location: &Location, older: Older) -> Result<Arc<dyn Store>, JournalError> {
    Ok(match location {
        Location::Sqlite(path) => Arc::new(sqlite::Sqlite::open(path, older)?),
        Location::Postgres(url) => Arc::new(postgres::Postgres::open(url, older).await?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        assert_eq!(Location::parse("a/b.db"), Ok(Location::Sqlite("a/b.db".into())));
        assert_eq!(Location::parse("sqlite:a/b.db"), Ok(Location::Sqlite("a/b.db".into())));
        assert_eq!(Location::parse("sqlite:///a/b.db"), Ok(Location::Sqlite("/a/b.db".into())));
        assert!(matches!(Location::parse("mysql://x"), Err(BadLocation::Scheme(_))));
        assert_eq!(Location::parse("sqlite:"), Err(BadLocation::Empty));
        let shown = |url: &str| Location::parse(url).unwrap().shown();
        assert_eq!(shown("postgres://me:sec@ret@db/x"), "postgres://me@db/x");
        assert_eq!(shown("postgres://db/x?user=me&password=secret"), "postgres://db/x");
    }
}
