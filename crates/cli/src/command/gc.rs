//! `actum store gc`: removes what is older than actum.toml keeps it, and contents that nothing refers to.

use clap::Args;

use super::Ended;
use crate::args::Global;
use crate::command::snapshot;
use crate::project::Project;
use crate::retention::{Freed, Plan, Turn};
use crate::run::Open;
use crate::ui::{Out, count};
use crate::workspace::now_ms;

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Only tell what would be removed
    #[arg(long)]
    dry_run: bool,
}

impl Gc {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let retention = project.config()?.retention;
        let _turn = Turn::wait(&project)?;
        let open = Open::new(project, out)?;
        let plan = Plan { retention, now_ms: now_ms(), dry: self.dry_run, sweeps: true };
        let mut freed = Freed::default();
        plan.files(&open, out, &mut freed)?;
        plan.traces(&open, &mut freed)?;
        plan.rows(&open, &*open.store, &mut freed)?;
        let mut shown = freed.to_json();
        shown["dry_run"] = self.dry_run.into();
        out.result(&shown, || text(&freed, self.dry_run));
        Ok(0)
    }
}

fn text(freed: &Freed, dry: bool) -> String {
    let parts = [
        (freed.runs, "folder of a run", "folders of runs"),
        (freed.executions, "folder of an execution", "folders of executions"),
        (freed.snapshots, "snapshot", "snapshots"),
        (freed.publications, "publication", "publications"),
        (freed.contents, "content", "contents"),
        (freed.bases, "base of stages", "bases of stages"),
        (freed.traces, "trace", "traces"),
        (freed.answers, "kept answer", "kept answers"),
        (freed.letters, "dead letter", "dead letters"),
    ];
    let parts = parts.into_iter().filter(|(n, ..)| *n > 0).map(|(n, one, many)| count(n, one, many));
    let parts: Vec<String> = parts.collect();
    let verb = if dry { "would remove" } else { "removed" };
    match parts.is_empty() {
        true => format!("{verb} nothing"),
        false => format!("{verb} {}; {}", parts.join(", "), snapshot::size(freed.bytes())),
    }
}
