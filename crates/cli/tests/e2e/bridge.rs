//! Tools for an agent in its cell, end to end: what it sees of them and what not, that each call is an execution of its
//! own on the stage as it is, counted, limited, traced, and remembered.

use std::fs;

use actum_testkit::program::Program;
use actum_testkit::tree::read;
use serde_json::{Value, json};

use super::actum;
use super::run::{asked, id, item, one, run, with};
use super::runs::until;
use super::sandbox::{Who, own_all};

/// A tool that runs a shell script; `$1` is its parameter `word`. `more` goes over its entry.
pub(crate) fn shell(id: &str, access: &str, script: &str, more: Value) -> (Value, Value) {
    let mut tool = json!({
        "tool_id": id, "name": id.to_lowercase(), "version": "1.0.0", "owner": "tests", "description": format!("Does {id}."),
        "provenance": {"license": "MIT"},
        "scope": {"commands": ["sh"], "data_access": access, "network": "off", "filesystem": ["."]},
        "approval": {"approver": "tests", "date": "2026-01-16"},
    });
    merge(&mut tool, more);
    let adapter = json!({
        "adapter_id": format!("A-{id}"), "name": format!("{}-sh", id.to_lowercase()), "version": "1.0.0", "tool_id": id,
        "type": "cli",
        "interface": {"cli": {"executable": "sh", "base_args": ["-c", script, id], "arg_mapping": {"word": "{word}"}}},
        "examples": [{"name": "one", "params": {"word": "x"}}],
    });
    (tool, adapter)
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// Registers tools. What they were read from is no part of the project.
pub(crate) fn register(actum: &Program, tools: &[(Value, Value)]) {
    let folder = actum_testkit::folder::Folder::new();
    for (n, (tool, adapter)) in tools.iter().enumerate() {
        folder.file(&format!("{n}-tool.json"), tool.to_string());
        folder.file(&format!("{n}-adapter.json"), adapter.to_string());
    }
    if !tools.is_empty() {
        actum.run(&["tool", "add", &other_folder(&folder)]).ok();
    }
}

fn other_folder(folder: &actum_testkit::folder::Folder) -> String {
    let done = actum_testkit::program::other("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    assert!(done.success());
    folder.path().display().to_string()
}

/// A project with one agent `a`, a shell script with `more` in its section.
pub(crate) fn agent(actum: &Program, script: &str, more: &str) {
    let phases = r#"["step", "plan", "correct"]"#;
    let phases = if script.contains("ACTUM_PHASE") { phases } else { r#"["step"]"# };
    let script = format!("mkdir -p out\n{script}");
    actum.file(
        "actum.toml",
        format!(
            "[agents.a]\ntype = \"command\"\ncommand = [\"sh\", \"-uc\", {}, {}]\nphases = {phases}\n{more}\n",
            json!(script),
            json!(super::runs::tag(actum)),
        ),
    );
}

pub(crate) fn with_tools(script: &str, more: &str, tools: &[(Value, Value)]) -> Program {
    let actum = actum();
    register(&actum, tools);
    agent(&actum, script, more);
    actum
}

/// An item of agent `a` that may do much.
pub(crate) fn wide() -> Value {
    with(item("i", "a"), "constraints", json!({"max_files": 1000, "max_delta_size": 1000, "max_tool_ops": 100}))
}

pub(crate) const WIDE: [&str; 2] = ["--set", "maxFilesPerStep=100"];

/// Runs it, and wants it to go well.
pub(crate) fn good(actum: &Program) -> Value {
    let (code, run) = one(actum, wide(), &WIDE);
    assert_eq!(code, 0, "{run}\n{}", actum.run(&["logs", &id(&run)]).stdout);
    run
}

/// The same, while a person agrees to everything that its tools ask for.
pub(crate) fn good_with_consent(actum: &Program) -> Value {
    let file = actum.file("work.json", wide().to_string());
    let running = actum.start(&[&["run", "--json", file.to_str().unwrap()], &WIDE[..]].concat(), &[]);
    until("the run is over", || {
        let listed = actum.run(&["approvals", "list", "--json"]).json();
        for waiting in listed["approvals"].as_array().unwrap().iter().filter(|one| one["state"] == "pending") {
            actum.run(&["approve", waiting["id"].as_str().unwrap(), "--minutes", "10"]);
        }
        let runs = actum.run(&["list", "--json"]).json();
        runs["runs"].as_array().is_some_and(|runs| runs.iter().any(|run| run["status"].is_string()))
    });
    let (code, lines, errors) = running.finish();
    assert_eq!(code, 0, "{lines:?} {errors:?}");
    serde_json::from_str::<Value>(&lines.concat()).unwrap()["runs"][0].clone()
}

pub(crate) fn out(actum: &Program, name: &str) -> String {
    let path = actum.path("out").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn out_json(actum: &Program, name: &str) -> Value {
    let text = out(actum, name);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"))
}

/// What a run left under a name.
pub(crate) fn left(actum: &Program, run: &str, name: &str) -> Value {
    let bytes = fs::read(actum.path(&format!(".actum/runs/{run}/{name}"))).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// The tool trace that was signed.
pub(crate) fn trace(actum: &Program, run: &str) -> Vec<Value> {
    left(actum, run, "recording.json")["capsule"]["toolTrace"].as_array().unwrap().clone()
}

pub(crate) fn repeats(actum: &Program, run: &str) {
    let ended = actum.run(&["replay", "--json", run]);
    assert_eq!((ended.code, &ended.json()["identical"]), (0, &json!(true)), "{}{}", ended.stdout, ended.stderr);
}

const MCP: &str = r#"
mcp() {
  curl -sS -m 60 -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d "$1" "$ACTUM_MCP_URL"
}
tool() { mcp '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"'$1'","arguments":'"$2"'}}'; }
"#;

#[test]
fn bridge_levels_by_command_and_by_mcp() {
    let script = format!(
        r#"{MCP}
actum adapter list --json > out/l0
actum adapter list --level L1 --json > out/l1
for level in L1 L2 L3; do actum tool show T1 --level $level --json > out/show-$level; done
actum adapter show A-T1 --level L2 --json > out/adapter
actum tool call T1 --param word=hello --json > out/call; echo $? > out/code
actum tool call T1 --param word=plain > out/plain
mcp '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}}}' > out/init
mcp '{{"jsonrpc":"2.0","id":2,"method":"tools/list"}}' > out/tools
tool list_tools '{{"level":"L0"}}' > out/mcp-list
tool describe_tool '{{"id":"T1","level":"L2"}}' > out/mcp-show
tool call_tool '{{"tool_id":"T1","params":{{"word":"from mcp"}}}}' > out/mcp-call
tool call_tool '{{"tool_id":"T9","params":{{}}}}' > out/mcp-none
"#
    );
    for who in Who::BOTH {
        let actum = with_tools(&script, "", &[shell("T1", "read", "echo \"said $1\"", json!({}))]);
        own_all(actum.folder(), who);
        let ended = who.run_with(&actum, &["run", "--json", "-"], wide().to_string().as_bytes());
        assert_eq!(ended.code, 0, "{}: {}{}", who.word(), ended.stdout, ended.stderr);
        let run = ended.json()["runs"][0].clone();
        let shown = json!({"adapters": [{"adapter_id": "A-T1", "name": "t1-sh", "tool_id": "T1", "type": "cli"}]});
        assert_eq!(out_json(&actum, "l0"), shown);
        assert_eq!(out_json(&actum, "l1")["adapters"][0]["status"], "active");
        assert_eq!(out_json(&actum, "show-L1")["tool_id"], "T1");
        let sizes = ["L1", "L2", "L3"].map(|level| out(&actum, &format!("show-{level}")).len());
        assert!(sizes[0] < sizes[1] && sizes[1] <= sizes[2], "{sizes:?}");
        assert_eq!(out_json(&actum, "adapter")["adapter_id"], "A-T1");
        let call = out_json(&actum, "call");
        assert_eq!(
            (&call["status"], &call["output"], &call["cached"]),
            (&json!("success"), &json!("said hello\n"), &json!(false))
        );
        assert_eq!(call.get("evidence"), None, "what the host saw is not told");
        assert_eq!((out(&actum, "code").trim(), out(&actum, "plain").trim()), ("0", "said plain"));
        assert_eq!(out_json(&actum, "init")["result"]["serverInfo"]["name"], "actum");
        let tools = out_json(&actum, "tools");
        let names: Vec<_> =
            tools["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["list_tools", "describe_tool", "call_tool"]);
        assert_eq!(out_json(&actum, "mcp-list")["result"]["structuredContent"], shown);
        assert_eq!(out_json(&actum, "mcp-show")["result"]["structuredContent"], out_json(&actum, "show-L2"));
        let called = out_json(&actum, "mcp-call");
        assert_eq!(called["result"]["structuredContent"]["output"], "said from mcp\n", "{called}");
        assert_eq!(out_json(&actum, "mcp-none")["result"]["structuredContent"]["status"], "refused");
        // Counted, traced, signed.
        assert_eq!(run["metrics"]["tool_ops_count"], 4, "{run}");
        let trace = trace(&actum, &id(&run));
        assert_eq!(trace.len(), 4);
        let first = &trace[0];
        assert_eq!((&first["name"], &first["status"]), (&json!("tool T1"), &json!("success")));
        assert_eq!(first["input"]["call"]["params"], json!({"word": "hello"}));
        let registered = who.run(&actum, &["tool", "show", "T1", "--level", "L3", "--json"]).json();
        assert_eq!(
            (&first["input"]["tool"]["tool_id"], &first["input"]["tool"]["version"]),
            (&json!("T1"), &json!("1.0.0"))
        );
        assert_eq!(first["input"]["tool"]["hash"], registered["registry"]["hash"]);
        let registered = who.run(&actum, &["adapter", "show", "A-T1", "--level", "L3", "--json"]).json();
        assert_eq!(first["input"]["adapters"][0]["hash"], registered["registry"]["hash"]);
        assert_eq!(first["output"].as_str().unwrap().len(), 64);
        assert_ne!(first["output"], trace[1]["output"]);
        assert_eq!(trace[3]["status"], "error");
        assert_eq!(who.run(&actum, &["verify", &id(&run)]).code, 0);
        let status = who.run(&actum, &["status", "--json", &id(&run)]).json();
        assert_eq!(status["result"]["metrics"]["tool_ops_count"], 4);
        let ended = who.run(&actum, &["replay", "--json", &id(&run)]);
        assert_eq!(ended.code, 0, "{}: {}", who.word(), ended.stdout);
    }
}

#[test]
fn bridge_lets_an_agent_do_nothing_else() {
    let script = r#"
n=0
try() { n=$((n + 1)); "$@" > out/try-$n 2>&1; echo $? > out/code-$n; }
try actum tool approve T2
try actum tool block T1
try actum tool remove T1
try actum tool add tools
try actum approve 0
try actum approvals list
try actum deny 0
try actum tool golden record
try actum tool refresh
try actum adapter block A-T1
try env -u ACTUM_TOOLS_URL actum tool list --json
try env -u ACTUM_TOOLS_URL actum tool block T1
ls -A . > out/here; ls -A .actum > out/home 2>&1
"#;
    let actum = with_tools(script, "", &[shell("T1", "read", "echo", json!({}))]);
    let before = asked(&actum, &["ledger", "list", "--json"])["entries"].as_array().unwrap().len();
    let run = good(&actum);
    for n in 1..=10 {
        let code: i32 = out(&actum, &format!("code-{n}")).trim().parse().unwrap();
        assert!(code != 0, "{n}: {}", out(&actum, &format!("try-{n}")));
    }
    // Without the address it finds a project of its own at most, never the host's registry.
    assert!(!out(&actum, "try-11").contains("T1"), "{}", out(&actum, "try-11"));
    assert!(
        !out(&actum, "here").contains(".actum\n") || !out(&actum, "home").contains("runs"),
        "{}",
        out(&actum, "home")
    );
    let tools = asked(&actum, &["tool", "list", "--json", "--level", "L1"]);
    assert_eq!((&tools["tools"][0]["status"], tools["tools"].as_array().unwrap().len()), (&json!("active"), 1));
    let changed = asked(&actum, &["ledger", "list", "--json", "--limit", "1000"]);
    let changed = changed["entries"].as_array().unwrap().iter().filter(|e| e["type"] == "registry_change").count();
    assert!(changed <= before, "nothing was changed");
    assert_eq!(run["metrics"]["tool_ops_count"], 0);
}

#[test]
fn bridge_shows_only_what_was_given() {
    let script = r#"
actum adapter list --json > out/list
for tool in OPEN HELD BLOCKED NEW; do
  for level in L0 L1 L2 L3; do actum tool show $tool --level $level > out/show-$tool-$level 2>&1; echo $? > out/show-$tool-$level.code; done
  actum adapter show A-$tool > out/adapter-$tool 2>&1; echo $? > out/adapter-$tool.code
  actum tool call $tool --json > out/call-$tool; echo $? > out/call-$tool.code
done
actum tool call OPEN --adapter A-HELD --json > out/crossed; echo $? > out/crossed.code
"#;
    let tools = ["OPEN", "HELD", "BLOCKED", "NEW"].map(|id| {
        let (mut tool, adapter) = shell(id, "read", "echo secret of $0", json!({}));
        if id == "NEW" {
            tool.as_object_mut().unwrap().remove("approval");
        }
        (tool, adapter)
    });
    let actum = with_tools(script, "tools = [\"OPEN\", \"BLOCKED\", \"NEW\"]", &tools);
    actum.run(&["tool", "block", "BLOCKED"]).ok();
    good(&actum);
    let listed = out_json(&actum, "list");
    let names: Vec<_> =
        listed["adapters"].as_array().unwrap().iter().map(|one| one["tool_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["OPEN"]);
    for tool in ["OPEN", "HELD", "BLOCKED", "NEW"] {
        let is_open = tool == "OPEN";
        for level in ["L0", "L1", "L2", "L3"] {
            let name = format!("show-{tool}-{level}");
            let (code, shown) = (out(&actum, &format!("{name}.code")), out(&actum, &name));
            assert_eq!((code.trim() == "0", shown.contains("\"tool_id\"")), (is_open, is_open), "{name}: {shown}");
        }
        let (code, shown) = (out(&actum, &format!("adapter-{tool}.code")), out(&actum, &format!("adapter-{tool}")));
        assert_eq!(code.trim() == "0", is_open, "{tool}: {shown}");
        let (code, called) = (out(&actum, &format!("call-{tool}.code")), out_json(&actum, &format!("call-{tool}")));
        assert_eq!(
            (code.trim(), called["status"] == "success"),
            (if is_open { "0" } else { "3" }, is_open),
            "{called}"
        );
        assert!(is_open || !called.to_string().contains("secret of"), "{called}");
    }
    assert_eq!(out(&actum, "crossed.code").trim(), "3", "{}", out(&actum, "crossed"));
}

#[test]
fn bridge_is_not_there_without_tools() {
    let script = "env | grep -c '^ACTUM_\\(MCP\\|TOOLS\\)_URL' > out/urls; command -v actum > out/actum; \
                  curl -s -m 5 http://127.0.0.1:47800/ > out/answer; true";
    let tool = || shell("T1", "read", "echo", json!({}));
    let unapproved = || {
        let (mut tool, adapter) = tool();
        tool.as_object_mut().unwrap().remove("approval");
        (tool, adapter)
    };
    let none = |actum: &Program, case: &str| {
        good(actum);
        assert_eq!((out(actum, "urls").trim(), out(actum, "answer").as_str()), ("0", ""), "{case}");
    };
    none(&with_tools(script, "", &[]), "nothing registered");
    none(&with_tools(script, "tools = []", &[tool()]), "nothing given");
    none(&with_tools(script, "tools = [\"T2\"]", &[tool()]), "another one given");
    none(&with_tools(script, "", &[unapproved()]), "not approved");
    let blocked = with_tools(script, "", &[tool()]);
    blocked.run(&["tool", "block", "T1"]).ok();
    none(&blocked, "blocked");
    // As a check that the script would see one.
    let actum = with_tools(script, "", &[tool()]);
    good(&actum);
    assert_eq!(out(&actum, "urls").trim(), "2");
}

/// Looks at files, and tries to change them.
const LOOKS: &str = "cat kept made changed sub/new 2>&1; ls gone sub 2>&1; echo no > sneaked || true; echo no > kept";

#[test]
fn bridge_calls_see_the_stage_as_it_is() {
    let script = r#"
echo made > made; echo more >> changed; rm gone; mkdir -p sub; echo new > sub/new; rm -r old; mkdir old; echo o > old/other
actum tool call LOOK --json > out/first
actum tool call DEEP --json > out/deep
rm made; rm -r sub/deep
actum tool call LOOK --json > out/second
actum tool call DEEP --json > out/deep-gone
actum tool call NOTHING --json > out/nothing
actum tool call STATE --json > out/state
"#;
    let tools = [
        shell("LOOK", "read", LOOKS, json!({})),
        shell("DEEP", "read", "ls; cat file; ls ../../old", json!({"scope": {"filesystem": ["sub/deep", "old"]}})),
        shell("NOTHING", "none", "pwd; ls -A", json!({"scope": {"filesystem": []}})),
        shell("STATE", "read", "ls -A .actum / /root 2>&1; cat .actum/* 2>/dev/null; true", json!({})),
    ];
    // A tool that may write makes the stage a copy.
    for copied in [false, true] {
        for who in Who::BOTH {
            let case = format!("{} {copied}", who.word());
            let actum = with_tools(script, "", &tools);
            if copied {
                register(&actum, &[shell("WRITE", "write", "true", json!({}))]);
            }
            for name in ["kept", "changed", "gone", "old/file", "sub/deep/file"] {
                actum.file(name, format!("{name}\n"));
            }
            own_all(actum.folder(), who);
            let flags = [&["run", "--json", "-"][..], &WIDE].concat();
            let ended = who.run_with(&actum, &flags, wide().to_string().as_bytes());
            assert_eq!(ended.code, 0, "{case}: {}{}", ended.stdout, ended.stderr);
            let first = out_json(&actum, "first");
            let text = first["stdout"].as_str().unwrap();
            assert!(text.starts_with("kept\nmade\nchanged\nmore\nnew\n"), "{case}: {first}");
            assert!(text.contains("deep\nnew\n") && text.contains("gone"), "{case}: {first}");
            assert_eq!((&first["status"], &first["exit_code"]), (&json!("failure"), &json!(2)), "{case}: {first}");
            assert!(
                !actum.path("sneaked").exists() && fs::read_to_string(actum.path("kept")).unwrap() == "kept\n",
                "{case}"
            );
            let second = out_json(&actum, "second");
            assert!(!second["stdout"].as_str().unwrap().contains("\nmade\n"), "{case}: {second}");
            // A part of the workspace alone, and only while it is there.
            let deep = out_json(&actum, "deep");
            assert_eq!(deep["stdout"], "file\nsub/deep/file\nother\n", "{case}: {deep}");
            let deep = out_json(&actum, "deep-gone");
            assert!(!deep["stdout"].as_str().unwrap().contains("file"), "{case}: {deep}");
            assert!(!out_json(&actum, "nothing")["stdout"].as_str().unwrap().contains("kept"), "{case}");
            let state = out(&actum, "state");
            assert!(!state.contains("runs") && !state.contains("store") && !state.contains("blobs"), "{case}: {state}");
            let run = id(&ended.json()["runs"][0]);
            let ended = who.run(&actum, &["replay", "--json", &run]);
            assert_eq!(ended.code, 0, "{case}: {}", ended.stdout);
        }
    }
}

#[test]
fn bridge_calls_that_write_are_part_of_the_result() {
    let script = r#"
echo agent > mine
actum tool call WRITE --param word=one --json > out/answer
cat made/one > out/seen
actum tool call READ --json > out/read
echo after >> made/one
"#;
    let writes = "mkdir -p made empty/folder; echo \"$1\" > made/$1; echo '#!/bin/sh' > made/run; chmod +x made/run; rm gone; \
                  echo more >> kept; ln -s kept link; rm -r old; touch \"$(printf 'odd\\377')\"";
    let tools = [
        shell("WRITE", "write", writes, json!({})),
        shell("READ", "read", "cat mine made/one; echo no > mine", json!({})),
    ];
    for who in Who::BOTH {
        let case = who.word();
        let actum = with_tools(script, "", &tools);
        for name in ["kept", "gone", "old/a/b"] {
            actum.file(name, format!("{name}\n"));
        }
        own_all(actum.folder(), who);
        let before = read(actum.folder());
        let flags = [&["run", "--json", "-"][..], &WIDE].concat();
        let ended = who.run_with(&actum, &flags, wide().to_string().as_bytes());
        assert_eq!(ended.code, 0, "{case}: {}{}", ended.stdout, ended.stderr);
        let run = ended.json()["runs"][0].clone();
        let answer = out_json(&actum, "answer");
        assert_eq!((&answer["status"], answer.get("changes")), (&json!("success"), None), "{case}: {answer}");
        assert_eq!(out(&actum, "seen"), "one\n");
        assert_eq!(out_json(&actum, "read")["stdout"], "agent\none\n");
        assert_eq!(fs::read_to_string(actum.path("made/one")).unwrap(), "one\nafter\n");
        assert_eq!(fs::read_to_string(actum.path("kept")).unwrap(), "kept\nmore\n");
        assert!(!actum.path("gone").exists() && !actum.path("old").exists());
        assert_eq!(fs::read_link(actum.path("link")).unwrap().display().to_string(), "kept");
        let diff = who.run(&actum, &["diff", &id(&run)]).stdout;
        assert!(diff.contains("made/one") && diff.contains("+more"), "{case}: {diff}");
        assert!(run["created_files"].to_string().contains("made/run"), "{case}: {run}");
        let ended = who.run(&actum, &["replay", "--json", &id(&run)]);
        assert_eq!(ended.code, 0, "{case}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(who.run(&actum, &["verify", &id(&run)]).code, 0);
        assert_eq!(who.run(&actum, &["undo", &id(&run)]).code, 0);
        assert_eq!(read(actum.folder()), before, "{case}");
    }
}

#[test]
fn bridge_calls_have_limits_of_their_own() {
    let script = r#"
actum tool call SLOW --json > out/slow; echo $? > out/slow.code
actum tool call HUNGRY --json > out/hungry; echo $? > out/hungry.code
actum tool call LOUD --json > out/loud
"#;
    let mut slow = shell("SLOW", "read", "sleep 600", json!({}));
    slow.1["sandbox_override"] = json!({"timeout_ms": 1000});
    let mut hungry = shell("HUNGRY", "read", "head -c 200000000 /dev/zero | tail -c 199999999 | wc -c", json!({}));
    hungry.1["sandbox_override"] = json!({"memory_mb": 64});
    let loud = shell("LOUD", "read", "head -c 3000000 /dev/zero | tr '\\0' x", json!({}));
    let actum = with_tools(script, "memory_mb = 1024", &[slow, hungry, loud]);
    let flags = [&WIDE[..], &["--set", "maxFileBytes=5000000", "--set", "maxTotalDiffBytes=10000000"]].concat();
    let (code, run) = one(&actum, wide(), &flags);
    assert_eq!(code, 0, "{run}");
    let slow = out_json(&actum, "slow");
    assert_eq!(
        (&slow["status"], &slow["exit_code"], out(&actum, "slow.code").trim()),
        (&json!("timeout"), &json!(143), "4")
    );
    let hungry = out_json(&actum, "hungry");
    assert_eq!(out(&actum, "hungry.code").trim(), "1", "{hungry}");
    let loud = out_json(&actum, "loud");
    assert_eq!(loud["truncated"], true, "{}", &loud.to_string()[..400]);
    assert_eq!(trace(&actum, &id(&run)).len(), 3);
    repeats(&actum, &id(&run));
}

#[test]
fn bridge_calls_are_counted_and_the_one_too_many_ends_the_run() {
    let script = r#"
case "$ACTUM_PHASE" in
  plan) [ -e plan-asks ] && actum tool call T --param word=plan > /dev/null
        echo '{"steps": [{"id": "one", "description": "1"}, {"id": "two", "description": "2"}]}' > "$ACTUM_RESPONSE" ;;
  *) n=$ACTUM_PHASE; for n in 1 2; do actum tool call T --param word=$n-$$ >> calls 2>> wrong; done; echo x >> lines; echo beyond ;;
esac
"#;
    let actum = with_tools(script, "", &[shell("T", "read", "echo $1", json!({}))]);
    let before = read(actum.folder());
    for (max, plans, denied) in [(3, false, true), (4, true, true), (4, false, false), (5, true, false)] {
        if plans {
            actum.file("plan-asks", "");
        } else {
            let _ = fs::remove_file(actum.path("plan-asks"));
        }
        let wanted = with(item("i", "a"), "constraints", json!({"max_tool_ops": max}));
        let (code, run) = one(&actum, wanted, &["--dry-run"]);
        let case = format!("{max} {plans}: {run}");
        if denied {
            assert_eq!(
                (code, &run["status"], &run["error_code"]),
                (3, &json!("denied"), &json!("ADMISSION_DENIED")),
                "{case}"
            );
            assert_eq!(run["denial_reason"], format!("Exceeded max tool ops: {} > {max}", max + 1), "{case}");
        } else {
            assert_eq!(code, 0, "{case}");
        }
        assert_eq!(run["metrics"]["tool_ops_count"], max, "{case}");
        assert_eq!(actum.run(&["verify", &id(&run)]).code, 0, "{case}");
        repeats(&actum, &id(&run));
        let _ = fs::remove_file(actum.path("plan-asks"));
        assert_eq!(read(actum.folder()), before, "{case}");
    }
    // Not in time to do anything else: the agent is stopped by it.
    let actum =
        with_tools("actum tool call T; actum tool call T; sleep 600", "", &[shell("T", "read", "echo", json!({}))]);
    let (code, run) = one(&actum, with(item("i", "a"), "constraints", json!({"max_tool_ops": 1})), &[]);
    assert_eq!((code, &run["denial_reason"]), (3, &json!("Exceeded max tool ops: 2 > 1")), "{run}");
    let (code, run) = one(&actum, with(item("i", "a"), "constraints", json!({"max_tool_ops": 0})), &[]);
    assert_eq!((code, &run["denial_reason"]), (3, &json!("Exceeded max tool ops: 1 > 0")), "{run}");
}

#[test]
fn bridge_answers_parallel_calls() {
    let script = r#"
for n in 1 2 3 4 5 6 7 8; do actum tool call T --param word=$n --json > out/$n & done; wait
"#;
    let actum = with_tools(script, "", &[shell("T", "read", "sleep 0.$((9 - $1)); echo $1", json!({}))]);
    let run = good(&actum);
    for n in 1..=8 {
        assert_eq!(out_json(&actum, &n.to_string())["output"], format!("{n}\n"));
    }
    assert_eq!((&run["metrics"]["tool_ops_count"], trace(&actum, &id(&run)).len()), (&json!(8), 8));
    for _ in 0..3 {
        repeats(&actum, &id(&run));
    }
    // More at once than there may be: whichever they are, no more were made.
    let wanted = with(wide(), "constraints", json!({"max_tool_ops": 3}));
    let (code, denied) = one(&actum, wanted, &[]);
    assert_eq!((code, &denied["metrics"]["tool_ops_count"]), (3, &json!(3)), "{denied}");
    for _ in 0..3 {
        repeats(&actum, &id(&denied));
    }
}

#[test]
fn bridge_remembers_results_while_nothing_changes() {
    let script = r#"
actum tool call T --json > out/first
sleep 0.1
actum tool call T --json > out/second
actum tool call T --json > out/third
echo b > in.txt
actum tool call T --json > out/changed
actum tool call T --param word=x --json > out/other
rm in.txt
actum tool call T --json > out/gone
"#;
    for copied in [false, true] {
        let tools = [
            shell("T", "read", "cat in.txt 2>/dev/null; head -c 8 /dev/urandom | od -An -tx1", json!({})),
            shell("W", if copied { "write" } else { "read" }, "true", json!({})),
        ];
        let actum = with_tools(script, "", &tools);
        actum.file("in.txt", "a\n");
        let run = good(&actum);
        let answers = ["first", "second", "third", "changed", "other", "gone"].map(|name| out_json(&actum, name));
        let [first, second, third, changed, other, gone] = &answers;
        // Whoever writes into a folder that is looked at makes it another one: answers go there.
        assert_eq!(first["cached"], false);
        for later in [changed, other, gone] {
            assert_eq!(later["cached"], false, "{copied} {later}");
            assert_ne!(first["output"], later["output"]);
        }
        for later in [second, third] {
            assert!(
                later["cached"] == false || later["output"] == first["output"] || later["output"] == second["output"]
            );
        }
        repeats(&actum, &id(&run));
    }
    // Kept aside, nothing changes between the two.
    let script = "sleep 0.2; actum tool call T --json > /tmp/1; sleep 0.1; actum tool call T --json > /tmp/2; mv /tmp/1 /tmp/2 out";
    let actum = with_tools(script, "", &[shell("T", "read", "head -c 8 /dev/urandom | od -An -tx1", json!({}))]);
    let run = good(&actum);
    let (first, second) = (out_json(&actum, "1"), out_json(&actum, "2"));
    assert_eq!((&first["cached"], &second["cached"]), (&json!(false), &json!(true)));
    assert_eq!(first["output"], second["output"]);
    assert_eq!(run["metrics"]["tool_ops_count"], 2, "a result that is remembered is a call too");
    repeats(&actum, &id(&run));
}

#[test]
fn bridge_is_reached_from_every_network_level() {
    let script = "actum tool call T --param word=hi > out/said; curl -sS -o /dev/null -w '%{http_code}' -X POST \"$ACTUM_MCP_URL\" > out/mcp";
    for level in ["offline", "registry", "api", "open"] {
        let more = match level {
            "registry" => "network = \"registry\"\n[sandbox]\nregistries = [\"registry.example\"]".to_owned(),
            "api" => "network = \"api\"\nallow = [\"api.example\"]".to_owned(),
            other => format!("network = \"{other}\""),
        };
        let actum = with_tools(script, &more, &[shell("T", "read", "echo $1", json!({}))]);
        let flags = [&["run", "--json", "-"][..], &WIDE].concat();
        let ended = actum.run_with(&flags, wide().to_string().as_bytes());
        if level == "open" {
            // That one waits for a person first.
            assert_ne!(ended.code, 0, "{}", ended.stdout);
            let waiting = asked(&actum, &["approvals", "list", "--json"])["approvals"][0]["id"].clone();
            actum.run(&["approve", waiting.as_str().unwrap()]).ok();
            let ended = actum.run_with(&flags, wide().to_string().as_bytes());
            assert_eq!(ended.code, 0, "{level}: {}{}", ended.stdout, ended.stderr);
        } else {
            assert_eq!(ended.code, 0, "{level}: {}{}", ended.stdout, ended.stderr);
        }
        assert_eq!(out(&actum, "said").trim(), "hi", "{level}");
        assert!(out(&actum, "mcp").starts_with('4'), "{level}: {}", out(&actum, "mcp"));
    }
}

#[test]
fn bridge_of_one_run_is_not_that_of_another() {
    let script = r#"actum adapter list --json > out/$ACTUM_WORK_ITEM_ID; sleep 1; actum tool call ONE > /dev/null 2>&1; echo $? > out/$ACTUM_WORK_ITEM_ID.one; actum tool call TWO > /dev/null 2>&1; echo $? > out/$ACTUM_WORK_ITEM_ID.two"#;
    let actum = actum();
    register(&actum, &[shell("ONE", "read", "echo", json!({})), shell("TWO", "read", "echo", json!({}))]);
    let section = |name: &str, tool: &str| {
        format!(
            "[agents.{name}]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", {}]\ntools = [\"{tool}\"]\n",
            json!(format!("mkdir -p out; {script}"))
        )
    };
    actum.file("actum.toml", section("a", "ONE") + &section("b", "TWO"));
    let (code, runs) = run(&actum, json!([item("one", "a"), item("two", "b")]), &["--jobs", "2"]);
    assert_eq!(code, 0, "{runs:?}");
    for (mine, codes) in [("one", ["0", "3"]), ("two", ["3", "0"])] {
        let listed = out_json(&actum, mine);
        assert_eq!(listed["adapters"].as_array().unwrap().len(), 1);
        assert_eq!(listed["adapters"][0]["tool_id"], mine.to_uppercase());
        assert_eq!([out(&actum, &format!("{mine}.one")).trim(), out(&actum, &format!("{mine}.two")).trim()], codes);
    }
}
