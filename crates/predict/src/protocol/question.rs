//! A question to a model as it was asked, in any of the four protocols; how large it can become, and what is sent of it.
//! Made by the gateway from a body, or by `compose`. Never says whether it may be asked.

use std::sync::{Arc, OnceLock};

use actum_contract::canon;
use actum_contract::digest::Digest;
use serde_json::{Map, Value, json};

use super::bound::{self, IMAGE_TOKENS_MAX};
use super::content::Content;
use super::route::is_model;
use super::{Protocol, mask, splice, tool};
use crate::depth;

/// Levels that a body may be nested: what is kept of it stands within other documents.
const DEPTH_MAX: usize = 64;

/// Answers that may be asked for at once.
const CHOICES_MAX: u64 = 128;

/// Most tokens anybody can ask for; more is a mistake.
const OUTPUT_TOKENS_MAX: u64 = 1_000_000_000;

/// The limit's first name in chat completions, and the one most servers know.
pub(super) const CHAT_LIMIT: &str = "max_tokens";

/// A question. What stands here is what the caller said; what is changed on its way is in `bytes` only, so that its keys
/// stay the same however little money is left.
#[derive(Debug, Clone)]
pub struct Question {
    pub protocol: Protocol,
    pub model: String,
    pub stream: bool,
    /// The most that may be answered, for each choice; none: the caller has said nothing.
    pub output_tokens: Option<u64>,
    pub choices: u64,
    /// As it was read. A change here is not sent.
    pub body: Arc<Value>,
    /// The text it was read from.
    text: Arc<[u8]>,
    /// Its keys, once somebody has asked for them: a long conversation is not hashed for every look.
    exact: OnceLock<String>,
    masked: OnceLock<String>,
    /// What it is made of, likewise.
    content: OnceLock<Content>,
    limit: Option<(u64, String)>,
    /// The model's name at the provider, if it is another one there.
    sent_model: Option<String>,
    /// Whether the caller wants to be told the usage in a stream of chat completions.
    is_usage_asked: bool,
    /// A stream of Google's as one list, not as events.
    is_array: bool,
    is_composed: bool,
}

impl Question {
    /// Reads a body. `path_model`, `path_stream`: what the path has said already, in Google's protocol.
    pub fn read(protocol: Protocol, path_model: Option<&str>, path_stream: bool, body: &[u8]) -> Result<Self, String> {
        let value = canon::parse(body).map_err(|e| format!("the body cannot be read: {e}"))?;
        if depth::is_deeper(&value, DEPTH_MAX) {
            return Err(format!("the body is nested deeper than {DEPTH_MAX} levels: make it flatter"));
        }
        Self::of(protocol, path_model, path_stream, value, body)
    }

    /// One of our own making.
    pub(super) fn composed(protocol: Protocol, model: &str, output_tokens: u64, body: Value) -> Self {
        // In chat completions the limit has two names; which one the provider knows is said by `limit_output`.
        let mut sent = body.clone();
        if let Some(fields) = sent.as_object_mut().filter(|_| protocol == Protocol::Chat) {
            fields.remove(CHAT_LIMIT);
        }
        let text = sent.to_string().into_bytes();
        Self {
            protocol,
            model: model.to_owned(),
            stream: false,
            output_tokens: Some(output_tokens),
            choices: 1,
            body: Arc::new(body),
            text: text.into(),
            exact: OnceLock::new(),
            masked: OnceLock::new(),
            content: OnceLock::new(),
            limit: Some((output_tokens, CHAT_LIMIT.to_owned())),
            sent_model: None,
            is_usage_asked: false,
            is_array: false,
            is_composed: true,
        }
    }

