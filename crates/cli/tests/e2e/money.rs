//! Money under a crowd: many clients at one gateway with one budget, and a provider that does its worst. Whatever happens,
//! what is spent and set aside never exceeds the limit, nothing is paid twice, and receipts and money agree.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::scope;
use std::time::Duration;

use actum_testkit::dice::Dice;
use actum_testkit::postgres::shared_url;
use actum_testkit::program::{Program, Running};
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::predict::{KEY, assert_nothing_holds};
use super::run::asked;

const CLIENTS: usize = 16;
const CALLS_EACH: usize = 12;
/// Longer than anything here takes, so that a hang becomes a failure.
const LONG: Duration = Duration::from_secs(60);

/// A gateway under way: where it is, and its key.
pub(crate) struct Gateway {
    running: Running,
    pub address: String,
    pub key: String,
    pub run: String,
}

impl Gateway {
    pub(crate) fn start(actum: &Program, more: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut running = actum.start(&[&["gateway", "--json"], more].concat(), environment);
        let line = running.line().expect("the gateway says where it is");
        let told: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| told[name].as_str().unwrap().to_owned();
        Self { running, address: text("listen"), key: text("key"), run: text("run_id") }
    }

    pub(crate) fn end(self) {
        self.running.signal("TERM");
        let (code, _, errors) = self.running.finish();
        assert_eq!(code, 0, "{errors:?}");
    }

    /// Asks for one chat completion; the status and the body, or nothing if the connection broke.
    pub(crate) fn chat(&self, body: &Value) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        let (text, host, key) = (body.to_string(), &self.address, &self.key);
        let head = format!("POST /v1/chat/completions HTTP/1.0\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{text}", text.len()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }
}

pub(crate) fn question(text: &str, output: u64) -> Value {
    json!({"model": "stub-1", "max_tokens": output, "messages": [{"role": "user", "content": text}]})
}

fn settings(upstream: &Upstream) -> String {
    format!(
        "[providers.stub]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nkey = \"env:STUB_KEY\"\nmodels = [\"stub-1\"]\n\
         answer_ms = 400\nidle_ms = 400\nattempts = 1\n[prices.stub-1]\ninput = 1000000\noutput = 2000000\n",
        upstream.url()
    )
}

/// Turns as they come in the world: mostly well.
fn weather(dice: &mut Dice) -> Script {
    let mut script = Script::default();
    for _ in 0..CLIENTS * CALLS_EACH {
        let usage = Usage::new(dice.roll(40) + 1, dice.roll(20) + 1);
        let turn = match dice.roll(20) {
            0 => Turn::HalfStream,
            1 => Turn::InvalidJson,
            2 => Turn::Status(500, None),
            3 => Turn::Status(429, None),
            4 => Turn::NoUsage,
            5 => Turn::Hang,
            _ => Turn::text("well"),
        };
        script = script.turn(turn, usage);
    }
    script
}

/// The sums of a store: by authorizations, by reservations, by receipts and reconciliations.
pub(crate) fn assert_money_agrees(actum: &Program, id: &str) -> (u64, u64) {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number"));
    let all = asked(actum, &["spend", "list", "--json"])["authorizations"].clone();
    let one = all.as_array().unwrap().iter().find(|one| one["authorization_id"] == id).unwrap().clone();
    let filter = ["spend", "reservations", "--authorization", id, "--limit", "10000", "--json"];
    let reservations = asked(actum, &filter)["reservations"].clone();
    let (mut spent, mut held) = (0, 0);
    for reservation in reservations.as_array().unwrap() {
        match reservation["state"].as_str().unwrap() {
            "committed" => spent += number(&reservation["committed"]),
            "released" => {}
            _ => held += number(&reservation["amount"]),
        }
    }
    assert_eq!((number(&one["spent"]), number(&one["reserved"])), (spent, held), "{one}");
    let receipts = asked(actum, &["trace", "list", "--limit", "10000", "--json"])["receipts"].clone();
    let of = |receipt: &&Value| receipt["kind"] == "call" && receipt["policy"]["authorization_id"] == id;
    let by_receipts: u64 =
        receipts.as_array().unwrap().iter().filter(of).map(|one| number(&one["budget"]["spent"])).sum();
    let reconciled = |reservation: &&Value| reservation["reconciled"] == true && reservation["state"] == "committed";
    let by_people: u64 =
        reservations.as_array().unwrap().iter().filter(reconciled).map(|one| number(&one["committed"])).sum();
    assert_eq!(by_receipts + by_people, spent, "receipts and money disagree");
    (spent, held)
}

