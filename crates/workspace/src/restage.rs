//! Writing into a stage from outside: bringing it to a state that is on record, and edits that no program has to make.
//! Nothing is followed on the way: a stage is the agent's, and may hold any link.

use std::path::Path;

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use rustix::fs::{
    AtFlags, FileType, Mode as FileMode, XattrFlags, fsetxattr, mkdirat, mknodat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::base::write_leaf;
use crate::beneath::{FOLDER, OpenFolder};
use crate::change::Change;
use crate::error::{Error, Result, within};
use crate::index::{Index, Item, Stamp};
use crate::path::TreePath;
use crate::stage::{Mode, Stage};
use crate::transaction::remove_all;
use crate::tree::{self, Kind, Node};
use crate::workspace::Workspace;

/// A file that is to be written or, without content, removed with all that is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub path: TreePath,
    pub content: Option<Vec<u8>>,
    /// Nothing: as it was.
    pub executable: Option<bool>,
}

impl Stage {
    /// Edits a stage that is in the state `from`; the state it is in then.
    pub fn edit(&self, workspace: &Workspace, from: Digest, edits: &[Edit]) -> Result<Digest> {
        let batch = workspace.blobs().batch()?;
        let mut to = from;
        for edit in edits {
            let before = tree::lookup(workspace.blobs(), to, &edit.path)?;
            let changes = match (&edit.content, before) {
                (Some(_), Some(Node { kind: Kind::Folder, .. })) => {
                    return Err(Error::Refused(format!("{} is a folder", edit.path)));
                }
                (Some(content), before) => {
                    let digest = Digest::blake3(content);
                    batch.put(digest, content)?;
                    let was = before.is_some_and(|node| node.kind == Kind::Executable);
                    let kind = if edit.executable.unwrap_or(was) { Kind::Executable } else { Kind::File };
                    let after = Some(Node { kind, digest });
                    vec![Change { path: edit.path.clone(), before, after, implied: false }]
                }
                (None, None) => return Err(Error::Unknown { what: "file", id: edit.path.to_string() }),
                (None, Some(Node { kind: Kind::Folder, digest })) => {
                    let inside = tree::leaves(workspace.blobs(), digest)?;
                    let gone = |(path, node): (TreePath, Node)| {
                        let path = path.names().fold(edit.path.clone(), |path, name| path.join(name));
                        Change { path, before: Some(node), after: None, implied: false }
                    };
                    inside.into_iter().map(gone).collect()
                }
                (None, before) => vec![Change { path: edit.path.clone(), before, after: None, implied: false }],
            };
            batch.commit()?;
            to = tree::apply(workspace.blobs(), &*batch, to, &changes)?;
            batch.commit()?;
        }
        self.bring(workspace, from, to)?;
        Ok(to)
    }

    /// Brings a stage from one state to another. What is in neither stays as it is.
    pub fn bring(&self, workspace: &Workspace, from: Digest, to: Digest) -> Result<()> {
        let changes = tree::diff(workspace.blobs(), from, to)?;
        if changes.is_empty() {
            return Ok(());
        }
        let (folder, is_overlay) = match self.mode {
            Mode::Overlay => (self.upper(), true),
            Mode::Reflink | Mode::Copy => (self.copied(), false),
        };
        let root = OpenFolder::open(&folder)?;
        let blobs = workspace.blobs();
        LayerWriter { root: &root, blobs, base: self.base, to, is_overlay, index: None }.apply(&changes)
    }
}

/// Writes the difference between two trees into a folder: a plain one, or a layer on top of the tree `base`.
pub(crate) struct LayerWriter<'a> {
    pub root: &'a OpenFolder,
    pub blobs: &'a dyn Blobs,
    /// The tree below the layer.
    pub base: Digest,
    pub to: Digest,
    pub is_overlay: bool,
    /// Permissions and times of files, where they are to be those of the workspace.
    pub index: Option<&'a Index>,
}

