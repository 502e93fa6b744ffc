//! Datasets by way of the real binary: out of files and out of receipts, always in the same parts, without what must not be
//! kept, and with a reason for everything that was left out.

use std::fs;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::artifact::{added, artifact_of};
use super::predict::{KEY, SIGNATURE, assert_nothing_holds, demo};
use super::run::asked;

pub(crate) const ID: &str = "demo/Sentiment.v1";

/// A project that knows the signature, and no provider.
fn project() -> Program {
    known(actum())
}

fn known(actum: Program) -> Program {
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    actum
}

/// So many labelled texts; those with an even number sound well.
pub(crate) fn labelled(count: usize) -> String {
    let word = |n: usize| if n.is_multiple_of(2) { "positive" } else { "negative" };
    let mood = |n: usize| if n.is_multiple_of(2) { "well" } else { "badly" };
    let line = |n| json!({"input": {"text": format!("{n} went {}", mood(n))}, "expected": {"label": word(n)}});
    (0..count).map(|n| format!("{}\n", line(n))).collect()
}

fn import(actum: &Program, file: &str, more: &[&str]) -> Value {
    asked(actum, &[&["dataset", "import", file, "--signature", ID, "--json"], more].concat())
}

/// The reasons for which something was left out, each with its place.
fn left_out(manifest: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    manifest["skipped"].as_array().unwrap().iter().map(|one| (text(&one["at"]), text(&one["reason"]))).collect()
}

#[test]
fn dataset_lines_are_read_one_by_one_and_each_bad_one_is_told() {
    let actum = project();
    let good = |word: &str, text: &str| json!({"input": {"text": text}, word: {"label": "positive"}}).to_string();
    let lines = [
        good("expected", "a"),
        String::new(),
        good("output", "b"),
        "   ".to_owned(),
        good("label", "c"),
        good("expected", "a"),
        "no json".to_owned(),
        "[1]".to_owned(),
        json!({"input": {"text": "d"}}).to_string(),
        json!({"expected": {"label": "positive"}}).to_string(),
        json!({"input": {"text": "d"}, "expected": {"label": "positive"}, "output": {"label": "positive"}}).to_string(),
        json!({"input": {"text": "d"}, "expectd": {"label": "positive"}}).to_string(),
        json!({"input": {"words": "d"}, "expected": {"label": "positive"}}).to_string(),
        json!({"input": {"text": "d"}, "expected": {"label": "green"}}).to_string(),
        "{\"input\": {\"text\": \"d\", \"text\": \"e\"}, \"expected\": {\"label\": \"positive\"}}".to_owned(),
        json!({"input": null, "expected": null}).to_string(),
    ];
    actum.file("mixed.jsonl", lines.join("\r\n"));
    let made = import(&actum, "mixed.jsonl", &[]);
    assert_eq!(
        (&made["counts"]["total"], &made["counts"]["skipped"], &made["name"]),
        (&json!(3), &json!(11), &json!("mixed"))
    );
    let expected = [
        ("line 6", "duplicate"),
        ("line 7", "not_json"),
        ("line 8", "bad_line"),
        ("line 9", "no_output"),
        ("line 10", "no_input"),
        ("line 11", "bad_line"),
        ("line 12", "bad_line"),
        ("line 13", "invalid_input"),
        ("line 14", "invalid_expected"),
        ("line 15", "not_json"),
        ("line 16", "invalid_input"),
    ];
    let found = left_out(&made);
    assert_eq!(found.iter().map(|(at, why)| (at.as_str(), why.as_str())).collect::<Vec<_>>(), expected);
    assert_eq!(made["skipped_reasons"]["bad_line"], 3);
    // A person is told the same.
    let told = actum.run(&["dataset", "import", "mixed.jsonl", "--signature", ID]);
    for words in ["line 12: bad_line", "expectd"] {
        assert!(told.stderr.contains(words), "{words} is missing in {}", told.stderr);
    }
    assert!(!told.stderr.contains(": duplicate") && told.stdout.contains("1 duplicate"), "{}", told.stdout);
    // Who wants all or nothing gets nothing, and nothing is kept of it.
    actum.file("strict.jsonl", [good("expected", "s"), "no json".to_owned()].join("\n"));
    let refused = actum.run(&["dataset", "import", "strict.jsonl", "--signature", ID, "--strict", "--json"]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("INPUT_INVALID")), "{}", refused.stderr);
    assert!(refused.stderr.contains("line 2"), "{}", refused.stderr);
    assert_eq!(asked(&actum, &["dataset", "list", "--json"])["datasets"].as_array().unwrap().len(), 1);
    actum.file("fine.jsonl", labelled(3));
    assert_eq!(import(&actum, "fine.jsonl", &["--strict"])["counts"]["total"], 3);
}

