//! Bringing telemetry to a collector, with the HTTP client that everything else uses. Called by the exporters of the
//! telemetry library on threads of their own; whatever becomes of it, nobody else waits. Never follows a redirect, and
//! keeps nothing of an answer but its first bytes.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use reqwest::Client;
use tokio::runtime::Runtime;

/// So much of an answer is looked at; the rest is left unread.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Posts, how many of them did not get through, and nothing else.
#[derive(Debug, Default)]
pub struct Posts {
    pub sent: AtomicU64,
    pub failed: AtomicU64,
}

/// Where telemetry goes.
#[derive(Debug)]
pub struct Collector {
    timeout: Duration,
    posts: &'static Posts,
    /// Made by the first post, on the exporter's thread: whoever has nothing to send pays for nothing.
    made: OnceLock<Option<(Client, Runtime)>>,
}

impl Collector {
    pub fn new(timeout: Duration, posts: &'static Posts) -> Self {
        Self { timeout, posts, made: OnceLock::new() }
    }

    fn made(&self) -> Option<&(Client, Runtime)> {
        let make = || {
            // Whoever was first has installed the same.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let begun = || {
                Client::builder()
                    .no_proxy()
                    .referer(false)
                    .redirect(reqwest::redirect::Policy::none())
                    .retry(reqwest::retry::never())
                    .http1_only()
                    .timeout(self.timeout)
                    .connect_timeout(self.timeout)
                    .user_agent(concat!("actum/", env!("CARGO_PKG_VERSION")))
            };
            let client = begun().build().or_else(|_| begun().tls_certs_only(Vec::new()).build()).ok()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            Some((client, runtime))
        };
        self.made.get_or_init(make).as_ref()
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, runtime) = self.made().ok_or("no connection can be made here")?;
        let (head, body) = request.into_parts();
        runtime.block_on(async {
            let asked = client.request(head.method, head.uri.to_string()).headers(head.headers).body(body);
            let mut answer = asked.send().await?;
            let (status, headers) = (answer.status(), answer.headers().clone());
            let mut heard = Vec::new();
            while heard.len() < ANSWER_BYTES_MAX
                && let Some(piece) = answer.chunk().await?
            {
                heard.extend_from_slice(&piece[..piece.len().min(ANSWER_BYTES_MAX - heard.len())]);
            }
            let mut response = Response::new(Bytes::from(heard));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            Ok(response)
        })
    }
}

impl HttpClient for Collector {
    fn send_bytes<'a, 'async_trait>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'a: 'async_trait,
        Self: 'async_trait,
    {
        // Blocks: the thread is the exporter's own, and it has nothing else to do.
        Box::pin(async move {
            let posted = self.post(request);
            let is_well = posted.as_ref().is_ok_and(|response| response.status().is_success());
            let counter = if is_well { &self.posts.sent } else { &self.posts.failed };
            counter.fetch_add(1, Ordering::Relaxed);
            posted
        })
    }
}
