//! Reading, on pooled connections.

use std::pin::pin;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::PAGE_BYTES_MAX;
use actum_ledger::append::Log;
use actum_ledger::coherence::{Dependency, Found, execution_of};
use actum_ledger::draft::Submission;
use actum_ledger::entry::{Entry, recorded_at};
use actum_ledger::event::State;
use actum_ledger::journal::{DeadLetter, Journal, JournalError, Outcome, Range, StoreTime, Work};
use actum_ledger::merkle::Node;
use actum_ledger::time;
use actum_ledger::verify::Row;
use deadpool_postgres::Object;
use futures_util::TryStreamExt as _;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;

use super::write::log_of;
use super::{ANSWER_WAIT, FLUSH, Postgres, failed, is_without_flush, not_pooled, silent};
use crate::tree;

type Rows = Vec<tokio_postgres::Row>;

/// Whose ledgers there are. From name to name through the index; the journal is asked because the list of logs is a
/// projection.
pub(super) const TENANTS: &str = "WITH RECURSIVE journal (tenant) AS (
        SELECT min(tenant) FROM ledger_entry UNION ALL
        SELECT (SELECT min(e.tenant) FROM ledger_entry e WHERE e.tenant > journal.tenant) FROM journal
        WHERE journal.tenant IS NOT NULL)
    SELECT tenant FROM journal WHERE tenant IS NOT NULL
    UNION SELECT tenant FROM actum.ledger_log UNION SELECT tenant FROM checkpoint ORDER BY 1";

impl Postgres {
    /// Asks over a connection of the pool. One that stays silent is closed.
    async fn ask<T>(&self, ask: impl AsyncFnOnce(&Object) -> Result<T, JournalError>) -> Result<T, JournalError> {
        let client = self.pool.get().await.map_err(not_pooled)?;
        let answered = timeout(ANSWER_WAIT, ask(&client)).await;
        answered.unwrap_or_else(|_| {
            drop(Object::take(client));
            Err(silent())
        })
    }

    pub(super) async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Rows, JournalError> {
        self.ask(async |client| query(client, sql, values).await).await
    }

