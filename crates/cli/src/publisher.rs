//! The process that finishes publications, started and served: `workspace` says what it does, `sandbox` how it is detached.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;

use actum_sandbox::Detached;
use actum_workspace::{PublishProcess, PublishReport, PublishRequest, Publisher};

/// Starts publications in processes of their own.
struct DetachedPublisher;

struct Started(Detached);

impl Publisher for DetachedPublisher {
    fn start(&self, request: &PublishRequest, lock: BorrowedFd<'_>) -> io::Result<Box<dyn PublishProcess>> {
        Ok(Box::new(Started(Detached::start(request, lock, &environment())?)))
    }
}

impl PublishProcess for Started {
    fn finish(self: Box<Self>) -> io::Result<Option<PublishReport>> {
        actum_contract::crash::pass(POINTS, "publish.handed");
        self.0.finish()
    }

    fn abandon(self: Box<Self>) {
        self.0.abandon();
    }
}

/// Places where tests stop the caller while the process lives.
pub(crate) const POINTS: &[&str] = &["publish.handed"];

/// The process has places of its own where tests stop it; nothing else of our environment is its concern.
fn environment() -> Vec<(&'static str, OsString)> {
    match cfg!(debug_assertions) {
        true => std::env::var_os("ACTUM_CRASH_AT").into_iter().map(|at| ("ACTUM_CRASH_AT", at)).collect(),
        false => Vec::new(),
    }
}

/// If this process was started to finish a publication, does that and returns the exit code.
pub(crate) fn serve(arguments: &[OsString]) -> Option<u8> {
    actum_sandbox::serve_detached(arguments, |request: PublishRequest| {
        #[cfg(debug_assertions)]
        crate::stop_at_crash_point();
        actum_workspace::finish_publication(&request)
    })
}

/// From now on publications survive this process.
pub(crate) fn install() {
    actum_workspace::install_publisher(Box::new(DetachedPublisher));
}
