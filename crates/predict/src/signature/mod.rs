//! Signatures: what is asked of a model, in which form, and what an answer has to look like.
//!
//! Read from files of the catalogue by `cli`, used by strategies and the gateway. A signature that could be read is
//! whole: its schemas compile, its templates parse. Never changes once it is registered; its hashes say whether it did.

mod program;
mod render;

use std::fmt;
use std::sync::Arc;

use actum_contract::canon;
use actum_contract::part::{Flaw, Part};
use jsonschema::{PatternOptions, Validator};
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use program::{ITERATIONS_DEFAULT, ITERATIONS_MAX, Program, Strategy};
pub use render::BadRender;

use crate::artifact::Shot;
use crate::protocol::{Message, Role};
use crate::{depth, hash};

/// Of the form signatures are kept in.
pub const CATALOG_VERSION: u64 = 1;

/// Bytes of a signature's name with all its parts.
pub(crate) const ID_BYTES_MAX: usize = 200;

/// Bytes of one schema, of all templates, and of what is said about a signature.
const SCHEMA_BYTES_MAX: usize = 256 << 10;
const TEMPLATE_BYTES_MAX: usize = 256 << 10;
const DESCRIPTION_BYTES_MAX: usize = 4 << 10;

/// Messages of one template.
const MESSAGES_MAX: usize = 64;

/// Levels of an input or an output: what is kept of them stands within other documents, which have to be read again.
pub(crate) const LEVELS_MAX: usize = 64;

/// Versions are counted, not dated.
const VERSION_MAX: u64 = 1_000_000;

/// What a pattern of a schema may take, compiled and when it is tried.
const PATTERN_BYTES_MAX: usize = 1 << 20;
const PATTERN_STEPS_MAX: usize = 100_000;

/// Errors of one check that are told, and letters of each.
const ERRORS_SHOWN_MAX: usize = 20;
const ERROR_CHARS_MAX: usize = 300;

/// Words of which a schema has at least one; what has none is a map of type names or something else.
const KEYWORDS: [&str; 13] = [
    "type",
    "properties",
    "$ref",
    "$defs",
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "const",
    "not",
    "if",
    "items",
    "additionalProperties",
];

const NOUN: &str = "a signature";

/// A signature that could be read.
#[derive(Clone)]
pub struct Signature {
    pub namespace: String,
    pub name: String,
    pub version: u64,
    pub description: Option<String>,
    pub input_schema: Value,
    pub output_schema: Value,
    pub prompt: Template,
    pub program: Program,
    input: Arc<Validator>,
    output: Arc<Validator>,
    /// What stands before the question: of an artifact, never of a signature by itself.
    shots: Arc<[Shot]>,
}

/// What is said to the model: one message of the user, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    Text(String),
    Messages(Vec<Message>),
}

impl Template {
    /// As it is kept.
    pub fn to_json(&self) -> Value {
        let message = |message: &Message| json!({"role": message.role.word(), "content": message.content});
        match self {
            Self::Text(text) => json!(text),
            Self::Messages(messages) => messages.iter().map(message).collect(),
        }
    }
}

/// What two signatures of one name have to agree in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hashes {
    pub schema_hash: String,
    pub prompt_hash: String,
    pub program_hash: String,
}

