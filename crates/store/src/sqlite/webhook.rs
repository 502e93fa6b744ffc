//! The port of webhooks: questions to the readers, changes through the queue.

use actum_contract::id::Tenant;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::webhook::{Progress, WEBHOOKS_MAX, Webhook, Webhooks};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use super::read::read_only;
use super::{Sqlite, failed};
use crate::webhook::{WEBHOOK, WebhookDone, WebhookRequest, joined, parted, served, span};

impl Webhooks for Sqlite {
    fn add_webhook(&self, webhook: Webhook) -> Work<'static, bool> {
        self.write_webhook(WebhookRequest::add(webhook), WebhookDone::changed)
    }

    fn webhook<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Webhook>> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.ask(move |c| Ok(webhooks(c, "tenant = ?1 AND id = ?2", params![tenant.as_str(), id])?.pop()))
    }

    fn webhooks<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Webhook>> {
        let tenant = tenant.clone();
        self.ask(move |c| webhooks(c, "tenant = ?1 ORDER BY id", params![tenant.as_str()]))
    }

    fn remove_webhook<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, bool> {
        self.write_webhook(WebhookRequest::remove(tenant, id), WebhookDone::changed)
    }

    fn take_webhook(&self, owner: String, lease_ms: u64, but: Vec<Tenant>) -> Work<'static, Option<Webhook>> {
        // Looked at before the writer is asked to: most of the time there is nothing to tell.
        let request = WebhookRequest::take(owner, lease_ms, but.clone());
        let now_ms = self.clock.now().as_millisecond();
        let is_any = self.ask(move |c| {
            let sql = format!("SELECT 1 FROM webhook w WHERE {DUE} LIMIT 1");
            let but = array(but.iter().map(Tenant::as_str));
            let found =
                c.prepare_cached(&sql).and_then(|mut s| s.query_row(params![now_ms, but], |_| Ok(())).optional());
            found.map(|found| found.is_some()).map_err(failed)
        });
        let Some(sender) = self.sender().cloned() else { return read_only() };
        Box::pin(async move {
            match is_any.await? {
                true => sender.webhook(request, WebhookDone::taken).await,
                false => Ok(None),
            }
        })
    }

    fn settle_webhook(
        &self,
        tenant: Tenant,
        id: String,
        owner: Option<String>,
        progress: Progress,
    ) -> Work<'static, bool> {
        self.write_webhook(WebhookRequest::settle(tenant, id, owner, progress), WebhookDone::changed)
    }
}

impl Sqlite {
    fn write_webhook<T: Send + 'static>(
        &self,
        request: Result<WebhookRequest, JournalError>,
        expected: fn(WebhookDone) -> Option<T>,
    ) -> Work<'static, T> {
        self.sender().map_or_else(read_only, |s| s.webhook(request, expected))
    }
}

/// Those that may be told something now, and that nobody holds; but for some tenants.
const DUE: &str = "w.disabled IS NULL AND w.next_try_ms <= ?1 AND (w.lease_until_ms IS NULL OR w.lease_until_ms <= ?1)
    AND w.next_seq < (SELECT l.size FROM ledger_log l WHERE l.tenant = w.tenant)
    AND w.tenant NOT IN (SELECT value FROM json_each(?2))";

/// As one value of a statement.
fn array<'a>(words: impl Iterator<Item = &'a str>) -> String {
    serde_json::Value::from_iter(words).to_string()
}

fn webhooks(c: &Connection, which: &str, values: impl Params) -> Result<Vec<Webhook>, JournalError> {
    let mut statement = c.prepare_cached(&format!("SELECT {WEBHOOK} FROM webhook WHERE {which}")).map_err(failed)?;
    let found = statement.query_map(values, webhook_of).map_err(failed)?.collect::<Result<Vec<_>, _>>();
    found.map_err(failed)
}

