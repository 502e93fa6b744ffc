//! Answers as they go out: the headers that each of them has, and the refusals of the server itself.

use std::time::Duration;

use actum_api::error;
use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Answer, door};
use crate::bridge::Refused;
use crate::fields::bad;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const EXIT: HeaderName = HeaderName::from_static("x-actum-exit");
const REMARKS: HeaderName = HeaderName::from_static("x-actum-remarks");
const ASIDES: HeaderName = HeaderName::from_static("x-actum-asides");
/// How long each of these is at most: some proxies have no more than 4 KiB for the head of an answer.
const REMARKS_BYTES_MAX: usize = 1 << 10;
/// What stands for the rest.
const MORE: &str = "\"...\"";
/// So much of a SHA-256 as an `ETag` needs.
const TAG_BYTES: usize = 16;
/// Seconds to wait when all threads are taken.
const BUSY_SECONDS: u64 = 1;
/// Seconds to wait when a command has too much to do already.
const LATER_SECONDS: u64 = 5;

/// An answer on its way.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    pub(crate) exit: u8,
    pub(crate) headers: Vec<(HeaderName, String)>,
}

impl Reply {
    pub(crate) fn new(content_type: &str, body: impl Into<Bytes>) -> Self {
        Self { status: 200, content_type: content_type.to_owned(), body: body.into(), exit: 0, headers: Vec::new() }
    }

    pub(crate) fn json(body: &Value) -> Self {
        Self::new("application/json", body.to_string())
    }

