//! The port of webhooks, on pooled connections: a statement each, by the clock of the database.

use actum_contract::id::Tenant;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::webhook::{Progress, WEBHOOKS_MAX, Webhook, Webhooks};
use deadpool_postgres::Pool;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::run_rows::NOW;
use super::{Postgres, failed, not_pooled};
use crate::webhook::{WEBHOOK, WebhookDone, WebhookRequest, joined, parted, served, span};

impl Webhooks for Postgres {
    fn add_webhook(&self, webhook: Webhook) -> Work<'static, bool> {
        self.write_webhook(WebhookRequest::add(webhook), WebhookDone::changed)
    }

    fn webhook<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Webhook>> {
        Box::pin(async move {
            let sql = format!("SELECT {WEBHOOK} FROM webhook WHERE tenant = $1 AND id = $2");
            self.query(&sql, &[&tenant.as_str(), &id]).await?.first().map(webhook_of).transpose()
        })
    }

    fn webhooks<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Webhook>> {
        Box::pin(async move {
            let sql = format!("SELECT {WEBHOOK} FROM webhook WHERE tenant = $1 ORDER BY id");
            self.query(&sql, &[&tenant.as_str()]).await?.iter().map(webhook_of).collect()
        })
    }

    fn remove_webhook<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, bool> {
        self.write_webhook(WebhookRequest::remove(tenant, id), WebhookDone::changed)
    }

    fn take_webhook(&self, owner: String, lease_ms: u64, but: Vec<Tenant>) -> Work<'static, Option<Webhook>> {
        self.write_webhook(WebhookRequest::take(owner, lease_ms, but), WebhookDone::taken)
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

impl Postgres {
    fn write_webhook<T: Send + 'static>(
        &self,
        request: Result<WebhookRequest, JournalError>,
        expected: fn(WebhookDone) -> Option<T>,
    ) -> Work<'static, T> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let other = || JournalError::Damaged("the writer gave the answer to another question".into());
            expected(write(&pool, request?).await?).ok_or_else(other)
        })
    }
}

fn webhook_of(row: &Row) -> Result<Webhook, JournalError> {
    let tenant = Tenant::new(row.get::<_, String>(0));
    Ok(Webhook {
        tenant: tenant.map_err(|e| JournalError::Damaged(format!("the tenant of a webhook {e}")))?,
        id: row.get(1),
        name: row.get(2),
        url: row.get(3),
        types: parted(row.get(4)),
        secret: row.get(5),
        created_ms: row.get(6),
        cursor: row.get::<_, i64>(7) as u64,
        failures: row.get::<_, i64>(8) as u64,
        failing_since_ms: row.get(9),
        next_try_ms: row.get(10),
        last_error: row.get(11),
        disabled: row.get(12),
        changes: row.get::<_, i64>(13) as u64,
    })
}

async fn write(pool: &Pool, request: WebhookRequest) -> Result<WebhookDone, JournalError> {
    let client = pool.get().await.map_err(not_pooled)?;
    let changed = async |sql: &str, values: &[&(dyn ToSql + Sync)]| {
        let statement = client.prepare_cached(sql).await.map_err(failed)?;
        let rows = client.execute(&statement, values).await.map_err(failed)?;
        Ok(WebhookDone::Changed(rows == 1))
    };
    match request {
        WebhookRequest::Add(w) => {
            let sql = format!(
                "INSERT INTO webhook ({WEBHOOK})
                 SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bigint, $8::bigint, $9::bigint,
                     $10::bigint, $11::bigint, $12::text, $13::text, $14::bigint
                 WHERE (SELECT count(*) FROM webhook WHERE tenant = $1) < {WEBHOOKS_MAX} ON CONFLICT DO NOTHING"
            );
            let (cursor, failures, changes) = (w.cursor as i64, w.failures as i64, w.changes as i64);
            let (tenant, types) = (w.tenant.as_str(), joined(&w.types));
            let values: [&(dyn ToSql + Sync); 14] = [
                &tenant,
                &w.id,
                &w.name,
                &w.url,
                &types,
                &w.secret,
                &w.created_ms,
                &cursor,
                &failures,
                &w.failing_since_ms,
                &w.next_try_ms,
                &w.last_error,
                &w.disabled,
                &changes,
            ];
            changed(&sql, &values).await
        }
        WebhookRequest::Remove { tenant, id } => {
            changed("DELETE FROM webhook WHERE tenant = $1 AND id = $2", &[&tenant.as_str(), &id]).await
        }
        WebhookRequest::Take { owner, lease_ms, but } => {
            // One that somebody else is taking is left to him.
            let sql = format!(
                "UPDATE webhook SET owner = $1, lease_until_ms = {NOW} + $2 WHERE (tenant, id) IN
                 (SELECT w.tenant, w.id FROM webhook w WHERE w.disabled IS NULL AND w.next_try_ms <= {NOW}
                     AND (w.lease_until_ms IS NULL OR w.lease_until_ms <= {NOW})
                     AND w.next_seq < (SELECT l.size FROM ledger_log l WHERE l.tenant = w.tenant)
                     AND w.tenant <> ALL($3::text[])
                  ORDER BY (SELECT max({}) FROM webhook o WHERE o.tenant = w.tenant), w.next_try_ms, w.tenant, w.id
                  LIMIT 1 FOR UPDATE OF w SKIP LOCKED)
                 RETURNING {WEBHOOK}",
                served(NOW)
            );
            let statement = client.prepare_cached(&sql).await.map_err(failed)?;
            let taken = client.query_opt(&statement, &[&owner, &lease_ms, &but]).await.map_err(failed)?;
            Ok(WebhookDone::Taken(taken.as_ref().map(webhook_of).transpose()?.map(Box::new)))
        }
        WebhookRequest::Settle { tenant, id, owner, progress: p } => {
            let sql = format!(
                "UPDATE webhook SET next_seq = $4, failures = $5, failing_since_ms = $6, next_try_ms = {NOW} + $7,
                     last_error = $8, disabled = $9, changes = $10, lease_until_ms = {NOW} + $11,
                     owner = CASE WHEN $11 IS NULL THEN NULL ELSE owner END
                 WHERE tenant = $1 AND id = $2 AND ($3::text IS NULL OR owner = $3)"
            );
            let (cursor, failures, changes) = (p.cursor as i64, p.failures as i64, p.changes as i64);
            let (wait, lease) = (span(p.wait_ms), p.lease_ms.map(span));
            let tenant = tenant.as_str();
            let values: [&(dyn ToSql + Sync); 11] = [
                &tenant,
                &id,
                &owner,
                &cursor,
                &failures,
                &p.failing_since_ms,
                &wait,
                &p.last_error,
                &p.disabled,
                &changes,
                &lease,
            ];
            changed(&sql, &values).await
        }
    }
}
