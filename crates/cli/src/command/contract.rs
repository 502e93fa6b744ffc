//! `actum contract`: the contract alone, without a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::change::{diff, diff_json};
use actum_contract::metadata::{self, Stored};
use actum_contract::{
    BadConfig, BadField, Contract, ExecutionConfig, Field, Layers, Partial, Profile, Resolved, resolve,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::{Out, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the contract of a run, or the one that a run started here and now would get
    #[command(after_help = "Example:\n  actum contract show --profile ci")]
    Show(Show),
    /// Print its hash
    #[command(after_help = "Example:\n  actum contract hash --profile ci --set plannerTimeoutMs=60000")]
    Hash(Request),
    /// Show the fields in which two contracts differ
    #[command(after_help = "Example:\n  actum contract diff full ci\n  actum contract diff mine.yaml full")]
    Diff(Diff),
    /// Tell where each value comes from, what it may be and what it does
    Explain(Request),
    /// Check the contract stored in a run's metadata, as a worker does before it runs anything
    Check(Check),
}

/// Fields of the execution config; those left out come from ACTUM_… variables, then from the defaults.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Start from this profile: full, ci or smoke
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Set one field; may be given several times
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,

    /// Read fields from a file (JSON, YAML or TOML); --profile and --set go over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The run, or the beginning of its id
    #[arg(conflicts_with_all = ["profile", "set", "config"])]
    run: Option<String>,

    #[command(flatten)]
    request: Request,
}

impl Show {
    fn run(self, global: &Global, out: &mut Out) -> Ended {
        let Some(prefix) = &self.run else { return self.request.show(out) };
        let open = Open::new(Project::find(global)?, out)?;
        let run = open.run(prefix)?;
        let contract = super::status::status(&open, &run)?["contract"].clone();
        let stored = actum_engine::read_agreement(&run.metadata);
        out.result(&contract, || match &stored {
            Ok((contract, ..)) => lines(contract),
            Err(bad) => format!("{}: {bad}", bad.code()),
        });
        Ok(if stored.is_ok() { 0 } else { 5 })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// A profile, a file of fields, or a file with the metadata of a run
    a: String,
    /// The other one
    b: String,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The metadata as JSON; - for stdin
    file: PathBuf,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        match self {
            Self::Show(show) => show.run(global, out),
            Self::Hash(request) => request.hash(out),
            Self::Explain(request) => request.explain(out),
            Self::Diff(diff) => diff.run(out),
            Self::Check(check) => check.run(out),
        }
    }
}

impl Request {
    /// Reads every source before it complains about any: one error lists every bad field.
    fn resolve(&self) -> Result<Resolved, Failure> {
        let document = self.config.as_deref().map(Document::read).transpose()?;
        let mut bad = Vec::new();
        let mut keep = |read: Result<Partial, BadConfig>| {
            read.unwrap_or_else(|found| {
                bad.extend(found.fields);
                *found.rest
            })
        };
        let from_file = match &document {
            Some(document) => keep(Partial::read(&document.value()?)),
            None => Partial::default(),
        };
        let profile = self.profile.iter().map(|p| format!("profile={p}"));
        let words: Vec<_> = profile.chain(self.set.iter().cloned()).collect();
        let requested = from_file.overlaid(&keep(Partial::read_words(words.iter().map(String::as_str))));
        let resolved = resolve(Layers { persisted: None, requested: &requested, env: &environment()? });
        match resolved {
            Ok(resolved) if bad.is_empty() => Ok(resolved),
            Ok(_) => Err(bad_config(bad, document.as_ref())),
            Err(found) => Err(bad_config([bad, found.fields].concat(), document.as_ref())),
        }
    }

    fn hash(self, out: &mut Out) -> Ended {
        let resolved = self.resolve()?;
        out.result(&to_json(&resolved), || Contract::resolved(&resolved).hash.to_hex());
        Ok(0)
    }

    fn show(self, out: &mut Out) -> Ended {
        let resolved = self.resolve()?;
        let contract = Contract::resolved(&resolved);
        out.result(&to_json(&resolved), || lines(&contract));
        Ok(0)
    }

    fn explain(self, out: &mut Out) -> Ended {
        let resolved = self.resolve()?;
        let fields: Vec<_> = Field::all()
            .map(|f| {
                json!({
                    "field": f.name(), "value": resolved.config.get(f).to_json(), "source": resolved.source(f).name(),
                    "range": f.range().to_string(), "variable": f.env(), "meaning": f.meaning(),
                })
            })
            .collect();
        let hash = Contract::resolved(&resolved).hash.to_hex();
        out.result(&json!({"hash": hash, "fields": fields}), || {
            let rows: Vec<_> = Field::all()
                .map(|f| {
                    let source = match resolved.source(f) {
                        actum_contract::Source::Env => f.env().unwrap_or_default().to_owned(),
                        actum_contract::Source::Preset => format!("preset {}", resolved.config.profile.name()),
                        other => other.name().to_owned(),
                    };
                    let value = resolved.config.get(f).to_string();
                    vec![f.name().to_owned(), value, source, f.range().to_string(), f.meaning().to_owned()]
                })
                .collect();
            let order = "A value comes from the first that has it: --set and --config, the profile they name, \
                         an ACTUM_… variable, the default.\nA contract that is persisted with a run is never touched by the environment.";
            let shown = table(&["FIELD", "VALUE", "FROM", "MAY BE", "WHAT IT DOES"], &rows);
            format!("contract {hash}\n\n{shown}\n\n{order}")
        });
        Ok(0)
    }
}

