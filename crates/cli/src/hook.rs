//! Delivering webhooks: whoever serves takes one that has something to tell, tells it entry by entry in their order, and moves its
//! place only after the answer. Of several servers on one store each webhook is held by one at a time. It decides nothing about what
//! happened; a delivery whose answer is lost is made again, under the same id.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use actum_adapters::Http;
use actum_adapters::webhook::{Delivered, Delivery, host_of};
use actum_api::error;
use actum_contract::crash;
use actum_contract::execution::{Network, NetworkLevel};
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::draft;
use actum_ledger::journal::{JournalError, Range};
use actum_ledger::verify::Row;
use actum_ledger::webhook::{self, Action, ERROR_BYTES_MAX, Progress, Webhook, Webhooks};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::active_config::ActiveConfig;
use crate::config::Config;
use crate::failure::Failure;
use crate::workspace::new_id;

/// Deliveries of one server at once.
const THREADS: usize = 8;
/// Of these, of one tenant: whoever answers slowly keeps others from nothing.
const OF_TENANT_MAX: usize = THREADS / 2;
/// How often it is looked whether there is something to tell.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long an answer may take.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How long a webhook is held by whoever delivers; longer than any delivery.
const LEASE_MS: u64 = 60_000;
/// After so long others have their turn.
const TURN_MAX: Duration = Duration::from_secs(20);
/// Entries that are read at once.
const ENTRIES_MAX: usize = 64;
/// Between two attempts: the first, doubled each time, and the longest.
const FIRST_WAIT_MS: u64 = 1_000;
const WAIT_MS_MAX: u64 = 60 * 60 * 1_000;
/// So long nothing but failures: then nobody is there.
const GIVE_UP_MS: i64 = 3 * 24 * 60 * 60 * 1_000;
/// Says that nobody wants to be told any more.
const GONE: u16 = 410;

const CRASH_POINTS: &[&str] = &["webhook.delivered"];

/// Whom webhooks may reach: everybody, but for addresses that are not everybody's and were not named.
pub(crate) fn network(config: &Config) -> Network {
    Network { level: NetworkLevel::Open, allow: config.server.webhook_hosts.clone(), deny: Vec::new() }
}

/// What is sent: the entry, with what it is and when it was made in front.
pub(crate) fn body_of(row: &Row) -> String {
    let entry: Value = serde_json::from_slice(&row.body).unwrap_or_default();
    json!({"type": row.kind, "timestamp": entry["createdAt"], "data": entry}).to_string()
}

/// The deliveries of this server, until it is dropped.
pub(crate) struct Deliveries {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    is_told: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    fn tell(&self) {
        *self.is_told.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    fn is_told(&self) -> bool {
        *self.is_told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, patience: Duration) {
        let is_told = self.is_told.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.told.wait_timeout_while(is_told, patience, |is_told| !*is_told));
    }
}

impl Deliveries {
    pub(crate) fn begin(
        webhooks: &Arc<dyn Webhooks>,
        waiter: &Waiter,
        config: &Arc<ActiveConfig>,
    ) -> Result<Self, Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::new(error::INTERNAL, format!("cannot deliver webhooks: {e}"));
        let http = Http::for_others(config.current()?.sandbox.hosts.clone()).map_err(|e| failed(&e))?;
        let (http, stop, server) = (Arc::new(http), Arc::<Stop>::default(), new_id());
        let under_way = Arc::<UnderWay>::default();
        let mut all = Self { stop: Arc::clone(&stop), threads: Vec::new() };
        for n in 0..THREADS {
            let courier = Courier {
                webhooks: Arc::clone(webhooks),
                waiter: waiter.clone(),
                http: Arc::clone(&http),
                config: Arc::clone(config),
                owner: format!("{server}.{n}"),
                stop: Arc::clone(&stop),
                under_way: Arc::clone(&under_way),
            };
            let thread = Builder::new().name("actum-webhook".into()).spawn(move || courier.work());
            all.threads.push(thread.map_err(|e| failed(&e))?);
        }
        Ok(all)
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.stop.tell();
        for thread in self.threads.drain(..) {
            // What is under way is waited for: it ends in time by itself.
            thread.join().unwrap_or_default();
        }
    }
}

/// Whose webhooks this server delivers at this moment, and how many of each.
#[derive(Default)]
struct UnderWay(Mutex<BTreeMap<Tenant, usize>>);

