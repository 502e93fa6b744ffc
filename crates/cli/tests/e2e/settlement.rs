//! Tools behind which money is spent, end to end: nothing is called that was not allowed and reserved, nothing is paid
//! twice, and of what nobody knows the outcome the money is held until somebody has found out.

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::bridge::{WIDE, out_json, register, repeats, shell, wide, with_tools};
use super::run::{asked, id, one, with};
use super::runs::{all_runs, entries, status, until, work};
use super::spend::{books, reservations};

/// Pays, and says under which number; the key it was given goes into a file that only it writes.
const PAY: &str = r#"echo "$ACTUM_IDEMPOTENCY_KEY" >> paid; echo "{\"correlation_id\": \"c-$1\"}""#;

fn settling(script: &str, settlement: Value) -> (Value, Value) {
    shell("pay", "write", script, json!({"settlement": settlement}))
}

fn paying(script: &str, settlement: Value) -> Program {
    on(actum(), script, settlement)
}

fn on(actum: Program, script: &str, settlement: Value) -> Program {
    register(&actum, &[settling(script, settlement)]);
    actum
}

fn authorize(actum: &Program, words: &[&str]) {
    actum.run(&[&["spend", "authorize"], words].concat()).ok();
}

/// Calls it; the exit code and the result.
fn call(actum: &Program, params: Value) -> (i32, Value) {
    super::tools::call(actum, "pay", params)
}

fn paid(actum: &Program) -> Vec<String> {
    let text = std::fs::read_to_string(actum.path("paid")).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

/// The receipts of calls of tools that spend, oldest first.
fn receipts(actum: &Program) -> Vec<Value> {
    let all = entries(actum, "spend_change");
    let ours = all.iter().filter(|entry| entry["payload"]["action"] == "tool_settlement");
    ours.map(|entry| entry["payload"].clone()).collect()
}

fn explained(actum: &Program, id: &str) -> Value {
    let ended = actum.run(&["policy", "explain", "--json", id]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    ended.json()
}

fn allowed_paid_and_on_record(actum: Program) {
    let actum = on(actum, PAY, json!({"amount": 500}));
    // Nobody allowed it: nothing is called, and a receipt says so.
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &result["status"]), (3, &json!("refused")), "{result}");
    assert_eq!(result["error"]["reason_code"], "policy_denied.authorization_missing", "{result}");
    assert_eq!(paid(&actum), Vec::<String>::new());
    let shown = explained(&actum, result["execution_id"].as_str().unwrap());
    assert_eq!((&shown["identical"], &shown["decision"]), (&json!(true), &json!("denied")), "{shown}");
    authorize(&actum, &["--id", "all", "--max-total", "1200"]);
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!(code, 0, "{result}");
    let spend = &result["spend"];
    assert_eq!((&spend["state"], &spend["committed"]), (&json!("committed"), &json!(500)), "{result}");
    // The same once more is another call, under another key.
    assert_eq!(call(&actum, json!({"word": "x"})).0, 0);
    let keys = paid(&actum);
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
    // Then the budget is at its end.
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &result["error"]["reason_code"]), (3, &json!("policy_denied.budget_exhausted")), "{result}");
    assert_eq!(paid(&actum).len(), 2);
    let held = reservations(&actum);
    assert!(held.iter().all(|one| one["state"] == "committed" && one["provider_correlation_id"] == "c-x"), "{held:?}");
    assert!(held.iter().all(|one| keys.iter().any(|key| one["provider_idempotency_key"] == key.as_str())));
    let all = receipts(&actum);
    assert_eq!(all.len(), 4);
    for receipt in &all {
        assert_eq!(receipt["tool"]["tool_id"], "pay", "{receipt}");
        let shown = explained(&actum, receipt["receipt_id"].as_str().unwrap());
        assert_eq!(shown["evaluation_hash"]["recorded"], receipt["policy"]["evaluation_hash"], "{shown}");
    }
    assert_eq!(all[1]["provider_correlation_id"], "c-x");
    assert_eq!(books(&actum), 1_000);
}

#[test]
fn allowed_paid_and_on_record_on_sqlite() {
    allowed_paid_and_on_record(actum());
}

#[test]
fn allowed_paid_and_on_record_on_postgres() {
    allowed_paid_and_on_record(actum().on_store(&shared_url()));
}

