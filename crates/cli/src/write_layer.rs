//! What a command in `actum sandbox` writes goes into a layer over each folder that it may change. When the command has
//! ended, files that other programs obey are put aside, and the rest is moved to its place. So no program of the machine
//! ever finds a file in its place that was not looked at, and a file that others changed meanwhile is kept.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use actum_sandbox::{Access, Layers, Source, View};
use actum_workspace::make_own_folder;
use serde::{Deserialize, Serialize};

use crate::cell::Planned;
use crate::protect::{self, Taken};

/// The first argument of the process that looks for obeyed files through a layer.
const LOOK: &str = "--actum-look-through-layer";

/// Where layers are in a folder's own `.actum`.
const PLACE: &str = "sandbox";

/// How often a layer is looked through: each time less is in it.
const LOOKS_MAX: usize = 16;

/// Says that a folder's `.actum` was made for layers only, and goes with the last of them.
const MADE_FOR_LAYERS: &str = "made-for-layers";

/// Says that a layer holds what is in no other place.
const SETTLING: &str = "settling";
const TRIES_MAX: usize = 100;

/// Marks of the kernel's, which mean something to overlays only.
const OPAQUE: &str = "user.overlay.opaque";
/// On what was copied from below.
const ORIGIN: &str = "user.overlay.origin";
const MARKS: [&str; 4] = [OPAQUE, ORIGIN, "user.overlay.impure", "user.overlay.nlink"];

/// The layers of one command.
#[derive(Debug, Default)]
pub(crate) struct WriteLayers {
    layers: Vec<WriteLayer>,
    /// Granted folders that are written to directly.
    pub direct: Vec<PathBuf>,
    /// Why that is, if the user did not want it.
    pub why_direct: Option<String>,
    /// Layers of earlier commands with what was not put in place.
    pub unfinished: Vec<PathBuf>,
}

#[derive(Debug)]
struct WriteLayer {
    /// What the command knows the layer by.
    folder: PathBuf,
    /// Holds `upper` and `work`.
    own: PathBuf,
    /// When the layer was made, by the clock of its file system.
    since: (i64, i64),
    /// Held as long as the layer is in use.
    _lock: File,
}

/// What has become of the layers.
#[derive(Debug, Default)]
pub(crate) struct SettledLayers {
    pub taken: Vec<Taken>,
    /// There were more files than are looked at.
    pub is_partial: bool,
    /// Paths that others changed meanwhile, and where the command's version is now.
    pub conflicts: Vec<(PathBuf, Option<PathBuf>)>,
    /// What could not be put in place, and why.
    pub left: Vec<(PathBuf, String)>,
    /// Layers with what could not be put in place.
    pub kept: Vec<PathBuf>,
}

/// An obeyed file that is seen through a layer.
#[derive(Debug, Serialize, Deserialize)]
struct ObeyedPath {
    path: OsString,
    /// Where it leads, if it is a link.
    end: Option<OsString>,
    /// Links on the way there.
    links: Vec<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ObeyedPaths {
    files: Vec<ObeyedPath>,
    /// Indexes of git that lead out of their working tree.
    indexes: Vec<OsString>,
    is_partial: bool,
}

/// If this process was started to look through a layer, does that and returns the exit code. It is the program that was found
/// before anything was mounted, and it runs no other one: what a command wrote is only read here.
pub(crate) fn serve(arguments: &[OsString]) -> Option<u8> {
    let [_, mark, layers] = arguments else { return None };
    if mark != LOOK {
        return None;
    }
    let look = || -> io::Result<()> {
        let layers: Layers = serde_json::from_slice(layers.as_encoded_bytes())?;
        actum_sandbox::mount_for_this_process(&layers)?;
        let seen = protect::look(std::slice::from_ref(&layers.at));
        let files = seen
            .paths()
            .map(|(path, end)| ObeyedPath {
                path: path.into(),
                end: end.map(Into::into),
                links: if end.is_some() { crate::cell::links_on_the_way(path) } else { Vec::new() },
            })
            .collect();
        let indexes = seen.harmful_indexes().map(Into::into).collect();
        let found = ObeyedPaths { files, indexes, is_partial: seen.is_partial };
        serde_json::to_writer(io::stdout().lock(), &found)?;
        Ok(())
    };
    match look() {
        Ok(()) => Some(0),
        Err(e) => {
            crate::ui::note(&e.to_string());
            Some(1)
        }
    }
}

impl WriteLayers {
    /// None: folders are written to directly, because the user wants that.
    pub(crate) fn none(direct: Vec<PathBuf>) -> Self {
        Self { direct, ..Self::default() }
    }

