//! The helper that makes cells, and the handle on it. It is a process of its own, because copying a process costs as much
//! as it has memory, and only one with a single thread can be copied: neither is true of who uses cells.
//!
//! Nothing outlives the handle: when it is dropped, or its owner is killed, the helper ends every cell and itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::WaitOptions;
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Ended, Network, Report, Source, Used};
use crate::channel;
use crate::init::{Enter, Said};
use crate::slot::{Nursery, Slot};
use crate::sys;

/// The first argument of the helper; no command of the user's can be called so.
const MARK: &str = "--actum-spawner";

/// How long nothing is made ahead after a cell was started: most have ended by then.
const REFILL_AFTER: Duration = Duration::from_millis(8);

/// How long it is waited for the mounts of a cell to be gone after its end. An overlay is written to the disk before; the
/// kernel complains if its folders are used again meanwhile, though nobody uses it any more.
const MOUNTS_GONE_WITHIN: Duration = Duration::from_millis(50);

/// How long it is waited for everything in a cell to be gone that was ended from outside, and so could not say that it is.
const ALL_GONE_WITHIN: Duration = Duration::from_secs(2);

/// What is asked of the helper. Beside it: the line on which to report, and input, output and errors of the program.
#[derive(Debug, Serialize, Deserialize)]
struct Start {
    cell: Cell,
}

/// A helper, and the line to it.
#[derive(Debug)]
pub struct Spawner {
    requests: Mutex<Option<UnixStream>>,
    process: Mutex<Child>,
    /// Cells that a helper keeps prepared.
    ready: usize,
}

/// Input, output and errors of a program.
#[derive(Debug)]
pub struct Files {
    pub input: OwnedFd,
    pub output: OwnedFd,
    pub errors: OwnedFd,
}

impl Spawner {
    /// Starts a helper that keeps `ready` cells prepared.
    pub fn start(ready: usize) -> io::Result<Self> {
        let (requests, child) = Self::launch(ready)?;
        Ok(Self { requests: Mutex::new(Some(requests)), process: Mutex::new(child), ready })
    }

    fn launch(ready: usize) -> io::Result<(UnixStream, Child)> {
        let (requests, theirs) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(MARK).arg(ready.to_string()).env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        Ok((requests, command.stderr(Stdio::null()).current_dir("/").spawn()?))
    }

    /// Starts a program in a cell.
    pub fn run(&self, cell: Cell, files: Files) -> io::Result<Running> {
        let (line, theirs) = UnixStream::pair()?;
        let passed = [theirs.as_fd(), files.input.as_fd(), files.output.as_fd(), files.errors.as_fd()];
        let mut requests = self.requests.lock().map_err(|_| io::ErrorKind::Other)?;
        let start = Start { cell };
        let sent = channel::send(requests.as_ref().ok_or(io::ErrorKind::NotConnected)?, &start, &passed);
        match sent {
            // The helper is gone, and with it all its cells. Another one takes its place.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                let (fresh, helper) = Self::launch(self.ready)?;
                if let Ok(mut process) = self.process.lock() {
                    let _ = std::mem::replace(&mut *process, helper).wait();
                }
                channel::send(requests.insert(fresh), &start, &passed)?;
            }
            sent => sent?,
        }
        Ok(Running::new(line, &start.cell))
    }
}

impl Drop for Spawner {
    /// Waits until everything is gone.
    fn drop(&mut self) {
        if let Ok(mut requests) = self.requests.lock() {
            requests.take();
        }
        if let Ok(mut process) = self.process.lock() {
            let _ = process.wait();
        }
    }
}

/// A cell that this very process makes, without a helper, and before it is known what for. The process must have a single
/// thread. Cheaper where one cell is all that is wanted: while it is built, its maker can find out what is wanted of it.
#[derive(Debug)]
pub struct Ahead(Helper);

impl Ahead {
    /// `isolated`: with a network of its own, which is not what one that is open has.
    pub fn make(isolated: bool) -> io::Result<Self> {
        sys::require_single_thread()?;
        let mut helper = Helper::new();
        if isolated {
            helper.ready.push(helper.nursery.make(true, false)?);
        }
        Ok(Self(helper))
    }

    /// Starts a program in it.
    pub fn run(self, cell: Cell, files: Files) -> io::Result<Running> {
        sys::require_single_thread()?;
        let Self(mut helper) = self;
        let (line, theirs) = UnixStream::pair()?;
        let Files { input, output, errors } = files;
        let mut running = Running::new(line, &cell);
        helper.start(cell, theirs, vec![input, output, errors]);
        running.own = Some(helper);
        Ok(running)
    }
}

