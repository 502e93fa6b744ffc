//! `actum worker`: executes runs of this project that were submitted elsewhere, until it is asked to stop.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::run::{LEASE, LEASE_MIN, work_on};
use super::{Ended, signals};
use crate::args::Global;
use crate::config::Config;
use crate::log::{self, Form, Level};
use crate::progress::Progress;
use crate::project::Project;
use crate::run::Open;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Worker {
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
        let signals = signals(global)?;
        if let Some(form) = self.log {
            log::begin(form);
        }
        let open = Open::new(project, out)?;
        out.remark(&format!("works for {}; Ctrl-C ends it, its runs go on later", open.project.root().display()));
        let agents: Vec<String> = Config::read(open.project.root())?.agents.into_keys().collect();
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
