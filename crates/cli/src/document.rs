//! Documents of the user: read from a file or stdin, bounded, and parsed with positions.

use std::io::{ErrorKind, Read as _};
use std::path::Path;

use actum_api::error;
use actum_contract::canon;
use actum_contract::limit::DOCUMENT_BYTES_MAX;
use actum_contract::part::Flaw;
use serde_json::Value;

use crate::failure::{Failure, Place};

/// A document and the name it is shown under.
#[derive(Debug)]
pub(crate) struct Document {
    pub name: String,
    pub text: Vec<u8>,
}

impl Document {
    /// Reads a file, or stdin for `-`.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let stdin = path.as_os_str() == "-";
        let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
        let mut text = Vec::new();
        let limit = DOCUMENT_BYTES_MAX as u64 + 1;
        let read = if stdin {
            std::io::stdin().lock().take(limit).read_to_end(&mut text)
        } else {
            std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text))
        };
        read.map_err(|e| {
            let failure = Failure::of_io(format!("cannot read {name}: {e}"), &e);
            match (e.kind(), std::env::current_dir()) {
                (ErrorKind::NotFound, Ok(here)) if !stdin && path.is_relative() => {
                    failure.hint(format!("it was looked for in {}", here.display()))
                }
                _ => failure,
            }
        })?;
        if text.len() > DOCUMENT_BYTES_MAX {
            let message = format!("{name} is larger than {DOCUMENT_BYTES_MAX} bytes");
            return Err(Failure::new(error::FILE, message).hint("make it smaller, or several files of it"));
        }
        Ok(Self { name, text })
    }

    /// What is wrong with it, all of it, and where the first of that stands. `schema`: what prints how it should be.
    pub(crate) fn flawed(&self, flaws: &[Flaw], schema: &str) -> Failure {
        let lines: Vec<String> = flaws.iter().map(ToString::to_string).collect();
        let failure = Failure::new(error::INPUT, format!("{}: {}", self.name, lines.join("\n  ")))
            .hint(format!("`actum schema {schema}` prints what may stand there"));
        let key = flaws.first().map(|flaw| flaw.field.split(['.', '[']).next().unwrap_or_default().to_owned());
        match key.and_then(|key| self.place_of_key(&key)) {
            Some(place) => failure.at(place),
            None => failure,
        }
    }

    /// Reads it as strict JSON.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        canon::parse(&self.text).map_err(|e| self.flaw(e.message, e.line, e.column))
    }

    /// Reads it by its name: `.yaml`, `.yml`, `.toml`, else JSON.
    pub(crate) fn value(&self) -> Result<Value, Failure> {
        let value = match self.name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("yaml" | "yml") => self.yaml()?,
            Some("toml") => self.toml()?,
            _ => return self.json(),
        };
        // What other formats can say and canonical JSON cannot is refused here, not when it is hashed.
        canon::canonical(&value).map_err(|e| Failure::new(error::INPUT, format!("{}: {e}", self.name)))?;
        Ok(value)
    }

    /// A work file; what comes through a pipe has no ending, and may be YAML as well.
    pub(crate) fn value_of_work(&self) -> Result<Value, Failure> {
        match (self.name.as_str(), self.text.iter().find(|b| !b.is_ascii_whitespace())) {
            ("stdin", Some(b'{' | b'[') | None) => self.json(),
            ("stdin", _) => self.yaml(),
            _ => self.value(),
        }
    }

    fn utf8(&self) -> Result<&str, Failure> {
        std::str::from_utf8(&self.text).map_err(|e| {
            let before = &self.text[..e.valid_up_to()];
            let line = before.iter().filter(|b| **b == b'\n').count() + 1;
            let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
            self.flaw("text is not valid UTF-8".into(), line, column)
        })
    }

    fn yaml(&self) -> Result<Value, Failure> {
        // YAML 1.2: `off` and `no` are words, not booleans. A mode of the contract is called off.
        let options = serde_saphyr::options! { strict_booleans: true };
        serde_saphyr::from_str_with_options::<Value>(self.utf8()?, options).map_err(|e| {
            let (line, column) = e.location().map_or((1, 1), |l| (l.line() as usize, l.column() as usize));
            let text = e.without_snippet().to_string();
            if text.contains("budget breached") {
                let message = "the document becomes too large when its aliases are followed";
                return self.flaw(message.into(), line, column).hint("write it without so many `*aliases`");
            }
            self.flaw(text.lines().next().unwrap_or("text is not YAML").to_owned(), line, column)
        })
    }

    fn toml(&self) -> Result<Value, Failure> {
        let text = self.utf8()?;
        toml::from_str::<Value>(text).map_err(|e| {
            let at = e.span().map_or(0, |s| s.start).min(text.len());
            let line = text[..at].matches('\n').count() + 1;
            let column = at - text[..at].rfind('\n').map_or(0, |n| n + 1) + 1;
            self.flaw(e.message().to_owned(), line, column)
        })
    }

    /// The keys of an object in the document, as they stand there.
    pub(crate) fn keys_of(&self, path: &[&str]) -> Vec<String> {
        let options = serde_saphyr::options! { strict_booleans: true };
        let is_yaml = self.name.ends_with(".yaml") || self.name.ends_with(".yml");
        let read = match std::str::from_utf8(&self.text) {
            Ok(text) if is_yaml => serde_saphyr::from_str_with_options::<Ordered>(text, options).ok(),
            Ok(text) => serde_json::from_str::<Ordered>(text).ok(),
            Err(_) => None,
        };
        let mut at = read;
        for name in path {
            at = at.and_then(|Ordered(keys)| keys.into_iter().find(|(key, _)| key == name).map(|(_, below)| below));
        }
        at.map(|Ordered(keys)| keys.into_iter().map(|(key, _)| key).collect()).unwrap_or_default()
    }

    fn flaw(&self, message: String, line: usize, column: usize) -> Failure {
        Failure::new(error::INPUT, message).at(Place::of(&self.name, &self.text, line, column))
    }

    /// Where a field of an item in a list stands: `items[1].budget.complexity`. Items begin where their ids do.
    pub(crate) fn place_of_field(&self, field: &str) -> Option<Place> {
        let key = field.rsplit('.').next().unwrap_or(field);
        let key = key.split('[').next().unwrap_or(key);
        let number = field.split_once('[').and_then(|(_, rest)| rest.split_once(']')?.0.parse::<usize>().ok());
        let text = std::str::from_utf8(&self.text).ok()?;
        let is_id = |line: &&str| {
            let line = line.trim_start_matches(['-', ' ', '{', '\t', '['].as_slice());
            line.starts_with("id:") || line.starts_with("\"id\"")
        };
        let mut begins = text.lines().enumerate().filter(|(_, line)| is_id(line)).map(|(at, _)| at);
        let from = match number {
            None => return self.place_of_key(key),
            Some(number) => begins.nth(number)?,
        };
        let until = begins.next().unwrap_or(usize::MAX);
        // A field that is missing is missing in its item.
        self.place_within(key, from, until).or_else(|| self.place_within("id", from, until))
    }

    /// Where a key stands in the text, for errors about its value. A guess by the eye: the first line that has it.
    pub(crate) fn place_of_key(&self, key: &str) -> Option<Place> {
        self.place_within(key, 0, usize::MAX)
    }

    /// Where a setting of a TOML file stands: `providers.openai.base_url`. Looked for in its table; of one that is missing,
    /// the head of the table that should have it.
    pub(crate) fn place_of_setting(&self, field: &str) -> Option<Place> {
        let text = std::str::from_utf8(&self.text).ok()?;
        let plain = |line: &str| {
            line.trim().trim_start_matches('[').split(']').next().unwrap_or_default().replace(['"', '\''], "")
        };
        let heads: Vec<(usize, String)> = text
            .lines()
            .enumerate()
            .filter(|(_, l)| l.trim_start().starts_with('['))
            .map(|(at, l)| (at, plain(l)))
            .collect();
        let inside = |head: &str| field.strip_prefix(head).and_then(|rest| rest.strip_prefix('.'));
        let longest = heads.iter().enumerate().filter(|(_, (_, head))| inside(head).is_some());
        let Some((number, (from, head))) = longest.max_by_key(|(_, (_, head))| head.len()) else {
            return self.place_of_key(field.rsplit('.').next().unwrap_or(field));
        };
        let until = heads.get(number + 1).map_or(usize::MAX, |(at, _)| *at);
        let key = inside(head).unwrap_or_default().split(['.', '[']).next().unwrap_or_default();
        let at_head = || Place::of(&self.name, &self.text, from + 1, 1);
        Some(self.place_within(key, *from, until).unwrap_or_else(at_head))
    }

    /// Where a field stands: `interface.cli.executable`, `transforms.input[1].spec`. Looked for part by part, each behind
    /// the one before; of a field that is missing, the part that should have it. Whether it is the field itself.
    pub(crate) fn place_of_path(&self, field: &str) -> Option<(Place, bool)> {
        let text = std::str::from_utf8(&self.text).ok()?;
        let (mut from, mut found, mut skip) = (0, 0, 0);
        let mut is_there = true;
        for part in field.split('.') {
            let (key, number) = part.split_once('[').unwrap_or((part, ""));
            let Some(at) = keys_in(text, key).filter(|at| *at >= from).nth(skip) else {
                is_there = false;
                break;
            };
            (from, found) = (at + key.len(), at);
            skip = number.trim_end_matches(']').parse().unwrap_or(0);
        }
        let line = text[..found].matches('\n').count() + 1;
        let column = found - text[..found].rfind('\n').map_or(0, |n| n + 1) + 1;
        Some((Place::of(&self.name, &self.text, line, column), is_there))
    }

    fn place_within(&self, key: &str, from: usize, until: usize) -> Option<Place> {
        let text = std::str::from_utf8(&self.text).ok()?;
        text.lines().enumerate().skip(from).take_while(|(i, _)| *i < until).find_map(|(i, line)| {
            let at = line.find(key)?;
            let before = line[..at].chars().next_back();
            let after = line[at + key.len()..].chars().next();
            let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            (!word(before) && !word(after)).then(|| Place::of(&self.name, &self.text, i + 1, at + 1))
        })
    }
}