impl LayerWriter<'_> {
    pub(crate) fn apply(&self, changes: &[Change]) -> Result<()> {
        // What goes makes room for what comes.
        for change in changes.iter().filter(|change| change.after.is_none()) {
            self.remove(&change.path)?;
        }
        for change in changes {
            if let Some(node) = change.after {
                self.put(&change.path, node)?;
            }
        }
        Ok(())
    }

    fn is_in_base(&self, path: &TreePath) -> Result<Option<Node>> {
        tree::lookup(self.blobs, self.base, path)
    }

    fn is_in_target(&self, path: &TreePath) -> Result<bool> {
        Ok(tree::lookup(self.blobs, self.to, path)?.is_some())
    }

    /// Returns what the file system said about the file when it was frozen with this content.
    fn stamp_of(&self, path: &TreePath, node: Node) -> Option<Stamp> {
        let mut folder = self.index?.root()?;
        let mut names = path.names().peekable();
        while let Some(name) = names.next() {
            folder = match folder.find(name)? {
                Item::Folder(_, record) => record,
                Item::Leaf(known) if names.peek().is_none() && known.node() == Some(node) => return Some(known.stamp),
                _ => return None,
            };
        }
        None
    }

    /// Removes a path, and folders on the way to it that the target does not have.
    fn remove(&self, path: &TreePath) -> Result<()> {
        let mut gone = None;
        for folder in folders_from_top(path).into_iter().chain([path.clone()]) {
            if !self.is_in_target(&folder)? {
                // The topmost one takes the rest along.
                gone = Some(folder);
                break;
            }
        }
        // A folder takes the place of the file.
        let Some(gone) = gone else { return self.clear(path, false) };
        self.clear(&gone, true)?;
        if self.is_overlay && self.is_in_base(&gone)?.is_some() {
            let (parent, name) = self.make_parent(&gone)?;
            let made = mknodat(&parent, name, FileType::CharacterDevice, FileMode::from_raw_mode(0), 0);
            made.map_err(within("mask", &gone))?;
        }
        Ok(())
    }

    /// Takes away what stands at a path in the folder itself; a folder only if `folders` says so.
    fn clear(&self, path: &TreePath, folders: bool) -> Result<()> {
        let (parent, name) = match self.root.parent(path) {
            Ok(found) => found,
            Err(e) if crate::beneath::is_no_way(&e) => return Ok(()),
            Err(e) => return Err(within("open the folder of", path)(e)),
        };
        match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(within("look at", path)(e)),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => match folders {
                // No program runs in the stage, so its path leads where it did a moment ago.
                true => remove_all(&folder_path(&self.root.handle(), path)),
                false => Ok(()),
            },
            Ok(_) => unlinkat(&parent, name, AtFlags::empty()).map_err(within("remove", path)),
        }
    }

    fn put(&self, path: &TreePath, node: Node) -> Result<()> {
        let (parent, name) = self.make_parent(path)?;
        if node.kind == Kind::Folder {
            return self.make_folder(path);
        }
        self.clear(path, true)?;
        write_leaf(self.blobs, &parent, name, node, self.stamp_of(path, node).as_ref(), path)
    }

    fn make_parent<'p>(&self, path: &'p TreePath) -> Result<(std::os::fd::OwnedFd, &'p [u8])> {
        for folder in folders_from_top(path) {
            self.make_folder(&folder)?;
        }
        self.root.parent(path).map_err(within("open the folder of", path))
    }

    /// Makes a folder whose parent is there. In an overlay, one in the place of something that was removed shows nothing
    /// of what had been in it.
    fn make_folder(&self, path: &TreePath) -> Result<()> {
        let (parent, name) = self.root.parent(path).map_err(within("open the folder of", path))?;
        let stands = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(within("look at", path)(e)),
        };
        if stands == Some(FileType::Directory) {
            return Ok(());
        }
        if stands.is_some() {
            unlinkat(&parent, name, AtFlags::empty()).map_err(within("remove", path))?;
        }
        mkdirat(&parent, name, FileMode::from_raw_mode(0o777)).map_err(within("make", path))?;
        let was_masked = stands == Some(FileType::CharacterDevice);
        if self.is_overlay && was_masked && self.is_in_base(path)?.is_some_and(|node| node.kind == Kind::Folder) {
            let made = openat(&parent, name, FOLDER, FileMode::empty()).map_err(within("open", path))?;
            fsetxattr(&made, c"user.overlay.opaque", b"y", XattrFlags::empty()).map_err(within("close", path))?;
        }
        Ok(())
    }
}

fn folders_from_top(path: &TreePath) -> Vec<TreePath> {
    let mut folders: Vec<_> = path.folders().collect();
    folders.reverse();
    folders
}

fn folder_path(root: &Path, path: &TreePath) -> std::path::PathBuf {
    root.join(path.as_path())
}
