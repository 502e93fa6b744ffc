//! Paths and bodies: what is read, refused, bounded and sent.

use super::*;

fn sent(question: &Question) -> Value {
    serde_json::from_slice(&question.bytes()).unwrap()
}

#[test]
fn paths_say_what_is_asked() {
    let ask = |protocol| Some(Route::Ask { protocol, model: None, stream: false });
    let google =
        |model: &str, stream| Some(Route::Ask { protocol: Protocol::Generate, model: Some(model.to_owned()), stream });
    for (method, path, expected) in [
        ("POST", "/v1/chat/completions", ask(Protocol::Chat)),
        ("POST", "/chat/completions?x=1", ask(Protocol::Chat)),
        ("POST", "/v1/responses/", ask(Protocol::Responses)),
        ("POST", "/responses", ask(Protocol::Responses)),
        ("POST", "/v1/messages?beta=true", ask(Protocol::Messages)),
        ("POST", "/v1/messages/count_tokens?beta=true", Some(Route::Count { protocol: Protocol::Messages })),
        ("GET", "/v1/models", Some(Route::Models { gemini: false })),
        ("GET", "/models", Some(Route::Models { gemini: false })),
        ("GET", "/v1beta/models", Some(Route::Models { gemini: true })),
        ("POST", "/v1beta/models/g-2.5:generateContent", google("g-2.5", false)),
        ("POST", "/v1/models/g-2.5:streamGenerateContent?alt=sse", google("g-2.5", true)),
        ("POST", "/v1beta/models/g:countTokens", Some(Route::Count { protocol: Protocol::Generate })),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/messages", None),
        ("POST", "/v1/models", None),
        ("POST", "/v1beta/models/../x:generateContent", None),
        ("POST", "/v1beta/models/a%2Fb:generateContent", None),
        ("POST", "/v1beta/models/:generateContent", None),
        ("POST", "/v1beta/models/g:embedContent", None),
        ("POST", "/v1/completions", None),
        ("POST", "", None),
    ] {
        assert_eq!(route(method, path), expected, "{method} {path}");
    }
}

#[test]
fn the_words_of_protocols_are_read_back() {
    for protocol in Protocol::ALL {
        assert_eq!(Protocol::from_word(protocol.word()), Some(protocol));
    }
    assert_eq!(Protocol::from_word("gopher"), None);
}

#[test]
fn limits_are_inserted_lowered_and_left() {
    for (protocol, field) in
        [(Protocol::Chat, "max_tokens"), (Protocol::Responses, "max_output_tokens"), (Protocol::Messages, "max_tokens")]
    {
        for (asked, limit, expected) in
            [(Value::Null, 50, 50), (json!(20), 50, 20), (json!(90), 50, 50), (json!(50), 50, 50)]
        {
            let mut body = body(protocol, false);
            body[field] = asked.clone();
            let mut question = read(protocol, body.clone(), false).unwrap();
            assert_eq!(question.output_tokens, asked.as_u64());
            let (exact, masked) = (question.exact_key(), question.masked_key());
            question.limit_output(limit, "max_tokens");
            assert_eq!(sent(&question)[field], json!(expected), "{protocol:?} {asked}");
            assert_eq!(question.output_tokens, Some(expected));
            assert_eq!((question.exact_key(), question.masked_key()), (exact, masked), "its keys are the caller's");
        }
    }
    let mut google = body(Protocol::Generate, false);
    google["generation_config"] = json!({"max_output_tokens": 90, "temperature": 1});
    let mut question = read(Protocol::Generate, google, false).unwrap();
    question.limit_output(50, "");
    assert_eq!(sent(&question)["generation_config"], json!({"max_output_tokens": 50, "temperature": 1}));
    let mut question = ask(Protocol::Generate, false);
    question.limit_output(7, "");
    assert_eq!(sent(&question)["generationConfig"], json!({"maxOutputTokens": 7}));
}

#[test]
fn chat_has_two_names_for_the_limit() {
    let mut both = body(Protocol::Chat, false);
    both["max_tokens"] = json!(10);
    both["max_completion_tokens"] = json!(90);
    let mut question = read(Protocol::Chat, both, false).unwrap();
    assert_eq!(question.output_tokens, Some(90), "the larger one is what it may cost");
    question.limit_output(50, "max_tokens");
    assert_eq!((&sent(&question)["max_tokens"], &sent(&question)["max_completion_tokens"]), (&json!(10), &json!(50)));
    let mut question = read(Protocol::Chat, body(Protocol::Chat, false), false).unwrap();
    question.limit_output(5, "max_completion_tokens");
    assert_eq!(sent(&question)["max_completion_tokens"], json!(5));
    assert!(sent(&question).get("stream_options").is_none(), "no stream");
}

#[test]
fn streams_of_chat_tell_their_usage() {
    let mut options = body(Protocol::Chat, true);
    options["stream_options"] = json!({"include_obfuscation": false});
    let mut question = read(Protocol::Chat, options, false).unwrap();
    question.limit_output(5, "max_tokens");
    assert_eq!(sent(&question)["stream_options"], json!({"include_obfuscation": false, "include_usage": true}));
    assert!(question.hides_usage());
    let mut asked = body(Protocol::Chat, true);
    asked["stream_options"] = json!({"include_usage": true});
    let mut question = read(Protocol::Chat, asked, false).unwrap();
    question.limit_output(5, "max_tokens");
    assert!(!question.hides_usage());
}

