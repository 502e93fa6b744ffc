//! Money under pressure: random histories against a naive model, many clients at once with failures of every kind, and a
//! program that is killed at every place of a write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use actum_ledger::journal::Work;
use actum_ledger::spend::{
    Answer, Authorization, Code, Filter, Held, How, OVERRUN, Reservation, ReservationState, Reserve, STALE, Settle,
    Spend,
};
use actum_store::{Location, Store};
use actum_testkit::dice::Dice;
use actum_testkit::event::{signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::tenant;
use actum_testkit::spend::{authorization, commit, end, release, told, unknown, wish};

use crate::{opened, runtime};

fn settle(store: &Arc<dyn Store>, end: Settle) -> Work<'static, Answer<Held>> {
    Spend::settle(&**store, end)
}

async fn all_of(store: &Arc<dyn Store>, name: &str) -> Vec<Reservation> {
    store.reservations(&tenant(name), Filter { limit: 10_000, ..Filter::default() }).await.unwrap()
}

/// A reservation, without a thought for speed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plain {
    amount: u64,
    state: ReservationState,
    committed: Option<u64>,
    reason: Option<String>,
    reconciled: bool,
}

/// The rules, read off the decisions: totals are added up anew for every question.
#[derive(Default)]
struct Model {
    /// Limits, and what it is within.
    authorizations: BTreeMap<&'static str, (u64, Option<&'static str>, bool)>,
    /// By authorization and call.
    reservations: BTreeMap<(&'static str, String), Plain>,
}

impl Model {
    /// Whether an amount under `below` counts for `above`.
    fn counts(&self, below: &str, above: &str) -> bool {
        below == above || self.authorizations[below].1.is_some_and(|next| self.counts(next, above))
    }

    fn figures(&self, id: &str) -> (u64, u64) {
        let of = self.reservations.iter().filter(|((under, _), _)| self.counts(under, id));
        of.fold((0, 0), |(spent, held), (_, r)| match r.state {
            ReservationState::Committed => (spent + r.committed.unwrap(), held),
            ReservationState::Released => (spent, held),
            ReservationState::Reserved | ReservationState::ReconcileRequired => (spent, held + r.amount),
        })
    }

    fn reserve(&mut self, id: &'static str, call: &str, amount: u64) -> Result<(), Code> {
        let key = (id, call.to_owned());
        if let Some(found) = self.reservations.get(&key) {
            return match found.state {
                ReservationState::ReconcileRequired => Err(Code::ReconcileRequired),
                _ if found.amount != amount => Err(Code::IdempotencyConflict),
                ReservationState::Reserved => Ok(()),
                _ => Err(Code::AlreadyFinalized),
            };
        }
        let mut next = Some(id);
        while let Some(one) = next {
            let (max, above, revoked) = self.authorizations[one];
            let (spent, held) = self.figures(one);
            if revoked {
                return Err(Code::AuthorizationRevoked);
            }
            if spent + held + amount > max.max(spent + held) {
                return Err(Code::BudgetExhausted);
            }
            next = above;
        }
        let state = ReservationState::Reserved;
        self.reservations.insert(key, Plain { amount, state, committed: None, reason: None, reconciled: false });
        Ok(())
    }

    fn settle(&mut self, id: &'static str, call: &str, how: &How, reconciles: bool) -> Result<(), Code> {
        use ReservationState as S;
        let Some(found) = self.reservations.get_mut(&(id, call.to_owned())) else { return Err(Code::NotFound) };
        match (found.state, how) {
            (S::Committed, How::Commit { amount, .. }) if found.committed == Some(*amount) => return Ok(()),
            (S::Released, How::Release { .. }) | (S::ReconcileRequired, How::Unknown { .. }) => return Ok(()),
            (S::Committed | S::Released, _) => return Err(Code::InvalidTransition),
            (S::Reserved, _) if reconciles => return Err(Code::InvalidTransition),
            (S::ReconcileRequired, _) if !reconciles => return Err(Code::ReconcileRequired),
            _ => {}
        }
        found.reconciled = reconciles;
        match how {
            How::Commit { amount, .. } => {
                (found.state, found.committed) = (S::Committed, Some(*amount));
                if *amount > found.amount {
                    found.reason = Some(OVERRUN.into());
                }
            }
            How::Release { reason } => (found.state, found.reason) = (S::Released, Some(reason.clone())),
            How::Unknown { reason } => (found.state, found.reason) = (S::ReconcileRequired, Some(reason.clone())),
        }
        Ok(())
    }

