//! What is read and refused, what an id covers, which signature an artifact fits, and examples in a prompt.

mod property;

use serde_json::{Value, json};

use super::*;
use crate::protocol::{Message, Role, Said};
use crate::strategy::{self, Call, Limits, Model, Stop};

fn document() -> Value {
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

fn signature() -> Signature {
    Signature::read(&document()).unwrap()
}

fn shot(text: &str, answer: &str) -> Shot {
    Shot { input: json!({ "text": text }), output: json!({ "box": answer }) }
}

fn sample() -> Artifact {
    Artifact {
        prompt: Template::Text("Which box? {{ text }}".to_owned()),
        shots: vec![shot("one", "a"), shot("two", "b")],
        label: Some("two examples".to_owned()),
        ..Artifact::of(&signature())
    }
}

fn with(field: &str, value: Value) -> Value {
    let mut changed = sample().content();
    changed[field] = value;
    changed
}

fn flaws(value: &Value) -> String {
    let flaws = Artifact::read(value).expect_err("this is no artifact");
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn an_artifact_is_read_and_kept() {
    let (artifact, kept) = (sample(), sample().to_json());
    assert_eq!(Artifact::read(&kept).unwrap(), artifact);
    assert_eq!((&kept["artifact_id"], &kept["version"]), (&json!(artifact.id()), &json!(1)));
    assert!(is_id(&artifact.id()) && artifact.id().len() == 28, "{}", artifact.id());
    let mut content = kept.clone();
    content.as_object_mut().unwrap().remove("artifact_id");
    assert_eq!(artifact.id(), format!("art_{}", &hash::of(&content)[..24]));
    // Nobody has to write down what can be found.
    content.as_object_mut().unwrap().remove("version");
    assert_eq!(Artifact::read(&content).unwrap(), artifact);

    let plain = Artifact::of(&signature());
    assert_eq!(plain.hashes, signature().hashes());
    assert!(plain.to_json().get("few_shot").is_none() && plain.to_json().get("label").is_none());
    assert_eq!(Artifact::read(&plain.to_json()).unwrap(), plain);
    let mut empty = plain.to_json();
    (empty["few_shot"], empty["label"]) = (json!([]), json!(null));
    assert_eq!(Artifact::read(&empty).unwrap(), plain);
    let schema = schema();
    for good in [kept, content, plain.to_json()] {
        assert!(jsonschema::is_valid(&schema, &good), "{good}");
    }
    // Null can be the right answer, and a number of any size.
    for answer in [json!(null), json!(u64::MAX), json!([1.5])] {
        let odd = Artifact { shots: vec![Shot { input: json!({}), output: answer }], ..sample() };
        assert_eq!(Artifact::read(&odd.to_json()).unwrap(), odd);
    }
}

#[test]
fn what_is_wrong_is_told_with_its_field() {
    let deep = (0..70).fold(json!({}), |inner, _| json!({ "x": inner }));
    let (long, many) = ("x".repeat(SHOTS_BYTES_MAX / 2), vec![shot("x", "a").to_json(); 65]);
    let missing = "artifact_incompatible.missing_hash";
    for (field, value, expected) in [
        ("version", json!(2), "version is 2, expected 1; if it is newer, use a newer actum"),
        ("version", json!("1"), "version is"),
        ("artifact_id", json!("art_x"), "as its content says"),
        ("artifact_id", json!(7), "artifact_id is 7, expected text"),
        ("artifact_id", json!(Artifact::of(&signature()).id()), "as its content says"),
        ("signature_id", json!(null), "signature_id is missing"),
        ("signature_id", json!("Sort.v2"), "namespace/name.vN"),
        ("signature_id", json!({}), "signature_id is {}"),
        ("schema_hash", json!(null), missing),
        ("prompt_hash", json!(null), missing),
        ("program_hash", json!(""), missing),
        ("schema_hash", json!("abc"), "a SHA-256 in hex"),
        ("schema_hash", json!("A".repeat(64)), "a SHA-256 in hex"),
        ("program_hash", json!(7), "a SHA-256 in hex"),
        ("prompt_template", json!(null), "prompt_template is missing"),
        ("prompt_template", json!("{{ text"), "can be read"),
        ("prompt_template", json!([{"role": "boss", "content": "x"}]), "prompt_template[0].role"),
        ("program_template", json!(null), "program_template is missing"),
        ("program_template", json!("magic.v1"), "unsupported_strategy"),
        ("program_template", json!("rlm_lite.v1"), "few_shot works with direct.v1 only"),
        ("few_shot", json!({}), "a list of at most 64 examples"),
        ("few_shot", json!(3), "a list of at most 64 examples"),
        ("few_shot", json!(many), "a list of at most 64 examples"),
        ("few_shot", json!([null]), "few_shot[0] is missing, expected an example"),
        ("few_shot", json!(["x"]), "few_shot[0] is \"x\", expected an object"),
        ("few_shot", json!([{"input": {}}]), "few_shot[0].output is missing"),
        ("few_shot", json!([{"output": 1}]), "few_shot[0].input is missing"),
        ("few_shot", json!([{"input": "x", "output": 1}]), "few_shot[0].input is \"x\""),
        (
            "few_shot",
            json!([{"input": {}, "output": 1, "expected": 2}]),
            "few_shot[0].expected is no field of an example",
        ),
        ("few_shot", json!([{"input": deep, "output": 1}]), "at most 65 levels"),
        ("few_shot", json!([{"input": {"x": long}, "output": long}]), "together at most 524288 bytes"),
        ("label", json!(""), "one line of 1 to 200 bytes"),
        ("label", json!("x".repeat(201)), "one line of 1 to 200 bytes"),
        ("label", json!("a\nb"), "one line of 1 to 200 bytes"),
        ("label", json!(7), "label is 7, expected text"),
        ("few_shots", json!([]), "did you mean few_shot?"),
    ] {
        let told = flaws(&with(field, value.clone()));
        assert!(told.contains(expected), "{field} = {value}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let all = flaws(&json!({}));
    for field in ["signature_id", "schema_hash", "prompt_hash", "program_hash", "prompt_template", "program_template"] {
        assert!(all.contains(&format!("{field} is missing")), "{field}: {all}");
    }
    for other in [json!(null), json!([]), json!("x"), json!(1)] {
        assert!(flaws(&other).contains("the document is"), "{other}");
    }
    for id in ["", "art_", "art_0123456789abcdef0123456g", "art_0123456789abcdef012345678", "0123456789abcdef01234567"]
    {
        assert!(!is_id(id), "{id}");
    }
}

#[test]
fn the_schema_refuses_what_reading_refuses() {
    let schema = schema();
    for (field, value) in [
        ("version", json!(2)),
        ("artifact_id", json!("x")),
        ("signature_id", json!("Sort")),
        ("schema_hash", json!("x")),
        ("few_shot", json!([{"input": 1, "output": 2}])),
        ("few_shot", json!([{"input": {}}])),
        ("label", json!("")),
        ("other", json!(1)),
    ] {
        let bad = with(field, value);
        assert!(!jsonschema::is_valid(&schema, &bad) && Artifact::read(&bad).is_err(), "{field}");
    }
    for field in ["signature_id", "schema_hash", "prompt_hash", "program_hash", "prompt_template", "program_template"] {
        let mut bad = sample().to_json();
        bad.as_object_mut().unwrap().remove(field);
        assert!(!jsonschema::is_valid(&schema, &bad), "{field}");
    }
}

#[test]
fn an_artifact_is_bound_to_the_signature_it_was_made_for() {
    let (artifact, signature) = (sample(), signature());
    let way = artifact.bind(&signature).unwrap();
    assert_eq!((&way.compiled_id, &way.hashes), (&artifact.id(), &signature.hashes()));
    assert_eq!((way.signature.id(), &way.signature.prompt), (signature.id(), &artifact.prompt));
    assert_eq!((way.signature.shots(), signature.shots().len()), (&artifact.shots[..], 0));
    assert_ne!(way.signature.hashes().prompt_hash, way.hashes.prompt_hash);
    // Examples are no part of what is kept of a signature, and yet two with other examples are not the same.
    let bare = Artifact { shots: Vec::new(), ..artifact.clone() }.bind(&signature).unwrap();
    assert_eq!(bare.signature.to_json(), way.signature.to_json());
    assert_ne!(bare.signature, way.signature);
    assert!(way.signature.check_input(&json!({"text": 1})).is_err());

    let own = Way::catalogue(signature.clone());
    assert_eq!((own.compiled_id.as_str(), &own.hashes), ("catalog:@acme/mail/Sort.v2:direct.v1", &signature.hashes()));
    assert_eq!(own.signature, signature);
    assert_eq!(Artifact::of(&signature).bind(&signature).unwrap().signature, signature);
}

#[test]
fn what_was_made_for_another_signature_is_refused() {
    let refused = |artifact: &Artifact, signature: &Signature| {
        let refused = artifact.bind(signature).expect_err("it does not fit");
        assert_eq!(refused.reason_code, "artifact_incompatible.hash_mismatch");
        assert_eq!(refused.to_string(), refused.message);
        assert!(refused.message.contains(&artifact.id()));
        refused.message
    };
    for (field, value, expected) in [
        ("name", json!("Other"), "it was made for @acme/mail/Sort.v2"),
        ("version", json!(3), "this is @acme/mail/Sort.v3"),
        ("input_schema", json!({"type": "object"}), "schema_hash of"),
        ("output_schema", json!({"type": "object"}), "schema_hash of"),
        ("prompt_template", json!("Else {{ text }}"), "prompt_hash of"),
        ("program_template", json!({"strategy": "direct.v1", "model": "m"}), "program_hash of"),
    ] {
        let mut changed = document();
        changed[field] = value;
        let told = refused(&sample(), &Signature::read(&changed).unwrap());
        assert!(told.contains(expected), "{field}: {told}");
    }
    let other = |change: fn(&mut Hashes)| {
        let mut artifact = sample();
        change(&mut artifact.hashes);
        refused(&artifact, &signature())
    };
    assert!(other(|h| h.schema_hash = "0".repeat(64)).contains("schema_hash of"));
    assert!(other(|h| h.prompt_hash = "0".repeat(64)).contains("prompt_hash of"));
    assert!(other(|h| h.program_hash = "0".repeat(64)).contains("program_hash of"));
    let all =
        other(|h| *h = Hashes { schema_hash: String::new(), prompt_hash: String::new(), program_hash: String::new() });
    assert!(all.contains("schema_hash, prompt_hash, program_hash of"), "{all}");

    let shots = |shots: Vec<Shot>| refused(&Artifact { shots, ..sample() }, &signature());
    assert!(
        shots(vec![shot("x", "a"), shot("x", "c")]).contains("few_shot[1].output is not what the signature says: /box")
    );
    let told = shots(vec![Shot { input: json!({"text": 7171}), output: json!({"box": "a"}) }]);
    assert!(told.contains("few_shot[0].input") && !told.contains("7171"), "{told}");
    let rlm = Artifact { program: Program::new(Strategy::RlmLite), ..sample() };
    assert!(refused(&rlm, &signature()).contains("direct.v1 only"));
    assert!(Artifact { shots: Vec::new(), ..rlm }.bind(&signature()).is_ok());
}

fn said(messages: &[Message]) -> Vec<(Role, &str)> {
    messages.iter().map(|message| (message.role, message.content.as_str())).collect()
}

#[test]
fn examples_are_turns_before_the_question() {
    let way = sample().bind(&signature()).unwrap();
    let messages = way.signature.render(&json!({"text": "three"}), &[]).unwrap();
    assert_eq!(messages, way.signature.render(&json!({"text": "three"}), &[]).unwrap());
    assert!(messages[0].role == Role::System && messages[0].content.starts_with("Answer with one JSON value"));
    assert_eq!(
        said(&messages[1..]),
        [
            (Role::User, "Which box? one"),
            (Role::Assistant, r#"{"box":"a"}"#),
            (Role::User, "Which box? two"),
            (Role::Assistant, r#"{"box":"b"}"#),
            (Role::User, "Which box? three"),
        ]
    );
}

#[test]
fn what_a_system_says_is_said_once() {
    let turn = |role, content: &str| Message { role, content: content.to_owned() };
    let prompt = Template::Messages(vec![
        turn(Role::System, "You sort. {{ text }}"),
        turn(Role::User, "Ready?"),
        turn(Role::Assistant, "Yes."),
        turn(Role::System, "Be quick."),
        turn(Role::User, "{{ text }}"),
    ]);
    let artifact = Artifact { prompt, shots: vec![shot("{{ 7 * 7 }}", "a")], ..sample() };
    let way = artifact.bind(&signature()).unwrap();
    let messages = way.signature.render(&json!({"text": "now"}), &[]).unwrap();
    assert!(messages[0].content.starts_with("You sort. now\n\nAnswer with one JSON value"));
    assert_eq!(
        said(&messages[1..]),
        [
            (Role::System, "Be quick."),
            (Role::User, "Ready?"),
            (Role::Assistant, "Yes."),
            (Role::User, "{{ 7 * 7 }}"),
            (Role::Assistant, r#"{"box":"a"}"#),
            (Role::User, "Ready?"),
            (Role::Assistant, "Yes."),
            (Role::User, "now"),
        ]
    );
    // Without examples everything stays in its place.
    let plain = Artifact { shots: Vec::new(), ..artifact.clone() }.bind(&signature()).unwrap();
    let messages = plain.signature.render(&json!({"text": "now"}), &[]).unwrap();
    assert_eq!(
        said(&messages[1..]),
        [(Role::User, "Ready?"), (Role::Assistant, "Yes."), (Role::System, "Be quick."), (Role::User, "now")]
    );
    // Who works by operations learns nothing from answers, should somebody change the strategy later.
    let mut other = way.signature;
    other.program.strategy = Strategy::RlmLite;
    assert_eq!(other.render(&json!({"text": "now"}), &[]).unwrap(), messages);
}

#[test]
fn examples_are_bounded_with_the_question() {
    let long = "x".repeat(250 << 10);
    let prompt = Template::Text("{{ text }}{{ text }}{{ text }}{{ text }}{{ text }}".to_owned());
    let of = |shots: Vec<Shot>| Artifact { prompt: prompt.clone(), shots, ..sample() }.bind(&signature()).unwrap();
    let one = of(vec![shot(&long, "a")]).signature;
    assert_eq!(one.render(&json!({"text": long}), &[]).unwrap().len(), 4);
    let bad = of(vec![shot(&long, "a"); 4]).signature.render(&json!({"text": ""}), &[]).unwrap_err();
    assert!(bad.why.starts_with("example 4: ") && bad.why.contains("longer than"), "{bad}");
    let fragile = Artifact {
        prompt: Template::Text("{{ text }}{% if text == 'two' %}{{ missing }}{% endif %}".to_owned()),
        ..sample()
    };
    let bad = fragile.bind(&signature()).unwrap().signature.render(&json!({"text": "x"}), &[]).unwrap_err();
    assert!(bad.message == 1 && bad.why.starts_with("example 2: "), "{bad}");
}

#[test]
fn a_number_of_an_example_is_shown_as_it_is() {
    let mut open = document();
    open["output_schema"] = json!({"type": "integer"});
    let signature = Signature::read(&open).unwrap();
    let shots = vec![Shot { input: json!({"text": "x"}), output: json!(u64::MAX) }];
    let artifact = Artifact { shots, ..Artifact::of(&signature) };
    let messages = artifact.bind(&signature).unwrap().signature.render(&json!({"text": "y"}), &[]).unwrap();
    assert_eq!(messages[2].content, u64::MAX.to_string());
}

/// Keeps what it was asked.
#[derive(Default)]
struct Heard(Vec<Message>);

impl Model for Heard {
    fn ask(&mut self, call: &Call) -> Result<Said, Stop> {
        self.0.clone_from(&call.prompt.messages);
        Ok(Said { text: r#"{"box": "b"}"#.to_owned(), ..Said::default() })
    }

    fn elapsed_ms(&self) -> u64 {
        0
    }
}

#[test]
fn a_strategy_asks_with_the_examples() {
    let way = sample().bind(&signature()).unwrap();
    let mut model = Heard::default();
    let limits = Limits::of(&way.signature.program, "m");
    let outcome = strategy::run(&way.signature, &json!({"text": "three"}), &limits, &mut model);
    assert_eq!(outcome.output, json!({"box": "b"}));
    assert_eq!(model.0, way.signature.render(&json!({"text": "three"}), &[]).unwrap());
    assert_eq!(model.0.len(), 6);
}
