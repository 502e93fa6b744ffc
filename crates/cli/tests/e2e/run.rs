//! Runs, end to end: the seed's three tests, its error table, every profile and mode, limits, corrections, drafts, DAGs,
//! bad work files. Real processes on real files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use actum_testkit::program::{Ended, Program};
use actum_testkit::tree::{Leaves, read};
use serde_json::{Value, json};

use super::actum;
use super::sandbox::{Who, own_all};

/// A project with agents, each a shell script.
pub(crate) fn project(agents: &[(&str, &str)]) -> Program {
    let actum = actum();
    let mut text = String::new();
    for (id, script) in agents {
        let phases = r#"["step", "plan", "correct"]"#;
        let phases = if script.contains("ACTUM_PHASE") { phases } else { r#"["step"]"# };
        text.push_str(&format!(
            "[agents.{id}]\ntype = \"command\"\ncommand = [\"sh\", \"-euc\", {}]\nphases = {phases}\n\n",
            json!(script)
        ));
    }
    actum.file("actum.toml", text);
    actum
}

pub(crate) fn item(id: &str, agent: &str) -> Value {
    json!({"id": id, "agent_id": agent, "description": format!("do {id}")})
}

pub(crate) fn with(mut item: Value, field: &str, value: Value) -> Value {
    item[field] = value;
    item
}

/// Returns an item whose agent sees the workspace as it is at any moment.
pub(crate) fn live(item: Value) -> Value {
    with(item, "view", json!("live"))
}

/// Runs items; what `run --json` shows of each, and the exit code.
pub(crate) fn run(actum: &Program, items: Value, flags: &[&str]) -> (i32, Vec<Value>) {
    let ended = started(actum, &items, flags);
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json()["runs"].as_array().expect("runs").clone())
}

fn started(actum: &Program, items: &Value, flags: &[&str]) -> Ended {
    let arguments: Vec<&str> = ["run", "--json", "-"].into_iter().chain(flags.iter().copied()).collect();
    actum.run_with(&arguments, items.to_string().as_bytes())
}

pub(crate) fn one(actum: &Program, item: Value, flags: &[&str]) -> (i32, Value) {
    let (code, mut runs) = run(actum, item, flags);
    assert_eq!(runs.len(), 1);
    (code, runs.remove(0))
}

pub(crate) fn id(run: &Value) -> String {
    run["run_id"].as_str().expect("an id").to_owned()
}

pub(crate) fn asked(actum: &Program, arguments: &[&str]) -> Value {
    let ended = actum.run(arguments);
    assert!(!ended.stdout.is_empty(), "{arguments:?}: {}", ended.stderr);
    ended.json()
}

fn file(actum: &Program, name: &str) -> Option<String> {
    fs::read_to_string(actum.path(name)).ok()
}

/// What stands in the workspace.
fn tree(actum: &Program) -> Leaves {
    read(actum.folder())
}

#[test]
fn seed_test_1_a_failing_item_leaves_the_state_unchanged() {
    let actum = project(&[("a", "echo changed > kept.txt; rm -r sub; mkdir new; echo x > new/x; exit 7")]);
    actum.file("kept.txt", "kept\n");
    actum.file("sub/deep/file", "there\n");
    let before = tree(&actum);
    let hash = asked(&actum, &["snapshot", "freeze", "--json"])["id"].clone();
    let (code, run) = one(&actum, item("i", "a"), &[]);
    assert_eq!((code, &run["status"], &run["error_code"]), (1, &json!("failure"), &json!("AGENT_FAILED")), "{run}");
    assert!(run["error"].as_str().unwrap().contains("code 7"), "{run}");
    assert_eq!(tree(&actum), before);
    assert_eq!(asked(&actum, &["snapshot", "freeze", "--json"])["id"], hash);
    assert_eq!(run["output_hash"], hash, "the final state is the one before");
}

#[test]
fn seed_test_2_admission_is_enforced() {
    let actum = project(&[("a", "echo 1 > one; echo 2 > two")]);
    let before = tree(&actum);
    let (code, run) = one(&actum, with(item("i", "a"), "constraints", json!({"max_files": 1})), &[]);
    assert_eq!((code, &run["status"]), (3, &json!("denied")), "{run}");
    assert!(run["denial_reason"].as_str().unwrap().contains("Exceeded max files: 2 > 1"), "{run}");
    assert_eq!(tree(&actum), before);
    let (code, run) = one(&actum, with(item("i", "a"), "constraints", json!({"max_delta_size": 1})), &[]);
    assert_eq!((code, &run["denial_reason"]), (3, &json!("Exceeded max delta size: 2 > 1")));
    let events = asked(&actum, &["ledger", "list", "--json", "--execution", &id(&run)]);
    let failed = events["entries"].as_array().unwrap().iter().find(|e| e["state"] == "failed").unwrap().clone();
    assert_eq!(failed["payload"]["error"]["code"], "ADMISSION_DENIED");
    assert_eq!(failed["payload"]["error"]["retryable"], false);
}

