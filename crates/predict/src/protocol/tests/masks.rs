//! Pairs of questions as two runs of the same client ask them: equal once masked, and different from all others.

use super::*;

fn masked(protocol: Protocol, body: Value) -> String {
    read(protocol, body, false).unwrap().masked_key()
}

fn same(protocol: Protocol, one: Value, other: Value) {
    assert_ne!(
        read(protocol, one.clone(), false).unwrap().exact_key(),
        read(protocol, other.clone(), false).unwrap().exact_key()
    );
    assert_eq!(masked(protocol, one.clone()), masked(protocol, other.clone()), "{one}\n{other}");
}

fn chat(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

#[test]
fn codex_has_ids_everywhere() {
    let run = |session: &str, item: &str, call: &str| {
        let chunk = if session == "0199-a" { "160204" } else { "5201" };
        json!({
            "model": "m", "stream": true, "prompt_cache_key": session, "client_metadata": {"x-codex-installation-id": session},
            "input": [
                {"type": "message", "role": "user", "id": item, "content": [{"type": "input_text", "text": "<cwd>/work</cwd>"}]},
                {"type": "function_call", "name": "shell", "call_id": call, "id": format!("fc_{item}"), "arguments": "{\"id\":\"kept\"}"},
                {"type": "function_call_output", "call_id": call, "output": format!("Chunk ID: {chunk}\nWall time: 0.{chunk} seconds\nok")},
            ],
        })
    };
    let one = run("0199-a", "msg_1", "call_A");
    same(Protocol::Responses, one.clone(), run("0199-b", "msg_2", "call_B"));
    // Which answer belongs to which call is not masked away.
    let mut crossed = run("0199-a", "msg_1", "call_A");
    crossed["input"][2]["call_id"] = json!("msg_1");
    assert_ne!(masked(Protocol::Responses, one), masked(Protocol::Responses, crossed));
}

#[test]
fn claude_has_a_session_and_commits() {
    let run = |user: &str, commit: &str, day: &str, tool: &str| {
        json!({
            "model": "m", "max_tokens": 100, "metadata": {"user_id": user},
            "system": [{"type": "text", "text": format!("Today's date is {day}.\nRecent commits:\n{commit} first\nHead {commit}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")}],
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": tool, "name": "Bash", "input": {"id": "x", "command": "ls"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": tool, "content": "a"}]},
            ],
        })
    };
    let one = run("user_1_session_9", "1a2b3c4", "2026-11-16", "toolu_01");
    same(Protocol::Messages, one.clone(), run("user_2_session_8", "9f8e7d6", "2026-11-17", "toolu_02"));
    let mut other = one.clone();
    other["messages"][0]["content"][0]["input"]["id"] = json!("y");
    assert_ne!(masked(Protocol::Messages, one), masked(Protocol::Messages, other), "what a tool is given is not ours");
}

