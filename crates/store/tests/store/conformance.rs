//! One suite, every store: memory as the reference, SQLite, PostgreSQL.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use actum_ledger::registry::Kind;
use actum_ledger::run::Filter;
use actum_ledger::spend;
use actum_store::{Location, Older, Store, open};
use actum_testkit::access::{self, Guarded};
use actum_testkit::conformance;
use actum_testkit::folder::Folder;
use actum_testkit::memory::Memory;
use actum_testkit::pointer::{self, Kept};
use actum_testkit::postgres::shared_url;
use actum_testkit::registry::{self, Registered};
use actum_testkit::runs::{self, Both};
use actum_testkit::spend::{self as money, Purse};

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
    // It holds what the store holds, secrets of webhooks among it.
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(store.backup(&copy).await.unwrap_err().to_string().contains("exists already"));
    let nowhere = store.backup(&folder.join("no/such/copy.db")).await.unwrap_err();
    assert!(nowhere.to_string().contains("does its folder exist"), "{nowhere}");
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

fn registered(store: &Arc<dyn Store>) -> Registered {
    Registered { registry: Arc::<dyn Store>::clone(store), journal: Arc::<dyn Store>::clone(store) }
}

/// The registry follows from the journal: it is in a copy, and it can be made anew.
async fn rebuilt_registry(store: Arc<dyn Store>) {
    let seen = async |store: &Arc<dyn Store>| {
        let mut all = Vec::new();
        for name in registry::TENANTS {
            for kind in Kind::ALL {
                let tenant = runs::tenant(name);
                let removed = store.item(&tenant, kind, "back").await.unwrap();
                all.push((
                    store.heads(&tenant, kind).await.unwrap(),
                    store.items(&tenant, kind).await.unwrap(),
                    removed,
                ));
            }
        }
        all
    };
    let before = seen(&store).await;
    assert!(before.iter().any(|(heads, ..)| !heads.is_empty()));
    for replace in [false, true] {
        let projections = store.projections(replace).await.unwrap();
        let rows = projections.iter().find(|p| p.name == "registry").unwrap().rows;
        assert!(projections.iter().all(|p| p.differing == 0) && rows > 10_000, "{projections:?}");
    }
    assert_eq!(seen(&store).await, before);
    let folder = Folder::new();
    let copy = folder.join("copy.db");
    store.backup(&copy).await.unwrap();
    let copied = self::store(&Location::Sqlite(copy.clone())).await;
    assert_eq!(seen(&copied).await, before);
    drop(copied);
    // What somebody else did to the table is found and mended.
    let connection = rusqlite::Connection::open(&copy).unwrap();
    connection
        .execute_batch("DELETE FROM registry WHERE item > 'tool-05'; UPDATE registry SET status = 'active'")
        .unwrap();
    drop(connection);
    let copied = self::store(&Location::Sqlite(copy)).await;
    assert_ne!(seen(&copied).await, before);
    assert!(copied.projections(true).await.unwrap().iter().any(|p| p.name == "registry" && p.differing > 1_000));
    assert_eq!(seen(&copied).await, before);
    assert!(copied.check_database().await.unwrap().ok);
}

#[test]
fn memory_registry() {
    let memory = Arc::new(Memory::default());
    let both = Registered { registry: Arc::<Memory>::clone(&memory), journal: memory };
    block_on(registry::registry(both));
}

#[test]
fn sqlite_registry() {
    let folder = Folder::new();
    block_on(async {
        let store = store(&Location::Sqlite(folder.join("actum.db"))).await;
        registry::registry(registered(&store)).await;
        rebuilt_registry(store).await;
    });
}

#[test]
fn postgres_registry() {
    block_on(async {
        let store = store(&Location::Postgres(shared_url())).await;
        registry::registry(registered(&store)).await;
        rebuilt_registry(store).await;
    });
}

fn kept(store: &Arc<dyn Store>) -> Kept {
    Kept { pointers: Arc::<dyn Store>::clone(store), journal: Arc::<dyn Store>::clone(store) }
}

