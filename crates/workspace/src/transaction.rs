//! Changing a workspace as a whole: publish, undo and thaw are all this one engine.
//!
//! ```text
//! tx/ID/slot/N     before: the new content of change N; afterwards: what stood there before
//! tx/ID/journal    committed: from here on it is carried to the end, by whoever comes next
//! tx/ID/abort      somebody interfered: from here on it is taken back
//! tx/ID/reversed   taken back; only the folder is still to be removed
//! tx/ID/applied    done, but nobody has recorded it yet
//! tx/ID/done       done and recorded; what stood there before is kept in the slots
//! ```
//!
//! Every file is replaced by exchanging two names, and what comes out is compared with what should have stood there, so
//! an edit made at the last moment is seen and put back. Which changes have been made is read from the slots: each step
//! can be repeated. The caller holds the lock of the workspace throughout.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use actum_contract::blob::Blobs;
use rustix::fs::{
    AtFlags, Gid, Mode, RenameFlags, Stat, Uid, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, openat,
    renameat_with, statat, symlinkat,
};
use rustix::io::Errno;

use crate::beneath::{FILE, FOLDER, NEW, OpenFolder, Present, is_no_way, present, sync_files};
use crate::change::Change;
use crate::crash;
use crate::error::{Conflict, Error, Result, at, named, within};
use crate::journal::Publication;
use crate::path::TreePath;
use crate::record::{load, sync_parent};
use crate::tree::{Kind, Node, leaf};

/// Where the transactions of a workspace are kept: on its own file system, so that names can be exchanged.
pub(crate) fn folder_of(root: &OpenFolder) -> PathBuf {
    root.handle().join(".actum/workspace/tx")
}

/// Fails with the system's error if names cannot be exchanged in a folder, as publishing needs it.
pub fn try_exchange(folder: &Path) -> io::Result<()> {
    let (one, two) = (ProbeFile::create(folder)?, ProbeFile::create(folder)?);
    Ok(renameat_with(rustix::fs::CWD, &one.0, rustix::fs::CWD, &two.0, RenameFlags::EXCHANGE)?)
}

/// A file with a name that no other process uses. It is removed at the end.
struct ProbeFile(PathBuf);

impl ProbeFile {
    fn create(folder: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".exchange-{}-{number}", std::process::id()));
            match File::create_new(&path) {
                Ok(_) => return Ok(Self(path)),
                // Of a process with the same number: in another container, or killed.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Folders of ours above a transaction, up to the workspace: `tx`, `workspace`, `.actum`.
const OWN_FOLDERS: usize = 3;

/// What happens to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A file or link gives way to another.
    Swap {
        before: Node,
        after: Node,
    },
    Put {
        after: Node,
    },
    Take {
        before: Node,
    },
    /// Only folders come or go.
    Nothing,
}

impl Step {
    fn of(change: &Change) -> Self {
        match (leaf(change.before), leaf(change.after)) {
            (Some(before), Some(after)) => Self::Swap { before, after },
            (None, Some(after)) => Self::Put { after },
            (Some(before), None) => Self::Take { before },
            (None, None) => Self::Nothing,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Transaction<'a> {
    root: &'a OpenFolder,
    folder: PathBuf,
    slots: OwnedFd,
    publication: Publication,
}

/// What became of a transaction that was found.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Everything was changed; still to be recorded.
    Applied(Box<Publication>),
    /// Everything is as it was. Nothing in the message if it had not been committed.
    TakenBack(Option<Conflict>),
    /// Over long ago.
    Done,
}

impl<'a> Transaction<'a> {
    /// Writes new contents aside, syncs them, and commits to the changes. Nothing in the workspace is touched.
    pub(crate) fn commit(root: &'a OpenFolder, blobs: &dyn Blobs, publication: Publication) -> Result<Self> {
        let all = folder_of(root);
        if !all.is_dir() {
            fs::create_dir_all(&all).map_err(at("make", &all))?;
            // The first journal must not vanish with the folder it lies in.
            all.ancestors().take(OWN_FOLDERS).try_for_each(sync_parent)?;
        }
        let folder = all.join(&publication.id);
        let slots_path = folder.join("slot");
        // Never into a folder that is there: it would be another publication's.
        fs::create_dir(&folder).map_err(at("make", &folder))?;
        fs::create_dir(&slots_path).map_err(at("make", &slots_path))?;
        let mut this = Self::open(root, folder, publication)?;
        this.note_modes();
        match this.prepare(blobs) {
            Ok(()) => Ok(this),
            Err(e) => {
                // The journal first: a folder that is removed only in part must not be taken for a commitment.
                let _ = fs::remove_file(this.folder.join("journal"));
                let _ = sync_parent(&this.folder.join("journal"));
                let _ = fs::remove_dir_all(&this.folder);
                Err(e)
            }
        }
    }

