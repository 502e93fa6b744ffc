//! What a store lets go of, and its queue, on both databases: only what is old goes, a dry look changes nothing, and many who do
//! the same at once are in nobody's way.

use actum_ledger::journal::Outcome;
use actum_store::{Forget, Forgotten, Location, Queue};
use actum_testkit::access::answer;
use actum_testkit::event::{signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::{claim_of, new_run, tenant};
use serde_json::json;

use crate::opened;

/// More than one statement takes.
const ANSWERS: i64 = 1_200;

fn goes(location: &Location) {
    let (runtime, store) = opened(location);
    let t = tenant("t");
    runtime.block_on(async {
        for n in 0..ANSWERS {
            assert!(store.keep(&t, "token", &format!("key-{n}"), answer(b"{}", 1_000 + n)).await.unwrap());
        }
        let bad = submission(json!({"tenantId": "t", "no": "entry"}));
        assert!(matches!(store.append(bad).await.unwrap(), Outcome::Refused(_)));
        assert!(matches!(store.append(submission(signal("t", "s"))).await.unwrap(), Outcome::Created { .. }));
        let beside = store.bytes_beside_log(&t).await.unwrap();
        let old = Forget { answers_before_ms: Some(1_000 + ANSWERS - 1), letters_before_ns: Some(i64::MAX), dry: true };
        let all = Forgotten { answers: ANSWERS as u64 - 1, letters: 1 };
        assert_eq!(store.forget(Forget::default()).await.unwrap(), Forgotten::default());
        assert_eq!(store.forget(old).await.unwrap(), all);
        assert_eq!(store.forget(old).await.unwrap(), all, "looking changes nothing");
        let gone = Forget { dry: false, ..old };
        assert_eq!(store.forget(Forget { letters_before_ns: Some(0), ..gone }).await.unwrap().letters, 0);
        assert_eq!(store.forget(gone).await.unwrap(), Forgotten { answers: 0, letters: 1 });
        assert!(store.kept(&t, "token", "key-0").await.unwrap().is_none());
        assert!(store.kept(&t, "token", &format!("key-{}", ANSWERS - 1)).await.unwrap().is_some());
        assert!(store.dead_letters(None, 10).await.unwrap().is_empty());
        // The letter and all answers but the newest, of two bytes, are gone.
        let left = store.bytes_beside_log(&t).await.unwrap();
        assert!(left == 2 && beside > 2 * ANSWERS as u64, "{beside} → {left}");
        assert_eq!(store.bytes_beside_log(&tenant("other")).await.unwrap(), 0);
        assert_eq!(store.log(&t).await.unwrap().frontier.size(), 1, "the ledger is what it was");
    });
}

fn queues(location: &Location) {
    let (runtime, store) = opened(location);
    runtime.block_on(async {
        assert_eq!(store.queue(0).await.unwrap(), Queue::default());
        let runs = ["r-1", "r-2", "r-3"].map(|id| new_run("t", id)).to_vec();
        store.submit(runs, Vec::new()).await.unwrap();
        let queue = store.queue(0).await.unwrap();
        assert_eq!((queue.queued, queue.leases, queue.leases_over), (3, 0, 0));
        assert!(queue.oldest_ms.is_some_and(|at| at > 0));
        assert_eq!(store.claim(claim_of("t", 2)).await.unwrap().len(), 2);
        let queue = store.queue(0).await.unwrap();
        assert_eq!((queue.queued, queue.leases, queue.leases_over), (1, 2, 0));
        assert_eq!(store.queue(i64::MAX).await.unwrap().leases_over, 2);
    });
}

/// Four who clean up, beside one who keeps answering: each answer goes once, and nobody waits for ever.
fn at_once(location: &Location) {
    let (runtime, store) = opened(location);
    let t = tenant("t");
    runtime.block_on(async {
        for n in 0..200 {
            store.keep(&t, "token", &format!("key-{n}"), answer(b"{}", 1_000)).await.unwrap();
        }
    });
    let counted: u64 = std::thread::scope(|threads| {
        let cleaning: Vec<_> = (0..4)
            .map(|_| {
                threads.spawn(|| {
                    let (runtime, store) = opened(location);
                    let gone = Forget { answers_before_ms: Some(2_000), ..Forget::default() };
                    runtime.block_on(store.forget(gone)).unwrap().answers
                })
            })
            .collect();
        let keeping = threads.spawn(|| {
            let (runtime, store) = opened(location);
            runtime.block_on(async {
                for n in 0..100 {
                    store.keep(&tenant("t"), "token", &format!("new-{n}"), answer(b"{}", 5_000)).await.unwrap();
                }
            });
        });
        keeping.join().unwrap();
        cleaning.into_iter().map(|one| one.join().unwrap()).sum()
    });
    let (runtime, store) = opened(location);
    let rest = Forget { answers_before_ms: Some(2_000), ..Forget::default() };
    let rest = runtime.block_on(store.forget(rest)).unwrap().answers;
    assert_eq!(counted + rest, 200);
    assert!(runtime.block_on(store.kept(&t, "token", "new-99")).unwrap().is_some());
}

fn sqlite() -> (Folder, Location) {
    let folder = Folder::new();
    let location = Location::Sqlite(folder.join("store.db"));
    (folder, location)
}

#[test]
fn on_sqlite() {
    for test in [goes, queues, at_once] {
        let (_folder, location) = sqlite();
        test(&location);
    }
}

#[test]
fn on_postgres() {
    for test in [goes, queues, at_once] {
        test(&Location::Postgres(shared_url()));
    }
}
