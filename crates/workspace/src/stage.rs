//! Stage: the private copy in which an agent acts. Made from a snapshot just taken; the workspace is never written to.
//!
//! ```text
//! stages/ID/stage    what it was made from, and how
//! stages/ID/upper    overlay: everything that was changed
//! stages/ID/work     overlay: the kernel's own
//! stages/ID/folder   otherwise: the copy itself
//! ```
//!
//! With an overlay the files below are those of the workspace, so that nothing is copied and caches stay warm; a later
//! change to them shows through, and publishing says so (`drift`). A *strict* stage stands on a copy of the snapshot
//! that nobody writes to. Mounting is the sandbox's; this only says what is to be mounted.

use std::fs;
use std::io;
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
use crate::record::{Reader, Writer, load};
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
    workspace: PathBuf,
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
    /// Stages a snapshot of the workspace that has just been taken.
    pub fn new(workspace: &Workspace, base: Digest, wanted: NewStage) -> Result<Self> {
        let folder = stages(workspace.home()).join(&wanted.id);
        fs::create_dir_all(&folder).map_err(at("make", &folder))?;
        let NewStage { id, mode, strict, rules, at_ms } = wanted;
        let stage = Self { id, base, mode, strict, at_ms, rules, folder, workspace: workspace.path().to_owned() };
        let made = stage.make(workspace).and_then(|()| stage.save());
        if let Err(e) = made {
            let _ = remove_all(&stage.folder);
            return Err(e);
        }
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
                    is_reflink_possible(&self.folder, &self.workspace)
                        .map_err(|why| Error::Mode { mode: "reflink", why })?;
                }
                copy_tree(&self.workspace, &self.copied(), self.mode == Mode::Reflink)?;
                let batch = workspace.blobs().batch()?;
                match self.freeze_copy(workspace, &*batch)? == self.base {
                    true => Ok(()),
                    false => Err(Error::Moved),
                }
            }
        }
    }

    fn upper(&self) -> PathBuf {
        self.folder.join("upper")
    }

    fn copied(&self) -> PathBuf {
        self.folder.join("folder")
    }

    /// Where the agent is to act.
    pub fn view(&self) -> View {
        match self.mode {
            Mode::Overlay => View::Overlay {
                lower: if self.strict { mirror_path(&self.home(), self.base) } else { self.workspace.clone() },
                upper: self.upper(),
                work: self.folder.join("work"),
                at: self.workspace.clone(),
            },
            Mode::Reflink | Mode::Copy => View::Folder(self.copied()),
        }
    }

    fn home(&self) -> PathBuf {
        self.folder.parent().and_then(Path::parent).unwrap_or(&self.folder).to_owned()
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
        use std::os::unix::ffi::OsStrExt as _;

        let mut record = Writer::new(MAGIC);
        record.bytes(self.id.as_bytes()).digest(self.base).bytes(self.mode.word().as_bytes());
        record.number(u64::from(self.strict)).number(self.at_ms).bytes(self.workspace.as_os_str().as_bytes());
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
        use std::os::unix::ffi::OsStrExt as _;

        let path = folder.join("stage");
        let Some(bytes) = load(&path)? else { return Ok(None) };
        let place = path.display().to_string();
        let mut record = Reader::new(MAGIC, &bytes, &place)?;
        let (id, base, mode) = (record.text()?, record.digest()?, record.text()?);
        let mode = Mode::from_word(&mode).ok_or(Error::Record(place.clone()))?;
        let (strict, at_ms) = (record.number()? != 0, record.number()?);
        let workspace = PathBuf::from(std::ffi::OsStr::from_bytes(record.bytes()?));
        let rules = Rules::read(&mut record)?;
        Ok(Some(Self { id, base, mode, strict, at_ms, rules, folder: folder.to_owned(), workspace }))
    }

    /// All of them, oldest first. One that was never finished is none.
    pub fn list(home: &Path) -> Result<Vec<Self>> {
        let folder = stages(home);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(at("list", &folder)(e)),
        };
        let mut all = Vec::new();
        for entry in entries {
            all.extend(Self::load(&entry.map_err(at("list", &folder))?.path())?);
        }
        all.sort_by(|a, b| (a.at_ms, &a.id).cmp(&(b.at_ms, &b.id)));
        Ok(all)
    }

    /// Removes the stage and what was done in it.
    pub fn drop(self) -> Result<()> {
        // The kernel leaves a folder that nobody may enter, not even to remove it.
        let inner = self.folder.join("work/work");
        if inner.exists() {
            let _ = fs::set_permissions(&inner, std::os::unix::fs::PermissionsExt::from_mode(0o700));
        }
        remove_all(&self.folder)
    }
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
    thaw_new(workspace.home(), workspace.blobs(), id, &path)
}

/// Removes mirrors that no stage stands on.
pub(crate) fn remove_idle_mirrors(home: &Path) -> Result<()> {
    let folder = home.join("workspace/mirrors");
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
    let used: Vec<String> = Stage::list(home)?.iter().filter(|s| s.strict).map(|s| s.base.to_hex()).collect();
    for entry in entries {
        let entry = entry.map_err(at("list", &folder))?;
        if !entry.file_name().to_str().is_some_and(|name| used.iter().any(|used| used == name)) {
            remove_all(&entry.path())?;
        }
    }
    Ok(())
}