/// The pointers follow from the journal: they are in a copy, and they can be made anew.
async fn rebuilt_pointers(store: Arc<dyn Store>) {
    let seen = async |store: &Arc<dyn Store>| {
        let mut all = Vec::new();
        for name in pointer::TENANTS {
            all.push(store.pointers(&runs::tenant(name)).await.unwrap());
        }
        all
    };
    let differing = async |store: &Arc<dyn Store>, replace: bool| {
        let projections = store.projections(replace).await.unwrap();
        assert!(projections.iter().all(|p| p.name == "pointer" || p.differing == 0), "{projections:?}");
        let found = projections.iter().find(|p| p.name == "pointer").unwrap();
        assert_eq!(found.rows, 9);
        found.differing
    };
    let before = seen(&store).await;
    assert!(before.iter().all(|pointers| !pointers.is_empty()));
    assert_eq!((differing(&store, false).await, differing(&store, true).await), (0, 0));
    assert_eq!(seen(&store).await, before);
    let folder = Folder::new();
    let copy = folder.join("copy.db");
    store.backup(&copy).await.unwrap();
    let copied = self::store(&Location::Sqlite(copy.clone())).await;
    assert_eq!(seen(&copied).await, before);
    drop(copied);
    // What somebody else did to the table, in any of its columns, is found and mended.
    for (harm, rows) in [
        ("DELETE FROM pointer WHERE tenant = 'life'", 1),
        ("UPDATE pointer SET n = n - 1 WHERE tenant = 'life'", 2),
        ("UPDATE pointer SET restores = 1 WHERE tenant = 'rivals'", 2),
        ("UPDATE pointer SET seq = seq + 1 WHERE tenant = 'crowd'", 2),
        ("UPDATE pointer SET body = '{}' WHERE tenant = 'bob'", 2),
        ("INSERT INTO pointer SELECT tenant, 'x', n, restores, seq, body FROM pointer WHERE tenant = 'bob'", 1),
    ] {
        rusqlite::Connection::open(&copy).unwrap().execute_batch(harm).unwrap();
        let copied = self::store(&Location::Sqlite(copy.clone())).await;
        assert_ne!(seen(&copied).await, before, "{harm}");
        assert_eq!((differing(&copied, false).await, differing(&copied, true).await), (rows, rows), "{harm}");
        assert_eq!((seen(&copied).await, differing(&copied, false).await), (before.clone(), 0), "{harm}");
        assert!(copied.check_database().await.unwrap().ok);
    }
}

#[test]
fn memory_pointers() {
    let memory = Arc::new(Memory::default());
    let both = Kept { pointers: Arc::<Memory>::clone(&memory), journal: memory };
    block_on(pointer::pointers(both));
}

#[test]
fn sqlite_pointers() {
    let folder = Folder::new();
    block_on(async {
        let store = store(&Location::Sqlite(folder.join("actum.db"))).await;
        pointer::pointers(kept(&store)).await;
        rebuilt_pointers(store).await;
    });
}

#[test]
fn postgres_pointers() {
    block_on(async {
        let store = store(&Location::Postgres(shared_url())).await;
        pointer::pointers(kept(&store)).await;
        rebuilt_pointers(store).await;
    });
}

fn guarded(store: &Arc<dyn Store>) -> Guarded {
    Guarded { access: Arc::<dyn Store>::clone(store), journal: Arc::<dyn Store>::clone(store) }
}

/// The tokens follow from the journal: they are in a copy, and they can be made anew. Kept answers are in a copy, too.
async fn rebuilt_tokens(store: Arc<dyn Store>) {
    let seen = async |store: &Arc<dyn Store>| {
        let mut all = Vec::new();
        for name in access::TENANTS {
            all.push(store.tokens(&runs::tenant(name)).await.unwrap());
        }
        let kept = store.kept(&runs::tenant("alice"), &access::id(6), "k").await.unwrap();
        (all, kept.unwrap())
    };
    let differing = async |store: &Arc<dyn Store>, replace: bool| {
        let projections = store.projections(replace).await.unwrap();
        assert!(projections.iter().all(|p| p.name == "token" || p.differing == 0), "{projections:?}");
        let found = projections.iter().find(|p| p.name == "token").unwrap();
        assert_eq!(found.rows, access::TOKENS);
        found.differing
    };
    let before = seen(&store).await;
    assert!(before.0.iter().all(|tokens| !tokens.is_empty()));
    assert_eq!((differing(&store, false).await, differing(&store, true).await), (0, 0));
    assert_eq!(seen(&store).await, before);
    let folder = Folder::new();
    let copy = folder.join("copy.db");
    store.backup(&copy).await.unwrap();
    let copied = self::store(&Location::Sqlite(copy.clone())).await;
    assert_eq!(seen(&copied).await, before);
    drop(copied);
    // What somebody else did to the table, in any of its columns, is found and mended: a revoked token, most of all.
    for (harm, rows) in [
        ("DELETE FROM token WHERE tenant = 'rivals'", 1),
        ("UPDATE token SET revoked = 0 WHERE tenant = 'rivals'", 2),
        ("UPDATE token SET role = 'admin' WHERE tenant = 'bob'", 2),
        ("UPDATE token SET hash = 'x' WHERE tenant = 'bob'", 2),
        ("UPDATE token SET name = 'x' WHERE tenant = 'bob'", 2),
        ("UPDATE token SET expires_ms = 1 WHERE tenant = 'bob'", 2),
        ("UPDATE token SET tenant = 'alice' WHERE tenant = 'bob'", 2),
        ("UPDATE token SET n = 1 WHERE tenant = 'rivals'", 2),
        (
            "INSERT INTO token SELECT 'x', tenant, role, name, hash, expires_ms, revoked, n, seq FROM token WHERE tenant = 'bob'",
            1,
        ),
    ] {
        rusqlite::Connection::open(&copy).unwrap().execute_batch(harm).unwrap();
        let copied = self::store(&Location::Sqlite(copy.clone())).await;
        assert_ne!(seen(&copied).await, before, "{harm}");
        assert_eq!((differing(&copied, false).await, differing(&copied, true).await), (rows, rows), "{harm}");
        assert_eq!((seen(&copied).await, differing(&copied, false).await), (before.clone(), 0), "{harm}");
        assert!(copied.check_database().await.unwrap().ok);
    }
}

