//! Repositories of git inside a workspace. A folder that holds `HEAD`, `objects` and `refs` is one, whatever it is called, and
//! git runs the programs that its `config` and `hooks` name when somebody works in it.

use std::collections::HashMap;

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;

use crate::change::{Change, deltas};
use crate::error::Result;
use crate::path::TreePath;
use crate::tree::{self, Kind, Node, lookup, read_at_most};

/// What git obeys in a repository.
const STEERING: [&[u8]; 6] = [b"hooks", b"config", b"config.worktree", b"commondir", b"modules", b"worktrees"];
const HEAD: &[u8] = b"HEAD";
/// A longer file is not read to see whether git takes it for a `HEAD`; it counts as one.
const HEAD_BYTES_MAX: usize = 4 << 10;
const COMMIT_DIGITS_MIN: usize = 40;

/// Returns the changed paths that make a folder a repository of git, or that change what git obeys in one.
///
/// Without a `HEAD` no folder is a repository, so each new `HEAD` counts, and each part that git obeys beside one. No order of
/// changes brings both together unnoticed. A `HEAD` that the rules of the workspace leave out is in no tree and not seen.
pub fn steering_changes(blobs: &dyn Blobs, after: Digest, changes: &[Change]) -> Result<Vec<TreePath>> {
    let mut known: HashMap<TreePath, bool> = HashMap::new();
    let mut found = Vec::new();
    for change in deltas(changes) {
        let Some(node) = change.after else { continue };
        let mut is_steering = is_git_link(&change.path) || is_head(blobs, &change.path, node)?;
        for folder in folders_of_steering(&change.path) {
            let is_repository = match known.get(&folder) {
                Some(is) => *is,
                None => {
                    let is = holds_head(blobs, after, &folder)?;
                    known.insert(folder, is);
                    is
                }
            };
            is_steering |= is_repository;
        }
        if is_steering {
            found.push(change.path.clone());
        }
    }
    Ok(found)
}

/// `.git` in other letters: the same on file systems that ignore the case.
fn is_git_link(path: &TreePath) -> bool {
    path.names().any(|name| name.eq_ignore_ascii_case(b".git"))
}

fn is_head(blobs: &dyn Blobs, path: &TreePath, node: Node) -> Result<bool> {
    let is_named_so = path.split().is_some_and(|(_, name)| name.eq_ignore_ascii_case(HEAD));
    Ok(is_named_so
        && match node.kind {
            Kind::Symlink => true,
            Kind::Folder => false,
            Kind::File | Kind::Executable => {
                read_at_most(blobs, node.digest, HEAD_BYTES_MAX)?.is_none_or(|text| is_head_text(&text))
            }
        })
}

fn is_head_text(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    text.starts_with(b"ref:") || text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count() >= COMMIT_DIGITS_MIN
}

/// The folders on the way to a path that would obey it, were they repositories.
fn folders_of_steering(path: &TreePath) -> Vec<TreePath> {
    let mut folder = TreePath::ROOT;
    let mut found = Vec::new();
    for name in path.names() {
        if STEERING.iter().any(|part| name.eq_ignore_ascii_case(part)) {
            found.push(folder.clone());
        }
        folder = folder.join(name);
    }
    found
}

fn holds_head(blobs: &dyn Blobs, tree: Digest, folder: &TreePath) -> Result<bool> {
    let Some(node) = lookup(blobs, tree, folder)?.filter(|node| node.kind == Kind::Folder) else { return Ok(false) };
    for (name, node) in tree::load(blobs, node.digest)? {
        if name.eq_ignore_ascii_case(HEAD) && is_head(blobs, &folder.join(&name), node)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_takes_references_and_commits_for_a_head() {
        assert!(is_head_text(b"ref: refs/heads/main\n"));
        assert!(is_head_text(b" ref:x"));
        assert!(is_head_text(&[b'a'; 40]));
        assert!(!is_head_text(b"The HEAD of a page") && !is_head_text(b"deadbeef") && !is_head_text(b""));
    }

    #[test]
    fn each_folder_on_the_way_may_be_the_repository() {
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        let folders = |text: &str| folders_of_steering(&path(text)).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(folders("a/hooks/x"), ["a"]);
        assert_eq!(folders("config"), [""]);
        assert_eq!(folders("modules/a/Config"), ["", "modules/a"]);
        assert_eq!(folders("src/main.rs"), Vec::<String>::new());
    }
}
