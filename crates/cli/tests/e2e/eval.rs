//! Evals by way of the real binary: one artifact on examples, two against each other, and the gates that close by their exit
//! code.

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Upstream};
use serde_json::{Value, json};

use super::artifact::{added, artifact_of};
use super::compile::{answer, job, last, project, says, sensible};
use super::dataset::ID;
use super::money::assert_money_agrees;
use super::run::asked;

/// An artifact that is asked well, and the project it is in.
fn better(upstream: &Upstream) -> (Program, String) {
    let actum = project(upstream, &job());
    let good = with_prompt(&actum, "Well or badly? {{ text }}");
    actum.run(&["dataset", "import", "texts.jsonl", "--signature", ID, "--split", "40/30/30"]).ok();
    (actum, good)
}

fn with_prompt(actum: &Program, prompt: &str) -> String {
    let mut artifact = artifact_of(actum, prompt);
    artifact["program_template"] = json!({"strategy": "direct.v1", "model": "stub-1", "max_output_tokens": 10});
    added(actum, &artifact)
}

fn eval(actum: &Program, words: &[&str]) -> (i32, Value) {
    let ended = actum.run(&[&["eval", "--dataset", "texts", "--signature", ID, "--json"], words].concat());
    assert!(!ended.stdout.is_empty(), "{words:?}: {}", ended.stderr);
    (ended.code, ended.json())
}

#[test]
fn eval_of_one_artifact_is_made_once() {
    let upstream = Upstream::start(sensible());
    let (actum, good) = better(&upstream);
    let (code, told) = eval(&actum, &[&good]);
    assert_eq!(
        (code, &told["score"], &told["passed"], &told["failed_because"]),
        (0, &json!(1.0), &json!(true), &Value::Null)
    );
    assert_eq!(told["comparison"], Value::Null);
    let samples = told["samples"].as_u64().unwrap();
    assert_eq!((&told["asked"], upstream.calls().len() as u64), (&json!(samples), samples));
    let made = &told["evals"][0];
    assert_eq!(
        (&made["split"], &made["samples"], &made["interval"]["low"]),
        (&json!("test"), &json!(samples), &json!(1))
    );
    // The same again asks nothing, whatever it is called by.
    let (_, again) = eval(&actum, &[&good[..14]]);
    assert_eq!((&again["asked"], &again["evals"]), (&json!(0), &told["evals"]));
    assert_eq!(upstream.calls().len() as u64, samples);
    // Under another label, by another metric, and on another part it is another one; only under another label is it asked anew.
    let other = ["--metric", "{\"kind\": \"contains\", \"field\": \"label\"}"];
    for (words, new) in [(["--label", "monday"], samples), (other, 0)] {
        let words = &words[..];
        let (_, anew) = eval(&actum, &[&[good.as_str()], words].concat());
        assert_eq!((&anew["asked"], &anew["score"]), (&json!(new), &json!(1.0)), "{words:?}");
        assert_ne!(anew["evals"][0]["eval_id"], made["eval_id"]);
        assert_eq!(eval(&actum, &[&[good.as_str()], words].concat()).1["asked"], 0);
    }
    // All parts: only those that were not examined yet are asked.
    let (_, all) = eval(&actum, &[&good, "--split", "all"]);
    assert_eq!((&all["samples"], &all["asked"]), (&json!(30), &json!(30 - samples)));
    assert_eq!(all["evals"].as_array().unwrap().len(), 3);
    assert_eq!(assert_money_agrees(&actum, "auth_all"), (52 * upstream.calls().len() as u64, 0));
    // Example by example, and all there are.
    let id = made["eval_id"].as_str().unwrap();
    let shown = asked(&actum, &["eval", "--show", &id[..12], "--json"]);
    let results = shown["results"].as_array().unwrap();
    assert_eq!(results.len() as u64, samples);
    for one in results {
        let receipt = one["receipt_id"].as_str().unwrap();
        assert!(actum.run(&["trace", "show", receipt]).ok().contains("Well or badly?"));
    }
    assert_eq!(asked(&actum, &["eval", "--list", "--json"])["evals"].as_array().unwrap().len(), 5);
    let text = actum.run(&["eval", "--list"]).ok();
    assert!(text.contains(id) && text.contains("holdout"), "{text}");
    assert!(actum.run(&["eval", "--show", id]).ok().contains("RECEIPT"));
    assert_eq!(actum.run(&["eval", "--show", "eval_none"]).code, 7);
    assert_eq!(actum.run(&["eval", "--show", "eval_"]).code, 2, "that may be any of them");
}

