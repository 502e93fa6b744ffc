//! Templates of transforms: what is not there is an error, and neither work nor output is without bound.

use std::collections::BTreeMap;
use std::io;

use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value as Piece};
use serde_json::Value;

/// Instructions one template may take.
const FUEL_MAX: u64 = 1_000_000;

/// Bytes one template may put out, and make on the way with one filter.
const BYTES_MAX: usize = 1 << 20;

/// Loops that call themselves, inside one another.
const RECURSION_MAX: usize = 32;

/// What is wrong with a template by itself.
pub(super) fn check(source: &str) -> Option<String> {
    environment().template_from_str(source).err().map(|e| format!("no usable template: {}", told(&e)))
}

/// The template with these names.
pub(super) fn render(source: &str, names: &[(&str, &Value)]) -> Result<String, String> {
    let environment = environment();
    let names: BTreeMap<&str, Piece> =
        names.iter().map(|(name, value)| (*name, Piece::from(minijinja::value::Serde(*value)))).collect();
    let template = environment.template_from_str(source).map_err(|e| told(&e))?;
    let mut out = Bounded(Vec::new());
    match template.render_captured_to(Piece::from_pairs(names), &mut out) {
        Ok(_) => String::from_utf8(out.0).map_err(|e| e.to_string()),
        Err(e) => Err(told(&e)),
    }
}

fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL_MAX));
    environment.set_recursion_limit(RECURSION_MAX);
    // One instruction of these could make a text of any length.
    environment.remove_global("namespace");
    for name in ["format", "batch", "slice", "indent"] {
        environment.remove_filter(name);
    }
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment
}

fn replace(text: String, from: String, to: String) -> Result<String, Error> {
    let count = text.matches(from.as_str()).count();
    if text.len() + count.saturating_mul(to.len()) > BYTES_MAX {
        return Err(too_long());
    }
    Ok(text.replace(&from, &to))
}

fn join(items: Vec<Piece>, between: Option<String>) -> Result<String, Error> {
    let between = between.unwrap_or_default();
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        out.push_str(if at == 0 { "" } else { &between });
        out.push_str(&item.to_string());
        if out.len() > BYTES_MAX {
            return Err(too_long());
        }
    }
    Ok(out)
}

fn too_long() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the text would be longer than {BYTES_MAX} bytes"))
}

/// Takes so much and no more.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > BYTES_MAX {
            return Err(io::Error::other(format!("the output would be longer than {BYTES_MAX} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error with what caused it, and the line.
fn told(error: &Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    match error.line() {
        Some(line) => format!("{text} (line {line})"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_there_is_an_error() {
        assert_eq!(render("{{ value.a }} {{ n }}", &[("value", &json!({"a": 1})), ("n", &json!(2))]).unwrap(), "1 2");
        for source in ["{{ missing }}", "{{ value.b }}", "{{ value.a.b }}"] {
            assert!(render(source, &[("value", &json!({"a": 1}))]).unwrap_err().contains("undefined"), "{source}");
        }
        assert!(check("{{ value").is_some() && check("{% for %}").is_some() && check("{{ value }}").is_none());
    }

    #[test]
    fn work_and_output_are_bounded() {
        let long = json!("x".repeat(500_000));
        for source in [
            "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}",
            "{% for a in range(9000) %}{{ value }}{% endfor %}",
            "{{ value|replace('x', value) }}",
            "{{ [value, value, value]|join }}",
            "{{ range(9000)|join(value) }}",
            "{% set all = namespace(a=1) %}",
            "{{ value|batch(1000000000, 'x') }}",
            "{% include 'x' %}",
        ] {
            assert!(render(source, &[("value", &long)]).is_err(), "{source}");
        }
        assert_eq!(render("{{ [1, 'a']|join(', ') }}", &[]).unwrap(), "1, a");
    }
}
