//! Runs under pressure: many workers on many handles, random histories against a naive model, stores of version 1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use actum_ledger::journal::Range;
use actum_ledger::run::{Claim, Commit, End, Filter, Held, NewEvent, NewRun, Run, RunState, Runs, Settle, Written};
use actum_store::{Location, Older, Store, VERSION, open};
use actum_testkit::dice::Dice;
use actum_testkit::event::{event, signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use actum_testkit::runs::{LONG_MS, after, claim_of, end, held, new_run, step, tenant};
use rusqlite::Connection;

use crate::{old, opened, runtime};

const WORKERS: usize = 16;
const RUNS: usize = 500;

/// Sixteen workers on two handles, as if on two machines, take and finish what a chain of runs leaves to them: each
/// run goes to exactly one, and none is left.
fn nobody_gets_the_same(location: &Location) {
    let handles = [opened(location), opened(location)];
    let (submitter, store) = opened(location);
    // Every tenth waits for two others, so that finishing and claiming meet in the same rows.
    let runs = (0..RUNS).map(|n| {
        let run = new_run("crowd", &format!("r-{n:04}"));
        let (a, b) = (format!("r-{:04}", n.saturating_sub(7)), format!("r-{:04}", n.saturating_sub(3)));
        if n % 10 == 9 { after(run, &[&a, &b]) } else { run }
    });
    let mut entries = vec![submission(signal("crowd", "signal"))];
    entries.extend((0..RUNS).map(|n| submission(event("crowd", &format!("r-{n:04}"), 1, "planned"))));
    let written = submitter.block_on(store.submit(runs.collect(), entries)).unwrap();
    assert_eq!(written, Written::Done);

    let work = |worker: usize| {
        let store = Arc::clone(&handles[worker % 2].1);
        move || {
            let runtime = runtime();
            let mut done = Vec::new();
            let mut idle = 0;
            while idle < 50 {
                let claim = Claim { owner: format!("worker-{worker}"), ..claim_of("crowd", 1 + worker % 3) };
                let runs = runtime.block_on(store.claim(claim)).unwrap();
                if runs.is_empty() {
                    idle += 1;
                    thread::sleep(std::time::Duration::from_millis(2));
                }
                for run in runs {
                    idle = 0;
                    let entry = |state| vec![submission(event("crowd", &run.id, 1, state))];
                    let begun = Commit { entries: entry("running"), ..step(&run) };
                    assert_eq!(runtime.block_on(store.commit(begun)).unwrap(), Written::Done);
                    let entries = entry("succeeded");
                    let last = Commit { version: 1, entries, ..end(&run, RunState::Succeeded) };
                    assert_eq!(runtime.block_on(store.commit(last)).unwrap(), Written::Done);
                    assert_eq!(run.epoch, 1);
                    done.push(run.id);
                }
            }
            done
        }
    };
    let threads: Vec<_> = (0..WORKERS).map(|n| thread::Builder::new().spawn(work(n)).unwrap()).collect();
    let done: Vec<String> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (RUNS, RUNS));
    submitter.block_on(async {
        let t = tenant("crowd");
        assert_eq!(store.counts(&t).await.unwrap(), [(RunState::Succeeded, None, RUNS as u64)]);
        assert_eq!(store.log(&t).await.unwrap().frontier.size() as usize, 1 + 3 * RUNS);
        assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
    });
}

#[test]
fn nobody_gets_the_same_on_sqlite() {
    let folder = Folder::new();
    nobody_gets_the_same(&Location::Sqlite(folder.join("actum.db")));
}

#[test]
fn nobody_gets_the_same_on_postgres() {
    nobody_gets_the_same(&Location::Postgres(shared_url()));
}

