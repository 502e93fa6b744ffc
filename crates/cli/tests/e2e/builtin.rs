//! The built-in agent, end to end, with a scripted provider: it plans, edits, mends, calls tools level by level, is bounded
//! and refused where it has to be, survives being killed, and repeats with nobody there to be asked.

use std::fs;
use std::path::PathBuf;

use actum_testkit::program::Program;
use actum_testkit::tree::read;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::bridge::{register, repeats, shell, trace};
use super::run::{asked, id, item, one, with};
use super::runs::{all_runs, check, end, entries, is_over, state, submit, until, work, worker};

const KEY: &str = "sk-key-that-nobody-keeps";

/// The binary in a folder of its own, where the key of its provider is known.
fn actum() -> Program {
    super::actum().with_env("UP_KEY", KEY)
}

/// A project whose agent `a` asks the provider; `more` goes into its section.
fn define(actum: &Program, url: &str, more: &str) {
    actum.file(
        "actum.toml",
        format!(
            "[agents.a]\ntype = \"predict\"\nmodel = \"m-1\"\n{more}\n\n\
             [providers.up]\ntype = \"openai\"\nbase_url = \"{url}/v1\"\nkey = \"env:UP_KEY\"\nattempts = 1\n\n\
             [prices.m-1]\ninput = 1000000\noutput = 1000000\n",
        ),
    );
}

pub(super) fn project(script: impl Into<Script>, more: &str) -> (Program, Upstream) {
    let actum = actum();
    let upstream = Upstream::start(script);
    define(&actum, &upstream.url(), more);
    (actum, upstream)
}

/// An item that may spend enough.
pub(super) fn rich() -> Value {
    with(item("i", "a"), "budget", json!({"spend": {"max_total": 100_000_000}}))
}

pub(super) const STEP_ONLY: &str = "phases = [\"step\"]";

pub(super) fn turn(operations: Value) -> Turn {
    Turn::text(json!({"thought": "as it is wanted", "operations": operations}).to_string())
}

fn write(path: &str, content: &str) -> Value {
    json!({"op": "write", "path": path, "content": content, "executable": false})
}

pub(super) fn finish() -> Value {
    json!({"op": "done", "summary": "it is done"})
}

/// What a model was told, in the question with this number.
fn question(upstream: &Upstream, number: usize) -> String {
    let body = upstream.calls()[number].json();
    let messages = body["messages"].as_array().unwrap().clone();
    messages.iter().filter_map(|message| message["content"].as_str()).collect::<Vec<_>>().join("\n")
}

fn names(trace: &[Value]) -> Vec<&str> {
    trace.iter().map(|op| op["name"].as_str().unwrap()).collect()
}

/// Two steps, a correction, and a tool that is looked at before it is called.
fn long_script() -> Script {
    let steps = json!({"steps": [
        {"id": "settings", "description": "Write the settings."}, {"id": "notes", "description": "Mend the notes."},
    ]});
    Script::from([
        Turn::text(steps.to_string()),
        turn(json!([write("settings.json", "{ \"port\": 80, }\n"), finish()])),
        // What a light check found.
        turn(json!([{"op": "read", "path": "settings.json", "from": null, "lines": null}])),
        turn(json!([{"op": "replace", "path": "settings.json", "old": "80,", "new": "80"}, finish()])),
        turn(json!([{"op": "tools_list", "level": "L0"}, {"op": "search", "pattern": "t.do", "path": ""}])),
        turn(json!([{"op": "tool_show", "id": "A-T1", "level": "L2"}])),
        turn(json!([
            {"op": "tool_call", "tool": "T1", "adapter": null, "operation": null, "params": "{\"word\": \"hello\"}"},
            {"op": "tool_call", "tool": "T2", "adapter": "A-T2", "operation": null, "params": "{\"word\": \"by T2\"}"},
            {"op": "run", "command": ["sh", "-c", "cat notes.md && tr a-z A-Z < notes.md > loud.md"]},
        ])),
        turn(
            json!([{"op": "replace", "path": "made.txt", "old": "T2", "new": "us"}, {"op": "delete", "path": "old.txt"}, finish()]),
        ),
    ])
}

