//! The first process of a cell: builds it from within, starts the program, watches over it until the end, and reports. It
//! is a copy of our own helper that never becomes another program; what runs in the cell cannot see it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Ended, Kept, Network, Report, Used, Wall};
use crate::census::Written;
use crate::cgroup::Counters;
use crate::channel;
use crate::root::{self, Built, Plan};
use crate::slot::Order;
use crate::sockets::SocketTable;
use crate::wall::THREADS_MAX;
use crate::{census, sys, wall};

/// Who the program is in its cell. Never anybody in particular outside.
pub(crate) const USER: u32 = 1000;

/// How often memory is counted where the system does not do it, and everything else that has no event of its own.
const COUNT_EVERY: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// How often the files are looked at that were changed, and how much of the time that may take at most: one part in so many.
const LOOK_AT_ROOM_EVERY: Duration = Duration::from_millis(10);
/// Others may fill the disk: also then the cell runs for so long between two looks.
const LOOK_AT_DISK_PAUSE_MIN: Duration = Duration::from_millis(40);
const LOOK_AT_DISK_EVERY: Duration = Duration::from_millis(100);
/// The longest pause between two looks, however long they take.
const LOOK_AT_DISK_PAUSE_MAX: Duration = Duration::from_millis(500);
const LOOKING_SHARE: u32 = 4;

/// Names of files that a cell may make or change.
const FILES_MAX: u64 = 200_000;

/// How long room for a thread is kept before it is looked whether it was used.
const ROOM_KEPT: Duration = Duration::from_millis(50);

/// Of what the system allows a user to watch one cell gets one part in so many.
const WATCHES_SHARE: u64 = 8;

/// Below one part in so many of the limit of memory, what sockets hold is not added to the rest.
const SOCKETS_IGNORED_SHARE: u64 = 32;

/// How long everything in the cell may take to be gone after it was killed.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Names are asked for here, and the two kinds of proxy listen here, in a cell with a way out.
pub(crate) const NAMES_PORT: u16 = 53;
pub const PROXY_PORT: u16 = 3128;

/// What the helper says when it has done its part: that it could not; that the network is the cell's own; that it is not.
pub(crate) const NOTHING: u8 = 0;
pub(crate) const ISOLATED: u8 = 1;
pub(crate) const OPEN: u8 = 2;

/// What the first process is told. Beside it: the line to whoever waits for the report; input, output and errors of the
/// program; what the system counts for us.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Enter {
    pub cell: Cell,
    pub counters: usize,
    /// How many of `Grant::origins` come along or follow in messages of their own, if somebody else has taken them.
    pub trees: Option<usize>,
    /// It will be put into a control group if it lives long enough.
    pub grouped_later: bool,
    /// On the machine its processes belong to a user that no other cell has.
    pub has_own_user: bool,
    pub kept: Vec<Kept>,
}

/// What it says to whoever waits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// By the helper, with a handle on the first process beside it.
    Started,
    /// Listeners in the cell's network, beside it. The bridge's is the first, if there is one; the others are its way out.
    Listening {
        has_bridge: bool,
    },
    Ended(Report),
}

/// Lives and dies as the first process of a cell.
pub(crate) fn run(orders: &UnixStream) -> ! {
    let prepared = prepare(orders);
    let Ok(Some((enter, files))) = channel::receive::<Enter>(orders) else { sys::exit(0) };
    let mut files = files.into_iter();
    let Some(waiting) = files.next().map(UnixStream::from) else { sys::exit(0) };
    let mut kept = enter.kept.clone();
    let lived = prepared.and_then(|prepared| Life::begin(prepared, enter, files, (orders, &waiting), &mut kept));
    let report = match lived {
        Ok((ended, used)) => Report { ended, used, kept },
        Err(why) => Report { ended: Ended::NotBuilt(why), used: Used::default(), kept },
    };
    let _ = channel::send(&waiting, &Said::Ended(report), &[]);
    sys::exit(0)
}

