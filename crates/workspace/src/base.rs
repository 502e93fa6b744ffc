//! The layers below a frozen stage.
//!
//! A *base* is a copy of a frozen tree that no program writes to. It is made once for a workspace and then updated: staging
//! costs as much as has changed since the last stage. While a stage uses the base it is not touched; what differs from it
//! is then written into a *delta*, a layer on top. Ignored files are in a third layer (`ignored`).
//!
//! ```text
//! workspace/bases/NAME/lock       held from preparing layers until the stage is named
//! workspace/bases/NAME/record     the newest base: number, tree, workspace; removed before an update in place
//! workspace/bases/NAME/extra      the newest extra layer (`ignored::ExtraRecord`)
//! workspace/bases/NAME/base-N/    a base
//! workspace/bases/NAME/N-TREE/    a delta of base N
//! workspace/bases/NAME/extra-KEY/ ignored files
//! ```
//!
//! Nothing is synced: after the machine has restarted, the record does not count and the base is made again.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use actum_contract::blob::{BlobError, Blobs};
use actum_contract::digest::Digest;
use rayon::prelude::*;
use rustix::fs::{Mode, fchmod, mkdirat, openat, symlinkat};

use crate::beneath::{FOLDER, NEW, OpenFolder};
use crate::change::Change;
use crate::crash;
use crate::error::{Error, Result, at, within};
use crate::freeze::threads;
use crate::ignored::{ExtraRecord, IgnoredEntries, set_stamp};
use crate::index::{Index, Item, Record, Stamp};
use crate::path::TreePath;
use crate::record::{Reader, Writer, listed, load, unique};
use crate::restage::LayerWriter;
use crate::stage::{Stage, UNFINISHED, is_unfinished, lock};
use crate::transaction::remove_all;
use crate::tree::{self, DEPTH_MAX, Kind, Node};
use crate::workspace::Workspace;

const MAGIC: &str = "actum base 1\n";
const RECORD: &str = "record";
const EXTRA: &str = "extra";
/// How the names of bases begin.
const BASE: &str = "base-";

/// A delta with more changes than this costs more than it saves; a new base is made instead.
const DELTA_CHANGES_MAX: usize = 4_000;
/// How often a copy reports its progress.
pub(crate) const PROGRESS_FILES: u64 = 500;

/// Reports the progress of a copy: files done, files in all.
pub type CopyProgress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// The layers of a stage, named relative to their folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StageLayers {
    /// The folder of the workspace's bases.
    folder: PathBuf,
    base: String,
    delta: Option<String>,
    extra: Option<String>,
    /// Ignored folders with a mount of their own.
    pub mounts: Vec<TreePath>,
    /// Ignored files that are mounted read-only.
    pub files: Vec<TreePath>,
}

impl StageLayers {
    /// Returns the lower layers, the topmost first.
    pub(crate) fn lowers(&self) -> Vec<PathBuf> {
        let names = self.extra.iter().chain(&self.delta).chain([&self.base]);
        names.map(|name| self.folder.join(name)).collect()
    }

    pub(crate) fn write(&self, record: &mut Writer) {
        record.bytes(self.folder.as_os_str().as_bytes()).bytes(self.base.as_bytes());
        for name in [&self.delta, &self.extra] {
            record.bytes(name.as_deref().unwrap_or_default().as_bytes());
        }
        for paths in [&self.mounts, &self.files] {
            record.number(paths.len() as u64);
            for path in paths {
                record.bytes(path.as_bytes());
            }
        }
    }

    pub(crate) fn read(record: &mut Reader<'_>) -> Result<Self> {
        use std::os::unix::ffi::OsStringExt as _;

        let folder = PathBuf::from(std::ffi::OsString::from_vec(record.bytes()?.to_vec()));
        let base = record.text()?;
        let [delta, extra] = [record.text()?, record.text()?].map(|name| Some(name).filter(|name| !name.is_empty()));
        let mut paths = || -> Result<Vec<TreePath>> { (0..record.number()?).map(|_| record.path()).collect() };
        Ok(Self { folder, base, delta, extra, mounts: paths()?, files: paths()? })
    }
}

/// Layers that are ready. As long as this lives, no other process changes the base.
#[derive(Debug)]
pub(crate) struct PreparedLayers {
    pub layers: StageLayers,
    _lock: File,
}

