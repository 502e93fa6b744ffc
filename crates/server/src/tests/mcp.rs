//! The tools as MCP, asked by the client of the same library and by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rmcp::model::{CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject, ProtocolVersion};
use rmcp::service::{PeerRequestOptions, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::{Value, json};

use super::{Fake, LONG, Served, TOKEN, heard, served, until};

type Client = RunningService<RoleClient, ()>;

async fn client(served: &Served, lifecycle: ClientLifecycleMode) -> Client {
    // The client wants one even where nothing is encrypted; a second test finds it there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let transport = StreamableHttpClientTransport::from_uri(format!("{}/mcp", served.url));
    ().serve_with_lifecycle(transport, lifecycle).await.unwrap()
}

fn arguments(value: Value) -> JsonObject {
    value.as_object().cloned().unwrap()
}

fn request(name: &'static str, value: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(name).with_arguments(arguments(value))
}

async fn call(client: &Client, name: &'static str, value: Value) -> CallToolResult {
    tokio::time::timeout(LONG, client.call_tool(request(name, value))).await.unwrap().unwrap()
}

fn text(result: &CallToolResult) -> &str {
    result.content[0].as_text().map(|text| text.text.as_str()).unwrap()
}

/// All that a client can do, whatever carries its messages.
async fn use_everything(client: &Client) {
    let tools = client.list_all_tools().await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    assert_eq!(names, ["list_tools", "describe_tool", "call_tool"]);
    for tool in &tools {
        let hints = tool.annotations.as_ref().unwrap();
        let is_call = tool.name == "call_tool";
        assert_eq!((hints.read_only_hint, hints.destructive_hint), (Some(!is_call), Some(false)));
        assert_eq!(hints.open_world_hint, Some(is_call));
        assert_eq!(tool.input_schema["type"], "object");
    }

    let list = call(client, "list_tools", json!({})).await;
    assert_eq!(list.structured_content.as_ref().unwrap()["level"], "L0");
    assert_eq!(serde_json::from_str::<Value>(text(&list)).ok(), list.structured_content);
    assert!(!text(&list).contains(": "));
    let list = call(client, "list_tools", json!({"level": "L1", "tool_id": "grep"})).await;
    assert_eq!(list.structured_content.unwrap()["tool"], "grep");

    let shown = call(client, "describe_tool", json!({"id": "grep", "level": "L3"})).await;
    assert_eq!(shown.structured_content, Some(json!({"id": "grep", "level": "L3"})));
    let shown = call(client, "describe_tool", json!({"id": "list", "level": "L1"})).await;
    assert_eq!(shown.structured_content, Some(json!({"result": [1, 2]})));

    let called = call(client, "call_tool", json!({"tool_id": "grep", "params": {"a": [1]}})).await;
    assert_eq!(called.is_error, Some(false));
    assert_eq!(called.structured_content.unwrap()["params"], json!({"a": [1]}));

    let failed = call(client, "call_tool", json!({"tool_id": "failed", "params": {}})).await;
    assert_eq!((failed.is_error, &failed.structured_content.unwrap()["status"]), (Some(true), &json!("timeout")));

    let refused = call(client, "call_tool", json!({"tool_id": "refused", "params": {}})).await;
    assert_eq!((refused.is_error, text(&refused)), (Some(true), "APPROVAL_NEEDED: ask first\nHint: ask a person"));
    assert_eq!(refused.structured_content.unwrap()["error"]["code"], "APPROVAL_NEEDED");
    for (name, value) in [
        ("describe_tool", json!({"level": "L1"})),
        ("describe_tool", json!({"id": 1, "level": "L1"})),
        ("call_tool", json!({"tool_id": "grep", "params": "x"})),
        ("call_tool", json!({"tool_id": "grep", "params": {}, "more": 1})),
    ] {
        let result = call(client, name, value).await;
        assert!(result.is_error == Some(true) && text(&result).starts_with("INPUT_INVALID: `"), "{}", text(&result));
    }
    assert!(client.call_tool(request("another", json!({}))).await.is_err());
}

#[tokio::test]
async fn over_http_with_the_handshake() {
    let served = served();
    let client = client(&served, ClientLifecycleMode::Initialize).await;
    let peer = client.peer_info().unwrap();
    assert_eq!(peer.server_info.as_ref().unwrap().name, "actum");
    assert!(peer.instructions.as_ref().unwrap().contains("list_tools"));
    use_everything(&client).await;
    client.cancel().await.unwrap();
}

#[tokio::test]
async fn over_http_without_a_handshake() {
    let served = served();
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let client = client(&served, ClientLifecycleMode::Discover { preferred_versions }).await;
    use_everything(&client).await;
    client.cancel().await.unwrap();
}

async fn begin_to_hang(client: &Client) -> rmcp::service::RequestHandle<RoleClient> {
    let hang = request("call_tool", json!({"tool_id": "hang", "params": {}}));
    let hang = ClientRequest::CallToolRequest(CallToolRequest::new(hang));
    client.send_cancellable_request(hang, PeerRequestOptions::no_options()).await.unwrap()
}

async fn until_async(what: &'static str, fake: &Arc<Fake>, is_so: fn(&Fake) -> bool) {
    let fake = Arc::clone(fake);
    tokio::task::spawn_blocking(move || until(what, || is_so(&fake))).await.unwrap();
}

#[tokio::test]
async fn over_http_a_call_can_be_cancelled() {
    let served = served();
    let client = client(&served, ClientLifecycleMode::Initialize).await;
    let (first, _second) = (begin_to_hang(&client).await, begin_to_hang(&client).await);
    until_async("started", &served.fake, |fake| fake.started.load(Ordering::SeqCst) == 2).await;
    first.cancel(None).await.unwrap();
    until_async("cancelled", &served.fake, |fake| fake.cancelled.load(Ordering::SeqCst) == 1).await;
    assert_eq!(served.fake.running.load(Ordering::SeqCst), 1);
    client.cancel().await.unwrap();
}

const HANG: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"call_tool","arguments":{"tool_id":"hang"}}}"#;

