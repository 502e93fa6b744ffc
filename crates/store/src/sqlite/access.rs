//! The port of who may enter: questions to the readers, answers to be kept through the queue. Tokens are written with every
//! append, in `rows`.

use actum_contract::id::Tenant;
use actum_ledger::access::{Access, Kept, Token};
use actum_ledger::journal::{JournalError, Work};
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use super::read::read_only;
use super::{Sqlite, failed};
use crate::access::{KEPT, KeepRequest, TOKEN, TokenRow, check_place};

impl Access for Sqlite {
    fn token<'a>(&'a self, id: &'a str) -> Work<'a, Option<Token>> {
        let id = id.to_owned();
        self.ask(move |c| token(c, &id))
    }

    fn tokens<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Token>> {
        let tenant = tenant.clone();
        self.ask(move |c| tokens(c, "tenant = ?1 ORDER BY id", params![tenant.as_str()]))
    }

    fn kept<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str) -> Work<'a, Option<Kept>> {
        let (tenant, token, key) = (tenant.clone(), token.to_owned(), key.to_owned());
        self.ask(move |c| {
            check_place(&token, &key)?;
            let sql = format!("SELECT {KEPT} FROM kept_answer WHERE tenant = ?1 AND token = ?2 AND key = ?3");
            let mut statement = c.prepare_cached(&sql).map_err(failed)?;
            statement.query_row(params![tenant.as_str(), token, key], kept_of).optional().map_err(failed)
        })
    }

    fn keep<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str, kept: Kept) -> Work<'a, bool> {
        self.sender().map_or_else(read_only, |s| s.keep(KeepRequest::new(tenant, token, key, kept)))
    }
}

/// One token, whoever's it is.
pub(super) fn token(c: &Connection, id: &str) -> Result<Option<Token>, JournalError> {
    Ok(tokens(c, "id = ?1", params![id])?.pop())
}

fn tokens(c: &Connection, which: &str, values: impl Params) -> Result<Vec<Token>, JournalError> {
    let mut statement = c.prepare_cached(&format!("SELECT {TOKEN} FROM token WHERE {which}")).map_err(failed)?;
    let found = statement.query_map(values, row_of).map_err(failed)?.collect::<Result<Vec<_>, _>>();
    found.map_err(failed)?.into_iter().map(TokenRow::read).collect()
}

fn row_of(row: &Row<'_>) -> rusqlite::Result<TokenRow> {
    Ok(TokenRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        role: row.get(2)?,
        name: row.get(3)?,
        hash: row.get(4)?,
        expires_ms: row.get(5)?,
        is_revoked: row.get(6)?,
        n: row.get(7)?,
    })
}

fn kept_of(row: &Row<'_>) -> rusqlite::Result<Kept> {
    Ok(Kept {
        request_hash: row.get(0)?,
        status: row.get(1)?,
        content_type: row.get(2)?,
        body: row.get(3)?,
        exit: row.get(4)?,
        at_ms: row.get(5)?,
    })
}

/// Keeps an answer unless there is one; those whose day is over make room first. Whether it was kept.
pub(super) fn keep(c: &Connection, request: &KeepRequest) -> rusqlite::Result<bool> {
    let KeepRequest { tenant, token, key, kept } = request;
    let forget = "DELETE FROM kept_answer WHERE tenant = ?1 AND at_ms < ?2";
    c.prepare_cached(forget)?.execute(params![tenant.as_str(), request.forgets_before()])?;
    let insert = "INSERT OR IGNORE INTO kept_answer
                      (tenant, token, key, request_hash, status, content_type, body, exit, at_ms)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let Kept { request_hash, status, content_type, body, exit, at_ms } = kept;
    let values = params![tenant.as_str(), token, key, request_hash, status, content_type, body, exit, at_ms];
    Ok(c.prepare_cached(insert)?.execute(values)? == 1)
}
