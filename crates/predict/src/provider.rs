//! Providers: whom a model is asked of, as the project's settings name them. Read by `cli`; a key is only ever a
//! reference here.

use actum_contract::part::{Flaw, Part};
use serde_json::{Value, json};

use crate::protocol::{Protocol, Structured};

const NOUN: &str = "a provider";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    OpenAi,
    Anthropic,
    Gemini,
    /// Answers from a file; reaches nobody.
    Recorded,
}

impl Kind {
    const ALL: [(&'static str, Self); 4] = [
        ("openai", Self::OpenAi),
        ("anthropic", Self::Anthropic),
        ("gemini", Self::Gemini),
        ("recorded", Self::Recorded),
    ];

    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }

    /// What telemetry calls such a provider, where it has a name for it.
    pub fn known_as(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("openai"),
            Self::Anthropic => Some("anthropic"),
            Self::Gemini => Some("gcp.gemini"),
            Self::Recorded => None,
        }
    }

    /// Whether it understands a protocol.
    pub fn speaks(self, protocol: Protocol) -> bool {
        match self {
            Self::OpenAi => matches!(protocol, Protocol::Chat | Protocol::Responses),
            Self::Anthropic => protocol == Protocol::Messages,
            Self::Gemini => protocol == Protocol::Generate,
            Self::Recorded => true,
        }
    }

    /// By which it is asked when the choice is ours.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::OpenAi | Self::Recorded => Protocol::Chat,
            Self::Anthropic => Protocol::Messages,
            Self::Gemini => Protocol::Generate,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    pub id: String,
    pub kind: Kind,
    /// As the providers' own clients have it: ends in `/v1` for openai, and not for the others.
    pub base_url: String,
    /// A reference: `env:NAME`, `file:PATH`.
    pub key: Option<String>,
    /// Which models it is asked for; `*` stands for any letters.
    pub models: Vec<String>,
    /// The limit a call gets that brings none, and the most one may bring.
    pub output_tokens: u64,
    /// What OpenAI-compatible servers call that limit.
    pub limit_field: String,
    pub structured: Structured,
    /// Until an answer begins, between its pieces, and for all of it.
    pub answer_ms: u64,
    pub idle_ms: u64,
    pub total_ms: u64,
    pub attempts: u64,
    /// Where a recording lies, for `recorded`.
    pub file: Option<String>,
    /// Where what it answers is added to, so that a recorded provider can answer the same.
    pub record: Option<String>,
}

/// Numbers, with their ranges and defaults.
const NUMBERS: [(&str, u64, u64, u64); 5] = [
    ("output_tokens", 1, 1_000_000, 32_000),
    ("answer_ms", 10, 3_600_000, 120_000),
    ("idle_ms", 10, 3_600_000, 60_000),
    ("total_ms", 10, 3_600_000, 600_000),
    ("attempts", 1, 10, 3),
];
const LIMIT_FIELDS: [&str; 2] = ["max_tokens", "max_completion_tokens"];
const STRUCTURED: [&str; 3] = ["json_schema", "json_object", "none"];

impl Provider {
    /// Reads what the settings say of one.
    pub fn read(id: &str, value: &Value, at: &str) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let provider = read(id, &mut Part::new(value, at, NOUN, &mut flaws));
        match (provider, flaws.is_empty()) {
            (Some(provider), true) => Ok(provider),
            _ => Err(flaws),
        }
    }

    /// How well it fits a model: the letters of the pattern that fits, more for one without a star.
    pub fn fits(&self, model: &str) -> Option<usize> {
        let score = |pattern: &String| {
            matches(pattern, model).then(|| if pattern.contains('*') { pattern.len() } else { usize::MAX })
        };
        self.models.iter().filter_map(score).max()
    }
}

/// The provider for a model by a protocol: the one whose pattern says most, by name if several do.
pub fn choose<'a>(
    all: impl IntoIterator<Item = &'a Provider>,
    protocol: Protocol,
    model: &str,
) -> Option<&'a Provider> {
    let fitting = all.into_iter().filter(|one| one.kind.speaks(protocol));
    let scored = fitting.filter_map(|one| one.fits(model).map(|score| (score, std::cmp::Reverse(&one.id), one)));
    scored.max_by_key(|(score, id, _)| (*score, *id)).map(|(.., one)| one)
}

