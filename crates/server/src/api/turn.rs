//! Threads for blocking work: so many at once of each kind, some requests wait for one, and the others hear that there
//! is none.

use std::time::Duration;

use tokio::time::timeout;

use super::Bounds;
use super::answer::{Reply, busy, failed};
use super::share::{Share, Shares, Whose};

/// One kind of work.
pub(crate) struct Turns {
    turns: Shares,
    places: Shares,
    patience: Duration,
}

impl Turns {
    pub(crate) fn new(number: usize, bounds: &Bounds) -> Self {
        let places = bounds.waiting_max;
        Self {
            turns: Shares::new(number),
            // More of them than of the threads: whoever asks for much at once is to wait, not to fail.
            places: Shares::with(places, places * 7 / 8, places * 3 / 4),
            patience: bounds.turn,
        }
    }

    /// In nobody's share. Whoever stops waiting before the work has begun has asked for nothing; once it has begun it comes to its end.
    pub(crate) async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Reply> {
        self.on_a_thread(None, work).await
    }

    /// The same, on threads that are counted as those of a caller.
    pub(crate) async fn work_for<T: Send + 'static>(
        &self,
        whose: &Whose,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Reply> {
        self.on_a_thread(Some(whose), work).await
    }

    async fn on_a_thread<T: Send + 'static>(
        &self,
        whose: Option<&Whose>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Reply> {
        let turn = self.turn(whose).await?;
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        work.await.map_err(|_| failed())
    }

    async fn turn(&self, whose: Option<&Whose>) -> Result<Share, Reply> {
        if let Some(turn) = self.turns.try_take(whose) {
            return Ok(turn);
        }
        let _place = self.places.try_take(whose).ok_or_else(busy)?;
        match timeout(self.patience, self.turns.take(whose, 1)).await {
            Ok(turn) => turn.map_err(|_| failed()),
            Err(_) => Err(busy()),
        }
    }

    /// Returns when nothing is under way any more.
    pub(crate) async fn settled(&self) {
        self.turns.settled().await;
    }
}
