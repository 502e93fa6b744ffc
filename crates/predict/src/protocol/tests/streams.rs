//! Streams of all four protocols, cut anywhere, broken anywhere.

use proptest::prelude::*;

use super::*;

fn events(named: bool, end: &str, events: &[Value]) -> String {
    let event = |event: &Value| match (named, event["type"].as_str()) {
        (true, Some(name)) => format!("event: {name}{end}data: {event}{end}{end}"),
        _ => format!("data: {event}{end}{end}"),
    };
    events.iter().map(event).collect()
}

/// A stream of each: text `hé llo`, calls of f and g, 100 tokens in, 20 out.
fn stream(protocol: Protocol, end: &str) -> String {
    match protocol {
        Protocol::Chat => {
            let chunk = |delta: Value, finish: Value| {
                json!({"id": "c", "object": "chat.completion.chunk", "model": "m-1-0125", "usage": null,
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
            };
            let call = |at: u64, name: Value, piece: &str| json!({"tool_calls": [{"index": at, "id": "call_x", "function": {"name": name, "arguments": piece}}]});
            let all = [
                chunk(json!({"role": "assistant", "content": ""}), Value::Null),
                chunk(json!({"content": "hé "}), Value::Null),
                chunk(json!({"content": "llo"}), Value::Null),
                chunk(call(0, json!("f"), ""), Value::Null),
                chunk(call(0, Value::Null, "{\"a\":"), Value::Null),
                chunk(call(0, Value::Null, "1}"), Value::Null),
                chunk(call(1, json!("g"), "{}"), Value::Null),
                chunk(json!({}), json!("tool_calls")),
            ];
            let usage = json!({"id": "c", "model": "m-1-0125", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20,
                "prompt_tokens_details": {"cached_tokens": 40}}});
            let text = events(false, end, &all);
            format!(": keep-alive{end}{end}{text}data: {usage}{end}{end}data: [DONE]{end}{end}")
        }
        Protocol::Responses => {
            let delta = |text: &str| json!({"type": "response.output_text.delta", "output_index": 0, "delta": text});
            let item = |item: Value| json!({"type": "response.output_item.done", "item": item});
            let call = |name: &str, arguments: &str| json!({"type": "function_call", "name": name, "arguments": arguments, "call_id": "x"});
            let usage =
                json!({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 20});
            let all = [
                json!({"type": "response.created", "response": {"id": "r", "model": "m-1", "output": []}}),
                delta("hé "),
                delta("llo"),
                item(json!({"type": "message", "content": [{"type": "output_text", "text": "hé llo"}]})),
                item(call("f", "{\"a\":1}")),
                item(call("g", "{}")),
                json!({"type": "response.completed", "response": {"id": "r", "status": "completed", "model": "m-1", "output": [], "usage": usage}}),
            ];
            events(true, end, &all)
        }
        Protocol::Messages => {
            let delta = |at: u64, delta: Value| json!({"type": "content_block_delta", "index": at, "delta": delta});
            let start =
                |at: u64, block: Value| json!({"type": "content_block_start", "index": at, "content_block": block});
            let usage = json!({"input_tokens": 50, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 40, "output_tokens": 1});
            let tool = |name: &str| json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}});
            let all = [
                json!({"type": "message_start", "message": {"id": "m", "model": "m-1", "content": [], "usage": usage}}),
                start(0, json!({"type": "text", "text": ""})),
                json!({"type": "ping"}),
                delta(0, json!({"type": "text_delta", "text": "hé "})),
                delta(0, json!({"type": "text_delta", "text": "llo"})),
                json!({"type": "content_block_stop", "index": 0}),
                start(1, tool("f")),
                delta(1, json!({"type": "input_json_delta", "partial_json": ""})),
                delta(1, json!({"type": "input_json_delta", "partial_json": "{\"a\""})),
                delta(1, json!({"type": "input_json_delta", "partial_json": ":1}"})),
                start(2, tool("g")),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"input_tokens": 0, "output_tokens": 20}}),
                json!({"type": "message_stop"}),
            ];
            events(true, end, &all)
        }
        Protocol::Generate => {
            let chunk = |parts: Value, finish: Value, output: u64| {
                json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish}], "modelVersion": "m-1",
                    "usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": output, "thoughtsTokenCount": 5}})
            };
            let call = |name: &str, args: Value| json!({"functionCall": {"name": name, "args": args}});
            let all = [
                chunk(json!([{"text": "hé "}]), Value::Null, 2),
                chunk(json!([{"text": "llo"}]), Value::Null, 4),
                chunk(json!([call("f", json!({"a": 1})), call("g", json!({}))]), json!("STOP"), 15),
            ];
            events(false, end, &all)
        }
    }
}

