//! The server from outside, over real connections: with a face that only pretends, and writes down what it was asked.

mod content;
mod door;
mod end;
mod events;
mod hostile;
mod keep;
mod route;

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use actum_api::error;
use actum_api::route::{Method, Need, Route, get};
use serde_json::{Value, json};

use super::{Answer, Api, Bounds, Caller, Event, Face, Given, Line, Reached, Settings, Source, Wish};
use crate::bridge::Refused;
use crate::tests::heard;

/// Longer than anything here takes, so that a hang becomes a failure.
const LONG: Duration = Duration::from_secs(20);
/// Short enough to be waited for.
const SHORT: Duration = Duration::from_millis(300);

/// All events of a source, and what is said at its end.
type Happened = (Vec<Event>, Option<String>);

/// So many events are read at once.
const PAGE_EVENTS: usize = 7;

const fn row(method: Method, path: &'static str, need: Need, creates: bool) -> Route {
    Route { method, need, creates, ..get(path, &[], &[]) }
}

const ROUTES: &[Route] = &[
    row(Method::Get, "/v1/runs", Need::Read, false),
    row(Method::Post, "/v1/runs", Need::Operate, true),
    row(Method::Get, "/v1/runs/{run}", Need::Read, false),
    row(Method::Post, "/v1/runs/{run}/cancel", Need::Operate, false),
    row(Method::Post, "/v1/pointers/{signature}/promote", Need::Approve, true),
    row(Method::Delete, "/v1/tokens/{token}", Need::Admin, false),
    Route { streams: true, ..row(Method::Get, "/v1/events", Need::Read, false) },
    Route { streams: true, ..row(Method::Get, "/v1/runs/{run}/events", Need::Read, false) },
];

/// Does what it is told to by the content or by the name of a run.
#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<(Caller, &'static str, Given)>>,
    kept: Mutex<HashMap<[String; 3], (String, Answer)>>,
    entered: AtomicUsize,
    started: AtomicUsize,
    ended: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
    /// What has happened, by tenant and run, and what is said at its end.
    happened: Mutex<HashMap<Source, Happened>>,
    revoked: Mutex<Vec<String>>,
    looked: AtomicUsize,
    read: AtomicUsize,
}

