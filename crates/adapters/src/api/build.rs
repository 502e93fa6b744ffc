//! From parameters to a request: values fill places and never change what stands around them.

use actum_contract::tool::{Api, Body, Endpoint};
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::result::{Problem, Stage};

/// Headers that are made of the request itself: another value would make it say something else than it is.
const OWN_HEADERS: [&str; 11] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "authorization",
    "proxy-authorization",
];

/// A request without what signs it.
#[derive(Debug, Clone)]
pub(super) struct Built {
    pub(super) method: String,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Vec<u8>>,
}

/// The request for an operation and its parameters.
pub(super) fn build(api: &Api, operation: Option<&str>, params: &Map<String, Value>) -> Result<Built, Problem> {
    let endpoint = endpoint_of(api, operation)?;
    let mut left: Map<String, Value> = params
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut used = Vec::new();
    let path = path_of(endpoint, params, &mut used)?;
    let text = format!("{}{path}", api.base_url.trim_end_matches('/'));
    let mut url =
        Url::parse(&text).map_err(|e| Problem::new(Stage::Input, format!("base_url and path make no address: {e}")))?;
    let mut pairs = Vec::new();
    for (name, template) in &endpoint.query {
        pairs.extend(query_of(template, params, &mut used)?.into_iter().map(|text| (name.clone(), text)));
    }
    left.retain(|name, _| !used.contains(name));
    let mut headers = headers_of(api)?;
    let is_json = headers.get(CONTENT_TYPE).is_none_or(|value| value.to_str().is_ok_and(|text| text.contains("json")));
    let takes_body = !["GET", "HEAD", "DELETE"].contains(&endpoint.method.as_str());
    let body = match &endpoint.body {
        Some(Body::None) => None,
        Some(Body::Parameter(name)) => {
            let message = format!("parameter {name} is missing: it is the body of the request");
            let value = left.remove(name).ok_or_else(|| Problem::at(Stage::Input, name, message))?;
            Some(match value {
                Value::String(text) if !is_json => text.into_bytes(),
                other => other.to_string().into_bytes(),
            })
        }
        None if takes_body => Some(Value::Object(std::mem::take(&mut left)).to_string().into_bytes()),
        None => None,
    };
    if body.is_some() && !headers.contains_key(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in &left {
        pairs.extend(texts_of(value).into_iter().map(|text| (name.clone(), text)));
    }
    if !pairs.is_empty() {
        url.query_pairs_mut().extend_pairs(pairs);
    }
    Ok(Built { method: endpoint.method.clone(), url, headers, body })
}

/// The endpoint of an operation; one that is the only one needs no name.
pub(super) fn endpoint_of<'a>(api: &'a Api, operation: Option<&str>) -> Result<&'a Endpoint, Problem> {
    let names = || api.endpoints.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match operation {
        Some(name) => api
            .endpoints
            .get(name)
            .ok_or_else(|| Problem::new(Stage::Input, format!("operation {name} is not known; there are {}", names()))),
        None => {
            api.endpoints.values().next().filter(|_| api.endpoints.len() == 1).ok_or_else(|| {
                Problem::new(Stage::Input, format!("which operation is not said; there are {}", names()))
            })
        }
    }
}

/// Pieces between places, and places: text, name, text, name, … text.
fn split(template: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut texts, mut names) = (Vec::new(), Vec::new());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        texts.push(before);
        names.push(name);
        rest = after;
    }
    texts.push(rest);
    (texts, names)
}

