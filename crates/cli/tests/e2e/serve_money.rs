//! Money behind `actum serve`: what somebody says in a request narrows what was allowed to him, and never allows more.

use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::builtin::{self, STEP_ONLY, finish, rich, turn};
use super::mcp;
use super::predict::demo;
use super::run::{asked, id, one};
use super::runs::{entries, submit, until};
use super::serve::{Server, token};

const ID: &str = "demo/Sentiment.v1";
const MISSING: &str = "policy_denied.authorization_missing";

#[test]
fn a_budget_allows_nothing_by_itself() {
    let last = Script::default().turn(turn(json!([finish()])), Usage::new(10, 10));
    let script = (0..3).fold(last, |script, _| script.turn(turn(json!([finish()])), Usage::new(10, 10)));
    let (actum, upstream) = builtin::project(script, STEP_ONLY);
    // To whoever is at the machine his own budget is enough.
    let (code, own) = one(&actum, rich(), &[]);
    assert_eq!((code, upstream.calls().len()), (0, 1), "{own}");
    let own = id(&own);
    actum.file("work.yaml", rich().to_string());
    let left = submit(&actum, &[])[0].clone();
    actum.run(&["cancel", &left]).ok();
    let authorizations = || asked(&actum, &["spend", "list", "--json"])["authorizations"].as_array().unwrap().clone();
    let before = authorizations();
    assert_eq!(before.len(), 1, "{before:?}");

    let server = Server::start(&actum, &[]);
    let operator = token(&actum, "operator", &[]);
    let ended = |run: &Value| -> Value {
        let path = format!("/v1/runs/{}", run["run_id"].as_str().unwrap());
        let status = || server.get(&operator, &path).is(200);
        until("it is over", || ["succeeded", "failed"].contains(&status()["state"].as_str().unwrap()));
        status()
    };
    let submitted = server.post(&operator, "/v1/runs", rich()).is(202)["runs"][0].clone();
    // Neither a new run, nor one that takes over what a person has allowed to his own.
    let forked = server.post(&operator, &format!("/v1/runs/{left}/fork"), json!({})).is(202);
    let work = mcp::call("submit", json!({"work": [rich()]}));
    let by_mcp = mcp::said(&mcp::post(&server, &operator, &work))["runs"][0].clone();
    for run in [&submitted, &forked, &by_mcp] {
        let status = ended(run);
        assert!(status["state"] == "failed" && status.to_string().contains(MISSING), "{status}");
        let by = &status["submitted_by"];
        assert!(by["actor"] == "operator" && operator.contains(by["token"].as_str().unwrap()), "{status}");
    }
    // Who did is in the ledger.
    let tokens: Vec<_> = entries(&actum, "workspace_snapshot")
        .iter()
        .map(|one| one["payload"]["submittedBy"]["token"].is_string())
        .collect();
    assert_eq!(tokens, [false, false, true, true, true]);
    let replayed = server.post(&operator, &format!("/v1/runs/{own}/replay"), json!({"live": true}));
    assert!(replayed.body.contains(MISSING), "{replayed:?}");
    assert_eq!((upstream.calls().len(), authorizations()), (1, before), "nobody was asked, nothing was allowed");

    // Within what was allowed it is worked, however much it asks for.
    actum.run(&["spend", "authorize", "--id", "all", "--max-total", "1usd"]).ok();
    let run = server.post(&operator, "/v1/runs", rich()).is(202)["runs"][0].clone();
    let status = ended(&run);
    assert_eq!((&status["state"], upstream.calls().len()), (&json!("succeeded"), 2), "{status}");
    let made = format!("auth_run_{}", run["run_id"].as_str().unwrap());
    let found = authorizations().into_iter().find(|one| one["authorization_id"] == made.as_str());
    assert_eq!(found.unwrap()["within"], "all");
    assert_eq!(server.stop().0, 0);
}

