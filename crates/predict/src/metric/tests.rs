//! What each metric gives for what it likes, for what it does not, and for what is not there; and what is no metric.

use proptest::prelude::*;

use super::*;

fn flaws(value: Value) -> String {
    let flaws = Metric::read(&value).unwrap_err();
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn scored(metric: Value, output: Value, expected: Value) -> f64 {
    Metric::read(&metric).unwrap().score(&output, &expected).unwrap()
}

#[test]
fn equal_is_equal_in_canonical_text() {
    let exact = |a: Value, b: Value| scored(json!("exact_match"), a, b);
    assert_eq!(exact(json!({"a": 1, "b": [true]}), json!({"b": [true], "a": 1.0})), 1.0);
    assert_eq!(exact(json!({"a": 1}), json!({"a": "1"})), 0.0);
    assert_eq!(exact(json!([1, 2]), json!([2, 1])), 0.0);
    assert_eq!(exact(Value::Null, Value::Null), 1.0);
    assert_eq!(exact(json!(u64::MAX), json!(u64::MAX - 1)), 0.0);
}

#[test]
fn fields_count_by_their_share() {
    let fields = |fields: Value, a: Value, b: Value| scored(json!({"kind": "field_match", "fields": fields}), a, b);
    let whole = json!({"a": {"b": [1, {"c": "x"}]}, "d": 2, "e.f": 3, "n": null});
    assert_eq!(fields(json!(["a.b.1.c", "d"]), whole.clone(), json!({"a": {"b": [0, {"c": "x"}]}, "d": 2.0})), 1.0);
    assert_eq!(fields(json!(["a.b.1.c", "d"]), whole.clone(), json!({"d": 2})), 0.5);
    assert_eq!(fields(json!(["/a/b/0", "/e.f", "/d"]), whole.clone(), json!({"e.f": 3, "d": 3})), 1.0 / 3.0);
    assert_eq!(fields(json!(["x"]), whole.clone(), whole.clone()), 0.0, "what neither has is no match");
    assert_eq!(fields(json!(["n"]), whole.clone(), whole.clone()), 1.0, "null is something");
    assert_eq!(fields(json!(["d.x", "a.b.x", "a.b.-1", "a.b.9"]), whole.clone(), whole), 0.0);
}

#[test]
fn what_cannot_be_there_is_found_before_anything_is_scored() {
    let schema = json!({"type": "object", "properties": {"label": {}, "a/b": {}, "deep": {}}});
    let told = |metric: Value, schema: &Value| Metric::read(&metric).unwrap().check(schema);
    let fields = |names: Value| json!({"kind": "field_match", "fields": names});
    for good in [
        json!("exact_match"),
        json!({"kind": "judge", "signature": "demo/Judge.v1"}),
        fields(json!(["label", "deep.x.0", "/deep/x", "/a~1b"])),
        json!({"kind": "contains"}),
        json!({"kind": "contains", "field": "label"}),
        json!({"kind": "numeric_tolerance", "field": "/deep/n", "tolerance": 1}),
    ] {
        assert_eq!(told(good.clone(), &schema), Ok(()), "{good}");
    }
    for (bad, name) in [
        (fields(json!(["label", "lable"])), "lable"),
        (fields(json!(["/lable/x"])), "lable"),
        (fields(json!(["a.b"])), "a"),
        (json!({"kind": "contains", "field": "text"}), "text"),
        (json!({"kind": "numeric_tolerance", "field": "n", "tolerance": 1}), "n"),
    ] {
        let why = told(bad.clone(), &schema).unwrap_err();
        assert_eq!(why, format!("an answer has no field {name:?}; it has a/b, deep, label"), "{bad}");
    }
    // Where a schema says that there may be more, nothing is known.
    let typo = fields(json!(["lable"]));
    let mut closed = schema.clone();
    closed["additionalProperties"] = json!(false);
    assert!(told(typo.clone(), &closed).is_err());
    for (word, said) in [
        ("additionalProperties", json!(true)),
        ("additionalProperties", json!({"type": "string"})),
        ("patternProperties", json!({"^l": {}})),
        ("allOf", json!([{"properties": {"lable": {}}}])),
    ] {
        let mut open = schema.clone();
        open[word] = said;
        assert_eq!(told(typo.clone(), &open), Ok(()), "{word}");
    }
    assert_eq!(told(typo, &json!({"type": "string"})), Ok(()));
}

#[test]
fn numbers_may_be_off() {
    let near = |field: Value, tolerance: f64, a: Value, b: Value| {
        scored(json!({"kind": "numeric_tolerance", "field": field, "tolerance": tolerance}), a, b)
    };
    let none = Value::Null;
    assert_eq!(near(none.clone(), 0.1, json!(0.8), json!(0.7)), 1.0, "doubles make it a hair more");
    assert_eq!(near(none.clone(), 0.01, json!(1_000_000.01), json!(1_000_000)), 1.0);
    assert_eq!(near(none.clone(), 0.1, json!(0.8), json!(0.699)), 0.0);
    assert_eq!(near(none.clone(), 0.0, json!(9_007_199_254_740_991_u64), json!(9_007_199_254_740_990_u64)), 0.0);
    assert_eq!(near(none.clone(), 0.0, json!(1), json!(1.0)), 1.0);
    assert_eq!(near(none.clone(), 1.0, json!({"v": " 12.5 ", "unit": "m"}), json!([[12]])), 1.0);
    assert_eq!(near(none.clone(), 9.0, json!({"v": 1, "w": 2}), json!(1)), 0.0, "which of them?");
    assert_eq!(near(none.clone(), 9.0, json!({"v": 1, "w": "2"}), json!(1)), 0.0);
    assert_eq!(near(json!("v"), 0.0, json!({"v": 1, "w": 2}), json!({"v": "1"})), 1.0);
    assert_eq!(near(json!("v"), 9.0, json!({"w": 2}), json!({"w": 2})), 0.0);
    for word in ["inf", "NaN", "infinity", "", "one", "0x10"] {
        assert_eq!(near(none.clone(), 1e15, json!(word), json!(word)), 0.0, "{word}");
    }
    assert_eq!(near(none.clone(), 1e15, json!(1.7e308), json!(-1.7e308)), 0.0);
    assert_eq!(near(none, 1.0, json!(true), json!(1)), 0.0);
}

#[test]
fn texts_are_found_in_texts() {
    let contains = |field: Value, a: Value, b: Value| scored(json!({"kind": "contains", "field": field}), a, b);
    let none = Value::Null;
    assert_eq!(contains(none.clone(), json!("It is PARIS."), json!("  Paris ")), 1.0);
    assert_eq!(contains(none.clone(), json!("Paris"), json!("It is Paris")), 0.0, "the other way round is nothing");
    assert_eq!(contains(none.clone(), json!({"a": "in\nParis", "p": 0.9}), json!({"a": "Paris"})), 1.0);
    assert_eq!(contains(none.clone(), json!({"a": "x", "n": 42}), json!(42)), 1.0);
    assert_eq!(contains(none.clone(), json!("ÄRGER"), json!("ärger")), 1.0);
    assert_eq!(contains(json!("a"), json!({"a": "x", "b": "y"}), json!({"a": "y"})), 0.0);
    for nothing in [json!(""), json!("  "), json!(null), json!({}), json!([null])] {
        assert_eq!(contains(none.clone(), json!("text"), nothing.clone()), 0.0, "{nothing} is in everything");
    }
    assert_eq!(contains(json!("a"), json!({"b": 1}), json!({"b": 1})), 0.0);
}

#[test]
fn a_judge_is_asked_by_somebody_else() {
    let judge = Metric::read(&json!({"kind": "judge", "signature": "@acme/mail/Judge.v1"})).unwrap();
    assert_eq!(judge.score(&json!(1), &json!(1)), None);
    let input = Metric::judge_input(&json!({"b": 1, "a": 2}), &json!("x"), &Value::Null);
    assert_eq!(input, json!({"input": r#"{"a":2,"b":1}"#, "output": r#""x""#, "expected": "null"}));
    assert_eq!(judge.judged(&json!({"score": 0.25})), Ok(0.25));
    assert_eq!(judge.judged(&json!({"score": true})), Ok(1.0));
    assert_eq!(judge.judged(&json!({"score": false})), Ok(0.0));
    for bad in [json!({"score": 1.01}), json!({"score": -0.1}), json!({"score": "1"}), json!({}), json!(1), json!(null)]
    {
        let why = judge.judged(&bad).unwrap_err();
        assert!(why.contains("score is") && why.contains("from 0 to 1"), "{why}");
    }
    let deep = json!({"kind": "judge", "signature": "a/b.v1", "field": "/verdict/ok"});
    assert_eq!(Metric::read(&deep).unwrap().judged(&json!({"verdict": {"ok": 1}})), Ok(1.0));
}

#[test]
fn every_flaw_is_told() {
    for word in [json!(null), json!(7), json!("accuracy"), json!([])] {
        assert!(flaws(word).contains("exact_match | field_match"));
    }
    assert!(flaws(json!("judge")).contains("{kind: judge"));
    assert!(flaws(json!({})).contains("kind is missing"));
    assert!(flaws(json!({"kind": "accuracy"})).contains("expected exact_match, field_match"));
    assert!(flaws(json!({"kind": "exact_match", "field": "a"})).contains("field is no field of a metric"));
    assert!(flaws(json!({"kind": "field_match"})).contains("expected 1 to 64 fields"));
    assert!(flaws(json!({"kind": "field_match", "fields": "a"})).contains("fields is \"a\""));
    assert!(flaws(json!({"kind": "field_match", "fields": ["a", "a"]})).contains("each once"));
    assert!(flaws(json!({"kind": "field_match", "fields": vec!["a"; 65]})).contains("each once"));
    let paths = flaws(json!({"kind": "field_match", "fields": ["", "a..b", "a\n", ".", "x".repeat(201)]}));
    assert_eq!(paths.matches("expected a path").count(), 5, "{paths}");
    let both = flaws(json!({"kind": "numeric_tolerance", "field": 3, "tolerance": -1, "unit": "m"}));
    assert!(both.contains("field is 3") && both.contains("tolerance is -1") && both.contains("unit is no field"));
    assert!(flaws(json!({"kind": "numeric_tolerance", "tolerance": 1e16})).contains("tolerance is"));
    assert!(flaws(json!({"kind": "numeric_tolerance"})).contains("tolerance is missing"));
    assert!(flaws(json!({"kind": "judge"})).contains("signature is missing"));
    assert!(flaws(json!({"kind": "judge", "signature": "Judge"})).contains("namespace/name.vN"));
    let mut found = Vec::new();
    let mut part = Part::new(&Value::Null, "job", "a job", &mut found);
    assert_eq!(Metric::take(&mut part, "metric"), None);
    let mut part = Part::new(&json!({"metric": {"kind": "contains", "field": ""}}), "job", "a job", &mut found);
    Metric::take(&mut part, "metric");
    assert_eq!(found[0].field, "job.metric.field");
}

#[test]
fn the_schema_knows_every_kind() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    for metric in kinds() {
        assert_eq!(Metric::read(&metric.to_json()).unwrap(), metric);
        assert!(schema.is_valid(&metric.to_json()), "{metric:?}");
    }
    assert!(schema.is_valid(&json!("exact_match")));
    for bad in [json!("judge"), json!({"kind": "judge"}), json!({"kind": "contains", "x": 1}), json!(null)] {
        assert!(!schema.is_valid(&bad) && Metric::read(&bad).is_err(), "{bad}");
    }
}

fn kinds() -> Vec<Metric> {
    let some = |text: &str| Some(text.to_owned());
    vec![
        Metric::ExactMatch,
        Metric::FieldMatch { fields: vec!["a.b".to_owned(), "/c".to_owned()] },
        Metric::NumericTolerance { field: None, tolerance: 0.5 },
        Metric::NumericTolerance { field: some("a"), tolerance: 0.0 },
        Metric::Contains { field: None },
        Metric::Contains { field: some("a") },
        Metric::Judge { signature: "a/b.v1".to_owned(), field: "score".to_owned() },
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c0-9. ]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_score_lies_between_nothing_and_all(output in any_value(), expected in any_value()) {
        for metric in kinds() {
            let Some(score) = metric.score(&output, &expected) else { continue };
            prop_assert!((0.0..=1.0).contains(&score));
        }
        prop_assert_eq!(Metric::ExactMatch.score(&output, &output), Some(1.0));
    }

    #[test]
    fn nothing_that_is_read_breaks(value in any_value(), kind in prop::sample::select(&WORDS[..])) {
        let mut value = value;
        if let Value::Object(fields) = &mut value {
            fields.insert("kind".to_owned(), json!(kind));
        }
        if let Ok(metric) = Metric::read(&value) {
            prop_assert_eq!(Metric::read(&metric.to_json()).unwrap(), metric);
        }
    }
}
