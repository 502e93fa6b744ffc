//! Programs that mean harm: none of them takes more than its share, none is taken for another, and the next one is served.

use std::net::TcpStream;

use super::{Bounds, SHORT, Settings, patient, request, served, served_with};
use crate::tests::{heard, until};

#[test]
fn requests_that_two_readers_would_read_differently() {
    let served = served();
    let head =
        "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer admin\r\ncontent-type: text/plain\r\n";
    let inner = "GET /v1/runs/smuggled HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer admin\r\n\r\n";
    for framing in [
        format!("content-length: 5\r\ncontent-length: 6\r\n\r\n12345{inner}"),
        format!("content-length: 5, 6\r\n\r\n12345{inner}"),
        format!("content-length: +5\r\n\r\n12345{inner}"),
        format!("content-length: 0x5\r\n\r\n12345{inner}"),
        format!("content-length: -1\r\n\r\n{inner}"),
        format!("content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("transfer-encoding : chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("x: a\r\n content-length: 5\r\n\r\n{inner}"),
        format!("x: a\rcontent-length: 5\r\n\r\n{inner}"),
        format!("x: a\0b\r\n\r\n{inner}"),
    ] {
        let text = heard(served.say(&format!("{head}{framing}")));
        assert!(text.matches("HTTP/1.1").count() <= 1, "{framing:?}: {text}");
    }
    let asked = served.fake.asked.lock().unwrap();
    assert!(asked.iter().all(|(_, path, _)| *path == "/v1/runs"), "{asked:?}");
}

#[test]
fn garbage_and_heads_without_end() {
    let served = served();
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET\r\n\r\n",
        "GET /v1/runs\r\n\r\n",
        "\u{1f4a3}\r\n\r\n",
        "CONNECT evil.example:443 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: localhost\r\n: x\r\n\r\n",
        "GET /\r/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nhost localhost\r\n\r\n",
    ] {
        let text = heard(served.say(garbage));
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{garbage:?}: {text}");
    }
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(100_000));
    assert!(heard(served.say(&long)).starts_with("HTTP/1.1 4"));
    let many = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(500));
    assert!(heard(served.say(&many)).starts_with("HTTP/1.1 431"));
    let large = format!("GET / HTTP/1.1\r\nhost: localhost\r\na: {}\r\n\r\n", "b".repeat(100_000));
    assert!(heard(served.say(&large)).starts_with("HTTP/1.1 431"));
    // Nobody is asked to change to another protocol.
    let heard = served.ask("GET", "/v1/runs", "reader", "upgrade: h2c, websocket\r\n", "");
    assert_eq!(heard.status, 200);
}

#[test]
fn connections_that_say_nothing_hold_others_up_only_so_long() {
    let settings = Settings { connections_max: 8, ..Settings::default() };
    let served = served_with("127.0.0.1:0", settings, Bounds { head: SHORT, ..patient() });
    let silent: Vec<TcpStream> = (0..24).map(|_| served.say("")).collect();
    assert_eq!(served.get("/v1/runs").status, 200);
    drop(silent);
}

#[test]
fn when_all_threads_are_taken_others_are_told_and_one_can_still_look() {
    let bounds = Bounds { works_max: 2, waiting_max: 1, ..patient() };
    let served = served_with("127.0.0.1:0", Settings::default(), bounds);
    let hang = request("POST", "/v1/runs", "admin", "connection: close\r\n", "{\"do\":\"hang\"}");
    let taken: Vec<_> = (0..2).map(|_| served.say(&hang)).collect();
    until("all are taken", || served.fake.started() == 2);
    // One of these finds a place to wait in, and the other one is told at once.
    let (waits, other) = (served.say(&hang), served.say(&hang));
    until("one is told", || served.lines().len() == 1);
    assert_eq!(served.get("/v1/runs").status, 200);
    served.fake.open();
    let mut heard: Vec<_> = [waits, other].into_iter().map(|stream| super::Heard::of(&heard(stream))).collect();
    heard.sort_by_key(|heard| heard.status);
    assert_eq!((heard[0].status, heard[1].status, heard[1].header("retry-after")), (200, 503, Some("1")));
    assert_eq!(heard[1].code(), "TOO_MANY_REQUESTS");
    for stream in taken {
        assert!(crate::tests::heard(stream).starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn who_waits_too_long_for_a_thread_is_told() {
    let bounds = Bounds { works_max: 1, turn: SHORT, ..patient() };
    let served = served_with("127.0.0.1:0", Settings::default(), bounds);
    let taken = served.say(&request("POST", "/v1/runs", "admin", "connection: close\r\n", "{\"do\":\"hang\"}"));
    until("taken", || served.fake.started() == 1);
    assert_eq!(served.post("/v1/runs", "", "{}").status, 503);
    assert_eq!(served.fake.started(), 1);
    served.fake.open();
    assert!(heard(taken).starts_with("HTTP/1.1 200"));
}