#[test]
fn dataset_files_that_give_nothing_are_refused() {
    let actum = project();
    actum.file("empty.jsonl", "\n\n");
    actum.file("bad.jsonl", "{}\n");
    actum.file("good.jsonl", labelled(3));
    for (words, code, told) in [
        (&["empty.jsonl", "--signature", ID][..], 2, "empty_dataset"),
        (&["bad.jsonl", "--signature", ID], 2, "no_input 1"),
        (&["none.jsonl", "--signature", ID], 2, "none.jsonl"),
        (&[".", "--signature", ID], 2, "cannot read"),
        (&["/dev/zero", "--signature", ID], 2, "larger than"),
        (&["good.jsonl", "--signature", "demo/None.v1"], 7, "demo/None.v1"),
        (&["good.jsonl"], 2, "--signature"),
        (&["good.jsonl", "--signature", ID, "--split", "80/10"], 2, "80/10/10"),
        (&["good.jsonl", "--signature", ID, "--split", "80/10/11"], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--split", "a/b/c"], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--split=-1/1/100"], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--split", "33.3/33.3/33.4"], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--split", "100/0/0/0"], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--split", "+80/10/10"], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--split", ""], 2, "invalid_split"),
        (&["good.jsonl", "--signature", ID, "--seed", ""], 2, "seed"),
        (&["good.jsonl", "--signature", ID, "--name", "a\nb"], 2, "name"),
        (&["good.jsonl", "--signature", ID, "--max", "0"], 2, "--max"),
        (&["good.jsonl", "--signature", ID, "--out", "no/such/folder"], 2, "cannot write"),
    ] {
        let refused = actum.run(&[&["dataset", "import"], words].concat());
        assert_eq!(refused.code, code, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(told), "{told} is missing in {}", refused.stderr);
    }
    assert_eq!(asked(&actum, &["dataset", "list", "--json"])["datasets"], json!([]));
}

#[test]
fn dataset_secrets_are_not_on_disk() {
    let actum = known(actum().with_env("PLAIN", "looks-like-a-word-77"));
    actum.file(
        "actum.toml",
        "[providers.p]\ntype = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nkey = \"env:PLAIN\"\nmodels = [\"m\"]\n",
    );
    let secrets = ["ann.lee@example.com", "sk-0123456789abcdef", "looks-like-a-word-77", "+49 170 1234567"];
    let mut lines: Vec<Value> = secrets
        .iter()
        .enumerate()
        .map(|(n, secret)| json!({"input": {"text": format!("{n} is {secret}, well")}, "expected": {"label": "positive"}}))
        .collect();
    for secret in secrets {
        // Where it goes wrong it is told what, and not to whom.
        lines.push(json!({"input": {"text": "x"}, "expected": {"label": secret}}));
        lines.push(json!({"input": {"text": "x"}, "expected": {"label": "positive"}, secret: 1}));
    }
    let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    for secret in secrets {
        text += &format!("{{\"{secret}\": 1, \"{secret}\": 2}}\n{secret}\n");
    }
    actum.file("private.jsonl", text);
    let made = import(&actum, "private.jsonl", &["--out", "clean.jsonl"]);
    assert_eq!((&made["counts"]["total"], &made["counts"]["skipped"]), (&json!(4), &json!(16)), "{made}");
    for secret in secrets {
        assert_nothing_holds(&actum, secret);
        assert!(!made.to_string().contains(secret), "{secret} is in {made}");
        let out = fs::read_to_string(actum.path("clean.jsonl")).unwrap();
        assert!(!out.contains(secret), "{out}");
    }
    // What was taken out is taken out of what is asked as well: once more it is the same dataset.
    let again = import(&actum, "clean.jsonl", &[]);
    assert_eq!((&again["dataset_hash"], &again["idempotent"]), (&made["dataset_hash"], &json!(true)));
}

