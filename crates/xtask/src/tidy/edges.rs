//! Who may depend on whom: the edges between our crates, and the heavy crates of others that stay behind one door.
//! A crate may have fewer edges than the table allows, never another one.

use super::Violation;
use super::manifest::{Manifests, package_of};

/// As in ARCHITECTURE.md. A new edge is the weightiest change there is; it begins here.
const EDGES: &[(&str, &[&str])] = &[
    ("contract", &[]),
    ("ledger", &["contract"]),
    ("predict", &["contract"]),
    ("kernel", &["contract", "ledger", "predict"]),
    ("store", &["contract", "ledger", "predict"]),
    ("workspace", &["contract", "kernel"]),
    ("sandbox", &["contract", "kernel"]),
    ("adapters", &["contract", "kernel", "predict"]),
    ("engine", &["contract", "kernel", "ledger", "predict"]),
    ("api", &["contract"]),
    ("server", &["api", "contract", "engine", "ledger", "predict"]),
    (
        "cli",
        &[
            "adapters",
            "api",
            "contract",
            "engine",
            "kernel",
            "ledger",
            "predict",
            "sandbox",
            "server",
            "store",
            "workspace",
        ],
    ),
    ("testkit", &["contract", "ledger"]),
    ("xtask", &["api"]),
];

/// The crate that tests may use wherever they stand.
const TESTS_MAY_USE: &str = "testkit";

/// Crates of others, and the crate of ours whose product code may use them; a second row is a second door.
const DOORS: &[(&str, &str)] = &[
    ("rusqlite", "store"),
    ("tokio-postgres", "store"),
    ("deadpool-postgres", "store"),
    ("reqwest", "adapters"),
    // Only for the TLS of the object stores.
    ("reqwest", "store"),
    ("object_store", "store"),
    ("axum", "server"),
    ("landlock", "sandbox"),
    ("libc", "sandbox"),
    ("clap", "cli"),
    ("miette", "cli"),
];

pub(super) fn check(manifests: &Manifests, violations: &mut Vec<Violation>) {
    for manifest in &manifests.crates {
        let from = manifest.folder.as_str();
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == from) else {
            violations
                .push(manifest.violation(1, format!("`{from}` is not in the table of edges of tidy: add it there")));
            continue;
        };
        for dependency in &manifest.dependencies {
            let Some((to, _)) = EDGES.iter().find(|(name, _)| package_of(name) == dependency.package) else { continue };
            let by_a_test = dependency.dev && *to == TESTS_MAY_USE;
            if !allowed.contains(to) && !by_a_test {
                let allowed = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
                let rule = format!("{from} may not depend on {to}; it may depend on {allowed}");
                violations.push(manifest.violation(dependency.line, rule));
            }
        }
    }
}

/// Tests are free: what they pull in reaches nobody.
pub(super) fn check_doors(manifests: &Manifests, violations: &mut Vec<Violation>) {
    for manifest in &manifests.crates {
        for dependency in manifest.dependencies.iter().filter(|dependency| !dependency.dev) {
            let doors = DOORS.iter().filter(|(package, _)| *package == dependency.package).map(|(_, door)| *door);
            let doors: Vec<&str> = doors.collect();
            if !doors.is_empty() && !doors.contains(&manifest.folder.as_str()) {
                let (package, door) = (&dependency.package, doors.join(" and "));
                let rule = format!("{package} stays behind its door: only {door} may depend on it");
                violations.push(manifest.violation(dependency.line, rule));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{lines, manifests};
    use super::*;

    #[test]
    fn allowed_edges_and_fewer_pass() {
        let found = manifests(&[
            ("crates/contract/Cargo.toml", "[dev-dependencies]\nactum-testkit.workspace = true\n"),
            ("crates/kernel/Cargo.toml", "[dependencies]\nactum-contract.workspace = true\nserde = \"1\"\n"),
            ("crates/cli/Cargo.toml", "[dependencies]\nactum-store.workspace = true\n"),
        ]);
        assert!(lines(|v| check(&found, v)).is_empty());
    }

    #[test]
    fn forbidden_edges_are_found() {
        let found = manifests(&[
            ("crates/contract/Cargo.toml", "[dependencies]\nactum-ledger.workspace = true\n"),
            ("crates/sandbox/Cargo.toml", "[dependencies]\nactum-store.workspace = true\n"),
            ("crates/store/Cargo.toml", "[dependencies]\nactum-testkit.workspace = true\n"),
            ("crates/api/Cargo.toml", "[dev-dependencies]\ncli = { package = \"actum\", path = \"../cli\" }\n"),
            ("crates/util/Cargo.toml", ""),
        ]);
        assert_eq!(
            lines(|v| check(&found, v)),
            [
                "crates/api/Cargo.toml:2: api may not depend on cli; it may depend on contract",
                "crates/contract/Cargo.toml:2: contract may not depend on ledger; it may depend on nothing",
                "crates/sandbox/Cargo.toml:2: sandbox may not depend on store; it may depend on contract, kernel",
                "crates/store/Cargo.toml:2: store may not depend on testkit; it may depend on contract, ledger, predict",
                "crates/util/Cargo.toml:1: `util` is not in the table of edges of tidy: add it there",
            ]
        );
    }

    #[test]
    fn the_table_has_no_cycle() {
        for (index, (name, allowed)) in EDGES.iter().enumerate() {
            let position = |wanted: &str| EDGES.iter().position(|(name, _)| *name == wanted);
            assert!(allowed.iter().all(|to| position(to).is_some_and(|to| to < index)), "{name} looks upwards");
        }
    }

    #[test]
    fn heavy_crates_outside_their_door_are_found() {
        let found = manifests(&[
            ("crates/cli/Cargo.toml", "[dependencies]\nclap = \"4\"\nrusqlite = \"1\"\n"),
            ("crates/ledger/Cargo.toml", "[dev-dependencies]\nrusqlite = \"1\"\n"),
            ("crates/store/Cargo.toml", "[dependencies]\nrusqlite = \"1\"\n"),
        ]);
        assert_eq!(
            lines(|v| check_doors(&found, v)),
            ["crates/cli/Cargo.toml:3: rusqlite stays behind its door: only store may depend on it"]
        );
    }
}
