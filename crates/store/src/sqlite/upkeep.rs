//! Checking, rebuilding and copying the file. Works on connections of its own.

use std::path::Path;

use actum_contract::id::Tenant;
use actum_ledger::append::{Log, replay};
use actum_ledger::journal::{JournalError, Range, Work};
use rusqlite::{Connection, TransactionBehavior, params};

use super::{Sqlite, failed, read, retention, rows, spend_read};
use crate::crash;
use crate::retention::{Forget, Forgotten, Queue};
use crate::upkeep::{
    Check, PROJECTIONS, Projection, Upkeep, WALK_ENTRIES, audited, counted_runs, known_states, make_private, walk_of,
};

impl Upkeep for Sqlite {
    fn queue(&self, now_ms: i64) -> Work<'_, Queue> {
        Box::pin(async move { retention::queue(&self.connect()?, now_ms) })
    }

    fn forget(&self, what: Forget) -> Work<'_, Forgotten> {
        Box::pin(async move { retention::forget(&self.connect()?, &what) })
    }

    fn versions(&self) -> (usize, usize) {
        self.versions
    }

    fn check_database(&self) -> Work<'_, Check> {
        Box::pin(async move {
            let connection = self.connect()?;
            let answer: String =
                connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(failed)?;
            let ok = answer == "ok";
            let detail = if ok { "SQLite finds nothing wrong".into() } else { answer };
            Ok(Check { name: "database", ok, detail })
        })
    }

    fn entry_bytes<'a>(&'a self, tenant: &'a Tenant, from: u64) -> Work<'a, (u64, u64)> {
        Box::pin(async move {
            let sql = "SELECT coalesce(sum(length(body)), 0), coalesce(max(seq) + 1, ?2) FROM ledger_entry
                       WHERE tenant = ?1 AND seq >= ?2";
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64));
            self.connect()?.query_row(sql, rusqlite::params![tenant.as_str(), from], row).map_err(failed)
        })
    }

    fn bytes_beside_log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, u64> {
        Box::pin(async move {
            let sql = "SELECT (SELECT coalesce(sum(length(document)), 0) FROM dead_letter WHERE tenant = ?1)
                            + (SELECT coalesce(sum(length(body)), 0) FROM kept_answer WHERE tenant = ?1)";
            let bytes = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(0)? as u64);
            self.connect()?.query_row(sql, [tenant.as_str()], bytes).map_err(failed)
        })
    }

    fn check_spend(&self) -> Work<'_, Check> {
        Box::pin(async move {
            let mut connection = self.connect()?;
            // One snapshot: what is counted must be what is compared.
            let tx = connection.transaction().map_err(failed)?;
            let all = spend_read::authorizations(&tx, "true ORDER BY tenant, id", [])?;
            Ok(audited(&all, &spend_read::sums(&tx).map_err(failed)?))
        })
    }

    fn check_runs(&self) -> Work<'_, Check> {
        Box::pin(async move {
            // A run is whole if its texts are there, its state is known and its journal has as many events as it says.
            let sql = format!(
                "SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (SELECT 1 FROM run_text t WHERE t.n = run.n)
                     OR state NOT IN ({})
                     OR version <> (SELECT count(*) FROM run_event e WHERE e.run = run.n)
                     ) FROM run",
                known_states()
            );
            let counted = self.connect()?.query_row(&sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
            Ok(counted_runs(counted.map_err(failed)?))
        })
    }

    fn projections(&self, replace: bool) -> Work<'_, Vec<Projection>> {
        Box::pin(async move { projections(&mut self.connect()?, replace) })
    }

    fn backup<'a>(&'a self, to: &'a Path) -> Work<'a, ()> {
        Box::pin(async move {
            let name = to.to_str().ok_or_else(|| JournalError::Unusable("the file's name is not UTF-8".into()))?;
            let connection = self.connect()?;
            make_private(to)?;
            // One read transaction: a copy of one moment, whatever is appended meanwhile.
            let copied = connection.execute("VACUUM INTO ?1", params![name]);
            copied.map(|_| ()).map_err(|e| {
                // What is not whole is in the way of the next attempt.
                let _ = std::fs::remove_file(to);
                failed(e)
            })
        })
    }
}

