//! The last walls, put up by the program's own process before it becomes the program: rights given up, files it may touch,
//! amounts it may use, calls it may make. From here on nothing can be taken back.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, CpuSet};

use crate::cell::{Access, Cell, Identity, Limits};
use crate::collect::look_up;
use crate::root::HOME;
use crate::seccomp::{self, Forks};
use crate::sys;

/// The newest version of Landlock that the rules below were thought through for.
const LANDLOCK: ABI = ABI::V6;

/// Threads over all processes of a cell, beside one for each process it may have.
pub(crate) const THREADS_MAX: u32 = 512;
const LOCKED_BYTES_MAX: u64 = 64 << 10;

/// The kernel counts these for the user outside as well, whose other cells need theirs: each cell gets a part of the usual
/// limit (819,200 bytes and some ten thousand signals).
const QUEUE_BYTES_MAX: u64 = 100 << 10;
const SIGNALS_MAX: u64 = 1024;

/// Open files of one process. The kernel also bounds files that are being sent over sockets by this, counted for the user
/// outside: a process fails to send once that user has more of them in flight than the process may open.
const OPEN_FILES_MAX: u64 = 2048;
const OPEN_FILES_USUAL: u64 = 1024;

/// What is done where the system cannot count a cell's memory: a ceiling for each process that stops what grows faster
/// than it can be counted.
fn ceiling_bytes(limit: u64) -> u64 {
    limit.saturating_mul(4).saturating_add(1 << 30)
}

/// The first process, the program and its children, and all their threads.
pub(crate) fn tasks_max(limits: &Limits) -> u32 {
    3 + limits.children + THREADS_MAX
}

/// The first process, and its thread that looks at the disk if there is something to look at; the program; its children.
fn tasks_without_threads(cell: &Cell) -> u32 {
    let is_watched = cell.grants.iter().any(|grant| grant.access > Access::Read);
    2 + u32::from(is_watched) + cell.limits.children
}

/// Makes room for so many threads beside the processes that there may be, for one process. The kernel counts both
/// together, within the cell's own users, so exactly for this cell; processes beyond that cannot be made.
pub(crate) fn make_room(cell: &Cell, process: Option<Pid>, threads: u32) -> rustix::io::Result<()> {
    let most = u64::from(tasks_max(&cell.limits));
    let now = u64::from(tasks_without_threads(cell) + threads).min(most);
    rustix::process::prlimit(process, Resource::Nproc, Rlimit { current: Some(now), maximum: Some(most) }).map(drop)
}

/// Amounts. Lowered for good: to raise one again takes rights over the whole machine.
pub(crate) fn limit(cell: &Cell, counts_memory: bool) -> io::Result<()> {
    let set = |resource, most: u64| {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |already| already.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
    };
    // Without forks all room is for threads.
    make_room(cell, None, if cell.limits.fork { 0 } else { THREADS_MAX })?;
    set(Resource::Core, 0)?;
    set(Resource::Memlock, LOCKED_BYTES_MAX)?;
    set(Resource::Msgqueue, QUEUE_BYTES_MAX)?;
    set(Resource::Sigpending, SIGNALS_MAX)?;
    set(Resource::Rtprio, 0)?;
    set(Resource::Nice, 0)?;
    set(Resource::Fsize, cell.limits.disk_bytes)?;
    if !counts_memory {
        set(Resource::Data, ceiling_bytes(cell.limits.memory_bytes))?;
    }
    Ok(())
}

/// Lowers the limit of open files, after everything that this process sends has been sent. It stays well below ours, so
/// that files in flight in cells never keep the helper from starting another one.
pub(crate) fn limit_files() -> io::Result<()> {
    let ours = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let most = OPEN_FILES_MAX.min(ours / 2);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most.min(OPEN_FILES_USUAL)), maximum: Some(most) })?)
}

/// Some of the processors we may run on, beginning with the one we are on: the system has just chosen it as the least
/// busy, and to move costs milliseconds.
pub(crate) fn stay_on(cores: u32) -> io::Result<usize> {
    let own = rustix::thread::sched_getaffinity(None)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    if cores as usize >= all.len() {
        return Ok(all.len());
    }
    let here = rustix::thread::sched_getcpu();
    let first = all.iter().position(|cpu| *cpu == here).unwrap_or(0);
    let mut set = CpuSet::new();
    for step in 0..cores as usize {
        set.set(all[(first + step) % all.len()]);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(cores as usize)
}

/// Rules out for this process and all that come from it that they ever have more rights than they have.
pub(crate) fn bound() -> io::Result<()> {
    for number in 0..64 {
        let Some(one) = CapabilitySet::from_bits(1 << number) else { break };
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // Newer than this kernel, and so are all that follow.
            Err(Errno::INVAL) => break,
            other => other?,
        }
    }
    Ok(rustix::thread::clear_ambient_capability_set()?)
}