/// A process that will be the program, waiting to be told which, and the line to it.
struct Prepared {
    program: Pid,
    isolated: bool,
    line: UnixStream,
    deaths: OwnedFd,
}

/// Everything that can be done before it is known for whom.
fn prepare(orders: &UnixStream) -> Built<Prepared> {
    let failed = |doing: &'static str| move |e: io::Error| format!("cannot {doing}: {e}");
    let call = |doing: &'static str, done: rustix::io::Result<()>| done.map_err(|e| failed(doing)(e.into()));
    // Our maker has to say first who we are.
    let mut go = [0];
    (&mut &*orders).read_exact(&mut go).map_err(failed("wait for the helper"))?;
    if go == [NOTHING] {
        return Err("the helper could not set the cell up".to_owned());
    }
    if rustix::process::getuid().as_raw() != USER {
        let _ = rustix::thread::set_thread_groups(&[]);
        let (group, user) = (rustix::fs::Gid::from_raw(USER), rustix::fs::Uid::from_raw(USER));
        call("take the cell's group", rustix::thread::set_thread_res_gid(group, group, group))?;
        call("take the cell's user", rustix::thread::set_thread_res_uid(user, user, user))?;
    }
    // Changing who we are has reset both of these.
    call("be tied to the helper", rustix::process::set_parent_process_death_signal(Some(Signal::KILL)))?;
    call("be looked at", set_dumpable_behavior(DumpableBehavior::Dumpable))?;
    let priority = File::options().read(true).write(true).open("/proc/self/oom_score_adj");
    let mut priority = priority.map_err(failed("open /proc/self/oom_score_adj"))?;
    call("hide", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    call("leave the control groups", sys::unshare_groups())?;
    call("be called actum", rustix::system::sethostname(b"actum"))?;
    share_watches();
    wall::bound().map_err(failed("rule out more rights"))?;
    let deaths = sys::signal_file(&[libc::SIGCHLD]).map_err(failed("wait for signals"))?;
    let (line, theirs) = UnixStream::pair().map_err(failed("talk to the program"))?;
    let isolated = go == [ISOLATED];
    // Inherited: if memory runs out, it is never this process that has to go.
    let mut own = Vec::new();
    let _ = priority.read_to_end(&mut own);
    let _ = priority.rewind().and_then(|()| priority.write_all(b"1000"));
    let program = match sys::fork(0).map_err(failed("make a process"))? {
        sys::Side::Child => {
            drop(line);
            wait_to_start(&theirs, isolated)
        }
        sys::Side::Parent { child, .. } => child,
    };
    drop(theirs);
    let _ = priority.rewind().and_then(|()| priority.write_all(&own));
    // Meanwhile the other makes itself a network, which takes as long as this.
    root::lay_foundation()?;
    Ok(Prepared { program, line, deaths, isolated })
}

/// What is mounted over paths that the program must not see or change. If the host replaces such a file by another one, as programs
/// do that save it, the kernel takes the mount away in all cells.
#[derive(Debug)]
struct Covers {
    mounts: File,
    count: usize,
    is_changed: bool,
}

impl Covers {
    fn watch() -> io::Result<Self> {
        let mut covers = Self { mounts: File::open("/proc/self/mountinfo")?, count: 0, is_changed: true };
        covers.count = covers.count()?;
        Ok(covers)
    }

    fn count(&mut self) -> io::Result<usize> {
        let mut text = Vec::new();
        self.mounts.rewind()?;
        self.mounts.read_to_end(&mut text)?;
        Ok(text.iter().filter(|byte| **byte == b'\n').count())
    }

    /// Whether one is gone. Nothing in the cell can take one away.
    fn are_lost(&mut self) -> bool {
        // Also at first, when nothing has been waited for yet.
        std::mem::take(&mut self.is_changed) && self.count().is_ok_and(|count| count < self.count)
    }
}

/// Bounds the watches of this cell: they are counted for the user outside as well, who has as many over all cells as the
/// system allows a user. Older kernels have no such limits.
fn share_watches() {
    for (name, usual) in [("instances", 64), ("watches", 16_384)] {
        let limit = std::fs::read_to_string(format!("/proc/sys/fs/inotify/max_user_{name}"));
        let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(usual);
        let most = (limit / WATCHES_SHARE).clamp(1, usual);
        let _ = std::fs::write(format!("/proc/sys/user/max_inotify_{name}"), most.to_string());
    }
}

/// What the process is told that will be the program. Beside it: input, output and errors.
#[derive(Debug, Serialize, Deserialize)]
struct Begin {
    cell: Cell,
    /// The system counts its memory, or will.
    is_grouped: bool,
}

fn wait_to_start(init: &UnixStream, isolated: bool) -> ! {
    let bare = strip(isolated);
    let network: Vec<File> = File::open("/proc/self/ns/net").into_iter().collect();
    let _ = channel::send(init, &Before::Bare(bare.err()), &channel::borrow(&network));
    let Ok(Some((Begin { cell, is_grouped }, files))) = channel::receive::<Begin>(init) else { sys::exit(0) };
    let Ok(files) = <[OwnedFd; 3]>::try_from(files) else { sys::exit(1) };
    start(&cell, files, init, is_grouped)
}

/// What every program does without, whatever it is.
fn strip(isolated: bool) -> Built<()> {
    let failed = |doing: &'static str| move |e: io::Error| format!("cannot {doing}: {e}");
    if isolated {
        sys::unshare_network().map_err(|e| failed("leave the network")(e.into()))?;
        sys::bring_loopback_up().map_err(failed("bring the cell's own network up"))?;
    }
    rustix::process::setsid().map_err(|e| failed("leave the terminal")(e.into()))?;
    wall::give_up(CapabilitySet::empty()).map_err(failed("give up rights"))?;
    rustix::thread::set_no_new_privs(true).map_err(|e| failed("rule out new rights")(e.into()))?;
    sys::reset_signals();
    Ok(())
}

/// A program under way in the cell.
struct Life<'a> {
    cell: &'a Cell,
    orders: &'a UnixStream,
    waiting: &'a UnixStream,
    counters: Counters,
    program: Pid,
    questions: Option<OwnedFd>,
    deaths: OwnedFd,
    started: (Instant, SystemTime),
    /// For so many threads there is room.
    room: u32,
    /// A thread that was allowed a moment ago may not be there yet.
    room_kept_until: Instant,
    used: Used,
    disk: Arc<Disk>,
    /// From the beginning: then the group has counted everything.
    was_grouped: bool,
    written: Arc<[Written]>,
    status: Option<Ended>,
    sockets: SocketTable,
    covers: Covers,
}

