//! MCP by way of the real binary, on stdin and stdout and over HTTP: what a client can do, who may, what the protocol's own
//! tool says to it, and those who mean harm or leave in the middle.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use actum_testkit::program::{Program, Running};
use actum_testkit::servers::Servers;
use serde_json::{Value, json};

use super::run::{asked, item, project};
use super::runs::until;
use super::serve::{Reply, Server, token};

const CLIENT: &str = include_str!("mcp_client.py");
const READING: [&str; 9] =
    ["watch", "status", "list", "diff", "verify", "logs", "approvals", "list_tools", "describe_tool"];
const WORKING: [&str; 6] = ["submit", "apply", "undo", "cancel", "resume", "call_tool"];
const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");
const SILENCE: Duration = Duration::from_secs(60);
/// Registered tools, more than anybody wants to be shown.
const MANY: u64 = 120;
const VERSION: &str = "2025-06-18";

/// The SDK's own client, with a program on stdio or an address over HTTP.
fn client(actum: &Program, at: &str, steps: &Value, more: &[&str]) -> Vec<Value> {
    let mut command = Servers::find().python();
    command.args(["-c", CLIENT, at, &steps.to_string()]).args(more).current_dir(actum.folder());
    let ended = actum_testkit::program::run(command, b"");
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    ended.json_lines()
}

fn work() -> Value {
    json!({"work": [item("i", "a")]})
}

/// From work to its receipt, and back.
fn journey() -> Value {
    json!([
        ["submit", work()],
        ["watch", {"run": "{run}", "wait_seconds": 30}],
        ["watch", {"run": "{run}", "cursor": 4}],
        ["status", {"run": "{run}"}],
        ["status", {}],
        ["list", {"limit": 5, "state": "succeeded"}],
        ["diff", {"run": "{run}"}],
        ["verify", {"receipt": "{run}"}],
        ["logs", {"run": "{run}"}],
        ["undo", {"run": "{run}"}],
        ["approvals", {}],
        ["cancel", {"run": "{run}"}],
        ["watch", {"run": "nobody"}],
        ["submit", {"work": [{"id": "x"}]}],
        ["submit", {"work": "[]", "surprise": 1}],
        ["list_tools", {"query": "nothing like it"}],
        ["describe_tool", {"id": "none"}],
        ["call_tool", {"tool_id": "none"}],
    ])
}

