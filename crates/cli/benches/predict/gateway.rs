//! What stands between a caller and his model: nothing, a bare pass-through of axum and reqwest, LiteLLM's proxy, and `actum
//! gateway` with all it does: policy, durable reservation, settlement with receipt and trace, recording.
//!
//! One after the other in every round, so that all have the same weather.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use actum_testkit::folder::Folder;
use actum_testkit::program::other;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::measure::{median, milliseconds, print, spread, verdict};
use crate::wire::{Caller, Server, runtime, storm};

const ROUNDS: usize = 5;
/// Questions of one caller in a round, and of a caller of LiteLLM, who waits long for each.
const QUESTIONS: usize = 400;
const QUESTIONS_LITELLM: usize = 60;
/// Before anything is counted.
const WARM_UP: usize = 50;
const CALLERS: [usize; 2] = [32, 64];
const STORM: Duration = Duration::from_secs(2);
/// Milliseconds of CPU time in a tick of `/proc/PID/stat`.
const TICK_MS: f64 = 10.0;

/// Its newest release whose requirements can all be had; a proxy without a database.
const LITELLM: &str = "litellm[proxy]==1.106.0";
/// It starts with none that is weak.
const LITELLM_KEY: &str = "sk-q7Zt4mXc9RwB2nVf8KpL5sHd";
const LITELLM_PATIENCE: Duration = Duration::from_secs(120);

/// A server that ends with this program.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program in another role; it says where it listens.
fn own(role: &str, rest: &[&str]) -> (Started, SocketAddr) {
    let path = std::env::current_exe().expect("this program");
    let mut command = other(&path.display().to_string());
    command.arg(role).args(rest).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it says where");
    (Started(child), line.trim().parse().expect("an address"))
}

/// The real thing, with a budget that lasts, prices, and a recording.
fn actum(at: &Path, upstream: SocketAddr) -> (Started, Server) {
    let settings = format!(
        "[providers.echo]\ntype = \"openai\"\nbase_url = \"http://{upstream}/v1\"\nkey = \"env:ECHO_KEY\"\nmodels = [\"echo\"]\n\n\
         [prices.echo]\ninput = 3\noutput = 15\n"
    );
    fs::write(at.join("actum.toml"), settings).expect("a file");
    let mut command = other(env!("CARGO_BIN_EXE_actum"));
    let record = at.join("recording.jsonl").display().to_string();
    command.args(["gateway", "--json", "--budget", "1000000000", "--record", &record]).current_dir(at);
    command.env("ECHO_KEY", "echo-key-that-opens-nothing");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut text = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let shown: Value = loop {
        assert!(lines.read_line(&mut text).expect("it says where") > 0, "it ended: {text}");
        if let Ok(shown) = serde_json::from_str(&text) {
            break shown;
        }
    };
    let word = |name: &str| shown[name].as_str().expect("a text").to_owned();
    let pid = Some(child.id());
    let server =
        Server { name: "actum gateway", address: word("listen").parse().expect("an address"), key: word("key"), pid };
    (Started(child), server)
}

fn place() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(std::env::temp_dir);
    home.join(".cache/actum-tests/litellm")
}

/// Installs it if it is missing: a venv beside those of the tests.
fn install() -> Result<PathBuf, String> {
    let (folder, program) = (place(), place().join("bin/litellm"));
    let works = |word: &str, arguments: &[&str]| {
        let done = other(word).args(arguments).stdout(Stdio::null()).status();
        done.is_ok_and(|status| status.success()).then_some(()).ok_or_else(|| format!("{word} {arguments:?} failed"))
    };
    if !program.exists() {
        let (folder, pip) = (folder.display().to_string(), folder.join("bin/pip").display().to_string());
        print(&format!("installing {LITELLM} into {folder}"));
        works("python3", &["-m", "venv", &folder])?;
        works(&pip, &["install", "--quiet", "--no-input", LITELLM])?;
    }
    Ok(program)
}

