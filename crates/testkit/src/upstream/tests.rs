//! The scripted provider asked by hand: each protocol, each misbehaviour, and what it keeps of it all.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Script, Turn, Upstream, Usage};

const CALLS: [(&str, bool); 4] = [
    ("/v1/chat/completions", false),
    ("/v1/responses", false),
    ("/v1/messages", false),
    ("/v1beta/models/m:generateContent", true),
];

fn connect(upstream: &Upstream) -> TcpStream {
    TcpStream::connect(upstream.address()).expect("it listens")
}

fn request(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends once and reads until the other side closes; the half that we close makes it do so.
fn ask(upstream: &Upstream, path: &str, body: &Value) -> String {
    let mut stream = connect(upstream);
    stream.write_all(request(path, &body.to_string()).as_bytes()).expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("half of it closes");
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

fn body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"))
}

/// The documents of a stream of events, out of their chunks.
fn events(answer: &str) -> Vec<Value> {
    assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    let data = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|text| *text != "[DONE]").map(|text| serde_json::from_str(text).expect("JSON")).collect()
}

fn asked(is_stream: bool) -> Value {
    json!({"model": "m", "stream": is_stream, "stream_options": {"include_usage": true}})
}

const USAGE: Usage = Usage { input: 31, output: 17, cached: 5, reasoning: 3 };

