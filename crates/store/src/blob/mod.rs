//! Blobs in a local folder: contents by their BLAKE3, appended to packs, deduplicated, never changed.
//!
//! ```text
//! lock          shared by batches, held alone by a sweep; dies with its owner
//! joining       held by the one batch that joins small packs
//! generation    a number that every sweep raises
//! packs/ID.pack contents one after another, each with digest and length before it
//! packs/ID.idx  digest → place, sorted; a pack without it does not count
//! packs/ID.sent which object store has all of it
//! near/         contents of the object store that were needed here
//! ```
//!
//! A batch writes one pack: contents, fsync, index, fsync, rename, rename. A process that dies leaves files that nobody
//! refers to, and the next sweep removes them.
//!
//! Where there is an object store behind the folder, a commit returns only when everything of every pack is there too; what a
//! dead process has not sent is sent by the next commit. Whatever is not in the folder is looked for there.

mod far;
mod near;
mod pack;
mod send;
mod sweep;

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use actum_contract::blob::{Batch, BlobError, Blobs};
use actum_contract::digest::{Blake3, Digest};

use crate::crash;
use near::{NEAR_BYTES_MAX, Near};
use pack::{Pack, Place};

pub use far::{BadFar, Far, FarSwept, SWEEP_AGE_MIN, stop_waiting};
pub use sweep::{Swept, Thoroughness};

/// The blobs of one folder. Several processes may use it at once.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    packs: RwLock<KnownPacks>,
    behind: Option<Behind>,
}

/// The packs as they were last found. Empty until a content is looked for: who only compares needs none of them.
#[derive(Debug, Default)]
struct KnownPacks {
    list: Vec<Arc<Pack>>,
    /// Whether the list is current: no other batch can have written since.
    is_fresh: bool,
}

/// An object store behind a folder, and what was fetched from it.
#[derive(Debug)]
struct Behind {
    far: Arc<Far>,
    near: Arc<Near>,
}

/// Piece in which large contents travel.
const PIECE_BYTES: usize = 1 << 20;

/// How often a content is looked up whose pack was joined with others meanwhile.
const LOOKUPS_MAX: usize = 5;

/// When there are more packs than this, the small ones are joined.
const PACKS_MAX: usize = 64;

fn io_error(doing: &'static str, place: &Path) -> impl FnOnce(io::Error) -> BlobError + use<> {
    let place = place.display().to_string();
    move |source| BlobError::Io { doing, place, source }
}

impl Folder {
    /// Opens the folder, making it if need be.
    pub fn open(path: &Path) -> Result<Self, BlobError> {
        Self::open_with(path, None)
    }

    /// Opens the folder with an object store behind it, which has everything that was ever committed here.
    pub fn open_before(path: &Path, far: Arc<Far>) -> Result<Self, BlobError> {
        let near = Arc::new(Near::new(path, NEAR_BYTES_MAX));
        Self::open_with(path, Some(Behind { far, near }))
    }

    fn open_with(path: &Path, behind: Option<Behind>) -> Result<Self, BlobError> {
        let packs = path.join("packs");
        std::fs::create_dir_all(&packs).map_err(io_error("make", &packs))?;
        let folder = Self { path: path.to_owned(), packs: RwLock::default(), behind };
        // Good to have; whoever only wants to read must not fail because of it.
        let _ = folder.tidy_up();
        Ok(folder)
    }

    fn packs_path(&self) -> PathBuf {
        self.path.join("packs")
    }

    fn lock(&self, alone: bool) -> Result<File, BlobError> {
        let (path, file) = self.lock_file()?;
        if alone { file.lock() } else { file.lock_shared() }.map_err(io_error("lock", &path))?;
        Ok(file)
    }

