//! The most that a question can come to, and what has no most.

use super::*;

const DATA: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ";

fn with(protocol: Protocol, changes: &Value) -> Question {
    let mut body = body(protocol, false);
    for (field, value) in changes.as_object().unwrap() {
        body[field] = value.clone();
    }
    read(protocol, body, false).unwrap()
}

/// What is named of the first thing without a bound; nothing: there is none.
fn named(protocol: Protocol, changes: Value) -> String {
    with(protocol, &changes).unbounded().unwrap_or_default()
}

fn len(value: &Value) -> u64 {
    u64::try_from(value.to_string().len()).unwrap()
}

/// A message of one part.
fn part(protocol: Protocol, part: Value) -> Value {
    match protocol {
        Protocol::Chat | Protocol::Messages => json!({"messages": [{"role": "user", "content": [part]}]}),
        Protocol::Responses => json!({"input": [{"role": "user", "content": [part]}]}),
        Protocol::Generate => json!({"contents": [{"role": "user", "parts": [part]}]}),
    }
}

fn image(protocol: Protocol, kind: &str) -> Value {
    let url = format!("data:{kind};base64,{DATA}");
    match protocol {
        Protocol::Chat => json!({"type": "image_url", "image_url": {"url": url}}),
        Protocol::Responses => json!({"type": "input_image", "image_url": url}),
        Protocol::Messages => json!({"type": "image", "source": {"type": "base64", "media_type": kind, "data": DATA}}),
        Protocol::Generate => json!({"inlineData": {"mimeType": kind, "data": DATA}}),
    }
}