#[test]
fn memory_access() {
    let memory = Arc::new(Memory::default());
    block_on(access::access(Guarded { access: Arc::<Memory>::clone(&memory), journal: memory }));
}

#[test]
fn sqlite_access() {
    let folder = Folder::new();
    block_on(async {
        let store = store(&Location::Sqlite(folder.join("actum.db"))).await;
        access::access(guarded(&store)).await;
        rebuilt_tokens(store).await;
    });
}

#[test]
fn postgres_access() {
    block_on(async {
        let store = store(&Location::Postgres(shared_url())).await;
        access::access(guarded(&store)).await;
        rebuilt_tokens(store).await;
    });
}

/// The money is in a copy, to the last unit, and adds up wherever it is.
async fn copied_money(store: Arc<dyn Store>) {
    let check = store.check_spend().await.unwrap();
    assert!(check.ok, "{}", check.detail);
    let folder = Folder::new();
    let copy = folder.join("copy.db");
    store.backup(&copy).await.unwrap();
    let copied = self::store(&Location::Sqlite(copy.clone())).await;
    let filter = || spend::Filter { limit: 1_000, ..spend::Filter::default() };
    for name in money::TENANTS {
        let tenant = runs::tenant(name);
        let all = store.authorizations(&tenant).await.unwrap();
        assert!(!all.is_empty(), "{name}");
        assert_eq!(copied.authorizations(&tenant).await.unwrap(), all);
        let held = store.reservations(&tenant, filter()).await.unwrap();
        assert_eq!(copied.reservations(&tenant, filter()).await.unwrap(), held);
    }
    assert_eq!(copied.check_spend().await.unwrap(), check);
    // Making the projections anew leaves the money alone.
    assert!(copied.projections(true).await.unwrap().iter().all(|p| p.differing == 0));
    assert_eq!(copied.check_spend().await.unwrap(), check);
    copied.reserve(money::wish("many", "a", "one more", 5)).await.unwrap().unwrap();
    drop(copied);
    // What somebody else did to it is found.
    let connection = rusqlite::Connection::open(&copy).unwrap();
    connection.execute_batch("UPDATE spend_authorization SET spent = spent - 1 WHERE tenant = 'many'").unwrap();
    drop(connection);
    let check = self::store(&Location::Sqlite(copy)).await.check_spend().await.unwrap();
    assert!(!check.ok && check.detail.contains("a of many says 709 spent, its reservations come to 710"), "{check:?}");
}

fn purse(store: &Arc<dyn Store>) -> Purse {
    Purse { spend: Arc::<dyn Store>::clone(store), journal: Arc::<dyn Store>::clone(store) }
}

#[test]
fn sqlite_money() {
    let folder = Folder::new();
    block_on(async {
        let store = store(&Location::Sqlite(folder.join("actum.db"))).await;
        money::spend(purse(&store)).await;
        copied_money(store).await;
    });
}

#[test]
fn postgres_money() {
    block_on(async {
        let store = store(&Location::Postgres(shared_url())).await;
        money::spend(purse(&store)).await;
        copied_money(store).await;
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
        assert_eq!(again.tenants().await.unwrap().len(), 12);
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
        assert_eq!(again.tenants().await.unwrap().len(), 12);
    });
}
