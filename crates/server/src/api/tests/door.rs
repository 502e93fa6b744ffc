//! Who is let in, to what, how often, and by which name.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::{Settings, patient, request, served, served_with};

#[test]
fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
    let served = served();
    let first = served.ask("GET", "/v1/runs", "", "", "");
    assert_eq!((first.status, first.code().as_str(), first.header("x-actum-exit")), (401, "UNAUTHORIZED", Some("3")));
    assert_eq!(first.header("www-authenticate"), Some("bearer realm=\"actum\""));
    for headers in [
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer\r\n",
        "authorization: Basic YTpi\r\n",
        "authorization: reader\r\n",
        "authorization: Bearer reader\r\nauthorization: Bearer reader\r\n",
        "authorization: Bearer reader, Bearer reader\r\n",
        "authorization: Bearer reader \u{e9}\r\n",
        "authorization:\r\n",
        "cookie: token=reader\r\n",
        "x-api-key: reader\r\n",
        "proxy-authorization: Bearer reader\r\n",
    ] {
        let heard = served.ask("GET", "/v1/runs", "", headers, "");
        assert_eq!((heard.status, &heard.body), (401, &first.body), "{headers}");
    }
    for target in ["/v1/runs?token=reader", "/v1/runs?access_token=reader", "/nothing", "/v1/runs/%ff", "/v1/tokens/1"]
    {
        let heard = served.ask("GET", target, "", "", "");
        assert_eq!((heard.status, &heard.body), (401, &first.body), "{target}");
    }
    assert_eq!(served.ask("OPTIONS", "/v1/runs", "", "", "").status, 401);
    assert_eq!(served.ask("GET", "/v1/runs", "", "authorization: bearer reader\r\n", "").status, 200);
    assert_eq!(served.fake.started(), 1);
    // What has no token is not looked up.
    assert_eq!(served.fake.entered.load(Ordering::SeqCst), 2);
}

#[test]
fn a_role_that_is_too_low_is_told_what_it_lacks() {
    let served = served();
    for (method, path, may) in [
        ("GET", "/v1/runs", &["reader", "operator", "approver", "admin"][..]),
        ("POST", "/v1/runs", &["operator", "admin"]),
        ("POST", "/v1/pointers/x/promote", &["approver", "admin"]),
        ("DELETE", "/v1/tokens/1", &["admin"]),
    ] {
        for role in ["reader", "operator", "approver", "admin"] {
            let heard = served.ask(method, path, role, "", "");
            assert_eq!(heard.status, if may.contains(&role) { 200 } else { 403 }, "{role} {method} {path}");
        }
    }
    let heard = served.ask("DELETE", "/v1/tokens/1", "operator", "", "");
    assert_eq!((heard.code().as_str(), heard.header("x-actum-exit")), ("FORBIDDEN", Some("3")));
    assert_eq!(heard.json()["error"]["details"], json!({"role": "operator", "need": "admin"}));
    // Nobody reads what somebody sends who may not.
    let heard = served.raw(&request("POST", "/v1/runs", "reader", "content-length: 99\r\n", ""));
    assert_eq!(heard.status, 403);
}

#[test]
fn other_names_for_this_address_are_refused() {
    let served = served();
    let ask = |head: &str| {
        served.raw(&format!("GET /v1/runs HTTP/1.1\r\nauthorization: Bearer reader\r\nconnection: close\r\n{head}\r\n"))
    };
    for head in [
        "host: localhost:1\r\n",
        "host: 127.0.0.1\r\n",
        "host: [::1]:80\r\n",
        "host: localhost\r\norigin: http://localhost:3000\r\n",
    ] {
        assert_eq!(ask(head).status, 200, "{head}");
    }
    for head in [
        "",
        "host: evil.example\r\n",
        "host: localhost\r\nhost: localhost\r\n",
        "host: localhost\r\norigin: http://evil.example\r\n",
        "host: localhost\r\norigin: null\r\n",
    ] {
        let heard = ask(head);
        assert_eq!((heard.status, heard.code().as_str()), (403, "FORBIDDEN"), "{head}");
    }
    let absolute = |target: &str, host: &str| {
        served
            .raw(&format!(
                "GET {target} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer reader\r\nconnection: close\r\n\r\n"
            ))
            .status
    };
    assert_eq!(absolute("http://localhost/v1/runs", "localhost"), 200);
    assert_eq!(absolute("http://evil.example/v1/runs", "localhost"), 403);
    assert_eq!(absolute("http://localhost/v1/runs", "evil.example"), 403);
    assert_eq!(absolute("http://evil.example/v1/runs", "evil.example"), 403);
    assert_eq!(absolute("http://x@localhost/v1/runs", "localhost"), 403);
    // Health too: a page elsewhere learns nothing at all.
    assert_eq!(served.raw("GET /healthz HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n").status, 403);
}

#[test]
fn who_listens_elsewhere_tells_strangers_only_that_he_lives() {
    let settings = Settings { hosts: vec!["actum.example".to_owned()], ..Settings::default() };
    let served = served_with("0.0.0.0:0", settings, patient());
    for path in ["/metrics", "/openapi.json", "/"] {
        assert_eq!(served.ask("GET", path, "", "", "").status, 401, "{path}");
        assert_eq!(served.ask("GET", path, "reader", "", "").status, 200, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(served.ask("GET", path, "", "", "").status, 200, "{path}");
    }
    let ask =
        |host: &str| served.raw(&format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")).status;
    assert_eq!((ask("actum.example"), ask("localhost"), ask("other.example")), (200, 200, 403));
    let served = served_with("0.0.0.0:0", Settings::default(), patient());
    let any = served.raw("GET /healthz HTTP/1.1\r\nhost: any.example\r\nconnection: close\r\n\r\n");
    assert_eq!(any.status, 200);
}

#[test]
fn who_asks_too_often_is_told_how_long_to_wait() {
    let settings = Settings { requests_per_second: 1, burst: 3, ..Settings::default() };
    let served = served_with("127.0.0.1:0", settings, patient());
    let heard: Vec<_> = (0..20).map(|_| served.get("/v1/runs")).collect();
    let refused: Vec<_> = heard.iter().filter(|heard| heard.status == 429).collect();
    assert!(heard[..3].iter().all(|heard| heard.status == 200) && !refused.is_empty());
    assert_eq!((refused[0].code().as_str(), refused[0].header("retry-after")), ("TOO_MANY_REQUESTS", Some("1")));
    assert_eq!(served.fake.started(), heard.len() - refused.len());
    // Others have a pace of their own, and health has none.
    assert_eq!(served.ask("GET", "/v1/runs", "acme.reader", "", "").status, 200);
    assert!((0..20).all(|_| served.get("/healthz").status == 200));
}