fn prepared(upstream: &Upstream) -> Program {
    let actum = actum();
    let looks = shell("T1", "read", "echo \"$1 $(cat notes.md)\"", json!({}));
    let writes = shell("T2", "write", "echo \"$1\" > made.txt", json!({}));
    register(&actum, &[looks, writes]);
    define(&actum, &upstream.url(), "");
    actum.file("notes.md", "a todo\n");
    actum.file("old.txt", "old\n");
    actum.file(".env", "PASSWORD=verysecret\n");
    actum
}

#[test]
fn it_plans_edits_mends_calls_a_tool_and_repeats_with_nobody_there() {
    let upstream = Upstream::start(long_script());
    let actum = prepared(&upstream);
    let (code, run) = one(&actum, rich(), &[]);
    let logs = actum.run(&["logs", &id(&run)]).stdout;
    assert_eq!(code, 0, "{run}\n{logs}");
    let text = |name: &str| fs::read_to_string(actum.path(name)).unwrap();
    assert_eq!((text("settings.json").as_str(), text("loud.md").as_str()), ("{ \"port\": 80 }\n", "A TODO\n"));
    assert_eq!(text("made.txt"), "by us\n", "what a tool wrote is what the next operation stands on");
    assert!(!actum.path("old.txt").exists());
    assert_eq!(upstream.calls().len(), 8);
    // What it is told, and what not.
    assert!(question(&upstream, 0).contains("notes.md") && question(&upstream, 0).contains("T1"));
    assert!(question(&upstream, 2).contains("settings.json"), "{}", question(&upstream, 2));
    assert!(question(&upstream, 2).contains("What is wrong with it"));
    assert!(question(&upstream, 5).contains("notes.md:1: a todo"));
    assert!(!question(&upstream, 5).contains("\"word\""), "L0 says nothing of parameters");
    assert!(question(&upstream, 6).contains("word"), "L2 does: {}", question(&upstream, 6));
    assert!(question(&upstream, 7).contains("hello a todo"), "{}", question(&upstream, 7));
    let all: String = (0..8).map(|number| question(&upstream, number)).collect();
    assert!(!all.contains("verysecret") && !all.contains(".env\n") && !all.contains(".actum"));
    let form = &upstream.calls()[1].json()["response_format"]["json_schema"];
    assert_eq!((&form["name"], &form["strict"]), (&json!("act"), &json!(true)));
    // Each question is in the trace where it was asked; those that only look are not.
    let run = id(&run);
    let trace = trace(&actum, &run);
    let model = "model m-1";
    let first = [model, model, "write", model, model, "replace", model, model, model];
    let second = ["tool T1", "tool T2", "run", model, "replace", "delete"];
    assert_eq!(names(&trace), [&first[..], &second].concat());
    let status = asked(&actum, &["status", "--json", &run]);
    assert_eq!(status["result"]["metrics"]["tool_ops_count"], 7, "{status}");
    // A receipt for each call, one above them, and all of the money in both places.
    let receipts: Vec<Value> =
        entries(&actum, "prediction_receipt").into_iter().map(|entry| entry["payload"].clone()).collect();
    let of = |kind: &str| receipts.iter().filter(|one| one.to_string().contains(kind)).count();
    assert_eq!(of("\"kind\":\"call\""), 8, "{}", receipts[0]);
    assert_eq!(of("\"kind\":\"prediction\""), 8);
    let spent = &asked(&actum, &["spend", "list", "--json"])["authorizations"][0]["spent"];
    let used = upstream.used();
    assert_eq!(spent, &json!(used.input + used.output), "a token costs one");
    let calls = receipts.iter().map(|one| &one["receipt"]).filter(|one| one["kind"] == "call");
    let sum: u64 = calls.map(|one| one["budget"]["spent"].as_u64().unwrap()).sum();
    assert_eq!(spent, &json!(sum));
    let mut grep = actum_testkit::program::other("grep");
    let found = grep.args(["-rlF", KEY]).arg(actum.folder()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the key stands nowhere");
    // With the provider and the settings gone.
    upstream.stop();
    actum.file("actum.toml", "");
    let ended = actum.run(&["replay", "--json", &run]);
    let shown = ended.json();
    assert_eq!((ended.code, &shown["identical"]), (0, &json!(true)), "{shown}");
    assert_eq!(shown.get("answered_by_order"), None, "every question was the same: {shown}");
    check(&actum, &run, "the run");
}

#[test]
fn an_answer_that_is_none_is_mended_once() {
    let good = turn(json!([write("a.txt", "a\n"), finish()]));
    let (actum, upstream) = project([Turn::text("I think I will write a file."), good], STEP_ONLY);
    let (code, run) = one(&actum, rich(), &[]);
    assert_eq!(code, 0, "{run}");
    assert!(question(&upstream, 1).contains("That cannot be used"), "{}", question(&upstream, 1));
    repeats(&actum, &id(&run));

    let unknown = || turn(json!([{"op": "format_disk"}]));
    let (actum, upstream) = project([unknown(), unknown()], STEP_ONLY);
    let before = read(actum.folder());
    let (code, run) = one(&actum, rich(), &[]);
    assert_eq!(code, 1, "{run}");
    assert!(run.to_string().contains("predict_failed.invalid_output"), "{run}");
    assert_eq!(upstream.calls().len(), 2);
    assert_eq!(read(actum.folder()), before);
    repeats(&actum, &id(&run));
}

#[test]
fn without_a_budget_it_is_denied() {
    let (actum, upstream) = project([turn(json!([finish()]))], STEP_ONLY);
    let (code, run) = one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 3, "{run}");
    assert!(run.to_string().contains("policy_denied.authorization_missing"), "{run}");
    assert_eq!(upstream.calls().len(), 0);
    repeats(&actum, &id(&run));
}

