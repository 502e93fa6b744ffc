//! Files of a workspace by a path that somebody else has written: opened by the kernel beneath their root, so that nothing
//! on the way can lead out, and only if they are plain files or folders.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

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

/// The program that a cell with this `PATH` would find, opened.
pub fn find_program(name: &str, path: &str, folder: &Path) -> io::Result<(PathBuf, File)> {
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![folder.join(name)]
    } else {
        std::env::split_paths(path).map(|folder| folder.join(name)).collect()
    };
    for candidate in candidates {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Ok(opened) = openat2(CWD, &candidate, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            let file = File::from(opened);
            if file.metadata()?.is_file() && rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_ok() {
                return Ok((candidate, file));
            }
        }
    }
    Err(io::ErrorKind::NotFound.into())
}
