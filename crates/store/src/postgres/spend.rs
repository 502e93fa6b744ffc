//! The port of money: questions to the pool, writes to the queue.

use actum_contract::id::Tenant;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::spend::{Answer, Authorization, Filter, Held, Reservation, Reserve, Scope, Settle, Spend, Sum};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Postgres;
use super::read::closed;
use crate::spend::{
    AUTHORIZATION, LIST_RESERVATIONS_MAX, RESERVATION, SpendRequest, mode_named, named, retry_named, scopes,
    state_named,
};

impl Spend for Postgres {
    fn authorize<'a>(&'a self, new: Authorization, actor: &str, why: &str) -> Work<'a, Answer<Authorization>> {
        self.sender.as_ref().map_or_else(closed, |s| s.authorization(SpendRequest::authorize(new, actor, why)))
    }

    fn revoke<'a>(&'a self, tenant: &Tenant, id: &str, actor: &str, why: &str) -> Work<'a, Answer<Authorization>> {
        self.sender.as_ref().map_or_else(closed, |s| s.authorization(SpendRequest::revoke(tenant, id, actor, why)))
    }

    fn authorization<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Authorization>> {
        Box::pin(async move {
            let sql = format!("SELECT {AUTHORIZATION} FROM spend_authorization WHERE tenant = $1 AND id = $2");
            self.query(&sql, &[&tenant.as_str(), &id]).await?.first().map(authorization_of).transpose()
        })
    }

    fn authorizations<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Authorization>> {
        Box::pin(async move {
            let sql = format!("SELECT {AUTHORIZATION} FROM spend_authorization WHERE tenant = $1 ORDER BY id");
            self.query(&sql, &[&tenant.as_str()]).await?.iter().map(authorization_of).collect()
        })
    }

    fn resolve<'a>(
        &'a self,
        tenant: &'a Tenant,
        scope: &'a Scope,
        currency: &'a str,
    ) -> Work<'a, Option<Authorization>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT {} FROM unnest($4::text[], $5::text[], $6::text[])
                     WITH ORDINALITY AS k (run, thread, autopilot, i)
                 JOIN spend_authorization a ON a.tenant = $1 AND a.owner = $2 AND a.currency = $3
                     AND a.run = k.run AND a.thread = k.thread AND a.autopilot = k.autopilot
                 ORDER BY k.i, a.issued_ms DESC, a.id DESC LIMIT 1",
                columns_of("a", AUTHORIZATION)
            );
            let scopes = scopes(scope);
            let column = |i: usize| scopes.iter().map(|names| names[i]).collect::<Vec<_>>();
            let (runs, threads, autopilots) = (column(0), column(1), column(2));
            let values: [&(dyn ToSql + Sync); 6] =
                [&tenant.as_str(), &scope.owner, &currency, &runs, &threads, &autopilots];
            self.query(&sql, &values).await?.first().map(authorization_of).transpose()
        })
    }

    fn reserve(&self, reserve: Reserve) -> Work<'static, Answer<Held>> {
        self.sender.as_ref().map_or_else(closed, |s| s.held(SpendRequest::reserve(reserve)))
    }

    fn settle(&self, settle: Settle) -> Work<'static, Answer<Held>> {
        self.sender.as_ref().map_or_else(closed, |s| s.held(SpendRequest::settle(settle)))
    }

    fn reservation<'a>(
        &'a self,
        tenant: &'a Tenant,
        authorization: &'a str,
        run: &'a str,
        call: &'a str,
    ) -> Work<'a, Option<Reservation>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT {RESERVATION} FROM spend_reservation
                 WHERE tenant = $1 AND authorization_id = $2 AND run = $3 AND call = $4"
            );
            let found = self.query(&sql, &[&tenant.as_str(), &authorization, &run, &call]).await?;
            found.first().map(reservation_of).transpose()
        })
    }

    fn reservations<'a>(&'a self, tenant: &'a Tenant, filter: Filter) -> Work<'a, Vec<Reservation>> {
        Box::pin(async move {
            let Filter { authorization, run, state, limit } = filter;
            let (tenant, limit) = (tenant.as_str(), limit.min(LIST_RESERVATIONS_MAX) as i64);
            let mut sql = format!("SELECT {RESERVATION} FROM spend_reservation WHERE tenant = $1");
            let mut values: Vec<&(dyn ToSql + Sync)> = vec![&tenant];
            for (column, value) in [("authorization_id", &authorization), ("run", &run)] {
                if let Some(value) = value {
                    values.push(value);
                    sql += &format!(" AND {column} = ${}", values.len());
                }
            }
            // A word of ours, written out so that it is seen which index holds just these.
            if let Some(state) = state {
                sql += &format!(" AND state = '{state}'");
            }
            values.push(&limit);
            sql += &format!(" ORDER BY n DESC LIMIT ${}", values.len());
            self.query(&sql, &values).await?.iter().map(reservation_of).collect()
        })
    }

    fn mark_stuck<'a>(&'a self, tenant: &'a Tenant, run: Option<&'a str>) -> Work<'a, Vec<Reservation>> {
        let (tenant, run) = (tenant.clone(), run.map(str::to_owned));
        self.sender.as_ref().map_or_else(closed, |s| s.stuck(tenant, run))
    }
}

/// Columns with the name of their table.
pub(super) fn columns_of(table: &str, columns: &str) -> String {
    columns.split(',').map(|column| format!("{table}.{}", column.trim())).collect::<Vec<_>>().join(", ")
}

pub(super) fn authorization_of(row: &Row) -> Result<Authorization, JournalError> {
    let number = |column: usize| row.get::<_, i64>(column) as u64;
    let limit = |column: usize| row.get::<_, Option<i64>>(column).map(|n| n as u64);
    let id: String = row.get(1);
    Ok(Authorization {
        tenant: tenant_of(row)?,
        mode: mode_named(&id, row.get(6))?,
        id,
        owner: row.get(2),
        autopilot: named(row.get(3)),
        thread: named(row.get(4)),
        run: named(row.get(5)),
        currency: row.get(7),
        max_total: limit(8),
        max_per_call: limit(9),
        max_per_day: limit(10),
        threshold: limit(11),
        within: row.get(12),
        issued_ms: row.get(13),
        expires_ms: row.get(14),
        revoked_ms: row.get(15),
        spent: number(16),
        reserved: number(17),
        day: row.get(18),
        day_held: number(19),
    })
}

pub(super) fn reservation_of(row: &Row) -> Result<Reservation, JournalError> {
    let call: String = row.get(3);
    Ok(Reservation {
        tenant: tenant_of(row)?,
        authorization: row.get(1),
        run: row.get(2),
        amount: row.get::<_, i64>(4) as u64,
        currency: row.get(5),
        state: state_named(&call, row.get(6))?,
        retry: retry_named(&call, row.get(7))?,
        call,
        idempotency_key: row.get(8),
        correlation: row.get(9),
        committed: row.get::<_, Option<i64>>(10).map(|n| n as u64),
        reason: row.get(11),
        approval: row.get(12),
        day: row.get(13),
        reserved_ms: row.get(14),
        deadline_ms: row.get(15),
        settled_ms: row.get(16),
        reconciled: row.get(17),
    })
}

pub(super) fn sum_of(row: &Row) -> Sum {
    Sum {
        tenant: row.get(0),
        authorization: row.get(1),
        day: row.get(2),
        committed: row.get::<_, i64>(3) as u64,
        held: row.get::<_, i64>(4) as u64,
    }
}

fn tenant_of(row: &Row) -> Result<Tenant, JournalError> {
    Tenant::new(row.get::<_, String>(0)).map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
}
