//! Shared workspaces: trees that no machine owns, each with a head in the ledger. How they are named and made, how their head
//! moves, and what of them lies on which machine. Used by `run`, `workspace` and the hands of runs.

use std::path::PathBuf;

use actum_api::error;
use actum_contract::blob::{BlobError, Blobs};
use actum_contract::digest::Digest;
use actum_engine::{Done, note};
use actum_ledger::draft;
use actum_ledger::head::{Cause, Head, Move, entry_id, is_name, move_of};
use actum_ledger::journal::Outcome;
use actum_ledger::run::{Run, Written};
use actum_workspace::{Change, Error, Rebased, TreePath, is_whole, rebase};

use crate::failure::Failure;
use crate::run::Open;
use crate::workspace::new_id;

/// How the place of a run begins that any machine can take which has the same contents.
const PLACE: &str = "shared:";

/// Where programs see the stage of a shared workspace, on every machine.
pub(crate) const SEEN_AT: &str = "/workspace";

/// How often somebody else may be first before that counts as a conflict.
const TRIES_MAX: usize = 50;

const SNAPSHOT: &str = "snapshot:";
const GIT: &str = "git+";
const PLAIN: &str = "shared:";

/// What a work file says of a workspace that is no folder here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Snapshot(Digest),
    Git {
        url: String,
        commit: String,
    },
    /// One that somebody has made.
    Plain(String),
}

impl Named {
    /// What stands in a work file; nothing if it is a folder.
    pub(crate) fn read(text: &str) -> Option<Result<Self, Failure>> {
        let bad = |what: &str| Err(Failure::new(error::INPUT, format!("the workspace {text:?} {what}")));
        if let Some(id) = text.strip_prefix(SNAPSHOT) {
            return Some(match Digest::from_hex(id) {
                Some(id) => Ok(Self::Snapshot(id)),
                None => bad("names no snapshot: it takes all 64 hex digits of one"),
            });
        }
        if let Some(rest) = text.strip_prefix(GIT) {
            let is_commit = |c: &str| matches!(c.len(), 40 | 64) && c.bytes().all(|b| b.is_ascii_hexdigit());
            return Some(match rest.rsplit_once('#') {
                Some((url, commit)) if is_commit(commit) && !url.is_empty() && is_name(text) => {
                    Ok(Self::Git { url: url.to_owned(), commit: commit.to_ascii_lowercase() })
                }
                _ => bad("names no commit: write git+URL#COMMIT, with all digits of the commit"),
            });
        }
        let name = text.strip_prefix(PLAIN)?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
        Some(match !name.is_empty() && name.len() <= PLAIN_BYTES_MAX && name.bytes().all(is_plain) {
            true => Ok(Self::Plain(name.to_owned())),
            false => bad("has a bad name: letters, digits and . _ - / are allowed, at most 100"),
        })
    }

    /// The name in the ledger.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Snapshot(id) => format!("{SNAPSHOT}{}", id.to_hex()),
            Self::Git { url, commit } => format!("{GIT}{url}#{commit}"),
            Self::Plain(name) => format!("{PLAIN}{name}"),
        }
    }
}

const PLAIN_BYTES_MAX: usize = 100;

/// Whether runs of this place belong to no machine.
/// How the URL of an object store in a folder begins.
const FOLDER_URL: &str = "file://";

pub(crate) fn is_place(place: &str) -> bool {
    place.starts_with(PLACE)
}

/// The commit that a workspace was made from, if its name tells.
pub(crate) fn commit_of(name: &str) -> Option<String> {
    name.starts_with(GIT).then(|| name.rsplit_once('#').map(|(_, commit)| commit.to_owned())).flatten()
}

impl Open {
    /// Returns the tree that a shared workspace holds now.
    pub(crate) fn head_tree(&self, name: &str) -> Result<Digest, Failure> {
        let found = self.waiter.wait(self.heads.head(&self.tenant, name))?;
        let gone = || Failure::new(error::NOT_FOUND, format!("there is no shared workspace {name:?}"));
        found.map(|head| head.tree).ok_or_else(gone)
    }

    /// The place of runs on shared workspaces: whoever has the same object store; without one, only this project here.
    pub(crate) fn shared_place(&self) -> Result<String, Failure> {
        let name = self.project.contents_name()?.unwrap_or_else(|| self.place.clone());
        // Entries of other tenants hold it: where a folder is on this machine is not shown to them.
        Ok(match name.strip_prefix(FOLDER_URL) {
            Some(path) => format!("{PLACE}folder:{}", &Digest::blake3(path.as_bytes()).to_hex()[..16]),
            None => format!("{PLACE}{name}"),
        })
    }

