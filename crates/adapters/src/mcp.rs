//! Tools of MCP servers: a pool of live connections, spoken to by callers that block.
//!
//! A server lives as long as the pool, or until it ends or misbehaves; the next call starts it anew, a few times. Nothing a
//! server says is believed: what it lists is bounded and checked, and what it asks of us is refused.

mod connection;
mod http;
mod schema;
mod wire;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use actum_contract::tool::{Mcp, Server, Transport, Went};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, RequestMetaObject, Tool};
use serde_json::{Map, Value, json};

use crate::cells::{Cells, Job};
use crate::result::{Attempt, Problem, Stage};
use connection::{Connection, Era, Obituary, Opening, Unopened};
use schema::{PAGES_MAX, Tools, check_input, check_output};
use worker::{Came, Worker};

pub use http::client;

/// Times a server is started again.
const RESTARTS_MAX: u64 = 3;

/// Servers that are kept at once; beyond that the one that was unused for longest is ended.
const SERVERS_MAX: usize = 32;

/// The most a caller waits, so that the end can be told by the clock.
const LIMIT_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long a server that did not answer in time has to show that it is alive.
const PING_WAIT: Duration = Duration::from_secs(1);

/// How long servers have to hear that the connection is closed.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// How often somebody who waits for a server to be started by somebody else looks again.
const LOCK_TICK: Duration = Duration::from_millis(5);

/// Characters of a server's complaint that are passed on.
const TEXT_MAX: usize = 2_000;

/// A server, and how it is reached.
#[derive(Debug, Clone, Copy)]
pub struct McpLink<'a> {
    pub adapter_id: &'a str,
    pub mcp: &'a Mcp,
    pub server: &'a Server,
    /// Who it is: links with the same key share a server. Made by the caller of all that makes a difference: tool,
    /// server, command, sandbox, secrets.
    pub key: &'a str,
    /// For a server that is started: its program, environment, secrets and sandbox.
    pub job: &'a Job,
    /// For a server that is reached through HTTP.
    pub http: Option<HttpLink<'a>>,
    /// By which the server recognises a call that is made again: `_meta` of the call has it.
    pub idempotency_key: Option<&'a str>,
}

/// Where a server finds what a call is known by.
const KEY_META: &str = "actum/idempotency_key";

/// How a server is reached through HTTP.
#[derive(Clone, Copy)]
pub struct HttpLink<'a> {
    pub headers: &'a BTreeMap<String, String>,
    pub bearer: Option<&'a str>,
    /// Judges an address and gives a client that reaches nobody else; see `client`.
    pub client_for: &'a dyn Fn(&str) -> Result<reqwest::Client, Problem>,
}

impl fmt::Debug for HttpLink<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("HttpLink").finish_non_exhaustive()
    }
}

/// Live connections to servers. Dropping it ends them all.
#[derive(Debug, Default)]
pub struct Servers {
    worker: Mutex<Option<Worker>>,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
    is_closed: AtomicBool,
}

/// A server's place in the pool.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    used: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    tools: Option<Arc<Tools>>,
    starts: u64,
    era: Era,
    /// How it ended the last time.
    last: String,
}

impl State {
    fn restarts(&self) -> u64 {
        self.starts.saturating_sub(1)
    }
}

/// A call that came to nothing.
#[derive(Debug)]
struct Failed {
    went: Went,
    problem: Problem,
    aside: Box<Aside>,
}

/// What else is known of it.
#[derive(Debug, Default)]
struct Aside {
    stderr: String,
    code: Option<u64>,
    retry_after_ms: Option<u64>,
    restarts: u64,
}

impl Failed {
    fn new(went: Went, stage: Stage, message: impl Into<String>) -> Self {
        Self::of(went, Problem::new(stage, message))
    }

    fn of(went: Went, problem: Problem) -> Self {
        Self { went, problem, aside: Box::default() }
    }

