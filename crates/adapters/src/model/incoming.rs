//! An answer on its way in. Its head is there; its pieces are read one by one, within the times and the size the operator
//! allows. What they say is read by `predict::protocol`.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::timeout_at;

use super::breaker::Ticket;
use super::hint;
use super::target::Target;
use crate::api::chain;

/// Letters of a header that are told.
const HEADER_CHARS_MAX: usize = 256;

/// An answer whose head has come.
#[derive(Debug)]
pub struct Incoming {
    pub status: u16,
    pub content_type: Option<String>,
    /// What the provider calls this exchange.
    pub request_id: Option<String>,
    pub attempts: u32,
    /// How long the provider asks not to be asked, if it does.
    pub retry_after_ms: Option<u64>,
    response: Response,
    ticket: Option<Ticket>,
    place: String,
    idle: Duration,
    deadline: Instant,
    bytes_left: usize,
    bytes_max: usize,
}

/// Why an answer has no end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the answer of {place} stopped coming: nothing for {idle_ms} ms, or too long in all")]
    TimedOut { place: String, idle_ms: u64 },
    #[error("the answer of {place} broke off: {why}")]
    Lost { place: String, why: String },
    #[error("the answer of {place} is longer than {bytes_max} bytes")]
    TooLarge { place: String, bytes_max: usize },
}

impl Incoming {
    pub(super) fn new(
        response: Response,
        ticket: Option<Ticket>,
        attempts: u32,
        target: &Target,
        place: String,
        deadline: Instant,
    ) -> Self {
        let header = |name: &str| {
            let text = response.headers().get(name)?.to_str().ok()?;
            Some(text.chars().take(HEADER_CHARS_MAX).collect::<String>())
        };
        let request_id = ["request-id", "x-request-id", "x-goog-request-id"].into_iter().find_map(header);
        Self {
            status: response.status().as_u16(),
            content_type: header(CONTENT_TYPE.as_str()),
            request_id,
            attempts,
            retry_after_ms: hint(&response).map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            response,
            ticket,
            place,
            idle: Duration::from_millis(target.idle_ms),
            deadline,
            bytes_left: target.body_bytes_max,
            bytes_max: target.body_bytes_max,
        }
    }

    /// The next piece; nothing: it was the last one.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Broken> {
        let until = self.deadline.min(Instant::now() + self.idle);
        let broken = match timeout_at(until.into(), self.response.chunk()).await {
            Ok(Ok(None)) => {
                if let Some(ticket) = self.ticket.take() {
                    ticket.succeeded();
                }
                return Ok(None);
            }
            Ok(Ok(Some(piece))) if piece.len() <= self.bytes_left => {
                self.bytes_left -= piece.len();
                return Ok(Some(piece));
            }
            Ok(Ok(Some(_))) => {
                // Nobody failed: it was our bound.
                self.bytes_left = 0;
                let _ = self.ticket.take();
                return Err(Broken::TooLarge { place: self.place.clone(), bytes_max: self.bytes_max });
            }
            Ok(Err(e)) => Broken::Lost { place: self.place.clone(), why: chain(e) },
            Err(_) => {
                let idle_ms = u64::try_from(self.idle.as_millis()).unwrap_or(u64::MAX);
                Broken::TimedOut { place: self.place.clone(), idle_ms }
            }
        };
        if let Some(ticket) = self.ticket.take() {
            ticket.failed();
        }
        Err(broken)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Who does not want the rest has no complaint about the provider.
        if let Some(ticket) = self.ticket.take() {
            ticket.succeeded();
        }
    }
}
