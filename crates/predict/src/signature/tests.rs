//! What is read, what is refused, and what a prompt looks like.

use serde_json::{Value, json};

use super::*;

fn sample() -> Value {
    json!({
        "namespace": "@acme/mail",
        "name": "Sort",
        "version": 2,
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "output_schema": {"type": "object", "properties": {"box": {"enum": ["a", "b"]}}, "required": ["box"]},
        "prompt_template": "Sort: {{ text }}",
        "program_template": "direct.v1",
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut changed = sample();
    changed[field] = value;
    changed
}

fn flaws(value: &Value) -> String {
    let flaws = Signature::read(value).expect_err("this is no signature");
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_signature_is_read_and_kept() {
    let signature = Signature::read(&sample()).unwrap();
    assert_eq!(signature.id(), "@acme/mail/Sort.v2");
    let kept = signature.to_json();
    assert_eq!(Signature::read(&kept).unwrap(), signature);
    assert_eq!(Signature::read(&kept).unwrap().to_json(), kept);
    assert!(jsonschema::is_valid(&schema(), &kept) && jsonschema::is_valid(&schema(), &sample()));
    // By its id alone.
    let mut by_id = sample();
    for field in ["namespace", "name", "version"] {
        by_id.as_object_mut().unwrap().remove(field);
    }
    by_id["signature_id"] = json!("@acme/mail/Sort.v2");
    assert_eq!(Signature::read(&by_id).unwrap(), signature);
    let full = json!({
        "strategy": "rlm_lite.v1", "model": "m", "provider": "p", "temperature": 0.5, "seed": 7, "max_output_tokens": 100,
        "max_iterations": 8, "max_calls": 9, "max_tokens": 1000, "max_chars_shown": 500, "timeout_ms": 1000,
        "long_inputs": ["text"],
    });
    let signature = Signature::read(&with("program_template", full.clone())).unwrap();
    assert_eq!(signature.program.to_json(), full);
    assert!(jsonschema::is_valid(&schema(), &signature.to_json()));
    assert_eq!(Signature::read(&signature.to_json()).unwrap(), signature);
    let short = Signature::read(&with("program_template", json!({"strategy": "direct.v1"}))).unwrap();
    assert_eq!(short.hashes(), Signature::read(&sample()).unwrap().hashes());
}

#[test]
fn hashes_change_with_what_they_cover() {
    let of = |value: &Value| Signature::read(value).unwrap().hashes();
    let first = of(&sample());
    assert_eq!(first, of(&with("description", json!("else"))));
    assert_eq!(first.program_hash, hash::of(&json!("direct.v1")));
    assert_eq!(first.prompt_hash, hash::of(&json!("Sort: {{ text }}")));
    let prompt = of(&with("prompt_template", json!("Sort {{ text }}")));
    assert!(prompt.prompt_hash != first.prompt_hash && prompt.schema_hash == first.schema_hash);
    let schema = of(&with("output_schema", json!({"type": "string"})));
    assert!(schema.schema_hash != first.schema_hash && schema.program_hash == first.program_hash);
    let program = of(&with("program_template", json!("rlm_lite.v1")));
    assert!(program.program_hash != first.program_hash && program.prompt_hash == first.prompt_hash);
}

#[test]
fn what_is_wrong_is_told_with_its_field() {
    for (field, value, expected) in [
        ("namespace", json!("a//b"), "namespace is"),
        ("namespace", json!("../x"), "namespace is"),
        ("namespace", json!("ä"), "namespace is"),
        ("namespace", json!(null), "namespace is missing"),
        ("name", json!("a.v1"), "name is"),
        ("name", json!("x".repeat(200)), "at most 200 bytes"),
        ("version", json!(0), "version is 0"),
        ("version", json!(1.5), "version is 1.5"),
        ("version", json!("1"), "version is"),
        ("signature_id", json!("@acme/mail/Sort.v3"), "@acme/mail/Sort.v2, as namespace"),
        ("signature_id", json!("Sort"), "namespace/name.vN"),
        ("signature_id", json!("a/b.v01"), "namespace/name.vN"),
        ("input_schema", json!({"text": "string"}), "not a map of type names"),
        ("input_schema", json!({"type": "string"}), "type object"),
        ("input_schema", json!({"type": "object", "properties": {"text": "string"}}), "stands by itself"),
        ("output_schema", json!({"type": "strange"}), "stands by itself"),
        ("output_schema", json!({"$ref": "https://example.com/x.json"}), "stands by itself"),
        ("output_schema", json!({"$ref": "file:///etc/passwd"}), "stands by itself"),
        ("output_schema", json!({"type": "string", "pattern": "("}), "stands by itself"),
        ("output_schema", json!({"const": u64::MAX}), "has one text"),
        ("output_schema", json!({"enum": ["x".repeat(SCHEMA_BYTES_MAX)]}), "bytes"),
        ("output_schema", json!(true), "a JSON Schema"),
        ("prompt_template", json!(""), "a template"),
        ("prompt_template", json!([]), "a template"),
        ("prompt_template", json!("{{ text"), "prompt_template is"),
        ("prompt_template", json!("{% for x %}"), "can be read"),
        ("prompt_template", json!("{% include 'x' %}"), "can be read"),
        ("prompt_template", json!([{"role": null, "content": ""}]), "content is"),
        ("name", json!(""), "name is"),
        ("prompt_template", json!("x".repeat(TEMPLATE_BYTES_MAX + 1)), "together at most"),
        ("prompt_template", json!([{"role": "user", "content": "{{"}]), "prompt_template[0].content"),
        ("prompt_template", json!([{"role": "boss", "content": "x"}]), "prompt_template[0].role"),
        ("prompt_template", json!([{"role": "user", "text": "x"}]), "prompt_template[0].content is missing"),
        ("program_template", json!("magic.v1"), "unsupported_strategy"),
        ("program_template", json!({"strategy": "magic.v1"}), "unsupported_strategy"),
        ("program_template", json!({}), "program_template.strategy is missing"),
        ("program_template", json!(7), "program_template is 7"),
        ("program_template", json!({"strategy": "rlm_lite.v1", "max_iterations": 9}), "from 1 to 8"),
        ("program_template", json!({"strategy": "rlm_lite.v1", "max_iterations": 0}), "from 1 to 8"),
        ("program_template", json!({"strategy": "direct.v1", "temperature": -1}), "temperature"),
        ("program_template", json!({"strategy": "direct.v1", "max_token": 1}), "did you mean max_tokens?"),
        ("program_template", json!({"strategy": "direct.v1", "long_inputs": ["a", "a"]}), "each once"),
        ("promt_template", json!("x"), "did you mean prompt_template?"),
    ] {
        let told = flaws(&with(field, value.clone()));
        assert!(told.contains(expected), "{field} = {value}: {told}");
    }
    assert!(Signature::read(&json!([])).is_err() && Signature::read(&json!(null)).is_err());
    let all = flaws(&json!({}));
    for field in
        ["namespace", "name", "version", "input_schema", "output_schema", "prompt_template", "program_template"]
    {
        assert!(all.contains(&format!("{field} is missing")), "{field}: {all}");
    }
}

#[test]
fn inputs_and_outputs_are_checked_without_telling_what_they_were() {
    let signature = Signature::read(&sample()).unwrap();
    assert!(signature.check_input(&json!({"text": "x"})).is_ok());
    let told = signature.check_input(&json!({"text": 7171})).unwrap_err();
    assert!(told[0].starts_with("/text: ") && !told[0].contains("7171"), "{told:?}");
    assert!(signature.check_input(&json!("x")).is_err() && signature.check_input(&json!(null)).is_err());
    assert!(
        signature.check_output(&json!({"box": "c"})).is_err() && signature.check_output(&json!({"box": "a"})).is_ok()
    );
    let many = with("output_schema", json!({"type": "array", "items": {"type": "string"}}));
    let told = Signature::read(&many).unwrap().check_output(&json!(vec![1; 100])).unwrap_err();
    assert_eq!((told.len(), told.last().unwrap().as_str()), (21, "and 80 more"));
}

/// Lists in lists, so many.
fn nested(levels: usize) -> Value {
    (1..levels).fold(json!([]), |inner, _| json!([inner]))
}

#[test]
fn what_is_nested_too_deep_fits_no_signature() {
    let open = Signature::read(&with("output_schema", json!({"type": "array"}))).unwrap();
    assert_eq!(open.check_output(&nested(LEVELS_MAX)), Ok(()));
    let told = open.check_output(&nested(LEVELS_MAX + 1)).unwrap_err();
    assert_eq!(told, ["/: nested deeper than 64 levels; make it flatter"]);
    let with_notes = |levels: usize| json!({"text": "x", "notes": nested(levels)});
    assert!(open.check_input(&with_notes(LEVELS_MAX - 1)).is_ok());
    assert!(open.check_input(&with_notes(LEVELS_MAX)).is_err());
}

#[test]
fn prompts_are_rendered_and_inputs_stay_text() {
    let signature = Signature::read(&sample()).unwrap();
    let hostile = "{{ input }} {% for %} <b> {{ 7 * 7 }}";
    let messages = signature.render(&json!({"text": hostile}), &[]).unwrap();
    assert_eq!(messages.len(), 2);
    assert_eq!((messages[0].role, messages[1].role), (Role::System, Role::User));
    assert!(messages[0].content.contains(r#"{"properties":{"box":{"enum":["a","b"]}}"#));
    assert_eq!(messages[1].content, format!("Sort: {hostile}"));
    let several = json!([
        {"role": "system", "content": "You sort {{ extra }}."},
        {"role": "user", "content": "{{ input.text }}"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "now"},
    ]);
    let signature = Signature::read(&with("prompt_template", several)).unwrap();
    let messages = signature.render(&json!({"text": "x"}), &[("extra", &json!("mail"))]).unwrap();
    assert!(messages[0].content.starts_with("You sort mail.\n\nAnswer with one JSON"));
    let rest: Vec<_> = messages[1..].iter().map(|m| m.content.as_str()).collect();
    assert_eq!(rest, ["x", "ok", "now"]);
    let bad = signature.render(&json!({"text": "x"}), &[]).unwrap_err();
    assert_eq!(bad.message, 1);
    assert!(bad.to_string().contains("undefined"), "{bad}");
}

#[test]
fn work_and_output_of_a_template_are_bounded() {
    let long = json!({"text": "x".repeat(1 << 20)});
    for source in [
        "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}",
        "{% for a in range(9000) %}{{ text }}{% endfor %}",
        "{{ text|replace('x', text) }}",
        "{{ [text, text, text, text, text]|join }}",
        "{{ missing }}",
        "{{ input.missing }}",
    ] {
        let signature = Signature::read(&with("prompt_template", json!(source))).unwrap();
        assert!(signature.render(&long, &[]).is_err(), "{source}");
    }
    let twice = json!([{"role": "user", "content": "{{ text }}{{ text }}"}, {"role": "user", "content": "{{ text }}{{ text }}."}]);
    assert_eq!(Signature::read(&with("prompt_template", twice)).unwrap().render(&long, &[]).unwrap_err().message, 2);
}

#[test]
fn the_gateway_has_signatures() {
    for word in ["chat_completions", "responses", "messages", "generate_content"] {
        let signature = gateway(word);
        assert_eq!(signature.id(), format!("actum/gateway_{word}.v1"));
        assert!(signature.check_input(&json!({"model": "m"})).is_ok());
    }
    assert_eq!(gateway("a/b ä").id(), "actum/gateway_a_b__.v1");
}
