//! The writing thread: takes whatever waits, locks the logs concerned, decides, commits it together.

use std::collections::BTreeSet;
use std::sync::Arc;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::append::{Appended, Book, Known, Log};
use actum_ledger::event::State;
use actum_ledger::journal::JournalError;
use actum_ledger::merkle::Frontier;
use actum_ledger::state::Last;
use actum_ledger::time::{self, Moment};
use jiff::Timestamp;
use tokio_postgres::{Config, Row, Statement};

use super::rows::Rows;
use super::{failed, open};
use crate::batch::{Effect, decide, drafts};
use crate::crash;
use crate::queue::{Done, Receiver, Request};

/// Runs until all callers are gone. A connection that failed is not used again; the next batch gets a new one.
pub(super) fn run(config: Config, mut receiver: Receiver) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async move {
        let mut writer = None;
        while let Some(batch) = receiver.next().await {
            let done = match take(&mut writer, &config).await {
                Ok(ready) => ready.commit(&batch.requests).await,
                Err(e) => Err(e),
            };
            if done.is_err() {
                writer = None;
            }
            batch.answer(done);
        }
    });
}

async fn take<'a>(writer: &'a mut Option<Writer>, config: &Config) -> Result<&'a Writer, JournalError> {
    if writer.as_ref().is_none_or(|w| w.rows.client.is_closed()) {
        *writer = Some(Writer::connect(config).await?);
    }
    writer.as_ref().ok_or_else(|| JournalError::Unavailable("no connection".into()))
}

struct Writer {
    rows: Rows,
    lock: Statement,
    logs: Statement,
    entries: Statement,
    executions: Statement,
}

impl Writer {
    async fn connect(config: &Config) -> Result<Self, JournalError> {
        let client = open::connect(config).await?;
        // Acknowledged means durable, whatever the server's default. Every look-up here is by key: a plan that
        // scans would only ever come from statistics that are missing or old.
        let settings = "SET synchronous_commit = on; SET enable_seqscan = off; SET enable_hashjoin = off; \
                        SET enable_mergejoin = off; SET jit = off";
        client.batch_execute(settings).await.map_err(failed)?;
        let rows = Rows::prepare(client).await.map_err(failed)?;
        let lock = "SELECT tenant FROM ledger_lock WHERE tenant = ANY($1) ORDER BY tenant FOR UPDATE";
        let logs = "SELECT tenant, size, head, frontier FROM ledger_log WHERE tenant = ANY($1)";
        let entries = "SELECT e.tenant, e.id, e.seq, e.created_ns, CASE WHEN k.own THEN e.body END
            FROM unnest($1::text[], $2::text[], $3::bool[]) AS k (tenant, id, own)
            JOIN ledger_entry e ON e.tenant = k.tenant AND e.id = k.id";
        let executions = "SELECT x.tenant, x.robot, x.execution, x.state, x.attempt, k.id, e.seq, e.created_ns, e.body
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k (tenant, robot, execution, id)
            JOIN execution x ON x.tenant = k.tenant AND x.robot = k.robot AND x.execution = k.execution
            LEFT JOIN ledger_entry e ON e.tenant = k.tenant AND e.id = k.id";
        let client = &rows.client;
        let (lock, logs, entries, executions) = tokio::try_join!(
            client.prepare(lock),
            client.prepare(logs),
            client.prepare(entries),
            client.prepare(executions)
        )
        .map_err(failed)?;
        Ok(Self { rows, lock, logs, entries, executions })
    }

    async fn commit(&self, requests: &[Request]) -> Result<Vec<Done>, JournalError> {
        let done = self.try_commit(requests).await;
        if done.is_err() {
            // Best effort; the connection is dropped either way, which rolls back what was open.
            let _ = self.rows.client.batch_execute("ROLLBACK").await;
        }
        done
    }

