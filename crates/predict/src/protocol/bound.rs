//! What in a question makes its cost unknowable: tools, fields and contents beyond those that are known to add nothing but
//! what stands in the body. Asked by `question`. Tools and contents are allowed by list, so that what is new at a provider is
//! not; of other fields those are listed that cost extra.

use serde_json::{Map, Value};

use super::content::{Content, is_set, word};
use super::{Protocol, tool};

/// What a picture can come to, in tokens, where nobody has said otherwise.
pub const IMAGE_TOKENS_MAX: u64 = 65_536;

/// What the provider has stored.
const STORED: [&str; 6] =
    ["previous_response_id", "conversation", "prompt", "cachedContent", "cached_content", "container"];

/// Fields that change the price, the way or the model, or that let the provider add something of its own.
const DEARER: [&str; 22] = [
    "audio",
    "background",
    "best_of",
    "enable_search",
    "extra_body",
    "fallbacks",
    "imageConfig",
    "inference_geo",
    "max_new_tokens",
    "mcp_servers",
    "models",
    "n_predict",
    "plugins",
    "prediction",
    "preset",
    "provider",
    "route",
    "search_parameters",
    "speechConfig",
    "speed",
    "use_beam_search",
    "web_search_options",
];

/// Tiers at the plain price.
const TIERS: [&str; 3] = ["default", "auto", "standard_only"];

/// Other fields that are looked at. Some servers read a name in any letters, and would see what we do not.
const READ: [&str; 20] = [
    "candidateCount",
    "candidate_count",
    "contents",
    "context_management",
    "generationConfig",
    "generation_config",
    "input",
    "maxOutputTokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "modalities",
    "model",
    "n",
    "serviceTier",
    "service_tier",
    "stream",
    "stream_options",
    "tools",
];

/// The first thing without a bound, as it can be named to the caller.
pub(super) fn unbounded(protocol: Protocol, fields: &Map<String, Value>, content: &Content) -> Option<String> {
    let is_stored = |name: &&str| (protocol != Protocol::Chat || *name == STORED[0]) && is_set(fields.get(*name));
    let stored = STORED.into_iter().find(is_stored);
    let dearer = || DEARER.into_iter().find(|name| is_set(fields.get(*name)));
    stored
        .or_else(dearer)
        .or_else(|| tier(fields))
        .or_else(|| modalities(fields))
        .or_else(|| management(fields))
        .map(|name| format!("the field {}", word(name)))
        .or_else(|| misspelt(fields))
        .or_else(|| tool::foreign(protocol, fields))
        .or_else(|| content.foreign.clone())
}

fn tier(fields: &Map<String, Value>) -> Option<&'static str> {
    let is_dearer = |value: &Value| value.as_str().is_none_or(|tier| !TIERS.contains(&tier));
    let is_tier = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null() && is_dearer(value));
    ["service_tier", "serviceTier"].into_iter().find(is_tier)
}

/// Answers in sound or pictures have other prices.
fn modalities(fields: &Map<String, Value>) -> Option<&'static str> {
    let is_text = |value: &Value| value.as_str().is_some_and(|word| word.eq_ignore_ascii_case("text"));
    let is_other = |value: &Value| !value.is_null() && value.as_array().is_none_or(|all| !all.iter().all(is_text));
    let config = |name: &str| {
        let configs = ["generationConfig", "generation_config"].into_iter().filter_map(|config| fields.get(config));
        configs.filter_map(|config| config.get(name)).any(is_other)
    };
    let own = fields.get("modalities").is_some_and(is_other).then_some("modalities");
    own.or_else(|| ["responseModalities", "response_modalities"].into_iter().find(|name| config(name)))
}

/// Leaving something out costs nothing; having it summed up is another question.
fn management(fields: &Map<String, Value>) -> Option<&'static str> {
    let value = fields.get("context_management").filter(|value| is_set(Some(value)))?;
    let is_clearing =
        |edit: &Value| edit.get("type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("clear_"));
    let is_all = |edits: &Value| edits.as_array().is_some_and(|edits| edits.iter().all(is_clearing));
    let is_fit = value.as_object().is_some_and(|value| value.get("edits").is_none_or(is_all));
    (!is_fit).then_some("context_management")
}

/// A name that is known only if its letters may be large or small.
fn misspelt(fields: &Map<String, Value>) -> Option<String> {
    let known = || STORED.iter().chain(&DEARER).chain(&READ);
    let is_bad = |name: &&String| {
        // Both ways, because a few letters beyond ASCII become one within it by only one of them.
        let plain = || name.to_uppercase().to_lowercase();
        !known().any(|known| known == name) && known().any(|known| known.eq_ignore_ascii_case(&plain()))
    };
    let config = ["generationConfig", "generation_config"].into_iter().filter_map(|name| fields.get(name));
    let inner = config.filter_map(Value::as_object).flat_map(Map::keys);
    fields.keys().chain(inner).find(is_bad).map(|name| format!("the field {}", word(name)))
}
