//! JSON Schema of a job file, for editors and for `schemas/`. Says the same as the reader, as far as a schema can.

use serde_json::{Value, json};

use super::CANDIDATES_MAX;
use super::job::{HASH_DIGITS, HASH_DIGITS_MIN, PATH_BYTES_MAX};
use super::spec::{MODEL_BYTES_MAX, NAME_BYTES_MAX};
use crate::artifact::{LABEL_BYTES_MAX, SHOTS_MAX};
use crate::dataset::{SEED_BYTES_MAX, SEED_DEFAULT, split_schema};
use crate::signature::{ID_BYTES_MAX, Strategy, program_schema, template_schema};
use crate::{artifact, metric};

/// JSON Schema of a job file.
pub fn schema() -> Value {
    let text = |max: usize| json!({"type": "string", "minLength": 1, "maxLength": max});
    let seed = json!({"type": "string", "minLength": 1, "maxLength": SEED_BYTES_MAX, "default": SEED_DEFAULT});
    let object = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let list = |items: &Value, max: usize| json!({"type": "array", "items": items, "minItems": 1, "maxItems": max});
    let count = json!({"type": "integer", "minimum": 0, "maximum": SHOTS_MAX});
    let balanced = json!({
        "type": "boolean", "default": false, "description": "by turns of each answer that there is",
    });
    let draw = object(json!({"count": count, "seed": seed, "balanced": balanced}), &["count"]);
    let shot = object(json!({"input": {"type": "object"}, "output": {}}), &["input", "output"]);
    let shots = json!({"type": "array", "items": shot, "maxItems": SHOTS_MAX});
    let strategy = json!({"enum": Strategy::ALL.map(Strategy::word)});
    let (name, model) = (text(NAME_BYTES_MAX), text(MODEL_BYTES_MAX));
    let dataset = object(json!({"file": text(PATH_BYTES_MAX), "split": split_schema(), "split_seed": seed}), &["file"]);
    let written = object(
        json!({
            "name": name,
            "prompt_template": template_schema(),
            "program_template": program_schema(),
            "strategy": strategy,
            "model": model,
            "few_shot": {"anyOf": [count, draw, shots], "description": "of train: how many; or examples"},
        }),
        &["name"],
    );
    let registered = object(
        json!({"name": name, "artifact": {"type": "string", "pattern": "^art_[0-9a-f]{24}$"}}),
        &["name", "artifact"],
    );
    let prompt = object(json!({"name": name, "prompt_template": template_schema()}), &["name", "prompt_template"]);
    let mut search = object(
        json!({
            "prompts": list(&prompt, CANDIDATES_MAX),
            "strategies": list(&strategy, CANDIDATES_MAX),
            "models": list(&model, CANDIDATES_MAX),
            "few_shot": list(&json!({"anyOf": [count, draw]}), CANDIDATES_MAX),
        }),
        &[],
    );
    search["description"] = json!("every combination of these is a candidate");
    search["minProperties"] = json!(1);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Compile job",
        "type": "object",
        "properties": {
            "version": {"const": artifact::VERSION},
            "signature_id": {"type": "string", "maxLength": ID_BYTES_MAX},
            "dataset": {"anyOf": [
                {"type": "string", "pattern": format!("^[0-9a-f]{{{HASH_DIGITS_MIN},{HASH_DIGITS}}}$")},
                dataset,
            ]},
            "metric": metric::schema(),
            "candidates": {
                "type": "array", "items": {"anyOf": [written, registered]}, "maxItems": CANDIDATES_MAX - 1,
            },
            "search": search,
            "label": text(LABEL_BYTES_MAX),
        },
        "required": ["signature_id", "dataset", "metric"],
        "anyOf": [{"required": ["candidates"]}, {"required": ["search"]}],
        "additionalProperties": false,
    })
}
