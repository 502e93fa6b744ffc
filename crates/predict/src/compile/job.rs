//! The job: which signature is to be asked better, on which examples, measured how, in which ways. Read from a file by
//! `cli`; its hash says whether the same was done before, wherever the files lie.

use actum_contract::part::{Flaw, Part};
use serde_json::{Value, json};

use super::spec::{Search, Spec};
use super::{CANDIDATES_MAX, COMPILER_VERSION, Candidate};
use crate::artifact::{self, LABEL_BYTES_MAX};
use crate::dataset::{Dataset, SEED_BYTES_MAX, SEED_DEFAULT, Split};
use crate::hash;
use crate::metric::Metric;
use crate::signature::Signature;

/// Bytes of a job as canonical JSON: it stands in its report.
const JOB_BYTES_MAX: usize = 256 << 10;

/// Hex digits of a dataset's hash that may stand for all of it, and all there are.
pub(super) const HASH_DIGITS_MIN: usize = 8;
pub(super) const HASH_DIGITS: usize = 64;

/// Bytes of a file's name.
pub(super) const PATH_BYTES_MAX: usize = 4_096;

const NOUN: &str = "a compile job";

#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub signature_id: String,
    pub source: Source,
    pub metric: Metric,
    pub candidates: Vec<Spec>,
    pub search: Option<Search>,
    pub label: Option<String>,
}

/// Where the examples are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A dataset of the ledger, by its hash or the beginning of it.
    Hash(String),
    /// Labelled lines, to be divided.
    File { path: String, split: Split, split_seed: String },
}

impl Source {
    fn take(part: &mut Part<'_>) -> Option<Self> {
        let field = "dataset";
        match part.take(field) {
            Some(Value::String(text)) => {
                let is_hex = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                let is_good = is_hex && (HASH_DIGITS_MIN..=HASH_DIGITS).contains(&text.len());
                if !is_good {
                    let expected = format!(
                        "a dataset_hash, or its first {HASH_DIGITS_MIN} digits and more; for a file write {{file: …}}"
                    );
                    part.bad(field, &json!(text), &expected);
                }
                is_good.then_some(Self::Hash(text))
            }
            Some(value @ Value::Object(_)) => {
                let at = part.name(field);
                let part = &mut Part::new(&value, &at, "a dataset", part.flaws);
                let before = part.flaws.len();
                let path = part.take("file").unwrap_or(Value::Null);
                let is_path = |text: &&str| (1..=PATH_BYTES_MAX).contains(&text.len()) && !text.contains('\0');
                if path.as_str().filter(is_path).is_none() {
                    part.bad("file", &path, "the path of a file of examples, one JSON object in a line");
                }
                let split = Split::take(part, "split");
                let split_seed = part.text("split_seed").unwrap_or_else(|| SEED_DEFAULT.to_owned());
                if !(1..=SEED_BYTES_MAX).contains(&split_seed.len()) {
                    part.bad("split_seed", &json!(split_seed), &format!("a text of 1 to {SEED_BYTES_MAX} bytes"));
                }
                part.finish();
                let path = path.as_str().filter(|_| part.flaws.len() == before)?.to_owned();
                Some(Self::File { path, split, split_seed })
            }
            other => {
                part.bad(field, &other.unwrap_or(Value::Null), "a dataset_hash, or {file, split, split_seed}");
                None
            }
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Hash(hash) => json!(hash),
            Self::File { path, split, split_seed } => {
                json!({"file": path, "split": split.to_json(), "split_seed": split_seed})
            }
        }
    }
}

impl Job {
    /// Reads a job; every flaw is found, not only the first.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let job = read(&mut Part::new(value, "", NOUN, &mut flaws));
        match (job, flaws.is_empty()) {
            (Some(job), true) => Ok(job),
            _ => Err(flaws),
        }
    }

    /// As it is kept; reading it again gives the same.
    pub fn to_json(&self) -> Value {
        let mut fields = json!({
            "signature_id": self.signature_id,
            "dataset": self.source.to_json(),
            "metric": self.metric.to_json(),
        });
        if !self.candidates.is_empty() {
            fields["candidates"] = self.candidates.iter().map(Spec::to_json).collect();
        }
        if let Some(search) = &self.search {
            fields["search"] = search.to_json();
        }
        if let Some(label) = &self.label {
            fields["label"] = json!(label);
        }
        fields
    }

    /// Registered artifacts that candidates name.
    pub fn named_artifacts(&self) -> Vec<&str> {
        self.candidates.iter().filter_map(|spec| spec.artifact.as_deref()).collect()
    }

    /// Over all that is asked for, and over nothing that is found: not where files lie, not which examples there are.
    pub fn hash(&self, signature: &Signature, dataset: &Dataset, candidates: &[Candidate]) -> String {
        let hashes = signature.hashes();
        let candidate = |one: &Candidate| json!({"name": one.name, "artifact_id": one.artifact.id()});
        hash::of(&json!({
            "compiler_version": COMPILER_VERSION,
            "signature_id": signature.id(),
            "schema_hash": hashes.schema_hash,
            "prompt_hash": hashes.prompt_hash,
            "program_hash": hashes.program_hash,
            "split": dataset.split.to_json(),
            "split_seed": dataset.split_seed,
            "metric": self.metric.to_json(),
            "candidates": candidates.iter().map(candidate).collect::<Vec<_>>(),
            "label": self.label,
        }))
    }
}

fn read(part: &mut Part<'_>) -> Option<Job> {
    artifact::read_version(part);
    let signature_id = artifact::read_signature_id(part);
    let source = Source::take(part);
    if !part.has("metric") {
        part.bad("metric", &Value::Null, "what an answer is measured by, as exact_match");
    }
    let metric = Metric::take(part, "metric");
    let candidates = read_candidates(part);
    let search = part.take("search").map(|value| Search::read(part, &value));
    if candidates.as_ref().is_some_and(Vec::is_empty) && search.is_none() {
        part.bad("candidates", &Value::Null, "candidates, a search, or both");
    }
    let label = part.text("label").filter(|text| {
        let is_good = (1..=LABEL_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if !is_good {
            part.bad("label", &json!(text), &format!("one line of 1 to {LABEL_BYTES_MAX} bytes"));
        }
        is_good
    });
    part.finish();
    let search = match search {
        Some(read) => Some(read?),
        None => None,
    };
    let job =
        Job { signature_id: signature_id?, source: source?, metric: metric?, candidates: candidates?, search, label };
    let bytes = hash::canonical(&job.to_json()).len();
    if bytes > JOB_BYTES_MAX {
        let expected =
            format!("a job of at most {JOB_BYTES_MAX} bytes; register long prompts as artifacts and name those");
        part.bad("candidates", &json!(format!("{bytes} bytes")), &expected);
    }
    Some(job)
}

fn read_candidates(part: &mut Part<'_>) -> Option<Vec<Spec>> {
    let field = "candidates";
    let Some(value) = part.take(field) else { return Some(Vec::new()) };
    let Some(items) = value.as_array().filter(|items| items.len() < CANDIDATES_MAX) else {
        part.bad(field, &value, &format!("a list of at most {} candidates", CANDIDATES_MAX - 1));
        return None;
    };
    let specs = items.iter().enumerate().map(|(at, item)| Spec::read(part, &format!("{field}[{at}]"), item));
    let specs: Vec<Spec> = specs.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?;
    for (at, spec) in specs.iter().enumerate() {
        if specs[..at].iter().any(|other| other.name == spec.name) {
            part.bad(&format!("{field}[{at}].name"), &json!(spec.name), "a name that no other candidate has");
        }
    }
    Some(specs)
}
