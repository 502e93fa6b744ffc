//! Agents that others wrote, in a cell, with a scripted provider behind them: they edit the stage by their own tools, and
//! what they did is published as that of any other agent.

use std::fs;

use actum_testkit::agents::{Agent, Agents, Headless};
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage, shell, write};
use serde_json::{Value, json};

use super::actum;
use super::bridge::{WIDE, wide};
use super::run::{asked, id};

/// Makes it a project with one agent `a`, who is one of the real ones; `more` goes into its section.
pub(crate) fn define(actum: &Program, headless: &Headless, network: &str, more: &str) {
    let environment: Vec<String> = headless.environment.iter().map(|(k, v)| format!("{k} = {}", json!(v))).collect();
    actum.file(
        "actum.toml",
        format!(
            "[agents.a]\ntype = \"command\"\ncommand = {}\nnetwork = \"{network}\"\nfilesystem = \"extended\"\n{more}\n\
             [agents.a.environment]\n{}\n[sandbox]\ndependencies = [{}]\n",
            json!(headless.complete_command()),
            environment.join("\n"),
            json!(Agents::find().folder()),
        ),
    );
}

/// Writes a file and runs a command, each by the agent's own tool.
pub(crate) fn script(agent: Agent, actum: &Program) -> Script {
    let path = actum.folder().canonicalize().unwrap().join("hello.txt");
    Script::default()
        .turn(write(agent, &path.display().to_string(), "hello\n"), Usage::new(1001, 51))
        .turn(shell(agent, "tr a-z A-Z < hello.txt > loud.txt"), Usage::new(1102, 32))
        .turn(Turn::text("It is written."), Usage::new(1203, 13))
        .asides("A title", Usage::new(7, 3))
}

/// Runs the item; whom it waits for agrees.
fn run_with_approval(actum: &Program) -> (i32, Value) {
    let flags = [&["run", "--json", "-"][..], &WIDE].concat();
    let item = wide().to_string();
    actum.run_with(&flags, item.as_bytes());
    let waiting = asked(actum, &["approvals", "list", "--json"])["approvals"][0]["id"].clone();
    actum.run(&["approve", waiting.as_str().unwrap()]).ok();
    let ended = actum.run_with(&flags, item.as_bytes());
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json()["runs"][0].clone())
}

/// In the machine's own network, where the provider is; nothing of ours stands between the two.
fn agent_works_in_a_cell(agent: Agent) {
    let actum = actum();
    let upstream = Upstream::start(script(agent, &actum));
    let headless = Agents::find().headless(agent, "{description}", &upstream.url(), "sk-stub");
    define(&actum, &headless, "open", "");
    let (code, run) = run_with_approval(&actum);
    assert_eq!(code, 0, "{run}\n{}", actum.run(&["logs", &id(&run)]).stdout);
    let written = |name: &str| fs::read_to_string(actum.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!((written("hello.txt").as_str(), written("loud.txt").as_str()), ("hello\n", "HELLO\n"));
    assert_eq!(run["metrics"]["files_touched"], 2, "it leaves nothing of its own behind: {run}");
    let turns: Vec<usize> = upstream.calls().iter().filter_map(|call| call.turn).collect();
    assert_eq!(turns, [0, 1, 2]);
    let first = upstream.calls().into_iter().find(|call| call.turn == Some(0)).unwrap();
    assert!(String::from_utf8_lossy(&first.body).contains("do i"), "the task is in what it asks");
}

#[test]
fn goose_works_in_a_cell() {
    agent_works_in_a_cell(Agent::Goose);
}

#[test]
fn claude_works_in_a_cell() {
    agent_works_in_a_cell(Agent::Claude);
}

#[test]
fn codex_works_in_a_cell() {
    agent_works_in_a_cell(Agent::Codex);
}

#[test]
fn gemini_works_in_a_cell() {
    agent_works_in_a_cell(Agent::Gemini);
}
