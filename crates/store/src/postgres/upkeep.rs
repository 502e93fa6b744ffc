//! Checking, rebuilding and copying a shared store. Works on connections of its own.

use std::path::Path;
use std::pin::pin;

use actum_contract::id::Tenant;
use actum_contract::limit::PAGE_BYTES_MAX;
use actum_ledger::append::{Appended, Log, replay};
use actum_ledger::journal::{JournalError, Range, Work};
use actum_ledger::verify::Walk;
use futures_util::TryStreamExt as _;
use rusqlite::types::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Column, Row};

use super::read::{TENANTS, letter, row_of};
use super::rows::Rows;
use super::spend::{authorization_of, sum_of};
use super::{Postgres, failed, not_pooled, open, retention};
use crate::retention::{Forget, Forgotten, Queue};
use crate::spend::AUTHORIZATION;
use crate::sqlite::Copy;
use crate::upkeep::{
    Check, PROJECTIONS, Projection, RECORD_TABLES, SUMS, Upkeep, WALK_ENTRIES, audited, counted_runs, known_states,
    make_private, walk_of,
};
use crate::{crash, tree};

impl Upkeep for Postgres {
    fn queue(&self, now_ms: i64) -> Work<'_, Queue> {
        Box::pin(async move {
            let client = self.pool.get().await.map_err(not_pooled)?;
            retention::queue(&client, now_ms).await
        })
    }

    fn forget(&self, what: Forget) -> Work<'_, Forgotten> {
        Box::pin(async move {
            let client = self.pool.get().await.map_err(not_pooled)?;
            retention::forget(&client, &what).await
        })
    }

    fn versions(&self) -> (usize, usize) {
        self.versions
    }

    fn check_database(&self) -> Work<'_, Check> {
        Box::pin(async move {
            // PostgreSQL has no self-check without extensions; that the journal's unique keys are in use is one.
            let client = open::connect(&self.config).await?;
            let sql = "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
                       JOIN pg_namespace n ON n.oid = c.relnamespace
                       WHERE n.nspname = 'actum' AND i.indisunique AND i.indisvalid AND i.indisready AND c.relname = 'ledger_entry'";
            let unique: i64 = client.query_one(sql, &[]).await.map_err(failed)?.get(0);
            let detail = format!("{unique} of 2 unique keys of the journal are in force");
            Ok(Check { name: "database", ok: unique == 2, detail })
        })
    }

    fn entry_bytes<'a>(&'a self, tenant: &'a Tenant, from: u64) -> Work<'a, (u64, u64)> {
        Box::pin(async move {
            let sql = "SELECT coalesce(sum(octet_length(body)), 0)::bigint, coalesce(max(seq) + 1, $2)::bigint
                       FROM ledger_entry WHERE tenant = $1 AND seq >= $2";
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            let rows = self.query(sql, &[&tenant.as_str(), &from]).await?;
            Ok(rows.first().map_or((0, 0), |row| (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64)))
        })
    }

    fn bytes_beside_log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, u64> {
        Box::pin(async move {
            let sql =
                "SELECT (SELECT coalesce(sum(octet_length(document)), 0) FROM dead_letter WHERE tenant = $1)::bigint
                            + (SELECT coalesce(sum(octet_length(body)), 0) FROM kept_answer WHERE tenant = $1)::bigint";
            Ok(self.query(sql, &[&tenant.as_str()]).await?.first().map_or(0, |row| row.get::<_, i64>(0) as u64))
        })
    }

    fn check_spend(&self) -> Work<'_, Check> {
        Box::pin(async move {
            let client = open::connect(&self.config).await?;
            // One snapshot: what is counted must be what is compared.
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(failed)?;
            let sql = format!("SELECT {AUTHORIZATION} FROM spend_authorization ORDER BY tenant, id");
            let all = client.query(&sql, &[]).await.map_err(failed)?;
            let all = all.iter().map(authorization_of).collect::<Result<Vec<_>, _>>()?;
            let sums = client.query(SUMS, &[]).await.map_err(failed)?;
            client.batch_execute("COMMIT").await.map_err(failed)?;
            Ok(audited(&all, &sums.iter().map(sum_of).collect::<Vec<_>>()))
        })
    }

    fn check_runs(&self) -> Work<'_, Check> {
        Box::pin(async move {
            // A run is whole if its texts are there, its state is known and its journal has as many events as it says.
            let sql = format!(
                "SELECT count(*), count(*) FILTER (WHERE t.id IS NULL OR r.state NOT IN ({}) OR r.version <> coalesce(e.n, 0))
                 FROM run r
                 LEFT JOIN run_text t ON t.tenant = r.tenant AND t.id = r.id
                 LEFT JOIN (SELECT tenant, run, count(*) AS n FROM run_event GROUP BY tenant, run) e
                 ON e.tenant = r.tenant AND e.run = r.id",
                known_states()
            );
            let client = self.pool.get().await.map_err(not_pooled)?;
            let row = client.query_one(&sql, &[]).await.map_err(failed)?;
            Ok(counted_runs((row.get(0), row.get(1))))
        })
    }

    fn projections(&self, replace: bool) -> Work<'_, Vec<Projection>> {
        Box::pin(async move { projections(open::connect(&self.config).await?, replace).await })
    }

    fn backup<'a>(&'a self, to: &'a Path) -> Work<'a, ()> {
        Box::pin(async move {
            let client = open::connect(&self.config).await?;
            make_private(to)?;
            let copy = Copy::create(to, &self.id)?;
            // One snapshot of the database: a copy of one moment, whatever is appended meanwhile.
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(failed)?;
            for tenant in tenants(&client).await? {
                let mut journey = Journey::begin(&client, &tenant).await?;
                while let Some(page) = journey.page().await? {
                    page.iter().try_for_each(|entry| copy.entry(entry))?;
                }
                let log = journey.finish()?;
                if log.frontier.size() > 0 {
                    copy.log(&tenant, &log)?;
                }
                let sql = "SELECT size, note FROM checkpoint WHERE tenant = $1 ORDER BY size";
                for row in client.query(sql, &[&tenant.as_str()]).await.map_err(failed)? {
                    copy.checkpoint(&tenant, row.get(0), row.get(1))?;
                }
            }
            let sql = "SELECT tenant, recorded_ns, code, refusal, document FROM dead_letter ORDER BY n";
            let none: [&(dyn ToSql + Sync); 0] = [];
            let mut letters = pin!(client.query_raw(sql, none).await.map_err(failed)?);
            while let Some(row) = letters.try_next().await.map_err(failed)? {
                copy.letter(&letter(&row))?;
            }
            for (table, columns, insert) in RECORD_TABLES {
                let sql = format!("SELECT {columns} FROM {table} ORDER BY 1, 2, 3");
                let mut rows = pin!(client.query_raw(&sql, none).await.map_err(failed)?);
                while let Some(row) = rows.try_next().await.map_err(failed)? {
                    copy.row(table, columns, insert, values(&row).map_err(failed)?)?;
                }
            }
            client.batch_execute("COMMIT").await.map_err(failed)?;
            copy.finish()
        })
    }
}

