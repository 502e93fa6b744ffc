//! What is read of a job, what is refused, which candidates it comes to, and what its hash covers.

use proptest::prelude::*;

use super::*;
use crate::artifact::Shot;
use crate::dataset::Slice;

fn flaws(value: Value) -> String {
    let flaws = Job::read(&value).unwrap_err();
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn names(candidates: &[Candidate]) -> Vec<&str> {
    candidates.iter().map(|one| one.name.as_str()).collect()
}

fn whole() -> Value {
    json!({
        "version": 1,
        "signature_id": ID,
        "dataset": {"file": "mail.jsonl", "split": "60/20/20", "split_seed": "s"},
        "metric": {"kind": "field_match", "fields": ["box"]},
        "candidates": [
            {"name": "terse", "prompt_template": "{{ n }}"},
            {"name": "long", "program_template": {"strategy": "rlm_lite.v1", "long_inputs": ["n"]}, "model": "m"},
            {"name": "taught", "few_shot": {"count": 3, "seed": "t", "balanced": true}, "strategy": "direct.v1"},
            {"name": "shown", "few_shot": [{"input": {"n": 1}, "output": {"box": "a"}}]},
            {"name": "old", "artifact": "art_0123456789abcdef01234567"},
        ],
        "search": {
            "prompts": [{"name": "p", "prompt_template": [{"role": "user", "content": "{{ n }}?"}]}],
            "strategies": ["direct.v1", "rlm_lite.v1"], "models": ["m", "k"], "few_shot": [0, 2, {"count": 2, "seed": "x"}],
        },
        "label": "first",
    })
}

#[test]
fn a_job_is_read_and_kept() {
    let job = Job::read(&whole()).unwrap();
    assert_eq!(Job::read(&job.to_json()).unwrap(), job);
    assert_eq!(job.named_artifacts(), ["art_0123456789abcdef01234567"]);
    let split = Split { train: 60, holdout: 20, test: 20 };
    assert_eq!(job.source, Source::File { path: "mail.jsonl".into(), split, split_seed: "s".into() });
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let told: Vec<String> = validator.iter_errors(&whole()).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(told.is_empty(), "{told:?}");
    assert!(validator.is_valid(&job.to_json()));
    let zero = super::job(json!({"candidates": [{"name": "x", "few_shot": 0}]}));
    assert_eq!(zero.to_json()["candidates"][0], json!({"name": "x"}), "what says nothing is not kept");
}

#[test]
fn every_flaw_is_told() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    assert!(flaws(json!([])).contains("an object of fields"));
    let nothing = flaws(json!({}));
    for field in ["signature_id", "dataset", "metric", "candidates"] {
        assert!(nothing.contains(&format!("{field} is missing")), "{nothing}");
    }
    let shot = json!({"input": {"n": 1}, "output": {"box": "a"}});
    let one = |spec: Value| json!([spec]);
    for (field, bad, told) in [
        ("version", json!(2), "use a newer actum"),
        ("signature_id", json!("Sort"), "namespace/name.vN"),
        ("dataset", json!("mail.jsonl"), "for a file write {file: …}"),
        ("dataset", json!("0123abc"), "first 8 digits"),
        ("dataset", json!("0123ABCD"), "dataset_hash"),
        ("dataset", json!(7), "{file, split, split_seed}"),
        ("dataset", json!({"split": "80/10/10"}), "dataset.file is missing"),
        ("dataset", json!({"file": ""}), "the path of a file"),
        ("dataset", json!({"file": "x", "split": "80/10/20"}), "invalid_split"),
        ("dataset", json!({"file": "x", "split_seed": ""}), "1 to 200 bytes"),
        ("dataset", json!({"file": "x", "seed": "s"}), "seed is no field of a dataset"),
        ("metric", json!("accuracy"), "exact_match"),
        ("candidates", json!({}), "a list of at most 255"),
        ("candidates", json!(vec![json!({"name": "x"}); 256]), "a list of at most 255"),
        ("candidates", json!([{"name": "x"}, {"name": "x"}]), "candidates[1].name is \"x\""),
        ("candidates", one(json!(null)), "candidates[0] is missing"),
        ("candidates", one(json!(7)), "candidates[0] is 7"),
        ("candidates", one(json!({})), "candidates[0].name is missing"),
        ("candidates", one(json!({"name": " "})), "a name of 1 to 80"),
        ("candidates", one(json!({"name": "a\nb"})), "a name of 1 to 80"),
        ("candidates", one(json!({"name": "baseline"})), "this one is the signature"),
        ("candidates", one(json!({"name": "x", "prompt_template": "{{ n"})), "candidates[0].prompt_template"),
        ("candidates", one(json!({"name": "x", "program_template": "magic.v1"})), "unsupported_strategy"),
        ("candidates", one(json!({"name": "x", "strategy": "magic.v1"})), "unsupported_strategy"),
        ("candidates", one(json!({"name": "x", "model": ""})), "the name of a model"),
        ("candidates", one(json!({"name": "x", "artifact": "art_1"})), "art_…"),
        ("candidates", one(json!({"name": "x", "artifact": "art_0123456789abcdef01234567", "model": "m"})), "alone"),
        ("candidates", one(json!({"name": "x", "few_shot": 65})), "from 0 to 64"),
        ("candidates", one(json!({"name": "x", "few_shot": -1})), "from 0 to 64"),
        ("candidates", one(json!({"name": "x", "few_shot": "3"})), "list of {input, output}"),
        ("candidates", one(json!({"name": "x", "few_shot": {"seed": "s"}})), "few_shot.count is missing"),
        ("candidates", one(json!({"name": "x", "few_shot": {"count": 1, "seed": ""}})), "few_shot.seed"),
        ("candidates", one(json!({"name": "x", "few_shot": {"count": 1, "balanced": 1}})), "true or false"),
        ("candidates", one(json!({"name": "x", "few_shot": {"count": 1, "from": 1}})), "from is no field"),
        ("candidates", one(json!({"name": "x", "few_shot": [{"input": 1}]})), "candidates[0].few_shot[0].input"),
        ("candidates", one(json!({"name": "x", "few_shot": vec![shot; 65]})), "at most 64 examples"),
        ("candidates", one(json!({"name": "x", "promt_template": "p"})), "did you mean prompt_template?"),
        ("search", json!([]), "search is []"),
        ("search", json!({}), "something to vary"),
        ("search", json!({"models": []}), "a list of 1 to 256"),
        ("search", json!({"models": ["m", "m"]}), "each of them once"),
        ("search", json!({"models": ["m", 7]}), "search.models[1] is 7"),
        ("search", json!({"strategies": ["x"]}), "search.strategies[0]"),
        ("search", json!({"few_shot": [[]]}), "search.few_shot[0]"),
        ("search", json!({"prompts": [{"name": "p"}]}), "search.prompts[0].prompt_template"),
        (
            "search",
            json!({"prompts": [{"name": "p", "prompt_template": "x"}, {"name": "p", "prompt_template": "y"}]}),
            "different names",
        ),
        ("search", json!({"model": ["m"]}), "did you mean models?"),
        ("search", json!({"models": many(64), "few_shot": [0, 1, 2, 3, 4]}), "320 combinations"),
        ("label", json!(""), "1 to 200 bytes"),
        ("label", json!("x".repeat(201)), "1 to 200 bytes"),
        ("labels", json!("x"), "did you mean label?"),
    ] {
        let mut value = json!({
            "signature_id": ID, "dataset": "0123abcd", "metric": "exact_match", "candidates": [{"name": "x"}],
        });
        value[field] = bad;
        let found = flaws(value.clone());
        assert!(found.contains(told), "{value}: {found}");
        let beyond_schema =
            ["namespace", "invalid_split", "candidates[1].name", "signature", "each of", "different", "320"];
        let is_beyond = beyond_schema.iter().any(|word| told.contains(word))
            || found.contains("that can be read")
            || found.contains("of 1 to 80 bytes");
        assert!(is_beyond || !validator.is_valid(&value), "{value}");
    }
    let long = json!({
        "signature_id": ID, "dataset": "0123abcd", "metric": "exact_match",
        "candidates": [
            {"name": "x", "prompt_template": "x".repeat(200_000)}, {"name": "y", "prompt_template": "y".repeat(200_000)},
        ],
    });
    assert!(flaws(long).contains("register long prompts as artifacts"));
}