#[test]
fn a_result_without_a_number_waits_for_somebody() {
    let actum = paying("echo x >> paid; echo done", json!({"amount": 500}));
    authorize(&actum, &["--id", "all", "--max-total", "5000"]);
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &result["status"]), (1, &json!("failure")), "{result}");
    assert!(result["error"]["message"].as_str().unwrap().starts_with("settlement_correlation_missing"), "{result}");
    assert_eq!(result["output"], "done\n");
    // It may have been paid: it is not made again before somebody knows.
    let (code, again) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &again["error"]["reason_code"]), (3, &json!("policy_denied.reconcile_required")), "{again}");
    assert_eq!(paid(&actum).len(), 1);
    // Another call is another matter.
    assert_eq!(call(&actum, json!({"word": "y"})).0, 1);
    let call_id = result["spend"]["call_id"].as_str().unwrap();
    let listed = asked(&actum, &["spend", "reconcile", "--json"])["reservations"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 2, "{listed:?}");
    actum.run(&["spend", "reconcile", call_id, "--commit", "400", "--reason", "asked the bank"]).ok();
    for again in ["400", "500"] {
        assert_eq!(actum.run(&["spend", "reconcile", call_id, "--commit", again]).code, 6);
    }
    assert_eq!(actum.run(&["spend", "reconcile", call_id, "--release"]).code, 6);
    assert_eq!(books(&actum), 400);
    assert_eq!(call(&actum, json!({"word": "x"})).0, 1, "now it may be made again");
    assert_eq!(paid(&actum).len(), 3);
}

#[test]
fn what_fails_is_held_or_given_back() {
    for (class, state, next) in [("dedupe_reconcile_required", "reconcile_required", 3), ("safe_retry", "released", 1)]
    {
        let actum = paying("exit 7", json!({"amount": 500, "retry_class": class}));
        authorize(&actum, &["--id", "all", "--max-total", "5000"]);
        let (code, result) = call(&actum, json!({"word": "x"}));
        assert_eq!((code, &result["spend"]["state"]), (1, &json!(state)), "{result}");
        assert_eq!(call(&actum, json!({"word": "x"})).0, next, "{class}");
        assert_eq!(books(&actum), 0);
    }
    // Too long is as unknown as anything.
    let more = json!({"settlement": {"amount": 1}, "scope": {"limits": {"timeout_ms": 1000}}});
    let actum = actum();
    register(&actum, &[shell("pay", "write", "sleep 60", more)]);
    authorize(&actum, &["--id", "all", "--max-total", "5000"]);
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &result["spend"]["state"]), (4, &json!("reconcile_required")), "{result}");
}

#[test]
fn what_was_never_run_is_given_back() {
    let actum = actum();
    let (mut tool, mut adapter) = settling(PAY, json!({"amount": 500}));
    tool["scope"]["commands"] = json!(["not-there-at-all"]);
    adapter["interface"]["cli"]["executable"] = json!("not-there-at-all");
    register(&actum, &[(tool, adapter)]);
    authorize(&actum, &["--id", "all", "--max-total", "5000"]);
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &result["spend"]["state"]), (1, &json!("released")), "{result}");
    assert_eq!(books(&actum), 0);
}

#[test]
fn the_amount_may_be_a_parameter() {
    let actum = actum();
    let settlement = json!({"amount_param": "amount", "max": 100, "currency": "sats"});
    let (tool, mut adapter) = settling(PAY, settlement);
    adapter["interface"]["cli"]["arg_mapping"]["amount"] = json!("{amount}");
    register(&actum, &[(tool, adapter)]);
    authorize(&actum, &["--id", "all", "--max-total", "150", "--currency", "sats"]);
    for (amount, code) in [(json!(0), 2), (json!(-5), 3), (json!(1.5), 2), (json!("many"), 2), (json!(101), 3)] {
        let (found, result) = call(&actum, json!({"word": "x", "amount": amount}));
        assert_eq!((found, &result["status"]), (code, &json!("refused")), "{amount}: {result}");
    }
    assert_eq!(call(&actum, json!({"word": "x"})).0, 2);
    let (code, result) = call(&actum, json!({"word": "x", "amount": 100}));
    assert_eq!((code, &result["spend"]["committed"]), (0, &json!(100)), "{result}");
    let (code, result) = call(&actum, json!({"word": "x", "amount": 51}));
    assert_eq!((code, &result["error"]["reason_code"]), (3, &json!("policy_denied.budget_exhausted")), "{result}");
    assert_eq!(paid(&actum).len(), 1);
}

