//! What tools are trusted with: approvals, secrets, how much is shown of them, outputs that are right, and what may be
//! answered from memory.

use std::fs;
use std::path::Path;

use actum_testkit::folder::Folder;
use actum_testkit::program::{Ended, Program};
use serde_json::{Value, json};

use super::actum;
use super::tools::{adapter, add, call, refused, tool, try_call, waits, with, with_ripgrep};

fn echo() -> Value {
    json!({"executable": "echo", "arg_mapping": {"text": "{text}"}})
}

fn states(actum: &Program) -> Vec<String> {
    let listed = actum.run(&["approvals", "list", "--json"]).json();
    listed["approvals"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect()
}

/// Makes every agreement and request in a state one of yesterday.
fn expire(actum: &Program, state: &str) {
    for entry in fs::read_dir(actum.path(".actum/approvals").join(state)).unwrap().flatten() {
        let mut value: Value = serde_json::from_slice(&fs::read(entry.path()).unwrap()).unwrap();
        value["expires_at"] = json!("2020-01-01T00:00:00Z");
        fs::write(entry.path(), value.to_string()).unwrap();
    }
}

#[test]
fn what_waits_for_a_person() {
    let actum = actum();
    let entries = [
        (with(tool("elevated", &["echo"]), "scope/elevated", json!(true)), "filesystem elevated"),
        (with(with(tool("open", &["echo"]), "scope/network", json!(true)), "scope/open", json!(true)), "network open"),
    ];
    for (entry, wants) in entries {
        let id = entry["tool_id"].as_str().unwrap().to_owned();
        add(&actum, &[entry, adapter(&format!("ADP-{id}"), &id, echo())]);
        let says = |text: &str| try_call(&actum, &id, json!({"text": text}));
        let first = says("a");
        let request = waits(&first);
        assert!(first.error()["message"].as_str().unwrap().contains(wants), "{first:?}");
        assert!(first.error()["hint"].as_str().unwrap().contains(&request), "{first:?}");
        assert_eq!(waits(&says("a")), request, "asked twice, it waits once");
        let other = waits(&says("b"));
        assert_ne!(other, request, "other arguments are another request");
        actum.run(&["approve", &request]).ok();
        // What is refused anyway uses nothing up.
        assert_eq!(refused(&call(&actum, &id, json!({"text": "-a"}))), ["IV-02"]);
        let called = says("a").json();
        assert_eq!(
            (&called["stdout"], &called["evidence"]["approval_id"]),
            (&json!("a\n"), &json!(request)),
            "{called}"
        );
        assert_ne!(waits(&says("a")), request, "it was for once");
        // For a time, as often as it is wanted; until it is over.
        actum.run(&["approve", &other, "--minutes", "5"]).ok();
        assert_eq!((says("b").code, says("b").code), (0, 0));
        expire(&actum, "approved");
        waits(&says("b"));
        let denied = waits(&says("c"));
        actum.run(&["deny", &denied]).ok();
        let ended = says("c");
        assert_eq!((ended.code, ended.error()["code"].as_str()), (3, Some("APPROVAL_DENIED")), "{ended:?}");
        expire(&actum, "denied");
        waits(&says("c"));
        // Nobody agrees to what has waited too long.
        let late = waits(&says("d"));
        expire(&actum, "pending");
        assert_eq!(actum.run(&["approve", &late]).code, 7);
        assert_ne!(waits(&says("d")), late);
    }
    let found = states(&actum);
    for state in ["pending", "approved", "used", "denied", "expired"] {
        let is_there = found.iter().any(|one| one == state);
        assert_eq!(is_there, state != "approved", "{state}: {found:?}");
    }
}

/// One agreement, and several who want to use it at once.
#[test]
fn an_agreement_is_used_once() {
    let actum = actum();
    add(&actum, &[with(tool("t", &["echo"]), "scope/elevated", json!(true)), adapter("ADP-1", "t", echo())]);
    let request = waits(&try_call(&actum, "t", json!({})));
    actum.run(&["approve", &request]).ok();
    let started: Vec<_> = (0..4).map(|_| actum.start(&["exec", "--json", "--tool", "t"], &[])).collect();
    let mut codes: Vec<i32> = started.into_iter().map(|running| running.finish().0).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 8, 8, 8]);
    // A version of the tool that nobody has seen is another matter.
    let request = waits(&try_call(&actum, "t", json!({})));
    actum.run(&["approve", &request, "--minutes", "5"]).ok();
    assert_eq!(try_call(&actum, "t", json!({})).code, 0);
    let next = with(with(tool("t", &["echo"]), "scope/elevated", json!(true)), "version", json!("1.1.0"));
    add(&actum, &[next]);
    assert_ne!(waits(&try_call(&actum, "t", json!({}))), request);
}

