//! One connection to one server: greeting it, what it says of itself, and how it ended.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actum_contract::execution::End;
use actum_contract::tool::{Server, Transport, Went};
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientRequest, PaginatedRequestParams, ProtocolVersion};
use rmcp::service::{
    ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, ClientServiceExt, Peer, RunningService,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::{RoleClient, ServiceError};
use serde_json::{Value, json};
use tokio::net::unix::pipe;

use super::http::{Bounded, Fault};
use super::wire::{Guarded, Limited, MESSAGE_MAX, Refusing, Watch};
use super::{Failed, McpLink, TEXT_MAX, end_of, held};
use crate::cells::{Cells, Session};
use crate::result::{Problem, Stage};

/// How long a server has to end after its input was closed.
const END_WAIT: Duration = Duration::from_millis(500);
const END_TICK: Duration = Duration::from_millis(5);

/// Times an event stream that broke is asked for again.
const STREAM_RETRIES: usize = 3;

/// Characters of an error and its causes.
const CAUSES_MAX: usize = 600;

/// How a server is greeted: nearly all know `initialize`, and those of the newest revision need not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Era {
    #[default]
    Initialize,
    Discover,
}

impl Era {
    fn mode(self) -> ClientLifecycleMode {
        match self {
            Self::Initialize => ClientLifecycleMode::Initialize,
            Self::Discover => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] },
        }
    }
}

type Service = RunningService<RoleClient, Refusing>;
type Greeting = Pin<Box<dyn Future<Output = Result<Service, Unopened>> + Send>>;

/// A server that is started, or about to be reached, and was not greeted yet.
pub(super) struct Opening {
    way: Way,
    half: Half,
}

enum Way {
    Pipes(OwnedFd, OwnedFd),
    Http { client: reqwest::Client, config: StreamableHttpClientTransportConfig },
}

/// What there is of a connection without a greeting.
pub(super) struct Half {
    session: Option<Box<dyn Session>>,
    watch: Arc<Watch>,
    transport: Transport,
}

impl Opening {
    pub(super) fn begin(cells: &dyn Cells, link: &McpLink<'_>) -> Result<Self, Failed> {
        let transport = link.mcp.transport;
        let wrong = |text: String| Failed::new(Went::Unavailable, Stage::Call, text);
        let name = &link.mcp.server;
        let watch = Arc::new(Watch::default());
        let (way, session) = match (transport, link.server) {
            (Transport::Stdio, Server::Command(_)) => {
                let mut session = cells
                    .start(link.job)
                    .map_err(|why| wrong(format!("the server {name} could not be started: {why}")))?;
                let Some((input, output)) = session.pipes() else {
                    drop(session.stop());
                    return Err(wrong(format!("the server {name} was started without input and output")));
                };
                (Way::Pipes(input, output), Some(session))
            }
            (Transport::Http, Server::Url(url)) => {
                let Some(http) = link.http else {
                    return Err(wrong(format!("the server {name} is reached through HTTP, which was not granted")));
                };
                let client = (http.client_for)(url).map_err(|problem| Failed::of(Went::Unavailable, problem))?;
                let mut headers = HashMap::new();
                for (name, value) in http.headers {
                    let pair = HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::try_from(value.as_str()).ok());
                    let (key, mut value) = pair.ok_or_else(|| wrong(format!("{name} is no header of HTTP")))?;
                    value.set_sensitive(true);
                    headers.insert(key, value);
                }
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(headers);
                config.auth_header = http.bearer.map(ToOwned::to_owned);
                let mut retries = ExponentialBackoff::default();
                retries.max_times = Some(STREAM_RETRIES);
                config.retry_config = Arc::new(retries);
                (Way::Http { client, config }, None)
            }
            (Transport::Stdio, Server::Url(_)) => {
                return Err(wrong(format!(
                    "the server {name} has an address and no command: transport has to be http"
                )));
            }
            (Transport::Http, Server::Command(_)) => {
                return Err(wrong(format!(
                    "the server {name} has a command and no address: transport has to be stdio"
                )));
            }
            (Transport::Websocket, _) => {
                return Err(wrong("transport websocket is not supported: it has to be stdio or http".into()));
            }
        };
        Ok(Self { way, half: Half { session, watch, transport } })
    }

    /// The greeting, to be done on the thread of the pool.
    pub(super) fn greet(self, era: Era) -> (Greeting, Half) {
        let watch = Arc::clone(&self.half.watch);
        let greeting: Greeting = match self.way {
            Way::Pipes(input, output) => Box::pin(async move {
                let bad = |why: std::io::Error| Unopened::new(format!("its input and output are no pipes: {why}"));
                let input = pipe::Sender::from_owned_fd(input).map_err(bad)?;
                let output = pipe::Receiver::from_owned_fd(output).map_err(bad)?;
                let output = Limited::new(output, Arc::clone(&watch));
                // One more than ours: it is our bound that ends the connection.
                let lines = AsyncRwTransport::new_client(output, input).with_max_line_length(MESSAGE_MAX + 2);
                greet(Guarded::new(lines, watch), era).await
            }),
            Way::Http { client, config } => Box::pin(async move {
                let client = Bounded::new(client, Arc::clone(&watch));
                let worker = StreamableHttpClientTransport::with_client(client, config);
                greet(Guarded::new(worker, watch), era).await
            }),
        };
        (greeting, self.half)
    }
}

