//! Models as a caller sees them: who is let in, how much may be asked, and that an exchange outlives its caller.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::{LONG, SHORT, heard, until};
use crate::bridge::{Bridge, Offered, Patience};
use crate::models::{Asked, Flaw, Head, Models, QUESTION_BYTES_MAX, Teller};

const KEY: &str = "actum-0123456789abcdef";

/// Tells what it was asked; at `/stream` it waits between its pieces until it is let go.
#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<(bool, Option<Flaw>, usize)>>,
    ended: AtomicUsize,
    go: Notify,
}

impl Models for Fake {
    fn ask(self: Arc<Self>, asked: Asked, mut teller: Teller) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push((asked.is_allowed, asked.flaw, asked.body.len()));
            let head = |content_type: &str| Head {
                status: if asked.is_allowed { 200 } else { 401 },
                content_type: content_type.to_owned(),
                headers: vec![("x-should-retry", "false".to_owned())],
            };
            match asked.path.as_str() {
                "/stream" => {
                    teller.begin(head("text/event-stream"));
                    teller.tell("data: one\n\n".into()).await;
                    self.go.notified().await;
                    teller.tell("data: two\n\n".into()).await;
                }
                "/silent" => drop(teller),
                _ => {
                    let text = format!("{} {} {:?} {}", asked.method, asked.query, asked.headers, asked.body.len());
                    teller.whole(head("application/json"), text.into()).await;
                }
            }
            self.ended.fetch_add(1, Ordering::SeqCst);
        })
    }
}

fn served_with(patience: Patience) -> (Bridge, Arc<Fake>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let fake = Arc::new(Fake::default());
    let models: Arc<dyn Models> = fake.clone();
    let offered = Offered { tools: None, models: Some((KEY.to_owned(), models)) };
    (Bridge::serve_with(listener, offered, patience).unwrap(), fake, at)
}

fn served() -> (Bridge, Arc<Fake>, String) {
    served_with(Patience { head: LONG, body: LONG, write: LONG })
}

fn say(at: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn ask(at: &str, line: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    heard(say(
        at,
        &format!(
            "{line} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        ),
    ))
}

#[test]
fn the_key_is_taken_wherever_providers_have_theirs() {
    let (_bridge, fake, at) = served();
    for (line, headers) in [
        ("POST /v1/x", format!("Authorization: Bearer {KEY}\r\n")),
        ("POST /v1/x", format!("authorization: bearer  {KEY}\r\n")),
        ("POST /v1/x", format!("x-api-key: {KEY}\r\n")),
        ("POST /v1/x", format!("x-goog-api-key: {KEY}\r\n")),
        (&format!("POST /v1/x?alt=sse&key={KEY}"), String::new()),
    ] {
        let told = ask(&at, line, &headers, "{}");
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("x-should-retry: false"), "{told}");
    }
    for headers in [
        "",
        "x-api-key: actum\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Basic x\r\n",
        "x-api-key: ACTUM-0123456789ABCDEF\r\n",
    ] {
        let told = ask(&at, "POST /v1/x", headers, "{\"a\": 1}");
        assert!(told.starts_with("HTTP/1.1 401"), "{headers}: {told}");
        assert_eq!(fake.asked.lock().unwrap().pop(), Some((false, None, 0)), "its content is not even read");
    }
    // Only what concerns the form of a question goes on.
    let told = ask(&at, "POST /v1/x", &format!("x-api-key: {KEY}\r\nanthropic-beta: b\r\ncookie: c\r\n"), "{}");
    assert!(told.contains("anthropic-beta") && !told.contains("cookie") && !told.contains(KEY), "{told}");
}

#[test]
fn what_is_too_large_too_slow_or_from_elsewhere_is_no_question() {
    let (_bridge, fake, at) = served_with(Patience { head: LONG, body: SHORT, write: LONG });
    let key = format!("x-api-key: {KEY}\r\n");
    let length = QUESTION_BYTES_MAX + 1;
    heard(say(
        &at,
        &format!("POST /v1/x HTTP/1.1\r\nHost: {at}\r\nContent-Length: {length}\r\nConnection: close\r\n{key}\r\n"),
    ));
    assert_eq!(fake.asked.lock().unwrap().pop(), Some((true, Some(Flaw::TooLarge), 0)));
    let mut stream = say(
        &at,
        &format!("POST /v1/x HTTP/1.1\r\nHost: {at}\r\nContent-Length: 10\r\nConnection: close\r\n{key}\r\n{{"),
    );
    stream.read_to_string(&mut String::new()).unwrap();
    assert_eq!(fake.asked.lock().unwrap().pop(), Some((true, Some(Flaw::TooSlow), 0)));
    let swollen = format!("[{}0]", "0,".repeat(200_000));
    ask(&at, "POST /v1/x", &key, &swollen);
    assert_eq!(fake.asked.lock().unwrap().pop(), Some((true, Some(Flaw::TooLarge), 0)));
    heard(say(
        &at,
        &format!(
            "POST /v1/x HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\nConnection: close\r\n{key}\r\n{{}}"
        ),
    ));
    assert_eq!(fake.asked.lock().unwrap().pop(), Some((false, Some(Flaw::Elsewhere), 0)));
}

#[test]
fn pieces_arrive_as_they_are_told_and_whole_answers_with_their_length() {
    let (_bridge, fake, at) = served();
    let key = format!("x-api-key: {KEY}\r\n");
    let told = ask(&at, "POST /v1/x", &key, "{}");
    assert!(told.contains("content-length: ") && !told.contains("chunked") && !told.contains("date: "), "{told}");
    let mut stream = say(
        &at,
        &format!("POST /stream HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\nConnection: close\r\n{key}\r\n"),
    );
    let mut told = String::new();
    while !told.contains("data: one") {
        let mut piece = [0; 1024];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{told}");
        told.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    assert!(!told.contains("data: two"));
    fake.go.notify_one();
    stream.read_to_string(&mut told).unwrap();
    assert!(told.contains("data: two"), "{told}");
}

#[test]
fn an_exchange_goes_on_when_its_caller_has_left() {
    let (bridge, fake, at) = served();
    let key = format!("x-api-key: {KEY}\r\n");
    let mut stream = say(&at, &format!("POST /stream HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\n{key}\r\n"));
    stream.read_exact(&mut [0; 20]).unwrap();
    drop(stream);
    fake.go.notify_one();
    until("ended", || fake.ended.load(Ordering::SeqCst) == 1);
    // One under way when all ends is waited for.
    let mut stream = say(&at, &format!("POST /stream HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\n{key}\r\n"));
    stream.read_exact(&mut [0; 20]).unwrap();
    fake.go.notify_one();
    bridge.end();
    assert_eq!(fake.ended.load(Ordering::SeqCst), 2);
}

#[test]
fn who_gives_up_without_a_word_is_a_bad_gateway() {
    let (_bridge, _, at) = served();
    let told = ask(&at, "POST /silent", &format!("x-api-key: {KEY}\r\n"), "{}");
    assert!(told.starts_with("HTTP/1.1 502"), "{told}");
}
