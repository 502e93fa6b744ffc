//! Means, and how sure they are: bootstrap intervals whose chance comes from a seed, so that everybody finds the same.
//!
//! Called by `compile` and `guard`. Never reads a random number, never gives one that is not finite.

use actum_contract::digest::Digest;
use actum_contract::limit::INTEGER_SAFE_MAX;
use serde::Serialize;

/// Samples that are drawn anew for one interval.
pub const RESAMPLES: usize = 2_000;

/// Per mille of them that lie below an interval, and the same above: 95 % lie within.
const TAIL_PER_MILLE: usize = 25;

/// What is kept is kept to a millionth.
const ROUND: f64 = 1e6;

/// A mean, with the interval that holds the true one in 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Whether zero lies outside.
    pub fn is_significant(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The mean; of nothing it is 0.
pub fn mean(all: &[f64]) -> f64 {
    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
}

/// The mean with its interval, by the percentiles of means of samples drawn anew. The seed decides which are drawn.
pub fn bootstrap(all: &[f64], seed: &str) -> Interval {
    let Some((first, rest)) = all.split_first() else { return Interval { mean: 0.0, low: 0.0, high: 0.0 } };
    let centre = rounded(mean(all));
    // Where nothing differs there is nothing to draw.
    if rest.iter().all(|one| one == first) {
        return Interval { mean: centre, low: centre, high: centre };
    }
    let mut draws = Draws::new(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| (0..all.len()).map(|_| all[draws.below(all.len())]).sum::<f64>() / all.len() as f64)
        .collect();
    means.sort_by(f64::total_cmp);
    let tail = RESAMPLES * TAIL_PER_MILLE / 1_000;
    Interval { mean: centre, low: rounded(means[tail - 1]), high: rounded(means[RESAMPLES - tail]) }
}

/// How often two who are equally good differ at least as clearly, either way: the exact sign test over the examples where
/// they do differ.
pub fn sign_test(better: usize, worse: usize) -> f64 {
    let (n, k) = (better + worse, better.min(worse));
    // In logarithms: the numbers themselves are too large.
    let mut choose = 0.0_f64;
    let mut sum = 0.0;
    for i in 0..=k {
        if i > 0 {
            choose += ((n - i + 1) as f64).ln() - (i as f64).ln();
        }
        sum += (choose - n as f64 * std::f64::consts::LN_2).exp();
    }
    (2.0 * sum).min(1.0)
}

/// The same of the differences `a − b`, example by example; what has no partner is left out.
pub fn paired_bootstrap(a: &[f64], b: &[f64], seed: &str) -> Interval {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    bootstrap(&differences, seed)
}

/// To six digits: everything that is stored goes through here. What is no number is 0, what is too large for canonical
/// JSON is the largest that is not.
pub fn rounded(x: f64) -> f64 {
    if x.is_nan() {
        return 0.0;
    }
    let bound = INTEGER_SAFE_MAX as f64;
    let x = x.clamp(-bound, bound);
    // Beyond this a double has no six digits to round to. The sum takes the sign from a zero.
    if x.abs() > bound / ROUND { x } else { (x * ROUND).round() / ROUND + 0.0 }
}

/// A whole number for canonical JSON.
pub(crate) fn safe(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX).min(INTEGER_SAFE_MAX)
}

/// splitmix64 (Steele, Lea, Flood 2014), begun with the first eight bytes of the seed's SHA-256.
struct Draws(u64);

