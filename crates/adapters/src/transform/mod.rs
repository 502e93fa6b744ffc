//! Input and output transforms: parameters on their way in, what came out on its way back. Pure; a transform that fails
//! says where.

mod path;
mod template;

use actum_contract::tool::{Adapter, Transform, TransformKind};
use serde_json::{Map, Value};

use crate::result::{Problem, Stage};

/// Errors of one validation that are told.
const ERRORS_SHOWN_MAX: usize = 20;

/// Letters of one error that are told.
const ERROR_CHARS_MAX: usize = 300;

/// Matches of one expression.
const MATCHES_MAX: usize = 100_000;

/// Bytes that the names of a table's columns may take in all its rows.
const CSV_NAMES_BYTES_MAX: usize = 64 << 20;

/// Bytes an expression may take when it is compiled.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// The parameters as the adapter wants them. `schema`: of the tool's operation, for `validate: json_schema`.
pub fn input(
    transforms: &[Transform],
    schema: Option<&Value>,
    params: Map<String, Value>,
) -> Result<Map<String, Value>, Problem> {
    transforms.iter().try_fold(params, |params, transform| match transform.kind {
        TransformKind::Rename => rename(&transform.spec, params),
        TransformKind::Map => map(&transform.spec, params),
        TransformKind::Default => Ok(default(&transform.spec, params)),
        TransformKind::Validate => validate(&transform.spec, schema, params),
        kind => Err(misplaced(Stage::Input, kind)),
    })
}

/// What came out as the caller wants it.
pub fn output(transforms: &[Transform], value: Value) -> Result<Value, Problem> {
    transforms.iter().try_fold(value, |value, transform| match transform.kind {
        TransformKind::Parse => parse(&transform.spec, value),
        TransformKind::Extract => extract(&transform.spec, &value),
        TransformKind::Format => format(&transform.spec, &value),
        kind => Err(misplaced(Stage::Output, kind)),
    })
}

/// Everything that is wrong with an adapter's schemas, paths, templates and expressions; its `path` is the field.
pub fn check(adapter: &Adapter) -> Vec<Problem> {
    let sides = [(Stage::Input, "input", &adapter.input), (Stage::Output, "output", &adapter.output)];
    let mut found = Vec::new();
    for (stage, side, transforms) in sides {
        for (at, transform) in transforms.iter().enumerate() {
            let field = format!("transforms.{side}[{at}].spec");
            found.extend(check_one(transform).into_iter().map(|(inner, message)| {
                let field = inner.map_or_else(|| field.clone(), |inner| format!("{field}.{inner}"));
                Problem::at(stage, field, message)
            }));
        }
    }
    found
}

/// Whether a text is a JSON Schema that stands for itself: one that refers to something elsewhere is refused.
pub fn check_schema(schema: &Value) -> Result<(), Problem> {
    compiled(schema).map(drop).map_err(|message| Problem::new(Stage::Input, message))
}

fn check_one(transform: &Transform) -> Vec<(Option<String>, String)> {
    let one = |wrong: Option<String>| wrong.map(|message| (None, message)).into_iter().collect();
    match (transform.kind, &transform.spec) {
        (TransformKind::Validate, schema @ Value::Object(_)) => one(compiled(schema).err()),
        (TransformKind::Map, Value::Object(fields)) => fields
            .iter()
            .filter_map(|(name, spec)| Some((Some(name.clone()), template::check(spec.as_str()?)?)))
            .collect(),
        (TransformKind::Parse, Value::Object(fields)) => {
            let pattern = fields.get("regex").and_then(Value::as_str).unwrap_or_default();
            one(expression(pattern).err())
        }
        (TransformKind::Extract, Value::String(path)) => one(path::Path::parse(path).err()),
        (TransformKind::Format, Value::String(source)) => one(template::check(source)),
        _ => Vec::new(),
    }
}

fn misplaced(stage: Stage, kind: TransformKind) -> Problem {
    let other = if stage == Stage::Input { "output" } else { "input" };
    Problem::new(stage, format!("{} stands in the wrong list: it is an {other} transform", kind.word()))
}