fn projections(connection: &mut Connection, replace: bool) -> Result<Vec<Projection>, JournalError> {
    // Comparing needs one snapshot and stops nobody; only replacing has to keep writers out.
    let behavior = if replace { TransactionBehavior::Immediate } else { TransactionBehavior::Deferred };
    let tx = connection.transaction_with_behavior(behavior).map_err(failed)?;
    // Temporary tables of the same names stand in front of the stored ones, so that the code which writes the
    // projections on every append is the code that makes them anew.
    for name in PROJECTIONS {
        let sql: String = tx
            .query_row("SELECT sql FROM main.sqlite_master WHERE name = ?1", params![name], |row| row.get(0))
            .map_err(failed)?;
        tx.execute_batch(&sql.replacen("CREATE TABLE", "CREATE TEMP TABLE", 1)).map_err(failed)?;
    }
    for tenant in read::tenants(&tx).map_err(failed)? {
        let log = walk(&tx, &tenant)?;
        if log.frontier.size() > 0 {
            rows::put_log(&tx, tenant.as_str(), &log).map_err(failed)?;
        }
    }
    let mut compared = Vec::new();
    for name in PROJECTIONS {
        let count = |sql: String| tx.query_row(&sql, [], |row| row.get::<_, i64>(0)).map_err(failed);
        let rows = count(format!("SELECT count(*) FROM temp.{name}"))?;
        let extra =
            count(format!("SELECT count(*) FROM (SELECT * FROM main.{name} EXCEPT SELECT * FROM temp.{name})"))?;
        let lost = count(format!("SELECT count(*) FROM (SELECT * FROM temp.{name} EXCEPT SELECT * FROM main.{name})"))?;
        compared.push(Projection { name, rows: rows as u64, differing: (extra + lost) as u64 });
    }
    crash::point("rebuild.compared");
    for Projection { name, differing, .. } in &compared {
        if replace && *differing > 0 {
            let sql = format!("DELETE FROM main.{name}; INSERT INTO main.{name} SELECT * FROM temp.{name};");
            tx.execute_batch(&sql).map_err(failed)?;
        }
        tx.execute_batch(&format!("DROP TABLE temp.{name}")).map_err(failed)?;
    }
    crash::point("rebuild.replaced");
    tx.commit().map_err(failed)?;
    Ok(compared)
}

/// Projects one tenant's journal, entry by entry, and stops at the first that is not what was recorded: a projection
/// made from a damaged journal would hide the damage.
fn walk(tx: &Connection, tenant: &Tenant) -> Result<Log, JournalError> {
    let notes = read::checkpoints(tx, tenant).map_err(failed)?;
    let sql = "SELECT size FROM main.ledger_log WHERE tenant = ?1";
    let stored = tx.query_row(sql, params![tenant.as_str()], |row| row.get::<_, i64>(0)).unwrap_or(0);
    let mut walk = walk_of(tenant, &notes);
    let mut log = Log::default();
    loop {
        let page = read::rows(tx, tenant, &Range::forwards(walk.size(), WALK_ENTRIES)).map_err(failed)?;
        if page.is_empty() {
            break;
        }
        for row in &page {
            walk.row(row).map_err(|bad| JournalError::Tampered(Box::new(bad)))?;
            let entry = replay(tenant, &mut log, &row.body)
                .ok_or_else(|| JournalError::Damaged(format!("entry {} of {tenant} breaks the rules", row.seq)))?;
            rows::project(tx, &entry).map_err(failed)?;
        }
    }
    walk.finish_journal(stored as u64).map_err(|bad| JournalError::Tampered(Box::new(bad)))
}
