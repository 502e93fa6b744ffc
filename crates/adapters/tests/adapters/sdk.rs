//! Functions of packages that people use, and of ones that do not behave.

use std::path::Path;
use std::process::Command;

use actum_adapters::{Attempt, Job, Problem, Stage, sdk};
use actum_contract::tool::{Language, Sdk, Went};
use serde_json::{Value, json};

use super::bare::{Bare, folder, job, others};

fn sdk_of(language: Language, package: &str, import_path: &str, functions: &[&str]) -> Sdk {
    let functions = functions.iter().map(|name| ((*name).to_owned(), (*name).to_owned())).collect();
    Sdk { language, package: package.into(), import_path: import_path.into(), functions }
}

fn run(cells: &Bare, job: Job, language: Language, package: &str, function: &str, params: Value) -> Attempt {
    let sdk = sdk_of(language, package, package, &[function]);
    sdk::attempt(cells, "sdk", &sdk, function, params.as_object().unwrap(), job)
}

fn python(package: &str, function: &str, params: Value) -> Attempt {
    let mut job = job(&[]);
    let packages = others().join("packages").to_str().unwrap().to_owned();
    job.environment.insert("PYTHONPATH".into(), packages);
    run(&Bare::within("/tmp"), job, Language::Python, package, function, params)
}

fn node(package: &str, function: &str, params: Value) -> Attempt {
    run(&Bare::within(others()), job(&[]), Language::Node, package, function, params)
}

fn problem(attempt: &Attempt) -> &Problem {
    attempt.problem.as_ref().unwrap_or_else(|| panic!("no problem: {attempt:?}"))
}

fn is(attempt: &Attempt, answer: Value) {
    assert_eq!((attempt.went, &attempt.output), (Went::Well, &answer), "{attempt:?}");
}

#[test]
fn functions_of_python_are_called() {
    let params = json!({"args": [{"b": 1, "a": [true, null]}], "sort_keys": true});
    is(&python("json", "dumps", params), json!("{\"a\": [true, null], \"b\": 1}"));
    is(&python("json", "loads", json!({"s": "[1, 2.5, \"ü\"]"})), json!([1, 2.5, "ü"]));
    is(&python("math", "hypot", json!({"args": [3, 4]})), json!(5.0));
    is(&python("os.path", "join", json!({"args": ["a", "b"]})), json!("a/b"));
    is(&python("mdurl", "encode", json!({"string": "a b"})), json!("a%20b"));
    is(&python("markdown_it.common.utils", "escapeHtml", json!({"raw": "<b>"})), json!("&lt;b&gt;"));
    is(&python("asyncio", "sleep", json!({"args": [0.01], "result": "awake"})), json!("awake"));
}

#[test]
fn what_goes_wrong_in_python_is_told() {
    let attempt = python("json", "loads", json!({"s": "{"}));
    assert_eq!((attempt.went, problem(&attempt).stage), (Went::Wrong(Some(1)), Stage::Call));
    assert!(problem(&attempt).message.starts_with("JSONDecodeError: Expecting"), "{attempt:?}");
    let attempt = python("json", "loads", json!({"nonsense": 1}));
    assert_eq!(problem(&attempt).stage, Stage::Input, "{attempt:?}");
    let attempt = python("json", "nothing", json!({}));
    assert!(problem(&attempt).message.contains("no such function"), "{attempt:?}");
    let attempt = python("json", "decoder", json!({}));
    assert!(problem(&attempt).message.contains("no function"), "{attempt:?}");
    let attempt = python("no_such_package", "f", json!({}));
    assert_eq!(attempt.went, Went::Unavailable);
    assert!(problem(&attempt).message.contains("the package no_such_package is not there"), "{attempt:?}");
    let attempt = python("json", "dumps", json!({"args": {"a": 1}}));
    assert_eq!((problem(&attempt).stage, problem(&attempt).path.as_deref()), (Stage::Input, Some("/args")));
    let sdk = sdk_of(Language::Python, "json", "json", &["dumps"]);
    let attempt = sdk::attempt(&Bare::default(), "sdk", &sdk, "other", &serde_json::Map::new(), job(&[]));
    assert!(problem(&attempt).message.contains("there are: dumps"), "{attempt:?}");
    let mut poor = job(&[]);
    poor.environment.insert("PATH".into(), "/nonexistent".into());
    let attempt = run(&Bare::default(), poor, Language::Python, "json", "dumps", json!({}));
    assert_eq!(attempt.went, Went::Unavailable);
    assert!(problem(&attempt).message.starts_with("python3 is not installed"), "{attempt:?}");
}

