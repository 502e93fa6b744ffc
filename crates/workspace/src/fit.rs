//! How changes made from one state fit another: the three-way check, against a folder or against a tree that no machine has.
//! Called before anything is changed; changes nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;

use crate::beneath::{OpenFolder, Present};
use crate::change::Change;
use crate::error::{Conflict, Error, Result};
use crate::path::TreePath;
use crate::tree::{self, Kind, leaf};

/// Changes put on a state that others have moved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebased {
    /// What they were put on.
    pub before: Digest,
    pub after: Digest,
    pub changes: Vec<Change>,
    /// Paths that others changed.
    pub drift: Vec<TreePath>,
    /// Paths that were left as others have made them.
    pub kept: Vec<TreePath>,
}

/// Puts changes that were made from `base` on `now`, all of them, or refuses; with `keep`, those that still fit. What comes
/// of it is stored.
pub fn rebase(blobs: &dyn Blobs, base: Digest, changes: &[Change], now: Digest, keep: bool) -> Result<Rebased> {
    let mut fit = fit(blobs, Ground::Tree(now), base, changes, now)?;
    if !(fit.conflicts.is_empty() && fit.in_the_way.is_empty() || keep) {
        return Err(Error::Conflict(Conflict { paths: fit.conflicts, in_the_way: fit.in_the_way, kept: Vec::new() }));
    }
    fit.conflicts.append(&mut fit.in_the_way);
    fit.leave_what_depends_on_conflicts();
    let batch = blobs.batch()?;
    let after = tree::apply(blobs, &*batch, now, &fit.changes)?;
    batch.commit()?;
    Ok(Rebased { before: now, after, changes: fit.changes, drift: fit.drift, kept: fit.conflicts })
}

/// What changes are to stand on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ground<'a> {
    /// A folder, where also what no snapshot knows may stand.
    Disk(&'a OpenFolder),
    Tree(Digest),
}

impl Ground<'_> {
    fn present(self, blobs: &dyn Blobs, path: &TreePath) -> Result<Present> {
        match self {
            Self::Disk(root) => root.present(path),
            Self::Tree(tree) => Ok(match tree::lookup(blobs, tree, path)? {
                None => Present::Nothing,
                Some(node) if node.kind == Kind::Folder => Present::Folder,
                Some(node) => Present::Leaf(node),
            }),
        }
    }

    /// Whether something that is no folder stands on the way to a path.
    fn is_cut_off(self, blobs: &dyn Blobs, path: &TreePath) -> Result<bool> {
        match self {
            Self::Disk(root) => root.is_cut_off(path),
            Self::Tree(tree) => {
                for folder in path.folders() {
                    if tree::lookup(blobs, tree, &folder)?.is_some_and(|node| node.kind != Kind::Folder) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// How changes made from one state fit another.
#[derive(Debug, Default)]
pub(crate) struct Fit {
    pub changes: Vec<Change>,
    pub conflicts: Vec<TreePath>,
    /// Where something stands that no snapshot knows.
    pub in_the_way: Vec<TreePath>,
    pub drift: Vec<TreePath>,
}

impl Fit {
    /// A file cannot come back below a path that is kept as something else, nor above it.
    pub(crate) fn leave_what_depends_on_conflicts(&mut self) {
        let kept: BTreeSet<TreePath> = self.conflicts.iter().cloned().collect();
        let above: BTreeSet<TreePath> = self.conflicts.iter().flat_map(TreePath::folders).collect();
        let depends = |change: &Change| {
            change.path.folders().any(|folder| kept.contains(&folder)) || above.contains(&change.path)
        };
        let (left, rest) = std::mem::take(&mut self.changes).into_iter().partition(depends);
        self.changes = rest;
        self.conflicts.extend(left.into_iter().filter(|change: &Change| !change.implied).map(|change| change.path));
        self.conflicts.sort();
    }
}

/// The three-way check: what we want to change, against what others have changed since.
pub(crate) fn fit(blobs: &dyn Blobs, ground: Ground<'_>, base: Digest, wanted: &[Change], now: Digest) -> Result<Fit> {
    let moved = tree::diff(blobs, base, now)?;
    let moved: BTreeMap<&TreePath, &Change> = moved.iter().map(|change| (&change.path, change)).collect();
    let ours: BTreeMap<&TreePath, &Change> = wanted.iter().map(|change| (&change.path, change)).collect();
    let mut fit = Fit::default();
    for change in wanted {
        let only_folders = leaf(change.before).is_none() && leaf(change.after).is_none();
        // A path may be missing in the snapshot only because it is ignored: what counts stands on the disk.
        let has_moved = moved.contains_key(&change.path);
        let comes_new = leaf(change.before).is_none() && leaf(change.after).is_some();
        let there = match has_moved || comes_new {
            true => Some(ground.present(blobs, &change.path)?),
            false => None,
        };
        // What is there already is not ours to bring, and later not ours to take back.
        if there.is_some_and(|there| there.is(change.after)) {
            continue;
        }
        // A folder where a file is to come: whether it can go is seen when it is emptied.
        let is_emptied = !has_moved && there == Some(Present::Folder);
        let is_another = !is_emptied && there.is_some_and(|there| !there.is(change.before));
        // Something ignored may also stand where a folder on the way should be.
        let is_cut_off = comes_new
            && ground.is_cut_off(blobs, &change.path)?
            && !change.path.folders().any(|folder| ours.get(&folder).is_some_and(|own| own.after.is_none()));
        if (is_another && !has_moved) || is_cut_off {
            fit.in_the_way.push(change.path.clone());
            continue;
        }
        let in_the_way = is_another || is_blocked(change, &moved, &ours);
        match in_the_way {
            false => fit.changes.push(change.clone()),
            // An empty folder is nobody's work: whoever put something into it, or removed it, is right.
            true if only_folders => {}
            true => fit.conflicts.push(change.path.clone()),
        }
    }
    fit.drift = moved
        .values()
        .filter(|change| !change.implied && !ours.contains_key(&change.path))
        .map(|change| change.path.clone())
        .collect();
    Ok(fit)
}

/// Whether others have put something above or below a path where we want to put a file.
fn is_blocked(change: &Change, moved: &BTreeMap<&TreePath, &Change>, ours: &BTreeMap<&TreePath, &Change>) -> bool {
    if change.after.is_none() || moved.is_empty() {
        return false;
    }
    let above = change.path.folders().any(|folder| {
        let taken = moved.get(&folder).is_some_and(|other| leaf(other.after).is_some());
        taken && ours.get(&folder).is_none_or(|own| own.after.is_some())
    });
    let mut first = change.path.as_bytes().to_vec();
    first.push(b'/');
    let below = moved
        .range::<&TreePath, _>((Bound::Excluded(&change.path), Bound::Unbounded))
        .skip_while(|(path, _)| path.as_bytes() < first.as_slice())
        .take_while(|(path, _)| path.as_bytes().starts_with(&first))
        .any(|(_, other)| other.after.is_some());
    above || (leaf(change.after).is_some() && below)
}
