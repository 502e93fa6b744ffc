//! From parameters to a command line. No shell ever reads it: a value is one piece, or part of one, whatever is in it; and
//! it never becomes an option.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{ArgumentTemplate, Cli};

/// A program as it is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CliCall {
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub stdin: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter {parameter} {why}")]
pub struct BadArgument {
    pub parameter: String,
    pub why: String,
}

/// The call for these parameters. All that is wrong with them, if something is.
pub fn arguments(cli: &Cli, operation: Option<&str>, params: &Map<String, Value>) -> Result<CliCall, Vec<BadArgument>> {
    let mut bad = Vec::new();
    let mut say = |parameter: &str, why: String| bad.push(BadArgument { parameter: parameter.to_owned(), why });
    let mut call = CliCall::default();
    let chosen = operation.and_then(|operation| cli.operations.get(operation));
    call.arguments.extend(chosen.into_iter().flatten().cloned());
    call.arguments.extend(cli.base_args.iter().cloned());
    for (name, template) in &cli.arguments {
        if let Some(value) = params.get(name).filter(|value| !value.is_null())
            && let Err(why) = place(template, name, value, &mut call.arguments)
        {
            say(name, why);
        }
    }
    for (name, variable) in &cli.environment {
        match params.get(name).filter(|value| !value.is_null()).map(text_of) {
            None => {}
            Some(Some(text)) if !text.contains('\0') => drop(call.environment.insert(variable.clone(), text)),
            Some(_) => say(name, "cannot be a variable: it is no text, number or truth value".into()),
        }
    }
    if let Some(name) = &cli.stdin {
        match params.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => call.stdin = Some(text.clone()),
            Some(other) => call.stdin = Some(other.to_string()),
        }
    }
    let mapped: Vec<&String> = cli.arguments.iter().map(|(name, _)| name).collect();
    for name in params.keys() {
        let known = mapped.contains(&name) || cli.environment.contains_key(name) || cli.stdin.as_ref() == Some(name);
        if !known {
            let names = mapped.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
            say(name, format!("is not known; there are {names}"));
        }
    }
    if bad.is_empty() { Ok(call) } else { Err(bad) }
}

/// A value as one piece of text.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

fn place(template: &ArgumentTemplate, name: &str, value: &Value, into: &mut Vec<String>) -> Result<(), String> {
    let named = format!("{{{name}}}");
    let has_place = template.pieces.iter().any(|piece| piece.contains("{value}") || piece.contains(&named));
    if !has_place {
        return match value {
            Value::Bool(true) => {
                into.extend(template.pieces.iter().cloned());
                Ok(())
            }
            Value::Bool(false) => Ok(()),
            other => Err(format!("is {other}, expected true or false: it is a flag")),
        };
    }
    // A list is the same argument several times.
    let values = match value {
        Value::Array(items) => items.iter().map(text_of).collect::<Option<Vec<_>>>(),
        other => text_of(other).map(|text| vec![text]),
    };
    let values = values.ok_or_else(|| format!("is {value}, expected text, a number or a list of them"))?;
    for text in values {
        if text.contains('\0') {
            return Err("has a NUL in it".into());
        }
        for piece in &template.pieces {
            let filled = piece.replace("{value}", "\u{0}").replace(&named, "\u{0}");
            let begins = filled.starts_with('\u{0}');
            if begins && text.starts_with('-') && !template.allow_dash {
                return Err(format!(
                    "is {text:?}: what begins with `-` would be taken for an option; the adapter can allow it with `allow_dash`, or join it: \"--option={{value}}\""
                ));
            }
            into.push(filled.replace('\u{0}', &text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ripgrep() -> Cli {
        let template = |text: &str| ArgumentTemplate {
            pieces: text.split_whitespace().map(ToOwned::to_owned).collect(),
            allow_dash: false,
        };
        Cli {
            executable: "rg".into(),
            base_args: vec!["--json".into(), "--no-heading".into()],
            arguments: [
                ("pattern", "{pattern}"),
                ("path", "{path}"),
                ("ignore_case", "-i"),
                ("max_count", "-m {value}"),
            ]
            .map(|(name, text)| (name.to_owned(), template(text)))
            .into(),
            ..Cli::default()
        }
    }

    fn of(params: Value) -> Result<Vec<String>, Vec<String>> {
        let call = arguments(&ripgrep(), None, params.as_object().unwrap());
        call.map(|call| call.arguments).map_err(|all| all.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn values_are_pieces_whatever_is_in_them() {
        let hostile = r#"fn \w+\( ; rm -rf / $(x) `y` "z" 'q' | & > < {value} * ?"#;
        assert_eq!(
            of(json!({"pattern": hostile, "path": "src", "ignore_case": true, "max_count": 3})).unwrap(),
            ["--json", "--no-heading", hostile, "src", "-i", "-m", "3"]
        );
        assert_eq!(of(json!({"pattern": "a", "ignore_case": false})).unwrap(), ["--json", "--no-heading", "a"]);
        assert_eq!(of(json!({"pattern": "{path}", "path": "{pattern}"})).unwrap()[2..], ["{path}", "{pattern}"]);
    }

    #[test]
    fn a_parameter_never_becomes_an_option() {
        for text in ["-f", "--pre=sh", "-"] {
            assert!(of(json!({"pattern": text})).unwrap_err()[0].contains("option"), "{text}");
            assert!(of(json!({"max_count": text})).is_err(), "{text}: nor behind one");
        }
        let mut joined = ripgrep();
        joined.arguments[0].1.pieces = vec!["--regexp={value}".into()];
        let call = arguments(&joined, None, json!({"pattern": "-f"}).as_object().unwrap()).unwrap();
        assert_eq!(call.arguments[2], "--regexp=-f");
        joined.arguments[0].1 = ArgumentTemplate { pieces: vec!["{value}".into()], allow_dash: true };
        assert!(arguments(&joined, None, json!({"pattern": "-f"}).as_object().unwrap()).is_ok());
    }

    #[test]
    fn all_that_is_wrong_is_told() {
        let wrong =
            of(json!({"pattern": {"a": 1}, "ignore_case": "yes", "patern": "x", "path": "a\u{0}b"})).unwrap_err();
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong.iter().any(|text| text.starts_with("parameter patern is not known")));
    }

    #[test]
    fn variables_input_and_operations() {
        let mut cli = ripgrep();
        cli.environment.insert("level".into(), "LOG_LEVEL".into());
        cli.stdin = Some("text".into());
        cli.operations.insert("search".into(), vec!["search".into()]);
        let params = json!({"level": 3, "text": "in", "pattern": ["a", "b"]});
        let call = arguments(&cli, Some("search"), params.as_object().unwrap()).unwrap();
        assert_eq!(call.environment["LOG_LEVEL"], "3");
        assert_eq!(call.stdin.as_deref(), Some("in"));
        assert_eq!(call.arguments, ["search", "--json", "--no-heading", "a", "b"]);
    }
}