/// Prepares the layers of a stage of `tree`. `with_ignored`: the stage also shows ignored files.
pub(crate) fn prepare(
    workspace: &Workspace,
    tree: Digest,
    with_ignored: bool,
    progress: CopyProgress<'_>,
) -> Result<PreparedLayers> {
    let folder = folder_of(workspace);
    fs::create_dir_all(&folder).map_err(at("make", &folder))?;
    let lock = lock(&folder, false)?;
    let index = Index::load(&workspace.index_path());
    let bases = Bases { workspace, used: used_layers(workspace.home(), &folder)?, index, folder };
    let (base, delta) = bases.layers_of(tree, progress)?;
    let (extra, mounts, files) = match with_ignored {
        true => bases.extra_layer(tree)?,
        false => (None, Vec::new(), Vec::new()),
    };
    let layers = StageLayers { folder: bases.folder.clone(), base, delta, extra, mounts, files };
    bases.remove_idle_layers(&layers)?;
    Ok(PreparedLayers { layers, _lock: lock })
}

fn folder_of(workspace: &Workspace) -> PathBuf {
    let name = Digest::blake3(workspace.path().as_os_str().as_bytes()).to_hex();
    workspace.home().join("workspace/bases").join(&name[..32])
}

/// Returns the names of the layers in a folder that stages use.
fn used_layers(home: &Path, folder: &Path) -> Result<HashSet<String>> {
    let stages = Stage::list(home)?;
    let layers = stages.iter().filter_map(|stage| stage.layers.as_ref()).filter(|layers| layers.folder == folder);
    let names = layers.flat_map(|layers| layers.extra.iter().chain(&layers.delta).chain([&layers.base]));
    Ok(names.cloned().collect())
}

/// What is on record about the newest base.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BaseRecord {
    number: u64,
    tree: Digest,
    files: u64,
    bytes: u64,
    workspace: PathBuf,
}

impl BaseRecord {
    fn name(&self) -> String {
        format!("{BASE}{}", self.number)
    }

    fn save(&self, path: &Path) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.number(self.number).digest(self.tree).number(self.files).number(self.bytes);
        record.bytes(self.workspace.as_os_str().as_bytes()).bytes(boot_id().as_bytes());
        record.save(path, false)
    }

    /// Returns nothing if there is none, or if the machine has restarted since.
    fn load(path: &Path) -> Option<Self> {
        use std::os::unix::ffi::OsStringExt as _;

        let bytes = load(path).ok()??;
        let mut record = Reader::new(MAGIC, &bytes, RECORD).ok()?;
        let (number, tree) = (record.number().ok()?, record.digest().ok()?);
        let (files, bytes) = (record.number().ok()?, record.number().ok()?);
        let workspace = PathBuf::from(std::ffi::OsString::from_vec(record.bytes().ok()?.to_vec()));
        let boot = record.text().ok()?;
        (!boot.is_empty() && boot == boot_id()).then_some(Self { number, tree, files, bytes, workspace })
    }
}

/// Identifies the time since the machine started. Empty if the system does not say.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The bases of a workspace, locked.
struct Bases<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    used: HashSet<String>,
    /// The index of the last freeze: permissions and times of files, names of ignored ones.
    index: Option<Index>,
}

