//! The newest head of a ledger that this user has seen (D-509). It is kept outside workspace and database, so a ledger that was
//! rolled back or replaced contradicts it, also if all receipts are gone.

use std::path::PathBuf;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::verify::SignedHead;
use serde::{Deserialize, Serialize};

use crate::project::Project;
use crate::workspace::new_id;

/// Where the head of one tenant's log in one store is kept. None if this user has no home.
#[derive(Debug)]
pub(crate) struct KnownHead {
    path: Option<PathBuf>,
    tenant: Tenant,
    /// For callers of a server, to whom paths of the machine are not shown.
    is_served: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    origin: String,
    /// Not in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    size: u64,
    head: String,
}

impl KnownHead {
    pub(crate) fn of(project: &Project, tenant: &Tenant) -> Self {
        // A server opened its store before it had callers.
        let store = match project.active_config().store() {
            Some(store) => Some(store.to_owned()),
            None => project.location().ok().filter(|_| project.seat().is_none()).map(|location| location.shown()),
        };
        let path = project.state_folder().zip(store).map(|(state, store)| {
            let name = format!("{store} {}", tenant.as_str());
            state.join("heads").join(&Digest::blake3(name.as_bytes()).to_hex()[..32])
        });
        Self { path, tenant: tenant.clone(), is_served: project.seat().is_some() }
    }

    /// Returns the head as something that the log has to contain. The error says that the log is another one than before.
    pub(crate) fn expected(&self, origin: &str) -> Result<Option<SignedHead>, String> {
        let Some((path, record)) = self.read() else { return Ok(None) };
        let place = if self.is_served { String::new() } else { format!(" ({})", path.display()) };
        let name = format!("the head that this user saw last{place}");
        if record.origin != origin {
            return Err(format!(
                "{name} is of another log, {}; remove that file if the store was replaced",
                record.origin
            ));
        }
        let head = Digest::from_hex(&record.head);
        Ok(head.map(|head| SignedHead { size: record.size, head, receipt: name }))
    }

    /// Returns the tenants whose logs in a store this user has seen. `origin_of`: the name of a tenant's log in that store.
    pub(crate) fn tenants(project: &Project, origin_of: &dyn Fn(&Tenant) -> String) -> Vec<Tenant> {
        let folder = project.state_folder().map(|state| state.join("heads"));
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let read = |entry: std::fs::DirEntry| {
            let record: Record = serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok()?;
            let tenant = Tenant::new(record.tenant?).ok()?;
            (origin_of(&tenant) == record.origin).then_some(tenant)
        };
        entries.filter_map(read).collect()
    }

    /// Remembers a head, if it is newer than the known one and the log contains that: else the known one stays, and
    /// `ledger verify` finds what is wrong. `head_at`: the head when the log had so many entries. It is not synced: an older
    /// one says less, and nothing wrong.
    pub(crate) fn note(&self, origin: &str, size: u64, head: Digest, head_at: impl FnOnce(u64) -> Option<Digest>) {
        let Some(path) = &self.path else { return };
        if let Some((_, known)) = self.read() {
            let is_contained = || known.size == 0 || head_at(known.size).is_some_and(|at| at.to_hex() == known.head);
            if known.origin != origin || known.size >= size || !is_contained() {
                return;
            }
        }
        let tenant = Some(self.tenant.as_str().to_owned());
        let record = Record { origin: origin.to_owned(), tenant, size, head: head.to_hex() };
        let aside = path.with_extension(new_id());
        let text = serde_json::to_string(&record).unwrap_or_default();
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&aside, text))
            .and_then(|()| std::fs::rename(&aside, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&aside);
        }
    }

    fn read(&self) -> Option<(&PathBuf, Record)> {
        let path = self.path.as_ref()?;
        let record = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some((path, record))
    }
}
