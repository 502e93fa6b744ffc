//! What belongs to a snapshot and what is left out: `.gitignore` files, those of folders above the workspace inside the
//! same repository, and the patterns of the user. Matching is ripgrep's; this decides which rules apply where.
//!
//! `.git` and `.actum` are left out always, before any rule is asked. Whether a file is tracked in git is not asked.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use actum_contract::digest::{Blake3, Digest};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};
use crate::path::TreePath;
use crate::record::{Reader, Writer};

/// The name of the files that hold rules.
pub(crate) const RULE_FILE: &[u8] = b".gitignore";

/// Rules longer than this are no rules.
pub(crate) const RULE_BYTES_MAX: u64 = 1 << 20;

/// What the user said, and what stands in folders above the workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Patterns of paths that are taken although a rule leaves them out.
    pub include: Vec<String>,
    /// Patterns of paths that are left out.
    pub exclude: Vec<String>,
    /// Rule files above the workspace: the way down from their folder to the workspace, and their text.
    outer: Vec<(TreePath, Vec<u8>)>,
}

impl Rules {
    /// The rules for a workspace, with those of the repository it is a part of.
    pub fn of(root: &Path, include: Vec<String>, exclude: Vec<String>) -> Result<Self> {
        let mut outer = Vec::new();
        let mut way = TreePath::ROOT;
        let mut folder = Some(root);
        // Only inside a repository: what lies further up has nothing to say.
        let repository = root.ancestors().find(|folder| folder.join(".git").exists());
        while let (Some(here), Some(repository)) = (folder, repository) {
            if here != root {
                outer.extend(read_rules(&here.join(".gitignore")).map(|text| (way.clone(), text)));
            }
            if here == repository {
                outer.extend(read_rules(&here.join(".git/info/exclude")).map(|text| (way.clone(), text)));
                break;
            }
            let name = here.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
            way = TreePath::new(name).unwrap_or_default().join_path(&way);
            folder = here.parent();
        }
        Self { include, exclude, outer }.checked()
    }

    /// The rules for a tree that is no part of the folder it happens to lie in: nothing above it has a say.
    pub fn alone(include: Vec<String>, exclude: Vec<String>) -> Result<Self> {
        Self { include, exclude, outer: Vec::new() }.checked()
    }

    fn checked(self) -> Result<Self> {
        Matcher::new(&self)?;
        Ok(self)
    }

    /// Changes whenever the rules do.
    pub(crate) fn digest(&self) -> Digest {
        let mut hasher = Blake3::default();
        let mut feed = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for (list, patterns) in [(b"include", &self.include), (b"exclude", &self.exclude)] {
            feed(list);
            patterns.iter().for_each(|pattern| feed(pattern.as_bytes()));
        }
        feed(b"outer");
        self.outer.iter().for_each(|(way, text)| {
            feed(way.as_bytes());
            feed(text);
        });
        hasher.finish()
    }

    pub(crate) fn write(&self, record: &mut Writer) {
        for list in [&self.include, &self.exclude] {
            record.number(list.len() as u64);
            for pattern in list {
                record.bytes(pattern.as_bytes());
            }
        }
        record.number(self.outer.len() as u64);
        for (way, text) in &self.outer {
            record.bytes(way.as_bytes()).bytes(text);
        }
    }

    pub(crate) fn read(record: &mut Reader<'_>) -> Result<Self> {
        let mut list = || (0..record.number()?).map(|_| record.text()).collect::<Result<Vec<_>>>();
        let (include, exclude) = (list()?, list()?);
        let outer = (0..record.number()?).map(|_| Ok((record.path()?, record.bytes()?.to_vec())));
        Ok(Self { include, exclude, outer: outer.collect::<Result<_>>()? })
    }
}

impl TreePath {
    fn join_path(&self, rest: &Self) -> Self {
        rest.names().fold(self.clone(), |path, name| path.join(name))
    }
}

/// Rules that cannot be read do not apply, as with git; nor do those behind a link.
fn read_rules(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > RULE_BYTES_MAX {
        return None;
    }
    let mut text = Vec::new();
    file.take(RULE_BYTES_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

fn compile(text: &[u8]) -> Gitignore {
    let mut builder = GitignoreBuilder::new(".");
    for line in text.split(|b| *b == b'\n') {
        // A line that is no pattern is passed over, as with git.
        let _ = builder.add_line(None, &String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)));
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

fn compile_patterns(patterns: &[String]) -> Result<Option<Gitignore>> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let bad = |pattern: &str, e: ignore::Error| Error::Pattern { pattern: pattern.to_owned(), why: e.to_string() };
    let mut builder = GitignoreBuilder::new(".");
    for pattern in patterns {
        builder.add_line(None, pattern).map_err(|e| bad(pattern, e))?;
    }
    builder.build().map(Some).map_err(|e| bad(&patterns.join(" "), e))
}

/// Rules made ready.
pub(crate) struct Matcher {
    include: Option<Gitignore>,
    exclude: Option<Gitignore>,
    outer: Option<Arc<Chain>>,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}

/// The rule files that apply in a folder, the nearest first.
pub(crate) struct Chain {
    rules: Gitignore,
    /// Bytes of a path that lead to the folder of these rules …
    strip: usize,
    /// … or what leads from there down to the workspace.
    prepend: TreePath,
    farther: Option<Arc<Chain>>,
}

/// What becomes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Take,
    Leave,
    /// A folder that is left out, but something in it may be included by name.
    Search,
}