/// What the files take that were changed, as far as somebody beside the first process has looked: it has to watch over
/// other things meanwhile, and a program can make the looking long.
#[derive(Debug, Default)]
struct Disk {
    bytes: AtomicU64,
    names: AtomicU64,
}

/// Room on the disks that are written to. If more of it is gone than is left to the cell, the cell may have taken it between two
/// looks: then all its processes are stopped during the next one.
struct Room<'a> {
    folders: &'a [Written],
    free: Vec<u64>,
    /// What the cell may still take, by the last look.
    left: u64,
    /// Processes that were stopped before all of them were. None if the cell runs.
    stopped: Option<BTreeSet<i32>>,
}

impl<'a> Room<'a> {
    fn measure(folders: &'a [Written], left: u64) -> Self {
        let free = folders.iter().map(Written::free_bytes).collect();
        Self { folders, free, left, stopped: None }
    }

    fn is_in_doubt(&self) -> bool {
        self.folders.iter().zip(&self.free).any(|(folder, free)| free.saturating_sub(folder.free_bytes()) > self.left)
    }

    fn stop(&mut self) {
        if self.stopped.is_none() {
            self.stopped = Some(census::stopped_processes());
            sys::signal_all(libc::SIGSTOP);
        }
    }

    /// Lets all processes go on that were not stopped before.
    fn go_on(&mut self) {
        let Some(stopped) = self.stopped.take() else { return };
        for id in census::process_ids().into_iter().filter(|id| !stopped.contains(id)) {
            if let Some(process) = Pid::from_raw(id) {
                let _ = rustix::process::kill_process(process, Signal::CONT);
            }
        }
    }
}

