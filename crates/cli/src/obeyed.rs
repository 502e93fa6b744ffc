//! Names of files that other programs obey, and of what a home keeps secret: data, compiled in.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObeyedKind {
    /// Changing it waits for a person.
    Settings,
    /// The folder of a version control system.
    Repository,
    /// Ordinary source that programs obey too.
    Source,
}

/// One row of the list.
#[derive(Debug)]
pub(crate) struct ObeyedName {
    /// The version of the rules of admission from which it counts.
    pub rules: u64,
    pub kind: ObeyedKind,
    pub program: &'static str,
    pub effect: &'static str,
    names: Vec<Pattern>,
}

/// A name in which `*` stands for any characters.
#[derive(Debug)]
struct Pattern {
    /// In small letters, unless the case counts.
    parts: Vec<String>,
    is_exact: bool,
}

impl Pattern {
    fn new(text: &str, is_exact: bool) -> Self {
        let text = if is_exact { text.to_owned() } else { text.to_ascii_lowercase() };
        Self { parts: text.split('*').map(str::to_owned).collect(), is_exact }
    }

    fn matches(&self, name: &str) -> bool {
        let lowered;
        let mut rest = match self.is_exact {
            true => name,
            false => {
                lowered = name.to_ascii_lowercase();
                &lowered
            }
        };
        let [first, inner @ .., last] = &self.parts[..] else {
            return self.parts.first().is_some_and(|only| only == rest);
        };
        let Some(after) = rest.strip_prefix(first.as_str()) else { return false };
        rest = after;
        for part in inner {
            match rest.find(part.as_str()) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last.as_str())
    }
}

/// The rows by their last name, in small letters; those whose last name is a pattern apart.
struct Table {
    exact: HashMap<String, Vec<ObeyedName>>,
    patterns: Vec<ObeyedName>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table { exact: HashMap::new(), patterns: Vec::new() };
    for row in rows(include_str!("../data/obeyed.tsv")) {
        let [rules, kind, pattern, program, effect, _source] = row[..] else { continue };
        let rules = rules.parse().unwrap_or_default();
        let kind = match kind {
            "repository" => ObeyedKind::Repository,
            "source" => ObeyedKind::Source,
            _ => ObeyedKind::Settings,
        };
        // `docs/warp.md` is no instruction to an agent.
        let is_exact = rules > 0 && pattern.ends_with(".md");
        let names = pattern.split('/').map(|name| Pattern::new(name, is_exact)).collect();
        let name = ObeyedName { rules, kind, program, effect, names };
        match pattern.rsplit('/').next().filter(|last| !last.contains('*')) {
            Some(last) => table.exact.entry(last.to_ascii_lowercase()).or_default().push(name),
            None => table.patterns.push(name),
        }
    }
    table
});

fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// Returns the row that the end of a path matches: `a/.github/workflows`, but not `a/.github/workflows/ci.yml`.
pub(crate) fn named(path: &Path) -> Option<&'static ObeyedName> {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    ends_with(&names)
}

/// Whether the end of a path is the beginning of a longer name in the list, so that a link there leads to what is obeyed: `gradle`,
/// of `gradle/wrapper`.
pub(crate) fn is_beginning(path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let rows = TABLE.exact.values().flatten().chain(&TABLE.patterns);
    rows.filter(|row| row.kind != ObeyedKind::Source && row.names.len() > 1).any(|row| {
        (1..row.names.len().min(names.len() + 1)).any(|length| {
            let end = &names[names.len() - length..];
            row.names[..length].iter().zip(end).all(|(pattern, name)| pattern.matches(name))
        })
    })
}

fn ends_with(names: &[&str]) -> Option<&'static ObeyedName> {
    let last = names.last()?.to_ascii_lowercase();
    let is_match = |row: &&ObeyedName| {
        names.len() >= row.names.len()
            && row.names.iter().rev().zip(names.iter().rev()).all(|(pattern, name)| pattern.matches(name))
    };
    let exact = TABLE.exact.get(&last).into_iter().flatten();
    exact.chain(&TABLE.patterns).find(is_match)
}

/// Returns the rows that a path or a folder above it matches, the outermost first.
pub(crate) fn all_of(path: &Path) -> impl Iterator<Item = &'static ObeyedName> {
    let names: Vec<String> = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    (1..=names.len()).filter_map(move |length| {
        let beginning: Vec<&str> = names[..length].iter().map(String::as_str).collect();
        ends_with(&beginning)
    })
}

