//! One request from its head to its answer: the checks in their order, and the thread it is answered on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actum_api::error;
use actum_api::route::{Method as Verb, Need, Route};
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::answer::{self, REQUEST_ID, Reply};
use super::content::{self, Kind};
use super::docs;
use super::door::{self, Names};
use super::gateway::{self, Gates};
use super::hub::Hub;
use super::keep::{self, UnderWay};
use super::line::Record;
use super::listen::Slot;
use super::mcp;
use super::pace::Pace;
use super::page::page;
use super::path::{self, Found, Missed};
use super::peer::Peer;
use super::share::{Share, Shares, Whose};
use super::stream;
use super::turn::Turns;
use super::{Answer, Bounds, Caller, Face, Given, Settings};
use crate::bridge::Refused;
use crate::fields::bad;
use crate::offer::Shared;

/// The contents of all requests under way together, in KiB; others wait until there is room. Half of it is for one tenant, a
/// quarter for one token.
const CONTENTS_KIB: usize = 128 << 10;
/// So much room has a content that nothing has come of yet; the rest of what is announced it gets once more than that has come.
/// Not piece by piece: many large ones would each hold a part of what one of them needs.
const FIRST_BYTES: usize = 16 << 10;
/// An answer that counts as none: as much of one is on its way anyhow.
const SMALL_ANSWER_BYTES_MAX: usize = 256 << 10;
const REQUEST_ID_CHARS_MAX: usize = 64;
/// The last place of an event that all who read JSON can tell from its neighbours.
const PLACE_MAX: u64 = (1 << 53) - 1;
const TRACE: &str = "traceparent";
const TRACE_CHARS_MAX: usize = 128;
/// Refusals that one peer is told in a second, after some at once: who guesses does not guess fast.
const FAILURES_PER_SECOND: u32 = 20;
const FAILURES_BURST: u32 = 200;
/// How long a refusal is held back at most.
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(2);
/// What is served beside the table of routes.
const FIXED: [&str; 7] = ["/", HEALTH, READY, METRICS, OPENAPI, docs::PAGE, docs::SCRIPT];
/// What a proxy says about whom it speaks for.
const PASSED_ON: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];
const HEALTH: &str = "/healthz";
const READY: &str = "/readyz";
const METRICS: &str = "/metrics";
const OPENAPI: &str = "/openapi.json";

/// What a request comes to.
enum Going {
    Reply(Reply),
    Stream(Body),
}

/// All that requests share.
pub(crate) struct Desk {
    pub(crate) face: Arc<dyn Face>,
    routes: &'static [Route],
    pub(crate) settings: Settings,
    pub(crate) bounds: Bounds,
    is_loopback: bool,
    names: Names,
    pub(crate) pace: Pace,
    /// Of those who are refused, by their addresses.
    failures: Pace,
    pub(crate) enters: Turns,
    looks: Arc<Turns>,
    works: Arc<Turns>,
    /// What those who speak MCP share.
    pub(crate) offered: Arc<Shared>,
    /// Connections of callers who have shown a token.
    connections: Shares,
    room: Shares,
    /// For large answers.
    outgoing: Shares,
    under_way: Arc<UnderWay>,
    hub: Arc<Hub>,
    pub(crate) gates: Gates,
    is_ending: watch::Sender<bool>,
    number: AtomicU64,
    openapi: Reply,
    page: Reply,
}

/// How long a connection waits for others of its token to end.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(2);