impl Disk {
    fn watch(folders: Arc<[Written]>, start: SystemTime, limit: u64) -> Built<Arc<Self>> {
        let disk = Arc::new(Self::default());
        if folders.is_empty() {
            return Ok(disk);
        }
        let own = Arc::clone(&disk);
        let looking = move || {
            let mut pause = LOOK_AT_DISK_EVERY;
            let mut room = Room::measure(&folders, limit);
            loop {
                let (least, until) = (Instant::now() + LOOK_AT_DISK_PAUSE_MIN, Instant::now() + pause);
                while Instant::now() < until && (Instant::now() < least || !room.is_in_doubt()) {
                    std::thread::sleep(LOOK_AT_ROOM_EVERY);
                }
                let began = Instant::now();
                let mut next = Room::measure(&folders, room.left);
                if room.is_in_doubt() {
                    next.stop();
                }
                let changed = census::changed(&folders, start, &mut || {
                    if next.is_in_doubt() {
                        next.stop();
                    }
                });
                own.bytes.store(changed.bytes, Ordering::Relaxed);
                own.names.store(changed.names, Ordering::Relaxed);
                next.left = limit.saturating_sub(changed.bytes);
                // Above the limit the cell is ended.
                if changed.bytes <= limit {
                    next.go_on();
                }
                room = next;
                pause = (began.elapsed() * LOOKING_SHARE).clamp(LOOK_AT_DISK_EVERY, LOOK_AT_DISK_PAUSE_MAX);
            }
        };
        let started = std::thread::Builder::new().name("disk".into()).spawn(looking);
        started.map(|_| disk).map_err(|e| format!("cannot watch over the disk: {e}"))
    }

    fn read(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.names.load(Ordering::Relaxed))
    }
}

/// What the program's process tells before it is the program.
#[derive(Debug, Serialize, Deserialize)]
enum Before {
    /// It waits to be told what to become; or why it cannot. Its network is beside it.
    Bare(Option<String>),
    Walled {
        landlock: bool,
        cores: usize,
    },
    NotWalled(String),
    NotStarted(i32),
}