impl Matcher {
    pub(crate) fn new(rules: &Rules) -> Result<Self> {
        let mut outer = None;
        // They were collected from the workspace upward; the farthest is asked last.
        for (way, text) in rules.outer.iter().rev() {
            outer = Some(Arc::new(Chain { rules: compile(text), strip: 0, prepend: way.clone(), farther: outer }));
        }
        let (include, exclude) = (compile_patterns(&rules.include)?, compile_patterns(&rules.exclude)?);
        Ok(Self { include, exclude, outer })
    }

    /// The rules that apply at the top of the workspace before its own.
    pub(crate) fn outer(&self) -> Option<Arc<Chain>> {
        self.outer.clone()
    }

    /// The chain for a folder with a rule file of its own.
    pub(crate) fn extend(farther: Option<Arc<Chain>>, folder: &TreePath, text: &[u8]) -> Arc<Chain> {
        let strip = if folder.is_root() { 0 } else { folder.as_bytes().len() + 1 };
        Arc::new(Chain { rules: compile(text), strip, prepend: TreePath::ROOT, farther })
    }

    /// `inside`: the folder it is in is left out itself and only searched.
    pub(crate) fn judge(&self, path: &TreePath, is_folder: bool, chain: Option<&Chain>, inside: bool) -> Verdict {
        let plain = path.as_path();
        let matches = |patterns: &Option<Gitignore>| {
            patterns.as_ref().is_some_and(|patterns| patterns.matched(plain, is_folder).is_ignore())
        };
        if matches(&self.exclude) {
            return Verdict::Leave;
        }
        if matches(&self.include) {
            return Verdict::Take;
        }
        match inside || is_ignored(path, is_folder, chain) {
            false => Verdict::Take,
            true if is_folder && self.include.is_some() => Verdict::Search,
            true => Verdict::Leave,
        }
    }
}

/// The nearest rule that says anything decides.
fn is_ignored(path: &TreePath, is_folder: bool, mut chain: Option<&Chain>) -> bool {
    while let Some(link) = chain {
        let verdict = if link.prepend.is_root() {
            let inside = Path::new(OsStr::from_bytes(path.as_bytes().get(link.strip..).unwrap_or_default()));
            link.rules.matched(inside, is_folder)
        } else {
            let whole = link.prepend.join_path(path);
            // From above, a folder on the way may be ignored as a whole.
            link.rules.matched_path_or_any_parents(whole.as_path(), is_folder)
        };
        match verdict {
            Match::Ignore(_) => return true,
            Match::Whitelist(_) => return false,
            Match::None => chain = link.farther.as_deref(),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_nearest_rule_decides_and_patterns_of_the_user_come_first() {
        let rules = Rules { include: vec!["kept.log".into()], exclude: vec!["secret".into()], ..Rules::default() };
        let matcher = Matcher::new(&rules).unwrap();
        let top = Matcher::extend(matcher.outer(), &TreePath::ROOT, b"*.log\n/build/\n");
        let sub = Matcher::extend(Some(top.clone()), &path("sub"), b"!a.log\r\n");
        let judge = |p: &str, folder, chain: &Chain| matcher.judge(&path(p), folder, Some(chain), false);
        assert_eq!(judge("a.log", false, &top), Verdict::Leave);
        assert_eq!(judge("sub/a.log", false, &sub), Verdict::Take);
        assert_eq!(judge("sub/b.log", false, &sub), Verdict::Leave);
        assert_eq!(judge("sub/kept.log", false, &sub), Verdict::Take);
        assert_eq!(judge("build", true, &top), Verdict::Search);
        assert_eq!(judge("build", false, &top), Verdict::Take);
        assert_eq!(judge("sub/build", true, &sub), Verdict::Take);
        assert_eq!(judge("secret", true, &top), Verdict::Leave);
        assert_eq!(matcher.judge(&path("build/x"), false, Some(&top), true), Verdict::Leave);
    }

    #[test]
    fn a_repository_above_has_its_say() {
        let folder = actum_testkit::folder::Folder::new();
        fs::create_dir_all(folder.join("repo/.git/info")).unwrap();
        fs::create_dir_all(folder.join("repo/a/b")).unwrap();
        folder.file(".gitignore", "never");
        folder.file("repo/.gitignore", "/a/b/out\n*.o\n");
        folder.file("repo/a/.gitignore", "!keep.o\n");
        folder.file("repo/.git/info/exclude", "private\n");
        let rules = Rules::of(&folder.join("repo/a/b"), vec![], vec![]).unwrap();
        let matcher = Matcher::new(&rules).unwrap();
        let chain = matcher.outer();
        let judge = |p: &str| matcher.judge(&path(p), false, chain.as_deref(), false);
        assert_eq!(judge("out"), Verdict::Leave);
        assert_eq!(judge("x.o"), Verdict::Leave);
        assert_eq!(judge("keep.o"), Verdict::Take);
        assert_eq!(judge("private"), Verdict::Leave);
        assert_eq!(judge("never"), Verdict::Take);
        assert_ne!(rules.digest(), Rules::default().digest());
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let error = Rules::of(Path::new("/"), vec![], vec!["[z-a]".into()]).unwrap_err();
        assert!(error.to_string().starts_with("bad pattern \"[z-a]\""), "{error}");
    }
}
