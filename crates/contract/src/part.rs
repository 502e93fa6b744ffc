//! Reading documents of the user field by field: every flaw is found, not only the first; unknown fields are refused.

use serde_json::{Map, Value};

use crate::bad::distance;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[error("{}", self.text())]
pub struct Flaw {
    pub field: String,
    pub value: String,
    pub expected: String,
}

const NO_FIELD: &str = "no field of ";

/// In place of a value that may be a secret.
pub(crate) const HIDDEN: &str = "…";

impl Flaw {
    /// Whether what stands there may be a secret, and so is shown nowhere.
    pub fn is_hidden(&self) -> bool {
        self.value.trim_matches('"') == HIDDEN
    }

    fn text(&self) -> String {
        let Self { field, value, expected } = self;
        match expected.starts_with(NO_FIELD) {
            true => format!("{field} is {expected}"),
            false => format!("{field} is {value}, expected {expected}"),
        }
    }
}

/// Entries of a list; more than this was made by a mistake.
pub const LIST_MAX: usize = 1_000;

/// An object of the document whose fields are taken out one by one; what is left over was unknown.
#[derive(Debug)]
pub struct Part<'f> {
    fields: Map<String, Value>,
    /// What was asked for so far, and so may stand here.
    known: Vec<String>,
    at: String,
    noun: &'static str,
    pub flaws: &'f mut Vec<Flaw>,
}

impl<'f> Part<'f> {
    /// `noun`: what the document is, for who writes a field it does not have.
    pub fn new(value: &Value, at: &str, noun: &'static str, flaws: &'f mut Vec<Flaw>) -> Self {
        let fields = match value {
            Value::Object(fields) => fields.clone(),
            Value::Null if !at.is_empty() => Map::new(),
            other => {
                let field = if at.is_empty() { "the document" } else { at };
                flaws.push(flaw(field, other, "an object of fields"));
                Map::new()
            }
        };
        Self { fields, known: Vec::new(), at: at.to_owned(), noun, flaws }
    }

    pub fn name(&self, field: &str) -> String {
        if self.at.is_empty() { field.to_owned() } else { format!("{}.{field}", self.at) }
    }

    /// A field that may be missing or null.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.known.push(field.to_owned());
        self.fields.remove(field).filter(|value| !value.is_null())
    }

    pub fn has(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(|value| !value.is_null())
    }

    pub fn bad(&mut self, field: &str, value: &Value, expected: &str) {
        let name = self.name(field);
        self.flaws.push(flaw(&name, value, expected));
    }

    pub fn text(&mut self, field: &str) -> Option<String> {
        let value = self.take(field)?;
        match value {
            Value::String(text) => Some(text),
            other => {
                self.bad(field, &other, "text");
                None
            }
        }
    }

    pub fn required(&mut self, field: &str) -> String {
        if !self.fields.contains_key(field) {
            self.known.push(field.to_owned());
            self.bad(field, &Value::Null, "text");
            return String::new();
        }
        self.text(field).unwrap_or_default()
    }

    pub fn texts(&mut self, field: &str) -> Vec<String> {
        let Some(value) = self.take(field) else { return Vec::new() };
        let texts = match &value {
            Value::Array(items) if items.len() <= LIST_MAX => {
                items.iter().map(|item| item.as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>()
            }
            _ => None,
        };
        texts.unwrap_or_else(|| {
            self.bad(field, &value, &format!("a list of at most {LIST_MAX} texts"));
            Vec::new()
        })
    }

    /// As `texts`, with numbers and truth values as they are written: arguments are often that.
    pub fn words(&mut self, field: &str) -> Vec<String> {
        if let Some(Value::Array(items)) = self.fields.get_mut(field) {
            for item in items.iter_mut().filter(|item| item.is_number() || item.is_boolean()) {
                *item = Value::String(item.to_string());
            }
        }
        self.texts(field)
    }

    pub fn switch(&mut self, field: &str) -> Option<bool> {
        let value = self.take(field)?;
        value.as_bool().or_else(|| {
            self.bad(field, &value, "true or false");
            None
        })
    }

    pub fn finish(&mut self) {
        for (field, value) in std::mem::take(&mut self.fields) {
            let nearest = self.known.iter().min_by_key(|known| distance(&field, known));
            let near = nearest.filter(|known| field.len() <= 80 && distance(&field, known) <= 1 + known.len() / 4);
            let advice = near.map(|known| format!("; did you mean {known}?")).unwrap_or_default();
            let may_be_secret = near.is_some_and(|known| known == "secrets") || names_a_secret(&field);
            let value = if may_be_secret { HIDDEN.into() } else { value };
            self.bad(&field, &value, &format!("{NO_FIELD}{}{advice}", self.noun));
        }
    }
}

fn names_a_secret(field: &str) -> bool {
    let field = field.to_ascii_lowercase();
    ["secret", "token", "password", "credential", "api_key", "apikey", "auth"].iter().any(|word| field.contains(word))
}

pub fn flaw(field: &str, value: &Value, expected: &str) -> Flaw {
    let text = if value.is_null() { "missing".to_owned() } else { value.to_string() };
    let value =
        if text.chars().count() > 80 { format!("{}…", text.chars().take(80).collect::<String>()) } else { text };
    Flaw { field: field.to_owned(), value, expected: expected.to_owned() }
}
