//! Canonical JSON against the published vectors, independent oracles and every kind of bad input.

use proptest::prelude::*;
use serde_json::{Number, Value, json};

use super::*;

macro_rules! vector {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../testdata/jcs/input/", $name, ".json")),
            include_str!(concat!("../../testdata/jcs/output/", $name, ".json")),
        )
    };
}

const VECTORS: &[(&str, &str, &str)] = &[
    vector!("arrays"),
    vector!("french"),
    vector!("structures"),
    vector!("unicode"),
    vector!("values"),
    vector!("weird"),
];

#[test]
fn published_vectors() {
    for (name, input, output) in VECTORS {
        let text = canonical(&parse(input.as_bytes()).unwrap()).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), *output, "{name}");
    }
}

#[test]
fn ten_thousand_numbers() {
    let lines = include_str!("../../testdata/jcs/es6testfile10k.txt");
    let mut count = 0;
    for line in lines.lines() {
        let (bits, expected) = line.split_once(',').unwrap();
        let double = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
        let value = Value::Number(Number::from_f64(double).unwrap());
        assert_eq!(String::from_utf8(canonical(&value).unwrap()).unwrap(), expected, "{bits}");
        // And through text, which is where a reader without float_roundtrip would lose a bit.
        let back = parse(format!("{double:e}").as_bytes()).unwrap();
        assert_eq!(String::from_utf8(canonical(&back).unwrap()).unwrap(), expected, "{bits} through text");
        count += 1;
    }
    assert_eq!(count, 10_000);
}

fn flaw(text: impl AsRef<[u8]>) -> (Flaw, usize, usize) {
    let error = parse(text.as_ref()).unwrap_err();
    (error.flaw, error.line, error.column)
}