#[test]
fn with_a_budget_that_is_over_it_is_denied() {
    // The first answer takes most of it.
    let spent = turn(json!([write("a.txt", "a\n")]));
    let script =
        Script::default().turn(spent, Usage::new(4_000, 8_000)).turn(turn(json!([finish()])), Usage::new(1, 1));
    let (actum, upstream) = project(script, STEP_ONLY);
    let before = read(actum.folder());
    let poor = with(rich(), "budget", json!({"spend": {"max_total": 20_000}}));
    let (code, run) = one(&actum, poor, &[]);
    assert_eq!(code, 3, "{run}");
    assert!(run.to_string().contains("policy_denied.budget_exhausted"), "{run}");
    assert_eq!(upstream.calls().len(), 1);
    assert_eq!(read(actum.folder()), before, "nothing is published");
    upstream.stop();
    repeats(&actum, &id(&run));
}

/// More that is allowed to the run takes the place of the work item's budget when it is resumed.
#[test]
fn raised_budget_is_used_by_resume() {
    let spent = turn(json!([write("a.txt", "a\n")]));
    let script =
        Script::default().turn(spent, Usage::new(4_000, 8_000)).turn(turn(json!([finish()])), Usage::new(1, 1));
    let (actum, upstream) = project(script, STEP_ONLY);
    let poor = with(rich(), "budget", json!({"spend": {"max_total": 20_000}}));
    let (code, run) = one(&actum, poor, &[]);
    assert_eq!(code, 3, "{run}");
    let raised = actum.run(&["spend", "authorize", "--run", &id(&run), "--max-total", "900000000"]);
    assert_eq!(raised.code, 0, "{}", raised.stderr);
    let resumed = actum.run(&["resume", "--json", &id(&run)]);
    assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
    upstream.stop();
}

