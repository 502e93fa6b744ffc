//! What compiles and evals must not be talked into: examples they are examined by, fields that are not there, answers of
//! other models, money that nobody can account for. And what they share, and how they stop.

use std::sync::atomic::{AtomicUsize, Ordering};

use actum_testkit::program::{Program, Running};
use actum_testkit::upstream::{Script, Turn, Upstream};
use serde_json::{Value, json};

use super::artifact::{added, artifact_of};
use super::compile::{answer, compile, essence, job, last, project, score, selected, sensible, settings};
use super::dataset::{ID, labelled};
use super::money::assert_money_agrees;
use super::run::asked;

/// One candidate beside the signature itself.
fn small() -> Value {
    let mut job = job();
    job["candidates"].as_array_mut().unwrap().pop();
    job
}

fn planned(actum: &Program, job: &Value, more: &[&str]) -> Value {
    actum.file("planned.json", job.to_string());
    asked(actum, &[&["compile", "planned.json", "--dry-run", "--json"], more].concat())
}

fn datasets(actum: &Program) -> usize {
    asked(actum, &["dataset", "list", "--json"])["datasets"].as_array().unwrap().len()
}

/// One example of each part, as a shot.
fn shots() -> [Value; 3] {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    asked(&actum, &["dataset", "import", "texts.jsonl", "--signature", ID, "--split", "40/30/30", "--json"]);
    let lines = actum.run(&["dataset", "show", "texts", "--lines"]).json_lines();
    ["train", "holdout", "test"].map(|split| {
        let one = lines.iter().find(|line| line["split"] == split).unwrap();
        json!({"input": one["input"], "output": one["expected"]})
    })
}

fn shown(shots: &Value) -> Value {
    let mut job = small();
    job["candidates"][0]["few_shot"] = shots.clone();
    job
}

#[test]
fn fence_nobody_is_shown_what_he_is_examined_by() {
    let [train, holdout, test] = shots();
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    let refused = |job: &Value, words: &[&str]| {
        for more in [&[][..], &["--dry-run"]] {
            actum.file("bad.json", job.to_string());
            let ended = actum.run(&[&["compile", "bad.json", "--json"], more].concat());
            assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("INPUT_INVALID")), "{job}: {}", ended.stderr);
            for word in words {
                assert!(ended.stderr.contains(word), "{word} is missing in {}", ended.stderr);
            }
        }
    };
    for (shot, part) in [(&holdout, "holdout"), (&test, "test")] {
        refused(&shown(&json!([train, shot])), &["asked", part, "few_shot: N"]);
        let mut artifact = artifact_of(&actum, "Well or badly? {{ text }}");
        artifact["program_template"] = json!({"strategy": "direct.v1", "model": "stub-1"});
        artifact["few_shot"] = json!([train, shot]);
        let id = added(&actum, &artifact);
        let mut named = small();
        named["candidates"][0] = json!({"name": "taught", "artifact": id});
        refused(&named, &["taught", part]);
        // Another answer to the same question shows the question all the same.
        let mut other = shot.clone();
        other["output"]["label"] = json!(if shot["output"]["label"] == "positive" { "negative" } else { "positive" });
        refused(&shown(&json!([other])), &[part]);
    }
    planned(&actum, &shown(&json!([train])), &[]);
    // What is kept without an address is still the same text.
    let private: Vec<Value> = labelled(30)
        .replace("went", "ann@example.com went")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    actum.file("private.jsonl", private.iter().map(|line| format!("{line}\n")).collect::<String>());
    let all: Vec<Value> = private.iter().map(|one| json!({"input": one["input"], "output": one["expected"]})).collect();
    let mut job = shown(&json!(all));
    job["dataset"]["file"] = json!("private.jsonl");
    refused(&job, &["asked", "holdout"]);
    assert_eq!((upstream.requests().len(), datasets(&actum)), (0, 0));
}

