//! Reading what a model wrote where JSON was asked for: plain, in a code fence, or with talk around it.
//!
//! Called by strategies. Never takes a number or a word out of talk: those are JSON only where they stand alone.

use serde_json::Value;

/// What is read of one answer; what is longer is no answer.
const TEXT_BYTES_MAX: usize = 8 << 20;

/// How often a byte is read over, on the whole, in search of a value that is whole.
const READINGS_MAX: usize = 16;

/// The value in a text. The error says what to do better.
pub fn parse(text: &str) -> Result<Value, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("the answer has {} bytes, more than {TEXT_BYTES_MAX}; give a shorter one", text.len()));
    }
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err("the answer is empty; write one JSON value".to_owned());
    }
    let plain = match serde_json::from_str(text) {
        Ok(value) => return Ok(value),
        Err(why) => why,
    };
    fenced(text).or_else(|| embedded(text)).ok_or_else(|| {
        let place = format!("line {}, column {}", plain.line(), plain.column());
        format!("the answer holds no whole JSON object or list ({plain}; {place}); write only the JSON value")
    })
}

/// The first fence whose content is a value as a whole. A fence opens a line or ends one: inside of a text of JSON it
/// can do neither.
fn fenced(text: &str) -> Option<Value> {
    let mut at = 0;
    let mut work = text.len() * READINGS_MAX;
    while work > 0 {
        let open = at + text[at..].find("```")?;
        at = open + 3;
        let after = &text[at..];
        // The word behind the fence, if there is one, names the language.
        let word = after.bytes().take_while(|b| b.is_ascii_alphanumeric() || b"_+-".contains(b)).count();
        let opens = text[..open].trim_end_matches([' ', '\t']).chars().next_back().is_none_or(|c| c == '\n');
        let ends = after[word..].trim_start_matches([' ', '\t', '\r']).starts_with('\n');
        if !opens && !ends {
            continue;
        }
        let body = if after[word..].starts_with(['\n', '\r', ' ', '\t']) { &after[word..] } else { after };
        let mut stream = serde_json::Deserializer::from_str(body).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                let end = stream.byte_offset();
                if body[end..].trim_start().starts_with("```") {
                    return Some(value);
                }
                work = work.saturating_sub(end);
            }
            Some(Err(why)) => work = work.saturating_sub(offset(body, &why)),
            None => return None,
        }
    }
    None
}

/// The first object or list that is whole.
fn embedded(text: &str) -> Option<Value> {
    let mut at = 0;
    let mut work = text.len() * READINGS_MAX;
    while work > 0 {
        at += text[at..].find(['{', '['])?;
        let rest = &text[at..];
        match serde_json::Deserializer::from_str(rest).into_iter::<Value>().next()? {
            Ok(value) => return Some(value),
            Err(why) => work = work.saturating_sub(offset(rest, &why)),
        }
        at += 1;
    }
    None
}

/// How much was read until the error.
fn offset(text: &str, error: &serde_json::Error) -> usize {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
    (lines + error.column()).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_comes_out_of_what_surrounds_it() {
        for (text, expected) in [
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("  7  ", json!(7)),
            ("\u{feff}null", json!(null)),
            ("```json\n{\"a\": 1}\n```", json!({"a": 1})),
            ("```\n[1, 2]\n```", json!([1, 2])),
            ("```json\n\"x\"\n``` done", json!("x")),
            ("```{\"a\":1}```", json!({"a": 1})),
            ("Here you are: {\"a\": {\"b\": \"}\"}} I hope it helps {not this}", json!({"a": {"b": "}"}})),
            ("I use {braces} and [lists], then {\"a\": 1}", json!({"a": 1})),
            ("{\"a\": 1}{\"b\": 2}", json!({"a": 1})),
            ("{\"a\": 1}\n\nLet me know!", json!({"a": 1})),
            ("``` here ``` it is [\"```\",\"```\"]", json!(["```", "```"])),
            ("so: ```json\n7\n```", json!(7)),
            ("text ```rust\nfn x() {}\n``` and ```json\n{\"ok\": true}\n```", json!({"ok": true})),
            (r#"{"code": "```json\n{}\n```"}"#, json!({"code": "```json\n{}\n```"})),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn talk_is_no_json() {
        for text in
            ["", " \n ", "The answer is 7", "true, I think", "{\"a\": ", "{a: 1}", "{'a': 1}", "\"a\" or \"b\"", "7 8"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("\0\0{").is_err());
        assert!(parse("say ```7``` now").is_err());
        let braces = "{x} ".repeat(10_000);
        assert_eq!(parse(&format!("{braces}[1] {braces}")).unwrap(), json!([1]));
        let open = "{\"a\": \"".repeat(100_000);
        assert!(parse(&open).is_err());
        assert!(parse(&"[".repeat(1 << 20)).is_err() && parse(&"{\"a\":".repeat(1 << 18)).is_err());
        assert!(parse(&" ".repeat(TEXT_BYTES_MAX + 1)).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            Just(json!("```")),
            Just(json!("{[")),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z{}`]{0,4}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_comes_out(value in any_json(), before in "[a-z .,:\n]{0,40}", after in "\\PC{0,40}", word in "(json|JSON|)", is_pretty: bool) {
            let text = if is_pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
            prop_assert_eq!(parse(&text).unwrap(), value.clone());
            prop_assert_eq!(parse(&format!("{before}\n```{word}\n{text}\n```\n{after}")).unwrap(), value.clone());
            if value.is_object() || value.is_array() {
                prop_assert_eq!(parse(&format!("{before} {text} {after}")).unwrap(), value);
            }
        }

        #[test]
        fn anything_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