#[test]
fn what_it_may_not_do_is_refused_and_told() {
    let alone = |operation: Value| turn(json!([operation]));
    let huge = "x".repeat(200_000);
    let script = Script::from([
        alone(write("../out.txt", "x")),
        alone(write("/etc/out.txt", "x")),
        alone(write(".git/hooks/pre-commit", "x")),
        alone(write("link/out.txt", "x")),
        alone(write("there", "x")),
        alone(json!({"op": "read", "path": "there", "from": null, "lines": null})),
        alone(json!({"op": "read", "path": ".env", "from": null, "lines": null})),
        alone(json!({"op": "read", "path": "binary", "from": null, "lines": null})),
        alone(json!({"op": "delete", "path": ""})),
        alone(write("huge.txt", &huge)),
        alone(json!({"op": "run", "command": ["/no/such/program"]})),
        alone(json!({"op": "run", "command": ["cat", "/root/.actum-secret", "/proc/1/environ"]})),
        alone(json!({"op": "tool_call", "tool": "T9", "adapter": null, "operation": null, "params": "[]"})),
        alone(json!({"op": "search", "pattern": "(", "path": ""})),
        alone(json!({"op": "replace", "path": "twice.txt", "old": "a", "new": "b"})),
        // Nothing after the first that fails is performed, and it is not done then.
        turn(json!([write("../again.txt", "x"), write("not.txt", "x"), finish()])),
        turn(json!([write("good.txt", "good\n"), finish()])),
    ]);
    let (actum, upstream) = project(script, STEP_ONLY);
    actum.file(".env", "PASSWORD=verysecret\n");
    actum.file("binary", [0, 1, 2]);
    actum.file("twice.txt", "a a\n");
    let outside = actum_testkit::folder::Folder::new();
    std::os::unix::fs::symlink(outside.path(), actum.path("link")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", actum.path("there")).unwrap();
    let before = read(actum.folder());
    let (code, run) = one(&actum, rich(), &["--set", "maxFileBytes=100000"]);
    assert_eq!(code, 0, "{run}\n{}", actum.run(&["logs", &id(&run)]).stdout);
    let told = question(&upstream, 16);
    for part in [
        "no path in the workspace",
        ".git/hooks/pre-commit is not part of the work",
        "link is a link",
        "there is a link; delete it first",
        "there is a link, which is not followed",
        ".env is not shown",
        "binary is no text",
        "the workspace itself is not a file",
        "are too much for a file",
        "/no/such/program could not be started",
        "there are no tools to be called",
        "the pattern cannot be used",
        "occurs 2 times",
        "2 more operations",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("verysecret") && !told.contains(&huge));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let mut after = read(actum.folder());
    after.retain(|path, _| !path.ends_with(b"good.txt"));
    assert_eq!(after, before);
    repeats(&actum, &id(&run));
}

#[test]
fn doing_the_same_again_leads_nowhere() {
    let same = || turn(json!([{"op": "list", "path": ""}]));
    let (actum, upstream) = project([same(), same(), turn(json!([finish()]))], STEP_ONLY);
    let (code, run) = one(&actum, rich(), &[]);
    assert_eq!(code, 3, "{run}");
    assert!(run.to_string().contains("loop_detected.no_progress"), "{run}");
    assert_eq!(upstream.calls().len(), 2);
    repeats(&actum, &id(&run));
}

#[test]
fn turns_and_operations_are_counted() {
    let write_one = |n: usize| turn(json!([write(&format!("{n}.txt"), "x\n")]));
    let (actum, upstream) = project((0..9).map(write_one).collect::<Vec<_>>(), "phases = [\"step\"]\nturns = 3");
    let (code, run) = one(&actum, rich(), &[]);
    assert_eq!((code, upstream.calls().len()), (1, 3), "{run}");
    assert!(run.to_string().contains("not done after 3 turns"), "{run}");
    repeats(&actum, &id(&run));

    let all = json!([write("1.txt", "x"), write("2.txt", "x"), write("3.txt", "x"), finish()]);
    let (actum, _upstream) = project([turn(all)], STEP_ONLY);
    let limit = json!({"max_files": 10, "max_delta_size": 100, "max_tool_ops": 2});
    let (code, run) = one(&actum, with(rich(), "constraints", limit), &[]);
    assert_eq!(code, 3, "{run}");
    assert!(run.to_string().contains("Exceeded max tool ops: 3 > 2"), "{run}");
    assert!(!actum.path("1.txt").exists());
    repeats(&actum, &id(&run));
}

#[test]
fn time_is_over_while_nobody_answers() {
    let (actum, _upstream) = project([Turn::Hang], STEP_ONLY);
    let limit = json!({"max_files": 10, "max_delta_size": 100, "max_tool_ops": 10, "timeout_ms": 1000});
    let (code, run) = one(&actum, with(rich(), "constraints", limit), &[]);
    assert_ne!(code, 0, "{run}");
    assert_eq!(run["status"], "timeout", "{run}");
    // Nobody knows what it cost: the money waits for a person.
    let held = asked(&actum, &["spend", "reservations", "--json"]);
    assert!(held.to_string().contains("reconcile_required"), "{held}");
    repeats(&actum, &id(&run));
}

#[test]
fn it_stops_when_it_is_asked_to() {
    let (actum, upstream) = project([Turn::Hang], STEP_ONLY);
    actum.file("work.yaml", json!({"items": [rich()]}).to_string());
    let run = submit(&actum, &[]).remove(0);
    let worker = worker(&actum, &[], &[]);
    upstream.wait_for(1);
    actum.run(&["cancel", &run]).ok();
    until("the run is over", || is_over(&actum, &run));
    assert_eq!(state(&actum, &run), "cancelled");
    end(worker);
}

#[test]
fn a_provider_that_fails_fails_the_run() {
    let (actum, _upstream) = project([Turn::Status(500, None)], STEP_ONLY);
    let (code, run) = one(&actum, rich(), &[]);
    assert_eq!(code, 1, "{run}");
    assert!(run.to_string().contains("comms_failed.provider_error"), "{run}");
    repeats(&actum, &id(&run));

    // And one that is not there is told before anybody is asked.
    let actum = self::actum();
    actum.file("actum.toml", "[agents.a]\ntype = \"predict\"\nmodel = \"m-1\"\n");
    let (code, run) = one(&actum, rich(), &[]);
    assert_eq!(code, 1, "{run}");
    assert!(run.to_string().contains("no provider is set up for the model"), "{run}");
}

#[test]
fn killed_in_the_middle_it_begins_the_step_again() {
    let first = || turn(json!([write("a.txt", "a\n")]));
    let last = || turn(json!([{"op": "read", "path": "a.txt", "from": null, "lines": null}, finish()]));
    for at in ["model.reserved#2", "model.answered#2", "model.settled#2"] {
        // Where the provider had answered before, it answers the same again.
        let is_answered = at != "model.reserved#2";
        let turns = [first()].into_iter().chain(is_answered.then(last)).chain([first(), last()]);
        let (actum, upstream) = project(turns.collect::<Vec<_>>(), STEP_ONLY);
        let work_item = json!({"items": [rich()]});
        actum.file("work.yaml", work_item.to_string());
        let mut running = actum.start(&["run", "--json", "work.yaml"], &[("ACTUM_CRASH_AT", at)]);
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{at}");
        let below = running.below();
        running.kill();
        until("its processes are gone", || !below.iter().any(|process| process.lives()));
        assert!(!actum.path("a.txt").exists());
        let runs = all_runs(&actum);
        work(&actum, &runs);
        check(&actum, &runs[0], at);
        assert_eq!(fs::read_to_string(actum.path("a.txt")).unwrap(), "a\n");
        upstream.stop();
        repeats(&actum, &runs[0]);
    }
}

#[test]
fn its_signatures_are_shown_and_not_listed() {
    let actum = actum();
    for name in ["actum/plan.v1", "actum/act.v1", "actum/correct.v1"] {
        assert_eq!(asked(&actum, &["signature", "show", name, "--json"])["signature_id"], name);
    }
    assert_eq!(asked(&actum, &["signature", "list", "--json"])["signatures"], json!([]));
}

fn example_file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/builtin")).join(name)
}

