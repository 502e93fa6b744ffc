//! Webhooks: addresses that are told of a tenant's entries, one after the other. Declares the port `Webhooks`.
//!
//! A webhook is a row of its own and no projection: it holds a secret, which no entry does, and a place in the log that moves with
//! every delivery. Its making, its removal and its end by failure are entries all the same, for whoever asks later who was told
//! what. Called by `cli`, implemented in `store`. It never sends anything, reads no clock, and does not know how a delivery is signed.

use std::fmt;

use actum_contract::id::Tenant;
use serde_json::{Value, json};

use crate::event::words;
use crate::journal::Work;

pub const TYPE: &str = "webhook_change";
pub const MODULE: &str = "webhook";
pub const SOURCE: &str = "actum";

/// Version of the payload.
pub const VERSION: u64 = 1;

/// How the ids of the entries begin.
pub const ID_PREFIX: &str = "webhook:";

pub const URL_BYTES_MAX: usize = 2_048;
pub const TYPES_MAX: usize = 64;
/// Webhooks of one tenant.
pub const WEBHOOKS_MAX: usize = 100;
/// Of what is kept about the last failure.
pub const ERROR_BYTES_MAX: usize = 500;

words!(
    /// What a change does.
    Action { Add = "add", Remove = "remove", Disable = "disable", Enable = "enable" }
);

/// Somebody who is told.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    pub tenant: Tenant,
    pub id: String,
    pub name: String,
    pub url: String,
    /// Only entries of these types; all if there are none.
    pub types: Vec<String>,
    /// What deliveries are signed with.
    pub secret: String,
    pub created_ms: i64,
    /// The place of the next entry that is to be told.
    pub cursor: u64,
    /// Deliveries that failed since the last that did not.
    pub failures: u64,
    pub failing_since_ms: Option<i64>,
    /// Nothing is sent before.
    pub next_try_ms: i64,
    pub last_error: Option<String>,
    /// Nothing is sent any more; why.
    pub disabled: Option<String>,
    /// Changes that were recorded of it, so that each has an id of its own.
    pub changes: u64,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the secret nor what may stand in an address.
        f.debug_struct("Webhook").field("tenant", &self.tenant).field("id", &self.id).finish_non_exhaustive()
    }
}

/// What became of the deliveries of whoever holds a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub cursor: u64,
    pub failures: u64,
    pub failing_since_ms: Option<i64>,
    /// From now on.
    pub wait_ms: u64,
    pub last_error: Option<String>,
    pub disabled: Option<String>,
    pub changes: u64,
    /// How much longer it is held; none: it is given back.
    pub lease_ms: Option<u64>,
}

/// The webhooks of every tenant.
pub trait Webhooks: Send + Sync {
    /// False: there is one with this id, or there are too many.
    fn add_webhook(&self, webhook: Webhook) -> Work<'static, bool>;

    fn webhook<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Webhook>>;

    /// All of a tenant's, ordered by id.
    fn webhooks<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Webhook>>;

    /// Whether there was one.
    fn remove_webhook<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, bool>;

    /// One of any tenant's but of these that has something to tell, may do so now, and is held by nobody; from now on it is held. Of
    /// several tenants the one that was served longest ago comes first. One atomic statement: no two get the same.
    fn take_webhook(&self, owner: String, lease_ms: u64, but: Vec<Tenant>) -> Work<'static, Option<Webhook>>;

    /// Writes down what became of it. False: it is held by somebody else, or is gone; nothing was written. Without an owner: from
    /// outside, whoever holds it.
    fn settle_webhook(
        &self,
        tenant: Tenant,
        id: String,
        owner: Option<String>,
        progress: Progress,
    ) -> Work<'static, bool>;
}

/// The document for the ledger of one change of a webhook. No secret stands in it, and of the address only where it leads.
pub fn document(webhook: &Webhook, action: Action, host: &str, actor: &str, reason: &str) -> Value {
    let n = webhook.changes + 1;
    json!({
        "tenantId": webhook.tenant.as_str(), "module": MODULE, "source": SOURCE, "type": TYPE,
        "id": format!("{ID_PREFIX}{}:{n}", webhook.id),
        "payload": {
            "version": VERSION, "webhook": webhook.id, "n": n, "action": action.word(), "name": webhook.name, "host": host,
            "types": webhook.types, "actor": actor, "reason": reason,
        },
    })
}
