//! What a command in `actum sandbox` writes goes into a layer over each folder that it may change. When the command has
//! ended, files that other programs obey are put aside, and the rest is moved to its place. So no program of the machine
//! ever finds a file in its place that was not looked at, and a file that somebody else has changed meanwhile is kept.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use actum_sandbox::{Access, Layers, Source, View};
use actum_workspace::make_own_folder;
use serde::{Deserialize, Serialize};

use crate::cell::Planned;
use crate::failure::Failure;
use crate::protect::{self, Taken};

/// The first argument of the process that looks for obeyed files through a layer.
const LOOK: &str = "--actum-look-through-layer";

/// Where layers are in a folder's own `.actum`.
const PLACE: &str = "sandbox";

/// How often a layer is looked through for what has come to light. Each time something less is in it.
const LOOKS_MAX: usize = 16;

/// Says that a folder's `.actum` was made for layers only, and goes with the last of them.
const MADE_FOR_LAYERS: &str = "made-for-layers";
const TRIES_MAX: usize = 100;

/// Marks of the kernel's, which mean something to overlays only.
const OPAQUE: &str = "user.overlay.opaque";
const MARKS: [&str; 4] = [OPAQUE, "user.overlay.origin", "user.overlay.impure", "user.overlay.nlink"];

/// The layers of one command.
#[derive(Debug, Default)]
pub(crate) struct WriteLayers {
    layers: Vec<WriteLayer>,
    /// Granted folders that are written to directly.
    pub direct: Vec<PathBuf>,
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
pub(crate) struct Settled {
    pub taken: Vec<Taken>,
    /// There were more files than are looked at.
    pub is_partial: bool,
    /// Paths that somebody else changed meanwhile, and where the command's version is now.
    pub conflicts: Vec<(PathBuf, Option<PathBuf>)>,
    /// What could not be put in place, and why.
    pub left: Vec<(PathBuf, String)>,
}

/// An obeyed file that is seen through a layer.
#[derive(Debug, Serialize, Deserialize)]
struct Obeyed {
    path: OsString,
    /// Where it leads, if it is a link.
    end: Option<OsString>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Looked {
    obeyed: Vec<Obeyed>,
    is_partial: bool,
}

/// If this process was started to look through a layer, does that and returns the exit code.
pub(crate) fn serve(arguments: &[OsString]) -> Option<u8> {
    let [_, mark, folder] = arguments else { return None };
    if mark != LOOK {
        return None;
    }
    let seen = protect::look(std::slice::from_ref(&PathBuf::from(folder)));
    let obeyed = seen.paths().map(|(path, end)| Obeyed { path: path.into(), end: end.map(Into::into) }).collect();
    let looked = Looked { obeyed, is_partial: seen.is_partial };
    let written = serde_json::to_writer(io::stdout().lock(), &looked);
    Some(u8::from(written.is_err()))
}

impl WriteLayers {
    /// None: folders are written to directly, because the user wants that.
    pub(crate) fn none(direct: Vec<PathBuf>) -> Self {
        Self { direct, ..Self::default() }
    }

