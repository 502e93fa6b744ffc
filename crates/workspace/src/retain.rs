//! Which contents have to stay: what stages and publications refer to, what is pinned, and of the other snapshots as
//! many as fit within a limit, the newest first.

use std::collections::HashSet;

use actum_contract::blob::{BlobError, Blobs};
use actum_contract::digest::Digest;

use crate::base::{RemovedBases, remove_idle_bases};
use crate::error::{Error, Result};
use crate::pending::pending;
use crate::snapshot::Snapshot;
use crate::stage::{Stage, remove_idle_mirrors, remove_unfinished};
use crate::transaction::late_writes;
use crate::tree::{self, Kind};
use crate::workspace::Workspace;

/// What stays and what was given up.
#[derive(Debug, Default)]
pub struct Kept {
    pub contents: HashSet<Digest>,
    /// Snapshots that did not fit.
    pub forgotten: Vec<Digest>,
    /// Publications that did not fit, and cannot be undone any more.
    pub forgotten_publications: Vec<String>,
    /// Contents that something refers to and that are not there.
    pub missing: Vec<Digest>,
    /// Files that were replaced and that somebody wrote to afterwards: kept where they are.
    pub late_writes: Vec<std::path::PathBuf>,
    /// The bases of frozen stages that were removed.
    pub bases: RemovedBases,
}

/// How much stays of what nobody needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    pub bytes_max: Option<u64>,
    /// What was made before this moment goes.
    pub before_ms: Option<u64>,
    /// Nothing is forgotten, only said.
    pub dry: bool,
}

/// Decides what stays, and forgets the rest. `extra` are snapshots that others refer to; `cost` tells what a
/// content takes. The caller sweeps, and holds off whoever stores.
pub fn retain(
    workspace: &Workspace,
    blobs: &dyn Blobs,
    extra: &[Digest],
    cost: &dyn Fn(Digest) -> std::result::Result<u64, BlobError>,
    limit: Limit,
) -> Result<Kept> {
    let Limit { bytes_max, before_ms, dry } = limit;
    let home = workspace.home();
    let mut kept = Kept::default();
    let mut marking = Marking { blobs, cost, marked: HashSet::new(), bytes: 0, missing: Vec::new() };
    let snapshots = Snapshot::list(home)?;
    let stages = Stage::list(home)?;
    let pinned = snapshots.iter().filter(|s| s.pinned).map(|s| s.id);
    // What is not over yet is needed whole, and so is what is kept for review. A publication with a marker is
    // not on record everywhere: without it, recovery would take the run for one that published nothing.
    let marked: HashSet<String> = pending(home)?.into_iter().map(|marker| marker.id).collect();
    let mut publications = workspace.publications_in(&["done"])?;
    let (pending, publications): (Vec<_>, Vec<_>) = publications.drain(..).partition(|p| marked.contains(&p.id));
    let mut open = workspace.publications_in(&["applied", "journal", "abort", "kept"])?;
    open.extend(pending);
    let open_trees = open.iter().flat_map(|p| [p.before, p.after]);
    for root in stages.iter().map(|s| s.base).chain(pinned).chain(open_trees).chain(extra.iter().copied()) {
        marking.mark(root, &mut Vec::new())?;
    }
    // Newest first; from the first that does not fit, everything older goes too.
    let mut rest: Vec<(u64, GcRoot<'_>)> = snapshots.iter().map(|s| (s.at_ms, GcRoot::Snapshot(s))).collect();
    rest.extend(publications.iter().map(|p| (p.at_ms, GcRoot::Publication(p))));
    rest.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
    // An undo says nothing without the publication that it reverted.
    let mut reverted: HashSet<&str> = open.iter().map(|p| p.of.as_str()).collect();
    let is_full = |marking: &Marking<'_>| bytes_max.is_some_and(|max| marking.bytes > max);
    let mut full = is_full(&marking);
    let mut is_over_limit = full;
    for (at_ms, root) in rest {
        full |= before_ms.is_some_and(|before| at_ms < before);
        let is_reverted = matches!(&root, GcRoot::Publication(p) if reverted.contains(p.id.as_str()));
        if full && is_reverted {
            root.ids().into_iter().try_for_each(|id| marking.mark(id, &mut Vec::new()))?;
        }
        if !full {
            let (mut new, bytes) = (Vec::new(), marking.bytes);
            for id in root.ids() {
                marking.mark(id, &mut new)?;
            }
            full = is_full(&marking);
            is_over_limit |= full;
            if full {
                for digest in &new {
                    marking.marked.remove(digest);
                }
                marking.bytes = bytes;
            }
        }
        match root {
            GcRoot::Snapshot(s) if full && !s.pinned && !marking.marked.contains(&s.id) => {
                if !dry {
                    s.forget(home)?;
                }
                kept.forgotten.push(s.id);
            }
            GcRoot::Publication(p) if full && !is_reverted => {
                let late = late_writes(workspace.root(), p, true)?;
                if late.is_empty() {
                    if !dry {
                        workspace.forget_publication(&p.id)?;
                    }
                    kept.forgotten_publications.push(p.id.clone());
                }
                kept.late_writes.extend(late);
            }
            GcRoot::Publication(p) => {
                reverted.insert(&p.of);
                kept.late_writes.extend(late_writes(workspace.root(), p, true)?);
            }
            GcRoot::Snapshot(_) => {}
        }
    }
    if !dry {
        remove_idle_mirrors(home)?;
        remove_unfinished(home)?;
    }
    kept.bases = remove_idle_bases(home, is_over_limit, before_ms, dry)?;
    (kept.contents, kept.missing) = (marking.marked, marking.missing);
    Ok(kept)
}

enum GcRoot<'a> {
    Snapshot(&'a Snapshot),
    Publication(&'a crate::journal::Publication),
}

impl GcRoot<'_> {
    fn ids(&self) -> Vec<Digest> {
        match self {
            Self::Snapshot(snapshot) => vec![snapshot.id],
            Self::Publication(publication) => vec![publication.before, publication.after],
        }
    }
}

struct Marking<'a> {
    blobs: &'a dyn Blobs,
    cost: &'a dyn Fn(Digest) -> std::result::Result<u64, BlobError>,
    marked: HashSet<Digest>,
    bytes: u64,
    missing: Vec<Digest>,
}

impl Marking<'_> {
    /// Marks everything in a snapshot; what was not marked before is added to `new`.
    fn mark(&mut self, root: Digest, new: &mut Vec<Digest>) -> Result<()> {
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            if folder == tree::empty() && !self.blobs.contains(folder)? {
                continue;
            }
            if !self.note(folder, new)? {
                continue;
            }
            for node in tree::load(self.blobs, folder)?.into_values() {
                match node.kind {
                    Kind::Folder => folders.push(node.digest),
                    _ => {
                        self.note(node.digest, new)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether it is new.
    fn note(&mut self, digest: Digest, new: &mut Vec<Digest>) -> Result<bool> {
        if !self.marked.insert(digest) {
            return Ok(false);
        }
        new.push(digest);
        match (self.cost)(digest) {
            Ok(bytes) => self.bytes += bytes,
            // Nothing can be done about it here; the rest must not suffer.
            Err(BlobError::Missing(_)) => {
                self.missing.push(digest);
                return Ok(false);
            }
            Err(e) => return Err(Error::Blob(e)),
        }
        Ok(true)
    }
}
