//! Tools and adapters through the real binary: what the tests of all their sides share.

use actum_testkit::program::{Ended, Program};
use serde_json::{Value, json};

/// The first example of the seed, letter by letter.
pub(crate) const RIPGREP: &str = r#"adapter_id: ADP-001
name: ripgrep-search
version: "1.0.0"
tool_id: TL-003

type: cli

interface:
  cli:
    executable: rg
    base_args: ["--json", "--no-heading"]
    arg_mapping:
      pattern: "{pattern}"
      path: "{path}"
      ignore_case: "-i"
      max_count: "-m {value}"
    env_mapping: {}

transforms:
  input: []
  output:
    - type: parse
      spec: json_lines

errors:
  retry:
    max_attempts: 1
    backoff_ms: 0
    retryable_codes: []
  fallback: null

sandbox_override:
  timeout_ms: 60000
  memory_mb: 256
  network:
    enabled: false

metadata:
  author: Runtime Agent
  created: "2026-01-16"
  updated: "2026-01-16"
  status: active
"#;

/// The least a tool has to say to be called by it.
pub(crate) const RIPGREP_TOOL: &str = r#"tool_id: TL-003
name: ripgrep
version: "1.0.0"
owner: search team
provenance: { license: MIT }
scope: { commands: [rg], filesystem: ["."] }
approval: { approver: search team, date: "2026-01-16" }
"#;

/// A tool that may run some programs on the whole project, and is approved.
pub(crate) fn tool(id: &str, commands: &[&str]) -> Value {
    json!({
        "tool_id": id, "name": id, "version": "1.0.0", "owner": "tests", "provenance": {"license": "MIT"},
        "scope": {"commands": commands, "filesystem": ["."]},
        "approval": {"approver": "tests", "date": "2026-01-16"},
    })
}

/// An adapter of it that runs a program.
pub(crate) fn adapter(id: &str, of: &str, cli: Value) -> Value {
    json!({
        "adapter_id": id, "name": id, "version": "1.0.0", "tool_id": of, "type": "cli", "interface": {"cli": cli},
    })
}

/// The same with another value somewhere; what leads there is made.
pub(crate) fn with(mut of: Value, pointer: &str, value: Value) -> Value {
    let mut at = &mut of;
    for name in pointer.split('/') {
        at = &mut at[name];
    }
    *at = value;
    of
}

/// Adds documents, each from a file named by its id.
pub(crate) fn try_add(actum: &Program, documents: &[Value]) -> Ended {
    let mut files = Vec::new();
    for document in documents {
        let id = document["adapter_id"].as_str().or(document["tool_id"].as_str()).unwrap();
        files.push(actum.file(&format!("tools/{id}.json"), document.to_string()).display().to_string());
    }
    let words = ["tool", "add", "--json"].into_iter().chain(files.iter().map(String::as_str));
    actum.run(&words.collect::<Vec<_>>())
}

pub(crate) fn add(actum: &Program, documents: &[Value]) -> Value {
    let ended = try_add(actum, documents);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    ended.json()
}

/// Calls a tool; the result on stdout, whatever became of it.
pub(crate) fn call(actum: &Program, tool: &str, params: Value) -> (i32, Value) {
    let ended = try_call(actum, tool, params);
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json())
}

pub(crate) fn try_call(actum: &Program, tool: &str, params: Value) -> Ended {
    actum.run(&["exec", "--json", "--tool", tool, "--params-json", &params.to_string()])
}

/// A call that waits for a person; the request's id.
pub(crate) fn waits(ended: &Ended) -> String {
    assert_eq!((ended.code, ended.error()["code"].as_str()), (8, Some("APPROVAL_NEEDED")), "{ended:?}");
    ended.error()["details"]["approval_id"].as_str().unwrap().to_owned()
}

/// A call that was refused before anything ran; the checks that did not pass.
pub(crate) fn refused(called: &(i32, Value)) -> Vec<&str> {
    let (code, result) = called;
    assert_eq!((*code, result["status"].as_str()), (3, Some("refused")), "{result}");
    assert_eq!(result["exit_code"], Value::Null, "{result}");
    let found = result["violations"].as_array().unwrap();
    found.iter().map(|violation| violation["check"].as_str().unwrap()).collect()
}

/// A project with the seed's ripgrep in it.
pub(crate) fn with_ripgrep(actum: Program) -> Program {
    actum.file("tools/ripgrep/tool.yaml", RIPGREP_TOOL);
    actum.file("tools/ripgrep/adapter.yaml", RIPGREP);
    actum.run(&["tool", "add"]).ok();
    actum
}
