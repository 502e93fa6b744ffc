//! Going on with runs, going elsewhere from them, and repeating them.

use std::fs;

use actum_testkit::dice::Dice;
use actum_testkit::tree::read;
use serde_json::{Value, json};

use super::actum;
use super::run::{asked, id, item, live, one, project, run, with};

/// Fails in its second step unless it is a later attempt; each step leaves a line.
const UNSTEADY: &str = r#"
    case "$ACTUM_PHASE" in
      plan) echo '{"steps": [{"id": "one", "description": "1"}, {"id": "two", "description": "2"}]}' > "$ACTUM_RESPONSE" ;;
      step) step=$(sed -n 's/.*"id": "\(one\|two\)".*/\1/p' "$ACTUM_REQUEST")
            echo "$step in attempt $ACTUM_ATTEMPT" >> lines.txt
            [ "$step" = one ] || [ "$ACTUM_ATTEMPT" -gt 1 ] || [ -e mended ] ;;
    esac
"#;

fn lines(actum: &actum_testkit::program::Program) -> String {
    fs::read_to_string(actum.path("lines.txt")).unwrap_or_default()
}

#[test]
fn resume_goes_on_at_the_first_step_without_a_result() {
    let actum = project(&[("a", UNSTEADY)]);
    let (code, failed) = one(&actum, item("i", "a"), &[]);
    assert_eq!((code, &failed["error_code"]), (1, &json!("AGENT_FAILED")));
    let before = asked(&actum, &["status", "--json", &id(&failed)])["contract"].clone();
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    // What the failed step had done is gone; what was done before stays and is not repeated.
    assert_eq!(lines(&actum), "one in attempt 1\ntwo in attempt 2\n");
    let status = asked(&actum, &["status", "--json", &id(&failed)]);
    assert_eq!((&status["state"], &status["attempt"]), (&json!("succeeded"), &json!(2)));
    assert_eq!(status["contract"], before, "the contract did not move");
    let events = asked(&actum, &["ledger", "list", "--json", "--execution", &id(&failed)]);
    let states: Vec<(u64, &str)> = events["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["payload"]["attempt"].as_u64().unwrap(), e["state"].as_str().unwrap()))
        .collect();
    let wanted = [(1, "planned"), (1, "running"), (1, "failed"), (2, "planned"), (2, "running"), (2, "succeeded")];
    let mut states = states;
    states.sort_by_key(|(attempt, state)| (*attempt, wanted.iter().position(|w| w == &(*attempt, *state))));
    assert_eq!(states, wanted);
    // What has succeeded stays as it is.
    assert_eq!(actum.run(&["resume", "--json", &id(&failed)]).code, 0);
    assert_eq!(asked(&actum, &["status", "--json", &id(&failed)])["attempt"], 2);
    assert_eq!(actum.run(&["resume", "zzz"]).code, 7);
}

/// D-505: what can be known before the agent starts is checked before it starts.
#[test]
fn conflict_of_finished_steps_is_found_before_the_agent_is_paid_for_more() {
    let actum = project(&[("a", UNSTEADY)]);
    actum.file("lines.txt", "");
    let (code, failed) = one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 1, "{failed}");
    actum.file("lines.txt", "user\n");
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 6, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("PUBLISH_CONFLICT") && ended.stdout.contains("lines.txt"), "{}", ended.stdout);
    assert_eq!(lines(&actum), "user\n");
    // The agent has not acted in the second attempt, and the finished step is not lost by it.
    actum.file("lines.txt", "");
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(lines(&actum), "one in attempt 1\ntwo in attempt 3\n");
}

