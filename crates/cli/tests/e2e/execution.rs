//! Executions under the contract of the seed: checked, run, captured, read, and kept with their evidence.

use std::fs;

use actum_testkit::program::{Ended, Program};
use serde_json::{Value, json};

use super::actum;
use super::sandbox::{Who, own_all};

const TOOLS: &str = r#"
[tools.shell]
commands = ["sh", "/bin/sh", "missing", "/etc/passwd"]
arguments = "any"

[tools.TL-003]
commands = ["rg"]

[tools.plain]
commands = ["sh", "python3"]

[tools.cutting]
commands = ["wc"]
oversized = "cut"

[tools.stopped]
commands = ["sh"]
status = "blocked"

[tools.scoped]
commands = ["env"]
environment = ["MINE"]
scoped = ["LD_LIBRARY_PATH"]
"#;

fn prepared() -> Program {
    let actum = actum();
    actum.file("actum.toml", TOOLS);
    actum
}

/// Runs a contract; the result on stdout, whatever became of it.
fn exec(actum: &Program, contract: &Value) -> (i32, Value) {
    let ended = run(actum, contract);
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json())
}

fn run(actum: &Program, contract: &Value) -> Ended {
    actum.run_with(&["exec", "--json", "-"], contract.to_string().as_bytes())
}

fn shell(script: &str) -> Value {
    json!({"tool_id": "shell", "inputs": {"command": "sh", "arguments": ["-c", script]}})
}

fn with(mut contract: Value, field: &str, value: Value) -> Value {
    contract[field] = value;
    contract
}

#[test]
fn a_contract_of_the_seed_runs() {
    let actum = prepared();
    actum.file("a.rs", "fn main() {}\n");
    let file = actum.file(
        "c.yaml",
        r#"
execution_id: EX-1
tool_id: TL-003
adapter_id: ADP-001
inputs:
  command: rg
  arguments: ["-n", 'fn \w+\(']
  environment: {}
  working_directory: .
  input_files: [a.rs]
sandbox:
  timeout_ms: 60000
  memory_mb: 256
  cpu_cores: 1
  filesystem: {read: [], write: [], deny: []}
  network: {enabled: false, allow: [], deny: []}
  processes: {max_children: 10, allow_fork: true}
outputs: {stdout: expected, stderr: captured, exit_code: 0, output_files: [], artifacts: []}
metadata: {requested_by: agent-1, requested_at: "2026-01-16T00:00:00Z", purpose: search}
"#,
    );
    let ended = actum.run(&["exec", "--json", &file.display().to_string()]);
    let result = ended.json();
    assert_eq!((ended.code, result["status"].as_str()), (0, Some("success")), "{result}");
    assert_eq!(result["stdout"], "a.rs:1:fn main() {}\n");
    assert_eq!(result["interpretation"], json!({"meaning": "Success", "action": "Continue workflow"}));
    let items = result["evidence"]["checklist"].as_array().unwrap();
    assert_eq!(items.len(), 15);
    let failed: Vec<_> = items.iter().filter(|item| item["state"] == "failed").collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(result["evidence"]["program"]["blake3"].as_str().unwrap().len(), 64);
    // It is on the disk and in the ledger.
    let kept: Value =
        serde_json::from_slice(&fs::read(actum.path(".actum/executions/EX-1/result.json")).unwrap()).unwrap();
    assert_eq!(kept, result);
    let ledger = actum.run(&["ledger", "list", "--json"]).stdout;
    assert!(ledger.contains("tool_execution") && ledger.contains("EX-1"), "{ledger}");
    // An id stands for one execution.
    let again = actum.run(&["exec", "--json", &file.display().to_string()]);
    assert_eq!((again.code, again.error()["code"].as_str()), (6, Some("EXECUTION_EXISTS")));
    assert_eq!(actum.run(&["logs", "EX-1"]).stdout, "a.rs:1:fn main() {}\n");
    assert_eq!(actum.run(&["logs", "EX-2"]).code, 7);
}

