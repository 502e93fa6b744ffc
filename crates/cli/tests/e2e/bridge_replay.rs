//! Runs with tools, repeated: offline and bit for bit, with the tools gone, and what is said if a repetition asks for
//! something else. Forks, other attempts and takeovers repeat too.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use actum_testkit::folder::Folder;
use actum_testkit::program::Program;
use actum_testkit::tree::read;
use serde_json::{Value, json};

use super::bridge::{WIDE, agent, good, left, out, out_json, register, repeats, shell, trace, wide, with_tools};
use super::run::{asked, id, live, one};
use super::runs::{check, check_project, until};

/// A tool that never says the same twice.
fn noise(access: &str) -> (Value, Value) {
    let script =
        "n=$(head -c 16 /dev/urandom | od -An -tx1); date +%N; echo $n; [ -z \"${1:-}\" ] || echo $n > noise-$1";
    shell("NOISE", access, script, json!({}))
}

#[test]
fn bridge_replay_needs_no_tool() {
    let script = r#"
actum adapter list --json > out/list
actum tool show NOISE --level L3 > out/show
actum tool call NOISE > out/first
echo x > x
actum tool call NOISE > out/second
actum tool call NOISE --param word=1 > out/third
sh gen.sh > /dev/null
actum tool call OWN > out/own
actum tool call NONE > out/none 2>&1 || echo $? >> out/none
"#;
    let tools = [noise("write"), shell("OWN", "read", "sh ./gen.sh", json!({}))];
    let actum = with_tools(script, "", &tools);
    actum.file("gen.sh", "head -c 8 /dev/urandom | od -An -tx1\n");
    let run = id(&good(&actum));
    assert_ne!(out(&actum, "first"), out(&actum, "second"));
    let after = read(actum.folder());
    repeats(&actum, &run);
    for tool in ["NOISE", "OWN"] {
        actum.run(&["adapter", "remove", &format!("A-{tool}")]).ok();
        actum.run(&["tool", "remove", tool]).ok();
    }
    fs::remove_file(actum.path("gen.sh")).unwrap();
    repeats(&actum, &run);
    actum.file("gen.sh", "head -c 8 /dev/urandom | od -An -tx1\n");
    assert_eq!(read(actum.folder()), after, "the workspace is not touched");
    // Elsewhere, with another store that knows no tools.
    let elsewhere = Folder::new();
    let folder = actum.path(&format!(".actum/runs/{run}"));
    for name in ["RECEIPT.json", "recording.json"] {
        elsewhere.file(name, fs::read(folder.join(name)).unwrap());
    }
    let receipt = elsewhere.join("RECEIPT.json").display().to_string();
    let store = format!("sqlite:{}", elsewhere.join("other.db").display());
    let ended = actum.run(&["replay", "--json", &receipt, "--store", &store]);
    assert_eq!((ended.code, &ended.json()["identical"]), (0, &json!(true)), "{}{}", ended.stdout, ended.stderr);
    // One that was altered is not repeated.
    let mut recording: Value = serde_json::from_slice(&fs::read(elsewhere.join("recording.json")).unwrap()).unwrap();
    recording["answers"][0]["result"] = json!("altered");
    elsewhere.file("recording.json", recording.to_string());
    assert_eq!(actum.run(&["replay", "--json", &receipt]).code, 2);
}

/// Answers every request with the number of requests so far, `asked` times.
fn server(asked: usize) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        for n in 1..=asked {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = [0; 4096];
            let _ = stream.read(&mut heard).unwrap();
            let body = json!({"data": {"n": n}}).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
            write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    let thread = thread.unwrap();
    (port, thread)
}

#[test]
fn bridge_replay_needs_no_server() {
    let (port, thread) = server(4);
    let tool = json!({
        "tool_id": "API", "name": "api", "version": "1.0.0", "owner": "tests", "provenance": {"license": "MIT"},
        "scope": {"commands": ["get", "make"], "endpoints": [format!("127.0.0.1:{port}")], "network": "on"},
        "approval": {"approver": "tests", "date": "2026-01-16"},
    });
    let adapter = json!({
        "adapter_id": "A-API", "name": "api", "version": "1.0.0", "tool_id": "API", "type": "api",
        "interface": {"api": {"base_url": format!("http://127.0.0.1:{port}"), "endpoint_mapping": {"get": "GET /n", "make": "POST /n"}}},
    });
    let script = "for n in 1 2; do actum tool call API get --json > out/get-$n; actum tool call API make --json > out/make-$n; done";
    let actum = with_tools(script, "", &[(tool, adapter)]);
    let run = good(&actum);
    thread.join().unwrap();
    // What somebody else answers is asked for each time.
    for (name, n, cached) in [("get-1", 1, false), ("make-1", 2, false), ("get-2", 3, false), ("make-2", 4, false)] {
        let answer = out_json(&actum, name);
        assert_eq!((&answer["output"]["data"]["n"], &answer["cached"]), (&json!(n), &json!(cached)), "{name}");
    }
    repeats(&actum, &id(&run));
}