impl<'a> Life<'a> {
    fn begin(
        prepared: Prepared,
        enter: Enter,
        mut files: impl Iterator<Item = OwnedFd>,
        (orders, waiting): (&UnixStream, &UnixStream),
        kept: &mut Vec<Kept>,
    ) -> Built<(Ended, Used)> {
        let missing = || "the helper did not pass on what the cell needs".to_owned();
        let standard: Vec<OwnedFd> = files.by_ref().take(3).collect();
        let counters = Counters::new(files.by_ref().take(enter.counters).collect());
        let trees = match enter.trees {
            Some(count) => Some(receive_trees(orders, files.collect(), count).ok_or_else(missing)?),
            None => None,
        };
        let Prepared { program, line, deaths, isolated } = prepared;
        let network = match channel::receive::<Before>(&line) {
            Ok(Some((Before::Bare(None), network))) => network.into_iter().next(),
            Ok(Some((Before::Bare(Some(why)), _))) => return Err(why),
            _ => return Err("the program's process is gone".to_owned()),
        };
        if isolated {
            // Into the same network: its listeners are made here.
            let kind = rustix::thread::LinkNameSpaceType::Network;
            let network = network.ok_or_else(missing)?;
            rustix::thread::move_into_link_name_space(network.as_fd(), Some(kind))
                .map_err(|e| format!("cannot enter the cell's network: {e}"))?;
        }
        let cell = &enter.cell;
        let plan = Plan {
            grants: &cell.grants,
            trees,
            deny: &cell.deny,
            scratch_bytes: cell.limits.scratch_bytes,
            network: &cell.network,
        };
        let written: Arc<[Written]> = root::finish(plan)?.into();
        let bridge = cell.bridge.filter(|_| isolated);
        if bridge.is_some() || matches!(cell.network, Network::Listened { .. }) {
            let listeners =
                listen(bridge, &cell.network).map_err(|e| format!("cannot listen in the cell's network: {e}"))?;
            let listening = Said::Listening { has_bridge: bridge.is_some() };
            let told = channel::send(waiting, &listening, &channel::borrow(&listeners));
            told.map_err(|e| format!("cannot hand on the cell's listeners: {e}"))?;
        }
        let started = (Instant::now(), SystemTime::now());
        let counts_memory = counters.are_there();
        // There before the program is, which is not to have its place.
        let disk = Disk::watch(Arc::clone(&written), started.1, cell.limits.disk_bytes)?;
        // From before the program is there: what falls off as it starts is missed too.
        let covers = Covers::watch().map_err(|e| format!("cannot watch over what is covered: {e}"))?;
        let begin = Begin { cell: cell.clone(), is_grouped: counts_memory || enter.grouped_later };
        let passed = channel::borrow(&standard);
        channel::send(&line, &begin, &passed).map_err(|e| format!("cannot talk to the program: {e}"))?;
        drop(standard);
        wall::give_up(CapabilitySet::SYS_PTRACE | CapabilitySet::KILL | CapabilitySet::DAC_READ_SEARCH)
            .map_err(|e| format!("cannot give up rights: {e}"))?;
        let mut questions = None;
        let mut status = None;
        while let Ok(Some((said, passed))) = channel::receive::<Before>(&line) {
            match said {
                Before::Walled { landlock, cores } => {
                    questions = passed.into_iter().next();
                    note_walls(&enter, isolated, landlock, cores, kept);
                }
                Before::Bare(_) => {}
                Before::NotWalled(why) => return Err(why),
                Before::NotStarted(error) => status = Some(Ended::NotStarted(error)),
            }
        }
        let life = Life {
            cell,
            orders,
            waiting,
            counters,
            program,
            questions,
            deaths,
            started,
            room: 0,
            room_kept_until: started.0,
            used: Used { processes_peak: 1, ..Used::default() },
            disk,
            was_grouped: counts_memory,
            written,
            status,
            // In the machine's own network there are sockets of others.
            sockets: SocketTable::open(isolated),
            covers,
        };
        Ok(life.last())
    }

    /// Until the end.
    fn last(mut self) -> (Ended, Used) {
        let mut asked_to_end: Option<(Instant, Ended)> = None;
        let ended = loop {
            if let Some(status) = self.status.take() {
                break asked_to_end.map_or(status, |(_, reason)| reason);
            }
            let now = Instant::now();
            let deadline = self.cell.limits.timeout_ms.map(|ms| self.started.0 + Duration::from_millis(ms));
            match &asked_to_end {
                Some((until, reason)) if now >= *until => break reason.clone(),
                None if deadline.is_some_and(|deadline| now >= deadline) => {
                    asked_to_end = Some((self.ask_to_end(), Ended::TimedOut));
                    continue;
                }
                _ => {}
            }
            let next = asked_to_end.as_ref().map(|(until, _)| *until).or(deadline);
            if self.wait(next, asked_to_end.is_none()) && asked_to_end.is_none() {
                asked_to_end = Some((self.ask_to_end(), Ended::Cancelled));
            }
            if self.covers.are_lost() {
                break Ended::Uncovered;
            }
            // What has ended takes nothing more.
            if self.status.is_none()
                && let Some(reason) = self.overdrawn()
            {
                break reason;
            }
        };
        sys::kill_all(libc::SIGKILL);
        self.bury_all();
        if self.counters.oom_kills() > 0 {
            // Whatever became of the program, it was for want of memory.
            return (Ended::OutOfMemory, self.accounts());
        }
        // Faster than it was looked at, it may have filled the disk all the same.
        let has_written = !self.written.is_empty() && !matches!(ended, Ended::NotStarted(_));
        let ended = if has_written && self.is_disk_full() { Ended::OutOfDisk } else { ended };
        (ended, self.accounts())
    }

