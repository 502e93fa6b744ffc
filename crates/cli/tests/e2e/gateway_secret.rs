//! The provider's key: an upstream that says it back in every way it can, and an agent that looks for it everywhere. It is
//! found neither in the cell nor on disk; and the key an agent has is good for its own run only.

use std::fs;
use std::path::Path;

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::bridge::{WIDE, out};
use super::gateway::{Books, ENOUGH, KEY, paid, program, repeats};
use super::gateway_protocol::{PROTOCOLS, answered, ask, question, shell};
use super::run::{id, one};

/// An answer as it goes over the wire, cut where two pieces begin.
fn raw(status: &str, kind: &str, body: &str) -> Turn {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nx-echo: Bearer {KEY}\r\n");
    Turn::Raw(format!("{head}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()).into_bytes())
}

/// The key as a stream's pieces: each event has one letter of it less than the one before, the rest in the next.
fn split_stream() -> Vec<Turn> {
    let chunk = |text: &str| {
        let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
        format!("data: {}\n\n", json!({"id": "x", "model": "stub-1", "choices": [choice]}))
    };
    let end = format!(
        "data: {}\n\ndata: [DONE]\n\n",
        json!({"id": "x", "model": "stub-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
               "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    );
    // Whole in one event, and the bytes of the event in pieces of a few bytes each.
    let body = format!("{}{}{end}", chunk("The key is "), chunk(KEY));
    let pieces: String = body.as_bytes().chunks(5).fold(String::new(), |all, piece| {
        format!("{all}{:x}\r\n{}\r\n", piece.len(), std::str::from_utf8(piece).unwrap())
    });
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close";
    vec![Turn::Raw(format!("{head}\r\n\r\n{pieces}0\r\n\r\n").into_bytes())]
}

fn echo() -> Vec<Turn> {
    let (first, second) = KEY.split_at(9);
    let mut turns = Vec::new();
    for _ in PROTOCOLS {
        turns.push(Turn::text(format!("You sent Authorization: Bearer {KEY}, did you not? {KEY}{KEY}")));
        turns.push(Turn::text(format!("Pieces: {first} and {second}. In a stream of pieces: {KEY}, is it not?")));
    }
    let error = json!({"error": {"message": format!("Incorrect API key provided: {KEY}."), "type": "x", "code": null}});
    turns.push(raw("401 Unauthorized", "application/json", &error.to_string()));
    turns.push(raw("418 Teapot", &format!("text/plain; echo={KEY}"), KEY));
    turns.push(raw("200 OK", "application/json", &format!("{{\"{KEY}\": \"{KEY}")));
    turns.extend(split_stream());
    turns
}

/// All files below, as their bytes are; those of the store of contents also as they were put in.
fn holds(folder: &Path, needle: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            holds(&path, needle, found);
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            if bytes.windows(needle.len()).any(|window| window == needle) {
                found.push(path.display().to_string());
            }
        }
    }
}

/// Nowhere on disk, nor in anything we tell.
fn is_nowhere(actum: &Program, runs: &[String]) {
    let mut found = Vec::new();
    holds(actum.folder(), KEY.as_bytes(), &mut found);
    // Text in other clothes.
    for other in [hex(KEY), KEY.chars().rev().collect()] {
        holds(actum.folder(), other.as_bytes(), &mut found);
    }
    assert!(found.is_empty(), "{found:?}");
    let mut told = vec![actum.run(&["trace", "list", "--json"]), actum.run(&["spend", "reservations", "--json"])];
    for receipt in Books::of(actum).receipts {
        // With all its parts, which are compressed on disk.
        told.push(actum.run(&["trace", "show", receipt["receipt_id"].as_str().unwrap(), "--json"]));
    }
    for run in runs {
        told.extend([&["logs", run][..], &["status", run, "--json"], &["diff", run]].map(|words| actum.run(words)));
    }
    told.push(actum.run(&["ledger", "export"]));
    for one in &told {
        assert!(!one.stdout.contains(KEY) && !one.stderr.contains(KEY), "{}", one.stdout);
    }
    assert!(told.iter().filter(|one| one.stdout.contains("[REDACTED]")).count() > 3, "it was there to be taken out");
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_providers_key_is_nowhere() {
    let actum = program();
    let mut lines = String::new();
    for protocol in PROTOCOLS {
        for stream in [false, true] {
            let name = format!("{protocol}-{stream}");
            // Long enough for its parts to be kept apart.
            let words = format!("Tell me the API key you were sent, {name}. {}", "Please. ".repeat(2_000));
            lines += &ask(&name, question(protocol, stream, &words));
        }
    }
    for (name, stream) in [("refused", false), ("odd", false), ("half", false), ("split", true)] {
        lines += &ask(name, question("chat", stream, name));
    }
    // Where a program looks for secrets.
    lines += "env > out/env; cat /proc/*/environ > out/environ 2> /dev/null; cat /proc/*/cmdline > out/cmdline 2> /dev/null\n\
              ls -aR /run /home > out/files 2> /dev/null\n\
              grep -q sk-rea[l] out/env out/environ out/cmdline out/files && echo seen > out/seen; rm out/env out/environ out/cmdline out/files\n";
    let upstream = Upstream::start(echo());
    shell(&actum, &lines, &upstream.url(), "attempts = 1");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    assert_eq!(upstream.calls().len(), 12);
    assert!(!actum.path("out/seen").exists(), "the agent has seen it");
    for protocol in PROTOCOLS {
        for stream in [false, true] {
            let (status, _, body) = answered(&actum, &format!("{protocol}-{stream}"));
            assert_eq!(status, 200, "{protocol} {stream}: {body}");
            // Where each piece has a part of it, nothing is left but to break off.
            let wanted = if stream { "held a key of the provider" } else { "[REDACTED]" };
            let has_part = stream && body.matches(&KEY[..8]).count() > 1;
            assert!(body.contains(wanted) && !has_part, "{protocol} {stream}: {body}");
        }
    }
    assert_eq!(answered(&actum, "refused").0, 401);
    assert!(answered(&actum, "refused").2.contains("Incorrect API key provided: [REDACTED]"));
    assert!(answered(&actum, "split").2.contains("[REDACTED]"), "{}", answered(&actum, "split").2);
    let books = Books::of(&actum);
    books.agree();
    drop(upstream.stop());
    is_nowhere(&actum, &[id(&run)]);
    repeats(&actum, &id(&run));
    is_nowhere(&actum, &[id(&run)]);
}

/// Two runs have two keys, and one is refused where the other is right.
#[test]
fn the_key_of_one_run_is_useless_in_another() {
    let actum = program();
    let upstream = Upstream::start([Turn::text("one"), Turn::text("two")]);
    let lines = "test -e key && K=$(cat key)\n".to_owned()
        + &ask("told", question("chat", false, "who am I?"))
        + "K=$OPENAI_API_KEY\n"
        + &ask("own", question("chat", false, "and now?"))
        + "test \"$OPENAI_API_KEY$OPENAI_API_KEY\" = \"$ANTHROPIC_API_KEY$GEMINI_API_KEY\" && printf %s \"$K\" > key\n";
    shell(&actum, &lines, &upstream.url(), "");
    let first = one(&actum, paid(ENOUGH), &WIDE);
    let key = fs::read_to_string(actum.path("key")).unwrap_or_else(|e| panic!("{e}: {first:?}"));
    assert!(key.starts_with("actum-") && key.len() == 38, "{key}");
    assert_eq!(answered(&actum, "told").0, 200);
    let mut item: Value = paid(ENOUGH);
    item["id"] = json!("j");
    let (code, run) = one(&actum, item, &WIDE);
    assert_eq!(code, 0, "{run}");
    assert_eq!((answered(&actum, "told").0, answered(&actum, "own").0), (401, 200));
    assert_ne!(out(&actum, "own"), "");
    assert_ne!(fs::read_to_string(actum.path("key")).unwrap(), key);
}

/// One question, nested as deep as it may be, and deeper, leaves a ledger that can be read.
#[test]
fn no_question_makes_the_ledger_unreadable() {
    let actum = program();
    let script = Script::default().turn(Turn::text("Deep."), Usage::new(5, 5));
    let upstream = Upstream::start(script);
    let deep = |levels: usize| {
        let nested = (0..levels).fold(json!(1), |inner, _| json!([inner]));
        let messages = json!([{"role": "user", "content": format!("{levels} levels")}]);
        let body = json!({"model": "stub-1", "max_tokens": 5, "metadata": nested, "messages": messages});
        ("/v1/chat/completions".to_owned(), body)
    };
    let lines: String = [30, 60, 100, 124, 126].iter().map(|n| ask(&format!("deep-{n}"), deep(*n))).collect();
    shell(&actum, &lines, &upstream.url(), "");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    let books = Books::of(&actum);
    assert!(books.receipts.len() >= 2, "{:?}", books.receipts);
    books.agree();
    for words in [&["ledger", "verify"][..], &["ledger", "list"], &["store", "check"], &["store", "rebuild"]] {
        actum.run(words).ok();
    }
    for receipt in &books.receipts {
        actum.run(&["trace", "show", receipt["receipt_id"].as_str().unwrap()]).ok();
    }
}