    /// A server that ended.
    fn ended(obituary: Obituary) -> Self {
        let mut failed = Self::new(Went::Unavailable, Stage::Call, obituary.message);
        (failed.aside.stderr, failed.aside.code) = (obituary.stderr, obituary.code);
        failed
    }

    fn stopped() -> Self {
        Self::new(Went::TimedOut, Stage::Call, "cancelled before the server answered")
    }

    fn late(limit: Duration) -> Self {
        let text = format!("the server did not answer within {} ms", limit.as_millis());
        Self::new(Went::TimedOut, Stage::Call, text)
    }

    fn gone() -> Self {
        Self::new(Went::Unavailable, Stage::Call, "the pool of MCP servers is closed")
    }

    fn after(mut self, restarts: u64) -> Self {
        self.aside.restarts = restarts;
        self
    }
}

/// When a caller gives up.
#[derive(Clone, Copy)]
struct Patience<'a> {
    limit: Duration,
    until: Instant,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Patience<'a> {
    fn new(limit: Duration, stop: &'a dyn Fn() -> bool) -> Self {
        let limit = limit.min(LIMIT_MAX);
        Self { limit, until: Instant::now() + limit, stop }
    }

    fn check(&self) -> Result<(), Failed> {
        if (self.stop)() {
            return Err(Failed::stopped());
        }
        if Instant::now() >= self.until { Err(Failed::late(self.limit)) } else { Ok(()) }
    }
}

