//! Stage: the private copy in which an agent acts. Made from a snapshot just taken; the workspace is never written to.
//!
//! ```text
//! stages/ID/stage          what it was made from, and how
//! stages/ID/lock           held by every program that runs in it
//! stages/ID/upper          overlay: everything that was changed
//! stages/ID/work           overlay: the kernel's own
//! stages/ID/ignored/K/     overlay: `upper` and `work` of a large ignored folder
//! stages/ID/folder         otherwise: the copy itself
//! ```
//!
//! By default a stage is *frozen*: its lower layers are a copy of the snapshot that no program writes to (`base`), so later
//! edits in the workspace are invisible in it. A *live* stage has the workspace itself below: an edit shows through, and
//! publishing reports it (`drift`). A *strict* stage is frozen and shows no ignored files. Mounting is done by the sandbox;
//! this module only says what to mount.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use actum_contract::blob::Batch;
use actum_contract::digest::Digest;
use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};

use crate::base::{self, CopyProgress, PreparedLayers, StageLayers};
use crate::change::Change;
use crate::copy::{copy_tree, is_reflink_possible};
use crate::crash;
use crate::error::{Error, Result, at};
use crate::freeze::{Request, RulesFrom, freeze};
use crate::index::Index;
use crate::overlay::merge;
use crate::path::TreePath;
use crate::record::{Reader, Writer, listed, load};
use crate::rule::Rules;
use crate::thaw::thaw_new;
use crate::transaction::remove_all;
use crate::tree;
use crate::workspace::Workspace;

const MAGIC: &str = "actum stage 2\n";
/// Stages of the first version: live, or strict on a copy of their own.
const FIRST_MAGIC: &str = "actum stage 1\n";

/// How a stage comes by its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A layer over the workspace; only what is changed is written.
    Overlay,
    /// A copy that shares its blocks with the workspace.
    Reflink,
    Copy,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Overlay, Self::Reflink, Self::Copy];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            Self::Reflink => "reflink",
            Self::Copy => "copy",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word() == word)
    }
}

/// Which state of the workspace a stage shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The snapshot, with the workspace's ignored files.
    Frozen,
    /// The snapshot alone.
    Strict,
    /// The workspace as it is at any moment. Possible with an overlay only; a copy is always frozen.
    Live,
}

impl Freshness {
    pub const ALL: [Self; 3] = [Self::Frozen, Self::Strict, Self::Live];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Strict => "strict",
            Self::Live => "live",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub id: String,
    pub base: Digest,
    pub mode: Mode,
    pub freshness: Freshness,
    pub at_ms: u64,
    rules: Rules,
    /// The lower layers of a frozen overlay.
    pub(crate) layers: Option<StageLayers>,
    folder: PathBuf,
}

/// The folders of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayView {
    /// The first is on top of the others.
    pub lowers: Vec<PathBuf>,
    pub upper: PathBuf,
    pub work: PathBuf,
    /// The folder to mount it over.
    pub at: PathBuf,
}

/// What an agent finds in a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// This folder.
    Folder(PathBuf),
    /// An overlay, and inside it overlays of large ignored folders and read-only mounts of large ignored files.
    Overlay { overlay: OverlayView, folders: Vec<OverlayView>, files: Vec<FileView> },
}

/// A file to be mounted read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileView {
    pub from: PathBuf,
    pub at: PathBuf,
}

/// What a stage has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub base: Digest,
    pub after: Digest,
    pub changes: Vec<Change>,
    /// Changes that stay behind, because a rule leaves their paths out.
    pub left_out: Vec<TreePath>,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct NewStage {
    pub id: String,
    pub mode: Mode,
    pub freshness: Freshness,
    pub rules: Rules,
    pub at_ms: u64,
}

fn stages(home: &Path) -> PathBuf {
    home.join("stages")
}

impl Stage {
    /// Stages a snapshot of the workspace. The stage gets its name when it is complete. `progress` is called while files
    /// are copied.
    pub fn new(workspace: &Workspace, base: Digest, wanted: NewStage, progress: CopyProgress<'_>) -> Result<Self> {
        // Until the stage refers to the snapshot, the batch keeps it from being collected.
        let _kept = workspace.blobs().batch()?;
        tree::load(workspace.blobs(), base)?;
        let all = stages(workspace.home());
        fs::create_dir_all(&all).map_err(at("make", &all))?;
        let _making = lock(&all, true)?;
        let folder = all.join(format!("{UNFINISHED}{}", wanted.id));
        fs::create_dir(&folder).map_err(at("make", &folder))?;
        let NewStage { id, mode, freshness, rules, at_ms } = wanted;
        let mut stage = Self { id, base, mode, freshness, at_ms, rules, layers: None, folder };
        if let Err(e) = stage.make(workspace, progress) {
            let _ = remove_all(&stage.folder);
            return Err(e);
        }
        Ok(stage)
    }