    /// The same; nothing if what is stored is not of the form that the question takes for granted.
    pub(super) async fn query_of_form(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Rows>, JournalError> {
        self.ask(async |client| {
            let statement = client.prepare_cached(sql).await.map_err(failed)?;
            match client.query(&statement, values).await {
                // The class of "data exception".
                Err(e) if e.code().is_some_and(|state| state.code().starts_with("22")) => Ok(None),
                rows => rows.map(Some).map_err(failed),
            }
        })
        .await
    }
}

async fn query(client: &Object, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Rows, JournalError> {
    let statement = client.prepare_cached(sql).await.map_err(failed)?;
    client.query(&statement, values).await.map_err(failed)
}

impl Journal for Postgres {
    fn append(&self, submission: Submission) -> Work<'static, Outcome> {
        match &self.sender {
            Some(sender) => sender.append(submission),
            None => closed(),
        }
    }

    fn entry<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let sql = "SELECT body FROM ledger_entry WHERE tenant = $1 AND id = $2";
            Ok(self.query(sql, &[&tenant.as_str(), &id]).await?.first().map(|row| row.get(0)))
        })
    }

    fn rows<'a>(&'a self, tenant: &'a Tenant, range: Range) -> Work<'a, Vec<Row>> {
        Box::pin(async move { self.ask(async |client| rows(client, tenant, &range).await).await })
    }

    fn log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Log> {
        Box::pin(async move {
            let sql = "SELECT tenant, size, head, frontier FROM ledger_log WHERE tenant = $1";
            let found = self.query(sql, &[&tenant.as_str()]).await?;
            found.first().map_or_else(|| Ok(Log::default()), |row| log_of(tenant, row))
        })
    }

    fn time<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, StoreTime> {
        Box::pin(async move {
            let sql = "SELECT (SELECT body FROM ledger_entry WHERE tenant = $1 ORDER BY seq DESC LIMIT 1),
                floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
            let found = self.query(sql, &[&tenant.as_str()]).await?;
            let row = found.first().ok_or_else(|| JournalError::Unavailable("it did not tell the time".into()))?;
            let last = row.get::<_, Option<&[u8]>>(0).and_then(recorded_at);
            Ok(StoreTime { last, clock: time::from_microseconds(row.get(1)) })
        })
    }

    fn nodes<'a>(&'a self, tenant: &'a Tenant, wanted: &'a [Node]) -> Work<'a, Vec<Digest>> {
        Box::pin(async move {
            self.ask(async |client| {
                let mut found = Vec::with_capacity(wanted.len());
                for &node in wanted {
                    let stretch = tree::stretch(node);
                    let sql = match stretch.level {
                        0 => {
                            "SELECT hash FROM ledger_entry WHERE tenant = $1 AND $2::bigint = 0 AND seq >= $3 AND seq < $4 ORDER BY seq"
                        }
                        _ => {
                            "SELECT hash FROM ledger_node WHERE tenant = $1 AND level = $2 AND idx >= $3 AND idx < $4 ORDER BY idx"
                        }
                    };
                    let (first, end) = (stretch.first as i64, (stretch.first + stretch.count) as i64);
                    let level = i64::from(stretch.level);
                    let hashes = query(client, sql, &[&tenant.as_str(), &level, &first, &end]).await?;
                    found.push(tree::node(stretch, hashes.iter().map(|row| row.get(0)).collect())?);
                }
                Ok(found)
            })
            .await
        })
    }

    fn lineage<'a>(&'a self, tenant: &'a Tenant, ids: &'a [String]) -> Work<'a, Vec<Dependency>> {
        Box::pin(async move {
            self.ask(async |client| {
                let mut all = Vec::with_capacity(ids.len());
                for id in ids {
                    all.push(dependency(client, tenant, id).await?);
                }
                Ok(all)
            })
            .await
        })
    }

    fn keep_checkpoint<'a>(&'a self, tenant: &'a Tenant, size: u64, note: &'a str) -> Work<'a, ()> {
        match &self.sender {
            Some(sender) => sender.keep_checkpoint(tenant, size, note),
            None => closed(),
        }
    }

    fn checkpoints<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<String>> {
        Box::pin(async move {
            let sql = "SELECT note FROM checkpoint WHERE tenant = $1 ORDER BY size";
            Ok(self.query(sql, &[&tenant.as_str()]).await?.iter().map(|row| row.get(0)).collect())
        })
    }

    fn dead_letters<'a>(&'a self, tenant: Option<&'a Tenant>, limit: usize) -> Work<'a, Vec<DeadLetter>> {
        Box::pin(async move {
            let sql = "SELECT tenant, recorded_ns, code, refusal, document FROM dead_letter
                       WHERE $1::text IS NULL OR tenant = $1 ORDER BY n DESC LIMIT $2";
            let found = self.query(sql, &[&tenant.map(Tenant::as_str), &(limit as i64)]).await?;
            Ok(found.iter().map(letter).collect())
        })
    }

    fn tenants(&self) -> Work<'_, Vec<Tenant>> {
        Box::pin(async move {
            let found = self.query(TENANTS, &[]).await?;
            Ok(found.iter().filter_map(|row| Tenant::new(row.get::<_, String>(0)).ok()).collect())
        })
    }

    fn store_id(&self) -> &str {
        &self.id
    }

    fn settled(&self) -> Work<'_, ()> {
        Box::pin(async move {
            self.ask(async |client| {
                let flushed = async { client.execute(&client.prepare_cached(FLUSH).await?, &[]).await };
                match flushed.await {
                    Err(e) if !is_without_flush(&e) => Err(failed(e)),
                    _ => Ok(()),
                }
            })
            .await
        })
    }
}

pub(super) fn closed<T>() -> Work<'static, T> {
    Box::pin(async { Err(JournalError::Unavailable("it was closed".into())) })
}

