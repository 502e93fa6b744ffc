//! Reading a tool's entry from a document: every flaw is found, not only the first.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::settlement::settlement;
use super::{Approval, Checksum, DataAccess, Entry, Injection, Operation, Provenance, Scope, Server, Status, is_id};
use crate::execution::{Host, LIMITS, is_dangerous, limit};
use crate::part::{Flaw, HIDDEN, Part};

const NOUN: &str = "a tool";

impl Entry {
    pub fn read(document: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let entry = read(&mut Part::new(document, "", NOUN, &mut flaws));
        if flaws.is_empty() { Ok(entry) } else { Err(flaws) }
    }
}

/// An id, or a flaw.
pub(super) fn id(part: &mut Part<'_>, field: &str) -> String {
    let text = part.required(field);
    if !text.is_empty() && !is_id(&text) {
        part.bad(field, &json!(text), "an id: letters, digits, dots and lines, at most 64");
    }
    text
}

/// A version without range.
pub(super) fn version(part: &mut Part<'_>) -> String {
    // YAML reads 1.0 as a number; what was meant cannot be known.
    let text = part.required("version");
    if !text.is_empty() && semver::Version::parse(&text).is_err() {
        part.bad("version", &json!(text), "a semantic version such as \"1.0.0\"");
    }
    text
}

pub(super) fn word<T>(part: &mut Part<'_>, field: &str, default: T, named: impl Fn(&str) -> Option<T>, all: &str) -> T {
    match part.text(field) {
        None => default,
        Some(text) => named(&text).unwrap_or_else(|| {
            part.bad(field, &json!(text), all);
            default
        }),
    }
}

/// Limits that are stated, by their names.
pub(super) fn limits(part: &mut Part<'_>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for known in LIMITS {
        let Some(value) = part.take(known.name) else { continue };
        match value.as_u64().filter(|amount| limit(known.name).allows(*amount)) {
            Some(amount) => drop(found.insert(known.name.to_owned(), amount)),
            None => part.bad(known.name, &value, &limit(known.name).range()),
        }
    }
    found
}

/// A host as it stands in a list, or the host of an address of the web.
pub(super) fn host(text: &str) -> Option<Host> {
    match text.split_once("://") {
        None => Host::parse(text).ok(),
        Some((scheme, rest)) => {
            let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let place = place.rsplit('@').next().unwrap_or_default();
            match (scheme, Host::parse(place).ok()) {
                ("http" | "https", found) => found,
                _ => None,
            }
        }
    }
}

pub(super) fn hosts(part: &mut Part<'_>, field: &str) -> Vec<Host> {
    let texts = part.texts(field);
    let mut found = Vec::new();
    for text in texts {
        match host(&text) {
            Some(host) => found.push(host),
            None => part.bad(field, &json!(text), "a name, *.name or an address, with or without a port"),
        }
    }
    found
}

pub(super) fn part_of<T>(part: &mut Part<'_>, field: &str, read: impl FnOnce(&mut Part<'_>) -> T) -> T {
    let value = part.take(field).unwrap_or(Value::Null);
    let at = part.name(field);
    let mut inner = Part::new(&value, &at, NOUN, part.flaws);
    let found = read(&mut inner);
    inner.finish();
    found
}

fn read(part: &mut Part<'_>) -> Entry {
    let tool_id = id(part, "tool_id");
    let name = part.required("name");
    let version = version(part);
    let description = part.text("description").unwrap_or_default();
    let owner = part.required("owner");
    let provenance = part_of(part, "provenance", provenance);
    if !part.has("scope") {
        part.bad("scope", &Value::Null, "what it may do at most: `{}` is nothing");
    }
    let scope = part_of(part, "scope", scope);
    let approval = match part.take("approval") {
        None => None,
        Some(value) => {
            let mut inner = Part::new(&value, "approval", NOUN, part.flaws);
            let approval = Approval {
                approver: inner.required("approver"),
                date: date(&mut inner, "date").unwrap_or_else(|| inner.required("date")),
                evidence: inner.text("evidence").unwrap_or_default(),
            };
            inner.finish();
            Some(approval)
        }
    };
    let status = word(part, "status", Status::Active, Status::named, "active, experimental, deprecated or blocked");
    let (last_review, next_review) = (date(part, "last_review"), date(part, "next_review"));
    let operations = operations(part);
    let servers = servers(part, &scope);
    let secrets = references(part, "secrets");
    // A secret becomes a variable of the tool's programs, and these change what is run.
    for name in secrets.keys().filter(|name| is_dangerous(name) && !scope.scoped.contains(name)) {
        part.bad(
            &format!("secrets.{name}"),
            &json!(HIDDEN),
            "a variable that changes no program, or one in scope.scoped",
        );
    }
    let injections = injections(part, &secrets, &scope);
    let first_use = part.switch("approve_first_use").unwrap_or(false);
    let settlement = part.take("settlement").map(|value| {
        let mut inner = Part::new(&value, "settlement", NOUN, part.flaws);
        let found = settlement(&mut inner);
        inner.finish();
        found
    });
    part.finish();
    Entry {
        tool_id,
        name,
        version,
        description,
        owner,
        provenance,
        scope,
        approval,
        status,
        last_review,
        next_review,
        operations,
        servers,
        secrets,
        injections,
        first_use,
        settlement,
    }
}

