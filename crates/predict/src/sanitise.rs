//! Taking secrets and personal data out of what is kept: by the names of fields, by their looks, by known values.
//!
//! Called for every trace and every recorded text. Doing it twice changes nothing more. Never judges what is left.

use std::borrow::Cow;
use std::sync::LazyLock;

use actum_contract::execution::Redactor;
use regex::{Captures, Regex};
use serde_json::{Map, Value};

const REDACTED: &str = "[REDACTED]";
const REDACTED_EMAIL: &str = "[REDACTED_EMAIL]";
const REDACTED_PHONE: &str = "[REDACTED_PHONE]";

/// Names of fields whose values are never kept: in small letters, with `_` for `-`.
const SECRET_NAMES: [&str; 16] = [
    "authorization",
    "proxy_authorization",
    "cookie",
    "set_cookie",
    "password",
    "passphrase",
    "secret",
    "api_key",
    "admin_key",
    "apikey",
    "x_api_key",
    "access_token",
    "refresh_token",
    "token",
    "client_secret",
    "private_key",
];
const SECRET_ENDINGS: [&str; 6] = ["_token", "_secret", "_password", "_api_key", "_apikey", "_admin_key"];
const PERSONAL_NAMES: [&str; 5] = ["ssn", "address", "street", "postal_code", "zip"];

/// Passes over one text. One is enough but for what only shows when something else is gone.
const PASSES_MAX: usize = 16;

/// Compiled once; the patterns are tried by a test.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the patterns are fixed, and tried by a test")
}

static BEARER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i-u)\b(bearer\s+)[A-Za-z0-9._~+/=-]+"));
static KEY: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?-u)\bsk-[A-Za-z0-9_-]{6,}"));
static JWT: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?-u)\b[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"));
static EMAIL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?-u)[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"));
/// A date is no telephone number, although it looks like one.
static PHONE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?-u)(\b[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)?\b)|(?:\+|\b)[0-9][0-9 ().-]{7,}[0-9]\b",
    )
});

/// The value without what must not be kept.
pub fn sanitise(value: &Value, redactor: &Redactor) -> Value {
    match value {
        Value::String(text) => Value::String(sanitise_text(text, redactor)),
        Value::Array(items) => items.iter().map(|item| sanitise(item, redactor)).collect(),
        Value::Object(members) => Value::Object(sanitise_members(members, redactor)),
        other => other.clone(),
    }
}

fn sanitise_members(members: &Map<String, Value>, redactor: &Redactor) -> Map<String, Value> {
    let clean = members.iter().map(|(name, member)| {
        let member = instead(name).map_or_else(|| sanitise(member, redactor), Value::from);
        // A known secret may stand in a name as well.
        let (known, count) = redactor.redact_values(name.as_bytes());
        let name = if count == 0 { name.clone() } else { String::from_utf8_lossy(&known).into_owned() };
        (name, member)
    });
    clean.collect()
}

/// What stands instead of the value of a field, if its name says so.
fn instead(name: &str) -> Option<&'static str> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let name = if is_plain { Cow::Borrowed(name) } else { Cow::Owned(name.to_lowercase().replace('-', "_")) };
    match &*name {
        "email" | "e_mail" => Some(REDACTED_EMAIL),
        "phone" | "phone_number" => Some(REDACTED_PHONE),
        name if SECRET_NAMES.contains(&name) || PERSONAL_NAMES.contains(&name) => Some(REDACTED),
        name if SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending)) => Some(REDACTED),
        _ => None,
    }
}

/// A text without what looks like a secret or like personal data.
pub fn sanitise_text(text: &str, redactor: &Redactor) -> String {
    let mut text = text.to_owned();
    for _ in 0..PASSES_MAX {
        let clean = pass(&text, redactor);
        if clean == text {
            break;
        }
        text = clean;
    }
    text
}

