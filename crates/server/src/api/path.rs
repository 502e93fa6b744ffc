//! Which route a path belongs to, and the arguments in it and in the query.
//!
//! There is one way to write a path: words of a route stand as they are, arguments are decoded once. Whatever could be
//! read in two ways is refused, so that nobody in between takes it for another route than we do.

use std::collections::BTreeMap;

use actum_api::error;
use actum_api::route::{Method, Route};
use serde_json::Value;

use crate::bridge::Refused;
use crate::fields::bad;

/// Arguments in a query.
const QUERY_PAIRS_MAX: usize = 100;

/// A route, with the arguments in its path.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) route: &'static Route,
    pub(crate) args: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Missed {
    /// No route has such a path, or the path is not one.
    Refused(Refused),
    /// There are routes with this path, for these methods.
    Method(Vec<&'static str>),
}

pub(crate) fn find(routes: &'static [Route], method: Option<Method>, path: &str) -> Result<Found, Missed> {
    let segments = segments(path).map_err(|refused| {
        // Where nothing is done by that method it does not matter what the arguments are.
        let raw = path.strip_prefix('/').unwrap_or_default().split('/');
        let raw: Vec<_> = raw.map(|raw| Segment { raw, text: String::new() }).collect();
        let there = there(routes, &raw);
        let is_other = !there.is_empty() && there.iter().all(|route| Some(route.method) != method);
        if is_other { Missed::Method(methods(&there)) } else { Missed::Refused(refused) }
    })?;
    let there = there(routes, &segments);
    match there.iter().find(|route| Some(route.method) == method) {
        Some(route) => Ok(Found { route, args: args(route.path, &segments) }),
        None if there.is_empty() => Err(Missed::Refused(nothing())),
        None => Err(Missed::Method(methods(&there))),
    }
}

/// All that is at a path.
fn there(routes: &'static [Route], segments: &[Segment<'_>]) -> Vec<&'static Route> {
    let mut there: Vec<_> = routes.iter().filter(|route| is_at(route.path, segments)).collect();
    // A word is nearer than an argument, and what is further away is not at this path at all.
    let nearest = there.iter().map(|route| shape(route.path)).min().unwrap_or_default();
    there.retain(|route| shape(route.path) == nearest);
    there
}

/// What may be asked at a path, for `Allow`.
fn methods(there: &[&'static Route]) -> Vec<&'static str> {
    let mut methods = Vec::new();
    for method in [Method::Get, Method::Post, Method::Delete] {
        if there.iter().any(|route| route.method == method) {
            methods.push(method.word());
            if method == Method::Get {
                methods.push("HEAD");
            }
        }
    }
    methods
}

pub(crate) fn nothing() -> Refused {
    let hint = Some("`/openapi.json` lists what there is.");
    Refused::named(error::NOT_FOUND, "there is nothing here", &Value::Null, hint)
}

/// A part of a path: as it was sent, and decoded.
struct Segment<'a> {
    raw: &'a str,
    text: String,
}

fn segments(path: &str) -> Result<Vec<Segment<'_>>, Refused> {
    let rest = path.strip_prefix('/').ok_or_else(nothing)?;
    rest.split('/').map(segment).collect()
}

fn segment(raw: &str) -> Result<Segment<'_>, Refused> {
    if raw.is_empty() {
        return Err(nothing());
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%".contains(&byte);
    if !raw.bytes().all(is_plain) {
        return Err(bad("the path holds a character that has to be written as `%XX`"));
    }
    let text = decode(raw).ok_or_else(|| bad("the path is not UTF-8 written as `%XX`"))?;
    if text == "." || text == ".." {
        return Err(bad("a path goes down only"));
    }
    if text.chars().any(char::is_control) {
        return Err(bad("the path holds a control character"));
    }
    if text.contains('%') && decode(&text).is_some_and(|again| again != text) {
        return Err(bad("the path is encoded twice"));
    }
    Ok(Segment { raw, text })
}

fn words(template: &str) -> impl Iterator<Item = &str> {
    template.strip_prefix('/').unwrap_or(template).split('/')
}

/// The argument that a word of a template stands for.
fn arg(word: &str) -> Option<&str> {
    word.strip_prefix('{')?.strip_suffix('}')
}