    fn try_lock_alone(&self) -> Result<Option<File>, BlobError> {
        let (path, file) = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(io_error("lock", &path)(e)),
        }
    }

    fn lock_file(&self) -> Result<(PathBuf, File), BlobError> {
        let path = self.path.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        Ok((path.clone(), file.map_err(io_error("open", &path))?))
    }

    fn generation(&self) -> Result<u64, BlobError> {
        let path = self.path.join("generation");
        let mut bytes = Vec::new();
        match File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(io_error("open", &path)(e)),
            Ok(mut file) => file.read_to_end(&mut bytes).map_err(io_error("read", &path))?,
        };
        let text = String::from_utf8_lossy(&bytes);
        text.trim().parse().map_err(|_| io_error("understand", &path)(io::ErrorKind::InvalidData.into()))
    }

    /// Names in the folder of packs that end so, without the end.
    fn names(&self, end: &str) -> Result<Vec<String>, BlobError> {
        let path = self.packs_path();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(io_error("list", &path))? {
            let name = entry.map_err(io_error("list", &path))?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(end)).map(str::to_owned));
        }
        Ok(names)
    }

    /// Takes note of packs that others have written or removed.
    fn rescan(&self) -> Result<Vec<Arc<Pack>>, BlobError> {
        let path = self.packs_path();
        let known = self.packs.read().unwrap_or_else(PoisonError::into_inner).list.clone();
        let known: HashMap<&str, &Arc<Pack>> = known.iter().map(|pack| (pack.id.as_str(), pack)).collect();
        let mut packs = Vec::new();
        for _ in 0..LOOKUPS_MAX {
            packs.clear();
            let names = self.names(".idx")?;
            for id in &names {
                match known.get(id.as_str()) {
                    Some(pack) => packs.push(Arc::clone(pack)),
                    None => packs.extend(Pack::open(&path, id)?.map(Arc::new)),
                }
            }
            // Removed between the listing and now: its living contents are in a pack that the listing may lack.
            if packs.len() == names.len() {
                break;
            }
        }
        pack::close_removed(&path, |id| packs.iter().any(|pack| pack.id == id));
        *self.packs.write().unwrap_or_else(PoisonError::into_inner) =
            KnownPacks { list: packs.clone(), is_fresh: true };
        Ok(packs)
    }

    /// The packs, looked for again only if others may have written since.
    fn known(&self) -> Result<Vec<Arc<Pack>>, BlobError> {
        let known = self.packs.read().unwrap_or_else(PoisonError::into_inner);
        if known.is_fresh {
            return Ok(known.list.clone());
        }
        drop(known);
        self.rescan()
    }

    fn find(&self, digest: Digest) -> Result<Option<(Arc<Pack>, Place)>, BlobError> {
        let packs = self.known()?;
        Ok(packs.into_iter().find_map(|pack| pack.find(digest).map(|place| (pack, place))))
    }

    /// Every place in which a content lies, looked for again if there is none.
    fn find_all(&self, digest: Digest) -> Result<Vec<(Arc<Pack>, Place)>, BlobError> {
        let search = |packs: Vec<Arc<Pack>>| -> Vec<(Arc<Pack>, Place)> {
            packs.into_iter().filter_map(|pack| pack.find(digest).map(|place| (pack, place))).collect()
        };
        // What is known may be forgotten by another thread at any moment: look at a list of one's own.
        let mut found = search(self.packs.read().unwrap_or_else(PoisonError::into_inner).list.clone());
        // A list that was made while packs were joined may have neither the old ones nor the new one.
        for _ in 0..LOOKUPS_MAX {
            if !found.is_empty() {
                break;
            }
            let before = self.names(".idx")?.len();
            found = search(self.rescan()?);
            if found.is_empty() && self.names(".idx")?.len() == before {
                break;
            }
        }
        if found.is_empty() { Err(BlobError::Missing(digest)) } else { Ok(found) }
    }

    /// Does `work` with the first place in which the content is sound. Places are looked up again if their pack was joined
    /// with others meanwhile.
    fn with_sound<T>(
        &self,
        digest: Digest,
        mut work: impl FnMut(&Pack, Place) -> Result<T, BlobError>,
    ) -> Result<T, BlobError> {
        let mut last = BlobError::Missing(digest);
        for _ in 0..LOOKUPS_MAX {
            let mut is_gone = false;
            for (pack, place) in self.find_all(digest)? {
                match work(&pack, place) {
                    Err(BlobError::Missing(_)) => is_gone = true,
                    Err(e @ BlobError::Damaged(..)) => last = e,
                    other => return other,
                }
            }
            if !is_gone {
                break;
            }
            self.rescan()?;
        }
        Err(last)
    }

    /// Bytes on disk, and the number of packs.
    pub fn size(&self) -> Result<(u64, usize), BlobError> {
        let packs = self.rescan()?;
        Ok((packs.iter().map(|pack| pack.bytes()).sum(), packs.len()))
    }

    /// Reads every content of every pack and returns those that are not what their digest says.
    pub fn check(&self) -> Result<(u64, Vec<Digest>), BlobError> {
        let packs = self.rescan()?;
        let (mut count, mut bad) = (0, Vec::new());
        for pack in packs {
            for (digest, place) in pack.entries() {
                count += 1;
                match pack.copy(digest, place, &mut io::sink()) {
                    Ok(_) => {}
                    // It may lie somewhere else too.
                    Err(BlobError::Damaged(..) | BlobError::Missing(_)) => match self.copy(digest, &mut io::sink()) {
                        Ok(_) => {}
                        Err(_) => bad.push(digest),
                    },
                    Err(e) => return Err(e),
                }
            }
        }
        bad.sort();
        bad.dedup();
        Ok((count, bad))
    }

    /// What a stored content takes on disk.
    pub fn cost(&self, digest: Digest) -> Result<u64, BlobError> {
        match self.find_all(digest) {
            // It takes nothing here.
            Err(BlobError::Missing(_)) if self.behind.is_some() => Ok(0),
            found => Ok(found?[0].1.bytes + pack::COST_BYTES),
        }
    }

    fn is_here(&self, digest: Digest) -> Result<bool, BlobError> {
        Ok(self.find(digest)?.is_some())
    }

    fn read_here(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        self.with_sound(digest, |pack, place| pack.read(digest, place))
    }

    fn copy_here(&self, digest: Digest, into: &mut dyn Write) -> Result<u64, BlobError> {
        let is_only_one = self.find_all(digest)?.len() == 1;
        self.with_sound(digest, |pack, place| {
            // Only one of several may be sound, and what is written out cannot be taken back.
            if !is_only_one {
                pack.copy(digest, place, &mut io::sink())?;
            }
            pack.copy(digest, place, into)
        })
    }
}

