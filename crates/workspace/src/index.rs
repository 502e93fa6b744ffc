//! The stat index: for every entry of the last freeze, what the file system said about it and what its content was.
//! An entry about which the file system says the same again is not read again.
//!
//! *Racy* (git's rule): an entry that changed so shortly before it was read that it could change once more without a
//! sign. It is read again next time. The index is a cache: a torn or foreign one is as good as none.
//!
//! A folder's record holds its entries in byte order and then the records of its folders, so a part of the tree that did
//! not change is copied to the next index as it is. It also holds the names that rules leave out, so that a stage can show
//! ignored files without listing any folder.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use actum_contract::digest::Digest;
use rayon::prelude::*;
use rustix::fs::{FileType, Stat};

use crate::error::Result;
use crate::path::TreePath;
use crate::record::{Reader, Writer, is_sound};
use crate::tree::{Kind, Node};

const MAGIC: &str = "actum stat index 2\n";

/// What the file system says about an entry; any change of content changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Stamp {
    mode: u32,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    ino: u64,
    dev: u64,
}

const STAMP_BYTES: usize = 52;

/// Changes this shortly before a freeze may be followed by one that leaves no sign: file systems count time in ticks.
const RACY_NANOSECONDS: i128 = 10_000_000;

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            mode: stat.st_mode,
            size: stat.st_size as u64,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
            ino: stat.st_ino,
            dev: stat.st_dev,
        }
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the permissions, without set-user-id and the like.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o777
    }

    pub(crate) fn modified(&self) -> rustix::fs::Timespec {
        rustix::fs::Timespec { tv_sec: self.mtime.0, tv_nsec: self.mtime.1.into() }
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        match self.file_type() {
            FileType::RegularFile if self.mode & 0o100 != 0 => Some(Kind::Executable),
            FileType::RegularFile => Some(Kind::File),
            FileType::Symlink => Some(Kind::Symlink),
            FileType::Directory => Some(Kind::Folder),
            _ => None,
        }
    }

    fn changed_at(&self) -> i128 {
        i128::from(self.ctime.0) * 1_000_000_000 + i128::from(self.ctime.1)
    }

    /// `now` is a time of the same file system, taken before the entry was looked at.
    pub(crate) fn is_racy(&self, now: &Self) -> bool {
        self.changed_at() >= now.changed_at() - RACY_NANOSECONDS
    }

    pub(crate) fn is_on_one_disk_with(&self, other: &Self) -> bool {
        self.dev == other.dev
    }

    /// The same, as if taken some seconds before.
    pub(crate) fn earlier(mut self, seconds: i64) -> Self {
        self.ctime.0 -= seconds;
        self
    }

    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.mode.to_le_bytes());
        to.extend_from_slice(&self.size.to_le_bytes());
        for (seconds, nanoseconds) in [self.mtime, self.ctime] {
            to.extend_from_slice(&seconds.to_le_bytes());
            to.extend_from_slice(&nanoseconds.to_le_bytes());
        }
        to.extend_from_slice(&self.ino.to_le_bytes());
        to.extend_from_slice(&self.dev.to_le_bytes());
    }

    pub(crate) fn read(from: &[u8; STAMP_BYTES]) -> Self {
        let mut rest = &from[..];
        Self {
            mode: u32_of(&mut rest),
            size: u64_of(&mut rest),
            mtime: (u64_of(&mut rest) as i64, u32_of(&mut rest)),
            ctime: (u64_of(&mut rest) as i64, u32_of(&mut rest)),
            ino: u64_of(&mut rest),
            dev: u64_of(&mut rest),
        }
    }
}

