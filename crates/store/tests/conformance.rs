//! One suite, every store: memory as the reference, SQLite, PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use actum_ledger::run::Filter;
use actum_store::{Location, Older, Store, open};
use actum_testkit::conformance;
use actum_testkit::folder::Folder;
use actum_testkit::memory::Memory;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::{self, Both};

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn store(location: &Location) -> Arc<dyn Store> {
    open(location, Older::Migrate).await.unwrap()
}

/// What every store must do beyond the journal: its projections are what the journal yields, and it can be copied.
async fn upkeep(store: Arc<dyn Store>) {
    assert!(store.check_database().await.unwrap().ok);
    for replace in [false, true] {
        for projection in store.projections(replace).await.unwrap() {
            assert_eq!(projection.differing, 0, "{projection:?}");
            assert!(projection.rows > 0, "{projection:?}");
        }
    }
    let folder = Folder::new();
    let copy = folder.join("copy.db");
    store.backup(&copy).await.unwrap();
    assert!(store.backup(&copy).await.unwrap_err().to_string().contains("exists already"));
    let copied = self::store(&Location::Sqlite(copy)).await;
    assert_eq!(copied.store_id(), store.store_id());
    assert_eq!(copied.tenants().await.unwrap(), store.tenants().await.unwrap());
    for tenant in store.tenants().await.unwrap() {
        assert_eq!(copied.log(&tenant).await.unwrap(), store.log(&tenant).await.unwrap());
        assert_eq!(copied.checkpoints(&tenant).await.unwrap(), store.checkpoints(&tenant).await.unwrap());
        let letters = store.dead_letters(Some(&tenant), 100).await.unwrap();
        assert_eq!(copied.dead_letters(Some(&tenant), 100).await.unwrap(), letters);
    }
    assert!(copied.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
}

fn both(store: &Arc<dyn Store>) -> Both {
    Both { runs: Arc::<dyn Store>::clone(store), journal: Arc::<dyn Store>::clone(store) }
}

/// The runs are in a copy, and can be gone on with there.
async fn copied_runs(store: Arc<dyn Store>) {
    let folder = Folder::new();
    let copy = folder.join("copy.db");
    store.backup(&copy).await.unwrap();
    let copied = self::store(&Location::Sqlite(copy)).await;
    let filter = || Filter { limit: 100, ..Filter::default() };
    for name in ["path", "dag", "settle", "list", "capsule", "again", "stop", "alice", "bob"] {
        let tenant = runs::tenant(name);
        let all = store.runs(&tenant, filter()).await.unwrap();
        assert!(!all.is_empty(), "{name}");
        assert_eq!(copied.runs(&tenant, filter()).await.unwrap(), all);
        assert_eq!(copied.counts(&tenant).await.unwrap(), store.counts(&tenant).await.unwrap());
        for run in &all {
            let events = store.events(&tenant, &run.id, 0).await.unwrap();
            assert_eq!(copied.events(&tenant, &run.id, 0).await.unwrap(), events);
            let dependencies = store.dependencies(&tenant, &run.id).await.unwrap();
            assert_eq!(copied.dependencies(&tenant, &run.id).await.unwrap(), dependencies);
        }
    }
    let tenant = runs::tenant("capsule");
    assert_eq!(copied.admitted(&tenant, "capsule-2", "h").await.unwrap().as_deref(), Some("r-3"));
    assert_eq!(copied.claim(runs::claim_of("list", 9)).await.unwrap().len(), 6);
    // Making the projections anew leaves the runs alone.
    store.projections(true).await.unwrap();
    assert_eq!(store.claim(runs::claim_of("list", 9)).await.unwrap().len(), 6);
}

#[test]
fn sqlite_runs() {
    let folder = Folder::new();
    block_on(async {
        let store = store(&Location::Sqlite(folder.join("actum.db"))).await;
        runs::runs(both(&store)).await;
        copied_runs(store).await;
    });
}

#[test]
fn postgres_runs() {
    block_on(async {
        let store = store(&Location::Postgres(shared_url())).await;
        runs::runs(both(&store)).await;
        copied_runs(store).await;
    });
}

#[test]
fn memory() {
    block_on(conformance::journal(Arc::new(Memory::default())));
}

#[test]
fn sqlite() {
    let folder = Folder::new();
    let location = Location::Sqlite(folder.join("actum.db"));
    block_on(async {
        let first = store(&location).await;
        conformance::journal(Arc::<dyn Store>::clone(&first)).await;
        upkeep(first).await;
        // Another opening finds the same store.
        let again = store(&location).await;
        assert_eq!(again.tenants().await.unwrap().len(), 8);
    });
}

#[test]
fn postgres() {
    let location = Location::Postgres(shared_url());
    block_on(async {
        let first = store(&location).await;
        conformance::journal(Arc::<dyn Store>::clone(&first)).await;
        upkeep(first).await;
        let again = store(&location).await;
        assert_eq!(again.tenants().await.unwrap().len(), 8);
    });
}
