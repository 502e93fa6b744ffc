//! Guards of canaries: what has to hold, over how many samples, and what follows when it does or does not.
//!
//! Read from what an operator declares with a canary, judged by whoever has its samples. The same guard and samples give
//! the same verdict, evidence and hash, in whatever order they come. Never moves a pointer itself.

use actum_contract::limit::INTEGER_SAFE_MAX;
use actum_contract::part::{Flaw, Part};
use serde_json::{Value, json};

use crate::metric::{self, Metric};
use crate::statistics::{mean, rounded};
use crate::{hash, policy};

/// Samples that a guard may wait for.
pub const SAMPLES_MAX: u64 = 1_000_000;

/// Bounds of one guard.
const BOUNDS_MAX: usize = 16;

/// Largest number that a bound may name.
const BOUND_MAX: f64 = INTEGER_SAFE_MAX as f64;

const NOUN: &str = "a guard";
const BOUND_NOUN: &str = "a bound";

/// What is declared with a canary.
#[derive(Debug, Clone, PartialEq)]
pub struct Guard {
    /// Of the canary, and of the primary where one is compared with the other, before the verdict falls.
    pub samples: u64,
    /// As many suffice to withdraw it.
    pub rollback_after: u64,
    /// Whether a canary that holds every bound becomes the primary by itself.
    pub promote: bool,
    pub score: Metric,
    pub bounds: Vec<Bound>,
}

/// Between what a measure has to stay.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    pub measure: Measure,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// Of the canary's to the primary's, not by itself.
    pub is_ratio: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Share of samples that got no answer.
    ErrorRate,
    /// Mean, in the smallest unit of the currency.
    Cost,
    LatencyMeanMs,
    LatencyP95Ms,
    /// Mean over the samples that have one.
    Score,
}

impl Measure {
    pub const ALL: [Self; 5] = [Self::ErrorRate, Self::Cost, Self::LatencyMeanMs, Self::LatencyP95Ms, Self::Score];

    pub const fn word(self) -> &'static str {
        match self {
            Self::ErrorRate => "error_rate",
            Self::Cost => "cost",
            Self::LatencyMeanMs => "latency_mean_ms",
            Self::LatencyP95Ms => "latency_p95_ms",
            Self::Score => "score",
        }
    }

    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|measure| measure.word() == word)
    }
}

impl Guard {
    /// Reads a guard; every flaw is found, not only the first.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let guard = read(&mut Part::new(value, "", NOUN, &mut flaws));
        match (guard, flaws.is_empty()) {
            (Some(guard), true) => Ok(guard),
            _ => Err(flaws),
        }
    }

    /// Notes what is wrong with a guard that stands in another document.
    pub(crate) fn check(value: &Value, at: &str, flaws: &mut Vec<Flaw>) {
        read(&mut Part::new(value, at, NOUN, flaws));
    }

    /// As it is kept; reading it again gives the same.
    pub fn to_json(&self) -> Value {
        let bound = |bound: &Bound| {
            let mut fields = json!({"metric": bound.measure.word(), "ratio_to_primary": bound.is_ratio});
            for (name, limit) in [("min", bound.min), ("max", bound.max)] {
                if let Some(limit) = limit {
                    fields[name] = json!(limit);
                }
            }
            fields
        };
        json!({
            "samples": self.samples,
            "rollback_after": self.rollback_after,
            "promote": self.promote,
            "score": self.score.to_json(),
            "bounds": self.bounds.iter().map(bound).collect::<Vec<_>>(),
        })
    }
}

fn read(part: &mut Part<'_>) -> Option<Guard> {
    let count = |part: &mut Part<'_>, field: &str, max: u64, default: Option<u64>| {
        let value = part.take(field);
        let found = value.as_ref().map_or(default, |n| n.as_u64().filter(|n| (1..=max).contains(n)));
        if found.is_none() {
            part.bad(field, &value.unwrap_or(Value::Null), &format!("a whole number from 1 to {max}"));
        }
        found
    };
    let samples = count(part, "samples", SAMPLES_MAX, None);
    let most = samples.unwrap_or(SAMPLES_MAX);
    let rollback_after = count(part, "rollback_after", most, Some(most));
    let promote = part.switch("promote").unwrap_or(true);
    let has_score = part.has("score");
    let score = Metric::take(part, "score");
    if let Some(judge @ Metric::Judge { .. }) = &score {
        part.bad("score", &judge.to_json(), "a metric that needs no model; scores of a judge come as labels");
    }
    let bounds = read_bounds(part);
    part.finish();
    let score = if has_score { score? } else { Metric::ExactMatch };
    Some(Guard { samples: samples?, rollback_after: rollback_after?, promote, score, bounds: bounds? })
}

