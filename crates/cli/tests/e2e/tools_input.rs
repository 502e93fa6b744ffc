//! Files of tools and adapters that are wrong: told with the place and with what would be right, and nothing of them is
//! registered.

use actum_testkit::program::{Ended, Program};
use serde_json::json;

use super::actum;
use super::tools::{RIPGREP, RIPGREP_TOOL, adapter, refused, tool, try_call, with_ripgrep};

/// Nothing was registered, the place is told, and so is what would help.
fn is_bad(actum: &Program, ended: &Ended, place: &str, message: &str) {
    assert_eq!(ended.code, 2, "{message}: {}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains(place), "{place}: {}", ended.stderr);
    assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
    assert!(ended.stderr.contains("= help: "), "{message} has no hint: {}", ended.stderr);
    let tools = actum.run(&["tool", "list", "--json"]).json();
    assert_eq!(tools["tools"], json!([]), "{message}");
    assert_eq!(actum.run(&["adapter", "list", "--json"]).json()["adapters"], json!([]), "{message}");
}

/// The seed's files with one text for another in the adapter.
fn bad_adapter(from: &str, to: &str, place: &str, message: &str) {
    let actum = actum();
    assert!(RIPGREP.contains(from), "{from}");
    actum.file("tools/tool.yaml", RIPGREP_TOOL);
    actum.file("tools/adapter.yaml", RIPGREP.replacen(from, to, 1));
    is_bad(&actum, &actum.run(&["tool", "add"]), &format!("adapter.yaml:{place}"), message);
}

fn bad_tool(from: &str, to: &str, place: &str, message: &str) -> Ended {
    let actum = actum();
    assert!(RIPGREP_TOOL.contains(from), "{from}");
    actum.file("tools/tool.yaml", RIPGREP_TOOL.replacen(from, to, 1));
    actum.file("tools/adapter.yaml", RIPGREP);
    let ended = actum.run(&["tool", "add"]);
    is_bad(&actum, &ended, &format!("tool.yaml:{place}"), message);
    ended
}

#[test]
fn fields_of_a_tool() {
    bad_tool("owner: search team", "ownr: search team", "4:1", "ownr is no field of a tool; did you mean owner?");
    bad_tool("version: \"1.0.0\"", "version: \"1.0\"", "3:1", "a semantic version such as \"1.0.0\"");
    bad_tool("version: \"1.0.0\"", "version: 1.0", "3:1", "version is 1.0, expected text");
    bad_tool("license: MIT", "license: MIT, checksum: abc", "5:29", "blake3: or sha256: and 64 hexadecimal digits");
    bad_tool(
        "license: MIT",
        &format!("license: MIT, checksum: \"md5:{}\"", "0".repeat(64)),
        "5:29",
        "blake3: or sha256:",
    );
    bad_tool("commands: [rg]", "commands: [rg], data_access: all", "6:26", "none, read or write");
    bad_tool("filesystem: [\".\"]", "filesystem: [\"../x\"]", "6:26", "without `..`");
    bad_tool("scope: {", "scope: { limits: { timeout_ms: 5 },", "6:20", "timeout_ms");
}

/// What stands in place of a reference may be the secret itself.
#[test]
fn a_secret_is_not_written_down() {
    let ended =
        bad_tool("scope:", "secrets: { TOKEN: sk-live-4242 }\nscope:", "6:12", "a reference: env:NAME or file:PATH");
    assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("sk-live-4242"), "{}", ended.stderr);
    let actum = actum();
    for wrong in
        ["secrets: sk-live-4242", "secrts: { TOKEN: sk-live-4242 }", "secrets: [sk-live-4242]", "api_key: sk-live-4242"]
    {
        let file = actum.file("tool.yaml", RIPGREP_TOOL.replacen("scope:", &format!("{wrong}\nscope:"), 1));
        for json in [&[][..], &["--json"]] {
            let file = file.display().to_string();
            let ended = actum.run(&[&["tool", "add", &file], json].concat());
            assert_eq!(ended.code, 2);
            let told = format!("{}{}", ended.stdout, ended.stderr);
            assert!(!told.contains("sk-live-4242"), "{wrong}: {told}");
        }
    }
}

#[test]
fn schemas_of_a_tool() {
    let operations = |schema: &str| format!("operations:\n  search:\n    parameters: {schema}\nscope:");
    bad_tool("scope:", &operations("{ type: 5 }"), "7:3", "no usable JSON Schema");
    bad_tool("scope:", &operations("{ $ref: \"http://127.0.0.1:9/x.json\" }"), "7:3", "has to stand in it");
    bad_tool("scope:", &operations("[1]"), "8:5", "a JSON Schema");
}

