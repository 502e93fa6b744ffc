//! The rules of a change of a pointer: its form, who may write it, and what it must follow.

use actum_contract::canon;
use actum_contract::id::Tenant;
use actum_ledger::append::{Book, Decision, Log, replay};
use actum_ledger::draft::{self, Submission};
use actum_ledger::pointer::{Action, Change, change_of, entry_id, is_signature};
use actum_ledger::refusal::Code;
use serde_json::{Value, json};

use crate::{appended, decide, now, paths, refusal, refused};

const SIGNATURE: &str = "@acme/mail/Sort.v2";

fn pointer(n: u64) -> Value {
    json!({"signature_id": SIGNATURE, "primary_artifact": format!("art_{n}"), "metadata": {"odd": "a\u{0}b"}})
}

fn change(n: u64) -> Change {
    Change {
        tenant: Tenant::new("t").unwrap(),
        signature: SIGNATURE.into(),
        n,
        action: Action::Set,
        restores: n,
        before: (n > 1).then(|| pointer(n - 1)),
        after: pointer(n),
        actor: "ada".into(),
        reason: "because".into(),
        decision: None,
    }
}

#[test]
fn ids() {
    for good in ["a", SIGNATURE, "actum/act.v1", "@a_b-c/d.e/F.v9", &"x".repeat(200)] {
        assert!(is_signature(good), "{good}");
    }
    for bad in ["", "a:b", "a b", "a|b", "ä", "a\n", &"x".repeat(201)] {
        assert!(!is_signature(bad), "{bad}");
    }
    assert_eq!(entry_id(SIGNATURE, 3), "rollout:pointer:46af0c8e5f0b38b2beb82d4ac1e53e993b3959f3:3");
}

#[test]
fn a_change_comes_back_as_it_went_in() {
    let mut book = Book::default();
    let decided = Change { actor: "guard".into(), decision: Some(json!({"verdict": "promote"})), ..change(3) };
    let back = Change { action: Action::Rollback, restores: 2, after: pointer(2), ..change(4) };
    for (seq, change) in [change(1), change(2), decided, back].into_iter().enumerate() {
        let entry = appended(decide(&mut book, change.document()));
        assert_eq!((entry.id, entry.kind.as_str()), (entry_id(SIGNATURE, change.n), "pointer_change"));
        let row = entry.moved.as_ref().unwrap().at(entry.seq);
        assert_eq!((row.n, row.restores, row.seq), (change.n, change.restores, seq as u64));
        assert_eq!(row.body.as_bytes(), canon::canonical(&change.after).unwrap());
        assert!(!row.body.contains('\0'), "no store has to keep one");
        assert_eq!(change_of(&entry.body), Some(change));
    }
}

#[test]
fn a_replay_yields_the_same_row() {
    let (mut book, mut log) = (Book::default(), Log::default());
    for n in 1..=3 {
        let entry = appended(decide(&mut book, change(n).document()));
        let again = replay(&entry.tenant, &mut log, &entry.body).unwrap();
        assert_eq!((again.moved, again.seq, again.id, again.hash), (entry.moved, entry.seq, entry.id, entry.hash));
    }
    let other = json!({"tenantId": "t", "id": "x", "module": "m", "source": "s", "type": "signal", "payload": {}});
    let entry = appended(decide(&mut book, other));
    assert_eq!((entry.moved, change_of(&entry.body)), (None, None));
    assert_eq!(change_of(b"{}"), None);
}

#[test]
fn every_flaw_is_named() {
    let long = "x".repeat(70_000);
    let elsewhere = json!({"signature_id": "other/one.v1"});
    let cases: [(&str, Value, &[&str]); 32] = [
        ("/id", json!("rollout:pointer:46af0c8e5f0b38b2beb82d4ac1e53e993b3959f3:3"), &["id"]),
        ("/id", Value::Null, &["id"]),
        ("/module", json!("other"), &["module"]),
        ("/source", json!("other"), &["source"]),
        ("/payload/version", json!(0), &["payload.version"]),
        ("/payload/version", json!("1"), &["payload.version"]),
        ("/payload/signature_id", json!("a:b"), &["payload.signature_id"]),
        ("/payload/signature_id", json!(7), &["payload.signature_id"]),
        (
            "/payload/signature_id",
            json!("other/one.v1"),
            &["payload.before.signature_id", "payload.after.signature_id", "id"],
        ),
        ("/payload/n", json!(0), &["payload.n"]),
        ("/payload/n", json!(-1), &["payload.n"]),
        ("/payload/n", json!(1.5), &["payload.n"]),
        ("/payload/n", json!(1_u64 << 53), &["payload.n"]),
        ("/payload/n", json!(3), &["payload.restores", "id"]),
        ("/payload/action", json!("smash"), &["payload.action"]),
        ("/payload/restores", json!(0), &["payload.restores"]),
        ("/payload/restores", json!(1), &["payload.restores"]),
        ("/payload/restores", json!(3), &["payload.restores"]),
        ("/payload/before", Value::Null, &["payload.before"]),
        ("/payload/before", json!([]), &["payload.before"]),
        ("/payload/before", elsewhere.clone(), &["payload.before.signature_id"]),
        ("/payload/before/more", json!(long), &["payload.before"]),
        ("/payload/after", Value::Null, &["payload.after"]),
        ("/payload/after", json!("x"), &["payload.after"]),
        ("/payload/after", elsewhere, &["payload.after.signature_id"]),
        ("/payload/after/more", json!(long), &["payload.after"]),
        ("/payload/actor", json!(" "), &["payload.actor"]),
        ("/payload/actor", json!("a\u{0}b"), &["payload.actor"]),
        ("/payload/reason", json!(""), &["payload.reason"]),
        ("/payload/reason", json!("x".repeat(4_097)), &["payload.reason"]),
        ("/payload/decision", Value::Null, &["payload.decision"]),
        ("/payload/decision", json!({"more": long}), &["payload.decision"]),
    ];
    for (path, value, expected) in cases {
        let mut document = change(2).document();
        let (parent, field) = path.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[field] = value;
        let refusal = refused(document);
        assert_eq!((refusal.code, paths(&refusal).as_slice()), (Code::Validation, expected), "{path}");
    }
    let mut document = change(1).document();
    document["payload"] = json!({});
    let all = ["version", "signature_id", "n", "restores", "action", "before", "after", "actor", "reason"];
    assert_eq!(paths(&refused(document)), all.map(|field| format!("payload.{field}")));
    let mut newer = change(1).document();
    newer["payload"]["version"] = json!(2);
    assert!(refused(newer).message.contains("is 2, this program knows versions up to 1: use a newer actum"));
}

