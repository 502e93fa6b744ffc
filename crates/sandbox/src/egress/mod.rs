//! A cell's way out. The cell has a network of its own with nobody in it; the listeners in that network are ours, handed
//! out of it, and served here. A name is answered only if it is listed, with an address that stands for the name; a
//! connection to it is checked by what it says of itself, the name is resolved by us, and the address that was checked is
//! the one that is dialled. Every decision is noted with its reason.

mod credential;
mod names;
mod speech;
mod stream;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actum_contract::execution::{Host, Verdict};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;

pub use credential::{Credential, Credentials};
use names::Names;

/// Connections of one cell at a time.
const CONNECTIONS_MAX: usize = 256;

/// Decisions that are kept; the others are counted.
const DECISIONS_MAX: usize = 10_000;

/// Whom a cell may reach.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub allow: Vec<Host>,
    pub deny: Vec<Host>,
    /// Names whose address the user has said himself, each alone or with a port.
    pub hosts: BTreeMap<String, IpAddr>,
    /// Both ways together.
    pub bytes_max: u64,
    /// What requests for some hosts get on their way.
    pub credentials: Option<Credentials>,
}

impl Rules {
    /// Ports that have to be listened on.
    pub fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.allow.iter().flat_map(Host::ports).collect();
        ports.sort_unstable();
        ports.dedup();
        // These are taken in every cell with a way out.
        ports.retain(|port| ![crate::init::NAMES_PORT, crate::PROXY_PORT].contains(port));
        ports
    }
}

/// What was decided about one connection or one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Since the cell was started.
    pub after_ms: u64,
    /// How it was asked for: a name, a connection, or through one of the two kinds of proxy.
    pub by: &'static str,
    pub host: String,
    pub port: Option<u16>,
    /// Who was dialled.
    pub address: Option<IpAddr>,
    pub allowed: bool,
    pub code: &'static str,
    pub why: String,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Whether a credential was added to the request.
    pub has_credential: bool,
}

/// Everything that was decided for a cell.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub decisions: Vec<Decision>,
    pub left_out: u64,
}

/// A way out that is being served.
#[derive(Debug)]
pub struct Egress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What all connections of a cell have in common.
#[derive(Debug)]
struct Shared {
    rules: Rules,
    names: Mutex<Names>,
    log: Mutex<Log>,
    /// What each of the decisions in the log has led to, in the same order.
    counts: Mutex<Vec<Arc<Count>>>,
    bytes: AtomicU64,
    started: Instant,
    end: Notify,
}

impl Egress {
    /// Serves a cell's way out (`Listeners::way_out`): names, then the proxy, then the ports in their order.
    pub fn serve(way_out: Vec<OwnedFd>, rules: Rules) -> io::Result<Self> {
        if way_out.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the cell has no way out"));
        }
        let shared = Arc::new(Shared {
            rules,
            names: Mutex::default(),
            log: Mutex::default(),
            counts: Mutex::default(),
            bytes: AtomicU64::new(0),
            started: Instant::now(),
            end: Notify::new(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("egress".into()).spawn(move || {
            // Nothing can be said to anybody if this fails; the cell then has no way out.
            let _ = runtime.block_on(serve(&own, way_out));
            runtime.shutdown_background();
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Cuts everything off, and tells what was decided. What was still under way is in it, with what it had carried.
    pub fn end(mut self) -> Log {
        self.shared.end.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.log()
    }

    /// What was decided so far.
    pub fn log(&self) -> Log {
        let mut log = self.shared.log.lock().map(|log| log.clone()).unwrap_or_default();
        let counts = self.shared.counts.lock().map(|counts| counts.clone()).unwrap_or_default();
        for (decision, count) in log.decisions.iter_mut().zip(counts) {
            decision.sent_bytes = count.sent.load(Ordering::Relaxed);
            decision.received_bytes = count.received.load(Ordering::Relaxed);
        }
        log
    }
}

/// Bytes of a connection, while it goes on.
#[derive(Debug, Default)]
struct Count {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Shared {
    /// Notes a decision when it is made. Its place in the log, if there is room for it.
    fn note(&self, decision: Decision, count: Arc<Count>) -> Option<usize> {
        let (mut log, mut counts) = (self.log.lock().ok()?, self.counts.lock().ok()?);
        if log.decisions.len() >= DECISIONS_MAX {
            log.left_out += 1;
            return None;
        }
        log.decisions.push(decision);
        counts.push(count);
        Some(log.decisions.len() - 1)
    }

    /// Changes what was noted, because more is known.
    fn revise(&self, at: Option<usize>, change: impl FnOnce(&mut Decision)) {
        let Ok(mut log) = self.log.lock() else { return };
        if let Some(decision) = at.and_then(|at| log.decisions.get_mut(at)) {
            change(decision);
        }
    }

    fn decision(&self, by: &'static str, host: &str, port: Option<u16>, verdict: &Verdict) -> Decision {
        let why = match verdict {
            Verdict::Allowed => "listed".to_owned(),
            Verdict::Blocked { why, .. } => why.clone(),
        };
        Decision {
            after_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            by,
            host: host.chars().take(253).collect(),
            port,
            address: None,
            allowed: *verdict == Verdict::Allowed,
            code: verdict.code(),
            why,
            sent_bytes: 0,
            received_bytes: 0,
            has_credential: false,
        }
    }
}

async fn serve(shared: &Shared, way_out: Vec<OwnedFd>) -> io::Result<()> {
    let mut listeners = way_out.into_iter();
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let socket = std::net::UdpSocket::from(listeners.next().ok_or_else(missing)?);
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut doors = Vec::new();
    for (at, listener) in listeners.enumerate() {
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        doors.push((TcpListener::from_std(listener)?, at == 0));
    }
    let mut accepting: FuturesUnordered<_> = doors.iter().map(|(door, is_proxy)| accept(door, *is_proxy)).collect();
    let mut connections = FuturesUnordered::new();
    let answering = names::answer(shared, &socket);
    tokio::pin!(answering);
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            () = shared.end.notified() => return Ok(()),
            () = &mut answering => {}
            Some((door, is_proxy, accepted)) = accepting.next(), if has_room => {
                accepting.push(accept(door, is_proxy));
                if let Ok(stream) = accepted {
                    connections.push(stream::serve(shared, stream, is_proxy));
                }
            }
            Some(()) = connections.next(), if !connections.is_empty() => {}
        }
    }
}

async fn accept(door: &TcpListener, is_proxy: bool) -> (&TcpListener, bool, io::Result<TcpStream>) {
    let accepted = door.accept().await.map(|(stream, _)| stream);
    if accepted.is_err() {
        // Out of descriptors, most likely: a moment later there are some again.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (door, is_proxy, accepted)
}
