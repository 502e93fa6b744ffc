//! `actum serve` by way of the real binary: who may enter and do what, whose things are seen, runs over HTTP, the end of a
//! server, and several servers on one store.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use actum_api::client::encode;
use actum_api::route::{Method, Need, Place, ROUTES, Route};
use actum_testkit::postgres::shared_url;
use actum_testkit::program::{Program, Running};
use actum_testkit::tree;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::predict::{SIGNATURE, demo};
use super::run::{asked, item, project};
use super::runs::until;

const SILENCE: Duration = Duration::from_secs(60);
const ID: &str = "demo/Sentiment.v1";

/// A server under way; gone with the test, however that ends.
pub(crate) struct Server {
    pub running: Option<Running>,
    pub at: SocketAddr,
    pub told: Value,
}

impl Server {
    pub(crate) fn start(actum: &Program, more: &[&str]) -> Self {
        let at = if more.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] };
        let mut running = actum.start(&[&["serve", "--json", "--rate", "0"], at, more].concat(), &[]);
        let Some(line) = running.line() else { panic!("{:?}", running.finish()) };
        let told: Value = serde_json::from_str(&line).unwrap();
        let mut at: SocketAddr = told["listen"].as_str().unwrap().parse().unwrap();
        assert_eq!(told["url"], format!("http://{at}"));
        if at.ip().is_unspecified() {
            at.set_ip([127, 0, 0, 1].into());
        }
        Self { running: Some(running), at, told }
    }

    pub(crate) fn ask(&self, token: &str, method: &str, path: &str, content: &str) -> Reply {
        self.ask_with(method, path, &[("authorization", &format!("Bearer {token}"))], content)
    }

    pub(crate) fn get(&self, token: &str, path: &str) -> Reply {
        self.ask(token, "GET", path, "")
    }

    pub(crate) fn post(&self, token: &str, path: &str, content: Value) -> Reply {
        self.ask(token, "POST", path, &content.to_string())
    }

    /// With these headers, and those that no request does without unless they are among them.
    pub(crate) fn ask_with(&self, method: &str, path: &str, headers: &[(&str, &str)], content: &str) -> Reply {
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        let mut add = |name: &str, value: &str| request.push_str(&format!("{name}: {value}\r\n"));
        headers.iter().for_each(|(name, value)| add(name, value));
        if !headers.iter().any(|(name, _)| *name == "host") {
            add("host", &self.at.to_string());
        }
        // Whoever takes everything would go on listening where that can be done.
        if !headers.iter().any(|(name, _)| *name == "accept") {
            add("accept", "application/json");
        }
        if !content.is_empty() {
            let kind = if content.starts_with(['{', '[']) { "json" } else { "yaml" };
            add("content-type", &format!("application/{kind}"));
            add("content-length", &content.len().to_string());
        }
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.write_all(format!("{request}\r\n{content}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
        let is_same = |line: &&str| !line.starts_with("x-request-id:") && !line.starts_with("date:");
        Reply {
            status: head[9..12].parse().unwrap(),
            head: head.lines().filter(is_same).collect::<Vec<_>>().join("\n"),
            body: body.to_owned(),
        }
    }

    /// Told to stop; its exit code, and what it had to say.
    pub(crate) fn stop(mut self) -> (i32, Vec<String>) {
        let running = self.running.take().unwrap();
        running.signal("TERM");
        let (code, _, errors) = running.finish();
        (code, errors)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.take().map(Running::kill);
    }
}

/// An answer, without what is never the same.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// It has to be answered with this status.
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }
}

pub(crate) fn token(actum: &Program, role: &str, more: &[&str]) -> String {
    let made = asked(actum, &[&["token", "create", "--json", "--role", role, "--name", role], more].concat());
    made["token"].as_str().unwrap().to_owned()
}

pub(super) fn of(actum: &Program, tenant: &str) -> String {
    token(actum, "admin", &["--tenant", tenant])
}

/// The path of a route, with the same text for every name in it.
fn path(route: &Route, text: &str) -> String {
    let name = |segment: &str| if segment.starts_with('{') { encode(text) } else { segment.to_owned() };
    route.path.split('/').map(name).collect::<Vec<_>>().join("/")
}