fn example_project() -> Program {
    let actum = actum();
    fs::create_dir(actum.path("site")).unwrap();
    for name in ["actum.toml", "work.yaml", "site/index.html", "site/check.sh"] {
        actum.file(name, fs::read(example_file(name)).unwrap());
    }
    let made = actum_testkit::program::other("chmod").args(["-R", "a+rX"]).arg(actum.folder()).status().unwrap();
    assert!(made.success());
    actum
}

/// What the model of the example says: two steps, the first with a mistake that a check finds.
fn example_script() -> Script {
    let steps = json!({"steps": [
        {"id": "page", "description": "Write about.html: who we are, in the same form as index.html."},
        {"id": "link", "description": "Link to it from index.html."},
    ]});
    let read = |path: &str| json!({"op": "read", "path": path, "from": null, "lines": null});
    let page =
        "<!doctype html>\n<title>About</title>\n<p>We keep what we agree on.\n<p><a href=\"index.htm\">Home</a>\n";
    Script::from([
        Turn::text(steps.to_string()),
        Turn::text(json!({"thought": "I look at the form first.", "operations": [read("index.html"), read("check.sh")]}).to_string()),
        Turn::text(json!({"thought": "The same form, with a link back.", "operations": [write("about.html", page), finish()]}).to_string()),
        Turn::text(json!({"thought": "The link back has a wrong name.", "operations": [
            {"op": "replace", "path": "about.html", "old": "index.htm\"", "new": "index.html\""},
            {"op": "run", "command": ["sh", "check.sh"]}, finish(),
        ]}).to_string()),
        Turn::text(json!({"thought": "Now the way there.", "operations": [
            {"op": "replace", "path": "index.html", "old": "<p>Welcome.\n", "new": "<p>Welcome.\n<p><a href=\"about.html\">About</a>\n"},
            {"op": "run", "command": ["sh", "check.sh"]}, finish(),
        ]}).to_string()),
    ])
}