#[test]
fn over_http_a_closed_connection_cancels() {
    let served = served();
    let stream = served.say(&served.post("/mcp", HANG));
    until("started", || served.fake.started.load(Ordering::SeqCst) == 1);
    drop(stream);
    until("cancelled", || served.fake.cancelled.load(Ordering::SeqCst) == 1);
}

#[test]
fn the_end_cancels_calls_over_mcp_too() {
    let mut served = served();
    let stream = served.say(&served.post("/mcp", HANG));
    until("started", || served.fake.started.load(Ordering::SeqCst) == 1);
    served.end();
    assert_eq!(served.fake.cancelled.load(Ordering::SeqCst), 1);
    assert_eq!(heard(stream), "");
    assert_eq!(Arc::strong_count(&served.fake), 1);
}

#[test]
fn which_of_two_with_the_same_id_is_not_guessed() {
    let served = served();
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    let cancel = served.post("/mcp", cancel).replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let streams = [served.say(&served.post("/mcp", HANG)), served.say(&served.post("/mcp", HANG))];
    until("started", || served.fake.started.load(Ordering::SeqCst) == 2);
    assert!(heard(served.say(&cancel)).starts_with("HTTP/1.1 202 "));
    assert_eq!(served.fake.running.load(Ordering::SeqCst), 2);
    let [first, second] = streams;
    drop(first);
    until("one is gone", || served.fake.running.load(Ordering::SeqCst) == 1);
    assert!(heard(served.say(&cancel)).starts_with("HTTP/1.1 202 "));
    until("both are gone", || served.fake.running.load(Ordering::SeqCst) == 0);
    drop(second);
}

#[test]
fn answers_are_plain_json_and_there_are_no_sessions() {
    let served = served();
    let close = |text: String| heard(served.say(&text.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1)));
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",
        "capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
    let answer = close(served.post("/mcp", hello));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("content-type: application/json"), "{answer}");
    assert!(answer.contains(r#""protocolVersion":"2025-06-18""#) && !answer.contains("mcp-session-id"), "{answer}");
    for method in ["GET", "DELETE", "PUT"] {
        let head = format!("{method} /t/{TOKEN}/mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
        assert!(close(head).starts_with("HTTP/1.1 405 "), "{method}");
    }
    for nonsense in ["", "[]", "{}", "null", "{\"jsonrpc\":\"2.0\"}"] {
        assert!(close(served.post("/mcp", nonsense)).starts_with("HTTP/1.1 4"), "{nonsense}");
    }
}
