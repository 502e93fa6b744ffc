//! Every kind of bad input gets a clear error with a position, and nothing is lost or made.

use actum_testkit::event::{event, signal};
use serde_json::Value;

use super::actum;

/// (what, text, word in the message)
fn documents() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    vec![
        ("truncated", b"{\"a\": [1, 2".to_vec(), "ends too early"),
        ("empty", b"".to_vec(), "empty"),
        ("not JSON", b"hello".to_vec(), "expected"),
        ("trailing text", b"{} x".to_vec(), "trailing"),
        ("invalid UTF-8", b"{\"a\": \"\xff\xfe\"}".to_vec(), "UTF-8"),
        ("lone surrogate", br#"{"a": "\ud83d"}"#.to_vec(), "surrogate"),
        ("deep nesting", "[".repeat(100_000).into_bytes(), "nested deeper"),
        ("duplicate key", b"{\"a\": 1, \"a\": 2}".to_vec(), "duplicate key \"a\""),
        ("huge integer", b"[9007199254740993]".to_vec(), "beyond"),
        ("huger integer", format!("[1{}]", "0".repeat(400)).into_bytes(), "too large"),
        ("huge exponent", b"[1e999]".to_vec(), "too large"),
        ("not a number", b"[NaN]".to_vec(), "expected"),
    ]
}

#[test]
fn canon_names_the_place() {
    let actum = actum();
    for (what, text, word) in documents() {
        let ended = actum.run_with(&["canon", "--json"], &text);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{what}");
        let error = ended.error();
        assert!(error["message"].as_str().unwrap().contains(word), "{what}: {error}");
        assert!(
            error["details"]["line"].as_u64() >= Some(1) && error["details"]["column"].as_u64() >= Some(1),
            "{what}: {error}"
        );
        let text = actum.run_with(&["canon"], &text).stderr;
        assert!(text.starts_with("error[A0101]: ") && text.contains("--> stdin:"), "{what}: {text}");
        assert!(text.len() < 1_000, "{what}: {text}");
    }
}

#[test]
fn append_refuses_each_and_keeps_it_among_the_rejected() {
    let actum = actum();
    let all = documents();
    for (what, text, word) in &all {
        let ended = actum.run_with(&["ledger", "append", "--json"], text);
        assert_eq!(ended.code, 2, "{what}: {ended:?}");
        if *what == "empty" {
            assert_eq!(ended.error()["code"], "INPUT_INVALID");
            continue;
        }
        let line = &ended.json_lines()[0];
        assert_eq!(
            (&line["ok"], &line["error"]["code"]),
            (&Value::from(false), &Value::from("VALIDATION_ERROR")),
            "{what}"
        );
        let violation = &line["error"]["details"]["violations"][0];
        assert!(violation["message"].as_str().unwrap().contains(word), "{what}: {violation}");
        assert_eq!(violation["line"], 1, "{what}");
    }
    let rejected = actum.run(&["ledger", "rejected", "--json"]).json();
    assert_eq!(rejected["rejected"].as_array().unwrap().len(), all.len() - 1);
    assert_eq!(actum.run(&["ledger", "list", "--json"]).json()["entries"].as_array().unwrap().len(), 0);
}

#[test]
fn a_line_of_100_megabytes_is_refused_and_its_neighbours_are_not() {
    let actum = actum();
    let mut input = format!("{}\n", signal("t", "before")).into_bytes();
    input.extend_from_slice(b"{\"padding\": \"");
    input.resize(input.len() + 100_000_000, b'x');
    input.extend_from_slice(b"\"}\n");
    input.extend_from_slice(format!("{}\n", signal("t", "after")).as_bytes());
    let ended = actum.run_with(&["ledger", "append", "--json"], &input);
    let lines = ended.json_lines();
    assert_eq!((ended.code, lines.len()), (2, 3));
    assert_eq!((lines[0]["id"].as_str(), lines[2]["id"].as_str()), (Some("before"), Some("after")));
    let violation = &lines[1]["error"]["details"]["violations"][0];
    assert!(violation["message"].as_str().unwrap().contains("100000015 bytes"), "{violation}");
    assert_eq!((violation["line"].as_u64(), violation["column"].as_u64()), (Some(2), Some((1 << 20) + 1)));
}

