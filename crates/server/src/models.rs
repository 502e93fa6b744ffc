//! Models over HTTP: whoever has the key asks by the paths his provider has, and is answered whole or piece by piece.
//!
//! What is asked goes to the port `Models`; here it is only let in, bounded, and carried. An exchange goes on although
//! its caller has left: it may have been paid for already, and somebody has to find out what it cost.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use futures_util::stream::poll_fn;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::api::share::{Share, Shares, Whose};
use crate::http::{comes_from_here, is_same, values_in};

/// The content of one question. Providers take no more either.
pub const QUESTION_BYTES_MAX: usize = 32 << 20;
/// Values in one question beyond those that its length explains: small ones take many times their text in memory, objects
/// most of all.
const QUESTION_VALUES_FREE: usize = 100_000;
/// Bytes of text for each value beyond that.
const BYTES_PER_VALUE: usize = 16;
/// So many other values take as much memory as an object does.
const OBJECT_VALUES: usize = 10;
/// All questions under way together, in KiB, those of one tenant and those of one token; others wait until there is room. One that does
/// not say how large it is fits into each.
const QUESTIONS_KIB: usize = 128 << 10;
const QUESTIONS_KIB_OF_TENANT: usize = 66 << 10;
const QUESTIONS_KIB_OF_TOKEN: usize = 33 << 10;
/// Exchanges under way at once; others wait.
const EXCHANGES_MAX: usize = 64;
/// How long a question waits for room, and for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(15);
/// Pieces that wait for a caller who reads slowly.
const PIECES_MAX: usize = 64;
/// Headers that are handed on: what a caller may tell a provider about the form of his question.
const HEADERS: [&str; 4] = ["anthropic-version", "anthropic-beta", "openai-beta", "x-goog-api-client"];

/// Answers for models. Lives as long as the exchange, not as long as the caller's patience.
pub trait Models: Send + Sync + 'static {
    fn ask(self: Arc<Self>, asked: Asked, teller: Teller) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// One question as it arrived.
#[derive(Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub query: String,
    /// Whether it came with the key; if not it has no content.
    pub is_allowed: bool,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// Why its content could not be taken.
    pub flaw: Option<Flaw>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    TooLarge,
    TooSlow,
    Elsewhere,
}

/// The beginning of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    pub content_type: String,
    pub headers: Vec<(&'static str, String)>,
}

/// Where an answer goes to: its head first, then its pieces.
#[derive(Debug)]
pub struct Teller {
    head: Option<oneshot::Sender<(Head, bool)>>,
    pieces: mpsc::Sender<Bytes>,
}

impl Teller {
    /// Begins an answer that comes in pieces.
    pub fn begin(&mut self, head: Head) {
        self.send(head, false);
    }

    fn send(&mut self, head: Head, is_whole: bool) {
        if let Some(sender) = self.head.take() {
            // Who has left needs no head.
            sender.send((head, is_whole)).unwrap_or_default();
        }
    }

    /// Whether whoever asked has left.
    pub fn is_gone(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Whether anybody still listens.
    pub async fn tell(&mut self, piece: Bytes) -> bool {
        piece.is_empty() || self.pieces.send(piece).await.is_ok()
    }

    /// An answer that is there already: it goes out with its length.
    pub async fn whole(mut self, head: Head, body: Bytes) {
        self.send(head, true);
        self.tell(body).await;
    }
}

/// The door to the models.
#[derive(Clone)]
pub(crate) struct Gate {
    key: Arc<str>,
    models: Arc<dyn Models>,
    exchanges: Arc<Shares>,
    room: Arc<Shares>,
    /// The caller in whose share questions count. None where all questions are of one caller.
    whose: Option<Whose>,
    patience: Duration,
}

impl Gate {
    pub(crate) fn new(key: &str, models: Arc<dyn Models>, patience: Duration) -> Self {
        let exchanges = Arc::new(Shares::new(EXCHANGES_MAX));
        let room = Arc::new(Shares::with(QUESTIONS_KIB, QUESTIONS_KIB_OF_TENANT, QUESTIONS_KIB_OF_TOKEN));
        Self { key: key.into(), models, exchanges, room, whose: None, patience }
    }

    /// The same in the share of a caller.
    pub(crate) fn of(self, whose: Whose) -> Self {
        Self { whose: Some(whose), ..self }
    }

    /// Another door for other models, with the same room behind it: however many doors there are, no more is under way.
    pub(crate) fn beside(&self, models: Arc<dyn Models>) -> Self {
        Self { models, ..self.clone() }
    }

    pub(crate) async fn pass(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let flaw = (!comes_from_here(&head.uri, &head.headers)).then_some(Flaw::Elsewhere);
        let is_allowed = flaw.is_none() && self.is_known(&head.uri, &head.headers);
        self.take(&head.method, &head.uri, &head.headers, body, (is_allowed, flaw), |_| ()).await
    }