#[test]
fn nor_does_that_of_an_evaluation() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    let example = |n: u32| json!({"input": {"text": format!("t{n}")}, "expected": {"label": "positive"}}).to_string();
    actum.file("few.jsonl", (0..40).map(example).collect::<Vec<_>>().join("\n"));
    asked(&actum, &["dataset", "import", "few.jsonl", "--signature", ID, "--name", "few", "--json"]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let operator = token(&actum, "operator", &[]);
    let wanted = json!({"artifact": "baseline", "dataset": "few", "signature": ID, "budget": "500usd"});
    let refused = server.post(&operator, "/v1/evals", wanted.clone());
    assert!(refused.status >= 400 && refused.body.contains(MISSING), "{refused:?}");
    assert_eq!(upstream.calls().len(), 0);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    server.post(&operator, "/v1/evals", wanted).is(201);
    assert!(!upstream.calls().is_empty());
}

#[test]
fn whoever_asks_spends_what_was_allowed_to_him() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    let server = Server::start(&actum, &["--workers", "0"]);
    let operator = token(&actum, "operator", &[]);
    let question = |who: Value| {
        let mut asked = json!({"signature": ID, "input": {"text": "good"}});
        asked.as_object_mut().unwrap().extend(who.as_object().unwrap().clone());
        server.post(&operator, "/v1/predictions", asked)
    };
    let others = [json!({"agent": "guest-admin"}), json!({"run": "r-1"}), json!({"thread": "t-1"})];
    for who in &others {
        let (name, value) = who.as_object().unwrap().iter().next().unwrap();
        let flag = format!("--{name}");
        actum.run(&["spend", "authorize", "--max-total", "1usd", &flag, value.as_str().unwrap()]).ok();
        let refused = question(who.clone());
        assert!(refused.body.contains(MISSING), "{who}: {refused:?}");
    }
    assert_eq!(upstream.calls().len(), 0, "nobody was asked");
    actum.run(&["spend", "authorize", "--id", "his", "--max-total", "1usd", "--agent", "operator"]).ok();
    for who in &others {
        let told = question(who.clone()).is(201);
        assert_eq!(told["policy"]["authorization_id"], "his", "{told}");
    }
    // Whoever is at the machine says for whom he asks.
    let words = ["predict", ID, "--param", "text=good", "--agent", "guest-admin", "--json"];
    assert_ne!(asked(&actum, &words)["policy"]["authorization_id"], "his");
}

/// However many ask at once in the name of one run: each call has set its own money aside, and none of it is the run's.
#[test]
fn what_is_asked_beside_a_run_is_paid_for_each_time() {
    let answer = || Turn::Held(Box::new(Turn::text("{\"label\": \"positive\"}")));
    let script = (0..4).fold(Script::default(), |script, _| script.turn(answer(), Usage::new(40, 6)));
    let upstream = Upstream::start(script.last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--id", "all", "--max-total", "1usd"]).ok();
    let server = Server::start(&actum, &["--workers", "0"]);
    let operator = token(&actum, "operator", &[]);
    let ask = || {
        let question = json!({"signature": ID, "input": {"text": "good"}, "run": "r-1"});
        server.post(&operator, "/v1/predictions", question).is(201)
    };
    let held = || asked(&actum, &["spend", "reservations", "--json"])["reservations"].as_array().unwrap().clone();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        upstream.wait_for(4);
        assert_eq!(held().iter().filter(|one| one["state"] == "reserved").count(), 4, "{:?}", held());
        (0..4).for_each(|_| upstream.release());
        for one in all {
            one.join().unwrap();
        }
    });
    // One after the other, too; and nobody's provider takes two for one.
    ask();
    let all = held();
    assert!(all.len() == 5 && all.iter().all(|one| one["state"] == "committed" && one["run_id"] == "r-1"), "{all:?}");
    let keys: std::collections::BTreeSet<_> =
        upstream.calls().iter().filter_map(|call| call.header("idempotency-key").map(str::to_owned)).collect();
    assert!(keys.is_empty() || keys.len() == 5, "{keys:?}");
    let sum: u64 = all.iter().map(|one| one["committed"].as_u64().unwrap()).sum();
    let spent = asked(&actum, &["spend", "list", "--json"])["authorizations"][0]["spent"].as_u64();
    assert_eq!(spent, Some(sum));
}