    pub(crate) fn into_publication(self) -> Publication {
        self.publication
    }

    fn open(root: &'a OpenFolder, folder: PathBuf, publication: Publication) -> Result<Self> {
        let path = folder.join("slot");
        let slots = openat(rustix::fs::CWD, &path, FOLDER, Mode::empty()).map_err(at("open", &path))?;
        Ok(Self { root, folder, slots, publication })
    }

    /// Permissions of what goes, for the day on which it comes back.
    fn note_modes(&mut self) {
        let is_file = |node: Option<Node>| node.is_some_and(|node| node.kind.is_file());
        let goes = |change: &&Change| is_file(change.before) && !is_file(change.after);
        let gone = self.publication.changes.iter().filter(goes).map(|change| &change.path);
        let modes = gone.chain(&self.publication.folders_removed).filter_map(|path| {
            let (folder, name) = self.root.parent(path).ok()?;
            let stat = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let is_link = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink();
            (!is_link).then(|| (path.clone(), stat.st_mode & 0o777))
        });
        self.publication.modes_gone = modes.collect();
    }

    fn prepare(&self, blobs: &dyn Blobs) -> Result<()> {
        let mut names = Vec::new();
        for (slot, change) in self.publication.changes.iter().enumerate() {
            if let Some(after) = leaf(change.after) {
                self.fill(&slot.to_string(), change, after, blobs)?;
                names.push(slot.to_string());
            }
        }
        crash::point("publish.staged");
        let slots = self.folder.join("slot");
        sync_files(&self.slots, &names).map_err(at("sync", &slots))?;
        sync_parent(&slots)?;
        sync_parent(&self.folder)?;
        crash::point("publish.synced");
        self.publication.save(&self.folder.join("journal"))?;
        crash::point("publish.committed");
        Ok(())
    }

    /// Makes the new file of a change, with the permissions of the one it replaces.
    fn fill(&self, slot: &str, change: &Change, after: Node, blobs: &dyn Blobs) -> Result<()> {
        let failed = |e: io::Error| within::<io::Error>("write the new content of", &change.path)(e);
        let old = self.root.parent(&change.path).ok().and_then(|(folder, name)| {
            let stat = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((folder, name, stat))
        });
        if after.kind == Kind::Symlink {
            let target = blobs.read(after.digest)?;
            return symlinkat(target.as_slice(), &self.slots, slot).map_err(|e| failed(e.into()));
        }
        let executable = after.kind == Kind::Executable;
        let old = old.filter(|(.., stat)| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file());
        let wanted = self.publication.modes_wanted.get(&change.path).copied();
        // What replaces a private file is private from its first byte on.
        let mode = match executable {
            _ if old.is_some() || wanted.is_some() => 0o600,
            true => 0o777,
            false => 0o666,
        };
        let fd = openat(&self.slots, slot, NEW, Mode::from_raw_mode(mode)).map_err(|e| failed(e.into()))?;
        let mut file = File::from(fd);
        blobs.copy(after.digest, &mut file)?;
        if let Some((folder, name, stat)) = old {
            return adopt(&file, &folder, name, &stat, executable).map_err(failed);
        }
        self.adopt_owner(&file, &change.path).map_err(failed)?;
        let mode = match wanted {
            Some(wanted) => wanted,
            None => rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?.st_mode,
        };
        // Whatever the umask says, the executable bit is part of the content.
        fchmod(&file, Mode::from_raw_mode(bits(mode, executable))).map_err(|e| failed(e.into()))
    }