impl Bases<'_> {
    fn record_path(&self) -> PathBuf {
        self.folder.join(RECORD)
    }

    /// Returns the names of the base and, if the tree is not that of the base, of its delta.
    fn layers_of(&self, tree: Digest, progress: CopyProgress<'_>) -> Result<(String, Option<String>)> {
        let base = BaseRecord::load(&self.record_path()).filter(|base| self.folder.join(base.name()).is_dir());
        let Some(base) = base else { return Ok((self.copy_tree(tree, progress)?, None)) };
        if base.tree == tree {
            // Its time says when the base was last used.
            base.save(&self.record_path())?;
            return Ok((base.name(), None));
        }
        let changes = match tree::diff(self.workspace.blobs(), base.tree, tree) {
            // The snapshot of the base has been collected.
            Err(Error::Blob(BlobError::Missing(_))) => return Ok((self.copy_tree(tree, progress)?, None)),
            other => other?,
        };
        if !self.used.contains(&base.name()) {
            let name = base.name();
            self.update(base, tree, &changes)?;
            return Ok((name, None));
        }
        if changes.len() > DELTA_CHANGES_MAX {
            return Ok((self.copy_tree(tree, progress)?, None));
        }
        Ok((base.name(), Some(self.delta(&base, tree, &changes)?)))
    }

    /// Updates a base that no stage uses. If the process dies on the way there is no record, and the base is made again.
    fn update(&self, base: BaseRecord, tree: Digest, changes: &[Change]) -> Result<()> {
        let path = self.record_path();
        fs::remove_file(&path).map_err(at("remove", &path))?;
        crash::point("base.unrecorded");
        let root = OpenFolder::open(&self.folder.join(base.name()))?;
        let writer = self.writer(&root, base.tree, tree, false);
        writer.apply(changes)?;
        crash::point("base.updated");
        let totals = self.totals_of(tree).unwrap_or((base.files, base.bytes));
        BaseRecord { tree, files: totals.0, bytes: totals.1, ..base }.save(&path)
    }

    fn writer<'w>(&'w self, root: &'w OpenFolder, base: Digest, to: Digest, is_overlay: bool) -> LayerWriter<'w> {
        LayerWriter { root, blobs: self.workspace.blobs(), base, to, is_overlay, index: self.index.as_ref() }
    }

    fn totals_of(&self, tree: Digest) -> Option<(u64, u64)> {
        let root = self.index.as_ref()?.root().filter(|root| root.digest() == tree)?;
        Some((root.totals().files, root.totals().bytes))
    }

    /// Writes a layer with the changes from the base to `tree`, unless there is one.
    fn delta(&self, base: &BaseRecord, tree: Digest, changes: &[Change]) -> Result<String> {
        let name = format!("{}-{}", base.number, &tree.to_hex()[..32]);
        self.build(&name, |folder| {
            fs::create_dir(folder).map_err(at("make", folder))?;
            let root = OpenFolder::open(folder)?;
            self.writer(&root, base.tree, tree, true).apply(changes)
        })?;
        Ok(name)
    }

    /// Makes a layer under another name first: one that has its name is complete.
    fn build(&self, name: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let named = self.folder.join(name);
        if named.is_dir() {
            return Ok(());
        }
        let aside = self.folder.join(format!("{UNFINISHED}{}-{name}", unique()));
        let built = write(&aside).and_then(|()| fs::rename(&aside, &named).map_err(at("make", &named)));
        if built.is_err() {
            let _ = remove_all(&aside);
        }
        built
    }

    /// Makes a new base.
    fn copy_tree(&self, tree: Digest, progress: CopyProgress<'_>) -> Result<String> {
        // Bases and deltas of before that no stage uses, and layers of a process that died.
        for path in listed(&self.folder)?.into_iter().filter(|path| path.is_dir()) {
            if !self.used.contains(&*path.file_name().unwrap_or_default().to_string_lossy()) {
                remove_all(&path)?;
            }
        }
        let number = self.used.iter().filter_map(|name| name.strip_prefix(BASE)?.parse::<u64>().ok()).max();
        let number = number.map_or(1, |number| number + 1);
        let (files, bytes) = self.totals_of(tree).unwrap_or_default();
        let base = BaseRecord { number, tree, files, bytes, workspace: self.workspace.path().to_owned() };
        let root = self.index.as_ref().and_then(Index::root);
        self.build(&base.name(), |folder| {
            fs::create_dir(folder).map_err(at("make", folder))?;
            copy_snapshot(self.workspace.blobs(), tree, root, folder, files, progress)
        })?;
        crash::point("base.copied");
        base.save(&self.record_path())?;
        Ok(base.name())
    }

    /// Returns the extra layer, ignored folders to mount, and ignored files to mount.
    fn extra_layer(&self, tree: Digest) -> Result<(Option<String>, Vec<TreePath>, Vec<TreePath>)> {
        let Some(root) = self.index.as_ref().and_then(Index::root) else { return Ok((None, Vec::new(), Vec::new())) };
        let mut left_out = Vec::new();
        root.collect_left_out(&TreePath::ROOT, &mut left_out);
        let record_path = self.folder.join(EXTRA);
        let older = ExtraRecord::load(&record_path).filter(|older| self.folder.join(&older.name).is_dir());
        let known_large = older.as_ref().map(|older| older.large.clone()).unwrap_or_default();
        let mut entries = IgnoredEntries::scan(self.workspace.root(), &left_out, &known_large)?;
        if root.digest() != tree {
            entries.retain(|path| self.is_free(tree, path))?;
        }
        if entries.is_empty() {
            return Ok((None, Vec::new(), Vec::new()));
        }
        let name = entries.layer_name();
        let older_folder = older.as_ref().map(|older| (self.folder.join(&older.name), older));
        let older = older_folder.as_ref().map(|(path, older)| (path.as_path(), *older));
        self.build(&name, |folder| entries.write_layer(self.workspace.root(), folder, older))?;
        ExtraRecord::new(name.clone(), &entries).save(&record_path)?;
        Ok((Some(name), entries.folders, entries.files))
    }

    /// Whether an ignored path hides nothing of a tree that the workspace has moved on from.
    fn is_free(&self, tree: Digest, path: &TreePath) -> Result<bool> {
        let blobs = self.workspace.blobs();
        if tree::lookup(blobs, tree, path)?.is_some() {
            return Ok(false);
        }
        for folder in path.folders() {
            if tree::lookup(blobs, tree, &folder)?.is_some_and(|node| node.kind != Kind::Folder) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes deltas and extra layers that no stage uses, but for those of the new one and the newest extra layer.
    fn remove_idle_layers(&self, current: &StageLayers) -> Result<()> {
        let newest = ExtraRecord::load(&self.folder.join(EXTRA)).map(|record| record.name);
        for path in listed(&self.folder)?.into_iter().filter(|path| path.is_dir()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_current = [&current.delta, &current.extra, &newest].into_iter().flatten().any(|kept| *kept == name);
            if !is_current && !name.starts_with(BASE) && !self.used.contains(&name) {
                remove_all(&path)?;
            }
        }
        Ok(())
    }
}

/// Writes the files of a snapshot, by several threads. Permissions and times are those of the index where it knows a file.
fn copy_snapshot(
    blobs: &dyn Blobs,
    tree: Digest,
    index: Option<Record<'_>>,
    folder: &Path,
    files: u64,
    progress: CopyProgress<'_>,
) -> Result<()> {
    let fd = openat(rustix::fs::CWD, folder, FOLDER, Mode::empty()).map_err(at("open", folder))?;
    let copy = SnapshotCopy { blobs, done: AtomicU64::new(0), files, progress };
    progress(0, files);
    threads()?.install(|| copy.fill(tree, index, &fd, &TreePath::ROOT, 0))?;
    progress(files, files);
    Ok(())
}

struct SnapshotCopy<'a> {
    blobs: &'a dyn Blobs,
    done: AtomicU64,
    files: u64,
    progress: CopyProgress<'a>,
}

