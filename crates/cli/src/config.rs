//! `actum.toml`: what the user has settled for a project. Every key has a default; what is unknown or out of range is
//! refused, with its place. No secret stands in it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::agent::{self, Agent};
use actum_contract::digest::Digest;
use actum_contract::execution::{Host, Tool};
use actum_contract::id::{Tenant, check_name};
use actum_contract::part::Flaw;
use actum_predict::price::{self, Prices};
use actum_predict::provider::{self, Provider};
use actum_sandbox::Wall;
use serde_json::{Map, Value, json};

use crate::active_config;
use crate::contents::{self, BlobsConfig};
use crate::document::Document;
use crate::failure::Failure;
use crate::witness::LedgerConfig;

#[derive(Debug, Clone, Default)]
pub(crate) struct Config {
    pub sandbox: SandboxConfig,
    pub server: ServerConfig,
    pub tools: BTreeMap<String, Tool>,
    pub agents: BTreeMap<String, AgentConfig>,
    pub providers: Vec<Provider>,
    pub prices: Prices,
    pub retention: Retention,
    pub trust: TrustConfig,
    pub ledger: LedgerConfig,
    pub blobs: BlobsConfig,
    /// Other files that it names and that are read with it.
    pub files: Vec<PathBuf>,
    /// Of the file and those. None if there is no file.
    pub digest: Option<Digest>,
}

/// An agent, and to whom else it is offered. That is the project's to say at each submission, and no part of what a run is
/// agreed on.
#[derive(Debug, Clone)]
pub(crate) struct AgentConfig {
    pub agent: Agent,
    /// Other tenants that may run it; `*` stands for all of them.
    pub tenants: Vec<String>,
}

/// Stands for every tenant.
const ANYBODY: &str = "*";

impl AgentConfig {
    /// Whether another tenant may run it. It runs what he brings, so one that knows secrets or sees more of the machine than
    /// any cell does is offered to those only who are named.
    pub(crate) fn is_offered_to(&self, tenant: &Tenant) -> bool {
        let Agent { filesystem, network, environment, .. } = &self.agent;
        let has_secrets = environment.values().any(|value| value.starts_with("env:") || value.starts_with("file:"));
        let is_near = ["extended", "elevated"].contains(&filesystem.as_str()) || network == "open";
        let named = |name: &str| self.tenants.iter().any(|tenant| tenant == name);
        (named(tenant.as_str()) && tenant.as_str() != ANYBODY) || (named(ANYBODY) && !has_secrets && !is_near)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ServerConfig {
    /// Hosts that webhooks may reach though their addresses are not everybody's.
    pub webhook_hosts: Vec<Host>,
    /// What each tenant may keep: entries of the ledger, contents and files of runs. None: as much as there is room for.
    pub tenant_storage_bytes: Option<u64>,
    /// What each token may send to be kept.
    pub token_storage_bytes: Option<u64>,
}

/// Keys whose receipts are believed, beside the project's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrustConfig {
    /// Their ids, as `actum key show` prints them.
    pub keys: Vec<String>,
}

/// For how many days something is kept; nothing: for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Retention {
    pub runs_days: Option<u64>,
    pub snapshots_days: Option<u64>,
    pub traces_days: Option<u64>,
    pub dead_letters_days: Option<u64>,
}

const RETENTION: [(&str, &str); 4] = [
    ("runs_days", "logs, patches and recordings of runs that succeeded or were cancelled; receipts stay"),
    ("snapshots_days", "snapshots and publications that nothing refers to; what is older cannot be undone"),
    ("traces_days", "traces of questions to models that do not stand in their receipts"),
    ("dead_letters_days", "documents that the ledger refused"),
];
const DAYS_MAX: u64 = 36_500;

#[derive(Debug, Clone)]
pub(crate) struct SandboxConfig {
    /// The root of the project that it belongs to.
    pub project: Option<PathBuf>,
    /// Walls that may be missing.
    pub weaker: Vec<Wall>,
    /// Hosts of the network level `registry`.
    pub registries: Vec<Host>,
    /// Paths of the filesystem level `extended`, beside the usual ones.
    pub dependencies: Vec<PathBuf>,
    /// Addresses of names, as a hosts file; a name alone, or with the port that it holds for.
    pub hosts: BTreeMap<String, IpAddr>,
    /// What one execution may send and receive.
    pub egress_mb: u64,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            project: None,
            weaker: Vec::new(),
            registries: Vec::new(),
            dependencies: Vec::new(),
            hosts: BTreeMap::new(),
            egress_mb: EGRESS_MB,
        }
    }
}