    /// Puts a layer over each folder that the cell may change. Where another file system is mounted within, which a layer
    /// would not show, the folder stays as it is.
    pub(crate) fn put_over(planned: &mut Planned, id: &str) -> Self {
        let mut layers = Self::default();
        let folders = planned.writable.iter().filter(|path| path.is_dir());
        let outermost: Vec<PathBuf> = folders
            .filter(|path| !planned.writable.iter().any(|other| other != *path && path.starts_with(other)))
            .cloned()
            .collect();
        for folder in outermost {
            if has_mounts_within(&folder) {
                layers.why_direct = Some("another file system is mounted in it".to_owned());
                layers.direct.push(folder);
                continue;
            }
            match WriteLayer::make(&folder, id) {
                Ok(layer) => {
                    layers.unfinished.extend(unfinished(&folder));
                    layer.show(planned);
                    layers.layers.push(layer);
                }
                Err(e) => {
                    layers.why_direct = Some(format!("no layer can be made over it: {e}"));
                    layers.direct.push(folder);
                }
            }
        }
        layers
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Puts what was written in place. With `keep_obeyed`, also what other programs obey.
    pub(crate) fn settle(self, keep_obeyed: bool, id: &str) -> SettledLayers {
        let mut settled = SettledLayers::default();
        // Nothing is moved to its place before all layers were looked through.
        let mut ready = Vec::new();
        for layer in self.layers {
            match layer.prepare(keep_obeyed, id, &mut settled) {
                Ok(()) => ready.push(layer),
                Err(e) => settled.left.push((layer.upper(), e.to_string())),
            }
        }
        for layer in ready {
            match layer.put_in_place(id, &mut settled) {
                Ok(true) => layer.remove(),
                Ok(false) => settled.kept.push(layer.upper()),
                Err(e) => settled.left.push((layer.upper(), e.to_string())),
            }
        }
        settled
    }
}

impl WriteLayer {
    fn make(folder: &Path, id: &str) -> io::Result<Self> {
        let found = fs::metadata(folder)?;
        // Others could exchange the layer's own folder.
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o002 != 0 {
            return Err(io::Error::other("the folder belongs to another user, or others may write to it"));
        }
        let (place, aside) = make_place(folder, id)?;
        let lock = File::create(aside.join("lock"))?;
        lock.lock()?;
        let own = place.join(id);
        fs::rename(&aside, &own)?;
        let (upper, work) = (own.join("upper"), own.join("work"));
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        // The rights of the layer are those of the folder, but for the group that new files would get: the cell knows no
        // such group, and its files could not be counted.
        let group = if actum_sandbox::is_root() { found.gid() } else { rustix::process::getegid().as_raw() };
        std::os::unix::fs::lchown(&upper, None, Some(group))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(found.mode() & 0o5777))?;
        let made = fs::symlink_metadata(&upper)?;
        let since = (made.ctime(), made.ctime_nsec());
        Ok(Self { folder: folder.to_owned(), own, since, _lock: lock })
    }

    fn upper(&self) -> PathBuf {
        self.own.join("upper")
    }

    fn work(&self) -> PathBuf {
        self.own.join("work")
    }

    /// Puts it into a cell. What is protected in the folder is protected in the layer.
    fn show(&self, planned: &mut Planned) {
        for grant in &mut planned.cell.grants {
            if grant.path == self.folder && grant.access == Access::Write {
                let lowers = vec![self.folder.clone()];
                grant.from = Source::Overlay { lowers, upper: self.upper(), work: self.work() };
            } else if grant.path.starts_with(&self.folder) && grant.from == Source::Same {
                grant.from = Source::Outer;
            }
        }
        let actum = self.folder.join(".actum");
        if !planned.cell.deny.contains(&actum) {
            planned.cell.deny.push(actum);
        }
    }

    fn is_empty(&self) -> io::Result<bool> {
        Ok(fs::read_dir(self.upper())?.next().is_none())
    }

    /// Puts aside what other programs obey.
    fn prepare(&self, keep_obeyed: bool, id: &str, settled: &mut SettledLayers) -> io::Result<()> {
        if self.is_empty()? {
            return Ok(());
        }
        // From here on the layer is the only place of what was written: no later command removes it.
        File::create(self.own.join(SETTLING))?;
        if keep_obeyed { Ok(()) } else { self.put_obeyed_aside(id, settled) }
    }