/// A renewal that asks for less than is left changes nothing (D-502): also one that a worker sent before its clock went back.
fn lease_ends_never_go_back(location: &Location) {
    let (runtime, store) = opened(location);
    runtime.block_on(async {
        store.submit(vec![new_run("lease", "r-1")], Vec::new()).await.unwrap();
        let run = store.claim(claim_of("lease", 1)).await.unwrap().remove(0);
        let ends = async || store.runs_named(&run.tenant, &run.id).await.unwrap().remove(0).lease_until_ms.unwrap();
        let first = ends().await;
        for lease_ms in [0, 1, LONG_MS / 2, 0] {
            let heard = store.renew("worker-1".into(), lease_ms, vec![held(&run)]).await.unwrap();
            assert_eq!(heard.len(), 1);
            assert_eq!(ends().await, first, "{lease_ms} ms");
        }
        store.renew("worker-1".into(), 2 * LONG_MS, vec![held(&run)]).await.unwrap();
        assert!(ends().await > first);
    });
}

#[test]
fn lease_ends_never_go_back_on_sqlite() {
    let folder = Folder::new();
    lease_ends_never_go_back(&Location::Sqlite(folder.join("actum.db")));
}

#[test]
fn lease_ends_never_go_back_on_postgres() {
    lease_ends_never_go_back(&Location::Postgres(shared_url()));
}

/// Whoever has something to tell the log of a tenant waits for his turn at it. A step of a run does not.
#[test]
fn a_step_does_not_queue_at_the_log() {
    let url = shared_url();
    let (runtime, store) = opened(&Location::Postgres(url.clone()));
    runtime.block_on(async {
        store.submit(vec![new_run("busy", "r-1")], Vec::new()).await.unwrap();
        let run = store.claim(claim_of("busy", 1)).await.unwrap().remove(0);
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        let driven = async {
            client
                .batch_execute("BEGIN; SELECT * FROM actum.ledger_lock WHERE tenant = 'busy' FOR UPDATE")
                .await
                .unwrap();
            assert_eq!(store.commit(step(&run)).await.unwrap(), Written::Done);
            assert_eq!(store.renew("worker-1".into(), LONG_MS, vec![held(&run)]).await.unwrap().len(), 1);
            assert_eq!(store.ask_to_cancel(&run.tenant, &run.id).await.unwrap(), Written::Done);
            let mut ended = store.commit(Commit { version: 1, ..end(&run, RunState::Cancelled) });
            let waiting =
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
            loop {
                // Not before it stands in the queue.
                assert!(futures_util::poll!(&mut ended).is_pending());
                if client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                    break;
                }
            }
            client.batch_execute("COMMIT").await.unwrap();
            assert_eq!(ended.await.unwrap(), Written::Done);
            drop(client);
        };
        let (_, driver) = tokio::join!(driven, connection);
        driver.unwrap();
    });
}

/// A run that changes hands all the time: every event in its journal was written by who held it then.
fn taken_over_again_and_again(location: &Location) {
    const EVENTS: u64 = 60;
    let (runtime, store) = opened(location);
    let other = opened(location).1;
    let over = AtomicBool::new(false);
    runtime.block_on(store.submit(vec![new_run("over", "r-1")], Vec::new())).unwrap();
    let work = &|worker: usize| {
        let runtime = self::runtime();
        let store = if worker.is_multiple_of(2) { &store } else { &other };
        while !over.load(Ordering::Relaxed) {
            // Its lease is over before it has begun: whoever comes next takes it.
            let claim = Claim { owner: format!("worker-{worker}"), lease_ms: 0, ..claim_of("over", 1) };
            for mut run in runtime.block_on(store.claim(claim)).unwrap() {
                loop {
                    let events = vec![NewEvent { kind: "held".into(), body: run.epoch.to_string() }];
                    let last = run.version + 1 == EVENTS;
                    let end = last.then_some(End { state: RunState::Succeeded, outcome: None, capsule: None });
                    match runtime.block_on(store.commit(Commit { events, end, ..step(&run) })).unwrap() {
                        Written::Done if last => return over.store(true, Ordering::Relaxed),
                        Written::Done => run.version += 1,
                        _ => break,
                    }
                }
            }
        }
    };
    thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || work(n));
        }
    });
    let events = runtime.block_on(store.events(&tenant("over"), "r-1", 0)).unwrap();
    assert!(events.iter().map(|e| e.n).eq(0..EVENTS));
    let epochs: Vec<u64> = events.iter().map(|e| e.body.parse().unwrap()).collect();
    assert!(epochs.is_sorted(), "{epochs:?}");
}

