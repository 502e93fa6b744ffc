//! The bridge from outside, as a program in a cell sees it: with tools that only pretend.

mod conformance;
mod hostile;
mod http;
mod mcp;
mod models;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use actum_api::{client, error};
use serde_json::{Value, json};

use crate::bridge::{Bridge, Call, Offered, Patience, Refused, Tools};

const TOKEN: &str = "f00dbabe";
/// Longer than anything here takes, so that a hang becomes a failure.
const LONG: Duration = Duration::from_secs(20);
/// Short enough to be waited for.
const SHORT: Duration = Duration::from_millis(300);

fn tools_only(token: &str, fake: &Arc<Fake>) -> Offered {
    Offered { tools: Some((token.to_owned(), Arc::clone(fake) as Arc<dyn Tools>)), models: None }
}

#[derive(Default)]
struct Fake {
    running: AtomicUsize,
    most: AtomicUsize,
    started: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Fake {
    fn hang(&self, cancelled: &AtomicBool) -> Result<Value, Refused> {
        while !cancelled.load(Ordering::Acquire) {
            sleep(Duration::from_millis(2));
        }
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        Err(Refused::named(error::EXECUTION_INTERRUPTED, "cancelled", &Value::Null, None))
    }
}

impl Tools for Fake {
    fn list(&self, level: &str, tool: Option<&str>) -> Result<Value, Refused> {
        Ok(json!({"level": level, "tool": tool, "adapters": [{"adapter_id": "grep-cli", "tool_id": "grep"}]}))
    }

    fn show(&self, id: &str, level: &str) -> Result<Value, Refused> {
        match id {
            "unknown" => {
                let hint = Some("list_tools shows what there is");
                Err(Refused::named(error::NOT_FOUND, "there is no `unknown`", &json!({"id": id}), hint))
            }
            "list" => Ok(json!([1, 2])),
            _ => Ok(json!({"id": id, "level": level})),
        }
    }

    fn call(&self, call: Call, cancelled: &Arc<AtomicBool>) -> Result<Value, Refused> {
        self.started.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let answer = match call.tool.as_str() {
            "hang" => self.hang(cancelled),
            "slow" => {
                sleep(Duration::from_millis(20));
                Ok(json!({"exit_code": 0}))
            }
            "large" => Ok(json!("x".repeat(8 << 20))),
            "failed" => Ok(json!({"status": "timeout", "exit_code": 143})),
            "broken" => panic!("a tool that fails"),
            "refused" => Err(Refused::named(error::APPROVAL_NEEDED, "ask first", &Value::Null, Some("ask a person"))),
            _ => Ok(json!({
                "tool": call.tool, "adapter": call.adapter, "operation": call.operation, "params": call.params,
                "cancelled": cancelled.load(Ordering::Acquire),
            })),
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

struct Served {
    bridge: Option<Bridge>,
    fake: Arc<Fake>,
    at: SocketAddr,
    url: String,
}

fn served() -> Served {
    served_with(Patience { head: LONG, body: LONG, write: LONG })
}

fn served_with(patience: Patience) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let fake = Arc::new(Fake::default());
    let bridge = Bridge::serve_with(listener, tools_only(TOKEN, &fake), patience).unwrap();
    Served { bridge: Some(bridge), fake, at, url: format!("http://{at}/t/{TOKEN}") }
}

impl Served {
    fn get(&self, path: &str) -> (u16, Value) {
        client::ask(&self.url, "GET", path, None, LONG).unwrap()
    }

    fn call(&self, body: &Value) -> (u16, Value) {
        client::ask(&self.url, "POST", "/v1/call", Some(body), LONG).unwrap()
    }

    fn end(&mut self) {
        self.bridge.take().unwrap().end();
    }

    /// A connection on which this was said.
    fn say(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    fn post(&self, path: &str, content: &str) -> String {
        format!(
            "POST /t/{TOKEN}{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{content}",
            content.len()
        )
    }
}

/// All that is said until the other side closes. A connection that is reset has ended too.
pub(crate) fn heard(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    if let Err(error) = stream.read_to_end(&mut text) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "still open: {}", String::from_utf8_lossy(&text));
    }
    String::from_utf8_lossy(&text).into_owned()
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}
