//! The embedded store: one file, one writing thread with group commit, readers on connections of their own.

mod access;
mod clock;
mod copy;
mod head;
mod open;
mod pointer;
mod read;
mod registry;
mod retention;
mod rows;
mod run;
mod run_read;
mod spend;
mod spend_read;
mod upkeep;
mod webhook;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use actum_ledger::journal::JournalError;
use rusqlite::Connection;

use crate::Older;
use crate::queue::{self, Sender};
use clock::FileClock;
pub(crate) use copy::Copy;
use open::Opened;
use read::Readers;

#[derive(Debug)]
pub(crate) struct Sqlite {
    path: PathBuf,
    id: String,
    read_only: bool,
    versions: (usize, usize),
    clock: Arc<FileClock>,
    /// Not there if the store may only be read, and gone while it is being dropped.
    sender: Option<Sender>,
    writer: Option<JoinHandle<()>>,
    /// Always there once the store is open.
    readers: Option<Readers>,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, older: Older) -> Result<Self, JournalError> {
        let Opened { writer: connection, store_id: id, versions } = open::open(path, older)?;
        let read_only = connection.is_none();
        let clock = Arc::new(if read_only { FileClock::of_process() } else { FileClock::open(path) });
        let (mut sender, mut writer) = (None, None);
        if let Some(connection) = connection {
            let (into, receiver) = queue::queue();
            let clock = Arc::clone(&clock);
            let thread = std::thread::Builder::new()
                .name("actum-store-writer".into())
                .spawn(move || write::run(connection, receiver, &clock))
                .map_err(|e| JournalError::Unavailable(format!("cannot start the writer: {e}")))?;
            (sender, writer) = (Some(into), Some(thread));
        }
        let mut store = Self { path: path.to_owned(), read_only, id, versions, clock, sender, writer, readers: None };
        store.readers = Some(Readers::start(|| store.connect().and_then(open::keep_little))?);
        Ok(store)
    }

    fn connect(&self) -> Result<Connection, JournalError> {
        if self.read_only { open::connect_to_read(&self.path) } else { open::connect(&self.path) }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // One after the other, the writer last: the last connection to close folds the write-ahead log into the file,
        // and of two that close at once neither is the last.
        self.readers = None;
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// How errors of the driver look from outside.
fn failed(error: rusqlite::Error) -> JournalError {
    use rusqlite::ErrorCode as E;
    match error.sqlite_error_code() {
        Some(E::DatabaseCorrupt | E::NotADatabase) => JournalError::Damaged(error.to_string()),
        _ => JournalError::Unavailable(error.to_string()),
    }
}