#[test]
fn dataset_parts_are_the_same_everywhere_and_a_seed_deals_anew() {
    let text = labelled(100);
    let mut turned: Vec<&str> = text.lines().collect();
    turned.reverse();
    let one = project();
    one.file("a.jsonl", &text);
    one.file("b.jsonl", turned.join("\n\n"));
    let first = import(&one, "a.jsonl", &["--split", "50/30/20"]);
    assert_eq!(first["idempotent"], false);
    let second = import(&one, "b.jsonl", &["--split", "50/30/20"]);
    assert_eq!((&second["dataset_hash"], &second["idempotent"]), (&first["dataset_hash"], &json!(true)));
    let other = project();
    other.file("c.jsonl", &text);
    let third = import(&other, "c.jsonl", &["--split", "50/30/20", "--out", "out.jsonl"]);
    assert_eq!(third["dataset_hash"], first["dataset_hash"]);
    let hash = first["dataset_hash"].as_str().unwrap();
    let lines = |actum: &Program| actum.run(&["dataset", "show", hash, "--lines"]).ok();
    assert_eq!(lines(&one), lines(&other));
    assert_eq!(lines(&one), fs::read_to_string(other.path("out.jsonl")).unwrap());
    // By the numbers that were wanted, as far as a hundred can tell.
    let counts = &first["counts"];
    for (part, wanted) in [("train", 50), ("holdout", 30), ("test", 20)] {
        let found = counts[part].as_i64().unwrap();
        assert!((found - wanted).abs() <= 15, "{part}: {found}");
    }
    // Whatever else is expected of it, a question stays in its part.
    let parts = |text: String| -> std::collections::BTreeMap<String, String> {
        let read = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        text.lines().map(read).map(|line| (line["input"].to_string(), line["split"].to_string())).collect()
    };
    one.file("d.jsonl", text.replace("positive", "negative"));
    let fourth = import(&one, "d.jsonl", &["--split", "50/30/20"]);
    assert_ne!(fourth["dataset_hash"], first["dataset_hash"]);
    let shown = one.run(&["dataset", "show", fourth["dataset_hash"].as_str().unwrap(), "--lines"]).ok();
    assert_eq!(parts(shown), parts(lines(&one)));
    // Another seed, other parts; and one more split.
    let anew = import(&one, "a.jsonl", &["--split", "50/30/20", "--seed", "two"]);
    let shown = one.run(&["dataset", "show", anew["dataset_hash"].as_str().unwrap(), "--lines"]).ok();
    assert_ne!(parts(shown), parts(lines(&one)));
    let hashes = [&first, &fourth, &anew, &import(&one, "a.jsonl", &["--split", "50/20/30"])]
        .map(|one| one["dataset_hash"].clone());
    assert!((1..4).all(|at| !hashes[..at].contains(&hashes[at])), "{hashes:?}");
    // Fewer of them are always the same ones.
    let few = import(&one, "a.jsonl", &["--max", "7"]);
    assert_eq!((&few["counts"]["total"], &few["skipped_reasons"]["over_max"]), (&json!(7), &json!(93)));
    assert_eq!(import(&one, "b.jsonl", &["--max", "7"])["dataset_hash"], few["dataset_hash"]);
    assert_eq!(few["skipped"].as_array().unwrap().len(), 93);
}

