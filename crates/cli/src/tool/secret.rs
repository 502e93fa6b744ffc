//! Secrets by reference: `env:NAME`, `file:PATH`. Looked up when they are needed, kept nowhere.

use std::collections::BTreeMap;

use actum_api::error;

use crate::failure::Failure;

/// The value behind a reference; nothing if the text is none.
pub(crate) fn look_up(reference: &str) -> Option<Result<String, &'static str>> {
    if let Some(variable) = reference.strip_prefix("env:") {
        return Some(std::env::var(variable).map_err(|_| "is not set"));
    }
    let path = reference.strip_prefix("file:")?;
    let text = std::fs::read_to_string(crate::config::expand(path.to_owned()));
    Some(text.map(|text| text.trim_end_matches('\n').to_owned()).map_err(|_| "cannot be read"))
}

/// The values of a tool's secrets.
pub(crate) fn of_tool(tool: &str, references: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    for (name, reference) in references {
        match look_up(reference) {
            Some(Ok(value)) if !value.is_empty() => drop(found.insert(name.clone(), value)),
            Some(Ok(_)) => return Err(missing(tool, name, reference, "is empty")),
            Some(Err(why)) => return Err(missing(tool, name, reference, why)),
            None => {}
        }
    }
    Ok(found)
}

fn missing(tool: &str, name: &str, reference: &str, why: &str) -> Failure {
    let message = format!("the secret {name} of {tool}, which is {reference}, {why}");
    Failure::new(error::INPUT, message).hint("set it where actum runs; it is never written down")
}
