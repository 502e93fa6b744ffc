//! What may be sent, how large, and of which kind.

use std::io::{Read as _, Write as _};

use super::{Bounds, LONG, SHORT, Settings, patient, request, served, served_with};
use crate::tests::until;

#[test]
fn kinds_of_content() {
    let served = served();
    for (kind, content, is_json) in [
        ("application/json", "{}", true),
        ("application/json; charset=utf-8", "[]", true),
        ("application/yaml", "a: b", false),
        ("text/plain", "{", false),
        ("application/jsonl", "{}\n{}\n", false),
        ("application/octet-stream", "x", false),
    ] {
        let heard = served.post("/v1/runs", &format!("content-type: {kind}\r\n"), content);
        assert_eq!(heard.status, 200, "{kind}");
        let (_, _, given) = served.fake.last();
        assert_eq!((given.content.as_slice(), given.is_json), (content.as_bytes(), is_json), "{kind}");
    }
    let number = served.fake.started();
    for headers in [
        "content-type: text/html\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: multipart/form-data; boundary=x\r\n",
        "content-type: application/json\r\ncontent-type: text/plain\r\n",
        "content-type: application/json; charset=utf-16\r\n",
        "content-type: application/json\r\ncontent-encoding: gzip\r\n",
        "content-type:\r\n",
    ] {
        let heard = served.post("/v1/runs", headers, "{}");
        assert_eq!((heard.status, heard.code().as_str()), (415, "INPUT_INVALID"), "{headers}");
    }
    let untyped = "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer admin\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(served.raw(untyped).status, 415);
    for content in ["{", "{} {}", "{'a': 1}", " ", "\"\u{1}\""] {
        let heard = served.post("/v1/runs", "", content);
        assert_eq!((heard.status, heard.code().as_str()), (400, "INPUT_INVALID"), "{content}");
    }
    // A look has none.
    assert_eq!(served.ask("GET", "/v1/runs", "reader", "", "{}").status, 400);
    assert_eq!(served.fake.started(), number);
    assert_eq!(served.post("/v1/runs", "", "").status, 200);
}

#[test]
fn too_large_is_refused_however_it_is_sent() {
    let settings = Settings { body_bytes_max: 100_000, requests_per_second: 0, ..Settings::default() };
    let served = served_with("127.0.0.1:0", settings, patient());
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    assert_eq!(served.post("/v1/runs", "", &text(100_000)).status, 200);
    let heard = served.post("/v1/runs", "", &text(100_001));
    assert_eq!((heard.status, heard.code().as_str()), (413, "INPUT_INVALID"));
    // Announced, and never sent.
    let heard = served.raw(&request(
        "POST",
        "/v1/runs",
        "admin",
        "content-type: text/plain\r\ncontent-length: 99999999999\r\n",
        "",
    ));
    assert_eq!(heard.status, 413);
    let mut stream = served.say(&request(
        "POST",
        "/v1/runs",
        "admin",
        "content-type: text/plain\r\ntransfer-encoding: chunked\r\n",
        "",
    ));
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    // The last of these may find the connection closed.
    let _ = (0..8).try_for_each(|_| stream.write_all(chunk.as_bytes()));
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert_eq!(served.fake.started(), 1);
}

#[test]
fn what_would_swell_is_refused() {
    let served = served();
    let swollen = format!("[{}0]", "{\"\":0},".repeat(50_000));
    let heard = served.post("/v1/runs", "", &swollen);
    assert_eq!((heard.status, heard.code().as_str()), (413, "INPUT_INVALID"));
    assert_eq!(served.post("/v1/runs", "content-type: application/jsonl\r\n", &swollen).status, 413);
    let many = "{\"a\":1}\n".repeat(50_000);
    assert_eq!(served.post("/v1/runs", "content-type: application/jsonl\r\n", &many).status, 200);
    assert_eq!(served.fake.started(), 1);
}

#[test]
fn chunks_are_put_together() {
    let served = served();
    let text = request(
        "POST",
        "/v1/runs",
        "admin",
        "content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n",
        "",
    );
    assert_eq!(served.raw(&(text.clone() + "1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n")).status, 200);
    assert_eq!(served.fake.last().2.content, b"{}");
    // Broken off in the middle.
    drop(served.say(&(text.clone() + "5\r\n{\"a\"")));
    let heard = served.raw(&(text + "zz\r\n"));
    assert!(matches!(heard.status, 0 | 400 | 413), "{}", heard.status);
    assert_eq!(served.fake.started(), 1);
}

#[test]
fn a_slow_head_or_content_is_not_waited_for() {
    let served =
        served_with("127.0.0.1:0", Settings::default(), Bounds { head: SHORT, body: SHORT, write: LONG, ..patient() });
    let silent = served.say("");
    let half_head = served.say("GET /healthz HT");
    let idle = served.say(&request("GET", "/healthz", "", "", ""));
    let half_content = served.say(
        &request("POST", "/v1/runs", "admin", "content-type: text/plain\r\ncontent-length: 99\r\n", "")
            .replace("\r\n\r\n", "\r\n\r\nhalf"),
    );
    assert_eq!(crate::tests::heard(silent), "");
    assert_eq!(crate::tests::heard(half_head), "");
    assert!(crate::tests::heard(idle).starts_with("HTTP/1.1 200 "));
    let heard = super::Heard::of(&crate::tests::heard(half_content));
    assert_eq!((heard.status, heard.code().as_str(), heard.header("x-actum-exit")), (408, "INPUT_INVALID", Some("2")));
    assert_eq!(served.fake.started(), 0);
}

#[test]
fn drop_by_drop_does_not_help() {
    let served = served_with("127.0.0.1:0", Settings::default(), Bounds { head: SHORT, body: SHORT, ..patient() });
    let mut head = served.say("GET / HTTP/1.1\r\n");
    let mut content =
        served.say(&request("POST", "/v1/runs", "admin", "content-type: text/plain\r\ncontent-length: 5000\r\n", ""));
    let mut is_over = [false; 2];
    for _ in 0..400 {
        for (stream, is_over) in [&mut head, &mut content].into_iter().zip(&mut is_over) {
            *is_over = *is_over || stream.write_all(b"x").is_err();
        }
        std::thread::sleep(SHORT / 20);
        if is_over == [true; 2] {
            return;
        }
    }
    panic!("still read from: {is_over:?}");
}

#[test]
fn an_answer_that_nobody_reads_is_given_up() {
    // With one connection at a time the next is served when the first is given up.
    let settings = Settings { connections_max: 1, ..Settings::default() };
    let served = served_with("127.0.0.1:0", settings, Bounds { write: SHORT, ..patient() });
    let unread = served.say(&request("GET", "/v1/runs/large", "reader", "", ""));
    until("the answer was made", || served.fake.ended() == 1);
    assert_eq!(served.get("/v1/runs/large").body.len(), (8 << 20) + 2);
    drop(unread);
}
