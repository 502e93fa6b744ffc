//! Files that other programs obey: hooks and settings of git, of shells, of editors and of agents. A program in a cell may
//! not leave any behind where it may write, because they would run later with the rights of whoever comes along.
//!
//! Those that exist are shown read only, and the folders on the way to them stay where they are. Those that appear, or are
//! no longer what they were, are taken away afterwards and put aside.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use actum_sandbox::Access;
use actum_workspace::{Change, Kind, Node, TreePath, deltas, linked_paths, steering_changes, top_links};

use crate::failure::Failure;
use crate::git_index::IndexPlace;
use crate::obeyed::{self, ObeyedKind, ObeyedName};
use crate::obeyed_place::Place;
use crate::run::{ADMISSION, LINKS_ARE_FOLLOWED, PLACE_COUNTS, REPOSITORIES_ARE_OBEYED};
use crate::ui::clean;

/// In a repository's own folder: what makes git run something or look elsewhere.
const IN_GIT: &[&str] = &[
    "hooks",
    "config",
    "config.worktree",
    "commondir",
    "modules",
    "worktrees",
    // Commands that `git rebase --continue` runs, and places that `git fetch` reads.
    "rebase-merge",
    "rebase-apply",
    "sequencer",
    "remotes",
    "branches",
    "lazygit.yml",
];

/// What programs obey in repositories of other systems. What a repository keeps there besides has to stay writable.
const IN_REPOSITORY: &[(&str, &[&str])] = &[
    (".hg", &["hgrc", "hgrc-not-shared", "sharedpath", "requires"]),
    (
        ".jj",
        &[
            "workspace-config.toml",
            "repo",
            "repo/config.toml",
            "config.toml",
            "repo/store",
            "repo/store/git_target",
            "repo/store/type",
        ],
    ),
    (".repo", &["repo", "manifests", "manifests.git", "manifest.xml", "hooks", "repo.git"]),
    (".bzr", &["branch"]),
    (".sl", &["config", "sharedpath", "requires"]),
    (".pijul", &["config"]),
    ("_darcs", &["prefs"]),
];

/// Folders that package managers fill. Most of what programs obey elsewhere has no effect in them.
const STORES: &[&str] = &["node_modules", ".venv", "site-packages", "target"];

/// The rules by which what a cell may write to is protected within such a folder.
const RULES_IN_STORES: u64 = 0;

/// Entries that are looked at in one tree. Whoever has more is told that the rest is not protected.
const ENTRIES_MAX: usize = 2_000_000;

/// Links in the place of folders of the list that are followed.
const LINKS_MAX: usize = 1_000;

/// A folder that is looked through.
struct Folder {
    real: PathBuf,
    /// The path by which programs come to it.
    named: PathBuf,
    rules: u64,
    only_links: bool,
}

/// What was protected, and which file it was.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    paths: BTreeMap<PathBuf, Was>,
    /// Indexes of repositories, with the state that they were in.
    indexes: BTreeMap<PathBuf, (IndexPlace, Option<IndexState>)>,
    /// There was more than is looked at.
    pub is_partial: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Was {
    file: (u64, u64),
    /// Where it leads, if it is a link: as it says, and what is there in the end.
    link: Option<PathBuf>,
    end: Option<(PathBuf, (u64, u64))>,
}

/// Tells a file from what it was before: device, inode, bytes and time of its last change.
type IndexState = (u64, u64, u64, i64, i64);

