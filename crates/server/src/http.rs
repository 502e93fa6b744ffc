//! The tools over HTTP: who may ask at all, how large a request may be, and the routes below `/t/<token>`.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use actum_api::error;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value};
use tower::ServiceExt as _;

use crate::bridge::{Call, Refused};
use crate::fields::{Fields, bad};
use crate::mcp;
use crate::models::Gate;
use crate::turns::Turns;

/// The content of one request.
pub const BODY_BYTES_MAX: usize = 2 << 20;
/// Values in the content of one request: a small one such as `{"":0}` takes a hundred times its text in memory.
const BODY_VALUES_MAX: usize = 10_000;

#[derive(Clone)]
struct Door {
    token: Arc<str>,
    cancels: Arc<mcp::UnderWay>,
    /// For the content of a request, all of it.
    patience: Duration,
}

pub(crate) fn router(token: &str, turns: Arc<Turns>, patience: Duration) -> Router {
    let cancels = Arc::new(mcp::UnderWay::default());
    let mcp = mcp::over_http(mcp::Server::new(Arc::clone(&turns), Arc::clone(&cancels)), BODY_BYTES_MAX);
    let inside = Router::new()
        .route("/v1/adapters", get(list))
        .route("/v1/tools/{id}", get(show))
        .route("/v1/call", post(call))
        .method_not_allowed_fallback(async || bad("there is another method for this").with_status(405))
        .route_service("/mcp", mcp)
        .with_state(turns);
    let door = Door { token: token.into(), cancels, patience };
    Router::new().nest("/t/{token}", inside).fallback(async || nothing()).layer(from_fn_with_state(door, let_in))
}

/// Tools below their token, if there are any, and everything else to the models.
pub(crate) fn with_models(tools: Option<Router>, gate: Gate) -> Router {
    let models = Router::new().fallback(async move |request: Request| gate.pass(request).await);
    match tools {
        None => models,
        Some(tools) => Router::new().fallback(async move |request: Request| {
            let to = if request.uri().path().starts_with("/t/") { tools.clone() } else { models.clone() };
            to.oneshot(request).await.into_response()
        }),
    }
}

/// Everything passes here, whatever its path; then its content is whole, small, and not made to swell.
async fn let_in(State(door): State<Door>, request: Request, next: Next) -> Response {
    match admit(&door, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

async fn admit(door: &Door, request: Request) -> Result<Request, Refused> {
    let (head, body) = request.into_parts();
    if !comes_from_here(&head.uri, &head.headers) {
        let message = "only 127.0.0.1 and localhost are served";
        return Err(Refused::named(error::USAGE, message, &Value::Null, None).with_status(403));
    }
    let below = below_token(head.uri.path(), &door.token).ok_or_else(nothing)?;
    if head.method != Method::POST {
        return Ok(Request::from_parts(head, Body::empty()));
    }
    let too_large = || bad(&format!("more than {BODY_BYTES_MAX} bytes")).with_status(413);
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let content = match tokio::time::timeout(door.patience, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(content)) => content,
        // Too large, or broken off; for the latter nobody reads the answer.
        Ok(Err(_)) => return Err(too_large()),
        Err(_) => return Err(bad("the content took too long to arrive").with_status(408)),
    };
    if values_in(&content) > BODY_VALUES_MAX {
        return Err(bad(&format!("more than {BODY_VALUES_MAX} values")).with_status(413));
    }
    if below == "/mcp" {
        door.cancels.hear("", &content);
    }
    Ok(Request::from_parts(head, Body::from(content)))
}

/// A page of some other site may name our address after its own name is made to point here, but cannot change what the
/// browser then says about itself.
pub(crate) fn comes_from_here(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host_is_ours = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().is_ok_and(is_ours),
        _ => false,
    };
    let target_is_ours = uri.authority().is_none_or(|authority| is_ours(authority.as_str()));
    let origin_is_ours = headers.get_all(header::ORIGIN).iter().all(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")).is_some_and(is_ours)
    });
    host_is_ours && target_is_ours && origin_is_ours
}

fn is_ours(authority: &str) -> bool {
    let (host, port) = authority.split_once(':').unwrap_or((authority, "0"));
    (host == "127.0.0.1" || host.eq_ignore_ascii_case("localhost")) && port.parse::<u16>().is_ok()
}

fn below_token<'a>(path: &'a str, token: &str) -> Option<&'a str> {
    let rest = path.strip_prefix("/t/")?;
    let (given, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    is_same(given.as_bytes(), token.as_bytes()).then_some(below)
}

