//! Whole answers, questions of our own, errors and lists.

use super::*;

fn metered(protocol: Protocol, body: &[u8]) -> Metered {
    let mut meter = Meter::new(&ask(protocol, false));
    assert_eq!(meter.feed(body), body);
    meter.end()
}

/// An answer of each, as the provider writes it; text `hi`, a call of `f`.
fn document(protocol: Protocol) -> Value {
    match protocol {
        Protocol::Chat => json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-1-2025-08-07",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "hi", "refusal": null,
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 5}},
        }),
        Protocol::Responses => json!({
            "id": "resp_1", "object": "response", "status": "completed", "error": null, "incomplete_details": null, "model": "m-1",
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": []}]},
                {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{\"a\":1}"},
            ],
            "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 120},
        }),
        Protocol::Messages => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m-1-20250929", "stop_reason": "tool_use", "stop_sequence": null,
            "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "hi"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}],
            "usage": {"input_tokens": 50, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 40, "output_tokens": 20,
                "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 5}, "service_tier": "standard"},
        }),
        Protocol::Generate => json!({
            "candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [
                {"text": "hm", "thought": true}, {"text": "hi"}, {"functionCall": {"name": "f", "args": {"a": 1}}}]}}],
            "modelVersion": "m-1", "responseId": "r",
            "usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 15,
                "thoughtsTokenCount": 5, "totalTokenCount": 120},
        }),
    }
}

#[test]
fn all_say_the_same_in_their_own_way() {
    for protocol in Protocol::ALL {
        let found = metered(protocol, document(protocol).to_string().as_bytes());
        let cache_write = if protocol == Protocol::Messages { 10 } else { 0 };
        let usage = Usage { input: 100, cached: 40, cache_write, cache_write_long: cache_write / 2, output: 20 };
        assert_eq!(found.usage, Some(usage), "{protocol:?}: {found:?}");
        assert_eq!(found.flaw, None, "{protocol:?}");
        assert_eq!(found.text, "hi");
        assert_eq!(found.calls, [json!({"name": "f", "arguments": {"a": 1}})]);
        assert!(found.is_whole && found.stop.is_some() && found.model.is_some() && found.rest.is_empty());
    }
}

#[test]
fn a_list_of_chunks_is_a_stream_of_googles() {
    let mut first = document(Protocol::Generate);
    first["candidates"][0]["finishReason"] = Value::Null;
    first["candidates"][0]["content"]["parts"] = json!([{"text": "h"}]);
    let mut last = document(Protocol::Generate);
    last["candidates"][0]["content"]["parts"] = json!([{"text": "i"}]);
    let mut question = ask(Protocol::Generate, true);
    question.stream_as_array();
    let mut meter = Meter::new(&question);
    let text = format!("[{first}\r\n,\n{last}\n]");
    for piece in text.as_bytes().chunks(7) {
        assert_eq!(meter.feed(piece), piece);
    }
    let found = meter.end();
    assert_eq!((found.text.as_str(), found.flaw, found.usage.unwrap().output), ("hi", None, 20));
}

/// A change to an answer, and what is wrong with it then.
fn flaw(protocol: Protocol, change: impl FnOnce(&mut Value)) -> (bool, String) {
    let mut body = document(protocol);
    change(&mut body);
    let found = metered(protocol, body.to_string().as_bytes());
    (found.usage.is_some(), found.flaw.unwrap_or_default())
}