#[test]
fn gemini_has_calls_and_a_process_group() {
    let run = |id: &str, group: &str, day: &str| {
        json!({"contents": [
            {"role": "user", "parts": [{"text": format!("Today's date is {day} (formatted according to the user's locale).")}]},
            {"role": "model", "parts": [{"functionCall": {"id": id, "name": "run_shell_command", "args": {"command": "ls"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": id, "name": "run_shell_command",
                "response": {"output": format!("Output: ok\nProcess Group PGID: {group}")}}}]},
        ]})
    };
    same(
        Protocol::Generate,
        run("run_shell_command-1763256000000-ab12", "4711", "Monday, November 16, 2026"),
        run("run_shell_command-1763256000999-ff00", "90", "Tuesday, December 1, 2026"),
    );
}

#[test]
fn goose_has_a_clock_to_the_minute() {
    let text = |time: &str, folder: &str| {
        chat(&format!(
            "It is currently {time}. cwd: /tmp/{folder}/work session 0f8fad5b-d9cb-469f-a165-70867728950{}",
            folder.len() % 10
        ))
    };
    same(Protocol::Chat, text("2026-11-16 01:37", "tmp.Ab12Cd"), text("2026-12-01 23:59", "tmp.Zz99Yyyy"));
}

#[test]
fn times_are_masked_in_all_their_forms() {
    let plain = masked(Protocol::Chat, chat("at 2026-11-16 it was"));
    for time in [
        "2026-11-16T01:37:20Z",
        "2026-11-16T01:37:20.123456+02:00",
        "2026/11/16",
        "2026-01-01 09:05:01 UTC",
        "11/16/2026",
        "Nov 16, 2026",
        "16 November 2026",
        "Mon Nov 16 01:37:42 UTC 2026",
        "Monday, November 16th, 2026",
        "01:37",
        "1:37 PM",
        "01:37:42,123",
        "1763256000",
        "1763256000000",
    ] {
        let found = masked(Protocol::Chat, chat(&format!("at {time} it was")));
        assert_eq!(found, plain, "{time}");
    }
}

#[test]
fn what_means_something_stays() {
    let pairs = [
        ("fix src/main.rs:10:20", "fix src/main.rs:10:21"),
        ("version 1.10:20", "version 1.10:21"),
        ("open /tmp/build now", "open /tmp/notes now"),
        ("defaced word", "facaded word"),
        ("1234567 apples", "7654321 apples"),
        ("number 12345", "number 12346"),
        ("May I go", "Jun I go"),
        ("sha 17632560001234567", "sha 17632560001234568"),
        ("port 127.0.0.1:8080", "port 127.0.0.1:8081"),
    ];
    for (one, other) in pairs {
        assert_ne!(masked(Protocol::Chat, chat(one)), masked(Protocol::Chat, chat(other)), "{one} / {other}");
    }
}

#[test]
fn ids_are_told_apart_by_where_they_come_again() {
    let [a, b] = ["0f8fad5b-d9cb-469f-a165-708677289501", "7c9e6679-7425-40de-944b-e07fc1f90ae7"];
    let key = |text: String| masked(Protocol::Chat, chat(&text));
    assert_eq!(key(format!("{a} {b} {a}")), key(format!("{b} {a} {b}")));
    assert_ne!(key(format!("{a} {b} {a}")), key(format!("{a} {b} {b}")));
    assert_eq!(key(format!("commit {}", "ab12".repeat(10))), key(format!("commit {}", "cd34".repeat(10))));
    assert_ne!(
        key(format!("sum {}", "ab12".repeat(16))),
        key(format!("sum {}", "cd34".repeat(16))),
        "a checksum is no commit"
    );
}

#[test]
fn any_text_can_be_masked() {
    for text in [
        "",
        "é1763256000é",
        "/tmp/",
        "‹time›",
        "🦀12:30🦀",
        "2026-99-99",
        "1:1:1:1:1",
        &"1:".repeat(10_000),
        &"a1".repeat(10_000),
    ] {
        assert_eq!(masked(Protocol::Chat, chat(text)).len(), 64);
    }
}

#[test]
fn a_kind_is_a_model_and_its_tools() {
    let kind = |body: Value| read(Protocol::Chat, body, false).unwrap().kind_key();
    let with = |text: &str, tools: Value| {
        let mut body = chat(text);
        body["tools"] = tools;
        body
    };
    let tools = json!([{"type": "function", "function": {"name": "write"}}]);
    assert_eq!(kind(with("a", tools.clone())), kind(with("b", tools.clone())));
    assert_ne!(kind(with("a", tools.clone())), kind(chat("a")));
    let mut other = chat("a");
    other["model"] = json!("n");
    assert_ne!(kind(chat("a")), kind(other));
    let has = |body: Value| read(Protocol::Chat, body, false).unwrap().has_tools();
    assert!(has(with("a", tools)) && !has(with("a", json!([]))) && !has(with("a", Value::Null)) && !has(chat("a")));
}