#[test]
fn seed_test_3_replay_gives_the_same_hash() {
    let actum = project(&[("a", "sort input.txt > sorted.txt; chmod +x sorted.txt; ln -s sorted.txt link; rm gone")]);
    actum.file("input.txt", "b\na\n");
    actum.file("gone", "x");
    let (code, run) = one(&actum, with(item("i", "a"), "test_command", json!("grep -q a sorted.txt")), &[]);
    assert_eq!(code, 0, "{run}");
    let after = tree(&actum);
    let script = run["proof_script"].as_str().unwrap();
    let mut command = actum_testkit::program::other("bash");
    let ended = command.arg(script).arg("--json").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let replayed: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(replayed["identical"], true, "{replayed}");
    assert_eq!(replayed["actual_hash"], run["output_hash"]);
    assert_eq!(replayed["expected_hash"], run["output_hash"]);
    assert_eq!(tree(&actum), after, "the workspace is not touched");
    assert_eq!(asked(&actum, &["snapshot", "freeze", "--json"])["id"], run["output_hash"]);
}

#[test]
fn what_a_run_hands_out_and_leaves_behind() {
    for who in Who::BOTH {
        let actum =
            project(&[("a", "echo new > new.txt; echo more >> old.txt; rm gone.txt; echo said; echo shouted >&2")]);
        actum.file("old.txt", "old\n");
        actum.file("gone.txt", "gone\n");
        own_all(actum.folder(), who);
        let items = with(item("i", "a"), "test_command", json!(["sh", "-c", "echo '3 passed, 0 failed'"]));
        let ended = who.run_with(&actum, &["run", "--json", "-"], items.to_string().as_bytes());
        assert_eq!(ended.code, 0, "{}: {}", who.word(), ended.stderr);
        let run = ended.json()["runs"][0].clone();
        let folder = actum.folder().canonicalize().unwrap();
        let path = |name: &str| json!([folder.join(name).display().to_string()]);
        assert_eq!(run["created_files"], path("new.txt"));
        assert_eq!(run["modified_files"], path("old.txt"));
        assert_eq!(run["deleted_files"], path("gone.txt"));
        assert_eq!(run["metrics"]["files_touched"], 3);
        assert_eq!(run["metrics"]["delta_size"], 3);
        assert_eq!((&run["metrics"]["tests_passed"], &run["metrics"]["tests_failed"]), (&json!(3), &json!(0)));
        assert!(run["test_output"].as_str().unwrap().contains("3 passed"));
        let hashes = run["artifact_hashes"].as_object().unwrap();
        assert_eq!(hashes.keys().collect::<Vec<_>>(), ["new.txt", "old.txt"]);
        assert_eq!(file(&actum, "new.txt").as_deref(), Some("new\n"));
        assert_eq!(file(&actum, "old.txt").as_deref(), Some("old\nmore\n"));
        assert_eq!(file(&actum, "gone.txt"), None);
        let left = actum.path(&format!(".actum/runs/{}", id(&run)));
        for name in ["RECEIPT.json", "receipt.statement.json", "replay.sh", "result.json", "test.log", "diff.patch"] {
            assert!(left.join(name).is_file(), "{} {name}", who.word());
        }
        assert_eq!(run["receipt_path"], json!(folder.join(".actum/runs").join(id(&run)).join("RECEIPT.json")));
        let result: Value = serde_json::from_slice(&fs::read(left.join("result.json")).unwrap()).unwrap();
        assert_eq!((&result["status"], &result["output_hash"]), (&run["status"], &run["output_hash"]));
        let log = who.run(&actum, &["logs", &id(&run)]).stdout;
        assert!(log.contains("said") && log.contains("shouted"), "{log}");
        assert!(fs::read_dir(actum.path(".actum/stages")).unwrap().flatten().all(|e| e.file_name() == "lock"));
        assert_eq!(who.run(&actum, &["verify", &id(&run)]).code, 0);
        assert_eq!(who.run(&actum, &["replay", &id(&run)]).code, 0, "{}", who.word());
    }
}

#[test]
fn every_row_of_the_error_table() {
    let actum = project(&[
        ("writes", "echo x > x"),
        ("sleeps", "echo x > x; sleep 600"),
        ("fails", "echo x > x; nonexistent-program"),
    ]);
    let before = tree(&actum);
    let rows = [
        (with(item("files", "writes"), "constraints", json!({"max_files": 0})), 3, "denied", "ADMISSION_DENIED"),
        (with(item("tests", "writes"), "test_command", json!("false")), 1, "failure", "TESTS_FAILED"),
        (with(item("slow", "sleeps"), "constraints", json!({"timeout_ms": 300})), 4, "timeout", "TIMEOUT"),
        (item("tool", "fails"), 1, "failure", "AGENT_FAILED"),
        (with(item("output", "writes"), "output_files", json!(["y"])), 1, "failure", "OUTPUT_MISSING"),
        (with(item("input", "writes"), "input_files", json!(["z"])), 1, "failure", "INPUT_MISSING"),
    ];
    for (item, code, status, error) in rows {
        let (ended, run) = one(&actum, item, &[]);
        assert_eq!((ended, &run["status"], &run["error_code"]), (code, &json!(status), &json!(error)), "{run}");
        assert_eq!(tree(&actum), before, "{error}: rolled back");
        // Denied and failed runs get a receipt too.
        assert_eq!(actum.run(&["verify", &id(&run)]).code, 0, "{error}");
        let expected = if status == "timeout" { "TIMEOUT" } else { error };
        let events = asked(&actum, &["ledger", "list", "--json", "--execution", &id(&run)]);
        let failed = events["entries"].as_array().unwrap().iter().find(|e| e["state"] == "failed").unwrap().clone();
        assert_eq!(failed["payload"]["error"]["code"], expected);
        assert_eq!(failed["payload"]["error"]["retryable"], status != "denied");
    }
    // A dependency that is missing blocks until it is ready.
    let both = json!([with(item("second", "fails"), "dependencies", json!(["first"])), item("first", "writes")]);
    let (code, runs) = run(&actum, both, &[]);
    assert_eq!((code, &runs[0]["error_code"], &runs[1]["status"]), (1, &json!("AGENT_FAILED"), &json!("success")));
}

