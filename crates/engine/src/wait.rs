//! Waiting for the store from threads: effects block, and so does whoever performs them.

use std::pin::Pin;
use std::sync::Arc;

use actum_ledger::journal::{Journal, JournalError, Work};
use actum_ledger::run::Runs;
use tokio::runtime::{Builder, Runtime};

/// The store, asked from threads.
#[derive(Clone)]
pub struct Waiter {
    runtime: Arc<Runtime>,
    pub runs: Arc<dyn Runs>,
    pub journal: Arc<dyn Journal>,
}

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
        Self { runtime, runs, journal }
    }

    /// The same for what cannot fail.
    pub fn block<T>(&self, work: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
        self.runtime.block_on(work)
    }

    pub fn wait<T>(&self, work: Work<'_, T>) -> Result<T, JournalError> {
        self.runtime.block_on(work)
    }
}
