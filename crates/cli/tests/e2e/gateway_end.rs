//! How exchanges end that nobody waits for to the end: a run that is cancelled, an agent whose time is over or who goes by
//! himself; and two runs that spend from one purse.

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::bridge::WIDE;
use super::gateway::{Books, ENOUGH, cost, paid, program, providers, repeats};
use super::gateway_protocol::{answered, ask, question, shell};
use super::run::{id, item, one, with};
use super::runs::all_runs;
use super::sandbox::{Who, own_all};

fn held() -> Turn {
    Turn::Held(Box::new(Turn::text("Too late for this.")))
}

/// What is open is something to find out about, with a receipt; once somebody has, the books are even.
fn is_left_open(actum: &Program, run: &str) {
    let books = Books::of(actum);
    assert_eq!(books.states(), ["committed", "reconcile_required"], "{:?}", books.reservations);
    assert_eq!(books.agree(), cost(Usage::new(31, 7)));
    let receipt = &books.receipts[1];
    assert_eq!((&receipt["status"], &receipt["budget"]["state"]), (&json!("unknown"), &json!("reconcile_required")));
    let call = receipt["budget"]["call_id"].as_str().unwrap();
    let words = ["spend", "reconcile", call, "--run", run, "--commit", "99", "--reason", "the invoice says so"];
    let ended = actum.run(&words);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let after = Books::of(actum);
    assert_eq!(after.states(), ["committed"; 2]);
    let spent = after.authorizations[0]["spent"].as_u64();
    assert_eq!((spent, &after.authorizations[0]["reserved"]), (Some(cost(Usage::new(31, 7)) + 99), &json!(0)));
}

#[test]
fn a_run_that_is_cancelled_leaves_its_question_open() {
    for who in Who::BOTH {
        let actum = match who {
            Who::Root => program(),
            Who::Nobody => program().owned_by_nobody(),
        };
        let lines = ask("first", question("messages", true, "first")) + &ask("held", question("chat", true, "held"));
        let script = Script::default().turn(Turn::text("First."), Usage::new(31, 7)).turn(held(), Usage::new(1, 1));
        let upstream = Upstream::start(script);
        shell(&actum, &lines, &upstream.url(), "");
        actum.file("work.json", paid(ENOUGH).to_string());
        own_all(actum.folder(), who);
        let flags = [&["run", "--json", "work.json"][..], &WIDE].concat();
        let run = std::thread::scope(|scope| {
            let running = scope.spawn(|| actum.run(&flags));
            upstream.wait_for(2);
            let run = all_runs(&actum).remove(0);
            actum.run(&["cancel", &run]).ok();
            let ended = running.join().unwrap();
            assert_eq!(ended.json()["runs"][0]["state"], "cancelled", "{}{}", ended.stdout, ended.stderr);
            run
        });
        assert!(!actum.path("out").exists(), "nothing is published");
        is_left_open(&actum, &run);
        upstream.release();
    }
}

#[test]
fn an_agent_whose_time_is_over_leaves_its_question_open() {
    let actum = program();
    let lines = ask("first", question("generate", true, "first")) + &ask("held", question("responses", true, "held"));
    let script = Script::default().turn(Turn::text("First."), Usage::new(31, 7)).turn(held(), Usage::new(1, 1));
    let upstream = Upstream::start(script);
    shell(&actum, &lines, &upstream.url(), "");
    let mut item = paid(ENOUGH);
    item["constraints"]["timeout_ms"] = json!(5000);
    let (code, run) = one(&actum, item, &WIDE);
    assert_eq!((code, &run["status"]), (4, &json!("timeout")), "{run}");
    is_left_open(&actum, &id(&run));
    upstream.release();
}

