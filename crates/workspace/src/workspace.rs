//! A folder that is worked on: frozen, changed as a whole, brought back. The door through which everything goes; it
//! holds the lock where the workspace is changed, and finishes what a crash has left before anything else.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use actum_contract::blob::{Batch, Blobs};
use actum_contract::digest::Digest;
use rustix::fs::OFlags;

use crate::beneath::OpenFolder;
use crate::change::Change;
use crate::crash;
use crate::error::{Conflict, Error, Result, at, named};
use crate::fit::{Ground, fit};
use crate::freeze::{Frozen, Request, RulesFrom, freeze};
use crate::journal::{Cause, Modes, Publication};
use crate::path::TreePath;
use crate::record::listed;
use crate::rule::Rules;
use crate::snapshot::Snapshot;
use crate::stage::{Sealed, Stage, one_of};
use crate::transaction::{self, Outcome, Transaction, folder_of, try_exchange};
use crate::tree::{self, Kind};
use crate::{pending, publisher};

/// A folder, where we keep what we know about it, and where contents are.
#[derive(Debug)]
pub struct Workspace {
    root: OpenFolder,
    home: PathBuf,
    blobs: Arc<dyn Blobs>,
}

/// What the last process to change the workspace had left undone.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Carried to their end, or found at it; to be recorded, then settled.
    pub applied: Vec<Publication>,
    /// Taken back, with what stood in their way.
    pub taken_back: Vec<Conflict>,
}

/// Held while the workspace is changed; dies with its owner.
#[derive(Debug)]
pub struct Lock(File);

/// A change that is to be made, and to what.
struct Wanted {
    id: String,
    cause: Cause,
    of: String,
    at_ms: u64,
    /// The state the changes were made from.
    base: Digest,
    changes: Vec<Change>,
    /// Leave paths that others changed as they are instead of refusing everything.
    keep: bool,
    /// Permissions that what comes back had.
    modes: Modes,
}

impl Workspace {
    /// `home` is the folder in which this program keeps its own things, usually `.actum` in the workspace itself.
    pub fn open(root: &Path, home: &Path, blobs: Arc<dyn Blobs>) -> Result<Self> {
        let root = fs::canonicalize(root).map_err(at("find", root))?;
        Self::at(OpenFolder::anchor(&root)?, home, blobs)
    }

