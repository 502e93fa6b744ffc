//! The way into a writer: a bounded queue of submissions, each with the place its answer goes to.
//!
//! Both dialects have one writer each that takes whatever waits, up to a bound, and commits it together. At one
//! caller that costs nothing; at many it shares the price of a durable commit among them.

use std::sync::{Arc, OnceLock};

use actum_contract::id::Tenant;
use actum_contract::limit::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX};
use actum_ledger::access::KEPT_BYTES_MAX;
use actum_ledger::draft::Submission;
use actum_ledger::journal::{JournalError, Outcome, Work};
use actum_ledger::run::{Renewed, Run, Written};
use actum_ledger::spend::{Answer as SpendAnswer, Authorization, Held, Reservation};
use tokio::sync::{mpsc, oneshot};

use crate::access::KeepRequest;
use crate::request::RunRequest;
use crate::spend::{STUCK_MAX, SpendRequest, Spent};
use crate::webhook::{WebhookDone, WebhookRequest};

/// Requests that may wait for the writer before new ones are turned away.
const QUEUE_REQUESTS_MAX: usize = 8_192;

/// Something to be written.
#[derive(Debug)]
pub(crate) enum Request {
    Append(Submission),
    Checkpoint { tenant: Tenant, size: u64, note: String },
    Run(RunRequest),
    Spend(SpendRequest),
    Keep(Box<KeepRequest>),
    Webhook(Box<WebhookRequest>),
}

impl Request {
    fn bytes(&self) -> usize {
        match self {
            Self::Append(submission) => submission.bytes(),
            Self::Checkpoint { note, .. } => note.len(),
            Self::Run(request) => request.bytes(),
            Self::Spend(request) => request.bytes(),
            Self::Keep(request) => request.bytes(),
            Self::Webhook(request) => request.bytes(),
        }
    }

    /// What it wants to have in the ledger.
    pub(crate) fn submissions(&self) -> &[Submission] {
        match self {
            Self::Append(submission) => std::slice::from_ref(submission),
            Self::Checkpoint { .. } | Self::Keep(_) | Self::Webhook(_) => &[],
            Self::Run(request) => request.entries(),
            Self::Spend(request) => request.entries(),
        }
    }
}

/// What came of it. A checkpoint that is kept is merely `Kept`.
#[derive(Debug)]
pub(crate) enum Done {
    Appended(Outcome),
    Kept,
    Written(Written),
    Claimed(Vec<Run>),
    Renewed(Vec<Renewed>),
    Spent(Spent),
    /// Whether an answer is kept now that was not there before.
    KeptAnswer(bool),
    Webhook(WebhookDone),
}

type Answer = oneshot::Sender<Result<Done, JournalError>>;

/// A batch: the requests in order, and where their answers go.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub requests: Vec<Request>,
    answers: Vec<Answer>,
}

impl Batch {
    pub(crate) fn answer(self, done: Result<Vec<Done>, JournalError>) {
        match done {
            Ok(all) => {
                debug_assert_eq!(all.len(), self.answers.len());
                for (answer, done) in self.answers.into_iter().zip(all) {
                    // A caller that no longer waits has lost its answer, not its entry.
                    let _ = answer.send(Ok(done));
                }
            }
            Err(e) => {
                for answer in self.answers {
                    let _ = answer.send(Err(e.clone()));
                }
            }
        }
    }
}

/// The callers' end.
#[derive(Debug, Clone)]
pub(crate) struct Sender(mpsc::Sender<(Request, Answer)>, Arc<OnceLock<String>>);

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Receiver(mpsc::Receiver<(Request, Answer)>, Arc<OnceLock<String>>);