fn crowd(actum: &Program, seed: u64) {
    let mut dice = Dice::new(seed);
    let upstream = Upstream::start(weather(&mut dice));
    actum.file("actum.toml", settings(&upstream));
    let limit = 6_000;
    let made = asked(actum, &["spend", "authorize", "--max-total", &limit.to_string(), "--id", "auth_crowd", "--json"]);
    assert_eq!(made["remaining"], limit);
    let gateway = Gateway::start(actum, &[], &[]);
    let seeds: Vec<u64> = (0..CLIENTS).map(|_| dice.roll(1 << 30)).collect();
    let denied: usize = scope(|scope| {
        let clients: Vec<_> = seeds
            .iter()
            .map(|seed| {
                let gateway = &gateway;
                scope.spawn(move || {
                    let mut dice = Dice::new(*seed);
                    let mut denied = 0;
                    for n in 0..CALLS_EACH {
                        let text = format!("{seed} {n} {}", "x".repeat(dice.roll(100) as usize));
                        let mut body = question(&text, dice.roll(60) + 1);
                        if dice.roll(3) == 0 {
                            body["stream"] = json!(true);
                        }
                        if let Some((429, body)) = gateway.chat(&body) {
                            denied += usize::from(body.contains("policy_denied.budget_exhausted"));
                        }
                    }
                    denied
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    gateway.end();
    let (spent, held) = assert_money_agrees(actum, "auth_crowd");
    assert!(spent + held <= limit, "{spent} + {held} > {limit}");
    assert!(spent > 0 && denied > 0, "the budget was too large to tell: {spent} spent, {denied} denied");
    // No call is under way any more: every reservation has come to its end, or waits for somebody.
    let open = asked(actum, &["spend", "reservations", "--state", "reserved", "--json"]);
    assert_eq!(open["reservations"], json!([]));
    // Who finds out what the others cost settles them, each once.
    let waiting = asked(actum, &["spend", "reconcile", "--json"])["reservations"].clone();
    for (at, one) in waiting.as_array().unwrap().iter().enumerate() {
        let (call, run) = (one["call_id"].as_str().unwrap(), one["run_id"].as_str().unwrap());
        let how: &[&str] = if at % 2 == 0 { &["--release"] } else { &["--commit", "1"] };
        actum.run(&[&["spend", "reconcile", call, "--run", run], how].concat()).ok();
        let again = actum.run(&["spend", "reconcile", call, "--run", run, "--commit", "2"]);
        assert_eq!(again.code, 6, "{}", again.stderr);
    }
    let (after, held) = assert_money_agrees(actum, "auth_crowd");
    assert_eq!((after, held), (spent + waiting.as_array().unwrap().len() as u64 / 2, 0));
    actum.run(&["store", "check"]).ok();
    actum.run(&["ledger", "verify"]).ok();
    assert_nothing_holds(actum, KEY);
}

#[test]
fn sixteen_clients_never_spend_more_than_there_is() {
    crowd(&actum().with_env("STUB_KEY", KEY), 1);
}

#[test]
fn sixteen_clients_never_spend_more_than_there_is_on_postgres() {
    crowd(&actum().with_env("STUB_KEY", KEY).on_store(&shared_url()), 3);
}

#[test]
fn a_killed_gateway_leaves_what_is_unknown_held_until_somebody_says() {
    let upstream =
        Upstream::start(Script::default().turn(Turn::text("one"), Usage::new(5, 5)).turn(Turn::Hang, Usage::new(1, 1)));
    let actum = actum().with_env("STUB_KEY", KEY);
    actum.file("actum.toml", settings(&upstream).replace("answer_ms = 400", "answer_ms = 60000"));
    actum.run(&["spend", "authorize", "--max-total", "1000", "--id", "auth_one"]).ok();
    let gateway = Gateway::start(&actum, &[], &[]);
    assert_eq!(gateway.chat(&question("first", 10)).unwrap().0, 200);
    let run = gateway.run.clone();
    scope(|scope| {
        let asking = scope.spawn(|| gateway.chat(&question("second", 10)));
        upstream.wait_for(2);
        // From here on the provider has it.
        let below = asked(&actum, &["spend", "reservations", "--state", "reserved", "--json"]);
        assert_eq!(below["reservations"][0]["run_id"], run.as_str(), "set aside before it was asked");
        gateway.running.signal("KILL");
        asking.join().unwrap();
    });
    let (spent, held) = assert_money_agrees(&actum, "auth_one");
    assert_eq!(spent, 15);
    assert!(held > 0, "what nobody knows stays held");
    // Nobody may take it before its deadline, unless who asked is known to be dead.
    let early = actum.run(&["spend", "reconcile", "e0-1", "--run", &run, "--release"]);
    assert_eq!(early.code, 6, "{}", early.stderr);
    let found = asked(&actum, &["spend", "reconcile", "--json"])["reservations"].clone();
    assert_eq!((found.as_array().unwrap().len(), &found[0]["call_id"]), (1, &json!("e0-1")), "{found}");
    actum.run(&["spend", "reconcile", "e0-1", "--run", &run, "--commit", "7"]).ok();
    assert_eq!(assert_money_agrees(&actum, "auth_one"), (22, 0));
    assert_eq!(actum.run(&["spend", "reconcile", "e0-1", "--run", &run, "--release"]).code, 6, "once");
}

#[test]
fn what_a_project_wants_to_agree_to_is_asked_also_within_a_budget() {
    let upstream = Upstream::start(Script::default().turn(Turn::text("one"), Usage::new(5, 5)));
    let actum = actum().with_env("STUB_KEY", KEY);
    actum.file("actum.toml", settings(&upstream));
    let authorize = ["spend", "authorize", "--max-total", "10usd", "--threshold", "1", "--id", "auth_project"];
    actum.run(&authorize).ok();
    let gateway = Gateway::start(&actum, &["--budget", "1usd"], &[]);
    let told = scope(|scope| {
        let asking = scope.spawn(|| gateway.chat(&question("first", 10)));
        let waiting = loop {
            let waiting = asked(&actum, &["approvals", "list", "--json"])["approvals"][0]["id"].clone();
            if let Some(id) = waiting.as_str() {
                break id.to_owned();
            }
        };
        assert_eq!(upstream.calls().len(), 0, "nobody is asked before somebody has agreed");
        actum.run(&["approve", &waiting]).ok();
        asking.join().unwrap().unwrap()
    });
    assert_eq!(told.0, 200, "{}", told.1);
    gateway.end();
    let receipts = asked(&actum, &["trace", "list", "--json"])["receipts"].clone();
    let policy = &receipts[0]["policy"];
    assert_eq!(policy["authorization_mode"], "delegated_budget_with_threshold", "the strictest of the chain: {policy}");
    let id = receipts[0]["receipt_id"].as_str().unwrap();
    assert_eq!(asked(&actum, &["policy", "explain", id, "--json"])["identical"], true);
    let own = receipts[0]["policy"]["authorization_id"].as_str().unwrap();
    assert_eq!(assert_money_agrees(&actum, own), (15, 0));
}

#[test]
fn the_same_question_again_and_again_is_not_paid_for_for_ever() {
    let upstream = Upstream::start(Script::default());
    let actum = actum().with_env("STUB_KEY", KEY);
    actum.file("actum.toml", settings(&upstream));
    let gateway = Gateway::start(&actum, &["--budget", "1usd"], &[]);
    let told: Vec<(u16, String)> = (0..25).map(|_| gateway.chat(&question("again", 10)).unwrap()).collect();
    let answered = told.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!((answered, upstream.calls().len()), (19, 19), "{told:?}");
    let (status, body) = told.last().unwrap();
    assert!(*status == 403 && body.contains("loop_detected.no_progress"), "{body}");
    // Another question is another matter.
    assert_eq!(gateway.chat(&question("something else", 10)).unwrap().0, 200);
    gateway.end();
}

#[test]
fn who_has_left_pays_for_nothing_that_is_agreed_to_later() {
    let upstream = Upstream::start(Script::default().turn(Turn::text("one"), Usage::new(5, 5)));
    let actum = actum().with_env("STUB_KEY", KEY);
    actum.file("actum.toml", settings(&upstream));
    actum.run(&["spend", "authorize", "--max-total", "10usd", "--threshold", "1", "--id", "auth_project"]).ok();
    let gateway = Gateway::start(&actum, &["--budget", "1usd"], &[]);
    let mut stream = TcpStream::connect(&gateway.address).unwrap();
    let (text, host, key) = (question("first", 10).to_string(), &gateway.address, &gateway.key);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n");
    write!(stream, "{head}Content-Length: {}\r\n\r\n{text}", text.len()).unwrap();
    let waiting = loop {
        let waiting = asked(&actum, &["approvals", "list", "--json"])["approvals"][0]["id"].clone();
        if let Some(id) = waiting.as_str() {
            break id.to_owned();
        }
    };
    drop(stream);
    // His place is free again, and there is a receipt that says why.
    let denied = loop {
        let receipts = asked(&actum, &["trace", "list", "--json"])["receipts"].clone();
        if receipts[0].is_object() {
            break receipts[0].clone();
        }
    };
    assert_eq!(denied["policy"]["reason_code"], "policy_denied.threshold_exceeded", "{denied}");
    actum.run(&["approve", &waiting]).ok();
    gateway.end();
    assert_eq!(upstream.calls().len(), 0);
}
