//! Who is selected, what names a report, and what is said in it.

use std::collections::BTreeSet;

use super::*;
use crate::dataset::Slice;
use crate::metric::Metric;

fn cell(example: &str, score: f64, output: Value) -> Cell {
    Cell {
        example_id: example.to_owned(),
        score,
        output,
        status: "succeeded".to_owned(),
        reason_code: None,
        tokens: 10,
        spent: 3,
        latency_ms: 100,
        receipt_id: format!("rcp_{example}"),
    }
}

fn cells(scores: &[f64]) -> Vec<Cell> {
    let one = |(n, score): (usize, &f64)| cell(&format!("ex_{n:03}"), *score, json!({"box": format!("{score}")}));
    scores.iter().enumerate().map(one).collect()
}

fn three() -> Vec<Candidate> {
    candidates(json!({"candidates": [
        {"name": "terse", "prompt_template": "{{ n }}", "few_shot": 2}, {"name": "m", "model": "m"},
    ]}))
    .unwrap()
}

fn selected(tables: &[Vec<Cell>]) -> usize {
    let candidates = three();
    let scored: Vec<Scored<'_>> =
        tables.iter().zip(&candidates).map(|(cells, candidate)| Scored { candidate, cells }).collect();
    select(&scored)
}

#[test]
fn the_best_is_selected() {
    let [low, high] = [cells(&[0.0, 1.0]), cells(&[1.0, 1.0])];
    assert_eq!(selected(&[low.clone(), high.clone(), low.clone()]), 1);
    assert_eq!(selected(&[low.clone(), low.clone(), low.clone()]), 0, "of equal ones the first");
    let mut cheap = low.clone();
    cheap[0].tokens = 9;
    assert_eq!(selected(&[low.clone(), low.clone(), cheap.clone()]), 2, "or the one with fewer tokens");
    assert_eq!(selected(&[low, high, cheap]), 1, "a better score is worth any tokens");
    assert_eq!(selected(&[cells(&[0.1, 0.2, 0.3]), cells(&[0.3, 0.2, 0.1])]), 0, "the order of adding is no merit");
    assert_eq!(selected(&[Vec::new(), Vec::new()]), 0);
    assert_eq!(select(&[]), 0);
}

#[test]
fn names_cover_what_they_name() {
    let report = |parts: [&str; 4]| report_id(parts[0], parts[1], parts[2], parts[3]);
    let first = report(["s", "j", "d", "a"]);
    // Computed by another program.
    assert_eq!(first, "cmp_c81edda49685d575c82a");
    for other in [["x", "j", "d", "a"], ["s", "x", "d", "a"], ["s", "j", "x", "a"], ["s", "j", "d", "x"]] {
        assert_ne!(report(other), first);
    }
    assert_eq!(eval_id("cmp_1", "art_1", Slice::Test), "eval_451c7a65ce3f4ad7a3d1");
    assert_ne!(eval_id("cmp_1", "art_1", Slice::Test), eval_id("cmp_1", "art_1", Slice::Holdout));
    let job = eval_job_id("s", "d", &Metric::ExactMatch, None);
    assert_eq!(job, "evl_5d6dbfa01c420d954db6");
    assert_ne!(job, eval_job_id("s", "d", &Metric::ExactMatch, Some("again")));
    assert_ne!(job, eval_job_id("s", "d", &Metric::Contains { field: None }, None));
}

