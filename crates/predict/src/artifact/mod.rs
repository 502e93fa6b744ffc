//! Artifacts: ways to ask a signature that never change, each named by its content and held to the signature it was made
//! for.
//!
//! Read from files and from the ledger by `cli`, made by `compile`, bound to the registered signature before every
//! prediction. One that does not fit is never asked.

use std::fmt;

use actum_contract::part::{Flaw, Part};
use serde_json::{Value, json};

use crate::policy::{HASH_MISMATCH, MISSING_HASH};
use crate::signature::{self, Hashes, Program, Signature, Strategy, Template};
use crate::{depth, hash, receipt};

/// Of the form artifacts are kept in.
pub const VERSION: u64 = 1;

/// Examples of one artifact, bytes of all of them as canonical JSON, and levels of one: an input and an output.
pub const SHOTS_MAX: usize = 64;
pub const SHOTS_BYTES_MAX: usize = 512 << 10;
const SHOT_LEVELS_MAX: usize = signature::LEVELS_MAX + 1;

/// Bytes of what an artifact is called by people.
pub const LABEL_BYTES_MAX: usize = 200;

/// Hex digits of the hash that name an artifact.
const ID_DIGITS: usize = 24;

const ID_PREFIX: &str = "art_";
const NOUN: &str = "an artifact";
const HASH_NAMES: [&str; 3] = ["schema_hash", "prompt_hash", "program_hash"];

/// An example: what was asked, and what is the right answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Shot {
    pub input: Value,
    pub output: Value,
}

impl Shot {
    pub fn to_json(&self) -> Value {
        json!({"input": self.input, "output": self.output})
    }
}

/// A way to ask a signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Artifact {
    pub signature_id: String,
    /// Of the signature it was made for, not of what stands here.
    pub hashes: Hashes,
    pub prompt: Template,
    pub program: Program,
    pub shots: Vec<Shot>,
    pub label: Option<String>,
}

/// Why an artifact cannot be asked for a signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Incompatible {
    pub reason_code: &'static str,
    pub message: String,
}

/// A signature with the way in which it is asked.
#[derive(Debug, Clone)]
pub struct Way {
    /// With the prompt, the program and the examples of the artifact.
    pub signature: Signature,
    /// Of the signature as it is registered.
    pub hashes: Hashes,
    pub compiled_id: String,
}

impl Way {
    /// As the signature itself says.
    pub fn catalogue(signature: Signature) -> Self {
        let compiled_id = receipt::compiled_id(&signature.id(), signature.program.strategy.word());
        Self { hashes: signature.hashes(), signature, compiled_id }
    }
}

impl Artifact {
    /// Reads an artifact; every flaw is found, not only the first.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let artifact = read(&mut Part::new(value, "", NOUN, &mut flaws));
        match (artifact, flaws.is_empty()) {
            (Some(artifact), true) => Ok(artifact),
            _ => Err(flaws),
        }
    }

    /// The signature as it is.
    pub fn of(signature: &Signature) -> Self {
        Self {
            signature_id: signature.id(),
            hashes: signature.hashes(),
            prompt: signature.prompt.clone(),
            program: signature.program.clone(),
            shots: Vec::new(),
            label: None,
        }
    }

    /// The hash of everything in it.
    pub fn id(&self) -> String {
        format!("{ID_PREFIX}{}", &hash::of(&self.content())[..ID_DIGITS])
    }

    /// As it is kept; reading it again gives an equal artifact.
    pub fn to_json(&self) -> Value {
        let mut fields = self.content();
        fields["artifact_id"] = json!(self.id());
        fields
    }

    fn content(&self) -> Value {
        let mut fields = json!({
            "version": VERSION,
            "signature_id": self.signature_id,
            "schema_hash": self.hashes.schema_hash,
            "prompt_hash": self.hashes.prompt_hash,
            "program_hash": self.hashes.program_hash,
            "prompt_template": self.prompt.to_json(),
            "program_template": self.program.to_json(),
        });
        if !self.shots.is_empty() {
            fields["few_shot"] = self.shots.iter().map(Shot::to_json).collect();
        }
        if let Some(label) = &self.label {
            fields["label"] = json!(label);
        }
        fields
    }

    /// The signature, asked this way; or why it was made for another one.
    pub fn bind(&self, signature: &Signature) -> Result<Way, Incompatible> {
        let refused = |why: fmt::Arguments<'_>| {
            let message = format!("the artifact {} does not fit: {why}; make one for this signature", self.id());
            Err(Incompatible { reason_code: HASH_MISMATCH, message })
        };
        let (id, hashes) = (signature.id(), signature.hashes());
        if self.signature_id != id {
            return refused(format_args!("it was made for {}, and this is {id}", self.signature_id));
        }
        let pairs = of_hashes(&self.hashes).into_iter().zip(of_hashes(&hashes)).zip(HASH_NAMES);
        let changed: Vec<&str> =
            pairs.filter(|((own, registered), _)| own != registered).map(|(_, name)| name).collect();
        if !changed.is_empty() {
            return refused(format_args!("{} of {id} is not the one it was made for", changed.join(", ")));
        }
        if !self.shots.is_empty() && self.program.strategy != Strategy::Direct {
            return refused(format_args!("{DIRECT_ONLY}"));
        }
        for (at, shot) in self.shots.iter().enumerate() {
            let checks =
                [("input", signature.check_input(&shot.input)), ("output", signature.check_output(&shot.output))];
            for (name, flaws) in checks.map(|(name, check)| (name, check.err())) {
                if let Some(flaws) = flaws {
                    let flaws = flaws.join("; ");
                    return refused(format_args!("few_shot[{at}].{name} is not what the signature says: {flaws}"));
                }
            }
        }
        let signature = signature.asked(self.prompt.clone(), self.program.clone(), &self.shots);
        Ok(Way { signature, hashes, compiled_id: self.id() })
    }
}

