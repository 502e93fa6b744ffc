//! Checking, rebuilding and copying a shared store. Works on connections of its own.

use std::path::Path;

use actum_contract::id::Tenant;
use actum_ledger::append::{Appended, Log, replay};
use actum_ledger::journal::{JournalError, Work};
use tokio_postgres::Client;

use super::read::{letter, row_of};
use super::rows::Rows;
use super::{Postgres, failed, open};
use crate::crash;
use crate::sqlite::Copy;
use crate::upkeep::{Check, PROJECTIONS, Projection, Upkeep};

/// Entries read at a time while the journal is walked.
const WALK_ENTRIES: usize = 1_000;

impl Upkeep for Postgres {
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

    fn projections(&self, replace: bool) -> Work<'_, Vec<Projection>> {
        Box::pin(async move { projections(open::connect(&self.config).await?, replace).await })
    }

    fn backup<'a>(&'a self, to: &'a Path) -> Work<'a, ()> {
        Box::pin(async move {
            let client = open::connect(&self.config).await?;
            let copy = Copy::create(to, &self.id)?;
            // One snapshot of the database: a copy of one moment, whatever is appended meanwhile.
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(failed)?;
            for tenant in tenants(&client).await? {
                let mut log = Log::default();
                while let Some(page) = page(&client, &tenant, &mut log).await? {
                    page.iter().try_for_each(|entry| copy.entry(entry))?;
                }
                copy.log(&tenant, &log)?;
                let sql = "SELECT size, note FROM checkpoint WHERE tenant = $1 ORDER BY size";
                for row in client.query(sql, &[&tenant.as_str()]).await.map_err(failed)? {
                    copy.checkpoint(&tenant, row.get(0), row.get(1))?;
                }
            }
            let sql = "SELECT tenant, recorded_ns, code, refusal, document FROM dead_letter ORDER BY n";
            for row in client.query(sql, &[]).await.map_err(failed)? {
                copy.letter(&letter(&row))?;
            }
            client.batch_execute("COMMIT").await.map_err(failed)?;
            copy.finish()
        })
    }
}

/// Whose entries there are: asked of the journal, because the list of logs is itself a projection.
async fn tenants(client: &Client) -> Result<Vec<Tenant>, JournalError> {
    let found = client.query("SELECT DISTINCT tenant FROM ledger_entry ORDER BY 1", &[]).await.map_err(failed)?;
    let named = |row: &tokio_postgres::Row| {
        Tenant::new(row.get::<_, String>(0)).map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
    };
    found.iter().map(named).collect()
}

/// The next entries of a log, replayed; nothing at its end.
async fn page(client: &Client, tenant: &Tenant, log: &mut Log) -> Result<Option<Vec<Appended>>, JournalError> {
    let sql = "SELECT seq, id, hash, body FROM ledger_entry WHERE tenant = $1 AND seq >= $2 ORDER BY seq LIMIT $3";
    let from = log.frontier.size() as i64;
    let found = client.query(sql, &[&tenant.as_str(), &from, &(WALK_ENTRIES as i64)]).await.map_err(failed)?;
    if found.is_empty() {
        return Ok(None);
    }
    let replayed = found.iter().map(row_of).map(|row| {
        replay(tenant, log, &row.body).ok_or_else(|| {
            JournalError::Damaged(format!("entry {} of {tenant} is unreadable: run `actum ledger verify`", row.seq))
        })
    });
    replayed.collect::<Result<_, _>>().map(Some)
}

async fn projections(client: Client, replace: bool) -> Result<Vec<Projection>, JournalError> {
    client.batch_execute("BEGIN").await.map_err(failed)?;
    // No append may slip in between walking the journal and comparing.
    client.batch_execute("LOCK TABLE ledger_log, ledger_entry IN SHARE ROW EXCLUSIVE MODE").await.map_err(failed)?;
    // Temporary tables of the same names stand in front of the stored ones, so that the code which writes the
    // projections on every append is the code that makes them anew. Prepared after that, not before.
    for name in PROJECTIONS {
        let sql = format!("CREATE TEMP TABLE {name} (LIKE actum.{name} INCLUDING ALL) ON COMMIT DROP");
        client.batch_execute(&sql).await.map_err(failed)?;
    }
    let rows = Rows::prepare(client).await.map_err(failed)?;
    for tenant in tenants(&rows.client).await? {
        let mut log = Log::default();
        while let Some(page) = page(&rows.client, &tenant, &mut log).await? {
            let page: Vec<_> = page.iter().collect();
            rows.project(&page).await.map_err(failed)?;
        }
        rows.put_logs(&[(&tenant, &log)]).await.map_err(failed)?;
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
