//! `actum artifact`: ways of asking a signature, registered for good under the hash of all that is in them.

use std::path::{Path, PathBuf};

use actum_predict::artifact::Artifact;
use clap::Subcommand;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::model::{artifact, catalogue};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, clean, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Register artifacts from files: for good, they never change
    Add {
        /// YAML or JSON files with one artifact, or a list of them
        #[arg(required_unless_present = "id")]
        files: Vec<PathBuf>,
        /// Register the own way of this signature: its prompt, its program, no examples
        #[arg(long = "of", id = "id", value_name = "SIGNATURE")]
        of: Option<String>,
    },
    /// Print an artifact to begin with: the own way of a signature, with its hashes
    New {
        /// namespace/name.vN
        #[arg(id = "id", value_name = "SIGNATURE")]
        signature: String,
    },
    /// What is registered
    List {
        /// Only of this signature
        #[arg(long, value_name = "ID")]
        signature: Option<String>,
    },
    /// One of them, and whether it fits the signature registered here
    Show {
        /// Its id, or the beginning of it
        id: String,
    },
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        match self {
            Self::Add { files, of } => add(&files, of.as_deref(), global, out),
            Self::New { signature } => {
                let open = Open::new(Project::find(global)?, out)?;
                let signature = catalogue::find(&open.waiter, &open.tenant, &signature)?;
                let mut shown = Artifact::of(&signature).to_json();
                // What is changed gets another one.
                if let Some(fields) = shown.as_object_mut() {
                    fields.remove("artifact_id");
                }
                out.result(&shown, || serde_json::to_string_pretty(&shown).unwrap_or_default());
                Ok(0)
            }
            Self::List { signature } => {
                let open = Open::new(Project::find(global)?, out)?;
                let all = artifact::all(&open, signature.as_deref())?;
                let shown: Vec<Value> = all.iter().map(summary).collect();
                out.result(&json!({"artifacts": shown}), || list(&shown));
                Ok(0)
            }
            Self::Show { id } => {
                let open = Open::new(Project::find(global)?, out)?;
                let found = artifact::find(&open, &id)?;
                let mut shown = found.to_json();
                let (fits, why) = fits(&open, &found)?;
                shown["fits"] = json!(fits);
                if let Some(why) = why {
                    shown["misfit"] = json!(why);
                }
                out.result(&shown, || serde_json::to_string_pretty(&shown).unwrap_or_default());
                Ok(0)
            }
        }
    }
}

fn add(files: &[PathBuf], of: Option<&str>, global: &Global, out: &mut Out) -> Ended {
    // All are read before the first is registered.
    let mut read = Vec::new();
    for file in files {
        read_file(file, &mut read)?;
    }
    let open = Open::new(Project::find(global)?, out)?;
    if let Some(id) = of {
        read.push(Artifact::of(&catalogue::find(&open.waiter, &open.tenant, id)?));
    }
    let mut added = Vec::new();
    for one in &read {
        let is_new = artifact::add(&open, one)?;
        let mut shown = summary(one);
        shown["idempotent"] = json!(!is_new);
        let (fits, why) = fits(&open, one)?;
        shown["fits"] = json!(fits);
        if let Some(why) = why {
            shown["misfit"] = json!(why);
            if fits == Some(false) {
                out.aside(&format!("warning: {}: {}; predictions by it end as incompatible", one.id(), clean(&why)));
            }
        }
        added.push(shown);
    }
    out.result(&json!({"artifacts": added}), || {
        let line = |one: &Value| {
            let word = if one["idempotent"] == true { "known already" } else { "registered" };
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            format!("{word}  {}  {}", text("artifact_id"), text("signature_id"))
        };
        added.iter().map(line).collect::<Vec<_>>().join("\n")
    });
    Ok(0)
}

pub(super) fn read_file(file: &Path, read: &mut Vec<Artifact>) -> Result<(), Failure> {
    let document = Document::read(file)?;
    let many = match document.value()? {
        Value::Array(many) => many,
        one => vec![one],
    };
    for one in many {
        read.push(Artifact::read(&one).map_err(|flaws| document.flawed(&flaws, "artifact"))?);
    }
    Ok(())
}

/// Whether an artifact fits the signature as it is registered here, if it is; and why not.
fn fits(open: &Open, artifact: &Artifact) -> Result<(Option<bool>, Option<String>), Failure> {
    let Some(signature) = catalogue::registered(&open.waiter, &open.tenant, &artifact.signature_id)? else {
        return Ok((None, Some(format!("the signature {} is not registered here", artifact.signature_id))));
    };
    Ok(match artifact.bind(&signature) {
        Ok(_) => (Some(true), None),
        Err(why) => (Some(false), Some(format!("{}: {why}", why.reason_code))),
    })
}

pub(crate) fn summary(artifact: &Artifact) -> Value {
    json!({
        "artifact_id": artifact.id(), "signature_id": artifact.signature_id, "label": artifact.label,
        "strategy_id": artifact.program.strategy.word(), "model": artifact.program.model,
        "few_shot": artifact.shots.len(), "schema_hash": artifact.hashes.schema_hash,
        "prompt_hash": artifact.hashes.prompt_hash, "program_hash": artifact.hashes.program_hash,
    })
}

fn list(shown: &[Value]) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => clean(text),
        other => other.to_string(),
    };
    let keys = ["artifact_id", "signature_id", "strategy_id", "model", "few_shot", "label"];
    let row = |one: &Value| keys.iter().map(|key| text(&one[*key])).collect();
    let headings = ["ARTIFACT", "SIGNATURE", "STRATEGY", "MODEL", "EXAMPLES", "LABEL"];
    table(&headings, &shown.iter().map(row).collect::<Vec<_>>())
}
