//! What tests of runs share: a project with an agent whose every act shows, workers, and what holds once runs are over.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use actum_testkit::program::{Process, Program, Running};
use serde_json::{Value, json};

use super::actum;

/// Longer than anything takes on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A word that only the agents of this project have among their arguments.
pub(crate) fn tag(actum: &Program) -> String {
    format!("agent-of-{}", actum.folder().file_name().unwrap().display())
}

/// A project whose agent `a` plans two steps, and runs `step` for each with its id in `$1`.
pub(crate) fn project(step: &str) -> Program {
    let actum = actum();
    define(&actum, step);
    actum
}

pub(crate) fn define(actum: &Program, step: &str) {
    let plan = json!({"steps": [{"id": "one", "description": "one"}, {"id": "two", "description": "two"}]});
    let script = format!("if [ $ACTUM_PHASE = plan ]; then echo '{plan}' > $ACTUM_RESPONSE; else {step}; fi");
    let command = json!(["sh", "-c", script, tag(actum), "{description}", "{work_item}"]);
    let agents = ["a", "b"].map(|name| match name {
        "a" => format!("[agents.a]\ntype = \"command\"\ncommand = {command}\nphases = [\"step\", \"plan\"]\n"),
        // The same, without a plan: one step.
        _ => format!("[agents.b]\ntype = \"command\"\ncommand = {command}\n"),
    });
    actum.file("actum.toml", agents.concat());
}

/// The ids of the runs that a work file became.
pub(crate) fn submit(actum: &Program, flags: &[&str]) -> Vec<String> {
    let ended = actum.run(&[&["run", "--detach", "--json", "work.yaml"], flags].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let runs = ended.json()["runs"].as_array().unwrap().clone();
    runs.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn status(actum: &Program, run: &str) -> Value {
    let ended = actum.run(&["status", "--json", run]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.json()
}

pub(crate) fn state(actum: &Program, run: &str) -> String {
    status(actum, run)["state"].as_str().unwrap().to_owned()
}

pub(crate) fn is_over(actum: &Program, run: &str) -> bool {
    matches!(state(actum, run).as_str(), "succeeded" | "failed" | "cancelled")
}

/// All runs of the project, oldest first.
pub(crate) fn all_runs(actum: &Program) -> Vec<String> {
    let listed = actum.run(&["list", "--json"]).json();
    listed["runs"].as_array().unwrap().iter().rev().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

/// A worker that is ready to be asked to end.
pub(crate) fn worker(actum: &Program, flags: &[&str], env: &[(&str, &str)]) -> Running {
    let mut worker = actum.start(&[&["worker"], flags].concat(), env);
    // What it recovered comes first.
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.contains("works for")) {
        said.push(worker.error_line().unwrap_or_else(|| panic!("{said:?}")));
    }
    worker
}

/// Asks it to end, and waits for that.
pub(crate) fn end(worker: Running) {
    worker.signal("TERM");
    let (code, _, errors) = worker.finish();
    assert_eq!(code, 0, "{errors:?}");
}

/// A worker works until these are over.
pub(crate) fn work(actum: &Program, runs: &[String]) {
    let worker = worker(actum, &[], &[]);
    runs.iter().for_each(|run| until("the run is over", || is_over(actum, run)));
    end(worker);
}

/// The payloads of the ledger's entries of a type, oldest first.
pub(crate) fn entries(actum: &Program, kind: &str) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = vec!["ledger", "list", "--json", "--limit", "1000"];
        arguments.extend(cursor.iter().flat_map(|c| ["--cursor", c.as_str()]));
        let page = actum.run(&arguments).json();
        found.extend(page["entries"].as_array().unwrap().iter().filter(|e| e["type"] == kind).cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return found,
        }
    }
}

/// What the ledger says of a run: `state attempt`, or `state attempt code`.
pub(crate) fn history(actum: &Program, run: &str) -> Vec<String> {
    let events = entries(actum, "execution_event");
    let ours = events.iter().filter(|event| event["payload"]["executionId"] == run);
    ours.map(|event| {
        let (payload, state) = (&event["payload"], event["state"].as_str().unwrap());
        let code = payload["error"]["code"].as_str().map(|code| format!(" {code}")).unwrap_or_default();
        format!("{state} {}{code}", payload["attempt"])
    })
    .collect()
}

pub(crate) const DONE: [&str; 3] = ["planned 1", "running 1", "succeeded 1"];

/// Folders of stages, also of those half made or half removed.
pub(crate) fn stages(actum: &Program) -> Vec<PathBuf> {
    let all = fs::read_dir(actum.path(".actum/stages")).into_iter().flatten().flatten();
    all.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// What holds once a run has succeeded, whatever happened on the way.
pub(crate) fn check(actum: &Program, run: &str, case: &str) {
    let shown = status(actum, run);
    assert_eq!(shown["state"], "succeeded", "{case}: {shown}");
    assert_eq!(history(actum, run), DONE, "{case}");
    let verified = actum.run(&["verify", "--json", run]);
    assert_eq!(verified.code, 0, "{case}: {}{}", verified.stdout, verified.stderr);
    let gate = actum.run(&["gate", "--json", run]);
    assert_eq!(gate.code, 0, "{case}: {}", gate.stdout);
    let receipts = entries(actum, "receipt");
    assert_eq!(receipts.iter().filter(|e| e["payload"]["runId"] == run).count(), 1, "{case}");
}

/// What holds of a project in which nothing is under way.
pub(crate) fn check_project(actum: &Program, case: &str) {
    let verified = actum.run(&["ledger", "verify", "--json"]);
    assert_eq!(verified.json()["valid"], true, "{case}: {}", verified.stdout);
    assert_eq!(Process::with_argument(&tag(actum)), [], "{case}");
    assert_eq!(stages(actum), Vec::<PathBuf>::new(), "{case}");
    let left = fs::read_dir(actum.path(".actum/workspace/tx")).into_iter().flatten().flatten();
    let left: Vec<_> = left.map(|e| e.path()).filter(|path| !path.join("done").exists()).collect();
    assert!(left.is_empty(), "{case}: {left:?}");
}
