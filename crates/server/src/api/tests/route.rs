//! Which route a request finds, what is handed on, and what every answer has.

use std::thread::scope;

use serde_json::json;

use super::{Heard, request, served};
use crate::tests::until;

#[test]
fn a_request_arrives_as_it_was_made() {
    let served = served();
    let target = "/v1/pointers/examples%2FReview.v1/promote?a=1&b=%C3%A9+x&a=2";
    let heard =
        served.ask("POST", target, "acme.approver", "x-request-id: my.id-1\r\naccept: text/plain\r\n", "{\"c\":1}");
    assert_eq!((heard.status, heard.header("x-actum-exit")), (200, Some("0")));
    let (caller, path, given) = served.fake.last();
    assert_eq!((caller.tenant.as_str(), caller.token.as_str()), ("acme", "id-acme.approver"));
    assert_eq!(path, "/v1/pointers/{signature}/promote");
    assert_eq!(given.path, [("signature".to_owned(), "examples/Review.v1".to_owned())].into());
    let query = [("a", "1"), ("b", "\u{e9} x"), ("a", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(given.query, query);
    assert_eq!((given.content.as_slice(), given.is_json, given.wants_text), (&b"{\"c\":1}"[..], true, true));
    assert_eq!(given.request_id, "my.id-1");

    assert_eq!(served.ask("DELETE", "/v1/tokens/7", "admin", "", "").status, 200);
    let (_, path, given) = served.fake.last();
    assert_eq!((path, given.content.len(), given.is_json), ("/v1/tokens/{token}", 0, false));
}

#[test]
fn paths_that_are_no_route() {
    let served = served();
    for path in [
        "/v1",
        "/v1/",
        "/v1/runs/",
        "//v1/runs",
        "/v1//runs",
        "/V1/runs",
        "/v1/RUNS",
        "/v1/r%75ns",
        "/v1%2fruns",
        "/v1/x/../runs",
        "/v1/./runs",
        "/v1/runs/..",
        "/v1/runs/%2e%2e",
        "/v1/runs/%00",
        "/v1/runs/%ff",
        "/v1/runs/%c0%af",
        "/v1/runs/%zz",
        "/v1/runs/a%252fb",
        "/v1/runs/%0d%0a",
        "/v1/runs/a\\b",
        "/v1/runs/a/b/c",
        "/healthz/",
        "/healthz/..",
        "/healthz%00",
        "/%68ealthz",
        "/openapi.json/",
        "/HEALTHZ",
        "/.",
        "/..",
        "/v1/runs;a=b",
        "*",
        "/v1/runs?a=%ff",
        "/v1/runs?a=%00",
        "/v1/runs?=1",
    ] {
        let heard = served.get(path);
        assert!(matches!(heard.status, 400 | 404), "{path}: {}", heard.status);
        if !heard.body.is_empty() {
            assert!(["NOT_FOUND", "INPUT_INVALID"].contains(&heard.code().as_str()), "{path}");
            assert_eq!(heard.header("x-actum-exit"), Some(if heard.status == 404 { "7" } else { "2" }), "{path}");
        }
    }
    assert_eq!(served.fake.started(), 0);
}

#[test]
fn other_methods_hear_which_there_are() {
    let served = served();
    for (method, path, allow) in [
        ("DELETE", "/v1/runs", "get, head, post"),
        ("PUT", "/v1/runs", "get, head, post"),
        ("OPTIONS", "/v1/runs", "get, head, post"),
        ("TRACE", "/v1/runs/1", "get, head"),
        ("NONSENSE", "/v1/runs/1", "get, head"),
        ("GET", "/v1/tokens/1", "delete"),
        ("HEAD", "/v1/runs/1/cancel", "post"),
        ("get", "/v1/runs", "get, head, post"),
        ("POST", "/healthz", "get, head"),
        ("OPTIONS", "/", "get, head"),
        ("DELETE", "/openapi.json", "get, head"),
    ] {
        let heard = served.ask(
            method,
            path,
            "admin",
            "origin: http://localhost\r\naccess-control-request-method: POST\r\n",
            "",
        );
        assert_eq!((heard.status, heard.header("allow")), (405, Some(allow)), "{method} {path}");
        assert!(!heard.head.contains("access-control"), "{}", heard.head);
        assert!(method == "HEAD" || heard.code() == "INPUT_INVALID");
    }
    assert_eq!(served.fake.started(), 0);
}

#[test]
fn head_is_get_without_its_content() {
    let served = served();
    let (get, head) = (served.get("/v1/runs/same"), served.ask("HEAD", "/v1/runs/same", "reader", "", ""));
    assert_eq!((get.status, head.status, head.body.as_str()), (200, 200, ""));
    for name in ["content-length", "etag", "content-type", "x-actum-exit"] {
        assert!(get.header(name).is_some() && get.header(name) == head.header(name), "{name}");
    }
    assert_eq!(served.fake.started(), 2);
    assert_eq!(served.ask("HEAD", "/healthz", "", "", "").status, 200);
}

#[test]
fn every_answer_has_its_headers() {
    let served = served();
    let answers = [
        served.get("/v1/runs"),
        served.get("/nothing"),
        served.ask("GET", "/v1/runs", "wrong", "", ""),
        served.ask("GET", "/v1/runs", "down", "", ""),
        served.post("/v1/runs", "", "{"),
        served.post("/v1/runs", "", "{\"do\":\"broken\"}"),
        served.ask("GET", "/v1/runs", "broken", "", ""),
        served.get("/healthz"),
        served.get("/openapi.json"),
        served.get("/"),
        served.ask("PUT", "/v1/runs", "reader", "", ""),
        served.ask("GET", "/v1/runs", "reader", "host: evil.example\r\n", ""),
    ];
    let mut ids = Vec::new();
    for heard in &answers {
        for (name, value) in [("cache-control", "no-store"), ("x-content-type-options", "nosniff")] {
            assert_eq!(heard.header(name), Some(value), "{}", heard.head);
        }
        assert!(heard.header("x-actum-exit").is_some_and(|exit| exit.parse::<u8>().is_ok()), "{}", heard.head);
        ids.push(heard.header("x-request-id").unwrap().to_owned());
    }
    let statuses: Vec<_> = answers.iter().map(|heard| heard.status).collect();
    assert_eq!(statuses, [200, 404, 401, 503, 400, 500, 500, 200, 200, 200, 405, 403]);
    assert_eq!(answers[5].code(), "INTERNAL_ERROR");
    assert!(ids.iter().all(|id| id.starts_with("test-")));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), answers.len(), "ids are used once");
}