    /// A new file made by root in somebody's folder is that somebody's.
    fn adopt_owner(&self, file: &File, path: &TreePath) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let nearest = std::iter::successors(path.parent(), TreePath::parent).find_map(|p| self.root.folder(&p).ok());
        let Some(folder) = nearest else { return Ok(()) };
        let stat = rustix::fs::fstat(&folder)?;
        Ok(fchown(file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?)
    }

    /// Makes the changes; if somebody interferes, or anything fails, takes them back.
    pub(crate) fn apply(self) -> Result<Publication> {
        match self.forward() {
            Ok(()) => Ok(self.publication),
            Err(cause) => match self.take_back() {
                Ok(kept) => Err(match cause {
                    Error::Conflict(conflict) => Error::Conflict(Conflict { kept, ..conflict }),
                    other => other,
                }),
                // The next command that opens the workspace takes it back. The first failure is the reason.
                Err(worse) => Err(Error::Publisher {
                    message: format!("{cause}; taking it back failed too: {worse}"),
                    source: worse
                        .errno()
                        .or(cause.errno())
                        .map_or_else(|| io::Error::other("it could not be taken back"), io::Error::from_raw_os_error),
                }),
            },
        }
    }

    fn steps(&self) -> impl DoubleEndedIterator<Item = (String, &Change, Step)> {
        let changes = self.publication.changes.iter().enumerate();
        changes.map(|(slot, change)| (slot.to_string(), change, Step::of(change)))
    }

    fn forward(&self) -> Result<()> {
        for (slot, change, step) in self.steps().rev() {
            if let Step::Take { before } = step {
                self.take(&slot, change, before)?;
            }
        }
        // A folder that a file is to replace must go now; the others wait until nothing can fail any more.
        let puts: BTreeSet<TreePath> = self.puts().cloned().collect();
        let hinders = |path: &&TreePath| puts.contains(*path) || path.folders().any(|above| puts.contains(&above));
        for path in self.publication.folders_removed.iter().filter(hinders) {
            let gone = self.root.remove_folder(path).map_err(within("remove", path))?;
            // What stands there and is no folder was put there before a crash, or will be found by the put.
            if !gone && self.root.present(path)? == Present::Folder {
                return Err(in_the_way(path));
            }
        }
        for path in &self.publication.folders_made {
            match self.root.make_folder(path, self.publication.modes_wanted.get(path).copied()) {
                Ok(_) => {}
                Err(e) if is_no_way(&e) => return Err(conflict(path)),
                Err(e) => return Err(within("make", path)(e)),
            }
        }
        crash::point("publish.cleared");
        for (slot, change, step) in self.steps() {
            match step {
                Step::Swap { before, after } => self.swap(&slot, change, before, after)?,
                Step::Put { .. } => self.put(&slot, change)?,
                Step::Take { .. } | Step::Nothing => continue,
            }
            crash::point("publish.changed");
        }
        for path in self.publication.folders_removed.iter().filter(|path| !hinders(path)) {
            // Somebody may have put something of his own there: then it stays.
            self.root.remove_folder(path).map_err(within("remove", path))?;
        }
        self.sync()?;
        self.rename("journal", "applied")?;
        crash::point("publish.applied");
        Ok(())
    }

    fn puts(&self) -> impl Iterator<Item = &TreePath> {
        self.publication.changes.iter().filter(|c| matches!(Step::of(c), Step::Put { .. })).map(|c| &c.path)
    }

    fn slot(&self, slot: &str) -> Result<Present> {
        present(&self.slots, slot).map_err(at("read", &self.folder.join("slot").join(slot)))
    }

