//! Where contents lie: the project's folder, and the object store behind it that `[blobs]` of actum.toml or `ACTUM_BLOBS`
//! names. Called by `Project` and whoever keeps traces and evidence. It shows no secret, and keeps none longer than it is used.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_store::blob::{Far, Folder as Blobs};
use serde_json::{Map, Value, json};

use crate::document::Document;
use crate::failure::Failure;
use crate::project::is_inside;
use crate::seat;
use crate::tool::secret;

/// Names the object store in the environment; counts more than the file.
const VARIABLE: &str = "ACTUM_BLOBS";
/// Variables that every program for an object store knows.
const AMBIENT: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Plain texts beside the url.
const TEXTS: [&str; 3] = ["endpoint", "region", "account_name"];
const SWITCHES: [&str; 3] = ["allow_http", "path_style", "skip_signature"];
/// Secrets, each a reference.
const SECRETS: [&str; 7] = [
    "access_key_id",
    "secret_access_key",
    "session_token",
    "account_key",
    "sas_token",
    "bearer_token",
    "service_account_key",
];

/// What lies in folders of its own: nothing that is kept on one shelf is found on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shelf {
    /// Files and trees of snapshots.
    Blobs,
    /// What was asked and answered, where it is too long for a receipt.
    Traces,
    /// Examples and results of evaluations.
    Evidence,
    /// What runs on shared workspaces leave, and have heard of their tools.
    Files,
}

impl Shelf {
    const fn word(self) -> &'static str {
        match self {
            Self::Blobs => "blobs",
            Self::Traces => "traces",
            Self::Evidence => "evidence",
            Self::Files => "files",
        }
    }
}

/// `[blobs]` as it stands in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlobsConfig {
    url: Option<String>,
    /// Earlier names of the same object store, as runs were placed there.
    pub also: Vec<String>,
    options: Vec<(String, String)>,
}

impl BlobsConfig {
    /// What is wrong goes to `bad`: key, value as far as it may be shown, what was expected.
    pub(crate) fn read(section: &Map<String, Value>, bad: &mut dyn FnMut(&str, &Value, &str)) -> Self {
        let mut config = Self::default();
        for (key, value) in section {
            let name = key.as_str();
            let text = value.as_str().filter(|text| !text.is_empty());
            match (text, value.as_bool()) {
                // It is looked at as a whole when it is opened. What it holds may be a secret, if only by mistake.
                (Some(url), _) if name == "url" => config.url = Some(url.to_owned()),
                (Some(text), _) if TEXTS.contains(&name) => config.options.push((key.clone(), text.to_owned())),
                (None, None) if name == "also" && is_list_of_texts(value) => {
                    let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                    config.also = names.map(ToOwned::to_owned).collect();
                }
                (_, Some(yes)) if SWITCHES.contains(&name) => config.options.push((key.clone(), yes.to_string())),
                (Some(text), _) if SECRETS.contains(&name) && is_reference(text) => {
                    config.options.push((key.clone(), text.to_owned()));
                }
                _ if name == "also" => bad(key, value, "a list of texts, as `actum status RUN` shows places"),
                _ if name == "url" => bad(key, &json!("no text"), "s3://…, gs://…, az://… or file:///…"),
                _ if TEXTS.contains(&name) => bad(key, value, "a text"),
                _ if SWITCHES.contains(&name) => bad(key, value, "true or false"),
                _ if SECRETS.contains(&name) => {
                    bad(key, &json!("something else"), "a reference: env:NAME or file:PATH")
                }
                _ => {
                    let known = [&["url", "also"][..], &TEXTS, &SWITCHES, &SECRETS].concat().join(", ");
                    bad(key, &json!("there"), &known);
                }
            }
        }
        config
    }

    /// The section of a project's file, without looking at the others.
    pub(crate) fn of(document: &Document) -> Result<Self, Failure> {
        let value = document.value()?;
        let Some(section) = value.get("blobs") else { return Ok(Self::default()) };
        let mut flaws = Vec::new();
        let mut bad = |key: &str, value: &Value, expected: &str| {
            flaws.push(format!("blobs.{key} is {value}, expected {expected}"));
        };
        let config = match section.as_object() {
            Some(section) => Self::read(section, &mut bad),
            None => {
                bad("", &json!("something else"), "a table");
                Self::default()
            }
        };
        match flaws.is_empty() {
            true => Ok(config),
            false => Err(Failure::new(error::CONFIG, format!("actum.toml: {}", flaws.join("\n  ")))),
        }
    }
}

fn is_list_of_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(|one| one.as_str().is_some_and(|text| !text.is_empty())))
}

fn is_reference(text: &str) -> bool {
    text.starts_with("env:") || text.starts_with("file:")
}

