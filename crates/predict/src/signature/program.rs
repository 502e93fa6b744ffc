//! How a signature is answered: its strategy, and the limits it sets itself. Read by `signature`, used by whoever asks.

use actum_contract::limit::INTEGER_SAFE_MAX;
use actum_contract::part::Part;
use serde_json::{Map, Value, json};

/// A way of coming to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// One question, and one more if the answer was no good.
    Direct,
    /// Long inputs stay outside of the prompt; the model works on them by operations.
    RlmLite,
}

impl Strategy {
    pub const ALL: [Self; 2] = [Self::Direct, Self::RlmLite];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct.v1",
            Self::RlmLite => "rlm_lite.v1",
        }
    }

    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.word() == word)
    }
}

/// What holds for all questions of a signature; what is not said is left to whoever asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub strategy: Strategy,
    pub model: Option<String>,
    pub provider: Option<String>,
    pub temperature: Option<f64>,
    pub seed: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub max_iterations: Option<u64>,
    pub max_calls: Option<u64>,
    pub max_tokens: Option<u64>,
    pub max_chars_shown: Option<u64>,
    pub timeout_ms: Option<u64>,
    /// Inputs that are never put into a prompt.
    pub long_inputs: Vec<String>,
}

/// Rounds of `rlm_lite.v1`, and how many there are if nobody says.
pub const ITERATIONS_MAX: u64 = 8;
pub const ITERATIONS_DEFAULT: u64 = 3;

const OUTPUT_TOKENS_MAX: u64 = 1_000_000;
const CALLS_MAX: u64 = 1_000;
const TOKENS_MAX: u64 = 1_000_000_000;
const CHARS_SHOWN_MAX: u64 = 10_000_000;
const TIMEOUT_MS_MAX: u64 = 86_400_000;
const TEMPERATURE_MAX: f64 = 2.0;
const WORD_BYTES_MAX: usize = 200;
const LONG_INPUTS_MAX: usize = 64;

const NOUN: &str = "a program template";

/// The whole numbers of a program, with what they may be.
const NUMBERS: [(&str, u64, u64); 7] = [
    ("seed", 0, INTEGER_SAFE_MAX),
    ("max_output_tokens", 1, OUTPUT_TOKENS_MAX),
    ("max_iterations", 1, ITERATIONS_MAX),
    ("max_calls", 1, CALLS_MAX),
    ("max_tokens", 1, TOKENS_MAX),
    ("max_chars_shown", 1, CHARS_SHOWN_MAX),
    ("timeout_ms", 1, TIMEOUT_MS_MAX),
];