pub(crate) fn queue() -> (Sender, Receiver) {
    let (sender, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
    // Why the writer has stopped, for those who ask afterwards.
    let stopped = Arc::new(OnceLock::new());
    (Sender(sender, Arc::clone(&stopped)), Receiver(receiver, stopped))
}

impl Sender {
    /// Takes its place in the queue now; the answer is awaited later.
    fn send<T: 'static>(&self, request: Request, expected: fn(Done) -> Option<T>) -> Work<'static, T> {
        let (answer, answered) = oneshot::channel();
        let sent = self.0.try_send((request, answer));
        let reason = Arc::clone(&self.1);
        let stopped = move || match reason.get() {
            Some(why) => format!("its writer has stopped: {why}; start actum again"),
            None => "its writer has stopped; start actum again".to_owned(),
        };
        Box::pin(async move {
            sent.map_err(|e| {
                JournalError::Unavailable(match e {
                    mpsc::error::TrySendError::Full(_) => "too many requests are waiting; try again".into(),
                    mpsc::error::TrySendError::Closed(_) => stopped(),
                })
            })?;
            let done = answered.await.unwrap_or_else(|_| Err(JournalError::Unavailable(stopped())))?;
            expected(done).ok_or_else(|| JournalError::Damaged("the writer gave the answer to another question".into()))
        })
    }

    pub(crate) fn append(&self, submission: Submission) -> Work<'static, Outcome> {
        self.send(Request::Append(submission), |done| match done {
            Done::Appended(outcome) => Some(outcome),
            _ => None,
        })
    }

    pub(crate) fn keep_checkpoint(&self, tenant: &Tenant, size: u64, note: &str) -> Work<'static, ()> {
        let request = Request::Checkpoint { tenant: tenant.clone(), size, note: note.to_owned() };
        self.send(request, |done| matches!(done, Done::Kept).then_some(()))
    }

    pub(crate) fn write(&self, request: Result<RunRequest, JournalError>) -> Work<'static, Written> {
        self.send_checked(request, |done| match done {
            Done::Written(written) => Some(written),
            _ => None,
        })
    }

    pub(crate) fn claim(&self, request: Result<RunRequest, JournalError>) -> Work<'static, Vec<Run>> {
        self.send_checked(request, |done| match done {
            Done::Claimed(runs) => Some(runs),
            _ => None,
        })
    }

    pub(crate) fn renew(&self, request: Result<RunRequest, JournalError>) -> Work<'static, Vec<Renewed>> {
        self.send_checked(request, |done| match done {
            Done::Renewed(renewed) => Some(renewed),
            _ => None,
        })
    }

    pub(crate) fn authorization(
        &self,
        request: Result<SpendRequest, JournalError>,
    ) -> Work<'static, SpendAnswer<Authorization>> {
        self.spend(request, |done| match done {
            Done::Spent(Spent::Authorization(answer)) => Some(*answer),
            _ => None,
        })
    }

    pub(crate) fn held(&self, request: Result<SpendRequest, JournalError>) -> Work<'static, SpendAnswer<Held>> {
        self.spend(request, |done| match done {
            Done::Spent(Spent::Held(answer)) => Some(*answer),
            _ => None,
        })
    }

    /// Gives up what is stuck, some after some.
    pub(crate) fn stuck(&self, tenant: Tenant, run: Option<String>) -> Work<'static, Vec<Reservation>> {
        let sender = self.clone();
        Box::pin(async move {
            let mut all = Vec::new();
            loop {
                let some = sender.spend(SpendRequest::stuck(&tenant, run.as_deref()), |done| match done {
                    Done::Spent(Spent::Stuck(some)) => Some(some),
                    _ => None,
                });
                let some = some.await?;
                let more = some.len() >= STUCK_MAX;
                all.extend(some);
                if !more {
                    return Ok(all);
                }
            }
        })
    }

    pub(crate) fn keep(&self, request: Result<KeepRequest, JournalError>) -> Work<'static, bool> {
        match request {
            Ok(request) if request.kept.body.len() > KEPT_BYTES_MAX => Box::pin(async { Ok(false) }),
            Ok(request) => self.send(Request::Keep(Box::new(request)), |done| match done {
                Done::KeptAnswer(is_new) => Some(is_new),
                _ => None,
            }),
            Err(e) => Box::pin(async { Err(e) }),
        }
    }

    pub(crate) fn webhook<T: Send + 'static>(
        &self,
        request: Result<WebhookRequest, JournalError>,
        expected: fn(WebhookDone) -> Option<T>,
    ) -> Work<'static, T> {
        let sent = match request {
            Ok(request) => self.send(Request::Webhook(Box::new(request)), |done| match done {
                Done::Webhook(done) => Some(done),
                _ => None,
            }),
            Err(e) => return Box::pin(async { Err(e) }),
        };
        let other = || JournalError::Damaged("the writer gave the answer to another question".into());
        Box::pin(async move { expected(sent.await?).ok_or_else(other) })
    }

    fn spend<T: Send + 'static>(
        &self,
        request: Result<SpendRequest, JournalError>,
        expected: fn(Done) -> Option<T>,
    ) -> Work<'static, T> {
        match request {
            Ok(request) => self.send(Request::Spend(request), expected),
            Err(e) => Box::pin(async { Err(e) }),
        }
    }

    fn send_checked<T: Send + 'static>(
        &self,
        request: Result<RunRequest, JournalError>,
        expected: fn(Done) -> Option<T>,
    ) -> Work<'static, T> {
        match request {
            Ok(request) => self.send(Request::Run(request), expected),
            Err(e) => Box::pin(async { Err(e) }),
        }
    }
}

impl Receiver {
    /// The writer stops for good: what comes later is answered with the reason.
    pub(crate) fn stop_because(&self, why: &JournalError) {
        let _ = self.1.set(why.to_string());
    }

    /// The next batch, for a writer that is a thread; nothing once all callers are gone.
    pub(crate) fn next_blocking(&mut self) -> Option<Batch> {
        let first = self.0.blocking_recv()?;
        Some(self.fill(first))
    }

    /// The next batch, for a writer that is a task.
    pub(crate) async fn next(&mut self) -> Option<Batch> {
        let first = self.0.recv().await?;
        Some(self.fill(first))
    }

    fn fill(&mut self, first: (Request, Answer)) -> Batch {
        let mut batch = Batch::default();
        let (mut next, mut bytes) = (Some(first), 0);
        while let Some((request, answer)) = next {
            bytes += request.bytes();
            batch.requests.push(request);
            batch.answers.push(answer);
            let room = batch.requests.len() < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES_MAX;
            next = if room { self.0.try_recv().ok() } else { None };
        }
        batch
    }
}
