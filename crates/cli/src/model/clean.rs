//! Keys of providers, taken out of what a provider answers while it passes. Used by the till; what only looks like a secret
//! is left alone here, an agent may have to write it.

use actum_contract::execution::Redactor;
use actum_predict::protocol::Meter;
use serde_json::Value;

/// Takes keys out of an answer as it passes, also where a piece ends in the middle of one.
pub(super) struct Clean<'r> {
    redactor: &'r Redactor,
    held: Vec<u8>,
    /// The end of what has passed.
    seen: Vec<u8>,
}

/// What the pieces of an answer come to where they meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seam {
    None,
    /// Perhaps the beginning of a key.
    Begun,
    Key,
}

/// The longest key that is looked for across pieces.
const KEY_BYTES_MAX: usize = 4 << 10;
/// Fewer letters of a key tell nothing.
const BEGUN_BYTES_MIN: usize = 4;
/// Longer than a letter that is spelt, with slashes before it.
const SPELT_BYTES: usize = 16;
pub(super) const LEAK: &str = "the answer held a key of the provider, and was broken off";

impl<'r> Clean<'r> {
    pub(super) fn new(redactor: &'r Redactor) -> Self {
        Self { redactor, held: Vec::new(), seen: Vec::new() }
    }

    /// A key may also be told in several events, a few letters each: its bytes are nowhere, and whoever puts them together
    /// has it.
    pub(super) fn seam(&self, meter: &Meter) -> Seam {
        let ends = meter.ends(KEY_BYTES_MAX);
        if ends.iter().any(|end| self.redactor.redact_values(end).1 > 0) {
            return Seam::Key;
        }
        match ends.iter().any(|end| self.redactor.begun(end) >= BEGUN_BYTES_MIN) {
            true => Seam::Begun,
            false => Seam::None,
        }
    }

    /// Whether a document tells a key in other letters than its own: `\u0073k-…`.
    pub(super) fn is_told_otherwise(&self, body: &[u8]) -> bool {
        fn holds(value: &Value, redactor: &Redactor) -> bool {
            match value {
                Value::String(text) => redactor.redact_values(text.as_bytes()).1 > 0,
                Value::Array(all) => all.iter().any(|one| holds(one, redactor)),
                Value::Object(all) => {
                    all.iter().any(|(key, one)| redactor.redact_values(key.as_bytes()).1 > 0 || holds(one, redactor))
                }
                _ => false,
            }
        }
        body.contains(&b'\\') && serde_json::from_slice::<Value>(body).is_ok_and(|value| holds(&value, self.redactor))
    }

    /// Whether a stream spells plain letters by their numbers: no provider does, unless it has something to hide.
    pub(super) fn spells(&mut self, piece: &[u8]) -> bool {
        let bytes = [&self.seen[..], piece].concat();
        let is_letter = |hex: &[u8]| {
            let text = std::str::from_utf8(hex).unwrap_or_default();
            u8::from_str_radix(text, 16).is_ok_and(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let at = |n: usize| {
            let slashes = bytes[..n].iter().rev().take_while(|byte| **byte == b'\\').count();
            slashes % 2 == 0 && bytes[n..].starts_with(b"\\u00") && bytes.get(n + 4..n + 6).is_some_and(is_letter)
        };
        let found = (0..bytes.len()).any(at);
        self.seen = bytes[bytes.len().saturating_sub(SPELT_BYTES)..].to_vec();
        found
    }

    pub(super) fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let keep = self.redactor.begun(&self.held);
        let rest = self.held.split_off(self.held.len() - keep);
        let clean = self.redactor.redact_values(&self.held).0;
        self.held = rest;
        clean
    }

    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.redactor.redact_values(&std::mem::take(&mut self.held)).0
    }
}

#[cfg(test)]
mod tests {
    use actum_predict::protocol::{Protocol, Question};

    use super::*;

    const KEY: &str = "sk-0123456789";

    #[test]
    fn a_key_is_found_wherever_it_is_cut() {
        let redactor = Redactor::new([KEY]);
        let text = format!("a {KEY} b {KEY}{KEY} sk-01234 sk-0");
        for size in 1..text.len() {
            let mut clean = Clean::new(&redactor);
            let mut out: Vec<u8> = text.as_bytes().chunks(size).flat_map(|piece| clean.feed(piece)).collect();
            out.extend(clean.rest());
            assert_eq!(String::from_utf8(out).unwrap(), "a [REDACTED] b [REDACTED][REDACTED] sk-01234 sk-0", "{size}");
        }
    }

    #[test]
    fn a_key_in_several_events_is_seen_before_its_end_is_told() {
        let redactor = Redactor::new([KEY]);
        let body = br#"{"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]}"#;
        let question = Question::read(Protocol::Chat, None, true, body).unwrap();
        let event = |text: &str, name: &str| match name {
            "content" => format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"{text}\"}}}}]}}\n\n"),
            _ => format!(
                "data: {{\"choices\": [{{\"delta\": {{\"tool_calls\": [{{\"index\": 0, \"function\": {{\"name\": \"t\", \
                 \"arguments\": \"{text}\"}}}}]}}}}]}}\n\n"
            ),
        };
        for name in ["content", "call"] {
            let (clean, mut meter) = (Clean::new(&redactor), Meter::new(&question));
            let mut seams = Vec::new();
            for piece in ["It is sk", "-0", "123", "4567", "89", "!"] {
                drop(meter.feed(event(piece, name).as_bytes()));
                seams.push(clean.seam(&meter));
            }
            use Seam::{Begun, Key, None};
            assert_eq!(seams, [None, Begun, Begun, Begun, Key, Key], "{name}");
            let mut meter = Meter::new(&question);
            for piece in ["sk-0", "sk-01", " and so on"] {
                drop(meter.feed(event(piece, name).as_bytes()));
            }
            assert_eq!(clean.seam(&meter), None, "{name}");
        }
    }

    #[test]
    fn letters_that_are_spelt_are_found_wherever_a_piece_ends() {
        let redactor = Redactor::new([KEY]);
        let told = |text: &str, cut: usize| {
            let mut clean = Clean::new(&redactor);
            let (a, b) = text.as_bytes().split_at(cut);
            clean.spells(a) | clean.spells(b)
        };
        let spelt = r#"data: {"x":"\u0073k-0123456789"}"#;
        for cut in 0..spelt.len() {
            assert!(told(spelt, cut), "{cut}");
        }
        // What speaks of escapes, and escapes of what is no letter, stay.
        for text in [r#"{"x":"a \\u0073 b"}"#, r#"{"x":"\u003cb\u003e \u00e4 \u0026"}"#] {
            assert!(!told(text, 3), "{text}");
        }
        assert!(Clean::new(&redactor).is_told_otherwise(r#"{"x":["\u0073k-0123456789"]}"#.as_bytes()));
    }
}
