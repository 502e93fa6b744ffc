//! One pack as it lies on disk, and reading from it. Never writes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use actum_contract::blob::BlobError;
use actum_contract::digest::{Blake3, Digest};

use super::{PIECE_BYTES, io_error};

/// First bytes of a pack; the digit is the version of the format.
pub(super) const MAGIC: &[u8; 16] = b"actum pack 1\n\0\0\0";
const INDEX_MAGIC: &[u8; 16] = b"actum pidx 1\n\0\0\0";
/// Digest and length before each content.
pub(super) const HEAD_BYTES: usize = 40;
/// Digest, offset and length in the index.
const ENTRY_BYTES: usize = 48;
const DIGEST_BYTES: usize = 32;
/// What a content takes beyond its own bytes.
pub(super) const COST_BYTES: u64 = (HEAD_BYTES + ENTRY_BYTES) as u64;

/// Where a content begins, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Pack {
    pub id: String,
    path: PathBuf,
    bytes: u64,
    /// Sorted entries, as in the file.
    index: Vec<u8>,
}

/// When the file system says that a file was last written, in milliseconds.
pub(super) fn modified_ms(found: &std::fs::Metadata) -> u64 {
    let since = found.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or_default()
}

/// Packs that this process keeps open, over all folders. Most packs are read once.
const OPEN_MAX: usize = 64;

/// Files of packs, those used last at the end. A pack is never changed, so a file that is open stays right, also when the
/// pack was joined with others and removed meanwhile.
static OPEN: Mutex<VecDeque<(PathBuf, Arc<File>)>> = Mutex::new(VecDeque::new());

/// The open file of a pack.
fn opened(path: &Path) -> io::Result<Arc<File>> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = open.iter().position(|(known, _)| known == path)
        && let Some((path, file)) = open.remove(at)
    {
        open.push_back((path, Arc::clone(&file)));
        return Ok(file);
    }
    let file = Arc::new(File::open(path)?);
    open.push_back((path.to_owned(), Arc::clone(&file)));
    if open.len() > OPEN_MAX {
        open.pop_front();
    }
    Ok(file)
}

/// Closes packs of a folder that are no longer there, so that the disk gets their room back.
pub(super) fn close_removed(folder: &Path, is_there: impl Fn(&str) -> bool) {
    let is_gone = |path: &Path| {
        path.parent() == Some(folder) && !path.file_stem().and_then(|id| id.to_str()).is_some_and(&is_there)
    };
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|(path, _)| !is_gone(path));
}

pub(super) fn name(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.pack"))
}

pub(super) fn index_name(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.idx"))
}

/// Names the object store that has all of a pack.
pub(super) fn mark_name(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.sent"))
}

pub(super) fn unfinished(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.pack.tmp"))
}

pub(super) fn unfinished_index(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.idx.tmp"))
}

pub(super) fn head(digest: Digest, bytes: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..DIGEST_BYTES].copy_from_slice(&digest.0);
    head[DIGEST_BYTES..].copy_from_slice(&bytes.to_le_bytes());
    head
}

pub(super) fn encode_index(entries: &[(Digest, Place)]) -> Vec<u8> {
    let mut index = Vec::with_capacity(INDEX_MAGIC.len() + entries.len() * ENTRY_BYTES + DIGEST_BYTES);
    index.extend_from_slice(INDEX_MAGIC);
    for (digest, place) in entries {
        index.extend_from_slice(&digest.0);
        index.extend_from_slice(&place.offset.to_le_bytes());
        index.extend_from_slice(&place.bytes.to_le_bytes());
    }
    let check = Digest::blake3(&index);
    index.extend_from_slice(&check.0);
    index
}

/// The entries of a pack without its index, read from the heads before the contents, sorted. Nothing if any of it is not
/// what it says.
pub(super) fn scan(path: &Path) -> Option<Vec<(Digest, Place)>> {
    let file = File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0).ok()?;
    let pack = Pack { id: String::new(), path: path.to_owned(), bytes, index: Vec::new() };
    let (mut entries, mut at) = (Vec::new(), MAGIC.len() as u64);
    while at < bytes {
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, at).ok()?;
        let digest = Digest::from_slice(&head[..DIGEST_BYTES])?;
        let place = Place { offset: at + HEAD_BYTES as u64, bytes: number(&head[DIGEST_BYTES..]) };
        pack.copy(digest, place, &mut io::sink()).ok()?;
        entries.push((digest, place));
        at = place.offset + place.bytes;
    }
    entries.sort_unstable_by_key(|(digest, _)| *digest);
    (magic == *MAGIC && !entries.is_empty()).then_some(entries)
}

