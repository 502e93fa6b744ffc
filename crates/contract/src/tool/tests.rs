//! Tests of reading tools and adapters: the three examples as they are written, and every kind of flaw.

use serde_json::{Value, json};

use super::*;

pub(super) fn entry() -> Entry {
    Entry::read(&tool()).unwrap()
}

pub(super) fn tool() -> Value {
    json!({
        "tool_id": "TL-003", "name": "ripgrep", "version": "14.1.0", "owner": "search team",
        "provenance": {"repo_url": "https://example.com/rg", "commit_or_tag": "14.1.0", "license": "MIT"},
        "scope": {"commands": ["rg"], "data_access": "read", "network": "off", "filesystem": ["repo root"]},
        "approval": {"approver": "me", "date": "2026-01-16"}, "status": "active",
    })
}

fn ripgrep() -> Value {
    json!({
        "adapter_id": "ADP-001", "name": "ripgrep-search", "version": "1.0.0", "tool_id": "TL-003", "type": "cli",
        "interface": {"cli": {"executable": "rg", "base_args": ["--json", "--no-heading"],
            "arg_mapping": {"pattern": "{pattern}", "path": "{path}", "ignore_case": "-i", "max_count": "-m {value}"},
            "env_mapping": {}}},
        "transforms": {"input": [], "output": [{"type": "parse", "spec": "json_lines"}]},
        "errors": {"retry": {"max_attempts": 1, "backoff_ms": 0, "retryable_codes": []}, "fallback": null},
        "sandbox_override": {"timeout_ms": 60000, "memory_mb": 256, "network": {"enabled": false}},
        "metadata": {"author": "Runtime Agent", "created": "2026-01-16", "updated": "2026-01-16", "status": "active"},
    })
}

fn order() -> Vec<String> {
    ["pattern", "path", "ignore_case", "max_count"].map(ToOwned::to_owned).to_vec()
}

fn flaws_of(document: &Value) -> Vec<String> {
    Adapter::read(document, &order()).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn the_first_example_as_it_is_written() {
    let adapter = Adapter::read(&ripgrep(), &order()).unwrap();
    let Interface::Cli(cli) = &adapter.interface else { panic!("no cli") };
    assert_eq!(cli.arguments.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), order());
    assert_eq!(adapter.override_.limits["timeout_ms"], 60_000);
    let kept = Adapter::normal(&ripgrep(), &order());
    assert_eq!(Adapter::read(&kept, &[]).unwrap(), adapter, "the order is kept with it");
    assert_eq!(Adapter::normal(&kept, &[]), kept);
}

#[test]
fn every_flaw_is_found_with_its_field() {
    let mut bad = ripgrep();
    bad["version"] = json!("one");
    bad["transforms"]["output"] = json!([{"type": "parse", "spec": "xml"}, {"type": "rename", "spec": {}}]);
    bad["transforms"]["input"] = json!([{"type": "rename", "spec": {"a": "b", "b": "a"}}]);
    bad["errors"]["fallback"] = json!({"adapter_id": "ADP-001", "condition": "sometimes"});
    bad["interface"]["cli"]["arg_mapping"]["path"] = json!("{other}");
    bad["sandbox_override"]["memory_mb"] = json!(1);
    bad["extra"] = json!(1);
    let flaws = flaws_of(&bad);
    for field in [
        "version is",
        "transforms.output[0].spec",
        "transforms.output[1].type",
        "transforms.input[0].spec",
        "errors.fallback.condition",
        "arg_mapping.path",
        "sandbox_override.memory_mb",
        "extra is no field",
    ] {
        assert!(flaws.iter().any(|flaw| flaw.contains(field)), "{field}: {flaws:#?}");
    }
    let mut own = ripgrep();
    own["errors"]["fallback"] = json!({"adapter_id": "ADP-001"});
    assert!(flaws_of(&own)[0].contains("never ends"));
}

