//! A changed contract never changes what was already done (D-501), through the real binary: overrides and forks of partly
//! finished runs, contracts that were altered in the store, runs without a contract, and contracts of other versions.

use std::fs;

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::metadata;
use actum_testkit::program::Program;
use serde_json::{Map, Value, json};

use super::run::{asked, id, item, one, project, with};
use super::run_change::alter;
use super::runs::{entries, is_over, state, status, submit, work};

const STEPS: usize = 10;

/// An agent of ten steps. Each step adds a line to `lines`; it fails at the step that the ignored file `stop-at` names.
const TEN_STEPS: &str = r#"
    case "$ACTUM_PHASE" in
      plan) cp plan.json "$ACTUM_RESPONSE" ;;
      step) step=$(sed -n 's/.*"id": "\(s[0-9]*\)".*/\1/p' "$ACTUM_REQUEST")
            [ "$step" != "$(cat stop-at 2> /dev/null)" ]
            echo "$step" >> lines ;;
    esac
"#;

fn ten_steps(stop_at: usize) -> Program {
    let actum = project(&[("a", TEN_STEPS)]);
    let steps: Vec<Value> = (1..=STEPS).map(|n| json!({"id": format!("s{n}"), "description": "d"})).collect();
    actum.file("plan.json", json!({"steps": steps}).to_string());
    actum.file(".gitignore", "stop-at\n");
    actum.file("stop-at", format!("s{stop_at}"));
    actum
}

fn all_steps() -> Vec<String> {
    (1..=STEPS).map(|n| format!("s{n}")).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(ToOwned::to_owned).collect()
}

/// Every line was published once and in order, counters fit, and the receipt names each contract with its steps.
fn check_finished(actum: &Program, run: &str, stop_at: usize, case: &str) {
    let lines = fs::read_to_string(actum.path("lines")).unwrap_or_default();
    assert_eq!(words(&lines), all_steps(), "{case}");
    let shown = status(actum, run);
    assert_eq!(shown["state"], "succeeded", "{case}: {shown}");
    let progress = &shown["progress"];
    assert_eq!((&progress["steps_done"], &progress["steps"]), (&json!(STEPS), &json!(STEPS)), "{case}: {progress}");
    assert_eq!(actum.run(&["gate", run]).code, 0, "{case}: {}", actum.run(&["gate", run]).stdout);
    assert_eq!(actum.run(&["verify", run]).code, 0, "{case}");
    let statement = fs::read(actum.path(&format!(".actum/runs/{run}/receipt.statement.json"))).unwrap();
    let statement: Value = serde_json::from_slice(&statement).unwrap();
    let contracts = statement["predicate"]["contracts"].as_array().expect("contracts").clone();
    let governed: Vec<Vec<String>> =
        contracts.iter().map(|c| serde_json::from_value(c["steps"].clone()).unwrap()).collect();
    let (before, after) = all_steps().into_iter().partition(|step| step[1..].parse::<usize>().unwrap() < stop_at);
    let (before, after): (Vec<String>, Vec<String>) = (before, after);
    assert_eq!(governed, [before, after], "{case}");
    assert_ne!(contracts[0]["hash"], contracts[1]["hash"], "{case}");
    let replayed = actum.run(&["replay", "--json", run]);
    assert_eq!(replayed.code, 0, "{case}: {}{}", replayed.stdout, replayed.stderr);
}

fn override_or_fork(stop_at: usize) {
    let directions: [(&[&str], &[&str]); 4] = [
        (&["--set", "lightValidationMode=enforce"], &["--set", "lightValidationMode=off"]),
        (&["--set", "lightValidationMode=off"], &["--set", "lightValidationMode=enforce"]),
        (&[], &["--profile", "ci"]),
        (&["--profile", "ci"], &["--profile", "full"]),
    ];
    let ways = ["--override-execution-config", "--fork"];
    for ((from, to), how) in directions.into_iter().flat_map(|direction| ways.map(|how| (direction, how))) {
        let case = format!("stopped at {stop_at}, {from:?} → {to:?} {how}");
        let actum = ten_steps(stop_at);
        let item = with(item("i", "a"), "test_command", json!("test -s lines"));
        let (code, failed) = one(&actum, item, from);
        assert_eq!((code, &failed["error_code"]), (1, &json!("AGENT_FAILED")), "{case}: {failed}");
        actum.file("stop-at", "none");
        let run = id(&failed);
        let ended = actum.run(&[&["resume", "--json", &run, how], to].concat());
        let ended_run = ended.json()["runs"][0].clone();
        assert_eq!(ended.code, 0, "{case}: {}{}", ended.stdout, ended.stderr);
        check_finished(&actum, &id(&ended_run), stop_at, &case);
    }
}