#[test]
fn dataset_is_found_by_hash_by_its_beginning_and_by_name() {
    let actum = project();
    actum.file("second.yaml", SIGNATURE.replace("version: 1", "version: 2"));
    actum.run(&["signature", "add", "second.yaml"]).ok();
    actum.file("a.jsonl", labelled(30));
    actum.file("b.jsonl", labelled(20));
    let first = import(&actum, "a.jsonl", &["--name", "letters"])["dataset_hash"].as_str().unwrap().to_owned();
    let second = import(&actum, "b.jsonl", &["--name", "letters"])["dataset_hash"].as_str().unwrap().to_owned();
    let found =
        |words: &[&str]| asked(&actum, &[&["dataset", "show", "--json"], words].concat())["dataset_hash"].clone();
    assert_eq!(found(&[&first]), first.as_str());
    assert_eq!(found(&[&first[..8]]), first.as_str());
    assert_eq!(found(&["letters"]), second.as_str(), "the newest of the name");
    for wanted in [&first[..3], "nothing", "", "../letters"] {
        assert_eq!(actum.run(&["dataset", "show", wanted]).code, 7, "{wanted:?}");
    }
    // Two signatures may have the same examples.
    asked(&actum, &["dataset", "import", "a.jsonl", "--signature", "demo/Sentiment.v2", "--json"]);
    assert_eq!(found(&[&first]), first.as_str());
    assert_eq!(found(&[&first, "--signature", "demo/Sentiment.v2"]), first.as_str());
    let listed = actum.run(&["dataset", "list"]).ok();
    assert_eq!(listed.matches("letters").count(), 2, "{listed}");
    let shown = actum.run(&["dataset", "show", &second]).ok();
    assert!(shown.contains("went well") && shown.contains("holdout"), "{shown}");
    // An example that somebody changed is not taken for one.
    let mut folders = vec![actum.path(".actum/evidence")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let mut bytes = fs::read(entry.path()).unwrap();
                    bytes.iter_mut().skip(200).for_each(|byte| *byte ^= 1);
                    fs::write(entry.path(), bytes).unwrap();
                }
            }
        }
    }
    let damaged = actum.run(&["dataset", "show", &second, "--json"]);
    assert_eq!(damaged.error()["code"], "CONTENT_DAMAGED", "{}", damaged.stderr);
}

/// Answers by what is asked: texts that went well are positive.
fn answering() -> Upstream {
    Upstream::start(Script::default().by(|body, _| {
        let text = body["messages"].to_string();
        let usage = Usage::new(40, 6);
        if text.contains("breaks") {
            return Some((Turn::Status(400, None), usage));
        }
        let word = if text.contains("well") { "positive" } else { "negative" };
        Some((Turn::text(json!({"label": word}).to_string()), usage))
    }))
}

fn predict(actum: &Program, text: &str) -> String {
    let told = asked(actum, &["predict", ID, "--json", "--param", &format!("text={text}")]);
    told["receipt_id"].as_str().unwrap().to_owned()
}

fn label(actum: &Program, receipt: &str, more: &[&str]) {
    actum.run(&[&["dataset", "label", receipt, "--reason", "seen"], more].concat()).ok();
}

fn export(actum: &Program, more: &[&str]) -> (Value, Vec<Value>) {
    let made = asked(actum, &[&["dataset", "export", "--signature", ID, "--json"], more].concat());
    let hash = made["dataset_hash"].as_str().unwrap_or_else(|| panic!("{made}"));
    (made.clone(), actum.run(&["dataset", "show", hash, "--lines"]).json_lines())
}

