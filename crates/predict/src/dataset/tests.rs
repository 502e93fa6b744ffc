//! What becomes an example, where it falls, what is skipped, and what is noticed when it is read again.

use proptest::prelude::*;

use super::*;

fn signature() -> Signature {
    let value = json!({
        "signature_id": "@acme/mail/Sort.v2",
        "input_schema": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
        "output_schema": {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]},
        "prompt_template": "Sort {{ n }}",
        "program_template": "direct.v1",
    });
    Signature::read(&value).unwrap()
}

fn raw(at: usize, n: i64, word: &str) -> Raw {
    let (input, expected) = (json!({"n": n}), json!({"box": word}));
    Raw { at: format!("line {at}"), input, expected, receipt_id: None, is_labelled: true }
}

fn built(raw: Vec<Raw>, seed: &str) -> Dataset {
    Dataset::build("mail", &signature(), raw, Split::default(), seed, None, Vec::new()).unwrap()
}

#[test]
fn vectors_stay_as_they_are() {
    let dataset = built(vec![raw(1, 1, "a"), raw(2, 2, "b"), raw(3, 3, "a")], "default");
    let found: Vec<(&str, &str)> = dataset.examples.iter().map(|e| (e.id.as_str(), e.slice.word())).collect();
    let expected = [
        ("ex_27f4c95e8406a5210dbba886", "train"),
        ("ex_bf3a1c3a8e18e10941864582", "train"),
        ("ex_d9c01c289a622cf1bd4045e8", "holdout"),
    ];
    // Computed by another program.
    assert_eq!(found, expected);
    assert_eq!(dataset.hash(), "484cb9ebdf68b628e83252ef706037091321ad6bfd4a828229a7edd11cbdc992");
    assert_eq!(
        String::from_utf8(dataset.lines()).unwrap().lines().next(),
        Some(
            r#"{"example_id":"ex_27f4c95e8406a5210dbba886","expected":{"box":"a"},"input":{"n":1},"labelled":true,"split":"train"}"#
        )
    );
    let manifest = dataset.manifest();
    assert_eq!(manifest["dataset_hash"], json!(dataset.hash()));
    assert_eq!(manifest["counts"], json!({"total": 3, "train": 2, "holdout": 1, "test": 0, "skipped": 0}));
    assert_eq!(dataset.of(Slice::Test).count(), 0, "a part may be empty");
}

#[test]
fn parts_are_about_as_large_as_they_should_be() {
    let dataset = built((0..10_000).map(|n| raw(n, n as i64, "a")).collect(), "default");
    let [train, holdout, test] = Slice::ALL.map(|slice| dataset.of(slice).count());
    assert_eq!(train + holdout + test, 10_000);
    // Four standard deviations: 160 of 8,000, 120 of 1,000.
    assert!(train.abs_diff(8_000) < 160 && holdout.abs_diff(1_000) < 120 && test.abs_diff(1_000) < 120);
    let other = built((0..10_000).map(|n| raw(n, n as i64, "a")).collect(), "other");
    assert_ne!(dataset.hash(), other.hash());
    let moved = dataset.examples.iter().zip(&other.examples).filter(|(a, b)| a.slice != b.slice).count();
    assert!(moved > 2_500, "another seed deals anew: {moved}");
}

