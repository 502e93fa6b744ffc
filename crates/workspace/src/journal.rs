//! The record of one publication: what it changes, from which state to which. Written before the first change is made,
//! it is what a crash is repaired from; kept afterwards, it is what the publication is undone from.

use std::collections::BTreeMap;
use std::path::Path;

use actum_contract::digest::Digest;

use crate::change::Change;
use crate::error::Result;
use crate::path::TreePath;
use crate::record::{Reader, Writer};

const MAGIC: &str = "actum publication 1\n";

/// Permissions by path.
pub(crate) type Modes = BTreeMap<TreePath, u32>;

/// Why a workspace was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The result of a stage.
    Publish,
    /// An earlier publication taken back.
    Undo,
    /// A snapshot restored.
    Thaw,
}

impl Cause {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Undo => "undo",
            Self::Thaw => "thaw",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Publish, Self::Undo, Self::Thaw].into_iter().find(|cause| cause.word() == word)
    }
}

/// A set of changes to a workspace, made as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub id: String,
    pub cause: Cause,
    /// The stage, the publication or the snapshot it comes from.
    pub of: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The workspace before and after.
    pub before: Digest,
    pub after: Digest,
    pub changes: Vec<Change>,
    /// What others changed elsewhere while the stage was open.
    pub drift: Vec<TreePath>,
    /// What was left as it is, because somebody changed it later.
    pub kept: Vec<TreePath>,
    /// Folders that come, outermost first, and folders that go, innermost first.
    pub(crate) folders_made: Vec<TreePath>,
    pub(crate) folders_removed: Vec<TreePath>,
    /// Permissions of what went, and permissions that what comes back is to have.
    pub(crate) modes_gone: Modes,
    pub(crate) modes_wanted: Modes,
}

impl Publication {
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.bytes(self.id.as_bytes()).bytes(self.cause.word().as_bytes()).bytes(self.of.as_bytes());
        record.number(self.at_ms).digest(self.before).digest(self.after);
        record.number(self.changes.len() as u64);
        for change in &self.changes {
            record.bytes(change.path.as_bytes()).node(change.before).node(change.after);
            record.number(u64::from(change.implied));
        }
        for paths in [&self.drift, &self.kept, &self.folders_made, &self.folders_removed] {
            record.number(paths.len() as u64);
            for path in paths {
                record.bytes(path.as_bytes());
            }
        }
        for modes in [&self.modes_gone, &self.modes_wanted] {
            record.number(modes.len() as u64);
            for (path, mode) in modes {
                record.bytes(path.as_bytes()).number(u64::from(*mode));
            }
        }
        record.save(path, true)
    }

    pub(crate) fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let mut record = Reader::new(MAGIC, bytes, place)?;
        let (id, cause, of) = (record.text()?, record.text()?, record.text()?);
        let cause = Cause::from_word(&cause).ok_or_else(|| crate::Error::Record(place.to_owned()))?;
        let (at_ms, before, after) = (record.number()?, record.digest()?, record.digest()?);
        let changes = (0..record.number()?).map(|_| {
            let (path, before, after) = (record.path()?, record.node()?, record.node()?);
            Ok(Change { path, before, after, implied: record.number()? != 0 })
        });
        let changes = changes.collect::<Result<Vec<_>>>()?;
        let mut paths = || (0..record.number()?).map(|_| record.path()).collect::<Result<Vec<_>>>();
        let (drift, kept, folders_made, folders_removed) = (paths()?, paths()?, paths()?, paths()?);
        let mut modes = || {
            let pairs = (0..record.number()?).map(|_| Ok((record.path()?, record.number()? as u32)));
            pairs.collect::<Result<Modes>>()
        };
        let (modes_gone, modes_wanted) = (modes()?, modes()?);
        Ok(Self {
            id,
            cause,
            of,
            at_ms,
            before,
            after,
            changes,
            drift,
            kept,
            folders_made,
            folders_removed,
            modes_gone,
            modes_wanted,
        })
    }
}
