//! Functions of packages as tools, each call in its cell: what is part of the language, what was installed into the project,
//! what fails, and what cannot be told in JSON.

use actum_testkit::program::Program;
use actum_testkit::servers::Servers;
use serde_json::{Value, json};

use super::actum;
use super::sandbox::{Who, own_all};
use super::services::{adapter, call, call_as, register, tool};
use super::services_mcp::{copy, npm_install};

const ODD_PYTHON: &str = r#"
import os, subprocess, sys, time

def prints():
    print("hello")
    subprocess.run(["echo", "more"])
    return "answer"

def raises(what):
    raise KeyError(what)

def raw():
    return b"\x00\xff"

def leaves():
    os._exit(6)

def never():
    time.sleep(600)

def eats():
    return len(bytearray(900 << 20))

def pries(path):
    return open(path).read()

def writes():
    open("new.txt", "w").write("x")

async def later(n):
    return {"later": n}
"#;

/// A project whose tool T calls these functions of a package.
fn calling(actum: &Program, language: &str, package: &str, import: Option<&str>, functions: &[&str]) {
    let mapping: serde_json::Map<String, Value> =
        functions.iter().map(|name| (name.replace(['.', ':'], "_"), json!(name))).collect();
    let interface = json!({"language": language, "package": package, "function_mapping": mapping});
    let adapter = adapter("F", "sdk", interface, |adapter| {
        if let Some(import) = import {
            adapter["interface"]["sdk"]["import_path"] = json!(import);
        }
        adapter["sandbox_override"] = json!({"timeout_ms": 60_000, "max_children": 50});
    });
    register(actum, &caller(), &[adapter]);
}

fn caller() -> Value {
    tool(|tool| tool["scope"]["commands"] = json!(["python3", "node", "go", "cargo"]))
}

fn good(actum: &Program, operation: &str, params: Value, expected: Value) -> Value {
    let (code, result) = call(actum, operation, &params);
    assert_eq!((code, &result["output"]), (0, &expected), "{operation}: {result:#}");
    result
}

/// The stage and the message of a call that failed with this exit code.
fn bad(actum: &Program, operation: &str, params: Value, code: i32) -> (String, Value) {
    let (ended, result) = call(actum, operation, &params);
    assert_eq!(ended, code, "{operation}: {result:#}");
    let text = |key: &str| result["error"][key].as_str().unwrap_or_else(|| panic!("{result:#}")).to_owned();
    (format!("{}: {}", text("stage"), text("message")), result)
}

#[test]
fn functions_of_pythons_own_library_are_called() {
    let actum = actum();
    calling(&actum, "python", "textwrap", None, &["shorten", "fill", "missing"]);
    good(&actum, "shorten", json!({"text": "one two three", "width": 9}), json!("one [...]"));
    good(&actum, "fill", json!({"args": ["a b c"], "width": 1}), json!("a\nb\nc"));
    let (told, _) = bad(&actum, "shorten", json!({"text": "x", "wide": 3}), 2);
    assert!(told.starts_with("input: the function does not take these parameters"), "{told}");
    let (told, _) = bad(&actum, "missing", json!({}), 1);
    assert!(told.contains("textwrap has no such function"), "{told}");
    let actum = super::actum();
    calling(&actum, "python", "no_such_package", None, &["f"]);
    let (told, result) = bad(&actum, "f", json!({}), 1);
    assert!(told.contains("the package no_such_package is not there"), "{told}");
    assert_eq!(result["status"], "unavailable");
}

#[test]
fn who_may_not_run_the_language_calls_none_of_its_functions() {
    let actum = actum();
    let interface = json!({"language": "python", "package": "subprocess", "function_mapping": {"f": "getoutput"}});
    let files = [
        actum.file("tool.json", tool(|tool| tool["scope"]["commands"] = json!(["rg"])).to_string()),
        actum.file("adapter.json", adapter("F", "sdk", interface, |_| {}).to_string()),
    ]
    .map(|file| file.display().to_string());
    let ended = actum.run(&["tool", "add", &files[0], &files[1], "--json"]);
    assert_eq!(ended.code, 2, "{}", ended.stdout);
    assert!(ended.error()["message"].as_str().unwrap().contains("T may not run \"python3\""), "{}", ended.stderr);
}