impl Blobs for Folder {
    fn contains(&self, digest: Digest) -> Result<bool, BlobError> {
        match &self.behind {
            Some(behind) if !self.is_here(digest)? => Ok(behind.near.has(digest) || behind.far.contains(digest)?),
            Some(_) => Ok(true),
            None => self.is_here(digest),
        }
    }

    fn read(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        match (self.read_here(digest), &self.behind) {
            (Err(e @ (BlobError::Missing(_) | BlobError::Damaged(..))), Some(behind)) => behind.read(digest, e),
            (found, _) => found,
        }
    }

    fn copy(&self, digest: Digest, into: &mut dyn Write) -> Result<u64, BlobError> {
        let Some(behind) = &self.behind else { return self.copy_here(digest, into) };
        let sound = self.with_sound(digest, |pack, place| {
            // What is written out cannot be taken back, so it has to be sound before.
            pack.copy(digest, place, &mut io::sink())?;
            pack.copy(digest, place, into)
        });
        match sound {
            Err(e @ (BlobError::Missing(_) | BlobError::Damaged(..))) => behind.copy(digest, into, e),
            copied => copied,
        }
    }

    fn fetch(&self, digests: &[Digest]) -> Result<(), BlobError> {
        let Some(behind) = &self.behind else { return Ok(()) };
        let mut missing = Vec::new();
        for digest in digests {
            if !behind.near.has(*digest) && !self.is_here(*digest)? {
                missing.push(*digest);
            }
        }
        behind.fetch(missing)
    }

    fn batch(&self) -> Result<Box<dyn Batch + '_>, BlobError> {
        let lock = self.lock(false)?;
        self.packs.write().unwrap_or_else(PoisonError::into_inner).is_fresh = false;
        let generation = self.generation()?;
        Ok(Box::new(Writing { folder: self, generation, pack: Mutex::new(None), _lock: lock }))
    }
}