#[test]
fn taken_over_again_and_again_on_sqlite() {
    let folder = Folder::new();
    taken_over_again_and_again(&Location::Sqlite(folder.join("actum.db")));
}

#[test]
fn taken_over_again_and_again_on_postgres() {
    taken_over_again_and_again(&Location::Postgres(shared_url()));
}

/// What a run is, without a thought for speed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plain {
    state: RunState,
    attempt: u64,
    epoch: u64,
    version: u64,
    waits: u64,
    cancel: bool,
    free: bool,
    depends_on: Vec<String>,
    outcome: bool,
}

#[derive(Default)]
struct Model(BTreeMap<String, Plain>);

impl Model {
    /// Whatever has happened: who waits for what follows from the states alone.
    fn settle_waits(&mut self) {
        let succeeded: BTreeSet<String> =
            self.0.iter().filter(|(_, run)| run.state == RunState::Succeeded).map(|(id, _)| id.clone()).collect();
        for run in self.0.values_mut() {
            run.waits = run.depends_on.iter().filter(|id| !succeeded.contains(*id)).count() as u64;
            run.state = match (run.state, run.waits) {
                (RunState::Blocked, 0) => RunState::Queued,
                (RunState::Queued, 1..) => RunState::Blocked,
                (state, _) => state,
            };
        }
    }

    fn claim(&mut self, runs_max: usize, forever: bool) -> Vec<String> {
        let ready = |run: &Plain| run.state == RunState::Queued || (run.state == RunState::Running && run.free);
        let ids: Vec<_> =
            self.0.iter().filter(|(_, run)| ready(run)).map(|(id, _)| id.clone()).take(runs_max).collect();
        for id in &ids {
            let run = self.0.get_mut(id).unwrap();
            (run.state, run.free) = (RunState::Running, !forever);
            run.epoch += 1;
        }
        ids
    }
}

fn plain(run: &Run, depends_on: Vec<String>) -> Plain {
    let free = run.lease_until_ms.is_some_and(|until| until <= run.updated_ms);
    Plain {
        state: run.state,
        attempt: run.attempt,
        epoch: run.epoch,
        version: run.version,
        waits: run.waits,
        cancel: run.cancel,
        free,
        depends_on,
        outcome: run.outcome.is_some(),
    }
}

