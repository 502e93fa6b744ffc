//! Tools that are programs: what arrives at them is what was given, whatever is in it; what may not be does not run; how
//! they end is told.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use actum_testkit::folder::Folder;
use actum_testkit::program::{Program, other};
use serde_json::{Value, json};

use super::actum;
use super::tools::{adapter, add, call, refused, tool, try_add, try_call, waits, with, with_ripgrep};

/// Patterns that a shell, an option parser or somebody's quoting would mistake for something else.
const PATTERNS: [&str; 12] = [
    r"fn \w+\(",
    "$(id)",
    r"\$\(id\)",
    "; rm -rf /",
    "\"double\"",
    "'single'",
    "`id`",
    "a\\nb",
    "naïve – 東京",
    "x{2}|y",
    "~root",
    "%s&&*?",
];

/// What ripgrep found, without what differs each time.
fn matches(output: &Value) -> Vec<Value> {
    let found = output.as_array().unwrap().iter().filter(|line| line["type"] == "match");
    let mut found: Vec<Value> = found.map(|line| line["data"].clone()).collect();
    found.sort_by_key(Value::to_string);
    found
}

/// The same without Actum, and the exit code.
fn outside(actum: &Program, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let ran = other("rg")
        .args(["--json", "--no-heading"])
        .args(arguments)
        .current_dir(actum.folder())
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    let found = matches(&text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect());
    (ran.status.code(), found)
}

#[test]
fn ripgrep_finds_what_ripgrep_finds() {
    let actum = with_ripgrep(actum());
    let mut text = String::from("fn main() {}\npub fn other(x: u8) {}\nxx yy\n");
    PATTERNS.iter().for_each(|pattern| text.push_str(&format!("before {pattern} after\n")));
    actum.file("src/a.rs", &text);
    actum.file("src/deep/b.txt", format!("{text}uid=0(root)\nfn OTHER(\n"));
    let mut found = 0;
    for pattern in PATTERNS {
        let (code, result) = call(&actum, "TL-003", json!({"pattern": pattern, "path": "src"}));
        let (expected_code, expected) = outside(&actum, &[pattern, "src"]);
        assert_eq!(result["exit_code"], json!(expected_code), "{pattern}: {result}");
        assert_eq!(code == 0, expected_code == Some(0), "{pattern}: {result}");
        if code == 0 {
            assert_eq!(matches(&result["output"]), expected, "{pattern}");
        } else {
            assert!(expected.is_empty(), "{pattern}: {result}");
        }
        assert_eq!(result["evidence"]["program"][3], pattern, "{result}");
        found += expected.len();
    }
    assert!(found > 12);
    // Order of the file, flags, and options with a value.
    let params = json!({"max_count": 1, "ignore_case": true, "path": "src", "pattern": "OTHER"});
    let (_, result) = call(&actum, "TL-003", params);
    assert_eq!(result["evidence"]["program"], json!(["rg", "--json", "--no-heading", "OTHER", "src", "-i", "-m", "1"]));
    assert_eq!(matches(&result["output"]), outside(&actum, &["OTHER", "src", "-i", "-m", "1"]).1);
    assert_eq!(matches(&result["output"]).len(), 2);
    let (_, result) = call(&actum, "TL-003", json!({"pattern": "OTHER", "ignore_case": false}));
    assert_eq!(result["evidence"]["program"], json!(["rg", "--json", "--no-heading", "OTHER"]));
    // A new line in a pattern is told by ripgrep itself, as outside.
    let (code, result) = call(&actum, "TL-003", json!({"pattern": "a\nb", "path": "src"}));
    assert_eq!((code, result["exit_code"].as_u64(), &result["status"]), (1, Some(2), &json!("failure")), "{result}");
    assert!(result["stderr"].as_str().unwrap().contains("literal"), "{result}");
    // As words of the command line.
    let ended = actum.run(&[
        "exec",
        "--tool",
        "TL-003",
        "--param",
        r"pattern=fn \w+\(",
        "--param",
        "path=src",
        "--param",
        "max_count=1",
        "--json",
    ]);
    assert_eq!(matches(&ended.json()["output"]).len(), 2, "{ended:?}");
}

