//! The rules of a change of the registry: its form, who may write it, and what it must follow.

use actum_contract::canon;
use actum_contract::id::Tenant;
use actum_ledger::append::{Book, Decision, Log, replay};
use actum_ledger::draft::{self, Submission};
use actum_ledger::refusal::Code;
use actum_ledger::registry::{Action, Change, Kind, Status, body_of, entry_id, is_id};
use serde_json::{Value, json};

use crate::{appended, decide, now, refusal, refused};

fn change(n: u64) -> Change {
    let body = json!({"id": "grep", "command": ["grep", "-n"], "version": n});
    Change {
        tenant: Tenant::new("t").unwrap(),
        kind: Kind::Adapter,
        item: "grep-cli".into(),
        n,
        action: if n == 1 { Action::Add } else { Action::Version },
        version: format!("1.{n}"),
        hash: canon::sha256(&body).unwrap().to_hex(),
        status: Status::Experimental,
        approved: false,
        name: "Grep".into(),
        tool: "grep".into(),
        form: "cli".into(),
        summary: json!({"does": "finds\u{0} lines"}),
        body,
        actor: "ada".into(),
        reason: String::new(),
        approval: None,
    }
}

#[test]
fn ids() {
    for good in ["a", "7z", "git.clone_2-x", &"x".repeat(64)] {
        assert!(is_id(good), "{good}");
    }
    for bad in ["", ".a", "-a", "a b", "a:b", "a/b", "ä", &"x".repeat(65)] {
        assert!(!is_id(bad), "{bad}");
    }
    assert_eq!(entry_id(Kind::Tool, "grep", 3), "registry:tool:grep:3");
}

#[test]
fn a_change_comes_back_as_it_went_in() {
    let mut book = Book::default();
    for approval in [None, Some("approval-7".to_owned())] {
        let n = if approval.is_none() { 1 } else { 2 };
        let change = Change { approval, ..change(n) };
        let entry = appended(decide(&mut book, change.document()));
        assert_eq!(entry.id, entry_id(Kind::Adapter, "grep-cli", n));
        assert_eq!(body_of(&entry.body), Some(change));
        let registered = entry.registered.as_ref().unwrap();
        assert_eq!((registered.item.n, registered.item.version.as_str()), (n, format!("1.{n}").as_str()));
        assert_eq!(registered.item.summary, r#"{"does":"finds\u0000 lines"}"#);
    }
}

#[test]
fn a_replay_yields_the_same_row() {
    let (mut book, mut log) = (Book::default(), Log::default());
    for n in 1..=3 {
        let entry = appended(decide(&mut book, change(n).document()));
        let again = replay(&entry.tenant, &mut log, &entry.body).unwrap();
        assert_eq!((again.registered, again.id, again.hash), (entry.registered, entry.id, entry.hash));
    }
    let other = json!({"tenantId": "t", "id": "x", "module": "m", "source": "s", "type": "signal", "payload": {}});
    let entry = appended(decide(&mut book, other));
    assert_eq!((entry.registered, body_of(&entry.body)), (None, None));
}

#[test]
fn every_flaw_is_named() {
    let cases: [(&str, Value, &[&str]); 21] = [
        ("/id", json!("registry:adapter:grep-cli:2"), &["id"]),
        ("/id", Value::Null, &["id"]),
        ("/module", json!("other"), &["module"]),
        ("/source", json!("other"), &["source"]),
        ("/payload/kind", json!("gadget"), &["payload.kind"]),
        ("/payload/item", json!("a b"), &["payload.item"]),
        ("/payload/item", json!("other"), &["id"]),
        ("/payload/n", json!(0), &["payload.n"]),
        ("/payload/action", json!("version"), &["payload.action"]),
        ("/payload/status", json!("gone"), &["payload.status"]),
        ("/payload/status", json!("removed"), &["payload.status"]),
        ("/payload/approved", json!("yes"), &["payload.approved"]),
        ("/payload/version", json!(""), &["payload.version"]),
        ("/payload/name", json!("a\u{0}b"), &["payload.name"]),
        ("/payload/actor", json!(1), &["payload.actor"]),
        ("/payload/reason", json!("x".repeat(5_000)), &["payload.reason"]),
        ("/payload/form", json!("smoke"), &["payload.form"]),
        ("/payload/summary", json!("x".repeat(20_000)), &["payload.summary"]),
        ("/payload/body", json!([]), &["payload.body"]),
        ("/payload/body", json!({"other": 1}), &["payload.hash"]),
        ("/payload/hash", json!("00"), &["payload.hash"]),
    ];
    for (path, value, expected) in cases {
        let mut document = change(1).document();
        *document.pointer_mut(path).unwrap() = value;
        let refusal = refused(document);
        let paths: Vec<_> = refusal.violations.iter().map(|v| v.path.as_str()).collect();
        assert_eq!((refusal.code, paths.as_slice()), (Code::Validation, expected), "{path}");
    }
    let mut document = change(1).document();
    document["payload"] = json!({});
    assert_eq!(refused(document).violations.len(), 13);
}

#[test]
fn an_action_and_its_outcome_agree() {
    let flaw = |action, status, approved| {
        let change = Change { action, status, approved, ..change(2) };
        match draft::read_value(change.document(), now()) {
            Submission::Draft(_) => None,
            Submission::Rejected(rejection) => Some(rejection.refusal.violations[0].path.clone()),
        }
    };
    for status in Status::ALL {
        let removed = status == Status::Removed;
        assert_eq!(flaw(Action::Remove, status, true).is_none(), removed);
        assert_eq!(flaw(Action::Block, status, true).is_none(), status == Status::Blocked);
        assert_eq!(flaw(Action::Deprecate, status, true).is_none(), status == Status::Deprecated);
        assert_eq!(flaw(Action::Activate, status, true).is_none(), status == Status::Active);
        for action in [Action::Add, Action::Version, Action::Scope, Action::Approve] {
            assert_eq!(flaw(action, status, true).is_none(), !removed);
        }
    }
    assert_eq!(flaw(Action::Approve, Status::Active, false).as_deref(), Some("payload.approved"));
    let tool = Change { kind: Kind::Tool, item: "grep".into(), form: String::new(), ..change(1) };
    assert!(matches!(draft::read_value(tool.document(), now()), Submission::Draft(_)));
    let other = refused(Change { tool: "sed".into(), form: "cli".into(), ..tool }.document());
    assert_eq!(other.violations.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), ["payload.form", "payload.tool"]);
}

