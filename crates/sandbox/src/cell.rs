//! What a cell is to be: the program, what it sees, what it may reach, and how much of everything it may use. Data only;
//! `spawner` builds one from it, `cli` and the engine write it down.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A program and the walls around it. It crosses the channel to the helper, and is stored nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The program and its arguments. A name without a slash is looked for in the `PATH` of `environment`.
    pub program: Vec<OsString>,
    /// The very file that has to be run, if somebody has looked into it before.
    pub pinned: Option<Identity>,
    /// All of it; nothing else is there.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the program starts: an absolute path that it can see.
    #[serde(with = "path")]
    pub folder: PathBuf,
    pub grants: Vec<Grant>,
    /// What it does not see although it lies within a grant. Goes before every grant.
    #[serde(with = "paths")]
    pub deny: Vec<PathBuf>,
    pub limits: Limits,
    pub network: Network,
    /// A port of the cell's own loopback on which we listen, and nobody but the cell can reach us. None of those of
    /// `network`. Where the network is the machine's own there is no such place: whoever wants to be reached listens himself.
    pub bridge: Option<u16>,
    /// Walls that may be missing on this machine. The report names the ones that were.
    pub weaker: Vec<Wall>,
}

/// A path that the cell sees. One that lies in another covers what is there: in an overlay that may be nothing, in a folder
/// it may not, since the folder would have to be changed for it. All paths are absolute, without links in them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// By which the cell knows it.
    #[serde(with = "path")]
    pub path: PathBuf,
    pub access: Access,
    pub from: Source,
}

/// Where on the machine that is what a cell sees under a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    /// Under the same path.
    Same,
    /// What the grant around it shows under that path, with other rights. It stays what it is if the machine puts something
    /// else in the place of what is shown.
    Outer,
    /// A folder or a file elsewhere.
    Folder(#[serde(with = "path")] PathBuf),
    /// The layers `lowers`, the first on top of the others, with the changes in `upper`. Changes of the cell are written to
    /// `upper`. `upper` and `work` are in the same folder, and no other cell uses them at the same time.
    Overlay {
        #[serde(with = "paths")]
        lowers: Vec<PathBuf>,
        #[serde(with = "path")]
        upper: PathBuf,
        #[serde(with = "path")]
        work: PathBuf,
    },
    /// What is in several folders, the first over the others, to be read only. What a stage is like while another cell
    /// works in it: its `upper` over its `lower`. Of what is changed after the cell was made it may see some, or none.
    Layers {
        #[serde(with = "paths")]
        lowers: Vec<PathBuf>,
    },
}

impl Grant {
    /// A path of the machine under the same name.
    pub fn same(path: impl Into<PathBuf>, access: Access) -> Self {
        Self { path: path.into(), access, from: Source::Same }
    }

    /// Returns the trees of the machine that the grant needs. An overlay with changes needs its lower layers, and last the
    /// folder of `upper` and `work`: the kernel wants both from one mount.
    pub(crate) fn origins(&self) -> Vec<Origin<'_>> {
        let as_it_is = |path, whole| Origin { path, owned_as: Path::new(""), whole };
        match &self.from {
            Source::Same => vec![as_it_is(&self.path, true)],
            Source::Outer => Vec::new(),
            Source::Folder(folder) => vec![as_it_is(folder, true)],
            Source::Overlay { lowers, upper, .. } => {
                let (folder, name) = (upper.parent().unwrap_or(upper), upper.file_name().unwrap_or_default());
                let own = Origin { path: folder, owned_as: Path::new(name), whole: false };
                lowers.iter().map(|path| as_it_is(path, false)).chain([own]).collect()
            }
            Source::Layers { lowers } => lowers.iter().map(|path| as_it_is(path, false)).collect(),
        }
    }
}

/// A tree of the machine that is needed for a grant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub path: &'a Path,
    /// What in it tells whose files are to be the cell's own.
    pub owned_as: &'a Path,
    /// With what is mounted in it.
    pub whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Access {
    /// Read and run what everybody may.
    Look,
    /// Read and run, as the one it belongs to.
    Read,
    /// Read, run and change.
    Write,
    /// Read and change, and cannot be renamed or removed: what lies in a folder that may be written to and must stay
    /// where it is.
    Pinned,
}

