//! `/gateway/PROVIDER/…`: models by the protocols of their providers, for whoever has a token that may operate, and paid for by
//! his tenant. Behind the same door as everything else; what is asked goes to the port `Models`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actum_api::error;
use actum_api::route::Need;
use axum::body::{Body, HttpBody as _};
use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde_json::Value;
use tokio::time::Instant;

use super::Caller;
use super::answer::{self, REQUEST_ID, Reply};
use super::door;
use super::line::Record;
use super::request::Desk;
use super::share::Whose;
use crate::bridge::Refused;
use crate::models::{Gate, Models};

/// How a path here begins; the rest is the provider's own.
const PREFIX: &str = "/gateway/";
const PROVIDERS: [&str; 3] = ["openai", "anthropic", "gemini"];
/// Doors that are kept open, one for each token; when there are more, all are made anew as they are asked for.
const GATES_MAX: usize = 1_000;

pub(crate) fn is_here(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// The doors of those who have asked.
#[derive(Default)]
pub(crate) struct Gates(Mutex<BTreeMap<String, Gate>>);

impl Gates {
    fn find(&self, caller: &Caller) -> Option<Gate> {
        self.doors().get(&caller.token).cloned()
    }

    /// The first one that was made for a caller is his. All of them have one room: who has many tokens has no more of it.
    fn keep(&self, caller: &Caller, models: Arc<dyn Models>, patience: Duration) -> Gate {
        let mut gates = self.doors();
        // Whoever was let in has shown his token, and shows no other key.
        let gate = match gates.values().next() {
            Some(other) => other.beside(models),
            None => Gate::new("", models, patience),
        };
        let gate = gate.of(Whose::from(caller));
        if gates.len() >= GATES_MAX {
            gates.clear();
        }
        gates.entry(caller.token.clone()).or_insert(gate).clone()
    }

    fn doors(&self) -> MutexGuard<'_, BTreeMap<String, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when no exchange is under way any more.
    pub(crate) async fn settled(&self) {
        let one = self.doors().values().next().cloned();
        if let Some(gate) = one {
            gate.settled().await;
        }
    }
}

impl Desk {
    pub(crate) async fn relay(
        &self,
        head: &Parts,
        body: Body,
        id: &str,
        record: &mut Record,
    ) -> Result<Response, Reply> {
        self.admit(head)?;
        record.found("/gateway/{provider}");
        if self.is_ending() {
            return Err(answer::ending());
        }
        let uri = own_path(&head.uri).ok_or_else(|| {
            let message = format!("there is nothing at {}", head.uri.path());
            let hint = Some("/gateway/openai/v1/…, /gateway/anthropic/v1/… and /gateway/gemini/v1beta/… are there.");
            Refused::named(error::NOT_FOUND, &message, &Value::Null, hint)
        })?;
        let token = key_in(&head.headers)?;
        let face = Arc::clone(&self.face);
        let entered = self.enters.work(move || {
            let caller = face.enter(&token)?;
            let may = face.may(&caller, Need::Operate);
            Ok::<_, Refused>((caller, may))
        });
        let (caller, may) = match entered.await? {
            Ok(entered) => entered,
            Err(refused) if refused.status == 401 => return Err(answer::unknown()),
            Err(refused) => return Err(refused.into()),
        };
        self.note_caller(head, record, &caller).await?;
        if !may {
            let message = format!("the token's role {:?} may not spend", caller.role);
            return Err(Refused::named(error::FORBIDDEN, &message, &Value::Null, None).into());
        }
        self.pace.take(&caller.token, Instant::now()).map_err(answer::too_often)?;
        let gate = self.gate(&caller).await?;
        let (face, whose, expected) = (Arc::clone(&self.face), caller.clone(), body.size_hint().lower());
        self.enters.work(move || face.admit_question(&whose, expected)).await??;
        let face = Arc::clone(&self.face);
        let note = move |length| face.note_question(&caller, length);
        let mut response = gate.let_in(&head.method, &uri, &head.headers, body, note).await;
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Ours, or looked at when it came.
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        Ok(response)
    }

    async fn gate(&self, caller: &Caller) -> Result<Gate, Reply> {
        if let Some(gate) = self.gates.find(caller) {
            return Ok(gate);
        }
        let (face, whose) = (Arc::clone(&self.face), caller.clone());
        let models = self.enters.work(move || face.models(&whose)).await??;
        Ok(self.gates.keep(caller, models, self.bounds.body))
    }
}

/// Path and query as the provider has them.
fn own_path(uri: &Uri) -> Option<Uri> {
    let (provider, _) = uri.path().strip_prefix(PREFIX)?.split_once('/')?;
    PROVIDERS.contains(&provider).then_some(())?;
    let whole = uri.path_and_query()?.as_str();
    let rest = whole.strip_prefix(PREFIX)?.strip_prefix(provider)?;
    Some(Uri::from(rest.parse::<PathAndQuery>().ok()?))
}

/// The token, in whichever header the client of a provider puts its key; never in the query.
fn key_in(headers: &HeaderMap) -> Result<String, Refused> {
    if headers.contains_key(header::AUTHORIZATION) {
        return door::token_in(headers).map(ToOwned::to_owned);
    }
    let mut keys = ["x-api-key", "x-goog-api-key"].into_iter().flat_map(|name| headers.get_all(name));
    let (Some(key), None) = (keys.next(), keys.next()) else { return Err(door::unknown()) };
    let bearer = HeaderValue::try_from([b"Bearer ", key.as_bytes()].concat()).map_err(|_| door::unknown())?;
    door::token_in(&HeaderMap::from_iter([(header::AUTHORIZATION, bearer)])).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_provider_is_the_providers() {
        let own = |path: &str| own_path(&path.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(own("/gateway/openai/v1/models?x=1").as_deref(), Some("/v1/models?x=1"));
        assert_eq!(own("/gateway/anthropic/v1/messages").as_deref(), Some("/v1/messages"));
        for path in ["/gateway/", "/gateway/openai", "/gateway/other/v1/models", "/v1/models"] {
            assert_eq!(own(path), None, "{path}");
        }
    }

    #[test]
    fn one_key_in_one_place() {
        let key = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_str(value).unwrap());
            }
            key_in(&headers).ok()
        };
        assert_eq!(key(&[("authorization", "Bearer a_b")]).as_deref(), Some("a_b"));
        assert_eq!(key(&[("x-api-key", "a_b")]).as_deref(), Some("a_b"));
        assert_eq!(key(&[("x-goog-api-key", "a_b")]).as_deref(), Some("a_b"));
        // What is in the usual place counts, whatever else there is.
        assert_eq!(key(&[("authorization", "Bearer a"), ("x-api-key", "b")]).as_deref(), Some("a"));
        for pairs in [
            &[][..],
            &[("x-api-key", "a"), ("x-api-key", "b")],
            &[("x-api-key", "a"), ("x-goog-api-key", "b")],
            &[("x-api-key", "a b")],
        ] {
            assert_eq!(key(pairs), None, "{pairs:?}");
        }
    }
}
