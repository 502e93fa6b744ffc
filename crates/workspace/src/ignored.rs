//! Ignored files in a frozen stage. A snapshot does not hold them, but programs need them: dependencies, build output,
//! the repository's own folder.
//!
//! Small files and folders are copied into a layer that stages share (*extra*). A large folder becomes a copy-on-write
//! mount of its own over the live folder; a large file is mounted read-only. So staging never reads a large ignored folder.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use actum_contract::digest::Digest;
use rustix::fs::{
    AtFlags, FileType, Mode, Timestamps, fchmod, futimens, linkat, mkdirat, openat, readlinkat, statat, symlinkat,
};
use rustix::io::Errno;

use crate::base::boot_id;
use crate::beneath::{FILE, FOLDER, NEW, OpenFolder, names};
use crate::error::{Error, Result, at, within};
use crate::index::Stamp;
use crate::path::TreePath;
use crate::record::{Reader, Writer, load};
use crate::tree::DEPTH_MAX;

const MAGIC: &str = "actum extra layer 1\n";

/// An ignored folder with more entries than this is mounted, not copied.
const COPY_ENTRIES_MAX: usize = 512;
/// An ignored folder with more bytes than this is mounted, not copied.
const COPY_FOLDER_BYTES_MAX: u64 = 16 << 20;
/// A larger ignored file is mounted, not copied.
const COPY_FILE_BYTES_MAX: u64 = 64 << 20;
/// Folders of a repository of git that say where it is, and how many entries of each are copied at most.
const STEERING_OF_GIT: [&[u8]; 2] = [b"refs", b"logs"];
const STEERING_ENTRIES_MAX: usize = 50_000;
/// Mounts of one stage. Each takes a moment and, for root, two open files of the cell's first process.
pub(crate) const MOUNTS_MAX: usize = 400;

/// The ignored entries of a workspace, and how a stage shows each of them.
#[derive(Debug, Default)]
pub(crate) struct IgnoredEntries {
    /// Copied. A folder comes before its entries.
    copies: Vec<(TreePath, Stamp)>,
    /// Mounted copy-on-write.
    pub folders: Vec<TreePath>,
    /// Mounted read-only.
    pub files: Vec<TreePath>,
}

impl IgnoredEntries {
    /// Decides for each path how it is shown. `known_large` are folders that were too large the last time; they are not
    /// looked into again.
    pub(crate) fn scan(root: &OpenFolder, left_out: &[TreePath], known_large: &HashSet<TreePath>) -> Result<Self> {
        let mut found = Self::default();
        for path in left_out {
            let parent = match root.parent(path) {
                Ok((parent, _)) => parent,
                Err(_) => continue,
            };
            found.add(&parent, path, known_large)?;
        }
        if found.folders.len() + found.files.len() > MOUNTS_MAX {
            let count = found.folders.len() + found.files.len();
            return Err(Error::TooManyMounts { count, max: MOUNTS_MAX });
        }
        Ok(found)
    }

    fn add(&mut self, parent: &OwnedFd, path: &TreePath, known_large: &HashSet<TreePath>) -> Result<()> {
        let Some((_, name)) = path.split() else { return Ok(()) };
        let Some(stamp) = stamp_of(parent, name, path)? else { return Ok(()) };
        match stamp.file_type() {
            FileType::RegularFile if stamp.size() > COPY_FILE_BYTES_MAX => self.files.push(path.clone()),
            FileType::RegularFile | FileType::Symlink => self.copies.push((path.clone(), stamp)),
            FileType::Directory if known_large.contains(path) => self.folders.push(path.clone()),
            FileType::Directory => {
                let Some(folder) = open_folder(parent, name, path)? else { return Ok(()) };
                if name == b".git" {
                    // What says where the repository is stays frozen; its objects, to which git only adds until it collects
                    // them, may be large.
                    self.copies.push((path.clone(), stamp));
                    for (name, _) in names(&folder).map_err(within("list", path))? {
                        let inside = path.join(name.as_bytes());
                        match STEERING_OF_GIT.contains(&name.as_bytes()) {
                            true => self.add_folder(&folder, &inside, STEERING_ENTRIES_MAX)?,
                            false => self.add(&folder, &inside, known_large)?,
                        }
                    }
                    return Ok(());
                }
                self.add_folder(parent, path, COPY_ENTRIES_MAX)?;
            }
            // A socket or device has no content to copy.
            _ => {}
        }
        Ok(())
    }