    /// Moves the rest to its place. Returns false if some of it is still in the layer.
    fn put_in_place(&self, id: &str, settled: &mut SettledLayers) -> io::Result<bool> {
        if self.is_empty()? {
            return Ok(true);
        }
        let mut changes = LayerChanges { layer: self, steps: Vec::new(), conflicts: Vec::new() };
        changes.read(Path::new(""), true)?;
        let LayerChanges { steps, mut conflicts, .. } = changes;
        let failed = settled.left.len();
        let (mut modes, mut replaced) = (Vec::new(), HashSet::new());
        for step in &steps {
            match self.take(step, &mut modes, &mut replaced) {
                Ok(true) => {}
                Ok(false) => conflicts.push(step.path().to_owned()),
                Err(e) => settled.left.push((self.folder.join(step.path()), e.to_string())),
            }
        }
        // The innermost first: a folder may be closed then.
        for (inner, mode) in modes.iter().rev() {
            if let Err(e) = actum_sandbox::set_mode_beneath(&self.folder, inner, *mode) {
                settled.left.push((self.folder.join(inner), e.to_string()));
            }
        }
        for path in conflicts {
            let now = match self.is_in_upper(&path) {
                true => Some(self.move_aside(&path, id, settled.conflicts.len(), "conflict")?),
                false => None,
            };
            settled.conflicts.push((self.folder.join(&path), now));
        }
        Ok(settled.left.len() == failed)
    }

    fn put_obeyed_aside(&self, id: &str, settled: &mut SettledLayers) -> io::Result<()> {
        // When a file is put aside, the file below it is seen again: it may be a link to what the command made.
        for _ in 0..LOOKS_MAX {
            let looked = self.look()?;
            settled.is_partial |= looked.is_partial;
            let before = settled.taken.len();
            self.put_aside(&looked.files, id, &mut settled.taken)?;
            self.put_indexes_aside(&looked.indexes, id, &mut settled.taken)?;
            if settled.taken.len() == before {
                return Ok(());
            }
        }
        Err(io::Error::other("files that other programs obey keep appearing in it; nothing of it was put in place"))
    }

    /// Looks for obeyed files through the layer, in a process that has it mounted.
    fn look(&self) -> io::Result<ObeyedPaths> {
        let layers = Layers {
            lowers: vec![self.folder.clone()],
            upper: self.upper(),
            work: self.work(),
            at: self.folder.clone(),
            name: "actum-sandbox".to_owned(),
            inner: Vec::new(),
        };
        let program =
            [std::env::current_exe()?.into_os_string(), LOOK.into(), OsString::from(serde_json::to_string(&layers)?)];
        let mut command = actum_sandbox::command(&View::Folder(self.own.clone()), Path::new(""), &program)?;
        let ended = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
        let failed = || io::Error::other(format!("cannot look through the layer: {}", ended.stderr.escape_ascii()));
        if !ended.status.success() {
            return Err(failed());
        }
        serde_json::from_slice(&ended.stdout).map_err(|_| failed())
    }

    /// Whether the command has made or changed what is at a path of the folder.
    fn is_changed(&self, path: &Path) -> bool {
        let Ok(inner) = path.strip_prefix(&self.folder) else { return false };
        let upper = self.upper().join(inner);
        match fs::symlink_metadata(&upper) {
            Ok(found) if found.is_dir() => self.is_new_folder(&upper, path),
            Ok(found) => !is_whiteout(&found),
            Err(_) => false,
        }
    }

    /// Whether the command has made a folder of the layer, and not only changed what was in it. A folder of the same name may
    /// have been made in its place meanwhile.
    fn is_new_folder(&self, upper: &Path, place: &Path) -> bool {
        if is_opaque(upper) || !is_dir(place) {
            return true;
        }
        let born = fs::symlink_metadata(place).and_then(|found| found.created());
        match born.ok().and_then(|born| born.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            Some(born) => {
                let made = (u64::try_from(self.since.0).unwrap_or(0), u32::try_from(self.since.1).unwrap_or(0));
                (born.as_secs(), born.subsec_nanos()) > made
            }
            // Without a time of birth: the kernel notes on a copied folder what it was copied from.
            None => rustix::fs::lgetxattr(upper, ORIGIN, &mut [0; 256]).is_err(),
        }
    }

