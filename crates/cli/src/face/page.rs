//! Lists page by page, for commands that give all of theirs at once: what was asked for is taken out of the query before the command
//! reads it, and out of its answer what is on the page. It knows nothing of what is in a list.

use actum_api::error;
use actum_api::route::Route;
use actum_contract::digest::Digest;
use actum_server::api::{Answer, Given};
use serde_json::{Value, json};

use super::JSON;
use crate::failure::Failure;

pub(super) const LIMIT_MAX: usize = 1_000;
/// How many are on a page if nobody says.
const LIMIT: usize = 100;
const LIMIT_NAME: &str = "limit";
const CURSOR: &str = "cursor";
const SLACK: usize = 100;
/// Letters of a digest that are enough to know something again among a few thousand.
const DIGITS: usize = 16;

/// What is wanted of a list.
#[derive(Debug)]
pub(super) struct Page {
    field: &'static str,
    limit: usize,
    from: Option<Place>,
}

/// Behind so many, the last of which was this one.
#[derive(Debug)]
struct Place {
    number: usize,
    last: String,
}

/// The page that is asked for, and what is left for the command. None: all of it, as the command gives it.
pub(super) fn wanted(route: &Route, given: &Given) -> Result<Option<(Page, Given)>, Failure> {
    let is_of_page = |name: &str| [LIMIT_NAME, CURSOR].contains(&name);
    let has = |wanted: &str| given.query.iter().any(|(name, _)| name == wanted);
    // To a person a command with a limit of its own tells as much as he wants by itself.
    let is_own = |all: Option<&str>| all.is_some() && given.wants_text && !has(CURSOR);
    let is_asked = has(LIMIT_NAME) || has(CURSOR);
    let Some(pages) = route.pages.filter(|pages| is_asked && !is_own(pages.all)) else { return Ok(None) };
    let bad = |name: &str, why: &str| {
        Err(Failure::new(error::USAGE, format!("{name}: {why}"))
            .details(json!({"fields": [{"field": name, "message": why}]})))
    };
    let limit_max = pages.all.and_then(|all| all.parse().ok()).unwrap_or(LIMIT_MAX);
    let mut page = Page { field: pages.field, limit: LIMIT, from: None };
    let (mut limits, mut cursors) = (0, 0);
    for (name, value) in &given.query {
        match name.as_str() {
            LIMIT_NAME => {
                limits += 1;
                match value.parse().ok().filter(|limit| (1..=limit_max).contains(limit)) {
                    Some(limit) => page.limit = limit,
                    None => return bad(LIMIT_NAME, &format!("is {value:?}, expected 1 to {limit_max}")),
                }
            }
            CURSOR => {
                cursors += 1;
                page.from = Place::read(value);
                if page.from.is_none() {
                    return bad(CURSOR, "is none: take the `next` of an earlier page");
                }
            }
            _ => {}
        }
    }
    if limits > 1 || cursors > 1 {
        return bad(if limits > 1 { LIMIT_NAME } else { CURSOR }, "is there twice");
    }
    if given.wants_text {
        return bad(LIMIT_NAME, "pages are told as JSON");
    }
    let mut left = given.clone();
    left.query.retain(|(name, _)| !is_of_page(name));
    // As many as the page can need, and some that may have come before it meanwhile.
    let before = page.from.as_ref().map_or(0, |place| place.number.saturating_add(SLACK));
    let enough = before.saturating_add(page.limit).saturating_add(1).min(limit_max);
    left.query.extend(pages.all.map(|_| (LIMIT_NAME.to_owned(), enough.to_string())));
    Ok(Some((page, left)))
}

impl Page {
    /// What of an answer is on it. What is no list is left as it is: an error is one page.
    pub(super) fn of(&self, answer: Answer) -> Answer {
        let Ok(mut shown) = serde_json::from_slice::<Value>(&answer.body) else { return answer };
        let Some(all) = shown[self.field].as_array_mut().filter(|_| answer.content_type == JSON) else { return answer };
        let first = self.from.as_ref().map_or(0, |place| place.among(all));
        let last = first.saturating_add(self.limit).min(all.len());
        let next =
            all.get(last).and_then(|_| all.get(last.checked_sub(1)?)).map(|item| Place::behind(last, item).text());
        *all = all.drain(first..last).collect();
        shown["next"] = json!(next);
        Answer { body: format!("{shown}\n").into_bytes(), ..answer }
    }
}

