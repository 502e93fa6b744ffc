//! Taking turns: so many questions at once, each on a thread for blocking work, and the others wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actum_api::error;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bridge::{Call, Refused, Tools};

/// Calls under way at once. One whose caller has left counts until it is over.
pub const CALLS_MAX: usize = 16;
/// Looks into the registry at once; apart from the calls, so that one can look while all calls are taken.
const LOOKS_MAX: usize = 4;
/// Questions that wait for their turn.
const WAITING_MAX: usize = 256;
/// Threads for blocking work: one for each turn, and two for standard input and output.
const THREADS_MAX: usize = CALLS_MAX + LOOKS_MAX + 2;

pub(crate) struct Turns {
    tools: Arc<dyn Tools>,
    calls: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    places: Semaphore,
}

/// One thread for everything that does not block: whoever floods us keeps one processor busy, not all of them.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .thread_name("actum-tool")
        .build()
}

impl Turns {
    pub(crate) fn new(tools: Arc<dyn Tools>) -> Self {
        Self {
            tools,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            looks: Arc::new(Semaphore::new(LOOKS_MAX)),
            places: Semaphore::new(WAITING_MAX),
        }
    }

    pub(crate) async fn list(&self, level: Option<String>, tool: Option<String>) -> Result<Value, Refused> {
        let level = level.unwrap_or_else(|| "L0".to_owned());
        self.look(move |tools| tools.list(&level, tool.as_deref())).await
    }

    pub(crate) async fn show(&self, id: String, level: Option<String>) -> Result<Value, Refused> {
        let level = level.unwrap_or_else(|| "L2".to_owned());
        self.look(move |tools| tools.show(&id, &level)).await
    }

    async fn look(
        &self,
        question: impl FnOnce(&dyn Tools) -> Result<Value, Refused> + Send + 'static,
    ) -> Result<Value, Refused> {
        let turn = self.turn(&self.looks).await?;
        let tools = Arc::clone(&self.tools);
        on_a_thread(turn, move || question(&*tools)).await
    }

    /// Whoever stops waiting for this has gone away, and the call is told.
    pub(crate) async fn call(&self, call: Call) -> Result<Value, Refused> {
        let turn = self.turn(&self.calls).await?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let (tools, flag) = (Arc::clone(&self.tools), Arc::clone(&cancelled));
        let caller = Caller { cancelled, is_answered: false };
        let answer = on_a_thread(turn, move || tools.call(call, &flag)).await;
        caller.answered();
        answer
    }

    async fn turn(&self, turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Refused> {
        let busy = |_| {
            let hint = Some("Wait for the answers to earlier calls, then ask again.");
            Refused::named(error::EXECUTION_REFUSED, "too many questions wait already", &Value::Null, hint)
                .with_status(429)
        };
        let _place = self.places.try_acquire().map_err(busy)?;
        Arc::clone(turns).acquire_owned().await.map_err(|_| failed())
    }

    /// Returns when nothing is under way any more.
    pub(crate) async fn settled(&self) {
        for (turns, number) in [(&self.calls, CALLS_MAX), (&self.looks, LOOKS_MAX)] {
            let all = u32::try_from(number).unwrap_or(u32::MAX);
            // An error would mean that nobody can take a turn either.
            turns.acquire_many(all).await.map(drop).unwrap_or_default();
        }
    }
}

/// The turn is over with the work, not with the interest in it.
async fn on_a_thread(
    turn: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<Value, Refused> + Send + 'static,
) -> Result<Value, Refused> {
    let work = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    work.await.unwrap_or_else(|_| Err(failed()))
}

fn failed() -> Refused {
    Refused::named(error::INTERNAL, "the question could not be answered", &Value::Null, None)
}

struct Caller {
    cancelled: Arc<AtomicBool>,
    is_answered: bool,
}

impl Caller {
    fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.is_answered {
            self.cancelled.store(true, Ordering::Release);
        }
    }
}
