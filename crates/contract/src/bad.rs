//! What is wrong with an execution config: every bad field with its value and what would be right.
//!
//! Made by `schema` and `resolve`; shown by `cli`. Never decides whether a value is good.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::schema::{Field, Partial};

/// Every bad field of one source, with its value and what it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.fields.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct BadConfig {
    pub fields: Vec<BadField>,
    /// What is left without them, so that other sources can be judged as well.
    pub rest: Box<Partial>,
}

impl BadConfig {
    pub fn new(fields: Vec<BadField>) -> Self {
        Self { fields, rest: Box::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadField {
    /// The field's name as it was given.
    pub field: String,
    /// The value as it was given.
    pub value: String,
    /// What would be right.
    pub expected: String,
    /// The environment variable it came from, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<&'static str>,
}

const NO_SUCH_FIELD: &str = "no such field";

impl BadField {
    fn new(field: &str, value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: short(field), value: short(&value.into()), expected: expected.into(), variable: None }
    }

    pub(crate) fn outside(field: Field, value: String) -> Self {
        Self::new(field.name(), value, field.range().to_string())
    }

    pub(crate) fn missing(field: Field) -> Self {
        Self::new(field.name(), "nothing", field.range().to_string())
    }

    pub(crate) fn unknown(name: &str, value: String) -> Self {
        let nearest = || Field::all().map(Field::name).min_by_key(|known| distance(name, known));
        let closest = if name.len() <= SHOWN_BYTES { nearest() } else { None };
        let expected = match closest {
            Some(known) if distance(name, known) <= 1 + known.len() / 4 => {
                format!("{NO_SUCH_FIELD}; did you mean {known}?")
            }
            _ => NO_SUCH_FIELD.to_owned(),
        };
        Self::new(name, value, expected)
    }

    pub(crate) fn not_a_pair(word: &str) -> Self {
        Self::new(word, "nothing", "FIELD=VALUE")
    }

    pub(crate) fn twice(field: Field, text: &str) -> Self {
        Self::new(field.name(), format!("{text:?}"), "a field that is set only once")
    }

    pub(crate) fn not_an_object(value: &Value) -> Self {
        Self::new("execution config", value.to_string(), "an object of fields")
    }
}

impl fmt::Display for BadField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(advice) = self.expected.strip_prefix(NO_SUCH_FIELD) {
            return write!(f, "{} is no field of an execution config{advice}", self.field);
        }
        write!(f, "{} is {}", self.field, self.value)?;
        if let Some(variable) = self.variable {
            write!(f, " (from {variable})")?;
        }
        write!(f, ", expected {}", self.expected)
    }
}

/// Longest piece of a name or value that an error repeats.
const SHOWN_BYTES: usize = 80;

fn short(text: &str) -> String {
    match text.char_indices().find(|(at, _)| *at >= SHOWN_BYTES) {
        None => text.to_owned(),
        Some((cut, _)) => format!("{}…", &text[..cut]),
    }
}

/// Edits between two names, for suggestions.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = last[0];
        last[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = last[j + 1];
            last[j + 1] = change.min(diagonal + 1).min(last[j] + 1);
        }
    }
    last[b.len()]
}