#[test]
fn every_kind_of_bad_input_has_a_position() {
    assert_eq!(flaw("{\"a\": 1,\n \"a\": 2}"), (Flaw::DuplicateKey, 2, 4));
    assert_eq!(flaw(r#"{"a":{"b":1,"c":{},"b":2}}"#).0, Flaw::DuplicateKey);
    // The same key in two spellings is the same key.
    assert_eq!(flaw(r#"{"a":1,"\u0061":2}"#).0, Flaw::DuplicateKey);
    assert_eq!(flaw("[1,\n9007199254740992]").0, Flaw::UnsafeInteger);
    assert_eq!(flaw("[-9007199254740993]").0, Flaw::UnsafeInteger);
    assert_eq!(flaw("[\"99999999999999999999999\",\n  99999999999999999999999]"), (Flaw::UnsafeInteger, 2, 3));
    assert_eq!(flaw("[1e400]").0, Flaw::NotFinite);
    assert_eq!(flaw("[NaN]").0, Flaw::Syntax);
    assert_eq!(flaw(r#"["\ud800"]"#).0, Flaw::LoneSurrogate);
    assert_eq!(flaw(r#"["\ud800x"]"#).0, Flaw::LoneSurrogate);
    assert_eq!(flaw(r#"["\udc00"]"#).0, Flaw::LoneSurrogate);
    assert_eq!(flaw(b"[\"\xff\"]").0, Flaw::InvalidUtf8);
    assert_eq!(flaw("[".repeat(200_000)).0, Flaw::Depth);
    assert_eq!(flaw("{\"a\":".repeat(200_000)).0, Flaw::Depth);
    assert_eq!(flaw("{\"a\": [1,").0, Flaw::Truncated);
    assert_eq!(flaw("{\"a\": \"b").0, Flaw::Truncated);
    assert_eq!(flaw("").0, Flaw::Truncated);
    assert_eq!(flaw("{} {}").0, Flaw::Syntax);
    assert_eq!(flaw("[01]").0, Flaw::Syntax);
    assert_eq!(flaw("{'a':1}").0, Flaw::Syntax);
    assert_eq!(flaw("[\"a\nb\"]").0, Flaw::Syntax);
    assert_eq!(flaw(vec![b' '; crate::limit::DOCUMENT_BYTES_MAX + 1]).0, Flaw::Size);
}

#[test]
fn the_border_of_safe_integers_is_inside() {
    let text = b"[9007199254740991,-9007199254740991,1e21,9007199254740994.0,-0,0.0]";
    let out = canonical(&parse(text).unwrap()).unwrap();
    assert_eq!(out, b"[9007199254740991,-9007199254740991,1e+21,9007199254740994,0,0]");
    assert!(matches!(canonical(&json!(u64::MAX)), Err(Unwritable::UnsafeInteger(_))));
    assert!(matches!(canonical(&json!(i64::MIN)), Err(Unwritable::UnsafeInteger(_))));
}

#[test]
fn keys_out_of_order_on_every_level_cost_no_more_than_a_sort() {
    // U+E000 sorts after U+1F600 in UTF-16 and before it in UTF-8. Writing a level twice would take 2^40 steps here.
    let mut value = json!(1);
    for _ in 0..40 {
        value = json!({"\u{1F600}": 2, "\u{E000}": value});
    }
    let text = String::from_utf8(canonical(&value).unwrap()).unwrap();
    assert!(text.starts_with("{\"\u{1F600}\":2,\"\u{E000}\":{"));
}

#[test]
fn depth_of_127_is_read() {
    let text = format!("{}{}", "[".repeat(127), "]".repeat(127));
    assert_eq!(canonical(&parse(text.as_bytes()).unwrap()).unwrap(), text.as_bytes());
}

/// Any JSON value of the strict profile, with keys from the ranges where UTF-8 and UTF-16 order differ.
fn values() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[ -~]{0,12}",
        proptest::collection::vec(any::<char>(), 0..6).prop_map(|c| c.into_iter().collect::<String>()),
        proptest::collection::vec(
            prop_oneof![Just('a'), Just('\u{E000}'), Just('\u{FFFD}'), Just('\u{10000}'), Just('\u{10FFFF}')],
            0..4
        )
        .prop_map(|c| c.into_iter().collect::<String>()),
    ];
    let safe = INTEGER_SAFE_MAX as i64;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-safe..=safe).prop_map(|n| json!(n)),
        any::<f64>().prop_filter_map("finite", |n| Number::from_f64(n).map(Value::Number)),
        text.clone().prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 48, 8, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            proptest::collection::vec((text.clone(), inner), 0..8).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn equals_an_independent_implementation(value in values()) {
        let ours = canonical(&value).unwrap();
        prop_assert_eq!(&ours, &serde_json_canonicalizer::to_vec(&value).unwrap());
        prop_assert_eq!(ours, oracle(&value).into_bytes());
    }

    #[test]
    fn reading_and_writing_again_changes_nothing(value in values()) {
        let once = canonical(&value).unwrap();
        // A double of integral value between 2^53 and 1e21 is written as digits, which the strict reader refuses.
        match parse(&once) {
            Ok(back) => prop_assert_eq!(canonical(&back).unwrap(), once),
            Err(e) => prop_assert_eq!(e.flaw, Flaw::UnsafeInteger),
        }
    }

    #[test]
    fn order_of_keys_is_that_of_utf16(a in any::<String>(), b in any::<String>()) {
        prop_assert_eq!(compare_utf16(&a, &b), a.encode_utf16().cmp(b.encode_utf16()));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }
}

/// RFC 8785 read off the page, without a thought for speed: a second implementation to compare with.
fn oracle(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut keys: Vec<_> = members.keys().collect();
            keys.sort_by_key(|k| k.encode_utf16().collect::<Vec<_>>());
            let inner: Vec<_> = keys.iter().map(|k| format!("{}:{}", oracle_text(k), oracle(&members[*k]))).collect();
            format!("{{{}}}", inner.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(oracle).collect::<Vec<_>>().join(",")),
        Value::String(text) => oracle_text(text),
        Value::Number(n) if n.is_f64() => ryu_js::Buffer::new().format(n.as_f64().unwrap()).to_owned(),
        other => other.to_string(),
    }
}

fn oracle_text(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| match c {
            '"' => "\\\"".into(),
            '\\' => "\\\\".into(),
            '\u{8}' => "\\b".into(),
            '\t' => "\\t".into(),
            '\n' => "\\n".into(),
            '\u{c}' => "\\f".into(),
            '\r' => "\\r".into(),
            c if (c as u32) < 32 => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}
