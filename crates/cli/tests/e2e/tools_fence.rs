//! Ways around the rules for tools that somebody tried: what only looks starts nothing, what is ours is shown to nobody,
//! more is never had by saying it elsewhere, and an agent does not fill the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use serde_json::json;

use super::actum;
use super::bridge::{WIDE, good, good_with_consent, out, shell, wide, with_tools};
use super::run::one;
use super::tools::{adapter, add, call, refused, tool, try_add, waits, with};

/// A server that leaves a mark wherever it is started, and knows what it was given.
const SERVER: &str = "import os\nopen('/tmp/x', 'w')\nprint(os.environ.get('TOKEN'), flush=True)\n";

#[test]
fn an_agent_that_looks_starts_no_server() {
    let mcp = json!({
        "tool_id": "M", "name": "m", "version": "1.0.0", "owner": "tests", "provenance": {"license": "MIT"},
        "scope": {"commands": ["python3"], "filesystem": ["."]}, "approve_first_use": true,
        "servers": {"s": {"command": ["python3", "srv.py"]}},
        "approval": {"approver": "tests", "date": "2026-01-16"},
    });
    let way = json!({
        "adapter_id": "A-M", "name": "m", "version": "1.0.0", "tool_id": "M", "type": "mcp",
        "interface": {"mcp": {"server": "s", "transport": "stdio", "tool_mapping": {"go": "go"}}},
    });
    let script = format!("cat > srv.py <<'X'\n{SERVER}X\nactum adapter show A-M --level L2 --json > out/shown");
    let actum = with_tools(&script, "", &[(mcp, way)]);
    actum.file("srv.py", "raise SystemExit(3)\n");
    good(&actum);
    let shown = out(&actum, "shown");
    assert!(shown.contains("\"interface\"") && !shown.contains("tools_unknown"), "{shown}");
    assert!(!actum.path(".actum/cache/schema").exists(), "nothing is remembered of what an agent could have written");
    // Nor does anybody else's look, because a person has to agree to the first use.
    let ended = actum.run(&["adapter", "show", "A-M", "--level", "L2", "--json"]);
    assert!(ended.ok().contains("a person has to agree"));
}

#[test]
fn what_is_ours_is_shown_to_no_tool() {
    let actum = actum();
    let ls = |id: &str, path: &str| {
        let entry = with(tool(id, &["sh"]), "scope/filesystem", json!([path]));
        let list = json!({"executable": "sh", "base_args": ["-c", "ls -a; cat other/.actum/key.pem; python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"s.sock\")'"]});
        [entry, adapter(&format!("A-{id}"), id, list)]
    };
    fs::create_dir_all(actum.path("sub/other/.actum")).unwrap();
    fs::write(actum.path("sub/other/.actum/key.pem"), "theirs").unwrap();
    let _socket = UnixListener::bind(actum.path("sub/s.sock")).unwrap();
    actum.run(&["key", "show"]).ok();
    symlink(".actum", actum.path("notes")).unwrap();
    let ended = try_add(&actum, &ls("T1", ".actum"));
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    add(&actum, &ls("T2", "notes"));
    let (code, result) = call(&actum, "T2", json!({}));
    assert_ne!(code, 0, "{result}");
    assert!(!result["stdout"].as_str().unwrap().contains("key.pem"), "{result}");
    add(&actum, &ls("T3", "sub"));
    let (code, result) = call(&actum, "T3", json!({}));
    assert_ne!(code, 0, "the socket was reached: {result}");
    assert!(!result.to_string().contains("theirs"), "{result}");
}

