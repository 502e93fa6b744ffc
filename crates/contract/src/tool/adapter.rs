//! Reading an adapter from a document of the seed's schema: every flaw is found, not only the first.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::entry::{host, hosts, id, limits, version, word};
use super::{
    Adapter, Api, ArgumentTemplate, Auth, Body, Cli, Condition, Endpoint, Example, Fallback, Interface, Language, Mcp,
    NetworkOverride, Override, Retry, Sdk, Status, Transform, TransformKind, Transport,
};
use crate::part::{Flaw, HIDDEN, LIST_MAX, Part};

const NOUN: &str = "an adapter";

/// Attempts, and milliseconds before the second one.
const ATTEMPTS_MAX: u64 = 10;
const BACKOFF_MS_MAX: u64 = 60_000;

impl Adapter {
    /// Reads it. `order`: the parameters of `interface.cli.arg_mapping` as they stand in the file, since an object of
    /// JSON has no order; a document that says it itself in `arg_order` needs none.
    pub fn read(document: &Value, order: &[String]) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let adapter = read(&mut Part::new(document, "", NOUN, &mut flaws), order);
        match adapter {
            Some(adapter) if flaws.is_empty() => Ok(adapter),
            _ => Err(flaws),
        }
    }

    /// The document with the order of its arguments written down: what is hashed and kept.
    pub fn normal(document: &Value, order: &[String]) -> Value {
        let mut document = document.clone();
        if let Some(cli) = document.pointer_mut("/interface/cli").and_then(Value::as_object_mut)
            && cli.get("arg_mapping").and_then(Value::as_object).is_some_and(|mapping| !mapping.is_empty())
            && !cli.contains_key("arg_order")
        {
            cli.insert("arg_order".into(), json!(order));
        }
        document
    }
}

fn part_of<T>(part: &mut Part<'_>, field: &str, read: impl FnOnce(&mut Part<'_>) -> T) -> T {
    let value = part.take(field).unwrap_or(Value::Null);
    let at = part.name(field);
    let mut inner = Part::new(&value, &at, NOUN, part.flaws);
    let found = read(&mut inner);
    inner.finish();
    found
}

fn read(part: &mut Part<'_>, order: &[String]) -> Option<Adapter> {
    let adapter_id = id(part, "adapter_id");
    let name = part.required("name");
    let version = version(part);
    let tool_id = id(part, "tool_id");
    let tool_version = part.text("tool_version");
    if let Some(text) = tool_version.as_ref().filter(|text| semver::VersionReq::parse(text).is_err()) {
        part.bad("tool_version", &json!(text), "a requirement such as \">=14, <15\"");
    }
    let form = part.required("type");
    let interface = interface(part, &form, order);
    let (mut input, mut output) = (Vec::new(), Vec::new());
    part_of(part, "transforms", |part| {
        input = transforms(part, "input", &TransformKind::INPUT);
        output = transforms(part, "output", &TransformKind::OUTPUT);
    });
    let (mut retry, mut fallback) = (Retry::default(), None);
    part_of(part, "errors", |part| {
        retry = part_of(part, "retry", read_retry);
        fallback = read_fallback(part);
    });
    if fallback.as_ref().is_some_and(|other| other.adapter_id == adapter_id) {
        part.bad(
            "errors.fallback.adapter_id",
            &json!(adapter_id),
            "another adapter: one that falls back on itself never ends",
        );
    }
    let override_ = part_of(part, "sandbox_override", |part| {
        let limits = limits(part);
        let network = part.take("network").map(|value| {
            let at = part.name("network");
            let mut inner = Part::new(&value, &at, NOUN, part.flaws);
            let network = NetworkOverride {
                enabled: inner.switch("enabled").unwrap_or(false),
                allow: hosts(&mut inner, "allow"),
            };
            inner.finish();
            network
        });
        Override { limits, network }
    });
    let (mut status, mut author) = (Status::Active, None);
    part_of(part, "metadata", |part| {
        author = part.text("author");
        part.text("created");
        part.text("updated");
        status = word(part, "status", Status::Active, Status::named, "active, deprecated or experimental");
    });
    let examples = examples(part);
    part.take("fixtures");
    part.finish();
    let interface = interface?;
    Some(Adapter {
        adapter_id,
        name,
        version,
        tool_id,
        tool_version,
        interface,
        input,
        output,
        retry,
        fallback,
        override_,
        status,
        author,
        examples,
    })
}

