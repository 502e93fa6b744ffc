//! Services of HTTP as tools, through the real binary: how they are asked, whom they may reach, what becomes of answers that
//! fail, come late or are too long; and that no secret is left anywhere.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actum_testkit::program::{Ended, Program, other};
use serde_json::{Value, json};

use super::actum;
use super::sandbox::{Who, own_all};

/// A value that must not be found anywhere afterwards.
pub(crate) const SECRET: &str = "s3cr3t-Value-0123456789";

/// A request as a server has seen it.
#[derive(Debug, Clone)]
struct Seen {
    line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

type Answering = dyn Fn(usize, &Seen, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A server on a port of its own, for as long as the tests run.
struct Service {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Service {
    /// `answering` gets the number of the request, from 0.
    fn new(answering: impl Fn(usize, &Seen, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, answering) = (Arc::new(Mutex::default()), Arc::new(answering));
        let own = Arc::clone(&seen);
        let serve = move || {
            for stream in listener.incoming().flatten() {
                let (own, answering) = (Arc::clone(&own), Arc::clone(&answering));
                let one = move || drop(serve(stream, &own, &*answering));
                std::thread::Builder::new().spawn(one).unwrap();
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        Self { port, seen }
    }

    /// One answer for each request, in order; the last one again and again.
    fn answers(answers: &[String]) -> Self {
        let answers = answers.to_vec();
        Self::new(move |n, _, out| out.write_all(answers[n.min(answers.len() - 1)].as_bytes()))
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Seen>>, answering: &Answering) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut text = String::new();
        reader.read_line(&mut text)?;
        let Some((name, value)) = text.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request = Seen { line: line.trim_end().to_owned(), headers, body: String::from_utf8_lossy(&body).into_owned() };
    let n = {
        let mut seen = seen.lock().unwrap();
        seen.push(request.clone());
        seen.len() - 1
    };
    answering(n, &request, &mut stream)
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> String {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn json_answer(value: &Value) -> String {
    answer(200, &[("Content-Type", "application/json")], &value.to_string())
}

/// An approved tool; `change` says what is special about it.
pub(crate) fn tool(change: impl FnOnce(&mut Value)) -> Value {
    let mut tool = json!({
        "tool_id": "T", "name": "t", "version": "1.0.0", "owner": "tests", "provenance": {"license": "MIT"},
        "scope": {"data_access": "read", "filesystem": ["."]},
        "approval": {"approver": "tests", "date": "2026-01-16"},
    });
    change(&mut tool);
    tool
}

pub(crate) fn adapter(id: &str, form: &str, interface: Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut adapter = json!({"adapter_id": id, "name": id, "version": "1.0.0", "tool_id": "T", "type": form});
    adapter["interface"][form] = interface;
    change(&mut adapter);
    adapter
}

/// Registers a tool with its adapters.
pub(crate) fn register(actum: &Program, tool: &Value, adapters: &[Value]) {
    let mut files = vec![actum.file("registry/tool.json", tool.to_string())];
    for (n, adapter) in adapters.iter().enumerate() {
        files.push(actum.file(&format!("registry/adapter-{n}.json"), adapter.to_string()));
    }
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let words: Vec<&str> = ["tool", "add"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let ended = actum.run(&words);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
}

/// Calls the tool T; the result on stdout, whatever became of it.
pub(crate) fn call(actum: &Program, operation: &str, params: &Value) -> (i32, Value) {
    let ended = call_as(Who::Root, actum, operation, params);
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json())
}

pub(crate) fn call_as(who: Who, actum: &Program, operation: &str, params: &Value) -> Ended {
    let params = params.to_string();
    who.run(actum, &["exec", "--tool", "T", "--op", operation, "--params-json", &params, "--json"])
}

/// An api adapter for a service on this machine, `A`.
fn api(port: u16, change: impl FnOnce(&mut Value)) -> Value {
    let endpoints = json!({"get": "GET /get", "one": "GET /things/{id}", "make": "POST /things"});
    let interface = json!({"base_url": format!("http://127.0.0.1:{port}/v1"), "endpoint_mapping": endpoints});
    adapter("A", "api", interface, change)
}

/// A project whose tool reaches these ports.
fn reaching(ports: &[u16], secrets: &Value, adapters: &[Value]) -> Program {
    let actum = actum().with_env("THE_SECRET", SECRET).with_env("THE_NAME", "client-name-17");
    let endpoints: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let tool = tool(|tool| {
        tool["scope"] = json!({"commands": ["sh"], "endpoints": endpoints, "network": "on", "data_access": "read",
            "filesystem": ["."], "arguments": "any"});
        tool["secrets"] = secrets.clone();
    });
    register(&actum, &tool, adapters);
    actum
}

/// Nothing that was written or said holds the secret.
fn assert_secret_is_nowhere(folder: &Path, said: &Ended, secret: &str) {
    for text in [&said.stdout, &said.stderr] {
        assert!(!text.contains(secret), "said: {text}");
    }
    let found = other("grep").args(["-rlaF", secret]).arg(folder).output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.is_empty(), "kept: {found}");
}

fn decisions(result: &Value) -> Vec<String> {
    let decisions = result["evidence"]["decisions"].as_array().unwrap_or_else(|| panic!("{result}"));
    decisions.iter().map(|decision| decision["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_service_is_asked_and_its_answer_is_kept() {
    let service = Service::answers(&[json_answer(&json!({"data": [1, "two"]}))]);
    let adapter = api(service.port, |adapter| {
        adapter["transforms"] = json!({"output": [{"type": "extract", "spec": "$.data[*]"}]});
    });
    let actum = reaching(&[service.port], &json!({}), &[adapter]);
    let (code, result) = call(&actum, "get", &json!({"q": "a b&c"}));
    assert_eq!((code, &result["status"], &result["output"]), (0, &json!("success"), &json!([1, "two"])), "{result}");
    assert_eq!((&result["http_status"], &result["exit_code"]), (&json!(200), &json!(0)));
    assert_eq!(decisions(&result), ["policy_allowed.default"]);
    let seen = service.seen();
    assert_eq!(seen[0].line, "GET /v1/get?q=a+b%26c HTTP/1.1");
    assert!(!seen[0].headers.contains_key("authorization"), "{seen:?}");
    let (code, _) = call(&actum, "make", &json!({"name": "x", "n": 7}));
    let seen = service.seen();
    assert_eq!((code, &*seen[1].line), (0, "POST /v1/things HTTP/1.1"));
    assert_eq!(serde_json::from_str::<Value>(&seen[1].body).unwrap(), json!({"name": "x", "n": 7}));
    // It is on the disk and in the ledger like every execution.
    let id = result["execution_id"].as_str().unwrap();
    let kept = std::fs::read(actum.path(&format!(".actum/executions/{id}/result.json"))).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&kept).unwrap(), result);
    assert!(actum.run(&["ledger", "list", "--json"]).stdout.contains(id));
    // What is not mapped is not asked.
    let (code, result) = call(&actum, "drop", &json!({}));
    assert_eq!((code, &result["status"]), (3, &json!("refused")), "{result}");
    assert_eq!(service.seen().len(), 2);
}

#[test]
fn every_way_to_sign_leaves_no_secret_behind() {
    let signed = |auth: &str, more: &Value, secrets: &Value| {
        let service = Service::new(|_, seen, out| {
            // A service that tells everybody what it was told.
            let heard = json!({"line": seen.line, "headers": seen.headers, "body": seen.body});
            let fresh = json!({"access_token": "fetched-Token-4711", "token_type": "Bearer", "expires_in": 60});
            let said = if seen.line.contains("/token") { fresh } else { heard };
            out.write_all(json_answer(&said).as_bytes())
        });
        let adapter = api(service.port, |adapter| {
            adapter["interface"]["api"]["auth_method"] = json!(auth);
            adapter["interface"]["api"]["auth"] = more.clone();
            if auth == "oauth" {
                adapter["interface"]["api"]["auth"]["token_url"] =
                    json!(format!("http://127.0.0.1:{}/token", service.port));
            }
        });
        let actum = reaching(&[service.port], secrets, &[adapter]);
        let ended = call_as(Who::Root, &actum, "get", &json!({}));
        assert_eq!(ended.code, 0, "{auth}: {}{}", ended.stdout, ended.stderr);
        for secret in [SECRET, "fetched-Token-4711"] {
            assert_secret_is_nowhere(actum.folder(), &ended, secret);
        }
        service.seen()
    };
    let key = json!({"api_key": "env:THE_SECRET"});
    assert!(!format!("{:?}", signed("none", &json!({}), &key)).contains(SECRET));
    assert_eq!(signed("api_key", &json!({}), &key)[0].headers["x-api-key"], SECRET);
    assert_eq!(signed("api_key", &json!({"header": "X-Mine"}), &key)[0].headers["x-mine"], SECRET);
    let seen = signed("api_key", &json!({"query": "key"}), &key);
    assert_eq!(seen[0].line, format!("GET /v1/get?key={SECRET} HTTP/1.1"));
    assert!(!seen[0].headers.contains_key("x-api-key"), "{seen:?}");
    let seen = signed("bearer", &json!({}), &json!({"token": "env:THE_SECRET"}));
    assert_eq!(seen[0].headers["authorization"], format!("Bearer {SECRET}"));
    let client = json!({"client_id": "env:THE_NAME", "client_secret": "env:THE_SECRET"});
    let seen = signed("oauth", &json!({"scope": "read write"}), &client);
    assert_eq!(seen[0].line, "POST /token HTTP/1.1");
    for part in ["grant_type=client_credentials", "scope=read+write", &format!("client_secret={SECRET}")] {
        assert!(seen[0].body.contains(part), "{part}: {}", seen[0].body);
    }
    assert_eq!(seen[1].headers["authorization"], "Bearer fetched-Token-4711");
}

#[test]
fn a_secret_that_is_not_there_is_named_and_nobody_is_asked() {
    let service = Service::answers(&[json_answer(&json!({}))]);
    let adapter = api(service.port, |adapter| adapter["interface"]["api"]["auth_method"] = json!("bearer"));
    let actum = reaching(&[service.port], &json!({"token": "env:NOT_SET"}), std::slice::from_ref(&adapter));
    let ended = call_as(Who::Root, &actum, "get", &json!({}));
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("env:NOT_SET"), "{}", ended.stderr);
    // Without even a name for it the adapter is not taken.
    let actum = reaching(&[service.port], &json!({}), &[]);
    let file = actum.file("registry/bearer.json", adapter.to_string());
    let ended = actum.run(&["adapter", "add", &file.display().to_string()]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("no secret `token`"), "{}", ended.stderr);
    assert!(service.seen().is_empty());
}

#[test]
fn what_may_be_tried_again_is_and_nothing_else() {
    let tried = |answers: &[String]| {
        let service = Service::answers(answers);
        let adapter = api(service.port, |adapter| {
            adapter["errors"] = json!({"retry": {"max_attempts": 3, "backoff_ms": 1, "retryable_codes": [429, 503]}});
        });
        let actum = reaching(&[service.port], &json!({}), &[adapter]);
        let began = Instant::now();
        let (code, result) = call(&actum, "get", &json!({}));
        let went: Vec<Value> =
            result["evidence"]["attempts"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect();
        assert_eq!(went.len(), service.seen().len(), "{result}");
        (code, result, json!(went), began.elapsed())
    };
    let good = || json_answer(&json!("good"));
    let (code, result, went, took) = tried(&[answer(429, &[("Retry-After", "1")], ""), good()]);
    assert_eq!((code, &result["output"], went), (0, &json!("good"), json!([429, 200])), "{result}");
    assert!(took >= Duration::from_secs(1), "it was asked to wait: {took:?}");
    let (code, _, went, _) = tried(&[answer(503, &[], ""), answer(503, &[], ""), good()]);
    assert_eq!((code, went), (0, json!([503, 503, 200])));
    let (code, result, went, _) = tried(&[answer(503, &[], "")]);
    assert_eq!((code, went), (1, json!([503, 503, 503])), "{result}");
    assert_eq!(result["http_status"], 503);
    let (code, result, went, _) = tried(&[answer(400, &[], "what?"), good()]);
    assert_eq!((code, &result["status"], went), (1, &json!("failure"), json!([400])), "{result}");
    assert_eq!(result["interpretation"]["meaning"], "Answered with status 400");
    // Longer than anybody waits.
    let (code, _, went, took) = tried(&[answer(429, &[("Retry-After", "86400")], ""), good()]);
    assert_eq!((code, went), (1, json!([429])));
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn redirects_lead_only_where_it_is_allowed_and_carry_no_secret_away() {
    let far = Service::answers(&[json_answer(&json!("far"))]);
    let to = |place: String| Service::answers(&[answer(302, &[("Location", &place)], "")]);
    let signed = |port: u16, form: &Value| {
        api(port, |adapter| {
            adapter["interface"]["api"]["auth_method"] = json!("api_key");
            adapter["interface"]["api"]["auth"] = form.clone();
        })
    };
    let key = json!({"api_key": "env:THE_SECRET"});
    let place = format!("http://127.0.0.1:{}/taken", far.port);
    for form in [json!({"header": "X-Key"}), json!({"query": "key"})] {
        let near = to(place.clone());
        // Not listed: it is private, and nobody gets there.
        let actum = reaching(&[near.port], &key, &[signed(near.port, &form)]);
        let ended = call_as(Who::Root, &actum, "get", &json!({}));
        let result = ended.json();
        assert_eq!((ended.code, &result["status"]), (3, &json!("refused")), "{result}");
        let codes = decisions(&result);
        assert_eq!(codes[0], "policy_allowed.default");
        assert!(codes[1].starts_with("ssrf_block."), "{result}");
        assert_secret_is_nowhere(actum.folder(), &ended, SECRET);
    }
    assert!(far.seen().is_empty());
    // Another port of an address that is listed is not listed; another address is private.
    let near = to("http://127.0.0.9:81/x".into());
    let actum = reaching(&[near.port], &json!({}), &[api(near.port, |_| {})]);
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, &*decisions(&result)[1]), (3, "ssrf_block.private_address"), "{result}");
    let near = to("http://169.254.169.254/latest/meta-data".into());
    let actum = reaching(&[near.port], &json!({}), &[api(near.port, |_| {})]);
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, &*decisions(&result)[1]), (3, "ssrf_block.metadata_endpoint"), "{result}");
    // Listed: reached, without the secret.
    for form in [json!({"header": "X-Key"}), json!({"query": "key"})] {
        let near = to(place.clone());
        let actum = reaching(&[near.port, far.port], &key, &[signed(near.port, &form)]);
        let (code, result) = call(&actum, "get", &json!({}));
        assert_eq!((code, &result["output"]), (0, &json!("far")), "{result}");
        assert!(format!("{:?}", near.seen()).contains(SECRET));
    }
    assert_eq!(far.seen().len(), 2);
    assert!(!format!("{:?}", far.seen()).contains(SECRET), "{:?}", far.seen());
    // Round and round.
    let loops = Service::answers(&[answer(302, &[("Location", "/again")], "")]);
    let actum = reaching(&[loops.port], &json!({}), &[api(loops.port, |_| {})]);
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, loops.seen().len()), (1, 6), "{result}");
}

#[test]
fn a_service_that_dawdles_is_given_up() {
    let service = Service::new(|_, _, out| {
        out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")?;
        // A drop now and then, so that something always comes.
        for _ in 0..600 {
            out.write_all(b"x")?;
            out.flush()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    });
    let adapter = api(service.port, |adapter| adapter["sandbox_override"] = json!({"timeout_ms": 1_500}));
    let actum = reaching(&[service.port], &json!({}), &[adapter]);
    let began = Instant::now();
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, &result["status"]), (4, &json!("timeout")), "{result}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(result["error"]["message"].as_str().unwrap().contains("no complete answer within"), "{result}");
}

/// The most memory a call of the tool used, in KiB, with the call's result.
fn measured(actum: &Program, folder: &Path) -> (u64, Value) {
    let script = "import resource, subprocess, sys\n\
        done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)\n\
        sys.stdout.buffer.write(done.stdout)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)";
    let mut command = other("/usr/bin/python3");
    let binary = Who::Root.binary(actum);
    command.args(["-c", script, &binary, "exec", "--tool", "T", "--op", "get", "--json"]).current_dir(folder);
    let done = command.output().unwrap();
    let most = String::from_utf8_lossy(&done.stderr).trim().lines().last().unwrap().parse().unwrap();
    (most, serde_json::from_slice(&done.stdout).unwrap())
}

#[test]
fn a_long_answer_is_cut_and_does_not_grow_our_memory() {
    for (kind, status) in [("text/plain", "success"), ("application/json", "failure")] {
        let service = Service::new(move |_, _, out| {
            write!(out, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n[")?;
            let piece = vec![b' '; 1 << 20];
            // More than there is memory to waste; the other side hangs up long before.
            for _ in 0..2_000 {
                out.write_all(&piece)?;
            }
            Ok(())
        });
        let actum = reaching(&[service.port], &json!({}), &[api(service.port, |_| {})]);
        let (most, result) = measured(&actum, actum.folder());
        assert_eq!((&result["status"], &result["truncated"]), (&json!(status), &json!(true)), "{kind}: {result:.300}");
        assert_eq!(result["output"].as_str().unwrap().len(), 1 << 20, "{kind}");
        assert!(most < 256 << 10, "{kind}: {most} KiB");
    }
}

#[test]
fn an_answer_that_is_no_json_says_where() {
    let bad = answer(200, &[("Content-Type", "application/json; charset=utf-8")], "{\"a\": 1,\n \"b\": ]}");
    let service = Service::answers(&[bad]);
    let actum = reaching(&[service.port], &json!({}), &[api(service.port, |_| {})]);
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!(
        (code, &result["status"], &result["error"]["stage"]),
        (1, &json!("failure"), &json!("output")),
        "{result}"
    );
    assert_eq!(result["error"]["path"], "line 2 column 7", "{result}");
    assert_eq!(result["output"], "{\"a\": 1,\n \"b\": ]}", "what came is kept");
}

#[test]
fn nobody_outside_the_scope_is_reached() {
    let service = Service::answers(&[json_answer(&json!("hello"))]);
    // An adapter that goes beyond its tool is not registered at all.
    let actum = actum();
    let tool = tool(|tool| {
        tool["scope"] = json!({"commands": ["x"], "endpoints": ["other.test"], "network": "on"});
    });
    let files = [
        actum.file("tool.json", tool.to_string()).display().to_string(),
        actum.file("adapter.json", api(service.port, |_| {}).to_string()).display().to_string(),
    ];
    let ended = actum.run(&["tool", "add", &files[0], &files[1], "--json"]);
    assert_eq!(ended.code, 2, "{}", ended.stdout);
    assert!(ended.stderr.contains("scope.endpoints"), "{}", ended.stderr);
    // One that switches the network off reaches nobody, whatever its tool may.
    let adapter = api(service.port, |adapter| adapter["sandbox_override"] = json!({"network": {"enabled": false}}));
    let actum = reaching(&[service.port], &json!({}), &[adapter]);
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, &result["status"]), (3, &json!("refused")), "{result}");
    assert_eq!(decisions(&result), ["ssrf_block.private_address"]);
    assert!(service.seen().is_empty());
}

#[test]
fn a_parameter_stays_where_it_was_put() {
    let service = Service::answers(&[json_answer(&json!({}))]);
    let actum = reaching(&[service.port], &json!({}), &[api(service.port, |_| {})]);
    for (id, path) in [
        ("../x", "..%2Fx"),
        ("..", ""),
        ("a b/c?d#e", "a%20b%2Fc%3Fd%23e"),
        ("%2e%2e/x", "%252e%252e%2Fx"),
        ("//evil.test/", "%2F%2Fevil.test%2F"),
        ("x\r\nHost: evil.test", "x%0D%0AHost%3A%20evil.test"),
    ] {
        let before = service.seen().len();
        let (code, result) = call(&actum, "one", &json!({"id": id}));
        let seen = service.seen();
        if path.is_empty() {
            assert_eq!((code, seen.len()), (2, before), "{id}: {result}");
            continue;
        }
        assert_eq!(code, 0, "{id}: {result}");
        assert_eq!(seen[before].line, format!("GET /v1/things/{path} HTTP/1.1"), "{id}");
    }
    let (code, result) = call(&actum, "one", &json!({}));
    assert_eq!(code, 2, "{result}");
}

#[test]
fn who_is_not_there_is_replaced_by_another_adapter() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let adapters = |condition: &str| {
        let first = api(gone, |adapter| {
            adapter["errors"] = json!({"fallback": {"adapter_id": "B", "condition": condition}});
        });
        let interface = json!({"executable": "sh", "base_args": ["-c", "echo from the shelf"]});
        [first, adapter("B", "cli", interface, |_| {})]
    };
    let actum = reaching(&[gone], &json!({}), &adapters("on_unavailable"));
    let run = |actum: &Program| {
        let ended = actum.run(&["exec", "--tool", "T", "--op", "get", "--adapter", "A", "--json"]);
        (ended.code, ended.json())
    };
    let (code, result) = run(&actum);
    assert_eq!((code, &result["adapter_id"]), (0, &json!("B")), "{result}");
    assert_eq!(result["output"], "from the shelf\n");
    let went: Vec<&str> =
        result["evidence"]["attempts"].as_array().unwrap().iter().map(|one| one["went"].as_str().unwrap()).collect();
    assert_eq!(went, ["unavailable", "well"]);
    let actum = reaching(&[gone], &json!({}), &adapters("on_timeout"));
    let (code, result) = run(&actum);
    assert_eq!((code, &result["status"], &result["adapter_id"]), (1, &json!("unavailable"), &json!("A")), "{result}");
    assert!(result["error"]["message"].as_str().unwrap().contains("cannot be reached"), "{result}");
}