fn exported(actum: &Program) {
    let plain = predict(actum, "it went well");
    let corrected = predict(actum, "it went oddly");
    let low = predict(actum, "it went so");
    let high = predict(actum, "it went well enough");
    let failed = predict(actum, "it breaks");
    let mended = predict(actum, "it breaks again");
    let twice = predict(actum, "it went well");
    label(actum, &corrected, &["--expected", "{\"label\": \"positive\"}"]);
    label(actum, &low, &["--score", "0.5"]);
    label(actum, &high, &["--score", "0.2"]);
    label(actum, &high, &["--score", "1"]);
    label(actum, &mended, &["--expected", "{\"label\": \"negative\"}", "--score", "0"]);
    let (made, lines) = export(actum, &[]);
    let mut found: Vec<(&str, &str, bool)> = lines
        .iter()
        .map(|line| (&line["input"]["text"], &line["expected"]["label"], line["labelled"] == true))
        .map(|(text, label, is_labelled)| (text.as_str().unwrap(), label.as_str().unwrap(), is_labelled))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("it breaks again", "negative", true),
            ("it went oddly", "positive", true),
            ("it went well", "positive", false),
            ("it went well enough", "positive", true),
        ]
    );
    let mut reasons = left_out(&made);
    reasons.sort_unstable();
    let duplicate = (&plain).max(&twice);
    let mut expected = [(&low, "low_score"), (&failed, "not_succeeded"), (duplicate, "duplicate")]
        .map(|(at, why)| (at.clone(), why.to_owned()));
    expected.sort_unstable();
    assert_eq!(reasons, expected, "{made}");
    let (made, lines) = export(actum, &["--labelled", "--name", "checked"]);
    assert_eq!((lines.len(), &made["skipped_reasons"]["not_labelled"]), (3, &json!(3)), "{made}");
    assert!(lines.iter().all(|line| line["receipt_id"].as_str().unwrap().starts_with("pred_")));
    // The newest label counts.
    label(actum, &corrected, &["--expected", "{\"label\": \"negative\"}"]);
    let (_, lines) = export(actum, &[]);
    let one = lines.iter().find(|line| line["input"]["text"] == "it went oddly").unwrap();
    assert_eq!((&one["expected"]["label"], &one["receipt_id"]), (&json!("negative"), &json!(corrected)));
    assert_eq!(actum.run(&["store", "check"]).code, 0);
}

fn paid(actum: Program) -> Program {
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    actum
}

#[test]
fn dataset_out_of_receipts_has_what_was_right() {
    let upstream = answering();
    exported(&paid(demo(&upstream)));
}

#[test]
fn dataset_out_of_receipts_as_an_ordinary_user_on_postgres() {
    let upstream = answering();
    let actum = actum().with_env("STUB_KEY", KEY).on_store(&shared_url());
    let settings = format!(
        "[providers.stub]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nkey = \"env:STUB_KEY\"\nmodels = [\"stub-1\"]\n\
         [prices.stub-1]\ninput = 1000000\noutput = 2000000\n",
        upstream.url()
    );
    actum.file("actum.toml", settings);
    exported(&paid(known(actum.owned_by_nobody())));
}