#[test]
fn an_action_fits_its_place() {
    let flaws = |change: Change| match draft::read_value(change.document(), now()) {
        Submission::Draft(_) => Vec::new(),
        Submission::Rejected(rejection) => paths(&rejection.refusal).into_iter().map(str::to_owned).collect::<Vec<_>>(),
    };
    for action in Action::ALL {
        let first = flaws(Change { action, ..change(1) });
        assert_eq!(first.is_empty(), action == Action::Set, "{action}: {first:?}");
        assert!(flaws(Change { action, ..change(7) }).is_empty(), "{action}: a guard only clears");
        for restores in [1, 6] {
            let flaws = flaws(Change { action, restores, ..change(7) });
            assert_eq!(flaws.is_empty(), action == Action::Rollback, "{action}: {flaws:?}");
        }
        assert_eq!(flaws(Change { action, restores: 8, ..change(7) }), ["payload.restores"]);
    }
    assert_eq!(flaws(Change { before: Some(pointer(0)), ..change(1) }), ["payload.before"]);
    let mut silent = change(1).document();
    silent["payload"].as_object_mut().unwrap().remove("before");
    assert_eq!(paths(&refused(silent)), ["payload.before"]);
}

#[test]
fn the_largest_change_fits() {
    let filled = |value: &Value, bytes: usize| {
        let mut value = value.clone();
        value["more"] = json!("");
        let room = bytes - canon::canonical(&value).unwrap().len();
        value["more"] = json!("x".repeat(room));
        value
    };
    let largest = Change {
        signature: "x".repeat(200),
        before: Some(filled(&json!({"signature_id": "x".repeat(200)}), 64 << 10)),
        after: filled(&json!({"signature_id": "x".repeat(200)}), 64 << 10),
        actor: "a".repeat(256),
        reason: "r".repeat(4 << 10),
        decision: Some(filled(&json!({}), 64 << 10)),
        ..change(2)
    };
    assert!(matches!(draft::read_value(largest.document(), now()), Submission::Draft(_)));
}

#[test]
fn nobody_outside_writes_it() {
    let read = |document: Value| match draft::read(document.to_string().as_bytes(), now()) {
        Submission::Rejected(rejection) => Some(*rejection),
        Submission::Draft(_) => None,
    };
    let rejection = read(change(1).document()).unwrap();
    let message = "type pointer_change is written by pointer changes: use `actum pointer`";
    assert_eq!(rejection.refusal.message, message);
    assert_eq!(rejection.tenant.unwrap().as_str(), "t");
    // Nor takes its ids, which would keep a pointer from ever being changed.
    let squatting = json!({"tenantId": "t", "id": "rollout:pointer:a.v1:1", "module": "m", "source": "s", "type": "signal", "payload": {}});
    assert_eq!(read(squatting).unwrap().refusal.violations[0].path, "id");
}

#[test]
fn changes_follow_each_other() {
    let mut book = Book::default();
    let gap = refusal(decide(&mut book, change(2).document()));
    assert_eq!(gap.code, Code::UnknownLineage);
    let message = r#"change 2 of the pointer of "@acme/mail/Sort.v2" cannot be made: there is no change 1"#;
    assert_eq!((gap.message.as_str(), gap.violations[0].path.as_str()), (message, "payload.n"));
    appended(decide(&mut book, change(1).document()));
    appended(decide(&mut book, change(2).document()));
    assert_eq!(refusal(decide(&mut book, change(4).document())).code, Code::UnknownLineage);
    // Each tenant's and each signature's pointers are its own.
    let elsewhere = Change { tenant: Tenant::new("u").unwrap(), ..change(3) };
    assert_eq!(refusal(decide(&mut book, elsewhere.document())).code, Code::UnknownLineage);
    // The same again is the same; another under the same number is not.
    assert!(matches!(decide(&mut book, change(2).document()), Decision::Idempotent { seq: 1, .. }));
    let rival = refusal(decide(&mut book, Change { actor: "bob".into(), ..change(2) }.document()));
    assert_eq!((rival.code, rival.violations[0].path.as_str()), (Code::IdempotencyConflict, "payload.actor"));
}
