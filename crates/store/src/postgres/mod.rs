//! The shared store: PostgreSQL, any number of machines. One writer per process with group commit; pooled readers.
//!
//! All tables live in the schema `actum`. Appends to one tenant's log are serial across all machines because each
//! transaction first locks that tenant's row in `ledger_lock`; appends to different logs do not wait for each other.

mod access;
mod head;
mod open;
mod pointer;
mod read;
mod registry;
mod retention;
mod rows;
mod run;
mod run_read;
mod run_rows;
mod spend;
mod spend_rows;
mod upkeep;
mod webhook;
mod write;

#[cfg(test)]
mod dialect;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actum_ledger::journal::JournalError;
use deadpool_postgres::Pool;
use tokio_postgres::Config;
use tokio_postgres::error::SqlState;

use crate::Older;
use crate::queue::{self, Sender};

/// How long the database is waited for. A connection that was silent for longer is closed: what was asked may or may not have
/// been done, as after any connection that breaks.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// How long the end of a process waits for a batch that is on its way.
const LAST_BATCH_WAIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Writes a word that means nothing into the log of the database, and waits until it is on the disk, whatever the default: with
/// it all that was written before.
const FLUSH: &str = "SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'actum', '')";

pub(crate) struct Postgres {
    config: Config,
    id: String,
    versions: (usize, usize),
    pool: Pool,
    /// Gone only while the store is being dropped.
    sender: Option<Sender>,
    writer: Option<JoinHandle<()>>,
}

impl Postgres {
    pub(crate) async fn open(url: &str, older: Older) -> Result<Self, JournalError> {
        let config = open::config(url)?;
        let pool = open::pool(&config)?;
        let opened = open::migrate(&pool, older).await?;
        let (sender, receiver) = queue::queue();
        let for_writer = config.clone();
        let writer = std::thread::Builder::new()
            .name("actum-store-writer".into())
            .spawn(move || write::run(for_writer, receiver))
            .map_err(|e| JournalError::Unavailable(format!("cannot start the writer: {e}")))?;
        let (sender, writer) = (Some(sender), Some(writer));
        Ok(Self { config, id: opened.store_id, versions: opened.versions, pool, sender, writer })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.sender = None;
        let Some(writer) = self.writer.take() else { return };
        // The database may be silent: the writer ends by itself then.
        let until = Instant::now() + LAST_BATCH_WAIT;
        while !writer.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        if writer.is_finished() {
            let _ = writer.join();
        }
    }
}

fn silent() -> JournalError {
    JournalError::Unavailable(format!("the database did not answer for {} s", ANSWER_WAIT.as_secs()))
}

/// Whether it is the database's last word that there is no such thing as `FLUSH`, for us: then nothing is committed before it is on
/// the disk. What passes is none: a connection that breaks, a server that ends or has no room.
fn is_without_flush(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| !["08", "40", "53", "57", "58"].contains(&&state.code()[..2]))
}

/// How the text of an error begins after which nothing was kept, and the same may be tried again: two got into each other's way.
const AGAIN: &str = "the database gave this up for the sake of another";

fn is_to_be_tried_again(error: &JournalError) -> bool {
    matches!(error, JournalError::Unavailable(text) if text.starts_with(AGAIN))
}

/// How errors of the driver look from outside.
fn failed(error: tokio_postgres::Error) -> JournalError {
    let mut text = match error.code() {
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => format!("{AGAIN}: {error}"),
        _ => error.to_string(),
    };
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    JournalError::Unavailable(text)
}

fn not_pooled(error: deadpool_postgres::PoolError) -> JournalError {
    match error {
        deadpool_postgres::PoolError::Backend(e) => failed(e),
        other => JournalError::Unavailable(other.to_string()),
    }
}