fn is(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The changes of a tree that other programs obey.
pub(crate) struct ObeyedChanges {
    behind: Vec<PathBuf>,
    steering: HashSet<TreePath>,
    /// The path of the workspace within its project.
    inside: PathBuf,
    rules: u64,
}

impl ObeyedChanges {
    /// Looks at the changes from `before` to `after`, by the rules of admission of a version. `onto`: what they are published onto,
    /// if that is another state.
    pub(crate) fn find(
        blobs: &dyn Blobs,
        [before, after]: [Digest; 2],
        (place, onto): (Place<'_>, Option<Digest>),
        changes: &[Change],
        rules: u64,
    ) -> Result<Self, Failure> {
        let steering = match rules >= REPOSITORIES_ARE_OBEYED {
            true => steering_changes(blobs, after, changes)?,
            false => Vec::new(),
        };
        let folder = place.folder;
        let mut behind = match rules >= LINKS_ARE_FOLLOWED {
            true if changes.is_empty() => Vec::new(),
            true => {
                let mut behind = behind_obeyed_links(blobs, before, rules)?;
                // Without a change of a link all of them lead where they led.
                let is_link = |node: Option<Node>| node.is_some_and(|node| node.kind == Kind::Symlink);
                if changes.iter().any(|change| is_link(change.before) || is_link(change.after)) {
                    behind.extend(behind_obeyed_links(blobs, after, rules)?);
                }
                if let Some(onto) = onto.filter(|onto| *onto != before) {
                    behind.extend(behind_obeyed_links(blobs, onto, rules)?);
                }
                behind
            }
            false => behind_links(blobs, before, rules)?,
        };
        let mut inside = PathBuf::new();
        let root = match rules >= PLACE_COUNTS {
            true if !changes.is_empty() => {
                inside = place.inside();
                behind.extend(place.behind_links());
                behind.extend(place.named_by_git());
                folder.filter(|folder| folder.starts_with(place.root)).map(|_| place.root).or(folder)
            }
            _ => folder,
        };
        let mut steering: HashSet<TreePath> = steering.into_iter().collect();
        if rules >= LINKS_ARE_FOLLOWED {
            let is_link = |change: &&Change| change.after.is_some_and(|node| node.kind == Kind::Symlink);
            let links = changes.iter().filter(is_link).map(|change| &change.path);
            steering.extend(links.filter(|path| obeyed::is_beginning(path.as_path())).cloned());
            // Parts of a repository that the rules of the workspace leave out are in no tree.
            let mut known: BTreeMap<PathBuf, bool> = BTreeMap::new();
            for change in deltas(changes) {
                let inner = inside.join(change.path.as_path());
                let folders = inner.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
                let is_in_git = root.is_some_and(|root| {
                    folders.into_iter().any(|above| {
                        *known.entry(above.to_owned()).or_insert_with(|| looks_like_git(&root.join(above)))
                    })
                });
                if is_in_git {
                    steering.insert(change.path.clone());
                }
            }
        }
        Ok(Self { behind, steering, inside, rules })
    }

    pub(crate) fn contain(&self, path: &TreePath) -> bool {
        self.behind.iter().any(|target| path.as_path().starts_with(target))
            || self.steering.contains(path)
            || is_obeyed(&self.inside.join(path.as_path()), self.rules)
    }
}

/// Whether other programs obey a file of a workspace because of its name.
fn is_obeyed(path: &Path, rules: u64) -> bool {
    obeyed::all_of(path).any(|row| counts(row, rules))
}

fn counts(row: &ObeyedName, rules: u64) -> bool {
    row.kind != ObeyedKind::Source && row.rules <= rules
}

/// Paths that are named in a remark.
const PATHS_SHOWN: usize = 5;

/// Returns a line that names the files among some paths that programs run or obey, source among them, and by what. None if there
/// are none.
pub(crate) fn remark_on<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<String> {
    let found = paths.filter_map(|path| Some((path, obeyed::all_of(path).next()?)));
    let mut named: Vec<String> = found
        .map(|(path, row)| format!("{} ({}: {})", clean(&path.to_string_lossy()), row.program, row.effect))
        .collect();
    let more = named.len().saturating_sub(PATHS_SHOWN);
    named.truncate(PATHS_SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("other programs run or obey {}{more}", named.join(", ")))
}

/// Whether Actum itself obeys a file of a workspace, whatever project it is taken for.
pub(crate) fn is_own(path: &Path) -> bool {
    path.iter().any(|part| is(part, &["actum.toml", ".actum"]))
}

/// Returns what links with obeyed names lead to, and the links on the way: `.husky/pre-commit → ../scripts/check.sh`.
fn behind_obeyed_links(blobs: &dyn Blobs, tree: Digest, rules: u64) -> Result<Vec<PathBuf>, Failure> {
    // Every act of a run is judged by the state before the run: the whole tree is read for it once.
    static NEWEST: Mutex<Option<(Digest, u64, Vec<PathBuf>)>> = Mutex::new(None);
    let newest = || NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, by, found)) = &*newest()
        && (*known, *by) == (tree, rules)
    {
        return Ok(found.clone());
    }
    let is_followed = |path: &TreePath| {
        let path = path.as_path();
        is_obeyed(path, rules) || obeyed::is_beginning(path)
    };
    let found = linked_paths(blobs, tree, &is_followed)?;
    let found: Vec<PathBuf> = found.into_iter().map(|path| path.as_path().to_owned()).collect();
    *newest() = Some((tree, rules, found.clone()));
    Ok(found)
}

