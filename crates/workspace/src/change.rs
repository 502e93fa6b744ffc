//! What is different between two snapshots, leaf by leaf, and how people and programs are told.

use std::collections::HashMap;

use actum_contract::digest::Digest;

use crate::path::TreePath;
use crate::tree::{Kind, Node};

/// One leaf that differs. Never both nothing, never equal on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: TreePath,
    pub before: Option<Node>,
    pub after: Option<Node>,
    /// An empty folder that got its first entry, or one that lost its last: follows from other changes.
    pub implied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Add,
    Modify,
    Delete,
    /// The executable bit alone.
    Mode,
    /// A file became a link, or a link something else.
    Type,
}

impl Verb {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Modify => "modify",
            Self::Delete => "delete",
            Self::Mode => "mode",
            Self::Type => "type",
        }
    }
}

impl Change {
    pub fn verb(&self) -> Verb {
        match (self.before, self.after) {
            (None, _) => Verb::Add,
            (_, None) => Verb::Delete,
            (Some(a), Some(b)) if a.kind == b.kind => Verb::Modify,
            (Some(a), Some(b)) if a.digest == b.digest && a.kind.is_file() && b.kind.is_file() => Verb::Mode,
            (Some(a), Some(b)) if a.kind.is_file() && b.kind.is_file() => Verb::Modify,
            _ => Verb::Type,
        }
    }

    /// The change that takes this one back.
    pub fn reversed(&self) -> Self {
        Self { path: self.path.clone(), before: self.after, after: self.before, implied: self.implied }
    }
}

/// The changes that count: each is one delta of objects (O).
pub fn deltas(changes: &[Change]) -> impl Iterator<Item = &Change> {
    changes.iter().filter(|change| !change.implied)
}

/// A file that went and one that came with the same content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    pub from: TreePath,
    pub to: TreePath,
}

/// Pairs of a deletion and an addition of the same content, each used once. For people; the changes stay as they are.
pub fn renames(changes: &[Change]) -> Vec<Rename> {
    let mut gone: HashMap<Digest, Vec<&TreePath>> = HashMap::new();
    for change in changes.iter().filter(|c| c.after.is_none()) {
        if let Some(digest) = named(change.before) {
            gone.entry(digest).or_default().push(&change.path);
        }
    }
    let mut pairs = Vec::new();
    for change in changes.iter().filter(|c| c.before.is_none()) {
        let Some(from) = named(change.after).and_then(|digest| gone.get_mut(&digest)) else { continue };
        // The same name in another folder is the likelier origin. Copies of one content beyond a few are all alike.
        let name = |path: &TreePath| path.split().map(|(_, name)| name.to_vec());
        let wanted = name(&change.path);
        let at = from.iter().take(ALIKE_MAX).position(|path| name(path) == wanted).unwrap_or(0);
        if at < from.len() {
            pairs.push(Rename { from: from.remove(at).clone(), to: change.path.clone() });
        }
    }
    pairs
}

/// How many files of one content are compared by name.
const ALIKE_MAX: usize = 16;

/// The content by which a file may be recognised elsewhere; empty files are all alike.
fn named(node: Option<Node>) -> Option<Digest> {
    let node = node?;
    (node.kind != Kind::Folder && node.digest != Digest::blake3(b"")).then_some(node.digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, before: Option<(Kind, &str)>, after: Option<(Kind, &str)>) -> Change {
        let node = |(kind, content): (Kind, &str)| Node { kind, digest: Digest::blake3(content.as_bytes()) };
        let path = TreePath::new(path.as_bytes()).unwrap();
        Change { path, before: before.map(node), after: after.map(node), implied: false }
    }

    #[test]
    fn every_difference_has_its_verb() {
        use Kind::{Executable, File, Symlink};
        let verb = |a, b| change("x", a, b).verb();
        assert_eq!(verb(None, Some((File, "a"))), Verb::Add);
        assert_eq!(verb(Some((File, "a")), None), Verb::Delete);
        assert_eq!(verb(Some((File, "a")), Some((File, "b"))), Verb::Modify);
        assert_eq!(verb(Some((File, "a")), Some((Executable, "b"))), Verb::Modify);
        assert_eq!(verb(Some((File, "a")), Some((Executable, "a"))), Verb::Mode);
        assert_eq!(verb(Some((Symlink, "a")), Some((Symlink, "b"))), Verb::Modify);
        assert_eq!(verb(Some((File, "a")), Some((Symlink, "a"))), Verb::Type);
    }

    #[test]
    fn a_rename_prefers_the_same_name_and_uses_each_side_once() {
        let file = |content| Some((Kind::File, content));
        let changes = [
            change("a/other", file("same"), None),
            change("a/x", file("same"), None),
            change("b/x", None, file("same")),
            change("b/y", None, file("same")),
            change("b/z", None, file("same")),
            change("e", file(""), None),
            change("f", None, file("")),
        ];
        let shown: Vec<_> = renames(&changes).iter().map(|r| format!("{}→{}", r.from, r.to)).collect();
        assert_eq!(shown, ["a/x→b/x", "a/other→b/y"]);
    }
}