    /// Opens a workspace whose folder is open already, and is not looked up again.
    pub fn at(root: OpenFolder, home: &Path, blobs: Arc<dyn Blobs>) -> Result<Self> {
        let own = home.join("workspace");
        for folder in ["index", "snapshots"] {
            let folder = own.join(folder);
            fs::create_dir_all(&folder).map_err(at("make", &folder))?;
        }
        let home = fs::canonicalize(home).map_err(at("find", home))?;
        crate::thaw::remove_dead(&home)?;
        Ok(Self { root, home, blobs })
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    pub fn blobs(&self) -> &dyn Blobs {
        &*self.blobs
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn root(&self) -> &OpenFolder {
        &self.root
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;

        let name = Digest::blake3(self.path().as_os_str().as_bytes()).to_hex();
        self.home.join("workspace/index").join(&name[..32])
    }

    /// Freezes the workspace and keeps the snapshot. Waits while somebody is changing it.
    pub fn freeze(&self, rules: &Rules, paranoid: bool, at_ms: u64) -> Result<Frozen> {
        Ok(self.freeze_held(rules, paranoid, at_ms)?.0)
    }

    /// The same; as long as the batch is held, nobody gives the snapshot up.
    pub fn freeze_held(&self, rules: &Rules, paranoid: bool, at_ms: u64) -> Result<(Frozen, Box<dyn Batch + '_>)> {
        let _still = self.lock_shared()?;
        let batch = self.blobs.batch()?;
        let frozen = self.freeze_into(&*batch, rules, paranoid)?;
        self.keep(&frozen, rules, at_ms)?;
        Ok((frozen, batch))
    }

    /// What the workspace is now, without keeping it.
    pub fn state(&self, rules: &Rules) -> Result<Digest> {
        let _still = self.lock_shared()?;
        Ok(self.freeze_into(&*self.blobs.batch()?, rules, false)?.id)
    }

    /// The same, for whoever holds the lock.
    pub fn state_held(&self, _held: &Lock, rules: &Rules) -> Result<Digest> {
        Ok(self.freeze_into(&*self.blobs.batch()?, rules, false)?.id)
    }

    /// Keeps a snapshot whose contents are stored, while the batch that stored them is still held.
    fn keep(&self, frozen: &Frozen, rules: &Rules, at_ms: u64) -> Result<()> {
        let Frozen { id, files, bytes, .. } = *frozen;
        let (folder, rules) = (self.path().to_owned(), rules.clone());
        let snapshot = Snapshot { id, at_ms, folder, files, bytes, pinned: false, rules };
        snapshot.keep(&self.home)?;
        crash::point("freeze.recorded");
        Ok(())
    }

    pub(crate) fn freeze_into(&self, batch: &dyn Batch, rules: &Rules, paranoid: bool) -> Result<Frozen> {
        let index = self.index_path();
        let request = Request {
            folder: &self.root.handle(),
            rules,
            rules_from: RulesFrom::Folder,
            index: &index,
            paranoid,
            own_links_only: false,
        };
        let frozen = freeze(&request, &*self.blobs, batch)?;
        batch.commit()?;
        Ok(frozen)
    }

    /// Held while the workspace is looked at as a whole. Who was waited for may have died in the middle. A folder that
    /// is not ours gets nothing written into it only because it is looked at.
    fn lock_shared(&self) -> Result<Option<File>> {
        let file = match self.root.handle().join(".actum").is_dir() {
            true => {
                let (path, file) = self.lock_file()?;
                file.lock_shared().map(|()| Some(file)).map_err(at("lock", &path))?
            }
            false => None,
        };
        let is_torn = |folder: &PathBuf| !is_over(folder) && !folder.join("applied").exists();
        match self.transactions()?.iter().any(is_torn) {
            true => Err(Error::Interrupted),
            false => Ok(file),
        }
    }

    /// Waits until nobody else is changing the workspace.
    pub fn lock(&self) -> Result<Lock> {
        make_own_folder(&self.root.handle().join(".actum"))?;
        let (path, file) = self.lock_file()?;
        file.lock().map_err(at("lock", &path))?;
        Ok(held_by_us(file))
    }

    fn lock_file(&self) -> Result<(PathBuf, File)> {
        open_lock(&self.root)
    }

    /// Whether anything was left behind by a process that died; asks without locking.
    pub fn is_interrupted(&self) -> Result<bool> {
        Ok(self.transactions()?.iter().any(|folder| !is_over(folder)))
    }

    fn transactions(&self) -> Result<Vec<PathBuf>> {
        listed(&folder_of(&self.root))
    }

    /// Carries everything a dead process has left to an end. What is `applied` must be recorded, then settled.
    pub fn recover(&self, _held: &Lock) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        for folder in self.transactions()?.into_iter().filter(|folder| !is_over(folder)) {
            match transaction::resume(&self.root, &folder)? {
                Outcome::Applied(publication) => recovered.applied.push(*publication),
                Outcome::TakenBack(conflict) => recovered.taken_back.extend(conflict),
                Outcome::Done => {}
            }
        }
        Ok(recovered)
    }

    /// The publication has been recorded; from now on it is history. Returns files that somebody wrote to although
    /// they had just been replaced.
    pub fn settle(&self, publication: &Publication) -> Result<Vec<PathBuf>> {
        if publication.changes.is_empty() {
            return Ok(Vec::new());
        }
        transaction::settle(&self.root, &publication.id)?;
        crash::point("publish.settled");
        transaction::late_writes(&self.root, publication, false)
    }

    /// Every publication that was made, oldest first.
    pub fn publications(&self) -> Result<Vec<Publication>> {
        self.publications_in(&["done", "applied"])
    }

    /// Every publication in one of these states.
    pub(crate) fn publications_in(&self, states: &[&str]) -> Result<Vec<Publication>> {
        let mut all = Vec::new();
        for folder in self.transactions()? {
            for name in states {
                let path = folder.join(name);
                if let Some(bytes) = crate::record::load(&path)? {
                    all.push(Publication::parse(&bytes, &path.display().to_string())?);
                }
            }
        }
        all.sort_by(|a, b| (a.at_ms, &a.id).cmp(&(b.at_ms, &b.id)));
        Ok(all)
    }

    /// The publication whose id begins so, or that of the stage whose id begins so.
    pub fn publication(&self, prefix: &str) -> Result<Publication> {
        let is_meant =
            |p: &Publication| p.id.starts_with(prefix) || (p.cause == Cause::Publish && p.of.starts_with(prefix));
        let found: Vec<_> = self.publications()?.into_iter().filter(is_meant).collect();
        let ids = found.iter().map(|p| p.id.clone()).collect();
        one_of("publication", prefix, found, ids)
    }

    pub(crate) fn forget_publication(&self, id: &str) -> Result<()> {
        transaction::remove_all(&folder_of(&self.root).join(id))
    }

    /// Applies what a stage has come to, all of it or nothing, and once.
    pub fn publish(&self, held: &Lock, stage: &Stage, id: &str, at_ms: u64) -> Result<(Publication, Sealed)> {
        if self.publications()?.iter().any(|p| p.cause == Cause::Publish && p.of == stage.id) {
            return Err(Error::Applied(stage.id.clone()));
        }
        let batch = self.blobs.batch()?;
        let sealed = stage.seal_into(self, &*batch)?;
        let wanted = Wanted {
            id: id.to_owned(),
            cause: Cause::Publish,
            of: stage.id.clone(),
            at_ms,
            base: sealed.base,
            changes: sealed.changes.clone(),
            keep: false,
            modes: Modes::new(),
        };
        let publication = self.change(held, wanted, stage.rules(), batch)?;
        Ok((publication, sealed))
    }

    /// Takes a publication back, wherever what it left still stands; the rest is kept as it is and named.
    pub fn undo(&self, held: &Lock, earlier: &Publication, rules: &Rules, id: &str, at_ms: u64) -> Result<Publication> {
        let wanted = Wanted {
            id: id.to_owned(),
            cause: Cause::Undo,
            of: earlier.id.clone(),
            at_ms,
            base: earlier.after,
            changes: earlier.changes.iter().map(Change::reversed).collect(),
            keep: true,
            modes: earlier.modes_gone.clone(),
        };
        let batch = self.blobs.batch()?;
        self.change(held, wanted, rules, batch)
    }

    /// Whether a thaw would be refused, found out before anything is written.
    pub fn may_thaw(&self, target: Digest, rules: &Rules, discard: bool) -> Result<()> {
        self.refuse_to_discard(self.state(rules)?, target, discard)
    }

    fn refuse_to_discard(&self, now: Digest, target: Digest, discard: bool) -> Result<()> {
        if now == target || discard || self.is_recorded(now)? {
            return Ok(());
        }
        Err(Error::Unsaved(tree::diff(&*self.blobs, now, target)?.len()))
    }

    /// Brings the workspace to a snapshot. What it holds now must be a snapshot already, unless `discard` is said; even
    /// then it becomes one first.
    pub fn thaw(
        &self,
        held: &Lock,
        target: Digest,
        rules: &Rules,
        id: &str,
        at_ms: u64,
        discard: bool,
    ) -> Result<Publication> {
        let batch = self.blobs.batch()?;
        let now = self.freeze_into(&*batch, rules, false)?;
        self.refuse_to_discard(now.id, target, discard)?;
        self.keep(&now, rules, at_ms)?;
        let changes = tree::diff(&*self.blobs, now.id, target)?;
        let of = target.to_hex();
        let (id, modes) = (id.to_owned(), Modes::new());
        let wanted = Wanted { id, cause: Cause::Thaw, of, at_ms, base: now.id, changes, keep: false, modes };
        self.change(held, wanted, rules, batch)
    }

    /// Whether a state can be had again: as a snapshot, or as what a publication found or left.
    fn is_recorded(&self, id: Digest) -> Result<bool> {
        let published = || Ok::<_, Error>(self.publications()?.iter().any(|p| p.before == id || p.after == id));
        Ok(Snapshot::is_kept(&self.home, id) || published()?)
    }

    /// Returns what would stop changes made from `base` from being published on the workspace as it is now.
    pub fn find_conflict(&self, base: Digest, changes: &[Change], rules: &Rules) -> Result<Option<Conflict>> {
        let batch = self.blobs.batch()?;
        let now = self.freeze_into(&*batch, rules, false)?;
        batch.commit()?;
        let fit = fit(&*self.blobs, Ground::Disk(&self.root), base, changes, now.id)?;
        let conflict = Conflict { paths: fit.conflicts, in_the_way: fit.in_the_way, kept: Vec::new() };
        Ok(Some(conflict).filter(|found| !(found.paths.is_empty() && found.in_the_way.is_empty())))
    }

    /// The one way in which a workspace is changed.
    fn change(&self, held: &Lock, wanted: Wanted, rules: &Rules, batch: Box<dyn Batch + '_>) -> Result<Publication> {
        let now = self.freeze_into(&*batch, rules, false)?;
        let mut fit = fit(&*self.blobs, Ground::Disk(&self.root), wanted.base, &wanted.changes, now.id)?;
        let fits = fit.conflicts.is_empty() && fit.in_the_way.is_empty();
        if !fits && !wanted.keep {
            let (paths, in_the_way) = (fit.conflicts, fit.in_the_way);
            return Err(Error::Conflict(Conflict { paths, in_the_way, kept: Vec::new() }));
        }
        fit.conflicts.append(&mut fit.in_the_way);
        fit.leave_what_depends_on_conflicts();
        let after = tree::apply(&*self.blobs, &*batch, now.id, &fit.changes)?;
        batch.commit()?;
        let (folders_made, folders_removed) = folders(&*self.blobs, &fit.changes, now.id, after)?;
        let publication = Publication {
            id: wanted.id,
            cause: wanted.cause,
            of: wanted.of,
            at_ms: wanted.at_ms,
            before: now.id,
            after,
            changes: fit.changes,
            drift: fit.drift,
            kept: fit.conflicts,
            folders_made,
            folders_removed,
            modes_gone: Modes::new(),
            modes_wanted: wanted.modes,
        };
        if publication.changes.is_empty() {
            return Ok(publication);
        }
        let id = publication.id.clone();
        pending::mark(&self.home, &id, self.path())?;
        crash::point("publish.marked");
        let made = self.carry_out(held, publication, batch);
        // A publication that was taken back as a whole is settled; one that is still between two states is pending.
        if made.is_err() && !folder_of(&self.root).join(&id).exists() {
            pending::forget(&self.home, &id)?;
        }
        made
    }

    /// Commits to a publication and has it finished, by a process that survives this one.
    fn carry_out(&self, held: &Lock, publication: Publication, batch: Box<dyn Batch + '_>) -> Result<Publication> {
        let id = publication.id.clone();
        // Before the commit: from then on there is always a process that finishes it.
        let process = publisher::start(&self.root, &id, held.0.as_fd())?;
        let transaction = match Transaction::commit(&self.root, &*self.blobs, publication) {
            Ok(transaction) => transaction,
            Err(e) => {
                process.into_iter().for_each(|process| process.abandon());
                return Err(e);
            }
        };
        // The journal refers to the contents from here on.
        drop(batch);
        match process {
            None => transaction.apply(),
            Some(process) => {
                let publication = transaction.into_publication();
                publisher::finish(&self.root, &id, process)?;
                Ok(publication)
            }
        }
    }

    /// Whether a publication is between two states: committed or being taken back, and not at its end.
    pub fn is_torn(&self, id: &str) -> bool {
        let folder = folder_of(&self.root).join(id);
        ["journal", "abort"].iter().any(|name| folder.join(name).exists())
    }

    /// Whether a publication needs nothing more: it is recorded, or was taken back.
    pub fn is_settled(&self, id: &str) -> bool {
        let folder = folder_of(&self.root).join(id);
        !folder.exists() || is_over(&folder)
    }

    /// Removes the marker of a publication about which folder, run and ledger agree.
    pub fn forget_pending(&self, id: &str) -> Result<()> {
        pending::forget(&self.home, id)
    }

    /// Fails if results cannot be published to this workspace: its file system is read-only or cannot exchange two names.
    pub fn check_publishing(&self) -> Result<()> {
        let own = self.root.handle().join(".actum");
        make_own_folder(&own)?;
        try_exchange(&own).map_err(at("publish to", self.path()))
    }

    /// Locks the workspace, or returns the process that holds its lock.
    pub fn try_lock(&self) -> Result<std::result::Result<Lock, LockHolder>> {
        let (path, file) = match make_own_folder(&self.root.handle().join(".actum")).and_then(|()| self.lock_file()) {
            // The lock of another user cannot be taken. It can be read, so the message says which process holds it.
            Err(e) if e.is_permission_denied() => return self.lock_holder().map(Err).ok_or(e),
            found => found?,
        };
        match file.try_lock() {
            Ok(()) => Ok(Ok(held_by_us(file))),
            Err(fs::TryLockError::WouldBlock) => {
                Ok(Err(LockHolder(fs::read_to_string(&path).unwrap_or_default().trim().to_owned())))
            }
            Err(fs::TryLockError::Error(e)) => Err(at("lock", &path)(e)),
        }
    }
}

impl Workspace {
    /// Returns the process that holds the lock, for a user who may not take it.
    fn lock_holder(&self) -> Option<LockHolder> {
        let path = self.root.handle().join(".actum/workspace/lock");
        let file = File::open(&path).ok()?;
        match file.try_lock_shared() {
            Err(fs::TryLockError::WouldBlock) => {
                Some(LockHolder(fs::read_to_string(&path).unwrap_or_default().trim().to_owned()))
            }
            _ => None,
        }
    }
}

/// The process that holds a workspace's lock, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder(String);

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "another process" } else { &self.0 })
    }
}

