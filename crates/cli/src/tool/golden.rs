//! Golden outputs: what the examples of adapters come to when all is well. Files of the project, changed only on purpose.

use std::path::PathBuf;

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_ledger::registry::Kind;
use serde_json::{Value, json};

use super::call::{Ask, Setting};
use crate::failure::Failure;
use crate::project::Project;
use crate::workspace::new_id;

#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    Record { update: bool },
    Check,
}

fn folder(project: &Project, adapter: &str) -> PathBuf {
    project.root().join("tools").join("golden").join(adapter)
}

/// The outputs that are kept for an adapter.
pub(crate) fn kept(project: &Project, adapter: &str) -> Value {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder(project, adapter)).into_iter().flatten().flatten() {
        let value = std::fs::read(entry.path()).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        found.extend(value);
    }
    found.sort_by_key(|value| value["name"].as_str().unwrap_or_default().to_owned());
    found.into()
}

/// Calls the examples of adapters, and records or compares what comes out.
pub(crate) fn go(project: &Project, setting: &Setting, adapters: &[String], how: How) -> Result<Vec<Value>, Failure> {
    let named: Vec<String> = match adapters {
        [] => setting.shelf.heads(Kind::Adapter)?.into_iter().map(|head| head.id).collect(),
        named => named.to_vec(),
    };
    let mut cases = Vec::new();
    for name in &named {
        let found = setting.shelf.adapter(name)?;
        if found.is.examples.is_empty() && !adapters.is_empty() {
            let message = format!("{name} has no examples to be called");
            return Err(Failure::new(error::INPUT, message)
                .hint("write `examples: [{name, operation, params}]` into the adapter"));
        }
        for example in &found.is.examples {
            let ask = Ask {
                tool: found.is.tool_id.clone(),
                adapter: Some(found.item.id.clone()),
                operation: example.operation.clone(),
                params: example.params.clone(),
                input: None,
            };
            let called = match setting.call(&new_id(), &ask, None, &|| false) {
                Ok(called) => called,
                // One that cannot be called says nothing about the others.
                Err(failure) => {
                    let (id, name) = (&found.item.id, &example.name);
                    cases.push(json!({"ok": false, "did": "failed", "adapter_id": id, "name": name, "detail": failure.message}));
                    continue;
                }
            };
            let of = json!({
                "why": super::tell::why(&called.result),
                "name": example.name, "adapter_id": found.item.id, "adapter_version": found.item.version,
                "adapter_hash": found.item.hash, "operation": example.operation, "params": example.params,
                "status": called.result["status"], "exit_code": called.result["exit_code"], "output": called.result["output"],
            });
            cases.push(case(project, &found.item.id, &example.name, of, how)?);
        }
    }
    if cases.is_empty() {
        let message = "no adapter has examples to be called";
        return Err(
            Failure::new(error::INPUT, message).hint("write `examples: [{name, operation, params}]` into an adapter")
        );
    }
    Ok(cases)
}

fn case(project: &Project, adapter: &str, name: &str, mut now: Value, how: How) -> Result<Value, Failure> {
    let path = folder(project, adapter).join(format!("{name}.json"));
    let kept: Option<Value> = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let same = |kept: &Value| {
        ["status", "exit_code", "output", "params", "operation"].iter().all(|key| kept[*key] == now[*key])
    };
    let told = |ok: bool, did: &str, detail: String| json!({"ok": ok, "did": did, "adapter_id": adapter, "name": name, "detail": detail});
    let is_well = now["status"] == "success";
    Ok(match (how, kept) {
        (How::Check, None) => told(false, "missing", "nothing is recorded: `actum tool golden record`".into()),
        (How::Check, Some(kept)) if same(&kept) => told(true, "same", String::new()),
        (How::Check, Some(kept)) => told(false, "differs", first_difference(&kept, &now)),
        (How::Record { .. }, _) if !is_well => {
            let why = now["why"].as_str().unwrap_or_default();
            told(false, "failed", format!("nothing was recorded, because the call ended as {}: {why}", now["status"]))
        }
        (How::Record { .. }, Some(kept)) if same(&kept) => told(true, "same", String::new()),
        (How::Record { update: false }, Some(kept)) => {
            told(false, "differs", format!("{}; `--update` replaces it", first_difference(&kept, &now)))
        }
        (How::Record { .. }, kept) => {
            if let Some(fields) = now.as_object_mut() {
                fields.remove("why");
            }
            write(&path, &now)?;
            told(true, if kept.is_some() { "updated" } else { "recorded" }, String::new())
        }
    })
}

/// Where two outputs part, in a few words.
fn first_difference(kept: &Value, now: &Value) -> String {
    for key in ["status", "exit_code", "params", "operation", "output"] {
        if kept[key] != now[key] {
            let hash =
                |value: &Value| canon::canonical(value).map(|text| Digest::sha256(&text).to_hex()).unwrap_or_default();
            let at = path_of_difference(&kept[key], &now[key], key);
            return format!("{at} differs (sha256 {} was {})", &hash(&now[key])[..12], &hash(&kept[key])[..12]);
        }
    }
    String::new()
}

fn path_of_difference(a: &Value, b: &Value, at: &str) -> String {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let key = a.keys().chain(b.keys()).find(|key| a.get(*key) != b.get(*key));
            key.map_or(at.to_owned(), |key| {
                path_of_difference(
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                    &format!("{at}.{key}"),
                )
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            let n = (0..a.len().max(b.len())).find(|n| a.get(*n) != b.get(*n)).unwrap_or(0);
            path_of_difference(
                a.get(n).unwrap_or(&Value::Null),
                b.get(n).unwrap_or(&Value::Null),
                &format!("{at}[{n}]"),
            )
        }
        _ => at.to_owned(),
    }
}

fn write(path: &PathBuf, value: &Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        let beside = path.with_extension(format!("{}.tmp", new_id()));
        std::fs::write(&beside, format!("{text}\n"))?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e))
}