/// The field of an agent that stands here only.
const TENANTS: &str = "tenants";

const EGRESS_MB: u64 = 1_024;
const EGRESS_MB_MAX: u64 = 1 << 20;

/// The largest quota of storage.
const STORAGE_MB_MAX: u64 = 1 << 30;

/// Sections that other parts of the program read.
const SECTIONS: [&str; 11] =
    ["agents", "providers", "prices", "tools", "sandbox", "store", "blobs", "server", "retention", "trust", "ledger"];

impl Config {
    /// Reads the file of a project, and the files that it names.
    pub(crate) fn of(root: &Path, document: &Document) -> Result<Self, Failure> {
        let value = document.value().map_err(without_secrets)?;
        let mut reader = Reader { root: root.to_owned(), ..Reader::default() };
        let config = reader.config(&value);
        match reader.flaws.first() {
            None => {
                let digest = Some(active_config::digest_of(document, root, &config.files));
                Ok(Self { digest, ..config })
            }
            Some((key, _)) => {
                let lines: Vec<String> = reader.flaws.iter().map(|(_, flaw)| flaw.clone()).collect();
                let failure = Failure::new(error::CONFIG, format!("actum.toml: {}", lines.join("\n  ")));
                let place = document.place_of_setting(key);
                let failure = match place {
                    Some(place) => failure.at(place),
                    None => failure,
                };
                Err(without_secrets(failure.hint("`actum schema config` prints what may stand there")))
            }
        }
    }
}

/// No secret should stand in the file; where one does all the same, it is not shown.
fn without_secrets(mut failure: Failure) -> Failure {
    const WORDS: [&str; 5] = ["key", "secret", "token", "password", "environment"];
    failure.place = failure.place.map(|place| {
        let line = place.source.to_ascii_lowercase();
        if WORDS.iter().any(|word| line.contains(word)) { Box::new(place.without_source()) } else { place }
    });
    failure
}

#[derive(Default)]
struct Reader {
    /// Where scripts of agents are looked for.
    root: PathBuf,
    /// Files that were read with it.
    files: Vec<PathBuf>,
    /// The key, for its place, and what is wrong.
    flaws: Vec<(String, String)>,
}

impl Reader {
    fn bad(&mut self, key: &str, at: &str, value: &Value, expected: &str) {
        let text: String = value.to_string().chars().take(80).collect();
        self.flaws.push((key.to_owned(), format!("{at}{key} is {text}, expected {expected}")));
    }