#[test]
fn nobody_outside_writes_it() {
    let read = |document: Value| match draft::read(document.to_string().as_bytes(), now()) {
        Submission::Rejected(rejection) => Some(*rejection),
        Submission::Draft(_) => None,
    };
    let rejection = read(change(1).document()).unwrap();
    let message = "type registry_change is written by the registry alone: use `actum tool` and `actum adapter`";
    assert_eq!(rejection.refusal.message, message);
    assert_eq!(rejection.tenant.unwrap().as_str(), "t");
    assert_eq!(rejection.document, canon::canonical(&change(1).document()).unwrap());
    // Nor takes its ids, which would keep an item from ever being changed.
    let signal = |id: &str| {
        read(json!({"tenantId": "t", "id": id, "module": "m", "source": "s", "type": "signal", "payload": {}}))
    };
    let squatting = signal("registry:tool:grep:1").unwrap();
    assert_eq!(squatting.refusal.violations[0].path, "id");
    for free in ["registry:tool:grep", "registry:gadget:grep:1", "registry:tool:grep:x", "registry:tool:grep:1:1", "r"]
    {
        assert!(signal(free).is_none(), "{free}");
    }
}

#[test]
fn changes_follow_each_other() {
    let mut book = Book::default();
    let gap = refusal(decide(&mut book, change(2).document()));
    assert_eq!(gap.code, Code::UnknownLineage);
    assert_eq!(gap.message, r#"change 2 of adapter "grep-cli" cannot be made: there is no change 1"#);
    assert_eq!(gap.violations[0].path, "payload.n");
    appended(decide(&mut book, change(1).document()));
    appended(decide(&mut book, change(2).document()));
    assert_eq!(refusal(decide(&mut book, change(4).document())).code, Code::UnknownLineage);
    // Each tenant's and each kind's items are its own.
    let elsewhere = Change { tenant: Tenant::new("u").unwrap(), ..change(3) };
    assert_eq!(refusal(decide(&mut book, elsewhere.document())).code, Code::UnknownLineage);
    // The same again is the same; another under the same number is not.
    assert!(matches!(decide(&mut book, change(2).document()), Decision::Idempotent { seq: 1, .. }));
    let rival = refusal(decide(&mut book, Change { actor: "bob".into(), ..change(2) }.document()));
    assert_eq!((rival.code, rival.violations[0].path.as_str()), (Code::IdempotencyConflict, "payload.actor"));
}
