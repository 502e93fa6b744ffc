//! Where keys fall, who gets what, and what is no pointer.

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

const SIGNATURE: &str = "@openagents/autopilot/rlm/SummarizeThread.v1";
const ONE: &str = "art_0123456789abcdef01234567";
const TWO: &str = "art_ffffffffffffffffffffffff";

/// Of 99 degrees of freedom: a fair deal is above it once in a thousand times.
const CHI_SQUARED_MAX: f64 = 148.23;
const KEYS: u32 = 100_000;

#[derive(Deserialize)]
struct Vectors {
    bucket_algo: String,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    signature_id: String,
    rollout_seed: String,
    canary_key: String,
    bucket: u8,
}

#[test]
fn the_published_vectors_hold() {
    let published: Vectors = serde_json::from_str(include_str!("../bucket-vectors.v1.json")).unwrap();
    assert_eq!(published.bucket_algo, BUCKET_ALGO);
    assert!(published.vectors.len() >= 20);
    for Vector { signature_id, rollout_seed, canary_key, bucket: expected } in &published.vectors {
        assert_eq!(
            bucket(signature_id, rollout_seed, canary_key),
            *expected,
            "{signature_id}|{rollout_seed}|{canary_key}"
        );
    }
    assert_eq!(bucket(SIGNATURE, "seed-alpha", "run_123"), 15);
    assert_eq!(bucket(SIGNATURE, "default", "default"), 71);
    assert_eq!(bucket(SIGNATURE, "seed-beta", "always"), 67);
}

/// Another way to the same number: by the hex digits, as it is written down.
fn by_hex(signature: &str, seed: &str, key: &str) -> u64 {
    let hex = Digest::sha256(format!("{signature}|{seed}|{key}").as_bytes()).to_hex();
    u64::from_str_radix(&hex[..8], 16).unwrap() % 100
}

fn is_near(found: f64, share: f64) -> bool {
    let n = f64::from(KEYS);
    (found - n * share).abs() <= 4.0 * (n * share * (1.0 - share)).sqrt()
}

#[test]
fn a_hundred_thousand_keys_are_dealt_fairly() {
    for signature in [SIGNATURE, "@acme/mail/Sort.v1", "a/b.v1"] {
        for (seed, name) in [("default", "run_"), ("seed-alpha", "user-"), ("2026-11", "")] {
            let mut counts = [0_u32; 100];
            for n in 0..KEYS {
                counts[usize::from(bucket(signature, seed, &format!("{name}{n}")))] += 1;
            }
            let expected = f64::from(KEYS) / 100.0;
            let chi: f64 = counts.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
            assert!(chi < CHI_SQUARED_MAX, "{signature} {seed}: {chi}");
            let mut below = 0;
            for (percent, count) in counts.iter().enumerate() {
                let share = percent as f64 / 100.0;
                assert!(is_near(f64::from(below), share), "{signature} {seed}: {below} of {percent} %");
                below += count;
            }
            assert_eq!(below, KEYS);
        }
    }
}

#[test]
fn another_seed_or_signature_deals_anew() {
    let share = 0.2;
    let is_in = |signature, seed, n: u32| bucket(signature, seed, &format!("user_{n}")) < 20;
    for (signature, seed) in [(SIGNATURE, "seed-beta"), ("@acme/mail/Sort.v1", "seed-alpha")] {
        let both = (0..KEYS).filter(|n| is_in(SIGNATURE, "seed-alpha", *n) && is_in(signature, seed, *n)).count();
        assert!(is_near(both as f64, share * share), "{signature} {seed}: {both}");
    }
}

fn pointer() -> Pointer {
    Pointer::new(SIGNATURE, ONE).set_canary(TWO, 20)
}

fn guard(samples: u64) -> Value {
    json!({"samples": samples, "bounds": [{"metric": "error_rate", "max": 0.1}]})
}

