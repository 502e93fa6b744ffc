//! The end: nothing new, what is under way is finished if it can be, and callers who leave stop nothing.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use super::{Heard, LONG, request, served};
use crate::tests::{heard, until};

#[test]
fn what_is_under_way_is_finished_and_nothing_else_begins() {
    let mut served = served();
    let api = served.api.take().unwrap();
    let idle = served.say("");
    let mut half = ["/readyz", "/healthz", "/v1/runs"]
        .map(|path| served.say(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx: ")));
    // Connections are accepted in their order: when this one has begun, what was said on the others has arrived.
    let under_way = served.say(&request("POST", "/v1/runs", "admin", "", "{\"do\":\"hang\"}"));
    until("begun", || served.fake.started() == 1);
    scope(|scope| {
        let ending = scope.spawn(|| api.end(LONG));
        until("nobody listens", || TcpStream::connect(served.at).is_err());
        assert_eq!(heard(idle), "");
        for (stream, status) in half.iter_mut().zip([503, 200, 503]) {
            stream.write_all(b"y\r\nauthorization: Bearer reader\r\n\r\n").unwrap();
            let heard = Heard::of(&heard(stream.try_clone().unwrap()));
            assert_eq!(heard.status, status, "{heard:?}");
        }
        assert!(!ending.is_finished());
        served.fake.open();
        let heard = Heard::of(&heard(under_way));
        assert_eq!((heard.status, heard.header("connection")), (200, Some("close")));
        ending.join().unwrap();
    });
    assert_eq!(served.fake.started(), 1);
    // Nobody holds on to the face.
    assert_eq!(Arc::strong_count(&served.fake), 1);
}

#[test]
fn what_takes_too_long_is_cut() {
    let mut served = served();
    let api = served.api.take().unwrap();
    let under_way = served.say(&request("POST", "/v1/runs", "admin", "", "{\"do\":\"hang\"}"));
    until("begun", || served.fake.started() == 1);
    api.end(Duration::from_millis(50));
    assert_eq!((heard(under_way).as_str(), served.fake.ended()), ("", 0));
    assert!(TcpStream::connect(served.at).is_err());
}

#[test]
fn a_caller_who_leaves_stops_nothing_and_is_waited_for() {
    let mut served = served();
    let api = served.api.take().unwrap();
    let left = served.say(&request("POST", "/v1/runs", "admin", "", "{\"do\":\"hang\"}"));
    until("begun", || served.fake.started() == 1);
    drop(left);
    until("it is noticed", || served.lines().iter().any(|line| line.status == 499 && line.route == "/v1/runs"));
    scope(|scope| {
        let ending = scope.spawn(|| api.end(LONG));
        until("nobody listens", || TcpStream::connect(served.at).is_err());
        assert!(!ending.is_finished() && served.fake.ended() == 0);
        served.fake.open();
        ending.join().unwrap();
    });
    assert_eq!(served.fake.ended(), 1);
}

#[test]
fn it_can_be_served_and_ended_inside_another_runtime() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let mut served = served();
        assert_eq!(served.get("/v1/runs").status, 200);
        served.api.take().unwrap().end(LONG);
        drop(served);
    });
}
