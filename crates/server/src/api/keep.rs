//! `Idempotency-Key`: of equal requests under one key only the first is worked on, also when they come at the same time.
//!
//! Answers are kept behind `Face`; here is only who is under way, and what those who waited for him are told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use actum_api::error;
use actum_api::route::Route;
use axum::http::{HeaderMap, HeaderName};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::{Answer, Caller, Face, Given};
use crate::bridge::Refused;
use crate::fields::bad;

pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const KEY_CHARS_MAX: usize = 200;

/// The key of a request, if it has one and needs it: where nothing is made, doing it twice is doing it once.
pub(crate) fn key_in(headers: &HeaderMap, route: &Route) -> Result<Option<String>, Refused> {
    let mut keys = headers.get_all(HEADER).iter();
    let Some(key) = keys.next().filter(|_| route.creates) else { return Ok(None) };
    let key = key.to_str().unwrap_or_default();
    let is_plain = !key.is_empty() && key.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if keys.next().is_some() || !is_plain || key.len() > KEY_CHARS_MAX {
        return Err(bad(&format!(
            "`Idempotency-Key` must be one text of 1 to {KEY_CHARS_MAX} printable ASCII characters"
        )));
    }
    Ok(Some(key.to_owned()))
}

/// All that makes a request another one. Each part is led by its length, so that no two requests run into one another.
pub(crate) fn hash(route: &Route, given: &Given) -> String {
    let mut hasher = Sha256::new();
    let mut add = |part: &[u8]| {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    };
    add(route.method.word().as_bytes());
    add(route.path.as_bytes());
    add(&(given.path.len() as u64).to_be_bytes());
    for (name, value) in &given.path {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    add(&(given.query.len() as u64).to_be_bytes());
    for (name, value) in &given.query {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    add(&[u8::from(given.is_json), u8::from(given.wants_text)]);
    add(&given.content);
    hex::encode(hasher.finalize())
}

/// The name of one thing that is to be done once.
fn once((tenant, token, key): &Name, hash: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [tenant, token, key, hash] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

/// Tenant, token, key.
type Name = (String, String, String);
/// What the last one under a key was told, with the hash of his request.
type Told = Option<(String, Answer)>;

#[derive(Default)]
pub(crate) struct UnderWay(Mutex<HashMap<Name, Entry>>);

#[derive(Default)]
struct Entry {
    /// Those under way or waiting.
    number: usize,
    turn: Arc<Turn<Told>>,
}

impl UnderWay {
    /// Waits until nobody else is under way with this key.
    pub(crate) async fn turn(self: &Arc<Self>, caller: &Caller, key: &str) -> Held {
        let name = (caller.tenant.clone(), caller.token.clone(), key.to_owned());
        let turn = {
            let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = names.entry(name.clone()).or_default();
            entry.number += 1;
            Arc::clone(&entry.turn)
        };
        let ticket = Ticket { under_way: Arc::clone(self), name };
        Held { told: turn.lock_owned().await, ticket }
    }
}

/// Forgets the key with the last one who is interested in it, also if he leaves while he waits.
struct Ticket {
    under_way: Arc<UnderWay>,
    name: Name,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut names = self.under_way.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = names.get_mut(&self.name) {
            entry.number -= 1;
            if entry.number == 0 {
                names.remove(&self.name);
            }
        }
    }
}

/// A key, held. The fields go in this order: first what keeps others waiting, then the ticket.
pub(crate) struct Held {
    told: OwnedMutexGuard<Told>,
    ticket: Ticket,
}

impl Held {
    /// Blocking. The answer, and whether it is an earlier one.
    pub(crate) fn answer(
        mut self,
        face: &dyn Face,
        caller: &Caller,
        route: &'static Route,
        given: Given,
    ) -> Result<(Answer, bool), Refused> {
        let key = self.ticket.name.2.clone();
        let hash = hash(route, &given);
        match &*self.told {
            Some((other, answer)) if *other == hash => return Ok((answer.clone(), true)),
            Some(_) => return Err(conflict(&key)),
            None => {}
        }
        if let Some(answer) = face.kept(caller, &key, &hash)? {
            return Ok((answer, true));
        }
        // An answer may be lost before it is kept. What is done under this name is found by it.
        let once = Some(once(&self.ticket.name, &hash));
        let answer = face.answer(caller, route, Given { once, ..given });
        if is_kept(answer.status) {
            face.keep(caller, &key, &hash, &answer);
            *self.told = Some((hash, answer.clone()));
        }
        Ok((answer, false))
    }
}

/// Not what may well be different the next time: what failed on our side, waits for a person, or came too often.
fn is_kept(status: u16) -> bool {
    status < 500 && !matches!(status, 408 | 428 | 429)
}

fn conflict(key: &str) -> Refused {
    let message = "another request was made under this `Idempotency-Key`";
    let hint = "Send the same request again to get the same answer, or use a new key.";
    Refused::named(error::IDEMPOTENCY_CONFLICT, message, &json!({ "key": key }), Some(hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use actum_api::route::{Method, get};
    use axum::http::HeaderValue;
    use std::collections::BTreeMap;

    const ROUTE: Route = Route { method: Method::Post, creates: true, ..get("/v1/runs", &["run"], &[]) };

    fn given() -> Given {
        Given {
            path: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            query: vec![("c".to_owned(), "d".to_owned())],
            content: b"{}".to_vec(),
            is_json: true,
            wants_text: false,
            request_id: "1".to_owned(),
            trace: None,
            once: None,
        }
    }

    #[test]
    fn every_part_of_a_request_counts_but_its_id() {
        let first = hash(&ROUTE, &given());
        assert_eq!(first, hash(&ROUTE, &Given { request_id: "2".to_owned(), ..given() }));
        let query = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let others = [
            hash(&Route { method: Method::Delete, ..ROUTE }, &given()),
            hash(&Route { path: "/v1/tools", ..ROUTE }, &given()),
            hash(&ROUTE, &Given { path: BTreeMap::new(), ..given() }),
            hash(&ROUTE, &Given { path: BTreeMap::from([("ab".to_owned(), String::new())]), ..given() }),
            hash(&ROUTE, &Given { query: query(&[]), ..given() }),
            hash(&ROUTE, &Given { query: query(&[("cd", "")]), ..given() }),
            hash(&ROUTE, &Given { query: query(&[("c", "d"), ("c", "d")]), ..given() }),
            hash(&ROUTE, &Given { content: b"{} ".to_vec(), ..given() }),
            hash(&ROUTE, &Given { is_json: false, ..given() }),
            hash(&ROUTE, &Given { wants_text: true, ..given() }),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, first, "{index}");
            assert_eq!(others.iter().filter(|hash| *hash == other).count(), 1, "{index}");
        }
    }

    #[test]
    fn keys_are_one_and_printable() {
        let with = |keys: &[&[u8]], route: &Route| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append(HEADER, HeaderValue::from_bytes(key).unwrap());
            }
            key_in(&headers, route)
        };
        assert_eq!(with(&[], &ROUTE), Ok(None));
        assert_eq!(with(&[b"a b\"~"], &ROUTE), Ok(Some("a b\"~".to_owned())));
        assert!(with(&[&[b'x'; KEY_CHARS_MAX]], &ROUTE).is_ok());
        for keys in [&[&b""[..]][..], &[b"a", b"a"], &[b"a\tb"], &[b"\xff"], &[&[b'x'; KEY_CHARS_MAX + 1]]] {
            assert!(with(keys, &ROUTE).is_err(), "{keys:?}");
        }
        assert_eq!(with(&[b"a"], &Route { creates: false, ..ROUTE }), Ok(None));
    }

    #[test]
    fn a_key_is_forgotten_with_the_last_who_wants_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let under_way = Arc::new(UnderWay::default());
            let names = || under_way.0.lock().unwrap().len();
            let caller = Caller { tenant: "t".into(), token: "1".into(), name: String::new(), role: String::new() };
            let first = under_way.turn(&caller, "k").await;
            let other = under_way.turn(&caller, "l").await;
            assert_eq!(names(), 2);
            {
                // Somebody waits, and leaves.
                let second = under_way.turn(&caller, "k");
                tokio::pin!(second);
                assert!(tokio::time::timeout(std::time::Duration::ZERO, second.as_mut()).await.is_err());
            }
            assert_eq!(names(), 2);
            {
                // Somebody waits longer than the first.
                let second = under_way.turn(&caller, "k");
                tokio::pin!(second);
                assert!(tokio::time::timeout(std::time::Duration::ZERO, second.as_mut()).await.is_err());
                drop(first);
                assert_eq!(names(), 2);
                drop(second.await);
            }
            assert_eq!(names(), 1);
            drop(other);
            assert_eq!(names(), 0);
        });
    }
}