#[test]
fn every_profile_and_mode_with_real_validations() {
    // Bad JSON for the light one, a failing command for the heavy one.
    let actum = project(&[("light", "echo '{' > bad.json"), ("heavy", "echo x > x")]);
    let heavy = with(item("heavy", "heavy"), "validation", json!({"heavy": [["test", "-f", "y"]]}));
    let cases: [(&str, &[&str], &str, bool, bool); 9] = [
        ("light", &["--profile", "full"], "LIGHT_VALIDATION_FAILED", false, false),
        ("light", &["--profile", "ci"], "", true, false),
        ("light", &["--profile", "smoke"], "", true, true),
        ("heavy", &["--profile", "full"], "HEAVY_VALIDATION_FAILED", false, false),
        ("heavy", &["--profile", "ci"], "", true, false),
        ("heavy", &["--profile", "smoke"], "", true, true),
        ("light", &["--set", "lightValidationMode=warn"], "", true, true),
        ("light", &["--set", "lightValidationMode=off"], "", true, false),
        ("heavy", &["--set", "heavyValidationMode=warn"], "", true, true),
    ];
    for (agent, flags, code, good, warned) in cases {
        let item = if agent == "heavy" { heavy.clone() } else { item("light", "light") };
        let (_, run) = one(&actum, item, &[flags, &["--dry-run"]].concat());
        assert_eq!(run["status"] == "success", good, "{agent} {flags:?}: {run}");
        assert_eq!(run["error_code"].as_str().unwrap_or_default(), code, "{agent} {flags:?}");
        assert_eq!(!run["warnings"].as_array().unwrap().is_empty(), warned, "{agent} {flags:?}: {run}");
    }
    let hash = |flags: &[&str]| {
        one(&actum, item("light", "heavy"), &[flags, &["--dry-run"]].concat()).1["contract_hash"].clone()
    };
    assert_eq!(hash(&[]), "eaa65ae6e4c8366fb3b20b76295914499fbe5f03f5e0c9a1b294d015badc7868");
    assert_eq!(hash(&["--profile", "ci"]), "fc3f86dbbd662d3a78b6ce9a750603a313ff900b17b4786476481bb8f70ce2e4");
}

#[test]
fn an_agent_plans_acts_and_corrects_by_the_protocol() {
    let agent = r#"
        case "$ACTUM_PHASE" in
          plan) echo '{"steps": [{"id": "one", "description": "first"}, {"id": "two", "description": "second"}]}' > "$ACTUM_RESPONSE"
                echo planned > must-not-stay ;;
          step) python3 -c '
import json, os
r = json.load(open(os.environ["ACTUM_REQUEST"]))
assert r["phase"] == "step" and r["work_item"]["id"] == os.environ["ACTUM_WORK_ITEM_ID"], r
assert r["limits"]["constraints"]["max_files"] == 10 and "feedback" not in r, r
open(r["step"]["id"] + ".json", "w").write("{" if r["step"]["id"] == "two" else "{}")
open("steps.txt", "a").write(r["step"]["id"] + " " + r["step"]["description"] + "\n")' ;;
          correct) python3 -c '
import json, os
r = json.load(open(os.environ["ACTUM_REQUEST"]))
f = r["feedback"]
assert f["failures"][0]["path"] == "two.json" and f["correction"]["number"] == 1, r
open("two.json", "w").write("{}")' ;;
        esac
        [ "$(pwd)" = "$EXPECTED_FOLDER" ] && [ -n "$ACTUM_RUN_ID" ] && [ "$ACTUM_ATTEMPT" = 1 ]
    "#;
    let actum = project(&[("a", agent)]);
    let folder = actum.folder().canonicalize().unwrap().display().to_string();
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{}\nenvironment = {{ EXPECTED_FOLDER = {} }}\n", toml.trim_end(), json!(folder)));
    let (code, run) = one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 0, "{run}");
    assert_eq!(file(&actum, "steps.txt").as_deref(), Some("one first\ntwo second\n"));
    assert_eq!(file(&actum, "two.json").as_deref(), Some("{}"));
    assert_eq!(file(&actum, "must-not-stay"), None, "planning changes nothing");
    let status = asked(&actum, &["status", "--json", &id(&run)]);
    assert_eq!(status["progress"]["runtime_corrections"], 1);
    assert_eq!(status["progress"]["steps_done"], 2);
    assert_eq!(run["metrics"]["delta_size"], 4, "three files and one verdict that changed");
}