fn keys(names: &[&str]) -> Keys {
    let of = |name: &str| names.contains(&name).then(|| format!("{name}_1"));
    Keys { key: of("key"), run: of("run"), thread: of("thread"), autopilot: of("autopilot"), user: of("user") }
}

#[test]
fn the_scope_says_which_key_counts() {
    let all = ["key", "run", "thread", "autopilot", "user"];
    for (at, name) in all.into_iter().enumerate() {
        let found = pointer().select(&keys(&all[at..]));
        assert_eq!((found.scope, found.bucket), (name, Some(bucket(SIGNATURE, "default", &format!("{name}_1")))));
    }
    let nobody = pointer().select(&Keys::default());
    assert_eq!((nobody.scope, nobody.bucket, nobody.variant), ("default", Some(71), Variant::Primary));
    // An empty key is none.
    let empty = Keys { key: Some(String::new()), run: Some("r".to_owned()), ..Keys::default() };
    assert_eq!(pointer().select(&empty).scope, "run");
    for scope in &Scope::ALL[1..] {
        let pointer = Pointer { key_scope: *scope, canary_percent: 100, ..pointer() };
        let found = pointer.select(&keys(&all));
        assert_eq!((found.scope, found.variant), (scope.word(), Variant::Canary));
        // Whoever has no key of the scope gets the primary, at any percentage, even with a key given.
        let others: Vec<&str> = all.into_iter().filter(|name| *name != scope.word()).collect();
        let found = pointer.select(&keys(&others));
        assert_eq!((found.scope, found.variant, found.bucket), ("none", Variant::Primary, None));
        assert_eq!(found.artifact, ONE);
        assert!(found.why.contains(&format!("goes by {}, and none is known", scope.word())), "{}", found.why);
    }
}