#[test]
fn the_first_use() {
    let actum = actum();
    add(&actum, &[with(tool("t", &["echo"]), "approve_first_use", json!(true)), adapter("ADP-1", "t", echo())]);
    let first = try_call(&actum, "t", json!({"text": "a"}));
    let request = waits(&first);
    assert!(first.error()["message"].as_str().unwrap().contains("first use"), "{first:?}");
    actum.run(&["approve", &request]).ok();
    assert_eq!(call(&actum, "t", json!({"text": "a"})).0, 0);
    assert_eq!(call(&actum, "t", json!({"text": "b"})).0, 0, "only the first waits");
    // A session of its own has a first time of its own, whatever it is called.
    let outside = Folder::new();
    let name = format!("../../..{}/x", outside.path().display());
    for session in ["s", name.as_str()] {
        let exec = || actum.run(&["exec", "--json", "--tool", "t", "--session", session]);
        actum.run(&["approve", &waits(&exec())]).ok();
        assert_eq!((exec().code, exec().code), (0, 0));
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "a name is no path");
}

/// Every file below a folder that has these bytes in it.
fn holding(folder: &Path, bytes: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            holding(&path, bytes, found);
        } else if fs::read(&path).is_ok_and(|text| text.windows(bytes.len()).any(|window| window == bytes)) {
            found.push(path.display().to_string());
        }
    }
}

const SECRET: &str = "correct-horse-4242-battery";
const FILED: &str = "staple-1717-of-a-file";

#[test]
fn secrets_arrive_and_stay_nowhere() {
    let elsewhere = Folder::new();
    let file = elsewhere.file("token", format!("{FILED}\n"));
    let actum = actum().with_env("THE_KEY", SECRET);
    let own = |id: &str, script: &str| {
        let secrets = json!({"KEY": "env:THE_KEY", "FILED": format!("file:{}", file.display())});
        let cli = json!({"executable": "sh", "base_args": ["-c", script, "sh"], "arg_mapping": {"text": "{text}"}});
        let own = with(adapter(&format!("ADP-{id}"), id, cli), "sandbox_override/timeout_ms", json!(1000));
        add(&actum, &[with(tool(id, &["sh"]), "secrets", secrets), own]);
    };
    let says = "echo $KEY $FILED; echo $KEY | rev; echo $KEY >&2; printf %s \"$FILED\" | wc -c; ";
    own("well", says);
    own("wrong", &format!("{says} exit 3"));
    own("slow", &format!("{says} sleep 60"));
    let is_silent = |ended: &Ended| {
        for secret in [SECRET, FILED] {
            assert!(!format!("{}{}", ended.stdout, ended.stderr).contains(secret), "{ended:?}");
            let mut found = Vec::new();
            holding(actum.folder(), secret.as_bytes(), &mut found);
            assert!(found.is_empty(), "{found:?}");
        }
    };
    let ended = try_call(&actum, "well", json!({}));
    assert_eq!(ended.code, 0, "{ended:?}");
    // It did arrive.
    let reversed: String = SECRET.chars().rev().collect();
    let stdout = ended.json()["stdout"].as_str().unwrap().to_owned();
    assert!(stdout.contains(&reversed) && stdout.contains(&FILED.len().to_string()), "{stdout}");
    is_silent(&ended);
    let plain = actum.run(&["exec", "-v", "--tool", "well"]);
    assert_eq!(plain.code, 0);
    is_silent(&plain);
    for (id, code) in [("wrong", 1), ("slow", 4)] {
        let ended = try_call(&actum, id, json!({}));
        assert_eq!(ended.code, code, "{ended:?}");
        is_silent(&ended);
        is_silent(&actum.run(&["logs", ended.json()["execution_id"].as_str().unwrap()]));
    }
    let ended = try_call(&actum, "well", json!({"text": "-x"}));
    assert_eq!(ended.code, 3);
    is_silent(&ended);
    for words in [&["tool", "show", "well", "--level", "L3"][..], &["ledger", "list", "--json"], &["approvals", "list"]]
    {
        is_silent(&actum.run(words));
    }
}

