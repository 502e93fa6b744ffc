//! Datasets: examples of a signature, each with what was expected, in three parts that everybody finds again.
//!
//! Built by `cli` from receipts or from a labelled file, read by `compile`. The same examples in any order give the same
//! dataset; what cannot be used is named, not dropped. Never reads a file, never takes out secrets: that is done before.

mod line;
mod split;

use std::collections::{BTreeMap, HashMap};

use actum_contract::canon;
use serde_json::{Value, json};

pub use line::read_line;
pub(crate) use split::{SEED_BYTES_MAX, schema as split_schema};
pub use split::{SEED_DEFAULT, Slice, Split};

use crate::hash;
use crate::signature::Signature;

/// Of the form datasets are kept in.
pub const VERSION: u64 = 1;

/// Of the form labels of receipts are kept in.
pub const LABEL_VERSION: u64 = 1;

/// Examples of one dataset, bytes of one of them as canonical JSON, and of all lines together.
pub const EXAMPLES_MAX: usize = 100_000;
pub const EXAMPLE_BYTES_MAX: usize = 1 << 20;
pub const LINES_BYTES_MAX: usize = 256 << 20;

/// Bytes of a dataset's name.
const NAME_BYTES_MAX: usize = 200;

/// Skipped examples that a manifest names; all are counted.
const SKIPPED_SHOWN_MAX: usize = 100;

/// Letters of what is said about one of them.
const DETAIL_CHARS_MAX: usize = 300;

/// Hex digits of the hash that name an example.
const ID_DIGITS: usize = 24;

/// An example as it comes, before anybody has looked at it.
#[derive(Debug, Clone, PartialEq)]
pub struct Raw {
    /// Where it was found: `line 3`, or the id of a receipt.
    pub at: String,
    pub input: Value,
    pub expected: Value,
    pub receipt_id: Option<String>,
    /// Whether somebody said what was expected; otherwise it is what a model once answered.
    pub is_labelled: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    pub id: String,
    pub input: Value,
    pub expected: Value,
    pub slice: Slice,
    pub receipt_id: Option<String>,
    pub is_labelled: bool,
}

/// What could not be used, and why: a word, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub at: String,
    pub reason: String,
    pub detail: String,
}

impl Skipped {
    pub fn new(at: &str, reason: &str, detail: &str) -> Self {
        let detail = detail.chars().take(DETAIL_CHARS_MAX).collect();
        Self { at: at.to_owned(), reason: reason.to_owned(), detail }
    }

