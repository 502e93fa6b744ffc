//! Artifacts of every kind: reading is the way back from keeping, and every change is another artifact.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::artifact::{Artifact, Shot, schema};
use crate::protocol::{Message, Role};
use crate::signature::{Hashes, Program, Template};
use crate::{hash, policy, signature};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1000..1000_i32).prop_map(|n| json!(f64::from(n) / 4.0)),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("\\PC{0,4}", inner, 0..4).prop_map(|fields| json!(fields)),
        ]
    })
}

fn any_template() -> impl Strategy<Value = Template> {
    let text = "[a-zA-Z\"\\\\é ]{0,20}[a-z](\\{\\{ text \\}\\})?";
    let role = prop_oneof![Just(Role::System), Just(Role::User), Just(Role::Assistant)];
    let messages = proptest::collection::vec((role, text), 1..4);
    prop_oneof![
        text.prop_map(Template::Text),
        messages.prop_map(|all| {
            Template::Messages(all.into_iter().map(|(role, content)| Message { role, content }).collect())
        }),
    ]
}

fn any_artifact() -> impl Strategy<Value = Artifact> {
    let shots = proptest::collection::vec(
        (proptest::collection::btree_map("[a-z]{1,4}", any_json(), 0..3), any_json())
            .prop_map(|(input, output)| Shot { input: json!(input), output }),
        0..4,
    );
    let numbers = proptest::option::of((1..=8_u64, 1..=1000_u64, 0..=20_u8));
    let program =
        (any::<bool>(), proptest::option::of("[a-z]{1,8}"), numbers).prop_map(|(is_rlm, model, numbers)| Program {
            model,
            max_iterations: numbers.map(|(n, ..)| n),
            max_calls: numbers.map(|(_, n, _)| n),
            temperature: numbers.map(|(.., n)| f64::from(n) / 10.0),
            ..Program::new(if is_rlm { signature::Strategy::RlmLite } else { signature::Strategy::Direct })
        });
    let hashes = proptest::array::uniform3("[0-9a-f]{64}");
    let label = proptest::option::of("[a-z ä]{1,20}");
    ("[a-z@]{1,8}/[A-Za-z]{1,8}\\.v[1-9]", hashes, any_template(), program, shots, label).prop_map(
        |(signature_id, [schema_hash, prompt_hash, program_hash], prompt, mut program, shots, label)| {
            if !shots.is_empty() {
                program.strategy = signature::Strategy::Direct;
            }
            let hashes = Hashes { schema_hash, prompt_hash, program_hash };
            Artifact { signature_id, hashes, prompt, program, shots, label }
        },
    )
}

