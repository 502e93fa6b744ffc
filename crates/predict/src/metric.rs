//! What an answer is worth beside the one that was expected: from 0 to 1, by a declared measure.
//!
//! Read from job files and guards, called for every example and every labelled receipt. Never asks a model: a judge is one
//! that somebody else has to ask.

use actum_contract::limit::INTEGER_SAFE_MAX;
use actum_contract::part::{Flaw, Part, flaw};
use serde_json::{Value, json};

use crate::{hash, signature};

/// Fields that one metric looks at, and bytes of the name of one.
const FIELDS_MAX: usize = 64;
const FIELD_BYTES_MAX: usize = 200;

/// What is larger could not be kept as it was written.
const TOLERANCE_MAX: f64 = INTEGER_SAFE_MAX as f64;

/// Where a judge's answer has its number if nobody says.
const JUDGE_FIELD: &str = "score";

/// Differences as small as this come from writing decimals as doubles; relative to the numbers and to the tolerance.
const SLACK_OF_NUMBERS: f64 = f64::EPSILON;
const SLACK_OF_TOLERANCE: f64 = 1e-6;

const NOUN: &str = "a metric";

/// Words of a schema by which there may be fields beside its `properties`.
const OPENING: [&str; 7] = ["$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "additionalProperties"];

const WORDS: [&str; 5] = ["exact_match", "field_match", "numeric_tolerance", "contains", "judge"];

/// How an answer is scored. Fields are dotted paths (`a.b.0`) or JSON pointers (`/a/b/0`).
#[derive(Debug, Clone, PartialEq)]
pub enum Metric {
    /// 1 if both have one canonical text.
    ExactMatch,
    /// The share of these fields that are there and equal.
    FieldMatch { fields: Vec<String> },
    /// 1 if two numbers differ by at most this; without a field it is the only number there is in either.
    NumericTolerance { field: Option<String>, tolerance: f64 },
    /// 1 if the text that was expected stands in the answer, in small or capital letters.
    Contains { field: Option<String> },
    /// What another signature says of it.
    Judge { signature: String, field: String },
}

impl Metric {
    /// Reads a metric; every flaw is found, not only the first.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let metric = read(value, "", &mut flaws);
        match (metric, flaws.is_empty()) {
            (Some(metric), true) => Ok(metric),
            _ => Err(flaws),
        }
    }

    /// Whether what it looks at can be there: whoever misspells a field finds every answer worthless.
    pub fn check(&self, output_schema: &Value) -> Result<(), String> {
        let fields: Vec<&String> = match self {
            Self::ExactMatch | Self::Judge { .. } => Vec::new(),
            Self::FieldMatch { fields } => fields.iter().collect(),
            Self::NumericTolerance { field, .. } | Self::Contains { field } => field.iter().collect(),
        };
        let Some(known) = output_schema.get("properties").and_then(Value::as_object) else { return Ok(()) };
        if OPENING.iter().any(|word| output_schema.get(word).is_some_and(|said| *said != Value::Bool(false))) {
            return Ok(());
        }
        for field in fields {
            let first = field.strip_prefix('/').map_or_else(|| field.split('.').next(), |rest| rest.split('/').next());
            let first = first.unwrap_or_default().replace("~1", "/").replace("~0", "~");
            if !known.contains_key(&first) {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                return Err(format!("an answer has no field {first:?}; it has {}", names.join(", ")));
            }
        }
        Ok(())
    }

    /// Takes a metric out of a document; none if there is none, or if it has a flaw.
    pub fn take(part: &mut Part<'_>, field: &str) -> Option<Self> {
        let value = part.take(field)?;
        let at = part.name(field);
        read(&value, &at, part.flaws)
    }

    pub const fn word(&self) -> &'static str {
        match self {
            Self::ExactMatch => WORDS[0],
            Self::FieldMatch { .. } => WORDS[1],
            Self::NumericTolerance { .. } => WORDS[2],
            Self::Contains { .. } => WORDS[3],
            Self::Judge { .. } => WORDS[4],
        }
    }

    /// As it is kept; reading it again gives the same.
    pub fn to_json(&self) -> Value {
        let mut fields = json!({"kind": self.word()});
        match self {
            Self::ExactMatch => {}
            Self::FieldMatch { fields: names } => fields["fields"] = json!(names),
            Self::NumericTolerance { field, tolerance } => {
                fields["tolerance"] = json!(tolerance);
                if let Some(field) = field {
                    fields["field"] = json!(field);
                }
            }
            Self::Contains { field } => {
                if let Some(field) = field {
                    fields["field"] = json!(field);
                }
            }
            Self::Judge { signature, field } => {
                fields["signature"] = json!(signature);
                fields["field"] = json!(field);
            }
        }
        fields
    }

    /// From 0 to 1; none if a judge has to be asked. What is not there on either side is worth nothing.
    pub fn score(&self, output: &Value, expected: &Value) -> Option<f64> {
        let is_hit = match self {
            Self::ExactMatch => is_equal(output, expected),
            Self::FieldMatch { fields } => {
                let is_hit = |field: &&String| match (find(output, field), find(expected, field)) {
                    (Some(output), Some(expected)) => is_equal(output, expected),
                    _ => false,
                };
                return Some(fields.iter().filter(is_hit).count() as f64 / fields.len().max(1) as f64);
            }
            Self::NumericTolerance { field, tolerance } => {
                match (number(output, field.as_deref()), number(expected, field.as_deref())) {
                    (Some(a), Some(b)) => is_near(a, b, *tolerance),
                    _ => false,
                }
            }
            Self::Contains { field } => {
                let [output, expected] = [output, expected].map(|value| {
                    let value = field.as_deref().map_or(Some(value), |field| find(value, field));
                    value.map(text).unwrap_or_default()
                });
                !expected.is_empty() && output.contains(&expected)
            }
            Self::Judge { .. } => return None,
        };
        Some(f64::from(u8::from(is_hit)))
    }

    /// What a judge is given: all three as JSON texts, so that one judge serves every signature.
    pub fn judge_input(input: &Value, output: &Value, expected: &Value) -> Value {
        let text = |value: &Value| String::from_utf8_lossy(&hash::canonical(value)).into_owned();
        json!({"input": text(input), "output": text(output), "expected": text(expected)})
    }

    /// What a judge's answer comes to.
    pub fn judged(&self, answer: &Value) -> Result<f64, String> {
        let field = match self {
            Self::Judge { field, .. } => field,
            _ => JUDGE_FIELD,
        };
        let found = find(answer, field);
        match found {
            Some(Value::Bool(is_good)) => Some(f64::from(u8::from(*is_good))),
            Some(value) => value.as_f64().filter(|score| (0.0..=1.0).contains(score)),
            None => None,
        }
        .ok_or_else(|| {
            let told = flaw(field, found.unwrap_or(&Value::Null), "a number from 0 to 1, or true or false");
            format!("the judge's answer is no score: {told}; mend the judge's output schema, or name its field in the metric")
        })
    }
}

