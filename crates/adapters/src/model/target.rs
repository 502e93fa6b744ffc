//! Whom an `Upstream` asks, as the operator has said it; keys arrive resolved and are shown nowhere.

use std::fmt;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

/// Longest address of a provider, in bytes.
pub(super) const URL_BYTES_MAX: usize = 2_048;

/// Most attempts that anybody may want.
const ATTEMPTS_MAX: u32 = 10;

/// How a key is shown to a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    Bearer,
    XApiKey,
    GoogApiKey,
    Nothing,
}

impl Auth {
    pub const ALL: [Self; 4] = [Self::Bearer, Self::XApiKey, Self::GoogApiKey, Self::Nothing];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Bearer => "bearer",
            Self::XApiKey => "x-api-key",
            Self::GoogApiKey => "x-goog-api-key",
            Self::Nothing => "none",
        }
    }
}

/// A provider.
#[derive(Clone)]
pub struct Target {
    pub id: String,
    /// OpenAI's ends in `/v1`; those of Anthropic and Google do not.
    pub base_url: String,
    pub auth: Auth,
    pub key: Option<String>,
    /// The operator's own, sent with every question.
    pub headers: Vec<(String, String)>,
    pub connect_ms: u64,
    /// Until the head of the answer, once connected.
    pub answer_ms: u64,
    /// Between two pieces of the answer.
    pub idle_ms: u64,
    /// For all of it, attempts and waiting included.
    pub total_ms: u64,
    pub attempts_max: u32,
    pub body_bytes_max: usize,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Target")
            .field("id", &self.id)
            .field("base_url", &self.base_url)
            .field("auth", &self.auth)
            .field("has_key", &self.key.is_some())
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BadTarget {
    #[error("base_url is no address of http or https without a user, a query or a fragment in it")]
    Url,
    #[error("the header {0} cannot be sent; names have letters, digits and -, values are visible letters")]
    Header(String),
    #[error("the key cannot be sent in a header; look for line ends in it")]
    Key,
    #[error("the provider wants a key and has none; name one")]
    NoKey,
    #[error("{0} is out of range")]
    Range(&'static str),
    #[error("the additional root certificates are no PEM with a certificate in it")]
    Roots,
    #[error("no client can be made: {0}")]
    Client(String),
}

impl Target {
    pub(super) fn base(&self) -> Result<Url, BadTarget> {
        let times = [self.connect_ms, self.answer_ms, self.idle_ms, self.total_ms];
        // A day is longer than anybody waits, and far from where clocks end.
        if times.iter().any(|ms| !(1..=86_400_000).contains(ms)) {
            return Err(BadTarget::Range("a time of the provider, from 1 ms to a day,"));
        }
        if self.total_ms <= self.connect_ms {
            return Err(BadTarget::Range("total_ms, longer than connect_ms,"));
        }
        if !(1..=ATTEMPTS_MAX).contains(&self.attempts_max) {
            return Err(BadTarget::Range("attempts_max, from 1 to 10,"));
        }
        let url = Url::parse(&self.base_url).map_err(|_| BadTarget::Url)?;
        let is_plain = ["http", "https"].contains(&url.scheme())
            && url.host_str().is_some_and(|host| !host.is_empty())
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && self.base_url.len() <= URL_BYTES_MAX;
        if is_plain { Ok(url) } else { Err(BadTarget::Url) }
    }

    /// The headers of every question.
    pub(super) fn signed(&self) -> Result<HeaderMap, BadTarget> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let bad = || BadTarget::Header(name.chars().take(80).collect());
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.append(known, value);
        }
        let (name, text) = match (self.auth, &self.key) {
            (Auth::Nothing, _) => return Ok(headers),
            (_, None) => return Err(BadTarget::NoKey),
            (Auth::Bearer, Some(key)) => (AUTHORIZATION, format!("Bearer {key}")),
            (Auth::XApiKey, Some(key)) => (HeaderName::from_static("x-api-key"), key.clone()),
            (Auth::GoogApiKey, Some(key)) => (HeaderName::from_static("x-goog-api-key"), key.clone()),
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| BadTarget::Key)?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(headers)
    }

    /// What must be seen nowhere.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.key.as_deref().into_iter().chain(self.headers.iter().map(|(_, value)| value.as_str()))
    }
}
