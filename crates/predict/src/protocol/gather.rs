//! What a model said, put together from a document or from the events of a stream. One reader for each protocol; `meter`
//! and `extract` feed it. Believes nothing about usage: that is for `usage`.

use serde_json::{Value, json};

use super::Protocol;
use super::usage::Told;

/// Text that is kept of an answer, in bytes; calls have as much again.
pub(super) const TEXT_BYTES_MAX: usize = 1 << 20;

/// Calls of tools that are kept of an answer.
const CALLS_MAX: usize = 256;

/// Letters of a provider's error that are told.
const ERROR_CHARS_MAX: usize = 300;

/// An answer so far.
#[derive(Debug)]
pub(super) struct Gather {
    protocol: Protocol,
    pub(super) told: Told,
    pub(super) model: Option<String>,
    pub(super) stop: Option<String>,
    /// Whether it came to its proper end.
    pub(super) is_whole: bool,
    /// What the provider says went wrong.
    pub(super) error: Option<String>,
    text: String,
    /// In responses a text comes in pieces, as an item, and once more in the end.
    items_text: String,
    final_text: String,
    calls: Vec<Call>,
    final_calls: Vec<Call>,
    has_said: bool,
    calls_bytes: usize,
}

#[derive(Debug, Default, Clone)]
struct Call {
    /// Where it stands in its message.
    at: u64,
    name: String,
    /// As text, in pieces; or as a value.
    text: String,
    value: Option<Value>,
}