    async fn try_commit(&self, requests: &[Request]) -> Result<Vec<Done>, JournalError> {
        let client = &self.rows.client;
        let tenants: BTreeSet<&str> = drafts(requests).map(|d| d.tenant.as_str()).collect();
        let mut book = self.begin(&tenants.into_iter().collect::<Vec<_>>(), requests).await?;
        crash::point("append.begun");

        let now = Moment::new(Timestamp::now());
        let (mut all, mut entries, mut letters, mut checkpoints) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            let submission = match request {
                Request::Append(submission) => submission,
                Request::Checkpoint { tenant, size, note } => {
                    checkpoints.push((tenant, *size, note));
                    all.push(Done::Kept);
                    continue;
                }
                Request::Run(_) => return Err(JournalError::Unusable("not yet".into())),
            };
            let (effect, outcome) = decide(&mut book, submission, &now);
            match effect {
                Effect::Entry(entry) => entries.push(entry),
                Effect::DeadLetter(letter) => letters.push(letter),
                Effect::Nothing => {}
            }
            all.push(Done::Appended(outcome));
        }
        let entries: Vec<&Appended> = entries.iter().map(|e| &**e).collect();
        let changed: BTreeSet<&Tenant> = entries.iter().map(|e| &e.tenant).collect();
        let logs: Vec<_> = book.logs().filter(|(tenant, _)| changed.contains(tenant)).collect();
        for (tenant, size, note) in checkpoints {
            self.rows.put_checkpoint(tenant, size, note).await.map_err(failed)?;
            crash::point("checkpoint.written");
        }
        self.rows.insert_letters(&letters, time::nanoseconds(now.at)).await.map_err(failed)?;
        crash::point("append.inserted");
        crash::point("append.written");
        // One flight, in this order. If a row is refused the server turns the COMMIT into a ROLLBACK, and the error of
        // that row is what is returned.
        tokio::try_join!(
            biased;
            self.rows.insert_entries(&entries),
            self.rows.project(&entries),
            self.rows.put_logs(&logs),
            client.batch_execute("COMMIT"),
        )
        .map_err(failed)?;
        crash::point("append.committed");
        Ok(all)
    }

    /// Begins the transaction, waits for its turn at the logs, and reads what the batch needs: one flight, because
    /// each statement sees what was committed before it began, and it begins after the locks are held.
    async fn begin(&self, tenants: &[&str], requests: &[Request]) -> Result<Book, JournalError> {
        let client = &self.rows.client;
        loop {
            let (_, locked, logs, entries, executions) = tokio::try_join!(
                biased;
                async { client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(failed) },
                async { client.query(&self.lock, &[&tenants]).await.map_err(failed) },
                async { client.query(&self.logs, &[&tenants]).await.map_err(failed) },
                self.read_entries(requests),
                self.read_executions(requests),
            )?;
            if locked.len() == tenants.len() {
                let mut book = Book::default();
                for row in logs {
                    let tenant = tenant_of(&row)?;
                    book.learn_log(&tenant, log_of(&tenant, &row)?);
                }
                learn_entries(&mut book, entries);
                learn_executions(&mut book, executions)?;
                return Ok(book);
            }
            // A tenant's first entry. Its lock is made in a transaction of its own: making it while holding others
            // could have two writers wait for each other.
            client.batch_execute("ROLLBACK").await.map_err(failed)?;
            let sql = "INSERT INTO ledger_lock (tenant) SELECT t FROM unnest($1::text[]) AS k (t) ORDER BY t ON CONFLICT DO NOTHING";
            client.execute(sql, &[&tenants]).await.map_err(failed)?;
        }
    }

    async fn read_entries(&self, requests: &[Request]) -> Result<Vec<Row>, JournalError> {
        let mut keys: BTreeSet<(&str, &str, bool)> = BTreeSet::new();
        for draft in drafts(requests) {
            let tenant = draft.tenant.as_str();
            keys.extend(draft.depends_on.iter().chain(&draft.supersedes).map(|id| (tenant, id.as_str(), false)));
            let own = draft.id.iter().filter(|_| draft.event.is_none());
            keys.extend(own.map(|id| (tenant, id.as_str(), true)));
        }
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (tenants, ids): (Vec<_>, Vec<_>) = keys.iter().map(|(tenant, id, _)| (*tenant, *id)).unzip();
        let own: Vec<_> = keys.iter().map(|(.., own)| *own).collect();
        self.rows.client.query(&self.entries, &[&tenants, &ids, &own]).await.map_err(failed)
    }

    /// Where the executions stand, and the events themselves if they are recorded already. An event of an execution
    /// nobody has heard of cannot be, so it is not looked for.
    async fn read_executions(&self, requests: &[Request]) -> Result<Vec<Row>, JournalError> {
        let mut keys: BTreeSet<[&str; 4]> = BTreeSet::new();
        for draft in drafts(requests) {
            if let (Some(event), Some(id)) = (&draft.event, &draft.id) {
                keys.insert([draft.tenant.as_str(), &event.robot, &event.execution, id]);
            }
        }
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let column = |i: usize| keys.iter().map(|key| key[i]).collect::<Vec<_>>();
        let (tenants, robots, executions, ids) = (column(0), column(1), column(2), column(3));
        self.rows.client.query(&self.executions, &[&tenants, &robots, &executions, &ids]).await.map_err(failed)
    }
}

fn tenant_of(row: &Row) -> Result<Tenant, JournalError> {
    Tenant::new(row.get::<_, String>(0)).map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
}

/// The head of a log out of (tenant, size, head, frontier).
pub(super) fn log_of(tenant: &Tenant, row: &Row) -> Result<Log, JournalError> {
    let frontier = Frontier::from_bytes(row.get::<_, i64>(1) as u64, row.get(3));
    let (frontier, head) = frontier.zip(Digest::from_slice(row.get(2))).ok_or_else(|| {
        JournalError::Damaged(format!("the head of {tenant}'s log is broken: run `actum store rebuild`"))
    })?;
    Ok(Log { frontier, head })
}

fn learn_entries(book: &mut Book, rows: Vec<Row>) {
    for row in rows {
        let Ok(tenant) = tenant_of(&row) else { continue };
        let id: String = row.get(1);
        let body: Option<Vec<u8>> = row.get(4);
        // The same id may be one draft's own and another's dependency; the row with the text is the fuller one.
        if body.is_none() && book.knows_entry(&tenant, &id) {
            continue;
        }
        let known = Known { seq: row.get::<_, i64>(2) as u64, created_ns: row.get(3), body: body.map(Arc::new) };
        book.learn_entry(&tenant, id, known);
    }
}

fn learn_executions(book: &mut Book, rows: Vec<Row>) -> Result<(), JournalError> {
    for row in rows {
        let (robot, execution, state): (String, String, String) = (row.get(1), row.get(2), row.get(3));
        let state = State::named(&state)
            .ok_or_else(|| JournalError::Damaged(format!("execution {execution} has no known state")))?;
        let last = Last { state, attempt: row.get::<_, i64>(4) as u64 };
        let tenant = tenant_of(&row)?;
        if let Some(seq) = row.get::<_, Option<i64>>(6) {
            let body = Some(Arc::new(row.get(8)));
            book.learn_entry(&tenant, row.get(5), Known { seq: seq as u64, created_ns: row.get(7), body });
        }
        book.learn_execution(&tenant, (robot, execution), last);
    }
    Ok(())
}
