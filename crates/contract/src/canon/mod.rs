//! Canonical JSON (RFC 8785) in a strict profile: what cannot be written the same way everywhere is refused.
//!
//! `parse` turns text into a value and refuses duplicate keys, integer literals beyond ±(2^53−1), numbers that are
//! not finite, lone surrogates and deep nesting, each with its position. `write` turns a value into the one
//! canonical text. JCS is for hashes only; what is signed is always the exact bytes of an envelope.

mod parse;
mod write;

pub use parse::{Flaw, ParseError, parse};
pub use write::{Unwritable, compare_utf16, write, write_text};

use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;

/// Canonical text of a value.
pub fn canonical(value: &Value) -> Result<Vec<u8>, Unwritable> {
    let mut out = Vec::with_capacity(1024);
    write(value, &mut out)?;
    Ok(out)
}

/// Canonical text of one of our own types.
pub fn canonical_of<T: Serialize>(value: &T) -> Result<Vec<u8>, Unwritable> {
    let value = serde_json::to_value(value).map_err(|e| Unwritable::Unserializable(e.to_string()))?;
    canonical(&value)
}

/// A number whose canonical text the strict reader would refuse: a double of integral value between 2^53 and 1e21 is
/// written as digits. What has to survive its own text must not hold one. Returns its path and text.
pub fn find_unsafe_double(value: &Value) -> Option<(String, String)> {
    match value {
        Value::Number(n) => {
            let double = n.as_f64().filter(|_| n.is_f64())?.abs();
            let digits = double > crate::limit::INTEGER_SAFE_MAX as f64 && double < 1e21;
            digits.then(|| (String::new(), n.to_string()))
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(i, item)| find_unsafe_double(item).map(|(path, text)| (format!("[{i}]{path}"), text))),
        Value::Object(members) => members
            .iter()
            .find_map(|(key, member)| find_unsafe_double(member).map(|(path, text)| (format!(".{key}{path}"), text))),
        _ => None,
    }
}

/// SHA-256 over the canonical text.
pub fn sha256(value: &Value) -> Result<Digest, Unwritable> {
    Ok(Digest::sha256(&canonical(value)?))
}

#[cfg(test)]
mod tests;
