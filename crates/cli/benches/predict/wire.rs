//! The servers beside ours, and who asks them: an upstream that echoes, a bare pass-through of axum and reqwest, callers on
//! connections that stay. All as cheap as can be, since they share the two processors with what is measured.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const BUFFER_BYTES: usize = 16 << 10;

pub(crate) fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().expect("a runtime")
}

/// Serves until it is killed; the first line put out is the address.
pub(crate) fn serve(role: &str, rest: &[String]) {
    match (role, rest) {
        ("serve-echo", _) => runtime(1).block_on(echo()),
        ("serve-pass", [upstream]) => runtime(2).block_on(pass(upstream)),
        _ => panic!("there is no {role}"),
    }
}

async fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr().expect("an address")).and_then(|()| out.flush()).expect("it is told");
    listener
}

/// One message of HTTP with a known length: its head's end, and all it has.
fn whole(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).expect("a head is text");
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().expect("a length"))
    });
    // Only what asks for something has none.
    let all = head + length.unwrap_or(0);
    (bytes.len() >= all).then_some(all)
}

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"echo","choices":[{"index":0,"message":{"role":"assistant","content":"An echo comes back from the wall."},"finish_reason":"stop"}],"usage":{"prompt_tokens":57,"completion_tokens":8,"total_tokens":65}}"#;

async fn echo() {
    let listener = listen().await;
    let answer: Arc<str> = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    )
    .into();
    let mut all = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let answer = Arc::clone(&answer);
        all.spawn(async move {
            stream.set_nodelay(true).expect("a socket");
            let mut held = Vec::with_capacity(BUFFER_BYTES);
            while stream.read_buf(&mut held).await.is_ok_and(|n| n > 0) {
                while let Some(end) = whole(&held) {
                    held.drain(..end);
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}

/// Hands on, and knows nothing of what.
async fn pass(upstream: &str) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let state = (reqwest::Client::new(), format!("http://{upstream}/v1/chat/completions"));
    let hand_on = async |State((client, url)): State<(reqwest::Client, String)>, body: Bytes| {
        let request = client.post(url).header(header::CONTENT_TYPE, "application/json").body(body);
        let answer = request.send().await.expect("it answers");
        let status = StatusCode::from_u16(answer.status().as_u16()).expect("a status");
        let body = answer.bytes().await.expect("it ends");
        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    };
    let router = Router::new().fallback(hand_on).with_state(state);
    axum::serve(axum::serve::ListenerExt::tap_io(listen().await, |stream| drop(stream.set_nodelay(true))), router)
        .await
        .expect("it serves");
}

/// Whom callers ask, and with which key.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    pub key: String,
    /// None for the upstream: nobody asks what it costs.
    pub pid: Option<u32>,
}

/// No two questions are the same: who asks the same again and again makes no progress.
static QUESTIONS: AtomicU64 = AtomicU64::new(0);

fn question(server: &Server) -> Vec<u8> {
    let n = QUESTIONS.fetch_add(1, Ordering::Relaxed);
    let body = format!(
        r#"{{"model":"echo","max_tokens":64,"temperature":0,"messages":[{{"role":"system","content":"You are a wall. Say what was said to you."}},{{"role":"user","content":"Hello number {n}, how are things on your side of the valley today?"}}]}}"#
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.address,
        server.key,
        body.len()
    )
    .into_bytes()
}

pub(crate) struct Caller {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Caller {
    pub(crate) async fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, held: Vec::with_capacity(BUFFER_BYTES) }
    }

    /// Asks once; how long it took.
    pub(crate) async fn ask(&mut self, server: &Server) -> Duration {
        let question = question(server);
        let start = Instant::now();
        self.stream.write_all(&question).await.expect("it listens");
        let end = loop {
            if let Some(end) = whole(&self.held) {
                break end;
            }
            let read = self.stream.read_buf(&mut self.held).await.expect("it answers");
            assert!(read > 0, "{} hung up: {}", server.name, String::from_utf8_lossy(&self.held));
        };
        let took = start.elapsed();
        let is_well = self.held.starts_with(b"HTTP/1.1 200");
        assert!(is_well, "{}: {}", server.name, String::from_utf8_lossy(&self.held));
        self.held.drain(..end);
        took
    }
}

/// So many callers at once for a while: how many were answered, and how long each took, in milliseconds.
pub(crate) fn storm(runtime: &Runtime, server: &Server, callers: usize, lasts: Duration) -> (f64, Vec<f64>) {
    runtime.block_on(async {
        let mut all = JoinSet::new();
        let start = Instant::now();
        for _ in 0..callers {
            let server = server.clone();
            all.spawn(async move {
                let mut caller = Caller::new(&server).await;
                let mut times = Vec::new();
                while start.elapsed() < lasts {
                    times.push(caller.ask(&server).await.as_secs_f64() * 1e3);
                }
                times
            });
        }
        let times: Vec<f64> = all.join_all().await.into_iter().flatten().collect();
        (times.len() as f64 / start.elapsed().as_secs_f64(), times)
    })
}