#[test]
fn what_is_not_to_be_believed_is_not() {
    for (field, value, expected) in [
        ("completion_tokens", json!(-1), "no count"),
        ("completion_tokens", json!(1.5), "no count"),
        ("completion_tokens", json!("12"), "no count"),
        ("completion_tokens", json!(1_000_000_001_u64), "absurd"),
        ("completion_tokens", json!(1e300), "no count"),
        ("completion_tokens", json!(0), "no tokens"),
        ("completion_tokens", Value::Null, "missing"),
        ("prompt_tokens", json!(1), "more came from the cache"),
        ("prompt_tokens_details", json!({"cached_tokens": -3}), "no count"),
    ] {
        let (has_usage, why) = flaw(Protocol::Chat, |body| body["usage"][field] = value.clone());
        assert!(!has_usage && why.contains(expected), "{field} {value}: {why}");
    }
    let (has_usage, why) = flaw(Protocol::Chat, |body| body["usage"] = json!([1]));
    assert!(!has_usage && why.contains("no object"), "{why}");
    let (has_usage, why) = flaw(Protocol::Messages, |body| body["usage"] = Value::Null);
    assert!(!has_usage && why.contains("missing"), "{why}");
    let (has_usage, why) = flaw(Protocol::Chat, |body| body["model"] = json!("m-2"));
    assert!(has_usage && why.contains("m-2 instead of m-1"), "{why}");
}

#[test]
fn a_prompt_that_is_refused_has_an_answer_of_nothing() {
    let body = json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}, "modelVersion": "m-1"});
    let found = metered(Protocol::Generate, body.to_string().as_bytes());
    assert_eq!((found.stop.as_deref(), found.flaw, found.usage.unwrap().input), (Some("SAFETY"), None, 9));
    let (has_usage, why) = flaw(Protocol::Generate, |body| {
        let usage = body["usageMetadata"].as_object_mut().unwrap();
        usage.retain(|name, _| name == "promptTokenCount");
    });
    assert!(!has_usage && why.contains("no tokens"), "{why}");
}

#[test]
fn a_model_is_known_by_its_dated_name() {
    for (answered, is_same) in [
        ("m-1", true),
        ("M-1", true),
        ("m-1-20250101", true),
        ("m-1-2025-08-07", true),
        ("vendor/m-1", true),
        ("models/m-1-preview-05-20", true),
        ("m-1-mini", false),
        ("m-10", false),
        ("m-1.5", false),
        ("other", false),
        ("", true),
    ] {
        let (_, why) = flaw(Protocol::Chat, |body| body["model"] = json!(answered));
        assert_eq!(why.is_empty(), is_same, "{answered}: {why}");
    }
}

#[test]
fn hostile_answers_are_only_passed_on() {
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 10] = [
        b"",
        b"   ",
        b"\0\0\0",
        b"<html>busy</html>",
        b"{\"choices\":",
        br#"{"choices":[{"message":{"content":"\ud800"}}]}"#,
        br#"{"usage":{"prompt_tokens":1e999}}"#,
        b"{\"model\":\"\xff\"}",
        deep.as_bytes(),
        b"null",
    ];
    for protocol in Protocol::ALL {
        for body in bodies {
            let found = metered(protocol, body);
            assert!(found.usage.is_none() && found.flaw.is_some() && !found.is_whole, "{protocol:?} {found:?}");
            assert!(extract(protocol, body).is_err());
        }
        let error = error(protocol, Trouble::Upstream, None, "busy").1.to_string();
        let found = metered(protocol, error.as_bytes());
        assert!(found.flaw.unwrap().contains("busy"), "{protocol:?}");
        assert!(extract(protocol, error.as_bytes()).unwrap_err().contains("busy"));
    }
}

#[test]
fn what_is_kept_of_an_answer_is_bounded() {
    let mut body = document(Protocol::Chat);
    body["choices"][0]["message"]["content"] = json!("é".repeat(1 << 20));
    let call = json!({"function": {"name": "f", "arguments": "x".repeat(1 << 16)}});
    body["choices"][0]["message"]["tool_calls"] = json!(vec![call; 400]);
    let found = metered(Protocol::Chat, body.to_string().as_bytes());
    assert_eq!(found.text.len(), 1 << 20);
    let kept: usize = found.calls.iter().map(|call| call.to_string().len()).sum();
    assert!(found.calls.len() <= 256 && kept < 2 << 20, "{} {kept}", found.calls.len());
}

