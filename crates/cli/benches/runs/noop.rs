//! No-op runs: submitted, claimed, driven through every state by the real engine on a real store, with hands that do
//! nothing. Beside it the same number of durable inserts, each waited for, by as many callers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use actum_contract::agent::Agent;
use actum_contract::id::Tenant;
use actum_contract::work::{WorkItem, read_item};
use actum_contract::{Contract, Layers, Partial, resolve};
use actum_engine::{Agreement, Engine, Settings, Submitter, Waiter, Wanted, Watch, Workshop, submit};
use actum_kernel::{Acted, Desk, Effect, End, Event, Finished, Hands, Plan, State, Status, Step, Totals, Verdict};
use actum_ledger::run::Run;
use actum_store::{Location, Older, open};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use serde_json::json;

use crate::measure::{Cost, cost, median, print, spread, verdict};

pub(crate) const CALLERS: usize = 32;
const ROUNDS: usize = 7;

/// Hands that do nothing.
pub(crate) struct Idle {
    pub steps: usize,
}

impl Hands for Idle {
    fn perform(&mut self, effect: &Effect, _: &State, _: &dyn Desk) -> Event {
        match effect {
            Effect::Freeze => Event::Frozen { before: "00".repeat(32), commit: None },
            Effect::Stage => Event::Staged { stage: "stage".into(), view: None },
            Effect::Plan { .. } => Event::Planned(Plan {
                steps: (0..self.steps).map(|n| Step { id: format!("step-{n}"), description: "do".into() }).collect(),
                in_time: true,
                ..Plan::default()
            }),
            Effect::Act { act, .. } => Event::Acted(Box::new(Acted {
                act: act.clone(),
                end: End::Done,
                state: "11".repeat(32),
                changed: Vec::new(),
                totals: Totals { changed: 1, diff_bytes: 10, files: 1, deltas: 1, ..Totals::default() },
                ops: Vec::new(),
                took_ms: 1,
                answers: None,
            })),
            Effect::Weigh => Event::Weighed { capsule: "22".repeat(32), duplicate_of: None, missing: Vec::new() },
            Effect::Publish => Event::Published { publication: "publication".into(), drift: Vec::new(), after: None },
            other => unreachable!("{other:?}"),
        }
    }

    fn finish(&mut self, verdict: &Verdict, _: &State) -> Result<Finished, String> {
        Ok(Finished { outcome: json!({"verdict": verdict, "result": {"status": verdict.status}}), entries: Vec::new() })
    }

    fn leave(&mut self, _: &Verdict) {}
}

pub(crate) struct IdleShop {
    pub steps: usize,
}

impl Workshop for IdleShop {
    fn take_up(&self, _: &Run, _: &str, _: &Agreement, _: &State) -> Result<Box<dyn Hands>, actum_engine::NoHands> {
        Ok(Box::new(Idle { steps: self.steps }))
    }

    fn tenant(&self) -> Tenant {
        tenant()
    }
}

pub(crate) fn tenant() -> Tenant {
    Tenant::new("bench").expect("a name")
}

/// Counts ends, and stops the engine at the last one.
#[derive(Default)]
pub(crate) struct Count {
    ended: AtomicUsize,
    wanted: AtomicUsize,
    engine: OnceLock<Arc<Engine>>,
    done: (Mutex<bool>, Condvar),
}

impl Count {
    pub(crate) fn stop_after(&self, wanted: usize, engine: Arc<Engine>) {
        self.wanted.store(wanted, Ordering::SeqCst);
        let _ = self.engine.set(engine);
    }
}

impl Watch for Count {
    fn see(&self, _: &Run, _: &State) {}

    fn ended(&self, _: &Run, verdict: &Verdict) {
        assert_eq!(verdict.status, Status::Success, "{verdict:?}");
        if self.ended.fetch_add(1, Ordering::SeqCst) + 1 == self.wanted.load(Ordering::SeqCst) {
            if let Some(engine) = self.engine.get() {
                engine.interrupt();
            }
            *self.done.0.lock().expect("a lock") = true;
            self.done.1.notify_all();
        }
    }