/// Whether a text is what a pattern says, in which `*` stands for any letters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn read(id: &str, part: &mut Part<'_>) -> Option<Provider> {
    let word = part.required("type");
    let kind = Kind::ALL.iter().find(|(known, _)| *known == word).map(|(_, kind)| *kind);
    if kind.is_none() && !word.is_empty() {
        part.bad("type", &json!(word), &Kind::ALL.map(|(word, _)| word).join(", "));
    }
    let base_url = part.text("base_url");
    let key = match part.take("key") {
        None => None,
        Some(Value::String(key)) => Some(key),
        // It may hold the key itself: it is not shown.
        Some(_) => {
            part.bad("key", &json!("no text"), "a reference: env:NAME or file:PATH");
            None
        }
    };
    if key.as_ref().is_some_and(|key| !key.starts_with("env:") && !key.starts_with("file:")) {
        // It may be the key itself: it is not shown.
        part.bad("key", &json!("a text"), "a reference: env:NAME or file:PATH");
    }
    let has_models = part.has("models");
    let models = Some(part.texts("models")).filter(|_| has_models);
    let numbers = NUMBERS.map(|(field, min, max, default)| {
        let Some(value) = part.take(field) else { return default };
        value.as_u64().filter(|n| (min..=max).contains(n)).unwrap_or_else(|| {
            part.bad(field, &value, &format!("a whole number from {min} to {max}"));
            default
        })
    });
    let mut chosen = |field: &str, words: &[&str]| {
        let text = part.text(field).unwrap_or_else(|| words[0].to_owned());
        if !words.contains(&text.as_str()) {
            part.bad(field, &json!(text), &words.join(", "));
        }
        text
    };
    let limit_field = chosen("limit_field", &LIMIT_FIELDS);
    let structured = match chosen("structured", &STRUCTURED).as_str() {
        "json_object" => Structured::JsonObject,
        "none" => Structured::Nothing,
        _ => Structured::JsonSchema,
    };
    let file = part.text("file");
    let record = part.text("record");
    if let Some(record) = record.as_ref().filter(|record| record.is_empty() || kind == Some(Kind::Recorded)) {
        part.bad("record", &json!(record), "a file, for a provider that is not itself recorded");
    }
    match (kind, &base_url, &file) {
        (Some(Kind::Recorded), _, None) => part.bad("file", &Value::Null, "the file with the recording"),
        (Some(Kind::Recorded), ..) | (None, ..) => {}
        (Some(_), url, _) => {
            let is_url = url.as_ref().is_some_and(|url| url.starts_with("http://") || url.starts_with("https://"));
            if !is_url {
                part.bad("base_url", &json!(url), "where it is: http://… or https://…");
            }
        }
    }
    part.finish();
    let [output_tokens, answer_ms, idle_ms, total_ms, attempts] = numbers;
    Some(Provider {
        id: id.to_owned(),
        kind: kind?,
        base_url: base_url.unwrap_or_default().trim_end_matches('/').to_owned(),
        key,
        models: models.unwrap_or_else(|| vec!["*".to_owned()]),
        output_tokens,
        limit_field,
        structured,
        answer_ms,
        idle_ms,
        total_ms,
        attempts,
        file,
        record,
    })
}

/// JSON Schema of one provider.
pub fn schema() -> Value {
    let mut properties = json!({
        "type": {"enum": Kind::ALL.map(|(word, _)| word)},
        "base_url": {"type": "string", "description": "ends in /v1 for openai; without it for anthropic and gemini"},
        "key": {"type": "string", "pattern": "^(env|file):", "description": "a reference; the key itself stands nowhere"},
        "models": {"type": "array", "items": {"type": "string"}, "default": ["*"]},
        "limit_field": {"enum": LIMIT_FIELDS, "default": LIMIT_FIELDS[0]},
        "structured": {"enum": STRUCTURED, "default": STRUCTURED[0]},
        "file": {"type": "string", "description": "the recording of a recorded provider"},
        "record": {"type": "string", "description": "a file that every answer is added to, for a recorded provider"},
    });
    for (name, min, max, default) in NUMBERS {
        properties[name] = json!({"type": "integer", "minimum": min, "maximum": max, "default": default});
    }
    json!({"type": "object", "properties": properties, "required": ["type"], "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(value: &Value) -> Result<Provider, String> {
        Provider::read("p", value, "providers.p")
            .map_err(|flaws| flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn what_is_missing_has_a_default_and_what_is_wrong_is_told() {
        let good =
            provider(&json!({"type": "openai", "base_url": "http://127.0.0.1:1/v1/", "key": "env:KEY"})).unwrap();
        assert_eq!((good.base_url.as_str(), good.output_tokens), ("http://127.0.0.1:1/v1", 32_000));
        let bad = provider(&json!({
            "type": "openai", "base_url": "ftp://x", "key": "sk-verysecret", "answer_ms": 0, "limit_field": "x", "model": []
        }));
        let bad = bad.unwrap_err();
        for part in ["base_url", "key", "answer_ms", "limit_field", "did you mean models?"] {
            assert!(bad.contains(part), "{part} is missing in {bad}");
        }
        assert!(!bad.contains("verysecret"), "{bad}");
        assert!(provider(&json!({"type": "recorded"})).unwrap_err().contains("file"));
        assert!(provider(&json!({"type": "recorded", "file": "f", "record": "g"})).unwrap_err().contains("record"));
        assert!(provider(&json!({"type": "oracle"})).unwrap_err().contains("openai"));
    }

    #[test]
    fn patterns() {
        for (pattern, text, is) in [
            ("*", "", true),
            ("gpt-*", "gpt-5", true),
            ("gpt-*", "claude", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("x", "x", true),
            ("x", "xy", false),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
    }

    #[test]
    fn the_pattern_that_says_most_wins() {
        let with = |id: &str, kind: &str, models: &[&str]| {
            Provider::read(id, &json!({"type": kind, "base_url": "http://x", "models": models}), "").unwrap()
        };
        let all = [
            with("a", "openai", &["*"]),
            with("b", "openai", &["gpt-*"]),
            with("c", "openai", &["gpt-5"]),
            with("d", "anthropic", &["*"]),
        ];
        let id = |protocol, model| choose(&all, protocol, model).map(|one| one.id.clone());
        assert_eq!(id(Protocol::Chat, "gpt-5").as_deref(), Some("c"));
        assert_eq!(id(Protocol::Responses, "gpt-4").as_deref(), Some("b"));
        assert_eq!(id(Protocol::Chat, "llama").as_deref(), Some("a"));
        assert_eq!(id(Protocol::Messages, "gpt-5").as_deref(), Some("d"));
        assert_eq!(id(Protocol::Generate, "gpt-5"), None);
    }
}
