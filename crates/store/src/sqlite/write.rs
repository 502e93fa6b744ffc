//! The writing thread: takes whatever waits, decides it against the stored facts, commits it together.

use std::collections::BTreeSet;
use std::sync::Arc;

use actum_contract::id::Tenant;
use actum_ledger::append::{Book, Known};
use actum_ledger::draft::{Draft, Submission};
use actum_ledger::event::State;
use actum_ledger::journal::JournalError;
use actum_ledger::state::Last;
use actum_ledger::time::{self, Moment};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use super::{failed, read, rows};
use crate::batch::{Effect, decide};
use crate::crash;
use crate::queue::{Done, Receiver, Request};

/// Runs until all callers are gone, or until a commit fails: after that nobody knows what the disk holds, so this
/// handle is not used again.
pub(super) fn run(mut connection: Connection, mut receiver: Receiver) {
    while let Some(batch) = receiver.next_blocking() {
        match commit(&mut connection, &batch.requests) {
            Ok(done) => batch.answer(Ok(done)),
            Err(Failure::Before(e)) => batch.answer(Err(e)),
            Err(Failure::Commit(e)) => return batch.answer(Err(e)),
        }
    }
}

enum Failure {
    /// Nothing was written.
    Before(JournalError),
    Commit(JournalError),
}

impl From<rusqlite::Error> for Failure {
    fn from(e: rusqlite::Error) -> Self {
        Self::Before(failed(e))
    }
}

impl From<JournalError> for Failure {
    fn from(e: JournalError) -> Self {
        Self::Before(e)
    }
}

fn commit(connection: &mut Connection, requests: &[Request]) -> Result<Vec<Done>, Failure> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    crash::point("append.begun");
    let now = Moment::new(Timestamp::now());
    let mut book = Book::default();
    let mut changed = BTreeSet::new();
    let mut letters = BTreeSet::new();
    let mut all = Vec::with_capacity(requests.len());
    for request in requests {
        if let Request::Append(Submission::Draft(draft)) = request {
            learn(&tx, &mut book, draft)?;
        }
        let (effect, done) = decide(&mut book, request, &now);
        match effect {
            Effect::Entry(entry) => {
                rows::insert_entry(&tx, &entry)?;
                crash::point("append.inserted");
                rows::project(&tx, &entry)?;
                changed.insert(entry.tenant);
            }
            Effect::DeadLetter(letter) => {
                rows::insert_letter(&tx, &letter, time::nanoseconds(now.at))?;
                letters.insert(letter.tenant);
            }
            Effect::Checkpoint { tenant, size, note } => {
                let sql = "INSERT OR IGNORE INTO checkpoint (tenant, size, note) VALUES (?1, ?2, ?3)";
                tx.prepare_cached(sql)?.execute(params![tenant.as_str(), size as i64, note])?;
                crash::point("checkpoint.written");
            }
            Effect::Nothing => {}
        }
        all.push(done);
    }
    for (tenant, log) in book.logs().filter(|(tenant, _)| changed.contains(*tenant)) {
        rows::put_log(&tx, tenant.as_str(), log)?;
    }
    for tenant in &letters {
        rows::trim_letters(&tx, tenant.as_deref())?;
    }
    crash::point("append.written");
    tx.commit().map_err(|e| Failure::Commit(failed(e)))?;
    crash::point("append.committed");
    Ok(all)
}

/// Tells the book what the rules will ask about this draft.
fn learn(connection: &Connection, book: &mut Book, draft: &Draft) -> Result<(), JournalError> {
    let tenant = &draft.tenant;
    if !book.knows_log(tenant) {
        let log = read::log(connection, tenant)?;
        book.learn_log(tenant, log);
    }
    for id in draft.depends_on.iter().chain(&draft.supersedes) {
        learn_entry(connection, book, tenant, id, false).map_err(failed)?;
    }
    if let Some(event) = &draft.event {
        let key = (event.robot.clone(), event.execution.clone());
        if !book.knows_execution(tenant, &key) {
            match read_last(connection, tenant, &key).map_err(failed)? {
                Some(last) => book.learn_execution(tenant, key, last?),
                // An event of an execution nobody has heard of cannot be recorded already.
                None => return Ok(()),
            }
        }
    }
    if let Some(id) = &draft.id {
        learn_entry(connection, book, tenant, id, true).map_err(failed)?;
    }
    Ok(())
}

fn learn_entry(
    connection: &Connection,
    book: &mut Book,
    tenant: &Tenant,
    id: &str,
    with_body: bool,
) -> rusqlite::Result<()> {
    // A dependency learned without its text may turn up as a draft's own id later in the batch.
    if book.knows_entry(tenant, id) && !with_body {
        return Ok(());
    }
    let sql = if with_body {
        "SELECT seq, created_ns, body FROM ledger_entry WHERE tenant = ?1 AND id = ?2"
    } else {
        "SELECT seq, created_ns, NULL FROM ledger_entry WHERE tenant = ?1 AND id = ?2"
    };
    let known = connection
        .prepare_cached(sql)?
        .query_row(params![tenant.as_str(), id], |row| {
            let body: Option<Vec<u8>> = row.get(2)?;
            Ok(Known { seq: row.get::<_, i64>(0)? as u64, created_ns: row.get(1)?, body: body.map(Arc::new) })
        })
        .optional()?;
    if let Some(known) = known {
        book.learn_entry(tenant, id.to_owned(), known);
    }
    Ok(())
}

fn read_last(
    connection: &Connection,
    tenant: &Tenant,
    (robot, execution): &(String, String),
) -> rusqlite::Result<Option<Result<Last, JournalError>>> {
    let sql = "SELECT state, attempt FROM execution WHERE tenant = ?1 AND robot = ?2 AND execution = ?3";
    let found = connection
        .prepare_cached(sql)?
        .query_row(params![tenant.as_str(), robot, execution], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64))
        })
        .optional()?;
    Ok(found.map(|(state, attempt)| {
        let state = State::named(&state);
        let state = state.ok_or_else(|| JournalError::Damaged(format!("execution {execution} has no known state")))?;
        Ok(Last { state, attempt })
    }))
}
