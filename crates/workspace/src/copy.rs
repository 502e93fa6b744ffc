//! A plain copy of a folder, for machines without overlays: ignored files too, so that tools find what they need, but
//! never our own folder. Blocks are shared where the file system can.

use std::cell::Cell;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, fchmod, fstat, ioctl_ficlone, mkdirat, openat, readlinkat, statat, symlinkat,
};
use rustix::io::Errno;

use crate::base::{CopyProgress, PROGRESS_FILES};
use crate::beneath::{FILE, FOLDER, NEW, names};
use crate::error::{Error, Result, at, within};
use crate::path::TreePath;
use crate::tree::DEPTH_MAX;

/// Whether a file in one folder can share its blocks with one in the other; if not, why.
pub fn is_reflink_possible(to: &Path, from: &Path) -> std::result::Result<(), String> {
    let (here, there) = (to.join(".reflink-new"), to.join(".reflink-old"));
    let tried = File::create_new(&there).and_then(|old| {
        (&old).write_all(&[0; 4096])?;
        let new = File::create_new(&here)?;
        ioctl_ficlone(&new, &File::open(&there)?).map_err(io::Error::from)
    });
    let _ = (std::fs::remove_file(&here), std::fs::remove_file(&there));
    tried.map_err(|_| "the file system cannot share blocks between files (btrfs, xfs and bcachefs can)".to_owned())?;
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).map_err(|e| e.to_string());
    match device(to)? == device(from)? {
        true => Ok(()),
        false => Err("the workspace is on another file system than its stages".to_owned()),
    }
}

/// Reports the progress of a copy every so many files.
struct CopyCount<'a> {
    done: Cell<u64>,
    /// As many as there are without ignored ones; the copy may come to more.
    files: u64,
    progress: CopyProgress<'a>,
}

impl CopyCount<'_> {
    fn add(&self) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if done.is_multiple_of(PROGRESS_FILES) {
            (self.progress)(done, self.files.max(done));
        }
    }
}

/// Copies a folder to `to`, which is made. `files`: how many there are about, for the progress.
pub(crate) fn copy_tree(from: &Path, to: &Path, reflink: bool, files: u64, progress: CopyProgress<'_>) -> Result<()> {
    std::fs::create_dir(to).map_err(at("make", to))?;
    let open = |path: &Path| openat(rustix::fs::CWD, path, FOLDER, Mode::empty()).map_err(at("open", path));
    let copy = Copy { reflink, count: CopyCount { done: Cell::new(0), files, progress } };
    progress(0, files);
    copy.folder(&open(from)?, &open(to)?, &TreePath::ROOT, 0)?;
    let done = copy.count.done.get();
    progress(done, done);
    Ok(())
}

struct Copy<'a> {
    reflink: bool,
    count: CopyCount<'a>,
}

impl Copy<'_> {
    fn folder(&self, from: &OwnedFd, to: &OwnedFd, path: &TreePath, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::Refused(format!("{path} is more than {DEPTH_MAX} folders deep")));
        }
        for (name, _) in names(from).map_err(within("list", path))? {
            let inside = path.join(name.as_bytes());
            if name.as_bytes() == b".actum" {
                continue;
            }
            match self.entry(from, to, &name, &inside, depth) {
                // Gone since the folder was listed; or closed to us, and then either ignored or found missing afterwards.
                Err(Error::Io { source, .. })
                    if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn entry(&self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &TreePath, depth: usize) -> Result<()> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(within("look at", path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                mkdirat(to, name, Mode::from_raw_mode(0o700)).map_err(within("make", path))?;
                let open = |fd: &OwnedFd| openat(fd, name, FOLDER, Mode::empty()).map_err(within("open", path));
                let (inner_from, inner_to) = (open(from)?, open(to)?);
                self.folder(&inner_from, &inner_to, path, depth + 1)?;
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700);
                fchmod(&inner_to, mode).map_err(within("set permissions of", path))
            }
            FileType::Symlink => {
                let target = readlinkat(from, name, Vec::new()).map_err(within("read the link", path))?;
                symlinkat(&*target, to, name).map_err(within("make", path))
            }
            FileType::RegularFile => self.file(from, to, name, path),
            // What has no content has no copy. A socket or device that is not ignored has been refused before.
            _ => Ok(()),
        }
    }

    fn file(&self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &TreePath) -> Result<()> {
        let old = openat(from, name, FILE, Mode::empty()).map_err(within("read", path))?;
        let stat = fstat(&old).map_err(within("look at", path))?;
        let new = openat(to, name, NEW, Mode::from_raw_mode(0o600)).map_err(within("make", path))?;
        let cloned = if self.reflink { ioctl_ficlone(&new, &old) } else { Err(Errno::OPNOTSUPP) };
        let new = match cloned {
            Ok(()) => File::from(new),
            Err(e) if self.reflink => return Err(within("share the blocks of", path)(e)),
            Err(_) => {
                let mut new = File::from(new);
                io::copy(&mut File::from(old), &mut new).map_err(within("copy", path))?;
                new
            }
        };
        self.count.add();
        fchmod(&new, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(within("set permissions of", path))
    }
}