    fn to_json(&self) -> Value {
        json!({"at": self.at, "reason": self.reason, "detail": self.detail})
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    pub name: String,
    pub signature_id: String,
    pub split: Split,
    pub split_seed: String,
    /// In the order of their ids.
    pub examples: Vec<Example>,
    /// All of them, or those that the manifest names.
    pub skipped: Vec<Skipped>,
    /// How many there are of each reason; the manifest counts all, and names the first.
    pub skipped_reasons: BTreeMap<String, u64>,
}

/// Why there is no dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDataset {
    #[error("no example can be used (empty_dataset): {}; give examples that fit the signature", told(.reasons))]
    Empty { reasons: BTreeMap<String, u64> },
    #[error("the split {given} is none (invalid_split); give three whole numbers that make 100, as 80/10/10")]
    InvalidSplit { given: String },
    #[error("the split seed has {bytes} bytes; give 1 to {SEED_BYTES_MAX}")]
    InvalidSeed { bytes: usize },
    #[error("the name of the dataset is not good; give 1 to {NAME_BYTES_MAX} bytes without control characters")]
    InvalidName,
    #[error("there are {count} examples, more than {EXAMPLES_MAX}; take fewer of them (max)")]
    TooMany { count: usize },
    #[error("the examples have {bytes} bytes, more than {LINES_BYTES_MAX}; take fewer of them (max)")]
    TooLong { bytes: usize },
    #[error("the manifest of the dataset is not whole: {what}; create the dataset again")]
    BadManifest { what: &'static str },
    #[error("the dataset is of version {found}, and only {VERSION} and older are known; use a newer actum")]
    Newer { found: u64 },
    #[error("line {number} of the dataset was changed; create the dataset again")]
    BadLine { number: usize },
    #[error("the examples come to the dataset {found}, the manifest says {expected}; create the dataset again")]
    Mismatch { expected: String, found: String },
}

fn told(reasons: &BTreeMap<String, u64>) -> String {
    let one = |(reason, count): (&String, &u64)| format!("{reason} {count}");
    let all = reasons.iter().map(one).collect::<Vec<_>>().join(", ");
    if all.is_empty() { "there is none".to_owned() } else { all }
}

impl Dataset {
    /// Checks examples against the signature and divides them. `skipped`: what was left out before.
    pub fn build(
        name: &str,
        signature: &Signature,
        raw: Vec<Raw>,
        split: Split,
        split_seed: &str,
        max: Option<usize>,
        skipped: Vec<Skipped>,
    ) -> Result<Self, BadDataset> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(BadDataset::InvalidName);
        }
        if !split.is_whole() {
            let Split { train, holdout, test } = split;
            return Err(BadDataset::InvalidSplit { given: format!("{train}/{holdout}/{test}") });
        }
        if !(1..=SEED_BYTES_MAX).contains(&split_seed.len()) {
            return Err(BadDataset::InvalidSeed { bytes: split_seed.len() });
        }
        let mut skipped = skipped;
        let mut chosen: HashMap<String, Raw> = HashMap::new();
        for one in raw {
            let id = match check(signature, &one) {
                Ok(id) => id,
                Err(why) => {
                    skipped.push(why);
                    continue;
                }
            };
            // Of equal ones the same stays, whoever came first.
            let rank = |raw: &Raw| (!raw.is_labelled, raw.receipt_id.is_none(), raw.receipt_id.clone(), place(&raw.at));
            let left = match chosen.remove(&id) {
                None => {
                    chosen.insert(id, one);
                    continue;
                }
                Some(known) => {
                    let (kept, left) = if rank(&one) < rank(&known) { (one, known) } else { (known, one) };
                    let detail = format!("the same as {}", kept.at);
                    chosen.insert(id, kept);
                    Skipped::new(&left.at, "duplicate", &detail)
                }
            };
            skipped.push(left);
        }
        let mut chosen: Vec<(String, Raw)> = chosen.into_iter().collect();
        chosen.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (_, left) in chosen.drain(max.unwrap_or(chosen.len()).min(chosen.len())..) {
            skipped.push(Skipped::new(&left.at, "over_max", "there are enough examples without it"));
        }
        skipped.sort_by(|a, b| (place(&a.at), &a.reason, &a.detail).cmp(&(place(&b.at), &b.reason, &b.detail)));
        let mut reasons = BTreeMap::new();
        skipped.iter().for_each(|one| *reasons.entry(one.reason.clone()).or_insert(0) += 1);
        if chosen.is_empty() {
            return Err(BadDataset::Empty { reasons });
        }
        if chosen.len() > EXAMPLES_MAX {
            return Err(BadDataset::TooMany { count: chosen.len() });
        }
        let example = |(id, raw): (String, Raw)| Example {
            id,
            slice: split.slice(split_seed, &raw.input),
            input: raw.input,
            expected: raw.expected,
            receipt_id: raw.receipt_id,
            is_labelled: raw.is_labelled,
        };
        let dataset = Self {
            name: name.to_owned(),
            signature_id: signature.id(),
            split,
            split_seed: split_seed.to_owned(),
            examples: chosen.into_iter().map(example).collect(),
            skipped,
            skipped_reasons: reasons,
        };
        let bytes = dataset.examples.iter().map(|example| line::write(example).len() + 1).sum();
        if bytes > LINES_BYTES_MAX { Err(BadDataset::TooLong { bytes }) } else { Ok(dataset) }
    }

    /// Over split, seed and the ids of each part: who has the same hash has the same examples in the same parts.
    pub fn hash(&self) -> String {
        let ids = |slice: Slice| self.of(slice).map(|example| example.id.as_str()).collect::<Vec<_>>();
        let [train, holdout, test] = Slice::ALL.map(ids);
        hash::of(&json!({
            "split": self.split.to_json(),
            "split_seed": self.split_seed,
            "ids": {"train": train, "holdout": holdout, "test": test},
        }))
    }

    /// The examples as JSON lines, in the order of their ids.
    pub fn lines(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        for example in &self.examples {
            lines.extend_from_slice(&line::write(example));
            lines.push(b'\n');
        }
        lines
    }

    /// Reads what `manifest` and `lines` have written. Each example has to be the one its id names, in the part in which
    /// the seed puts it, and all of them together those of the manifest.
    pub fn read(manifest: &Value, lines: &[u8]) -> Result<Self, BadDataset> {
        let bad = |what: &'static str| BadDataset::BadManifest { what };
        let text = |field: &'static str| manifest[field].as_str().map(ToOwned::to_owned).ok_or(bad(field));
        let version = manifest["version"].as_u64().ok_or(bad("version"))?;
        if version > VERSION {
            return Err(BadDataset::Newer { found: version });
        }
        if lines.len() > LINES_BYTES_MAX {
            return Err(BadDataset::TooLong { bytes: lines.len() });
        }
        let split = Split::read(&manifest["split"])?;
        let split_seed = text("split_seed")?;
        let mut examples: Vec<Example> = Vec::new();
        let whole = lines.strip_suffix(b"\n").unwrap_or(lines);
        for (at, one) in whole.split(|byte| *byte == b'\n').enumerate() {
            let is_own = |example: &Example| {
                let is_next = examples.last().is_none_or(|last| last.id < example.id);
                let slice = split.slice(&split_seed, &example.input);
                is_next && example.slice == slice && example.id == id_of(&example.input, &example.expected)
            };
            let example = line::read_own(one).filter(is_own);
            examples.push(example.ok_or(BadDataset::BadLine { number: at + 1 })?);
        }
        let skipped = manifest["skipped"].as_array().into_iter().flatten().map(|one| {
            let word = |field: &str| one[field].as_str().unwrap_or_default();
            Skipped::new(word("at"), word("reason"), word("detail"))
        });
        let reasons = manifest["skipped_reasons"].as_object().into_iter().flatten();
        let dataset = Self {
            name: text("name")?,
            signature_id: text("signature_id")?,
            split,
            split_seed,
            skipped: skipped.collect(),
            skipped_reasons: reasons.map(|(reason, n)| (reason.clone(), n.as_u64().unwrap_or_default())).collect(),
            examples,
        };
        let (expected, found) = (text("dataset_hash")?, dataset.hash());
        if expected == found { Ok(dataset) } else { Err(BadDataset::Mismatch { expected, found }) }
    }

    /// What is said about a dataset in the ledger.
    pub fn manifest(&self) -> Value {
        json!({
            "version": VERSION,
            "name": self.name,
            "signature_id": self.signature_id,
            "dataset_hash": self.hash(),
            "split": self.split.to_json(),
            "split_seed": self.split_seed,
            "counts": self.counts(),
            "skipped_reasons": self.skipped_reasons,
            "skipped": self.skipped.iter().take(SKIPPED_SHOWN_MAX).map(Skipped::to_json).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn counts(&self) -> Value {
        let mut counts = json!({"total": self.examples.len(), "skipped": self.skipped_reasons.values().sum::<u64>()});
        for slice in Slice::ALL {
            counts[slice.word()] = json!(self.of(slice).count());
        }
        counts
    }

    /// The examples of one part, in the order of their ids.
    pub fn of(&self, slice: Slice) -> impl Iterator<Item = &Example> {
        self.examples.iter().filter(move |example| example.slice == slice)
    }
}

/// The id of an example that fits its signature and can be kept; or why it does not or cannot.
fn check(signature: &Signature, raw: &Raw) -> Result<String, Skipped> {
    let skipped = |reason: &str, detail: &str| Err(Skipped::new(&raw.at, reason, detail));
    let whole = json!({"input": raw.input, "expected": raw.expected});
    // What its own line could not say again would be another example when it is read.
    let bytes = match canon::canonical(&whole) {
        Ok(text) if canon::unsafe_doubles(&whole, "").is_empty() => text.len(),
        _ => return skipped("unsafe_number", "a number in it has no canonical text; write it as a string"),
    };
    if bytes > EXAMPLE_BYTES_MAX {
        return skipped("too_long", &format!("{bytes} bytes, more than {EXAMPLE_BYTES_MAX}"));
    }
    if let Err(why) = signature.check_input(&raw.input) {
        return skipped("invalid_input", &why.join("; "));
    }
    if let Err(why) = signature.check_output(&raw.expected) {
        return skipped("invalid_expected", &why.join("; "));
    }
    Ok(id_of(&raw.input, &raw.expected))
}

fn id_of(input: &Value, expected: &Value) -> String {
    format!("ex_{}", &hash::of(&json!({"input": input, "expected": expected}))[..ID_DIGITS])
}

/// `line 9` before `line 10`.
fn place(at: &str) -> (usize, String) {
    (at.len(), at.to_owned())
}

#[cfg(test)]
mod tests;
