//! `actum spend` through the real binary: permissions with all their limits, what is set aside, and bad input of every
//! kind. Also the books, which other tests close too.

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::actum;
use super::bridge::{register, shell};
use super::run::asked;
use super::runs::{entries, until};

/// Everything that was set aside, the newest first.
pub(crate) fn reservations(actum: &Program) -> Vec<Value> {
    asked(actum, &["spend", "reservations", "--json", "--limit", "10000"])["reservations"].as_array().unwrap().clone()
}

/// Closes the books: what receipts of calls and reconciliations say was spent is what every permission says, and what is
/// held is what is open. All that was spent.
pub(crate) fn books(actum: &Program) -> u64 {
    let all = asked(actum, &["spend", "list", "--json"])["authorizations"].as_array().unwrap().clone();
    let mut paid: Vec<(String, u64)> = Vec::new();
    for entry in entries(actum, "prediction_receipt") {
        let receipt = &entry["payload"]["receipt"];
        if receipt["kind"] == "call" && receipt["budget"]["state"].is_string() {
            let of = receipt["policy"]["authorization_id"].as_str().unwrap();
            paid.push((of.to_owned(), receipt["budget"]["spent"].as_u64().unwrap()));
        }
    }
    for entry in entries(actum, "spend_change") {
        let change = &entry["payload"];
        if ["tool_settlement", "reconcile_commit"].iter().any(|action| change["action"] == *action) {
            let of = change["authorization"].as_str().unwrap_or_default();
            paid.push((of.to_owned(), change["committed"].as_u64().unwrap()));
        }
    }
    let held = reservations(actum);
    let is_within = |id: &str, of: &str| {
        let mut next = Some(id.to_owned());
        while let Some(at) = next {
            if at == of {
                return true;
            }
            let found = all.iter().find(|one| one["authorization_id"] == at.as_str());
            next = found.and_then(|one| one["within"].as_str().map(ToOwned::to_owned));
        }
        false
    };
    for one in &all {
        let id = one["authorization_id"].as_str().unwrap();
        let spent: u64 = paid.iter().filter(|(of, _)| is_within(of, id)).map(|(_, amount)| amount).sum();
        assert_eq!(one["spent"], spent, "{id}: {paid:?}");
        let open = held.iter().filter(|row| row["state"] == "reserved" || row["state"] == "reconcile_required");
        let open = open.filter(|row| is_within(row["authorization_id"].as_str().unwrap(), id));
        let open: u64 = open.map(|row| row["amount"].as_u64().unwrap()).sum();
        assert_eq!(one["reserved"], open, "{id}: {held:?}");
    }
    paid.iter().map(|(_, amount)| amount).sum()
}

fn authorize(actum: &Program, words: &[&str]) -> Value {
    let ended = actum.run(&[&["spend", "authorize", "--json"], words].concat());
    assert_eq!(ended.code, 0, "{words:?}: {}", ended.stderr);
    ended.json()
}

/// A tool whose every call costs what its parameter says.
fn shop(actum: Program) -> Program {
    let (tool, mut adapter) = shell(
        "buy",
        "write",
        "echo x >> bought; echo \"{\\\"message_id\\\": $1}\"",
        json!({"settlement": {"amount_param": "amount"}}),
    );
    adapter["interface"]["cli"]["arg_mapping"] = json!({"amount": "{amount}"});
    register(&actum, &[(tool, adapter)]);
    actum
}

/// The reason code of a call that is refused; nothing if it is made.
fn buy(actum: &Program, amount: u64) -> Option<String> {
    let (code, result) = super::tools::call(actum, "buy", json!({"amount": amount}));
    let reason = result["error"]["reason_code"].as_str().map(ToOwned::to_owned);
    assert_eq!(code, if reason.is_some() { 3 } else { 0 }, "{result}");
    reason.map(|code| code.trim_start_matches("policy_denied.").to_owned())
}

fn limits_hold(actum: Program) {
    let actum = shop(actum);
    authorize(&actum, &["--id", "day", "--max-per-day", "1000", "--max-per-call", "600", "--max-total", "5000"]);
    assert_eq!(buy(&actum, 601).as_deref(), Some("per_call_exceeded"));
    assert_eq!(buy(&actum, 600), None);
    assert_eq!(buy(&actum, 401).as_deref(), Some("per_day_exceeded"));
    assert_eq!(buy(&actum, 400), None);
    assert_eq!(buy(&actum, 1).as_deref(), Some("per_day_exceeded"));
    // The newest wins; within another one it counts against both.
    let narrower = authorize(&actum, &["--id", "narrower", "--max-total", "300", "--agent", "nobody"]);
    assert_eq!(narrower["within"], "day", "so that the limits of both hold");
    authorize(&actum, &["--id", "outer", "--max-total", "300", "--agent", "nobody", "--alone"]);
    authorize(&actum, &["--id", "inner", "--max-total", "1000", "--within", "outer"]);
    assert_eq!(buy(&actum, 200), None);
    assert_eq!(buy(&actum, 101).as_deref(), Some("budget_exhausted"));
    let spent = |id: &str| {
        let all = asked(&actum, &["spend", "list", "--json"])["authorizations"].as_array().unwrap().clone();
        all.iter().find(|one| one["authorization_id"] == id).unwrap()["spent"].clone()
    };
    assert_eq!((spent("outer"), spent("inner"), spent("day")), (json!(200), json!(200), json!(1000)));
    // Taken back, nothing broader is tried.
    actum.run(&["spend", "revoke", "inner", "--reason", "enough"]).ok();
    assert_eq!(buy(&actum, 1).as_deref(), Some("authorization_revoked"));
    authorize(&actum, &["--id", "no", "--mode", "deny"]);
    assert_eq!(buy(&actum, 1).as_deref(), Some("explicit_deny"));
    authorize(&actum, &["--id", "short", "--unlimited", "--expires", "1s"]);
    until("it has expired", || buy(&actum, 1).as_deref() == Some("authorization_expired"));
    let told = entries(&actum, "spend_change");
    let revoked = told.iter().find(|entry| entry["payload"]["action"] == "revoke").unwrap();
    assert_eq!(revoked["payload"]["reason"], "enough");
    books(&actum);
}

