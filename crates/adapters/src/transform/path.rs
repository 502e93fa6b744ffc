//! Paths into JSON as RFC 9535 has them. A path that can only ever lead to one place gives what is there, any other a list.

use serde_json::Value;
use serde_json_path::JsonPath;

/// Values in what is found, all together: one that contains another can be found with it, and so on.
const FOUND_VALUES_MAX: usize = 1_000_000;

#[derive(Debug)]
pub(super) struct Path {
    query: JsonPath,
    is_singular: bool,
}

impl Path {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let query = JsonPath::parse(text).map_err(|e| format!("{text:?} is no JSONPath: {}", e.message()))?;
        Ok(Self { query, is_singular: is_singular(text) })
    }

    /// What is there; nothing if it names one place and nothing is there. An error if it would be much more than what it was found in.
    pub(super) fn find(&self, value: &Value) -> Result<Option<Value>, String> {
        let found = self.query.query(value).all();
        let mut left = FOUND_VALUES_MAX;
        if !self.is_singular && !found.iter().all(|one| fits(one, &mut left)) {
            return Err(format!("more than {FOUND_VALUES_MAX} values are found, one inside the other; ask for less"));
        }
        Ok(match self.is_singular {
            true => found.first().map(|one| (*one).clone()),
            false => Some(Value::Array(found.into_iter().cloned().collect())),
        })
    }
}

/// Takes a value and those in it from what is left.
fn fits(value: &Value, left: &mut usize) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter().all(|item| fits(item, left)),
        Value::Object(fields) => fields.values().all(|field| fits(field, left)),
        _ => true,
    }
}

/// Whether a path that was read already has names and indexes only, one at a time.
fn is_singular(text: &str) -> bool {
    let mut rest = text.trim_start_matches('$').trim_start();
    while !rest.is_empty() {
        let after = match rest.strip_prefix('[') {
            Some(inner) => in_brackets(inner.trim_start()),
            None => rest.strip_prefix('.').filter(|name| !name.starts_with(['.', '*'])).map(|name| {
                let end = name.find(['.', '[', ' ', '\t', '\n', '\r']).unwrap_or(name.len());
                &name[end..]
            }),
        };
        match after {
            Some(after) => rest = after.trim_start(),
            None => return false,
        }
    }
    true
}

/// What follows one name or index and its bracket.
fn in_brackets(inner: &str) -> Option<&str> {
    let after = match inner.chars().next()? {
        quote @ ('\'' | '"') => {
            let mut is_escaped = false;
            let end = inner[1..].find(|c| {
                let is_end = c == quote && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            })?;
            &inner[end + 2..]
        }
        _ => inner.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-'),
    };
    // Of a slice, a star, a filter or a list something is left before the bracket.
    after.trim_start().strip_prefix(']')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_place_gives_its_value_and_others_a_list() {
        let value = json!({"a": {"b c": [1, 2, 3], "it's": 4, "]": 5}, "n": null});
        let find = |path: &str| Path::parse(path).unwrap().find(&value).unwrap();
        for (path, expected) in [
            ("$", value.clone()),
            ("$.a['b c'][0]", json!(1)),
            ("$ . a [ 'b c' ] [ -1 ]".replace(". a", ".a").as_str(), json!(3)),
            ("$['a']['it\\'s']", json!(4)),
            ("$.a[\"]\"]", json!(5)),
            ("$.n", json!(null)),
            ("$.a['b c'][*]", json!([1, 2, 3])),
            ("$.a['b c'][0:1]", json!([1])),
            ("$.a['b c'][0,0]", json!([1, 1])),
            ("$..['it\\'s']", json!([4])),
            ("$.a['b c'][?@ > 1]", json!([2, 3])),
            ("$.a['it\\'s', ']']", json!([4, 5])),
            ("$.a['b c'][?@ > 9]", json!([])),
            ("$..x", json!([])),
        ] {
            assert_eq!(find(path), Some(expected), "{path}");
        }
        for path in ["$.x", "$.a[0]", "$.a['b c'][9]"] {
            assert_eq!(find(path), None, "{path}");
        }
        for path in ["a.b", "$.", "$[", "$.a[?", ""] {
            assert!(Path::parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_found_several_times_is_bounded() {
        let mut value = json!(vec![1; 20_000]);
        for _ in 0..100 {
            value = json!({"in": value});
        }
        assert!(Path::parse("$..in").unwrap().find(&value).unwrap_err().contains("ask for less"));
        assert!(Path::parse("$..in[0]").unwrap().find(&value).is_ok());
    }
}
