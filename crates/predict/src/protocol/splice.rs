//! Changing a field at the top of a JSON text without touching the rest: the order in which a caller has written the
//! parameters of a tool is part of what the model reads. Only for text that was read as an object before.

/// Gives a field of the object a value, written as JSON; where it stands already, else as the first one.
pub(crate) fn put(text: &mut Vec<u8>, field: &str, value: &[u8]) {
    if let Some((start, end)) = find(text, field) {
        text.splice(start..end, value.iter().copied());
        return;
    }
    let Some(open) = text.iter().position(|byte| *byte == b'{') else { return };
    let is_empty = text.get(skip_space(text, open + 1)) == Some(&b'}');
    let mut added = serde_json::Value::from(field).to_string().into_bytes();
    added.push(b':');
    added.extend_from_slice(value);
    if !is_empty {
        added.push(b',');
    }
    text.splice(open + 1..open + 1, added);
}

/// Where the value of a field begins and ends.
fn find(text: &[u8], field: &str) -> Option<(usize, usize)> {
    let mut at = skip_space(text, 0);
    if text.get(at) != Some(&b'{') {
        return None;
    }
    at = skip_space(text, at + 1);
    while text.get(at) == Some(&b'"') {
        let key_end = skip_value(text, at);
        // Keys may be written with escapes.
        let is_it = serde_json::from_slice::<String>(text.get(at..key_end)?).is_ok_and(|key| key == field);
        at = skip_space(text, key_end);
        at = skip_space(text, at + usize::from(text.get(at) == Some(&b':')));
        let end = skip_value(text, at);
        if is_it {
            return Some((at, end));
        }
        at = skip_space(text, end);
        at = skip_space(text, at + usize::from(text.get(at) == Some(&b',')));
    }
    None
}

fn skip_space(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// The end of the value that begins here.
fn skip_value(text: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while text.get(at).is_some_and(|byte| *byte != b'"') {
                    at += 1 + usize::from(text[at] == b'\\');
                }
                at += 1;
                if depth == 0 {
                    return at.min(text.len());
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            b',' if depth == 0 => return at,
            byte if byte.is_ascii_whitespace() && depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(text: &str, field: &str, value: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        put(&mut bytes, field, value.as_bytes());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_rest_stays_as_it_was_written() {
        assert_eq!(with("{}", "a", "1"), r#"{"a":1}"#);
        assert_eq!(with(" { } ", "a", "1"), r#" {"a":1 } "#);
        assert_eq!(with(r#"{"z":1, "a" : 2 ,"b":3}"#, "a", "9"), r#"{"z":1, "a" : 9 ,"b":3}"#);
        assert_eq!(with(r#"{"z":{"a":1},"y":[{"a":2}]}"#, "a", "9"), r#"{"a":9,"z":{"a":1},"y":[{"a":2}]}"#);
        assert_eq!(with(r#"{"\u0061":"x\"}","b":0}"#, "a", "9"), r#"{"\u0061":9,"b":0}"#);
        assert_eq!(with(r#"{"s":"\\","a":[1,{"b":"]"}]}"#, "a", "null"), r#"{"s":"\\","a":null}"#);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn it_is_as_if_the_value_were_changed(keys in proptest::collection::vec(".{0,6}", 0..6), field in ".{0,3}", pretty: bool) {
            let mut value = json!({});
            for (i, key) in keys.iter().enumerate() {
                value[key] = match i % 4 { 0 => json!(key), 1 => json!([{"a": key}, "]}"]), 2 => json!(-1.5e3), _ => Value::Null };
            }
            let mut text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
            put(&mut text, &field, b"{\"new\":[true]}");
            value[&field] = json!({"new": [true]});
            proptest::prop_assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), value);
        }
    }
}
