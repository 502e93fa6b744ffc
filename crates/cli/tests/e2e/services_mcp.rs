//! MCP servers as tools, each in its cell: those that people use, and those that mean harm. None outlives the call.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use actum_testkit::program::{Process, Program, other};
use actum_testkit::servers::Servers;
use serde_json::{Value, json};

use super::actum;
use super::sandbox::{Who, own_all};
use super::sandbox_network::upstream;
use super::services::{Listening, adapter, call, call_as, register, tool};

const ODD: &str = include_str!("../../../adapters/tests/adapters/servers/odd.py");
const PRYING: &str = include_str!("prying_server.py");
const CLIENT: &str = include_str!("mcp_client.py");

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let done = other("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success(), "{} can be copied", from.display());
}

/// What `npm install PACKAGE` would put into the project: the package with all it needs.
pub(crate) fn npm_install(actum: &Program, package: &str) {
    let modules = Servers::find().folder().join("node_modules");
    let (mut waiting, mut done) = (vec![package.to_owned()], BTreeSet::new());
    while let Some(name) = waiting.pop() {
        let Ok(text) = std::fs::read(modules.join(&name).join("package.json")) else { continue };
        if !done.insert(name.clone()) {
            continue;
        }
        copy(&modules.join(&name), &actum.path(&format!("node_modules/{name}")));
        let manifest: Value = serde_json::from_slice(&text).unwrap();
        waiting.extend(manifest["dependencies"].as_object().into_iter().flat_map(|all| all.keys().cloned()));
    }
    assert!(!done.is_empty(), "{package} is installed");
}

/// A tool T with a server S that is started by this command.
fn started(command: &[&str], change: impl FnOnce(&mut Value)) -> Value {
    tool(|tool| {
        tool["scope"]["commands"] = json!([command[0]]);
        tool["servers"] = json!({"S": {"command": command}});
        change(tool);
    })
}

fn mcp(tools: &[&str], change: impl FnOnce(&mut Value)) -> Value {
    let mapping: serde_json::Map<String, Value> =
        tools.iter().map(|name| (name.replace('-', "_"), json!(name))).collect();
    adapter("M", "mcp", json!({"server": "S", "transport": "stdio", "tool_mapping": mapping}), change)
}

fn text(result: &Value) -> &str {
    result["output"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result:#}"))
}

fn message(result: &Value) -> &str {
    result["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {result:#}"))
}

#[test]
fn the_filesystem_server_reads_writes_and_is_kept_within() {
    let actum = actum();
    npm_install(&actum, "@modelcontextprotocol/server-filesystem");
    actum.file("a.txt", "alpha\n");
    let script = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
    let write = started(&["node", script, "."], |tool| tool["scope"]["data_access"] = json!("write"));
    let tools = ["read_text_file", "write_file", "list_directory"];
    // What the seed grants it.
    let limits = |adapter: &mut Value| adapter["sandbox_override"] = json!({"memory_mb": 128, "timeout_ms": 10_000});
    register(&actum, &write, &[mcp(&tools, limits)]);
    let (code, result) = call(&actum, "read_text_file", &json!({"path": "a.txt"}));
    assert_eq!((code, text(&result)), (0, "alpha\n"), "{result:#}");
    assert!(result["evidence"]["tools_listed"].as_u64().unwrap() > 8, "{result:#}");
    let (code, result) = call(&actum, "write_file", &json!({"path": "b.txt", "content": "beta"}));
    assert_eq!(code, 0, "{result:#}");
    assert_eq!(std::fs::read_to_string(actum.path("b.txt")).unwrap(), "beta");
    let (code, result) = call(&actum, "list_directory", &json!({"path": "."}));
    assert!(code == 0 && text(&result).contains("b.txt"), "{result:#}");
    // Arguments are looked at before the server is asked.
    let (code, result) = call(&actum, "read_text_file", &json!({"path": "a.txt", "head": "many"}));
    assert_eq!((code, &result["error"]["path"]), (2, &json!("/head")), "{result:#}");
    let (code, result) = call(&actum, "read_text_file", &json!({}));
    assert_eq!((code, &result["status"]), (2, &json!("refused")), "{result:#}");
    let (code, result) = call(&actum, "read_text_file", &json!({"path": "../other"}));
    assert_eq!((code, &result["violations"][0]["check"]), (3, &json!("IV-03")), "{result:#}");
    // What the server itself says no to is its failure.
    let (code, result) = call(&actum, "read_text_file", &json!({"path": "gone.txt"}));
    assert_eq!((code, &result["status"]), (1, &json!("failure")), "{result:#}");
    assert!(message(&result).contains("gone.txt"), "{result:#}");
    // For who may only read, the same server writes nothing.
    let read = started(&["node", script, "."], |tool| tool["version"] = json!("1.0.1"));
    register(&actum, &read, &[mcp(&tools, limits)]);
    let (code, result) = call(&actum, "write_file", &json!({"path": "c.txt", "content": "gamma"}));
    assert_eq!(code, 1, "{result:#}");
    assert!(message(&result).contains("EROFS") || message(&result).contains("EACCES"), "{result:#}");
    assert!(!actum.path("c.txt").exists());
}