/// A row as the copy keeps it.
fn values(row: &Row) -> Result<Vec<Value>, tokio_postgres::Error> {
    let columns = row.columns().iter().enumerate();
    let value = |(i, column): (usize, &Column)| {
        Ok(match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(i)?.into(),
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(i)?.into(),
            Type::BOOL => row.try_get::<_, Option<bool>>(i)?.map(i64::from).into(),
            _ => row.try_get::<_, Option<String>>(i)?.into(),
        })
    };
    columns.map(value).collect()
}

async fn tenants(client: &Client) -> Result<Vec<Tenant>, JournalError> {
    let found = client.query(TENANTS, &[]).await.map_err(failed)?;
    let named = |row: &Row| {
        Tenant::new(row.get::<_, String>(0)).map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
    };
    found.iter().map(named).collect()
}

/// Walks one tenant's journal and hands it over page by page; stops at the first entry that is not what was recorded:
/// a projection or a copy made from a damaged journal would hide the damage.
struct Journey<'a> {
    client: &'a Client,
    tenant: &'a Tenant,
    stored_size: u64,
    walk: Walk,
    log: Log,
}

impl<'a> Journey<'a> {
    async fn begin(client: &'a Client, tenant: &'a Tenant) -> Result<Self, JournalError> {
        let sql = "SELECT note FROM checkpoint WHERE tenant = $1 ORDER BY size";
        let notes = client.query(sql, &[&tenant.as_str()]).await.map_err(failed)?;
        let notes: Vec<String> = notes.iter().map(|row| row.get(0)).collect();
        let sql = "SELECT size FROM actum.ledger_log WHERE tenant = $1";
        let stored = client.query_opt(sql, &[&tenant.as_str()]).await.map_err(failed)?;
        let stored_size = stored.map_or(0, |row| row.get::<_, i64>(0) as u64);
        Ok(Self { client, tenant, stored_size, walk: walk_of(tenant, &notes), log: Log::default() })
    }