#[test]
fn a_question_is_never_smaller_than_it_looks() {
    let bytes = len(&body(Protocol::Chat, false));
    assert_eq!(ask(Protocol::Chat, false).input_tokens_max(), bytes);
    let mut rich = body(Protocol::Chat, false);
    rich["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    rich["messages"] = part(Protocol::Chat, image(Protocol::Chat, "image/png"))["messages"].clone();
    rich["n"] = json!(3);
    let question = read(Protocol::Chat, rich.clone(), false).unwrap();
    let data = u64::try_from(DATA.len()).unwrap();
    assert_eq!(question.input_tokens_max(), len(&rich) - data + 65_536 + 1_024);
    assert_eq!((question.images(), question.choices), (1, 3));
    let google = with(Protocol::Generate, &json!({"generationConfig": {"candidateCount": 2}, "tools": []}));
    assert_eq!((google.choices, google.input_tokens_max()), (2, u64::try_from(google.len_bytes()).unwrap()));
}

#[test]
fn a_picture_counts_by_its_price_and_not_by_its_bytes() {
    let data = u64::try_from(DATA.len()).unwrap();
    for protocol in Protocol::ALL {
        let question = with(protocol, &part(protocol, image(protocol, "image/png")));
        assert_eq!((question.images(), question.unbounded()), (1, None), "{protocol:?}");
        let bytes = u64::try_from(question.len_bytes()).unwrap();
        assert_eq!(question.input_tokens_max_with(0), bytes - data);
        assert_eq!(question.input_tokens_max_with(7), bytes - data + 7);
        assert_eq!(question.input_tokens_max(), bytes - data + IMAGE_TOKENS_MAX);
        assert_eq!(question.input_tokens_max_with(u64::MAX), u64::MAX);
        let drawn = with(protocol, &part(protocol, image(protocol, "image/svg+xml")));
        assert_eq!(drawn.input_tokens_max_with(0), u64::try_from(drawn.len_bytes()).unwrap(), "it may be read as text");
    }
    let results = [
        (
            Protocol::Messages,
            part(
                Protocol::Messages,
                json!({"type": "tool_result", "tool_use_id": "t", "content": [image(Protocol::Messages, "image/png")]}),
            ),
        ),
        (
            Protocol::Responses,
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": [image(Protocol::Responses, "image/png")]}]}),
        ),
        (
            Protocol::Generate,
            part(
                Protocol::Generate,
                json!({"functionResponse": {"name": "f", "parts": [image(Protocol::Generate, "image/png")]}}),
            ),
        ),
    ];
    for (protocol, changes) in results {
        assert_eq!(with(protocol, &changes).images(), 1, "{changes}");
    }
}

#[test]
fn what_only_looks_like_a_picture_is_text() {
    let picture = image(Protocol::Messages, "image/png");
    let calls = part(Protocol::Messages, json!({"type": "tool_use", "id": "t", "name": "f", "input": {"x": picture}}));
    let question = with(Protocol::Messages, &calls);
    assert_eq!((question.images(), question.unbounded()), (0, None));
    assert_eq!(question.input_tokens_max(), u64::try_from(question.len_bytes()).unwrap());
    let schema = json!({"tools": [{"name": "f", "input_schema": {"properties": {"x": picture}}}]});
    assert_eq!(with(Protocol::Messages, &schema).images(), 0);
    let chat = with(Protocol::Chat, &part(Protocol::Chat, picture));
    assert!(chat.unbounded().unwrap().contains("\"image\""), "the other protocol's word");
    assert_eq!(chat.images(), 0);
}

#[test]
fn content_without_a_bound_is_named() {
    let file = |source: &str| json!({"type": "document", "source": {"type": source, "data": "x"}});
    for (protocol, value, name) in [
        (Protocol::Chat, json!({"type": "input_audio", "input_audio": {"data": "AA"}}), "input_audio"),
        (Protocol::Chat, json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA"}}), "file"),
        (Protocol::Chat, json!({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}), "video_url"),
        (Protocol::Chat, json!({"type": "image_url", "image_url": {"url": "https://a/b.png"}}), "picture"),
        (Protocol::Chat, json!({"type": "image_url", "image_url": {"url": "data:image/png,AA"}}), "picture"),
        (Protocol::Chat, image(Protocol::Chat, "application/pdf"), "neither text nor a picture"),
        (Protocol::Chat, json!({"text": "x"}), "without a type"),
        (Protocol::Chat, json!({"type": 5}), "\"?\""),
        (Protocol::Responses, json!({"type": "input_file", "file_data": "AA"}), "input_file"),
        (Protocol::Responses, json!({"type": "input_image", "file_id": "f"}), "input_image"),
        (Protocol::Responses, json!({"type": "input_image", "image_url": "http://a/"}), "picture"),
        (Protocol::Messages, file("base64"), "document"),
        (Protocol::Messages, file("url"), "document"),
        (Protocol::Messages, file("file"), "document"),
        (Protocol::Messages, json!({"type": "document"}), "document"),
        (Protocol::Messages, json!({"type": "image", "source": {"type": "url", "url": "x"}}), "picture"),
        (Protocol::Messages, json!({"type": "image", "source": {"type": "file", "file_id": "x"}}), "picture"),
        (Protocol::Messages, json!({"type": "container_upload", "file_id": "x"}), "container_upload"),
        (Protocol::Messages, json!({"type": "web_search_tool_result", "content": []}), "web_search_tool_result"),
        (Protocol::Messages, json!({"type": "tool_result", "content": [file("base64")]}), "document"),
        (
            Protocol::Messages,
            json!({"type": "document", "source": {"type": "content", "content": [file("url")]}}),
            "document",
        ),
        (
            Protocol::Messages,
            json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "web_search_20250305"}}}),
            "web_search_20250305",
        ),
        (Protocol::Generate, image(Protocol::Generate, "audio/wav"), "neither text nor a picture"),
        (Protocol::Generate, json!({"inline_data": {"mime_type": "application/pdf", "data": "AA"}}), "neither"),
        (
            Protocol::Generate,
            json!({"inlineData": {"mimeType": "image/png", "mime_type": "video/mp4", "data": "AA"}}),
            "neither",
        ),
        (Protocol::Generate, json!({"inlineData": {"data": "AA"}}), "neither"),
        (Protocol::Generate, json!({"fileData": {"fileUri": "x"}}), "fileData"),
        (Protocol::Generate, json!({"executableCode": {}}), "executableCode"),
        (Protocol::Generate, json!({"functionResponse": {"parts": [{"file_data": {"file_uri": "x"}}]}}), "file_data"),
    ] {
        let found = named(protocol, part(protocol, value.clone()));
        assert!(found.contains(name), "{value}: {found}");
    }
    for item in ["item_reference", "web_search_call", "image_generation_call", "compaction", "mcp_call"] {
        assert!(named(Protocol::Responses, json!({"input": [{"type": item, "id": "x"}]})).contains(item));
    }
    assert!(named(Protocol::Responses, json!({"input": [{"id": "msg_1"}]})).contains("reference"));
    assert!(
        named(Protocol::Chat, json!({"messages": [{"role": "assistant", "audio": {"id": "a"}}]})).contains("audio")
    );
    let long = named(Protocol::Chat, part(Protocol::Chat, json!({"type": "x".repeat(1_000)})));
    assert!(long.len() < 100, "{long}");
}