    fn stuck(&mut self) -> BTreeSet<(&'static str, String)> {
        let mut changed = BTreeSet::new();
        for (key, found) in &mut self.reservations {
            if found.state == ReservationState::Reserved {
                (found.state, found.reason) = (ReservationState::ReconcileRequired, Some(STALE.into()));
                changed.insert(key.clone());
            }
        }
        changed
    }
}

const IDS: [&str; 4] = ["top", "a", "b", "alone"];

fn budgets(name: &str) -> [Authorization; 4] {
    let limited = |id: &str, max_total, within: Option<&str>| Authorization {
        max_total: Some(max_total),
        within: within.map(str::to_owned),
        ..authorization(name, id)
    };
    [
        limited("top", 300, None),
        limited("a", 200, Some("top")),
        limited("b", 200, Some("top")),
        limited("alone", 100, None),
    ]
}

/// One random history: some requests at a time, answered as if one by one.
async fn play(store: &Arc<dyn Store>, name: &str, dice: &mut Dice) {
    let mut model = Model::default();
    for (new, id) in budgets(name).into_iter().zip(IDS) {
        let above = (id == "a" || id == "b").then_some("top");
        model.authorizations.insert(id, (new.max_total.unwrap(), above, false));
        store.authorize(new, "ada", "").await.unwrap().unwrap();
    }
    for _ in 0..25 {
        let mut expected = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..=dice.roll(6) {
            let (id, call) = (IDS[dice.roll(4) as usize], format!("c-{}", dice.roll(10)));
            let amount = dice.roll(90);
            if dice.roll(2) == 0 {
                expected.push(model.reserve(id, &call, amount));
                answers.push(store.reserve(wish(name, id, &call, amount)));
                continue;
            }
            let how = match dice.roll(4) {
                0 | 1 => commit(amount),
                2 => release(),
                _ => unknown(),
            };
            let reconciles = dice.roll(3) == 0;
            expected.push(model.settle(id, &call, &how, reconciles));
            answers.push(settle(store, Settle { reconciles, ..end(name, id, &call, how) }));
        }
        for (answer, expected) in answers.into_iter().zip(expected) {
            assert_eq!(answer.await.unwrap().map(|_| ()).map_err(|refused| refused.code), expected);
        }
        if dice.roll(12) == 0 {
            let marked = store.mark_stuck(&tenant(name), Some("r")).await.unwrap();
            let marked: BTreeSet<_> = marked.into_iter().map(|r| (r.authorization, r.call)).collect();
            let expected: BTreeSet<_> = model.stuck().into_iter().map(|(id, call)| (id.to_owned(), call)).collect();
            assert_eq!(marked, expected);
        }
        if dice.roll(30) == 0 {
            store.revoke(&tenant(name), "b", "ada", "").await.unwrap().unwrap();
            model.authorizations.get_mut("b").unwrap().2 = true;
        }
    }
    for id in IDS {
        let stored = store.authorization(&tenant(name), id).await.unwrap().unwrap();
        assert_eq!((stored.spent, stored.reserved), model.figures(id), "{id}");
    }
    let rows = all_of(store, name).await;
    assert_eq!(rows.len(), model.reservations.len());
    for row in rows {
        let key = (IDS.into_iter().find(|id| *id == row.authorization).unwrap(), row.call);
        let Reservation { amount, state, committed, reason, reconciled, .. } = row;
        assert_eq!(Plain { amount, state, committed, reason, reconciled }, model.reservations[&key], "{key:?}");
    }
}

fn plays_as_the_model(location: &Location, histories: u64) {
    let (runtime, store) = opened(location);
    for seed in 0..histories {
        runtime.block_on(play(&store, &format!("h-{seed}"), &mut Dice::new(seed)));
    }
    assert!(runtime.block_on(store.check_spend()).unwrap().ok);
}

#[test]
fn plays_as_the_model_on_sqlite() {
    let folder = Folder::new();
    plays_as_the_model(&Location::Sqlite(folder.join("actum.db")), 60);
}

#[test]
fn plays_as_the_model_on_postgres() {
    plays_as_the_model(&Location::Postgres(shared_url()), 40);
}

const CLIENTS: u64 = 16;
const CALLS: u64 = 40;
/// What the crowd may spend in all and on a day: less than it wants.
const TOTAL: u64 = 9_000;
const DAILY: u64 = 8_000;

/// What one client knows in the end, by call: what it came to, if the store said so.
type Seen = Vec<(String, Option<u64>)>;