    fn of(
        protocol: Protocol,
        path_model: Option<&str>,
        path_stream: bool,
        body: Value,
        text: &[u8],
    ) -> Result<Self, String> {
        let Value::Object(fields) = &body else { return Err("the body is no object".into()) };
        let content = match protocol {
            Protocol::Chat | Protocol::Messages => "messages",
            Protocol::Responses => "input",
            Protocol::Generate => "contents",
        };
        let is_content = match fields.get(content) {
            Some(Value::Array(items)) => !items.is_empty(),
            // A single text is a message, a single object a content.
            Some(Value::String(_)) => protocol == Protocol::Responses,
            Some(Value::Object(_)) => protocol == Protocol::Generate,
            // A stored prompt, or an earlier answer, can stand for it.
            None | Some(Value::Null) => {
                protocol == Protocol::Responses
                    && ["prompt", "previous_response_id"].iter().any(|name| has(fields, name))
            }
            _ => false,
        };
        if !is_content {
            return Err(format!("{content} is missing or empty: say there what the model is asked"));
        }
        let model = match path_model.filter(|_| protocol == Protocol::Generate) {
            Some(model) => model,
            None => {
                fields.get("model").and_then(Value::as_str).ok_or("model is missing: name the model to be asked")?
            }
        };
        let model = model.strip_prefix("models/").filter(|_| protocol == Protocol::Generate).unwrap_or(model);
        if !is_model(model) {
            return Err(format!("{:?} is no name of a model", model.chars().take(80).collect::<String>()));
        }
        let stream = match fields.get("stream").filter(|_| protocol != Protocol::Generate) {
            None | Some(Value::Null) => path_stream,
            Some(Value::Bool(stream)) => *stream,
            Some(_) => return Err("stream is neither true nor false".into()),
        };
        let limits = limits(protocol, &body)?;
        let output_tokens = limits.iter().map(|(_, tokens)| *tokens).max();
        let choices = choices(protocol, &body)?;
        if fields.get("tools").is_some_and(|tools| !tools.is_null() && !tools.is_array()) {
            return Err("tools is no list".into());
        }
        let options = fields.get("stream_options").filter(|options| !options.is_null());
        if options.is_some_and(|options| !options.is_object()) {
            return Err("stream_options is no object".into());
        }
        let is_usage_asked = options.and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true));
        Ok(Self {
            protocol,
            model: model.to_owned(),
            stream,
            output_tokens,
            choices,
            text: text.into(),
            exact: OnceLock::new(),
            masked: OnceLock::new(),
            content: OnceLock::new(),
            limit: None,
            sent_model: None,
            is_usage_asked,
            is_array: false,
            is_composed: false,
            body: Arc::new(body),
        })
    }

    /// At least as many tokens as the question can have: a token is a byte or more. Pictures and tools come on top.
    pub fn input_tokens_max(&self) -> u64 {
        self.input_tokens_max_with(IMAGE_TOKENS_MAX)
    }

    /// The same where it is known how many tokens a picture can be at most. What a picture is written in counts no
    /// further: it is not read as text.
    pub fn input_tokens_max_with(&self, image_tokens: u64) -> u64 {
        let Content { images, image_bytes, .. } = self.content();
        let bytes = u64::try_from(self.text.len()).unwrap_or(u64::MAX).saturating_sub(*image_bytes);
        let tools = self.body.as_object().map_or(0, |fields| tool::tokens(self.protocol, fields, self.content()));
        bytes.saturating_add(images.saturating_mul(image_tokens)).saturating_add(tools)
    }

    /// Whether it asks for a cache that keeps what is written to it for longer than usual.
    pub fn is_kept_long(&self) -> bool {
        self.protocol == Protocol::Messages && asks_for_long_cache(&self.body)
    }

    /// How many pictures it has.
    pub fn images(&self) -> u64 {
        self.content().images
    }

    /// What in the question makes its cost unknowable here: something the provider has stored, fetches or adds itself, or
    /// that has another price.
    pub fn unbounded(&self) -> Option<String> {
        bound::unbounded(self.protocol, self.body.as_object()?, self.content())
    }

    fn content(&self) -> &Content {
        let of = || self.body.as_object().map(|fields| Content::of(self.protocol, fields)).unwrap_or_default();
        self.content.get_or_init(of)
    }

    /// Sees to it that no more than this is answered for each choice. `chat_field`: what the provider calls it in chat
    /// completions, where there are two names.
    pub fn limit_output(&mut self, tokens_max: u64, chat_field: &str) {
        let asked = limits(self.protocol, &self.body).unwrap_or_default();
        // A limit by a name that the provider may not know binds nobody.
        let is_known = self.protocol != Protocol::Chat
            || self.is_composed
            || asked.is_empty()
            || asked.iter().any(|(field, _)| *field == chat_field);
        let tokens = self.output_tokens.filter(|_| is_known).map_or(tokens_max, |asked| asked.min(tokens_max));
        self.output_tokens = Some(tokens);
        self.limit = Some((tokens, chat_field.to_owned()));
    }

    /// Asks for the model by another name.
    pub fn send_model(&mut self, name: &str) {
        self.sent_model = (name != self.model).then(|| name.to_owned());
    }

    /// The caller reads a stream of Google's as one list: there was no `alt=sse` in the query.
    pub fn stream_as_array(&mut self) {
        self.is_array = self.protocol == Protocol::Generate;
    }

    pub(super) fn asked_model(&self) -> &str {
        self.sent_model.as_deref().unwrap_or(&self.model)
    }

    /// Whether a usage that only we have asked for has to be kept from the caller.
    pub(super) fn hides_usage(&self) -> bool {
        self.protocol == Protocol::Chat && self.stream && self.limit.is_some() && !self.is_usage_asked
    }

    /// What is sent. All that was not changed is as the caller has written it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = self.text.to_vec();
        for (field, value) in self.changes() {
            splice::put(&mut text, field, value.to_string().as_bytes());
        }
        text
    }

    fn changes(&self) -> Vec<(&str, Value)> {
        let mut changes = Vec::new();
        if let Some(model) = self.sent_model.as_deref().filter(|_| has_field(&self.body, "model")) {
            changes.push(("model", json!(model)));
        }
        let Some((tokens, chat_field)) = &self.limit else { return changes };
        let limits = limits(self.protocol, &self.body).unwrap_or_default();
        let lowered = |asked: u64| json!(asked.min(*tokens));
        match self.protocol {
            Protocol::Chat if self.is_composed => changes.push((chat_field, json!(tokens))),
            Protocol::Chat if limits.is_empty() => changes.push((chat_field, json!(tokens))),
            Protocol::Chat => changes.extend(limits.into_iter().map(|(field, asked)| (field, lowered(asked)))),
            Protocol::Responses => changes.push(("max_output_tokens", json!(tokens))),
            Protocol::Messages => changes.push(("max_tokens", json!(tokens))),
            Protocol::Generate => {
                let (field, mut config) = generation(&self.body);
                let name = limits.first().map_or("maxOutputTokens", |(name, _)| name);
                config.insert(name.to_owned(), json!(tokens));
                changes.push((field, Value::Object(config)));
            }
        }
        if self.protocol == Protocol::Chat && self.stream && !self.is_usage_asked {
            let mut options = self.body.get("stream_options").and_then(Value::as_object).cloned().unwrap_or_default();
            options.insert("include_usage".into(), json!(true));
            changes.push(("stream_options", Value::Object(options)));
        }
        changes
    }

    /// Where it is sent, below the provider's `base_url`: OpenAI's ends in `/v1`, those of Anthropic and Google do not.
    pub fn path(&self) -> String {
        let model = self.asked_model();
        match (self.protocol, self.stream, self.is_array) {
            (Protocol::Chat, ..) => "chat/completions".into(),
            (Protocol::Responses, ..) => "responses".into(),
            (Protocol::Messages, ..) => "v1/messages".into(),
            (Protocol::Generate, false, _) => format!("v1beta/models/{model}:generateContent"),
            (Protocol::Generate, true, false) => format!("v1beta/models/{model}:streamGenerateContent?alt=sse"),
            (Protocol::Generate, true, true) => format!("v1beta/models/{model}:streamGenerateContent"),
        }
    }

    /// The same for the same question only.
    pub fn exact_key(&self) -> String {
        self.exact.get_or_init(|| self.key(&self.body)).clone()
    }

    /// The same for two questions that differ in nothing but ids, dates and what else differs between two runs of a client.
    pub fn masked_key(&self) -> String {
        self.masked.get_or_init(|| self.key(&mask::mask(&self.body))).clone()
    }

    /// How long it is, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.text.len()
    }

    /// The same for all questions of one kind: of the same model by the same protocol, with the same tools.
    pub fn kind_key(&self) -> String {
        self.key(&mask::mask(&json!({"tools": self.body["tools"]})))
    }

    /// Whether it offers the model tools. A question without any, beside others that have some, is no part of the work:
    /// clients ask for titles, summaries and the like.
    pub fn has_tools(&self) -> bool {
        self.body["tools"].as_array().is_some_and(|tools| !tools.is_empty())
    }

    fn key(&self, body: &Value) -> String {
        let mut text = Vec::with_capacity(self.text.len() + 128);
        text.extend_from_slice(b"{\"body\":");
        // What was read strictly can be written; what was composed comes out of a schema and texts.
        if canon::write(body, &mut text).is_err() {
            text.truncate(8);
            text.extend_from_slice(&self.text);
        }
        let rest = [(",\"model\":", &*self.model), (",\"protocol\":", self.protocol.word())];
        for (name, value) in rest {
            text.extend_from_slice(name.as_bytes());
            canon::write_text(value, &mut text);
        }
        text.extend_from_slice(if self.stream { b",\"stream\":true}" } else { b",\"stream\":false}" });
        Digest::sha256(&text).to_hex()
    }
}

