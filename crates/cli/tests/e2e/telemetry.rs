//! Traces and metrics by way of the real binary and a collector on loopback: what is told by which names, under which trace,
//! what is never told, and that a collector which is not there, slow or hostile changes nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::predict::{KEY, demo};
use super::run::{item, live, one, project};
use super::runs::{submit, until, worker};
use super::serve::Server;
use super::tools::{adapter, add, call, tool};
use super::{actum, runs};

/// Stands in everything that is nobody's business.
const CONTENT: &str = "content-that-stays-here";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// How a collector answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    /// Takes everything, says nothing.
    Silent,
    /// Never stops talking.
    Endless,
    /// Sends elsewhere, where nobody must go.
    Elsewhere,
    Nonsense,
}

#[derive(Debug, Clone)]
struct Post {
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

struct Collector {
    at: SocketAddr,
    posts: Arc<Mutex<Vec<Post>>>,
    connections: Arc<AtomicUsize>,
}

impl Collector {
    fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (posts, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (kept, counted) = (Arc::clone(&posts), Arc::clone(&connections));
        let serve = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::SeqCst);
                let kept = Arc::clone(&kept);
                std::thread::Builder::new().spawn(move || converse(stream, mood, &kept)).unwrap();
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        Self { at, posts, connections }
    }

    /// The program, told to send everything here.
    fn heard_by(&self, actum: Program) -> Program {
        let url = format!("http://{}", self.at);
        actum
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
            .with_env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
            .with_env("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")
            .with_env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .with_env("OTEL_METRIC_EXPORT_INTERVAL", "100")
    }

    fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }

    /// All spans so far, each with its attributes by name.
    fn spans(&self) -> Vec<Value> {
        let posts = self.posts().into_iter().filter(|post| post.path == "/v1/traces");
        let all = posts.map(|post| serde_json::from_slice::<Value>(&post.body).unwrap());
        let each = |key: &'static str| move |of: Value| of[key].as_array().cloned().unwrap_or_default();
        let spans = all.flat_map(each("resourceSpans")).flat_map(each("scopeSpans")).flat_map(each("spans"));
        spans
            .map(|span| {
                let mut span = span;
                span["attributes"] = by_name(&span["attributes"]);
                span
            })
            .collect()
    }

    fn span(&self, name: &str) -> Value {
        let mut found = Value::Null;
        until(&format!("a span {name}"), || {
            found = self.spans().into_iter().find(|span| span["name"] == name).unwrap_or_default();
            !found.is_null()
        });
        found
    }

    /// The points of a metric that were told last.
    fn points(&self, name: &str) -> Vec<Value> {
        let posts = self.posts().into_iter().filter(|post| post.path == "/v1/metrics");
        let all = posts.map(|post| serde_json::from_slice::<Value>(&post.body).unwrap());
        let each = |key: &'static str| move |of: Value| of[key].as_array().cloned().unwrap_or_default();
        let mut metrics =
            all.flat_map(each("resourceMetrics")).flat_map(each("scopeMetrics")).flat_map(each("metrics"));
        let last = metrics.rfind(|metric| metric["name"] == name).unwrap_or_default();
        let points = ["histogram", "sum"].iter().find_map(|kind| last[kind]["dataPoints"].as_array().cloned());
        let points = points.unwrap_or_default().into_iter();
        points
            .map(|point| {
                let mut point = point;
                point["attributes"] = by_name(&point["attributes"]);
                point
            })
            .collect()
    }

    fn told(&self) -> String {
        self.posts().iter().map(|post| String::from_utf8_lossy(&post.body).into_owned()).collect()
    }
}

fn by_name(attributes: &Value) -> Value {
    let pair = |one: &Value| {
        let value = &one["value"];
        let text = value["stringValue"].as_str().or(value["intValue"].as_str()).map(ToOwned::to_owned);
        (one["key"].as_str().unwrap_or_default().to_owned(), json!(text.unwrap_or_else(|| value.to_string())))
    };
    Value::Object(attributes.as_array().into_iter().flatten().map(pair).collect())
}

fn converse(mut stream: TcpStream, mood: Mood, kept: &Mutex<Vec<Post>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = Vec::new();
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 || header.trim().is_empty() {
                break;
            }
            let (name, value) = header.trim().split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        kept.lock().unwrap().push(Post { path, headers, body });
        let said = match mood {
            Mood::Well => "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
            Mood::Silent => loop {
                std::thread::park();
            },
            Mood::Endless => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            Mood::Elsewhere => "HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n",
            Mood::Nonsense => "\0\0\0 nonsense\r\n\r\n",
        };
        if stream.write_all(said.as_bytes()).is_err() {
            return;
        }
        // Until whoever listens has had enough.
        if mood == Mood::Endless {
            while stream.write_all(b"5\r\nabcde\r\n").is_ok() {}
            return;
        }
    }
}

fn hello() -> Program {
    project(&[("a", &format!("echo {CONTENT} > made"))])
}

