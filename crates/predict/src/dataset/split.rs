//! How a dataset is divided, and where an example falls. Used by `dataset` and by job files; never looks at what was
//! expected, so that one question is never both learnt and examined.

use actum_contract::digest::Digest;
use actum_contract::part::Part;
use serde_json::{Value, json};

use super::BadDataset;
use crate::hash;

/// Who names no seed means this one.
pub const SEED_DEFAULT: &str = "default";

/// Bytes of a seed.
pub(crate) const SEED_BYTES_MAX: usize = 200;

/// Parts of a hundred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    pub train: u8,
    pub holdout: u8,
    pub test: u8,
}

impl Default for Split {
    fn default() -> Self {
        Self { train: 80, holdout: 10, test: 10 }
    }
}

impl Split {
    /// Three numbers that make a hundred, as `80/10/10`.
    pub fn parse(text: &str) -> Result<Self, BadDataset> {
        let bad = || BadDataset::InvalidSplit { given: text.chars().take(40).collect() };
        let is_plain = |part: &&str| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        let parts: Vec<&str> = text.split('/').filter(is_plain).collect();
        let numbers: Vec<u64> = parts.iter().filter_map(|part| part.parse().ok()).collect();
        match numbers[..] {
            [train, holdout, test] if text.matches('/').count() == 2 => Self::of(train, holdout, test).ok_or_else(bad),
            _ => Err(bad()),
        }
    }

    /// The same from a document: `80/10/10`, or `{train, holdout, test}`.
    pub fn read(value: &Value) -> Result<Self, BadDataset> {
        let bad = || BadDataset::InvalidSplit { given: value.to_string().chars().take(80).collect() };
        match value {
            Value::String(text) => Self::parse(text),
            Value::Object(fields) if fields.len() == 3 => {
                let part = |name: &str| fields.get(name).and_then(Value::as_u64);
                let parts = part("train").zip(part("holdout")).zip(part("test"));
                parts.and_then(|((train, holdout), test)| Self::of(train, holdout, test)).ok_or_else(bad)
            }
            _ => Err(bad()),
        }
    }

    /// Takes a split out of a document; the usual one if there is none.
    pub(crate) fn take(part: &mut Part<'_>, field: &str) -> Self {
        let Some(value) = part.take(field) else { return Self::default() };
        Self::read(&value).unwrap_or_else(|_| {
            part.bad(field, &value, "three whole numbers that make 100, as 80/10/10 (invalid_split)");
            Self::default()
        })
    }

    fn of(train: u64, holdout: u64, test: u64) -> Option<Self> {
        let [a, b, c] = [train, holdout, test].map(|n| u8::try_from(n).ok().filter(|n| *n <= 100));
        let split = Self { train: a?, holdout: b?, test: c? };
        split.is_whole().then_some(split)
    }

    pub(super) fn is_whole(self) -> bool {
        u16::from(self.train) + u16::from(self.holdout) + u16::from(self.test) == 100
    }

    pub fn to_json(self) -> Value {
        json!({"train": self.train, "holdout": self.holdout, "test": self.test})
    }

    /// Where an input falls: the first 8 hex digits of the SHA-256 of `<seed>|<hash of the input>`, mod 100.
    pub(super) fn slice(self, seed: &str, input: &Value) -> Slice {
        let digest = Digest::sha256(format!("{seed}|{}", hash::of(input)).as_bytes()).to_hex();
        let bucket = u32::from_str_radix(&digest[..8], 16).unwrap_or_default() % 100;
        if bucket < u32::from(self.train) {
            Slice::Train
        } else if bucket < u32::from(self.train) + u32::from(self.holdout) {
            Slice::Holdout
        } else {
            Slice::Test
        }
    }
}

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slice {
    /// What candidates may learn from.
    Train,
    /// What one of them is selected by.
    Holdout,
    /// What is looked at once, in the end.
    Test,
}

impl Slice {
    pub const ALL: [Self; 3] = [Self::Train, Self::Holdout, Self::Test];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Holdout => "holdout",
            Self::Test => "test",
        }
    }

    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|slice| slice.word() == word)
    }
}

/// JSON Schema of a split.
pub(crate) fn schema() -> Value {
    let part = json!({"type": "integer", "minimum": 0, "maximum": 100});
    json!({
        "description": "parts of a hundred: train, holdout, test",
        "default": "80/10/10",
        "anyOf": [
            {"type": "string", "pattern": "^[0-9]{1,3}/[0-9]{1,3}/[0-9]{1,3}$"},
            {
                "type": "object",
                "properties": {"train": part, "holdout": part, "test": part},
                "required": ["train", "holdout", "test"],
                "additionalProperties": false,
            },
        ],
    })
}