/// Anybody may name a run; its receipt tells what it has cost itself.
#[test]
fn what_is_asked_beside_a_run_is_not_in_its_receipt() {
    let script = Script::default().turn(Turn::Held(Box::new(turn(json!([finish()])))), Usage::new(10, 10));
    let (actum, upstream) = builtin::project(script.last("{\"label\": \"positive\"}", Usage::new(40, 6)), STEP_ONLY);
    actum.run(&["spend", "authorize", "--id", "all", "--max-total", "1usd"]).ok();
    actum.file("s.yaml", super::client::SIGNATURE);
    asked(&actum, &["signature", "add", "s.yaml", "--json"]);
    let server = Server::start(&actum, &[]);
    let operator = token(&actum, "operator", &[]);
    let run = server.post(&operator, "/v1/runs", rich()).is(202)["runs"][0]["run_id"].as_str().unwrap().to_owned();
    upstream.wait_for(1);
    server
        .post(
            &operator,
            "/v1/predictions",
            json!({"signature": ID, "input": {"text": "good"}, "model": "m-1", "run": run}),
        )
        .is(201);
    upstream.release();
    let status = || server.get(&operator, &format!("/v1/runs/{run}")).is(200);
    until("it is over", || status()["state"] == "succeeded");
    let statement = std::fs::read_to_string(actum.path(&format!(".actum/runs/{run}/receipt.statement.json"))).unwrap();
    let statement: Value = serde_json::from_str(&statement).unwrap();
    assert_eq!(statement["predicate"]["spend"]["calls"], 1, "{statement}");
    assert_eq!(asked(&actum, &["verify", &run, "--json"])["valid"], true);
    assert_eq!(upstream.calls().len(), 2);
}

#[test]
fn who_agreed_and_who_did_not_is_on_record() {
    let upstream = Upstream::start(Script::default().last("{\"label\": \"positive\"}", Usage::new(40, 6)));
    let actum = demo(&upstream);
    actum.run(&["spend", "authorize", "--mode", "interactive", "--max-total", "1usd"]).ok();
    let server = Server::start(&actum, &["--workers", "0"]);
    let [operator, approver] = ["operator", "approver"].map(|role| token(&actum, role, &[]));
    let ask = |text: &str| {
        let question = json!({"signature": ID, "input": {"text": text}});
        server.post(&operator, "/v1/predictions", question)
    };
    let waiting = || -> String {
        let all = server.get(&approver, "/v1/approvals").is(200)["approvals"].as_array().unwrap().clone();
        all.iter().find(|one| one["state"] == "pending").unwrap()["id"].as_str().unwrap().to_owned()
    };
    ask("good");
    let first = waiting();
    let reason = json!({"reason": "it is cheap"});
    server.post(&operator, &format!("/v1/approvals/{first}/approve"), reason.clone()).is(403);
    assert!(entries(&actum, "approval_decision").is_empty());
    server.post(&approver, &format!("/v1/approvals/{first}/approve"), reason).is(200);
    ask("good").is(201);
    ask("bad");
    let second = waiting();
    actum.run(&["deny", &second, "--actor", "ann", "--reason", "not that"]).ok();
    let told: Vec<Value> = entries(&actum, "approval_decision").iter().map(|one| one["payload"].clone()).collect();
    let what = |n: usize| ["approvalId", "decision", "actor", "reason"].map(|key| told[n][key].as_str().unwrap());
    assert_eq!(what(0), [&first, "approved", "approver", "it is cheap"], "{told:?}");
    assert_eq!(what(1), [&second, "denied", "ann", "not that"], "{told:?}");
    assert!(approver.contains(told[0]["token"].as_str().unwrap()) && told[1]["token"].is_null(), "{told:?}");
    assert!(told[0]["wants"][0].as_str().unwrap().starts_with("up to "), "{told:?}");
    assert_eq!(told.len(), 2, "{told:?}");
    // Nobody else writes one.
    let forged = json!({"tenantId": "local", "module": "m", "source": "s", "type": "approval_decision", "payload": {}});
    let forged = server.post(&operator, "/v1/ledger/entries", forged);
    assert!((400..500).contains(&forged.status), "{forged:?}");
}
