//! Links that lead out of a workspace. They are resolved within the tree, as a kernel would resolve them in the folder.

use std::collections::HashMap;

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;

use crate::change::Change;
use crate::error::Result;
use crate::path::TreePath;
use crate::tree::{Kind, leaves, load};

/// How many links are followed from one; as many as Linux follows.
const HOPS_MAX: usize = 40;

/// Returns the links of `after` that lead out of the workspace and did not do so in `before`, in the order of their paths.
/// `changes` is what differs between the two.
pub fn new_leaving_links(
    blobs: &dyn Blobs,
    before: Digest,
    after: Digest,
    changes: &[Change],
) -> Result<Vec<TreePath>> {
    let is_link =
        |change: &Change| [change.before, change.after].iter().flatten().any(|node| node.kind == Kind::Symlink);
    if !changes.iter().any(is_link) {
        return Ok(Vec::new());
    }
    let (was, is) = (Links::read(blobs, before)?, Links::read(blobs, after)?);
    let is_new = |path: &&TreePath| was.0.get(path) != is.0.get(path) || !was.leaves(path);
    let mut found: Vec<TreePath> = is.0.keys().filter(|path| is.leaves(path)).filter(is_new).cloned().collect();
    found.sort_unstable();
    Ok(found)
}

/// Returns the links at the top of a tree and what they say.
pub fn top_links(blobs: &dyn Blobs, tree: Digest) -> Result<Vec<(TreePath, Vec<u8>)>> {
    let links = load(blobs, tree)?.into_iter().filter(|(_, node)| node.kind == Kind::Symlink);
    links.map(|(name, node)| Ok((TreePath::ROOT.join(&name), blobs.read(node.digest)?))).collect()
}

/// Returns the paths of a tree that certain links lead to, with the links on the way. Those that lead out of it are left out.
pub fn linked_paths(blobs: &dyn Blobs, tree: Digest, is_followed: &dyn Fn(&TreePath) -> bool) -> Result<Vec<TreePath>> {
    let links = Links::read(blobs, tree)?;
    let mut found: Vec<TreePath> =
        links.0.keys().filter(|path| is_followed(path)).flat_map(|path| links.way(path).unwrap_or_default()).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The links of a tree and what they say.
struct Links(HashMap<TreePath, Vec<u8>>);

impl Links {
    fn read(blobs: &dyn Blobs, tree: Digest) -> Result<Self> {
        let all = leaves(blobs, tree)?;
        let links = all.into_iter().filter(|(_, node)| node.kind == Kind::Symlink);
        links.map(|(path, node)| Ok((path, blobs.read(node.digest)?))).collect::<Result<_>>().map(Self)
    }

    /// Whether a link leads out of the workspace, or into a folder that belongs to git or to us.
    fn leaves(&self, link: &TreePath) -> bool {
        self.0.contains_key(link) && self.way(link).is_none()
    }

    /// Returns the links on the way from one, and where that ends. None if it leads out of the workspace, or into a folder that
    /// belongs to git or to us.
    fn way(&self, link: &TreePath) -> Option<Vec<TreePath>> {
        let mut at: Vec<Vec<u8>> = link.names().map(<[u8]>::to_vec).collect();
        at.pop();
        // What is still to be walked, the next name last.
        let mut ahead: Vec<Vec<u8>> = Vec::new();
        let mut way = Vec::new();
        let mut hops = 0;
        let mut follow = |target: &[u8], ahead: &mut Vec<Vec<u8>>| {
            hops += 1;
            ahead.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
            !target.starts_with(b"/") && hops <= HOPS_MAX
        };
        if !follow(self.0.get(link)?, &mut ahead) {
            return None;
        }
        while let Some(name) = ahead.pop() {
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    at.pop()?;
                    continue;
                }
                name if is_own(name) => return None,
                _ => at.push(name),
            }
            let here = TreePath::new(&at.join(&b'/'));
            if let Some((here, target)) = here.and_then(|here| Some((here.clone(), self.0.get(&here)?))) {
                at.pop();
                way.push(here);
                if !follow(target, &mut ahead) {
                    return None;
                }
            }
        }
        // The whole workspace is nothing that could be named.
        way.extend(TreePath::new(&at.join(&b'/')).filter(|_| !at.is_empty()));
        Some(way)
    }
}

/// Folders that are part of no workspace, in whatever letters a file system takes for the same.
fn is_own(name: &[u8]) -> bool {
    [&b".git"[..], b".actum"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(all: &[(&str, &str)]) -> Links {
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        Links(all.iter().map(|(from, to)| (path(from), to.as_bytes().to_vec())).collect())
    }

    #[test]
    fn a_link_leaves_by_what_it_leads_to_in_the_end() {
        let all = links(&[
            ("in", "a/b/../c"),
            ("nowhere", "not/there"),
            ("a/up", "../x"),
            ("a/out", "../../x"),
            ("absolute", "/etc"),
            ("behind", "a/out/y"),
            ("git", "a/../.git/hooks"),
            ("GIT", ".GIT"),
            ("own", ".actum"),
            ("round", "round"),
            ("deep/er", "deeper"),
            ("deep/deeper", "../a"),
            ("through", "deep/er/../../x"),
            ("again", "deep/er/../x"),
        ]);
        let mut leaving: Vec<String> = all.0.keys().filter(|path| all.leaves(path)).map(ToString::to_string).collect();
        leaving.sort_unstable();
        assert_eq!(leaving, ["GIT", "a/out", "absolute", "behind", "git", "own", "round", "through"]);
    }

    #[test]
    fn a_way_names_every_link_and_its_end() {
        let all = links(&[
            (".husky/pre-commit", "../scripts/check.sh"),
            (".envrc", "step"),
            ("step", "dir/env.sh"),
            ("dir", "real"),
            ("out", "../x"),
        ]);
        let way = |from: &str| {
            let way = all.way(&TreePath::new(from.as_bytes()).unwrap());
            way.map(|way| way.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(way(".husky/pre-commit").unwrap(), ["scripts/check.sh"]);
        assert_eq!(way(".envrc").unwrap(), ["step", "dir", "real/env.sh"]);
        assert_eq!((way("out"), way("none")), (None, None));
    }
}
