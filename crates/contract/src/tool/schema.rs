//! The JSON Schemas of a tool's entry and of an adapter, for editors and for whoever writes one.

use serde_json::{Map, Value, json};

use crate::execution::LIMITS;

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn limits() -> Map<String, Value> {
    let of = |limit: &crate::execution::Limit| json!({"type": "integer", "minimum": limit.min, "maximum": limit.max, "description": limit.what});
    LIMITS.iter().map(|limit| (limit.name.to_owned(), of(limit))).collect()
}

const ID: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";

fn headed(mut schema: Value, title: &str) -> Value {
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!(title);
    schema
}

/// Of a tool's entry.
pub fn tool_schema() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let words = json!({"type": "array", "items": {"type": ["string", "number", "boolean"]}});
    let provenance = object(
        json!({
            "repo_url": text, "commit_or_tag": text, "license": text,
            "checksum": {"type": "string", "pattern": "^((blake3|sha256):)?[0-9a-f]{64}$",
                "description": "of the program; another one is not run"},
        }),
        &["license"],
    );
    let scope = object(
        json!({
            "commands": {"type": "array", "items": {"type": "string"}, "description": "programs it may run, or operations it may be asked for"},
            "endpoints": {"type": "array", "items": {"type": "string"}, "description": "hosts it may reach"},
            "data_access": {"enum": ["none", "read", "write"], "default": "read"},
            "network": {"enum": ["on", "off", true, false], "default": "off"},
            "filesystem": {"type": "array", "items": {"type": "string"}, "description": "paths of the project it sees; `.` is all of it"},
            "environment": texts, "scoped": texts,
            "arguments": {"enum": ["plain", "any"], "default": "plain"},
            "oversized": {"enum": ["refuse", "cut"], "default": "refuse"},
            "limits": object(Value::Object(limits()), &[]),
            "elevated": {"type": "boolean", "default": false, "description": "sees the system's paths; each call waits for a person"},
            "open": {"type": "boolean", "default": false, "description": "reaches anybody; each call waits for a person"},
        }),
        &[],
    );
    let approval = object(json!({"approver": text, "date": text, "evidence": text}), &["approver", "date"]);
    let operation =
        object(json!({"description": text, "parameters": {"type": "object"}, "result": {"type": "object"}}), &[]);
    let server = object(json!({"command": words, "url": text}), &[]);
    let injection = object(
        json!({
            "secret": text, "host": {"type": "string", "description": "one of scope.endpoints"},
            "header": {"type": "string", "default": "Authorization"},
            "value": {"type": "string", "default": "Bearer {secret}", "description": "with {secret} in it"},
            "plain": {"type": "boolean", "default": false, "description": "also over plain HTTP"},
        }),
        &["secret", "host"],
    );
    let properties = json!({
        "tool_id": {"type": "string", "pattern": ID}, "name": text, "version": text, "description": text, "owner": text,
        "provenance": provenance, "scope": scope, "approval": approval,
        "status": {"enum": ["active", "experimental", "deprecated", "blocked"], "default": "active"},
        "last_review": text, "next_review": text,
        "operations": {"type": "object", "additionalProperties": operation},
        "servers": {"type": "object", "additionalProperties": server},
        "secrets": {"type": "object", "additionalProperties": {"type": "string", "pattern": "^(env|file):"}},
        "inject": {"type": "array", "items": injection,
            "description": "secrets that requests for a host get on their way out, and programs do not get at all"},
        "approve_first_use": {"type": "boolean", "default": false},
        "settlement": super::settlement::schema(),
    });
    headed(object(properties, &["tool_id", "name", "version", "owner", "provenance", "scope"]), "Tool")
}

/// Of an adapter.
pub fn adapter_schema() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let table = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let words = json!({"type": "array", "items": {"type": ["string", "number", "boolean"]}});
    let template =
        json!({"anyOf": [text, object(json!({"template": text, "allow_dash": {"type": "boolean"}}), &["template"])]});
    let cli = object(
        json!({
            "executable": text, "base_args": words, "arg_order": texts,
            "arg_mapping": {"type": "object", "additionalProperties": template}, "env_mapping": table, "stdin": text,
            "operation_mapping": {"type": "object", "additionalProperties": texts},
            "success_codes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
        }),
        &["executable"],
    );
    let endpoint = object(json!({"method": text, "path": text, "query": table, "body": text}), &["method", "path"]);
    let api = object(
        json!({
            "base_url": text, "auth_method": {"enum": ["none", "api_key", "oauth", "bearer"], "default": "none"},
            "auth": object(json!({"header": text, "query": text, "token_url": text, "scope": text}), &[]),
            "headers": table, "endpoint_mapping": {"type": "object", "additionalProperties": {"anyOf": [text, endpoint]}},
        }),
        &["base_url", "endpoint_mapping"],
    );
    let sdk = object(
        json!({"language": {"enum": ["python", "node", "go", "rust"]}, "package": text, "import_path": text, "function_mapping": table}),
        &["language", "package", "function_mapping"],
    );
    let mcp = object(
        json!({"server": text, "transport": {"enum": ["stdio", "http"]}, "tool_mapping": table}),
        &["server", "transport", "tool_mapping"],
    );
    let transform = |kinds: &[&str]| json!({"type": "array", "items": object(json!({"type": {"enum": kinds}, "spec": {}}), &["type", "spec"])});
    let codes = json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 599}});
    let retry = object(
        json!({
            "max_attempts": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
            "backoff_ms": {"type": "integer", "minimum": 0, "maximum": 60_000, "default": 0}, "retryable_codes": codes,
        }),
        &[],
    );
    let fallback = json!({"anyOf": [{"type": "null"}, object(json!({"adapter_id": text, "condition": {"type": "string",
        "pattern": "^(on_error|on_timeout|on_unavailable|on_exit:[0-9, ]+)$", "default": "on_error"}}), &["adapter_id"])]});
    let mut over = limits();
    over.insert("network".into(), object(json!({"enabled": {"type": "boolean"}, "allow": texts}), &[]));
    let metadata = object(
        json!({"author": text, "created": text, "updated": text, "status": {"enum": ["active", "deprecated", "experimental"]}}),
        &[],
    );
    let example = object(json!({"name": text, "operation": text, "params": {"type": "object"}}), &["name"]);
    let properties = json!({
        "adapter_id": {"type": "string", "pattern": ID}, "name": text, "version": text,
        "tool_id": {"type": "string", "pattern": ID}, "tool_version": text, "type": {"enum": ["cli", "api", "sdk", "mcp"]},
        "interface": object(json!({"cli": cli, "api": api, "sdk": sdk, "mcp": mcp}), &[]),
        "transforms": object(json!({"input": transform(&["rename", "map", "default", "validate"]),
            "output": transform(&["parse", "extract", "format"])}), &[]),
        "errors": object(json!({"retry": retry, "fallback": fallback}), &[]),
        "sandbox_override": object(Value::Object(over), &[]), "metadata": metadata,
        "examples": {"type": "array", "items": example}, "fixtures": {},
    });
    headed(object(properties, &["adapter_id", "name", "version", "tool_id", "type", "interface"]), "Adapter")
}
