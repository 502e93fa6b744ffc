//! Webhooks on both databases: whose they are, who may hold one and for how long, and what whoever has lost it may no longer write.

use std::sync::Arc;

use actum_ledger::journal::JournalError;
use actum_ledger::webhook::{Progress, WEBHOOKS_MAX, Webhook};
use actum_store::{Location, Older, Store, open};
use actum_testkit::event::{signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::tenant;
use tokio::task::JoinSet;

use crate::runtime;

const LEASE_MS: u64 = 60_000;
const RIVALS: usize = 8;

fn webhook(whose: &str, id: &str) -> Webhook {
    Webhook {
        tenant: tenant(whose),
        id: id.into(),
        name: "nächtlich".into(),
        url: "https://example.com/a?b=c".into(),
        types: vec!["signal".into(), "a b".into()],
        secret: "whsec_AAAA".into(),
        created_ms: 7,
        cursor: 0,
        failures: 0,
        failing_since_ms: None,
        next_try_ms: 0,
        last_error: None,
        disabled: None,
        changes: 1,
    }
}

fn progress(cursor: u64) -> Progress {
    Progress {
        cursor,
        failures: 0,
        failing_since_ms: None,
        wait_ms: 0,
        last_error: None,
        disabled: None,
        changes: 1,
        lease_ms: None,
    }
}

async fn settle(store: &Arc<dyn Store>, id: &str, owner: Option<&str>, progress: Progress) -> bool {
    store.settle_webhook(tenant("t"), id.into(), owner.map(Into::into), progress).await.unwrap()
}

async fn take(store: &Arc<dyn Store>, owner: &str) -> Option<String> {
    store.take_webhook(owner.into(), LEASE_MS, Vec::new()).await.unwrap().map(|webhook| webhook.id)
}

fn on_each(test: impl AsyncFn(Arc<dyn Store>)) {
    let folder = Folder::new();
    for location in [Location::Sqlite(folder.join("actum.db")), Location::Postgres(shared_url())] {
        let runtime = runtime();
        runtime.block_on(async { test(open(&location, Older::Migrate).await.unwrap()).await });
    }
}

#[test]
fn each_tenant_has_its_own() {
    on_each(async |store| {
        for (whose, id) in [("t", "b"), ("u", "a"), ("t", "a")] {
            assert!(store.add_webhook(webhook(whose, id)).await.unwrap());
        }
        assert!(!store.add_webhook(webhook("t", "a")).await.unwrap());
        let (t, u) = (tenant("t"), tenant("u"));
        assert_eq!(store.webhooks(&t).await.unwrap(), [webhook("t", "a"), webhook("t", "b")]);
        assert_eq!(store.webhook(&u, "a").await.unwrap(), Some(webhook("u", "a")));
        assert_eq!(store.webhook(&u, "b").await.unwrap(), None);
        assert!(!store.remove_webhook(&u, "b").await.unwrap());
        assert!(store.remove_webhook(&t, "b").await.unwrap() && !store.remove_webhook(&t, "b").await.unwrap());
        assert_eq!(store.webhooks(&tenant("nobody")).await.unwrap(), []);
        let bad = Webhook { url: "a\0b".into(), ..webhook("t", "c") };
        assert!(matches!(store.add_webhook(bad).await, Err(JournalError::Unusable(_))));
        for n in 0..WEBHOOKS_MAX + 2 {
            let is_room = n < WEBHOOKS_MAX - 1;
            assert_eq!(store.add_webhook(webhook("t", &format!("many-{n}"))).await.unwrap(), is_room, "{n}");
        }
    });
}

#[test]
fn one_holds_it_at_a_time_and_only_while_there_is_something_to_tell() {
    on_each(async |store| {
        assert!(store.add_webhook(webhook("t", "w")).await.unwrap());
        assert_eq!(take(&store, "one").await, None, "there is no entry");
        for n in 0..3 {
            store.append(submission(signal("t", &format!("s-{n}")))).await.unwrap();
        }
        assert_eq!(take(&store, "one").await.as_deref(), Some("w"));
        assert_eq!(take(&store, "two").await, None, "one has it");
        assert!(!settle(&store, "w", Some("two"), progress(9)).await, "two has nothing");
        assert!(settle(&store, "w", Some("one"), Progress { lease_ms: Some(LEASE_MS), ..progress(2) }).await);
        assert_eq!(take(&store, "two").await, None, "one still has it");
        // Its lease is over: another one takes it, and the first writes nothing more.
        assert!(settle(&store, "w", Some("one"), Progress { lease_ms: Some(0), ..progress(2) }).await);
        assert_eq!(take(&store, "two").await.as_deref(), Some("w"));
        assert!(!settle(&store, "w", Some("one"), progress(0)).await);
        assert_eq!(store.webhook(&tenant("t"), "w").await.unwrap().unwrap().cursor, 2);
        assert!(settle(&store, "w", Some("two"), progress(3)).await);
        assert!(!settle(&store, "w", Some("two"), progress(3)).await, "it was given back");
        assert_eq!(take(&store, "one").await, None, "all is told");
        // Not before its time, and not while it is disabled.
        assert!(settle(&store, "w", None, Progress { wait_ms: LEASE_MS, ..progress(0) }).await);
        assert_eq!(take(&store, "one").await, None);
        let disabled =
            Progress { disabled: Some("gone".into()), last_error: Some("410".into()), failures: 4, ..progress(0) };
        assert!(settle(&store, "w", None, disabled).await);
        assert_eq!(take(&store, "one").await, None);
        let shown = store.webhook(&tenant("t"), "w").await.unwrap().unwrap();
        assert_eq!((shown.failures, shown.disabled.as_deref()), (4, Some("gone")));
        assert!(settle(&store, "w", None, progress(0)).await);
        assert_eq!(take(&store, "one").await.as_deref(), Some("w"));
    });
}

#[test]
fn of_many_who_want_it_one_gets_it() {
    on_each(async |store| {
        store.append(submission(signal("t", "s"))).await.unwrap();
        for id in ["a", "b", "c"] {
            assert!(store.add_webhook(webhook("t", id)).await.unwrap());
        }
        let mut wishes = JoinSet::new();
        for n in 0..RIVALS {
            let store = Arc::clone(&store);
            wishes.spawn(async move { take(&store, &format!("rival-{n}")).await });
        }
        let mut taken: Vec<String> = wishes.join_all().await.into_iter().flatten().collect();
        // Whoever meets one that is just being taken may go away empty-handed, and come back.
        while let Some(one) = take(&store, "late").await {
            taken.push(one);
        }
        taken.sort_unstable();
        assert_eq!(taken, ["a", "b", "c"]);
    });
}

/// However many a tenant has, and however long they are due, the other one has its turn.
#[test]
fn tenants_take_turns() {
    on_each(async |store| {
        for whose in ["t", "u"] {
            store.append(submission(signal(whose, "s"))).await.unwrap();
        }
        for (n, id) in ["a", "b", "c"].into_iter().enumerate() {
            assert!(store.add_webhook(Webhook { next_try_ms: n as i64, ..webhook("t", id) }).await.unwrap());
        }
        for (n, id) in ["x", "y"].into_iter().enumerate() {
            let later = Webhook { next_try_ms: 100 + n as i64, ..webhook("u", id) };
            assert!(store.add_webhook(later).await.unwrap());
        }
        let take = async |but: &[&str]| {
            let but = but.iter().map(|whose| tenant(whose)).collect();
            let taken = store.take_webhook("one".into(), LEASE_MS, but).await.unwrap();
            taken.map(|webhook| (webhook.tenant.as_str().to_owned(), webhook.id))
        };
        let named = |whose: &str, id: &str| Some((whose.to_owned(), id.to_owned()));
        // None of these has been served: whoever is due longest comes first.
        assert_eq!(take(&["u"]).await, named("t", "a"));
        assert_eq!(take(&[]).await, named("u", "x"), "the other one has one already");
        assert_eq!(take(&["t", "u"]).await, None);
        assert_eq!(take(&["u", "nobody"]).await, named("t", "b"));
        // Both have some that are held: the one whose turn was longer ago comes first.
        let longer = Progress { lease_ms: Some(10 * LEASE_MS), ..progress(0) };
        assert!(settle(&store, "a", Some("one"), longer).await);
        assert_eq!(take(&[]).await, named("u", "y"));
        assert_eq!(take(&[]).await, named("t", "c"));
        // Whoever is being served comes behind whoever was.
        for id in ["a", "b", "c"] {
            assert!(settle(&store, id, Some("one"), progress(0)).await);
        }
        assert!(store.settle_webhook(tenant("u"), "x".into(), None, progress(0)).await.unwrap());
        assert_eq!(take(&[]).await, named("t", "a"));
        assert_eq!(take(&["u"]).await, named("t", "b"));
    });
}
