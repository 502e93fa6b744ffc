//! Agents that others wrote, with us as their MCP server, on stdin and stdout and over HTTP: they submit work, wait for it,
//! look at what came out and verify it. What the model says is scripted; everything else is real.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use actum_testkit::agents::{Agent, Agents, Headless};
use actum_testkit::program::{Ended, Program, other, run};
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::run::{asked, project};
use super::serve::{Server, token};

/// What the agent of the project writes, and nobody else says.
const WRITTEN: &str = "hi-from-below";

/// More than any of them needs; whoever asks on is told that it is over.
const TURNS_MAX: usize = 20;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Stdio,
    Http,
}

/// The name by which the agent offers a tool of ours to its model.
fn offered(body: &Value, name: &str) -> Option<String> {
    match body {
        Value::Array(all) => all.iter().find_map(|one| offered(one, name)),
        Value::Object(members) => {
            let own = members.get("name").and_then(Value::as_str);
            let is_it = |own: &&str| *own == name || own.ends_with(&format!("_{name}"));
            let below = || members.values().find_map(|one| offered(one, name));
            match members.get("type").and_then(Value::as_str) {
                // codex declares the tools of a server together.
                Some("namespace") => Some(format!("{}/{}", own?, below()?)),
                _ => own.filter(is_it).map(str::to_owned).or_else(below),
            }
        }
        _ => None,
    }
}

/// By what the model has been told so far: submit, watch, diff, verify, and a word at the end.
fn said(body: &Value) -> Option<(Turn, Usage)> {
    let told: String = body.to_string().chars().filter(|c| *c != '\\' && *c != ' ').collect();
    let tools = &body["tools"];
    let call = |name: &str, arguments: Value| {
        offered(tools, name).map(|name| (Turn::tool(name, arguments), Usage::new(10, 10)))
    };
    let run = told.find("\"run_id\":\"").and_then(|at| told.get(at + 10..at + 46)).map(str::to_owned);
    let Some(run) = run else {
        return call("submit", json!({"work": [{"id": "i", "agent_id": "a", "description": "do i"}]}));
    };
    if !told.contains("\"is_over\":true") {
        return call("watch", json!({"run": run, "wait_seconds": 10}));
    }
    if !told.contains(WRITTEN) {
        return call("diff", json!({"run": run}));
    }
    if !told.contains("\"valid\":true") {
        return call("verify", json!({"receipt": run}));
    }
    Some((Turn::text("All of it holds."), Usage::new(10, 10)))
}

/// The agent, told where we are.
fn with_server(agent: Agent, mut headless: Headless, actum: &Program, way: Way, url: &str, token: &str) -> Headless {
    let binary = env!("CARGO_BIN_EXE_actum");
    let folder = actum.folder().display().to_string();
    let args = json!(["-C", folder, "mcp"]);
    let bearer = format!("Bearer {token}");
    match (agent, way) {
        (Agent::Claude, _) => {
            let server = match way {
                Way::Stdio => json!({"type": "stdio", "command": binary, "args": args}),
                Way::Http => json!({"type": "http", "url": url, "headers": {"Authorization": bearer}}),
            };
            let config = actum.file("mcp.json", json!({"mcpServers": {"actum": server}}).to_string());
            let words =
                ["--strict-mcp-config", &format!("--mcp-config={}", config.display()), "--allowedTools=mcp__actum"];
            headless.command.splice(1..1, words.map(str::to_owned));
            headless.environment.insert("ENABLE_TOOL_SEARCH".into(), "false".into());
        }
        (Agent::Codex, _) => {
            let at = match way {
                Way::Stdio => format!("command={},args={args}", json!(binary)),
                Way::Http => format!("url={},bearer_token_env_var=\"ACTUM_TOKEN\"", json!(url)),
            };
            let server = format!("mcp_servers.actum={{{at},required=true,default_tools_approval_mode=\"approve\"}}");
            headless.command.splice(3..3, ["-c".to_owned(), server]);
            headless.environment.insert("ACTUM_TOKEN".into(), token.into());
        }
        (Agent::Gemini, _) => {
            let server = match way {
                Way::Stdio => json!({"command": binary, "args": args, "trust": true}),
                Way::Http => json!({"httpUrl": url, "headers": {"Authorization": bearer}, "trust": true}),
            };
            let (_, settings) = &mut headless.files[0];
            let mut all: Value = serde_json::from_str(settings).unwrap();
            all["mcpServers"] = json!({"actum": server});
            *settings = all.to_string();
        }
        (Agent::Goose, Way::Stdio) => {
            let words = ["--with-extension".to_owned(), format!("{binary} -C {folder} mcp")];
            headless.command.splice(2..2, words);
        }
        (Agent::Goose, Way::Http) => panic!("it has no flag for a header"),
    }
    headless
}

