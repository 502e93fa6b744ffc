//! Tokens under rivalry and under death: many openings of one store that want the same id, revoke the same token and keep an
//! answer under the same key, a program that is killed meanwhile, and a store made before there were any.

use std::ops::RangeInclusive;
use std::sync::Arc;

use actum_ledger::access::{Change, Token, change_of, entry_id};
use actum_ledger::journal::{JournalError, Outcome};
use actum_ledger::refusal::Code;
use actum_store::{Location, Store, VERSION};
use actum_testkit::access::{answer, create, id, own, revoke, row_of};
use actum_testkit::event::{signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::tenant;

use crate::{old, opened, rivals};

/// What they fight for.
const FIGHTS: RangeInclusive<u64> = 0..=9;

type Heard = (usize, u64, Outcome, Outcome, bool);

/// Everyone makes a token for its own tenant with an id that all want, revokes one that all revoke, and keeps an answer under a
/// key that all use. What they heard.
fn fight(location: &Location) -> Vec<Heard> {
    let heard = rivals(location, FIGHTS, |name, n, runtime, store| {
        let wish = create(&format!("tenant-{name}"), &id(n));
        let made = runtime.block_on(store.append(own(&wish)));
        let wish = Change { actor: format!("operator-{name}"), ..revoke(&create("shared", &id(1_000 + n))) };
        let revoked = runtime.block_on(store.append(own(&wish)));
        let (key, body) = (n.to_string(), name.to_string());
        let (shared, token) = (tenant("shared"), id(1_000));
        let kept = store.keep(&shared, &token, &key, answer(body.as_bytes(), 1_000));
        (name, n, made, revoked, runtime.block_on(kept))
    });
    let judged = heard.into_iter();
    judged.map(|(name, n, made, revoked, kept)| (name, n, made.unwrap(), revoked.unwrap(), kept.unwrap())).collect()
}

fn is_first(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Created { .. } => true,
        Outcome::Refused(refusal) => {
            assert_eq!(refusal.code, Code::IdempotencyConflict, "{refusal}");
            false
        }
        Outcome::Idempotent { .. } => panic!("nobody does the same twice"),
    }
}

fn one_wins(location: &Location) {
    let (runtime, store) = opened(location);
    for n in FIGHTS {
        runtime.block_on(store.append(own(&create("shared", &id(1_000 + n))))).unwrap();
    }
    let heard = fight(location);
    runtime.block_on(async {
        for n in FIGHTS {
            let of = |won: fn(&Heard) -> bool| {
                let all: Vec<_> = heard.iter().filter(|one| one.1 == n && won(one)).map(|one| one.0).collect();
                let [winner] = all[..] else { panic!("{n}: {} have won", all.len()) };
                winner
            };
            let (made, revoked) = (of(|one| is_first(&one.2)), of(|one| is_first(&one.3)));
            let wish = create(&format!("tenant-{made}"), &id(n));
            assert_eq!(store.token(&id(n)).await.unwrap(), Some(row_of(&wish)));
            let entry = store.entry(&tenant("shared"), &entry_id(&id(1_000 + n), 2)).await.unwrap().unwrap();
            assert_eq!(change_of(&entry).unwrap().actor, format!("operator-{revoked}"));
            assert!(store.token(&id(1_000 + n)).await.unwrap().unwrap().is_revoked);
            let kept = store.kept(&tenant("shared"), &id(1_000), &n.to_string()).await.unwrap().unwrap();
            assert_eq!(kept.body, of(|one| one.4).to_string().into_bytes());
        }
        assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
    });
}

#[test]
fn one_wins_on_sqlite() {
    let folder = Folder::new();
    one_wins(&Location::Sqlite(folder.join("actum.db")));
}

#[test]
fn one_wins_on_postgres() {
    one_wins(&Location::Postgres(shared_url()));
}

/// What a store of version 5 can do once it is migrated: all it could, and tokens.
async fn goes_on(store: &Arc<dyn Store>) {
    assert_eq!(store.versions(), (5, VERSION));
    assert_eq!(store.tokens(&tenant("t")).await.unwrap(), Vec::<Token>::new());
    assert!(matches!(store.append(submission(signal("t", "s-1"))).await, Ok(Outcome::Created { seq: 0, .. })));
    let first = create("t", &id(1));
    assert!(matches!(store.append(own(&first)).await, Ok(Outcome::Created { seq: 1, .. })));
    assert_eq!(store.token(&id(1)).await.unwrap(), Some(row_of(&first)));
    assert!(store.keep(&tenant("t"), &id(1), "k", answer(b"a", 1)).await.unwrap());
    assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
}

#[test]
fn a_store_of_version_5_is_migrated() {
    let folder = Folder::new();
    let (runtime, store) = old::migrated(&old::sqlite(folder.join("actum.db"), 5));
    runtime.block_on(goes_on(&store));
}

