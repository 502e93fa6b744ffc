//! What every store of pointers must do. Each store's tests call `pointers` with an empty one.

use std::sync::Arc;

use actum_contract::canon;
use actum_contract::id::Tenant;
use actum_ledger::Journal;
use actum_ledger::draft::{self, Submission};
use actum_ledger::journal::Outcome;
use actum_ledger::pointer::{Action, Change, Pointed, Pointers, change_of, entry_id};
use actum_ledger::refusal::Code;
use jiff::Timestamp;
use serde_json::{Value, json};

/// A store, seen through both ports.
#[derive(Clone)]
pub struct Kept {
    pub pointers: Arc<dyn Pointers>,
    pub journal: Arc<dyn Journal>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

/// Whose pointers there are once the suite has run.
pub const TENANTS: [&str; 6] = ["life", "rivals", "crowd", "gaps", "alice", "bob"];

/// Who want to make the same change, and how many changes they fight for.
const RIVALS: usize = 8;
const FIGHTS: u64 = 20;

const SIGNATURE: &str = "@acme/mail/Sort.v2";

/// Every rule, on an empty store.
pub async fn pointers(store: Kept) {
    the_life_of_a_pointer(&store).await;
    one_of_two_wins(&store).await;
    one_of_many_wins(&store).await;
    no_gaps(&store).await;
    tenants_and_signatures_are_separate(&store).await;
    nobody_outside_moves_one(&store).await;
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

/// The pointer that change `n` leaves.
pub fn pointer(signature: &str, n: u64) -> Value {
    json!({"signature_id": signature, "primary_artifact": format!("art_{n}"), "canary_percent": 0, "metadata": {"of": "ü\u{0}"}})
}

/// A change that is valid at its place: it sets another artifact.
pub fn change(tenant_name: &str, signature: &str, n: u64) -> Change {
    Change {
        tenant: tenant(tenant_name),
        signature: signature.into(),
        n,
        action: Action::Set,
        restores: n,
        before: (n > 1).then(|| pointer(signature, n - 1)),
        after: pointer(signature, n),
        actor: "ada".into(),
        reason: "because".into(),
        decision: None,
    }
}

/// A change as our own code hands it in.
pub fn own(change: &Change) -> Submission {
    draft::read_value(change.document(), "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time"))
}

/// The row a change leaves at its place in the log.
pub fn row_of(change: &Change, seq: u64) -> Pointed {
    let Change { signature, n, restores, after, .. } = change.clone();
    let body = String::from_utf8(canon::canonical(&after).expect("canonical")).expect("text");
    Pointed { signature, n, restores, seq, body }
}

async fn append(store: &Kept, change: &Change) -> Outcome {
    store.journal.append(own(change)).await.expect("the journal answers")
}

/// Makes a change that has to succeed; its place in the log.
async fn made(store: &Kept, change: &Change) -> u64 {
    match append(store, change).await {
        Outcome::Created { id, seq } if id == entry_id(&change.signature, change.n) => seq,
        other => panic!("{other:?}"),
    }
}

async fn row(store: &Kept, change: &Change) -> Option<Pointed> {
    store.pointers.pointer(&change.tenant, &change.signature).await.expect("an answer")
}

fn code(outcome: &Outcome) -> Option<Code> {
    match outcome {
        Outcome::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

async fn the_life_of_a_pointer(store: &Kept) {
    let t = tenant("life");
    let nth = |n| change("life", SIGNATURE, n);
    assert_eq!(row(store, &nth(1)).await, None);
    assert!(store.pointers.pointers(&t).await.expect("pointers").is_empty());
    let decision = Some(json!({"reason_code": "rollout.guard_promoted", "evidence": {"samples": 50}}));
    let life = [
        nth(1),
        Change { action: Action::SetCanary, ..nth(2) },
        Change { action: Action::ClearCanary, ..nth(3) },
        Change { action: Action::Promote, actor: "guard".into(), decision, ..nth(4) },
        Change { action: Action::Rollback, restores: 3, after: pointer(SIGNATURE, 3), ..nth(5) },
        Change { action: Action::Rollback, restores: 1, after: pointer(SIGNATURE, 1), ..nth(6) },
        nth(7),
        Change { action: Action::Rollback, ..nth(8) },
    ];
    for change in &life {
        let seq = made(store, change).await;
        let row = row_of(change, seq);
        assert_eq!(self::row(store, change).await.as_ref(), Some(&row));
        assert_eq!(store.pointers.pointers(&t).await.expect("pointers"), [row]);
    }
    // Every change that ever was can be read back.
    for change in life {
        let entry = store.journal.entry(&t, &entry_id(SIGNATURE, change.n)).await.expect("an answer");
        assert_eq!(change_of(&entry.expect("an entry")), Some(change));
    }
}

/// Two make the same change without knowing of each other, at once or one later: the first is recorded.
async fn one_of_two_wins(store: &Kept) {
    made(store, &change("rivals", SIGNATURE, 1)).await;
    let ours = change("rivals", SIGNATURE, 2);
    let theirs = Change { actor: "bob".into(), action: Action::Promote, ..ours.clone() };
    let (first, second) = (store.journal.append(own(&ours)), store.journal.append(own(&theirs)));
    assert!(matches!(first.await, Ok(Outcome::Created { .. })));
    assert_eq!(code(&second.await.expect("an answer")), Some(Code::IdempotencyConflict));
    assert_eq!(code(&append(store, &theirs).await), Some(Code::IdempotencyConflict));
    assert_eq!(row(store, &ours).await, Some(row_of(&ours, 1)));
    // Asking twice is not a rivalry, and an older change that is asked for again changes nothing.
    assert!(matches!(append(store, &ours).await, Outcome::Idempotent { seq: 1, .. }));
    assert!(matches!(append(store, &change("rivals", SIGNATURE, 1)).await, Outcome::Idempotent { seq: 0, .. }));
    assert_eq!(row(store, &ours).await, Some(row_of(&ours, 1)));
}

/// Many threads want the same change at the same time, and then the next one.
async fn one_of_many_wins(store: &Kept) {
    for n in 1..=FIGHTS {
        let wishes: Vec<_> = (0..RIVALS)
            .map(|rival| Change { actor: format!("rival-{rival}"), ..change("crowd", SIGNATURE, n) })
            .collect();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let rivals: Vec<_> = wishes.iter().map(|wish| scope.spawn(|| store.journal.append(own(wish)))).collect();
            rivals.into_iter().map(|rival| rival.join().expect("it lived")).collect()
        });
        let mut winners = Vec::new();
        for (wish, answer) in wishes.iter().zip(answers) {
            match answer.await.expect("an answer") {
                Outcome::Created { seq, .. } => winners.push((wish, seq)),
                other => assert_eq!(code(&other), Some(Code::IdempotencyConflict), "{other:?}"),
            }
        }
        let [(winner, seq)] = winners[..] else { panic!("change {n} was made {} times", winners.len()) };
        assert_eq!(row(store, winner).await, Some(row_of(winner, seq)));
        let entry = store.journal.entry(&winner.tenant, &entry_id(SIGNATURE, n)).await.expect("an answer");
        assert_eq!(change_of(&entry.expect("an entry")).as_ref(), Some(winner));
    }
    let log = store.journal.log(&tenant("crowd")).await.expect("a log");
    assert_eq!(log.frontier.size(), FIGHTS);
}

/// A change without the one before it is refused, also within one batch; so is one that contradicts itself.
async fn no_gaps(store: &Kept) {
    let nth = |n| change("gaps", SIGNATURE, n);
    assert_eq!(code(&append(store, &nth(2)).await), Some(Code::UnknownLineage));
    let other = Change { after: pointer("other/one.v1", 1), ..nth(1) };
    assert_eq!(code(&append(store, &other).await), Some(Code::Validation));
    assert_eq!(row(store, &other).await, None);
    let batch: Vec<_> = [1, 2, 4, 3, 4].map(|n| store.journal.append(own(&nth(n)))).into_iter().collect();
    let mut codes = Vec::new();
    for outcome in batch {
        codes.push(code(&outcome.await.expect("an answer")));
    }
    assert_eq!(codes, [None, None, Some(Code::UnknownLineage), None, None]);
    assert_eq!(row(store, &nth(4)).await, Some(row_of(&nth(4), 3)));
    assert_eq!(code(&append(store, &nth(6)).await), Some(Code::UnknownLineage));
}

async fn tenants_and_signatures_are_separate(store: &Kept) {
    // Not in the order of their names, which is that of their bytes.
    for (name, signature, n) in [
        ("alice", "b/two.v1", 1),
        ("alice", "b/two.v1", 2),
        ("bob", "b/two.v1", 1),
        ("alice", "B/two.v1", 1),
        ("alice", "a/one.v1", 1),
        ("alice", "@a/one.v1", 1),
    ] {
        made(store, &change(name, signature, n)).await;
    }
    assert_eq!(code(&append(store, &change("bob", "a/one.v1", 2)).await), Some(Code::UnknownLineage));
    let shown = async |name: &str| {
        let all = store.pointers.pointers(&tenant(name)).await.expect("pointers");
        all.into_iter().map(|row| (row.signature, row.n, row.seq)).collect::<Vec<_>>()
    };
    let row = |signature: &str, n, seq| (signature.to_owned(), n, seq);
    let of_alice = [row("@a/one.v1", 1, 4), row("B/two.v1", 1, 2), row("a/one.v1", 1, 3), row("b/two.v1", 2, 1)];
    assert_eq!(shown("alice").await, of_alice);
    assert_eq!(shown("bob").await, [row("b/two.v1", 1, 0)]);
    assert!(shown("nobody").await.is_empty());
    for absent in ["b/two", "b/two.v2", "", "%"] {
        assert_eq!(store.pointers.pointer(&tenant("alice"), absent).await.expect("an answer"), None, "{absent}");
    }
}

/// What comes from outside is refused, however well it is made, and moves nothing.
async fn nobody_outside_moves_one(store: &Kept) {
    let next = change("bob", "b/two.v1", 2);
    let now = "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time");
    let mut disguised = next.document();
    disguised["type"] = json!("note");
    for forged in [next.document(), disguised] {
        let outcome = store.journal.append(draft::read(forged.to_string().as_bytes(), now)).await.expect("an answer");
        assert_eq!(code(&outcome), Some(Code::Validation), "{outcome:?}");
    }
    assert_eq!(row(store, &next).await, Some(row_of(&change("bob", "b/two.v1", 1), 0)));
    made(store, &next).await;
}