/// A batch: contents going into a pack that has no name yet.
struct Writing<'a> {
    folder: &'a Folder,
    generation: u64,
    /// Nothing until the first content that is not stored yet.
    pack: Mutex<Option<NewPack>>,
    _lock: File,
}

impl Writing<'_> {
    fn with_pack<T>(&self, work: impl FnOnce(&mut NewPack) -> Result<T, BlobError>) -> Result<T, BlobError> {
        let mut pack = self.pack.lock().unwrap_or_else(PoisonError::into_inner);
        if pack.is_none() {
            *pack = Some(NewPack::begin(&self.folder.packs_path())?);
        }
        match pack.as_mut() {
            Some(pack) => work(pack),
            None => unreachable!("it has just been made"),
        }
    }
}

impl Drop for Writing<'_> {
    /// What was not committed is nobody's.
    fn drop(&mut self) {
        if let Some(pack) = self.pack.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            pack.abandon();
        }
    }
}

impl Batch for Writing<'_> {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn put(&self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        if self.folder.is_here(digest)? {
            return Ok(());
        }
        self.with_pack(|pack| pack.append(digest, bytes))
    }

    fn replace(&self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        self.with_pack(|pack| pack.append(digest, bytes))
    }

    fn put_stream(&self, from: &mut dyn Read, anew: bool) -> Result<(Digest, u64), BlobError> {
        let is_sound = |digest| match self.folder.copy_here(digest, &mut io::sink()) {
            Ok(_) => Ok(true),
            Err(BlobError::Damaged(..)) => Ok(false),
            Err(e) => Err(e),
        };
        let stored = |digest| Ok(self.folder.is_here(digest)? && (!anew || is_sound(digest)?));
        self.with_pack(|pack| pack.append_stream(from, &stored))
    }

    fn commit(&self) -> Result<(), BlobError> {
        let pack = self.pack.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pack) = pack.and_then(NewPack::unless_empty) {
            let made = Arc::new(pack.finish()?);
            self.folder.packs.write().unwrap_or_else(PoisonError::into_inner).list.push(made);
        }
        // Also if nothing is new: it may rely on what another process has not sent yet.
        self.folder.send_all()?;
        // Good to have; what is stored is stored.
        let _ = self.folder.join_small();
        Ok(())
    }
}

/// A pack being written, under a name that nobody looks for.
#[derive(Debug)]
struct NewPack {
    folder: PathBuf,
    id: String,
    file: BufWriter<File>,
    at: u64,
    entries: Vec<(Digest, Place)>,
    seen: HashSet<Digest>,
}

impl NewPack {
    fn begin(folder: &Path) -> Result<Self, BlobError> {
        Self::begin_as(folder, uuid::Uuid::now_v7().simple().to_string())
    }