fn assert_journey(actum: &Program, lines: &[Value]) {
    let mut names: Vec<&str> =
        lines[0]["tools"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    let mut all = [&READING[..], &WORKING].concat();
    all.sort_unstable();
    assert_eq!((lines[0]["server"].as_str(), names), (Some("actum"), all));
    let said = |n: usize| &lines[n + 1]["structured"];
    let code = |n: usize| said(n)["error"]["code"].as_str().unwrap_or_default();
    let run = &said(0)["runs"][0]["run_id"];
    assert!(run.is_string(), "{lines:#?}");
    assert_eq!((&said(1)["state"], &said(1)["is_over"]), (&json!("succeeded"), &json!(true)), "{lines:#?}");
    assert_eq!((&said(1)["run_id"], &said(1)["result"]["status"]), (run, &json!("success")));
    let events = said(1)["events"].as_array().unwrap().len() as u64;
    assert_eq!(
        (said(1)["cursor"].as_u64(), said(2)["events"].as_array().unwrap().len() as u64),
        (Some(events), events - 4)
    );
    let progress: Vec<f64> = lines[2]["progress"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    // A run may be over before it is looked at for the first time.
    assert!(progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    assert_eq!((&said(3)["state"], &said(4)["runs"]["succeeded"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(&said(5)["runs"][0]["run_id"], run);
    assert!(said(6)["patch"].as_str().unwrap().contains("+hi\n") && said(6)["is_cut"] == false, "{}", said(6));
    assert_eq!(said(7)["valid"], true);
    assert!(said(8)["log"].is_string() && said(9)["undoes"].is_string(), "{} {}", said(8), said(9));
    assert!(!actum.path("hello.txt").exists());
    assert_eq!(said(10), &json!({"approvals": []}));
    let refused =
        [(11, "RUN_STATE"), (12, "NOT_FOUND"), (13, "INPUT_INVALID"), (14, "INPUT_INVALID"), (16, "NOT_FOUND")];
    for (n, name) in refused {
        assert_eq!((code(n), &lines[n + 1]["is_error"]), (name, &json!(true)), "{n}: {}", said(n));
    }
    assert_eq!(said(15), &json!({"adapters": [], "found": 0}));
    assert_eq!((&said(17)["status"], &lines[18]["is_error"]), (&json!("refused"), &json!(true)), "{}", said(17));
    assert!(lines[1..12].iter().all(|line| line["is_error"] == false), "{lines:#?}");
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
}

fn writer() -> Program {
    project(&[("a", "echo hi > hello.txt")])
}

#[test]
fn a_real_client_does_everything_on_stdio() {
    let actum = writer();
    let lines = client(&actum, env!("CARGO_BIN_EXE_actum"), &journey(), &[]);
    assert_journey(&actum, &lines);
    // It is the person at the machine: no token.
    assert_eq!(lines[4]["structured"]["submitted_by"], json!({"actor": "mcp"}), "{}", lines[4]);
}

#[test]
fn a_real_client_does_everything_over_http() {
    let actum = writer();
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &[]);
    assert_journey(&actum, &client(&actum, &format!("http://{}/mcp", server.at), &journey(), &[&operator]));
}

#[test]
fn who_only_looks_sees_and_does_nothing_else() {
    let actum = writer();
    let reader = token(&actum, "reader", &[]);
    let server = Server::start(&actum, &[]);
    let steps: Vec<Value> = WORKING
        .iter()
        .map(|name| match *name {
            "submit" => json!([name, work()]),
            "call_tool" => json!([name, {"tool_id": "x"}]),
            _ => json!([name, {"run": "x"}]),
        })
        .chain([json!(["list", {}])])
        .collect();
    let over_http = client(&actum, &format!("http://{}/mcp", server.at), &json!(steps), &[&reader]);
    let on_stdio = client(&actum, env!("CARGO_BIN_EXE_actum"), &json!(steps), &["--read-only"]);
    for lines in [over_http, on_stdio] {
        assert_eq!(lines[0]["tools"], json!(READING));
        for line in &lines[1..=WORKING.len()] {
            assert_eq!(line["structured"]["error"]["code"], "FORBIDDEN", "{line}");
            assert_eq!(line["structured"]["error"]["details"]["need"], "operate", "{line}");
        }
        assert_eq!(lines.last().unwrap()["structured"]["runs"], json!([]));
    }
}

/// One message to `/mcp`.
fn message(method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
}

pub(super) fn call(name: &str, arguments: Value) -> String {
    message("tools/call", json!({"name": name, "arguments": arguments}))
}

pub(super) fn post(server: &Server, token: &str, content: &str) -> Reply {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ACCEPT, ("mcp-protocol-version", VERSION)];
    server.ask_with("POST", "/mcp", &headers, content)
}

pub(super) fn said(reply: &Reply) -> Value {
    let value: Value = serde_json::from_str(&reply.body).unwrap_or_else(|e| panic!("{e}: {reply:?}"));
    value["result"]["structuredContent"].clone()
}

#[test]
fn nobody_enters_without_a_token_that_holds() {
    let actum = writer();
    let (operator, gone) = (token(&actum, "operator", &[]), token(&actum, "operator", &["--expires", "1s"]));
    let revoked = token(&actum, "operator", &[]);
    let id = revoked.split('_').nth(1).unwrap().to_owned();
    let server = Server::start(&actum, &[]);
    assert_eq!(post(&server, &revoked, &message("tools/list", json!({}))).status, 200);
    actum.run(&["token", "revoke", &id, "--reason", "test"]).ok();
    until("the token is over", || post(&server, &gone, &message("tools/list", json!({}))).status == 401);
    let content = call("list", json!({}));
    let longer = format!("{operator}x");
    for token in ["", "x", "actum_a_b", &revoked, &gone, &operator[1..], &longer] {
        let reply = post(&server, token, &content);
        assert_eq!(reply.status, 401, "{token}: {reply:?}");
        assert!(reply.head.contains("www-authenticate: Bearer") && reply.body.contains("UNAUTHORIZED"), "{reply:?}");
    }
    for headers in [&[ACCEPT][..], &[ACCEPT, ("mcp-session-id", "1")]] {
        assert_eq!(server.ask_with("POST", "/mcp", headers, &content).status, 401);
    }
    let bearer = format!("Bearer {operator}");
    for method in ["GET", "DELETE", "PUT"] {
        assert_eq!(server.ask_with(method, "/mcp", &[ACCEPT], "").status, 401);
        assert_eq!(server.ask_with(method, "/mcp", &[ACCEPT, ("authorization", &bearer)], "").status, 405, "{method}");
    }
    // No name but ours, whoever asks.
    for (name, value) in [("host", "evil.example"), ("origin", "http://evil.example"), ("origin", "null")] {
        let headers = [("authorization", bearer.as_str()), ACCEPT, (name, value)];
        assert_eq!(server.ask_with("POST", "/mcp", &headers, &content).status, 403, "{name}: {value}");
    }
    // There are no sessions that one could take over.
    let headers = [("authorization", bearer.as_str()), ACCEPT, ("mcp-session-id", "of-somebody-else")];
    let reply = server.ask_with("POST", "/mcp", &headers, &content);
    assert_eq!((reply.status, said(&reply)["runs"].clone()), (200, json!([])), "{reply:?}");
}

#[test]
fn another_tenant_reaches_nothing_of_the_project() {
    let actum = writer();
    let (_, run) = super::run::one(&actum, item("i", "a"), &[]);
    let run = super::run::id(&run);
    let other = token(&actum, "admin", &["--tenant", "acme"]);
    let server = Server::start(&actum, &[]);
    let ask = |name: &str, arguments: Value| said(&post(&server, &other, &call(name, arguments)));
    for (name, arguments) in [
        ("submit", work()),
        ("list_tools", json!({})),
        ("describe_tool", json!({"id": "x"})),
        ("call_tool", json!({"tool_id": "x"})),
    ] {
        let answer = ask(name, arguments);
        assert_eq!(answer["error"]["code"], "FORBIDDEN", "{name}: {answer}");
    }
    // Its own runs are on shared workspaces; of others it hears nothing.
    for name in ["status", "watch", "cancel", "diff", "undo", "apply", "logs", "verify", "resume"] {
        let answer = ask(name, json!({ if name == "verify" { "receipt" } else { "run" }: run }));
        assert_eq!(answer["error"]["code"], "NOT_FOUND", "{name}: {answer}");
    }
    assert_eq!(ask("list", json!({}))["runs"], json!([]));
    let uri = format!("actum://runs/{run}/diff");
    let reply = post(&server, &other, &message("resources/read", json!({"uri": uri})));
    assert!(!reply.body.contains("+hi") && reply.body.contains("\"error\""), "{reply:?}");
}

#[test]
fn whatever_is_sent_is_answered_and_never_with_a_failure_of_ours() {
    let actum = writer();
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &[]);
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let deep_call = call("submit", json!({})).replace("{}", &format!("{{\"work\":{deep}}}"));
    let wide = call("submit", json!({"work": vec![json!({}); 150_000]}));
    let contents = [
        "{",
        "[]",
        "{}",
        "[1,2]",
        "null",
        "\"x\"",
        "{\"jsonrpc\":\"1.0\"}",
        &format!("[{},{}]", message("tools/list", json!({})), message("ping", json!({}))),
        &message("no/such/method", json!({})),
        &message("tools/call", json!({"name": "no_such_tool"})),
        &message("tools/call", json!({"name": 7})),
        &message("tools/call", json!([])),
        &call("watch", json!({"run": 7})),
        &call("watch", json!({"run": "x", "wait_seconds": 100_000})),
        &call("watch", json!({"run": "x", "cursor": -1})),
        &call("status", json!({"run": ["x"]})),
        &call("diff", json!({"run": "../../etc/passwd"})),
        &call("verify", json!({"receipt": "/etc/passwd"})),
        &call("logs", json!({"run": "--follow"})),
        &call("list", json!({"limit": "x", "state": "none"})),
        &call("list_tools", json!({"limit": 0})),
        &call("list_tools", json!({"level": "L9"})),
        &call("submit", json!({"work": "not JSON"})),
        &call("submit", json!({"work": [], "set": [1, {}]})),
        &call("submit", json!({"work": {"workspace": "/", "items": [item("i", "a")]}})),
        &message("resources/read", json!({"uri": "file:///etc/passwd"})),
        &message("resources/read", json!({"uri": "actum://runs/../x"})),
        &message("prompts/get", json!({"name": "x"})),
        &deep,
        &deep_call,
        &wide,
    ];
    for content in contents {
        let reply = post(&server, &operator, content);
        let shown: String = content.chars().take(200).collect();
        assert!((200..500).contains(&reply.status), "{shown}: {reply:?}");
        let is_refused =
            reply.status >= 400 || reply.body.contains("\"error\"") || reply.body.contains("\"isError\":true");
        assert!(is_refused && !reply.body.contains("root:"), "{shown}: {reply:?}");
        assert!(!reply.body.contains("INTERNAL"), "{shown}: {reply:?}");
    }
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(9 << 20));
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {operator}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        large.len()
    );
    assert!(spoken(server.at, &head).starts_with("HTTP/1.1 413"), "before any of it is read");
    let bearer = format!("Bearer {operator}");
    let headers = [("authorization", bearer.as_str()), ACCEPT];
    assert_eq!(server.ask_with("POST", "/mcp", &headers, "plain: yaml").status, 415);
    assert_eq!(said(&post(&server, &operator, &call("list", json!({}))))["runs"], json!([]), "nothing came of it");
}

/// Says it, and what is answered until the other side closes.
fn spoken(at: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_hundred_wait_and_others_are_answered_meanwhile() {
    let actum = writer();
    // Each has a share of the places, and those who leave have theirs.
    let [operator, second, leaving] = [(); 3].map(|()| token(&actum, "operator", &[]));
    // Nobody executes: the run stays where it is until it is cancelled.
    let server = Server::start(&actum, &["--workers", "0"]);
    let run = said(&post(&server, &operator, &call("submit", work())))["runs"][0]["run_id"].clone();
    let wait = call("watch", json!({"run": run, "wait_seconds": 600}));
    thread::scope(|scope| {
        let tokens = [&operator, &second].into_iter().cycle().take(100);
        let waiting: Vec<_> = tokens.map(|token| scope.spawn(|| post(&server, token, &wait))).collect();
        // Those who leave in the middle, more often than there are places.
        for _ in 0..3 {
            let gone: Vec<TcpStream> = (0..100).map(|_| {
                let mut stream = TcpStream::connect(server.at).unwrap();
                let head = format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {leaving}\r\n\
                    accept: application/json, text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{wait}", wait.len());
                stream.write_all(head.as_bytes()).unwrap();
                stream
            }).collect();
            for stream in gone {
                stream.shutdown(Shutdown::Both).unwrap_or_default();
            }
        }
        for _ in 0..20 {
            assert_eq!(said(&post(&server, &operator, &call("status", json!({"run": run}))))["state"], "queued");
        }
        assert!(waiting.iter().all(|one| !one.is_finished()), "they wait");
        let cancelled = said(&post(&server, &operator, &call("cancel", json!({"run": run}))));
        assert!(cancelled["error"].is_null(), "{cancelled}");
        for one in waiting {
            let reply = one.join().unwrap();
            assert_eq!(
                (&said(&reply)["state"], &said(&reply)["is_over"]),
                (&json!("cancelled"), &json!(true)),
                "{reply:?}"
            );
        }
    });
}

#[test]
fn a_wait_ends_with_its_token_and_with_the_server() {
    let actum = writer();
    let (operator, other) = (token(&actum, "operator", &[]), token(&actum, "operator", &[]));
    let id = other.split('_').nth(1).unwrap().to_owned();
    let server = Server::start(&actum, &["--workers", "0"]);
    let run = said(&post(&server, &operator, &call("submit", work())))["runs"][0]["run_id"].clone();
    let wait = call("watch", json!({"run": run, "wait_seconds": 600}));
    let at = server.at;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {operator}\r\naccept: application/json, \
        text/event-stream\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{wait}",
        wait.len()
    );
    thread::scope(|scope| {
        let revoked = scope.spawn(|| post(&server, &other, &wait));
        actum.run(&["token", "revoke", &id, "--reason", "test"]).ok();
        let reply = revoked.join().unwrap();
        assert!(reply.status == 401 || said(&reply)["error"]["code"] == "UNAUTHORIZED", "{reply:?}");
    });
    // Asked before it is told to stop; heard as far as it still answers.
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let listen = move || {
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        String::from_utf8_lossy(&heard).into_owned()
    };
    let waiting = thread::Builder::new().spawn(listen).unwrap();
    let (code, _) = server.stop();
    assert_eq!(code, 0);
    let heard = waiting.join().unwrap();
    assert!(heard.contains("\"is_over\":false") || heard.contains("503") || heard.is_empty(), "{heard}");
}

/// What a client on stdio says first.
fn greet(running: &mut Running) {
    let hello = json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    assert!(running.send(&message("initialize", hello)));
    let greeting: Value = serde_json::from_str(&running.line().unwrap()).unwrap();
    assert_eq!(greeting["result"]["serverInfo"]["name"], "actum", "{greeting}");
    assert!(running.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()));
}

