//! A thousand listeners on one server while runs go on: what it needs of memory, and that each hears everything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actum_testkit::event::signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::http::runtime;
use crate::measure::{print, spread};
use crate::site::{Server, Site, work};
use crate::{Bars, Wanted, weather};

const LISTENERS: usize = 1_000;
/// Of those, who listen to one run each.
const TO_RUNS: usize = 200;
/// Runs that go on meanwhile.
const RUNS: usize = 40;
const WORKERS: usize = 2;
const MEGABYTES_MAX: f64 = 200.0;
const PATIENCE: Duration = Duration::from_secs(120);
const BUFFER_BYTES: usize = 16 << 10;
/// Who come in at once: of more than it has places to wait, a server sends some away for a second.
const COMING_MAX: usize = 100;

/// What all listeners have heard.
#[derive(Debug)]
struct Heard {
    door: Semaphore,
    connected: AtomicUsize,
    events: AtomicU64,
    /// Ids that did not follow on the one before.
    gaps: AtomicU64,
    /// Of each that listens to everything: what it is to hear next.
    next: Vec<AtomicU64>,
    /// Streams of single runs that came to their end.
    ended: AtomicUsize,
}

/// One that listens until the stream ends: to everything under a number, or to one run.
async fn ear(at: SocketAddr, token: Arc<str>, path: String, number: Option<usize>, heard: Arc<Heard>) {
    let mut coming = Some(heard.door.acquire().await.expect("a door"));
    let mut stream = TcpStream::connect(at).await.expect("it listens");
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("it listens");
    let (mut held, mut next, mut is_in) = (Vec::with_capacity(BUFFER_BYTES), 0_u64, false);
    while stream.read_buf(&mut held).await.is_ok_and(|read| read > 0) {
        let end = held.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(&held[..end]).into_owned();
        held.drain(..end);
        for line in text.lines() {
            if !is_in && line.starts_with("HTTP/1.1") {
                assert!(line.contains(" 200 "), "{text}");
                (is_in, coming) = (true, None);
                heard.connected.fetch_add(1, Ordering::SeqCst);
            }
            if let Some(id) = line.strip_prefix("id: ").and_then(|id| id.trim().parse::<u64>().ok()) {
                heard.gaps.fetch_add(u64::from(id != next), Ordering::SeqCst);
                heard.events.fetch_add(1, Ordering::SeqCst);
                next = id + 1;
            }
        }
        if let Some(number) = number {
            heard.next[number].store(next, Ordering::SeqCst);
        }
    }
    drop(coming);
    if number.is_none() {
        heard.ended.fetch_add(1, Ordering::SeqCst);
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn run(wanted: &Wanted, bars: &mut Bars) {
    for store in wanted.stores() {
        let (mut now, mut most, mut late, mut lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..wanted.rounds {
            let site = Site::new(store);
            let server = Server::start(&site, WORKERS);
            let (idle, _) = server.memory_kib();
            let heard = Arc::new(Heard {
                door: Semaphore::new(COMING_MAX),
                connected: AtomicUsize::new(0),
                events: AtomicU64::new(0),
                gaps: AtomicU64::new(0),
                next: (0..LISTENERS - TO_RUNS).map(|_| AtomicU64::new(0)).collect(),
                ended: AtomicUsize::new(0),
            });
            let (done, runs) = listened(&server, &heard);
            let (rss, peak) = server.memory_kib();
            now.push(rss as f64 / 1e3);
            most.push(peak as f64 / 1e3);
            late.push(done);
            lost.push(heard.gaps.load(Ordering::SeqCst) as f64);
            let (events, ended) = (heard.events.load(Ordering::SeqCst), heard.ended.load(Ordering::SeqCst));
            print(&format!(
                "    {store}: {events} events told to {LISTENERS}, {ended} of {TO_RUNS} streams of {runs} runs ended, before anybody came {} MB, {}",
                idle / 1_000,
                weather()
            ));
        }
        print(&format!(
            "{store}: {LISTENERS} listeners, {TO_RUNS} of them to single runs, {RUNS} runs by {WORKERS} workers, {} rounds",
            wanted.rounds
        ));
        print(&format!(
            "  memory {} MB, at most {} MB; the last had heard the end {} ms after it happened",
            spread(&now),
            spread(&most),
            spread(&late)
        ));
        bars.judge(format!("{store}: memory with {LISTENERS} listeners, most, MB"), &most, MEGABYTES_MAX, true);
        bars.judge(format!("{store}: events that a listener did not hear in order"), &lost, 0.0, true);
    }
}

/// Milliseconds until all have heard all once it had happened, and how many runs there were.
fn listened(server: &Server, heard: &Arc<Heard>) -> (f64, usize) {
    let token: Arc<str> = server.token.as_str().into();
    runtime().block_on(async {
        let mut ears = JoinSet::new();
        for number in 0..LISTENERS - TO_RUNS {
            ears.spawn(ear(server.at, Arc::clone(&token), "/v1/events".into(), Some(number), Arc::clone(heard)));
        }
        until("not all could connect", || heard.connected.load(Ordering::SeqCst) == LISTENERS - TO_RUNS).await;
        let content = work("writes", RUNS).to_string();
        let (at, key) = (server.at, server.token.clone());
        let ask = async |method: &str, path: &str, content: &str| {
            let request = crate::http::request(at, &key, method, path, content);
            let (status, body) = crate::http::Caller::new(at).await.ask(&request).await;
            assert!((200..300).contains(&status), "{}", String::from_utf8_lossy(&body));
            serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default()
        };
        let made = ask("POST", "/v1/runs", &content).await;
        let ids: Vec<&str> =
            made["runs"].as_array().into_iter().flatten().filter_map(|run| run["run_id"].as_str()).collect();
        assert_eq!(ids.len(), RUNS);
        for n in 0..TO_RUNS {
            let path = format!("/v1/runs/{}/events", ids[n % RUNS]);
            ears.spawn(ear(at, Arc::clone(&token), path, None, Arc::clone(heard)));
        }
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "the runs do not end");
            let states = ask("GET", "/v1/status", "").await;
            let over: u64 = ["succeeded", "failed"].iter().filter_map(|state| states["runs"][state].as_u64()).sum();
            if over == RUNS as u64 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let over = Instant::now();
        // The last that all have to hear.
        let last = ask("POST", "/v1/ledger/entries", &signal("local", "the-end").to_string()).await;
        let last = last["seq"].as_u64().expect("its number");
        until("not all have heard all", || heard.next.iter().all(|next| next.load(Ordering::SeqCst) > last)).await;
        let took = over.elapsed().as_secs_f64() * 1e3;
        until("not all streams of runs end", || heard.ended.load(Ordering::SeqCst) == TO_RUNS).await;
        ears.shutdown().await;
        (took, ids.len())
    })
}
