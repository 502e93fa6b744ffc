//! Opening the file: who made it, which version it has, and making it ready.

use std::path::Path;
use std::time::Duration;

use actum_ledger::journal::JournalError;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior, params};
use uuid::Uuid;

use super::failed;
use crate::migration::{MIGRATIONS, VERSION, steps};
use crate::{Older, crash};

/// Marks the file as ours: "Actm" in ASCII.
const APPLICATION_ID: i64 = 0x4163_746d;

/// How long a writer waits for another process to finish its transaction.
const BUSY_WAIT: Duration = Duration::from_secs(60);

/// Pages of the write-ahead log before SQLite folds it into the file: rarely, because that is what slow appends are.
const WAL_PAGES: i64 = 10_000;

const CACHE_KIBIBYTES: i64 = 65_536;

pub(super) struct Opened {
    pub store_id: String,
    /// Before and after.
    pub versions: (usize, usize),
}

/// A connection that may write, on a database that is ready.
pub(super) fn open(path: &Path, older: Older) -> Result<(Connection, Opened), JournalError> {
    let mut connection = Connection::open(path).map_err(|e| at(path, e))?;
    prepare(&connection).map_err(|e| at(path, e))?;
    let opened = migrate(&mut connection, path, older)?;
    Ok((connection, opened))
}

/// A further connection to a database that is ready.
pub(super) fn connect(path: &Path) -> Result<Connection, JournalError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| at(path, e))?;
    prepare(&connection).map_err(|e| at(path, e))?;
    Ok(connection)
}

fn at(path: &Path, error: rusqlite::Error) -> JournalError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            JournalError::Unusable(format!("{} is not a SQLite file; name another with --store", path.display()))
        }
        Some(ErrorCode::CannotOpen) => JournalError::Unusable(format!(
            "cannot open {}: does its folder exist, and may you write there?",
            path.display()
        )),
        _ => failed(error),
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_WAIT)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Changing the mode of a new file needs it alone, and SQLite does not wait for that by itself.
    let deadline = std::time::Instant::now() + BUSY_WAIT;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(e) if busy(&e) && std::time::Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            other => break other?,
        }
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIBIBYTES)?;
    connection.pragma_update(None, "temp_store", "FILE")
}

fn busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn migrate(connection: &mut Connection, path: &Path, older: Older) -> Result<Opened, JournalError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let pragma = |name: &str| tx.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(failed);
    let (application, found) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = tx.query_row("SELECT count(*) FROM sqlite_master", [], |r| r.get(0)).map_err(failed)?;
    if application != APPLICATION_ID && tables > 0 {
        return Err(JournalError::Unusable(format!(
            "{} is a SQLite file but not an actum store; name another with --store",
            path.display()
        )));
    }
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    let steps = steps(found, MIGRATIONS, older)?;
    for step in steps {
        tx.execute_batch(step.sqlite).map_err(failed)?;
    }
    if found == 0 {
        tx.execute("INSERT INTO store (id) VALUES (?1)", params![Uuid::now_v7().to_string()]).map_err(failed)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    }
    if !steps.is_empty() {
        tx.pragma_update(None, "user_version", VERSION as i64).map_err(failed)?;
        crash::point("migrate.applied");
    }
    let store_id = tx.query_row("SELECT id FROM store", [], |r| r.get(0)).optional().map_err(failed)?;
    let store_id = store_id.ok_or_else(|| JournalError::Damaged("it has lost its own id".into()))?;
    tx.commit().map_err(failed)?;
    Ok(Opened { store_id, versions: (found, VERSION) })
}