/// The entries of an index file, or nothing if it is not whole.
fn decode_index(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let body = file.len().checked_sub(DIGEST_BYTES)?;
    let sound = file.starts_with(INDEX_MAGIC)
        && body.checked_sub(INDEX_MAGIC.len()).is_some_and(|entries| entries.is_multiple_of(ENTRY_BYTES))
        && Digest::from_slice(&file[body..]) == Some(Digest::blake3(&file[..body]));
    file.truncate(body);
    sound.then(|| file.split_off(INDEX_MAGIC.len()))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

impl Pack {
    /// Nothing if somebody removed it meanwhile.
    pub(super) fn open(folder: &Path, id: &str) -> Result<Option<Self>, BlobError> {
        let (path, index_path) = (name(folder, id), index_name(folder, id));
        let open = |path: &Path| match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("open", path)(e)),
        };
        let (Some(mut index_file), Some(file)) = (open(&index_path)?, open(&path)?) else { return Ok(None) };
        let (mut index, mut magic) = (Vec::new(), [0; MAGIC.len()]);
        index_file.read_to_end(&mut index).map_err(io_error("read", &index_path))?;
        file.read_exact_at(&mut magic, 0).map_err(io_error("read", &path))?;
        for (found, known, path) in [(&index[..], INDEX_MAGIC, &index_path), (&magic[..], MAGIC, &path)] {
            // The same form with another number is ours, from another time.
            if !found.starts_with(known) && found.starts_with(&known[..10]) {
                return Err(BlobError::Newer(path.display().to_string()));
            }
        }
        let damaged = || io_error("understand", &index_path)(io::ErrorKind::InvalidData.into());
        let index = decode_index(index).filter(|_| magic == *MAGIC).ok_or_else(damaged)?;
        let bytes = file.metadata().map_err(io_error("look at", &path))?.len();
        Ok(Some(Self { id: id.to_owned(), path, bytes, index }))
    }

    /// What it takes on disk, with its index.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.index.len() as u64
    }

    fn entry(&self, at: usize) -> (Digest, Place) {
        let entry = &self.index[at * ENTRY_BYTES..][..ENTRY_BYTES];
        let digest = Digest::from_slice(&entry[..DIGEST_BYTES]).unwrap_or(Digest::ZERO);
        (digest, Place { offset: number(&entry[DIGEST_BYTES..][..8]), bytes: number(&entry[DIGEST_BYTES + 8..]) })
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Digest, Place)> + '_ {
        (0..self.index.len() / ENTRY_BYTES).map(|at| self.entry(at))
    }

    pub(super) fn find(&self, digest: Digest) -> Option<Place> {
        let (mut low, mut high) = (0, self.index.len() / ENTRY_BYTES);
        while low < high {
            let middle = low.midpoint(high);
            match self.index[middle * ENTRY_BYTES..][..DIGEST_BYTES].cmp(&digest.0) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(self.entry(middle).1),
            }
        }
        None
    }

    /// Whether the content lies here and is what its digest says.
    pub(super) fn has_sound(&self, digest: Digest) -> bool {
        self.find(digest).is_some_and(|place| self.copy(digest, place, &mut io::sink()).is_ok())
    }

    fn failed(&self, digest: Digest) -> impl FnOnce(io::Error) -> BlobError + use<> {
        let id = self.id.clone();
        move |e| match e.kind() {
            // Joined with others meanwhile: what was in it is in another one.
            io::ErrorKind::NotFound => BlobError::Missing(digest),
            io::ErrorKind::UnexpectedEof => BlobError::Damaged(digest, format!("pack {id}")),
            _ => BlobError::Io { doing: "read", place: format!("pack {id}"), source: e },
        }
    }

    fn damaged(&self, digest: Digest) -> BlobError {
        BlobError::Damaged(digest, format!("pack {}", self.id))
    }

    /// Keeps a damaged index from asking for more memory than the pack could fill.
    fn within(&self, digest: Digest, place: Place) -> Result<(), BlobError> {
        let end = place.offset.checked_add(place.bytes);
        if end.is_some_and(|end| end <= self.bytes) { Ok(()) } else { Err(self.damaged(digest)) }
    }

    pub(super) fn read(&self, digest: Digest, place: Place) -> Result<Vec<u8>, BlobError> {
        self.within(digest, place)?;
        let file = opened(&self.path).map_err(self.failed(digest))?;
        let mut content = vec![0; usize::try_from(place.bytes).map_err(|_| self.damaged(digest))?];
        file.read_exact_at(&mut content, place.offset).map_err(self.failed(digest))?;
        if Digest::blake3(&content) == digest { Ok(content) } else { Err(self.damaged(digest)) }
    }

    pub(super) fn copy(&self, digest: Digest, place: Place, into: &mut dyn Write) -> Result<u64, BlobError> {
        self.within(digest, place)?;
        let file = opened(&self.path).map_err(self.failed(digest))?;
        let (mut hasher, mut at, end) = (Blake3::default(), place.offset, place.offset + place.bytes);
        let mut piece = vec![0; PIECE_BYTES.min(place.bytes as usize)];
        while at < end {
            let length = piece.len().min((end - at) as usize);
            file.read_exact_at(&mut piece[..length], at).map_err(self.failed(digest))?;
            hasher.update(&piece[..length]);
            into.write_all(&piece[..length]).map_err(|source| BlobError::Io {
                doing: "write out",
                place: format!("content {digest}"),
                source,
            })?;
            at += length as u64;
        }
        if hasher.finish() == digest { Ok(place.bytes) } else { Err(self.damaged(digest)) }
    }
}

/// The bytes of one place, unchecked.
pub(super) struct Reader {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Pack {
    /// When the file system says that this pack was stored. A pack that was removed meanwhile counts as new.
    pub(super) fn stored_ms(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(u64::MAX, |found| modified_ms(&found))
    }

    pub(super) fn reader(&self, place: Place) -> io::Result<Reader> {
        Ok(Reader { file: opened(&self.path)?, at: place.offset, end: place.offset.saturating_add(place.bytes) })
    }
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min((self.end - self.at) as usize);
        let read = self.file.read_at(&mut buffer[..length], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