impl Gather {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            told: Told::default(),
            model: None,
            stop: None,
            is_whole: false,
            error: None,
            text: String::new(),
            items_text: String::new(),
            final_text: String::new(),
            calls: Vec::new(),
            final_calls: Vec::new(),
            has_said: false,
            calls_bytes: 0,
        }
    }

    /// The end of what was put together so far of the text, and of the call it is at.
    pub(super) fn ends(&self, bytes: usize) -> [&[u8]; 2] {
        let call = self.calls.last().map_or("", |call| call.text.as_str());
        [self.text.as_str(), call].map(|text| &text.as_bytes()[text.len().saturating_sub(bytes)..])
    }

    /// Whether there is anything that must have cost output.
    pub(super) fn has_said(&self) -> bool {
        self.has_said
    }

    pub(super) fn text(&mut self) -> String {
        let kept =
            [&mut self.final_text, &mut self.items_text, &mut self.text].into_iter().find(|text| !text.is_empty());
        kept.map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn calls(&mut self) -> Vec<Value> {
        let calls = if self.final_calls.is_empty() { &mut self.calls } else { &mut self.final_calls };
        std::mem::take(calls).into_iter().map(Call::told).collect()
    }

    /// A whole answer.
    pub(super) fn document(&mut self, document: &Value) {
        if self.take_error(document) {
            return;
        }
        match (self.protocol, document) {
            // A stream of Google's that was not asked for as events.
            (Protocol::Generate, Value::Array(chunks)) => chunks.iter().for_each(|chunk| self.generate(chunk)),
            (Protocol::Generate, _) => self.generate(document),
            (Protocol::Chat, _) => {
                self.take_model(document.get("model"));
                self.told.take(self.protocol, document.get("usage"));
                for choice in list(document, "choices") {
                    self.chat_choice(choice, choice.get("message"));
                }
                self.is_whole = !list(document, "choices").is_empty();
            }
            (Protocol::Responses, _) => {
                self.response(document);
                self.is_whole = self.stop.is_some();
            }
            (Protocol::Messages, _) => {
                self.take_model(document.get("model"));
                self.told.take(self.protocol, document.get("usage"));
                for (at, block) in (0..).zip(list(document, "content")) {
                    self.block(at, block);
                }
                self.take_stop(document.get("stop_reason"));
                self.is_whole = document.get("content").is_some_and(Value::is_array);
            }
        }
    }

    /// One event of a stream.
    pub(super) fn event(&mut self, event: &Value) {
        if self.take_error(event) {
            return;
        }
        match self.protocol {
            Protocol::Chat => {
                self.take_model(event.get("model"));
                self.told.take(self.protocol, event.get("usage"));
                for choice in list(event, "choices") {
                    self.chat_choice(choice, choice.get("delta"));
                }
            }
            Protocol::Responses => self.response_event(event),
            Protocol::Messages => self.message_event(event),
            Protocol::Generate => self.generate(event),
        }
    }

    /// The last word of a stream of chat completions.
    pub(super) fn done(&mut self) {
        self.is_whole |= self.protocol == Protocol::Chat;
    }

    /// The stream is over. Some servers of chat completions leave out the last word.
    pub(super) fn over(&mut self) {
        self.is_whole |= self.protocol == Protocol::Chat && self.stop.is_some() && self.told.is_complete();
        self.is_whole &= self.error.is_none();
    }

    fn chat_choice(&mut self, choice: &Value, said: Option<&Value>) {
        let is_first = choice.get("index").is_none_or(|index| index.as_u64() == Some(0));
        if is_first {
            self.take_stop(choice.get("finish_reason"));
        }
        let Some(said) = said else { return };
        for name in ["content", "refusal"] {
            match said.get(name) {
                Some(Value::String(text)) => self.say(text, is_first),
                Some(Value::Array(parts)) => {
                    parts
                        .iter()
                        .filter_map(|part| part.get("text")?.as_str())
                        .for_each(|text| self.say(text, is_first));
                }
                _ => {}
            }
        }
        for (at, call) in (0..).zip(list(said, "tool_calls")).filter(|_| is_first) {
            let at = call.get("index").and_then(Value::as_u64).unwrap_or(at);
            let function = call.get("function").or_else(|| call.get("custom")).unwrap_or(&Value::Null);
            self.call(at, function.get("name"), function.get("arguments").or_else(|| function.get("input")));
        }
        // As it was called before there were several.
        if let Some(call) = said.get("function_call").filter(|_| is_first) {
            self.call(0, call.get("name"), call.get("arguments"));
        }
    }

    fn response(&mut self, response: &Value) {
        self.take_model(response.get("model"));
        self.told.take(self.protocol, response.get("usage"));
        if response.get("status").and_then(Value::as_str) == Some("failed") {
            let why = response.get("error").map(error_text).unwrap_or_default();
            self.error.get_or_insert(format!("the provider failed: {why}"));
        }
        let why = response.get("incomplete_details").and_then(|details| details.get("reason"));
        self.take_stop(why.filter(|why| why.is_string()).or_else(|| response.get("status")));
        let mut text = String::new();
        let mut calls = Vec::new();
        for item in list(response, "output") {
            item_text(item, &mut text);
            calls.extend(item_call(item).filter(|_| calls.len() < CALLS_MAX));
        }
        cut(&mut text);
        self.has_said |= !text.is_empty() || !calls.is_empty();
        (self.final_text, self.final_calls) = (text, calls);
    }

    fn response_event(&mut self, event: &Value) {
        let response = event.get("response").unwrap_or(&Value::Null);
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "response.created" | "response.in_progress" => self.take_model(response.get("model")),
            "response.output_text.delta" | "response.refusal.delta" => {
                self.say(event.get("delta").and_then(Value::as_str).unwrap_or_default(), true);
            }
            "response.output_item.done" => {
                let item = event.get("item").unwrap_or(&Value::Null);
                item_text(item, &mut self.items_text);
                cut(&mut self.items_text);
                if let Some(call) = item_call(item) {
                    self.keep(call);
                }
                self.has_said |= !self.items_text.is_empty();
            }
            "response.completed" | "response.incomplete" | "response.done" => {
                self.response(response);
                self.stop.get_or_insert_with(|| "completed".to_owned());
                self.is_whole = true;
            }
            "response.failed" => {
                self.response(response);
                let why = response.get("error").map(error_text).unwrap_or_default();
                self.error.get_or_insert(format!("the provider failed: {why}"));
            }
            _ => {}
        }
    }

    fn message_event(&mut self, event: &Value) {
        let at = event.get("index").and_then(Value::as_u64).unwrap_or_default();
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                self.take_model(message.get("model"));
                self.told.take(self.protocol, message.get("usage"));
            }
            "content_block_start" => self.block(at, event.get("content_block").unwrap_or(&Value::Null)),
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                let piece = |name: &str| delta.get(name).and_then(Value::as_str).unwrap_or_default();
                self.say(piece("text"), true);
                self.has_said |= !piece("thinking").is_empty();
                if !piece("partial_json").is_empty() {
                    self.call(at, None, delta.get("partial_json"));
                }
            }
            "message_delta" => {
                self.told.take(self.protocol, event.get("usage"));
                self.take_stop(event.get("delta").and_then(|delta| delta.get("stop_reason")));
            }
            "message_stop" => self.is_whole = true,
            _ => {}
        }
    }

    fn block(&mut self, at: u64, block: &Value) {
        match block.get("type").and_then(Value::as_str).unwrap_or_default() {
            "text" => self.say(block.get("text").and_then(Value::as_str).unwrap_or_default(), true),
            "tool_use" => {
                // In a stream it begins empty, and comes in pieces.
                let input = block.get("input").filter(|input| input.as_object().is_none_or(|input| !input.is_empty()));
                self.call(at, block.get("name"), input);
            }
            _ => {}
        }
    }

    fn generate(&mut self, chunk: &Value) {
        if self.take_error(chunk) {
            return;
        }
        self.take_model(chunk.get("modelVersion"));
        self.told.take(self.protocol, chunk.get("usageMetadata"));
        for candidate in list(chunk, "candidates") {
            let is_first = candidate.get("index").is_none_or(|index| index.as_u64() == Some(0));
            let content = candidate.get("content").unwrap_or(&Value::Null);
            for part in list(content, "parts") {
                let is_thought = part.get("thought") == Some(&Value::Bool(true));
                let text = part.get("text").and_then(Value::as_str).unwrap_or_default();
                self.say(text, is_first && !is_thought);
                if let Some(call) = part.get("functionCall").filter(|_| is_first) {
                    let at = u64::try_from(self.calls.len()).unwrap_or_default();
                    self.call(at, call.get("name"), Some(call.get("args").unwrap_or(&json!({}))));
                }
            }
            if is_first {
                self.take_stop(candidate.get("finishReason"));
            }
            self.is_whole |= self.stop.is_some();
        }
        // A prompt that is refused has no candidates.
        if let Some(reason) = chunk.get("promptFeedback").and_then(|feedback| feedback.get("blockReason")) {
            self.take_stop(Some(reason));
            self.is_whole = true;
        }
    }

    fn take_model(&mut self, model: Option<&Value>) {
        if let Some(model) = model.and_then(Value::as_str).filter(|model| !model.is_empty()) {
            self.model = Some(model.chars().take(super::route::MODEL_BYTES_MAX).collect());
        }
    }

    fn take_stop(&mut self, stop: Option<&Value>) {
        if let Some(stop) = stop.and_then(Value::as_str) {
            self.stop = Some(stop.chars().take(80).collect());
        }
    }

    /// Whether this is an error instead of an answer.
    fn take_error(&mut self, document: &Value) -> bool {
        let document = document.as_array().and_then(|all| all.first()).unwrap_or(document);
        let is_response = document.get("output").is_some();
        let is_event = document.get("type").and_then(Value::as_str) == Some("error");
        let error = match document.get("error").filter(|error| !error.is_null() && !is_response) {
            Some(error) => error,
            None if is_event => document,
            None => return false,
        };
        self.error.get_or_insert(format!("the provider says: {}", error_text(error)));
        true
    }

    fn say(&mut self, text: &str, is_kept: bool) {
        self.has_said |= !text.is_empty();
        if is_kept && self.text.len() < TEXT_BYTES_MAX {
            self.text.push_str(text);
            cut(&mut self.text);
        }
    }

    /// A call, or a piece of one.
    fn call(&mut self, at: u64, name: Option<&Value>, arguments: Option<&Value>) {
        self.has_said = true;
        let name = name.and_then(Value::as_str).unwrap_or_default();
        let known = self.calls.iter().rposition(|call| call.at == at);
        let index = match known {
            // Some servers number every call with nothing; a new name is a new call.
            Some(index) if name.is_empty() || self.calls[index].name.is_empty() || self.calls[index].name == name => {
                index
            }
            _ if self.calls.len() >= CALLS_MAX => return,
            _ => {
                self.calls.push(Call { at, ..Call::default() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[index];
        if call.name.is_empty() {
            call.name = name.chars().take(super::route::MODEL_BYTES_MAX).collect();
        }
        match arguments {
            Some(Value::String(piece)) if self.calls_bytes + piece.len() <= TEXT_BYTES_MAX => {
                self.calls_bytes += piece.len();
                call.text.push_str(piece);
            }
            Some(Value::String(_) | Value::Null) | None => {}
            Some(value) => {
                let bytes = value.to_string().len();
                if self.calls_bytes + bytes <= TEXT_BYTES_MAX {
                    self.calls_bytes += bytes;
                    call.value = Some(value.clone());
                }
            }
        }
    }

    fn keep(&mut self, call: Call) {
        self.has_said = true;
        let bytes = call.text.len() + call.value.as_ref().map_or(0, |value| value.to_string().len());
        if self.calls.len() < CALLS_MAX && self.calls_bytes + bytes <= TEXT_BYTES_MAX {
            self.calls_bytes += bytes;
            self.calls.push(call);
        }
    }
}

impl Call {
    fn told(self) -> Value {
        // What is no JSON is told as the text it was.
        let arguments = match self.value {
            Some(value) => value,
            None if self.text.is_empty() => json!({}),
            None => serde_json::from_str(&self.text).unwrap_or(Value::String(self.text)),
        };
        json!({"name": self.name, "arguments": arguments})
    }
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn item_text(item: &Value, text: &mut String) {
    if item.get("type").and_then(Value::as_str) != Some("message") {
        return;
    }
    for part in list(item, "content") {
        let piece = part.get("text").or_else(|| part.get("refusal")).and_then(Value::as_str).unwrap_or_default();
        if text.len() < TEXT_BYTES_MAX {
            text.push_str(piece);
        }
    }
}

fn item_call(item: &Value) -> Option<Call> {
    let kind = item.get("type").and_then(Value::as_str)?;
    let (name, arguments) = match kind {
        "function_call" => (item.get("name")?.as_str()?, item.get("arguments")),
        "custom_tool_call" => (item.get("name")?.as_str()?, item.get("input")),
        _ if kind.ends_with("_call") => (kind, item.get("action")),
        _ => return None,
    };
    let name = name.chars().take(super::route::MODEL_BYTES_MAX).collect();
    Some(match arguments {
        Some(Value::String(text)) => Call { name, text: text.clone(), ..Call::default() },
        other => Call { name, value: other.cloned(), ..Call::default() },
    })
}

/// What an error says, short enough for a line.
fn error_text(error: &Value) -> String {
    let words = ["type", "status", "code", "message"].into_iter().filter_map(|name| match error.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    let words: Vec<String> = words.collect();
    let text = if words.is_empty() { error.to_string() } else { words.join(" ") };
    let is_fit = |c: &char| !c.is_control();
    text.chars().filter(is_fit).take(ERROR_CHARS_MAX).collect()
}

fn cut(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    }
}
