//! Compiles by way of the real binary, with a provider that answers by what it is asked: the better candidate is found, what
//! was answered is never asked again, and the same job comes to the same report.

use std::fs;

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::artifact::{added, artifact_of};
use super::dataset::{ID, labelled};
use super::money::assert_money_agrees;
use super::predict::KEY;
use super::run::asked;

/// Its prompt is not a good one.
const SIGNATURE: &str = r#"
namespace: demo
name: Sentiment
version: 1
input_schema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
output_schema: {type: object, properties: {label: {enum: [positive, negative]}}, required: [label], additionalProperties: false}
prompt_template: "Everything sounds good: {{ text }}"
program_template: {strategy: direct.v1, model: stub-1, max_output_tokens: 10}
"#;

pub(crate) const COST: Usage = Usage::new(40, 6);

pub(crate) fn job() -> Value {
    json!({
        "signature_id": ID, "dataset": {"file": "texts.jsonl", "split": "40/30/30"}, "metric": "exact_match",
        "candidates": [
            {"name": "asked", "prompt_template": "Well or badly? {{ text }}"},
            {"name": "shouted", "prompt_template": "ANSWER NOW: {{ text }}"},
        ],
    })
}

/// What is asked in the end, behind all examples.
pub(crate) fn last(body: &Value) -> String {
    let content = body["messages"].as_array().and_then(|all| all.last()).map(|last| last["content"].clone());
    content.and_then(|text| text.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}

pub(crate) fn says(label: &str) -> (Turn, Usage) {
    (Turn::text(json!({"label": label}).to_string()), COST)
}

/// Only who is asked well, or is shown examples, looks at the text.
pub(crate) fn answer(body: &Value) -> (Turn, Usage) {
    let text = last(body);
    let is_shown = body["messages"].as_array().is_some_and(|all| all.iter().any(|one| one["role"] == "assistant"));
    let right = if text.contains("went well") { "positive" } else { "negative" };
    match () {
        () if body["messages"].to_string().contains("ANSWER NOW") => (Turn::text("I think so"), COST),
        () if text.contains("Well or badly?") || is_shown => says(right),
        () => says("positive"),
    }
}

pub(crate) fn sensible() -> Script {
    Script::default().by(|body, _| Some(answer(body)))
}

pub(crate) fn settings(url: &str) -> String {
    format!(
        "[providers.stub]\ntype = \"openai\"\nbase_url = \"{url}/v1\"\nkey = \"env:STUB_KEY\"\n\
         models = [\"stub-1\", \"stub-2\"]\n[prices.\"*\"]\ninput = 1000000\noutput = 2000000\n",
    )
}

/// A project with the signature, texts, a job, and money.
pub(crate) fn project(upstream: &Upstream, job: &Value) -> Program {
    prepared(actum().with_env("STUB_KEY", KEY), upstream, job)
}

pub(crate) fn prepared(actum: Program, upstream: &Upstream, job: &Value) -> Program {
    let actum = unpaid(actum, upstream, job);
    actum.run(&["spend", "authorize", "--max-total", "1usd", "--id", "auth_all"]).ok();
    actum
}

fn unpaid(actum: Program, upstream: &Upstream, job: &Value) -> Program {
    actum.file("actum.toml", settings(&upstream.url()));
    actum.file("sentiment.yaml", SIGNATURE);
    actum.file("texts.jsonl", labelled(30));
    actum.file("job.json", job.to_string());
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    actum
}

pub(crate) fn compile(actum: &Program, more: &[&str]) -> Value {
    let ended = actum.run(&[&["compile", "job.json", "--json"], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.json()
}

/// What is the same, however and whenever it was come to.
pub(crate) fn essence(shown: &Value) -> Value {
    let mut report = shown.clone();
    let fields = report.as_object_mut().unwrap();
    for name in ["asked", "idempotent_replay"] {
        fields.remove(name);
    }
    for eval in fields["eval_reports"].as_array_mut().unwrap() {
        for name in ["latency_mean_ms", "results", "spent"] {
            eval.as_object_mut().unwrap().remove(name);
        }
    }
    report
}

pub(crate) fn score(report: &Value, candidate: &str, split: &str) -> f64 {
    let is = |one: &&Value| one["candidate"] == candidate && one["split"] == split;
    report["eval_reports"].as_array().unwrap().iter().find(is).unwrap_or_else(|| panic!("{report}"))["score"]
        .as_f64()
        .unwrap()
}

pub(crate) fn selected(report: &Value) -> String {
    let is = |one: &&Value| one["artifact_id"] == report["selected_artifact"];
    report["candidate_artifacts"].as_array().unwrap().iter().find(is).unwrap()["name"].as_str().unwrap().to_owned()
}

fn dry(actum: &Program, job: &Value) -> Value {
    actum.file("dry.json", job.to_string());
    asked(actum, &["compile", "dry.json", "--dry-run", "--json"])
}

#[test]
fn compile_finds_the_better_candidate_and_asks_once() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    let planned = dry(&actum, &job());
    assert_eq!(upstream.requests().len(), 0, "it only says what would be asked");
    let report = compile(&actum, &[]);
    assert_eq!(selected(&report), "asked");
    assert_eq!((score(&report, "asked", "holdout"), score(&report, "asked", "test")), (1.0, 1.0));
    assert_eq!(score(&report, "shouted", "holdout"), 0.0, "an answer that does not fit is worth nothing");
    let (holdout, test) = (planned["holdout"].as_u64().unwrap(), planned["test"].as_u64().unwrap());
    assert!(holdout >= 4 && test >= 4, "{planned}");
    assert_eq!(planned["predictions_max"], 3 * holdout + 2 * test);
    assert_eq!((&report["asked"], &report["job_hash"]), (&planned["predictions_max"], &planned["job_hash"]));
    let failed = report["eval_reports"].as_array().unwrap().iter().find(|one| one["candidate"] == "shouted").unwrap();
    assert_eq!(failed["failed"], holdout);
    let comparison = &report["comparison"];
    assert_eq!((&comparison["candidate_a"], &comparison["candidate_b"]), (&json!("asked"), &json!("baseline")));
    assert_eq!(comparison["changed"].as_array().unwrap().len() as u64, comparison["better"].as_u64().unwrap());
    // The one that shouted was asked to mend its answer, each time.
    let calls = upstream.calls().len();
    assert_eq!(calls as u64, 3 * holdout + 2 * test + holdout);
    assert_eq!(assert_money_agrees(&actum, "auth_all"), (52 * calls as u64, 0));
    // The same again, by another name and in other words: nothing is asked.
    let again = compile(&actum, &[]);
    assert_eq!((&again["asked"], &again["idempotent_replay"]), (&json!(0), &json!(true)));
    fs::create_dir(actum.path("other")).unwrap();
    let yaml = format!(
        "# The same in other words.\nmetric: {{kind: exact_match}}\ncandidates:\n\
         - prompt_template: 'Well or badly? {{{{ text }}}}'   # this one\n  name: asked\n\
         - {{name: shouted, prompt_template: 'ANSWER NOW: {{{{ text }}}}'}}\n\
         dataset: {{split: {{test: 30, holdout: 30, train: 40}}, split_seed: default, file: ../texts.jsonl}}\nsignature_id: {ID}\n"
    );
    actum.file("other/job.yaml", yaml);
    let third = asked(&actum, &["compile", "other/job.yaml", "--json"]);
    assert_eq!((essence(&third), &third["asked"]), (essence(&report), &json!(0)));
    assert_eq!(upstream.calls().len(), calls);
    // For people: who was how good, and where they differ.
    let text = actum.run(&["compile", "job.json"]).ok();
    for words in
        ["HOLDOUT", "TEST", "baseline", "shouted", "* selected on holdout: asked", "this may be chance", "EXAMPLE"]
    {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
    let id = report["report_id"].as_str().unwrap();
    assert_eq!(essence_of_shown(&actum, &id[..10]), essence(&report));
    assert!(actum.run(&["compile", "--list"]).ok().contains(id));
    assert_eq!(actum.run(&["compile", "--show", "cmp_none"]).code, 7);
    // What was selected is there to be used.
    let art = report["selected_artifact"].as_str().unwrap();
    assert_eq!(asked(&actum, &["artifact", "show", art, "--json"])["fits"], true);
    assert_eq!(actum.run(&["store", "check"]).code, 0);
}

fn essence_of_shown(actum: &Program, id: &str) -> Value {
    essence(&asked(actum, &["compile", "--show", id, "--json"]))
}

#[test]
fn compile_jobs_that_differ_have_other_hashes() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    let plain = dry(&actum, &job());
    let with = |path: &str, value: Value| {
        let mut job = job();
        *job.pointer_mut(path).unwrap() = value;
        job
    };
    let mut labelled_job = job();
    labelled_job["label"] = json!("second");
    let mut searching = job();
    searching["search"] = json!({"models": ["stub-2"]});
    let mut found = vec![plain["job_hash"].clone()];
    for other in [
        with("/candidates/0/prompt_template", json!("Well or badly?  {{ text }}")),
        with("/candidates/0/name", json!("ask")),
        with("/candidates/0", json!({"name": "asked", "prompt_template": "Well or badly? {{ text }}", "few_shot": 1})),
        with("/candidates/0", json!({"name": "asked", "model": "stub-2"})),
        with("/candidates/0", json!({"name": "asked", "strategy": "rlm_lite.v1"})),
        with("/metric", json!({"kind": "field_match", "fields": ["label"]})),
        with("/dataset/split", json!("30/40/30")),
        with("/dataset", json!({"file": "texts.jsonl", "split": "40/30/30", "split_seed": "two"})),
        labelled_job,
        searching,
    ] {
        let hash = dry(&actum, &other)["job_hash"].clone();
        assert!(hash.is_string() && !found.contains(&hash), "{other}: {hash}");
        found.push(hash);
    }
    // The order of candidates decides between equals: it is part of the job.
    let mut turned = job();
    turned["candidates"].as_array_mut().unwrap().reverse();
    assert_ne!(dry(&actum, &turned)["job_hash"], plain["job_hash"]);
    // Other examples are another dataset, of the same job.
    actum.file("texts.jsonl", labelled(31));
    let more = dry(&actum, &job());
    assert_eq!(more["job_hash"], plain["job_hash"]);
    assert_ne!(more["dataset_hash"], plain["dataset_hash"]);
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn compile_goes_on_with_more_money() {
    let upstream = Upstream::start(sensible());
    let actum = unpaid(actum().with_env("STUB_KEY", KEY), &upstream, &job());
    let none = actum.run(&["compile", "job.json", "--json"]);
    assert_eq!((none.code, upstream.calls().len()), (3, 0), "{}", none.stderr);
    let short = actum.run(&["compile", "job.json", "--json", "--budget", "1500", "--parallel", "1"]);
    assert_eq!((short.code, &short.error()["code"]), (3, &json!("SPEND_DENIED")), "{}", short.stderr);
    assert_eq!(short.error()["details"]["reason_code"], "policy_denied.budget_exhausted", "{}", short.stderr);
    assert!(short.stderr.contains("only the rest is asked"), "{}", short.stderr);
    let first = upstream.calls().len();
    assert!(first > 2 && asked(&actum, &["compile", "--list", "--json"])["reports"] == json!([]), "{first}");
    let report = compile(&actum, &["--budget", "1usd"]);
    let (all, asked_now) = (upstream.calls().len(), report["asked"].as_u64().unwrap());
    // One more than there are cells: the question that was cut off between its two calls.
    let other = Upstream::start(sensible());
    let whole = compile(&project(&other, &job()), &[]);
    assert_eq!(essence(&report), essence(&whole));
    assert!(asked_now < whole["asked"].as_u64().unwrap());
    assert!((other.calls().len()..=other.calls().len() + 2).contains(&all), "{all}");
    let mut sum = 0;
    for one in asked(&actum, &["spend", "list", "--json"])["authorizations"].as_array().unwrap() {
        let (spent, held) = assert_money_agrees(&actum, one["authorization_id"].as_str().unwrap());
        assert_eq!(held, 0);
        sum += spent;
    }
    assert_eq!(sum, 52 * all as u64);
}

#[test]
fn compile_goes_on_where_the_provider_failed() {
    let flaky = |body: &Value, before: usize| match last(body).contains("1 went") && before == 0 {
        true => Some((Turn::Status(400, None), COST)),
        false => Some(answer(body)),
    };
    let upstream = Upstream::start(Script::default().by(flaky));
    let actum = project(&upstream, &job());
    let broken = actum.run(&["compile", "job.json", "--json"]);
    assert_eq!((broken.code, &broken.error()["code"]), (1, &json!("PREDICT_FAILED")), "{}", broken.stderr);
    let first = upstream.calls();
    let failed = |calls: &[actum_testkit::upstream::Request]| calls.iter().filter(|one| one.usage.is_none()).count();
    assert!(failed(&first) > 1 && failed(&first) < first.len());
    // In test the first attempt fails as well, so there are three.
    let again = actum.run(&["compile", "job.json", "--json"]);
    let report = match again.code {
        0 => again.json(),
        _ => compile(&actum, &[]),
    };
    let calls = upstream.calls();
    let other = Upstream::start(sensible());
    assert_eq!(essence(&report), essence(&compile(&project(&other, &job()), &[])));
    assert_eq!(calls.len() - failed(&calls), other.calls().len(), "nothing that was answered was asked again");
    assert_money_agrees(&actum, "auth_all");
    // A provider that is not there at all is not asked for ever.
    let dead = Upstream::start(Script::default().by(|_, _| Some((Turn::Status(400, None), COST))));
    let mut large = job();
    large["dataset"] = json!({"file": "texts.jsonl", "split": "0/100/0"});
    let actum = project(&dead, &large);
    assert_eq!(actum.run(&["compile", "job.json", "--parallel", "4"]).code, 1);
    assert!(dead.calls().len() < 30, "{}", dead.calls().len());
}

#[test]
fn compile_comes_to_the_same_however_many_are_asked_at_once() {
    let upstream = Upstream::start(sensible());
    let reports = ["1", "8"].map(|parallel| {
        let actum = project(&upstream, &job());
        essence(&compile(&actum, &["--parallel", parallel]))
    });
    assert_eq!(reports[0], reports[1]);
    let actum = project(&upstream, &job());
    assert_eq!(actum.run(&["compile", "job.json", "--parallel", "0"]).code, 2);
}

const JUDGE: &str = r#"
namespace: demo
name: Judge
version: 1
input_schema: {type: object, properties: {input: {type: string}, output: {type: string}, expected: {type: string}}, required: [input, output, expected]}
output_schema: {type: object, properties: {score: {type: number}}, required: [score]}
prompt_template: "Judge: {{ output }} against {{ expected }}"
program_template: {strategy: direct.v1, model: stub-1, max_output_tokens: 10}
"#;

#[test]
fn compile_may_ask_a_judge() {
    // The judge has nothing to say to what he is asked for the first time by a first run.
    let upstream = Upstream::start(Script::default().by(|body, before| {
        let text = last(body);
        let Some((output, expected)) = text.strip_prefix("Judge: ").and_then(|text| text.split_once(" against "))
        else {
            let is_judge = body["messages"].to_string().contains("Judge: ");
            return Some(if is_judge { (Turn::text("hm"), COST) } else { answer(body) });
        };
        let score = if output == expected { 0.75 } else { 0.25 };
        let text = match before {
            0 if output == expected => json!({"score": 7}).to_string(),
            0 => "hm".to_owned(),
            _ => json!({ "score": score }).to_string(),
        };
        Some((Turn::text(text), COST))
    }));
    let mut job = job();
    job["metric"] = json!({"kind": "judge", "signature": "demo/Judge.v1"});
    let actum = project(&upstream, &job);
    assert_eq!(actum.run(&["compile", "job.json"]).code, 7, "the judge is not registered");
    actum.file("judge.yaml", JUDGE);
    actum.run(&["signature", "add", "judge.yaml"]).ok();
    let planned = dry(&actum, &job);
    let [holdout, test] = ["holdout", "test"].map(|part| planned[part].as_u64().unwrap());
    assert_eq!(planned["predictions_max"], 2 * (3 * holdout + 2 * test), "he is asked about every answer");
    let speechless = actum.run(&["compile", "job.json", "--json"]);
    assert_eq!((speechless.code, &speechless.error()["code"]), (1, &json!("PREDICT_FAILED")), "{}", speechless.stderr);
    let again = actum.run(&["compile", "job.json", "--json"]);
    let report = if again.code == 0 { again.json() } else { compile(&actum, &[]) };
    assert_eq!((selected(&report).as_str(), score(&report, "asked", "holdout")), ("asked", 0.75));
    assert_eq!(score(&report, "shouted", "holdout"), 0.0, "what is no answer is not judged");
    let baseline = score(&report, "baseline", "holdout");
    assert!(baseline > 0.25 && baseline < 0.75, "{baseline}");
    assert_money_agrees(&actum, "auth_all");
}

#[test]
fn compile_varies_examples_models_strategies_and_artifacts() {
    let upstream = Upstream::start(Script::default().by(|body, _| {
        let text = body["messages"].to_string();
        match text.contains("FINAL") || text.contains("final") {
            true => {
                let (Turn::Text(said), usage) = answer(&json!({"messages": [{"content": "Well or badly?"}]})) else {
                    return None;
                };
                let output: Value = serde_json::from_str(&said).unwrap();
                Some((Turn::text(json!({"op": "final", "answer": output}).to_string()), usage))
            }
            false if body["model"] == "stub-2" => Some(says("negative")),
            false => Some(answer(body)),
        }
    }));
    let mut job = job();
    let actum = project(&upstream, &job);
    let mut artifact = artifact_of(&actum, "Artful: {{ text }}");
    artifact["program_template"] = json!({"strategy": "direct.v1", "model": "stub-1"});
    let artifact = added(&actum, &artifact);
    job["candidates"] = json!([
        {"name": "balanced", "few_shot": {"count": 4, "balanced": true}},
        {"name": "seeded", "few_shot": {"count": 4, "balanced": true, "seed": "two"}},
        {"name": "given", "few_shot": [{"input": {"text": "all went well"}, "output": {"label": "positive"}}]},
        {"name": "artful", "artifact": artifact},
        {"name": "thinking", "strategy": "rlm_lite.v1"},
    ]);
    job["search"] = json!({"models": ["stub-1", "stub-2"], "few_shot": [0, 2]});
    actum.file("job.json", job.to_string());
    let report = compile(&actum, &[]);
    let all = report["candidate_artifacts"].as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|one| one["name"].as_str().unwrap()).collect();
    // The signature itself with its own model and no examples is not asked twice.
    assert_eq!(
        names,
        [
            "baseline",
            "balanced",
            "seeded",
            "given",
            "artful",
            "thinking",
            "stub-1+2-shot",
            "stub-2+0-shot",
            "stub-2+2-shot"
        ]
    );
    let shown = |name: &str| {
        let one = all.iter().find(|one| one["name"] == name).unwrap();
        asked(&actum, &["artifact", "show", one["artifact_id"].as_str().unwrap(), "--json"])
    };
    let labels = |artifact: &Value| {
        let shots = artifact["few_shot"].as_array().unwrap().clone();
        shots.iter().filter(|shot| shot["output"]["label"] == "positive").count()
    };
    assert_eq!((labels(&shown("balanced")), labels(&shown("seeded"))), (2, 2));
    assert_ne!(shown("balanced")["few_shot"], shown("seeded")["few_shot"]);
    // Nobody is shown what he is examined by.
    let lines = actum.run(&["dataset", "show", "texts", "--lines"]).json_lines();
    for name in ["balanced", "seeded", "stub-1+2-shot"] {
        for shot in shown(name)["few_shot"].as_array().unwrap() {
            let part = lines.iter().find(|line| line["input"] == shot["input"]).map(|line| &line["split"]);
            assert_eq!(part, Some(&json!("train")), "{name}");
        }
    }
    assert_eq!(score(&report, "balanced", "holdout"), 1.0);
    assert_eq!(score(&report, "artful", "holdout"), score(&report, "baseline", "holdout"));
    let negative = score(&report, "stub-2+0-shot", "holdout");
    assert!((negative + score(&report, "baseline", "holdout") - 1.0).abs() < 0.00001, "{negative}");
    assert_eq!(shown("thinking")["program_template"]["strategy"], "rlm_lite.v1");
    assert_eq!(score(&report, "thinking", "holdout"), negative);
}

/// A prompt that does not look at the text asks the very same thing again and again.
#[test]
fn compile_may_ask_the_same_of_many_examples() {
    let upstream = Upstream::start(sensible());
    let mut job = job();
    job["dataset"] = json!({"file": "texts.jsonl", "split": "0/100/0"});
    job["candidates"] = json!([{"name": "blind", "prompt_template": "Guess."}]);
    let actum = project(&upstream, &job);
    let report = compile(&actum, &[]);
    assert_eq!((score(&report, "blind", "holdout"), upstream.calls().len()), (0.5, 60));
    assert_eq!(report["comparison"], Value::Null, "there is no test: {report}");
}

#[test]
fn compile_jobs_are_checked_before_anybody_is_asked() {
    let upstream = Upstream::start(sensible());
    let actum = project(&upstream, &job());
    let with = |path: &str, value: Value| {
        let mut job = job();
        *job.pointer_mut(path).unwrap() = value;
        job.to_string()
    };
    let without = |field: &str| {
        let mut job = job();
        job.as_object_mut().unwrap().remove(field);
        job.to_string()
    };
    actum.file("empty.jsonl", "\n");
    let art = "art_000000000000000000000000";
    for (text, code, told) in [
        ("a: [".to_owned(), 2, "bad.yaml:1"),
        ("[]".to_owned(), 2, "an object of fields"),
        (without("signature_id"), 2, "signature_id"),
        (without("dataset"), 2, "dataset"),
        (without("metric"), 2, "metric"),
        (without("candidates"), 2, "a search"),
        (format!("signature_id: {ID}\nmetric: exact_match\ndatset: x\n"), 2, "datset"),
        (format!("signature_id: {ID}\ndataset: 0123abcd\nsearch: {{models: [a]}}\nmetric: best\n"), 2, "bad.yaml:4"),
        (with("/signature_id", json!("demo/None.v1")), 7, "demo/None.v1"),
        (with("/signature_id", json!("none")), 2, "signature_id"),
        (with("/dataset", json!("0123456789abcdef")), 7, "no dataset"),
        (with("/dataset", json!("texts.jsonl")), 2, "{file: …}"),
        (with("/dataset/file", json!("none.jsonl")), 2, "none.jsonl"),
        (with("/dataset/file", json!("empty.jsonl")), 2, "empty_dataset"),
        (with("/dataset/split", json!("100/0/0")), 2, "none in holdout"),
        (with("/dataset/split", json!("1/2/3")), 2, "split"),
        (with("/metric", json!({"kind": "field_match"})), 2, "metric"),
        (with("/metric", json!({"kind": "judge", "signature": "demo/None.v1"})), 7, "demo/None.v1"),
        (with("/candidates/1/name", json!("asked")), 2, "candidates[1].name"),
        (with("/candidates/0/name", json!("baseline")), 2, "baseline"),
        (with("/candidates/0/prompt_template", json!("{{ text")), 2, "candidates[0].prompt_template"),
        (with("/candidates/0", json!({"name": "x", "strategy": "magic.v1"})), 2, "unsupported_strategy"),
        (with("/candidates/0", json!({"name": "x", "few_shot": 40})), 2, "examples of train"),
        (with("/candidates/0", json!({"name": "x", "few_shot": 65})), 2, "few_shot"),
        (with("/candidates/0", json!({"name": "x", "few_shot": 1, "strategy": "rlm_lite.v1"})), 2, "direct.v1"),
        (with("/candidates/0", json!({"name": "x", "artifact": art})), 7, art),
        (with("/candidates/0", json!({"name": "x", "artifact": art, "few_shot": 2})), 2, "artifact"),
        (with("/candidates/0", json!({"name": "x", "model": "stub-9"})), 7, "stub-9"),
    ] {
        actum.file("bad.yaml", &text);
        let refused = actum.run(&["compile", "bad.yaml"]);
        assert_eq!(refused.code, code, "{text}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(told), "{told} is missing in {}", refused.stderr);
    }
    assert_eq!(actum.run(&["compile", "none.yaml"]).code, 2);
    assert_eq!(actum.run(&["compile"]).code, 2);
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(asked(&actum, &["compile", "--list", "--json"])["reports"], json!([]));
}