/// What a caller gets, and what is known afterwards.
fn pass(question: &Question, pieces: &[&[u8]]) -> (Vec<u8>, Metered) {
    let mut meter = Meter::new(question);
    let mut out: Vec<u8> = pieces.iter().flat_map(|piece| meter.feed(piece)).collect();
    let found = meter.end();
    out.extend_from_slice(&found.rest);
    (out, Metered { rest: Vec::new(), ..found })
}

fn asked_for_usage() -> Question {
    let mut body = body(Protocol::Chat, true);
    body["stream_options"] = json!({"include_usage": true});
    let mut question = read(Protocol::Chat, body, false).unwrap();
    question.limit_output(9, "max_tokens");
    question
}

fn expected(protocol: Protocol, found: &Metered) {
    let cache_write = if protocol == Protocol::Messages { 10 } else { 0 };
    assert_eq!(found.flaw, None, "{protocol:?}");
    assert_eq!(
        found.usage,
        Some(Usage { input: 100, cached: 40, cache_write, output: 20, ..Usage::default() }),
        "{protocol:?}"
    );
    assert_eq!(found.text, "hé llo", "{protocol:?}");
    let calls = [json!({"name": "f", "arguments": {"a": 1}}), json!({"name": "g", "arguments": {}})];
    assert_eq!(found.calls, calls, "{protocol:?}");
    assert!(found.is_whole && found.stop.is_some() && found.model.as_ref().unwrap().starts_with("m-1"));
}

#[test]
fn a_cut_anywhere_changes_nothing() {
    for end in ["\n", "\r\n", "\r"] {
        for protocol in Protocol::ALL {
            let question = if protocol == Protocol::Chat { asked_for_usage() } else { ask(protocol, true) };
            let text = stream(protocol, end);
            // Everywhere in one form, here and there in the others.
            for at in (0..=text.len()).step_by(if end == "\r\n" { 1 } else { 13 }) {
                let (one, other) = text.as_bytes().split_at(at);
                let (out, found) = pass(&question, &[one, other]);
                assert_eq!(out, text.as_bytes(), "every byte is passed on");
                expected(protocol, &found);
            }
        }
    }
}

#[test]
fn a_usage_nobody_asked_for_is_left_out() {
    for end in ["\n", "\r\n", "\r"] {
        let text = stream(Protocol::Chat, end);
        let from = text.find("data: {\"choices\":[]").unwrap();
        let to = text.find("data: [DONE]").unwrap();
        let without = [&text[..from], &text[to..]].concat();
        for at in 0..=text.len() {
            let (one, other) = text.as_bytes().split_at(at);
            let (out, found) = pass(&ask(Protocol::Chat, true), &[one, other]);
            assert_eq!(String::from_utf8(out).unwrap(), without, "cut at {at}");
            expected(Protocol::Chat, &found);
        }
    }
}

#[test]
fn what_is_held_back_comes_as_soon_as_it_may() {
    let mut meter = Meter::new(&ask(Protocol::Chat, true));
    let event = b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n";
    assert_eq!(meter.feed(event), b"");
    assert_eq!(meter.feed(b"\n"), [event, &b"\n"[..]].concat());
    assert_eq!(meter.feed(b": ping\n\n"), b": ping\n\n");
    assert_eq!(meter.feed(b"data: [DONE]"), b"");
    let found = meter.end();
    assert_eq!((found.rest.as_slice(), found.is_whole), (&b"data: [DONE]"[..], true));
}

#[test]
fn a_broken_stream_is_known_for_one() {
    for protocol in Protocol::ALL {
        let text = stream(protocol, "\n");
        let last = text.trim_end().rfind("\n\n").unwrap();
        for at in 0..last {
            let (out, found) = pass(&ask(protocol, true), &[&text.as_bytes()[..at]]);
            assert!(out.len() <= at);
            // Chat completions without the last word are whole when all else is there.
            let is_whole = protocol == Protocol::Chat && found.usage.is_some();
            assert_eq!(found.is_whole, is_whole, "{protocol:?} {at}");
            assert!(found.flaw.is_some() || is_whole, "{protocol:?} {at}: {found:?}");
            assert!(found.usage.is_none() || is_whole, "{protocol:?} {at}: what was counted so far is not the cost");
        }
    }
}