fn u64_of(rest: &mut &[u8]) -> u64 {
    rest.split_off(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u32_of(rest: &mut &[u8]) -> u32 {
    rest.split_off(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// How an entry stands in the index: as in the tree, or kept only because it holds rules and is left out itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Entry(Kind),
    RulesOnly,
}

const RULES_ONLY: u8 = b'r';
const LEFT_OUT: u8 = b'o';

/// An entry that is no folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    pub role: Role,
    pub racy: bool,
    pub stamp: Stamp,
    pub digest: Digest,
    pub name: &'a CStr,
}

/// One entry as it stands in the index.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item<'a> {
    Leaf(Known<'a>),
    Folder(&'a CStr, Record<'a>),
    /// A name that is not part of the tree.
    LeftOut(&'a CStr),
}

impl<'a> Item<'a> {
    pub(crate) fn name(&self) -> &'a CStr {
        match self {
            Self::Leaf(known) => known.name,
            Self::Folder(name, _) | Self::LeftOut(name) => name,
        }
    }
}

/// The record of a folder, with all that is in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a>(&'a [u8]);

const HEADER_BYTES: usize = 4 + 4 + 4 + 1 + STAMP_BYTES + 32 + 8 + 8 + 8;

impl<'a> Record<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let length = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
        (length >= HEADER_BYTES).then(|| bytes.get(..length)).flatten().map(Self)
    }

    fn header(&self) -> (usize, usize, bool, &'a [u8]) {
        let mut rest = &self.0[4..HEADER_BYTES];
        let (count, entry_bytes) = (u32_of(&mut rest) as usize, u32_of(&mut rest) as usize);
        (count, entry_bytes, rest[0] != 0, &rest[1..])
    }

    pub(crate) fn is_racy(&self) -> bool {
        self.header().2
    }

    pub(crate) fn stamp(&self) -> Stamp {
        self.header().3.first_chunk().map(Stamp::read).unwrap_or_default()
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::from_slice(&self.header().3[STAMP_BYTES..][..32]).unwrap_or(Digest::ZERO)
    }

    /// The number of its own entries.
    pub(crate) fn count(&self) -> usize {
        self.header().0
    }

    /// Files and links below, bytes of the files, and names that are left out.
    pub(crate) fn totals(&self) -> Totals {
        let mut rest = &self.header().3[STAMP_BYTES + 32..];
        Totals { files: u64_of(&mut rest), bytes: u64_of(&mut rest), left_out: u64_of(&mut rest) }
    }

    /// Returns the entry of a name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<Item<'a>> {
        self.items().find(|item| item.name().to_bytes() == name)
    }

    /// Adds the paths below `folder` that are not part of the tree. A folder that is left out is one path.
    pub(crate) fn collect_left_out(&self, folder: &TreePath, paths: &mut Vec<TreePath>) {
        if self.totals().left_out == 0 {
            return;
        }
        for item in self.items() {
            let path = || folder.join(item.name().to_bytes());
            match item {
                Item::Folder(_, record) => {
                    if record.totals().left_out > 0 {
                        record.collect_left_out(&path(), paths);
                    }
                }
                Item::LeftOut(_) | Item::Leaf(Known { role: Role::RulesOnly, .. }) => paths.push(path()),
                Item::Leaf(_) => {}
            }
        }
    }

    /// The entries in order. Stops early at anything that does not fit, which the digest of the file rules out.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let (count, entry_bytes, ..) = self.header();
        let bytes = self.0;
        let mut entries = bytes.get(HEADER_BYTES..).and_then(|b| b.get(..entry_bytes)).unwrap_or_default();
        let mut folders = bytes.get(HEADER_BYTES..).and_then(|b| b.get(entry_bytes..)).unwrap_or_default();
        (0..count).map_while(move |_| {
            let (head, rest) = entries.split_first_chunk::<4>()?;
            let name_bytes = usize::from(u16::from_le_bytes([head[2], head[3]])) + 1;
            if head[0] == LEFT_OUT {
                let (name, rest) = rest.split_at_checked(name_bytes)?;
                entries = rest;
                return Some(Item::LeftOut(CStr::from_bytes_with_nul(name).ok()?));
            }
            let role = match head[0] {
                RULES_ONLY => Role::RulesOnly,
                kind => Role::Entry(Kind::from_byte(kind)?),
            };
            if role == Role::Entry(Kind::Folder) {
                let (name, rest) = rest.split_at_checked(name_bytes)?;
                let record = Record::parse(folders)?;
                (entries, folders) = (rest, &folders[record.0.len()..]);
                return Some(Item::Folder(CStr::from_bytes_with_nul(name).ok()?, record));
            }
            let (stamp, rest) = rest.split_first_chunk::<STAMP_BYTES>()?;
            let (digest, rest) = rest.split_first_chunk::<32>()?;
            let (name, rest) = rest.split_at_checked(name_bytes)?;
            entries = rest;
            Some(Item::Leaf(Known {
                role,
                racy: head[1] != 0,
                stamp: Stamp::read(stamp),
                digest: Digest(*digest),
                name: CStr::from_bytes_with_nul(name).ok()?,
            }))
        })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub files: u64,
    pub bytes: u64,
    pub left_out: u64,
}

