//! The registry of tools: what is added, changed and taken out, by whom, what waits for a person, and that the ledger
//! knows all of it. On both stores.

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::actum;
use super::tools::{
    RIPGREP, RIPGREP_TOOL, adapter, add, call, refused, tool, try_add, try_call, waits, with, with_ripgrep,
};

/// A tool whose program says a word.
fn echo(actum: &Program) {
    add(
        actum,
        &[
            tool("TL-1", &["echo"]),
            adapter("ADP-1", "TL-1", json!({"executable": "echo", "arg_mapping": {"text": "{text}"}})),
        ],
    );
}

fn changes(actum: &Program) -> Vec<Value> {
    let listed = actum.run(&["ledger", "list", "--json", "--type", "registry_change", "--limit", "1000"]).json();
    listed["entries"].as_array().unwrap().clone()
}

fn is_sound(actum: &Program) {
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
    let checked = actum.run(&["store", "check", "--json"]);
    assert_eq!((checked.code, &checked.json()["valid"]), (0, &json!(true)), "{checked:?}");
    assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
}

#[test]
fn files_and_folders_become_tools() {
    let actum = actum();
    actum.file("tools/ripgrep/tool.yaml", RIPGREP_TOOL);
    actum.file("tools/ripgrep/adapter.yaml", RIPGREP);
    let added = actum.run(&["tool", "add", "--json"]).json();
    let actions: Vec<_> =
        added["registered"].as_array().unwrap().iter().map(|one| (&one["id"], &one["action"])).collect();
    assert_eq!(actions, [(&json!("TL-003"), &json!("add")), (&json!("ADP-001"), &json!("add"))]);
    // JSON from files by their names, the adapter before its tool.
    let json = actum.file("other/b.json", tool("TL-1", &["echo"]).to_string()).display().to_string();
    let adapter = adapter("ADP-1", "TL-1", json!({"executable": "echo"}));
    let adapter = actum.file("other/a.json", adapter.to_string()).display().to_string();
    let words = actum.run(&["tool", "add", &adapter, &json]).ok();
    assert_eq!(words.lines().collect::<Vec<_>>(), ["tool TL-1 1.0.0: add", "adapter ADP-1 1.0.0: add"]);
    let before = changes(&actum).len();
    // Again: nothing to do, from below the project and with a folder by its name.
    for ended in [actum.run(&["tool", "add", "--json"]), actum.run(&["adapter", "add", "--json", "other", "tools"])] {
        let again = ended.json();
        assert!(again["registered"].as_array().unwrap().iter().all(|one| one["action"] == "unchanged"), "{again}");
    }
    assert_eq!(changes(&actum).len(), before);
    let tools = actum.run(&["tool", "list", "--json"]).json();
    let ids: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|one| one["tool_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["TL-003", "TL-1"]);
    assert_eq!(
        tools["tools"][0],
        json!({"tool_id": "TL-003", "name": "ripgrep", "summary": "", "owner": "search team"})
    );
    assert!(actum.run(&["tool", "list"]).ok().contains("TL-003"));
    let shown = actum.run(&["tool", "show", "TL-003", "--json"]).json();
    assert_eq!(
        (&shown["version"], &shown["approved"], &shown["commands"]),
        (&json!("1.0.0"), &json!(true), &json!(["rg"]))
    );
    assert_eq!(actum.run(&["tool", "show", "TL-003@1.0.0"]).code, 0);
    assert_eq!(actum.run(&["tool", "show", "TL-003@9.9.9"]).code, 7);
    assert_eq!(actum.run(&["tool", "show", "TL-9"]).code, 7);
    assert_eq!(actum.run(&["tool", "add", "nowhere"]).code, 2);
    is_sound(&actum);
}

/// A version is one content for ever.
fn versions(actum: &Program) {
    echo(actum);
    let described = |version: &str, text: &str| {
        with(with(tool("TL-1", &["echo"]), "version", json!(version)), "description", json!(text))
    };
    let conflict = |document: Value, message: &str| {
        let ended = try_add(actum, &[document]);
        let error = ended.error();
        assert_eq!((ended.code, error["code"].as_str()), (6, Some("REGISTRY_CONFLICT")), "{ended:?}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert!(error["hint"].as_str().unwrap().contains("a new one"), "{error}");
        let plain = actum.run(&["tool", "add", "tools/TL-1.json"]);
        assert!(plain.stderr.contains("TL-1.json:1:"), "the place is told: {}", plain.stderr);
    };
    conflict(described("1.0.0", "other"), "version 1.0.0 is registered with other content");
    assert_eq!(add(actum, &[described("1.1.0", "better")])["registered"][0]["action"], "version");
    conflict(described("1.0.0", "yet another"), "version 1.0.0 was registered with other content before");
    assert_eq!(actum.run(&["tool", "show", "TL-1", "--json"]).json()["version"], "1.1.0");
    // Going back to what it was is a change like others.
    assert_eq!(add(actum, &[tool("TL-1", &["echo"])])["registered"][0]["action"], "version");
    let shown = actum.run(&["tool", "show", "TL-1", "--history", "--json"]).json();
    let versions: Vec<_> = shown["history"].as_array().unwrap().iter().map(|one| one["version"].clone()).collect();
    assert_eq!(versions, ["1.0.0", "1.1.0", "1.0.0"]);
    assert_eq!(call(actum, "TL-1", json!({"text": "hello"})).1["output"], "hello\n");
    is_sound(actum);
}

/// Each of them by somebody, for a reason.
fn turns(actum: &Program) {
    echo(actum);
    let says = || call(actum, "TL-1", json!({"text": "hello"}));
    let turn = |verb: &str, reason: &str| {
        actum.run(&["tool", verb, "TL-1", "--actor", "ada", "--reason", reason, "--json"]).ok();
    };
    turn("deprecate", "old");
    let (code, result) = says();
    assert_eq!((code, &result["warnings"][0]), (0, &json!("TL-1 is deprecated")), "{result}");
    let plain = actum.run(&["exec", "--tool", "TL-1", "--adapter", "ADP-1"]);
    assert!(plain.code == 0 && plain.stderr.contains("TL-1 is deprecated"), "{plain:?}");
    turn("block", "bad");
    assert_eq!(refused(&says()), ["IV-01"]);
    assert!(says().1["violations"][0]["message"].as_str().unwrap().contains("TL-1 is blocked"));
    // What was put out of use stays so.
    add(actum, &[with(tool("TL-1", &["echo"]), "version", json!("1.1.0"))]);
    assert_eq!(refused(&says()), ["IV-01"]);
    turn("activate", "mended");
    assert_eq!(says().0, 0);
    let kept = actum.run(&["tool", "remove", "TL-1", "--json"]);
    assert_eq!((kept.code, kept.error()["code"].as_str()), (6, Some("REGISTRY_CONFLICT")), "{kept:?}");
    assert!(kept.error()["message"].as_str().unwrap().contains("ADP-1"), "{kept:?}");
    actum.run(&["adapter", "remove", "ADP-1"]).ok();
    assert_eq!(refused(&says()), ["IV-01"]);
    turn("remove", "gone");
    assert_eq!(refused(&says()), ["IV-01"]);
    assert_eq!(actum.run(&["tool", "show", "TL-1"]).code, 7);
    // Without anybody's approval it is there and is not called.
    let mut plain = tool("TL-2", &["echo"]);
    plain.as_object_mut().unwrap().remove("approval");
    let added = try_add(actum, &[plain, adapter("ADP-2", "TL-2", json!({"executable": "echo"}))]);
    assert_eq!((added.code, &added.json()["registered"][0]["approved"]), (0, &json!(false)));
    let words = actum.run(&["tool", "list"]).ok();
    assert!(words.lines().any(|line| line.contains("TL-2") && line.contains("no")), "{words}");
    assert_eq!(refused(&call(actum, "TL-2", json!({}))), ["IV-01"]);
    actum.run(&["tool", "approve", "TL-2", "--actor", "bob", "--reason", "read it"]).ok();
    assert_eq!(call(actum, "TL-2", json!({})).0, 0);
    assert_eq!(refused(&call(actum, "TL-9", json!({}))), ["IV-01"]);
    // All of it is on record.
    let found = changes(actum);
    let of = |item: &str| {
        let all = found.iter().filter(|entry| entry["payload"]["item"] == item && entry["payload"]["kind"] == "tool");
        all.map(|entry| entry["payload"].clone()).collect::<Vec<_>>()
    };
    let one = of("TL-1");
    let actions: Vec<_> = one.iter().map(|payload| payload["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["add", "deprecate", "block", "version", "activate", "remove"]);
    let reasons: Vec<_> = one.iter().filter(|p| p["actor"] == "ada").map(|p| p["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["old", "bad", "mended", "gone"]);
    assert!(one.iter().all(|payload| payload["hash"].as_str().unwrap().len() == 64));
    let two = of("TL-2");
    assert_eq!(
        (&two[1]["action"], &two[1]["actor"], &two[1]["reason"]),
        (&json!("approve"), &json!("bob"), &json!("read it"))
    );
    let history = actum.run(&["tool", "show", "TL-2", "--history", "--json"]).json();
    assert_eq!(history["history"][0]["actor"], "bob");
    assert_eq!(history["history"][1]["action"], "add");
    is_sound(actum);
}

/// Adapters are put out of use by themselves.
fn adapters(actum: &Program) {
    let cli = |word: &str| json!({"executable": "echo", "base_args": [word]});
    let second = adapter("ADP-2", "TL-1", cli("second"));
    let mut first = adapter("ADP-1", "TL-1", cli("first"));
    first["errors"] = json!({"fallback": {"adapter_id": "ADP-2"}});
    first["tool_version"] = json!("^1");
    add(actum, &[tool("TL-1", &["echo"]), first, second]);
    let says = || call(actum, "TL-1", json!({}));
    assert_eq!(says().1["stdout"], "first\n");
    actum.run(&["adapter", "deprecate", "ADP-1"]).ok();
    assert_eq!(says().1["stdout"], "second\n", "one in use is preferred");
    actum.run(&["adapter", "block", "ADP-2"]).ok();
    // What it would fall back on is not there.
    let called = says();
    assert_eq!(refused(&called), ["IV-01"]);
    actum.run(&["adapter", "activate", "ADP-2"]).ok();
    actum.run(&["adapter", "block", "ADP-1"]).ok();
    assert_eq!(says().1["stdout"], "second\n");
    let named = actum.run(&["exec", "--json", "--tool", "TL-1", "--adapter", "ADP-1"]);
    assert_eq!(refused(&(named.code, named.json())), ["IV-01"]);
    actum.run(&["adapter", "activate", "ADP-1"]).ok();
    assert_eq!(says().1["stdout"], "first\n");
    assert_eq!(call(actum, "TL-1@1.0.0", json!({})).0, 0);
    // A tool that has moved on without it.
    add(actum, &[with(tool("TL-1", &["echo"]), "version", json!("2.0.0"))]);
    let named = actum.run(&["exec", "--json", "--tool", "TL-1", "--adapter", "ADP-1"]);
    let called = (named.code, named.json());
    assert_eq!(refused(&called), ["IV-01"]);
    assert!(called.1["violations"][0]["message"].as_str().unwrap().contains("it is for versions ^1"), "{}", called.1);
    assert_eq!(refused(&call(actum, "TL-1@1.0.0", json!({}))), ["IV-01"]);
    is_sound(actum);
}

fn forged(actum: &Program) {
    echo(actum);
    let entry = changes(actum)[0].clone();
    let mut document = json!({"tenantId": entry["tenantId"], "module": "registry", "source": "actum", "type": "registry_change",
        "id": "registry:tool:TL-1:2", "payload": entry["payload"]});
    document["payload"]["n"] = json!(2);
    for kind in ["registry_change", "note"] {
        document["type"] = json!(kind);
        let ended = actum.run_with(&["ledger", "append", "--json"], document.to_string().as_bytes());
        assert_ne!(ended.code, 0, "{ended:?}");
        assert_eq!(ended.json()["ok"], false, "{ended:?}");
    }
    assert_eq!(changes(actum).len(), 2);
    is_sound(actum);
}

/// More than before is for a person to say.
fn scopes(actum: &Program) {
    echo(actum);
    let of = |version: &str, commands: &[&str], access: &str| {
        with(with(tool("TL-1", commands), "version", json!(version)), "scope/data_access", json!(access))
    };
    let wider = of("2.0.0", &["echo", "sh"], "write");
    let id = waits(&try_add(actum, std::slice::from_ref(&wider)));
    assert_eq!(actum.run(&["tool", "show", "TL-1", "--json"]).json()["version"], "1.0.0");
    let listed = actum.run(&["approvals", "list", "--json"]).json();
    assert_eq!(listed["approvals"][0]["wants"], json!(["scope command sh", "scope data_access write"]));
    actum.run(&["approve", &id]).ok();
    // What was agreed to is this and nothing more.
    let more = of("2.0.0", &["echo", "sh", "rm"], "write");
    assert_ne!(waits(&try_add(actum, &[more])), id);
    let added = add(actum, &[wider]);
    assert_eq!(added["registered"][0]["action"], "scope");
    assert_eq!(changes(actum).last().unwrap()["payload"]["approval"], json!(id));
    // Less is nobody's business.
    assert_eq!(add(actum, &[of("2.1.0", &["echo"], "read")])["registered"][0]["action"], "scope");
    let wider = of("3.0.0", &["echo"], "write");
    let id = waits(&try_add(actum, std::slice::from_ref(&wider)));
    actum.run(&["deny", &id]).ok();
    let ended = try_add(actum, &[wider]);
    assert_eq!((ended.code, ended.error()["code"].as_str()), (3, Some("APPROVAL_DENIED")), "{ended:?}");
    assert_eq!(actum.run(&["tool", "show", "TL-1", "--json"]).json()["version"], "2.1.0");
    // A secret it had not is more as well, and so is a limit that is gone.
    let limited = with(of("2.2.0", &["echo"], "read"), "scope/limits", json!({"timeout_ms": 5000}));
    add(actum, &[limited]);
    waits(&try_add(actum, &[of("2.3.0", &["echo"], "read")]));
    let limited = with(of("2.4.0", &["echo"], "read"), "scope/limits", json!({"timeout_ms": 5000}));
    waits(&try_add(actum, &[with(limited, "secrets", json!({"KEY": "env:KEY"}))]));
    is_sound(actum);
}

/// Two who change one thing at the same time: one does.
fn rivals(actum: &Program) {
    echo(actum);
    for round in 0..5 {
        let started: Vec<_> = ["one", "other"]
            .iter()
            .map(|who| {
                let document = with(tool("TL-1", &["echo"]), "version", json!(format!("1.0.{}", round + 1)));
                let document = with(document, "description", json!(who));
                let file = actum.file(&format!("{who}/tool.json"), document.to_string()).display().to_string();
                actum.start(&["tool", "add", "--json", &file], &[])
            })
            .collect();
        let mut codes: Vec<i32> = started.into_iter().map(|running| running.finish().0).collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 6], "round {round}");
    }
    let history = actum.run(&["tool", "show", "TL-1", "--history", "--json"]).json();
    assert_eq!(history["history"].as_array().unwrap().len(), 6);
    is_sound(actum);
}

#[test]
fn on_sqlite() {
    for check in [versions, turns, adapters, forged, scopes, rivals] {
        check(&actum());
    }
}

#[test]
fn on_postgres() {
    for check in [versions, turns, adapters, forged, scopes, rivals] {
        check(&actum().on_store(&shared_url()));
    }
}

/// Killed while a tool and its adapter are added: each is there or not, and adding them again completes it.
fn killed(actum: &Program) {
    actum.run(&["tool", "list"]).ok();
    for (round, place) in actum_store::CRASH_POINTS.iter().filter(|place| place.starts_with("append.")).enumerate() {
        for passing in 1..=2_usize {
            let (t, a) = (format!("TL-{round}{passing}"), format!("ADP-{round}{passing}"));
            let file = actum.file(&format!("k/{t}.json"), tool(&t, &["echo"]).to_string()).display().to_string();
            let document = adapter(&a, &t, json!({"executable": "echo"}));
            let other = actum.file(&format!("k/{a}.json"), document.to_string()).display().to_string();
            let mut process =
                actum.start(&["tool", "add", &file, &other], &[("ACTUM_CRASH_AT", &format!("{place}#{passing}"))]);
            assert_eq!(process.error_line().as_deref(), Some(format!("crash point {place}").as_str()));
            process.kill();
            is_sound(actum);
            let there = passing - 1 + usize::from(*place == "append.committed");
            let codes = [("tool", &t), ("adapter", &a)].map(|(kind, id)| actum.run(&[kind, "show", id]).code);
            assert_eq!(codes, [[7, 7], [0, 7], [0, 0]][there], "{place}#{passing}");
            // Half of a whole is not called.
            if there < 2 {
                assert_eq!(refused(&call(actum, &t, json!({}))), ["IV-01"], "{place}#{passing}");
            }
            let again = actum.run(&["tool", "add", "--json", &file, &other]).json();
            let unchanged = again["registered"].as_array().unwrap().iter().filter(|one| one["action"] == "unchanged");
            assert_eq!(unchanged.count(), there, "{place}#{passing}");
            assert_eq!(call(actum, &t, json!({})).0, 0);
        }
    }
    is_sound(actum);
}

#[test]
fn killed_at_each_place() {
    for actum in [actum(), actum().on_store(&shared_url())] {
        killed(&actum);
    }
}

#[test]
fn an_ordinary_user_adds_and_calls() {
    let actum = with_ripgrep(actum().owned_by_nobody());
    actum.file("notes.md", "a needle\n");
    let (code, result) = call(&actum, "TL-003", json!({"pattern": "needle"}));
    assert_eq!(code, 0, "{result}");
    assert_eq!(result["output"][1]["data"]["path"]["text"], "notes.md", "{result}");
    is_sound(&actum);
    assert_eq!(try_call(&actum, "TL-003", json!({"pattern": "nothing like it"})).code, 1);
}