impl Fake {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.opened.wait_timeout_while(self.is_open.lock().unwrap(), LONG, |is_open| !*is_open).unwrap();
        assert!(*is_open.0, "nobody opened");
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    fn last(&self) -> (Caller, &'static str, Given) {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

impl Face for Fake {
    fn enter(&self, token: &str) -> Result<Caller, Refused> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let (tenant, role) = match token.split_once('.').unwrap_or(("local", token)) {
            (tenant, role @ ("reader" | "operator" | "approver" | "admin")) => (tenant, role),
            (_, "down") => {
                return Err(Refused::named(error::STORE_UNAVAILABLE, "the store is away", &Value::Null, None));
            }
            (_, "broken") => panic!("a face that fails"),
            _ => return Err(Refused::named(error::UNAUTHORIZED, token, &json!("told too much"), None)),
        };
        Ok(Caller { tenant: tenant.into(), token: format!("id-{token}"), name: String::new(), role: role.into() })
    }

    fn may(&self, caller: &Caller, need: Need) -> bool {
        match caller.role.as_str() {
            "admin" => true,
            "operator" => matches!(need, Need::Read | Need::Operate),
            "approver" => matches!(need, Need::Read | Need::Approve),
            _ => need == Need::Read,
        }
    }

    fn answer(&self, caller: &Caller, route: &'static Route, given: Given) -> Answer {
        let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
        self.asked.lock().unwrap().push((caller.clone(), route.path, given.clone()));
        let json =
            |status, exit, body: Value| Answer::new(status, "application/json", body.to_string().into_bytes(), exit);
        let content: Value = serde_json::from_slice(&given.content).unwrap_or_default();
        let task = content["do"].as_str().or(given.path.get("run").map(String::as_str));
        let answer = match task {
            Some("hang") => {
                self.wait();
                json(200, 0, json!({ "number": number }))
            }
            Some("broken") => panic!("a command that fails"),
            Some("fail") => json(500, 70, json!({ "number": number })),
            Some("wait") => json(428, 8, json!({ "number": number })),
            Some("conflict") => json(409, 6, json!({ "number": number })),
            Some("same") => json(200, 0, json!({"always": "the same"})),
            Some("nonsense") => Answer { status: 9, content_type: "a\nb".to_owned(), ..json(200, 0, json!(1)) },
            Some("large") => json(200, 0, json!("x".repeat(8 << 20))),
            _ => json(route.status, 0, json!({ "number": number })),
        };
        self.ended.fetch_add(1, Ordering::SeqCst);
        answer
    }

    fn wish(&self, caller: &Caller, _: &'static Route, given: &Given) -> Result<Wish, Refused> {
        let source = Source { tenant: caller.tenant.clone(), run: given.path.get("run").cloned() };
        let happened = self.happened.lock().unwrap();
        if source.run.is_some() && !happened.contains_key(&source) {
            return Err(Refused::named(error::NOT_FOUND, "there is no such run", &Value::Null, None));
        }
        let query = |name: &str| given.query.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
        let bad = |_| Refused::named(error::USAGE, "after is no number", &Value::Null, None);
        let after = query("after").map(|text| text.parse().map_err(bad)).transpose()?;
        let types = query("types").map(|text| text.split(',').map(ToOwned::to_owned).collect()).unwrap_or_default();
        Ok(Wish { source, after, types })
    }

    fn reached(&self, source: &Source) -> Result<Reached, Refused> {
        self.looked.fetch_add(1, Ordering::SeqCst);
        let happened = self.happened.lock().unwrap();
        let Some((events, end)) = happened.get(source) else { return Ok(Reached::default()) };
        Ok(Reached { last: events.last().map(|event| event.id), end: end.clone() })
    }

    fn stretch(&self, source: &Source, after: Option<u64>) -> Result<Vec<Event>, Refused> {
        self.read.fetch_add(1, Ordering::SeqCst);
        let happened = self.happened.lock().unwrap();
        let all = happened.get(source).map(|(events, _)| events.as_slice()).unwrap_or_default();
        Ok(all.iter().filter(|event| Some(event.id) > after).take(PAGE_EVENTS).cloned().collect())
    }

    fn is_in(&self, caller: &Caller) -> Result<bool, Refused> {
        Ok(!self.revoked.lock().unwrap().contains(&caller.token))
    }

    fn kept(&self, caller: &Caller, key: &str, request_hash: &str) -> Result<Option<Answer>, Refused> {
        match self.kept.lock().unwrap().get(&name(caller, key)) {
            None => Ok(None),
            Some((hash, answer)) if hash == request_hash => Ok(Some(answer.clone())),
            Some(_) => Err(Refused::named(error::IDEMPOTENCY_CONFLICT, "another request", &Value::Null, None)),
        }
    }

    fn keep(&self, caller: &Caller, key: &str, request_hash: &str, answer: &Answer) {
        let kept = (request_hash.to_owned(), answer.clone());
        self.kept.lock().unwrap().insert(name(caller, key), kept);
    }

    fn admit_question(&self, _: &Caller, _: u64) -> Result<(), Refused> {
        Ok(())
    }

    fn note_question(&self, _: &Caller, _: u64) {}

    fn models(&self, _: &Caller) -> Result<Arc<dyn crate::Models>, Refused> {
        Err(Refused::named(error::NOT_FOUND, "there are no models here", &Value::Null, None))
    }

    fn openapi(&self) -> Arc<[u8]> {
        let document = json!({"openapi": "3.1.0", "info": {"title": "Actum", "version": "1"}, "paths": {
            "/v1/runs": {"get": {"summary": "List <runs>"}, "post": {"summary": "Submit"}},
        }});
        document.to_string().into_bytes().into()
    }

    fn ready(&self) -> Result<(), String> {
        if self.asked.lock().unwrap().is_empty() { Ok(()) } else { Err("somebody has asked".to_owned()) }
    }

    fn metrics(&self, _: Option<&Caller>) -> String {
        "actum_up 1\n".to_owned()
    }
}

fn name(caller: &Caller, key: &str) -> [String; 3] {
    [caller.tenant.clone(), caller.token.clone(), key.to_owned()]
}

struct Served {
    api: Option<Api>,
    fake: Arc<Fake>,
    lines: Arc<Mutex<Vec<Line>>>,
    at: SocketAddr,
}

fn patient() -> Bounds {
    Bounds { head: LONG, body: LONG, write: LONG, turn: LONG, ..Bounds::default() }
}

fn served() -> Served {
    served_with("127.0.0.1:0", Settings { requests_per_second: 0, ..Settings::default() }, patient())
}

fn served_with(at: &str, settings: Settings, bounds: Bounds) -> Served {
    let listener = TcpListener::bind(at).unwrap();
    let mut at = listener.local_addr().unwrap();
    at.set_ip([127, 0, 0, 1].into());
    let (fake, lines) = (Arc::new(Fake::default()), Arc::<Mutex<Vec<Line>>>::default());
    let heard = Arc::clone(&lines);
    let settings = Settings {
        request_prefix: "test".to_owned(),
        log: Some(Arc::new(move |line: &Line| heard.lock().unwrap().push(line.clone()))),
        ..settings
    };
    let face = Arc::clone(&fake) as Arc<dyn Face>;
    let api = Api::serve_with(listener, face, ROUTES, settings, bounds).unwrap();
    Served { api: Some(api), fake, lines, at }
}

impl Drop for Served {
    fn drop(&mut self) {
        // What hangs would outlive the test.
        self.fake.open();
    }
}

/// An answer as it was heard.
#[derive(Debug, Clone)]
struct Heard {
    status: u16,
    head: String,
    body: String,
}

impl Heard {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{} {}", self.head, self.body))
    }

    /// The code of an error, in the form that every error has.
    fn code(&self) -> String {
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error.get("details").is_some(), "{error}");
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Served {
    /// A connection on which this was said.
    fn say(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // Whoever is refused early may find the connection closed.
        let _ = stream.write_all(text.as_bytes());
        stream
    }

    /// The answer to this as the only request of a connection.
    fn raw(&self, text: &str) -> Heard {
        Heard::of(&heard(self.say(text)))
    }

    fn ask(&self, method: &str, target: &str, token: &str, headers: &str, content: &str) -> Heard {
        self.raw(&request(method, target, token, &format!("connection: close\r\n{headers}"), content))
    }

    fn get(&self, target: &str) -> Heard {
        self.ask("GET", target, "reader", "", "")
    }

    fn post(&self, target: &str, headers: &str, content: &str) -> Heard {
        self.ask("POST", target, "admin", headers, content)
    }

    fn lines(&self) -> Vec<Line> {
        self.lines.lock().unwrap().clone()
    }
}

fn request(method: &str, target: &str, token: &str, headers: &str, content: &str) -> String {
    let token = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    let kind = match content {
        "" => String::new(),
        _ if headers.contains("content-type") => format!("content-length: {}\r\n", content.len()),
        _ => format!("content-type: application/json\r\ncontent-length: {}\r\n", content.len()),
    };
    format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n{token}{kind}{headers}\r\n{content}")
}
