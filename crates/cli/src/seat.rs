//! A seat: where a command runs for somebody who is not at the keyboard. It holds the open store, the tenant, who it is, and
//! where things lie. Made by whoever serves; `Project` and `Open` take what is in it. It never prints and never decides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_store::Store;

use crate::active_config::ActiveConfig;
use crate::failure::Failure;
use crate::workspace::LOCAL_TENANT;

/// Letters of a tenant's name that is the name of its folder too.
const FOLDER_CHARS_MAX: usize = 64;

pub(crate) struct Seat {
    pub store: Arc<dyn Store>,
    pub waiter: Waiter,
    pub tenant: Tenant,
    /// Who asks; whatever is changed is changed in this name.
    pub actor: String,
    /// The id of the token he brought, if he came in over a server. Without one it is somebody of this machine.
    pub token: Option<String>,
    /// The project.
    pub root: PathBuf,
    /// Its configuration, the same for all who ask one server.
    pub config: Arc<ActiveConfig>,
    /// Where things lie that are not in the store.
    pub home: PathBuf,
    /// Where the server's user keeps state that belongs to no workspace, keys among it. None if there is no such folder.
    pub state: Option<PathBuf>,
    /// The span of whoever asks, as a `traceparent`.
    pub trace: Option<String>,
    /// What this one asks for is named so each time he asks for it; to be done once.
    pub once: Option<Digest>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("tenant", &self.tenant).field("actor", &self.actor).finish_non_exhaustive()
    }
}

impl Seat {
    /// A seat of a tenant in a project whose store is open.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        waiter: Waiter,
        tenant: Tenant,
        actor: String,
        config: Arc<ActiveConfig>,
    ) -> Self {
        let root = config.root().to_owned();
        let (home, state) = (home_of(&root, &tenant), crate::project::state_folder());
        Self { store, waiter, tenant, actor, token: None, root, config, home, state, trace: None, once: None }
    }

    pub(crate) fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    pub(crate) fn traced(self, trace: Option<String>) -> Self {
        Self { trace, ..self }
    }

    pub(crate) fn once(self, once: Option<Digest>) -> Self {
        Self { once, ..self }
    }

    /// The folder for what is not in the store, made on first use.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        let own = self.root.join(".actum");
        actum_workspace::make_own_folder(&own)?;
        if let Some(above) = self.home.parent().filter(|_| self.home != own) {
            actum_workspace::make_own_folder(above)?;
            actum_workspace::make_own_folder(&self.home)?;
        }
        Ok(self.home.clone())
    }
}

/// How a path is told to a tenant: where the project lies is nobody's business but of those whose it is.
pub(crate) fn told_to(tenant: &Tenant, root: &Path, path: &Path) -> String {
    let is_guest = tenant.as_str() != LOCAL_TENANT;
    let inner = || path.strip_prefix(root).ok().or_else(|| path.file_name().map(Path::new));
    is_guest.then(inner).flatten().unwrap_or(path).display().to_string()
}

/// Where a tenant's things lie. A name may be anything; what could lead elsewhere, or looks like another one to a file system,
/// is not taken for a folder's.
pub(crate) fn home_of(root: &Path, tenant: &Tenant) -> PathBuf {
    let own = root.join(".actum");
    if tenant.as_str() == LOCAL_TENANT {
        return own;
    }
    own.join("tenants").join(folder_of(tenant))
}

/// A name for a folder, of its own for every tenant.
pub(crate) fn folder_of(tenant: &Tenant) -> String {
    let name = tenant.as_str();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    match name.len() <= FOLDER_CHARS_MAX && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("={}", Digest::sha256(name.as_bytes()).to_hex()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenant_has_a_folder_of_its_own_and_none_leads_out() {
        let home = |name: &str| home_of(Path::new("/p"), &Tenant::new(name).unwrap());
        assert_eq!(home("local"), Path::new("/p/.actum"));
        assert_eq!(home("acme-1"), Path::new("/p/.actum/tenants/acme-1"));
        let odd = ["..", ".", "../local", "a/b", "Acme-1", "ACME-1", "é", "=x", "a b", &"a".repeat(65)];
        let mut seen = std::collections::BTreeSet::new();
        for name in odd {
            let found = home(name);
            assert_eq!(found.parent(), Some(Path::new("/p/.actum/tenants")), "{name}");
            assert!(found.file_name().is_some_and(|n| n.to_string_lossy().starts_with('=')), "{name}");
            assert!(seen.insert(found), "{name}");
        }
    }
}
