//! Built-in checks of changed files: each parses as its type, and holds no conflict markers, no NUL and no secrets.

use actum_contract::execution::Redactor;

use crate::correct::Kind;
use crate::event::Failed;

/// Larger files are not looked into; what they hold is data.
pub const FILE_BYTES_LOOKED_AT: u64 = 4 << 20;

/// Endings of files that are text whatever is in them.
const TEXT: &[&str] = &[
    "c", "cfg", "cpp", "css", "csv", "go", "h", "hpp", "html", "ini", "java", "js", "json", "jsx", "kt", "lua", "md",
    "mjs", "php", "pl", "py", "rb", "rs", "scala", "sh", "sql", "swift", "toml", "ts", "tsx", "txt", "xml", "yaml",
    "yml",
];

/// Everything that is wrong with a changed file. `parse` says what is wrong with JSON, YAML or TOML: reading those is
/// somebody else's trade.
pub fn look_at(path: &str, bytes: &[u8], parse: &dyn Fn(&str, &[u8]) -> Option<String>) -> Vec<Failed> {
    let mut found = Vec::new();
    let mut failed = |check: &str, kind, message: String| {
        found.push(Failed { check: check.to_owned(), kind, path: Some(path.to_owned()), message });
    };
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending);
    let ending = ending.map(str::to_ascii_lowercase);
    let is_text = ending.as_deref().is_some_and(|ending| TEXT.contains(&ending));
    if is_text && let Some(at) = bytes.iter().position(|b| *b == 0) {
        failed("no_nul", Kind::Content, format!("holds a NUL at byte {at}, and is text by its name"));
    }
    if let Some(line) = conflict_marker(bytes) {
        failed("no_conflict_markers", Kind::Content, format!("has conflict markers, the first in line {line}"));
    }
    if let Some(ending @ ("json" | "yaml" | "yml" | "toml")) = ending.as_deref()
        && let Some(why) = parse(ending, bytes)
    {
        failed("parses", Kind::Content, format!("does not parse: {why}"));
    }
    let is_binary = !is_text && bytes.iter().take(8 << 10).any(|b| *b == 0);
    if !is_binary {
        let (_, secrets) = Redactor::new(std::iter::empty::<&str>()).redact(bytes);
        if secrets > 0 {
            failed("no_secrets", Kind::Secret, "holds what looks like a secret".to_owned());
        }
    }
    found
}

/// The line of the first one: both borders and the line between them, each where a line begins.
fn conflict_marker(bytes: &[u8]) -> Option<usize> {
    let mut first = None;
    let mut middle = false;
    for (at, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.starts_with(b"<<<<<<< ") {
            (first, middle) = (Some(at + 1), false);
        } else if first.is_some() && (line == b"=======" || line == b"=======\r") {
            middle = true;
        } else if middle && line.starts_with(b">>>>>>> ") {
            return first;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(path: &str, bytes: &[u8]) -> Vec<String> {
        let parse = |_: &str, bytes: &[u8]| (bytes == b"bad").then(|| "bad".to_owned());
        look_at(path, bytes, &parse).into_iter().map(|failed| failed.check).collect()
    }

    #[test]
    fn each_check() {
        assert_eq!(checks("a.rs", b"fn main() {}\n"), [""; 0]);
        assert_eq!(checks("a.json", b"bad"), ["parses"]);
        assert_eq!(checks("a.txt", b"bad"), [""; 0]);
        assert_eq!(checks("a.py", b"x\0y"), ["no_nul"]);
        assert_eq!(checks("a.png", b"x\0y"), [""; 0]);
        let marked = b"a\n<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n";
        assert_eq!(checks("a", marked), ["no_conflict_markers"]);
        assert_eq!(checks("a.md", b"Heading\n=======\n<<<<<<< is a marker\n"), [""; 0]);
        let key = format!("token = \"ghp_{}\"\n", "a1B2".repeat(9));
        assert_eq!(checks("a.sh", key.as_bytes()), ["no_secrets"]);
    }
}