fn interface(part: &mut Part<'_>, form: &str, order: &[String]) -> Option<Interface> {
    const FORMS: [&str; 4] = ["cli", "api", "sdk", "mcp"];
    if !form.is_empty() && !FORMS.contains(&form) {
        part.bad("type", &json!(form), "cli, api, sdk or mcp");
    }
    let mut found = None;
    part_of(part, "interface", |part| {
        for other in FORMS.iter().filter(|other| **other != form) {
            if let Some(value) = part.take(other) {
                part.bad(other, &value, &format!("nothing, because type is {form}"));
            }
        }
        if !FORMS.contains(&form) {
            return;
        }
        found = part_of(part, form, |part| match form {
            "cli" => Some(Interface::Cli(cli(part, order))),
            "api" => api(part).map(Interface::Api),
            "sdk" => sdk(part).map(Interface::Sdk),
            _ => mcp(part).map(Interface::Mcp),
        });
    });
    found
}

/// An object of texts.
fn table(part: &mut Part<'_>, field: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    match part.take(field) {
        None => {}
        Some(Value::Object(fields)) if fields.len() <= LIST_MAX => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) => drop(found.insert(name, text.to_owned())),
                    None => part.bad(&format!("{field}.{name}"), &value, "text"),
                }
            }
        }
        Some(other) => part.bad(field, &other, "an object of texts"),
    }
    found
}

fn cli(part: &mut Part<'_>, order: &[String]) -> Cli {
    let executable = part.required("executable");
    if executable.contains(['\0', '\n']) {
        part.bad("executable", &json!(executable), "the name or the path of a program");
    }
    let base_args = part.words("base_args");
    let mapping = part.take("arg_mapping");
    let stated = part.texts("arg_order");
    let order = if stated.is_empty() { order } else { &stated };
    let mut arguments = Vec::new();
    match mapping {
        None => {}
        Some(Value::Object(fields)) if fields.len() <= LIST_MAX => {
            for name in order.iter().filter(|name| !fields.contains_key(*name)) {
                part.bad("arg_order", &json!(name), "names of arg_mapping");
            }
            let stated = order.iter().filter(|name| fields.contains_key(*name)).cloned().collect::<Vec<_>>();
            let left = fields.keys().filter(|name| !stated.contains(name)).cloned().collect::<Vec<_>>();
            for name in stated.iter().chain(&left) {
                let template = template(part, name, &fields[name]);
                arguments.extend(template.map(|template| (name.clone(), template)));
            }
        }
        Some(other) => part.bad("arg_mapping", &other, "an object of templates"),
    }
    let environment = table(part, "env_mapping");
    for (name, variable) in environment.iter().filter(|(_, v)| v.is_empty() || v.contains(['=', '\0'])) {
        part.bad(&format!("env_mapping.{name}"), &json!(variable), "the name of a variable");
    }
    let mut operations = BTreeMap::new();
    match part.take("operation_mapping") {
        None => {}
        Some(Value::Object(fields)) => {
            for (name, value) in fields {
                let words =
                    value.as_array().and_then(|all| all.iter().map(|w| w.as_str().map(ToOwned::to_owned)).collect());
                match words {
                    Some(words) => drop(operations.insert(name, words)),
                    None => part.bad(&format!("operation_mapping.{name}"), &value, "a list of arguments"),
                }
            }
        }
        Some(other) => part.bad("operation_mapping", &other, "an object of lists of arguments"),
    }
    let stdin = part.text("stdin");
    let success_codes = codes(part, "success_codes").into_iter().filter_map(|code| u8::try_from(code).ok()).collect();
    Cli { executable, base_args, arguments, environment, stdin, operations, success_codes }
}

/// `{name}` and `{value}` stand for the parameter's own value; what has no place for one is a flag.
fn template(part: &mut Part<'_>, name: &str, value: &Value) -> Option<ArgumentTemplate> {
    let field = format!("arg_mapping.{name}");
    let (text, allow_dash) = match value {
        Value::String(text) => (text.clone(), false),
        Value::Object(fields) => {
            let at = part.name(&field);
            let mut inner = Part::new(value, &at, NOUN, part.flaws);
            let text = inner.required("template");
            let allow = inner.switch("allow_dash").unwrap_or(false);
            inner.finish();
            if fields.is_empty() {
                return None;
            }
            (text, allow)
        }
        other => {
            part.bad(&field, other, "a template such as \"-m {value}\", or a flag such as \"-i\"");
            return None;
        }
    };
    let pieces: Vec<String> = text.split_whitespace().map(ToOwned::to_owned).collect();
    let places: Vec<&str> = pieces.iter().flat_map(|piece| places(piece)).collect();
    if pieces.is_empty() || places.iter().any(|place| *place != "value" && *place != name) {
        part.bad(&field, value, &format!("a template with {{value}} or {{{name}}} in it, or a flag"));
        return None;
    }
    Some(ArgumentTemplate { pieces, allow_dash })
}