pub(super) fn letter(row: &tokio_postgres::Row) -> DeadLetter {
    DeadLetter {
        tenant: row.get(0),
        recorded_at: time::from_nanoseconds(row.get(1)),
        code: row.get(2),
        refusal: row.get(3),
        document: row.get(4),
    }
}

async fn rows(client: &Object, tenant: &Tenant, range: &Range) -> Result<Vec<Row>, JournalError> {
    // Two statements for each direction: a condition on an optional type would cost the plan its index.
    let sql = match (range.backwards, &range.kind) {
        (false, None) => {
            "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry WHERE tenant = $1 AND seq >= $2 AND $3::text IS NULL ORDER BY seq LIMIT $4"
        }
        (true, None) => {
            "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry WHERE tenant = $1 AND seq < $2 AND $3::text IS NULL ORDER BY seq DESC LIMIT $4"
        }
        (false, Some(_)) => {
            "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry WHERE tenant = $1 AND seq >= $2 AND type = $3 ORDER BY seq LIMIT $4"
        }
        (true, Some(_)) => {
            "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry WHERE tenant = $1 AND seq < $2 AND type = $3 ORDER BY seq DESC LIMIT $4"
        }
    };
    let (from, limit) = (tree::first_seq(range), range.limit as i64);
    let statement = client.prepare_cached(sql).await.map_err(failed)?;
    let values: [&(dyn ToSql + Sync); 4] = [&tenant.as_str(), &from, &range.kind, &limit];
    let mut found = pin!(client.query_raw(&statement, values).await.map_err(failed)?);
    let (mut rows, mut size) = (Vec::new(), 0);
    while size < PAGE_BYTES_MAX
        && let Some(row) = found.try_next().await.map_err(failed)?
    {
        let row = row_of(&row);
        size += row.body.len();
        rows.push(row);
    }
    Ok(rows)
}

pub(super) fn row_of(row: &tokio_postgres::Row) -> Row {
    Row {
        seq: row.get::<_, i64>(0) as u64,
        id: row.get(1),
        kind: row.get(2),
        created_ns: row.get(3),
        hash: row.get(4),
        body: row.get(5),
    }
}

async fn dependency(client: &Object, tenant: &Tenant, id: &str) -> Result<Dependency, JournalError> {
    let sql = "SELECT body FROM ledger_entry WHERE tenant = $1 AND id = $2";
    let found = query(client, sql, &[&tenant.as_str(), &id]).await?;
    let Some(row) = found.first() else { return Ok(Dependency { id: id.to_owned(), found: None }) };
    let damaged = |e: String| JournalError::Damaged(format!("entry {id}: {e}"));
    let entry = Entry::open(row.get(0)).map_err(|e| damaged(e.to_string()))?;
    let superseder = |row: &tokio_postgres::Row| (row.get::<_, String>(0), time::from_nanoseconds(row.get(1)));
    let sql = "SELECT by_id, by_created_ns FROM superseded WHERE tenant = $1 AND id = $2 ORDER BY by_created_ns, by_id";
    let mut superseded_by: Vec<_> =
        query(client, sql, &[&tenant.as_str(), &id]).await?.iter().map(superseder).collect();
    if let Some((robot, execution)) = execution_of(&entry) {
        let sql = "SELECT e.id, e.created_ns FROM execution x JOIN ledger_entry e ON e.tenant = x.tenant AND e.seq = x.last_seq
                   WHERE x.tenant = $1 AND x.robot = $2 AND x.execution = $3 AND x.state = $4 AND x.last_seq > $5";
        let succeeded = State::Succeeded.word();
        let values: [&(dyn ToSql + Sync); 5] = [&tenant.as_str(), &robot, &execution, &succeeded, &(entry.seq as i64)];
        superseded_by.extend(query(client, sql, &values).await?.iter().map(superseder));
    }
    let found = Found::of(entry, superseded_by).map_err(|e| damaged(e.to_string()))?;
    Ok(Dependency { id: id.to_owned(), found: Some(found) })
}