impl Signature {
    /// Reads a signature; every flaw is found, not only the first.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let signature = read(&mut Part::new(value, "", NOUN, &mut flaws));
        match (signature, flaws.is_empty()) {
            (Some(signature), true) => Ok(signature),
            _ => Err(flaws),
        }
    }

    pub fn id(&self) -> String {
        format!("{}/{}.v{}", self.namespace, self.name, self.version)
    }

    pub fn hashes(&self) -> Hashes {
        Hashes {
            schema_hash: hash::of(&json!({"input_schema": self.input_schema, "output_schema": self.output_schema})),
            prompt_hash: hash::of(&self.prompt.to_json()),
            program_hash: hash::of(&self.program.to_json()),
        }
    }

    /// As it is kept; reading it again gives an equal signature.
    pub fn to_json(&self) -> Value {
        let mut fields = json!({
            "signature_id": self.id(),
            "namespace": self.namespace,
            "name": self.name,
            "version": self.version,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "prompt_template": self.prompt.to_json(),
            "program_template": self.program.to_json(),
        });
        if let Some(description) = &self.description {
            fields["description"] = json!(description);
        }
        fields
    }

    /// The same question, asked in another way.
    pub(crate) fn asked(&self, prompt: Template, program: Program, shots: &[Shot]) -> Self {
        Self { prompt, program, shots: shots.into(), ..self.clone() }
    }

    /// Examples that are put before the question; no part of what is kept of a signature.
    pub fn shots(&self) -> &[Shot] {
        &self.shots
    }

    /// Whether an input is what the signature takes; if not, each place and what is wrong there.
    pub fn check_input(&self, input: &Value) -> Result<(), Vec<String>> {
        check(&self.input, input)
    }

    pub fn check_output(&self, output: &Value) -> Result<(), Vec<String>> {
        check(&self.output, output)
    }

    /// The messages for an input. A template names the fields of the input, `input` for all of it, and what is `extra`.
    pub fn render(&self, input: &Value, extra: &[(&str, &Value)]) -> Result<Vec<Message>, BadRender> {
        self.render_under(&render::instruction(&self.output_schema), input, extra)
    }

    /// The same with another instruction in place of the one to give the answer at once.
    pub(crate) fn render_under(
        &self,
        instruction: &str,
        input: &Value,
        extra: &[(&str, &Value)],
    ) -> Result<Vec<Message>, BadRender> {
        // Who works by operations gives other answers on the way, and would learn the wrong ones.
        let shots = if self.program.strategy == Strategy::Direct { self.shots() } else { &[] };
        render::render(&self.prompt, shots, instruction, input, extra)
    }
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        self.to_json() == other.to_json() && self.shots == other.shots
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signature").field(&self.to_json()).finish()
    }
}

fn read(part: &mut Part<'_>) -> Option<Signature> {
    let name = read_name(part);
    let description = part.text("description").filter(|text| {
        let is_good = text.len() <= DESCRIPTION_BYTES_MAX;
        if !is_good {
            part.bad("description", &json!(text), &format!("at most {DESCRIPTION_BYTES_MAX} bytes"));
        }
        is_good
    });
    let input = read_schema(part, "input_schema");
    if let Some((schema, _)) = &input
        && schema["type"] != json!("object")
    {
        part.bad("input_schema", schema, "a schema of type object: its fields are what the template names");
    }
    let output = read_schema(part, "output_schema");
    let prompt = read_template(part);
    let program = Program::take(part);
    part.finish();
    let ((namespace, name, version), (input_schema, input), (output_schema, output)) = (name?, input?, output?);
    let (prompt, program) = (prompt?, program?);
    Some(Signature {
        namespace,
        name,
        version,
        description,
        input_schema,
        output_schema,
        prompt,
        program,
        input: Arc::new(input),
        output: Arc::new(output),
        shots: Arc::default(),
    })
}

/// Namespace, name and version: from the three fields, from the id, or from both if they agree.
fn read_name(part: &mut Part<'_>) -> Option<(String, String, u64)> {
    let id = part.text("signature_id");
    let parsed = id.as_deref().and_then(split_id);
    if let Some(id) = &id
        && parsed.is_none()
    {
        part.bad("signature_id", &json!(id), "namespace/name.vN");
    }
    let mut text = |field: &str, of_id: Option<&String>| match (part.has(field), of_id) {
        (false, Some(found)) => {
            part.take(field);
            found.clone()
        }
        _ => required(part, field),
    };
    let namespace = text("namespace", parsed.as_ref().map(|(namespace, ..)| namespace));
    let name = text("name", parsed.as_ref().map(|(_, name, _)| name));
    let version = match (part.take("version"), &parsed) {
        (None, Some((.., version))) => Some(*version),
        (given, _) => {
            let found = given.as_ref().and_then(Value::as_u64).filter(|n| (1..=VERSION_MAX).contains(n));
            if found.is_none() {
                let expected = format!("a whole number from 1 to {VERSION_MAX}");
                part.bad("version", &given.unwrap_or(Value::Null), &expected);
            }
            found
        }
    }?;
    let mut is_good = true;
    if !namespace.is_empty() && !is_namespace(&namespace) {
        part.bad("namespace", &json!(namespace), "parts between /, of letters, digits, and @ _ - .");
        is_good = false;
    }
    if !name.is_empty() && !is_name(&name) {
        part.bad("name", &json!(name), "letters, digits, _ and -");
        is_good = false;
    }
    let made = format!("{namespace}/{name}.v{version}");
    if made.len() > ID_BYTES_MAX {
        let expected = format!("a name that has with namespace and version at most {ID_BYTES_MAX} bytes");
        part.bad("name", &json!(name), &expected);
        is_good = false;
    }
    if is_good && let Some(id) = id.filter(|id| parsed.is_some() && *id != made) {
        part.bad("signature_id", &json!(id), &format!("{made}, as namespace, name and version say"));
        is_good = false;
    }
    (is_good && !namespace.is_empty() && !name.is_empty()).then_some((namespace, name, version))
}

