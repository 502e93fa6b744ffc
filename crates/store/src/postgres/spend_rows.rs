//! The statements about money: as few and as wide as those of the journal. What is read here is not locked: whoever
//! changes it has the turn at its tenant's log.

use std::collections::BTreeSet;

use actum_ledger::journal::JournalError;
use actum_ledger::spend::{Authorization, Changes, Purse, Reservation};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::run_rows::{NOW, execute};
use super::spend::{authorization_of, columns_of, reservation_of};
use crate::queue::Request;
use crate::spend::{AUTHORIZATION, RESERVATION, STUCK_MAX, SpendRequest, stored};

/// What a batch needs to know about money, as it was read.
#[derive(Debug, Default)]
pub(super) struct Money {
    /// The database's clock: deadlines and expiries are compared with it on every machine.
    pub now_ms: i64,
    authorizations: Vec<Row>,
    reservations: Vec<Row>,
    stuck: Vec<Row>,
}

impl Money {
    pub(super) fn purse(&self) -> Result<Purse, JournalError> {
        let mut purse = Purse::default();
        for row in &self.authorizations {
            purse.learn_authorization(authorization_of(row)?);
        }
        for row in self.reservations.iter().chain(&self.stuck) {
            purse.learn_reservation(reservation_of(row)?);
        }
        Ok(purse)
    }
}

/// The requests about money of a batch.
pub(super) fn spending(requests: &[Request]) -> impl Iterator<Item = &SpendRequest> {
    requests.iter().filter_map(|request| match request {
        Request::Spend(request) => Some(request),
        _ => None,
    })
}

/// The statements, prepared on the writer's connection.
pub(super) struct SpendRows {
    clock: Statement,
    authorizations: Statement,
    reservations: Statement,
    stuck: Statement,
    new_authorizations: Statement,
    changed_authorizations: Statement,
    new_reservations: Statement,
    changed_reservations: Statement,
}

