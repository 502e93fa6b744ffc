//! Reading an execution contract from a document, and its JSON Schema. Every flaw is found, not only the first; unknown
//! fields are refused.

use serde_json::{Map, Value, json};

use crate::part::{Flaw, LIST_MAX, Part};

use super::{
    Artifact, Execution, Expected, Filesystem, FilesystemLevel, Host, Inputs, LIMITS, Network, NetworkLevel, Outputs,
    Sandbox, limit,
};

/// Everything that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct BadExecution {
    pub flaws: Vec<Flaw>,
}

const NOUN: &str = "a contract";

/// Reads a contract.
pub fn read(document: &Value) -> Result<Execution, BadExecution> {
    let mut flaws = Vec::new();
    let execution = execution(&mut Part::new(document, "", NOUN, &mut flaws));
    if flaws.is_empty() { Ok(execution) } else { Err(BadExecution { flaws }) }
}

fn amount(part: &mut Part<'_>, field: &str) -> u64 {
    let limit = limit(field);
    let Some(value) = part.take(field) else { return limit.default };
    value.as_u64().filter(|amount| limit.allows(*amount)).unwrap_or_else(|| {
        part.bad(field, &value, &limit.range());
        limit.default
    })
}

fn hosts(part: &mut Part<'_>, field: &str) -> Vec<Host> {
    let texts = part.texts(field);
    let mut hosts = Vec::new();
    for text in texts {
        match Host::parse(&text) {
            Ok(host) => hosts.push(host),
            Err(_) => part.bad(field, &Value::String(text), "a name, *.name or an address, with or without a port"),
        }
    }
    hosts
}

fn execution(part: &mut Part<'_>) -> Execution {
    let execution_id = part.text("execution_id");
    let tool_id = part.required("tool_id");
    let adapter_id = part.text("adapter_id");
    let sub = |part: &mut Part<'_>, field: &str| part.take(field).unwrap_or(Value::Null);
    let inputs = inputs(&sub(part, "inputs"), part.flaws);
    let sandbox = sandbox(&sub(part, "sandbox"), part.flaws);
    let outputs = outputs(&sub(part, "outputs"), part.flaws);
    let metadata = match part.take("metadata") {
        None => Map::new(),
        Some(Value::Object(fields)) => fields,
        Some(other) => {
            part.bad("metadata", &other, "an object of fields");
            Map::new()
        }
    };
    part.finish();
    Execution { execution_id, tool_id, adapter_id, inputs, sandbox, outputs, metadata }
}

fn inputs(value: &Value, flaws: &mut Vec<Flaw>) -> Inputs {
    let mut part = Part::new(value, "inputs", NOUN, flaws);
    let command = part.required("command");
    let arguments = part.words("arguments");
    let environment = match part.take("environment") {
        None => std::collections::BTreeMap::new(),
        Some(Value::Object(fields)) => {
            let text = |value: &Value| match value {
                Value::String(text) => Some(text.clone()),
                Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
                _ => None,
            };
            let mut variables = std::collections::BTreeMap::new();
            for (name, value) in &fields {
                match text(value) {
                    Some(text) => drop(variables.insert(name.clone(), text)),
                    None => part.bad(&format!("environment.{name}"), value, "text"),
                }
            }
            variables
        }
        Some(other) => {
            part.bad("environment", &other, "an object of texts");
            std::collections::BTreeMap::new()
        }
    };
    let inputs = Inputs {
        command,
        arguments,
        environment,
        working_directory: part.text("working_directory"),
        input_files: part.texts("input_files"),
        stdin: part.text("stdin"),
    };
    part.finish();
    inputs
}

fn sandbox(value: &Value, flaws: &mut Vec<Flaw>) -> Sandbox {
    let mut part = Part::new(value, "sandbox", NOUN, flaws);
    let mut sandbox = Sandbox {
        timeout_ms: amount(&mut part, "timeout_ms"),
        memory_mb: amount(&mut part, "memory_mb"),
        cpu_cores: amount(&mut part, "cpu_cores"),
        disk_mb: amount(&mut part, "disk_mb"),
        ..Sandbox::default()
    };
    let filesystem = part.take("filesystem").unwrap_or(Value::Null);
    let network = part.take("network").unwrap_or(Value::Null);
    let processes = part.take("processes").unwrap_or(Value::Null);
    part.finish();

    let mut part = Part::new(&filesystem, "sandbox.filesystem", NOUN, flaws);
    let level = part.text("level").map_or(FilesystemLevel::default(), |word| {
        FilesystemLevel::named(&word).unwrap_or_else(|| {
            part.bad("level", &Value::String(word), "minimal, standard, extended or elevated");
            FilesystemLevel::default()
        })
    });
    sandbox.filesystem =
        Filesystem { level, read: part.texts("read"), write: part.texts("write"), deny: part.texts("deny") };
    part.finish();

    let mut part = Part::new(&network, "sandbox.network", NOUN, flaws);
    let enabled = part.switch("enabled");
    let level = part.text("level").and_then(|word| {
        NetworkLevel::named(&word).or_else(|| {
            part.bad("level", &Value::String(word), "offline, registry, api or open");
            None
        })
    });
    let (allow, deny) = (hosts(&mut part, "allow"), hosts(&mut part, "deny"));
    let level = match (enabled, level) {
        (Some(false), Some(level)) if level != NetworkLevel::Offline => {
            part.bad("level", &Value::String(level.word().into()), "offline, because enabled is false");
            NetworkLevel::Offline
        }
        // Nothing said, or said no: nobody. A list alone does not open anything.
        (Some(false), _) | (None, None) => NetworkLevel::Offline,
        (_, Some(level)) => level,
        (Some(true), None) if allow.iter().any(Host::is_any) => NetworkLevel::Open,
        (Some(true), None) => NetworkLevel::Api,
    };
    if level == NetworkLevel::Open && !deny.is_empty() {
        part.bad(
            "deny",
            &Value::from(deny.iter().map(ToString::to_string).collect::<Vec<_>>()),
            "nothing: what is open cannot be closed in part; list whom it may reach",
        );
    }
    sandbox.network = Network { level, allow, deny };
    part.finish();

    let mut part = Part::new(&processes, "sandbox.processes", NOUN, flaws);
    sandbox.max_children = amount(&mut part, "max_children");
    sandbox.allow_fork = part.switch("allow_fork").unwrap_or(true);
    part.finish();
    sandbox
}