/// One that is asked about numbers.
const NUMBERS: &str = r#"
namespace: demo
name: Size
version: 1
input_schema: {type: object, properties: {n: {type: number}}, required: [n], additionalProperties: false}
output_schema: {type: object, properties: {label: {enum: [large, small]}}, required: [label], additionalProperties: false}
prompt_template: "How large is {{ n }}?"
program_template: {strategy: direct.v1, model: stub-1, max_output_tokens: 10}
"#;

#[test]
fn fence_a_number_is_the_same_however_it_is_written() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    actum.file("size.yaml", NUMBERS);
    actum.run(&["signature", "add", "size.yaml"]).ok();
    let line = |n: usize| format!("{{\"input\": {{\"n\": {n}}}, \"expected\": {{\"label\": \"small\"}}}}\n");
    actum.file("sizes.jsonl", (0..30).map(line).collect::<String>());
    let shot = |n: usize| format!("{{\"input\": {{\"n\": {n}.0}}, \"output\": {{\"label\": \"small\"}}}}");
    let shots: Vec<String> = (0..30).map(shot).collect();
    let text = format!(
        "{{\"signature_id\": \"demo/Size.v1\", \"dataset\": {{\"file\": \"sizes.jsonl\", \"split\": \"40/30/30\"}}, \
         \"metric\": \"exact_match\", \"candidates\": [{{\"name\": \"taught\", \"few_shot\": [{}]}}]}}",
        shots.join(", ")
    );
    actum.file("sizes.json", text);
    let ended = actum.run(&["compile", "sizes.json", "--dry-run", "--json"]);
    assert!(ended.code == 2 && ended.stderr.contains("examined by"), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn fence_what_cannot_be_is_refused_before_anything_is_asked() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    let with = |path: &str, value: Value| {
        let mut job = job();
        *job.pointer_mut(path).unwrap() = value;
        job
    };
    let typo = json!({"kind": "field_match", "fields": ["label", "lable"]});
    for (job, words) in [
        (with("/metric", typo.clone()), "no field \"lable\"; it has label"),
        (with("/metric", json!({"kind": "contains", "field": "text"})), "it has label"),
        (with("/metric", json!({"kind": "numeric_tolerance", "field": "/n", "tolerance": 1})), "it has label"),
        (with("/candidates/1/prompt_template", json!("What of {{ txt }}?")), "shouted"),
        (with("/candidates/0", json!({"name": "few", "few_shot": 60})), "few"),
    ] {
        for more in [&[][..], &["--dry-run"]] {
            actum.file("bad.json", job.to_string());
            let ended = actum.run(&[&["compile", "bad.json", "--json"], more].concat());
            assert_eq!(ended.code, 2, "{words}: {}", ended.stderr);
            assert!(ended.error()["message"].as_str().unwrap().contains(words), "{words}: {}", ended.stderr);
        }
    }
    let metric = typo.to_string();
    let words = ["eval", "baseline", "--dataset", "texts.jsonl", "--signature", ID, "--metric", &metric, "--json"];
    let ended = actum.run(&words);
    assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("USAGE")), "{}", ended.stderr);
    assert!(ended.stderr.contains("it has label"), "{}", ended.stderr);
    let ended = actum.run(&["eval", "art_000000000000", "--dataset", "texts.jsonl", "--signature", ID]);
    assert_eq!(ended.code, 7, "{}", ended.stderr);
    actum.file(
        "guard.json",
        json!({"samples": 1, "score": typo, "bounds": [{"metric": "score", "min": 1}]}).to_string(),
    );
    asked(&actum, &["pointer", "set", ID, "--primary", "baseline", "--reason", "x", "--json"]);
    let id = added(&actum, &artifact_of(&actum, "Other: {{ text }}"));
    let canary = ["pointer", "canary", ID, "--artifact", &id, "--percent", "5", "--guard", "guard.json"];
    let ended = actum.run(&[&canary[..], &["--reason", "x", "--json"]].concat());
    assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("INPUT_INVALID")), "{}", ended.stderr);
    assert!(ended.stderr.contains("it has label"), "{}", ended.stderr);
    assert_eq!(asked(&actum, &["pointer", "show", ID, "--json"])["revision"], 1);
    planned(&actum, &job(), &[]);
    assert_eq!((upstream.requests().len(), datasets(&actum)), (0, 0), "nothing is left of all that");
    // Examples of another signature are looked at, and stay those of the other one.
    let yaml = std::fs::read_to_string(actum.path("sentiment.yaml")).unwrap().replace("version: 1", "version: 2");
    actum.file("second.yaml", yaml);
    actum.run(&["signature", "add", "second.yaml"]).ok();
    let words = ["dataset", "import", "texts.jsonl", "--signature", ID, "--split", "40/30/30", "--json"];
    let mut second = with("/dataset", asked(&actum, &words)["dataset_hash"].clone());
    second["signature_id"] = json!("demo/Sentiment.v2");
    planned(&actum, &second, &[]);
    asked(&actum, &["dataset", "show", "texts", "--signature", "demo/Sentiment.v2", "--json"]);
    assert_eq!(datasets(&actum), 1);
    actum.file("job.json", second.to_string());
    let report = compile(&actum, &[]);
    assert_eq!((datasets(&actum), report["signature_id"].as_str()), (2, Some("demo/Sentiment.v2")));
    let words = ["eval", "baseline", "--dataset", "texts", "--signature", "demo/Sentiment.v2", "--json"];
    assert_eq!(asked(&actum, &words)["dataset_hash"], report["dataset_hash"]);
}