#[test]
fn packages_of_python_lie_in_a_folder_of_the_project() {
    let page = json!({"args": ["# Title\n\n- *one*\n"]});
    let html = json!("<h1>Title</h1>\n<ul>\n<li><em>one</em></li>\n</ul>\n");
    let wrapper = "from markdown_it import MarkdownIt\n\ndef render(text):\n    return MarkdownIt().render(text)\n";
    // As `pip install --target packages` puts it there.
    let actum = actum();
    copy(&Servers::find().folder().join("packages"), &actum.path("packages"));
    actum.file("packages/page.py", wrapper);
    calling(&actum, "python", "markdown-it-py", Some("packages/page"), &["render"]);
    good(&actum, "render", page.clone(), html.clone());
    let direct = super::actum();
    copy(&Servers::find().folder().join("packages"), &direct.path("packages"));
    calling(&direct, "python", "mdurl", Some("packages/mdurl"), &["encode"]);
    good(&direct, "encode", json!({"args": ["/a b"]}), json!("/a%20b"));
    // As the page about packages has it.
    let actum = super::actum();
    copy(&Servers::find().folder().join("packages"), &actum.path("packages"));
    calling(&actum, "python", "markdown-it-py", Some("packages/markdown_it.presets"), &["commonmark.make"]);
    let (code, result) = call(&actum, "commonmark_make", &json!({}));
    assert_eq!((code, &result["output"]["options"]["html"]), (0, &json!(true)), "{result:#}");
    // Where only that folder is shown, it is the one that is worked in.
    let actum = super::actum();
    copy(&Servers::find().folder().join("packages"), &actum.path("packages"));
    let interface = json!({"language": "python", "package": "mdurl", "function_mapping": {"encode": "encode"}});
    let shown = tool(|tool| {
        tool["scope"]["commands"] = json!(["python3"]);
        tool["scope"]["filesystem"] = json!(["packages"]);
    });
    register(&actum, &shown, &[adapter("F", "sdk", interface, |_| {})]);
    good(&actum, "encode", json!({"args": ["/a b"]}), json!("/a%20b"));
    // A file of the project does not stand in for what is installed.
    let actum = super::actum();
    actum.file("json.py", "raise SystemExit('not me')\n");
    actum.file("packages/textwrap.py", "def shorten(*_, **__):\n    return 'not me'\n");
    calling(&actum, "python", "textwrap", Some("packages/textwrap"), &["shorten"]);
    good(&actum, "shorten", json!({"text": "one", "width": 9}), json!("one"));
}

#[test]
fn functions_of_python_that_misbehave_do_no_harm() {
    let actum = actum();
    actum.file("odd.py", ODD_PYTHON);
    let functions = ["prints", "raises", "raw", "leaves", "never", "eats", "pries", "writes", "later"];
    calling(&actum, "python", "odd", None, &functions);
    let result = good(&actum, "prints", json!({}), json!("answer"));
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!(""), &json!("more\nhello\n")), "{result:#}");
    good(&actum, "later", json!({"n": 4}), json!({"later": 4}));
    let (told, result) = bad(&actum, "raises", json!({"what": "no such key"}), 1);
    assert_eq!(told, "call: KeyError: 'no such key'");
    assert!(result["stderr"].as_str().unwrap().contains("Traceback"), "{result:#}");
    let (told, _) = bad(&actum, "raw", json!({}), 1);
    assert!(told.starts_with("output: the function's result is no JSON"), "{told}");
    let (told, result) = bad(&actum, "leaves", json!({}), 1);
    assert!(told.contains("ended with code 6 before the function returned"), "{told}");
    assert_eq!(result["exit_code"], 6);
    let (_, result) = bad(&actum, "eats", json!({}), 1);
    assert!(["out_of_memory", "failure", "oom"].contains(&result["status"].as_str().unwrap()), "{result:#}");
    for path in ["/etc/shadow", ".actum/store.db", "/root/.bashrc"] {
        let (told, _) = bad(&actum, "pries", json!({"args": [path]}), 1);
        assert!(told.contains("FileNotFoundError") || told.contains("PermissionError"), "{path}: {told}");
    }
    let (told, _) = bad(&actum, "writes", json!({}), 1);
    assert!(told.contains("Read-only file system") || told.contains("PermissionError"), "{told}");
    assert!(!actum.path("new.txt").exists());
    let short = adapter(
        "F",
        "sdk",
        json!({"language": "python", "package": "odd", "function_mapping": {"never": "never"}}),
        |adapter| {
            adapter["version"] = json!("1.0.1");
            adapter["sandbox_override"] = json!({"timeout_ms": 1_500});
        },
    );
    register(&actum, &caller(), &[short]);
    let (told, result) = bad(&actum, "never", json!({}), 4);
    assert_eq!((told.as_str(), &result["status"]), ("call: the function did not return in time", &json!("timeout")));
}

