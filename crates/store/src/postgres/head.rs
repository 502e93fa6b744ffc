//! The port of the heads, on pooled connections. What they say is written with every append, in `rows`.

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::head::{Head, Heads};
use actum_ledger::journal::{JournalError, Work};
use tokio_postgres::Row;

use super::Postgres;

impl Heads for Postgres {
    fn head<'a>(&'a self, tenant: &'a Tenant, workspace: &'a str) -> Work<'a, Option<Head>> {
        Box::pin(async move {
            let sql = "SELECT workspace, n, tree FROM head WHERE tenant = $1 AND workspace = $2";
            let found = self.query(sql, &[&tenant.as_str(), &workspace]).await?;
            found.first().map(head_of).transpose()
        })
    }

    fn heads_of<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Head>> {
        Box::pin(async move {
            let sql = "SELECT workspace, n, tree FROM head WHERE tenant = $1 ORDER BY workspace";
            let found = self.query(sql, &[&tenant.as_str()]).await?;
            found.iter().map(head_of).collect()
        })
    }
}

fn head_of(row: &Row) -> Result<Head, JournalError> {
    let tree: Vec<u8> = row.get(2);
    let damaged = |_| JournalError::Damaged("the head of a shared workspace is no tree".to_owned());
    Ok(Head { workspace: row.get(0), n: row.get::<_, i64>(1) as u64, tree: Digest(tree.try_into().map_err(damaged)?) })
}