#[test]
fn the_example_runs_offline_without_a_key() {
    let actum = example_project();
    actum.file("recording.json", fs::read(example_file("recording.json")).unwrap());
    let ended = actum.run(&["run", "--json", "work.yaml"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let page = fs::read_to_string(actum.path("site/index.html")).unwrap();
    assert!(page.contains("about.html") && actum.path("site/about.html").exists());
    let run = ended.json()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    fs::remove_file(actum.path("recording.json")).unwrap();
    for proof in ["verify", "replay"] {
        let ended = actum.run(&[proof, &run]);
        assert_eq!(ended.code, 0, "{proof}: {}{}", ended.stdout, ended.stderr);
    }
}

/// The recording of the example is what a provider with `record` leaves. If questions have changed it is written anew.
#[test]
fn the_recording_of_the_example_is_what_a_provider_leaves() {
    let upstream = Upstream::start(example_script());
    let actum = example_project();
    let settings = fs::read_to_string(actum.path("actum.toml")).unwrap();
    let (before, _) = settings.split_once("[providers.").unwrap();
    let provider = format!(
        "[providers.demo]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nkey = \"env:UP_KEY\"\nrecord = \"made.json\"\n\
         [prices.\"*\"]\ninput = 0\noutput = 0\n",
        upstream.url()
    );
    actum.file("actum.toml", format!("{before}{provider}"));
    let ended = actum.run(&["run", "--json", "work.yaml"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let made = fs::read_to_string(actum.path("made.json")).unwrap();
    let kept = fs::read_to_string(example_file("recording.json")).unwrap_or_default();
    if made != kept {
        fs::write(example_file("recording.json"), made).unwrap();
        panic!("the recording of the example was not what is asked now, and has been written anew; look at it");
    }
}
