//! A registered tool that is called by a contract of its own: what the allowlist says about it, and in what the contract
//! asks for more than the tool may do.

use std::path::Path;

use actum_api::error;
use actum_contract::execution::{Execution, FilesystemLevel, NetworkLevel, Tool, Violation};
use actum_contract::tool::{Checksum, DataAccess, Entry, NetworkOverride, Override, narrow};
use actum_ledger::registry::Status;

use super::shelf::Shelf;
use crate::failure::Failure;
use crate::run::shop::Open;

/// Before the digest of a program that was not approved by its BLAKE3.
pub(crate) const SHA256: &str = "sha256:";

/// A tool as it is registered.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub tool: Tool,
    entry: Entry,
}

impl Registered {
    /// The tool, if it is registered, and approved or blocked: one that nobody has looked at yet is as good as unknown.
    pub(crate) fn find(open: &Open, id: &str) -> Result<Option<Self>, Failure> {
        let found = match Shelf::new(&open.waiter, &open.registry, &open.tenant).tool(id) {
            Ok(found) => found,
            Err(failure) if failure.row.name == error::NOT_FOUND => return Ok(None),
            // It may be blocked: what cannot be known is not allowed.
            Err(failure) => return Err(failure),
        };
        let blocked = found.item.status == Status::Blocked;
        if !found.item.approved && !blocked {
            return Ok(None);
        }
        let entry = found.is;
        let scope = entry.scope.clone();
        let tool = Tool {
            id: entry.tool_id.clone(),
            commands: scope.commands,
            environment: scope.environment,
            scoped: scope.scoped,
            any_arguments: scope.any_arguments,
            cuts_input: scope.cuts_input,
            pinned: match entry.provenance.checksum.clone() {
                Some(Checksum::Blake3(digest)) => Some(digest),
                Some(Checksum::Sha256(digest)) => Some(format!("{SHA256}{digest}")),
                None => None,
            },
            blocked,
        };
        Ok(Some(Self { tool, entry }))
    }

    /// Makes the limits of a contract those of the tool where they are lower, and says what else it asks for too much of.
    pub(crate) fn bound(&self, execution: &mut Execution) -> Vec<Violation> {
        let scope = &self.entry.scope;
        let sandbox = &mut execution.sandbox;
        for (name, amount) in [
            ("timeout_ms", &mut sandbox.timeout_ms),
            ("memory_mb", &mut sandbox.memory_mb),
            ("cpu_cores", &mut sandbox.cpu_cores),
            ("disk_mb", &mut sandbox.disk_mb),
            ("max_children", &mut sandbox.max_children),
        ] {
            *amount = scope.limits.get(name).map_or(*amount, |limit| (*amount).min(*limit));
        }
        let mut found = Vec::new();
        let mut say = |field: &str, what: &str| {
            let message = format!("{} may not use it: {what} is beyond its scope", self.tool.id);
            found.push(Violation { check: "IV-01", field: field.to_owned(), message });
        };
        if self.entry.settlement.is_some() {
            say("tool_id", "to spend money by a contract of one's own, instead of `actum exec --tool`,");
        }
        let level = sandbox.filesystem.level;
        let writes = matches!(level, FilesystemLevel::Standard | FilesystemLevel::Extended);
        if scope.data_access != DataAccess::Write && (writes || !sandbox.filesystem.write.is_empty()) {
            say("sandbox.filesystem", "to write files");
        }
        if level != FilesystemLevel::Elevated && (scope.data_access == DataAccess::None || !self.sees(execution)) {
            say("sandbox.filesystem", "to read there");
        }
        let network = &execution.sandbox.network;
        if network.level != NetworkLevel::Offline && !(scope.open && scope.network) {
            let wanted = NetworkOverride { enabled: true, allow: network.allow.clone() };
            let wanted = Override { network: Some(wanted), ..Override::default() };
            narrow(&self.entry, &[], &wanted, false).widened.iter().for_each(|what| say("sandbox.network", what));
        }
        found
    }

    /// Whether all paths of a contract are among those that the tool sees.
    fn sees(&self, execution: &Execution) -> bool {
        let shown = &self.entry.scope.filesystem;
        if shown.iter().any(|path| path == ".") {
            return true;
        }
        let folder = Path::new(execution.inputs.working_directory.as_deref().unwrap_or("."));
        let named = execution.inputs.input_files.iter().chain(&execution.sandbox.filesystem.read);
        let mut paths = named.map(|path| folder.join(path)).chain([folder.to_owned()]);
        let is_plain = execution.sandbox.filesystem.level == FilesystemLevel::Minimal;
        is_plain && paths.all(|path| shown.iter().any(|shown| path.starts_with(shown)))
    }
}
