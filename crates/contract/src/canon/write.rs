//! The canonical writer. Called for every hash the system makes, so it allocates once and copies runs, not bytes.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use crate::limit::INTEGER_SAFE_MAX;

/// Why a value has no canonical text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    #[error("integer {0} lies beyond ±(2^53−1): write it as a string")]
    UnsafeInteger(String),
    #[error("number {0} is not finite")]
    NotFinite(String),
    #[error("value cannot be written as JSON: {0}")]
    Unserializable(String),
}

/// Appends the canonical text of `value` to `out`.
pub fn write(value: &Value, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number, out)?,
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(item, out)?;
            }
            out.push(b']');
        }
        Value::Object(members) => write_object(members, out)?,
    }
    Ok(())
}

fn write_object(members: &Map<String, Value>, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    out.push(b'{');
    // The map's own order is a build feature of serde_json that any dependency can switch, so it is only a hint.
    if members.keys().is_sorted_by(|a, b| compare_utf16(a, b) == Ordering::Less) {
        write_members(members.iter(), out)?;
    } else {
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_unstable_by(|a, b| compare_utf16(a.0, b.0));
        write_members(sorted.into_iter(), out)?;
    }
    out.push(b'}');
    Ok(())
}

fn write_members<'a>(
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    for (i, (key, value)) in members.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_text(key, out);
        out.push(b':');
        write(value, out)?;
    }
    Ok(())
}

/// Order of UTF-16 code units, read off the UTF-8 bytes: the two orders differ only where U+E000..U+FFFF (lead
/// bytes EE and EF) meets a supplementary character (lead bytes F0 and up, surrogates D800..DFFF in UTF-16).
pub fn compare_utf16(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    match a.iter().zip(b).find(|(x, y)| x != y) {
        None => a.len().cmp(&b.len()),
        Some((&x, &y)) if (x >= 0xF0) != (y >= 0xF0) && x.min(y) >= 0xEE => y.cmp(&x),
        Some((x, y)) => x.cmp(y),
    }
}

fn write_number(number: &Number, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    let mut digits = itoa::Buffer::new();
    if let Some(n) = number.as_i64() {
        if n.unsigned_abs() > INTEGER_SAFE_MAX {
            return Err(Unwritable::UnsafeInteger(n.to_string()));
        }
        out.extend_from_slice(digits.format(n).as_bytes());
    } else if let Some(n) = number.as_u64() {
        return Err(Unwritable::UnsafeInteger(n.to_string()));
    } else {
        match number.as_f64() {
            Some(n) if n.is_finite() => out.extend_from_slice(ryu_js::Buffer::new().format_finite(n).as_bytes()),
            _ => return Err(Unwritable::NotFinite(number.to_string())),
        }
    }
    Ok(())
}

/// For each byte: 0 = copy as it is, `u` = six-character escape, else the letter after the backslash.
const ESCAPE: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0A] = b'n';
    table[0x0C] = b'f';
    table[0x0D] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

/// Appends one string in canonical form, quotes included.
pub fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        let letter = ESCAPE[byte as usize];
        if letter == 0 {
            continue;
        }
        out.extend_from_slice(&bytes[copied..i]);
        copied = i + 1;
        if letter == b'u' {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(b"\\u00");
            out.push(HEX[(byte >> 4) as usize]);
            out.push(HEX[(byte & 15) as usize]);
        } else {
            out.extend_from_slice(&[b'\\', letter]);
        }
    }
    out.extend_from_slice(&bytes[copied..]);
    out.push(b'"');
}
