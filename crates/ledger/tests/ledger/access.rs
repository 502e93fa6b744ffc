//! The rules of a change of a token: its form, who may write it, what it must follow, and that its id is one among all tenants.

use actum_contract::id::Tenant;
use actum_ledger::access::{
    Action, Change, KEPT_MS_MAX, Kept, Role, Token, change_of, entry_id, forgotten_before, is_token,
};
use actum_ledger::append::{Book, Decision, Log, replay};
use actum_ledger::draft::{self, Submission};
use actum_ledger::refusal::Code;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{appended, decide, now, paths, refusal, refused};

const ID: &str = "0123456789abcdef";

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

fn create() -> Change {
    Change {
        tenant: tenant("t"),
        token: ID.into(),
        n: 1,
        action: Action::Create,
        role: Role::Operator,
        name: "nightly".into(),
        hash: "0a".repeat(32),
        expires_ms: Some(1_800_000_000_000),
        actor: "ada".into(),
        reason: "because".into(),
    }
}

fn revoke() -> Change {
    Change { n: 2, action: Action::Revoke, actor: "bob".into(), reason: String::new(), ..create() }
}

fn row(change: &Change) -> Token {
    let Change { tenant, token: id, n, role, name, hash, expires_ms, action, .. } = change.clone();
    Token { id, tenant, role, name, hash, expires_ms, is_revoked: action == Action::Revoke, n }
}

#[test]
fn ids() {
    assert!(is_token(ID));
    for bad in ["", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "0123456789abcdeg", "0123456789abcdé"]
    {
        assert!(!is_token(bad), "{bad}");
    }
    assert_eq!(entry_id(ID, 2), "access:token:0123456789abcdef:2");
}

#[test]
fn a_change_comes_back_as_it_went_in_and_a_replay_yields_the_same_row() {
    let (mut book, mut log) = (Book::default(), Log::default());
    let forever = Change { token: "f".repeat(16), expires_ms: None, role: Role::Admin, ..create() };
    for change in [create(), forever, revoke()] {
        let entry = appended(decide(&mut book, change.document()));
        assert_eq!((entry.id.as_str(), entry.kind.as_str()), (&*entry_id(&change.token, change.n), "access_change"));
        assert_eq!(entry.granted.as_deref(), Some(&row(&change)));
        assert_eq!(change_of(&entry.body), Some(change));
        let again = replay(&entry.tenant, &mut log, &entry.body).unwrap();
        assert_eq!((again.granted, again.seq, again.id), (entry.granted, entry.seq, entry.id));
    }
    let other = json!({"tenantId": "t", "id": "x", "module": "m", "source": "s", "type": "signal", "payload": {}});
    let entry = appended(decide(&mut book, other));
    assert_eq!((entry.granted, change_of(&entry.body)), (None, None));
    assert_eq!(change_of(b"{}"), None);
}

