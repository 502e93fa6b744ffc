//! What is read, what is refused, and when a verdict falls; above all when it must not.

use proptest::prelude::*;

use super::*;

fn flaws(value: Value) -> String {
    let flaws = Guard::read(&value).unwrap_err();
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn guard(samples: u64, rollback_after: u64, bound: Value) -> Guard {
    Guard::read(&json!({"samples": samples, "rollback_after": rollback_after, "bounds": [bound]})).unwrap()
}

fn sample(is_canary: bool) -> Sample {
    Sample { is_canary, is_error: false, spent: 10, latency_ms: 100, score: None }
}

fn many(count: usize, is_canary: bool, change: impl Fn(usize, &mut Sample)) -> Vec<Sample> {
    let one = |n| {
        let mut one = sample(is_canary);
        change(n, &mut one);
        one
    };
    (0..count).map(one).collect()
}

#[test]
fn a_guard_is_read_and_kept() {
    let value = json!({"samples": 50, "bounds": [
        {"metric": "error_rate", "max": 0.05},
        {"metric": "cost", "max": 1.2, "ratio_to_primary": true},
        {"metric": "latency_mean_ms", "min": 1, "max": 900},
        {"metric": "latency_p95_ms", "max": 2000},
        {"metric": "score", "min": 0.9},
        {"metric": "score", "min": 0.98, "ratio_to_primary": true},
    ]});
    let guard = Guard::read(&value).unwrap();
    assert_eq!((guard.samples, guard.rollback_after, guard.promote), (50, 50, true));
    assert_eq!(guard.score, Metric::ExactMatch);
    assert_eq!(guard.bounds[1].measure, Measure::Cost);
    assert!(guard.bounds[1].is_ratio && !guard.bounds[0].is_ratio);
    assert_eq!(Guard::read(&guard.to_json()).unwrap(), guard);
    let validator = jsonschema::validator_for(&schema()).unwrap();
    assert!(validator.is_valid(&value) && validator.is_valid(&guard.to_json()));
    let other = json!({"samples": 1, "promote": false, "score": {"kind": "contains"}, "bounds": [{"metric": "cost", "max": 0}]});
    let other = Guard::read(&other).unwrap();
    assert!(!other.promote && other.score == Metric::Contains { field: None });
}

#[test]
fn every_flaw_is_told() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    assert!(flaws(json!(3)).contains("an object of fields"));
    let nothing = flaws(json!({}));
    assert!(nothing.contains("samples is missing") && nothing.contains("bounds is missing"));
    let good = json!({"metric": "cost", "max": 1});
    for (field, bad, told) in [
        ("samples", json!(0), "from 1 to 1000000"),
        ("samples", json!(1_000_001), "from 1 to 1000000"),
        ("samples", json!(1.5), "a whole number"),
        ("samples", json!("9"), "a whole number"),
        ("rollback_after", json!(11), "from 1 to 10"),
        ("rollback_after", json!(0), "from 1 to 10"),
        ("promote", json!("yes"), "true or false"),
        ("score", json!("accuracy"), "exact_match"),
        ("score", json!({"kind": "judge", "signature": "a/b.v1"}), "needs no model"),
        ("bounds", json!([]), "1 to 16 bounds"),
        ("bounds", json!(vec![good.clone(); 17]), "1 to 16 bounds"),
        ("bounds", json!({"metric": "cost"}), "a list of"),
        ("bounds", json!([good, good]), "one bound for each metric"),
        ("bounds", json!([7]), "bounds[0] is 7"),
        ("bounds", json!([{"max": 1}]), "bounds[0].metric is missing"),
        ("bounds", json!([{"metric": "speed", "max": 1}]), "error_rate, cost"),
        ("bounds", json!([{"metric": "cost"}]), "max, min or both"),
        ("bounds", json!([{"metric": "cost", "min": 2, "max": 1}]), "at most max, which is 1"),
        ("bounds", json!([{"metric": "cost", "max": -1}]), "a number from 0"),
        ("bounds", json!([{"metric": "cost", "max": "1"}]), "a number from 0"),
        ("bounds", json!([{"metric": "error_rate", "max": 5}]), "from 0 to 1"),
        ("bounds", json!([{"metric": "cost", "max": 1, "ratio": true}]), "ratio is no field of a bound"),
        ("bounds", json!([{"metric": "cost", "max": 1, "ratio_to_primary": 1}]), "true or false"),
        ("sample", json!(1), "did you mean samples?"),
    ] {
        let mut value = json!({"samples": 10, "bounds": [{"metric": "cost", "max": 1}]});
        value[field] = bad;
        let found = flaws(value.clone());
        assert!(found.contains(told), "{value}: {found}");
        let says_more =
            ["rollback_after", "score"].contains(&field) || told.contains("max") || told.contains("each metric");
        assert!(says_more || told == "from 0 to 1" || !validator.is_valid(&value), "{value}");
    }
    assert_eq!(flaws(json!({"samples": 0, "promote": 1, "bounds": [{"metric": 1}, {"max": true}]})).lines().count(), 6);
}

