//! MCP servers that mean harm, or do not work.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use actum_adapters::mcp::{McpLink, Servers};
use actum_adapters::{Attempt, Job, Problem, Stage};
use actum_contract::tool::{Mcp, Server, Transport, Went};
use serde_json::{Map, Value, json};

use super::bare::{Bare, job};

struct Odd {
    job: Job,
    mcp: Mcp,
    server: Server,
    cells: Bare,
    pool: Servers,
}

impl Odd {
    fn new(way: &str) -> Self {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/adapters/servers/odd.py");
        let program = ["python3", script.to_str().unwrap(), way];
        let tools = ["say", "shout", "gone"].map(|name| (name.to_owned(), name.to_owned()));
        Self {
            job: job(&program),
            mcp: Mcp { server: "odd".into(), transport: Transport::Stdio, tools: BTreeMap::from(tools) },
            server: Server::Command(program.iter().map(|word| (*word).to_owned()).collect()),
            cells: Bare::default(),
            pool: Servers::new(),
        }
    }

    fn link(&self) -> McpLink<'_> {
        McpLink {
            adapter_id: "odd",
            mcp: &self.mcp,
            server: &self.server,
            key: "odd",
            job: &self.job,
            http: None,
            idempotency_key: None,
        }
    }

    fn call(&self, operation: &str, text: &str, limit_ms: u64) -> Attempt {
        let limit = Duration::from_millis(limit_ms);
        self.pool.attempt(&self.cells, &self.link(), operation, said(text), limit, &|| false)
    }

    fn say(&self, text: &str) -> Attempt {
        self.call("say", text, 20_000)
    }
}

fn said(text: &str) -> Map<String, Value> {
    json!({"text": text}).as_object().unwrap().clone()
}

fn problem(attempt: &Attempt) -> &Problem {
    attempt.problem.as_ref().unwrap_or_else(|| panic!("no problem: {attempt:?}"))
}

fn text(attempt: &Attempt) -> &str {
    attempt.output["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {attempt:?}"))
}

/// What this process holds, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_server_is_started_once_and_told_apart_by_its_key() {
    let odd = Odd::new("plain");
    for n in 1..=3 {
        let attempt = odd.say("hello");
        assert_eq!((attempt.went, text(&attempt)), (Went::Well, format!("hello {n}").as_str()), "{attempt:?}");
    }
    assert_eq!(odd.cells.started.load(Ordering::SeqCst), 1);
    let evidence = odd.say("x").evidence;
    assert_eq!(evidence["server"], json!({"name": "odd", "version": "1.2.3"}));
    assert_eq!(
        (&evidence["protocol"], &evidence["transport"], &evidence["tools_listed"], &evidence["restarts"]),
        (&json!("2025-11-25"), &json!("stdio"), &json!(1), &json!(0))
    );
    let other = McpLink { key: "other", ..odd.link() };
    let limit = Duration::from_secs(20);
    let attempt = odd.pool.attempt(&odd.cells, &other, "say", said("hello"), limit, &|| false);
    assert_eq!(text(&attempt), "hello 1");
    assert_eq!((odd.cells.started.load(Ordering::SeqCst), odd.cells.alive()), (2, 2));
    odd.pool.close();
    assert_eq!(odd.cells.alive(), 0, "servers outlive the pool");
    assert_eq!(odd.say("x").went, Went::Unavailable);
}

#[test]
fn several_threads_share_a_server() {
    let odd = Odd::new("plain");
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| (0..20).map(|_| odd.say("x").went).collect::<Vec<_>>())).collect();
        for thread in threads {
            assert!(thread.join().unwrap().iter().all(|went| *went == Went::Well));
        }
    });
    assert_eq!(odd.cells.started.load(Ordering::SeqCst), 1);
    assert_eq!(text(&odd.say("x")), "x 161");
}

