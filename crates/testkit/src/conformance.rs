//! What every journal must do, whatever stands behind it. Each store's tests call `journal` with an empty one.

use std::sync::Arc;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::Journal;
use actum_ledger::coherence::assess;
use actum_ledger::draft;
use actum_ledger::entry::Entry;
use actum_ledger::event::Coherence;
use actum_ledger::head::{Cause, Move};
use actum_ledger::journal::{Outcome, Range};
use actum_ledger::merkle::{Plan, verify_consistency, verify_inclusion};
use actum_ledger::refusal::Code;
use actum_ledger::registry::Kind;
use actum_ledger::time;
use actum_ledger::verify::Walk;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::event::{event, signal, submission};
use crate::registry::{change, own};
use crate::{access, pointer};

type Shared = Arc<dyn Journal>;

/// Every rule, on an empty journal.
pub async fn journal(journal: Shared) {
    the_path_of_an_execution(&journal).await;
    refusals_become_dead_letters(&journal).await;
    tenants_do_not_see_each_other(&journal).await;
    pages_and_proofs(&journal).await;
    lineage_is_assessed(&journal).await;
    checkpoints_are_kept(&journal).await;
    large_entries(&journal).await;
    the_ledgers_own_time(&journal).await;
    changes_of_the_registry(&journal).await;
    changes_of_a_pointer(&journal).await;
    changes_of_a_token(&journal).await;
    moves_of_a_head(&journal).await;
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

async fn append(journal: &Shared, value: Value) -> Outcome {
    journal.append(submission(value)).await.expect("the journal answers")
}

async fn created(journal: &Shared, value: Value) -> (String, u64) {
    match append(journal, value).await {
        Outcome::Created { id, seq } => (id, seq),
        other => panic!("{other:?}"),
    }
}

fn code(outcome: &Outcome) -> Option<Code> {
    match outcome {
        Outcome::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

async fn the_path_of_an_execution(journal: &Shared) {
    created(journal, signal("path", "signal")).await;
    for (n, (attempt, state)) in
        [(1, "planned"), (1, "running"), (1, "failed"), (2, "running"), (2, "succeeded")].into_iter().enumerate()
    {
        let (id, seq) = created(journal, event("path", "x", attempt, state)).await;
        assert_eq!(seq, n as u64 + 1);
        assert_eq!(append(journal, event("path", "x", attempt, state)).await, Outcome::Idempotent { id, seq });
    }
    // The same again, all in one batch and out of a new execution: a batch sees its own entries.
    let states = [(1, "planned"), (1, "running"), (1, "planned"), (1, "succeeded"), (1, "failed"), (1, "running")];
    let waiting: Vec<_> = states.iter().map(|(a, s)| journal.append(submission(event("path", "y", *a, s)))).collect();
    let mut outcomes = Vec::new();
    for answer in waiting {
        outcomes.push(answer.await.expect("the journal answers"));
    }
    assert!(matches!(outcomes[0], Outcome::Created { seq: 6, .. }), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Created { seq: 7, .. }), "{outcomes:?}");
    assert!(matches!(outcomes[2], Outcome::Idempotent { seq: 6, .. }), "{outcomes:?}");
    assert!(matches!(outcomes[3], Outcome::Created { seq: 8, .. }), "{outcomes:?}");
    assert_eq!(code(&outcomes[4]), Some(Code::InvalidTransition));
    assert!(matches!(outcomes[5], Outcome::Idempotent { seq: 7, .. }), "{outcomes:?}");
}

async fn refusals_become_dead_letters(journal: &Shared) {
    let t = tenant("letters");
    created(journal, signal("letters", "signal")).await;
    created(journal, event("letters", "x", 1, "planned")).await;
    let mut conflicting = event("letters", "x", 1, "planned");
    conflicting["payload"]["target"] = json!("elsewhere");
    let mut unknown = event("letters", "y", 1, "planned");
    unknown["lineage"]["dependsOnLedgerIds"] = json!(["signal", "nowhere", "nowhere either"]);
    let mut blocked = event("letters", "z", 1, "planned");
    blocked["payload"]["coherenceStatus"] = json!("partial");
    let broken = json!({"tenantId": "letters", "type": "execution_event"});
    let cases = [
        (broken, Code::Validation),
        (conflicting, Code::IdempotencyConflict),
        (unknown, Code::UnknownLineage),
        (event("letters", "x", 1, "succeeded"), Code::InvalidTransition),
        (blocked, Code::CoherenceBlocked),
    ];
    for (document, expected) in &cases {
        let outcome = append(journal, document.clone()).await;
        assert_eq!(code(&outcome), Some(*expected), "{outcome:?}");
    }
    let letters = journal.dead_letters(Some(&t), 10).await.expect("letters");
    let codes: Vec<_> = letters.iter().rev().map(|l| l.code.as_str()).collect();
    assert_eq!(codes, cases.each_ref().map(|(_, code)| code.name()));
    for (letter, (document, _)) in letters.iter().rev().zip(&cases) {
        assert_eq!(&serde_json::from_slice::<Value>(&letter.document).expect("json"), document);
        let refusal: Value = serde_json::from_str(&letter.refusal).expect("json");
        assert!(!refusal["details"]["violations"].as_array().expect("a list").is_empty());
    }
    assert_eq!(journal.dead_letters(Some(&t), 2).await.expect("letters").len(), 2);
    assert_eq!(journal.log(&t).await.expect("log").frontier.size(), 2);
    // A document that names no tenant is kept under none; only the operator sees it, beside all others.
    append(journal, json!(["not an entry"])).await;
    let everybodys = journal.dead_letters(None, 10).await.expect("letters");
    assert_eq!((everybodys.len(), everybodys[0].document.as_slice()), (7, b"[\"not an entry\"]".as_slice()));
    assert_eq!(journal.dead_letters(Some(&t), 10).await.expect("letters").len(), 5);
}

/// A page is bounded by bytes as well as by entries, and pages follow each other without a gap.
async fn large_entries(journal: &Shared) {
    let t = tenant("large");
    for n in 0..24 {
        let mut large = signal("large", &format!("l-{n}"));
        large["payload"]["note"] = json!("x".repeat(900_000));
        created(journal, large).await;
    }
    let (mut seen, mut pages) = (0, 0);
    loop {
        let rows = journal.rows(&t, Range::forwards(seen, 1000)).await.expect("rows");
        if rows.is_empty() {
            break;
        }
        assert!(rows.iter().map(|r| r.body.len()).sum::<usize>() < actum_contract::limit::PAGE_BYTES_MAX + (1 << 20));
        seen += rows.len() as u64;
        pages += 1;
    }
    assert_eq!((seen, pages), (24, 3));
}

async fn tenants_do_not_see_each_other(journal: &Shared) {
    created(journal, signal("alice", "signal")).await;
    assert_eq!(code(&append(journal, event("bob", "x", 1, "planned")).await), Some(Code::UnknownLineage));
    let (ours, _) = created(journal, event("alice", "x", 1, "planned")).await;
    created(journal, signal("bob", "signal")).await;
    let (theirs, seq) = created(journal, event("bob", "x", 1, "planned")).await;
    // The same identity in two tenants is two entries, each in its own log.
    assert_eq!((ours, 1), (theirs.clone(), seq));
    let body = |name: &'static str, id: String| async move {
        let body = journal.entry(&tenant(name), &id).await.expect("the journal answers");
        body.map(|b| Entry::open(&b).expect("an entry").tenant)
    };
    assert_eq!(body("alice", theirs.clone()).await.as_deref(), Some("alice"));
    assert_eq!(body("bob", theirs.clone()).await.as_deref(), Some("bob"));
    assert_eq!(body("carol", theirs).await, None);
    let names: Vec<_> = journal.tenants().await.expect("tenants").iter().map(ToString::to_string).collect();
    assert!(names.is_sorted() && names.contains(&"alice".into()) && !names.contains(&"carol".into()), "{names:?}");
    // Bob's first document was refused before he had a log; that made none.
    assert_eq!(journal.log(&tenant("carol")).await.expect("log").frontier.size(), 0);
    assert!(journal.rows(&tenant("carol"), Range::forwards(0, 10)).await.expect("rows").is_empty());
}

async fn pages_and_proofs(journal: &Shared) {
    let t = tenant("pages");
    const SIZE: u64 = 700;
    let waiting: Vec<_> = (0..SIZE).map(|n| journal.append(submission(signal("pages", &format!("s-{n}"))))).collect();
    for (n, answer) in waiting.into_iter().enumerate() {
        assert!(matches!(answer.await, Ok(Outcome::Created { seq, .. }) if seq == n as u64));
    }
    let mut walk = Walk::new(t.clone(), Vec::new());
    while walk.size() < SIZE {
        let rows = journal.rows(&t, Range::forwards(walk.size(), 99)).await.expect("rows");
        rows.iter().for_each(|row| walk.row(row).expect("an unbroken chain"));
    }
    let log = journal.log(&t).await.expect("log");
    assert_eq!(walk.finish(&log).expect("the head fits"), log);
    let back = Range { from: 10, limit: 3, backwards: true, kind: None };
    let seqs: Vec<_> = journal.rows(&t, back).await.expect("rows").iter().map(|r| r.seq).collect();
    assert_eq!(seqs, [9, 8, 7]);
    let none = Range { kind: Some("noise".into()), ..Range::forwards(0, 10) };
    assert!(journal.rows(&t, none).await.expect("rows").is_empty());

    let hashes: Vec<_> = journal.rows(&t, Range::forwards(0, 1000)).await.expect("rows");
    let whole = Plan::root(SIZE);
    let root = whole.proof(&journal.nodes(&t, &whole.nodes()).await.expect("nodes")).expect("a root");
    assert_eq!(root, [log.frontier.root()]);
    for index in [0, 1, 254, 255, 256, 511, 512, 600, 699] {
        let plan = Plan::inclusion(index, SIZE).expect("a plan");
        let proof = plan.proof(&journal.nodes(&t, &plan.nodes()).await.expect("nodes")).expect("a proof");
        let leaf = actum_ledger::merkle::leaf(&hashes[index as usize].body);
        assert!(verify_inclusion(leaf, index, SIZE, &proof, log.frontier.root()), "{index}");
    }
    let mut frontier = actum_ledger::merkle::Frontier::default();
    for (i, row) in hashes.iter().enumerate() {
        frontier.push(actum_ledger::merkle::leaf(&row.body));
        let old = i as u64 + 1;
        if old.is_multiple_of(97) || old == 256 {
            let plan = Plan::consistency(old, SIZE).expect("a plan");
            let proof = plan.proof(&journal.nodes(&t, &plan.nodes()).await.expect("nodes")).expect("a proof");
            assert!(verify_consistency(old, frontier.root(), SIZE, log.frontier.root(), &proof), "{old}");
        }
    }
}

/// An entry that leaves its time to the ledger gets one that its text can hold.
async fn the_ledgers_own_time(journal: &Shared) {
    let t = tenant("time");
    let mut anonymous = signal("time", "x");
    anonymous.as_object_mut().expect("an object").retain(|key, _| key != "id" && key != "createdAt");
    for _ in 0..20 {
        created(journal, anonymous.clone()).await;
    }
    let mut walk = Walk::new(t.clone(), Vec::new());
    for row in journal.rows(&t, Range::forwards(0, 100)).await.expect("rows") {
        walk.row(&row).expect("an untouched entry");
    }
    assert_eq!(walk.size(), 20);
}

/// A change is an entry like others; only where it comes from is a question of its own.
async fn changes_of_the_registry(journal: &Shared) {
    let first = change("registry", Kind::Tool, "grep", 1);
    assert_eq!(code(&append(journal, first.document()).await), Some(Code::Validation));
    let made = journal.append(own(&first)).await.expect("the journal answers");
    assert!(matches!(made, Outcome::Created { seq: 0, .. }), "{made:?}");
}

async fn changes_of_a_pointer(journal: &Shared) {
    let first = pointer::change("pointer", "@acme/mail/Sort.v2", 1);
    assert_eq!(code(&append(journal, first.document()).await), Some(Code::Validation));
    let made = journal.append(pointer::own(&first)).await.expect("the journal answers");
    assert!(matches!(made, Outcome::Created { seq: 0, .. }), "{made:?}");
}

async fn changes_of_a_token(journal: &Shared) {
    let first = access::create("token", &access::id(0));
    assert_eq!(code(&append(journal, first.document()).await), Some(Code::Validation));
    let made = journal.append(access::own(&first)).await.expect("the journal answers");
    assert!(matches!(made, Outcome::Created { seq: 0, .. }), "{made:?}");
}

/// Of two who make the same move one is recorded; a move that does not follow another is not.
async fn moves_of_a_head(journal: &Shared) {
    let step = |n: u64, publication: &str| Move {
        tenant: tenant("head"),
        workspace: "shared:site".into(),
        n,
        cause: if n == 1 { Cause::Create } else { Cause::Publish },
        before: (n > 1).then(|| Digest::blake3(b"1")),
        after: Digest::blake3(n.to_string().as_bytes()),
        publication: publication.into(),
        of: None,
        actor: "ann".into(),
        drift: Vec::new(),
        include: Vec::new(),
    };
    let make = |step: Move| journal.append(draft::read_value(step.document(), Timestamp::MAX));
    assert_eq!(code(&append(journal, step(1, "a").document()).await), Some(Code::Validation));
    assert_eq!(code(&make(step(2, "a")).await.expect("an answer")), Some(Code::UnknownLineage));
    assert!(matches!(make(step(1, "a")).await, Ok(Outcome::Created { seq: 0, .. })));
    assert!(matches!(make(step(2, "b")).await, Ok(Outcome::Created { seq: 1, .. })));
    assert!(matches!(make(step(2, "b")).await, Ok(Outcome::Idempotent { .. })));
    assert_eq!(code(&make(step(2, "c")).await.expect("an answer")), Some(Code::IdempotencyConflict));
}

async fn lineage_is_assessed(journal: &Shared) {
    let t = tenant("lineage");
    created(journal, signal("lineage", "signal")).await;
    created(
        journal,
        json!({"tenantId": "lineage", "id": "draft", "module": "m", "source": "s", "type": "artifact",
        "state": "draft", "createdAt": "2025-01-01T00:00:00Z", "payload": {}}),
    )
    .await;
    let (planned, _) = created(journal, event("lineage", "x", 1, "planned")).await;
    created(journal, event("lineage", "x", 1, "running")).await;
    let status = |ids: Vec<String>| async move {
        let found = journal.lineage(&tenant("lineage"), &ids).await.expect("lineage");
        assess(&found, time::parse("2025-02-01T00:00:00Z").expect("a time")).status
    };
    assert_eq!(status(vec!["signal".into()]).await, Coherence::Coherent);
    assert_eq!(status(vec!["signal".into(), "draft".into()]).await, Coherence::Partial);
    assert_eq!(status(vec!["signal".into(), "absent".into()]).await, Coherence::Partial);
    assert_eq!(status(vec![planned.clone()]).await, Coherence::Partial);
    let (succeeded, _) = created(journal, event("lineage", "x", 1, "succeeded")).await;
    assert_eq!(status(vec![succeeded.clone()]).await, Coherence::Coherent);
    assert_eq!(status(vec![planned, "draft".into()]).await, Coherence::Stale);
    let mut newer = signal("lineage", "signal-2");
    newer["lineage"] = json!({"dependsOnLedgerIds": [succeeded], "supersedes": ["signal"]});
    created(journal, newer).await;
    assert_eq!(status(vec!["signal".into()]).await, Coherence::Stale);
    let found = journal.lineage(&t, &["signal".into()]).await.expect("lineage");
    assert_eq!(found[0].found.as_ref().expect("found").superseded_by[0].0, "signal-2");
    let mut wrong = signal("lineage", "signal-3");
    wrong["lineage"] = json!({"supersedes": ["absent"]});
    assert_eq!(code(&append(journal, wrong).await), Some(Code::UnknownLineage));
}

async fn checkpoints_are_kept(journal: &Shared) {
    let (alice, bob) = (tenant("alice"), tenant("bob"));
    journal.keep_checkpoint(&alice, 2, "second").await.expect("kept");
    journal.keep_checkpoint(&alice, 1, "first").await.expect("kept");
    journal.keep_checkpoint(&alice, 1, "fir").await.expect("kept");
    assert_eq!(journal.checkpoints(&alice).await.expect("checkpoints"), ["first", "second"]);
    // A note with more signatures takes the place of the same one with fewer.
    journal.keep_checkpoint(&alice, 1, "first, signed again").await.expect("kept");
    assert_eq!(journal.checkpoints(&alice).await.expect("checkpoints"), ["first, signed again", "second"]);
    assert!(journal.checkpoints(&bob).await.expect("checkpoints").is_empty());
}
