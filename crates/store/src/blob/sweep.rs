//! Removing contents that nobody refers to. It holds the lock alone, so no batch can be relying on what it removes.
//!
//! Living contents of a pack that is mostly dead, and of packs too small to be worth a file, move to a new pack; only
//! when that is durable do the old ones go. A sweep that dies leaves a content twice, never nowhere. An object store behind the
//! folder keeps what goes here: others may refer to it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;

use actum_contract::blob::BlobError;
use actum_contract::digest::Digest;

use super::pack::{self, Pack};
use super::{Folder, NewPack, PACKS_MAX, io_error, sync_folder, write_index};
use crate::crash;

/// What a sweep removed, and what is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub contents: u64,
    pub bytes: u64,
    pub bytes_left: u64,
}

/// How much work a sweep makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// Leaves packs alone that are mostly alive.
    Cheap,
    /// Leaves nothing that is dead.
    Exact,
}

/// A pack is written anew when less than this part of it is alive.
const LIVING_PERCENT_MIN: u64 = 70;

/// Digits of a pack's name that say when it was begun.
const TIME_DIGITS: usize = 12;

/// Packs below this size are joined when there are too many of them.
const SMALL_BYTES: u64 = 16 << 20;

impl Folder {
    /// Keeps what `roots` reach and removes the rest. The question is asked only after the lock is held: whoever
    /// refers to a content has made that durable before he let go of his batch.
    pub fn sweep<E: From<BlobError>>(
        &self,
        how: Thoroughness,
        reach: impl FnOnce(&Self) -> Result<HashSet<Digest>, E>,
    ) -> Result<Swept, E> {
        let _alone = self.lock(true)?;
        self.remove_leavings()?;
        self.rescan()?;
        let living = reach(self)?;
        Ok(self.remove_all_but(&living, how)?)
    }

    /// What an exact sweep would remove; nothing is.
    pub fn would_sweep(&self, living: &HashSet<Digest>) -> Result<Swept, BlobError> {
        let (mut dead, mut bytes) = (HashSet::new(), 0);
        let packs = self.rescan()?;
        for (digest, place) in packs.iter().flat_map(|pack| pack.entries()).filter(|(d, _)| !living.contains(d)) {
            dead.insert(digest);
            bytes += place.bytes;
        }
        let (all, _) = self.size()?;
        Ok(Swept { contents: dead.len() as u64, bytes, bytes_left: all.saturating_sub(bytes) })
    }

    /// The clock of the file system that holds the folder: the one that stamps its packs.
    pub fn clock_ms(&self) -> Result<u64, BlobError> {
        let path = self.path.join("clock");
        let stamped = OpenOptions::new().write(true).create(true).truncate(true).open(&path).and_then(|mut file| {
            std::io::Write::write_all(&mut file, b"\n")?;
            file.metadata()
        });
        stamped.map(|found| pack::modified_ms(&found)).map_err(io_error("write", &path))
    }

    /// Contents of packs that were begun at this moment or later: their names say when.
    pub fn written_since(&self, since_ms: u64) -> Result<HashSet<Digest>, BlobError> {
        let packs = self.rescan()?;
        let young = packs.iter().filter(|pack| begun_ms(pack) >= since_ms);
        Ok(young.flat_map(|pack| pack.entries()).map(|(digest, _)| digest).collect())
    }

    /// Contents of packs that were begun or stored at this moment or later, by [`Self::clock_ms`]: a pack's name holds the time
    /// of its writer, whose clock may be behind.
    pub fn stored_since(&self, since_ms: u64) -> Result<HashSet<Digest>, BlobError> {
        let packs = self.rescan()?;
        let young = packs.iter().filter(|pack| begun_ms(pack) >= since_ms || pack.stored_ms() >= since_ms);
        Ok(young.flat_map(|pack| pack.entries()).map(|(digest, _)| digest).collect())
    }

