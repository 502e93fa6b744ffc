//! Words that were typed, as requests; and back to words, as the server reads them.

use std::ffi::OsString;
use std::path::PathBuf;

use actum_testkit::folder::Folder;
use clap::CommandFactory as _;

use super::*;
use crate::args::Parsed;
use crate::face::Given;
use crate::face::words::{self, Drawer};

fn typed(words: &[&str]) -> ArgMatches {
    Parsed::command().try_get_matches_from([&["actum"], words].concat()).unwrap()
}

fn sent(words: &[&str]) -> (String, Option<(&'static str, String)>) {
    let request = of(&typed(words)).unwrap_or_else(|failure| panic!("{words:?}: {}", failure.to_text()));
    let content = request.content.as_ref().map(|(kind, bytes)| (*kind, String::from_utf8(bytes.clone()).unwrap()));
    (format!("{} {}", request.form.route.method.word(), request.target()), content)
}

#[track_caller]
fn refused(words: &[&str]) -> String {
    of(&typed(words)).unwrap_err().to_text()
}

#[test]
fn words_become_path_query_and_content() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.file(name, text).display().to_string();
    let work = file("work.yaml", "items: []\n");
    let (to, content) = sent(&["run", &work, "--detach", "--set", "a=1", "--set", "b=2", "--dry-run"]);
    assert_eq!(to, "POST /v1/runs?set=a%3D1&set=b%3D2&dry_run=true");
    assert_eq!(content, Some((YAML, "items: []\n".to_owned())));
    assert_eq!(sent(&["list"]), ("GET /v1/runs".to_owned(), None));
    assert_eq!(sent(&["list", "--limit", "7"]).0, "GET /v1/runs?limit=7");
    assert_eq!(sent(&["status"]).0, "GET /v1/status");
    assert_eq!(sent(&["status", "a/b c?"]).0, "GET /v1/runs/a%2Fb%20c%3F");
    assert_eq!(sent(&["resume", "r", "--detach"]).0, "POST /v1/runs/r/resume");
    assert_eq!(sent(&["resume", "r", "--detach", "--fork"]).0, "POST /v1/runs/r/fork");
    assert_eq!(sent(&["compile", "--list"]).0, "GET /v1/compile-reports");
    let (to, content) = sent(&["pointer", "set", "n/S.v1", "--primary", "baseline", "--reason", "x", "--if", "3"]);
    assert_eq!(to, "POST /v1/pointers/n%2FS.v1");
    let fields: Value = serde_json::from_str(&content.unwrap().1).unwrap();
    assert_eq!(fields, json!({"primary": "baseline", "reason": "x", "if": 3}));
    // Files by what they are.
    let json = file("a.json", "{\"a\": 1}\n");
    assert_eq!(sent(&["signature", "add", &json]).1, Some((JSON, "{\"a\": 1}\n".to_owned())));
    assert_eq!(sent(&["signature", "add", &file("a.toml", "a = 1")]).1, Some((JSON, "{\"a\":1}".to_owned())));
    assert_eq!(sent(&["signature", "add", &file("plain", "a: 1")]).1, Some((YAML, "a: 1".to_owned())));
    assert_eq!(sent(&["ledger", "append", &json]).1.unwrap().0, JSON_LINES);
    let fields = |words: &[&str]| serde_json::from_str::<Value>(&sent(words).1.unwrap().1).unwrap();
    assert_eq!(fields(&["predict", "n/S.v1", "--input", &json])["input"], json!({"a": 1}));
    let text = file("a.yml", "a: 1");
    assert_eq!(fields(&["predict", "n/S.v1", "--input", &text])["input"], "a: 1");
}