fn read_bounds(part: &mut Part<'_>) -> Option<Vec<Bound>> {
    let value = part.take("bounds").unwrap_or(Value::Null);
    let items = value.as_array().filter(|items| (1..=BOUNDS_MAX).contains(&items.len()));
    let Some(items) = items else {
        let expected = format!("a list of 1 to {BOUNDS_MAX} bounds {{metric, min, max, ratio_to_primary}}");
        part.bad("bounds", &value, &expected);
        return None;
    };
    let mut bounds: Vec<Option<Bound>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let field = format!("bounds[{at}]");
        let name = part.name(&field);
        let bound = read_bound(&mut Part::new(item, &name, BOUND_NOUN, part.flaws));
        let is_same = |one: &Bound, other: &Bound| (one.measure, one.is_ratio) == (other.measure, other.is_ratio);
        if let Some(one) = &bound
            && bounds.iter().flatten().any(|other| is_same(one, other))
        {
            part.bad(&field, item, "one bound for each metric, and one for its ratio; give min and max together");
        }
        bounds.push(bound);
    }
    bounds.into_iter().collect()
}

fn read_bound(part: &mut Part<'_>) -> Option<Bound> {
    let word = part.take("metric").unwrap_or(Value::Null);
    let measure = word.as_str().and_then(Measure::read);
    if measure.is_none() {
        part.bad("metric", &word, &Measure::ALL.map(Measure::word).join(", "));
    }
    let is_ratio = part.switch("ratio_to_primary").unwrap_or(false);
    // A share is never above one; such a bound would be a mistake of percent.
    let is_share = !is_ratio && matches!(measure, Some(Measure::ErrorRate | Measure::Score));
    let most = if is_share { 1.0 } else { BOUND_MAX };
    let before = part.flaws.len();
    let [min, max] = ["min", "max"].map(|field| {
        let value = part.take(field)?;
        let found = value.as_f64().filter(|limit| (0.0..=most).contains(limit));
        if found.is_none() {
            part.bad(field, &value, &format!("a number from 0 to {most}"));
        }
        found
    });
    if part.flaws.len() == before {
        match (min, max) {
            (None, None) => part.bad("max", &Value::Null, "max, min or both"),
            (Some(min), Some(max)) if min > max => {
                part.bad("min", &json!(min), &format!("at most max, which is {max}"))
            }
            _ => {}
        }
    }
    part.finish();
    Some(Bound { measure: measure?, min, max, is_ratio })
}

/// One prediction by way of the pointer; denied ones are none.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub is_canary: bool,
    pub is_error: bool,
    pub spent: u64,
    pub latency_ms: u64,
    pub score: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is not enough to judge by.
    Wait,
    /// All holds, and it was not declared that this promotes.
    Keep,
    Promote,
    Rollback,
}

impl Verdict {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Keep => "keep",
            Self::Promote => "promote",
            Self::Rollback => "rollback",
        }
    }
}

/// What a guard comes to, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    pub verdict: Verdict,
    /// Where something follows.
    pub reason_code: Option<&'static str>,
    pub evidence: Value,
    /// Over verdict, reason and evidence; the guard stands in the evidence.
    pub evaluation_hash: String,
}

/// Judges. A bound counts where it has enough samples: `rollback_after` of them if it is broken, `samples` if it holds.
pub fn judge(guard: &Guard, samples: &[Sample]) -> Judged {
    let [primary, canary] = [false, true].map(|is_canary| Side::of(samples, is_canary));
    let checks: Vec<(Option<bool>, Value)> =
        guard.bounds.iter().map(|bound| check(guard, bound, &primary, &canary)).collect();
    let verdict = if checks.iter().any(|(holds, _)| *holds == Some(false)) {
        Verdict::Rollback
    } else if checks.is_empty() || checks.iter().any(|(holds, _)| holds.is_none()) {
        Verdict::Wait
    } else if guard.promote {
        Verdict::Promote
    } else {
        Verdict::Keep
    };
    let reason_code = match verdict {
        Verdict::Wait | Verdict::Keep => None,
        Verdict::Promote => Some(policy::GUARD_PROMOTED),
        Verdict::Rollback => Some(policy::GUARD_ROLLED_BACK),
    };
    let evidence = json!({
        "guard": guard.to_json(),
        "primary": primary.to_json(),
        "canary": canary.to_json(),
        "bounds": checks.into_iter().map(|(_, told)| told).collect::<Vec<_>>(),
    });
    let covered = json!({"verdict": verdict.word(), "reason_code": reason_code, "evidence": evidence});
    Judged { verdict, reason_code, evidence, evaluation_hash: hash::of(&covered) }
}