    fn accounts(&mut self) -> Used {
        if let Some(peak) = self.counters.peak_bytes() {
            self.used.memory_bytes_peak = self.used.memory_bytes_peak.max(peak);
        }
        self.used.cpu_us = sys::children_cpu_us();
        self.used
    }

    /// Everything in the cell gets the signal, also what was stopped. When the patience ends.
    fn ask_to_end(&self) -> Instant {
        sys::kill_all(libc::SIGTERM);
        sys::kill_all(libc::SIGCONT);
        Instant::now() + Duration::from_millis(self.cell.limits.grace_ms)
    }

    /// Waits for the next thing to happen, and deals with it. True if somebody wants the program to end.
    fn wait(&mut self, until: Option<Instant>, listens: bool) -> bool {
        let most = if self.counters.are_there() { LOOK_EVERY } else { COUNT_EVERY };
        let patience = until.map_or(most, |until| until.saturating_duration_since(Instant::now()).min(most));
        let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()).max(1) };
        let mut files = vec![
            // Once somebody has said that it shall end, he goes on saying so.
            PollFd::new(self.waiting, if listens { PollFlags::IN } else { PollFlags::empty() }),
            PollFd::new(&self.deaths, PollFlags::IN),
            PollFd::new(self.orders, PollFlags::IN),
            PollFd::new(&self.covers.mounts, PollFlags::PRI),
        ];
        if let Some(questions) = &self.questions {
            files.push(PollFd::new(questions, PollFlags::IN));
        }
        match poll(&mut files, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Who cannot watch cannot let it run.
            Err(_) => sys::exit(1),
        }
        let happened = |at: usize| files.get(at).map_or(PollFlags::empty(), |file| file.revents());
        let wanted = listens && !happened(0).is_empty();
        let (died, ordered, asked) = (!happened(1).is_empty(), happened(2), happened(4));
        self.covers.is_changed |= !happened(3).is_empty();
        if died {
            let mut taken = [0_u8; 1024];
            while rustix::io::read(&self.deaths, &mut taken).is_ok_and(|n| n > 0) {}
        }
        self.bury();
        if ordered.contains(PollFlags::IN) {
            self.obey();
        }
        if asked.contains(PollFlags::IN) {
            self.decide();
        } else if asked.intersects(PollFlags::HUP | PollFlags::ERR) {
            self.questions = None;
        }
        wanted
    }

    /// What the helper wants while the program is under way.
    fn obey(&mut self) {
        match channel::receive::<Order>(self.orders) {
            Ok(Some((Order::Grouped, files))) => {
                self.counters = Counters::new(files);
            }
            // The helper is gone, and we go with it.
            _ => sys::exit(1),
        }
    }

    /// Takes leave of the dead; the program's own end is noted.
    fn bury(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == self.program {
                self.status.get_or_insert(match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Ended::Exited(code as u8),
                    (None, Some(libc::SIGXFSZ)) => Ended::OutOfDisk,
                    (None, signal) => Ended::Signalled(signal.unwrap_or(0)),
                });
            }
        }
    }

    fn bury_all(&mut self) {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Err(_) => return,
                Ok(None) if Instant::now() > until => return,
                Ok(None) => {
                    let mut files = [PollFd::new(&self.deaths, PollFlags::IN)];
                    let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                    let _ = poll(&mut files, Some(&patience));
                    let mut taken = [0_u8; 1024];
                    let _ = rustix::io::read(&self.deaths, &mut taken);
                }
            }
        }
    }

    /// Answers whether one more thread may be made, and makes room for it.
    fn decide(&mut self) {
        let Some(filter) = self.questions.take() else { return };
        let question = sys::next_question(filter.as_fd());
        let filter = self.questions.insert(filter).try_clone();
        let (Ok(filter), Ok(Some(question))) = (filter, question) else { return };
        let living = census::processes_and_threads();
        let threads: u32 = living.iter().map(|(_, threads)| threads).sum();
        let allowed = threads < THREADS_MAX;
        if allowed {
            self.make_room(&living, threads + 1);
            self.room_kept_until = Instant::now() + ROOM_KEPT;
        }
        sys::answer(filter.as_fd(), question, (!allowed).then_some(libc::EAGAIN));
    }

    fn make_room(&mut self, living: &[(Pid, u32)], threads: u32) {
        self.room = threads;
        for (process, _) in living {
            // One that is gone needs none.
            let _ = wall::make_room(self.cell, Some(*process), threads);
        }
    }

    /// Takes back the room of threads that have ended. If it was used for processes meanwhile, there are too many of
    /// them, and the youngest have to go.
    fn count(&mut self) {
        let mut living = census::processes_and_threads();
        let most = self.cell.limits.children as usize + 1;
        self.used.processes_peak = self.used.processes_peak.max(u32::try_from(living.len()).unwrap_or(u32::MAX));
        let threads: u32 = living.iter().map(|(_, threads)| threads).sum();
        if threads < self.room && Instant::now() > self.room_kept_until {
            self.make_room(&living, threads);
        }
        if living.len() > most && self.cell.limits.fork {
            living.sort_by_key(|(process, _)| process.as_raw_nonzero());
            for (process, _) in &living[most..] {
                let _ = rustix::process::kill_process(*process, Signal::KILL);
            }
        }
    }

    /// Looked at once more when nothing can change any more.
    fn is_disk_full(&mut self) -> bool {
        let census::Changed { bytes, names } = census::changed(&self.written, self.started.1, &mut || {});
        self.used.disk_bytes = self.used.disk_bytes.max(bytes);
        bytes > self.cell.limits.disk_bytes || names > FILES_MAX
    }

    /// What has run out, if anything has.
    fn overdrawn(&mut self) -> Option<Ended> {
        self.count();
        if self.counters.oom_kills() > 0 {
            return Some(Ended::OutOfMemory);
        }
        let limit = self.cell.limits.memory_bytes;
        let in_sockets = self.sockets.buffer_bytes();
        // What was taken before the group was joined is not in its account.
        if !self.was_grouped {
            let taken = census::memory_bytes(limit).saturating_add(in_sockets);
            self.used.memory_bytes_peak = self.used.memory_bytes_peak.max(taken);
            if taken > limit {
                return Some(Ended::OutOfMemory);
            }
        } else if in_sockets > limit / SOCKETS_IGNORED_SHARE
            && self.counters.held_bytes().saturating_add(in_sockets) > limit
        {
            return Some(Ended::OutOfMemory);
        }
        if self.written.is_empty() {
            return None;
        }
        let (bytes, names) = self.disk.read();
        self.used.disk_bytes = self.used.disk_bytes.max(bytes);
        if bytes > self.cell.limits.disk_bytes || names > FILES_MAX {
            return Some(Ended::OutOfDisk);
        }
        None
    }
}

