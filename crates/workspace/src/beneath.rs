//! Reaching into a folder without ever leaving it: every name on the way is opened by itself and must be a folder, so
//! neither `..` nor a link nor a folder swapped for one leads anywhere else.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use actum_contract::digest::{Blake3, Digest};
use actum_contract::folder::FolderId;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, fsync, mkdirat, openat, readlinkat, statat, syncfs};
use rustix::io::Errno;

use crate::error::{Error, HANDLES, Result, at, within};
use crate::path::TreePath;
use crate::tree::{Kind, Node};

pub(crate) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(crate) const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// A file that must not be there yet.
pub(crate) const NEW: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Piece in which contents are read.
const PIECE_BYTES: usize = 1 << 18;

/// Beyond this many folders or files one sync of the whole file system is cheaper than one for each.
const SYNCS_MAX: usize = 32;

/// A folder that is held open: whatever its path names later, this stays the folder that was opened.
#[derive(Debug)]
pub struct OpenFolder {
    fd: OwnedFd,
    path: PathBuf,
}

/// What stands at a path right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    Nothing,
    Leaf(Node),
    Folder,
    /// A socket, a device: never ours.
    Special,
}

impl Present {
    pub(crate) fn is(self, node: Option<Node>) -> bool {
        match node {
            None => self == Self::Nothing,
            Some(node) if node.kind == Kind::Folder => self == Self::Folder,
            Some(node) => self == Self::Leaf(node),
        }
    }
}

impl OpenFolder {
    /// Opens a folder that is not a link itself. Links above it are followed.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let fd = openat(rustix::fs::CWD, path, FOLDER, Mode::empty()).map_err(at("open", path))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a folder by its absolute path. Fails if anything on the way is a link or not a folder.
    pub fn anchor(path: &Path) -> Result<Self> {
        let inner = path.strip_prefix("/").ok().and_then(|inner| TreePath::new(inner.as_os_str().as_bytes()));
        let inner = match inner {
            Some(inner) => inner,
            None if path == Path::new("/") => TreePath::ROOT,
            None => return Err(Error::Refused(format!("{} is not an absolute path without \"..\"", path.display()))),
        };
        Self::open(Path::new("/"))?.beneath(&inner)
    }

