//! `actum approvals`, `actum approve`, `actum deny`: what waits for a person, and the answer.

use actum_api::error;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use super::tool::{TOOLS_URL, actor};
use crate::approval;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::ui::{Out, table};

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
}

#[derive(Debug, Args)]
pub(crate) struct Deny {
    /// The request, or the beginning of its id
    id: String,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let Self::List = self;
        outside_only()?;
        let found = approval::list(&Project::find(global)?.folder()?)?;
        out.result(&json!({"approvals": found}), || {
            let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
            let wants = |value: &Value| {
                let words = value["wants"].as_array().into_iter().flatten().filter_map(Value::as_str);
                words.collect::<Vec<_>>().join(", ")
            };
            // What is agreed to, as far as there is room; `--json` has all of it.
            let call = |value: &Value| value["call"].to_string().chars().take(60).collect::<String>();
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
        decide(global, out, &self.id, true, self.minutes)
    }
}

impl Deny {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        decide(global, out, &self.id, false, None)
    }
}

fn decide(global: &Global, out: &mut Out, id: &str, agreed: bool, minutes: Option<i64>) -> Ended {
    outside_only()?;
    let project = Project::find(global)?;
    let value = approval::decide(&project.folder()?, id, agreed, minutes, &actor(project.actor()))?;
    out.result(&value, || {
        format!("{} {}", value["state"].as_str().unwrap_or_default(), value["id"].as_str().unwrap_or_default())
    });
    Ok(0)
}

/// Who asks does not agree: in a cell there is nobody who may.
fn outside_only() -> Result<(), Failure> {
    match std::env::var_os(TOOLS_URL) {
        None => Ok(()),
        Some(_) => Err(Failure::new(error::TOOL_DENIED, "an agent in its cell agrees to nothing")),
    }
}
