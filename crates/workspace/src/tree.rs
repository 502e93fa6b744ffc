//! A snapshot: a Merkle tree of folders. A folder is the list of its entries, in byte order of their names, each with
//! kind and digest; a snapshot's id is the digest of its topmost folder. Nothing else goes into the id: no times, no
//! owners, no permissions but the executable bit.
//!
//! Two ways of looking at a tree: as folders in folders, and as its *leaves*: files, links and empty folders. A folder
//! that holds something is there because of what it holds.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use actum_contract::blob::{Batch, BlobError, Blobs};
use actum_contract::digest::Digest;

use crate::change::Change;
use crate::error::{Error, Result};
use crate::path::{TreePath, is_name};

/// First bytes of every folder; the digit is the version of the format.
const MAGIC: &[u8] = b"actum tree 1\n";

/// The bytes whose digest is a folder's: what a tree's id stands for.
pub fn folder_bytes(blobs: &dyn Blobs, folder: Digest) -> Result<Vec<u8>> {
    // Of a workspace in which there is nothing, nothing need have been stored.
    if folder == empty() { Ok(encode([])) } else { Ok(blobs.read(folder)?) }
}

/// Deepest nesting that is followed; more is refused, not followed until the stack ends.
pub(crate) const DEPTH_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    File,
    Executable,
    /// The content is the text of the link.
    Symlink,
    Folder,
}

impl Kind {
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::File => b'f',
            Self::Executable => b'x',
            Self::Symlink => b'l',
            Self::Folder => b'd',
        }
    }

    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'f' => Some(Self::File),
            b'x' => Some(Self::Executable),
            b'l' => Some(Self::Symlink),
            b'd' => Some(Self::Folder),
            _ => None,
        }
    }

    pub const fn is_file(self) -> bool {
        matches!(self, Self::File | Self::Executable)
    }

    /// The word for people and programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Executable => "executable",
            Self::Symlink => "symlink",
            Self::Folder => "folder",
        }
    }
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    pub kind: Kind,
    pub digest: Digest,
}

impl Node {
    pub(crate) const fn folder(digest: Digest) -> Self {
        Self { kind: Kind::Folder, digest }
    }
}

/// What stands at a path, unless it is a folder.
pub(crate) fn leaf(node: Option<Node>) -> Option<Node> {
    node.filter(|node| node.kind != Kind::Folder)
}

/// The entries of one folder.
pub(crate) type Entries = BTreeMap<Vec<u8>, Node>;

/// Writes a folder from entries that come in order.
pub(crate) fn encode<'a>(entries: impl IntoIterator<Item = (&'a [u8], Node)>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (name, node) in entries {
        bytes.push(node.kind.to_byte());
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&node.digest.0);
    }
    bytes
}

/// Returns the digest of a tree without entries.
pub fn empty() -> Digest {
    Digest::blake3(MAGIC)
}