#[test]
fn hostile_streams_are_only_passed_on() {
    let bodies: [&[u8]; 8] = [
        b"data: {\n\ndata: [DONE]\n\n",
        b"data: \0\xff\n\n",
        b"data: null\n\ndata: 5\n\ndata: []\n\ndata: \"x\"\n\n",
        b"event: x\n\n:\n\n\n\n\r\r\r\n",
        b"data: {\"choices\":{},\"usage\":7,\"candidates\":3,\"type\":9}\n\n",
        b"data: {\"choices\":[{\"index\":-1,\"delta\":{\"tool_calls\":[{\"index\":1e9},{},7,null]}}]}\n\n",
        b"data: {\"type\":\"content_block_delta\",\"index\":99999999999999999999,\"delta\":[]}\n\n",
        b"data: {\"error\":{\"message\":\"\\u0007overloaded\"}}\n\n",
    ];
    for protocol in Protocol::ALL {
        for text in bodies {
            let question = if protocol == Protocol::Chat { asked_for_usage() } else { ask(protocol, true) };
            let (out, found) = pass(&question, &[text]);
            assert_eq!(out, text);
            assert!(found.flaw.is_some() && found.usage.is_none(), "{protocol:?} {found:?}");
        }
    }
}

#[test]
fn an_event_beyond_all_bounds_is_told_and_passed_on() {
    let mut text = b"data: {\"choices\":[{\"delta\":{\"content\":\"".to_vec();
    text.resize(9 << 20, b'x');
    text.extend_from_slice(b"\"}}]}\n\n");
    text.extend_from_slice(stream(Protocol::Chat, "\n").as_bytes());
    let pieces: Vec<&[u8]> = text.chunks(1 << 16).collect();
    let (out, found) = pass(&asked_for_usage(), &pieces);
    assert!(out == text && found.flaw.unwrap().contains("too long"));
    assert!(found.usage.is_some(), "the rest was read");
    let (out, _) = pass(&ask(Protocol::Chat, true), &pieces);
    assert!(out.len() > 9 << 20);
}

#[test]
fn an_answer_to_a_stream_may_be_a_document() {
    let error = br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let (out, found) = pass(&ask(Protocol::Messages, true), &[b" \n", error]);
    assert_eq!(out, [b" \n", &error[..]].concat());
    assert!(found.flaw.unwrap().contains("overloaded_error Overloaded"));
}

#[test]
fn a_response_that_only_ends_says_all_of_it() {
    let response = json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "model": "m-1",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}], "usage": {"input_tokens": 3, "output_tokens": 2}});
    let text = events(true, "\n", &[json!({"type": "response.incomplete", "response": response})]);
    let (_, found) = pass(&ask(Protocol::Responses, true), &[text.as_bytes()]);
    assert_eq!((found.text.as_str(), found.stop.as_deref(), found.flaw), ("hi", Some("max_output_tokens"), None));
    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "sorry"}, "output": []}});
    let (_, found) = pass(&ask(Protocol::Responses, true), &[events(true, "\n", &[failed]).as_bytes()]);
    assert!(!found.is_whole && found.flaw.unwrap().contains("sorry"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn many_cuts_change_nothing(cuts in proptest::collection::vec(0.0..1.0_f64, 0..40), which in 0..4_usize, crlf: bool) {
        let protocol = Protocol::ALL[which];
        let text = stream(protocol, if crlf { "\r\n" } else { "\n" });
        let mut at: Vec<usize> = cuts.iter().map(|part| (part * text.len() as f64) as usize).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
        let whole = pass(&ask(protocol, true), &[text.as_bytes()]);
        prop_assert_eq!(pass(&ask(protocol, true), &pieces), whole);
    }

    #[test]
    fn any_bytes_come_through(bytes in proptest::collection::vec(any::<u8>(), 0..300), which in 0..4_usize, stream: bool) {
        let question = if which == 0 { asked_for_usage() } else { ask(Protocol::ALL[which], stream) };
        let (out, found) = pass(&question, &[&bytes]);
        prop_assert_eq!(out, bytes);
        prop_assert!(found.usage.is_none());
    }
}