#[test]
fn less_watching_is_more_and_waits_for_a_person() {
    let actum = actum();
    let digest = "0".repeat(64);
    let mut first = with(tool("T", &["sh"]), "provenance/checksum", json!(format!("sha256:{digest}")));
    first["secrets"] = json!({"TOKEN": "env:HARMLESS"});
    first["approve_first_use"] = json!(true);
    first["servers"] = json!({"s": {"command": ["sh", "a.sh"]}});
    add(&actum, std::slice::from_ref(&first));
    let next = with(first.clone(), "version", json!("2.0.0"));
    let mut without = next.clone();
    without["provenance"].as_object_mut().unwrap().remove("checksum");
    for wider in [
        without,
        with(next.clone(), "secrets/TOKEN", json!("env:VERY_SECRET")),
        with(next.clone(), "approve_first_use", json!(false)),
        with(next.clone(), "servers/s/command", json!(["sh", "b.sh"])),
    ] {
        waits(&try_add(&actum, &[wider]));
    }
    // To take it away and bring it back is no way around.
    actum.run(&["tool", "remove", "T"]).ok();
    let wide = with(next.clone(), "scope/commands", json!(["sh", "python3"]));
    waits(&try_add(&actum, &[wide]));
    add(&actum, &[next]);
}

#[test]
fn a_blocked_adapter_stays_blocked() {
    let actum = actum();
    let way = adapter("A", "T", json!({"executable": "true"}));
    add(&actum, &[tool("T", &["true"]), way.clone()]);
    actum.run(&["adapter", "block", "A"]).ok();
    add(&actum, &[with(way, "version", json!("2.0.0"))]);
    let called = call(&actum, "T", json!({}));
    assert_eq!(refused(&called), ["IV-01"]);
    assert!(called.1.to_string().contains("blocked"), "{}", called.1);
}

#[test]
fn the_schema_of_an_operation_holds_for_every_way_to_call_it() {
    let actum = actum();
    let mut entry = tool("T", &["echo"]);
    let schema = json!({"type": "object", "properties": {"f": {"enum": ["ok"]}}, "required": ["f"]});
    entry["operations"] = json!({"say": {"parameters": schema}});
    add(&actum, &[entry, adapter("A", "T", json!({"executable": "echo", "arg_mapping": {"f": "{f}"}}))]);
    for words in [vec!["T"], vec!["T", "say"], vec!["T", "--adapter", "A"]] {
        let run = |value: &str| {
            let param = format!("f={value}");
            actum.run(&[&["tool", "call"], words.as_slice(), &["--param", &param]].concat())
        };
        assert_eq!(run("ok").code, 0, "{words:?}");
        let ended = run("other");
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{words:?}: {}", ended.stderr);
    }
    assert_eq!(actum.run(&["tool", "call", "T", "echo", "--param", "f=other"]).code, 3, "the program is no operation");
}

#[test]
fn a_tool_that_knows_a_secret_does_not_run_what_the_agent_wrote() {
    let mut tools = shell("T", "read", "sh report.sh", json!({"secrets": {"TOKEN": "env:TOOL_TOKEN"}}));
    tools.1["interface"]["cli"] = json!({"executable": "sh", "base_args": ["report.sh"]});
    let script = "echo 'echo $TOKEN | rev' > report.sh; actum tool call T > out/said";
    let actum = with_tools(script, "", &[tools]).with_env("TOOL_TOKEN", "a-long-token");
    actum.file("report.sh", "echo as it was");
    good_with_consent(&actum);
    assert_eq!(out(&actum, "said"), "as it was\n");
}

#[test]
fn an_agent_does_not_fill_the_machine_with_answers() {
    let tools = shell("T", "read", "head -c 1000000 /dev/zero | tr '\\0' '\\1'", json!({}));
    let script =
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do actum tool call T --param word=$n > /dev/null; done";
    let actum = with_tools(script, "", &[tools]);
    let (code, run) = one(&actum, wide(), &WIDE);
    assert_eq!((code, &run["status"]), (3, &json!("denied")), "{run}");
    assert!(run["denial_reason"].as_str().unwrap().contains("more than 40 MiB"), "{run}");
    super::bridge::repeats(&actum, &super::run::id(&run));
}

