//! The bridge into a cell: a thread with a runtime of its own that serves what may be asked of `Tools` on a listener
//! inside the cell's network.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use actum_api::error;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::http;
use crate::models::{Gate, Models};
use crate::paced::Paced;
use crate::turns::{self, Turns};

/// Connections that are served at once; others wait in the kernel's queue, which has a bound too.
pub const CONNECTIONS_MAX: usize = 64;
/// How long others may keep us waiting.
const PATIENCE: Patience =
    Patience { head: Duration::from_secs(20), body: Duration::from_secs(30), write: Duration::from_secs(30) };
/// How long exchanges with models may go on when all else is over.
const EXCHANGES_PATIENCE: Duration = Duration::from_secs(5);
/// A request's line and headers, in bytes and in number.
pub(crate) const HEAD_BYTES_MAX: usize = 32 << 10;
pub(crate) const HEADERS_MAX: usize = 64;
/// The pause after a connection could not be accepted, as when there are no file descriptors left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For a request's line and headers, and between requests.
    pub(crate) head: Duration,
    /// For the content of a request, all of it.
    pub(crate) body: Duration,
    /// For an answer that nobody reads, before its next byte.
    pub(crate) write: Duration,
}

/// What may be asked. Blocking: every question has a thread of its own while it is being answered.
pub trait Tools: Send + Sync + 'static {
    /// Level L0 or L1 of everything there is, or of what belongs to one tool.
    fn list(&self, level: &str, tool: Option<&str>) -> Result<Value, Refused>;
    /// One tool or adapter at a level.
    fn show(&self, id: &str, level: &str) -> Result<Value, Refused>;
    /// One call: an execution. Blocks until it is over. `cancelled` turns true when the caller has gone away or the
    /// bridge ends; the call must then come to its end soon, since the bridge waits for it.
    fn call(&self, call: Call, cancelled: &Arc<AtomicBool>) -> Result<Value, Refused>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub tool: String,
    pub adapter: Option<String>,
    pub operation: Option<String>,
    pub params: Map<String, Value>,
}

/// A no, as it goes over the wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    pub status: u16,
    /// `{error: {code, message, details, hint?}}`
    pub body: Value,
}

impl Refused {
    /// By the name of a row of the table of errors.
    pub fn named(name: &str, message: &str, details: &Value, hint: Option<&str>) -> Self {
        let row = error::named(name);
        Self { status: row.status, body: error::json(row, message, details, hint) }
    }

    /// The same with a status that says more than the row's: what is wrong with the request as such.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

/// What is served.
#[derive(Default)]
pub struct Offered {
    /// Below `/t/<token>`. The token goes into addresses as it is: letters, digits, `-` and `_`.
    pub tools: Option<(String, Arc<dyn Tools>)>,
    /// By the paths of their providers, to whoever has the key.
    pub models: Option<(String, Arc<dyn Models>)>,
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Token and key are nobody's business.
        let (tools, models) = (self.tools.is_some(), self.models.is_some());
        f.debug_struct("Offered").field("tools", &tools).field("models", &models).finish()
    }
}

/// Serves until it is ended or dropped.
#[derive(Debug)]
pub struct Bridge {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    /// Serves on a listener that listens already.
    pub fn serve(listener: TcpListener, offered: Offered) -> io::Result<Self> {
        Self::serve_with(listener, offered, PATIENCE)
    }

    pub(crate) fn serve_with(listener: TcpListener, offered: Offered, patience: Patience) -> io::Result<Self> {
        let tools = match offered.tools {
            None => None,
            Some((token, tools)) => {
                let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
                if token.is_empty() || !is_plain {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "the token does not fit into an address"));
                }
                Some(http::router(&token, Arc::new(Turns::new(tools)), patience.body))
            }
        };
        let gate = offered.models.map(|(key, models)| Gate::new(&key, models, patience.body));
        let router = match (tools, gate.clone()) {
            (tools, Some(gate)) => http::with_models(tools, gate),
            (Some(tools), None) => tools,
            (None, None) => Router::new(),
        };
        let (stop, stopped) = oneshot::channel();
        let (report, started) = mpsc::sync_channel(1);
        // A thread of our own: a runtime may be neither entered nor dropped where the caller runs inside another one.
        let thread = Builder::new().name("actum-bridge".to_owned()).spawn(move || {
            let ready = turns::runtime().and_then(|runtime| {
                listener.set_nonblocking(true)?;
                let _inside = runtime.enter();
                let listener = tokio::net::TcpListener::from_std(listener)?;
                Ok((runtime, listener))
            });
            match ready {
                Ok((runtime, listener)) => {
                    // Nobody listening means `serve` is gone, and then `stopped` says so too.
                    report.send(Ok(())).unwrap_or_default();
                    run(runtime, listener, router, gate, patience, stopped);
                }
                Err(error) => report.send(Err(error)).unwrap_or_default(),
            }
        })?;
        let bridge = Self { stop: Some(stop), thread: Some(thread) };
        started.recv().map_err(|_| io::Error::other("the bridge did not start"))??;
        Ok(bridge)
    }

    /// Accepts nothing more, lets exchanges with models end for a while, cuts every connection, tells calls under way that
    /// they are cancelled, and waits for them.
    pub fn end(self) {}
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // A thread that is over already hears nothing.
            stop.send(()).unwrap_or_default();
        }
        if let Some(thread) = self.thread.take() {
            // What panicked there was told to whoever asked; there is nothing left to mend.
            thread.join().unwrap_or_default();
        }
    }
}

fn run(
    runtime: Runtime,
    listener: tokio::net::TcpListener,
    router: Router,
    gate: Option<Gate>,
    patience: Patience,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        tokio::select! {
            () = accept(listener, router, patience) => {}
            _ = stopped => {}
        }
        if let Some(gate) = gate {
            // What was paid for is worth a moment to find out what it cost. What takes longer is cut.
            let _ = tokio::time::timeout(EXCHANGES_PATIENCE, gate.settled()).await;
        }
    });
    // Dropping the runtime drops every connection, which sets the flags of their calls, and waits for the threads that
    // these run on. A call left behind could still change something after its run is over.
    drop(runtime);
}

async fn accept(listener: tokio::net::TcpListener, router: Router, patience: Patience) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Never closed, so this ends only with the runtime.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, router.clone(), patience, slot));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn converse(stream: tokio::net::TcpStream, router: Router, patience: Patience, _slot: OwnedSemaphorePermit) {
    // Answers are small and written at once; without it each waits for the acknowledgement of the last one.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let io = TokioIo::new(Paced::new(stream, patience.write));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        // What an agent is told is the same whenever its run is repeated.
        .auto_date_header(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(io, TowerToHyperService::new(router));
    // Whatever broke the connection, there is nobody left to tell.
    connection.await.unwrap_or_default();
}