/// Writes the record of a folder. Entries come in byte order of their names.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    count: u32,
    entries: Vec<u8>,
    folders: Vec<u8>,
    totals: Totals,
}

impl Builder {
    fn head(&mut self, kind: u8, racy: bool, name: &CStr) {
        self.count += 1;
        self.entries.extend_from_slice(&[kind, u8::from(racy)]);
        self.entries.extend_from_slice(&(name.count_bytes() as u16).to_le_bytes());
    }

    pub(crate) fn leaf(&mut self, known: &Known<'_>) {
        let kind = match known.role {
            Role::Entry(kind) => kind.to_byte(),
            Role::RulesOnly => RULES_ONLY,
        };
        self.head(kind, known.racy, known.name);
        known.stamp.write(&mut self.entries);
        self.entries.extend_from_slice(&known.digest.0);
        self.entries.extend_from_slice(known.name.to_bytes_with_nul());
        if known.role == Role::RulesOnly {
            self.totals.left_out += 1;
        } else {
            self.totals.files += 1;
            self.totals.bytes += if known.stamp.file_type().is_file() { known.stamp.size } else { 0 };
        }
    }

    pub(crate) fn left_out(&mut self, name: &CStr) {
        self.head(LEFT_OUT, false, name);
        self.entries.extend_from_slice(name.to_bytes_with_nul());
        self.totals.left_out += 1;
    }

    pub(crate) fn folder(&mut self, name: &CStr, record: Record<'_>) {
        self.head(Kind::Folder.to_byte(), false, name);
        self.entries.extend_from_slice(name.to_bytes_with_nul());
        self.folders.extend_from_slice(record.0);
        let totals = record.totals();
        self.totals.files += totals.files;
        self.totals.bytes += totals.bytes;
        self.totals.left_out += totals.left_out;
    }

    pub(crate) fn finish(self, stamp: &Stamp, racy: bool, digest: Digest) -> OwnedRecord {
        let length = HEADER_BYTES + self.entries.len() + self.folders.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&(length as u32).to_le_bytes());
        bytes.extend_from_slice(&self.count.to_le_bytes());
        bytes.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        bytes.push(u8::from(racy));
        stamp.write(&mut bytes);
        bytes.extend_from_slice(&digest.0);
        bytes.extend_from_slice(&self.totals.files.to_le_bytes());
        bytes.extend_from_slice(&self.totals.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.totals.left_out.to_le_bytes());
        bytes.extend_from_slice(&self.entries);
        bytes.extend_from_slice(&self.folders);
        OwnedRecord(bytes)
    }
}

#[derive(Debug)]
pub(crate) struct OwnedRecord(Vec<u8>);

impl OwnedRecord {
    pub(crate) fn view(&self) -> Record<'_> {
        Record(&self.0)
    }
}

/// Piece of the index that one thread reads: the memory for it costs more than the reading, and is had in parallel.
const PIECE_BYTES: usize = 128 << 10;

fn read(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len()).ok()?];
    let pieces = bytes.par_chunks_mut(PIECE_BYTES).enumerate();
    pieces.map(|(n, piece)| file.read_exact_at(piece, (n * PIECE_BYTES) as u64)).collect::<io::Result<()>>().ok()?;
    Some(bytes)
}

