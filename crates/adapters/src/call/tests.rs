//! Tests of whole calls: retries, fallbacks, transforms and stopping.

use std::sync::atomic::{AtomicU64, Ordering};

use actum_contract::execution::End;
use serde_json::json;

use super::*;
use crate::testing::{FakeCells, Nobody, Server, adapter, answer, json_answer, map, sandbox, soon, tool};

/// A program with parameters `a`, `text` (input) and `level` (a variable).
fn program(id: &str, change: impl FnOnce(&mut Value)) -> Adapter {
    let cli = json!({"executable": "x", "arg_mapping": {"a": "{a}"}, "stdin": "text", "env_mapping": {"level": "LEVEL", "load": "LD_PRELOAD"},
        "success_codes": [3]});
    adapter(id, "cli", &cli, change)
}

fn service(id: &str, port: u16, change: impl FnOnce(&mut Value)) -> Adapter {
    let api = json!({"base_url": format!("http://api.test:{port}"), "endpoint_mapping": {"get": "GET /x"}});
    adapter(id, "api", &api, change)
}

fn again(attempts: u64, codes: &[u64]) -> Value {
    json!({"max_attempts": attempts, "backoff_ms": 10, "retryable_codes": codes})
}

struct Calling<'a> {
    cells: FakeCells,
    http: Http,
    chain: Vec<Link<'a>>,
    tool: Entry,
    deadline: Instant,
    key: Option<&'static str>,
}

impl<'a> Calling<'a> {
    fn new(adapters: &[&'a Adapter], ends: &[(Option<End>, &str)], ports: &[u16]) -> Self {
        let hosts = [("api.test".to_owned(), "127.0.0.1".parse().unwrap())].into();
        let allow: Vec<String> = ports.iter().map(|port| format!("api.test:{port}")).collect();
        let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
        let chain = adapters.iter().map(|adapter| Link { adapter, sandbox: sandbox(&allow) }).collect();
        let http = Http::new(hosts, None).unwrap();
        Self { cells: FakeCells::new(ends), http, chain, tool: tool(), deadline: soon(), key: None }
    }

    fn call(&self, params: Value) -> Outcome {
        self.call_until(params, &|| false)
    }

    fn call_until(&self, params: Value, stop: &dyn Fn() -> bool) -> Outcome {
        let request = Request {
            execution_id: "run-1",
            chain: &self.chain,
            tool: &self.tool,
            operation: None,
            params: map(params),
            secrets: BTreeMap::from([("KEY".to_owned(), "hunter2".to_owned())]),
            stop,
            deadline: self.deadline,
            idempotency_key: self.key,
        };
        call(&request, &Hands { cells: &self.cells, http: &self.http, others: &Nobody })
    }

    fn jobs(&self) -> usize {
        self.cells.jobs.lock().unwrap().len()
    }
}

#[test]
fn every_attempt_has_the_same_key() {
    let adapter = program("A", |d| {
        d["errors"] = json!({"retry": {"max_attempts": 3, "backoff_ms": 1, "retryable_codes": [7]}});
    });
    let ends = [(Some(End::Exited(7)), ""), (Some(End::Exited(7)), ""), (Some(End::Exited(0)), "{}")];
    let mut calling = Calling::new(&[&adapter], &ends, &[]);
    calling.key = Some("run-1-call");
    assert_eq!(calling.call(json!({})).went, Went::Well);
    let jobs = calling.cells.jobs.lock().unwrap();
    assert_eq!(jobs.len(), 3);
    assert!(jobs.iter().all(|job| job.environment[KEY_VARIABLE] == "run-1-call"), "{jobs:?}");
}

#[test]
fn a_program_and_its_output() {
    let adapter = program("A", |d| {
        d["transforms"] = json!({"input": [{"type": "rename", "spec": {"word": "a"}}],
            "output": [{"type": "parse", "spec": "json"}, {"type": "extract", "spec": "$.n"}]});
    });
    let calling = Calling::new(&[&adapter], &[(Some(End::Exited(0)), "{\"n\": 4}")], &[]);
    let outcome = calling.call(json!({"word": "$(x)", "text": "in", "level": 2, "load": "evil.so"}));
    assert_eq!((outcome.went, &outcome.output, outcome.code), (Went::Well, &json!(4), Some(0)));
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("{\"n\": 4}", "told"));
    let job = calling.cells.jobs.lock().unwrap()[0].clone();
    assert_eq!((job.program, job.stdin.as_deref()), (vec!["x".to_owned(), "$(x)".to_owned()], Some(&b"in"[..])));
    assert_eq!(job.environment, BTreeMap::from([("LEVEL".to_owned(), "2".to_owned())]), "what is dangerous is gone");
    assert_eq!(job.secrets["KEY"], "hunter2");
    assert_eq!(outcome.attempts[0].evidence["stripped_environment"], json!(["LD_PRELOAD"]));
    assert!(!format!("{outcome:?}").contains("hunter2"));
}

