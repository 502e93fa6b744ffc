//! What a tool has changed in a run's copy of the workspace, so that a repetition changes the same without the tool.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What a file system says of a file: enough to see that it is another.
type Seen = (u64, u64, i64, i64, u32);

/// Contents that are kept of one call, all together.
const CONTENT_BYTES_MAX: u64 = 10 << 20;
const FILES_MAX: usize = 200_000;

/// All files and links of a folder.
pub(crate) fn look(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(seen) = entry.metadata() else { continue };
            if seen.is_dir() {
                waiting.push(entry.path());
            } else if let Ok(within) = entry.path().strip_prefix(top) {
                found.insert(within.to_owned(), (seen.ino(), seen.len(), seen.ctime(), seen.ctime_nsec(), seen.mode()));
            }
        }
        if found.len() > FILES_MAX {
            break;
        }
    }
    found
}

/// What is different now.
pub(crate) fn since(top: &Path, before: &BTreeMap<PathBuf, Seen>) -> Value {
    let now = look(top);
    let mut changes = Vec::new();
    let mut room = CONTENT_BYTES_MAX;
    for (path, seen) in now.iter().filter(|(path, seen)| before.get(*path) != Some(seen)) {
        let is_plain = std::fs::symlink_metadata(top.join(path)).is_ok_and(|found| found.is_file());
        let Some(left) = room.checked_sub(seen.1).filter(|_| is_plain) else {
            changes.push(json!({"path": path, "lost": true}));
            continue;
        };
        room = left;
        let bytes = std::fs::read(top.join(path)).unwrap_or_default();
        let executable = seen.4 & 0o111 != 0;
        changes.push(match String::from_utf8(bytes) {
            Ok(text) => json!({"path": path, "text": text, "executable": executable}),
            Err(e) => json!({"path": path, "hex": hex::encode(e.into_bytes()), "executable": executable}),
        });
    }
    changes
        .extend(before.keys().filter(|path| !now.contains_key(*path)).map(|path| json!({"path": path, "gone": true})));
    changes.into()
}

/// Does the same again. Only below the folder, and never through a link.
pub(crate) fn repeat(top: &Path, changes: &Value) {
    for change in changes.as_array().into_iter().flatten() {
        let Some(path) = change["path"].as_str().map(Path::new) else { continue };
        let is_inside = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let mut above = top.to_owned();
        let has_link = path.parent().into_iter().flat_map(Path::components).any(|part| {
            above.push(part);
            std::fs::symlink_metadata(&above).is_ok_and(|found| !found.is_dir())
        });
        if !is_inside || has_link {
            continue;
        }
        let place = top.join(path);
        // What cannot be repeated shows as a difference of the result.
        let _ = std::fs::remove_file(&place);
        let bytes = match (change["text"].as_str(), change["hex"].as_str().and_then(|text| hex::decode(text).ok())) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(bytes)) => bytes,
            (None, None) => continue,
        };
        let _ = place.parent().map(std::fs::create_dir_all);
        if std::fs::write(&place, bytes).is_ok() && change["executable"] == true {
            let _ = std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_can_be_made_again_elsewhere() {
        let top = std::env::temp_dir().join(format!("actum-change-{}", std::process::id()));
        let (a, b) = (top.join("a"), top.join("b"));
        for folder in [&a, &b] {
            std::fs::create_dir_all(folder.join("sub")).unwrap();
            std::fs::write(folder.join("kept"), "1").unwrap();
            std::fs::write(folder.join("sub/gone"), "2").unwrap();
            std::fs::write(folder.join("changed"), "3").unwrap();
        }
        let before = look(&a);
        std::fs::remove_file(a.join("sub/gone")).unwrap();
        std::fs::write(a.join("changed"), [0xff, 0xfe]).unwrap();
        std::fs::write(a.join("sub/new"), "new").unwrap();
        std::fs::set_permissions(a.join("sub/new"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let changes = since(&a, &before);
        assert_eq!(changes.as_array().unwrap().len(), 3, "{changes}");
        repeat(&b, &changes);
        assert_eq!(std::fs::read(b.join("changed")).unwrap(), [0xff, 0xfe]);
        assert!(!b.join("sub/gone").exists());
        assert_eq!(std::fs::metadata(b.join("sub/new")).unwrap().permissions().mode() & 0o777, 0o755);
        repeat(&b, &json!([{"path": "../out", "text": "x"}, {"path": "/tmp/out", "text": "x"}]));
        assert!(!top.join("out").exists());
        std::os::unix::fs::symlink("/tmp", b.join("link")).unwrap();
        repeat(&b, &json!([{"path": "link/actum-out", "text": "x"}]));
        assert!(!Path::new("/tmp/actum-out").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
