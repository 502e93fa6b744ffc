//! Reading a work file, and its JSON Schema. A bare item, or a list of items, is a work file too.

use serde_json::{Map, Value, json};

use super::{Budget, Constraints, Publish, Spend, StageView, Validation, Work, WorkItem, is_id};
use crate::bad::BadConfig;
use crate::id::{CURRENCY_FORM, is_currency};
use crate::part::{Flaw, LIST_MAX, Part, flaw};
use crate::schema::{self, Partial};

/// Everything that is wrong with a work file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWork {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Flaws(Vec<Flaw>),
    #[error(transparent)]
    Contract(BadConfig),
}

const NOUN: &str = "a work item";

/// Limits of an item: name, default, smallest, largest.
const LIMITS: [(&str, u64, u64, u64); 4] = [
    ("max_files", 10, 0, 100_000),
    ("max_tool_ops", 50, 0, 100_000),
    ("max_delta_size", 100, 0, 1_000_000),
    ("timeout_ms", 300_000, 1, 86_400_000),
];

const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
const COMPLEXITIES: [&str; 3] = ["low", "medium", "high"];

/// Reads a work file.
pub fn read(document: &Value) -> Result<Work, BadWork> {
    let mut flaws = Vec::new();
    let mut work = Work { workspace: None, contract: Partial::default(), items: Vec::new() };
    let is_file = document.get("items").is_some() || document.get("workspace").is_some();
    match document {
        Value::Object(_) if is_file => {
            let mut part = Part::new(document, "", "a work file", &mut flaws);
            work.workspace = part.text("workspace");
            if let Some(contract) = part.take("contract") {
                work.contract = Partial::read(&contract).map_err(BadWork::Contract)?;
            }
            let items = part.take("items").unwrap_or(Value::Null);
            part.finish();
            work.items = list(&items, &mut flaws);
        }
        Value::Object(_) => work.items.push(item(document, "", &mut flaws)),
        other => work.items = list(other, &mut flaws),
    }
    if flaws.is_empty() { Ok(work) } else { Err(BadWork::Flaws(flaws)) }
}

/// Reads one item.
pub fn read_item(document: &Value) -> Result<WorkItem, BadWork> {
    let mut flaws = Vec::new();
    let item = item(document, "", &mut flaws);
    if flaws.is_empty() { Ok(item) } else { Err(BadWork::Flaws(flaws)) }
}

fn list(value: &Value, flaws: &mut Vec<Flaw>) -> Vec<WorkItem> {
    match value {
        Value::Array(items) if !items.is_empty() && items.len() <= LIST_MAX => {
            items.iter().enumerate().map(|(at, value)| item(value, &format!("items[{at}]"), flaws)).collect()
        }
        other => {
            flaws.push(flaw("items", other, &format!("a list of 1 to {LIST_MAX} work items")));
            Vec::new()
        }
    }
}

fn item(value: &Value, at: &str, flaws: &mut Vec<Flaw>) -> WorkItem {
    let below = |field: &str| if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") };
    let mut part = Part::new(value, at, NOUN, flaws);
    let id = name(&mut part, "id");
    let agent_id = name(&mut part, "agent_id");
    let description = part.required("description");
    if description.len() > DESCRIPTION_BYTES_MAX || description.contains('\0') {
        part.bad(
            "description",
            &json!(description),
            &format!("text of at most {DESCRIPTION_BYTES_MAX} bytes without NUL"),
        );
    }
    let dependencies = part.texts("dependencies");
    let input_files = paths(&mut part, "input_files");
    let output_files = paths(&mut part, "output_files");
    let links = paths(&mut part, "links");
    let test_command = part.take("test_command").and_then(|value| command(&mut part, "test_command", &value));
    let publish = match part.text("publish").as_deref() {
        None | Some("workspace") => Publish::Workspace,
        Some("external") => Publish::External,
        Some(other) => {
            part.bad("publish", &json!(other), "workspace or external");
            Publish::Workspace
        }
    };
    let strict = part.switch("strict").unwrap_or(false);
    let view = match part.text("view").as_deref() {
        None | Some("frozen") => StageView::Frozen,
        Some("live") if strict => {
            part.bad("view", &json!("live"), "frozen, because the item is strict");
            StageView::Frozen
        }
        Some("live") => StageView::Live,
        Some(other) => {
            part.bad("view", &json!(other), "frozen or live");
            StageView::Frozen
        }
    };
    let [constraints, budget, validation] =
        ["constraints", "budget", "validation"].map(|field| part.take(field).unwrap_or(Value::Null));
    part.finish();
    WorkItem {
        id,
        agent_id,
        description,
        dependencies,
        constraints: read_constraints(&constraints, &below("constraints"), flaws),
        budget: read_budget(&budget, &below("budget"), flaws),
        input_files,
        output_files,
        links,
        validation: read_validation(&validation, &below("validation"), flaws),
        test_command,
        publish,
        strict,
        view,
    }
}