#[test]
fn cleaning_up_leaves_what_can_be_gone_on_with() {
    let actum = project(&[("a", UNSTEADY)]);
    let (_, failed) = one(&actum, item("i", "a"), &[]);
    for flags in [&["snapshot", "gc"][..], &["snapshot", "gc", "--max-bytes", "0"]] {
        let ended = actum.run(flags);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(lines(&actum), "one in attempt 1\ntwo in attempt 2\n");
}

#[test]
fn another_contract_is_refused_overridden_or_forked() {
    let actum = project(&[("a", UNSTEADY)]);
    let (_, failed) = one(&actum, live(item("i", "a")), &[]);
    let source = id(&failed);
    let hash = failed["contract_hash"].clone();
    let refused = actum.run(&["resume", "--json", &source, "--set", "plannerTimeoutMs=5000"]);
    assert_eq!(refused.code, 5, "{}", refused.stdout);
    let error = refused.error();
    assert_eq!(error["code"], "CONTRACT_MISMATCH");
    let diff = json!([{"field": "plannerTimeoutMs", "persisted": 120_000, "requested": 5_000}]);
    assert_eq!(error["details"]["diff"], diff);
    assert_eq!(error["details"]["persisted"]["plannerTimeoutMs"], 120_000);
    assert_eq!(error["details"]["requested"]["plannerTimeoutMs"], 5_000);
    assert_eq!(asked(&actum, &["status", "--json", &source])["attempt"], 1, "nothing was done");
    // A fork keeps the finished step and the staged state; its own attempt is the first, so the second step fails again
    // unless what it waits for is there.
    actum.file("mended", "");
    let ended = actum.run(&["resume", "--json", &source, "--fork", "--set", "plannerTimeoutMs=5000"]);
    let forked = ended.json()["runs"][0].clone();
    assert_ne!(forked["run_id"], json!(source));
    assert_ne!(forked["contract_hash"], hash);
    let status = asked(&actum, &["status", "--json", &id(&forked)]);
    assert_eq!(status["fork_of"], json!(source));
    let kept = asked(&actum, &["status", "--json", &source]);
    assert_eq!((&kept["contract"]["hash"], &kept["state"]), (&hash, &json!("failed")), "the source stays as it was");
    // Its view is live, as that of its source.
    assert_eq!(ended.code, 0, "{}", ended.stdout);
    assert_eq!(lines(&actum), "one in attempt 1\ntwo in attempt 1\n");
    assert_eq!(actum.run(&["verify", &id(&forked)]).code, 0);
    // An override changes this run, and says so.
    let flags = ["resume", "--json", &source, "--override-execution-config", "--set", "plannerTimeoutMs=6000"];
    let ended = actum.run(&flags);
    let overridden = ended.json()["runs"][0].clone();
    assert_eq!(overridden["run_id"], json!(source));
    assert_ne!(overridden["contract_hash"], hash);
    let status = asked(&actum, &["status", "--json", &source]);
    assert_eq!(status["contract"]["effectiveExecutionConfig"]["plannerTimeoutMs"], 6_000);
    // Its result and the fork's meet on the same file: the fork was first.
    assert_eq!((ended.code, &status["error"]["code"]), (6, &json!("PUBLISH_CONFLICT")));
    assert_eq!(actum.run(&["resume", &source, "--set", "plannerTimeoutMs=1"]).code, 2, "bad values are refused");
}

#[test]
fn forks_of_forks_keep_what_was_done_and_pass_the_gate() {
    let script = r#"
        case "$ACTUM_PHASE" in
          plan) echo '{"steps": [{"id": "one", "description": "1"}, {"id": "two", "description": "2"}, {"id": "three", "description": "3"}]}' > "$ACTUM_RESPONSE" ;;
          step) step=$(sed -n 's/.*"id": "\(one\|two\|three\)".*/\1/p' "$ACTUM_REQUEST")
                echo "$step" >> lines.txt
                [ "$step" = one ] || [ -e "may-$step" ] ;;
        esac
    "#;
    let actum = project(&[("a", script)]);
    let (_, first) = one(&actum, live(item("i", "a")), &[]);
    actum.file("may-two", "");
    let forked = |run: &str| {
        let ended = actum.run(&["resume", "--json", run, "--fork"]);
        (ended.code, ended.json()["runs"][0].clone())
    };
    let (code, second) = forked(&id(&first));
    assert_eq!((code, &second["error_code"]), (1, &json!("AGENT_FAILED")), "{second}");
    actum.file("may-three", "");
    let (code, third) = forked(&id(&second));
    assert_eq!(code, 0, "{third}");
    assert_eq!(lines(&actum), "one\ntwo\nthree\n", "each step once");
    let gate = actum.run(&["gate", "--json", &id(&third)]);
    assert_eq!(gate.code, 0, "{}", gate.stdout);
    assert_eq!(asked(&actum, &["status", "--json", &id(&third)])["progress"]["steps_done"], 3);
    // What is taken back is no longer what the gate lets pass.
    assert_eq!(actum.run(&["undo", &id(&third)]).code, 0);
    let gate = actum.run(&["gate", "--json", &id(&third)]);
    assert_eq!((gate.code, &gate.json()["reasonCodes"]), (1, &json!(["RUN_UNPINNED"])));
}

