//! What signs a request: a key, a token, or a token that is fetched for a client's own secret. Values are kept in memory only
//! and shown to nobody but whom they are meant for.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use actum_contract::digest::Digest;
use actum_contract::tool::Auth;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::result::{Problem, Stage};

/// Tokens that are kept at a time.
const TOKENS_MAX: usize = 64;

/// So long before its end a token is not used any more.
const SLACK: Duration = Duration::from_secs(30);

/// How long a token lasts of which nobody says it.
const USUAL_LIFE: Duration = Duration::from_secs(300);

/// Nobody keeps a token longer, whatever is said of it.
const LIFE_MAX: Duration = Duration::from_secs(24 * 3600);

const USUAL_KEY_HEADER: &str = "X-Api-Key";

/// What is added to a request.
#[derive(Clone, Default)]
pub(super) struct Signature {
    header: Option<(HeaderName, HeaderValue)>,
    query: Option<(String, String)>,
}

impl Signature {
    /// The signature that needs nothing fetched; a token, once it was fetched, signs as one that was given.
    pub(super) fn of(auth: &Auth, secrets: &BTreeMap<String, String>) -> Result<Self, Problem> {
        match auth {
            Auth::None => Ok(Self::default()),
            Auth::ApiKey { header, query: Some(name) } => {
                let query = Some((name.clone(), secret(secrets, "api_key")?.to_owned()));
                // Where both are named, both are sent.
                let header = header.as_ref().map(|name| by_header(name, "", secrets, "api_key")).transpose()?;
                Ok(Self { header, query })
            }
            Auth::ApiKey { header, query: None } => {
                let name = header.as_deref().unwrap_or(USUAL_KEY_HEADER);
                Ok(Self { header: Some(by_header(name, "", secrets, "api_key")?), query: None })
            }
            Auth::Bearer | Auth::OAuth { .. } => {
                Ok(Self { header: Some(by_header(AUTHORIZATION.as_str(), "Bearer ", secrets, "token")?), query: None })
            }
        }
    }

    pub(super) fn add_to(&self, url: &mut Url, headers: &mut HeaderMap) {
        if let Some((name, value)) = &self.header {
            headers.insert(name.clone(), value.clone());
        }
        if let Some((name, value)) = &self.query
            && !url.query_pairs().any(|(known, _)| known == name.as_str())
        {
            url.query_pairs_mut().append_pair(name, value);
        }
    }
}

fn secret<'a>(secrets: &'a BTreeMap<String, String>, key: &str) -> Result<&'a str, Problem> {
    secrets.get(key).map(String::as_str).filter(|value| !value.is_empty()).ok_or_else(|| {
        Problem::new(Stage::Call, format!("the secret {key} is missing: name where it is under `secrets` of the tool"))
    })
}

fn by_header(
    name: &str,
    before: &str,
    secrets: &BTreeMap<String, String>,
    key: &str,
) -> Result<(HeaderName, HeaderValue), Problem> {
    let bad = |message: String| Problem::new(Stage::Call, message);
    let header =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(format!("{name:?} is no name of a header")))?;
    let mut value = HeaderValue::from_str(&format!("{before}{}", secret(secrets, key)?))
        .map_err(|_| bad(format!("the secret {key} cannot stand in a header: it has a line break in it")))?;
    value.set_sensitive(true);
    Ok((header, value))
}

/// A question for a token.
pub(super) struct Question<'a> {
    pub(super) url: &'a str,
    client_id: &'a str,
    client_secret: &'a str,
    scope: Option<&'a str>,
}

impl<'a> Question<'a> {
    /// Nothing if no token has to be fetched.
    pub(super) fn of(auth: &'a Auth, secrets: &'a BTreeMap<String, String>) -> Result<Option<Self>, Problem> {
        let Auth::OAuth { token_url, scope } = auth else { return Ok(None) };
        Ok(Some(Self {
            url: token_url,
            client_id: secret(secrets, "client_id")?,
            client_secret: secret(secrets, "client_secret")?,
            scope: scope.as_deref(),
        }))
    }

    /// What is sent, as a form.
    pub(super) fn form(&self) -> String {
        let mut pairs = vec![
            ("grant_type", "client_credentials"),
            ("client_id", self.client_id),
            ("client_secret", self.client_secret),
        ];
        pairs.extend(self.scope.map(|scope| ("scope", scope)));
        // The writer of queries is the writer of forms.
        let mut writer = Url::parse("form://x").ok();
        if let Some(url) = &mut writer {
            url.query_pairs_mut().extend_pairs(pairs);
        }
        writer.as_ref().and_then(Url::query).unwrap_or_default().to_owned()
    }