/// One client: reserves, and then does what clients do — settles, settles twice, forgets, does not know, spends more.
fn client(store: &Arc<dyn Store>, n: u64, overruns: &AtomicU64) -> Seen {
    let (runtime, mut dice, mut seen) = (runtime(), Dice::new(n), Vec::new());
    let id = if n.is_multiple_of(2) { "even" } else { "odd" };
    for k in 0..CALLS {
        let (call, amount) = (format!("{n}-{k}"), dice.roll(100));
        let wish = Reserve { run: format!("run-{n}"), hold_ms: 0, ..wish("crowd", id, &call, amount) };
        let within = |a: &Authorization| {
            let over = overruns.load(Ordering::SeqCst);
            assert!(a.spent + a.reserved <= a.max_total.unwrap_or(u64::MAX).saturating_add(over), "{a:?}");
            assert!(a.day_held <= a.max_per_day.unwrap_or(u64::MAX).saturating_add(over), "{a:?}");
        };
        match runtime.block_on(store.reserve(wish.clone())).unwrap() {
            Ok(held) => within(&held.authorization),
            Err(refused) => {
                assert!(matches!(refused.code, Code::BudgetExhausted | Code::PerDay), "{refused:?}");
                within(&refused.authorization.unwrap());
                continue;
            }
        }
        if dice.roll(4) == 0 {
            // The answer was lost on its way: asked again it is the same, unless somebody has given it up meanwhile.
            match runtime.block_on(store.reserve(wish)).unwrap() {
                Ok(held) => assert!(held.replayed),
                Err(refused) => assert!(matches!(refused.code, Code::ReconcileRequired | Code::AlreadyFinalized)),
            }
        }
        let how = match dice.roll(10) {
            0..=4 => commit(dice.roll(amount + 1)),
            5 => {
                overruns.fetch_add(7, Ordering::SeqCst);
                commit(amount + 7)
            }
            6 => release(),
            7 => unknown(),
            // It dies.
            _ => {
                seen.push((call, None));
                continue;
            }
        };
        let receipt = submission(signal("crowd", &format!("receipt-{call}")));
        let run = format!("run-{n}");
        let ending = Settle { run, entries: vec![receipt], ..end("crowd", id, &call, how.clone()) };
        let came_to = match runtime.block_on(settle(store, ending.clone())).unwrap() {
            // Somebody else has found out already, and found the same.
            Ok(held) if held.replayed => None,
            Ok(held) => {
                within(&held.authorization);
                if dice.roll(3) == 0 {
                    let again = runtime.block_on(settle(store, ending)).unwrap();
                    assert!(matches!(how, How::Unknown { .. }) || again.unwrap().replayed);
                }
                match how {
                    How::Commit { amount, .. } => Some(amount),
                    How::Release { .. } => Some(0),
                    How::Unknown { .. } => None,
                }
            }
            Err(refused) => {
                assert!(matches!(refused.code, Code::ReconcileRequired | Code::InvalidTransition), "{refused:?}");
                None
            }
        };
        seen.push((call, came_to));
    }
    seen
}

/// Finds out about what is stuck while the others go on, and is not the only one to do so.
fn reconciler(location: &Location, seed: u64, over: &AtomicU64, overruns: &AtomicU64) -> BTreeMap<String, u64> {
    // It asks questions, and those are answered on the runtime that opened the store.
    let (runtime, store) = opened(location);
    let (store, mut dice, mut found_out) = (&store, Dice::new(seed), BTreeMap::new());
    let t = tenant("crowd");
    loop {
        let last = over.load(Ordering::SeqCst) == CLIENTS;
        runtime.block_on(store.mark_stuck(&t, None)).unwrap();
        let filter = Filter { state: Some(ReservationState::ReconcileRequired), limit: 1_000, ..Filter::default() };
        for lost in runtime.block_on(store.reservations(&t, filter)).unwrap() {
            let amount = dice.roll(lost.amount + 3);
            overruns.fetch_add(amount.saturating_sub(lost.amount), Ordering::SeqCst);
            let how = if dice.roll(3) == 0 { release() } else { commit(amount) };
            let came_to = if let How::Commit { amount, .. } = how { amount } else { 0 };
            let Reservation { authorization, run, call, .. } = lost;
            let ending = Settle { run, reconciles: true, ..end("crowd", &authorization, &call, how) };
            match runtime.block_on(settle(store, ending)).unwrap() {
                Ok(held) if !held.replayed => assert_eq!(found_out.insert(call, came_to), None),
                Ok(_) => {}
                Err(refused) => assert_eq!(refused.code, Code::InvalidTransition),
            }
        }
        if last {
            return found_out;
        }
    }
}

