//! Real servers on this machine that answer well, badly, late, in part or not at all.

use std::io::{Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};

use super::*;
use crate::testing::{Server, answer, certificate};

const KEY: &str = "sk-very-secret-0123456789";

fn target(port: u16) -> Target {
    Target {
        id: "test".into(),
        base_url: format!("http://127.0.0.1:{port}/v1"),
        auth: Auth::Bearer,
        key: Some(KEY.into()),
        headers: vec![("X-Org".into(), "ours-and-ours".into())],
        connect_ms: 2_000,
        answer_ms: 5_000,
        idle_ms: 5_000,
        total_ms: 20_000,
        attempts_max: 3,
        body_bytes_max: 1 << 20,
    }
}

fn upstream(target: Target) -> Upstream {
    Upstream::new(target, None).unwrap().paced(Duration::from_secs(60), Duration::from_millis(1))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn ask(upstream: &Upstream) -> Result<Incoming, Failed> {
    upstream.send("chat/completions", Bytes::from_static(b"{\"q\":1}"), "key-1", &[]).await
}

async fn read(mut incoming: Incoming) -> Result<String, (String, Broken)> {
    let mut text = String::new();
    loop {
        match incoming.piece().await {
            Ok(Some(piece)) => text.push_str(&String::from_utf8_lossy(&piece)),
            Ok(None) => return Ok(text),
            Err(broken) => return Err((text, broken)),
        }
    }
}

/// Holds whoever waits until the test is over.
struct Gate(Mutex<mpsc::Receiver<()>>);

impl Gate {
    fn new() -> (mpsc::Sender<()>, Self) {
        let (open, wait) = mpsc::channel();
        (open, Self(Mutex::new(wait)))
    }

    fn wait(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

#[test]
fn a_question_is_signed_and_its_answer_comes_in_pieces() {
    let server = Server::new(|_, out| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nx-request-id: req_1\r\nTransfer-Encoding: chunked\r\n\r\n";
        out.write_all(head.as_bytes())?;
        for piece in ["data: a\n\n", "data: b\n\n"] {
            write!(out, "{:x}\r\n{piece}\r\n", piece.len())?;
            out.flush()?;
        }
        out.write_all(b"0\r\n\r\n")
    });
    run(async {
        let upstream = upstream(target(server.port()));
        let passed = [("OpenAI-Beta", "x=1"), ("Cookie", "no"), ("authorization", "Bearer other")];
        let passed = passed.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let incoming = upstream.send("chat/completions", Bytes::from_static(b"{}"), "key-9", &passed).await.unwrap();
        assert_eq!((incoming.status, incoming.attempts), (200, 1));
        assert_eq!(incoming.content_type.as_deref(), Some("text/event-stream"));
        assert_eq!(incoming.request_id.as_deref(), Some("req_1"));
        assert_eq!(read(incoming).await.unwrap(), "data: a\n\ndata: b\n\n");
    });
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(seen.body, "{}");
    let header = |name: &str| seen.headers.get(name).map(String::as_str);
    assert_eq!(header("authorization"), Some(&*format!("Bearer {KEY}")));
    assert_eq!((header("idempotency-key"), header("openai-beta")), (Some("key-9"), Some("x=1")));
    assert_eq!((header("x-org"), header("cookie")), (Some("ours-and-ours"), None));
    assert_eq!(header("content-type"), Some("application/json"));
}

#[test]
fn every_provider_has_its_own_way_to_show_a_key() {
    for (auth, name) in [(Auth::XApiKey, "x-api-key"), (Auth::GoogApiKey, "x-goog-api-key")] {
        let server = Server::answers(&[&answer(200, &[], "{}")]);
        run(async { ask(&upstream(Target { auth, ..target(server.port()) })).await.unwrap() });
        let headers = &server.seen()[0].headers;
        assert_eq!(headers.get(name).map(String::as_str), Some(KEY));
        assert!(!headers.contains_key("authorization"));
        assert_eq!(headers.contains_key("anthropic-version"), auth == Auth::XApiKey);
    }
    let server = Server::answers(&[&answer(200, &[], "{}")]);
    run(async { ask(&upstream(Target { auth: Auth::Nothing, key: None, ..target(server.port()) })).await.unwrap() });
    assert!(!server.seen()[0].headers.contains_key("authorization"));
}

#[test]
fn who_asks_for_patience_is_asked_again() {
    for hint in [("Retry-After", "0"), ("retry-after-ms", "5"), ("Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT")] {
        let server = Server::answers(&[&answer(429, &[hint], "slow down"), &answer(200, &[], "well")]);
        run(async {
            let incoming = ask(&upstream(target(server.port()))).await.unwrap();
            assert_eq!((incoming.status, incoming.attempts), (200, 2));
            assert_eq!(read(incoming).await.unwrap(), "well");
        });
        let keys: Vec<_> = server.seen().iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
        assert_eq!(keys, ["key-1", "key-1"]);
    }
}

#[test]
fn nobody_waits_longer_than_there_is_time() {
    let server = Server::answers(&[&answer(429, &[("Retry-After", "3600")], "tomorrow")]);
    run(async {
        let incoming = ask(&upstream(Target { total_ms: 10_000, ..target(server.port()) })).await.unwrap();
        assert_eq!((incoming.status, incoming.attempts, incoming.retry_after_ms), (429, 1, Some(3_600_000)));
        assert_eq!(read(incoming).await.unwrap(), "tomorrow", "the last answer is handed on as it is");
    });
    let upstream = upstream(target(1));
    assert_eq!(upstream.delay("k", 1, Some(Duration::from_secs(3_600))), DELAY_MAX);
    assert_eq!(upstream.delay("k", 60, None), upstream.delay("k", 60, None));
    assert!(upstream.delay("k", 60, None) <= DELAY_MAX);
}

#[test]
fn every_passing_error_is_tried_again_and_no_other() {
    for status in PASSING {
        let server = Server::answers(&[&answer(status, &[], "no"), &answer(200, &[], "yes")]);
        run(async { assert_eq!(ask(&upstream(target(server.port()))).await.unwrap().attempts, 2, "{status}") });
    }
    for status in [400, 401, 403, 404, 409, 413, 422, 501] {
        let server = Server::answers(&[&answer(status, &[], "no"), &answer(200, &[], "yes")]);
        run(async { assert_eq!(ask(&upstream(target(server.port()))).await.unwrap().status, status) });
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn who_gave_up_waiting_says_nothing_about_the_outcome() {
    for status in [408, 499, 502, 504, 520, 524] {
        let server = Server::answers(&[&answer(status, &[("Retry-After", "0")], "no"), &answer(200, &[], "yes")]);
        run(async {
            let Err(Failed::Unknown(why)) = ask(&upstream(target(server.port()))).await else { panic!("{status}") };
            assert_eq!(why, format!("the provider answered {status}: whether it was done is not known"));
        });
        assert_eq!(server.seen().len(), 1, "it may be done already");
    }
    let server = Server::answers(&[&answer(504, &[], "no")]);
    run(async {
        let upstream = upstream(target(server.port()));
        for _ in 0..3 {
            assert!(matches!(ask(&upstream).await, Err(Failed::Unknown(_))));
        }
        assert!(matches!(ask(&upstream).await, Err(Failed::CircuitOpen { .. })), "it is a failure like others");
    });
}

#[test]
fn a_header_goes_out_once_and_asks_for_nothing_dearer() {
    let own = [("anthropic-version", "2020-01-01"), ("anthropic-beta", "ours")];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let upstream = upstream(Target { auth: Auth::XApiKey, headers: own, ..target(1) });
    let sent = |of_caller: &[(&str, &str)]| {
        let of_caller: Vec<_> = of_caller.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let headers = upstream.headers("k", &of_caller).unwrap();
        let all = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        [all("anthropic-version"), all("anthropic-beta"), all("openai-beta")] as [Vec<String>; 3]
    };
    assert_eq!(sent(&[]), [vec!["2020-01-01".to_owned()], vec!["ours".to_owned()], vec![]]);
    let both = [("Anthropic-Version", "2023-06-01"), ("anthropic-version", "2024-01-01"), ("OpenAI-Beta", "x=1")];
    assert_eq!(sent(&both), [vec!["2024-01-01".to_owned()], vec!["ours".to_owned()], vec!["x=1".to_owned()]]);
    let betas = [
        ("anthropic-beta", "effort-2025-11-24, context-1m-2025-08-07"),
        ("Anthropic-Beta", "Fast-Mode-2026-02-01 ,context-management-2025-06-27"),
    ];
    assert_eq!(sent(&betas)[1], ["effort-2025-11-24,context-management-2025-06-27"]);
    assert_eq!(sent(&[("anthropic-beta", "context-1m-2025-08-07")])[1], ["ours"], "nothing is left of his");
}

#[test]
fn a_redirect_is_an_answer_like_any_other() {
    let server = Server::answers(&[&answer(307, &[("Location", "http://127.0.0.1:1/x")], "")]);
    run(async { assert_eq!(ask(&upstream(target(server.port()))).await.unwrap().status, 307) });
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn three_failures_open_the_breaker() {
    let server = Server::answers(&[&answer(500, &[], "x")]);
    run(async {
        let upstream = upstream(target(server.port()));
        for _ in 0..3 {
            let incoming = ask(&upstream).await.unwrap();
            assert_eq!((incoming.status, incoming.attempts), (500, 3));
        }
        let Err(Failed::CircuitOpen { for_ms }) = ask(&upstream).await else { panic!("it is closed") };
        assert!((1..=60_000).contains(&for_ms));
    });
    assert_eq!(server.seen().len(), 9, "nobody was asked any more");
}

#[test]
fn one_probe_closes_the_breaker() {
    let failures = [answer(500, &[], "x"), answer(500, &[], "x"), answer(500, &[], "x"), answer(500, &[], "x")];
    let well = answer(200, &[], "x");
    let answers: Vec<&str> = failures.iter().chain([&well]).map(String::as_str).collect();
    let server = Server::answers(&answers);
    run(async {
        // Open for no time at all: whoever comes next may try.
        let once = Target { attempts_max: 1, ..target(server.port()) };
        let upstream = Upstream::new(once, None).unwrap().paced(Duration::ZERO, Duration::ZERO);
        for _ in 0..4 {
            assert_eq!(ask(&upstream).await.unwrap().status, 500);
        }
        let probe = ask(&upstream).await.unwrap();
        assert!(matches!(ask(&upstream).await, Err(Failed::CircuitOpen { .. })), "one at a time");
        assert_eq!(read(probe).await.unwrap(), "x");
        let (one, other) = (ask(&upstream).await.unwrap(), ask(&upstream).await.unwrap());
        assert_eq!((one.status, other.status), (200, 200));
    });
}

#[test]
fn nobody_there_means_nothing_was_sent() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    run(async {
        let upstream = upstream(target(port));
        let Err(Failed::NeverSent(why)) = ask(&upstream).await else { panic!("somebody is there") };
        assert!(why.contains(&format!("http://127.0.0.1:{port}/v1/chat/completions")), "{why}");
        for _ in 0..2 {
            assert!(matches!(ask(&upstream).await, Err(Failed::NeverSent(_))));
        }
        assert!(matches!(ask(&upstream).await, Err(Failed::CircuitOpen { .. })));
    });
}

#[test]
fn who_was_not_reached_is_tried_again() {
    let (tls, pem) = certificate("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = move || {
        // The first one is left standing before anything can have been said.
        drop(listener.accept());
        let (stream, _) = listener.accept().unwrap();
        let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(tls).unwrap(), stream);
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer(200, &[], "late").as_bytes());
        stream.conn.send_close_notify();
        let _ = stream.flush();
    };
    let serving = std::thread::Builder::new().spawn(serving).unwrap();
    run(async {
        let target = Target { base_url: format!("https://localhost:{port}"), ..target(port) };
        let upstream = Upstream::new(target, Some(pem.as_bytes())).unwrap();
        let incoming = ask(&upstream.paced(Duration::from_secs(60), Duration::from_millis(1))).await.unwrap();
        assert_eq!(incoming.attempts, 2);
        assert_eq!(read(incoming).await.unwrap(), "late");
    });
    serving.join().unwrap();
}

#[test]
fn silence_after_the_question_is_never_asked_again() {
    let (open, gate) = Gate::new();
    let server = Server::new(move |_, _| {
        gate.wait();
        Ok(())
    });
    run(async {
        let hasty = Target { connect_ms: 500, answer_ms: 100, ..target(server.port()) };
        let Err(Failed::Unknown(why)) = ask(&upstream(hasty)).await else { panic!("there was an answer") };
        assert!(why.contains("no answer within 600 ms"), "{why}");
    });
    assert_eq!(server.seen().len(), 1);
    drop(open);
}

#[test]
fn a_reset_after_the_question_is_of_unknown_outcome() {
    let server = Server::new(|_, _| Ok(()));
    run(async {
        assert!(matches!(ask(&upstream(target(server.port()))).await, Err(Failed::Unknown(_))));
    });
    assert_eq!(server.seen().len(), 1);
    let server = Server::new(|_, out| out.write_all(b"HTTP/1.1 200"));
    run(async { assert!(matches!(ask(&upstream(target(server.port()))).await, Err(Failed::Unknown(_)))) });
    let server = Server::new(|_, out| out.write_all(b"SSH-2.0-OpenSSH\r\n\r\n"));
    run(async { assert!(matches!(ask(&upstream(target(server.port()))).await, Err(Failed::Unknown(_)))) });
}

#[test]
fn half_an_answer_is_broken() {
    let server = Server::new(|_, out| out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"));
    run(async {
        let upstream = upstream(target(server.port()));
        for _ in 0..3 {
            let (text, broken) = read(ask(&upstream).await.unwrap()).await.unwrap_err();
            assert_eq!(text, "half");
            assert!(matches!(broken, Broken::Lost { .. }), "{broken}");
        }
        assert!(matches!(ask(&upstream).await, Err(Failed::CircuitOpen { .. })), "it is a failure like others");
    });
}

#[test]
fn silence_between_two_pieces_ends_it() {
    let (open, gate) = Gate::new();
    let server = Server::new(move |_, out| {
        out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst")?;
        out.flush()?;
        gate.wait();
        Ok(())
    });
    run(async {
        let incoming = ask(&upstream(Target { idle_ms: 100, ..target(server.port()) })).await.unwrap();
        let (text, broken) = read(incoming).await.unwrap_err();
        assert_eq!(text, "first");
        assert!(matches!(broken, Broken::TimedOut { idle_ms: 100, .. }), "{broken}");
    });
    drop(open);
}

#[test]
fn a_drip_ends_with_the_time_for_all_of_it() {
    let server = Server::new(|_, out| {
        out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
        for _ in 0..1_000 {
            out.write_all(b"x")?;
            out.flush()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    });
    run(async {
        let begun = Instant::now();
        let incoming =
            ask(&upstream(Target { connect_ms: 1_000, total_ms: 1_500, ..target(server.port()) })).await.unwrap();
        let (text, broken) = read(incoming).await.unwrap_err();
        assert!(!text.is_empty() && matches!(broken, Broken::TimedOut { .. }), "{broken}");
        assert!(begun.elapsed() < Duration::from_secs(8));
    });
}

#[test]
fn an_answer_grows_no_larger_than_it_may() {
    let server = Server::new(|_, out| {
        out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")?;
        let piece = [b'x'; 10_000];
        (0..1_000).try_for_each(|_| out.write_all(&piece))
    });
    run(async {
        let incoming = ask(&upstream(Target { body_bytes_max: 50_000, ..target(server.port()) })).await.unwrap();
        let (text, broken) = read(incoming).await.unwrap_err();
        assert!(text.len() <= 50_000);
        assert!(matches!(broken, Broken::TooLarge { bytes_max: 50_000, .. }), "{broken}");
    });
}

#[test]
fn who_cannot_be_trusted_is_told_nothing() {
    let (tls, pem) = certificate("localhost");
    let server = Server::with(Some(tls), |_, out| out.write_all(answer(200, &[], "hello").as_bytes()));
    let target = Target { base_url: format!("https://localhost:{}", server.port()), ..target(server.port()) };
    run(async {
        let Err(Failed::NeverSent(why)) = ask(&upstream(target.clone())).await else { panic!("it was trusted") };
        assert!(why.contains("certificate"), "{why}");
        assert!(server.seen().is_empty());
        let trusting = Upstream::new(target.clone(), Some(pem.as_bytes())).unwrap();
        assert_eq!(read(ask(&trusting).await.unwrap()).await.unwrap(), "hello");
        let plain = Target { base_url: format!("http://localhost:{}", server.port()), ..target.clone() };
        assert!(matches!(ask(&upstream(plain)).await, Err(Failed::Unknown(_))));
    });
    for bad in [&b"no certificate"[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b""] {
        assert!(Upstream::new(target.clone(), Some(bad)).is_err());
    }
}

#[test]
fn one_connection_serves_many_questions() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&connections);
    let serving = move || {
        for stream in listener.incoming().take(1) {
            counted.fetch_add(1, Ordering::Relaxed);
            serve_on(stream.unwrap());
        }
    };
    std::thread::Builder::new().spawn(serving).unwrap();
    run(async {
        let upstream = upstream(target(port));
        for _ in 0..5 {
            assert_eq!(read(ask(&upstream).await.unwrap()).await.unwrap(), "ok");
        }
    });
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

/// Answers until the other side has gone.
fn serve_on(mut stream: TcpStream) {
    let mut kept = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        kept.extend_from_slice(&piece[..count]);
        if kept.ends_with(b"{\"q\":1}") {
            kept.clear();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    }
}

#[test]
fn a_key_is_shown_nowhere() {
    let whole = Target { headers: vec![("x-secret".into(), KEY.into())], ..target(1) };
    let upstream = upstream(whole.clone());
    assert!(!format!("{whole:?} {upstream:?}").contains("sk-very"));
    run(async {
        let Err(failed) = ask(&upstream).await else { panic!("somebody is there") };
        assert!(!format!("{failed} {failed:?}").contains("sk-very"));
        let path = format!("chat/completions?key={KEY}");
        let Err(failed) = upstream.send(&path, Bytes::new(), "k", &[]).await else { panic!("somebody is there") };
        assert!(!format!("{failed} {failed:?}").contains("sk-very"), "{failed}");
    });
    let server = Server::new(|_, out| out.write_all(format!("HTTP/1.1 {KEY}\r\n\r\n").as_bytes()));
    let upstream = Upstream::new(target(server.port()), None).unwrap();
    run(async {
        let Err(failed) = ask(&upstream).await else { panic!("an answer") };
        assert!(!format!("{failed:?}").contains("sk-very"));
    });
}

#[test]
fn bad_targets_and_paths_are_refused() {
    let with = |change: &dyn Fn(&mut Target)| {
        let mut target = target(1);
        change(&mut target);
        Upstream::new(target, None).map(drop).map_err(|e| e.to_string())
    };
    for url in ["", "x", "ftp://a/", "http://u:p@a/", "http://a/?k=1", "http://a/#x", "file:///etc/passwd"] {
        assert!(with(&|target| target.base_url = url.to_owned()).unwrap_err().contains("base_url"), "{url}");
    }
    assert!(with(&|target| target.key = Some("a\nb".into())).unwrap_err().contains("line ends"));
    assert!(with(&|target| target.key = None).unwrap_err().contains("has none"));
    assert!(with(&|target| target.headers = vec![("a b".into(), "x".into())]).unwrap_err().contains("a b"));
    assert!(with(&|target| target.headers = vec![("a".into(), "x\r\ny: z".into())]).is_err());
    assert!(with(&|target| target.attempts_max = 0).is_err() && with(&|target| target.attempts_max = 11).is_err());
    assert!(with(&|target| target.total_ms = target.connect_ms).is_err());
    assert!(with(&|target| target.idle_ms = 0).is_err() && with(&|target| target.total_ms = u64::MAX).is_err());
    let upstream = upstream(target(1));
    run(async {
        for path in ["../x", "a/../../x", "@evil/", "a#b", "a\\b", &"x".repeat(5_000)] {
            let sent = upstream.send(path, Bytes::new(), "k", &[]).await;
            assert!(matches!(sent, Err(Failed::NeverSent(why)) if why.contains("no path")), "{path}");
        }
        assert!(matches!(upstream.send("a", Bytes::new(), "k\n", &[]).await, Err(Failed::NeverSent(_))));
        let header = [("anthropic-beta".to_owned(), "a\r\nb: c".to_owned())];
        assert!(matches!(upstream.send("a", Bytes::new(), "k", &header).await, Err(Failed::NeverSent(_))));
    });
}
