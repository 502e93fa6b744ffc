//! Threads for blocking work: so many at once of each kind, some requests wait for one, and the others hear that there
//! is none.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Bounds;
use super::answer::{Reply, busy, failed};

/// One kind of work.
pub(crate) struct Turns {
    turns: Arc<Semaphore>,
    number: u32,
    places: Semaphore,
    patience: Duration,
}

impl Turns {
    pub(crate) fn new(number: usize, bounds: &Bounds) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(number)),
            number: u32::try_from(number).unwrap_or(u32::MAX),
            places: Semaphore::new(bounds.waiting_max),
            patience: bounds.turn,
        }
    }

    /// Whoever stops waiting before the work has begun has asked for nothing; once it has begun it comes to its end.
    pub(crate) async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Reply> {
        let turn = self.turn().await?;
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        work.await.map_err(|_| failed())
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Reply> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(turn);
        }
        let _place = self.places.try_acquire().map_err(|_| busy())?;
        match timeout(self.patience, Arc::clone(&self.turns).acquire_owned()).await {
            Ok(turn) => turn.map_err(|_| failed()),
            Err(_) => Err(busy()),
        }
    }

    /// Returns when nothing is under way any more.
    pub(crate) async fn settled(&self) {
        // An error would mean that nobody can take a turn either.
        self.turns.acquire_many(self.number).await.map(drop).unwrap_or_default();
    }
}
