//! Thaw into a folder that does not exist yet or is empty: everything is written aside and gets its name in one step.
//! Bringing a workspace back to a snapshot is another matter (`transaction`).

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat, syncfs};

use crate::beneath::FOLDER;
use crate::crash;
use crate::error::{Error, Result, at, within};
use crate::path::TreePath;
use crate::record::sync_parent;
use crate::transaction::remove_all;
use crate::tree::{self, DEPTH_MAX, Kind};

/// Restores a snapshot to `target`, which must be missing or empty.
pub fn thaw_new(blobs: &dyn Blobs, id: Digest, target: &Path) -> Result<()> {
    let refused = |why: &str| Error::Refused(format!("{} {why}", target.display()));
    match fs::read_dir(target).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => return Err(refused("is not empty")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(at("look into", target)(e)),
    }
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(at("make", parent))?;
    let name = target.file_name().ok_or_else(|| refused("is not a folder that can be made"))?;
    remove_dead(parent)?;
    let mut aside = std::ffi::OsString::from(format!("{ASIDE}{}-", std::process::id()));
    aside.push(name);
    let aside = parent.join(aside);
    remove_all(&aside)?;
    let written = write(blobs, id, &aside).and_then(|()| {
        crash::point("thaw.written");
        // Takes the place of an empty folder too.
        fs::rename(&aside, target).map_err(at("make", target))
    });
    if written.is_err() {
        let _ = remove_all(&aside);
    }
    written?;
    crash::point("thaw.named");
    sync_parent(target)
}

const ASIDE: &str = ".actum-thaw-";

/// What a thaw that died has left beside its target. The name says whose it was.
fn remove_dead(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent).map_err(at("list", parent))?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(ASIDE)).and_then(|rest| rest.split('-').next());
        if let Some(owner) = owner.and_then(|owner| owner.parse::<u32>().ok())
            && owner != std::process::id()
            && !PathBuf::from(format!("/proc/{owner}")).exists()
        {
            remove_all(&entry.path())?;
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
    for (name, node) in tree::load(blobs, id)? {
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
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = openat(folder, name, flags, Mode::from_raw_mode(mode)).map_err(within("make", &inside))?;
                blobs.copy(node.digest, &mut File::from(fd))?;
            }
        }
    }
    Ok(())
}
