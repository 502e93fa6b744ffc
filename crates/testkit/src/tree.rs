//! Random file trees and random edits, as shell scripts: the same script makes the same changes in a plain folder and in
//! a stage. And what stands in a folder afterwards, leaf by leaf, found without any of the product's code.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::dice::Dice;

/// Names that programs get wrong: spaces, dashes, umlauts, bytes that are no UTF-8, line breaks, quotes.
const NAMES: &[&[u8]] =
    &[b"a", b"b", b"c.rs", b"with space", b"-n", b"\xc3\xbcml", b"\xff\xfe", b"new\nline", b"q'\"\\", b"deep"];

/// Every leaf of a folder: its path and what it is. Our own folder and git's are passed over.
pub type Leaves = BTreeMap<Vec<u8>, String>;

/// What stands in a folder.
pub fn read(folder: &Path) -> Leaves {
    let mut leaves = Leaves::new();
    read_into(folder, &mut Vec::new(), &mut leaves);
    leaves
}

fn read_into(folder: &Path, prefix: &mut Vec<u8>, leaves: &mut Leaves) {
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        if name == ".actum" || name == ".git" {
            continue;
        }
        let length = prefix.len();
        prefix.extend_from_slice(name.as_bytes());
        let metadata = fs::symlink_metadata(entry.path()).expect("it is there");
        if metadata.is_dir() {
            prefix.push(b'/');
            let before = leaves.len();
            read_into(&entry.path(), prefix, leaves);
            if leaves.len() == before {
                leaves.insert(prefix.clone(), "empty folder".to_owned());
            }
        } else if metadata.is_symlink() {
            let target = fs::read_link(entry.path()).expect("a link");
            leaves.insert(prefix.clone(), format!("link to {target:?}"));
        } else {
            let kind = if metadata.permissions().mode() & 0o100 != 0 { "executable" } else { "file" };
            let content = fs::read(entry.path()).expect("it can be read");
            leaves.insert(prefix.clone(), format!("{kind} {:?}", String::from_utf8_lossy(&content)));
        }
        prefix.truncate(length);
    }
}

/// Runs a script in a folder; single steps may fail.
pub fn play(script: &str, folder: &Path) {
    let ended = Command::new("bash").arg("-c").arg(script).current_dir(folder).status().expect("bash runs");
    assert!(ended.success());
}

fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("$'");
    for byte in bytes {
        let _ = write!(text, "\\x{byte:02x}");
    }
    text.push('\'');
    text
}

fn path(dice: &mut Dice) -> Vec<u8> {
    let depth = 1 + dice.roll(3) + if dice.roll(8) == 0 { 6 } else { 0 };
    let names: Vec<&[u8]> = (0..depth).map(|_| dice.pick(NAMES)).collect();
    names.join(&b'/')
}

/// A script that makes a tree of up to `files` files.
pub fn build(dice: &mut Dice, files: u64) -> String {
    let mut script = String::new();
    for n in 0..files {
        let at = path(dice);
        let (folder, file) = (quoted(parent(&at)), quoted(&at));
        let step = match dice.roll(10) {
            0 => format!("mkdir -p -- ./{file}"),
            1 => format!("mkdir -p -- ./{folder} && ln -snT {} ./{file}", target(dice)),
            2 => format!("mkdir -p -- ./{folder} && printf 'run {n}' > ./{file} && chmod u+x ./{file}"),
            _ => format!("mkdir -p -- ./{folder} && printf 'file {n}\\nline\\n' > ./{file}"),
        };
        let _ = writeln!(script, "{{ {step}; }} 2>/dev/null || :");
    }
    script
}

/// A script that changes a tree in `steps` steps, some of which come to nothing.
pub fn edit(dice: &mut Dice, steps: u64) -> String {
    let mut script = String::new();
    for n in 0..steps {
        let (at, other) = (path(dice), path(dice));
        let (folder, file) = (quoted(parent(&at)), quoted(&at));
        let (other_folder, other) = (quoted(parent(&other)), quoted(&other));
        let is_file = format!("[ -f ./{file} ] && [ ! -L ./{file} ]");
        let step = match dice.roll(13) {
            0 | 1 => format!("mkdir -p -- ./{folder} && printf 'new {n}' > ./{file}"),
            2 => format!("{is_file} && printf more >> ./{file}"),
            3 | 4 => format!("rm -rf -- ./{file}"),
            5 => format!("mkdir -p -- ./{file}"),
            6 => format!("mkdir -p -- ./{other_folder} && mv -T -- ./{file} ./{other}"),
            7 => format!("rm -rf -- ./{file} && ln -snT {} ./{file}", target(dice)),
            8 => format!("{is_file} && chmod u+x ./{file}"),
            9 => format!("{is_file} && chmod u-x ./{file}"),
            10 => format!("rm -rf -- ./{file} && printf 'instead {n}' > ./{file}"),
            // Files only: what comes of copying a folder into itself depends on the order of inodes.
            11 => format!("{is_file} && mkdir -p -- ./{other_folder} && cp -aT -- ./{file} ./{other}"),
            _ => format!("{is_file} && mkdir -p -- ./{other_folder} && ln -T -- ./{file} ./{other}"),
        };
        let _ = writeln!(script, "{{ {step}; }} 2>/dev/null || :");
    }
    script
}

/// Inside the tree, nowhere, or far away; writing through none of them touches anything of the machine's.
fn target(dice: &mut Dice) -> String {
    let inside = dice.pick(NAMES);
    quoted(dice.pick(&[inside, b"/nonexistent/x", b"nowhere"]))
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b".", |at| &path[..at])
}