#[test]
fn other_forms() {
    let with = |form: &str, interface: Value| {
        let mut document = ripgrep();
        document["type"] = json!(form);
        document["interface"] = json!({form: interface});
        Adapter::read(&document, &[])
            .map_err(|flaws| flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    };
    let rest = json!({"base_url": "https://api.example.com/v1", "auth_method": "bearer",
        "headers": {"Accept": "application/json"},
        "endpoint_mapping": {"get": "GET /resources/{id}", "find": "GET /find?q={query}&n=5", "create": "POST /resources"}});
    let Ok(Adapter { interface: Interface::Api(api), .. }) = with("api", rest.clone()) else { panic!("no api") };
    assert_eq!(api.endpoints["find"].query["q"], "{query}");
    for (field, value) in [
        ("base_url", json!("ftp://x")),
        ("base_url", json!("https://user@x.example")),
        ("auth_method", json!("basic")),
        ("auth_method", json!("oauth")),
        ("headers", json!({"Authorization": "Bearer hunter2"})),
        ("endpoint_mapping", json!({"get": "/x"})),
        ("endpoint_mapping", json!({"get": "GET /../x"})),
    ] {
        let mut bad = rest.clone();
        bad[field] = value.clone();
        let wrong = with("api", bad).unwrap_err();
        assert!(!wrong.contains("hunter2"), "{wrong}");
        assert!(wrong.contains("interface.api."), "{field} {value}: {wrong}");
    }
    let python = json!({"language": "python", "package": "json", "function_mapping": {"dump": "dumps"}});
    assert!(with("sdk", python.clone()).is_ok());
    for (field, value) in [("language", "java"), ("package", "x; import os"), ("import_path", "a\nb")] {
        let mut bad = python.clone();
        bad[field] = json!(value);
        assert!(with("sdk", bad).is_err(), "{value}");
    }
    let mcp = json!({"server": "s", "transport": "stdio", "tool_mapping": {"a": "b"}});
    assert!(with("mcp", mcp.clone()).is_ok());
    let mut socket = mcp;
    socket["transport"] = json!("websocket");
    assert!(with("mcp", socket).unwrap_err().contains("no revision of the protocol"));
    let two = json!({"executable": "x"});
    let mut document = ripgrep();
    document["interface"]["sdk"] = two;
    assert!(flaws_of(&document)[0].contains("because type is cli"));
}

#[test]
fn an_entry_and_its_flaws() {
    let read = |change: &dyn Fn(&mut Value)| {
        let mut document = tool();
        change(&mut document);
        Entry::read(&document).map_err(|flaws| flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    };
    assert_eq!(entry().scope.filesystem, ["."]);
    let wrong = read(&|d| {
        d["tool_id"] = json!("../x");
        d["version"] = json!("14");
        d["provenance"]["checksum"] = json!("md5:abc");
        d["scope"]["data_access"] = json!("all");
        d["scope"]["filesystem"] = json!(["../up"]);
        d["secrets"] = json!({"TOKEN": "hunter2"});
        d["servers"] = json!({"fs": {"command": ["node"]}});
    })
    .unwrap_err();
    for field in ["tool_id", "version", "checksum", "data_access", "filesystem", "secrets.TOKEN", "servers.fs.command"]
    {
        assert!(wrong.contains(field), "{field}: {wrong}");
    }
    assert!(!wrong.contains("hunter2"), "what may be a secret is not shown");
    assert!(read(&|d| d["approval"] = Value::Null).unwrap().approval.is_none());
}

#[test]
fn more_is_told_from_less() {
    let narrow = entry().scope;
    let mut wide = narrow.clone();
    wide.commands.push("sh".into());
    wide.network = true;
    wide.data_access = DataAccess::Write;
    assert_eq!(wide.widens(&narrow), ["command sh", "data_access write", "network on"]);
    assert!(narrow.widens(&wide).is_empty());
    let mut limited = narrow.clone();
    limited.limits.insert("timeout_ms".into(), 5_000);
    assert_eq!(narrow.widens(&limited), ["timeout_ms unlimited"]);
    assert!(limited.widens(&narrow).is_empty());
}

#[test]
fn a_chain_ends() {
    let adapter = |id: &str, next: Option<&str>| {
        let mut document = ripgrep();
        document["adapter_id"] = json!(id);
        document["errors"]["fallback"] = next.map_or(Value::Null, |next| json!({"adapter_id": next}));
        Adapter::read(&document, &order()).unwrap()
    };
    let all = [
        adapter("A", Some("B")),
        adapter("B", Some("C")),
        adapter("C", None),
        adapter("D", Some("E")),
        adapter("E", Some("D")),
        adapter("F", Some("X")),
    ];
    let find = |id: &str| all.iter().find(|one| one.adapter_id == id).cloned();
    assert_eq!(check_chain(&all[0], &find).unwrap().len(), 3);
    assert_eq!(check_chain(&all[3], &find).unwrap_err().to_string(), "fallbacks go round in a circle: D → E → D");
    assert!(matches!(check_chain(&all[5], &find), Err(BadChain::Unknown { .. })));
}

#[test]
fn levels_add_up() {
    let (adapter, body) = (Adapter::read(&ripgrep(), &order()).unwrap(), Adapter::normal(&ripgrep(), &order()));
    let keys = |level| {
        let shown = disclose_adapter(&adapter, &body, level, json!({"golden": []}));
        shown.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(Level::L0), ["adapter_id", "name", "tool_id", "type"]);
    let all = Level::ALL.map(keys);
    for pair in all.windows(2) {
        assert!(pair[0].iter().all(|key| pair[1].contains(key)) && pair[0].len() < pair[1].len(), "{pair:?}");
    }
    assert!(!all[1].contains(&"transforms".to_owned()) && all[2].contains(&"transforms".to_owned()));
    assert!(all[3].contains(&"golden".to_owned()) && all[3].contains(&"errors".to_owned()));
}

#[test]
fn conditions() {
    let all = [Went::Well, Went::Wrong(Some(2)), Went::Wrong(None), Went::TimedOut, Went::Unavailable];
    let holds = |condition: Condition| all.map(|went| condition.holds(went));
    assert_eq!(holds(Condition::OnError), [false, true, true, true, true]);
    assert_eq!(holds(Condition::OnTimeout), [false, false, false, true, false]);
    assert_eq!(holds(Condition::OnUnavailable), [false, false, false, false, true]);
    assert_eq!(holds(Condition::OnExit(vec![2])), [false, true, false, false, false]);
}

#[test]
fn a_secret_changes_no_program() {
    let named = |name: &str, scoped: &[&str]| {
        let mut tool = tool();
        tool["secrets"] = json!({name: "env:VALUE"});
        tool["scope"]["scoped"] = json!(scoped);
        Entry::read(&tool).map_err(|flaws| flaws[0].to_string())
    };
    assert!(named("token", &[]).is_ok());
    for name in ["LD_PRELOAD", "PATH", "PYTHONPATH"] {
        assert!(named(name, &[]).unwrap_err().contains(&format!("secrets.{name}")), "{name}");
        assert!(named(name, &[name]).is_ok(), "{name}");
    }
}
