//! Requests that nobody means well with, as bytes against the real server: paths and heads that two readers would read in two ways,
//! too much, too slow, in somebody else's name. None of them gets in, none of them breaks it, and nobody else waits.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use actum_testkit::program::{Program, Running};
use serde_json::Value;

use super::actum;
use super::run::asked;

/// Longer than anything here takes; no test waits for it to be over.
const SILENCE: Duration = Duration::from_secs(60);

struct Server {
    actum: Program,
    running: Option<Running>,
    at: SocketAddr,
    token: String,
}

impl Server {
    fn start() -> Self {
        let actum = actum();
        actum.file("actum.toml", "[agents.a]\ntype = \"command\"\ncommand = [\"true\"]\n");
        let words = ["serve", "--json", "--rate", "0", "--workers", "0", "--listen", "127.0.0.1:0"];
        let mut running = actum.start(&words, &[]);
        let told: Value = serde_json::from_str(&running.line().unwrap()).unwrap();
        let at = told["listen"].as_str().unwrap().parse().unwrap();
        Self { at, token: told["token"].as_str().unwrap().to_owned(), running: Some(running), actum }
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream
    }

    /// Everything that comes back for these bytes, until the server hangs up.
    fn sent(&self, bytes: &[u8]) -> String {
        let mut stream = self.open();
        // It may hang up before all of it is sent, which is an answer too.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A head with what none does without, and a token.
    fn head(&self, line: &str, more: &str) -> String {
        let (at, token) = (self.at, &self.token);
        format!("{line}\r\nHost: {at}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n{more}")
    }

    fn ask(&self, line: &str, more: &str, content: &str) -> (Vec<u16>, String) {
        let answer = self.sent(format!("{}\r\n{content}", self.head(line, more)).as_bytes());
        (statuses(&answer), answer)
    }

    fn is_well(&self) {
        let (statuses, answer) = self.ask("GET /v1/status HTTP/1.1", "", "");
        assert_eq!(statuses, [200], "{answer}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.take().map(Running::kill);
    }
}

/// Of all answers on a connection.
fn statuses(answer: &str) -> Vec<u16> {
    answer.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}

/// Refused, once, or hung up on.
#[track_caller]
fn is_refused((statuses, answer): (Vec<u16>, String), what: &str) {
    assert!(statuses.len() <= 1 && statuses.iter().all(|status| (400..500).contains(status)), "{what}: {answer}");
}

#[test]
fn a_path_that_could_be_read_in_two_ways_leads_nowhere() {
    let server = Server::start();
    for path in [
        "//v1/status",
        "/v1//status",
        "/v1/../v1/status",
        "/v1/./status",
        "/v1/%2e%2e/v1/status",
        "/v1/%2E/status",
        "/v1/status/",
        "/v1/status/.",
        "/v1/status%00",
        "/v1/status%2f",
        "/v1%2fstatus",
        "/v1/runs/%2e%2e",
        "/v1/runs/..;/status",
        "/v1/runs/%c0%ae%c0%ae",
        "/v1/runs/%e0%80%ae",
        "/v1/runs/%ff",
        "/v1/status.",
        "/V1/status",
        "/v1/%73tatus",
        "/v1/runs/a%2f..%2f..%2fstatus",
        "/v1/runs/%252e%252e",
        "/v1/runs/%0d%0aX:%20y",
        "/v1/status;x=1",
        "/v1/status%20",
        "/v1\\status",
        "\\v1\\status",
        "/v1/runs/%",
        "/v1/runs/%zz",
        "/v1/runs/%u002e",
        "http://evil.example/v1/status",
        "http://127.0.0.1:1/v1/status",
        "*",
        "v1/status",
        "",
    ] {
        is_refused(server.ask(&format!("GET {path} HTTP/1.1"), "", ""), path);
    }
    is_refused(server.ask("GET /v1/status HTTP/1.1 HTTP/1.1", "", ""), "two versions");
    is_refused(server.ask("GET /v1/status HTTP/3.0", "", ""), "another version");
    let (found, answer) = server.ask(&format!("GET http://{}/v1/status HTTP/1.1", server.at), "", "");
    assert_eq!(found, [200], "{answer}");
    server.is_well();
}

#[test]
fn a_verb_is_the_one_that_stands_in_front() {
    let server = Server::start();
    for verb in ["PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "GETT", "DELETE", "POST"] {
        is_refused(server.ask(&format!("{verb} /v1/status HTTP/1.1"), "", ""), verb);
    }
    for name in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "_method"] {
        let (found, answer) = server.ask("GET /v1/tools HTTP/1.1", &format!("{name}: DELETE\r\n"), "");
        assert!(found == [200] || found == [400], "{name}: {answer}");
    }
    let (found, _) = server.ask("HEAD /v1/status HTTP/1.1", "", "");
    assert_eq!(found, [200]);
    server.is_well();
}

#[test]
fn nothing_is_smuggled_behind_a_request() {
    let server = Server::start();
    let hidden = format!(
        "GET /v1/ledger/entries HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        server.at, server.token
    );
    let chunked = format!("0\r\n\r\n{hidden}");
    let post = "POST /v1/ledger/checkpoint HTTP/1.1";
    let length = chunked.len();
    for more in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: 0, {length}\r\n"),
        "Content-Length: +0\r\n".to_owned(),
        "Content-Length: -1\r\n".to_owned(),
        "Content-Length: 0x10\r\n".to_owned(),
        "Content-Length: 99999999999999999999\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding: identity, chunked\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n".to_owned(),
        "Transfer-Encoding:\u{b}chunked\r\n".to_owned(),
        " Transfer-Encoding: chunked\r\n".to_owned(),
        "X: y\r\n Transfer-Encoding: chunked\r\n".to_owned(),
        "X: y\rTransfer-Encoding: chunked\r\n".to_owned(),
        "X\0: y\r\n".to_owned(),
        "X: \0\r\n".to_owned(),
    ] {
        let (found, answer) = server.ask(post, &more, &chunked);
        assert!(!answer.contains("\"entries\""), "{more:?}: {answer}");
        assert!(found.len() <= 1 && found.iter().all(|status| *status < 500), "{more:?}: {answer}");
    }
    for chunk in
        ["ffffffffffffffffff\r\nx", "-1\r\nx", "0x1\r\nx\r\n0\r\n\r\n", "1\nx\n0\n\n", "1 1\r\nx\r\n0\r\n\r\n", "z\r\n"]
    {
        let more = "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n";
        let (found, answer) = server.ask("POST /v1/snapshots HTTP/1.1", more, chunk);
        assert!(found.len() <= 1 && found.iter().all(|status| (400..500).contains(status)), "{chunk:?}: {answer}");
    }
    server.is_well();
}