#[test]
fn limits_hold_on_sqlite() {
    limits_hold(actum());
}

#[test]
fn limits_hold_on_postgres() {
    limits_hold(actum().on_store(&shared_url()));
}

#[test]
fn a_person_is_asked_above_a_threshold_or_always() {
    let actum = shop(actum());
    authorize(&actum, &["--id", "some", "--max-total", "5000", "--threshold", "100"]);
    assert_eq!(buy(&actum, 100), None);
    let waits = |amount: u64| {
        let request = super::tools::waits(&super::tools::try_call(&actum, "buy", json!({"amount": amount})));
        assert!(asked(&actum, &["approvals", "list", "--json"]).to_string().contains(&format!("{amount} usd_micros")));
        actum.run(&["approve", &request]).ok();
        assert_eq!(buy(&actum, amount), None, "{amount}");
    };
    waits(101);
    authorize(&actum, &["--id", "always", "--max-total", "5000", "--mode", "interactive"]);
    waits(1);
    // What is refused anyway nobody is asked about.
    assert_eq!(buy(&actum, 6000).as_deref(), Some("budget_exhausted"));
    assert_eq!(books(&actum), 202);
}

#[test]
fn permissions_say_what_they_were_given() {
    let actum = actum();
    let made = authorize(
        &actum,
        &[
            "--id",
            "a",
            "--max-total",
            "2.50usd",
            "--max-per-call",
            "1",
            "--max-per-day",
            "7",
            "--threshold",
            "0",
            "--agent",
            "x",
            "--thread",
            "t",
            "--run",
            "r",
            "--expires",
            "7d",
        ],
    );
    assert_eq!((&made["max_total"], &made["mode"]), (&json!(2_500_000), &json!("delegated_budget_with_threshold")));
    assert_eq!((&made["autopilot_id"], &made["thread_id"], &made["run_id"]), (&json!("x"), &json!("t"), &json!("r")));
    assert!(made["expires_at"].is_string() && made["revoked_at"].is_null(), "{made}");
    // The same again changes nothing; something else under the same name is refused.
    authorize(&actum, &["--id", "b", "--max-total", "5"]);
    authorize(&actum, &["--id", "b", "--max-total", "5"]);
    assert_eq!(actum.run(&["spend", "authorize", "--id", "b", "--max-total", "6"]).code, 6);
    assert_eq!(entries(&actum, "spend_change").len(), 2);
    actum.run(&["spend", "revoke", "b"]).ok();
    actum.run(&["spend", "revoke", "b"]).ok();
    assert_eq!(entries(&actum, "spend_change").len(), 3, "what is taken back is taken back once");
}

#[test]
fn bad_input_of_every_kind() {
    let actum = actum();
    authorize(&actum, &["--id", "sats", "--currency", "sats", "--max-total", "5"]);
    let over = (1u64 << 53).to_string();
    for (words, code) in [
        (&["authorize", "--max-total", "-1"][..], 2),
        (&["authorize", "--max-total", "1.5"], 2),
        (&["authorize", "--max-total", "many"], 2),
        (&["authorize", "--max-total", "1usd", "--currency", "sats"], 2),
        (&["authorize", "--max-total", &over], 2),
        (&["authorize", "--mode", "sometimes"], 2),
        (&["authorize", "--mode", "delegated_budget_with_threshold"], 2),
        (&["authorize", "--mode", "deny", "--threshold", "5"], 2),
        (&["authorize", "--expires", "soon"], 2),
        (&["authorize", "--expires", "0h"], 2),
        (&["authorize", "--max-total", "5", "--within", "nobody"], 7),
        (&["authorize", "--max-total", "5", "--within", "sats"], 2),
        (&["authorize"], 2),
        (&["revoke", "nobody"], 7),
        (&["reservations", "--state", "open"], 2),
        (&["reservations", "--limit", "0"], 2),
        (&["reconcile", "nobody", "--release"], 7),
        (&["reconcile", "--commit", "5"], 2),
        (&["reconcile", "x", "--commit", "5", "--release"], 2),
        (&["authorize", "--max-total", "5", "--currency", "US$"], 2),
        (&["authorize", "--max-total", "5", "--id", "../x"], 2),
    ] {
        let ended = actum.run(&[&["spend"], words].concat());
        assert_eq!(ended.code, code, "{words:?}: {ended:?}");
        assert!(!ended.stderr.is_empty() && ended.stdout.is_empty(), "{words:?}: {ended:?}");
    }
    assert_eq!(entries(&actum, "spend_change").len(), 1, "nothing of this is on record");
}