fn check(guard: &Guard, bound: &Bound, primary: &Side, canary: &Side) -> (Option<bool>, Value) {
    let measure = bound.measure;
    let (mut value, mut samples, mut is_unbounded) = (canary.value(measure), canary.count(measure), false);
    if bound.is_ratio {
        samples = samples.min(primary.count(measure));
        value = match (value, primary.value(measure)) {
            (Some(canary), Some(primary)) if primary > 0.0 => Some(rounded(canary / primary)),
            (Some(canary), Some(_)) if canary > 0.0 => {
                is_unbounded = true;
                None
            }
            (Some(_), Some(_)) => Some(1.0),
            _ => None,
        };
    }
    let is_within = match value {
        Some(value) => bound.min.is_none_or(|min| value >= min) && bound.max.is_none_or(|max| value <= max),
        None => is_unbounded && bound.max.is_none(),
    };
    let needed = if is_within { guard.samples } else { guard.rollback_after };
    // A sample at least, whatever a guard was made of by hand.
    let holds = (samples >= needed.max(1)).then_some(is_within);
    let mut told = json!({
        "metric": measure.word(),
        "min": bound.min,
        "max": bound.max,
        "ratio_to_primary": bound.is_ratio,
        "value": value,
        "samples": samples,
        "holds": holds,
    });
    if is_unbounded {
        told["unbounded"] = json!(true);
    }
    (holds, told)
}

/// What was measured of the primary or of the canary. Rounded as it is kept, so that who has the evidence finds the same.
struct Side {
    samples: u64,
    scored: u64,
    error_rate: Option<f64>,
    cost: Option<f64>,
    latency_mean_ms: Option<f64>,
    latency_p95_ms: Option<f64>,
    score: Option<f64>,
}

impl Side {
    fn of(samples: &[Sample], is_canary: bool) -> Self {
        let ours = || samples.iter().filter(|sample| sample.is_canary == is_canary);
        let count = ours().count();
        // Whole numbers are added as such and scores in their order of size: no sum depends on who came first.
        let share = |sum: u128| (count > 0).then(|| rounded(sum as f64 / count as f64));
        let mut latencies: Vec<u64> = ours().map(|sample| sample.latency_ms).collect();
        latencies.sort_unstable();
        let mut scores: Vec<f64> = ours().filter_map(|sample| sample.score).filter(|score| !score.is_nan()).collect();
        scores.iter_mut().for_each(|score| *score = score.clamp(0.0, 1.0));
        scores.sort_by(f64::total_cmp);
        Self {
            samples: count as u64,
            scored: scores.len() as u64,
            error_rate: share(ours().filter(|sample| sample.is_error).count() as u128),
            cost: share(ours().map(|sample| u128::from(sample.spent)).sum()),
            latency_mean_ms: share(latencies.iter().map(|ms| u128::from(*ms)).sum()),
            latency_p95_ms: nearest_rank(&latencies, 95).map(|ms| rounded(ms as f64)),
            score: (!scores.is_empty()).then(|| rounded(mean(&scores))),
        }
    }

    fn count(&self, measure: Measure) -> u64 {
        if measure == Measure::Score { self.scored } else { self.samples }
    }

    fn value(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::ErrorRate => self.error_rate,
            Measure::Cost => self.cost,
            Measure::LatencyMeanMs => self.latency_mean_ms,
            Measure::LatencyP95Ms => self.latency_p95_ms,
            Measure::Score => self.score,
        }
    }

    fn to_json(&self) -> Value {
        let mut fields = json!({"samples": self.samples, "scored": self.scored});
        for measure in Measure::ALL {
            fields[measure.word()] = json!(self.value(measure));
        }
        fields
    }
}

/// The smallest value that so many per cent are not above.
fn nearest_rank(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// JSON Schema of a guard.
pub fn schema() -> Value {
    let count = json!({"type": "integer", "minimum": 1, "maximum": SAMPLES_MAX});
    let limit = json!({"type": "number", "minimum": 0, "maximum": BOUND_MAX});
    let bound = json!({
        "type": "object",
        "properties": {
            "metric": {"enum": Measure::ALL.map(Measure::word)},
            "min": limit,
            "max": limit,
            "ratio_to_primary": {
                "type": "boolean", "default": false, "description": "the canary's divided by the primary's",
            },
        },
        "required": ["metric"],
        "anyOf": [{"required": ["min"]}, {"required": ["max"]}],
        "additionalProperties": false,
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Guard",
        "type": "object",
        "properties": {
            "samples": count,
            "rollback_after": count,
            "promote": {"type": "boolean", "default": true},
            "score": metric::schema(),
            "bounds": {"type": "array", "items": bound, "minItems": 1, "maxItems": BOUNDS_MAX},
        },
        "required": ["samples", "bounds"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests;