#[test]
fn functions_of_node_and_of_packages_of_the_project_are_called() {
    let actum = actum();
    calling(&actum, "node", "node:path", None, &["posix.join", "none"]);
    good(&actum, "posix_join", json!({"args": ["a", "..", "b"]}), json!("b"));
    let (told, _) = bad(&actum, "none", json!({}), 1);
    assert!(told.contains("node:path has no such function"), "{told}");
    let actum = super::actum();
    npm_install(&actum, "semver");
    calling(&actum, "node", "semver", None, &["inc", "satisfies"]);
    good(&actum, "inc", json!({"args": ["1.2.3", "minor"]}), json!("1.3.0"));
    good(&actum, "satisfies", json!({"args": ["1.2.3", "^1.0.0"]}), json!(true));
    let actum = super::actum();
    npm_install(&actum, "nanoid");
    calling(&actum, "node", "nanoid", None, &["nanoid"]);
    let (code, result) = call(&actum, "nanoid", &json!({"args": [12]}));
    assert_eq!((code, result["output"].as_str().map(str::len)), (0, Some(12)), "{result:#}");
    let actum = super::actum();
    calling(&actum, "node", "no-such-package", None, &["f"]);
    let (told, result) = bad(&actum, "f", json!({}), 1);
    assert!(told.contains("the package no-such-package is not there"), "{told}");
    assert_eq!(result["status"], "unavailable");
    let actum = super::actum();
    let source = "export const prints = () => { console.log('hello'); return 1; };\n\
        export const throws = () => { throw new RangeError('too far'); };\n\
        export const big = () => 1n;\n";
    actum.file("lib/odd.mjs", source);
    calling(&actum, "node", "odd", Some("./lib/odd.mjs"), &["prints", "throws", "big"]);
    let result = good(&actum, "prints", json!({}), json!(1));
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!(""), &json!("hello\n")), "{result:#}");
    assert_eq!(bad(&actum, "throws", json!({}), 1).0, "call: RangeError: too far");
    let (told, _) = bad(&actum, "big", json!({}), 1);
    assert!(told.starts_with("output: the function's result is no JSON"), "{told}");
}

/// Toolchains lie in the system's folders, or the cell does not have them: then that is what is said.
#[test]
fn languages_that_are_built_say_what_they_need() {
    let actum = actum();
    actum.file("greet/go.mod", "module example.com/greet\n\ngo 1.18\n");
    let source = "package greet\n\nfunc Hello(asked string) (string, error) { return asked, nil }\n";
    actum.file("greet/greet.go", source);
    calling(&actum, "go", "./greet", Some("example.com/greet"), &["Hello"]);
    if ["/usr/bin/go", "/usr/local/bin/go"].iter().any(|path| std::path::Path::new(path).exists()) {
        good(&actum, "Hello", json!({"n": 1}), json!({"n": 1}));
    } else {
        let (told, result) = bad(&actum, "Hello", json!({"n": 1}), 1);
        assert_eq!(told, "call: go is not installed: it is needed in the cell to build functions of Go");
        assert_eq!(result["status"], "unavailable");
    }
    let actum = super::actum();
    actum.file("greet/Cargo.toml", "[package]\nname = \"greet\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    actum.file("greet/src/lib.rs", "pub fn hello(asked: &str) -> String { asked.to_owned() }\n");
    calling(&actum, "rust", "greet", None, &["hello"]);
    if ["/usr/bin/cargo", "/usr/local/bin/cargo"].iter().any(|path| std::path::Path::new(path).exists()) {
        good(&actum, "hello", json!({"n": 1}), json!({"n": 1}));
    } else {
        let (told, _) = bad(&actum, "hello", json!({"n": 1}), 1);
        assert_eq!(told, "call: cargo is not installed: it is needed in the cell to build functions of Rust");
    }
}

#[test]
fn an_ordinary_user_calls_a_function() {
    let actum = actum();
    calling(&actum, "python", "textwrap", None, &["shorten"]);
    own_all(actum.folder(), Who::Nobody);
    let ended = call_as(Who::Nobody, &actum, "shorten", &json!({"text": "one two three", "width": 9}));
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.json()["output"], "one [...]");
}