/// Where a word stands as the key of something.
fn keys_in<'t>(text: &'t str, key: &'t str) -> impl Iterator<Item = usize> + 't {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '.';
    text.match_indices(key).map(|(at, _)| at).filter(move |at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + key.len()..].trim_start_matches(['"', '\'', ' ']);
        !key.is_empty() && !before.is_some_and(is_word) && after.starts_with(':')
    })
}

/// A document with the order of its keys, which an object of JSON does not have.
struct Ordered(Vec<(String, Ordered)>);

impl<'de> serde::Deserialize<'de> for Ordered {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> serde::de::Visitor<'de> for Keys {
            type Value = Ordered;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("anything")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
                let mut found = Vec::new();
                while let Some(entry) = map.next_entry::<String, Ordered>()? {
                    found.push(entry);
                }
                Ok(Ordered(found))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Ordered, A::Error> {
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Ordered(Vec::new()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Ordered, E> {
                Ok(Ordered(Vec::new()))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Ordered, E> {
                Ok(Ordered(Vec::new()))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Ordered, E> {
                Ok(Ordered(Vec::new()))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Ordered, E> {
                Ok(Ordered(Vec::new()))
            }

            fn visit_str<E>(self, _: &str) -> Result<Ordered, E> {
                Ok(Ordered(Vec::new()))
            }

            fn visit_unit<E>(self) -> Result<Ordered, E> {
                Ok(Ordered(Vec::new()))
            }
        }
        from.deserialize_any(Keys)
    }
}