async fn greet<T>(transport: Guarded<T>, era: Era) -> Result<Service, Unopened>
where
    T: rmcp::transport::Transport<RoleClient> + 'static,
{
    let service = Refusing.serve_with_lifecycle(transport, era.mode()).await.map_err(Unopened::from)?;
    // The list is kept here, where a change is heard of.
    service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
    Ok(service)
}

/// Why a greeting came to nothing.
#[derive(Debug)]
pub(super) struct Unopened {
    why: String,
    pub(super) is_of_other_era: bool,
    status: Option<(u16, Option<u64>)>,
}

impl Unopened {
    pub(super) fn new(why: String) -> Self {
        Self { why, is_of_other_era: false, status: None }
    }

    pub(super) fn failed(self, name: &str, obituary: Obituary) -> Failed {
        let why = match &obituary.is_by_itself {
            true => format!("{}: {}", self.why, obituary.message),
            false => self.why,
        };
        let mut failed = Failed::ended(obituary);
        failed.problem.message = format!("the server {name} did not start: {why}");
        if let Some((status, retry_after_ms)) = self.status {
            failed.went = Went::Wrong(Some(u64::from(status)));
            (failed.aside.code, failed.aside.retry_after_ms) = (Some(u64::from(status)), retry_after_ms);
        }
        failed
    }
}

impl From<ClientInitializeError> for Unopened {
    fn from(error: ClientInitializeError) -> Self {
        let is_of_other_era = matches!(error, ClientInitializeError::JsonRpcError(_));
        let status = match &error {
            ClientInitializeError::TransportError { error, .. } => status_in(error),
            _ => None,
        };
        let why = match &error {
            ClientInitializeError::ConnectionClosed(_) => "it closed its output".to_owned(),
            ClientInitializeError::JsonRpcError(data) => {
                format!("it refused to begin: {}", end_of(&data.message, CAUSES_MAX))
            }
            ClientInitializeError::ExpectedInitResponse(_)
            | ClientInitializeError::ExpectedInitResult(_)
            | ClientInitializeError::ConflictInitResponseId(..)
            | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
                "its first answer is not one of the protocol".to_owned()
            }
            ClientInitializeError::TransportError { error, .. } => causes(error),
            other => causes(other),
        };
        Self { why, is_of_other_era, status: status.map(|(status, after, _)| (status, after)) }
    }
}

/// How a server ended.
#[derive(Debug, Default)]
pub(super) struct Obituary {
    pub(super) message: String,
    pub(super) stderr: String,
    pub(super) code: Option<u64>,
    /// Before anybody ended it.
    pub(super) is_by_itself: bool,
}

impl Half {
    pub(super) fn whole(self, service: Service) -> Connection {
        let info = service.peer().peer_info();
        let (mut server, mut protocol) = (Value::Null, Value::Null);
        if let Some(info) = info {
            protocol = json!(info.protocol_version.as_str());
            if let Some(named) = &info.server_info {
                let cut = |text: &str| text.chars().take(200).collect::<String>();
                server = json!({"name": cut(&named.name), "version": cut(&named.version)});
            }
        }
        let peer = service.peer().clone();
        let Self { session, watch, transport } = self;
        Connection {
            peer,
            service: Mutex::new(Some(service)),
            session: Mutex::new(session),
            watch,
            transport,
            server,
            protocol,
        }
    }

    pub(super) fn bury(self) -> Obituary {
        bury(self.session, &self.watch)
    }
}

/// A connection to a server that was greeted.
pub(super) struct Connection {
    peer: Peer<RoleClient>,
    /// Dropping it closes the connection.
    service: Mutex<Option<Service>>,
    session: Mutex<Option<Box<dyn Session>>>,
    watch: Arc<Watch>,
    transport: Transport,
    server: Value,
    protocol: Value,
}

impl fmt::Debug for Connection {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn peer(&self) -> Peer<RoleClient> {
        self.peer.clone()
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    pub(super) fn is_over(&self) -> bool {
        self.watch.is_over()
            || self.peer.is_transport_closed()
            || held(&self.session).as_mut().is_some_and(|session| session.is_over())
    }

    /// Whether the server has announced other tools since the last time.
    pub(super) fn tools_changed(&self) -> bool {
        self.watch.tools_changed.swap(false, Ordering::AcqRel)
    }

    pub(super) fn cancel(&self) {
        drop(held(&self.service).take());
    }

    /// Closes it, and waits until that is done.
    pub(super) fn goodbye(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let service = held(&self.service).take()?;
        Some(async move { drop(service.cancel().await) })
    }

    /// Ends the server and says how it ended; the second time there is little to say.
    pub(super) fn bury(&self) -> Obituary {
        let session = held(&self.session).take();
        bury(session, &self.watch)
    }