#[test]
fn dropping_the_pool_ends_servers_that_hang() {
    let Odd { job, mcp, server, cells, pool } = Odd::new("hang");
    let link = McpLink {
        adapter_id: "odd",
        mcp: &mcp,
        server: &server,
        key: "odd",
        job: &job,
        http: None,
        idempotency_key: None,
    };
    pool.list(&cells, &link, Duration::from_secs(20), &|| false).unwrap();
    let attempt = pool.attempt(&cells, &link, "say", said("x"), Duration::from_millis(600), &|| false);
    assert_eq!(attempt.went, Went::TimedOut);
    drop(pool);
    assert_eq!(cells.alive(), 0);
}

#[test]
fn arguments_are_checked_before_the_call() {
    let odd = Odd::new("plain");
    let params = json!({"text": 7, "other": 1}).as_object().unwrap().clone();
    let attempt = odd.pool.attempt(&odd.cells, &odd.link(), "say", params, Duration::from_secs(20), &|| false);
    assert_eq!(attempt.went, Went::Wrong(None));
    let found = problem(&attempt);
    assert_eq!((found.stage, found.path.as_deref()), (Stage::Input, Some("/text")), "{found:?}");
    assert!(found.message.contains("inputSchema"), "{found:?}");
    assert_eq!(text(&odd.say("x")), "x 1", "the bad call reached the server");
    let attempt = odd.call("gone", "x", 20_000);
    assert!(problem(&attempt).message.contains("no tool \"gone\"; its tools: say"), "{attempt:?}");
    let attempt = odd.call("unmapped", "x", 20_000);
    assert!(problem(&attempt).message.contains("there are: gone, say, shout"), "{attempt:?}");
}