impl Servers {
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls a tool. `deadline` is for all of it, the start of the server included.
    pub fn attempt(
        &self,
        cells: &dyn Cells,
        link: &McpLink<'_>,
        operation: &str,
        params: Map<String, Value>,
        deadline: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Attempt {
        let begun = Instant::now();
        let mut attempt = Attempt::new(link.adapter_id, Went::Well);
        attempt.evidence = json!({"transport": transport_word(link.mcp.transport)});
        if let Err(failed) = self.call(cells, link, operation, params, Patience::new(deadline, stop), &mut attempt) {
            attempt.went = failed.went;
            attempt.problem = Some(failed.problem);
            attempt.stderr = failed.aside.stderr;
            attempt.code = failed.aside.code;
            attempt.retry_after_ms = failed.aside.retry_after_ms;
            if attempt.evidence.get("restarts").is_none() {
                attempt.evidence["restarts"] = json!(failed.aside.restarts);
            }
        }
        attempt.duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        attempt
    }

    /// The tools a server lists: name, description, inputSchema, and outputSchema if there is one.
    pub fn list(
        &self,
        cells: &dyn Cells,
        link: &McpLink<'_>,
        deadline: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Value>, Problem> {
        let ready = self.ready(cells, link, Patience::new(deadline, stop)).map_err(|failed| failed.problem)?;
        Ok(ready.tools.shown())
    }

    /// Ends all servers and the thread. Calls after this fail.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let slots = std::mem::take(&mut *held(&self.slots));
        if let Some(worker) = held(&self.worker).take() {
            // Those that nobody is about to start are told; the others lose their thread.
            let idle = slots.values().filter_map(|slot| slot.state.try_lock().ok()?.connection.clone());
            let goodbyes = idle.filter_map(|connection| connection.goodbye()).collect::<FuturesUnordered<_>>();
            let ticket = worker.begin(goodbyes.collect::<Vec<()>>(), Instant::now() + GOODBYE_WAIT);
            drop(ticket.map(|ticket| ticket.wait(&|| false)));
            worker.end();
        }
        let connections: Vec<_> = slots.values().filter_map(|slot| held(&slot.state).connection.take()).collect();
        for connection in connections {
            connection.bury();
        }
    }

    fn call(
        &self,
        cells: &dyn Cells,
        link: &McpLink<'_>,
        operation: &str,
        params: Map<String, Value>,
        patience: Patience<'_>,
        attempt: &mut Attempt,
    ) -> Result<(), Failed> {
        let name = link.mcp.tools.get(operation).ok_or_else(|| {
            let known = link.mcp.tools.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Failed::new(Went::Wrong(None), Stage::Input, format!("no operation {operation:?}; there are: {known}"))
        })?;
        let ready = self.ready(cells, link, patience)?;
        attempt.evidence = ready.evidence(link);
        let wrong = |problem| Failed::of(Went::Wrong(None), problem);
        let tool = ready.tools.find(name).map_err(wrong)?;
        check_input(tool, &params).map_err(wrong)?;
        let mut request = CallToolRequestParams::new(name.clone()).with_arguments(params);
        if let Some(key) = link.idempotency_key {
            let mut meta = RequestMetaObject::new();
            meta.0.0.insert(KEY_META.to_owned(), key.into());
            request.meta = Some(meta);
        }
        let peer = ready.connection.peer();
        let came = self.run(async move { peer.call_tool_once(request).await }, patience);
        attempt.evidence = ready.evidence(link);
        match came? {
            Came::Done(Ok(CallToolResponse::Complete(result))) => judge(tool, result, attempt),
            Came::Done(Ok(_)) => {
                let text = format!("{name} wants more input or a task of its own; it has to answer at once");
                Err(Failed::new(Went::Wrong(None), Stage::Call, text))
            }
            Came::Done(Err(ServiceError::McpError(error))) => {
                attempt.evidence["error_code"] = json!(error.code.0);
                let text = format!("the server refused the call: {}", end_of(&error.message, TEXT_MAX));
                Err(Failed::new(Went::Wrong(None), Stage::Call, text))
            }
            Came::Done(Err(ServiceError::UnexpectedResponse)) => {
                let text = format!("the answer of {name} is not one of the protocol");
                Err(Failed::new(Went::Wrong(None), Stage::Output, text))
            }
            Came::Done(Err(error)) => Err(self.died(&ready, &error)),
            Came::Late => {
                self.revive(&ready, attempt);
                Err(Failed::late(patience.limit))
            }
            Came::Stopped => {
                self.revive(&ready, attempt);
                Err(Failed::stopped())
            }
            Came::Gone => Err(Failed::gone()),
        }
    }

    /// A server whose answer did not come: the SDK has told it that nobody waits; if it says nothing at all any more, its
    /// connection is closed.
    fn revive(&self, ready: &Ready, attempt: &mut Attempt) {
        let peer = ready.connection.peer();
        let patience = Patience::new(PING_WAIT, &|| false);
        let is_alive = matches!(
            self.run(async move { connection::ping(&peer).await }, patience),
            Ok(Came::Done(true)) if !ready.connection.is_over()
        );
        attempt.evidence["is_closed"] = json!(!is_alive);
        if !is_alive {
            self.discard(&ready.slot, &ready.connection);
        }
    }

    fn died(&self, ready: &Ready, error: &ServiceError) -> Failed {
        if let Some(failed) = connection::refused_by_status(error) {
            return failed;
        }
        let mut failed = self.discard(&ready.slot, &ready.connection);
        if ready.connection.transport() == Transport::Http {
            failed.problem.message = format!("{}: {}", failed.problem.message, connection::causes(error));
        }
        failed
    }

    /// Takes a connection out of the pool and says how it ended.
    fn discard(&self, slot: &Slot, connection: &Arc<Connection>) -> Failed {
        self.shut(std::slice::from_ref(connection));
        let obituary = connection.bury();
        let mut state = held(&slot.state);
        if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            state.connection = None;
            state.tools = None;
        }
        state.last = obituary.message.clone();
        Failed::ended(obituary).after(state.restarts())
    }

    /// Closes our side of connections; servers that behave end then.
    fn shut(&self, connections: &[Arc<Connection>]) {
        for connection in connections {
            connection.cancel();
        }
    }