#[test]
fn every_row_of_the_exit_table() {
    let actum = prepared();
    let end = |contract: Value| {
        let (code, result) = exec(&actum, &contract);
        let word = |key: &str| result["interpretation"][key].as_str().unwrap().to_owned();
        (
            code,
            result["status"].as_str().unwrap().to_owned(),
            result["exit_code"].clone(),
            word("meaning"),
            word("action"),
        )
    };
    let row = |code: i32, status: &str, exit: u64, meaning: &str, action: &str| {
        (code, status.to_owned(), json!(exit), meaning.to_owned(), action.to_owned())
    };
    assert_eq!(end(shell("exit 0")), row(0, "success", 0, "Success", "Continue workflow"));
    assert_eq!(end(shell("exit 77")), row(1, "failure", 77, "Tool-specific error 77", "Log and handle"));
    let mut missing = shell("");
    missing["inputs"]["command"] = json!("missing");
    assert_eq!(end(missing), row(1, "failure", 127, "Command not found", "Check allowlist"));
    let mut closed = shell("");
    closed["inputs"]["command"] = json!("/etc/passwd");
    assert_eq!(end(closed), row(1, "failure", 126, "Permission denied", "Escalate"));
    assert_eq!(
        end(shell("kill -SEGV $$")),
        row(1, "failure", 139, "Signal termination: SIGSEGV (11)", "Log signal number 11")
    );
    assert_eq!(
        end(shell("kill -9 $$")),
        row(1, "failure", 137, "Signal termination: SIGKILL (9)", "Log signal number 9")
    );
    let hungry = with(shell("exec python3 -c 'x = bytearray(1 << 30)'"), "sandbox", json!({"memory_mb": 64}));
    assert_eq!(end(hungry), row(1, "out_of_memory", 137, "OOM killed", "Increase memory or fail"));
    let slow = with(shell("sleep 60"), "sandbox", json!({"timeout_ms": 1000}));
    assert_eq!(end(slow), row(4, "timeout", 143, "SIGTERM (timeout)", "Extend timeout or fail"));
    // What was expected is a success, whatever the number.
    assert_eq!(end(with(shell("exit 3"), "outputs", json!({"exit_code": 3}))).1, "success");
    assert_eq!(end(with(shell("exit 0"), "outputs", json!({"exit_code": 3}))).1, "failure");
}

/// Two that never rest on one core take the time of one.
#[test]
fn a_core_is_a_core() {
    let actum = prepared();
    let busy = with(
        shell("while :; do :; done & while :; do :; done"),
        "sandbox",
        json!({"timeout_ms": 2000, "cpu_cores": 1}),
    );
    let (code, result) = exec(&actum, &busy);
    assert_eq!((code, result["status"].as_str()), (4, Some("timeout")));
    let (used, wall) =
        (result["evidence"]["used"]["cpu_us"].as_f64().unwrap(), result["duration_ms"].as_f64().unwrap() * 1e3);
    assert!(used <= wall * 1.05, "{used} of {wall}");
}