    fn remark(&self, run: &Run, text: &str) {
        panic!("{}: {text}", run.id);
    }
}

pub(crate) fn contract() -> Contract {
    let requested = Partial::read_words(["lightValidationMode=off"]).expect("a field");
    let layers = Layers { persisted: None, requested: &requested, env: &BTreeMap::new() };
    Contract::resolved(&resolve(layers).expect("a contract"))
}

pub(crate) fn work(steps: usize) -> (WorkItem, Agent) {
    let item = json!({"id": "item", "agent_id": "agent-1", "description": "Do nothing."});
    let phases = if steps > 1 { json!(["step", "plan"]) } else { json!(["step"]) };
    let agent = json!({"type": "command", "command": ["true"], "phases": phases});
    let load = |_: &str| Err(String::new());
    (read_item(&item).expect("an item"), Agent::read(&agent, "agent", &load).expect("an agent"))
}

pub(crate) fn wanted(place: &str, steps: usize) -> Wanted {
    Wanted {
        trace: None,
        tenant: tenant(),
        place: place.to_owned(),
        workspace: "/nowhere".into(),
        folder: None,
        shared: None,
        tree: "00".repeat(32),
        contract: contract(),
        items: vec![work(steps)],
        draft: false,
        config: None,
        by: Submitter { actor: "bench".to_owned(), token: None },
        once: None,
    }
}

pub(crate) fn waiter(location: &Location) -> Waiter {
    let runtime = Waiter::runtime().expect("a runtime");
    let store = runtime.block_on(open(location, Older::Migrate)).expect("a store");
    Waiter::new(runtime, store.clone(), store)
}

/// One round: so many runs are submitted by as many callers, then executed by as many workers.
fn round(waiter: &Waiter, place: &str, steps: usize, runs: usize) {
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let submit = move || {
                for _ in (caller..runs).step_by(CALLERS) {
                    submit(waiter, wanted(place, steps)).expect("submitted");
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, submit).expect("a thread");
        }
    });
    let watch = Arc::new(Count::default());
    let settings = Settings {
        owner: format!("worker-{place}"),
        places: vec![place.to_owned()],
        lease: Duration::from_secs(60),
        jobs: CALLERS,
        submission: None,
    };
    let engine = Arc::new(Engine::new(waiter.clone(), Arc::new(IdleShop { steps }), watch.clone(), settings));
    watch.stop_after(runs, Arc::clone(&engine));
    engine.work().expect("worked");
}

/// The floor: a thread that commits whatever waits, and callers that wait for every insert.
type Insert = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

fn floor_round(insert: &Insert, first: usize, steps: usize, runs: usize) {
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let insert = Arc::clone(insert);
            let go = move || {
                for run in (caller..runs).step_by(CALLERS) {
                    // Begun, each step, ended.
                    for event in 0..steps + 2 {
                        let mut body = format!("run {} event {event} ", first + run).into_bytes();
                        body.resize(600, b'x');
                        insert(body);
                    }
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, go).expect("a thread");
        }
    });
}

type Row = (Vec<u8>, Vec<u8>);

fn bare(mut commit: impl FnMut(&[Row]) + Send + 'static) -> Insert {
    let (sender, receiver) = std::sync::mpsc::channel::<(Row, std::sync::mpsc::SyncSender<()>)>();
    let run = move || {
        while let Ok(first) = receiver.recv() {
            let (mut rows, mut answers) = (vec![first.0], vec![first.1]);
            while rows.len() < 256
                && let Ok((row, answer)) = receiver.try_recv()
            {
                rows.push(row);
                answers.push(answer);
            }
            commit(&rows);
            for answer in answers {
                let _ = answer.send(());
            }
        }
    };
    std::thread::Builder::new().name("floor".into()).spawn(run).expect("a thread");
    let sender = Mutex::new(sender);
    Arc::new(move |body| {
        let key = actum_contract::digest::Digest::blake3(&body).to_hex().into_bytes()[..38].to_vec();
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        sender.lock().expect("a lock").send(((key, body), answer)).expect("a writer");
        answered.recv().expect("an answer");
    })
}

