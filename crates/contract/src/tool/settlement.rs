//! Tools behind which money is spent: what a call of one costs, and whether it may simply be made again. Read with the
//! tool's entry; asked by whoever is about to call it. Never reserves or spends anything.

use std::fmt;

use serde_json::{Map, Value, json};

use super::entry::word;
use crate::id::{CURRENCY_FORM, is_currency};
use crate::limit::INTEGER_SAFE_MAX;
use crate::part::Part;

/// The currency nobody has to name.
const CURRENCY: &str = "usd_micros";

/// What a call of a tool settles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub amount: Amount,
    pub currency: String,
    pub retry: RetryClass,
    /// No call costs more, whatever its parameters say.
    pub max: Option<u64>,
}

/// What one call costs, in the smallest unit of the currency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amount {
    Fixed(u64),
    /// This parameter of the call says it.
    Parameter(String),
}

/// Whether a call whose outcome nobody knows may simply be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    SafeRetry,
    DedupeReconcileRequired,
}

impl RetryClass {
    pub const ALL: [Self; 2] = [Self::SafeRetry, Self::DedupeReconcileRequired];

    pub const fn word(self) -> &'static str {
        match self {
            Self::SafeRetry => "safe_retry",
            Self::DedupeReconcileRequired => "dedupe_reconcile_required",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.word() == word)
    }
}

/// Why a call has no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAmount {
    #[error("parameter {0} says what the call costs: give a whole number above 0 in the currency's smallest unit")]
    NoAmount(String),
    #[error("parameter {parameter} asks for {amount} {currency}, and one call may cost {max}")]
    TooMuch { parameter: String, amount: u64, max: u64, currency: String },
}

impl BadAmount {
    pub fn parameter(&self) -> &str {
        match self {
            Self::NoAmount(parameter) | Self::TooMuch { parameter, .. } => parameter,
        }
    }
}

impl fmt::Display for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.most() {
            Some(most) => write!(f, "settlement up to {most} {}", self.currency),
            None => write!(f, "settlement of any amount of {}", self.currency),
        }
    }
}

impl Settlement {
    /// What a call with these parameters costs.
    pub fn amount_of(&self, params: &Map<String, Value>) -> Result<u64, BadAmount> {
        let name = match &self.amount {
            Amount::Fixed(amount) => return Ok(*amount),
            Amount::Parameter(name) => name,
        };
        let found = params.get(name).and_then(Value::as_u64).filter(|amount| (1..=INTEGER_SAFE_MAX).contains(amount));
        let amount = found.ok_or_else(|| BadAmount::NoAmount(name.clone()))?;
        match self.max.filter(|max| amount > *max) {
            Some(max) => {
                Err(BadAmount::TooMuch { parameter: name.clone(), amount, max, currency: self.currency.clone() })
            }
            None => Ok(amount),
        }
    }

    /// The most that one call costs; nothing if there is no end to it.
    pub fn most(&self) -> Option<u64> {
        match self.amount {
            Amount::Fixed(amount) => Some(amount),
            Amount::Parameter(_) => self.max,
        }
    }

    /// In what a tool spends more than before, or is watched less while it does.
    pub fn widens(now: Option<&Self>, was: Option<&Self>) -> Vec<String> {
        let (now, was) = match (now, was) {
            (None, None) => return Vec::new(),
            (Some(now), None) => return vec![now.to_string()],
            (None, Some(_)) => return vec!["settlement that nobody counts".to_owned()],
            (Some(now), Some(was)) => (now, was),
        };
        let mut found = Vec::new();
        let rises = match (now.most(), was.most()) {
            (Some(now), Some(was)) => now > was,
            (now, was) => now.is_none() && was.is_some(),
        };
        if rises || now.currency != was.currency {
            found.push(now.to_string());
        }
        if now.retry == RetryClass::SafeRetry && was.retry != now.retry {
            found.push(format!("settlement {}", now.retry.word()));
        }
        found
    }
}

fn amount(part: &mut Part<'_>, field: &str) -> Option<u64> {
    let value = part.take(field)?;
    let found = value.as_u64().filter(|amount| (1..=INTEGER_SAFE_MAX).contains(amount));
    if found.is_none() {
        part.bad(field, &value, "a whole number above 0 in the smallest unit of the currency");
    }
    found
}

/// Reads what stands under `settlement`.
pub(super) fn settlement(part: &mut Part<'_>) -> Settlement {
    let (is_fixed, is_named) = (part.has("amount"), part.has("amount_param"));
    let fixed = amount(part, "amount");
    let named = part.text("amount_param");
    if named.as_ref().is_some_and(String::is_empty) {
        part.bad("amount_param", &json!(""), "the name of the parameter that says the amount");
    }
    if is_fixed == is_named {
        part.bad("amount", &json!(fixed), "either amount or amount_param");
    }
    let currency = part.text("currency").unwrap_or_else(|| CURRENCY.to_owned());
    if !is_currency(&currency) {
        part.bad("currency", &json!(currency), CURRENCY_FORM);
    }
    let all = RetryClass::ALL.map(RetryClass::word).join(" or ");
    let retry = word(part, "retry_class", RetryClass::DedupeReconcileRequired, RetryClass::named, &all);
    let max = amount(part, "max");
    if let Some(amount) = fixed.filter(|amount| max.is_some_and(|max| *amount > max)) {
        part.bad("max", &json!(max), &format!("at least the amount, {amount}"));
    }
    let amount = match named {
        Some(name) => Amount::Parameter(name),
        None => Amount::Fixed(fixed.unwrap_or(0)),
    };
    Settlement { amount, currency, retry, max }
}

