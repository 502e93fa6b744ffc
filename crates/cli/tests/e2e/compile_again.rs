//! Compiles that are killed, done by two at once, or done again elsewhere: always the same report, nothing that was answered
//! is asked twice, and all money is accounted for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream};
use serde_json::{Value, json};

use super::actum;
use super::compile::{COST, answer, compile, essence, job, last, prepared, project, says, score, selected, sensible};
use super::money::assert_money_agrees;
use super::predict::KEY;
use super::run::asked;

/// A smaller one: every death means to do it once more.
fn small() -> Value {
    let mut job = job();
    job["candidates"].as_array_mut().unwrap().pop();
    job
}

/// A report without when and by whom it was asked for.
fn report_of(shown: &Value) -> Value {
    let mut report = shown.clone();
    for name in ["asked", "idempotent_replay", "eval_reports"] {
        report.as_object_mut().unwrap().remove(name);
    }
    report
}

fn killed(actum: &Program, at: &str) {
    let words = ["compile", "job.json", "--json", "--parallel", "1"];
    let mut running = actum.start(&words, &[("ACTUM_CRASH_AT", at)]);
    let line = running.error_line().unwrap_or_default();
    assert!(line.starts_with("crash point"), "{at}: {line}");
    running.kill();
}

#[test]
fn compile_goes_on_after_it_was_killed_between_questions() {
    goes_on(&[("trial.answered#1", 0, 0), ("trial.answered#7", 0, 0), ("compile.reporting", 0, 0)]);
}

#[test]
fn compile_goes_on_after_it_was_killed_within_a_question() {
    goes_on(&[("model.reserved#3", 0, 1), ("model.answered#3", 1, 1), ("model.settled#3", 1, 0)]);
}

/// Where it dies, how many answers are lost with it, and how many payments are left open.
fn goes_on(places: &[(&str, usize, usize)]) {
    let reference = Upstream::start(sensible());
    let whole = compile(&project(&reference, &small()), &[]);
    let cells = reference.calls().len();
    for &(at, lost, open) in places {
        let upstream = Upstream::start(sensible());
        let actum = project(&upstream, &small());
        killed(&actum, at);
        assert_eq!(asked(&actum, &["compile", "--list", "--json"])["reports"], json!([]), "{at}");
        let before = upstream.calls().len();
        let report = compile(&actum, &[]);
        assert_eq!(report_of(&report), report_of(&whole), "{at}");
        assert_eq!(essence(&report), essence(&whole), "{at}");
        assert_eq!(upstream.calls().len(), cells + lost, "{at}: {before} before");
        assert_eq!(report["asked"], cells + lost - before, "{at}");
        assert_eq!(compile(&actum, &[])["asked"], 0, "{at}");
        let stuck = asked(&actum, &["spend", "reconcile", "--json"])["reservations"].clone();
        assert_eq!(stuck.as_array().unwrap().len(), open, "{at}: {stuck}");
        for one in stuck.as_array().unwrap() {
            let [call, run] = ["call_id", "run_id"].map(|name| one[name].as_str().unwrap());
            actum.run(&["spend", "reconcile", call, "--run", run, "--commit", "52"]).ok();
        }
        let (spent, held) = assert_money_agrees(&actum, "auth_all");
        let unasked = u64::from(at.starts_with("model.reserved"));
        assert_eq!((spent, held), (52 * (upstream.calls().len() as u64 + unasked), 0), "{at}");
        assert_eq!(actum.run(&["store", "check"]).code, 0, "{at}");
    }
}

/// A model that does not say the same twice: whose answer was first counts for both.
#[test]
fn compile_by_two_at_once_comes_to_one_report() {
    let moody = |body: &Value, before: usize| {
        let (turn, usage) = match before {
            0 => answer(body),
            _ => says(if last(body).contains("went well") { "negative" } else { "positive" }),
        };
        Some((Turn::Held(Box::new(turn)), usage))
    };
    let upstream = Upstream::start(Script::default().by(moody));
    let two = two_machines(&upstream);
    let words = ["compile", "job.json", "--json", "--parallel", "1"];
    let both = scope(|scope| {
        let both = two.each_ref().map(|actum| scope.spawn(|| actum.run(&words)));
        // Each has asked its first question, and nobody has an answer.
        upstream.wait_for(2);
        (0..1_000).for_each(|_| upstream.release());
        both.map(|one| one.join().unwrap())
    });
    let reports = both.map(|ended| {
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.json()
    });
    assert_eq!(essence(&reports[0]), essence(&reports[1]));
    let actum = &two[0];
    let listed = asked(actum, &["compile", "--list", "--json"])["reports"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0], report_of(&reports[0]));
    // What the report says of its evals is what they say.
    for eval in reports[0]["evals"].as_array().unwrap() {
        let id = eval["eval_id"].as_str().unwrap();
        let shown = asked(actum, &["eval", "--show", id, "--json"]);
        assert_eq!(shown["score"], eval["score"]);
        let scores: Vec<f64> =
            shown["results"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect();
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        assert!((mean - eval["score"].as_f64().unwrap()).abs() < 0.00001, "{shown}");
    }
    assert_eq!(assert_money_agrees(actum, "auth_all").1, 0);
    assert_eq!(actum.run(&["store", "check"]).code, 0);
}

/// On one machine the second waits for the first, and finds everything answered.
#[test]
fn compile_by_two_on_one_machine_asks_once() {
    let reference = Upstream::start(sensible());
    compile(&project(&reference, &small()), &[]);
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &small());
    let reports = scope(|scope| [0, 1].map(|_| scope.spawn(|| compile(&actum, &[]))).map(|one| one.join().unwrap()));
    assert_eq!(essence(&reports[0]), essence(&reports[1]));
    assert_eq!(upstream.calls().len(), reference.calls().len());
}