    fn is_in_upper(&self, inner: &Path) -> bool {
        fs::symlink_metadata(self.upper().join(inner)).is_ok_and(|found| !is_whiteout(&found))
    }

    fn put_aside(&self, obeyed: &[ObeyedPath], id: &str, taken: &mut Vec<Taken>) -> io::Result<()> {
        let own = self.folder.join(".actum");
        for one in obeyed {
            let (path, end) = (Path::new(&one.path), one.end.as_deref().map(Path::new));
            // An unchanged link may lead to a file that the command made.
            let links = one.links.iter().map(PathBuf::as_path);
            let made = [Some(path), end].into_iter().flatten().chain(links).find(|path| self.is_changed(path));
            let Some(path) = made.filter(|path| !path.starts_with(&own)) else { continue };
            // A folder that has gone already took what lies in it along.
            if fs::symlink_metadata(self.upper().join(path.strip_prefix(&self.folder).unwrap_or(path))).is_err() {
                continue;
            }
            let inner = path.strip_prefix(&self.folder).unwrap_or(path);
            let now = self.move_aside(inner, id, taken.len(), "aside")?;
            taken.push(Taken { path: path.to_owned(), now: Some(now) });
        }
        Ok(())
    }

    fn put_indexes_aside(&self, indexes: &[OsString], id: &str, taken: &mut Vec<Taken>) -> io::Result<()> {
        for path in indexes.iter().map(Path::new).filter(|path| self.is_changed(path)) {
            let inner = path.strip_prefix(&self.folder).unwrap_or(path);
            let now = self.move_aside(inner, id, taken.len(), "aside")?;
            taken.push(Taken { path: path.to_owned(), now: Some(now) });
        }
        Ok(())
    }

    /// Moves a file or folder of the layer into a new folder, under a name that no program obeys.
    fn move_aside(&self, inner: &Path, id: &str, number: usize, kind: &str) -> io::Result<PathBuf> {
        let folder = actum_sandbox::make_beneath(&self.folder, &format!(".actum-{kind}-{id}-{number}"))?;
        let place = folder.join(protect::name_aside(inner).unwrap_or_default());
        actum_sandbox::move_beneath(&self.folder, &self.upper().join(inner), &place)?;
        protect::disarm(&self.folder, &place);
        Ok(place)
    }

    /// Takes a step. Returns false if the place was changed meanwhile. `modes`: what folders get at the end. `replaced`: files of
    /// which a name was removed here, whose other names are not changed by that.
    fn take(
        &self,
        step: &Step,
        modes: &mut Vec<(PathBuf, u32)>,
        replaced: &mut HashSet<(u64, u64)>,
    ) -> io::Result<bool> {
        let place = self.folder.join(step.path());
        let now = fs::symlink_metadata(&place).ok();
        let id_of = |found: &fs::Metadata| (found.dev(), found.ino());
        let is_newer = |found: &fs::Metadata| self.is_newer(found) && !replaced.contains(&id_of(found));
        match step {
            Step::Folder(inner, mode) => {
                let is_new = self.once_opened(inner, || actum_sandbox::put_folder(&self.folder, inner))?;
                if is_new || now.is_some_and(|now| now.mode() & 0o5777 != mode & 0o5777 && !self.is_newer(&now)) {
                    modes.push((inner.clone(), *mode));
                }
            }
            Step::Remove(inner) => {
                if now.is_none() {
                    return Ok(true);
                }
                if self.is_any_newer(&place, &is_newer)? {
                    return Ok(false);
                }
                replaced.extend(now.iter().map(id_of));
                self.once_opened(inner, || actum_sandbox::remove_all_beneath(&self.folder, inner))?;
            }
            Step::Move(inner, state) => {
                if now.as_ref().is_some_and(is_newer) {
                    return Ok(false);
                }
                let from = self.upper().join(inner);
                for mark in MARKS {
                    let _ = rustix::fs::lremovexattr(&from, mark);
                }
                replaced.extend(now.iter().map(id_of));
                let put = || actum_sandbox::put_in_place(&self.upper(), &self.folder, inner);
                // What was in the place is in the layer then. An edit of the last moment puts it back.
                if !self.once_opened(inner, put)? {
                    return Ok(true);
                }
                if fs::symlink_metadata(&from).ok().map(|found| FileState::of(&found)) != *state {
                    actum_sandbox::put_in_place(&self.upper(), &self.folder, inner)?;
                    return Ok(false);
                }
                actum_sandbox::remove_all_beneath(&self.upper(), inner)?;
            }
        }
        Ok(true)
    }

