//! Programs that mean harm: none of them takes more than its share, none is taken for another, and the next one is served.

use std::collections::BTreeSet;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Bounds, Heard, SHORT, Served, Settings, patient, request, served, served_with};
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
fn connections_without_a_token_keep_no_token_out() {
    let settings = Settings { connections_max: 8, ..Settings::default() };
    let served = served_with("127.0.0.1:0", settings, patient());
    let silent: Vec<TcpStream> = (0..24).map(|_| served.say("")).collect();
    for _ in 0..3 {
        assert_eq!(served.get("/v1/runs").status, 200);
    }
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
    let mut heard: Vec<_> = [waits, other].into_iter().map(|stream| Heard::of(&heard(stream))).collect();
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

/// Nobody waits long for anything here, and everybody may ask as often as he likes.
fn hurried(bounds: Bounds) -> Served {
    let settings = Settings { requests_per_second: 0, ..Settings::default() };
    served_with("127.0.0.1:0", settings, Bounds { turn: SHORT, ..bounds })
}

/// A call of a tool over MCP, with so many blanks behind it.
fn called(token: &str, name: &str, arguments: &Value, bytes: usize) -> String {
    let call =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
    let headers = "accept: application/json, text/event-stream\r\nconnection: close\r\n";
    request("POST", "/mcp", token, headers, &(call.to_string() + &" ".repeat(bytes)))
}

fn large(token: &str, headers: &str, content: &str) -> String {
    let content = content.to_owned() + &" ".repeat(8_000_000);
    request("POST", "/v1/runs", token, &format!("connection: close\r\n{headers}"), &content)
}

#[test]
fn whoever_sends_slowly_takes_no_room_from_others() {
    let served = hurried(patient());
    let head = |more: &str| format!("content-type: application/json\r\n{more}\r\n");
    // These have said one byte, and announced as much as may be.
    let chunked = request("POST", "/mcp", "guest.reader", &head("transfer-encoding: chunked"), "") + "1\r\n{\r\n";
    let announced = request("POST", "/mcp", "guest.reader", &head("content-length: 8000000"), "") + "{";
    let mut silent: Vec<_> = (0..15).map(|_| served.say(&chunked)).collect();
    silent.push(served.say(&announced));
    until("all are in", || served.fake.entered.load(std::sync::atomic::Ordering::SeqCst) == 16);
    // His own tenant's, and his own: nothing but what has come counts.
    for token in ["admin", "guest.admin"] {
        assert_eq!(served.raw(&large(token, "", "{}")).status, 200, "{token}");
    }
    // These have said more than the first step.
    let half =
        request("POST", "/v1/runs", "guest.operator", &head("content-length: 8000000"), "") + &" ".repeat(100_000);
    silent.extend((0..16).map(|_| served.say(&half)));
    until("some are told", || served.lines().iter().filter(|line| line.status == 503).count() == 12);
    for token in ["admin", "guest.admin"] {
        assert_eq!(served.raw(&large(token, "", "{}")).status, 200, "{token}");
    }
    drop(silent);
}

#[test]
fn whoever_reads_slowly_takes_no_room_from_others() {
    // For one large answer of a token, two of a tenant, and four in all.
    let served = hurried(Bounds { answers_kib: 40 << 10, ..patient() });
    let look = |token: &str| request("GET", "/v1/runs/large", token, "connection: close\r\n", "");
    let told = |status: u16| served.lines().iter().filter(|line| line.status == status).count();
    let unread = served.say(&look("guest.reader"));
    until("it is on its way", || told(200) == 1);
    let refused = served.raw(&look("guest.reader"));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.head);
    // What is small needs no room, and others have their own.
    assert_eq!(served.raw(&request("GET", "/v1/runs/same", "guest.reader", "connection: close\r\n", "")).status, 200);
    for token in ["guest.admin", "reader", "admin"] {
        let heard = served.raw(&look(token));
        assert_eq!((heard.status, heard.body.len()), (200, (8 << 20) + 2), "{token}");
    }
    let other = served.say(&look("guest.admin"));
    until("both are on their way", || told(200) == 6);
    assert_eq!(served.raw(&look("guest.operator")).status, 503, "the tenant has two already");
    drop((unread, other));
    until("there is room again", || served.raw(&look("guest.reader")).status == 200);
}

