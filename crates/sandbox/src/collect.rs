//! Files of a workspace by a path that somebody else has written: opened by the kernel beneath their root, so that nothing
//! on the way can lead out, and only if they are plain files or folders.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use actum_contract::folder::FolderId;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// Opens a path beneath a root. Links are followed as long as they stay beneath it.
pub fn open_beneath(root: &Path, path: &Path) -> io::Result<File> {
    let folder = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let inner = path.strip_prefix(root).unwrap_or(path);
    let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
    // Not to wait for somebody at the other end of a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(&folder, inner, flags, Mode::empty(), resolve)?;
    let kind = FileType::from_raw_mode(fstat(&opened)?.st_mode);
    if kind.is_file() || kind.is_dir() {
        Ok(File::from(opened))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "is neither a file nor a folder"))
    }
}

/// Opens a path beneath a folder without following any link, neither to the folder nor within it. Fails if the folder is not
/// the `expected` one.
pub fn open_unlinked(root: &Path, inner: &Path, expected: Option<FolderId>) -> io::Result<File> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat2(CWD, root, flags, Mode::empty(), resolve)?;
    let stat = fstat(&folder)?;
    if expected.is_some_and(|expected| expected != FolderId { device: stat.st_dev, inode: stat.st_ino }) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is another folder than was agreed on"));
    }
    let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = openat2(&folder, inner, flags, Mode::empty(), resolve | ResolveFlags::BENEATH)?;
    match FileType::from_raw_mode(fstat(&opened)?.st_mode) {
        FileType::RegularFile | FileType::Directory => Ok(File::from(opened)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "is neither a file nor a folder")),
    }
}

/// Where an open file really is.
pub fn path_of(file: &File) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// All of a plain file, if it is no longer than `room`, and where it really is may be looked at.
pub fn read_beneath(root: &Path, path: &Path, room: u64, may: &dyn Fn(&Path) -> bool) -> io::Result<Vec<u8>> {
    let file = open_beneath(root, path)?;
    if !may(&path_of(&file)?) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "was not the program's to see"));
    }
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is no plain file"));
    }
    let mut bytes = Vec::new();
    file.take(room + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > room {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("is longer than the {room} bytes that are left"),
        ));
    }
    Ok(bytes)
}

/// A folder on the way, opened by itself: no link can lead anywhere.
fn folder_beneath(top: &Path, inner: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(top, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if inner.as_os_str().is_empty() {
        return Ok(top);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(&top, inner, flags, Mode::empty(), resolve)?)
}

/// Gives the owner all rights to a folder beneath `top`, which a program has closed against its owner.
pub fn open_up(top: &Path, folder: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::PermissionsExt as _;
    let opened = folder_beneath(top, folder.strip_prefix(top).unwrap_or(folder))?;
    // The folder that is open, whatever has its name by now.
    let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let mode = std::fs::metadata(&itself)?.permissions().mode() & 0o7777;
    std::fs::set_permissions(itself, std::fs::Permissions::from_mode(mode | 0o700))
}

/// Moves something beneath `top` to another place beneath it, whatever its rights are.
pub fn move_beneath(top: &Path, from: &Path, to: &Path) -> io::Result<()> {
    let inner = |path: &Path| path.strip_prefix(top).map(Path::to_owned).map_err(|_| io::ErrorKind::InvalidInput);
    let (from, to) = (inner(from)?, inner(to)?);
    let parts = |path: &Path| -> io::Result<(OwnedFd, OsString)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        Ok((folder_beneath(top, path.parent().unwrap_or(Path::new("")))?, name))
    };
    let (source, name) = parts(&from)?;
    let (target, new) = parts(&to)?;
    let once = || rustix::fs::renameat(&source, &name, &target, &new);
    if once().is_err() {
        let _ = open_up(top, &top.join(from.parent().unwrap_or(Path::new(""))));
        let _ = open_up(top, &top.join(&from));
        once()?;
    }
    Ok(())
}

/// Makes a folder beneath `top` that was not there, for the owner alone.
pub fn make_beneath(top: &Path, name: &str) -> io::Result<PathBuf> {
    let opened = folder_beneath(top, Path::new(""))?;
    let make = || rustix::fs::mkdirat(&opened, name, Mode::from_raw_mode(0o700));
    if make().is_err() {
        let _ = open_up(top, top);
        make()?;
    }
    Ok(top.join(name))
}

/// The file that is run under a name, as a shell looks for it: in the folders of `path`, or from `folder` if the name has a
/// slash in it. Asked on the machine and once more in the cell, which sees the same paths.
pub(crate) fn look_up(name: &OsStr, path: &OsStr, folder: &Path) -> io::Result<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Ok(folder.join(name));
    }
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for candidate in std::env::split_paths(path).map(|place| Path::new("/").join(place).join(name)) {
        if candidate.is_file() {
            match rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK) {
                Ok(()) => return Ok(candidate),
                Err(e) => error = e.into(),
            }
        }
    }
    Err(error)
}

/// The program that a cell with this `PATH` would find, opened.
pub fn find_program(name: &OsStr, path: &OsStr, folder: &Path) -> io::Result<(PathBuf, File)> {
    let place = look_up(name, path, folder)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(openat2(CWD, &place, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?);
    if file.metadata()?.is_file() { Ok((place, file)) } else { Err(io::ErrorKind::InvalidInput.into()) }
}
