//! What a tool has changed in a run's copy of the workspace, so that a repetition changes the same without the tool. The
//! agent works in the same copy meanwhile: nothing here trusts a name to be what it was.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use actum_sandbox::{
    link_beneath, list_beneath, make_folder_beneath, read_beneath, remove_beneath, symlink_beneath, write_beneath,
};
use serde_json::{Value, json};

/// What a file system says of something: enough to see that it is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Folder,
    File { bytes: u64, executable: bool, rest: [i64; 4] },
    Link([i64; 4]),
    Other([i64; 4]),
}

/// Contents that are kept of one call, all together.
const CONTENT_BYTES_MAX: u64 = 10 << 20;
const FILES_MAX: usize = 200_000;

/// Everything in a folder.
pub(crate) fn look(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(folder) = waiting.pop() {
        for (name, seen) in list_beneath(top, &folder).unwrap_or_default() {
            let path = folder.join(name);
            let rest = [seen.ino().cast_signed(), seen.ctime(), seen.ctime_nsec(), i64::from(seen.mode())];
            let kind = seen.file_type();
            let is = if kind.is_dir() {
                waiting.push(path.clone());
                Seen::Folder
            } else if kind.is_file() {
                Seen::File { bytes: seen.len(), executable: seen.mode() & 0o111 != 0, rest }
            } else if kind.is_symlink() {
                Seen::Link(rest)
            } else {
                Seen::Other(rest)
            };
            found.insert(path, is);
        }
        if found.len() > FILES_MAX {
            break;
        }
    }
    found
}

/// What is different now: what is gone first, the innermost before what it lay in; then what is there, the other way round.
pub(crate) fn since(top: &Path, before: &BTreeMap<PathBuf, Seen>) -> Value {
    let now = look(top);
    let mut room = CONTENT_BYTES_MAX;
    let is_same = |path: &PathBuf| now.get(path) == before.get(path);
    let gone = before.keys().rev().filter(|path| !is_same(path)).filter_map(|path| {
        let is_folder = |seen: Option<&Seen>| seen == Some(&Seen::Folder);
        // A file that only changed is replaced by its new content.
        let stays = now.contains_key(path) && is_folder(now.get(path)) == is_folder(before.get(path));
        (!stays).then(|| json!({"path": text(path.as_os_str().as_bytes()), "gone": true}))
    });
    let mut changes: Vec<Value> = gone.collect();
    for (path, seen) in now.iter().filter(|(path, _)| !is_same(path)) {
        let named = text(path.as_os_str().as_bytes());
        changes.push(match seen {
            Seen::Folder => json!({"path": named, "folder": true}),
            Seen::Link(_) => match link_beneath(top, path) {
                Ok(target) => json!({"path": named, "link": text(target.as_bytes())}),
                Err(_) => json!({"path": named, "lost": true}),
            },
            Seen::File { executable, .. } => match read_beneath(top, &top.join(path), room, &|_| true) {
                Ok(bytes) => {
                    room = room.saturating_sub(bytes.len() as u64);
                    json!({"path": named, "content": text(&bytes), "executable": executable})
                }
                Err(_) => json!({"path": named, "lost": true}),
            },
            Seen::Other(_) => json!({"path": named, "lost": true}),
        });
    }
    changes.into()
}

/// Text as it is, everything else in hex.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"hex": hex::encode(bytes)}),
    }
}

fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => hex::decode(other["hex"].as_str()?).ok(),
    }
}

/// Does the same again.
pub(crate) fn repeat(top: &Path, changes: &Value) {
    for change in changes.as_array().into_iter().flatten() {
        let Some(path) = bytes_of(&change["path"]).map(OsString::from_vec).map(PathBuf::from) else { continue };
        // What cannot be repeated shows as a difference of the result.
        let _ = again(top, &path, change);
    }
}

fn again(top: &Path, path: &Path, change: &Value) -> std::io::Result<()> {
    if change["folder"] == true {
        return make_folder_beneath(top, path);
    }
    let removed = remove_beneath(top, path);
    if let Some(target) = bytes_of(&change["link"]) {
        return symlink_beneath(top, path, &OsString::from_vec(target));
    }
    match bytes_of(&change["content"]) {
        Some(bytes) => write_beneath(top, path, &bytes, change["executable"] == true),
        None => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn twins(name: &str) -> (PathBuf, PathBuf, PathBuf) {
        let top = std::env::temp_dir().join(format!("actum-change-{name}-{}", std::process::id()));
        let (a, b) = (top.join("a"), top.join("b"));
        for folder in [&a, &b] {
            fs::create_dir_all(folder.join("sub/deep")).unwrap();
            for file in ["kept", "sub/gone", "changed", "becomes-folder", "sub/deep/file"] {
                fs::write(folder.join(file), file).unwrap();
            }
        }
        (top, a, b)
    }

    #[test]
    fn changes_can_be_made_again_elsewhere() {
        let (top, a, b) = twins("again");
        let before = look(&a);
        assert_eq!(since(&a, &before), json!([]));
        fs::remove_file(a.join("sub/gone")).unwrap();
        fs::remove_dir_all(a.join("sub/deep")).unwrap();
        fs::write(a.join("changed"), [0xff, 0xfe]).unwrap();
        fs::write(a.join("sub/new"), "new").unwrap();
        fs::set_permissions(a.join("sub/new"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(a.join("becomes-folder")).unwrap();
        fs::create_dir_all(a.join("becomes-folder/empty")).unwrap();
        symlink("kept", a.join("link")).unwrap();
        fs::write(a.join(OsString::from_vec(vec![b'x', 0xff])), "odd").unwrap();
        repeat(&b, &since(&a, &before));
        let shape = |top: &Path| -> Vec<(PathBuf, String)> {
            let all = look(top).into_iter();
            all.map(|(path, seen)| {
                let is = match seen {
                    Seen::Folder => "folder".to_owned(),
                    Seen::File { executable, .. } => format!("{executable} {:?}", fs::read(top.join(&path)).unwrap()),
                    Seen::Link(_) => format!("{:?}", fs::read_link(top.join(&path)).unwrap()),
                    Seen::Other(_) => "other".to_owned(),
                };
                (path, is)
            })
            .collect()
        };
        assert_eq!(shape(&b), shape(&a));
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn no_link_leads_out() {
        let (top, a, b) = twins("out");
        let outside = top.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        let before = look(&a);
        symlink(&outside, a.join("way")).unwrap();
        let seen = since(&a, &before);
        assert_eq!(seen, json!([{"path": "way", "link": outside}]));
        symlink(&outside, b.join("way")).unwrap();
        let sneaks = ["way/new", "../outside/new", "/tmp/actum-new", "way/secret"];
        let sneaks = sneaks.map(|path| json!({"path": path, "content": "x", "executable": false}));
        repeat(&b, &json!(sneaks));
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
        assert!(!outside.join("new").exists() && !Path::new("/tmp/actum-new").exists());
        fs::remove_dir_all(&top).unwrap();
    }
}