#[test]
fn the_everything_server_is_called_in_a_cell() {
    let actum = actum();
    npm_install(&actum, "@modelcontextprotocol/server-everything");
    let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    let tools = ["echo", "get-sum", "get-structured-content", "get-tiny-image", "trigger-long-running-operation"];
    let adapter = mcp(&tools, |adapter| adapter["sandbox_override"] = json!({"timeout_ms": 10_000}));
    register(&actum, &started(&["node", script, "stdio"], |_| {}), &[adapter]);
    let (code, result) = call(&actum, "echo", &json!({"message": "hé\n\u{1f600}"}));
    assert_eq!((code, text(&result)), (0, "Echo: hé\n\u{1f600}"), "{result:#}");
    let (code, result) = call(&actum, "get_sum", &json!({"a": 2, "b": 3.5}));
    assert!(code == 0 && text(&result).contains("5.5"), "{result:#}");
    let (code, result) = call(&actum, "get_structured_content", &json!({"location": "Berlin"}));
    assert_eq!((code, &result["error"]["path"]), (2, &json!("/location")), "{result:#}");
    let (code, result) = call(&actum, "get_structured_content", &json!({"location": "Chicago"}));
    assert!(code == 0 && result["output"]["structuredContent"]["temperature"].is_number(), "{result:#}");
    let (code, result) = call(&actum, "get_tiny_image", &json!({}));
    assert_eq!(code, 0, "{result:#}");
    let (code, result) = call(&actum, "trigger_long_running_operation", &json!({"duration": 120, "steps": 120}));
    assert_eq!((code, &result["status"]), (4, &json!("timeout")), "{result:#}");
    assert!(result["evidence"]["notifications"].as_u64().unwrap() > 0, "{result:#}");
}

/// A server on a port it was told; ended with the test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_everything_server_is_reached_through_http() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let script = Servers::find().folder().join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let mut command = other("node");
    command.arg(script).arg("streamableHttp").env("PORT", port.to_string());
    let _served = Served(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        assert!(Instant::now() < until, "it does not listen on {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let reached = |endpoints: &[String], network: &str| {
        let actum = actum();
        let tool = tool(|tool| {
            tool["scope"] = json!({"endpoints": endpoints, "network": network, "data_access": "none"});
            tool["servers"] = json!({"S": {"url": format!("http://127.0.0.1:{port}/mcp")}});
        });
        let adapter = mcp(&["echo"], |adapter| {
            adapter["interface"]["mcp"]["transport"] = json!("http");
        });
        (actum, tool, adapter)
    };
    let (actum, tool, adapter) = reached(&[format!("127.0.0.1:{port}")], "on");
    register(&actum, &tool, std::slice::from_ref(&adapter));
    let (code, result) = call(&actum, "echo", &json!({"message": "far"}));
    assert_eq!((code, text(&result)), (0, "Echo: far"), "{result:#}");
    assert_eq!(result["evidence"]["transport"], "http");
    let (code, result) = call(&actum, "echo", &json!({"message": 7}));
    assert_eq!((code, &result["error"]["path"]), (2, &json!("/message")), "{result:#}");
    // Who is not listed is not reached.
    let off = super::services::adapter("M", "mcp", adapter["interface"]["mcp"].clone(), |adapter| {
        adapter["sandbox_override"] = json!({"network": {"enabled": false}});
        adapter["version"] = json!("1.0.1");
    });
    register(&actum, &tool, &[off]);
    let (code, result) = call(&actum, "echo", &json!({"message": "far"}));
    assert_eq!((code, &result["status"]), (3, &json!("refused")), "{result:#}");
    assert!(message(&result).contains("ssrf_block."), "{result:#}");
}