fn decode(digest: Digest, bytes: &[u8]) -> Result<Entries> {
    let bad = |why| Error::Tree { digest, why };
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(bad("it does not begin like one"))?;
    let (mut entries, mut last): (Entries, Option<Vec<u8>>) = (Entries::new(), None);
    while let Some((kind, after)) = rest.split_first() {
        let kind = Kind::from_byte(*kind).ok_or(bad("it has an entry of an unknown kind"))?;
        let (length, after) = after.split_first_chunk::<4>().ok_or(bad("it is cut off"))?;
        let (name, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(bad("it is cut off"))?;
        let (content, after) = after.split_first_chunk::<32>().ok_or(bad("it is cut off"))?;
        if !is_name(name) || is_kept_out(name) {
            return Err(bad("it has an entry with a name that none can have"));
        }
        if last.as_deref().is_some_and(|last| last >= name) {
            return Err(bad("its entries are out of order"));
        }
        entries.insert(name.to_vec(), Node { kind, digest: Digest(*content) });
        last = Some(name.to_vec());
        rest = after;
    }
    Ok(entries)
}

/// Never part of a snapshot, wherever they stand.
pub(crate) fn is_kept_out(name: &[u8]) -> bool {
    name == b".git" || name == b".actum"
}

pub(crate) fn load(blobs: &dyn Blobs, digest: Digest) -> Result<Entries> {
    if digest == empty() {
        return Ok(Entries::new());
    }
    decode(digest, &blobs.read(digest)?)
}

pub(crate) fn store(batch: &dyn Batch, entries: &Entries) -> Result<Digest> {
    let bytes = encode(entries.iter().map(|(name, node)| (name.as_slice(), *node)));
    let digest = Digest::blake3(&bytes);
    batch.put(digest, &bytes)?;
    Ok(digest)
}

/// A content, or nothing if it is longer than `bytes_max`.
pub fn read_at_most(blobs: &dyn Blobs, digest: Digest, bytes_max: usize) -> Result<Option<Vec<u8>>> {
    let mut taken = AtMost { bytes: Vec::new(), bytes_max, too_long: false };
    match blobs.copy(digest, &mut taken) {
        Ok(_) => Ok(Some(taken.bytes)),
        Err(_) if taken.too_long => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Takes so much and no more.
struct AtMost {
    bytes: Vec<u8>,
    bytes_max: usize,
    too_long: bool,
}

impl io::Write for AtMost {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.too_long = self.bytes.len() + piece.len() > self.bytes_max;
        if self.too_long {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What stands at a path of a snapshot.
pub fn lookup(blobs: &dyn Blobs, root: Digest, path: &TreePath) -> Result<Option<Node>> {
    let mut node = Node::folder(root);
    for name in path.names() {
        if node.kind != Kind::Folder {
            return Ok(None);
        }
        match load(blobs, node.digest)?.get(name) {
            Some(found) => node = *found,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

/// Everything in a snapshot but its folders that hold something, in the order of a walk.
pub fn leaves(blobs: &dyn Blobs, root: Digest) -> Result<Vec<(TreePath, Node)>> {
    let changes = diff(blobs, empty(), root)?;
    Ok(changes.into_iter().filter_map(|change| Some((change.path, change.after?))).collect())
}

/// Brings everything in a snapshot near, folder by folder, many contents at once: for whoever is about to read all of it.
pub fn fetch(blobs: &dyn Blobs, root: Digest) -> Result<()> {
    let (mut folders, mut files) = (vec![root], Vec::new());
    while !folders.is_empty() {
        blobs.fetch(&folders)?;
        let mut inside = Vec::new();
        for folder in folders {
            for node in load(blobs, folder)?.values() {
                if node.kind == Kind::Folder { inside.push(node.digest) } else { files.push(node.digest) }
            }
        }
        inside.sort_unstable();
        inside.dedup();
        folders = inside;
    }
    files.sort_unstable();
    files.dedup();
    Ok(blobs.fetch(&files)?)
}

/// Adds every content of a snapshot to `all`, folders among them. A folder that is nowhere is added and not looked into.
pub fn contents(blobs: &dyn Blobs, root: Digest, all: &mut BTreeSet<Digest>) -> Result<()> {
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        if folder == empty() || !all.insert(folder) {
            continue;
        }
        let inside = match load(blobs, folder) {
            Err(Error::Blob(BlobError::Missing(_))) => continue,
            loaded => loaded?,
        };
        for node in inside.values() {
            match node.kind {
                Kind::Folder => folders.push(node.digest),
                _ => all.extend([node.digest]),
            }
        }
    }
    Ok(())
}

/// Whether everything in a snapshot is stored; the first thing that is not is the error. Contents are not read.
pub fn is_whole(blobs: &dyn Blobs, root: Digest) -> Result<()> {
    for (_, node) in leaves(blobs, root)? {
        if node.kind != Kind::Folder && !blobs.contains(node.digest)? {
            return Err(Error::Blob(BlobError::Missing(node.digest)));
        }
    }
    Ok(())
}

/// The leaves in which two snapshots differ. Folders with the same digest are not looked into.
pub fn diff(blobs: &dyn Blobs, before: Digest, after: Digest) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    if before != after {
        let (before, after) = (load(blobs, before)?, load(blobs, after)?);
        compare(blobs, &TreePath::ROOT, &before, &after, 0, &mut changes)?;
    }
    Ok(changes)
}

fn compare(
    blobs: &dyn Blobs,
    at: &TreePath,
    before: &Entries,
    after: &Entries,
    depth: usize,
    changes: &mut Vec<Change>,
) -> Result<()> {
    let (mut left, mut right) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let old = if order.is_le() { left.next() } else { None };
        let new = if order.is_ge() { right.next() } else { None };
        let Some((name, _)) = old.or(new) else { return Ok(()) };
        let (old, new) = (old.map(|(_, node)| *node), new.map(|(_, node)| *node));
        if old != new {
            compare_nodes(blobs, &at.join(name), old, new, depth + 1, changes)?;
        }
    }
}

fn compare_nodes(
    blobs: &dyn Blobs,
    path: &TreePath,
    old: Option<Node>,
    new: Option<Node>,
    depth: usize,
    changes: &mut Vec<Change>,
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::Refused(format!("{path} is more than {DEPTH_MAX} folders deep")));
    }
    let is_folder = |node: &Node| node.kind == Kind::Folder;
    let inside = |node: Option<Node>| match node.filter(is_folder) {
        Some(node) => load(blobs, node.digest).map(Some),
        None => Ok(None),
    };
    // As leaves: a folder counts only where it is empty.
    let (old_inside, new_inside) = (inside(old)?, inside(new)?);
    let leaf =
        |node: Option<Node>, inside: &Option<Entries>| node.filter(|_| inside.as_ref().is_none_or(Entries::is_empty));
    let (before, after) = (leaf(old, &old_inside), leaf(new, &new_inside));
    if before != after {
        let implied = old_inside.is_some() && new_inside.is_some();
        changes.push(Change { path: path.clone(), before, after, implied });
    }
    if old_inside.is_some() || new_inside.is_some() {
        let (old, new) = (old_inside.unwrap_or_default(), new_inside.unwrap_or_default());
        compare(blobs, path, &old, &new, depth, changes)?;
    }
    Ok(())
}

/// The snapshot that results from changing leaves of another; new folders are stored in `batch`.
pub(crate) fn apply(blobs: &dyn Blobs, batch: &dyn Batch, root: Digest, changes: &[Change]) -> Result<Digest> {
    let mut work: Vec<(Vec<&[u8]>, &Change)> = changes.iter().map(|c| (c.path.names().collect(), c)).collect();
    // What goes makes room for what comes: a folder may give way to a file and the other way round.
    work.sort_by_key(|(_, change)| change.after.is_some());
    let mut top = Folder { entries: load(blobs, root)?, open: BTreeMap::new() };
    for (names, change) in work {
        top.set(blobs, &names, change)?;
    }
    Ok(top.close(batch)?.unwrap_or_else(empty))
}

/// A folder being changed, with those of its folders that were opened for it.
struct Folder {
    entries: Entries,
    open: BTreeMap<Vec<u8>, Folder>,
}

impl Folder {
    fn set(&mut self, blobs: &dyn Blobs, names: &[&[u8]], change: &Change) -> Result<()> {
        let Some((name, rest)) = names.split_first() else { return Ok(()) };
        if !rest.is_empty() {
            if !self.open.contains_key(*name) {
                let entries = match self.entries.get(*name) {
                    Some(node) if node.kind == Kind::Folder => load(blobs, node.digest)?,
                    _ => Entries::new(),
                };
                self.open.insert(name.to_vec(), Self { entries, open: BTreeMap::new() });
            }
            return match self.open.get_mut(*name) {
                Some(folder) => folder.set(blobs, rest, change),
                None => Ok(()),
            };
        }
        match change.after {
            // A folder that is being emptied or filled decides by itself whether it is still there.
            Some(node) if node.kind == Kind::Folder => {
                self.entries.insert(name.to_vec(), node);
            }
            Some(node) => {
                self.open.remove(*name);
                self.entries.insert(name.to_vec(), node);
            }
            // An empty folder that goes, because something came into it: others may have put something there too.
            None if change.before.is_some_and(|node| node.kind == Kind::Folder) => {
                if self.entries.get(*name) == Some(&Node::folder(empty())) {
                    self.entries.remove(*name);
                }
            }
            None => {
                self.entries.remove(*name);
            }
        }
        Ok(())
    }

    /// Nothing if nothing is left in it.
    fn close(mut self, batch: &dyn Batch) -> Result<Option<Digest>> {
        for (name, folder) in std::mem::take(&mut self.open) {
            // Put there by a change of its own: stays even if it is empty.
            let stays = self.entries.get(&name).is_some_and(|node| *node == Node::folder(empty()));
            match folder.close(batch)? {
                Some(digest) => {
                    self.entries.insert(name, Node::folder(digest));
                }
                None if stays => {}
                None => {
                    self.entries.remove(&name);
                }
            }
        }
        if self.entries.is_empty() {
            return Ok(None);
        }
        store(batch, &self.entries).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use actum_testkit::blobs::MemoryBlobs;
    use proptest::prelude::*;

    use super::*;

    type Model = BTreeMap<String, Node>;

    fn file(content: &str) -> Node {
        Node { kind: Kind::File, digest: Digest::blake3(content.as_bytes()) }
    }

    /// Stores a tree given as its leaves; a path that ends in a slash is an empty folder.
    fn store_model(batch: &dyn Batch, model: &Model) -> Digest {
        let mut entries = Entries::new();
        let mut inner: BTreeMap<String, Model> = BTreeMap::new();
        for (path, node) in model {
            match path.split_once('/') {
                None => drop(entries.insert(path.clone().into_bytes(), *node)),
                Some((name, "")) => drop(inner.entry(name.to_owned()).or_default()),
                Some((name, rest)) => {
                    inner.entry(name.to_owned()).or_default().insert(rest.to_owned(), *node);
                }
            }
        }
        for (name, model) in inner {
            entries.insert(name.into_bytes(), Node::folder(store_model(batch, &model)));
        }
        store(batch, &entries).unwrap()
    }

    fn read_model(blobs: &dyn Blobs, id: Digest) -> Model {
        let slash = |path: &TreePath, node: &Node| match node.kind {
            Kind::Folder => format!("{path}/"),
            _ => path.to_string(),
        };
        leaves(blobs, id).unwrap().iter().map(|(path, node)| (slash(path, node), *node)).collect()
    }

    /// Random leaves, made into a tree that can exist: nothing lies below a file.
    fn models() -> impl Strategy<Value = Model> {
        let path = prop::collection::vec("[abc]", 1..4).prop_map(|names| names.join("/"));
        let leaf = (path, prop_oneof![Just(None), "[xy]".prop_map(Some)]);
        prop::collection::vec(leaf, 0..12).prop_map(|leaves| {
            let mut model = Model::new();
            for (path, content) in leaves {
                let (path, node) = match content {
                    Some(content) => (path, file(&content)),
                    None => (format!("{path}/"), Node::folder(empty())),
                };
                let bare = path.trim_end_matches('/').to_owned();
                let below = format!("{bare}/");
                let blocked = bare.match_indices('/').any(|(at, _)| model.contains_key(&bare[..at]));
                if !blocked && !model.contains_key(&bare) && !model.keys().any(|other| other.starts_with(&below)) {
                    model.retain(|other, _| !(other.ends_with('/') && path.starts_with(other.as_str())));
                    model.insert(path, node);
                }
            }
            model
        })
    }

    proptest! {
        #[test]
        fn a_difference_applied_gives_the_other_tree(before in models(), after in models()) {
            let blobs = MemoryBlobs::default();
            let batch = blobs.batch().unwrap();
            let (a, b) = (store_model(&*batch, &before), store_model(&*batch, &after));
            batch.commit().unwrap();
            prop_assert_eq!(&read_model(&blobs, a), &before);
            let changes = diff(&blobs, a, b).unwrap();
            prop_assert_eq!(changes.is_empty(), a == b);
            prop_assert!(changes.iter().all(|change| change.before != change.after));
            prop_assert_eq!(apply(&blobs, &*batch, a, &changes).unwrap(), b);
            let back: Vec<_> = changes.iter().map(Change::reversed).collect();
            prop_assert_eq!(apply(&blobs, &*batch, b, &back).unwrap(), a);
            // Looked up one by one, leaves are what they are listed as.
            for (path, node) in leaves(&blobs, b).unwrap() {
                prop_assert_eq!(lookup(&blobs, b, &path).unwrap(), Some(node));
            }
        }

        #[test]
        fn any_bytes_are_a_folder_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let with_head = [MAGIC, &bytes].concat();
            let _ = decode(Digest::ZERO, &bytes);
            if let Ok(entries) = decode(Digest::ZERO, &with_head) {
                let again = encode(entries.iter().map(|(name, node)| (name.as_slice(), *node)));
                prop_assert_eq!(again, with_head, "one folder has one form");
            }
        }
    }

    #[test]
    fn a_folder_that_would_lead_out_is_refused() {
        let node = file("x");
        for name in [b"..".as_slice(), b".", b"", b"a/b", b"a\0", b".git", b".actum"] {
            let bytes = encode([(name, node)]);
            assert!(decode(Digest::ZERO, &bytes).is_err(), "{name:?}");
        }
        for names in [[b"b".as_slice(), b"a"], [b"a", b"a"]] {
            let bytes = encode(names.map(|name| (name, node)));
            assert!(decode(Digest::ZERO, &bytes).is_err(), "{names:?} are out of order");
        }
        let whole = encode([(b"a".as_slice(), node)]);
        for end in MAGIC.len() + 1..whole.len() {
            assert!(decode(Digest::ZERO, &whole[..end]).is_err(), "cut off at {end}");
        }
    }

    #[test]
    fn the_id_of_a_tree_is_what_the_design_says() {
        // Pinned: a snapshot's id must never change its meaning.
        assert_eq!(empty().to_hex(), Digest::blake3(b"actum tree 1\n").to_hex());
        let bytes = encode([(b"a".as_slice(), file("hello\n")), (b"b".as_slice(), Node::folder(empty()))]);
        let by_hand =
            [b"actum tree 1\nf\x01\0\0\0a".as_slice(), &Digest::blake3(b"hello\n").0, b"d\x01\0\0\0b", &empty().0]
                .concat();
        assert_eq!(bytes, by_hand);
    }
}
