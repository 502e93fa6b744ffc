//! `actum approvals`, `actum approve`, `actum deny`: what waits for a person, and the answer.

use std::io::{BufRead as _, IsTerminal as _};

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
use crate::terminal::Marker;
use crate::ui::{Out, clean, stdin_is_terminal, table};
use crate::workspace::new_id;

/// The type of the entries that say what was decided.
const TYPE: &str = "approval_decision";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// What waits, and what was decided
    List,
    /// Show one request with all that is agreed to, diffs included
    Show {
        /// The request, or the beginning of its id
        id: String,
    },
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
        outside_only()?;
        let home = Project::find(global)?.folder()?;
        if let Self::Show { id } = self {
            let found = approval::find(&home, &id)?;
            out.result(&found, || request_text(&found));
            return Ok(0);
        }
        let found = approval::list(&home)?;
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

/// Returns a request as a person reads it, with what a terminal would obey marked.
fn request_text(request: &Value) -> String {
    let text = |key: &str| clean(request[key].as_str().unwrap_or_default());
    let mut lines = vec![
        format!("request   {}", text("id")),
        format!("state     {}", text("state")),
        format!("tool      {}", text("tool_id")),
        format!("requested {}, until {}", text("requested_at"), text("expires_at")),
    ];
    if request["decided_by"].is_string() {
        lines.push(format!("decided   {} by {}: {}", text("decided_at"), text("decided_by"), text("reason")));
    }
    let wants = request["wants"].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.extend(wants.map(|want| format!("wants     {}", clean(want))));
    let mut call = request["call"].clone();
    let diff = call.as_object_mut().and_then(|call| call.remove("diff"));
    let mut marker = Marker::default();
    let mut marked = |text: &str| marker.mark(text.as_bytes()) + &marker.end();
    if call.as_object().is_some_and(|call| call.values().any(|value| !value.is_null())) {
        lines.push(marked(&format!("{call:#}")));
    }
    if let Some(diff) = diff.as_ref().and_then(Value::as_str) {
        lines.push(marked(diff));
    }
    lines.join("\n")
}

/// Shows the request on a terminal and asks once more. Scripts and servers name the request, which they have read.
fn confirm(open: &Open, id: &str, out: &Out) -> Result<(), Failure> {
    if open.project.seat().is_some() || !stdin_is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(());
    }
    out.aside(&request_text(&approval::find(&open.project.folder()?, id)?));
    out.aside("agree to this? type yes:");
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(Failure::new(error::USAGE, "the request was not agreed to").hint("`actum deny` refuses it")),
    }
}

fn decide(global: &Global, out: &mut Out, id: &str, agreed: bool, minutes: Option<i64>, why: Why) -> Ended {
    outside_only()?;
    let by = why.by();
    if by.reason.len() > REASON_BYTES_MAX {
        return Err(Failure::new(error::USAGE, format!("--reason is longer than {REASON_BYTES_MAX} bytes")));
    }
    let open = Open::new(Project::find(global)?, out)?;
    if agreed {
        confirm(&open, id, out)?;
    }
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
