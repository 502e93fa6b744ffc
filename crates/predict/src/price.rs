//! What tokens cost: the table of prices, the most a call can come to, and what it came to. Read by whoever reserves and
//! settles; never by a model's word about money.

use std::collections::BTreeMap;

use actum_contract::limit::INTEGER_SAFE_MAX;
use actum_contract::part::{Flaw, Part};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::protocol::{IMAGE_TOKENS_MAX, Usage};

/// Tokens that a price is for.
const PER_TOKENS: u128 = 1_000_000;

/// Prices that one table may have.
const PRICES_MAX: usize = 1_000;

/// Letters of a currency's name.
const CURRENCY_CHARS_MAX: usize = 32;

pub const CURRENCY: &str = "usd_micros";

const NOUN: &str = "a price";

/// Price of a million tokens of each kind, in the smallest unit of its currency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    pub input: u64,
    pub output: u64,
    /// Of input that comes from a cache; as input otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Of input that is written to a cache; as input otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    /// Of input that is written to a cache for longer than usual (`ttl: "1h"`). Without it twice the price of input where
    /// `cache_write` has a price, as Anthropic's price list has it; else as input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<u64>,
    /// Tokens that one picture can be at most, for this model; `IMAGE_TOKENS_MAX` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_tokens: Option<u64>,
    pub currency: String,
}

impl Price {
    /// Tokens that one picture can be at most.
    pub fn image_tokens_max(&self) -> u64 {
        self.image_tokens.unwrap_or(IMAGE_TOKENS_MAX)
    }

    fn cache_write_long(&self) -> u64 {
        let twice = self.cache_write.map(|usual| usual.max(self.input.saturating_mul(2)));
        self.cache_write_1h.or(twice).unwrap_or(self.input)
    }
}

/// The table: by model, `provider/model`, or a pattern of either with `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// Reads the table `[prices]`.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let fields = match value {
            Value::Null => return Ok(Self::default()),
            Value::Object(fields) if fields.len() <= PRICES_MAX => fields,
            other => {
                let expected = format!("a table of at most {PRICES_MAX} prices");
                return Err(vec![actum_contract::part::flaw("prices", other, &expected)]);
            }
        };
        let mut prices = BTreeMap::new();
        for (name, value) in fields {
            let at = format!("prices.{name}");
            if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
                flaws.push(actum_contract::part::flaw(
                    &at,
                    &json!(name),
                    "a model, provider/model, or a pattern with *",
                ));
            }
            prices.insert(name.clone(), read(&mut Part::new(value, &at, NOUN, &mut flaws)));
        }
        if flaws.is_empty() { Ok(Self(prices)) } else { Err(flaws) }
    }

    /// The price of a model: its own at this provider, its own, or that of the longest pattern that fits (of
    /// two as long, the later by name).
    pub fn find(&self, provider: &str, model: &str) -> Option<&Price> {
        let full = format!("{provider}/{model}");
        self.0.get(&full).or_else(|| self.0.get(model)).or_else(|| {
            let fits = |pattern: &str| pattern.contains('*') && (matches(pattern, &full) || matches(pattern, model));
            let fitting = self.0.iter().filter(|(pattern, _)| fits(pattern));
            fitting.max_by_key(|(pattern, _)| pattern.len()).map(|(_, price)| price)
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Price)> {
        self.0.iter().map(|(name, price)| (name.as_str(), price))
    }
}

fn read(part: &mut Part<'_>) -> Price {
    let fields = ["input", "output", "cached", "cache_write", "cache_write_1h", "image_tokens"];
    let [input, output, cached, cache_write, cache_write_1h, image_tokens] = fields.map(|field| {
        let is_needed = ["input", "output"].contains(&field);
        let value = part.take(field);
        let number = value.as_ref().and_then(Value::as_u64).filter(|number| *number <= INTEGER_SAFE_MAX);
        if number.is_none() && (is_needed || value.is_some()) {
            let expected = match field {
                "image_tokens" => "a whole number, the most tokens that one picture can be",
                _ => "a whole number, the price of a million tokens in the smallest unit of the currency",
            };
            part.bad(field, value.as_ref().unwrap_or(&Value::Null), expected);
        }
        number
    });
    let currency = part.text("currency").unwrap_or_else(|| CURRENCY.to_owned());
    if !is_currency(&currency) {
        let expected = format!("a name of at most {CURRENCY_CHARS_MAX} small letters, digits and _");
        part.bad("currency", &json!(currency), &expected);
    }
    part.finish();
    let [input, output] = [input, output].map(Option::unwrap_or_default);
    Price { input, output, cached, cache_write, cache_write_1h, image_tokens, currency }
}

fn is_currency(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=CURRENCY_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_fit)
}

/// Whether a name fits a pattern in which `*` stands for anything, nothing included.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns the most that a call can cost: the whole input at the dearest of its prices. Never less than the cost of any usage
/// within these bounds. `is_kept_long`: whether the call asks for a cache that keeps longer than usual.
pub fn estimate(price: &Price, input_tokens_max: u64, output_tokens_max: u64, is_kept_long: bool) -> u64 {
    let long = is_kept_long.then(|| price.cache_write_long());
    let dearest = [Some(price.input), price.cached, price.cache_write, long].into_iter().flatten().max();
    total(&[(dearest.unwrap_or_default(), input_tokens_max), (price.output, output_tokens_max)])
}

/// Returns what a call cost. Rounded up once, in the end.
pub fn cost(price: &Price, usage: &Usage) -> u64 {
    let cached = usage.cached.min(usage.input);
    let cache_write = usage.cache_write.min(usage.input - cached);
    let long = usage.cache_write_long.min(cache_write);
    total(&[
        (price.input, usage.input - cached - cache_write),
        (price.cached.unwrap_or(price.input), cached),
        (price.cache_write.unwrap_or(price.input), cache_write - long),
        (price.cache_write_long(), long),
        (price.output, usage.output),
    ])
}

fn total(parts: &[(u64, u64)]) -> u64 {
    let products = parts.iter().map(|(price, tokens)| u128::from(*price).saturating_mul(u128::from(*tokens)));
    let sum = products.fold(0, u128::saturating_add);
    u64::try_from(sum.div_ceil(PER_TOKENS)).unwrap_or(u64::MAX)
}

/// JSON Schema of the table.
pub fn schema() -> Value {
    let amount = json!({"type": "integer", "minimum": 0, "maximum": INTEGER_SAFE_MAX});
    let price = json!({
        "type": "object",
        "description": "price of a million tokens, in the smallest unit of the currency",
        "properties": {
            "input": amount, "output": amount,
            "cached": amount, "cache_write": amount, "cache_write_1h": amount,
            "image_tokens": {
                "type": "integer", "minimum": 0, "maximum": INTEGER_SAFE_MAX, "default": IMAGE_TOKENS_MAX,
                "description": "tokens that one picture can be at most",
            },
            "currency": {"type": "string", "pattern": format!("^[a-z0-9_]{{1,{CURRENCY_CHARS_MAX}}}$"), "default": CURRENCY},
        },
        "required": ["input", "output"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "description": "by model, provider/model, or a pattern of either with *",
        "maxProperties": PRICES_MAX,
        "additionalProperties": price,
    })
}

#[cfg(test)]
mod tests;
