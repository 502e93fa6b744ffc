//! What a path asks for. The gateway asks first, before it reads a body; nothing is decided here about who may.

use super::Protocol;

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// A question to a model; Google's protocol names model and streaming in the path.
    Ask { protocol: Protocol, model: Option<String>, stream: bool },
    /// How many tokens something has; costs nothing.
    Count { protocol: Protocol },
    /// Which models there are.
    Models { gemini: bool },
}

/// Longest name of a model, in bytes.
pub(crate) const MODEL_BYTES_MAX: usize = 256;

/// Reads a path; its query, if there is one, is left out of account. Nothing: no path of a provider.
pub fn route(method: &str, path: &str) -> Option<Route> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let path = path.strip_suffix('/').unwrap_or(path);
    let ask = |protocol| Some(Route::Ask { protocol, model: None, stream: false });
    match (method, path.strip_prefix("/v1").unwrap_or(path)) {
        ("POST", "/chat/completions") => return ask(Protocol::Chat),
        ("POST", "/responses") => return ask(Protocol::Responses),
        ("POST", "/messages") if path.starts_with("/v1/") => return ask(Protocol::Messages),
        ("POST", "/messages/count_tokens") if path.starts_with("/v1/") => {
            return Some(Route::Count { protocol: Protocol::Messages });
        }
        ("GET", "/models") => return Some(Route::Models { gemini: false }),
        _ => {}
    }
    if method == "GET" && path == "/v1beta/models" {
        return Some(Route::Models { gemini: true });
    }
    let rest = path.strip_prefix("/v1beta/models/").or_else(|| path.strip_prefix("/v1/models/"))?;
    let (model, verb) = rest.rsplit_once(':').filter(|_| method == "POST")?;
    let is_name = is_model(model) && !model.contains('/');
    let ask = |stream| Some(Route::Ask { protocol: Protocol::Generate, model: Some(model.to_owned()), stream });
    match verb {
        _ if !is_name => None,
        "generateContent" => ask(false),
        "streamGenerateContent" => ask(true),
        "countTokens" => Some(Route::Count { protocol: Protocol::Generate }),
        _ => None,
    }
}

/// Whether a text can be the name of a model: it goes into paths, keys and receipts.
pub(crate) fn is_model(name: &str) -> bool {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.:/@+~()[]".contains(c);
    !name.is_empty() && name.len() <= MODEL_BYTES_MAX && name.chars().all(is_fit) && !name.contains("..")
}
