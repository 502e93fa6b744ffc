//! Reading the `Cargo.toml` of every crate, for the checks of edges and doors, and the rules about a manifest by
//! itself. Never asks cargo: a manifest with a broken edge may not resolve at all.

use super::{Tree, Violation, tree::line_where};
use toml::{Table, Value};

pub(super) struct Manifests {
    pub(super) crates: Vec<Manifest>,
    /// The lints of the workspace.
    lints: Option<Value>,
}

/// The one crate that may lift one lint: `forbid` in the root cannot be lifted for a module, `deny` can.
const OWN_LINTS: (&str, &str, &str) = ("sandbox", "unsafe_code", "deny");

pub(super) struct Manifest {
    /// The name of the folder under `crates/`, which is the name of the crate in every document.
    pub(super) folder: String,
    pub(super) dependencies: Vec<Dependency>,
    text: String,
    table: Table,
}

pub(super) struct Dependency {
    /// The real name of the package, whatever it is called in the code.
    pub(super) package: String,
    pub(super) dev: bool,
    pub(super) line: usize,
}

impl Manifests {
    pub(super) fn read(tree: &Tree, violations: &mut Vec<Violation>) -> Manifests {
        let root = parse("Cargo.toml", tree.text("Cargo.toml").unwrap_or_default(), violations);
        let shared = root.get("workspace").and_then(|workspace| workspace.get("dependencies"));
        let mut crates = Vec::new();
        for folder in tree.crates() {
            let path = path(folder);
            let Some(text) = tree.text(&path) else {
                violations.push(Violation::new(path, 1, "every folder under crates/ is a crate: give it a manifest"));
                continue;
            };
            let table = parse(&path, text, violations);
            let dependencies = dependencies(&table, shared, text);
            crates.push(Manifest { folder: folder.to_owned(), dependencies, text: text.to_owned(), table });
        }
        let lints = root.get("workspace").and_then(|workspace| workspace.get("lints")).cloned();
        Manifests { crates, lints }
    }
}

impl Manifest {
    pub(super) fn violation(&self, line: usize, rule: impl Into<String>) -> Violation {
        Violation::new(path(&self.folder), line, rule)
    }
}

/// The name follows the folder, and the lints are the workspace's.
pub(super) fn check(manifests: &Manifests, violations: &mut Vec<Violation>) {
    for manifest in &manifests.crates {
        let expected = package_of(&manifest.folder);
        let name = manifest.table.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        if name != Some(expected.as_str()) {
            let line = line_where(&manifest.text, |line| line.starts_with("name"));
            violations.push(manifest.violation(line, format!("the package in this folder is called `{expected}`")));
        }
        let (owner, lint, level) = OWN_LINTS;
        if manifest.folder == owner {
            let mut expected = manifests.lints.clone();
            let rust = expected.as_mut().and_then(|lints| lints.get_mut("rust")).and_then(Value::as_table_mut);
            rust.map(|rust| rust.insert(lint.to_owned(), level.into()));
            if manifest.table.get("lints") != expected.as_ref() {
                let line = line_where(&manifest.text, |line| line.starts_with("[lints"));
                let rule = format!("repeat the lints of the workspace, with `{lint} = \"{level}\"`");
                violations.push(manifest.violation(line, rule));
            }
            continue;
        }
        let lints = manifest.table.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
        if lints != Some(true) {
            let line = line_where(&manifest.text, |line| line.starts_with("[lints"));
            violations
                .push(manifest.violation(line, "lints come from the workspace: add `[lints]` `workspace = true`"));
        }
    }
}

/// The package that lives in a folder under `crates/`.
pub(super) fn package_of(folder: &str) -> String {
    match folder {
        "cli" => "actum".to_owned(),
        "xtask" => "xtask".to_owned(),
        _ => format!("actum-{folder}"),
    }
}

fn path(folder: &str) -> String {
    format!("crates/{folder}/Cargo.toml")
}

fn parse(path: &str, text: &str, violations: &mut Vec<Violation>) -> Table {
    text.parse().unwrap_or_else(|error: toml::de::Error| {
        violations.push(Violation::new(path, 1, format!("is not TOML: {}", error.message())));
        Table::new()
    })
}

