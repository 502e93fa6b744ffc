//! Opening the file: who made it, which version it has, and making it ready.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

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

/// What whoever writes keeps of the file, and each that answers questions: those read what the system keeps for all of them.
const CACHE_KIBIBYTES: i64 = 65_536;
const READER_CACHE_KIBIBYTES: i64 = 8_192;

pub(super) struct Opened {
    /// The connection that may write; nothing where the file or its folder may only be read.
    pub writer: Option<Connection>,
    pub store_id: String,
    /// Before and after.
    pub versions: (usize, usize),
}

/// Opens the file, and makes it ready if it may be written.
pub(super) fn open(path: &Path, older: Older) -> Result<Opened, JournalError> {
    if !may_write(path) {
        return open_to_read(path);
    }
    let mut connection = Connection::open(path).map_err(|e| at(path, e))?;
    connection.busy_timeout(BUSY_WAIT).map_err(failed)?;
    // Somebody else's file is not to be changed, not even its journal mode.
    check_owner(&connection, path)?;
    prepare(&connection).map_err(|e| at(path, e))?;
    let (store_id, versions) = migrate(&mut connection, path, older)?;
    Ok(Opened { writer: Some(connection), store_id, versions })
}

/// Whether SQLite could write here: the file itself, and others beside it, as its write-ahead log is.
fn may_write(path: &Path) -> bool {
    let writable = |path: &Path, create| {
        let opened = std::fs::OpenOptions::new().write(true).create(create).truncate(false).open(path);
        let denied = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
        opened.map_or_else(|e| !denied.contains(&e.kind()), |_| true)
    };
    let mut probe = path.as_os_str().to_owned();
    probe.push(format!("-probe-{}", std::process::id()));
    let beside = || {
        let made = writable(Path::new(&probe), true);
        let _ = std::fs::remove_file(&probe);
        made
    };
    // A file that is not there yet is not denied: making it will tell what is wrong, if anything is.
    !path.exists() || (writable(path, false) && beside())
}

/// Size and time of the file and of its write-ahead log: they tell whether somebody wrote between two looks.
pub(super) fn state(path: &Path) -> [Option<(u64, SystemTime)>; 2] {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    [path, Path::new(&log)].map(|file| {
        let found = std::fs::metadata(file).ok()?;
        Some((found.len(), found.modified().ok()?))
    })
}

fn open_to_read(path: &Path) -> Result<Opened, JournalError> {
    let connection = connect_to_read(path)?;
    check_owner(&connection, path)?;
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    if !steps(found, MIGRATIONS, Older::Refuse)?.is_empty() {
        return Err(JournalError::Unusable(format!("{} is empty and may only be read", path.display())));
    }
    let store_id = connection.query_row("SELECT id FROM store", [], |row| row.get(0)).map_err(failed)?;
    Ok(Opened { writer: None, store_id, versions: (found, VERSION) })
}

/// A connection that never writes. Without a write-ahead log beside it the file is all there is, and SQLite need not
/// make the index that it may not make.
pub(super) fn connect_to_read(path: &Path) -> Result<Connection, JournalError> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let uri = match Path::new(&log).exists() {
        true => format!("file:{escaped}?mode=ro"),
        false => format!("file:{escaped}?mode=ro&immutable=1"),
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).map_err(|e| at(path, e))?;
    connection.busy_timeout(BUSY_WAIT).map_err(failed)?;
    Ok(connection)
}

/// A further connection to a database that is ready.
pub(super) fn connect(path: &Path) -> Result<Connection, JournalError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| at(path, e))?;
    prepare(&connection).map_err(|e| at(path, e))?;
    Ok(connection)
}

/// For a connection that stays open and only answers questions.
pub(super) fn keep_little(connection: Connection) -> Result<Connection, JournalError> {
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIBIBYTES).map_err(failed)?;
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

fn check_owner(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    let read = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(|e| at(path, e));
    // In this order: another process may be making the store right now, tables and id at one stroke.
    if read("SELECT count(*) FROM sqlite_master")? == 0 || read("PRAGMA application_id")? == APPLICATION_ID {
        return Ok(());
    }
    Err(JournalError::Unusable(format!(
        "{} is a SQLite file but not an actum store; name another with --store",
        path.display()
    )))
}

/// The store's id, and its versions before and after.
fn migrate(connection: &mut Connection, path: &Path, older: Older) -> Result<(String, (usize, usize)), JournalError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    check_owner(&tx, path)?;
    let found: i64 = tx.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
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
    Ok((store_id, (found, VERSION)))
}