impl UnderWay {
    fn tenants(&self) -> MutexGuard<'_, BTreeMap<Tenant, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of whoever has not his share yet. One taker at a time: who is not counted yet must not be taken twice.
    fn take<E>(
        &self,
        take: impl FnOnce(Vec<Tenant>) -> Result<Option<Webhook>, E>,
    ) -> Result<Option<(Webhook, Delivering<'_>)>, E> {
        let mut tenants = self.tenants();
        let full = tenants.iter().filter(|(_, number)| **number >= OF_TENANT_MAX);
        let Some(webhook) = take(full.map(|(tenant, _)| tenant.clone()).collect())? else { return Ok(None) };
        let tenant = webhook.tenant.clone();
        *tenants.entry(tenant.clone()).or_default() += 1;
        Ok(Some((webhook, Delivering { under_way: self, tenant })))
    }
}

/// Counted until it is over.
struct Delivering<'a> {
    under_way: &'a UnderWay,
    tenant: Tenant,
}

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        let mut tenants = self.under_way.tenants();
        if let Some(number) = tenants.get_mut(&self.tenant) {
            *number -= 1;
            if *number == 0 {
                tenants.remove(&self.tenant);
            }
        }
    }
}

/// Delivers, one webhook after the other.
struct Courier {
    webhooks: Arc<dyn Webhooks>,
    waiter: Waiter,
    http: Arc<Http>,
    config: Arc<ActiveConfig>,
    owner: String,
    stop: Arc<Stop>,
    under_way: Arc<UnderWay>,
}

/// What to do about a webhook next.
enum Next {
    GoOn,
    /// It is given back, or somebody else has it.
    Leave,
}

impl Courier {
    fn work(&self) {
        while !self.stop.is_told() {
            let take = |full| self.waiter.wait(self.webhooks.take_webhook(self.owner.clone(), LEASE_MS, full));
            match self.under_way.take(take) {
                // Whatever cannot be written down is done again by whoever takes it next.
                Ok(Some((webhook, _delivering))) => self.serve(webhook).unwrap_or_default(),
                Ok(None) | Err(_) => self.stop.wait(LOOK_EVERY),
            }
        }
    }

    /// Tells what there is to tell, in its order.
    fn serve(&self, mut webhook: Webhook) -> Result<(), JournalError> {
        let begun = Instant::now();
        loop {
            let range = Range::forwards(webhook.cursor, ENTRIES_MAX);
            let rows = self.waiter.wait(self.waiter.journal.rows(&webhook.tenant, range))?;
            let is_last = rows.is_empty();
            // What somebody is told stays true.
            if !is_last {
                self.waiter.wait(self.waiter.journal.settled())?;
            }
            for row in rows {
                let is_wanted = webhook.types.is_empty() || webhook.types.contains(&row.kind);
                if is_wanted && let Next::Leave = self.deliver(&mut webhook, &row)? {
                    return Ok(());
                }
                webhook.cursor = row.seq + 1;
                if self.stop.is_told() || begun.elapsed() > TURN_MAX {
                    return self.settle(&webhook, 0, None).map(drop);
                }
            }
            if is_last {
                return self.settle(&webhook, 0, None).map(drop);
            }
        }
    }

    fn deliver(&self, webhook: &mut Webhook, row: &Row) -> Result<Next, JournalError> {
        let (body, now) = (body_of(row), Timestamp::now());
        let delivery = Delivery {
            url: &webhook.url,
            secret: &webhook.secret,
            id: &message_id(&webhook.id, row.seq),
            at_s: now.as_second(),
            body: &body,
            within: ANSWER_WITHIN,
        };
        // The one in force is readable: it was read when it was taken into force.
        let network = self.config.current().map(|config| network(&config)).unwrap_or_default();
        let why = match self.http.deliver(&network, &delivery) {
            Delivered::Status(200..=299) => {
                crash::pass(CRASH_POINTS, "webhook.delivered");
                (webhook.failures, webhook.failing_since_ms, webhook.last_error) = (0, None, None);
                webhook.cursor = row.seq + 1;
                let is_held = self.settle(webhook, 0, Some(LEASE_MS))?;
                return Ok(if is_held { Next::GoOn } else { Next::Leave });
            }
            Delivered::Status(GONE) => return self.disable(webhook, "it answered 410: it is gone"),
            Delivered::Status(status) => format!("it answered {status}"),
            Delivered::Lost(why) | Delivered::Denied(why) => why,
        };
        webhook.failures += 1;
        let since = *webhook.failing_since_ms.get_or_insert(now.as_millisecond());
        webhook.last_error = Some(cut(&why));
        if now.as_millisecond() - since >= GIVE_UP_MS {
            let days = GIVE_UP_MS / (24 * 60 * 60 * 1_000);
            return self.disable(webhook, &format!("{} deliveries have failed for {days} days", webhook.failures));
        }
        let mut random = [0; 1];
        // Without random bytes all wait equally long, which is no harm.
        let _ = getrandom::fill(&mut random);
        self.settle(webhook, wait_ms(webhook.failures, random[0]), None)?;
        Ok(Next::Leave)
    }