/// Content that a route may take.
fn content(route: &Route) -> &'static str {
    match route.method {
        Method::Post if route.args.iter().any(|arg| arg.place != Place::Path) => "{}",
        _ => "",
    }
}

/// All that a project remembers and all that it has.
fn remembered(actum: &Program) -> (Value, tree::Leaves, i64) {
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    let kept = database.query_row("SELECT count(*) FROM kept_answer", [], |row| row.get(0)).unwrap();
    (asked(actum, &["ledger", "list", "--json", "--limit", "1000"]), tree::read(actum.folder()), kept)
}

#[test]
fn nobody_enters_without_a_token_and_nobody_does_what_his_role_does_not_allow() {
    let actum = project(&[("a", "true")]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let reader = token(&actum, "reader", &[]);
    let before = remembered(&actum);
    let openapi = server.ask_with("GET", "/openapi.json", &[], "").is(200);
    let mut asked = 0;
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let route = ROUTES.iter().find(|one| one.path == path && one.method.word() == method).unwrap();
            assert_eq!(operation["x-actum-need"], route.need.word(), "{path}");
            let target = self::path(route, "none");
            let nobody = server.ask_with(&method, &target, &[("idempotency-key", "k")], content(route));
            assert_eq!((nobody.status, nobody.head.contains("www-authenticate: Bearer")), (401, true), "{path}");
            let bearer = format!("Bearer {reader}");
            let headers = [("authorization", bearer.as_str()), ("idempotency-key", "k")];
            let looked = server.ask_with(&method, &target, &headers, content(route));
            assert_eq!(looked.status == 403, route.need != Need::Read, "{method} {path}: {looked:?}");
            assert!(looked.status < 500, "{method} {path}: {looked:?}");
            asked += 1;
        }
    }
    assert_eq!(asked, ROUTES.len());
    assert_eq!(remembered(&actum), before);
}

#[test]
fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
    let actum = actum();
    let server = Server::start(&actum, &["--workers", "0"]);
    let first = server.told["token"].as_str().unwrap().to_owned();
    let [good, revoked, expired] = ["good", "revoked", "expired"].map(|name| {
        let made = asked(&actum, &["token", "create", "--json", "--role", "admin", "--name", name, "--expires", "1h"]);
        made["token"].as_str().unwrap().to_owned()
    });
    for token in [&first, &good, &revoked, &expired] {
        server.get(token, "/v1/status").is(200);
    }
    actum.run(&["token", "revoke", &revoked[6..22]]).ok();
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    database.execute("UPDATE token SET expires_ms = 1 WHERE name = 'expired'", []).unwrap();
    let last = if good.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &good[..good.len() - 1]);
    let unknown = format!("actum_{}_{}", "0".repeat(16), &good[23..]);
    let bearer = |token: &str| vec![("authorization", format!("Bearer {token}"))];
    let cases = [
        vec![],
        bearer(&wrong),
        bearer(&unknown),
        bearer(&format!("{}{}", &revoked[..23], &good[23..])),
        bearer(&revoked),
        bearer(&expired),
        bearer(&good[6..]),
        bearer(&good[..22]),
        bearer(&good.to_uppercase()),
        bearer(&format!("{good} {good}")),
        bearer(&format!("{good},{first}")),
        bearer("%00"),
        bearer(""),
        bearer(&"a".repeat(5_000)),
        [bearer(&good), bearer(&good)].concat(),
        [bearer(&good), bearer(&wrong)].concat(),
        vec![("authorization", format!("Basic {good}"))],
        vec![("authorization", good.clone())],
        vec![("cookie", format!("token={good}"))],
        vec![("x-api-key", good.clone())],
    ];
    let ask = |path: &str, headers: &[(&str, String)]| {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        server.ask_with("GET", path, &headers, "")
    };
    let refused = ask("/v1/status", &[]);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (401, &json!("UNAUTHORIZED")));
    for headers in &cases {
        for path in ["/v1/status", "/v1/runs/none", "/v1/nothing", "/v1/status?token=x"] {
            assert_eq!(ask(path, headers), refused, "{path} {headers:?}");
        }
    }
    server.get(&good, "/v1/status").is(200);
}