    fn table<'v>(&mut self, value: &'v Value, key: &str, at: &str) -> Option<&'v Map<String, Value>> {
        if value.as_object().is_none() {
            self.bad(key, at, value, "a table");
        }
        value.as_object()
    }

    fn texts(&mut self, value: &Value, key: &str, at: &str) -> Vec<String> {
        let texts: Option<Vec<String>> =
            value.as_array().and_then(|list| list.iter().map(|v| v.as_str().map(ToOwned::to_owned)).collect());
        texts.unwrap_or_else(|| {
            self.bad(key, at, value, "a list of texts");
            Vec::new()
        })
    }

    fn config(&mut self, value: &Value) -> Config {
        let mut config = Config::default();
        let Some(sections) = self.table(value, "the file", "") else { return config };
        for (name, section) in sections {
            match name.as_str() {
                "sandbox" => config.sandbox = self.sandbox(section),
                "server" => config.server = self.server(section),
                "tools" => config.tools = self.tools(section),
                "agents" => config.agents = self.agents(section),
                "blobs" => config.blobs = self.blobs(section),
                "providers" => config.providers = self.providers(section),
                "trust" => config.trust = self.trust(section),
                "ledger" => match LedgerConfig::read(section) {
                    Ok(ledger) => config.ledger = ledger,
                    Err(expected) => self.bad("ledger", "", section, &expected),
                },
                "retention" => config.retention = self.retention(section),
                "prices" => match Prices::read(section) {
                    Ok(prices) => config.prices = prices,
                    Err(flaws) => self.flawed(flaws),
                },
                known if SECTIONS.contains(&known) => {}
                _ => {
                    let near = SECTIONS.iter().find(|known| known.trim_end_matches('s') == name.trim_end_matches('s'));
                    let near = near.map(|known| format!("; did you mean {known}?")).unwrap_or_default();
                    let all = SECTIONS.join(", ");
                    self.flaws.push((name.clone(), format!("there is no section {name:?}; there are {all}{near}")));
                }
            }
        }
        self.note_secret_files(value);
        self.note_recordings(value);
        config.files = std::mem::take(&mut self.files);
        config
    }

    fn blobs(&mut self, section: &Value) -> BlobsConfig {
        let Some(keys) = self.table(section, "blobs", "") else { return BlobsConfig::default() };
        BlobsConfig::read(keys, &mut |key, value, expected| self.bad(key, "blobs.", value, expected))
    }

    fn trust(&mut self, section: &Value) -> TrustConfig {
        let mut trust = TrustConfig::default();
        let Some(entries) = self.table(section, "trust", "") else { return trust };
        for (key, value) in entries {
            match key.as_str() {
                "keys" => trust.keys = self.texts(value, key, "trust."),
                _ => self.bad(key, "trust.", value, "keys"),
            }
        }
        let is_id =
            |id: &&String| id.len() == 64 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if let Some(bad) = trust.keys.iter().find(|id| !is_id(id)) {
            self.bad(
                "keys",
                "trust.",
                &json!(bad),
                "ids of keys: 64 hexadecimal digits, as `actum key show` prints them",
            );
        }
        trust
    }

    fn retention(&mut self, section: &Value) -> Retention {
        let mut retention = Retention::default();
        let Some(keys) = self.table(section, "retention", "") else { return retention };
        for (key, value) in keys {
            let days = value.as_u64().filter(|days| *days <= DAYS_MAX);
            let is_known = RETENTION.iter().any(|(name, _)| name == key);
            if is_known && days.is_none() {
                self.bad(key, "retention.", value, &format!("a whole number of days up to {DAYS_MAX}; 0 keeps none"));
            }
            match key.as_str() {
                "runs_days" => retention.runs_days = days,
                "snapshots_days" => retention.snapshots_days = days,
                "traces_days" => retention.traces_days = days,
                "dead_letters_days" => retention.dead_letters_days = days,
                _ => self.bad(key, "retention.", value, &RETENTION.map(|(name, _)| name).join(" or ")),
            }
        }
        retention
    }

    fn agents(&mut self, section: &Value) -> BTreeMap<String, AgentConfig> {
        let Some(entries) = self.table(section, "agents", "") else { return BTreeMap::new() };
        let root = self.root.clone();
        let load = move |path: &str| {
            let document = Document::read(&root.join(expand(path.to_owned()))).map_err(|e| e.message)?;
            document.value().map_err(|e| e.message)
        };
        let mut agents = BTreeMap::new();
        for (id, entry) in entries {
            if !actum_contract::work::is_id(id) {
                self.bad(id, "agents.", &json!(id), "an id: lower-case letters, digits, dots, lines; at most 64");
                continue;
            }
            let mut entry = entry.clone();
            if let Some(script) = entry.get("script").and_then(Value::as_str) {
                self.note_file(script);
            }
            let offered = entry.as_object_mut().and_then(|fields| fields.remove(TENANTS));
            let tenants = offered.map(|value| self.tenants(&value, &format!("agents.{id}."))).unwrap_or_default();
            match Agent::read(&entry, &format!("agents.{id}"), &load) {
                Ok(agent) => drop(agents.insert(id.clone(), AgentConfig { agent, tenants })),
                Err(flaws) => self.flawed(flaws),
            }
        }
        agents
    }

    /// Notes a file that the configuration names, seen from the root: by its own name, and by where links lead.
    fn note_file(&mut self, text: &str) {
        let named = self.root.join(expand(text.to_owned()));
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        let real = named.canonicalize().unwrap_or_else(|_| named.clone());
        for (path, root) in [(named, self.root.clone()), (real, root)] {
            let inner = path.strip_prefix(&root).map_or(path.clone(), Path::to_owned);
            let inner: PathBuf = inner.components().filter(|part| *part != std::path::Component::CurDir).collect();
            if !self.files.contains(&inner) {
                self.files.push(inner);
            }
        }
    }

    /// Notes the files that providers answer from and record to.
    fn note_recordings(&mut self, document: &Value) {
        let providers = document.get("providers").and_then(Value::as_object);
        let fields = providers.into_iter().flat_map(|providers| providers.values());
        let named = fields.flat_map(|provider| ["file", "record"].map(|key| provider.get(key).and_then(Value::as_str)));
        named.flatten().for_each(|path| self.note_file(path));
    }

    /// Notes the files that secrets are read from, wherever they are named.
    fn note_secret_files(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                if let Some(path) = text.strip_prefix("file:") {
                    self.note_file(path);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.note_secret_files(item)),
            Value::Object(fields) => fields.values().for_each(|field| self.note_secret_files(field)),
            _ => {}
        }
    }

    fn tenants(&mut self, value: &Value, at: &str) -> Vec<String> {
        let names = self.texts(value, TENANTS, at);
        for name in names.iter().filter(|name| check_name(name).is_err()) {
            self.bad(TENANTS, at, &json!(name), "names of tenants, or * for all of them");
        }
        names
    }

    fn flawed(&mut self, flaws: Vec<Flaw>) {
        for flaw in flaws {
            self.flaws.push((flaw.field.clone(), flaw.to_string()));
        }
    }

    fn providers(&mut self, section: &Value) -> Vec<Provider> {
        let Some(entries) = self.table(section, "providers", "") else { return Vec::new() };
        let mut providers = Vec::new();
        for (id, entry) in entries {
            if !actum_contract::work::is_id(id) {
                self.bad(id, "providers.", &json!(id), "an id: lower-case letters, digits, dots, lines; at most 64");
                continue;
            }
            match Provider::read(id, entry, &format!("providers.{id}")) {
                Ok(provider) => providers.push(provider),
                Err(flaws) => self.flawed(flaws),
            }
        }
        providers
    }

    fn sandbox(&mut self, section: &Value) -> SandboxConfig {
        let mut config = SandboxConfig { project: Some(self.root.clone()), ..SandboxConfig::default() };
        let Some(keys) = self.table(section, "sandbox", "") else { return config };
        let at = "sandbox.";
        for (key, value) in keys {
            match key.as_str() {
                "weaker" => {
                    for word in self.texts(value, key, at) {
                        match Wall::named(&word).filter(|wall| Wall::MAY_BE_MISSING.contains(wall)) {
                            Some(wall) => config.weaker.push(wall),
                            None => {
                                let walls = Wall::MAY_BE_MISSING.map(Wall::word).join(" or ");
                                self.bad(key, at, &json!(word), &walls);
                            }
                        }
                    }
                }
                "registries" => {
                    for text in self.texts(value, key, at) {
                        match Host::parse(&text) {
                            Ok(host) => config.registries.push(host),
                            Err(e) => self.bad(key, at, &json!(text), &e.to_string()),
                        }
                    }
                }
                "dependencies" => {
                    let folders = self.texts(value, key, at).into_iter();
                    config.dependencies = folders.map(|text| self.root.join(expand(text))).collect();
                }
                "hosts" => {
                    let Some(names) = self.table(value, key, at) else { continue };
                    for (name, address) in names {
                        match address.as_str().and_then(|text| text.parse().ok()) {
                            Some(parsed) => drop(config.hosts.insert(name.to_ascii_lowercase(), parsed)),
                            None => self.bad(name, "sandbox.hosts.", address, "an address"),
                        }
                    }
                }
                "egress_mb" => match value.as_u64().filter(|n| (1..=EGRESS_MB_MAX).contains(n)) {
                    Some(number) => config.egress_mb = number,
                    None => self.bad(key, at, value, &format!("a whole number from 1 to {EGRESS_MB_MAX}")),
                },
                _ => self.bad(key, at, value, "weaker, registries, dependencies, hosts or egress_mb"),
            }
        }
        config
    }

    fn server(&mut self, section: &Value) -> ServerConfig {
        let mut config = ServerConfig::default();
        let Some(keys) = self.table(section, "server", "") else { return config };
        let at = "server.";
        for (key, value) in keys {
            match key.as_str() {
                "webhook_hosts" => {
                    for text in self.texts(value, key, at) {
                        match Host::parse(&text) {
                            Ok(host) => config.webhook_hosts.push(host),
                            Err(e) => self.bad(key, at, &json!(text), &e.to_string()),
                        }
                    }
                }
                "tenant_storage_mb" => config.tenant_storage_bytes = self.storage(key, value),
                "token_storage_mb" => config.token_storage_bytes = self.storage(key, value),
                _ => self.bad(key, at, value, "webhook_hosts, tenant_storage_mb or token_storage_mb"),
            }
        }
        config
    }

    /// A quota in bytes.
    fn storage(&mut self, key: &str, value: &Value) -> Option<u64> {
        let megabytes = value.as_u64().filter(|megabytes| (1..=STORAGE_MB_MAX).contains(megabytes));
        if megabytes.is_none() {
            self.bad(key, "server.", value, &format!("a whole number of megabytes from 1 to {STORAGE_MB_MAX}"));
        }
        megabytes.map(|megabytes| megabytes << 20)
    }

    fn tools(&mut self, section: &Value) -> BTreeMap<String, Tool> {
        let Some(entries) = self.table(section, "tools", "") else { return BTreeMap::new() };
        let mut tools = BTreeMap::new();
        for (id, entry) in entries {
            let at = format!("tools.{id}.");
            let mut tool = Tool { id: id.clone(), ..Tool::default() };
            let Some(keys) = self.table(entry, id, "tools.") else { continue };
            for (key, value) in keys {
                match key.as_str() {
                    "commands" => tool.commands = self.texts(value, key, &at),
                    "environment" => tool.environment = self.texts(value, key, &at),
                    "scoped" => tool.scoped = self.texts(value, key, &at),
                    "arguments" => match value.as_str() {
                        Some("plain") => tool.any_arguments = false,
                        Some("any") => tool.any_arguments = true,
                        _ => self.bad(key, &at, value, "plain or any"),
                    },
                    "oversized" => match value.as_str() {
                        Some("refuse") => tool.cuts_input = false,
                        Some("cut") => tool.cuts_input = true,
                        _ => self.bad(key, &at, value, "refuse or cut"),
                    },
                    "blake3" => match value.as_str().and_then(Digest::from_hex) {
                        Some(digest) => tool.pinned = Some(digest.to_hex()),
                        None => self.bad(key, &at, value, "64 hexadecimal digits"),
                    },
                    "status" => match value.as_str() {
                        Some("active" | "deprecated") => {}
                        Some("blocked") => tool.blocked = true,
                        _ => self.bad(key, &at, value, "active, deprecated or blocked"),
                    },
                    _ => {
                        let known = "commands, environment, scoped, arguments, oversized, blake3 or status";
                        self.bad(key, &at, value, known);
                    }
                }
            }
            tools.insert(id.clone(), tool);
        }
        tools
    }
}