impl Draws {
    fn new(seed: &str) -> Self {
        let digest = Digest::sha256(seed.as_bytes()).to_hex();
        Self(u64::from_str_radix(&digest[..16], 16).unwrap_or_default())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `n`.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn draws_are_those_of_the_paper() {
        let mut draws = Draws(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64];
        assert_eq!([draws.next(), draws.next(), draws.next()], expected);
    }

    #[test]
    fn what_is_equal_has_no_width() {
        let zero = Interval { mean: 0.0, low: 0.0, high: 0.0 };
        assert_eq!(bootstrap(&[], "s"), zero);
        assert_eq!(paired_bootstrap(&[], &[1.0], "s"), zero);
        assert_eq!(bootstrap(&[0.1; 7], "s"), Interval { mean: 0.1, low: 0.1, high: 0.1 });
        assert_eq!(bootstrap(&[1.0], "s"), Interval { mean: 1.0, low: 1.0, high: 1.0 });
        assert_eq!(mean(&[]), 0.0);
    }

    #[test]
    fn the_seed_decides() {
        let all: Vec<f64> = (0..40).map(|n| f64::from(n % 7) / 7.0).collect();
        assert_eq!(bootstrap(&all, "a"), bootstrap(&all, "a"));
        assert_ne!(bootstrap(&all, "a"), bootstrap(&all, "b"));
        // Pinned: who computes it again on another day or machine finds these.
        let ones: Vec<f64> = (0..20).map(|n| f64::from(u8::from(n < 14))).collect();
        assert_eq!(bootstrap(&ones, "default"), Interval { mean: 0.7, low: 0.5, high: 0.9 });
    }

    #[test]
    fn a_symmetric_sample_has_a_symmetric_interval() {
        let all: Vec<f64> = (0..100).map(|n| f64::from(n) - 49.5).collect();
        let found = bootstrap(&all, "s");
        assert_eq!(found.mean, 0.0);
        // By the normal approximation 1.96 × 28.87 / 10 = 5.66 on either side.
        assert!((found.high - 5.66).abs() < 0.5 && (found.low + 5.66).abs() < 0.5, "{found:?}");
        assert!(!found.is_significant());
    }

    #[test]
    fn pairs_show_what_single_means_hide() {
        let b: Vec<f64> = (0..50).map(|n| f64::from(n) / 50.0).collect();
        let a: Vec<f64> = b.iter().map(|b| b + 0.01).collect();
        let found = paired_bootstrap(&a, &b, "s");
        assert_eq!(found, Interval { mean: 0.01, low: 0.01, high: 0.01 });
        assert!(found.is_significant() && paired_bootstrap(&b, &a, "s").is_significant());
        let (one, other) = (bootstrap(&a, "s"), bootstrap(&b, "s"));
        assert!(one.low < other.mean && other.mean < one.high, "apart, the two cannot be told from one another");
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        // 400 samples of 40 from the uniform distribution, whose mean is one half.
        let mut draws = Draws::new("coverage");
        let mut uniform = || draws.next() as f64 / u64::MAX as f64;
        let hits = (0..400).filter(|n| {
            let sample: Vec<f64> = (0..40).map(|_| uniform()).collect();
            let found = bootstrap(&sample, &format!("trial {n}"));
            found.low <= 0.5 && 0.5 <= found.high
        });
        let share = hits.count() as f64 / 400.0;
        assert!((0.90..=0.98).contains(&share), "{share}");
    }

    #[test]
    fn a_coin_falls_as_often_as_it_is_said_to() {
        let near = |found: f64, exact: f64| assert!((found - exact).abs() < 1e-12, "{found} is not {exact}");
        near(sign_test(0, 0), 1.0);
        near(sign_test(1, 0), 1.0);
        near(sign_test(5, 0), 0.0625);
        near(sign_test(6, 0), 0.03125);
        near(sign_test(0, 6), 0.03125);
        near(sign_test(7, 7), 1.0);
        // Every sequence of a few throws, counted one by one.
        for (better, worse) in [(10_usize, 2_usize), (2, 10), (9, 1), (8, 5), (3, 3)] {
            let (n, k) = (better + worse, better.min(worse));
            let is_as_clear = |throws: &u32| {
                let heads = throws.count_ones() as usize;
                heads.min(n - heads) <= k
            };
            let all = 1_u32 << n;
            near(sign_test(better, worse), f64::from((0..all).filter(is_as_clear).count() as u32) / f64::from(all));
        }
        // By the normal approximation 1,000 more of 19,000 lie 7.25 standard deviations off.
        let many = sign_test(10_000, 9_000);
        assert!(many > 1e-14 && many < 1e-12, "{many}");
        let equal = sign_test(10_000, 10_000);
        assert!((0.99..=1.0).contains(&equal), "{equal}");
        assert!((0.0..1e-300).contains(&sign_test(100_000, 0)));
    }

    #[test]
    fn what_is_stored_is_a_number() {
        assert_eq!(rounded(0.123_456_789), 0.123_457);
        assert_eq!(rounded(-0.000_000_1).to_string(), "0");
        assert_eq!(rounded(f64::NAN), 0.0);
        assert_eq!(rounded(f64::INFINITY), INTEGER_SAFE_MAX as f64);
        assert_eq!(rounded(f64::MIN), -(INTEGER_SAFE_MAX as f64));
        assert_eq!(rounded(12_345_678_901.5), 12_345_678_901.5);
        assert_eq!(safe(u128::MAX), INTEGER_SAFE_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn an_interval_is_in_order(all in prop::collection::vec(0.0..=1.0, 0..60), seed in ".*") {
            let found = bootstrap(&all, &seed);
            prop_assert!(found.low <= found.mean + 1e-6 && found.mean <= found.high + 1e-6, "{:?}", found);
            prop_assert!(found.low >= 0.0 && found.high <= 1.0);
            prop_assert_eq!(found, bootstrap(&all, &seed));
        }

        #[test]
        fn rounding_twice_is_rounding_once(x in any::<f64>()) {
            let once = rounded(x);
            prop_assert!(once.is_finite());
            prop_assert_eq!(once.to_bits(), rounded(once).to_bits());
        }
    }
}