    fn take(&self, slot: &str, change: &Change, before: Node) -> Result<()> {
        if self.slot(slot)? == Present::Nothing {
            let (folder, name) = self.root.parent(&change.path).map_err(|e| no_way(e, &change.path))?;
            match renameat_with(&folder, name, &self.slots, slot, RenameFlags::NOREPLACE) {
                Ok(()) => {}
                Err(Errno::NOENT) => return Err(conflict(&change.path)),
                Err(e) => return Err(within("move away", &change.path)(e)),
            }
            crash::point("publish.taken");
        }
        self.expect_in_slot(slot, change, before)
    }

    fn put(&self, slot: &str, change: &Change) -> Result<()> {
        if self.slot(slot)? == Present::Nothing {
            return Ok(());
        }
        let (folder, name) = self.root.parent(&change.path).map_err(|e| no_way(e, &change.path))?;
        match renameat_with(&self.slots, slot, &folder, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            // Nobody froze it, so it is ignored, or very new. If it is what we bring, it may stay.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR) if self.root.present(&change.path)?.is(change.after) => {
                Ok(())
            }
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR) => Err(in_the_way(&change.path)),
            Err(e) => Err(within("put in place", &change.path)(e)),
        }
    }

    fn swap(&self, slot: &str, change: &Change, before: Node, after: Node) -> Result<()> {
        if self.slot(slot)? == Present::Leaf(after) {
            let (folder, name) = self.root.parent(&change.path).map_err(|e| no_way(e, &change.path))?;
            match renameat_with(&self.slots, slot, &folder, name, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(Errno::NOENT) => return Err(conflict(&change.path)),
                Err(e) => return Err(within("replace", &change.path)(e)),
            }
        }
        self.expect_in_slot(slot, change, before)
    }

    /// What came out must be what stood there when the check was made.
    fn expect_in_slot(&self, slot: &str, change: &Change, before: Node) -> Result<()> {
        if self.slot(slot)? == Present::Leaf(before) { Ok(()) } else { Err(conflict(&change.path)) }
    }

    /// Everything as it was. Where somebody has written in the meantime, his version stays; what could not go back to
    /// its place is named.
    fn take_back(&self) -> Result<Vec<String>> {
        for state in ["journal", "applied"] {
            if self.folder.join(state).exists() {
                self.rename(state, "abort")?;
            }
        }
        crash::point("publish.aborted");
        let mut kept = Vec::new();
        for (slot, change, step) in self.steps().rev() {
            let there = || self.root.parent(&change.path).map_err(within("open the folder of", &change.path));
            match step {
                Step::Swap { after, .. } => {
                    let slot_has = self.slot(&slot)?;
                    if slot_has == Present::Leaf(after) || slot_has == Present::Nothing {
                        continue;
                    }
                    if self.root.present(&change.path)? != Present::Leaf(after) {
                        kept.push(self.kept_in(&slot, change));
                        continue;
                    }
                    let (folder, name) = there()?;
                    renameat_with(&self.slots, slot.as_str(), &folder, name, RenameFlags::EXCHANGE)
                        .map_err(within("put back", &change.path))?;
                }
                Step::Put { after } => {
                    let is_ours = self.slot(&slot)? == Present::Nothing
                        && self.root.present(&change.path)? == Present::Leaf(after);
                    if is_ours {
                        let (folder, name) = there()?;
                        renameat_with(&folder, name, &self.slots, slot.as_str(), RenameFlags::NOREPLACE)
                            .map_err(within("take away", &change.path))?;
                    }
                }
                Step::Take { .. } | Step::Nothing => {}
            }
        }
        for path in self.publication.folders_made.iter().rev() {
            self.root.remove_folder(path).map_err(within("remove", path))?;
        }
        for path in self.publication.folders_removed.iter().rev() {
            match self.root.make_folder(path, self.publication.modes_gone.get(path).copied()) {
                Ok(_) => {}
                // Something of somebody else's stands there or above.
                Err(e) if is_no_way(&e) || e.kind() == io::ErrorKind::NotADirectory => {}
                Err(e) => return Err(within("make", path)(e)),
            }
        }
        for (slot, change, step) in self.steps() {
            if let Step::Take { .. } = step
                && self.slot(&slot)? != Present::Nothing
            {
                let back = self.root.parent(&change.path).ok().map(|(folder, name)| {
                    renameat_with(&self.slots, slot.as_str(), &folder, name, RenameFlags::NOREPLACE)
                });
                match back {
                    Some(Ok(())) => {}
                    Some(Err(e)) if e != Errno::EXIST => return Err(within("put back", &change.path)(e)),
                    _ => kept.push(self.kept_in(&slot, change)),
                }
            }
        }
        self.sync()?;
        crash::point("publish.reversed");
        if kept.is_empty() {
            self.rename("abort", "reversed")?;
            remove_all(&self.folder)?;
        } else {
            self.rename("abort", "kept")?;
        }
        Ok(kept)
    }

    fn kept_in(&self, slot: &str, change: &Change) -> String {
        format!("{} (its earlier content is in {})", change.path, named(&self.folder.join("slot").join(slot)).display())
    }

    fn sync(&self) -> Result<()> {
        let touched = self.publication.changes.iter().map(|change| &change.path);
        let moved = self.publication.folders_made.iter().chain(&self.publication.folders_removed);
        let folders: BTreeSet<TreePath> = touched.chain(moved).filter_map(TreePath::parent).collect();
        self.root.sync_folders(&folders.into_iter().collect::<Vec<_>>())?;
        sync_files(&self.slots, &[]).map_err(at("sync", &self.folder))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let to = self.folder.join(to);
        fs::rename(self.folder.join(from), &to).map_err(at("write", &to))?;
        sync_parent(&to)
    }
}