fn path_of(endpoint: &Endpoint, params: &Map<String, Value>, used: &mut Vec<String>) -> Result<String, Problem> {
    let mut segments = Vec::new();
    for segment in endpoint.path.split('/') {
        let (texts, names) = split(segment);
        let mut filled = texts.first().copied().unwrap_or_default().to_owned();
        for (name, text) in names.iter().zip(texts.iter().skip(1)) {
            let wrong = |why: &str| Problem::at(Stage::Input, *name, format!("parameter {name} {why}"));
            let value = match params.get(*name) {
                None | Some(Value::Null) => return Err(wrong("is missing: it is part of the path")),
                Some(value) => {
                    scalar(value).ok_or_else(|| wrong("cannot be part of a path: it is no text or number"))?
                }
            };
            if value.is_empty() {
                return Err(wrong("is empty: it is part of the path, which would lead elsewhere"));
            }
            filled.push_str(&encode(&value));
            filled.push_str(text);
            used.push((*name).to_owned());
        }
        // Readers of addresses take these for the way up, however they are written.
        if !names.is_empty() && [".", ".."].contains(&filled.replace("%2E", ".").as_str()) {
            let name = names.first().copied().unwrap_or_default();
            let message = format!("parameter {name} is {filled:?}, which would change the path");
            return Err(Problem::at(Stage::Input, name, message));
        }
        segments.push(filled);
    }
    Ok(segments.join("/"))
}

/// Everything but letters, digits and `-_.~` by its bytes.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// A value as it stands in a query: a list several times, anything else that is no text as JSON.
fn texts_of(value: &Value) -> Vec<String> {
    let one = |value: &Value| scalar(value).unwrap_or_else(|| value.to_string());
    match value {
        Value::Array(items) => items.iter().map(one).collect(),
        other => vec![one(other)],
    }
}

/// What stands behind a name of the query; nothing where a parameter is missing.
fn query_of(template: &str, params: &Map<String, Value>, used: &mut Vec<String>) -> Result<Vec<String>, Problem> {
    let (texts, names) = split(template);
    used.extend(names.iter().map(|name| (*name).to_owned()));
    let given = |name: &str| params.get(name).filter(|value| !value.is_null());
    if let ([name], ["", ""]) = (names.as_slice(), texts.as_slice()) {
        return Ok(given(name).map(texts_of).unwrap_or_default());
    }
    let mut filled = texts.first().copied().unwrap_or_default().to_owned();
    for (name, text) in names.iter().zip(texts.iter().skip(1)) {
        let Some(value) = given(name) else { return Ok(Vec::new()) };
        let message = format!("parameter {name} cannot stand inside a text of the query: it is no text or number");
        filled.push_str(&scalar(value).ok_or_else(|| Problem::at(Stage::Input, *name, message))?);
        filled.push_str(text);
    }
    Ok(vec![filled])
}