#[test]
fn a_stricter_contract_is_kept_by_what_is_published_under_it() {
    // Nothing is wrong but the tests; then the contract asks for more.
    let actum = project(&[("a", "echo x > x")]);
    let mut wanted = live(item("i", "a"));
    wanted["validation"] = json!({"heavy": [["test", "-e", "y"]]});
    wanted["test_command"] = json!("test -e z");
    let (_, failed) = one(&actum, wanted, &["--set", "heavyValidationMode=off"]);
    assert_eq!(failed["error_code"], "TESTS_FAILED", "{failed}");
    actum.file("z", "");
    let run = id(&failed);
    let flags = ["resume", "--json", &run, "--override-execution-config", "--set", "heavyValidationMode=enforce"];
    let ended = actum.run(&flags);
    assert_eq!(ended.json()["runs"][0]["error_code"], "HEAVY_VALIDATION_FAILED", "{}", ended.stdout);
    actum.file("y", "");
    assert_eq!(actum.run(&["resume", "--json", &run]).code, 0);
}

/// A project with one script agent.
fn scripted(script: &Value) -> actum_testkit::program::Program {
    let actum = actum();
    actum.file("script.json", script.to_string());
    actum.file("actum.toml", "[agents.a]\ntype = \"script\"\nscript = \"script.json\"\n");
    actum
}

#[test]
fn both_modes_of_judging_corrections() {
    // The correction mends the file, and writes eight more than it declared.
    let mut wide: Vec<Value> =
        (0..8).map(|n| json!({"write": {"path": format!("extra-{n}"), "content": "x"}})).collect();
    wide.push(json!({"write": {"path": "bad.json", "content": "{}"}}));
    let bad = json!([{"write": {"path": "bad.json", "content": "{"}}]);
    let actum = scripted(&json!({"steps": {"*": bad}, "corrections": [wide]}));
    let judged = |actum: &_, item: Value, field: &str, mode: &str, code: &str| {
        let (_, run) = one(actum, item, &["--dry-run", "--set", &format!("{field}={mode}")]);
        let wanted = if mode == "enforce" { code } else { "" };
        assert_eq!(run["error_code"].as_str().unwrap_or_default(), wanted, "{field} {mode}: {run}");
        assert_eq!(run["warnings"].as_array().unwrap().len(), usize::from(mode == "warn"), "{field} {mode}: {run}");
    };
    for mode in ["enforce", "warn", "off"] {
        judged(&actum, item("i", "a"), "correctionPolicyMode", mode, "CORRECTION_POLICY_VIOLATION");
    }
    // The first correction leaves as many failures as before, the second mends it.
    let number = |n: &str| json!([{"write": {"path": "n", "content": n}}]);
    let actum = scripted(&json!({"steps": {"*": number("1")}, "corrections": [number("2"), number("3")]}));
    let heavy = with(item("i", "a"), "validation", json!({"heavy": [["grep", "-q", "3", "n"]]}));
    for mode in ["enforce", "warn", "off"] {
        judged(&actum, heavy.clone(), "correctionConvergenceMode", mode, "CORRECTION_NOT_CONVERGING");
    }
}

#[test]
fn runs_of_one_level_are_under_way_together() {
    let actum = project(&[("a", "sleep 3; echo x > $ACTUM_WORK_ITEM_ID")]);
    let (code, runs) = run(&actum, json!([item("one", "a"), item("two", "a")]), &["--jobs", "2"]);
    assert_eq!(code, 0, "{runs:?}");
    let entries = asked(&actum, &["ledger", "list", "--json"])["entries"].clone();
    let mut states: Vec<(u64, String)> = entries
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|e| Some((e["seq"].as_u64()?, e["state"].as_str()?.to_owned())))
        .collect();
    states.sort();
    let states: Vec<&str> = states.iter().map(|(_, state)| state.as_str()).collect();
    assert_eq!(states, ["planned", "planned", "running", "running", "succeeded", "succeeded"]);
}