#[test]
fn every_role_may_do_its_own_and_it_is_on_record_who_did() {
    let actum = actum();
    let server = Server::start(&actum, &["--workers", "0"]);
    let authorization = json!({"max_total": "1usd", "reason": "because"});
    for (role, wanted) in [
        ("reader", [200, 403, 403, 403]),
        ("operator", [200, 200, 403, 403]),
        ("approver", [200, 403, 201, 403]),
        ("admin", [200, 200, 201, 404]),
    ] {
        let token = token(&actum, role, &[]);
        let got = [
            server.get(&token, "/v1/ledger/entries"),
            server.ask(&token, "POST", "/v1/ledger/checkpoint", ""),
            server.post(&token, "/v1/authorizations", authorization.clone()),
            server.ask(&token, "DELETE", "/v1/tools/none", ""),
        ];
        assert_eq!(got.clone().map(|reply| reply.status), wanted, "{role}: {got:?}");
    }
    let entries = asked(&actum, &["ledger", "list", "--json", "--limit", "1000"]);
    let of_money = |entry: &&Value| entry["type"] != "access_change" && entry.to_string().contains("because");
    let all: Vec<_> = entries["entries"].as_array().unwrap().iter().filter(of_money).collect();
    let is_by = |name: &str| all.iter().any(|one| one.to_string().contains(&format!("{name:?}")));
    assert!(all.len() == 2 && is_by("approver") && is_by("admin"), "{all:?}");
    // Nobody says that he is somebody else.
    let admin = server.told["token"].as_str().unwrap();
    let posed = json!({"max_total": "1usd", "reason": "because", "actor": "root"});
    server.post(admin, "/v1/authorizations", posed).is(400);
}

