//! `cargo xtask bench tools [AREA…]`: listing ten thousand adapters from a cold start, an execution answered from what is
//! remembered, and a call of an MCP server through everything beside the bare SDK's client calling the same server.
//!
//! Never a test: a shared machine is loud. Each figure is the median over rounds, with the range beside it.

#[expect(dead_code, reason = "shared with benchmarks that need more of it")]
#[path = "../shared/measure.rs"]
mod measure;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};

use actum_testkit::folder::Folder;
use actum_testkit::program::other;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{RoleClient, RunningService, ServiceExt as _};
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::runtime::Runtime;

use measure::{median, milliseconds, print, spread, verdict};

const ADAPTERS: usize = 10_000;
const LIST_ROUNDS: usize = 60;
const CALLS: usize = 400;
/// Files of the workspace that a remembered result depends on, and how many are in a folder.
const FILES: [usize; 2] = [100, 10_000];
const FOLDER: usize = 20;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let wanted = |area: &str| {
        let areas: Vec<_> = arguments[1..].iter().filter(|a| !a.to_string_lossy().starts_with('-')).collect();
        areas.is_empty() || areas.iter().any(|a| *a == area)
    };
    if wanted("list") {
        list();
    }
    if wanted("cached") {
        cached();
    }
    if wanted("mcp") {
        mcp();
    }
    ExitCode::SUCCESS
}

/// The `actum` that was built beside this.
fn actum() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_actum"))
}

fn run(folder: &Path, arguments: &[&str]) -> String {
    let mut command = other(&actum().display().to_string());
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write(folder: &Path, name: &str, value: &Value) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
    fs::write(path, value.to_string()).expect("a file");
}

fn tool(id: &str, scope: Value, more: Value) -> Value {
    let mut tool = json!({
        "tool_id": id, "name": "bench", "version": "1.0.0", "owner": "bench", "provenance": {"license": "MIT"},
        "scope": scope, "approval": {"approver": "bench", "date": "2026-01-01"},
    });
    tool.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    tool
}

fn list() {
    let folder = Folder::new();
    let at = folder.path();
    write(at, "actum.toml", &json!(""));
    fs::write(at.join("actum.toml"), "").expect("a file");
    write(at, "tools/tool.json", &tool("TL-1", json!({"commands": ["true"]}), json!({})));
    for n in 0..ADAPTERS {
        let adapter = json!({
            "adapter_id": format!("ADP-{n:05}"), "name": format!("adapter-number-{n}"), "version": "1.0.0", "tool_id": "TL-1",
            "type": "cli", "interface": {"cli": {"executable": "true", "arg_mapping": {"x": "{x}", "y": "-y {value}"}}},
        });
        write(at, &format!("tools/adapters/{n}.json"), &adapter);
    }
    let adding = milliseconds(|| drop(run(at, &["tool", "add", "-q"])));
    print(&format!("adapters ({ADAPTERS} registered in {:.1} s)", adding / 1e3));
    let nothing: Vec<f64> = (0..LIST_ROUNDS).map(|_| milliseconds(|| drop(run(at, &["--version"])))).collect();
    let listed = run(at, &["adapter", "list", "--json"]);
    let found: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(found["adapters"].as_array().map(Vec::len), Some(ADAPTERS));
    let times: Vec<f64> =
        (0..LIST_ROUNDS).map(|_| milliseconds(|| drop(run(at, &["adapter", "list", "--json"])))).collect();
    print(&format!("  {:<58} {} ms", "actum --version", spread(&nothing)));
    verdict("actum adapter list --json, whole process, ms", &times, 20.0, true);
}

/// A client of the bare SDK on a program's input and output.
struct Client {
    service: RunningService<RoleClient, ()>,
    child: Child,
}

impl Client {
    fn start(runtime: &Runtime, program: &str, arguments: &[&str], folder: &Path) -> Self {
        let mut command = other(program);
        command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let input: OwnedFd = child.stdin.take().expect("a pipe").into();
        let output: OwnedFd = child.stdout.take().expect("a pipe").into();
        let service = runtime.block_on(async {
            let writer = pipe::Sender::from_owned_fd(input).expect("a pipe");
            let reader = pipe::Receiver::from_owned_fd(output).expect("a pipe");
            ().serve((reader, writer)).await.expect("it greets")
        });
        Self { service, child }
    }

