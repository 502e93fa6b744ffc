//! Webhooks by way of the real binary: somebody on loopback who fails in every way, signatures checked by another program, a server
//! that is killed before it could write down what was delivered, and several servers on one store.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use actum_testkit::event::signal;
use actum_testkit::postgres::shared_url;
use actum_testkit::program::{self, Program, Running};
use serde_json::{Value, json};

use super::actum;
use super::run::asked;
use super::runs::until;
use super::serve::{Server, of, token};

/// What arrived: the headers that count, and the content.
#[derive(Debug, Clone, PartialEq)]
struct Got {
    id: String,
    at: String,
    signature: String,
    body: String,
}

impl Got {
    fn entry(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(body["type"], body["data"]["type"]);
        assert_eq!(body["timestamp"], body["data"]["createdAt"]);
        body["data"]["id"].as_str().unwrap().to_owned()
    }
}

/// What is answered to a delivery.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Status(u16),
    /// The connection is closed without a word.
    Nothing,
    /// Nothing is said, and the connection stays open.
    Silence,
}

/// Somebody who is told, and answers by a script; 204 when that is over.
struct Receiver {
    at: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Receiver {
    fn new(script: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, got) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Got>>>::default());
        let (heard, script) = (Arc::clone(&got), script.to_vec());
        // It lives as long as the tests do; nobody connects to it any more by then.
        let serving = move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(one) = read(&stream) else { continue };
                let number = {
                    let mut heard = heard.lock().unwrap();
                    heard.push(one);
                    heard.len() - 1
                };
                match script.get(number).copied().unwrap_or(Answer::Status(204)) {
                    Answer::Status(status) => {
                        let head =
                            format!("HTTP/1.1 {status} X\r\nlocation: /elsewhere\r\ncontent-length: 2\r\n\r\nno");
                        let _ = stream.write_all(head.as_bytes());
                    }
                    Answer::Nothing => {}
                    Answer::Silence => held.push(stream),
                }
            }
        };
        thread::Builder::new().spawn(serving).unwrap();
        Self { at, got }
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    fn url(&self) -> String {
        format!("http://{}/told?by=actum", self.at)
    }

    /// A project that may tell it.
    fn project(&self) -> Program {
        let actum = actum();
        self.allow(&actum);
        actum
    }

    fn allow(&self, actum: &Program) {
        actum.file("actum.toml", format!("[server]\nwebhook_hosts = [\"{}\"]\n", self.at));
    }
}

fn read(stream: &TcpStream) -> Option<Got> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let field = |name: &str| {
        let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_default().to_owned()
    };
    assert!(head.starts_with("POST /told?by=actum HTTP/1.1\r\n"), "{head}");
    assert_eq!(field("content-type"), "application/json");
    let mut body = vec![0; field("content-length").parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(Got {
        id: field("webhook-id"),
        at: field("webhook-timestamp"),
        signature: field("webhook-signature"),
        body: String::from_utf8(body).unwrap(),
    })
}

fn add(actum: &Program, url: &str, more: &[&str]) -> (String, String) {
    let made = asked(actum, &[&["webhook", "add", url, "--json"], more].concat());
    let text = |field: &str| made[field].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (text("id"), text("secret"))
}