/// A contract, a line for each thing that was agreed.
fn lines(contract: &Contract) -> String {
    let m = &contract.material;
    let mut rows = vec![
        ("contract hash", contract.hash.to_hex()),
        ("schema version", m.execution_contract_schema_version.to_string()),
        ("determinism policy", m.determinism_policy_version.to_string()),
        ("planner policy", m.planner_policy_version.to_string()),
        ("correction recipe", m.correction_recipe_version.to_string()),
        ("validation policy", m.validation_policy_version.to_string()),
        ("randomness seed", m.randomness_seed.clone()),
        ("from environment", none_if_empty(&contract.fallback_names().join(", "))),
    ];
    rows.extend(Field::all().map(|f| (f.name(), contract.config().get(f).to_string())));
    rows.iter().map(|(name, value)| format!("{name:<30}{value}")).collect::<Vec<_>>().join("\n")
}

fn none_if_empty(text: &str) -> String {
    if text.is_empty() { "nothing".into() } else { text.into() }
}

fn to_json(resolved: &Resolved) -> Value {
    let contract = Contract::resolved(resolved);
    json!({
        "hash": contract.hash.to_hex(),
        "material": contract.material.to_json(),
        "effectiveExecutionConfig": contract.config(),
        "fallbackUsed": !contract.fallback_fields.is_empty(),
        "fallbackFields": contract.fallback_names(),
        "provenance": resolved.provenance_json(),
    })
}

/// The contract variables that are set, one for each field.
pub(crate) fn environment() -> Result<BTreeMap<Field, String>, Failure> {
    let mut set = BTreeMap::new();
    for field in Field::all() {
        let Some(name) = field.env() else { continue };
        match std::env::var(name) {
            Ok(value) => {
                set.insert(field, value);
            }
            Err(std::env::VarError::NotPresent) => {}
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(Failure::new(error::CONFIG, format!("{name} is not valid UTF-8")));
            }
        }
    }
    Ok(set)
}

/// The error about bad fields, with the place of the first that stands in the file.
pub(crate) fn bad_config(fields: Vec<BadField>, document: Option<&Document>) -> Failure {
    let place = fields.iter().find_map(|f| document.and_then(|d| d.place_of_key(&f.field)));
    let failure = Failure::from(BadConfig::new(fields));
    match place {
        Some(place) => failure.at(place),
        None => failure,
    }
}

impl Diff {
    fn run(self, out: &mut Out) -> Ended {
        let (a, b) = (config_of(&self.a)?, config_of(&self.b)?);
        let (hash_a, hash_b) = (Contract::of(a.clone()).hash, Contract::of(b.clone()).hash);
        let diff = diff(&a, &b);
        let fields: Vec<_> = diff_json(&diff)
            .as_array()
            .into_iter()
            .flatten()
            .map(|d| json!({"field": d["field"], "a": d["persisted"], "b": d["requested"]}))
            .collect();
        let json = json!({"identical": diff.is_empty(), "a": hash_a.to_hex(), "b": hash_b.to_hex(), "diff": fields});
        out.result(&json, || {
            if diff.is_empty() {
                return format!("identical: {hash_a}");
            }
            let rows: Vec<_> = diff
                .iter()
                .map(|d| vec![d.field.name().to_owned(), d.persisted.to_string(), d.requested.to_string()])
                .collect();
            table(&["FIELD", &self.a, &self.b], &rows)
        });
        Ok(0)
    }
}

/// The config that a word on the command line stands for.
fn config_of(word: &str) -> Result<ExecutionConfig, Failure> {
    let none = BTreeMap::new();
    let of = |partial: &Partial| resolve(Layers { persisted: None, requested: partial, env: &none });
    if Profile::ALL.iter().any(|p| p.name() == word) {
        return Ok(of(&Partial::read_words([format!("profile={word}").as_str()])?)?.config);
    }
    if !Path::new(word).exists() {
        let message = format!("{word:?} is neither a profile (full, ci, smoke) nor a file");
        return Err(Failure::new(error::NOT_FOUND, message));
    }
    let document = Document::read(Path::new(word))?;
    match document.value()? {
        Value::Object(members) if metadata::KEYS.iter().any(|key| members.contains_key(*key)) => {
            match metadata::check(&members)? {
                Stored::Contract(contract) => Ok(contract.config().clone()),
                Stored::Legacy => Ok(of(&Partial::default())?.config),
            }
        }
        value => {
            let partial = Partial::read(&value).map_err(|bad| bad_config(bad.fields, Some(&document)))?;
            Ok(of(&partial)?.config)
        }
    }
}

impl Check {
    fn run(self, out: &mut Out) -> Ended {
        let document = Document::read(&self.file)?;
        let Value::Object(members) = document.json()? else {
            return Err(Failure::new(error::INPUT, format!("{} is not an object of metadata", document.name)));
        };
        match metadata::check(&members)? {
            Stored::Legacy => {
                let text = "no contract is stored: one is attached on the first resume";
                out.result(&json!({"stored": "legacy"}), || text.into());
            }
            Stored::Contract(contract) => {
                let hash = contract.hash.to_hex();
                out.result(&json!({"stored": "contract", "hash": hash}), || format!("contract {hash} holds"));
            }
        }
        Ok(0)
    }
}
