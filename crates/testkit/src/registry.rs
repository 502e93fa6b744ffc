//! What every registry must do. Each store's tests call `registry` with an empty one.

use std::sync::Arc;

use actum_contract::canon;
use actum_contract::id::Tenant;
use actum_ledger::Journal;
use actum_ledger::draft::{self, Submission};
use actum_ledger::journal::Outcome;
use actum_ledger::refusal::Code;
use actum_ledger::registry::{Action, Change, Item, Kind, Registry, Status, body_of, entry_id};
use jiff::Timestamp;
use serde_json::json;

/// A store, seen through both ports.
#[derive(Clone)]
pub struct Registered {
    pub registry: Arc<dyn Registry>,
    pub journal: Arc<dyn Journal>,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registered")
    }
}

/// Whose registries there are once the suite has run.
pub const TENANTS: [&str; 6] = ["life", "rivals", "gaps", "alice", "bob", "many"];

/// Enough to make a list of everything cost something.
pub const MANY: usize = 10_000;

/// Every rule, on an empty store.
pub async fn registry(store: Registered) {
    the_life_of_a_tool(&store).await;
    one_of_two_wins(&store).await;
    no_gaps(&store).await;
    tenants_and_kinds_are_separate(&store).await;
    many_in_order(&store).await;
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

/// A change that is valid at its place: the first adds, the others bring a new version.
pub fn change(tenant_name: &str, kind: Kind, item: &str, n: u64) -> Change {
    let body = json!({"id": item, "does": "something", "revision": n});
    let form = if kind == Kind::Adapter { "cli" } else { "" };
    Change {
        tenant: tenant(tenant_name),
        kind,
        item: item.into(),
        n,
        action: if n == 1 { Action::Add } else { Action::Version },
        version: format!("1.{n}.0"),
        hash: canon::sha256(&body).expect("canonical").to_hex(),
        status: Status::Active,
        approved: true,
        name: format!("Name of {item}"),
        tool: if kind == Kind::Adapter { "grep".into() } else { item.into() },
        form: form.into(),
        summary: json!({"about": item, "revision": n}),
        body,
        actor: "ada".into(),
        reason: "because".into(),
        approval: None,
    }
}

/// A change as our own code hands it in.
pub fn own(change: &Change) -> Submission {
    draft::read_value(change.document(), "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time"))
}

async fn append(store: &Registered, change: &Change) -> Outcome {
    store.journal.append(own(change)).await.expect("the journal answers")
}

async fn made(store: &Registered, change: &Change) {
    let outcome = append(store, change).await;
    let id = entry_id(change.kind, &change.item, change.n);
    assert!(matches!(&outcome, Outcome::Created { id: made, .. } if *made == id), "{outcome:?}");
}

