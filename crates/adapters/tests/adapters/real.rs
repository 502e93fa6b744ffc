//! MCP servers that people use, through both transports, and servers of HTTP that misbehave.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use actum_adapters::mcp::{HttpLink, McpLink, Servers, client};
use actum_adapters::{Attempt, Job, Problem, Stage};
use actum_contract::tool::{Mcp, Server, Transport, Went};
use serde_json::{Value, json};

use super::bare::{Bare, folder, job, others};

const LIMIT: Duration = Duration::from_secs(30);

struct Real {
    job: Job,
    mcp: Mcp,
    server: Server,
    cells: Bare,
    pool: Servers,
}

impl Real {
    fn new(program: &[&str], tools: &[&str]) -> Self {
        let tools = tools.iter().map(|name| (name.replace('-', "_"), (*name).to_owned())).collect();
        Self {
            job: job(program),
            mcp: Mcp { server: "real".into(), transport: Transport::Stdio, tools },
            server: Server::Command(program.iter().map(|word| (*word).to_owned()).collect()),
            cells: Bare::default(),
            pool: Servers::new(),
        }
    }

    fn node(package: &str, arguments: &[&str], tools: &[&str]) -> Self {
        let script = others().join(format!("node_modules/@modelcontextprotocol/{package}/dist/index.js"));
        Self::new(&[&["node", script.to_str().unwrap()], arguments].concat(), tools)
    }

    fn link(&self) -> McpLink<'_> {
        McpLink {
            adapter_id: "real",
            mcp: &self.mcp,
            server: &self.server,
            key: "real",
            job: &self.job,
            http: None,
            idempotency_key: None,
        }
    }

    fn call(&self, operation: &str, params: Value) -> Attempt {
        let params = params.as_object().unwrap().clone();
        self.pool.attempt(&self.cells, &self.link(), operation, params, LIMIT, &|| false)
    }
}

fn text(attempt: &Attempt) -> &str {
    attempt.output["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {attempt:?}"))
}

fn problem(attempt: &Attempt) -> &Problem {
    attempt.problem.as_ref().unwrap_or_else(|| panic!("no problem: {attempt:?}"))
}

#[test]
fn the_filesystem_server_reads_and_writes() {
    let root = folder("filesystem");
    std::fs::write(root.join("a.txt"), "alpha\n").unwrap();
    let real =
        Real::node("server-filesystem", &[root.to_str().unwrap()], &["read_text_file", "write_file", "list_directory"]);
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let attempt = real.call("read_text_file", json!({"path": path("a.txt")}));
    assert_eq!((attempt.went, text(&attempt)), (Went::Well, "alpha\n"), "{attempt:?}");
    assert_eq!(attempt.output["structuredContent"]["content"], "alpha\n");
    let attempt = real.call("write_file", json!({"path": path("b.txt"), "content": "beta"}));
    assert_eq!(attempt.went, Went::Well, "{attempt:?}");
    assert_eq!(std::fs::read_to_string(root.join("b.txt")).unwrap(), "beta");
    let attempt = real.call("list_directory", json!({"path": root.to_str().unwrap()}));
    assert!(text(&attempt).contains("b.txt"));
    let attempt = real.call("read_text_file", json!({"path": "/etc/passwd"}));
    assert_eq!(attempt.went, Went::Wrong(None));
    assert!(problem(&attempt).message.contains("denied"), "{attempt:?}");
    let attempt = real.call("read_text_file", json!({"file": path("a.txt")}));
    assert_eq!(problem(&attempt).stage, Stage::Input);
    assert!(attempt.evidence["tools_listed"].as_u64().unwrap() > 8, "{}", attempt.evidence);
}