#[test]
fn a_run_is_a_span_of_its_own_trace_and_counted() {
    let collector = Collector::start(Mood::Well);
    let actum = collector.heard_by(hello()).with_env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc");
    let (code, run) = one(&actum, item("first", "a"), &[]);
    assert_eq!(code, 0, "{run}");
    let span = collector.span("invoke_agent a");
    let attributes = &span["attributes"];
    for (name, value) in [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "a"),
        ("gen_ai.conversation.id", run["run_id"].as_str().unwrap()),
        ("actum.run.end", "success"),
        ("actum.item", "first"),
        ("actum.attempt", "1"),
        ("actum.tenant", "local"),
    ] {
        assert_eq!(attributes[name], value, "{attributes}");
    }
    assert!(span["parentSpanId"].as_str().unwrap_or_default().is_empty(), "{span}");
    until("the metrics are told", || !collector.points("actum.run.duration").is_empty());
    let runs = collector.points("actum.runs");
    assert_eq!(runs[0]["attributes"], json!({"actum.run.end": "success"}));
    assert_eq!(collector.points("actum.run.queue.wait").len(), 1);
    assert_eq!(collector.points("gen_ai.client.operation.duration").len(), 1);
    for post in collector.posts() {
        let header = |name: &str| post.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
        assert_eq!((header("x-key"), header("content-type")), (Some("abc"), Some("application/json")));
    }
    let told = collector.told();
    assert!(told.contains("\"service.name\"") && told.contains("\"actum\""), "{told}");
    assert!(!told.contains(CONTENT) && !told.contains("do first"), "{told}");
}

#[test]
fn a_failed_run_says_why_by_its_code() {
    let collector = Collector::start(Mood::Well);
    let actum = collector.heard_by(project(&[("a", "exit 3")]));
    let (code, run) = one(&actum, item("first", "a"), &[]);
    assert_eq!(code, 1);
    let span = collector.span("invoke_agent a");
    assert_eq!(span["attributes"]["error.type"], run["error_code"], "{span}");
    assert_eq!(span["status"]["code"], 2, "{span}");
}

#[test]
fn protobuf_unless_told_otherwise_and_by_the_standard_variables() {
    let collector = Collector::start(Mood::Well);
    let actum = hello()
        .with_env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("http://{}/own/path", collector.at))
        .with_env("OTEL_SERVICE_NAME", "my-service")
        .with_env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    assert_eq!(one(&actum, item("first", "a"), &[]).0, 0);
    let posts = collector.posts();
    assert!(!posts.is_empty() && posts.iter().all(|post| post.path == "/own/path"), "{posts:?}");
    assert!(posts[0].headers.contains(&("content-type".into(), "application/x-protobuf".into())), "{posts:?}");
    let told = collector.told();
    for text in ["invoke_agent a", "my-service", "deployment.environment.name"] {
        assert!(told.contains(text), "{text}");
    }
}