/// Starts a program in a cell that this very process makes for it.
pub fn run_alone(cell: Cell, files: Files) -> io::Result<Running> {
    Ahead::make(false)?.run(cell, files)
}

/// A program in a cell. When this is dropped, the program is ended.
#[derive(Debug)]
pub struct Running {
    line: UnixStream,
    handle: Option<OwnedFd>,
    own: Option<Helper>,
    signals: Option<Signals>,
    is_cancelled: bool,
    has_overlay: bool,
    grace: Duration,
}

/// Signals by which somebody wants this program to end. Caught before there is a second thread, they end the program in
/// the cell first: it is in a session of its own, and does not get them itself.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    pub fn catch() -> io::Result<Self> {
        sys::signal_file(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]).map(Self)
    }

    /// Signals that come from within this program, for one cell among many.
    pub fn own() -> io::Result<(Self, Stopper)> {
        let (ours, theirs) = io::pipe()?;
        let ours = OwnedFd::from(ours);
        rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
        Ok((Self(ours), Stopper(theirs)))
    }

    /// Waits for one. False if there will be none.
    pub fn next(&self) -> bool {
        let mut files = [PollFd::new(&self.0, PollFlags::IN)];
        let mut taken = [0_u8; 1024];
        loop {
            match poll(&mut files, None) {
                Ok(_) => return rustix::io::read(&self.0, &mut taken).is_ok_and(|bytes| bytes > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// The other end: asks the program in the cell to end, and ends it if asked again. Dropped, it asks too: keep it as long as
/// the cell is to live.
#[derive(Debug)]
pub struct Stopper(io::PipeWriter);

impl Stopper {
    pub fn stop(&self) {
        let _ = io::Write::write(&mut &self.0, &[1]);
    }
}

/// What comes from a cell while it lives.
#[derive(Debug)]
pub enum News {
    /// There is a cell, and it can be ended.
    Started,
    /// The program can reach us. Comes once at most, before the program is there, and only if it can.
    Listening(Listeners),
    Ended(Report),
}

/// Sockets in a cell's network that are ours to serve. They do not tell that the cell has ended: whoever waits at one has
/// to be told.
#[derive(Debug)]
pub struct Listeners {
    /// On `Cell::bridge`. Blocking, as it was made.
    pub bridge: Option<TcpListener>,
    /// For `Egress::serve`: names, then the proxy, then the ports in their order. Empty if the cell has no way out.
    pub way_out: Vec<OwnedFd>,
}

impl Running {
    fn new(line: UnixStream, cell: &Cell) -> Self {
        let has_overlay = cell.grants.iter().any(|grant| matches!(grant.from, Source::Overlay { .. }));
        let grace = Duration::from_millis(cell.limits.grace_ms);
        Self { line, handle: None, own: None, signals: None, is_cancelled: false, has_overlay, grace }
    }

    /// What the program has between being asked to end and being ended.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// A signal to this program ends the one in the cell.
    pub fn ended_by(mut self, signals: Signals) -> Self {
        self.signals = Some(signals);
        self
    }

    /// The next thing it has to say. An error means that the cell was ended by somebody else.
    pub fn hear(&mut self) -> io::Result<News> {
        loop {
            let due = self.tend();
            let mut files = vec![PollFd::new(&self.line, PollFlags::IN)];
            files.extend(self.signals.as_ref().map(|signals| PollFd::new(&signals.0, PollFlags::IN)));
            match poll(&mut files, due.map(patience).as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let (speaks, signalled) =
                (!files[0].revents().is_empty(), files.get(1).is_some_and(|f| !f.revents().is_empty()));
            if signalled {
                self.heed_signals();
            }
            if speaks {
                return self.receive();
            }
        }
    }

    fn receive(&mut self) -> io::Result<News> {
        let Some((said, files)) = channel::receive::<Said>(&self.line)? else {
            self.wait_until_gone(ALL_GONE_WITHIN);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the cell was ended from outside"));
        };
        Ok(match said {
            Said::Started => {
                self.handle = files.into_iter().next();
                News::Started
            }
            Said::Listening { has_bridge } => {
                let mut files = files.into_iter();
                let bridge = if has_bridge { files.next().map(TcpListener::from) } else { None };
                News::Listening(Listeners { bridge, way_out: files.collect() })
            }
            Said::Ended(report) => {
                if self.has_overlay {
                    self.wait_until_gone(MOUNTS_GONE_WITHIN);
                }
                News::Ended(report)
            }
        })
    }

    /// The first process is the last to be gone.
    fn wait_until_gone(&self, most: Duration) {
        if let Some(handle) = &self.handle {
            let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&patience(most)));
        }
    }

    /// What becomes readable when a signal has come.
    pub(crate) fn signals(&self) -> Option<&OwnedFd> {
        self.signals.as_ref().map(|signals| &signals.0)
    }

    /// The first time the program is asked to end, then it is ended.
    pub(crate) fn heed_signals(&mut self) {
        let mut taken = [0_u8; 1024];
        let has_come = self.signals.as_ref().is_some_and(|signals| rustix::io::read(&signals.0, &mut taken).is_ok());
        if has_come && std::mem::replace(&mut self.is_cancelled, true) {
            self.kill();
        } else if has_come {
            self.cancel();
        }
    }

    /// Does what a helper would do meanwhile, if there is none. When there is more of that to do.
    pub fn tend(&mut self) -> Option<Duration> {
        self.own.as_mut().and_then(Helper::tend)
    }

    /// Becomes readable when there is something to say. Whoever waits for that himself calls `tend` when it is time.
    pub fn line(&self) -> &UnixStream {
        &self.line
    }

    /// Asks the program to end; it has the time of its grace for that.
    pub fn cancel(&self) {
        let _ = self.line.shutdown(std::net::Shutdown::Write);
    }

    /// Ends it at once, whatever it does.
    pub fn kill(&self) {
        if let Some(handle) = &self.handle {
            let _ = rustix::process::pidfd_send_signal(handle, rustix::process::Signal::KILL);
        }
    }
}

fn patience(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(time.subsec_nanos()) }
}

/// If this process was started as the helper, does its work and never comes back.
pub(crate) fn entry(arguments: &[OsString]) {
    let [_, mark, ready] = arguments else { return };
    if mark == MARK {
        let ready = ready.to_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        let Ok(requests) = io::stdin().as_fd().try_clone_to_owned() else { sys::exit(1) };
        serve(UnixStream::from(requests), ready);
    }
}

/// The helper's life.
fn serve(requests: UnixStream, ready: usize) -> ! {
    const LINE: i32 = 3;
    let Some(requests) = sys::keep_as(requests.into(), LINE) else { sys::exit(1) };
    sys::close_from(LINE as u32 + 1);
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null");
    if let Ok(nothing) = nothing {
        // Whoever reads what we were started with shall not wait for us.
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stdout(&nothing);
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
    let Ok(deaths) = sys::signal_file(&[libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP]) else {
        sys::exit(1)
    };
    let mut helper = Helper::new();
    helper.serve(&UnixStream::from(requests), &deaths, ready);
    drop(helper);
    sys::exit(0)
}

/// Who makes cells and buries them.
#[derive(Debug)]
struct Helper {
    nursery: Nursery,
    ready: Vec<Slot>,
    /// Slots in use, or spent and not yet gone.
    living: BTreeMap<i32, Slot>,
    /// Not while somebody waits for a cell that was just started.
    refill_at: Instant,
    /// Whether no slot could be made ahead of time. It is tried again only when one is asked for.
    failed: bool,
}

impl Helper {
    fn new() -> Self {
        Self {
            nursery: Nursery::new(),
            ready: Vec::new(),
            living: BTreeMap::new(),
            refill_at: Instant::now(),
            failed: false,
        }
    }

    /// Until the other end of the line is gone.
    fn serve(&mut self, requests: &UnixStream, deaths: &OwnedFd, ready: usize) {
        loop {
            let wanting = self.ready.len() < ready && !self.failed;
            let now = Instant::now();
            let refill = wanting.then(|| self.refill_at.saturating_duration_since(now));
            let due = [refill, self.tend()].into_iter().flatten().min();
            let wanting = refill == Some(Duration::ZERO);
            let mut files = [PollFd::new(requests, PollFlags::IN), PollFd::new(deaths, PollFlags::IN)];
            let happened = poll(&mut files, due.map(patience).as_ref());
            let (asked, died) = (files[0].revents(), files[1].revents());
            if happened == Ok(0) && wanting {
                match self.nursery.make(true, true) {
                    Ok(slot) => self.ready.push(slot),
                    Err(_) => self.failed = true,
                }
                continue;
            }
            if !died.is_empty() {
                let mut taken = [0_u8; 1024];
                while rustix::io::read(deaths, &mut taken).is_ok_and(|n| n > 0) {}
                self.bury(WaitOptions::NOHANG);
            }
            if !asked.is_empty() {
                match channel::receive::<Start>(requests) {
                    Ok(Some((start, files))) => {
                        let mut files = files.into_iter();
                        // The kernel drops passed files when too many are open. The caller sees its line end.
                        let Some(line) = files.next().map(UnixStream::from) else { continue };
                        self.start(start.cell, line, files.collect());
                    }
                    _ => return,
                }
            }
        }
    }

    /// Puts cells that have lived long enough into control groups. When there is more of that to do.
    fn tend(&mut self) -> Option<Duration> {
        let now = Instant::now();
        for slot in self.living.values_mut() {
            if slot.group_at.is_some_and(|at| at <= now) {
                self.nursery.group(slot);
            }
        }
        let next = self.living.values().filter_map(|slot| slot.group_at).min();
        next.map(|at| at.saturating_duration_since(now))
    }

    fn start(&mut self, cell: Cell, line: UnixStream, standard: Vec<OwnedFd>) {
        let mut kept = Vec::new();
        if let Err(why) = self.dispatch(cell, &line, standard, &mut kept) {
            let report = Report { ended: Ended::NotBuilt(why), used: Used::default(), kept };
            let _ = channel::send(&line, &Said::Ended(report), &[]);
        }
    }

    fn dispatch(
        &mut self,
        cell: Cell,
        line: &UnixStream,
        standard: Vec<OwnedFd>,
        kept: &mut Vec<crate::cell::Kept>,
    ) -> Result<(), String> {
        let isolated = cell.network != Network::Open;
        self.refill_at = Instant::now() + REFILL_AFTER;
        let ready = if isolated { self.ready.pop() } else { None };
        let slot = match ready {
            Some(slot) => slot,
            None => self.nursery.make(isolated, false).map_err(|e| unavailable(&e))?,
        };
        let slot = self.living.entry(slot.first.as_raw_nonzero().get()).or_insert(slot);
        let done = (|| {
            self.nursery.limit(slot, &cell).map_err(|e| format!("cannot limit the cell: {e}"))?;
            if slot.group.is_some() {
                kept.extend(self.nursery.kept());
            }
            let trees = self.nursery.trees(&cell, slot, kept)?;
            let counters = slot.group.as_ref().map(|group| group.counters()).unwrap_or_default();
            let lost = |e: io::Error| format!("cannot reach the cell: {e}");
            let (count, trees) = (trees.as_ref().map(Vec::len), trees.unwrap_or_default());
            let enter = Enter {
                cell,
                counters: counters.len(),
                trees: count,
                grouped_later: slot.group_at.is_some(),
                has_own_user: slot.user.is_some(),
                kept: kept.clone(),
            };
            let passed = [line.as_fd()].into_iter().chain(channel::borrow(&standard));
            let mut passed: Vec<_> = passed.chain(channel::borrow(&counters)).collect();
            let (first, rest) = trees.split_at(trees.len().min(channel::FILES_MAX - passed.len()));
            passed.extend(channel::borrow(first));
            channel::send(&slot.orders, &enter, &passed).map_err(lost)?;
            rest.chunks(channel::FILES_MAX)
                .try_for_each(|some| channel::send(&slot.orders, &(), &channel::borrow(some)))
                .map_err(lost)?;
            channel::send(line, &Said::Started, &[slot.handle.as_fd()]).map_err(lost)
        })();
        if done.is_err() {
            slot.kill();
        }
        done
    }

    fn bury(&mut self, how: WaitOptions) {
        while let Ok(Some((pid, _))) = rustix::process::wait(how) {
            let pid = pid.as_raw_nonzero().get();
            let ready = self.ready.iter().position(|slot| slot.first.as_raw_nonzero().get() == pid);
            let gone = ready.map(|at| self.ready.remove(at)).or_else(|| self.living.remove(&pid));
            if let Some(group) = gone.and_then(|slot| slot.group) {
                let _ = group.remove();
            }
            if self.ready.is_empty() && self.living.is_empty() {
                return;
            }
        }
    }

    /// Ends every cell and waits for them.
    fn end(&mut self) {
        self.ready.iter().chain(self.living.values()).for_each(Slot::kill);
        if !(self.ready.is_empty() && self.living.is_empty()) {
            self.bury(WaitOptions::empty());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why there can be no cells here, and what to do about it.
fn unavailable(e: &io::Error) -> String {
    format!("cannot make namespaces of its own: {e}")
}
