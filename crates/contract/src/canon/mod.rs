//! Canonical JSON (RFC 8785) in a strict profile: what cannot be written the same way everywhere is refused.
//!
//! `parse` turns text into a value and refuses duplicate keys, integer literals beyond ±(2^53−1), numbers that are
//! not finite, lone surrogates and deep nesting, each with its position. `write` turns a value into the one
//! canonical text. JCS is for hashes only; what is signed is always the exact bytes of an envelope.

mod parse;
mod write;

pub use parse::{Flaw, ParseError, parse};
pub use write::{Unwritable, compare_utf16, write, write_text};

use serde_json::{Number, Value};

use crate::digest::Digest;
use crate::limit::INTEGER_SAFE_MAX;

/// Canonical text of a value.
pub fn canonical(value: &Value) -> Result<Vec<u8>, Unwritable> {
    let mut out = Vec::with_capacity(1024);
    write(value, &mut out)?;
    Ok(out)
}

/// Numbers whose canonical text the strict reader would refuse: a double of integral value between 2^53 and 1e21 is
/// written as digits. What has to survive its own text must hold none. Path and number of each, below `path`.
pub fn unsafe_doubles(value: &Value, path: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    // Nearly always there is none; only then are paths worth their allocations.
    if holds_unsafe_double(value) {
        find_unsafe_doubles(value, path, &mut found);
    }
    found
}

fn is_unsafe_double(n: &Number) -> bool {
    let double = n.as_f64().filter(|_| n.is_f64()).map_or(0.0, f64::abs);
    double > INTEGER_SAFE_MAX as f64 && double < 1e21
}

fn holds_unsafe_double(value: &Value) -> bool {
    match value {
        Value::Number(n) => is_unsafe_double(n),
        Value::Array(items) => items.iter().any(holds_unsafe_double),
        Value::Object(members) => members.values().any(holds_unsafe_double),
        _ => false,
    }
}

fn find_unsafe_doubles(value: &Value, path: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Number(n) if is_unsafe_double(n) => found.push((path.to_owned(), n.to_string())),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                find_unsafe_doubles(item, &format!("{path}[{i}]"), found);
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                find_unsafe_doubles(member, &format!("{path}.{key}"), found);
            }
        }
        _ => {}
    }
}

/// SHA-256 over the canonical text.
pub fn sha256(value: &Value) -> Result<Digest, Unwritable> {
    Ok(Digest::sha256(&canonical(value)?))
}

#[cfg(test)]
mod tests;