#[test]
fn enough_samples_decide() {
    let errors = guard(20, 5, json!({"metric": "error_rate", "max": 0.1}));
    let judged = |count: usize, bad: usize| judge(&errors, &many(count, true, |n, one| one.is_error = n < bad));
    assert_eq!(judged(0, 0).verdict, Verdict::Wait);
    assert_eq!(judged(4, 4).verdict, Verdict::Wait);
    assert_eq!(judged(5, 5).verdict, Verdict::Rollback);
    assert_eq!(judged(5, 0).verdict, Verdict::Wait, "holding takes more samples than breaking");
    assert_eq!(judged(19, 1).verdict, Verdict::Wait);
    let promoted = judged(20, 2);
    assert_eq!((promoted.verdict, promoted.reason_code), (Verdict::Promote, Some(policy::GUARD_PROMOTED)));
    assert_eq!(promoted.evidence["canary"]["error_rate"], json!(0.1));
    assert_eq!(promoted.evidence["primary"]["error_rate"], Value::Null);
    assert_eq!(promoted.evidence["bounds"][0]["holds"], json!(true));
    let broken = judged(20, 3);
    assert_eq!((broken.verdict, broken.reason_code), (Verdict::Rollback, Some(policy::GUARD_ROLLED_BACK)));
    assert_eq!(judged(4, 4).evidence["bounds"][0]["holds"], Value::Null);
    assert_eq!(judged(4, 4).reason_code, None);
    for code in [policy::GUARD_PROMOTED, policy::GUARD_ROLLED_BACK] {
        assert!(policy::reason(code).is_some());
    }
    let kept = Guard { promote: false, ..errors };
    assert_eq!(judge(&kept, &many(20, true, |_, _| ())).verdict, Verdict::Keep);
    assert_eq!(judge(&kept, &many(99, false, |_, one| one.is_error = true)).verdict, Verdict::Wait);
}

#[test]
fn each_measure_is_measured() {
    let samples = many(20, true, |n, one| {
        *one = Sample {
            is_canary: true,
            is_error: n == 0,
            spent: n as u64,
            latency_ms: 10 * (n as u64 + 1),
            score: (n < 4).then_some(if n == 3 { 0.0 } else { 1.0 }),
        };
    });
    let bound = json!({"metric": "cost", "max": 1_000});
    let evidence = judge(&guard(20, 20, bound), &samples).evidence;
    let expected = json!({
        "samples": 20, "scored": 4, "error_rate": 0.05, "cost": 9.5, "latency_mean_ms": 105.0,
        "latency_p95_ms": 190.0, "score": 0.75,
    });
    assert_eq!(evidence["canary"], expected);
    assert_eq!((nearest_rank(&[], 95), nearest_rank(&[7], 95)), (None, Some(7)));
    assert_eq!(nearest_rank(&(1..=100).collect::<Vec<_>>(), 95), Some(95));
    assert_eq!(nearest_rank(&(1..=21).collect::<Vec<_>>(), 95), Some(20));
    // A score bound waits for labels, however many samples there are.
    let scores = guard(5, 5, json!({"metric": "score", "min": 0.1}));
    assert_eq!(judge(&scores, &samples).verdict, Verdict::Wait);
    assert_eq!(judge(&scores, &samples).evidence["bounds"][0]["samples"], json!(4));
}

#[test]
fn ratios_need_both_sides() {
    let ratio = guard(10, 10, json!({"metric": "cost", "max": 1.5, "ratio_to_primary": true}));
    let judged = |primary: usize, was: u64, is: u64| {
        let mut samples = many(10, true, |_, one| one.spent = is);
        samples.extend(many(primary, false, |_, one| one.spent = was));
        judge(&ratio, &samples)
    };
    assert_eq!(judged(0, 10, 10).verdict, Verdict::Wait);
    assert_eq!(judged(9, 10, 99).verdict, Verdict::Wait);
    assert_eq!(judged(10, 10, 15).verdict, Verdict::Promote);
    assert_eq!(judged(10, 10, 16).verdict, Verdict::Rollback);
    assert_eq!(judged(10, 10, 16).evidence["bounds"][0]["value"], json!(1.6));
    let nothing = judged(10, 0, 0);
    assert_eq!((nothing.verdict, &nothing.evidence["bounds"][0]["value"]), (Verdict::Promote, &json!(1.0)));
    let unbounded = judged(10, 0, 1);
    assert_eq!(unbounded.verdict, Verdict::Rollback);
    assert_eq!(unbounded.evidence["bounds"][0]["unbounded"], json!(true));
    assert_eq!(unbounded.evidence["bounds"][0]["value"], Value::Null);
    let more = guard(10, 10, json!({"metric": "cost", "min": 2, "ratio_to_primary": true}));
    let mut samples = many(10, true, |_, _| ());
    samples.extend(many(10, false, |_, one| one.spent = 0));
    assert_eq!(judge(&more, &samples).verdict, Verdict::Promote);
}