#[test]
fn plans_that_are_none() {
    let plan = |script: &str| format!("case $ACTUM_PHASE in plan) {script} ;; esac");
    let agents = [
        ("empty", plan("echo '{\"steps\": []}' > $ACTUM_RESPONSE"), "PLAN_EMPTY", 1),
        ("silent", plan("true"), "PLAN_FAILED", 1),
        ("broken", plan("echo nonsense > $ACTUM_RESPONSE"), "PLAN_FAILED", 1),
        ("failing", plan("exit 3"), "PLAN_FAILED", 1),
        ("link", plan("ln -s /etc/passwd $ACTUM_RESPONSE"), "PLAN_FAILED", 1),
        ("slow", plan("sleep 60"), "PLAN_TIMEOUT", 4),
    ];
    let scripts: Vec<(&str, &str)> = agents.iter().map(|(name, script, ..)| (*name, script.as_str())).collect();
    let actum = project(&scripts);
    for (name, _, wanted, code) in &agents {
        let (ended, run) = one(&actum, item("i", name), &["--set", "plannerTimeoutMs=1000"]);
        assert_eq!((ended, &run["error_code"]), (*code, &json!(wanted)), "{name}: {run}");
    }
}

#[test]
fn limits_of_a_step_and_files_that_others_obey() {
    let actum = project(&[
        ("many", "for n in $(seq 16); do echo $n > f$n; done"),
        ("large", "head -c 1500001 /dev/zero | tr '\\0' x > large.txt"),
        ("wide", "head -c 500000 /dev/urandom | base64 > wide.txt"),
        ("env", "echo A=1 > .env"),
        ("obeyed", "echo do as I say > AGENTS.md; mkdir -p .github/workflows; echo x > .github/workflows/ci.yml"),
        ("secret", "printf 'key = ghp_%s\\n' a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2 > conf.txt"),
        ("nul", "printf 'a\\0b' > a.py"),
        ("marks", "printf '<<<<<<< a\\n=======\\n>>>>>>> b\\n' > a.txt"),
    ]);
    let before = tree(&actum);
    let wide = json!({"max_files": 100});
    for (agent, flags, wanted) in [
        ("many", &[][..], "STEP_LIMIT_EXCEEDED"),
        ("large", &[], "STEP_LIMIT_EXCEEDED"),
        ("wide", &[], "STEP_LIMIT_EXCEEDED"),
        ("env", &[], "STEP_LIMIT_EXCEEDED"),
        ("obeyed", &[], "PROTECTED_FILE"),
        ("secret", &[], "LIGHT_VALIDATION_FAILED"),
        ("nul", &[], "LIGHT_VALIDATION_FAILED"),
        ("marks", &[], "LIGHT_VALIDATION_FAILED"),
        ("many", &["--set", "maxFilesPerStep=16"][..], ""),
        ("large", &["--set", "maxFileBytes=2000000", "--set", "maxTotalDiffBytes=10000000"], ""),
        ("env", &["--set", "allowEnvMutation=true"], ""),
    ] {
        let (_, run) =
            one(&actum, with(item("i", agent), "constraints", wide.clone()), &[flags, &["--dry-run"]].concat());
        assert_eq!(run["error_code"].as_str().unwrap_or_default(), wanted, "{agent} {flags:?}: {run}");
        assert_eq!(tree(&actum), before);
    }
    // Also through a link that was there before.
    actum.file("docs/rules.md", "be kind\n");
    std::os::unix::fs::symlink("docs/rules.md", actum.path("CLAUDE.md")).unwrap();
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap();
    let script = "[agents.linked]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", \"echo obey > CLAUDE.md\"]\n";
    actum.file("actum.toml", format!("{toml}\n{script}"));
    assert_eq!(one(&actum, item("i", "linked"), &[]).1["error_code"], "PROTECTED_FILE");
    let declared = with(item("i", "obeyed"), "output_files", json!(["AGENTS.md", ".github/workflows/ci.yml"]));
    let (code, run) = one(&actum, declared, &[]);
    assert_eq!((code, &run["error_code"], &run["kept"]), (3, &json!("PROTECTED_FILE"), &json!(true)), "{run}");
    // An ignored file is never published, and still not to be changed.
    actum.file(".gitignore", ".env\n");
    assert_eq!(one(&actum, item("i", "env"), &[]).1["error_code"], "STEP_LIMIT_EXCEEDED");
}

