//! Reading: a few threads with a connection each, so that neither the writer nor a caller's task ever waits for them.

use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::PAGE_BYTES_MAX;
use actum_ledger::append::Log;
use actum_ledger::coherence::{Dependency, Found, execution_of};
use actum_ledger::draft::Submission;
use actum_ledger::entry::{Entry, recorded_at};
use actum_ledger::event::State;
use actum_ledger::journal::{DeadLetter, Journal, JournalError, Outcome, Range, StoreTime, Work};
use actum_ledger::merkle::{Frontier, Node};
use actum_ledger::time;
use actum_ledger::verify::Row;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;

use super::{Sqlite, failed, open};
use crate::queue::Sender;
use crate::tree;

const READERS: usize = 2;

/// Questions that may wait for a reader.
const QUESTIONS_MAX: usize = 1_024;

type Question = Box<dyn FnOnce(&mut Connection) + Send>;

#[derive(Debug)]
pub(super) struct Readers {
    /// Gone only while the readers are being stopped.
    questions: Option<mpsc::SyncSender<Question>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn start(connect: impl Fn() -> Result<Connection, JournalError>) -> Result<Self, JournalError> {
        let (sender, receiver) = mpsc::sync_channel::<Question>(QUESTIONS_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::with_capacity(READERS);
        for n in 0..READERS {
            let mut connection = connect()?;
            connection.pragma_update(None, "query_only", true).map_err(failed)?;
            let receiver = Arc::clone(&receiver);
            let run = move || {
                // The lock is held only to take the next question, not while answering it.
                while let Ok(question) = { receiver.lock().map_or(Err(mpsc::RecvError), |r| r.recv()) } {
                    question(&mut connection);
                }
            };
            let thread = std::thread::Builder::new()
                .name(format!("actum-store-reader-{n}"))
                .spawn(run)
                .map_err(|e| JournalError::Unavailable(format!("cannot start a reader: {e}")))?;
            threads.push(thread);
        }
        Ok(Self { questions: Some(sender), threads })
    }

    /// Asks on a reader's connection, within one snapshot of the database.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, JournalError> + Send + 'static,
    ) -> Work<'static, T> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |connection| {
            let result = connection.transaction().map_err(failed).and_then(|tx| question(&tx));
            let _ = answer.send(result);
        });
        let sent = self.questions.as_ref().is_some_and(|questions| questions.try_send(question).is_ok());
        Box::pin(async move {
            if !sent {
                return Err(JournalError::Unavailable("too many questions are waiting; try again".into()));
            }
            answered.await.unwrap_or_else(|_| Err(JournalError::Unavailable("its readers have stopped".into())))
        })
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // The last connection to close folds the write-ahead log into the file: none may be left to a dying thread.
        self.questions = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Journal for Sqlite {
    fn append(&self, submission: Submission) -> Work<'static, Outcome> {
        self.sender().map_or_else(read_only, |s| s.append(submission))
    }

    fn entry<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Vec<u8>>> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.ask(move |c| entry(c, &tenant, &id).map_err(failed))
    }

    fn rows<'a>(&'a self, tenant: &'a Tenant, range: Range) -> Work<'a, Vec<Row>> {
        let tenant = tenant.clone();
        self.ask(move |c| rows(c, &tenant, &range).map_err(failed))
    }

    fn log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Log> {
        let tenant = tenant.clone();
        self.ask(move |c| log(c, &tenant))
    }

    fn time<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, StoreTime> {
        let (tenant, clock) = (tenant.clone(), Arc::clone(&self.clock));
        self.ask(move |c| Ok(StoreTime { last: last_recorded(c, &tenant)?, clock: clock.now() }))
    }

    fn nodes<'a>(&'a self, tenant: &'a Tenant, wanted: &'a [Node]) -> Work<'a, Vec<Digest>> {
        let (tenant, wanted) = (tenant.clone(), wanted.to_vec());
        self.ask(move |c| wanted.iter().map(|n| node(c, &tenant, *n)).collect())
    }

    fn lineage<'a>(&'a self, tenant: &'a Tenant, ids: &'a [String]) -> Work<'a, Vec<Dependency>> {
        let (tenant, ids) = (tenant.clone(), ids.to_vec());
        self.ask(move |c| ids.into_iter().map(|id| dependency(c, &tenant, id)).collect())
    }

    fn keep_checkpoint<'a>(&'a self, tenant: &'a Tenant, size: u64, note: &'a str) -> Work<'a, ()> {
        self.sender().map_or_else(read_only, |s| s.keep_checkpoint(tenant, size, note))
    }

    fn checkpoints<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<String>> {
        let tenant = tenant.clone();
        self.ask(move |c| checkpoints(c, &tenant).map_err(failed))
    }

    fn dead_letters<'a>(&'a self, tenant: Option<&'a Tenant>, limit: usize) -> Work<'a, Vec<DeadLetter>> {
        let tenant = tenant.map(|t| t.as_str().to_owned());
        self.ask(move |c| dead_letters(c, tenant, limit).map_err(failed))
    }

    fn tenants(&self) -> Work<'_, Vec<Tenant>> {
        self.ask(|c| tenants(c).map_err(failed))
    }

    fn store_id(&self) -> &str {
        &self.id
    }
}

