//! `actum approvals`, `actum approve`, `actum deny`: what waits for a person, and the answer.

use actum_api::error;
use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_ledger::spend::REASON_BYTES_MAX;
use clap::{Args, Subcommand};

use serde_json::{Value, json};

use super::Ended;
use super::tool::{TOOLS_URL, Why};
use crate::approval;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, clean, table};
use crate::workspace::new_id;

/// The type of the entries that say what was decided.
const TYPE: &str = "approval_decision";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// What waits, and what was decided
    List,
}

#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// The request, or the beginning of its id
    id: String,

    /// Agree for so many minutes, as often as it is wanted, instead of once within the hour
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(i64).range(1..=10_080))]
    minutes: Option<i64>,

    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub(crate) struct Deny {
    /// The request, or the beginning of its id
    id: String,

    #[command(flatten)]
    why: Why,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let Self::List = self;
        outside_only()?;
        let found = approval::list(&Project::find(global)?.folder()?)?;
        out.result(&json!({"approvals": found}), || {
            let text = |value: &Value, key: &str| clean(value[key].as_str().unwrap_or_default());
            let wants = |value: &Value| {
                let words = value["wants"].as_array().into_iter().flatten().filter_map(Value::as_str);
                clean(&words.collect::<Vec<_>>().join(", "))
            };
            // What is agreed to, as far as there is room; `--json` has all of it.
            let call = |value: &Value| clean(&value["call"].to_string()).chars().take(60).collect::<String>();
            let row = |v: &Value| {
                vec![text(v, "id"), text(v, "state"), text(v, "tool_id"), wants(v), text(v, "expires_at"), call(v)]
            };
            table(&["REQUEST", "STATE", "TOOL", "WANTS", "UNTIL", "CALL"], &found.iter().map(row).collect::<Vec<_>>())
        });
        Ok(0)
    }
}

impl Approve {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        decide(global, out, &self.id, true, self.minutes, self.why)
    }
}

impl Deny {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        decide(global, out, &self.id, false, None, self.why)
    }
}

fn decide(global: &Global, out: &mut Out, id: &str, agreed: bool, minutes: Option<i64>, why: Why) -> Ended {
    outside_only()?;
    let by = why.by();
    if by.reason.len() > REASON_BYTES_MAX {
        return Err(Failure::new(error::USAGE, format!("--reason is longer than {REASON_BYTES_MAX} bytes")));
    }
    let open = Open::new(Project::find(global)?, out)?;
    let value = approval::decide(&open.project.folder()?, id, agreed, minutes, by, &|decided| record(&open, decided))?;
    out.result(&value, || {
        format!("{} {}", value["state"].as_str().unwrap_or_default(), value["id"].as_str().unwrap_or_default())
    });
    Ok(0)
}

/// Puts a decision into the ledger: about what, who said it, and how long it holds. What the call was is bound by its digest.
fn record(open: &Open, decided: &Value) -> Result<(), Failure> {
    let mut payload = json!({
        "approvalId": decided["id"], "toolId": decided["tool_id"], "wants": decided["wants"], "binding": decided["binding"],
        "decision": decided["state"], "singleUse": decided["single_use"], "expiresAt": decided["expires_at"],
        "actor": decided["decided_by"], "reason": decided["reason"],
    });
    if let Some(token) = open.project.token() {
        payload["token"] = token.into();
    }
    // A name of its own each time: whoever could not move the request afterwards decides once more.
    let id = format!("approval:{}:{}", decided["id"].as_str().unwrap_or_default(), new_id());
    let entry = json!({
        "id": id, "tenantId": open.tenant.as_str(), "module": "approvals", "source": "actum", "type": TYPE,
        "payload": payload,
    });
    match open.waiter.wait(open.waiter.journal.append(draft::read_own(entry)))? {
        Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(()),
        Outcome::Refused(refusal) => Err(Failure::new(refusal.code.name(), refusal.message)),
    }
}

/// Who asks does not agree: in a cell there is nobody who may.
fn outside_only() -> Result<(), Failure> {
    match std::env::var_os(TOOLS_URL) {
        None => Ok(()),
        Some(_) => Err(Failure::new(error::TOOL_DENIED, "an agent in its cell agrees to nothing")),
    }
}
