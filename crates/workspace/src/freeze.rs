//! Freeze: a folder of the machine becomes a snapshot. Called for the workspace, and for a stage that is a folder.
//!
//! Walks with file descriptors, never with paths, so that no link is followed, whoever swaps what meanwhile. Folders
//! and files the index vouches for are not opened or read. Never writes to the folder it reads.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use actum_contract::blob::{Batch, BlobError, Blobs};
use actum_contract::digest::Digest;
use rayon::prelude::*;
use rustix::fs::{
    AtFlags, FileType, Mode, Stat, Timespec, Timestamps, UTIME_NOW, fstat, futimens, openat, readlinkat, statat,
};

use crate::beneath::{FILE, FOLDER, names};
use crate::crash;
use crate::error::{Error, Result, at, within};
use crate::index::{Builder, Index, Item, Known, OwnedRecord, Record, Role, Stamp};
use crate::path::TreePath;
use crate::rule::{Chain, Matcher, RULE_BYTES_MAX, RULE_FILE, Rules, Verdict};
use crate::tree::{self, DEPTH_MAX, Kind, Node};

/// A snapshot just made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frozen {
    pub id: Digest,
    pub files: u64,
    pub bytes: u64,
    /// Files whose content was read.
    pub hashed_files: u64,
}

/// Whose rule files decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RulesFrom {
    /// Those that lie in the folder now.
    Folder,
    /// Those of an earlier snapshot: what an agent writes into a rule file must not hide what it does.
    Snapshot(Digest),
}

/// What to freeze, and how.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub folder: &'a Path,
    pub rules: &'a Rules,
    pub rules_from: RulesFrom,
    /// The cache of this folder.
    pub index: &'a Path,
    /// Reads every file again.
    pub paranoid: bool,
    /// Refuses files that have names outside the folder.
    pub own_links_only: bool,
}

/// Content up to this size is read in one piece.
const WHOLE_BYTES_MAX: u64 = 4 << 20;

/// How often a file that changes under our hands is read again.
const READ_ATTEMPTS_MAX: usize = 5;

/// A folder with this many files is looked at by several threads.
const FILES_ALONE_MAX: usize = 512;

/// Folders in folders are walked by calls in calls, on threads that also help each other.
const STACK_BYTES: usize = 64 << 20;

/// Freezes; contents go into `batch`, which the caller commits before he relies on the id.
pub(crate) fn freeze(request: &Request<'_>, blobs: &dyn Blobs, batch: &dyn Batch) -> Result<Frozen> {
    let now = clock_of(request.index, request.folder)?;
    let old = threads()?.install(|| Index::load(request.index));
    // Checked while it is already being used: what a broken one led to is thrown away.
    let walk = |old: Option<&Index>| walk(request, blobs, batch, now, old);
    let (sound, frozen) =
        threads()?.install(|| rayon::join(|| old.as_ref().is_none_or(Index::is_sound), || walk(old.as_ref())));
    if sound { frozen } else { threads()?.install(|| walk(None)) }
}

/// The threads that walk, kept for the next walk.
pub(crate) fn threads() -> Result<&'static rayon::ThreadPool> {
    static POOL: OnceLock<std::result::Result<rayon::ThreadPool, String>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let builder = rayon::ThreadPoolBuilder::new().stack_size(STACK_BYTES);
        builder.thread_name(|n| format!("actum-walk-{n}")).build().map_err(|e| e.to_string())
    });
    pool.as_ref().map_err(|e| Error::Refused(format!("cannot start threads: {e}")))
}