#[test]
fn tool_operations_are_counted_and_the_one_too_many_is_refused() {
    let actum = actum();
    let script = json!({"steps": {"*": [
        {"write": {"path": "a/b.txt", "content": "one\n"}},
        {"replace": {"path": "a/b.txt", "old": "one", "new": "two"}},
        {"run": {"command": ["sh", "-c", "cat a/b.txt >> log; rm -r old"]}},
        {"write": {"path": "old/new.txt", "content": "back\n", "executable": true}},
        {"delete": {"path": "gone"}},
    ]}});
    actum.file("script.yaml", script.to_string());
    actum.file("actum.toml", "[agents.a]\ntype = \"script\"\nscript = \"script.yaml\"\n");
    actum.file("old/x/y.txt", "y");
    actum.file("gone/z.txt", "z");
    let before = tree(&actum);
    let (code, run) = one(&actum, with(item("i", "a"), "constraints", json!({"max_tool_ops": 4})), &[]);
    assert_eq!((code, &run["denial_reason"]), (3, &json!("Exceeded max tool ops: 5 > 4")), "{run}");
    assert_eq!(tree(&actum), before);
    let (code, run) = one(&actum, with(item("i", "a"), "constraints", json!({"max_tool_ops": 5})), &[]);
    assert_eq!((code, &run["metrics"]["tool_ops_count"]), (0, &json!(5)), "{run}");
    assert_eq!(file(&actum, "log").as_deref(), Some("two\n"));
    assert!(actum.path("old/new.txt").exists() && !actum.path("old/x").exists() && !actum.path("gone").exists());
    assert_eq!(asked(&actum, &["replay", "--json", &id(&run)])["identical"], true);
    for (operation, why) in [
        (json!({"replace": {"path": "log", "old": "nowhere", "new": "x"}}), "occurs 0 times"),
        (json!({"delete": {"path": "nowhere"}}), "nowhere"),
        (json!({"write": {"path": "../out", "content": "x"}}), "no path in the workspace"),
        (json!({"run": {"command": ["false"]}}), "code 1"),
    ] {
        actum.file("script.yaml", json!({"steps": {"*": [operation]}}).to_string());
        let (code, run) = one(&actum, item("i", "a"), &[]);
        assert_eq!((code, &run["error_code"]), (1, &json!("AGENT_FAILED")), "{run}");
        assert!(run["error"].as_str().unwrap().contains(why), "{run}");
    }
}

#[test]
fn the_agent_reaches_nobody_and_sees_nothing_of_ours() {
    let actum = project(&[(
        "a",
        "! cat .actum/key.pem 2>/dev/null; [ ! -e .actum ]; ! ls /root 2>/dev/null | grep -q .; \
         ! (exec 3<>/dev/tcp/1.1.1.1/80) 2>/dev/null; echo planted > /tmp/x; ls -a > seen.txt",
    )]);
    actum.file("mine.txt", "mine");
    asked(&actum, &["key", "show", "--json"]);
    let (code, run) = one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 0, "{run}");
    let seen = file(&actum, "seen.txt").unwrap();
    assert!(seen.contains("mine.txt") && !seen.contains(".actum"), "{seen}");
}

#[test]
fn what_checks_and_tests_change_is_not_the_result() {
    let actum = project(&[("a", "echo 1 > result.txt")]);
    actum.file("data.txt", "data\n");
    let dirty = r#"echo junk > junk.txt; echo more >> data.txt; rm result.txt; mkdir d; echo x > d/x"#;
    let mut wanted = item("i", "a");
    wanted["validation"] =
        json!({"light": [["sh", "-c", dirty]], "heavy": [["sh", "-c", format!("test -f result.txt; {dirty}")]]});
    wanted["test_command"] = json!(["sh", "-euc", format!("test -f result.txt; test ! -e junk.txt; {dirty}")]);
    let (code, run) = one(&actum, wanted, &[]);
    assert_eq!(code, 0, "{run}");
    assert_eq!(file(&actum, "result.txt").as_deref(), Some("1\n"));
    assert_eq!(file(&actum, "data.txt").as_deref(), Some("data\n"));
    assert_eq!((file(&actum, "junk.txt"), actum.path("d").exists()), (None, false));
    assert_eq!(run["metrics"]["files_touched"], 1);
}

#[test]
fn a_draft_is_kept_seen_applied_and_taken_back() {
    let actum = project(&[("a", "echo new > new.txt")]);
    let before = tree(&actum);
    let (code, run) = one(&actum, item("i", "a"), &["--dry-run"]);
    assert_eq!((code, &run["kept"]), (0, &json!(true)));
    assert_eq!(tree(&actum), before);
    let run = id(&run);
    assert!(actum.run(&["diff", &run]).stdout.contains("+new"));
    assert_eq!(actum.run(&["apply", &run]).code, 0);
    assert_eq!(file(&actum, "new.txt").as_deref(), Some("new\n"));
    assert_eq!(actum.run(&["apply", &run]).code, 6, "once");
    assert_eq!(actum.run(&["undo", &run]).code, 0);
    assert_eq!(tree(&actum), before);
    assert!(actum.run(&["status", &run]).stdout.contains("undone"));
    let published = asked(&actum, &["status", "--json", &run])["events"].as_array().unwrap().clone();
    assert!(published.iter().any(|event| event["event"] == "published"));
}

