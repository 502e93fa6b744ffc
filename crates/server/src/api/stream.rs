//! One listener: a place in its source and nothing else. It is asked for more only when the connection takes more, so what it has
//! not read is nowhere but in the store; whoever takes nothing for too long is cut off by the connection.

use std::sync::Arc;
use std::time::Duration;

use actum_api::error;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::answer::Reply;
use super::event::{Reached, Wish, block, comment};
use super::hub::{Channel, Guard, Hub};
use super::{Bounds, Caller};
use crate::bridge::Refused;
use crate::fields::bad;

pub(crate) const CONTENT_TYPE: &str = "text/event-stream";
const LAST_EVENT_ID: &str = "last-event-id";
/// How long a client should wait before it comes back, in milliseconds.
const RETRY_MS: u64 = 2_000;
/// Between two attempts to read what is there.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Seconds to wait when all places are taken.
const FULL_SECONDS: u64 = 5;

/// The last event that a client says it has heard.
pub(crate) fn last_heard(headers: &HeaderMap) -> Result<Option<u64>, Refused> {
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| second.is_none() && text.bytes().all(|byte| byte.is_ascii_digit()));
    match text.map(str::parse) {
        // As a client sends it that has heard nothing yet.
        Some(_) if text == Some("") => Ok(None),
        Some(Ok(id)) => Ok(Some(id)),
        _ => Err(bad("`Last-Event-ID` must be the id of an event of this stream, once")),
    }
}

/// All places are taken.
pub(crate) fn full() -> Reply {
    let message = "as many listen already as may at once";
    let hint = Some("Come back later with `Last-Event-ID`: nothing is lost.");
    let refused = Refused::named(error::TOO_MANY_REQUESTS, message, &Value::Null, hint).with_status(503);
    Reply::from(refused).with(header::RETRY_AFTER, FULL_SECONDS.to_string())
}

/// What goes out to one listener, until it has heard all, leaves, or has to.
pub(crate) fn body(
    hub: &Arc<Hub>,
    caller: &Caller,
    wish: Wish,
    ending: watch::Receiver<bool>,
    bounds: &Bounds,
) -> Body {
    let (channel, guard) = (hub.channel(&wish.source), hub.guard(caller));
    let listener = Listener {
        reached: channel.reached(),
        is_over: guard.is_over(),
        channel,
        _guard: guard,
        ending,
        cursor: wish.after,
        types: wish.types,
        beat: bounds.beat,
        patience: bounds.write,
        failing_since: None,
        stage: Stage::Begun,
    };
    Body::from_stream(stream::unfold(listener, |mut listener| async move {
        let next = listener.next().await?;
        Some((Ok::<_, std::convert::Infallible>(next), listener))
    }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    Telling,
    Over,
}

struct Listener {
    channel: Arc<Channel>,
    reached: watch::Receiver<Option<Reached>>,
    _guard: Arc<Guard>,
    is_over: watch::Receiver<bool>,
    ending: watch::Receiver<bool>,
    cursor: Option<u64>,
    types: Vec<String>,
    /// How long nothing may be said.
    beat: Duration,
    /// How long the store may be away.
    patience: Duration,
    failing_since: Option<Instant>,
    stage: Stage,
}

impl Listener {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Over => return None,
            Stage::Begun => {
                self.stage = Stage::Telling;
                return Some(format!("retry: {RETRY_MS}\n\n").into());
            }
            Stage::Telling => {}
        }
        let silent_until = Instant::now() + self.beat;
        loop {
            if *self.ending.borrow() {
                return self.last(comment("the server is ending; come back with the last id"));
            }
            if *self.is_over.borrow() {
                return self.last(comment("the token opens nothing any more"));
            }
            let reached = self.reached.borrow_and_update().clone();
            match reached {
                Some(Reached { last, .. }) if self.cursor < last => match self.more().await {
                    // None of it was of the types that are wanted.
                    Some(text) if text.is_empty() => {}
                    Some(text) => return Some(text),
                    None if self.has_failed_for_long() => {
                        return self.last(comment("the store does not answer; come back with the last id"));
                    }
                    None => self.wait(Instant::now() + AGAIN_AFTER, false).await,
                },
                Some(Reached { end: Some(end), .. }) => return self.last(block("end", &end).into()),
                _ => self.wait(silent_until, true).await,
            };
            if Instant::now() >= silent_until {
                return Some(comment("still here"));
            }
        }
    }

    fn last(&mut self, text: Bytes) -> Option<Bytes> {
        self.stage = Stage::Over;
        Some(text)
    }

    /// What stands behind the cursor; none if it cannot be read now.
    async fn more(&mut self) -> Option<Bytes> {
        let page = self.channel.page(self.cursor).await.ok();
        let Some((page, last)) = page.and_then(|page| page.last().map(|last| (page, last))) else {
            self.failing_since.get_or_insert_with(Instant::now);
            return None;
        };
        self.failing_since = None;
        let text = page.rest(self.cursor, &self.types);
        self.cursor = Some(last);
        Some(text)
    }

    fn has_failed_for_long(&self) -> bool {
        self.failing_since.is_some_and(|since| since.elapsed() >= self.patience)
    }

    /// Until something may be otherwise; `for_more`: also because there is more to hear.
    async fn wait(&mut self, until: Instant, for_more: bool) {
        let Self { reached, ending, is_over, .. } = self;
        // Their senders live as long as we do: none of these ends for any other reason.
        tokio::select! {
            _ = reached.changed(), if for_more => {}
            () = sleep_until(until) => {}
            _ = ending.changed() => {}
            _ = is_over.changed() => {}
        }
    }
}
