//! Providers that misbehave: what the agent is told, what becomes of the money that was set aside, and that nothing is paid
//! twice or by a number nobody believes.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use actum_testkit::program::Program;
use actum_testkit::upstream::{Turn, Upstream, Usage};
use serde_json::Value;

use super::actum;
use super::bridge::WIDE;
use super::gateway::{Books, ENOUGH, cost, paid, program, repeats};
use super::gateway_protocol::{PROTOCOLS, answered, ask, question, shell};
use super::run::{id, one};

/// Asks by every protocol, whole and in pieces, and each time the provider does this.
struct Played {
    actum: Program,
    run: Value,
    books: Books,
    calls: usize,
    /// Name, status, content.
    heard: Vec<(String, u16, String)>,
}

fn play(turn: &Turn, attempts: usize, more: &str) -> Played {
    let actum = program();
    let mut lines = String::new();
    let mut names = Vec::new();
    for protocol in PROTOCOLS {
        for stream in [false, true] {
            let name = format!("{protocol}-{stream}");
            lines += &ask(&name, question(protocol, stream, &name));
            names.push(name);
        }
    }
    let upstream = Upstream::start(vec![turn.clone(); PROTOCOLS.len() * 2 * attempts]);
    shell(&actum, &lines, &upstream.url(), &format!("attempts = {attempts}\n{more}"));
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{turn:?}: {run}");
    let books = Books::of(&actum);
    books.agree();
    let heard = names.into_iter().map(|name| {
        let (status, _, body) = answered(&actum, &name);
        (name, status, body)
    });
    let heard = heard.collect();
    let calls = upstream.calls().len();
    drop(upstream.stop());
    repeats(&actum, &id(&run));
    Played { actum, run, books, calls, heard }
}

impl Played {
    /// All reservations ended like this, and all receipts say this.
    fn all(&self, state: &str, status: &str) {
        assert_eq!(self.books.states(), vec![state; 8], "{:?}", self.books.reservations);
        for receipt in &self.books.receipts {
            assert_eq!(receipt["status"], status, "{receipt}");
        }
        assert_eq!(self.actum.run(&["verify", &id(&self.run)]).code, 0);
    }

    /// Whole answers are refused with this status, in the words of their provider; streams that had begun end with an error.
    fn errors(&self, whole: u16, streams: u16) {
        for (name, status, body) in &self.heard {
            let wanted = if name.ends_with("true") { streams } else { whole };
            assert_eq!(*status, wanted, "{name}: {body}");
            let word = match name.split('-').next() {
                Some("messages") => "\"type\":\"error\"",
                Some("generate") => "\"status\":\"",
                _ => "\"message\":",
            };
            assert!(body.contains(word) && body.contains("\"error\""), "{name}: {body}");
        }
    }

    fn spent(&self) -> u64 {
        self.books.agree()
    }

    fn held(&self) -> u64 {
        self.books.reservations.iter().filter_map(|held| held["amount"].as_u64()).sum()
    }

    fn reasons(&self) -> Vec<&str> {
        self.books.receipts.iter().map(|receipt| receipt["error"]["reason_code"].as_str().unwrap_or("")).collect()
    }
}

#[test]
fn silence_is_something_to_find_out_about() {
    let played = play(&Turn::Hang, 1, "answer_ms = 300");
    // Three in a row, and it is left alone.
    let states = played.books.states();
    assert_eq!(played.calls, states.iter().filter(|state| *state == "reconcile_required").count(), "{states:?}");
    assert!(played.calls >= 3 && states.iter().all(|state| state != "committed"), "{states:?}");
    assert_eq!(played.spent(), 0);
    for (name, status, body) in &played.heard {
        assert!(*status >= 502, "{name}: {status} {body}");
    }
}

#[test]
fn half_a_stream_is_something_to_find_out_about() {
    let played = play(&Turn::HalfStream, 1, "");
    let states = played.books.states();
    // The first provider is asked by two protocols, and left alone after three.
    let unknown = states.iter().filter(|state| *state == "reconcile_required").count();
    let released = states.iter().filter(|state| *state == "released").count();
    assert_eq!((played.calls, unknown, released, played.spent()), (7, 7, 1, 0), "{states:?}");
    for (name, status, body) in &played.heard {
        let is_told = [200, 502, 503].contains(status);
        assert!(is_told && body.contains("\"error\""), "{name}: {status} {body}");
    }
}

#[test]
fn an_answer_nobody_can_read_is_something_to_find_out_about() {
    let played = play(&Turn::InvalidJson, 1, "");
    played.all("reconcile_required", "unknown");
    assert_eq!((played.calls, played.spent()), (8, 0));
}