#[test]
fn a_conflict_publishes_nothing_and_keeps_the_result() {
    // Long enough for the user to edit the same file meanwhile, also on a busy machine.
    let actum = project(&[("a", "echo agent > shared.txt; sleep 4")]);
    actum.file("shared.txt", "base\n");
    let path = actum.file("work.json", item("i", "a").to_string());
    let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    let run = until_it_acts(&actum);
    actum.file("shared.txt", "user\n");
    let (code, _, errors) = running.finish();
    assert_eq!(code, 6, "{errors:?}");
    assert_eq!(file(&actum, "shared.txt").as_deref(), Some("user\n"), "the user's work stays");
    let status = asked(&actum, &["status", "--json", &run]);
    assert_eq!(status["error"]["code"], "PUBLISH_CONFLICT");
    assert!(actum.run(&["diff", &run]).stdout.contains("+agent"));
    assert_eq!(actum.run(&["apply", &run]).code, 6);
    // Taken out of the way by the user himself, it can be applied; or a new attempt begins on the present state.
    actum.file("shared.txt", "base\n");
    assert_eq!(actum.run(&["apply", &run]).code, 0);
    assert_eq!(file(&actum, "shared.txt").as_deref(), Some("agent\n"));
    // With that it has succeeded, for everybody who asks.
    let status = asked(&actum, &["status", "--json", &run]);
    assert_eq!((&status["state"], &status["error"]), (&json!("succeeded"), &Value::Null), "{status}");
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
    assert_eq!(actum.run(&["undo", &run]).code, 0);
    assert!(actum.run(&["status", &run]).stdout.contains("undone"));
}

#[test]
fn a_strict_item_is_tested_again_on_what_others_left() {
    // The tests hold only as long as nobody raises the number; the agent waits until somebody has.
    let test = "[ $(cat number.txt) = 1 ]";
    for (number, code, published) in [("1", 0, true), ("2", 1, false)] {
        let actum = project(&[("a", "echo done > done.txt; sleep 4")]);
        actum.file("number.txt", "1\n");
        actum.file("other.txt", "x\n");
        let mut wanted = with(item("i", "a"), "strict", json!(true));
        wanted["test_command"] = json!(["sh", "-c", test]);
        let path = actum.file("work.json", wanted.to_string());
        let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
        until_it_acts(&actum);
        actum.file("number.txt", format!("{number}\n"));
        actum.file("other.txt", "y\n");
        let (ended, output, errors) = running.finish();
        assert_eq!(ended, code, "{output:?} {errors:?}");
        assert_eq!(file(&actum, "done.txt").is_some(), published);
        assert_eq!(file(&actum, "other.txt").as_deref(), Some("y\n"), "the user's work stays");
        let run = asked(&actum, &["list", "--json"])["runs"][0].clone();
        assert_eq!(run["error_code"].as_str().unwrap_or_default(), if published { "" } else { "TESTS_FAILED" });
        if published {
            let statement = fs::read(actum.path(&format!(".actum/runs/{}/receipt.statement.json", id(&run)))).unwrap();
            let statement: Value = serde_json::from_slice(&statement).unwrap();
            let drift = statement["predicate"]["baseDrift"].as_array().unwrap();
            assert!(drift.contains(&json!("other.txt")), "{drift:?}");
        }
    }
}

/// Waits until the agent of the only run is at work.
pub(crate) fn until_it_acts(actum: &Program) -> String {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let list = actum.run(&["list", "--json", "--state", "running"]);
        if let Some(run) = list.json()["runs"][0]["run_id"].as_str() {
            let status = asked(actum, &["status", "--json", run]);
            if status["progress"]["phase"] == "step" {
                return run.to_owned();
            }
        }
        assert!(std::time::Instant::now() < deadline, "it never acts");
    }
}

#[test]
fn what_an_agent_chooses_is_not_obeyed_by_a_terminal() {
    let name = "printf 'a\\033[31mRED\\033]0;title\\007.txt'";
    let script = format!("echo x > \"$({name})\"; printf '\\033[2Jfake\\n' >&2");
    let actum = project(&[("good", &script), ("bad", &format!("{script}; exit 3"))]);
    for agent in ["good", "bad"] {
        let path = actum.file("work.json", item("i", agent).to_string());
        let ended = actum.run(&["run", path.to_str().unwrap()]);
        let run = asked(&actum, &["list", "--json"])["runs"][0].clone();
        let status = actum.run(&["status", &id(&run)]);
        for text in [&ended.stdout, &ended.stderr, &status.stdout] {
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{agent}: {text:?}");
        }
    }
}