fn on_stdio(running: &mut Running, name: &str, arguments: Value) -> Value {
    assert!(running.send(&call(name, arguments)));
    loop {
        let line: Value = serde_json::from_str(&running.line().expect("an answer")).expect("nothing but the protocol");
        if line["id"] == 7 {
            return line["result"]["structuredContent"].clone();
        }
    }
}

/// A run that is under way in `actum mcp`, which then ends somehow: the next one has it, and can stop it.
fn under_way(end: impl FnOnce(Running) -> bool) {
    let actum = project(&[("a", "sleep 600; echo hi > hello.txt")]);
    let mut running = actum.start(&["mcp"], &[]);
    greet(&mut running);
    let run = on_stdio(&mut running, "submit", work())["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let state = || asked(&actum, &["status", "--json", &run])["state"].clone();
    until("it runs", || state() == "running");
    if end(running) {
        assert_eq!(state(), "queued", "it was handed back");
    }
    let mut next = actum.start(&["mcp"], &[]);
    greet(&mut next);
    let told = on_stdio(&mut next, "cancel", json!({"run": run}));
    assert!(told["error"].is_null(), "{told}");
    let told = on_stdio(&mut next, "watch", json!({"run": run, "wait_seconds": 120}));
    assert_eq!((&told["state"], &told["is_over"]), (&json!("cancelled"), &json!(true)), "{told}");
    drop(next.stdin.take());
    assert_eq!(next.finish().0, 0);
    assert!(!actum.path("hello.txt").exists());
}

#[test]
fn the_end_of_input_hands_runs_back() {
    under_way(|mut running| {
        drop(running.stdin.take());
        let (code, rest, _) = running.finish();
        assert!(code == 0 && rest.is_empty(), "{code} {rest:?}");
        true
    });
}

#[test]
fn a_signal_hands_runs_back() {
    under_way(|running| {
        running.signal("TERM");
        assert_eq!(running.finish().0, 0);
        true
    });
}

#[test]
fn what_a_killed_one_left_is_taken_over() {
    under_way(|running| {
        running.kill();
        false
    });
}

#[test]
fn nonsense_on_stdio_is_answered_or_passed_over() {
    let actum = writer();
    let mut running = actum.start(&["mcp", "--workers", "0"], &[]);
    greet(&mut running);
    for line in ["{}", "nonsense", "[]", "{\"jsonrpc\":\"2.0\",\"method\":\"x\"}", &"[".repeat(100_000)] {
        assert!(running.send(line));
    }
    assert_eq!(on_stdio(&mut running, "list", json!({}))["runs"], json!([]));
    drop(running.stdin.take());
    assert_eq!(running.finish().0, 0);
    // Whoever leaves at once.
    assert_eq!(actum.run(&["mcp"]).code, 0);
}

/// Whoever has many tools is shown a few, and finds the others by their words.
#[test]
fn of_many_tools_a_client_sees_those_it_looks_for() {
    let actum = writer();
    let tools: Vec<_> = (0..MANY)
        .map(|n| {
            let id = format!("TOOL-{n:03}");
            (
                super::tools::tool(&id, &["echo"]),
                super::tools::adapter(
                    &format!("A-{n:03}"),
                    &id,
                    json!({"executable": "echo", "arg_mapping": {"what": "{what}"}}),
                ),
            )
        })
        .collect();
    super::bridge::register(&actum, &tools);
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let steps = json!([
        ["list_tools", {}], ["list_tools", {"query": "tool-04", "limit": 3}], ["list_tools", {"tool_id": "TOOL-077", "level": "L1"}],
        ["describe_tool", {"id": "TOOL-077", "level": "L2"}], ["describe_tool", {"id": "A-077"}],
        ["call_tool", {"tool_id": "TOOL-077", "params": {"what": "seventy"}}],
    ]);
    let over_http = client(&actum, &format!("http://{}/mcp", server.at), &steps, &[&operator]);
    let on_stdio = client(&actum, env!("CARGO_BIN_EXE_actum"), &steps, &[]);
    for lines in [over_http, on_stdio] {
        assert_eq!(lines[0]["tools"].as_array().unwrap().len(), READING.len() + WORKING.len());
        let said = |n: usize| &lines[n + 1]["structured"];
        let shown = |n: usize| said(n)["adapters"].as_array().unwrap().len();
        assert_eq!((shown(0), said(0)["found"].as_u64()), (50, Some(MANY)), "{}", said(0));
        assert_eq!((shown(1), said(1)["found"].as_u64()), (3, Some(10)), "{}", said(1));
        assert_eq!((shown(2), &said(2)["adapters"][0]["adapter_id"]), (1, &json!("A-077")), "{}", said(2));
        assert!(said(3).to_string().contains("TOOL-077") && said(4).to_string().contains("A-077"), "{}", said(4));
        assert_eq!((&said(5)["status"], &lines[6]["is_error"]), (&json!("success"), &json!(false)), "{}", said(5));
        assert!(said(5)["stdout"].as_str().unwrap().contains("seventy"), "{}", said(5));
    }
}

/// The protocol's own tool knows no tokens: somebody between the two adds one, to one request for each connection.
fn with_token(to: SocketAddr, token: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let serve = move || {
        for stream in listener.incoming().flatten() {
            let token = token.clone();
            thread::Builder::new().spawn(move || pass(stream, to, &token)).unwrap();
        }
    };
    thread::Builder::new().spawn(serve).unwrap();
    at
}

fn pass(mut from: TcpStream, to: SocketAddr, token: &str) -> Option<()> {
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    let end = loop {
        if let Some(at) = said.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        let read = from.read(&mut piece).ok().filter(|read| *read > 0)?;
        said.extend_from_slice(&piece[..read]);
    };
    let head = String::from_utf8_lossy(&said[..end]).into_owned();
    let lines = head.lines().filter(|line| !line.to_lowercase().starts_with("connection:"));
    let head = lines.collect::<Vec<_>>().join("\r\n");
    let mut there = TcpStream::connect(to).ok()?;
    write!(there, "{head}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n").ok()?;
    there.write_all(&said[end + 4..]).ok()?;
    let (mut rest, mut back) = (from.try_clone().ok()?, there.try_clone().ok()?);
    thread::Builder::new().spawn(move || std::io::copy(&mut rest, &mut there)).ok()?;
    std::io::copy(&mut back, &mut from).ok()?;
    from.shutdown(Shutdown::Both).ok()
}

/// With the number of their checks. `docs/mcp.md` says what is left out, and why.
const SCENARIOS: [(&str, u32); 7] = [
    ("server-initialize", 1),
    ("ping", 1),
    ("tools-list", 1),
    ("resources-list", 1),
    ("prompts-list", 1),
    ("completion-complete", 1),
    ("dns-rebinding-protection", 2),
];

#[test]
fn the_conformance_tool_is_content() {
    let actum = writer();
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let at = with_token(server.at, operator);
    let servers = Servers::find();
    for (scenario, checks) in SCENARIOS {
        let mut tool = servers.node();
        tool.arg(servers.folder().join("node_modules/@modelcontextprotocol/conformance/dist/index.js"));
        tool.args(["server", "--url", &format!("http://{at}/mcp"), "--scenario", scenario]);
        let ended = actum_testkit::program::run(tool, b"");
        let all = format!("Passed: {checks}/{checks}, 0 failed, 0 warnings");
        assert!(ended.code == 0 && ended.stdout.contains(&all), "{scenario}: {}{}", ended.stdout, ended.stderr);
    }
}