#[test]
fn content_of_clients_has_a_bound() {
    for (protocol, value) in [
        (Protocol::Chat, json!({"type": "text", "text": "x"})),
        (Protocol::Chat, json!("x")),
        (Protocol::Responses, json!({"type": "input_text", "text": "x"})),
        (Protocol::Messages, json!({"type": "thinking", "thinking": "x", "signature": "s"})),
        (Protocol::Messages, json!({"type": "document", "source": {"type": "text", "data": "x"}})),
        (Protocol::Messages, json!({"type": "document", "source": {"type": "content", "content": "x"}})),
        (Protocol::Messages, json!({"type": "tool_result", "content": "x"})),
        (Protocol::Messages, json!({"type": "search_result", "content": [{"type": "text", "text": "x"}]})),
        (Protocol::Generate, json!({"functionCall": {"name": "f", "args": {"fileData": 1}}, "thoughtSignature": "x"})),
        (Protocol::Generate, json!({"text": "x", "inlineData": null})),
    ] {
        assert_eq!(named(protocol, part(protocol, value.clone())), "", "{value}");
    }
    let items = json!([
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "x"},
        {"type": "function_call", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "output": "x"},
        {"type": "custom_tool_call", "input": "x"}, {"type": "custom_tool_call_output", "output": "x"},
        {"type": "local_shell_call", "action": {"type": "exec"}}, {"type": "shell_call_output", "output": [{"stdout": "x"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}, {"type": "refusal"}]},
    ]);
    assert_eq!(named(Protocol::Responses, json!({ "input": items })), "");
}