#[test]
fn how_a_program_ended() {
    let adapter = program("A", |_| {});
    for (end, went, code) in [
        (Some(End::Exited(0)), Went::Well, Some(0)),
        (Some(End::Exited(3)), Went::Well, Some(3)),
        (Some(End::Exited(2)), Went::Wrong(Some(2)), Some(2)),
        (Some(End::OutOfMemory), Went::Wrong(Some(137)), Some(137)),
        (Some(End::TimedOut), Went::TimedOut, Some(143)),
        (Some(End::NotFound), Went::Unavailable, Some(127)),
        (None, Went::Unavailable, None),
    ] {
        let outcome = Calling::new(&[&adapter], &[(end, "")], &[]).call(json!({}));
        assert_eq!((outcome.went, outcome.code), (went, code), "{end:?}");
        assert_eq!(outcome.problem.is_some(), went != Went::Well);
    }
    let none = Calling::new(&[&adapter], &[], &[]).call(json!({}));
    assert_eq!(none.went, Went::Unavailable);
    assert!(none.problem.unwrap().message.contains("no cell is left"));
}

#[test]
fn an_interpreter_is_not_handed_a_program() {
    let shell = |extra: Value| {
        let cli = json!({"executable": "/usr/bin/python3.12", "arg_mapping": {"a": "{a}"}, "stdin": "text"});
        let adapter = adapter("A", "cli", &cli, |_| {});
        let mut calling = Calling::new(&[&adapter], &[(Some(End::Exited(0)), "")], &[]);
        let blocked = calling.call(extra.clone());
        calling.tool.scope.any_arguments = true;
        (blocked, calling.call(extra).went)
    };
    for params in
        [json!({"a": "x; rm"}), json!({"a": ["ok", "$(x)"]}), json!({"text": "a\nb"}), json!({"text": {"b": 1}})]
    {
        let (blocked, allowed) = shell(params.clone());
        let problem = blocked.problem.unwrap();
        assert_eq!((blocked.went, problem.stage), (Went::Wrong(None), Stage::Input), "{params}");
        assert!(problem.path.is_some());
        assert_eq!(allowed, Went::Well, "{params}: somebody has agreed to it");
    }
    assert_eq!(shell(json!({"a": "plain text 7"})).0.went, Went::Well);
}

#[test]
fn input_that_is_too_long() {
    let adapter = program("A", |_| {});
    let long = "ü".repeat(600_000);
    let mut calling = Calling::new(&[&adapter], &[(Some(End::Exited(0)), "")], &[]);
    let problem = calling.call(json!({"text": long})).problem.unwrap();
    assert_eq!((problem.stage, problem.path.as_deref()), (Stage::Input, Some("text")));
    calling.tool.scope.cuts_input = true;
    let outcome = calling.call(json!({"text": long}));
    assert_eq!(outcome.attempts[0].evidence["stdin_cut_from"], 1_200_000);
    assert_eq!(calling.cells.jobs.lock().unwrap()[0].stdin.as_ref().unwrap().len(), 1 << 20);
}

#[test]
fn only_codes_that_are_listed_are_tried_again() {
    let adapter = program("A", |d| d["errors"]["retry"] = again(3, &[2]));
    let of = |ends: &[(Option<End>, &str)]| {
        let calling = Calling::new(&[&adapter], ends, &[]);
        let outcome = calling.call(json!({}));
        assert_eq!(outcome.attempts.len(), calling.jobs());
        (outcome.went, calling.jobs())
    };
    let (two, one, good) = ((Some(End::Exited(2)), ""), (Some(End::Exited(1)), ""), (Some(End::Exited(0)), ""));
    assert_eq!(of(&[two, good]), (Went::Well, 2));
    assert_eq!(of(&[two, one, good]), (Went::Wrong(Some(1)), 2));
    assert_eq!(of(&[two, two, two, good]), (Went::Wrong(Some(2)), 3));
    assert_eq!(of(&[(Some(End::TimedOut), ""), good]), (Went::TimedOut, 1));
}