    /// The next entries, replayed; nothing at the end.
    async fn page(&mut self) -> Result<Option<Vec<Appended>>, JournalError> {
        let sql = "SELECT seq, id, type, created_ns, hash, body FROM ledger_entry
                   WHERE tenant = $1 AND seq >= $2 ORDER BY seq LIMIT $3";
        let from = tree::first_seq(&Range::forwards(self.walk.size(), WALK_ENTRIES));
        let values: [&(dyn ToSql + Sync); 3] = [&self.tenant.as_str(), &from, &(WALK_ENTRIES as i64)];
        let mut found = pin!(self.client.query_raw(sql, values).await.map_err(failed)?);
        let (mut page, mut size) = (Vec::new(), 0);
        while size < PAGE_BYTES_MAX
            && let Some(row) = found.try_next().await.map_err(failed)?
        {
            let row = row_of(&row);
            size += row.body.len();
            self.walk.row(&row).map_err(|bad| JournalError::Tampered(Box::new(bad)))?;
            let entry = replay(self.tenant, &mut self.log, &row.body).ok_or_else(|| {
                JournalError::Damaged(format!("entry {} of {} breaks the rules", row.seq, self.tenant))
            })?;
            page.push(entry);
        }
        Ok(if page.is_empty() { None } else { Some(page) })
    }

    fn finish(self) -> Result<Log, JournalError> {
        self.walk.finish_journal(self.stored_size).map_err(|bad| JournalError::Tampered(Box::new(bad)))
    }
}

async fn projections(client: Client, replace: bool) -> Result<Vec<Projection>, JournalError> {
    if replace {
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(failed)?;
        // Where writers queue first of all, so that nobody waits for the other the wrong way round.
        client.batch_execute("LOCK TABLE ledger_lock IN EXCLUSIVE MODE").await.map_err(failed)?;
    } else {
        // Comparing needs one snapshot and stops nobody. Temporary tables may be written in it.
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE").await.map_err(failed)?;
    }
    // Temporary tables of the same names stand in front of the stored ones, so that the code which writes the
    // projections on every append is the code that makes them anew. Prepared after that, not before.
    for name in PROJECTIONS {
        let sql = format!("CREATE TEMP TABLE {name} (LIKE actum.{name} INCLUDING ALL) ON COMMIT DROP");
        client.batch_execute(&sql).await.map_err(failed)?;
    }
    let rows = Rows::prepare(client).await.map_err(failed)?;
    for tenant in tenants(&rows.client).await? {
        let mut journey = Journey::begin(&rows.client, &tenant).await?;
        while let Some(page) = journey.page().await? {
            let page: Vec<_> = page.iter().collect();
            rows.project(&page).await.map_err(failed)?;
        }
        let log = journey.finish()?;
        if log.frontier.size() > 0 {
            rows.put_logs(&[(&tenant, &log)]).await.map_err(failed)?;
        }
    }
    let client = &rows.client;
    let mut compared = Vec::new();
    for name in PROJECTIONS {
        let sql = format!(
            "SELECT (SELECT count(*) FROM pg_temp.{name}),
                    (SELECT count(*) FROM (SELECT * FROM actum.{name} EXCEPT SELECT * FROM pg_temp.{name}) a) +
                    (SELECT count(*) FROM (SELECT * FROM pg_temp.{name} EXCEPT SELECT * FROM actum.{name}) b)"
        );
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        let (rows, differing) = (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64);
        compared.push(Projection { name, rows, differing });
    }
    crash::point("rebuild.compared");
    for Projection { name, differing, .. } in &compared {
        if replace && *differing > 0 {
            let sql = format!("DELETE FROM actum.{name}; INSERT INTO actum.{name} SELECT * FROM pg_temp.{name}");
            client.batch_execute(&sql).await.map_err(failed)?;
        }
    }
    crash::point("rebuild.replaced");
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(compared)
}
