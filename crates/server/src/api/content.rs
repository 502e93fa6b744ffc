//! The content of a request: of a kind we know, not too large, not too slow, and if it is said to be JSON, then it is.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout};

use crate::bridge::Refused;
use crate::fields::bad;
use crate::models::is_swollen;

/// What is looked through where it arrived; larger contents are looked through on a thread for blocking work.
pub(crate) const SMALL_BYTES_MAX: usize = 32 << 10;

/// Lines of one content: each may be a document of its own, and costs as one even if there is nothing in it.
const LINES_MAX: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There is nothing.
    None,
    Json,
    Lines,
    Text,
    Bytes,
}

/// By its headers alone: before any of it is read.
pub(crate) fn kind(headers: &HeaderMap, is_empty: bool) -> Result<Kind, Refused> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    if encodings.any(|encoding| encoding != "identity") {
        return Err(bad("the content has to be sent as it is, not compressed").with_status(415));
    }
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let kind = match (types.next(), types.next()) {
        (None, _) => return if is_empty { Ok(Kind::None) } else { Err(unknown_type()) },
        (Some(value), None) => value.to_str().ok().and_then(kind_of),
        _ => None,
    };
    kind.ok_or_else(unknown_type)
}

fn kind_of(value: &str) -> Option<Kind> {
    let mut parts = value.split(';').map(str::trim);
    let kind = match parts.next()?.to_ascii_lowercase().as_str() {
        "application/json" => Kind::Json,
        "application/jsonl" => Kind::Lines,
        "application/yaml" | "text/plain" => Kind::Text,
        "application/octet-stream" => Kind::Bytes,
        _ => return None,
    };
    let is_known = |part: &str| {
        let part = part.to_ascii_lowercase();
        part.strip_prefix("charset=").is_none_or(|charset| matches!(charset.trim_matches('"'), "utf-8" | "us-ascii"))
    };
    parts.all(is_known).then_some(kind)
}

fn unknown_type() -> Refused {
    let types = "application/json, application/yaml, application/jsonl, text/plain or application/octet-stream";
    bad(&format!("`Content-Type` must be one of {types}, in UTF-8")).with_status(415)
}

pub(crate) fn too_large(bytes_max: usize) -> Refused {
    bad(&format!("more than {bytes_max} bytes")).with_status(413)
}

/// A content while it arrives.
pub(crate) struct Arriving {
    body: BodyDataStream,
    content: Vec<u8>,
    bytes_max: usize,
    /// How much longer it may take; while we let it wait this does not run.
    left: Duration,
}

impl Arriving {
    pub(crate) fn new(body: Body, bytes_max: usize, patience: Duration) -> Self {
        Self { body: body.into_data_stream(), content: Vec::new(), bytes_max, left: patience }
    }

    /// Until there is more than so much of it, or all; whether it is all.
    pub(crate) async fn reach(&mut self, bytes: usize) -> Result<bool, Refused> {
        let begun = Instant::now();
        let reached = timeout(self.left, self.gather(bytes)).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        reached.unwrap_or_else(|_| Err(bad("the content took too long to arrive").with_status(408)))
    }

    async fn gather(&mut self, bytes: usize) -> Result<bool, Refused> {
        while self.content.len() <= bytes {
            let Some(piece) = self.body.next().await else { return Ok(true) };
            // Broken off; nobody reads the answer.
            let piece = piece.map_err(|_| too_large(self.bytes_max))?;
            if piece.len() > self.bytes_max - self.content.len() {
                return Err(too_large(self.bytes_max));
            }
            self.content.extend_from_slice(&piece);
        }
        Ok(false)
    }

    /// So many have come.
    pub(crate) fn bytes(&self) -> usize {
        self.content.len()
    }

    pub(crate) fn taken(self) -> Bytes {
        self.content.into()
    }
}

/// Whether it is what it is said to be, and would not swell in memory.
pub(crate) fn check(kind: Kind, content: &[u8]) -> Result<(), Refused> {
    if kind != Kind::Bytes && str::from_utf8(content).is_err() {
        return Err(bad("the content is not UTF-8"));
    }
    let swollen = || bad("the content holds too many values").with_status(413);
    match kind {
        Kind::Json if is_swollen(content) => Err(swollen()),
        Kind::Json if !content.is_empty() => {
            let read = serde_json::from_slice::<IgnoredAny>(content);
            read.map(drop).map_err(|error| bad(&format!("the content is not JSON: {error}")))
        }
        Kind::Lines | Kind::Text | Kind::Bytes if content.iter().filter(|byte| **byte == b'\n').count() > LINES_MAX => {
            Err(bad(&format!("the content has more than {LINES_MAX} lines")).with_status(413))
        }
        // Line by line: that is how they are read.
        Kind::Lines if content.split(|byte| *byte == b'\n').any(is_swollen) => Err(swollen()),
        _ => Ok(()),
    }
}

/// Whether whoever asks would rather read than parse: `text/plain` is weighed against `application/json`.
pub(crate) fn wants_text(headers: &HeaderMap) -> bool {
    let accepted = || headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let weight = |names: [&str; 3]| {
        // The nearest name counts, not the heaviest.
        names
            .iter()
            .find_map(|name| accepted().flat_map(|value| value.split(',')).find_map(|range| weight_of(range, name)))
    };
    let text = weight(["text/plain", "text/*", "*/*"]).unwrap_or(0.0);
    let json = weight(["application/json", "application/*", "*/*"]).unwrap_or(0.0);
    text > json
}