fn outputs(value: &Value, flaws: &mut Vec<Flaw>) -> Outputs {
    let mut part = Part::new(value, "outputs", NOUN, flaws);
    let (stdout, stderr) = (expected(&mut part, "stdout"), expected(&mut part, "stderr"));
    let exit_code = part.take("exit_code").and_then(|value| {
        value.as_u64().and_then(|code| u8::try_from(code).ok()).or_else(|| {
            part.bad("exit_code", &value, "a whole number from 0 to 255");
            None
        })
    });
    let output_files = part.texts("output_files");
    let mut artifacts = Vec::new();
    match part.take("artifacts") {
        None => {}
        Some(Value::Array(items)) if items.len() <= LIST_MAX => {
            for item in items {
                match artifact(&item) {
                    Some(artifact) => artifacts.push(artifact),
                    None => part.bad("artifacts", &item, "a path, or {path, mime_type, metadata}"),
                }
            }
        }
        Some(other) => part.bad("artifacts", &other, "a list of paths"),
    }
    part.finish();
    Outputs { stdout, stderr, exit_code, output_files, artifacts }
}

fn artifact(item: &Value) -> Option<Artifact> {
    match item {
        Value::String(path) => Some(Artifact { path: path.clone(), mime_type: None, metadata: Map::new() }),
        Value::Object(fields) => {
            let known = ["path", "mime_type", "metadata"];
            let path = fields.get("path")?.as_str()?.to_owned();
            let mime_type = fields.get("mime_type").and_then(Value::as_str).map(ToOwned::to_owned);
            let metadata = fields.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
            fields.keys().all(|key| known.contains(&key.as_str())).then_some(Artifact { path, mime_type, metadata })
        }
        _ => None,
    }
}

fn expected(part: &mut Part<'_>, field: &str) -> Expected {
    let Some(value) = part.take(field) else { return Expected::Captured };
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    let only = value.as_object().is_some_and(|fields| fields.len() == 1);
    match (value.as_str(), text("equals"), text("contains")) {
        (Some("captured"), ..) => Expected::Captured,
        (Some("expected"), ..) => Expected::Something,
        (None, Some(text), None) if only => Expected::Equals(text),
        (None, None, Some(text)) if only => Expected::Contains(text),
        _ => {
            part.bad(field, &value, "captured, expected, {equals: text} or {contains: text}");
            Expected::Captured
        }
    }
}

