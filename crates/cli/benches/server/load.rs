//! Requests beside a million stored runs: get, list and submit, each alone and mixed, evenly spaced whether or not they are
//! answered. Beside it the same load on a handler that only says something long: what the machine and who asks take.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use actum_testkit::program::other;
use axum::Router;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::fill::{Stored, fill};
use crate::http::{Heard, open_loop, percentile, request, runtime};
use crate::measure::{print, spread};
use crate::site::{Server, Site, cpu_ms, postgres_cpu_ms, work};
use crate::{Bars, Wanted, weather};

const PER_SECOND: u32 = 200;
const P99_MS_MAX: f64 = 20.0;
/// Before anything is counted.
const WARM_UP: Duration = Duration::from_secs(5);
/// What the bare handler says: about as much as a list of fifty.
const BARE_BYTES: usize = 24 << 10;

const KINDS: [&str; 3] = ["get", "list", "submit"];
const LOADS: [&str; 4] = ["mix", "get", "list", "submit"];

/// Any number for the n-th request, the same each time.
fn pick(n: u64, salt: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 45 in a hundred get, 45 list, 10 submit.
fn kind_of(load: &str, n: u64, salt: u64) -> usize {
    match KINDS.iter().position(|kind| *kind == load) {
        Some(kind) => kind,
        None => match pick(n, salt) % 100 {
            0..45 => 0,
            45..90 => 1,
            _ => 2,
        },
    }
}

/// A list: the first page, one from the middle, or one of those in a state.
fn list(stored: &Stored, n: u64, salt: u64) -> String {
    let cursor = stored.id(pick(n, salt + 1) % stored.runs);
    match pick(n, salt + 2) % 4 {
        0 => "/v1/runs".to_owned(),
        1 => format!("/v1/runs?cursor={cursor}"),
        2 => format!("/v1/runs?state=failed&cursor={cursor}"),
        _ => ["/v1/runs?state=running", "/v1/runs?state=queued", "/v1/runs?state=failed"][(n % 3) as usize].to_owned(),
    }
}

/// One load on a server.
fn ask(runtime: &Runtime, server: &Server, stored: &Stored, load: &str, lasts: Duration, salt: u64) -> Heard {
    let content = work("noop", 1).to_string();
    open_loop(runtime, server.at, PER_SECOND, lasts, KINDS.len(), |n| {
        let kind = kind_of(load, n, salt);
        let (method, path, content) = match kind {
            0 => ("GET", format!("/v1/runs/{}", stored.id(pick(n, salt + 3) % stored.runs)), ""),
            1 => ("GET", list(stored, n, salt), ""),
            _ => ("POST", "/v1/runs".to_owned(), content.as_str()),
        };
        (kind, request(server.at, &server.token, method, &path, content))
    })
}

/// What a load came to, over the rounds.
#[derive(Default)]
struct Figures {
    p50: Vec<f64>,
    p99: Vec<f64>,
    max: Vec<f64>,
    cpu: Vec<f64>,
    /// p99 of each kind in the mix.
    kinds: [Vec<f64>; KINDS.len()],
}

impl Figures {
    fn note(&mut self, heard: &Heard, cpu_ms: f64) {
        let all = heard.all();
        self.p50.push(percentile(&all, 50));
        self.p99.push(percentile(&all, 99));
        self.max.push(percentile(&all, 100));
        self.cpu.push(cpu_ms / all.len() as f64);
        for (kind, times) in self.kinds.iter_mut().zip(&heard.times) {
            kind.push(percentile(times, 99));
        }
    }

    fn tell(&self, name: &str) {
        let Self { p50, p99, max, cpu, .. } = self;
        print(&format!(
            "  {name:<8} p50 {} ms, p99 {} ms, max {} ms, CPU for a request {} ms",
            spread(p50),
            spread(p99),
            spread(max),
            spread(cpu)
        ));
    }
}

pub(crate) fn run(wanted: &Wanted, bars: &mut Bars) {
    let runtime = runtime();
    let (bare, bare_at) = start_bare();
    let lasts = Duration::from_secs(wanted.seconds);
    for store in wanted.stores() {
        let site = Site::new(store);
        let begun = Instant::now();
        let stored = fill(&site, wanted.runs);
        print(&format!(
            "{store}: {} runs stored in {:.0} s, {}",
            stored.runs,
            begun.elapsed().as_secs_f64(),
            weather()
        ));
        site.check();
        let server = Server::start(&site, 0);
        counting(&server);
        for (salt, load) in LOADS.iter().enumerate() {
            ask(&runtime, &server, &stored, load, WARM_UP, 1_000 + salt as u64);
        }
        let mut figures: [Figures; LOADS.len()] = Default::default();
        let mut floor = Figures::default();
        for round in 0..wanted.rounds {
            for (at, load) in LOADS.iter().enumerate() {
                let before = server.cpu_ms() + if store == "postgres" { postgres_cpu_ms() } else { 0.0 };
                let heard = ask(&runtime, &server, &stored, load, lasts, (round * 10 + at) as u64);
                let after = server.cpu_ms() + if store == "postgres" { postgres_cpu_ms() } else { 0.0 };
                assert_eq!(heard.bad, 0, "{load}: {}", heard.first_bad);
                figures[at].note(&heard, after - before);
                let (p50, p99) = (percentile(&heard.all(), 50), percentile(&heard.all(), 99));
                print(&format!("    round {round} {load}: p50 {p50:.2} ms, p99 {p99:.2} ms, {}", weather()));
            }
            let before = cpu_ms(bare.0.id());
            let heard = open_loop(&runtime, bare_at, PER_SECOND, lasts.min(WARM_UP * 2), KINDS.len(), |_| {
                (0, request(bare_at, "none", "GET", "/", ""))
            });
            floor.note(&heard, cpu_ms(bare.0.id()) - before);
        }
        print(&format!(
            "{store}: {PER_SECOND} requests/s, {} s each, {} rounds, {} runs stored",
            wanted.seconds, wanted.rounds, stored.runs
        ));
        for (load, figures) in LOADS.iter().zip(&figures) {
            figures.tell(load);
            bars.judge(format!("{store}: {load} at {PER_SECOND}/s, p99, ms"), &figures.p99, P99_MS_MAX, true);
        }
        let kinds: Vec<String> =
            KINDS.iter().zip(&figures[0].kinds).map(|(kind, p99)| format!("{kind} {}", spread(p99))).collect();
        print(&format!("  in the mix, p99: {} ms", kinds.join(", ")));
        floor.tell("floor");
        let (now, most) = server.memory_kib();
        print(&format!("  memory of the server: {} MB now, {} MB at most", now / 1_000, most / 1_000));
        drop(server);
        site.check();
    }
}

/// What counts everything, which nobody waits for but who asks: said, and not judged.
fn counting(server: &Server) {
    for path in ["/v1/status", "/metrics", "/readyz"] {
        let times: Vec<f64> = (0..5)
            .map(|_| {
                let begun = Instant::now();
                let _: Value = server.ask("GET", path, "");
                begun.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        print(&format!("  {path}: {} ms", spread(&times)));
    }
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_bare() -> (Started, SocketAddr) {
    let path = std::env::current_exe().expect("this program");
    let mut command = other(&path.display().to_string());
    command.arg("serve-bare").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it says where");
    (Started(child), line.trim().parse().expect("an address"))
}

/// The peer: a handler that says the same to everybody, until it is killed.
pub(crate) fn bare() -> ExitCode {
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut out = std::io::stdout();
        writeln!(out, "{}", listener.local_addr().expect("an address")).and_then(|()| out.flush()).expect("it is told");
        let router = Router::new().fallback(async || "x".repeat(BARE_BYTES));
        axum::serve(listener, router).await.expect("it serves");
    });
    ExitCode::SUCCESS
}