    fn call(&self, runtime: &Runtime, name: &'static str, arguments: &Value) -> Value {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let request = CallToolRequestParams::new(name).with_arguments(arguments);
        let result = runtime.block_on(self.service.peer().call_tool(request)).expect("it answers");
        serde_json::to_value(result).expect("JSON")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// The same call again, asked of a session that lives: `actum mcp`, through the protocol and all checks.
fn cached() {
    let runtime = runtime();
    print("an execution that is remembered");
    for files in FILES {
        let folder = Folder::new();
        let at = folder.path();
        fs::write(at.join("actum.toml"), "").expect("a file");
        for n in 0..files {
            let path = at.join(format!("src/{}/{n}.txt", n / FOLDER));
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, format!("line {n}\n")).expect("a file");
        }
        let scope = json!({"commands": ["rg"], "filesystem": ["."]});
        write(at, "tools/tool.json", &tool("TL-1", scope, json!({})));
        let cli = json!({"executable": "rg", "base_args": ["--sort=path"], "arg_mapping": {"pattern": "{pattern}"}});
        let adapter = json!({
            "adapter_id": "ADP-1", "name": "rg", "version": "1.0.0", "tool_id": "TL-1", "type": "cli", "interface": {"cli": cli},
        });
        write(at, "tools/adapter.json", &adapter);
        run(at, &["tool", "add", "-q"]);
        let client = Client::start(&runtime, &actum().display().to_string(), &["mcp"], at);
        let ask = json!({"tool_id": "TL-1", "params": {"pattern": "line 7"}});
        let is_cached = || client.call(&runtime, "call_tool", &ask)["structuredContent"]["cached"] == true;
        let first = milliseconds(|| drop(client.call(&runtime, "call_tool", &ask)));
        // What was written just now is not believed yet.
        while !is_cached() {}
        let times: Vec<f64> =
            (0..CALLS).map(|_| milliseconds(|| drop(client.call(&runtime, "call_tool", &ask)))).collect();
        let looks: Vec<f64> =
            (0..CALLS).map(|_| milliseconds(|| drop(client.call(&runtime, "list_tools", &json!({}))))).collect();
        print(&format!(
            "  {files} files; the first time {first:.1} ms; a list over the same wire {} ms",
            spread(&looks)
        ));
        verdict(&format!("remembered, asked over MCP, {files} files, ms"), &times, 1.0, true);
    }
}

/// Through registry, checks, adapters, a server in its cell and evidence, beside the bare client on the same server.
fn mcp() {
    let runtime = runtime();
    let folder = Folder::new();
    let at = folder.path();
    fs::write(at.join("actum.toml"), "").expect("a file");
    fs::write(at.join("server.py"), SERVER).expect("a file");
    let scope = json!({"commands": ["python3"], "filesystem": ["."], "data_access": "read"});
    let servers = json!({"servers": {"echo": {"command": ["python3", "server.py"]}}});
    write(at, "tools/tool.json", &tool("TL-1", scope, servers));
    let mcp = json!({"server": "echo", "transport": "stdio", "tool_mapping": {"echo": "echo"}});
    let adapter = json!({
        "adapter_id": "ADP-1", "name": "echo", "version": "1.0.0", "tool_id": "TL-1", "type": "mcp", "interface": {"mcp": mcp},
    });
    write(at, "tools/adapter.json", &adapter);
    run(at, &["tool", "add", "-q"]);
    let ours = Client::start(&runtime, &actum().display().to_string(), &["mcp"], at);
    let bare = Client::start(&runtime, "python3", &["server.py"], at);
    let mut times: [Vec<f64>; 3] = Default::default();
    for n in 0..CALLS {
        let message = json!({"message": format!("hello {n}")});
        let ask = json!({"tool_id": "TL-1", "params": message});
        times[0].push(milliseconds(|| drop(bare.call(&runtime, "echo", &message))));
        times[1].push(milliseconds(|| {
            let answer = ours.call(&runtime, "call_tool", &ask);
            assert_eq!(answer["structuredContent"]["status"], "success", "{answer}");
        }));
        // What the wire between us and `actum mcp` takes by itself.
        times[2].push(milliseconds(|| drop(ours.call(&runtime, "list_tools", &json!({})))));
    }
    print("a call of an MCP server");
    for (name, times) in ["bare SDK client", "through actum mcp", "list_tools of actum mcp"].iter().zip(&times) {
        print(&format!("  {name:<58} {} ms", spread(times)));
    }
    let added: Vec<f64> = times[0].iter().zip(&times[1]).map(|(bare, ours)| ours - bare).collect();
    verdict("added to the bare client, with one more hop, ms", &added, 1.0, true);
    print(&format!(
        "  medians: {:.3} ms bare, {:.3} ms ours",
        median(times[0].iter().copied()),
        median(times[1].iter().copied())
    ));
}

/// The smallest server: as quick as one in Python can be, so that what is added shows.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    method = m["method"]
    if method == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/list":
        r = {"tools": [{"name": "echo", "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}}}]}
    elif method == "tools/call":
        r = {"content": [{"type": "text", "text": m["params"]["arguments"]["message"]}]}
    else:
        r = {}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}) + "\n")
    sys.stdout.flush()
"#;