#[test]
fn a_shared_store_of_version_5_is_migrated() {
    let (runtime, store) = old::migrated(&old::postgres(5));
    runtime.block_on(goes_on(&store));
}

/// A batch of all kinds: what refuses one leaves the others alone.
#[test]
fn a_bad_key_takes_nobody_down() {
    let folder = Folder::new();
    for location in [Location::Sqlite(folder.join("actum.db")), Location::Postgres(shared_url())] {
        let (runtime, store) = opened(&location);
        runtime.block_on(async {
            let (t, token) = (tenant("t"), id(1));
            let made = store.append(own(&create("t", &token)));
            let bad = store.keep(&t, &token, "a\0b", answer(b"", 1));
            let long = "k".repeat(10_000);
            let long = store.keep(&t, &token, &long, answer(b"", 1));
            let good = store.keep(&t, &token, "good", answer(b"", 1));
            let again = store.keep(&t, &token, "good", answer(b"x", 1));
            assert!(matches!(made.await, Ok(Outcome::Created { .. })));
            assert!(matches!(bad.await, Err(JournalError::Unusable(_))));
            assert!(matches!(long.await, Err(JournalError::Unusable(_))));
            assert_eq!((good.await, again.await), (Ok(true), Ok(false)));
            assert!(matches!(store.kept(&t, &token, "a\0b").await, Err(JournalError::Unusable(_))));
        });
    }
}

// There are no places to die at in a release build.
#[cfg(debug_assertions)]
mod killed {
    use actum_store::CRASH_POINTS;

    use super::*;
    use crate::death;

    /// What the other process is told: the store, where to die, and the number of the token.
    const ORDER: [&str; 3] = ["ACTUM_TEST_STORE", "ACTUM_TEST_PLACE", "ACTUM_TEST_TOKEN"];

    /// The other process: makes the store ready, revokes a token, keeps an answer, makes the projections anew. Without an order
    /// it has nothing to do.
    #[test]
    fn revokes_and_dies() {
        let Some([store, place, n]) = death::told(ORDER) else { return };
        let (runtime, store) = opened(&Location::parse(&store).unwrap());
        let n: u64 = n.parse().unwrap();
        runtime.block_on(async {
            store.append(own(&create("t", &id(n)))).await.unwrap();
            death::waits_at(place);
            let revoked = store.append(own(&revoke(&create("t", &id(n)))));
            let (t, token) = (tenant("t"), id(n));
            let kept = store.keep(&t, &token, "key", answer(b"kept", 1_000));
            revoked.await.unwrap();
            kept.await.unwrap();
            store.projections(true).await.unwrap();
        });
    }

    /// Those of migrations, checkpoints, runs, money and blobs are not on the way.
    fn places() -> impl Iterator<Item = &'static str> {
        CRASH_POINTS.iter().copied().filter(|place| ["append.", "rebuild."].iter().any(|p| place.starts_with(p)))
    }

    fn at_each_place(url: &str) {
        let location = Location::parse(url).unwrap();
        let mut deaths = 0;
        for (n, place) in (1..).zip(places()) {
            let values = [url, place, &n.to_string()];
            assert!(
                death::comes_by("access::killed::revokes_and_dies", ORDER.into_iter().zip(values)),
                "{place}: it lived"
            );
            deaths += 1;

            let (runtime, store) = opened(&location);
            runtime.block_on(async {
                assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0), "{place}");
                let (t, change) = (tenant("t"), create("t", &id(n)));
                let token = store.token(&id(n)).await.unwrap().unwrap();
                let entry = store.entry(&t, &entry_id(&id(n), 2)).await.unwrap();
                assert_eq!(token.is_revoked, entry.is_some(), "{place}: row and entry say the same");
                let is_before = ["append.begun", "append.inserted", "append.written"].contains(&place);
                assert_eq!(token.is_revoked, !is_before, "{place}");
                let outcome = store.append(own(&revoke(&change))).await.unwrap();
                assert_eq!(matches!(outcome, Outcome::Idempotent { .. }), !is_before, "{place}: {outcome:?}");
                let kept = store.kept(&t, &id(n), "key").await.unwrap();
                assert!(!is_before || kept.is_none(), "{place}");
                assert_eq!(store.keep(&t, &id(n), "key", answer(b"kept", 1_000)).await.unwrap(), kept.is_none());
                let kept = store.kept(&t, &id(n), "key").await.unwrap();
                assert_eq!(kept, Some(answer(b"kept", 1_000)), "{place}: whole, or not at all");
                assert!(store.check_database().await.unwrap().ok, "{place}");
            });
        }
        assert_eq!(deaths, 6);
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
