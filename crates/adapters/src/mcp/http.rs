//! Streamable HTTP with bounds: the SDK's own client reads a JSON answer to its end, however long it is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};

use super::wire::{Density, MESSAGE_MAX, VALUES_MAX, Watch};
use crate::result::{Problem, Stage};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";

const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Bytes of an answer that says no.
const REFUSAL_MAX: usize = 64 * 1024;

/// A client for one host whose addresses have been judged: it asks nobody for them, follows nobody elsewhere, and takes
/// no proxy from the environment.
pub fn client(host: &str, addresses: &[SocketAddr]) -> Result<reqwest::Client, Problem> {
    // Somebody else may have chosen one already; any will do.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_WAIT)
        .user_agent(concat!("actum/", env!("CARGO_PKG_VERSION")))
        .resolve_to_addrs(host, addresses)
        .build()
        .map_err(|why| Problem::new(Stage::Call, format!("no client for HTTP: {why}")))
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the server does not answer")]
    Unreachable(#[source] reqwest::Error),
    #[error("the server answered with status {status}{}", if text.is_empty() { String::new() } else { format!(": {text}") })]
    Status { status: u16, retry_after_ms: Option<u64>, text: String },
    #[error("a message of more than {MESSAGE_MAX} bytes or {VALUES_MAX} values")]
    TooLong,
}

type Failed = StreamableHttpError<Fault>;

fn unreachable(why: reqwest::Error) -> Failed {
    StreamableHttpError::Client(Fault::Unreachable(why))
}

#[derive(Debug, Clone)]
pub(super) struct Bounded {
    client: reqwest::Client,
    watch: Arc<Watch>,
}

type Headers = HashMap<HeaderName, HeaderValue>;

impl Bounded {
    pub(super) fn new(client: reqwest::Client, watch: Arc<Watch>) -> Self {
        Self { client, watch }
    }

    fn request(
        &self,
        method: Method,
        uri: &str,
        session: Option<&str>,
        bearer: Option<&str>,
        headers: Headers,
    ) -> RequestBuilder {
        let mut request = self.client.request(method, uri).header(ACCEPT, format!("{EVENTS}, {JSON}"));
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer);
        }
        headers.into_iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    /// The whole of an answer, or nothing.
    async fn read(&self, response: &mut Response) -> Result<Vec<u8>, Failed> {
        let (mut body, mut density) = (Vec::new(), Density::default());
        while let Some(piece) = response.chunk().await.map_err(unreachable)? {
            if body.len() + piece.len() > MESSAGE_MAX || !density.take(&piece) {
                self.watch.complain(format!("it sent {}", Fault::TooLong));
                return Err(StreamableHttpError::Client(Fault::TooLong));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// What a refusal has to say: an error of the protocol, or a status.
    async fn refusal(&self, mut response: Response) -> Result<ServerJsonRpcMessage, Failed> {
        let status = response.status().as_u16();
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_ms = seconds.and_then(|text| text.trim().parse::<u64>().ok()).map(|s| s.saturating_mul(1_000));
        let is_json = kind(&response).starts_with(JSON);
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&piece);
            if body.len() > REFUSAL_MAX {
                break;
            }
        }
        let says_who = matches!(status, 401 | 403 | 429);
        if is_json
            && !says_who
            && let Ok(message @ JsonRpcMessage::Error(_)) = serde_json::from_slice::<ServerJsonRpcMessage>(&body)
        {
            return Ok(message);
        }
        let text = String::from_utf8_lossy(&body).trim().chars().take(200).collect();
        Err(StreamableHttpError::Client(Fault::Status { status, retry_after_ms, text }))
    }
}

fn kind(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_ascii_lowercase()
}

impl StreamableHttpClient for Bounded {
    type Error = Fault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let waits = matches!(message, JsonRpcMessage::Request(_));
        let text = serde_json::to_vec(&message)?;
        let mut response = self
            .request(Method::POST, &uri, session_id.as_deref(), auth_header.as_deref(), custom_headers)
            .header(CONTENT_TYPE, JSON)
            .body(text)
            .send()
            .await
            .map_err(unreachable)?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        if !status.is_success() {
            return Ok(StreamableHttpPostResponse::Json(self.refusal(response).await?, session));
        }
        let kind = kind(&response);
        if kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(response, Arc::clone(&self.watch)), session));
        }
        if !waits {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !kind.starts_with(JSON) {
            return Err(StreamableHttpError::UnexpectedContentType(Some(kind)));
        }
        let body = self.read(&mut response).await?;
        Ok(StreamableHttpPostResponse::Json(serde_json::from_slice(&body)?, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), Failed> {
        // A server may refuse to have its sessions ended; they end by themselves then.
        self.request(Method::DELETE, &uri, Some(&session_id), auth_header.as_deref(), custom_headers)
            .send()
            .await
            .map(drop)
            .map_err(unreachable)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxedSseResponse, Failed> {
        let mut request =
            self.request(Method::GET, &uri, session_id.as_deref(), auth_header.as_deref(), custom_headers);
        if let Some(last) = last_event_id {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.map_err(unreachable)?;
        if !response.status().is_success() || !kind(&response).starts_with(EVENTS) {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        Ok(events(response, Arc::clone(&self.watch)))
    }
}

/// The SDK does not export the type of an event: this is its name.
trait Fine {
    type Value;
}

impl<T, E> Fine for Result<T, E> {
    type Value = T;
}

type Event = <<BoxedSseResponse as Stream>::Item as Fine>::Value;

/// Events out of an answer that comes in pieces.
struct Reading {
    response: Response,
    watch: Arc<Watch>,
    lines: Lines,
    is_over: bool,
}

fn events(response: Response, watch: Arc<Watch>) -> BoxedSseResponse {
    let reading = Reading { response, watch, lines: Lines::default(), is_over: false };
    stream::unfold(reading, async |mut reading| reading.next().await.map(|event| (event, reading))).boxed()
}

impl Reading {
    async fn next(&mut self) -> Option<Result<Event, SseError>> {
        while !self.is_over {
            let event = self.lines.event();
            let piece = match event {
                _ if self.lines.is_dense => Err(None),
                Some(event) => return Some(Ok(event)),
                None => self.response.chunk().await.map_err(Some),
            };
            let why: Box<dyn std::error::Error + Send + Sync> = match piece {
                Ok(Some(piece)) if self.lines.take(&piece) => continue,
                Ok(None) => return None,
                Err(Some(why)) => Box::new(why),
                Ok(Some(_)) | Err(None) => {
                    self.watch.complain(format!("it sent {}", Fault::TooLong));
                    Box::new(Fault::TooLong)
                }
            };
            self.is_over = true;
            return Some(Err(SseError::Body(why)));
        }
        None
    }
}

/// Lines of an event stream, put together to events.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// No line ends before this.
    seen: usize,
    /// Bytes and values of the event so far.
    kept: usize,
    density: Density,
    is_dense: bool,
    event: Event,
    is_something: bool,
}

impl Lines {
    /// Takes in a piece; false: too much.
    fn take(&mut self, piece: &[u8]) -> bool {
        self.bytes.extend_from_slice(piece);
        self.kept + self.bytes.len() <= MESSAGE_MAX + REFUSAL_MAX
    }

    fn event(&mut self) -> Option<Event> {
        let mut from = 0;
        let mut found = None;
        while let Some(length) = self.bytes[self.seen.max(from)..].iter().position(|byte| *byte == b'\n') {
            let end = self.seen.max(from) + length;
            let line = &self.bytes[from..end];
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
            from = end + 1;
            if !line.is_empty() {
                self.field(&line);
            } else if std::mem::take(&mut self.is_something) {
                (self.kept, self.density) = (0, Density::default());
                found = Some(std::mem::take(&mut self.event));
                break;
            }
        }
        self.bytes.drain(..from);
        self.seen = if found.is_some() { 0 } else { self.bytes.len() };
        found
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        self.is_dense |= !self.density.take(value.as_bytes());
        if self.is_dense {
            // Nothing of it is handed on.
            return;
        }
        match name {
            "data" => match &mut self.event.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.event.data = Some(value.to_owned()),
            },
            "event" => self.event.event = Some(value.to_owned()),
            "id" => self.event.id = Some(value.to_owned()),
            "retry" => self.event.retry = value.parse().ok(),
            // A comment, or a field of tomorrow.
            _ => return,
        }
        self.kept += line.len();
        self.is_something = true;
    }
}

#[cfg(test)]
mod tests {
    use super::{Lines, MESSAGE_MAX};

    #[test]
    fn events_are_put_together_however_they_are_cut() {
        let text = ": hello\r\nid: 7\ndata: {\"a\":\ndata: 1}\n\n\nevent: message\ndata:x\n\n";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                assert!(lines.take(piece));
                while let Some(event) = lines.event() {
                    found.push((event.id, event.event, event.data));
                }
            }
            let one = (Some("7".into()), None, Some("{\"a\":\n1}".into()));
            assert_eq!(found, [one, (None, Some("message".into()), Some("x".into()))], "pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_not_kept() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; 1024 * 1024];
        let taken = (0..100).take_while(|_| lines.take(&piece) && lines.event().is_none()).count();
        assert_eq!(taken, MESSAGE_MAX / piece.len());
    }
}
