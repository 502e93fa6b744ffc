//! Asking providers of models: one connection pool, one set of timeouts and one circuit breaker for each. The gateway and
//! the strategies hand over what `predict::protocol` made, and read the answer piece by piece.
//!
//! Runs on the runtime of whoever calls, and spawns nothing. Decides nothing about who may ask, and knows no prices. The
//! address is the operator's word, so that it may well be one of this machine.

mod breaker;
mod incoming;
mod target;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use actum_contract::execution::Redactor;
use actum_contract::tool::Retry;
use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Client, Response, Url};
use tokio::time::{sleep, timeout_at};

use crate::api::{chain, retry_after_ms};
use crate::retry::delay_ms;
use breaker::{Breaker, Ticket};

pub use incoming::{Broken, Incoming};
pub use target::{Auth, BadTarget, Target};

/// Answers that are worth asking again: the provider says itself that it has not done it.
const PASSING: [u16; 4] = [429, 500, 503, 529];

/// Answers by which somebody on the way has given up waiting. The provider may have done it, and may still be at it.
const fn is_doubtful(status: u16) -> bool {
    // From 520 on they are those of networks before a provider; 529 is a provider's own.
    matches!(status, 408 | 499 | 502 | 504 | 520..=528 | 530..=599)
}

/// Headers of a caller that are passed on; all others are between him and us.
pub const HEADERS_PASSED: [&str; 3] = ["anthropic-version", "anthropic-beta", "openai-beta"];

/// Where a caller asks Anthropic for what is not in general use.
const ANTHROPIC_BETA: &str = "anthropic-beta";

/// How entries of it begin that change the price. The table of prices knows nothing of them.
const DEARER_BETAS: [&str; 2] = ["context-1m", "fast-mode"];

/// The version that Anthropic is asked for if the caller names none.
const ANTHROPIC_VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Longest wait between two attempts, whoever asks for it.
const DELAY_MAX: Duration = Duration::from_secs(20);

const FIRST_DELAY: Duration = Duration::from_millis(500);

/// How long a breaker stays open.
const OPEN_FOR: Duration = Duration::from_secs(30);

/// How long an idle connection is kept. Shorter than the servers at hand keep theirs: a question that meets a connection
/// just being closed has an unknown outcome.
const IDLE_FOR: Duration = Duration::from_secs(4);

/// A provider, ready to be asked by many at once.
pub struct Upstream {
    target: Target,
    base: Url,
    client: Client,
    /// What is sent with every question; the key among them.
    headers: HeaderMap,
    redactor: Redactor,
    breaker: Arc<Breaker>,
    first_delay: Duration,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("target", &self.target).field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// Nothing can have been spent.
    #[error("the question was never sent: {0}")]
    NeverSent(String),
    /// It was sent, and nothing came back: what it has cost has to be reconciled.
    #[error("the question was sent and not answered: {0}")]
    Unknown(String),
    /// The provider has failed too often of late; nothing was sent.
    #[error("the provider has failed several times in a row; ask again in {for_ms} ms")]
    CircuitOpen { for_ms: u64 },
}

impl Upstream {
    /// `extra_roots`: certificates in PEM that are trusted besides those of the platform.
    pub fn new(target: Target, extra_roots: Option<&[u8]>) -> Result<Self, BadTarget> {
        // Whoever was first has chosen the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let roots = extra_roots.map(Certificate::from_pem_bundle).transpose().map_err(|_| BadTarget::Roots)?;
        if roots.as_ref().is_some_and(Vec::is_empty) {
            return Err(BadTarget::Roots);
        }
        let base = target.base()?;
        let mut headers = target.signed()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Bytes are passed on as they come, and counted.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let client = client(&target, &roots.unwrap_or_default()).map_err(|e| BadTarget::Client(chain(e)))?;
        let redactor = Redactor::new(target.secrets());
        let breaker = Arc::new(Breaker::new(OPEN_FOR));
        Ok(Self { target, base, client, headers, redactor, breaker, first_delay: FIRST_DELAY })
    }

