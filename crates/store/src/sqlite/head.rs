//! The port of the heads: questions to the readers. What they say is written with every append, in `rows`.

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::head::{Head, Heads};
use actum_ledger::journal::Work;
use rusqlite::{Connection, Params, Row, params};

use super::{Sqlite, failed};

impl Heads for Sqlite {
    fn head<'a>(&'a self, tenant: &'a Tenant, workspace: &'a str) -> Work<'a, Option<Head>> {
        let (tenant, workspace) = (tenant.clone(), workspace.to_owned());
        self.ask(move |c| {
            let found = heads(c, "tenant = ?1 AND workspace = ?2", params![tenant.as_str(), workspace]);
            found.map(|mut found| found.pop()).map_err(failed)
        })
    }

    fn heads_of<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Head>> {
        let tenant = tenant.clone();
        self.ask(move |c| heads(c, "tenant = ?1 ORDER BY workspace", params![tenant.as_str()]).map_err(failed))
    }
}

fn heads(c: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Vec<Head>> {
    let sql = format!("SELECT workspace, n, tree FROM head WHERE {which}");
    let mut statement = c.prepare_cached(&sql)?;
    statement.query_map(values, head_of)?.collect()
}

fn head_of(row: &Row<'_>) -> rusqlite::Result<Head> {
    Ok(Head { workspace: row.get(0)?, n: row.get::<_, i64>(1)? as u64, tree: Digest(row.get(2)?) })
}