/// A run could have put the link there: it is not followed, and the refusal says which name it is.
#[test]
fn a_link_in_the_scope_of_a_tool_is_refused() {
    let actum = actum();
    let entry = with(tool("T", &["cat"]), "scope/filesystem", json!(["data"]));
    add(&actum, &[entry, adapter("A", "T", json!({"executable": "cat", "base_args": ["x"]}))]);
    actum.file("real/x", "one");
    symlink("real", actum.path("data")).unwrap();
    let refused = actum.run(&["exec", "--json", "--tool", "T", "--session", "s"]);
    let shown = format!("{}{}", refused.stdout, refused.stderr);
    assert!(
        refused.code != 0 && shown.contains("T cannot use data of ") && shown.contains("\"output\":null"),
        "{shown}"
    );
}

/// The smallest MCP server: one tool that says what is in a file.
const READER: &str = r#"
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "reader", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "read", "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": open(m["params"]["arguments"]["path"]).read()}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"#;

#[test]
fn a_server_sees_what_the_agent_has_changed_meanwhile() {
    let entry = json!({
        "tool_id": "M", "name": "m", "version": "1.0.0", "owner": "tests", "provenance": {"license": "MIT"},
        "scope": {"commands": ["python3"], "filesystem": ["."]}, "servers": {"s": {"command": ["python3", "reader.py"]}},
        "approval": {"approver": "tests", "date": "2026-01-16"},
    });
    let way = json!({
        "adapter_id": "A-M", "name": "m", "version": "1.0.0", "tool_id": "M", "type": "mcp",
        "interface": {"mcp": {"server": "s", "transport": "stdio", "tool_mapping": {"read": "read"}}},
        "transforms": {"output": [{"type": "extract", "spec": "$.content[0].text"}]},
    });
    let script = "for n in one two three; do echo $n > f; actum tool call M read --param path=f >> out/said; done";
    let actum = with_tools(script, "", &[(entry, way)]);
    actum.file("reader.py", READER);
    let run = good(&actum);
    assert_eq!(out(&actum, "said"), "one\ntwo\nthree\n");
    super::bridge::repeats(&actum, &super::run::id(&run));
}

#[test]
fn a_call_counts_although_its_worker_died_before_the_act_was_on_record() {
    let wanted =
        super::run::with(wide(), "constraints", json!({"max_tool_ops": 1, "max_files": 10, "max_delta_size": 10}));
    for (place, code) in [("run.frozen", 0), ("run.acted", 3), ("run.weighed", 0)] {
        let actum = with_tools("actum tool call T > out/said", "", &[shell("T", "read", "echo said", json!({}))]);
        actum.file("work.json", wanted.to_string());
        let mut running = actum.start(&["run", "--json", "work.json"], &[("ACTUM_CRASH_AT", place)]);
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{place}");
        running.kill();
        let runs = super::runs::all_runs(&actum);
        super::runs::work(&actum, &runs);
        let status = super::runs::status(&actum, &runs[0]);
        let message = status["result"]["denial_reason"].as_str().unwrap_or_default();
        assert_eq!(status["state"] == "succeeded", code == 0, "{place}: {status}");
        assert_eq!(message.contains("2 > 1, 1 of them made by a worker that died"), code == 3, "{place}: {status}");
    }
}

#[test]
fn input_goes_by_whatever_name_the_adapter_has_for_it() {
    let actum = actum();
    let cat = |id: &str, cli| [tool(id, &["cat"]), adapter(&format!("A-{id}"), id, cli)];
    add(&actum, &cat("T1", json!({"executable": "cat", "stdin": "text"})));
    add(&actum, &cat("T2", json!({"executable": "cat"})));
    let file = actum.file("in", "put in").display().to_string();
    let ended = actum.run(&["exec", "--tool", "T1", "--stdin", &file, "--json"]);
    assert_eq!(ended.json()["output"], "put in");
    let ended = actum.run(&["exec", "--tool", "T2", "--stdin", &file, "--json"]);
    assert_eq!(refused(&(ended.code, ended.json())), ["IV-05"]);
}
