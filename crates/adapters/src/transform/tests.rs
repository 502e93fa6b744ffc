//! Tests of transforms, one after the other and together.

use actum_contract::tool::{Transform, TransformKind};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn of(kind: TransformKind, spec: Value) -> Transform {
    Transform { kind, spec }
}

fn take(transforms: &[Transform], params: Value) -> Result<Value, Problem> {
    input(transforms, None, params.as_object().unwrap().clone()).map(Value::Object)
}

fn give(kind: TransformKind, spec: Value, value: Value) -> Result<Value, Problem> {
    output(&[of(kind, spec)], value)
}

#[test]
fn renaming() {
    let swap = [of(TransformKind::Rename, json!({"a": "b", "c": "d"}))];
    assert_eq!(take(&swap, json!({"a": 1, "x": 2})).unwrap(), json!({"b": 1, "x": 2}));
    let chain = [of(TransformKind::Rename, json!({"a": "b", "b": "c"}))];
    assert_eq!(take(&chain, json!({"a": 1, "b": 2})).unwrap(), json!({"b": 1, "c": 2}), "all at once");
    let twice = take(&swap, json!({"a": 1, "b": 2})).unwrap_err();
    assert_eq!((twice.stage, twice.path.as_deref()), (Stage::Input, Some("a")));
    let same = [of(TransformKind::Rename, json!({"a": "x", "b": "x"}))];
    assert!(take(&same, json!({"a": 1, "b": 2})).is_err());
}

#[test]
fn mapping_and_defaults() {
    let table = [of(TransformKind::Map, json!({"on": {"true": "yes", "*": "no"}, "n": {"3": "three"}}))];
    assert_eq!(take(&table, json!({"on": true, "n": 3})).unwrap(), json!({"on": "yes", "n": "three"}));
    assert_eq!(take(&table, json!({"on": "other", "n": 4})).unwrap(), json!({"on": "no", "n": 4}));
    assert_eq!(take(&table, json!({"on": null})).unwrap(), json!({"on": null}), "there is nothing to map");
    let text = [of(TransformKind::Map, json!({"a": "{{ value }}-{{ params.b }}", "b": "{{ params.a|upper }}"}))];
    assert_eq!(take(&text, json!({"a": "x", "b": "y"})).unwrap(), json!({"a": "x-y", "b": "X"}), "as they were given");
    let missing = take(&text, json!({"a": "x"})).unwrap_err();
    assert_eq!(missing.path.as_deref(), Some("a"));
    let default = [of(TransformKind::Default, json!({"a": 1, "b": [2], "c": 3}))];
    assert_eq!(take(&default, json!({"a": null, "c": false})).unwrap(), json!({"a": 1, "b": [2], "c": false}));
}

#[test]
fn every_error_of_a_validation_is_told() {
    let schema = json!({"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"},
        "deep": {"properties": {"x": {"enum": [1, 2]}}}}, "additionalProperties": false});
    let own = [of(TransformKind::Validate, schema.clone())];
    assert!(take(&own, json!({"id": 1})).is_ok());
    let wrong = take(&own, json!({"deep": {"x": 3}, "more": 1})).unwrap_err();
    for part in ["\"id\" is a required", "/deep/x", "more"] {
        assert!(wrong.message.contains(part), "{part}: {wrong}");
    }
    assert_eq!(take(&own, json!({})).unwrap_err().path.as_deref(), Some("/id"));
    let of_tool = [of(TransformKind::Validate, json!("json_schema"))];
    let with = |schema: Option<&Value>, id: Value| {
        input(&of_tool, schema, Map::from_iter([("id".to_owned(), id)])).map_err(|e| e.message)
    };
    assert!(with(Some(&schema), json!(1)).is_ok());
    assert!(with(Some(&schema), json!("1")).unwrap_err().contains("/id"));
    assert!(with(None, json!("1")).is_ok(), "nobody has said what is right");
    let many = json!({"additionalProperties": {"type": "string"}});
    let params = (0..50).map(|n| (n.to_string(), json!(n))).collect();
    let wrong = input(&[of(TransformKind::Validate, many)], None, params).unwrap_err();
    assert!(wrong.message.ends_with("and 30 more"), "{wrong}");
}