#[test]
fn ids_are_taken_over_only_if_they_are_plain() {
    let served = served();
    let id =
        |headers: &str| served.ask("GET", "/v1/runs", "reader", headers, "").header("x-request-id").unwrap().to_owned();
    assert_eq!(id("x-request-id: az.09_-\r\n"), "az.09_-");
    assert_eq!(id(&format!("x-request-id: {}\r\n", "a".repeat(64))), "a".repeat(64));
    for headers in [
        "x-request-id: \r\n",
        "x-request-id: a b\r\n",
        "x-request-id: a/b\r\n",
        "x-request-id: \u{e9}\r\n",
        "x-request-id: a\r\nx-request-id: a\r\n",
    ] {
        assert!(id(headers).starts_with("test-"), "{headers}");
    }
    assert!(id(&format!("x-request-id: {}\r\n", "a".repeat(65))).starts_with("test-"));
}

#[test]
fn what_the_caller_has_already_is_not_sent_again() {
    let served = served();
    let first = served.get("/v1/runs/same");
    let tag = first.header("etag").unwrap().replacen("w/", "W/", 1);
    for known in [tag.clone(), format!("\"x\", {tag}"), "*".to_owned(), tag.replacen("W/", "", 1)] {
        let again = served.ask("GET", "/v1/runs/same", "reader", &format!("if-none-match: {known}\r\n"), "");
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{known}");
        assert_eq!(again.header("etag"), first.header("etag"));
    }
    assert_eq!(served.ask("GET", "/v1/runs/same", "reader", "if-none-match: \"x\"\r\n", "").status, 200);
    assert_eq!(served.ask("GET", "/v1/runs", "reader", &format!("if-none-match: {tag}\r\n"), "").status, 200);
    // Only looks, and only those that found something.
    assert_eq!(served.post("/v1/runs/1/cancel", "if-none-match: *\r\n", "").status, 200);
    assert_eq!(served.ask("GET", "/v1/runs/conflict", "reader", "if-none-match: *\r\n", "").status, 409);
    assert!(served.get("/v1/runs/conflict").header("etag").is_none());
}

