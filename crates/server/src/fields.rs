//! The members of an object that somebody sent, taken out one by one; what is left at the end is a mistake.

use actum_api::error;
use serde_json::{Map, Value};

use crate::bridge::Refused;

pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn new(members: Map<String, Value>) -> Self {
        Self(members)
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<String, Refused> {
        self.maybe_text(name)?.ok_or_else(|| bad(&format!("`{name}` is missing")))
    }

    /// `null` and the empty text are as good as nothing: agents fill in every field they are shown.
    pub(crate) fn maybe_text(&mut self, name: &str) -> Result<Option<String>, Refused> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(bad(&format!("`{name}` must be a string"))),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Map<String, Value>, Refused> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(members)) => Ok(members),
            Some(_) => Err(bad(&format!("`{name}` must be an object"))),
        }
    }

    pub(crate) fn end(self) -> Result<(), Refused> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(bad(&format!("`{name}` is not known here"))),
        }
    }
}

pub(crate) fn bad(message: &str) -> Refused {
    Refused::named(error::INPUT, message, &Value::Null, None)
}