#[test]
fn a_secret_that_is_missing_is_named() {
    let actum = actum();
    let of = |id: &str, reference: &str| {
        let entry = with(tool(id, &["echo"]), "secrets", json!({"KEY": reference}));
        let entry = with(entry, "scope/elevated", json!(id == "agreed"));
        add(&actum, &[entry, adapter(&format!("ADP-{id}"), id, echo())]);
        try_call(&actum, id, json!({}))
    };
    actum.file("empty", "\n");
    let empty = format!("file:{}", actum.path("empty").display());
    for (id, reference, why) in [
        ("e", "env:NOT_THERE", "the secret KEY of e, which is env:NOT_THERE, is not set"),
        ("f", "file:/nowhere/at/all", "which is file:/nowhere/at/all, cannot be read"),
        ("g", empty.as_str(), "is empty"),
        ("agreed", "env:NOT_THERE", "is not set"),
    ] {
        let ended = of(id, reference);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.error()["message"].as_str().unwrap().contains(why), "{ended:?}");
        assert!(ended.error()["hint"].as_str().unwrap().contains("set it where actum runs"), "{ended:?}");
    }
    assert!(states(&actum).is_empty(), "nobody is asked for what cannot run");
}

/// The seed's table: what each level shows.
#[test]
fn levels_of_disclosure() {
    let actum = with_ripgrep(actum());
    let with_more = json!({"examples": [{"name": "one", "params": {"pattern": "x"}}], "fixtures": {"a": 1}});
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let show = |id: &str, level: &str| actum.run(&["adapter", "show", id, "--level", level, "--json"]).json();
    let l0 = json!({"adapter_id": "ADP-001", "name": "ripgrep-search", "tool_id": "TL-003", "type": "cli"});
    assert_eq!(show("ADP-001", "L0"), l0);
    assert_eq!(actum.run(&["adapter", "list", "--json"]).json(), json!({"adapters": [l0]}));
    assert_eq!(actum.run(&["adapter", "list", "--level", "l0", "--json"]).json()["adapters"][0], l0);
    let l1 = show("ADP-001", "L1");
    assert_eq!(keys(&l1), ["adapter_id", "interface", "name", "operations", "status", "tool_id", "type", "version"]);
    assert_eq!(
        l1["interface"],
        json!({"executable": "rg", "parameters": ["pattern", "path", "ignore_case", "max_count"]})
    );
    assert_eq!(actum.run(&["adapter", "list", "--level", "L1", "--json"]).json()["adapters"][0], l1);
    let l2 = show("ADP-001", "L2");
    assert_eq!(
        keys(&l2),
        ["adapter_id", "interface", "name", "operations", "status", "tool_id", "transforms", "type", "version"]
    );
    assert_eq!(l2["interface"]["cli"]["arg_mapping"]["max_count"], "-m {value}");
    assert_eq!(l2["transforms"]["output"], json!([{"type": "parse", "spec": "json_lines"}]));
    let mut own = adapter("ADP-2", "TL-003", json!({"executable": "rg", "arg_mapping": {"pattern": "{pattern}"}}));
    own.as_object_mut().unwrap().extend(with_more.as_object().unwrap().clone());
    add(&actum, &[own]);
    let l3 = show("ADP-2", "L3");
    for (name, value) in with_more.as_object().unwrap() {
        assert_eq!(&l3[name], value, "{name}");
        assert_eq!(show("ADP-2", "L2").get(name), None, "{name}");
    }
    let whole = show("ADP-001", "L3");
    for name in ["errors", "sandbox_override", "metadata", "registry", "golden"] {
        assert!(whole.get(name).is_some() && l2.get(name).is_none(), "{name}");
    }
    assert_eq!(whole["registry"]["hash"].as_str().unwrap().len(), 64);
    assert_eq!(actum.run(&["adapter", "show", "ADP-001", "--level", "L4"]).code, 2);
    assert_eq!(actum.run(&["adapter", "show", "ADP-001", "--json"]).json(), l1);
    let tool = |level: &str| actum.run(&["tool", "show", "TL-003", "--level", level, "--json"]).json();
    assert_eq!(keys(&tool("L0")), ["name", "owner", "summary", "tool_id"]);
    assert_eq!(tool("L1")["commands"], json!(["rg"]));
    assert_eq!(tool("L2")["scope"]["filesystem"], json!(["."]));
    assert_eq!(tool("L3")["approval"]["approver"], "search team");
    // What somebody changed is told at every level that tells the status.
    actum.run(&["adapter", "deprecate", "ADP-001"]).ok();
    actum.run(&["tool", "block", "TL-003"]).ok();
    for level in ["L1", "L2", "L3"] {
        assert_eq!(show("ADP-001", level)["status"], "deprecated", "{level}");
        assert_eq!((&tool(level)["status"], &tool(level)["approved"]), (&json!("blocked"), &json!(true)), "{level}");
    }
}

