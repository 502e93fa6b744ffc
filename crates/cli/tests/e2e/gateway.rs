//! Agents that others wrote, in cells that reach nobody but us: they work as ever, each token is paid for, nothing goes
//! beyond the budget, and a run is repeated to the bit when its provider is gone. Also what other tests of the gateway
//! share: a project with a provider, and the books.

use std::fs;

use actum_testkit::agents::{Agent, Agents};
use actum_testkit::program::Program;
use actum_testkit::upstream::{Request, Script, Turn, Upstream, Usage, shell, write};
use serde_json::{Value, json};

use super::actum;
use super::agents::define;
use super::bridge::{WIDE, wide};
use super::run::{asked, id, one, with};

/// The one thing that must stay outside.
pub(crate) const KEY: &str = "sk-real-4f1c7e9b2a6d8035";
/// Of one token that goes in, and of one that comes out: the table has the price of a million.
const INPUT: u64 = 3;
const OUTPUT: u64 = 15;
/// What a call may come to, unless a test wants something else.
const OUTPUT_TOKENS: u64 = 1_000;
/// More than any of these runs needs.
pub(crate) const ENOUGH: u64 = 100_000_000;
const CELL: &str = "http://127.0.0.1:47800";

/// Knows the key, and no variable beside it.
pub(crate) fn program() -> Program {
    actum().with_env("REAL_KEY", KEY)
}

/// Providers of all kinds at one address; `more` goes into the section of each.
pub(crate) fn providers(url: &str, more: &str) -> String {
    let provider = |kind: &str, base: &str, models: &str| {
        format!(
            "[providers.{kind}]\ntype = \"{kind}\"\nbase_url = \"{base}\"\nkey = \"env:REAL_KEY\"\nmodels = [{models}]\n\
             output_tokens = {OUTPUT_TOKENS}\n{more}\n"
        )
    };
    let price =
        |model: &str| format!("[prices.\"{model}\"]\ninput = {}\noutput = {}\n", INPUT * 1_000_000, OUTPUT * 1_000_000);
    [
        provider("openai", &format!("{url}/v1"), "\"stub-*\", \"stub-1\", \"free-*\""),
        provider("anthropic", url, "\"stub-*\", \"stub-1\", \"free-*\""),
        provider("gemini", url, "\"gemini-*\", \"gemini-2.5-flash\", \"free-*\""),
        price("stub-*"),
        price("gemini-*"),
    ]
    .concat()
}

pub(crate) fn cost(usage: Usage) -> u64 {
    usage.input * INPUT + usage.output * OUTPUT
}

/// The item, with so much to spend.
pub(crate) fn paid(max_total: u64) -> Value {
    with(wide(), "budget", json!({"spend": {"max_total": max_total}}))
}

/// Everything that is on record about money.
pub(crate) struct Books {
    pub receipts: Vec<Value>,
    pub reservations: Vec<Value>,
    pub authorizations: Vec<Value>,
}

impl Books {
    pub(crate) fn of(actum: &Program) -> Self {
        let list = |words: &[&str], key: &str| asked(actum, words)[key].as_array().unwrap().clone();
        let mut receipts = list(&["trace", "list", "--json", "--limit", "1000"], "receipts");
        receipts.sort_by_key(|receipt| (receipt["run_id"].to_string(), receipt["ordinal"].as_u64()));
        let mut reservations = list(&["spend", "reservations", "--json", "--limit", "1000"], "reservations");
        reservations.reverse();
        Self { receipts, reservations, authorizations: list(&["spend", "list", "--json"], "authorizations") }
    }

    /// Every reservation has ended with one receipt that says the same, and all sums are the same sum.
    pub(crate) fn agree(&self) -> u64 {
        let sum = |of: &[Value], key: &str| of.iter().filter_map(|one| one[key].as_u64()).sum::<u64>();
        for held in &self.reservations {
            let (run, call) = (&held["run_id"], &held["call_id"]);
            let of_it = |receipt: &&Value| receipt["run_id"] == *run && receipt["budget"]["call_id"] == *call;
            let receipts: Vec<&Value> = self.receipts.iter().filter(of_it).collect();
            assert_eq!(receipts.len(), 1, "one receipt of {held}: {receipts:?}");
            let budget = &receipts[0]["budget"];
            assert_eq!((&budget["state"], &budget["reserved"]), (&held["state"], &held["amount"]), "{held}");
            assert_ne!(held["state"], "reserved", "{held}");
            assert_eq!(budget["spent"].as_u64(), Some(held["committed"].as_u64().unwrap_or(0)), "{held} {budget}");
        }
        let budgets: Vec<Value> = self.receipts.iter().map(|receipt| receipt["budget"].clone()).collect();
        // A budget within another one is spent from both.
        let outermost = self.authorizations.iter().filter(|one| one["within"].is_null());
        let outermost: Vec<Value> = outermost.cloned().collect();
        let spent = sum(&budgets, "spent");
        assert_eq!(sum(&outermost, "spent"), spent, "{:?}", self.authorizations);
        let unknown = self.reservations.iter().filter(|held| held["state"] == "reconcile_required");
        let unknown: Vec<Value> = unknown.cloned().collect();
        assert_eq!(sum(&outermost, "reserved"), sum(&unknown, "amount"), "{:?}", self.reservations);
        spent
    }

    pub(crate) fn tokens(&self) -> Usage {
        let number = |receipt: &Value, key: &str| receipt["budget"][key].as_u64().unwrap();
        let of = |receipt: &Value| Usage::new(number(receipt, "input_tokens"), number(receipt, "output_tokens"));
        self.receipts.iter().map(of).fold(Usage::default(), Usage::plus)
    }