#[test]
fn a_person_agrees_once_to_everything() {
    let more = json!({"settlement": {"amount": 500}, "approve_first_use": true});
    let actum = actum();
    register(&actum, &[shell("pay", "write", PAY, more)]);
    authorize(&actum, &["--id", "all", "--max-total", "5000", "--threshold", "100"]);
    let request = super::tools::waits(&super::tools::try_call(&actum, "pay", json!({"word": "x"})));
    assert_eq!(paid(&actum).len(), 0);
    actum.run(&["approve", &request]).ok();
    let (code, result) = call(&actum, json!({"word": "x"}));
    assert_eq!((code, &result["spend"]["state"]), (0, &json!("committed")), "{result}");
    assert_eq!(reservations(&actum)[0]["approval_id"], request.as_str());
    // The next one needs a word of its own, and a no is on record.
    let request = super::tools::waits(&super::tools::try_call(&actum, "pay", json!({"word": "x"})));
    actum.run(&["deny", &request]).ok();
    let ended = super::tools::try_call(&actum, "pay", json!({"word": "x"}));
    assert_eq!((ended.code, ended.error()["code"].as_str()), (3, Some("APPROVAL_DENIED")), "{ended:?}");
    let last = receipts(&actum).pop().unwrap();
    assert_eq!(
        (&last["status"], &last["policy"]["reason_code"]),
        (&json!("denied"), &json!("policy_denied.explicit_deny"))
    );
    assert_eq!(books(&actum), 500);
}

#[test]
fn to_spend_more_waits_for_a_person() {
    let actum = paying(PAY, json!({"amount": 500}));
    let all = [
        (json!({"amount": 400}), false),
        (json!({"amount": 401}), true),
        (json!(null), true),
        (json!({"amount": 400, "currency": "sats"}), true),
        (json!({"amount_param": "amount"}), true),
    ];
    for (n, (settlement, waits)) in all.into_iter().enumerate() {
        let (mut tool, _) = settling(PAY, settlement.clone());
        tool["version"] = json!(format!("2.0.{n}"));
        let ended = super::tools::try_add(&actum, &[tool]);
        assert_eq!(ended.code, if waits { 8 } else { 0 }, "{settlement}: {ended:?}");
    }
    let shown = asked(&actum, &["tool", "show", "pay", "--level", "L2", "--json"]);
    assert_eq!(shown["settlement"], json!({"amount": 400}), "{shown}");
    // By a contract of one's own it is not run at all.
    let contract = json!({"tool_id": "pay", "inputs": {"command": "sh", "arguments": ["-c", "true"]}});
    actum.file("contract.json", contract.to_string());
    assert_eq!(actum.run(&["exec", "--json", "contract.json"]).code, 3);
}

#[test]
fn in_a_run_the_runs_own_budget_pays() {
    let script = "for n in 1 2 3; do actum tool call pay --param word=$n --json > out/$n; done; true";
    let actum = with_tools(script, "", &[settling(PAY, json!({"amount": 500}))]);
    authorize(&actum, &["--id", "all", "--max-total", "100000"]);
    let item = with(wide(), "budget", json!({"spend": {"max_total": 1100}}));
    let (code, run) = one(&actum, item, &WIDE);
    assert_eq!(code, 0, "{run}");
    for n in ["1", "2"] {
        let told = out_json(&actum, n);
        assert_eq!(told["spend"]["state"], "committed", "{told}");
    }
    assert_eq!(out_json(&actum, "3")["error"]["reason_code"], "policy_denied.budget_exhausted");
    assert_eq!(run["spend"], json!({"currency": "usd_micros", "spent": 1000, "calls": 2}), "{run}");
    let shown = status(&actum, &id(&run));
    assert_eq!(
        shown["spend"],
        json!({"currency": "usd_micros", "spent": 1000, "reserved": 0, "reconcile_required": 0}),
        "{shown}"
    );
    let verified = actum.run(&["verify", "--json", &id(&run)]);
    let checks = verified.json()["checks"].as_array().unwrap().clone();
    assert!(verified.code == 0 && checks.iter().any(|check| check["name"] == "spend"), "{checks:?}");
    // Repeated, it asks nobody and spends nothing.
    assert_eq!(books(&actum), 1_000);
    repeats(&actum, &id(&run));
    assert_eq!((books(&actum), receipts(&actum).len()), (1_000, 3));
}

#[test]
fn equal_calls_at_once_pay_one_by_one_or_not_at_all() {
    for (class, all) in [("dedupe_reconcile_required", false), ("safe_retry", true)] {
        let actum = paying(PAY, json!({"amount": 500, "retry_class": class}));
        authorize(&actum, &["--id", "all", "--max-total", "1000000"]);
        let codes: Vec<i32> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..6).map(|_| scope.spawn(|| call(&actum, json!({"word": "x"})).0)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert!(codes.iter().all(|code| [0, 3].contains(code)), "{class}: {codes:?}");
        let made = codes.iter().filter(|code| **code == 0).count();
        assert!(made > 0 && (!all || made == codes.len()), "{class}: {codes:?}");
        let mut keys = paid(&actum);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!((keys.len(), paid(&actum).len()), (made, made), "{class}: each has a key of its own");
        assert_eq!(books(&actum), 500 * made as u64, "{class}");
    }
}

