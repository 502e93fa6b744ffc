//! Programs that mean harm: none of them takes more than its share, and the next one is served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::thread::scope;

use actum_api::client;
use serde_json::json;

use super::{LONG, SHORT, TOKEN, heard, served, served_with, until};
use crate::bridge::{CONNECTIONS_MAX, Patience};
use crate::http::BODY_BYTES_MAX;

#[test]
fn too_large_a_request_is_refused_however_it_is_sent() {
    let served = served();
    let large = "x".repeat(BODY_BYTES_MAX);
    let (status, _) = served.call(&json!({"tool": "grep", "params": {"text": large}}));
    assert_eq!(status, 413);
    let most = "x".repeat(BODY_BYTES_MAX - 100);
    assert_eq!(served.call(&json!({"tool": "grep", "params": {"text": most}})).0, 200);

    let mut stream = served
        .say(&format!("POST /t/{TOKEN}/v1/call HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"));
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(0x10_0000));
    // The last of these may find the connection closed.
    let _ = (0..3).try_for_each(|_| stream.write_all(chunk.as_bytes()));
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");

    let announced = format!("POST /t/{TOKEN}/mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n");
    assert!(heard(served.say(&announced)).starts_with("HTTP/1.1 413 "));

    let many: Vec<_> = (0..20_000).map(|_| json!({"": 0})).collect();
    assert_eq!(served.call(&json!({"tool": "grep", "params": {"list": many}})).0, 413);
    let deep = format!("{{\"tool\":\"grep\",\"params\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(
        heard(served.say(&served.post("/v1/call", &deep).replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")))
            .starts_with("HTTP/1.1 400 ")
    );
    assert_eq!(served.fake.started.load(Ordering::SeqCst), 1);
}

#[test]
fn a_slow_head_or_content_is_not_waited_for() {
    let served = served_with(Patience { head: SHORT, body: SHORT, write: LONG });
    let silent = served.say("");
    let half_head = served.say("GET /t/");
    let idle = served.say(&format!("GET /t/{TOKEN}/v1/adapters HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    let half_content = served.say(&served.post("/v1/call", "{\"tool\":\"grep\"}").replace("15\r\n", "99\r\n"));
    assert_eq!(heard(silent), "");
    assert_eq!(heard(half_head), "");
    assert!(heard(idle).starts_with("HTTP/1.1 200 "));
    assert!(heard(half_content).starts_with("HTTP/1.1 408 "));
    assert_eq!(served.fake.started.load(Ordering::SeqCst), 0);
}

#[test]
fn drop_by_drop_does_not_help() {
    let served = served_with(Patience { head: SHORT, body: SHORT, write: LONG });
    let mut head = served.say("GET / HTTP/1.1\r\n");
    let mut content = served.say(&served.post("/v1/call", "").replace("length: 0", "length: 5000"));
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
    let served = served_with(Patience { head: LONG, body: LONG, write: SHORT });
    let mut stream = served.say(&served.post("/v1/call", r#"{"tool":"large"}"#));
    until("answered", || served.fake.started.load(Ordering::SeqCst) == 1);
    std::thread::sleep(SHORT * 20);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.len() < 8 << 20, "{} bytes were kept for us", answer.len());
    assert_eq!(served.call(&json!({"tool": "large"})).1.as_str().map(str::len), Some(8 << 20));
}

#[test]
fn two_hundred_at_once_are_all_served() {
    let served = served();
    scope(|scope| {
        let asked: Vec<_> = (0..200).map(|_| scope.spawn(|| served.get("/v1/adapters").0)).collect();
        assert!(asked.into_iter().all(|asked| asked.join().unwrap() == 200));
    });
}

#[test]
fn connections_that_say_nothing_hold_others_up_only_so_long() {
    let served = served_with(Patience { head: SHORT, body: LONG, write: LONG });
    let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX * 3).map(|_| served.say("")).collect();
    assert_eq!(served.get("/v1/adapters").0, 200);
    drop(silent);
}

#[test]
fn garbage_and_many_requests_in_one_breath() {
    let served = served();
    for garbage in
        ["\0\0\0\0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\u{1f4a3}\r\n\r\n"]
    {
        heard(served.say(garbage));
    }
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(100_000));
    assert!(heard(served.say(&long)).starts_with("HTTP/1.1 4"));
    let many = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(500));
    assert!(heard(served.say(&many)).starts_with("HTTP/1.1 431"));

    let one = format!("GET /t/{TOKEN}/v1/adapters HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let last = one.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let answers = heard(served.say(&(one.repeat(999) + &last)));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 1_000);
    // Two requests that disagree about where the first one ends.
    let smuggled = served.post("/v1/call", "0\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    let smuggled = smuggled.replace("content-length", "transfer-encoding: chunked\r\ncontent-length");
    assert!(heard(served.say(&smuggled)).matches("HTTP/1.1").count() <= 1);
    assert_eq!(client::ask(&served.url, "GET", "/v1/adapters", None, LONG).unwrap().0, 200);
}
