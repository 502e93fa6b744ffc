//! Rules about the documents: links lead somewhere, every error has its page and no page is a leftover, the changelog
//! has a place for what is not released. It never looks at addresses outside the checkout.

use super::{Tree, Violation};
use crate::error_pages;
use std::collections::BTreeSet;

const CHANGELOG: &str = "CHANGELOG.md";

pub(super) fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    if !tree.text(CHANGELOG).is_some_and(|text| text.lines().any(|line| line == "## [Unreleased]")) {
        violations.push(Violation::new(CHANGELOG, 1, "has no heading `## [Unreleased]`: add it above the releases"));
    }
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            if resolve(path, target).is_none_or(|target| !tree.exists(&target)) {
                violations.push(Violation::new(path, line, format!("the link to `{target}` leads nowhere")));
            }
        }
    }
}

pub(super) fn check_errors<'a>(tree: &Tree, codes: impl Iterator<Item = &'a str>, violations: &mut Vec<Violation>) {
    let mut expected: BTreeSet<String> = codes.map(error_pages::path).collect();
    expected.insert(error_pages::path("README"));
    for path in expected.iter().filter(|path| tree.text(path).is_none()) {
        violations.push(Violation::new(path, 1, "the page is missing: run `cargo xtask generate`"));
    }
    for (path, _) in tree.files().filter(|(path, _)| path.starts_with("docs/errors/")) {
        if !expected.contains(path) {
            violations.push(Violation::new(path, 1, "no row of the error table has this page: remove it"));
        }
    }
}

/// Line and path of every relative link, inline or as a definition, outside of code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Every second part between backticks is code.
        let prose = line.split('`').step_by(2);
        let inline = prose.clone().flat_map(|part| part.split("](").skip(1));
        // A link text that is code puts `](…)` at the start of the next part, which the split above sees as well.
        let definition = trimmed.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
        for target in inline.chain(definition) {
            let target = target.trim_start_matches('<');
            let end = target.find([')', ' ', '>', '#']).unwrap_or(target.len());
            let target = &target[..end];
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((index + 1, target));
            }
        }
    }
    found
}

/// The path from the root that a link in a file means; nothing if it leaves the checkout.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => file.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    const CLEAN: (&str, &str) = (CHANGELOG, "# Changes\n\n## [Unreleased]\n");

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[a](docs/a.md) [b](./docs/a.md#part \"title\") [web](https://example.org/x.md) [top](#top)\n\
                    [`c`](docs) [root](.)\n\n[d]: <docs/a.md>\n`[x](nowhere.md)`\n```\n[x](nowhere.md)\n```\n";
        let tree = Tree::of(&[CLEAN, ("README.md", text), ("docs/a.md", "[up](../README.md) [root](/README.md)\n")]);
        assert!(lines(|v| check(&tree, v)).is_empty(), "{:?}", lines(|v| check(&tree, v)));
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "x\n[a](a.md) and [`b`](../docs/b.md)\n\n[c]: c.md\n[out](../../etc/passwd)\n";
        let tree = Tree::of(&[CLEAN, ("docs/x.md", text)]);
        assert_eq!(
            lines(|v| check(&tree, v)),
            [
                "docs/x.md:2: the link to `a.md` leads nowhere",
                "docs/x.md:2: the link to `../docs/b.md` leads nowhere",
                "docs/x.md:4: the link to `c.md` leads nowhere",
                "docs/x.md:5: the link to `../../etc/passwd` leads nowhere",
            ]
        );
    }

    #[test]
    fn a_changelog_without_a_place_for_the_next_release_is_found() {
        let expected = ["CHANGELOG.md:1: has no heading `## [Unreleased]`: add it above the releases"];
        assert_eq!(lines(|v| check(&Tree::of(&[]), v)), expected);
        assert_eq!(lines(|v| check(&Tree::of(&[(CHANGELOG, "## [1.0.0]\n")]), v)), expected);
    }

    #[test]
    fn missing_and_stray_error_pages_are_found() {
        let tree =
            Tree::of(&[("docs/errors/A0001.md", ""), ("docs/errors/README.md", ""), ("docs/errors/A0009.md", "")]);
        assert_eq!(
            lines(|v| check_errors(&tree, ["A0001", "A0002"].into_iter(), v)),
            [
                "docs/errors/A0002.md:1: the page is missing: run `cargo xtask generate`",
                "docs/errors/A0009.md:1: no row of the error table has this page: remove it",
            ]
        );
    }
}