impl Sqlite {
    pub(super) fn sender(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, JournalError> + Send + 'static,
    ) -> Work<'static, T> {
        let Some(readers) = &self.readers else {
            return Box::pin(async { Err(JournalError::Unavailable("it was closed".into())) });
        };
        if !self.read_only {
            return readers.ask(question);
        }
        // Without a share in SQLite's locks the file may change under the question. Then the answer means nothing, and
        // least of all that the file is damaged.
        let (path, before) = (self.path.clone(), open::state(&self.path));
        let answer = readers.ask(question);
        Box::pin(async move {
            let answer = answer.await;
            match open::state(&path) == before {
                true => answer,
                false => Err(JournalError::Unavailable("another process is writing to it; try again".into())),
            }
        })
    }
}

pub(super) fn read_only<T>() -> Work<'static, T> {
    let message = "the store may only be read here: appending needs write access to its file and folder";
    Box::pin(async move { Err(JournalError::Unusable(message.into())) })
}

/// When the last entry of a tenant's log was recorded.
pub(super) fn last_recorded(c: &Connection, tenant: &Tenant) -> Result<Option<Timestamp>, JournalError> {
    let sql = "SELECT body FROM ledger_entry WHERE tenant = ?1 ORDER BY seq DESC LIMIT 1";
    let body = c
        .prepare_cached(sql)
        .and_then(|mut s| s.query_row(params![tenant.as_str()], |row| bytes(row, 0)).optional())
        .map_err(failed)?;
    Ok(body.and_then(|body| recorded_at(&body)))
}

fn entry(c: &Connection, tenant: &Tenant, id: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let sql = "SELECT body FROM ledger_entry WHERE tenant = ?1 AND id = ?2";
    c.prepare_cached(sql)?.query_row(params![tenant.as_str(), id], |row| row.get(0)).optional()
}

pub(super) fn rows(c: &Connection, tenant: &Tenant, range: &Range) -> rusqlite::Result<Vec<Row>> {
    let sql = if range.backwards {
        "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry
         WHERE tenant = ?1 AND seq < ?2 AND (?3 IS NULL OR type = ?3) ORDER BY seq DESC LIMIT ?4"
    } else {
        "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry
         WHERE tenant = ?1 AND seq >= ?2 AND (?3 IS NULL OR type = ?3) ORDER BY seq LIMIT ?4"
    };
    let from = tree::first_seq(range);
    let mut statement = c.prepare_cached(sql)?;
    let mut found = statement.query(params![tenant.as_str(), from, range.kind, range.limit as i64])?;
    let (mut rows, mut size) = (Vec::new(), 0);
    while size < PAGE_BYTES_MAX
        && let Some(row) = found.next()?
    {
        let body = bytes(row, 5)?;
        size += body.len();
        rows.push(Row {
            seq: row.get::<_, i64>(0)? as u64,
            id: row.get(1)?,
            kind: row.get(2)?,
            created_ns: row.get(3)?,
            hash: bytes(row, 4)?,
            body,
        });
    }
    Ok(rows)
}

/// The bytes of a column, whatever type a stranger's hand may have given it.
fn bytes(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
        _ => Vec::new(),
    })
}

pub(super) fn log(c: &Connection, tenant: &Tenant) -> Result<Log, JournalError> {
    let sql = "SELECT size, head, frontier FROM ledger_log WHERE tenant = ?1";
    let mut statement = c.prepare_cached(sql).map_err(failed)?;
    let found = statement
        .query_row(params![tenant.as_str()], |row| Ok((row.get::<_, i64>(0)? as u64, bytes(row, 1)?, bytes(row, 2)?)))
        .optional()
        .map_err(failed)?;
    let Some((size, head, frontier)) = found else { return Ok(Log::default()) };
    let parts = Frontier::from_bytes(size, &frontier).zip(Digest::from_slice(&head));
    let (frontier, head) = parts.ok_or_else(|| {
        JournalError::Damaged(format!("the head of {tenant}'s log is broken: run `actum store rebuild`"))
    })?;
    Ok(Log { frontier, head })
}