fn has(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
}

fn has_field(body: &Value, name: &str) -> bool {
    body.as_object().is_some_and(|fields| fields.contains_key(name))
}

/// Google reads both ways of writing a name.
fn generation(body: &Value) -> (&'static str, Map<String, Value>) {
    let field = if has_field(body, "generation_config") { "generation_config" } else { "generationConfig" };
    (field, body.get(field).and_then(Value::as_object).cloned().unwrap_or_default())
}

/// The limits that a body names, with their fields.
fn limits(protocol: Protocol, body: &Value) -> Result<Vec<(&'static str, u64)>, String> {
    let (config, fields): (Option<&Value>, &[&'static str]) = match protocol {
        Protocol::Chat => (Some(body), &["max_tokens", "max_completion_tokens"]),
        Protocol::Responses => (Some(body), &["max_output_tokens"]),
        Protocol::Messages => (Some(body), &["max_tokens"]),
        Protocol::Generate => (config_of(body)?, &["maxOutputTokens", "max_output_tokens"]),
    };
    let mut found = Vec::new();
    for field in fields {
        if let Some(tokens) = number(config, field, 1..=OUTPUT_TOKENS_MAX)? {
            found.push((*field, tokens));
        }
    }
    if protocol == Protocol::Generate && found.len() > 1 {
        return Err("maxOutputTokens is written twice".into());
    }
    Ok(found)
}

fn config_of(body: &Value) -> Result<Option<&Value>, String> {
    let both = ["generationConfig", "generation_config"].map(|name| body.get(name).filter(|value| !value.is_null()));
    match both {
        [Some(_), Some(_)] => Err("generationConfig is written twice".into()),
        [one, other] => match one.or(other) {
            Some(config) if !config.is_object() => Err("generationConfig is no object".into()),
            config => Ok(config),
        },
    }
}

fn choices(protocol: Protocol, body: &Value) -> Result<u64, String> {
    let found = match protocol {
        Protocol::Chat => number(Some(body), "n", 1..=CHOICES_MAX)?,
        Protocol::Responses | Protocol::Messages => None,
        Protocol::Generate => {
            let config = config_of(body)?;
            let camel = number(config, "candidateCount", 1..=CHOICES_MAX)?;
            camel.max(number(config, "candidate_count", 1..=CHOICES_MAX)?)
        }
    };
    Ok(found.unwrap_or(1))
}

fn number(object: Option<&Value>, field: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, String> {
    let Some(value) = object.and_then(|object| object.get(field)).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    match value.as_u64().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("{field} is no whole number from {} to {}", range.start(), range.end())),
    }
}

/// Whether `cache_control` with a `ttl` other than the usual one stands anywhere in a body.
fn asks_for_long_cache(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(name, value)| {
            let is_long = || value.get("ttl").is_some_and(|ttl| !ttl.is_null() && ttl != "5m");
            (name == "cache_control" && is_long()) || asks_for_long_cache(value)
        }),
        Value::Array(values) => values.iter().any(asks_for_long_cache),
        _ => false,
    }
}
