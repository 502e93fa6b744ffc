//! The port of the registry: questions to the readers. What is registered is written with every append, in `rows`.

use actum_contract::id::Tenant;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::registry::{Head, Item, Kind, Registry, Status};
use rusqlite::{Connection, Params, Row, params};

use super::{Sqlite, failed};
use crate::batch::status_named;

/// The columns `item_of` reads, in its order.
const ITEM: &str = "item, name, tool, form, n, version, hash, status, approved, summary";

impl Registry for Sqlite {
    fn heads<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Head>> {
        let tenant = tenant.clone();
        self.ask(move |c| heads(c, &tenant, kind).map_err(failed))
    }

    fn items<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Item>> {
        let tenant = tenant.clone();
        self.ask(move |c| {
            let which = "tenant = ?1 AND kind = ?2 AND status <> ?3 ORDER BY item";
            items(c, which, params![tenant.as_str(), kind.word(), Status::Removed.word()])
        })
    }

    fn item<'a>(&'a self, tenant: &'a Tenant, kind: Kind, id: &'a str) -> Work<'a, Option<Item>> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.ask(move |c| {
            let which = "tenant = ?1 AND kind = ?2 AND item = ?3";
            items(c, which, params![tenant.as_str(), kind.word(), id]).map(|mut found| found.pop())
        })
    }
}

fn heads(c: &Connection, tenant: &Tenant, kind: Kind) -> rusqlite::Result<Vec<Head>> {
    let sql =
        "SELECT item, name, tool, form FROM registry WHERE tenant = ?1 AND kind = ?2 AND status <> ?3 ORDER BY item";
    let mut statement = c.prepare_cached(sql)?;
    let values = params![tenant.as_str(), kind.word(), Status::Removed.word()];
    let head = |row: &Row<'_>| Ok(Head { id: row.get(0)?, name: row.get(1)?, tool: row.get(2)?, form: row.get(3)? });
    statement.query_map(values, head)?.collect()
}

fn items(c: &Connection, which: &str, values: impl Params) -> Result<Vec<Item>, JournalError> {
    let sql = format!("SELECT {ITEM} FROM registry WHERE {which}");
    let mut statement = c.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query(values).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let (item, status) = item_of(row).map_err(failed)?;
        found.push(Item { status: status_named(&item.id, &status)?, ..item });
    }
    Ok(found)
}

/// An item, and the word for its status.
fn item_of(row: &Row<'_>) -> rusqlite::Result<(Item, String)> {
    let item = Item {
        id: row.get(0)?,
        name: row.get(1)?,
        tool: row.get(2)?,
        form: row.get(3)?,
        n: row.get::<_, i64>(4)? as u64,
        version: row.get(5)?,
        hash: row.get(6)?,
        status: Status::Removed,
        approved: row.get(8)?,
        summary: row.get(9)?,
    };
    Ok((item, row.get(7)?))
}