    fn key(&self) -> Digest {
        let parts = [self.url, self.client_id, self.client_secret, self.scope.unwrap_or_default()];
        let lengths = parts.map(|part| (part.len() as u64).to_be_bytes());
        let all: Vec<&[u8]> =
            lengths.iter().zip(&parts).flat_map(|(length, part)| [length.as_slice(), part.as_bytes()]).collect();
        Digest::sha256_parts(&all)
    }
}

/// Tokens that were fetched, by what was asked.
#[derive(Default)]
pub(super) struct Tokens(Mutex<BTreeMap<Digest, (String, Instant)>>);

impl Tokens {
    pub(super) fn find(&self, question: &Question<'_>) -> Option<String> {
        let tokens = self.0.lock().ok()?;
        tokens.get(&question.key()).filter(|(_, end)| *end > Instant::now()).map(|(token, _)| token.clone())
    }

    pub(super) fn forget(&self, question: &Question<'_>) {
        if let Ok(mut tokens) = self.0.lock() {
            tokens.remove(&question.key());
        }
    }

    /// Reads an answer, and keeps the token in it.
    pub(super) fn take(&self, question: &Question<'_>, answer: &[u8]) -> Result<String, Problem> {
        let bad = |what: &str| Problem::new(Stage::Call, format!("the answer to the question for a token {what}"));
        let answer: Value = serde_json::from_slice(answer).map_err(|_| bad("is no JSON"))?;
        let token = answer.get("access_token").and_then(Value::as_str).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| bad("has no access_token"))?;
        let kind = answer.get("token_type").and_then(Value::as_str).unwrap_or("bearer");
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err(bad("is a token of another type; only bearer can be sent"));
        }
        let life = match answer.get("expires_in") {
            Some(Value::String(text)) => text.parse().ok(),
            Some(other) => other.as_u64(),
            None => None,
        };
        let life = life.map_or(USUAL_LIFE, Duration::from_secs).min(LIFE_MAX).saturating_sub(SLACK);
        if let Ok(mut tokens) = self.0.lock() {
            let now = Instant::now();
            tokens.retain(|_, (_, end)| *end > now);
            if tokens.len() < TOKENS_MAX && !life.is_zero() {
                tokens.insert(question.key(), (token.to_owned(), now + life));
            }
        }
        Ok(token.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_secret_is_named_and_no_value_is_told() {
        let none = BTreeMap::new();
        let with = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let key = Auth::ApiKey { header: None, query: None };
        for (auth, name) in [(&key, "api_key"), (&Auth::Bearer, "token")] {
            assert!(Signature::of(auth, &none).err().unwrap().message.contains(name));
        }
        let oauth = Auth::OAuth { token_url: "https://a.test/token".into(), scope: None };
        assert!(Question::of(&oauth, &with("client_id", "x")).err().unwrap().message.contains("client_secret"));
        let broken = Signature::of(&key, &with("api_key", "hunter2\nX: y")).err().unwrap().message;
        assert!(broken.contains("line break") && !broken.contains("hunter2"), "{broken}");
    }

    #[test]
    fn tokens_are_kept_until_shortly_before_their_end() {
        let auth = Auth::OAuth { token_url: "https://a.test/token".into(), scope: Some("a b".into()) };
        let secrets: BTreeMap<String, String> =
            [("client_id", "me"), ("client_secret", "p&=1")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let question = Question::of(&auth, &secrets).unwrap().unwrap();
        assert_eq!(question.form(), "grant_type=client_credentials&client_id=me&client_secret=p%26%3D1&scope=a+b");
        let tokens = Tokens::default();
        for (answer, is_kept) in [
            (r#"{"access_token": "t", "expires_in": 3600}"#, true),
            (r#"{"access_token": "t", "expires_in": "3600"}"#, true),
            (r#"{"access_token": "t"}"#, true),
            (r#"{"access_token": "t", "expires_in": 30}"#, false),
            (r#"{"access_token": "t", "expires_in": 18446744073709551615, "token_type": "Bearer"}"#, true),
        ] {
            assert_eq!(tokens.take(&question, answer.as_bytes()).unwrap(), "t");
            assert_eq!(tokens.find(&question).is_some(), is_kept, "{answer}");
            tokens.forget(&question);
        }
        for answer in ["", "{}", r#"{"access_token": 1}"#, r#"{"access_token": "t", "token_type": "mac"}"#] {
            assert!(tokens.take(&question, answer.as_bytes()).is_err(), "{answer}");
        }
    }
}
