//! Changes as a unified patch, in the form git writes and `git apply` reads. For people; programs get the changes.

use std::collections::HashMap;
use std::io::Write as _;

use actum_contract::blob::Blobs;
use similar::{Algorithm, TextDiff};

use crate::change::{Change, Rename, Verb, renames};
use crate::error::Result;
use crate::path::TreePath;
use crate::tree::{Kind, Node, leaf, read_at_most};

/// Contents longer than this are named, not shown.
const SHOWN_BYTES_MAX: usize = 1 << 20;

/// A zero byte this early means that it is no text, as with git.
const PROBE_BYTES: usize = 8000;

const CONTEXT_LINES: usize = 3;

/// A patch that leaves nothing out, for a person who has to agree to all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletePatch {
    pub text: Vec<u8>,
    /// Paths whose contents are longer than `SHOWN_BYTES_MAX`: the text holds their size and digest only.
    pub left_out: Vec<TreePath>,
}

/// Returns a patch with every content as text, also contents that are not text and files that were only renamed.
pub fn complete_patch(blobs: &dyn Blobs, changes: &[Change]) -> Result<CompletePatch> {
    let mut patch = CompletePatch::default();
    for change in changes {
        let sides = [leaf(change.before), leaf(change.after)];
        let mut is_whole = true;
        for (before, after) in match sides {
            [None, None] => continue,
            [Some(_), Some(_)] if change.verb() == Verb::Type => vec![(sides[0], None), (None, sides[1])],
            [before, after] => vec![(before, after)],
        } {
            is_whole &= one(blobs, &mut patch.text, &change.path, (before, after), Binary::Shown)?;
        }
        if !is_whole {
            patch.left_out.push(change.path.clone());
        }
    }
    Ok(patch)
}

/// How contents that are not text appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binary {
    /// As git does it: a line says that they differ.
    Named,
    Shown,
}

/// The patch. Empty folders have no place in it.
pub fn patch(blobs: &dyn Blobs, changes: &[Change]) -> Result<Vec<u8>> {
    let renames = renames(changes);
    let to: HashMap<&TreePath, &Rename> = renames.iter().map(|rename| (&rename.to, rename)).collect();
    let from: HashMap<&TreePath, Option<Node>> = {
        let before: HashMap<&TreePath, Option<Node>> = changes.iter().map(|c| (&c.path, c.before)).collect();
        renames.iter().map(|rename| (&rename.from, before.get(&rename.from).copied().flatten())).collect()
    };
    let mut out = Vec::new();
    for change in changes {
        let (before, after) = (leaf(change.before), leaf(change.after));
        if let Some(rename) = to.get(&change.path) {
            let from = from.get(&rename.from).copied().flatten();
            head(&mut out, &rename.from, &rename.to);
            if let (Some(from), Some(to)) = (from, after)
                && from.kind != to.kind
            {
                let _ = writeln!(out, "old mode {}\nnew mode {}", mode(from), mode(to));
            }
            let (from, to) = (quoted("", &rename.from), quoted("", &rename.to));
            out.extend_from_slice(b"similarity index 100%\nrename from ");
            out.extend_from_slice(&from);
            out.extend_from_slice(b"\nrename to ");
            out.extend_from_slice(&to);
            out.push(b'\n');
            continue;
        }
        if from.contains_key(&change.path) {
            continue;
        }
        match (before, after) {
            (None, None) => {}
            // Git has no way to turn a file into a link in one step.
            (Some(_), Some(_)) if change.verb() == Verb::Type => {
                one(blobs, &mut out, &change.path, (before, None), Binary::Named)?;
                one(blobs, &mut out, &change.path, (None, after), Binary::Named)?;
            }
            _ => {
                one(blobs, &mut out, &change.path, (before, after), Binary::Named)?;
            }
        }
    }
    Ok(out)
}

