//! How much each tenant and each token keeps, against the quotas of `[server]`. Of a tenant, entries, dead letters, kept
//! answers, contents and files of runs are counted; of a token, what it has sent. Counted again after a while, and between
//! two counts by what was sent. The server asks before a command runs; nothing is ever removed here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actum_api::error;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_store::Store;

use crate::config::ServerConfig;
use crate::failure::Failure;
use crate::seat::home_of;
use crate::workspace::LOCAL_TENANT;

/// A count holds for so long at least, and for so many times what it took.
const COUNT_EVERY: Duration = Duration::from_secs(10);
const COUNT_SHARE: u32 = 20;
/// From this part of a quota on, answers say so.
const TOLD_FROM_PERCENT: u64 = 80;

/// Counts of what tenants and tokens keep.
pub(crate) struct StorageQuotas {
    store: Arc<dyn Store>,
    waiter: Waiter,
    root: PathBuf,
    tenants: Mutex<HashMap<String, TenantCount>>,
    tokens: Mutex<HashMap<String, u64>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct TenantCount {
    files_bytes: u64,
    entries_bytes: u64,
    /// Dead letters and kept answers.
    beside_bytes: u64,
    /// Entries from here on are not counted yet.
    next_entry: u64,
    /// Sent since.
    sent_bytes: u64,
    until: Option<Instant>,
}

/// What is kept, and the quota if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StorageUse {
    pub used_bytes: u64,
    pub quota_bytes: Option<u64>,
}

impl StorageUse {
    /// Whether there is room for so many bytes more.
    fn has_room(self, bytes: u64) -> bool {
        self.quota_bytes.is_none_or(|quota| self.used_bytes.saturating_add(bytes) <= quota)
    }

    fn is_nearly_full(self) -> bool {
        self.quota_bytes.is_some_and(|quota| self.used_bytes >= quota / 100 * TOLD_FROM_PERCENT)
    }
}

impl StorageQuotas {
    pub(crate) fn new(store: Arc<dyn Store>, waiter: Waiter, root: PathBuf) -> Self {
        Self { store, waiter, root, tenants: Mutex::default(), tokens: Mutex::default() }
    }

    /// Returns what a tenant keeps, counted lately.
    pub(crate) fn of_tenant(&self, tenant: &Tenant, quota_bytes: Option<u64>) -> Result<StorageUse, Failure> {
        let known = self.tenants().get(tenant.as_str()).copied().unwrap_or_default();
        let count = match known.until {
            Some(until) if Instant::now() < until => known,
            _ => self.count(tenant, known)?,
        };
        let parts = [count.files_bytes, count.entries_bytes, count.beside_bytes, count.sent_bytes];
        let used_bytes = parts.into_iter().fold(0, u64::saturating_add);
        Ok(StorageUse { used_bytes, quota_bytes })
    }

    fn count(&self, tenant: &Tenant, known: TenantCount) -> Result<TenantCount, Failure> {
        let begun = Instant::now();
        let (bytes, next_entry) = self.waiter.wait(self.store.entry_bytes(tenant, known.next_entry))?;
        let count = TenantCount {
            files_bytes: files_bytes(&self.root, tenant),
            entries_bytes: known.entries_bytes.saturating_add(bytes),
            beside_bytes: self.waiter.wait(self.store.bytes_beside_log(tenant))?,
            next_entry,
            sent_bytes: 0,
            until: Some(Instant::now() + COUNT_EVERY.max(begun.elapsed() * COUNT_SHARE)),
        };
        self.tenants().insert(tenant.as_str().to_owned(), count);
        Ok(count)
    }

    /// Returns what a token has sent.
    pub(crate) fn of_token(&self, token: &str, quota_bytes: Option<u64>) -> StorageUse {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let used_bytes = *tokens.entry(token.to_owned()).or_insert_with(|| self.sent_before(token));
        StorageUse { used_bytes, quota_bytes }
    }

    /// Fails if what is sent would go beyond a quota. Returns what the caller has to know about quotas that are nearly reached.
    pub(crate) fn admit(
        &self,
        tenant: &Tenant,
        token: &str,
        bytes: u64,
        config: &ServerConfig,
    ) -> Result<Vec<String>, Failure> {
        let mut remarks = Vec::new();
        if let Some(quota) = config.tenant_storage_bytes {
            let found = self.of_tenant(tenant, Some(quota))?;
            remarks.extend(judge("tenant", found, bytes)?);
        }
        if let Some(quota) = config.token_storage_bytes {
            remarks.extend(judge("token", self.of_token(token, Some(quota)), bytes)?);
        }
        Ok(remarks)
    }

    /// Counts what was kept.
    pub(crate) fn note(&self, tenant: &Tenant, token: &str, bytes: u64) {
        if let Some(count) = self.tenants().get_mut(tenant.as_str()) {
            count.sent_bytes = count.sent_bytes.saturating_add(bytes);
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = tokens.entry(token.to_owned()).or_insert_with(|| self.sent_before(token));
        *sent = sent.saturating_add(bytes);
        let path = self.token_file(token);
        // A count that cannot be written is one of this server alone.
        let _ = path.parent().map(std::fs::create_dir_all);
        let aside = path.with_extension("new");
        let _ = std::fs::write(&aside, sent.to_string()).and_then(|()| std::fs::rename(&aside, &path));
    }

    fn token_file(&self, token: &str) -> PathBuf {
        let name: String = token.chars().filter(char::is_ascii_alphanumeric).collect();
        self.root.join(".actum/server/sent").join(name)
    }

    fn sent_before(&self, token: &str) -> u64 {
        let text = std::fs::read_to_string(self.token_file(token)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn tenants(&self) -> std::sync::MutexGuard<'_, HashMap<String, TenantCount>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn judge(whose: &str, found: StorageUse, bytes: u64) -> Result<Option<String>, Failure> {
    let mb = |bytes: u64| bytes.div_ceil(1 << 20);
    let StorageUse { used_bytes, quota_bytes } = found;
    let quota = quota_bytes.unwrap_or(u64::MAX);
    if !found.has_room(bytes) {
        let message = format!("the {whose} keeps {} of {} MB, its quota of storage", mb(used_bytes), mb(quota));
        return Err(Failure::new(error::STORAGE_QUOTA, message)
            .hint("ask the server's owner for more, or for old runs and snapshots to be removed"));
    }
    let near = || format!("the {whose} keeps {} of {} MB, its quota of storage", mb(used_bytes), mb(quota));
    Ok(found.is_nearly_full().then(near))
}

/// What lies beside the store for a tenant.
fn files_bytes(root: &Path, tenant: &Tenant) -> u64 {
    use std::os::unix::fs::MetadataExt as _;

    let home = home_of(root, tenant);
    let is_own = tenant.as_str() == LOCAL_TENANT;
    let (mut bytes, mut waiting) = (0_u64, vec![home.clone()]);
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            // The store holds entries of everybody, and other tenants have folders of their own.
            let name = entry.file_name();
            let is_others =
                is_own && folder == home && (name == "tenants" || name.as_encoded_bytes().starts_with(b"actum.db"));
            let Ok(found) = entry.metadata() else { continue };
            if is_others {
                continue;
            }
            bytes = bytes.saturating_add(found.blocks() * 512);
            if found.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    bytes
}
