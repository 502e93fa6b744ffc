//! Listening: from every place, to everything and to some of it, slowly, in great numbers, and until somebody ends it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::{Bounds, Event, Heard, LONG, SHORT, Served, Settings, Source, patient, request, served, served_with};
use crate::tests::until;

/// Somebody who listens: the head of the answer, then block after block.
struct Ear {
    stream: BufReader<TcpStream>,
    head: Heard,
    text: String,
}

impl Ear {
    fn on(stream: TcpStream) -> Self {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
        }
        Self { stream, head: Heard::of(&head), text: String::new() }
    }

    /// The next block; none at the end, or where the connection broke.
    fn next(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(block);
            }
            let mut size = String::new();
            self.stream.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok().filter(|size| *size > 0)?;
            let mut chunk = vec![0; size + 2];
            self.stream.read_exact(&mut chunk).ok()?;
            self.text.push_str(str::from_utf8(&chunk[..size]).unwrap());
        }
    }

    /// The ids of all events until the end, and the last block of all.
    fn all(mut self) -> (Vec<u64>, String) {
        let (mut ids, mut last) = (Vec::new(), String::new());
        while let Some(block) = self.next() {
            ids.extend(id_of(&block));
            last = block;
        }
        (ids, last)
    }

    /// The next event.
    fn event(&mut self) -> String {
        loop {
            let block = self.next().expect("an event");
            if block.contains("event: ") {
                return block;
            }
        }
    }
}

fn id_of(block: &str) -> Option<u64> {
    block.lines().find_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().unwrap())
}

impl Served {
    fn listen(&self, target: &str, headers: &str) -> Ear {
        Ear::on(self.say(&request("GET", target, "reader", headers, "")))
    }

    fn happens(&self, run: Option<&str>, kind: &str, data: &str) {
        let source = Source { tenant: "local".into(), run: run.map(ToOwned::to_owned) };
        let mut happened = self.fake.happened.lock().unwrap();
        let (events, _) = happened.entry(source).or_default();
        let id = events.len() as u64;
        events.push(Event { id, kind: kind.into(), data: data.into() });
    }

    fn is_over(&self, run: &str) {
        let source = Source { tenant: "local".into(), run: Some(run.into()) };
        self.fake.happened.lock().unwrap().entry(source).or_default().1 = Some("{\"state\":\"succeeded\"}".into());
    }
}

fn quick() -> Bounds {
    let tick = Duration::from_millis(20);
    Bounds { look: tick, check: tick, beat: SHORT, ..patient() }
}

fn open() -> Settings {
    Settings { requests_per_second: 0, ..Settings::default() }
}

#[test]
fn a_listener_goes_on_from_every_place() {
    const EVENTS: u64 = 20;
    let served = served();
    for n in 0..EVENTS {
        served.happens(Some("r"), if n % 3 == 0 { "third" } else { "other" }, &json!({ "n": n }).to_string());
    }
    served.is_over("r");
    for after in std::iter::once(None).chain((0..EVENTS).map(Some)) {
        let expected: Vec<u64> = (after.map_or(0, |after| after + 1)..EVENTS).collect();
        let header = after.map(|after| format!("last-event-id: {after}\r\n")).unwrap_or_default();
        let query = after.map(|after| format!("?after={after}")).unwrap_or_default();
        // What was heard last goes before what was asked for first.
        let both = after.map(|_| "?after=0").unwrap_or_default();
        for (target, header) in [("", header.as_str()), (&query, ""), (both, &header)] {
            let ear = served.listen(&format!("/v1/runs/r/events{target}"), header);
            assert_eq!((ear.head.status, ear.head.header("content-type")), (200, Some("text/event-stream")));
            let (ids, last) = ear.all();
            assert_eq!(ids, expected, "{after:?}");
            assert_eq!(last, "event: end\ndata: {\"state\":\"succeeded\"}");
        }
        let (ids, _) = served.listen("/v1/runs/r/events?types=third,none", &header).all();
        assert_eq!(ids, expected.into_iter().filter(|n| n % 3 == 0).collect::<Vec<_>>());
    }
    let mut ear = served.listen("/v1/runs/r/events", "accept: text/event-stream\r\nlast-event-id: \r\n");
    assert_eq!(ear.next().unwrap(), "retry: 2000");
    assert_eq!(ear.next().unwrap(), "id: 0\nevent: third\ndata: {\"n\":0}");
    assert_eq!(ear.head.header("connection"), Some("close"));
    assert_eq!((ear.head.header("cache-control"), ear.head.header("etag")), (Some("no-store"), None));
}