#[test]
fn whole_answers_say_text_calls_and_numbers() {
    let tool = Turn::tool("do_it", json!({"a": "ü\n\""}));
    let script = Script::default().turn(Turn::text("Grüße an alle"), USAGE).turn(tool, USAGE);
    for (path, is_generated) in CALLS {
        let upstream = Upstream::start(script.clone());
        let question = asked(false);
        let (text, call) = (body(&ask(&upstream, path, &question)), body(&ask(&upstream, path, &question)));
        let last = ask(&upstream, path, &question);
        assert!(last.contains("All done."), "{last}");
        let said = [
            &text["choices"][0]["message"]["content"],
            &text["output"][0]["content"][0]["text"],
            &text["content"][0]["text"],
            &text["candidates"][0]["content"]["parts"][0]["text"],
        ];
        assert_eq!(said.into_iter().filter(|said| **said == "Grüße an alle").count(), 1, "{text}");
        let parsed =
            |value: &Value| value.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(value.clone());
        let arguments = [
            parsed(&call["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]),
            parsed(&call["output"][0]["arguments"]),
            call["content"][0]["input"].clone(),
            call["candidates"][0]["content"]["parts"][0]["functionCall"]["args"].clone(),
        ];
        assert_eq!(arguments.into_iter().filter(|found| *found == json!({"a": "ü\n\""})).count(), 1, "{call}");
        let usage = &text[if is_generated { "usageMetadata" } else { "usage" }];
        let input = ["prompt_tokens", "input_tokens", "promptTokenCount"].map(|name| usage[name].as_u64().unwrap_or(0));
        let from_cache = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        assert_eq!(input.iter().sum::<u64>() + from_cache, USAGE.input, "{usage}");
        let output = ["completion_tokens", "output_tokens", "candidatesTokenCount", "thoughtsTokenCount"]
            .map(|name| usage[name].as_u64().unwrap_or(0));
        assert_eq!(output.iter().sum::<u64>(), USAGE.output, "{usage}");
        let requests = upstream.stop();
        assert_eq!(requests.iter().map(|one| one.turn).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        assert_eq!(
            (requests[0].header("authorization"), &requests[0].json()["model"]),
            (Some("Bearer k"), &json!("m"))
        );
        assert_eq!(requests[1].usage, Some(USAGE));
    }
}

#[test]
fn streams_join_to_the_whole() {
    let said = "A text that is long enough for several pieces.";
    let arguments = json!({"path": "/tmp/x", "content": "long enough for pieces"});
    let script = Script::default().turn(Turn::text(said), USAGE).turn(Turn::tool("w", arguments.clone()), USAGE);
    let join = |events: &[Value], pointer: &str| -> String {
        events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
    };
    for (path, text, call) in [
        ("/v1/chat/completions", "/choices/0/delta/content", "/choices/0/delta/tool_calls/0/function/arguments"),
        ("/v1/responses", "/delta", "/delta"),
        ("/v1/messages", "/delta/text", "/delta/partial_json"),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "/candidates/0/content/parts/0/text", ""),
    ] {
        let upstream = Upstream::start(script.clone());
        let first = events(&ask(&upstream, path, &asked(true)));
        assert_eq!(join(&first, text), said, "{path}: {first:?}");
        let second = events(&ask(&upstream, path, &asked(true)));
        if call.is_empty() {
            assert_eq!(second[0]["candidates"][0]["content"]["parts"][0]["functionCall"]["args"], arguments);
        } else {
            let joined: Value = serde_json::from_str(&join(&second, call)).expect("JSON");
            assert_eq!(joined, arguments, "{path}");
        }
        let all = first.iter().map(Value::to_string).collect::<String>();
        assert!(all.contains("17") || all.contains("14"), "{path} says what it used: {all}");
        assert_eq!((upstream.turns(), upstream.used()), (2, USAGE.plus(USAGE)));
    }
    // Without the parameter it is one array in pieces.
    let upstream = Upstream::start(script);
    let answer = ask(&upstream, "/v1beta/models/m:streamGenerateContent", &json!({}));
    assert!(answer.contains("application/json") && answer.contains("[{") && answer.contains("}]"), "{answer}");
}

#[test]
fn free_form_tools_get_their_text() {
    let turn = || Turn::tool("patch", json!("*** Begin"));
    let upstream = Upstream::start([turn(), turn()]);
    let whole = body(&ask(&upstream, "/v1/responses", &asked(false)));
    let item = |item: &Value| [item["type"].clone(), item["input"].clone()];
    assert_eq!(item(&whole["output"][0]), [json!("custom_tool_call"), json!("*** Begin")]);
    let events = events(&ask(&upstream, "/v1/responses", &asked(true)));
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").expect("it ends");
    assert_eq!(item(&done["item"]), [json!("custom_tool_call"), json!("*** Begin")]);
}

#[test]
fn misbehaviour_is_as_it_was_ordered() {
    for (path, is_generated) in CALLS {
        let upstream = Upstream::start([
            Turn::Status(429, Some(7)),
            Turn::Status(500, None),
            Turn::InvalidJson,
            Turn::HalfStream,
            Turn::WrongUsage { input: 1, output: u64::MAX },
            Turn::NoUsage,
            Turn::OtherModel,
            Turn::Raw(b"SSH-2.0-no\r\n".to_vec()),
            Turn::Delay(Duration::from_millis(1), Box::new(Turn::text("late"))),
        ]);
        let next = || ask(&upstream, path, &asked(false));
        let limited = next();
        assert!(limited.starts_with("HTTP/1.1 429 ") && limited.contains("\r\nretry-after: 7\r\n"), "{limited}");
        assert!(body(&limited)["error"]["message"].is_string());
        let failed = next();
        assert!(failed.starts_with("HTTP/1.1 500 ") && !failed.contains("retry-after"), "{failed}");
        let invalid = next();
        let (_, text) = invalid.split_once("\r\n\r\n").expect("a body");
        assert!(invalid.starts_with("HTTP/1.1 200 ") && serde_json::from_str::<Value>(text).is_err(), "{invalid}");
        let half = next();
        let (head, text) = half.split_once("\r\n\r\n").expect("a body");
        let length: usize = head.rsplit_once(": ").expect("a length").1.parse().expect("a number");
        assert_eq!(text.len(), length / 2, "{half}");
        assert!(next().contains("18446744073709551615"), "the numbers of the script");
        assert!(!next().contains("_tokens") && upstream.requests()[5].usage.is_none());
        let other = body(&next());
        assert_eq!(other[if is_generated { "modelVersion" } else { "model" }], Turn::OTHER_MODEL);
        assert_eq!(next(), "SSH-2.0-no\r\n");
        assert!(next().contains("late"));
        // In a stream.
        let stream = Upstream::start([Turn::InvalidJson, Turn::HalfStream]);
        let path = path.replace(":generateContent", ":streamGenerateContent");
        let broken = ask(&stream, &path, &asked(true));
        assert!(broken.contains("data: {\"choices\": [{\"delta\": \n\n") && broken.ends_with("0\r\n\r\n"), "{broken}");
        let half = ask(&stream, &path, &asked(true));
        assert!(half.contains("transfer-encoding: chunked") && !half.ends_with("\r\n0\r\n\r\n"), "{half}");
    }
}

#[test]
fn what_hangs_ends_with_the_provider_and_what_is_held_when_released() {
    let upstream = Upstream::start([Turn::Held(Box::new(Turn::text("at last"))), Turn::Hang]);
    let address = upstream.address();
    std::thread::scope(|scope| {
        let held = scope.spawn(|| ask(&upstream, "/v1/responses", &asked(false)));
        upstream.wait_for(1);
        assert!(!held.is_finished());
        upstream.release();
        assert!(held.join().expect("it ends").contains("at last"));
    });
    let mut hanging = connect(&upstream);
    hanging.write_all(request("/v1/messages", &asked(true).to_string()).as_bytes()).expect("it reads");
    upstream.wait_for(2);
    assert_eq!(upstream.stop().len(), 2);
    let mut said = Vec::new();
    let _ = hanging.read_to_end(&mut said);
    assert_eq!(said, b"");
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn requests_without_tools_are_asides_where_there_are_some() {
    let script = Script::from([Turn::text("the work")]).asides("a title", Usage::new(9, 2));
    let upstream = Upstream::start(script);
    assert!(ask(&upstream, "/v1/chat/completions", &asked(false)).contains("a title"));
    let with_tools = json!({"model": "m", "tools": [{"type": "function"}]});
    assert!(ask(&upstream, "/v1/chat/completions", &with_tools).contains("the work"));
    let turns: Vec<_> = upstream.requests().iter().map(|request| (request.turn, request.usage)).collect();
    assert_eq!(turns, [(None, Some(Usage::new(9, 2))), (Some(0), Some(Usage::new(100, 20)))]);
}

#[test]
fn connections_are_kept_and_bodies_come_in_chunks() {
    let upstream = Upstream::start(Script::default());
    let mut stream = connect(&upstream);
    stream.write_all(b"GET /v1/models HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n").expect("it reads");
    stream.write_all(b"GET /v1beta/models?key=k HTTP/1.1\r\n\r\nGET /nowhere HTTP/1.1\r\n\r\n").expect("it reads");
    stream.write_all(request("/v1/messages/count_tokens", "{}").as_bytes()).expect("it reads");
    stream.write_all(request("/v1beta/models/m:countTokens", "{}").as_bytes()).expect("it reads");
    stream.write_all(request("/v1/messages", "no json").as_bytes()).expect("it reads");
    let chunked = "POST /v1/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7;x=y\r\n{\"model\r\n6\r\n\":\"m\"}\r\n0\r\n\r\n";
    stream.write_all(chunked.as_bytes()).expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("half of it closes");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let codes: Vec<&str> = text.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    assert_eq!(codes, ["200", "200", "200", "404", "200", "200", "400", "200"], "{text}");
    assert!(text.contains("\"input_tokens\":100") && text.contains("\"totalTokens\":100"));
    assert_eq!((upstream.connections(), upstream.requests().len(), upstream.turns()), (1, 8, 1));
    assert_eq!((upstream.requests()[2].query.as_str(), upstream.calls().len()), ("key=k", 2));
}

#[test]
fn nonsense_closes_its_connection_only() {
    let upstream = Upstream::start(Script::default());
    for nonsense in
        ["x\r\n\r\n", "GET / HTTP/1.1\r\nno header\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"]
    {
        let mut stream = connect(&upstream);
        stream.write_all(nonsense.as_bytes()).expect("it reads");
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said, b"", "{nonsense}");
    }
    assert!(ask(&upstream, "/v1/messages", &asked(false)).contains("All done."));
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn what_is_said_by_what_was_asked_takes_no_turn() {
    let script = Script::default().turn(Turn::text("in order"), USAGE).by(|body, before| {
        (body["user"] == "me").then(|| (Turn::text(format!("to me, after {before}")), Usage::new(1, 2)))
    });
    let upstream = Upstream::start(script);
    let text = |user: &str| {
        let answer = ask(&upstream, "/v1/chat/completions", &json!({"model": "m", "user": user}));
        body(&answer)["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    };
    assert_eq!(text("me"), "to me, after 0");
    assert_eq!(text("you"), "in order");
    assert_eq!(text("me"), "to me, after 1");
    assert_eq!((upstream.turns(), upstream.used()), (1, USAGE.plus(Usage::new(2, 4))));
}