impl Program {
    pub const fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            model: None,
            provider: None,
            temperature: None,
            seed: None,
            max_output_tokens: None,
            max_iterations: None,
            max_calls: None,
            max_tokens: None,
            max_chars_shown: None,
            timeout_ms: None,
            long_inputs: Vec::new(),
        }
    }

    /// Takes `program_template` out of a document.
    pub(crate) fn take(part: &mut Part<'_>) -> Option<Self> {
        let field = "program_template";
        match part.take(field) {
            Some(Value::String(word)) => {
                let strategy = Strategy::read(&word);
                if strategy.is_none() {
                    part.bad(field, &json!(word), &expected_strategy());
                }
                strategy.map(Self::new)
            }
            Some(value @ Value::Object(_)) => {
                let at = part.name(field);
                Self::read(&mut Part::new(&value, &at, NOUN, part.flaws))
            }
            other => {
                part.bad(field, &other.unwrap_or(Value::Null), "direct.v1, rlm_lite.v1, or an object with a strategy");
                None
            }
        }
    }

    fn read(part: &mut Part<'_>) -> Option<Self> {
        let word = super::required(part, "strategy");
        let strategy = Strategy::read(&word);
        if strategy.is_none() && !word.is_empty() {
            part.bad("strategy", &json!(word), &expected_strategy());
        }
        let mut word = |field: &str| {
            let text = part.text(field)?;
            let is_good = (1..=WORD_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
            if !is_good {
                part.bad(field, &json!(text), &format!("a name of at most {WORD_BYTES_MAX} bytes"));
            }
            is_good.then_some(text)
        };
        let (model, provider) = (word("model"), word("provider"));
        let temperature = part.take("temperature").and_then(|value| {
            let found = value.as_f64().filter(|t| (0.0..=TEMPERATURE_MAX).contains(t));
            if found.is_none() {
                part.bad("temperature", &value, &format!("a number from 0 to {TEMPERATURE_MAX}"));
            }
            found
        });
        let [seed, max_output_tokens, max_iterations, max_calls, max_tokens, max_chars_shown, timeout_ms] = NUMBERS
            .map(|(field, min, max)| {
                let value = part.take(field)?;
                let found = value.as_u64().filter(|n| (min..=max).contains(n));
                if found.is_none() {
                    part.bad(field, &value, &format!("a whole number from {min} to {max}"));
                }
                found
            });
        let long_inputs = part.texts("long_inputs");
        let is_twice = long_inputs.iter().enumerate().any(|(at, name)| long_inputs[..at].contains(name));
        if is_twice || long_inputs.len() > LONG_INPUTS_MAX || long_inputs.iter().any(String::is_empty) {
            let expected = format!("at most {LONG_INPUTS_MAX} names of inputs, each once");
            part.bad("long_inputs", &json!(long_inputs), &expected);
        }
        part.finish();
        Some(Self {
            strategy: strategy?,
            model,
            provider,
            temperature,
            seed,
            max_output_tokens,
            max_iterations,
            max_calls,
            max_tokens,
            max_chars_shown,
            timeout_ms,
            long_inputs,
        })
    }

    /// As it is kept: the word alone where nothing else was said.
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        let numbers = [
            self.seed,
            self.max_output_tokens,
            self.max_iterations,
            self.max_calls,
            self.max_tokens,
            self.max_chars_shown,
            self.timeout_ms,
        ];
        for ((name, ..), number) in NUMBERS.iter().zip(numbers) {
            fields.extend(number.map(|n| ((*name).to_owned(), json!(n))));
        }
        for (name, word) in [("model", &self.model), ("provider", &self.provider)] {
            fields.extend(word.as_ref().map(|word| (name.to_owned(), json!(word))));
        }
        fields.extend(self.temperature.map(|t| ("temperature".to_owned(), json!(t))));
        if !self.long_inputs.is_empty() {
            fields.insert("long_inputs".to_owned(), json!(self.long_inputs));
        }
        if fields.is_empty() {
            return json!(self.strategy.word());
        }
        fields.insert("strategy".to_owned(), json!(self.strategy.word()));
        Value::Object(fields)
    }
}

fn expected_strategy() -> String {
    format!("{} (unsupported_strategy)", Strategy::ALL.map(Strategy::word).join(" or "))
}

pub(super) fn schema() -> Value {
    let words = json!({"enum": Strategy::ALL.map(Strategy::word)});
    let name = json!({"type": "string", "minLength": 1, "maxLength": WORD_BYTES_MAX});
    let mut fields = Map::new();
    fields.insert("strategy".to_owned(), words.clone());
    fields.insert("model".to_owned(), name.clone());
    fields.insert("provider".to_owned(), name.clone());
    fields.insert("temperature".to_owned(), json!({"type": "number", "minimum": 0, "maximum": TEMPERATURE_MAX}));
    for (field, min, max) in NUMBERS {
        fields.insert(field.to_owned(), json!({"type": "integer", "minimum": min, "maximum": max}));
    }
    let long = json!({"type": "array", "items": name, "uniqueItems": true, "maxItems": LONG_INPUTS_MAX});
    fields.insert("long_inputs".to_owned(), long);
    json!({"anyOf": [
        words,
        {"type": "object", "properties": fields, "required": ["strategy"], "additionalProperties": false},
    ]})
}
