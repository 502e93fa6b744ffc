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
    if in_order(members) {
        return write_members(members.iter(), out);
    }
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_unstable_by(|a, b| compare_utf16(a.0, b.0));
    write_members(sorted.into_iter(), out)
}

/// Whether the map yields its keys in canonical order. It usually does, but its order is a build feature of serde_json
/// that any dependency can switch. Byte order is the right one as long as no supplementary character is in sight.
fn in_order(members: &Map<String, Value>) -> bool {
    let mut before: Option<&String> = None;
    members.keys().all(|key| {
        let follows = before.is_none_or(|before| before < key) && !key.bytes().any(|b| b >= 0xF0);
        before = Some(key);
        follows
    })
}

fn write_members<'a>(
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    out.push(b'{');
    for (i, (key, value)) in members.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_text(key, out);
        out.push(b':');
        write(value, out)?;
    }
    out.push(b'}');
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
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + 2);
    out.push(b'"');
    while let Some(at) = first_escape(rest) {
        let byte = rest[at];
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        match ESCAPE[byte as usize] {
            b'u' => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[(byte >> 4) as usize]);
                out.push(HEX[(byte & 15) as usize]);
            }
            letter => out.extend_from_slice(&[b'\\', letter]),
        }
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Where the first byte stands that has to be escaped: a control character, a quote or a backslash. Looks at eight
/// bytes at a time; a borrow may mark a byte too many, but only behind one that is marked rightly.
fn first_escape(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let found = (below(word, 0x20) | quote | backslash) & HIGH;
        if found != 0 {
            return Some(i * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    tail.iter().position(|b| ESCAPE[*b as usize] != 0).map(|at| words.len() * 8 + at)
}
