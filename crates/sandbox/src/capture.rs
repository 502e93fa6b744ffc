//! Watching a program to its end while its output is taken in: bounded in memory, however much there is of it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use actum_contract::digest::{Blake3, Digest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cell::Report;
use crate::spawner::{Files, Listeners, News, Running};

/// The program's end of three pipes, and ours.
#[derive(Debug)]
pub struct Pipes {
    input: Option<File>,
    output: Option<File>,
    errors: Option<File>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Output,
    Errors,
}

/// How much is kept of each stream.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub output_bytes: usize,
    pub errors_bytes: usize,
}

/// What came out of a stream.
#[derive(Debug)]
pub struct Captured {
    /// The beginning, as far as there was room.
    pub kept: Vec<u8>,
    pub bytes: u64,
    /// BLAKE3 of all of it.
    pub digest: Digest,
}

impl Captured {
    pub fn is_cut(&self) -> bool {
        (self.kept.len() as u64) < self.bytes
    }
}

/// How it ended, with what came out.
#[derive(Debug)]
pub struct Watched {
    pub report: Report,
    pub output: Captured,
    pub errors: Captured,
}

/// After the end, output that is still in the pipes arrives at once; nobody is left to write more.
const DRAIN_WITHIN: Duration = Duration::from_millis(500);

/// What a cell may take beyond its deadline and grace until it counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);

impl Pipes {
    /// Without input the program reads from nowhere: many take a pipe for something to be waited for.
    pub fn new(has_input: bool) -> io::Result<(Self, Files)> {
        let (input, ours_in) = io::pipe()?;
        let (ours_out, output) = io::pipe()?;
        let (ours_err, errors) = io::pipe()?;
        let file = |end: OwnedFd| Some(File::from(end));
        let pipes = Self { input: file(ours_in.into()), output: file(ours_out.into()), errors: file(ours_err.into()) };
        for end in [&pipes.input, &pipes.output, &pipes.errors].into_iter().flatten() {
            rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::NONBLOCK)?;
        }
        let input = if has_input { OwnedFd::from(input) } else { File::open("/dev/null")?.into() };
        Ok((pipes, Files { input, output: output.into(), errors: errors.into() }))
    }

    /// Takes out input and output, for somebody who deals with them himself.
    pub(crate) fn talk(&mut self) -> Option<(OwnedFd, OwnedFd)> {
        Some((self.input.take()?.into(), self.output.take()?.into()))
    }
}

struct Taking {
    room: usize,
    kept: Vec<u8>,
    bytes: u64,
    hash: Blake3,
}

impl Taking {
    fn new(room: usize) -> Self {
        Self { room, kept: Vec::new(), bytes: 0, hash: Blake3::default() }
    }

    /// The part of the piece that is kept.
    fn take<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        self.hash.update(piece);
        self.bytes += piece.len() as u64;
        let kept = &piece[..piece.len().min(self.room - self.kept.len())];
        self.kept.extend_from_slice(kept);
        kept
    }

    fn finish(self) -> Captured {
        Captured { kept: self.kept, bytes: self.bytes, digest: self.hash.finish() }
    }
}

