//! `actum undo`: take a publication back. An undo is a publication itself, so it can be undone too.

use actum_api::error;
use actum_workspace::Cause;
use clap::Args;
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::Out;
use crate::workspace::{self, Ledger, deltas_json, deltas_text, new_id, now_ms, paths_json};

#[derive(Debug, Args)]
pub(crate) struct Undo {
    /// The run, the publication or its stage, or the beginning of the id
    #[arg(id = "run", value_name = "ID")]
    id: String,
}

impl Undo {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let open = Open::new(Project::find(global)?, out)?;
        let behind = open.run_behind(&self.id)?;
        let folder = behind.as_ref().map_or(project.root(), |(_, folder)| folder);
        let opened = workspace::open(&project, folder, out)?;
        let rules = workspace::rules(folder, Vec::new(), Vec::new())?;
        let ledger = Ledger::open(&project, out)?;
        let lock = workspace::lock(&project, &opened, out)?;
        let earlier = opened.workspace.publication(&self.id)?;
        let publication = opened.workspace.undo(&lock, &earlier, &rules, &new_id(), now_ms())?;
        ledger.record(&opened, &publication, out)?;
        drop(lock);
        // A run that was undone leaves the history: the same may be done again.
        if let Some((run, _)) = open.run_behind(&earlier.of)?.filter(|_| earlier.cause == Cause::Publish) {
            let done = actum_engine::Done::Undone { publication: publication.id.clone() };
            actum_engine::note(&open.waiter, &run, &done)?;
        }
        if publication.changes.is_empty() && !publication.kept.is_empty() {
            let message = "nothing was undone: every path was changed again later";
            return Err(Failure::new(error::PUBLISH_CONFLICT, message).details(json!({
                "paths": paths_json(&publication.kept),
            })));
        }
        let id = &publication.id;
        out.result(
            &json!({
                "publication": id,
                "undoes": earlier.id,
                "before": publication.before.to_hex(),
                "after": publication.after.to_hex(),
                "deltas": deltas_json(&publication.changes),
                "kept": paths_json(&publication.kept),
            }),
            || deltas_text(&publication.changes),
        );
        for path in &publication.kept {
            out.remark(&format!("kept {path}: it was changed again later"));
        }
        match publication.changes.is_empty() {
            true => out.remark("nothing to undo: everything is as it was before"),
            false => out.remark(&format!("`actum undo {id}` takes this back in turn")),
        }
        Ok(0)
    }
}