/// All at once, so that names can be exchanged; two values for one name are an error.
fn rename(spec: &Value, mut params: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let names = spec.as_object().into_iter().flatten();
    let taken: Vec<(&String, &str, Value)> = names
        .filter_map(|(old, new)| new.as_str().map(|new| (old, new)))
        .filter_map(|(old, new)| params.remove(old).map(|value| (old, new, value)))
        .collect();
    for (old, new, value) in taken {
        if params.contains_key(new) {
            let message = format!("parameter {new} is given twice: {old} is renamed to it; give one of them");
            return Err(Problem::at(Stage::Input, old, message));
        }
        params.insert(new.to_owned(), value);
    }
    Ok(params)
}

/// Values by table or by template. What is missing or null stays so; what no table names stays as it is.
fn map(spec: &Value, mut params: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let given = Value::Object(params.clone());
    for (name, spec) in spec.as_object().into_iter().flatten() {
        let Some(value) = params.get_mut(name).filter(|value| !value.is_null()) else { continue };
        match spec {
            Value::Object(table) => {
                let key = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
                if let Some(replacement) = table.get(&key).or_else(|| table.get("*")) {
                    *value = replacement.clone();
                }
            }
            Value::String(source) => {
                let names = [("value", &given[name]), ("params", &given)];
                let text = template::render(source, &names)
                    .map_err(|e| Problem::at(Stage::Input, name, format!("the template of parameter {name}: {e}")))?;
                *value = Value::String(text);
            }
            other => {
                let message = format!("map of {name} is {other}, expected an object of values, or a template");
                return Err(Problem::at(Stage::Input, name, message));
            }
        }
    }
    Ok(params)
}

fn default(spec: &Value, mut params: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in spec.as_object().into_iter().flatten() {
        if params.get(name).is_none_or(Value::is_null) {
            params.insert(name.clone(), value.clone());
        }
    }
    params
}

fn validate(spec: &Value, schema: Option<&Value>, params: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let schema = match (spec, schema) {
        (Value::String(_), Some(of_tool)) => of_tool,
        // Nobody has written down what is right, so nothing is wrong.
        (Value::String(_), None) => return Ok(params),
        (own, _) => own,
    };
    let validator = compiled(schema).map_err(|e| Problem::new(Stage::Input, e))?;
    let instance = Value::Object(params);
    let mut errors = validator.iter_errors(&instance);
    let mut path = None;
    let mut told = Vec::new();
    for error in errors.by_ref().take(ERRORS_SHOWN_MAX) {
        let mut at = error.instance_path().to_string();
        if let jsonschema::error::ValidationErrorKind::Required { property } = error.kind() {
            at = format!("{at}/{}", property.as_str().unwrap_or_default());
        }
        let text: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
        told.push(if at.is_empty() { text } else { format!("{at}: {text}") });
        path.get_or_insert(at);
    }
    let more = errors.count();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    if told.is_empty() {
        return match instance {
            Value::Object(params) => Ok(params),
            _ => Ok(Map::new()),
        };
    }
    let message = format!("the parameters do not fit their schema: {}", told.join("; "));
    Err(Problem { stage: Stage::Input, path: path.filter(|path| !path.is_empty()), message })
}

/// Never fetches anything: what a schema refers to has to stand in it.
fn compiled(schema: &Value) -> Result<jsonschema::Validator, String> {
    let found = jsonschema::options().offline().build(schema);
    found.map_err(|e| {
        let at = e.instance_path().to_string();
        let text: String = e.to_string().chars().take(ERROR_CHARS_MAX).collect();
        let place = if at.is_empty() { String::new() } else { format!(" at {at}") };
        format!("no usable JSON Schema{place}: {text}; what it refers to has to stand in it")
    })
}

fn expression(pattern: &str) -> Result<regex::Regex, String> {
    let found = regex::RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
    found.map_err(|e| format!("no usable regular expression: {e}"))
}