#[test]
fn only_one_name_and_one_token_count() {
    let server = Server::start();
    let (at, token) = (server.at, &server.token);
    for head in [
        format!("Host: {at}\r\n"),
        format!("Host: {at}\r\nAuthorization_: Bearer {token}\r\n"),
        format!("Host: {at}\r\nX-Authorization: Bearer {token}\r\n"),
        format!("Host: {at}\r\nProxy-Authorization: Bearer {token}\r\n"),
        format!("Host: {at}\r\nAuthorization: Bearer {token}\r\nAuthorization: Bearer {token}\r\n"),
        format!("Host: {at}\r\nAuthorization: Bearer {token}, Bearer {token}\r\n"),
        format!("Host: {at}\r\nAuthorization : Bearer {token}\r\n"),
        format!("Host: {at}\r\nAuthorization: Token {token}\r\n"),
        format!("Host: {at}\r\nAuthorization: Bearer {}\r\n", token.to_uppercase()),
        format!("Host: {at}\r\nAuthorization: Bearer {token}\u{e9}\r\n"),
        format!("Host: {at}\r\nAuthorization: Bearer\u{a0}{token}\r\n"),
        format!("Authorization: Bearer {token}\r\n"),
        format!("Host: evil.example\r\nAuthorization: Bearer {token}\r\n"),
        format!("Host: {at}\r\nHost: evil.example\r\nAuthorization: Bearer {token}\r\n"),
        format!("Host: 127.0.0.1.evil.example\r\nAuthorization: Bearer {token}\r\n"),
        format!("Host: {at}\r\nOrigin: http://evil.example\r\nAuthorization: Bearer {token}\r\n"),
        format!("Host: {at}\r\nOrigin: null\r\nAuthorization: Bearer {token}\r\n"),
    ] {
        let answer = server.sent(format!("GET /v1/status HTTP/1.1\r\n{head}Connection: close\r\n\r\n").as_bytes());
        is_refused((statuses(&answer), answer), &head);
    }
    for path in [format!("/v1/status?token={token}"), format!("/v1/status?access_token={token}")] {
        let answer = server.sent(format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes());
        assert_eq!(statuses(&answer), [401], "{answer}");
        assert!(!answer.contains(token.as_str()));
    }
    // What a proxy passes on comes from anywhere: nothing is told without a token then.
    for (more, wanted) in
        [("", 200), ("X-Forwarded-For: 203.0.113.9\r\n", 401), ("Forwarded: for=203.0.113.9\r\n", 401)]
    {
        let answer =
            server.sent(format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{more}\r\n").as_bytes());
        assert_eq!(statuses(&answer), [wanted], "{answer}");
    }
    server.is_well();
}

#[test]
fn too_much_is_refused_before_it_is_held() {
    let server = Server::start();
    let long = "a".repeat(1 << 20);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bomb = format!(
        "a: &a [x,x,x,x,x,x,x,x,x]\n{}",
        "bcdefghij"
            .chars()
            .zip("abcdefghi".chars())
            .map(|(new, old)| format!(
                "{new}: &{new} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
            ))
            .collect::<String>()
    );
    is_refused(server.ask("GET /v1/status HTTP/1.1", &format!("X-Long: {long}\r\n"), ""), "a long header");
    is_refused(server.ask("GET /v1/status HTTP/1.1", &"X: y\r\n".repeat(10_000), ""), "many headers");
    is_refused(server.ask(&format!("GET /v1/runs/{long} HTTP/1.1"), "", ""), "a long path");
    is_refused(server.ask(&format!("GET /v1/runs?{} HTTP/1.1", "a=b&".repeat(1_000)), "", ""), "a long query");
    let post = |kind: &str, length: usize, more: &str, content: &str| {
        let more = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n{more}");
        server.ask("POST /v1/signatures HTTP/1.1", &more, content)
    };
    is_refused(post("application/json", 1 << 30, "", "{"), "a gigabyte that never comes");
    is_refused(post("application/json", 4, "Content-Encoding: gzip\r\n", "\u{1f}..."), "something compressed");
    is_refused(post("application/json", 4, "Content-Encoding: identity, br\r\n", "{}  "), "something compressed twice");
    is_refused(post("application/json", deep.len(), "", &deep), "deep JSON");
    is_refused(post("application/yaml", bomb.len(), "", &bomb), "YAML that swells");
    is_refused(post("application/jsonl", 200_000, "", &"\n".repeat(200_000)), "many lines");
    server.is_well();
}

#[test]
fn whoever_is_slow_waits_alone() {
    let server = Server::start();
    let mut slow = Vec::new();
    for _ in 0..60 {
        let mut head = server.open();
        head.write_all(b"GET /v1/status HTTP/1.1\r\nHost: ").unwrap();
        let mut body = server.open();
        let more = "Content-Type: application/json\r\nContent-Length: 1000\r\n";
        body.write_all(format!("{}\r\n{{", server.head("POST /v1/snapshots HTTP/1.1", more)).as_bytes()).unwrap();
        slow.extend([head, body, server.open()]);
    }
    // All of them are still there, and asked for nothing that is done.
    server.is_well();
    drop(slow);
    server.is_well();
}

/// A reader of another tenant says little and announces much; room is counted by what has come, and he has a share of it.
#[test]
fn whoever_announces_much_takes_no_room_from_others() {
    let server = Server::start();
    let made = ["token", "create", "--json", "--role", "reader", "--name", "guest", "--tenant", "acme"];
    let guest = asked(&server.actum, &made)["token"].as_str().unwrap().to_owned();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {guest}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nExpect: 100-continue\r\n",
        server.at
    );
    let mut slow = Vec::new();
    let mut open = |more: &str, content: &str| {
        let mut stream = server.open();
        stream.write_all(format!("{head}{more}\r\n\r\n").as_bytes()).unwrap();
        // He is asked to go on once there is room, or is told that there is none.
        let mut told = [0; 12];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 100", "{more}");
        stream.write_all(content.as_bytes()).unwrap();
        slow.push(stream);
    };
    for _ in 0..30 {
        open("Transfer-Encoding: chunked", "1\r\n{\r\n");
        open("Content-Length: 8000000", "{");
    }
    let content = format!("{}{}", r#"{"max_total": "1usd", "reason": "because"}"#, " ".repeat(7_000_000));
    let more = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", content.len());
    let (found, answer) = server.ask("POST /v1/authorizations HTTP/1.1", &more, &content);
    assert_eq!(found, [201], "{answer}");
    drop(slow);
    server.is_well();
}

#[test]
fn a_key_is_of_one_token_of_one_tenant() {
    let server = Server::start();
    let token = |tenant: &str| {
        let made = ["token", "create", "--json", "--role", "admin", "--name", "other", "--tenant", tenant];
        asked(&server.actum, &made)["token"].as_str().unwrap().to_owned()
    };
    let content = r#"{"max_total": "1usd", "reason": "because"}"#;
    let made = |token: &str| {
        let head = format!(
            "POST /v1/authorizations HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: one\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{content}",
            server.at,
            content.len()
        );
        let answer = server.sent(head.as_bytes());
        assert_eq!(statuses(&answer), [201], "{answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let is_replayed = answer.to_lowercase().contains("idempotent-replayed: true");
        (body["authorization_id"].as_str().unwrap().to_owned(), is_replayed)
    };
    let (first, is_replayed) = made(&server.token);
    assert!(!is_replayed);
    assert_eq!(made(&server.token), (first.clone(), true));
    for other in [token("local"), token("acme")] {
        let (id, is_replayed) = made(&other);
        assert!(id != first && !is_replayed);
    }
}