/// Of several who are asked at once one is never answered: what the others cost is known all the same.
#[test]
fn fence_of_many_only_who_gets_no_answer_is_unknown() {
    let mut job = job();
    job["candidates"][0]["program_template"] =
        json!({"strategy": "direct.v1", "model": "stub-1", "max_output_tokens": 10, "timeout_ms": 2_000});
    job["candidates"][1] = json!({"name": "late", "prompt_template": "At last, well or badly? {{ text }}"});
    let reference = Upstream::start(sensible());
    let there = project(&reference, &job);
    let holdout = usize::try_from(planned(&there, &job, &[])["holdout"].as_u64().unwrap()).unwrap();
    let whole = compile(&there, &[]);
    // The last one of the impatient candidate hangs; those of the next one wait until it has given up.
    let impatient = AtomicUsize::new(0);
    let upstream = Upstream::start(Script::default().by(move |body, _| {
        let (text, (turn, usage)) = (last(body), answer(body));
        let turn = match () {
            () if text.starts_with("Well or badly") && impatient.fetch_add(1, Ordering::SeqCst) + 1 == holdout => {
                Turn::Hang
            }
            () if text.starts_with("At last") => Turn::Held(Box::new(turn)),
            () => turn,
        };
        Some((turn, usage))
    }));
    let actum = project(&upstream, &job);
    assert!(holdout >= 4, "{holdout}");
    let running = actum.start(&["compile", "job.json", "--json", "--parallel", "4"], &[]);
    // Three beside the one that hangs; the next one is asked by whoever has given that up.
    upstream.wait_for(2 * holdout + 4);
    (0..1_000).for_each(|_| upstream.release());
    let (code, _, errors) = running.finish();
    assert!(code == 1 && errors.concat().contains(&format!("1 of {} got no answer", 3 * holdout)), "{errors:?}");
    let list = ["spend", "reservations", "--authorization", "auth_all", "--limit", "1000", "--json"];
    let all = asked(&actum, &list)["reservations"].clone();
    let in_state = |word: &str| all.as_array().unwrap().iter().filter(|one| one["state"] == word).count();
    assert_eq!((in_state("reconcile_required"), in_state("committed")), (1, 3 * holdout - 1), "{all}");
    assert_eq!(all.as_array().unwrap().len(), 3 * holdout);
    let (spent, held) = assert_money_agrees(&actum, "auth_all");
    assert_eq!((spent, held > 0), (52 * (3 * holdout as u64 - 1), true));
    let receipts = asked(&actum, &["trace", "list", "--limit", "1000", "--json"])["receipts"].clone();
    let of =
        |kind: &str| receipts.as_array().unwrap().iter().filter(|one| one["kind"] == kind).cloned().collect::<Vec<_>>();
    let calls: Vec<Value> = of("call");
    assert_eq!(calls.iter().filter(|one| one["status"] == "unknown").count(), 1);
    let sum: u64 = of("prediction").iter().map(|one| one["budget"]["spent"].as_u64().unwrap()).sum();
    assert_eq!(sum, spent);
    // Only that one is asked again.
    let before = upstream.calls().len();
    let report = compile(&actum, &[]);
    let tested = reference.calls().len() - 3 * holdout;
    assert_eq!(upstream.calls().len() - before, 1 + tested);
    assert_eq!(essence(&report), essence(&whole));
}