#[test]
fn a_parameter_is_neither_an_option_nor_a_way_out() {
    let actum = with_ripgrep(actum());
    actum.file("secret", "needle\n");
    let elsewhere = Folder::new();
    elsewhere.file("secret", "needle\n");
    symlink(elsewhere.path(), actum.path("out")).unwrap();
    symlink("secret", actum.path("inside")).unwrap();
    for text in ["-f", "--pre=sh", "-", "--"] {
        let called = call(&actum, "TL-003", json!({"pattern": text}));
        assert_eq!(refused(&called), ["IV-02"], "{text}");
        assert_eq!(called.1["violations"][0]["field"], "params.pattern");
        let called = call(&actum, "TL-003", json!({"pattern": "x", "max_count": text}));
        assert_eq!(refused(&called), ["IV-02"], "{text}");
    }
    assert_eq!(refused(&call(&actum, "TL-003", json!({"pattern": "x", "path": "--pre=sh"}))), ["IV-02"]);
    assert_eq!(refused(&call(&actum, "TL-003", json!({"patern": "x"}))), ["IV-02"]);
    assert_eq!(refused(&call(&actum, "TL-003", json!({"pattern": "x", "ignore_case": "yes"}))), ["IV-02"]);
    let whole = elsewhere.join("secret").display().to_string();
    for path in
        ["../..", "..", "src/../../x", "/etc", "/etc/passwd", "/proc/self/root/etc", "out", "out/secret", &whole]
    {
        assert_eq!(refused(&call(&actum, "TL-003", json!({"pattern": "needle", "path": path}))), ["IV-03"], "{path}");
    }
    // The project's own paths, also when they are written out.
    let own = actum.path("secret").display().to_string();
    for path in ["secret", "./secret", "inside", &own] {
        let (code, result) = call(&actum, "TL-003", json!({"pattern": "needle", "path": path}));
        assert_eq!((code, matches(&result["output"]).len()), (0, 1), "{path}: {result}");
    }
    // What Actum keeps is not there to be seen.
    actum.file(".actum/needle", "needle\n");
    let (_, result) = call(&actum, "TL-003", json!({"pattern": "needle", "path": ".actum"}));
    assert_ne!(result["status"], "success", "{result}");
    assert!(!result.to_string().contains("needle\\n"), "{result}");
    let ran =
        fs::read_dir(actum.path(".actum/executions")).unwrap().flatten().filter(|e| e.path().join("stdout").exists());
    assert_eq!(ran.count(), 5, "what was refused left no output");
}

/// A tool that runs a shell with a fixed text, to which parameters are arguments.
fn shell(id: &str, script: &str, cli: Value) -> [Value; 2] {
    let mut own = json!({"executable": "sh", "base_args": ["-c", script, "sh"]});
    own.as_object_mut().unwrap().extend(cli.as_object().unwrap().clone());
    [with(tool(id, &["sh"]), "scope/data_access", json!("write")), adapter(&format!("ADP-{id}"), id, own)]
}

fn add_shell(actum: &Program, id: &str, script: &str, cli: Value) {
    add(actum, &shell(id, script, cli));
}

#[test]
fn variables_input_and_files() {
    let actum = actum();
    let mapping = json!({"env_mapping": {"load": "LD_PRELOAD", "level": "LEVEL", "path": "PATH", "hidden": "HIDDEN"}, "stdin": "text"});
    let [entry, adapter] = shell("env", "echo \"$LEVEL/$HIDDEN/$LD_PRELOAD\"; cat", mapping);
    add(&actum, &[with(entry, "scope/environment", json!(["LEVEL", "LD_PRELOAD"])), adapter]);
    let params = json!({"load": "x.so", "level": 3, "hidden": "no", "text": "in: ü"});
    let (code, result) = call(&actum, "env", params);
    assert_eq!((code, &result["stdout"]), (0, &json!("3//\nin: ü")), "{result}");
    assert_eq!(result["evidence"]["stripped_environment"], json!(["HIDDEN", "LD_PRELOAD"]), "{result}");
    // One that somebody answers for arrives.
    let mapping = json!({"env_mapping": {"load": "LD_LIBRARY_PATH"}});
    let [entry, adapter] = shell("scoped", "echo $LD_LIBRARY_PATH", mapping);
    add(&actum, &[with(entry, "scope/scoped", json!(["LD_LIBRARY_PATH"])), adapter]);
    assert_eq!(call(&actum, "scoped", json!({"load": "lib"})).1["stdout"], "lib\n");
    // A file as input.
    let file = actum.file("input.txt", "from a file\n").display().to_string();
    add(
        &actum,
        &[
            tool("cat", &["cat"]),
            super::tools::adapter("ADP-cat", "cat", json!({"executable": "cat", "stdin": "stdin"})),
        ],
    );
    let ended = actum.run(&["exec", "--tool", "cat", "--stdin", &file, "--json"]);
    assert_eq!(ended.json()["stdout"], "from a file\n", "{ended:?}");
    assert_eq!(actum.run(&["exec", "--tool", "cat", "--stdin", "nowhere"]).code, 2);
}