/// Writes into the lock which process holds it, for those that wait.
fn held_by_us(file: File) -> Lock {
    describe_holder(&file);
    Lock(file)
}

/// Opens the lock of a workspace, and makes it if there is none yet.
fn open_lock(root: &OpenFolder) -> Result<(PathBuf, File)> {
    let folder = root.handle().join(".actum/workspace");
    fs::create_dir_all(&folder).map_err(at("make", &folder))?;
    // It is written to: neither it nor its folder may be a link that leads elsewhere.
    if fs::symlink_metadata(&folder).map_err(at("look at", &folder))?.is_symlink() {
        return Err(Error::Refused(format!("{} is a link", named(&folder).display())));
    }
    let path = folder.join("lock");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, rustix::fs::Mode::from_raw_mode(0o644)).map_err(at("open", &path))?;
    let file = File::from(file);
    match file.metadata().map_err(at("look at", &path))?.is_file() {
        true => Ok((path, file)),
        false => Err(Error::Refused(format!("{} is no file", named(&path).display()))),
    }
}

/// Writes into the lock of a workspace that this process holds it now: it got it from a process that may have died.
pub(crate) fn take_over_lock(root: &OpenFolder) {
    if let Ok((_, file)) = open_lock(root) {
        describe_holder(&file);
    }
}