    pub(super) fn evidence(&self) -> Value {
        let mut evidence = json!({
            "server": self.server, "protocol": self.protocol,
            "notifications": self.watch.notifications.load(Ordering::Relaxed),
            "requests_refused": self.watch.refused.load(Ordering::Relaxed),
        });
        let of_cell = held(&self.session).as_ref().map(|session| session.evidence());
        if let Some(cell) = of_cell.filter(|cell| !cell.is_null()) {
            evidence["cell"] = cell;
        }
        evidence
    }

    /// Why there is no list of tools.
    pub(super) fn no_list(&self, error: &ServiceError) -> Failed {
        if let Some(failed) = refused_by_status(error) {
            return failed;
        }
        let (went, why) = match error {
            ServiceError::McpError(error) => (Went::Wrong(None), end_of(&error.message, CAUSES_MAX)),
            ServiceError::UnexpectedResponse => (Went::Wrong(None), "its list is not one of the protocol".to_owned()),
            other => {
                let mut failed = Failed::ended(self.bury());
                if self.transport == Transport::Http {
                    failed.problem.message = format!("{}: {}", failed.problem.message, causes(other));
                }
                return failed;
            }
        };
        Failed::new(went, Stage::Call, format!("the server does not list its tools: {why}"))
    }
}

fn bury(session: Option<Box<dyn Session>>, watch: &Watch) -> Obituary {
    let complaint = watch.complaint();
    let Some(mut session) = session else {
        let message = complaint.map_or_else(|| "the connection to the server is closed".to_owned(), cut_off);
        return Obituary { message, ..Obituary::default() };
    };
    let until = Instant::now() + END_WAIT;
    // Its input is closed or about to be; one that we cut off may never notice.
    while complaint.is_none() && !session.is_over() && Instant::now() < until {
        std::thread::sleep(END_TICK);
    }
    let is_by_itself = complaint.is_none() && session.is_over();
    let ran = session.stop();
    let how = match (ran.error, ran.end) {
        (Some(error), _) => format!("could not be run: {error}"),
        (None, None) => "ended in an unknown way".to_owned(),
        (None, Some(end)) => told(end),
    };
    let message = match complaint {
        Some(why) => cut_off(why),
        None if is_by_itself => format!("the server {how}"),
        None => "the server closed its output, or stopped answering, and was ended".to_owned(),
    };
    let stderr = end_of(&String::from_utf8_lossy(&ran.stderr), TEXT_MAX);
    let code = ran.end.filter(|_| is_by_itself).map(|end| u64::from(end.code()));
    let message = match stderr.trim().lines().next_back().filter(|_| is_by_itself) {
        Some(line) => format!("{message}; the end of its errors: {}", end_of(line.trim(), 300)),
        None => message,
    };
    Obituary { message, stderr, code, is_by_itself }
}

fn cut_off(why: String) -> String {
    format!("the server was cut off: {why}")
}

fn told(end: End) -> String {
    match end {
        End::Exited(code) => format!("ended with exit code {code}"),
        End::Signalled(signal) => format!("was ended by signal {signal}"),
        End::NotFound => "could not be run: there is no such program".to_owned(),
        End::NotExecutable => "could not be run: its program is not executable".to_owned(),
        End::TimedOut => "was ended because its time was over".to_owned(),
        End::OutOfMemory => "ended because its memory was full".to_owned(),
        End::OutOfDisk => "ended because its disk was full".to_owned(),
        End::Cancelled => "was cancelled".to_owned(),
    }
}

/// Whether a server says anything at all; an error is an answer too.
pub(super) async fn ping(peer: &Peer<RoleClient>) -> bool {
    let ping = ClientRequest::PingRequest(Default::default());
    matches!(peer.send_request(ping).await, Ok(_) | Err(ServiceError::McpError(_)))
}

pub(super) fn page(cursor: Option<String>) -> Option<PaginatedRequestParams> {
    cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)))
}

/// A refusal with a status of HTTP: the connection is not to blame.
pub(super) fn refused_by_status(error: &ServiceError) -> Option<Failed> {
    let ServiceError::TransportSend(error) = error else { return None };
    let (status, retry_after_ms, text) = status_in(error)?;
    let code = u64::from(status);
    let problem = Problem::new(Stage::Call, text);
    let mut failed = Failed::of(Went::Wrong(Some(code)), problem);
    (failed.aside.code, failed.aside.retry_after_ms) = (Some(code), retry_after_ms);
    Some(failed)
}

fn status_in(error: &(dyn std::error::Error + 'static)) -> Option<(u16, Option<u64>, String)> {
    let mut next = Some(error);
    while let Some(error) = next {
        let fault = match error.downcast_ref::<StreamableHttpError<Fault>>() {
            Some(StreamableHttpError::Client(fault)) => Some(fault),
            _ => error.downcast_ref::<Fault>(),
        };
        if let Some(fault @ Fault::Status { status, retry_after_ms, .. }) = fault {
            return Some((*status, *retry_after_ms, fault.to_string()));
        }
        next = error.source();
    }
    None
}

/// An error with its causes, each once.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = error.source();
    }
    text.chars().take(CAUSES_MAX).collect()
}
