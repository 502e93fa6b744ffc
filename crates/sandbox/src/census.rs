//! Counting what lives in a cell and what it takes, where the system does not count for us. Called by the cell's first
//! process, which alone sees all others.

use std::collections::BTreeSet;
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
    let resident = |process: PathBuf| -> u64 {
        let text = fs::read_to_string(process.join("statm")).unwrap_or_default();
        text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page
    };
    let beside = scratch_bytes() + shared_bytes() + memory_files();
    let most = processes().map(resident).sum::<u64>() + beside;
    if most <= limit { most } else { processes().map(|process| proportional(&process)).sum::<u64>() + beside }
}

/// A process's memory with its share of what it shares.
fn proportional(process: &Path) -> u64 {
    let text = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
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

/// What all processes, the buried ones too, have had written to disks.
pub(crate) fn written_bytes() -> u64 {
    let of = |process: PathBuf| -> u64 {
        let text = fs::read_to_string(process.join("io")).unwrap_or_default();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        value("write_bytes:").unwrap_or(0).saturating_sub(value("cancelled_write_bytes:").unwrap_or(0))
    };
    processes().map(of).sum()
}

/// Room that files take which were changed since `start`, in folders of the cell.
pub(crate) fn changed_bytes(folders: &[PathBuf], start: SystemTime) -> u64 {
    let start = start.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<PathBuf> = folders.to_vec();
    let mut bytes = 0;
    while let Some(path) = waiting.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.is_dir() {
            waiting.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if found.ctime() >= start && seen.insert((found.dev(), found.ino())) {
            bytes += found.blocks() * 512;
        }
    }
    bytes
}