/// Kills a call at a place; whoever comes next finds the money held.
fn killed(actum: &Program, at: &str) {
    let words = ["exec", "--json", "--tool", "pay", "--params-json", "{\"word\": \"x\"}"];
    let mut running = actum.start(&words, &[("ACTUM_CRASH_AT", &format!("{at}#1"))]);
    assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{at}");
    running.kill();
}

#[test]
fn killed_at_each_place_of_a_settlement() {
    for (at, made, state) in [
        ("settlement.reserved", 0, "reserved"),
        ("settlement.called", 1, "reserved"),
        ("settlement.settled", 1, "committed"),
    ] {
        let actum = paying(PAY, json!({"amount": 500}));
        authorize(&actum, &["--id", "all", "--max-total", "5000"]);
        killed(&actum, at);
        assert_eq!((paid(&actum).len(), &reservations(&actum)[0]["state"]), (made, &json!(state)), "{at}");
        let (code, result) = call(&actum, json!({"word": "x"}));
        match state {
            // Whether it lives nobody knows: it is not paid twice.
            "reserved" => {
                assert_eq!(code, 3, "{at}: {result}");
                assert_eq!(result["error"]["reason_code"], "policy_denied.idempotency_conflict", "{result}");
                assert_eq!(
                    actum
                        .run(&["spend", "reconcile", reservations(&actum)[0]["call_id"].as_str().unwrap(), "--release"])
                        .code,
                    6
                );
            }
            _ => assert_eq!(code, 0, "{at}: {result}"),
        }
        books(&actum);
    }
}

const ASK: &str = r#"curl -s -o out/answer -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \
  -d '{"model": "stub-1", "messages": [{"role": "user", "content": "hello"}]}' "$OPENAI_BASE_URL/chat/completions""#;

/// A run whose agent asks a model, killed between the answer and its payment.
#[test]
fn a_worker_killed_before_it_paid_leaves_the_money_held() {
    let upstream = Upstream::start(Script::default().last("hello", Usage::new(100, 20)));
    for (at, receipts_of_dead) in [("model.reserved", 0), ("model.answered", 0), ("model.settled", 1)] {
        let actum = actum().with_env("REAL_KEY", "sk-1");
        super::bridge::agent(&actum, ASK, "network = \"gateway\"\n");
        let agent = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
        let provider = format!(
            "[providers.p]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nkey = \"env:REAL_KEY\"\noutput_tokens = 100\n\
             [prices.\"*\"]\ninput = 1000000\noutput = 1000000\n",
            upstream.url()
        );
        actum.file("actum.toml", format!("{agent}\n{provider}"));
        let item = with(wide(), "budget", json!({"spend": {"max_total": 1_000_000}}));
        actum.file("work.json", item.to_string());
        let words = ["run", "--json", "--set", "maxFilesPerStep=100", "work.json"];
        let mut running = actum.start(&words, &[("ACTUM_CRASH_AT", &format!("{at}#1"))]);
        let line = running.error_line().unwrap_or_default();
        assert!(line.starts_with("crash point"), "{at}: {line}");
        let below = running.below();
        running.kill();
        until("its processes are gone", || !below.iter().any(|process| process.lives()));
        let runs = all_runs(&actum);
        work(&actum, &runs);
        let shown = status(&actum, &runs[0]);
        assert_eq!(shown["state"], "succeeded", "{at}: {shown}");
        let cost = 120;
        assert_eq!(shown["spend"]["spent"], cost * (1 + receipts_of_dead), "{at}: {shown}");
        let stuck: Vec<Value> =
            reservations(&actum).into_iter().filter(|one| one["state"] == "reconcile_required").collect();
        assert_eq!(stuck.len(), usize::from(receipts_of_dead == 0), "{at}: {stuck:?}");
        let spent = books(&actum);
        if let [stuck] = &stuck[..] {
            assert_eq!(shown["spend"]["reconcile_required"], stuck["amount"], "{at}: {shown}");
            let log = actum.run(&["logs", &runs[0]]).stdout;
            assert!(log.contains("actum spend reconcile"), "{at}: {log}");
            let call = stuck["call_id"].as_str().unwrap();
            let words = ["spend", "reconcile", call, "--run", &runs[0], "--commit", "77"];
            actum.run(&words).ok();
            assert_eq!(actum.run(&words).code, 6, "{at}");
            assert_eq!(books(&actum), spent + 77, "{at}");
        }
        let verified = actum.run(&["verify", "--json", &runs[0]]);
        assert_eq!(verified.code, 0, "{at}: {}", verified.stdout);
    }
}
