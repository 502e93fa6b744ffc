//! Who asks: requests on connections that stay, sent when they are due whether or not the earlier ones are answered. As
//! cheap as can be, since it shares the two processors with what is measured.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::Instant;

const BUFFER_BYTES: usize = 64 << 10;

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A request as it is sent.
pub(crate) fn request(at: SocketAddr, token: &str, method: &str, path: &str, content: &str) -> Vec<u8> {
    let mut text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\naccept: application/json\r\n"
    );
    if !content.is_empty() {
        text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", content.len());
    }
    format!("{text}\r\n{content}").into_bytes()
}

/// A connection that stays.
pub(crate) struct Caller {
    at: SocketAddr,
    stream: TcpStream,
    held: Vec<u8>,
}

impl Caller {
    pub(crate) async fn new(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self { at, stream, held: Vec::with_capacity(BUFFER_BYTES) }
    }

    /// The status and the content of the answer. If the server has closed a connection on which nothing was said for long,
    /// it is asked on another.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> (u16, Vec<u8>) {
        match self.try_ask(request).await {
            Some(answer) => answer,
            None => {
                *self = Self::new(self.at).await;
                self.try_ask(request).await.expect("it answers")
            }
        }
    }

    async fn try_ask(&mut self, request: &[u8]) -> Option<(u16, Vec<u8>)> {
        self.held.clear();
        self.stream.write_all(request).await.ok()?;
        loop {
            let read = self.stream.read_buf(&mut self.held).await.unwrap_or(0);
            if read == 0 {
                assert!(self.held.is_empty(), "it hung up: {}", String::from_utf8_lossy(&self.held));
                return None;
            }
            let Some(head) = self.held.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.held[..head]).expect("a head is text");
            let length = text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().expect("a length"))
            });
            if self.held.len() >= head + 4 + length.unwrap_or(0) {
                let status = text[9..12].parse().expect("a status");
                return Some((status, self.held[head + 4..].to_vec()));
            }
        }
    }
}

/// What became of a load.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Milliseconds from when it was due to be sent until its answer was there, of each kind.
    pub times: Vec<Vec<f64>>,
    /// Answers that were none, the first of them.
    pub bad: u64,
    pub first_bad: String,
}

impl Heard {
    pub(crate) fn all(&self) -> Vec<f64> {
        self.times.concat()
    }
}

/// So many requests a second, evenly spaced; `next` makes the n-th with its kind.
pub(crate) fn open_loop(
    runtime: &Runtime,
    at: SocketAddr,
    per_second: u32,
    lasts: Duration,
    kinds: usize,
    next: impl Fn(u64) -> (usize, Vec<u8>),
) -> Heard {
    let free: Arc<Mutex<Vec<Caller>>> = Arc::default();
    let heard = Arc::new(Mutex::new(Heard { times: vec![Vec::new(); kinds], ..Heard::default() }));
    runtime.block_on(async {
        let mut all = JoinSet::new();
        let number = u64::from(per_second) * lasts.as_secs();
        let begun = Instant::now();
        for n in 0..number {
            let due = begun + Duration::from_secs_f64(n as f64 / f64::from(per_second));
            let (kind, request) = next(n);
            tokio::time::sleep_until(due).await;
            let (free, heard) = (Arc::clone(&free), Arc::clone(&heard));
            all.spawn(async move {
                let known = free.lock().expect("a lock").pop();
                let mut caller = match known {
                    Some(caller) => caller,
                    None => Caller::new(at).await,
                };
                let (status, content) = caller.ask(&request).await;
                let took = due.elapsed().as_secs_f64() * 1e3;
                let mut heard = heard.lock().expect("a lock");
                heard.times[kind].push(took);
                if !(200..300).contains(&status) {
                    heard.bad += 1;
                    if heard.first_bad.is_empty() {
                        heard.first_bad = format!("{status} {}", String::from_utf8_lossy(&content));
                    }
                }
                free.lock().expect("a lock").push(caller);
            });
            while all.try_join_next().is_some() {}
        }
        all.join_all().await;
    });
    std::mem::take(&mut *heard.lock().expect("a lock"))
}

/// The value that so many in a hundred do not exceed.
pub(crate) fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
