//! Reading what an overlay has collected: the upper folder holds what was changed, and nothing else is looked at.
//!
//! A deleted name is a character device 0/0; a folder that hides what lies below says so in an attribute. The result is
//! the tree as it looks through the overlay, so a whole folder deleted by one mark counts as every file that was in it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use actum_contract::blob::{Batch, Blobs};
use actum_contract::digest::Digest;
use rustix::fs::{AtFlags, FileType, Mode, fgetxattr, fstat, openat, readlinkat, statat};

use crate::beneath::{FILE, FOLDER, names};
use crate::error::{Error, Result, at, within};
use crate::freeze::{Linked, linked_outside, rule_file_of, special_word, take_in};
use crate::path::TreePath;
use crate::rule::{Chain, Matcher, Rules, Verdict};
use crate::tree::{self, DEPTH_MAX, Entries, Kind, Node};

/// Paths that were left out are named up to this number.
pub(crate) const LEFT_OUT_MAX: usize = 1000;

/// What an upper folder comes to.
#[derive(Debug)]
pub(crate) struct Merged {
    pub id: Digest,
    /// Changes that no snapshot holds, because a rule leaves them out.
    pub left_out: Vec<TreePath>,
}

/// The tree seen through an overlay with `upper` on top of the snapshot `base`. Rules are those of the base.
pub(crate) fn merge(upper: &Path, base: Digest, rules: &Rules, blobs: &dyn Blobs, batch: &dyn Batch) -> Result<Merged> {
    let fd = openat(rustix::fs::CWD, upper, FOLDER, Mode::empty()).map_err(at("open", upper))?;
    let matcher = Matcher::new(rules)?;
    let mut reading =
        Reading { matcher, base, blobs, batch, left_out: Vec::new(), special: Vec::new(), links: Vec::new() };
    let below = tree::load(blobs, base)?;
    let outer = reading.matcher.outer();
    let entries = reading.folder(&fd, &TreePath::ROOT, Some(below), outer, false, 0)?;
    if !reading.special.is_empty() {
        reading.special.sort();
        return Err(Error::Special(reading.special));
    }
    linked_outside(reading.links)?;
    Ok(Merged { id: tree::store(batch, &entries)?, left_out: reading.left_out })
}

struct Reading<'a> {
    matcher: Matcher,
    base: Digest,
    blobs: &'a dyn Blobs,
    batch: &'a dyn Batch,
    left_out: Vec<TreePath>,
    special: Vec<(TreePath, &'static str)>,
    links: Vec<Linked>,
}

impl Reading<'_> {
    fn folder(
        &mut self,
        fd: &OwnedFd,
        path: &TreePath,
        below: Option<Entries>,
        farther: Option<Arc<Chain>>,
        searched: bool,
        depth: usize,
    ) -> Result<Entries> {
        if depth > DEPTH_MAX {
            return Err(Error::Refused(format!("{path} is more than {DEPTH_MAX} folders deep")));
        }
        let chain = match rule_file_of(self.blobs, self.base, path)? {
            Some(text) => Some(Matcher::extend(farther, path, &text)),
            None => farther,
        };
        let mut entries = below.unwrap_or_default();
        for (name, _) in names(fd).map_err(within("list", path))? {
            let bytes = name.as_bytes();
            if bytes == b".actum" {
                continue;
            }
            let inside = path.join(bytes);
            if tree::is_kept_out(bytes) {
                // Commits made in a stage stay there: somebody should know.
                self.leave_out(inside);
                continue;
            }
            let stat = statat(fd, &*name, AtFlags::SYMLINK_NOFOLLOW).map_err(within("look at", &inside))?;
            let file_type = FileType::from_raw_mode(stat.st_mode);
            if file_type == FileType::CharacterDevice && stat.st_rdev == 0 {
                if entries.remove(bytes).is_none() {
                    self.leave_out(inside);
                }
                continue;
            }
            let is_folder = file_type == FileType::Directory;
            let verdict = self.matcher.judge(&inside, is_folder, chain.as_deref(), searched);
            if verdict == Verdict::Leave {
                // What stood there below was of another kind, else it would not be ignored only now.
                entries.remove(bytes);
                self.leave_out(inside);
                continue;
            }
            let node = match file_type {
                FileType::Directory => {
                    let folder = openat(fd, &*name, FOLDER, Mode::empty()).map_err(within("open", &inside))?;
                    let hides = hides_what_lies_below(&folder, &inside)?;
                    let below = match entries.get(bytes) {
                        Some(node) if node.kind == Kind::Folder && !hides => Some(tree::load(self.blobs, node.digest)?),
                        _ => None,
                    };
                    let searched = verdict == Verdict::Search;
                    let found = self.folder(&folder, &inside, below, chain.clone(), searched, depth + 1)?;
                    if searched && found.is_empty() {
                        entries.remove(bytes);
                        continue;
                    }
                    Node::folder(tree::store(self.batch, &found)?)
                }
                FileType::Symlink => {
                    let target = readlinkat(fd, &*name, Vec::new()).map_err(within("read the link", &inside))?;
                    let digest = Digest::blake3(target.as_bytes());
                    self.batch.put(digest, target.as_bytes())?;
                    Node { kind: Kind::Symlink, digest }
                }
                FileType::RegularFile => {
                    if stat.st_nlink > 1 {
                        self.links.push(Linked::new(inside.clone(), &stat));
                    }
                    self.file(fd, &name, &inside)?
                }
                other => {
                    self.special.push((inside, special_word(other)));
                    continue;
                }
            };
            entries.insert(bytes.to_vec(), node);
        }
        Ok(entries)
    }

    fn file(&mut self, folder: &OwnedFd, name: &std::ffi::CStr, path: &TreePath) -> Result<Node> {
        let fd = openat(folder, name, FILE, Mode::empty()).map_err(within("read", path))?;
        if attribute(&fd, "metacopy") {
            return Err(Error::ForeignOverlay(path.clone(), "metacopy"));
        }
        let stat = fstat(&fd).map_err(within("look at", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::Changing(path.clone()));
        }
        let kind = if stat.st_mode & 0o100 != 0 { Kind::Executable } else { Kind::File };
        let taken = take_in(&mut File::from(fd), stat.st_size as u64, &|| path.clone(), false, self.blobs, self.batch)?;
        let digest = taken.ok_or_else(|| Error::Changing(path.clone()))?;
        Ok(Node { kind, digest })
    }

    fn leave_out(&mut self, path: TreePath) {
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.push(path);
        }
    }
}

/// Whether an attribute of the overlay is set, with or without privileges.
fn attribute(fd: &OwnedFd, name: &str) -> bool {
    ["user", "trusted"].iter().any(|space| {
        let mut value = Vec::with_capacity(256);
        let name = format!("{space}.overlay.{name}");
        fgetxattr(fd, name.as_str(), rustix::buffer::spare_capacity(&mut value)).is_ok()
    })
}

fn hides_what_lies_below(folder: &OwnedFd, path: &TreePath) -> Result<bool> {
    if attribute(folder, "redirect") {
        return Err(Error::ForeignOverlay(path.clone(), "redirect_dir"));
    }
    Ok(["user.overlay.opaque", "trusted.overlay.opaque"].iter().any(|name| {
        let mut value = Vec::with_capacity(16);
        fgetxattr(folder, *name, rustix::buffer::spare_capacity(&mut value)).is_ok() && value == b"y"
    }))
}
