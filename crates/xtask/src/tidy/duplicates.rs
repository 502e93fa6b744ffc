//! Packages that we build with in several versions: each costs time and size, and a flaw has to be fixed in all of them. Those that
//! cannot be avoided now are listed; a new one fails.

use std::collections::BTreeMap;

use super::{Tree, Violation, tree::line_where};

const LOCK: &str = "Cargo.lock";

/// Package and number of versions. Other packages ask for the older ones: the tests' own verifiers (`signed_note`, `tlog_tiles`,
/// `serde_json_canonicalizer`, `insta`) for most, and rcgen, rustls-platform-verifier, object_store and opentelemetry.
const ACCEPTED: &[(&str, usize)] = &[
    ("base64", 3),
    ("bit-vec", 2),
    ("bitflags", 2),
    ("block-buffer", 2),
    ("const-oid", 2),
    ("cpufeatures", 2),
    ("crypto-common", 2),
    ("curve25519-dalek", 2),
    ("der", 2),
    ("digest", 2),
    ("ed25519", 2),
    ("ed25519-dalek", 2),
    ("fallible-iterator", 2),
    ("fiat-crypto", 2),
    ("getrandom", 3),
    ("itertools", 2),
    ("phf", 2),
    ("phf_shared", 2),
    ("pkcs8", 2),
    ("r-efi", 2),
    ("rand", 3),
    ("rand_core", 3),
    ("ryu-js", 2),
    ("sha2", 2),
    ("signature", 2),
    ("similar", 2),
    ("spki", 2),
    ("syn", 3),
    ("synstructure", 2),
    ("thiserror", 2),
    ("thiserror-impl", 2),
    ("wasi", 2),
    ("windows-sys", 2),
];

pub(super) fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    check_lock(tree.text(LOCK).unwrap_or_default(), ACCEPTED, violations);
}

fn check_lock(lock: &str, accepted: &[(&str, usize)], violations: &mut Vec<Violation>) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"')) {
            *counts.entry(name).or_default() += 1;
        }
    }
    let accepted_count = |name: &str| accepted.iter().find(|(known, _)| *known == name).map_or(1, |(_, count)| *count);
    for (name, count) in &counts {
        let most = accepted_count(name);
        if *count > most {
            let line = line_where(lock, |line| line == format!("name = \"{name}\""));
            let rule = format!("{name} is built in {count} versions, {most} accepted: `cargo tree -d` shows for whom");
            violations.push(Violation::new(LOCK, line, rule));
        }
    }
    for (name, count) in accepted {
        let now = counts.get(name).copied().unwrap_or_default();
        if now < *count {
            let rule = format!("tidy accepts {count} versions of {name}, and there are {now}: lower the number there");
            violations.push(Violation::new(LOCK, 1, rule));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    const LOCK_TEXT: &str = "[[package]]\nname = \"a\"\n[[package]]\nname = \"b\"\n[[package]]\nname = \"b\"\n";

    #[test]
    fn accepts_listed_duplicates() {
        assert!(lines(|v| check_lock(LOCK_TEXT, &[("b", 2)], v)).is_empty());
    }

    #[test]
    fn reports_new_duplicates_and_old_entries() {
        let found = lines(|v| check_lock(LOCK_TEXT, &[("a", 2)], v));
        assert_eq!(
            found,
            [
                "Cargo.lock:4: b is built in 2 versions, 1 accepted: `cargo tree -d` shows for whom",
                "Cargo.lock:1: tidy accepts 2 versions of a, and there are 1: lower the number there",
            ]
        );
    }
}