fn name(part: &mut Part<'_>, field: &str) -> String {
    let text = part.required(field);
    if !text.is_empty() && !is_id(&text) {
        part.bad(field, &json!(text), "lower-case letters, digits, dots, lines: at most 64, a letter or digit first");
    }
    text
}

/// Paths in the workspace. One that begins with a slash begins at the workspace.
fn paths(part: &mut Part<'_>, field: &str) -> Vec<String> {
    let mut found = Vec::new();
    for text in part.texts(field) {
        let path = text.trim_start_matches('/').trim_start_matches("./").to_owned();
        let is_inside = !path.is_empty() && path.split('/').all(|name| !["..", ".", ""].contains(&name));
        match is_inside && !path.contains('\0') {
            true => found.push(path),
            false => part.bad(field, &json!(text), "a path in the workspace"),
        }
    }
    found
}

/// A list of words, or a text that is split into words as a shell would, and never given to one.
fn command(part: &mut Part<'_>, field: &str, value: &Value) -> Option<Vec<String>> {
    let words = match value {
        Value::String(text) => shell_words::split(text).ok(),
        Value::Array(items) => items.iter().map(|item| item.as_str().map(ToOwned::to_owned)).collect(),
        _ => None,
    };
    let words = words.filter(|words| words.first().is_some_and(|first| !first.is_empty()));
    let words = words.filter(|words| !words.iter().any(|word| word.contains('\0')));
    if words.is_none() {
        part.bad(field, value, "a command: text, or a list of words");
    }
    words
}

fn read_constraints(value: &Value, at: &str, flaws: &mut Vec<Flaw>) -> Constraints {
    let mut part = Part::new(value, at, NOUN, flaws);
    let [max_files, max_tool_ops, max_delta_size, timeout_ms] = LIMITS.map(|(field, default, min, max)| {
        let Some(value) = part.take(field) else { return default };
        value.as_u64().filter(|n| (min..=max).contains(n)).unwrap_or_else(|| {
            part.bad(field, &value, &format!("a whole number from {min} to {max}"));
            default
        })
    });
    part.finish();
    Constraints { max_files, max_tool_ops, max_delta_size, timeout_ms }
}

fn read_budget(value: &Value, at: &str, flaws: &mut Vec<Flaw>) -> Budget {
    let mut part = Part::new(value, at, NOUN, flaws);
    let time_estimate_ms = part.take("time_estimate_ms").and_then(|value| {
        value.as_u64().filter(|n| *n <= crate::limit::INTEGER_SAFE_MAX).or_else(|| {
            part.bad("time_estimate_ms", &value, "a whole number of milliseconds");
            None
        })
    });
    let complexity = part.text("complexity").and_then(|word| match COMPLEXITIES.contains(&word.as_str()) {
        true => Some(word),
        false => {
            part.bad("complexity", &json!(word), "low, medium or high");
            None
        }
    });
    let spend = part.take("spend");
    part.finish();
    let spend = spend.map(|value| {
        let mut part = Part::new(&value, &format!("{at}.spend"), NOUN, flaws);
        let total = part.take("max_total").unwrap_or(Value::Null);
        let max_total = total.as_u64().filter(|n| *n <= crate::limit::INTEGER_SAFE_MAX).unwrap_or_else(|| {
            part.bad("max_total", &total, "a whole number in the smallest unit of the currency");
            0
        });
        let currency = part.text("currency").unwrap_or_else(|| "usd_micros".to_owned());
        if !is_currency(&currency) {
            part.bad("currency", &Value::from(currency.as_str()), CURRENCY_FORM);
        }
        part.finish();
        Spend { max_total, currency }
    });
    Budget { time_estimate_ms, complexity, spend }
}

fn read_validation(value: &Value, at: &str, flaws: &mut Vec<Flaw>) -> Validation {
    let mut part = Part::new(value, at, NOUN, flaws);
    let [light, heavy] = ["light", "heavy"].map(|field| match part.take(field) {
        None => Vec::new(),
        Some(Value::Array(items)) if items.len() <= LIST_MAX => {
            items.iter().filter_map(|item| command(&mut part, field, item)).collect()
        }
        Some(other) => {
            part.bad(field, &other, "a list of commands");
            Vec::new()
        }
    });
    part.finish();
    Validation { light, heavy }
}

