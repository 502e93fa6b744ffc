//! From the words that somebody typed to a request: the opposite of `words`. Which route stands for them, and what of them goes
//! into its path, its query and its content; files are read here. Called by `client`; it sends nothing.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::Path;

use actum_api::client::encode;
use actum_api::error;
use actum_api::route::Place;
use actum_contract::canon;
use actum_server::api::BODY_BYTES_MAX;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use serde_json::{Map, Number, Value, json};

use super::openapi::LINES_IN;
use super::shape::{ACTOR, Form, Kind, Shape, forms};
use super::{JSON, JSON_LINES};
use crate::document::Document;
use crate::failure::Failure;
use crate::ui::{RAW, stdin_is_terminal};

const YAML: &str = "application/yaml";

/// The argument by which a command goes on with what comes later. It is not sent: whoever follows asks again, or listens.
const FOLLOW: &str = "follow";

/// The word by which a command only submits. Whoever does not say it waits until what he submitted is over.
const DETACH: &str = "detach";

/// What is to be sent.
#[derive(Debug)]
pub(super) struct Request {
    pub form: &'static Form,
    /// Each value as it was typed, by its name.
    pub path: Vec<(&'static str, String)>,
    pub query: Vec<(&'static str, String)>,
    /// With its type.
    pub content: Option<(&'static str, Vec<u8>)>,
    /// Whether it is to go on with what comes later.
    pub follows: bool,
    /// Whether the answer reaches a terminal unmarked.
    pub is_raw: bool,
    /// Whether what it submits is waited for.
    pub waits: bool,
}

impl Request {
    /// Path and query as they are sent.
    pub(super) fn target(&self) -> String {
        let segments = self.form.route.path.split('/').map(|segment| {
            let value = self.path.iter().find(|(name, _)| segment == format!("{{{name}}}"));
            value.map_or_else(|| segment.to_owned(), |(_, value)| encode(value))
        });
        let path = segments.collect::<Vec<_>>().join("/");
        let pairs: Vec<_> = self.query.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        if pairs.is_empty() { path } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// The names of the command that was typed, and what stands behind them.
pub(super) fn leaf(matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let (mut names, mut at) = (Vec::new(), matches);
    while let Some((name, below)) = at.subcommand() {
        names.push(name);
        at = below;
    }
    (names, at)
}

/// The request that stands for a command.
pub(super) fn of(matches: &ArgMatches) -> Result<Request, Failure> {
    let (names, typed) = leaf(matches);
    let own: Vec<&Form> = forms().iter().filter(|form| form.route.command == names).collect();
    if own.is_empty() {
        let failure = Failure::new(error::USAGE, format!("`actum {}` does not work over a server", names.join(" ")));
        return Err(failure.hint(match names.as_slice() {
            ["workspace", "checkout"] => "`actum workspace archive NAME | tar x -C FOLDER` has the files here",
            _ => HERE,
        }));
    }
    // The one in whose way least stands; of those that fit, the first.
    let hindered = own.iter().map(|form| (*form, hindrances(form, typed)));
    let Some((form, missing)) = hindered.min_by_key(|(_, missing)| missing.len()) else {
        return Err(Failure::new(error::INTERNAL, "a command without a route"));
    };
    match missing.first() {
        None => fill(form, typed),
        Some(why) => {
            let message = format!("`actum {}` does not work like this over a server: {why}", names.join(" "));
            let failure = Failure::new(error::USAGE, message).details(json!({"reasons": missing}));
            Err(failure.hint(HERE))
        }
    }
}

/// What to do about it.
const HERE: &str =
    "leave out --server and ACTUM_SERVER to do it here; `/docs` of the server shows what can be asked of it";

/// Whether somebody typed it, and it is not only a default.
fn is_typed(typed: &ArgMatches, arg: &Arg) -> bool {
    typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// As it is typed: `--set`, or the name of its place.
fn shown(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.to_string(), |long| format!("--{long}"))
}

fn is_fixed(form: &Form, arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| form.route.fixed.iter().any(|word| word.strip_prefix("--") == Some(long)))
}

/// Why a route does not stand for what was typed: all reasons.
fn hindrances(form: &Form, typed: &ArgMatches) -> Vec<String> {
    let mut found = Vec::new();
    for arg in form.leaf.get_arguments().filter(|arg| !arg.is_global_set()) {
        let shape = form.shapes.iter().find(|shape| arg.get_id() == shape.name);
        let given = is_typed(typed, arg);
        let name = shown(arg);
        match shape {
            _ if is_fixed(form, arg) && given => {}
            _ if is_fixed(form, arg) && arg.get_id() == DETACH => {}
            _ if is_fixed(form, arg) => found.push(format!("{name} has to be given")),
            None if arg.get_id() == FOLLOW || arg.get_id() == RAW => {}
            None if given && arg.get_id() == ACTOR => {
                found.push(format!("{name} cannot be given: who acts is whose token it is"));
            }
            None if given => found.push(format!("{name} cannot be given")),
            Some(Shape { place: Place::Path | Place::Content, .. }) if raw(typed, arg).is_empty() => {
                found.push(format!("{name} has to be given"));
            }
            Some(Shape { place: Place::Path | Place::Content | Place::File, .. }) if raw(typed, arg).len() > 1 => {
                found.push(format!("of {name} there can be one at a time"));
            }
            _ => {}
        }
    }
    found
}

/// What was given for an argument, or is by default.
fn raw<'a>(typed: &'a ArgMatches, arg: &Arg) -> Vec<&'a OsStr> {
    typed.get_raw(arg.get_id().as_str()).map(Iterator::collect).unwrap_or_default()
}

fn fill(form: &'static Form, typed: &ArgMatches) -> Result<Request, Failure> {
    let mut request = Request {
        form,
        path: Vec::new(),
        query: Vec::new(),
        content: None,
        follows: false,
        is_raw: false,
        waits: false,
    };
    let detached = typed.try_get_one::<bool>(DETACH).ok().flatten();
    request.waits = form.route.fixed.contains(&"--detach") && detached != Some(&true);
    request.follows = typed.try_get_one::<bool>(FOLLOW).ok().flatten() == Some(&true);
    request.is_raw = typed.try_get_one::<bool>(RAW).ok().flatten() == Some(&true);
    let mut fields = Map::new();
    for shape in &form.shapes {
        let values = raw(typed, &shape.arg);
        if !is_typed(typed, &shape.arg) && shape.place != Place::Content {
            continue;
        }
        match shape.place {
            Place::Content => {
                let Some(path) = values.first() else { continue };
                request.content = Some(content(form, Path::new(path))?);
            }
            Place::File => {
                let Some(path) = values.first() else { continue };
                fields.insert(shape.name.to_owned(), document(Path::new(path))?);
            }
            Place::Path | Place::Query | Place::Field => {
                let texts = values.iter().map(|value| text(shape, value)).collect::<Result<Vec<_>, _>>()?;
                place(shape, texts, &mut request, &mut fields)?;
            }
        }
    }
    let has_fields = form.shapes.iter().any(|shape| matches!(shape.place, Place::Field | Place::File));
    if has_fields && request.content.is_none() {
        request.content = Some((JSON, Value::Object(fields).to_string().into_bytes()));
    }
    Ok(request)
}

fn text<'a>(shape: &Shape, value: &'a OsStr) -> Result<&'a str, Failure> {
    let bad = || Failure::new(error::USAGE, format!("{} is not UTF-8", shown(&shape.arg)));
    value.to_str().ok_or_else(bad)
}