#[test]
fn every_flaw_is_named() {
    let cases: [(&str, Value, &[&str]); 29] = [
        ("/id", json!("access:token:0123456789abcdef:1"), &["id"]),
        ("/id", Value::Null, &["id"]),
        ("/module", json!("other"), &["module"]),
        ("/source", json!("other"), &["source"]),
        ("/tenantId", json!(""), &["tenantId"]),
        ("/payload/version", json!(0), &["payload.version"]),
        ("/payload/version", json!("1"), &["payload.version"]),
        ("/payload/token", json!("0123456789ABCDEF"), &["payload.token"]),
        ("/payload/token", json!(7), &["payload.token"]),
        ("/payload/token", json!("0".repeat(16)), &["id"]),
        ("/payload/n", json!(0), &["payload.n"]),
        ("/payload/n", json!(-1), &["payload.n"]),
        ("/payload/n", json!(1.5), &["payload.n"]),
        ("/payload/n", json!(1), &["payload.n", "id"]),
        ("/payload/n", json!(3), &["payload.n", "id"]),
        ("/payload/action", json!("create"), &["payload.n"]),
        ("/payload/action", json!("renew"), &["payload.action"]),
        ("/payload/role", json!("root"), &["payload.role"]),
        ("/payload/role", json!("Admin"), &["payload.role"]),
        ("/payload/name", json!(" "), &["payload.name"]),
        ("/payload/name", json!("a\u{0}b"), &["payload.name"]),
        ("/payload/hash", json!("0A".repeat(32)), &["payload.hash"]),
        ("/payload/hash", json!("0".repeat(63)), &["payload.hash"]),
        ("/payload/expires_ms", Value::Null, &["payload.expires_ms"]),
        ("/payload/expires_ms", json!(-1), &["payload.expires_ms"]),
        ("/payload/expires_ms", json!(1_u64 << 53), &["payload.expires_ms"]),
        ("/payload/actor", json!(""), &["payload.actor"]),
        ("/payload/reason", json!("x".repeat(4_097)), &["payload.reason"]),
        ("/payload/secret", json!("x"), &["payload.secret"]),
    ];
    for (path, value, expected) in cases {
        let mut document = revoke().document();
        let (parent, field) = path.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[field] = value;
        let refusal = refused(document);
        assert_eq!((refusal.code, paths(&refusal).as_slice()), (Code::Validation, expected), "{path}");
    }
    let mut document = create().document();
    document["payload"] = json!({});
    let all = ["version", "token", "n", "action", "role", "name", "hash", "actor", "reason"];
    assert_eq!(paths(&refused(document)), all.map(|field| format!("payload.{field}")));
    let mut newer = create().document();
    newer["payload"]["version"] = json!(2);
    assert!(refused(newer).message.contains("is 2, this program knows versions up to 1: use a newer actum"));
}

#[test]
fn nobody_outside_writes_it() {
    let read = |document: Value| match draft::read(document.to_string().as_bytes(), now()) {
        Submission::Rejected(rejection) => Some(*rejection),
        Submission::Draft(_) => None,
    };
    let rejection = read(create().document()).unwrap();
    let message = "type access_change is written by token management: use `actum token`";
    assert_eq!(rejection.refusal.message, message);
    // Nor takes its ids, which would keep a token from ever being revoked.
    let squatting =
        json!({"tenantId": "t", "id": entry_id(ID, 2), "module": "m", "source": "s", "type": "signal", "payload": {}});
    assert_eq!(read(squatting).unwrap().refusal.violations[0].path, "id");
}

#[test]
fn a_token_is_made_once_and_revoked_once() {
    let mut book = Book::default();
    let gap = refusal(decide(&mut book, revoke().document()));
    assert_eq!(gap.code, Code::UnknownLineage);
    assert_eq!(gap.message, "change 2 of token 0123456789abcdef cannot be made: there is no change 1");
    appended(decide(&mut book, create().document()));
    // The same again is the same; another under the same number is not.
    assert!(matches!(decide(&mut book, create().document()), Decision::Idempotent { seq: 0, .. }));
    let rival = refusal(decide(&mut book, Change { role: Role::Admin, ..create() }.document()));
    assert_eq!((rival.code, paths(&rival)), (Code::IdempotencyConflict, vec!["payload.role"]));
    // Whoever revokes it says what it is.
    for (wrong, field) in [
        (Change { role: Role::Admin, ..revoke() }, "payload.role"),
        (Change { name: "other".into(), ..revoke() }, "payload.name"),
        (Change { hash: "0b".repeat(32), ..revoke() }, "payload.hash"),
        (Change { expires_ms: None, ..revoke() }, "payload.expires_ms"),
    ] {
        let refusal = refusal(decide(&mut book, wrong.document()));
        assert_eq!((refusal.code, paths(&refusal)), (Code::IdempotencyConflict, vec![field]));
    }
    appended(decide(&mut book, revoke().document()));
    assert!(matches!(decide(&mut book, revoke().document()), Decision::Idempotent { seq: 1, .. }));
    let later = refusal(decide(&mut book, Change { actor: "eve".into(), ..revoke() }.document()));
    assert_eq!((later.code, paths(&later)), (Code::IdempotencyConflict, vec!["payload.actor"]));
}

