//! Runs that somebody changes: cancelled, interrupted, altered in the store, taken up under another environment, or
//! behind one that fails.

use std::fs;

use actum_contract::metadata;
use actum_testkit::program::{Process, Program};
use actum_testkit::tree::read;
use rusqlite::{Connection, params};
use serde_json::{Map, Value, json};

use super::actum;
use super::runs::{
    all_runs, check, check_project, define, end, entries, history, project, state, status, submit, tag, until, work,
    worker,
};

const ONE: &str = "items: [{id: item, agent_id: b, description: d, test_command: 'true'}]\n";

fn one(step: &str) -> Program {
    let actum = project(step);
    actum.file("work.yaml", ONE);
    actum
}

#[test]
fn a_run_is_cancelled_while_its_agent_works() {
    let actum = one("echo begun >> lines; sleep 60");
    let before = read(actum.folder());
    let running = actum.start(&["run", "--json", "work.yaml"], &[]);
    until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
    let run = all_runs(&actum).remove(0);
    let below = running.below();
    let asked = std::time::Instant::now();
    assert_eq!(actum.run(&["cancel", "--json", &run]).json()["asked"], true);
    until("the agent is gone", || Process::with_argument(&tag(&actum)).is_empty());
    assert!(asked.elapsed() < std::time::Duration::from_secs(10), "it was asked {:?} ago", asked.elapsed());
    let (code, lines, errors) = running.finish();
    assert_eq!(code, 1, "{errors:?}");
    let shown: Value = serde_json::from_str(&lines.concat()).unwrap();
    assert_eq!(
        (&shown["runs"][0]["state"], &shown["runs"][0]["error_code"]),
        (&json!("cancelled"), &json!("CANCELLED"))
    );
    assert_eq!(history(&actum, &run), ["planned 1", "running 1", "cancelled 1"]);
    assert_eq!(read(actum.folder()), before);
    assert!(!below.iter().any(Process::lives));
    check_project(&actum, "cancelled");
    let again = actum.run(&["cancel", "--json", &run]);
    assert_eq!((again.code, &again.error()["code"]), (6, &json!("RUN_STATE")));
    assert_eq!(actum.run(&["resume", "--json", &run]).code, 6, "that is for good");
}

#[test]
fn a_run_is_cancelled_before_it_begins() {
    let actum = project("echo $2 >> lines");
    actum.file(
        "work.yaml",
        "items: [{id: first, agent_id: b, description: d}, {id: second, agent_id: b, description: d, dependencies: [first]}]\n",
    );
    let before = read(actum.folder());
    let ids = submit(&actum, &[]);
    assert_eq!(actum.run(&["cancel", "--json", &ids[1]]).json()["cancelled"], true, "it is blocked");
    assert_eq!(history(&actum, &ids[1]), ["failed 1 COHERENCE_BLOCKED"], "to the ledger it was never planned");
    assert_eq!(actum.run(&["cancel", "--json", &ids[0]]).json()["cancelled"], true, "it is queued");
    assert_eq!(history(&actum, &ids[0]), ["planned 1", "running 1", "cancelled 1"]);
    end(worker(&actum, &[], &[]));
    assert_eq!(ids.iter().map(|id| state(&actum, id)).collect::<Vec<_>>(), ["cancelled", "cancelled"]);
    assert_eq!(read(actum.folder()), before);
    for id in &ids {
        assert_eq!(actum.run(&["cancel", "--json", id]).code, 6);
        assert_eq!(status(&actum, id)["error"]["code"], "CANCELLED");
        assert!(actum.run(&["status", id]).stdout.contains("cancelled"), "the reason is shown");
    }
    check_project(&actum, "cancelled");
}