/// From all kinds of tables, those of single platforms included.
fn dependencies(manifest: &Table, shared: Option<&Value>, text: &str) -> Vec<Dependency> {
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let sections = std::iter::once(manifest).chain(platforms.filter_map(Value::as_table));
    let mut found = Vec::new();
    for section in sections {
        for (kind, dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
            for (key, value) in section.get(kind).and_then(Value::as_table).into_iter().flatten() {
                let inherited = value.get("workspace").and_then(|_| shared?.get(key));
                let package = inherited.unwrap_or(value).get("package").and_then(Value::as_str).unwrap_or(key);
                found.push(Dependency { package: package.to_owned(), dev, line: line_of(text, kind, key) });
            }
        }
    }
    found
}

/// The line of a key below the heading of its table, or the line of a heading of its own.
fn line_of(text: &str, kind: &str, key: &str) -> usize {
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(heading) = line.strip_prefix('[') {
            inside = heading.trim_end().trim_end_matches(']').ends_with(kind)
                && (kind != "dependencies" || !heading.contains("-dependencies"));
            if heading.contains(&format!("{kind}.{key}]")) {
                return index + 1;
            }
        } else if inside && line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['.', ' ', '='])) {
            return index + 1;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::super::testing::{lines, manifests};
    use super::*;

    #[test]
    fn the_sandbox_repeats_all_lints_but_one() {
        let root = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\nx = \"warn\"\n";
        let name = "[package]\nname = \"actum-sandbox\"\n\n[lints.rust]\n";
        let check_with = |lints: &str| {
            let text = format!("{name}{lints}");
            let found = manifests(&[("Cargo.toml", root), ("crates/sandbox/Cargo.toml", &text)]);
            lines(|v| check(&found, v))
        };
        assert!(check_with("unsafe_code = \"deny\"\nx = \"warn\"\n").is_empty());
        let rule = "crates/sandbox/Cargo.toml:4: repeat the lints of the workspace, with `unsafe_code = \"deny\"`";
        assert_eq!(check_with("unsafe_code = \"deny\"\n"), [rule]);
        assert_eq!(check_with("unsafe_code = \"allow\"\nx = \"warn\"\n"), [rule]);
    }

    #[test]
    fn a_wrong_name_and_own_lints_are_found() {
        let good = "[package]\nname = \"actum-a\"\n\n[lints]\nworkspace = true\n";
        let bad = "[package]\nname = \"b\"\n\n[lints]\nworkspace = false\n";
        let none = "[package]\nname = \"actum\"\n";
        let found =
            manifests(&[("crates/a/Cargo.toml", good), ("crates/b/Cargo.toml", bad), ("crates/cli/Cargo.toml", none)]);
        assert_eq!(
            lines(|v| check(&found, v)),
            [
                "crates/b/Cargo.toml:2: the package in this folder is called `actum-b`",
                "crates/b/Cargo.toml:4: lints come from the workspace: add `[lints]` `workspace = true`",
                "crates/cli/Cargo.toml:1: lints come from the workspace: add `[lints]` `workspace = true`",
            ]
        );
    }

    #[test]
    fn a_missing_and_a_broken_manifest_are_found() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", ""), ("crates/b/Cargo.toml", "[package")]);
        let found = lines(|v| drop(Manifests::read(&tree, v)));
        assert_eq!(found[0], "crates/a/Cargo.toml:1: every folder under crates/ is a crate: give it a manifest");
        assert!(found[1].starts_with("crates/b/Cargo.toml:1: is not TOML"), "{found:?}");
    }

    #[test]
    fn every_kind_of_dependency_is_seen_under_its_real_name() {
        let root = "[workspace.dependencies]\ndb = { package = \"rusqlite\", version = \"1\" }\n";
        let text = "[dependencies]\ndb.workspace = true\n\n[dev-dependencies]\nx = \"1\"\n\n\
                    [target.'cfg(unix)'.dependencies]\nlow = { package = \"libc\", version = \"1\" }\n\n[build-dependencies.y]\nversion = \"1\"\n";
        let found = manifests(&[("Cargo.toml", root), ("crates/a/Cargo.toml", text)]);
        let seen: Vec<_> = found.crates[0].dependencies.iter().map(|d| (d.package.as_str(), d.dev, d.line)).collect();
        assert_eq!(seen, [("rusqlite", false, 2), ("y", false, 10), ("x", true, 5), ("libc", false, 8)]);
    }
}