/// A venv of the project, as `python3 -m venv .venv` makes it.
fn venv(actum: &Program) {
    copy(&Servers::find().folder().join("venv"), &actum.path(".venv"));
}

#[test]
fn the_git_server_runs_from_a_venv_of_the_project() {
    let actum = actum();
    venv(&actum);
    let git = |words: &[&str]| {
        let done = other("git").args(words).current_dir(actum.folder()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    git(&["init", "-q"]);
    actum.file("new.txt", "x");
    git(&["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "first", "--allow-empty"]);
    let command = [".venv/bin/python", "-m", "mcp_server_git"];
    register(&actum, &started(&command, |_| {}), &[mcp(&["git_status", "git_log"], |_| {})]);
    let (code, result) = call(&actum, "git_status", &json!({"repo_path": "."}));
    assert!(code == 0 && text(&result).contains("new.txt"), "{result:#}");
    let (code, result) = call(&actum, "git_log", &json!({"repo_path": "."}));
    assert!(code == 0 && text(&result).contains("first"), "{result:#}");
    let (code, result) = call(&actum, "git_status", &json!({"repo_path": 7}));
    assert_eq!((code, &result["error"]["path"]), (2, &json!("/repo_path")), "{result:#}");
    let (code, result) = call(&actum, "git_status", &json!({"repo_path": "/nonexistent"}));
    assert_eq!((code, &result["status"]), (1, &json!("failure")), "{result:#}");
}

/// A project with a server that misbehaves in a way.
fn odd(way: &str, timeout_ms: u64) -> Program {
    let actum = actum();
    actum.file("odd.py", ODD);
    let command = ["python3", "odd.py", way, &marker(&actum)];
    let adapter = mcp(&["say", "gone"], |adapter| adapter["sandbox_override"] = json!({"timeout_ms": timeout_ms}));
    register(&actum, &started(&command, |_| {}), &[adapter]);
    actum
}

/// An argument by which what a test has started is found.
fn marker(actum: &Program) -> String {
    format!("marked-{}", actum.folder().file_name().unwrap().to_string_lossy())
}

fn assert_nobody_is_left(actum: &Program, what: &str) {
    let left = Process::with_argument(&marker(actum));
    assert!(left.is_empty(), "{what}: {left:?} lives on");
}

fn say(actum: &Program, what: &str) -> (i32, Value) {
    call(actum, "say", &json!({"text": what}))
}

#[test]
fn servers_that_do_not_work_are_told_clearly_and_leave_nothing() {
    for (way, timeout_ms, code, status, told) in [
        ("plain", 20_000, 0, "success", ""),
        ("garbage", 20_000, 0, "success", ""),
        ("dies-at-once", 20_000, 1, "unavailable", "did not start"),
        ("dies-after-greeting", 20_000, 1, "unavailable", "ended"),
        ("mute", 1_500, 1, "unavailable", "did not introduce itself within"),
        ("hang", 6_000, 4, "timeout", "did not answer within"),
        ("endless-garbage", 20_000, 1, "unavailable", "S"),
        ("endless-list", 20_000, 1, "failure", "pages"),
        ("many-tools", 20_000, 1, "failure", "tools"),
        ("long-tools", 20_000, 1, "failure", "tools"),
        ("lie-schema", 20_000, 1, "failure", "no JSON Schema that stands by itself"),
        ("lie-file", 20_000, 1, "failure", "no JSON Schema that stands by itself"),
        ("lie-output", 20_000, 1, "failure", "outputSchema"),
        ("flood-line", 20_000, 1, "unavailable", "bytes"),
        ("flood-for-ever", 30_000, 1, "unavailable", "was cut off"),
        ("half", 20_000, 1, "unavailable", "ended"),
        ("fails", 20_000, 1, "failure", "the well is dry"),
        ("errs", 20_000, 1, "failure", "not today"),
        ("odd-result", 20_000, 1, "failure", "S"),
    ] {
        let actum = odd(way, timeout_ms);
        let began = Instant::now();
        let (ended, result) = say(&actum, "x");
        let shown = || format!("{way}: {}", &format!("{result:#}").chars().take(3_000).collect::<String>());
        assert_eq!((ended, result["status"].as_str().unwrap()), (code, status), "{}", shown());
        let said = result["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains(told) || told == "S", "{}", shown());
        assert!(code == 0 || !said.is_empty(), "{}", shown());
        assert!(began.elapsed() < Duration::from_secs(30), "{way}: {:?}", began.elapsed());
        assert_nobody_is_left(&actum, way);
    }
}

#[test]
fn a_tool_that_the_server_does_not_have_is_named_with_those_it_has() {
    let actum = odd("plain", 20_000);
    let (code, result) = call(&actum, "gone", &json!({}));
    assert_eq!(code, 1, "{result:#}");
    assert!(message(&result).contains("no tool \"gone\"; its tools: say"), "{result:#}");
}

#[test]
fn a_server_is_stopped_with_whoever_called_it() {
    let actum = odd("hang", 60_000);
    let call = actum.start(&["exec", "--tool", "T", "--op", "say", "--params-json", r#"{"text":"x"}"#, "--json"], &[]);
    let word = marker(&actum);
    let until = Instant::now() + Duration::from_secs(30);
    while Process::with_argument(&word).is_empty() {
        assert!(Instant::now() < until, "the server does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let began = Instant::now();
    call.signal("INT");
    let (code, lines, errors) = call.finish();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_ne!(code, 0, "{lines:?} {errors:?}");
    assert_nobody_is_left(&actum, "after SIGINT");
    // Killed without warning, it takes its server along.
    let call = actum.start(&["exec", "--tool", "T", "--op", "say", "--params-json", r#"{"text":"x"}"#, "--json"], &[]);
    while Process::with_argument(&word).is_empty() {
        assert!(Instant::now() < until, "the server does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    call.kill();
    let until = Instant::now() + Duration::from_secs(10);
    while !Process::with_argument(&word).is_empty() {
        assert!(Instant::now() < until, "the server outlives its caller");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_gets_at_nothing_it_was_not_given() {
    for who in Who::BOTH {
        let (actum, upstream) = (actum(), upstream());
        actum.file("shown/a.txt", "alpha");
        actum.file("shown/server.py", PRYING);
        actum.file("hidden.txt", "beta");
        let (project, port) = (actum.folder().display().to_string(), upstream.port.to_string());
        let command = ["python3", "server.py", &project, &port, &marker(&actum)];
        let prying = started(&command, |tool| {
            tool["scope"]["filesystem"] = json!(["shown"]);
            tool["secrets"] = json!({"GIVEN": "env:THE_SECRET"});
        });
        let actum = actum.with_env("THE_SECRET", super::services::SECRET).with_env("NOT_GIVEN", "x");
        register(&actum, &prying, &[mcp(&["pry"], |_| {})]);
        own_all(actum.folder(), who);
        let ended = call_as(who, &actum, "pry", &json!({}));
        let result = ended.json();
        assert_eq!(ended.code, 0, "{who:?}: {result:#}");
        let found: Value = serde_json::from_str(text(&result)).unwrap();
        for name in ["shadow", "own", "other", "home", "write", "network", "name"] {
            assert!(found[name].as_str().unwrap().starts_with("no: "), "{who:?} {name}: {found:#}");
        }
        assert_eq!(found["shown"], "alpha", "{who:?}: {found:#}");
        assert!(found["processes"].as_u64().unwrap() < 10, "{who:?}: {found:#}");
        let names = found["environment"].as_array().unwrap();
        assert!(names.contains(&json!("GIVEN")) && !names.contains(&json!("NOT_GIVEN")), "{who:?}: {found:#}");
        assert!(upstream.heard.lock().unwrap().is_empty());
        assert!(!ended.stdout.contains(super::services::SECRET));
        assert_nobody_is_left(&actum, who.word());
    }
}

/// What a server does on its way out is on record with the call, like that of every program.
#[test]
fn whom_a_server_reaches_is_in_the_evidence() {
    let (actum, upstream) = (actum(), upstream());
    actum.file("shown/server.py", PRYING);
    let (project, port) = (actum.folder().display().to_string(), upstream.port.to_string());
    let command = ["python3", "server.py", &project, &port, &marker(&actum)];
    let prying = started(&command, |tool| {
        tool["scope"]["filesystem"] = json!(["shown"]);
        tool["scope"]["network"] = json!("on");
        tool["scope"]["endpoints"] = json!([format!("up.test:{port}")]);
    });
    actum.file("actum.toml", "[sandbox.hosts]\n\"up.test\" = \"127.0.0.1\"\n");
    register(&actum, &prying, &[mcp(&["pry"], |_| {})]);
    let (code, result) = call(&actum, "pry", &json!({}));
    assert_eq!(code, 0, "{result:#}");
    let cell = &result["evidence"]["cell"];
    assert_eq!(cell["program"]["blake3"].as_str().map(str::len), Some(64), "{result:#}");
    assert_eq!((&cell["network"]["level"], &cell["filesystem"]["level"]), (&json!("api"), &json!("minimal")));
    let decisions = cell["decisions"].as_array().unwrap();
    let of = |name: &str| decisions.iter().find(|one| one["host"] == name).unwrap_or_else(|| panic!("{result:#}"));
    assert_eq!(of("up.test")["code"], "policy_allowed.default");
    assert_eq!(of("example.com")["code"], "ssrf_block.host_not_allowed");
    let found: Value = serde_json::from_str(text(&result)).unwrap();
    assert!(found["listed"].as_str().unwrap().contains("200 OK"), "{found:#}");
}

/// A real client of the protocol speaks to `actum mcp`; the program in its hands says what it found.
fn client(actum: &Program, steps: &Value) -> Vec<Value> {
    let mut command = Servers::find().python();
    command.args(["-c", CLIENT, &Who::Root.binary(actum), &steps.to_string()]).current_dir(actum.folder());
    let ended = actum_testkit::program::run(command, b"");
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    ended.json_lines()
}

#[test]
fn a_real_client_finds_and_calls_tools_and_servers_are_started_again() {
    let actum = odd("dies", 20_000);
    let say = |what: &str| json!(["call_tool", {"tool_id": "T", "operation": "say", "params": {"text": what}}]);
    let steps = json!([
        ["list_tools", {}],
        ["list_tools", {"level": "L1"}],
        ["describe_tool", {"id": "T", "level": "L2"}],
        say("one"),
        say("two"),
        say("die"),
        say("three"),
        ["call_tool", {"tool_id": "none", "params": {}}],
        ["describe_tool", {"id": "none", "level": "L2"}],
    ]);
    let found = client(&actum, &steps);
    assert_eq!(found[0]["server"], "actum");
    let tools = found[0]["tools"].as_array().unwrap();
    assert!(["list_tools", "describe_tool", "call_tool"].iter().all(|name| tools.contains(&json!(name))), "{tools:?}");
    let said = |n: usize| found[n + 1]["structured"].clone();
    assert!(said(0).to_string().contains("\"M\""), "{found:#?}");
    assert!(said(1).to_string().contains("say"), "{found:#?}");
    assert!(said(2).to_string().contains("\"T\""), "{found:#?}");
    assert_eq!((text(&said(3)), text(&said(4))), ("one 1", "two 2"), "one server for both");
    assert_eq!((&said(5)["status"], &said(5)["http_status"]), (&json!("unavailable"), &Value::Null), "{found:#?}");
    assert!(message(&said(5)).ends_with("exit code 7; the end of its errors: the disk is on fire"), "{found:#?}");
    assert_eq!(text(&said(6)), "three 1", "a new one");
    assert_eq!((&said(7)["status"], &said(7)["violations"][0]["check"]), (&json!("refused"), &json!("IV-01")));
    let wrong: Vec<bool> = found[1..].iter().map(|one| one["is_error"] == true).collect();
    assert_eq!(wrong, [false, false, false, false, false, true, false, true, true], "{found:#?}");
    assert_nobody_is_left(&actum, "after the client");
}

#[test]
fn an_ordinary_user_calls_a_server() {
    let actum = actum();
    npm_install(&actum, "@modelcontextprotocol/server-filesystem");
    actum.file("a.txt", "alpha\n");
    let script = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
    register(&actum, &started(&["node", script, "."], |_| {}), &[mcp(&["read_text_file"], |_| {})]);
    own_all(actum.folder(), Who::Nobody);
    let ended = call_as(Who::Nobody, &actum, "read_text_file", &json!({"path": "a.txt"}));
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(text(&ended.json()), "alpha\n");
}

/// The example as it is, but for the port of its service; what comes out is what is kept beside it.
#[test]
fn the_examples_come_to_their_golden_outputs() {
    let actum = actum().with_env("EXAMPLE_API_TOKEN", "example-token");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tools");
    for name in ["actum.toml", "notes", "tools"] {
        copy(&example.join(name), &actum.path(name));
    }
    npm_install(&actum, "@modelcontextprotocol/server-filesystem");
    let mut command = other("/usr/bin/python3");
    command.arg(example.join("server.py")).arg("0").env("EXAMPLE_API_TOKEN", "example-token");
    let service = Listening::start(command);
    for name in ["tools/rest/tool.yaml", "tools/rest/adapter.yaml"] {
        let text = std::fs::read_to_string(actum.path(name)).unwrap();
        assert!(text.contains("127.0.0.1:8642"), "{name}");
        actum.file(name, text.replace("127.0.0.1:8642", &format!("127.0.0.1:{}", service.port)));
    }
    actum.run(&["tool", "add"]).ok();
    let ended = actum.run(&["tool", "golden", "check", "--json"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let names: Vec<String> =
        ended.json()["cases"].as_array().unwrap().iter().map(|case| format!("{}", case["name"])).collect();
    assert_eq!(names, ["\"brackets\"", "\"tomatoes\"", "\"one\"", "\"read\""]);
    // What is no longer the same is told.
    actum.file("notes/kitchen.md", "# Kitchen\n\n- basil\n");
    let ended = actum.run(&["tool", "golden", "check"]);
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    assert!(ended.stdout.contains("differs ADP-003/read: output[0].text differs"), "{}", ended.stdout);
}

/// What the conformance tool starts as its client: it names the server's address last.
const OUR_CLIENT: &str = r#"#!/bin/sh
for word in "$@"; do url=$word; done
place=$(echo "$url" | sed 's|http://||; s|/.*||')
folder=$(mktemp -d) && cd "$folder" && mkdir tools
printf '[sandbox]\nhosts = { localhost = "127.0.0.1" }\n' > actum.toml
cat > tools/tool.json <<X
{"tool_id": "T", "name": "t", "version": "1.0.0", "owner": "tests", "provenance": {"license": "MIT"},
 "scope": {"network": "on", "endpoints": ["$place"]}, "servers": {"s": {"url": "$url"}},
 "approval": {"approver": "tests", "date": "2026-01-16"}}
X
cat > tools/adapter.json <<X
{"adapter_id": "A", "name": "a", "version": "1.0.0", "tool_id": "T", "type": "mcp",
 "interface": {"mcp": {"server": "s", "transport": "http", "tool_mapping": {"add": "add_numbers"}}}}
X
"$ACTUM" tool add >&2 && "$ACTUM" tool call T add --params-json '{"a": 5, "b": 3}' >&2
rm -rf "$folder"
exit 0
"#;

#[test]
fn the_conformance_tool_is_content_with_us_as_a_client() {
    let actum = actum();
    let client = actum.file("client.sh", OUR_CLIENT);
    let servers = Servers::find();
    for scenario in ["initialize", "tools_call"] {
        let mut tool = servers.node();
        tool.arg(servers.folder().join("node_modules/@modelcontextprotocol/conformance/dist/index.js"));
        tool.args(["client", "--scenario", scenario, "--command", &format!("sh {}", client.display())]);
        tool.env("ACTUM", env!("CARGO_BIN_EXE_actum")).current_dir(actum.folder()).stdin(Stdio::null());
        let output = tool.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("Passed: 1/1, 0 failed"), "{scenario}: {said}");
    }
}
