//! What every store of tokens must do, and of the answers kept for them. Each store's tests call `access` with an empty one.

use std::sync::Arc;

use actum_contract::id::Tenant;
use actum_ledger::Journal;
use actum_ledger::access::{
    Access, Action, Change, KEPT_BYTES_MAX, KEPT_MS_MAX, Kept, Role, Token, change_of, entry_id,
};
use actum_ledger::draft::{self, Submission};
use actum_ledger::journal::Outcome;
use actum_ledger::refusal::Code;
use jiff::Timestamp;
use serde_json::json;

/// A store, seen through both ports.
#[derive(Clone)]
pub struct Guarded {
    pub access: Arc<dyn Access>,
    pub journal: Arc<dyn Journal>,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guarded")
    }
}

/// Whose tokens there are once the suite has run, and how many in all.
pub const TENANTS: [&str; 5] = ["life", "rivals", "alice", "bob", "twin-0"];
pub const TOKENS: u64 = 7;

/// Who want the same at the same time.
const RIVALS: usize = 16;

/// Every rule, on an empty store.
pub async fn access(store: Guarded) {
    the_life_of_a_token(&store).await;
    one_of_many_revokes(&store).await;
    an_id_is_one_among_all_tenants(&store).await;
    tenants_are_separate(&store).await;
    nobody_outside_makes_one(&store).await;
    answers_are_kept(&store).await;
    the_first_answer_stays(&store).await;
    answers_are_forgotten(&store).await;
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

/// The id of the token with this number.
pub fn id(number: u64) -> String {
    format!("{number:016x}")
}

/// The making of a token.
pub fn create(tenant_name: &str, token: &str) -> Change {
    Change {
        tenant: tenant(tenant_name),
        token: token.to_owned(),
        n: 1,
        action: Action::Create,
        role: Role::Operator,
        name: "nächtlich".into(),
        hash: "0a".repeat(32),
        expires_ms: None,
        actor: "ada".into(),
        reason: "because".into(),
    }
}

/// The revocation of one.
pub fn revoke(made: &Change) -> Change {
    Change { n: 2, action: Action::Revoke, actor: "bob".into(), reason: String::new(), ..made.clone() }
}

/// A change as our own code hands it in.
pub fn own(change: &Change) -> Submission {
    draft::read_value(change.document(), "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time"))
}

/// The row a change leaves.
pub fn row_of(change: &Change) -> Token {
    let Change { tenant, token: id, n, role, name, hash, expires_ms, action, .. } = change.clone();
    Token { id, tenant, role, name, hash, expires_ms, is_revoked: action == Action::Revoke, n }
}

/// An answer given at that moment.
pub fn answer(body: &[u8], at_ms: i64) -> Kept {
    let content_type = "application/json".into();
    Kept { request_hash: "0b".repeat(32), status: 201, content_type, body: body.to_vec(), exit: 0, at_ms }
}

async fn append(store: &Guarded, change: &Change) -> Outcome {
    store.journal.append(own(change)).await.expect("the journal answers")
}

/// Makes a change that has to succeed; its place in the log.
async fn made(store: &Guarded, change: &Change) -> u64 {
    match append(store, change).await {
        Outcome::Created { id, seq } if id == entry_id(&change.token, change.n) => seq,
        other => panic!("{other:?}"),
    }
}

async fn row(store: &Guarded, token: &str) -> Option<Token> {
    store.access.token(token).await.expect("an answer")
}