/// The index of a folder as it was saved.
#[derive(Debug)]
pub(crate) struct Index {
    bytes: Vec<u8>,
    root_at: usize,
    pub rules: Digest,
    pub generation: u64,
}

impl Index {
    /// Nothing if there is none that can be used. Whether it is sound is still to be asked.
    pub(crate) fn load(path: &Path) -> Option<Self> {
        let bytes = read(path)?;
        let (rules, generation, root_at) = {
            let mut reader =
                bytes.starts_with(MAGIC.as_bytes()).then(|| Reader::unchecked(MAGIC.len(), &bytes, "").ok())??;
            let (rules, generation) = (reader.digest().ok()?, reader.number().ok()?);
            let rest = reader.rest();
            Record::parse(rest)?;
            (rules, generation, bytes.len() - 32 - rest.len())
        };
        Some(Self { bytes, root_at, rules, generation })
    }

    pub(crate) fn is_sound(&self) -> bool {
        is_sound(&self.bytes)
    }

    pub(crate) fn root(&self) -> Option<Record<'_>> {
        Record::parse(&self.bytes[self.root_at..])
    }

    pub(crate) fn save(path: &Path, rules: Digest, generation: u64, root: Record<'_>) -> Result<()> {
        let mut record = Writer::new(MAGIC);
        record.digest(rules).number(generation).raw(root.0);
        record.save(path, false)
    }
}

impl Known<'_> {
    pub(crate) fn node(&self) -> Option<Node> {
        match self.role {
            Role::Entry(kind) => Some(Node { kind, digest: self.digest }),
            Role::RulesOnly => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let stamp =
            Stamp { mode: 0o100_755, size: 7, mtime: (-5, 9), ctime: (1 << 40, 999_999_999), ino: u64::MAX, dev: 3 };
        let known = |name, role, racy| Known { role, racy, stamp, digest: Digest::blake3(b"x"), name };
        let mut inner = Builder::default();
        inner.leaf(&known(c"z", Role::Entry(Kind::Symlink), true));
        let inner = inner.finish(&Stamp::default(), true, Digest::blake3(b"inner"));
        let mut outer = Builder::default();
        outer.leaf(&known(c".gitignore", Role::RulesOnly, false));
        outer.folder(c"d", inner.view());
        outer.leaf(&known(c"e", Role::Entry(Kind::Executable), false));
        outer.left_out(c"target");
        let outer = outer.finish(&stamp, false, Digest::blake3(b"outer"));
        assert_eq!(outer.view().totals(), Totals { files: 2, bytes: 14, left_out: 2 });
        assert_eq!((outer.view().stamp(), outer.view().is_racy()), (stamp, false));

        let folder = actum_testkit::folder::Folder::new();
        let path = folder.join("index");
        Index::save(&path, Digest::ZERO, 5, outer.view()).unwrap();
        let index = Index::load(&path).unwrap();
        assert_eq!((index.rules, index.generation), (Digest::ZERO, 5));
        let root = index.root().unwrap();
        assert_eq!(root.digest(), Digest::blake3(b"outer"));
        let items: Vec<_> = root.items().collect();
        assert_eq!(items.len(), 4);
        let mut left_out = Vec::new();
        root.collect_left_out(&TreePath::ROOT, &mut left_out);
        assert_eq!(left_out.iter().map(ToString::to_string).collect::<Vec<_>>(), [".gitignore", "target"]);
        let Item::Folder(name, found) = items[1] else { panic!("{items:?}") };
        assert_eq!(name, c"d");
        let Some(Item::Leaf(z)) = found.items().next() else { panic!("{found:?}") };
        assert_eq!((z.name, z.racy, z.stamp, z.role), (c"z", true, stamp, Role::Entry(Kind::Symlink)));

        let mut torn = std::fs::read(&path).unwrap();
        // In the middle of the digest of the rules.
        torn[MAGIC.len() + 9] ^= 1;
        std::fs::write(&path, torn).unwrap();
        assert!(!Index::load(&path).unwrap().is_sound());
    }
}