fn read(value: &Value, at: &str, flaws: &mut Vec<Flaw>) -> Option<Metric> {
    let name = if at.is_empty() { "metric" } else { at };
    match value {
        Value::String(word) if word == WORDS[0] => return Some(Metric::ExactMatch),
        Value::String(word) if word == WORDS[3] => return Some(Metric::Contains { field: None }),
        Value::String(word) if WORDS.contains(&word.as_str()) => {
            flaws.push(flaw(name, value, &format!("an object {{kind: {word}, …}} that says the rest")));
            return None;
        }
        Value::Object(_) => {}
        _ => {
            flaws.push(flaw(name, value, &format!("exact_match, or {{kind: {}, …}}", WORDS.join(" | "))));
            return None;
        }
    }
    let part = &mut Part::new(value, at, NOUN, flaws);
    let kind = part.take("kind").unwrap_or(Value::Null);
    let metric = match kind.as_str() {
        Some("exact_match") => Some(Metric::ExactMatch),
        Some("field_match") => read_fields(part).map(|fields| Metric::FieldMatch { fields }),
        Some("numeric_tolerance") => {
            let (field, tolerance) = (read_field(part), read_tolerance(part));
            Some(Metric::NumericTolerance { field, tolerance: tolerance.unwrap_or_default() })
        }
        Some("contains") => Some(Metric::Contains { field: read_field(part) }),
        Some("judge") => {
            let signature = part.take("signature").unwrap_or(Value::Null);
            let id = signature
                .as_str()
                .filter(|id| signature::split_id(id).is_some() && id.len() <= signature::ID_BYTES_MAX)
                .map(ToOwned::to_owned);
            if id.is_none() {
                part.bad("signature", &signature, "the judge's signature, namespace/name.vN");
            }
            let field = read_field(part).unwrap_or_else(|| JUDGE_FIELD.to_owned());
            id.map(|signature| Metric::Judge { signature, field })
        }
        _ => {
            part.bad("kind", &kind, &WORDS.join(", "));
            // What else stands there cannot be judged without it.
            return None;
        }
    };
    part.finish();
    metric
}

fn read_field(part: &mut Part<'_>) -> Option<String> {
    let field = part.text("field")?;
    let is_good = is_path(&field);
    if !is_good {
        part.bad("field", &json!(field), &expected_path());
    }
    is_good.then_some(field)
}