#[test]
fn fields_of_an_adapter() {
    bad_adapter(
        "    executable: rg",
        "    exectable: rg",
        "10:5",
        "exectable is no field of an adapter; did you mean executable?",
    );
    bad_adapter("version: \"1.0.0\"", "version: one", "3:1", "a semantic version such as \"1.0.0\"");
    bad_adapter(
        "max_count: \"-m {value}\"",
        "max_count: \"-m {other}\"",
        "16:7",
        "a template with {value} or {max_count} in it",
    );
    bad_adapter("executable: rg", "executable: sh", "10:5", "TL-003 may not run \"sh\"");
    bad_adapter("tool_id: TL-003", "tool_id: TL-9", "4:1", "no tool \"TL-9\" is registered");
    bad_adapter("tool_id: TL-003", "tool_id: TL-003\ntool_version: \"<1\"", "5:1", "it is for versions <1");
    bad_adapter("max_attempts: 1", "max_attempts: 11", "27:5", "a whole number from 1 to 10");
    bad_adapter("memory_mb: 256", "memory_mb: 1", "34:3", "memory_mb");
    bad_adapter("type: cli", "type: ssh", "6:1", "cli, api, sdk or mcp");
}

#[test]
fn transforms_of_an_adapter() {
    let input = |spec: &str| format!("input: [{spec}]");
    let output = |spec: &str| format!("spec: json_lines\n    - {spec}");
    bad_adapter("input: []", &input("{ type: rename, spec: { a: b, b: a } }"), "20:", "no circle");
    bad_adapter("input: []", &input("{ type: validate, spec: { type: 5 } }"), "20:", "no usable JSON Schema");
    bad_adapter(
        "input: []",
        &input("{ type: validate, spec: { $ref: \"http://127.0.0.1:9/x\" } }"),
        "20:",
        "has to stand in it",
    );
    bad_adapter("input: []", &input("{ type: parse, spec: json }"), "20:", "rename, map, default, validate");
    bad_adapter("spec: json_lines", &output("{ type: extract, spec: \"$[\" }"), "24:", "JSONPath");
    bad_adapter("spec: json_lines", &output("{ type: extract, spec: data }"), "24:", "a JSONPath such as \"$.data\"");
    bad_adapter("spec: json_lines", &output("{ type: format, spec: \"{{ a\" }"), "24:", "template");
    bad_adapter("spec: json_lines", "spec: { regex: \"(\" }", "23:", "a regular expression");
}

#[test]
fn other_kinds_of_adapters() {
    let actum = actum();
    actum.file("tools/tool.yaml", RIPGREP_TOOL);
    let head = "adapter_id: ADP-001\nname: x\nversion: \"1.0.0\"\ntool_id: TL-003\n";
    let bad = |rest: &str, place: &str, message: &str| {
        actum.file("tools/adapter.yaml", format!("{head}{rest}"));
        is_bad(&actum, &actum.run(&["tool", "add"]), &format!("adapter.yaml:{place}"), message);
    };
    let mcp = "type: mcp\ninterface:\n  mcp:\n    server: s\n    transport: websocket\n    tool_mapping: { a: a }\n";
    bad(mcp, "9:5", "stdio or http: no revision of the protocol defines websocket");
    let api =
        "type: api\ninterface:\n  api:\n    base_url: http://127.0.0.1:9/x\n    endpoint_mapping: { get: GET /x }\n";
    bad(api, "8:5", "TL-003 may not reach 127.0.0.1:9");
    let signed = api.replace("    endpoint", "    headers: { Authorization: Bearer sk-live-4242 }\n    endpoint");
    bad(&signed, "9:16", "auth_method sends it");
    assert!(!actum.run(&["tool", "add"]).stderr.contains("sk-live-4242"));
}