/// `~` is the home of whoever runs this.
pub(crate) fn expand(text: String) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(text),
    }
}

/// The JSON Schema of the file, as far as it is read by now.
pub(crate) fn schema() -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let object = |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
    let sandbox = json!({
        "weaker": {"type": "array", "items": {"enum": Wall::MAY_BE_MISSING.map(Wall::word)}, "default": [],
            "description": "walls that may be missing; the evidence names those that were"},
        "registries": {"type": "array", "items": {"type": "string"}, "default": [],
            "description": "hosts of the network level registry"},
        "dependencies": {"type": "array", "items": {"type": "string"}, "default": [],
            "description": "paths of the filesystem level extended, beside the usual ones"},
        "hosts": {"type": "object", "additionalProperties": {"type": "string"}, "default": {},
            "description": "addresses of names, as in a hosts file; name:port holds for that port only"},
        "egress_mb": {"type": "integer", "minimum": 1, "maximum": EGRESS_MB_MAX, "default": EGRESS_MB,
            "description": "what one execution may send and receive"},
    });
    let tool = json!({
        "commands": texts, "environment": texts, "scoped": texts,
        "arguments": {"enum": ["plain", "any"], "default": "plain"},
        "oversized": {"enum": ["refuse", "cut"], "default": "refuse"},
        "blake3": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "status": {"enum": ["active", "deprecated", "blocked"], "default": "active"},
    });
    let mut properties = Map::new();
    for section in SECTIONS {
        properties.insert(section.to_owned(), json!({"type": "object"}));
    }
    let storage = |whose: &str| {
        json!({"type": "integer", "minimum": 1, "maximum": STORAGE_MB_MAX,
            "description": format!("megabytes that {whose} may keep; without it there is no quota")})
    };
    let server = json!({
        "tenant_storage_mb": storage("each tenant"), "token_storage_mb": storage("each token of a server"),
        "webhook_hosts": {"type": "array", "items": {"type": "string"}, "default": [],
            "description": "hosts that webhooks may reach though their addresses are not everybody's"},
    });
    let trust = json!({
        "keys": {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "default": [],
            "description": "ids of signing keys of other machines whose receipts are believed"},
    });
    properties.insert("trust".into(), object(trust));
    properties.insert("ledger".into(), object(crate::witness::schema()));
    properties.insert("sandbox".into(), object(sandbox));
    properties.insert("blobs".into(), contents::schema());
    properties.insert("server".into(), object(server));
    let days = |(name, about): (&str, &str)| {
        let about = format!("days to keep {about}; without it they are kept for good");
        (name.to_owned(), json!({"type": "integer", "minimum": 0, "maximum": DAYS_MAX, "description": about}))
    };
    properties.insert("retention".into(), object(Value::Object(RETENTION.map(days).into_iter().collect())));
    properties.insert("providers".into(), json!({"type": "object", "additionalProperties": provider::schema()}));
    properties.insert("prices".into(), price::schema());
    let mut agent = agent::schema();
    agent["properties"][TENANTS] = json!({"type": "array", "items": {"type": "string", "minLength": 1}, "default": [],
        "description": "other tenants that may run it; * is all of them, unless it knows secrets or has filesystem extended, elevated or network open"});
    properties.insert("agents".into(), json!({"type": "object", "additionalProperties": agent}));
    properties.insert("tools".into(), json!({"type": "object", "additionalProperties": object(tool)}));
    let mut schema = object(Value::Object(properties));
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("actum.toml");
    schema
}

