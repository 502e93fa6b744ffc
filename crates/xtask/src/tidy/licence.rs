//! Every package we build with has a licence whose conditions we can meet. From cargo's own metadata, read as text by
//! the caller; never from the files of a package.

use super::{Tree, Violation, tree::line_where};

const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    // Of data, permissive: lists of certificate authorities.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// An exception only adds rights.
const EXCEPTIONS: &[&str] = &["LLVM-exception"];

/// An error if the metadata cannot be understood at all; then nothing was checked.
pub(super) fn check(metadata: &str, tree: &Tree, violations: &mut Vec<Violation>) -> Result<(), String> {
    let metadata: serde_json::Value = serde_json::from_str(metadata)
        .map_err(|error| format!("cannot read the output of `cargo metadata`: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("`cargo metadata` lists no packages")?;
    let lock = tree.text("Cargo.lock").unwrap_or_default();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let rule = match package["license"].as_str() {
            None => format!("package {name} names no licence"),
            Some(expression) if !is_acceptable(expression) => format!("package {name} is under `{expression}`"),
            Some(_) => continue,
        };
        let line = line_where(lock, |line| line == format!("name = \"{name}\""));
        violations.push(Violation::new(
            "Cargo.lock",
            line,
            format!("{rule}: replace it, or accept it in tidy with a reason"),
        ));
    }
    Ok(())
}

/// Whether the expression can be met with accepted licences alone; one that we cannot read cannot.
fn is_acceptable(expression: &str) -> bool {
    // The slash is the old way to write OR.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest).is_some_and(|met| met && rest.is_empty())
}

/// AND binds more closely than OR. Each reader consumes its words and answers nothing if they make no sense.
fn any(rest: &mut &[&str]) -> Option<bool> {
    let mut met = all(rest)?;
    while take(rest, "OR") {
        met |= all(rest)?;
    }
    Some(met)
}

fn all(rest: &mut &[&str]) -> Option<bool> {
    let mut met = one(rest)?;
    while take(rest, "AND") {
        met &= one(rest)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str]) -> Option<bool> {
    if take(rest, "(") {
        let met = any(rest)?;
        return take(rest, ")").then_some(met);
    }
    let (name, after) = rest.split_first()?;
    *rest = after;
    let mut met = ACCEPTED.contains(name);
    if take(rest, "WITH") {
        let (exception, after) = rest.split_first()?;
        *rest = after;
        met &= EXCEPTIONS.contains(exception);
    }
    Some(met)
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    match rest.split_first() {
        Some((first, after)) if *first == word => {
            *rest = after;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    #[test]
    fn expressions_are_judged() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "MIT OR GPL-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "GPL-3.0 AND MIT OR ISC",
        ] {
            assert!(is_acceptable(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT AND (GPL-3.0 OR AGPL-3.0)",
            "MIT WITH Some-exception",
            "(MIT",
            "MIT)",
            "",
            "OR",
            "MIT ISC",
        ] {
            assert!(!is_acceptable(bad), "{bad}");
        }
    }

    #[test]
    fn a_bad_and_a_missing_licence_are_found() {
        let metadata = r#"{"packages": [{"name": "good", "license": "MIT"}, {"name": "bad", "license": "GPL-3.0"},
            {"name": "silent", "license": null}]}"#;
        let tree = Tree::of(&[("Cargo.lock", "[[package]]\nname = \"bad\"\n")]);
        let found = lines(|v| check(metadata, &tree, v).unwrap());
        assert_eq!(
            found,
            [
                "Cargo.lock:2: package bad is under `GPL-3.0`: replace it, or accept it in tidy with a reason",
                "Cargo.lock:1: package silent names no licence: replace it, or accept it in tidy with a reason",
            ]
        );
    }

    #[test]
    fn metadata_that_lists_nothing_is_an_error() {
        assert!(check("{}", &Tree::of(&[]), &mut Vec::new()).is_err());
        assert!(check("", &Tree::of(&[]), &mut Vec::new()).is_err());
    }
}