#[test]
fn violations_are_collected_and_nothing_is_run() {
    let actum = prepared();
    std::os::unix::fs::symlink("/etc", actum.path("out")).unwrap();
    fs::create_dir(actum.path("sub")).unwrap();
    let long = "x".repeat((1 << 20) + 1);
    let checks = |contract: Value| {
        let (code, result) = exec(&actum, &contract);
        assert_eq!(
            (code, result["status"].as_str(), result["exit_code"].clone()),
            (3, Some("refused"), Value::Null),
            "{result}"
        );
        let found = result["violations"].as_array().unwrap();
        found.iter().map(|violation| violation["check"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let inputs = |tool: &str, more: Value| {
        let mut contract = json!({"tool_id": tool, "inputs": {"command": "sh", "arguments": ["-c", "echo ran > ran"]}});
        for (key, value) in more.as_object().unwrap() {
            contract["inputs"][key] = value.clone();
        }
        with(contract, "sandbox", json!({"filesystem": {"level": "standard"}}))
    };
    assert_eq!(checks(inputs("unknown", json!({}))), ["IV-01", "IV-02"]);
    assert_eq!(checks(inputs("stopped", json!({"arguments": ["x"]}))), ["IV-01"]);
    assert_eq!(checks(inputs("TL-003", json!({"arguments": []}))), ["IV-01"]);
    assert_eq!(checks(inputs("plain", json!({"arguments": ["-c", "a; b"]}))), ["IV-02"]);
    for path in ["../x", "/etc", "out", "sub/../../x", "/proc/self/root/etc", "nowhere"] {
        assert_eq!(checks(inputs("shell", json!({"working_directory": path}))), ["IV-03"], "{path}");
    }
    for path in ["out/passwd", "/etc/passwd", "../x", "/proc/self/environ"] {
        assert_eq!(checks(inputs("shell", json!({"input_files": [path]}))), ["IV-03"], "{path}");
    }
    assert_eq!(checks(inputs("shell", json!({"environment": {"A=B": "c"}}))), ["IV-04"]);
    assert_eq!(checks(inputs("shell", json!({"stdin": long}))), ["IV-05"]);
    actum.file("large", vec![b'x'; (10 << 20) + 1]);
    assert_eq!(checks(inputs("shell", json!({"input_files": ["large"]}))), ["IV-05"]);
    let all = json!({"environment": {"A=B": "c"}, "stdin": long, "working_directory": "../x"});
    assert_eq!(checks(inputs("unknown", all)), ["IV-01", "IV-02", "IV-03", "IV-04", "IV-05"]);
    assert!(!actum.path("ran").exists());
    // Refusals are evidence too.
    assert!(actum.run(&["ledger", "list", "--json"]).stdout.contains("refused"));
}

#[test]
fn bad_contracts_are_refused_with_every_flaw() {
    let actum = prepared();
    let bad = json!({"inputs": {"command": 1}, "sandbox": {"timeout_ms": 999, "colour": 1, "processes": {"max_children": 101}}});
    let ended = run(&actum, &bad);
    assert_eq!((ended.code, ended.error()["code"].as_str()), (2, Some("INPUT_INVALID")));
    let fields: Vec<String> = ended.error()["details"]["flaws"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flaw| flaw["field"].as_str().unwrap().to_owned())
        .collect();
    let expected =
        ["tool_id", "inputs.command", "sandbox.timeout_ms", "sandbox.colour", "sandbox.processes.max_children"];
    assert_eq!(fields, expected);
    let file = actum.file("c.yaml", "tool_id: shell\ninputs: {command: sh}\nsandbox:\n  memory_mb: 5000\n");
    let ended = actum.run(&["exec", &file.display().to_string()]);
    assert!(ended.stderr.contains("c.yaml:4:") && ended.stderr.contains("64 to 4096"), "{}", ended.stderr);
    actum.file("actum.toml", "[tools.x]\ncommand = [\"sh\"]\n[sandbox]\nweaker = [\"all\"]\n");
    let ended = actum.run(&["exec", &file.display().to_string()]);
    assert_eq!(run(&actum, &shell(":")).code, 2);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
}

#[test]
fn the_environment_is_filtered_and_what_was_taken_is_known() {
    let actum = prepared();
    let contract = |tool: &str, command: &str| {
        json!({"tool_id": tool, "inputs": {"command": command, "arguments": if command == "sh" { json!(["-c", "env"]) } else { json!([]) },
            "environment": {"MINE": "1", "OTHER": "2", "LD_PRELOAD": "x", "LD_LIBRARY_PATH": "/nowhere", "PATH": "/evil"}}})
    };
    let (_, result) = exec(&actum, &contract("shell", "sh"));
    let text = result["stdout"].as_str().unwrap();
    assert!(
        text.contains("MINE=1") && text.contains("OTHER=2") && !text.contains("LD_") && !text.contains("/evil"),
        "{text}"
    );
    assert_eq!(result["evidence"]["environment_stripped"], json!(["LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"]));
    let (_, result) = exec(&actum, &contract("scoped", "env"));
    let text = result["stdout"].as_str().unwrap();
    assert!(text.contains("MINE=1") && text.contains("LD_LIBRARY_PATH=/nowhere") && !text.contains("OTHER"), "{text}");
}

#[test]
fn output_is_cut_between_characters_and_known_in_full() {
    let actum = prepared();
    let (_, result) = exec(
        &actum,
        &shell(
            "/usr/bin/python3 -c \"import sys; sys.stdout.write('x' + 'é' * 3000000); sys.stderr.write('e' * 400000)\"",
        ),
    );
    let (stdout, stderr) = (result["stdout"].as_str().unwrap(), result["stderr"].as_str().unwrap());
    assert!(stdout.len() <= 1 << 20 && stdout.len() >= (1 << 20) - 1 && stdout.ends_with('é'), "{}", stdout.len());
    assert_eq!(stderr.len(), 256 << 10);
    assert_eq!(result["truncated"], true);
    let whole = format!("x{}", "é".repeat(3_000_000));
    let streams = &result["evidence"]["streams"];
    assert_eq!(streams["stdout"]["bytes"], whole.len());
    let digest = actum_contract::digest::Digest::blake3(whole.as_bytes()).to_hex();
    assert_eq!(streams["stdout"]["blake3"].as_str(), Some(digest.as_str()));
    // Not text at all.
    let (_, result) = exec(&actum, &shell("printf 'a\\377b'"));
    assert_eq!(result["stdout"], "a\u{fffd}b");
}

/// Gigabytes pass through without staying.
#[test]
fn a_flood_of_output_does_not_fill_memory() {
    let actum = prepared();
    let contract = with(shell("head -c 2000000000 /dev/zero"), "sandbox", json!({"timeout_ms": 60000})).to_string();
    let file = actum.file("flood.json", contract).display().to_string();
    let running = actum.start(&["exec", "--json", &file], &[]);
    let status = format!("/proc/{}/status", running.id());
    let mut peak = 0;
    while let Ok(text) = fs::read_to_string(&status) {
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let Some(kilobytes) = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()) else {
            break;
        };
        peak = peak.max(kilobytes);
        std::thread::sleep(std::time::Duration::from_millis(10));
        if fs::read_to_string(format!("/proc/{}/stat", running.id())).is_ok_and(|stat| stat.contains(") Z")) {
            break;
        }
        if actum
            .path(".actum/executions")
            .read_dir()
            .is_ok_and(|mut d| d.any(|e| e.unwrap().path().join("result.json").exists()))
        {
            break;
        }
    }
    let (code, lines, errors) = running.finish();
    assert_eq!(code, 0, "{errors:?}");
    let result: Value = serde_json::from_str(&lines.join("\n")).unwrap();
    assert_eq!(result["evidence"]["streams"]["stdout"]["bytes"], 2_000_000_000_u64);
    assert!(peak < 150 << 10, "{peak} kB");
}

#[test]
fn secrets_are_taken_out_before_anything_is_kept() {
    let actum = prepared();
    let token = format!("ghp_{}", "a1".repeat(18));
    let mut contract = shell(&format!("echo $MY_API_KEY; echo {token} >&2; printf 'password=%s\\n' correct-horse"));
    contract["inputs"]["environment"] = json!({"MY_API_KEY": "tr0ub4dor-and-3"});
    let (_, result) = exec(&actum, &contract);
    assert_eq!(result["stdout"], "[REDACTED]\npassword=[REDACTED]\n");
    assert_eq!(result["stderr"], "[REDACTED]\n");
    assert_eq!(result["evidence"]["streams"]["stdout"]["redacted"], 2);
    let folder = actum.path(".actum/executions").join(result["execution_id"].as_str().unwrap());
    for name in ["stdout", "stderr", "result.json"] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        assert!(!text.contains("tr0ub4dor") && !text.contains(&token) && !text.contains("horse"), "{name}: {text}");
    }
}

#[test]
fn outputs_are_collected_only_from_where_they_may_be() {
    let actum = prepared();
    let script = "echo out > o; mkdir d; echo a > d/a; ln -s /etc/passwd l; ln -s d/a inner; mkfifo f; head -c 20000000 /dev/zero > big";
    let contract = |outputs: Value| {
        let contract = with(shell(script), "sandbox", json!({"filesystem": {"level": "standard"}}));
        with(contract, "outputs", outputs)
    };
    let (code, result) = exec(
        &actum,
        &contract(json!({"output_files": ["o", "inner"], "artifacts": [{"path": "d/a", "mime_type": "text/plain"}]})),
    );
    assert_eq!((code, result["status"].as_str()), (0, Some("success")), "{result}");
    assert_eq!(
        (&result["output_files"][0]["bytes"], &result["artifacts"][0]["mime_type"]),
        (&json!(4), &json!("text/plain"))
    );
    let folder = actum.path(".actum/executions").join(result["execution_id"].as_str().unwrap());
    assert_eq!(fs::read_to_string(folder.join("files/0")).unwrap(), "out\n");
    for name in ["l", "f", "big", "missing", "d"] {
        fs::remove_dir_all(actum.path("d")).unwrap();
        for left in ["o", "l", "inner", "f", "big"] {
            fs::remove_file(actum.path(left)).unwrap();
        }
        let (code, result) = exec(&actum, &contract(json!({"output_files": [name]})));
        assert_eq!((code, result["output_files"].as_array().unwrap().len()), (1, 0), "{name}: {result}");
        assert!(result["problems"][0].as_str().unwrap().starts_with(&format!("{name:?}")), "{result}");
    }
    let (code, result) =
        exec(&actum, &json!({"tool_id": "shell", "inputs": {"command": "sh"}, "outputs": {"output_files": ["../x"]}}));
    assert_eq!((code, &result["violations"][0]["check"]), (3, &json!("IV-03")));
}

#[test]
fn standard_input_arrives_and_is_cut_only_where_the_tool_says_so() {
    let actum = prepared();
    let mut contract = shell("wc -c");
    contract["inputs"]["stdin"] = json!("x".repeat(1 << 20));
    assert_eq!(exec(&actum, &contract).1["stdout"], "1048576\n");
    let cut =
        json!({"tool_id": "cutting", "inputs": {"command": "wc", "arguments": ["-c"], "stdin": "x".repeat(2 << 20)}});
    let (_, result) = exec(&actum, &cut);
    assert_eq!(
        (&result["stdout"], &result["evidence"]["stdin_cut_from_bytes"]),
        (&json!("1048576\n"), &json!(2 << 20))
    );
    assert_eq!(exec(&actum, &shell("cat; echo end")).1["stdout"], "end\n");
}

#[test]
fn only_the_pinned_program_is_run() {
    let actum = actum();
    actum.file("tool", "#!/bin/sh\necho one\n");
    let path = actum.path("tool");
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let digest = actum_contract::digest::Digest::blake3(&fs::read(&path).unwrap()).to_hex();
    let name = path.display().to_string();
    actum.file("actum.toml", format!("[tools.t]\ncommands = [\"{name}\"]\nblake3 = \"{digest}\"\n"));
    let contract = json!({"tool_id": "t", "inputs": {"command": name}});
    assert_eq!(exec(&actum, &contract).1["stdout"], "one\n");
    fs::write(&path, "#!/bin/sh\necho two\n").unwrap();
    let ended = run(&actum, &contract);
    assert_eq!((ended.code, ended.error()["code"].as_str()), (3, Some("EXECUTION_REFUSED")));
    // Nor one that is only called the same from another folder.
    fs::create_dir(actum.path("sub")).unwrap();
    actum.file("actum.toml", format!("[tools.t]\ncommands = [\"./tool\"]\nblake3 = \"{digest}\"\n"));
    fs::copy(&path, actum.path("sub/tool")).unwrap();
    for folder in ["sub", "."] {
        let contract = json!({"tool_id": "t", "inputs": {"command": "./tool", "working_directory": folder}});
        assert_eq!(run(&actum, &contract).code, 3, "{folder}");
    }
}

#[test]
fn levels_beyond_the_usual_wait_for_a_person() {
    let actum = prepared();
    let elevated = |script: &str| with(shell(script), "sandbox", json!({"filesystem": {"level": "elevated"}}));
    let wait = |contract: &Value| {
        let ended = run(&actum, contract);
        assert_eq!((ended.code, ended.error()["code"].as_str()), (8, Some("APPROVAL_NEEDED")), "{}", ended.stderr);
        ended.error()["details"]["approval_id"].as_str().unwrap().to_owned()
    };
    let first = elevated("ls /var/lib > /dev/null");
    let id = wait(&first);
    assert_eq!(wait(&first), id, "asked twice, it waits once");
    let other = wait(&elevated("ls /var"));
    assert_ne!(other, id, "other arguments are another request");
    actum.run(&["approve", &id]).ok();
    let (code, result) = exec(&actum, &first);
    assert_eq!((code, &result["evidence"]["approval_id"]), (0, &json!(id)), "{result}");
    assert_ne!(wait(&first), id, "it was for once");
    actum.run(&["deny", &other]).ok();
    assert_eq!(actum.run(&["approve", &other]).code, 7, "what was decided is decided");
    // For a time, as often as it is wanted.
    let id = wait(&first);
    actum.run(&["approve", &id, "--minutes", "5"]).ok();
    assert_eq!((exec(&actum, &first).0, exec(&actum, &first).0), (0, 0));
    let open = with(shell(":"), "sandbox", json!({"network": {"enabled": true, "allow": ["*"]}}));
    wait(&open);
    let outside = with(shell(":"), "sandbox", json!({"filesystem": {"read": ["/var/lib"]}}));
    wait(&outside);
    let states = actum.run(&["approvals", "list", "--json"]).json();
    let count = |state: &str| states["approvals"].as_array().unwrap().iter().filter(|a| a["state"] == state).count();
    assert_eq!((count("denied"), count("used"), count("approved"), count("pending")), (1, 1, 1, 2));
}

/// A contract that wants more than it says.
#[test]
fn a_contract_gets_no_more_than_was_agreed() {
    let actum = prepared();
    fs::create_dir_all(actum.path("sub")).unwrap();
    fs::create_dir_all(actum.path("secrets")).unwrap();
    actum.file("secrets/k", "topsecret");
    let outside = actum_testkit::folder::Folder::new();
    let target = outside.join("authorized_keys").display().to_string();
    // Outputs elsewhere, and with them the right to write there.
    let mut extended =
        with(shell(&format!("echo evil > {target}")), "sandbox", json!({"filesystem": {"level": "extended"}}));
    extended["outputs"] = json!({"output_files": [target]});
    let (code, result) = exec(&actum, &extended);
    assert_eq!((code, &result["violations"][0]["check"]), (3, &json!("IV-03")), "{result}");
    assert!(!outside.join("authorized_keys").exists());
    // What this program keeps, and what it obeys.
    let root = actum.folder().display().to_string();
    exec(&actum, &shell(":"));
    for path in [".actum/approvals", ".actum/actum.db", ".actum"] {
        let path = format!("{root}/{path}");
        let mut own = shell(&format!("cat {path}; ls {path}"));
        own["inputs"]["working_directory"] = json!("sub");
        own["sandbox"] = json!({"filesystem": {"write": [path]}});
        assert_ne!(run(&actum, &own).code, 0, "{path}");
    }
    let mut obeyed = shell("echo '[tools.evil]' >> ../actum.toml");
    obeyed["inputs"]["working_directory"] = json!("sub");
    obeyed["sandbox"] = json!({"filesystem": {"write": [format!("{root}/actum.toml")]}});
    assert_ne!(run(&actum, &obeyed).code, 0);
    assert!(!fs::read_to_string(actum.path("actum.toml")).unwrap().contains("evil"));
    // What it could not see is not collected for it either.
    let mut denied = shell("ln -s secrets/k out");
    denied["sandbox"] = json!({"filesystem": {"level": "standard", "deny": ["secrets"]}});
    denied["outputs"] = json!({"output_files": ["out", ".actum/actum.db"]});
    let (code, result) = exec(&actum, &denied);
    assert_eq!((code, result["output_files"].as_array().unwrap().len()), (1, 0), "{result}");
    // An agreement is for all of a contract.
    let elevated = |network: Value| {
        with(shell("true"), "sandbox", json!({"filesystem": {"level": "elevated"}, "network": network}))
    };
    let id = run(&actum, &elevated(json!({}))).error()["details"]["approval_id"].as_str().unwrap().to_owned();
    assert_eq!(actum.run(&["approve", ""]).code, 2);
    actum.run(&["approve", &id]).ok();
    assert_eq!(run(&actum, &elevated(json!({"enabled": true, "allow": ["evil.example"]}))).code, 8);
    assert_eq!(run(&actum, &elevated(json!({}))).code, 0);
    // Addresses that are not everybody's are asked for.
    let metadata = with(shell(":"), "sandbox", json!({"network": {"enabled": true, "allow": ["169.254.169.254"]}}));
    assert_eq!(run(&actum, &metadata).code, 8);
    let torn =
        with(shell(":"), "sandbox", json!({"network": {"enabled": true, "allow": ["*"], "deny": ["127.0.0.1"]}}));
    assert_eq!(run(&actum, &torn).code, 2);
}

#[test]
fn logs_can_be_followed_while_it_runs() {
    let actum = prepared();
    let contract =
        with(shell("echo first; while [ ! -e go ]; do sleep 0.05; done; echo second"), "execution_id", json!("EX"));
    let file = actum.file("c.json", contract.to_string()).display().to_string();
    let running = actum.start(&["exec", "--json", &file], &[]);
    while !actum.path(".actum/executions/EX/stdout").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut following = actum.start(&["logs", "EX", "-f"], &[]);
    assert_eq!(following.line().as_deref(), Some("first"), "before it has ended");
    actum.file("go", "");
    assert_eq!(following.line().as_deref(), Some("second"));
    assert_eq!(following.finish().0, 0);
    assert_eq!(running.finish().0, 0);
}

#[test]
fn an_execution_that_was_killed_leaves_nothing_that_runs() {
    let actum = prepared();
    let contract = with(shell("echo here; sleep 777"), "execution_id", json!("EX")).to_string();
    let file = actum.file("c.json", contract).display().to_string();
    let running = actum.start(&["exec", "--json", &file], &[]);
    while !fs::read_to_string(actum.path(".actum/executions/EX/stdout")).is_ok_and(|text| text == "here\n") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.kill();
    let is_running = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        lines.any(|line| line == b"sleep\x00777\x00")
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while is_running() {
        assert!(std::time::Instant::now() < end, "it runs on");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // What it had put out is there, and everything else works as before; nobody waits for more.
    assert_eq!(actum.run(&["logs", "EX", "-f"]).stdout, "here\n");
    assert_eq!(actum.run(&["logs", "EX"]).stdout, "here\n");
    assert_eq!(exec(&actum, &shell("echo next")).1["stdout"], "next\n");
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
    // And whoever came next has recorded what became of it.
    assert_eq!(recorded(&actum, "EX"), ["interrupted"]);
}

/// The helper that made the cell is killed, and with it the cell: the program has run, and that is said.
#[test]
fn an_execution_whose_cell_is_killed_is_told_as_interrupted() {
    let actum = prepared();
    let contract = with(shell("echo here; sleep 778"), "execution_id", json!("EX")).to_string();
    let file = actum.file("c.json", contract).display().to_string();
    let running = actum.start(&["exec", "--json", &file], &[]);
    while !fs::read_to_string(actum.path(".actum/executions/EX/stdout")).is_ok_and(|text| text == "here\n") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let threads = fs::read_dir(format!("/proc/{}/task", running.id())).unwrap().flatten();
    let helpers: String = threads.map(|t| fs::read_to_string(t.path().join("children")).unwrap()).collect();
    let killed = actum_testkit::program::other("kill").arg("-9").args(helpers.split_whitespace()).status().unwrap();
    assert!(killed.success());
    let (code, lines, errors) = running.finish();
    let result: Value = serde_json::from_str(&lines.join("\n")).unwrap_or_else(|e| panic!("{e} {errors:?}"));
    assert_eq!((code, &result["status"], &result["stdout"]), (1, &json!("interrupted"), &json!("here\n")), "{result}");
    assert_eq!(result["error"]["code"], "EXECUTION_INTERRUPTED");
    assert_eq!(recorded(&actum, "EX"), ["interrupted"]);
}

/// What the ledger says of an execution.
fn recorded(actum: &Program, id: &str) -> Vec<String> {
    let entries = actum.run(&["ledger", "list", "--json"]).json();
    let entries = entries["entries"].as_array().unwrap().clone();
    let ours = entries.iter().filter(|entry| entry["payload"]["executionId"] == id);
    ours.map(|entry| entry["payload"]["status"].as_str().unwrap().to_owned()).collect()
}

/// Killed at every place where something is written: once it has run it is in the ledger once, whatever happened.
#[test]
fn an_execution_killed_anywhere_is_recorded_once() {
    for (place, expected) in
        [("execution.claimed", "interrupted"), ("execution.kept", "success"), ("execution.recorded", "success")]
    {
        let actum = prepared();
        let contract = with(shell("echo here"), "execution_id", json!("EX")).to_string();
        let file = actum.file("c.json", contract).display().to_string();
        let mut running = actum.start(&["exec", "--json", &file], &[("ACTUM_CRASH_AT", place)]);
        assert_eq!(running.error_line().as_deref(), Some(format!("crash point {place}").as_str()));
        running.kill();
        for _ in 0..2 {
            assert_eq!(exec(&actum, &shell("echo next")).1["stdout"], "next\n");
            assert_eq!(recorded(&actum, "EX"), [expected], "{place}");
        }
        let again = actum.run(&["exec", "--json", &file]);
        assert_eq!(again.code, 6, "{place}: {}", again.stderr);
        assert_eq!(fs::read_dir(actum.path(".actum/executions-unrecorded")).unwrap().count(), 0);
        assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
    }
}

#[test]
fn the_same_contract_gives_the_same_output() {
    let actum = prepared();
    let script = "env | sort; date +%Z; python3 -c \"print(hash('x'))\"; ls -la; id; hostname; nproc; umask; ulimit -n; cat /etc/passwd";
    let once = || exec(&actum, &shell(script)).1["evidence"]["streams"]["stdout"]["blake3"].clone();
    let first = once();
    assert_eq!([once(), once()], [first.clone(), first]);
}

/// A machine without namespaces: the inside of a cell.
#[test]
fn where_there_can_be_no_sandbox_nothing_is_run() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let binary = who.binary(&actum);
        let folder = std::path::Path::new(&binary).parent().unwrap().display().to_string();
        let inner = format!("cd /tmp && mkdir w && cd w && {binary} sandbox -- sh -c 'echo ran'; echo $?");
        let ended = who.run(&actum, &["sandbox", "--read", &folder, "--", "sh", "-c", &inner]);
        assert_eq!(ended.stdout, "125\n", "{}", ended.stderr);
        assert!(ended.stderr.contains("A0501") && ended.stderr.contains("doctor"), "{}", ended.stderr);
    }
}
