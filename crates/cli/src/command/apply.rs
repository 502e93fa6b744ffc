//! `actum apply`: publish what a stage has come to.

use actum_workspace::Stage;
use clap::Args;
use serde_json::json;

use super::Ended;
use super::diff::remark_left_out;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::ui::{Out, count};
use crate::workspace::{self, deltas_json, deltas_text, now_ms, paths_json};

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// The stage, or the beginning of its id
    id: String,
}

impl Apply {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let opened = workspace::open(&project, project.root(), out)?;
        let stage = Stage::find(&project.folder()?, &self.id)?;
        let lock = opened.workspace.lock()?;
        let published = opened.workspace.publish(&lock, &stage, now_ms());
        let (publication, sealed) = published.map_err(|e| {
            let failure = Failure::from(e);
            let hint = format!("the result is kept: `actum diff {}` shows it", stage.id);
            if failure.row.name == actum_api::error::PUBLISH_CONFLICT { failure.hint(hint) } else { failure }
        })?;
        workspace::record(&project, &opened.workspace, &publication, out)?;
        drop(lock);
        let id = stage.id.clone();
        stage.drop()?;
        out.result(
            &json!({
                "publication": id,
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
        remark_left_out(&sealed.left_out, out);
        if !publication.changes.is_empty() {
            out.remark(&format!("`actum undo {id}` takes it back"));
        }
        Ok(0)
    }
}