#[test]
fn eval_of_two_closes_the_gate_where_it_has_to() {
    let upstream = Upstream::start(sensible());
    let (actum, good) = better(&upstream);
    let (code, told) = eval(&actum, &[&good, "--against", "baseline", "--split", "all", "--max-drop", "0"]);
    assert_eq!((code, &told["passed"]), (0, &json!(true)));
    let comparison = &told["comparison"];
    assert_eq!(
        (&comparison["mean_a"], &comparison["mean_b"], &comparison["better"]),
        (&json!(1.0), &json!(0.5), &json!(15))
    );
    assert_eq!((&comparison["is_significant"], &comparison["samples"]), (&json!(true), &json!(30)));
    let difference = &comparison["difference"];
    let [low, mean, high] = ["low", "mean", "high"].map(|name| difference[name].as_f64().unwrap());
    assert!(0.2 < low && low < mean && mean < high && high < 0.8 && (mean - 0.5).abs() < 0.00001, "{difference}");
    let calls = upstream.calls().len();
    for (words, exit, told) in [
        (&["--max-drop", "0"][..], 1, "worse by 0.5"),
        (&["--max-drop", "0.49"], 1, "may be by 0.49"),
        (&["--max-drop", "0.5"], 0, ""),
        (&["--max-drop", "0", "--gate", "interval"], 1, "high end of the differences"),
        (&["--max-drop", "0.45", "--gate", "interval"], 0, ""),
        (&["--max-drop", "0.45", "--gate", "mean"], 1, "mean of the differences"),
        (&["--min-score", "0.5"], 0, ""),
        (&["--min-score", "0.51"], 1, "must not be lower than 0.51"),
        (&["--min-score", "0.4", "--max-drop", "0.1"], 1, "worse by 0.5"),
    ] {
        let words = [&["baseline", "--against", &good, "--split", "all"], words].concat();
        let (code, shown) = eval(&actum, &words);
        assert_eq!((code, &shown["passed"]), (exit, &json!(exit == 0)), "{words:?}: {shown}");
        assert_eq!(shown["comparison"]["worse"], 15);
        let because = shown["failed_because"].as_str().unwrap_or_default();
        assert!(because.contains(told) && because.is_empty() == told.is_empty(), "{words:?}: {because}");
        let plain = actum.run(&[&["eval", "--dataset", "texts", "--signature", ID], &words[..]].concat());
        assert_eq!((plain.code, plain.stderr.contains(told)), (exit, true), "{}", plain.stderr);
        assert!(plain.stdout.contains("ANSWER OF A") && plain.stdout.contains("a is worse"), "{}", plain.stdout);
    }
    assert_eq!(upstream.calls().len(), calls, "all of that was known");
    // A gate that is no number would never close.
    for words in [
        &["--min-score", "nan"][..],
        &["--min-score", "inf"],
        &["--min-score", "1.1"],
        &["--min-score=-0.1"],
        &["--max-drop", "NaN", "--against", "baseline"],
        &["--max-drop=-0.1", "--against", "baseline"],
        &["--max-drop", "inf", "--against", "baseline"],
        &["--max-drop", "0.1"],
        &["--gate", "median"],
    ] {
        let words = [&["eval", &good, "--dataset", "texts", "--signature", ID], words].concat();
        assert_eq!(actum.run(&words).code, 2, "{words:?}");
    }
}

#[test]
fn eval_knows_who_is_live() {
    let upstream = Upstream::start(Script::default().by(|body, _| {
        let text = last(body);
        Some(if text.starts_with("Contrary") { says("negative") } else { answer(body) })
    }));
    let (actum, good) = better(&upstream);
    for word in ["primary", "canary"] {
        let refused = actum.run(&["eval", word, "--dataset", "texts", "--signature", ID]);
        assert_eq!((refused.code, refused.stderr.contains("actum pointer show")), (7, true), "{}", refused.stderr);
    }
    let other = with_prompt(&actum, "Contrary: {{ text }}");
    actum.run(&["pointer", "set", ID, "--primary", &other, "--reason", "first"]).ok();
    actum.run(&["pointer", "canary", ID, "--artifact", &good, "--percent", "20", "--reason", "try"]).ok();
    let (code, told) = eval(&actum, &["canary", "--against", "primary", "--max-drop", "0.02"]);
    assert_eq!((code, &told["comparison"]["a"], &told["comparison"]["b"]), (0, &json!(good), &json!(other)));
    let (code, told) = eval(&actum, &["primary", "--against", "canary", "--max-drop", "0.02"]);
    assert_eq!((code, &told["asked"]), (1, &json!(0)), "{told}");
    // Against itself nothing is better or worse.
    let (code, told) = eval(&actum, &["canary", "--against", &good, "--max-drop", "0"]);
    assert_eq!((code, &told["comparison"]["difference"]["mean"]), (0, &json!(0.0)));
    // By its id an artifact tells whose it is; a file has to be told.
    let file = actum.run(&["eval", &good, "--dataset", "texts.jsonl", "--split", "all", "--json"]);
    assert_eq!((file.code, &file.json()["samples"]), (0, &json!(30)), "{}", file.stderr);
    assert_eq!(actum.run(&["eval", "baseline", "--dataset", "texts.jsonl"]).code, 2);
    // The results of what is live are no examples.
    assert_eq!(actum.run(&["dataset", "export", "--signature", ID]).code, 2);
}