#[test]
fn an_eval_adds_up() {
    let candidates = three();
    let mut all = cells(&[1.0, 0.0, 1.0, 0.5]);
    all[1].status = "failed".to_owned();
    all[2].status = "partial".to_owned();
    let scored = Scored { candidate: &candidates[1], cells: &all };
    let found = eval("cmp_1", ID, "d", &Metric::ExactMatch, Slice::Holdout, &scored);
    for (field, expected) in [
        ("version", json!(1)),
        ("report_id", json!("cmp_1")),
        ("signature_id", json!(ID)),
        ("artifact_id", json!(candidates[1].artifact.id())),
        ("eval_id", json!(eval_id("cmp_1", &candidates[1].artifact.id(), Slice::Holdout))),
        ("candidate", json!("terse")),
        ("split", json!("holdout")),
        ("dataset_hash", json!("d")),
        ("metric", json!({"kind": "exact_match"})),
        ("samples", json!(4)),
        ("score", json!(0.625)),
        ("tokens", json!(40)),
        ("spent", json!(12)),
        ("latency_mean_ms", json!(100.0)),
        ("failed", json!(1)),
    ] {
        assert_eq!(found[field], expected, "{field}");
    }
    assert_eq!(found["interval"]["mean"], found["score"]);
    let empty = Scored { candidate: &candidates[1], cells: &[] };
    assert_eq!(eval("r", ID, "d", &Metric::ExactMatch, Slice::Test, &empty)["latency_mean_ms"], json!(0.0));
    all.iter_mut().for_each(|cell| (cell.tokens, cell.spent, cell.latency_ms) = (u64::MAX, u64::MAX, u64::MAX));
    let absurd =
        eval("r", ID, "d", &Metric::ExactMatch, Slice::Test, &Scored { candidate: &candidates[0], cells: &all });
    assert!(actum_contract::canon::canonical(&absurd).is_ok());
    assert!(actum_contract::canon::unsafe_doubles(&absurd, "").is_empty());
    let kept: Cell = serde_json::from_value(serde_json::to_value(&all[0]).unwrap()).unwrap();
    assert_eq!(kept, all[0]);
}

#[test]
fn a_comparison_is_by_example() {
    let candidates = three();
    let (a, b) = (cells(&[1.0, 1.0, 0.0, 1.0]), cells(&[0.0, 1.0, 1.0, 0.0]));
    let compared = |a: &[Cell], b: &[Cell]| {
        let scored = |at: usize, cells| Scored { candidate: &candidates[at], cells };
        compare(&scored(1, a), &scored(0, b), "seed")
    };
    let found = compared(&a, &b);
    assert_eq!((&found["mean_a"], &found["mean_b"]), (&json!(0.75), &json!(0.5)));
    assert_eq!(found["difference"]["mean"], json!(0.25));
    assert_eq!([&found["better"], &found["worse"], &found["equal"]], [&json!(2), &json!(1), &json!(1)]);
    assert_eq!(found["is_significant"], json!(false));
    assert_eq!(found["changed"].as_array().unwrap().len(), 3);
    assert_eq!(
        found["changed"][1],
        json!({
            "example_id": "ex_002", "a": {"score": 0.0, "output": {"box": "0"}}, "b": {"score": 1.0, "output": {"box": "1"}},
        })
    );
    assert_eq!(compared(&a, &b), found);
    assert_eq!(compared(&a[1..], &b)["samples"], json!(3), "what only one has answered is left out");
    assert_eq!(compared(&[], &b)["difference"], json!({"mean": 0.0, "low": 0.0, "high": 0.0}));
    let clear = compared(&cells(&[1.0; 30]), &cells(&[0.0; 30]));
    assert_eq!(clear["is_significant"], json!(true));
    let clear = compared(&cells(&[0.0; 30]), &cells(&[1.0; 30]));
    assert_eq!((&clear["is_significant"], &clear["worse"]), (&json!(true), &json!(30)));
}

/// One who is better each time, so many times.
fn all_better(count: usize) -> Value {
    let all = three();
    let [a, b] = [1.0, 0.0].map(|score| cells(&vec![score; count]));
    compare(&Scored { candidate: &all[1], cells: &a }, &Scored { candidate: &all[0], cells: &b }, "s")
}

#[test]
fn a_handful_of_examples_may_be_chance() {
    let five = all_better(5);
    assert_eq!((&five["better"], &five["difference"]["low"]), (&json!(5), &json!(1.0)), "the interval has no width");
    assert_eq!(five["is_significant"], json!(false), "a coin falls so every sixteenth time");
    assert!(compare_text(&five).contains("this may be chance"));
    let six = all_better(6);
    assert_eq!(six["is_significant"], json!(true));
    assert!(compare_text(&six).contains("a is better"));
    assert_eq!(all_better(0)["is_significant"], json!(false));
}

