//! Tools that a question offers: whether the client runs them, and what they add to what the body says. Asked by `bound`
//! and `content`; runs none.

use serde_json::{Map, Value};

use super::Protocol;
use super::content::{Content, is_set, word};

/// What providers add to a prompt that has tools, in tokens.
const TOOLS_TOKENS_MAX: u64 = 1_024;

/// What a tool comes to that the model knows by its type: its description does not stand in the body.
const KNOWN_TOOL_TOKENS_MAX: u64 = 1_024;

/// Tools of Anthropic's that the client runs: their types are these and a date.
const CLIENT_TOOLS: [&str; 4] = ["bash_", "text_editor_", "computer_", "memory_"];

/// The first tool that the provider runs itself, or that nobody here knows.
pub(super) fn foreign(protocol: Protocol, fields: &Map<String, Value>) -> Option<String> {
    list(fields.get("tools")).find_map(|tool| own_tool(protocol, tool))
}

/// What tools can add, in tokens, beyond what is said about them in the body. One whose loading is put off is read where it
/// is referred to, and no reference can come to more than the longest of them.
pub(super) fn tokens(protocol: Protocol, fields: &Map<String, Value>, content: &Content) -> u64 {
    let is_any = content.tool_bytes_max > 0 || ["tools", "functions"].iter().any(|name| is_set(fields.get(*name)));
    let known: u64 = list(fields.get("tools")).map(|tool| known_tools(protocol, tool)).sum();
    let known = known.saturating_add(content.known_tools).saturating_mul(KNOWN_TOOL_TOKENS_MAX);
    let referred = match content.references {
        0 => 0,
        count => {
            let longest = list(fields.get("tools")).map(bytes).max().unwrap_or_default().max(content.tool_bytes_max);
            count.saturating_mul(longest.saturating_add(KNOWN_TOOL_TOKENS_MAX))
        }
    };
    known.saturating_add(referred).saturating_add(if is_any { TOOLS_TOKENS_MAX } else { 0 })
}

/// How long a tool is when it is written out.
pub(super) fn bytes(tool: &Value) -> u64 {
    u64::try_from(tool.to_string().len()).unwrap_or(u64::MAX)
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

/// What kind of tool it is; nothing: its type is no text.
fn kind_of(tool: &Value) -> Option<&str> {
    tool.get("type").filter(|kind| !kind.is_null()).map_or(Some(""), Value::as_str)
}

/// Names a tool that the provider runs itself, or that nobody here knows.
pub(super) fn own_tool(protocol: Protocol, tool: &Value) -> Option<String> {
    let Some(fields) = tool.as_object() else { return Some("a tool that is no object".into()) };
    if protocol == Protocol::Generate {
        let is_other = |name: &&String| !["functionDeclarations", "function_declarations"].contains(&name.as_str());
        let mut set = fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name);
        return set.find(is_other).map(|name| format!("the tool {}", word(name)));
    }
    let Some(kind) = kind_of(tool) else { return Some("a tool without a type".into()) };
    let is_client = match (protocol, kind) {
        (Protocol::Chat, "function" | "custom") => true,
        (Protocol::Responses, "function" | "custom" | "local_shell" | "apply_patch") => true,
        (Protocol::Responses, "shell") => {
            let environment = fields.get("environment").filter(|environment| !environment.is_null());
            environment.is_none_or(|environment| environment.get("type").and_then(Value::as_str) == Some("local"))
        }
        (Protocol::Responses, "namespace") if fields.get("tools").is_some_and(Value::is_array) => {
            return list(fields.get("tools")).find_map(|tool| own_tool(protocol, tool));
        }
        (Protocol::Messages, "" | "custom") => true,
        (Protocol::Messages, kind) => CLIENT_TOOLS.iter().any(|begin| kind.starts_with(begin)),
        _ => false,
    };
    (!is_client)
        .then(|| if kind.is_empty() { "a tool without a type".into() } else { format!("the tool {}", word(kind)) })
}

/// How many tools the model knows by their type alone.
pub(super) fn known_tools(protocol: Protocol, tool: &Value) -> u64 {
    match (protocol, kind_of(tool).unwrap_or_default()) {
        (Protocol::Responses, "namespace") => list(tool.get("tools")).map(|tool| known_tools(protocol, tool)).sum(),
        (Protocol::Chat | Protocol::Generate, _) | (_, "" | "function" | "custom") => 0,
        (Protocol::Responses | Protocol::Messages, _) => 1,
    }
}
