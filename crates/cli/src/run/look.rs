//! What the built-in agent sees of its stage: paths, lines of files, places where a pattern is found. Looks at trees only,
//! never at the disk: no link leads anywhere, and what is left out of a tree is not there. All of it is bounded.

use std::io;

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use actum_kernel::is_env_file;
use actum_workspace::{Kind, Node, TreePath, leaves, lookup};
use regex::bytes::{Regex, RegexBuilder};

/// Paths that are listed at a time.
const PATHS_MAX: usize = 500;
/// Lines and bytes of a file that are shown at a time.
const LINES_MAX: u64 = 1_000;
const SHOWN_BYTES_MAX: usize = 48 << 10;
/// A file that is larger is only named.
const FILE_BYTES_MAX: usize = 4 << 20;
/// Places that are told, letters of each, and bytes that are searched through for them.
const PLACES_MAX: usize = 100;
const PLACE_CHARS_MAX: usize = 300;
const SEARCHED_BYTES_MAX: usize = 64 << 20;
/// What a pattern may come to.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Where it is looked whether a file is text.
const HEAD_BYTES: usize = 8 << 10;

/// What file systems take: bytes of a name, and of a path.
const NAME_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 2_048;

/// Folders that are nobody's work.
const OWN: [&str; 2] = [".git", ".actum"];

/// A tree, looked at.
pub(super) struct View<'b> {
    pub blobs: &'b dyn Blobs,
    pub tree: Digest,
}

/// Something to tell whoever looks; the error is a refusal.
pub(super) type Seen = Result<String, String>;

/// A path as somebody wrote it. Not out of the workspace, and not into what is nobody's work.
pub(super) fn path_of(text: &str) -> Result<TreePath, String> {
    let plain = text.trim_start_matches("./").trim_end_matches('/');
    let plain = if plain == "." { "" } else { plain };
    let fits = plain.len() <= PATH_BYTES_MAX && plain.split('/').all(|name| name.len() <= NAME_BYTES_MAX);
    if !fits {
        return Err(format!(
            "the path has names of more than {NAME_BYTES_MAX} bytes, or more than {PATH_BYTES_MAX} in all"
        ));
    }
    let path = TreePath::new(plain.as_bytes()).ok_or_else(|| format!("{text:?} is no path in the workspace"))?;
    match path.as_path().iter().any(|name| OWN.iter().any(|own| name.eq_ignore_ascii_case(own))) {
        true => Err(format!("{path} is not part of the work")),
        false => Ok(path),
    }
}

fn is_hidden(path: &TreePath) -> bool {
    is_env_file(&path.to_string()) || path_of(&String::from_utf8_lossy(path.as_bytes())).is_err()
}