fn describe_holder(mut file: &File) {
    use std::io::{Seek as _, Write as _};

    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (process, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    let text = format!("process {process} of user {user} on {}\n", host.trim());
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
}

/// Makes the folder in which this program keeps its own things: for the owner's eyes only, and ignored by git. One that
/// is a link or somebody else's is refused: contents would go where he wants, and what he left there would be believed.
pub fn make_own_folder(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    match builder.mode(0o700).create(path) {
        Ok(()) => fs::write(path.join(".gitignore"), "*\n").map_err(at("make", path)),
        // It was there, or somebody else has just made it.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => match is_own_folder(path) {
            true => Ok(()),
            false => Err(Error::Refused(format!("{} is no folder of yours", path.display()))),
        },
        Err(e) => Err(at("make", path)(e)),
    }
}

/// Whether such a folder is there and may be believed: it is ours or root's, who needs no tricks; or, for root, that of
/// whoever owns the folder it lies in, and not one that somebody planted in a folder open to all.
pub fn is_own_folder(path: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    let us = rustix::process::geteuid();
    let owner_around = || path.parent().and_then(|folder| fs::metadata(folder).ok()).map(|folder| folder.uid());
    let owner = found.uid();
    found.is_dir() && (owner == us.as_raw() || owner == 0 || (us.is_root() && owner_around() == Some(owner)))
}