/// Names in braces.
pub(super) fn places(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        found.push(name);
        rest = after;
    }
    found
}

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

fn api(part: &mut Part<'_>) -> Option<Api> {
    let base_url = part.required("base_url");
    let is_plain = !base_url.contains(['?', '#', '@', ' ', '\\']) && base_url.contains("://");
    if !base_url.is_empty() && (host(&base_url).is_none() || !is_plain) {
        part.bad(
            "base_url",
            &json!(base_url),
            "an address that begins with http:// or https://, without query or user",
        );
    }
    let method = part.text("auth_method").unwrap_or_else(|| "none".into());
    let (mut header, mut query, mut token_url, mut scope) = (None, None, None, None);
    part_of(part, "auth", |part| {
        (header, query) = (part.text("header"), part.text("query"));
        (token_url, scope) = (part.text("token_url"), part.text("scope"));
    });
    let auth = match method.as_str() {
        "none" => Auth::None,
        "api_key" => Auth::ApiKey { header, query },
        "bearer" => Auth::Bearer,
        "oauth" => match token_url.filter(|url| url.contains("://") && host(url).is_some()) {
            Some(token_url) => Auth::OAuth { token_url, scope },
            None => {
                part.bad("auth.token_url", &Value::Null, "the address at which oauth gives out tokens");
                Auth::None
            }
        },
        other => {
            part.bad("auth_method", &json!(other), "none, api_key, oauth or bearer");
            Auth::None
        }
    };
    let headers = table(part, "headers");
    for (name, value) in &headers {
        let legal = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        let secret = ["authorization", "proxy-authorization", "cookie"].contains(&name.to_ascii_lowercase().as_str());
        if !legal || value.contains(['\r', '\n', '\0']) {
            part.bad(&format!("headers.{name}"), &json!(value), "a header of one line");
        } else if secret {
            part.bad(
                &format!("headers.{name}"),
                &json!(HIDDEN),
                "nothing: auth_method sends it, and `secrets` of the tool refers to it",
            );
        }
    }
    let mut endpoints = BTreeMap::new();
    match part.take("endpoint_mapping") {
        Some(Value::Object(fields)) if !fields.is_empty() && fields.len() <= LIST_MAX => {
            for (name, value) in fields {
                endpoints.extend(endpoint(part, &name, &value).map(|endpoint| (name, endpoint)));
            }
        }
        other => {
            part.bad("endpoint_mapping", &other.unwrap_or(Value::Null), "an object such as {get: \"GET /things/{id}\"}")
        }
    }
    Some(Api { base_url, auth, headers, endpoints })
}

fn endpoint(part: &mut Part<'_>, name: &str, value: &Value) -> Option<Endpoint> {
    let field = format!("endpoint_mapping.{name}");
    const WANTED: &str = "a method and a path such as \"GET /things/{id}\"";
    let (text, mut query, mut body) = match value {
        Value::String(text) => (text.clone(), BTreeMap::new(), None),
        Value::Object(_) => {
            let at = part.name(&field);
            let mut inner = Part::new(value, &at, NOUN, part.flaws);
            let (method, path) = (inner.required("method"), inner.required("path"));
            let query = table(&mut inner, "query");
            let body = inner.text("body").map(|text| if text == "none" { Body::None } else { Body::Parameter(text) });
            inner.finish();
            (format!("{method} {path}"), query, body)
        }
        other => {
            part.bad(&field, other, WANTED);
            return None;
        }
    };
    let (method, path) = text.split_once(' ').unwrap_or((text.as_str(), ""));
    let (path, tail) = path.trim().split_once('?').unwrap_or((path.trim(), ""));
    for pair in tail.split('&').filter(|pair| !pair.is_empty()) {
        let (name, template) = pair.split_once('=').unwrap_or((pair, ""));
        query.insert(name.to_owned(), template.to_owned());
    }
    let climbs = path.split('/').any(|name| name == ".." || name == ".");
    if !METHODS.contains(&method) || !path.starts_with('/') || climbs || path.contains(['#', ' ', '\\']) {
        part.bad(&field, value, WANTED);
        return None;
    }
    if matches!(method, "GET" | "HEAD") && matches!(body, Some(Body::Parameter(_))) {
        part.bad(&field, value, "no body: it is a GET");
        body = None;
    }
    Some(Endpoint { method: method.to_owned(), path: path.to_owned(), query, body })
}

