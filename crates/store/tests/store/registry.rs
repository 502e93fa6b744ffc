//! A program that is killed while it changes the registry, at every place of an append: what is registered still
//! follows from the journal, and the change was made or was not.

// There are no places to die at in a release build.
#![cfg(debug_assertions)]

use actum_ledger::journal::Outcome;
use actum_ledger::registry::Kind;
use actum_store::{CRASH_POINTS, Location};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::registry::{change, own};
use actum_testkit::runs::tenant;

use crate::{death, opened};

/// What the other process is told: the store, where to die, and which change to make.
const ORDER: [&str; 3] = ["ACTUM_TEST_STORE", "ACTUM_TEST_PLACE", "ACTUM_TEST_CHANGE"];

/// The other process. Without an order it has nothing to do.
#[test]
fn makes_a_change_and_dies() {
    let Some([store, place, n]) = death::told(ORDER) else { return };
    let (runtime, store) = opened(&Location::parse(&store).unwrap());
    death::waits_at(place);
    let change = change("t", Kind::Tool, "grep", n.parse().unwrap());
    runtime.block_on(store.append(own(&change))).unwrap();
}

fn killed_at_each_place(url: &str) {
    let location = Location::parse(url).unwrap();
    let mut made = 0;
    // Made before, so that nobody dies of making the tables.
    drop(opened(&location));
    for place in CRASH_POINTS.iter().filter(|place| place.starts_with("append.")) {
        for _ in 0..2 {
            let n = made + 1;
            let values = [url, place, &n.to_string()];
            assert!(
                death::comes_by("registry::makes_a_change_and_dies", ORDER.into_iter().zip(values)),
                "{place}: it lived"
            );

            let (runtime, store) = opened(&location);
            runtime.block_on(async {
                assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0), "{place}");
                let found = store.item(&tenant("t"), Kind::Tool, "grep").await.unwrap().map_or(0, |item| item.n);
                let there = *place == "append.committed";
                assert_eq!(found, if there { n } else { made }, "{place}");
                let outcome = store.append(own(&change("t", Kind::Tool, "grep", n))).await.unwrap();
                assert_eq!(matches!(outcome, Outcome::Idempotent { .. }), there, "{place}: {outcome:?}");
                assert_eq!(store.item(&tenant("t"), Kind::Tool, "grep").await.unwrap().unwrap().n, n);
            });
            made = n;
        }
    }
    assert_eq!(made, 8);
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
