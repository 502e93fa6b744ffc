//! Taking secrets out of text before it is kept: those that are known by their value, and those that look like one.

use std::sync::LazyLock;

use regex::bytes::Regex;

/// What stands in the place of a secret.
const REDACTED: &[u8] = b"[REDACTED]";

/// Values shorter than this would take half of an innocent text with them.
const VALUE_BYTES_MIN: usize = 6;

/// Longest line that is looked at in one piece; what is longer is cut there, and both pieces are looked at.
const LINE_BYTES_MAX: usize = 64 << 10;

/// No secret that is looked for is longer, but for keys between two lines.
const SECRET_BYTES_MAX: usize = 4 << 10;

/// The word before a secret stays, so that one can see what was there.
static LOOKS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        r"(?s-u)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
        r"(?i-u)([a-z0-9_.-]*(?:api[_-]?key|secret|token|passwd|password|access[_-]?key|private[_-]?key|credentials?)[a-z0-9_-]*[\x22']?\s*[:=]\s*[\x22']?)(?:[0-9.]*[^\s\x22',;&0-9.][^\s\x22',;&]{5,}|[0-9.]{2,}[^\s\x22',;&0-9.][^\s\x22',;&]{3,}|[0-9.]{4,}[^\s\x22',;&0-9.][^\s\x22',;&]+)",
        r"(?i-u)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}",
        r"(?i-u)(\bauthorization[\x22']?\s*[:=]\s*[\x22']?(?:basic|bearer)\s+)[A-Za-z0-9._~+/=-]{8,}",
        r"(?-u)()\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}",
        r"(?-u)()\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"(?-u)()\bglpat-[A-Za-z0-9_-]{16,}",
        r"(?-u)()\bsk-[A-Za-z0-9_-]{16,}",
        r"(?-u)()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"(?-u)()\bAIza[A-Za-z0-9_-]{30,}",
        r"(?-u)()\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"(?-u)()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"(?-u)(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)[^\s/@]{3,}(?:@)",
    ];
    patterns.iter().map(|pattern| Regex::new(pattern).expect("the patterns are fixed, and tried by a test")).collect()
});

/// Takes out what looks like a secret, and the values it was told of.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    values: Vec<Vec<u8>>,
}

impl Redactor {
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<Vec<u8>> =
            values.into_iter().filter(|v| v.len() >= VALUE_BYTES_MIN).flat_map(forms).collect();
        // One value may contain another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// The bytes without the values it was told of, and how many there were.
    pub fn redact_values(&self, bytes: &[u8]) -> (Vec<u8>, u64) {
        let mut count = 0;
        let clean = self.values.iter().fold(bytes.to_vec(), |bytes, value| replace(&bytes, value, &mut count));
        (clean, count)
    }

    /// How many bytes at the end may be the beginning of a value it was told of.
    pub fn begun(&self, bytes: &[u8]) -> usize {
        let of = |value: &Vec<u8>| {
            (1..value.len().min(bytes.len() + 1)).rev().find(|n| bytes.ends_with(&value[..*n])).unwrap_or(0)
        };
        self.values.iter().map(of).max().unwrap_or(0)
    }

    /// The text without secrets, and how many there were.
    pub fn redact(&self, text: &[u8]) -> (Vec<u8>, u64) {
        let (mut text, mut count) = self.redact_values(text);
        for look in LOOKS.iter() {
            if look.is_match(&text) {
                count += look.find_iter(&text).count() as u64;
                text = look.replace_all(&text, [b"${1}", REDACTED].concat().as_slice()).into_owned();
            }
        }
        (text, count)
    }

    /// How much of the beginning of `pending` can be redacted now without cutting a secret in two.
    pub fn settled(&self, pending: &[u8]) -> usize {
        let is_long = pending.len() > LINE_BYTES_MAX;
        let line = pending.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        // Of a line without end the last part is kept back: it may be the beginning of a secret.
        let mut cut = if line == 0 && is_long { pending.len() - SECRET_BYTES_MAX } else { line };
        let before = |cut: usize, what: &[u8]| pending[..cut].windows(what.len()).rposition(|w| w == what);
        if let Some(begin) = before(cut, b"-----BEGIN ") {
            let is_open = before(cut, b"-----END ").is_none_or(|end| end < begin);
            cut = if is_open && pending.len() - begin < LINE_BYTES_MAX { begin } else { cut };
        }
        // A value that was begun, and one that lies across.
        for value in &self.values {
            let begun =
                (1..value.len()).rev().find(|length| *length <= cut && pending[..cut].ends_with(&value[..*length]));
            cut -= begun
                .filter(|length| {
                    pending.len() - cut < value.len() - length || pending[cut - length..].starts_with(value)
                })
                .unwrap_or(0);
        }
        let around = cut.saturating_sub(SECRET_BYTES_MAX);
        for look in LOOKS.iter() {
            let across =
                look.find_iter(&pending[around..]).find(|m| around + m.start() < cut && cut < around + m.end());
            cut = across.map_or(cut, |m| around + m.start());
        }
        cut
    }
}

