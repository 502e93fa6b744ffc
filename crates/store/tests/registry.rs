//! A program that is killed while it changes the registry, at every place of an append: what is registered still
//! follows from the journal, and the change was made or was not.

// There are no places to die at in a release build.
#![cfg(debug_assertions)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::disallowed_methods, reason = "a test that kills itself needs another process to die in")]

use std::process::{Command, Stdio};
use std::sync::Arc;

use actum_ledger::journal::Outcome;
use actum_ledger::registry::Kind;
use actum_store::{CRASH_POINTS, Location, Older, Store, open};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::registry::{change, own};
use actum_testkit::runs::tenant;
use tokio::runtime::Runtime;

/// What the other process is told: the store, where to die, and which change to make.
const ORDER: [&str; 3] = ["ACTUM_TEST_STORE", "ACTUM_TEST_PLACE", "ACTUM_TEST_CHANGE"];

fn opened(location: &Location) -> (Runtime, Arc<dyn Store>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(open(location, Older::Migrate)).unwrap();
    (runtime, store)
}

/// The other process. Without an order it has nothing to do.
#[test]
fn makes_a_change_and_dies() {
    let [Ok(store), Ok(place), Ok(n)] = ORDER.map(std::env::var) else { return };
    let (runtime, store) = opened(&Location::parse(&store).unwrap());
    actum_contract::crash::arm(Box::new(move |passed| {
        if passed == place {
            std::process::abort();
        }
    }));
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
            let mut other = Command::new(std::env::current_exe().unwrap());
            let values = [url, place, &n.to_string()];
            other.args(["--exact", "makes_a_change_and_dies"]).envs(ORDER.iter().zip(values));
            let ended = other.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            assert!(ended.code().is_none(), "{place}: it lived");

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