#[test]
fn schemas_never_fetch() {
    for schema in [
        json!({"$ref": "http://127.0.0.1:9/schema.json"}),
        json!({"$ref": "https://example.com/schema.json#/a"}),
        json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}),
        json!({"$ref": "other.json"}),
        json!({"$schema": "http://127.0.0.1:9/meta"}),
        json!({"type": "integr"}),
        json!({"pattern": "("}),
    ] {
        assert!(check_schema(&schema).is_err(), "{schema}");
    }
    let own = json!({"$defs": {"a": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a"}}});
    check_schema(&own).unwrap();
    check_schema(&json!({"$schema": "http://json-schema.org/draft-07/schema#"})).unwrap();
}

#[test]
fn parsing() {
    let parse = |spec: Value, text: &str| give(TransformKind::Parse, spec, json!(text));
    assert_eq!(parse(json!("json"), "{\"a\": [1]}").unwrap(), json!({"a": [1]}));
    let wrong = parse(json!("json"), "{\n\"a\": }").unwrap_err();
    assert_eq!((wrong.stage, wrong.path.as_deref()), (Stage::Output, Some("line 2 column 6")));
    assert_eq!(parse(json!("json_lines"), "1\n\n{\"a\":2}\r\n").unwrap(), json!([1, {"a": 2}]));
    assert_eq!(parse(json!("json_lines"), "1\n2\n{x\n").unwrap_err().path.as_deref(), Some("line 3"));
    assert_eq!(parse(json!("csv"), "a,b\n1,\"x, y\"\n").unwrap(), json!([{"a": "1", "b": "x, y"}]));
    assert_eq!(parse(json!("csv"), "a,b\n1,2\n3\n").unwrap_err().path.as_deref(), Some("line 3"));
    assert!(parse(json!("csv"), "a,a\n1,2\n").unwrap_err().message.contains("twice"));
    assert_eq!(parse(json!("text"), "x").unwrap(), json!("x"));
    let named = json!({"regex": r"(?<name>\w+)=(?<value>\d+)?"});
    assert_eq!(parse(named, "a=1 b=").unwrap(), json!([{"name": "a", "value": "1"}, {"name": "b", "value": null}]));
    assert_eq!(parse(json!({"regex": r"\d+"}), "a 1 b 22").unwrap(), json!(["1", "22"]));
    assert_eq!(parse(json!({"regex": "x"}), "a").unwrap(), json!([]));
    assert!(parse(json!({"regex": ""}), &"a".repeat(200_000)).unwrap_err().message.contains("more than"));
}

#[test]
fn only_json_may_be_read_already() {
    assert_eq!(give(TransformKind::Parse, json!("json"), json!({"a": 1})).unwrap(), json!({"a": 1}));
    for spec in [json!("json_lines"), json!("csv"), json!("text"), json!({"regex": "x"})] {
        let wrong = give(TransformKind::Parse, spec.clone(), json!({"a": 1})).unwrap_err();
        assert!(wrong.message.contains("an object"), "{spec}: {wrong}");
    }
}

#[test]
fn names_of_a_table_do_not_grow_without_bound() {
    let names: Vec<String> = (0..1_000).map(|n| format!("{n:0500}")).collect();
    let text = format!("{}\n{}", names.join(","), format!("{}\n", ",".repeat(999)).repeat(500));
    assert!(give(TransformKind::Parse, json!("csv"), json!(text)).unwrap_err().message.contains("names would take"));
}

#[test]
fn extracting_and_formatting() {
    let value = json!({"data": {"items": [{"n": 1}, {"n": 2}]}, "value": "own"});
    assert_eq!(give(TransformKind::Extract, json!("$.data.items[1].n"), value.clone()).unwrap(), json!(2));
    assert_eq!(give(TransformKind::Extract, json!("$..n"), value.clone()).unwrap(), json!([1, 2]));
    let nothing = give(TransformKind::Extract, json!("$.other"), value.clone()).unwrap_err();
    assert_eq!((nothing.stage, nothing.path.as_deref()), (Stage::Output, Some("$.other")));
    let source = json!("{{ data['items']|length }} of {{ value.data['items'][0].n }}");
    assert_eq!(give(TransformKind::Format, source, value).unwrap(), json!("2 of 1"));
    assert!(give(TransformKind::Format, json!("{{ value.x }}"), json!("text")).is_err());
    let all = [
        of(TransformKind::Parse, json!("json")),
        of(TransformKind::Extract, json!("$.a")),
        of(TransformKind::Format, json!("<{{ value }}>")),
    ];
    assert_eq!(output(&all, json!("{\"a\": 7}")).unwrap(), json!("<7>"));
}

#[test]
fn what_cannot_be_compiled_is_refused_beforehand() {
    let document = json!({
        "adapter_id": "A", "name": "a", "version": "1.0.0", "tool_id": "T", "type": "cli",
        "interface": {"cli": {"executable": "x"}},
        "transforms": {
            "input": [{"type": "map", "spec": {"p": "{{ broken", "q": "{{ value }}"}},
                {"type": "validate", "spec": {"$ref": "http://example.com/x"}}],
            "output": [{"type": "extract", "spec": "$.["}, {"type": "format", "spec": "{% if %}"}, {"type": "parse", "spec": "json"}],
        },
    });
    let adapter = Adapter::read(&document, &[]).unwrap();
    let found: Vec<String> = check(&adapter).into_iter().filter_map(|problem| problem.path).collect();
    assert_eq!(
        found,
        [
            "transforms.input[0].spec.p",
            "transforms.input[1].spec",
            "transforms.output[0].spec",
            "transforms.output[1].spec"
        ]
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".*", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lines_of_json_come_back(values in prop::collection::vec(any_json(), 0..10)) {
        let text: String = values.iter().map(|value| format!("{value}\n")).collect();
        prop_assert_eq!(give(TransformKind::Parse, json!("json_lines"), json!(text)).unwrap(), json!(values));
    }

    #[test]
    fn no_text_makes_a_parser_fall_over(text in ".*") {
        for spec in [json!("json"), json!("json_lines"), json!("csv"), json!({"regex": r"(?<a>.)(?<b>\s)?"})] {
            let _ = give(TransformKind::Parse, spec, json!(text));
        }
        let _ = path::Path::parse(&format!("${text}")).map(|path| path.find(&json!({"a": [1]})));
    }
}