#[test]
fn lists_are_had_page_by_page() {
    let actum = actum();
    let server = Server::start(&actum, &["--workers", "0"]);
    let admin = token(&actum, "admin", &[]);
    for n in 0..4 {
        server.post(&admin, "/v1/tokens", json!({"name": format!("t{n}"), "role": "reader"})).is(201);
    }
    for (path, field) in [("/v1/policy/reasons", "reasons"), ("/v1/tokens", "tokens")] {
        let all = server.get(&admin, path).is(200)[field].as_array().unwrap().clone();
        assert!(all.len() > 4, "{all:?}");
        for limit in [2, 3, 1_000] {
            let (mut found, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = server.get(&admin, &format!("{path}?limit={limit}{cursor}")).is(200);
                let items = page[field].as_array().unwrap();
                assert!((1..=limit).contains(&items.len()));
                found.extend(items.clone());
                match page["next"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            assert_eq!(found, all, "{path} {limit}");
        }
    }
    for bad in ["limit=0", "cursor=x", "limit=2&limit=2"] {
        server.get(&admin, &format!("/v1/tokens?{bad}")).is(400);
    }
}

#[test]
fn no_tenant_sees_what_is_anothers() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    let settings = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{settings}\n[agents.a]\ntype = \"command\"\ncommand = [\"true\"]\n"));
    let server = Server::start(&actum, &["--workers", "0"]);
    let local = server.told["token"].as_str().unwrap().to_owned();
    let [acme, other] = ["acme", "Other / one"].map(|tenant| of(&actum, tenant));
    let id = |value: &Value, name: &str| value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}")).to_owned();

    // What is there of the one.
    let marked = SIGNATURE.replace("Sentiment", "Mood");
    server.ask(&acme, "POST", "/v1/signatures", &marked).is(201);
    let artifact = server.ask(&acme, "POST", "/v1/signatures/demo%2FMood.v1/artifact", "").is(201);
    let artifact = id(&artifact["artifacts"][0], "artifact_id");
    let set = json!({"primary": artifact, "reason": "first"});
    server.post(&acme, "/v1/pointers/demo%2FMood.v1", set).is(200);
    let purse = id(&server.post(&acme, "/v1/authorizations", json!({"max_total": "1usd"})).is(201), "authorization_id");
    let question = json!({"signature": "demo/Mood.v1", "input": {"text": "good"}});
    let receipt = id(&server.post(&acme, "/v1/predictions", question.clone()).is(201), "receipt_id");
    let entry = json!({"tenantId": "acme", "module": "m", "source": "s", "type": "note_kept", "id": "note-of-acme", "payload": {}});
    server.post(&acme, "/v1/ledger/entries", entry.clone()).is(201);
    let marks = [&artifact, &purse, &receipt, "demo/Mood.v1"];
    for (path, mark) in [
        ("/v1/signatures", marks[3]),
        ("/v1/artifacts", marks[0]),
        ("/v1/pointers", marks[3]),
        ("/v1/authorizations", marks[1]),
        ("/v1/traces", marks[3]),
        ("/v1/ledger/entries", marks[2]),
    ] {
        assert!(server.get(&acme, path).body.contains(mark), "{path}: {:?}", server.get(&acme, path));
    }

    // The others find none of it, by whatever name they ask.
    for stranger in [&other, &local] {
        for route in ROUTES.iter().filter(|route| route.method == Method::Get) {
            let names = route.path_names().count();
            for mark in marks {
                let reply = server.get(stranger, &path(route, mark));
                if names == 0 {
                    assert!(!reply.body.contains(mark) && !reply.body.contains("acme"), "{}: {reply:?}", route.path);
                } else {
                    assert!((400..500).contains(&reply.status), "{} {mark}: {reply:?}", route.path);
                }
            }
        }
        server.post(stranger, "/v1/predictions", question.clone()).is(404);
        server.post(stranger, &format!("/v1/authorizations/{purse}/revoke"), json!({})).is(404);
        server.post(stranger, &format!("/v1/receipts/{receipt}/label"), json!({"score": 1})).is(404);
        // Nor does anybody write into the ledger of another.
        let forged = server.post(stranger, "/v1/ledger/entries", entry.clone());
        assert!((400..500).contains(&forged.status), "{forged:?}");
    }
    assert!(!server.get(&acme, "/v1/signatures").body.contains(ID), "those of the project are not theirs");

    // A run of the project is none of theirs.
    let run = id(&server.post(&local, "/v1/runs", item("i", "a")).is(202)["runs"][0], "run_id");
    for route in ROUTES.iter().filter(|route| route.path.contains("{run}") || route.path.contains("{receipt}")) {
        let reply = server.ask(&acme, route.method.word(), &path(route, &run), content(route));
        assert!([400, 403, 404, 422].contains(&reply.status), "{}: {reply:?}", route.path);
    }
    assert_eq!(server.get(&acme, "/v1/runs").is(200)["runs"], json!([]));
    assert_eq!(server.get(&local, &format!("/v1/runs/{run}")).is(200)["state"], "queued");
    let metrics = server.ask_with("GET", "/metrics", &[], "").body;
    assert!(metrics.contains("\nactum_runs{state=\"queued\"} 1\n") && !metrics.contains("acme"), "{metrics}");

    // Files of the project are those of whoever has it.
    for route in ROUTES {
        let is_file = ["tool", "adapter", "snapshot", "stage", "store", "exec", "config"].contains(&route.command[0]);
        let status = server.ask(&acme, route.method.word(), &path(route, "none"), content(route)).status;
        assert_eq!(status == 403, is_file, "{} {}: {status}", route.method.word(), route.path);
    }
    assert_eq!(upstream.calls().len(), 1);
}

#[test]
fn a_file_of_the_server_is_no_artifact() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    let example = |n: u32| json!({"input": {"text": format!("t{n}")}, "expected": {"label": "positive"}}).to_string();
    actum.file("few.jsonl", (0..40).map(example).collect::<Vec<_>>().join("\n"));
    asked(&actum, &["dataset", "import", "few.jsonl", "--signature", ID, "--name", "few", "--json"]);
    let artifact = actum.run(&["artifact", "new", ID, "--json"]).ok();
    let file = actum.file("artifact.json", artifact).display().to_string();
    let server = Server::start(&actum, &["--workers", "0"]);
    let token = server.told["token"].as_str().unwrap();
    for (artifact, against) in [(file.as_str(), "baseline"), ("baseline", &file), ("artifact.json", "baseline")] {
        let wanted =
            json!({"artifact": artifact, "against": against, "dataset": "few", "signature": ID, "budget": "1usd"});
        server.post(token, "/v1/evals", wanted).is(404);
    }
    assert_eq!(upstream.calls().len(), 0);
}

