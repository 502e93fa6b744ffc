//! Quotas of storage, numbers by tenant, and what other tenants are not told.

use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::run::project;
use super::serve::{Server, token};

fn note(n: usize, bytes: usize) -> Value {
    json!({"tenantId": "acme", "module": "m", "source": "s", "type": "note", "id": format!("n-{n}"),
        "payload": {"text": "x".repeat(bytes)}})
}

fn with_quota(text: &str) -> Program {
    let actum = project(&[("a", "true")]);
    let toml = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{toml}[server]\n{text}\n"));
    actum
}

#[test]
fn a_token_and_a_tenant_keep_no_more_than_their_quota() {
    for (setting, whose) in [("token_storage_mb = 1", "token"), ("tenant_storage_mb = 1", "tenant")] {
        let actum = with_quota(setting);
        let own = token(&actum, "operator", &["--tenant", "acme"]);
        let other = token(&actum, "operator", &["--tenant", "other"]);
        let server = Server::start(&actum, &["--workers", "0"]);
        let (mut was_told, mut kept) = (false, 0);
        let refused = loop {
            let answer = server.post(&own, "/v1/ledger/entries", note(kept, 90_000));
            if answer.status == 507 {
                break answer;
            }
            assert_eq!(answer.status, 201, "{answer:?}");
            was_told |= answer.head.to_ascii_lowercase().contains("quota of storage");
            kept += 1;
            assert!(kept < 20, "{whose}: never refused");
        };
        assert!(was_told, "{whose}: it is told before it is reached");
        assert!(refused.body.contains("STORAGE_QUOTA_EXCEEDED"), "{refused:?}");
        // Reading goes on, and others are not concerned.
        let shown = server.get(&own, "/v1/usage").is(200);
        assert_eq!(shown[whose]["quota_bytes"], 1 << 20, "{shown}");
        let elsewhere = json!({"tenantId": "other", "module": "m", "source": "s", "type": "note", "payload": {}});
        server.post(&other, "/v1/ledger/entries", elsewhere).is(201);
    }
    let bad = with_quota("token_storage_mb = 0");
    assert_eq!(bad.run(&["config", "show"]).code, 2);
}

#[test]
fn numbers_are_shown_by_tenant_to_the_owner_and_to_each_its_own() {
    let actum = project(&[("a", "true")]);
    let toml = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", toml.replace("[agents.a]", "[agents.a]\ntenants = [\"acme\"]"));
    let (own, guest) = (token(&actum, "operator", &[]), token(&actum, "operator", &["--tenant", "acme"]));
    let server = Server::start(&actum, &["--workers", "0"]);
    server.post(&own, "/v1/runs", json!({"items": [super::run::item("i", "a")]})).is(202);
    std::fs::create_dir(actum.path("seed")).unwrap();
    actum.file("seed/readme", "hello\n");
    let made = actum.run(&["workspace", "add", "site", "seed", "--tenant", "acme", "--json"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let work = json!({"workspace": "shared:site", "items": [super::run::item("i", "a")]});
    server.post(&guest, "/v1/runs", work).is(202);
    let shown = |token: &str| server.get(token, "/metrics").body;
    let line = |tenant: &str| format!("actum_runs{{state=\"queued\",tenant=\"{tenant}\"}} 1");
    let all = shown(&own);
    assert!(all.contains(&line("local")) && all.contains(&line("acme")), "{all}");
    let theirs = shown(&guest);
    assert!(theirs.contains("actum_runs{state=\"queued\"} 1") && !theirs.contains("local"), "{theirs}");
    assert!(!theirs.contains("actum_queue_runs"), "{theirs}");
    // Where the project lies is in no entry of theirs.
    let entries = server.get(&guest, "/v1/ledger/entries").is(200).to_string();
    assert!(entries.contains("workspace_snapshot"), "{entries}");
    let place = actum.folder().display().to_string();
    assert!(!entries.contains(&place), "{entries}");
    let runs = server.get(&guest, "/v1/runs").is(200).to_string();
    assert!(!runs.contains(&place), "{runs}");
    // A worker of the project takes them all the same.
    let run = super::run::id(&server.get(&guest, "/v1/runs").is(200)["runs"][0]);
    let worker = actum.start(&["worker", "-q"], &[]);
    super::runs::until("the run of the tenant is over", || {
        server.get(&guest, &format!("/v1/runs/{run}")).is(200)["state"] == "succeeded"
    });
    worker.kill();
}