fn append(actum: &Program, ids: std::ops::Range<u64>) {
    let lines: Vec<String> = ids.map(|n| signal("local", &format!("s-{n}")).to_string()).collect();
    let ended = actum.run_with(&["ledger", "append", "-"], lines.join("\n").as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn show(actum: &Program, id: &str) -> Value {
    asked(actum, &["webhook", "show", id, "--json"])
}

/// As a receiver in another language would check it.
fn is_signed(secret: &str, got: &Got) -> bool {
    let check = "import sys, json, hmac, hashlib, base64\n\
                 g = json.load(sys.stdin)\n\
                 key = base64.b64decode(g['secret'][len('whsec_'):])\n\
                 text = f\"{g['id']}.{g['at']}.{g['body']}\".encode()\n\
                 want = 'v1,' + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()\n\
                 sys.exit(0 if hmac.compare_digest(want, g['signature']) else 1)";
    let mut python = program::other("python3");
    python.args(["-c", check]);
    let given = json!({"secret": secret, "id": got.id, "at": got.at, "body": got.body, "signature": got.signature});
    program::run(python, given.to_string().as_bytes()).code == 0
}

#[test]
fn entries_are_told_in_order_whatever_goes_wrong_on_the_way() {
    let receiver = Receiver::new(&[Answer::Status(500), Answer::Nothing, Answer::Status(302)]);
    let actum = receiver.project();
    append(&actum, 0..3);
    let (id, secret) = add(&actum, &receiver.url(), &["--types", "signal", "--name", "ci"]);
    let server = Server::start(&actum, &["--workers", "0"]);
    append(&actum, 3..8);
    until("all is told", || receiver.got().len() == 8);
    let got = receiver.got();
    // Only what came after it was added; the first one as often as it failed, under one id.
    let entries: Vec<String> = got.iter().map(Got::entry).collect();
    assert_eq!(entries, ["s-3", "s-3", "s-3", "s-3", "s-4", "s-5", "s-6", "s-7"]);
    assert!(got[..4].iter().all(|one| one.id == got[0].id && one.body == got[0].body));
    let mut ids: Vec<&str> = got.iter().map(|one| one.id.as_str()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    for one in &got {
        assert!(is_signed(&secret, one), "{one:?}");
        assert!(!is_signed(&secret, &Got { body: one.body.replace("signal", "Signal"), ..one.clone() }));
    }
    until("written down", || show(&actum, &id)["status"] == "active");
    let shown = show(&actum, &id);
    assert_eq!((&shown["failures"], &shown["last_error"]), (&json!(0), &Value::Null));
    // The secret is nowhere to be seen again, nor in the ledger.
    let ledger = actum.run(&["ledger", "list", "--limit", "1000"]).ok();
    for told in [shown.to_string(), asked(&actum, &["webhook", "list", "--json"]).to_string(), ledger] {
        assert!(!told.contains("whsec_") && !told.contains("by=actum"), "{told}");
    }
    let test = asked(&actum, &["webhook", "test", &id, "--json"]);
    assert_eq!((&test["delivered"], &test["status"]), (&json!(true), &json!(204)));
    let tested = receiver.got().pop().unwrap();
    assert!(tested.body.contains("webhook.test") && is_signed(&secret, &tested));
    asked(&actum, &["webhook", "remove", &id, "--json", "--reason", "moved"]);
    assert_eq!(actum.run(&["webhook", "show", &id]).code, 7);
    assert_eq!(actum.run(&["webhook", "remove", &id]).code, 7);
    let kept = asked(&actum, &["ledger", "show", &format!("webhook:{id}:2"), "--json"]);
    assert_eq!((&kept["payload"]["action"], &kept["payload"]["reason"]), (&json!("remove"), &json!("moved")));
    assert_eq!(server.stop().0, 0);
}

#[test]
fn who_never_answers_is_asked_again_and_holds_nobody_up() {
    let (silent, quick) = (Receiver::new(&[Answer::Silence]), Receiver::new(&[]));
    let actum = actum();
    actum.file("actum.toml", format!("[server]\nwebhook_hosts = [\"{}\", \"{}\"]\n", silent.at, quick.at));
    let (slow, _) = add(&actum, &silent.url(), &["--types", "signal"]);
    add(&actum, &quick.url(), &["--types", "signal"]);
    let _server = Server::start(&actum, &["--workers", "0"]);
    append(&actum, 0..2);
    until("the other is told", || quick.got().len() == 2);
    assert!(silent.got().len() <= 1);
    until("it is told again", || silent.got().len() == 3);
    assert_eq!(silent.got()[0].id, silent.got()[1].id);
    until("written down", || show(&actum, &slow)["status"] == "active");
}

#[test]
fn who_is_gone_is_told_nothing_more_until_somebody_says_so() {
    let receiver = Receiver::new(&[Answer::Status(200), Answer::Status(410)]);
    let actum = receiver.project();
    let (id, _) = add(&actum, &receiver.url(), &["--types", "signal"]);
    let _server = Server::start(&actum, &["--workers", "0"]);
    append(&actum, 0..3);
    until("it is disabled", || show(&actum, &id)["status"] == "disabled");
    let shown = show(&actum, &id);
    assert!(shown["disabled"].as_str().unwrap().contains("410"), "{shown}");
    let kept = asked(&actum, &["ledger", "show", &format!("webhook:{id}:2"), "--json"]);
    assert_eq!(kept["payload"]["action"], "disable");
    assert_eq!(receiver.got().len(), 2);
    assert_eq!(asked(&actum, &["webhook", "enable", &id, "--json"])["changed"], true);
    // It goes on with what it was not told.
    until("all is told", || receiver.got().len() == 4);
    let entries: Vec<String> = receiver.got().iter().map(Got::entry).collect();
    assert_eq!(entries, ["s-0", "s-1", "s-1", "s-2"]);
    assert_eq!(asked(&actum, &["webhook", "enable", &id, "--json"])["changed"], false);
}

/// After three days of nothing but failures nobody is told any more. Three days ago is written down; nobody waits for them.
#[test]
fn who_fails_for_days_is_given_up() {
    let receiver = Receiver::new(&[Answer::Status(500), Answer::Status(500)]);
    let actum = receiver.project();
    let (id, _) = add(&actum, &receiver.url(), &["--types", "signal"]);
    let age = |hours: i64| {
        let store = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
        let now_ms = jiff::Timestamp::now().as_millisecond();
        let sql = "UPDATE webhook SET failing_since_ms = ?1, next_try_ms = 0 WHERE id = ?2";
        assert_eq!(store.execute(sql, (now_ms - hours * 3_600_000, &id)).unwrap(), 1);
    };
    append(&actum, 0..1);
    age(71);
    let _server = Server::start(&actum, &["--workers", "0"]);
    until("it was tried", || receiver.got().len() == 1);
    until("it is tried on", || show(&actum, &id)["failures"] == 1);
    assert_eq!(show(&actum, &id)["status"], "failing");
    age(73);
    until("it is given up", || show(&actum, &id)["status"] == "disabled");
    assert!(show(&actum, &id)["disabled"].as_str().unwrap().contains("for 3 days"), "{}", show(&actum, &id));
    assert_eq!(receiver.got().len(), 2);
}

/// Killed when the answer had come and was not written down: it is told again, under the same id.
#[cfg(debug_assertions)]
#[test]
fn what_was_not_written_down_is_told_again_under_the_same_id() {
    let receiver = Receiver::new(&[]);
    let actum = receiver.project();
    add(&actum, &receiver.url(), &["--types", "signal"]);
    append(&actum, 0..2);
    let at = ["serve", "--json", "--listen", "127.0.0.1:0", "--workers", "0"];
    let mut running = actum.start(&at, &[("ACTUM_CRASH_AT", "webhook.delivered")]);
    while !running.error_line().unwrap().contains("crash point webhook.delivered") {}
    running.kill();
    assert_eq!(receiver.got().len(), 1);
    // As time does.
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    database.execute("UPDATE webhook SET lease_until_ms = 1", []).unwrap();
    let _server = Server::start(&actum, &["--workers", "0"]);
    until("it is told again", || receiver.got().len() == 3);
    let got = receiver.got();
    assert_eq!(got.iter().map(Got::entry).collect::<Vec<_>>(), ["s-0", "s-0", "s-1"]);
    assert_eq!((&got[0].id, &got[0].body), (&got[1].id, &got[1].body));
    assert_ne!(got[1].id, got[2].id);
}

/// Three servers on one PostgreSQL: each entry is told once, in order, while one of them is killed.
#[test]
fn of_several_servers_one_tells_at_a_time() {
    const ENTRIES: u64 = 60;
    let (receiver, url) = (Receiver::new(&[]), shared_url());
    let programs: Vec<Program> = (0..3).map(|_| receiver.project().on_store(&url)).collect();
    let (id, secret) = add(&programs[0], &receiver.url(), &["--types", "signal"]);
    let mut servers: Vec<Server> = programs.iter().map(|actum| Server::start(actum, &["--workers", "0"])).collect();
    append(&programs[0], 0..ENTRIES / 2);
    until("some is told", || receiver.got().len() >= 10);
    // One that holds nothing, or everything: whoever holds it is not told apart from here.
    servers.pop().unwrap().running.take().map(Running::kill);
    append(&programs[0], ENTRIES / 2..ENTRIES);
    until("all is told", || {
        // As time does, for what the killed one may have held: whoever lives holds it for longer.
        let last = receiver.got().last().map(Got::entry);
        last == Some(format!("s-{}", ENTRIES - 1)) || {
            let held = "UPDATE actum.webhook SET lease_until_ms = 1 WHERE lease_until_ms < \
                        (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 50000";
            actum_testkit::postgres::execute(&url, held);
            false
        }
    });
    let mut entries: Vec<String> = receiver.got().iter().map(Got::entry).collect();
    entries.dedup();
    assert_eq!(entries, (0..ENTRIES).map(|n| format!("s-{n}")).collect::<Vec<_>>());
    assert!(receiver.got().iter().all(|one| one.id.starts_with(&format!("msg_{id}_"))));
    assert!(is_signed(&secret, &receiver.got()[0]));
}

#[test]
fn not_every_address_may_be_told_and_not_everybody_says_whom() {
    let receiver = Receiver::new(&[]);
    let actum = receiver.project();
    // Where a name leads is the user's to say; that it may be told is another matter.
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{text}\n[sandbox]\nhosts = {{ \"near.test\" = \"127.0.0.1\" }}\n"));
    let named = format!("http://near.test:{}/", receiver.at.port());
    let made = asked(&actum, &["webhook", "add", &named, "--json"]);
    actum.run(&["webhook", "remove", made["id"].as_str().unwrap()]).ok();
    for (url, code) in [
        ("http://near.test:1/", 3),
        ("http://near.test/", 3),
        ("http://127.0.0.1:1/", 3),
        ("http://localhost:1/", 3),
        ("http://169.254.169.254/latest/meta-data", 3),
        ("http://[::1]/", 3),
        ("http://10.0.0.1/", 3),
        ("ftp://example.com/", 2),
        ("http://user:word@example.com/", 2),
        ("nothing", 2),
        ("", 2),
        (&format!("http://example.com/{}", "x".repeat(3_000)), 2),
    ] {
        let refused = actum.run(&["webhook", "add", url, "--json"]);
        assert_eq!(refused.code, code, "{url:.60}: {}", refused.stderr);
    }
    assert_eq!(actum.run(&["webhook", "add", &receiver.url(), "--types", "a\nb"]).code, 2);
    assert_eq!(asked(&actum, &["webhook", "list", "--json"])["webhooks"], json!([]));
    let server = Server::start(&actum, &["--workers", "0"]);
    let (admin, acme) = (token(&actum, "admin", &[]), of(&actum, "acme"));
    for role in ["reader", "operator", "approver"] {
        let key = token(&actum, role, &[]);
        assert_eq!(server.get(&key, "/v1/webhooks").status, 403);
        assert_eq!(server.post(&key, "/v1/webhooks", json!({"url": receiver.url()})).status, 403);
    }
    let made = server.post(&admin, "/v1/webhooks", json!({"url": receiver.url(), "types": ["signal"]})).is(201);
    let id = made["id"].as_str().unwrap();
    assert!(made["secret"].as_str().unwrap().starts_with("whsec_"));
    let path = format!("/v1/webhooks/{id}");
    assert_eq!(server.get(&admin, &path).is(200)["status"], "active");
    // Another tenant finds none of it, and is not told of these entries.
    assert_eq!(server.get(&acme, &path).status, 404);
    assert_eq!(server.ask(&acme, "DELETE", &path, "").status, 404);
    assert_eq!(server.post(&acme, &format!("{path}/test"), json!({})).status, 404);
    assert_eq!(server.get(&acme, "/v1/webhooks").is(200)["webhooks"], json!([]));
    server.post(&acme, "/v1/webhooks", json!({"url": receiver.url()})).is(201);
    append(&actum, 0..1);
    until("it is told", || receiver.got().len() == 1);
    assert_eq!(server.post(&admin, &format!("{path}/test"), json!({})).is(200)["delivered"], true);
    assert!(receiver.got().iter().all(|one| !one.body.contains("acme")));
    assert_eq!(server.ask(&admin, "DELETE", &path, "").is(200)["removed"], true);
    // Nobody writes such entries by hand.
    let forged = json!({"tenantId": "local", "module": "webhook", "source": "actum", "type": "webhook_change", "id": "x", "payload": {}});
    assert_eq!(actum.run_with(&["ledger", "append", "-"], forged.to_string().as_bytes()).code, 2);
}