impl Desk {
    pub(crate) fn new(
        face: Arc<dyn Face>,
        routes: &'static [Route],
        settings: Settings,
        bounds: Bounds,
        is_loopback: bool,
    ) -> Self {
        let openapi = face.openapi();
        let connections = Shares::new(settings.connections_max);
        let looks = Arc::new(Turns::new(bounds.looks_max, &bounds));
        let works = Arc::new(Turns::new(bounds.works_max, &bounds));
        let is_ending = watch::Sender::new(false);
        let offered = Arc::new(Shared::new(Arc::clone(&looks), Arc::clone(&works), is_ending.subscribe()));
        let hub = Arc::new(Hub::new(Arc::clone(&face), settings.streams_max, &bounds));
        Self {
            hub,
            page: page(&openapi),
            openapi: Reply::new("application/json", openapi.to_vec()),
            face,
            routes,
            is_loopback,
            names: Names::new(settings.hosts.clone(), is_loopback),
            pace: Pace::new(settings.requests_per_second, settings.burst),
            failures: Pace::new(FAILURES_PER_SECOND * u32::from(settings.requests_per_second > 0), FAILURES_BURST),
            settings,
            bounds,
            enters: Turns::new(bounds.enters_max, &bounds),
            looks,
            works,
            offered,
            connections,
            room: Shares::new(CONTENTS_KIB),
            outgoing: Shares::new(bounds.answers_kib),
            under_way: Arc::default(),
            gates: Gates::default(),
            is_ending,
            number: AtomicU64::new(0),
        }
    }

    /// From now on nothing new is begun.
    pub(crate) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    pub(crate) fn is_ending(&self) -> bool {
        *self.is_ending.borrow()
    }

    pub(crate) async fn ending(&self) {
        // The sender is ours: it is never gone.
        self.is_ending.subscribe().wait_for(|is_ending| *is_ending).await.map(drop).unwrap_or_default();
    }

    /// Returns when nothing is under way any more, also of those who have left.
    pub(crate) async fn settled(&self) {
        for turns in [&self.enters, &*self.looks, &*self.works] {
            turns.settled().await;
        }
        self.hub.settled().await;
        self.gates.settled().await;
    }