/// One random history, step by step: the store's answers and rows are the model's.
async fn play(store: &Arc<dyn Store>, name: &str, dice: &mut Dice) {
    let (t, mut model, mut n) = (tenant(name), Model::default(), 0);
    for _ in 0..60 {
        let ids: Vec<String> = model.0.keys().cloned().collect();
        let some = |dice: &mut Dice| ids.get(dice.roll(ids.len().max(1) as u64) as usize).cloned();
        match (dice.roll(10), some(dice)) {
            (0 | 1, _) | (_, None) => {
                let mut runs = Vec::new();
                for _ in 0..=dice.roll(3) {
                    n += 1;
                    let (id, at) = (format!("r-{n:03}"), n + 4);
                    let mut depends_on: Vec<String> =
                        (0..dice.roll(4)).map(|_| format!("r-{:03}", 1 + dice.roll(at))).collect();
                    depends_on.retain(|other| *other != id);
                    let planned = dice.roll(8) == 0;
                    runs.push(NewRun { depends_on: depends_on.clone(), planned, ..new_run(name, &id) });
                    depends_on.sort();
                    depends_on.dedup();
                    let state = if planned { RunState::Planned } else { RunState::Queued };
                    let (cancel, free, outcome) = (false, false, false);
                    let run =
                        Plain { state, attempt: 1, epoch: 0, version: 0, waits: 0, cancel, free, depends_on, outcome };
                    model.0.insert(id, run);
                }
                assert_eq!(store.submit(runs, Vec::new()).await.unwrap(), Written::Done);
            }
            (2 | 3, _) => {
                let (runs_max, forever) = (dice.roll(4) as usize, dice.roll(3) > 0);
                let lease_ms = if forever { LONG_MS } else { 0 };
                let taken = store.claim(Claim { lease_ms, ..claim_of(name, runs_max) }).await.unwrap();
                let taken: Vec<_> = taken.into_iter().map(|run| run.id).collect();
                assert_eq!(taken, model.claim(runs_max, forever));
            }
            (4..=6, Some(id)) => {
                let run = model.0.get_mut(&id).unwrap();
                let (stale, behind) = (dice.roll(6) == 0, dice.roll(6) == 0);
                let epoch = run.epoch.saturating_sub(u64::from(stale));
                let version = run.version + u64::from(behind);
                let state =
                    [RunState::Succeeded, RunState::Succeeded, RunState::Failed, RunState::Cancelled, RunState::Queued]
                        [dice.roll(5) as usize];
                let end = (dice.roll(2) == 0).then(|| End { state, outcome: Some("{}".into()), capsule: None });
                let events = vec![NewEvent { kind: "e".into(), body: "{}".into() }; dice.roll(3) as usize];
                let held = Held { tenant: t.clone(), run: id.clone(), epoch };
                let fits = run.state == RunState::Running && run.epoch == epoch && run.version == version;
                if fits {
                    run.version += events.len() as u64;
                    if end.is_some() {
                        (run.state, run.outcome, run.free) = (state, true, false);
                    }
                }
                let commit = Commit { held, version, events, entries: Vec::new(), metadata: None, end };
                let expected = if fits { Written::Done } else { Written::Lost };
                assert_eq!(store.commit(commit).await.unwrap(), expected);
            }
            (7 | 8, Some(id)) => {
                let run = model.0.get_mut(&id).unwrap();
                let all =
                    [RunState::Queued, RunState::Queued, RunState::Failed, RunState::Succeeded, RunState::Planned];
                let to = all[dice.roll(5) as usize];
                let version = run.version + u64::from(dice.roll(6) == 0);
                let from = if dice.roll(6) == 0 { RunState::Failed } else { run.state };
                let fits = run.state != RunState::Running && run.state == from && run.version == version;
                if fits {
                    (run.state, run.attempt) = (to, run.attempt + 1);
                    run.outcome &= to != RunState::Queued;
                    run.cancel &= to != RunState::Queued;
                }
                let settle = Settle {
                    tenant: t.clone(),
                    run: id.clone(),
                    version,
                    from,
                    to,
                    attempt: run.attempt,
                    events: Vec::new(),
                    entries: Vec::new(),
                    metadata: None,
                    outcome: None,
                    forget_capsule: true,
                };
                let expected = if fits { Written::Done } else { Written::Lost };
                assert_eq!(Runs::settle(&**store, settle).await.unwrap(), expected, "{id} {from} {to}");
            }
            (_, Some(id)) => {
                let run = model.0.get_mut(&id).unwrap();
                let running = run.state == RunState::Running;
                run.cancel |= running;
                let expected = if running { Written::Done } else { Written::Lost };
                assert_eq!(store.ask_to_cancel(&t, &id).await.unwrap(), expected);
            }
        }
        model.settle_waits();
    }
    let all = store.runs(&t, Filter { limit: 1_000, ..Filter::default() }).await.unwrap();
    assert_eq!(all.len(), model.0.len());
    for run in &all {
        let expected = &model.0[&run.id];
        assert_eq!(plain(run, expected.depends_on.clone()), *expected, "{}", run.id);
        let events = store.events(&t, &run.id, 0).await.unwrap();
        assert!(events.iter().map(|e| e.n).eq(0..run.version));
    }
}