/// A value as it is, and as it stands in JSON if that is different.
fn forms(value: &str) -> Vec<Vec<u8>> {
    let quoted = serde_json::Value::from(value).to_string();
    let within = &quoted.as_bytes()[1..quoted.len() - 1];
    let mut found = vec![value.as_bytes().to_vec()];
    if within != value.as_bytes() {
        found.push(within.to_vec());
    }
    if value.contains('/') {
        // Some writers of JSON escape it.
        found.push(value.replace('/', "\\/").into_bytes());
    }
    found
}

fn replace(text: &[u8], value: &[u8], count: &mut u64) -> Vec<u8> {
    let mut clean = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(value.len()).position(|window| window == value) {
        clean.extend_from_slice(&rest[..at]);
        clean.extend_from_slice(REDACTED);
        rest = &rest[at + value.len()..];
        *count += 1;
    }
    clean.extend_from_slice(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        String::from_utf8(Redactor::new(["hunter2-hunter2", "abc"]).redact(text.as_bytes()).0).unwrap()
    }

    #[test]
    fn all_patterns_are_regular_expressions() {
        assert_eq!(LOOKS.len(), 13);
    }

    #[test]
    fn known_values_and_what_looks_like_a_secret_are_taken_out() {
        assert_eq!(clean("x hunter2-hunter2 y abc"), "x [REDACTED] y abc", "short values are not looked for");
        assert_eq!(clean("API_KEY=0123456789abcdef done"), "API_KEY=[REDACTED] done");
        assert_eq!(clean("{\"password\": \"correct horse\"}"), "{\"password\": \"[REDACTED] horse\"}");
        assert_eq!(clean("Authorization: Bearer abcdefgh.ijkl"), "Authorization: Bearer [REDACTED]");
        assert_eq!(clean(&format!("ghp_{}", "a".repeat(36))), "[REDACTED]");
        assert_eq!(clean("AKIAIOSFODNN7EXAMPLE"), "[REDACTED]");
        assert_eq!(clean("postgres://me:pass-word@host/db"), "postgres://me:[REDACTED]host/db");
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\nmore\n-----END OPENSSH PRIVATE KEY-----";
        assert_eq!(clean(&format!("a\n{key}\nb")), "a\n[REDACTED]\nb");
        assert_eq!(clean("fn main() { let tokens = 3; }"), "fn main() { let tokens = 3; }");
    }

    #[test]
    fn a_value_is_found_in_json_as_well() {
        let redactor = Redactor::new(["pa\"ss\\word\n42"]);
        let text = r#"{"a": "pa\"ss\\word\n42"} pa"ss\word"#;
        let clean = redactor.redact_values(format!("{text}\n42").as_bytes()).0;
        assert_eq!(String::from_utf8(clean).unwrap(), r#"{"a": "[REDACTED]"} [REDACTED]"#);
    }

    #[test]
    fn a_stream_is_cut_only_where_no_secret_is() {
        let settled = |text: &[u8]| Redactor::new(["two\nlines"]).settled(text);
        assert_eq!(settled(b"one\ntw"), 4);
        assert_eq!(settled(b"no end yet"), 0);
        assert_eq!(settled(b"a\n-----BEGIN RSA PRIVATE KEY-----\nabc\n"), 2);
        assert_eq!(settled(b"-----BEGIN X-----\nabc\n-----END X-----\n"), 38);
        assert_eq!(settled(b"xtwo\n"), 1, "the rest of a value may follow");
        assert_eq!(settled(b"xtwo\nlines\n"), 11);
        assert_eq!(settled(b"xtwo\nother\n"), 11);
        let long = [vec![b'x'; LINE_BYTES_MAX], b"ghp_".to_vec(), vec![b'a'; 12]].concat();
        assert_eq!(settled(&long), long.len() - SECRET_BYTES_MAX);
        let across = [vec![b' '; LINE_BYTES_MAX - 10], b"ghp_".to_vec(), vec![b'a'; SECRET_BYTES_MAX]].concat();
        assert_eq!(settled(&across), LINE_BYTES_MAX - 10, "before the secret that lies across");
    }

    /// Whatever the pieces it comes in, nothing of a secret is left.
    #[test]
    fn pieces_hide_nothing() {
        let token = format!("ghp_{}", "a1".repeat(18));
        let texts = [
            format!("{}{token}\nDB_PASSWORD=hunter2222\nAWS_SECRET_ACCESS_KEY=abcdefgh\n", "x ".repeat(40_000)),
            format!("{}{token}{}", " ".repeat(65_530), " ".repeat(9_000)),
            "first two\nlines rest\n".to_owned(),
        ];
        for text in &texts {
            for size in [1_000, 4_096, 65_536, 65_542] {
                let redactor = Redactor::new(["two\nlines"]);
                let (mut pending, mut clean) = (Vec::new(), Vec::new());
                for piece in text.as_bytes().chunks(size) {
                    pending.extend_from_slice(piece);
                    let cut = redactor.settled(&pending);
                    clean.extend(redactor.redact(&pending[..cut]).0);
                    pending.drain(..cut);
                }
                clean.extend(redactor.redact(&pending).0);
                let clean = String::from_utf8(clean).unwrap();
                for secret in [&token[..8], "hunter2222", "abcdefgh", "two\nlines"] {
                    assert!(!clean.contains(secret), "{size}: {secret}");
                }
            }
        }
    }
}