    fn make(&mut self, workspace: &Workspace, progress: CopyProgress<'_>) -> Result<()> {
        let mut prepared = None;
        match (self.mode, self.freshness) {
            (Mode::Overlay, Freshness::Live) => {
                self.make_overlay_folders(&self.folder)?;
                // Actum's own folder is in the workspace; the agent does not see it.
                let mask = self.upper().join(".actum");
                let made = mknodat(CWD, &mask, FileType::CharacterDevice, FileMode::from_raw_mode(0), 0);
                made.map_err(at("mask", &mask))?;
            }
            (Mode::Overlay, freshness) => {
                self.make_overlay_folders(&self.folder)?;
                let with_ignored = freshness == Freshness::Frozen;
                let PreparedLayers { layers, .. } =
                    &*prepared.insert(base::prepare(workspace, self.base, with_ignored, progress)?);
                for number in 0..layers.mounts.len() {
                    let folder = self.ignored(number);
                    fs::create_dir_all(&folder).map_err(at("make", &folder))?;
                    self.make_overlay_folders(&folder)?;
                }
                self.layers = Some(layers.clone());
                crash::point("stage.layered");
            }
            (Mode::Reflink | Mode::Copy, Freshness::Strict) => {
                thaw_new(workspace.home(), workspace.blobs(), self.base, &self.copied())?;
            }
            (Mode::Reflink | Mode::Copy, _) => {
                if self.mode == Mode::Reflink {
                    is_reflink_possible(&self.folder, &workspace.root().handle())
                        .map_err(|why| Error::Mode { mode: "reflink", why })?;
                }
                let index = Index::load(&workspace.index_path());
                let files = index.as_ref().and_then(Index::root).map_or(0, |root| root.totals().files);
                let reflink = self.mode == Mode::Reflink;
                copy_tree(&workspace.root().handle(), &self.copied(), reflink, files, progress)?;
                // The workspace may have changed since it was frozen: the copy goes back to the snapshot.
                let batch = workspace.blobs().batch()?;
                let copied = self.freeze_copy(workspace, &*batch)?;
                batch.commit()?;
                self.bring(workspace, copied, self.base)?;
            }
        }
        self.save()?;
        let named = stages(workspace.home()).join(&self.id);
        fs::rename(&self.folder, &named).map_err(at("make", &named))?;
        self.folder = named;
        // The stage names its layers now, so they are in use.
        drop(prepared);
        Ok(())
    }

    fn make_overlay_folders(&self, folder: &Path) -> Result<()> {
        for name in ["upper", "work"] {
            let path = folder.join(name);
            fs::create_dir(&path).map_err(at("make", &path))?;
        }
        Ok(())
    }

    /// Returns the folder with the changes of an ignored folder that has a mount of its own.
    fn ignored(&self, number: usize) -> PathBuf {
        self.folder.join("ignored").join(number.to_string())
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.folder.join("upper")
    }

    pub(crate) fn copied(&self) -> PathBuf {
        self.folder.join("folder")
    }

    /// Returns where the agent acts.
    pub fn view(&self, workspace: &Workspace) -> View {
        if self.mode != Mode::Overlay {
            return View::Folder(self.copied());
        }
        let lowers = match (&self.layers, self.freshness) {
            (Some(layers), _) => layers.lowers(),
            (None, Freshness::Strict) => vec![mirror_path(workspace.home(), self.base)],
            (None, _) => vec![workspace.path().to_owned()],
        };
        let (upper, work, at) = (self.upper(), self.folder.join("work"), workspace.path().to_owned());
        let (mut folders, mut files) = (Vec::new(), Vec::new());
        for (number, path) in self.layers.iter().flat_map(|layers| &layers.mounts).enumerate() {
            let (own, live) = (self.ignored(number), workspace.path().join(path.as_path()));
            // A mount needs a place: the folder may have been removed with its parent, here or in the workspace.
            if live.is_dir() && !is_hidden(&upper, path) {
                let (upper, work) = (own.join("upper"), own.join("work"));
                folders.push(OverlayView { lowers: vec![live.clone()], upper, work, at: live });
            }
        }
        for path in self.layers.iter().flat_map(|layers| &layers.files) {
            let live = workspace.path().join(path.as_path());
            if live.is_file() && !is_hidden(&upper, path) {
                files.push(FileView { from: live.clone(), at: live });
            }
        }
        View::Overlay { overlay: OverlayView { lowers, upper, work, at }, folders, files }
    }

