//! Contents of an object store that were needed here: files under their digest, beside the packs, which may be thrown away at
//! any time. Used by `Folder`. A wrong one is removed, not believed; the least used go first when there are too many.
//!
//! ```text
//! near/ab/abcd…   the content
//! near/ID.tmp     one that is being written
//! near/looked     when somebody last made sure that it is not too much
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use actum_contract::blob::BlobError;
use actum_contract::digest::{Blake3, Digest};

use super::{PIECE_BYTES, io_error};

/// What may lie here before the least used are removed.
pub(super) const NEAR_BYTES_MAX: u64 = 4 << 30;
/// What is left after that, of a hundred.
const LEFT_PERCENT: u64 = 80;
/// A file takes at least a block.
const BLOCK_BYTES: u64 = 4_096;
/// How often somebody who writes little looks at all of it.
const LOOKED_EVERY: Duration = Duration::from_secs(600);
/// Written by a process before it looks again, as a part of the most.
const LOOKED_PART: u64 = 16;
/// When something was last used is kept no more exactly than this.
const USED_EVERY: Duration = Duration::from_secs(60);
/// A file that was being written for longer than this has no writer any more.
const ASIDE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Contents up to here are checked in memory.
const WHOLE_BYTES_MAX: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Near {
    path: PathBuf,
    max: u64,
    /// Bytes written since the last look; nothing before the first one.
    written: Mutex<Option<u64>>,
}

impl Near {
    pub(super) fn new(folder: &Path, max: u64) -> Self {
        Self { path: folder.join("near"), max, written: Mutex::new(None) }
    }

    fn file(&self, digest: Digest) -> PathBuf {
        let hex = digest.to_hex();
        self.path.join(&hex[..2]).join(hex)
    }

    pub(super) fn has(&self, digest: Digest) -> bool {
        self.file(digest).is_file()
    }

    /// A file to write a content to, and its name.
    pub(super) fn begin(&self) -> Result<(File, PathBuf), BlobError> {
        fs::create_dir_all(&self.path).map_err(io_error("make", &self.path))?;
        let aside = self.path.join(format!("{}.tmp", uuid::Uuid::now_v7().simple()));
        let file = File::options().read(true).write(true).create_new(true).open(&aside);
        Ok((file.map_err(io_error("make", &aside))?, aside))
    }

    /// Gives a file that was written its name, or removes it.
    pub(super) fn end(&self, digest: Digest, aside: &Path, whole: bool) -> Result<(), BlobError> {
        if !whole {
            let _ = fs::remove_file(aside);
            return Ok(());
        }
        let bytes = fs::metadata(aside).map_or(0, |found| found.len());
        let name = self.file(digest);
        let named = fs::create_dir_all(name.parent().unwrap_or(&self.path)).and_then(|()| fs::rename(aside, &name));
        named.map_err(io_error("keep", &name))?;
        self.wrote(bytes.max(BLOCK_BYTES));
        Ok(())
    }