fn walk(
    request: &Request<'_>,
    blobs: &dyn Blobs,
    batch: &dyn Batch,
    now: Stamp,
    old: Option<&Index>,
) -> Result<Frozen> {
    let rules = request.rules.digest();
    let generation = batch.generation();
    let walk = Walk {
        request,
        matcher: Matcher::new(request.rules)?,
        blobs,
        batch,
        now,
        stored: old.is_some_and(|old| old.generation == generation),
        hashed: AtomicU64::new(0),
        special: Mutex::new(Vec::new()),
        links: Mutex::new(Vec::new()),
    };
    let fd = openat(rustix::fs::CWD, request.folder, FOLDER, Mode::empty()).map_err(at("open", request.folder))?;
    let same_rules = old.is_some_and(|old| old.rules == rules);
    let top = Level::new(None, fd, TreePath::ROOT, same_rules, false);
    let found = walk.folder(&top, old.and_then(Index::root))?;
    walk.refuse_what_cannot_be_kept()?;
    crash::point("freeze.walked");
    let record = found.record();
    if matches!(found, Found::New(_)) || !same_rules || !walk.stored {
        // Only a cache, and only worth having if everything it vouches for is stored.
        batch.commit()?;
        crash::point("freeze.stored");
        Index::save(request.index, rules, generation, record)?;
        crash::point("freeze.indexed");
    }
    let totals = record.totals();
    let hashed_files = walk.hashed.load(Ordering::Relaxed);
    Ok(Frozen { id: record.digest(), files: totals.files, bytes: totals.bytes, hashed_files })
}

/// The file system's own time: a file is touched where the index lies. If that is another file system than the
/// folder's, its clock says little about the folder's, which may count in seconds.
fn clock_of(index: &Path, folder: &Path) -> Result<Stamp> {
    let path = index.with_extension("clock");
    let clock = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(at("make", &path))?;
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(&clock, &Timestamps { last_access: now, last_modification: now }).map_err(at("touch", &path))?;
    let now = fstat(&clock).map(|stat| Stamp::of(&stat)).map_err(at("look at", &path))?;
    let there = rustix::fs::stat(folder).map(|stat| Stamp::of(&stat)).map_err(at("look at", folder))?;
    Ok(if now.is_on_one_disk_with(&there) { now } else { now.earlier(FOREIGN_CLOCK_SECONDS) })
}

/// Coarsest clock of a file system that is in use.
const FOREIGN_CLOCK_SECONDS: i64 = 3;

struct Walk<'a> {
    request: &'a Request<'a>,
    matcher: Matcher,
    blobs: &'a dyn Blobs,
    batch: &'a dyn Batch,
    /// Taken before anything was looked at.
    now: Stamp,
    /// Whatever the old index vouches for is still stored.
    stored: bool,
    hashed: AtomicU64,
    special: Mutex<Vec<(TreePath, &'static str)>>,
    /// Files with more than one name: where, which inode, how many names.
    links: Mutex<Vec<Linked>>,
}

/// A folder on the way down.
struct Level<'a> {
    parent: Option<&'a Level<'a>>,
    fd: OwnedFd,
    path: TreePath,
    depth: usize,
    /// No rule that applies here has changed since the old index.
    same_rules: bool,
    /// Left out itself; only what is included by name is taken.
    searched: bool,
    chain: OnceLock<Option<Arc<Chain>>>,
}

impl<'a> Level<'a> {
    fn new(parent: Option<&'a Level<'a>>, fd: OwnedFd, path: TreePath, same_rules: bool, searched: bool) -> Self {
        let depth = parent.map_or(0, |parent| parent.depth + 1);
        Self { parent, fd, path, depth, same_rules, searched, chain: OnceLock::new() }
    }
}

/// What a folder turned out to be.
enum Found<'a> {
    /// As the old index has it.
    Same(Record<'a>),
    New(OwnedRecord),
}

impl Found<'_> {
    fn record(&self) -> Record<'_> {
        match self {
            Self::Same(record) => *record,
            Self::New(record) => record.view(),
        }
    }
}

/// An entry of a folder whose old record is of no use.
struct Entry<'a> {
    name: CString,
    file_type: FileType,
    searched: bool,
    rules_only: bool,
    old: Option<Item<'a>>,
}

enum Looked<'a> {
    Leaf {
        role: Role,
        racy: bool,
        stamp: Stamp,
        digest: Digest,
    },
    Folder(Found<'a>),
    /// Not part of the tree: a rule leaves it out, or it is a searched folder with nothing in it that is included.
    LeftOut,
    /// Gone since the folder was listed.
    Nothing,
}