    pub(crate) fn states(&self) -> Vec<String> {
        self.reservations.iter().map(|held| held["state"].as_str().unwrap().to_owned()).collect()
    }
}

/// Repeats a run; how many questions were answered by their order.
pub(crate) fn repeats(actum: &Program, run: &str) -> u64 {
    let ended = actum.run(&["replay", "--json", run]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let replayed = ended.json();
    assert_eq!(replayed["identical"], true, "{replayed}");
    replayed["answered_by_order"].as_u64().unwrap_or(0)
}

/// Writes a file by the agent's own tool, then tries to reach anybody but us.
fn script(agent: Agent, actum: &Program) -> Script {
    let path = actum.folder().canonicalize().unwrap().join("hello.txt");
    let reach = "for to in 192.0.2.1 1.1.1.1 127.0.0.1:22 example.org; do \
                 curl -s -m 5 -o /dev/null http://$to/ && echo reached; done > net.txt; tr a-z A-Z < hello.txt > loud.txt";
    Script::default()
        .turn(write(agent, &path.display().to_string(), "hello\n"), Usage::new(1001, 951))
        .turn(shell(agent, reach), Usage::new(1102, 932))
        .turn(Turn::text("It is written."), Usage::new(1203, 13))
        .asides("A title", Usage::new(7, 3))
}

fn logs(actum: &Program, run: &Value) -> String {
    actum.run(&["logs", &id(run)]).stdout
}

fn is_turn(turn: usize) -> impl Fn(&Request) -> bool {
    move |request| request.turn == Some(turn)
}

fn project(agent: Agent, url: &str, actum: &Program) {
    let headless = Agents::find().behind_gateway(agent, "{description}", CELL);
    define(actum, &headless, "gateway", "");
    let settings = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{settings}\n{}", providers(url, "")));
}

/// It works, is metered to the token, and can be repeated without the provider. Then with a budget that is too small for
/// its last question.
fn agent_works_behind_the_gateway(agent: Agent) {
    let actum = program();
    let upstream = Upstream::start(script(agent, &actum));
    project(agent, &upstream.url(), &actum);
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}\n{}", logs(&actum, &run));
    let written = |name: &str| fs::read_to_string(actum.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!((written("hello.txt").as_str(), written("loud.txt").as_str()), ("hello\n", "HELLO\n"));
    assert_eq!(written("net.txt"), "", "it reaches nobody else");
    assert_eq!(run["metrics"]["files_touched"], 3, "{run}");
    let calls = upstream.calls();
    let turns: Vec<usize> = calls.iter().filter_map(|call| call.turn).collect();
    assert_eq!(turns, [0, 1, 2]);
    assert!(calls.iter().all(|call| call.headers.iter().any(|(_, value)| value.contains(KEY))));

    let books = Books::of(&actum);
    let used = upstream.used();
    assert_eq!(books.tokens(), used, "to the token");
    assert_eq!(books.agree(), cost(used));
    assert!(books.states().iter().all(|state| state == "committed"), "{:?}", books.reservations);
    assert_eq!(books.receipts.len(), calls.len(), "{:?}", books.receipts);
    assert_eq!(actum.run(&["verify", &id(&run)]).code, 0);
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
    drop(upstream.stop());

    let by_order = repeats(&actum, &id(&run));
    assert_eq!(by_order, 0, "{} is found by its words", agent.name());
    assert_eq!(Books::of(&actum).receipts.len(), calls.len(), "a replay calls no tools");
    let mut amounts: Vec<u64> = books.reservations.iter().map(|held| held["amount"].as_u64().unwrap()).collect();
    amounts.sort_unstable();
    // What it asks beside its work is less than any question of it, and has room all the same.
    let asides: u64 = amounts[..amounts.len() - turns.len()].iter().sum();
    is_stopped_at_its_budget(agent, amounts[amounts.len() - 1] - 1 + asides);
}

fn is_stopped_at_its_budget(agent: Agent, budget: u64) {
    let actum = program();
    let upstream = Upstream::start(script(agent, &actum));
    project(agent, &upstream.url(), &actum);
    let (code, run) = one(&actum, paid(budget), &WIDE);
    assert_eq!((code, &run["status"]), (3, &json!("denied")), "{run}\n{}", logs(&actum, &run));
    assert!(run.to_string().contains("policy_denied.budget_exhausted"), "{run}");
    assert!(!actum.path("hello.txt").exists() && !actum.path("loud.txt").exists(), "nothing is published");
    let calls = upstream.calls();
    assert!(calls.iter().any(is_turn(0)) && !calls.iter().any(is_turn(2)), "{calls:?}");
    let books = Books::of(&actum);
    assert_eq!((books.agree(), books.tokens()), (cost(upstream.used()), upstream.used()));
    assert_eq!(books.reservations.len(), calls.len(), "who was denied was not asked for");
    assert!(books.authorizations[0]["spent"].as_u64().unwrap() <= budget);
    let denied = books.receipts.iter().filter(|receipt| receipt["status"] == "denied");
    for receipt in denied {
        assert_eq!(receipt["policy"]["reason_code"], "policy_denied.budget_exhausted", "{receipt}");
    }
    drop(upstream.stop());
    repeats(&actum, &id(&run));
    assert_eq!(actum.run(&["verify", &id(&run)]).code, 0);
}

#[test]
fn goose_works_behind_the_gateway() {
    agent_works_behind_the_gateway(Agent::Goose);
}

#[test]
fn claude_works_behind_the_gateway() {
    agent_works_behind_the_gateway(Agent::Claude);
}

#[test]
fn codex_works_behind_the_gateway() {
    agent_works_behind_the_gateway(Agent::Codex);
}

#[test]
fn gemini_works_behind_the_gateway() {
    agent_works_behind_the_gateway(Agent::Gemini);
}