/// JSON Schema of a work file.
pub fn schema() -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}, "maxItems": LIST_MAX});
    let command = json!({"anyOf": [
        {"type": "string", "description": "split into words, never given to a shell"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]});
    let id = json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"});
    let object = |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
    let constraints: Map<String, Value> = LIMITS
        .iter()
        .map(|(name, default, min, max)| {
            ((*name).to_owned(), json!({"type": "integer", "minimum": min, "maximum": max, "default": default}))
        })
        .collect();
    let mut item = object(json!({
        "id": id, "agent_id": id,
        "description": {"type": "string", "maxLength": DESCRIPTION_BYTES_MAX},
        "dependencies": texts,
        "constraints": object(Value::Object(constraints)),
        "budget": object(json!({
            "time_estimate_ms": {"type": "integer", "minimum": 0},
            "complexity": {"enum": COMPLEXITIES},
            "spend": object(json!({"max_total": {"type": "integer", "minimum": 0}, "currency": {"type": "string", "default": "usd_micros"}})),
        })),
        "input_files": texts, "output_files": texts, "links": texts,
        "validation": object(json!({
            "light": {"type": "array", "items": command}, "heavy": {"type": "array", "items": command},
        })),
        "test_command": command,
        "publish": {"enum": ["workspace", "external"], "default": "workspace"},
        "strict": {"type": "boolean", "default": false},
        "view": {"enum": ["frozen", "live"], "default": "frozen"},
    }));
    item["required"] = json!(["id", "agent_id", "description"]);
    let mut contract = schema::json_schema();
    contract.as_object_mut().map(|fields| fields.remove("$schema"));
    let mut file = object(json!({
        "workspace": {"type": "string", "default": "."},
        "contract": contract,
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": LIST_MAX},
    }));
    file["required"] = json!(["items"]);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "work file",
        "anyOf": [file, {"$ref": "#/$defs/item"}, {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1}],
        "$defs": {"item": item},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_own_example_is_a_work_file() {
        let example = json!({
            "id": "work-item-1", "agent_id": "agent-1", "description": "Implement KnowledgeStore contract",
            "dependencies": [],
            "constraints": {"max_files": 5, "max_tool_ops": 20, "max_delta_size": 50, "timeout_ms": 60000},
            "budget": {"time_estimate_ms": 30000, "complexity": "medium"},
            "output_files": ["/docs/contracts/KnowledgeStore.contract.md"],
            "test_command": "node validate-contract.mjs KnowledgeStore",
        });
        let work = read(&example).unwrap();
        let item = &work.items[0];
        assert_eq!(item.output_files, ["docs/contracts/KnowledgeStore.contract.md"]);
        assert_eq!(item.test_command.as_deref().unwrap(), ["node", "validate-contract.mjs", "KnowledgeStore"]);
        assert_eq!(read(&json!([example])).unwrap().items, work.items);
        let again: WorkItem = serde_json::from_value(serde_json::to_value(item).unwrap()).unwrap();
        assert_eq!(&again, item);
    }

    #[test]
    fn defaults_are_the_seeds() {
        let item = read_item(&json!({"id": "a", "agent_id": "b", "description": "c"})).unwrap();
        assert_eq!(item.constraints, Constraints::default());
    }

    #[test]
    fn every_flaw_is_found_with_its_place() {
        let bad = read(&json!({"items": [
            {"id": "A", "agent_id": "", "description": 7, "constraints": {"max_files": -1, "timeout_ms": 0, "max_file": 1},
             "output_files": ["../x", ""], "test_command": "echo 'open", "budget": {"complexity": "huge"},
             "validation": {"light": [[]], "heavy": "make"}, "publish": "nowhere", "dependancies": []},
        ]}));
        let BadWork::Flaws(flaws) = bad.unwrap_err() else { panic!("contract") };
        let fields: Vec<&str> = flaws.iter().map(|flaw| flaw.field.as_str()).collect();
        let text = flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for field in [
            "items[0].id",
            "items[0].description",
            "items[0].constraints.max_files",
            "items[0].constraints.timeout_ms",
            "items[0].constraints.max_file",
            "items[0].output_files",
            "items[0].test_command",
            "items[0].budget.complexity",
            "items[0].validation.light",
            "items[0].validation.heavy",
            "items[0].publish",
            "items[0].dependancies",
        ] {
            assert!(fields.contains(&field), "{field} is missing in\n{text}");
        }
        assert!(text.contains("dependancies is no field of a work item; did you mean dependencies?"), "{text}");
        assert!(matches!(read(&json!({"items": [], "contract": {"profile": "x"}})).unwrap_err(), BadWork::Contract(_)));
    }

    #[test]
    fn a_command_is_words_and_never_a_shell() {
        let words = |value: Value| {
            read_item(&json!({"id": "a", "agent_id": "b", "description": "c", "test_command": value}))
                .map(|item| item.test_command.unwrap())
        };
        assert_eq!(words(json!("a 'b c' \"d\" e\\ f; g")).unwrap(), ["a", "b c", "d", "e f;", "g"]);
        assert_eq!(words(json!(["a", "b c"])).unwrap(), ["a", "b c"]);
        assert_eq!(words(json!(["sh", "-c", "a && b"])).unwrap(), ["sh", "-c", "a && b"]);
        assert!(words(json!("")).is_err() && words(json!([])).is_err() && words(json!(["", "x"])).is_err());
    }
}
