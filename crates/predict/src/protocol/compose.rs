//! A question of our own, in any of the four protocols, and what its answer says. Called by strategies through whoever
//! joins them with a provider; what is asked was rendered before.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::gather::Gather;
use super::question::CHAT_LIMIT;
use super::usage::Usage;
use super::{Protocol, Question};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

/// What is to be asked, in no protocol yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    pub model: String,
    pub messages: Vec<Message>,
    /// What the answer has to look like.
    pub schema: Option<Value>,
    pub schema_name: String,
    pub output_tokens: u64,
    pub temperature: Option<f64>,
    pub seed: Option<u64>,
}

/// How far a provider can be held to a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Structured {
    JsonSchema,
    JsonObject,
    Nothing,
}

/// What a model said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// Where a tool was forced to get JSON, its input.
    pub text: String,
    /// Nothing: missing, or not to be believed.
    pub usage: Option<Usage>,
    pub model: Option<String>,
    pub stop: Option<String>,
}

/// The tool that an answer is given through where there is no other way to a schema.
const ANSWER: &str = "answer";

/// Letters of a schema's name, as providers allow.
const SCHEMA_NAME_CHARS_MAX: usize = 64;

/// Puts a prompt into a protocol. Never a stream: nobody watches.
pub fn compose(protocol: Protocol, prompt: &Prompt, structured: Structured) -> Question {
    let mut body = match protocol {
        Protocol::Chat => chat(prompt, structured),
        Protocol::Responses => responses(prompt, structured),
        Protocol::Messages => messages(prompt, structured),
        Protocol::Generate => generate(prompt, structured),
    };
    if protocol != Protocol::Generate {
        body["model"] = json!(prompt.model);
        if let Some(temperature) = prompt.temperature {
            body["temperature"] = json!(temperature);
        }
    }
    Question::composed(protocol, &prompt.model, prompt.output_tokens, body)
}

fn chat(prompt: &Prompt, structured: Structured) -> Value {
    let all = prompt.messages.iter();
    let message = |message: &Message| json!({"role": message.role.word(), "content": message.content});
    let mut body = json!({"messages": all.map(message).collect::<Vec<_>>()});
    body[CHAT_LIMIT] = json!(prompt.output_tokens);
    if let Some(seed) = prompt.seed {
        body["seed"] = json!(seed);
    }
    match (structured, &prompt.schema) {
        (Structured::JsonSchema, Some(schema)) => {
            let format = json!({"name": name_of(prompt), "schema": schema, "strict": is_strict(schema)});
            body["response_format"] = json!({"type": "json_schema", "json_schema": format});
        }
        (Structured::JsonObject, Some(_)) => body["response_format"] = json!({"type": "json_object"}),
        _ => {}
    }
    body
}

fn responses(prompt: &Prompt, structured: Structured) -> Value {
    let all = prompt.messages.iter();
    let message = |message: &Message| json!({"role": message.role.word(), "content": message.content});
    let input: Vec<Value> = all.map(message).collect();
    // Nothing stays with the provider: what was asked is kept here.
    let mut body = json!({"input": input, "max_output_tokens": prompt.output_tokens, "store": false});
    match (structured, &prompt.schema) {
        (Structured::JsonSchema, Some(schema)) => {
            let strict = is_strict(schema);
            let format = json!({"type": "json_schema", "name": name_of(prompt), "schema": schema, "strict": strict});
            body["text"] = json!({"format": format});
        }
        (Structured::JsonObject, Some(_)) => body["text"] = json!({"format": {"type": "json_object"}}),
        _ => {}
    }
    body
}

fn messages(prompt: &Prompt, structured: Structured) -> Value {
    let others = prompt.messages.iter().filter(|message| message.role != Role::System);
    let message = |message: &Message| json!({"role": message.role.word(), "content": message.content});
    let mut body = json!({"messages": others.map(message).collect::<Vec<_>>(), "max_tokens": prompt.output_tokens});
    if let Some(system) = system(prompt) {
        body["system"] = json!(system);
    }
    // A tool takes an object; another kind of answer is left to the prompt.
    let schema = prompt.schema.as_ref().filter(|schema| schema.get("type") == Some(&json!("object")));
    if let (Structured::JsonSchema, Some(schema)) = (structured, schema) {
        body["tools"] = json!([{"name": ANSWER, "description": "Give the answer.", "input_schema": schema}]);
        body["tool_choice"] = json!({"type": "tool", "name": ANSWER});
    }
    body
}

fn generate(prompt: &Prompt, structured: Structured) -> Value {
    let others = prompt.messages.iter().filter(|message| message.role != Role::System);
    let content = |message: &Message| {
        let role = if message.role == Role::Assistant { "model" } else { "user" };
        json!({"role": role, "parts": [{"text": message.content}]})
    };
    let mut config = json!({"maxOutputTokens": prompt.output_tokens});
    if let Some(temperature) = prompt.temperature {
        config["temperature"] = json!(temperature);
    }
    if let Some(seed) = prompt.seed {
        config["seed"] = json!(seed);
    }
    match (structured, &prompt.schema) {
        (Structured::JsonSchema, Some(schema)) => {
            config["responseMimeType"] = json!("application/json");
            config["responseJsonSchema"] = schema.clone();
        }
        (Structured::JsonObject, Some(_)) => config["responseMimeType"] = json!("application/json"),
        _ => {}
    }
    let mut body = json!({"contents": others.map(content).collect::<Vec<_>>(), "generationConfig": config});
    if let Some(system) = system(prompt) {
        body["systemInstruction"] = json!({"parts": [{"text": system}]});
    }
    body
}

/// What stands before the conversation, where it has a place of its own.
fn system(prompt: &Prompt) -> Option<String> {
    let texts = prompt.messages.iter().filter(|message| message.role == Role::System);
    let texts: Vec<&str> = texts.map(|message| message.content.as_str()).collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

impl Role {
    pub const fn word(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

fn name_of(prompt: &Prompt) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = prompt.schema_name.chars().take(SCHEMA_NAME_CHARS_MAX).map(fit).collect();
    if name.is_empty() { ANSWER.to_owned() } else { name }
}

/// Whether OpenAI would take a schema as strict: every object names all its properties, and no others are allowed.
fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let is_object = fields.get("type") == Some(&json!("object")) || fields.contains_key("properties");
            let properties = fields.get("properties").and_then(Value::as_object);
            let required = fields.get("required").and_then(Value::as_array);
            let is_required =
                |name: &String| required.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(name)));
            let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
            let is_fit = !is_object || is_closed && properties.is_none_or(|all| all.keys().all(is_required));
            is_fit && fields.values().all(is_strict)
        }
        Value::Array(items) => items.iter().all(is_strict),
        _ => true,
    }
}

/// Reads a whole answer.
pub fn extract(protocol: Protocol, body: &[u8]) -> Result<Said, String> {
    let document: Value = serde_json::from_slice(body).map_err(|e| format!("the answer is invalid JSON: {e}"))?;
    let mut gather = Gather::new(protocol);
    gather.document(&document);
    gather.over();
    if let Some(error) = gather.error {
        return Err(error);
    }
    if !gather.is_whole {
        return Err(format!("the answer is none of {}", protocol.word()));
    }
    let usage = gather.told.usage(protocol, gather.has_said()).ok();
    let answer = gather.calls().into_iter().find(|call| call["name"] == ANSWER);
    let text = match answer {
        Some(call) => call["arguments"].to_string(),
        None => gather.text(),
    };
    Ok(Said { text, usage, model: gather.model.take(), stop: gather.stop.take() })
}
