//! Files that other programs obey: hooks and settings of git, of shells, of editors and of agents. A program in a cell may
//! not leave any behind where it may write, because they would run later with the rights of whoever comes along.
//!
//! Those that exist are shown read only. Those that appear while the program runs are taken away afterwards and put aside.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use actum_sandbox::Access;

/// In a repository's own folder: what makes git run something or look elsewhere.
const IN_GIT: &[&str] = &["hooks", "config", "config.worktree", "commondir", "modules", "worktrees"];

/// In any folder.
const ANYWHERE: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".envrc",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    ".gitmodules",
    ".gitconfig",
    ".ripgreprc",
    ".pre-commit-config.yaml",
    ".husky",
    ".devcontainer",
    ".direnv",
    ".actum",
    "actum.toml",
];

/// Entries that are looked at in one tree. What lies deeper in a larger one is not protected, and that is said.
const ENTRIES_MAX: usize = 200_000;

/// Folders with many entries and no repositories of their own.
const NOT_LOOKED_INTO: &[&str] = &["node_modules", "target", ".venv", "__pycache__"];

/// What is there in folders that may be written to, with what remains of the right to write.
pub(crate) fn existing(writable: &[PathBuf]) -> Vec<(PathBuf, Access)> {
    let mut found = Vec::new();
    for path in writable.iter().flat_map(|folder| protected_in(folder)) {
        // A repository's folder stays where it is; in it, what is obeyed cannot be changed.
        if path.file_name().is_some_and(|name| name == ".git") && path.is_dir() {
            found.push((path, Access::Pinned));
        } else if fs::symlink_metadata(&path).is_ok_and(|m| !m.is_symlink()) {
            found.push((path, Access::Read));
        }
    }
    found
}

/// Protected paths below a folder, as they are now.
pub(crate) fn protected_in(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES_MAX {
                return found;
            }
            let name = entry.file_name();
            let path = entry.path();
            let is = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is(&[".git"]) {
                found.extend(IN_GIT.iter().map(|name| path.join(name)).filter(|p| fs::symlink_metadata(p).is_ok()));
                found.insert(path);
            } else if is(ANYWHERE) {
                found.insert(path);
            } else if is_folder && looks_like_git(&path) {
                found.extend(IN_GIT.iter().map(|name| path.join(name)).filter(|p| fs::symlink_metadata(p).is_ok()));
            } else if is_folder && !is(NOT_LOOKED_INTO) {
                waiting.push(path);
            }
        }
    }
    found
}

/// A repository without a working tree.
fn looks_like_git(folder: &Path) -> bool {
    ["HEAD", "objects", "refs"].iter().all(|name| folder.join(name).exists())
}

/// What has appeared since, taken away and put aside in `aside`. The paths, as they were.
pub(crate) fn take_away(writable: &[PathBuf], before: &BTreeSet<PathBuf>, aside: &Path) -> Vec<PathBuf> {
    let mut taken = Vec::new();
    for path in writable.iter().flat_map(|folder| protected_in(folder)).filter(|path| !before.contains(path)) {
        // A folder that has gone already took what lies in it along.
        if taken.iter().any(|gone| path.starts_with(gone)) || fs::symlink_metadata(&path).is_err() {
            continue;
        }
        let place = aside.join(taken.len().to_string());
        let moved = fs::create_dir_all(&place)
            .and_then(|()| fs::rename(&path, place.join(path.file_name().unwrap_or_default())));
        if moved.is_err() {
            // On another file system: it goes all the same.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
        taken.push(path);
    }
    taken
}