/// Writes the change of one path. Returns whether it shows both contents.
fn one(
    blobs: &dyn Blobs,
    out: &mut Vec<u8>,
    path: &TreePath,
    (before, after): (Option<Node>, Option<Node>),
    binary: Binary,
) -> Result<bool> {
    head(out, path, path);
    let _ = match (before, after) {
        (None, Some(after)) => writeln!(out, "new file mode {}", mode(after)),
        (Some(before), None) => writeln!(out, "deleted file mode {}", mode(before)),
        (Some(before), Some(after)) if before.kind != after.kind => {
            writeln!(out, "old mode {}\nnew mode {}", mode(before), mode(after))
        }
        _ => Ok(()),
    };
    if before.map(|node| node.digest) == after.map(|node| node.digest) {
        return Ok(true);
    }
    let content = |node: Option<Node>| node.map(|node| read_at_most(blobs, node.digest, SHOWN_BYTES_MAX)).transpose();
    let (old, new) = (content(before)?, content(after)?);
    let names = (side("a/", path, before.is_some()), side("b/", path, after.is_some()));
    let is_text = |content: &Option<Option<Vec<u8>>>| match content {
        None => true,
        Some(None) => false,
        Some(Some(bytes)) => !bytes[..bytes.len().min(PROBE_BYTES)].contains(&0),
    };
    let is_too_long = |content: &Option<Option<Vec<u8>>>| matches!(content, Some(None));
    if binary == Binary::Shown && (is_too_long(&old) || is_too_long(&new)) {
        for (sign, node) in [('-', before), ('+', after)] {
            if let Some(node) = node {
                let _ = writeln!(out, "{sign}content that is not shown, BLAKE3 {}", node.digest.to_hex());
            }
        }
        return Ok(false);
    }
    if binary == Binary::Named && (!is_text(&old) || !is_text(&new)) {
        for part in [b"Binary files ".as_slice(), &names.0, b" and ", &names.1, b" differ\n"] {
            out.extend_from_slice(part);
        }
        return Ok(false);
    }
    let (old, new) = (old.flatten().unwrap_or_default(), new.flatten().unwrap_or_default());
    if old == new {
        return Ok(true);
    }
    for (sign, name) in [(b"--- ", &names.0), (b"+++ ", &names.1)] {
        out.extend_from_slice(sign);
        out.extend_from_slice(name);
        out.push(b'\n');
    }
    let diff = TextDiff::configure().algorithm(Algorithm::Myers).diff_lines(old.as_slice(), new.as_slice());
    let _ = diff.unified_diff().context_radius(CONTEXT_LINES).to_writer(&mut *out);
    Ok(true)
}

fn mode(node: Node) -> &'static str {
    match node.kind {
        Kind::File => "100644",
        Kind::Executable => "100755",
        Kind::Symlink => "120000",
        Kind::Folder => "040000",
    }
}

fn head(out: &mut Vec<u8>, from: &TreePath, to: &TreePath) {
    for part in [b"diff --git ".as_slice(), &quoted("a/", from), b" ", &quoted("b/", to), b"\n"] {
        out.extend_from_slice(part);
    }
}

fn side(prefix: &str, path: &TreePath, there: bool) -> Vec<u8> {
    if there { quoted(prefix, path) } else { b"/dev/null".to_vec() }
}

/// As git quotes a path that could be misread.
fn quoted(prefix: &str, path: &TreePath) -> Vec<u8> {
    let bytes = [prefix.as_bytes(), path.as_bytes()].concat();
    let is_plain = |b: &u8| (b' '..0x7f).contains(b) && !matches!(b, b'"' | b'\\');
    if bytes.iter().all(is_plain) {
        return bytes;
    }
    let mut out = vec![b'"'];
    for byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\t' => out.extend_from_slice(b"\\t"),
            plain if is_plain(&plain) => out.push(plain),
            other => {
                let _ = write!(out, "\\{other:03o}");
            }
        }
    }
    out.push(b'"');
    out
}
