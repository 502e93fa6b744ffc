//! A changed configuration takes effect in a server only after an admin's reload, and is reported until then (D-508).

use std::fs;

use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::run::{item, project};
use super::runs::{is_over, status, until};
use super::serve::{Server, token};

fn submitted(actum: &Program, server: &Server, token: &str) -> (String, String) {
    let made = server.post(token, "/v1/runs", json!({"items": [item("i", "a")]})).is(202);
    let run = made["runs"][0]["run_id"].as_str().unwrap().to_owned();
    until("the run is over", || is_over(actum, &run));
    let digest = configuration(actum, &run);
    (run, digest)
}

/// The configuration under which a run was submitted and executed, by its receipt.
fn configuration(actum: &Program, run: &str) -> String {
    let text = fs::read(actum.path(&format!(".actum/runs/{run}/receipt.statement.json"))).unwrap();
    let statement: Value = serde_json::from_slice(&text).unwrap();
    let configuration = &statement["predicate"]["configuration"];
    assert_eq!(configuration["submitted"], configuration["executed"], "{configuration}");
    configuration["submitted"].as_str().unwrap().to_owned()
}

#[test]
fn a_changed_configuration_waits_for_an_admin() {
    let actum = project(&[("a", "echo $ACTUM_RUN_ID > made")]);
    let (operator, admin) = (token(&actum, "operator", &[]), token(&actum, "admin", &[]));
    let server = Server::start(&actum, &["--workers", "1"]);
    let shown = server.get(&operator, "/v1/config").is(200);
    assert_eq!(shown["outdated"], false, "{shown}");
    let (_, first) = submitted(&actum, &server, &operator);
    assert_eq!(shown["digest"], first.as_str());
    // As if a run had been able to change it.
    let before = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", before.replace("> made", "> stolen"));
    let (run, second) = submitted(&actum, &server, &operator);
    assert_eq!(second, first, "{}", status(&actum, &run));
    assert!(!actum.path("stolen").exists());
    assert_eq!(server.get(&operator, "/v1/config").is(200)["outdated"], true);
    assert!(server.get(&operator, "/metrics").body.contains("actum_config_outdated 1"));
    assert_eq!(server.post(&operator, "/v1/config/reload", json!({})).status, 403);
    // A file that cannot be read changes nothing.
    actum.file("actum.toml", "[agents");
    assert_eq!(server.post(&admin, "/v1/config/reload", json!({})).status, 422);
    assert_eq!(server.get(&operator, "/v1/config").is(200)["digest"], first.as_str());
    actum.file("actum.toml", before.replace("> made", "> renewed"));
    let reloaded = server.post(&admin, "/v1/config/reload", json!({})).is(200);
    assert_eq!(reloaded["changed"], true, "{reloaded}");
    let (_, third) = submitted(&actum, &server, &operator);
    assert_eq!(reloaded["digest"], third.as_str());
    assert!(third != first && actum.path("renewed").exists());
    let entries = actum.run(&["ledger", "list", "--json", "--type", "configuration_loaded"]).json();
    let entry = &entries["entries"][0]["payload"];
    assert_eq!((&entry["from"], &entry["to"]), (&json!(first), &json!(third)), "{entries}");
    assert!(entry["token"].is_string(), "{entry}");
    // Where there is no server, each command reads the file itself.
    assert_eq!(actum.run(&["config", "reload"]).code, 2);
    assert_eq!(actum.run(&["config", "show", "--json"]).json()["digest"], third.as_str());
}
