//! `actum apply`: publish what a stage has come to.

use actum_contract::digest::Digest;
use actum_ledger::head::Cause;
use actum_ledger::run::Run;
use actum_workspace::{Stage, diff, new_leaving_links};
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use super::diff::remark_left_out;
use crate::args::Global;
use crate::consent::{self, Publishing};
use crate::failure::Failure;
use crate::folder;
use crate::project::Project;
use crate::run::Open;
use crate::shared::Wanted;
use crate::ui::{Out, clean, count};
use crate::workspace::{self, Ledger, Opened, deltas_json, deltas_text, new_id, now_ms, paths_json};

#[derive(Debug, Args)]
#[command(
    after_help = "The stage is removed afterwards, and with it what was done to ignored files and in .git, which are never published; --keep keeps it."
)]
pub(crate) struct Apply {
    /// The run or the stage, or the beginning of its id
    #[arg(id = "run", value_name = "ID")]
    id: String,

    /// Keep the stage
    #[arg(long)]
    keep: bool,

    /// Publish files that programs obey too, such as actum.toml, AGENTS.md or CI workflows: shows their diff and asks. The
    /// digest of a diff confirms exactly that one where there is no terminal
    #[arg(long, value_name = "DIGEST", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    protected: Option<String>,
}

/// The result of a run is published as it was admitted and tested, once the run is over and kept it.
fn is_as_it_was(opened: &Opened, stage: &Stage, run: &Run) -> Result<(), Failure> {
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let refused = |message: String| Err(Failure::new(actum_api::error::RUN_STATE, message));
    if !run.state.is_over() || outcome["verdict"]["kept"] != true {
        return refused(format!("run {} is {} and has kept no result", run.id, run.state));
    }
    let now = stage.seal(&opened.workspace)?.after.to_hex();
    if outcome["current"] != now.as_str() {
        return refused(format!("stage {} is no longer what was tested and signed", stage.id));
    }
    Ok(())
}

/// A kept result goes on the head of its workspace, wherever the run was worked on.
fn apply_shared(open: &Open, run: &Run, name: &str, protected: Option<&str>, out: &mut Out) -> Ended {
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let tree = |key: &str| outcome[key].as_str().and_then(Digest::from_hex);
    let (Some(base), Some(current), true) = (tree("before"), tree("current"), outcome["verdict"]["kept"] == true)
    else {
        let message = format!("run {} is {} and has kept no result", run.id, run.state);
        return Err(Failure::new(actum_api::error::RUN_STATE, message));
    };
    let blobs = open.project.blobs()?;
    let changes = diff(&*blobs, base, current)?;
    let publishing = Publishing {
        open,
        blobs: &*blobs,
        folder: None,
        base,
        after: current,
        onto: open.head_tree(name)?,
        changes: &changes,
        verb: "publish",
        of: &run.id,
    };
    consent::require(&publishing, protected, out)?;
    let actor = open.project.actor().unwrap_or_else(|| "cli".to_owned());
    let (cause, of) = (Cause::Publish, run.id.as_str());
    let wanted = Wanted { name, cause, of, actor: &actor, base, changes: &changes, keep: false };
    let (publication, rebased) = open.move_head(run, &wanted)?;
    out.result(
        &json!({
            "publication": publication, "workspace": name, "before": rebased.before.to_hex(),
            "after": rebased.after.to_hex(), "deltas": deltas_json(&rebased.changes),
            "base_drift": paths_json(&rebased.drift), "left_out": [],
        }),
        || deltas_text(&rebased.changes),
    );
    Ok(0)
}