#[test]
fn lies_about_schemas_are_found() {
    for way in ["lie-schema", "lie-ref", "lie-file"] {
        let attempt = Odd::new(way).say("x");
        assert_eq!(attempt.went, Went::Wrong(None), "{way}: {attempt:?}");
        assert!(problem(&attempt).message.contains("no JSON Schema that stands by itself"), "{way}: {attempt:?}");
    }
    for way in ["lie-output", "no-output"] {
        let attempt = Odd::new(way).say("x");
        assert_eq!((attempt.went, problem(&attempt).stage), (Went::Wrong(None), Stage::Output), "{way}: {attempt:?}");
        assert!(problem(&attempt).message.contains("outputSchema"), "{way}: {attempt:?}");
    }
    let begun = Instant::now();
    let attempt = Odd::new("lie-pattern").say(&format!("{}b", "a".repeat(5_000)));
    assert_eq!(attempt.went, Went::Wrong(None), "{attempt:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "a pattern took {:?}", begun.elapsed());
}

#[test]
fn lists_are_bounded() {
    for (way, says) in [
        ("many-tools", "more than 1000 tools"),
        ("long-tools", "longer than 4194304 bytes"),
        ("endless-list", "more than 1000 pages"),
        ("no-schema", "not one of the protocol"),
    ] {
        let attempt = Odd::new(way).say("x");
        assert_eq!(attempt.went, Went::Wrong(None), "{way}: {attempt:?}");
        assert!(problem(&attempt).message.contains(says), "{way}: {attempt:?}");
    }
    let odd = Odd::new("pages");
    assert_eq!(odd.say("x").evidence["tools_listed"], 5);
    let listed = odd.pool.list(&odd.cells, &odd.link(), Duration::from_secs(20), &|| false).unwrap();
    assert_eq!(listed.len(), 5);
    assert_eq!(listed[4]["inputSchema"]["required"], json!(["text"]));
}

#[test]
fn a_changed_list_is_read_again() {
    let odd = Odd::new("changes");
    assert!(problem(&odd.call("shout", "x", 20_000)).message.contains("no tool"));
    assert_eq!(odd.say("x").went, Went::Well);
    assert_eq!(odd.call("shout", "x", 20_000).went, Went::Well);
}

#[test]
fn floods_do_not_grow_us() {
    let before = memory();
    let odd = Odd::new("flood-line");
    let attempt = odd.say("x");
    assert_eq!(attempt.went, Went::Unavailable, "{:?}", attempt.problem);
    assert!(problem(&attempt).message.contains("more than 8388608 bytes"), "{attempt:?}");
    let attempt = Odd::new("dense").say("x");
    assert!(problem(&attempt).message.contains("more than 500000 values"), "{:?}", attempt.problem);
    let odd = Odd::new("flood-notifications");
    let attempt = odd.say("x");
    assert_eq!((attempt.went, text(&attempt)), (Went::Well, "done"), "{:?}", attempt.problem);
    assert_eq!(attempt.evidence["notifications"], 300_000);
    let odd = Odd::new("flood-for-ever");
    let attempt = odd.say("x");
    assert!(problem(&attempt).message.contains("without being asked"), "{:?}", attempt.problem);
    let odd = Odd::new("endless-garbage");
    let attempt = odd.say("x");
    assert_eq!(attempt.went, Went::Unavailable, "{:?}", attempt.problem);
    let odd = Odd::new("flood-requests");
    let attempt = odd.call("say", "x", 5_000);
    assert!(problem(&attempt).message.contains("without taking the answers"), "{:?}", attempt.problem);
    // Other tests run at the same time; a flood that is kept is ten times this.
    let grown = memory().saturating_sub(before);
    assert!(grown < 150 * 1024 * 1024, "grown by {grown} bytes");
}

#[test]
fn garbage_before_the_greeting_is_passed_over() {
    let odd = Odd::new("garbage");
    assert_eq!(text(&odd.say("hello")), "hello 1");
    let attempt = Odd::new("odd-greeting").say("x");
    assert_eq!(attempt.went, Went::Unavailable);
    assert!(problem(&attempt).message.contains("not one of the protocol"), "{attempt:?}");
    let attempt = Odd::new("odd-result").say("x");
    assert_eq!(attempt.went, Went::Wrong(None), "{attempt:?}");
    assert_eq!(text(&Odd::new("wrong-id").say("mine")), "mine");
}

#[test]
fn a_server_that_never_introduces_itself_is_given_up() {
    let odd = Odd::new("mute");
    let begun = Instant::now();
    let attempt = odd.call("say", "x", 700);
    assert_eq!(attempt.went, Went::Unavailable);
    assert!(problem(&attempt).message.contains("did not introduce itself within 700 ms"), "{attempt:?}");
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(odd.cells.alive(), 0);
}

#[test]
fn a_server_that_dies_is_started_again_a_few_times() {
    let odd = Odd::new("dies");
    for n in 0..4 {
        let attempt = odd.say("x");
        assert_eq!((attempt.went, &attempt.evidence["restarts"]), (Went::Well, &json!(n)), "{attempt:?}");
        let attempt = odd.say("die");
        assert_eq!((attempt.went, attempt.code), (Went::Unavailable, Some(7)), "{attempt:?}");
        assert!(problem(&attempt).message.contains("ended with exit code 7"), "{attempt:?}");
        assert!(attempt.stderr.ends_with("the disk is on fire\n") && attempt.stderr.len() == 2_000);
    }
    let attempt = odd.say("x");
    assert_eq!(attempt.went, Went::Unavailable);
    let message = &problem(&attempt).message;
    assert!(message.contains("started 4 times") && message.contains("on fire"), "{message}");
    assert_eq!(odd.cells.started.load(Ordering::SeqCst), 4);

    let attempt = Odd::new("dies-at-once").say("x");
    assert_eq!((attempt.went, attempt.code), (Went::Unavailable, Some(3)));
    assert!(problem(&attempt).message.contains("no licence"), "{attempt:?}");
    let attempt = Odd::new("dies-after-greeting").say("x");
    assert_eq!((attempt.went, attempt.code), (Went::Unavailable, Some(4)), "{attempt:?}");
    let attempt = Odd::new("half").say("x");
    assert_eq!(attempt.went, Went::Unavailable, "{attempt:?}");
    let mut odd = Odd::new("plain");
    odd.job.program[0] = "/nonexistent/server".into();
    assert_eq!(odd.say("x").went, Went::Unavailable);
}

#[test]
fn a_call_that_takes_too_long_is_cancelled() {
    let odd = Odd::new("slow");
    assert_eq!(odd.say("x").went, Went::Well);
    let attempt = odd.call("say", "slow", 300);
    assert_eq!(attempt.went, Went::TimedOut);
    assert!(problem(&attempt).message.contains("within 300 ms"), "{attempt:?}");
    assert_eq!(attempt.evidence["is_closed"], false, "the server is alive: {attempt:?}");
    assert_eq!((text(&odd.say("x")), odd.cells.started.load(Ordering::SeqCst)), ("1 cancelled", 1));

    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let attempt = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::SeqCst);
        });
        let limit = Duration::from_secs(60);
        odd.pool.attempt(&odd.cells, &odd.link(), "say", said("slow"), limit, &|| stop.load(Ordering::SeqCst))
    });
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(attempt.went, Went::TimedOut);
    assert!(problem(&attempt).message.starts_with("cancelled"), "{attempt:?}");
    assert_eq!(text(&odd.say("x")), "2 cancelled");

    let odd = Odd::new("hang");
    // Started before the clock is: a busy machine takes its time for that.
    odd.pool.list(&odd.cells, &odd.link(), Duration::from_secs(20), &|| false).unwrap();
    let attempt = odd.call("say", "x", 500);
    assert_eq!((attempt.went, &attempt.evidence["is_closed"]), (Went::TimedOut, &json!(true)), "{attempt:?}");
    assert_eq!(odd.cells.alive(), 0);
}

