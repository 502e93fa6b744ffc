//! The port of the registry, on pooled connections. What is registered is written with every append, in `rows`.

use actum_contract::id::Tenant;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::registry::{Head, Item, Kind, Registry, Status};
use tokio_postgres::Row;

use super::Postgres;
use crate::batch::status_named;

impl Registry for Postgres {
    fn heads<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Head>> {
        Box::pin(async move {
            let sql = "SELECT item, name, tool, form FROM registry
                       WHERE tenant = $1 AND kind = $2 AND status <> $3 ORDER BY item";
            let found = self.query(sql, &[&tenant.as_str(), &kind.word(), &Status::Removed.word()]).await?;
            let head = |row: &Row| Head { id: row.get(0), name: row.get(1), tool: row.get(2), form: row.get(3) };
            Ok(found.iter().map(head).collect())
        })
    }

    fn items<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Item>> {
        Box::pin(async move {
            let sql = "SELECT item, name, tool, form, n, version, hash, status, approved, summary FROM registry
                       WHERE tenant = $1 AND kind = $2 AND status <> $3 ORDER BY item";
            let found = self.query(sql, &[&tenant.as_str(), &kind.word(), &Status::Removed.word()]).await?;
            found.iter().map(item_of).collect()
        })
    }

    fn item<'a>(&'a self, tenant: &'a Tenant, kind: Kind, id: &'a str) -> Work<'a, Option<Item>> {
        Box::pin(async move {
            let sql = "SELECT item, name, tool, form, n, version, hash, status, approved, summary FROM registry
                       WHERE tenant = $1 AND kind = $2 AND item = $3";
            let found = self.query(sql, &[&tenant.as_str(), &kind.word(), &id]).await?;
            found.first().map(item_of).transpose()
        })
    }
}

fn item_of(row: &Row) -> Result<Item, JournalError> {
    let id: String = row.get(0);
    let status = status_named(&id, row.get(7))?;
    Ok(Item {
        id,
        name: row.get(1),
        tool: row.get(2),
        form: row.get(3),
        n: row.get::<_, i64>(4) as u64,
        version: row.get(5),
        hash: row.get(6),
        status,
        approved: row.get(8),
        summary: row.get(9),
    })
}