    /// Held by a program for as long as it, or anything it leaves running, may write to the stage. One at a time: the
    /// kernel does not say what becomes of one upper folder in two overlays.
    pub fn hold(&self) -> Result<File> {
        let file = self.settle()?;
        // Inherited by the program and all it starts, so that it is held until the last of them has ended.
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(at("hand on", &self.folder))?;
        Ok(file)
    }

    /// Held by whoever only looks; refused while a program runs in it.
    pub fn look(&self) -> Result<File> {
        self.try_lock(File::try_lock_shared)
    }

    /// Held by whoever needs the stage to stand still; refused while a program runs in it.
    pub fn settle(&self) -> Result<File> {
        self.try_lock(File::try_lock)
    }

    fn try_lock(&self, lock: fn(&File) -> std::result::Result<(), TryLockError>) -> Result<File> {
        let path = self.folder.join("lock");
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(at("open", &path))?;
        match lock(&file) {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(self.id.clone())),
            Err(TryLockError::Error(e)) => Err(at("lock", &path)(e)),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    fn freeze_copy(&self, workspace: &Workspace, batch: &dyn Batch) -> Result<Digest> {
        let (folder, index) = (self.copied(), self.folder.join("index"));
        let request = Request {
            folder: &folder,
            rules: &self.rules,
            rules_from: RulesFrom::Snapshot(self.base),
            index: &index,
            paranoid: false,
            own_links_only: true,
        };
        Ok(freeze(&request, workspace.blobs(), batch)?.id)
    }

    /// What the stage has come to, its contents stored.
    pub fn seal(&self, workspace: &Workspace) -> Result<Sealed> {
        let batch = workspace.blobs().batch()?;
        self.seal_into(workspace, &*batch)
    }

    pub(crate) fn seal_into(&self, workspace: &Workspace, batch: &dyn Batch) -> Result<Sealed> {
        let (after, left_out) = match self.mode {
            Mode::Overlay => {
                let merged = merge(&self.upper(), self.base, &self.rules, workspace.blobs(), batch)?;
                let mut left_out = merged.left_out;
                left_out.extend(self.changed_mounts()?);
                left_out.sort();
                (merged.id, left_out)
            }
            Mode::Reflink | Mode::Copy => (self.freeze_copy(workspace, batch)?, Vec::new()),
        };
        batch.commit()?;
        let changes = tree::diff(workspace.blobs(), self.base, after)?;
        Ok(Sealed { base: self.base, after, changes, left_out })
    }

    /// Returns the ignored folders in whose mounts something was changed.
    fn changed_mounts(&self) -> Result<Vec<TreePath>> {
        let mut changed = Vec::new();
        for (number, path) in self.layers.iter().flat_map(|layers| &layers.mounts).enumerate() {
            if !listed(&self.ignored(number).join("upper"))?.is_empty() {
                changed.push(path.clone());
            }
        }
        Ok(changed)
    }

    fn save(&self) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.bytes(self.id.as_bytes()).digest(self.base).bytes(self.mode.word().as_bytes());
        record.bytes(self.freshness.as_str().as_bytes()).number(self.at_ms);
        self.rules.write(&mut record);
        record.number(u64::from(self.layers.is_some()));
        if let Some(layers) = &self.layers {
            layers.write(&mut record);
        }
        record.save(&self.folder.join("stage"), true)
    }

    /// The stage whose id begins so.
    pub fn find(home: &Path, prefix: &str) -> Result<Self> {
        let found: Vec<_> = Self::list(home)?.into_iter().filter(|stage| stage.id.starts_with(prefix)).collect();
        let ids = found.iter().map(|stage| stage.id.clone()).collect();
        one_of("stage", prefix, found, ids)
    }

    fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("stage");
        let Some(bytes) = load(&path)? else { return Ok(None) };
        let place = path.display().to_string();
        let is_first = bytes.starts_with(FIRST_MAGIC.as_bytes());
        let mut record = Reader::new(if is_first { FIRST_MAGIC } else { MAGIC }, &bytes, &place)?;
        let broken = || Error::Record(place.clone());
        let (id, base, mode) = (record.text()?, record.digest()?, record.text()?);
        let mode = Mode::from_word(&mode).ok_or_else(broken)?;
        let freshness = match is_first {
            true if record.number()? != 0 => Freshness::Strict,
            true => Freshness::Live,
            false => Freshness::parse(&record.text()?).ok_or_else(broken)?,
        };
        let at_ms = record.number()?;
        let rules = Rules::read(&mut record)?;
        let layers = match !is_first && record.number()? != 0 {
            true => Some(StageLayers::read(&mut record)?),
            false => None,
        };
        Ok(Some(Self { id, base, mode, freshness, at_ms, rules, layers, folder: folder.to_owned() }))
    }

    /// All of them, oldest first. One that was never finished is none.
    pub fn list(home: &Path) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for folder in listed(&stages(home))?.iter().filter(|path| path.is_dir() && !is_unfinished(path)) {
            all.extend(Self::load(folder)?);
        }
        all.sort_by(|a, b| (a.at_ms, &a.id).cmp(&(b.at_ms, &b.id)));
        Ok(all)
    }

    /// The ids of all of them, also of those that are half made or half removed.
    pub fn ids(home: &Path) -> Result<Vec<String>> {
        let names = listed(&stages(home))?.into_iter().filter(|path| path.is_dir());
        let name = |path: PathBuf| Some(path.file_name()?.to_str()?.trim_start_matches(UNFINISHED).to_owned());
        Ok(names.filter_map(name).collect())
    }

    /// Removes what there is of a stage whose owner is gone. One in which a program runs stays; whoever is still making
    /// it makes it in vain.
    pub fn remove(home: &Path, id: &str) -> Result<()> {
        let folder = stages(home).join(id);
        if folder.is_dir()
            && let Some(stage) = Self::load(&folder)?
        {
            let still = stage.settle()?;
            return stage.drop(still);
        }
        remove_all(&stages(home).join(format!("{UNFINISHED}{id}")))
    }

    /// Removes the stage and what was done in it. `still`: what `settle` gave.
    pub fn drop(self, still: File) -> Result<()> {
        // From here on it is no stage any more, whatever happens.
        let aside = self.folder.with_file_name(format!("{UNFINISHED}{}", self.id));
        fs::rename(&self.folder, &aside).map_err(at("remove", &self.folder))?;
        drop(still);
        remove_all(&aside)
    }
}

/// How the folder of a stage is called that is not made yet, or not removed yet.
pub(crate) const UNFINISHED: &str = ".unfinished-";

pub(crate) fn is_unfinished(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()))
}

/// Locks a folder by the file `lock` in it.
pub(crate) fn lock(folder: &Path, shared: bool) -> Result<File> {
    let path = folder.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(at("open", &path))?;
    if shared { file.lock_shared() } else { file.lock() }.map_err(at("lock", &path))?;
    Ok(file)
}

/// Whether a path below a layer is removed or replaced in that layer.
fn is_hidden(upper: &Path, path: &TreePath) -> bool {
    let mut place = upper.to_owned();
    for name in path.names() {
        place.push(std::ffi::OsStr::from_bytes(name));
        match fs::symlink_metadata(&place) {
            Err(_) => return false,
            Ok(found) if !found.is_dir() => return true,
            Ok(_) => {}
        }
        let mut value = [0_u8; 4];
        let is_opaque = rustix::fs::lgetxattr(&place, "user.overlay.opaque", &mut value)
            .is_ok_and(|length| value[..length] == *b"y");
        if is_opaque && place != upper.join(path.as_path()) {
            // What is below is hidden; a folder that was made again inside has its place.
            return !upper.join(path.as_path()).is_dir();
        }
    }
    false
}

/// Removes stages that were never finished, or never removed to the end.
pub(crate) fn remove_unfinished(home: &Path) -> Result<()> {
    let folder = stages(home);
    if !folder.is_dir() {
        return Ok(());
    }
    let _alone = lock(&folder, false)?;
    listed(&folder)?.iter().filter(|path| is_unfinished(path)).try_for_each(|path| remove_all(path))
}

/// The one thing whose id begins with `prefix`.
pub(crate) fn one_of<T>(what: &'static str, prefix: &str, mut found: Vec<T>, ids: Vec<String>) -> Result<T> {
    let unknown = || Error::Unknown { what, id: prefix.to_owned() };
    match found.len() {
        _ if prefix.is_empty() => Err(unknown()),
        0 | 1 => found.pop().ok_or_else(unknown),
        _ => match ids.iter().position(|id| id == prefix) {
            Some(at) => Ok(found.swap_remove(at)),
            None => Err(Error::Ambiguous { what, id: prefix.to_owned(), found: ids }),
        },
    }
}

/// Where a strict stage of the first version has its copy.
fn mirror_path(home: &Path, id: Digest) -> PathBuf {
    home.join("workspace/mirrors").join(id.to_hex())
}

/// Removes copies of strict stages of the first version that no stage uses.
pub(crate) fn remove_idle_mirrors(home: &Path) -> Result<()> {
    let is_strict = |stage: &&Stage| stage.freshness == Freshness::Strict;
    let used: Vec<String> = Stage::list(home)?.iter().filter(is_strict).map(|stage| stage.base.to_hex()).collect();
    for path in listed(&home.join("workspace/mirrors"))? {
        let name = path.file_name().unwrap_or_default();
        // What is being written aside has a note of its own.
        let is_aside = name.as_encoded_bytes().starts_with(b".");
        if !is_aside && !used.iter().any(|used| name == used.as_str()) {
            remove_all(&path)?;
        }
    }
    Ok(())
}
