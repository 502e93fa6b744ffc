//! `actum signature`: the catalogue of typed questions to models.

use std::path::PathBuf;

use actum_predict::Signature;
use clap::Subcommand;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::document::Document;
use crate::model::catalogue;
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Register signatures from files: for good, they never change
    Add {
        /// YAML or JSON files with one signature, or a list of them
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// What is registered
    List,
    /// One of them, with its hashes
    Show { id: String },
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        match self {
            Self::Add { files } => add(&files, global, out),
            Self::List => {
                let open = Open::new(Project::find(global)?, out)?;
                let all = catalogue::all(&open.waiter, &open.tenant)?;
                let shown: Vec<Value> = all.iter().map(summary).collect();
                out.result(&json!({"signatures": shown}), || {
                    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
                    let row = |value: &Value| {
                        vec![text(value, "signature_id"), text(value, "strategy_id"), text(value, "description")]
                    };
                    table(&["SIGNATURE", "STRATEGY", "DESCRIPTION"], &shown.iter().map(row).collect::<Vec<_>>())
                });
                Ok(0)
            }
            Self::Show { id } => {
                let open = Open::new(Project::find(global)?, out)?;
                let shown = whole(&catalogue::find(&open.waiter, &open.tenant, &id)?);
                out.result(&shown, || serde_json::to_string_pretty(&shown).unwrap_or_default());
                Ok(0)
            }
        }
    }
}

fn add(files: &[PathBuf], global: &Global, out: &mut Out) -> Ended {
    // All are read before the first is registered.
    let mut read = Vec::new();
    for file in files {
        let document = Document::read(file)?;
        let value = document.value()?;
        let many = match &value {
            Value::Array(many) => many.clone(),
            one => vec![one.clone()],
        };
        for one in many {
            read.push(Signature::read(&one).map_err(|flaws| document.flawed(&flaws, "signature"))?);
        }
    }
    let open = Open::new(Project::find(global)?, out)?;
    let mut added = Vec::new();
    for signature in &read {
        let is_new = catalogue::add(&open.waiter, &open.tenant, signature)?;
        let mut shown = summary(signature);
        shown["idempotent"] = json!(!is_new);
        added.push(shown);
    }
    out.result(&json!({"signatures": added}), || {
        let line = |one: &Value| {
            let word = if one["idempotent"] == true { "known already" } else { "registered" };
            format!("{word}  {}", one["signature_id"].as_str().unwrap_or_default())
        };
        added.iter().map(line).collect::<Vec<_>>().join("\n")
    });
    Ok(0)
}

fn summary(signature: &Signature) -> Value {
    let hashes = signature.hashes();
    json!({
        "signature_id": signature.id(), "description": signature.description,
        "strategy_id": signature.program.strategy.word(), "schema_hash": hashes.schema_hash,
        "prompt_hash": hashes.prompt_hash, "program_hash": hashes.program_hash,
    })
}

fn whole(signature: &Signature) -> Value {
    let mut shown = signature.to_json();
    if let (Some(fields), Value::Object(more)) = (shown.as_object_mut(), summary(signature)) {
        fields.extend(more);
    }
    shown
}