fn prompt() -> Prompt {
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    Prompt {
        model: "m-1".into(),
        messages: vec![
            message(Role::System, "be brief"),
            message(Role::User, "2+2?"),
            message(Role::Assistant, "5"),
            message(Role::User, "no"),
        ],
        schema: Some(
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}),
        ),
        schema_name: "math/add.v1".into(),
        output_tokens: 64,
        temperature: Some(0.0),
        seed: Some(7),
    }
}

#[test]
fn our_own_questions_hold_the_model_to_a_schema() {
    let prompt = prompt();
    let sent = |protocol, structured| -> Value {
        let question = compose(protocol, &prompt, structured);
        assert_eq!((question.output_tokens, question.stream, question.choices), (Some(64), false, 1));
        serde_json::from_slice(&question.bytes()).unwrap()
    };
    let chat = sent(Protocol::Chat, Structured::JsonSchema);
    assert_eq!(chat["response_format"]["json_schema"]["strict"], json!(true));
    assert_eq!(chat["response_format"]["json_schema"]["name"], json!("math_add_v1"));
    assert_eq!((&chat["max_tokens"], &chat["seed"], &chat["temperature"]), (&json!(64), &json!(7), &json!(0.0)));
    assert_eq!(sent(Protocol::Chat, Structured::JsonObject)["response_format"], json!({"type": "json_object"}));
    assert!(sent(Protocol::Chat, Structured::Nothing).get("response_format").is_none());
    let messages = sent(Protocol::Messages, Structured::JsonSchema);
    assert_eq!(messages["tool_choice"], json!({"type": "tool", "name": "answer"}));
    assert_eq!((&messages["system"], messages["messages"].as_array().unwrap().len()), (&json!("be brief"), 3));
    assert_eq!(sent(Protocol::Responses, Structured::JsonSchema)["text"]["format"]["type"], json!("json_schema"));
    let google = sent(Protocol::Generate, Structured::JsonSchema);
    assert_eq!(google["generationConfig"]["responseJsonSchema"], prompt.schema.clone().unwrap());
    assert_eq!(google["contents"][1]["role"], json!("model"));
    for protocol in Protocol::ALL {
        let question = compose(protocol, &prompt, Structured::JsonSchema);
        let model = (protocol == Protocol::Generate).then_some("m-1");
        let again = Question::read(protocol, model, false, &question.bytes()).unwrap();
        assert_eq!((again.model.as_str(), again.output_tokens), ("m-1", Some(64)), "it reads as it was meant");
        let other = Prompt { output_tokens: 65, ..prompt.clone() };
        assert_ne!(question.exact_key(), compose(protocol, &other, Structured::JsonSchema).exact_key());
    }
}

#[test]
fn the_limit_of_our_own_question_has_the_providers_name() {
    let mut question = compose(Protocol::Chat, &prompt(), Structured::Nothing);
    question.limit_output(32, "max_completion_tokens");
    let sent: Value = serde_json::from_slice(&question.bytes()).unwrap();
    assert_eq!((&sent["max_completion_tokens"], sent.get("max_tokens")), (&json!(32), None));
    let open = Prompt { schema: Some(json!({"type": "object", "properties": {"n": {}}})), ..prompt() };
    let question = compose(Protocol::Chat, &open, Structured::JsonSchema);
    assert_eq!(question.body["response_format"]["json_schema"]["strict"], json!(false), "it would be refused");
}

#[test]
fn what_was_said_comes_out() {
    for protocol in Protocol::ALL {
        let said = extract(protocol, document(protocol).to_string().as_bytes()).unwrap();
        assert_eq!((said.text.as_str(), said.usage.unwrap().input), ("hi", 100), "{protocol:?}");
    }
    let mut answer = document(Protocol::Messages);
    answer["content"][2]["name"] = json!("answer");
    assert_eq!(extract(Protocol::Messages, answer.to_string().as_bytes()).unwrap().text, "{\"a\":1}");
}