fn node(c: &Connection, tenant: &Tenant, wanted: Node) -> Result<Digest, JournalError> {
    let stretch = tree::stretch(wanted);
    let sql = match stretch.level {
        0 => "SELECT hash FROM ledger_entry WHERE tenant = ?1 AND ?2 = 0 AND seq >= ?3 AND seq < ?4 ORDER BY seq",
        _ => "SELECT hash FROM ledger_node WHERE tenant = ?1 AND level = ?2 AND idx >= ?3 AND idx < ?4 ORDER BY idx",
    };
    let mut statement = c.prepare_cached(sql).map_err(failed)?;
    let end = stretch.first + stretch.count;
    let values = params![tenant.as_str(), stretch.level, stretch.first as i64, end as i64];
    let hashes = statement.query_map(values, |row| bytes(row, 0)).map_err(failed)?;
    tree::node(stretch, hashes.collect::<Result<_, _>>().map_err(failed)?)
}

fn dependency(c: &Connection, tenant: &Tenant, id: String) -> Result<Dependency, JournalError> {
    let Some(body) = entry(c, tenant, &id).map_err(failed)? else { return Ok(Dependency { id, found: None }) };
    let entry = Entry::open(&body).map_err(|e| JournalError::Damaged(format!("entry {id}: {e}")))?;
    let mut superseded_by = superseders(c, tenant, &id).map_err(failed)?;
    if let Some((robot, execution)) = execution_of(&entry) {
        superseded_by.extend(later_success(c, tenant, robot, execution, entry.seq).map_err(failed)?);
    }
    let found = Found::of(entry, superseded_by).map_err(|e| JournalError::Damaged(format!("entry {id}: {e}")))?;
    Ok(Dependency { id, found: Some(found) })
}

type Superseder = (String, Timestamp);

fn superseders(c: &Connection, tenant: &Tenant, id: &str) -> rusqlite::Result<Vec<Superseder>> {
    let sql = "SELECT by_id, by_created_ns FROM superseded WHERE tenant = ?1 AND id = ?2 ORDER BY by_created_ns, by_id";
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement
        .query_map(params![tenant.as_str(), id], |row| Ok((row.get(0)?, time::from_nanoseconds(row.get(1)?))))?;
    rows.collect()
}

fn later_success(
    c: &Connection,
    tenant: &Tenant,
    robot: &str,
    execution: &str,
    seq: u64,
) -> rusqlite::Result<Option<Superseder>> {
    let sql =
        "SELECT e.id, e.created_ns FROM execution x JOIN ledger_entry e ON e.tenant = x.tenant AND e.seq = x.last_seq
               WHERE x.tenant = ?1 AND x.robot = ?2 AND x.execution = ?3 AND x.state = ?4 AND x.last_seq > ?5";
    let values = params![tenant.as_str(), robot, execution, State::Succeeded.word(), seq as i64];
    c.prepare_cached(sql)?.query_row(values, |row| Ok((row.get(0)?, time::from_nanoseconds(row.get(1)?)))).optional()
}

pub(super) fn checkpoints(c: &Connection, tenant: &Tenant) -> rusqlite::Result<Vec<String>> {
    let mut statement = c.prepare_cached("SELECT note FROM checkpoint WHERE tenant = ?1 ORDER BY size")?;
    let notes = statement.query_map(params![tenant.as_str()], |row| row.get(0))?;
    notes.collect()
}

fn dead_letters(c: &Connection, tenant: Option<String>, limit: usize) -> rusqlite::Result<Vec<DeadLetter>> {
    let sql = match &tenant {
        Some(_) => {
            "SELECT tenant, recorded_ns, code, refusal, document FROM dead_letter WHERE tenant = ?1 ORDER BY n DESC LIMIT ?2"
        }
        None => {
            "SELECT tenant, recorded_ns, code, refusal, document FROM dead_letter WHERE ?1 IS NULL ORDER BY n DESC LIMIT ?2"
        }
    };
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map(params![tenant, limit as i64], |row| {
        let recorded_at = time::from_nanoseconds(row.get(1)?);
        Ok(DeadLetter {
            tenant: row.get(0)?,
            recorded_at,
            code: row.get(2)?,
            refusal: row.get(3)?,
            document: bytes(row, 4)?,
        })
    })?;
    rows.collect()
}

pub(super) fn tenants(c: &Connection) -> rusqlite::Result<Vec<Tenant>> {
    // From name to name through the index; the journal itself is asked because the list of logs is a projection.
    let sql = "WITH RECURSIVE journal (tenant) AS (
                   SELECT min(tenant) FROM ledger_entry UNION ALL
                   SELECT (SELECT min(e.tenant) FROM ledger_entry e WHERE e.tenant > journal.tenant) FROM journal
                   WHERE journal.tenant IS NOT NULL)
               SELECT tenant FROM journal WHERE tenant IS NOT NULL
               UNION SELECT tenant FROM main.ledger_log UNION SELECT tenant FROM checkpoint ORDER BY 1";
    let mut statement = c.prepare_cached(sql)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    names.filter_map(|name| name.map(|n| Tenant::new(n).ok()).transpose()).collect()
}
