//! A circuit breaker: who has failed several times in a row is left alone for a while, then asked once to see. Held by an
//! `Upstream`; a ticket says how each question ended. Makes no attempt itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 3;

/// How soon to ask again while somebody else is finding out.
const PROBE_MS: u64 = 1_000;

#[derive(Debug)]
pub(super) struct Breaker {
    open_for: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Open until then; afterwards one may try.
    open_until: Option<Instant>,
    is_probed: bool,
}

/// The right to ask once; dropped unused, it says nothing about the provider.
#[derive(Debug)]
pub(super) struct Ticket {
    breaker: Arc<Breaker>,
    is_probe: bool,
    is_told: bool,
}

impl Breaker {
    pub(super) fn new(open_for: Duration) -> Self {
        Self { open_for, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets somebody ask, or says for how many milliseconds not to.
    pub(super) fn admit(this: &Arc<Self>) -> Result<Ticket, u64> {
        let mut state = this.lock();
        let is_probe = match state.open_until {
            None => false,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return Err(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1));
                }
                if std::mem::replace(&mut state.is_probed, true) {
                    return Err(PROBE_MS);
                }
                true
            }
        };
        Ok(Ticket { breaker: Arc::clone(this), is_probe, is_told: false })
    }
}

impl Ticket {
    pub(super) fn succeeded(mut self) {
        self.is_told = true;
        let mut state = self.breaker.lock();
        // An answer to what was asked before it opened closes it as well.
        *state = State::default();
    }

    pub(super) fn failed(mut self) {
        self.is_told = true;
        let mut state = self.breaker.lock();
        state.failures = state.failures.saturating_add(1);
        if self.is_probe || state.failures >= FAILURES_MAX {
            state.open_until = Some(Instant::now() + self.breaker.open_for);
            state.is_probed = false;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_told && self.is_probe {
            self.breaker.lock().is_probed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Arc<Breaker>) {
        Breaker::admit(breaker).unwrap().failed();
    }

    #[test]
    fn it_opens_at_the_third_failure_in_a_row() {
        let breaker = Arc::new(Breaker::new(Duration::from_secs(3_600)));
        fail(&breaker);
        fail(&breaker);
        Breaker::admit(&breaker).unwrap().succeeded();
        fail(&breaker);
        fail(&breaker);
        drop(Breaker::admit(&breaker).unwrap());
        fail(&breaker);
        let for_ms = Breaker::admit(&breaker).unwrap_err();
        assert!((3_500_000..=3_600_000).contains(&for_ms), "{for_ms}");
    }

    #[test]
    fn one_may_try_and_all_may_when_it_went_well() {
        let breaker = Arc::new(Breaker::new(Duration::ZERO));
        (0..3).for_each(|_| fail(&breaker));
        let probe = Breaker::admit(&breaker).unwrap();
        assert_eq!(Breaker::admit(&breaker).unwrap_err(), PROBE_MS);
        drop(probe);
        let probe = Breaker::admit(&breaker).expect("who gave up leaves his place");
        probe.failed();
        let probe = Breaker::admit(&breaker).unwrap();
        assert!(Breaker::admit(&breaker).is_err());
        probe.succeeded();
        let _both = (Breaker::admit(&breaker).unwrap(), Breaker::admit(&breaker).unwrap());
    }
}
