//! `actum config`: the configuration in force, and taking a changed one into force in a server.

use actum_api::error;
use actum_contract::digest::Digest;
use actum_ledger::draft;
use clap::Subcommand;
use serde_json::{Value, json};

use super::Ended;
use super::run::submitter;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::Out;

/// Entries of this type say which configuration was taken into force, and by whom.
const TYPE: &str = "configuration_loaded";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the digest of the configuration in force, and whether the files differ from it
    Show,
    /// Take the configuration as it is now into force in a server
    Reload,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        match self {
            Self::Show => show(&project, out),
            Self::Reload => reload(&Open::new(project, out)?, out),
        }
    }
}

fn show(project: &Project, out: &mut Out) -> Ended {
    let config = project.config()?;
    let digest = config.digest.map(Digest::to_hex);
    let is_outdated = project.active_config().is_outdated();
    let agents: Vec<&String> = config.agents.keys().collect();
    let shown = json!({"digest": digest, "outdated": is_outdated, "agents": agents, "files": config.files});
    out.result(&shown, || {
        let digest = digest.as_deref().unwrap_or("none: there is no actum.toml");
        let note = if is_outdated { "\nactum.toml was changed since: `actum config reload`" } else { "" };
        format!("configuration {digest}{note}")
    });
    Ok(0)
}

fn reload(open: &Open, out: &mut Out) -> Ended {
    let project = &open.project;
    if project.seat().is_none() {
        let message = "there is no server to reload: each command reads actum.toml itself";
        return Err(Failure::new(error::USAGE, message).hint("`actum --server URL config reload` asks a server"));
    }
    let before = project.config()?.digest.map(Digest::to_hex);
    let after = project.active_config().reload()?.digest.map(Digest::to_hex);
    if before != after {
        let by = submitter(project);
        let payload = json!({"from": before, "to": after, "actor": by.actor, "token": by.token});
        let entry = json!({
            "tenantId": open.tenant.as_str(), "module": "server", "source": "actum", "type": TYPE, "payload": payload,
        });
        open.waiter.wait(open.waiter.journal.append(draft::read_own(entry)))?;
    }
    let shown: Value = json!({"digest": after, "changed": before != after});
    out.result(&shown, || match (before != after, &after) {
        (true, Some(digest)) => format!("configuration {digest} is in force"),
        (true, None) => "no configuration is in force: there is no actum.toml".to_owned(),
        (false, _) => "nothing has changed".to_owned(),
    });
    Ok(0)
}
