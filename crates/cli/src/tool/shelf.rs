//! The shelf: tools and adapters as they are registered. What is in force is what the ledger says, not what stands in a
//! file: a file becomes a tool only by being added.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use actum_api::error;
use actum_contract::id::Tenant;
use actum_contract::tool::{Adapter, Entry};
use actum_engine::Waiter;
use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_ledger::refusal::Code;
use actum_ledger::registry::{self, Change, Head, Item, Kind, Registry, Status};

use serde_json::Value;

use crate::failure::Failure;

#[derive(Clone)]
pub(crate) struct Shelf {
    waiter: Waiter,
    registry: Arc<dyn Registry>,
    pub tenant: Tenant,
    /// Documents by the entry they stand in, which never changes.
    read: Arc<Mutex<HashMap<String, Arc<Value>>>>,
}

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shelf").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// Something registered, with what is on record about it.
#[derive(Debug, Clone)]
pub(crate) struct Found<T> {
    pub item: Item,
    pub is: T,
    pub body: Arc<Value>,
}

/// Documents that are kept in memory.
const READ_MAX: usize = 1_000;

impl Shelf {
    pub(crate) fn new(waiter: &Waiter, registry: &Arc<dyn Registry>, tenant: &Tenant) -> Self {
        Self { waiter: waiter.clone(), registry: Arc::clone(registry), tenant: tenant.clone(), read: Arc::default() }
    }

    /// By which whoever has the shelf waits for the store.
    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    pub(crate) fn heads(&self, kind: Kind) -> Result<Vec<Head>, Failure> {
        Ok(self.waiter.wait(self.registry.heads(&self.tenant, kind))?)
    }

    pub(crate) fn items(&self, kind: Kind) -> Result<Vec<Item>, Failure> {
        Ok(self.waiter.wait(self.registry.items(&self.tenant, kind))?)
    }

    /// What is on record about an id, also if it was removed.
    pub(crate) fn record(&self, kind: Kind, id: &str) -> Result<Option<Item>, Failure> {
        Ok(self.waiter.wait(self.registry.item(&self.tenant, kind, id))?)
    }

    /// What is registered under an id, or under `id@version` if that is the version in force.
    pub(crate) fn item(&self, kind: Kind, name: &str) -> Result<Item, Failure> {
        let (id, version) = name.split_once('@').map_or((name, None), |(id, version)| (id, Some(version)));
        let found = self.record(kind, id)?.filter(|item| item.status != Status::Removed);
        let Some(item) = found else {
            let failure = Failure::new(error::NOT_FOUND, format!("no {} {id:?} is registered", kind.word()));
            return Err(failure.hint(format!("`actum {} list` shows what is", kind.word())));
        };
        match version.filter(|version| *version != item.version) {
            None => Ok(item),
            Some(version) => {
                let known: Vec<String> = self.history(kind, &item)?.into_iter().map(|change| change.version).collect();
                let was = if known.iter().any(|known| known == version) { "is no longer" } else { "never was" };
                let message = format!("version {version} of {id} {was} in force; {} is", item.version);
                Err(Failure::new(error::NOT_FOUND, message).hint("name no version, or that one"))
            }
        }
    }

    pub(crate) fn tool(&self, name: &str) -> Result<Found<Entry>, Failure> {
        let item = self.item(Kind::Tool, name)?;
        let body = self.body(Kind::Tool, &item)?;
        let is = Entry::read(&body).map_err(|flaws| damaged(&item.id, &flaws))?;
        Ok(Found { item, is, body })
    }

    pub(crate) fn adapter(&self, name: &str) -> Result<Found<Adapter>, Failure> {
        let item = self.item(Kind::Adapter, name)?;
        let body = self.body(Kind::Adapter, &item)?;
        let is = Adapter::read(&body, &[]).map_err(|flaws| damaged(&item.id, &flaws))?;
        Ok(Found { item, is, body })
    }

    /// The document in force.
    pub(crate) fn body(&self, kind: Kind, item: &Item) -> Result<Arc<Value>, Failure> {
        let id = registry::entry_id(kind, &item.id, item.n);
        if let Some(known) = self.read.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(Arc::clone(known));
        }
        let body = Arc::new(self.change_at(&id)?.body);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.len() >= READ_MAX {
            read.clear();
        }
        read.insert(id, Arc::clone(&body));
        Ok(body)
    }

    fn change_at(&self, id: &str) -> Result<Change, Failure> {
        let entry = self.waiter.wait(self.waiter.journal.entry(&self.tenant, id))?;
        let change = entry.as_deref().and_then(registry::body_of);
        change.ok_or_else(|| Failure::new(error::STORE_DAMAGED, format!("the registry names {id}, which is not there")))
    }

    /// All changes of an item, the newest first.
    pub(crate) fn history(&self, kind: Kind, item: &Item) -> Result<Vec<Change>, Failure> {
        (1..=item.n).rev().map(|n| self.change_at(&registry::entry_id(kind, &item.id, n))).collect()
    }

    /// Writes a change down. Whoever else made the same change number first goes before.
    pub(crate) fn change(&self, change: &Change) -> Result<(), Failure> {
        let submission = draft::read_own(change.document());
        match self.waiter.wait(self.waiter.journal.append(submission))? {
            Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(()),
            Outcome::Refused(refusal) if refusal.code == Code::IdempotencyConflict => {
                let message = format!("another command has changed {} meanwhile", change.item);
                Err(Failure::new(error::REGISTRY_CONFLICT, message).hint("look at it, and try again"))
            }
            Outcome::Refused(refusal) => {
                Err(Failure::new(error::INPUT, refusal.message.clone()).details(refusal.details()))
            }
        }
    }
}

fn damaged(id: &str, flaws: &[actum_contract::execution::Flaw]) -> Failure {
    let lines: Vec<String> = flaws.iter().map(ToString::to_string).collect();
    let message = format!("what is registered as {id} cannot be read by this program: {}", lines.join("; "));
    Failure::new(error::STORE_DAMAGED, message).hint("add it again with this version of actum")
}
