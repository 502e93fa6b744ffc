//! What a question is made of, part by part: texts, pictures, and what nobody here can measure. Asked by `question`, in the
//! places where each provider looks for content and nowhere else: the same words within a tool's arguments are text.

use serde_json::{Map, Value};

use super::{Protocol, tool};

/// Letters of a caller's word that are repeated to him.
const WORD_CHARS_MAX: usize = 64;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) images: u64,
    /// Bytes of the pictures themselves, as they stand in the body: those are no text.
    pub(super) image_bytes: u64,
    /// Tools that are referred to: each is read again there.
    pub(super) references: u64,
    /// The longest of the tools that are defined within the conversation.
    pub(super) tool_bytes_max: u64,
    /// How many of those the model knows by their type alone.
    pub(super) known_tools: u64,
    /// The first thing whose size cannot be known from the body.
    pub(super) foreign: Option<String>,
}

impl Content {
    pub(super) fn of(protocol: Protocol, fields: &Map<String, Value>) -> Self {
        let mut content = Self::default();
        match protocol {
            Protocol::Chat => each(fields.get("messages"), |message| {
                let other = ["audio", "images", "videos", "files"].into_iter().find(|name| is_set(message.get(*name)));
                if let Some(other) = other {
                    content.foreign(format!("{other} of a message"));
                }
                content.parts(protocol, message.get("content"));
            }),
            Protocol::Responses => {
                each(fields.get("instructions"), |item| content.item(item));
                each(fields.get("input"), |item| content.item(item));
            }
            Protocol::Messages => {
                content.parts(protocol, fields.get("system"));
                each(fields.get("messages"), |message| content.parts(protocol, message.get("content")));
            }
            Protocol::Generate => {
                for name in ["contents", "systemInstruction", "system_instruction"] {
                    each(fields.get(name), |one| each(one.get("parts"), |part| content.google_part(part)));
                }
            }
        }
        content
    }

    fn foreign(&mut self, what: String) {
        self.foreign.get_or_insert(what);
    }

    /// One item of OpenAI's responses.
    fn item(&mut self, item: &Value) {
        match kind(item) {
            // Without a role it is the id of something that the provider has stored.
            None if item.is_object() && item.get("role").is_none() => self.foreign("a reference to an item".into()),
            None | Some("message") => self.parts(Protocol::Responses, item.get("content")),
            Some("function_call_output" | "custom_tool_call_output") => {
                self.parts(Protocol::Responses, item.get("output"));
            }
            Some("function_call" | "custom_tool_call") => {}
            // Without its own words it names some that the provider has stored.
            Some("reasoning") if is_set(item.get("encrypted_content")) || is_set(item.get("content")) => {}
            Some("reasoning") => self.foreign("reasoning without its content".into()),
            Some("local_shell_call" | "local_shell_call_output" | "shell_call" | "shell_call_output") => {}
            Some("apply_patch_call" | "apply_patch_call_output") => {}
            Some(other) => self.foreign(format!("an item of the type {}", word(other))),
        }
    }

    /// The parts of a content; a text is its own only part.
    fn parts(&mut self, protocol: Protocol, content: Option<&Value>) {
        each(content, |part| self.part(protocol, part));
    }

    fn part(&mut self, protocol: Protocol, part: &Value) {
        // Providers refuse what is no object, or take it as the text it is.
        if !part.is_object() {
            return;
        }
        match (protocol, kind(part).unwrap_or_default()) {
            (Protocol::Chat, "text" | "refusal" | "thinking" | "redacted_thinking" | "reasoning") => {}
            (Protocol::Chat, "image_url") => {
                let image = part.get("image_url");
                self.linked_image(image.and_then(|image| image.get("url")).or(image));
            }
            (Protocol::Responses, "input_text" | "output_text" | "text" | "refusal") => {}
            (Protocol::Responses, "summary_text" | "reasoning_text") => {}
            (Protocol::Responses, "input_image") if !is_set(part.get("file_id")) => {
                self.linked_image(part.get("image_url"));
            }
            (Protocol::Messages, "text" | "thinking" | "redacted_thinking" | "tool_use") => {}
            (Protocol::Messages, "tool_result" | "search_result") => self.parts(protocol, part.get("content")),
            (Protocol::Messages, "image" | "document") => self.source(part),
            (Protocol::Messages, "tool_reference") => self.references += 1,
            (Protocol::Messages, "tool_removal") => {}
            (Protocol::Messages, "tool_addition") => self.addition(part.get("tool").unwrap_or(&Value::Null)),
            (_, "") => self.foreign("content without a type".into()),
            (_, other) => self.foreign(format!("content of the type {}", word(other))),
        }
    }