impl Place {
    fn read(text: &str) -> Option<Self> {
        let (number, last) = text.split_once('.')?;
        let is_plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_one =
            number.len() < 10 && !number.starts_with('+') && last.len() == DIGITS && last.bytes().all(is_plain);
        Some(Self { number: number.parse().ok().filter(|number| is_one && *number > 0)?, last: last.to_owned() })
    }

    fn behind(number: usize, item: &Value) -> Self {
        Self { number, last: known_by(item) }
    }

    fn text(&self) -> String {
        format!("{}.{}", self.number, self.last)
    }

    /// Behind the same item as before, wherever that is by now; if it is gone, behind as many.
    fn among(&self, all: &[Value]) -> usize {
        let is_it = |item: &Value| known_by(item) == self.last;
        match all.get(self.number - 1).filter(|item| is_it(item)) {
            Some(_) => self.number,
            None => all.iter().position(is_it).map_or(self.number.min(all.len()), |at| at + 1),
        }
    }
}

fn known_by(item: &Value) -> String {
    Digest::blake3(item.to_string().as_bytes()).to_hex()[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use actum_api::route::ROUTES;

    use super::*;

    fn route(path: &str) -> &'static Route {
        ROUTES.iter().find(|route| route.path == path && route.method.word() == "GET").unwrap()
    }

    fn asked(query: &str) -> Given {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap());
        Given { query: pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(), ..Given::default() }
    }

    fn page(query: &str) -> Page {
        wanted(route("/v1/signatures"), &asked(query)).unwrap().unwrap().0
    }

    fn list(all: &[u32]) -> Answer {
        let body = json!({"signatures": all}).to_string().into_bytes();
        Answer::new(200, JSON, body, 0)
    }

    fn shown(page: &Page, all: &[u32]) -> (Value, Option<String>) {
        let shown: Value = serde_json::from_slice(&page.of(list(all)).body).unwrap();
        (shown["signatures"].clone(), shown["next"].as_str().map(str::to_owned))
    }

    #[test]
    fn pages_follow_one_another_whatever_comes_and_goes() {
        let (first, next) = shown(&page("limit=2"), &[1, 2, 3, 4, 5]);
        assert_eq!(first, json!([1, 2]));
        let second = page(&format!("limit=2&cursor={}", next.unwrap()));
        assert_eq!(shown(&second, &[1, 2, 3, 4, 5]).0, json!([3, 4]));
        // Something has come before it, or has gone; then the last one itself.
        assert_eq!(shown(&second, &[0, 1, 2, 3, 4, 5]).0, json!([3, 4]));
        assert_eq!(shown(&second, &[2, 3, 4, 5]).0, json!([3, 4]));
        assert_eq!(shown(&second, &[1, 9, 3, 4, 5]).0, json!([3, 4]));
        assert_eq!(shown(&second, &[7]), (json!([]), None));
        let (last, next) = shown(&page(&format!("cursor={}", Place::behind(4, &json!(4)).text())), &[1, 2, 3, 4, 5]);
        assert_eq!((last, next), (json!([5]), None));
        assert_eq!(shown(&page("limit=5"), &[1, 2, 3, 4, 5]).1, None);
    }

    #[test]
    fn only_what_is_asked_for_is_cut() {
        let signatures = route("/v1/signatures");
        assert!(wanted(signatures, &asked("")).unwrap().is_none());
        assert!(wanted(route("/v1/runs"), &asked("limit=2")).unwrap().is_none(), "it has pages of its own");
        let (_, left) = wanted(route("/v1/reservations"), &asked("limit=2&run=r")).unwrap().unwrap();
        assert_eq!(left.query, asked("run=r&limit=3").query);
        let later = asked("limit=9000&cursor=950.0123456789abcdef");
        assert_eq!(wanted(route("/v1/traces"), &later).unwrap().unwrap().1.query, asked("limit=10000").query);
        for query in [
            "limit=0",
            "limit=1001",
            "limit=x",
            "limit=2&limit=3",
            "cursor=",
            "cursor=x",
            "cursor=0.0123456789abcdef",
            "cursor=1.0123",
            "cursor=1.0123456789abcdeF",
            "cursor=99999999999.0123456789abcdef",
        ] {
            assert!(wanted(signatures, &asked(query)).is_err(), "{query}");
        }
        assert!(wanted(signatures, &Given { wants_text: true, ..asked("limit=1") }).is_err());
        assert!(wanted(route("/v1/traces"), &Given { wants_text: true, ..asked("limit=1") }).unwrap().is_none());
        let failed = Answer { status: 422, body: b"{\"error\":{}}".to_vec(), ..list(&[]) };
        assert_eq!(page("limit=1").of(failed.clone()), failed);
    }
}