#[test]
fn one_bad_line_among_many_is_one_refusal() {
    let actum = actum();
    let mut bad = event("t", "x", 1, "planned");
    bad["payload"]["attempt"] = Value::from(0);
    let lines = [
        signal("t", "signal").to_string(),
        event("t", "x", 1, "planned").to_string(),
        "{\"cut\": ".to_owned(),
        bad.to_string(),
        event("t", "x", 1, "running").to_string(),
    ];
    let ended = actum.run_with(&["ledger", "append", "--json"], lines.join("\n").as_bytes());
    let oks: Vec<_> = ended.json_lines().iter().map(|l| l["ok"].as_bool().unwrap()).collect();
    assert_eq!((ended.code, oks), (2, vec![true, true, false, false, true]));
    let shown = actum.run_with(&["ledger", "append"], lines.join("\n").as_bytes());
    assert!(
        shown
            .stderr
            .contains("error[A0201]: VALIDATION_ERROR: document ends too early\n --> stdin:3:8\n  |\n3 | {\"cut\": \n"),
        "{}",
        shown.stderr
    );
    assert!(shown.stderr.contains("0 recorded, 3 already recorded, 2 refused"), "{}", shown.stderr);
}

#[test]
fn files_and_flags_that_make_no_sense() {
    let actum = actum();
    actum.file("note.txt", "this is not a database, however long it may be ".repeat(100));
    actum.file("list.json", "[1]");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["canon", "nowhere.json"], 2, "cannot read nowhere.json"),
        (&["canon", "."], 2, "cannot read ."),
        (&["contract", "hash", "--config", "list.json"], 2, "expected an object of fields"),
        (&["ledger", "show", "nothing"], 7, "no entry has the id"),
        (&["ledger", "checkpoint"], 7, "the ledger is empty"),
        (&["ledger", "verify", "--tenant", "t"], 7, "has no ledger"),
        (&["ledger", "list", "--limit", "0"], 2, "--limit is 0"),
        (&["ledger", "rejected", "--limit", "18446744073709551615"], 2, "--limit is 18446744073709551615"),
        (&["store", "backup", "no/such/folder/x.db"], 2, "cannot write no/such/folder/x.db"),
        (&["ledger", "list", "--cursor", "x"], 2, "is not a cursor"),
        (&["ledger", "list", "--tenant", ""], 2, "--tenant must not be empty"),
        (&["ledger", "list", "--store", "note.txt"], 2, "is not a SQLite file"),
        (&["ledger", "list", "--store", "mysql://x"], 2, "scheme this program does not know"),
        (&["ledger", "list", "--store", "no/such/folder/x.db"], 2, "does its folder exist"),
        (&["ledger", "list", "--store", "postgres://127.0.0.1:1/x?user=a"], 1, "the store is unavailable"),
        (&["ledger", "verify", "--checkpoint", "list.json"], 2, "has no key"),
        (&["schema", "nothing"], 7, "there are adapter, artifact, compile-job, config, execution"),
        (&["-C", "nowhere", "canon"], 2, "cannot go to nowhere"),
        (&["ledger", "apend"], 2, "error[A0001]: unrecognized subcommand"),
        (&[], 2, "Usage"),
    ];
    for (arguments, code, word) in cases {
        let ended = actum.run(arguments);
        assert_eq!(ended.code, *code, "{arguments:?}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(word), "{arguments:?}: {}", ended.stderr);
    }
    let usage = actum.run(&["ledger", "apend", "--json"]);
    assert_eq!((usage.code, usage.error()["code"].as_str()), (2, Some("USAGE")));
}