impl SnapshotCopy<'_> {
    fn fill(
        &self,
        tree: Digest,
        index: Option<Record<'_>>,
        folder: &OwnedFd,
        path: &TreePath,
        depth: usize,
    ) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::Refused(format!("{path} is more than {DEPTH_MAX} folders deep")));
        }
        let nodes = tree::load(self.blobs, tree)?;
        self.blobs.fetch(&nodes.values().map(|node| node.digest).collect::<Vec<_>>())?;
        // Both are in byte order of their names.
        let mut items = index.into_iter().flat_map(|record| record.items()).peekable();
        let mut entries = Vec::with_capacity(nodes.len());
        for (name, node) in nodes {
            while items.next_if(|item| item.name().to_bytes() < name.as_slice()).is_some() {}
            let item = items.next_if(|item| item.name().to_bytes() == name.as_slice());
            entries.push((name, node, item));
        }
        entries.par_iter().with_min_len(16).try_for_each(|(name, node, item)| {
            let inside = path.join(name);
            match (node.kind, item) {
                (Kind::Folder, item) => {
                    let record = match item {
                        Some(Item::Folder(_, record)) => Some(*record),
                        _ => None,
                    };
                    let fd = make_folder(folder, name, record.map(|record| record.stamp()), &inside)?;
                    self.fill(node.digest, record, &fd, &inside, depth + 1)
                }
                (_, Some(Item::Leaf(known))) if known.node() == Some(*node) => {
                    self.leaf(folder, name, *node, Some(&known.stamp), &inside)
                }
                _ => self.leaf(folder, name, *node, None, &inside),
            }
        })
    }

    fn leaf(&self, folder: &OwnedFd, name: &[u8], node: Node, stamp: Option<&Stamp>, path: &TreePath) -> Result<()> {
        write_leaf(self.blobs, folder, name, node, stamp, path)?;
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(PROGRESS_FILES) {
            (self.progress)(done, self.files.max(done));
        }
        Ok(())
    }
}

fn make_folder(parent: &OwnedFd, name: &[u8], stamp: Option<Stamp>, path: &TreePath) -> Result<OwnedFd> {
    mkdirat(parent, name, Mode::from_raw_mode(0o777)).map_err(within("make", path))?;
    let made = openat(parent, name, FOLDER, Mode::empty()).map_err(within("open", path))?;
    if let Some(stamp) = stamp {
        // The owner can always update it.
        let mode = Mode::from_raw_mode(stamp.permissions() | 0o700);
        fchmod(&made, mode).map_err(within("set permissions of", path))?;
    }
    Ok(made)
}

