//! Checking, rebuilding and copying the file. Works on connections of its own.

use std::path::Path;

use actum_ledger::append::{Log, replay};
use actum_ledger::journal::{JournalError, Range, Work};
use rusqlite::{Connection, TransactionBehavior, params};

use super::{Sqlite, failed, read, rows};
use crate::crash;
use crate::upkeep::{Check, PROJECTIONS, Projection, Upkeep};

/// Entries read at a time while the journal is walked.
const WALK_ENTRIES: usize = 1_000;

impl Upkeep for Sqlite {
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

    fn projections(&self, replace: bool) -> Work<'_, Vec<Projection>> {
        Box::pin(async move { projections(&mut self.connect()?, replace) })
    }

    fn backup<'a>(&'a self, to: &'a Path) -> Work<'a, ()> {
        Box::pin(async move {
            if to.exists() {
                return Err(JournalError::Unusable(format!("{} exists already; name another file", to.display())));
            }
            let name = to.to_str().ok_or_else(|| JournalError::Unusable("the file's name is not UTF-8".into()))?;
            // One read transaction: a copy of one moment, whatever is appended meanwhile.
            self.connect()?.execute("VACUUM INTO ?1", params![name]).map_err(failed)?;
            Ok(())
        })
    }
}

fn projections(connection: &mut Connection, replace: bool) -> Result<Vec<Projection>, JournalError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Temporary tables of the same names stand in front of the stored ones, so that the code which writes the
    // projections on every append is the code that makes them anew.
    for name in PROJECTIONS {
        let sql: String = tx
            .query_row("SELECT sql FROM main.sqlite_master WHERE name = ?1", params![name], |row| row.get(0))
            .map_err(failed)?;
        tx.execute_batch(&sql.replacen("CREATE TABLE", "CREATE TEMP TABLE", 1)).map_err(failed)?;
    }
    for tenant in journal_tenants(&tx)? {
        let mut log = Log::default();
        loop {
            let range = Range::forwards(log.frontier.size(), WALK_ENTRIES);
            let page = read::rows(&tx, &tenant, &range).map_err(failed)?;
            for row in &page {
                let entry = replay(&tenant, &mut log, &row.body).ok_or_else(|| {
                    JournalError::Damaged(format!(
                        "entry {} of {tenant} is unreadable: run `actum ledger verify`",
                        row.seq
                    ))
                })?;
                rows::project(&tx, &entry).map_err(failed)?;
            }
            if page.len() < WALK_ENTRIES {
                break;
            }
        }
        rows::put_log(&tx, tenant.as_str(), &log).map_err(failed)?;
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

/// Whose entries there are: asked of the journal, because the list of logs is itself a projection.
fn journal_tenants(connection: &Connection) -> Result<Vec<actum_contract::Tenant>, JournalError> {
    let mut statement = connection.prepare("SELECT DISTINCT tenant FROM ledger_entry ORDER BY 1").map_err(failed)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0)).map_err(failed)?;
    names
        .map(|name| {
            let name = name.map_err(failed)?;
            actum_contract::Tenant::new(name).map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
        })
        .collect()
}