/// Returns the paths of a home that are there and that hold secrets.
pub(crate) fn secrets_of(home: &Path) -> Vec<PathBuf> {
    let moved = XDG_FOLDERS.iter().filter_map(|(inner, variable)| {
        Some((*inner, std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())?))
    });
    let moved: Vec<(&str, PathBuf)> = moved.collect();
    let mut found: Vec<PathBuf> = Vec::new();
    for row in rows(include_str!("../data/credentials.tsv")) {
        found.extend(expand(home, row[0]));
        for (inner, folder) in &moved {
            if let Some(rest) = row[0].strip_prefix(inner).and_then(|rest| rest.strip_prefix('/')) {
                found.extend(expand(folder, rest));
            }
        }
    }
    found
}

/// Folders of a home that variables may put elsewhere.
const XDG_FOLDERS: [(&str, &str); 4] = [
    (".config", "XDG_CONFIG_HOME"),
    (".local/share", "XDG_DATA_HOME"),
    (".local/state", "XDG_STATE_HOME"),
    (".cache", "XDG_CACHE_HOME"),
];

/// Returns what there is under a path in which the last name may be a pattern.
fn expand(home: &Path, inner: &str) -> Vec<PathBuf> {
    let path = home.join(inner);
    if !inner.contains('*') {
        return if path.symlink_metadata().is_ok() { vec![path] } else { Vec::new() };
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Vec::new();
    };
    let pattern = Pattern::new(name, true);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| pattern.matches(name)))
        .map(|e| e.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(path: &str) -> Option<ObeyedKind> {
        all_of(Path::new(path)).next().map(|row| row.kind)
    }

    #[test]
    fn every_row_is_well_formed() {
        for (text, columns) in [(include_str!("../data/obeyed.tsv"), 6), (include_str!("../data/credentials.tsv"), 4)] {
            let mut seen = std::collections::HashSet::new();
            for row in rows(text) {
                assert_eq!(row.len(), columns, "{row:?}");
                assert!(row.iter().all(|cell| !cell.trim().is_empty()), "{row:?}");
                let key = if columns == 6 { row[2] } else { row[0] };
                assert!(seen.insert(key.to_ascii_lowercase()) || columns == 4, "{key} stands there twice");
                assert!(columns == 4 || ["settings", "source", "repository"].contains(&row[1]), "{row:?}");
                // Only the last name of a path is looked for as a pattern.
                assert!(columns == 6 || !key.rsplit_once('/').is_some_and(|(above, _)| above.contains('*')), "{key}");
            }
        }
    }

    #[test]
    fn finds_names_at_any_depth() {
        use ObeyedKind::{Repository, Settings, Source};
        for (path, wanted) in [
            (".envrc", Some(Settings)),
            ("a/b/.VSCODE/tasks.json", Some(Settings)),
            ("x/.github/workflows/ci.yml", Some(Settings)),
            (".github/actions/a/action.yml", Some(Settings)),
            (".github/README.md", None),
            ("opencode.json", Some(Settings)),
            (".yarn/releases/yarn.cjs", Some(Settings)),
            (".yarn/cache/x", None),
            (".gitlab-ci.yml", Some(Settings)),
            ("my.code-workspace", Some(Settings)),
            ("vendor/.hg/hgrc", Some(Repository)),
            ("Makefile", Some(Source)),
            ("crates/a/build.rs", Some(Source)),
            ("WARP.md", Some(Settings)),
            ("docs/warp.md", None),
            ("docs/agents.md", Some(Settings)),
            ("src/main.rs", None),
            ("workflows/ci.yml", None),
        ] {
            assert_eq!(kind(path), wanted, "{path}");
        }
        assert!(named(Path::new("a/.github/workflows")).is_some());
        assert!(named(Path::new("a/.github/workflows/ci.yml")).is_none());
    }

    #[test]
    fn patterns_match_within_a_name() {
        let matches = |pattern: &str, name: &str| Pattern::new(pattern, false).matches(name);
        assert!(matches("*.suo", "A.SUO") && matches("a*b*c", "axbxbc") && matches("Jenkinsfile.*", "jenkinsfile.ci"));
        assert!(!matches("*.suo", "suo") && !matches("a*b*c", "acb") && !matches("ab", "abc"));
    }
}