    /// A live connection with a known list of tools.
    fn ready(&self, cells: &dyn Cells, link: &McpLink<'_>, patience: Patience<'_>) -> Result<Ready, Failed> {
        let slot = self.slot(link.key)?;
        let mut state = loop {
            match slot.state.try_lock() {
                Ok(state) => break state,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    patience.check()?;
                    std::thread::sleep(LOCK_TICK);
                }
            }
        };
        *held(&slot.used) = Some(Instant::now());
        if let Some(connection) = state.connection.take_if(|connection| connection.is_over()) {
            self.shut(std::slice::from_ref(&connection));
            state.last = connection.bury().message;
            state.tools = None;
        }
        let restarts = state.restarts();
        let connection = match &state.connection {
            Some(connection) => Arc::clone(connection),
            None => self.open(cells, link, &mut state, patience).map_err(|failed| failed.after(restarts))?,
        };
        if connection.tools_changed() || state.tools.is_none() {
            match self.listed(&connection, patience) {
                Ok(tools) => state.tools = Some(Arc::new(tools)),
                Err(mut failed) => {
                    // Without a list it is of no use to anybody.
                    (state.connection, state.tools) = (None, None);
                    self.shut(std::slice::from_ref(&connection));
                    let obituary = connection.bury();
                    state.last = failed.problem.message.clone();
                    if failed.aside.stderr.is_empty() {
                        failed.aside.stderr = obituary.stderr;
                    }
                    return Err(failed.after(state.restarts()));
                }
            }
        }
        let tools = state.tools.clone().unwrap_or_default();
        let restarts = state.restarts();
        drop(state);
        Ok(Ready { connection, tools, restarts, slot })
    }

    fn slot(&self, key: &str) -> Result<Arc<Slot>, Failed> {
        let mut slots = held(&self.slots);
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Failed::gone());
        }
        if let Some(slot) = slots.get(key) {
            return Ok(Arc::clone(slot));
        }
        if slots.len() >= SERVERS_MAX {
            // In use: somebody else holds it too.
            let idle = slots.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let oldest = idle.min_by_key(|(_, slot)| *held(&slot.used)).map(|(key, _)| key.clone());
            let Some(old) = oldest.and_then(|key| slots.remove(&key)) else {
                let text = format!("{SERVERS_MAX} MCP servers are in use already");
                return Err(Failed::new(Went::Unavailable, Stage::Call, text));
            };
            let connection = held(&old.state).connection.take();
            if let Some(connection) = connection {
                self.shut(std::slice::from_ref(&connection));
                connection.bury();
            }
        }
        Ok(Arc::clone(slots.entry(key.to_owned()).or_default()))
    }

    /// Starts or reaches a server. One that does not know the old greeting is greeted in the new way, once.
    fn open(
        &self,
        cells: &dyn Cells,
        link: &McpLink<'_>,
        state: &mut State,
        patience: Patience<'_>,
    ) -> Result<Arc<Connection>, Failed> {
        let is_started = link.mcp.transport == Transport::Stdio;
        if is_started && state.starts > RESTARTS_MAX {
            let text = format!(
                "the server {} was started {} times and is not started again; the last time {}",
                link.mcp.server, state.starts, state.last
            );
            return Err(Failed::new(Went::Unavailable, Stage::Call, text));
        }
        state.starts += 1;
        loop {
            patience.check()?;
            let opening = Opening::begin(cells, link)?;
            let (work, half) = opening.greet(state.era);
            let came = self.run(work, patience);
            let unopened = match came {
                Ok(Came::Done(Ok(service))) => {
                    let connection = Arc::new(half.whole(service));
                    state.connection = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                Ok(Came::Done(Err(unopened))) => unopened,
                Ok(Came::Late) => {
                    let text = format!("it did not introduce itself within {} ms", patience.limit.as_millis());
                    Unopened::new(text)
                }
                Ok(Came::Stopped) => {
                    half.bury();
                    return Err(Failed::stopped());
                }
                Ok(Came::Gone) => {
                    half.bury();
                    return Err(Failed::gone());
                }
                Err(failed) => {
                    half.bury();
                    return Err(failed);
                }
            };
            let obituary = half.bury();
            if unopened.is_of_other_era && state.era == Era::default() {
                state.era = Era::Discover;
                continue;
            }
            state.last = obituary.message.clone();
            return Err(unopened.failed(&link.mcp.server, obituary));
        }
    }

    fn listed(&self, connection: &Connection, patience: Patience<'_>) -> Result<Tools, Failed> {
        let peer = connection.peer();
        let work = async move {
            let mut tools = Tools::default();
            let mut cursor = None;
            for _ in 0..PAGES_MAX {
                let page = peer.list_tools(connection::page(cursor.take())).await.map_err(Listing::Failed)?;
                tools.add(page.tools).map_err(Listing::Bad)?;
                match page.next_cursor {
                    Some(next) => cursor = Some(next),
                    None => return Ok(tools),
                }
            }
            let text = format!("the server's list of tools has more than {PAGES_MAX} pages");
            Err(Listing::Bad(Problem::new(Stage::Call, text)))
        };
        match self.run(work, patience)? {
            Came::Done(Ok(tools)) => Ok(tools),
            Came::Done(Err(Listing::Bad(problem))) => Err(Failed::of(Went::Wrong(None), problem)),
            Came::Done(Err(Listing::Failed(error))) => Err(connection.no_list(&error)),
            Came::Late => Err(Failed::late(patience.limit)),
            Came::Stopped => Err(Failed::stopped()),
            Came::Gone => Err(Failed::gone()),
        }
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        patience: Patience<'_>,
    ) -> Result<Came<T>, Failed> {
        let unavailable = |problem| Failed::of(Went::Unavailable, problem);
        let ticket = {
            let mut worker = held(&self.worker);
            if self.is_closed.load(Ordering::Acquire) {
                return Ok(Came::Gone);
            }
            // Connections on a thread that is gone are found to be over, each when it is asked for.
            if let Some(gone) = worker.take_if(|worker| worker.is_gone()) {
                gone.end();
            }
            let worker = match &mut *worker {
                Some(worker) => worker,
                none => none.insert(Worker::start().map_err(unavailable)?),
            };
            worker.begin(work, patience.until).map_err(unavailable)?
        };
        Ok(ticket.wait(patience.stop))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.close();
    }
}