    fn begin_as(folder: &Path, id: String) -> Result<Self, BlobError> {
        let path = pack::unfinished(folder, &id);
        let file = File::create_new(&path).map_err(io_error("make", &path))?;
        let mut file = BufWriter::with_capacity(PIECE_BYTES, file);
        file.write_all(pack::MAGIC).map_err(io_error("write", &path))?;
        let at = pack::MAGIC.len() as u64;
        Ok(Self { folder: folder.to_owned(), id, file, at, entries: Vec::new(), seen: HashSet::new() })
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> BlobError + use<> {
        io_error("write", &pack::unfinished(&self.folder, &self.id))
    }

    fn append(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        if !self.seen.insert(digest) {
            return Ok(());
        }
        let written = self.file.write_all(&pack::head(digest, bytes.len() as u64));
        written.and_then(|()| self.file.write_all(bytes)).map_err(self.failed())?;
        self.entered(digest, bytes.len() as u64);
        Ok(())
    }

    /// Moves a content over from another pack; it is checked on the way.
    fn append_from(&mut self, pack: &Pack, digest: Digest, place: Place) -> Result<(), BlobError> {
        if place.bytes <= PIECE_BYTES as u64 {
            return self.append(digest, &pack.read(digest, place)?);
        }
        let mut reader = pack.reader(place).map_err(self.failed())?;
        let (found, _) = self.append_stream(&mut reader, &|_| Ok(false))?;
        if found == digest { Ok(()) } else { Err(BlobError::Damaged(digest, format!("pack {}", pack.id))) }
    }

    fn entered(&mut self, digest: Digest, bytes: u64) {
        let offset = self.at + pack::HEAD_BYTES as u64;
        self.entries.push((digest, Place { offset, bytes }));
        self.at = offset + bytes;
    }

    /// The head is written last, over a gap: neither digest nor length is known before the end.
    fn append_stream(
        &mut self,
        from: &mut dyn Read,
        stored: &dyn Fn(Digest) -> Result<bool, BlobError>,
    ) -> Result<(Digest, u64), BlobError> {
        use std::os::unix::fs::FileExt as _;

        let place = pack::unfinished(&self.folder, &self.id);
        self.file.write_all(&[0; pack::HEAD_BYTES]).map_err(self.failed())?;
        let (mut hasher, mut length, mut piece) = (Blake3::default(), 0_u64, vec![0; PIECE_BYTES]);
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    self.back_to_end()?;
                    return Err(io_error("read into", &place)(e));
                }
            };
            hasher.update(&piece[..read]);
            length += read as u64;
            self.file.write_all(&piece[..read]).map_err(self.failed())?;
        }
        let digest = hasher.finish();
        if stored(digest)? || !self.seen.insert(digest) {
            self.back_to_end()?;
            return Ok((digest, length));
        }
        self.file.flush().map_err(self.failed())?;
        self.file.get_ref().write_all_at(&pack::head(digest, length), self.at).map_err(self.failed())?;
        self.entered(digest, length);
        Ok((digest, length))
    }

    /// Forgets what was written after the last whole content.
    fn back_to_end(&mut self) -> Result<(), BlobError> {
        use std::io::{Seek as _, SeekFrom};

        let cut = self.file.flush().and_then(|()| self.file.get_ref().set_len(self.at));
        cut.and_then(|()| self.file.seek(SeekFrom::Start(self.at)).map(drop)).map_err(self.failed())
    }

    fn unless_empty(self) -> Option<Self> {
        if self.entries.is_empty() {
            self.abandon();
            return None;
        }
        Some(self)
    }

    fn abandon(self) {
        for path in [pack::unfinished(&self.folder, &self.id), pack::unfinished_index(&self.folder, &self.id)] {
            let _ = std::fs::remove_file(path);
        }
        // Its buffer must not be written to a file that is gone, least of all on a full disk.
        let _ = self.file.into_parts();
    }

    fn finish(mut self) -> Result<Pack, BlobError> {
        let finished = self.try_finish();
        if finished.is_err() {
            self.abandon();
        }
        finished
    }

    fn try_finish(&mut self) -> Result<Pack, BlobError> {
        self.file.flush().map_err(self.failed())?;
        crash::point("blobs.written");
        self.file.get_ref().sync_data().map_err(self.failed())?;
        self.entries.sort_unstable_by_key(|(digest, _)| *digest);
        let index_path = write_index(&self.folder, &self.id, &self.entries)?;
        crash::point("blobs.packed");
        let made = pack::name(&self.folder, &self.id);
        let named = std::fs::rename(pack::unfinished(&self.folder, &self.id), made);
        let indexed = named.and_then(|()| std::fs::rename(&index_path, pack::index_name(&self.folder, &self.id)));
        indexed.map_err(self.failed())?;
        crash::point("blobs.indexed");
        sync_folder(&self.folder)?;
        Pack::open(&self.folder, &self.id)?.ok_or_else(|| self.failed()(io::ErrorKind::NotFound.into()))
    }
}

/// Writes an index under a name that nobody looks for.
fn write_index(folder: &Path, id: &str, entries: &[(Digest, Place)]) -> Result<PathBuf, BlobError> {
    let path = pack::unfinished_index(folder, id);
    let written = File::create_new(&path).and_then(|mut file| {
        file.write_all(&pack::encode_index(entries))?;
        file.sync_data()
    });
    written.map_err(io_error("write", &path))?;
    Ok(path)
}

fn sync_folder(path: &Path) -> Result<(), BlobError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(io_error("sync", path))
}
