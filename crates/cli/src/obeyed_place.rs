//! What programs obey in a workspace because of its surroundings: where it lies in its project, links elsewhere in the project
//! that lead into it, and files that git's own configuration names.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;

use actum_sandbox::View;

use crate::obeyed::{self, ObeyedKind};

/// Entries of a project that are looked through for links. In a larger one, all of a workspace in it counts as obeyed.
const ENTRIES_MAX: usize = 2_000_000;

/// Keys of git's configuration whose values name files or commands that git reads or runs: section, and end of the key.
const GIT_KEYS: &[(&str, &str)] = &[
    ("include.", "path"),
    ("includeif.", "path"),
    ("core.", "hookspath"),
    ("core.", "fsmonitor"),
    ("core.", "sshcommand"),
    ("core.", "editor"),
    ("core.", "pager"),
    ("core.", "askpass"),
    ("core.", "gitproxy"),
    ("core.", "attributesfile"),
    ("core.", "alternaterefscommand"),
    ("sequence.", "editor"),
    ("interactive.", "difffilter"),
    ("init.", "templatedir"),
    ("pager.", ""),
    ("alias.", ""),
    ("credential.", "helper"),
    ("filter.", ""),
    ("diff.", "command"),
    ("diff.", "textconv"),
    ("diff.", "external"),
    ("merge.", "driver"),
    ("difftool.", ""),
    ("mergetool.", ""),
    ("man.", ""),
    ("browser.", ""),
    ("gpg.", "program"),
    ("gpg.", "defaultkeycommand"),
    ("trailer.", "command"),
    ("trailer.", "cmd"),
    ("uploadpack.", "packobjectshook"),
    ("remote.", "uploadpack"),
    ("remote.", "receivepack"),
    ("remote.", "vcs"),
    ("submodule.", "update"),
    ("sendemail.", "cmd"),
    ("sendemail.", "smtpserver"),
    ("instaweb.", "httpd"),
    ("hook.", "command"),
    ("gc.", "recentobjectshook"),
    ("tar.", "command"),
    ("imap.", "tunnel"),
    ("guitool.", "cmd"),
    ("core.", "worktree"),
    ("gpg.", "allowedsignersfile"),
];

/// A workspace in its project.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The folder; none if the workspace is a shared one.
    pub folder: Option<&'a Path>,
    pub root: &'a Path,
}

impl Place<'_> {
    /// The path of the workspace within the project. Empty if it is the project, or lies elsewhere.
    pub(crate) fn inside(&self) -> PathBuf {
        self.folder.and_then(|folder| folder.strip_prefix(self.root).ok()).map(Path::to_owned).unwrap_or_default()
    }

    /// Paths of the workspace that links elsewhere in the project, with names that programs obey, lead to. An empty path means
    /// all of it.
    pub(crate) fn behind_links(&self) -> Vec<PathBuf> {
        let Some(folder) = self.folder.filter(|folder| folder.starts_with(self.root) && *folder != self.root) else {
            return Vec::new();
        };
        let mut found = BTreeSet::new();
        let (mut waiting, mut entries) = (vec![self.root.to_owned()], 0);
        while let Some(at) = waiting.pop() {
            // Links within the workspace are looked at in its trees.
            if at == folder {
                continue;
            }
            for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
                entries += 1;
                if entries > ENTRIES_MAX {
                    return vec![PathBuf::new()];
                }
                let Ok(kind) = entry.file_type() else { continue };
                let path = entry.path();
                if kind.is_dir() && entry.file_name() != ".actum" {
                    waiting.push(path);
                } else if kind.is_symlink() {
                    let inner = path.strip_prefix(self.root).unwrap_or(&path);
                    let is_obeyed = obeyed::all_of(inner).any(|row| row.kind != ObeyedKind::Source);
                    if is_obeyed || obeyed::is_beginning(inner) {
                        found.extend(end_of(&path).and_then(|end| within(folder, &end)));
                    }
                }
            }
        }
        found.into_iter().collect()
    }

    /// Paths of the workspace that the configuration of git names: of the project's repository and of the workspace's, and
    /// the user's own.
    pub(crate) fn named_by_git(&self) -> Vec<PathBuf> {
        let Some(folder) = self.folder else { return Vec::new() };
        let mut found = BTreeSet::new();
        let above = folder.ancestors().take_while(|above| above.starts_with(self.root));
        let trees: Vec<&Path> = above.filter(|above| above.join(".git").symlink_metadata().is_ok()).collect();
        for tree in &trees {
            for file in configs_of(tree) {
                let file = file.into_os_string();
                found.extend(named_in(tree, &["-f".as_ref(), &file]).iter().filter_map(|path| within(folder, path)));
            }
        }
        if let Some(tree) = trees.last() {
            found.extend(named_in(tree, &["--global".as_ref()]).iter().filter_map(|path| within(folder, path)));
        }
        found.into_iter().collect()
    }
}

