//! Connections whose caller has not shown a token. They have a part of all connections; if one more comes, the oldest of them
//! ends, so a flood of them keeps no caller with a token out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

#[derive(Debug)]
pub(crate) struct Strangers {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// The oldest first.
    all: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl Strangers {
    /// Of all connections, half may be of callers who have not shown a token.
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { max: (connections_max / 2).max(1), open: Mutex::default() })
    }

    /// Takes one more in. The receiver hears when it has to end; it hears an error once its caller is known.
    pub(crate) fn enter(self: &Arc<Self>) -> (Stranger, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let id = open.next;
        open.next += 1;
        open.all.push_back((id, sender));
        if open.all.len() > self.max
            && let Some((_, oldest)) = open.all.pop_front()
        {
            // One that is over already needs no telling.
            oldest.send(()).unwrap_or_default();
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
        open.all.retain(|(id, _)| *id != self.id);
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
        assert_eq!(oldest.try_recv(), Ok(()));
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
    }
}
