//! Models, asked under the policy and within a budget: for agents in their cells, for predictions, for the built-in agent.
//! Whatever is asked goes through a `Till`: judged, reserved, asked, paid, receipted, kept.

pub(crate) mod agent;
pub(crate) mod alive;
pub(crate) mod artifact;
pub(crate) mod catalogue;
mod clean;
pub(crate) mod evidence;
pub(crate) mod gateway;
pub(crate) mod guard;
pub(crate) mod line;
pub(crate) mod predict;
pub(crate) mod receipt;
mod recorded;
pub(crate) mod rollout;
mod till;
pub(crate) mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use actum_adapters::model::{Auth, Target, Upstream};
use actum_api::error;
use actum_contract::execution::Redactor;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::spend::Spend;
use actum_predict::price::Prices;
use actum_predict::protocol::Protocol;
use actum_predict::provider::{self, Kind, Provider};
use actum_store::blob::Folder as Blobs;

use crate::config::Config;
use crate::contents::{self, Shelf};
use crate::failure::Failure;
use crate::tool::secret;

use recorded::Exchange;
pub(crate) use recorded::{Recorded, Recording};
pub(crate) use till::Till;

pub(crate) use crate::purse::{Authorized, new_authorization};

/// Until a connection stands, unless the provider has less time to answer.
const CONNECT_MS: u64 = 10_000;
/// The largest answer of a provider.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What all who ask models share: providers, prices, and where money and receipts are kept.
pub(crate) struct Counter {
    pub waiter: Waiter,
    pub spend: Arc<dyn Spend>,
    pub tenant: Tenant,
    pub home: PathBuf,
    /// Where paths in the settings begin.
    pub root: PathBuf,
    pub providers: Vec<Provider>,
    pub prices: Prices,
    /// Traces that are too long to stand in a receipt.
    pub traces: Blobs,
    recorded: Mutex<BTreeMap<String, Arc<Recorded>>>,
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counter").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

impl Counter {
    pub(crate) fn new(
        waiter: &Waiter,
        spend: &Arc<dyn Spend>,
        tenant: &Tenant,
        (home, root): (PathBuf, PathBuf),
        config: &Config,
    ) -> Result<Arc<Self>, Failure> {
        let traces = contents::open(config.blobs.clone(), &root, &home, tenant, Shelf::Traces)?;
        Ok(Arc::new(Self {
            waiter: waiter.clone(),
            spend: Arc::clone(spend),
            tenant: tenant.clone(),
            home,
            root,
            providers: config.providers.clone(),
            prices: config.prices.clone(),
            traces,
            recorded: Mutex::default(),
        }))
    }

    /// Who is asked for a model. `named`: the provider, if one is wanted.
    pub(crate) fn provider(&self, protocol: Protocol, model: &str, named: Option<&str>) -> Option<&Provider> {
        let wanted = self.providers.iter().filter(|one| named.is_none_or(|named| one.id == named));
        provider::choose(wanted, protocol, model)
    }

    /// The models that are named without a star.
    pub(crate) fn models(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.providers.iter().flat_map(|one| &one.models).filter(|name| !name.contains('*')).cloned().collect();
        all.sort();
        all.dedup();
        all
    }

    /// The key of a provider, looked up where it is used.
    fn key(&self, provider: &Provider) -> Result<Option<String>, Failure> {
        let Some(reference) = &provider.key else { return Ok(None) };
        match secret::look_up(reference) {
            Some(Ok(key)) if !key.is_empty() => Ok(Some(key)),
            _ => {
                let message = format!("the key of provider {}, which is {reference}, is not there", provider.id);
                Err(Failure::new(error::INPUT, message).hint("set it where actum runs; it is never written down"))
            }
        }
    }

    /// Takes out the keys of all providers, wherever they turn up.
    pub(crate) fn redactor(&self) -> Redactor {
        let keys: Vec<String> = self.providers.iter().filter_map(|one| self.key(one).ok().flatten()).collect();
        Redactor::new(keys.iter().map(String::as_str))
    }

    fn upstream(&self, provider: &Provider) -> Result<Upstream, Failure> {
        let auth = match provider.kind {
            // A server on one's own machine may want none.
            _ if provider.key.is_none() => Auth::Nothing,
            Kind::OpenAi | Kind::Recorded => Auth::Bearer,
            Kind::Anthropic => Auth::XApiKey,
            Kind::Gemini => Auth::GoogApiKey,
        };
        let target = Target {
            id: provider.id.clone(),
            base_url: provider.base_url.clone(),
            auth,
            key: self.key(provider)?,
            headers: match provider.kind {
                Kind::Anthropic => vec![("anthropic-version".to_owned(), "2023-06-01".to_owned())],
                _ => Vec::new(),
            },
            connect_ms: CONNECT_MS.min(provider.answer_ms).min(provider.total_ms / 2).max(1),
            answer_ms: provider.answer_ms,
            idle_ms: provider.idle_ms,
            total_ms: provider.total_ms,
            attempts_max: u32::try_from(provider.attempts).unwrap_or(u32::MAX),
            body_bytes_max: ANSWER_BYTES_MAX,
        };
        let bad =
            |e: actum_adapters::model::BadTarget| Failure::new(error::CONFIG, format!("provider {}: {e}", provider.id));
        Upstream::new(target, None).map_err(bad)
    }

    /// Adds an exchange to the recording that the settings name for a provider, if they do.
    fn keep(&self, provider: &Provider, exchange: Option<&Exchange>) -> Result<(), Failure> {
        let Some((file, exchange)) = provider.record.as_ref().zip(exchange) else { return Ok(()) };
        // One after the other: the file is read and written whole.
        let _turn = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        Recorded::add(&self.root.join(crate::config::expand(file.clone())), std::slice::from_ref(exchange))
    }

    fn recording(&self, provider: &Provider) -> Result<Arc<Recorded>, Failure> {
        let mut all = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&provider.id) {
            return Ok(Arc::clone(known));
        }
        let file = provider.file.clone().unwrap_or_default();
        let read = Arc::new(Recorded::read(&self.root.join(crate::config::expand(file)))?);
        all.insert(provider.id.clone(), Arc::clone(&read));
        Ok(read)
    }
}