/// He asks, and goes before he has heard anything: what it costs is found out all the same, if the answer comes in time.
#[test]
fn whoever_goes_before_the_answer_pays_for_it() {
    let actum = program();
    let (path, body) = question("chat", true, "gone");
    let lines = format!(
        "curl -sN -m 1 -o /dev/null -H \"authorization: Bearer $K\" -d '{body}' \"$B{path}\"\n{}",
        ask("next", question("chat", false, "next"))
    );
    // The second question is held until the first is answered, whose caller is gone by then.
    let script = Script::default().turn(held(), Usage::new(40, 4)).turn(Turn::text("I am here."), Usage::new(2, 1));
    let upstream = Upstream::start(script);
    shell(&actum, &lines, &upstream.url(), "");
    let run = std::thread::scope(|scope| {
        let running = scope.spawn(|| one(&actum, paid(ENOUGH), &WIDE));
        upstream.wait_for(2);
        upstream.release();
        let (code, run) = running.join().unwrap();
        assert_eq!(code, 0, "{run}");
        run
    });
    let books = Books::of(&actum);
    assert!(answered(&actum, "next").2.contains("I am here."));
    assert_eq!(books.receipts.len(), 2);
    for receipt in &books.receipts {
        assert!(["committed", "reconcile_required"].contains(&receipt["budget"]["state"].as_str().unwrap()));
    }
    books.agree();
    drop(upstream.stop());
    repeats(&actum, &id(&run));
}

/// Two runs at once, one purse; once more with purses of their own within it.
#[test]
fn two_runs_share_a_purse() {
    share(None);
    share(Some(120_000));
}

fn share(own: Option<u64>) {
    let actum = program();
    let answers = Usage::new(100, 900);
    let script = (0..40).fold(Script::default(), |script, _| script.turn(Turn::text("Yes."), answers));
    let upstream = Upstream::start(script);
    let mut settings = String::new();
    for name in ["a", "b"] {
        let asks: String = (0..10)
            .map(|n| {
                let (path, body) = question("chat", n % 2 == 0, &format!("{name} asks {n}"));
                format!("curl -sN -m 60 -o /dev/null -H \"authorization: Bearer $OPENAI_API_KEY\" -d '{body}' $OPENAI_HOST{path}\n")
            })
            .collect();
        settings += &format!(
            "[agents.{name}]\ntype = \"command\"\ncommand = [\"sh\", \"-uc\", {}]\nnetwork = \"gateway\"\n",
            json!(asks + &format!("echo done > {name}.txt"))
        );
    }
    actum.file("actum.toml", format!("{settings}\n{}", providers(&upstream.url(), "")));
    let limit = 150_000;
    actum.run(&["spend", "authorize", "--max-total", &limit.to_string(), "--reason", "tests"]).ok();
    let runs: Vec<Value> = std::thread::scope(|scope| {
        let actum = &actum;
        let start = |name: &'static str| {
            let budget = own.map_or(json!({}), |max_total| json!({"spend": {"max_total": max_total}}));
            scope.spawn(move || one(actum, with(item(name, name), "budget", budget), &WIDE).1)
        };
        let started = ["a", "b"].map(start);
        started.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let denied: Vec<&Value> = runs.iter().filter(|run| run["status"] == "denied").collect();
    assert!(!denied.is_empty(), "{runs:?}");
    for one in &denied {
        assert!(one.to_string().contains("policy_denied.budget_exhausted"), "{one}");
    }
    let books = Books::of(&actum);
    let spent = books.agree();
    assert_eq!(spent, cost(upstream.used()));
    assert!(spent <= limit && spent > limit / 2, "{spent}");
    assert_eq!(books.reservations.len(), upstream.calls().len());
    assert_eq!(books.authorizations.len(), if own.is_some() { 3 } else { 1 }, "{:?}", books.authorizations);
    drop(upstream.stop());
    for one in &runs {
        repeats(&actum, &id(one));
    }
}

#[test]
fn a_repetition_asks_anew_only_if_it_is_told_to() {
    let actum = program();
    let script = Script::default()
        .turn(Turn::text("The first time."), Usage::new(31, 7))
        .turn(Turn::text("Another time."), Usage::new(31, 7));
    let upstream = Upstream::start(script);
    shell(&actum, &ask("said", question("chat", false, "which time?")), &upstream.url(), "");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    let (run, live) = (id(&run), ["replay", "--live", "--json"]);
    assert_eq!((repeats(&actum, &run), upstream.calls().len()), (0, 1), "nobody is asked");
    // Whoever asks anew pays anew, out of a budget like the run's.
    let ended = actum.run(&[&live[..], &[&run]].concat());
    assert_eq!((ended.code, upstream.calls().len()), (1, 2), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.json()["first_difference"]["path"], "out/said");
    assert_eq!(Books::of(&actum).agree(), 2 * cost(Usage::new(31, 7)));
}
