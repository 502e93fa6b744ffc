//! Control groups, where we may make them: one for each cell, below our own. Version 1 and version 2, side by side as
//! well; written to directly.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::cell::Limits;
use crate::wall;

/// How all our groups are called; what follows says whose they are.
const NAME: &str = "actum-";

/// Where groups can be made, by what they control.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    places: Vec<Place>,
}

#[derive(Debug, Clone)]
struct Place {
    folder: PathBuf,
    kinds: Vec<Kind>,
    version: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Processes,
    Cores,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Cores];

    const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cores => "cpu",
        }
    }
}

/// The group of one cell, in every hierarchy that has one.
#[derive(Debug)]
pub(crate) struct Group {
    folders: Vec<(PathBuf, Vec<Kind>, u8)>,
}

impl Groups {
    /// Looks for places where this process may make groups.
    pub(crate) fn find() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut places = Vec::new();
        for line in mounts.lines() {
            let Some(mount) = Mount::parse(line) else { continue };
            let Some((path, named)) = mount.group_of_ours(&own) else { continue };
            let folder = mount.at.join(path.trim_start_matches('/'));
            let kinds = match mount.version {
                1 => named,
                _ => controllers(&folder),
            };
            let place = Place { folder, kinds, version: mount.version };
            if !place.kinds.is_empty() && place.is_usable() {
                places.push(place);
            }
        }
        Self { places }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn has(&self, kind: Kind) -> Option<u8> {
        self.places.iter().find(|place| place.kinds.contains(&kind)).map(|place| place.version)
    }

    /// Makes a group; `name` is its own among all that this process makes.
    pub(crate) fn make(&self, name: &str) -> io::Result<Group> {
        let mut group = Group { folders: Vec::new() };
        for place in &self.places {
            let folder = place.folder.join(format!("{NAME}{name}"));
            if let Err(e) = fs::create_dir(&folder) {
                let _ = group.remove();
                return Err(e);
            }
            group.folders.push((folder, place.kinds.clone(), place.version));
        }
        Ok(group)
    }

    /// Removes groups whose makers are gone; they left nobody in them.
    pub(crate) fn sweep(&self) {
        for place in &self.places {
            for entry in fs::read_dir(&place.folder).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let maker = name.strip_prefix(NAME).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
                if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }
}

impl Place {
    /// By making a group and removing it.
    fn is_usable(&self) -> bool {
        let folder = self.folder.join(format!("{NAME}{}-probe", std::process::id()));
        if fs::create_dir(&folder).is_err() {
            return false;
        }
        let writable = self.version == 1 || folder.join("memory.max").exists() || folder.join("pids.max").exists();
        let _ = fs::remove_dir(&folder);
        writable
    }
}

/// What children of a group of version 2 can be limited in. Asks for it to be passed on to them; that fails where
/// processes stand in the group itself, and then there is nothing.
fn controllers(folder: &Path) -> Vec<Kind> {
    let words = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let offered = words("cgroup.controllers");
    let offers = |kind: &Kind| offered.split_whitespace().any(|word| word == kind.word());
    for kind in Kind::ALL.iter().filter(|kind| offers(kind)) {
        let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{}", kind.word()));
    }
    let passed_on = words("cgroup.subtree_control");
    Kind::ALL.into_iter().filter(|kind| passed_on.split_whitespace().any(|word| word == kind.word())).collect()
}

impl Group {
    pub(crate) fn join(&self, process: i32) -> io::Result<()> {
        for (folder, ..) in &self.folders {
            write(&folder.join("cgroup.procs"), process)?;
        }
        Ok(())
    }

    /// Whether a process is in it.
    pub(crate) fn has(&self, process: i32) -> bool {
        let is_in = |folder: &Path| {
            let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            list.lines().any(|line| line == process.to_string())
        };
        self.folders.iter().all(|(folder, ..)| is_in(folder))
    }

    fn folder(&self, wanted: Kind) -> Option<(&Path, u8)> {
        let found = self.folders.iter().find(|(_, kinds, _)| kinds.contains(&wanted));
        found.map(|(folder, _, version)| (folder.as_path(), *version))
    }

    pub(crate) fn limit(&self, limits: &Limits) -> io::Result<()> {
        self.limit_memory(limits.memory_bytes)?;
        self.limit_processes(wall::tasks_max(limits))?;
        self.limit_cores(limits.cores)
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        let Some((folder, version)) = self.folder(Kind::Memory) else { return Ok(()) };
        if version == 1 {
            let alone = folder.join("memory.limit_in_bytes");
            // Swap is not memory; machines without it have no such file.
            let both = folder.join("memory.memsw.limit_in_bytes");
            if !both.exists() {
                return write(&alone, bytes);
            }
            // Memory never exceeds memory with swap, not even between two writes: a group that had less before is given
            // more of both first.
            let _ = write(&both, bytes);
            write(&alone, bytes)?;
            write(&both, bytes)
        } else {
            write(&folder.join("memory.max"), bytes)?;
            let swap = folder.join("memory.swap.max");
            if swap.exists() { write(&swap, 0) } else { Ok(()) }
        }
    }