#[test]
fn tools_are_the_clients_or_named() {
    let named = |protocol, tool: Value| named(protocol, json!({ "tools": [tool] }));
    for (protocol, tool) in [
        (Protocol::Chat, json!({"type": "function", "function": {"name": "f"}})),
        (Protocol::Chat, json!({"type": "custom", "custom": {"name": "f"}})),
        (Protocol::Responses, json!({"type": "function"})),
        (Protocol::Responses, json!({"type": "custom"})),
        (Protocol::Responses, json!({"type": "local_shell"})),
        (Protocol::Responses, json!({"type": "apply_patch"})),
        (Protocol::Responses, json!({"type": "shell"})),
        (Protocol::Responses, json!({"type": "shell", "environment": {"type": "local"}})),
        (Protocol::Responses, json!({"type": "namespace", "name": "n", "tools": [{"type": "function"}]})),
        (Protocol::Messages, json!({"name": "f", "input_schema": {}})),
        (Protocol::Messages, json!({"type": "custom", "name": "f"})),
        (Protocol::Messages, json!({"type": "bash_20250124"})),
        (Protocol::Messages, json!({"type": "text_editor_20250728"})),
        (Protocol::Messages, json!({"type": "computer_20251124"})),
        (Protocol::Messages, json!({"type": "memory_20250818"})),
        (Protocol::Generate, json!({"functionDeclarations": [], "googleSearch": null})),
        (Protocol::Generate, json!({"function_declarations": []})),
    ] {
        assert_eq!(named(protocol, tool.clone()), "", "{tool}");
    }
    for (protocol, tool, name) in [
        (Protocol::Chat, json!({"type": "web_search"}), "web_search"),
        (Protocol::Chat, json!({"function": {"name": "f"}}), "without a type"),
        (Protocol::Chat, json!("function"), "no object"),
        (Protocol::Responses, json!({"type": "web_search"}), "web_search"),
        (Protocol::Responses, json!({"type": "tool_search"}), "tool_search"),
        (Protocol::Responses, json!({"type": "shell", "environment": {"type": "container_auto"}}), "shell"),
        (Protocol::Responses, json!({"type": "shell", "environment": "x"}), "shell"),
        (Protocol::Responses, json!({"type": "namespace"}), "namespace"),
        (
            Protocol::Responses,
            json!({"type": "namespace", "tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]}),
            "mcp",
        ),
        (Protocol::Messages, json!({"type": "web_search_20250305"}), "web_search_20250305"),
        (Protocol::Messages, json!({"type": "tool_search_tool_regex_20251119"}), "tool_search_tool_regex"),
        (Protocol::Messages, json!({"type": "bashful"}), "bashful"),
        (Protocol::Messages, json!({"type": 1}), "without a type"),
        (Protocol::Generate, json!({"googleSearch": {}}), "googleSearch"),
        (Protocol::Generate, json!({"functionDeclarations": [], "computerUse": {}}), "computerUse"),
        (Protocol::Generate, json!({"newest": {}}), "newest"),
    ] {
        let found = named(protocol, tool.clone());
        assert!(found.contains(name), "{tool}: {found}");
    }
    let known = json!({"tools": [{"type": "bash_20250124"}, {"type": "text_editor_20250728"}, {"name": "f", "input_schema": {}}]});
    let question = with(Protocol::Messages, &known);
    assert_eq!(question.input_tokens_max(), u64::try_from(question.len_bytes()).unwrap() + 3 * 1_024);
}

#[test]
fn a_tool_counts_wherever_it_is_referred_to() {
    let tool = json!({"name": "long", "input_schema": {"description": "x".repeat(500)}, "defer_loading": true});
    let mut changes = part(
        Protocol::Messages,
        json!({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "tool_reference", "tool_name": "long"}, {"type": "tool_reference", "tool_name": "long"}]}),
    );
    changes["tools"] = json!([tool]);
    let question = with(Protocol::Messages, &changes);
    assert_eq!(question.unbounded(), None);
    let bytes = u64::try_from(question.len_bytes()).unwrap();
    assert_eq!(question.input_tokens_max(), bytes + 1_024 + 2 * (len(&tool) + 1_024));
    let added = |added: Value| part(Protocol::Messages, json!({"type": "tool_addition", "tool": added}));
    let defined = with(Protocol::Messages, &added(json!({"type": "tool_definition", "definition": tool})));
    assert_eq!(defined.unbounded(), None);
    assert_eq!(defined.input_tokens_max(), u64::try_from(defined.len_bytes()).unwrap() + 1_024);
    assert!(with(Protocol::Messages, &added(json!({"type": "tool_definition"}))).unbounded().is_some());
    assert!(with(Protocol::Messages, &added(json!({"type": "tool_reference", "name": "x"}))).unbounded().is_none());
}