#[test]
fn questions_and_tools_are_spans_and_their_contents_are_nobodys() {
    let collector = Collector::start(Mood::Well);
    let upstream = Upstream::start(Script::default().turn(Turn::text(r#"{"label":"positive"}"#), Usage::new(40, 6)));
    let actum = collector.heard_by(demo(&upstream));
    let allowed = ["spend", "authorize", "--json", "--id", "all", "--max-total", "1000000", "--reason", "test"];
    assert_eq!(actum.run(&allowed).code, 0, "{}", actum.run(&allowed).stderr);
    let text = format!("text={CONTENT}");
    let told = actum.run(&["predict", "demo/Sentiment.v1", "--json", "--param", &text]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let span = collector.span("chat stub-1");
    let attributes = &span["attributes"];
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "stub-1"),
        ("gen_ai.usage.input_tokens", "40"),
        ("gen_ai.usage.output_tokens", "6"),
    ] {
        assert_eq!(attributes[name], value, "{attributes}");
    }
    assert_eq!(span["kind"], 3, "a client's: {span}");
    until("the metrics are told", || collector.points("gen_ai.client.token.usage").len() == 2);
    let tokens = collector.points("gen_ai.client.token.usage");
    let sum =
        |kind: &str| tokens.iter().find(|one| one["attributes"]["gen_ai.token.type"] == kind).unwrap()["sum"].clone();
    assert_eq!((sum("input"), sum("output")), (json!(40.0), json!(6.0)), "{tokens:?}");
    until("the money is told", || !collector.points("actum.spend").is_empty());

    let told = collector.told();
    assert!(!told.contains(CONTENT) && !told.contains(KEY) && !told.contains("How does this sound"), "{told}");
}

#[test]
fn a_tool_is_a_span() {
    let collector = Collector::start(Mood::Well);
    let actum = collector.heard_by(actum());
    let cli = json!({"executable": "echo", "arg_mapping": {"text": "{value}"}});
    add(&actum, &[tool("teller", &["echo"]), adapter("ADP-1", "teller", cli)]);
    let (code, result) = call(&actum, "teller", json!({"text": CONTENT}));
    let span = collector.span("execute_tool teller");
    assert_eq!(span["attributes"]["gen_ai.tool.name"], "teller", "{span}");
    assert_eq!(span["attributes"].get("error.type").is_none(), code == 0, "{span} {result}");
    assert!(!collector.told().contains(CONTENT));
}

#[test]
fn a_run_is_below_whoever_asked_for_it_over_http() {
    let collector = Collector::start(Mood::Well);
    let actum = collector.heard_by(hello());
    let server = Server::start(&actum, &[]);
    let token = server.told["token"].as_str().unwrap().to_owned();
    let bearer = format!("Bearer {token}");
    let submit = |parent: &str| {
        let headers = [("authorization", bearer.as_str()), ("traceparent", parent)];
        server.ask_with("POST", "/v1/runs", &headers, &item("first", "a").to_string()).is(202)
    };
    submit(PARENT);
    let run = collector.span("invoke_agent a");
    assert_eq!(run["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736", "{run}");
    assert_eq!(run["parentSpanId"], "00f067aa0ba902b7", "{run}");
    let request = collector.span("POST /v1/runs");
    assert_eq!(request["parentSpanId"], "00f067aa0ba902b7", "{request}");
    assert_eq!(request["attributes"]["http.response.status_code"], "202", "{request}");
    until("requests are counted", || !collector.points("http.server.request.duration").is_empty());
    // What is no trace is none, and never an error.
    for parent in ["nonsense", "00-0-0-0", &"0".repeat(500)] {
        submit(parent);
    }
    assert!(!collector.told().contains(&token));
    assert_eq!(server.stop().0, 0);
}

#[test]
fn a_run_keeps_its_trace_from_worker_to_worker() {
    let collector = Collector::start(Mood::Well);
    let actum = collector.heard_by(runs::project("test -e go || sleep 60; echo $1 >> lines"));
    actum.file("work.yaml", json!({"items": [live(item("first", "b"))]}).to_string());
    let run = submit(&actum, &[]).remove(0);
    let first = worker(&actum, &[], &[]);
    until("it acts", || runs::status(&actum, &run)["progress"]["phase"] == "step");
    runs::end(first);
    actum.file("go", "");
    let mut second = actum.start(&["worker", "-q"], &[("ACTUM_CRASH_AT", "run.acted")]);
    until("it stands still", || second.error_line().is_some_and(|line| line.starts_with("crash point")));
    second.kill();
    runs::work(&actum, std::slice::from_ref(&run));
    let all =
        || -> Vec<Value> { collector.spans().into_iter().filter(|span| span["name"] == "invoke_agent b").collect() };
    until("both are told", || all().len() >= 2);
    let ends: Vec<_> = all().iter().map(|span| span["attributes"]["actum.run.end"].clone()).collect();
    assert_eq!(ends.first(), Some(&json!("handed_back")), "{ends:?}");
    assert_eq!(ends.last(), Some(&json!("success")), "{ends:?}");
    assert!(all().iter().all(|span| span["traceId"] == all()[0]["traceId"]), "{:?}", all());
    assert!(all().iter().all(|span| span["attributes"]["gen_ai.conversation.id"] == run.as_str()));
}

#[test]
fn no_collector_and_no_kind_of_collector_changes_anything() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for mood in [None, Some(Mood::Silent), Some(Mood::Endless), Some(Mood::Elsewhere), Some(Mood::Nonsense)] {
        let collector = mood.map(Collector::start);
        let at = collector.as_ref().map_or(gone, |collector| collector.at);
        let actum = hello()
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{at}"))
            .with_env("OTEL_EXPORTER_OTLP_TIMEOUT", "500");
        let ended = actum.run_with(&["run", "--json", "-"], item("first", "a").to_string().as_bytes());
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{mood:?}");
        assert_eq!(ended.json()["runs"][0]["status"], "success", "{mood:?}");
        if let Some(collector) = collector {
            assert!(collector.posts().iter().all(|post| post.path != "/elsewhere"), "{mood:?}");
        }
    }
}

#[test]
fn variables_that_cannot_be_used_are_told_and_nothing_else() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "-*/*-/*-//-/-/no address"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ] {
        let actum = hello().with_env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").with_env(name, value);
        assert_eq!(one(&actum, item("first", "a"), &[]).0, 0, "{name}");
    }
}

#[test]
fn nobody_is_told_anything_unless_somebody_wants_to_hear() {
    let collector = Collector::start(Mood::Well);
    let off = [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")];
    let actum = collector.heard_by(hello()).with_env(off[0].0, off[0].1);
    assert_eq!(one(&actum, item("first", "a"), &[]).0, 0);
    assert_eq!(collector.connections.load(Ordering::SeqCst), 0);
    let actum = collector.heard_by(hello()).with_env(off[1].0, off[1].1).with_env("OTEL_METRICS_EXPORTER", "none");
    assert_eq!(one(&actum, item("first", "a"), &[]).0, 0);
    assert_eq!(collector.connections.load(Ordering::SeqCst), 0);
}