#[test]
fn the_everything_server_is_called_through_pipes() {
    let real = Real::node(
        "server-everything",
        &["stdio"],
        &[
            "echo",
            "get-sum",
            "get-structured-content",
            "get-tiny-image",
            "trigger-long-running-operation",
            "get-resource-links",
        ],
    );
    assert_eq!(text(&real.call("echo", json!({"message": "hé\n\u{1f600}"}))), "Echo: hé\n\u{1f600}");
    assert!(text(&real.call("get_sum", json!({"a": 2, "b": 3.5}))).contains("5.5"));
    let attempt = real.call("get_structured_content", json!({"location": "Chicago"}));
    assert!(attempt.output["structuredContent"]["temperature"].is_number(), "{attempt:?}");
    let attempt = real.call("get_structured_content", json!({"location": "Berlin"}));
    assert_eq!(problem(&attempt).path.as_deref(), Some("/location"));
    let attempt = real.call("get_tiny_image", json!({}));
    let images = attempt.output["content"].as_array().unwrap().iter().filter(|part| part["type"] == "image").count();
    assert_eq!((attempt.went, images), (Went::Well, 1));
    assert_eq!(real.call("get_resource_links", json!({"count": 3})).went, Went::Well);
    let params = json!({"duration": 30, "steps": 60}).as_object().unwrap().clone();
    let limit = Duration::from_millis(1_500);
    let attempt =
        real.pool.attempt(&real.cells, &real.link(), "trigger_long_running_operation", params, limit, &|| false);
    assert_eq!((attempt.went, &attempt.evidence["is_closed"]), (Went::TimedOut, &json!(false)), "{attempt:?}");
    assert!(attempt.evidence["notifications"].as_u64().unwrap() > 0, "{}", attempt.evidence);
    assert!(text(&real.call("echo", json!({"message": "still there"}))).contains("still there"));
    let listed = real.pool.list(&real.cells, &real.link(), LIMIT, &|| false).unwrap();
    assert!(listed.iter().any(|tool| tool["name"] == "echo" && tool["inputSchema"]["type"] == "object"));
}

#[test]
fn the_git_server_is_called() {
    let root = folder("git");
    let git = |arguments: &[&str]| {
        let done = Command::new("git").args(arguments).current_dir(&root).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    git(&["init", "-q"]);
    std::fs::write(root.join("new.txt"), "x").unwrap();
    let program = others().join("venv/bin/mcp-server-git");
    let real = Real::new(&[program.to_str().unwrap()], &["git_status", "git_log"]);
    let attempt = real.call("git_status", json!({"repo_path": root.to_str().unwrap()}));
    assert!(attempt.went == Went::Well && text(&attempt).contains("new.txt"), "{attempt:?}");
    let attempt = real.call("git_status", json!({"repo_path": 7}));
    assert_eq!(problem(&attempt).path.as_deref(), Some("/repo_path"));
    let attempt = real.call("git_status", json!({"repo_path": "/nonexistent"}));
    assert_eq!(attempt.went, Went::Wrong(None), "{attempt:?}");
}

/// A program that listens, ended with the test.
struct Listening {
    child: Child,
    url: String,
    address: SocketAddr,
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Listening {
    fn everything() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let script = others().join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
        let mut command = Command::new("node");
        command.arg(script).arg("streamableHttp").env("PORT", port.to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let until = Instant::now() + LIMIT;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "server-everything does not listen on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, url: format!("http://mcp.test:{port}/mcp"), address }
    }

    fn odd(way: &str) -> Self {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/adapters/servers/odd_http.py");
        let mut command = Command::new("python3");
        let mut child = command.arg(script).arg(way).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, line.trim().parse().unwrap()));
        Self { child, url: format!("http://mcp.test:{}/mcp", address.port()), address }
    }

    fn attempts(&self, bearer: Option<&str>, calls: &[(&str, Value)]) -> Vec<Attempt> {
        let tools = ["echo", "get-sum", "say", "trigger-long-running-operation"];
        let tools = tools.map(|name| (name.to_owned(), name.to_owned()));
        let mcp = Mcp { server: "real".into(), transport: Transport::Http, tools: BTreeMap::from(tools) };
        let (job, server, headers) =
            (job(&[]), Server::Url(self.url.clone()), BTreeMap::from([("x-team".to_owned(), "blue".to_owned())]));
        let asked = Cell::new(0);
        let client_for = |url: &str| {
            assert_eq!(url, self.url);
            asked.set(asked.get() + 1);
            // The name is known to nobody: it is reached by the address that was judged.
            client("mcp.test", &[self.address])
        };
        let http = Some(HttpLink { headers: &headers, bearer, client_for: &client_for });
        let link = McpLink {
            adapter_id: "real",
            mcp: &mcp,
            server: &server,
            key: "http",
            job: &job,
            http,
            idempotency_key: None,
        };
        let (cells, pool) = (Bare::default(), Servers::new());
        let call = |(operation, params): &(&str, Value)| {
            let params = params.as_object().unwrap().clone();
            pool.attempt(&cells, &link, operation, params, Duration::from_secs(10), &|| false)
        };
        let found: Vec<Attempt> = calls.iter().map(call).collect();
        let well = |attempt: &Attempt| attempt.went == Went::Well;
        assert!(!found.iter().all(well) || asked.get() == 1, "{} connections", asked.get());
        found
    }

    fn say(&self) -> Attempt {
        self.attempts(None, &[("say", json!({}))]).remove(0)
    }
}