    /// For a caller whose token was checked elsewhere. `note` hears how long the question is when it is asked.
    pub(crate) async fn let_in(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: Body,
        note: impl FnOnce(u64) + Send + 'static,
    ) -> Response {
        self.take(method, uri, headers, body, (true, None), note).await
    }

    async fn take(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: Body,
        (is_allowed, flaw): (bool, Option<Flaw>),
        note: impl FnOnce(u64) + Send + 'static,
    ) -> Response {
        let is_question = is_allowed && *method == Method::POST;
        let room = match is_question {
            true => match self.room_for(body.size_hint().exact()).await {
                Some(room) => Some(room),
                None => return busy(),
            },
            false => None,
        };
        let (body, flaw) = match is_question {
            true => match self.content(body).await {
                Ok(body) => (body, None),
                Err(flaw) => (Bytes::new(), Some(flaw)),
            },
            false => (Bytes::new(), flaw),
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let handed_on =
            HEADERS.iter().filter_map(|name| text(name).map(|value| ((*name).to_owned(), value.to_owned())));
        let asked = Asked {
            method: method.as_str().to_owned(),
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
            is_allowed,
            headers: handed_on.collect(),
            body,
            flaw,
        };
        self.answer(asked, room, note).await
    }

    /// Room for a question, kept until it is answered. One that does not say how large it is may be as large as any.
    async fn room_for(&self, bytes: Option<u64>) -> Option<Share> {
        let bytes = bytes.unwrap_or(u64::MAX).min(QUESTION_BYTES_MAX as u64);
        let kib = usize::try_from(bytes / 1024 + 1).unwrap_or(QUESTIONS_KIB_OF_TOKEN).min(QUESTIONS_KIB_OF_TOKEN);
        timeout(TURN_PATIENCE, self.room.take(self.whose.as_ref(), kib)).await.ok()?.ok()
    }

    async fn answer(&self, asked: Asked, room: Option<Share>, note: impl FnOnce(u64) + Send + 'static) -> Response {
        let turn = match timeout(TURN_PATIENCE, self.exchanges.take(self.whose.as_ref(), 1)).await {
            Ok(Ok(turn)) => turn,
            _ => return busy(),
        };
        let length = asked.body.len() as u64;
        // Also if the caller has left: the question is asked and kept.
        drop(tokio::task::spawn_blocking(move || note(length)));
        let (head, told) = oneshot::channel();
        let (pieces, mut waiting) = mpsc::channel(PIECES_MAX);
        let exchange = Arc::clone(&self.models).ask(asked, Teller { head: Some(head), pieces });
        tokio::spawn(async move {
            exchange.await;
            drop((turn, room));
        });
        let Ok((head, is_whole)) = told.await else { return broken() };
        let mut response = Response::builder()
            .status(StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY))
            .header(header::CONTENT_TYPE, head.content_type);
        for (name, value) in head.headers {
            response = response.header(name, value);
        }
        let body = match is_whole {
            true => Body::from(waiting.recv().await.unwrap_or_default()),
            false => {
                let next = move |context: &mut std::task::Context<'_>| {
                    waiting.poll_recv(context).map(|piece| piece.map(Ok::<_, std::io::Error>))
                };
                Body::from_stream(poll_fn(next))
            }
        };
        response.body(body).unwrap_or_else(|_| broken())
    }

    async fn content(&self, body: Body) -> Result<Bytes, Flaw> {
        if body.size_hint().lower() > QUESTION_BYTES_MAX as u64 {
            return Err(Flaw::TooLarge);
        }
        let content = match timeout(self.patience, to_bytes(body, QUESTION_BYTES_MAX)).await {
            Ok(Ok(content)) => content,
            Ok(Err(_)) => return Err(Flaw::TooLarge),
            Err(_) => return Err(Flaw::TooSlow),
        };
        if is_swollen(&content) { Err(Flaw::TooLarge) } else { Ok(content) }
    }

    /// Providers have their keys in different places; ours may come in each of them.
    fn is_known(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = header("authorization").and_then(|text| text.split_once(' ')).map(|(_, key)| key.trim());
        let query = uri.query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("key="));
        let given = [header("x-api-key"), header("x-goog-api-key"), bearer, query];
        given.into_iter().flatten().any(|key| is_same(key.as_bytes(), self.key.as_bytes()))
    }

    /// Returns when no exchange is under way any more.
    pub(crate) async fn settled(&self) {
        self.exchanges.settled().await;
    }
}

/// Whether a JSON text would take many times its length in memory.
pub(crate) fn is_swollen(json: &[u8]) -> bool {
    let objects = json.iter().filter(|byte| **byte == b'{').count();
    let values = values_in(json) + objects * (OBJECT_VALUES - 1);
    values > QUESTION_VALUES_FREE + json.len() / BYTES_PER_VALUE
}

/// As many questions are under way as there is room for.
fn busy() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("15"));
    response
}

/// Only if whoever answers gave up without a word.
fn broken() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}