/// Those that came along, and the others.
fn receive_trees(orders: &UnixStream, mut trees: Vec<OwnedFd>, count: usize) -> Option<Vec<OwnedFd>> {
    while trees.len() < count {
        let ((), some) = channel::receive::<()>(orders).ok()??;
        trees.extend(some);
    }
    Some(trees)
}

/// Which walls stand, and by what.
fn note_walls(enter: &Enter, isolated: bool, landlock: bool, cores: usize, kept: &mut Vec<Kept>) {
    let mut say = |wall, by: String, weaker| kept.push(Kept { wall, by, weaker });
    say(Wall::Landlock, if landlock { "landlock".into() } else { NO_LANDLOCK.into() }, !landlock);
    say(Wall::Seccomp, "own filter; other architectures end the process".into(), false);
    if enter.counters == 0 {
        let mut by = format!("counted every {} ms, and a ceiling for each process", COUNT_EVERY.as_millis());
        if enter.grouped_later {
            by = format!("{by}; a control group after the first moments");
        }
        say(Wall::Memory, by, false);
    }
    let by = match enter.cell.limits.fork {
        false => "no process may be made".to_owned(),
        true => "a limit of the system, in which room is made for threads".to_owned(),
    };
    say(Wall::Processes, by, false);
    say(Wall::Cores, format!("bound to {cores} of the processors"), false);
    say(Wall::Disk, "changed files are counted, and there is a ceiling for each".into(), false);
    let buffers = match isolated {
        true => "buffers of sockets count as memory",
        false => "buffers of sockets are not counted, because the network is the machine's",
    };
    let user = match enter.has_own_user {
        true => "a user of its own",
        false => {
            "a part of what the kernel counts per user, but for what all cells share: pipes, descriptors in flight, epoll watches, file locks, rules of Landlock and memory maps"
        }
    };
    say(Wall::Shares, format!("{user}; {buffers}"), false);
}