fn a_run_over_http(actum: &Program) {
    let server = Server::start(actum, &[]);
    let token = server.told["token"].as_str().unwrap();
    let work = item("i", "a").to_string();
    let bearer = format!("Bearer {token}");
    let submit = |key: &str, work: &str| {
        server.ask_with("POST", "/v1/runs", &[("authorization", &bearer), ("idempotency-key", key)], work)
    };
    let first = submit("k", &work);
    assert!(!first.head.contains("idempotent-replayed"));
    let run = first.clone().is(202)["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let status = || server.get(token, &format!("/v1/runs/{run}")).is(200);
    until("it is executed", || ["succeeded", "failed"].contains(&status()["state"].as_str().unwrap()));
    assert_eq!(status()["state"], "succeeded", "{}", status());
    assert_eq!(std::fs::read_to_string(actum.path("out.txt")).unwrap(), "made\n");
    let diff = server.get(token, &format!("/v1/runs/{run}/diff"));
    assert!(diff.status == 200 && diff.body.contains("out.txt"), "{diff:?}");
    assert_eq!(server.get(token, &format!("/v1/receipts/{run}/verification")).status, 200);
    actum.run(&["verify", &run]).ok();

    // The same again is the same; another one under its name is none.
    let again = submit("k", &work);
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert!(again.head.contains("idempotent-replayed: true"), "{again:?}");
    let other = submit("k", &item("other", "a").to_string());
    assert_eq!((other.status, &other.json()["error"]["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    let runs = || server.get(token, "/v1/runs").is(200)["runs"].as_array().unwrap().len();
    assert_eq!(runs(), 1);
    let all: Vec<Reply> = thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| submit("eight", &work))).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(all.iter().all(|one| one.status == 202 && one.body == all[0].body), "{all:?}");
    assert_eq!((runs(), all.iter().filter(|one| !one.head.contains("idempotent-replayed")).count()), (2, 1));
    let (code, errors) = server.stop();
    assert_eq!(code, 0, "{errors:?}");
}

#[test]
fn a_run_is_submitted_once_executed_and_proven() {
    a_run_over_http(&project(&[("a", "echo made > out.txt")]));
}

#[test]
fn a_run_is_submitted_to_a_server_of_an_ordinary_user() {
    a_run_over_http(&project(&[("a", "echo made > out.txt")]).owned_by_nobody());
}

#[test]
fn what_is_under_way_is_answered_before_the_end() {
    let held = Turn::Held(Box::new(Turn::text("{\"label\": \"positive\"}")));
    for workers in ["0", "2"] {
        let upstream = Upstream::start(Script::default().turn(held.clone(), Usage::new(40, 6)));
        let actum = demo(&upstream);
        actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
        let mut server = Server::start(&actum, &["--workers", workers]);
        let token = server.told["token"].as_str().unwrap().to_owned();
        let reply = thread::scope(|scope| {
            let question = json!({"signature": ID, "input": {"text": "good"}});
            let asking = scope.spawn(|| server.post(&token, "/v1/predictions", question));
            upstream.wait_for(1);
            server.running.as_ref().unwrap().signal("TERM");
            until("nobody else comes in", || TcpStream::connect(server.at).is_err());
            upstream.release();
            asking.join().unwrap()
        });
        assert_eq!(reply.is(201)["output"]["label"], "positive");
        let (code, _, errors) = server.running.take().unwrap().finish();
        assert_eq!(code, 0, "{errors:?}");
    }
}

#[test]
fn a_place_that_is_taken_or_open_to_others_is_not_served_at() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let actum = actum();
    for (at, code, words) in [(at.as_str(), 2, "cannot listen on"), ("0.0.0.0:0", 2, "there is no token")] {
        let refused = actum.run(&["serve", "--listen", at, "--json"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (code, ""), "{}", refused.stderr);
        assert!(refused.error()["message"].as_str().unwrap().contains(words), "{}", refused.stderr);
        assert!(!refused.error()["hint"].is_null(), "{}", refused.stderr);
        // Nothing was made that nobody was shown.
        assert_eq!(asked(&actum, &["token", "list", "--json"])["tokens"], json!([]));
    }
    drop(taken);
    let token = token(&actum, "reader", &[]);
    let server = Server::start(&actum, &["--listen", "0.0.0.0:0", "--host", "actum.example"]);
    assert_eq!(server.told["token"], Value::Null);
    let second = actum.run(&["serve", "--listen", &server.at.to_string()]);
    assert_eq!((second.code, second.stderr.contains("in use")), (2, true), "{}", second.stderr);
    let bearer = format!("Bearer {token}");
    for (host, status) in [("actum.example", 200), ("127.0.0.1", 200), ("evil.example", 403), ("", 403)] {
        let headers = [("authorization", bearer.as_str()), ("host", host)];
        assert_eq!(server.ask_with("GET", "/v1/status", &headers, "").status, status, "{host}");
    }
    // What is open to everybody at this machine is not to everybody else.
    for path in ["/", "/openapi.json", "/metrics"] {
        assert_eq!(server.ask_with("GET", path, &[], "").status, 401, "{path}");
        assert_eq!(server.get(&token, path).status, 200, "{path}");
    }
    server.ask_with("GET", "/healthz", &[], "").is(200);
    assert_eq!(server.stop().0, 0);
}

#[test]
fn two_servers_on_one_store_are_one() {
    let url = shared_url();
    let [here, there] = [(); 2].map(|()| project(&[("a", "echo made > out.txt")]).on_store(&url));
    here.run(&["store", "migrate"]).ok();
    let first = Server::start(&here, &["--workers", "0"]);
    let second = Server::start(&there, &["--workers", "0"]);
    assert_eq!(second.told["token"], Value::Null, "there is one already");
    let admin = first.told["token"].as_str().unwrap();
    let run = first.post(admin, "/v1/runs", item("i", "a")).is(202)["runs"][0]["run_id"].clone();
    let run = run.as_str().unwrap();
    let seen = second.get(admin, &format!("/v1/runs/{run}")).is(200);
    assert_eq!(seen["run_id"], run);
    second.post(admin, &format!("/v1/runs/{run}/cancel"), json!({})).is(200);
    assert_eq!(first.get(admin, &format!("/v1/runs/{run}")).is(200)["state"], "cancelled");

    let operator = token(&here, "operator", &[]);
    let bearer = format!("Bearer {operator}");
    let headers = [("authorization", bearer.as_str()), ("idempotency-key", "k")];
    let work = item("i", "a").to_string();
    let answers = [&first, &second].map(|server| server.ask_with("POST", "/v1/runs", &headers, &work));
    assert_eq!((answers[0].status, &answers[0].body), (202, &answers[1].body), "{answers:?}");
    here.run(&["token", "revoke", &operator[6..22]]).ok();
    for server in [&second, &first] {
        server.get(&operator, "/v1/status").is(401);
        server.ask_with("POST", "/v1/runs", &headers, &work).is(401);
        server.get(admin, "/v1/status").is(200);
    }
    assert_eq!((first.stop().0, second.stop().0), (0, 0));
}

/// A token has a part of the connections, so it keeps no other caller out.
#[test]
fn connections_of_one_token_keep_no_other_out() {
    let actum = project(&[("a", "true")]);
    let (reader, other) = (token(&actum, "reader", &["--tenant", "acme"]), token(&actum, "operator", &[]));
    let server = Server::start(&actum, &["--workers", "0"]);
    let request = format!("GET /v1/status HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {reader}\r\n\r\n", server.at);
    let mut held = Vec::new();
    let refused = loop {
        let mut stream = TcpStream::connect(server.at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 512];
        let length = stream.read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        if !text.starts_with("HTTP/1.1 200") {
            break text;
        }
        held.push(stream);
        assert!(held.len() < 200, "it has more than its part");
    };
    assert!(refused.starts_with("HTTP/1.1 429") && held.len() >= 100, "{}: {refused}", held.len());
    server.get(&other, "/v1/status").is(200);
}