    pub(crate) fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// With what every answer has; for a look, nothing if the caller has it already.
    pub(crate) fn finish(mut self, method: &Method, asked: &HeaderMap, request_id: &str) -> Response {
        if self.status == 200 && (method == Method::GET || method == Method::HEAD) {
            let tag = tag(&self.body);
            if is_known(asked, &tag) {
                self.status = 304;
                self.body = Bytes::new();
            }
            self = self.with(header::ETAG, tag);
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if status != StatusCode::NOT_MODIFIED {
            let other = HeaderValue::from_static("application/octet-stream");
            headers.insert(header::CONTENT_TYPE, HeaderValue::try_from(self.content_type).unwrap_or(other));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(EXIT, HeaderValue::from(u16::from(self.exit)));
        self.headers.push((REQUEST_ID, request_id.to_owned()));
        for (name, value) in self.headers {
            // All of them are ours, and plain.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

/// The answer to whoever listens. Its connection is of no other use afterwards.
pub(crate) fn streaming(body: Body, request_id: &str) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, super::stream::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Proxies that gather answers would keep events back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
        (header::CONNECTION, "close"),
        (EXIT, "0"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(id) = HeaderValue::try_from(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

impl From<Refused> for Reply {
    fn from(refused: Refused) -> Self {
        let exit = error::named(refused.body["error"]["code"].as_str().unwrap_or_default()).exit;
        let reply = Self { status: refused.status, exit, ..Self::json(&refused.body) };
        match refused.status {
            401 => reply.with(header::WWW_AUTHENTICATE, "Bearer realm=\"actum\""),
            _ => reply,
        }
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        let Answer { status, content_type, body, exit, remarks, asides } = answer;
        let mut reply = Self { status, content_type, body: body.into(), exit, headers: Vec::new() };
        for (name, said) in [(REMARKS, remarks), (ASIDES, asides)] {
            if !said.is_empty() {
                reply = reply.with(name, remarks_text(&said));
            }
        }
        match status {
            429 => reply.with(header::RETRY_AFTER, LATER_SECONDS.to_string()),
            _ => reply,
        }
    }
}

/// A list in JSON, as a head may carry it: in ASCII. Lines, as many as there is room for, and a sign if there are more.
fn remarks_text(remarks: &[String]) -> String {
    let mut text = String::from("[");
    for line in remarks.iter().flat_map(|remark| remark.lines()) {
        let mut one = String::new();
        for unit in json!(line).to_string().encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte @ b' '..=b'~') => one.push(char::from(byte)),
                _ => one += &format!("\\u{unit:04x}"),
            }
        }
        text += if text.len() > 1 { "," } else { "" };
        if text.len() + one.len() + MORE.len() > REMARKS_BYTES_MAX {
            text += MORE;
            break;
        }
        text += &one;
    }
    text + "]"
}

/// Weak: it stands for what is said, not for the bytes that say it.
fn tag(body: &[u8]) -> String {
    format!("W/\"{}\"", hex::encode(&Sha256::digest(body)[..TAG_BYTES]))
}

fn is_known(asked: &HeaderMap, tag: &str) -> bool {
    let plain = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    let values = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|known| known == "*" || plain(known) == plain(tag))
}

/// Nobody is known by the token; the same answer whoever found out.
pub(crate) fn unknown() -> Reply {
    door::unknown().into()
}

pub(crate) fn failed() -> Reply {
    Refused::named(error::INTERNAL, "the request could not be answered", &Value::Null, None).into()
}

/// All threads are taken, and all places of those who wait.
pub(crate) fn busy() -> Reply {
    let message = "too many requests are under way";
    let refused = Refused::named(error::TOO_MANY_REQUESTS, message, &Value::Null, None).with_status(503);
    Reply::from(refused).with(header::RETRY_AFTER, BUSY_SECONDS.to_string())
}

/// What was asked for goes on, and nobody waits for it any more.
pub(crate) fn too_slow(patience: Duration) -> Reply {
    let message = format!("there is no answer after {} seconds", patience.as_secs());
    let hint = Some("What was asked may still be done: look before asking again, or ask for less of it.");
    Refused::named(error::ANSWER_LATE, &message, &Value::Null, hint).into()
}

pub(crate) fn ending() -> Reply {
    let message = "the server is ending";
    let refused = Refused::named(error::TOO_MANY_REQUESTS, message, &Value::Null, None).with_status(503);
    Reply::from(refused).with(header::RETRY_AFTER, BUSY_SECONDS.to_string()).with(header::CONNECTION, "close")
}

pub(crate) fn too_often(wait: Duration) -> Reply {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    let message = "more requests than this token may make in a second";
    let details = json!({"retry_after_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)});
    let hint = Some("Wait as long as `Retry-After` says, and ask again.");
    let refused = Refused::named(error::TOO_MANY_REQUESTS, message, &details, hint);
    Reply::from(refused).with(header::RETRY_AFTER, seconds.to_string())
}

pub(crate) fn too_many_connections(most: usize) -> Reply {
    let message = format!("this token or its tenant has as many connections as it may; a token may have {most}");
    let hint = Some("Close connections that are not in use, and ask again.");
    let refused = Refused::named(error::TOO_MANY_REQUESTS, &message, &json!({"connections": most}), hint);
    Reply::from(refused).with(header::CONNECTION, "close").with(header::RETRY_AFTER, "1")
}

pub(crate) fn other_method(methods: &[&str]) -> Reply {
    let allowed = methods.join(", ");
    let refused = bad(&format!("there is another method for this: {allowed}")).with_status(405);
    Reply::from(refused).with(header::ALLOW, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_answer_is_known_by_any_of_its_tags() {
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            }
            is_known(&headers, "W/\"ab\"")
        };
        assert!(known(&["W/\"ab\""]) && known(&["\"ab\""]) && known(&["*"]));
        assert!(known(&["\"x\", W/\"ab\""]) && known(&["\"x\"", "\"ab\""]));
        assert!(!known(&[]) && !known(&["ab"]) && !known(&["\"abc\""]) && !known(&[""]) && !known(&["w/\"ab\""]));
        assert_eq!(tag(b"").len(), 4 + 2 * TAG_BYTES);
        assert_ne!(tag(b"a"), tag(b"b"));
    }

    #[test]
    fn remarks_fit_into_a_head() {
        let said =
            ["a \"word\"\u{7f}".to_owned(), "ü\n🎉".to_owned(), "x".repeat(REMARKS_BYTES_MAX), "left out".to_owned()];
        let text = remarks_text(&said);
        assert_eq!(text, r#"["a \"word\"\u007f","\u00fc","\ud83c\udf89","..."]"#);
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), ["a \"word\"\u{7f}", "ü", "🎉", "..."]);
        let many = vec!["line".to_owned(); 500];
        assert!(remarks_text(&many).len() <= REMARKS_BYTES_MAX + 1 && remarks_text(&many).ends_with(r#","..."]"#));
    }

    #[test]
    fn a_refusal_has_the_exit_code_of_its_row() {
        assert_eq!((Reply::from(bad("x")).exit, failed().exit, busy().exit, unknown().exit), (2, 70, 1, 3));
        let wait = too_often(Duration::from_millis(1001));
        assert_eq!(wait.headers, [(header::RETRY_AFTER, "2".to_owned())]);
        let answer = |status| Answer::new(status, "", Vec::new(), 1);
        assert_eq!(Reply::from(answer(429)).headers, [(header::RETRY_AFTER, LATER_SECONDS.to_string())]);
        assert!(Reply::from(answer(409)).headers.is_empty());
    }
}
