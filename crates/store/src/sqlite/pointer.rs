//! The port of the pointers: questions to the readers. What they say is written with every append, in `rows`.

use actum_contract::id::Tenant;
use actum_ledger::journal::Work;
use actum_ledger::pointer::{Pointed, Pointers};
use rusqlite::{Connection, Params, Row, params};

use super::{Sqlite, failed};

impl Pointers for Sqlite {
    fn pointer<'a>(&'a self, tenant: &'a Tenant, signature: &'a str) -> Work<'a, Option<Pointed>> {
        let (tenant, signature) = (tenant.clone(), signature.to_owned());
        self.ask(move |c| {
            let found = pointed(c, "tenant = ?1 AND signature = ?2", params![tenant.as_str(), signature]);
            found.map(|mut found| found.pop()).map_err(failed)
        })
    }

    fn pointers<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Pointed>> {
        let tenant = tenant.clone();
        self.ask(move |c| pointed(c, "tenant = ?1 ORDER BY signature", params![tenant.as_str()]).map_err(failed))
    }
}

fn pointed(c: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Vec<Pointed>> {
    let sql = format!("SELECT signature, n, restores, seq, body FROM pointer WHERE {which}");
    let mut statement = c.prepare_cached(&sql)?;
    statement.query_map(values, pointed_of)?.collect()
}

fn pointed_of(row: &Row<'_>) -> rusqlite::Result<Pointed> {
    let number = |i: usize| row.get::<_, i64>(i).map(|n| n as u64);
    Ok(Pointed { signature: row.get(0)?, n: number(1)?, restores: number(2)?, seq: number(3)?, body: row.get(4)? })
}
