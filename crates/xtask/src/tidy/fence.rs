//! The bans in the `clippy.toml` files. Clippy reads only the nearest file, so a crate that is the door for something
//! has to repeat all other bans; this compares them. It never looks at the reasons, only at what is banned.

use super::{Tree, Violation, tree::line_where};
use toml::{Table, Value};

/// A crate, why it may do what others may not, and the bans of the root that it therefore lifts.
pub(super) type Lifted = &'static [(&'static str, &'static str, &'static [&'static [&'static str]])];

const ENVIRONMENT: &[&str] = &["std::env::var", "std::env::var_os", "std::env::vars", "std::env::current_dir"];
const FILES: &[&str] =
    &["std::fs::read", "std::fs::read_to_string", "std::fs::write", "std::fs::File::open", "std::fs::File::create"];
const PROGRAMS: &[&str] = &["std::process::Command::new"];
const EXIT: &[&str] = &["std::process::exit"];
const THREADS: &[&str] = &["std::thread::spawn"];
const STD_CLOCKS: &[&str] = &["std::time::SystemTime::now", "std::time::Instant::now"];
const CLOCK: &[&str] = &["jiff::Timestamp::now"];
const IDS: &[&str] = &["uuid::Uuid::now_v7"];
const TASKS: &[&str] = &["tokio::spawn", "tokio::task::spawn", "tokio::task::spawn_blocking"];

/// A crate may lift fewer than its row says. Rows may wait for their crate.
pub(super) const LIFTED: Lifted = &[
    (
        "cli",
        "the composition root: the user's files, environment and exit code end here, and it stamps what was typed",
        &[ENVIRONMENT, FILES, EXIT, STD_CLOCKS, CLOCK, IDS],
    ),
    ("store", "stamps rows, measures waits for locks, keeps packs of contents", &[FILES, STD_CLOCKS, CLOCK, IDS]),
    ("workspace", "the file tree is its subject", &[FILES]),
    (
        "sandbox",
        "starts other people's code, in cells that are folders, with deadlines",
        &[PROGRAMS, FILES, STD_CLOCKS],
    ),
    ("engine", "the only place that moves: leases, timers, tasks", &[STD_CLOCKS, CLOCK, IDS, TASKS]),
    ("adapters", "waits for others, and not for ever", &[STD_CLOCKS]),
    ("server", "a task for each connection", &[TASKS]),
    (
        "testkit",
        "throwaway servers are programs with folders and deadlines",
        &[ENVIRONMENT, FILES, PROGRAMS, EXIT, THREADS, STD_CLOCKS],
    ),
    (
        "xtask",
        "drives other programs and rewrites files; never part of the product",
        &[ENVIRONMENT, FILES, PROGRAMS, EXIT, THREADS, STD_CLOCKS],
    ),
];

const ROOT: &str = "clippy.toml";

pub(super) fn check(tree: &Tree, lifted: Lifted, violations: &mut Vec<Violation>) {
    let Some(root) = tree.text(ROOT).and_then(|text| text.parse::<Table>().ok()) else {
        violations.push(Violation::new(ROOT, 1, "the fence is missing or is not TOML"));
        return;
    };
    for (path, _) in tree.files().filter(|(path, _)| path.rsplit('/').next() == Some(".clippy.toml")) {
        violations.push(Violation::new(path, 1, "clippy prefers this file to clippy.toml: remove it"));
    }
    for (name, _, bans) in lifted {
        for ban in bans.iter().copied().flatten().filter(|ban| !bans_of(&root).any(|(_, banned)| banned == **ban)) {
            violations.push(Violation::new(
                ROOT,
                1,
                format!("tidy lifts `{ban}` for {name}, but nothing bans it here"),
            ));
        }
    }
    for name in tree.crates() {
        let path = format!("crates/{name}/clippy.toml");
        let row = lifted.iter().find(|(owner, ..)| *owner == name);
        match (tree.text(&path), row) {
            (Some(text), Some((.., bans))) => compare(&root, &path, text, &bans.concat(), violations),
            (Some(_), None) => violations.push(Violation::new(path, 1, format!("{name} is no door: remove this file"))),
            (None, Some(_)) => {
                violations.push(Violation::new(
                    path,
                    1,
                    format!("{name} is a door: repeat here what it does not lift"),
                ));
            }
            (None, None) => {}
        }
    }
}