/// The JSON Schema of what stands under `settlement`.
pub(super) fn schema() -> Value {
    let whole = json!({"type": "integer", "minimum": 1, "maximum": INTEGER_SAFE_MAX});
    json!({
        "type": "object", "additionalProperties": false,
        "description": "each call spends money: it is reserved before, and settled after it",
        "properties": {
            "amount": whole,
            "amount_param": {"type": "string", "minLength": 1, "description": "the parameter that says what a call costs"},
            "currency": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,31}$", "default": CURRENCY},
            "retry_class": {"enum": RetryClass::ALL.map(RetryClass::word), "default": RetryClass::DedupeReconcileRequired.word()},
            "max": whole,
        },
        "oneOf": [{"required": ["amount"]}, {"required": ["amount_param"]}],
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, tests::tool};
    use super::*;

    fn read(settlement: Value) -> Result<Settlement, String> {
        let mut document = tool();
        document["settlement"] = settlement;
        let flaws =
            |flaws: Vec<crate::part::Flaw>| flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Entry::read(&document).map(|entry| entry.settlement.unwrap()).map_err(flaws)
    }

    #[test]
    fn what_is_settled_and_its_flaws() {
        let fixed = read(json!({"amount": 500})).unwrap();
        assert_eq!((fixed.amount, fixed.currency.as_str(), fixed.max), (Amount::Fixed(500), CURRENCY, None));
        assert_eq!(fixed.retry, RetryClass::DedupeReconcileRequired);
        let named = read(json!({"amount_param": "sum", "currency": "sats", "retry_class": "safe_retry", "max": 9}));
        let named = named.unwrap();
        assert_eq!((named.amount, named.retry), (Amount::Parameter("sum".into()), RetryClass::SafeRetry));
        for (bad, field) in [
            (json!({}), "settlement.amount"),
            (json!({"amount": 1, "amount_param": "x"}), "settlement.amount"),
            (json!({"amount": 0}), "settlement.amount"),
            (json!({"amount": -1}), "settlement.amount"),
            (json!({"amount": 1.5}), "settlement.amount"),
            (json!({"amount": "5"}), "settlement.amount"),
            (json!({"amount": INTEGER_SAFE_MAX + 1}), "settlement.amount"),
            (json!({"amount_param": ""}), "settlement.amount_param"),
            (json!({"amount_param": 7}), "settlement.amount_param"),
            (json!({"amount": 1, "currency": "US$"}), "settlement.currency"),
            (json!({"amount": 1, "currency": ""}), "settlement.currency"),
            (json!({"amount": 1, "retry_class": "never"}), "settlement.retry_class"),
            (json!({"amount": 10, "max": 5}), "settlement.max"),
            (json!({"amount": 10, "max": 0}), "settlement.max"),
            (json!({"amount": 10, "limit": 5}), "settlement.limit"),
            (json!([500]), "settlement"),
            (json!(500), "settlement"),
        ] {
            let wrong = read(bad.clone()).unwrap_err();
            assert!(wrong.contains(field), "{bad}: {wrong}");
        }
        let wrong = read(json!({"amount": 0, "currency": "US$", "retry_class": 1, "max": "x"})).unwrap_err();
        for field in ["amount", "currency", "retry_class", "max"] {
            assert!(wrong.contains(&format!("settlement.{field}")), "{field}: {wrong}");
        }
    }

    #[test]
    fn what_a_call_costs() {
        let params = |value: Value| Map::from_iter([("sum".to_owned(), value)]);
        let fixed = read(json!({"amount": 500})).unwrap();
        assert_eq!(fixed.amount_of(&Map::new()), Ok(500));
        let named = read(json!({"amount_param": "sum", "max": 100})).unwrap();
        assert_eq!(named.amount_of(&params(json!(100))), Ok(100));
        assert!(matches!(named.amount_of(&params(json!(101))), Err(BadAmount::TooMuch { max: 100, .. })));
        for bad in [json!(0), json!(-1), json!(1.5), json!("7"), json!(null), json!([7]), json!(u64::MAX)] {
            assert!(matches!(named.amount_of(&params(bad.clone())), Err(BadAmount::NoAmount(_))), "{bad}");
        }
        assert!(matches!(named.amount_of(&Map::new()), Err(BadAmount::NoAmount(_))));
    }

    #[test]
    fn more_is_told_from_less() {
        let of = |value: Value| read(value).unwrap();
        let widens = |now: Option<Value>, was: Option<Value>| {
            Settlement::widens(now.map(of).as_ref(), was.map(of).as_ref()).join(", ")
        };
        let five = || Some(json!({"amount": 5}));
        assert_eq!(widens(None, None), "");
        assert_eq!(widens(five(), five()), "");
        assert_eq!(widens(five(), None), "settlement up to 5 usd_micros");
        assert_eq!(widens(None, five()), "settlement that nobody counts");
        assert_eq!(widens(Some(json!({"amount": 6})), five()), "settlement up to 6 usd_micros");
        assert_eq!(widens(Some(json!({"amount": 4})), five()), "");
        assert_eq!(widens(Some(json!({"amount_param": "x"})), five()), "settlement of any amount of usd_micros");
        assert_eq!(widens(Some(json!({"amount_param": "x", "max": 5})), five()), "");
        assert_eq!(widens(five(), Some(json!({"amount_param": "x"}))), "");
        assert_eq!(widens(Some(json!({"amount": 5, "currency": "sats"})), five()), "settlement up to 5 sats");
        assert_eq!(widens(Some(json!({"amount": 5, "retry_class": "safe_retry"})), five()), "settlement safe_retry");
    }
}