fn mapping(part: &mut Part<'_>, field: &str, legal: impl Fn(&str) -> bool, expected: &str) -> BTreeMap<String, String> {
    let found = table(part, field);
    if found.is_empty() {
        part.bad(field, &Value::Null, expected);
    }
    for (name, target) in found.iter().filter(|(_, target)| !legal(target)) {
        part.bad(&format!("{field}.{name}"), &json!(target), expected);
    }
    found
}

fn sdk(part: &mut Part<'_>) -> Option<Sdk> {
    let language = part.required("language");
    let known = Language::named(&language);
    if known.is_none() && !language.is_empty() {
        part.bad("language", &json!(language), "python, node, go or rust");
    }
    // They become part of a program text.
    let is_path = |text: &str| {
        !text.is_empty()
            && text.len() <= 200
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/@:".contains(&b))
            && !text.split('/').any(|name| name == "..")
    };
    let is_name = |text: &str| {
        !text.is_empty() && text.len() <= 200 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:".contains(&b))
    };
    let package = part.required("package");
    let import_path = part.text("import_path").unwrap_or_else(|| package.clone());
    for (field, text) in [("package", &package), ("import_path", &import_path)] {
        if !text.is_empty() && !is_path(text) {
            part.bad(field, &json!(text), "the name of a package or module");
        }
    }
    let functions = mapping(part, "function_mapping", is_name, "names of functions by operation");
    Some(Sdk { language: known?, package, import_path, functions })
}

fn mcp(part: &mut Part<'_>) -> Option<Mcp> {
    let server = part.required("server");
    let transport = match part.required("transport").as_str() {
        "stdio" => Transport::Stdio,
        "http" => Transport::Http,
        "websocket" => Transport::Websocket,
        "" => return None,
        other => {
            part.bad("transport", &json!(other), "stdio, http or websocket");
            return None;
        }
    };
    if transport == Transport::Websocket {
        part.bad(
            "transport",
            &json!("websocket"),
            "stdio or http: no revision of the protocol defines websocket, and its SDK has none",
        );
    }
    let tools = mapping(part, "tool_mapping", |name| !name.is_empty(), "names of the server's tools by operation");
    Some(Mcp { server, transport, tools })
}

fn transforms(part: &mut Part<'_>, field: &str, kinds: &[TransformKind]) -> Vec<Transform> {
    let Some(value) = part.take(field) else { return Vec::new() };
    let Some(items) = value.as_array().filter(|items| items.len() <= LIST_MAX) else {
        part.bad(field, &value, "a list of transforms");
        return Vec::new();
    };
    let words = kinds.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ");
    let mut found = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let name = part.name(&format!("{field}[{at}]"));
        let mut inner = Part::new(item, &name, NOUN, part.flaws);
        let word = inner.required("type");
        let spec = inner.take("spec").unwrap_or(Value::Null);
        let kind = kinds.iter().find(|kind| kind.word() == word);
        if kind.is_none() && !word.is_empty() {
            inner.bad("type", &json!(word), &words);
        }
        inner.finish();
        if let Some(kind) = kind {
            if let Some(wrong) = wrong_spec(*kind, &spec) {
                part.bad(&format!("{field}[{at}].spec"), &spec, &wrong);
            }
            found.push(Transform { kind: *kind, spec });
        }
    }
    found
}

