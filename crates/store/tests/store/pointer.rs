//! Pointers under rivalry and under death: many openings of one store that fight for each change, a program that is
//! killed while it makes one, and a store made before there were any.

use std::sync::Arc;

use actum_ledger::journal::Outcome;
use actum_ledger::pointer::{Change, Pointed, change_of, entry_id};
use actum_ledger::refusal::Code;
use actum_store::{Location, Store, VERSION};
use actum_testkit::event::{signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::pointer::{change, own, row_of};
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::tenant;

use crate::{old, opened, rivals};

const SIGNATURE: &str = "@acme/mail/Sort.v2";

/// Row and entry say the same: the row's change is the newest there is, and its pointer the one that change left.
async fn agreed(store: &Arc<dyn Store>, when: &str) -> u64 {
    let t = tenant("t");
    assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0), "{when}");
    let found = store.pointer(&t, SIGNATURE).await.unwrap();
    let n = found.as_ref().map_or(0, |row| row.n);
    assert_eq!(store.entry(&t, &entry_id(SIGNATURE, n + 1)).await.unwrap(), None, "{when}: an entry without its row");
    if let Some(row) = found {
        let entry = store.entry(&t, &entry_id(SIGNATURE, n)).await.unwrap().unwrap();
        assert_eq!(row, row_of(&change_of(&entry).unwrap(), row.seq), "{when}");
    }
    n
}

const CHANGES: u64 = 15;

/// Everyone makes the same changes, one after the other. What they heard.
fn fight(location: &Location) -> Vec<(Change, Outcome)> {
    let heard = rivals(location, 1..=CHANGES, |name, n, runtime, store| {
        let wish = Change { actor: format!("operator-{name}"), ..change("t", SIGNATURE, n) };
        let outcome = runtime.block_on(store.append(own(&wish)));
        // Whoever lost sees what came before him.
        (wish, outcome, runtime.block_on(store.pointer(&tenant("t"), SIGNATURE)))
    });
    let judge = |(wish, outcome, seen): (Change, Result<Outcome, _>, Result<Option<Pointed>, _>)| {
        assert!(seen.unwrap().unwrap().n >= wish.n);
        (wish, outcome.unwrap())
    };
    heard.into_iter().map(judge).collect()
}

fn one_wins_each_change(location: &Location) {
    drop(opened(location));
    let mut made = Vec::new();
    for (wish, outcome) in fight(location) {
        match outcome {
            Outcome::Created { .. } => made.push(wish),
            Outcome::Refused(refusal) => assert_eq!(refusal.code, Code::IdempotencyConflict),
            Outcome::Idempotent { .. } => panic!("nobody makes the same change twice"),
        }
    }
    made.sort_by_key(|change| change.n);
    assert!(made.iter().map(|change| change.n).eq(1..=CHANGES), "each change was made once");
    let (runtime, store) = opened(location);
    runtime.block_on(async {
        assert_eq!(agreed(&store, "afterwards").await, CHANGES);
        for change in made {
            let entry = store.entry(&tenant("t"), &entry_id(SIGNATURE, change.n)).await.unwrap();
            assert_eq!(change_of(&entry.unwrap()), Some(change));
        }
    });
}

#[test]
fn one_wins_each_change_on_sqlite() {
    let folder = Folder::new();
    one_wins_each_change(&Location::Sqlite(folder.join("actum.db")));
}

#[test]
fn one_wins_each_change_on_postgres() {
    one_wins_each_change(&Location::Postgres(shared_url()));
}

/// What a store of version 4 can do once it is migrated: all it could, and pointers.
async fn goes_on(store: &Arc<dyn Store>) {
    assert_eq!(store.versions(), (4, VERSION));
    assert_eq!(store.pointers(&tenant("t")).await.unwrap(), Vec::<Pointed>::new());
    assert!(matches!(store.append(submission(signal("t", "s-1"))).await, Ok(Outcome::Created { seq: 0, .. })));
    assert!(matches!(store.append(own(&change("t", SIGNATURE, 1))).await, Ok(Outcome::Created { seq: 1, .. })));
    assert_eq!(agreed(store, "migrated").await, 1);
}

#[test]
fn a_store_of_version_4_is_migrated() {
    let folder = Folder::new();
    let (runtime, store) = old::migrated(&old::sqlite(folder.join("actum.db"), 4));
    runtime.block_on(goes_on(&store));
}

#[test]
fn a_shared_store_of_version_4_is_migrated() {
    let (runtime, store) = old::migrated(&old::postgres(4));
    runtime.block_on(goes_on(&store));
}

// There are no places to die at in a release build.
#[cfg(debug_assertions)]
mod killed {
    use actum_store::CRASH_POINTS;

    use super::*;
    use crate::death;

    /// What the other process is told: the store, where to die, and which change to make.
    const ORDER: [&str; 3] = ["ACTUM_TEST_STORE", "ACTUM_TEST_PLACE", "ACTUM_TEST_CHANGE"];

    /// The other process: makes the store ready and a change, keeps a checkpoint, makes the projections anew. Without an
    /// order it has nothing to do.
    #[test]
    fn makes_a_change_and_dies() {
        let Some([store, place, n]) = death::told(ORDER) else { return };
        death::waits_at(place);
        let (runtime, store) = opened(&Location::parse(&store).unwrap());
        runtime.block_on(async {
            store.append(own(&change("t", SIGNATURE, n.parse().unwrap()))).await.unwrap();
            store.keep_checkpoint(&tenant("u"), 1, "note").await.unwrap();
            store.projections(true).await.unwrap();
        });
    }

    /// Those of runs, money and blobs are not on the way of a pointer.
    fn places() -> impl Iterator<Item = &'static str> {
        let on_the_way =
            |place: &&str| ["migrate.", "append.", "checkpoint.", "rebuild."].iter().any(|p| place.starts_with(p));
        CRASH_POINTS.iter().copied().filter(on_the_way)
    }

    fn at_each_place(url: &str) {
        let location = Location::parse(url).unwrap();
        let mut made = 0;
        for place in places() {
            // Only who makes the tables dies of making them.
            for _ in 0..if place == "migrate.applied" { 1 } else { 2 } {
                let n = made + 1;
                let values = [url, place, &n.to_string()];
                assert!(
                    death::comes_by("pointer::killed::makes_a_change_and_dies", ORDER.into_iter().zip(values)),
                    "{place}: it lived"
                );

                let (runtime, store) = opened(&location);
                runtime.block_on(async {
                    let before = ["migrate.applied", "append.begun", "append.inserted", "append.written"];
                    let there = !before.contains(&place);
                    assert_eq!(agreed(&store, place).await, if there { n } else { made }, "{place}");
                    let outcome = store.append(own(&change("t", SIGNATURE, n))).await.unwrap();
                    assert_eq!(matches!(outcome, Outcome::Idempotent { .. }), there, "{place}: {outcome:?}");
                    assert_eq!(agreed(&store, place).await, n, "{place}");
                    assert!(store.check_database().await.unwrap().ok, "{place}");
                });
                made = n;
            }
        }
        assert_eq!(made, 15);
    }

    #[test]
    fn at_each_place_on_sqlite() {
        let folder = Folder::new();
        at_each_place(folder.join("actum.db").to_str().unwrap());
    }

    #[test]
    fn at_each_place_on_postgres() {
        at_each_place(&shared_url());
    }
}
