//! Rules about the text of files: openings, sizes, unfinished code, whitespace, words that must not appear.
//! It reads lines, never a syntax tree; where a lint can see more, the lint does the work.

use super::{Tree, Violation};

const LINES_MAX: usize = 800;

/// In Rust files. Each is cut in two so that this file does not break its own rule.
const UNFINISHED: &[(&str, &str)] = &[
    (concat!("#[al", "low("), "use `#[expect(…, reason = \"…\")]`: it tells when it is no longer needed"),
    (concat!("#![al", "low("), "use `#![expect(…, reason = \"…\")]`: it tells when it is no longer needed"),
    (concat!("to", "do!("), "unfinished: do it or leave it out"),
    (concat!("unimple", "mented!("), "unfinished: do it or leave it out"),
    (concat!("db", "g!("), "a leftover of debugging: remove it"),
    (concat!("#[ig", "nore"), "a test that does not run proves nothing: mend it or remove it"),
];

/// In every text, whatever the case: we name packages, not the hosts they come from, which differ from site to site.
const HOSTS: &[&str] = &[concat!("crates", ".io"), concat!("pypi", ".org"), concat!("npm", "js")];

/// After the keyword; anything else is the English word.
const KEYWORD_CONTINUES: &[&str] = &["{", "(", "fn ", "impl ", "impl<", "trait ", "extern "];
const KEYWORD: &str = concat!("un", "safe");
const KEYWORD_HOME: &str = "crates/sandbox/src/sys";

pub(super) fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.files() {
        let is_rust = path.ends_with(".rs");
        if is_rust && path.starts_with("crates/") {
            check_rust(path, text, violations);
        }
        if is_rust || path.ends_with(".md") || path.ends_with(".toml") {
            check_whitespace(path, text, violations);
        }
        if !path.ends_with(".lock") && !path.ends_with("-lock.json") {
            check_hosts(path, text, violations);
        }
    }
}

fn check_rust(path: &str, text: &str, violations: &mut Vec<Violation>) {
    if !text.starts_with("//!") {
        violations.push(Violation::new(
            path,
            1,
            "begin with a `//!` sentence: what it is for, who calls it, what it never does",
        ));
    }
    let count = text.lines().count();
    if count > LINES_MAX {
        violations.push(Violation::new(
            path,
            count,
            format!("{count} lines, at most {LINES_MAX}: two things live here"),
        ));
    }
    for (number, line) in numbered(text) {
        for (word, rule) in UNFINISHED {
            if line.contains(word) {
                violations.push(Violation::new(path, number, *rule));
            }
        }
        if !path.starts_with(KEYWORD_HOME) && has_keyword(line) {
            violations.push(Violation::new(path, number, format!("`{KEYWORD}` lives only in {KEYWORD_HOME}")));
        }
    }
}

fn has_keyword(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(KEYWORD).any(|(at, _)| {
        let is_word_part = |c: char| c.is_alphanumeric() || c == '_';
        let rest = &code[at + KEYWORD.len()..];
        let stands_alone = !code[..at].ends_with(is_word_part) && !rest.starts_with(is_word_part);
        let rest = rest.trim_start();
        stands_alone && (rest.is_empty() || KEYWORD_CONTINUES.iter().any(|next| rest.starts_with(next)))
    })
}

fn check_whitespace(path: &str, text: &str, violations: &mut Vec<Violation>) {
    for (number, line) in numbered(text) {
        if line.contains('\t') {
            violations.push(Violation::new(path, number, "a tab: indent with spaces"));
        }
        if line.ends_with(char::is_whitespace) {
            violations.push(Violation::new(path, number, "whitespace at the end of the line"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        violations.push(Violation::new(path, text.lines().count(), "the file does not end in a newline"));
    }
}

fn check_hosts(path: &str, text: &str, violations: &mut Vec<Violation>) {
    for (number, line) in numbered(text) {
        let line = line.to_lowercase();
        if let Some(host) = HOSTS.iter().find(|host| line.contains(**host)) {
            violations.push(Violation::new(
                path,
                number,
                format!("names a package registry ({host}): name the package only"),
            ));
        }
    }
}

/// Split at `\n` alone: a carriage return is whitespace at the end of a line.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    fn places(path: &str, text: &str) -> Vec<String> {
        let found = lines(|v| check(&Tree::of(&[(path, text)]), v));
        found.iter().map(|line| line.strip_prefix(path).unwrap().split(": ").next().unwrap()[1..].to_owned()).collect()
    }

    #[test]
    fn a_clean_file_passes() {
        assert!(places("crates/a/src/lib.rs", "//! Says what it is for.\n\nfn main() {}\n").is_empty());
    }

    #[test]
    fn a_missing_opening_and_a_long_file_are_found() {
        assert_eq!(places("crates/a/src/lib.rs", "fn main() {}\n"), ["1"]);
        let long = format!("//! Long.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(places("crates/a/src/lib.rs", &long), ["801"]);
        assert!(places("fuzz/a.rs", "fn main() {}\n").is_empty(), "the rule is for crates/");
    }

    #[test]
    fn unfinished_code_is_found() {
        for (word, _) in UNFINISHED {
            let found = places("crates/a/src/lib.rs", &format!("//! A.\n  {word}x\n"));
            assert_eq!(found, ["2"], "{word}");
        }
    }

    #[test]
    fn the_keyword_is_found_outside_its_home() {
        for code in ["{ x }", "fn f() {}", "impl A for B {}", "(no_mangle)", ""] {
            let text = format!("//! A.\n{KEYWORD} {code}\n").replace(&format!("{KEYWORD} \n"), &format!("{KEYWORD}\n"));
            assert_eq!(places("crates/a/src/lib.rs", &text), ["2"], "{code}");
            assert!(places("crates/sandbox/src/sys/clone.rs", &text).is_empty());
        }
        let words = format!("//! A.\n#![forbid({KEYWORD}_code)]\n// {KEYWORD} {{\nlet s = \"an {KEYWORD} path\";\n");
        assert!(places("crates/a/src/lib.rs", &words).is_empty());
    }

    #[test]
    fn stray_whitespace_is_found() {
        assert_eq!(places("a.md", "x \n"), ["1"]);
        assert_eq!(places("a.md", "x\r\n"), ["1"]);
        assert_eq!(places("a.toml", "y\n\tx\n"), ["2"]);
        assert_eq!(places("a.rs", "y\nx"), ["2"]);
        assert!(places("a.json", "{\t} ").is_empty());
    }

    #[test]
    fn registries_are_found_by_name() {
        for host in HOSTS {
            assert_eq!(places("docs/a.md", &format!("\nsee https://{}/x\n", host.to_uppercase())), ["2"]);
            assert_eq!(places(".ci/run", &format!("curl {host}\n")), ["1"]);
        }
        assert!(places("web/package-lock.json", HOSTS[2]).is_empty(), "lock files are written by machines");
    }
}
