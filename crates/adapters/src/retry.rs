//! When to try once more, and how long to wait before. The same call waits the same time again: what jitter needs comes from
//! the execution's id, not from chance.

use actum_contract::digest::Digest;
use actum_contract::tool::Retry;

use crate::result::Attempt;

/// Longest wait between two attempts, in milliseconds. Whoever asks for a longer one is not asked again.
pub const DELAY_MS_MAX: u64 = 60_000;

/// How far jitter goes to either side, in parts of a thousand.
const JITTER_PERMILLE: u64 = 250;

/// Whether an attempt ended with a code that is worth another one.
pub fn is_retryable(retry: &Retry, attempt: &Attempt) -> bool {
    attempt.code.is_some_and(|code| retry.retryable_codes.contains(&code))
}

/// How long to wait after attempt number `attempt` (1 is the first); nothing: the other side asks for more than anybody
/// waits.
pub fn delay_ms(retry: &Retry, execution_id: &str, attempt: u64, retry_after_ms: Option<u64>) -> Option<u64> {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    let base = 1_u64.checked_shl(doublings).map_or(u64::MAX, |factor| retry.backoff_ms.saturating_mul(factor));
    let base = if retry.backoff_ms == 0 { 0 } else { base.min(DELAY_MS_MAX) };
    let hash = Digest::sha256_parts(&[execution_id.as_bytes(), &[0], &attempt.to_be_bytes()]);
    let chance = hash.0.iter().take(4).fold(0, |all, byte| (all << 8) | u64::from(*byte));
    let permille = 1_000 - JITTER_PERMILLE + chance % (2 * JITTER_PERMILLE + 1);
    let own = (base * permille / 1_000).min(DELAY_MS_MAX);
    match retry_after_ms {
        Some(asked) if asked > DELAY_MS_MAX => None,
        asked => Some(own.max(asked.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn retry(backoff_ms: u64) -> Retry {
        Retry { max_attempts: 10, backoff_ms, retryable_codes: vec![] }
    }

    #[test]
    fn it_doubles_and_is_the_same_again() {
        let delays: Vec<u64> = (1..=9).map(|n| delay_ms(&retry(1_000), "run-1", n, None).unwrap()).collect();
        assert_eq!(delays, (1..=9).map(|n| delay_ms(&retry(1_000), "run-1", n, None).unwrap()).collect::<Vec<_>>());
        for (delay, base) in delays.iter().zip([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]) {
            assert!((base * 3 / 4..=(base * 5 / 4).min(DELAY_MS_MAX)).contains(delay), "{base}: {delay}");
        }
        let others: Vec<u64> =
            (0..20).map(|n| delay_ms(&retry(1_000), &format!("run-{n}"), 1, None).unwrap()).collect();
        assert!(others.iter().any(|delay| *delay != others[0]), "not all at once: {others:?}");
        assert_eq!(delay_ms(&retry(0), "run-1", 70, None), Some(0));
    }

    #[test]
    fn who_asks_for_time_gets_it_within_reason() {
        assert_eq!(delay_ms(&retry(10), "x", 1, Some(5_000)), Some(5_000));
        assert!(delay_ms(&retry(10_000), "x", 1, Some(1)).unwrap() >= 7_500, "our own is longer");
        assert_eq!(delay_ms(&retry(10), "x", 1, Some(60_000)), Some(60_000));
        assert_eq!(delay_ms(&retry(10), "x", 1, Some(60_001)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn never_longer_than_the_longest(backoff in any::<u64>(), id in ".*", attempt in any::<u64>(), asked in any::<Option<u64>>()) {
            let delay = delay_ms(&retry(backoff), &id, attempt, asked);
            prop_assert!(delay.is_none_or(|delay| delay <= DELAY_MS_MAX));
        }
    }
}
