//! Telling others what happened: one delivery of a webhook, signed as Standard Webhooks has it. Called by `cli`, which says whom it
//! may reach; it follows no redirect, reads nothing of an answer but its status, and never tries twice.

use std::time::Duration;

use actum_contract::execution::Network;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use sha2::Sha256;

use crate::api::{Http, chain, wait_for};
use crate::result::Stage;

/// How a secret begins; the rest of it is base64.
pub const SECRET_PREFIX: &str = "whsec_";

/// Something to be delivered.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    pub url: &'a str,
    pub secret: &'a str,
    /// The same however often it is delivered.
    pub id: &'a str,
    /// When it is sent, in seconds since 1970.
    pub at_s: i64,
    pub body: &'a str,
    pub within: Duration,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivered {
    Status(u16),
    /// Nobody answered, or not in time.
    Lost(String),
    /// It may not be sent there.
    Denied(String),
}

/// What stands in `webhook-signature`. None: the secret is none.
pub fn signature(secret: &str, id: &str, at_s: i64, body: &str) -> Option<String> {
    let key = STANDARD.decode(secret.strip_prefix(SECRET_PREFIX)?).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(format!("{id}.{at_s}.{body}").as_bytes());
    Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

/// A secret made of random bytes.
pub fn secret_of(random: &[u8]) -> String {
    format!("{SECRET_PREFIX}{}", STANDARD.encode(random))
}

/// Whom an address leads to; none if it is no plain address of the web.
pub fn host_of(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let is_plain = ["http", "https"].contains(&url.scheme())
        && url.username().is_empty()
        && url.password().is_none()
        && url.fragment().is_none();
    let host = url.host_str().filter(|host| is_plain && !host.is_empty())?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

impl Http {
    /// Delivers once. Blocks whoever calls it.
    pub fn deliver(&self, network: &Network, delivery: &Delivery<'_>) -> Delivered {
        let signed = signature(delivery.secret, delivery.id, delivery.at_s, delivery.body);
        let (Ok(url), Some(signed)) = (Url::parse(delivery.url), signed) else {
            return Delivered::Denied("its address or its secret is none".into());
        };
        let work = async {
            let client = match self.client(network, &url).await.1 {
                Ok(client) => client,
                Err(problem) if problem.stage == Stage::Denied => return Delivered::Denied(problem.message),
                Err(problem) => return Delivered::Lost(problem.message),
            };
            let asked = client
                .post(url.clone())
                .header(CONTENT_TYPE, "application/json")
                .header("webhook-id", delivery.id)
                .header("webhook-timestamp", delivery.at_s.to_string())
                .header("webhook-signature", signed)
                .body(delivery.body.to_owned());
            match asked.send().await {
                Ok(response) => Delivered::Status(response.status().as_u16()),
                // An address may hold a secret of its own.
                Err(e) => Delivered::Lost(chain(e.without_url())),
            }
        };
        let late = || Delivered::Lost(format!("no answer within {} ms", delivery.within.as_millis()));
        let timed = async { tokio::time::timeout(delivery.within, work).await.unwrap_or_else(|_| late()) };
        match wait_for(timed, &|| false) {
            Ok(Some(delivered)) => delivered,
            Ok(None) => late(),
            Err(e) => Delivered::Lost(format!("no connection can be made here: {e}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn deliveries_are_signed_as_the_standard_says() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#);
        let signed = signature(secret, id, 1_614_265_330, body).unwrap();
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_ne!(signature(secret, id, 1_614_265_331, body).unwrap(), signed);
        assert_eq!(signature("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", id, 0, body), None);
        assert_eq!(signature("whsec_%", id, 0, body), None);
        assert_eq!(secret_of(&[0; 3]), "whsec_AAAA");
    }

    #[test]
    fn addresses_are_plain() {
        assert_eq!(host_of("https://Hooks.example:8443/a?b=c").as_deref(), Some("hooks.example:8443"));
        assert_eq!(host_of("http://127.0.0.1/").as_deref(), Some("127.0.0.1"));
        for bad in
            ["", "x", "ftp://a/", "http://u@a/", "http://u:p@a/", "http:///", "https://a/#b", "file:///etc/passwd"]
        {
            assert_eq!(host_of(bad), None, "{bad}");
        }
    }
}