#[test]
fn errors_are_the_providers_own() {
    let code = Some("spend.budget_exhausted");
    let (status, body) = error(Protocol::Chat, Trouble::BudgetExhausted, code, "no budget is left");
    assert_eq!((status, &body["error"]["code"]), (429, &json!("insufficient_quota")));
    assert_eq!(body["error"]["message"], json!("no budget is left (spend.budget_exhausted)"));
    let (status, body) = error(Protocol::Messages, Trouble::BudgetExhausted, code, "no budget is left");
    assert_eq!((status, &body["error"]["type"], &body["type"]), (402, &json!("billing_error"), &json!("error")));
    let (status, body) = error(Protocol::Generate, Trouble::BudgetExhausted, code, "x");
    assert_eq!(
        (status, &body["error"]["status"], &body["error"]["code"]),
        (429, &json!("RESOURCE_EXHAUSTED"), &json!(429))
    );
    const ALL: [Trouble; 10] = [
        Trouble::BudgetExhausted,
        Trouble::Denied,
        Trouble::ApprovalRequired,
        Trouble::Unauthorized,
        Trouble::NotFound,
        Trouble::Invalid,
        Trouble::TooLarge,
        Trouble::Upstream,
        Trouble::CircuitOpen,
        Trouble::NotRecorded,
    ];
    for (protocol, trouble) in Protocol::ALL.into_iter().flat_map(|protocol| ALL.map(|trouble| (protocol, trouble))) {
        let (status, body) = error(protocol, trouble, Some("policy.x"), "no");
        assert!((400..600).contains(&status));
        assert_eq!(status >= 500, trouble.is_passing(), "clients ask again after these only");
        assert!(body["error"]["message"].as_str().unwrap().contains("policy.x"));
        // Our own meter sees it in a stream.
        let mut meter = Meter::new(&ask(protocol, true));
        meter.feed(&error_event(protocol, trouble, Some("policy.x"), "no"));
        let found = meter.end();
        assert!(!found.is_whole && found.flaw.unwrap().contains("policy.x"), "{protocol:?} {trouble:?}");
    }
}

#[test]
fn models_are_listed_for_everybody() {
    let names = ["a".to_owned(), "b/c".to_owned()];
    let list = models(false, &names);
    assert_eq!(
        (&list["object"], &list["data"][1]["id"], &list["last_id"]),
        (&json!("list"), &json!("b/c"), &json!("b/c"))
    );
    assert_eq!(list["data"][0]["type"], json!("model"));
    assert_eq!(models(true, &names)["models"][0]["name"], json!("models/a"));
    assert_eq!(models(false, &[])["data"], json!([]));
}

#[test]
fn the_name_of_who_answered_is_bounded() {
    let answered = |asked: &str, model: &str| {
        let mut question = ask(Protocol::Chat, false);
        question.send_model(asked);
        let mut meter = Meter::new(&question);
        let answer = json!({"model": model, "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
        meter.feed(answer.to_string().as_bytes());
        meter.end()
    };
    let long = answered("m-1", &"\u{e9}".repeat(5_000));
    assert_eq!(long.model.unwrap().chars().count(), 200);
    assert!(long.flaw.unwrap().chars().count() < 300);
    let whole = "m".repeat(250);
    let same = answered(&whole, &whole);
    assert_eq!((same.flaw, same.model.map(|model| model.len())), (None, Some(200)), "the whole name is compared");
}

#[test]
fn the_same_model_has_several_names() {
    for (asked, answered, is_same) in [
        ("gpt-5", "gpt-5-2025-08-07", true),
        ("vendor/gpt-5", "gpt-5", true),
        ("gpt-5", "gpt-5-mini", false),
        ("claude-x-latest", "claude-x-20260101", true),
    ] {
        assert_eq!(is_same_model(asked, answered), is_same, "{asked} {answered}");
    }
}