/// A path as seen from the workspace, if it leads into it; empty if the workspace lies in it.
fn within(folder: &Path, path: &Path) -> Option<PathBuf> {
    match path.strip_prefix(folder) {
        Ok(inner) => Some(inner.to_owned()),
        Err(_) => folder.starts_with(path).then(PathBuf::new),
    }
}

/// Where a link leads in the end. The last part need not be there.
fn end_of(link: &Path) -> Option<PathBuf> {
    if let Ok(end) = link.canonicalize() {
        return Some(end);
    }
    let target = link.parent()?.join(fs::read_link(link).ok()?);
    Some(resolved(&target))
}

/// A path without links and `..`, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let mut done = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(done.pop()),
            Component::CurDir => {}
            part => done.push(part),
        }
        done = done.canonicalize().unwrap_or(done);
    }
    done
}

/// The files with the settings of a working tree and its repository.
fn configs_of(tree: &Path) -> Vec<PathBuf> {
    let own = tree.join(".git");
    let folder = match fs::read_to_string(&own) {
        // In a worktree or a submodule, a file says where the repository is.
        Ok(text) => match text.strip_prefix("gitdir:") {
            Some(place) => tree.join(place.trim()),
            None => return Vec::new(),
        },
        Err(_) => own,
    };
    let common = fs::read_to_string(folder.join("commondir")).ok().map(|text| folder.join(text.trim()));
    let files = [common.unwrap_or_else(|| folder.clone()).join("config"), folder.join("config.worktree")];
    files.into_iter().filter(|file| file.is_file()).collect()
}

/// Files that include one another are followed so far.
const INCLUDES_MAX: usize = 8;

/// What settings name, each as a path that it may mean.
fn named_in(tree: &Path, which: &[&OsStr]) -> Vec<PathBuf> {
    let (mut found, mut included) = (Vec::new(), Vec::new());
    read_settings(tree, which, &mut found, &mut included);
    // Also what is included under a condition that does not hold at the moment.
    let mut read = BTreeSet::new();
    while let Some(file) = included.pop().filter(|_| read.len() < INCLUDES_MAX) {
        if read.insert(file.clone()) {
            read_settings(tree, &["-f".as_ref(), file.as_os_str()], &mut found, &mut included);
        }
    }
    found
}

fn read_settings(tree: &Path, which: &[&OsStr], found: &mut Vec<PathBuf>, included: &mut Vec<PathBuf>) {
    let words = ["git", "config"].map(OsString::from).into_iter().chain(which.iter().map(OsString::from));
    let words = words.chain(["--includes", "--show-origin", "--list", "-z"].map(OsString::from));
    let command = actum_sandbox::command(&View::Folder(tree.to_owned()), Path::new(""), &words.collect::<Vec<_>>());
    let Ok(ended) = command.and_then(|mut git| git.stdin(Stdio::null()).stderr(Stdio::null()).output()) else { return };
    let text = String::from_utf8_lossy(&ended.stdout);
    let mut parts = text.split('\0');
    // A word may be one of many things; the working tree as a whole is none of them.
    let is_inner = |path: &PathBuf| path != tree && !tree.starts_with(path);
    while let (Some(origin), Some(setting)) = (parts.next(), parts.next()) {
        // A file that is included is obeyed as a whole.
        let file = origin.strip_prefix("file:").map(|file| resolved(&tree.join(file)));
        let (key, value) = setting.split_once('\n').unwrap_or((setting, ""));
        let key = key.to_ascii_lowercase();
        if GIT_KEYS.iter().any(|(section, name)| key.starts_with(section) && key.ends_with(name)) {
            let beside = file.as_deref().and_then(Path::parent).unwrap_or(tree);
            let meant =
                |word: &str| [tree, beside].map(|base| resolved(&base.join(crate::config::expand(word.to_owned()))));
            let is_include = key.starts_with("include");
            let is_folder = key.ends_with("hookspath") || key.ends_with("templatedir");
            let whole = meant(value).into_iter().filter(|path| is_folder || is_inner(path));
            let whole: Vec<PathBuf> = whole.collect();
            if is_include {
                included.extend(whole.iter().filter(|path| path.is_file()).cloned());
            }
            found.extend(whole);
            let words = value.split(|c: char| c.is_whitespace() || "\"'`;|&<>()!=".contains(c));
            for word in words.filter(|word| !word.is_empty()) {
                // `test` in `!cargo test` is no folder. Before the first slash there may be a variable.
                let is_path = word.contains('/');
                let behind = word.split_once('/').map(|(_, behind)| behind.trim_start_matches('/'));
                let all = meant(word).into_iter().chain(behind.into_iter().flat_map(meant)).filter(is_inner);
                found.extend(all.filter(|path| is_path || path.is_file()));
            }
        }
        found.extend(file.filter(is_inner));
    }
}