/// A text that is there and is not empty; if not, that is a flaw.
pub(crate) fn required(part: &mut Part<'_>, field: &str) -> String {
    let before = part.flaws.len();
    let text = part.text(field);
    if text.as_deref().unwrap_or_default().is_empty() && part.flaws.len() == before {
        part.bad(field, &text.as_ref().map_or(Value::Null, |text| json!(text)), "text");
    }
    text.unwrap_or_default()
}

pub(crate) fn split_id(id: &str) -> Option<(String, String, u64)> {
    let (rest, version) = id.rsplit_once(".v")?;
    let (namespace, name) = rest.rsplit_once('/')?;
    let is_number = version.bytes().all(|b| b.is_ascii_digit()) && !version.starts_with('0');
    let version = version.parse().ok().filter(|n| is_number && (1..=VERSION_MAX).contains(n))?;
    (is_namespace(namespace) && is_name(name)).then(|| (namespace.to_owned(), name.to_owned(), version))
}

fn is_namespace(text: &str) -> bool {
    text.split('/').all(|part| {
        !matches!(part, "" | "." | "..") && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"@_-.".contains(&b))
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

fn read_schema(part: &mut Part<'_>, field: &str) -> Option<(Value, Validator)> {
    let value = part.take(field).unwrap_or(Value::Null);
    let has_keyword = |fields: &Map<String, Value>| KEYWORDS.iter().any(|word| fields.contains_key(*word));
    if !value.as_object().is_some_and(has_keyword) {
        part.bad(
            field,
            &value,
            r#"a JSON Schema such as {"type": "object", "properties": …}, not a map of type names"#,
        );
        return None;
    }
    match canon::canonical(&value) {
        Ok(text) if text.len() <= SCHEMA_BYTES_MAX => {}
        Ok(_) => {
            part.bad(field, &value, &format!("a JSON Schema of at most {SCHEMA_BYTES_MAX} bytes"));
            return None;
        }
        Err(why) => {
            part.bad(field, &value, &format!("a JSON Schema that has one text: {why}"));
            return None;
        }
    }
    match compile(&value) {
        Ok(validator) => Some((value, validator)),
        Err(why) => {
            part.bad(field, &value, &why);
            None
        }
    }
}

/// Never fetches anything: what a schema refers to has to stand in it.
fn compile(schema: &Value) -> Result<Validator, String> {
    let patterns = PatternOptions::fancy_regex().size_limit(PATTERN_BYTES_MAX).backtrack_limit(PATTERN_STEPS_MAX);
    jsonschema::options().offline().with_pattern_options(patterns).build(schema).map_err(|e| {
        let at = e.instance_path().to_string();
        let place = if at.is_empty() { String::new() } else { format!(" at {at}") };
        format!("a JSON Schema that stands by itself{place}: {}", short(&e.to_string()))
    })
}

fn check(validator: &Validator, value: &Value) -> Result<(), Vec<String>> {
    if depth::is_deeper(value, LEVELS_MAX) {
        return Err(vec![format!("/: nested deeper than {LEVELS_MAX} levels; make it flatter")]);
    }
    let mut errors = validator.iter_errors(value);
    let mut told: Vec<String> = errors
        .by_ref()
        .take(ERRORS_SHOWN_MAX)
        .map(|error| {
            let at = error.instance_path().to_string();
            let at = if at.is_empty() { "/".to_owned() } else { short(&at) };
            // The value itself may be long, or a secret.
            format!("{at}: {}", short(&error.masked().to_string()))
        })
        .collect();
    let more = errors.count();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    if told.is_empty() { Ok(()) } else { Err(told) }
}

fn short(text: &str) -> String {
    text.chars().take(ERROR_CHARS_MAX).collect()
}

/// Takes `prompt_template` out of a document.
pub(crate) fn read_template(part: &mut Part<'_>) -> Option<Template> {
    let field = "prompt_template";
    let expected = "a template, or a list of {role, content}";
    let value = part.take(field).unwrap_or(Value::Null);
    let template = match &value {
        Value::String(text) if !text.trim().is_empty() => Some(Template::Text(text.clone())),
        Value::Array(items) if (1..=MESSAGES_MAX).contains(&items.len()) => {
            let messages =
                items.iter().enumerate().map(|(at, item)| read_message(part, &format!("{field}[{at}]"), item));
            messages.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>().map(Template::Messages)
        }
        _ => {
            part.bad(field, &value, expected);
            None
        }
    }?;
    let sources: Vec<(String, &str)> = match &template {
        Template::Text(text) => vec![(field.to_owned(), text)],
        Template::Messages(messages) => messages
            .iter()
            .enumerate()
            .map(|(at, message)| (format!("{field}[{at}].content"), message.content.as_str()))
            .collect(),
    };
    let mut is_good = true;
    if sources.iter().map(|(_, source)| source.len()).sum::<usize>() > TEMPLATE_BYTES_MAX {
        part.bad(field, &value, &format!("templates of together at most {TEMPLATE_BYTES_MAX} bytes"));
        is_good = false;
    }
    for (name, source) in sources {
        if let Some(why) = render::check(source).filter(|_| is_good) {
            part.bad(&name, &json!(source), &format!("a template that can be read: {why}"));
            is_good = false;
        }
    }
    is_good.then_some(template)
}

fn read_message(part: &mut Part<'_>, at: &str, item: &Value) -> Option<Message> {
    let at = part.name(at);
    let part = &mut Part::new(item, &at, "a message", part.flaws);
    let role = match required(part, "role").as_str() {
        "system" => Some(Role::System),
        "user" => Some(Role::User),
        "assistant" => Some(Role::Assistant),
        "" => None,
        other => {
            part.bad("role", &json!(other), "system, user or assistant");
            None
        }
    };
    let content = required(part, "content");
    part.finish();
    role.map(|role| Message { role, content })
}

/// What stands for a call that came through the gateway: any question of a protocol, any answer.
pub fn gateway(protocol_word: &str) -> Signature {
    let word: String =
        protocol_word.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(64).collect();
    let value = json!({
        "namespace": "actum",
        "name": format!("gateway_{word}"),
        "version": 1,
        "description": "A call of a model by an agent, as it came.",
        "input_schema": {"type": "object"},
        "output_schema": {"type": "object"},
        "prompt_template": "{{ input | tojson }}",
        "program_template": Strategy::Direct.word(),
    });
    Signature::read(&value).expect("the built-in signature is read by a test")
}

/// JSON Schema of a prompt, and of a program.
pub(crate) fn template_schema() -> Value {
    render::schema()
}

pub(crate) fn program_schema() -> Value {
    program::schema()
}

/// JSON Schema of one signature.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Signature",
        "type": "object",
        "properties": {
            "signature_id": {"type": "string", "maxLength": ID_BYTES_MAX},
            "namespace": {"type": "string", "pattern": "^[A-Za-z0-9@_.-]+(/[A-Za-z0-9@_.-]+)*$"},
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
            "version": {"type": "integer", "minimum": 1, "maximum": VERSION_MAX},
            "description": {"type": "string", "maxLength": DESCRIPTION_BYTES_MAX},
            "input_schema": {
                "type": "object", "properties": {"type": {"const": "object"}}, "required": ["type"],
            },
            "output_schema": {"type": "object", "anyOf": KEYWORDS.map(|word| json!({"required": [word]}))},
            "prompt_template": render::schema(),
            "program_template": program::schema(),
        },
        "required": ["input_schema", "output_schema", "prompt_template", "program_template"],
        "anyOf": [{"required": ["signature_id"]}, {"required": ["namespace", "name", "version"]}],
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests;