#[test]
fn numbers_nobody_believes_cost_all_that_was_set_aside() {
    for (input, output) in [(u64::MAX, 5), (9, u64::MAX), (0, 0)] {
        let played = play(&Turn::WrongUsage { input, output }, 1, "");
        played.all("committed", "succeeded");
        assert_eq!(played.spent(), played.held(), "{input} {output}: {:?}", played.books.receipts);
        assert!(played.reasons().iter().all(|code| *code == "spend.usage_missing"), "{:?}", played.reasons());
    }
}

/// One answer of chat completions with this usage.
fn with_usage(usage: &str) -> Turn {
    let body = format!(
        "{{\"id\": \"x\", \"model\": \"stub-1\", \"choices\": [{{\"index\": 0, \"message\": {{\"role\": \"assistant\", \
         \"content\": \"hi\"}}, \"finish_reason\": \"stop\"}}], \"usage\": {usage}}}"
    );
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n");
    Turn::Raw(format!("{head}connection: close\r\n\r\n{body}").into_bytes())
}

#[test]
fn what_is_no_number_of_tokens_costs_all_that_was_set_aside() {
    let usages = [
        r#"{"prompt_tokens": -5, "completion_tokens": 3}"#,
        r#"{"prompt_tokens": 5, "completion_tokens": -3}"#,
        r#"{"prompt_tokens": 5.5, "completion_tokens": 3}"#,
        r#"{"prompt_tokens": "5", "completion_tokens": "3"}"#,
        r#"{"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}}"#,
        r#"{"prompt_tokens": 1e30, "completion_tokens": 3}"#,
        r#"{}"#,
        r#"[]"#,
        r#"7"#,
        r#"null"#,
    ];
    let actum = program();
    let ask_for = |n: usize| ask(&format!("q{n}"), question("chat", false, &format!("question {n}")));
    let lines: String = (0..usages.len()).map(ask_for).collect();
    let upstream = Upstream::start(usages.map(with_usage));
    shell(&actum, &lines, &upstream.url(), "attempts = 1");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    let books = Books::of(&actum);
    assert_eq!(books.states(), ["committed"; 10]);
    for (n, receipt) in books.receipts.iter().enumerate() {
        assert_eq!(receipt["budget"]["spent"], receipt["budget"]["reserved"], "{}: {receipt}", usages[n]);
        assert_eq!(receipt["error"]["reason_code"], "spend.usage_missing", "{}: {receipt}", usages[n]);
        assert_eq!(answered(&actum, &format!("q{n}")).0, 200);
    }
    books.agree();
    drop(upstream.stop());
    assert_eq!(repeats(&actum, &id(&run)), 0);
}

#[test]
fn what_goes_beyond_is_paid_and_said() {
    let usage = Usage::new(200_000, 3_000);
    let played = play(&Turn::WrongUsage { input: usage.input, output: usage.output }, 1, "");
    played.all("committed", "succeeded");
    assert_eq!(played.spent(), cost(usage) * 8, "a price that was asked has to be paid");
    for receipt in &played.books.receipts {
        let (spent, reserved) = (&receipt["budget"]["spent"], &receipt["budget"]["reserved"]);
        let over = spent.as_u64().unwrap() - reserved.as_u64().unwrap();
        assert_eq!(receipt["budget"]["overrun"], over, "{receipt}");
        assert_eq!(receipt["error"]["reason_code"], "spend.overrun", "{receipt}");
    }
}

#[test]
fn no_numbers_cost_all_that_was_set_aside() {
    let played = play(&Turn::NoUsage, 1, "");
    played.all("committed", "succeeded");
    assert_eq!(played.spent(), played.held());
    assert!(played.reasons().iter().all(|code| *code == "spend.usage_missing"), "{:?}", played.reasons());
    assert!(played.heard.iter().all(|(_, status, body)| *status == 200 && !body.contains("_error")));
}

#[test]
fn another_models_answer_is_paid_and_said() {
    let played = play(&Turn::OtherModel, 1, "");
    played.all("committed", "succeeded");
    assert_eq!(played.spent(), played.held(), "what has no price of its own costs all that was set aside");
    for receipt in &played.books.receipts {
        assert_eq!(receipt["model"], Turn::OTHER_MODEL, "{receipt}");
        assert!(receipt["error"]["message"].as_str().unwrap().contains("another model"), "{receipt}");
    }
}

#[test]
fn what_a_provider_refuses_costs_nothing() {
    for status in [400, 401, 404] {
        let played = play(&Turn::Status(status, None), 1, "");
        played.all("released", "failed");
        played.errors(status, status);
        assert_eq!((played.calls, played.spent()), (8, 0));
    }
}

#[test]
fn who_failed_three_times_is_left_alone() {
    let played = play(&Turn::Status(500, None), 1, "");
    played.all("released", "failed");
    // One breaker for each of the three providers: two protocols go to the first.
    assert_eq!(played.calls, 3 + 2 + 2, "{:?}", played.heard);
    let open = played.books.receipts.iter().filter(|receipt| {
        receipt["error"]["reason_code"].as_str().is_some_and(|code| code.ends_with("provider_circuit_open"))
    });
    assert_eq!((open.count(), played.spent()), (1, 0));
}