#[test]
fn bridge_replay_names_the_question_that_is_new() {
    let script = "n=$(head -c 4 /dev/urandom | od -An -tx1 | tr -d ' '); actum tool call T --param word=$n > out/said";
    let actum = with_tools(script, "", &[shell("T", "read", "echo $1", json!({}))]);
    let run = id(&good(&actum));
    let ended = actum.run(&["replay", "--json", &run]);
    let replayed = ended.json();
    let first = &replayed["first_difference"];
    assert_eq!((ended.code, &first["what"]), (1, &json!("question")), "{replayed}");
    let asked = &trace(&actum, &run)[0]["input"]["call"]["params"]["word"];
    assert_eq!((&first["actual"]["call"]["tool"], &first["expected"]["call"]["params"]["word"]), (&json!("T"), asked));
    assert_ne!(&first["actual"]["call"]["params"]["word"], asked);
    // One that asks less differs in its trace.
    let script = "[ $(($(od -An -N1 -tu1 /dev/urandom) % 2)) = 0 ] || actum tool call T > /dev/null; true";
    let actum = with_tools(script, "", &[shell("T", "read", "echo", json!({}))]);
    let run = id(&good(&actum));
    let seen: Vec<Value> = (0..40).map(|_| actum.run(&["replay", "--json", &run]).json()).collect();
    let differs = seen.iter().find(|replayed| replayed["identical"] == false).expect("a coin falls either way");
    let what = &differs["first_difference"]["what"];
    assert!(what == "question" || what == "toolTrace", "{differs}");
}

#[test]
fn bridge_replay_of_a_call_that_nobody_waited_for() {
    // The agent leaves while its tool runs; in the repetition it may be gone before it has asked.
    let script = "actum tool call SLOW > /dev/null & until [ -e /tmp/asked ]; do actum tool call T > /tmp/asked; done; sleep 0.5; echo x > x";
    let tools =
        [shell("SLOW", "write", "echo half > half; sleep 600", json!({})), shell("T", "read", "echo", json!({}))];
    let actum = with_tools(script, "", &tools);
    let run = good(&actum);
    let trace = trace(&actum, &id(&run));
    assert_eq!(trace.len(), 2, "{trace:?}");
    assert_eq!(fs::read_to_string(actum.path("half")).unwrap(), "half\n");
    for _ in 0..3 {
        repeats(&actum, &id(&run));
    }
}

/// Two steps, each of which asks twice; the second fails unless it may go on.
const UNSTEADY: &str = r#"
case "$ACTUM_PHASE" in
  plan) actum tool call NOISE > /dev/null
        echo '{"steps": [{"id": "one", "description": "1"}, {"id": "two", "description": "2"}]}' > "$ACTUM_RESPONSE"
        [ -e may-plan ] ;;
  step) step=$(sed -n 's/.*"id": "\(one\|two\)".*/\1/p' "$ACTUM_REQUEST")
        actum adapter list > /dev/null
        actum tool call NOISE >> out/$step; actum tool call NOISE --param word=$step >> out/$step
        [ "$step" = one ] || [ -e may-act ] ;;
esac
"#;