    /// Does something with a path, and once more with its folder opened: the command may have closed it, as it was before.
    fn once_opened<T>(&self, inner: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match act() {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                let above = self.folder.join(inner.parent().unwrap_or(Path::new("")));
                let mode = fs::symlink_metadata(&above)?.mode() & 0o7777;
                actum_sandbox::open_up(&self.folder, &above)?;
                let done = act();
                let above = above.strip_prefix(&self.folder).unwrap_or(Path::new(""));
                actum_sandbox::set_mode_beneath(&self.folder, above, mode)?;
                done
            }
            done => done,
        }
    }

    fn is_any_newer(&self, place: &Path, is_newer: &dyn Fn(&fs::Metadata) -> bool) -> io::Result<bool> {
        let mut waiting = vec![place.to_owned()];
        while let Some(path) = waiting.pop() {
            let found = fs::symlink_metadata(&path)?;
            if is_newer(&found) {
                return Ok(true);
            }
            if found.is_dir() {
                for entry in fs::read_dir(&path)? {
                    waiting.push(entry?.path());
                }
            }
        }
        Ok(false)
    }

    fn is_newer(&self, found: &fs::Metadata) -> bool {
        (found.ctime(), found.ctime_nsec()) > self.since
    }

    fn remove(&self) {
        remove_layer(&self.own);
        if let Some(place) = self.own.parent() {
            let _ = fs::remove_dir(place);
        }
        let actum = self.folder.join(".actum");
        let is_made = actum.join(MADE_FOR_LAYERS).exists();
        // Another command may use it by now.
        if is_made && fs::read_dir(&actum).is_ok_and(|entries| entries.count() == 2) {
            let aside = self.folder.join(format!(".actum-{}", std::process::id()));
            // In one step: another command finds all of it or nothing.
            if fs::rename(&actum, &aside).is_ok() {
                let _ = fs::remove_file(aside.join(MADE_FOR_LAYERS));
                let _ = fs::remove_file(aside.join(".gitignore"));
                if fs::remove_dir(&aside).is_err() {
                    let _ = fs::rename(&aside, &actum);
                }
            }
        }
    }
}

/// Makes the folder of a layer, under a name of its own until it is locked. Others may remove what they no longer need
/// meanwhile.
fn make_place(folder: &Path, id: &str) -> io::Result<(PathBuf, PathBuf)> {
    let actum = folder.join(".actum");
    let place = actum.join(PLACE);
    let aside = place.join(format!(".{id}"));
    let make = |path: &Path| match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    let mut tries = 0;
    loop {
        let is_new = fs::symlink_metadata(&actum).is_err();
        make_own_folder(&actum).map_err(io::Error::other)?;
        let marked = if is_new { fs::write(actum.join(MADE_FOR_LAYERS), "") } else { Ok(()) };
        match marked.and_then(|()| make(&place)).and_then(|()| make(&aside)) {
            Ok(()) => {
                remove_abandoned(&place);
                return Ok((place, aside));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => tries += 1,
            Err(e) => return Err(e),
        }
    }
}

/// A change of the folder. Paths are beneath it.
#[derive(Debug)]
enum Step {
    /// A folder with these rights is there.
    Folder(PathBuf, u32),
    Remove(PathBuf),
    /// With what is in the place so far.
    Move(PathBuf, Option<FileState>),
}

/// Which file it is, and the state of its content. The time of change of its inode is left out: a move sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

impl FileState {
    fn of(found: &fs::Metadata) -> Self {
        let modified = (found.mtime(), found.mtime_nsec());
        Self { file: (found.dev(), found.ino()), bytes: found.len(), modified }
    }
}

impl Step {
    fn path(&self) -> &Path {
        match self {
            Self::Folder(path, _) | Self::Remove(path) | Self::Move(path, _) => path,
        }
    }
}

/// What a layer changes, read from it before anything is moved.
struct LayerChanges<'a> {
    layer: &'a WriteLayer,
    steps: Vec<Step>,
    conflicts: Vec<PathBuf>,
}

