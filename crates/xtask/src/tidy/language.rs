//! Words that messages, help texts and pages do not use, because a sentence with them has to be read twice. Looks at string literals
//! in code that is not a test, at the README and at the pages in `docs/`, help texts among them.

use super::{Tree, Violation};

const WORDS: [&str; 5] = ["whoever", "whatever", "somebody", "nobody", "anew"];

/// Files with such words in texts that are stored or sent, and must not change: reasons of policy decisions, which are judged again,
/// prompts whose answers are recorded, permissions that were agreed to, a user of the system.
const KEPT: [&str; 7] = [
    "crates/contract/src/execution/exit.rs",
    "crates/contract/src/tool/settlement.rs",
    "crates/ledger/src/spend/purse.rs",
    "crates/predict/src/strategy/operation.rs",
    "crates/cli/src/tool/settle.rs",
    "crates/sandbox/src/root.rs",
    "crates/xtask/src/tidy/language.rs",
];

/// Folders of tests and of what only tests and developers use.
const OUTSIDE: [&str; 4] = ["/tests/", "/benches/", "crates/testkit/", "crates/xtask/src/demo.rs"];

pub(super) fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.files() {
        let in_docs =
            path.strip_prefix("docs/").is_some_and(|rest| rest.ends_with(".md") && !rest.starts_with("design/"));
        if in_docs || path == "README.md" {
            check_page(path, text, violations);
        }
        let is_code = path.ends_with(".rs") && path.starts_with("crates/");
        if !is_code || KEPT.contains(&path) || OUTSIDE.iter().any(|part| path.contains(part)) {
            continue;
        }
        check_file(path, text, violations);
    }
}

fn check_page(path: &str, text: &str, violations: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        // What is between backticks is code.
        if let Some(word) = line.split('`').step_by(2).find_map(ruled_out) {
            let rule = format!("a page must not say {word:?}: name the component or the reader");
            violations.push(Violation::new(path, index + 1, rule));
        }
    }
}

fn check_file(path: &str, text: &str, violations: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        // What follows are tests of this file.
        if line.trim() == "#[cfg(test)]" || path.ends_with("/tests.rs") {
            return;
        }
        let Some(word) = literals(line).find_map(ruled_out) else { continue };
        let rule = format!("a message must not say {word:?}: name the component or the reader");
        violations.push(Violation::new(path, index + 1, rule));
    }
}

/// What is between quotes on a line; long literals are looked at line by line.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    let code = line.trim_start();
    let is_comment = code.starts_with("//");
    line.split('"').skip(1).step_by(2).filter(move |_| !is_comment)
}

fn ruled_out(text: &str) -> Option<&'static str> {
    let mut words = text.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_ascii_lowercase);
    words.find_map(|word| WORDS.into_iter().find(|ruled| word == *ruled))
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    fn found(text: &str) -> Vec<String> {
        lines(|v| check(&Tree::of(&[("crates/a/src/lib.rs", text)]), v))
    }

    #[test]
    fn reports_words_in_messages() {
        assert_eq!(found("fn f() { say(\"nobody answered\") }\n").len(), 1);
        assert_eq!(found("fn f() { say(\"Somebody's turn\") }\n").len(), 1);
    }

    #[test]
    fn reports_words_on_pages_outside_of_code() {
        let page = "Whoever asks.\n`nobody` is a user.\n";
        let found = lines(|v| check(&Tree::of(&[("docs/a.md", page), ("docs/design/b.md", page)]), v));
        assert_eq!(found, ["docs/a.md:1: a page must not say \"whoever\": name the component or the reader"]);
    }

    #[test]
    fn passes_comments_tests_and_parts_of_words() {
        assert!(found("// \"nobody\" is a user\nlet whoever = \"a new one\";\n").is_empty());
        assert!(found("fn f() {}\n#[cfg(test)]\nmod tests { const A: &str = \"nobody\"; }\n").is_empty());
        assert!(lines(|v| check(&Tree::of(&[("crates/a/tests/b.rs", "\"nobody\"\n")]), v)).is_empty());
    }
}
