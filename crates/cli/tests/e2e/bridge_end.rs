//! How calls of tools end: with their run that is cancelled or out of time, with the agent that leaves, with a person's
//! answer. And what they know that nobody else may.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use actum_testkit::program::{Process, Program};
use serde_json::{Value, json};

use super::bridge::{WIDE, agent, good, good_with_consent, out, register, repeats, shell, trace, wide, with_tools};
use super::run::{asked, id, one, with};
use super::runs::{tag, until};

/// A project whose agent calls a tool that does not end; the tool has `tool-<tag>` among its arguments.
fn stuck(after: &str) -> Program {
    let tools = [
        shell("SLOW", "write", "echo > started; sleep 600", json!({})),
        shell("QUICK", "read", "echo quick", json!({})),
    ];
    let actum = with_tools("true", "", &tools);
    agent(&actum, &format!("actum tool call SLOW --param word=tool-{} --json > out/slow{after}", tag(&actum)), "");
    actum
}

fn tool(actum: &Program) -> Vec<Process> {
    Process::with_argument(&format!("tool-{}", tag(actum)))
}

fn nothing_left(actum: &Program) {
    assert_eq!(tool(actum), []);
    assert_eq!(Process::with_argument(&tag(actum)), []);
}

/// Much shorter than the tool would take, and than any limit that is not the one meant.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn bridge_end_by_cancelling_the_run() {
    for after in ["", " & sleep 600", "; sleep 600"] {
        let actum = stuck(after);
        actum.file("work.json", wide().to_string());
        let running = actum.start(&["run", "--json", "work.json"], &[]);
        until("the tool runs", || !tool(&actum).is_empty());
        let run = super::runs::all_runs(&actum).remove(0);
        let since = Instant::now();
        actum.run(&["cancel", &run]).ok();
        assert_ne!(running.finish().0, 0);
        assert!(since.elapsed() < SOON);
        nothing_left(&actum);
        let status = asked(&actum, &["status", "--json", &run]);
        assert_eq!(status["state"], "cancelled", "{status}");
        assert_eq!(actum.run(&["verify", &run]).code, 0);
    }
}

#[test]
fn bridge_end_by_the_time_of_the_run() {
    let actum = stuck("");
    let wanted = with(wide(), "constraints", json!({"timeout_ms": 1500}));
    let since = Instant::now();
    let (code, run) = one(&actum, wanted, &[]);
    assert_eq!((code, &run["status"], &run["error_code"]), (4, &json!("timeout"), &json!("TIMEOUT")), "{run}");
    assert!(since.elapsed() < SOON);
    nothing_left(&actum);
    // Nor does it hear an answer when it is repeated: it waits as long.
    repeats(&actum, &id(&run));
}

#[test]
fn bridge_end_by_an_agent_that_leaves() {
    let actum = stuck(&format!(" & {STARTED}"));
    let since = Instant::now();
    let run = good(&actum);
    assert!(since.elapsed() < SOON);
    nothing_left(&actum);
    assert_eq!(run["metrics"]["tool_ops_count"], 1, "it was made, and counts");
    assert_eq!(trace(&actum, &id(&run))[0]["status"], "error");
    repeats(&actum, &id(&run));
    // One that is ended while its caller goes on does not take the agent with it.
    // Their calls end with them: sixteen at once are all there can be, and then there is room for another.
    let calls = "pid=$!; STARTED; kill -9 $pid; wait $pid; rm -f started".replace("STARTED", STARTED);
    let more = format!("for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do actum tool call SLOW & {calls}; done");
    let actum = stuck(&format!(" & {calls}; {more}; actum tool call QUICK > out/quick"));
    let since = Instant::now();
    let run = good(&actum);
    assert!(since.elapsed() < 2 * SOON, "{:?}", since.elapsed());
    nothing_left(&actum);
    assert_eq!((&run["metrics"]["tool_ops_count"], out(&actum, "quick").trim()), (&json!(18), "quick"));
}

/// Waits until the tool says that it runs.
const STARTED: &str = "until [ -e started ]; do sleep 0.02; done";

