//! The commands over HTTP: who asks, what for, how much and how often, then `Face::answer` on a thread for blocking work.
//!
//! Called by `cli`, which runs the commands behind the port `Face`. Knows routes by their table only, decides nothing about
//! what they do, and keeps nothing that another server could not find out.

pub(crate) mod answer;
mod content;
mod docs;
pub(crate) mod door;
mod event;
mod gateway;
mod hub;
mod keep;
mod line;
mod listen;
mod mcp;
mod pace;
mod page;
mod path;
mod peer;
mod request;
pub(crate) mod share;
mod stranger;
mod stream;
pub(crate) mod turn;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actum_api::route::{Need, Route};

use crate::bridge::Refused;
use crate::models::Models;

pub use event::{Event, Reached, Source, Wish};
pub use line::{Line, Log};
pub use listen::Api;

/// The content of one request, unless the settings say otherwise.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// Connections that are served at once, unless the settings say otherwise; others wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 512;
/// Those who listen to events at once, unless the settings say otherwise; beside the connections above.
pub const STREAMS_MAX: usize = 2_000;
/// Requests of one token, unless the settings say otherwise.
const REQUESTS_PER_SECOND: u32 = 100;
const BURST_REQUESTS: u32 = 200;

/// Who asks. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub tenant: String,
    /// The token's id.
    pub token: String,
    pub name: String,
    pub role: String,
}

/// What came with a request, beside who asks and for which route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// By the names in the route's path, decoded.
    pub path: BTreeMap<String, String>,
    /// In the order they came, decoded; names may repeat, and unknown ones are not sorted out.
    pub query: Vec<(String, String)>,
    pub content: Vec<u8>,
    /// Whether the content is said to be JSON, and then it is.
    pub is_json: bool,
    pub wants_text: bool,
    pub request_id: String,
    /// `traceparent`, as it came: bounded, and not looked at.
    pub trace: Option<String>,
    /// The same for every time that a caller asks the same under one `Idempotency-Key`, and for nothing else. SHA-256.
    pub once: Option<[u8; 32]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
    /// What the command would have ended with.
    pub exit: u8,
    /// What it would have said beside its result, line by line: what is good to know.
    pub remarks: Vec<String>,
    /// And what has to be known.
    pub asides: Vec<String>,
}

impl Answer {
    /// One that says nothing beside its result.
    pub fn new(status: u16, content_type: impl Into<String>, body: Vec<u8>, exit: u8) -> Self {
        Self { status, content_type: content_type.into(), body, exit, remarks: Vec::new(), asides: Vec::new() }
    }
}

