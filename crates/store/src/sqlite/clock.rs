//! The reference clock of the embedded store: the clock of the file system that holds the database.
//!
//! All processes that write to the database share it, even if their own clocks differ. It is read by touching a file beside
//! the database, with system calls that are not subject to a process's own idea of time.

use std::fs::File;
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, fstat, futimens};

#[derive(Debug)]
pub(super) struct FileClock {
    /// None if no file can be made there: then the process's own clock has to do.
    file: Option<File>,
}

impl FileClock {
    /// Opens the clock of the database at `path`.
    pub(super) fn open(path: &Path) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push("-clock");
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(Path::new(&name)).ok();
        Self { file }
    }

    /// A clock without a file, for databases that can only be read.
    pub(super) const fn of_process() -> Self {
        Self { file: None }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.file.as_ref().and_then(touched).unwrap_or_else(Timestamp::now)
    }
}

fn touched(file: &File) -> Option<Timestamp> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(file, &Timestamps { last_access: now, last_modification: now }).ok()?;
    let found = fstat(file).ok()?;
    Timestamp::new(found.st_mtime, i32::try_from(found.st_mtime_nsec).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_clock_follows_the_file_system() {
        let folder = std::env::temp_dir().join(format!("actum-clock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let clock = FileClock::open(&folder.join("store.db"));
        assert!(clock.file.is_some());
        let (first, own, second) = (clock.now(), Timestamp::now(), clock.now());
        assert!(first <= second);
        // The file system's clock ticks a few milliseconds apart.
        assert!(own.duration_since(first).abs() < jiff::SignedDuration::from_secs(60), "{own} {first}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
