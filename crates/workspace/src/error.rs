//! What can go wrong with a file tree, each with what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use actum_contract::blob::BlobError;
use actum_contract::digest::Digest;

use crate::TreePath;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {doing} {place}: {source}")]
    Io { doing: &'static str, place: String, source: io::Error },
    /// The process that publishes could not do it.
    #[error("{message}")]
    Publisher { message: String, source: io::Error },
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Sockets, pipes and devices have no content that could be kept.
    #[error("{} cannot be part of a snapshot: {}", one_or_many(.0, "a special file", "special files"), list(.0.iter().map(|(p, kind)| format!("{p} ({kind})"))))]
    Special(Vec<(TreePath, &'static str)>),
    #[error("{0} keeps changing while it is read")]
    Changing(TreePath),
    #[error("{} in the stage is a hard link to a file that is not in it", list(.0.iter()))]
    LinkedOutside(Vec<TreePath>),
    #[error("{0} in the stage was left by an overlay with features this program turns off ({1})")]
    ForeignOverlay(TreePath, &'static str),
    #[error("{0} is no record of this program, or a broken one")]
    Record(String),
    #[error("{0} was made by a newer version of this program")]
    Newer(String),
    #[error("{digest} is not a folder of a snapshot: {why}")]
    Tree { digest: Digest, why: &'static str },
    #[error("there is no {what} {id:?}")]
    Unknown { what: &'static str, id: String },
    #[error("{id:?} is the beginning of several {what}s: {}", list(.found.iter()))]
    Ambiguous { what: &'static str, id: String, found: Vec<String> },
    /// Somebody else changed what was to be changed; nothing was written.
    #[error("{0}")]
    Conflict(Conflict),
    #[error("the workspace holds changes that no snapshot has; {0} paths would be overwritten")]
    Unsaved(usize),
    #[error("{count} ignored folders and files are too large to copy into a stage; {max} can be mounted")]
    TooManyMounts { count: usize, max: usize },
    #[error("a publication was interrupted just now, and the workspace is between two states")]
    Interrupted,
    #[error("a program is still running in stage {0}")]
    Busy(String),
    #[error("stage {0} was applied already")]
    Applied(String),
    #[error("{0}")]
    Refused(String),
    /// Following it could lead out of the project.
    #[error("{} is a link or not a folder, or lies behind one", .0.display())]
    NotOwnFolder(PathBuf),
    #[error("{} is not the folder that it was when the run was submitted", .0.display())]
    Replaced(PathBuf),
    #[error("bad pattern {pattern:?}: {why}")]
    Pattern { pattern: String, why: String },
    #[error("this machine cannot stage by {mode}: {why}")]
    Mode { mode: &'static str, why: String },
}

/// Why nothing was published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conflict {
    pub paths: Vec<TreePath>,
    /// Paths where something stands that no snapshot knows, because it is ignored.
    pub in_the_way: Vec<TreePath>,
    /// Paths where somebody wrote while the change was being taken back, and where both versions were kept.
    pub kept: Vec<String>,
}

impl Conflict {
    /// Returns the paths that stopped the publication.
    pub fn all_paths(&self) -> Vec<String> {
        self.paths.iter().chain(&self.in_the_way).map(ToString::to_string).collect()
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.paths.is_empty() {
            write!(
                f,
                "{} changed meanwhile: {}",
                one_or_many(&self.paths, "a path", "paths"),
                list(self.paths.iter())
            )?;
        }
        if !self.in_the_way.is_empty() {
            let between = if self.paths.is_empty() { "" } else { "; " };
            write!(f, "{between}other or ignored files are in the way at {}", list(self.in_the_way.iter()))?;
        }
        Ok(())
    }
}

/// Paths named in a message; the rest is counted.
const NAMED_MAX: usize = 20;

fn list<T: ToString>(items: impl ExactSizeIterator<Item = T>) -> String {
    let more = items.len().saturating_sub(NAMED_MAX);
    let mut text = items.take(NAMED_MAX).map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn one_or_many<T>(items: &[T], one: &str, many: &str) -> String {
    if items.len() == 1 { one.to_owned() } else { format!("{} {many}", items.len()) }
}

impl Error {
    /// The system's own number for what failed.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Publisher { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// What was to be opened is not there.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(rustix::io::Errno::NOENT.raw_os_error())
    }

    /// Whether this user may not do it.
    pub(crate) fn is_permission_denied(&self) -> bool {
        self.errno() == Some(rustix::io::Errno::ACCESS.raw_os_error())
    }

    /// Returns what the system answered, if that is what failed.
    pub fn io_source(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. } | Self::Publisher { source, .. } | Self::Blob(BlobError::Io { source, .. }) => {
                Some(source)
            }
            _ => None,
        }
    }
}

/// An error while `doing` something to a path of the machine.
pub(crate) fn at<E: Into<io::Error>>(doing: &'static str, place: &Path) -> impl FnOnce(E) -> Error + use<E> {
    let place = named(place).display().to_string();
    move |source| Error::Io { doing, place, source: source.into() }
}

/// Where the kernel lists the descriptors of this process.
pub(crate) const HANDLES: &str = "/proc/self/fd/";

/// Returns the name of a path that begins with a descriptor of this process.
pub(crate) fn named(path: &Path) -> PathBuf {
    let Ok(inner) = path.strip_prefix(HANDLES) else { return path.to_owned() };
    let mut names = inner.components();
    let handle = names.next().map(|fd| Path::new(HANDLES).join(fd));
    match handle.and_then(|handle| std::fs::read_link(handle).ok()) {
        Some(folder) => folder.join(names.as_path()),
        None => path.to_owned(),
    }
}

/// An error while `doing` something to a path of a tree.
pub(crate) fn within<E: Into<io::Error>>(doing: &'static str, path: &TreePath) -> impl FnOnce(E) -> Error + use<E> {
    let place = if path.is_root() { "the workspace".to_owned() } else { path.to_string() };
    move |source| Error::Io { doing, place, source: source.into() }
}