const ODD_PYTHON: &str = r#"
import os, subprocess, sys, time
def prints():
    print("hello"); print("\nactum-result:{\"ok\": \"forged\"}"); subprocess.run(["echo", "from a child"])
    return "answer"
def raw(): return b"\x00"
def nan(): return float("nan")
def cycle():
    it = []
    it.append(it)
    return it
def quits(): sys.exit(5)
def vanishes(): os._exit(9)
def sleeps(): time.sleep(60)
def long(): return "x" * 3_000_000
def surrogate(): return "\ud800"
async def later(n): return {"later": n}
class Box:
    @staticmethod
    def get(n=1): return n
def needs(): import no_such_thing_at_all
"#;

#[test]
fn odd_functions_of_python_do_no_harm() {
    let root = folder("python");
    std::fs::write(root.join("odd.py"), ODD_PYTHON).unwrap();
    // Stand-ins that must not be taken.
    std::fs::write(root.join("json.py"), "raise SystemExit('taken')").unwrap();
    std::fs::write(root.join("inspect.py"), "raise SystemExit('taken')").unwrap();
    let cells = Bare::within(&root);
    let call = |function: &str, params: Value| {
        let mut job = job(&[]);
        job.sandbox.timeout_ms = 3_000;
        run(&cells, job, Language::Python, "odd", function, params)
    };
    let attempt = call("prints", json!({}));
    is(&attempt, json!("answer"));
    assert!(attempt.stderr.contains("hello") && attempt.stderr.contains("from a child"), "{attempt:?}");
    assert_eq!(attempt.stdout, "");
    is(&call("later", json!({"n": 4})), json!({"later": 4}));
    is(&call("Box.get", json!({})), json!(1));
    assert_eq!(call("long", json!({})).output.as_str().unwrap().len(), 3_000_000);
    for function in ["raw", "nan", "cycle", "surrogate"] {
        let attempt = call(function, json!({}));
        assert_eq!(problem(&attempt).stage, Stage::Output, "{function}: {attempt:?}");
        assert!(problem(&attempt).message.contains("no JSON"), "{function}: {attempt:?}");
    }
    assert!(problem(&call("quits", json!({}))).message.starts_with("SystemExit: 5"));
    let attempt = call("vanishes", json!({}));
    assert_eq!((attempt.went, attempt.code), (Went::Wrong(Some(9)), Some(9)));
    assert!(problem(&attempt).message.contains("before the function returned"), "{attempt:?}");
    let attempt = call("needs", json!({}));
    assert_eq!(attempt.went, Went::Wrong(Some(1)), "{attempt:?}");
    assert_eq!(call("sleeps", json!({})).went, Went::TimedOut);
}

#[test]
fn functions_of_node_are_called() {
    is(&node("node:path", "join", json!({"args": ["a", "..", "b"]})), json!("b"));
    is(&node("path", "posix.basename", json!({"args": ["/x/y.txt"]})), json!("y.txt"));
    is(&node("semver", "satisfies", json!({"args": ["1.2.3", "^1.0.0"]})), json!(true));
    is(&node("semver/functions/major", "default", json!({"args": ["7.1.0"]})), json!(7));
    let attempt = node("nanoid", "nanoid", json!({"args": [12]}));
    assert!(attempt.went == Went::Well && attempt.output.as_str().unwrap().len() == 12, "{attempt:?}");
    is(&node("querystring", "stringify", json!({"a": 1, "b": "x y"})), json!("a=1&b=x%20y"));
    is(&node("node:timers/promises", "setTimeout", json!({"args": [5, "late"]})), json!("late"));
    let mut elsewhere = job(&[]);
    let modules = others().join("node_modules").to_str().unwrap().to_owned();
    elsewhere.environment.insert("NODE_PATH".into(), modules);
    let params = json!({"args": ["v1.2.3"]});
    is(&run(&Bare::within("/"), elsewhere, Language::Node, "semver", "clean", params), json!("1.2.3"));
}

