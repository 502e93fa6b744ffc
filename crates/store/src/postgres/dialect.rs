//! Our SQL, looked through for what CockroachDB and YugabyteDB do not have, or have otherwise. What we use all the same stands
//! here with its place, and in `docs/operations.md` with what that means. Tests only.

/// Everything that is said to a shared store, by the names of its files.
fn sources() -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for (path, begin, end) in [("src/postgres", "", ".rs"), ("migrations", "postgres-", ".sql")] {
        for entry in std::fs::read_dir(folder.join(path)).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(name) = name.strip_prefix(begin).and_then(|name| name.strip_suffix(end)) else { continue };
            if name != "dialect" {
                all.push((name.to_owned(), std::fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    assert!(all.len() >= 20, "{all:?}");
    all.sort();
    all
}

/// What one of them does not have, and where we use it all the same.
const SPECIAL: [(&str, &[&str]); 27] = [
    ("LISTEN ", &[]),
    ("NOTIFY ", &[]),
    ("CREATE FUNCTION", &[]),
    ("CREATE TRIGGER", &[]),
    ("CREATE RULE", &[]),
    ("CREATE EXTENSION", &[]),
    ("CREATE DOMAIN", &[]),
    ("DO $$", &[]),
    ("EXCLUDE USING", &[]),
    ("DEFERRABLE", &[]),
    ("ctid", &[]),
    ("xmin", &[]),
    ("UNLOGGED", &[]),
    ("TABLESAMPLE", &[]),
    ("CURSOR WITH HOLD", &[]),
    ("CREATE SEQUENCE", &[]),
    ("pg_advisory_lock", &[]),
    ("pg_try_advisory", &[]),
    ("PREPARE TRANSACTION", &[]),
    ("COPY ", &[]),
    ("pg_advisory_xact_lock", &["open"]),
    ("pg_logical_emit_message", &["mod"]),
    ("LOCK TABLE", &["upkeep"]),
    ("TEMP TABLE", &["upkeep"]),
    ("toast_tuple_target", &["0002"]),
    ("fillfactor", &["0002", "0004"]),
    ("INCLUDE (", &["0002", "0003"]),
];

const PAGE: &str = include_str!("../../../../docs/operations.md");

#[test]
fn what_others_do_not_have_is_used_where_it_is_said_and_nowhere_else() {
    let all = sources();
    for (word, places) in SPECIAL {
        let found: Vec<&str> =
            all.iter().filter(|(_, text)| text.contains(word)).map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, places, "{word}");
        assert!(
            places.is_empty() || PAGE.contains(&format!("`{}`", word.trim_end_matches(" ("))),
            "{word} is not told of"
        );
    }
}

#[test]
fn who_gets_into_anothers_way_tries_again_and_nobody_else() {
    use super::{AGAIN, is_to_be_tried_again};
    use actum_ledger::journal::JournalError;
    assert!(is_to_be_tried_again(&JournalError::Unavailable(format!("{AGAIN}: db error"))));
    assert!(!is_to_be_tried_again(&JournalError::Unavailable("connection closed".into())));
    assert!(!is_to_be_tried_again(&JournalError::Damaged(AGAIN.into())));
}