#[test]
fn input_beyond_its_limit() {
    let actum = actum();
    let cli = json!({"executable": "wc", "base_args": ["-c"], "stdin": "stdin"});
    add(&actum, &[tool("count", &["wc"]), adapter("ADP-1", "count", cli.clone())]);
    add(&actum, &[with(tool("cut", &["wc"]), "scope/oversized", json!("cut")), adapter("ADP-2", "cut", cli)]);
    let exec = |tool: &str, length: usize| {
        let file = actum.file("large", "x".repeat(length)).display().to_string();
        let ended = actum.run(&["exec", "--tool", tool, "--stdin", &file, "--json"]);
        (ended.code, ended.json())
    };
    assert_eq!(exec("count", 1 << 20).1["stdout"], "1048576\n");
    assert_eq!(refused(&exec("count", (1 << 20) + 1)), ["IV-05"]);
    let (code, result) = exec("cut", (1 << 20) + 1);
    assert_eq!((code, &result["stdout"]), (0, &json!("1048576\n")), "{result}");
    assert_eq!(result["evidence"]["stdin_cut_from"], (1 << 20) + 1);
}

#[test]
fn an_interpreter_gets_no_program_from_parameters() {
    let actum = actum();
    let cli = json!({"executable": "sh", "base_args": ["-c"], "arg_mapping": {"script": "{script}"}});
    let entry = with(tool("plain", &["sh"]), "scope/data_access", json!("write"));
    add(&actum, &[entry, adapter("ADP-1", "plain", cli.clone())]);
    for script in ["echo x > ran", "touch ran; id", "$(touch ran)", "`touch ran`", "a & b", "a | b"] {
        assert_eq!(refused(&call(&actum, "plain", json!({"script": script}))), ["IV-02"], "{script}");
    }
    assert!(!actum.path("ran").exists());
    assert_eq!(call(&actum, "plain", json!({"script": "pwd"})).0, 0, "a word is no program");
    let any = with(with(tool("any", &["sh"]), "scope/data_access", json!("write")), "scope/arguments", json!("any"));
    add(&actum, &[any, adapter("ADP-2", "any", cli)]);
    assert_eq!(call(&actum, "any", json!({"script": "echo x > ran"})).0, 0);
    assert!(actum.path("ran").exists());
}

/// What runs is on the tool's list, whoever wrote the adapter and whatever it is asked for.
#[test]
fn only_listed_programs_run() {
    let actum = actum();
    let cli = |program: &str| json!({"executable": program});
    let ended = try_add(&actum, &[tool("t", &["echo"]), adapter("ADP-1", "t", cli("sh"))]);
    assert_eq!(ended.code, 2, "{ended:?}");
    // Listed when it was added, and no longer.
    add(&actum, &[tool("t", &["echo", "id"]), adapter("ADP-1", "t", cli("id")), adapter("ADP-2", "t", cli("echo"))]);
    assert_eq!(call(&actum, "t", json!({})).1["adapter_id"], "ADP-1");
    add(&actum, &[with(tool("t", &["echo"]), "version", json!("2.0.0"))]);
    for op in [&[][..], &["--op", "echo"], &["--op", "id"]] {
        let ended = actum.run(&[&["exec", "--json", "--tool", "t", "--adapter", "ADP-1"], op].concat());
        assert_eq!(refused(&(ended.code, ended.json())), ["IV-01"]);
    }
    assert_eq!(
        refused(&{
            let ended = actum.run(&["exec", "--json", "--tool", "t", "--adapter", "ADP-2", "--op", "rm"]);
            (ended.code, ended.json())
        }),
        ["IV-01"]
    );
}