/// In the same time wherever they differ, so that a token cannot be found out letter by letter.
pub fn is_same(given: &[u8], token: &[u8]) -> bool {
    let difference = given.iter().zip(token).fold(0, |difference, (a, b)| black_box(difference | (a ^ b)));
    given.len() == token.len() && difference == 0
}

/// Counts what begins a value, outside of strings. Text that is not JSON gives some number too; its reader says no.
pub(crate) fn values_in(json: &[u8]) -> usize {
    let (mut values, mut is_string, mut is_escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'[' | b'{' | b',' if !is_string => values += 1,
            _ => {}
        }
    }
    values
}

type Question = Result<Query<HashMap<String, String>>, QueryRejection>;

/// The members of a query, none of them unknown.
fn fields(query: Question) -> Result<Fields, Refused> {
    let Query(members) = query.map_err(|rejection| bad(&rejection.body_text()))?;
    Ok(Fields::new(members.into_iter().map(|(name, text)| (name, Value::String(text))).collect()))
}

async fn list(State(turns): State<Arc<Turns>>, query: Question) -> Result<Json<Value>, Refused> {
    let mut fields = fields(query)?;
    let (level, tool) = (fields.maybe_text("level")?, fields.maybe_text("tool")?);
    fields.end()?;
    turns.list(level, tool).await.map(Json)
}

async fn show(
    State(turns): State<Arc<Turns>>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Question,
) -> Result<Json<Value>, Refused> {
    let Path((_token, id)) = path.map_err(|rejection| bad(&rejection.body_text()))?;
    let mut fields = fields(query)?;
    let level = fields.maybe_text("level")?;
    fields.end()?;
    turns.show(id, level).await.map(Json)
}

async fn call(State(turns): State<Arc<Turns>>, content: Bytes) -> Result<Json<Value>, Refused> {
    let members: Map<String, Value> =
        serde_json::from_slice(&content).map_err(|error| bad(&format!("not a JSON object: {error}")))?;
    let mut fields = Fields::new(members);
    let call = Call {
        tool: fields.text("tool")?,
        adapter: fields.maybe_text("adapter")?,
        operation: fields.maybe_text("operation")?,
        params: fields.object("params")?,
    };
    fields.end()?;
    turns.call(call).await.map(Json)
}

fn nothing() -> Refused {
    Refused::named(error::NOT_FOUND, "there is nothing here", &Value::Null, None)
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.body)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn values_are_counted_outside_of_strings() {
        assert_eq!(values_in(b"1"), 1);
        assert_eq!(values_in(br#"{"a,[{":"\",,","b":[1,2]}"#), 5);
        assert!(values_in("{\"\":0},".repeat(BODY_VALUES_MAX).as_bytes()) > BODY_VALUES_MAX);
    }

    #[test]
    fn only_the_whole_token_opens() {
        assert_eq!(below_token("/t/abc/v1/call", "abc"), Some("/v1/call"));
        assert_eq!(below_token("/t/abc", "abc"), Some(""));
        for path in ["/t/ab/v1", "/t/abcd/v1", "/t/abd/v1", "/t//v1", "/t/", "/t", "/", "//t/abc/v1", "/T/abc/v1"] {
            assert_eq!(below_token(path, "abc"), None, "{path}");
        }
    }

    #[test]
    fn names_of_others_are_not_ours() {
        let from = |host: &[&str], origin: &[&str], uri: &str| {
            let mut headers = HeaderMap::new();
            for value in host {
                headers.append(header::HOST, HeaderValue::from_str(value).unwrap());
            }
            for value in origin {
                headers.append(header::ORIGIN, HeaderValue::from_str(value).unwrap());
            }
            comes_from_here(&uri.parse().unwrap(), &headers)
        };
        assert!(from(&["127.0.0.1:8080"], &[], "/"));
        assert!(from(&["LocalHost"], &["http://localhost:3000"], "http://127.0.0.1:80/"));
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost:x", "x@localhost", "[::1]:80", "", ":80"] {
            assert!(!from(&[host], &[], "/"), "{host}");
        }
        assert!(!from(&[], &[], "/"));
        assert!(!from(&["localhost", "localhost"], &[], "/"));
        assert!(!from(&["localhost"], &["http://evil.example"], "/"));
        assert!(!from(&["localhost"], &["null"], "/"));
        assert!(!from(&["localhost"], &[], "http://evil.example/"));
    }
}
