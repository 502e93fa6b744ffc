//! What is offered, asked by the client of the same library over a pipe: with commands and tools that only pretend.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actum_api::route::{Need, Route};
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::RunningService;
use rmcp::{RoleClient, ServiceExt as _};
use serde_json::{Value, json};

use super::stdio::serve_on;
use super::{Commands, Stop};
use crate::api::{Answer, Given};
use crate::bridge::{Call, Refused, Tools};

/// Longer than anything here takes, so that a hang becomes a failure.
const LONG: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<(String, Given)>>,
    looks: AtomicUsize,
    is_reader: AtomicBool,
    is_gone: AtomicBool,
    hangs: AtomicUsize,
}

fn answer(status: u16, body: &Value) -> Answer {
    let exit = u8::from(status >= 400);
    Answer::new(status, "application/json", body.to_string().into_bytes(), exit)
}

impl Commands for Fake {
    fn may(&self, need: Need) -> bool {
        need == Need::Read || !self.is_reader.load(Ordering::SeqCst)
    }

    fn answer(&self, route: &'static Route, given: Given) -> Answer {
        let run = given.path.get("run").cloned().unwrap_or_default();
        self.asked.lock().unwrap().push((format!("{} {}", route.method.word(), route.path), given));
        match (route.path, run.as_str()) {
            ("/v1/runs/{run}", "slow") => {
                let looks = self.looks.fetch_add(1, Ordering::SeqCst);
                let state = if looks < 3 { "running" } else { "succeeded" };
                answer(200, &json!({"run_id": run, "state": state, "events": vec![json!({}); looks], "contract": {}}))
            }
            ("/v1/runs/{run}", "never") => answer(200, &json!({"run_id": run, "state": "running", "events": []})),
            ("/v1/runs/{run}/diff", "large") => {
                Answer { body: vec![b'x'; super::TEXT_BYTES_MAX + 1], ..answer(200, &json!({})) }
            }
            ("/v1/runs", _) if self.looks.load(Ordering::SeqCst) > 100 => {
                Answer { body: vec![b'x'; super::RESULT_BYTES_MAX + 1], ..answer(200, &json!({})) }
            }
            (_, "none") => answer(404, &json!({"error": {"code": "NOT_FOUND", "message": "no run", "hint": "look"}})),
            _ => answer(200, &json!({"ok": true})),
        }
    }

    fn holds(&self) -> bool {
        !self.is_gone.load(Ordering::SeqCst)
    }
}

impl Tools for Fake {
    fn list(&self, level: &str, _: Option<&str>) -> Result<Value, Refused> {
        let adapter = |n: usize| json!({"adapter_id": format!("A-{n}"), "tool_id": format!("T-{n}"), "name": "Sums"});
        Ok(json!({"level": level, "adapters": (0..500).map(adapter).collect::<Vec<_>>()}))
    }

    fn show(&self, id: &str, level: &str) -> Result<Value, Refused> {
        Ok(json!({"id": id, "level": level}))
    }