impl Apply {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let open = Open::new(Project::find(global)?, out)?;
        if let Some((run, name)) = open.run_on_shared(&self.id)? {
            return apply_shared(&open, &run, &name, self.protected.as_deref(), out);
        }
        if project.is_guest()? {
            return Err(open.run(&self.id).err().unwrap_or_else(|| {
                Failure::new(actum_api::error::RUN_STATE, format!("run {} has no result of yours", self.id))
            }));
        }
        let behind = open.run_behind(&self.id)?;
        let folder = folder::open_behind(&project, behind.as_ref().map(|(_, agreement)| agreement))?;
        let opened = workspace::open(&project, folder, out)?;
        let ledger = Ledger::open(&project, out)?;
        let lock = workspace::lock(&project, &opened, out)?;
        let stage = self.find(&project, &opened)?;
        let still = workspace::settle(&opened, &stage)?;
        // By the stage that was found: the beginning of an id may be that of several runs.
        if let Some((run, _)) = open.run_behind(&stage.id)? {
            is_as_it_was(&opened, &stage, &run)?;
        }
        let sealed = stage.seal(&opened.workspace)?;
        let rules = workspace::rules(opened.workspace.path(), Vec::new(), Vec::new())?;
        let publishing = Publishing {
            open: &open,
            blobs: opened.workspace.blobs(),
            folder: Some(opened.workspace.path()),
            base: sealed.base,
            after: sealed.after,
            onto: opened.workspace.state_held(&lock, &rules)?,
            changes: &sealed.changes,
            verb: "publish",
            of: &stage.id,
        };
        consent::require(&publishing, self.protected.as_deref(), out)?;
        // A person may have taken an hour, and `resume` on another machine needs no lock.
        if let Some((run, _)) = open.run_behind(&stage.id)? {
            is_as_it_was(&opened, &stage, &run)?;
        }
        let published = opened.workspace.publish(&lock, &stage, &new_id(), now_ms());
        let (publication, sealed) = published.map_err(|e| {
            let failure = Failure::from(e);
            let hint = format!(
                "the result is kept: `actum diff {0}` shows it; put your own change aside and apply again, or `actum stage drop {0}`",
                stage.id
            );
            if failure.row.name == actum_api::error::PUBLISH_CONFLICT { failure.hint(hint) } else { failure }
        })?;
        let recorded = ledger.record(&opened, &publication, out);
        let id = stage.id.clone();
        if !self.keep {
            workspace::drop_stage(stage, still, out);
        }
        recorded?;
        // Under the lock, and once: a command that recovers may have been first.
        let behind = open.run_behind(&id)?;
        let is_known = match &behind {
            Some((run, _)) => crate::recover::names_publication(&open, run, &publication.id)?,
            None => true,
        };
        if let Some((run, _)) = behind.filter(|_| !is_known) {
            let drift = publication.drift.iter().map(ToString::to_string).collect();
            let done = actum_engine::Done::Applied { publication: publication.id.clone(), drift };
            open.note_done(&run, &done)?;
        }
        opened.workspace.forget_pending(&publication.id)?;
        drop(lock);
        out.result(
            &json!({
                "publication": publication.id,
                "stage": id,
                "before": publication.before.to_hex(),
                "after": publication.after.to_hex(),
                "deltas": deltas_json(&publication.changes),
                "base_drift": paths_json(&publication.drift),
                "left_out": paths_json(&sealed.left_out),
            }),
            || deltas_text(&publication.changes),
        );
        if let Some(first) = publication.drift.first() {
            let many = count(publication.drift.len() as u64, "other path was", "other paths were");
            out.remark(&format!("{many} changed by others since the stage was made, the first: {first}"));
        }
        let changes = &sealed.changes;
        let leaving = new_leaving_links(opened.workspace.blobs(), sealed.base, sealed.after, changes)?;
        if let Some(first) = leaving.first() {
            let many = count(leaving.len() as u64, "link leads", "links lead");
            out.remark(&format!("{many} out of the workspace, the first: {}", clean(&first.to_string())));
        }
        remark_left_out(&sealed.left_out, out);
        if !publication.changes.is_empty() {
            out.remark(&format!("`actum undo {id}` takes it back"));
        }
        Ok(0)
    }

    /// One that is gone because it was applied is told from one that never was.
    fn find(&self, project: &Project, opened: &Opened) -> Result<Stage, Failure> {
        Stage::find(&project.folder()?, &self.id).map_err(|e| match opened.workspace.publication(&self.id) {
            Ok(publication) if matches!(e, actum_workspace::Error::Unknown { .. }) => {
                actum_workspace::Error::Applied(publication.of).into()
            }
            _ => e.into(),
        })
    }
}