fn parse(spec: &Value, value: Value) -> Result<Value, Problem> {
    let word = spec.as_str().unwrap_or("regex");
    let text = match value {
        Value::String(text) => text,
        // Services answer with JSON that was read already.
        other if word == "json" => return Ok(other),
        other => {
            let kind = kind_of(&other);
            let message = format!("parse {word} reads text, and what came out is {kind}; use extract or format");
            return Err(Problem::new(Stage::Output, message));
        }
    };
    match word {
        "text" => Ok(Value::String(text)),
        "json" => serde_json::from_str(&text).map_err(|e| {
            let place = format!("line {} column {}", e.line(), e.column());
            Problem::at(Stage::Output, place, format!("the output is no JSON: {e}"))
        }),
        "json_lines" => json_lines(&text),
        "csv" => csv(&text),
        _ => matches(spec, &text),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn json_lines(text: &str) -> Result<Value, Problem> {
    let lines = text.split('\n').enumerate().filter(|(_, line)| !line.trim().is_empty());
    let values = lines.map(|(at, line)| {
        serde_json::from_str(line).map_err(|e| {
            let message = format!("line {} of the output is no JSON: {e}", at + 1);
            Problem::at(Stage::Output, format!("line {}", at + 1), message)
        })
    });
    values.collect::<Result<Vec<Value>, Problem>>().map(Value::Array)
}

/// A list of objects by the names in the first row.
fn csv(text: &str) -> Result<Value, Problem> {
    let bad = |line: Option<u64>, message: String| Problem {
        stage: Stage::Output,
        path: line.map(|line| format!("line {line}")),
        message: format!("the output is no table: {message}"),
    };
    let broken = |e: csv::Error| bad(e.position().map(csv::Position::line), e.to_string());
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().map_err(broken)?.clone();
    for (at, name) in names.iter().enumerate() {
        if names.iter().take(at).any(|other| other == name) {
            return Err(bad(Some(1), format!("column {name:?} is there twice")));
        }
    }
    let mut rows = Vec::new();
    for row in reader.records() {
        let row = row.map_err(broken)?;
        if (rows.len() + 1).saturating_mul(names.as_slice().len()) > CSV_NAMES_BYTES_MAX {
            let message = format!("its names would take more than {CSV_NAMES_BYTES_MAX} bytes");
            return Err(bad(row.position().map(csv::Position::line), message));
        }
        let pairs = names.iter().zip(row.iter()).map(|(name, cell)| (name.to_owned(), Value::from(cell)));
        rows.push(Value::Object(pairs.collect()));
    }
    Ok(Value::Array(rows))
}

/// An object of the named groups for each match; without names the matches themselves.
fn matches(spec: &Value, text: &str) -> Result<Value, Problem> {
    let pattern = spec.get("regex").and_then(Value::as_str).unwrap_or_default();
    let bad = |message: String| Problem::at(Stage::Output, pattern, message);
    let expression = expression(pattern).map_err(bad)?;
    let names: Vec<&str> = expression.capture_names().flatten().collect();
    let mut found = Vec::new();
    for groups in expression.captures_iter(text) {
        if found.len() == MATCHES_MAX {
            return Err(bad(format!("the expression matches more than {MATCHES_MAX} times; make it narrower")));
        }
        let all = groups.get(0).map_or("", |all| all.as_str());
        found.push(match names.is_empty() {
            true => Value::from(all),
            false => Value::Object(
                names
                    .iter()
                    .map(|name| ((*name).to_owned(), groups.name(name).map_or(Value::Null, |m| m.as_str().into())))
                    .collect(),
            ),
        });
    }
    Ok(Value::Array(found))
}

fn extract(spec: &Value, value: &Value) -> Result<Value, Problem> {
    let source = spec.as_str().unwrap_or_default();
    let path = path::Path::parse(source).map_err(|e| Problem::at(Stage::Output, source, e))?;
    let found = path.find(value).map_err(|e| Problem::at(Stage::Output, source, format!("{source}: {e}")))?;
    found.ok_or_else(|| {
        let message = format!("nothing in the output is at {source}; what came out is {}", kind_of(value));
        Problem::at(Stage::Output, source, message)
    })
}

/// The template, with the whole as `value` and its fields by their names.
fn format(spec: &Value, value: &Value) -> Result<Value, Problem> {
    let fields = value.as_object().into_iter().flatten().map(|(name, field)| (name.as_str(), field));
    let names: Vec<(&str, &Value)> = fields.chain([("value", value)]).collect();
    let text = template::render(spec.as_str().unwrap_or_default(), &names)
        .map_err(|e| Problem::new(Stage::Output, format!("the output does not fit its template: {e}")))?;
    Ok(Value::String(text))
}

#[cfg(test)]
mod tests;
