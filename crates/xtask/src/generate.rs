//! `cargo xtask generate [--check]`: the files that are derived from the program itself: schemas, the CLI reference,
//! the error pages. It never writes with `--check`, and removes only files that it would have written.

use crate::{error_pages, program};
use std::collections::BTreeMap;
use std::path::Path;

/// The derived files, by path from the root.
type Files = BTreeMap<String, String>;

/// Writes what differs and removes what nothing derives any more.
pub(crate) fn write() -> Result<(), String> {
    let root = program::root();
    for change in compare(&root, &derive()?) {
        println!("{}", change.apply(&root)?);
    }
    Ok(())
}

/// Lists what `write` would change; an error if that is anything.
pub(crate) fn check() -> Result<(), String> {
    let files = derive()?;
    let changes = compare(&program::root(), &files);
    for change in &changes {
        println!("{change}");
    }
    match changes.len() {
        0 => Ok(()),
        count => Err(format!("{count} generated files are out of date: run `cargo xtask generate`")),
    }
}

fn derive() -> Result<Files, String> {
    let mut files: Files = error_pages::pages(actum_api::TABLE).into_iter().collect();
    for name in actum(&["schema", "--list"])?.lines() {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err(format!("`actum schema --list` printed `{name}`, which is no file name"));
        }
        files.insert(format!("schemas/{name}.json"), actum(&["schema", name])?);
    }
    files.insert("docs/cli.md".to_owned(), actum(&["reference"])?);
    Ok(files)
}

fn actum(arguments: &[&str]) -> Result<String, String> {
    program::output(program::cargo().args(["run", "--quiet", "--locked", "-p", "actum", "--"]).args(arguments))
}

#[derive(Debug, PartialEq)]
enum Change<'a> {
    Differs { path: &'a str, content: &'a str },
    Missing { path: &'a str, content: &'a str },
    Stray { path: String },
}

impl std::fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Differs { path, .. } => write!(f, "{path}: differs"),
            Change::Missing { path, .. } => write!(f, "{path}: missing"),
            Change::Stray { path } => write!(f, "{path}: stray, nothing generates it"),
        }
    }
}

impl Change<'_> {
    /// Returns what was done.
    fn apply(&self, root: &Path) -> Result<String, String> {
        let (path, done, outcome) = match self {
            Change::Differs { path, content } | Change::Missing { path, content } => {
                let full = root.join(path);
                let folder = full.parent().unwrap_or(root);
                let outcome = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&full, content));
                (*path, "wrote", outcome)
            }
            Change::Stray { path } => (path.as_str(), "removed", std::fs::remove_file(root.join(path))),
        };
        outcome.map(|()| format!("{done} {path}")).map_err(|error| format!("cannot change {path}: {error}"))
    }
}

fn compare<'a>(root: &Path, files: &'a Files) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    for (path, content) in files {
        match std::fs::read(root.join(path)) {
            Ok(found) if found == content.as_bytes() => {}
            Ok(_) => changes.push(Change::Differs { path, content }),
            Err(_) => changes.push(Change::Missing { path, content }),
        }
    }
    for folder in ["schemas", "docs/errors"] {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut paths: Vec<_> =
            names.filter(|name| is_ours(folder, name)).map(|name| format!("{folder}/{name}")).collect();
        paths.retain(|path| !files.contains_key(path));
        paths.sort();
        changes.extend(paths.into_iter().map(|path| Change::Stray { path }));
    }
    changes
}

/// Whether a file has a name that only this verb gives; others are left alone (`tidy` knows more).
fn is_ours(folder: &str, name: &str) -> bool {
    match folder {
        "schemas" => name.ends_with(".json"),
        _ => name.strip_prefix('A').and_then(|rest| rest.strip_suffix(".md")).is_some_and(is_number),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_missing_and_stray_files_are_found_then_mended() {
        let root = std::env::temp_dir().join(format!("xtask-generate-{}", std::process::id()));
        std::fs::create_dir_all(root.join("schemas")).unwrap();
        std::fs::create_dir_all(root.join("docs/errors")).unwrap();
        std::fs::write(root.join("schemas/same.json"), "{}\n").unwrap();
        std::fs::write(root.join("schemas/old.json"), "{}\n").unwrap();
        std::fs::write(root.join("docs/errors/A0999.md"), "gone\n").unwrap();
        std::fs::write(root.join("docs/errors/notes.md"), "by hand\n").unwrap();
        std::fs::write(root.join("docs/cli.md"), "before\n").unwrap();
        let files: Files = [("schemas/same.json", "{}\n"), ("schemas/new.json", "[]\n"), ("docs/cli.md", "after\n")]
            .map(|(path, content)| (path.to_owned(), content.to_owned()))
            .into();

        let changes = compare(&root, &files);
        let lines: Vec<String> = changes.iter().map(Change::to_string).collect();
        let expected = [
            "docs/cli.md: differs",
            "schemas/new.json: missing",
            "schemas/old.json: stray, nothing generates it",
            "docs/errors/A0999.md: stray, nothing generates it",
        ];
        assert_eq!(lines, expected);
        for change in changes {
            change.apply(&root).unwrap();
        }
        assert_eq!(compare(&root, &files), []);
        assert!(root.join("docs/errors/notes.md").exists(), "a file that is not ours was removed");
        std::fs::remove_dir_all(root).unwrap();
    }
}