    /// Removes what the dead have left and joins small packs when there are too many of them, if nobody else is at
    /// work. Called when a folder is opened.
    pub(super) fn tidy_up(&self) -> Result<(), BlobError> {
        let (indexed, packs) = (self.names(".idx")?.len(), self.names(".pack")?.len());
        if indexed == packs && packs <= PACKS_MAX && self.names(".tmp")?.is_empty() {
            return Ok(());
        }
        let Some(_alone) = self.try_lock_alone()? else { return Ok(()) };
        self.remove_leavings()?;
        let packs = self.rescan()?;
        let (small, kept): (Vec<_>, Vec<_>) = packs.into_iter().partition(|pack| pack.bytes() < SMALL_BYTES);
        if small.len() > PACKS_MAX {
            self.replace(&small, &kept, |_| true)?;
        }
        Ok(())
    }

    /// Joins small packs when there are too many of them, while a batch is held: so nothing is swept meanwhile. Of several
    /// batches one does it. With an object store behind the folder only packs that it has are joined: a batch that is just
    /// sending one must find it.
    pub(super) fn join_small(&self) -> Result<(), BlobError> {
        if self.names(".idx")?.len() <= PACKS_MAX {
            return Ok(());
        }
        let path = self.path.join("joining");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let joining = file.map_err(io_error("open", &path))?;
        if joining.try_lock().is_err() {
            return Ok(());
        }
        let is_small =
            |pack: &Arc<Pack>| pack.bytes() < SMALL_BYTES && (self.behind.is_none() || self.is_sent(&pack.id));
        let (small, kept): (Vec<_>, Vec<_>) = self.rescan()?.into_iter().partition(is_small);
        if small.len() > PACKS_MAX / 2 {
            self.replace(&small, &kept, |_| true)?;
        }
        Ok(())
    }

    fn remove_all_but(&self, living: &HashSet<Digest>, how: Thoroughness) -> Result<Swept, BlobError> {
        let packs = self.rescan()?;
        let (before, count) = self.size()?;
        let condemned = |pack: &Arc<Pack>| is_condemned(pack, living, count > PACKS_MAX, how);
        let (condemned, kept): (Vec<_>, Vec<_>) = packs.into_iter().partition(condemned);
        let dead = condemned.iter().flat_map(|pack| pack.entries()).filter(|(digest, _)| !living.contains(digest));
        let contents = dead.map(|(digest, _)| digest).collect::<HashSet<_>>().len() as u64;
        self.replace(&condemned, &kept, |digest| living.contains(&digest))?;
        let (after, _) = self.size()?;
        Ok(Swept { contents, bytes: before.saturating_sub(after), bytes_left: after })
    }