    fn limit_processes(&self, tasks: u32) -> io::Result<()> {
        match self.folder(Kind::Processes) {
            Some((folder, _)) => write(&folder.join("pids.max"), tasks),
            None => Ok(()),
        }
    }

    fn limit_cores(&self, cores: u32) -> io::Result<()> {
        const PERIOD_US: u32 = 100_000;
        match self.folder(Kind::Cores) {
            Some((folder, 1)) => {
                write(&folder.join("cpu.cfs_period_us"), PERIOD_US)?;
                write(&folder.join("cpu.cfs_quota_us"), cores * PERIOD_US)
            }
            Some((folder, _)) => write(&folder.join("cpu.max"), format!("{} {PERIOD_US}", cores * PERIOD_US)),
            None => Ok(()),
        }
    }

    /// Open files in which the cell's own first process can read what the group counts, though it cannot see the group.
    pub(crate) fn counters(&self) -> Vec<OwnedFd> {
        let Some((folder, version)) = self.folder(Kind::Memory) else { return Vec::new() };
        let names = match version {
            1 => ["memory.oom_control", "memory.max_usage_in_bytes", "memory.stat"],
            _ => ["memory.events", "memory.peak", "memory.stat"],
        };
        names.iter().filter_map(|name| File::open(folder.join(name)).ok()).map(OwnedFd::from).collect()
    }

    /// When all processes in it are gone.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.folders.iter().try_for_each(|(folder, ..)| match fs::remove_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        })
    }
}

fn write(path: &Path, value: impl ToString) -> io::Result<()> {
    let tell = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut f| f.write_all(value.to_string().as_bytes()))
        .map_err(tell)
}

/// What the memory group of a cell counted: read inside the cell, from files opened outside.
#[derive(Debug)]
pub(crate) struct Counters {
    events: Option<File>,
    peak: Option<File>,
    stat: Option<File>,
}

impl Counters {
    pub(crate) fn new(files: Vec<OwnedFd>) -> Self {
        let mut files = files.into_iter().map(File::from);
        Self { events: files.next(), peak: files.next(), stat: files.next() }
    }

    pub(crate) fn are_there(&self) -> bool {
        self.events.is_some()
    }

    /// Processes that were ended because there was no memory left for them.
    pub(crate) fn oom_kills(&mut self) -> u64 {
        let text = self.events.as_mut().map(read_again).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns what cannot be taken back from the group: memory of processes and of files that are memory.
    pub(crate) fn held_bytes(&mut self) -> u64 {
        let text = self.stat.as_mut().map(read_again).unwrap_or_default();
        let of = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            ["total_rss", "total_shmem", "anon", "shmem"].contains(&name).then(|| value.trim().parse::<u64>().ok())?
        };
        let (total, own): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("total_"));
        // Version 1 names what is below the group apart; the plain `shmem` there is the group's alone.
        let lines = if total.is_empty() { own } else { total };
        lines.into_iter().filter_map(of).sum()
    }

    pub(crate) fn peak_bytes(&mut self) -> Option<u64> {
        self.peak.as_mut().map(read_again)?.trim().parse().ok()
    }
}

fn read_again(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
    text
}

/// A mounted hierarchy of groups.
struct Mount<'a> {
    at: PathBuf,
    /// What part of the hierarchy is mounted there.
    root: &'a str,
    version: u8,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => 1,
            "cgroup2" => 2,
            _ => return None,
        };
        Some(Self { at: PathBuf::from(at), root, version, options: right.nth(1)? })
    }

    /// Where in it we are, as `/proc/self/cgroup` says, and what it controls if it is of version 1.
    fn group_of_ours<'b>(&self, own: &'b str) -> Option<(&'b str, Vec<Kind>)> {
        let has = |word: &str| self.options.split(',').any(|option| option == word);
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let named: Vec<Kind> =
                Kind::ALL.into_iter().filter(|kind| controllers.split(',').any(|word| word == kind.word())).collect();
            let same = match self.version {
                1 => !named.is_empty() && named.iter().all(|kind| has(kind.word())),
                _ => controllers.is_empty(),
            };
            let path = if self.root == "/" { Some(path) } else { path.strip_prefix(self.root) };
            path.filter(|_| same).map(|path| (path, named))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_matched_with_our_own_groups() {
        let own = "4:memory:/a/b\n8:pids:/\n1:cpu,cpuacct:/c\n0::/u\n";
        let of = |line: &str| {
            let mount = Mount::parse(line).unwrap();
            mount.group_of_ours(own).map(|(path, kinds)| (mount.version, path.to_owned(), kinds))
        };
        let memory = "35 24 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        assert_eq!(of(memory), Some((1, "/a/b".into(), vec![Kind::Memory])));
        let cpu = "35 24 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(of(cpu), Some((1, "/c".into(), vec![Kind::Cores])));
        let inside = "35 24 0:31 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        assert_eq!(of(inside), Some((1, "/b".into(), vec![Kind::Memory])), "a container sees a part of the hierarchy");
        assert_eq!(of("29 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw").unwrap().1, "/u");
        assert_eq!(of("35 24 0:31 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer"), None);
        assert!(Mount::parse("22 1 0:20 / /proc rw - proc proc rw").is_none());
    }
}