    /// All places whose runs a worker of this project takes: its own folder, its object store, and earlier names of that.
    pub(crate) fn places(&self) -> Result<Vec<String>, Failure> {
        let earlier = self.project.active_config().blobs()?.also.into_iter();
        let earlier = earlier.map(|name| if is_place(&name) { name } else { format!("{PLACE}{name}") });
        let of_others = format!("{PLACE}{}", self.place_for_others());
        let mut places = vec![self.place.clone(), self.shared_place()?, of_others];
        // The place of an object store in a folder, as runs of earlier versions name it.
        let named = self.project.contents_name()?.filter(|name| name.starts_with(FOLDER_URL));
        places.extend(named.map(|name| format!("{PLACE}{name}")));
        places.extend(earlier);
        places.dedup();
        Ok(places)
    }

    /// Where a shared workspace is.
    pub(crate) fn head(&self, name: &str) -> Result<Option<Head>, Failure> {
        Ok(self.waiter.wait(self.heads.head(&self.tenant, name))?)
    }

    /// The same for one that has to be there.
    pub(crate) fn known_head(&self, name: &str) -> Result<Head, Failure> {
        self.head(name)?.ok_or_else(|| {
            Failure::new(error::NOT_FOUND, format!("there is no shared workspace {name:?}"))
                .hint("`actum workspace list` shows those there are, `actum workspace add` makes one")
        })
    }

    /// The head of a workspace, made if it can be from what its name says.
    pub(crate) fn head_of(&self, named: &Named, actor: &str) -> Result<Head, Failure> {
        let name = named.name();
        match self.head(&name)? {
            Some(head) => Ok(head),
            None => self.create(&name, self.tree_of(named)?, actor),
        }
    }

    /// What a name says a workspace begins with, stored whole, and what of it its own rules would ignore.
    pub(crate) fn tree_of(&self, named: &Named) -> Result<(Digest, Vec<String>), Failure> {
        match named {
            Named::Plain(_) => Ok((self.known_head(&named.name())?.tree, Vec::new())),
            Named::Snapshot(id) => {
                is_whole(&*self.project.blobs()?, *id).map_err(|e| {
                    let is_none = match &e {
                        Error::Blob(BlobError::Missing(digest)) | Error::Tree { digest, .. } => digest == id,
                        _ => false,
                    };
                    if is_none {
                        let message = format!("there is no snapshot {}", id.to_hex());
                        return Failure::new(error::NOT_FOUND, message).hint(
                            "`actum snapshot list` shows those there are, `actum snapshot freeze` makes one; other machines have it with the same `[blobs]`",
                        );
                    }
                    let failure = Failure::from(e);
                    let message = format!("snapshot {} is not stored whole: {}", id.to_hex(), failure.message);
                    Failure { message, ..failure }.hint("`actum snapshot freeze` on a machine with the same `[blobs]`")
                })?;
                Ok((*id, Vec::new()))
            }
            Named::Git { url, commit } => crate::repository::fetch(self, url, commit),
        }
    }

    /// Makes a workspace; if somebody else was first, it is his.
    pub(crate) fn create(
        &self,
        name: &str,
        (tree, include): (Digest, Vec<String>),
        actor: &str,
    ) -> Result<Head, Failure> {
        let first = Move {
            tenant: self.tenant.clone(),
            workspace: name.to_owned(),
            n: 1,
            cause: Cause::Create,
            before: None,
            after: tree,
            publication: new_id(),
            of: None,
            actor: actor.to_owned(),
            drift: Vec::new(),
            include,
        };
        match self.append(&first)? {
            true => Ok(Head { workspace: name.to_owned(), n: 1, tree }),
            false => self.known_head(name),
        }
    }

    /// Writes a move down. False if somebody else has made the move of that number.
    fn append(&self, step: &Move) -> Result<bool, Failure> {
        let submission = draft::read_own(step.document());
        match self.waiter.wait(self.waiter.journal.append(submission))? {
            Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(true),
            Outcome::Refused(refusal) if self.made(&step.workspace, step.n)?.is_none() => {
                Err(Failure::new(error::INTERNAL, format!("the ledger refused a move: {}", refusal.message)))
            }
            Outcome::Refused(_) => Ok(false),
        }
    }

    /// Move `n` of a workspace.
    pub(crate) fn made(&self, name: &str, n: u64) -> Result<Option<Move>, Failure> {
        let body = self.waiter.wait(self.waiter.journal.entry(&self.tenant, &entry_id(name, n)))?;
        Ok(body.and_then(|body| move_of(&body)))
    }