fn place(
    shape: &Shape,
    texts: Vec<&str>,
    request: &mut Request,
    fields: &mut Map<String, Value>,
) -> Result<(), Failure> {
    match shape.place {
        Place::Path => {
            let value = texts.first().copied().unwrap_or_default();
            // These would be read as another path.
            if matches!(value, "" | "." | "..") {
                let message = format!("{} cannot be {value:?}", shown(&shape.arg));
                return Err(Failure::new(error::USAGE, message));
            }
            request.path.push((shape.name, value.to_owned()));
        }
        Place::Query => {
            let is_switch = shape.kind == Kind::Switch;
            let said = texts.iter().map(|text| if is_switch { "true" } else { text });
            request.query.extend(said.map(|text| (shape.name, text.to_owned())));
        }
        Place::Field if shape.kind == Kind::Switch => drop(fields.insert(shape.name.to_owned(), Value::Bool(true))),
        _ => {
            let mut values = texts.into_iter().map(|text| value(shape, text)).collect::<Result<Vec<_>, _>>()?;
            let value = if shape.many { Value::Array(values) } else { values.pop().unwrap_or_default() };
            fields.insert(shape.name.to_owned(), value);
        }
    }
    Ok(())
}

/// A word as a field of JSON.
fn value(shape: &Shape, text: &str) -> Result<Value, Failure> {
    let bad = |what: &str| Failure::new(error::INPUT, format!("{} {text:?} cannot be sent: {what}", shown(&shape.arg)));
    let number = match shape.kind {
        Kind::Whole { signed: false } => text.parse::<u64>().ok().map(Number::from),
        Kind::Whole { signed: true } => text.parse::<i64>().ok().map(Number::from),
        Kind::Number => text.parse().ok().and_then(Number::from_f64),
        Kind::Json => return canon::parse(text.as_bytes()).map_err(|e| bad(&format!("it is no JSON: {}", e.message))),
        Kind::WordOrJson if text.trim_start().starts_with('{') => {
            return canon::parse(text.as_bytes()).map_err(|e| bad(&format!("it is no JSON: {}", e.message)));
        }
        _ => return Ok(Value::String(text.to_owned())),
    };
    number.map(Value::Number).ok_or_else(|| bad("it is no number"))
}