fn compare(root: &Table, path: &str, text: &str, lifted: &[&str], violations: &mut Vec<Violation>) {
    let Ok(own) = text.parse::<Table>() else {
        violations.push(Violation::new(path, 1, "is not TOML"));
        return;
    };
    for (list, ban) in bans_of(root).filter(|(_, ban)| !lifted.contains(ban)) {
        if !bans_of(&own).any(|other| other == (list, ban)) {
            let line = line_where(text, |line| line.starts_with(list));
            violations.push(Violation::new(
                path,
                line,
                format!("`{ban}` is banned in the root and not lifted: repeat it"),
            ));
        }
    }
    for (key, value) in root.iter().filter(|(key, _)| !is_list(key)) {
        if own.get(key) != Some(value) {
            let line = line_where(text, |line| line.starts_with(key.as_str()));
            violations.push(Violation::new(path, line, format!("`{key}` must be as in the root: {value}")));
        }
    }
}

fn is_list(key: &str) -> bool {
    key.starts_with("disallowed-")
}

/// Every ban with the list it is in; an entry is a path or a table with a path.
fn bans_of(table: &Table) -> impl Iterator<Item = (&str, &str)> {
    let lists = table.iter().filter(|(key, _)| is_list(key));
    lists.flat_map(|(key, value)| {
        let entries = value.as_array().into_iter().flatten();
        let paths = entries.filter_map(|entry| entry.as_str().or_else(|| entry.get("path").and_then(Value::as_str)));
        paths.map(move |path| (key.as_str(), path))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    const FENCE: &str =
        "allow-unwrap-in-tests = true\ndisallowed-methods = [{ path = \"a::b\", reason = \"r\" }, \"c::d\"]\n";
    const ROWS: Lifted = &[("door", "because", &[&["a::b"]])];

    #[test]
    fn a_door_that_repeats_the_rest_passes() {
        let own = "allow-unwrap-in-tests = true\ndisallowed-methods = [\"c::d\"]\n";
        let tree = Tree::of(&[(ROOT, FENCE), ("crates/door/clippy.toml", own), ("crates/other/Cargo.toml", "")]);
        assert!(lines(|v| check(&tree, ROWS, v)).is_empty());
    }

    #[test]
    fn a_forgotten_ban_and_a_changed_setting_are_found() {
        let own = "# ours\ndisallowed-methods = [\"a::b\"]\n";
        let tree = Tree::of(&[(ROOT, FENCE), ("crates/door/clippy.toml", own)]);
        assert_eq!(
            lines(|v| check(&tree, ROWS, v)),
            [
                "crates/door/clippy.toml:2: `c::d` is banned in the root and not lifted: repeat it",
                "crates/door/clippy.toml:1: `allow-unwrap-in-tests` must be as in the root: true",
            ]
        );
    }

    #[test]
    fn a_missing_file_and_files_of_others_are_found() {
        let files = [
            (ROOT, FENCE),
            ("crates/door/Cargo.toml", ""),
            ("crates/x/clippy.toml", ""),
            ("crates/x/.clippy.toml", ""),
        ];
        assert_eq!(
            lines(|v| check(&Tree::of(&files), ROWS, v)),
            [
                "crates/x/.clippy.toml:1: clippy prefers this file to clippy.toml: remove it",
                "crates/door/clippy.toml:1: door is a door: repeat here what it does not lift",
                "crates/x/clippy.toml:1: x is no door: remove this file",
            ]
        );
    }

    #[test]
    fn a_lifted_ban_that_is_none_and_a_missing_fence_are_found() {
        let tree = Tree::of(&[(ROOT, "disallowed-methods = []\n")]);
        assert_eq!(
            lines(|v| check(&tree, ROWS, v)),
            ["clippy.toml:1: tidy lifts `a::b` for door, but nothing bans it here"]
        );
        assert_eq!(lines(|v| check(&Tree::of(&[]), ROWS, v)), ["clippy.toml:1: the fence is missing or is not TOML"]);
    }
}
