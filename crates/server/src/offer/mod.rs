//! The commands as MCP tools: submit work, follow it, look at what came out, publish it or take it back; and the registered
//! tools, found step by step instead of listed all at once.
//!
//! Served on stdin and stdout for `cli`, and by `api` at `/mcp`. Each tool is a row of `rows` and stands for a route: what
//! it does and who may use it is decided where the route is answered, never here.

mod resource;
mod rows;
mod speak;
mod stdio;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use actum_api::error;
use actum_api::route::{Need, Place, Route};
use serde_json::{Map, Value, json};
use tokio::sync::watch as flag;

use crate::api::share::{Shares, Whose};
use crate::api::{Answer, Given};
use crate::api::{answer::Reply, turn};
use crate::bridge::Refused;
use crate::fields::bad;
use crate::mcp::UnderWay;
use crate::turns;
use rows::Row;

pub(crate) use speak::Speaker;
pub use stdio::{Stop, serve_commands};

/// An answer that goes to a model; more is refused, or cut where it is text.
const RESULT_BYTES_MAX: usize = 1 << 20;
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Words that tools are looked for by.
const WORDS_MAX: usize = 16;

/// Answers for one caller, who is known. `answer` and `holds` block.
pub trait Commands: Send + Sync + 'static {
    fn may(&self, need: Need) -> bool;
    fn answer(&self, route: &'static Route, given: Given) -> Answer;
    /// Whether the caller may still enter; asked while he waits for something.
    fn holds(&self) -> bool {
        true
    }
}

/// What all callers share: threads to be answered on, and places to wait in.
pub(crate) struct Shared {
    pub looks: Arc<turn::Turns>,
    pub works: Arc<turn::Turns>,
    pub waits: Shares,
    pub under_way: Arc<UnderWay>,
    pub is_ending: flag::Receiver<bool>,
}

impl Shared {
    pub(crate) fn new(looks: Arc<turn::Turns>, works: Arc<turn::Turns>, is_ending: flag::Receiver<bool>) -> Self {
        let waits = Shares::with(watch::WAITS_MAX, watch::TENANT_WAITS_MAX, watch::TOKEN_WAITS_MAX);
        Self { looks, works, waits, under_way: Arc::default(), is_ending }
    }
}

/// One caller, and what answers for him.
#[derive(Clone)]
pub(crate) struct Host {
    pub commands: Arc<dyn Commands>,
    /// The registered tools within a session of their own; without it each call is a request like any other.
    pub tools: Option<Arc<turns::Turns>>,
    pub shared: Arc<Shared>,
    /// Tells requests of one caller from those of others.
    pub whose: Whose,
    pub request_id: String,
    /// How much was said to ask; nothing where it does not count.
    pub asked_bytes: usize,
}

impl Host {
    fn is_ending(&self) -> bool {
        *self.shared.is_ending.borrow()
    }

    async fn ending(&self) {
        let mut is_ending = self.shared.is_ending.clone();
        // Whoever could have told is gone, so nothing ends before the connection does.
        if is_ending.wait_for(|is_ending| *is_ending).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// A look, on a thread.
    async fn look(&self, route: &'static Route, given: Given) -> Result<Answer, Refused> {
        let commands = Arc::clone(&self.commands);
        let answered = self.shared.looks.work(move || match commands.holds() {
            true => Ok(commands.answer(route, given)),
            false => Err(crate::api::door::unknown()),
        });
        answered.await.map_err(|reply| refused(&reply))?
    }

    async fn work(&self, route: &'static Route, given: Given) -> Result<Answer, Refused> {
        let commands = Arc::clone(&self.commands);
        let answered = self.shared.works.work_for(&self.whose, move || commands.answer(route, given)).await;
        answered.map_err(|reply| refused(&reply))
    }

    async fn ask(&self, route: &'static Route, given: Given) -> Result<Answer, Refused> {
        match route.need {
            Need::Read => self.look(route, given).await,
            _ => self.work(route, given).await,
        }
    }

    /// The answer to one call, as JSON, and whether the command ended well.
    async fn answer(&self, row: &'static Row, arguments: Map<String, Value>) -> Result<(Value, bool), Refused> {
        check(row, &arguments)?;
        let is_other = row.other.is_some() && row.route.path_names().any(|name| text_in(&arguments, name).is_none());
        let route = row.other.filter(|_| is_other).unwrap_or(row.route);
        let answer = self.ask(route, self.given(row, route, &arguments)?).await?;
        let answer = match (answer.status, row.other) {
            (404, Some(other)) if !is_other && other.path_names().count() > 0 => {
                self.ask(other, self.given(row, other, &arguments)?).await?
            }
            _ => answer,
        };
        let is_well = answer.exit == 0;
        match row.text {
            Some(member) if answer.status < 400 => Ok((text_of(member, &answer.body), is_well)),
            _ => value_of(answer).map(|value| (value, is_well)),
        }
    }

    /// What a request for the route would have brought.
    fn given(&self, row: &Row, route: &Route, arguments: &Map<String, Value>) -> Result<Given, Refused> {
        let mut given =
            Given { wants_text: row.text.is_some(), request_id: self.request_id.clone(), ..Given::default() };
        let mut fields = Map::new();
        for (name, value) in arguments.iter().filter(|(_, value)| !is_nothing(value)) {
            if row.content == Some(name.as_str()) {
                given.content = document(value)?;
                given.is_json = true;
                continue;
            }
            // In the table of routes these have the names of the command line.
            let name = if row.name == rows::CALL_TOOL { name.trim_end_matches("_id") } else { name };
            match route.args.iter().find(|arg| arg.name == name).map(|arg| arg.place) {
                Some(Place::Path) => {
                    let text = value.as_str().ok_or_else(|| bad(&format!("`{name}` must be a string")))?;
                    given.path.insert(name.to_owned(), text.to_owned());
                }
                Some(Place::Query) => given.query.extend(words_of(value).map(|word| (name.to_owned(), word))),
                Some(Place::Field | Place::File) => drop(fields.insert(name.to_owned(), value.clone())),
                Some(Place::Content) | None => {}
            }
        }
        if row.name == rows::DESCRIBE_TOOL && !arguments.contains_key("level") {
            given.query.push(("level".to_owned(), "L2".to_owned()));
        }
        if given.content.is_empty() && !fields.is_empty() {
            given.content = Value::Object(fields).to_string().into_bytes();
            given.is_json = true;
        }
        Ok(given)
    }

    /// The registered tools that fit; `all` is what the registry lists.
    fn found(mut all: Value, arguments: &Map<String, Value>) -> Result<Value, Refused> {
        let shown = match arguments.get("limit") {
            None | Some(Value::Null) => rows::TOOLS_SHOWN,
            Some(limit) => {
                let wrong = || bad(&format!("`limit` must be a whole number from 1 to {}", rows::TOOLS_SHOWN_MAX));
                let limit = limit
                    .as_u64()
                    .or_else(|| limit.as_str()?.parse().ok())
                    .and_then(|limit| usize::try_from(limit).ok());
                limit.filter(|limit| (1..=rows::TOOLS_SHOWN_MAX).contains(limit)).ok_or_else(wrong)?
            }
        };
        let query = text_in(arguments, "query").unwrap_or_default().to_lowercase();
        let words: Vec<&str> = query.split_whitespace().take(WORDS_MAX).collect();
        let tool = text_in(arguments, "tool_id");
        let Some(adapters) = all["adapters"].as_array_mut() else { return Ok(all) };
        adapters.retain(|adapter| {
            let said = adapter.to_string().to_lowercase();
            words.iter().all(|word| said.contains(word)) && tool.is_none_or(|tool| adapter["tool_id"] == tool)
        });
        let found = adapters.len();
        adapters.truncate(shown);
        all["found"] = json!(found);
        if found > shown {
            all["hint"] = json!("there are more: narrow the query, or raise limit");
        }
        Ok(all)
    }
}

/// As good as left out: models fill in every argument they are shown.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

fn text_in<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    arguments.get(name)?.as_str().filter(|text| !text.is_empty())
}

