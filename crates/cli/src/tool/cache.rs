//! What was found out before and still holds. Four kinds, as long as each may be believed: what adapters of servers look
//! like (a day, until the version changes), what is known of tools (an hour, until somebody refreshes), results (as long as
//! the session, while nothing they were made of has changed), golden outputs (for good, see `golden`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use actum_contract::canon;
use actum_contract::digest::Digest;
use serde_json::{Value, json};

use crate::workspace::new_id;
/// How long what servers say of their tools is believed, and what is known of programs.
const SCHEMA_FOR: Duration = Duration::from_secs(24 * 3_600);
const METADATA_FOR: Duration = Duration::from_secs(3_600);

/// Sessions of the command line are known by name only, and nobody says when one ends.
const RESULT_FOR: Duration = Duration::from_secs(24 * 3_600);

/// Results kept in memory, and the largest that is.
const RESULTS_MAX: usize = 1_000;
const RESULT_BYTES_MAX: usize = 4 << 20;

/// The same of those that are kept in files.
const KEPT_RESULTS_MAX: usize = 200;
const KEPT_RESULT_BYTES_MAX: usize = 1 << 20;

/// Files that are looked at to find out whether anything has changed.
const FILES_MAX: usize = 200_000;

/// Clocks of file systems stand still for so long: what was written later may not show.
const TICK: Duration = Duration::from_millis(20);

/// Results of one session, by everything that determines them.
#[derive(Debug, Default)]
pub(crate) struct Results {
    held: Mutex<HashMap<String, Value>>,
    /// Where they outlive the process, if they do.
    home: Option<PathBuf>,
}

impl Results {
    /// For a session of several processes.
    pub(crate) fn kept(home: &Path) -> Self {
        Self { home: Some(home.to_owned()), ..Self::default() }
    }

    fn files(&self) -> Option<Kept<'_>> {
        self.home.as_deref().map(Kept::results)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        held.or_else(|| self.files()?.get(key))
    }

    pub(crate) fn put(&self, key: String, result: &Value) {
        let length = result.to_string().len();
        if let Some(files) = self.files().filter(|_| length <= KEPT_RESULT_BYTES_MAX) {
            if files.count() >= KEPT_RESULTS_MAX {
                files.clear();
            }
            files.put(&key, result);
        }
        if length > RESULT_BYTES_MAX {
            return;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= RESULTS_MAX {
            held.clear();
        }
        held.insert(key, result.clone());
    }
}

/// The key of a result.
pub(crate) fn key(parts: &Value) -> Option<String> {
    Some(Digest::sha256(&canon::canonical(parts).ok()?).to_hex())
}

/// The state of files, told by what the file system says about them and not by reading them; and whether that can be
/// believed, which it cannot if something was written just now.
pub(crate) fn state_of(folders: &[PathBuf]) -> Option<(String, bool)> {
    let mut seen = Seen { text: Vec::new(), newest: (0, 0), count: 0 };
    for top in folders {
        let found = std::fs::symlink_metadata(top).ok();
        seen.add(top.as_os_str().as_encoded_bytes(), found.as_ref());
        let mut waiting = if found.is_some_and(|found| found.is_dir()) { vec![top.clone()] } else { Vec::new() };
        while let Some(folder) = waiting.pop() {
            // By their names, so that the same files are the same state; each is asked about within its open folder.
            let mut entries: Vec<_> = std::fs::read_dir(&folder).ok()?.flatten().collect();
            entries.sort_unstable_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let name = entry.file_name();
                if name == ".actum" {
                    continue;
                }
                let found = entry.metadata().ok();
                seen.add(name.as_encoded_bytes(), found.as_ref());
                if found.is_some_and(|found| found.is_dir()) {
                    waiting.push(entry.path());
                }
            }
            if seen.count > FILES_MAX {
                return None;
            }
            seen.text.push(b'/');
        }
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let newest = Duration::new(u64::try_from(seen.newest.0).ok()?, u32::try_from(seen.newest.1).ok()?);
    Some((Digest::blake3(&seen.text).to_hex(), newest + TICK < now))
}

/// What was seen of files so far.
struct Seen {
    text: Vec<u8>,
    newest: (i64, i64),
    count: usize,
}

impl Seen {
    fn add(&mut self, name: &[u8], found: Option<&std::fs::Metadata>) {
        use std::os::unix::fs::MetadataExt as _;

        self.count += 1;
        self.text.extend_from_slice(name);
        self.text.push(0);
        let Some(found) = found else { return };
        let changed = (found.ctime(), found.ctime_nsec());
        self.newest = self.newest.max(changed);
        for number in [found.dev(), found.ino(), found.len(), u64::from(found.mode())] {
            self.text.extend_from_slice(&number.to_le_bytes());
        }
        for number in [found.mtime(), found.mtime_nsec(), changed.0, changed.1] {
            self.text.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Something found out about a server or a program, kept in a file.
pub(crate) struct Kept<'a> {
    home: &'a Path,
    kind: &'static str,
    lasts: Duration,
}

impl<'a> Kept<'a> {
    /// What adapters of servers look like.
    pub(crate) const fn schemas(home: &'a Path) -> Self {
        Self { home, kind: "schema", lasts: SCHEMA_FOR }
    }

    /// Results of sessions of several processes.
    pub(crate) const fn results(home: &'a Path) -> Self {
        Self { home, kind: "result", lasts: RESULT_FOR }
    }

    /// What is known of the programs of tools.
    pub(crate) const fn metadata(home: &'a Path) -> Self {
        Self { home, kind: "tool", lasts: METADATA_FOR }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.home.join("cache").join(self.kind).join(format!("{key}.json"))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        let path = self.path(key);
        let age = std::fs::metadata(&path).ok()?.modified().ok()?.elapsed().ok()?;
        if age > self.lasts {
            return None;
        }
        let kept: Value = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        (kept["key"] == key).then(|| kept["value"].clone())
    }

    /// What cannot be kept is found out again.
    pub(crate) fn put(&self, key: &str, value: &Value) {
        let path = self.path(key);
        let beside = path.with_extension(format!("{}.tmp", new_id()));
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(&beside, json!({"key": key, "value": value}).to_string())?;
            std::fs::rename(&beside, &path)
        };
        let _ = write();
    }

    fn count(&self) -> usize {
        std::fs::read_dir(self.home.join("cache").join(self.kind)).map_or(0, Iterator::count)
    }

    /// Forgets all of a kind.
    pub(crate) fn clear(&self) {
        let _ = std::fs::remove_dir_all(self.home.join("cache").join(self.kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_file_is_seen() {
        let folder = std::env::temp_dir().join(format!("actum-cache-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a"), "1").unwrap();
        let state = || state_of(std::slice::from_ref(&folder)).unwrap();
        let (first, is_sure) = state();
        assert!(!is_sure, "it was written just now");
        assert_eq!(state().0, first);
        std::fs::write(folder.join("a"), "22").unwrap();
        assert_ne!(state().0, first);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_too_old_is_not_believed() {
        let home = std::env::temp_dir().join(format!("actum-kept-{}", std::process::id()));
        let of = |lasts| Kept { home: &home, kind: "schema", lasts };
        of(SCHEMA_FOR).put("k", &json!([1]));
        assert_eq!(of(SCHEMA_FOR).get("k"), Some(json!([1])));
        assert_eq!(of(SCHEMA_FOR).get("other"), None);
        assert_eq!(of(Duration::ZERO).get("k"), None);
        of(SCHEMA_FOR).clear();
        assert_eq!(of(SCHEMA_FOR).get("k"), None);
        std::fs::remove_dir_all(&home).unwrap();
    }
}
