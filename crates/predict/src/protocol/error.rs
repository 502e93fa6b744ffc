//! What we say when a question is not answered, in the words of the provider the caller believes to speak with, so that
//! its own client understands it. Called by the gateway. Also the list of models, which we answer ourselves.

use serde_json::{Value, json};

use super::Protocol;

/// Why a question is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    BudgetExhausted,
    Denied,
    ApprovalRequired,
    Unauthorized,
    NotFound,
    Invalid,
    TooLarge,
    Upstream,
    CircuitOpen,
    /// A run is replayed, and this was not asked when it was recorded.
    NotRecorded,
}

/// A header that the clients of OpenAI and Anthropic obey: asking again would change nothing.
pub const NO_RETRY: (&str, &str) = ("x-should-retry", "false");

/// Letters of a message that are passed on.
const MESSAGE_CHARS_MAX: usize = 1_000;

impl Trouble {
    /// Whether asking again can help.
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Upstream | Self::CircuitOpen)
    }

    /// Status, type and code, as OpenAI has them.
    const fn openai(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::BudgetExhausted => (429, "insufficient_quota", "insufficient_quota"),
            Self::Denied => (403, "permission_error", "policy_denied"),
            Self::ApprovalRequired => (403, "permission_error", "approval_required"),
            Self::Unauthorized => (401, "invalid_request_error", "invalid_api_key"),
            Self::NotFound => (404, "invalid_request_error", "model_not_found"),
            Self::Invalid => (400, "invalid_request_error", "invalid_request"),
            Self::TooLarge => (413, "invalid_request_error", "request_too_large"),
            Self::Upstream => (502, "server_error", "upstream_error"),
            Self::CircuitOpen => (503, "server_error", "upstream_unavailable"),
            Self::NotRecorded => (400, "invalid_request_error", "not_recorded"),
        }
    }

    const fn anthropic(self) -> (u16, &'static str) {
        match self {
            Self::BudgetExhausted => (402, "billing_error"),
            Self::Denied | Self::ApprovalRequired => (403, "permission_error"),
            Self::Unauthorized => (401, "authentication_error"),
            Self::NotFound => (404, "not_found_error"),
            Self::Invalid | Self::NotRecorded => (400, "invalid_request_error"),
            Self::TooLarge => (413, "request_too_large"),
            Self::Upstream => (502, "api_error"),
            Self::CircuitOpen => (529, "overloaded_error"),
        }
    }

    const fn google(self) -> (u16, &'static str) {
        match self {
            Self::BudgetExhausted => (429, "RESOURCE_EXHAUSTED"),
            Self::Denied | Self::ApprovalRequired => (403, "PERMISSION_DENIED"),
            Self::Unauthorized => (401, "UNAUTHENTICATED"),
            Self::NotFound => (404, "NOT_FOUND"),
            Self::Invalid | Self::NotRecorded => (400, "INVALID_ARGUMENT"),
            Self::TooLarge => (413, "INVALID_ARGUMENT"),
            Self::Upstream => (502, "INTERNAL"),
            Self::CircuitOpen => (503, "UNAVAILABLE"),
        }
    }
}

/// Status and body. The message always names the reason code, since clients show little else.
pub fn error(protocol: Protocol, trouble: Trouble, reason_code: Option<&str>, message: &str) -> (u16, Value) {
    let message = told(reason_code, message);
    match protocol {
        Protocol::Chat | Protocol::Responses => {
            let (status, kind, code) = trouble.openai();
            (status, json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))
        }
        Protocol::Messages => {
            let (status, kind) = trouble.anthropic();
            (status, json!({"type": "error", "error": {"type": kind, "message": message}}))
        }
        Protocol::Generate => {
            let (status, word) = trouble.google();
            let mut body = json!({"error": {"code": status, "message": message, "status": word}});
            let mut info = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "actum"});
            info["reason"] = json!(reason_code.unwrap_or(word));
            body["error"]["details"] = json!([info]);
            if trouble == Trouble::BudgetExhausted {
                // A quota of a day is the only one for which Google's client does not wait and ask again.
                let violation = json!({"subject": "budget", "description": message, "quotaId": "ActumBudgetPerDay"});
                let failure =
                    json!({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]});
                body["error"]["details"] = json!([failure, info]);
            }
            (status, body)
        }
    }
}

/// The same inside a stream that has begun.
pub fn error_event(protocol: Protocol, trouble: Trouble, reason_code: Option<&str>, message: &str) -> Vec<u8> {
    let (_, body) = error(protocol, trouble, reason_code, message);
    match protocol {
        Protocol::Chat | Protocol::Generate => format!("data: {body}\n\n"),
        Protocol::Messages => format!("event: error\ndata: {body}\n\n"),
        Protocol::Responses => {
            let failed = json!({"code": body["error"]["code"], "message": body["error"]["message"]});
            let response =
                json!({"id": "resp_failed", "object": "response", "status": "failed", "error": failed, "output": []});
            let event = json!({"type": "response.failed", "sequence_number": 0, "response": response});
            format!("event: response.failed\ndata: {event}\n\n")
        }
    }
    .into_bytes()
}

fn told(reason_code: Option<&str>, message: &str) -> String {
    let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    match reason_code {
        Some(code) if !message.contains(code) => format!("{message} ({code})"),
        _ => message,
    }
}

/// The list of models. OpenAI and Anthropic have one path for it; each finds its own fields in the same list.
pub fn models(protocol_is_gemini: bool, names: &[String]) -> Value {
    if protocol_is_gemini {
        let model = |name: &String| {
            json!({
                "name": format!("models/{name}"), "baseModelId": name, "version": "1", "displayName": name,
                "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
            })
        };
        return json!({"models": names.iter().map(model).collect::<Vec<_>>()});
    }
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": 0, "owned_by": "actum",
            "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
        })
    };
    let data: Vec<Value> = names.iter().map(model).collect();
    json!({"object": "list", "data": data, "has_more": false, "first_id": names.first(), "last_id": names.last()})
}
