//! The strict reader in front of the canonical writer. serde_json does the grammar; this adds what it lets through.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::limit::{DOCUMENT_BYTES_MAX, INTEGER_SAFE_MAX};

/// A refused document and the place of the flaw (lines and columns count from one; columns count bytes).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (line {line}, column {column})")]
pub struct ParseError {
    pub flaw: Flaw,
    pub message: String,
    pub line: usize,
    pub column: usize,
}

/// What kind of flaw, for callers that branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Not JSON at all.
    Syntax,
    /// JSON that ends too early.
    Truncated,
    DuplicateKey,
    UnsafeInteger,
    NotFinite,
    LoneSurrogate,
    InvalidUtf8,
    Depth,
    Size,
}

/// Reads one document; everything after it but whitespace is a flaw.
pub fn parse(text: &[u8]) -> Result<Value, ParseError> {
    if text.len() > DOCUMENT_BYTES_MAX {
        let message = format!("document of {} bytes is larger than {DOCUMENT_BYTES_MAX}", text.len());
        return Err(ParseError { flaw: Flaw::Size, message, line: 1, column: 1 });
    }
    let large = Cell::new(false);
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Strict { large: &large }.deserialize(&mut reader).and_then(|v| reader.end().map(|()| v));
    let value = value.map_err(|e| describe(&e, text))?;
    // serde_json reads an integer literal beyond 64 bits as a double; only the text still tells them apart.
    if large.get()
        && let Some(error) = find_unsafe_integer(text)
    {
        return Err(error);
    }
    Ok(value)
}

struct Strict<'a> {
    /// Set when a double arrives that may have been written as a large integer.
    large: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

const DUPLICATE: &str = "duplicate key ";
const UNSAFE: &str = "integer beyond ±(2^53−1): ";

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        if value.unsigned_abs() > INTEGER_SAFE_MAX {
            return Err(E::custom(format_args!("{UNSAFE}{value}")));
        }
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        if value > INTEGER_SAFE_MAX {
            return Err(E::custom(format_args!("{UNSAFE}{value}")));
        }
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        if value.abs() > INTEGER_SAFE_MAX as f64 {
            self.large.set(true);
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict { large: self.large })? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            // Looked up before the value is read, so that the position is the key's own.
            if members.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{DUPLICATE}{}", Value::String(key))));
            }
            let value = access.next_value_seed(Strict { large: self.large })?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

fn describe(error: &serde_json::Error, text: &[u8]) -> ParseError {
    let full = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    let message = full.strip_suffix(&suffix).unwrap_or(&full).to_owned();
    let flaw = if message.starts_with(DUPLICATE) {
        Flaw::DuplicateKey
    } else if message.starts_with(UNSAFE) {
        Flaw::UnsafeInteger
    } else if message == "number out of range" {
        Flaw::NotFinite
    } else if message.contains("surrogate") || message.contains("unexpected end of hex escape") {
        Flaw::LoneSurrogate
    } else if message == "invalid unicode code point" {
        Flaw::InvalidUtf8
    } else if message == "recursion limit exceeded" {
        Flaw::Depth
    } else if error.is_eof() {
        Flaw::Truncated
    } else {
        Flaw::Syntax
    };
    let message = match flaw {
        Flaw::NotFinite => "number is too large for a double".to_owned(),
        Flaw::LoneSurrogate => "lone surrogate in a string".to_owned(),
        Flaw::InvalidUtf8 => "text is not valid UTF-8".to_owned(),
        Flaw::Depth => format!("nested deeper than {} levels", crate::limit::JSON_DEPTH_MAX),
        Flaw::Truncated if text.iter().all(u8::is_ascii_whitespace) => "document is empty".to_owned(),
        Flaw::Truncated => "document ends too early".to_owned(),
        _ => message,
    };
    ParseError { flaw, message, line: error.line().max(1), column: error.column().max(1) }
}

/// The first integer literal beyond the safe range. The text has been read once, so it is known to be JSON.
fn find_unsafe_integer(text: &[u8]) -> Option<ParseError> {
    let (mut line, mut line_start, mut i) = (1, 0, 0);
    while i < text.len() {
        match text[i] {
            b'"' => {
                i += 1;
                while text[i] != b'"' {
                    i += 1 + usize::from(text[i] == b'\\');
                }
                i += 1;
            }
            b'-' | b'0'..=b'9' => {
                let start = i;
                while i < text.len() && matches!(text[i], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9') {
                    i += 1;
                }
                let literal = std::str::from_utf8(&text[start..i]).unwrap_or_default();
                let digits = literal.trim_start_matches('-');
                let integer = digits.bytes().all(|b| b.is_ascii_digit());
                if integer && digits.parse::<u64>().map_or(true, |n| n > INTEGER_SAFE_MAX) {
                    let message = format!("{UNSAFE}{literal}");
                    let column = start - line_start + 1;
                    return Some(ParseError { flaw: Flaw::UnsafeInteger, message, line, column });
                }
            }
            b'\n' => {
                i += 1;
                (line, line_start) = (line + 1, i);
            }
            _ => i += 1,
        }
    }
    None
}