#[test]
fn an_interrupted_run_goes_on_when_it_is_asked_to() {
    // Waits for as long as nothing was said in its first life, which leaves a mark where the second sees it.
    let actum = one("echo $1 >> lines; [ $ACTUM_ATTEMPT != 1 ] || sleep 60");
    let before = read(actum.folder());
    for signal in ["INT", "TERM"] {
        let running = actum.start(&["run", "--json", "work.yaml"], &[]);
        until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
        let run = all_runs(&actum).pop().unwrap();
        running.signal(signal);
        let (code, lines, errors) = running.finish();
        assert_eq!(code, 1, "{errors:?}");
        let shown: Value = serde_json::from_str(&lines.concat()).unwrap();
        assert_eq!(shown["runs"][0]["error_code"], "INTERRUPTED");
        let shown = status(&actum, &run);
        assert_eq!((&shown["state"], &shown["error"]["retryable"]), (&json!("failed"), &json!(true)), "{shown}");
        let shown = actum.run(&["status", &run]).stdout;
        assert!(shown.contains("interrupted; resume to go on"), "{shown}");
        check_project(&actum, signal);
        if signal == "INT" {
            assert_eq!(read(actum.folder()), before);
        }
        let resumed = actum.run(&["resume", "--json", &run]);
        assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
        let whole = ["planned 1", "running 1", "failed 1 INTERRUPTED", "planned 2", "running 2", "succeeded 2"];
        assert_eq!(history(&actum, &run), whole);
        assert_eq!(actum.run(&["verify", &run]).code, 0);
        check_project(&actum, signal);
    }
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "d\nd\n");
}

/// Changes what the store says a run was agreed on.
pub(crate) fn alter(actum: &Program, run: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let store = Connection::open(actum.path(".actum/actum.db")).unwrap();
    let text: String = store
        .query_row("SELECT metadata FROM run_text WHERE n = (SELECT n FROM run WHERE id = ?1)", [run], |row| row.get(0))
        .unwrap();
    let mut fields: Map<String, Value> = serde_json::from_str(&text).unwrap();
    change(&mut fields);
    let text = Value::Object(fields).to_string();
    assert_eq!(
        store
            .execute(
                "UPDATE run_text SET metadata = ?2 WHERE n = (SELECT n FROM run WHERE id = ?1)",
                params![run, text]
            )
            .unwrap(),
        1
    );
}

fn agreed(actum: &Program, run: &str) -> Map<String, Value> {
    let mut found = Map::new();
    alter(actum, run, |fields| found = fields.clone());
    found
}

fn altered(key: &str, value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields = fields.clone();
            let inner = if key == metadata::MATERIAL { "normalizedExecutionConfig" } else { "maxFileBytes" };
            fields.insert(inner.into(), json!(7));
            Value::Object(fields)
        }
        Value::Array(_) => json!(["maxFileBytes"]),
        Value::Bool(is) => json!(!is),
        Value::Number(_) => json!("1"),
        _ => json!("0".repeat(64)),
    }
}

/// What holds of runs that were refused: visible everywhere, and nothing was done.
fn check_refused(actum: &Program, run: &str, code: &str, case: &str) {
    let shown = status(actum, run);
    assert_eq!((&shown["state"], &shown["error"]["code"]), (&json!("failed"), &json!(code)), "{case}: {shown}");
    assert_eq!(
        (&shown["governance"]["supported"], &shown["governance"]["code"]),
        (&json!(false), &json!(code)),
        "{case}: {shown}"
    );
    assert!(shown["governance"]["details"].is_object(), "{case}: {shown}");
    let gate = actum.run(&["gate", "--json", run]);
    let codes = gate.json()["reasonCodes"].clone();
    assert_eq!(gate.code, 1);
    assert!(codes.as_array().unwrap().contains(&json!(code)), "{case}: {codes}");
    assert_eq!(history(actum, run), ["planned 1".into(), "running 1".into(), format!("failed 1 {code}")], "{case}");
    let resumed = actum.run(&["resume", "--json", run]);
    assert_eq!((resumed.code, &resumed.error()["code"]), (5, &json!(code)), "{case}: {}", resumed.stderr);
    assert!(!actum.path(&format!(".actum/runs/{run}/log")).exists(), "{case}: the agent was started");
}

type Alter = fn(&mut Map<String, Value>);

/// Beside the contract: what is to be done, by whom, where, and how it is tested.
#[test]
fn anything_else_that_was_settled_is_altered_in_the_store() {
    let actum = one("echo ran >> lines");
    let before = read(actum.folder());
    let changes: [(&str, Alter); 5] = [
        ("limits", |f| f["workItem"]["constraints"]["max_files"] = json!(100_000)),
        ("tests", |f| f["workItem"]["test_command"] = json!(["echo"])),
        ("command", |f| f["agent"]["command"] = json!(["sh", "-c", "echo other > other"])),
        ("network", |f| f["agent"]["network"] = json!("open")),
        ("workspace", |f| f["workspace"] = json!("/tmp")),
    ];
    for (case, change) in changes {
        let run = submit(&actum, &[]).remove(0);
        alter(&actum, &run, change);
        let ended = actum.run(&["resume", "--json", &run]);
        assert_eq!(ended.code, 5, "{case}: {}{}", ended.stdout, ended.stderr);
        let shown = status(&actum, &run);
        assert_eq!(shown["error"]["code"], "CONTRACT_MISMATCH", "{case}");
        let codes = actum.run(&["gate", "--json", &run]).json()["reasonCodes"].clone();
        assert!(codes.as_array().unwrap().contains(&json!("CONTRACT_MISMATCH")), "{case}: {codes}");
        assert!(!actum.path(&format!(".actum/runs/{run}/log")).exists(), "{case}: the agent was started");
    }
    assert_eq!(read(actum.folder()), before);
}

