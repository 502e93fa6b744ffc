//! The queue when it is long, and when somebody dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actum_engine::{Engine, Settings, submit};
use actum_ledger::run::{Claim, NewRun};
use actum_store::Location;
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;

use crate::measure::{median, milliseconds, print, verdict};
use crate::noop::{Count, IdleShop, tenant, waiter, wanted};

const ROUNDS: usize = 40;

/// A claim of one run with many queued beside one with few.
pub(crate) fn claims() {
    let folder = Folder::new();
    let locations =
        [("SQLite", Location::Sqlite(folder.join("actum.db"))), ("PostgreSQL", Location::Postgres(shared_url()))];
    for (name, location) in locations {
        let waiter = waiter(&location);
        for (place, number) in [("few", 100 + ROUNDS), ("many", 100_000 + ROUNDS)] {
            for page in (0..number).collect::<Vec<_>>().chunks(1_000) {
                let run = |n: &usize| NewRun {
                    tenant: tenant(),
                    id: format!("{place}-{n:08}"),
                    submission: place.to_owned(),
                    item: "item".into(),
                    robot: "agent-1".into(),
                    place: place.to_owned(),
                    planned: false,
                    metadata: "{}".into(),
                    depends_on: Vec::new(),
                };
                waiter.wait(waiter.runs.submit(page.iter().map(run).collect(), Vec::new())).expect("submitted");
            }
        }
        let claim = |place: &str| {
            let claim = Claim {
                owner: "bench".into(),
                place: place.to_owned(),
                lease_ms: 60_000,
                runs_max: 1,
                submission: None,
                run: None,
                dead: Vec::new(),
            };
            let claimed = waiter.wait(waiter.runs.claim(claim)).expect("claimed");
            assert_eq!(claimed.len(), 1);
        };
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            few.push(milliseconds(|| claim("few")));
            many.push(milliseconds(|| claim("many")));
        }
        let middle = |all: &[f64]| median(all.iter().copied());
        print(&format!("{name}: a claim with 100 queued {:.2} ms, with 100,000 {:.2} ms", middle(&few), middle(&many)));
        let ratios: Vec<f64> = many.iter().zip(&few).map(|(many, few)| many / few).collect();
        verdict("claim, 100,000 queued / 100 queued", &ratios, 1.5, true);
    }
}

/// How long after its lease is over the run of a worker that is not heard of any more is finished by another.
pub(crate) fn takeover() {
    let folder = Folder::new();
    let waiter = waiter(&Location::Sqlite(folder.join("actum.db")));
    let mut late = Vec::new();
    for round in 0..5 {
        let place = format!("takeover-{round}");
        submit(&waiter, wanted(&place, 1)).expect("submitted");
        // Shorter than any worker may set it: the store does not mind, and the answer is the same.
        let lease = Duration::from_millis(1_500);
        let claim = Claim {
            owner: "gone".into(),
            place: place.clone(),
            lease_ms: 1_500,
            runs_max: 1,
            submission: None,
            run: None,
            dead: Vec::new(),
        };
        let begun = Instant::now();
        assert_eq!(waiter.wait(waiter.runs.claim(claim)).expect("claimed").len(), 1);
        let watch = Arc::new(Count::default());
        let settings = Settings {
            owner: "other".into(),
            places: vec![place],
            lease: Duration::from_secs(60),
            jobs: 1,
            submission: None,
        };
        let engine = Arc::new(Engine::new(waiter.clone(), Arc::new(IdleShop { steps: 1 }), watch.clone(), settings));
        watch.stop_after(1, Arc::clone(&engine));
        engine.work().expect("worked");
        late.push((begun.elapsed().saturating_sub(lease)).as_secs_f64());
    }
    verdict("seconds from the end of a lease to the end of the run", &late, 1.0, true);
}