/// What links at the top of a workspace lead to, if others obey them: `AGENTS.md → docs/rules.md`. By older rules.
fn behind_links(blobs: &dyn Blobs, tree: Digest, rules: u64) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for (path, target) in top_links(blobs, tree)? {
        let is_named = obeyed::named(path.as_path()).is_some_and(|row| counts(row, rules));
        let is_github = path.as_bytes().eq_ignore_ascii_case(b".github");
        let target = PathBuf::from(OsString::from_vec(target));
        // What leads out of the workspace cannot be changed from within.
        let plain: PathBuf = target.components().filter(|part| *part != Component::CurDir).collect();
        if (is_named || is_github) && plain.components().all(|part| matches!(part, Component::Normal(_))) {
            let is_partly = is_github && rules < REPOSITORIES_ARE_OBEYED;
            found.push(if is_partly { plain.join("workflows") } else { plain });
        }
    }
    Ok(found)
}

/// Names at the end of a path that the list knows together.
const ENDING_MAX: usize = 3;

/// Why a path may not be written to as such: it, or a folder it lies in, is obeyed by others.
pub(crate) fn refuses(path: &Path, root: &Path) -> Option<String> {
    let inner = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = inner.iter().collect();
    // The folder that one stands in may be obeyed itself.
    let ending: PathBuf = path.iter().rev().take(ENDING_MAX).collect::<Vec<_>>().into_iter().rev().collect();
    let is_settings = |path: &Path| obeyed::all_of(path).any(|row| row.kind != ObeyedKind::Source);
    let is_whole = parts.is_empty() && obeyed::named(&ending).is_some_and(|row| row.kind != ObeyedKind::Source);
    let obeyed = path.file_name().filter(|_| is_settings(inner) || is_whole);
    // A repository's folder as a whole is protected from within; a part of it could not be.
    let in_git = parts.iter().rev().skip(1).find(|part| is(part, &[".git"]));
    obeyed
        .or(in_git.copied())
        .map(|part| format!("{} is obeyed by other programs; no command is granted to change it", part.display()))
}

/// Protected paths in folders that may be written to, as they are now.
pub(crate) fn look(writable: &[PathBuf]) -> Seen {
    let mut seen = Seen::default();
    for folder in writable {
        seen.look_into(folder);
    }
    seen
}

