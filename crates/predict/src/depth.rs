//! How deep a value is nested. Asked by whoever reads or keeps what others wrote; never goes deeper than it was told.

use serde_json::Value;

/// Whether a value has more levels of lists and objects than this; a text or a number has none.
pub(crate) fn is_deeper(value: &Value, levels_max: usize) -> bool {
    let is_inner = |inner: &Value| is_deeper(inner, levels_max - 1);
    match value {
        Value::Array(_) | Value::Object(_) if levels_max == 0 => true,
        Value::Array(items) => items.iter().any(is_inner),
        Value::Object(members) => members.values().any(is_inner),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn levels_are_lists_and_objects() {
        for (value, levels) in [(json!("x"), 0), (json!([]), 1), (json!({"a": 1, "b": [{"c": null}]}), 3)] {
            assert!(!is_deeper(&value, levels), "{value}");
            assert!(levels == 0 || is_deeper(&value, levels - 1), "{value}");
        }
    }
}