fn check(row: &Row, arguments: &Map<String, Value>) -> Result<(), Refused> {
    if let Some(name) = arguments.keys().find(|name| !row.knows(name)) {
        return Err(bad(&format!("`{name}` is not known here")));
    }
    for (name, value) in arguments.iter().filter(|(_, value)| !is_nothing(value)) {
        let kinds = row.kinds(name);
        if !kinds.is_empty() && !kinds.iter().any(|kind| is_of(kind, value)) {
            return Err(bad(&format!("`{name}` must be of the type {}", kinds.join(" or "))));
        }
    }
    let is_missing = |name: &&&str| arguments.get(**name).is_none_or(is_nothing);
    match row.required().iter().find(is_missing) {
        Some(name) => Err(bad(&format!("`{name}` is missing"))),
        None => Ok(()),
    }
}

/// Whether a value is of a type, or is a text that says such a value: some models write everything as text.
fn is_of(kind: &str, value: &Value) -> bool {
    let text = value.as_str();
    match kind {
        "string" => text.is_some(),
        "integer" => value.is_u64() || text.is_some_and(|text| text.parse::<u64>().is_ok()),
        "boolean" => value.is_boolean() || matches!(text, Some("true" | "false")),
        "array" => value.is_array() || text.is_some_and(|text| text.trim_start().starts_with('[')),
        "object" => value.is_object() || text.is_some_and(|text| text.trim_start().starts_with('{')),
        _ => false,
    }
}

/// A document, also if it was written as text.
fn document(value: &Value) -> Result<Vec<u8>, Refused> {
    let Some(text) = value.as_str() else { return Ok(value.to_string().into_bytes()) };
    let read = serde_json::from_str::<Value>(text);
    let value = read.map_err(|e| bad(&format!("the work items are text, and the text is no JSON: {e}")))?;
    Ok(value.to_string().into_bytes())
}

fn words_of(value: &Value) -> impl Iterator<Item = String> {
    let values = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
    values.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Text that is to be read, as much of it as goes into an answer.
fn text_of(member: &str, body: &[u8]) -> Value {
    let said = String::from_utf8_lossy(&body[..body.len().min(TEXT_BYTES_MAX)]);
    json!({ member: said, "is_cut": body.len() > TEXT_BYTES_MAX })
}

/// What a command answered, or its refusal.
fn value_of(answer: Answer) -> Result<Value, Refused> {
    if answer.status < 400 && answer.body.len() > RESULT_BYTES_MAX {
        let message = format!("the answer is larger than {RESULT_BYTES_MAX} bytes");
        return Err(Refused::named(error::USAGE, &message, &Value::Null, Some("Ask for less of it.")));
    }
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|_| text_of("text", &answer.body));
    match answer.status < 400 {
        true => Ok(value),
        false => Err(Refused { status: answer.status, body: value }),
    }
}

fn refused(reply: &Reply) -> Refused {
    let body = serde_json::from_slice(&reply.body).unwrap_or_default();
    Refused { status: reply.status, body }
}