/// Reads what is told until these words are in it.
fn hear(running: &mut Running, words: &str) {
    while let Some(line) = running.error_line() {
        if line.contains(words) {
            return;
        }
    }
    panic!("{words} was not told");
}

fn held() -> Upstream {
    Upstream::start(Script::default().by(|body, _| {
        let (turn, usage) = answer(body);
        Some((Turn::Held(Box::new(turn)), usage))
    }))
}

#[test]
fn fence_who_is_told_to_stop_asks_no_more_and_waits() {
    let upstream = held();
    let actum = project(&upstream, &small());
    let total = planned(&actum, &small(), &[])["predictions_max"].as_u64().unwrap();
    let mut running = actum.start(&["compile", "job.json", "--parallel", "2"], &[]);
    upstream.wait_for(2);
    running.signal("INT");
    hear(&mut running, "what is under way is waited for");
    (0..1_000).for_each(|_| upstream.release());
    let (code, lines, errors) = running.finish();
    assert_eq!((code, lines), (1, Vec::new()), "{errors:?}");
    assert!(errors.concat().contains("stopped when"), "{errors:?}");
    assert_eq!(upstream.calls().len(), 2);
    assert_eq!(assert_money_agrees(&actum, "auth_all"), (104, 0), "both are paid for, and nothing is open");
    assert_eq!(asked(&actum, &["compile", "--list", "--json"])["reports"], json!([]));
    let report = compile(&actum, &[]);
    assert_eq!((report["asked"].as_u64(), upstream.calls().len() as u64), (Some(total - 2), total));
    let reference = Upstream::start(sensible());
    assert_eq!(essence(&report), essence(&compile(&project(&reference, &small()), &[])));
    assert_eq!(assert_money_agrees(&actum, "auth_all"), (52 * total, 0));
}

#[test]
fn fence_who_is_told_twice_does_not_wait() {
    let upstream = held();
    let actum = project(&upstream, &small());
    let mut running = actum.start(&["compile", "job.json", "--parallel", "2"], &[]);
    upstream.wait_for(2);
    running.signal("INT");
    hear(&mut running, "what is under way is waited for");
    running.signal("TERM");
    // Nobody ever answers it.
    let (code, _, errors) = running.finish();
    assert!(code == 1 && errors.concat().contains("stopped when"), "{errors:?}");
    assert_eq!(upstream.calls().len(), 2);
    let list = ["spend", "reservations", "--authorization", "auth_all", "--json"];
    let all = asked(&actum, &list)["reservations"].clone();
    let states: Vec<&str> = all.as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["reconcile_required", "reconcile_required"]);
    assert_eq!(assert_money_agrees(&actum, "auth_all").0, 0);
    (0..1_000).for_each(|_| upstream.release());
    assert_eq!(selected(&compile(&actum, &[])), "asked");
}

/// A project whose signature names no model; the settings do.
fn unnamed(upstream: &Upstream) -> Program {
    let named = project(upstream, &small());
    let yaml = std::fs::read_to_string(named.path("sentiment.yaml")).unwrap();
    let actum = super::actum().with_env("STUB_KEY", super::predict::KEY);
    actum.file("sentiment.yaml", yaml.replace(" model: stub-1,", ""));
    actum.file("texts.jsonl", labelled(30));
    actum.file("job.json", small().to_string());
    provided(&actum, upstream, "stub", "stub-1");
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    actum.run(&["spend", "authorize", "--max-total", "1usd", "--id", "auth_all"]).ok();
    actum
}