impl SpendRows {
    pub(super) async fn prepare(client: &Client) -> Result<Self, Error> {
        let clock = format!("SELECT {NOW}");
        // What they are within comes along. Above the deepest that may be issued there is nothing.
        let authorizations = format!(
            r#"WITH RECURSIVE chain (tenant, id) AS (
                SELECT k.tenant COLLATE "C", k.id COLLATE "C" FROM unnest($1::text[], $2::text[]) AS k (tenant, id)
                UNION SELECT a.tenant, a.within FROM chain c
                    JOIN spend_authorization a ON a.tenant = c.tenant AND a.id = c.id WHERE a.within IS NOT NULL)
            SELECT {} FROM chain c JOIN spend_authorization a ON a.tenant = c.tenant AND a.id = c.id"#,
            columns_of("a", AUTHORIZATION)
        );
        let reservations = format!(
            "SELECT {} FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k (tenant, authorization_id, run, call)
            JOIN spend_reservation r ON r.tenant = k.tenant AND r.authorization_id = k.authorization_id
                AND r.run = k.run AND r.call = k.call",
            columns_of("r", RESERVATION)
        );
        let stuck = format!(
            "SELECT r.* FROM unnest($1::text[], $2::text[]) AS k (tenant, run)
            CROSS JOIN LATERAL (SELECT {RESERVATION} FROM spend_reservation
                WHERE tenant = k.tenant AND state = 'reserved' AND (k.run IS NULL OR run = k.run)
                AND deadline_ms <= CASE WHEN k.run IS NULL THEN {NOW} ELSE 9223372036854775807 END
                ORDER BY deadline_ms LIMIT $3) r"
        );
        let new_authorizations = format!(
            "INSERT INTO spend_authorization ({AUTHORIZATION})
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[],
                $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[])"
        );
        let changed_authorizations = "UPDATE spend_authorization a SET revoked_ms = k.revoked_ms, spent = k.spent,
                reserved = k.reserved, day = k.day, day_held = k.day_held
            FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
                AS k (tenant, id, revoked_ms, spent, reserved, day, day_held)
            WHERE a.tenant = k.tenant AND a.id = k.id";
        let new_reservations = format!(
            "INSERT INTO spend_reservation ({RESERVATION})
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::bigint[], $12::text[], $13::text[], $14::bigint[],
                $15::bigint[], $16::bigint[], $17::bigint[], $18::bool[])"
        );
        let changed_reservations = "UPDATE spend_reservation r SET state = k.state, correlation = k.correlation,
                committed = k.committed, reason = k.reason, settled_ms = k.settled_ms, reconciled = k.reconciled
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
                $9::bigint[], $10::bool[])
                AS k (tenant, authorization_id, run, call, state, correlation, committed, reason, settled_ms, reconciled)
            WHERE r.tenant = k.tenant AND r.authorization_id = k.authorization_id AND r.run = k.run AND r.call = k.call";
        let (clock, authorizations, reservations, stuck) = tokio::try_join!(
            client.prepare(&clock),
            client.prepare(&authorizations),
            client.prepare(&reservations),
            client.prepare(&stuck)
        )?;
        let (new_authorizations, changed_authorizations, new_reservations, changed_reservations) = tokio::try_join!(
            client.prepare(&new_authorizations),
            client.prepare(changed_authorizations),
            client.prepare(&new_reservations),
            client.prepare(changed_reservations)
        )?;
        Ok(Self {
            clock,
            authorizations,
            reservations,
            stuck,
            new_authorizations,
            changed_authorizations,
            new_reservations,
            changed_reservations,
        })
    }

    /// What the rules will ask about these requests.
    pub(super) async fn read(&self, client: &Client, requests: &[Request]) -> Result<Money, Error> {
        let (clock, authorizations, reservations, stuck) = tokio::try_join!(
            biased;
            client.query_one(&self.clock, &[]),
            self.read_authorizations(client, requests),
            self.read_reservations(client, requests),
            self.read_stuck(client, requests),
        )?;
        Ok(Money { now_ms: clock.get(0), authorizations, reservations, stuck })
    }

    async fn read_authorizations(&self, client: &Client, requests: &[Request]) -> Result<Vec<Row>, Error> {
        let keys: BTreeSet<(&str, &str)> = spending(requests).flat_map(keys_of).collect();
        let (tenants, ids): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        query(client, &self.authorizations, tenants.len(), &[&tenants, &ids]).await
    }

    async fn read_reservations(&self, client: &Client, requests: &[Request]) -> Result<Vec<Row>, Error> {
        let mut keys: BTreeSet<[&str; 4]> = BTreeSet::new();
        for request in spending(requests) {
            if let Some([authorization, run, call]) = request.reservation() {
                keys.insert([request.tenant().as_str(), authorization, run, call]);
            }
        }
        let column = |i: usize| keys.iter().map(|key| key[i]).collect::<Vec<_>>();
        let (tenants, authorizations, runs, calls) = (column(0), column(1), column(2), column(3));
        query(client, &self.reservations, tenants.len(), &[&tenants, &authorizations, &runs, &calls]).await
    }

    async fn read_stuck(&self, client: &Client, requests: &[Request]) -> Result<Vec<Row>, Error> {
        let mut keys: BTreeSet<(&str, Option<&str>)> = BTreeSet::new();
        for request in spending(requests) {
            if let SpendRequest::Stuck { tenant, run } = request {
                keys.insert((tenant.as_str(), run.as_deref()));
            }
        }
        let (tenants, runs): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        query(client, &self.stuck, tenants.len(), &[&tenants, &runs, &(STUCK_MAX as i64)]).await
    }

    /// All statements are on their way before the first is answered.
    pub(super) async fn write(&self, client: &Client, changes: &Changes<'_>) -> Result<(), Error> {
        tokio::try_join!(
            biased;
            self.insert_authorizations(client, &changes.new_authorizations),
            self.update_authorizations(client, &changes.authorizations),
            self.insert_reservations(client, &changes.new_reservations),
            self.update_reservations(client, &changes.reservations),
        )
        .map(|_| ())
    }

    async fn insert_authorizations(&self, client: &Client, all: &[&Authorization]) -> Result<(), Error> {
        let text = |of: fn(&Authorization) -> &str| all.iter().map(|a| of(a)).collect::<Vec<_>>();
        let number = |of: fn(&Authorization) -> i64| all.iter().map(|a| of(a)).collect::<Vec<_>>();
        let limit =
            |of: fn(&Authorization) -> Option<u64>| all.iter().map(|a| of(a).map(|n| n as i64)).collect::<Vec<_>>();
        let time = |of: fn(&Authorization) -> Option<i64>| all.iter().map(|a| of(a)).collect::<Vec<_>>();
        let within: Vec<_> = all.iter().map(|a| a.within.as_deref()).collect();
        let values: [&(dyn ToSql + Sync); 20] = [
            &text(|a| a.tenant.as_str()),
            &text(|a| &a.id),
            &text(|a| &a.owner),
            &text(|a| stored(&a.autopilot)),
            &text(|a| stored(&a.thread)),
            &text(|a| stored(&a.run)),
            &text(|a| a.mode.word()),
            &text(|a| &a.currency),
            &limit(|a| a.max_total),
            &limit(|a| a.max_per_call),
            &limit(|a| a.max_per_day),
            &limit(|a| a.threshold),
            &within,
            &number(|a| a.issued_ms),
            &time(|a| a.expires_ms),
            &time(|a| a.revoked_ms),
            &number(|a| a.spent as i64),
            &number(|a| a.reserved as i64),
            &number(|a| a.day),
            &number(|a| a.day_held as i64),
        ];
        execute(client, &self.new_authorizations, all.len(), &values).await
    }

    async fn update_authorizations(&self, client: &Client, all: &[&Authorization]) -> Result<(), Error> {
        let (tenants, ids): (Vec<_>, Vec<_>) = all.iter().map(|a| (a.tenant.as_str(), a.id.as_str())).unzip();
        let number = |of: fn(&Authorization) -> i64| all.iter().map(|a| of(a)).collect::<Vec<_>>();
        let revoked: Vec<_> = all.iter().map(|a| a.revoked_ms).collect();
        let values: [&(dyn ToSql + Sync); 7] = [
            &tenants,
            &ids,
            &revoked,
            &number(|a| a.spent as i64),
            &number(|a| a.reserved as i64),
            &number(|a| a.day),
            &number(|a| a.day_held as i64),
        ];
        execute(client, &self.changed_authorizations, all.len(), &values).await
    }

    async fn insert_reservations(&self, client: &Client, all: &[&Reservation]) -> Result<(), Error> {
        let text = |of: fn(&Reservation) -> &str| all.iter().map(|r| of(r)).collect::<Vec<_>>();
        let maybe = |of: fn(&Reservation) -> Option<&str>| all.iter().map(|r| of(r)).collect::<Vec<_>>();
        let number = |of: fn(&Reservation) -> i64| all.iter().map(|r| of(r)).collect::<Vec<_>>();
        let committed: Vec<_> = all.iter().map(|r| r.committed.map(|n| n as i64)).collect();
        let settled: Vec<_> = all.iter().map(|r| r.settled_ms).collect();
        let reconciled: Vec<_> = all.iter().map(|r| r.reconciled).collect();
        let values: [&(dyn ToSql + Sync); 18] = [
            &text(|r| r.tenant.as_str()),
            &text(|r| &r.authorization),
            &text(|r| &r.run),
            &text(|r| &r.call),
            &number(|r| r.amount as i64),
            &text(|r| &r.currency),
            &text(|r| r.state.word()),
            &text(|r| r.retry.word()),
            &maybe(|r| r.idempotency_key.as_deref()),
            &maybe(|r| r.correlation.as_deref()),
            &committed,
            &maybe(|r| r.reason.as_deref()),
            &maybe(|r| r.approval.as_deref()),
            &number(|r| r.day),
            &number(|r| r.reserved_ms),
            &number(|r| r.deadline_ms),
            &settled,
            &reconciled,
        ];
        execute(client, &self.new_reservations, all.len(), &values).await
    }

    async fn update_reservations(&self, client: &Client, all: &[&Reservation]) -> Result<(), Error> {
        let text = |of: fn(&Reservation) -> &str| all.iter().map(|r| of(r)).collect::<Vec<_>>();
        let maybe = |of: fn(&Reservation) -> Option<&str>| all.iter().map(|r| of(r)).collect::<Vec<_>>();
        let committed: Vec<_> = all.iter().map(|r| r.committed.map(|n| n as i64)).collect();
        let settled: Vec<_> = all.iter().map(|r| r.settled_ms).collect();
        let reconciled: Vec<_> = all.iter().map(|r| r.reconciled).collect();
        let values: [&(dyn ToSql + Sync); 10] = [
            &text(|r| r.tenant.as_str()),
            &text(|r| &r.authorization),
            &text(|r| &r.run),
            &text(|r| &r.call),
            &text(|r| r.state.word()),
            &maybe(|r| r.correlation.as_deref()),
            &committed,
            &maybe(|r| r.reason.as_deref()),
            &settled,
            &reconciled,
        ];
        execute(client, &self.changed_reservations, all.len(), &values).await
    }
}

fn keys_of(request: &SpendRequest) -> impl Iterator<Item = (&str, &str)> {
    request.authorizations().map(|id| (request.tenant().as_str(), id))
}

/// Nothing is asked about nothing.
async fn query(
    client: &Client,
    statement: &Statement,
    keys: usize,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    match keys {
        0 => Ok(Vec::new()),
        _ => client.query(statement, values).await,
    }
}