fn date(part: &mut Part<'_>, field: &str) -> Option<String> {
    let text = part.text(field)?;
    let is_date = text.len() >= 10
        && text
            .bytes()
            .take(10)
            .enumerate()
            .all(|(at, b)| if at == 4 || at == 7 { b == b'-' } else { b.is_ascii_digit() });
    if !is_date {
        part.bad(field, &json!(text), "a date such as \"2026-01-16\"");
    }
    Some(text)
}

fn provenance(part: &mut Part<'_>) -> Provenance {
    let checksum = part.text("checksum").and_then(|text| {
        let (kind, digits) = text.split_once(':').unwrap_or(("sha256", &text));
        let is_digest = digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match (kind, is_digest) {
            ("blake3", true) => Some(Checksum::Blake3(digits.to_owned())),
            ("sha256", true) => Some(Checksum::Sha256(digits.to_owned())),
            _ => {
                part.bad("checksum", &json!(text), "blake3: or sha256: and 64 hexadecimal digits");
                None
            }
        }
    });
    Provenance {
        repo_url: part.text("repo_url").unwrap_or_default(),
        commit_or_tag: part.text("commit_or_tag").unwrap_or_default(),
        checksum,
        license: part.required("license"),
    }
}

fn scope(part: &mut Part<'_>) -> Scope {
    let commands = part.texts("commands");
    let endpoints = hosts(part, "endpoints");
    let data_access = word(part, "data_access", DataAccess::Read, DataAccess::named, "none, read or write");
    let network = match part.take("network") {
        None => false,
        Some(Value::Bool(on)) => on,
        Some(Value::String(text)) if text == "on" || text == "off" => text == "on",
        Some(other) => {
            part.bad("network", &other, "on or off");
            false
        }
    };
    let filesystem: Vec<String> = part
        .texts("filesystem")
        .into_iter()
        .map(|path| if path == "repo root" { ".".to_owned() } else { path })
        .collect();
    let is_outside = |path: &&String| {
        path.starts_with('/') || path.split('/').any(|name| name == ".." || name == ".actum") || path.is_empty()
    };
    for path in filesystem.iter().filter(is_outside) {
        part.bad("filesystem", &json!(path), "paths of the project, without `..`, `.actum` or a `/` before them");
    }
    let arguments = part.text("arguments");
    if arguments.as_deref().is_some_and(|word| word != "plain" && word != "any") {
        part.bad("arguments", &json!(arguments), "plain or any");
    }
    let oversized = part.text("oversized");
    if oversized.as_deref().is_some_and(|word| word != "refuse" && word != "cut") {
        part.bad("oversized", &json!(oversized), "refuse or cut");
    }
    let limits = part_of(part, "limits", limits);
    Scope {
        commands,
        endpoints,
        data_access,
        network,
        filesystem,
        environment: part.texts("environment"),
        scoped: part.texts("scoped"),
        any_arguments: arguments.as_deref() == Some("any"),
        cuts_input: oversized.as_deref() == Some("cut"),
        limits,
        elevated: part.switch("elevated").unwrap_or(false),
        open: part.switch("open").unwrap_or(false),
    }
}

fn operations(part: &mut Part<'_>) -> BTreeMap<String, Operation> {
    let mut found = BTreeMap::new();
    let Some(value) = part.take("operations") else { return found };
    let Some(fields) = value.as_object() else {
        part.bad("operations", &value, "an object of operations");
        return found;
    };
    for (name, value) in fields {
        let at = format!("operations.{name}");
        let mut inner = Part::new(value, &at, NOUN, part.flaws);
        let schema = |inner: &mut Part<'_>, field: &str| {
            let value = inner.take(field)?;
            if !value.is_object() {
                inner.bad(field, &value, "a JSON Schema");
            }
            Some(value)
        };
        let operation = Operation {
            description: inner.text("description").unwrap_or_default(),
            parameters: schema(&mut inner, "parameters"),
            result: schema(&mut inner, "result"),
        };
        inner.finish();
        found.insert(name.clone(), operation);
    }
    found
}