#[test]
fn an_id_is_one_among_all_tenants() {
    let mut book = Book::default();
    appended(decide(&mut book, create().document()));
    let theirs = |change: Change| Change { tenant: tenant("u"), ..change };
    let taken = refusal(decide(&mut book, theirs(create()).document()));
    assert_eq!((taken.code, paths(&taken)), (Code::IdempotencyConflict, vec!["payload.token"]));
    assert_eq!(taken.message, "there is a token 0123456789abcdef already: make one with another id");
    assert_eq!(refusal(decide(&mut book, theirs(revoke()).document())).code, Code::UnknownLineage);
    // Also where the book has only heard of it.
    let mut other = Book::default();
    other.learn_token(row(&create()));
    assert!(other.knows_token(ID) && !other.knows_token("0"));
    assert_eq!(refusal(decide(&mut other, theirs(create()).document())).code, Code::IdempotencyConflict);
}

#[test]
fn a_token_is_in_force_until_it_is_over() {
    let token = row(&create());
    assert!(token.is_in_force(1_799_999_999_999) && !token.is_in_force(1_800_000_000_000));
    assert!(!row(&revoke()).is_in_force(0));
    assert!(Token { expires_ms: None, ..token }.is_in_force(i64::MAX));
    let kept = |at_ms| Kept {
        request_hash: String::new(),
        status: 200,
        content_type: String::new(),
        body: Vec::new(),
        exit: 0,
        at_ms,
    };
    assert!(!kept(0).is_over(KEPT_MS_MAX) && kept(0).is_over(KEPT_MS_MAX + 1));
    assert_eq!(forgotten_before(i64::MIN), i64::MIN);
}

/// Any payload: what is accepted comes back as it was, what is refused says why.
fn payload() -> impl Strategy<Value = Value> {
    let text = prop_oneof![Just(ID.to_owned()), Just("0a".repeat(32)), "[ -~]{0,4}", ".{0,20}"];
    let word = prop_oneof![Just("create"), Just("revoke"), Just("admin"), Just("reader"), Just("x")];
    let value = prop_oneof![
        text.prop_map(Value::from),
        word.prop_map(Value::from),
        (0_u64..3).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::Null),
    ];
    let field = prop::sample::select(vec!["token", "n", "action", "role", "name", "hash", "expires_ms", "reason", "x"]);
    (any::<bool>(), prop::collection::vec((field, value), 0..3)).prop_map(|(first, changes)| {
        let mut document = if first { create().document() } else { revoke().document() };
        for (field, value) in changes {
            document["payload"][field] = value;
        }
        let (token, n) = (document["payload"]["token"].clone(), document["payload"]["n"].clone());
        document["id"] = json!(entry_id(token.as_str().unwrap_or_default(), n.as_u64().unwrap_or_default()));
        document
    })
}

proptest! {
    #[test]
    fn what_is_accepted_comes_back(document in payload()) {
        match draft::read_value(document.clone(), now()) {
            Submission::Rejected(rejection) => prop_assert!(!rejection.refusal.violations.is_empty()),
            Submission::Draft(draft) => {
                let mut book = Book::default();
                let token = draft.granted.clone().unwrap();
                if token.n > 1 {
                    let first = Change { token: token.id.clone(), role: token.role, name: token.name.clone(),
                        hash: token.hash.clone(), expires_ms: token.expires_ms, ..create() };
                    appended(decide(&mut book, first.document()));
                }
                let entry = appended(decide(&mut book, document.clone()));
                let change = change_of(&entry.body).unwrap();
                prop_assert_eq!(&row(&change), &*token);
                prop_assert_eq!(change.document(), document);
            }
        }
    }
}