/// The example as it lies in the repository, in a folder of its own.
fn example() -> Program {
    let actum = actum();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tools");
    for name in
        ["actum.toml", "notes/garden.md", "notes/kitchen.md", "tools/ripgrep/tool.yaml", "tools/ripgrep/adapter.yaml"]
    {
        actum.file(name, fs::read(format!("{examples}/{name}")).unwrap());
    }
    actum.run(&["tool", "add"]).ok();
    actum
}

#[test]
fn outputs_that_are_right() {
    let actum = example();
    let golden = |words: &[&str]| {
        let ended = actum.run(&[&["tool", "golden"], words, &["--json"]].concat());
        let found = ended.json();
        let did = found["cases"].as_array().unwrap().iter().map(|one| one["did"].as_str().unwrap().to_owned());
        (ended.code, did.collect::<Vec<_>>(), found)
    };
    let is = |found: (i32, Vec<String>, Value), code: i32, did: [&str; 2]| {
        assert_eq!(
            (found.0, found.1.iter().map(String::as_str).collect::<Vec<_>>()),
            (code, did.to_vec()),
            "{}",
            found.2
        );
        found.2
    };
    is(golden(&["check"]), 1, ["missing", "missing"]);
    is(golden(&["record"]), 0, ["recorded", "recorded"]);
    is(golden(&["record"]), 0, ["same", "same"]);
    is(golden(&["check", "ADP-001"]), 0, ["same", "same"]);
    let kept = actum.path("tools/golden/ADP-001/tomatoes.json");
    let before = fs::read(&kept).unwrap();
    // What is kept is no tool.
    actum.run(&["tool", "add"]).ok();
    let garden = fs::read_to_string(actum.path("notes/garden.md")).unwrap();
    actum.file("notes/garden.md", garden.replace("tomatoes", "TOMATOES"));
    let told = is(golden(&["check"]), 1, ["same", "differs"]);
    assert!(told["cases"][1]["detail"].as_str().unwrap().starts_with("output[0].lines.text differs"), "{told}");
    assert!(actum.run(&["tool", "golden", "check"]).stdout.contains("differs ADP-001/tomatoes: output[0].lines.text"));
    is(golden(&["record"]), 1, ["same", "differs"]);
    assert_eq!(fs::read(&kept).unwrap(), before, "nothing is replaced unless it is wanted");
    is(golden(&["record", "--update"]), 0, ["same", "updated"]);
    is(golden(&["check"]), 0, ["same", "same"]);
    assert_ne!(fs::read(&kept).unwrap(), before);
    let shown = actum.run(&["adapter", "show", "ADP-001", "--level", "L3", "--json"]).json();
    assert_eq!(shown["golden"].as_array().unwrap().len(), 2);
    assert_eq!(actum.run(&["tool", "golden", "check", "ADP-9"]).code, 7);
}