#[test]
fn what_is_not_changed_is_sent_as_it_was_written() {
    let text = br#"{ "tools":[{"type":"function","function":{"name":"z","parameters":{"z":1,"a":2}}}], "model":"m-1", "messages":[{"role":"user","content":"h\u00e9"}]}"#;
    let mut question = Question::read(Protocol::Chat, None, false, text).unwrap();
    assert_eq!(question.bytes(), text);
    question.limit_output(9, "max_tokens");
    question.send_model("vendor/m-1");
    let sent = String::from_utf8(question.bytes()).unwrap();
    let expected = String::from_utf8(text.to_vec()).unwrap();
    let expected = expected.replacen('{', "{\"max_tokens\":9,", 1).replace("\"m-1\"", "\"vendor/m-1\"");
    assert_eq!(sent, expected);
}

#[test]
fn each_has_its_path() {
    for (protocol, stream, path) in [
        (Protocol::Chat, true, "chat/completions"),
        (Protocol::Responses, false, "responses"),
        (Protocol::Messages, true, "v1/messages"),
        (Protocol::Generate, false, "v1beta/models/m-1:generateContent"),
        (Protocol::Generate, true, "v1beta/models/m-1:streamGenerateContent?alt=sse"),
    ] {
        assert_eq!(ask(protocol, stream).path(), path);
    }
    let mut question = ask(Protocol::Generate, true);
    question.stream_as_array();
    question.send_model("g-9");
    assert_eq!(question.path(), "v1beta/models/g-9:streamGenerateContent");
}

#[test]
fn bad_bodies_are_refused_with_what_to_do() {
    let deep = |levels| format!(r#"{{"model":"m","messages":[{}1{}]}}"#, "[".repeat(levels), "]".repeat(levels));
    assert!(Question::read(Protocol::Chat, None, false, deep(62).as_bytes()).is_ok());
    for (protocol, body, expected) in [
        (Protocol::Chat, "", "empty"),
        (Protocol::Chat, "[]", "no object"),
        (Protocol::Chat, "{}", "messages is missing"),
        (Protocol::Chat, r#"{"messages":[]}"#, "messages is missing or empty"),
        (Protocol::Chat, r#"{"messages":[1]}"#, "model is missing"),
        (Protocol::Chat, r#"{"messages":[1],"model":"a b"}"#, "no name of a model"),
        (Protocol::Chat, r#"{"messages":[1],"model":"../x"}"#, "no name of a model"),
        (Protocol::Chat, r#"{"messages":[1],"model":""}"#, "no name of a model"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","model":"n"}"#, "duplicate key"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","max_tokens":-1}"#, "max_tokens is no whole number"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","max_tokens":1.5}"#, "max_tokens is no whole number"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","max_tokens":"9"}"#, "max_tokens is no whole number"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","max_tokens":0}"#, "max_tokens is no whole number"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","max_tokens":99999999999999999999}"#, "integer beyond"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","n":1000}"#, "n is no whole number"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","stream":"yes"}"#, "stream is neither"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","stream_options":1}"#, "stream_options"),
        (Protocol::Chat, r#"{"messages":["\ud800"],"model":"m"}"#, "lone surrogate"),
        (Protocol::Chat, r#"{"messages":[1e999],"model":"m"}"#, "too large for a double"),
        (Protocol::Chat, "{\"messages\":[\"\0\"],\"model\":\"m\"}", "control character"),
        (Protocol::Chat, &deep(200), "nested deeper"),
        (Protocol::Chat, &deep(63), "nested deeper than 64 levels"),
        (Protocol::Chat, r#"{"messages":[1],"model":"m","tools":{}}"#, "tools is no list"),
        (Protocol::Generate, r#"{"contents":[1],"tools":{"googleSearch":{}}}"#, "tools is no list"),
        (Protocol::Responses, r#"{"model":"m","input":5}"#, "input is missing"),
        (Protocol::Responses, r#"{"model":"m"}"#, "input is missing"),
        (Protocol::Messages, r#"{"model":"m","messages":"hi"}"#, "messages is missing"),
        (Protocol::Generate, r#"{"contents":"x"}"#, "contents is missing"),
        (Protocol::Generate, r#"{"contents":[1],"generationConfig":[]}"#, "no object"),
        (Protocol::Generate, r#"{"contents":[1],"generationConfig":{},"generation_config":{}}"#, "twice"),
        (
            Protocol::Generate,
            r#"{"contents":[1],"generationConfig":{"maxOutputTokens":1,"max_output_tokens":9}}"#,
            "twice",
        ),
    ] {
        let model = (protocol == Protocol::Generate).then_some("g");
        let refused = Question::read(protocol, model, false, body.as_bytes()).unwrap_err();
        assert!(refused.contains(expected), "{body}: {refused}");
    }
    assert!(Question::read(Protocol::Chat, None, false, b"{\"model\":\"\xff\"}").unwrap_err().contains("UTF-8"));
    assert!(Question::read(Protocol::Responses, None, false, br#"{"model":"m","previous_response_id":"r"}"#).is_ok());
}

#[test]
fn the_exact_key_is_what_it_says() {
    let question = ask(Protocol::Messages, true);
    let whole = json!({"protocol": "messages", "model": "m-1", "stream": true, "body": body(Protocol::Messages, true)});
    assert_eq!(question.exact_key(), actum_contract::canon::sha256(&whole).unwrap().to_hex());
    assert_ne!(question.exact_key(), ask(Protocol::Messages, false).exact_key());
}