fn litellm(at: &Path, upstream: SocketAddr) -> Result<(Started, Server), String> {
    let program = install()?;
    let settings = format!(
        "model_list:\n  - model_name: echo\n    litellm_params:\n      model: openai/echo\n      api_base: http://{upstream}/v1\n      api_key: sk-nothing\ngeneral_settings:\n  master_key: {LITELLM_KEY}\n"
    );
    fs::write(at.join("litellm.yaml"), settings).map_err(|e| e.to_string())?;
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(|e| e.to_string())?.port();
    let log = File::create(at.join("litellm.log")).map_err(|e| e.to_string())?;
    let mut command = other(&program.display().to_string());
    command.args(["--config", "litellm.yaml", "--host", "127.0.0.1", "--port", &port.to_string()]).current_dir(at);
    // Its prices come with it: nothing is fetched.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_LOG", "ERROR").env("NO_PROXY", "*");
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(|e| e.to_string())?).stderr(log);
    let mut child = Started(command.spawn().map_err(|e| e.to_string())?);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        let ended = child.0.try_wait().ok().flatten().is_some();
        if ended || start.elapsed() > LITELLM_PATIENCE {
            return Err(fs::read_to_string(at.join("litellm.log")).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let server = Server { name: "LiteLLM's proxy", address, key: LITELLM_KEY.into(), pid: Some(child.0.id()) };
    Ok((child, server))
}

/// CPU time of a process so far.
fn cpu_ms(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(')').next().unwrap_or("").split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    TICK_MS * (fields.get(11).unwrap_or(&0.0) + fields.get(12).unwrap_or(&0.0))
}

/// What is measured of one server, over the rounds.
struct Figures {
    server: Server,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// For each number of callers.
    per_second: [Vec<f64>; CALLERS.len()],
    storm_p99: [Vec<f64>; CALLERS.len()],
    cpu: Vec<f64>,
}

impl Figures {
    fn new(server: Server) -> Self {
        let (per_second, storm_p99) = (Default::default(), Default::default());
        Self { server, p50: Vec::new(), p99: Vec::new(), per_second, storm_p99, cpu: Vec::new() }
    }

    fn alone(&mut self, runtime: &Runtime, questions: usize) {
        let server = &self.server;
        let times = runtime.block_on(async {
            let mut caller = Caller::new(server).await;
            let mut times = Vec::with_capacity(questions);
            for _ in 0..questions {
                times.push(caller.ask(server).await.as_secs_f64() * 1e3);
            }
            times
        });
        self.p50.push(median(times.iter().copied()));
        self.p99.push(high(times));
    }

    fn crowd(&mut self, runtime: &Runtime, at: usize) {
        let Some(pid) = self.server.pid else { return };
        let before = cpu_ms(pid);
        let (per_second, times) = storm(runtime, &self.server, CALLERS[at], STORM);
        self.cpu.push((cpu_ms(pid) - before) / times.len() as f64);
        self.per_second[at].push(per_second);
        self.storm_p99[at].push(high(times));
    }
}

fn high(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * 99 / 100).min(times.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// How long the disk takes to make a small write last, and the processor for a fixed sum: what the weather is like.
fn weather(at: &Path) -> (f64, f64) {
    let mut file = File::create(at.join("weather")).expect("a file");
    let syncs = (0..20).map(|_| {
        milliseconds(|| {
            file.write_all(&[7; 4_096]).expect("there is room");
            file.sync_data().expect("it lasts");
        })
    });
    let synced = median(syncs);
    let summed = milliseconds(|| {
        let sum = (0..20_000_000_u64).fold(0_u64, |sum, n| std::hint::black_box(sum.wrapping_mul(31) ^ n));
        std::hint::black_box(sum);
    });
    (synced, summed)
}

pub(crate) fn run() {
    let folder = Folder::new();
    let at = folder.path();
    let (_echo, upstream) = own("serve-echo", &[]);
    let (pass, address) = own("serve-pass", &[&upstream.to_string()]);
    let bare = Server { name: "axum + reqwest", address, key: "none".into(), pid: Some(pass.0.id()) };
    let (_ours, ours) = actum(at, upstream);
    let other = litellm(at, upstream);
    let direct = Server { name: "the upstream itself", address: upstream, key: "none".into(), pid: None };
    let mut all: Vec<Figures> = [direct, bare, ours].map(Figures::new).into();
    let _others = match other {
        Ok((started, server)) => {
            all.push(Figures::new(server));
            Some(started)
        }
        Err(why) => {
            print(&format!("LiteLLM is not measured: {why}"));
            None
        }
    };
    let runtime = runtime(1);
    for figures in &mut all {
        figures.alone(&runtime, WARM_UP);
        (figures.p50, figures.p99) = (Vec::new(), Vec::new());
    }
    let mut skies = Vec::new();
    for round in 0..ROUNDS {
        skies.push(weather(at));
        let count = all.len();
        for place in 0..count {
            // Another one comes first each time.
            let figures = &mut all[(place + round) % count];
            figures.alone(&runtime, if figures.server.key == LITELLM_KEY { QUESTIONS_LITELLM } else { QUESTIONS });
        }
        for at in 0..CALLERS.len() {
            for place in 0..count {
                all[(place + round) % count].crowd(&runtime, at);
            }
        }
    }
    report(&all, &skies);
}

fn report(all: &[Figures], skies: &[(f64, f64)]) {
    print(&format!("gateway, echo upstream on loopback, medians of {ROUNDS} rounds (lowest–highest)"));
    let (syncs, sums): (Vec<f64>, Vec<f64>) = skies.iter().copied().unzip();
    print(&format!("  the machine: a durable write of 4 KiB {} ms, a fixed sum {} ms", spread(&syncs), spread(&sums)));
    for figures in all {
        print(&format!("  {}", figures.server.name));
        print(&format!("    one caller: p50 {} ms, p99 {} ms", spread(&figures.p50), spread(&figures.p99)));
        if figures.server.pid.is_none() {
            continue;
        }
        for (at, callers) in CALLERS.iter().enumerate() {
            let (per_second, p99) = (spread(&figures.per_second[at]), spread(&figures.storm_p99[at]));
            print(&format!("    {callers} callers: {per_second} requests/s, p99 {p99} ms"));
        }
        print(&format!("    CPU of the server for a request: {} ms", spread(&figures.cpu)));
    }
    let [direct, bare, ours, rest @ ..] = all else { return };
    let pairs = |a: &[f64], b: &[f64], f: fn(f64, f64) -> f64| -> Vec<f64> {
        a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
    };
    let best = |figures: &Figures| pairs(&figures.per_second[0], &figures.per_second[1], f64::max);
    verdict("actum adds, one caller, p50, ms", &pairs(&ours.p50, &direct.p50, |a, b| a - b), 1.5, true);
    print(&format!("  bare pass-through adds {} ms", spread(&pairs(&bare.p50, &direct.p50, |a, b| a - b))));
    verdict("actum, requests/s", &best(ours), 2_500.0, false);
    if let [other] = rest {
        print(&format!("  LiteLLM adds {} ms", spread(&pairs(&other.p50, &direct.p50, |a, b| a - b))));
        verdict("actum / LiteLLM, requests/s", &pairs(&best(ours), &best(other), |a, b| a / b), 20.0, false);
        let cpu = pairs(&other.cpu, &ours.cpu, |a, b| a / b);
        print(&format!("  LiteLLM / actum, CPU for a request: {}", spread(&cpu)));
    }
    print(&format!(
        "  actum / bare pass-through, requests/s: {}",
        spread(&pairs(&best(ours), &best(bare), |a, b| a / b))
    ));
}