#[test]
fn override_keeps_finished_steps_at_step_2() {
    override_or_fork(2);
}

#[test]
fn override_keeps_finished_steps_at_step_4() {
    override_or_fork(4);
}

#[test]
fn override_keeps_finished_steps_at_step_9() {
    override_or_fork(9);
}

#[test]
fn override_of_succeeded_run_is_refused() {
    let actum = project(&[("a", "echo x > x")]);
    let (_, done) = one(&actum, item("i", "a"), &[]);
    let flags = ["resume", "--json", &id(&done), "--override-execution-config", "--set", "maxFileBytes=7000"];
    let refused = actum.run(&flags);
    assert_eq!((refused.code, &refused.error()["code"]), (6, &json!("RUN_STATE")), "{}", refused.stdout);
    assert_eq!(status(&actum, &id(&done))["contract"]["hash"], done["contract_hash"]);
    assert_eq!(actum.run(&["gate", &id(&done)]).code, 0);
}

/// Rewrites every copy of the contract so that the seven keys agree with each other.
fn rewrite_consistently(fields: &mut Map<String, Value>, change: impl Fn(&mut Map<String, Value>)) {
    let mut material = fields[metadata::MATERIAL].clone();
    change(material["normalizedExecutionConfig"].as_object_mut().unwrap());
    let hash = Digest::sha256(&canon::canonical(&material).unwrap()).to_hex();
    fields[metadata::EFFECTIVE_CONFIG] = material["normalizedExecutionConfig"].clone();
    fields[metadata::MATERIAL] = material;
    fields[metadata::HASH] = json!(hash);
}

type Alteration = fn(&mut Map<String, Value>);

const ALTERATIONS: [(&str, Alteration); 3] = [
    ("weaker limit in all copies", |fields| {
        rewrite_consistently(fields, |config| drop(config.insert("maxFilesPerStep".into(), json!(1000))));
    }),
    ("validation off in all copies", |fields| {
        rewrite_consistently(fields, |config| drop(config.insert("lightValidationMode".into(), json!("off"))));
    }),
    ("provenance", |fields| {
        fields[metadata::FALLBACK_USED] = json!(true);
        fields[metadata::FALLBACK_FIELDS] = json!(["maxFilesPerStep"]);
    }),
];

/// The contract on record in the ledger is what a worker compares with, not only the seven keys with each other.
#[test]
fn consistently_altered_contract_is_refused_while_queued() {
    for (case, alteration) in ALTERATIONS {
        let actum = project(&[("a", "for n in 1 2 3; do echo x > file-$n; done")]);
        actum.file("work.yaml", json!([item("i", "a")]).to_string());
        let run = submit(&actum, &["--set", "maxFilesPerStep=2"]).remove(0);
        alter(&actum, &run, alteration);
        assert_eq!(status(&actum, &run)["governance"]["code"], "CONTRACT_MISMATCH", "{case}");
        work(&actum, std::slice::from_ref(&run));
        let shown = status(&actum, &run);
        assert_eq!(shown["error"]["code"], "CONTRACT_MISMATCH", "{case}: {shown}");
        let gate = actum.run(&["gate", "--json", &run]);
        assert_eq!(gate.code, 1, "{case}");
        assert!(gate.stdout.contains("CONTRACT_MISMATCH"), "{case}: {}", gate.stdout);
        assert!(!actum.path("file-1").exists(), "{case}");
    }
}

#[test]
fn consistently_altered_contract_is_refused_after_a_failure() {
    for (case, alteration) in ALTERATIONS {
        let actum = project(&[("a", "for n in 1 2 3; do echo x > file-$n; done")]);
        let (_, failed) = one(&actum, item("i", "a"), &["--set", "maxFilesPerStep=2"]);
        assert_eq!(failed["error_code"], "STEP_LIMIT_EXCEEDED", "{case}");
        let run = id(&failed);
        alter(&actum, &run, alteration);
        for flags in [&[][..], &["--override-execution-config", "--set", "maxFileBytes=5000"], &["--fork"]] {
            let refused = actum.run(&[&["resume", "--json", &run], flags].concat());
            assert_eq!((refused.code, &refused.error()["code"]), (5, &json!("CONTRACT_MISMATCH")), "{case} {flags:?}");
        }
        assert_eq!(actum.run(&["gate", &run]).code, 1, "{case}");
        assert!(!actum.path("file-1").exists(), "{case}");
    }
}

