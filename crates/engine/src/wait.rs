//! Waiting for the store from threads: effects block, and so does whoever performs them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actum_contract::id::Tenant;
use actum_contract::limit::RUN_CLOCK_SKEW_MAX_MS;
use actum_ledger::journal::{Journal, JournalError, StoreTime, Work};
use actum_ledger::run::Runs;
use jiff::{SignedDuration, Timestamp};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// This process's clock, measured against the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredClock {
    /// The time of the store: the reference for all that rules compare.
    pub store: StoreTime,
    /// How far this process is ahead of the store's clock; negative if it is behind.
    pub skew_ms: i64,
    /// What the measurement cannot tell: half of the time it took.
    pub uncertainty_ms: i64,
}

impl MeasuredClock {
    /// How far the ledger's last entry is ahead of the store's own clock: that went back since.
    pub fn log_ahead_ms(&self) -> i64 {
        let ahead = self.store.last.map_or(SignedDuration::ZERO, |last| last.duration_since(self.store.clock));
        i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX).max(0)
    }

    /// Fails if this process must not execute runs: its clock is certainly further from the store's than the bound.
    pub fn check(&self) -> Result<(), JournalError> {
        if self.skew_ms.saturating_abs().saturating_sub(self.uncertainty_ms) <= RUN_CLOCK_SKEW_MAX_MS {
            return Ok(());
        }
        let direction = if self.skew_ms > 0 { "ahead of" } else { "behind" };
        let seconds = |ms: i64| SignedDuration::from_millis(ms.saturating_abs());
        Err(JournalError::ClockSkew(format!(
            "the clock of this process is {:#} {direction} the store's; runs are executed within {:#}",
            seconds(self.skew_ms),
            seconds(RUN_CLOCK_SKEW_MAX_MS)
        )))
    }
}

/// The store, asked from threads.
#[derive(Clone)]
pub struct Waiter {
    runtime: Arc<Runtime>,
    /// Whether this process was asked to end.
    ending: watch::Sender<bool>,
    /// Whether an answer was not waited for.
    has_given_up: Arc<AtomicBool>,
    pub runs: Arc<dyn Runs>,
    pub journal: Arc<dyn Journal>,
}

/// How long each answer of the store is waited for once this process was asked to end.
const ANSWER_WAIT_WHILE_ENDING: Duration = Duration::from_secs(5);

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiter")
    }
}

impl Waiter {
    /// A runtime on which connections to the store live.
    pub fn runtime() -> std::io::Result<Arc<Runtime>> {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().map(Arc::new)
    }

    pub fn new(runtime: Arc<Runtime>, runs: Arc<dyn Runs>, journal: Arc<dyn Journal>) -> Self {
        Self { runtime, ending: watch::Sender::new(false), has_given_up: Arc::default(), runs, journal }
    }

    /// This process was asked to end: a store that does not answer is not waited for any longer.
    pub fn set_ending(&self) {
        self.ending.send_replace(true);
    }

    /// Whether the store did not answer this process before it ended: what it holds may still be in its name.
    pub fn has_given_up(&self) -> bool {
        self.has_given_up.load(Ordering::SeqCst)
    }

    /// Measures the clock of this process against the store's.
    pub fn measure_clock(&self, tenant: &Tenant) -> Result<MeasuredClock, JournalError> {
        let (before, began) = (Timestamp::now(), Instant::now());
        let store = self.wait(self.journal.time(tenant))?;
        let half = began.elapsed() / 2;
        let ours = before.saturating_add(half).unwrap_or(before);
        let ms = |span: SignedDuration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let uncertainty_ms = i64::try_from(half.as_millis()).unwrap_or(i64::MAX);
        Ok(MeasuredClock { store, skew_ms: ms(ours.duration_since(store.clock)), uncertainty_ms })
    }

    /// Returns the store's time. Fails if the clock of this process is too far from it to execute runs.
    pub fn checked_time(&self, tenant: &Tenant) -> Result<Timestamp, JournalError> {
        let measured = self.measure_clock(tenant)?;
        measured.check()?;
        Ok(measured.store.now())
    }

    /// Returns the store's time.
    pub fn store_time(&self, tenant: &Tenant) -> Result<Timestamp, JournalError> {
        Ok(self.wait(self.journal.time(tenant))?.now())
    }

    /// The same for what cannot fail.
    pub fn block<T>(&self, work: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
        self.runtime.block_on(work)
    }

    pub fn wait<T>(&self, work: Work<'_, T>) -> Result<T, JournalError> {
        let mut ending = self.ending.subscribe();
        self.runtime.block_on(async {
            let given_up = async {
                // Fails only if there is no sender, which is here.
                let _ = ending.wait_for(|is_ending| *is_ending).await;
                tokio::time::sleep(ANSWER_WAIT_WHILE_ENDING).await;
            };
            tokio::select! {
                biased;
                answer = work => answer,
                () = given_up => {
                    self.has_given_up.store(true, Ordering::SeqCst);
                    Err(JournalError::Unavailable("the store does not answer, and this process ends".into()))
                }
            }
        })
    }
}