    /// The content, if it is here and is what its digest says.
    pub(super) fn read(&self, digest: Digest) -> Result<Option<Vec<u8>>, BlobError> {
        let Some(mut file) = self.open(digest)? else { return Ok(None) };
        let path = self.file(digest);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error("read", &path))?;
        if Digest::blake3(&bytes) == digest {
            return Ok(Some(bytes));
        }
        self.remove(digest);
        Ok(None)
    }

    /// Writes the content out, if it is here and is what its digest says: nothing is written before that is known.
    pub(super) fn copy(&self, digest: Digest, into: &mut dyn Write) -> Result<Option<u64>, BlobError> {
        let failed = |source| BlobError::Io { doing: "write out", place: format!("content {digest}"), source };
        let Some(file) = self.open(digest)? else { return Ok(None) };
        let path = self.file(digest);
        let bytes = file.metadata().map_err(io_error("look at", &path))?.len();
        if bytes <= WHOLE_BYTES_MAX {
            let Some(content) = self.read(digest)? else { return Ok(None) };
            into.write_all(&content).map_err(failed)?;
            return Ok(Some(content.len() as u64));
        }
        if pour(&file, &mut io::sink()).map_err(io_error("read", &path))? != digest {
            self.remove(digest);
            return Ok(None);
        }
        if pour(&file, into).map_err(failed)? == digest {
            Ok(Some(bytes))
        } else {
            Err(BlobError::Damaged(digest, path.display().to_string()))
        }
    }

    fn open(&self, digest: Digest) -> Result<Option<File>, BlobError> {
        let path = self.file(digest);
        match File::options().read(true).open(&path) {
            Ok(file) => {
                let used = file.metadata().and_then(|found| found.modified());
                let is_old = used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age > USED_EVERY));
                if is_old {
                    // Who may not write it may still read it.
                    let _ = file.set_modified(SystemTime::now());
                }
                Ok(Some(file))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("open", &path)(e)),
        }
    }

    pub(super) fn remove(&self, digest: Digest) {
        let _ = fs::remove_file(self.file(digest));
    }

    /// Counts, and looks from time to time whether it is too much. Whatever goes wrong there is not worth an error.
    fn wrote(&self, bytes: u64) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = self.path.join("looked");
        let is_due = match *written {
            Some(before) => before + bytes > self.max / LOOKED_PART,
            None => {
                let last = fs::metadata(&looked).and_then(|found| found.modified()).ok();
                last.and_then(|last| last.elapsed().ok()).is_none_or(|age| age > LOOKED_EVERY)
            }
        };
        if !is_due {
            *written = Some(written.unwrap_or(0) + bytes);
            return;
        }
        *written = Some(0);
        let _ = File::create(&looked);
        self.shrink();
    }

    fn shrink(&self) {
        let (mut files, mut whole) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "tmp") {
                let since = entry.metadata().and_then(|found| found.modified());
                if since.is_ok_and(|since| since.elapsed().is_ok_and(|age| age > ASIDE_MAX)) {
                    let _ = fs::remove_file(&path);
                }
                continue;
            }
            for inner in fs::read_dir(&path).into_iter().flatten().flatten() {
                let Ok(found) = inner.metadata() else { continue };
                let bytes = found.len().max(BLOCK_BYTES);
                whole += bytes;
                files.push((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), bytes, inner.path()));
            }
        }
        if whole <= self.max {
            return;
        }
        files.sort();
        for (_, bytes, path) in files {
            if whole <= self.max.saturating_mul(LEFT_PERCENT) / 100 {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                whole -= bytes;
            }
        }
    }
}

/// Copies a whole file and tells its digest.
fn pour(mut file: &File, into: &mut dyn Write) -> io::Result<Digest> {
    use std::io::{Seek as _, SeekFrom};

    file.seek(SeekFrom::Start(0))?;
    let (mut hasher, mut piece) = (Blake3::default(), vec![0; PIECE_BYTES]);
    loop {
        let read = match file.read(&mut piece) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hasher.update(&piece[..read]);
        into.write_all(&piece[..read])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actum_testkit::folder::Folder;

    fn keep(near: &Near, content: &[u8]) -> Digest {
        let (mut file, aside) = near.begin().unwrap();
        file.write_all(content).unwrap();
        let digest = Digest::blake3(content);
        near.end(digest, &aside, true).unwrap();
        digest
    }

    #[test]
    fn what_is_wrong_is_removed_and_not_believed() {
        let folder = Folder::new();
        let near = Near::new(folder.path(), NEAR_BYTES_MAX);
        let digest = keep(&near, b"right");
        assert_eq!(near.read(digest).unwrap().as_deref(), Some(&b"right"[..]));
        for wrong in [&b"wrong"[..], b"", b"righ"] {
            keep(&near, b"right");
            fs::write(near.file(digest), wrong).unwrap();
            let mut out = Vec::new();
            assert_eq!(near.copy(digest, &mut out).unwrap(), None);
            assert!(out.is_empty() && !near.has(digest));
        }
        let large = vec![7; WHOLE_BYTES_MAX as usize + 1];
        let digest = keep(&near, &large);
        let mut out = Vec::new();
        assert_eq!(near.copy(digest, &mut out).unwrap(), Some(large.len() as u64));
        assert!(out == large);
        fs::write(near.file(digest), &large[1..]).unwrap();
        assert_eq!(near.copy(digest, &mut io::sink()).unwrap(), None);
        assert!(!near.has(digest));
    }

    #[test]
    fn the_least_used_go_first() {
        let folder = Folder::new();
        let near = Near::new(folder.path(), 10 * BLOCK_BYTES);
        let old = SystemTime::now() - Duration::from_secs(1_000);
        let mut digests = Vec::new();
        for i in 0..10_u8 {
            let digest = keep(&near, &[i; 10]);
            let file = File::options().write(true).open(near.file(digest)).unwrap();
            file.set_modified(old + Duration::from_secs(i.into())).unwrap();
            digests.push(digest);
        }
        // Used: young again.
        near.read(digests[0]).unwrap().unwrap();
        keep(&near, b"one more");
        let left: Vec<_> = digests.iter().map(|digest| near.has(*digest)).collect();
        assert_eq!(left, [true, false, false, false, true, true, true, true, true, true]);
    }
}