#[test]
fn the_bucket_decides_and_it_is_told_why() {
    let keys = Keys { key: Some("run_123".to_owned()), ..Keys::default() };
    let at = |percent| {
        let pointer = Pointer { rollout_seed: "seed-alpha".to_owned(), ..pointer() }.set_canary(TWO, percent);
        pointer.select(&keys)
    };
    for percent in 0..=100 {
        let found = at(percent);
        assert_eq!((found.variant == Variant::Canary, found.bucket), (percent > 15, Some(15)), "{percent}");
        assert_eq!(found.artifact, if percent > 15 { TWO } else { ONE });
    }
    assert_eq!(at(16).why, r#"the key "run_123" is in bucket 15, below 16: this is the canary"#);
    assert_eq!(
        at(15).why,
        r#"the key "run_123" is in bucket 15, and the canary takes those below 15: this is the primary"#
    );
    let alone = pointer().without_canary();
    assert_eq!(
        alone.select(&Keys::default()).why,
        r#"no key is known, and "default" is in bucket 71, and there is no canary: this is the primary"#
    );
    let long = Keys { key: Some("ä".repeat(5_000)), ..Keys::default() };
    assert!(alone.select(&long).why.chars().count() < 250);
    assert_eq!((Variant::Primary.word(), Variant::Canary.word()), ("primary", "canary"));
}

#[test]
fn changes_leave_the_rest_as_it_is() {
    let mut first = pointer();
    first.metadata.insert("ticket".to_owned(), json!(7));
    first.guard = Some(guard(10));
    // The same canary on more people keeps its guard, another one has none yet.
    assert_eq!(first.set_canary(TWO, 50), Pointer { canary_percent: 50, ..first.clone() });
    let three = "art_333333333333333333333333";
    let other = first.set_canary(three, 5);
    assert_eq!((other.canary_artifact.as_deref(), other.canary_percent, &other.guard), (Some(three), 5, &None));
    assert_eq!(other.set_canary(three, 200).canary_percent, 100);
    let without = first.without_canary();
    assert_eq!((&without.canary_artifact, without.canary_percent, &without.guard), (&None, 0, &None));
    let promoted = first.promoted(TWO);
    assert_eq!(promoted, Pointer { primary_artifact: TWO.to_owned(), ..without });
    assert_eq!(promoted.metadata["ticket"], 7);
    for pointer in [first, other, promoted] {
        assert_eq!(Pointer::read(&pointer.to_json()).unwrap(), pointer);
    }
}

fn flaws(value: &Value) -> String {
    let flaws = Pointer::read(value).expect_err("this is no pointer");
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_left_out_is_as_usual() {
    let short = json!({"signature_id": SIGNATURE, "primary_artifact": ONE});
    assert_eq!(Pointer::read(&short).unwrap(), Pointer::new(SIGNATURE, ONE));
    let kept = Pointer::new(SIGNATURE, ONE).to_json();
    assert_eq!(
        kept,
        json!({
            "version": 1, "signature_id": SIGNATURE, "primary_artifact": ONE, "canary_artifact": null,
            "canary_percent": 0, "rollout_seed": "default", "key_scope": "auto", "bucket_algo": "sha256-be32-mod100.v1",
            "metadata": {}, "guard": null,
        })
    );
    assert_eq!(Pointer::read(&kept).unwrap().to_json(), kept);
}

#[test]
fn what_is_wrong_is_told_with_its_field() {
    let deep = (0..40).fold(json!({}), |inner, _| json!({ "x": inner }));
    for (field, value, expected) in [
        ("version", json!(2), "version is 2, expected 1; if it is newer, use a newer actum"),
        ("version", json!("1"), "version is"),
        ("signature_id", json!(null), "signature_id is missing"),
        ("signature_id", json!("Sort"), "namespace/name.vN"),
        ("signature_id", json!("a|b/c.v1"), "namespace/name.vN"),
        ("signature_id", json!(7), "signature_id is 7, expected text"),
        ("signature_id", json!(format!("a/{}.v1", "x".repeat(200))), "namespace/name.vN"),
        ("primary_artifact", json!(null), "primary_artifact is missing"),
        ("primary_artifact", json!("catalog:a/b.v1:direct.v1"), "the id of an artifact"),
        ("primary_artifact", json!({"compiled_id": ONE}), "primary_artifact is"),
        ("primary_artifact", json!("art_0123456789ABCDEF01234567"), "the id of an artifact"),
        ("primary_artifact", json!("art_0123456789abcdef0123456"), "the id of an artifact"),
        ("canary_artifact", json!(ONE), "another one than primary_artifact"),
        ("canary_artifact", json!("x"), "canary_artifact is \"x\", expected the id of an artifact"),
        ("canary_artifact", json!(null), "canary_percent is 20, expected 0 where there is no canary_artifact"),
        ("canary_percent", json!(101), "a whole number from 0 to 100"),
        ("canary_percent", json!(256), "a whole number from 0 to 100"),
        ("canary_percent", json!(-1), "a whole number from 0 to 100"),
        ("canary_percent", json!(2.5), "a whole number from 0 to 100"),
        ("canary_percent", json!("20"), "a whole number from 0 to 100"),
        ("rollout_seed", json!(""), "1 to 200 bytes without |"),
        ("rollout_seed", json!("a|b"), "1 to 200 bytes without |"),
        ("rollout_seed", json!("x".repeat(201)), "1 to 200 bytes without |"),
        ("rollout_seed", json!(7), "rollout_seed is 7"),
        ("key_scope", json!("owner"), "one of auto, run, thread, autopilot, user"),
        ("key_scope", json!(1), "key_scope is 1"),
        ("bucket_algo", json!("md5"), "sha256-be32-mod100.v1"),
        ("metadata", json!([1]), "an object of at most 16384 bytes"),
        ("metadata", json!({"x": "y".repeat(16 << 10)}), "an object of at most 16384 bytes"),
        ("metadata", deep.clone(), "at most 32 levels"),
        ("guard", json!("strict"), "an object of at most"),
        ("guard", deep, "at most 32 levels"),
        ("guard", json!({"samples": 0, "bounds": guard(1)["bounds"]}), "guard.samples is 0, expected a whole number"),
        ("guard", json!({"samples": 5, "bounds": []}), "guard.bounds is []"),
        ("guard", json!({"samples": 5, "bounds": [{"metric": "cost"}]}), "guard.bounds[0].max is missing"),
        ("canary_precent", json!(1), "did you mean canary_percent?"),
    ] {
        let mut changed = pointer().to_json();
        changed[field] = value.clone();
        let told = flaws(&changed);
        assert!(told.contains(expected), "{field} = {value}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let guarded = json!({"signature_id": SIGNATURE, "primary_artifact": ONE, "guard": {}});
    assert!(flaws(&guarded).contains("guard is {}, expected nothing where there is no canary_artifact"));
    let all = flaws(&json!({"canary_percent": 5, "key_scope": "x", "guard": {}}));
    for field in ["signature_id", "primary_artifact", "canary_percent", "key_scope", "guard"] {
        assert!(all.contains(&format!("{field} is")), "{all}");
    }
    for other in [json!(null), json!([]), json!("x"), json!(1)] {
        assert!(flaws(&other).contains("the document is"), "{other}");
    }
    // A canary may wait with nobody on it.
    assert!(Pointer::read(&pointer().set_canary(TWO, 0).to_json()).is_ok());
}

fn any_pointer() -> impl Strategy<Value = Pointer> {
    let canary = proptest::option::of((0..=100_u8, any::<bool>()));
    let scope = (0..Scope::ALL.len()).prop_map(|at| Scope::ALL[at]);
    let metadata = proptest::collection::btree_map("[a-z]{1,5}", "\\PC{0,10}", 0..4);
    ("[^|]{1,50}", canary, scope, metadata).prop_map(|(seed, canary, key_scope, metadata)| Pointer {
        canary_artifact: canary.map(|_| TWO.to_owned()),
        canary_percent: canary.map_or(0, |(percent, _)| percent),
        guard: canary.filter(|(_, is_guarded)| *is_guarded).map(|_| guard(5)),
        rollout_seed: seed,
        key_scope,
        metadata: metadata.into_iter().map(|(name, text)| (name, json!(text))).collect(),
        ..Pointer::new(SIGNATURE, ONE)
    })
}

proptest! {
    #[test]
    fn what_was_kept_is_read_again(pointer in any_pointer()) {
        let kept = pointer.to_json();
        prop_assert_eq!(&Pointer::read(&kept).unwrap(), &pointer);
        let text: Value = serde_json::from_str(&kept.to_string()).unwrap();
        prop_assert_eq!(&Pointer::read(&text).unwrap(), &pointer);
    }

    #[test]
    fn more_percent_keep_whoever_is_in(pointer in any_pointer(), key in "\\PC{0,20}", less in 0..=100_u8, more in 0..=100_u8) {
        let keys = Keys { key: Some(key.clone()), run: Some(key.clone()), thread: Some(key.clone()), autopilot: Some(key.clone()), user: Some(key) };
        let at = |percent: u8| pointer.set_canary(TWO, percent).select(&keys);
        prop_assert_eq!(at(less), at(less));
        let (less, more) = (less.min(more), less.max(more));
        prop_assert!(at(less).variant == Variant::Primary || at(more).variant == Variant::Canary);
        prop_assert_eq!(at(less).bucket, at(more).bucket);
        prop_assert_eq!(at(0).variant, Variant::Primary);
        prop_assert!(at(100).bucket.is_none() || at(100).variant == Variant::Canary);
    }

    #[test]
    fn a_bucket_is_what_its_digits_say(signature in "[a-z@/.]{1,30}", seed in "[^|]{1,20}", key in "\\PC{0,30}") {
        prop_assert_eq!(u64::from(bucket(&signature, &seed, &key)), by_hex(&signature, &seed, &key));
    }
}