#[test]
fn who_asks_wrongly_hears_why() {
    let served = served();
    served.happens(Some("r"), "x", "{}");
    for header in
        ["x", "-1", "1.0", "1e3", "0x1", " 1 2", "99999999999999999999", "1\r\nlast-event-id: 1", "é", "+1", "null"]
    {
        let heard = served.ask("GET", "/v1/runs/r/events", "reader", &format!("last-event-id: {header}\r\n"), "");
        assert_eq!(heard.status, 400, "{header}");
        assert!(!heard.code().is_empty(), "{header}");
    }
    assert_eq!(served.get("/v1/runs/r/events?after=x").status, 400);
    assert_eq!(served.get("/v1/runs/other/events").status, 404);
    // There is a run of that name, and it is another tenant's.
    assert_eq!(served.ask("GET", "/v1/runs/r/events", "acme.reader", "", "").status, 404);
    for token in ["", "nobody"] {
        assert_eq!(served.ask("GET", "/v1/events", token, "", "").status, 401);
    }
    assert_eq!(served.ask("POST", "/v1/events", "admin", "", "{}").status, 405);
    // Whoever does not want to go on listening gets an answer like any other.
    let heard = served.ask("GET", "/v1/runs/r/events", "reader", "accept: application/json\r\n", "");
    assert_eq!((heard.status, heard.header("content-type")), (200, Some("application/json")));
    let heard = served.ask("HEAD", "/v1/events", "reader", "", "");
    assert_eq!((heard.status, heard.body.as_str()), (200, ""));
}

#[test]
fn what_happens_is_heard_and_silence_has_signs_of_life() {
    let served = served_with("127.0.0.1:0", open(), quick());
    let mut ear = served.listen("/v1/events", "");
    let mut other = Ear::on(served.say(&request("GET", "/v1/events", "acme.reader", "", "")));
    assert_eq!(ear.next().unwrap(), "retry: 2000");
    assert_eq!(ear.next().unwrap(), ": still here");
    for n in 0..30 {
        served.happens(None, "note", "{}");
        assert_eq!(id_of(&ear.event()), Some(n));
    }
    // Of another tenant nothing is heard.
    assert_eq!([other.next().unwrap(), other.next().unwrap()], ["retry: 2000", ": still here"]);
}

#[test]
fn a_slow_listener_is_cut_off_and_loses_nothing() {
    const EVENTS: u64 = 600;
    let bounds = Bounds { write: SHORT, ..quick() };
    let served = served_with("127.0.0.1:0", Settings { streams_max: 1, ..open() }, bounds);
    let large = json!("x".repeat(100_000)).to_string();
    for _ in 0..EVENTS {
        served.happens(Some("r"), "large", &large);
    }
    served.is_over("r");
    let (mut heard, mut visits) = (Vec::new(), 0);
    while heard.len() < EVENTS as usize {
        visits += 1;
        let header = heard.last().map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        let mut ear = served.listen("/v1/runs/r/events", &header);
        assert_eq!(ear.head.status, 200);
        if visits < 3 {
            // It reads nothing until it is cut off: then its place is free, which was the only one.
            heard.push(id_of(&ear.event()).unwrap());
            let stream = || served.ask("HEAD", "/v1/runs/r/events", "reader", "", "").status;
            assert_eq!(stream(), 503);
            until("cut off", || stream() == 200);
        }
        // What had arrived by then counts.
        while let Some(block) = ear.next() {
            heard.extend(id_of(&block));
        }
    }
    assert_eq!(heard, (0..EVENTS).collect::<Vec<_>>(), "each once, in order");
    assert!(visits >= 3, "{visits}");
}

