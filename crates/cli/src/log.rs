//! What a server or a worker tells of itself: one line for each thing that happened, as JSON or as text, on stderr. Its
//! fields are promised in `docs/operations.md`. Set up once by `serve` and `worker`; whoever else is running says nothing.
//! Never holds a token, a query, what was asked of a model, or what stands in a file.
//!
//! Written by hand: what is told comes from a handful of places in this crate, and a subscriber with its filters and
//! formats would be the larger part.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::ui::{clean, note};

/// Letters of one value.
const VALUE_CHARS_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Json,
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    const ALL: [(&'static str, Self); 4] =
        [("error", Self::Error), ("warn", Self::Warn), ("info", Self::Info), ("debug", Self::Debug)];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, level)| *level == self).map_or("", |(word, _)| word)
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, level)| *level)
    }
}

static LOG: OnceLock<(Form, Level)> = OnceLock::new();
static STORE_ERRORS: AtomicU64 = AtomicU64::new(0);

/// From now on. `ACTUM_LOG` says how much; what is no level is told once, and taken for `info`.
pub(crate) fn begin(form: Form) {
    let wanted = std::env::var("ACTUM_LOG").ok().filter(|word| !word.is_empty());
    let level = wanted.as_deref().map_or(Some(Level::Info), Level::named);
    let _ = LOG.set((form, level.unwrap_or(Level::Info)));
    if level.is_none() {
        let wanted = wanted.unwrap_or_default();
        say(Level::Warn, "log.level", &json!({"message": "ACTUM_LOG is error, warn, info or debug", "is": wanted}));
    }
}

/// Whether there is a log, of whatever level.
pub(crate) fn is_on() -> bool {
    LOG.get().is_some()
}

pub(crate) fn hears(level: Level) -> bool {
    LOG.get().is_some_and(|(_, least)| level <= *least)
}

/// Says what happened. `fields` is an object; what is null in it is left out.
pub(crate) fn say(level: Level, event: &str, fields: &Value) {
    if let Some((form, _)) = LOG.get().filter(|_| hears(level)) {
        note(&line(*form, level, event, fields, Timestamp::now()));
    }
}

/// The store did not answer: counted, and said.
pub(crate) fn store_trouble(text: &str) {
    STORE_ERRORS.fetch_add(1, Ordering::Relaxed);
    say(Level::Error, "store.trouble", &json!({"message": text}));
}

pub(crate) fn store_errors() -> u64 {
    STORE_ERRORS.load(Ordering::Relaxed)
}

fn line(form: Form, level: Level, event: &str, fields: &Value, now: Timestamp) -> String {
    let cut = |value: &Value| match value {
        Value::String(text) if text.chars().count() > VALUE_CHARS_MAX => {
            json!(text.chars().take(VALUE_CHARS_MAX).collect::<String>())
        }
        other => other.clone(),
    };
    let fields = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let time = format!("{now:.3}");
    match form {
        Form::Json => {
            let mut all = Map::new();
            all.extend([("time", json!(time)), ("level", json!(level.word())), ("event", json!(event))].map(named));
            all.extend(fields.map(|(name, value)| (name.clone(), cut(value))));
            Value::Object(all).to_string()
        }
        Form::Text => {
            let mut text = format!("{time} {:<5} {event}", level.word());
            for (name, value) in fields {
                let value = match cut(value) {
                    Value::String(value) if is_plain(&value) => value,
                    other => other.to_string(),
                };
                text.push_str(&format!(" {name}={value}"));
            }
            clean(&text)
        }
    }
}

fn named((name, value): (&str, Value)) -> (String, Value) {
    (name.to_owned(), value)
}

fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_whatever_stands_in_it() {
        let now = Timestamp::from_second(0).unwrap();
        let fields = json!({"a": "x\ny\u{1b}[31m", "b": 1, "c": null, "d": "z".repeat(2_000), "e": "plain"});
        let shown = line(Form::Json, Level::Warn, "some.event", &fields, now);
        assert!(!shown.contains('\n'));
        let read: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["time"], "1970-01-01T00:00:00.000Z");
        assert_eq!((&read["level"], &read["event"], &read["b"]), (&json!("warn"), &json!("some.event"), &json!(1)));
        assert_eq!(read["d"].as_str().map(str::len), Some(VALUE_CHARS_MAX));
        assert!(read.get("c").is_none());
        let shown = line(Form::Text, Level::Info, "some.event", &fields, now);
        assert!(shown.starts_with("1970-01-01T00:00:00.000Z info  some.event a="), "{shown}");
        assert!(!shown.contains('\n') && !shown.contains('\u{1b}') && shown.ends_with("e=plain"), "{shown}");
    }

    #[test]
    fn levels_are_in_order() {
        assert!(Level::Error < Level::Warn && Level::Info < Level::Debug);
        assert_eq!(Level::named("WARN"), Some(Level::Warn));
        assert_eq!(Level::named("loud"), None);
    }
}
