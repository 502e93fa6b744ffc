//! Thaw into a folder that does not exist yet or is empty: everything is written aside and gets its name in one step.
//! Bringing a workspace back to a snapshot is another matter (`transaction`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use rustix::fs::{Mode, mkdirat, openat, symlinkat, syncfs};

use crate::beneath::{FOLDER, NEW};
use crate::crash;
use crate::error::{Error, Result, at, within};
use crate::path::TreePath;
use crate::record::{listed, sync_parent, unique};
use crate::transaction::remove_all;
use crate::tree::{self, DEPTH_MAX, Kind};

/// Restores a snapshot to `target`, which must be missing or empty. `home` remembers what is being written where.
pub fn thaw_new(home: &Path, blobs: &dyn Blobs, id: Digest, target: &Path) -> Result<()> {
    let refused = |why: &str| Error::Refused(format!("{} {why}", target.display()));
    match fs::read_dir(target).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => return Err(refused("is not empty")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(at("look into", target)(e)),
    }
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(at("make", parent))?;
    let parent = fs::canonicalize(parent).map_err(at("find", parent))?;
    let name = target.file_name().ok_or_else(|| refused("is not a folder that can be made"))?;
    let mut aside = OsString::from(format!(".actum-thaw-{}-", unique()));
    aside.push(name);
    let aside = parent.join(aside);
    let note = Note::leave(home, &aside)?;
    let written = write(blobs, id, &aside).and_then(|()| {
        crash::point("thaw.written");
        // An empty folder that is there keeps its permissions.
        if let Ok(target) = fs::metadata(target) {
            fs::set_permissions(&aside, target.permissions()).map_err(at("set permissions of", &aside))?;
        }
        // Takes the place of an empty folder too.
        fs::rename(&aside, parent.join(name)).map_err(at("make", target))
    });
    if written.is_err() {
        let _ = remove_all(&aside);
    }
    crash::point("thaw.named");
    note.take_away()?;
    written?;
    sync_parent(&aside)
}

/// A note that a folder is being written aside; locked as long as its writer lives.
struct Note {
    path: PathBuf,
    _lock: File,
}

fn notes(home: &Path) -> PathBuf {
    home.join("workspace/thaws")
}

impl Note {
    fn leave(home: &Path, aside: &Path) -> Result<Self> {
        let folder = notes(home);
        fs::create_dir_all(&folder).map_err(at("make", &folder))?;
        let path = folder.join(Digest::blake3(aside.as_os_str().as_bytes()).to_hex());
        let mut lock = File::create(&path).map_err(at("make", &path))?;
        lock.lock().map_err(at("lock", &path))?;
        let written = lock.write_all(aside.as_os_str().as_bytes()).and_then(|()| lock.sync_all());
        written.map_err(at("write", &path))?;
        sync_parent(&path)?;
        Ok(Self { path, _lock: lock })
    }

    fn take_away(self) -> Result<()> {
        match fs::remove_file(&self.path) {
            // Somebody took us for dead before the lock was ours: no harm, the work is done.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(at("remove", &self.path)),
        }
    }
}

/// Removes what writers that died have left aside.
pub(crate) fn remove_dead(home: &Path) -> Result<()> {
    for path in listed(&notes(home))? {
        let Ok(mut note) = File::open(&path) else { continue };
        if note.try_lock().is_err() {
            continue;
        }
        let mut aside = Vec::new();
        note.read_to_end(&mut aside).map_err(at("read", &path))?;
        let aside = PathBuf::from(OsString::from_vec(aside));
        // A note cut off by the crash names nothing that could have been written yet.
        if aside.file_name().is_some_and(|name| name.as_bytes().starts_with(b".actum-thaw-")) {
            remove_all(&aside)?;
        }
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(at("remove", &path)(e)),
            _ => {}
        }
    }
    Ok(())
}

fn write(blobs: &dyn Blobs, id: Digest, folder: &Path) -> Result<()> {
    fs::create_dir(folder).map_err(at("make", folder))?;
    let fd = openat(rustix::fs::CWD, folder, FOLDER, Mode::empty()).map_err(at("open", folder))?;
    fill(blobs, id, &fd, &TreePath::ROOT, 0)?;
    syncfs(&fd).map_err(at("sync", folder))
}

fn fill(blobs: &dyn Blobs, id: Digest, folder: &OwnedFd, path: &TreePath, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::Refused(format!("{path} is more than {DEPTH_MAX} folders deep")));
    }
    let nodes = tree::load(blobs, id)?;
    blobs.fetch(&nodes.values().map(|node| node.digest).collect::<Vec<_>>())?;
    for (name, node) in nodes {
        let (name, inside) = (name.as_slice(), path.join(&name));
        match node.kind {
            Kind::Folder => {
                mkdirat(folder, name, Mode::from_raw_mode(0o777)).map_err(within("make", &inside))?;
                let fd = openat(folder, name, FOLDER, Mode::empty()).map_err(within("open", &inside))?;
                fill(blobs, node.digest, &fd, &inside, depth + 1)?;
            }
            Kind::Symlink => {
                let target = blobs.read(node.digest)?;
                symlinkat(target.as_slice(), folder, name).map_err(within("make", &inside))?;
            }
            Kind::File | Kind::Executable => {
                let mode = if node.kind == Kind::Executable { 0o777 } else { 0o666 };
                let fd = openat(folder, name, NEW, Mode::from_raw_mode(mode)).map_err(within("make", &inside))?;
                blobs.copy(node.digest, &mut File::from(fd))?;
            }
        }
    }
    Ok(())
}
