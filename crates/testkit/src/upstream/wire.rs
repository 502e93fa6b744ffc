//! The four protocols from the provider's side: which one a path belongs to, and each turn as its answer, whole or as
//! events. Pure; `upstream` asks, `http` sends.

use serde_json::{Value, json};

use super::http::Answer;
use super::{Request, Turn, Usage};

/// Answers carry this time, so that two runs are alike.
const CREATED: u64 = 1_767_225_600;
/// What every count says.
const COUNT: u64 = 100;
const MODELS: [&str; 2] = ["stub-1", "gemini-2.5-flash"];
/// Texts come in pieces of so many characters.
const PIECE_CHARS: usize = 12;
const EVENTS: &str = "text/event-stream";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Chat,
    Responses,
    Messages,
    Generate { is_stream: bool },
}

impl Protocol {
    pub(super) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            _ => match path.strip_prefix("/v1beta/models/")?.rsplit_once(':')?.1 {
                "generateContent" => Self::Generate { is_stream: false },
                "streamGenerateContent" => Self::Generate { is_stream: true },
                _ => return None,
            },
        })
    }
}

/// What matters of a request for its answer.
#[derive(Debug)]
pub(super) struct Ask {
    protocol: Protocol,
    model: String,
    is_stream: bool,
    /// Generated contents come as events only if asked for, else as one array in pieces.
    is_sse: bool,
    wants_usage: bool,
    pub(super) has_tools: bool,
}

impl Ask {
    /// Nothing for a body that is no object: no provider answers that.
    pub(super) fn new(request: &Request, body: &Value) -> Option<Self> {
        let protocol = Protocol::of(&request.path)?;
        body.as_object()?;
        let model = match protocol {
            Protocol::Generate { .. } => request.path.rsplit_once(':')?.0.strip_prefix("/v1beta/models/")?,
            _ => body["model"].as_str()?,
        };
        Some(Self {
            protocol,
            model: model.into(),
            is_stream: match protocol {
                Protocol::Generate { is_stream } => is_stream,
                _ => body["stream"] == true,
            },
            is_sse: request.query.split('&').any(|pair| pair == "alt=sse"),
            wants_usage: body["stream_options"]["include_usage"] == true,
            has_tools: body["tools"].as_array().is_some_and(|tools| !tools.is_empty()),
        })
    }
}

/// Everything that is not a call of a model.
pub(super) fn other(request: &Request) -> Answer {
    let path = request.path.as_str();
    match request.method.as_str() {
        // An answer to it has no body.
        "HEAD" => Answer::Whole { status: 200, headers: Vec::new(), body: String::new() },
        "GET" if path == "/v1/models" => {
            let row = |id| json!({"id": id, "object": "model", "type": "model", "display_name": id, "created": CREATED, "owned_by": "stub"});
            Answer::json(200, &json!({"object": "list", "data": MODELS.map(row), "has_more": false}))
        }
        "GET" if path == "/v1beta/models" => {
            let row = |id| json!({"name": format!("models/{id}"), "supportedGenerationMethods": ["generateContent"]});
            Answer::json(200, &json!({"models": MODELS.map(row)}))
        }
        "POST" if path == "/v1/messages/count_tokens" => Answer::json(200, &json!({"input_tokens": COUNT})),
        "POST" if path.starts_with("/v1beta/models/") && path.ends_with(":countTokens") => {
            Answer::json(200, &json!({"totalTokens": COUNT}))
        }
        _ => match Protocol::of(path) {
            Some(protocol) => problem(protocol, 400, "the body is no question to a model"),
            None => problem(Protocol::Chat, 404, "there is nothing at this path"),
        },
    }
}

/// A turn that waits no longer, as this request gets it.
pub(super) fn answer(ask: &Ask, turn: &Turn, usage: Usage, number: usize) -> Answer {
    let good = |model: &str, turn: &Turn, usage| Good { ask, model, turn, usage, number }.answer();
    let text = |text: &str| Turn::Text(text.into());
    match turn {
        Turn::Text(_) | Turn::Tool { .. } => good(&ask.model, turn, Some(usage)),
        Turn::Hang => Answer::Nothing,
        Turn::HalfStream => Answer::Half(Box::new(good(
            &ask.model,
            &text("This answer is long enough to break off in the middle of it, and that is what it does."),
            Some(usage),
        ))),
        Turn::InvalidJson if ask.is_stream => {
            Answer::Pieces { kind: EVENTS, pieces: vec!["data: {\"choices\": [{\"delta\": \n\n".into()] }
        }
        Turn::InvalidJson => Answer::text(200, "{\"choices\": [{\"message\": ".into()),
        Turn::Status(status, retry_after) => {
            let answer = problem(ask.protocol, *status, "as the script says");
            match retry_after {
                Some(seconds) => answer.with("retry-after", seconds),
                None => answer,
            }
        }
        Turn::WrongUsage { input, output } => {
            good(&ask.model, &text("These numbers are wrong."), Some(Usage::new(*input, *output)))
        }
        Turn::NoUsage => good(&ask.model, &text("There are no numbers."), None),
        Turn::OtherModel => good(Turn::OTHER_MODEL, &text("Somebody else says this."), Some(usage)),
        Turn::Raw(bytes) => Answer::Raw(bytes.clone()),
        Turn::Delay(_, then) | Turn::Held(then) => answer(ask, then, usage, number),
    }
}