#[test]
fn fields_that_change_the_price_are_named() {
    for (protocol, field, value) in [
        (Protocol::Responses, "previous_response_id", json!("r")),
        (Protocol::Responses, "background", json!(true)),
        (Protocol::Generate, "cachedContent", json!("c")),
        (Protocol::Chat, "service_tier", json!("priority")),
        (Protocol::Responses, "service_tier", json!("flex")),
        (Protocol::Generate, "serviceTier", json!(1)),
        (Protocol::Chat, "modalities", json!(["text", "audio"])),
        (Protocol::Chat, "modalities", json!("audio")),
        (Protocol::Chat, "audio", json!({"voice": "x"})),
        (Protocol::Messages, "speed", json!("fast")),
        (Protocol::Messages, "inference_geo", json!("us")),
        (Protocol::Messages, "fallbacks", json!([{"model": "x"}])),
        (Protocol::Messages, "mcp_servers", json!([{"url": "x"}])),
        (Protocol::Messages, "context_management", json!({"edits": [{"type": "compact_20260112"}]})),
        (Protocol::Responses, "context_management", json!([{"type": "compaction"}])),
        (Protocol::Chat, "models", json!(["x"])),
        (Protocol::Chat, "route", json!("fallback")),
        (Protocol::Chat, "plugins", json!([{"id": "web"}])),
        (Protocol::Chat, "provider", json!({"order": ["x"]})),
        (Protocol::Chat, "best_of", json!(9)),
        (Protocol::Chat, "n_predict", json!(9)),
        (Protocol::Chat, "web_search_options", json!({})),
        (Protocol::Chat, "prediction", json!({"type": "content", "content": "x"})),
        (Protocol::Chat, "N", json!(100)),
        (Protocol::Chat, "Max_Tokens", json!(100)),
        (Protocol::Chat, "max_to\u{212a}ens", json!(100)),
        (Protocol::Chat, "\u{17f}tream", json!(true)),
        (Protocol::Responses, "MAX_OUTPUT_TOKENS", json!(100)),
        (Protocol::Messages, "Tools", json!([])),
        (Protocol::Chat, "Best_Of", json!(9)),
    ] {
        let found = named(protocol, json!({ field: value }));
        assert!(found.contains(&format!("{field:?}")), "{field} {value}: {found}");
    }
    for (config, name) in [
        (json!({"responseModalities": ["TEXT", "IMAGE"]}), "responseModalities"),
        (json!({"response_modalities": ["AUDIO"]}), "response_modalities"),
        (json!({"MaxOutputTokens": 9}), "MaxOutputTokens"),
    ] {
        assert!(named(Protocol::Generate, json!({ "generationConfig": config })).contains(name));
    }
    for (protocol, field, value) in [
        (Protocol::Chat, "service_tier", json!("auto")),
        (Protocol::Chat, "service_tier", Value::Null),
        (Protocol::Messages, "service_tier", json!("standard_only")),
        (Protocol::Chat, "modalities", json!(["text"])),
        (Protocol::Responses, "background", json!(false)),
        (Protocol::Chat, "plugins", json!([])),
        (Protocol::Generate, "generationConfig", json!({"responseModalities": ["TEXT"], "maxOutputTokens": 9})),
        (Protocol::Chat, "whatever_is_new", json!(1)),
    ] {
        assert_eq!(named(protocol, json!({ field: value })), "", "{field} {value}");
    }
}

/// Bodies of real clients, shortened: none of them is refused.
#[test]
fn real_clients_have_bounds() {
    let claude = json!({
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "system", "content": [{"type": "text", "text": "x"}]}],
        "tools": [
            {"name": "Bash", "description": "x", "input_schema": {"type": "object", "properties": {}}},
            {"name": "DeferredToolPlaceholder", "description": "x", "input_schema": {"type": "object"}, "defer_loading": true}],
        "metadata": {"user_id": "x"}, "max_tokens": 32_000, "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"}, "stream": true,
    });
    let codex = json!({
        "instructions": "x", "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]}],
        "tools": [
            {"type": "function", "name": "exec_command", "strict": false, "parameters": {"type": "object"}},
            {"type": "namespace", "name": "agents", "description": "x", "tools": [{"type": "function", "name": "spawn"}]}],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"summary": "auto"}, "store": false, "stream": true,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x", "client_metadata": {"x": "y"},
    });
    let gemini = json!({
        "contents": [{"role": "user", "parts": [{"text": "x"}]}], "systemInstruction": {"role": "user", "parts": [{"text": "x"}]},
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}],
        "generationConfig": {"temperature": 1, "topP": 0.95, "topK": 64, "thinkingConfig": {"includeThoughts": true, "thinkingBudget": 8_192}},
    });
    let goose = json!({
        "messages": [{"role": "system", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function"}]}],
        "tools": [{"type": "function", "function": {"name": "shell"}}], "stream": true, "stream_options": {"include_usage": true},
    });
    for (protocol, changes) in [
        (Protocol::Messages, claude),
        (Protocol::Responses, codex),
        (Protocol::Generate, gemini),
        (Protocol::Chat, goose),
    ] {
        assert_eq!(named(protocol, changes), "", "{protocol:?}");
    }
}