fn headers_of(api: &Api) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    for (name, value) in &api.headers {
        let bad = |why: &str| Problem::new(Stage::Input, format!("header {name} of the adapter {why}"));
        if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(bad("is made of the request itself; leave it out"));
        }
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("is no name of a header"))?;
        headers.insert(key, HeaderValue::from_str(value).map_err(|_| bad("has no value of one line"))?);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use actum_contract::tool::Auth;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn built(method: &str, path: &str, body: Option<Body>, params: Value) -> Result<Built, Problem> {
        let query = BTreeMap::from([("q".to_owned(), "{query}".to_owned()), ("n".to_owned(), "5".to_owned())]);
        let query = if path.contains("find") { query } else { BTreeMap::new() };
        let endpoint = Endpoint { method: method.into(), path: path.into(), query, body };
        let api = Api {
            base_url: "https://api.test/v1/".into(),
            auth: Auth::None,
            headers: BTreeMap::new(),
            endpoints: BTreeMap::from([("it".to_owned(), endpoint)]),
        };
        build(&api, Some("it"), params.as_object().unwrap())
    }

    fn url(path: &str, params: Value) -> String {
        built("GET", path, None, params).unwrap().url.to_string()
    }

    #[test]
    fn a_value_never_changes_the_path() {
        let at = |id: &str| url("/things/{id}/parts", json!({"id": id}));
        assert_eq!(at("a/b"), "https://api.test/v1/things/a%2Fb/parts");
        assert_eq!(at("../../x"), "https://api.test/v1/things/..%2F..%2Fx/parts");
        assert_eq!(at("a?b#c"), "https://api.test/v1/things/a%3Fb%23c/parts");
        assert_eq!(at("%2e%2e"), "https://api.test/v1/things/%252e%252e/parts");
        assert_eq!(at("a\\b ü"), "https://api.test/v1/things/a%5Cb%20%C3%BC/parts");
        assert_eq!(url("/f/{n}.json", json!({"n": ".."})), "https://api.test/v1/f/...json");
        for id in ["..", ".", ""] {
            let wrong = built("GET", "/things/{id}/parts", None, json!({"id": id})).unwrap_err();
            assert_eq!((wrong.stage, wrong.path.as_deref()), (Stage::Input, Some("id")), "{id:?}");
        }
        for params in [json!({}), json!({"id": null}), json!({"id": [1]})] {
            assert_eq!(built("GET", "/x/{id}", None, params).unwrap_err().path.as_deref(), Some("id"));
        }
        assert!(built("GET", "/x/{a}{b}", None, json!({"a": ".", "b": "."})).is_err());
    }

    #[test]
    fn what_is_left_goes_where_it_belongs() {
        assert_eq!(
            url("/find", json!({"query": "a b&c", "more": [1, true], "no": null})),
            "https://api.test/v1/find?n=5&q=a+b%26c&more=1&more=true"
        );
        assert_eq!(url("/find", json!({})), "https://api.test/v1/find?n=5");
        let post = built("POST", "/things/{id}", None, json!({"id": 7, "a": {"b": 1}})).unwrap();
        assert_eq!(
            (post.url.as_str(), post.body.as_deref()),
            ("https://api.test/v1/things/7", Some(&b"{\"a\":{\"b\":1}}"[..]))
        );
        assert_eq!(post.headers[CONTENT_TYPE], "application/json");
        let alone = built("PUT", "/x", Some(Body::Parameter("all".into())), json!({"all": [1], "v": 2})).unwrap();
        assert_eq!((alone.url.as_str(), alone.body.as_deref()), ("https://api.test/v1/x?v=2", Some(&b"[1]"[..])));
        assert!(built("PUT", "/x", Some(Body::Parameter("all".into())), json!({})).is_err());
        assert_eq!(built("POST", "/x", Some(Body::None), json!({})).unwrap().body, None);
        assert_eq!(built("DELETE", "/x", None, json!({"a": 1})).unwrap().url.query(), Some("a=1"));
    }

    #[test]
    fn operations_and_headers() {
        let mut api = Api {
            base_url: "https://a.test".into(),
            auth: Auth::None,
            headers: BTreeMap::new(),
            endpoints: BTreeMap::new(),
        };
        for name in ["a", "b"] {
            let endpoint = Endpoint { method: "GET".into(), path: "/".into(), query: BTreeMap::new(), body: None };
            api.endpoints.insert(name.into(), endpoint);
        }
        assert!(build(&api, None, &Map::new()).unwrap_err().message.contains("a, b"));
        assert!(build(&api, Some("c"), &Map::new()).unwrap_err().message.contains("operation c is not known"));
        api.endpoints.remove("b");
        assert!(build(&api, None, &Map::new()).is_ok());
        for name in ["Host", "content-length", "Transfer-Encoding"] {
            api.headers = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
            assert!(build(&api, None, &Map::new()).is_err(), "{name}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_leads_elsewhere(id in proptest::prelude::any::<String>(), name in "[./%\\\\2eE?#@:]{1,6}") {
            for text in [&id, &name] {
                let Ok(built) = built("GET", "/a/{id}/b", None, json!({"id": text, "id2": text})) else {
                    assert!(["", ".", ".."].contains(&text.as_str()), "{text:?}");
                    continue;
                };
                let segments: Vec<&str> = built.url.path_segments().unwrap().collect();
                assert!(matches!(segments[..], ["v1", "a", _, "b"]), "{text:?}: {segments:?}");
                assert_eq!((built.url.host_str(), built.url.fragment()), (Some("api.test"), None));
                let sent: Vec<(String, String)> = built.url.query_pairs().into_owned().collect();
                assert_eq!(sent, [("id2".to_owned(), text.clone())]);
            }
        }
    }
}