#[test]
fn failures_say_what_and_where() {
    let actum = project(&[("a", "echo '{' > deep.json"), ("b", "echo x > x"), ("c", "true")]);
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{toml}\n[agents.d]\ntype = \"command\"\ncommand = [\"no-such-agent\"]\n"));
    let told = |wanted: Value| one(&actum, wanted, &[]).1["error"].as_str().unwrap_or_default().to_owned();
    assert!(told(item("i", "a")).contains("deep.json"));
    let tests = told(with(item("i", "b"), "test_command", json!(["sh", "-c", "echo boom; exit 3"])));
    assert!(tests.contains("Tests failed with code 3: boom"), "{tests}");
    assert!(told(item("i", "d")).contains("no-such-agent could not be started"));
    // Words are words; whoever meant a shell is told.
    let path = actum.file("work.json", with(item("i", "c"), "test_command", json!("true && false")).to_string());
    let ended = actum.run(&["run", path.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
    assert!(ended.stderr.contains("is not given to a shell"), "{}", ended.stderr);
    let two = json!([item("one", "b"), with(item("two", "b"), "dependencies", json!(["one"]))]);
    let ended = started(&actum, &two, &["--dry-run"]);
    assert_eq!(ended.code, 2, "{}", ended.stdout);
}

#[test]
fn files_of_other_owners_can_be_changed_too() {
    let actum = project(&[("a", "echo more >> theirs.txt; mv moved.txt there.txt; rm gone.txt; echo x > new.txt")]);
    for name in ["theirs.txt", "moved.txt", "gone.txt"] {
        actum.file(name, "was\n");
        if super::sandbox::is_root() {
            std::os::unix::fs::chown(actum.path(name), Some(1234), Some(4321)).unwrap();
        }
    }
    let (code, run) = one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 0, "{run}");
    assert_eq!(file(&actum, "theirs.txt").as_deref(), Some("was\nmore\n"));
    assert_eq!((file(&actum, "there.txt").as_deref(), file(&actum, "gone.txt")), (Some("was\n"), None));
    assert_eq!(run["metrics"]["files_touched"], 5);
}