/// Also after an override, which is on record as such.
#[test]
fn altered_contract_is_refused_after_an_override() {
    let actum = project(&[("a", "echo x > file; exit 1")]);
    let (_, failed) = one(&actum, item("i", "a"), &[]);
    let run = id(&failed);
    let original = failed["contract_hash"].clone();
    let mut before = Map::new();
    alter(&actum, &run, |fields| before = fields.clone());
    actum.run(&["resume", &run, "--override-execution-config", "--set", "maxFileBytes=5000"]);
    let changes = entries(&actum, "contract_change");
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (&changes[0]["payload"]["executionId"], &changes[0]["payload"]["from"]["hash"]),
        (&json!(run), &original)
    );
    // The original contract, put back behind the ledger's back, is an alteration too.
    alter(&actum, &run, |fields| {
        for key in metadata::KEYS {
            fields[key] = before[key].clone();
        }
    });
    let refused = actum.run(&["resume", "--json", &run]);
    assert_eq!((refused.code, &refused.error()["code"]), (5, &json!("CONTRACT_MISMATCH")));
}

fn strip(fields: &mut Map<String, Value>) {
    metadata::KEYS.iter().for_each(|key| drop(fields.remove(*key)));
}

/// The attachment is in the ledger whether a worker or `resume` makes it.
#[test]
fn attached_contract_is_recorded_on_every_path() {
    for by_resume in [false, true] {
        let actum = project(&[("a", "echo x > file; [ $ACTUM_ATTEMPT != 1 ] || [ ! -e fails ]")]);
        if by_resume {
            actum.file("fails", "");
        }
        actum.file("work.yaml", json!([item("i", "a")]).to_string());
        let run = submit(&actum, &[]).remove(0);
        if by_resume {
            work(&actum, std::slice::from_ref(&run));
            assert_eq!(state(&actum, &run), "failed");
            alter(&actum, &run, strip);
            assert_eq!(actum.run(&["resume", &run]).code, 0);
        } else {
            alter(&actum, &run, strip);
            work(&actum, std::slice::from_ref(&run));
        }
        assert!(is_over(&actum, &run));
        assert_eq!(state(&actum, &run), "succeeded", "{}", status(&actum, &run));
        let changes = entries(&actum, "contract_change");
        assert_eq!(changes.len(), 1, "by resume: {by_resume}");
        assert_eq!(changes[0]["payload"]["from"], Value::Null);
        assert_eq!(changes[0]["payload"]["to"]["hash"], status(&actum, &run)["contract"]["hash"]);
        assert_eq!(actum.run(&["gate", &run]).code, 0);
    }
}

/// A ledger that names another contract than the default one: removing all keys does not replace it.
#[test]
fn removing_the_contract_does_not_replace_it() {
    let actum = project(&[("a", "echo x > file")]);
    actum.file("work.yaml", json!([item("i", "a")]).to_string());
    let run = submit(&actum, &["--set", "maxFilesPerStep=2"]).remove(0);
    alter(&actum, &run, strip);
    work(&actum, std::slice::from_ref(&run));
    assert_eq!(status(&actum, &run)["error"]["code"], "CONTRACT_MISMATCH");
    assert!(!actum.path("file").exists());
}

/// As the error page says: a fork runs the same work under the present versions and keeps the recorded limits.
#[test]
fn unsupported_contract_is_left_by_a_fork() {
    let actum = project(&[("a", "echo x > file")]);
    actum.file("work.yaml", json!([item("i", "a")]).to_string());
    let run = submit(&actum, &["--set", "maxFilesPerStep=2"]).remove(0);
    alter(&actum, &run, |fields| fields[metadata::MATERIAL]["plannerPolicyVersion"] = json!(2));
    work(&actum, std::slice::from_ref(&run));
    assert_eq!(status(&actum, &run)["error"]["code"], "UNSUPPORTED_CONTRACT");
    let refused = actum.run(&["resume", "--json", &run]);
    assert_eq!((refused.code, &refused.error()["code"]), (5, &json!("UNSUPPORTED_CONTRACT")));
    assert!(refused.error()["hint"].as_str().unwrap().contains("--fork"), "{}", refused.stderr);
    let forked = actum.run(&["resume", "--json", &run, "--fork"]);
    assert_eq!(forked.code, 0, "{}{}", forked.stdout, forked.stderr);
    let forked = id(&forked.json()["runs"][0]);
    let shown = asked(&actum, &["status", "--json", &forked]);
    assert_eq!(shown["contract"]["effectiveExecutionConfig"]["maxFilesPerStep"], 2, "{shown}");
    assert_eq!(actum.run(&["gate", &forked]).code, 0);
    assert!(actum.path("file").exists());
}