    /// The caller's, if it is one; else one of ours.
    fn request_id(&self, headers: &HeaderMap) -> String {
        let mut given = headers.get_all(REQUEST_ID).iter();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match (given.next().and_then(|id| id.to_str().ok()), given.next()) {
            (Some(id), None) if (1..=REQUEST_ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(is_plain) => {
                id.to_owned()
            }
            _ => format!("{}-{}", self.settings.request_prefix, self.number.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// By our name, and so that it is clear where it ends.
    pub(crate) fn admit(&self, head: &Parts) -> Result<(), Reply> {
        self.names.check(&head.uri, &head.headers)?;
        // Encoded in any other way than in chunks, or twice: no two readers would agree where it ends.
        let encodings: Vec<_> = head.headers.get_all(header::TRANSFER_ENCODING).iter().collect();
        if encodings.len() > 1 || encodings.iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let refused = Reply::from(bad("`Transfer-Encoding` may be `chunked` only, and that once"));
            return Err(refused.with(header::CONNECTION, "close"));
        }
        Ok(())
    }

    /// Refusals and answers alike.
    async fn reply(&self, head: &Parts, body: Body, id: &str, record: &mut Record) -> Result<Going, Reply> {
        self.admit(head)?;
        if let Some(path) = FIXED.into_iter().find(|path| *path == head.uri.path()) {
            record.found(path);
            return self.fixed(path, head, record).await.map(Going::Reply);
        }
        if *self.is_ending.borrow() {
            return Err(answer::ending());
        }
        let found = path::find(self.routes, verb(&head.method), head.uri.path());
        if let Ok(found) = &found {
            record.found(found.route.path);
        }
        let (caller, may) = self.enter(head, found.as_ref().ok().map(|found| found.route.need), record).await?;
        let Found { route, args } = found.map_err(|missed| match missed {
            Missed::Refused(refused) => refused.into(),
            Missed::Method(methods) => answer::other_method(&methods),
        })?;
        if !may {
            return Err(forbidden(&caller, route.need).into());
        }
        self.pace.take(&caller.token, Instant::now()).map_err(answer::too_often)?;
        let query = path::query(head.uri.query().unwrap_or_default())?;
        let (content, kind, room) = self.content(&caller, head, body, route.method).await?;
        let given = Given {
            path: args,
            query,
            content: content.into(),
            is_json: kind == Kind::Json,
            wants_text: content::wants_text(&head.headers),
            request_id: id.to_owned(),
            trace: trace_in(&head.headers).map(ToOwned::to_owned),
            once: None,
        };
        if route.streams && content::wants_stream(&head.headers) {
            return self.stream(caller, route, given, head).await.map(Going::Stream);
        }
        let key = keep::key_in(&head.headers, route)?;
        let whose = Whose::from(&caller);
        let (answer, is_replayed) = self.answer(caller, route, given, key, room).await?;
        let reply = Reply::from(answer);
        // What was done is told in any case; who only looks can look again.
        let reply = if route.method == Verb::Get { self.held(&whose, reply)? } else { reply };
        Ok(Going::Reply(if is_replayed { reply.with(keep::REPLAYED, "true") } else { reply }))
    }

    /// What goes on until the listener has heard all or leaves. Its connection gives its place back to those that ask.
    async fn stream(&self, caller: Caller, route: &'static Route, given: Given, head: &Parts) -> Result<Body, Reply> {
        let last = stream::last_heard(&head.headers)?;
        let (face, asked) = (Arc::clone(&self.face), caller.clone());
        let mut given = given;
        let mut places = given.query.iter().filter(|(name, _)| name == "after");
        let is_one = places.next().is_none_or(|(_, place)| place.parse::<u64>().is_ok_and(|n| n <= PLACE_MAX))
            && places.next().is_none();
        if !is_one {
            return Err(bad("`after` must be the number of an event, once").into());
        }
        if let Some(last) = last {
            // Whoever comes back asks for the same as before, and has heard more since.
            given.query.retain(|(name, _)| name != "after");
            given.query.push(("after".to_owned(), last.to_string()));
        }
        let wish = self.looks.work_for(&Whose::from(&caller), move || face.wish(&asked, route, &given)).await??;
        let Some(place) = self.hub.place(&caller) else { return Err(stream::full()) };
        if let Some(slot) = head.extensions.get::<Slot>() {
            slot.put(place);
        }
        if head.method == Method::HEAD {
            return Ok(Body::empty());
        }
        Ok(stream::body(&self.hub, &caller, wish, self.is_ending.subscribe(), &self.bounds))
    }

    /// Notes the caller of a request in its record, and counts its connection among those of its token and tenant. Fails if they
    /// have as many as they may.
    pub(super) async fn note_caller(&self, head: &Parts, record: &mut Record, caller: &Caller) -> Result<(), Reply> {
        record.entered(caller);
        let Some(slot) = head.extensions.get::<Slot>().filter(|slot| !slot.is_known()) else { return Ok(()) };
        // Some of them may be about to end.
        match timeout(CONNECTION_PATIENCE, self.connections.take(Some(&Whose::from(caller)), 1)).await {
            Ok(Ok(share)) => {
                slot.know(share);
                Ok(())
            }
            _ => Err(answer::too_many_connections(self.connections.of_token())),
        }
    }

    /// Who asks, and whether he may.
    async fn enter(&self, head: &Parts, need: Option<Need>, record: &mut Record) -> Result<(Caller, bool), Reply> {
        let token = door::token_in(&head.headers)?.to_owned();
        let face = Arc::clone(&self.face);
        let entered = self.enters.work(move || {
            let caller = face.enter(&token)?;
            let may = need.is_none_or(|need| face.may(&caller, need));
            Ok::<_, Refused>((caller, may))
        });
        match entered.await? {
            Ok((caller, may)) => {
                self.note_caller(head, record, &caller).await?;
                Ok((caller, may))
            }
            Err(refused) if refused.status == 401 => Err(answer::unknown()),
            // Nobody could find out, which is not the token's fault.
            Err(refused) => Err(refused.into()),
        }
    }

    async fn fixed(&self, path: &'static str, head: &Parts, record: &mut Record) -> Result<Reply, Reply> {
        if verb(&head.method) != Some(Verb::Get) {
            return Err(answer::other_method(&["GET", "HEAD"]));
        }
        match path {
            HEALTH => return Ok(Reply::json(&json!({"ok": true}))),
            READY => return self.ready().await,
            _ => {}
        }
        if *self.is_ending.borrow() {
            return Err(answer::ending());
        }
        // Nothing in it is anybody's: a browser comes to it before it has a token to show.
        if let Some(page) = docs::at(path) {
            return Ok(page);
        }
        // Behind a proxy everybody comes from where it runs.
        let is_passed_on = PASSED_ON.iter().any(|name| head.headers.contains_key(*name));
        let shows_token = head.headers.contains_key(header::AUTHORIZATION);
        let mut known = None;
        if !self.is_loopback || is_passed_on || shows_token {
            let (caller, may) = self.enter(head, Some(Need::Read), record).await?;
            if !may {
                return Err(forbidden(&caller, Need::Read).into());
            }
            self.pace.take(&caller.token, Instant::now()).map_err(answer::too_often)?;
            known = Some(caller);
        }
        match path {
            OPENAPI => Ok(self.openapi.clone()),
            METRICS => {
                let face = Arc::clone(&self.face);
                let text = self.looks.work(move || face.metrics(known.as_ref())).await?;
                Ok(Reply::new("text/plain; version=0.0.4; charset=utf-8", text))
            }
            _ => Ok(self.page.clone()),
        }
    }

    async fn ready(&self) -> Result<Reply, Reply> {
        if *self.is_ending.borrow() {
            return Err(answer::ending());
        }
        let face = Arc::clone(&self.face);
        match self.enters.work(move || face.ready()).await? {
            Ok(()) => Ok(Reply::json(&json!({"ready": true}))),
            Err(why) => Err(Refused::named(error::STORE_UNAVAILABLE, &why, &Value::Null, None).into()),
        }
    }

    /// The content of a request, its kind, and the room that it takes until it is answered.
    pub(crate) async fn content(
        &self,
        caller: &Caller,
        head: &Parts,
        body: Body,
        method: Verb,
    ) -> Result<(Bytes, Kind, Vec<Share>), Reply> {
        let size = body.size_hint();
        let is_empty = size.exact() == Some(0);
        if method == Verb::Get {
            let refused = || bad("GET requests must not have a body; send arguments in the query").into();
            return if is_empty { Ok((Bytes::new(), Kind::None, Vec::new())) } else { Err(refused()) };
        }
        let bytes_max = self.settings.body_bytes_max;
        if size.lower() > bytes_max as u64 {
            return Err(content::too_large(bytes_max).into());
        }
        let kind = content::kind(&head.headers, is_empty)?;
        if is_empty {
            return Ok((Bytes::new(), kind, Vec::new()));
        }
        // One that does not say how large it is may be as large as any.
        let bytes = size.exact().map_or(bytes_max, |bytes| usize::try_from(bytes).unwrap_or(bytes_max));
        let whose = Whose::from(caller);
        let mut room = vec![self.room(&whose, bytes.min(FIRST_BYTES)).await?];
        let mut arriving = content::Arriving::new(body, bytes_max, self.bounds.body);
        if !arriving.reach(FIRST_BYTES).await? {
            let mut rest = self.room(&whose, bytes.saturating_sub(FIRST_BYTES)).await?;
            arriving.reach(bytes_max).await?;
            rest.keep(kib_of(arriving.bytes().saturating_sub(FIRST_BYTES)));
            room.push(rest);
        }
        let content = arriving.taken();
        if content.len() <= content::SMALL_BYTES_MAX {
            content::check(kind, &content)?;
        } else {
            let looked_through = content.clone();
            self.looks.work(move || content::check(kind, &looked_through)).await??;
        }
        Ok((content, kind, room))
    }

    /// Room for a part of a content, in the share of its caller.
    async fn room(&self, whose: &Whose, bytes: usize) -> Result<Share, Reply> {
        // However large contents may be by the settings, there is room for two of them in a share.
        let kib = kib_of(bytes).min(self.room.of_token() / 2);
        match timeout(self.bounds.turn, self.room.take(Some(whose), kib)).await {
            Ok(room) => room.map_err(|_| answer::failed()),
            Err(_) => Err(answer::busy()),
        }
    }

    /// A large answer stays until it is read, however slowly that is. Nobody waits for the room, since he would have the answer
    /// meanwhile.
    fn held(&self, whose: &Whose, reply: Reply) -> Result<Reply, Reply> {
        if reply.body.len() <= SMALL_ANSWER_BYTES_MAX {
            return Ok(reply);
        }
        let room = self.outgoing.try_take_many(Some(whose), kib_of(reply.body.len())).ok_or_else(answer::busy)?;
        Ok(Reply { body: Bytes::from_owner(Held { body: reply.body, _room: room }), ..reply })
    }

    /// Whoever leaves while this waits has asked for nothing; what has begun comes to its end, and its answer is kept.
    async fn answer(
        &self,
        caller: Caller,
        route: &'static Route,
        given: Given,
        key: Option<String>,
        room: Vec<Share>,
    ) -> Result<(Answer, bool), Reply> {
        let held = match &key {
            Some(key) => Some(self.under_way.turn(&caller, key).await),
            None => None,
        };
        let face = Arc::clone(&self.face);
        let whose = Whose::from(&caller);
        let work = move || {
            let _room = room;
            match held {
                Some(held) => held.answer(&*face, &caller, route, given),
                None => Ok((face.answer(&caller, route, given), false)),
            }
        };
        let (patience, answered) = match route.method {
            // Much to read, which keeps nobody else from looking.
            Verb::Get if route.is_archive => {
                (self.bounds.look, timeout(self.bounds.look, self.works.work_for(&whose, work)).await)
            }
            Verb::Get => (self.bounds.look, timeout(self.bounds.look, self.looks.work_for(&whose, work)).await),
            _ => (self.bounds.work, timeout(self.bounds.work, self.works.work_for(&whose, work)).await),
        };
        match answered {
            Ok(answered) => answered?.map_err(Reply::from),
            Err(_) => Err(answer::too_slow(patience)),
        }
    }

    /// Whoever is refused too often waits for it; nobody else does.
    async fn hold_back(&self, status: u16, peer: Option<&Peer>) {
        if let Some(Peer(address)) = peer.filter(|_| matches!(status, 401 | 403 | 404)) {
            let wait = self.failures.charge(&address.to_string(), Instant::now(), FAILURE_WAIT_MAX);
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
    }
}

pub(crate) async fn pass(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let id = desk.request_id(&head.headers);
    let mut record = Record::begin(desk.settings.log.clone(), &head.method, &id);
    record.traced(trace_in(&head.headers));
    let peer = head.extensions.get();
    let response = match head.uri.path() {
        mcp::PATH => desk.speak(&head, body, &id, &mut record).await,
        path if gateway::is_here(path) => desk.relay(&head, body, &id, &mut record).await,
        _ => match desk.reply(&head, body, &id, &mut record).await {
            Ok(Going::Stream(body)) => Ok(answer::streaming(body, &id)),
            Ok(Going::Reply(reply)) | Err(reply) => Err(reply),
        },
    };
    let response = match response {
        Ok(response) => response,
        Err(reply) => {
            desk.hold_back(reply.status, peer).await;
            reply.finish(&head.method, &head.headers, &id)
        }
    };
    record.answered(response.status().as_u16());
    response
}

/// An answer and the room it takes, given back with the last of its bytes.
struct Held {
    body: Bytes,
    _room: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn kib_of(bytes: usize) -> usize {
    bytes / 1024 + 1
}

/// What a caller says of the trace he is in; given twice, or longer than one can be, it says nothing.
fn trace_in(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(TRACE).iter();
    match (given.next().and_then(|value| value.to_str().ok()), given.next()) {
        (Some(value), None) if value.len() <= TRACE_CHARS_MAX => Some(value),
        _ => None,
    }
}

fn verb(method: &Method) -> Option<Verb> {
    match *method {
        Method::GET | Method::HEAD => Some(Verb::Get),
        Method::POST => Some(Verb::Post),
        Method::DELETE => Some(Verb::Delete),
        _ => None,
    }
}

fn forbidden(caller: &Caller, need: Need) -> Refused {
    let message = format!("a token with the role `{}` may not do this", caller.role);
    let hint = format!("It needs a role that may {}.", need.word());
    Refused::named(error::FORBIDDEN, &message, &json!({"role": caller.role, "need": need.word()}), Some(&hint))
}
