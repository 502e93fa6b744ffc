//! `actum diff`: what a stage has come to, before anything is published.

use actum_workspace::{Stage, patch};
use clap::Args;
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::ui::{Out, count};
use crate::workspace::{self, deltas_json, deltas_text, paths_json, sum};

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The stage, or the beginning of its id
    id: String,

    /// Only name the paths
    #[arg(long)]
    stat: bool,
}

impl Diff {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let opened = workspace::open(&project, project.root(), out)?;
        let stage = Stage::find(&project.folder()?, &self.id)?;
        // Held while it is read; a program that is still at work is told of, not waited for.
        let still = stage.look();
        if matches!(still, Err(actum_workspace::Error::Busy(_))) {
            out.remark("a program is still running in the stage: this is what there is so far");
        }
        let sealed = stage.seal(&opened.workspace)?;
        show(&opened, &sealed.changes, self.stat, out, || {
            json!({
                "stage": stage.id,
                "before": sealed.base.to_hex(),
                "after": sealed.after.to_hex(),
                "deltas": deltas_json(&sealed.changes),
                "left_out": paths_json(&sealed.left_out),
            })
        })?;
        remark_left_out(&sealed.left_out, out);
        Ok(0)
    }
}

/// Changes in the form that was asked for.
pub(crate) fn show(
    opened: &workspace::Opened,
    changes: &[actum_workspace::Change],
    stat: bool,
    out: &mut Out,
    json: impl FnOnce() -> serde_json::Value,
) -> Result<(), Failure> {
    if out.json {
        out.line(&json().to_string());
    } else if stat {
        out.line(&deltas_text(changes));
    } else {
        out.bytes(&patch(opened.workspace.blobs(), changes)?);
        out.remark(&sum(changes));
    }
    Ok(())
}

pub(crate) fn remark_left_out(left_out: &[actum_workspace::TreePath], out: &Out) {
    if let Some(first) = left_out.first() {
        let many = count(left_out.len() as u64, "change is", "changes are");
        out.remark(&format!("{many} not published, because the path is ignored or lies in .git; the first: {first}"));
    }
}