#[test]
fn answers_are_handed_on_as_they_are() {
    let served = served();
    let heard = served.post("/v1/runs", "", "{\"do\":\"conflict\"}");
    assert_eq!((heard.status, heard.header("x-actum-exit"), heard.json()), (409, Some("6"), json!({"number": 1})));
    // Whoever gives a status or a type that is none.
    let heard = served.post("/v1/runs", "", "{\"do\":\"nonsense\"}");
    assert_eq!((heard.status, heard.header("content-type")), (500, Some("application/octet-stream")));
}

#[test]
fn what_is_there_beside_the_routes() {
    let served = served();
    let health = served.ask("GET", "/healthz", "", "", "");
    assert_eq!((health.status, health.json()), (200, json!({"ok": true})));
    assert_eq!(served.ask("GET", "/readyz", "", "", "").json(), json!({"ready": true}));
    let metrics = served.ask("GET", "/metrics", "", "", "");
    assert_eq!((metrics.status, metrics.body.as_str()), (200, "actum_up 1\n"));
    assert_eq!(served.ask("GET", "/openapi.json", "", "", "").json()["openapi"], "3.1.0");
    let page = served.ask("GET", "/", "", "", "");
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    assert!(page.body.contains("List &lt;runs&gt;") && !page.body.contains("<script"), "{}", page.body);
    served.get("/v1/runs");
    let ready = served.ask("GET", "/readyz", "", "", "");
    assert_eq!((ready.status, ready.code().as_str()), (503, "STORE_UNAVAILABLE"));
    assert_eq!(served.ask("GET", "/healthz", "", "", "").status, 200);
}

#[test]
fn every_request_leaves_a_line_without_anything_secret() {
    let served = served();
    served.ask("GET", "/v1/runs/secret-name?token=hidden", "acme.reader", "x-request-id: one\r\n", "");
    served.ask("POST", "/secret-path?x=hidden", "hidden-token", "", "");
    served.ask("HIDDEN", "/healthz", "", "", "");
    until("three lines", || served.lines().len() == 3);
    let lines = served.lines();
    assert_eq!((lines[0].method, lines[0].route, lines[0].status), ("GET", "/v1/runs/{run}", 200));
    assert_eq!((lines[0].tenant.as_deref(), lines[0].token.as_deref()), (Some("acme"), Some("id-acme.reader")));
    assert_eq!(lines[0].request_id, "one");
    assert_eq!((lines[1].method, lines[1].route, lines[1].status, &lines[1].token), ("POST", "-", 401, &None));
    assert_eq!((lines[2].method, lines[2].route, lines[2].status), ("-", "/healthz", 405));
    let text = format!("{lines:?}");
    assert!(!text.contains("hidden") && !text.contains("secret"), "{text}");
}

#[test]
fn two_hundred_at_once_and_a_thousand_in_one_breath() {
    let served = served();
    scope(|scope| {
        let looks: Vec<_> = (0..100).map(|_| scope.spawn(|| served.get("/v1/runs").status)).collect();
        let works: Vec<_> = (0..100).map(|_| scope.spawn(|| served.post("/v1/runs", "", "{}").status)).collect();
        assert!(looks.into_iter().chain(works).all(|asked| asked.join().unwrap() == 200));
    });
    assert_eq!(served.fake.started(), 200);
    let one = request("GET", "/v1/runs", "reader", "", "");
    let last = request("GET", "/v1/runs", "reader", "connection: close\r\n", "");
    let answers = crate::tests::heard(served.say(&(one.repeat(999) + &last)));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 1_000);
    assert_eq!(Heard::of(&answers).status, 200);
}
