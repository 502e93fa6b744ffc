//! Runs shared out among workers on one PostgreSQL: one worker beside four, each a process that does one run at a time. Three
//! kinds of runs: with hands that do nothing (the engine and the store alone), with an agent that does nothing in its cell, and
//! with one that waits as agents do for their models. And where the time goes: processors, and what PostgreSQL waits for.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actum_engine::{Engine, Settings, submit};
use actum_store::Location;
use actum_testkit::postgres::shared_url;
use actum_testkit::program::{Running, other};
use tokio_postgres::{Client, NoTls};

use crate::http::runtime;
use crate::measure::{median, print, spread};
use crate::noop::{Count, IdleShop, waiter, wanted as noop_wanted};
use crate::site::{Site, busy_since, cpu_ms, machine_ms, postgres_cpu_ms, work};
use crate::{Bars, Wanted, weather};

const WORKERS: [usize; 2] = [1, 4];
const RATIO_MIN: f64 = 2.5;
/// Runs of a round: with hands that do nothing, with an agent, with one that waits.
const IDLE_RUNS: usize = 1_500;
const REAL_RUNS: usize = 60;
/// Who submits at once.
const CALLERS: usize = 16;
/// How many of them one worker does at once, to see where the end is.
const MANY_JOBS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const CORES: f64 = 2.0;

/// What a round came to.
#[derive(Debug, Clone)]
struct Round {
    per_second: f64,
    /// Of the two processors, how much the workers and how much PostgreSQL used.
    own: f64,
    postgres: f64,
    /// And everything on this machine, agents and the system among it.
    all: f64,
    waits: String,
}