#[test]
fn dataset_out_of_receipts_has_no_trials_and_names_what_is_not_there() {
    let upstream = answering();
    let actum = paid(demo(&upstream));
    actum.file("a.jsonl", labelled(10));
    import(&actum, "a.jsonl", &["--split", "0/0/100"]);
    asked(&actum, &["eval", "baseline", "--dataset", "a", "--signature", ID, "--json"]);
    assert_eq!(upstream.calls().len(), 10);
    let none = actum.run(&["dataset", "export", "--signature", ID, "--json"]);
    assert_eq!((none.code, &none.error()["code"]), (2, &json!("INPUT_INVALID")), "{}", none.stderr);
    assert!(none.stderr.contains("empty_dataset"), "{}", none.stderr);
    // What was refused before anybody was asked left no input; what is very long left its size.
    predict(&actum, "it went well");
    let mut unfit = artifact_of(&actum, "Is {{ text }} nice?");
    unfit["prompt_hash"] = json!("0".repeat(64));
    let unfit = added(&actum, &unfit);
    asked(&actum, &["predict", ID, "--json", "--param", "text=unfit", "--artifact", &unfit]);
    let long = format!("{}\n", json!({"input": {"text": "well ".repeat(250_000)}}));
    assert_eq!(actum.run_with(&["predict", ID, "--batch", "-", "--json"], long.as_bytes()).code, 1);
    let traced = predict(&actum, &"at length ".repeat(6_000));
    fs::remove_dir_all(actum.path(".actum/traces")).unwrap();
    let (made, lines) = export(&actum, &[]);
    assert_eq!(lines.len(), 1, "{made}");
    let reasons = &made["skipped_reasons"];
    assert_eq!(reasons, &json!({"no_input": 1, "omitted": 1, "no_trace": 1}), "{made}");
    assert!(left_out(&made).contains(&(traced, "no_trace".to_owned())));
}

#[test]
fn dataset_labels_are_checked() {
    let upstream = answering();
    let actum = paid(demo(&upstream));
    let receipt = predict(&actum, "it went well");
    let call = asked(&actum, &["trace", "list", "--json"])["receipts"].as_array().unwrap().clone();
    let call = call.iter().find(|one| one["kind"] == "call").unwrap()["receipt_id"].as_str().unwrap().to_owned();
    for (words, code, told) in [
        (&["pred_none", "--score", "1"][..], 7, "pred_none"),
        (&["", "--score", "1"], 7, "no prediction"),
        (&[call.as_str(), "--score", "1"], 7, "prediction"),
        (&[receipt.as_str()], 2, "--expected"),
        (&[receipt.as_str(), "--expected", "{"], 2, "no JSON"),
        (&[receipt.as_str(), "--expected", "{\"label\": \"positive\", \"label\": \"positive\"}"], 2, "no JSON"),
        (&[receipt.as_str(), "--expected", "{\"label\": \"green\"}"], 2, "does not fit"),
        (&[receipt.as_str(), "--expected", "null"], 2, "does not fit"),
        (&[receipt.as_str(), "--score", "1.1"], 2, "from 0 to 1"),
        (&[receipt.as_str(), "--score=-0.1"], 2, "from 0 to 1"),
        (&[receipt.as_str(), "--score", "NaN"], 2, "from 0 to 1"),
        (&[receipt.as_str(), "--score", "inf"], 2, "from 0 to 1"),
        (&[receipt.as_str(), "--score", "good"], 2, "--score"),
    ] {
        let refused = actum.run(&[&["dataset", "label"], words].concat());
        assert_eq!(refused.code, code, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(told), "{told} is missing in {}", refused.stderr);
    }
    let labels = || asked(&actum, &["ledger", "list", "--type", "prediction_label", "--json"])["entries"].clone();
    assert_eq!(labels(), json!([]));
    label(&actum, &receipt, &["--expected", "{\"label\": \"positive\"}", "--score", "1", "--actor", "ann"]);
    let id = labels()[0]["id"].as_str().unwrap().to_owned();
    let payload = asked(&actum, &["ledger", "show", &id, "--json"])["payload"].clone();
    assert_eq!((&payload["actor"], &payload["reason"]), (&json!("ann"), &json!("seen")), "{payload}");
    // Nobody writes them from outside.
    for kind in ["prediction_label", "prediction_dataset", "eval_report", "compile_report"] {
        let forged = json!({"tenantId": "local", "module": "predict", "source": "me", "type": kind, "payload": {}});
        assert_eq!(actum.run_with(&["ledger", "append", "-"], forged.to_string().as_bytes()).code, 2, "{kind}");
    }
}