const NO_LANDLOCK: &str = "this kernel enforces only a part of the rules, or none";

/// The program's process: puts up the last walls and becomes the program.
fn start(cell: &Cell, files: [OwnedFd; 3], init: &UnixStream, is_grouped: bool) -> ! {
    match wall_in(cell, files, init, is_grouped) {
        Ok(()) => {
            let failed = wall::become_program(cell).raw_os_error().unwrap_or(libc::ENOEXEC);
            let _ = channel::send(init, &Before::NotStarted(failed), &[]);
        }
        Err(why) => {
            let _ = channel::send(init, &Before::NotWalled(why), &[]);
        }
    }
    sys::exit(127)
}

fn wall_in(cell: &Cell, files: [OwnedFd; 3], init: &UnixStream, is_grouped: bool) -> Built<()> {
    let failed = |doing: &'static str| move |e: io::Error| format!("cannot {doing}: {e}");
    let [input, output, errors] = files;
    rustix::stdio::dup2_stdin(&input)
        .and_then(|()| rustix::stdio::dup2_stdout(&output))
        .and_then(|()| rustix::stdio::dup2_stderr(&errors))
        .map_err(|e| failed("pass on input and output")(e.into()))?;
    // All others go when the program is there: whatever we have open closes itself then.
    std::env::set_current_dir(&cell.folder).map_err(|e| format!("cannot enter {}: {e}", cell.folder.display()))?;
    wall::limit(cell, is_grouped).map_err(failed("set limits"))?;
    let cores = wall::stay_on(cell.limits.cores).map_err(failed("choose processors"))?;
    let landlock = wall::fence(cell)?;
    if !landlock && !cell.weaker.contains(&Wall::Landlock) {
        return Err(format!("landlock: {NO_LANDLOCK}"));
    }
    let listening = wall::filter(cell, is_grouped).map_err(failed("filter system calls"))?;
    let said = Before::Walled { landlock, cores };
    let passed: Vec<_> = listening.iter().map(AsFd::as_fd).collect();
    channel::send(init, &said, &passed).map_err(failed("tell of the walls"))?;
    wall::limit_files().map_err(failed("limit open files"))
}

/// Sockets made here belong to the cell's network wherever they are used.
fn listen(bridge: Option<u16>, network: &Network) -> io::Result<Vec<OwnedFd>> {
    let mut listeners: Vec<OwnedFd> = Vec::new();
    if let Some(port) = bridge {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.into());
    }
    let Network::Listened { ports } = network else { return Ok(listeners) };
    listeners.push(UdpSocket::bind((Ipv4Addr::LOCALHOST, NAMES_PORT))?.into());
    listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))?.into());
    for port in ports {
        listeners.push(TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port))?.into());
    }
    Ok(listeners)
}