/// One provider, with one model.
fn provided(actum: &Program, upstream: &Upstream, provider: &str, model: &str) {
    let text = settings(&upstream.url()).replace("providers.stub", &format!("providers.{provider}"));
    actum.file("actum.toml", text.replace("[\"stub-1\", \"stub-2\"]", &format!("[\"{model}\"]")));
}

/// The first model says the contrary.
fn of_two_minds() -> Script {
    Script::default().by(|body, _| {
        let (turn, usage) = answer(body);
        let contrary = if last(body).contains("went well") { "negative" } else { "positive" };
        let is_other = body["model"] == "stub-1" && last(body).contains("Well or badly?");
        Some((if is_other { Turn::text(json!({"label": contrary}).to_string()) } else { turn }, usage))
    })
}

fn calls_of(upstream: &Upstream, model: &str) -> u64 {
    upstream.calls().iter().filter(|call| call.json()["model"] == model).count() as u64
}

#[test]
fn fence_another_model_in_the_settings_is_another_job() {
    let upstream = Upstream::start(of_two_minds());
    let actum = unnamed(&upstream);
    let first = compile(&actum, &[]);
    assert_eq!((selected(&first).as_str(), score(&first, "asked", "holdout")), ("baseline", 0.0));
    provided(&actum, &upstream, "stub", "stub-2");
    let total = planned(&actum, &small(), &[])["predictions_max"].clone();
    let second = compile(&actum, &[]);
    assert_eq!((selected(&second).as_str(), &second["idempotent_replay"]), ("asked", &json!(false)));
    assert_ne!(first["job_hash"], second["job_hash"]);
    assert_ne!(first["report_id"], second["report_id"]);
    assert_eq!((&second["asked"], json!(calls_of(&upstream, "stub-2"))), (&total, total.clone()));
    // Who has the model is no part of it.
    provided(&actum, &upstream, "other", "stub-2");
    let third = compile(&actum, &[]);
    assert_eq!((essence(&third), &third["asked"]), (essence(&second), &json!(0)));
    provided(&actum, &upstream, "stub", "stub-1");
    let fourth = compile(&actum, &[]);
    assert_eq!((essence(&fourth), &fourth["asked"]), (essence(&first), &json!(0)));
    // Evals are known by the model, too.
    let hash = first["dataset_hash"].as_str().unwrap().to_owned();
    let words = ["eval", "baseline", "--dataset", &hash, "--signature", ID, "--split", "train", "--json"];
    let mut told = Vec::new();
    for (provider, model, is_new) in
        [("stub", "stub-1", true), ("stub", "stub-2", true), ("other", "stub-2", false), ("stub", "stub-1", false)]
    {
        provided(&actum, &upstream, provider, model);
        let eval = asked(&actum, &words);
        assert_eq!(eval["asked"].as_u64().unwrap() > 0, is_new, "{provider} {model}: {eval}");
        told.push(eval["evals"][0]["eval_id"].clone());
    }
    assert_ne!(told[0], told[1]);
    assert_eq!((&told[1], &told[0]), (&told[2], &told[3]));
    assert_eq!(assert_money_agrees(&actum, "auth_all").1, 0);
}

#[test]
fn fence_answers_of_another_model_are_not_taken_over_after_a_crash() {
    let upstream = Upstream::start(of_two_minds());
    let actum = unnamed(&upstream);
    let words = ["compile", "job.json", "--json", "--parallel", "1"];
    let mut running = actum.start(&words, &[("ACTUM_CRASH_AT", "trial.answered#7")]);
    hear(&mut running, "crash point");
    running.kill();
    assert_eq!(calls_of(&upstream, "stub-1"), 7);
    provided(&actum, &upstream, "stub", "stub-2");
    let plan = planned(&actum, &small(), &[]);
    let total = plan["predictions_max"].as_u64().unwrap();
    let report = compile(&actum, &[]);
    assert_eq!((report["asked"].as_u64(), calls_of(&upstream, "stub-2")), (Some(total), total));
    assert_eq!((selected(&report).as_str(), score(&report, "asked", "test")), ("asked", 1.0));
    // Those of the first are still there for who goes on with it.
    provided(&actum, &upstream, "stub", "stub-1");
    assert_eq!(selected(&compile(&actum, &[])), "baseline");
    // Where the baseline is the best it alone is examined on test.
    assert_eq!(calls_of(&upstream, "stub-1"), total - plan["test"].as_u64().unwrap());
}

