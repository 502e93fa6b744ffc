//! `actum diff`: what a stage has come to, before anything is published.

use std::path::Path;

use actum_ledger::run::RunState;
use actum_workspace::{Stage, deltas, patch};
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::folder;
use crate::project::Project;
use crate::protect::remark_on;
use crate::run::{Open, Recording};
use crate::ui::{Out, count};
use crate::workspace::{self, deltas_json, deltas_text, paths_json, sum};

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The run or the stage, or the beginning of its id
    #[arg(id = "run", value_name = "ID")]
    id: String,

    /// Only name the paths
    #[arg(long)]
    stat: bool,

    /// Print the bytes as they are, also on a terminal, which may obey them
    #[arg(long)]
    raw: bool,
}

impl Diff {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        if self.raw {
            out.set_raw();
        }
        let project = Project::find(global)?;
        if project.is_guest()? || Open::new(Project::find(global)?, out)?.run_on_shared(&self.id)?.is_some() {
            let unknown = Failure::new(actum_api::error::NOT_FOUND, format!("there is no run {:?}", self.id));
            return self.of_run(global, unknown, out);
        }
        let stage = match Stage::find(&project.folder()?, &self.id) {
            Ok(stage) => stage,
            Err(e @ actum_workspace::Error::Unknown { .. }) => return self.of_run(global, e.into(), out),
            Err(e) => return Err(e.into()),
        };
        // A stage of a run has the run's name, and stands on the folder the run works on.
        let behind = match stage.id.contains('.') {
            true => Open::new(Project::find(global)?, out)?.run_behind(&stage.id)?,
            false => None,
        };
        let folder = folder::open_behind(&project, behind.as_ref().map(|(_, agreement)| agreement))?;
        let opened = workspace::open(&project, folder, out)?;
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

impl Diff {
    /// A run that is over and kept nothing: what it did is in its folder.
    fn of_run(self, global: &Global, unknown: Failure, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let run = match open.run(&self.id) {
            Ok(run) => run,
            Err(failure) if failure.row.name == actum_api::error::NOT_FOUND => return Err(unknown),
            Err(failure) => return Err(failure),
        };
        let path = open.left_by(&run)?.path("diff.patch");
        let patch = std::fs::read(&path).map_err(|_| {
            let failure = Failure::new(actum_api::error::NOT_FOUND, format!("there is no result of run {}", run.id));
            if run.state == RunState::Succeeded { failure.hint(crate::retention::GONE) } else { failure }
        })?;
        let deltas = std::fs::read(open.left_by(&run)?.path("recording.json")).ok();
        let deltas =
            deltas.and_then(|bytes| Recording::read(&bytes).ok()).map(Recording::into_objects).unwrap_or_default();
        if out.json {
            let patch = String::from_utf8_lossy(&patch);
            out.line(&json!({"run_id": run.id, "patch": patch, "deltas": deltas}).to_string());
        } else if self.stat {
            let row = |delta: &Value| {
                let word = |key: &str| delta[key].as_str().unwrap_or_default().to_owned();
                format!("{:6}  {}", word("op"), word("path"))
            };
            deltas.iter().for_each(|delta| out.line(&row(delta)));
            out.line(&count(deltas.len() as u64, "change", "changes"));
        } else {
            out.bytes(&patch);
            let paths = deltas.iter().filter_map(|delta| delta["path"].as_str()).map(Path::new);
            remark_on(paths).inspect(|line| out.remark(line));
        }
        Ok(0)
    }
}

/// Changes in the form that was asked for.
pub(crate) fn show(
    opened: &workspace::Opened,
    changes: &[actum_workspace::Change],
    stat: bool,
    out: &mut Out,
    json: impl FnOnce() -> Value,
) -> Result<(), Failure> {
    if out.json {
        out.line(&json().to_string());
    } else if stat {
        out.line(&deltas_text(changes));
    } else {
        out.bytes(&patch(opened.workspace.blobs(), changes)?);
        out.remark(&sum(changes));
        remark_on(deltas(changes).map(|change| change.path.as_path())).inspect(|line| out.remark(line));
    }
    Ok(())
}

pub(crate) fn remark_left_out(left_out: &[actum_workspace::TreePath], out: &Out) {
    if let Some(first) = left_out.first() {
        let many = count(left_out.len() as u64, "change is", "changes are");
        out.remark(&format!("{many} not published, because the path is ignored or lies in .git; the first: {first}"));
    }
}