#[test]
fn inputs_that_moved_since_the_run_was_planned_block_it() {
    let actum = project(&[("a", "cat in.txt > out.txt")]);
    actum.file("in.txt", "planned\n");
    actum.file("other.txt", "x");
    let wanted = with(item("i", "a"), "input_files", json!(["in.txt"]));
    let submit = |actum: &Program| {
        let ended = started(actum, &wanted, &["--detach"]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        id(&ended.json()["runs"][0])
    };
    let moved = submit(&actum);
    actum.file("in.txt", "moved\n");
    let ended = actum.run(&["resume", "--json", &moved]);
    assert_eq!(ended.code, 3, "{}", ended.stdout);
    let status = asked(&actum, &["status", "--json", &moved]);
    assert_eq!((&status["error"]["code"], &status["state"]), (&json!("COHERENCE_BLOCKED"), &json!("failed")));
    let events = asked(&actum, &["ledger", "list", "--json", "--execution", &moved]);
    let failed = events["entries"].as_array().unwrap().iter().find(|e| e["state"] == "failed").unwrap().clone();
    assert_eq!(failed["payload"]["coherenceStatus"], "stale");
    // Another attempt is planned on the present state.
    assert_eq!(actum.run(&["resume", "--json", &moved]).code, 0);
    assert_eq!(file(&actum, "out.txt").as_deref(), Some("moved\n"));
    let untouched = submit(&actum);
    actum.file("other.txt", "y");
    assert_eq!(actum.run(&["resume", "--json", &untouched]).code, 0);
}

#[test]
fn levels_run_in_order_and_items_are_chosen_with_what_they_need() {
    let actum = project(&[("a", "mkdir -p log; ls log > log/$ACTUM_WORK_ITEM_ID")]);
    let mut items = Vec::new();
    for (id, on) in [("c", vec!["a1", "b"]), ("a1", vec![]), ("a2", vec![]), ("b", vec!["a1", "a2"]), ("alone", vec![])]
    {
        items.push(with(item(id, "a"), "dependencies", json!(on)));
    }
    let (code, runs) = run(&actum, json!({"items": items}), &["--item", "b", "--jobs", "4"]);
    assert_eq!(code, 0, "{runs:?}");
    let names: Vec<&str> = runs.iter().map(|run| run["item_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["a1", "a2", "b"]);
    assert_eq!(file(&actum, "log/b").as_deref(), Some("a1\na2\nb\n"));
    let by_item: BTreeMap<&str, &Value> = names.iter().copied().zip(&runs).collect();
    let events = asked(&actum, &["ledger", "list", "--json", "--execution", &id(by_item["b"])]);
    let planned = events["entries"].as_array().unwrap().iter().find(|e| e["state"] == "planned").unwrap().clone();
    assert_eq!(planned["lineage"]["dependsOnLedgerIds"].as_array().unwrap().len(), 3, "the snapshot and two successes");
    let ended = started(&actum, &json!({"items": items}), &["--item", "nobody"]);
    assert_eq!((ended.code, ended.error()["code"].as_str()), (2, Some("USAGE")));
}

#[test]
fn external_items_stay_planned() {
    let actum = project(&[("a", "echo x > x")]);
    let (code, run) = one(&actum, with(item("i", "a"), "publish", json!("external")), &[]);
    assert_eq!((code, &run["state"]), (0, &json!("planned")), "{run}");
    assert_eq!(file(&actum, "x"), None);
    let events = asked(&actum, &["ledger", "list", "--json", "--execution", &id(&run)]);
    assert_eq!(events["entries"].as_array().unwrap().len(), 1);
    assert_eq!(events["entries"][0]["payload"]["dryRun"], false);
}

#[test]
fn bad_work_files_are_told_with_their_place() {
    let actum = project(&[("a", "true")]);
    let cases = [
        (
            "items:\n  - id: a\n    agent_id: a\n    description: x\n    constraints: { max_files: many }\n",
            5,
            "max_files",
        ),
        (
            "items:\n  - { id: a, agent_id: a, description: x }\n  - id: b\n    agent_id: a\n    descripton: x\n",
            3,
            "did you mean description?",
        ),
        (
            "items:\n  - { id: a, agent_id: a, description: x, dependencies: [b] }\n  - { id: b, agent_id: a, description: x, dependencies: [a] }\n",
            2,
            "a -> b -> a",
        ),
        ("items:\n  - { id: a, agent_id: a, description: x, dependencies: [zz] }\n", 2, "zz"),
        ("items:\n  - { id: a, agent_id: nobody, description: x }\n", 2, "nobody"),
        (
            "items:\n  - { id: a, agent_id: a, description: x }\n  - { id: a, agent_id: a, description: x }\n",
            2,
            "two items",
        ),
        ("workspace: nowhere\nitems:\n  - { id: a, agent_id: a, description: x }\n", 1, "nowhere"),
        ("contract: { profile: fast }\nitems:\n  - { id: a, agent_id: a, description: x }\n", 1, "profile"),
        ("items: [\n", 1, "bracket"),
        ("items: []\n", 1, "items"),
    ];
    for (text, line, word) in cases {
        let path = actum.file("work.yaml", text);
        let ended = actum.run(&["run", path.to_str().unwrap()]);
        assert_eq!(ended.code, 2, "{text}: {}", ended.stderr);
        assert!(ended.stderr.contains(&format!("work.yaml:{line}:")), "{text}: {}", ended.stderr);
        assert!(ended.stderr.contains(word), "{text}: {}", ended.stderr);
    }
    assert_eq!(actum.run(&["run", "nowhere.yaml"]).code, 2);
    assert_eq!(asked(&actum, &["list", "--json"])["runs"], json!([]), "nothing was submitted");
    actum.file("actum.toml", "[agents.a]\ntype = \"command\"\ncomand = [\"x\"]\n");
    let ended = started(&actum, &item("i", "a"), &[]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("did you mean command?"), "{}", ended.stderr);
}

#[test]
fn lists_pages_and_a_summary() {
    let actum = project(&[("a", "true"), ("b", "false")]);
    for n in 0..3 {
        one(&actum, item(&format!("good-{n}"), "a"), &[]);
    }
    one(&actum, item("bad", "b"), &[]);
    let first = asked(&actum, &["list", "--json", "--limit", "3"]);
    assert_eq!(first["runs"].as_array().unwrap().len(), 3);
    assert_eq!(first["runs"][0]["item_id"], "bad");
    let rest = asked(&actum, &["list", "--json", "--limit", "3", "--cursor", first["next"].as_str().unwrap()]);
    assert_eq!((rest["runs"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    assert_eq!(asked(&actum, &["list", "--json", "--state", "failed"])["runs"].as_array().unwrap().len(), 1);
    assert_eq!(actum.run(&["list", "--state", "dead"]).code, 2);
    let shown = asked(&actum, &["contract", "show", "--json", first["runs"][0]["run_id"].as_str().unwrap()]);
    assert_eq!(shown["hash"], "eaa65ae6e4c8366fb3b20b76295914499fbe5f03f5e0c9a1b294d015badc7868");
    let summary = asked(&actum, &["status", "--json"]);
    assert_eq!((&summary["runs"]["succeeded"], &summary["runs"]["failed"]), (&json!(3), &json!(1)));
    assert_eq!(actum.run(&["status", "zzz"]).code, 7);
    assert_eq!(actum.run(&["logs", "zzz"]).code, 7);
}

#[test]
fn init_makes_a_project_that_runs_and_overwrites_nothing() {
    let actum = actum();
    assert_eq!(actum.run(&["init"]).code, 0);
    let ended = actum.run(&["run", "work.yaml"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("✓ first-task"), "{}", ended.stdout);
    assert_eq!(file(&actum, "hello.txt").as_deref(), Some("hello from actum\n"));
    actum.file("work.yaml", "mine");
    assert_eq!(actum.run(&["init"]).code, 0);
    assert_eq!(file(&actum, "work.yaml").as_deref(), Some("mine"));
}

#[test]
fn a_workspace_elsewhere_in_the_project() {
    let actum = project(&[("a", "echo x > x")]);
    actum.file("inner/here.txt", "here");
    let path =
        actum.file("plans/work.yaml", "workspace: ../inner\nitems:\n  - { id: i, agent_id: a, description: d }\n");
    let ended = actum.run(&["run", "--json", path.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let run = id(&ended.json()["runs"][0]);
    assert!(Path::new(&actum.path("inner/x")).exists());
    assert_eq!(actum.run(&["undo", &run]).code, 0);
    assert!(!actum.path("inner/x").exists());
}