#[test]
fn whoever_waits_for_his_own_key_takes_no_room_from_others() {
    let served = hurried(patient());
    let hang = large("guest.operator", "idempotency-key: one\r\n", "{\"do\":\"hang\"}");
    let waiting: Vec<_> = (0..17).map(|_| served.say(&hang)).collect();
    until("some are told", || served.lines().iter().filter(|line| line.status == 503).count() == 13);
    assert_eq!(served.raw(&large("admin", "", "{}")).status, 200);
    assert_eq!(served.raw(&large("guest.admin", "", "{}")).status, 200);
    served.fake.open();
    let answers: Vec<u16> = waiting.into_iter().map(|stream| Heard::of(&heard(stream)).status).collect();
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 4, "{answers:?}");
}

#[test]
fn a_token_has_a_share_of_the_threads_and_a_tenant_too() {
    let served = hurried(Bounds { works_max: 16, ..patient() });
    let hang = |token: &str, number: usize| -> Vec<TcpStream> {
        let text = request("POST", "/v1/runs", token, "connection: close\r\n", "{\"do\":\"hang\"}");
        (0..number).map(|_| served.say(&text)).collect()
    };
    let told = |number: usize| {
        until("the others are told", || served.lines().iter().filter(|line| line.status == 503).count() == number);
    };
    let mut held = hang("guest.operator", 20);
    told(16);
    assert_eq!(served.fake.started(), 4);
    held.extend(hang("guest.admin", 20));
    told(32);
    assert_eq!(served.fake.started(), 8);
    // Everybody else is served, also over MCP.
    assert_eq!(served.ask("POST", "/v1/runs", "admin", "", "{}").status, 200);
    let heard = served.raw(&called("operator", "cancel", &json!({"run": "a"}), 0));
    assert_eq!((heard.status, &heard.json()["result"]["isError"]), (200, &json!(false)), "{}", heard.body);
    let heard = served.raw(&called("guest.operator", "cancel", &json!({"run": "a"}), 0));
    assert!(heard.body.contains("TOO_MANY_REQUESTS"), "{}", heard.body);
    served.fake.open();
}

#[test]
fn whoever_waits_for_runs_leaves_places_to_wait_in() {
    let served = served();
    let wait = |token: &str, run: &str, seconds: u64, bytes: usize| {
        called(token, "watch", &json!({"run": run, "wait_seconds": seconds}), bytes)
    };
    let waiting: Vec<_> = (0..64).map(|n| served.say(&wait("guest.reader", &format!("r{n}"), 600, 0))).collect();
    // Each of them is looked at, however often.
    let seen = || {
        let asked = served.fake.asked.lock().unwrap();
        asked.iter().filter_map(|(_, _, given)| given.path.get("run").cloned()).collect::<BTreeSet<_>>().len()
    };
    until("all wait", || seen() == 64);
    let refused = served.raw(&wait("guest.reader", "one-more", 600, 0));
    assert!(refused.body.contains("too many callers wait"), "{}", refused.body);
    for token in ["reader", "guest.operator"] {
        let heard = served.raw(&wait(token, "a", 0, 0));
        assert_eq!((heard.status, &heard.json()["result"]["isError"]), (200, &json!(false)), "{}", heard.body);
    }
    // What was said is held as long as somebody waits.
    let refused = served.raw(&wait("reader", "a", 600, 8_000_000));
    assert!(refused.body.contains("16384 bytes at most"), "{}", refused.body);
    drop(waiting);
}
