//! A program in a cell with which somebody talks for longer: its input and output are his, everything else is looked after
//! here until the end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::capture::{Captured, Pipes, Room, watch};
use crate::cell::{Cell, Report};
use crate::spawner::{Listeners, Signals, Spawner, Stopper};

/// A program under way. When this is dropped, the program is asked to end, then ended, and it is waited for that.
#[derive(Debug)]
pub struct Session {
    pipes: Option<(OwnedFd, OwnedFd)>,
    asking: Arc<Asking>,
    watching: Option<JoinHandle<io::Result<(Report, Captured)>>>,
}

/// Asks once: asked twice, a cell is ended without the time it has for that.
#[derive(Debug)]
struct Asking {
    stopper: Stopper,
    has_asked: AtomicBool,
}

impl Asking {
    fn ask(&self) {
        if !self.has_asked.swap(true, Ordering::Relaxed) {
            self.stopper.stop();
        }
    }
}

impl Session {
    /// Starts a program. The time it may take is that of the whole session; without one it lasts until it is stopped. Of what
    /// it says on its errors the beginning is kept. `listening` gets the listeners of a cell that can reach us, on a thread
    /// that looks after the cell: it must not wait for the program.
    pub fn start(
        spawner: &Spawner,
        cell: Cell,
        errors_bytes: usize,
        listening: impl FnOnce(Listeners) + Send + 'static,
    ) -> io::Result<Self> {
        let (mut pipes, files) = Pipes::new(true)?;
        let (signals, stopper) = Signals::own()?;
        let limit = cell.limits.timeout_ms.map(|ms| Duration::from_millis(ms.saturating_add(cell.limits.grace_ms)));
        let ours = pipes.talk();
        // If there is no thread for it, this goes with what the thread would have had, and the cell with it.
        let running = spawner.run(cell, files)?.ended_by(signals);
        let room = Room { output_bytes: 0, errors_bytes };
        let mut listening = Some(listening);
        let watching = std::thread::Builder::new().name("session".into()).spawn(move || {
            let mut hand_over = |listeners| {
                if let Some(listening) = listening.take() {
                    listening(listeners);
                }
            };
            watch(running, pipes, &[], room, limit, &mut |_, _| {}, &mut hand_over)
                .map(|watched| (watched.report, watched.errors))
        })?;
        let asking = Arc::new(Asking { stopper, has_asked: AtomicBool::new(false) });
        Ok(Self { pipes: ours, asking, watching: Some(watching) })
    }

    /// To the program's input and from its output, once. Neither waits (`O_NONBLOCK`), and no other program inherits them.
    pub fn take_pipes(&mut self) -> Option<(OwnedFd, OwnedFd)> {
        self.pipes.take()
    }

    /// Whether it has ended, by itself or not. Then `end` does not wait.
    pub fn is_over(&self) -> bool {
        self.watching.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the program to end; after the time of its grace it is ended. Does not wait for that.
    pub fn stop(&self) {
        self.asking.ask();
    }

    /// The same, for somebody else.
    pub fn stopping(&self) -> impl Fn() + Send + Sync + 'static {
        let asking = Arc::clone(&self.asking);
        move || asking.ask()
    }

    /// Waits for the end; pipes that nobody has taken are closed before. How it ended, and what it said on its errors. An
    /// error means that the cell was ended by somebody else.
    pub fn end(mut self) -> io::Result<(Report, Captured)> {
        self.pipes = None;
        let ended = self.watching.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_else(|| Err(io::Error::other("the cell's supervisor ended")))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.take() {
            self.asking.ask();
            let _ = watching.join();
        }
    }
}