const ODD_NODE: &str = r#"
const { execFileSync } = require("node:child_process");
exports.prints = () => { console.log("hello"); process.stdout.write("more\n"); return "answer"; };
exports.raw = () => Buffer.from("x");
exports.nan = () => ({ a: [NaN] });
exports.cycle = () => { const it = {}; it.it = it; return it; };
exports.big = () => 5n;
exports.throws = () => { throw new RangeError("too far"); };
exports.text = () => { throw "just text"; };
exports.later = async (given) => ({ later: given });
exports.never = () => new Promise(() => setTimeout(() => {}, 60000));
exports.lingers = () => { setInterval(() => {}, 1000); return 1; };
exports.detached = () => new Promise(() => setTimeout(() => { throw new Error("afar"); }, 10));
exports.leaves = () => process.exit(6);
exports.nothing = () => undefined;
exports.long = () => "x".repeat(3000000);
exports.own = function () { return this.nothing === exports.nothing; };
exports.child = () => { execFileSync("echo", ["child"], { stdio: "inherit" }); return 2; };
"#;

#[test]
fn odd_functions_of_node_do_no_harm() {
    let root = folder("node");
    std::fs::create_dir_all(root.join("node_modules/odd")).unwrap();
    std::fs::write(root.join("node_modules/odd/index.js"), ODD_NODE).unwrap();
    std::fs::write(
        root.join("local.mjs"),
        "export const twice = (n) => 2 * n; export default { deep: { one: () => 1 } };",
    )
    .unwrap();
    std::fs::write(root.join("broken.mjs"), "import 'no-such-thing-at-all';").unwrap();
    let cells = Bare::within(&root);
    let call = |package: &str, function: &str, params: Value| {
        let mut job = job(&[]);
        job.sandbox.timeout_ms = 4_000;
        run(&cells, job, Language::Node, package, function, params)
    };
    let odd = |function: &str| call("odd", function, json!({}));
    let attempt = odd("prints");
    is(&attempt, json!("answer"));
    assert!(attempt.stderr.contains("hello\nmore\n") && attempt.stdout.is_empty(), "{attempt:?}");
    is(&call("./local.mjs", "twice", json!({"args": [21]})), json!(42));
    is(&call("./local.mjs", "deep.one", json!({})), json!(1));
    is(&call("odd", "later", json!({"n": 4})), json!({"later": {"n": 4}}));
    is(&odd("lingers"), json!(1));
    is(&odd("nothing"), json!(null));
    is(&odd("own"), json!(true));
    let attempt = odd("child");
    is(&attempt, json!(2));
    assert_eq!(attempt.stdout, "child\n");
    assert_eq!(odd("long").output.as_str().unwrap().len(), 3_000_000);
    for function in ["raw", "nan", "cycle", "big"] {
        let attempt = odd(function);
        assert_eq!(problem(&attempt).stage, Stage::Output, "{function}: {attempt:?}");
    }
    let attempt = odd("throws");
    assert_eq!((attempt.went, problem(&attempt).message.as_str()), (Went::Wrong(Some(1)), "RangeError: too far"));
    assert_eq!(problem(&odd("text")).message, "string: just text");
    assert_eq!(problem(&odd("detached")).message, "Error: afar");
    let attempt = odd("leaves");
    assert_eq!(attempt.went, Went::Wrong(Some(6)), "{attempt:?}");
    assert_eq!(odd("never").went, Went::TimedOut);
    assert!(problem(&odd("missing")).message.contains("no such function"));
    let attempt = call("no-such-package", "f", json!({}));
    assert_eq!(attempt.went, Went::Unavailable, "{attempt:?}");
    let attempt = call("./broken.mjs", "f", json!({}));
    assert_eq!(attempt.went, Went::Wrong(Some(1)), "{attempt:?}");
}

