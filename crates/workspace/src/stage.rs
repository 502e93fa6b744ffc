//! Stage: the private copy in which an agent acts. Made from a snapshot just taken; the workspace is never written to.
//!
//! ```text
//! stages/ID/stage    what it was made from, and how
//! stages/ID/lock     held by every program that runs in it
//! stages/ID/upper    overlay: everything that was changed
//! stages/ID/work     overlay: the kernel's own
//! stages/ID/folder   otherwise: the copy itself
//! ```
//!
//! With an overlay the files below are those of the workspace, so that nothing is copied and caches stay warm; a later
//! change to them shows through, and publishing says so (`drift`). A *strict* stage stands on a copy of the snapshot
//! that nobody writes to. Mounting is the sandbox's; this only says what is to be mounted.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use actum_contract::blob::Batch;
use actum_contract::digest::Digest;
use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};

use crate::change::Change;
use crate::copy::{copy_tree, is_reflink_possible};
use crate::error::{Error, Result, at};
use crate::freeze::{Request, RulesFrom, freeze};
use crate::overlay::merge;
use crate::path::TreePath;
use crate::record::{Reader, Writer, listed, load};
use crate::rule::Rules;
use crate::thaw::thaw_new;
use crate::transaction::remove_all;
use crate::tree;
use crate::workspace::Workspace;

const MAGIC: &str = "actum stage 1\n";

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub id: String,
    pub base: Digest,
    pub mode: Mode,
    pub strict: bool,
    pub at_ms: u64,
    rules: Rules,
    folder: PathBuf,
}

/// What an agent is to find in a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// This folder.
    Folder(PathBuf),
    /// This overlay, to be mounted over the folder `at`.
    Overlay { lower: PathBuf, upper: PathBuf, work: PathBuf, at: PathBuf },
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
    pub strict: bool,
    pub rules: Rules,
    pub at_ms: u64,
}

fn stages(home: &Path) -> PathBuf {
    home.join("stages")
}

impl Stage {
    /// Stages a snapshot of the workspace that has just been taken. It gets its name when it is whole.
    pub fn new(workspace: &Workspace, base: Digest, wanted: NewStage) -> Result<Self> {
        // Until the stage refers to it, nobody may sweep the snapshot away.
        let _kept = workspace.blobs().batch()?;
        tree::load(workspace.blobs(), base)?;
        let all = stages(workspace.home());
        fs::create_dir_all(&all).map_err(at("make", &all))?;
        let _making = lock(&all, true)?;
        let folder = all.join(format!("{UNFINISHED}{}", wanted.id));
        fs::create_dir(&folder).map_err(at("make", &folder))?;
        let NewStage { id, mode, strict, rules, at_ms } = wanted;
        let mut stage = Self { id, base, mode, strict, at_ms, rules, folder };
        let named = all.join(&stage.id);
        let made = stage
            .make(workspace)
            .and_then(|()| stage.save())
            .and_then(|()| fs::rename(&stage.folder, &named).map_err(at("make", &named)));
        if let Err(e) = made {
            let _ = remove_all(&stage.folder);
            return Err(e);
        }
        stage.folder = named;
        Ok(stage)
    }

    fn make(&self, workspace: &Workspace) -> Result<()> {
        match self.mode {
            Mode::Overlay => {
                for folder in [self.upper(), self.folder.join("work")] {
                    fs::create_dir(&folder).map_err(at("make", &folder))?;
                }
                if self.strict {
                    mirror(workspace, self.base)?;
                }
                // Our own folder lies in the workspace; nothing in it is the agent's business.
                let mask = self.upper().join(".actum");
                let made = mknodat(CWD, &mask, FileType::CharacterDevice, FileMode::from_raw_mode(0), 0);
                made.map_err(at("mask", &mask))
            }
            Mode::Reflink | Mode::Copy if self.strict => {
                thaw_new(workspace.home(), workspace.blobs(), self.base, &self.copied())
            }
            Mode::Reflink | Mode::Copy => {
                if self.mode == Mode::Reflink {
                    is_reflink_possible(&self.folder, workspace.path())
                        .map_err(|why| Error::Mode { mode: "reflink", why })?;
                }
                copy_tree(workspace.path(), &self.copied(), self.mode == Mode::Reflink)?;
                let batch = workspace.blobs().batch()?;
                match self.freeze_copy(workspace, &*batch)? == self.base {
                    true => Ok(()),
                    false => Err(Error::Moved),
                }
            }
        }
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.folder.join("upper")
    }

    pub(crate) fn copied(&self) -> PathBuf {
        self.folder.join("folder")
    }

    /// Where the agent is to act.
    pub fn view(&self, workspace: &Workspace) -> View {
        match self.mode {
            Mode::Overlay => View::Overlay {
                lower: match self.strict {
                    true => mirror_path(workspace.home(), self.base),
                    false => workspace.path().to_owned(),
                },
                upper: self.upper(),
                work: self.folder.join("work"),
                at: workspace.path().to_owned(),
            },
            Mode::Reflink | Mode::Copy => View::Folder(self.copied()),
        }
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
                (merged.id, merged.left_out)
            }
            Mode::Reflink | Mode::Copy => (self.freeze_copy(workspace, batch)?, Vec::new()),
        };
        batch.commit()?;
        let changes = tree::diff(workspace.blobs(), self.base, after)?;
        Ok(Sealed { base: self.base, after, changes, left_out })
    }

    fn save(&self) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.bytes(self.id.as_bytes()).digest(self.base).bytes(self.mode.word().as_bytes());
        record.number(u64::from(self.strict)).number(self.at_ms);
        self.rules.write(&mut record);
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
        let mut record = Reader::new(MAGIC, &bytes, &place)?;
        let (id, base, mode) = (record.text()?, record.digest()?, record.text()?);
        let mode = Mode::from_word(&mode).ok_or(Error::Record(place.clone()))?;
        let (strict, at_ms) = (record.number()? != 0, record.number()?);
        let rules = Rules::read(&mut record)?;
        Ok(Some(Self { id, base, mode, strict, at_ms, rules, folder: folder.to_owned() }))
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
const UNFINISHED: &str = ".unfinished-";

fn is_unfinished(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()))
}

fn lock(folder: &Path, shared: bool) -> Result<File> {
    let path = folder.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(at("open", &path))?;
    if shared { file.lock_shared() } else { file.lock() }.map_err(at("lock", &path))?;
    Ok(file)
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

fn mirror_path(home: &Path, id: Digest) -> PathBuf {
    home.join("workspace/mirrors").join(id.to_hex())
}

/// A copy of a snapshot that nobody writes to, made once and shared by every strict stage on it.
fn mirror(workspace: &Workspace, id: Digest) -> Result<()> {
    let path = mirror_path(workspace.home(), id);
    if path.exists() {
        return Ok(());
    }
    match thaw_new(workspace.home(), workspace.blobs(), id, &path) {
        // Somebody else made the same meanwhile.
        Err(_) if path.exists() => Ok(()),
        made => made,
    }
}

/// Removes mirrors that no stage stands on.
pub(crate) fn remove_idle_mirrors(home: &Path) -> Result<()> {
    let used: Vec<String> = Stage::list(home)?.iter().filter(|s| s.strict).map(|s| s.base.to_hex()).collect();
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
