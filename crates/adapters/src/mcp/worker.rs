//! The one thread on which all connections to servers live, and the way to it: callers stay blocking.

use std::fmt;
use std::pin::Pin;
use std::sync::mpsc as answers;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use crate::result::{Problem, Stage};

/// Pieces of work that wait to be begun, and that are under way at once.
const WAITING_MAX: usize = 256;
const UNDER_WAY_MAX: usize = 1_024;

/// How often a caller who waits is asked whether it still wants the answer.
const TICK: Duration = Duration::from_millis(20);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct Worker {
    work: mpsc::Sender<Work>,
    thread: JoinHandle<()>,
}

/// What became of a piece of work.
pub(super) enum Came<T> {
    Done(T),
    Late,
    Stopped,
    /// The thread is gone, and the work with it.
    Gone,
}

impl fmt::Debug for Worker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Worker").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl Worker {
    pub(super) fn start() -> Result<Self, Problem> {
        let bad = |why: std::io::Error| Problem::new(Stage::Call, format!("no thread for MCP servers: {why}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(bad)?;
        let (work, waiting) = mpsc::channel(WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("mcp-servers".into())
            .spawn(move || runtime.block_on(serve(waiting)))
            .map_err(bad)?;
        Ok(Self { work, thread })
    }

    /// Begins a piece of work; it is dropped where it stands when `until` has passed or its ticket says so.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        until: Instant,
    ) -> Result<Ticket<T>, Problem> {
        let (answer, answers) = answers::sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let work = async move {
            let came = tokio::select! {
                biased;
                done = work => Came::Done(done),
                // A ticket that was dropped says the same as one that was stopped.
                _ = stopped => Came::Stopped,
                () = tokio::time::sleep_until(until.into()) => Came::Late,
            };
            // Nobody waits any more: nothing to be done.
            drop(answer.send(came));
        };
        self.work.try_send(Box::pin(work)).map_err(|_| {
            Problem::new(Stage::Call, format!("more than {WAITING_MAX} calls of MCP servers wait already"))
        })?;
        Ok(Ticket { answers, stop: Some(stop) })
    }

    /// Whether its thread has ended, which only a panic can do.
    pub(super) fn is_gone(&self) -> bool {
        self.work.is_closed()
    }

    /// Drops everything that is under way.
    pub(super) fn end(self) {
        drop(self.work);
        // A panic on that thread has been printed; callers were told by their tickets.
        drop(self.thread.join());
    }
}

/// The right to an answer.
pub(super) struct Ticket<T> {
    answers: answers::Receiver<Came<T>>,
    stop: Option<oneshot::Sender<()>>,
}

impl<T> Ticket<T> {
    pub(super) fn wait(mut self, stop: &dyn Fn() -> bool) -> Came<T> {
        loop {
            match self.answers.recv_timeout(TICK) {
                Ok(came) => return came,
                Err(answers::RecvTimeoutError::Disconnected) => return Came::Gone,
                Err(answers::RecvTimeoutError::Timeout) => {
                    if self.stop.is_some() && stop() {
                        drop(self.stop.take());
                    }
                }
            }
        }
    }
}

async fn serve(mut waiting: mpsc::Receiver<Work>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            next = waiting.recv(), if under_way.len() < UNDER_WAY_MAX => match next {
                Some(work) => under_way.push(work),
                None => return,
            },
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
        }
    }
}