const TLS_SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + ".pem", sys.argv[1] + ".key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A program that tells its port on its first line; ended with the test.
pub(crate) struct Listening {
    child: std::process::Child,
    pub port: u16,
}

impl Listening {
    pub(crate) fn start(mut command: std::process::Command) -> Self {
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("no port: {line}"));
        Self { child, port }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn only_whom_the_machine_trusts_is_spoken_to() {
    let place = actum();
    let openssl = |words: &str| {
        let done = other("openssl").args(words.split(' ')).current_dir(place.folder()).output().unwrap();
        assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
    };
    place.file("leaf.ext", "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n");
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=root -keyout root.key -out root.pem",
    );
    openssl("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=leaf -keyout leaf.key -out leaf.csr");
    openssl(
        "x509 -req -in leaf.csr -CA root.pem -CAkey root.key -CAcreateserial -days 2 -extfile leaf.ext -out leaf.pem",
    );
    let mut command = other("/usr/bin/python3");
    command.args(["-c", TLS_SERVER, &place.path("leaf").display().to_string()]);
    let server = Listening::start(command);
    let adapter = api(server.port, |adapter| {
        adapter["interface"]["api"]["base_url"] = json!(format!("https://127.0.0.1:{}", server.port));
    });
    let actum = reaching(&[server.port], &json!({}), std::slice::from_ref(&adapter));
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, &result["status"]), (1, &json!("unavailable")), "{result}");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("127.0.0.1 cannot be trusted") && message.contains("certificate"), "{message}");
    // The platform's own way to trust one more.
    let root = place.path("root.pem").display().to_string();
    let actum = reaching(&[server.port], &json!({}), &[adapter]).with_env("SSL_CERT_FILE", &root);
    let (code, result) = call(&actum, "get", &json!({}));
    assert_eq!((code, &result["output"]), (0, &json!("hello")), "{result}");
}

#[test]
fn an_ordinary_user_calls_a_service() {
    let service = Service::answers(&[json_answer(&json!("good"))]);
    let adapter = api(service.port, |adapter| adapter["interface"]["api"]["auth_method"] = json!("bearer"));
    let actum = reaching(&[service.port], &json!({"token": "env:THE_SECRET"}), &[adapter]);
    own_all(actum.folder(), Who::Nobody);
    let ended = call_as(Who::Nobody, &actum, "get", &json!({}));
    assert_eq!((ended.code, &ended.json()["output"]), (0, &json!("good")), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(service.seen()[0].headers["authorization"], format!("Bearer {SECRET}"));
}
