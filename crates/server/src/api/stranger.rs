//! Connections whose caller has not shown a token. They have a part of all connections. If one more comes and the oldest has had a
//! moment to show a token, that one ends, so a flood of them keeps no caller with a token out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a caller always has to show a token. A burst of callers with tokens is no flood.
const GRACE: Duration = Duration::from_millis(250);
/// How often it is looked whether one more may enter.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Strangers {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// The oldest first.
    all: VecDeque<Entered>,
}

#[derive(Debug)]
struct Entered {
    id: u64,
    at: Instant,
    cut: oneshot::Sender<()>,
}

impl Strangers {
    /// Of all connections, half may be of callers who have not shown a token.
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { max: (connections_max / 2).max(1), open: Mutex::default() })
    }

    /// Waits until one more may enter: there is room, or the oldest has had its time.
    pub(crate) async fn room(&self) {
        while !self.has_room() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn has_room(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all.len() < self.max || open.all.front().is_none_or(|oldest| oldest.at.elapsed() >= GRACE)
    }

    /// Takes one more in. The receiver hears when it has to end; it hears an error once its caller is known.
    pub(crate) fn enter(self: &Arc<Self>) -> (Stranger, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let id = open.next;
        open.next += 1;
        open.all.push_back(Entered { id, at: Instant::now(), cut: sender });
        if open.all.len() > self.max
            && let Some(oldest) = open.all.pop_front()
        {
            // One that is over already needs no telling.
            oldest.cut.send(()).unwrap_or_default();
        }
        (Stranger { strangers: Arc::clone(self), id }, receiver)
    }
}

/// A connection whose caller is not known, until this is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    strangers: Arc<Strangers>,
    id: u64,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut open = self.strangers.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all.retain(|entered| entered.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ends_when_there_are_too_many_and_known_ones_stay() {
        let strangers = Strangers::new(4);
        let (known, mut first) = strangers.enter();
        drop(known);
        assert!(first.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Closed));
        let (_a, mut oldest) = strangers.enter();
        let (_b, mut second) = strangers.enter();
        assert!(oldest.try_recv().is_err());
        let (_c, mut third) = strangers.enter();
        // The server lets it in only once the oldest has had its time.
        assert_eq!(oldest.try_recv(), Ok(()));
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
    }

    #[test]
    fn a_burst_waits_until_callers_are_known_or_had_their_time() {
        let strangers = Strangers::new(4);
        let (known, _first) = strangers.enter();
        let (_b, _second) = strangers.enter();
        assert!(!strangers.has_room(), "both are new");
        drop(known);
        assert!(strangers.has_room());
        let (_c, _third) = strangers.enter();
        strangers.open.lock().unwrap().all[0].at -= GRACE;
        assert!(strangers.has_room(), "the oldest had its time");
    }
}