    /// Adds a folder: copied if it has at most so many entries.
    fn add_folder(&mut self, parent: &OwnedFd, path: &TreePath, entries_max: usize) -> Result<()> {
        let Some((_, name)) = path.split() else { return Ok(()) };
        let Some(stamp) = stamp_of(parent, name, path)? else { return Ok(()) };
        let Some(folder) = open_folder(parent, name, path)? else { return Ok(()) };
        let mut small = SmallFolder { entries: vec![(path.clone(), stamp)], bytes: 0, entries_max };
        match small.fill(&folder, path, 0)? {
            true => self.copies.append(&mut small.entries),
            false => self.folders.push(path.clone()),
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.folders.is_empty() && self.files.is_empty()
    }

    /// Drops paths that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl Fn(&TreePath) -> Result<bool>) -> Result<()> {
        let mut refused = HashSet::new();
        for path in self.copies.iter().map(|(path, _)| path).chain(&self.folders).chain(&self.files) {
            if !keep(path)? {
                refused.insert(path.clone());
            }
        }
        self.copies.retain(|(path, _)| !refused.contains(path));
        self.folders.retain(|path| !refused.contains(path));
        self.files.retain(|path| !refused.contains(path));
        Ok(())
    }

    /// Identifies the layer: the same entries in the same state have the same name.
    pub(crate) fn layer_name(&self) -> String {
        // Layers are not synced: one of before a restart of the machine may have lost its content.
        let mut bytes = boot_id().into_bytes();
        for (path, stamp) in &self.copies {
            bytes.extend_from_slice(path.as_bytes());
            bytes.push(0);
            match stamp.file_type() {
                FileType::Directory => bytes.extend_from_slice(&stamp.permissions().to_le_bytes()),
                _ => stamp.write(&mut bytes),
            }
        }
        for (mark, paths) in [(b'd', &self.folders), (b'f', &self.files)] {
            for path in paths {
                bytes.push(mark);
                bytes.extend_from_slice(path.as_bytes());
                bytes.push(0);
            }
        }
        format!("extra-{}", &Digest::blake3(&bytes).to_hex()[..32])
    }

    /// Writes the layer into the new folder `to`. Files of `older` that have not changed are linked, not copied: no layer
    /// is written to once it has its name.
    pub(crate) fn write_layer(&self, live: &OpenFolder, to: &Path, older: Option<(&Path, &ExtraRecord)>) -> Result<()> {
        std::fs::create_dir(to).map_err(at("make", to))?;
        let older = match older {
            Some((path, record)) => OpenFolder::open(path).ok().map(|root| (root, &record.copies)),
            None => None,
        };
        let mut layer = ExtraLayer { live, root: OpenFolder::open(to)?, made: HashSet::new() };
        for (path, stamp) in &self.copies {
            if stamp.file_type() == FileType::Directory {
                layer.make_folder(path)?;
                continue;
            }
            let linked = older.as_ref().is_some_and(|(root, copies)| {
                copies.contains(&(path.clone(), *stamp)) && layer.link(root, path).is_ok_and(|linked| linked)
            });
            if !linked {
                layer.copy(path)?;
            }
        }
        for path in &self.folders {
            layer.make_folder(path)?;
        }
        for path in &self.files {
            layer.make_parent(path)?;
            let (parent, name) = layer.root.parent(path).map_err(within("open the folder of", path))?;
            openat(&parent, name, NEW, Mode::from_raw_mode(0o644)).map_err(within("make", path))?;
        }
        Ok(())
    }
}

/// A folder whose entries are collected until there are too many.
struct SmallFolder {
    entries: Vec<(TreePath, Stamp)>,
    bytes: u64,
    entries_max: usize,
}

impl SmallFolder {
    /// Returns false if the folder is too large to copy.
    fn fill(&mut self, folder: &OwnedFd, path: &TreePath, depth: usize) -> Result<bool> {
        if depth > DEPTH_MAX {
            return Ok(false);
        }
        for (name, _) in names(folder).map_err(within("list", path))? {
            if name.as_bytes() == b".actum" {
                continue;
            }
            let inside = path.join(name.as_bytes());
            let Some(stamp) = stamp_of(folder, name.as_bytes(), &inside)? else { continue };
            let file_type = stamp.file_type();
            if !matches!(file_type, FileType::RegularFile | FileType::Symlink | FileType::Directory) {
                continue;
            }
            self.bytes += if file_type == FileType::RegularFile { stamp.size() } else { 0 };
            self.entries.push((inside.clone(), stamp));
            if self.entries.len() > self.entries_max || self.bytes > COPY_FOLDER_BYTES_MAX {
                return Ok(false);
            }
            if file_type == FileType::Directory
                && let Some(inner) = open_folder(folder, name.as_bytes(), &inside)?
                && !self.fill(&inner, &inside, depth + 1)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns nothing for an entry that is gone or cannot be looked at.
fn stamp_of(parent: &OwnedFd, name: &[u8], path: &TreePath) -> Result<Option<Stamp>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(Stamp::of(&stat))),
        Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
        Err(e) => Err(within("look at", path)(e)),
    }
}

fn open_folder(parent: &OwnedFd, name: &[u8], path: &TreePath) -> Result<Option<OwnedFd>> {
    match openat(parent, name, FOLDER, Mode::empty()) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(e) => Err(within("open", path)(e)),
    }
}

/// The layer while it is written.
struct ExtraLayer<'a> {
    live: &'a OpenFolder,
    root: OpenFolder,
    made: HashSet<TreePath>,
}