impl Seen {
    fn look_into(&mut self, top: &Path) {
        if top.file_name().is_some_and(|name| is(name, &[".git"])) || looks_like_git(top) {
            self.add_git(top);
        }
        let is_root = actum_sandbox::is_root();
        // Some names are obeyed below a folder of a certain name only, which may be the top itself: `.github/workflows`.
        let above = top.parent().unwrap_or(top);
        let mut waiting =
            vec![Folder { real: top.to_owned(), named: top.to_owned(), rules: ADMISSION, only_links: false }];
        let (mut entries, mut followed) = (0, HashSet::new());
        while let Some(Folder { real: folder, named, rules, only_links }) = waiting.pop() {
            for entry in self.list(top, &folder) {
                entries += 1;
                if entries > ENTRIES_MAX {
                    self.is_partial = true;
                    return;
                }
                let (name, path) = (entry.file_name(), entry.path());
                let kind = entry.file_type();
                let is_folder = kind.as_ref().is_ok_and(fs::FileType::is_dir);
                let is_link = kind.as_ref().is_ok_and(fs::FileType::is_symlink);
                let named = named.join(&name);
                let inside =
                    |real: &Path, only_links| Folder { real: real.to_owned(), named: named.clone(), rules, only_links };
                if only_links {
                    // Git writes its contents under other names first: no link among them is followed.
                    if is_link {
                        self.add(path);
                    } else if is_folder && name != "objects" {
                        waiting.push(inside(&path, true));
                    }
                    continue;
                }
                if is(&name, &[".git"]) {
                    // Never through a link: what lies behind it may be anybody's.
                    if is_folder {
                        self.add_git(&path);
                        self.add_index(&path, &folder);
                        waiting.push(inside(&path, true));
                    } else if let Some(repository) =
                        repository_of(&path).filter(|repository| repository.starts_with(top))
                    {
                        self.add_index(&repository, &folder);
                    }
                    self.add(path);
                    continue;
                }
                let row = obeyed::named(named.strip_prefix(above).unwrap_or(&named))
                    .filter(|row| counts(row, rules) || row.kind == ObeyedKind::Repository);
                if let Some(row) = row {
                    if row.kind == ObeyedKind::Repository && is_folder {
                        self.add_parts(&path, &name);
                        // Some keep a store of git inside.
                        waiting.push(Folder { rules: RULES_IN_STORES, ..inside(&path, false) });
                    } else if is_folder && name != ".actum" {
                        // What its links lead to is obeyed as well.
                        waiting.push(inside(&path, true));
                    }
                    self.add(path);
                } else if is_root && runs_as_its_owner(&entry) {
                    self.add(path);
                } else if is_link && obeyed::is_beginning(named.strip_prefix(above).unwrap_or(&named)) {
                    let end = path.canonicalize().ok().filter(|end| end.starts_with(top) && end.is_dir());
                    if let Some(end) =
                        end.filter(|end| followed.insert((end.clone(), named.clone())) && followed.len() <= LINKS_MAX)
                    {
                        waiting.push(inside(&end, false));
                    }
                    self.add(path);
                } else if is_folder {
                    if looks_like_git(&path) {
                        self.add_git(&path);
                        self.add(path.join("HEAD"));
                    }
                    let rules = if is(&name, STORES) { RULES_IN_STORES } else { rules };
                    waiting.push(Folder { rules, ..inside(&path, false) });
                }
            }
        }
    }

    /// What is in a folder. One that was closed against us is opened: it is ours.
    fn list(&mut self, top: &Path, folder: &Path) -> Vec<fs::DirEntry> {
        let is_closed = || fs::symlink_metadata(folder).is_ok_and(|found| found.mode() & 0o500 != 0o500);
        if !actum_sandbox::is_root() && is_closed() {
            let _ = actum_sandbox::open_up(top, folder);
        }
        match fs::read_dir(folder) {
            Ok(entries) => entries.flatten().collect(),
            Err(_) => {
                self.is_partial = true;
                Vec::new()
            }
        }
    }

    fn add(&mut self, path: PathBuf) {
        if let Ok(found) = fs::symlink_metadata(&path) {
            let link = fs::read_link(&path).ok();
            let end = link.as_ref().and_then(|_| path.canonicalize().ok());
            let end =
                end.and_then(|end| fs::symlink_metadata(&end).ok().map(|found| (end, (found.dev(), found.ino()))));
            self.paths.insert(path, Was { file: (found.dev(), found.ino()), link, end });
        }
    }

    fn add_index(&mut self, repository: &Path, tree: &Path) {
        let index = repository.join("index");
        let state = fs::symlink_metadata(&index).ok();
        let state = state.map(|found| (found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec()));
        let place = IndexPlace { index: index.clone(), repository: repository.to_owned(), tree: tree.to_owned() };
        self.indexes.insert(index, (place, state));
    }

    /// Indexes by which git would write elsewhere than into the files of its working tree.
    pub(crate) fn harmful_indexes(&self) -> impl Iterator<Item = &Path> {
        self.indexes.values().filter(|(place, _)| !place.is_harmless()).map(|(place, _)| place.index.as_path())
    }

    fn add_parts(&mut self, folder: &Path, name: &OsStr) {
        let parts = IN_REPOSITORY.iter().find(|(system, _)| is(name, &[system])).map(|(_, parts)| *parts);
        parts.into_iter().flatten().for_each(|part| self.add(folder.join(part)));
    }

    fn add_git(&mut self, folder: &Path) {
        IN_GIT.iter().for_each(|name| self.add(folder.join(name)));
        // A hook may be a link to something that can be written to.
        let hooks = fs::read_dir(folder.join("hooks")).into_iter().flatten().flatten();
        let links = hooks.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        links.for_each(|entry| self.add(entry.path()));
    }