/// Several providers, and none of the models is named but by who is to be asked.
#[test]
fn fence_a_provider_that_is_named_decides_about_the_model() {
    let upstream = Upstream::start(of_two_minds());
    let actum = unnamed(&upstream);
    let alone = planned(&actum, &small(), &[])["job_hash"].clone();
    let one = |name: &str, model: &str| {
        format!(
            "[providers.{name}]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nkey = \"env:STUB_KEY\"\nmodels = [\"{model}\"]\n",
            upstream.url()
        )
    };
    let prices = "[prices.\"*\"]\ninput = 1000000\noutput = 2000000\n";
    actum.file("actum.toml", format!("{}{}{prices}", one("a", "stub-1"), one("b", "stub-2")));
    let nobody = actum.run(&["compile", "job.json", "--json"]);
    assert!(nobody.code == 2 && nobody.stderr.contains("which model"), "{}", nobody.stderr);
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(planned(&actum, &small(), &["--provider", "a"])["job_hash"], alone);
    let [a, b] = ["a", "b"].map(|provider| compile(&actum, &["--provider", provider]));
    assert_eq!((selected(&a).as_str(), selected(&b).as_str()), ("baseline", "asked"));
    assert_eq!((&a["job_hash"], a["job_hash"] == b["job_hash"]), (&alone, false));
    let eval = |provider: &str| {
        let words = ["eval", "baseline", "--dataset", "texts", "--signature", ID, "--provider", provider, "--json"];
        asked(&actum, &words)
    };
    assert_ne!(eval("a")["evals"][0]["eval_id"], eval("b")["evals"][0]["eval_id"]);
    assert_eq!(eval("a")["asked"], 0, "it was asked by the compile");
}

#[test]
fn fence_answers_are_shared_below_a_label() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &small());
    let first = compile(&actum, &[]);
    let plan = planned(&actum, &job(), &[]);
    let (holdout, test) = (plan["holdout"].as_u64().unwrap(), plan["test"].as_u64().unwrap());
    assert_eq!(first["asked"], 2 * holdout + 2 * test);
    // One more candidate, which is no better.
    actum.file("job.json", job().to_string());
    let second = compile(&actum, &[]);
    assert_eq!((&second["asked"], &second["idempotent_replay"]), (&json!(holdout), &json!(false)));
    assert_eq!(selected(&second), "asked");
    assert_ne!(first["report_id"], second["report_id"]);
    // What the compile has examined need not be examined again.
    let hash = first["dataset_hash"].as_str().unwrap().to_owned();
    let selected = first["selected_artifact"].as_str().unwrap().to_owned();
    let eval = |more: &[&str]| {
        let words = ["eval", &selected, "--dataset", &hash, "--split", "test", "--against", "baseline", "--json"];
        asked(&actum, &[&words[..], more].concat())
    };
    let shared = eval(&[]);
    assert_eq!((&shared["asked"], &shared["score"]), (&json!(0), &json!(1.0)));
    assert_eq!(shared["comparison"]["mean_b"], second["comparison"]["mean_b"]);
    let calls = upstream.calls().len();
    // Under another label nobody has said anything yet.
    assert_eq!(eval(&["--label", "anew"])["asked"], 2 * test);
    let mut anew = small();
    anew["label"] = json!("anew too");
    actum.file("job.json", anew.to_string());
    let third = compile(&actum, &[]);
    assert_eq!(third["asked"], first["asked"]);
    assert_eq!(upstream.calls().len() as u64, calls as u64 + 4 * test + 2 * holdout);
    // And below the label it is shared again.
    anew["label"] = json!("anew");
    actum.file("job.json", anew.to_string());
    assert_eq!(compile(&actum, &[])["asked"], 2 * holdout);
    assert_eq!(assert_money_agrees(&actum, "auth_all").1, 0);
}