    /// Opens a folder in this one. Fails if anything on the way is a link or not a folder.
    pub fn beneath(&self, inner: &TreePath) -> Result<Self> {
        let path = self.path.join(inner.as_path());
        match self.folder(inner) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(e) if is_link_or_file(&e) => Err(Error::NotOwnFolder(path)),
            Err(e) => Err(at("open", &path)(e)),
        }
    }

    /// Returns the identity of the folder.
    pub fn id(&self) -> Result<FolderId> {
        let stat = rustix::fs::fstat(&self.fd).map_err(at("look at", &self.path))?;
        Ok(FolderId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Fails if the folder is another one than was agreed on.
    pub fn expect(self, agreed: Option<FolderId>) -> Result<Self> {
        match agreed {
            Some(agreed) if self.id()? != agreed => Err(Error::Replaced(self.path)),
            _ => Ok(self),
        }
    }

    /// Returns the path by which the folder was opened: a name for messages and records.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path that leads to the open folder itself, also if its name leads elsewhere by now.
    pub(crate) fn handle(&self) -> PathBuf {
        // The dot makes the handle a step on the way, which may be a link even where the last one may not.
        PathBuf::from(format!("{HANDLES}{}/.", self.fd.as_raw_fd()))
    }

    /// The folder at a path; an error if anything on the way is no folder.
    pub(crate) fn folder(&self, path: &TreePath) -> io::Result<OwnedFd> {
        let mut fd = self.fd.try_clone()?;
        for name in path.names() {
            fd = openat(&fd, name, FOLDER, Mode::empty())?;
        }
        Ok(fd)
    }

    /// The folder a path is in, and its name there.
    pub(crate) fn parent<'p>(&self, path: &'p TreePath) -> io::Result<(OwnedFd, &'p [u8])> {
        let (folder, name) = path.split().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.folder(&folder)?, name))
    }

    /// What stands at a path. A way that leads through something else than folders leads to nothing.
    pub(crate) fn present(&self, path: &TreePath) -> Result<Present> {
        match self.parent(path) {
            Ok((folder, name)) => present(&folder, name).map_err(within("read", path)),
            Err(e) if is_no_way(&e) => Ok(Present::Nothing),
            Err(e) => Err(within("open the folder of", path)(e)),
        }
    }

    /// Whether something that is no folder stands on the way to a path.
    pub(crate) fn is_cut_off(&self, path: &TreePath) -> Result<bool> {
        match self.parent(path) {
            Ok(_) => Ok(false),
            Err(e) if is_no_way(&e) => Ok(e.kind() != io::ErrorKind::NotFound),
            Err(e) => Err(within("open the folder of", path)(e)),
        }
    }

    /// Makes a folder whose parent is there; whether it was missing.
    pub(crate) fn make_folder(&self, path: &TreePath, mode: Option<u32>) -> io::Result<bool> {
        let (parent, name) = self.parent(path)?;
        match mkdirat(&parent, name, Mode::from_raw_mode(mode.unwrap_or(0o777))) {
            Ok(()) => {
                if let Some(mode) = mode {
                    // Whatever the umask says: it had these permissions before.
                    let made = openat(&parent, name, FOLDER, Mode::empty())?;
                    rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
                }
                Ok(true)
            }
            Err(Errno::EXIST) => openat(&parent, name, FOLDER, Mode::empty()).map(|_| false).map_err(io::Error::from),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes a folder if nothing is in it; whether it is gone.
    pub(crate) fn remove_folder(&self, path: &TreePath) -> io::Result<bool> {
        let (parent, name) = match self.parent(path) {
            Ok(parent) => parent,
            Err(e) if is_no_way(&e) => return Ok(true),
            Err(e) => return Err(e),
        };
        match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes the names in folders durable. One that is gone has nothing to make durable but in its own parent.
    pub(crate) fn sync_folders(&self, folders: &[TreePath]) -> Result<()> {
        if folders.len() > SYNCS_MAX {
            return syncfs(&self.fd).map_err(at("sync", &self.path));
        }
        for path in folders {
            match self.folder(path) {
                Ok(folder) => fsync(&folder).map_err(within("sync", path))?,
                Err(e) if is_no_way(&e) => {}
                Err(e) => return Err(within("open", path)(e)),
            }
        }
        Ok(())
    }
}

/// Room for the names that the kernel hands over at once.
const LISTING_BYTES: usize = 32 << 10;

/// The names in a folder and what they stand for, as the kernel lists them.
pub(crate) fn names(folder: impl AsFd) -> io::Result<Vec<(CString, FileType)>> {
    let mut buffer = vec![MaybeUninit::uninit(); LISTING_BYTES];
    // Through a descriptor of its own: the position in the list belongs to the open file.
    let fd = openat(&folder, c".", FOLDER, Mode::empty())?;
    let mut names = Vec::new();
    let mut listing = RawDir::new(&fd, &mut buffer);
    while let Some(entry) = listing.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(names)
}

fn is_link_or_file(e: &io::Error) -> bool {
    let code = e.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOTDIR | Errno::LOOP))
}

pub(crate) fn is_no_way(e: &io::Error) -> bool {
    let code = e.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

/// Syncs files each by itself, or all at once if there are many.
pub(crate) fn sync_files(folder: &OwnedFd, names: &[String]) -> io::Result<()> {
    if names.len() > SYNCS_MAX {
        return Ok(syncfs(folder)?);
    }
    for name in names {
        // Links have no content of their own; their names are synced with the folder.
        if let Ok(file) = openat(folder, name.as_str(), FILE, Mode::empty()) {
            fsync(&file)?;
        }
    }
    Ok(fsync(folder)?)
}

/// What a name in a folder stands for, read to the end.
pub(crate) fn present(folder: impl AsFd, name: impl rustix::path::Arg + Copy) -> io::Result<Present> {
    let stat = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Present::Nothing),
        Err(e) => return Err(e.into()),
    };
    let digest = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => return Ok(Present::Folder),
        FileType::Symlink => match readlinkat(&folder, name, Vec::new()) {
            Ok(target) => Digest::blake3(target.as_bytes()),
            Err(Errno::NOENT) => return Ok(Present::Nothing),
            Err(e) => return Err(e.into()),
        },
        FileType::RegularFile => match openat(&folder, name, FILE, Mode::empty()) {
            Ok(fd) => digest_of(File::from(fd))?,
            Err(Errno::NOENT) => return Ok(Present::Nothing),
            Err(e) => return Err(e.into()),
        },
        _ => return Ok(Present::Special),
    };
    Ok(Present::Leaf(Node { kind: kind_of(&stat), digest }))
}

fn kind_of(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Kind::Symlink,
        _ if stat.st_mode & 0o100 != 0 => Kind::Executable,
        _ => Kind::File,
    }
}

fn digest_of(mut file: File) -> io::Result<Digest> {
    let (mut hasher, mut piece) = (Blake3::default(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(&piece[..read]),
        }
    }
}