    /// With other times than ours, for whoever cannot wait.
    #[must_use]
    pub fn paced(self, open_for: Duration, first_delay: Duration) -> Self {
        Self { breaker: Arc::new(Breaker::new(open_for)), first_delay, ..self }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Asks, and asks again where that cannot spend twice by our doing: when nobody was reached, and when the provider
    /// says itself that it could not. Never when a question was sent and nothing came back, or nothing but the word of
    /// somebody who gave up waiting. The last answer is handed on as it is. `headers`: of the caller; only those of `HEADERS_PASSED` are sent.
    pub async fn send(
        &self,
        path: &str,
        body: Bytes,
        idempotency_key: &str,
        headers: &[(String, String)],
    ) -> Result<Incoming, Failed> {
        let url = self.url(path)?;
        let headers = self.headers(idempotency_key, headers)?;
        let ticket = Breaker::admit(&self.breaker).map_err(|for_ms| Failed::CircuitOpen { for_ms })?;
        let deadline = Instant::now() + Duration::from_millis(self.target.total_ms);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let went = self.attempt(&url, body.clone(), headers.clone(), deadline).await;
            let hint = match &went {
                Went::Answered(response) if PASSING.contains(&response.status().as_u16()) => hint(response),
                Went::Answered(_) | Went::Lost(_) => return self.told(went, ticket, attempt, &url, deadline),
                Went::Unreached { is_hopeless: true, .. } => return self.told(went, ticket, attempt, &url, deadline),
                Went::Unreached { .. } => None,
            };
            let delay = self.delay(idempotency_key, attempt, hint);
            // What is cut off while it connects would count as sent.
            let soonest = Instant::now() + delay + Duration::from_millis(self.target.connect_ms);
            if attempt >= self.target.attempts_max || soonest >= deadline {
                return self.told(went, ticket, attempt, &url, deadline);
            }
            drop(went);
            sleep(delay).await;
        }
    }

    /// Asks once.
    async fn attempt(&self, url: &Url, body: Bytes, headers: HeaderMap, deadline: Instant) -> Went {
        // Connecting has its own time, and ends before this does: whoever runs into this one was sent something.
        let within = Duration::from_millis(self.target.connect_ms.saturating_add(self.target.answer_ms));
        let until = deadline.min(Instant::now() + within);
        let asking = self.client.post(url.clone()).headers(headers).body(body).send();
        match timeout_at(until.into(), asking).await {
            Ok(Ok(response)) => Went::Answered(response),
            Ok(Err(e)) if e.is_connect() || e.is_builder() => {
                let is_builder = e.is_builder();
                let why = chain(e);
                let is_hopeless = is_builder || why.contains("certificate");
                Went::Unreached { why, is_hopeless }
            }
            Ok(Err(e)) => Went::Lost(chain(e)),
            Err(_) => Went::Lost(format!("no answer within {} ms", within.as_millis())),
        }
    }

    /// How it ended, with what the breaker has to know.
    fn told(
        &self,
        went: Went,
        ticket: Ticket,
        attempts: u32,
        url: &Url,
        deadline: Instant,
    ) -> Result<Incoming, Failed> {
        let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
        let clean = |why: &str| {
            let text = format!("{place}: {why}");
            String::from_utf8_lossy(&self.redactor.redact_values(text.as_bytes()).0).into_owned()
        };
        match went {
            Went::Answered(response) if is_doubtful(response.status().as_u16()) => {
                ticket.failed();
                let status = response.status().as_u16();
                Err(Failed::Unknown(format!("the provider answered {status}: whether it was done is not known")))
            }
            Went::Answered(response) => {
                if response.status().is_server_error() {
                    ticket.failed();
                    return Ok(Incoming::new(response, None, attempts, &self.target, place, deadline));
                }
                Ok(Incoming::new(response, Some(ticket), attempts, &self.target, place, deadline))
            }
            Went::Unreached { why, .. } => {
                ticket.failed();
                Err(Failed::NeverSent(clean(&why)))
            }
            Went::Lost(why) => {
                ticket.failed();
                Err(Failed::Unknown(clean(&why)))
            }
        }
    }

    fn delay(&self, idempotency_key: &str, attempt: u32, hint: Option<Duration>) -> Duration {
        let own = || {
            let backoff_ms = u64::try_from(self.first_delay.as_millis()).unwrap_or(u64::MAX);
            let retry = Retry { max_attempts: u64::from(attempt), backoff_ms, retryable_codes: Vec::new() };
            let delay = delay_ms(&retry, idempotency_key, u64::from(attempt), None);
            delay.map_or(DELAY_MAX, Duration::from_millis)
        };
        hint.unwrap_or_else(own).min(DELAY_MAX)
    }

