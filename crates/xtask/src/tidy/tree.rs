//! The checkout as the checks see it: paths and texts, read once. Never follows a link and never looks into folders
//! that git ignores, so that leftovers of a build or of the fuzzer break no rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Paths from the root with `/`; the text is empty where no check would read it.
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

/// Names of folders at any depth, or paths, that hold nothing written by a person.
const SKIPPED: &[&str] = &[".git", "target", "node_modules", ".actum", "fuzz/corpus", "fuzz/artifacts"];
const TEXTS: &[&str] = &["rs", "md", "toml", "lock", "sh", "sql", "json", "yml", "yaml", "html", "css", "js", "ts"];

impl Tree {
    pub(super) fn read(root: &Path) -> std::io::Result<Tree> {
        let mut files = BTreeMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let Ok(name) = entry.file_name().into_string() else { continue };
                let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
                if SKIPPED.contains(&name.as_str()) || SKIPPED.contains(&path.as_str()) {
                    continue;
                }
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && is_text(&path) {
                    files.insert(path, String::from_utf8_lossy(&std::fs::read(entry.path())?).into_owned());
                } else {
                    files.insert(path, String::new());
                }
            }
        }
        Ok(Tree { files })
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether there is such a file or folder; the root itself has the empty path.
    pub(super) fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.files.keys().any(|file| file.starts_with(&folder))
    }

    /// The folders directly under `crates/`.
    pub(super) fn crates(&self) -> BTreeSet<&str> {
        let inside = self.files.keys().filter_map(|path| path.strip_prefix("crates/"));
        inside.filter_map(|path| Some(path.split_once('/')?.0)).collect()
    }
}

fn is_text(path: &str) -> bool {
    path.starts_with(".ci/") || path.rsplit_once('.').is_some_and(|(_, extension)| TEXTS.contains(&extension))
}

/// The number of the first line that satisfies `wanted`; 1 if none does, so that a message always has a place.
pub(super) fn line_where(text: &str, wanted: impl Fn(&str) -> bool) -> usize {
    text.lines().position(wanted).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_texts_and_skips_what_git_ignores() {
        let root = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        for (path, text) in [("crates/a/src/lib.rs", "x"), ("target/t.rs", "x"), ("fuzz/corpus/c", "x"), ("p.png", "x")]
        {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let tree = Tree::read(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(tree.files().collect::<Vec<_>>(), [("crates/a/src/lib.rs", "x"), ("p.png", "")]);
        assert!(tree.exists("crates/a") && !tree.exists("crates/b"));
        assert_eq!(tree.crates().into_iter().collect::<Vec<_>>(), ["a"]);
    }
}