    /// Each with what it leads to in the end, if it is a link.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&Path, Option<&Path>)> {
        self.paths.iter().map(|(path, was)| (path.as_path(), was.end.as_ref().map(|(end, _)| end.as_path())))
    }

    /// What remains of the right to write in these folders.
    pub(crate) fn grants(&self, writable: &[PathBuf]) -> Vec<(PathBuf, Access)> {
        let mut grants = Vec::new();
        for (path, was) in &self.paths {
            let real = if was.link.is_some() { path.canonicalize().ok() } else { Some(path.clone()) };
            // A link cannot be mounted on; what it leads to can, if it can be written to at all.
            let is_writable = |real: &PathBuf| writable.iter().any(|folder| real.starts_with(folder) && real != folder);
            let Some(real) = real.filter(is_writable) else { continue };
            let is_repository = real.is_dir() && path.file_name().is_some_and(is_repository);
            grants.push((real.clone(), if is_repository { Access::Pinned } else { Access::Read }));
            if is_repository && was.link.is_some() {
                let inner = IN_GIT
                    .iter()
                    .map(|name| real.join(name))
                    .filter(|p| p.symlink_metadata().is_ok_and(|m| !m.is_symlink()));
                grants.extend(inner.map(|path| (path, Access::Read)));
            }
            // Were a folder on the way renamed, another could be made under its name.
            let on_the_way = real.ancestors().skip(1).take_while(|above| {
                writable.iter().any(|folder| above.starts_with(folder))
                    && !writable.iter().any(|folder| folder == above)
            });
            grants.extend(on_the_way.map(|above| (above.to_owned(), Access::Pinned)));
        }
        // What has to be read only stays so, whatever else lies on the way.
        grants.sort_by_key(|(path, access)| (path.clone(), *access != Access::Read));
        grants.dedup_by(|later, first| later.0 == first.0);
        grants
    }
}

/// Whether a folder of this name is the repository of a version control system.
fn is_repository(name: &OsStr) -> bool {
    is(name, &[".git"]) || obeyed::named(Path::new(name)).is_some_and(|row| row.kind == ObeyedKind::Repository)
}

/// A program that has its owner's rights whoever starts it. Changed in its place, it would keep them.
fn runs_as_its_owner(entry: &fs::DirEntry) -> bool {
    entry.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o6000 != 0)
}

/// A repository without a working tree.
fn looks_like_git(folder: &Path) -> bool {
    // Parts of one are enough: another folder may have the rest, and links need lead nowhere.
    let is_there = |name: &&&str| fs::symlink_metadata(folder.join(name)).is_ok();
    ["HEAD", "objects", "refs", "commondir"].iter().filter(is_there).count() >= 2 || has_git_head(folder)
}

/// Whether a folder has a file that git takes for the HEAD of a repository.
fn has_git_head(folder: &Path) -> bool {
    let mut beginning = [0; 64];
    let head = folder.join("HEAD");
    if !fs::symlink_metadata(&head).is_ok_and(|found| found.is_file() && found.len() > 0) {
        return false;
    }
    let read = fs::File::open(head).and_then(|mut file| std::io::Read::read(&mut file, &mut beginning)).unwrap_or(0);
    let text = beginning.get(..read).unwrap_or_default();
    let is_commit = text.len() >= 40 && text.iter().take(40).all(u8::is_ascii_hexdigit);
    text.starts_with(b"ref:") || is_commit
}

/// What was taken away, and where it is now; nothing if it could not be moved, and is still where it was.
#[derive(Debug)]
pub(crate) struct Taken {
    pub path: PathBuf,
    pub now: Option<PathBuf>,
}