impl ExtraLayer<'_> {
    /// Makes a folder and its parents with the permissions of the live ones. Their owner can always enter and change them.
    fn make_folder(&mut self, path: &TreePath) -> Result<()> {
        if path.is_root() || self.made.contains(path) {
            return Ok(());
        }
        self.make_parent(path)?;
        let live = self.live.parent(path).ok().and_then(|(parent, name)| stamp_of(&parent, name, path).ok().flatten());
        let mode = Mode::from_raw_mode(live.map_or(0o755, |stamp| stamp.permissions()) | 0o700);
        let (parent, name) = self.root.parent(path).map_err(within("open the folder of", path))?;
        mkdirat(&parent, name, mode).map_err(within("make", path))?;
        let made = openat(&parent, name, FOLDER, Mode::empty()).map_err(within("open", path))?;
        fchmod(&made, mode).map_err(within("set permissions of", path))?;
        self.made.insert(path.clone());
        Ok(())
    }

    fn make_parent(&mut self, path: &TreePath) -> Result<()> {
        match path.parent() {
            Some(parent) => self.make_folder(&parent),
            None => Ok(()),
        }
    }

    /// Returns whether the file of an older layer could be linked.
    fn link(&mut self, older: &OpenFolder, path: &TreePath) -> Result<bool> {
        self.make_parent(path)?;
        let Ok((from, name)) = older.parent(path) else { return Ok(false) };
        let (to, _) = self.root.parent(path).map_err(within("open the folder of", path))?;
        Ok(linkat(&from, name, &to, name, AtFlags::empty()).is_ok())
    }

    fn copy(&mut self, path: &TreePath) -> Result<()> {
        self.make_parent(path)?;
        let Ok((from, name)) = self.live.parent(path) else { return Ok(()) };
        let (to, _) = self.root.parent(path).map_err(within("open the folder of", path))?;
        match copy_entry(&from, &to, name, path) {
            // Removed or closed since the folder was listed.
            Err(Error::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

fn copy_entry(from: &OwnedFd, to: &OwnedFd, name: &[u8], path: &TreePath) -> Result<()> {
    let Some(stamp) = stamp_of(from, name, path)? else { return Ok(()) };
    match stamp.file_type() {
        FileType::Symlink => {
            let target = readlinkat(from, name, Vec::new()).map_err(within("read the link", path))?;
            symlinkat(AsRef::<CStr>::as_ref(&target), to, name).map_err(within("make", path))
        }
        FileType::RegularFile => {
            let mut old = File::from(openat(from, name, FILE, Mode::empty()).map_err(within("read", path))?);
            let new = openat(to, name, NEW, Mode::from_raw_mode(0o600)).map_err(within("make", path))?;
            let mut new = File::from(new);
            io::copy(&mut old, &mut new).map_err(within("copy", path))?;
            set_stamp(&new, &stamp, path)
        }
        _ => Ok(()),
    }
}

/// Gives a copy the permissions and the modification time of the original.
pub(crate) fn set_stamp(file: &File, stamp: &Stamp, path: &TreePath) -> Result<()> {
    fchmod(file, Mode::from_raw_mode(stamp.permissions())).map_err(within("set permissions of", path))?;
    let modified = stamp.modified();
    let times = Timestamps { last_access: modified, last_modification: modified };
    futimens(file, &times).map_err(within("set the time of", path))
}

/// The newest extra layer of a workspace: what it was made from.
#[derive(Debug, Default)]
pub(crate) struct ExtraRecord {
    pub name: String,
    copies: HashSet<(TreePath, Stamp)>,
    pub large: HashSet<TreePath>,
}

impl ExtraRecord {
    pub(crate) fn new(name: String, entries: &IgnoredEntries) -> Self {
        let copies = entries.copies.iter().filter(|(_, stamp)| stamp.file_type() != FileType::Directory);
        Self { name, copies: copies.cloned().collect(), large: entries.folders.iter().cloned().collect() }
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.bytes(self.name.as_bytes()).number(self.copies.len() as u64);
        for (path, stamp) in &self.copies {
            let mut bytes = Vec::new();
            stamp.write(&mut bytes);
            record.bytes(path.as_bytes()).bytes(&bytes);
        }
        record.number(self.large.len() as u64);
        for path in &self.large {
            record.bytes(path.as_bytes());
        }
        record.save(path, false)
    }

    /// Returns nothing if there is none that can be used.
    pub(crate) fn load(path: &Path) -> Option<Self> {
        let bytes = load(path).ok()??;
        let mut record = Reader::new(MAGIC, &bytes, "extra").ok()?;
        let mut found = Self { name: record.text().ok()?, ..Self::default() };
        for _ in 0..record.number().ok()? {
            let path = record.path().ok()?;
            found.copies.insert((path, Stamp::read(record.bytes().ok()?.first_chunk()?)));
        }
        for _ in 0..record.number().ok()? {
            found.large.insert(record.path().ok()?);
        }
        Some(found)
    }
}
