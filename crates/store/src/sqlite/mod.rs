//! The embedded store: one file, one writing thread with group commit, readers on connections of their own.

mod copy;
mod open;
mod read;
mod rows;
mod upkeep;
mod write;

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use actum_ledger::journal::JournalError;
use rusqlite::Connection;

use crate::Older;
use crate::queue::{self, Sender};
pub(crate) use copy::Copy;
use read::Readers;

#[derive(Debug)]
pub(crate) struct Sqlite {
    path: PathBuf,
    id: String,
    versions: (usize, usize),
    /// Gone only while the store is being dropped.
    sender: Option<Sender>,
    writer: Option<JoinHandle<()>>,
    readers: Readers,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, older: Older) -> Result<Self, JournalError> {
        let (connection, opened) = open::open(path, older)?;
        let (sender, receiver) = queue::queue();
        let writer = std::thread::Builder::new()
            .name("actum-store-writer".into())
            .spawn(move || write::run(connection, receiver))
            .map_err(|e| JournalError::Unavailable(format!("cannot start the writer: {e}")))?;
        let readers = Readers::start(path)?;
        let (sender, writer) = (Some(sender), Some(writer));
        Ok(Self { path: path.to_owned(), id: opened.store_id, versions: opened.versions, sender, writer, readers })
    }

    fn connect(&self) -> Result<Connection, JournalError> {
        open::connect(&self.path)
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // The writer ends when no sender is left; waiting for it lets SQLite fold its log into the file.
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
