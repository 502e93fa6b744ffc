//! What is asked over HTTP and how it is answered.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::scope;

use actum_api::client;
use serde_json::{Value, json};

use super::{LONG, TOKEN, heard, served, tools_only, until};
use crate::bridge::Bridge;
use crate::turns::CALLS_MAX;

#[test]
fn list_show_and_call() {
    let served = served();
    let (status, list) = served.get("/v1/adapters");
    assert_eq!((status, &list["level"], &list["tool"]), (200, &json!("L0"), &Value::Null));
    assert_eq!(list["adapters"][0]["adapter_id"], "grep-cli");
    let (_, list) = served.get("/v1/adapters?level=L1&tool=grep");
    assert_eq!((&list["level"], &list["tool"]), (&json!("L1"), &json!("grep")));
    assert_eq!(served.get("/v1/adapters?tool=").1["tool"], Value::Null);

    let shown = served.get(&format!("/v1/tools/{}?level=L3", client::encode("a/b c")));
    assert_eq!(shown, (200, json!({"id": "a/b c", "level": "L3"})));
    assert_eq!(served.get("/v1/tools/list"), (200, json!([1, 2])));

    let (status, answer) = served.call(&json!({
        "tool": "grep", "adapter": "grep-cli", "operation": "search", "params": {"pattern": "x", "n": 1.5},
    }));
    let expected = json!({
        "tool": "grep", "adapter": "grep-cli", "operation": "search", "params": {"pattern": "x", "n": 1.5},
        "cancelled": false,
    });
    assert_eq!((status, answer), (200, expected));
    assert_eq!(served.call(&json!({"tool": "grep"})).1["params"], json!({}));
}

#[test]
fn a_refusal_has_its_status_and_its_body() {
    let served = served();
    let (status, body) = served.get("/v1/tools/unknown?level=L2");
    assert_eq!(status, 404);
    let error = &body["error"];
    assert_eq!((&error["code"], &error["details"]["id"]), (&json!("NOT_FOUND"), &json!("unknown")));
    assert_eq!(error["hint"], "list_tools shows what there is");
    assert_eq!(served.call(&json!({"tool": "refused"})).0, 428);
    let (status, body) = served.call(&json!({"tool": "broken"}));
    assert_eq!((status, &body["error"]["code"]), (500, &json!("INTERNAL_ERROR")));
}

#[test]
fn without_the_token_there_is_nothing() {
    let served = served();
    let nothing = client::ask(&served.url, "GET", "/v1/else", None, LONG).unwrap();
    assert_eq!(nothing.0, 404);
    for path in ["/t/f00dbabf/v1/adapters", "/t/f00dbab/v1/adapters", "/v1/adapters", "/", "/t/", "/t/x/mcp"] {
        let url = format!("http://{}", served.at);
        assert_eq!(client::ask(&url, "GET", path, None, LONG).unwrap(), nothing, "{path}");
        assert_eq!(client::ask(&url, "POST", path, Some(&json!({"tool": "grep"})), LONG).unwrap(), nothing, "{path}");
    }
    assert_eq!(served.fake.started.load(Ordering::SeqCst), 0);
}

#[test]
fn a_bad_question_is_told_what_is_wrong() {
    let served = served();
    for (body, said) in [
        (json!([]), "object"),
        (json!({}), "`tool` is missing"),
        (json!({"tool": 1}), "`tool` must be a string"),
        (json!({"tool": "grep", "params": []}), "`params` must be an object"),
        (json!({"tool": "grep", "parms": {}}), "`parms` is not known"),
    ] {
        let (status, answer) = served.call(&body);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(said), "{status} {message}");
    }
    assert_eq!(served.get("/v1/adapters?levle=L1").0, 400);
    assert_eq!(served.get("/v1/tools/%FF").0, 400);
    assert_eq!(served.get("/v1/call").0, 405);
    assert_eq!(served.get("/v1/call").1["error"]["code"], "INPUT_INVALID");
}

#[test]
fn other_names_for_this_address_are_refused() {
    let served = served();
    let close = "connection: close\r\n\r\n";
    let ask = |head: &str| heard(served.say(&format!("GET /t/{TOKEN}/v1/adapters HTTP/1.1\r\n{head}{close}")));
    assert!(ask("host: localhost:1234\r\n").starts_with("HTTP/1.1 200 "));
    assert!(ask("host: evil.example\r\n").starts_with("HTTP/1.1 403 "));
    assert!(ask("host: localhost\r\norigin: http://evil.example\r\n").starts_with("HTTP/1.1 403 "));
    assert!(ask("").starts_with("HTTP/1.1 403 "));
}

#[test]
fn sixteen_calls_at_once_and_the_others_wait() {
    let served = served();
    scope(|scope| {
        let calls: Vec<_> = (0..48).map(|_| scope.spawn(|| served.call(&json!({"tool": "slow"})).0)).collect();
        assert!(calls.into_iter().all(|call| call.join().unwrap() == 200));
    });
    let most = served.fake.most.load(Ordering::SeqCst);
    assert!((2..=CALLS_MAX).contains(&most), "{most}");
}

#[test]
fn one_can_look_while_all_calls_are_taken() {
    let served = served();
    let hang = served.post("/v1/call", r#"{"tool":"hang"}"#);
    let hanging: Vec<TcpStream> = (0..CALLS_MAX + 4).map(|_| served.say(&hang)).collect();
    until("all taken", || served.fake.started.load(Ordering::SeqCst) == CALLS_MAX);
    assert_eq!(served.get("/v1/adapters").0, 200);
    drop(hanging);
    // Those that had to wait are gone before their turn, or hear at once that they are.
    until("all gone", || served.fake.running.load(Ordering::SeqCst) == 0);
    assert!(served.fake.cancelled.load(Ordering::SeqCst) >= CALLS_MAX);
    assert_eq!(served.call(&json!({"tool": "grep"})).0, 200);
}

#[test]
fn a_call_hears_that_its_caller_is_gone() {
    let served = served();
    let stream = served.say(&served.post("/v1/call", r#"{"tool":"hang"}"#));
    until("started", || served.fake.started.load(Ordering::SeqCst) == 1);
    assert_eq!(served.fake.cancelled.load(Ordering::SeqCst), 0);
    drop(stream);
    until("cancelled", || served.fake.cancelled.load(Ordering::SeqCst) == 1);
}

#[test]
fn the_end_cancels_what_hangs_and_closes_everything() {
    let mut served = served();
    let stream = served.say(&served.post("/v1/call", r#"{"tool":"hang"}"#));
    let idle = served.say("");
    until("started", || served.fake.started.load(Ordering::SeqCst) == 1);
    served.end();
    assert_eq!(served.fake.cancelled.load(Ordering::SeqCst), 1);
    assert_eq!(served.fake.running.load(Ordering::SeqCst), 0);
    assert_eq!(heard(stream), "");
    assert_eq!(heard(idle), "");
    assert!(TcpStream::connect(served.at).is_err());
    // Nobody holds on to the tools.
    assert_eq!(Arc::strong_count(&served.fake), 1);
}

#[test]
fn it_can_be_served_and_ended_inside_another_runtime() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let mut served = served();
        assert_eq!(served.get("/v1/adapters").0, 200);
        served.end();
    });
}

#[test]
fn a_token_that_is_no_part_of_an_address_is_refused() {
    for token in ["", "a/b", "a b", "a%41", "\u{e9}"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Bridge::serve(listener, tools_only(token, &Arc::default())).is_err(), "{token}");
    }
}
