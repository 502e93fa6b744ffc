//! One request from its head to its answer: the checks in their order, and the thread it is answered on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actum_api::error;
use actum_api::route::{Method as Verb, Need, Route};
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::answer::{self, REQUEST_ID, Reply};
use super::content::{self, Kind};
use super::door::{self, Names};
use super::keep::{self, UnderWay};
use super::line::Record;
use super::pace::Pace;
use super::page::page;
use super::path::{self, Found, Missed};
use super::turn::Turns;
use super::{Answer, Bounds, Caller, Face, Given, Settings};
use crate::bridge::Refused;
use crate::fields::bad;

/// The contents of all requests under way together, in KiB; others wait until there is room.
const CONTENTS_KIB: u32 = 128 << 10;
const REQUEST_ID_CHARS_MAX: usize = 64;
/// What is served beside the table of routes.
const FIXED: [&str; 5] = ["/", HEALTH, READY, METRICS, OPENAPI];
const HEALTH: &str = "/healthz";
const READY: &str = "/readyz";
const METRICS: &str = "/metrics";
const OPENAPI: &str = "/openapi.json";

/// All that requests share.
pub(crate) struct Desk {
    face: Arc<dyn Face>,
    routes: &'static [Route],
    settings: Settings,
    pub(crate) bounds: Bounds,
    is_loopback: bool,
    names: Names,
    pace: Pace,
    enters: Turns,
    looks: Turns,
    works: Turns,
    room: Arc<Semaphore>,
    under_way: Arc<UnderWay>,
    is_ending: watch::Sender<bool>,
    number: AtomicU64,
    openapi: Reply,
    page: Reply,
}

impl Desk {
    pub(crate) fn new(
        face: Arc<dyn Face>,
        routes: &'static [Route],
        settings: Settings,
        bounds: Bounds,
        is_loopback: bool,
    ) -> Self {
        let openapi = face.openapi();
        Self {
            page: page(&openapi),
            openapi: Reply::new("application/json", openapi.to_vec()),
            face,
            routes,
            is_loopback,
            names: Names::new(settings.hosts.clone(), is_loopback),
            pace: Pace::new(settings.requests_per_second, settings.burst),
            settings,
            bounds,
            enters: Turns::new(bounds.enters_max, &bounds),
            looks: Turns::new(bounds.looks_max, &bounds),
            works: Turns::new(bounds.works_max, &bounds),
            room: Arc::new(Semaphore::new(CONTENTS_KIB as usize)),
            under_way: Arc::default(),
            is_ending: watch::Sender::new(false),
            number: AtomicU64::new(0),
        }
    }

    /// From now on nothing new is begun.
    pub(crate) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    pub(crate) async fn ending(&self) {
        // The sender is ours: it is never gone.
        self.is_ending.subscribe().wait_for(|is_ending| *is_ending).await.map(drop).unwrap_or_default();
    }

    /// Returns when nothing is under way any more, also of those who have left.
    pub(crate) async fn settled(&self) {
        for turns in [&self.enters, &self.looks, &self.works] {
            turns.settled().await;
        }
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

    /// Refusals and answers alike.
    async fn reply(&self, head: &Parts, body: Body, id: &str, record: &mut Record) -> Result<Reply, Reply> {
        self.names.check(&head.uri, &head.headers)?;
        // Encoded in any other way than in chunks, or twice: no two readers would agree where it ends.
        let encodings: Vec<_> = head.headers.get_all(header::TRANSFER_ENCODING).iter().collect();
        if encodings.len() > 1 || encodings.iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let refused = Reply::from(bad("`Transfer-Encoding` may be `chunked` only, and that once"));
            return Err(refused.with(header::CONNECTION, "close"));
        }
        if let Some(path) = FIXED.into_iter().find(|path| *path == head.uri.path()) {
            record.found(path);
            return self.fixed(path, head, record).await;
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
        let (content, kind, room) = self.content(head, body, route).await?;
        let given = Given {
            path: args,
            query,
            content: content.into(),
            is_json: kind == Kind::Json,
            wants_text: content::wants_text(&head.headers),
            request_id: id.to_owned(),
        };
        let key = keep::key_in(&head.headers, route)?;
        let (answer, is_replayed) = self.answer(caller, route, given, key, room).await?;
        let reply = Reply::from(answer);
        Ok(if is_replayed { reply.with(keep::REPLAYED, "true") } else { reply })
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
                record.entered(&caller);
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
        if !self.is_loopback {
            let (caller, may) = self.enter(head, Some(Need::Read), record).await?;
            if !may {
                return Err(forbidden(&caller, Need::Read).into());
            }
            self.pace.take(&caller.token, Instant::now()).map_err(answer::too_often)?;
        }
        match path {
            OPENAPI => Ok(self.openapi.clone()),
            METRICS => {
                let face = Arc::clone(&self.face);
                let text = self.looks.work(move || face.metrics()).await?;
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
    async fn content(
        &self,
        head: &Parts,
        body: Body,
        route: &Route,
    ) -> Result<(Bytes, Kind, Option<OwnedSemaphorePermit>), Reply> {
        let size = body.size_hint();
        let is_empty = size.exact() == Some(0);
        if route.method == Verb::Get {
            let refused = || bad("a look has no content; send arguments in the query").into();
            return if is_empty { Ok((Bytes::new(), Kind::None, None)) } else { Err(refused()) };
        }
        let bytes_max = self.settings.body_bytes_max;
        if size.lower() > bytes_max as u64 {
            return Err(content::too_large(bytes_max).into());
        }
        let kind = content::kind(&head.headers, is_empty)?;
        if is_empty {
            return Ok((Bytes::new(), kind, None));
        }
        // One that does not say how large it is may be as large as any.
        let bytes = size.exact().map_or(bytes_max, |bytes| usize::try_from(bytes).unwrap_or(bytes_max));
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(CONTENTS_KIB).min(CONTENTS_KIB);
        let room = match timeout(self.bounds.turn, Arc::clone(&self.room).acquire_many_owned(kib)).await {
            Ok(room) => room.map_err(|_| answer::failed())?,
            Err(_) => return Err(answer::busy()),
        };
        let content = content::read(body, bytes_max, self.bounds.body).await?;
        if content.len() <= content::SMALL_BYTES_MAX {
            content::check(kind, &content)?;
        } else {
            let looked_through = content.clone();
            self.looks.work(move || content::check(kind, &looked_through)).await??;
        }
        Ok((content, kind, Some(room)))
    }

    /// Whoever leaves while this waits has asked for nothing; what has begun comes to its end, and its answer is kept.
    async fn answer(
        &self,
        caller: Caller,
        route: &'static Route,
        given: Given,
        key: Option<String>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<(Answer, bool), Reply> {
        let held = match &key {
            Some(key) => Some(self.under_way.turn(&caller, key).await),
            None => None,
        };
        let face = Arc::clone(&self.face);
        let turns = if route.method == Verb::Get { &self.looks } else { &self.works };
        let answered = turns.work(move || {
            let _room = room;
            match held {
                Some(held) => held.answer(&*face, &caller, route, given),
                None => Ok((face.answer(&caller, route, given), false)),
            }
        });
        answered.await?.map_err(Reply::from)
    }
}

pub(crate) async fn pass(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let id = desk.request_id(&head.headers);
    let mut record = Record::begin(desk.settings.log.clone(), &head.method, &id);
    let reply = desk.reply(&head, body, &id, &mut record).await.unwrap_or_else(|refused| refused);
    let response = reply.finish(&head.method, &head.headers, &id);
    record.answered(response.status().as_u16());
    response
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