fn ask(actum: &Program, session: &str, params: &Value) -> Value {
    let words = ["exec", "--json", "--tool", "TL-003", "--op", "search", "--session", session, "--params-json"];
    let ended = actum.run(&[&words[..], &[&params.to_string()]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

#[test]
fn what_a_session_remembers() {
    let actum = example();
    let params = json!({"pattern": "tomatoes", "path": "notes"});
    let first = ask(&actum, "s", &params);
    assert_eq!(first["cached"], false);
    let again = ask(&actum, "s", &params);
    assert_eq!((&again["cached"], &again["output"]), (&json!(true), &first["output"]), "{again}");
    assert_ne!(again["execution_id"], first["execution_id"], "it is an execution of its own");
    assert_eq!(again["evidence"]["cache"]["execution_id"], first["execution_id"]);
    assert_eq!(ask(&actum, "other", &params)["cached"], false);
    assert_eq!(ask(&actum, "s", &json!({"pattern": "basil", "path": "notes"}))["cached"], false);
    let plain = call(&actum, "TL-003", params.clone());
    assert_eq!(plain.1["cached"], false, "nobody asked for it to be remembered");
    // Whatever it was made of changes.
    actum.file("notes/new.md", "more tomatoes\n");
    let changed = ask(&actum, "s", &params);
    assert_eq!((&changed["cached"], changed["output"].as_array().unwrap().len()), (&json!(false), 3), "{changed}");
    assert_eq!(ask(&actum, "s", &params)["cached"], true);
    let adapter = fs::read_to_string(actum.path("tools/ripgrep/adapter.yaml")).unwrap();
    actum.file("tools/ripgrep/adapter.yaml", adapter.replace("version: \"1.0.0\"", "version: \"1.0.1\""));
    actum.run(&["tool", "add"]).ok();
    assert_eq!(ask(&actum, "s", &params)["cached"], false);
    assert_eq!(ask(&actum, "s", &params)["cached"], true);
    actum.run(&["tool", "refresh"]).ok();
    assert_eq!(ask(&actum, "s", &params)["cached"], false);
    // What is blocked is not answered from memory either.
    assert_eq!(ask(&actum, "s", &params)["cached"], true);
    actum.run(&["tool", "block", "TL-003"]).ok();
    let words = ["exec", "--json", "--tool", "TL-003", "--session", "s", "--params-json", &params.to_string()];
    assert_eq!(actum.run(&words).code, 3);
}

/// What changes something, or may be something else next time, is done each time.
#[test]
fn what_no_session_remembers() {
    let actum = actum().with_env("THE_KEY", SECRET);
    let cli = json!({"executable": "sh", "base_args": ["-c", "date +%N; echo x >> lines || true"]});
    let entries = [
        with(tool("writes", &["sh"]), "scope/data_access", json!("write")),
        with(tool("knows", &["sh"]), "secrets", json!({"KEY": "env:THE_KEY"})),
        with(with(tool("reaches", &["sh"]), "scope/network", json!(true)), "scope/endpoints", json!(["a.example"])),
    ];
    for entry in entries {
        let id = entry["tool_id"].as_str().unwrap().to_owned();
        add(&actum, &[entry, adapter(&format!("ADP-{id}"), &id, cli.clone())]);
        for _ in 0..2 {
            let ended = actum.run(&["exec", "--json", "--tool", &id, "--session", "s"]);
            assert_eq!((ended.code, &ended.json()["cached"]), (0, &json!(false)), "{id}: {ended:?}");
        }
    }
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "x\nx\n");
    // Nor what went wrong.
    add(&actum, &[tool("fails", &["false"]), adapter("ADP-fails", "fails", json!({"executable": "false"}))]);
    for _ in 0..2 {
        let ended = actum.run(&["exec", "--json", "--tool", "fails", "--session", "s"]);
        assert_eq!((ended.code, &ended.json()["cached"]), (1, &json!(false)), "{ended:?}");
    }
}