#[test]
fn what_cannot_be_used_is_named() {
    let mut all = vec![raw(1, 1, "a"), raw(2, 1, "a"), raw(3, 1, "b"), raw(10, 4, "a")];
    all.push(Raw { input: json!({"n": "x"}), ..raw(5, 0, "a") });
    all.push(Raw { expected: json!("a"), ..raw(6, 0, "a") });
    all.push(Raw { input: json!({"n": 0, "m": u64::MAX}), ..raw(7, 0, "a") });
    all.push(Raw { input: json!({"n": 0, "m": 1e20}), ..raw(8, 0, "a") });
    all.push(Raw { input: json!({"n": 0, "m": "x".repeat(EXAMPLE_BYTES_MAX)}), ..raw(9, 0, "a") });
    let before = vec![Skipped::new("rcp_1", "not_succeeded", "denied")];
    let build = |max| Dataset::build("m", &signature(), all.clone(), Split::default(), "s", max, before.clone());
    let dataset = build(None).unwrap();
    let found: Vec<(&str, &str)> = dataset.skipped.iter().map(|s| (s.at.as_str(), s.reason.as_str())).collect();
    let expected = [
        ("rcp_1", "not_succeeded"),
        ("line 2", "duplicate"),
        ("line 5", "invalid_input"),
        ("line 6", "invalid_expected"),
        ("line 7", "unsafe_number"),
        ("line 8", "unsafe_number"),
        ("line 9", "too_long"),
    ];
    assert_eq!(found, expected);
    assert_eq!(dataset.skipped[1].detail, "the same as line 1");
    assert_eq!(dataset.examples.len(), 3);
    let manifest = dataset.manifest();
    assert_eq!(manifest["skipped_reasons"]["unsafe_number"], json!(2));
    assert_eq!((&manifest["counts"]["skipped"], &manifest["counts"]["total"]), (&json!(7), &json!(3)));
    let fewer = build(Some(2)).unwrap();
    assert_eq!(fewer.examples, dataset.examples[..2]);
    assert_eq!(fewer.skipped.iter().filter(|one| one.reason == "over_max").count(), 1);
    let none = build(Some(0)).unwrap_err();
    assert!(none.to_string().contains("empty_dataset") && none.to_string().contains("over_max 3"), "{none}");
}

/// What is deep is an example as long as it can stand in a prompt and be read again.
#[test]
fn a_deep_example_is_kept_or_named() {
    let deep = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    let of = |levels: usize| Raw { input: json!({"n": 0, "m": deep(levels)}), ..raw(1, 0, "a") };
    let dataset = built(vec![of(63)], "s");
    assert_eq!(Dataset::read(&dataset.manifest(), &dataset.lines()), Ok(dataset.clone()));
    let mut artifact = crate::Artifact::of(&signature());
    artifact.shots =
        vec![crate::artifact::Shot { input: dataset.examples[0].input.clone(), output: json!({"box": "a"}) }];
    assert!(crate::Artifact::read(&artifact.to_json()).is_ok() && artifact.bind(&signature()).is_ok());
    for levels in [64, 120] {
        let build = Dataset::build("m", &signature(), vec![of(levels)], Split::default(), "s", None, Vec::new());
        assert!(build.unwrap_err().to_string().contains("invalid_input 1"));
    }
}

#[test]
fn a_label_stays_before_an_answer() {
    let answer = |id: &str, is_labelled| Raw {
        at: id.to_owned(),
        receipt_id: Some(id.to_owned()),
        is_labelled,
        ..raw(1, 1, "a")
    };
    let mut all = [answer("rcp_1", false), answer("rcp_2", true), answer("rcp_3", true), raw(9, 1, "a")];
    for _ in 0..all.len() {
        all.rotate_left(1);
        let dataset = built(all.to_vec(), "s");
        assert_eq!(dataset.examples[0].receipt_id.as_deref(), Some("rcp_2"));
        assert!(dataset.examples[0].is_labelled);
        assert_eq!(dataset.skipped.len(), 3);
    }
}

#[test]
fn bad_requests_are_refused() {
    let build = |name: &str, split: Split, seed: &str| {
        Dataset::build(name, &signature(), vec![raw(1, 1, "a")], split, seed, None, Vec::new()).unwrap_err()
    };
    let split = Split::default();
    assert_eq!(build("", split, "s"), BadDataset::InvalidName);
    assert_eq!(build("a\nb", split, "s"), BadDataset::InvalidName);
    assert_eq!(build(&"x".repeat(201), split, "s"), BadDataset::InvalidName);
    assert_eq!(build("m", split, ""), BadDataset::InvalidSeed { bytes: 0 });
    assert_eq!(build("m", split, &"x".repeat(201)), BadDataset::InvalidSeed { bytes: 201 });
    let whole = build("m", Split { train: 100, holdout: 100, test: 100 }, "s").to_string();
    assert!(whole.contains("100/100/100") && whole.contains("invalid_split"));
    let empty = Dataset::build("m", &signature(), Vec::new(), split, "s", None, Vec::new()).unwrap_err();
    assert!(empty.to_string().contains("there is none"), "{empty}");
}