#[test]
fn what_was_agreed_on_is_altered_in_the_store() {
    let actum = one("echo ran >> lines");
    let before = read(actum.folder());
    let mut refused = Vec::new();
    for key in metadata::KEYS {
        for removed in [false, true] {
            let run = submit(&actum, &[]).remove(0);
            alter(&actum, &run, |fields| match removed {
                true => drop(fields.remove(key).unwrap()),
                false => {
                    let value = altered(key, &fields[key]);
                    assert_ne!(value, fields[key], "{key}");
                    fields[key] = value;
                }
            });
            refused.push((run, "CONTRACT_MISMATCH", format!("{key} {removed}")));
        }
    }
    for version in ["plannerPolicyVersion", "validationPolicyVersion", "determinismPolicyVersion"] {
        let run = submit(&actum, &[]).remove(0);
        alter(&actum, &run, |fields| fields[metadata::MATERIAL][version] = json!(2));
        refused.push((run, "UNSUPPORTED_CONTRACT", version.to_owned()));
    }
    let ids: Vec<String> = refused.iter().map(|(run, ..)| run.clone()).collect();
    work(&actum, &ids);
    for (run, code, case) in &refused {
        check_refused(&actum, run, code, case);
    }
    let metrics = actum.run(&["status", "--json"]).json()["metrics"]["actum_contract_refusals_total"].clone();
    assert_eq!(metrics, json!({"CONTRACT_MISMATCH": 14, "UNSUPPORTED_CONTRACT": 3}));
    assert_eq!(read(actum.folder()), before);
    check_project(&actum, "refused");
}

/// Altered while nobody has begun with it, and one that depends on another: never planned, and visible all the same.
#[test]
fn what_was_agreed_on_is_altered_while_it_waits() {
    let actum = project("echo $2 >> $2");
    actum.file(
        "work.yaml",
        "items: [{id: first, agent_id: b, description: d}, {id: second, agent_id: b, description: d, dependencies: [first]}]\n",
    );
    let ids = submit(&actum, &[]);
    alter(&actum, &ids[1], |fields| fields[metadata::HASH] = json!("0".repeat(64)));
    work(&actum, &ids);
    assert_eq!(state(&actum, &ids[0]), "succeeded");
    assert_eq!(status(&actum, &ids[1])["error"]["code"], "CONTRACT_MISMATCH");
    let history = history(&actum, &ids[1]);
    assert_eq!(history.len(), 1, "{history:?}");
    assert!(history[0].starts_with("failed 1 "), "{history:?}");
    assert!(!actum.path("second").exists());
    check_project(&actum, "waits");
}

#[test]
fn a_run_without_any_contract_gets_the_default_one() {
    let actum = one("echo ran >> lines");
    let run = submit(&actum, &[]).remove(0);
    alter(&actum, &run, |fields| metadata::KEYS.iter().for_each(|key| drop(fields.remove(*key))));
    assert_eq!(status(&actum, &run)["governance"]["code"], "EXECUTION_CONTRACT_MISSING");
    work(&actum, std::slice::from_ref(&run));
    check(&actum, &run, "legacy");
    let shown = status(&actum, &run);
    assert_eq!(shown["contract"]["effectiveExecutionConfig"]["profile"], "full", "{shown}");
    assert_eq!(shown["contract"]["fallbackUsed"], false);
    let warnings = shown["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|w| w.as_str().unwrap().contains("no contract")), "{shown}");
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "ran\n");
}