/// Takes away what has appeared since, or is no longer what it was. It stays on its file system, in a folder that nobody
/// obeys; a link that was replaced is put back.
pub(crate) fn take_away(writable: &[PathBuf], before: &Seen, id: &str) -> (Vec<Taken>, bool) {
    let after = look(writable);
    let mut taken: Vec<Taken> = Vec::new();
    for (path, is_now) in &after.paths {
        let was = before.paths.get(path);
        // A folder that has gone already took what lies in it along.
        let is_gone = taken.iter().any(|gone| gone.now.is_some() && path.starts_with(&gone.path));
        if was == Some(is_now) || is_gone || fs::symlink_metadata(path).is_err() {
            continue;
        }
        // If the link is the same and leads to something else, that is what was put there.
        let is_same_link =
            was.is_some_and(|was| was.link.is_some() && was.file == is_now.file && was.link == is_now.link);
        let place = match &is_now.end {
            Some((end, _)) if is_same_link => end.clone(),
            _ => path.clone(),
        };
        let now = put_aside(&place, writable, id, taken.len());
        if let Some(was) = was.filter(|_| now.is_some() && !is_same_link) {
            restore_link(path, was);
        }
        taken.push(Taken { path: place, now });
    }
    for (path, (place, state)) in &after.indexes {
        let is_same = before.indexes.get(path).is_some_and(|(_, was)| was == state);
        let is_gone = taken.iter().any(|gone| gone.now.is_some() && path.starts_with(&gone.path));
        if !is_same && !is_gone && !place.is_harmless() {
            let now = put_aside(path, writable, id, taken.len());
            taken.push(Taken { path: path.clone(), now });
        }
    }
    (taken, after.is_partial)
}

/// Where a file in the place of `.git` says that the repository is.
fn repository_of(file: &Path) -> Option<PathBuf> {
    let found = fs::symlink_metadata(file).ok()?;
    if !found.is_file() || found.len() > GIT_FILE_BYTES_MAX {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    file.parent()?.join(text.strip_prefix("gitdir:")?.trim()).canonicalize().ok()
}

const GIT_FILE_BYTES_MAX: u64 = 16 << 10;

/// Puts a link back, if it leads to what it led to before. What is on its way may have been replaced as well.
fn restore_link(path: &Path, was: &Was) {
    let Some(link) = &was.link else { return };
    if std::os::unix::fs::symlink(link, path).is_err() {
        return;
    }
    let end = path.canonicalize().ok();
    let end = end.and_then(|end| fs::symlink_metadata(&end).ok().map(|found| (end, (found.dev(), found.ino()))));
    if end != was.end {
        let _ = fs::remove_file(path);
    }
}

fn put_aside(path: &Path, writable: &[PathBuf], id: &str, number: usize) -> Option<PathBuf> {
    let top =
        writable.iter().filter(|folder| path.starts_with(folder)).max_by_key(|folder| folder.as_os_str().len())?;
    // Made anew, and of a name that the program could not know.
    let folder = actum_sandbox::make_beneath(top, &format!(".actum-aside-{id}-{number}")).ok()?;
    // Under a name that nobody looks for.
    let place = folder.join(name_aside(path)?);
    match actum_sandbox::move_beneath(top, path, &place) {
        Ok(()) => {
            disarm(top, &place);
            Some(place)
        }
        Err(_) => {
            let _ = fs::remove_dir(&folder);
            None
        }
    }
}

/// The name that a file gets when it is put aside.
pub(crate) fn name_aside(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let short: String = name.trim_start_matches('.').chars().take(NAME_CHARS_MAX).collect();
    Some(format!("{short}.aside"))
}

/// A longer one could not get another ending.
const NAME_CHARS_MAX: usize = 50;

/// Renames what makes a folder a repository of git, at every depth, so that git runs no commands of files that were put aside.
pub(crate) fn disarm(top: &Path, place: &Path) {
    let mut waiting = vec![place.to_owned()];
    let mut entries = 0;
    while let Some(folder) = waiting.pop() {
        let is_folder = fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir());
        if !is_folder || entries > ENTRIES_MAX {
            continue;
        }
        let _ = actum_sandbox::open_up(top, &folder);
        let is_git = looks_like_git(&folder);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            entries += 1;
            let (name, path) = (entry.file_name(), entry.path());
            let is_part = is_git && (is(&name, &["HEAD", "commondir"]) || is(&name, IN_GIT));
            if is_part || is(&name, &[".git"]) {
                let mut aside = name.clone();
                aside.push(".aside");
                let aside = folder.join(aside);
                let _ = actum_sandbox::move_beneath(top, &path, &aside);
                waiting.push(aside);
            } else {
                waiting.push(path);
            }
        }
    }
}