/// Makes the changes of a committed transaction, or takes all of them back.
pub(crate) fn finish(root: &OpenFolder, folder: &Path) -> Result<Publication> {
    let path = folder.join("journal");
    let bytes = load(&path)?.ok_or_else(|| Error::Record(path.display().to_string()))?;
    let publication = Publication::parse(&bytes, &path.display().to_string())?;
    Transaction::open(root, folder.to_owned(), publication)?.apply()
}

/// Carries a transaction that was found to an end.
pub(crate) fn resume(root: &OpenFolder, folder: &Path) -> Result<Outcome> {
    let read = |name: &str| -> Result<Option<Publication>> {
        let path = folder.join(name);
        let Some(bytes) = load(&path)? else { return Ok(None) };
        Publication::parse(&bytes, &path.display().to_string()).map(Some)
    };
    for name in ["done", "kept"] {
        if read(name)?.is_some() {
            return Ok(Outcome::Done);
        }
    }
    if let Some(publication) = read("applied")? {
        return Ok(Outcome::Applied(Box::new(publication)));
    }
    if folder.join("reversed").exists() {
        remove_all(folder)?;
        return Ok(Outcome::TakenBack(None));
    }
    if let Some(publication) = read("abort")? {
        let kept = Transaction::open(root, folder.to_owned(), publication)?.take_back()?;
        return Ok(Outcome::TakenBack(Some(Conflict { kept, ..Conflict::default() })));
    }
    match read("journal")? {
        Some(publication) => match Transaction::open(root, folder.to_owned(), publication)?.apply() {
            Ok(publication) => Ok(Outcome::Applied(Box::new(publication))),
            Err(Error::Conflict(conflict)) => Ok(Outcome::TakenBack(Some(conflict))),
            Err(e) => Err(e),
        },
        None => {
            remove_all(folder)?;
            Ok(Outcome::TakenBack(None))
        }
    }
}

/// The publication has been recorded where it counts.
pub(crate) fn settle(root: &OpenFolder, id: &str) -> Result<()> {
    let folder = folder_of(root).join(id);
    let done = folder.join("done");
    match fs::rename(folder.join("applied"), &done) {
        Ok(()) => sync_parent(&done),
        Err(e) if e.kind() == io::ErrorKind::NotFound && done.exists() => Ok(()),
        Err(e) => Err(at("write", &done)(e)),
    }
}

