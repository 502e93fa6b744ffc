//! `cargo xtask tidy`: the rules of the house that no compiler checks; also a test, so that nobody can forget it.
//! It lists every violation and never repairs one.

mod docs;
mod duplicates;
mod edges;
mod fence;
mod language;
mod licence;
mod manifest;
mod map;
mod text;
mod tree;

use crate::program;
use manifest::Manifests;
use tree::Tree;

/// One broken rule, at a place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    rule: String,
}

impl Violation {
    fn new(path: impl Into<String>, line: usize, rule: impl Into<String>) -> Violation {
        Violation { path: path.into(), line, rule: rule.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// Prints every violation; an error if there is one.
pub(crate) fn run() -> Result<(), String> {
    let violations = violations()?;
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(format!("{count} rules of the house are broken: mend the places listed above")),
    }
}

fn violations() -> Result<Vec<Violation>, String> {
    let root = program::root();
    let tree = Tree::read(&root).map_err(|error| format!("cannot read {}: {error}", root.display()))?;
    let metadata = program::output(program::cargo().args(["metadata", "--locked", "--format-version", "1"]))?;
    let mut violations = Vec::new();
    let manifests = Manifests::read(&tree, &mut violations);
    edges::check(&manifests, &mut violations);
    edges::check_doors(&manifests, &mut violations);
    map::check(&tree, &mut violations);
    manifest::check(&manifests, &mut violations);
    fence::check(&tree, fence::LIFTED, &mut violations);
    text::check(&tree, &mut violations);
    language::check(&tree, &mut violations);
    duplicates::check(&tree, &mut violations);
    licence::check(&metadata, &tree, &mut violations)?;
    docs::check(&tree, &mut violations);
    docs::check_errors(&tree, actum_api::TABLE.iter().map(|row| row.code), &mut violations);
    violations.sort();
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_tidy() {
        let lines: Vec<String> = violations().unwrap().iter().map(Violation::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    #[test]
    fn a_violation_says_where() {
        assert_eq!(Violation::new("a/b.rs", 7, "wrong").to_string(), "a/b.rs:7: wrong");
    }
}

/// What the tests of the checks share.
#[cfg(test)]
mod testing {
    use super::{Manifests, Tree, Violation};

    /// The lines that a check prints about a made-up tree.
    pub(super) fn lines(check: impl FnOnce(&mut Vec<Violation>)) -> Vec<String> {
        let mut violations = Vec::new();
        check(&mut violations);
        violations.iter().map(Violation::to_string).collect()
    }

    pub(super) fn manifests(files: &[(&str, &str)]) -> Manifests {
        let mut violations = Vec::new();
        let manifests = Manifests::read(&Tree::of(files), &mut violations);
        assert_eq!(violations, []);
        manifests
    }
}