fn is_over(folder: &Path) -> bool {
    ["done", "kept"].iter().any(|name| folder.join(name).exists())
}

/// Folders that a set of changes makes, outermost first, and removes, innermost first.
fn folders(
    blobs: &dyn Blobs,
    changes: &[Change],
    before: Digest,
    after: Digest,
) -> Result<(Vec<TreePath>, Vec<TreePath>)> {
    let mut known: HashMap<TreePath, (bool, bool)> = HashMap::new();
    let is_folder = |root, path: &TreePath| {
        Ok::<_, Error>(tree::lookup(blobs, root, path)?.is_some_and(|node| node.kind == Kind::Folder))
    };
    for change in changes {
        let own = [change.before, change.after].iter().flatten().any(|node| node.kind == Kind::Folder);
        for path in own.then(|| change.path.clone()).into_iter().chain(change.path.folders()) {
            if let Entry::Vacant(vacant) = known.entry(path) {
                let states = (is_folder(before, vacant.key())?, is_folder(after, vacant.key())?);
                vacant.insert(states);
            }
        }
    }
    let pick = |wanted: fn(bool, bool) -> bool| {
        let states = known.iter().filter(|(_, (before, after))| wanted(*before, *after));
        let mut paths: Vec<_> = states.map(|(path, _)| path.clone()).collect();
        paths.sort();
        paths
    };
    // One that was not in the snapshot may be there all the same, ignored; what was put into it goes, and so does it.
    let (made, mut removed) = (pick(|before, after| !before && after), pick(|_, after| !after));
    removed.reverse();
    Ok((made, removed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_may_make_our_folder_at_once_and_a_link_is_none() {
        let scratch = actum_testkit::folder::Folder::new();
        for round in 0..50 {
            let path = scratch.join(&format!("own-{round}"));
            std::thread::scope(|scope| {
                let makers: Vec<_> = (0..4).map(|_| scope.spawn(|| make_own_folder(&path))).collect();
                makers.into_iter().for_each(|maker| maker.join().unwrap().unwrap());
            });
            assert_eq!(fs::read_to_string(path.join(".gitignore")).unwrap(), "*\n");
        }
        std::os::unix::fs::symlink(scratch.path(), scratch.join("link")).unwrap();
        assert!(make_own_folder(&scratch.join("link")).is_err());
    }
}
