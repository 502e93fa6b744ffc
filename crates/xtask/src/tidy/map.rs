//! The code map in ARCHITECTURE.md names exactly the folders under `crates/`, both ways: maps drift unless compared.
//! It never reads what the map says about them.

use super::{Tree, Violation};
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(text) = tree.text(MAP) else {
        violations.push(Violation::new(
            MAP,
            1,
            "there is no code map: write one, a line \"- `crates/NAME`\" for each crate",
        ));
        return;
    };
    let folders = tree.crates();
    let mut named = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let entry = line.strip_prefix("- `crates/").and_then(|rest| rest.split_once('`'));
        let Some((name, _)) = entry else { continue };
        let name = name.trim_end_matches('/');
        if !folders.contains(name) {
            violations.push(Violation::new(
                MAP,
                index + 1,
                format!("there is no folder crates/{name}: take it off the map"),
            ));
        }
        if !named.insert(name) {
            violations.push(Violation::new(MAP, index + 1, format!("crates/{name} is on the map twice")));
        }
    }
    for name in folders.difference(&named) {
        violations.push(Violation::new(
            MAP,
            1,
            format!("crates/{name} is not on the map: add a line \"- `crates/{name}`\""),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    #[test]
    fn map_and_folders_are_compared_both_ways() {
        let map = "# Map\n\n- `crates/a` — this\n- `crates/gone` — that\n- `crates/a` — again\n";
        let tree = Tree::of(&[(MAP, map), ("crates/a/Cargo.toml", ""), ("crates/new/Cargo.toml", "")]);
        assert_eq!(
            lines(|v| check(&tree, v)),
            [
                "ARCHITECTURE.md:4: there is no folder crates/gone: take it off the map",
                "ARCHITECTURE.md:5: crates/a is on the map twice",
                "ARCHITECTURE.md:1: crates/new is not on the map: add a line \"- `crates/new`\"",
            ]
        );
    }

    #[test]
    fn a_missing_map_is_found_and_a_true_one_passes() {
        assert_eq!(lines(|v| check(&Tree::of(&[]), v)).len(), 1);
        let tree = Tree::of(&[(MAP, "- `crates/a`\n"), ("crates/a/Cargo.toml", "")]);
        assert!(lines(|v| check(&tree, v)).is_empty());
    }
}