impl Walk<'_> {
    fn folder<'a>(&self, level: &Level<'_>, old: Option<Record<'a>>) -> Result<Found<'a>> {
        if level.depth > DEPTH_MAX {
            return Err(Error::Refused(format!("{} is more than {DEPTH_MAX} folders deep", level.path)));
        }
        let stamp = fstat(&level.fd).map(|stat| Stamp::of(&stat)).map_err(within("look at", &level.path))?;
        // A folder's own stamp changes whenever a name in it does. A searched folder may have been dropped from the
        // index, so with patterns that search, nothing is taken for granted; nor where all names must be counted.
        let vouched = old.filter(|old| {
            self.stored
                && level.same_rules
                && !self.request.paranoid
                && !self.request.own_links_only
                && self.request.rules.include.is_empty()
                && !old.is_racy()
                && old.stamp() == stamp
        });
        if let Some(old) = vouched
            && let Some(found) = self.unchanged(level, &stamp, old)?
        {
            return Ok(found);
        }
        self.listed(level, &stamp, old)
    }

    /// The folder has the names it had. Nothing if a file in it is another now.
    fn unchanged<'a>(&self, level: &Level<'_>, stamp: &Stamp, old: Record<'a>) -> Result<Option<Found<'a>>> {
        let is_same = |known: &Known<'_>| {
            !known.racy
                && statat(&level.fd, known.name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| Stamp::of(&stat) == known.stamp)
        };
        let mut folders: Vec<(&CStr, Record<'a>)> = Vec::new();
        // Many files in one folder are looked at by several threads, the usual few as they come.
        let mut many: Vec<Known<'_>> = Vec::new();
        let is_large = old.count() > FILES_ALONE_MAX;
        for item in old.items() {
            match item {
                Item::Folder(name, record) => folders.push((name, record)),
                Item::Leaf(known) if is_large => many.push(known),
                Item::Leaf(known) if is_same(&known) => {}
                Item::Leaf(_) => return Ok(None),
                Item::LeftOut(_) => {}
            }
        }
        if !many.par_chunks(FILES_ALONE_MAX / 2).all(|chunk| chunk.iter().all(is_same)) {
            return Ok(None);
        }
        let look = |(name, record): &(&CStr, Record<'a>)| self.enter(level, name, true, false, Some(*record));
        let looked: Vec<Option<Found<'a>>> = match folders.len() {
            0 | 1 => folders.iter().map(look).collect::<Result<_>>()?,
            _ => folders.par_iter().map(look).collect::<Result<_>>()?,
        };
        if looked.iter().all(|found| matches!(found, Some(Found::Same(_)))) {
            return Ok(Some(Found::Same(old)));
        }
        if looked.iter().any(Option::is_none) {
            return Ok(None);
        }
        let mut looked = looked.into_iter().flatten();
        let entries = old.items().filter_map(|item| match item {
            Item::Leaf(Known { role, racy, stamp, digest, name }) => {
                Some((name.to_owned(), Looked::Leaf { role, racy, stamp, digest }))
            }
            Item::Folder(name, _) => Some((name.to_owned(), Looked::Folder(looked.next()?))),
            Item::LeftOut(name) => Some((name.to_owned(), Looked::LeftOut)),
        });
        self.assemble(entries.collect(), stamp).map(Some)
    }

    /// Reads the names anew; files the old record vouches for are still not read.
    fn listed<'a>(&self, level: &Level<'_>, stamp: &Stamp, old: Option<Record<'a>>) -> Result<Found<'a>> {
        let names = list(level)?;
        let known: Vec<Item<'a>> = old.map(|old| old.items().collect()).unwrap_or_default();
        let own_rules = names.iter().any(|(name, kind)| name.as_bytes() == RULE_FILE && *kind == FileType::RegularFile);
        let same_rules = level.same_rules && self.has_same_rules(level, own_rules, &known)?;
        let chain = self.chain(level)?;
        let (mut entries, mut left_out) = (Vec::with_capacity(names.len()), Vec::new());
        for (name, file_type) in names {
            let path = level.path.join(name.as_bytes());
            let is_folder = file_type == FileType::Directory;
            let verdict = match tree::is_kept_out(name.as_bytes()) {
                true => Verdict::Leave,
                false => self.matcher.judge(&path, is_folder, chain.as_deref(), level.searched),
            };
            // Rules hold even where the file that has them is left out; the index must notice when it changes.
            let rules_only = verdict == Verdict::Leave && name.as_bytes() == RULE_FILE;
            if verdict == Verdict::Leave && !rules_only {
                left_out.push((name, Looked::LeftOut));
                continue;
            }
            let at = known.binary_search_by(|item| item.name().to_bytes().cmp(name.as_bytes()));
            let old = at.ok().map(|at| known[at]);
            entries.push(Entry { name, file_type, searched: verdict == Verdict::Search, rules_only, old });
        }
        let mut looked: Vec<(CString, Looked<'a>)> = entries
            .into_par_iter()
            .map(|entry| {
                let looked = self.look(level, &entry, same_rules)?;
                Ok((entry.name, looked))
            })
            .collect::<Result<_>>()?;
        if !left_out.is_empty() {
            looked.extend(left_out);
            looked.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.assemble(looked, stamp)
    }

    fn look<'a>(&self, level: &Level<'_>, entry: &Entry<'a>, same_rules: bool) -> Result<Looked<'a>> {
        if entry.file_type == FileType::Directory {
            let old = match entry.old {
                Some(Item::Folder(_, record)) => Some(record),
                _ => None,
            };
            return Ok(match self.enter(level, &entry.name, same_rules, entry.searched, old)? {
                Some(found) if entry.searched && has_no_entries(found.record()) => Looked::LeftOut,
                Some(found) => Looked::Folder(found),
                None => Looked::Nothing,
            });
        }
        let path = || level.path.join(entry.name.as_bytes());
        let stat = match statat(&level.fd, &*entry.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(Looked::Nothing),
            Err(e) => return Err(within("look at", &path())(e)),
        };
        let stamp = Stamp::of(&stat);
        let Some(kind) = stamp.kind() else {
            let word = special_word(stamp.file_type());
            if !entry.rules_only {
                self.special.lock().unwrap_or_else(PoisonError::into_inner).push((path(), word));
            }
            return Ok(Looked::Nothing);
        };
        if self.request.own_links_only && kind.is_file() && stat.st_nlink > 1 {
            let link = Linked::new(path(), &stat);
            self.links.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        }
        let role = if entry.rules_only { Role::RulesOnly } else { Role::Entry(kind) };
        if let Some(Item::Leaf(known)) = entry.old
            && !known.racy
            && !self.request.paranoid
            && known.stamp == stamp
            && (self.stored || self.blobs.contains(known.digest)?)
        {
            return Ok(Looked::Leaf { role, racy: false, stamp, digest: known.digest });
        }
        match kind {
            Kind::Symlink => {
                let target = match readlinkat(&level.fd, &*entry.name, Vec::new()) {
                    Ok(target) => target,
                    Err(rustix::io::Errno::NOENT) => return Ok(Looked::Nothing),
                    Err(e) => return Err(within("read the link", &path())(e)),
                };
                let digest = Digest::blake3(target.as_bytes());
                self.batch.put(digest, target.as_bytes())?;
                Ok(Looked::Leaf { role, racy: stamp.is_racy(&self.now), stamp, digest })
            }
            Kind::File | Kind::Executable => self.read(level, &entry.name, role),
            // It was something else when the folder was listed.
            Kind::Folder => Err(Error::Changing(path())),
        }
    }

    /// Reads a file until it holds still for as long as that takes.
    fn read<'a>(&self, level: &Level<'_>, name: &CStr, role: Role) -> Result<Looked<'a>> {
        let path = || level.path.join(name.to_bytes());
        for _ in 0..READ_ATTEMPTS_MAX {
            let fd = match openat(&level.fd, name, FILE, Mode::empty()) {
                Ok(fd) => fd,
                Err(rustix::io::Errno::NOENT) => return Ok(Looked::Nothing),
                Err(e) => return Err(within("read", &path())(e)),
            };
            let before = fstat(&fd).map(|stat| Stamp::of(&stat)).map_err(within("look at", &path()))?;
            let Some(kind) = before.kind().filter(|kind| kind.is_file()) else {
                return Err(Error::Changing(path()));
            };
            let mut file = File::from(fd);
            let taken = take_in(&mut file, before.size(), &path, self.request.paranoid, self.blobs, self.batch)?;
            let Some(digest) = taken else { continue };
            let after = fstat(&file).map(|stat| Stamp::of(&stat)).map_err(within("look at", &path()))?;
            if before == after {
                self.hashed.fetch_add(1, Ordering::Relaxed);
                let role = if role == Role::RulesOnly { role } else { Role::Entry(kind) };
                return Ok(Looked::Leaf { role, racy: after.is_racy(&self.now), stamp: after, digest });
            }
        }
        Err(Error::Changing(path()))
    }

    /// Nothing if it is no folder any more.
    fn enter<'a>(
        &self,
        level: &Level<'_>,
        name: &CStr,
        same_rules: bool,
        searched: bool,
        old: Option<Record<'a>>,
    ) -> Result<Option<Found<'a>>> {
        let path = level.path.join(name.to_bytes());
        let fd = match openat(&level.fd, name, FOLDER, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => return Ok(None),
            Err(e) => return Err(within("open", &path)(e)),
        };
        let inside = Level::new(Some(level), fd, path, same_rules, searched);
        self.folder(&inside, old).map(Some)
    }

    fn assemble<'a>(&self, entries: Vec<(CString, Looked<'a>)>, stamp: &Stamp) -> Result<Found<'a>> {
        let (mut builder, mut nodes): (Builder, Vec<(&[u8], Node)>) = (Builder::default(), Vec::new());
        for (name, looked) in &entries {
            match looked {
                Looked::Nothing => {}
                Looked::LeftOut => builder.left_out(name),
                Looked::Folder(found) => {
                    let record = found.record();
                    nodes.push((name.as_bytes(), Node::folder(record.digest())));
                    builder.folder(name, record);
                }
                Looked::Leaf { role, racy, stamp, digest } => {
                    let known = Known { role: *role, racy: *racy, stamp: *stamp, digest: *digest, name };
                    nodes.extend(known.node().map(|node| (name.as_bytes(), node)));
                    builder.leaf(&known);
                }
            }
        }
        let bytes = tree::encode(nodes);
        let digest = Digest::blake3(&bytes);
        put(digest, &bytes, self.request.paranoid, self.blobs, self.batch)?;
        // What vanished between listing and looking has left its mark on the folder, after this stamp.
        Ok(Found::New(builder.finish(stamp, stamp.is_racy(&self.now), digest)))
    }

    /// Whether the rule file of this folder says what it said when the old record was made.
    fn has_same_rules(&self, level: &Level<'_>, own_rules: bool, known: &[Item<'_>]) -> Result<bool> {
        if self.request.rules_from != RulesFrom::Folder {
            return Ok(true);
        }
        let old = known.iter().find_map(|item| match item {
            Item::Leaf(known) if known.name.to_bytes() == RULE_FILE => Some(known.digest),
            _ => None,
        });
        let new = if own_rules { read_rule_file(level)? } else { None };
        Ok(old == new.map(|text| Digest::blake3(&text)))
    }

    /// The rules that apply in a folder; made only where a name has to be judged.
    fn chain(&self, level: &Level<'_>) -> Result<Option<Arc<Chain>>> {
        if let Some(chain) = level.chain.get() {
            return Ok(chain.clone());
        }
        let farther = match level.parent {
            Some(parent) => self.chain(parent)?,
            None => self.matcher.outer(),
        };
        let own = match self.request.rules_from {
            RulesFrom::Folder => read_rule_file(level)?,
            RulesFrom::Snapshot(id) => rule_file_of(self.blobs, id, &level.path)?,
        };
        let chain = match own {
            Some(text) => Some(Matcher::extend(farther, &level.path, &text)),
            None => farther,
        };
        Ok(level.chain.get_or_init(|| chain).clone())
    }

    fn refuse_what_cannot_be_kept(&self) -> Result<()> {
        let mut special = std::mem::take(&mut *self.special.lock().unwrap_or_else(PoisonError::into_inner));
        if !special.is_empty() {
            special.sort();
            return Err(Error::Special(special));
        }
        linked_outside(std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Whether nothing in a folder is part of the tree.
fn has_no_entries(folder: Record<'_>) -> bool {
    folder.items().all(|item| matches!(item, Item::LeftOut(_)))
}

/// Stores the content of an open file that is said to have `size` bytes; nothing if it has not. Large ones go through
/// in pieces.
pub(crate) fn take_in(
    file: &mut File,
    size: u64,
    path: &dyn Fn() -> TreePath,
    paranoid: bool,
    blobs: &dyn Blobs,
    batch: &dyn Batch,
) -> Result<Option<Digest>> {
    if size > WHOLE_BYTES_MAX {
        let (digest, length) = batch.put_stream(file, paranoid)?;
        return Ok((length == size).then_some(digest));
    }
    let mut content = Vec::with_capacity(size as usize + 1);
    file.take(WHOLE_BYTES_MAX + 1).read_to_end(&mut content).map_err(|e| within("read", &path())(e))?;
    if content.len() as u64 != size {
        return Ok(None);
    }
    let digest = Digest::blake3(&content);
    put(digest, &content, paranoid, blobs, batch)?;
    Ok(Some(digest))
}

/// Who reads everything again also wants to know that what is stored is sound.
fn put(digest: Digest, content: &[u8], paranoid: bool, blobs: &dyn Blobs, batch: &dyn Batch) -> Result<()> {
    if paranoid && matches!(blobs.read(digest), Err(BlobError::Damaged(..))) {
        return Ok(batch.replace(digest, content)?);
    }
    Ok(batch.put(digest, content)?)
}

/// A file with more than one name.
#[derive(Debug)]
pub(crate) struct Linked {
    path: TreePath,
    inode: (u64, u64),
    names: u64,
}

impl Linked {
    pub(crate) fn new(path: TreePath, stat: &Stat) -> Self {
        Self { path, inode: (stat.st_dev, stat.st_ino), names: wide(stat.st_nlink) }
    }
}

/// The width of this number differs between architectures.
fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}

/// Refuses files that have more names than were found.
pub(crate) fn linked_outside(links: Vec<Linked>) -> Result<()> {
    let mut found: HashMap<(u64, u64), u64> = HashMap::new();
    for link in &links {
        *found.entry(link.inode).or_default() += 1;
    }
    let mut outside: Vec<_> =
        links.into_iter().filter(|link| found.get(&link.inode) < Some(&link.names)).map(|link| link.path).collect();
    if outside.is_empty() {
        return Ok(());
    }
    outside.sort();
    Err(Error::LinkedOutside(outside))
}

/// The rule file of a folder in a snapshot.
pub(crate) fn rule_file_of(blobs: &dyn Blobs, id: Digest, folder: &TreePath) -> Result<Option<Vec<u8>>> {
    match tree::lookup(blobs, id, &folder.join(RULE_FILE))? {
        Some(node) if node.kind.is_file() => tree::read_at_most(blobs, node.digest, RULE_BYTES_MAX as usize),
        _ => Ok(None),
    }
}

fn read_rule_file(level: &Level<'_>) -> Result<Option<Vec<u8>>> {
    let path = || level.path.join(RULE_FILE);
    let fd = match openat(&level.fd, RULE_FILE, FILE, Mode::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(None),
        Err(e) => return Err(within("read", &path())(e)),
    };
    let stat = fstat(&fd).map_err(within("look at", &path()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size as u64 > RULE_BYTES_MAX {
        return Ok(None);
    }
    let mut text = Vec::new();
    File::from(fd).take(RULE_BYTES_MAX).read_to_end(&mut text).map_err(within("read", &path()))?;
    Ok(Some(text))
}

/// Returns the names in a folder in byte order, without Actum's own folders.
fn list(level: &Level<'_>) -> Result<Vec<(CString, FileType)>> {
    let mut names = names(&level.fd).map_err(within("list", &level.path))?;
    names.retain(|(name, _)| name.as_bytes() != b".actum");
    for (name, file_type) in names.iter_mut().filter(|(_, file_type)| *file_type == FileType::Unknown) {
        match statat(&level.fd, &**name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => *file_type = FileType::from_raw_mode(stat.st_mode),
            // Gone since; whoever looks at it will find that out too.
            Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(within("look at", &level.path.join(name.as_bytes()))(e)),
        }
    }
    names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}

pub(crate) fn special_word(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Socket => "socket",
        FileType::Fifo => "named pipe",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        _ => "unknown kind",
    }
}
