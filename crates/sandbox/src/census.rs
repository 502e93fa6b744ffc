//! Counting what lives in a cell and what it takes, where the system does not count for us. Called by the cell's first
//! process, which alone sees all others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Pid;

use crate::root::HOME;

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit)).map(|e| e.path())
}

fn threads(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Processes of a cell beside the first, those that are dead and not yet buried among them, and how many threads each has
/// beside its own.
pub(crate) fn processes_and_threads() -> Vec<(Pid, u32)> {
    let count = |path: PathBuf| {
        let number = path.file_name()?.to_str()?.parse().ok().filter(|pid| *pid != 1)?;
        // A folder has as many links as folders in it, and two.
        let threads = fs::metadata(path.join("task")).map_or(1, |found| found.nlink().saturating_sub(2));
        Some((Pid::from_raw(number)?, u32::try_from(threads).unwrap_or(u32::MAX).saturating_sub(1)))
    };
    processes().filter_map(count).collect()
}

/// Memory of all processes and of the folders that are memory. The exact figure costs more, so it is taken only if the
/// cheap one, which counts shared memory several times, is above the limit.
pub(crate) fn memory_bytes(limit: u64) -> u64 {
    let accounts: Vec<Account> = processes().filter_map(|process| Account::of(&process)).collect();
    let sum = |of: fn(&Account) -> u64| accounts.iter().map(of).sum::<u64>();
    let mut beside = scratch_bytes() + shared_bytes() + memory_files() + sum(|account| account.tables);
    if sum(|account| account.mapped) > limit {
        // Mapped to be shared, touched and let go: it stays, and is in nobody's account.
        beside += shared_mappings(&accounts).saturating_sub(sum(|account| account.shared));
    }
    let most = sum(|account| account.resident) + beside;
    if most <= limit { most } else { sum(Account::proportional) + beside }
}

/// What a process has, in bytes.
struct Account {
    /// Of a thread that lives: the first may have ended, and then hides what the others have.
    folder: PathBuf,
    resident: u64,
    shared: u64,
    mapped: u64,
    /// What the system needs to keep track of it.
    tables: u64,
}

impl Account {
    fn of(process: &Path) -> Option<Self> {
        let read = |folder: &Path| {
            let text = fs::read_to_string(folder.join("status")).ok()?;
            let of = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
            };
            let mapped = of("VmSize:")?;
            let known = |name: &str| of(name).unwrap_or(0);
            let (resident, shared, tables) = (known("VmRSS:"), known("RssShmem:"), known("VmPTE:"));
            Some(Self { folder: folder.to_owned(), resident, shared, mapped, tables })
        };
        read(process).or_else(|| threads(process).find_map(|thread| read(&thread)))
    }

    /// With its share of what it shares. Where that is not told, all of it.
    fn proportional(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join("smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.map_or(self.resident, |kilobytes| kilobytes * 1024)
    }
}

/// Memory that was mapped to be shared and has no name; all of the mapping counts.
fn shared_mappings(accounts: &[Account]) -> u64 {
    let mut seen = BTreeMap::new();
    for account in accounts {
        let maps = fs::read_to_string(account.folder.join("maps")).unwrap_or_default();
        for line in maps.lines().filter(|line| line.ends_with("/dev/zero (deleted)")) {
            let mut words = line.split_whitespace();
            let range = words.next().and_then(|range| range.split_once('-'));
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
            let length = range.map_or(0, |(start, end)| number(end).saturating_sub(number(start)));
            let (offset, inode) = (words.nth(1).unwrap_or_default(), words.nth(1).unwrap_or_default());
            seen.insert((inode.to_owned(), offset.to_owned()), length);
        }
    }
    seen.values().sum()
}

fn scratch_bytes() -> u64 {
    rustix::fs::statvfs(HOME).map_or(0, |s| (s.f_blocks - s.f_bfree) * s.f_frsize)
}

/// Segments of System V, which need no process to stay.
fn shared_bytes() -> u64 {
    let text = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let resident = |line: &str| line.split_whitespace().nth(14).and_then(|bytes| bytes.parse::<u64>().ok());
    text.lines().skip(1).filter_map(resident).sum()
}

/// Files without a name or a folder, which are memory that nobody need have mapped.
fn memory_files() -> u64 {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for process in processes() {
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let is_memory =
                fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"));
            let found = is_memory.then(|| fs::metadata(entry.path()).ok()).flatten();
            if let Some(found) = found.filter(|found| seen.insert(found.ino())) {
                bytes += found.blocks() * 512;
            }
        }
    }
    bytes
}

/// A folder that the cell may write to.
#[derive(Debug)]
pub(crate) struct Written {
    /// As the cell knows it.
    path: PathBuf,
    /// Where what is written to it is kept, if that is not the folder itself. Only this process can go there.
    kept: Option<OwnedFd>,
}

impl Written {
    pub(crate) fn new(path: PathBuf, kept: Option<OwnedFd>) -> Self {
        Self { path, kept }
    }