#[test]
fn services_that_ask_for_time() {
    let good = json_answer(&json!({"data": 5}));
    let get = |d: &mut Value| {
        d["errors"]["retry"] = again(3, &[429, 503]);
        d["transforms"]["output"] = json!([{"type": "extract", "spec": "$.data"}]);
    };
    let server = Server::answers(&[&answer(429, &[("Retry-After", "1")], "later"), &good]);
    let adapter = service("A", server.port(), get);
    let outcome = Calling::new(&[&adapter], &[], &[server.port()]).call(json!({}));
    assert_eq!((outcome.went, &outcome.output, outcome.attempts.len()), (Went::Well, &json!(5), 2));
    assert!(outcome.duration_ms >= 1_000, "{}", outcome.duration_ms);
    assert_eq!(outcome.attempts[0].output, "later");
    let server = Server::answers(&[&answer(503, &[], ""), &answer(503, &[], ""), &good]);
    let adapter = service("A", server.port(), get);
    let outcome = Calling::new(&[&adapter], &[], &[server.port()]).call(json!({}));
    assert_eq!((outcome.went, outcome.attempts.len()), (Went::Well, 3));
    let server = Server::answers(&[&answer(429, &[("Retry-After", "3600")], "much later"), &good]);
    let adapter = service("A", server.port(), get);
    let outcome = Calling::new(&[&adapter], &[], &[server.port()]).call(json!({}));
    assert_eq!((outcome.went, outcome.attempts.len()), (Went::Wrong(Some(429)), 1), "nobody waits an hour");
    let server = Server::answers(&[&answer(429, &[("Retry-After", "30")], "later"), &good]);
    let adapter = service("A", server.port(), get);
    let mut calling = Calling::new(&[&adapter], &[], &[server.port()]);
    calling.deadline = Instant::now() + Duration::from_secs(5);
    let outcome = calling.call(json!({}));
    assert_eq!((outcome.went, outcome.attempts.len()), (Went::Wrong(Some(429)), 1), "nor beyond the end of it all");
    assert!(outcome.duration_ms < 2_000);
}

#[test]
fn fallbacks_where_their_condition_holds() {
    let of = |condition: &str, end: Option<End>| {
        let first = program("A", |d| d["errors"]["fallback"] = json!({"adapter_id": "B", "condition": condition}));
        let second = program("B", |_| {});
        let calling = Calling::new(&[&first, &second], &[(end, "one"), (Some(End::Exited(0)), "two")], &[]);
        let outcome = calling.call(json!({}));
        assert_eq!(outcome.adapter_id == "B", outcome.output == "two");
        outcome.adapter_id == "B"
    };
    let ends = [Some(End::Exited(0)), Some(End::Exited(2)), Some(End::TimedOut), Some(End::NotFound), None];
    let holds = |condition: &str| ends.map(|end| of(condition, end));
    assert_eq!(holds("on_error"), [false, true, true, true, true]);
    assert_eq!(holds("on_timeout"), [false, false, true, false, false]);
    assert_eq!(holds("on_unavailable"), [false, false, false, true, true]);
    assert_eq!(holds("on_exit:2"), [false, true, false, false, false]);
}

#[test]
fn a_chain_of_kinds() {
    let server = Server::answers(&[&answer(500, &[], "broken")]);
    let to = |id: &str| json!({"adapter_id": id, "condition": "on_error"});
    let first = service("A", server.port(), |d| d["errors"]["fallback"] = to("B"));
    let mcp = json!({"server": "s", "transport": "stdio", "tool_mapping": {"get": "get"}});
    let second = adapter("B", "mcp", &mcp, |d| d["errors"]["fallback"] = to("C"));
    let sdk = json!({"language": "python", "package": "json", "function_mapping": {"get": "dumps"}});
    let third = adapter("C", "sdk", &sdk, |d| d["errors"]["fallback"] = to("D"));
    let fourth = program("D", |d| d["errors"]["fallback"] = to("E"));
    let calling = Calling::new(&[&first, &second, &third, &fourth], &[(Some(End::Exited(0)), "end")], &[server.port()]);
    let outcome = calling.call(json!({}));
    assert_eq!((outcome.went, &outcome.output), (Went::Well, &json!("end")));
    let ids: Vec<&str> = outcome.attempts.iter().map(|attempt| attempt.adapter_id.as_str()).collect();
    assert_eq!(ids, ["A", "B", "C", "D"]);
    let missing = Calling::new(&[&first, &fourth], &[(Some(End::Exited(0)), "end")], &[server.port()]);
    assert_eq!(missing.call(json!({})).adapter_id, "A", "another one than was agreed is not asked");
    assert_eq!(Calling::new(&[], &[], &[]).call(json!({})).went, Went::Unavailable);
}