fn problem(protocol: Protocol, status: u16, message: &str) -> Answer {
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let state = match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    let body = match protocol {
        Protocol::Chat | Protocol::Responses => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
        }
        Protocol::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
        Protocol::Generate { .. } => json!({"error": {"code": status, "message": message, "status": state}}),
    };
    Answer::json(status, &body)
}

/// An answer as it should be.
struct Good<'a> {
    ask: &'a Ask,
    model: &'a str,
    turn: &'a Turn,
    usage: Option<Usage>,
    number: usize,
}

impl Good<'_> {
    fn answer(&self) -> Answer {
        let is_stream = self.ask.is_stream;
        match self.ask.protocol {
            Protocol::Chat if is_stream => self.chat_events(),
            Protocol::Chat => Answer::json(200, &self.chat()),
            Protocol::Responses if is_stream => self.response_events(),
            Protocol::Responses => Answer::json(200, &self.response("completed", vec![self.item()])),
            Protocol::Messages if is_stream => self.message_events(),
            Protocol::Messages => Answer::json(200, &self.message()),
            Protocol::Generate { is_stream: true } => self.generated_pieces(),
            Protocol::Generate { is_stream: false } => Answer::json(200, &self.generated(&self.part(), true)),
        }
    }

    fn text(&self) -> Option<&str> {
        match self.turn {
            Turn::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Name and arguments of the call.
    fn tool(&self) -> (&str, &Value) {
        match self.turn {
            Turn::Tool { name, arguments } => (name, arguments),
            _ => ("", &Value::Null),
        }
    }

    /// Its arguments as the text that most protocols carry.
    fn arguments(&self) -> String {
        self.tool().1.to_string()
    }

    fn call_id(&self) -> String {
        format!("call_{:04}", self.number)
    }

    fn chat_usage(&self) -> Value {
        let Some(usage) = self.usage else { return Value::Null };
        json!({
            "prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": usage.total(),
            "prompt_tokens_details": {"cached_tokens": usage.cached},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        })
    }

    fn chat_head(&self, object: &str) -> Value {
        json!({"id": format!("chatcmpl-{:04}", self.number), "object": object, "created": CREATED, "model": self.model})
    }

    fn finish(&self) -> &'static str {
        if self.text().is_some() { "stop" } else { "tool_calls" }
    }

    fn chat(&self) -> Value {
        let message = match self.text() {
            Some(text) => json!({"role": "assistant", "content": text}),
            None => json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": self.call_id(), "type": "function", "function": {"name": self.tool().0, "arguments": self.arguments()}},
            ]}),
        };
        let mut answer = self.chat_head("chat.completion");
        answer["choices"] = json!([{"index": 0, "message": message, "finish_reason": self.finish()}]);
        set(&mut answer, "usage", self.chat_usage());
        answer
    }

    fn chat_events(&self) -> Answer {
        let chunk = |delta: Value, finish: Option<&str>| {
            let mut chunk = self.chat_head("chat.completion.chunk");
            chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
            chunk
        };
        let mut chunks = Vec::new();
        match self.text() {
            Some(text) => {
                chunks.push(chunk(json!({"role": "assistant", "content": ""}), None));
                chunks.extend(split(text).map(|piece| chunk(json!({"content": piece}), None)));
            }
            None => {
                let call = json!({"index": 0, "id": self.call_id(), "type": "function", "function": {"name": self.tool().0, "arguments": ""}});
                chunks.push(chunk(json!({"role": "assistant", "content": null, "tool_calls": [call]}), None));
                chunks.extend(
                    split(&self.arguments()).map(|piece| {
                        chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}), None)
                    }),
                );
            }
        }
        chunks.push(chunk(json!({}), Some(self.finish())));
        if self.ask.wants_usage && self.usage.is_some() {
            let mut last = self.chat_head("chat.completion.chunk");
            last["choices"] = json!([]);
            last["usage"] = self.chat_usage();
            chunks.push(last);
        }
        let mut pieces: Vec<_> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        pieces.push("data: [DONE]\n\n".into());
        Answer::Pieces { kind: EVENTS, pieces }
    }

    fn response(&self, status: &str, output: Vec<Value>) -> Value {
        let mut response = json!({
            "id": format!("resp_{:04}", self.number), "object": "response", "created_at": CREATED, "status": status,
            "model": self.model, "output": output, "parallel_tool_calls": true, "tools": [], "tool_choice": "auto",
            "error": null, "incomplete_details": null, "instructions": null, "metadata": {},
        });
        if let Some(usage) = self.usage.filter(|_| status == "completed") {
            response["usage"] = json!({
                "input_tokens": usage.input, "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.output, "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.total(),
            });
        }
        response
    }

    fn item_id(&self) -> String {
        format!("item_{:04}", self.number)
    }

    fn item(&self) -> Value {
        let (name, arguments) = self.tool();
        let mut item = json!({"id": self.item_id(), "status": "completed"});
        match (self.text(), arguments.as_str()) {
            (Some(text), _) => {
                item["type"] = "message".into();
                item["role"] = "assistant".into();
                item["content"] = json!([{"type": "output_text", "text": text, "annotations": []}]);
            }
            (None, input) => {
                item["type"] = if input.is_some() { "custom_tool_call" } else { "function_call" }.into();
                item["call_id"] = self.call_id().into();
                // Tools of one server are declared together, and called by both names.
                match name.split_once('/') {
                    Some((namespace, name)) => (item["namespace"], item["name"]) = (namespace.into(), name.into()),
                    None => item["name"] = name.into(),
                }
                item[if input.is_some() { "input" } else { "arguments" }] =
                    input.map_or_else(|| self.arguments(), str::to_owned).into();
            }
        }
        item
    }

    fn response_events(&self) -> Answer {
        let (item, id) = (self.item(), self.item_id());
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        let created = self.response("in_progress", Vec::new());
        let mut events = vec![
            ("response.created", json!({"response": created})),
            ("response.in_progress", json!({"response": created})),
        ];
        let place = |more: Value| {
            let mut event = json!({"item_id": id, "output_index": 0});
            event
                .as_object_mut()
                .zip(more.as_object())
                .into_iter()
                .for_each(|(event, more)| event.extend(more.clone()));
            event
        };
        if let Some(text) = self.text() {
            begun["content"] = json!([]);
            let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
            events.push(("response.output_item.added", json!({"output_index": 0, "item": begun})));
            events.push(("response.content_part.added", place(json!({"content_index": 0, "part": part("")}))));
            events.extend(
                split(text)
                    .map(|piece| ("response.output_text.delta", place(json!({"content_index": 0, "delta": piece})))),
            );
            events.push(("response.output_text.done", place(json!({"content_index": 0, "text": text}))));
            events.push(("response.content_part.done", place(json!({"content_index": 0, "part": part(text)}))));
        } else {
            let is_custom = item["type"] == "custom_tool_call";
            let (field, delta, done) = if is_custom {
                ("input", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done")
            } else {
                ("arguments", "response.function_call_arguments.delta", "response.function_call_arguments.done")
            };
            let whole = item[field].as_str().unwrap_or_default();
            begun[field] = "".into();
            events.push(("response.output_item.added", json!({"output_index": 0, "item": begun})));
            events.extend(split(whole).map(|piece| (delta, place(json!({"delta": piece})))));
            events.push((done, place(json!({field: whole}))));
        }
        events.push(("response.output_item.done", json!({"output_index": 0, "item": item})));
        events.push(("response.completed", json!({"response": self.response("completed", vec![item])})));
        let numbered = events.into_iter().enumerate().map(|(n, (name, mut event))| {
            event["sequence_number"] = n.into();
            (name, event)
        });
        Answer::Pieces { kind: EVENTS, pieces: numbered.map(|(name, event)| named(name, event)).collect() }
    }

    /// Tokens from a cache are told apart from the others here.
    fn message_usage(&self) -> Value {
        let Some(usage) = self.usage else { return Value::Null };
        json!({
            "input_tokens": usage.input.saturating_sub(usage.cached), "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached, "output_tokens": usage.output,
        })
    }

    fn stop_reason(&self) -> &'static str {
        if self.text().is_some() { "end_turn" } else { "tool_use" }
    }

    fn block(&self) -> Value {
        match self.text() {
            Some(text) => json!({"type": "text", "text": text}),
            None => {
                let (name, arguments) = self.tool();
                json!({"type": "tool_use", "id": format!("toolu_{:04}", self.number), "name": name, "input": arguments})
            }
        }
    }

    fn message(&self) -> Value {
        let mut message = json!({
            "id": format!("msg_{:04}", self.number), "type": "message", "role": "assistant", "model": self.model,
            "content": [self.block()], "stop_reason": self.stop_reason(), "stop_sequence": null,
        });
        set(&mut message, "usage", self.message_usage());
        message
    }

    fn message_events(&self) -> Answer {
        let mut start = self.message();
        (start["content"], start["stop_reason"]) = (json!([]), Value::Null);
        let mut begun = self.block();
        let deltas: Vec<Value> = match self.text() {
            Some(text) => {
                begun["text"] = "".into();
                split(text).map(|piece| json!({"type": "text_delta", "text": piece})).collect()
            }
            None => {
                begun["input"] = json!({});
                split(&self.arguments())
                    .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}))
                    .collect()
            }
        };
        let mut delta = json!({"delta": {"stop_reason": self.stop_reason(), "stop_sequence": null}});
        if let Some(usage) = self.usage {
            start["usage"]["output_tokens"] = 1.into();
            delta["usage"] = json!({"output_tokens": usage.output});
        }
        let mut events = vec![
            ("message_start", json!({"message": start})),
            ("content_block_start", json!({"index": 0, "content_block": begun})),
            ("ping", json!({})),
        ];
        events.extend(deltas.into_iter().map(|delta| ("content_block_delta", json!({"index": 0, "delta": delta}))));
        events.push(("content_block_stop", json!({"index": 0})));
        events.push(("message_delta", delta));
        events.push(("message_stop", json!({})));
        Answer::Pieces { kind: EVENTS, pieces: events.into_iter().map(|(name, event)| named(name, event)).collect() }
    }

    fn part(&self) -> Value {
        match self.text() {
            Some(text) => json!({"text": text}),
            None => {
                let (name, arguments) = self.tool();
                json!({"functionCall": {"id": self.call_id(), "name": name, "args": arguments}})
            }
        }
    }

    /// Tokens of thought are told apart from the others here.
    fn generated(&self, part: &Value, is_last: bool) -> Value {
        let mut candidate = json!({"content": {"role": "model", "parts": [part]}, "index": 0});
        let mut answer = json!({"modelVersion": self.model, "responseId": format!("gen-{:04}", self.number)});
        if is_last {
            candidate["finishReason"] = "STOP".into();
            if let Some(usage) = self.usage {
                answer["usageMetadata"] = json!({
                    "promptTokenCount": usage.input, "cachedContentTokenCount": usage.cached,
                    "candidatesTokenCount": usage.output.saturating_sub(usage.reasoning), "thoughtsTokenCount": usage.reasoning,
                    "totalTokenCount": usage.total(),
                });
            }
        }
        answer["candidates"] = json!([candidate]);
        answer
    }

    fn generated_pieces(&self) -> Answer {
        // A call comes in one piece; a text ends with an empty one, as the original does it.
        let mut chunks: Vec<_> = match self.text() {
            Some(text) => split(text).map(|piece| self.generated(&json!({"text": piece}), false)).collect(),
            None => vec![self.generated(&self.part(), false)],
        };
        chunks.push(self.generated(&json!({"text": ""}), true));
        if self.ask.is_sse {
            let pieces = chunks.iter().map(|chunk| format!("data: {chunk}\r\n\r\n")).collect();
            return Answer::Pieces { kind: EVENTS, pieces };
        }
        let count = chunks.len();
        let pieces = chunks.iter().enumerate().map(|(n, chunk)| {
            let (before, after) = (if n == 0 { "[" } else { ",\r\n" }, if n + 1 == count { "]" } else { "" });
            format!("{before}{chunk}{after}")
        });
        Answer::Pieces { kind: "application/json", pieces: pieces.collect() }
    }
}

/// An event that bears its name twice, as two of the protocols want it.
fn named(name: &str, mut event: Value) -> String {
    event["type"] = name.into();
    format!("event: {name}\ndata: {event}\n\n")
}

fn set(into: &mut Value, name: &str, value: Value) {
    if !value.is_null() {
        into[name] = value;
    }
}

fn split(text: &str) -> impl Iterator<Item = String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect::<Vec<String>>().into_iter()
}