impl Round {
    fn tell(&self, what: &str) {
        print(&format!(
            "    {what}: {:.1} runs/s; of {CORES} processors: workers {:.0} %, PostgreSQL {:.0} %, all {:.0} %; PostgreSQL: {}; {}",
            self.per_second,
            self.own * 100.0,
            self.postgres * 100.0,
            self.all * 100.0,
            self.waits,
            weather()
        ));
    }
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker of nothing but the engine and the store, told to begin by a line and to end by a signal.
pub(crate) fn idle(words: &[String]) -> ExitCode {
    let [url, place, jobs] = words else { return ExitCode::FAILURE };
    let waiter = waiter(&Location::Postgres(url.clone()));
    let settings = Settings {
        owner: format!("worker-{}", std::process::id()),
        places: vec![place.clone()],
        lease: Duration::from_secs(60),
        jobs: jobs.parse().expect("a number"),
        submission: None,
    };
    let watch = Arc::new(Count::default());
    let engine = Arc::new(Engine::new(waiter, Arc::new(IdleShop { steps: 1 }), watch.clone(), settings));
    watch.stop_after(usize::MAX, Arc::clone(&engine));
    print("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    engine.work().expect("it works");
    ExitCode::SUCCESS
}

fn start_idle(url: &str, place: &str, jobs: usize) -> Started {
    let path = std::env::current_exe().expect("this program");
    let mut command = other(&path.display().to_string());
    command.args(["work-idle", url, place, &jobs.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it says that it is ready");
    Started(child)
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    #[expect(clippy::disallowed_methods, reason = "the driver of the connection")]
    tokio::spawn(connection);
    client.batch_execute("SET search_path = actum").await.expect("a setting");
    client
}

/// Looks until so many runs of the place are over; what PostgreSQL's processes were seen waiting for meanwhile.
async fn until_over(client: &Client, place: &str, runs: usize) -> String {
    let begun = Instant::now();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let sql = "SELECT count(*) FROM run WHERE place = $1 AND state IN ('queued', 'running')";
    let activity = "SELECT COALESCE(wait_event_type || '/' || wait_event, 'on a processor') FROM pg_stat_activity
                    WHERE state = 'active' AND pid <> pg_backend_pid() AND application_name = 'actum'";
    let open = client.prepare(sql).await.expect("a statement");
    let active = client.prepare(activity).await.expect("a statement");
    while client.query_one(&open, &[&place]).await.expect("a number").get::<_, i64>(0) > 0 {
        assert!(begun.elapsed() < PATIENCE, "{runs} runs do not end");
        for row in client.query(&active, &[]).await.expect("rows") {
            *seen.entry(row.get(0)).or_default() += 1;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let all: u64 = seen.values().sum::<u64>().max(1);
    let mut seen: Vec<_> = seen.into_iter().collect();
    seen.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let shown = seen.iter().take(3).map(|(name, number)| format!("{name} {} %", number * 100 / all));
    shown.collect::<Vec<_>>().join(", ")
}

fn idle_round(url: &str, round: usize, workers: usize, jobs: usize) -> Round {
    let place = format!("idle-{round}-{workers}-{jobs}");
    let own = waiter(&Location::Postgres(url.to_owned()));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (own, place) = (&own, &place);
            let go = move || {
                for _ in (caller..IDLE_RUNS).step_by(CALLERS) {
                    submit(own, noop_wanted(place, 1)).expect("submitted");
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, go).expect("a thread");
        }
    });
    let mut all: Vec<Started> = (0..workers).map(|_| start_idle(url, &place, jobs)).collect();
    runtime().block_on(async {
        let client = connect(url).await;
        let pids: Vec<u32> = all.iter().map(|worker| worker.0.id()).collect();
        let used = || pids.iter().map(|pid| cpu_ms(*pid)).sum::<f64>();
        let (before, server, machine) = (used(), postgres_cpu_ms(), machine_ms());
        let begun = Instant::now();
        for worker in &mut all {
            worker.0.stdin.as_mut().expect("a pipe").write_all(b"go\n").expect("it waits");
        }
        let waits = until_over(&client, &place, IDLE_RUNS).await;
        let took = begun.elapsed().as_secs_f64();
        let share = |ms: f64| ms / 1e3 / took / CORES;
        let (own, postgres) = (share(used() - before), share(postgres_cpu_ms() - server));
        Round { per_second: IDLE_RUNS as f64 / took, own, postgres, all: busy_since(machine), waits }
    })
}

/// Runs of a real agent by real workers. Counted from the first event to the last: how they start is not the question.
fn real_round(site: &Site, agent: &str, workers: usize) -> Round {
    let url = site.url.as_deref().expect("a shared store");
    let file = site.actum.file("work.json", work(agent, REAL_RUNS).to_string());
    let ended = site.actum.run(&["run", "--json", "--detach", file.to_str().expect("a path")]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let submission = ended.json()["submission"].as_str().expect("an id").to_owned();
    let (server, machine) = (postgres_cpu_ms(), machine_ms());
    let all: Vec<Running> =
        (0..workers).map(|_| site.actum.start(&["worker", "--json", "--slots", "1"], &[])).collect();
    let round = runtime().block_on(async {
        let client = connect(url).await;
        let sql = "SELECT min(place) FROM run WHERE submission = $1";
        let place: String = client.query_one(sql, &[&submission]).await.expect("a row").get(0);
        let waits = until_over(&client, &place, REAL_RUNS).await;
        let busy = busy_since(machine);
        let sql = "SELECT max(r.updated_ms) - min(e.at_ms), count(DISTINCT r.id) FILTER (WHERE r.state = 'succeeded')
                   FROM run r JOIN run_event e ON e.tenant = r.tenant AND e.run = r.id WHERE r.submission = $1";
        let row = client.query_one(sql, &[&submission]).await.expect("a row");
        assert_eq!(row.get::<_, i64>(1), REAL_RUNS as i64, "some did not succeed");
        let took = row.get::<_, i64>(0) as f64 / 1e3;
        let share = |ms: f64| ms / 1e3 / took / CORES;
        let own = share(all.iter().map(|worker| cpu_ms(worker.id())).sum());
        let postgres = share(postgres_cpu_ms() - server);
        Round { per_second: REAL_RUNS as f64 / took, own, postgres, all: busy, waits }
    });
    for worker in all {
        worker.signal("TERM");
        worker.abandon();
    }
    round
}

/// What the share of the processors that one worker keeps busy leaves for others: so many times as much, and no more.
fn at_most(busy: &[f64]) -> String {
    let busy = median(busy.iter().copied());
    format!(
        "one keeps {:.0} % of this machine's processors busy, so any number can do {:.1} × at most",
        busy * 100.0,
        1.0 / busy
    )
}

pub(crate) fn run(wanted: &Wanted, bars: &mut Bars) {
    let url = shared_url();
    let site = Site::new("postgres");
    let kinds = ["hands that do nothing", "an agent that does nothing", "an agent that waits 100 ms"];
    let mut found: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    let mut busy: [Vec<f64>; 3] = Default::default();
    for round in 0..wanted.rounds {
        for workers in WORKERS {
            let rounds = [
                idle_round(&url, round, workers, 1),
                real_round(&site, "noop", workers),
                real_round(&site, "sleeps", workers),
            ];
            for (kind, figures) in rounds.iter().enumerate() {
                figures.tell(&format!("{workers} × 1, {}", kinds[kind]));
                found.entry((kind, workers)).or_default().push(figures.per_second);
                if workers == 1 {
                    busy[kind].push(figures.all);
                }
            }
        }
        for workers in WORKERS {
            let figures = idle_round(&url, round, workers, MANY_JOBS);
            figures.tell(&format!("{workers} × {MANY_JOBS}, {}", kinds[0]));
            found.entry((kinds.len(), workers)).or_default().push(figures.per_second);
        }
    }
    print(&format!("workers on PostgreSQL, {} rounds, runs/s", wanted.rounds));
    for (kind, name) in kinds.iter().enumerate() {
        let [one, four] = WORKERS.map(|workers| &found[&(kind, workers)]);
        let ratios: Vec<f64> = one.iter().zip(four).map(|(one, four)| four / one).collect();
        print(&format!("  {name}: one {}, four {}; {}", spread(one), spread(four), at_most(&busy[kind])));
        bars.judge(format!("workers: {name}, four / one"), &ratios, RATIO_MIN, false);
    }
    let [one, four] = WORKERS.map(|workers| median(found[&(kinds.len(), workers)].iter().copied()));
    print(&format!(
        "  {MANY_JOBS} at once in each, hands that do nothing: one {one:.0}, four {four:.0}: the end of this machine"
    ));
}
