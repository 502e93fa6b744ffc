//! `actum gateway`: models for programs outside a cell, metered and within a budget, until stopped.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use actum_api::error;
use actum_sandbox::Signals;
use actum_server::{Bridge, Models, Offered};
use clap::Args;
use serde_json::json;

use super::Ended;
use super::spend::amount;
use crate::args::Global;
use crate::failure::Failure;
use crate::model::alive::Alive;
use crate::model::gateway::Gateway;
use crate::model::{Authorized, Counter, Recording, Till};
use crate::project::Project;
use crate::run::shop::Open;
use crate::tool::secret;
use crate::ui::Out;
use crate::workspace::new_id;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen; on this machine only
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// What may be spent by way of it, if nothing else allows more
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<String>,

    /// In which currency
    #[arg(long, default_value = actum_ledger::spend::CURRENCY)]
    currency: String,

    /// The key callers have to bring, by reference: env:NAME, file:PATH; a new one if none is given
    #[arg(long, value_name = "REFERENCE")]
    key: Option<String>,

    /// For which agent it is, where permissions are for one
    #[arg(long, value_name = "ID")]
    agent: Option<String>,

    /// Adds every exchange to this file, a line of JSON each; a provider of type `recorded` answers from it. Lines are
    /// written as they come, but not waited for until they are on the disk; more than 64 MiB are not kept
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Models for whoever has a token of a server, by his tenant's permissions.
pub(crate) fn for_caller(open: &Open, name: &str) -> Result<(Arc<Gateway>, Alive), Failure> {
    let config = open.project.config()?;
    if config.providers.is_empty() {
        return Err(Failure::new(error::NOT_FOUND, "no provider of models is set up on this server"));
    }
    let places = (open.project.folder()?, open.project.root().to_owned());
    let counter = Counter::new(&open.waiter, &open.spend, &open.tenant, places, &config)?;
    let run = format!("gateway-{}", new_id());
    let alive = Alive::enter(&counter.home, &run, open.waiter.journal.store_id())?;
    let autopilot = Some(name.to_owned());
    let who = Authorized { run, autopilot, waits: true, is_served: true, ..Authorized::default() };
    Ok((Arc::new(Gateway::new(Some(Arc::new(Till::open(&counter, who))), None)), alive))
}

fn look_up(reference: &str) -> Result<String, Failure> {
    match secret::look_up(reference) {
        Some(Ok(key)) if key.len() >= KEY_BYTES_MIN => Ok(key),
        Some(Ok(_)) => Err(Failure::new(error::INPUT, format!("the key {reference} is shorter than {KEY_BYTES_MIN}"))),
        Some(Err(why)) => Err(Failure::new(error::INPUT, format!("the key {reference} {why}"))),
        None => Err(Failure::new(error::USAGE, "--key wants a reference").hint("write env:NAME or file:PATH")),
    }
}

/// What can be guessed opens a purse.
const KEY_BYTES_MIN: usize = 16;

impl Serve {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        if !self.listen.ip().is_loopback() {
            let failure = Failure::new(error::USAGE, format!("{} is not of this machine alone", self.listen));
            return Err(failure.hint("listen on 127.0.0.1: anyone with the key spends your money"));
        }
        let signals = Signals::catch().map_err(|e| crate::cell::not_built(&e.to_string()))?;
        let open = Open::new(Project::find(global)?, out)?;
        let config = open.project.config()?;
        if config.providers.is_empty() {
            let failure = Failure::new(error::CONFIG, "no provider is set up");
            return Err(failure.hint("add [providers.NAME] to actum.toml: `actum schema config` prints how"));
        }
        let places = (open.project.folder()?, open.project.root().to_owned());
        let counter = Counter::new(&open.waiter, &open.spend, &open.tenant, places, &config)?;
        let budget = self.budget.as_deref().map(|text| amount(text, &self.currency)).transpose()?;
        let run = format!("gateway-{}", new_id());
        let _alive = Alive::enter(&counter.home, &run, open.waiter.journal.store_id())?;
        let who = Authorized {
            run: run.clone(),
            autopilot: self.agent,
            budget: budget.map(|amount| (amount, self.currency.clone())),
            waits: true,
            ..Authorized::default()
        };
        let recording = self.record.as_deref().map(Recording::open).transpose()?.map(Arc::new);
        let till = Till::open(&counter, who).recorded(recording.clone());
        if budget.is_none() && open.waiter.wait(open.spend.authorizations(&open.tenant))?.is_empty() {
            out.remark(
                "no authorization to spend: what costs anything is denied until `actum spend authorize`, or --budget",
            );
        }
        let gateway = Arc::new(Gateway::new(Some(Arc::new(till)), None));
        let cannot = |e: std::io::Error| Failure::of_io(format!("cannot listen on {}: {e}", self.listen), &e);
        let listener = TcpListener::bind(self.listen).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let key = match &self.key {
            None => format!("actum-{}", new_id().replace('-', "")),
            Some(reference) => look_up(reference)?,
        };
        let models: Arc<dyn Models> = gateway.clone();
        let served =
            Bridge::serve(listener, Offered { tools: None, models: Some((key.clone(), models)) }).map_err(cannot)?;
        let base = format!("http://{address}");
        let shown = json!({
            "listen": address.to_string(), "key": key, "run_id": run,
            "environment": {
                "OPENAI_BASE_URL": format!("{base}/v1"), "OPENAI_API_KEY": key, "ANTHROPIC_BASE_URL": base,
                "ANTHROPIC_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": base, "GEMINI_API_KEY": key,
            },
        });
        out.result(&shown, || {
            let variables = shown["environment"].as_object().into_iter().flatten();
            variables
                .map(|(name, value)| format!("export {name}={}", value.as_str().unwrap_or_default()))
                .collect::<Vec<_>>()
                .join("\n")
        });
        signals.next();
        served.end();
        gateway.close();
        if let Some((count, why)) = recording.and_then(|recording| recording.lost()) {
            out.remark(&format!("{count} exchanges are not in the recording: {why}"));
        }
        Ok(0)
    }
}
