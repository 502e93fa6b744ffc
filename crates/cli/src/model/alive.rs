//! Who asks models outside of a run, and whether he still lives: a file of his own, locked as long as he does. What the dead
//! have reserved need not wait for its deadline.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

fn folder(home: &Path) -> PathBuf {
    home.join("asking")
}

/// Locked while it lives, removed when it ends well.
#[derive(Debug)]
pub(crate) struct Alive {
    path: PathBuf,
    _file: File,
}

impl Alive {
    /// `store`: where what he reserves is on record.
    pub(crate) fn enter(home: &Path, run: &str, store: &str) -> Result<Self, Failure> {
        let folder = folder(home);
        let path = folder.join(run);
        // It gets its name when it is locked: nobody ever sees a living one's file free.
        let aside = folder.join(format!(".{run}"));
        let made = || -> std::io::Result<File> {
            fs::create_dir_all(&folder)?;
            let mut file = File::create(&aside)?;
            file.write_all(store.as_bytes())?;
            file.lock()?;
            fs::rename(&aside, &path)?;
            Ok(file)
        };
        let file = made().map_err(|e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e))?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // Whoever ends well has settled what he began.
        let _ = fs::remove_file(&self.path);
    }
}

/// Those of a store whose file nobody holds any more.
pub(crate) fn gone(home: &Path, store: &str) -> Vec<String> {
    let mut gone = Vec::new();
    for entry in fs::read_dir(folder(home)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_free = File::open(entry.path()).is_ok_and(|file| file.try_lock_shared().is_ok());
        let is_ours = fs::read(entry.path()).is_ok_and(|text| text == store.as_bytes());
        if !name.starts_with('.') && is_free && is_ours {
            gone.push(name);
        }
    }
    gone
}

pub(crate) fn forget(home: &Path, run: &str) {
    let _ = fs::remove_file(folder(home).join(run));
}