#[test]
fn absurd_numbers_break_nothing() {
    let cost = guard(1, 1, json!({"metric": "cost", "max": 5}));
    let mut samples = many(3, true, |_, one| (one.spent, one.latency_ms) = (u64::MAX, u64::MAX));
    samples[0].score = Some(f64::NAN);
    samples[1].score = Some(f64::INFINITY);
    let judged = judge(&cost, &samples);
    assert_eq!(judged.verdict, Verdict::Rollback);
    assert_eq!(judged.evidence["canary"]["score"], json!(1.0));
    assert!(actum_contract::canon::unsafe_doubles(&judged.evidence, "").is_empty());
    let empty = Guard { bounds: Vec::new(), samples: 0, rollback_after: 0, ..cost };
    assert_eq!(judge(&empty, &samples).verdict, Verdict::Wait, "what bounds nothing promotes nothing");
}

fn any_guard() -> impl Strategy<Value = Guard> {
    let limit = || prop::option::of(prop_oneof![Just(0.0), 0.0..1.0, 0.0..200.0]);
    let bound = (prop::sample::select(&Measure::ALL[..]), limit(), limit(), any::<bool>())
        .prop_map(|(measure, min, max, is_ratio)| Bound { measure, min, max, is_ratio });
    let bounds = prop::collection::vec(bound, 1..4);
    (1..20u64, 1..20u64, any::<bool>(), bounds).prop_map(|(samples, after, promote, bounds)| Guard {
        samples,
        rollback_after: after.min(samples),
        promote,
        score: Metric::ExactMatch,
        bounds,
    })
}

fn any_samples() -> impl Strategy<Value = Vec<Sample>> {
    let one = (any::<bool>(), prop::bool::weighted(0.2), 0..200u64, 0..200u64, prop::option::of(0.0..=1.0)).prop_map(
        |(is_canary, is_error, spent, latency_ms, score)| Sample { is_canary, is_error, spent, latency_ms, score },
    );
    prop::collection::vec(one, 0..60)
}

proptest! {
    #[test]
    fn nothing_is_promoted_over_a_broken_bound(guard in any_guard(), samples in any_samples()) {
        let judged = judge(&guard, &samples);
        let bounds = judged.evidence["bounds"].as_array().unwrap();
        let broken = |bound: &Value| {
            let value = bound["value"].as_f64();
            let is_over = value.zip(bound["max"].as_f64()).is_some_and(|(value, max)| value > max);
            let is_under = value.zip(bound["min"].as_f64()).is_some_and(|(value, min)| value < min);
            is_over || is_under || (bound["unbounded"] == true && !bound["max"].is_null())
        };
        let enough = |bound: &Value, count: u64| bound["samples"].as_u64().unwrap() >= count;
        match judged.verdict {
            Verdict::Promote | Verdict::Keep => {
                prop_assert!(bounds.iter().all(|bound| !broken(bound) && enough(bound, guard.samples)));
                prop_assert_eq!(guard.promote, judged.verdict == Verdict::Promote);
            }
            Verdict::Rollback => {
                prop_assert!(bounds.iter().any(|bound| broken(bound) && enough(bound, guard.rollback_after)));
            }
            Verdict::Wait => {
                prop_assert!(!bounds.iter().any(|bound| broken(bound) && enough(bound, guard.rollback_after)));
                prop_assert!(!bounds.iter().all(|bound| enough(bound, guard.samples)));
            }
        }
        let canaries = samples.iter().filter(|sample| sample.is_canary).count() as u64;
        prop_assert!(canaries >= guard.rollback_after || judged.verdict == Verdict::Wait);
    }

    #[test]
    fn the_order_of_samples_does_not_matter(
        guard in any_guard(),
        (samples, shuffled) in any_samples().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let judged = judge(&guard, &samples);
        prop_assert_eq!(&judge(&guard, &shuffled), &judged);
        let covered = json!({
            "verdict": judged.verdict.word(), "reason_code": judged.reason_code, "evidence": judged.evidence,
        });
        prop_assert_eq!(hash::of(&covered), judged.evaluation_hash.clone());
        let other = Guard { samples: guard.samples + 1, ..guard };
        prop_assert_ne!(judge(&other, &samples).evaluation_hash, judged.evaluation_hash);
    }
}