#[test]
fn who_asks_for_patience_is_asked_again_under_the_same_reservation() {
    let actum = program();
    let (mut lines, mut turns) = (String::new(), Vec::new());
    for protocol in PROTOCOLS {
        lines += &ask(protocol, question(protocol, true, protocol));
        turns.extend([Turn::Status(429, Some(0)), Turn::text("Now.")]);
    }
    let upstream = Upstream::start(turns);
    shell(&actum, &lines, &upstream.url(), "attempts = 3");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    for protocol in PROTOCOLS {
        let (status, _, body) = answered(&actum, protocol);
        assert!(status == 200 && body.contains("Now."), "{protocol}: {status} {body}");
    }
    let calls = upstream.calls();
    assert_eq!(calls.len(), 8);
    for pair in calls.chunks(2) {
        assert_eq!(pair[0].header("idempotency-key"), pair[1].header("idempotency-key"));
    }
    let books = Books::of(&actum);
    assert_eq!(books.states(), ["committed"; 4]);
    assert_eq!((books.agree(), books.tokens()), (cost(upstream.used()), upstream.used()));
    drop(upstream.stop());
    assert_eq!(repeats(&actum, &id(&run)), 0);
}

#[test]
fn who_is_not_there_costs_nothing() {
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let actum = program();
    let lines: String = PROTOCOLS.iter().map(|word| ask(word, question(word, true, word))).collect();
    shell(&actum, &lines, &format!("http://{free}"), "attempts = 1");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    for protocol in PROTOCOLS {
        let (status, kind, body) = answered(&actum, protocol);
        assert_eq!((status, kind.as_str()), (502, "application/json"), "{protocol}: {body}");
    }
    let books = Books::of(&actum);
    assert_eq!((books.agree(), books.states()), (0, vec!["released".to_owned(); 4]));
    assert_eq!(repeats(&actum, &id(&run)), 0);
}

/// A provider that takes its time in the middle: the whole has an end too.
#[test]
fn nobody_is_waited_for_longer_than_agreed() {
    let actum = program();
    let upstream = Upstream::start([Turn::Held(Box::new(Turn::text("Too late.")))]);
    shell(&actum, &ask("late", question("messages", true, "late")), &upstream.url(), "attempts = 1\ntotal_ms = 400");
    let begun = Instant::now();
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(answered(&actum, "late").0, 502);
    let books = Books::of(&actum);
    assert_eq!((books.agree(), books.states()), (0, vec!["reconcile_required".to_owned()]));
    upstream.release();
    drop(upstream.stop());
    assert_eq!(repeats(&actum, &id(&run)), 0);
}

/// A server on the same machine that wants no key is sent none; a key that is named and not there is said, and nothing is
/// asked without it.
#[test]
fn keys_are_sent_where_they_are_named_and_nowhere_else() {
    let lines: String = PROTOCOLS.iter().map(|word| ask(word, question(word, false, word))).collect();
    for named in [false, true] {
        let actum = actum();
        let upstream = Upstream::start([Turn::text("a"), Turn::text("b"), Turn::text("c"), Turn::text("d")]);
        shell(&actum, &lines, &upstream.url(), "attempts = 1");
        if !named {
            let settings = fs::read_to_string(actum.path("actum.toml")).unwrap();
            actum.file("actum.toml", settings.replace("key = \"env:REAL_KEY\"\n", ""));
        }
        let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
        assert_eq!(code, 0, "{run}");
        let books = Books::of(&actum);
        assert_eq!(books.agree(), cost(upstream.used()));
        for receipt in &books.receipts {
            let explained = actum.run(&["policy", "explain", "--json", receipt["receipt_id"].as_str().unwrap()]);
            assert_eq!((explained.code, &explained.json()["identical"]), (0, &Value::Bool(true)));
        }
        for protocol in PROTOCOLS {
            let (status, _, body) = answered(&actum, protocol);
            assert_eq!(status, if named { 502 } else { 200 }, "{protocol}: {body}");
            assert!(!named || body.contains("env:REAL_KEY"), "{protocol}: {body}");
        }
        let (state, calls) = if named { ("released", 0) } else { ("committed", 4) };
        assert_eq!((books.states(), upstream.calls().len()), (vec![state.to_owned(); 4], calls));
        for request in upstream.requests() {
            let names = ["authorization", "x-api-key", "x-goog-api-key"];
            assert!(names.iter().all(|name| request.header(name).is_none()), "{request:?}");
        }
        drop(upstream.stop());
        assert_eq!(repeats(&actum, &id(&run)), 0);
    }
}