/// Tells a file from every other one, and from what it was before somebody changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub bytes: u64,
    pub changed: (i64, i64),
}

impl Identity {
    pub fn of(found: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// None: as long as it takes.
    pub timeout_ms: Option<u64>,
    /// Between asking the program to end and ending it.
    pub grace_ms: u64,
    pub memory_bytes: u64,
    pub cores: u32,
    /// Processes beside the program itself.
    pub children: u32,
    pub fork: bool,
    /// Of the folders `/tmp`, `/dev/shm` and the home together. They are memory, and count as such.
    pub scratch_bytes: u64,
    /// What the cell may add to the folders it may write to.
    pub disk_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Nobody but itself.
    Off,
    /// A way out that ends at our own listeners: these ports, names, and the two kinds of proxy.
    Listened { ports: Vec<u16> },
    /// The machine's own network.
    Open,
}

/// A wall of its own kind, as `doctor` and the evidence name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Wall {
    Landlock,
    Seccomp,
    Memory,
    Processes,
    Cores,
    Disk,
    Owners,
    /// What the kernel counts for all cells of a user together.
    Shares,
}

impl Wall {
    pub const ALL: [Self; 8] = [
        Self::Landlock,
        Self::Seccomp,
        Self::Memory,
        Self::Processes,
        Self::Cores,
        Self::Disk,
        Self::Owners,
        Self::Shares,
    ];

    /// Some machines do not have these. All others stand everywhere, or there is no cell.
    pub const MAY_BE_MISSING: [Self; 2] = [Self::Landlock, Self::Owners];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Cores => "cores",
            Self::Disk => "disk",
            Self::Owners => "owners",
            Self::Shares => "shares",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wall| wall.word() == word)
    }
}

/// By what a wall was kept up, or why it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub wall: Wall,
    pub by: String,
    /// Something this machine cannot do as it should be done.
    pub weaker: bool,
}

/// How it ended, and what it took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub ended: Ended,
    pub used: Used,
    pub kept: Vec<Kept>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Exited(u8),
    /// By a signal that was none of ours.
    Signalled(i32),
    /// The program could not be started: the error's number, as the system gives it.
    NotStarted(i32),
    /// It took longer than it may.
    TimedOut,
    OutOfMemory,
    /// It filled more of the disk than it may.
    OutOfDisk,
    /// A path that is covered in the cell was replaced from outside, which takes the cover away.
    Uncovered,
    /// Somebody wanted it to end.
    Cancelled,
    /// The cell could not be built: what failed. Nothing was run.
    NotBuilt(String),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub memory_bytes_peak: u64,
    pub cpu_us: u64,
    pub processes_peak: u32,
    pub disk_bytes: u64,
}

/// A small cell in which `true` is run, to find out what this machine can do. Every wall may be missing.
pub fn probe_cell(folder: &Path) -> Cell {
    Cell {
        program: vec!["true".into()],
        pinned: None,
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        folder: folder.to_owned(),
        grants: vec![Grant::same(folder, Access::Write)],
        deny: Vec::new(),
        limits: Limits {
            timeout_ms: Some(10_000),
            grace_ms: 0,
            memory_bytes: 64 << 20,
            cores: 1,
            children: 0,
            fork: true,
            scratch_bytes: 1 << 20,
            disk_bytes: 1 << 20,
        },
        network: Network::Off,
        bridge: None,
        weaker: Wall::ALL.to_vec(),
    }
}

/// A path on the wire: text, or bytes if it is not UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WirePath {
    Text(String),
    Bytes(OsString),
}

impl From<&Path> for WirePath {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.as_os_str().to_owned()),
        }
    }
}

impl From<WirePath> for PathBuf {
    fn from(path: WirePath) -> Self {
        match path {
            WirePath::Text(text) => text.into(),
            WirePath::Bytes(bytes) => bytes.into(),
        }
    }
}

pub(crate) mod path {
    use super::{Deserialize, Deserializer, Path, PathBuf, Serialize, Serializer, WirePath};

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        WirePath::from(path).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        WirePath::deserialize(from).map(PathBuf::from)
    }
}

pub(crate) mod paths {
    use super::{Deserialize, Deserializer, PathBuf, Serializer, WirePath};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| WirePath::from(path.as_path())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<WirePath>::deserialize(from)?.into_iter().map(PathBuf::from).collect())
    }
}