fn start(headless: &Headless, home: &Path, folder: &Path) -> Ended {
    for (name, content) in &headless.files {
        let path = home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let mut command = other(&headless.command[0]);
    command.args(&headless.command[1..]).envs(&headless.environment).current_dir(folder);
    command.env("HOME", home).env("XDG_CONFIG_HOME", home.join("config")).env_remove("ACTUM_SERVER");
    run(command, b"")
}

fn agent_uses_us(agent: Agent, way: Way) {
    let actum = project(&[("a", &format!("echo {WRITTEN} > hello.txt"))]);
    let turns = AtomicUsize::new(0);
    let answer = move |body: &Value, _: usize| match turns.fetch_add(1, Ordering::SeqCst) < TURNS_MAX {
        true => said(body),
        false => Some((Turn::text("I give up."), Usage::new(1, 1))),
    };
    let upstream = Upstream::start(Script::default().by(answer).asides("A title", Usage::new(7, 3)));
    let secret = token(&actum, "operator", &[]);
    let server = (way == Way::Http).then(|| Server::start(&actum, &[]));
    let url = server.as_ref().map(|server| format!("http://{}/mcp", server.at)).unwrap_or_default();
    let headless = Agents::find().headless(agent, "Have i done, and see that it holds.", &upstream.url(), "sk-stub");
    let headless = with_server(agent, headless, &actum, way, &url, &secret);
    let elsewhere = super::actum();
    let home = elsewhere.path("home");
    fs::create_dir_all(&home).unwrap();
    let work = elsewhere.path("work");
    fs::create_dir_all(&work).unwrap();
    let ended = start(&headless, &home, &work);
    let last = upstream.calls().last().map(|call| String::from_utf8_lossy(&call.body).into_owned()).unwrap_or_default();
    let told = || {
        format!(
            "{}\n{}\n{}",
            ended.stdout,
            ended.stderr,
            last.chars().rev().take(3_000).collect::<Vec<_>>().iter().rev().collect::<String>()
        )
    };
    assert_eq!(ended.code, 0, "{}", told());
    assert!(ended.stdout.contains("All of it holds."), "{}", told());
    assert_eq!(fs::read_to_string(actum.path("hello.txt")).unwrap_or_default(), format!("{WRITTEN}\n"), "{}", told());
    let runs = asked(&actum, &["list", "--json"])["runs"].clone();
    assert_eq!((runs.as_array().unwrap().len(), &runs[0]["status"]), (1, &json!("success")), "{runs}");
}

#[test]
fn claude_uses_us_on_stdio() {
    agent_uses_us(Agent::Claude, Way::Stdio);
}

#[test]
fn claude_uses_us_over_http() {
    agent_uses_us(Agent::Claude, Way::Http);
}

#[test]
fn codex_uses_us_on_stdio() {
    agent_uses_us(Agent::Codex, Way::Stdio);
}

#[test]
fn codex_uses_us_over_http() {
    agent_uses_us(Agent::Codex, Way::Http);
}

#[test]
fn gemini_uses_us_on_stdio() {
    agent_uses_us(Agent::Gemini, Way::Stdio);
}

#[test]
fn gemini_uses_us_over_http() {
    agent_uses_us(Agent::Gemini, Way::Http);
}

#[test]
fn goose_uses_us_on_stdio() {
    agent_uses_us(Agent::Goose, Way::Stdio);
}
