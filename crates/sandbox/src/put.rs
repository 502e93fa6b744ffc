//! Looking at a folder and putting things into it while others work there: every name is looked up beneath it by the
//! kernel, and no link is ever followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, mkdirat, openat2, renameat_with, symlinkat, unlinkat,
};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

fn folder(top: &Path, inner: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(top, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if inner.as_os_str().is_empty() { Ok(top) } else { Ok(openat2(&top, inner, flags, Mode::empty(), RESOLVE)?) }
}

/// The folder something lies in, and its name.
fn place<'p>(top: &Path, inner: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
    let is_plain = inner.components().all(|part| matches!(part, Component::Normal(_)));
    let name = inner.file_name().filter(|_| is_plain).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((folder(top, inner.parent().unwrap_or(Path::new("")))?, name))
}

/// Names in a folder beneath `top`, each with what the file system says of it.
pub fn list_beneath(top: &Path, inner: &Path) -> io::Result<Vec<(OsString, std::fs::Metadata)>> {
    let opened = folder(top, inner)?;
    // The folder that is open, whatever has its name by now.
    let entries = std::fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
    Ok(entries.flatten().filter_map(|entry| Some((entry.file_name(), entry.metadata().ok()?))).collect())
}

/// Where a link beneath `top` leads to.
pub fn link_beneath(top: &Path, inner: &Path) -> io::Result<OsString> {
    use std::os::unix::ffi::OsStringExt as _;
    let (above, name) = place(top, inner)?;
    Ok(OsString::from_vec(rustix::fs::readlinkat(&above, name, Vec::new())?.into_bytes()))
}

/// Makes a folder, if it is not there.
pub fn make_folder_beneath(top: &Path, inner: &Path) -> io::Result<()> {
    let (above, name) = place(top, inner)?;
    match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        made => Ok(made?),
    }
}

/// Writes a new file.
pub fn write_beneath(top: &Path, inner: &Path, bytes: &[u8], executable: bool) -> io::Result<()> {
    let (above, name) = place(top, inner)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(if executable { 0o755 } else { 0o644 });
    File::from(openat2(&above, name, flags, mode, RESOLVE)?).write_all(bytes)
}

/// Makes a new link.
pub fn symlink_beneath(top: &Path, inner: &Path, target: &OsStr) -> io::Result<()> {
    let (above, name) = place(top, inner)?;
    Ok(symlinkat(target, &above, name)?)
}

/// Removes a file, a link, or an empty folder.
pub fn remove_beneath(top: &Path, inner: &Path) -> io::Result<()> {
    let (above, name) = place(top, inner)?;
    match unlinkat(&above, name, AtFlags::empty()) {
        Err(rustix::io::Errno::ISDIR) => Ok(unlinkat(&above, name, AtFlags::REMOVEDIR)?),
        removed => Ok(removed?),
    }
}

/// Makes a folder beneath `top` for its owner alone, if it is not there. Returns whether it was made.
pub fn put_folder(top: &Path, inner: &Path) -> io::Result<bool> {
    let (above, name) = place(top, inner)?;
    match mkdirat(&above, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => return Ok(false),
        Err(e) => return Err(e.into()),
    }
    // Root's commands write in the name of the folder's owner.
    if rustix::process::geteuid().is_root() {
        let owner = rustix::fs::fstat(&above)?;
        let (user, group) = (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
        rustix::fs::chownat(&above, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(true)
}

/// Gives a folder beneath `top` these rights, and leaves to it the group that its files get.
pub fn set_mode_beneath(top: &Path, inner: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    let opened = folder(top, inner)?;
    // The open folder, also if another one has its name by now.
    let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let found = std::fs::metadata(&itself)?.mode();
    std::fs::set_permissions(&itself, std::fs::Permissions::from_mode(mode | (found & SET_GROUP)))
}

/// New files in such a folder belong to the folder's group.
const SET_GROUP: u32 = 0o2000;

/// Moves a file or a link beneath `from` to the same path beneath `to`. If something is there, the two are exchanged. Returns
/// whether they were.
pub fn put_in_place(from: &Path, to: &Path, inner: &Path) -> io::Result<bool> {
    let (source, name) = place(from, inner)?;
    let (target, _) = place(to, inner)?;
    // Made in the folder itself, a new file would have got its group. Not every owner may give it that.
    let folder = rustix::fs::fstat(&target)?;
    let is_new = rustix::fs::statat(&target, name, AtFlags::SYMLINK_NOFOLLOW).is_err();
    if is_new && folder.st_mode & SET_GROUP != 0 {
        let group = rustix::fs::Gid::from_raw(folder.st_gid);
        let _ = rustix::fs::chownat(&source, name, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
    }
    match renameat_with(&source, name, &target, name, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::EXIST) => {
            renameat_with(&source, name, &target, name, RenameFlags::EXCHANGE)?;
            Ok(true)
        }
        Err(e) => Err(e.into()),
    }
}

/// Removes what is at a path beneath `top`, a folder with all that is in it.
pub fn remove_all_beneath(top: &Path, inner: &Path) -> io::Result<()> {
    let (above, name) = place(top, inner)?;
    remove_all(&above, name)
}

fn remove_all(above: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(above, name, AtFlags::empty()) {
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        removed => return Ok(removed?),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match openat2(above, name, flags, Mode::empty(), RESOLVE) {
        Err(rustix::io::Errno::ACCESS) => {
            rustix::fs::chmodat(above, name, Mode::from_raw_mode(0o700), AtFlags::empty())?;
            openat2(above, name, flags, Mode::empty(), RESOLVE)?
        }
        opened => opened?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode & 0o7777);
    if !mode.contains(Mode::RWXU) {
        rustix::fs::fchmod(&opened, mode | Mode::RWXU)?;
    }
    for entry in std::fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))? {
        remove_all(&opened, &entry?.file_name())?;
    }
    Ok(unlinkat(above, name, AtFlags::REMOVEDIR)?)
}