/// Writes a file or a link that is not there yet.
pub(crate) fn write_leaf(
    blobs: &dyn Blobs,
    parent: &OwnedFd,
    name: &[u8],
    node: Node,
    stamp: Option<&Stamp>,
    path: &TreePath,
) -> Result<()> {
    if node.kind == Kind::Symlink {
        let target = blobs.read(node.digest)?;
        return symlinkat(target.as_slice(), parent, name).map_err(within("make", path));
    }
    let mode = if node.kind == Kind::Executable { 0o777 } else { 0o666 };
    let fd = openat(parent, name, NEW, Mode::from_raw_mode(mode)).map_err(within("make", path))?;
    let mut file = File::from(fd);
    blobs.copy(node.digest, &mut file)?;
    match stamp {
        Some(stamp) => set_stamp(&file, stamp, path),
        None => Ok(()),
    }
}

/// The layers of one workspace, as `gc` and `doctor` report them: bases, deltas and extra layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUsage {
    /// The workspace; if no record names it any more, the folder of its layers.
    pub workspace: PathBuf,
    /// Files of the newest base.
    pub files: u64,
    /// What all layers take on the disk.
    pub bytes: u64,
    pub is_used: bool,
}

/// Layers that were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedBases {
    /// Bases among them.
    pub count: u64,
    /// What all of them took on the disk.
    pub bytes: u64,
}

/// Returns the layers of all workspaces of a project.
pub fn bases(home: &Path) -> Result<Vec<BaseUsage>> {
    let mut found = Vec::new();
    for folder in listed(&home.join("workspace/bases"))?.into_iter().filter(|path| path.is_dir()) {
        let layers: Vec<_> = listed(&folder)?.into_iter().filter(|path| path.is_dir()).collect();
        let record = BaseRecord::load(&folder.join(RECORD));
        if layers.is_empty() && record.is_none() {
            continue;
        }
        let bytes = layers.iter().map(|layer| disk_bytes(layer)).sum();
        let is_used = !used_layers(home, &folder)?.is_empty();
        let (workspace, files) = record.map_or((folder, 0), |record| (record.workspace, record.files));
        found.push(BaseUsage { workspace, files, bytes, is_used });
    }
    Ok(found)
}

/// Removes layers that no stage uses. The newest base of a workspace goes only if `all` is set, the workspace is gone, or
/// the base was not used since `before_ms`. Returns what was removed, or would be if `dry` is set.
pub(crate) fn remove_idle_bases(home: &Path, all: bool, before_ms: Option<u64>, dry: bool) -> Result<RemovedBases> {
    let mut freed = RemovedBases::default();
    for folder in listed(&home.join("workspace/bases"))?.into_iter().filter(|path| path.is_dir()) {
        let _alone = lock(&folder, false)?;
        let (used, record_path) = (used_layers(home, &folder)?, folder.join(RECORD));
        let record = BaseRecord::load(&record_path);
        let is_kept = |record: &&BaseRecord| {
            !all && record.workspace.is_dir() && before_ms.is_none_or(|before| last_used_ms(&record_path) >= before)
        };
        let kept = record.as_ref().filter(is_kept).map(BaseRecord::name);
        let is_forgotten = record.is_some_and(|record| kept.is_none() && !used.contains(&record.name()));
        if is_forgotten && !dry {
            fs::remove_file(&record_path).map_err(at("remove", &record_path))?;
        }
        for path in listed(&folder)?.into_iter().filter(|path| path.is_dir()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if is_unfinished(&path) || (!used.contains(&name) && kept.as_ref() != Some(&name)) {
                freed.count += u64::from(name.starts_with(BASE));
                freed.bytes += disk_bytes(&path);
                if !dry {
                    remove_all(&path)?;
                }
            }
        }
    }
    Ok(freed)
}

/// Returns what a folder takes on the disk, as `du` counts it. What cannot be read counts as nothing.
fn disk_bytes(folder: &Path) -> u64 {
    let (mut bytes, mut counted, mut waiting) = (0, HashSet::new(), vec![folder.to_owned()]);
    while let Some(path) = waiting.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.nlink() > 1 && !found.is_dir() && !counted.insert((found.dev(), found.ino())) {
            continue;
        }
        bytes += found.blocks() * 512;
        if found.is_dir() {
            waiting.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    bytes
}

fn last_used_ms(record: &Path) -> u64 {
    let modified = fs::metadata(record).and_then(|found| found.modified()).ok();
    let since = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