    fn call(&self, call: Call, cancelled: &Arc<AtomicBool>) -> Result<Value, Refused> {
        while call.tool == "hang" && !cancelled.load(Ordering::Acquire) {
            self.hangs.fetch_max(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(json!({"status": if call.tool == "bad" { "timeout" } else { "success" }, "params": call.params}))
    }
}

type Client = RunningService<RoleClient, ()>;
type Serving = tokio::task::JoinHandle<std::io::Result<()>>;

async fn client(fake: &Arc<Fake>, stop: &Arc<Stop>) -> (Client, Serving) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (reader, writer) = tokio::io::split(theirs);
    let (commands, tools) = (Arc::clone(fake) as Arc<dyn Commands>, Arc::clone(fake) as Arc<dyn Tools>);
    let stop = Arc::clone(stop);
    let serving = tokio::spawn(async move { serve_on(commands, tools, &stop, reader, writer).await });
    (().serve(ours).await.unwrap(), serving)
}

fn request(name: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(name).with_arguments(arguments.as_object().cloned().unwrap())
}

async fn call(client: &Client, name: &'static str, arguments: Value) -> CallToolResult {
    tokio::time::timeout(LONG, client.call_tool(request(name, arguments))).await.unwrap().unwrap()
}

async fn said(client: &Client, name: &'static str, arguments: Value) -> Value {
    call(client, name, arguments).await.structured_content.unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn arguments_arrive_where_the_route_has_them() {
    let fake = Arc::new(Fake::default());
    let (client, _serving) = client(&fake, &Arc::default()).await;
    let work = json!([{"id": "i"}]);
    call(&client, "submit", json!({"work": work, "set": ["a=1", "b=2"], "profile": "", "dry_run": true})).await;
    call(&client, "submit", json!({"work": work.to_string(), "item": null})).await;
    call(&client, "apply", json!({"run": "r", "keep": true})).await;
    call(&client, "status", json!({})).await;
    call(&client, "list", json!({"limit": 3})).await;
    call(&client, "diff", json!({"run": "r", "stat": false})).await;
    let asked = fake.asked.lock().unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(asked[0].0, "POST /v1/runs");
    assert_eq!(asked[0].1.query, [pair("dry_run", "true"), pair("set", "a=1"), pair("set", "b=2")]);
    for (_, given) in &asked[..2] {
        assert_eq!((serde_json::from_slice::<Value>(&given.content).unwrap(), given.is_json), (work.clone(), true));
    }
    assert_eq!((asked[2].1.path["run"].as_str(), asked[2].1.content.as_slice()), ("r", &br#"{"keep":true}"#[..]));
    assert_eq!(asked[3].0, "GET /v1/status");
    assert_eq!((asked[4].1.query.clone(), asked[4].1.wants_text), (vec![pair("limit", "3")], false));
    assert_eq!((asked[5].1.query.clone(), asked[5].1.wants_text), (vec![pair("stat", "false")], true));
}

#[tokio::test]
async fn a_refusal_is_told_and_nothing_is_asked_for_what_does_not_fit() {
    let fake = Arc::new(Fake::default());
    let (client, _serving) = client(&fake, &Arc::default()).await;
    for (name, arguments) in [
        ("submit", json!({})),
        ("submit", json!({"work": 7})),
        ("submit", json!({"work": "no JSON"})),
        ("status", json!({"run": ["x"]})),
        ("list", json!({"limit": "many"})),
        ("apply", json!({"run": "r", "keep": "perhaps"})),
        ("watch", json!({"run": "r", "wait_seconds": 601})),
        ("watch", json!({"run": "r", "cursor": -1})),
        ("list_tools", json!({"limit": 0})),
        ("diff", json!({"run": "r", "surprise": 1})),
    ] {
        let result = call(&client, name, arguments.clone()).await;
        assert_eq!(result.is_error, Some(true), "{name} {arguments}");
        assert_eq!(result.structured_content.unwrap()["error"]["code"], "INPUT_INVALID", "{name} {arguments}");
    }
    assert!(fake.asked.lock().unwrap().is_empty());
    let result = call(&client, "diff", json!({"run": "none"})).await;
    assert_eq!(result.content[0].as_text().unwrap().text, "NOT_FOUND: no run\nHint: look");
    assert_eq!(said(&client, "diff", json!({"run": "large"})).await["is_cut"], true);
    fake.looks.store(101, Ordering::SeqCst);
    assert_eq!(said(&client, "list", json!({})).await["error"]["code"], "USAGE");
    assert!(client.call_tool(request("none", json!({}))).await.is_err());
}

#[tokio::test]
async fn who_only_looks_is_offered_nothing_else() {
    let fake = Arc::new(Fake::default());
    fake.is_reader.store(true, Ordering::SeqCst);
    let (client, _serving) = client(&fake, &Arc::default()).await;
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 9);
    assert!(tools.iter().all(|tool| tool.annotations.as_ref().unwrap().read_only_hint == Some(true)));
    for name in ["submit", "apply", "undo", "cancel", "resume", "call_tool"] {
        let told = said(&client, name, json!({"run": "r"})).await;
        assert_eq!(told["error"]["code"], "FORBIDDEN", "{name}");
    }
    assert!(fake.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_wait_ends_with_the_run_the_time_or_the_caller() {
    let fake = Arc::new(Fake::default());
    let stop = Arc::<Stop>::default();
    let (client, serving) = client(&fake, &stop).await;
    let told = said(&client, "watch", json!({"run": "slow", "cursor": 2})).await;
    assert_eq!((&told["state"], &told["is_over"], &told["cursor"]), (&json!("succeeded"), &json!(true), &json!(3)));
    assert_eq!((told["events"].as_array().unwrap().len(), told.get("contract")), (1, None));
    let told = said(&client, "watch", json!({"run": "never", "wait_seconds": 0})).await;
    assert_eq!((&told["state"], &told["is_over"]), (&json!("running"), &json!(false)));
    assert_eq!(said(&client, "watch", json!({"run": "none"})).await["error"]["code"], "NOT_FOUND");
    fake.is_gone.store(true, Ordering::SeqCst);
    let told = said(&client, "watch", json!({"run": "never", "wait_seconds": 600})).await;
    assert_eq!(told["error"]["code"], "UNAUTHORIZED");
    fake.is_gone.store(false, Ordering::SeqCst);
    // Somebody wants to stop.
    let before = fake.asked.lock().unwrap().len();
    let waiting = client.call_tool(request("watch", json!({"run": "never", "wait_seconds": 600})));
    let stopped = async {
        until("it is looked at", || fake.asked.lock().unwrap().len() > before).await;
        stop.stop();
    };
    let (_, ()) = tokio::join!(tokio::time::timeout(LONG, waiting), stopped);
    tokio::time::timeout(LONG, serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn of_many_tools_a_few_are_shown() {
    let fake = Arc::new(Fake::default());
    let (client, _serving) = client(&fake, &Arc::default()).await;
    let shown = |told: &Value| (told["adapters"].as_array().unwrap().len(), told["found"].as_u64().unwrap());
    let told = said(&client, "list_tools", json!({})).await;
    assert!(shown(&told) == (50, 500) && told["hint"].is_string());
    assert_eq!(shown(&said(&client, "list_tools", json!({"query": "SUMS t-49"})).await), (11, 11));
    assert_eq!(shown(&said(&client, "list_tools", json!({"tool_id": "T-7"})).await), (1, 1));
    assert_eq!(shown(&said(&client, "list_tools", json!({"query": "nothing"})).await), (0, 0));
    assert_eq!(said(&client, "describe_tool", json!({"id": "x"})).await, json!({"id": "x", "level": "L2"}));
    let good = call(&client, "call_tool", json!({"tool_id": "x", "params": {"a": 1}})).await;
    assert_eq!((good.is_error, &good.structured_content.unwrap()["params"]), (Some(false), &json!({"a": 1})));
    assert_eq!(call(&client, "call_tool", json!({"tool_id": "bad"})).await.is_error, Some(true));
}

#[tokio::test]
async fn the_end_of_the_pipe_ends_what_hangs() {
    let fake = Arc::new(Fake::default());
    let (client, serving) = client(&fake, &Arc::default()).await;
    let peer = client.peer().clone();
    let hanging = tokio::spawn(async move { peer.call_tool(request("call_tool", json!({"tool_id": "hang"}))).await });
    until("it hangs", || fake.hangs.load(Ordering::SeqCst) == 1).await;
    client.cancel().await.unwrap();
    tokio::time::timeout(LONG, serving).await.unwrap().unwrap().unwrap();
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test]
async fn a_pipe_that_ends_at_once_or_talks_nonsense() {
    let fake = Arc::new(Fake::default());
    let stop = Stop::default();
    let parts = || (Arc::clone(&fake) as Arc<dyn Commands>, Arc::clone(&fake) as Arc<dyn Tools>);
    let (commands, tools) = parts();
    serve_on(commands, tools, &stop, tokio::io::empty(), tokio::io::sink()).await.unwrap();
    let (commands, tools) = parts();
    let _ = serve_on(commands, tools, &stop, &b"nonsense\n{\"jsonrpc\":\"2.0\"}\n"[..], tokio::io::sink()).await;
}
