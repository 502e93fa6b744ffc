//! A program that is killed while it reserves or settles, at every place of a write: the money was moved, with its entry, or
//! it was not; and what was moved is moved once.

// There are no places to die at in a release build.
#![cfg(debug_assertions)]

use std::sync::Arc;

use actum_ledger::spend::{ReservationState, Settle, Spend};
use actum_store::{Location, Store};
use actum_testkit::event::{signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::tenant;
use actum_testkit::spend::{authorization, commit, end, wish};

use crate::{death, opened};

/// What the other process is told: the store, where to die, whether to settle, and which call.
const ORDER: [&str; 4] = ["ACTUM_TEST_STORE", "ACTUM_TEST_PLACE", "ACTUM_TEST_SETTLES", "ACTUM_TEST_CALL"];

/// The places a write about money passes, in order.
const PLACES: [&str; 5] = ["append.begun", "append.inserted", "spend.written", "append.written", "append.committed"];

fn ending(call: &str) -> Settle {
    let receipt = submission(signal("t", &format!("receipt-{call}")));
    Settle { entries: vec![receipt], ..end("t", "a", call, commit(7)) }
}

/// The other process. Without an order it has nothing to do.
#[test]
fn moves_money_and_dies() {
    let Some([store, place, settles, call]) = death::told(ORDER) else { return };
    let (runtime, store) = opened(&Location::parse(&store).unwrap());
    death::waits_at(place);
    match settles == "yes" {
        true => runtime.block_on(Spend::settle(&*store, ending(&call))).unwrap().unwrap(),
        false => runtime.block_on(store.reserve(wish("t", "a", &call, 10))).unwrap().unwrap(),
    };
}

fn killed_at_each_place(url: &str) {
    let location = Location::parse(url).unwrap();
    let (runtime, store) = opened(&location);
    runtime.block_on(store.authorize(authorization("t", "a"), "ada", "")).unwrap().unwrap();
    drop((store, runtime));
    let mut spent = 0;
    for place in PLACES {
        let call = format!("call-at-{place}");
        let killed = |settles: &str| {
            let order = ORDER.into_iter().zip([url, place, settles, &call]);
            death::comes_by("spend_crash::moves_money_and_dies", order)
        };
        let there = place == "append.committed";
        let figures = async |store: &Arc<dyn Store>| {
            assert!(store.check_spend().await.unwrap().ok, "{place}");
            assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0), "{place}");
            let a = store.authorization(&tenant("t"), "a").await.unwrap().unwrap();
            (a.spent, a.reserved)
        };

        // A reservation has no entry, so on SQLite it does not pass the place of one.
        let died = killed("no");
        assert!(died || place == "append.inserted", "{place}: it lived");
        let made = there || !died;
        let (runtime, store) = opened(&location);
        runtime.block_on(async {
            assert_eq!(figures(&store).await, (spent, if made { 10 } else { 0 }), "{place}");
            let held = store.reserve(wish("t", "a", &call, 10)).await.unwrap().unwrap();
            assert_eq!((held.replayed, held.authorization.reserved), (made, 10), "{place}");
        });
        drop((store, runtime));

        assert!(killed("yes"), "{place}: it lived");
        let (runtime, store) = opened(&location);
        runtime.block_on(async {
            let receipt = store.entry(&tenant("t"), &format!("receipt-{call}")).await.unwrap();
            assert_eq!(receipt.is_some(), there, "{place}");
            assert_eq!(figures(&store).await, if there { (spent + 7, 0) } else { (spent, 10) }, "{place}");
            // The one who comes after it finds it among those of the dead, or ended.
            let stuck = store.mark_stuck(&tenant("t"), Some("r")).await.unwrap();
            assert_eq!(stuck.len(), usize::from(!there), "{place}");
            let found = Settle { reconciles: true, ..end("t", "a", &call, commit(7)) };
            let held = Spend::settle(&*store, found.clone()).await.unwrap().unwrap();
            assert_eq!((held.replayed, held.reservation.reconciled), (there, !there), "{place}");
            assert!(Spend::settle(&*store, found).await.unwrap().unwrap().replayed, "reconciled once");
            assert_eq!(held.reservation.state, ReservationState::Committed);
            spent += 7;
            assert_eq!(figures(&store).await, (spent, 0), "{place}");
        });
    }
}

#[test]
fn sqlite_killed_at_each_place() {
    let folder = Folder::new();
    killed_at_each_place(folder.join("actum.db").to_str().unwrap());
}

#[test]
fn postgres_killed_at_each_place() {
    killed_at_each_place(&shared_url());
}