    /// Moves what is alive in the condemned packs to a new one, then removes them.
    fn replace(
        &self,
        condemned: &[Arc<Pack>],
        kept: &[Arc<Pack>],
        alive: impl Fn(Digest) -> bool,
    ) -> Result<(), BlobError> {
        let (mut new, mut dropped, mut unsound) = (None::<NewPack>, false, HashSet::new());
        for pack in condemned {
            for (digest, place) in pack.entries() {
                if !alive(digest) {
                    dropped = true;
                } else if !kept.iter().any(|other| other.has_sound(digest)) {
                    let into = match &mut new {
                        Some(new) => new,
                        None => new.insert(NewPack::begin_as(&self.packs_path(), joined_id(condemned))?),
                    };
                    match into.append_from(pack, digest, place) {
                        // What cannot be moved stays where it is: somebody may still be able to save it.
                        Err(BlobError::Damaged(..)) => drop(unsound.insert(&pack.id)),
                        // A disk that is full gets no further leavings.
                        Err(e) => {
                            new.into_iter().for_each(NewPack::abandon);
                            return Err(e);
                        }
                        Ok(()) => {}
                    }
                }
            }
        }
        if let Some(new) = new.and_then(NewPack::unless_empty) {
            let made = new.finish()?;
            if condemned.iter().all(|pack| self.is_sent(&pack.id)) {
                self.mark_sent(&made.id)?;
            }
        }
        crash::point("sweep.copied");
        if dropped {
            self.raise_generation()?;
        }
        let folder = self.packs_path();
        for pack in condemned.iter().filter(|pack| !unsound.contains(&pack.id)) {
            // The index first: a pack without one does not count.
            for path in [pack::index_name(&folder, &pack.id), pack::name(&folder, &pack.id)] {
                match std::fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io_error("remove", &path)(e)),
                    _ => {}
                }
            }
            let _ = std::fs::remove_file(pack::mark_name(&folder, &pack.id));
            crash::point("sweep.removed");
        }
        sync_folder(&folder)?;
        self.rescan().map(drop)
    }

    /// Must be durable before anything goes: an index that trusts the old number would believe contents stored.
    fn raise_generation(&self) -> Result<(), BlobError> {
        let (path, aside) = (self.path.join("generation"), self.path.join("generation.tmp"));
        let number = self.generation()? + 1;
        let written = File::create(&aside).and_then(|mut file| {
            writeln!(file, "{number}")?;
            file.sync_data()
        });
        written.and_then(|()| std::fs::rename(&aside, &path)).map_err(io_error("write", &path))?;
        sync_folder(&self.path)
    }

    /// What processes that died have left: nobody else can be writing while the lock is held alone. A pack that is
    /// whole and has lost only its index gets it back.
    fn remove_leavings(&self) -> Result<(), BlobError> {
        let folder = self.packs_path();
        for name in self.names(".tmp")? {
            let path = folder.join(format!("{name}.tmp"));
            std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        let indexed: HashSet<String> = self.names(".idx")?.into_iter().collect();
        for id in self.names(".pack")?.into_iter().filter(|id| !indexed.contains(id)) {
            let path = pack::name(&folder, &id);
            match pack::scan(&path) {
                Some(entries) => {
                    let index = write_index(&folder, &id, &entries)?;
                    std::fs::rename(index, pack::index_name(&folder, &id)).map_err(io_error("write", &path))?;
                }
                None => std::fs::remove_file(&path).map_err(io_error("remove", &path))?,
            }
        }
        for id in self.names(".sent")? {
            if !pack::name(&folder, &id).exists() {
                let _ = std::fs::remove_file(pack::mark_name(&folder, &id));
            }
        }
        Ok(())
    }
}

/// The name of a pack that replaces others: begun when the newest of them was, because names say how old contents are.
fn joined_id(packs: &[Arc<Pack>]) -> String {
    let fresh = uuid::Uuid::now_v7().simple().to_string();
    let newest = packs.iter().filter_map(|pack| pack.id.get(..TIME_DIGITS)).max();
    match (newest, fresh.get(TIME_DIGITS..)) {
        (Some(time), Some(rest)) => format!("{time}{rest}"),
        _ => fresh,
    }
}

fn begun_ms(pack: &Pack) -> u64 {
    u64::from_str_radix(pack.id.get(..TIME_DIGITS).unwrap_or_default(), 16).unwrap_or(u64::MAX)
}

fn is_condemned(pack: &Pack, living: &HashSet<Digest>, many: bool, how: Thoroughness) -> bool {
    let alive: u64 = pack.entries().filter(|(d, _)| living.contains(d)).map(|(_, p)| p.bytes).sum();
    let whole: u64 = pack.entries().map(|(_, p)| p.bytes).sum();
    let least = match how {
        Thoroughness::Cheap => LIVING_PERCENT_MIN,
        Thoroughness::Exact => 100,
    };
    let dead_weight = alive * 100 < whole * least;
    let none_alive = !pack.entries().any(|(d, _)| living.contains(&d));
    dead_weight || none_alive || (many && pack.bytes() < SMALL_BYTES)
}
