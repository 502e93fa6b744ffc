//! The list of snapshots that are kept: one small file each, beside the contents. A snapshot that is not in the list is
//! still restorable until its contents are swept away.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use actum_contract::digest::Digest;

use crate::error::{Error, Result, at};
use crate::record::{Reader, Writer, listed, load, sync_parent};
use crate::rule::Rules;
use crate::stage::one_of;

const MAGIC: &str = "actum snapshot 1\n";

/// Shortest beginning of an id that is taken for it.
const PREFIX_MIN: usize = 4;

/// How exactly the time of the last freeze is kept.
const SEEN_EVERY_MS: u64 = 60_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub id: Digest,
    /// When it was last frozen, in milliseconds since 1970.
    pub at_ms: u64,
    pub folder: PathBuf,
    pub files: u64,
    pub bytes: u64,
    /// Kept whatever the size limit says.
    pub pinned: bool,
    /// What was left out and what was taken: whoever restores it must look at the workspace in the same way.
    pub rules: Rules,
}

fn folder_of(home: &Path) -> PathBuf {
    home.join("workspace/snapshots")
}

impl Snapshot {
    fn save(&self, home: &Path) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.digest(self.id).number(self.at_ms).bytes(self.folder.as_os_str().as_bytes());
        record.number(self.files).number(self.bytes).number(u64::from(self.pinned));
        self.rules.write(&mut record);
        record.save(&folder_of(home).join(self.id.to_hex()), true)
    }

    /// Adds it to the list; one that is there keeps its pin and gets the new time.
    pub(crate) fn keep(mut self, home: &Path) -> Result<()> {
        let old = Self::load(home, self.id)?;
        self.pinned |= old.as_ref().is_some_and(|old| old.pinned);
        match old {
            // When it was last seen is good to know, not worth a write each time.
            Some(old) if self.at_ms < old.at_ms.saturating_add(SEEN_EVERY_MS) => Ok(()),
            _ => self.save(home),
        }
    }

    fn load(home: &Path, id: Digest) -> Result<Option<Self>> {
        let path = folder_of(home).join(id.to_hex());
        let Some(bytes) = load(&path)? else { return Ok(None) };
        let place = path.display().to_string();
        let mut record = Reader::new(MAGIC, &bytes, &place)?;
        Ok(Some(Self {
            id: record.digest()?,
            at_ms: record.number()?,
            folder: PathBuf::from(OsStr::from_bytes(record.bytes()?)),
            files: record.number()?,
            bytes: record.number()?,
            pinned: record.number()? != 0,
            rules: Rules::read(&mut record)?,
        }))
    }

    pub(crate) fn is_kept(home: &Path, id: Digest) -> bool {
        folder_of(home).join(id.to_hex()).exists()
    }

    /// All of them, newest first.
    pub fn list(home: &Path) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for path in listed(&folder_of(home))? {
            let name = path.file_name().and_then(OsStr::to_str);
            if let Some(id) = name.and_then(Digest::from_hex) {
                all.extend(Self::load(home, id)?);
            }
        }
        all.sort_by_key(|s| std::cmp::Reverse((s.at_ms, s.id)));
        Ok(all)
    }

    /// The snapshot whose id begins so.
    pub fn find(home: &Path, prefix: &str) -> Result<Self> {
        if prefix.len() < PREFIX_MIN {
            return Err(Error::Unknown { what: "snapshot", id: prefix.to_owned() });
        }
        let found: Vec<_> = Self::list(home)?.into_iter().filter(|s| s.id.to_hex().starts_with(prefix)).collect();
        let ids = found.iter().map(|s| s.id.to_hex()).collect();
        one_of("snapshot", prefix, found, ids)
    }

    pub fn pin(mut self, home: &Path, pinned: bool) -> Result<()> {
        self.pinned = pinned;
        self.save(home)
    }

    /// Removes it from the list; its contents go with the next sweep, unless something else needs them.
    pub fn forget(&self, home: &Path) -> Result<()> {
        let path = folder_of(home).join(self.id.to_hex());
        match fs::remove_file(&path) {
            Ok(()) => sync_parent(&path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(at("remove", &path)(e)),
        }
    }
}