/// The JSON Schema of a contract.
pub fn schema() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": {"type": "string"}, "maxItems": LIST_MAX});
    let amount = |name: &str| {
        let limit = limit(name);
        json!({"type": "integer", "minimum": limit.min, "maximum": limit.max, "default": limit.default, "description": limit.what})
    };
    let object = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let stream = json!({"anyOf": [
        {"enum": ["captured", "expected"]},
        object(json!({"equals": text}), &["equals"]),
        object(json!({"contains": text}), &["contains"]),
    ]});
    let word = json!({"type": ["string", "number", "boolean"]});
    let processes = json!({"max_children": amount("max_children"), "allow_fork": {"type": "boolean", "default": true}});
    let mut sandbox = Map::new();
    for limit in LIMITS.iter().filter(|limit| limit.name != "max_children") {
        sandbox.insert(limit.name.to_owned(), amount(limit.name));
    }
    let filesystem = json!({
        "level": {"enum": FilesystemLevel::ALL.map(FilesystemLevel::word), "default": "minimal"},
        "read": texts, "write": texts, "deny": texts,
    });
    let network = json!({
        "enabled": {"type": "boolean", "default": false},
        "level": {"enum": NetworkLevel::ALL.map(NetworkLevel::word)},
        "allow": texts, "deny": texts,
    });
    sandbox.insert("filesystem".into(), object(filesystem, &[]));
    sandbox.insert("network".into(), object(network, &[]));
    sandbox.insert("processes".into(), object(processes, &[]));
    let inputs = json!({
        "command": text, "arguments": {"type": "array", "items": word, "maxItems": LIST_MAX},
        "environment": {"type": "object", "additionalProperties": word},
        "working_directory": text, "input_files": texts, "stdin": text,
    });
    let outputs = json!({
        "stdout": stream, "stderr": stream, "exit_code": {"type": "integer", "minimum": 0, "maximum": 255},
        "output_files": texts,
        "artifacts": {"type": "array", "items": {"anyOf": [
            text,
            object(json!({"path": text, "mime_type": text, "metadata": {"type": "object"}}), &["path"]),
        ]}},
    });
    let properties = json!({
        "execution_id": text, "tool_id": text, "adapter_id": text,
        "inputs": object(inputs, &["command"]), "sandbox": object(Value::Object(sandbox), &[]),
        "outputs": object(outputs, &[]), "metadata": {"type": "object"},
    });
    let mut schema = object(properties, &["tool_id", "inputs"]);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Code execution contract");
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(document: Value) -> Vec<String> {
        read(&document).unwrap_err().flaws.into_iter().map(|flaw| flaw.field).collect()
    }

    #[test]
    fn little_is_needed_and_defaults_are_the_tables() {
        let read = read(&json!({"tool_id": "T", "inputs": {"command": "rg", "arguments": ["-n", 3]}})).unwrap();
        assert_eq!(read.sandbox, Sandbox::default());
        assert_eq!((read.sandbox.timeout_ms, read.sandbox.allow_fork), (30_000, true));
        assert_eq!(read.inputs.arguments, ["-n", "3"]);
        assert_eq!(read.sandbox.network.level, NetworkLevel::Offline);
    }

    #[test]
    fn every_flaw_is_found_with_its_field() {
        let bad = json!({
            "inputs": {"command": 7, "arguments": "x", "colour": 1},
            "sandbox": {"timeout_ms": 999, "memory_mb": 4097, "cpu_cores": 0, "processes": {"max_children": 101},
                "filesystem": {"level": "most"}, "network": {"allow": ["http://x"]}},
            "outputs": {"stdout": "hello", "exit_code": 256},
            "more": true,
        });
        assert_eq!(
            fields(bad),
            [
                "tool_id",
                "inputs.command",
                "inputs.arguments",
                "inputs.colour",
                "sandbox.timeout_ms",
                "sandbox.memory_mb",
                "sandbox.cpu_cores",
                "sandbox.filesystem.level",
                "sandbox.network.allow",
                "sandbox.processes.max_children",
                "outputs.stdout",
                "outputs.exit_code",
                "more",
            ]
        );
        assert_eq!(fields(json!([])), ["the document", "tool_id", "inputs.command"]);
    }

    #[test]
    fn a_field_that_is_none_is_told_with_the_one_that_is_near() {
        let text = |document: Value| read(&document).unwrap_err().to_string();
        let near = json!({"tool_id": "T", "inputs": {"command": "x"}, "sandbox": {"netwrok": {}}});
        assert_eq!(text(near), "sandbox.netwrok is no field of a contract; did you mean network?");
        let far = json!({"tool_id": "T", "inputs": {"command": "x"}, "colour": 1});
        assert_eq!(text(far), "colour is no field of a contract");
    }

    #[test]
    fn limits_are_refused_outside_and_kept_at_their_borders() {
        for limit in LIMITS {
            let with = |value: u64| {
                let processes = json!({"max_children": value});
                let sandbox = if limit.name == "max_children" {
                    json!({"processes": processes})
                } else {
                    json!({limit.name: value})
                };
                read(&json!({"tool_id": "T", "inputs": {"command": "x"}, "sandbox": sandbox})).is_ok()
            };
            assert!(with(limit.min) && with(limit.max), "{}", limit.name);
            assert!(!with(limit.max + 1) && (limit.min == 0 || !with(limit.min - 1)), "{}", limit.name);
        }
    }

    #[test]
    fn a_list_of_hosts_alone_opens_nothing() {
        let level = |network: Value| {
            let document = json!({"tool_id": "T", "inputs": {"command": "x"}, "sandbox": {"network": network}});
            read(&document).map(|execution| execution.sandbox.network.level)
        };
        assert_eq!(level(json!({"allow": ["a.com"]})), Ok(NetworkLevel::Offline));
        assert_eq!(level(json!({"enabled": false, "allow": ["a.com"]})), Ok(NetworkLevel::Offline));
        assert_eq!(level(json!({"enabled": true})), Ok(NetworkLevel::Api), "and nobody is listed");
        assert_eq!(level(json!({"enabled": true, "allow": ["*"]})), Ok(NetworkLevel::Open));
        assert_eq!(level(json!({"level": "registry"})), Ok(NetworkLevel::Registry));
        assert!(level(json!({"enabled": false, "level": "open"})).is_err());
    }
}