#[test]
fn bridge_replay_of_later_attempts_and_forks() {
    let project = || {
        let actum = with_tools(UNSTEADY, "", &[noise("read")]);
        actum.file("may-plan", "");
        actum
    };
    let actum = project();
    let (code, failed) = one(&actum, live(wide()), &WIDE);
    assert_eq!((code, &failed["error_code"]), (1, &json!("AGENT_FAILED")), "{failed}");
    let run = id(&failed);
    repeats(&actum, &run);
    // A fork has none of its source's files; what its acts heard is there all the same.
    actum.file("may-act", "");
    let forked = actum.run(&["resume", "--json", &run, "--fork"]);
    assert_eq!(forked.code, 0, "{}{}", forked.stdout, forked.stderr);
    let forked = forked.json()["runs"][0].clone();
    assert_eq!(forked["metrics"]["tool_ops_count"], 5, "{forked}");
    assert_eq!(actum.run(&["verify", &id(&forked)]).code, 0);
    assert_eq!(trace(&actum, &id(&forked)).len(), 5);
    // Another attempt goes on where the first one failed; what was thrown away is neither counted nor repeated.
    let actum = project();
    let (_, failed) = one(&actum, live(wide()), &WIDE);
    actum.file("may-act", "");
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.json()["runs"][0]["metrics"]["tool_ops_count"], 5);
    assert_eq!(trace(&actum, &id(&failed)).len(), 5);
    let answers = left(&actum, &id(&failed), "recording.json")["answers"].as_array().unwrap().clone();
    assert_eq!(answers.iter().filter(|answer| answer["input"]["call"].is_object()).count(), 5);
}

#[test]
fn bridge_replay_after_a_plan_that_failed() {
    // What it hears decides, so that a wrong answer would show; the first plan fails.
    let script = r#"
case "$ACTUM_PHASE" in
  plan) actum tool call NOISE > /tmp/n; n=$(cksum < /tmp/n | cut -d' ' -f1)
        echo '{"steps": [{"id": "s'$n'", "description": "1"}]}' > "$ACTUM_RESPONSE"
        [ "$ACTUM_ATTEMPT" -gt 1 ] ;;
  step) grep '"id"' "$ACTUM_REQUEST" > out/step; actum tool call NOISE > out/noise ;;
esac
"#;
    let actum = with_tools(script, "", &[noise("read")]);
    let (code, failed) = one(&actum, wide(), &WIDE);
    assert_eq!((code, &failed["error_code"]), (1, &json!("PLAN_FAILED")), "{failed}");
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.json()["runs"][0]["metrics"]["tool_ops_count"], 2);
    repeats(&actum, &id(&failed));
}

fn steady() -> Program {
    let script = UNSTEADY.replace("[ -e may-plan ]", "true").replace("[ -e may-act ]", "true");
    with_tools(&script, "", &[noise("write")])
}

#[test]
fn bridge_replay_of_runs_that_were_taken_over() {
    for place in [
        "run.begun",
        "run.staged",
        "run.planned",
        "run.acted",
        "run.acted#2",
        "run.published",
        "run.receipted",
        "run.ended",
    ] {
        let actum = steady();
        actum.file("work.json", wide().to_string());
        let mut running = actum.start(&["run", "--json", "work.json"], &[("ACTUM_CRASH_AT", place)]);
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{place}");
        let below = running.below();
        running.kill();
        until("its processes are gone", || !below.iter().any(|process| process.lives()));
        let runs = super::runs::all_runs(&actum);
        super::runs::work(&actum, &runs);
        check(&actum, &runs[0], place);
        check_project(&actum, place);
        assert_eq!(trace(&actum, &runs[0]).len(), 5, "{place}");
        assert_eq!(asked(&actum, &["status", "--json", &runs[0]])["result"]["metrics"]["tool_ops_count"], 5, "{place}");
        repeats(&actum, &runs[0]);
    }
}

#[test]
fn bridge_replay_of_a_call_that_was_killed_with_its_worker() {
    let actum = with_tools("true", "", &[]);
    let tag = super::runs::tag(&actum);
    let slow = shell("SLOW", "read", "[ -e go ] || sleep 600; echo done", json!({}));
    register(&actum, &[slow, noise("read")]);
    let script = format!("actum tool call NOISE > out/noise; actum tool call SLOW --param word=tool-{tag} > out/slow");
    agent(&actum, &script, "");
    actum.file("work.json", live(wide()).to_string());
    let running = actum.start(&["run", "--json", "work.json"], &[]);
    let tool = format!("tool-{tag}");
    until("the tool runs", || !actum_testkit::program::Process::with_argument(&tool).is_empty());
    let below = running.below();
    running.kill();
    until("its processes are gone", || !below.iter().any(|process| process.lives()));
    until("the tool is gone", || actum_testkit::program::Process::with_argument(&tool).is_empty());
    actum.file("go", "");
    let runs = super::runs::all_runs(&actum);
    actum.run(&["resume", "-q", &runs[0]]).ok();
    assert_eq!(out(&actum, "slow"), "done\n");
    check(&actum, &runs[0], "killed");
    check_project(&actum, "killed");
    assert_eq!(trace(&actum, &runs[0]).len(), 2);
    repeats(&actum, &runs[0]);
}