/// Gives up all rights but the ones named.
pub(crate) fn give_up(but: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets { effective: but, permitted: but, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Which files may be touched and how, said once more to a part of the kernel that knows nothing of mounts. True if it
/// enforces all of it.
pub(crate) fn fence(cell: &Cell) -> Result<bool, String> {
    let all = AccessFs::from_all(LANDLOCK);
    let read = AccessFs::from_read(LANDLOCK);
    let devices = read | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut rules: Vec<(PathBuf, BitFlags<AccessFs>)> = vec![
        ("/".into(), AccessFs::ReadDir.into()),
        ("/usr".into(), read),
        ("/etc".into(), AccessFs::ReadFile | AccessFs::ReadDir),
        ("/proc".into(), AccessFs::ReadFile | AccessFs::ReadDir),
        ("/dev".into(), devices),
        ("/dev/shm".into(), all),
        ("/tmp".into(), all),
        (HOME.into(), all),
    ];
    rules.extend(
        // Where these are not links into the former.
        ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/gnu", "/run"]
            .into_iter()
            .filter(|path| Path::new(path).symlink_metadata().is_ok_and(|found| !found.is_symlink()))
            .map(|path| (path.into(), read)),
    );
    rules.extend(cell.grants.iter().map(|grant| match grant.access {
        Access::Look | Access::Read => (grant.path.clone(), read),
        Access::Write | Access::Pinned => (grant.path.clone(), all),
    }));
    let explain = |e: landlock::RulesetError| e.to_string();
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|r| r.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(explain)?;
    for (path, access) in rules {
        let Ok(opened) = PathFd::new(&path) else { continue };
        let is_folder = path.is_dir();
        let access = if is_folder { access } else { access & AccessFs::from_file(LANDLOCK) };
        ruleset = ruleset.add_rule(PathBeneath::new(opened, access)).map_err(explain)?;
    }
    let enforced = ruleset.restrict_self().map_err(explain)?;
    Ok(enforced.ruleset == RulesetStatus::FullyEnforced)
}

/// The calls. With a file on which it is asked about new threads, if it is.
pub(crate) fn filter(cell: &Cell, is_grouped: bool) -> io::Result<Option<OwnedFd>> {
    let forks = if cell.limits.fork { Forks::Limited } else { Forks::Refused };
    sys::filter(&seccomp::program(forks, is_grouped), forks == Forks::Limited)
}

/// Finds the program and becomes it. Comes back only if that failed.
pub(crate) fn become_program(cell: &Cell) -> io::Error {
    let text = |part: &OsStr| CString::new(part.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let prepared = || -> io::Result<_> {
        let arguments = cell.program.iter().map(|a| text(a)).collect::<io::Result<Vec<_>>>()?;
        let pair = |(name, value): &(std::ffi::OsString, std::ffi::OsString)| {
            let mut whole = name.clone();
            whole.push("=");
            whole.push(value);
            text(&whole)
        };
        let environment = cell.environment.iter().map(pair).collect::<io::Result<Vec<_>>>()?;
        Ok((arguments, environment, find(cell)?))
    };
    let (arguments, environment, path) = match prepared() {
        Ok(prepared) => prepared,
        Err(e) => return e,
    };
    let arguments: Vec<_> = arguments.iter().map(CString::as_c_str).collect();
    let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
    let Ok(path) = text(path.as_os_str()) else { return io::ErrorKind::InvalidInput.into() };
    let Some(wanted) = cell.pinned else { return sys::execute(CWD, &path, &arguments, &environment) };
    let opened = match rustix::fs::open(path.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(opened) => std::fs::File::from(opened),
        Err(e) => return e.into(),
    };
    if opened.metadata().is_ok_and(|found| Identity::of(&found) != wanted) {
        return io::Error::from_raw_os_error(libc::ESTALE);
    }
    let failed = sys::execute(opened.as_fd(), c"", &arguments, &environment);
    // A script is read once more by its interpreter, by name.
    if failed.raw_os_error() == Some(libc::ENOENT) {
        sys::execute(CWD, &path, &arguments, &environment)
    } else {
        failed
    }
}

fn find(cell: &Cell) -> io::Result<PathBuf> {
    let name = cell.program.first().ok_or(io::ErrorKind::InvalidInput)?;
    let path = cell.environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    look_up(name, path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin")), &cell.folder)
}