/// A file that is the content, with its type.
fn content(form: &Form, path: &Path) -> Result<(&'static str, Vec<u8>), Failure> {
    let document = read(path)?;
    // Documents one after the other are read one by one, and what is wrong with one is told of that one.
    if LINES_IN.contains(&form.route.command) {
        return Ok((JSON_LINES, document.text));
    }
    Ok(match ending(path) {
        "yaml" | "yml" => (YAML, document.text),
        "toml" => (JSON, document.value()?.to_string().into_bytes()),
        "json" => {
            document.json()?;
            (JSON, document.text)
        }
        // What has no ending tells by itself what it is.
        _ => (if canon::parse(&document.text).is_ok() { JSON } else { YAML }, document.text),
    })
}

/// A file that is a field of the content: text, or the JSON in it.
fn document(path: &Path) -> Result<Value, Failure> {
    let document = read(path)?;
    let name = document.name.clone();
    let as_text = |text: Vec<u8>| {
        let text = String::from_utf8(text).map(Value::String);
        text.map_err(|_| Failure::new(error::INPUT, format!("{name} is not UTF-8")))
    };
    let found = match ending(path) {
        "json" => Some(document.json()?),
        "toml" => Some(document.value()?),
        "yaml" | "yml" | "jsonl" => None,
        _ => canon::parse(&document.text).ok(),
    };
    match found {
        // Text is what a file without JSON would be.
        None | Some(Value::String(_)) => as_text(document.text),
        Some(value) => Ok(value),
    }
}

fn ending(path: &Path) -> &str {
    path.extension().and_then(OsStr::to_str).unwrap_or_default()
}

fn read(path: &Path) -> Result<Document, Failure> {
    let is_stdin = path.as_os_str() == "-";
    if is_stdin && stdin_is_terminal() {
        return Err(Failure::new(error::USAGE, "there is nothing to send: name a file or pipe it in"));
    }
    let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
    let bytes_max = BODY_BYTES_MAX as u64 + 1;
    let mut text = Vec::new();
    let read = match is_stdin {
        true => std::io::stdin().lock().take(bytes_max).read_to_end(&mut text),
        false => std::fs::File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut text)),
    };
    read.map_err(|e| Failure::of_io(format!("cannot read {name}: {e}"), &e))?;
    if text.len() > BODY_BYTES_MAX {
        let message = format!("{name} is larger than {BODY_BYTES_MAX} bytes, which is all that a server takes at once");
        return Err(Failure::new(error::FILE, message).hint("make several files of it"));
    }
    if text.is_empty() {
        return Err(Failure::new(error::FILE, format!("{name} is empty")));
    }
    Ok(Document { name, text })
}

#[cfg(test)]
mod tests;