#[test]
fn a_transform_that_fails_is_a_failure() {
    let first = program("A", |d| {
        d["transforms"]["output"] = json!([{"type": "parse", "spec": "json_lines"}]);
        d["errors"] = json!({"retry": again(3, &[0]), "fallback": {"adapter_id": "B"}});
    });
    let second =
        program("B", |d| d["transforms"]["input"] = json!([{"type": "validate", "spec": {"required": ["a"]}}]));
    let calling = Calling::new(&[&first], &[(Some(End::Exited(0)), "1\n{x\n")], &[]);
    let outcome = calling.call(json!({}));
    let problem = outcome.problem.unwrap();
    assert_eq!(
        (outcome.went, problem.stage, problem.path.as_deref()),
        (Went::Wrong(None), Stage::Output, Some("line 2"))
    );
    assert_eq!((calling.jobs(), &outcome.output), (1, &json!("1\n{x\n")), "what came out is still there");
    let both = Calling::new(&[&first, &second], &[(Some(End::Exited(0)), "{")], &[]);
    let outcome = both.call(json!({}));
    let problem = outcome.problem.unwrap();
    assert_eq!((outcome.adapter_id.as_str(), problem.stage, problem.path.as_deref()), ("B", Stage::Input, Some("/a")));
    assert_eq!(both.jobs(), 1, "what does not fit is not called");
}

#[test]
fn stopping() {
    let adapter = program("A", |d| {
        d["errors"] = json!({"retry": {"max_attempts": 10, "backoff_ms": 60_000, "retryable_codes": [2]},
            "fallback": {"adapter_id": "B"}});
    });
    let other = program("B", |_| {});
    let ends = [(Some(End::Exited(2)), "one"), (Some(End::Exited(0)), "two")];
    let before = Calling::new(&[&adapter, &other], &ends, &[]);
    let outcome = before.call_until(json!({}), &|| true);
    assert_eq!((outcome.is_stopped, before.jobs(), outcome.went), (true, 0, Went::Wrong(None)));
    let mut waiting = Calling::new(&[&adapter, &other], &ends, &[]);
    waiting.deadline = Instant::now() + Duration::from_secs(600);
    let begun = Instant::now();
    let asked = AtomicU64::new(0);
    let outcome = waiting.call_until(json!({}), &|| {
        asked.fetch_add(1, Ordering::Relaxed);
        begun.elapsed() > Duration::from_millis(300)
    });
    assert_eq!((outcome.is_stopped, waiting.jobs(), outcome.went), (true, 1, Went::Wrong(Some(2))));
    assert!(begun.elapsed() < Duration::from_secs(5) && asked.load(Ordering::Relaxed) > 3);
}

#[test]
fn nothing_is_begun_after_the_end() {
    let adapter = program("A", |d| d["errors"]["fallback"] = json!({"adapter_id": "B"}));
    let other = program("B", |_| {});
    let mut calling = Calling::new(&[&adapter, &other], &[(Some(End::Exited(0)), "")], &[]);
    calling.deadline = Instant::now();
    let outcome = calling.call(json!({}));
    assert_eq!((outcome.went, calling.jobs(), outcome.adapter_id.as_str()), (Went::TimedOut, 0, "A"));
    calling.deadline = Instant::now() + Duration::from_millis(500);
    calling.call(json!({}));
    assert!(calling.cells.jobs.lock().unwrap()[0].sandbox.timeout_ms <= 500, "no more time than is left");
}

#[test]
fn little_is_kept_of_what_was_followed_by_another() {
    let adapter = program("A", |d| d["errors"]["retry"] = again(2, &[2]));
    let long = "ü".repeat(500_000);
    let calling = Calling::new(&[&adapter], &[(Some(End::Exited(2)), &long), (Some(End::Exited(0)), &long)], &[]);
    let outcome = calling.call(json!({}));
    assert_eq!(outcome.stdout.len(), 1_000_000);
    assert!(outcome.attempts.iter().all(|attempt| attempt.stdout.len() <= ATTEMPT_TEXT_BYTES_MAX));
    assert_eq!(outcome.attempts[0].output, "left out: too long");
}
