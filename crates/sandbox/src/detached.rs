//! A process of its own session that finishes one piece of work even if its caller dies.
//!
//! It is this binary, started again. The caller hands it a request and an open, locked file, waits until it is ready,
//! and lets it begin. If the caller dies instead, it begins all the same: the work itself decides whether there is
//! anything to do. Signals of the caller's terminal, session or service do not reach it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{channel, sys};

/// The first argument of the process; no command of the user's can be called so.
const MARK: &str = "--actum-detached";

/// Signals that ask a process to end. The work is short and is not left half done.
const ENDING: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE, libc::SIGTSTP];

#[derive(Debug, Serialize, Deserialize)]
struct Ready {}

#[derive(Debug, Serialize, Deserialize)]
struct Begin {}

/// A detached process that is ready to begin.
#[derive(Debug)]
pub struct Detached {
    line: UnixStream,
    process: Child,
}

impl Detached {
    /// Starts the process and waits until it is ready. `file` is kept open by it until it ends, and so is a lock on it.
    pub fn start(request: &impl Serialize, file: BorrowedFd<'_>, env: &[(&str, OsString)]) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        // By its open file: the binary may have been replaced since it was started.
        let mut command = Command::new("/proc/self/exe");
        command.arg(MARK).env_clear().envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).current_dir("/");
        // What it has to say goes back over the line; only tests look at its errors.
        if env.is_empty() {
            command.stderr(Stdio::null());
        }
        let process = command.spawn()?;
        // It keeps the other end of the line open: while it lives, the end of the process would not be seen.
        drop(command);
        let this = Self { line, process };
        let ready = channel::send(&this.line, request, &[file])
            .and_then(|()| channel::receive::<Ready>(&this.line))
            .and_then(|ready| ready.ok_or_else(|| io::Error::other("the detached process ended before it began")));
        match ready {
            Ok(_) => Ok(this),
            Err(e) => {
                this.abandon();
                Err(e)
            }
        }
    }

    /// Lets it begin, and waits for its report. None if it died.
    pub fn finish<T: DeserializeOwned>(mut self) -> io::Result<Option<T>> {
        channel::send(&self.line, &Begin {}, &[])?;
        let report = channel::receive::<T>(&self.line).ok().flatten().map(|(report, _)| report);
        self.process.wait()?;
        Ok(report)
    }

    /// Lets it end without having begun: its work finds nothing to do.
    pub fn abandon(self) {
        let Self { line, mut process } = self;
        drop(line);
        let _ = process.wait();
    }
}

/// If this process was started as a detached one, does its work and returns the exit code. Must be called first thing.
pub fn serve<T: DeserializeOwned, R: Serialize>(arguments: &[OsString], work: impl FnOnce(T) -> R) -> Option<u8> {
    if arguments.get(1).is_none_or(|mark| mark != MARK) {
        return None;
    }
    Some(u8::from(try_serve(work).is_err()))
}

fn try_serve<T: DeserializeOwned, R: Serialize>(work: impl FnOnce(T) -> R) -> io::Result<()> {
    // A session of its own: what is sent to the caller's group or terminal does not arrive here.
    let _ = rustix::process::setsid();
    // Files that were meant for programs of the caller's, locks of stages among them.
    sys::close_from(3);
    let _blocked = sys::signal_file(&ENDING)?;
    let line = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let Some((request, files)) = channel::receive::<T>(&line)? else { return Ok(()) };
    // Without the file there is no lock: then nothing may be done.
    if files.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    channel::send(&line, &Ready {}, &[])?;
    // The word to begin, or the caller's end.
    let _ = channel::receive::<Begin>(&line);
    let report = work(request);
    drop(files);
    // There may be no caller any more.
    let _ = channel::send(&line, &report, &[]);
    Ok(())
}
