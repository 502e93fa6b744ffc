//! The port of money: questions to the readers, writes to the queue.

use actum_contract::id::Tenant;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::spend::{
    Answer, Authorization, Filter, Held, Mode, Reservation, ReservationState, Reserve, RetryClass, Scope, Settle,
    Spend, Sum,
};
use rusqlite::types::Value;
use rusqlite::{Connection, Params, Row, params, params_from_iter};

use super::read::read_only;
use super::{Sqlite, failed};
use crate::spend::{
    AUTHORIZATION, LIST_RESERVATIONS_MAX, RESERVATION, SpendRequest, mode_named, named, retry_named, scopes,
    state_named,
};
use crate::upkeep::SUMS;

impl Spend for Sqlite {
    fn authorize<'a>(&'a self, new: Authorization, actor: &str, why: &str) -> Work<'a, Answer<Authorization>> {
        self.sender().map_or_else(read_only, |s| s.authorization(SpendRequest::authorize(new, actor, why)))
    }

    fn revoke<'a>(&'a self, tenant: &Tenant, id: &str, actor: &str, why: &str) -> Work<'a, Answer<Authorization>> {
        self.sender().map_or_else(read_only, |s| s.authorization(SpendRequest::revoke(tenant, id, actor, why)))
    }

    fn authorization<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Authorization>> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.ask(move |c| authorization(c, &tenant, &id))
    }

    fn authorizations<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Authorization>> {
        let tenant = tenant.clone();
        self.ask(move |c| authorizations(c, "tenant = ?1 ORDER BY id", params![tenant.as_str()]))
    }

    fn resolve<'a>(
        &'a self,
        tenant: &'a Tenant,
        scope: &'a Scope,
        currency: &'a str,
    ) -> Work<'a, Option<Authorization>> {
        let (tenant, scope, currency) = (tenant.clone(), scope.clone(), currency.to_owned());
        self.ask(move |c| {
            let which = "tenant = ?1 AND owner = ?2 AND currency = ?3 AND run = ?4 AND thread = ?5 AND autopilot = ?6
                         ORDER BY issued_ms DESC, id DESC LIMIT 1";
            for [run, thread, autopilot] in scopes(&scope) {
                let values = params![tenant.as_str(), scope.owner, currency, run, thread, autopilot];
                if let Some(found) = authorizations(c, which, values)?.pop() {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        })
    }

    fn reserve(&self, reserve: Reserve) -> Work<'static, Answer<Held>> {
        self.sender().map_or_else(read_only, |s| s.held(SpendRequest::reserve(reserve)))
    }

    fn settle(&self, settle: Settle) -> Work<'static, Answer<Held>> {
        self.sender().map_or_else(read_only, |s| s.held(SpendRequest::settle(settle)))
    }

    fn reservation<'a>(
        &'a self,
        tenant: &'a Tenant,
        authorization: &'a str,
        run: &'a str,
        call: &'a str,
    ) -> Work<'a, Option<Reservation>> {
        let tenant = tenant.clone();
        let [authorization, run, call] = [authorization, run, call].map(str::to_owned);
        self.ask(move |c| {
            let which = "tenant = ?1 AND run = ?2 AND call = ?3 AND authorization_id = ?4";
            reservations(c, which, params![tenant.as_str(), run, call, authorization]).map(|mut found| found.pop())
        })
    }

    fn reservations<'a>(&'a self, tenant: &'a Tenant, filter: Filter) -> Work<'a, Vec<Reservation>> {
        let tenant = tenant.clone();
        self.ask(move |c| {
            let (mut which, mut values) = ("tenant = ?1".to_owned(), vec![Value::from(tenant.as_str().to_owned())]);
            let Filter { authorization, run, state, limit } = filter;
            for (column, value) in [("authorization_id", authorization), ("run", run)] {
                if let Some(value) = value {
                    values.push(value.into());
                    which += &format!(" AND {column} = ?{}", values.len());
                }
            }
            // A word of ours, written out so that SQLite sees which index holds just these.
            if let Some(state) = state {
                which += &format!(" AND state = '{state}'");
            }
            values.push((limit.min(LIST_RESERVATIONS_MAX) as i64).into());
            which += &format!(" ORDER BY n DESC LIMIT ?{}", values.len());
            reservations(c, &which, params_from_iter(values))
        })
    }

    fn mark_stuck<'a>(&'a self, tenant: &'a Tenant, run: Option<&'a str>) -> Work<'a, Vec<Reservation>> {
        let (tenant, run) = (tenant.clone(), run.map(str::to_owned));
        self.sender().map_or_else(read_only, |s| s.stuck(tenant, run))
    }
}

