//! A project with agents, its store, and servers of it, by way of the real binary.

use std::net::SocketAddr;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::{Program, Running};
use serde_json::{Value, json};

use crate::http::{Caller, request, runtime};

/// Files of the project: what is looked through at every submission.
const FILES: usize = 100;

pub(crate) struct Site {
    pub actum: Program,
    /// None: a file in the project.
    pub url: Option<String>,
}

impl Site {
    pub(crate) fn new(store: &str) -> Self {
        let mut actum = Program::new(env!("CARGO_BIN_EXE_actum")).with_env("PATH", "/usr/bin:/bin");
        let url = (store == "postgres").then(shared_url);
        if let Some(url) = &url {
            actum = actum.on_store(url);
        }
        let agent = |id: &str, script: &str| {
            format!(
                "[agents.{id}]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", {}]\nphases = [\"step\"]\n\n",
                json!(script)
            )
        };
        let sleeps = "sleep 0.1";
        let agents = [agent("writes", "date +%N > changed.txt"), agent("fails", "exit 3"), agent("sleeps", sleeps)];
        actum.file(
            "actum.toml",
            agents.concat() + "[agents.noop]\ntype = \"command\"\ncommand = [\"true\"]\nphases = [\"step\"]\n",
        );
        for n in 0..FILES {
            actum.file(&format!("src/{}/{n}.txt", n % 10), format!("file {n}\n").repeat(20));
        }
        Self { actum, url }
    }

    /// Whether the store says that all is well with it.
    pub(crate) fn check(&self) {
        let ended = self.actum.run(&["store", "check"]);
        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    }
}

pub(crate) fn work(agent: &str, number: usize) -> Value {
    let item =
        |n: usize| json!({"id": format!("item-{n}"), "agent_id": agent, "description": "Do what is to be done."});
    json!({"items": (0..number).map(item).collect::<Vec<_>>()})
}

/// A server under way; gone with whoever started it.
pub(crate) struct Server {
    running: Option<Running>,
    pub at: SocketAddr,
    pub token: String,
}

impl Server {
    pub(crate) fn start(site: &Site, workers: usize) -> Self {
        let made = site.actum.run(&["token", "create", "--json", "--role", "admin", "--name", "bench"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let token = made.json()["token"].as_str().expect("a token").to_owned();
        let words = ["serve", "--json", "--rate", "0", "--listen", "127.0.0.1:0", "--workers", &workers.to_string()];
        let mut running = site.actum.start(&words, &[]);
        let line = running.line().expect("it says where it listens");
        let told: Value = serde_json::from_str(&line).expect("JSON");
        let at = told["listen"].as_str().expect("an address").parse().expect("an address");
        Self { running: Some(running), at, token }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.as_ref().map_or(0, Running::id)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, content: &str) -> Value {
        let request = request(self.at, &self.token, method, path, content);
        let (status, body) = runtime().block_on(async { Caller::new(self.at).await.ask(&request).await });
        assert!((200..300).contains(&status), "{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap_or_default()
    }

    /// Kibibytes of memory it has now, and has had at most.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    pub(crate) fn cpu_ms(&self) -> f64 {
        cpu_ms(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal("TERM");
            running.abandon();
        }
    }
}

/// Milliseconds of CPU time in a tick of `/proc/PID/stat`.
const TICK_MS: f64 = 10.0;

/// CPU time of a process so far.
pub(crate) fn cpu_ms(pid: u32) -> f64 {
    ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()) * TICK_MS
}

fn ticks(stat: &str) -> f64 {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    (11..13).filter_map(|i| fields.get(i)?.parse::<f64>().ok()).sum()
}

/// CPU time of all PostgreSQL processes of this machine.
pub(crate) fn postgres_cpu_ms() -> f64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.map(|entry| std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default());
    stats.filter(|stat| stat.contains("(postgres)")).map(|stat| ticks(&stat)).sum::<f64>() * TICK_MS
}

/// Time that all processors of this machine together were busy, and had nothing to do, so far.
pub(crate) fn machine_ms() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    // The fourth is idle, the fifth idle until a disk answers.
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    ((ticks.iter().sum::<f64>() - idle) * TICK_MS, idle * TICK_MS)
}

/// The share of the time since then in which they were busy.
pub(crate) fn busy_since((busy, idle): (f64, f64)) -> f64 {
    let (busy_now, idle_now) = machine_ms();
    let (busy, idle) = (busy_now - busy, idle_now - idle);
    busy / (busy + idle).max(1.0)
}