impl LayerChanges<'_> {
    /// `is_merged`: the folder shows what is below it.
    fn read(&mut self, inner: &Path, is_merged: bool) -> io::Result<()> {
        let upper = self.layer.upper().join(inner);
        let _ = actum_sandbox::open_up(&self.layer.upper(), &upper);
        for entry in fs::read_dir(&upper)? {
            let entry = entry?;
            // What Actum keeps for itself is no command's to write, at any depth.
            if entry.file_name() == ".actum" {
                continue;
            }
            let (found, inner) = (entry.metadata()?, inner.join(entry.file_name()));
            let place = self.layer.folder.join(&inner);
            let below = if is_merged { fs::symlink_metadata(&place).ok() } else { None };
            if found.is_dir() {
                // A folder that was made in the same place meanwhile keeps what is in it.
                let is_merged = below.as_ref().is_some_and(fs::Metadata::is_dir) && !is_opaque(&entry.path());
                if below.is_some() && !is_merged && !self.replace(&place, &inner)? {
                    continue;
                }
                self.steps.push(Step::Folder(inner.clone(), found.mode() & 0o7777));
                self.read(&inner, is_merged)?;
            } else if is_whiteout(&found) {
                if below.is_some() {
                    self.replace(&place, &inner)?;
                }
            } else if found.is_file() || found.is_symlink() || found.file_type().is_fifo() {
                let state = below.as_ref().filter(|below| !below.is_dir()).map(FileState::of);
                match below {
                    Some(below) if below.is_dir() && !self.replace(&place, &inner)? => continue,
                    Some(below) if !below.is_dir() && self.layer.is_newer(&below) => {
                        self.conflicts.push(inner);
                        continue;
                    }
                    _ => {}
                }
                self.steps.push(Step::Move(inner, state));
            }
        }
        Ok(())
    }

    /// Removes what is in a place, unless it was changed meanwhile. Returns whether it goes.
    fn replace(&mut self, place: &Path, inner: &Path) -> io::Result<bool> {
        let is_kept = self.layer.is_any_newer(place, &|found| self.layer.is_newer(found))?;
        match is_kept {
            true => self.conflicts.push(inner.to_owned()),
            false => self.steps.push(Step::Remove(inner.to_owned())),
        }
        Ok(!is_kept)
    }
}

fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// How an overlay notes that something below is gone.
fn is_whiteout(found: &fs::Metadata) -> bool {
    found.file_type().is_char_device() && found.rdev() == 0
}

/// Whether an overlay shows nothing of what is below a folder.
fn is_opaque(folder: &Path) -> bool {
    let mut value = [0; 4];
    rustix::fs::lgetxattr(folder, OPAQUE, &mut value).is_ok_and(|length| value.get(..length) == Some(b"y"))
}

/// Whether another file system is mounted below a folder: an overlay would not show it.
fn has_mounts_within(folder: &Path) -> bool {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    places.map(unescaped).any(|place| place != folder && place.starts_with(folder))
}

/// A path as the kernel writes it into a table of mounts: some bytes as `\` and three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, more)) = rest.split_first() {
        let code = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.filter(|_| first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = more.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Removes layers whose command was killed together with Actum.
fn remove_abandoned(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let is_named = !entry.file_name().as_bytes().starts_with(b".") && !entry.path().join(SETTLING).exists();
        let lock = File::open(entry.path().join("lock"));
        if is_named && lock.is_ok_and(|lock| lock.try_lock_shared().is_ok()) {
            remove_layer(&entry.path());
        }
    }
}

/// Layers of commands that ended, or were killed together with Actum, before all that they held was in its place.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join(".actum").join(PLACE)).into_iter().flatten().flatten();
    let is_unfinished = |own: &PathBuf| {
        let lock = File::open(own.join("lock"));
        own.join(SETTLING).exists() && lock.is_ok_and(|lock| lock.try_lock_shared().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_unfinished).map(|own| own.join("upper")).collect()
}

fn remove_layer(own: &Path) {
    // The kernel's own folder in it is closed.
    let _ = fs::set_permissions(own.join("work/work"), fs::Permissions::from_mode(0o700));
    let name = own.file_name().unwrap_or(OsStr::new(""));
    let _ = own.parent().map(|place| actum_sandbox::remove_all_beneath(place, Path::new(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_read_as_they_are() {
        assert_eq!(unescaped(br"/a\040b\011\134"), PathBuf::from("/a b\t\\"));
        assert_eq!(unescaped(br"/a\x"), PathBuf::from(r"/a\x"));
    }
}