fn is_at(template: &str, segments: &[Segment<'_>]) -> bool {
    let mut number = 0;
    for word in words(template) {
        // As it was sent: a word that is written in another way is another word.
        if !segments.get(number).is_some_and(|segment| arg(word).is_some() || segment.raw == word) {
            return false;
        }
        number += 1;
    }
    number == segments.len()
}

/// Smaller is nearer: words before arguments, from the left.
fn shape(template: &str) -> Vec<bool> {
    words(template).map(|word| arg(word).is_some()).collect()
}

fn args(template: &str, segments: &[Segment<'_>]) -> BTreeMap<String, String> {
    let pairs = words(template).zip(segments);
    pairs.filter_map(|(word, segment)| arg(word).map(|name| (name.to_owned(), segment.text.clone()))).collect()
}

/// The members of a query, in their order.
pub(crate) fn query(text: &str) -> Result<Vec<(String, String)>, Refused> {
    let mut pairs = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        if pairs.len() == QUERY_PAIRS_MAX {
            return Err(bad(&format!("more than {QUERY_PAIRS_MAX} members of the query")));
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let part = |part: &str| decode(&part.replace('+', " ")).filter(|text| !text.contains('\0'));
        match (part(name), part(value)) {
            (Some(name), Some(value)) if !name.is_empty() => pairs.push((name, value)),
            _ => return Err(bad("the query is not of the form `name=value&name=value`, in UTF-8 written as `%XX`")),
        }
    }
    Ok(pairs)
}

/// None if it is not well encoded, or not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit()? << 4 | digit()?
            }
            _ => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use actum_api::client::encode;
    use actum_api::route::get;
    use proptest::prelude::*;

    const fn route(method: Method, path: &'static str) -> Route {
        Route { method, ..get(path, &[], &[]) }
    }

    const ROUTES: &[Route] = &[
        route(Method::Get, "/v1/runs"),
        route(Method::Post, "/v1/runs"),
        route(Method::Get, "/v1/runs/{run}"),
        route(Method::Post, "/v1/pointers/{signature}/promote"),
        route(Method::Get, "/v1/policy/{receipt}"),
        route(Method::Get, "/v1/policy/reasons"),
        route(Method::Post, "/v1/policy/explain"),
        route(Method::Get, "/v1/a/{x}/{y}"),
        route(Method::Delete, "/v1/a/{x}/{y}"),
    ];

    fn found(method: Method, path: &str) -> Option<(&'static str, Vec<String>)> {
        find(ROUTES, Some(method), path).ok().map(|found| (found.route.path, found.args.into_values().collect()))
    }

    #[test]
    fn words_stand_as_they_are_and_arguments_are_decoded_once() {
        assert_eq!(found(Method::Get, "/v1/runs"), Some(("/v1/runs", vec![])));
        let promote = ("/v1/pointers/{signature}/promote", vec!["examples/Review.v1".to_owned()]);
        assert_eq!(found(Method::Post, "/v1/pointers/examples%2FReview.v1/promote"), Some(promote.clone()));
        assert_eq!(found(Method::Post, "/v1/pointers/examples%2freview.v1/promote").unwrap().0, promote.0);
        assert_eq!(found(Method::Get, "/v1/runs/a%20%C3%A9%3F100%25").unwrap().1, ["a \u{e9}?100%"]);
        assert_eq!(found(Method::Get, "/v1/runs/...").unwrap().1, ["..."]);
        assert_eq!(found(Method::Get, "/v1/runs/--store=x").unwrap().1, ["--store=x"]);
        // What is nearest is all there is at a path.
        assert_eq!(found(Method::Get, "/v1/policy/reasons").unwrap().0, "/v1/policy/reasons");
        assert_eq!(found(Method::Get, "/v1/policy/explain"), None);
        assert_eq!(found(Method::Get, "/v1/policy/other").unwrap().0, "/v1/policy/{receipt}");
        assert_eq!(found(Method::Post, "/v1/policy/explain").unwrap().0, "/v1/policy/explain");
        assert_eq!(found(Method::Get, "/v1/a/1/2").unwrap().1, ["1", "2"]);
    }

    #[test]
    fn whatever_could_be_read_in_two_ways_is_refused() {
        for path in [
            "",
            "*",
            "v1/runs",
            "/",
            "//",
            "/v1",
            "/v1/",
            "/v1/runs/",
            "/v1//runs",
            "//v1/runs",
            "/V1/runs",
            "/v1/Runs",
            "/v1/r%75ns",
            "/v1%2Fruns",
            "/v1/runs/.",
            "/v1/runs/..",
            "/v1/runs/%2e%2E",
            "/v1/x/../runs",
            "/v1/./runs",
            "/v1/runs/%00",
            "/v1/runs/%0a",
            "/v1/runs/%7f",
            "/v1/runs/%c2%85",
            "/v1/runs/%ff",
            "/v1/runs/%c0%af",
            "/v1/runs/%",
            "/v1/runs/%2",
            "/v1/runs/%zz",
            "/v1/runs/%+1",
            "/v1/runs/a%252Fb",
            "/v1/runs/%25%32%65",
            "/v1/runs/a\\b",
            "/v1/runs/\u{e9}",
            "/v1/runs/a b",
            "/v1/runs/{run}",
            "/v1/runs/a/b",
            "/v1/runs;x=y",
            "/v1/a/1/2/",
            "/v1/a/1%2F2",
        ] {
            let missed = find(ROUTES, Some(Method::Get), path).unwrap_err();
            let Missed::Refused(refused) = missed else { panic!("{path}: {missed:?}") };
            assert!(matches!(refused.status, 400 | 404), "{path}: {}", refused.status);
        }
    }

    #[test]
    fn another_method_hears_which_there_are() {
        let missed = |method, path| match find(ROUTES, method, path).unwrap_err() {
            Missed::Method(methods) => methods,
            Missed::Refused(refused) => panic!("{refused:?}"),
        };
        assert_eq!(missed(None, "/v1/runs"), ["GET", "HEAD", "POST"]);
        assert_eq!(missed(Some(Method::Delete), "/v1/policy/explain"), ["POST"]);
        assert_eq!(missed(Some(Method::Post), "/v1/runs/%00"), ["GET", "HEAD"]);
        assert_eq!(missed(None, "/v1/policy/%2e%2e"), ["GET", "HEAD"]);
        assert_eq!(missed(Some(Method::Post), "/v1/a/1/2"), ["GET", "HEAD", "DELETE"]);
    }

    #[test]
    fn members_of_a_query() {
        let pairs = |text: &str| query(text).unwrap();
        assert_eq!(pairs(""), []);
        assert_eq!(
            pairs("&a=1&&a=2&b&c=%C3%A9+%2B=%26&"),
            [("a", "1"), ("a", "2"), ("b", ""), ("c", "\u{e9} +=&")].map(own)
        );
        for text in ["=1", "a=%", "a=%f", "a=%00", "%00=1", "a=%ff", "a=%zz"] {
            assert!(query(text).is_err(), "{text}");
        }
        assert!(query(&"a=1&".repeat(QUERY_PAIRS_MAX)).is_ok());
        assert!(query(&"a=1&".repeat(QUERY_PAIRS_MAX + 1)).is_err());
    }

    fn own((name, value): (&str, &str)) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    proptest! {
        #[test]
        fn what_a_client_encodes_arrives(id in "\\PC{1,20}") {
            prop_assume!(id != "." && id != ".." && !id.contains('%') && !id.chars().any(char::is_control));
            let (path, args) = found(Method::Get, &format!("/v1/runs/{}", encode(&id))).unwrap();
            prop_assert_eq!(path, "/v1/runs/{run}");
            prop_assert_eq!(&args[0], &id);
            prop_assert_eq!(query(&format!("a={}", encode(&id))).unwrap(), vec![own(("a", &id))]);
        }

        #[test]
        fn no_text_is_another_route(path in "(/|v1|runs|a|[%./2eEfF0A-]){0,12}") {
            // Whatever is found has the same words at the same places.
            if let Ok(found) = find(ROUTES, Some(Method::Get), &path) {
                let sent: Vec<_> = path.split('/').skip(1).collect();
                let template: Vec<_> = words(found.route.path).collect();
                prop_assert_eq!(sent.len(), template.len());
                prop_assert!(template.iter().zip(&sent).all(|(word, sent)| arg(word).is_some() || word == sent));
            }
        }
    }
}
