//! The port of who may enter, on pooled connections, and the statements by which the writer keeps answers. Tokens are written
//! with every append, in `rows`.

use std::collections::{BTreeMap, BTreeSet};

use actum_contract::id::Tenant;
use actum_ledger::access::{Access, Kept, Token};
use actum_ledger::journal::{JournalError, Work};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::Postgres;
use super::read::closed;
use crate::access::{KEPT, KeepRequest, TOKEN, TokenRow, check_place};
use crate::queue::Request;

impl Access for Postgres {
    fn token<'a>(&'a self, id: &'a str) -> Work<'a, Option<Token>> {
        Box::pin(async move {
            let sql = format!("SELECT {TOKEN} FROM token WHERE id = $1");
            self.query(&sql, &[&id]).await?.first().map(token_of).transpose()
        })
    }

    fn tokens<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Token>> {
        Box::pin(async move {
            let sql = format!("SELECT {TOKEN} FROM token WHERE tenant = $1 ORDER BY id");
            self.query(&sql, &[&tenant.as_str()]).await?.iter().map(token_of).collect()
        })
    }

    fn kept<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str) -> Work<'a, Option<Kept>> {
        Box::pin(async move {
            check_place(token, key)?;
            let sql = format!("SELECT {KEPT} FROM kept_answer WHERE tenant = $1 AND token = $2 AND key = $3");
            self.query(&sql, &[&tenant.as_str(), &token, &key]).await?.first().map(kept_of).transpose()
        })
    }

    fn keep<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str, kept: Kept) -> Work<'a, bool> {
        self.sender.as_ref().map_or_else(closed, |s| s.keep(KeepRequest::new(tenant, token, key, kept)))
    }
}

pub(super) fn token_of(row: &Row) -> Result<Token, JournalError> {
    let row = TokenRow {
        id: row.get(0),
        tenant: row.get(1),
        role: row.get(2),
        name: row.get(3),
        hash: row.get(4),
        expires_ms: row.get(5),
        is_revoked: row.get(6),
        n: row.get(7),
    };
    row.read()
}

fn kept_of(row: &Row) -> Result<Kept, JournalError> {
    let damaged = |_| JournalError::Damaged("a kept answer has a status or an exit code that is none".into());
    Ok(Kept {
        request_hash: row.get(0),
        status: u16::try_from(row.get::<_, i64>(1)).map_err(damaged)?,
        content_type: row.get(2),
        body: row.get(3),
        exit: u8::try_from(row.get::<_, i64>(4)).map_err(damaged)?,
        at_ms: row.get(5),
    })
}

/// The answers that a batch wants to have kept.
pub(super) fn keeping(requests: &[Request]) -> impl Iterator<Item = &KeepRequest> {
    requests.iter().filter_map(|request| match request {
        Request::Keep(request) => Some(&**request),
        _ => None,
    })
}

/// The statements, prepared on the writer's connection. Whoever uses them has the turn at the tenants' logs, so that no two
/// writers wait for each other's keys.
pub(super) struct AccessRows {
    forget: Statement,
    keep: Statement,
}

impl AccessRows {
    pub(super) async fn prepare(client: &Client) -> Result<Self, Error> {
        let forget = "DELETE FROM kept_answer k USING unnest($1::text[], $2::bigint[]) AS f (tenant, before)
            WHERE k.tenant = f.tenant AND k.at_ms < f.before";
        let keep = "INSERT INTO kept_answer
                (tenant, token, key, request_hash, status, content_type, body, exit, at_ms)
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::bytea[],
                $8::bigint[], $9::bigint[])
            ON CONFLICT (tenant, token, key) DO NOTHING RETURNING tenant, token, key";
        let (forget, keep) = tokio::try_join!(client.prepare(forget), client.prepare(keep))?;
        Ok(Self { forget, keep })
    }

    /// Keeps the answers, of each key the first, unless there is one; those whose day is over make room before. Which of them
    /// were kept.
    pub(super) async fn keep(&self, client: &Client, all: &[&KeepRequest]) -> Result<Vec<bool>, Error> {
        let (mut before, mut first) = (BTreeMap::new(), BTreeMap::new());
        for (i, request) in all.iter().enumerate() {
            let from = before.entry(request.tenant.as_str()).or_insert(i64::MIN);
            *from = request.forgets_before().max(*from);
            first.entry(place(request)).or_insert(i);
        }
        let (tenants, moments): (Vec<_>, Vec<_>) = before.into_iter().unzip();
        client.execute(&self.forget, &[&tenants, &moments]).await?;

        let rows: Vec<&KeepRequest> = first.values().map(|i| all[*i]).collect();
        let text = |of: fn(&KeepRequest) -> &str| rows.iter().map(|row| of(row)).collect::<Vec<_>>();
        let number = |of: fn(&Kept) -> i64| rows.iter().map(|row| of(&row.kept)).collect::<Vec<_>>();
        let bodies: Vec<_> = rows.iter().map(|row| row.kept.body.as_slice()).collect();
        let values: [&(dyn ToSql + Sync); 9] = [
            &text(|row| row.tenant.as_str()),
            &text(|row| &row.token),
            &text(|row| &row.key),
            &text(|row| &row.kept.request_hash),
            &number(|kept| i64::from(kept.status)),
            &text(|row| &row.kept.content_type),
            &bodies,
            &number(|kept| i64::from(kept.exit)),
            &number(|kept| kept.at_ms),
        ];
        let made = client.query(&self.keep, &values).await?;
        let made: BTreeSet<[&str; 3]> = made.iter().map(|row| [row.get(0), row.get(1), row.get(2)]).collect();
        let is_kept = |(i, request): (usize, &&KeepRequest)| {
            first.get(&place(request)) == Some(&i) && made.contains(&place(request))
        };
        Ok(all.iter().enumerate().map(is_kept).collect())
    }
}

fn place(request: &KeepRequest) -> [&str; 3] {
    [request.tenant.as_str(), &request.token, &request.key]
}