#[test]
fn the_program_is_the_one_that_was_approved() {
    let actum = actum();
    // Made by another process: one that is open for writing anywhere cannot be run.
    let make = |text: &str| {
        let beside = actum.file("beside", format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(other("cp").arg(&beside).arg(actum.path("program")).status().unwrap().success());
    };
    let sum = |program: &str| {
        let ran = other(program).arg(actum.path("program")).output().unwrap();
        String::from_utf8(ran.stdout).unwrap().split(' ').next().unwrap().to_owned()
    };
    make("echo right");
    let path = actum.path("program").display().to_string();
    let sha256 = sum("sha256sum");
    let cli = json!({"executable": path});
    let open = tool("open", &[&path]);
    add(&actum, &[open, adapter("ADP-open", "open", cli.clone())]);
    let (_, result) = call(&actum, "open", json!({}));
    let blake3 = result["evidence"]["cell"]["program"]["blake3"].as_str().unwrap().to_owned();
    assert_eq!(result["evidence"]["cell"]["program"]["pinned"], false);
    for (id, checksum) in [("b", format!("blake3:{blake3}")), ("s", format!("sha256:{sha256}")), ("plain", sha256)] {
        let entry = with(tool(id, &[&path]), "provenance/checksum", json!(checksum));
        add(&actum, &[entry, adapter(&format!("ADP-{id}"), id, cli.clone())]);
        let (code, result) = call(&actum, id, json!({}));
        assert_eq!((code, &result["stdout"]), (0, &json!("right\n")), "{result}");
        assert_eq!(result["evidence"]["cell"]["program"]["pinned"], true);
    }
    make("echo wrong > ran; echo wrong");
    for id in ["b", "s", "plain"] {
        let called = call(&actum, id, json!({}));
        assert_eq!((called.0, &called.1["status"]), (3, &json!("refused")), "{}", called.1);
        assert!(called.1["error"]["message"].as_str().unwrap().contains("is not the program that was approved"));
    }
    assert_eq!(call(&actum, "open", json!({})).1["stdout"], "wrong\n", "nobody asked for the same");
    // Nor by a contract that names the command itself.
    for id in ["b", "s", "plain"] {
        let contract = json!({"tool_id": id, "inputs": {"command": path}}).to_string();
        let ended = actum.run_with(&["exec", "--json", "-"], contract.as_bytes());
        assert_eq!((ended.code, ended.error()["code"].as_str()), (3, Some("EXECUTION_REFUSED")), "{id}: {ended:?}");
    }
    make("echo right");
    assert_eq!(call(&actum, "b", json!({})).0, 0);
    for id in ["b", "s", "plain"] {
        let contract = json!({"tool_id": id, "inputs": {"command": path}}).to_string();
        assert_eq!(actum.run_with(&["exec", "--json", "-"], contract.as_bytes()).json()["stdout"], "right\n", "{id}");
    }
}

/// A path is one by whatever name an adapter gives it.
#[test]
fn paths_by_other_names() {
    let actum = actum();
    actum.file("notes", "needle\n");
    let cli = json!({"executable": "cat", "arg_mapping": {"path": "{path}", "at": "{at}"}});
    let renamed = with(
        adapter("ADP-1", "r", cli.clone()),
        "transforms/input",
        json!([{"type": "rename", "spec": {"where": "path"}}]),
    );
    add(&actum, &[tool("r", &["cat"]), renamed]);
    let schema = json!({"type": "object", "properties": {"at": {"type": "string", "format": "path"}}});
    let entry = with(tool("s", &["cat"]), "operations/read/parameters", schema);
    add(&actum, &[entry, adapter("ADP-2", "s", cli.clone())]);
    for (tool, name) in [("r", "where"), ("s", "at"), ("s", "path")] {
        for path in ["../..", "/etc/passwd", "/proc/self/root/etc/passwd"] {
            assert_eq!(refused(&call(&actum, tool, json!({name: path}))), ["IV-03"], "{tool} {name} {path}");
        }
        assert_eq!(call(&actum, tool, json!({name: "notes"})).1["stdout"], "needle\n", "{tool} {name}");
    }
    assert_eq!(refused(&call(&actum, "s", json!({"path": ["notes", "../x"]}))), ["IV-03"]);
}

/// What a tool sees is what its scope says.
#[test]
fn a_scope_is_all_there_is() {
    let actum = actum();
    actum.file("src/a", "a\n");
    actum.file("other/b", "b\n");
    let cli = json!({"executable": "sh", "base_args": ["-c", "cat src/a other/b ../other/b; echo x > here; echo x > src/here"]});
    let cli = with(cli, "success_codes", json!([0, 1, 2]));
    let of = |id: &str, scope: Value| {
        let mut entry = tool(id, &["sh"]);
        entry["scope"].as_object_mut().unwrap().extend(scope.as_object().unwrap().clone());
        add(&actum, &[entry, adapter(&format!("ADP-{id}"), id, cli.clone())]);
        call(&actum, id, json!({})).1["stdout"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("all", json!({})), "a\nb\n");
    assert_eq!(of("none", json!({"data_access": "none"})), "");
    assert_eq!(of("nothing", json!({"filesystem": []})), "");
    let seen = of("src", json!({"filesystem": ["src"]}));
    assert!(!seen.contains('b'), "{seen}");
    assert!(!actum.path("here").exists() && !actum.path("src/here").exists(), "who reads does not write");
    of("writes", json!({"data_access": "write", "filesystem": ["src", "other"]}));
    assert!(!actum.path("here").exists());
}

#[test]
fn how_a_program_ends() {
    let actum = actum();
    let told = |id: &str| {
        let (code, result) = call(&actum, id, json!({}));
        (
            code,
            result["status"].as_str().unwrap().to_owned(),
            result["exit_code"].as_u64(),
            result["interpretation"]["meaning"].as_str().unwrap().to_owned(),
        )
    };
    let is =
        |code: i32, status: &str, exit: u64, meaning: &str| (code, status.to_owned(), Some(exit), meaning.to_owned());
    add_shell(&actum, "well", "echo well", json!({}));
    assert_eq!(told("well"), is(0, "success", 0, "Success"));
    add_shell(&actum, "wrong", "echo wrong >&2; exit 3", json!({}));
    assert_eq!(told("wrong"), is(1, "failure", 3, "Tool-specific error 3"));
    add_shell(&actum, "expected", "exit 3", json!({"success_codes": [3]}));
    assert_eq!(told("expected").0, 0);
    assert_eq!(told("expected").1, "success");
    add_shell(&actum, "signal", "kill -SEGV $$", json!({}));
    assert_eq!(told("signal"), is(1, "failure", 139, "Signal termination: SIGSEGV (11)"));
    add(
        &actum,
        &[tool("missing", &["no-such-program"]), adapter("ADP-m", "missing", json!({"executable": "no-such-program"}))],
    );
    let (code, status, exit, meaning) = told("missing");
    assert_eq!((code, exit, meaning.as_str()), (1, Some(127), "Command not found"), "{status}");
    let [entry, slow] = shell("slow", "sleep 60", json!({}));
    add(&actum, &[entry, with(slow, "sandbox_override/timeout_ms", json!(1000))]);
    assert_eq!(told("slow"), is(4, "timeout", 143, "SIGTERM (timeout)"));
    let [entry, hungry] = shell("hungry", "exec python3 -c 'x = bytearray(1 << 30)'", json!({}));
    add(&actum, &[entry, with(hungry, "sandbox_override/memory_mb", json!(64))]);
    assert_eq!(told("hungry"), is(1, "out_of_memory", 137, "OOM killed"));
}

/// A program that leaves a line in the project each time it is called.
#[test]
fn again_and_otherwise() {
    let actum = actum();
    let count = |name: &str| fs::read_to_string(actum.path(name)).unwrap_or_default().lines().count();
    let retry = |codes: &[u8]| json!({"retry": {"max_attempts": 3, "backoff_ms": 1, "retryable_codes": codes}});
    let script = "echo x >> again; [ $(wc -l < again) -ge 3 ] || exit 7";
    let [entry, own] = shell("again", script, json!({}));
    add(&actum, &[entry, with(own, "errors", retry(&[7]))]);
    let (code, result) = call(&actum, "again", json!({}));
    assert_eq!((code, count("again")), (0, 3), "{result}");
    let attempts = result["evidence"]["attempts"].as_array().unwrap();
    assert_eq!(attempts.iter().map(|one| one["code"].as_u64().unwrap()).collect::<Vec<_>>(), [7, 7, 0]);
    let [entry, own] = shell("once", "echo x >> once; exit 8", json!({}));
    add(&actum, &[entry, with(own, "errors", retry(&[7]))]);
    assert_eq!((call(&actum, "once", json!({})).0, count("once")), (1, 1));
    let [entry, own] = shell("never", "echo x >> never; exit 7", json!({}));
    add(&actum, &[entry, with(own, "errors", retry(&[7]))]);
    assert_eq!((call(&actum, "never", json!({})).0, count("never")), (1, 3));
    // Other ways: when, and when not.
    let exits = |script: &str, condition: &str, goes: bool| {
        static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let id = format!("f{}", N.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let program = if script.is_empty() { "no-such-program" } else { "sh" };
        let entry = tool(&id, &["sh", "no-such-program", "echo"]);
        let first = adapter(&format!("A-{id}"), &id, json!({"executable": program, "base_args": ["-c", script]}));
        let first =
            with(first, "errors", json!({"fallback": {"adapter_id": format!("B-{id}"), "condition": condition}}));
        let first = with(first, "sandbox_override/timeout_ms", json!(1000));
        let second = adapter(&format!("B-{id}"), &id, json!({"executable": "echo", "base_args": ["instead"]}));
        add(&actum, &[entry, first, second]);
        let (code, result) = call(&actum, &id, json!({}));
        assert_eq!(code == 0, goes, "{script:?} {condition}: {result}");
        assert_eq!(result["adapter_id"], format!("{}-{id}", if goes { "B" } else { "A" }), "{result}");
        assert_eq!(result["evidence"]["attempts"].as_array().unwrap().len(), 1 + usize::from(goes), "{result}");
    };
    for (script, right, wrong) in [
        ("exit 3", &["on_error", "on_exit:3", "on_exit:2,3"][..], &["on_timeout", "on_unavailable", "on_exit:4"][..]),
        ("sleep 60", &["on_error", "on_timeout", "on_exit:143"], &["on_unavailable", "on_exit:4"]),
        ("", &["on_error", "on_unavailable"], &["on_timeout", "on_exit:4"]),
    ] {
        right.iter().for_each(|condition| exits(script, condition, true));
        wrong.iter().for_each(|condition| exits(script, condition, false));
    }
}

#[test]
fn an_adapter_chooses_within_what_was_granted() {
    let actum = actum();
    let entry = with(tool("t", &["echo"]), "scope/limits", json!({"timeout_ms": 5000, "memory_mb": 128}));
    let of = |version: &str, timeout: u64| {
        let own = adapter("ADP-1", "t", json!({"executable": "echo"}));
        with(with(own, "version", json!(version)), "sandbox_override/timeout_ms", json!(timeout))
    };
    add(&actum, &[entry, of("1.0.0", 2000)]);
    let (code, result) = call(&actum, "t", json!({}));
    let limits = &result["evidence"]["cell"]["limits"];
    assert_eq!((code, &limits["memory_mb"]), (0, &json!(128)), "{result}");
    assert!(limits["timeout_ms"].as_u64().unwrap() <= 2000, "{limits}");
    add(&actum, &[of("1.1.0", 60_000)]);
    let id = waits(&try_call(&actum, "t", json!({})));
    let listed = actum.run(&["approvals", "list", "--json"]).json();
    assert_eq!(listed["approvals"][0]["wants"], json!(["ADP-1 timeout_ms 60000 (granted: 5000)"]));
    actum.run(&["approve", &id]).ok();
    let (code, result) = call(&actum, "t", json!({}));
    assert_eq!((code, &result["evidence"]["approval_id"]), (0, &json!(id)), "{result}");
    assert!(result["evidence"]["cell"]["limits"]["timeout_ms"].as_u64().unwrap() > 5000, "{result}");
    waits(&try_call(&actum, "t", json!({})));
    // Settled for this version, and for no other.
    actum.run(&["adapter", "approve", "ADP-1", "--actor", "ada", "--reason", "needs it"]).ok();
    assert_eq!(call(&actum, "t", json!({})).0, 0);
    assert_eq!(call(&actum, "t", json!({})).0, 0);
    add(&actum, &[of("1.2.0", 60_000)]);
    waits(&try_call(&actum, "t", json!({})));
    // Who is reached as well.
    let own = adapter("ADP-2", "t", json!({"executable": "echo"}));
    let own = with(own, "sandbox_override/network", json!({"enabled": true, "allow": ["a.example"]}));
    add(&actum, &[own]);
    let ended = actum.run(&["exec", "--json", "--tool", "t", "--adapter", "ADP-2"]);
    waits(&ended);
    assert!(ended.stderr.contains("network a.example"), "{}", ended.stderr);
}