/// Counts those that are gone, however they went.
struct Gone<'a>(&'a AtomicU64);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sixteen clients on two handles, as if on two machines, and two who reconcile on handles of their own.
fn a_crowd(location: &Location) {
    let handles = [opened(location), opened(location)];
    let (runtime, store) = opened(location);
    let top = Authorization { max_total: Some(TOTAL), max_per_day: Some(DAILY), ..authorization("crowd", "top") };
    let below = |id: &str| Authorization { max_total: None, within: Some("top".into()), ..authorization("crowd", id) };
    for new in [top, below("even"), Authorization { max_total: Some(4_000), ..below("odd") }] {
        runtime.block_on(store.authorize(new, "ada", "")).unwrap().unwrap();
    }
    let (overruns, over) = (AtomicU64::new(0), AtomicU64::new(0));
    let (seen, found_out) = thread::scope(|scope| {
        let (overruns, over, handles) = (&overruns, &over, &handles);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                scope.spawn(move || {
                    let _gone = Gone(over);
                    client(&handles[n as usize % 2].1, n, overruns)
                })
            })
            .collect();
        let reconcilers = [0, 1].map(|n| scope.spawn(move || reconciler(location, n, over, overruns)));
        let seen: BTreeMap<_, _> = clients.into_iter().flat_map(|t| t.join().unwrap()).collect();
        (seen, reconcilers.map(|t| t.join().unwrap()))
    });

    let [first, second] = found_out;
    assert!(first.keys().all(|call| !second.contains_key(call)), "reconciled twice");
    let rows = runtime.block_on(all_of(&store, "crowd"));
    assert_eq!(rows.len(), seen.len());
    let mut spent = BTreeMap::from([("even", 0), ("odd", 0)]);
    for row in &rows {
        // Every one has ended, as exactly one was told that it did.
        let came_to = row.committed.unwrap_or(0);
        let told = [seen[&row.call], first.get(&row.call).copied(), second.get(&row.call).copied()];
        assert_eq!(told.into_iter().flatten().collect::<Vec<_>>(), [came_to], "{row:?}");
        assert_eq!(row.state == ReservationState::Released, row.committed.is_none(), "{row:?}");
        assert_eq!(row.reconciled, seen[&row.call].is_none(), "{row:?}");
        *spent.get_mut(row.authorization.as_str()).unwrap() += came_to;
    }
    let sum: u64 = spent.values().sum();
    for (id, spent) in spent.into_iter().chain([("top", sum)]) {
        let stored = runtime.block_on(store.authorization(&tenant("crowd"), id)).unwrap().unwrap();
        assert_eq!((stored.spent, stored.reserved), (spent, 0), "{id}");
        let over: u64 = rows.iter().map(|r| r.committed.unwrap_or(0).saturating_sub(r.amount)).sum();
        assert!(stored.max_total.is_none_or(|max| spent <= max + over), "{stored:?}");
    }
    assert!(sum > TOTAL / 4, "{sum}: hardly anything happened");
    runtime.block_on(async {
        let check = store.check_spend().await.unwrap();
        assert!(check.ok, "{}", check.detail);
        assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
        // The ledger has a receipt of everything that was settled by its caller, and was told of the rest.
        let journal: Arc<dyn actum_ledger::Journal> = Arc::<dyn Store>::clone(&store);
        let told = told(&journal, "crowd").await;
        let of = |what: &str| told.iter().filter(|p| p["action"].as_str().unwrap().starts_with(what)).count();
        assert_eq!(of("reconcile_"), first.len() + second.len());
        let overrun = |r: &&Reservation| !r.reconciled && r.committed.is_some_and(|amount| amount > r.amount);
        assert_eq!(of("overrun"), rows.iter().filter(overrun).count());
        for (call, came_to) in &seen {
            let receipt = store.entry(&tenant("crowd"), &format!("receipt-{call}")).await.unwrap();
            assert!(came_to.is_none() || receipt.is_some(), "{call}");
        }
    });
}

#[test]
fn a_crowd_on_sqlite() {
    let folder = Folder::new();
    a_crowd(&Location::Sqlite(folder.join("actum.db")));
}

#[test]
fn a_crowd_on_postgres() {
    a_crowd(&Location::Postgres(shared_url()));
}