/// CPU time of all PostgreSQL processes of this machine, in seconds.
fn server_cpu() -> f64 {
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if stat.contains("(postgres)") {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
            ticks += (11..13).filter_map(|i| fields.get(i)?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    ticks as f64 / 100.0
}

fn compare(name: &str, insert: &Insert, waiter: &Waiter, with_server: bool, bars: [(usize, usize, f64); 2]) {
    for (steps, runs, cpu_bar) in bars {
        let (mut floors, mut ours): (Vec<Cost>, Vec<Cost>) = (Vec::new(), Vec::new());
        let mut server = Vec::new();
        for i in 0..=ROUNDS {
            let place = format!("{name}-{steps}-{i}");
            floors.push(cost(runs, || floor_round(insert, (steps * 100 + i) * runs, steps, runs)));
            let before = server_cpu();
            ours.push(cost(runs, || round(waiter, &place, steps, runs)));
            server.push((server_cpu() - before) * 1e6 / runs as f64);
        }
        let (floors, ours, server) = (&floors[1..], &ours[1..], &server[1..]);
        print(&format!("{name}: {CALLERS} at once, {ROUNDS} rounds of {runs} runs with {steps} steps"));
        for (who, costs) in [("floor", floors), ("actum", ours)] {
            let rates: Vec<_> = costs.iter().map(|c| 1e6 / c.wall).collect();
            let cpu = median(costs.iter().map(|c| c.cpu));
            print(&format!("  {who:<8} {} runs/s, {cpu:.0} µs CPU each (this process)", spread(&rates)));
        }
        let ratios: Vec<f64> = floors.iter().zip(ours).map(|(f, o)| f.wall / o.wall).collect();
        verdict("throughput, actum / floor", &ratios, 0.5, false);
        let cpu: Vec<f64> = ours.iter().map(|c| c.cpu).collect();
        verdict("CPU per run, µs, this process", &cpu, cpu_bar, true);
        if with_server {
            let both: Vec<f64> = ours.iter().zip(server).map(|(c, s)| c.cpu + s).collect();
            verdict("CPU per run, µs, with the server's", &both, cpu_bar, true);
        }
    }
}

pub(crate) fn sqlite() {
    let folder = Folder::new();
    let mut floor = rusqlite::Connection::open(folder.join("floor.db")).expect("a database");
    floor
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 10000; PRAGMA cache_size = -65536;
             CREATE TABLE event (n INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
        )
        .expect("a table");
    let insert = bare(move |rows| {
        let tx = floor.transaction().expect("a transaction");
        {
            let mut insert = tx.prepare_cached("INSERT INTO event (key, body) VALUES (?1, ?2)").expect("a statement");
            for (key, body) in rows {
                insert.execute((key, body)).expect("a row");
            }
        }
        tx.commit().expect("a commit");
    });
    let waiter = waiter(&Location::Sqlite(folder.join("actum.db")));
    compare("SQLite", &insert, &waiter, false, [(1, 3_000, 300.0), (10, 1_000, 1_200.0)]);
}

pub(crate) fn postgres() {
    let url = shared_url();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a server");
        #[expect(clippy::disallowed_methods, reason = "the driver of the floor's connection")]
        tokio::spawn(connection);
        let table = "CREATE TABLE event (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bytea NOT NULL UNIQUE, body bytea NOT NULL)";
        client.batch_execute(table).await.expect("a table");
        client
    });
    let insert = bare(move |rows| {
        let (keys, bodies): (Vec<_>, Vec<_>) = rows.iter().map(|(key, body)| (key.as_slice(), body.as_slice())).unzip();
        runtime.block_on(async {
            let sql = "INSERT INTO event (key, body) SELECT * FROM unnest($1::bytea[], $2::bytea[])";
            client.execute(sql, &[&keys, &bodies]).await.expect("rows");
        });
    });
    let waiter = waiter(&Location::Postgres(url));
    compare("PostgreSQL", &insert, &waiter, true, [(1, 2_000, 400.0), (10, 600, 1_500.0)]);
}