#[test]
fn eval_refuses_what_does_not_belong_together() {
    let upstream = Upstream::start(sensible());
    let (actum, good) = better(&upstream);
    let text = std::fs::read_to_string(actum.path("sentiment.yaml")).unwrap();
    actum.file("second.yaml", text.replace("version: 1", "version: 2").replace("Everything", "Anything"));
    actum.run(&["signature", "add", "second.yaml"]).ok();
    let second = "demo/Sentiment.v2";
    actum.run(&["dataset", "import", "texts.jsonl", "--signature", second, "--name", "second"]).ok();
    let mut unfit = artifact_of(&actum, "Unfit: {{ text }}");
    unfit["schema_hash"] = json!("0".repeat(64));
    let unfit = added(&actum, &unfit);
    actum.run(&["dataset", "import", "texts.jsonl", "--signature", ID, "--split", "100/0/0", "--name", "learnt"]).ok();
    for (words, code, told) in [
        (&[good.as_str(), "--dataset", "second", "--signature", second][..], 1, "artifact_incompatible.hash_mismatch"),
        (&[unfit.as_str(), "--dataset", "texts"], 1, "artifact_incompatible.hash_mismatch"),
        (&[good.as_str(), "--dataset", "texts", "--against", &unfit], 1, "artifact_incompatible.hash_mismatch"),
        (&["art_000000000000000000000000", "--dataset", "texts"], 7, "artifact"),
        (&[good.as_str(), "--dataset", "none"], 7, "none"),
        (&["nothing", "--dataset", "texts", "--signature", ID], 7, "nothing"),
        (&[good.as_str()], 2, "--dataset"),
        (&[good.as_str(), "--dataset", "learnt"], 2, "no examples in this part"),
        (&[good.as_str(), "--dataset", "learnt", "--split", "holdout"], 2, "no examples in this part"),
        (&[good.as_str(), "--dataset", "texts", "--split", "most"], 2, "--split"),
        (&[good.as_str(), "--dataset", "texts", "--metric", "best"], 2, "exact_match"),
        (&[good.as_str(), "--dataset", "texts", "--metric", "{"], 2, "--metric"),
        (
            &[good.as_str(), "--dataset", "texts", "--metric", "{\"kind\": \"judge\", \"signature\": \"demo/No.v1\"}"],
            7,
            "demo/No.v1",
        ),
    ] {
        let refused = actum.run(&[&["eval"], words].concat());
        assert_eq!(refused.code, code, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(told), "{told} is missing in {}", refused.stderr);
    }
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(asked(&actum, &["eval", "--list", "--json"])["evals"], json!([]), "nothing was examined");
    // A part in which there is nothing is no part of all.
    let (code, told) = {
        let ended = actum.run(&["eval", &good, "--dataset", "learnt", "--split", "all", "--json"]);
        (ended.code, ended.json())
    };
    assert_eq!((code, &told["samples"], told["evals"].as_array().unwrap().len()), (0, &json!(30), 1));
    // Examples of another signature are taken if they fit.
    let ended = actum.run(&["eval", &good, "--dataset", "second", "--json"]);
    assert_eq!((ended.code, &ended.json()["signature_id"]), (0, &json!(ID)), "{}", ended.stderr);
}

#[test]
fn eval_goes_on_within_another_budget() {
    let upstream = Upstream::start(sensible());
    let (actum, good) = better(&upstream);
    actum.run(&["spend", "revoke", "auth_all"]).ok();
    let words = ["eval", &good, "--dataset", "texts", "--split", "all", "--json", "--parallel", "1"];
    assert_eq!(actum.run(&words).code, 3);
    actum.run(&["spend", "authorize", "--max-total", "1500", "--id", "auth_few"]).ok();
    let short = actum.run(&words);
    assert_eq!((short.code, &short.error()["code"]), (3, &json!("SPEND_DENIED")), "{}", short.stderr);
    let first = upstream.calls().len();
    assert!(first > 2, "{first}");
    actum.run(&["spend", "authorize", "--max-total", "1usd", "--id", "auth_more"]).ok();
    let ended = actum.run(&words);
    assert_eq!((ended.code, upstream.calls().len()), (0, 30), "{}", ended.stderr);
    assert_eq!(ended.json()["asked"], 30 - first);
    let [few, more] = ["auth_few", "auth_more"].map(|id| assert_money_agrees(&actum, id));
    assert_eq!((few.0 + more.0, few.1 + more.1), (52 * 30, 0));
}