fn webhook_of(row: &Row<'_>) -> rusqlite::Result<Webhook> {
    let tenant: String = row.get(0)?;
    Ok(Webhook {
        tenant: Tenant::new(tenant).map_err(|e| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, e.into()))?,
        id: row.get(1)?,
        name: row.get(2)?,
        url: row.get(3)?,
        types: parted(&row.get::<_, String>(4)?),
        secret: row.get(5)?,
        created_ms: row.get(6)?,
        cursor: row.get::<_, i64>(7)? as u64,
        failures: row.get::<_, i64>(8)? as u64,
        failing_since_ms: row.get(9)?,
        next_try_ms: row.get(10)?,
        last_error: row.get(11)?,
        disabled: row.get(12)?,
        changes: row.get::<_, i64>(13)? as u64,
    })
}

pub(super) fn write(c: &Connection, request: &WebhookRequest, now_ms: i64) -> rusqlite::Result<WebhookDone> {
    let changed = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        c.prepare_cached(sql)?.execute(values).map(|rows| WebhookDone::Changed(rows == 1))
    };
    match request {
        WebhookRequest::Add(w) => {
            let sql = format!(
                "INSERT OR IGNORE INTO webhook ({WEBHOOK}) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
                 WHERE (SELECT count(*) FROM webhook WHERE tenant = ?1) < {WEBHOOKS_MAX}"
            );
            let (cursor, failures, changes) = (w.cursor as i64, w.failures as i64, w.changes as i64);
            let tenant = w.tenant.as_str();
            changed(
                &sql,
                params![
                    tenant,
                    w.id,
                    w.name,
                    w.url,
                    joined(&w.types),
                    w.secret,
                    w.created_ms,
                    cursor,
                    failures,
                    w.failing_since_ms,
                    w.next_try_ms,
                    w.last_error,
                    w.disabled,
                    changes
                ],
            )
        }
        WebhookRequest::Remove { tenant, id } => {
            changed("DELETE FROM webhook WHERE tenant = ?1 AND id = ?2", params![tenant.as_str(), id])
        }
        WebhookRequest::Take { owner, lease_ms, but } => {
            let sql = format!(
                "UPDATE webhook SET owner = ?3, lease_until_ms = ?4 WHERE (tenant, id) IN
                 (SELECT w.tenant, w.id FROM webhook w WHERE {DUE}
                  ORDER BY (SELECT max({}) FROM webhook o WHERE o.tenant = w.tenant), w.next_try_ms, w.tenant, w.id LIMIT 1)
                 RETURNING {WEBHOOK}",
                served("?1")
            );
            let but = array(but.iter().map(String::as_str));
            let mut statement = c.prepare_cached(&sql)?;
            let taken = statement.query_row(params![now_ms, but, owner, now_ms + lease_ms], webhook_of).optional()?;
            Ok(WebhookDone::Taken(taken.map(Box::new)))
        }
        WebhookRequest::Settle { tenant, id, owner, progress: p } => {
            let sql = "UPDATE webhook SET next_seq = ?4, failures = ?5, failing_since_ms = ?6, next_try_ms = ?7,
                    last_error = ?8, disabled = ?9, changes = ?10, lease_until_ms = ?11,
                    owner = CASE WHEN ?11 IS NULL THEN NULL ELSE owner END
                WHERE tenant = ?1 AND id = ?2 AND (?3 IS NULL OR owner = ?3)";
            let (cursor, failures, changes) = (p.cursor as i64, p.failures as i64, p.changes as i64);
            let (next, lease) = (now_ms + span(p.wait_ms), p.lease_ms.map(|ms| now_ms + span(ms)));
            let tenant = tenant.as_str();
            changed(
                sql,
                params![
                    tenant,
                    id,
                    owner,
                    cursor,
                    failures,
                    p.failing_since_ms,
                    next,
                    p.last_error,
                    p.disabled,
                    changes,
                    lease
                ],
            )
        }
    }
}