    fn place(&self) -> PathBuf {
        // The folder behind the open file, and not the link to it.
        self.kept.as_ref().map_or(self.path.clone(), |kept| format!("/proc/self/fd/{}/.", kept.as_raw_fd()).into())
    }
}

/// The system stamps files with the time of its last tick. The slowest tick a hundred times a second.
const TICK: Duration = Duration::from_millis(20);

/// What a look at the disk has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Room that changed files take. As much as can be if some of them cannot be looked at.
    pub bytes: u64,
    pub names: u64,
}

/// How many entries are looked at between two calls of `meanwhile`.
const ENTRIES_BETWEEN: u32 = 256;

/// Looks at the files in folders of the cell that were changed since `start`. What only a program that wants to hide makes
/// counts as too much: a path too long to be followed, and a new folder that cannot be listed. `meanwhile` is called again and
/// again.
pub(crate) fn changed(folders: &[Written], start: SystemTime, meanwhile: &mut dyn FnMut()) -> Changed {
    let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_sub(TICK);
    let start = (start.as_secs().cast_signed(), i64::from(start.subsec_nanos()));
    // Some file systems know whole seconds only.
    let is_new = |found: &fs::Metadata| {
        let at = (found.ctime(), found.ctime_nsec());
        at >= start || (at.1 == 0 && at.0 == start.0)
    };
    let mut seen = BTreeSet::new();
    // Each on its own: an overlay in one of the others shows more than was written.
    let apart: BTreeSet<&Path> = folders.iter().filter(|f| f.kept.is_some()).map(|f| f.path.as_path()).collect();
    let mut waiting = Vec::new();
    let mut changed = Changed::default();
    let mut take = |path: PathBuf, found: &fs::Metadata, waiting: &mut Vec<(PathBuf, bool)>| {
        if is_new(found) {
            changed.names += 1;
            if seen.insert((found.dev(), found.ino())) {
                changed.bytes += found.blocks() * 512;
            }
        }
        if found.is_dir() {
            waiting.push((path, is_new(found)));
        }
    };
    for path in folders.iter().map(Written::place).filter(|path| !apart.contains(path.as_path())) {
        if let Ok(found) = fs::symlink_metadata(&path) {
            take(path, &found, &mut waiting);
        }
    }
    let mut is_hidden = false;
    let mut entries_looked_at = 0_u32;
    while let Some((folder, is_new_folder)) = waiting.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) => {
                let is_closed = e.kind() == std::io::ErrorKind::PermissionDenied && is_new_folder;
                if is_closed || e.kind() == std::io::ErrorKind::InvalidFilename {
                    is_hidden = true;
                    break;
                }
                continue;
            }
        };
        // Looked up from the open folder: a long way to it costs once and not for every file.
        for entry in entries.flatten() {
            entries_looked_at += 1;
            if entries_looked_at.is_multiple_of(ENTRIES_BETWEEN) {
                meanwhile();
            }
            let path = entry.path();
            if let Some(found) = entry.metadata().ok().filter(|_| !apart.contains(path.as_path())) {
                take(path, &found, &mut waiting);
            }
        }
    }
    if is_hidden {
        return Changed { bytes: u64::MAX, ..changed };
    }
    // Without a name a file takes as much room, as long as a process has it open. Its threads have the same files open, and the
    // first of them may have ended.
    for process in processes() {
        meanwhile();
        let of_thread =
            |thread: PathBuf| fs::read_dir(thread.join("fd")).into_iter().flatten().flatten().collect::<Vec<_>>();
        let open = threads(&process).map(of_thread).find(|open| !open.is_empty()).unwrap_or_default();
        for entry in open {
            let is_here = match fs::read_link(entry.path()) {
                Ok(to) => {
                    let is_gone = to.as_os_str().as_encoded_bytes().ends_with(b" (deleted)");
                    is_gone && folders.iter().any(|folder| to.starts_with(&folder.path))
                }
                // Its path is too long for the kernel to show.
                Err(e) => e.kind() == std::io::ErrorKind::InvalidFilename,
            };
            if is_here {
                // In an overlay it may be one that was only read, and is still there beneath.
                let found = fs::metadata(entry.path()).ok().filter(is_new);
                if let Some(found) = found.filter(|found| seen.insert((found.dev(), found.ino()))) {
                    changed.bytes += found.blocks() * 512;
                }
            }
        }
    }
    changed
}

/// Processes of the cell that are stopped.
pub(crate) fn stopped_processes() -> BTreeSet<i32> {
    let number = |path: PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1;
        state.starts_with('T').then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
    };
    processes().filter_map(number).collect()
}

/// All processes of the cell but the first.
pub(crate) fn process_ids() -> Vec<i32> {
    let number = |path: PathBuf| path.file_name()?.to_str()?.parse().ok().filter(|id| *id != 1);
    processes().filter_map(number).collect()
}

impl Written {
    /// Free room of the file system that is written to.
    pub(crate) fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(self.place()).map_or(u64::MAX, |disk| disk.f_bfree.saturating_mul(disk.f_frsize))
    }
}