    /// Below the base, and nowhere else.
    fn url(&self, path: &str) -> Result<Url, Failed> {
        let bad =
            || Failed::NeverSent(format!("{:?} is no path of a provider", path.split('?').next().unwrap_or_default()));
        let base = self.base.as_str().trim_end_matches('/');
        let url = Url::parse(&format!("{base}/{}", path.trim_start_matches('/'))).map_err(|_| bad())?;
        let is_below = url.origin() == self.base.origin()
            && url.path().starts_with(self.base.path().trim_end_matches('/'))
            && !path.contains("..")
            && !path.contains(['\\', '#', '@'])
            && path.len() <= target::URL_BYTES_MAX;
        if is_below { Ok(url) } else { Err(bad()) }
    }

    fn headers(&self, idempotency_key: &str, of_caller: &[(String, String)]) -> Result<HeaderMap, Failed> {
        let bad = |name: &str| Failed::NeverSent(format!("the header {name} cannot be sent as it is"));
        let mut headers = self.headers.clone();
        for known in HEADERS_PASSED {
            let mut values =
                of_caller.iter().filter(|(name, _)| name.eq_ignore_ascii_case(known)).map(|(_, value)| value);
            let text = match known {
                name if name == ANTHROPIC_VERSION.0 => values.next_back().cloned(),
                // Lists, which may come in several lines.
                name => {
                    let entries =
                        values.flat_map(|value| value.split(',')).map(|entry| entry.trim_matches([' ', '\t']));
                    let kept: Vec<&str> =
                        entries.filter(|entry| !entry.is_empty() && !is_dearer(name, entry)).collect();
                    Some(kept.join(",")).filter(|text| !text.is_empty())
                }
            };
            if let Some(text) = text {
                let value = HeaderValue::from_str(&text).map_err(|_| bad(known))?;
                headers.insert(HeaderName::from_static(known), value);
            }
        }
        let (name, version) = ANTHROPIC_VERSION;
        if self.target.auth == Auth::XApiKey && !headers.contains_key(name) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(version));
        }
        let key = HeaderValue::from_str(idempotency_key).map_err(|_| bad("idempotency-key"))?;
        headers.insert(HeaderName::from_static("idempotency-key"), key);
        Ok(headers)
    }
}

/// How one attempt went.
#[derive(Debug)]
enum Went {
    Answered(Response),
    Unreached {
        why: String,
        /// It will not be otherwise the next time.
        is_hopeless: bool,
    },
    Lost(String),
}

/// Whether an entry of a header asks for what has another price.
fn is_dearer(header: &str, entry: &str) -> bool {
    let entry = entry.to_ascii_lowercase();
    header == ANTHROPIC_BETA && DEARER_BETAS.iter().any(|begin| entry.starts_with(begin))
}

/// How long the provider asks us to wait.
fn hint(response: &Response) -> Option<Duration> {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let exact = header("retry-after-ms").and_then(|text| text.parse::<f64>().ok()).filter(|ms| *ms >= 0.0);
    if let Some(ms) = exact {
        let bounded = ms.min(DELAY_MAX.as_secs_f64() * 1_000.0);
        return Some(Duration::from_secs_f64(bounded / 1_000.0));
    }
    retry_after_ms(header(RETRY_AFTER.as_str())?, SystemTime::now()).map(Duration::from_millis)
}

fn client(target: &Target, roots: &[Certificate]) -> Result<Client, reqwest::Error> {
    let begun = || {
        Client::builder()
            .no_proxy()
            .referer(false)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .http1_only()
            .tcp_nodelay(true)
            .pool_idle_timeout(IDLE_FOR)
            .connect_timeout(Duration::from_millis(target.connect_ms))
            .user_agent(concat!("actum/", env!("CARGO_PKG_VERSION")))
    };
    // A machine without certificates of its own can still speak plainly, or to whom was named.
    let built = begun().tls_certs_merge(roots.to_vec()).build();
    built.or_else(|_| begun().tls_certs_only(roots.to_vec()).build())
}

#[cfg(test)]
mod tests;
