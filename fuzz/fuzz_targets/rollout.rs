//! Any bytes as a line of a dataset, a compile job, an artifact, a guard, a metric and a pointer, called by libFuzzer: what
//! is accepted must survive being kept and read again. It never judges what is refused, only that nothing panics.
#![no_main]

use actum_contract::canon;
use actum_contract::part::Flaw;
use actum_predict::compile::Job;
use actum_predict::dataset;
use actum_predict::guard::Guard;
use actum_predict::metric::Metric;
use actum_predict::{Artifact, Pointer, evolve, hash};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    match dataset::read_line(1, bytes) {
        Ok(raw) => check_scores(&raw.input, &raw.expected),
        Err(skipped) => assert!(!skipped.reason.is_empty() && !skipped.detail.is_empty(), "skipped without a reason"),
    }
    let Ok(value) = canon::parse(bytes) else { return };
    check(&value, Guard::read, Guard::to_json);
    check(&value, Metric::read, Metric::to_json);
    check(&value, Pointer::read, Pointer::to_json);
    check(&value, Job::read, Job::to_json);
    if let Some(artifact) = check(&value, Artifact::read, Artifact::to_json) {
        let kept = Artifact::read(&artifact.to_json()).expect("it was read before");
        assert_eq!(kept.id(), artifact.id(), "an artifact has another name when it is read again");
    }
    for kind in evolve::Kind::ALL {
        if let Ok(today) = evolve::read(kind, value.clone()) {
            assert_eq!(evolve::read(kind, today.clone()).as_ref(), Ok(&today), "once is not enough");
        }
    }
});

/// What was read is the same when what is kept of it is read again.
fn check<T: PartialEq + std::fmt::Debug>(
    value: &Value,
    read: impl Fn(&Value) -> Result<T, Vec<Flaw>>,
    kept: impl Fn(&T) -> Value,
) -> Option<T> {
    match read(value) {
        Ok(found) => {
            let text = hash::canonical(&kept(&found));
            let again = read(&canon::parse(&text).expect("what is kept is JSON"));
            assert_eq!(again.as_ref(), Ok(&found), "it does not survive its own text");
            Some(found)
        }
        Err(flaws) => {
            assert!(!flaws.is_empty(), "refused without a reason");
            None
        }
    }
}

/// Every measure gives a share, and all of it to what is equal.
fn check_scores(output: &Value, expected: &Value) {
    for metric in [Metric::ExactMatch, Metric::Contains { field: None }] {
        let score = metric.score(output, expected).expect("no judge is asked");
        assert!((0.0..=1.0).contains(&score));
    }
    assert_eq!(Metric::ExactMatch.score(expected, expected), Some(1.0));
    let near = Metric::NumericTolerance { field: None, tolerance: 0.0 };
    assert_eq!(near.score(output, expected), near.score(expected, output), "a distance has no direction");
}