#[cfg(test)]
mod tests {
    use actum_testkit::folder::Folder;

    use super::*;

    /// To whom an agent is offered is no part of what it is: what was agreed on with it keeps its hash.
    #[test]
    fn an_offer_is_no_part_of_the_agent() {
        let folder = Folder::new();
        let agent = |fields: &str| {
            folder.file("actum.toml", format!("[agents.a]\ntype = \"command\"\ncommand = [\"x\"]\n{fields}"));
            active_config::ActiveConfig::at(folder.path()).current().map(|config| config.agents["a"].clone())
        };
        let (plain, offered) = (agent("").unwrap(), agent("tenants = [\"acme\", \"*\"]").unwrap());
        assert_eq!((plain.tenants.len(), offered.tenants.len()), (0, 2));
        assert_eq!(plain.agent, offered.agent);
        for bad in ["tenants = \"*\"", "tenants = [\"\"]", "tenants = [1]"] {
            let failure = agent(bad).unwrap_err();
            assert!(failure.message.contains("agents.a.tenants"), "{bad}: {}", failure.message);
        }
        // Whoever is called like everybody is not.
        let tenant = |name: &str| Tenant::new(name).unwrap();
        let near = agent("filesystem = \"extended\"\ntenants = [\"*\"]").unwrap();
        assert!(!near.is_offered_to(&tenant("*")) && !near.is_offered_to(&tenant("acme")));
        assert!(offered.is_offered_to(&tenant("other")) && !plain.is_offered_to(&tenant("other")));
    }
}