fn plays_as_the_model(location: &Location, histories: u64) {
    let (runtime, store) = opened(location);
    for seed in 0..histories {
        runtime.block_on(play(&store, &format!("h-{seed}"), &mut Dice::new(seed)));
    }
}

#[test]
fn plays_as_the_model_on_sqlite() {
    let folder = Folder::new();
    plays_as_the_model(&Location::Sqlite(folder.join("actum.db")), 40);
}

#[test]
fn plays_as_the_model_on_postgres() {
    plays_as_the_model(&Location::Postgres(shared_url()), 40);
}

#[test]
fn a_store_of_version_1_keeps_its_entries() {
    let folder = Folder::new();
    let (old, new) = (folder.join("old.db"), folder.join("new.db"));
    let (runtime, store) = opened(&Location::Sqlite(new.clone()));
    for id in ["signal", "signal-2"] {
        runtime.block_on(store.append(submission(signal("t", id)))).unwrap();
    }
    let rows = runtime.block_on(store.rows(&tenant("t"), Range::forwards(0, 9))).unwrap();
    let id = store.store_id().to_owned();
    drop(store);

    // As the first program left it: its tables, its marks, and the same entries.
    let connection = Connection::open(&old).unwrap();
    connection.execute_batch(include_str!("../../migrations/sqlite-0001.sql")).unwrap();
    connection.execute("ATTACH ?1 AS new", [new.to_str().unwrap()]).unwrap();
    for table in ["store", "ledger_entry", "ledger_log"] {
        connection.execute_batch(&format!("INSERT INTO main.{table} SELECT * FROM new.{table}")).unwrap();
    }
    connection.pragma_update(None, "application_id", 0x4163_746d).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    drop(connection);

    let location = Location::Sqlite(old);
    let refused = runtime.block_on(open(&location, Older::Refuse)).err().unwrap().to_string();
    assert!(refused.contains("has version 1"), "{refused}");
    let store = runtime.block_on(open(&location, Older::Migrate)).unwrap();
    assert_eq!((store.versions(), store.store_id()), ((1, VERSION), id.as_str()));
    runtime.block_on(async {
        assert_eq!(store.rows(&tenant("t"), Range::forwards(0, 9)).await.unwrap(), rows);
        assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
        assert_eq!(store.submit(vec![new_run("t", "r-1")], Vec::new()).await.unwrap(), Written::Done);
        let run = store.claim(claim_of("t", 1)).await.unwrap().pop().unwrap();
        let entries = vec![submission(event("t", "x", 1, "planned"))];
        let commit = Commit { held: held(&run), entries, ..step(&run) };
        assert_eq!(store.commit(commit).await.unwrap(), Written::Done);
        assert_eq!(store.log(&tenant("t")).await.unwrap().frontier.size(), 3);
    });
}

#[test]
fn a_shared_store_of_version_1_is_migrated_only_when_told_to() {
    let (runtime, store) = old::migrated(&old::postgres(1));
    runtime.block_on(async {
        assert_eq!((store.versions(), store.store_id()), ((1, VERSION), "old"));
        assert_eq!(store.submit(vec![new_run("t", "r-1")], Vec::new()).await.unwrap(), Written::Done);
        assert_eq!(store.claim(claim_of("t", 1)).await.unwrap().len(), 1);
    });
}

#[test]
fn a_store_that_may_only_be_read_answers_questions() {
    let folder = Folder::new();
    let path = folder.join("actum.db");
    let (runtime, store) = opened(&Location::Sqlite(path.clone()));
    runtime.block_on(store.submit(vec![new_run("t", "r-1")], Vec::new())).unwrap();
    drop(store);
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    // Whoever may do anything may write here, too.
    if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
        return;
    }
    let (runtime, store) = opened(&Location::Sqlite(path));
    runtime.block_on(async {
        assert_eq!(store.runs_named(&tenant("t"), "r").await.unwrap().len(), 1);
        let refused = store.claim(claim_of("t", 1)).await.unwrap_err().to_string();
        assert!(refused.contains("may only be read"), "{refused}");
    });
}
