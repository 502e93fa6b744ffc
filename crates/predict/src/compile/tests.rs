//! Jobs, candidates and reports of a small signature that sorts letters into boxes.

mod jobs;
mod reports;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::dataset::{Dataset, Raw, Split};
use crate::signature::Signature;

const ID: &str = "@acme/mail/Sort.v2";

fn signature() -> Signature {
    let value = json!({
        "signature_id": ID,
        "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "output_schema": {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]},
        "prompt_template": "Sort {{ n }}",
        "program_template": {"strategy": "direct.v1", "temperature": 0.0},
    });
    Signature::read(&value).unwrap()
}

/// Every tenth is a b, all others are an a.
fn dataset(count: usize, split: Split) -> Dataset {
    let raw = (0..count).map(|n| Raw {
        at: format!("line {n}"),
        input: json!({"n": n}),
        expected: json!({"box": if n % 10 == 0 { "b" } else { "a" }}),
        receipt_id: None,
        is_labelled: true,
    });
    Dataset::build("mail", &signature(), raw.collect(), split, "default", None, Vec::new()).unwrap()
}

fn job(fields: Value) -> Job {
    let mut value = json!({"signature_id": ID, "dataset": "0123abcd", "metric": "exact_match"});
    for (name, field) in fields.as_object().unwrap() {
        value[name] = field.clone();
    }
    Job::read(&value).unwrap_or_else(|flaws| panic!("{flaws:?}"))
}

fn candidates(fields: Value) -> Result<Vec<Candidate>, BadJob> {
    job(fields).candidates(&signature(), &dataset(100, Split::default()), &BTreeMap::new())
}