/// A run whose first call waits for a person; `answer` is what that person says.
fn waited(answer: &str) -> (Program, Value) {
    let script = "actum tool call ASKS --param word=please --json > out/first; echo $? > out/code; \
                  actum tool call ASKS --param word=again --json > out/second; echo $? > out/code2";
    let actum = with_tools(script, "", &[shell("ASKS", "read", "echo $1", json!({"approve_first_use": true}))]);
    actum.file("work.json", wide().to_string());
    let running = actum.start(&[&["run", "--json", "work.json"][..], &WIDE].concat(), &[]);
    let pending = || {
        let all = asked(&actum, &["approvals", "list", "--json"])["approvals"].as_array().unwrap().clone();
        all.into_iter().filter(|one| one["state"] == "pending").collect::<Vec<_>>()
    };
    until("it waits", || !pending().is_empty());
    let request = pending().remove(0);
    assert_eq!((&request["tool_id"], &request["wants"]), (&json!("ASKS"), &json!(["first use"])), "{request}");
    assert_eq!(request["call"]["params"], json!({"word": "please"}), "{request}");
    actum.run(&[answer, request["id"].as_str().unwrap()]).ok();
    if answer == "deny" {
        // The other call is another question.
        until("it waits again", || !pending().is_empty());
        actum.run(&["deny", pending()[0]["id"].as_str().unwrap()]).ok();
    }
    let (code, lines, errors) = running.finish();
    assert_eq!(code, 0, "{lines:?} {errors:?}");
    assert_eq!(pending(), Vec::<Value>::new());
    let run: Value = serde_json::from_str(&lines.concat()).unwrap();
    (actum, run["runs"][0].clone())
}

#[test]
fn bridge_end_by_a_person_who_agrees_or_does_not() {
    let (actum, run) = waited("approve");
    assert_eq!((out(&actum, "code").trim(), out(&actum, "code2").trim()), ("0", "0"), "the first use only");
    assert!(out(&actum, "first").contains("please") && out(&actum, "second").contains("again"));
    repeats(&actum, &id(&run));
    let (actum, run) = waited("deny");
    assert_eq!((out(&actum, "code").trim(), out(&actum, "code2").trim()), ("3", "3"));
    assert_eq!(out(&actum, "first"), "", "a refusal is told on the other stream");
    assert_eq!(run["metrics"]["tool_ops_count"], 2);
    repeats(&actum, &id(&run));
}

#[test]
fn bridge_end_while_a_person_is_waited_for() {
    let script = "actum tool call ASKS > out/said";
    let actum = with_tools(script, "", &[shell("ASKS", "read", "echo", json!({"approve_first_use": true}))]);
    let since = Instant::now();
    let (code, run) = one(&actum, with(wide(), "constraints", json!({"timeout_ms": 1500})), &[]);
    assert_eq!((code, &run["status"]), (4, &json!("timeout")), "{run}");
    assert!(since.elapsed() < SOON);
    actum.file("work.json", wide().to_string());
    let running = actum.start(&["run", "--json", "work.json"], &[]);
    let id = super::run::until_it_acts(&actum);
    actum.run(&["cancel", &id]).ok();
    running.finish();
    assert_eq!(asked(&actum, &["status", "--json", &id])["state"], "cancelled");
    nothing_left(&actum);
}

/// Every file below a folder in which a word stands.
fn holding(folder: &Path, word: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
        } else if fs::read(&path).unwrap_or_default().windows(word.len()).any(|window| window == word) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn bridge_end_of_secrets_is_in_the_tool() {
    let secret = "s3cr3t-of-the-tool-a9f1";
    let script = r#"
env > out/env; cat /proc/*/environ > out/environs 2>/dev/null
actum tool call KNOWS --json > out/knows; actum tool call KNOWS > out/plain 2>&1; actum tool show KNOWS --level L3
actum tool call SPELLS --json > out/spells; actum tool call FAILS --json > out/fails
cat out/knows out/fails; cat out/knows >&2
"#;
    let of = |id: &str, script: &str| {
        let more = json!({"secrets": {"TOKEN": "env:ACTUM_TEST_SECRET"}, "scope": {"environment": ["TOKEN"]}});
        shell(id, "read", script, more)
    };
    let tools = [
        of("KNOWS", "[ ${#TOKEN} = 23 ] && echo told $TOKEN"),
        of("SPELLS", "echo '{\"token\": \"'$TOKEN'\"}'; echo $TOKEN >&2"),
        of("FAILS", "echo $TOKEN >&2; exit 9"),
    ];
    let actum = with_tools(script, "", &tools).with_env("ACTUM_TEST_SECRET", secret);
    let run = good_with_consent(&actum);
    assert!(out(&actum, "knows").contains("told"), "{}", out(&actum, "knows"));
    assert_eq!(holding(actum.folder(), secret.as_bytes()), Vec::<String>::new());
    let log = actum.run(&["logs", &id(&run)]);
    assert!(log.stdout.contains("told") && !log.stdout.contains(secret));
    for arguments in [&["status", "--json"][..], &["diff"], &["verify", "--json"]] {
        let ended = actum.run(&[arguments, &[&id(&run)]].concat());
        assert!(!ended.stdout.contains(secret) && !ended.stderr.contains(secret));
    }
    repeats(&actum, &id(&run));
    // Not there, the call is refused with the name of it, and the run goes on.
    let actum = with_tools("actum tool call KNOWS > out/said 2>&1; echo $? > out/code", "", &tools[..1]);
    good_with_consent(&actum);
    assert_ne!(out(&actum, "code").trim(), "0", "{}", out(&actum, "said"));
    register(&actum, &tools[1..]);
}