fn pass(text: &str, redactor: &Redactor) -> String {
    let (bytes, count) = redactor.redact(text.as_bytes());
    let mut text = if count == 0 { text.to_owned() } else { String::from_utf8_lossy(&bytes).into_owned() };
    for (look, instead) in [(&BEARER, "${1}[REDACTED]"), (&KEY, REDACTED), (&JWT, REDACTED), (&EMAIL, REDACTED_EMAIL)] {
        if look.is_match(&text) {
            text = look.replace_all(&text, instead).into_owned();
        }
    }
    if PHONE.is_match(&text) {
        let keep_dates =
            |found: &Captures<'_>| found.get(1).map_or(REDACTED_PHONE.to_owned(), |date| date.as_str().to_owned());
        text = PHONE.replace_all(&text, keep_dates).into_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn clean(value: &Value) -> Value {
        sanitise(value, &Redactor::new(["hunter2-hunter2"]))
    }

    #[test]
    fn names_say_what_is_secret() {
        for name in SECRET_NAMES.into_iter().chain(PERSONAL_NAMES) {
            assert_eq!(clean(&json!({name: {"a": 1}})), json!({name: "[REDACTED]"}));
        }
        for name in
            ["Authorization", "Set-Cookie", "X-API-Key", "github_token", "MY_SECRET", "db-password", "x_admin_key"]
        {
            assert_eq!(clean(&json!({name: "v"})), json!({name: "[REDACTED]"}));
        }
        assert_eq!(
            clean(&json!({"E-Mail": "x", "phone_number": 7})),
            json!({"E-Mail": "[REDACTED_EMAIL]", "phone_number": "[REDACTED_PHONE]"})
        );
        let innocent =
            json!({"max_tokens": 5, "tokens": 7, "token_count": 1, "emails": 2, "keys": ["token"], "n": null});
        assert_eq!(clean(&innocent), innocent);
    }

    #[test]
    fn looks_say_what_is_secret() {
        for (text, expected) in [
            ("Authorization: Bearer abc.def", "Authorization: Bearer [REDACTED]"),
            ("key sk-abcdef123 end", "key [REDACTED] end"),
            ("aaaaaaaaaa.bbbbbbbbbb.cccccccccc", "[REDACTED]"),
            ("write to Ann.Lee+x@mail.example.org now", "write to [REDACTED_EMAIL] now"),
            ("call +49 (30) 1234-5678!", "call [REDACTED_PHONE]!"),
            ("call 123456789", "call [REDACTED_PHONE]"),
            ("on 2026-11-16 at 12345678", "on 2026-11-16 at 12345678"),
            ("2026-11-16 01:46:01.5 555 123 4567", "2026-11-16 01:46:01.5 [REDACTED_PHONE]"),
            ("at 2026-11-16T01:46:01Z", "at 2026-11-16T01:46:01Z"),
            ("it is hunter2-hunter2", "it is [REDACTED]"),
            ("hash 61b634b192fcd5195b2c832dc22bf13f", "hash 61b634b192fcd5195b2c832dc22bf13f"),
            ("trace:run_1:0123456789abcdef0123", "trace:run_1:0123456789abcdef0123"),
            ("nothing at all, 42", "nothing at all, 42"),
        ] {
            assert_eq!(clean(&json!(text)), json!(expected));
        }
        assert_eq!(clean(&json!({"hunter2-hunter2": 1})), json!({"[REDACTED]": 1}));
        assert_eq!(clean(&json!("a://b:ccc@d@e:fff@g")), clean(&clean(&json!("a://b:ccc@d@e:fff@g"))));
    }

    proptest! {
        #[test]
        fn once_is_enough(text in "[ab1-9@.:/ +_k=-]{0,60}|\\PC{0,60}|((sk-|Bearer |token=|a@b.cd|eyJ|123 |://|hunter2-hunter2|\\[REDACTED\\])[a-z0-9.@ -]{0,12}){0,6}", name in "[a-z_-]{0,10}|token|email") {
            let once = clean(&json!({name: [text, 7]}));
            prop_assert_eq!(clean(&once), once);
        }

        #[test]
        fn what_is_known_is_gone(before in "\\PC{0,20}", after in "\\PC{0,20}") {
            let text = clean(&json!([format!("{before}hunter2-hunter2{after}")])).to_string();
            prop_assert!(!text.contains("hunter2-hunter2"));
        }
    }
}
