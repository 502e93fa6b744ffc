//! `actum schema`: JSON Schemas of the documents that are exchanged, and the OpenAPI document of all that is served.

use actum_api::error;
use actum_contract::schema as contract;
use actum_ledger::schema as ledger;
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use crate::failure::Failure;
use crate::ui::Out;

/// Print the JSON Schema of a document
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// Which document
    #[arg(required_unless_present = "list")]
    name: Option<String>,

    /// List the names there are
    #[arg(long)]
    list: bool,
}

type Make = fn() -> Value;

const SCHEMAS: [(&str, Make); 13] = [
    ("adapter", actum_contract::tool::adapter_schema),
    ("artifact", actum_predict::artifact::schema),
    ("compile-job", actum_predict::compile::schema),
    ("config", crate::config::schema),
    ("execution", actum_contract::execution::schema),
    ("execution-config", contract::json_schema),
    ("execution-event", ledger::execution_event),
    ("guard", actum_predict::guard::schema),
    ("ledger-entry", ledger::ledger_entry),
    ("openapi", crate::face::openapi),
    ("signature", actum_predict::signature::schema),
    ("tool", actum_contract::tool::tool_schema),
    ("work", actum_contract::work::schema),
];

/// The names there are.
pub(crate) fn names() -> [&'static str; SCHEMAS.len()] {
    SCHEMAS.map(|(name, _)| name)
}

/// The schema of a name.
pub(crate) fn named(name: &str) -> Option<Value> {
    SCHEMAS.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
}

impl Schema {
    pub(crate) fn run(self, out: &mut Out) -> Ended {
        let names = names();
        let Some(wanted) = self.name.filter(|_| !self.list) else {
            out.result(&json!({"schemas": names}), || names.join("\n"));
            return Ok(0);
        };
        let schema = named(&wanted).ok_or_else(|| {
            let message = format!("there is no schema named {wanted:?}");
            Failure::new(error::NOT_FOUND, message).hint(format!("there are {}", names.join(", ")))
        })?;
        out.line(&serde_json::to_string_pretty(&schema).unwrap_or_else(|_| schema.to_string()));
        Ok(0)
    }
}