/// Answers for the commands. Blocking: each call has a thread of its own while it lasts.
pub trait Face: Send + Sync + 'static {
    /// Whose token this is; constant time, and the same answer for whatever is wrong with it.
    fn enter(&self, token: &str) -> Result<Caller, Refused>;
    fn may(&self, caller: &Caller, need: Need) -> bool;
    fn answer(&self, caller: &Caller, route: &'static Route, given: Given) -> Answer;
    /// What somebody wants to hear by a route that streams; or why he does not get it.
    fn wish(&self, caller: &Caller, route: &'static Route, given: &Given) -> Result<Wish, Refused>;
    /// How far a source has come. Asked often: it has to be cheap.
    fn reached(&self, source: &Source) -> Result<Reached, Refused>;
    /// The events behind that one, some of them: at least one if there is any.
    fn stretch(&self, source: &Source, after: Option<u64>) -> Result<Vec<Event>, Refused>;
    /// Whether somebody who has entered could still do so.
    fn is_in(&self, caller: &Caller) -> Result<bool, Refused>;
    /// The answer kept under an `Idempotency-Key`: none, the same request's, or a refusal because it was another request.
    fn kept(&self, caller: &Caller, key: &str, request_hash: &str) -> Result<Option<Answer>, Refused>;
    fn keep(&self, caller: &Caller, key: &str, request_hash: &str, answer: &Answer);
    /// Models for a caller who may spend, at his tenant's cost; the same for the same token. Or why there are none.
    fn models(&self, caller: &Caller) -> Result<Arc<dyn Models>, Refused>;
    /// Fails if a question of so many bytes for a model would go beyond a quota of storage: questions are kept.
    fn admit_question(&self, caller: &Caller, bytes: u64) -> Result<(), Refused>;
    /// Counts a question that was kept.
    fn note_question(&self, caller: &Caller, bytes: u64);
    /// The OpenAPI document, asked for once.
    fn openapi(&self) -> Arc<[u8]>;
    /// Whether commands can be run, or why not.
    fn ready(&self) -> Result<(), String>;
    /// Prometheus text: of all tenants together if no token was shown, tenant by tenant for whom the project belongs to, else of
    /// the caller's own.
    fn metrics(&self, caller: Option<&Caller>) -> String;
}

#[derive(Clone)]
pub struct Settings {
    pub body_bytes_max: usize,
    pub connections_max: usize,
    /// Connections on which somebody listens to events, beside the others.
    pub streams_max: usize,
    /// Of each token; 0: as many as it likes.
    pub requests_per_second: u32,
    /// Requests of one token at once, after a pause.
    pub burst: u32,
    /// Names by which it may be asked, beside those of loopback. Without any, a server that listens elsewhere takes every
    /// name.
    pub hosts: Vec<String>,
    /// Begins the ids of requests that come without one: something no other server says.
    pub request_prefix: String,
    /// Hears of every request when it is over. Must not block.
    pub log: Option<Log>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_bytes_max: BODY_BYTES_MAX,
            connections_max: CONNECTIONS_MAX,
            streams_max: STREAMS_MAX,
            requests_per_second: REQUESTS_PER_SECOND,
            burst: BURST_REQUESTS,
            hosts: Vec::new(),
            request_prefix: "r".to_owned(),
            log: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("body_bytes_max", &self.body_bytes_max)
            .field("connections_max", &self.connections_max)
            .field("streams_max", &self.streams_max)
            .field("requests_per_second", &self.requests_per_second)
            .field("burst", &self.burst)
            .field("hosts", &self.hosts)
            .field("request_prefix", &self.request_prefix)
            .finish_non_exhaustive()
    }
}

impl Api {
    /// Serves on a listener that listens already, until it is ended or dropped.
    pub fn serve(
        listener: TcpListener,
        face: Arc<dyn Face>,
        routes: &'static [Route],
        settings: Settings,
    ) -> io::Result<Self> {
        Self::serve_with(listener, face, routes, settings, Bounds::default())
    }
}

/// What no setting changes: how long others may keep us waiting, and how much is done at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// For a request's line and headers, and between requests.
    pub(crate) head: Duration,
    /// For the content of a request, all of it.
    pub(crate) body: Duration,
    /// For an answer that nobody reads, before its next byte.
    pub(crate) write: Duration,
    /// For a thread, or for room.
    pub(crate) turn: Duration,
    /// For the answer of a request that only looks. What it is about goes on until it ends, on its thread.
    pub(crate) look: Duration,
    /// For the answer of a request that works.
    pub(crate) work: Duration,
    /// Threads that look tokens up; apart from the others, so that strangers hold up nobody but strangers.
    pub(crate) enters_max: usize,
    /// Threads for requests that only look; apart from those that work, so that one can look while all of these are taken. Of these
    /// too a tenant has half and a token a quarter.
    pub(crate) looks_max: usize,
    /// Threads for the others: of these a tenant has half and a token a quarter.
    pub(crate) works_max: usize,
    /// Threads that read events for whoever listens.
    pub(crate) reads_max: usize,
    /// Kibibytes of large answers that are not read yet: of these a tenant has half and a token a quarter.
    pub(crate) answers_kib: usize,
    /// Requests that wait for a thread, of each kind.
    pub(crate) waiting_max: usize,
    /// Between two looks at what somebody listens to.
    pub(crate) poll: Duration,
    /// Between two looks at whether a listener's token still opens the door.
    pub(crate) check: Duration,
    /// For a stream on which nothing is said, before a sign of life.
    pub(crate) beat: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(20),
            body: Duration::from_secs(30),
            write: Duration::from_secs(30),
            turn: Duration::from_secs(15),
            look: Duration::from_secs(60),
            work: Duration::from_secs(3_600),
            enters_max: 4,
            looks_max: 16,
            works_max: 64,
            reads_max: 4,
            answers_kib: 512 << 10,
            waiting_max: 256,
            poll: Duration::from_millis(200),
            check: Duration::from_secs(3),
            beat: Duration::from_secs(15),
        }
    }
}