pub(super) fn authorization(c: &Connection, tenant: &Tenant, id: &str) -> Result<Option<Authorization>, JournalError> {
    authorizations(c, "tenant = ?1 AND id = ?2", params![tenant.as_str(), id]).map(|mut found| found.pop())
}

pub(super) fn authorizations(
    c: &Connection,
    which: &str,
    values: impl Params,
) -> Result<Vec<Authorization>, JournalError> {
    let sql = format!("SELECT {AUTHORIZATION} FROM spend_authorization WHERE {which}");
    let mut statement = c.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query(values).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let tenant = tenant_of(row)?;
        let (authorization, mode) = authorization_of(row, tenant).map_err(failed)?;
        let mode = mode_named(&authorization.id, &mode)?;
        found.push(Authorization { mode, ..authorization });
    }
    Ok(found)
}

pub(super) fn reservations(c: &Connection, which: &str, values: impl Params) -> Result<Vec<Reservation>, JournalError> {
    let sql = format!("SELECT {RESERVATION} FROM spend_reservation WHERE {which}");
    let mut statement = c.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query(values).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let tenant = tenant_of(row)?;
        let (reservation, state, retry) = reservation_of(row, tenant).map_err(failed)?;
        let (state, retry) = (state_named(&reservation.call, &state)?, retry_named(&reservation.call, &retry)?);
        found.push(Reservation { state, retry, ..reservation });
    }
    Ok(found)
}

/// What the reservations come to, for an audit.
pub(super) fn sums(c: &Connection) -> rusqlite::Result<Vec<Sum>> {
    let sum = |row: &Row<'_>| {
        Ok(Sum {
            tenant: row.get(0)?,
            authorization: row.get(1)?,
            day: row.get(2)?,
            committed: row.get::<_, i64>(3)? as u64,
            held: row.get::<_, i64>(4)? as u64,
        })
    };
    c.prepare(SUMS)?.query_map([], sum)?.collect()
}

fn tenant_of(row: &Row<'_>) -> Result<Tenant, JournalError> {
    Tenant::new(row.get::<_, String>(0).map_err(failed)?)
        .map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
}

/// An authorization, and the word for its mode.
fn authorization_of(row: &Row<'_>, tenant: Tenant) -> rusqlite::Result<(Authorization, String)> {
    let number = |column: usize| row.get::<_, i64>(column).map(|n| n as u64);
    let limit = |column: usize| row.get::<_, Option<i64>>(column).map(|n| n.map(|n| n as u64));
    let authorization = Authorization {
        tenant,
        id: row.get(1)?,
        owner: row.get(2)?,
        autopilot: named(row.get(3)?),
        thread: named(row.get(4)?),
        run: named(row.get(5)?),
        mode: Mode::Deny,
        currency: row.get(7)?,
        max_total: limit(8)?,
        max_per_call: limit(9)?,
        max_per_day: limit(10)?,
        threshold: limit(11)?,
        within: row.get(12)?,
        issued_ms: row.get(13)?,
        expires_ms: row.get(14)?,
        revoked_ms: row.get(15)?,
        spent: number(16)?,
        reserved: number(17)?,
        day: row.get(18)?,
        day_held: number(19)?,
    };
    Ok((authorization, row.get(6)?))
}

/// A reservation, and the words for its state and for how it may be tried again.
fn reservation_of(row: &Row<'_>, tenant: Tenant) -> rusqlite::Result<(Reservation, String, String)> {
    let reservation = Reservation {
        tenant,
        authorization: row.get(1)?,
        run: row.get(2)?,
        call: row.get(3)?,
        amount: row.get::<_, i64>(4)? as u64,
        currency: row.get(5)?,
        state: ReservationState::ReconcileRequired,
        retry: RetryClass::DedupeReconcileRequired,
        idempotency_key: row.get(8)?,
        correlation: row.get(9)?,
        committed: row.get::<_, Option<i64>>(10)?.map(|n| n as u64),
        reason: row.get(11)?,
        approval: row.get(12)?,
        day: row.get(13)?,
        reserved_ms: row.get(14)?,
        deadline_ms: row.get(15)?,
        settled_ms: row.get(16)?,
        reconciled: row.get(17)?,
    };
    Ok((reservation, row.get(6)?, row.get(7)?))
}
