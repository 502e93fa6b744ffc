//! `actum receipt`: the signed receipt of a run, as it was given out. Checks nothing: that is what `actum verify` is for.

use actum_api::error;
use actum_ledger::Entry;
use clap::Args;

use super::Ended;
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The receipt, by its id; or the run, or the beginning of its id
    #[arg(required_unless_present = "run")]
    receipt: Option<String>,

    /// The run, and no receipt
    #[arg(long, value_name = "RUN", conflicts_with = "receipt")]
    run: Option<String>,
}

impl Show {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let named = match &self.receipt {
            Some(receipt) => run_of(&open, receipt)?,
            None => None,
        };
        let run = match named {
            Some(run) => open.run(&run)?,
            None => open.run(self.run.or(self.receipt).as_deref().unwrap_or_default())?,
        };
        let (path, run) = (open.left_by(&run)?.path("RECEIPT.json"), run.id);
        if !path.is_file() {
            let failure = Failure::new(error::NOT_FOUND, format!("the run {run} has no receipt"));
            return Err(failure.hint("a receipt is given when a run is over; `actum status RUN` shows where it stands"));
        }
        let envelope = Document::read(&path)?.json()?;
        out.result(&envelope, || serde_json::to_string_pretty(&envelope).unwrap_or_else(|_| envelope.to_string()));
        Ok(0)
    }
}

/// The run whose receipt has this id, by the ledger.
fn run_of(open: &Open, receipt: &str) -> Result<Option<String>, Failure> {
    let body = open.waiter.wait(open.waiter.journal.entry(&open.tenant, &format!("receipt:{receipt}")))?;
    let entry = body.as_deref().and_then(|body| Entry::open(body).ok());
    Ok(entry.and_then(|entry| entry.payload["runId"].as_str().map(str::to_owned)))
}
