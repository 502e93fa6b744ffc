//! Markers of publications whose outcome is not on record everywhere yet: one small file each beside our own things, written
//! before a publication is committed and removed when folder, run and ledger agree about it. A command finds what is
//! pending by one look at a folder that is usually empty, whichever folder of the project was changed.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Result, at};
use crate::record::{listed, sync_parent};

/// A publication that may have to be finished, or to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingPublication {
    pub id: String,
    /// The folder that it changes.
    pub folder: PathBuf,
}

fn markers(home: &Path) -> PathBuf {
    home.join("workspace/pending")
}

/// The publications that are pending in a project, oldest first.
pub fn pending(home: &Path) -> Result<Vec<PendingPublication>> {
    let mut all = Vec::new();
    for path in listed(&markers(home))? {
        // Only plain files of ours: neither links nor pipes.
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            continue;
        }
        let (Some(id), Ok(folder)) = (path.file_name().and_then(OsStr::to_str), fs::read(&path)) else { continue };
        // One that was being written when the machine stopped: its publication was never committed.
        let Some(folder) = folder.strip_suffix(b"\n").map(|folder| PathBuf::from(OsStr::from_bytes(folder))) else {
            continue;
        };
        if folder.is_absolute() {
            all.push(PendingPublication { id: id.to_owned(), folder });
        }
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(all)
}

/// Marks a publication as pending, durably.
pub(crate) fn mark(home: &Path, id: &str, folder: &Path) -> Result<()> {
    let all = markers(home);
    if !all.is_dir() {
        fs::create_dir_all(&all).map_err(at("make", &all))?;
        sync_parent(&all)?;
    }
    let path = all.join(id);
    let mut file = fs::File::create(&path).map_err(at("make", &path))?;
    let text = [folder.as_os_str().as_bytes(), b"\n"].concat();
    file.write_all(&text).and_then(|()| file.sync_data()).map_err(at("write", &path))?;
    sync_parent(&path)
}

/// Folder, run and ledger agree about the publication.
pub fn forget(home: &Path, id: &str) -> Result<()> {
    let path = markers(home).join(id);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at("remove", &path)(e)),
        _ => Ok(()),
    }
}