/// What only shows when several files are seen together.
#[test]
fn files_that_do_not_fit_each_other() {
    let falling = |id: &str, of: &str, to: &str| {
        let text = RIPGREP.replace("ADP-001", id).replace("TL-003", of);
        text.replace("fallback: null", &format!("fallback: {{ adapter_id: {to} }}"))
    };
    let bad = |files: &[(&str, String)], place: &str, message: &str| {
        let actum = actum();
        actum.file("tools/a-tool.yaml", RIPGREP_TOOL);
        files.iter().for_each(|(name, text)| drop(actum.file(&format!("tools/{name}.yaml"), text)));
        is_bad(&actum, &actum.run(&["tool", "add"]), place, message);
    };
    bad(&[("b", RIPGREP.into()), ("c", RIPGREP.into())], "c.yaml:1:1", "the same id stands in");
    bad(&[("b", RIPGREP_TOOL.into())], "b.yaml:1:1", "the same id stands in");
    let circle = [("b", falling("ADP-1", "TL-003", "ADP-2")), ("c", falling("ADP-2", "TL-003", "ADP-1"))];
    bad(&circle, "b.yaml:30:3", "fallbacks go round in a circle: ADP-1 → ADP-2 → ADP-1");
    bad(&[("b", falling("ADP-1", "TL-003", "ADP-1"))], "b.yaml:30:", "one that falls back on itself never ends");
    bad(&[("b", falling("ADP-1", "TL-003", "ADP-9"))], "b.yaml:30:3", "ADP-9, which is not registered");
    let other = RIPGREP.replace("ADP-001", "ADP-2").replace("TL-003", "TL-2");
    let tool = RIPGREP_TOOL.replace("TL-003", "TL-2");
    bad(
        &[("b", falling("ADP-1", "TL-003", "ADP-2")), ("c", other), ("d", tool)],
        "b.yaml:30:3",
        "ADP-2, which calls another tool",
    );
}

/// A circle that would come about with what is registered already.
#[test]
fn a_new_version_closes_no_circle() {
    let actum = actum();
    let cli = json!({"executable": "echo"});
    let second = adapter("ADP-2", "TL-1", cli.clone());
    let mut first = adapter("ADP-1", "TL-1", cli);
    first["errors"] = json!({"fallback": {"adapter_id": "ADP-2"}});
    super::tools::add(&actum, &[tool("TL-1", &["echo"]), second.clone(), first]);
    let mut closing = second;
    closing["version"] = json!("2.0.0");
    closing["errors"] = json!({"fallback": {"adapter_id": "ADP-1"}});
    let ended = super::tools::try_add(&actum, &[closing]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("ADP-2 → ADP-1 → ADP-2"), "{}", ended.stderr);
    assert_eq!(actum.run(&["adapter", "show", "ADP-2", "--json"]).json()["version"], "1.0.0");
}

#[test]
fn files_that_are_no_documents() {
    let actum = actum();
    let mut bomb = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (name, of) in ('b'..='z').zip('a'..) {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 9].join(",")));
    }
    let bad = |name: &str, text: &[u8], place: &str, message: &str| {
        let file = actum.file(name, text).display().to_string();
        is_bad(&actum, &actum.run(&["tool", "add", &file]), place, message);
    };
    bad("bomb.yaml", bomb.as_bytes(), "bomb.yaml", "");
    let long = format!("{RIPGREP_TOOL}description: {}\n", "x".repeat(10 << 20));
    bad("long.yaml", long.as_bytes(), "long.yaml:2:1", "TL-003: it is");
    let bad = |name: &str, text: &[u8], place: &str, message: &str| {
        let file = actum.file(name, text).display().to_string();
        let ended = actum.run(&["tool", "add", &file]);
        assert_eq!(ended.code, 2, "{name}: {ended:?}");
        assert!(ended.stderr.contains(place) && ended.stderr.contains(message), "{name}: {}", ended.stderr);
    };
    bad("torn.json", b"{\"tool_id\": ", "torn.json:1:", "");
    bad("torn.yaml", b"tool_id: [", "torn.yaml:", "");
    bad("list.yaml", b"- 1\n", "", "the document is [1], expected an object of fields");
    bad("twice.yaml", b"tool_id: a\ntool_id: b\n", "twice.yaml:2:1", "");
    bad("text.yaml", b"tool_id: \xff\n", "text.yaml:1:10", "UTF-8");
    bad("empty.yaml", b"", "", "");
}

#[test]
fn a_version_that_never_was() {
    let actum = with_ripgrep(actum());
    let ended = try_call(&actum, "TL-003@9.9.9", json!({"pattern": "x"}));
    let called = (ended.code, ended.json());
    assert_eq!(refused(&called), ["IV-01"]);
    let message = called.1["violations"][0]["message"].as_str().unwrap();
    assert_eq!(message, "version 9.9.9 of TL-003 never was in force; 1.0.0 is");
}