#[test]
fn nothing_turns_the_lines_of_people_around() {
    let mut told = all_better(1);
    let turning = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}\u{1b}[2J\r\n\u{9b}";
    told["candidate_a"] = json!(format!("a{turning}z"));
    told["changed"][0]["a"]["output"] = json!({"box": format!("שלום{turning}z")});
    told["changed"][0]["input"] = json!(format!("i{turning}z"));
    let text = compare_text(&told);
    let is_obeyed = |c: char| c != '\n' && (c.is_control() || (!c.is_ascii() && turning.contains(c)));
    assert!(!text.contains(is_obeyed), "{text:?}");
    // What is plain in between stays, whatever direction it has.
    assert!(text.contains("שלום") && text.contains('\u{fffd}'), "{text:?}");
}

#[test]
fn a_comparison_fits_into_an_entry() {
    let candidates = three();
    let long = |score: f64| -> Vec<Cell> {
        (0..300).map(|n| cell(&format!("ex_{n:03}"), score, json!({"box": "\"ä\u{1}".repeat(9_999)}))).collect()
    };
    let (a, b) = (long(1.0), long(0.0));
    let scored = |cells| Scored { candidate: &candidates[1], cells };
    let found = compare(&scored(&a), &scored(&b), "s");
    assert_eq!(found["changed"].as_array().unwrap().len(), 100);
    assert!(found["changed"][0]["a"]["output"].as_str().unwrap().ends_with('…'));
    assert!(found.to_string().len() < 400 << 10, "{}", found.to_string().len());
    assert!(compare_text(&found).ends_with("and 200 more"));
    let odd = [cell("ex_1", 1.0, json!([u64::MAX])), cell("ex_2", 1.0, json!(1e20))];
    let none = [cell("ex_1", 0.0, json!(1)), cell("ex_2", 0.0, json!(2))];
    let found = compare(&scored(&odd), &scored(&none), "s");
    assert!(actum_contract::canon::canonical(&found).is_ok());
    assert!(actum_contract::canon::unsafe_doubles(&found, "").is_empty());
}

fn made(path: &str, test: bool) -> (Value, Vec<Value>) {
    let (signature, dataset, candidates) = (signature(), dataset(100, Split::default()), three());
    let job = job(json!({"dataset": {"file": path}, "candidates": [
        {"name": "terse", "prompt_template": "{{ n }}", "few_shot": 2}, {"name": "m", "model": "m"},
    ]}));
    let hash = job.hash(&signature, &dataset, &candidates);
    let tables = [cells(&[0.0, 1.0, 0.0, 0.0]), cells(&[1.0, 1.0, 1.0, 0.0]), cells(&[0.0; 4])];
    let scored: Vec<Scored<'_>> =
        candidates.iter().zip(&tables).map(|(candidate, cells)| Scored { candidate, cells }).collect();
    let selected = select(&scored);
    let id = report_id(ID, &hash, &dataset.hash(), &candidates[selected].artifact.id());
    let eval = |slice, scored: &Scored<'_>| eval(&id, ID, &dataset.hash(), &job.metric, slice, scored);
    let mut evals: Vec<Value> = scored.iter().map(|one| eval(Slice::Holdout, one)).collect();
    let comparison = test.then(|| {
        evals.extend([selected, 0].map(|at| eval(Slice::Test, &scored[at])));
        compare(&scored[selected], &scored[0], &id)
    });
    let report = report(&job, &signature, &dataset, &hash, &candidates, selected, &evals, comparison);
    assert_eq!(report["report_id"], json!(id));
    (report, evals)
}