/// Feeds the input, takes in the output, and waits for the end. `kept` sees each piece that is kept as it comes; `listening`
/// gets the listeners of a cell that can reach us.
pub fn watch(
    mut running: Running,
    pipes: Pipes,
    input: &[u8],
    room: Room,
    limit: Option<Duration>,
    kept: &mut dyn FnMut(Stream, &[u8]),
    listening: &mut dyn FnMut(Listeners),
) -> io::Result<Watched> {
    let mut pipes = pipes;
    let mut streams = [Taking::new(room.output_bytes), Taking::new(room.errors_bytes)];
    let mut left = input;
    let mut stuck_at = limit.map(|limit| Instant::now() + limit + STUCK_AFTER);
    let report = loop {
        if left.is_empty() {
            pipes.input = None;
        }
        let due = running.tend().unwrap_or(Duration::from_secs(1));
        let happened = flow(&mut pipes, Some(&running), due, &mut left, &mut streams, kept)?;
        if happened.signals {
            running.heed_signals();
            // From here on there is a limit for all of them.
            let at = Instant::now() + running.grace() + STUCK_AFTER;
            stuck_at = Some(stuck_at.map_or(at, |already| already.min(at)));
        }
        if happened.line {
            match running.hear()? {
                News::Started => {}
                News::Listening(listeners) => listening(listeners),
                News::Ended(report) => break report,
            }
        }
        if stuck_at.is_some_and(|at| Instant::now() > at) {
            running.kill();
        }
    };
    pipes.input = None;
    let until = Instant::now() + DRAIN_WITHIN;
    while (pipes.output.is_some() || pipes.errors.is_some()) && Instant::now() < until {
        flow(&mut pipes, None, Duration::from_millis(50), &mut left, &mut streams, kept)?;
    }
    let [output, errors] = streams.map(Taking::finish);
    Ok(Watched { report, output, errors })
}

/// Moves what can be moved.
fn flow(
    pipes: &mut Pipes,
    running: Option<&Running>,
    patience: Duration,
    left: &mut &[u8],
    streams: &mut [Taking; 2],
    kept: &mut dyn FnMut(Stream, &[u8]),
) -> io::Result<Happened> {
    let mut asked: Vec<PollFd<'_>> = Vec::new();
    let mut roles = Vec::new();
    if let Some(running) = running {
        asked.push(PollFd::new(running.line(), PollFlags::IN));
        roles.push(Role::Line);
        if let Some(signals) = running.signals() {
            asked.push(PollFd::new(signals, PollFlags::IN));
            roles.push(Role::Signals);
        }
    }
    for (file, role, flags) in [
        (&pipes.output, Role::Output, PollFlags::IN),
        (&pipes.errors, Role::Errors, PollFlags::IN),
        (&pipes.input, Role::Input, PollFlags::OUT),
    ] {
        if let Some(file) = file {
            asked.push(PollFd::new(file, flags));
            roles.push(role);
        }
    }
    let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    match poll(&mut asked, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    let happened: Vec<Role> =
        asked.iter().zip(&roles).filter(|(file, _)| !file.revents().is_empty()).map(|(_, role)| *role).collect();
    drop(asked);
    for role in &happened {
        match role {
            Role::Line | Role::Signals => {}
            Role::Output => drain(&mut pipes.output, &mut streams[0], &mut |piece| kept(Stream::Output, piece)),
            Role::Errors => drain(&mut pipes.errors, &mut streams[1], &mut |piece| kept(Stream::Errors, piece)),
            Role::Input => feed(&mut pipes.input, left),
        }
    }
    Ok(Happened { line: happened.contains(&Role::Line), signals: happened.contains(&Role::Signals) })
}

/// What is for others to deal with.
struct Happened {
    line: bool,
    signals: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Line,
    Signals,
    Output,
    Errors,
    Input,
}

/// As much as a pipe holds at once, so that one stream does not keep the others waiting.
const PIECE_BYTES: usize = 64 << 10;

fn drain(end: &mut Option<File>, taking: &mut Taking, kept: &mut dyn FnMut(&[u8])) {
    let Some(file) = end else { return };
    let mut piece = [0; PIECE_BYTES];
    match file.read(&mut piece) {
        Ok(0) => *end = None,
        Ok(length) => {
            let piece = taking.take(&piece[..length]);
            if !piece.is_empty() {
                kept(piece);
            }
        }
        Err(e) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&e.kind()) => {}
        Err(_) => *end = None,
    }
}

fn feed(end: &mut Option<File>, left: &mut &[u8]) {
    let Some(file) = end else { return };
    match file.write(&left[..left.len().min(PIECE_BYTES)]) {
        Ok(length) => *left = &left[length..],
        Err(e) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&e.kind()) => {}
        // Nobody reads it any more.
        Err(_) => *left = &[],
    }
}