    /// Moves the head to what somebody makes of a run that is over, wherever the head is by then, and says so of the run: in
    /// one write. With `keep`, as far as it fits; what is there already moves nothing.
    pub(crate) fn move_head(&self, run: &Run, wanted: &Wanted<'_>) -> Result<(String, Rebased), Failure> {
        let blobs = self.project.blobs()?;
        // What is stored here is swept away by nobody before the head names it.
        let _stays = blobs.batch()?;
        for _ in 0..TRIES_MAX {
            let head = self.known_head(wanted.name)?;
            let rebased = rebase(&*blobs, wanted.base, wanted.changes, head.tree, wanted.keep)?;
            if rebased.changes.is_empty() && !rebased.kept.is_empty() {
                return Ok((NOTHING.to_owned(), rebased));
            }
            let step = Move {
                tenant: self.tenant.clone(),
                workspace: wanted.name.to_owned(),
                n: head.n + 1,
                cause: wanted.cause,
                before: Some(head.tree),
                after: rebased.after,
                publication: new_id(),
                of: Some(wanted.of.to_owned()),
                actor: wanted.actor.to_owned(),
                drift: shown(&rebased.drift),
                include: Vec::new(),
            };
            let (name, entry) = match rebased.changes.is_empty() {
                true => (NOTHING.to_owned(), None),
                false => (publication(step.n, &step.publication), Some(step.document())),
            };
            let done = match wanted.cause {
                Cause::Undo => Done::Undone { publication: name.clone() },
                _ => Done::Applied { publication: name.clone(), drift: step.drift },
            };
            match note(&self.waiter, run, &done, entry)? {
                Written::Done => return Ok((name, rebased)),
                Written::Lost => {
                    let message = "another process has just changed the run; repeat the command";
                    return Err(Failure::new(error::RUN_STATE, message));
                }
                // Somebody else has made that move.
                Written::Refused(_) if self.made(wanted.name, step.n)?.is_some() => {}
                Written::Refused(refusal) => {
                    return Err(Failure::new(error::INTERNAL, format!("the ledger refused it: {}", refusal.message)));
                }
            }
        }
        Err(Failure::new(error::PUBLISH_CONFLICT, "the workspace kept moving").hint("try again"))
    }
}

/// The publication of what was there already.
pub(crate) const NOTHING: &str = "none";

/// What becomes of a shared workspace by somebody's word on a run that is over.
pub(crate) struct Wanted<'a> {
    pub name: &'a str,
    pub cause: Cause,
    pub of: &'a str,
    pub actor: &'a str,
    pub base: Digest,
    pub changes: &'a [Change],
    pub keep: bool,
}

/// Paths as a move lists them.
pub(crate) fn shown(paths: &[TreePath]) -> Vec<String> {
    paths.iter().take(actum_ledger::head::DRIFT_MAX).map(ToString::to_string).collect()
}

/// How a publication of a shared workspace is called: by the number of the move, and its id.
pub(crate) fn publication(n: u64, id: &str) -> String {
    format!("{n}:{id}")
}

pub(crate) fn read_publication(text: &str) -> Option<(u64, &str)> {
    let (n, id) = text.split_once(':')?;
    Some((n.parse().ok()?, id))
}

/// Where stages of shared workspaces are seen.
pub(crate) fn seen_at() -> PathBuf {
    PathBuf::from(SEEN_AT)
}

/// Whether all of a tree can be had here.
pub(crate) fn bring(blobs: &dyn Blobs, tree: Digest) -> Result<(), Failure> {
    Ok(actum_workspace::fetch(blobs, tree)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_folders() {
        let id = "ab".repeat(32);
        let commit = "0f".repeat(20);
        assert!(Named::read(".").is_none());
        assert!(Named::read("snapshots/x").is_none());
        assert_eq!(Named::read(&format!("snapshot:{id}")).unwrap().unwrap().name(), format!("snapshot:{id}"));
        let git = format!("git+https://example.test/a.git#{commit}");
        assert_eq!(Named::read(&git).unwrap().unwrap().name(), git);
        assert_eq!(commit_of(&git).as_deref(), Some(commit.as_str()));
        assert_eq!(Named::read("shared:team/site").unwrap().unwrap().name(), "shared:team/site");
        for bad in ["snapshot:ab", "git+https://x#main", "git+#", "git+https://x y#0", "shared:", "shared:a b"] {
            assert!(Named::read(bad).unwrap().is_err(), "{bad}");
        }
        assert_eq!(read_publication(&publication(3, "x")), Some((3, "x")));
        assert_eq!(read_publication("x"), None);
    }
}