fn many(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

#[test]
fn the_signature_itself_comes_first() {
    let found = candidates(json!({
        "candidates": [{"name": "same"}, {"name": "terse", "prompt_template": "{{ n }}"}, {"name": "m", "model": "m"}],
        "search": {"prompts": [{"name": "p", "prompt_template": "{{ n }}"}, {"name": "q", "prompt_template": "{{ n }}!"}]},
    }))
    .unwrap();
    assert_eq!(names(&found), ["baseline", "terse", "m", "q"], "equal ones once, by their first name");
    assert_eq!(found[0].artifact, Artifact::of(&signature()));
    assert_eq!(found[2].artifact.program.model.as_deref(), Some("m"));
    assert_eq!(found[2].artifact.program.temperature, Some(0.0), "what is not said stays");
    assert!(found.iter().all(|one| one.artifact.hashes == signature().hashes() && one.artifact.label.is_none()));
}

#[test]
fn a_search_is_a_product() {
    let found = candidates(json!({"search": {
        "prompts": [{"name": "p", "prompt_template": "{{ n }}"}, {"name": "q", "prompt_template": "{{ n }}!"}],
        "strategies": ["direct.v1", "rlm_lite.v1"],
        "models": ["m", "k"],
        "few_shot": [0, {"count": 2, "balanced": true}, {"count": 2, "seed": "s"}],
    }}))
    .unwrap();
    // Two prompts, two models; three numbers of examples for one strategy, one for the other.
    assert_eq!(found.len(), 1 + 2 * 2 * (3 + 1));
    assert_eq!(
        names(&found)[1..5],
        ["p+direct.v1+m+0-shot", "p+direct.v1+m+2-shot-balanced", "p+direct.v1+m+2-shot-s", "p+direct.v1+k+0-shot",]
    );
    assert!(names(&found).contains(&"q+rlm_lite.v1+k+0-shot"));
    let single = candidates(json!({"search": {"few_shot": [0, 1, 2]}})).unwrap();
    assert_eq!(names(&single), ["baseline", "1-shot", "2-shot"], "no example is the baseline");
}

#[test]
fn examples_come_from_train_in_the_order_of_the_seed() {
    let dataset = dataset(100, Split::default());
    let shots = |spec: Value| {
        let job = job(json!({"candidates": [{"name": "x", "few_shot": spec}]}));
        job.candidates(&signature(), &dataset, &BTreeMap::new()).unwrap().remove(1).artifact.shots
    };
    let mut train: Vec<_> = dataset.of(Slice::Train).collect();
    train.sort_by_key(|one| actum_contract::digest::Digest::sha256(format!("default|{}", one.id).as_bytes()).to_hex());
    let expected: Vec<Shot> =
        train.iter().take(5).map(|one| Shot { input: one.input.clone(), output: one.expected.clone() }).collect();
    assert_eq!(shots(json!(5)), expected);
    assert_eq!(shots(json!(3)), expected[..3], "fewer are the first of more");
    assert_ne!(shots(json!({"count": 5, "seed": "other"})), expected);
    let balanced = shots(json!({"count": 7, "balanced": true}));
    let is_b = |shot: &&Shot| shot.output == json!({"box": "b"});
    assert!((3..=4).contains(&balanced.iter().filter(is_b).count()), "{balanced:?}");
    for pair in balanced.chunks_exact(2) {
        assert_ne!(pair[0].output, pair[1].output, "by turns");
    }
    // Once one answer is used up, the others go on.
    let all = shots(json!({"count": 40, "balanced": true}));
    assert!(all.len() == 40 && all.iter().filter(is_b).count() < 20);
}

#[test]
fn bad_jobs_say_what_to_do() {
    let small = dataset(30, Split { train: 20, holdout: 60, test: 20 });
    let train = small.of(Slice::Train).count();
    let refused =
        |fields: Value, dataset: &Dataset| job(fields).candidates(&signature(), dataset, &BTreeMap::new()).unwrap_err();
    let few = refused(json!({"search": {"few_shot": [1, 40]}}), &small);
    assert_eq!(few, BadJob::TooFewShots { name: "40-shot".into(), wanted: 40, found: train });
    let artifact = "art_0123456789abcdef01234567";
    let unknown = refused(json!({"candidates": [{"name": "x", "artifact": artifact}]}), &small);
    assert_eq!(unknown, BadJob::UnknownArtifact { name: "x".into(), artifact: artifact.into() });
    for spec in [
        json!({"name": "x", "few_shot": 1, "strategy": "rlm_lite.v1"}),
        json!({"name": "x", "few_shot": [{"input": {"n": 1}, "output": {"box": "a"}}], "program_template": "rlm_lite.v1"}),
    ] {
        let why = refused(json!({"candidates": [spec]}), &small).to_string();
        assert!(why.contains("candidate x") && why.contains("direct.v1 only"), "{why}");
    }
    let shot = json!([{"input": {"n": "one"}, "output": {"box": "a"}}]);
    let unfit = refused(json!({"candidates": [{"name": "x", "few_shot": shot}]}), &small);
    assert!(matches!(&unfit, BadJob::Unfit { why, .. } if why.contains("few_shot[0].input")), "{unfit}");
    let twice = json!({"candidates": [{"name": "m", "model": "k"}], "search": {"models": ["m"]}});
    assert_eq!(refused(twice, &small), BadJob::NameTwice { name: "m".into() });
    let too_many = json!({"candidates": [{"name": "x", "prompt_template": "?"}], "search": {"models": many(256)}});
    assert_eq!(refused(too_many, &small), BadJob::TooMany { count: 258 });
    let unheld = dataset(30, Split { train: 100, holdout: 0, test: 0 });
    let none = refused(json!({"candidates": [{"name": "x"}]}), &unheld);
    assert_eq!(none, BadJob::NoHoldout { total: 30, train: 30, test: 0 });
    assert!(none.to_string().contains("of 30 examples") && none.to_string().contains("larger holdout"));
    let other = refused(json!({"signature_id": "a/b.v1", "candidates": [{"name": "x"}]}), &small);
    assert!(matches!(other, BadJob::OtherSignature { what: "the signature", .. }));
    let foreign = Dataset { signature_id: "a/b.v1".into(), ..small };
    let other = refused(json!({"candidates": [{"name": "x"}]}), &foreign);
    assert!(matches!(other, BadJob::OtherSignature { what: "the dataset", .. }));
}

#[test]
fn registered_artifacts_have_to_fit() {
    let dataset = dataset(100, Split::default());
    let good = Artifact { label: Some("by hand".into()), ..Artifact::of(&signature()) };
    let mut stale = good.clone();
    stale.hashes.prompt_hash = "0".repeat(64);
    let known: BTreeMap<String, Artifact> = [&good, &stale].map(|one| (one.id(), one.clone())).into();
    let run = |artifact: &Artifact| {
        let job = job(json!({"candidates": [{"name": "x", "artifact": artifact.id()}]}));
        job.candidates(&signature(), &dataset, &known)
    };
    assert_eq!(run(&good).unwrap()[1].artifact, good);
    let why = run(&stale).unwrap_err().to_string();
    assert!(why.contains("prompt_hash"), "{why}");
}

#[test]
fn a_hash_covers_what_is_asked_for() {
    let (signature, dataset) = (signature(), dataset(100, Split::default()));
    let spec = json!([{"name": "terse", "prompt_template": "{{ n }}"}]);
    let base = json!({"candidates": spec});
    let hash_of = |fields: Value, signature: &Signature, dataset: &Dataset| {
        let job = job(fields);
        let candidates = job.candidates(signature, dataset, &BTreeMap::new()).unwrap();
        job.hash(signature, dataset, &candidates)
    };
    let first = hash_of(base.clone(), &signature, &dataset);
    for elsewhere in [json!({"file": "a.jsonl"}), json!({"file": "/b/c.jsonl"}), json!("ffffffff")] {
        let fields = json!({"candidates": spec, "dataset": elsewhere});
        assert_eq!(hash_of(fields, &signature, &dataset), first, "not where things lie");
    }
    assert_eq!(hash_of(base.clone(), &signature, &super::dataset(90, Split::default())), first, "nor what is in them");
    let mut others = vec![
        hash_of(json!({"candidates": spec, "label": "again"}), &signature, &dataset),
        hash_of(json!({"candidates": spec, "metric": "contains"}), &signature, &dataset),
        hash_of(json!({"candidates": [{"name": "other", "prompt_template": "{{ n }}"}]}), &signature, &dataset),
        hash_of(json!({"candidates": [{"name": "terse", "prompt_template": "{{ n }}."}]}), &signature, &dataset),
        hash_of(base.clone(), &signature, &super::dataset(100, Split { train: 70, holdout: 20, test: 10 })),
        hash_of(base.clone(), &signature, &Dataset { split_seed: "s".into(), ..dataset.clone() }),
    ];
    let mut changed = signature.to_json();
    changed["output_schema"]["description"] = json!("another");
    others.push(hash_of(base, &Signature::read(&changed).unwrap(), &dataset));
    others.push(first);
    let count = others.len();
    others.sort();
    others.dedup();
    assert_eq!(others.len(), count);
}

fn any_field() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..70i64).prop_map(Value::from),
        "[a-z{}. ]{0,6}".prop_map(Value::from),
        prop::collection::vec((0..3i64).prop_map(Value::from), 0..3).prop_map(Value::from),
        prop::collection::btree_map("count|seed|file|name", (0..3i64).prop_map(Value::from), 0..3)
            .prop_map(|fields| Value::Object(fields.into_iter().collect())),
    ]
}

proptest! {
    #[test]
    fn what_is_read_is_read_again(at in 0..16usize, field in any_field()) {
        let places = [
            "/version", "/signature_id", "/dataset", "/dataset/file", "/dataset/split", "/metric", "/candidates",
            "/candidates/0", "/candidates/0/prompt_template", "/candidates/1/program_template", "/candidates/2/few_shot",
            "/candidates/4/artifact", "/search", "/search/few_shot", "/search/models", "/label",
        ];
        let mut value = whole();
        *value.pointer_mut(places[at]).unwrap() = field;
        if let Ok(job) = Job::read(&value) {
            prop_assert_eq!(Job::read(&job.to_json()).unwrap(), job);
        }
    }
}