#[test]
fn listeners_take_no_places_of_those_who_ask() {
    let settings = Settings { connections_max: 1, streams_max: 3, ..open() };
    let served = served_with("127.0.0.1:0", settings, quick());
    let mut ears: Vec<_> = (0..3).map(|_| served.listen("/v1/events", "")).collect();
    assert_eq!(served.get("/v1/runs").status, 200);
    let heard = served.ask("GET", "/v1/events", "reader", "", "");
    assert_eq!((heard.status, heard.code().as_str()), (503, "TOO_MANY_REQUESTS"));
    assert!(heard.header("retry-after").is_some());
    served.happens(None, "x", "{}");
    assert!(ears.iter_mut().all(|ear| id_of(&ear.event()) == Some(0)));
    drop(ears.pop());
    until("a place is free", || served.ask("HEAD", "/v1/events", "reader", "", "").status == 200);
}

#[test]
fn nobody_has_all_places_to_listen_in() {
    let served = served_with("127.0.0.1:0", Settings { streams_max: 20, ..open() }, quick());
    let listen = |token: &str, number: usize| -> Vec<Ear> {
        let ears = (0..number).map(|_| Ear::on(served.say(&request("GET", "/v1/events", token, "", ""))));
        ears.filter(|ear| ear.head.status == 200).collect()
    };
    let mut ears = listen("guest.reader", 13);
    assert_eq!(ears.len(), 12);
    ears.extend(listen("guest.operator", 5));
    assert_eq!(ears.len(), 16);
    ears.extend(listen("reader", 5));
    assert_eq!(ears.len(), 20);
    drop(ears);
    until("the places are free", || listen("guest.reader", 1).len() == 1);
}

#[test]
fn the_end_is_said_and_comes_at_once() {
    let mut served = served_with("127.0.0.1:0", open(), quick());
    let ears: Vec<_> = (0..5).map(|_| served.listen("/v1/events", "")).collect();
    served.api.take().unwrap().end(LONG);
    for ear in ears {
        let (ids, last) = ear.all();
        assert_eq!((ids.len(), last.starts_with(": the server is ending")), (0, true), "{last}");
    }
    assert_eq!(std::sync::Arc::strong_count(&served.fake), 1, "nobody holds on to the face");
}

#[test]
fn who_may_not_enter_any_more_hears_no_more() {
    let served = served_with("127.0.0.1:0", open(), quick());
    let ears: Vec<_> = (0..3).map(|_| served.listen("/v1/events", "")).collect();
    let mut other = Ear::on(served.say(&request("GET", "/v1/events", "operator", "", "")));
    served.fake.revoked.lock().unwrap().push("id-reader".into());
    for ear in ears {
        let (_, last) = ear.all();
        assert!(last.starts_with(": the token opens nothing"), "{last}");
    }
    served.happens(None, "x", "{}");
    assert_eq!(id_of(&other.event()), Some(0));
}

/// A thousand listeners must not mean a thousand questions to the store.
#[test]
fn many_listeners_share_what_is_read() {
    const LISTENERS: usize = 200;
    let served = served_with("127.0.0.1:0", open(), quick());
    let mut ears: Vec<_> = (0..LISTENERS).map(|_| served.listen("/v1/events", "")).collect();
    let looked = |before: usize| served.fake.looked.load(Ordering::SeqCst) - before;
    for n in 0..10 {
        let (before, read) = (looked(0), served.fake.read.load(Ordering::SeqCst));
        served.happens(None, "x", "{}");
        for ear in &mut ears {
            assert_eq!(id_of(&ear.event()), Some(n));
        }
        let read = served.fake.read.load(Ordering::SeqCst) - read;
        assert!(read <= 2, "{read} reads for one event");
        assert!(looked(before) < LISTENERS, "{} looks for one event", looked(before));
    }
}
