//! Counting what lives in a cell and what it takes, where the system does not count for us. Called by the cell's first
//! process, which alone sees all others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::Pid;

use crate::root::HOME;

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit)).map(|e| e.path())
}

fn threads(process: &Path) -> impl Iterator<Item = PathBuf> {
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
    let page = rustix::param::page_size() as u64;
    let of = |folder: &Path| -> u64 {
        let text = fs::read_to_string(folder.join("statm")).unwrap_or_default();
        text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page
    };
    // A first thread that has ended hides the memory that the others still have.
    let resident = |process: PathBuf| match of(&process) {
        0 => threads(&process).map(|thread| of(&thread)).max().unwrap_or(0),
        bytes => bytes,
    };
    let beside = scratch_bytes() + shared_bytes() + memory_files() + shared_mappings(limit);
    let most = processes().map(resident).sum::<u64>() + beside;
    if most <= limit { most } else { processes().map(|process| proportional(&process)).sum::<u64>() + beside }
}

/// Memory that was mapped to be shared, and need not be in anybody's account: once touched and let go, it stays. All of the
/// mapping counts. Looked for only in processes that have more mapped than they may use.
fn shared_mappings(limit: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    let mut seen = BTreeMap::new();
    for process in processes() {
        let size = fs::read_to_string(process.join("statm")).unwrap_or_default();
        let size = size.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page;
        if size <= limit {
            continue;
        }
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        for line in maps.lines().filter(|line| line.ends_with("/dev/zero (deleted)")) {
            let mut words = line.split_whitespace();
            let range = words.next().and_then(|range| range.split_once('-'));
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
            let length = range.map_or(0, |(start, end)| number(end).saturating_sub(number(start)));
            let (offset, inode) = (words.nth(1).unwrap_or_default(), words.nth(1).unwrap_or_default());
            seen.insert((inode.to_owned(), offset.to_owned()), length);
        }
    }
    // What is in the account of a process already is counted twice, for no more than the limit.
    let mapped: u64 = seen.values().sum();
    if mapped > limit { mapped } else { 0 }
}

/// A process's memory with its share of what it shares.
fn proportional(process: &Path) -> u64 {
    let mut text = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
    if text.is_empty() {
        // As above. Threads have no such file, and one that hides counts for all it has.
        let page = rustix::param::page_size() as u64;
        let most = threads(process).filter_map(|thread| fs::read_to_string(thread.join("statm")).ok());
        let pages = most.filter_map(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).max().unwrap_or(0);
        text = format!("Pss: {} kB", pages * page / 1024);
    }
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
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

/// What all processes have had written to disks, and those that were waited for. No more than a sign that it is time to
/// look: room can be taken without writing, and be written to more than once.
pub(crate) fn written_bytes() -> u64 {
    let of = |process: PathBuf| -> u64 {
        let text = fs::read_to_string(process.join("io")).unwrap_or_default();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        value("write_bytes:").unwrap_or(0).saturating_sub(value("cancelled_write_bytes:").unwrap_or(0))
    };
    processes().map(of).sum()
}

/// Room that files take which were changed since `start`, in folders of the cell, and how many they are.
pub(crate) fn changed(folders: &[PathBuf], start: SystemTime) -> (u64, u64) {
    let start = start.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<PathBuf> = folders.to_vec();
    let mut bytes = 0;
    while let Some(path) = waiting.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.is_dir() {
            waiting.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        if found.ctime() >= start && seen.insert((found.dev(), found.ino())) {
            bytes += found.blocks() * 512;
        }
    }
    // Without a name a file takes as much room, as long as somebody has it open.
    for process in processes() {
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let Ok(to) = fs::read_link(entry.path()) else { continue };
            let is_gone = to.as_os_str().as_encoded_bytes().ends_with(b" (deleted)");
            if is_gone && folders.iter().any(|folder| to.starts_with(folder)) {
                let found = fs::metadata(entry.path()).ok();
                if let Some(found) = found.filter(|found| seen.insert((found.dev(), found.ino()))) {
                    bytes += found.blocks() * 512;
                }
            }
        }
    }
    (bytes, seen.len() as u64)
}