fn read_fields(part: &mut Part<'_>) -> Option<Vec<String>> {
    let before = part.flaws.len();
    let fields = part.texts("fields");
    let is_twice = |fields: &[String]| fields.iter().enumerate().any(|(at, field)| fields[..at].contains(field));
    if part.flaws.len() == before && (!(1..=FIELDS_MAX).contains(&fields.len()) || is_twice(&fields)) {
        part.bad("fields", &json!(fields), &format!("1 to {FIELDS_MAX} fields, each once"));
        return None;
    }
    for (at, field) in fields.iter().enumerate().filter(|(_, field)| !is_path(field)) {
        part.bad(&format!("fields[{at}]"), &json!(field), &expected_path());
    }
    (part.flaws.len() == before).then_some(fields)
}

fn read_tolerance(part: &mut Part<'_>) -> Option<f64> {
    let value = part.take("tolerance").unwrap_or(Value::Null);
    let found = value.as_f64().filter(|tolerance| (0.0..=TOLERANCE_MAX).contains(tolerance));
    if found.is_none() {
        part.bad("tolerance", &value, "a number from 0 to 2^53, by which the answer may be off");
    }
    found
}

fn expected_path() -> String {
    format!("a path such as a.b.0 or /a/b/0, of at most {FIELD_BYTES_MAX} bytes")
}

fn is_path(path: &str) -> bool {
    let is_short = path.len() <= FIELD_BYTES_MAX && !path.chars().any(char::is_control);
    is_short && (path.starts_with('/') || path.split('.').all(|step| !step.is_empty()))
}

fn find<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    if path.starts_with('/') {
        return value.pointer(path);
    }
    path.split('.').try_fold(value, |value, step| match value {
        Value::Object(members) => members.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

fn is_equal(a: &Value, b: &Value) -> bool {
    hash::canonical(a) == hash::canonical(b)
}

fn is_near(a: f64, b: f64, tolerance: f64) -> bool {
    let slack = (a.abs().max(b.abs()) * SLACK_OF_NUMBERS).min(tolerance * SLACK_OF_TOLERANCE);
    (a - b).abs() <= tolerance + slack
}

/// The number at a field, or the only one in the value; of two nobody knows which was meant.
fn number(value: &Value, field: Option<&str>) -> Option<f64> {
    let one = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    };
    if let Some(field) = field {
        return one(find(value, field)?);
    }
    let mut leaves = Vec::new();
    collect(value, &mut leaves);
    let mut numbers = leaves.into_iter().filter_map(one);
    numbers.next().filter(|_| numbers.next().is_none())
}

/// The text of a value: its own, or that of all that stands in it, line by line.
fn text(value: &Value) -> String {
    let mut leaves = Vec::new();
    collect(value, &mut leaves);
    let line = |leaf: &Value| leaf.as_str().map_or_else(|| leaf.to_string(), ToOwned::to_owned);
    leaves.into_iter().map(line).collect::<Vec<_>>().join("\n").trim().to_lowercase()
}

fn collect<'v>(value: &'v Value, leaves: &mut Vec<&'v Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, leaves)),
        Value::Object(members) => members.values().for_each(|member| collect(member, leaves)),
        Value::Null => {}
        leaf => leaves.push(leaf),
    }
}

/// JSON Schema of a metric.
pub(crate) fn schema() -> Value {
    let field = json!({"type": "string", "minLength": 1, "maxLength": FIELD_BYTES_MAX});
    let kind = |word: &str, fields: Value, required: &[&str]| {
        let mut properties = json!({"kind": {"const": word}});
        for (name, schema) in fields.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        let required: Vec<&str> = std::iter::once("kind").chain(required.iter().copied()).collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let fields = json!({"type": "array", "items": field, "minItems": 1, "maxItems": FIELDS_MAX, "uniqueItems": true});
    let signature = json!({"type": "string", "description": "the judge's signature_id"});
    json!({
        "description": "what an answer is worth beside the expected one, from 0 to 1",
        "anyOf": [
            {"enum": [WORDS[0], WORDS[3]]},
            kind(WORDS[0], json!({}), &[]),
            kind(WORDS[1], json!({"fields": fields}), &["fields"]),
            kind(WORDS[2], json!({"field": field, "tolerance": {"type": "number", "minimum": 0, "maximum": TOLERANCE_MAX}}), &["tolerance"]),
            kind(WORDS[3], json!({"field": field}), &[]),
            kind(WORDS[4], json!({"signature": signature, "field": field}), &["signature"]),
        ],
    })
}

#[cfg(test)]
mod tests;
