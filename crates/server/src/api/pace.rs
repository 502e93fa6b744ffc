//! How often a token may ask: so many requests a second, and some at once after a pause.
//!
//! For each token one moment is kept, that at which it will have paid for all it asked. Reads no clock: the moment of a
//! request is given.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Tokens that have asked within the last moments.
const TOKENS_MAX: usize = 10_000;

pub(crate) struct Pace {
    /// Between two requests; none if there is no limit.
    interval: Option<Duration>,
    /// How far ahead of its pace a token may be.
    ahead: Duration,
    paid: Mutex<HashMap<String, Instant>>,
}

impl Pace {
    pub(crate) fn new(requests_per_second: u32, burst: u32) -> Self {
        let interval = (requests_per_second > 0).then(|| Duration::from_secs(1) / requests_per_second);
        let ahead = interval.unwrap_or_default().saturating_mul(burst.saturating_sub(1));
        Self { interval, ahead, paid: Mutex::default() }
    }

    /// Or how long to wait.
    pub(crate) fn take(&self, token: &str, now: Instant) -> Result<(), Duration> {
        let Some(interval) = self.interval else { return Ok(()) };
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        if paid.len() >= TOKENS_MAX && !paid.contains_key(token) {
            // Who has paid for everything needs no place.
            paid.retain(|_, until| *until > now);
            if paid.len() >= TOKENS_MAX {
                return Err(interval);
            }
        }
        let until = paid.get(token).copied().unwrap_or(now).max(now);
        let early = (until - now).saturating_sub(self.ahead);
        if !early.is_zero() {
            return Err(early);
        }
        paid.insert(token.to_owned(), until + interval);
        Ok(())
    }

    /// Charges whoever it is, and tells how long he has to wait for what he has had already; never longer than `longest`, and
    /// what he would have to wait longer for is forgiven.
    pub(crate) fn charge(&self, whom: &str, now: Instant, longest: Duration) -> Duration {
        match self.take(whom, now) {
            Ok(()) => Duration::ZERO,
            Err(wait) => wait.max(self.interval.unwrap_or_default()).min(longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_at_once_then_at_its_pace() {
        let pace = Pace::new(10, 3);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..3 {
            assert_eq!(pace.take("a", at(0)), Ok(()));
        }
        assert_eq!(pace.take("a", at(0)), Err(Duration::from_millis(100)));
        assert_eq!(pace.take("a", at(40)), Err(Duration::from_millis(60)));
        assert_eq!(pace.take("b", at(40)), Ok(()));
        assert_eq!(pace.take("a", at(100)), Ok(()));
        assert!(pace.take("a", at(100)).is_err());
        // After a pause as many at once as in the beginning, and no more.
        let taken = (0..20).filter(|_| pace.take("a", at(60_000)).is_ok()).count();
        assert_eq!(taken, 3);
        // What was refused is not paid for.
        let taken = (0..2_000).filter(|ms| pace.take("c", at(70_000 + ms)).is_ok()).count();
        assert_eq!(taken, 3 + 19);
    }

    #[test]
    fn whoever_fails_too_often_waits_and_nobody_waits_for_him() {
        let (pace, now, longest) = (Pace::new(10, 3), Instant::now(), Duration::from_millis(150));
        for _ in 0..3 {
            assert_eq!(pace.charge("a", now, longest), Duration::ZERO);
        }
        assert_eq!(pace.charge("a", now, longest), Duration::from_millis(100));
        assert_eq!(pace.charge("b", now, longest), Duration::ZERO);
        assert_eq!(Pace::new(1, 1).charge("a", now, longest), Duration::ZERO);
        let slow = Pace::new(1, 1);
        slow.charge("a", now, longest);
        assert_eq!(slow.charge("a", now, longest), longest);
        assert_eq!(Pace::new(0, 0).charge("a", now, longest), Duration::ZERO);
    }

    #[test]
    fn no_limit_and_no_burst() {
        let now = Instant::now();
        let pace = Pace::new(0, 0);
        assert!((0..1_000).all(|_| pace.take("a", now).is_ok()));
        let pace = Pace::new(1, 0);
        assert_eq!(pace.take("a", now), Ok(()));
        assert_eq!(pace.take("a", now), Err(Duration::from_secs(1)));
        assert!(Pace::new(u32::MAX, u32::MAX).take("a", now).is_ok());
    }

    #[test]
    fn tokens_are_forgotten_when_there_are_too_many() {
        let now = Instant::now();
        let pace = Pace::new(1, 1);
        for number in 0..TOKENS_MAX {
            assert!(pace.take(&number.to_string(), now).is_ok());
        }
        assert!(pace.take("one more", now).is_err());
        assert!(pace.take("one more", now + Duration::from_secs(2)).is_ok());
        assert_eq!(pace.paid.lock().unwrap().len(), 1);
    }
}