/// What stood in the workspace before a publication, if somebody has written to it since: an editor that held the old
/// file open. `forget` removes the rest.
pub(crate) fn late_writes(root: &OpenFolder, publication: &Publication, forget: bool) -> Result<Vec<PathBuf>> {
    let folder = folder_of(root).join(&publication.id).join("slot");
    let slots = match openat(rustix::fs::CWD, &folder, FOLDER, Mode::empty()) {
        Ok(slots) => slots,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(at("open", &folder)(e)),
    };
    let mut late = Vec::new();
    for (slot, change) in publication.changes.iter().enumerate() {
        let (name, path) = (slot.to_string(), folder.join(slot.to_string()));
        let Some(before) = leaf(change.before) else { continue };
        match present(&slots, name.as_str()).map_err(at("read", &path))? {
            Present::Nothing => {}
            found if found.is(Some(before)) && forget => {
                rustix::fs::unlinkat(&slots, name.as_str(), AtFlags::empty()).map_err(at("remove", &path))?;
            }
            found if found.is(Some(before)) => {}
            _ => late.push(named(&path)),
        }
    }
    Ok(late)
}

/// Removes a folder with everything in it, also folders that their owner has closed.
pub(crate) fn remove_all(folder: &Path) -> Result<()> {
    let remove = || match fs::remove_dir_all(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    match remove() {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            open_folders(folder);
            remove().map_err(at("remove", folder))
        }
        other => other.map_err(at("remove", folder)),
    }
}

/// Gives every folder back to its owner. What cannot be given back will be named by whoever removes it.
fn open_folders(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let _ = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
        let inside = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(inside.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
}

fn conflict(path: &TreePath) -> Error {
    Error::Conflict(Conflict { paths: vec![path.clone()], ..Conflict::default() })
}

fn in_the_way(path: &TreePath) -> Error {
    Error::Conflict(Conflict { in_the_way: vec![path.clone()], ..Conflict::default() })
}

fn no_way(e: io::Error, path: &TreePath) -> Error {
    if is_no_way(&e) { conflict(path) } else { within("open the folder of", path)(e) }
}

/// The permissions of a file with its executable bit as the content says. With an access list the bits of the group are
/// its mask, so they are not touched without need.
fn bits(mode: u32, executable: bool) -> u32 {
    let mode = mode & 0o777;
    match (executable, mode & 0o100 != 0) {
        (true, false) => mode | (mode & 0o444) >> 2 | 0o100,
        (false, true) => mode & !0o111,
        _ => mode,
    }
}

/// Permissions, owner and attributes of the file that is being replaced; only the executable bit is the content's.
fn adopt(file: &File, folder: &OwnedFd, name: &[u8], old: &Stat, executable: bool) -> io::Result<()> {
    let bits = bits(old.st_mode, executable);
    let owner = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    match fchown(file, Some(owner.0), Some(owner.1)) {
        // Only root gives files away; the group alone may still be kept.
        Err(Errno::PERM) => {
            let _ = fchown(file, None, Some(owner.1));
        }
        other => other?,
    }
    fchmod(file, Mode::from_raw_mode(bits))?;
    if let Ok(old) = openat(folder, name, FILE, Mode::empty()) {
        copy_attributes(&old, file);
    }
    // The list brings its own mask along.
    Ok(fchmod(file, Mode::from_raw_mode(bits))?)
}

/// The user's own attributes and access lists; a file system that has none loses none.
fn copy_attributes(old: &OwnedFd, new: &File) {
    const LIST_BYTES: usize = 64 << 10;
    let mut list = Vec::with_capacity(LIST_BYTES);
    if flistxattr(old, rustix::buffer::spare_capacity(&mut list)).is_err() {
        return;
    }
    for name in list.split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let is_users = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
        if is_users || name == b"system.posix_acl_access" {
            let mut value = Vec::with_capacity(LIST_BYTES);
            if fgetxattr(old, name, rustix::buffer::spare_capacity(&mut value)).is_ok() {
                let _ = fsetxattr(new, name, &value, rustix::fs::XattrFlags::empty());
            }
        }
    }
}