    /// Nothing is sent any more, which the ledger knows before.
    fn disable(&self, webhook: &mut Webhook, why: &str) -> Result<Next, JournalError> {
        let host = host_of(&webhook.url).unwrap_or_default();
        let document = webhook::document(webhook, Action::Disable, &host, "actum serve", why);
        // If it is there already somebody has written it, and was stopped before the next line.
        self.waiter.wait(self.waiter.journal.append(draft::read_own(document)))?;
        webhook.changes += 1;
        webhook.disabled = Some(why.to_owned());
        self.settle(webhook, 0, None)?;
        Ok(Next::Leave)
    }

    /// Whether it is still held by us.
    fn settle(&self, webhook: &Webhook, wait_ms: u64, lease_ms: Option<u64>) -> Result<bool, JournalError> {
        let progress = Progress { lease_ms, ..progress_of(webhook, wait_ms) };
        let (tenant, id) = (webhook.tenant.clone(), webhook.id.clone());
        self.waiter.wait(self.webhooks.settle_webhook(tenant, id, Some(self.owner.clone()), progress))
    }
}

/// A webhook as it stands, to be written down; given back.
pub(crate) fn progress_of(webhook: &Webhook, wait_ms: u64) -> Progress {
    Progress {
        cursor: webhook.cursor,
        failures: webhook.failures,
        failing_since_ms: webhook.failing_since_ms,
        wait_ms,
        last_error: webhook.last_error.clone(),
        disabled: webhook.disabled.clone(),
        changes: webhook.changes,
        lease_ms: None,
    }
}

/// The same however often an entry is told.
fn message_id(webhook: &str, seq: u64) -> String {
    format!("msg_{webhook}_{seq}")
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(ERROR_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// How long to wait after so many failures in a row: twice as long each time, and up to a quarter longer, so that those who failed
/// together do not come back together.
fn wait_ms(failures: u64, random: u8) -> u64 {
    let doubled = u32::try_from(failures.saturating_sub(1)).ok().and_then(|n| 2_u64.checked_pow(n));
    let wait = doubled.and_then(|n| FIRST_WAIT_MS.checked_mul(n)).unwrap_or(WAIT_MS_MAX).min(WAIT_MS_MAX);
    wait + wait / 4 * u64::from(random) / u64::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_an_hour_and_differ() {
        let waits: Vec<u64> = (1..=5).map(|failures| wait_ms(failures, 0)).collect();
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 16_000]);
        for failures in [13, 63, 64, 65, 1_000, u64::MAX] {
            assert_eq!(wait_ms(failures, 0), WAIT_MS_MAX, "{failures}");
        }
        assert_eq!((wait_ms(1, 255), wait_ms(u64::MAX, 255)), (1_250, WAIT_MS_MAX * 5 / 4));
        assert!(wait_ms(1, 128) > 1_000 && wait_ms(0, 0) == 1_000);
    }

    #[test]
    fn a_tenant_has_half_of_the_threads() {
        let under_way = UnderWay::default();
        let webhook = |tenant: &str| Webhook {
            tenant: Tenant::new(tenant).unwrap(),
            id: String::new(),
            name: String::new(),
            url: String::new(),
            types: Vec::new(),
            secret: String::new(),
            created_ms: 0,
            cursor: 0,
            failures: 0,
            failing_since_ms: None,
            next_try_ms: 0,
            last_error: None,
            disabled: None,
            changes: 0,
        };
        let take = |tenant: &str| {
            let found = |full: Vec<Tenant>| {
                let full: Vec<&str> = full.iter().map(Tenant::as_str).collect();
                Ok::<_, ()>((!full.contains(&tenant)).then(|| webhook(tenant)))
            };
            under_way.take(found).unwrap().map(|(_, delivering)| delivering)
        };
        let mut held: Vec<_> = (0..OF_TENANT_MAX).map(|_| take("a").unwrap()).collect();
        assert!(take("a").is_none());
        assert!(take("b").is_some());
        held.pop();
        held.extend(take("a"));
        assert_eq!(held.len(), OF_TENANT_MAX);
        drop(held);
        assert!(under_way.tenants().is_empty());
    }

    #[test]
    fn errors_are_cut_between_letters() {
        assert_eq!(cut("short"), "short");
        let long = "é".repeat(ERROR_BYTES_MAX);
        assert!(cut(&long).len() <= ERROR_BYTES_MAX && long.starts_with(&cut(&long)));
    }
}