    /// Puts a layer over each folder that the cell may change. Where another file system is mounted within, which a layer
    /// would not show, the folder stays as it is.
    pub(crate) fn put_over(planned: &mut Planned, id: &str) -> Result<Self, Failure> {
        let mut layers = Self::default();
        let folders = planned.writable.iter().filter(|path| path.is_dir());
        let outermost: Vec<PathBuf> = folders
            .filter(|path| !planned.writable.iter().any(|other| other != *path && path.starts_with(other)))
            .cloned()
            .collect();
        for folder in outermost {
            if has_mounts_within(&folder) {
                layers.direct.push(folder);
                continue;
            }
            let layer = WriteLayer::make(&folder, id)
                .map_err(|e| Failure::of_io(format!("cannot make a layer over {}: {e}", folder.display()), &e))?;
            layer.show(planned);
            layers.layers.push(layer);
        }
        Ok(layers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Puts what was written in place. With `keep_obeyed`, also what other programs obey.
    pub(crate) fn settle(self, keep_obeyed: bool, id: &str) -> Settled {
        let mut settled = Settled::default();
        for layer in self.layers {
            match layer.settle(keep_obeyed, id, &mut settled) {
                Ok(true) => layer.remove(),
                Ok(false) => {}
                Err(e) => settled.left.push((layer.upper(), e.to_string())),
            }
        }
        settled
    }
}

impl WriteLayer {
    fn make(folder: &Path, id: &str) -> io::Result<Self> {
        let found = fs::metadata(folder)?;
        let (place, aside) = make_place(folder, id)?;
        let lock = File::create(aside.join("lock"))?;
        lock.lock()?;
        let own = place.join(id);
        fs::rename(&aside, &own)?;
        let (upper, work) = (own.join("upper"), own.join("work"));
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        // Root's commands write in the name of the folder's owner.
        if actum_sandbox::is_root() {
            for path in [&own, &upper, &work] {
                std::os::unix::fs::lchown(path, Some(found.uid()), Some(found.gid()))?;
            }
        }
        // The rights of the layer are those of the folder, but for the group that new files would get: nobody in the cell is in
        // it, and what belongs to it could not be counted.
        if !actum_sandbox::is_root() {
            std::os::unix::fs::lchown(&upper, None, Some(rustix::process::getegid().as_raw()))?;
        }
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

    fn settle(&self, keep_obeyed: bool, id: &str, settled: &mut Settled) -> io::Result<bool> {
        if fs::read_dir(self.upper())?.next().is_none() {
            return Ok(true);
        }
        if !keep_obeyed {
            self.put_obeyed_aside(id, settled)?;
        }
        let mut changes = Changes { layer: self, steps: Vec::new(), conflicts: Vec::new() };
        changes.read(Path::new(""), true)?;
        let Changes { steps, conflicts, .. } = changes;
        for path in conflicts {
            let now = self.is_in_upper(&path).then(|| self.move_aside(&path, id, settled.conflicts.len(), "conflict"));
            settled.conflicts.push((self.folder.join(&path), now.and_then(Result::ok)));
        }
        let failed = settled.left.len();
        for step in &steps {
            if let Err(e) = self.take(step) {
                settled.left.push((self.folder.join(step.path()), e.to_string()));
            }
        }
        Ok(settled.left.len() == failed)
    }

    fn put_obeyed_aside(&self, id: &str, settled: &mut Settled) -> io::Result<()> {
        // What comes to light when something is taken away may be a link to what the command made.
        for _ in 0..LOOKS_MAX {
            let looked = self.look()?;
            settled.is_partial |= looked.is_partial;
            let before = settled.taken.len();
            self.put_aside(&looked.obeyed, id, &mut settled.taken)?;
            self.put_index_aside(&looked.obeyed, id, &mut settled.taken)?;
            if settled.taken.len() == before {
                return Ok(());
            }
        }
        Err(io::Error::other("files that other programs obey keep appearing in it; nothing of it was put in place"))
    }

    /// Looks for obeyed files through the layer, in a process that has it mounted.
    fn look(&self) -> io::Result<Looked> {
        let layers = Layers {
            lowers: vec![self.folder.clone()],
            upper: self.upper(),
            work: self.work(),
            at: self.folder.clone(),
            name: "actum-sandbox".to_owned(),
            inner: Vec::new(),
        };
        let program = [std::env::current_exe()?.into_os_string(), LOOK.into(), self.folder.clone().into()];
        let mut command = actum_sandbox::command(&View::Overlay(layers), Path::new(""), &program)?;
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
            Ok(found) if found.is_dir() => is_opaque(&upper) || !is_dir(path),
            Ok(found) => !is_whiteout(&found),
            Err(_) => false,
        }
    }

    fn is_in_upper(&self, inner: &Path) -> bool {
        fs::symlink_metadata(self.upper().join(inner)).is_ok_and(|found| !is_whiteout(&found))
    }

    fn put_aside(&self, obeyed: &[Obeyed], id: &str, taken: &mut Vec<Taken>) -> io::Result<()> {
        let own = self.folder.join(".actum");
        for one in obeyed {
            let (path, end) = (Path::new(&one.path), one.end.as_deref().map(Path::new));
            // A link that is as it was may lead to something that was put there.
            let made = [Some(path), end].into_iter().flatten().find(|path| self.is_changed(path));
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

    /// Puts a new index of git aside by which git would write into a repository's own folder: `git checkout .` follows it.
    fn put_index_aside(&self, obeyed: &[Obeyed], id: &str, taken: &mut Vec<Taken>) -> io::Result<()> {
        let paths = obeyed.iter().map(|one| Path::new(&one.path));
        for git in paths.filter(|path| path.file_name().is_some_and(|name| name.eq_ignore_ascii_case(".git"))) {
            let inner = git.strip_prefix(&self.folder).unwrap_or(git).join("index");
            let upper = self.upper().join(&inner);
            if self.is_in_upper(&inner) && !is_harmless_index(&fs::read(&upper)?) {
                let now = self.move_aside(&inner, id, taken.len(), "aside")?;
                taken.push(Taken { path: self.folder.join(inner), now: Some(now) });
            }
        }
        Ok(())
    }

    /// Moves something out of the layer into a folder that nobody obeys.
    fn move_aside(&self, inner: &Path, id: &str, number: usize, kind: &str) -> io::Result<PathBuf> {
        let folder = actum_sandbox::make_beneath(&self.folder, &format!(".actum-{kind}-{id}-{number}"))?;
        let place = folder.join(protect::name_aside(inner).unwrap_or_default());
        actum_sandbox::move_beneath(&self.folder, &self.upper().join(inner), &place)?;
        protect::disarm(&self.folder, &place);
        Ok(place)
    }

    fn take(&self, step: &Step) -> io::Result<()> {
        match step {
            Step::Folder(inner, mode) => actum_sandbox::put_folder(&self.folder, inner, *mode),
            Step::Remove(inner) => actum_sandbox::remove_all_beneath(&self.folder, inner),
            Step::Move(inner) => {
                let from = self.upper().join(inner);
                for mark in MARKS {
                    let _ = rustix::fs::lremovexattr(&from, mark);
                }
                actum_sandbox::put_in_place(&self.upper(), &self.folder, inner)
            }
        }
    }

    fn remove(&self) {
        remove_layer(&self.own);
        if let Some(place) = self.own.parent() {
            let _ = fs::remove_dir(place);
        }
        let actum = self.folder.join(".actum");
        let is_made = actum.join(MADE_FOR_LAYERS).exists();
        // Somebody else may use it by now.
        if is_made && fs::read_dir(&actum).is_ok_and(|entries| entries.count() == 2) {
            let aside = self.folder.join(format!(".actum-{}", std::process::id()));
            // In one step: whoever makes a layer finds all of it or nothing.
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
    Move(PathBuf),
}

impl Step {
    fn path(&self) -> &Path {
        match self {
            Self::Folder(path, _) | Self::Remove(path) | Self::Move(path) => path,
        }
    }
}

/// What a layer changes, read from it before anything is moved.
struct Changes<'a> {
    layer: &'a WriteLayer,
    steps: Vec<Step>,
    conflicts: Vec<PathBuf>,
}

impl Changes<'_> {
    /// `is_merged`: the folder shows what is below it.
    fn read(&mut self, inner: &Path, is_merged: bool) -> io::Result<()> {
        let upper = self.layer.upper().join(inner);
        let _ = actum_sandbox::open_up(&self.layer.upper(), &upper);
        for entry in fs::read_dir(&upper)? {
            let entry = entry?;
            let (found, inner) = (entry.metadata()?, inner.join(entry.file_name()));
            let place = self.layer.folder.join(&inner);
            let below = if is_merged { fs::symlink_metadata(&place).ok() } else { None };
            if found.is_dir() {
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
                match below {
                    Some(below) if below.is_dir() && !self.replace(&place, &inner)? => continue,
                    Some(below) if !below.is_dir() && self.is_newer(&below) => {
                        self.conflicts.push(inner);
                        continue;
                    }
                    _ => {}
                }
                self.steps.push(Step::Move(inner));
            }
        }
        Ok(())
    }

    /// Removes what is in a place, unless somebody has changed it meanwhile. Returns whether it goes.
    fn replace(&mut self, place: &Path, inner: &Path) -> io::Result<bool> {
        let is_kept = self.is_any_newer(place)?;
        match is_kept {
            true => self.conflicts.push(inner.to_owned()),
            false => self.steps.push(Step::Remove(inner.to_owned())),
        }
        Ok(!is_kept)
    }

    fn is_any_newer(&self, place: &Path) -> io::Result<bool> {
        let mut waiting = vec![place.to_owned()];
        while let Some(path) = waiting.pop() {
            let found = fs::symlink_metadata(&path)?;
            if self.is_newer(&found) {
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
        (found.ctime(), found.ctime_nsec()) > self.layer.since
    }
}

/// Whether no entry of an index of git lies in a repository's own folder. An index whose names are compressed cannot be looked
/// through; git makes one only if it is told to.
fn is_harmless_index(bytes: &[u8]) -> bool {
    const INNER: &[u8] = b".git/";
    let has_plain_names = bytes.get(4..8).is_some_and(|version| version == [0, 0, 0, 2] || version == [0, 0, 0, 3]);
    has_plain_names && !bytes.windows(INNER.len()).any(|part| part.eq_ignore_ascii_case(INNER))
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
        let is_named = !entry.file_name().as_bytes().starts_with(b".");
        let lock = File::open(entry.path().join("lock"));
        if is_named && lock.is_ok_and(|lock| lock.try_lock_shared().is_ok()) {
            remove_layer(&entry.path());
        }
    }
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
