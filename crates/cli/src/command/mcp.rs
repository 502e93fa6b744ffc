//! `actum mcp`: the commands and the registered tools of the project as an MCP server on stdin and stdout, with workers for
//! what is submitted. Whoever speaks to it is the user. Nothing but the protocol goes to stdout.

use std::sync::Arc;
use std::thread::Builder;

use actum_api::error;
use actum_api::route::{Need, Route};
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::journal::Journal;
use actum_ledger::run::Runs;
use actum_sandbox::Signals;
use actum_server::api::{Answer, Given};
use actum_server::{Commands, Stop};
use clap::Args;

use super::Ended;
use super::run::{LEASE, work_on};
use crate::args::Global;
use crate::face;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::project::Project;
use crate::run::shop::Open;
use crate::seat::Seat;
use crate::tool::bridge::Desk;
use crate::ui::{Out, note};
use crate::workspace::{LOCAL_TENANT, new_id};

/// In whose name things are done that a client asks for.
const ACTOR: &str = "mcp";

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// Only these tools; all that are registered if none is named
    #[arg(long = "tool", value_name = "ID")]
    tools: Vec<String>,

    /// Runs that are executed here at once; 0: none, workers elsewhere do it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=256))]
    workers: u16,

    /// Offer only what looks, and execute nothing
    #[arg(long)]
    read_only: bool,
}

impl Mcp {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let internal = |e: std::io::Error| Failure::new(error::INTERNAL, format!("cannot start: {e}"));
        // Before there are threads, which would get them instead.
        let signals = Signals::catch().map_err(|e| crate::cell::not_built(&e.to_string()))?;
        let seat = Arc::new(seat_in(&project, out)?);
        let open = || Open::new(Project::seated(Arc::clone(&seat)), out);
        let mut setting = super::exec::setting(&open()?, None)?;
        // Whoever speaks to it is one session, as long as he does.
        setting.session = Some(new_id());
        setting.tools = (!self.tools.is_empty()).then_some(self.tools);
        let desk = Arc::new(Desk::new(Some(setting), None));
        let stop = Arc::new(Stop::default());
        heed(signals, &stop, &desk).map_err(internal)?;

        let jobs = if self.read_only { 0 } else { usize::from(self.workers) };
        let (own, stopper) = Signals::own().map_err(internal)?;
        let workers = match jobs {
            0 => None,
            _ => {
                let (open, watch) = (open()?, Arc::new(Progress::unless_logged(out)));
                // The client is answered meanwhile: it takes a moment until the first cell is there.
                let work = move || {
                    let worked = work_on(&open, None, jobs, LEASE, Some(own), watch);
                    worked.inspect_err(|e| note(&format!("what is submitted is not executed here: {}", e.message)))
                };
                Some(Builder::new().name("actum-workers".into()).spawn(work).map_err(internal)?)
            }
        };
        let user = Arc::new(User { seat, is_read_only: self.read_only });
        let spoken = actum_server::serve_commands(user, desk, stop);
        // What is under way is handed back, and goes on wherever there is a worker.
        stopper.stop();
        if let Some(workers) = workers {
            // What went wrong there was told.
            let _ = workers.join();
        }
        spoken.map_err(|e| Failure::new(error::INTERNAL, format!("the conversation broke off: {e}")))?;
        Ok(0)
    }
}

fn seat_in(project: &Project, out: &Out) -> Result<Seat, Failure> {
    let internal = |message: String| Failure::new(error::INTERNAL, message);
    let runtime = Waiter::runtime().map_err(|e| internal(format!("cannot start: {e}")))?;
    let store = runtime.block_on(project.open(out, false))?;
    let (runs, journal): (Arc<dyn Runs>, Arc<dyn Journal>) = (store.clone(), store.clone());
    let waiter = Waiter::new(runtime, runs, journal);
    project.folder()?;
    let tenant = Tenant::new(LOCAL_TENANT).map_err(|e| internal(e.to_string()))?;
    Ok(Seat::new(store, waiter, tenant, ACTOR.to_owned(), Arc::clone(project.active_config())))
}

/// Ends the conversation when the user wants to stop; whoever asks twice does not want to wait.
fn heed(signals: Signals, stop: &Arc<Stop>, desk: &Arc<Desk>) -> std::io::Result<()> {
    let (stop, desk) = (Arc::clone(stop), Arc::clone(desk));
    let hear = move || {
        if signals.next() {
            stop.stop();
            desk.stop();
        }
        if signals.next() {
            std::process::exit(130);
        }
    };
    // It waits for as long as the process lives, and dies with it.
    Builder::new().name("actum-signals".into()).spawn(hear).map(drop)
}

/// Whoever started the program.
struct User {
    seat: Arc<Seat>,
    is_read_only: bool,
}

impl Commands for User {
    /// He may all of it on the command line too. What waits for a person is not offered.
    fn may(&self, need: Need) -> bool {
        need == Need::Read || !self.is_read_only
    }

    fn answer(&self, route: &'static Route, given: Given) -> Answer {
        face::run(Arc::clone(&self.seat), route, &given)
    }
}