/// A file that is called like something registered is not taken for it; one that looks like a file is.
#[test]
fn fence_names_of_artifacts_are_not_those_of_files() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    let asking = |prompt: &str| {
        let mut artifact = artifact_of(&actum, prompt);
        artifact["program_template"] = json!({"strategy": "direct.v1", "model": "stub-1"});
        artifact
    };
    let id = added(&actum, &asking("Well or badly? {{ text }}"));
    asked(&actum, &["dataset", "import", "texts.jsonl", "--signature", ID, "--json"]);
    let other = asking("Another one: {{ text }}");
    for name in [id.as_str(), "baseline", "primary", "art_other.json"] {
        actum.file(name, other.to_string());
    }
    let evaluated = |name: &str| {
        let words = ["eval", name, "--dataset", "texts", "--signature", ID, "--split", "all", "--json"];
        asked(&actum, &words)["evals"][0]["artifact_id"].clone()
    };
    assert_eq!(evaluated(&id), id.as_str());
    assert_ne!(evaluated("baseline"), evaluated("art_other.json"));
    assert_eq!(actum.run(&["eval", "primary", "--dataset", "texts", "--signature", ID]).code, 7, "there is no pointer");
    let report = compile(&actum, &[]);
    let [report_id, chosen] = ["report_id", "selected_artifact"].map(|name| report[name].as_str().unwrap());
    assert_eq!(asked(&actum, &["eval", report_id, "--dataset", "texts", "--json"])["evals"][0]["artifact_id"], chosen);
}

/// What stands for something that was taken out is nothing to compare with.
#[test]
fn fence_placeholders_are_no_answers() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    actum.file(
        "words.yaml",
        "signature_id: demo/Words.v1\ninput_schema: {type: object, properties: {text: {type: string}}, required: [text]}\n\
         output_schema: {type: object, properties: {label: {type: string}}, required: [label]}\n\
         prompt_template: 'Words: {{ text }}'\nprogram_template: {strategy: direct.v1, model: stub-1}\n",
    );
    actum.run(&["signature", "add", "words.yaml"]).ok();
    let line =
        |n: usize| json!({"input": {"text": n.to_string()}, "expected": {"label": "[REDACTED_EMAIL]"}}).to_string();
    actum.file("masked.jsonl", (0..3).map(line).collect::<Vec<_>>().join("\n"));
    let refused = actum.run(&["dataset", "import", "masked.jsonl", "--signature", "demo/Words.v1", "--json"]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    let told =
        actum.run_with(&["predict", "demo/Words.v1", "--batch", "-", "--json"], format!("{}\n", line(1)).as_bytes());
    assert_eq!((told.code, upstream.requests().len()), (2, 0), "{}", told.stderr);
}

/// Whoever waits for another one may be told to stop waiting.
#[test]
fn fence_who_waits_for_his_turn_ends_at_once() {
    let held = Script::default().by(|body, _| {
        let (turn, usage) = answer(body);
        Some((Turn::Held(Box::new(turn)), usage))
    });
    let upstream = Upstream::start(held);
    let actum = project(&upstream, &small());
    let first = actum.start(&["compile", "job.json", "--parallel", "1"], &[]);
    upstream.wait_for(1);
    let mut second = actum.start(&["compile", "job.json", "--parallel", "1"], &[]);
    let said = std::iter::from_fn(|| second.error_line()).find(|line| line.contains("waiting for it"));
    assert!(said.is_some());
    second.signal("INT");
    assert_eq!(second.finish().0, 130);
    (0..1_000).for_each(|_| upstream.release());
    assert_eq!(first.finish().0, 0);
}