#[test]
fn a_report_says_what_was_done() {
    let (report, evals) = made("mail.jsonl", true);
    let terse = three()[1].artifact.id();
    assert_eq!(report["selected_artifact"], json!(terse));
    assert_eq!(report["metrics"]["best_candidate_score"], json!(0.75));
    assert_eq!(report["metrics"]["candidate_count"], json!(3));
    assert_eq!(report["metrics"]["dataset_counts"]["total"], json!(100));
    assert_eq!(
        report["candidate_artifacts"][1],
        json!({
            "name": "terse", "artifact_id": terse, "strategy_id": "direct.v1", "model": null, "few_shot": 2,
        })
    );
    assert_eq!(report["evals"].as_array().unwrap().len(), 5);
    assert_eq!(report["evals"][0]["eval_id"], evals[0]["eval_id"]);
    assert_eq!((&report["status"], &report["compiler_version"]), (&json!("succeeded"), &json!(COMPILER_VERSION)));
    assert_eq!(report["schema_hash"], json!(signature().hashes().schema_hash));
    assert_eq!(report["job"]["dataset"], report["dataset_hash"]);
    assert_eq!(made("/elsewhere/mail.jsonl", true), (report, evals), "to the byte, wherever the file lies");
}

#[test]
fn what_is_kept_has_the_fields_of_its_golden_file() {
    let fields = |value: &Value, more: &[&str]| {
        let names = value.as_object().unwrap().keys().map(String::as_str);
        names.chain(more.iter().copied()).map(ToOwned::to_owned).collect::<BTreeSet<_>>()
    };
    let golden = |text: &str| fields(&serde_json::from_str(text).unwrap(), &[]);
    let (report, evals) = made("mail.jsonl", true);
    assert_eq!(fields(&report, &[]), golden(include_str!("../../../golden/compile_report.v1.json")));
    // Whoever keeps them says where results and examples lie.
    assert_eq!(fields(&evals[0], &["results"]), golden(include_str!("../../../golden/eval_report.v1.json")));
    let manifest = dataset(100, Split::default()).manifest();
    assert_eq!(fields(&manifest, &["examples"]), golden(include_str!("../../../golden/prediction_dataset.v1.json")));
}

const REPORT: &str = r#"cmp_93a3d9bef1b80dabd6f1 @acme/mail/Sort.v2
100 examples (79 train, 13 holdout, 8 test) of dataset efe9342f62ea, measured by exact_match

   HOLDOUT   SCORE  95 %            TOKENS  COST  FAILED
   baseline  0.250  0.000 to 0.750  40      12    0
*  terse     0.750  0.250 to 1.000  40      12    0
   m         0.000  0.000 to 0.000  40      12    0

   TEST      SCORE  95 %            TOKENS  COST  FAILED
*  terse     0.750  0.250 to 1.000  40      12    0
   baseline  0.250  0.000 to 0.750  40      12    0

* selected on holdout: terse, art_1cd639e806c1655a2f3a95fc

a: terse, art_1cd639e806c1655a2f3a95fc, 0.750
b: baseline, art_6b2f29a57374385b3e15b991, 0.250
a − b on 4 examples: +0.500, 95 % from +0.000 to +1.000: this may be chance
better 2, worse 0, equal 2

EXAMPLE  A      B      ANSWER OF A  ANSWER OF B  INPUT
ex_000   1.000  0.000  {"box":"1"}  {"box":"0"}
ex_002   1.000  0.000  {"box":"1"}  {"box":"0"}"#;

#[test]
fn people_can_read_it() {
    let (report, evals) = made("mail.jsonl", true);
    assert_eq!(report_text(&report, &evals), REPORT);
    let (report, evals) = made("mail.jsonl", false);
    let text = report_text(&report, &evals);
    assert!(text.ends_with("not examined: there are no examples in test") && !text.contains("TEST"), "{text}");
    // What is missing or foreign is shown, and breaks nothing.
    assert!(report_text(&Value::Null, &[Value::Null, json!({"split": "holdout"})]).contains("–"));
    assert!(
        compare_text(&json!({"changed": [7, {"a": {"output": "x\u{1b}[31m\n"}}]})).contains("x\u{fffd}[31m\u{fffd}")
    );
    let long =
        json!({"changed": [{"example_id": "ex_1", "a": {"output": "y".repeat(61)}, "b": {"output": "z".repeat(60)}}]});
    let text = compare_text(&long);
    assert!(text.contains(&format!("{}…", "y".repeat(59))) && text.contains(&"z".repeat(60)));
}