/// What is wrong with the shape of a transform's specification.
fn wrong_spec(kind: TransformKind, spec: &Value) -> Option<String> {
    match (kind, spec) {
        (TransformKind::Rename, Value::Object(names)) => {
            if names.values().any(|name| !name.is_string()) {
                return Some("new names by old ones".into());
            }
            names
                .keys()
                .find(|name| comes_back(names, name))
                .map(|name| format!("no circle: {name} would become itself"))
        }
        (TransformKind::Map, Value::Object(fields)) => fields
            .values()
            .any(|value| !value.is_object() && !value.is_string())
            .then(|| "for each parameter an object of values, or a template".into()),
        (TransformKind::Default, Value::Object(_)) | (TransformKind::Validate, Value::Object(_)) => None,
        (TransformKind::Validate, Value::String(word)) if word == "json_schema" => None,
        (TransformKind::Validate, _) => {
            Some("a JSON Schema, or json_schema for the one of the tool's operation".into())
        }
        (TransformKind::Parse, Value::String(word)) if PARSERS.contains(&word.as_str()) => None,
        (TransformKind::Parse, Value::Object(fields)) if fields.len() == 1 => match fields.get("regex") {
            Some(Value::String(pattern)) => regex::Regex::new(pattern).err().map(|_| "a regular expression".into()),
            _ => Some("json, json_lines, csv, text or {regex: pattern}".into()),
        },
        (TransformKind::Parse, _) => Some("json, json_lines, csv, text or {regex: pattern}".into()),
        (TransformKind::Extract, Value::String(path)) if path.starts_with('$') => None,
        (TransformKind::Extract, _) => Some("a JSONPath such as \"$.data\"".into()),
        (TransformKind::Format, Value::String(_)) => None,
        (TransformKind::Format, _) => Some("a template".into()),
        _ => Some("an object by parameter".into()),
    }
}

const PARSERS: [&str; 4] = ["json", "json_lines", "csv", "text"];

fn comes_back(names: &Map<String, Value>, from: &str) -> bool {
    let mut at = from;
    for _ in 0..=names.len() {
        match names.get(at).and_then(Value::as_str) {
            None => return false,
            Some(next) if next == from => return true,
            Some(next) => at = next,
        }
    }
    true
}

fn codes(part: &mut Part<'_>, field: &str) -> Vec<u64> {
    let Some(value) = part.take(field) else { return Vec::new() };
    let codes: Option<Vec<u64>> =
        value.as_array().and_then(|all| all.iter().map(|code| code.as_u64().filter(|code| *code <= 599)).collect());
    codes.unwrap_or_else(|| {
        part.bad(field, &value, "a list of exit codes or statuses");
        Vec::new()
    })
}

fn read_retry(part: &mut Part<'_>) -> Retry {
    let mut amount = |field: &str, min: u64, max: u64| {
        let Some(value) = part.take(field) else { return min };
        value.as_u64().filter(|n| (min..=max).contains(n)).unwrap_or_else(|| {
            part.bad(field, &value, &format!("a whole number from {min} to {max}"));
            min
        })
    };
    let (max_attempts, backoff_ms) = (amount("max_attempts", 1, ATTEMPTS_MAX), amount("backoff_ms", 0, BACKOFF_MS_MAX));
    Retry { max_attempts, backoff_ms, retryable_codes: codes(part, "retryable_codes") }
}

fn read_fallback(part: &mut Part<'_>) -> Option<Fallback> {
    let value = part.take("fallback")?;
    let at = part.name("fallback");
    let mut inner = Part::new(&value, &at, NOUN, part.flaws);
    let adapter_id = id(&mut inner, "adapter_id");
    let text = inner.text("condition").unwrap_or_else(|| "on_error".into());
    let condition = match text.split_once(':') {
        None if text == "on_error" => Some(Condition::OnError),
        None if text == "on_timeout" => Some(Condition::OnTimeout),
        None if text == "on_unavailable" => Some(Condition::OnUnavailable),
        Some(("on_exit", codes)) => {
            let codes: Option<Vec<u64>> = codes.split(',').map(|code| code.trim().parse().ok()).collect();
            codes.map(Condition::OnExit)
        }
        _ => None,
    };
    if condition.is_none() {
        inner.bad("condition", &json!(text), "on_error, on_timeout, on_unavailable or on_exit:<codes>");
    }
    inner.finish();
    Some(Fallback { adapter_id, condition: condition? })
}

fn examples(part: &mut Part<'_>) -> Vec<Example> {
    let Some(value) = part.take("examples") else { return Vec::new() };
    let Some(items) = value.as_array().filter(|items| items.len() <= LIST_MAX) else {
        part.bad("examples", &value, "a list of {name, operation, params}");
        return Vec::new();
    };
    let mut found: Vec<Example> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let mut inner = Part::new(item, &format!("examples[{at}]"), NOUN, part.flaws);
        let name = id(&mut inner, "name");
        let operation = inner.text("operation");
        let params = match inner.take("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(other) => {
                inner.bad("params", &other, "an object of parameters");
                Map::new()
            }
        };
        if found.iter().any(|known| known.name == name) {
            inner.bad("name", &json!(name), "a name of its own");
        }
        inner.finish();
        found.push(Example { name, operation, params });
    }
    found
}
