//! What every store of money must do. Each store's tests call `spend` with an empty one.

use std::sync::Arc;

use actum_contract::id::Tenant;
use actum_ledger::Journal;
use actum_ledger::draft::Submission;
use actum_ledger::entry::Entry;
use actum_ledger::journal::Range;
use actum_ledger::spend::{
    Answer, Authorization, CURRENCY, Code, Filter, Held, How, Mode, OVERRUN, Reservation, ReservationState, Reserve,
    RetryClass, STALE, Scope, Settle, Spend, TYPE,
};
use serde_json::{Value, json};

use crate::event::{signal, submission};

/// A store, seen through both ports.
#[derive(Clone)]
pub struct Purse {
    pub spend: Arc<dyn Spend>,
    pub journal: Arc<dyn Journal>,
}

impl std::fmt::Debug for Purse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Purse")
    }
}

/// Whose money there is once the suite has run.
pub const TENANTS: [&str; 8] = ["issue", "life", "limits", "above", "stuck", "scopes", "entries", "many"];

/// A time to settle that does not run out while a test runs.
pub const LONG_MS: u64 = 3_600_000;

/// Every rule, on an empty store.
pub async fn spend(store: Purse) {
    issued_once(&store).await;
    the_life_of_a_reservation(&store).await;
    limits_are_kept(&store).await;
    amounts_count_all_the_way_up(&store).await;
    what_is_stuck_waits(&store).await;
    the_most_specific_is_meant(&store).await;
    entries_come_with_the_money(&store).await;
    many_at_once(&store).await;
    lists(&store).await;
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

/// An authorization of 1,000 in all.
pub fn authorization(tenant_name: &str, id: &str) -> Authorization {
    Authorization {
        tenant: tenant(tenant_name),
        id: id.into(),
        owner: "ada".into(),
        autopilot: None,
        thread: None,
        run: None,
        mode: Mode::DelegatedBudget,
        currency: CURRENCY.into(),
        max_total: Some(1_000),
        max_per_call: None,
        max_per_day: None,
        threshold: None,
        within: None,
        issued_ms: 1_000,
        expires_ms: None,
        revoked_ms: None,
        spent: 0,
        reserved: 0,
        day: 0,
        day_held: 0,
    }
}

/// A wish in run `r`.
pub fn wish(tenant_name: &str, authorization: &str, call: &str, amount: u64) -> Reserve {
    Reserve {
        tenant: tenant(tenant_name),
        authorization: authorization.into(),
        run: "r".into(),
        call: call.into(),
        amount,
        currency: CURRENCY.into(),
        retry: RetryClass::SafeRetry,
        idempotency_key: None,
        approval: None,
        hold_ms: LONG_MS,
    }
}

/// The end of a call in run `r`, without entries.
pub fn end(tenant_name: &str, authorization: &str, call: &str, how: How) -> Settle {
    Settle {
        tenant: tenant(tenant_name),
        authorization: authorization.into(),
        run: "r".into(),
        call: call.into(),
        how,
        reconciles: false,
        entries: Vec::new(),
    }
}

pub fn commit(amount: u64) -> How {
    How::Commit { amount, correlation: Some("provider-1".into()) }
}

pub fn release() -> How {
    How::Release { reason: "not made".into() }
}

pub fn unknown() -> How {
    How::Unknown { reason: "timeout".into() }
}

async fn issue(store: &Purse, new: Authorization) -> Authorization {
    store.spend.authorize(new, "grace", "a try").await.expect("an answer").expect("issued")
}

async fn reserve(store: &Purse, wish: Reserve) -> Held {
    store.spend.reserve(wish).await.expect("an answer").expect("reserved")
}

async fn settle(store: &Purse, end: Settle) -> Held {
    store.spend.settle(end).await.expect("an answer").expect("settled")
}

fn code<T: std::fmt::Debug>(answer: Answer<T>) -> Code {
    answer.expect_err("a refusal").code
}

async fn refused_reserve(store: &Purse, wish: Reserve) -> Code {
    code(store.spend.reserve(wish).await.expect("an answer"))
}

async fn refused_settle(store: &Purse, end: Settle) -> Code {
    code(store.spend.settle(end).await.expect("an answer"))
}

async fn stored(store: &Purse, tenant_name: &str, id: &str) -> Authorization {
    store.spend.authorization(&tenant(tenant_name), id).await.expect("an answer").expect("it is there")
}

/// Spent, reserved and held today.
async fn figures(store: &Purse, tenant_name: &str, id: &str) -> (u64, u64, u64) {
    let Authorization { spent, reserved, day_held, .. } = stored(store, tenant_name, id).await;
    (spent, reserved, day_held)
}

/// The payloads of what the ledger was told about money, oldest first.
pub async fn told(journal: &Arc<dyn Journal>, tenant_name: &str) -> Vec<Value> {
    let range = Range { kind: Some(TYPE.into()), ..Range::forwards(0, 1_000) };
    let rows = journal.rows(&tenant(tenant_name), range).await.expect("rows");
    rows.iter().map(|row| Entry::open(&row.body).expect("an entry").payload).collect()
}

async fn issued_once(store: &Purse) {
    let full = Authorization {
        autopilot: Some("a".into()),
        thread: Some("t".into()),
        run: Some("r".into()),
        mode: Mode::DelegatedBudgetWithThreshold,
        currency: "sats".into(),
        max_per_call: Some(1),
        max_per_day: Some(2),
        threshold: Some(3),
        expires_ms: Some(i64::from(i32::MAX) * 2_000),
        ..authorization("issue", "full")
    };
    for new in [full.clone(), authorization("issue", "plain")] {
        assert_eq!(issue(store, new.clone()).await, new);
        assert_eq!(issue(store, new.clone()).await, new);
        assert_eq!(stored(store, "issue", &new.id).await, new);
    }
    let by_clock = issue(store, Authorization { issued_ms: 0, ..authorization("issue", "now") }).await;
    assert!(by_clock.issued_ms > 1_000_000_000_000);
    let other = Authorization { threshold: Some(4), ..full.clone() };
    assert_eq!(code(store.spend.authorize(other, "eve", "").await.expect("an answer")), Code::IdempotencyConflict);
    let bad = Authorization { owner: "\0".into(), ..authorization("issue", "bad") };
    assert_eq!(code(store.spend.authorize(bad, "eve", "").await.expect("an answer")), Code::Entry);
    let t = tenant("issue");
    assert_eq!(code(store.spend.revoke(&t, "nobody", "eve", "").await.expect("an answer")), Code::NotFound);
    let revoked = store.spend.revoke(&t, "full", "grace", "enough").await.expect("an answer").expect("revoked");
    assert!(revoked.revoked_ms.is_some());
    let again = store.spend.revoke(&t, "full", "eve", "again").await.expect("an answer").expect("revoked");
    assert_eq!((again, stored(store, "issue", "full").await), (revoked.clone(), revoked));
    let all = store.spend.authorizations(&t).await.expect("all");
    assert_eq!(all.iter().map(|a| a.id.as_str()).collect::<Vec<_>>(), ["full", "now", "plain"]);
    assert_eq!(store.spend.authorization(&tenant("nobody"), "full").await.expect("an answer"), None);
    let told = told(&store.journal, "issue").await;
    let actions: Vec<_> = told.iter().map(|p| (p["action"].clone(), p["actor"].clone())).collect();
    let expected = ["authorize", "authorize", "authorize", "revoke"].map(|action| (json!(action), json!("grace")));
    assert_eq!(actions, expected);
    assert_eq!((&told[0]["authorization"]["threshold"], &told[3]["reason"]), (&json!(3), &json!("enough")));
}

async fn the_life_of_a_reservation(store: &Purse) {
    issue(store, authorization("life", "a")).await;
    let full = Reserve {
        retry: RetryClass::DedupeReconcileRequired,
        idempotency_key: Some("key".into()),
        approval: Some("yes".into()),
        ..wish("life", "a", "c-1", 400)
    };
    let held = reserve(store, full.clone()).await;
    assert!(!held.replayed && held.authorization.reserved == 400);
    let get = async |call: &str| store.spend.reservation(&tenant("life"), "a", "r", call).await.expect("an answer");
    assert_eq!(get("c-1").await.as_ref(), Some(&held.reservation));
    assert_eq!(
        (held.reservation.idempotency_key.as_deref(), held.reservation.approval.as_deref()),
        (Some("key"), Some("yes"))
    );
    assert_eq!(held.reservation.deadline_ms - held.reservation.reserved_ms, LONG_MS as i64);
    let again = reserve(store, full).await;
    assert!(again.replayed && again.reservation == held.reservation);
    assert_eq!(refused_reserve(store, wish("life", "a", "c-1", 401)).await, Code::IdempotencyConflict);
    let done = settle(store, end("life", "a", "c-1", commit(150))).await;
    assert_eq!(get("c-1").await.as_ref(), Some(&done.reservation));
    assert_eq!((done.reservation.state, done.reservation.committed), (ReservationState::Committed, Some(150)));
    assert_eq!(figures(store, "life", "a").await, (150, 0, 150));
    assert!(settle(store, end("life", "a", "c-1", commit(150))).await.replayed);
    assert_eq!(refused_settle(store, end("life", "a", "c-1", commit(151))).await, Code::InvalidTransition);
    assert_eq!(refused_reserve(store, wish("life", "a", "c-1", 400)).await, Code::AlreadyFinalized);
    // Free calls are on record as well.
    reserve(store, wish("life", "a", "free", 0)).await;
    settle(store, end("life", "a", "free", commit(0))).await;
    reserve(store, wish("life", "a", "c-2", 100)).await;
    settle(store, end("life", "a", "c-2", release())).await;
    assert_eq!(refused_settle(store, end("life", "a", "c-2", commit(1))).await, Code::InvalidTransition);
    assert_eq!(refused_settle(store, end("life", "a", "nothing", release())).await, Code::NotFound);
    // Beyond what was reserved, and said so.
    reserve(store, wish("life", "a", "c-3", 850)).await;
    let over = settle(store, end("life", "a", "c-3", commit(1_000))).await;
    assert_eq!(over.reservation.reason.as_deref(), Some(OVERRUN));
    assert_eq!(figures(store, "life", "a").await, (1_150, 0, 1_150));
    let last = told(&store.journal, "life").await.pop().expect("an entry");
    assert_eq!((&last["action"], &last["reserved"], &last["committed"]), (&json!(OVERRUN), &json!(850), &json!(1_000)));
    assert_eq!(refused_reserve(store, wish("life", "a", "c-4", 1)).await, Code::BudgetExhausted);
    // Names that no index holds, and texts that no column does.
    assert!(store.spend.reserve(wish("life", "a", &"x".repeat(1_000), 1)).await.is_err());
    assert!(store.spend.reserve(wish("life", "a", "a\0b", 1)).await.is_err());
}

async fn limits_are_kept(store: &Purse) {
    let new = |id: &str| authorization("limits", id);
    for new in [
        Authorization { max_per_call: Some(10), max_per_day: Some(15), ..new("small") },
        Authorization { mode: Mode::DelegatedBudgetWithThreshold, threshold: Some(5), ..new("threshold") },
        Authorization { mode: Mode::Interactive, ..new("asking") },
        Authorization { mode: Mode::Deny, ..new("deny") },
        Authorization { expires_ms: Some(1), ..new("old") },
        new("gone"),
    ] {
        issue(store, new).await;
    }
    store.spend.revoke(&tenant("limits"), "gone", "grace", "").await.expect("an answer").expect("revoked");
    for (id, amount, expected) in [
        ("small", 11, Code::PerCall),
        ("threshold", 6, Code::Threshold),
        ("asking", 1, Code::ApprovalRequired),
        ("deny", 1, Code::ExplicitDeny),
        ("old", 1, Code::AuthorizationExpired),
        ("gone", 1, Code::AuthorizationRevoked),
        ("nobody", 1, Code::AuthorizationMissing),
        ("small", u64::MAX, Code::InvalidAmount),
    ] {
        assert_eq!(refused_reserve(store, wish("limits", id, "c", amount)).await, expected, "{id}");
        assert_eq!(store.spend.reservation(&tenant("limits"), id, "r", "c").await.expect("an answer"), None);
    }
    let sats = Reserve { currency: "sats".into(), ..wish("limits", "small", "c", 1) };
    assert_eq!(refused_reserve(store, sats).await, Code::CurrencyMismatch);
    for id in ["threshold", "asking"] {
        reserve(store, Reserve { approval: Some("yes".into()), ..wish("limits", id, "c", 6) }).await;
    }
    // Midnight may fall between two of these; then the second one finds a new day, and is within its limit.
    let first = reserve(store, wish("limits", "small", "1", 10)).await;
    let second = store.spend.reserve(wish("limits", "small", "2", 10)).await.expect("an answer");
    match second {
        Ok(held) => assert_ne!(held.reservation.day, first.reservation.day),
        Err(refused) => {
            assert_eq!(refused.code, Code::PerDay);
            assert_eq!(refused.authorization.map(|found| found.day_held), Some(10));
        }
    }
}

async fn amounts_count_all_the_way_up(store: &Purse) {
    let within = |id: &str, above: Option<&str>| Authorization {
        within: above.map(str::to_owned),
        ..authorization("above", id)
    };
    issue(store, Authorization { max_total: Some(100), ..within("top", None) }).await;
    for (id, above) in [("team", "top"), ("a", "team"), ("b", "team"), ("d3", "a"), ("d4", "d3")] {
        issue(store, within(id, Some(above))).await;
    }
    let deep = store.spend.authorize(within("d5", Some("d4")), "grace", "").await.expect("an answer");
    assert_eq!(code(deep), Code::InvalidTransition);
    let lost = store.spend.authorize(within("lost", Some("nobody")), "grace", "").await.expect("an answer");
    assert_eq!(code(lost), Code::NotFound);
    reserve(store, wish("above", "d4", "c", 60)).await;
    let refused = store.spend.reserve(wish("above", "b", "c", 41)).await.expect("an answer").expect_err("too much");
    assert_eq!((refused.code, refused.authorization.expect("found").id.as_str()), (Code::BudgetExhausted, "top"));
    reserve(store, wish("above", "b", "c", 40)).await;
    settle(store, end("above", "d4", "c", commit(50))).await;
    for id in ["d4", "d3", "a"] {
        assert_eq!(figures(store, "above", id).await, (50, 0, 50), "{id}");
    }
    for id in ["team", "top"] {
        assert_eq!(figures(store, "above", id).await, (50, 40, 90), "{id}");
    }
    settle(store, end("above", "b", "c", release())).await;
    assert_eq!(figures(store, "above", "top").await, (50, 0, 50));
    store.spend.revoke(&tenant("above"), "team", "grace", "").await.expect("an answer").expect("revoked");
    assert_eq!(refused_reserve(store, wish("above", "d4", "c-2", 1)).await, Code::AuthorizationRevoked);
}

async fn what_is_stuck_waits(store: &Purse) {
    issue(store, authorization("stuck", "a")).await;
    let t = tenant("stuck");
    let calls = |all: &[Reservation]| {
        let mut calls: Vec<_> = all.iter().map(|r| r.call.clone()).collect();
        calls.sort();
        calls
    };
    for (run, call, hold_ms) in
        [("r", "late", 0), ("r", "soon", LONG_MS), ("other", "late", 0), ("other", "soon", LONG_MS)]
    {
        let call = format!("{run}-{call}");
        reserve(store, Reserve { run: run.into(), hold_ms, ..wish("stuck", "a", &call, 100) }).await;
    }
    assert!(store.spend.mark_stuck(&tenant("nobody"), None).await.expect("an answer").is_empty());
    let marked = store.spend.mark_stuck(&t, None).await.expect("an answer");
    assert_eq!(calls(&marked), ["other-late", "r-late"]);
    assert!(
        marked.iter().all(|r| r.state == ReservationState::ReconcileRequired && r.reason.as_deref() == Some(STALE))
    );
    assert!(store.spend.mark_stuck(&t, None).await.expect("an answer").is_empty());
    assert_eq!(calls(&store.spend.mark_stuck(&t, Some("r")).await.expect("an answer")), ["r-soon"]);
    assert!(store.spend.mark_stuck(&t, Some("r")).await.expect("an answer").is_empty());
    assert_eq!(figures(store, "stuck", "a").await, (0, 400, 400));
    // Who comes back late has lost its say, and its entries with it.
    let late =
        Settle { entries: vec![submission(signal("stuck", "receipt"))], ..end("stuck", "a", "r-late", commit(10)) };
    assert_eq!(refused_settle(store, late).await, Code::ReconcileRequired);
    assert_eq!(store.journal.entry(&t, "receipt").await.expect("an answer"), None);
    assert_eq!(refused_reserve(store, wish("stuck", "a", "r-late", 100)).await, Code::ReconcileRequired);
    // Found out, once.
    let found = Settle { reconciles: true, ..end("stuck", "a", "r-late", commit(90)) };
    let held = settle(store, found.clone()).await;
    assert!(held.reservation.reconciled && held.reservation.settled_ms.is_some());
    assert!(settle(store, found).await.replayed);
    let found = Settle { reconciles: true, ..end("stuck", "a", "r-soon", release()) };
    settle(store, found).await;
    assert_eq!(figures(store, "stuck", "a").await, (90, 200, 290));
    let told = told(&store.journal, "stuck").await;
    let told: Vec<_> =
        told.iter().map(|p| (&p["action"], &p["call"], &p["reserved"], &p["committed"])).skip(1).collect();
    let actions = [json!("reconcile_commit"), json!("reconcile_release")];
    let expected = [
        (&actions[0], &json!("r-late"), &json!(100), &json!(90)),
        (&actions[1], &json!("r-soon"), &json!(100), &json!(0)),
    ];
    assert_eq!(told, expected);
    // Nobody reconciles what may still be under way; and what nobody knows is said by its caller, too.
    let early = Settle { run: "other".into(), reconciles: true, ..end("stuck", "a", "other-soon", release()) };
    assert_eq!(refused_settle(store, early).await, Code::InvalidTransition);
    let lost = Settle { run: "other".into(), ..end("stuck", "a", "other-soon", unknown()) };
    assert_eq!(settle(store, lost.clone()).await.reservation.reason.as_deref(), Some("timeout"));
    assert!(settle(store, lost).await.replayed);
    // What is reserved and given up in one breath.
    let together = [
        store.spend.reserve(Reserve { run: "quick".into(), ..wish("stuck", "a", "q", 1) }),
        store.spend.settle(Settle { run: "quick".into(), ..end("stuck", "a", "q", unknown()) }),
    ];
    for answer in together {
        answer.await.expect("an answer").expect("done");
    }
    let waiting = Filter { state: Some(ReservationState::ReconcileRequired), limit: 9, ..Filter::default() };
    let waiting = store.spend.reservations(&t, waiting).await.expect("a list");
    assert_eq!(waiting.iter().map(|r| r.call.as_str()).collect::<Vec<_>>(), ["q", "other-soon", "other-late"]);
}

async fn the_most_specific_is_meant(store: &Purse) {
    let scoped =
        |id: &str, run: Option<&str>, thread: Option<&str>, autopilot: Option<&str>, issued_ms: i64| Authorization {
            run: run.map(str::to_owned),
            thread: thread.map(str::to_owned),
            autopilot: autopilot.map(str::to_owned),
            issued_ms,
            ..authorization("scopes", id)
        };
    for new in [
        scoped("owner-old", None, None, None, 1),
        scoped("owner-b", None, None, None, 2),
        scoped("owner-a", None, None, None, 2),
        scoped("pilot", None, None, Some("p"), 1),
        scoped("thread", None, Some("t"), None, 1),
        scoped("thread-pilot", None, Some("t"), Some("p"), 1),
        scoped("run", Some("r"), None, None, 1),
        scoped("run-other", Some("r"), Some("u"), None, 9),
        Authorization { mode: Mode::Deny, ..scoped("denied", Some("no"), None, None, 1) },
        Authorization { owner: "bob".into(), ..scoped("bob", None, None, None, 9) },
        Authorization { currency: "sats".into(), ..scoped("sats", None, None, None, 9) },
    ] {
        issue(store, new).await;
    }
    store.spend.revoke(&tenant("scopes"), "run", "grace", "").await.expect("an answer").expect("revoked");
    let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    for (owner, run, thread, autopilot, currency, expected) in [
        ("ada", "", "", "", CURRENCY, Some("owner-b")),
        ("ada", "", "", "p", CURRENCY, Some("pilot")),
        ("ada", "", "", "q", CURRENCY, Some("owner-b")),
        ("ada", "", "t", "", CURRENCY, Some("thread")),
        ("ada", "", "t", "p", CURRENCY, Some("thread-pilot")),
        ("ada", "", "t", "q", CURRENCY, Some("thread")),
        // Revoked, and meant all the same; nothing broader is tried.
        ("ada", "r", "t", "p", CURRENCY, Some("run")),
        ("ada", "r", "u", "p", CURRENCY, Some("run-other")),
        ("ada", "no", "t", "p", CURRENCY, Some("denied")),
        ("ada", "s", "t", "p", CURRENCY, Some("thread-pilot")),
        ("bob", "r", "t", "p", CURRENCY, Some("bob")),
        ("ada", "r", "t", "p", "sats", Some("sats")),
        ("eve", "r", "t", "p", CURRENCY, None),
        ("ada", "", "", "", "euro_cents", None),
    ] {
        let scope = Scope { owner: owner.into(), run: name(run), thread: name(thread), autopilot: name(autopilot) };
        let found = store.spend.resolve(&tenant("scopes"), &scope, currency).await.expect("an answer");
        assert_eq!(found.as_ref().map(|a| a.id.as_str()), expected, "{scope:?}");
    }
    let scope = Scope { owner: "ada".into(), ..Scope::default() };
    assert_eq!(store.spend.resolve(&tenant("nobody"), &scope, CURRENCY).await.expect("an answer"), None);
}

async fn entries_come_with_the_money(store: &Purse) {
    issue(store, authorization("entries", "a")).await;
    let t = tenant("entries");
    let entries =
        |ids: &[&str]| -> Vec<Submission> { ids.iter().map(|id| submission(signal("entries", id))).collect() };
    reserve(store, wish("entries", "a", "c-1", 10)).await;
    settle(store, Settle { entries: entries(&["e-1", "e-2"]), ..end("entries", "a", "c-1", commit(10)) }).await;
    assert!(store.journal.entry(&t, "e-2").await.expect("an answer").is_some());
    // A replay appends nothing.
    let again = Settle { entries: entries(&["e-3"]), ..end("entries", "a", "c-1", commit(10)) };
    assert!(settle(store, again).await.replayed);
    assert!(store.journal.entry(&t, "e-3").await.expect("an answer").is_none());
    // Both or neither, whatever was decided before and after in the same batch.
    reserve(store, wish("entries", "a", "c-2", 10)).await;
    let mut other = signal("entries", "e-1");
    other["payload"] = json!({"other": true});
    let spoiled = vec![submission(signal("entries", "e-4")), submission(other.clone())];
    for bad in [vec![submission(other)], spoiled, vec![submission(json!({"type": "no"}))]] {
        let before = store.spend.reserve(wish("entries", "a", "c-3", 10));
        let refused = store.spend.settle(Settle { entries: bad, ..end("entries", "a", "c-2", commit(10)) });
        let after = store.spend.reserve(wish("entries", "a", "c-3", 10));
        before.await.expect("an answer").expect("reserved");
        assert_eq!(code(refused.await.expect("an answer")), Code::Entry);
        assert!(after.await.expect("an answer").expect("reserved").replayed);
        assert_eq!(figures(store, "entries", "a").await, (10, 20, 30));
    }
    assert!(store.journal.entry(&t, "e-4").await.expect("an answer").is_none());
    // With entries of the caller's own, a reconciliation says nothing more.
    settle(store, end("entries", "a", "c-2", unknown())).await;
    let told_before = told(&store.journal, "entries").await.len();
    let found = Settle { reconciles: true, entries: entries(&["e-5"]), ..end("entries", "a", "c-2", commit(9)) };
    settle(store, found).await;
    assert!(store.journal.entry(&t, "e-5").await.expect("an answer").is_some());
    assert_eq!(told(&store.journal, "entries").await.len(), told_before);
    // A tenant that has no ledger yet.
    assert_eq!(refused_reserve(store, wish("entries-none", "a", "c", 1)).await, Code::AuthorizationMissing);
    assert_eq!(refused_settle(store, end("entries-none", "a", "c", commit(1))).await, Code::NotFound);
}

/// So many at once that they are decided together: exactly as many get something as there is.
async fn many_at_once(store: &Purse) {
    issue(store, authorization("many", "a")).await;
    let waiting: Vec<_> = (0..200).map(|n| store.spend.reserve(wish("many", "a", &n.to_string(), 7))).collect();
    let mut held = Vec::new();
    for answer in waiting {
        match answer.await.expect("an answer") {
            Ok(got) => held.push(got.reservation.call),
            Err(refused) => assert_eq!(refused.code, Code::BudgetExhausted),
        }
    }
    assert_eq!(held.len(), 142);
    assert_eq!(figures(store, "many", "a").await, (0, 994, 994));
    let ends = held.iter().map(|call| store.spend.settle(end("many", "a", call, commit(5))));
    for answer in ends.collect::<Vec<_>>() {
        answer.await.expect("an answer").expect("settled");
    }
    assert_eq!(figures(store, "many", "a").await, (710, 0, 710));
}

async fn lists(store: &Purse) {
    let t = tenant("many");
    let list = async |filter: Filter| store.spend.reservations(&t, filter).await.expect("a list");
    let all = list(Filter { limit: 1_000, ..Filter::default() }).await;
    assert_eq!(all.len(), 142);
    let calls: Vec<u32> = all.iter().map(|r| r.call.parse().expect("a number")).collect();
    assert!(calls.is_sorted_by(|a, b| a > b), "{calls:?}");
    assert_eq!(list(Filter { limit: 3, ..Filter::default() }).await, all[..3]);
    let of = |authorization: &str, run: &str, state| Filter {
        authorization: Some(authorization.into()),
        run: Some(run.into()),
        state: Some(state),
        limit: 1_000,
    };
    assert_eq!(list(of("a", "r", ReservationState::Committed)).await, all);
    for none in [
        of("b", "r", ReservationState::Committed),
        of("a", "s", ReservationState::Committed),
        of("a", "r", ReservationState::Reserved),
        Filter::default(),
    ] {
        assert!(list(none.clone()).await.is_empty(), "{none:?}");
    }
    assert_eq!(
        store.spend.reservations(&tenant("nobody"), Filter { limit: 9, ..Filter::default() }).await,
        Ok(Vec::new())
    );
}