fn code(outcome: &Outcome) -> Option<Code> {
    match outcome {
        Outcome::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

/// What a change leaves behind.
fn item_of(change: &Change) -> Item {
    Item {
        id: change.item.clone(),
        name: change.name.clone(),
        tool: change.tool.clone(),
        form: change.form.clone(),
        n: change.n,
        version: change.version.clone(),
        hash: change.hash.clone(),
        status: change.status,
        approved: change.approved,
        summary: change.summary.to_string(),
    }
}

async fn item(store: &Registered, change: &Change) -> Option<Item> {
    store.registry.item(&change.tenant, change.kind, &change.item).await.expect("the registry answers")
}

/// Added, changed, blocked, removed and added again: the newest change is what there is.
async fn the_life_of_a_tool(store: &Registered) {
    let t = tenant("life");
    let first = change("life", Kind::Tool, "back", 1);
    assert_eq!(item(store, &first).await, None);
    let life = [
        Change { status: Status::Experimental, approved: false, ..first },
        Change { action: Action::Approve, approval: Some("a-1".into()), ..change("life", Kind::Tool, "back", 2) },
        Change { name: "Another name".into(), ..change("life", Kind::Tool, "back", 3) },
        Change { action: Action::Block, status: Status::Blocked, ..change("life", Kind::Tool, "back", 4) },
        Change { action: Action::Remove, status: Status::Removed, ..change("life", Kind::Tool, "back", 5) },
        Change { action: Action::Add, ..change("life", Kind::Tool, "back", 6) },
        Change { action: Action::Remove, status: Status::Removed, ..change("life", Kind::Tool, "back", 7) },
    ];
    for change in &life {
        made(store, change).await;
        assert_eq!(item(store, change).await, Some(item_of(change)));
        let there = change.status != Status::Removed;
        let heads = store.registry.heads(&t, Kind::Tool).await.expect("heads");
        let shown: Vec<_> = heads.iter().map(|head| (head.id.as_str(), head.name.as_str())).collect();
        assert_eq!(shown, Vec::from_iter(there.then_some(("back", change.name.as_str()))));
        let items = store.registry.items(&t, Kind::Tool).await.expect("items");
        assert_eq!(items, Vec::from_iter(there.then(|| item_of(change))));
    }
    // Every version that ever was can be read back.
    for change in life {
        let entry = store.journal.entry(&t, &entry_id(Kind::Tool, "back", change.n)).await.expect("an answer");
        assert_eq!(body_of(&entry.expect("an entry")), Some(change));
    }
}

/// Two make the same change without knowing of each other, at once or one later: the first is recorded.
async fn one_of_two_wins(store: &Registered) {
    made(store, &change("rivals", Kind::Tool, "grep", 1)).await;
    let ours = change("rivals", Kind::Tool, "grep", 2);
    let theirs = Change { actor: "bob".into(), action: Action::Block, status: Status::Blocked, ..ours.clone() };
    let (first, second) = (store.journal.append(own(&ours)), store.journal.append(own(&theirs)));
    assert!(matches!(first.await, Ok(Outcome::Created { .. })));
    assert_eq!(code(&second.await.expect("an answer")), Some(Code::IdempotencyConflict));
    assert_eq!(code(&append(store, &theirs).await), Some(Code::IdempotencyConflict));
    assert_eq!(item(store, &ours).await, Some(item_of(&ours)));
    // Asking twice is not a rivalry, and an older change that is asked for again changes nothing.
    assert!(matches!(append(store, &ours).await, Outcome::Idempotent { .. }));
    assert!(matches!(append(store, &change("rivals", Kind::Tool, "grep", 1)).await, Outcome::Idempotent { .. }));
    assert_eq!(item(store, &ours).await, Some(item_of(&ours)));
}

/// A change without the one before it is refused, also within one batch; so is one that lies about its body.
async fn no_gaps(store: &Registered) {
    let nth = |n| change("gaps", Kind::Tool, "grep", n);
    assert_eq!(code(&append(store, &nth(2)).await), Some(Code::UnknownLineage));
    let lie = Change { hash: "0".repeat(64), ..nth(1) };
    assert_eq!(code(&append(store, &lie).await), Some(Code::Validation));
    assert_eq!(item(store, &lie).await, None);
    let batch: Vec<_> = [1, 2, 4, 3, 4].map(|n| store.journal.append(own(&nth(n)))).into_iter().collect();
    let mut codes = Vec::new();
    for outcome in batch {
        codes.push(code(&outcome.await.expect("an answer")));
    }
    assert_eq!(codes, [None, None, Some(Code::UnknownLineage), None, None]);
    assert_eq!(item(store, &nth(4)).await, Some(item_of(&nth(4))));
    assert_eq!(code(&append(store, &nth(6)).await), Some(Code::UnknownLineage));
}

async fn tenants_and_kinds_are_separate(store: &Registered) {
    made(store, &change("alice", Kind::Tool, "grep", 1)).await;
    made(store, &change("alice", Kind::Tool, "grep", 2)).await;
    made(store, &change("bob", Kind::Tool, "grep", 1)).await;
    made(store, &change("alice", Kind::Adapter, "grep", 1)).await;
    assert_eq!(code(&append(store, &change("bob", Kind::Adapter, "grep", 2)).await), Some(Code::UnknownLineage));
    let counts = async |name: &str, kind| {
        let items = store.registry.items(&tenant(name), kind).await.expect("items");
        items.iter().map(|item| item.n).collect::<Vec<_>>()
    };
    assert_eq!(counts("alice", Kind::Tool).await, [2]);
    assert_eq!(counts("alice", Kind::Adapter).await, [1]);
    assert_eq!(counts("bob", Kind::Tool).await, [1]);
    assert_eq!(counts("bob", Kind::Adapter).await, [0_u64; 0]);
    let adapter = &store.registry.heads(&tenant("alice"), Kind::Adapter).await.expect("heads")[0];
    assert_eq!((adapter.tool.as_str(), adapter.form.as_str()), ("grep", "cli"));
}

/// Registers so many tools, not in the order of their names; every tenth has been removed.
pub async fn fill(journal: &Arc<dyn Journal>, tenant_name: &str, tools: usize) {
    let mut waiting = Vec::new();
    for n in 0..tools {
        // A step that shares no factor with the number of them comes by every one.
        let item = format!("tool-{:05}", n * 7_919 % tools);
        let first = Change {
            summary: json!({"about": item, "words": "word ".repeat(100)}),
            ..change(tenant_name, Kind::Tool, &item, 1)
        };
        waiting.push(journal.append(own(&first)));
        if n % 10 == 9 {
            let last = Change { n: 2, action: Action::Remove, status: Status::Removed, ..first };
            waiting.push(journal.append(own(&last)));
        }
        if waiting.len() > 500 {
            for answer in waiting.drain(..) {
                assert!(matches!(answer.await, Ok(Outcome::Created { .. })));
            }
        }
    }
    for answer in waiting {
        assert!(matches!(answer.await, Ok(Outcome::Created { .. })));
    }
}

async fn many_in_order(store: &Registered) {
    let t = tenant("many");
    let tools = MANY + MANY / 9;
    fill(&store.journal, "many", tools).await;
    let heads = store.registry.heads(&t, Kind::Tool).await.expect("heads");
    let items = store.registry.items(&t, Kind::Tool).await.expect("items");
    assert_eq!(heads.len(), tools - tools / 10);
    assert!(heads.len() >= MANY && heads.is_sorted_by(|a, b| a.id < b.id));
    assert!(heads.iter().all(|h| h.tool == h.id && h.name == format!("Name of {}", h.id) && h.form.is_empty()));
    assert!(heads.iter().map(|h| &h.id).eq(items.iter().map(|i| &i.id)));
    assert!(items.iter().all(|i| i.n == 1 && i.summary.contains(&i.id)));
}
