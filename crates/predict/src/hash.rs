//! The one hash of this crate: SHA-256 over canonical JSON, for every value there is. Called by all that is kept.

use actum_contract::canon;
use actum_contract::digest::Digest;
use serde_json::{Value, json};

/// The hash as hex.
pub fn of(value: &Value) -> String {
    Digest::sha256(&canonical(value)).to_hex()
}

/// Canonical text. Models say numbers that have none: those stand in it as `{"$number": "…"}`, so that every answer has
/// a hash.
pub fn canonical(value: &Value) -> Vec<u8> {
    canon::canonical(value)
        .or_else(|_| canon::canonical(&spelled(value)))
        .expect("what could not be written has been spelled out")
}

fn spelled(value: &Value) -> Value {
    match value {
        Value::Number(number) if canon::canonical(value).is_err() => json!({ "$number": number.to_string() }),
        Value::Array(items) => items.iter().map(spelled).collect(),
        Value::Object(members) => {
            Value::Object(members.iter().map(|(key, member)| (key.clone(), spelled(member))).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_hash() {
        assert_eq!(of(&Value::Null), "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b");
        assert_eq!(
            canonical(&json!({"b": [1.0, u64::MAX], "a": 1})),
            br#"{"a":1,"b":[1,{"$number":"18446744073709551615"}]}"#
        );
        assert_ne!(of(&json!(u64::MAX)), of(&json!(u64::MAX - 1)));
        assert_eq!(of(&json!(1.0)), of(&json!(1)));
    }
}