    /// A tool that is offered from here on: one of those above, or one that is described here.
    fn addition(&mut self, added: &Value) {
        match (kind(added), added.get("definition")) {
            (Some("tool_reference"), _) => self.references += 1,
            (Some("tool_definition"), Some(definition)) => {
                self.tool_bytes_max = self.tool_bytes_max.max(tool::bytes(definition));
                self.known_tools += tool::known_tools(Protocol::Messages, definition);
                if let Some(other) = tool::own_tool(Protocol::Messages, definition) {
                    self.foreign(other);
                }
            }
            _ => self.foreign("a tool that is not described".into()),
        }
    }

    /// A picture or a document of Anthropic's. A document that is text is no more than that.
    fn source(&mut self, part: &Value) {
        let source = part.get("source").unwrap_or(&Value::Null);
        let text = |name: &str| source.get(name).and_then(Value::as_str);
        match (kind(part), kind(source)) {
            (Some("document"), Some("text")) => {}
            (Some("document"), Some("content")) => self.parts(Protocol::Messages, source.get("content")),
            (Some("image"), Some("base64")) => self.image(text("media_type"), text("data")),
            (Some("image"), _) => self.foreign("a picture that is not here itself".into()),
            _ => self.foreign("a document that is no text".into()),
        }
    }

    /// One part of Google's: its fields say what it is.
    fn google_part(&mut self, part: &Value) {
        let Some(fields) = part.as_object() else { return };
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            match name.as_str() {
                "text" | "thought" | "thoughtSignature" | "thought_signature" | "functionCall" | "function_call" => {}
                "partMetadata" | "part_metadata" | "mediaResolution" | "media_resolution" => {}
                "functionResponse" | "function_response" => each(value.get("parts"), |part| self.google_part(part)),
                "inlineData" | "inline_data" => {
                    let text = |name: &str| value.get(name).and_then(Value::as_str);
                    // Written both ways, one of them is not read.
                    let kind = text("mimeType").xor(text("mime_type"));
                    self.image(kind, text("data"));
                }
                other => self.foreign(format!("a part with {}", word(other))),
            }
        }
    }

    /// A picture as an address, which may be the picture itself.
    fn linked_image(&mut self, url: Option<&Value>) {
        let data = url.and_then(Value::as_str).and_then(|url| url.strip_prefix("data:")?.split_once(";base64,"));
        match data {
            Some((kind, data)) => self.image(Some(kind), Some(data)),
            None => self.foreign("a picture that is not here itself".into()),
        }
    }

    fn image(&mut self, kind: Option<&str>, data: Option<&str>) {
        match (kind.and_then(|kind| kind.strip_prefix("image/")), data) {
            (Some(kind), Some(data)) => {
                self.images += 1;
                // A drawing is written in words, and might be read as such.
                if !kind.starts_with("svg") {
                    self.image_bytes += u64::try_from(data.len()).unwrap_or_default();
                }
            }
            _ => self.foreign("a file that is neither text nor a picture".into()),
        }
    }
}

/// Every one of a list; what is no list is the only one.
fn each<'a>(value: Option<&'a Value>, mut look: impl FnMut(&'a Value)) {
    match value {
        Some(Value::Array(items)) => items.iter().for_each(look),
        Some(other) => look(other),
        None => {}
    }
}

fn kind(value: &Value) -> Option<&str> {
    match value.get("type") {
        None | Some(Value::Null) => None,
        // What is no text is no type that anybody knows.
        Some(kind) => Some(kind.as_str().unwrap_or("?")),
    }
}

/// Whether a field says anything.
pub(super) fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    }
}

/// A caller's word as it can be repeated.
pub(super) fn word(text: &str) -> String {
    format!("{:?}", text.chars().take(WORD_CHARS_MAX).collect::<String>())
}