#[test]
fn what_no_route_stands_for_is_refused_with_what_to_do() {
    let folder = Folder::new();
    let file = |name: &str, text: &[u8]| folder.file(name, text).display().to_string();
    let work = file("work.yaml", b"items: []\n");
    for (words, said) in [
        (vec!["store", "rebuild"], "`actum store rebuild` does not work over a server"),
        (vec!["worker"], "`actum worker` does not work over a server"),
        (vec!["signature", "add", &work, &work], "one at a time"),
        (vec!["verify", "a", "b"], "one at a time"),
        (
            vec!["pointer", "set", "n/S.v1", "--primary", "baseline", "--reason", "r", "--actor", "root"],
            "whose token it is",
        ),
    ] {
        let told = refused(&words);
        assert!(told.contains(said) && told.contains("leave out --server"), "{words:?}: {told}");
    }
    for (words, said) in [
        (vec!["status", ""], "cannot be \"\""),
        (vec!["status", ".."], "cannot be \"..\""),
        (vec!["signature", "add", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (vec!["signature", "add", folder.path().to_str().unwrap()], "cannot read"),
        (vec!["signature", "add", &file("empty.yaml", b"")], "is empty"),
        (vec!["signature", "add", &file("bad.json", b"{")], "bad.json"),
        (vec!["signature", "add", &file("big.yaml", &vec![b' '; BODY_BYTES_MAX + 1])], "is larger than"),
        (vec!["predict", "n/S.v1", "--input", &file("latin.yaml", b"\xe9")], "is not UTF-8"),
    ] {
        let told = refused(&words);
        assert!(told.contains(said), "{words:?}: {told}");
    }
}

/// Something to give for an argument.
fn made_up(shape: &Shape, text: &str, file: &str) -> Vec<String> {
    let one = match shape.kind {
        Kind::Switch => return vec![String::new()],
        Kind::Whole { .. } => "3".to_owned(),
        Kind::Number => "0.5".to_owned(),
        Kind::Amount => "2.50usd".to_owned(),
        Kind::Json => "{\"a\":[1,\"é\"]}".to_owned(),
        Kind::WordOrJson => "{\"field\":\"a\"}".to_owned(),
        Kind::File => return vec![file.to_owned()],
        Kind::Text => {
            let words = shape.arg.get_possible_values();
            words.first().map_or_else(|| text.to_owned(), |word| word.get_name().to_owned())
        }
    };
    if shape.many && shape.place != Place::Path { vec![one.clone(), one] } else { vec![one] }
}

fn command_line(form: &Form, shapes: &[&Shape], text: &str, file: &str) -> Vec<OsString> {
    let own =
        std::iter::once("actum").chain(form.route.command.iter().copied()).chain(form.route.fixed.iter().copied());
    let mut words: Vec<String> = own.map(str::to_owned).collect();
    for shape in shapes {
        let Some(long) = shape.arg.get_long() else { continue };
        let word = |value: String| match shape.kind {
            Kind::Switch => format!("--{long}"),
            _ => format!("--{long}={value}"),
        };
        words.extend(made_up(shape, text, file).into_iter().map(word));
    }
    words.push("--".to_owned());
    for name in form.positionals() {
        let shape = shapes.iter().find(|shape| shape.name == name);
        words.extend(shape.into_iter().flat_map(|shape| made_up(shape, text, file)));
    }
    words.into_iter().map(OsString::from).collect()
}

/// What was meant: each argument that somebody gave, files by what is in them.
fn meant(form: &Form, matches: &ArgMatches) -> Vec<(String, Vec<Value>)> {
    let (_, leaf) = leaf(matches);
    let args = form.leaf.get_arguments().filter(|arg| !arg.is_global_set() && arg.get_id() != ACTOR);
    let given = args.filter(|arg| is_typed(leaf, arg)).map(|arg| {
        let is_file = form.shapes.iter().any(|shape| arg.get_id() == shape.name && shape.kind == Kind::File);
        let read = |value: &OsStr| match is_file {
            true => serde_json::from_slice(&std::fs::read(PathBuf::from(value)).unwrap()).unwrap(),
            false => Value::from(value.to_str().unwrap()),
        };
        (arg.get_id().to_string(), raw(leaf, arg).into_iter().map(read).collect())
    });
    given.collect()
}

#[test]
fn the_server_reads_what_was_typed() {
    let folder = Folder::new();
    let file = folder.file("document.json", "{\"a\": [1, \"é\"]}").display().to_string();
    for form in forms() {
        let is_needed =
            |shape: &&Shape| matches!(shape.place, Place::Path | Place::Content) || shape.arg.is_required_set();
        let (base, more): (Vec<&Shape>, Vec<&Shape>) = form.shapes.iter().partition(|shape| is_needed(shape));
        let mut cases = vec![base.clone(), form.shapes.iter().collect()];
        for one in &more {
            let with = form.shapes.iter().filter(|shape| is_needed(shape) || shape.name == one.name);
            cases.push(with.collect());
            // Some arguments need others, some exclude them.
            for other in &more {
                let with = |shape: &&Shape| is_needed(shape) || shape.name == one.name || shape.name == other.name;
                cases.push(form.shapes.iter().filter(with).collect());
                let without = |shape: &&Shape| shape.name != one.name && shape.name != other.name;
                cases.push(form.shapes.iter().filter(without).collect());
            }
        }
        let (mut tried, mut seen) = (0, std::collections::BTreeSet::new());
        for shapes in cases {
            let texts = ["a b/é?&=+%#", "a=1", "1h", "1"];
            let lines = texts.map(|text| command_line(form, &shapes, text, &file));
            let parsed = lines.iter().find_map(|words| form.parser.clone().try_get_matches_from(words).ok());
            // Two that exclude each other.
            let Some(matches) = parsed else { continue };
            tried += 1;
            seen.extend(shapes.iter().map(|shape| shape.name));
            let request = of(&matches).unwrap_or_else(|f| panic!("{}: {}", form.route.path, f.to_text()));
            let (kind, content) = request.content.clone().unwrap_or_default();
            let given = Given {
                path: request.path.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
                query: request.query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
                content,
                is_json: kind == JSON,
                wants_text: false,
                trace: None,
                once: None,
                request_id: "r".to_owned(),
            };
            let mut drawer = Drawer::default();
            let words = words::of(request.form, &given, "ann", &mut drawer);
            let words = words.unwrap_or_else(|f| panic!("{}: {}", form.route.path, f.to_text()));
            let again = request.form.parser.clone().try_get_matches_from(words).unwrap();
            assert_eq!(meant(form, &again), meant(form, &matches), "{} {}", form.route.path, request.target());
        }
        assert!(tried > 0, "{}", form.route.path);
        assert_eq!(seen.len(), form.shapes.len(), "{} {seen:?}", form.route.path);
    }
}