#[test]
fn what_a_server_asks_of_us_is_refused() {
    let odd = Odd::new("asks");
    let attempt = odd.say("x");
    let answers: Value = serde_json::from_str(text(&attempt)).unwrap();
    assert_eq!(answers, json!({"a": "error", "b": "error", "c": "error", "d": "error"}));
    assert_eq!(attempt.evidence["requests_refused"], 4);
}

#[test]
fn a_tool_that_fails_says_why() {
    let attempt = Odd::new("fails").say("x");
    assert_eq!((attempt.went, problem(&attempt).message.as_str()), (Went::Wrong(None), "the well is dry"));
    assert_eq!(attempt.output["isError"], true);
    let attempt = Odd::new("errs").say("x");
    assert_eq!(attempt.went, Went::Wrong(None));
    assert!(problem(&attempt).message.contains("not today"));
    assert_eq!(attempt.evidence["error_code"], -32_000);
}

#[test]
fn a_server_of_the_newest_revision_is_understood() {
    let odd = Odd::new("modern");
    let attempt = odd.say("hello");
    assert_eq!((attempt.went, text(&attempt)), (Went::Well, "hello 1"), "{attempt:?}");
    assert_eq!((&attempt.evidence["protocol"], &attempt.evidence["restarts"]), (&json!("2026-07-28"), &json!(0)));
}

#[test]
fn websocket_and_mismatches_are_refused() {
    let mut odd = Odd::new("plain");
    odd.mcp.transport = Transport::Websocket;
    assert!(problem(&odd.say("x")).message.contains("websocket is not supported"));
    odd.mcp.transport = Transport::Http;
    assert!(problem(&odd.say("x")).message.contains("has a command and no address"));
    odd.server = Server::Url("http://127.0.0.1:9/".into());
    assert!(problem(&odd.say("x")).message.contains("not granted"));
    odd.mcp.transport = Transport::Stdio;
    assert!(problem(&odd.say("x")).message.contains("has an address and no command"));
    assert_eq!(odd.cells.started.load(Ordering::SeqCst), 0);
}

#[test]
fn a_pool_keeps_a_bounded_number_of_servers() {
    let odd = Odd::new("plain");
    let peak = AtomicU64::new(0);
    for n in 0..40 {
        let key = format!("key {n}");
        let link = McpLink { key: &key, ..odd.link() };
        let attempt = odd.pool.attempt(&odd.cells, &link, "say", said("x"), Duration::from_secs(20), &|| false);
        assert_eq!(attempt.went, Went::Well, "{attempt:?}");
        peak.fetch_max(odd.cells.alive() as u64, Ordering::SeqCst);
    }
    assert_eq!(peak.load(Ordering::SeqCst), 32);
}