impl View<'_> {
    /// Whether a path can be changed: nothing on the way to it, and not it itself, is a link.
    pub(super) fn may_change(&self, path: &TreePath) -> Result<(), String> {
        for folder in path.folders() {
            match self.node(&folder)? {
                Some(node) if node.kind == Kind::Symlink => return Err(format!("{folder} is a link")),
                Some(node) if node.kind != Kind::Folder => return Err(format!("{folder} is no folder")),
                _ => {}
            }
        }
        match self.node(path)? {
            Some(node) if node.kind == Kind::Symlink => Err(format!("{path} is a link; delete it first")),
            _ => Ok(()),
        }
    }

    fn node(&self, path: &TreePath) -> Result<Option<Node>, String> {
        if path.is_root() {
            return Ok(Some(Node { kind: Kind::Folder, digest: self.tree }));
        }
        lookup(self.blobs, self.tree, path).map_err(|e| e.to_string())
    }

    /// What is below a path, or it itself.
    fn below(&self, path: &TreePath) -> Result<Vec<(TreePath, Node)>, String> {
        let node = self.node(path)?.ok_or_else(|| format!("{path} is not there"))?;
        if node.kind != Kind::Folder {
            return Ok(vec![(path.clone(), node)]);
        }
        let mut all = leaves(self.blobs, self.tree).map_err(|e| e.to_string())?;
        all.retain(|(found, _)| found.as_path().starts_with(path.as_path()) && !is_hidden(found));
        Ok(all)
    }

    pub(super) fn list(&self, path: &str) -> Seen {
        let path = path_of(path)?;
        let all = self.below(&path)?;
        let mut lines: Vec<String> = all.iter().take(PATHS_MAX).map(|(path, node)| named(path, node)).collect();
        if all.is_empty() {
            lines.push("(nothing)".to_owned());
        }
        if all.len() > PATHS_MAX {
            lines.push(format!("… and {} more; list a folder", all.len() - PATHS_MAX));
        }
        Ok(lines.join("\n"))
    }

    /// A text that is not too long to be looked at.
    fn text(&self, path: &TreePath, node: &Node) -> Result<String, String> {
        let mut content = Bounded(Vec::new());
        if self.blobs.copy(node.digest, &mut content).is_err() {
            return Err(format!("{path} cannot be read, or is larger than {FILE_BYTES_MAX} bytes"));
        }
        let is_binary = content.0.iter().take(HEAD_BYTES).any(|b| *b == 0);
        let text = if is_binary { None } else { String::from_utf8(content.0).ok() };
        text.ok_or_else(|| format!("{path} is no text"))
    }

    pub(super) fn read(&self, path: &str, from: Option<u64>, lines: Option<u64>) -> Seen {
        let path = path_of(path)?;
        if is_hidden(&path) {
            return Err(format!("{path} is not shown: it may hold secrets"));
        }
        let node = self.node(&path)?.ok_or_else(|| format!("{path} is not there"))?;
        match node.kind {
            Kind::Folder => return Err(format!("{path} is a folder: list it")),
            Kind::Symlink => return Err(format!("{path} is a link, which is not followed")),
            _ => {}
        }
        let text = self.text(&path, &node)?;
        let first = from.unwrap_or(1).max(1);
        let wanted = lines.unwrap_or(LINES_MAX).clamp(1, LINES_MAX);
        let skipped = usize::try_from(first - 1).unwrap_or(usize::MAX);
        let all = text.split_inclusive('\n').count();
        let mut shown = String::new();
        let mut taken = 0;
        for line in text.split_inclusive('\n').skip(skipped).take(usize::try_from(wanted).unwrap_or(usize::MAX)) {
            if shown.len() + line.len() > SHOWN_BYTES_MAX {
                if shown.is_empty() {
                    shown = cut(line, SHOWN_BYTES_MAX);
                    taken += 1;
                }
                break;
            }
            shown.push_str(line);
            taken += 1;
        }
        let last = skipped.saturating_add(taken);
        if all == 0 {
            return Ok("(an empty file)".to_owned());
        }
        if taken == 0 {
            return Err(format!("{path} has only {all} lines"));
        }
        match (first, last) {
            (1, last) if last == all => Ok(shown),
            _ => Ok(format!("(lines {first} to {last} of {all})\n{shown}")),
        }
    }

    pub(super) fn search(&self, pattern: &str, path: &str) -> Seen {
        let pattern = compile(pattern)?;
        let mut left = SEARCHED_BYTES_MAX;
        let mut found = Vec::new();
        for (path, node) in self.below(&path_of(path)?)? {
            if !node.kind.is_file() || is_hidden(&path) {
                continue;
            }
            let Ok(text) = self.text(&path, &node) else { continue };
            let Some(rest) = left.checked_sub(text.len()) else {
                found.push("… there is too much to search through; name a folder".to_owned());
                break;
            };
            left = rest;
            for (at, line) in text.lines().enumerate().filter(|(_, line)| pattern.is_match(line.as_bytes())) {
                if found.len() >= PLACES_MAX {
                    found.push("… and more; search for something rarer".to_owned());
                    return Ok(found.join("\n"));
                }
                let line: String = line.chars().take(PLACE_CHARS_MAX).collect();
                found.push(format!("{path}:{}: {line}", at + 1));
            }
        }
        Ok(if found.is_empty() { "(nothing)".to_owned() } else { found.join("\n") })
    }
}

fn named(path: &TreePath, node: &Node) -> String {
    match node.kind {
        Kind::Folder => format!("{path}/"),
        Kind::Symlink => format!("{path} (a link)"),
        Kind::Executable => format!("{path} (executable)"),
        _ => path.to_string(),
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let build = |is_unicode: bool| {
        let mut builder = RegexBuilder::new(pattern);
        builder.unicode(is_unicode).size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        builder.build()
    };
    // Classes of all the world's letters may not be there, or too large; those of ASCII are.
    build(true).or_else(|_| build(false)).map_err(|e| cut(&format!("the pattern cannot be used: {e}"), PLACE_CHARS_MAX))
}

/// The beginning of a text, and how much is left out.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max);
    format!("{}… ({} more bytes are left out)", &text[..end], text.len() - end)
}

/// Takes so much of a file and no more.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > FILE_BYTES_MAX {
            return Err(io::Error::other("the file is too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_where_the_work_is() {
        for good in ["", ".", "a", "./a/b", "a/", ".github/x", "a.git"] {
            assert!(path_of(good).is_ok(), "{good}");
        }
        for bad in ["/etc/passwd", "..", "a/../../b", "a//b", ".git/config", "x/.GIT/hooks/y", ".actum/key", "a\0b"] {
            assert!(path_of(bad).is_err(), "{bad}");
        }
        assert!(path_of(&"x".repeat(256)).is_err() && path_of(&"x/".repeat(2_000)).is_err());
    }

    #[test]
    fn texts_are_cut_between_letters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("aäb", 2), "a… (3 more bytes are left out)");
        assert!(compile("(").is_err() && compile(r"\w{1000}{1000}").is_err());
        assert!(compile(r"\w+").unwrap().is_match(b"x"));
    }
}