/// The JSON Schema of the section.
pub(crate) fn schema() -> Value {
    let mut properties = Map::new();
    let url = "where contents are kept beside the local folder: s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER";
    properties.insert("url".into(), json!({"type": "string", "description": url}));
    let also = "earlier names of the same object store, so that runs that were placed there are found";
    properties.insert("also".into(), json!({"type": "array", "items": {"type": "string"}, "description": also}));
    for name in TEXTS {
        properties.insert(name.into(), json!({"type": "string"}));
    }
    for name in SWITCHES {
        properties.insert(name.into(), json!({"type": "boolean", "default": false}));
    }
    for name in SECRETS {
        let description = "a reference: env:NAME or file:PATH";
        properties
            .insert(name.into(), json!({"type": "string", "pattern": "^(env|file):", "description": description}));
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// The object store behind the project at `root`, if there is one. Asks it nothing.
pub(crate) fn far(config: BlobsConfig, root: &Path) -> Result<Option<Far>, Failure> {
    let named = std::env::var(VARIABLE).ok().filter(|url| !url.is_empty());
    let Some(url) = named.or(config.url) else { return Ok(None) };
    if let Some(folder) = url.strip_prefix("file://").map(Path::new)
        && is_inside(folder, root)
        && !is_inside(folder, &root.join(".actum"))
    {
        let message = format!("the object store {} is in the project, where runs can replace it", folder.display());
        return Err(Failure::new(error::CONFIG, message).hint("move it out of the project, or below .actum"));
    }
    let mut options = Vec::new();
    if !url.starts_with("file:") {
        let ambient = std::env::vars().filter(|(name, _)| AMBIENT.iter().any(|vendor| name.starts_with(vendor)));
        options.extend(ambient.map(|(name, value)| (name.to_ascii_lowercase(), value)));
    }
    for (key, value) in config.options {
        let value = match SECRETS.contains(&key.as_str()).then(|| secret::look_up(&value)).flatten() {
            None => value,
            Some(Ok(secret)) if !secret.is_empty() => secret,
            Some(found) => {
                let why = found.err().unwrap_or("is empty");
                let message = format!("blobs.{key} of actum.toml, which is {value}, {why}");
                return Err(
                    Failure::new(error::CONFIG, message).hint("set it where actum runs; it is never written down")
                );
            }
        };
        options.push((key, value));
    }
    options.sort();
    connected(&url, &options).map(Some)
}

/// One line to each object store for the whole process: connections are worth keeping. Keys that have changed make a new one.
fn connected(url: &str, options: &[(String, String)]) -> Result<Far, Failure> {
    static LINES: Mutex<BTreeMap<String, (Digest, Far)>> = Mutex::new(BTreeMap::new());
    let print = Digest::blake3(json!(options).to_string().as_bytes());
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, far)) = lines.get(url).filter(|(known, _)| *known == print) {
        return Ok(far.clone());
    }
    let far = Far::open(url, options).map_err(|e| {
        Failure::new(error::CONFIG, format!("the object store cannot be used: {e}"))
            .hint("it is named by [blobs] of actum.toml or by ACTUM_BLOBS; docs/object-stores.md shows how")
    })?;
    lines.insert(url.to_owned(), (print, far.clone()));
    Ok(far)
}

/// The contents of a tenant of the project at `root`. `home`: the folder in which it is kept.
pub(crate) fn open(
    config: BlobsConfig,
    root: &Path,
    home: &Path,
    tenant: &Tenant,
    shelf: Shelf,
) -> Result<Blobs, Failure> {
    let folder = home.join(shelf.word());
    match far(config, root)? {
        Some(far) => {
            let within = far.within(&format!("{}/{}", seat::folder_of(tenant), shelf.word()));
            Ok(Blobs::open_before(&folder, Arc::new(within))?)
        }
        None => Ok(Blobs::open(&folder)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stand_there_by_reference_and_are_not_shown() {
        let read = |section: Value| {
            let mut flaws = Vec::new();
            let config = BlobsConfig::read(section.as_object().unwrap(), &mut |key, value, expected| {
                flaws.push(format!("{key} {value} {expected}"));
            });
            (config, flaws)
        };
        let (config, flaws) =
            read(json!({"url": "s3://b", "allow_http": true, "access_key_id": "env:ID", "region": "x"}));
        assert!(flaws.is_empty() && config.url.as_deref() == Some("s3://b"), "{flaws:?}");
        assert!(config.options.contains(&("allow_http".into(), "true".into())));
        for bad in [
            json!({"secret_access_key": "hunter2"}),
            json!({"secret_access_key": 7}),
            json!({"hunter2": "hunter2"}),
            json!({"url": ["hunter2"]}),
            json!({"url": ""}),
            json!({"allow_http": "true"}),
            json!({"region": 1}),
        ] {
            let (_, flaws) = read(bad.clone());
            assert_eq!(flaws.len(), 1, "{bad}");
            assert!(!flaws[0].contains("\"hunter2\""), "{flaws:?}");
        }
    }
}