fn servers(part: &mut Part<'_>, scope: &Scope) -> BTreeMap<String, Server> {
    let mut found = BTreeMap::new();
    let Some(value) = part.take("servers") else { return found };
    let Some(fields) = value.as_object() else {
        part.bad("servers", &value, "an object of servers");
        return found;
    };
    for (name, value) in fields {
        let at = format!("servers.{name}");
        let mut inner = Part::new(value, &at, NOUN, part.flaws);
        let (command, url) = (inner.words("command"), inner.text("url"));
        let server = match (command.split_first(), url) {
            (Some((program, _)), None) if scope.commands.contains(program) => Some(Server::Command(command)),
            (Some((program, _)), None) => {
                inner.bad("command", &json!(program), "a program that is among scope.commands");
                None
            }
            (None, Some(url)) if host(&url).is_some() && url.contains("://") => Some(Server::Url(url)),
            (None, Some(url)) => {
                inner.bad("url", &json!(url), "an address that begins with http:// or https://");
                None
            }
            _ => {
                inner.bad("command", &value.clone(), "either a command or a url");
                None
            }
        };
        inner.finish();
        found.extend(server.map(|server| (name.clone(), server)));
    }
    found
}

/// The place of a secret's value in a header.
pub const SECRET_PLACE: &str = "{secret}";
/// Headers that say how a request is read, or for whom it is.
const NOT_INJECTED: [&str; 6] =
    ["host", "connection", "content-length", "transfer-encoding", "upgrade", "proxy-authorization"];

/// Secrets that are added to requests on their way out.
fn injections(part: &mut Part<'_>, secrets: &BTreeMap<String, String>, scope: &Scope) -> Vec<Injection> {
    let Some(value) = part.take("inject") else { return Vec::new() };
    let Some(all) = value.as_array() else {
        part.bad("inject", &value, "a list of {secret, host, header}");
        return Vec::new();
    };
    let mut found = Vec::new();
    for (n, one) in all.iter().enumerate() {
        let mut inner = Part::new(one, &format!("inject[{n}]"), NOUN, part.flaws);
        let secret = inner.required("secret");
        if !secrets.contains_key(&secret) {
            inner.bad("secret", &json!(secret), "the name of one of `secrets`");
        }
        let name = inner.required("host");
        let host = Host::parse(&name).ok().filter(|host| host.is_name() && scope.endpoints.contains(host));
        if host.is_none() || !scope.network {
            inner.bad("host", &json!(name), "one of scope.endpoints by its name, with scope.network on");
        }
        let header = inner.text("header").unwrap_or_else(|| "Authorization".to_owned());
        let is_token = |c: u8| c.is_ascii_alphanumeric() || b"-_".contains(&c);
        let is_free = !NOT_INJECTED.iter().any(|taken| header.eq_ignore_ascii_case(taken));
        if header.is_empty() || !header.bytes().all(is_token) || !is_free {
            inner.bad("header", &json!(header), "the name of a header that does not say how a request is read");
        }
        let value = inner.text("value").unwrap_or_else(|| "Bearer {secret}".to_owned());
        if !value.contains(SECRET_PLACE) || value.chars().any(char::is_control) {
            inner.bad("value", &json!(HIDDEN), "a text with {secret} in it");
        }
        let is_plain = inner.switch("plain").unwrap_or(false);
        inner.finish();
        found.extend(host.map(|host| Injection { secret, host, header, value, is_plain }));
    }
    found
}

/// References to secrets; a value is never written down.
pub(super) fn references(part: &mut Part<'_>, field: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let Some(value) = part.take(field) else { return found };
    let Some(fields) = value.as_object() else {
        part.bad(field, &json!(HIDDEN), "an object of references");
        return found;
    };
    for (name, value) in fields {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        match value.as_str().filter(|text| is_name && (text.starts_with("env:") || text.starts_with("file:"))) {
            Some(text) => drop(found.insert(name.clone(), text.to_owned())),
            // What stands there may be the secret itself, so it is not shown.
            None => part.bad(&format!("{field}.{name}"), &json!(HIDDEN), "a reference: env:NAME or file:PATH"),
        }
    }
    found
}