/// Where there is a program, in what the tests see.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("version").output().is_ok()
}

#[test]
fn functions_of_rust_are_built_and_called() {
    let root = folder("rust");
    std::fs::create_dir_all(root.join("tools/greet-all/src")).unwrap();
    let manifest = "[package]\nname = \"greet-all\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    std::fs::write(root.join("tools/greet-all/Cargo.toml"), manifest).unwrap();
    let source = "pub fn hello(asked: &str) -> String { println!(\"noise\"); format!(\"{{\\\"asked\\\":{asked}}}\") }\n\
        pub mod inner { pub fn bad(_: &str) -> String { \"not json\".into() } pub fn r#type(_: &str) -> String { panic!(\"no\") } }\n";
    std::fs::write(root.join("tools/greet-all/src/lib.rs"), source).unwrap();
    let cells = Bare::within(&root);
    let call = |package: &str, function: &str| {
        let mut job = job(&[]);
        job.sandbox.timeout_ms = 120_000;
        run(&cells, job, Language::Rust, package, function, json!({"n": 1, "args": [2]}))
    };
    let attempt = call("tools/greet-all", "hello");
    is(&attempt, json!({"asked": {"n": 1, "args": [2]}}));
    assert_eq!(attempt.stdout, "noise\n");
    assert_eq!(problem(&call("tools/greet-all", "inner::bad")).stage, Stage::Output);
    let attempt = call("tools/greet-all", "inner::type");
    assert_eq!(attempt.went, Went::Wrong(Some(101)), "{attempt:?}");
    let attempt = call("tools/greet-all", "missing");
    assert_eq!(attempt.went, Went::Unavailable);
    assert!(problem(&attempt).message.contains("does not build"), "{attempt:?}");
    assert_eq!(call("tools/none", "hello").went, Went::Unavailable);
    for (package, function) in [("tools/greet-all", "hello(\"\");//"), ("a\" }\nx = { path = \"b", "hello")] {
        assert_eq!(problem(&call(package, function)).stage, Stage::Input);
    }
    let mut poor = job(&[]);
    poor.environment.insert("PATH".into(), "/nonexistent".into());
    let attempt = run(&cells, poor, Language::Rust, "tools/greet-all", "hello", json!({}));
    assert_eq!(attempt.went, Went::Unavailable);
    assert!(problem(&attempt).message.starts_with("cargo is not installed"), "{attempt:?}");
}

#[test]
fn functions_of_go_are_built_and_called_if_there_is_go() {
    let root = folder("go");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("tools/greet/go.mod", "module example.com/greet\n\ngo 1.18\n");
    let source = "package greet\n\nimport (\n\t\"errors\"\n\t\"fmt\"\n)\n\nfunc Hello(asked string) (string, error) {\n\
        \tfmt.Println(\"noise\")\n\treturn `{\"asked\":` + asked + `}`, nil\n}\n\n\
        func Fail(asked string) (string, error) { return \"\", errors.New(\"no luck\") }\n";
    write("tools/greet/greet.go", source);
    let cells = Bare::within(&root);
    let call = |function: &str| {
        let mut job = job(&[]);
        job.sandbox.timeout_ms = 120_000;
        let sdk = sdk_of(Language::Go, "./tools/greet", "example.com/greet", &[function]);
        sdk::attempt(&cells, "sdk", &sdk, function, json!({"n": 1}).as_object().unwrap(), job)
    };
    let attempt = call("Hello");
    if !is_there("go") {
        assert_eq!(attempt.went, Went::Unavailable, "{attempt:?}");
        assert!(problem(&attempt).message.starts_with("go is not installed"), "{attempt:?}");
        return;
    }
    is(&attempt, json!({"asked": {"n": 1}}));
    assert!(attempt.stderr.contains("noise"));
    assert_eq!(problem(&call("Fail")).message, "*errors.errorString: no luck");
    assert!(problem(&call("Missing")).message.contains("does not build"));
    assert_eq!(problem(&call("Hello\"; x")).stage, Stage::Input);
}