/// Whether a text is a name that an artifact can have.
pub fn is_id(text: &str) -> bool {
    let is_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    text.strip_prefix(ID_PREFIX).is_some_and(|digits| digits.len() == ID_DIGITS && is_hex(digits))
}

const DIRECT_ONLY: &str = "few_shot works with direct.v1 only";

fn of_hashes(hashes: &Hashes) -> [&str; 3] {
    [&hashes.schema_hash, &hashes.prompt_hash, &hashes.program_hash]
}

fn read(part: &mut Part<'_>) -> Option<Artifact> {
    read_version(part);
    let given = part.text("artifact_id");
    let signature_id = read_signature_id(part);
    let [schema_hash, prompt_hash, program_hash] = HASH_NAMES.map(|field| read_hash(part, field));
    let prompt = signature::read_template(part);
    let program = Program::take(part);
    let shots = read_shots(part);
    let label = part.text("label").filter(|text| {
        let is_good = (1..=LABEL_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if !is_good {
            part.bad("label", &json!(text), &format!("one line of 1 to {LABEL_BYTES_MAX} bytes"));
        }
        is_good
    });
    if let (Some(program), Some(shots)) = (&program, &shots)
        && program.strategy != Strategy::Direct
        && !shots.is_empty()
    {
        part.bad("few_shot", &json!(shots.len()), &format!("no example: {DIRECT_ONLY}"));
    }
    part.finish();
    let hashes = Hashes { schema_hash: schema_hash?, prompt_hash: prompt_hash?, program_hash: program_hash? };
    let artifact =
        Artifact { signature_id: signature_id?, hashes, prompt: prompt?, program: program?, shots: shots?, label };
    // What could not be read has no id yet.
    if let Some(given) = given.filter(|_| part.flaws.is_empty()) {
        let own = artifact.id();
        if given != own {
            part.bad("artifact_id", &json!(given), &format!("{own}, as its content says, or nothing"));
        }
    }
    Some(artifact)
}

/// A document that does not say its version is of this one.
pub(crate) fn read_version(part: &mut Part<'_>) {
    if let Some(version) = part.take("version").filter(|version| *version != VERSION) {
        part.bad("version", &version, &format!("{VERSION}; if it is newer, use a newer actum"));
    }
}

pub(crate) fn read_signature_id(part: &mut Part<'_>) -> Option<String> {
    let id = signature::required(part, "signature_id");
    let is_good = signature::split_id(&id).is_some() && id.len() <= signature::ID_BYTES_MAX;
    if !is_good && !id.is_empty() {
        part.bad("signature_id", &json!(id), "namespace/name.vN");
    }
    is_good.then_some(id)
}

fn read_hash(part: &mut Part<'_>, field: &str) -> Option<String> {
    let value = part.take(field).unwrap_or(Value::Null);
    match value.as_str() {
        Some(text) if receipt::is_hash(text) => Some(text.to_owned()),
        _ if value.is_null() || value == "" => {
            part.bad(field, &Value::Null, &format!("the one of the signature it is made for ({MISSING_HASH})"));
            None
        }
        _ => {
            part.bad(field, &value, "a SHA-256 in hex");
            None
        }
    }
}

/// Takes `few_shot` out of a document; no examples if there is none.
pub(crate) fn read_shots(part: &mut Part<'_>) -> Option<Vec<Shot>> {
    let field = "few_shot";
    let Some(value) = part.take(field) else { return Some(Vec::new()) };
    let Some(items) = value.as_array().filter(|items| items.len() <= SHOTS_MAX) else {
        part.bad(field, &value, &format!("a list of at most {SHOTS_MAX} examples of {{input, output}}"));
        return None;
    };
    let shots: Vec<Option<Shot>> =
        items.iter().enumerate().map(|(at, item)| read_shot(part, &format!("{field}[{at}]"), item)).collect();
    let shots: Vec<Shot> = shots.into_iter().collect::<Option<_>>()?;
    // Only what is not too deep can be written.
    let bytes: usize = shots.iter().map(|shot| hash::canonical(&shot.to_json()).len()).sum();
    if bytes > SHOTS_BYTES_MAX {
        part.bad(
            field,
            &json!(format!("{bytes} bytes")),
            &format!("examples of together at most {SHOTS_BYTES_MAX} bytes"),
        );
        return None;
    }
    Some(shots)
}

fn read_shot(part: &mut Part<'_>, at: &str, item: &Value) -> Option<Shot> {
    if item.is_null() {
        part.bad(at, item, "an example of {input, output}");
        return None;
    }
    if depth::is_deeper(item, SHOT_LEVELS_MAX) {
        part.bad(at, &json!("too deep"), &format!("an example of at most {SHOT_LEVELS_MAX} levels"));
        return None;
    }
    let at = part.name(at);
    let part = &mut Part::new(item, &at, "an example", part.flaws);
    let input = part.take("input").filter(Value::is_object);
    if input.is_none() && item.is_object() {
        part.bad("input", item.get("input").unwrap_or(&Value::Null), "the fields of an input");
    }
    // Null may be a right answer; saying nothing is none.
    part.take("output");
    let output = item.get("output").cloned();
    if output.is_none() && item.is_object() {
        part.bad("output", &Value::Null, "the right answer");
    }
    part.finish();
    Some(Shot { input: input?, output: output? })
}

/// JSON Schema of an artifact file.
pub fn schema() -> Value {
    let sha256 = json!({"type": "string", "pattern": "^[0-9a-f]{64}$"});
    let shot = json!({
        "type": "object",
        "properties": {"input": {"type": "object"}, "output": {}},
        "required": ["input", "output"],
        "additionalProperties": false,
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Artifact",
        "description": "A way to ask a signature. It never changes: its id is the hash of everything in it.",
        "type": "object",
        "properties": {
            "version": {"const": VERSION},
            "artifact_id": {"type": "string", "pattern": format!("^{ID_PREFIX}[0-9a-f]{{{ID_DIGITS}}}$")},
            "signature_id": {"type": "string", "pattern": SIGNATURE_PATTERN, "maxLength": signature::ID_BYTES_MAX},
            "schema_hash": sha256,
            "prompt_hash": sha256,
            "program_hash": sha256,
            "prompt_template": signature::template_schema(),
            "program_template": signature::program_schema(),
            "few_shot": {"type": "array", "items": shot, "maxItems": SHOTS_MAX},
            "label": {"type": "string", "minLength": 1, "maxLength": LABEL_BYTES_MAX},
        },
        "required": [
            "signature_id", "schema_hash", "prompt_hash", "program_hash", "prompt_template", "program_template",
        ],
        "additionalProperties": false,
    })
}

const SIGNATURE_PATTERN: &str = r"^[A-Za-z0-9@_.-]+(/[A-Za-z0-9@_.-]+)*/[A-Za-z0-9_-]+\.v[1-9][0-9]*$";

#[cfg(test)]
mod tests;