#[test]
fn the_everything_server_is_called_through_http() {
    let server = Listening::everything();
    let found = server.attempts(None, &[("echo", json!({"message": "far"})), ("get-sum", json!({"a": 1, "b": 2}))]);
    assert_eq!((found[0].went, text(&found[0])), (Went::Well, "Echo: far"), "{found:?}");
    assert!(text(&found[1]).contains('3'));
    assert_eq!((&found[0].evidence["transport"], &found[0].evidence["restarts"]), (&json!("http"), &json!(0)));
    let found = server.attempts(
        None,
        &[
            ("trigger-long-running-operation", json!({"duration": 60, "steps": 60})),
            ("echo", json!({"message": "still there"})),
        ],
    );
    assert_eq!(found[0].went, Went::TimedOut, "{found:?}");
    assert_eq!(found[1].went, Went::Well, "{found:?}");
}

#[test]
fn http_carries_headers_and_events() {
    let attempt = Listening::odd("auth").attempts(Some("swordfish"), &[("say", json!({}))]).remove(0);
    let seen: Value = serde_json::from_str(text(&attempt)).unwrap();
    assert_eq!(
        (&seen["authorization"], &seen["x-team"], &seen["mcp-protocol-version"]),
        (&json!("Bearer swordfish"), &json!("blue"), &json!("2025-11-25"))
    );
    let attempt = Listening::odd("events").say();
    assert_eq!((attempt.went, text(&attempt)), (Went::Well, "hi"), "{attempt:?}");
    assert_eq!(attempt.evidence["notifications"], 10);
}

#[test]
fn refusals_of_http_keep_their_status() {
    let attempt = Listening::odd("auth").say();
    assert_eq!((attempt.went, attempt.code), (Went::Wrong(Some(401)), Some(401)), "{attempt:?}");
    let attempt = Listening::odd("busy").say();
    assert_eq!((attempt.went, attempt.retry_after_ms), (Went::Wrong(Some(429)), Some(7_000)), "{attempt:?}");
    let attempt = Listening::odd("redirect").say();
    assert_eq!(attempt.went, Went::Wrong(Some(307)), "{attempt:?}");
    let attempt = Listening::odd("html").say();
    assert_ne!(attempt.went, Went::Well, "{attempt:?}");
}

#[test]
fn long_answers_of_http_are_not_kept() {
    for way in ["long-json", "long-event", "dense-json", "dense-event"] {
        let begun = Instant::now();
        let attempt = Listening::odd(way).say();
        assert_eq!(attempt.went, Went::Unavailable, "{way}: {attempt:?}");
        assert!(problem(&attempt).message.contains("8388608 bytes"), "{way}: {attempt:?}");
        assert!(begun.elapsed() < Duration::from_secs(8), "{way}: {:?}", begun.elapsed());
    }
}

#[test]
fn nobody_listens() {
    let mut server = Listening::odd("plain");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let attempt = server.say();
    assert_eq!(attempt.went, Went::Unavailable, "{attempt:?}");
    assert!(problem(&attempt).message.contains("does not answer"), "{attempt:?}");
}
