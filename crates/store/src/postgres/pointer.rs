//! The port of the pointers, on pooled connections. What they say is written with every append, in `rows`.

use actum_contract::id::Tenant;
use actum_ledger::journal::Work;
use actum_ledger::pointer::{Pointed, Pointers};
use tokio_postgres::Row;

use super::Postgres;

impl Pointers for Postgres {
    fn pointer<'a>(&'a self, tenant: &'a Tenant, signature: &'a str) -> Work<'a, Option<Pointed>> {
        Box::pin(async move {
            let sql = "SELECT signature, n, restores, seq, body FROM pointer WHERE tenant = $1 AND signature = $2";
            let found = self.query(sql, &[&tenant.as_str(), &signature]).await?;
            Ok(found.first().map(pointed_of))
        })
    }

    fn pointers<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Pointed>> {
        Box::pin(async move {
            let sql = "SELECT signature, n, restores, seq, body FROM pointer WHERE tenant = $1 ORDER BY signature";
            let found = self.query(sql, &[&tenant.as_str()]).await?;
            Ok(found.iter().map(pointed_of).collect())
        })
    }
}

fn pointed_of(row: &Row) -> Pointed {
    let number = |i: usize| row.get::<_, i64>(i) as u64;
    Pointed { signature: row.get(0), n: number(1), restores: number(2), seq: number(3), body: row.get(4) }
}