/// Whether somebody wants to go on listening: he says so, or takes anything and names neither JSON nor text.
pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = || headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let weight = |name: &str| accepted().flat_map(|value| value.split(',')).find_map(|range| weight_of(range, name));
    let is_taken = |name: &&str| weight(name).is_some_and(|weight| weight > 0.0);
    match weight("text/event-stream") {
        Some(weight) => weight > 0.0,
        None if ["application/json", "application/jsonl", "text/plain"].iter().any(is_taken) => false,
        None => !headers.contains_key(header::ACCEPT) || ["text/*", "*/*"].iter().any(is_taken),
    }
}

/// The weight of a range of media types, if it has this name.
fn weight_of(range: &str, name: &str) -> Option<f32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(name) {
        return None;
    }
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    Some(weight.and_then(|weight| weight.parse().ok()).unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn with(name: header::HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn who_wants_to_listen() {
        let wants = |values: &[&str]| wants_stream(&with(header::ACCEPT, values));
        for values in [
            &[][..],
            &["*/*"],
            &["text/event-stream"],
            &["text/*"],
            &["application/json, text/event-stream"],
            &["Text/Event-Stream;q=0.1", "application/json"],
        ] {
            assert!(wants(values), "{values:?}");
        }
        for values in [
            &["application/json"][..],
            &["text/plain"],
            &["application/json, text/plain, */*"],
            &["image/png"],
            &["text/event-stream;q=0", "*/*"],
            &["application/jsonl"],
            &["*/*;q=0"],
        ] {
            assert!(!wants(values), "{values:?}");
        }
    }

    #[test]
    fn kinds_we_know() {
        let of = |values: &[&str]| kind(&with(header::CONTENT_TYPE, values), false).map_err(|refused| refused.status);
        assert_eq!(of(&["application/json"]), Ok(Kind::Json));
        assert_eq!(of(&["Application/JSON; charset=UTF-8"]), Ok(Kind::Json));
        assert_eq!(of(&["application/yaml"]), Ok(Kind::Text));
        assert_eq!(of(&["text/plain;charset=\"utf-8\""]), Ok(Kind::Text));
        assert_eq!(of(&["application/jsonl"]), Ok(Kind::Lines));
        assert_eq!(of(&["application/octet-stream"]), Ok(Kind::Bytes));
        for values in [
            &[][..],
            &[""],
            &["json"],
            &["text/html"],
            &["application/jsonp"],
            &["application/json; charset=latin1"],
            &["multipart/form-data; boundary=x"],
            &["application/x-www-form-urlencoded"],
            &["application/json", "application/json"],
            &["application/json, text/html"],
        ] {
            assert_eq!(of(values), Err(415), "{values:?}");
        }
        assert_eq!(kind(&HeaderMap::new(), true), Ok(Kind::None));
        assert_eq!(kind(&with(header::CONTENT_ENCODING, &["gzip"]), true).map_err(|refused| refused.status), Err(415));
    }

    #[test]
    fn json_is_json_and_not_swollen() {
        let status = |kind, content: &[u8]| check(kind, content).map_err(|refused| refused.status);
        for content in ["", "{}", "[1, \"\u{e9}\"]", "null", "{\"a\":1,\"a\":2}"] {
            assert_eq!(status(Kind::Json, content.as_bytes()), Ok(()), "{content}");
        }
        for content in [&b"{"[..], b"{} {}", b"{'a':1}", b"NaN", b"\xff", b"\"\xff\"", b" ", b"{}\0", b"\xef\xbb\xbf{}"]
        {
            assert_eq!(status(Kind::Json, content), Err(400), "{content:?}");
        }
        let swollen = format!("[{}{{}}]", "{},".repeat(200_000));
        assert_eq!(status(Kind::Json, swollen.as_bytes()), Err(413));
        assert_eq!(status(Kind::Lines, swollen.as_bytes()), Err(413));
        assert_eq!(status(Kind::Lines, "{\"a\":[1,2]}\n".repeat(50_000).as_bytes()), Ok(()));
        for kind in [Kind::Lines, Kind::Text, Kind::Bytes] {
            assert_eq!(status(kind, "\n".repeat(LINES_MAX).as_bytes()), Ok(()));
            assert_eq!(status(kind, "\n".repeat(LINES_MAX + 1).as_bytes()), Err(413));
        }
        assert_eq!((status(Kind::Text, b"{"), status(Kind::Text, b"\xff")), (Ok(()), Err(400)));
        assert_eq!(status(Kind::Bytes, b"\xff\0"), Ok(()));
        // Depth costs nothing here; whoever reads it has a bound.
        assert!(check(Kind::Json, format!("{}{}", "[".repeat(90_000), "]".repeat(90_000)).as_bytes()).is_ok());
    }

    #[test]
    fn text_is_for_those_who_prefer_it() {
        let wants = |values: &[&str]| wants_text(&with(header::ACCEPT, values));
        for values in [
            &["text/plain"][..],
            &["TEXT/PLAIN"],
            &["text/*"],
            &["text/plain, application/json;q=0.5"],
            &["application/json;q=0", "text/plain"],
            &["text/plain, */*;q=0.1"],
            &["*/*;q=0.1,text/plain"],
        ] {
            assert!(wants(values), "{values:?}");
        }
        for values in [
            &[][..],
            &["*/*"],
            &["application/json"],
            &["application/json, text/plain"],
            &["text/plain;q=0.5, application/json"],
            &["text/plain;q=0"],
            &["text/html"],
            &["image/png"],
            &["text/plain, */*"],
            &[""],
            &["q=1"],
        ] {
            assert!(!wants(values), "{values:?}");
        }
    }
}