/// The finished steps that a fork took along mean what the source's contract says: that one is compared as well.
#[test]
fn altered_contract_of_a_forks_source_is_refused() {
    for (case, alteration) in ALTERATIONS {
        let actum = ten_steps(4);
        let (_, failed) = one(&actum, item("i", "a"), &["--set", "maxFilesPerStep=2"]);
        let source = id(&failed);
        let forked = actum.run(&["resume", "--json", &source, "--fork", "--set", "maxFilesPerStep=3"]);
        assert_eq!(forked.code, 1, "it fails at the same step: {}", forked.stdout);
        let fork = id(&forked.json()["runs"][0]);
        alter(&actum, &source, alteration);
        fs::remove_file(actum.path("stop-at")).unwrap();
        actum.run(&["resume", "--json", &fork]);
        let shown = status(&actum, &fork);
        assert_eq!(shown["error"]["code"], "CONTRACT_MISMATCH", "{case}: {shown}");
        assert!(shown["error"]["message"].as_str().unwrap().contains(&source), "{case}: {shown}");
        assert!(!actum.path("lines").exists(), "{case}");
    }
}

/// So is a change of the contract that stands in the run's journal.
#[test]
fn altered_change_of_a_contract_in_the_journal_is_refused() {
    let actum = ten_steps(4);
    let (_, failed) = one(&actum, item("i", "a"), &["--set", "maxFilesPerStep=2"]);
    let run = id(&failed);
    let changed = actum.run(&["resume", &run, "--override-execution-config", "--set", "maxFilesPerStep=3"]);
    assert_eq!(changed.code, 1, "it fails at the same step: {}", changed.stdout);
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    let sql = "UPDATE run_event SET body = replace(body, '\"maxFilesPerStep\":2', '\"maxFilesPerStep\":9')
               WHERE kind = 'contract_changed'";
    assert_eq!(database.execute(sql, []).unwrap(), 1);
    fs::remove_file(actum.path("stop-at")).unwrap();
    actum.run(&["resume", "--json", &run]);
    assert_eq!(status(&actum, &run)["error"]["code"], "CONTRACT_MISMATCH", "{}", status(&actum, &run));
    assert!(!actum.path("lines").exists());
}

/// A change that was removed from the journal, or an event, is missed: without it earlier events would mean something else.
#[test]
fn journal_that_lost_a_contract_change_is_refused() {
    for sql in [
        "UPDATE run_event SET kind = 'warned', body = '{\"event\":\"warned\",\"what\":\"x\"}' WHERE kind = 'contract_changed'",
        "DELETE FROM run_event WHERE kind = 'contract_changed'",
    ] {
        let actum = ten_steps(4);
        let (_, failed) = one(&actum, item("i", "a"), &["--set", "maxFilesPerStep=2"]);
        let run = id(&failed);
        let changed = actum.run(&["resume", &run, "--override-execution-config", "--set", "maxFilesPerStep=3"]);
        assert_eq!(changed.code, 1, "it fails at the same step: {}", changed.stdout);
        let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
        assert_eq!(database.execute(sql, []).unwrap(), 1);
        fs::remove_file(actum.path("stop-at")).unwrap();
        actum.run(&["resume", "--json", &run]);
        assert_eq!(status(&actum, &run)["error"]["code"], "CONTRACT_MISMATCH", "{}", status(&actum, &run));
        assert!(!actum.path("lines").exists());
    }
}

/// A step that was acted under one contract and accepted under the next is replayed in the same way.
#[test]
fn step_acted_under_one_contract_and_accepted_under_another_is_replayed() {
    let agent = r#"
        case "$ACTUM_PHASE" in
          plan) cp plan.json "$ACTUM_RESPONSE" ;;
          step) if grep -q '"id": "s2"' "$ACTUM_REQUEST"; then touch x y z; echo bad > bad.json; else echo more >> x; fi ;;
        esac
    "#;
    let actum = project(&[("a", agent)]);
    let steps: Vec<Value> = (1..=3).map(|n| json!({"id": format!("s{n}"), "description": "d"})).collect();
    actum.file("plan.json", json!({"steps": steps}).to_string());
    let from = ["--set", "lightValidationMode=enforce", "--set", "maxRuntimeCorrectionAttempts=0"];
    let (_, failed) = one(&actum, item("i", "a"), &from);
    assert_eq!(failed["error_code"], "LIGHT_VALIDATION_FAILED", "{failed}");
    let run = id(&failed);
    let change = ["--set", "lightValidationMode=off", "--set", "maxFilesPerStep=1"];
    let ended = actum.run(&[&["resume", "--json", &run, "--override-execution-config"], &change[..]].concat());
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let replayed = actum.run(&["replay", "--json", &run]);
    assert_eq!((replayed.code, &replayed.json()["identical"]), (0, &json!(true)), "{}", replayed.stdout);
}