#[test]
fn the_environment_of_a_worker_changes_nothing() {
    const OTHER: [(&str, &str); 3] =
        [("ACTUM_LIGHT_VALIDATION_MODE", "off"), ("ACTUM_PROFILE", "ci"), ("ACTUM_PLANNER_TIMEOUT_MS", "1000")];
    // Of the submission's own environment, one variable counts, and is named.
    let actum = one("echo $ACTUM_ATTEMPT >> lines; [ $ACTUM_ATTEMPT != 1 ]").with_env("ACTUM_MAX_FILE_BYTES", "123456");
    let run = submit(&actum, &[]).remove(0);
    let keys = |fields: Map<String, Value>| metadata::KEYS.map(|key| fields[key].clone());
    let before = keys(agreed(&actum, &run));
    assert_eq!(before[6], json!(["maxFileBytes"]));
    let other = worker(&actum, &[], &[OTHER.as_slice(), &[("ACTUM_MAX_FILE_BYTES", "999")]].concat());
    until("it has failed", || state(&actum, &run) == "failed");
    end(other);
    assert_eq!(keys(agreed(&actum, &run)), before);
    let (code, lines, errors) = actum.start(&["resume", "--json", &run], &OTHER).finish();
    assert_eq!(code, 0, "{lines:?} {errors:?}");
    assert_eq!(keys(agreed(&actum, &run)), before);
    let kinds: Vec<Value> =
        status(&actum, &run)["events"].as_array().unwrap().iter().map(|e| e["event"].clone()).collect();
    assert!(kinds.contains(&json!("checked")), "light validation is not off: {kinds:?}");
    assert_eq!(actum.run(&["verify", &run]).code, 0);
}

#[test]
fn what_depends_on_a_failure_fails_too() {
    let actum = actum();
    define(&actum, "echo $2 >> $2; [ $2 != bad ]");
    actum.file(
        "work.yaml",
        "items:
  - { id: good, agent_id: b, description: d }
  - { id: bad, agent_id: b, description: d }
  - { id: child, agent_id: b, description: d, dependencies: [good, bad] }
  - { id: grandchild, agent_id: b, description: d, dependencies: [child] }
  - { id: other, agent_id: b, description: d, dependencies: [good] }
",
    );
    let ended = actum.run(&["run", "--json", "work.yaml"]);
    assert_eq!(ended.code, 1);
    let of = |key: &str| -> Vec<Value> {
        ended.json()["runs"].as_array().unwrap().iter().map(|run| run[key].clone()).collect()
    };
    assert_eq!(of("state"), ["succeeded", "failed", "failed", "failed", "succeeded"]);
    let codes =
        [Value::Null, json!("AGENT_FAILED"), json!("DEPENDENCY_FAILED"), json!("DEPENDENCY_FAILED"), Value::Null];
    assert_eq!(of("error_code"), codes);
    for at in [2, 3] {
        let run = of("run_id")[at].as_str().unwrap().to_owned();
        assert_eq!(history(&actum, &run), ["failed 1 COHERENCE_BLOCKED"]);
    }
    let found: Vec<_> = ["good", "bad", "child", "grandchild", "other"].map(|name| actum.path(name).exists()).into();
    assert_eq!(found, [true, false, false, false, true]);
    assert_eq!(entries(&actum, "receipt").len(), 3, "who never began has no receipt");
    check_project(&actum, "dependencies");
}

#[test]
fn a_run_that_waits_says_for_what_and_goes_on_by_itself() {
    let actum = project("[ $2 != first ] || sleep 1; echo $2 >> $2");
    actum.file(
        "work.yaml",
        "items:
  - { id: first, agent_id: b, description: d }
  - { id: second, agent_id: b, description: d, dependencies: [first] }
  - { id: third, agent_id: b, description: d, dependencies: [first, second] }
",
    );
    let ids = submit(&actum, &[]);
    let waits = |run: &str| status(&actum, run)["waits_for"].clone();
    let found = waits(&ids[2]);
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    assert_eq!(waits(&ids[1]), json!([{"run_id": ids[0], "state": "queued"}]));
    assert!(waits(&ids[0]).is_null());
    let worker = worker(&actum, &[], &[]);
    until("the first works", || waits(&ids[1]) == json!([{"run_id": ids[0], "state": "running"}]));
    assert_eq!(state(&actum, &ids[1]), "blocked");
    for run in &ids {
        until("it is over", || state(&actum, run) == "succeeded");
    }
    end(worker);
    for run in &ids {
        check(&actum, run, "waits");
    }
    check_project(&actum, "waits");
}