fn code(outcome: &Outcome) -> Option<Code> {
    match outcome {
        Outcome::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

async fn the_life_of_a_token(store: &Guarded) {
    let t = tenant("life");
    let mortal = Change { expires_ms: Some(1_800_000_000_000), role: Role::Reader, ..create("life", &id(1)) };
    let forever = Change { role: Role::Admin, ..create("life", &id(2)) };
    assert_eq!(row(store, &id(1)).await, None);
    assert!(store.access.tokens(&t).await.expect("tokens").is_empty());
    assert_eq!(code(&append(store, &revoke(&mortal)).await), Some(Code::UnknownLineage));
    for (seq, change) in [&forever, &mortal].into_iter().enumerate() {
        assert_eq!(made(store, change).await, seq as u64);
        assert_eq!(row(store, &change.token).await, Some(row_of(change)));
        let entry = store.journal.entry(&t, &entry_id(&change.token, 1)).await.expect("an answer");
        assert_eq!(change_of(&entry.expect("an entry")).as_ref(), Some(change));
    }
    assert_eq!(store.access.tokens(&t).await.expect("tokens"), [row_of(&mortal), row_of(&forever)]);
    // Whoever revokes it says what it is.
    let other = Change { role: Role::Admin, ..revoke(&mortal) };
    assert_eq!(code(&append(store, &other).await), Some(Code::IdempotencyConflict));
    assert_eq!(row(store, &id(1)).await, Some(row_of(&mortal)));
    made(store, &revoke(&mortal)).await;
    let revoked = row_of(&revoke(&mortal));
    assert!(revoked.is_revoked);
    assert_eq!(row(store, &id(1)).await, Some(revoked.clone()));
    // What came before is not come back to.
    assert!(matches!(append(store, &mortal).await, Outcome::Idempotent { .. }));
    assert!(matches!(append(store, &revoke(&mortal)).await, Outcome::Idempotent { .. }));
    assert_eq!(store.access.tokens(&t).await.expect("tokens"), [revoked, row_of(&forever)]);
}

async fn one_of_many_revokes(store: &Guarded) {
    let change = create("rivals", &id(3));
    made(store, &change).await;
    let wishes: Vec<_> =
        (0..RIVALS).map(|rival| Change { actor: format!("rival-{rival}"), ..revoke(&change) }).collect();
    let works: Vec<_> = std::thread::scope(|scope| {
        let rivals: Vec<_> = wishes.iter().map(|wish| scope.spawn(|| store.journal.append(own(wish)))).collect();
        rivals.into_iter().map(|rival| rival.join().expect("it lived")).collect()
    });
    let mut winners = 0;
    for work in works {
        match work.await.expect("an answer") {
            Outcome::Created { seq: 1, .. } => winners += 1,
            other => assert_eq!(code(&other), Some(Code::IdempotencyConflict), "{other:?}"),
        }
    }
    assert_eq!(winners, 1);
    assert_eq!(row(store, &id(3)).await, Some(row_of(&revoke(&change))));
}

/// Many tenants want the same id at the same time: one gets it, and the others have nothing.
async fn an_id_is_one_among_all_tenants(store: &Guarded) {
    // The first comes before the others, so that whose it is can be told afterwards.
    made(store, &create("twin-0", &id(4))).await;
    let wishes: Vec<_> = (1..RIVALS).map(|rival| create(&format!("twin-{rival}"), &id(4))).collect();
    let works: Vec<_> = wishes.iter().map(|wish| store.journal.append(own(wish))).collect();
    for work in works {
        assert_eq!(code(&work.await.expect("an answer")), Some(Code::IdempotencyConflict));
    }
    assert_eq!(row(store, &id(4)).await, Some(row_of(&create("twin-0", &id(4)))));
    for wish in &wishes {
        assert!(store.access.tokens(&wish.tenant).await.expect("tokens").is_empty());
        assert_eq!(store.journal.entry(&wish.tenant, &entry_id(&id(4), 1)).await.expect("an answer"), None);
        assert_eq!(code(&append(store, &revoke(wish)).await), Some(Code::UnknownLineage));
    }
}

async fn tenants_are_separate(store: &Guarded) {
    for (name, number) in [("alice", 7), ("bob", 5), ("alice", 6)] {
        made(store, &create(name, &id(number))).await;
    }
    let shown = async |name: &str| {
        let all = store.access.tokens(&tenant(name)).await.expect("tokens");
        all.into_iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(shown("alice").await, [id(6), id(7)]);
    assert_eq!(shown("bob").await, [id(5)]);
    assert!(shown("nobody").await.is_empty());
    for absent in ["", "%", "0", &id(99), &"x".repeat(2_000)] {
        assert_eq!(row(store, absent).await, None, "{absent}");
    }
}

/// What comes from outside is refused, however well it is made, and makes nothing.
async fn nobody_outside_makes_one(store: &Guarded) {
    let wish = create("bob", &id(8));
    let now = "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time");
    let mut disguised = wish.document();
    disguised["type"] = json!("note");
    for forged in [wish.document(), disguised] {
        let outcome = store.journal.append(draft::read(forged.to_string().as_bytes(), now)).await.expect("an answer");
        assert_eq!(code(&outcome), Some(Code::Validation), "{outcome:?}");
    }
    assert_eq!(row(store, &id(8)).await, None);
}

async fn keep(store: &Guarded, name: &str, token: &str, key: &str, kept: Kept) -> bool {
    store.access.keep(&tenant(name), token, key, kept).await.expect("an answer")
}

async fn kept(store: &Guarded, name: &str, token: &str, key: &str) -> Option<Kept> {
    store.access.kept(&tenant(name), token, key).await.expect("an answer")
}

async fn answers_are_kept(store: &Guarded) {
    assert_eq!(kept(store, "alice", &id(6), "k").await, None);
    let first = answer(b"\x00 any bytes \xff", 1_000);
    assert!(keep(store, "alice", &id(6), "k", first.clone()).await);
    assert!(!keep(store, "alice", &id(6), "k", answer(b"second", 1_001)).await);
    assert_eq!(kept(store, "alice", &id(6), "k").await, Some(first.clone()));
    // Each tenant, token and key has its own; none of them is a pattern.
    for (name, token, key) in [("bob", id(6), "k"), ("alice", id(7), "k"), ("alice", id(6), "K"), ("alice", id(6), "")]
    {
        assert_eq!(kept(store, name, &token, key).await, None);
        assert!(keep(store, name, &token, key, Kept { status: 404, exit: 7, ..answer(b"", 1_000) }).await);
        assert_eq!(kept(store, name, &token, key).await.map(|kept| (kept.status, kept.exit)), Some((404, 7)));
    }
    assert_eq!(kept(store, "alice", &id(6), "%").await, None);
    assert_eq!(kept(store, "alice", &id(6), "k").await, Some(first));
    // As large as can be; one more is not kept.
    let largest = answer(&vec![7; KEPT_BYTES_MAX], 1_000);
    assert!(keep(store, "alice", &id(6), "largest", largest.clone()).await);
    assert_eq!(kept(store, "alice", &id(6), "largest").await, Some(largest));
    assert!(!keep(store, "alice", &id(6), "larger", answer(&vec![7; KEPT_BYTES_MAX + 1], 1_000)).await);
    assert_eq!(kept(store, "alice", &id(6), "larger").await, None);
}

async fn the_first_answer_stays(store: &Guarded) {
    for round in 0..4 {
        let key = format!("race-{round}");
        let t = tenant("alice");
        let bodies: Vec<_> = (0..RIVALS).map(|rival| format!("rival {rival}")).collect();
        let token = id(7);
        let works: Vec<_> = std::thread::scope(|scope| {
            let keep = |body: &String| store.access.keep(&t, &token, &key, answer(body.as_bytes(), 1_000));
            let rivals: Vec<_> = bodies.iter().map(|body| scope.spawn(move || keep(body))).collect();
            rivals.into_iter().map(|rival| rival.join().expect("it lived")).collect()
        });
        let mut first = Vec::new();
        for (body, work) in bodies.iter().zip(works) {
            if work.await.expect("an answer") {
                first.push(body.clone().into_bytes());
            }
        }
        assert_eq!(first.len(), 1);
        assert_eq!(kept(store, "alice", &token, &key).await.map(|kept| kept.body), first.pop());
    }
}

async fn answers_are_forgotten(store: &Guarded) {
    let (token, day) = (id(5), KEPT_MS_MAX);
    assert!(keep(store, "bob", &token, "old", answer(b"old", 10_000)).await);
    assert!(keep(store, "bob", &token, "on the edge", answer(b"edge", 10_001)).await);
    // A day later, and one millisecond: the older one makes room, also for one with its own key.
    assert!(!keep(store, "bob", &token, "old", answer(b"new", 10_000 + day)).await, "not yet");
    assert!(keep(store, "bob", &token, "old", answer(b"new", 10_001 + day)).await);
    assert_eq!(kept(store, "bob", &token, "old").await.map(|kept| kept.body), Some(b"new".to_vec()));
    assert!(kept(store, "bob", &token, "on the edge").await.is_some());
    assert!(keep(store, "bob", &token, "later", answer(b"", 10_002 + day)).await);
    assert_eq!(kept(store, "bob", &token, "on the edge").await, None);
    // Nobody else's day is over by that.
    assert!(kept(store, "alice", &id(6), "k").await.is_some());
}