enum Listing {
    Failed(ServiceError),
    Bad(Problem),
}

/// A server that can be called.
struct Ready {
    connection: Arc<Connection>,
    tools: Arc<Tools>,
    restarts: u64,
    slot: Arc<Slot>,
}

impl Ready {
    fn evidence(&self, link: &McpLink<'_>) -> Value {
        let mut evidence = self.connection.evidence();
        evidence["transport"] = json!(transport_word(link.mcp.transport));
        evidence["tools_listed"] = json!(self.tools.len());
        evidence["restarts"] = json!(self.restarts);
        evidence
    }
}

fn judge(tool: &Tool, result: CallToolResult, attempt: &mut Attempt) -> Result<(), Failed> {
    let is_error = result.is_error == Some(true);
    let content = serde_json::to_value(&result.content).unwrap_or(Value::Null);
    let mut output = json!({"content": content});
    if let Some(structured) = &result.structured_content {
        output["structuredContent"] = structured.clone();
    }
    if let Some(is_error) = result.is_error {
        output["isError"] = json!(is_error);
    }
    if is_error {
        let parts = output["content"].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
        let text = parts.collect::<Vec<_>>().join("\n");
        attempt.output = output;
        let text = if text.is_empty() { format!("{} failed and did not say why", tool.name) } else { text };
        return Err(Failed::new(Went::Wrong(None), Stage::Call, text.chars().take(TEXT_MAX).collect::<String>()));
    }
    attempt.output = output;
    check_output(tool, result.structured_content.as_ref()).map_err(|problem| Failed::of(Went::Wrong(None), problem))
}

fn transport_word(transport: Transport) -> &'static str {
    match transport {
        Transport::Stdio => "stdio",
        Transport::Http => "http",
        Transport::Websocket => "websocket",
    }
}

/// The end of a text that somebody else wrote.
fn end_of(text: &str, most: usize) -> String {
    let characters = text.chars().count();
    text.chars().skip(characters.saturating_sub(most)).collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