/// What is changed, and how.
type Change = (&'static str, fn(&mut Artifact));

/// One for each thing there is.
fn changes() -> Vec<Change> {
    vec![
        ("signature_id", |a| a.signature_id.push('0')),
        ("schema_hash", |a| a.hashes.schema_hash = hash::of(&json!(a.hashes.schema_hash))),
        ("prompt_hash", |a| a.hashes.prompt_hash = hash::of(&json!(a.hashes.prompt_hash))),
        ("program_hash", |a| a.hashes.program_hash = hash::of(&json!(a.hashes.program_hash))),
        ("hashes", |a| {
            let hashes = &mut a.hashes;
            std::mem::swap(&mut hashes.schema_hash, &mut hashes.prompt_hash);
        }),
        ("prompt", |a| match &mut a.prompt {
            Template::Text(text) => text.push('.'),
            Template::Messages(messages) => messages[0].content.push('.'),
        }),
        ("role", |a| match &mut a.prompt {
            Template::Text(text) => {
                a.prompt = Template::Messages(vec![Message { role: Role::User, content: text.clone() }]);
            }
            Template::Messages(messages) => {
                messages[0].role = if messages[0].role == Role::User { Role::Assistant } else { Role::User };
            }
        }),
        ("strategy", |a| {
            a.shots.clear();
            a.program.strategy = if a.program.strategy == signature::Strategy::Direct {
                signature::Strategy::RlmLite
            } else {
                signature::Strategy::Direct
            };
        }),
        ("model", |a| a.program.model = Some("another".to_owned() + a.program.model.as_deref().unwrap_or_default())),
        ("provider", |a| a.program.provider = Some("p".to_owned())),
        ("temperature", |a| a.program.temperature = Some(a.program.temperature.map_or(0.0, |t| t + 0.01))),
        ("seed", |a| a.program.seed = Some(0)),
        ("max_output_tokens", |a| a.program.max_output_tokens = Some(1)),
        ("max_iterations", |a| a.program.max_iterations = Some(a.program.max_iterations.map_or(1, |n| n + 1))),
        ("max_calls", |a| a.program.max_calls = Some(a.program.max_calls.map_or(1, |n| n + 1))),
        ("max_tokens", |a| a.program.max_tokens = Some(1)),
        ("max_chars_shown", |a| a.program.max_chars_shown = Some(1)),
        ("timeout_ms", |a| a.program.timeout_ms = Some(1)),
        ("long_inputs", |a| a.program.long_inputs.push("text".to_owned())),
        ("one more example", |a| a.shots.push(Shot { input: json!({}), output: json!(1) })),
        ("an example's input", |a| match a.shots.first_mut() {
            Some(shot) => shot.input = json!({"before": shot.input}),
            None => a.shots.push(Shot { input: json!({}), output: json!(2) }),
        }),
        ("an example's output", |a| match a.shots.first_mut() {
            Some(shot) => shot.output = json!([shot.output]),
            None => a.shots.push(Shot { input: json!({}), output: json!(3) }),
        }),
        ("label", |a| a.label = Some("+".to_owned() + a.label.as_deref().unwrap_or_default())),
    ]
}

proptest! {
    #[test]
    fn what_was_kept_is_read_again(artifact in any_artifact()) {
        let kept = artifact.to_json();
        let again = Artifact::read(&kept).unwrap();
        prop_assert_eq!(&again, &artifact);
        prop_assert_eq!(again.id(), artifact.id());
        // And as text, in any order of fields.
        let text: Value = serde_json::from_slice(&hash::canonical(&kept)).unwrap();
        prop_assert_eq!(Artifact::read(&text).unwrap().id(), artifact.id());
        let text: Value = serde_json::from_str(&kept.to_string()).unwrap();
        prop_assert_eq!(&Artifact::read(&text).unwrap(), &artifact);
        prop_assert!(jsonschema::is_valid(&schema(), &kept));
    }

    #[test]
    fn every_change_changes_the_id(artifact in any_artifact()) {
        for (what, change) in changes() {
            let mut changed = artifact.clone();
            change(&mut changed);
            if changed != artifact {
                prop_assert_ne!(changed.id(), artifact.id(), "{}", what);
                // Whoever changes something and keeps the id is found out.
                let mut forged = changed.to_json();
                forged["artifact_id"] = json!(artifact.id());
                prop_assert!(Artifact::read(&forged).is_err(), "{}", what);
            }
        }
    }

    #[test]
    fn other_hashes_do_not_fit(other in "[0-9a-f]{64}", at in 0..3_usize) {
        let signature = signature::gateway("messages");
        let mut artifact = Artifact::of(&signature);
        let way = artifact.bind(&signature).unwrap();
        prop_assert_eq!((way.compiled_id, way.hashes), (artifact.id(), signature.hashes()));
        let Hashes { schema_hash, prompt_hash, program_hash } = &mut artifact.hashes;
        let hashes = [schema_hash, prompt_hash, program_hash];
        let is_other = *hashes[at] != other;
        hashes.into_iter().nth(at).unwrap().clone_from(&other);
        match artifact.bind(&signature) {
            Ok(_) => prop_assert!(!is_other),
            Err(refused) => {
                prop_assert_eq!(refused.reason_code, policy::HASH_MISMATCH);
                let name = ["schema_hash", "prompt_hash", "program_hash"][at];
                prop_assert!(refused.message.contains(name), "{}", refused);
            }
        }
    }
}
