//! Versions of the database. Forwards only; a database newer than this program is refused.

use actum_ledger::journal::JournalError;

use crate::Older;

/// One step from a version to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

/// Step `i` leads to version `i + 1`. Rows are only ever added.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration {
        sqlite: include_str!("../migrations/sqlite-0001.sql"),
        postgres: include_str!("../migrations/postgres-0001.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0002.sql"),
        postgres: include_str!("../migrations/postgres-0002.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0003.sql"),
        postgres: include_str!("../migrations/postgres-0003.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0004.sql"),
        postgres: include_str!("../migrations/postgres-0004.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0005.sql"),
        postgres: include_str!("../migrations/postgres-0005.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0006.sql"),
        postgres: include_str!("../migrations/postgres-0006.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0007.sql"),
        postgres: include_str!("../migrations/postgres-0007.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/sqlite-0008.sql"),
        postgres: include_str!("../migrations/postgres-0008.sql"),
    },
];

/// The version this program writes.
pub const VERSION: usize = MIGRATIONS.len();

/// The steps from `found` to here, if this program may take them.
pub(crate) fn steps(
    found: usize,
    all: &'static [Migration],
    older: Older,
) -> Result<&'static [Migration], JournalError> {
    let target = all.len();
    match found {
        newer if newer > target => Err(JournalError::Unusable(format!(
            "the store has version {newer}, this program knows versions up to {target}: use a newer actum"
        ))),
        // Version 0 is an empty database: making it is not changing anybody's data.
        old if old > 0 && old < target && older == Older::Refuse => Err(JournalError::Unusable(format!(
            "the store has version {old}, this program needs version {target}: \
             run `actum store migrate` once all programs that use it can be stopped"
        ))),
        found => Ok(&all[found..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &[Migration] = &[Migration { sqlite: "", postgres: "" }; 3];

    #[test]
    fn forwards_only() {
        assert_eq!(steps(0, THREE, Older::Refuse).unwrap().len(), 3);
        assert_eq!(steps(1, THREE, Older::Migrate).unwrap().len(), 2);
        assert_eq!(steps(3, THREE, Older::Refuse).unwrap().len(), 0);
        assert!(steps(1, THREE, Older::Refuse).unwrap_err().to_string().contains("actum store migrate"));
        assert!(steps(4, THREE, Older::Migrate).unwrap_err().to_string().contains("use a newer actum"));
    }
}
