//! What was written by the program of before, and what is written by one to come: the first is read as if it had been
//! written today, the second is refused by name.

use std::fs;

use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_store::{Location, Older};
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Upstream, Usage};
use jiff::Timestamp;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::actum;
use super::artifact::ID;
use super::pointer::{moved, pointed};
use super::predict::demo;
use super::run::asked;

/// A store as it was before there were pointers.
const BEFORE: &str = include_str!("fixtures/store.v4.sql");

/// What the program that wrote it said of its entries.
const ROOT: &str = "13 entries, 0 checkpoints, root f49ae6c5eb3d8f079b16c1188840597ed70e1c4d1c10022fcc122ea032d25261";

const SIGNATURE: &str = "examples/Sentiment.v1";
const ANSWERED: &str = "pred_b1e05e48be7e896e6f2960f1";
const DENIED: &str = "pred_64b8e27ab5859e256b6e1436";
const PAID: &str = "pred_0f356fc7f6d681bb60144ca6";
const TEXT: &str = "text=I love this wonderful film.";

const SENTENCE: &str = "is the newest that is known: use a newer actum";

/// A project with that store, and with the answers that its predictions were given.
fn before() -> Program {
    let actum = actum();
    for name in ["actum.toml", "answers.json"] {
        let text = fs::read(format!("{}/../../examples/predict/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        actum.file(name, text);
    }
    fs::create_dir_all(actum.path(".actum")).unwrap();
    database(&actum).execute_batch(BEFORE).unwrap();
    actum
}

fn database(actum: &Program) -> Connection {
    Connection::open(actum.path(".actum/actum.db")).unwrap()
}

/// Puts an entry on record, as a program to come might.
fn append(actum: &Program, kind: &str, id: &str, payload: &Value) {
    let document = json!({
        "id": id, "tenantId": "local", "module": "predict", "source": "actum", "type": kind, "payload": payload,
    });
    let place = Location::Sqlite(actum.path(".actum/actum.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcome = runtime.block_on(async {
        let store = actum_store::open(&place, Older::Migrate).await.unwrap();
        store.append(draft::read_value(document, Timestamp::now())).await.unwrap()
    });
    assert!(matches!(outcome, Outcome::Created { .. }), "{outcome:?}");
}

/// The code and the text of why a command was refused.
fn refused(actum: &Program, arguments: &[&str]) -> (String, String) {
    let ended = actum.run(&[arguments, &["--json"]].concat());
    assert_ne!(ended.code, 0, "{arguments:?}: {}", ended.stdout);
    let error = ended.error();
    (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[test]
fn an_older_store_is_read_as_if_it_were_of_today() {
    let actum = before();
    assert!(actum.run(&["ledger", "verify"]).ok().contains(ROOT));
    assert_eq!(database(&actum).query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)).unwrap(), 8);
    let checked = actum.run(&["store", "check"]);
    assert_eq!(checked.code, 0, "{}", checked.stdout);
    assert!(checked.stdout.contains("0 rows, equal to what the journal yields"), "{}", checked.stdout);

    let listed = asked(&actum, &["trace", "list", "--json"]);
    let receipts = listed["receipts"].as_array().unwrap();
    assert_eq!(receipts.len(), 8);
    for receipt in receipts {
        assert_eq!(receipt["receipt_version"], 2, "{receipt}");
        assert_eq!(actum_predict::receipt::check(receipt), Ok(()), "it is still the one its id names");
        let id = receipt["receipt_id"].as_str().unwrap();
        let explained = asked(&actum, &["policy", "explain", id, "--json"]);
        assert_eq!(explained["identical"], true, "{explained}");
    }
    let shown = |id: &str| asked(&actum, &["trace", "show", id, "--json"]);
    assert_eq!(shown(ANSWERED)["calls"].as_array().unwrap().len(), 1);
    assert_eq!(shown(ANSWERED)["receipt"]["compiled_id"], format!("catalog:{SIGNATURE}:direct.v1"));
    assert_eq!(shown(DENIED)["receipt"]["status"], "denied");
    assert_eq!(shown(PAID)["receipt"]["budget"]["spent"], 52);
    let permissions = asked(&actum, &["spend", "list", "--json"]);
    assert_eq!(permissions["authorizations"][0]["spent"], 52, "{permissions}");
    assert!(actum.run(&["tool", "list"]).ok().contains("ripgrep"));
    assert!(actum.run(&["signature", "show", SIGNATURE]).ok().contains("Sentiment"));
}

#[test]
fn an_older_store_is_worked_with() {
    let actum = before();
    // Traces did not hold what was asked.
    let (code, why) = refused(&actum, &["dataset", "export", "--signature", SIGNATURE]);
    assert!(code == "INPUT_INVALID" && why.contains("no_input 2"), "{code}: {why}");
    // What somebody says of an answer can be said later; what was asked stays unknown.
    actum.run(&["dataset", "label", ANSWERED, "--expected", r#"{"sentiment": "positive"}"#]).ok();
    let (_, why) = refused(&actum, &["dataset", "export", "--signature", SIGNATURE, "--labelled"]);
    assert!(why.contains("no_input 1, not_labelled 1"), "{why}");

    let made = asked(&actum, &["predict", SIGNATURE, "--param", TEXT, "--json"]);
    assert_eq!(made["output"]["sentiment"], "positive");
    let exported = asked(&actum, &["dataset", "export", "--signature", SIGNATURE, "--json"]);
    assert_eq!((&exported["counts"]["total"], &exported["skipped_reasons"]["no_input"]), (&json!(1), &json!(2)));

    actum.run(&["pointer", "set", SIGNATURE, "--primary", "baseline", "--reason", "as it is"]).ok();
    let pointed = asked(&actum, &["predict", SIGNATURE, "--param", TEXT, "--json"]);
    assert_eq!(pointed["artifact"]["pointer_revision"], 1, "{pointed}");
    assert_eq!(pointed["output"], made["output"]);
    let checked = actum.run(&["store", "check"]);
    assert!(checked.code == 0 && checked.stdout.contains("pointer      1 row, equal"), "{}", checked.stdout);
}

#[test]
fn an_older_program_is_told_that_the_store_is_newer() {
    let actum = before();
    actum.run(&["ledger", "verify"]).ok();
    database(&actum).execute_batch("PRAGMA user_version = 9").unwrap();
    let (code, why) = refused(&actum, &["ledger", "verify"]);
    assert!(code == "STORE_UNUSABLE" && why.contains('9'), "{code}: {why}");
}

#[test]
fn payloads_that_are_newer_are_refused_by_name() {
    let export = ["dataset", "export", "--signature", SIGNATURE];
    let cases: [(&str, Value, &[&str]); 8] = [
        ("signature_catalog", json!({"catalog_version": 2}), &["signature", "list"]),
        ("prediction_receipt", json!({"receipt": {"receipt_version": 3}}), &["trace", "list"]),
        ("prediction_receipt", json!({"receipt": {"receipt_version": 3}}), &export),
        ("compiled_artifact", json!({"version": 2}), &["artifact", "list"]),
        ("prediction_label", json!({"version": 2}), &export),
        ("prediction_dataset", json!({"version": 2}), &["dataset", "list"]),
        ("compile_report", json!({"version": 2}), &["compile", "--list"]),
        ("eval_report", json!({"version": 2}), &["eval", "--show", "eval_00000000000000000000"]),
    ];
    for (kind, payload, arguments) in cases {
        let actum = before();
        append(&actum, kind, "rollout:eval:eval_00000000000000000000", &payload);
        let (code, why) = refused(&actum, arguments);
        assert_eq!(code, "STORE_UNUSABLE", "{kind}: {why}");
        assert!(why.contains(&format!("a {kind} of version ")) && why.contains(SENTENCE), "{kind}: {why}");
        // What is on record is still what was recorded.
        actum.run(&["ledger", "verify"]).ok();
    }
}

#[test]
fn receipts_that_are_newer_are_not_explained() {
    let actum = before();
    let mut payload = asked(&actum, &["trace", "show", DENIED, "--json"]);
    payload["receipt"]["policy"]["reason_codes_version"] = json!("runtime-policy-reasons.v2");
    append(&actum, "prediction_receipt", "prediction:pred_v2", &payload);
    let (code, why) = refused(&actum, &["policy", "explain", "pred_v2"]);
    let told = "it was decided by the reasons \"runtime-policy-reasons.v2\", and runtime-policy-reasons.v1 are those that \
                this program knows";
    assert_eq!((code.as_str(), why.as_str()), ("STORE_UNUSABLE", told));
    // It can be looked at all the same.
    actum.run(&["trace", "show", "pred_v2"]).ok();

    payload["receipt"]["receipt_version"] = json!(3);
    append(&actum, "prediction_receipt", "prediction:pred_v3", &payload);
    for arguments in [["policy", "explain", "pred_v3"], ["trace", "show", "pred_v3"]] {
        let (code, why) = refused(&actum, &arguments);
        assert_eq!((code.as_str(), why.contains(SENTENCE)), ("STORE_UNUSABLE", true), "{why}");
    }
}

/// No pointer of a later version can be put on record by this program: its row and its entry are altered by hand.
#[test]
fn pointers_that_are_newer_are_refused_by_name() {
    let actum = before();
    let mut set = vec!["pointer", "set", SIGNATURE, "--primary", "baseline", "--reason", "as it is"];
    actum.run(&set).ok();
    let newer = |table: &str, filter: &str| {
        let sql = format!(
            "UPDATE {table} SET body = CAST(replace(CAST(body AS TEXT), '\"version\":1', '\"version\":2') AS {}) {filter}",
            if table == "pointer" { "TEXT" } else { "BLOB" }
        );
        assert_eq!(database(&actum).execute(&sql, []).unwrap(), 1);
    };
    newer("ledger_entry", "WHERE type = 'pointer_change'");
    let (code, why) = refused(&actum, &["pointer", "history", SIGNATURE]);
    assert_eq!((code.as_str(), why.contains(SENTENCE)), ("STORE_UNUSABLE", true), "{why}");
    newer("pointer", "");
    set.extend(["--key-scope", "user"]);
    for arguments in [&["pointer", "show", SIGNATURE][..], &["predict", SIGNATURE, "--param", TEXT], &set] {
        let (code, why) = refused(&actum, arguments);
        assert_eq!(code, "STORE_UNUSABLE", "{why}");
        assert!(why.contains("a pointer_change of version 2 was found") && why.contains(SENTENCE), "{why}");
    }
}

/// Long traces lie beside the store, and somebody may have cleared them away: of those answers nothing is known, and the
/// canary goes on being tried.
#[test]
fn a_guard_does_without_traces_that_are_gone() {
    let answer = Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6));
    let upstream = Upstream::start(answer);
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a]);
    let guard = json!({"samples": 2, "bounds": [{"metric": "score", "min": 0.5}]});
    actum.file("guard.json", guard.to_string());
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100", "--guard", "guard.json"]);
    let text = format!("text={}", "x".repeat(8 << 10));
    let predicted = || asked(&actum, &["predict", ID, "--param", &text, "--json"]);
    let receipt = predicted()["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    fs::remove_dir_all(actum.path(".actum/traces")).unwrap();
    actum.run(&["dataset", "label", &receipt, "--expected", "{\"label\": \"positive\"}"]).ok();
    let judged = asked(&actum, &["pointer", "guard", ID, "--json"]);
    assert_eq!(judged["evidence"]["canary"]["scored"], 0, "{judged}");
    assert_eq!(predicted()["output"]["label"], "positive");
}
