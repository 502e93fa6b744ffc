//! What may be asked of a store about webhooks, checked before anything is written; and the words of their table. Shared by the
//! dialects, which fetch and write.

use actum_contract::id::Tenant;
use actum_ledger::journal::JournalError;
use actum_ledger::webhook::{Progress, Webhook};

use crate::request::{keys, texts};

/// The columns of a webhook, in the order in which they are read.
pub(crate) const WEBHOOK: &str = "tenant, id, name, url, types, secret, created_ms, next_seq, failures, failing_since_ms, \
     next_try_ms, last_error, disabled, changes";

/// When the webhook `o` was served last, as far as its row says: one that is held later than any that is not, and that by its lease. One
/// that waits for its next attempt says nothing. The greatest of a tenant's is when the tenant was.
pub(crate) fn served(now: &str) -> String {
    format!(
        "CASE WHEN o.lease_until_ms > {now} THEN o.lease_until_ms WHEN o.next_try_ms <= {now} THEN o.next_try_ms ELSE 0 END"
    )
}

/// Something to be written.
#[derive(Debug)]
pub(crate) enum WebhookRequest {
    Add(Webhook),
    Remove {
        tenant: Tenant,
        id: String,
    },
    /// Of no tenant among `but`.
    Take {
        owner: String,
        lease_ms: i64,
        but: Vec<String>,
    },
    Settle {
        tenant: Tenant,
        id: String,
        owner: Option<String>,
        progress: Progress,
    },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum WebhookDone {
    Changed(bool),
    Taken(Option<Box<Webhook>>),
}

impl WebhookDone {
    pub(crate) fn changed(self) -> Option<bool> {
        match self {
            Self::Changed(is_changed) => Some(is_changed),
            Self::Taken(_) => None,
        }
    }

    pub(crate) fn taken(self) -> Option<Option<Webhook>> {
        match self {
            Self::Taken(taken) => Some(taken.map(|webhook| *webhook)),
            Self::Changed(_) => None,
        }
    }
}

impl WebhookRequest {
    pub(crate) fn add(webhook: Webhook) -> Result<Self, JournalError> {
        keys([&webhook.id])?;
        texts([&webhook.name, &webhook.url, &webhook.secret].into_iter().chain(&webhook.types))?;
        Ok(Self::Add(webhook))
    }

    pub(crate) fn remove(tenant: &Tenant, id: &str) -> Result<Self, JournalError> {
        keys([&id.to_owned()])?;
        Ok(Self::Remove { tenant: tenant.clone(), id: id.to_owned() })
    }

    pub(crate) fn take(owner: String, lease_ms: u64, but: Vec<Tenant>) -> Result<Self, JournalError> {
        keys([&owner])?;
        let but = but.iter().map(|tenant| tenant.as_str().to_owned()).collect();
        Ok(Self::Take { owner, lease_ms: span(lease_ms), but })
    }

    pub(crate) fn settle(
        tenant: Tenant,
        id: String,
        owner: Option<String>,
        progress: Progress,
    ) -> Result<Self, JournalError> {
        keys([&id].into_iter().chain(&owner))?;
        texts(progress.last_error.iter().chain(&progress.disabled))?;
        Ok(Self::Settle { tenant, id, owner, progress })
    }

    /// About how much memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Add(webhook) => webhook.url.len() + webhook.types.iter().map(String::len).sum::<usize>(),
            _ => size_of::<Self>(),
        }
    }
}

/// Milliseconds as a database has them.
pub(crate) fn span(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// As they stand in one column: no type has a line break in it that anybody could have asked for.
pub(crate) fn joined(types: &[String]) -> String {
    types.join("\n")
}

pub(crate) fn parted(text: &str) -> Vec<String> {
    text.lines().map(ToOwned::to_owned).collect()
}