#[test]
fn splits_make_a_hundred() {
    assert_eq!(Split::parse("80/10/10"), Ok(Split::default()));
    assert_eq!(Split::parse("0/100/0"), Ok(Split { train: 0, holdout: 100, test: 0 }));
    for bad in [
        "",
        "80",
        "80/20",
        "80/10/9",
        "80/10/11",
        "-80/90/90",
        "80/10/10/0",
        "80//20",
        "a/b/c",
        "+80/10/10",
        "80/10/10/",
    ] {
        let why = Split::parse(bad).unwrap_err().to_string();
        assert!(why.contains("invalid_split"), "{bad}: {why}");
    }
    for split in [Split::default(), Split { train: 34, holdout: 33, test: 33 }] {
        assert_eq!(Split::read(&split.to_json()), Ok(split));
    }
    for bad in [
        json!(null),
        json!([80, 10, 10]),
        json!({"train": 90, "holdout": 10}),
        json!({"train": 356, "holdout": 0, "test": 0}),
    ] {
        assert!(Split::read(&bad).is_err(), "{bad}");
    }
    assert_eq!(Slice::ALL.map(|slice| Slice::read(slice.word())), Slice::ALL.map(Some));
    assert_eq!(Slice::read("all"), None);
}

#[test]
fn lines_are_read_one_by_one() {
    let read = |line: &str| read_line(3, line.as_bytes());
    for word in ["expected", "output", "label"] {
        let raw = read(&format!(r#"{{"input": {{"n": 1}}, "{word}": null}}"#)).unwrap();
        assert_eq!((raw.at.as_str(), raw.expected, raw.is_labelled), ("line 3", Value::Null, true));
    }
    let ours = r#"{"example_id": "ex_1", "expected": 1, "input": 2, "labelled": false, "receipt_id": "rcp_1", "split": "test"}"#;
    assert_eq!(read(ours).unwrap().receipt_id, None);
    assert!(read_line(1, b"\xef\xbb\xbf{\"input\": 1, \"label\": 2}\r").is_ok());
    for (line, reason, told) in [
        ("", "not_json", "line 1"),
        ("{", "not_json", "line 1"),
        ("nonsense", "not_json", ""),
        (r#"{"input": 1, "input": 2, "label": 1}"#, "not_json", ""),
        (r#"{"input": 9007199254740993, "label": 1}"#, "not_json", ""),
        ("[]", "bad_line", "object"),
        ("7", "bad_line", "object"),
        (r#"{"label": 1}"#, "no_input", "input"),
        (r#"{"input": 1}"#, "no_output", "expected"),
        (r#"{"input": 1, "label": 1, "output": 1}"#, "bad_line", "one of them"),
        (r#"{"input": 1, "label": 1, "weight": 1}"#, "bad_line", "weight is no field"),
    ] {
        let skipped = read(line).unwrap_err();
        assert_eq!((skipped.at.as_str(), skipped.reason.as_str()), ("line 3", reason), "{line}");
        assert!(skipped.detail.contains(told), "{skipped:?}");
    }
    assert_eq!(read_line(1, &[0xff, 0xfe]).unwrap_err().reason, "not_json");
    assert_eq!(read_line(1, &vec![b' '; 2 << 20]).unwrap_err().reason, "too_long");
}

#[test]
fn what_was_changed_is_noticed() {
    let dataset = built((0..50).map(|n| raw(n, n as i64, "a")).collect(), "s");
    let (manifest, lines) = (dataset.manifest(), dataset.lines());
    assert_eq!(Dataset::read(&manifest, &lines), Ok(dataset.clone()));
    let text = String::from_utf8(lines.clone()).unwrap();
    let broken = |changed: &str| Dataset::read(&manifest, changed.as_bytes()).unwrap_err();
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(broken(&text.replacen("\"box\":\"a\"", "\"box\":\"b\"", 1)), BadDataset::BadLine { number: 1 });
    assert_eq!(
        broken(&text.replacen("\"split\":\"train\"", "\"split\":\"test\"", 50)),
        BadDataset::BadLine { number: 1 + rows.iter().position(|row| row.contains("\"split\":\"train\"")).unwrap() }
    );
    assert!(matches!(broken(&rows[1..].join("\n")), BadDataset::Mismatch { .. }));
    assert_eq!(broken(&[rows[1], rows[0]].join("\n")), BadDataset::BadLine { number: 2 });
    assert_eq!(broken(&[rows[0], rows[0]].join("\n")), BadDataset::BadLine { number: 2 });
    assert_eq!(broken(""), BadDataset::BadLine { number: 1 });
    assert_eq!(broken("{}\n"), BadDataset::BadLine { number: 1 });
    let with = |field: &str, value: Value| {
        let mut manifest = manifest.clone();
        manifest[field] = value;
        Dataset::read(&manifest, &lines)
    };
    assert!(with("version", json!(2)).unwrap_err().to_string().contains("use a newer actum"));
    assert!(matches!(with("version", Value::Null), Err(BadDataset::BadManifest { what: "version" })));
    assert!(matches!(with("split", json!("90/5/5")), Err(BadDataset::BadLine { .. } | BadDataset::Mismatch { .. })));
    assert!(matches!(with("split", json!(1)), Err(BadDataset::InvalidSplit { .. })));
    assert!(matches!(with("dataset_hash", json!("0")), Err(BadDataset::Mismatch { .. })));
    assert!(with("added_later", json!(1)).is_ok(), "fields are added without a new version");
}

#[test]
fn a_manifest_counts_more_than_it_names() {
    let skipped = (0..250).map(|n| Skipped::new(&format!("line {n}"), "not_json", &"x".repeat(999))).collect();
    let raw = vec![raw(1, 1, "a")];
    let dataset = Dataset::build("m", &signature(), raw, Split::default(), "s", None, skipped).unwrap();
    let manifest = dataset.manifest();
    assert_eq!(manifest["skipped"].as_array().unwrap().len(), 100);
    assert_eq!(manifest["skipped"][99]["detail"].as_str().unwrap().len(), 300);
    assert_eq!(manifest["counts"]["skipped"], json!(250));
    assert_eq!(Dataset::read(&manifest, &dataset.lines()).unwrap().manifest(), manifest);
}

fn any_raw() -> impl Strategy<Value = Vec<Raw>> {
    let one = (0..12i64, "[ab]", any::<bool>(), prop::option::of("rcp_[0-9]"));
    prop::collection::vec(one, 1..40).prop_map(|all| {
        let raw = |(at, (n, word, is_labelled, receipt_id)): (usize, (i64, String, bool, Option<String>))| Raw {
            is_labelled,
            receipt_id,
            ..raw(at, n, &word)
        };
        all.into_iter().enumerate().map(raw).collect()
    })
}

proptest! {
    #[test]
    fn the_order_of_examples_does_not_matter(
        (all, shuffled) in any_raw().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        max in prop::option::of(1..20usize),
    ) {
        let build = |raw| Dataset::build("m", &signature(), raw, Split::default(), "s", max, Vec::new()).unwrap();
        let (one, other) = (build(all), build(shuffled));
        prop_assert_eq!(one.lines(), other.lines());
        prop_assert_eq!(one.hash(), other.hash());
        prop_assert_eq!(one.examples.len() + one.skipped.len(), other.examples.len() + other.skipped.len());
        prop_assert_eq!(Dataset::read(&one.manifest(), &one.lines()).unwrap(), one);
    }

    #[test]
    fn one_question_is_in_one_part(all in any_raw(), seed in "[a-z|]{1,8}", train in 0..=100u8) {
        let split = Split { train, holdout: (100 - train) / 2, test: 100 - train - (100 - train) / 2 };
        let dataset = Dataset::build("m", &signature(), all, split, &seed, None, Vec::new()).unwrap();
        for one in &dataset.examples {
            for other in &dataset.examples {
                prop_assert!(one.input != other.input || one.slice == other.slice);
                prop_assert!(one.id != other.id || one == other);
            }
        }
    }

    #[test]
    fn no_line_breaks_the_reader(line in prop::collection::vec(any::<u8>(), 0..80), number in 0..3usize) {
        let _ = read_line(number, &line);
    }
}
