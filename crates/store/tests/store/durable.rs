//! A database that dies with all that it had not written: what was answered is there, and the log is whole.

use std::sync::mpsc;
use std::thread;

use actum_ledger::journal::{Outcome, Range};
use actum_ledger::run::{Commit, Filter, RunState, Runs, Written};
use actum_store::Location;
use actum_testkit::event::{event, signal, submission};
use actum_testkit::postgres::{Cluster, execute, told};
use actum_testkit::runs::{claim_of, end, new_run, step, tenant};

use crate::{RIVALS, opened};

/// One that writes nothing to the disk by itself while a test lasts, and a database on it.
fn cluster() -> (Cluster, Location) {
    let mut cluster = Cluster::start();
    execute(&cluster.url("postgres"), "ALTER SYSTEM SET wal_writer_delay = '10s'");
    cluster.restart();
    let url = cluster.create_database();
    (cluster, Location::Postgres(url))
}

#[test]
fn every_kind_of_answer_outlives_the_database() {
    let (mut cluster, location) = cluster();
    let t = tenant("t");
    let told = |n: u64, state: &str| submission(event("t", "e", n, state));
    // Each step is answered, then all that is not on the disk is lost, then the next one goes on from it.
    let steps = ["append", "submit", "claim", "step", "end"];
    for (n, kind) in steps.into_iter().enumerate() {
        let (runtime, store) = opened(&location);
        runtime.block_on(async {
            let runs = store.runs(&t, Filter { limit: 2, ..Filter::default() }).await.unwrap();
            match (kind, runs.as_slice()) {
                ("append", []) => {
                    let appended = store.append(submission(signal("t", "signal"))).await.unwrap();
                    assert!(matches!(appended, Outcome::Created { .. }), "{appended:?}");
                }
                ("submit", []) => {
                    let entries = vec![told(1, "planned")];
                    assert_eq!(store.submit(vec![new_run("t", "r")], entries).await.unwrap(), Written::Done);
                }
                ("claim", [run]) if run.state == RunState::Queued => {
                    assert_eq!(store.claim(claim_of("t", 1)).await.unwrap().len(), 1);
                }
                ("step", [run]) if run.epoch == 1 => {
                    let commit = Commit { entries: vec![told(1, "running")], ..step(run) };
                    assert_eq!(Runs::commit(&*store, commit).await.unwrap(), Written::Done);
                }
                ("end", [run]) if run.version == 1 => {
                    let commit = Commit { entries: vec![told(1, "succeeded")], ..end(run, RunState::Succeeded) };
                    assert_eq!(Runs::commit(&*store, commit).await.unwrap(), Written::Done);
                }
                other => panic!("step {n} was lost: {other:?}"),
            }
        });
        cluster.stop_immediate();
        drop((store, runtime));
        cluster.restart();
    }
    let (runtime, store) = opened(&location);
    runtime.block_on(async {
        let run = store.runs_named(&t, "r").await.unwrap().remove(0);
        assert_eq!(run.state, RunState::Succeeded);
        assert_eq!(store.log(&t).await.unwrap().frontier.size(), 4);
        assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
    });
}

/// What somebody has read stays, once that is waited for.
#[test]
fn what_is_settled_outlives_the_database() {
    let (mut cluster, location) = cluster();
    let Location::Postgres(url) = &location else { unreachable!() };
    let (runtime, store) = opened(&location);
    execute(url, "CREATE TABLE seen (n bigint)");
    execute(url, "SET synchronous_commit = off; INSERT INTO seen VALUES (7)");
    assert_eq!(told(url, "SELECT n FROM seen"), ["7"]);
    runtime.block_on(store.settled()).unwrap();
    cluster.stop_immediate();
    drop((store, runtime));
    cluster.restart();
    assert_eq!(told(url, "SELECT n FROM seen"), ["7"]);
}

/// Whoever appends next may build on what is not on the disk yet.
#[test]
fn nothing_that_was_answered_is_lost_when_many_append_at_once() {
    let (mut cluster, location) = cluster();
    let t = tenant("t");
    let mut answered: Vec<String> = Vec::new();
    for answers in [1, 9, 60] {
        let openings: Vec<_> = (0..RIVALS).map(|_| opened(&location)).collect();
        let (tell, heard) = mpsc::channel();
        thread::scope(|scope| {
            for (rival, (runtime, store)) in openings.into_iter().enumerate() {
                let tell = tell.clone();
                scope.spawn(move || {
                    for n in 0.. {
                        let id = format!("{answers}-{rival}-{n}");
                        match runtime.block_on(store.append(submission(signal("t", &id)))) {
                            Ok(Outcome::Created { .. }) => tell.send(id).unwrap(),
                            Ok(other) => panic!("{other:?}"),
                            Err(_) => break,
                        }
                    }
                });
            }
            drop(tell);
            answered.extend(heard.iter().take(answers));
            cluster.stop_immediate();
            answered.extend(heard.iter());
        });
        cluster.restart();
        let (runtime, store) = opened(&location);
        runtime.block_on(async {
            for id in &answered {
                assert!(store.entry(&t, id).await.unwrap().is_some(), "{id} was answered and is gone");
            }
            let size = store.log(&t).await.unwrap().frontier.size();
            assert!(size >= answered.len() as u64);
            let rows = store.rows(&t, Range::forwards(0, size as usize + 1)).await.unwrap();
            assert_eq!(rows.len() as u64, size);
            assert!(store.projections(false).await.unwrap().iter().all(|p| p.differing == 0));
        });
    }
}