/// Two folders with a store in common.
fn two_machines(upstream: &Upstream) -> [Program; 2] {
    let url = shared_url();
    [0, 1].map(|_| prepared(actum().with_env("STUB_KEY", KEY).on_store(&url), upstream, &small()))
}

/// One has begun and waits for its first answer; another one does it all and dies before it reports. Its answers were on
/// record first: they count, and not what the slow one hears to the same questions.
#[test]
fn compile_by_a_slow_one_comes_to_what_a_dead_one_has_found() {
    let is_first = AtomicBool::new(true);
    let moody = move |body: &Value, before: usize| {
        let contrary = if last(body).contains("went well") { "negative" } else { "positive" };
        let (turn, usage) = if before == 0 { answer(body) } else { says(contrary) };
        let is_held = is_first.swap(false, Ordering::SeqCst);
        Some((if is_held { Turn::Held(Box::new(turn)) } else { turn }, usage))
    };
    let upstream = Upstream::start(Script::default().by(moody));
    let [actum, other] = two_machines(&upstream);
    let slow = actum.start(&["compile", "job.json", "--json", "--parallel", "1"], &[]);
    upstream.wait_for(1);
    killed(&other, "compile.reporting");
    let found = asked(&actum, &["eval", "--list", "--json"])["evals"].clone();
    upstream.release();
    let (code, lines, errors) = slow.finish();
    assert_eq!(code, 0, "{errors:?}");
    let report: Value = serde_json::from_str(&lines.join("\n")).unwrap();
    assert_eq!(asked(&actum, &["eval", "--list", "--json"])["evals"], found, "there are no others");
    assert_eq!(report["eval_reports"], found);
    let name = selected(&report);
    assert_eq!(report["comparison"]["mean_a"], score(&report, &name, "test"));
    assert_eq!(report["comparison"]["mean_b"], score(&report, "baseline", "test"));
}

/// Somewhere else, with nothing but the files.
fn elsewhere(from: &Program, to: Program) -> Program {
    for name in ["job.json", "texts.jsonl", "sentiment.yaml", "answers.jsonl"] {
        to.file(name, std::fs::read(from.path(name)).unwrap());
    }
    to.file("actum.toml", "[providers.other]\ntype = \"recorded\"\nfile = \"answers.jsonl\"\nmodels = [\"stub-1\"]\n");
    to
}

#[test]
fn compile_is_replayed_on_another_machine() {
    let upstream = Upstream::start(sensible());
    let here = project(&upstream, &job());
    let report = compile(&here, &["--record", "answers.jsonl"]);
    drop(upstream);
    for there in [actum(), actum().owned_by_nobody()] {
        let there = elsewhere(&here, there);
        there.run(&["signature", "add", "sentiment.yaml"]).ok();
        for words in [&["--parallel", "1"][..], &["--parallel", "8"]] {
            let again = compile(&there, words);
            assert_eq!(essence(&again), essence(&report));
        }
        for name in ["report_id", "job_hash", "dataset_hash", "selected_artifact", "evals", "comparison"] {
            assert_eq!(compile(&there, &[])[name], report[name], "{name}");
        }
        let eval = report["evals"][0]["eval_id"].as_str().unwrap();
        let [a, b] = [&here, &there].map(|actum| {
            let shown = asked(actum, &["eval", "--show", eval, "--json"]);
            let results = shown["results"].as_array().unwrap().clone();
            results
                .iter()
                .map(|one| (one["example_id"].clone(), one["score"].clone(), one["output"].clone()))
                .collect::<Vec<_>>()
        });
        assert_eq!(a, b);
        // A question that was not asked there has no answer here, and that is told.
        let mut other = job();
        other["candidates"][0]["prompt_template"] = json!("Quite another one: {{ text }}");
        there.file("job.json", other.to_string());
        let unknown = there.run(&["compile", "job.json", "--json"]);
        assert_eq!((unknown.code, &unknown.error()["code"]), (1, &json!("PREDICT_FAILED")), "{}", unknown.stderr);
    }
}

#[test]
fn compile_that_died_can_be_replayed_too() {
    let upstream = Upstream::start(sensible());
    let here = project(&upstream, &small());
    let words = ["compile", "job.json", "--json", "--parallel", "1", "--record", "answers.jsonl"];
    let mut running = here.start(&words, &[("ACTUM_CRASH_AT", "model.answered#4")]);
    assert!(running.error_line().is_some());
    running.kill();
    let report = compile(&here, &["--record", "answers.jsonl"]);
    let there = elsewhere(&here, actum());
    there.run(&["signature", "add", "sentiment.yaml"]).ok();
    assert_eq!(essence(&compile(&there, &[])), essence(&report));
}

/// Secrets in texts are neither asked nor kept, here or there.
#[test]
fn compile_of_private_texts_is_the_same_elsewhere() {
    let upstream = Upstream::start(Script::default().by(|body, _| {
        assert!(!body.to_string().contains("ann@example.com"));
        let (turn, _) = answer(body);
        Some((turn, COST))
    }));
    let here = prepared(actum().with_env("STUB_KEY", KEY), &upstream, &small());
    let text = std::fs::read_to_string(here.path("texts.jsonl")).unwrap().replace("went", "ann@example.com went");
    here.file("texts.jsonl", text);
    let report = compile(&here, &["--record", "answers.jsonl"]);
    assert_eq!((selected(&report).as_str(), score(&report, "asked", "test")), ("asked", 1.0));
    super::predict::assert_nothing_holds(&here, "ann@example.com");
    let there = elsewhere(&here, actum());
    there.run(&["signature", "add", "sentiment.yaml"]).ok();
    assert_eq!(essence(&compile(&there, &[])), essence(&report));
}
