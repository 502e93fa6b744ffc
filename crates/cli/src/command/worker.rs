//! `actum worker`: executes runs of this project that were submitted elsewhere, until it is asked to stop.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::run::{LEASE, LEASE_MIN, work_on};
use super::{Ended, signals};
use crate::args::Global;
use crate::log::{self, Form, Level};
use crate::progress::Progress;
use crate::project::Project;
use crate::run::{LocalWorker, Open, local_workers};
use crate::ui::{Out, clean, table};

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the workers of this project on this machine
    Status,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Worker {
    #[command(subcommand)]
    verb: Option<Verb>,

    /// Runs at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    slots: u16,

    /// Seconds after which a worker that is not heard of has lost its runs
    #[arg(long, value_name = "SECONDS", default_value_t = LEASE.as_secs(), value_parser = clap::value_parser!(u64).range(LEASE_MIN.as_secs()..=3600))]
    lease: u64,

    /// Print a line for everything that happens, on stderr; ACTUM_LOG=error|warn|info|debug says how much
    #[arg(long, value_name = "FORM", num_args = 0..=1, default_missing_value = "json")]
    log: Option<Form>,
}

impl Worker {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        if let Some(Verb::Status) = self.verb {
            return status(&project, out);
        }
        let signals = signals(global)?;
        if let Some(form) = self.log {
            log::begin(form);
        }
        let open = Open::new(project, out)?;
        out.remark(&format!("works for {}; Ctrl-C ends it, its runs go on later", open.project.root().display()));
        let agents: Vec<String> = open.project.config()?.agents.keys().cloned().collect();
        let places = open.places()?;
        out.detail(&format!("serves {}; agents {}", places.join(" and "), agents.join(", ")));
        let started = json!({"places": places, "agents": agents, "slots": self.slots, "lease_seconds": self.lease});
        log::say(Level::Info, "worker.started", &started);
        let watch = Arc::new(Progress::unless_logged(out));
        work_on(&open, None, usize::from(self.slots), Duration::from_secs(self.lease), signals, watch)?;
        if out.json {
            out.line(&json!({"stopped": true}).to_string());
        }
        Ok(0)
    }
}

/// The workers of this project on this machine: whether they live, what they serve, and why one claims nothing.
fn status(project: &Project, out: &mut Out) -> Ended {
    let workers = local_workers(&project.root().join(".actum"));
    out.result(&json!({"workers": workers}), || {
        let row = |worker: &LocalWorker| {
            let state = match (&worker.report.unwell, worker.alive) {
                (_, false) => "gone".to_owned(),
                (Some(why), true) => format!("claims nothing: {}", clean(why)),
                (None, true) => "well".to_owned(),
            };
            vec![worker.worker.clone(), state, worker.report.places.join(" "), worker.report.agents.join(" ")]
        };
        match workers.is_empty() {
            true => "no workers".to_owned(),
            false => table(&["worker", "state", "places", "agents"], &workers.iter().map(row).collect::<Vec<_>>()),
        }
    });
    Ok(0)
}