#[test]
fn operations_that_were_thrown_away_do_not_count() {
    let actum = actum();
    let script = json!({"steps": {"*": [
        {"write": {"path": "a", "content": "a"}},
        {"run": {"command": ["test", "-e", "ready"]}},
        {"write": {"path": "b", "content": "b"}},
    ]}});
    actum.file("script.json", script.to_string());
    actum.file("actum.toml", "[agents.a]\ntype = \"script\"\nscript = \"script.json\"\n");
    let (_, failed) = one(&actum, with(live(item("i", "a")), "constraints", json!({"max_tool_ops": 3})), &[]);
    assert_eq!(failed["error_code"], "AGENT_FAILED", "{failed}");
    actum.file("ready", "");
    let ended = actum.run(&["resume", "--json", &id(&failed)]);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
    assert_eq!(ended.json()["runs"][0]["metrics"]["tool_ops_count"], 3);
}

#[test]
fn only_a_kept_result_that_is_as_it_was_tested_is_applied() {
    let actum = project(&[("slow", "echo half > half.txt; sleep 4; echo done > done.txt"), ("quick", "echo x > x")]);
    // While it runs, nobody publishes what there is so far.
    let path = actum.file("work.json", item("i", "slow").to_string());
    let before = read(actum.folder());
    let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    let run = super::run::until_it_acts(&actum);
    for flags in [&["apply", &run][..], &["apply", &run, "--keep"]] {
        assert_eq!(actum.run(flags).code, 6);
    }
    assert_eq!(read(actum.folder()), before);
    let (code, ..) = running.finish();
    assert_eq!(code, 0);
    assert!(actum.path("done.txt").exists() && actum.path("half.txt").exists());
    // What was kept is not what somebody makes of it afterwards.
    let (_, draft) = one(&actum, item("j", "quick"), &["--dry-run"]);
    let stages = asked(&actum, &["stage", "list", "--json"]);
    let stage = stages["stages"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(actum.run(&["stage", "exec", &stage, "--", "sh", "-c", "echo sneaked > evil.txt"]).code, 0);
    assert_eq!(actum.run(&["apply", &id(&draft)]).code, 6);
    assert!(!actum.path("evil.txt").exists());
}

#[test]
fn a_conflict_that_was_applied_is_over() {
    let actum = project(&[("a", "echo agent > shared.txt; sleep 4")]);
    actum.file("shared.txt", "base\n");
    let path = actum.file("work.json", item("i", "a").to_string());
    let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    let run = super::run::until_it_acts(&actum);
    actum.file("shared.txt", "user\n");
    assert_eq!(running.finish().0, 6);
    actum.file("shared.txt", "base\n");
    assert_eq!(actum.run(&["apply", &run]).code, 0);
    actum.file("shared.txt", "later\n");
    let ended = actum.run(&["resume", "--json", &run]);
    assert_eq!(ended.code, 0, "there is nothing to go on with: {}", ended.stdout);
    assert_eq!(fs::read_to_string(actum.path("shared.txt")).unwrap(), "later\n");
}

#[test]
fn a_strangers_recording_is_not_run() {
    let actum = project(&[("a", "echo x > x")]);
    let (_, good) = one(&actum, item("i", "a"), &[]);
    let folder = actum.path(&format!(".actum/runs/{}", id(&good)));
    let altered = actum_testkit::folder::Folder::new();
    let mut recording: Value = serde_json::from_slice(&fs::read(folder.join("recording.json")).unwrap()).unwrap();
    recording["metadata"]["agent"]["command"] = json!(["sh", "-c", "echo stolen > /tmp/actum-stolen"]);
    altered.file("recording.json", recording.to_string());
    altered.file("RECEIPT.json", fs::read(folder.join("RECEIPT.json")).unwrap());
    let path = altered.join("RECEIPT.json").display().to_string();
    assert_eq!(actum.run(&["replay", &path]).code, 2);
    // Signed by somebody else, all of it fits together; it is still nobody's we know.
    let other = project(&[("a", "echo x > x")]);
    let (_, foreign) = one(&other, item("i", "a"), &[]);
    let path = other.path(&format!(".actum/runs/{}/RECEIPT.json", id(&foreign))).display().to_string();
    let ended = actum.run(&["replay", &path]);
    assert_eq!(ended.code, 2, "{}", ended.stdout);
    assert!(ended.stderr.contains("not signed by a key of this project"), "{}", ended.stderr);
}

#[test]
fn corrections_count_over_attempts() {
    // Never gets it right, but each time differently: converging in signature only if the count falls, so switched off.
    let script = r#"case "$ACTUM_PHASE" in plan) exit 1 ;; *) n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; printf '{ %s' "$(seq -s, $((n + 1)))" > bad.json ;; esac"#;
    let actum = project(&[("a", script)]);
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap().replace("\"plan\", ", "");
    actum.file("actum.toml", toml);
    let flags = ["--set", "correctionConvergenceMode=off", "--set", "maxRuntimeCorrectionAttempts=2"];
    let (_, failed) = one(&actum, item("i", "a"), &flags);
    assert_eq!(failed["error_code"], "LIGHT_VALIDATION_FAILED", "{failed}");
    let run = id(&failed);
    assert_eq!(asked(&actum, &["status", "--json", &run])["progress"]["runtime_corrections"], 2);
    assert_eq!(actum.run(&["resume", "--json", &run]).code, 1);
    let status = asked(&actum, &["status", "--json", &run]);
    assert_eq!(
        (&status["attempt"], &status["progress"]["runtime_corrections"]),
        (&json!(2), &json!(2)),
        "none is left"
    );
    // With more of them agreed on, it goes on counting.
    let flags = ["resume", "--json", &run, "--override-execution-config", "--set", "maxRuntimeCorrectionAttempts=3"];
    assert_eq!(actum.run(&flags).code, 1);
    assert_eq!(asked(&actum, &["status", "--json", &run])["progress"]["runtime_corrections"], 3);
}

#[test]
fn a_dependant_that_failed_with_its_dependency_can_go_on_after_it() {
    let actum = project(&[("a", "[ \"$ACTUM_ATTEMPT\" -gt 1 ]; echo a > a.txt"), ("b", "cat a.txt > b.txt")]);
    let (code, runs) = run(&actum, json!([item("a", "a"), with(item("b", "b"), "dependencies", json!(["a"]))]), &[]);
    assert_eq!((code, &runs[1]["error_code"]), (1, &json!("DEPENDENCY_FAILED")));
    assert_eq!(actum.run(&["resume", "--detach", &id(&runs[1])]).code, 0);
    assert_eq!(asked(&actum, &["status", "--json", &id(&runs[1])])["state"], "blocked");
    // Going on with the first lets the second go on by itself.
    assert_eq!(actum.run(&["resume", "--json", &id(&runs[0])]).code, 0);
    assert_eq!(asked(&actum, &["status", "--json", &id(&runs[1])])["state"], "succeeded");
    assert_eq!(fs::read_to_string(actum.path("b.txt")).unwrap(), "a\n");
}

/// A script of random operations that stay within a folder of their own.
fn random_script(dice: &mut Dice, home: &str) -> Value {
    let mut steps = serde_json::Map::new();
    let mut plan = Vec::new();
    let number = 1 + dice.roll(3);
    for step in 0..number {
        let mut operations = Vec::new();
        for n in 0..1 + dice.roll(4) {
            let path = format!("{home}/{}/{step}-{n}.txt", ["a", "b c", "ü"][dice.roll(3) as usize]);
            operations.push(match dice.roll(4) {
                0 => json!({"run": {"command": ["sh", "-c", format!("mkdir -p {home}/made; date -u +%Y > {home}/made/{step}-{n}; env | sort >> {home}/made/env; pwd >> {home}/made/env")]}}),
                1 => json!({"write": {"path": path, "content": "#!/bin/sh\necho x\n", "executable": true}}),
                2 => json!({"run": {"command": ["sh", "-c", format!("ln -s nowhere {home}-link-{step}-{n}; printf '%s' {home} > {home}-{step}-{n}")]}}),
                _ => json!({"write": {"path": path, "content": format!("{}", dice.roll(1000))}}),
            });
        }
        plan.push(format!("s{step}: do"));
        steps.insert(format!("s{step}"), json!(operations));
    }
    json!({"plan": plan, "steps": steps})
}

#[test]
fn a_hundred_runs_of_different_shapes_repeat_bit_for_bit() {
    let actum = actum();
    let mut dice = Dice::new(7);
    let (mut toml, mut items) = (String::new(), Vec::new());
    for n in 0..100 {
        let agent = format!("agent-{n}");
        if n % 4 == 0 {
            let script = format!(
                "mkdir -p d{n}; seq {n} > d{n}/seq; tar -C d{n} -cf d{n}.tar . --sort=name --mtime=@0; rm -rf old"
            );
            toml.push_str(&format!(
                "[agents.{agent}]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", {}]\n",
                json!(script)
            ));
        } else {
            actum.file(&format!("scripts/{agent}.json"), random_script(&mut dice, &format!("d{n}")).to_string());
            toml.push_str(&format!("[agents.{agent}]\ntype = \"script\"\nscript = \"scripts/{agent}.json\"\n"));
        }
        let mut wanted = with(item(&format!("i{n}"), &agent), "constraints", json!({"max_files": 100}));
        if n % 3 == 0 {
            wanted["test_command"] = json!("true");
        }
        // Some end otherwise: what is denied and what fails repeats too.
        if n % 10 == 9 {
            wanted["constraints"]["max_files"] = json!(0);
        }
        if n % 10 == 8 {
            wanted["test_command"] = json!("false");
        }
        items.push(wanted);
    }
    actum.file("actum.toml", toml);
    let (_, runs) = run(&actum, json!({"items": items, "contract": {"lightValidationMode": "warn"}}), &["--jobs", "4"]);
    let after = read(actum.folder());
    let mut statuses = std::collections::BTreeMap::new();
    for run in &runs {
        *statuses.entry(run["status"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        let ended = actum.run(&["replay", "--json", &id(run)]);
        let replayed = ended.json();
        assert_eq!((ended.code, &replayed["identical"]), (0, &json!(true)), "{run}: {replayed}");
        if run["status"] == "success" {
            assert_eq!(replayed["actual_hash"], run["output_hash"], "{}", run["item_id"]);
        }
    }
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["denied", "failure", "success"], "{statuses:?}");
    assert_eq!(read(actum.folder()), after, "the workspace was not touched");
}

#[test]
fn a_repetition_that_differs_names_the_first_difference() {
    let actum = project(&[
        ("random", "head -c 8 /dev/urandom | od -An -tx1 > noise.txt; echo same > same.txt"),
        ("copy", "cat in.txt > out.txt"),
    ]);
    actum.file("in.txt", "in\n");
    let (code, noisy) = one(&actum, item("noisy", "random"), &[]);
    assert_eq!(code, 0);
    let ended = actum.run(&["replay", "--json", &id(&noisy)]);
    let replayed = ended.json();
    assert_eq!((ended.code, &replayed["identical"]), (1, &json!(false)));
    assert_eq!(replayed["first_difference"]["path"], "noise.txt", "{replayed}");
    let recording = fs::read(actum.path(&format!(".actum/runs/{}/recording.json", id(&noisy)))).unwrap();
    let recording: Value = serde_json::from_slice(&recording).unwrap();
    let program = recording["programs"][0].clone();
    let path = program["path"].as_str().unwrap();
    let hash = actum_contract::digest::Digest::blake3(&fs::read(path).unwrap()).to_hex();
    assert_eq!(
        (path.ends_with("/sh") || path.ends_with("/dash"), &program["blake3"]),
        (true, &json!(hash)),
        "{program}"
    );
    let (_, copied) = one(&actum, item("copy", "copy"), &[]);
    assert_eq!(actum.run(&["replay", &id(&copied)]).code, 0);
    // One altered input file is named.
    let elsewhere = actum_testkit::folder::Folder::new();
    let before = asked(&actum, &["status", "--json", &id(&copied)]);
    assert!(before["result"].is_object());
    let recording: Value =
        serde_json::from_slice(&fs::read(actum.path(&format!(".actum/runs/{}/recording.json", id(&copied)))).unwrap())
            .unwrap();
    let input = elsewhere.join("input").display().to_string();
    assert_eq!(actum.run(&["snapshot", "thaw", recording["before"].as_str().unwrap(), &input]).code, 0);
    assert_eq!(actum.run(&["replay", &id(&copied), "--input", &input]).code, 0, "as it was recorded");
    fs::write(elsewhere.join("input/in.txt"), "altered\n").unwrap();
    let ended = actum.run(&["replay", "--json", &id(&copied), "--input", &input]);
    let replayed = ended.json();
    assert_eq!(ended.code, 1);
    assert_eq!(
        (&replayed["first_difference"]["what"], &replayed["first_difference"]["path"]),
        (&json!("input"), &json!("in.txt")),
        "{replayed}"
    );
    // A recording that was altered is not repeated at all.
    let path = actum.path(&format!(".actum/runs/{}/recording.json", id(&copied)));
    fs::write(&path, recording.to_string().replace("out.txt", "oat.txt")).unwrap();
    assert_eq!(actum.run(&["replay", &id(&copied)]).code, 2);
}
