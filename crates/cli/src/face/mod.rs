//! The commands, asked over HTTP: a request becomes the words of a command, the command runs in a seat, and what it would have
//! printed is the answer. Called by whoever serves. It prints nothing, changes no folder, and never ends the process.

pub(crate) mod client;
mod follow;
pub(crate) mod openapi;
mod page;
mod request;
mod result;
mod shape;
mod value;
mod words;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use actum_api::error::{self, TABLE};
use actum_api::route::{Place, Route};
use actum_server::api::{Answer, Given};
use clap::FromArgMatches as _;
use clap::error::ErrorKind;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::archive;
use crate::args::Parsed;
use crate::command;
use crate::failure::Failure;
use crate::seat::Seat;
use crate::ui::{Kept, Out, RESULT_BYTES_MAX};
use crate::workspace::LOCAL_TENANT;
use shape::Form;
use words::Drawer;
pub(crate) use words::sweep;

pub(crate) const JSON: &str = "application/json";
pub(crate) const JSON_LINES: &str = "application/jsonl";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// Runs the command that a route stands for.
pub(crate) fn run(seat: Arc<Seat>, route: &'static Route, given: &Given) -> Answer {
    let (page, given) = match page::wanted(route, given) {
        Ok(Some((page, left))) => (Some(page), Cow::Owned(left)),
        Ok(None) => (None, Cow::Borrowed(given)),
        Err(failure) => return Refusal::Form(failure.hint("/openapi.json says what may be given")).answer(),
    };
    let given = &*given;
    let mut drawer = Drawer::default();
    let others_root = (seat.tenant.as_str() != LOCAL_TENANT).then(|| seat.root.clone());
    // Whatever goes wrong in one request is the end of that request only.
    let ran = catch_unwind(AssertUnwindSafe(|| perform(seat, route, given, &mut drawer)));
    let broken = || {
        let message = format!("internal error (request {})", given.request_id);
        Failure::new(error::INTERNAL, message).hint("the log of the server says where")
    };
    let told = match ran.unwrap_or_else(|_| Err(Refusal::Command(broken()))) {
        Ok((code, kept)) => told(route, code, kept, given.wants_text).map_err(Refusal::Command),
        Err(refusal) => Err(refusal),
    };
    let answer = told.unwrap_or_else(|refusal| {
        let answer = refusal.answer();
        Answer { body: hidden(answer.body, others_root.as_deref()), ..answer }
    });
    let shown = |said: Vec<String>| {
        let one = |line: String| drawer.hide(hidden(line.into_bytes(), others_root.as_deref()));
        said.into_iter().map(|line| String::from_utf8_lossy(&one(line)).into_owned()).collect()
    };
    let (remarks, asides) = (shown(answer.remarks), shown(answer.asides));
    let answer = Answer { body: drawer.hide(answer.body), remarks, asides, ..answer };
    match page {
        Some(page) => page.of(answer),
        None => answer,
    }
}

/// Where the project lies is nobody's business but of those whose it is. Only for what we say ourselves: in what somebody has
/// brought nothing is changed.
fn hidden(body: Vec<u8>, root: Option<&Path>) -> Vec<u8> {
    let Some(root) = root.and_then(Path::to_str).filter(|root| root.len() > 1) else { return body };
    match std::str::from_utf8(&body) {
        Ok(said) if said.contains(root) => said.replace(&format!("{root}/"), "").replace(root, ".").into_bytes(),
        _ => body,
    }
}

/// Who refused.
enum Refusal {
    /// The request is not of the form that the OpenAPI document shows.
    Form(Failure),
    /// The command has read it.
    Command(Failure),
}

impl Refusal {
    fn answer(&self) -> Answer {
        let (failure, status) = match self {
            Self::Form(failure) => (failure, failure.row.status),
            Self::Command(failure) => (failure, failure.row.status_once_read()),
        };
        let body = format!("{}\n", failure.to_json()).into_bytes();
        Answer::new(status, JSON, body, failure.row.exit)
    }
}

/// The OpenAPI document of everything that may be asked.
pub(crate) fn openapi() -> Value {
    openapi::document()
}

/// What was given for a route, read as its command would be.
pub(crate) fn read(route: &'static Route, given: &Given) -> Result<Parsed, Failure> {
    let missing = || Failure::new(error::INTERNAL, format!("no command stands behind {}", route.path));
    let form = shape::of(route).ok_or_else(missing)?;
    let words = words::of(form, given, "", &mut Drawer::default())?;
    let matches = form.parser.clone().try_get_matches_from(words);
    matches.and_then(|found| Parsed::from_arg_matches(&found)).map_err(|e| unusable(&e))
}

fn perform(seat: Arc<Seat>, route: &'static Route, given: &Given, drawer: &mut Drawer) -> Result<(u8, Kept), Refusal> {
    let missing = || Failure::new(error::INTERNAL, format!("no command stands behind {}", route.path));
    let form = shape::of(route).ok_or_else(|| Refusal::Command(missing()))?;
    let words = words::of(form, given, &seat.actor, drawer).map_err(|failure| match failure.row.name {
        // JSON it is, but for what our strict profile of it does not take.
        error::INPUT if given.is_json && serde_json::from_slice::<Distinct>(&given.content).is_ok() => {
            Refusal::Command(failure)
        }
        _ => Refusal::Form(failure),
    })?;
    let matches = form.parser.clone().try_get_matches_from(words);
    let mut parsed = matches.and_then(|found| Parsed::from_arg_matches(&found)).map_err(|e| match e.kind() {
        // Each of them is as it should be; they do not go together.
        ErrorKind::ArgumentConflict => Refusal::Command(unusable(&e)),
        ErrorKind::MissingRequiredArgument if has_required(form, given) => Refusal::Command(unusable(&e)),
        _ => Refusal::Form(unusable(&e)),
    })?;
    parsed.global.json = !given.wants_text;
    parsed.global.seat = Some(seat);
    let mut out = Out::captured(!given.wants_text);
    let code = command::run(parsed, None, &mut out).map_err(Refusal::Command)?;
    Ok((code, out.taken()))
}

/// An object whose fields have names of their own.
struct Distinct;

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for Distinct {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some((name, IgnoredAny)) = fields.next_entry::<String, IgnoredAny>()? {
            if !seen.insert(name) {
                return Err(serde::de::Error::custom("a field is there twice"));
            }
        }
        Ok(self)
    }
}

/// Whether all is there that is needed whatever else is given.
fn has_required(form: &Form, given: &Given) -> bool {
    let fields: Value = serde_json::from_slice(&given.content).unwrap_or_default();
    form.shapes.iter().filter(|shape| shape.arg.is_required_set()).all(|shape| match shape.place {
        Place::Query => given.query.iter().any(|(name, _)| name == shape.name),
        Place::Field | Place::File => fields.get(shape.name).is_some(),
        Place::Path | Place::Content => true,
    })
}

/// What the command line has to say of words that it does not take: the first sentence, without how to type them.
fn unusable(e: &clap::Error) -> Failure {
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    Failure::new(error::USAGE, message.trim_start_matches("error: ")).hint("/openapi.json says what may be given")
}

/// The answer of a command that did what it was asked to, whatever its exit code says of what it found.
fn told(route: &Route, exit: u8, kept: Kept, wants_text: bool) -> Result<Answer, Failure> {
    let Kept { mut results, mut remarks, mut asides, is_cut } = kept;
    if is_cut {
        let message = format!("the answer is larger than {RESULT_BYTES_MAX} bytes");
        return Err(Failure::new(error::USAGE, message).hint("ask for less of it"));
    }
    if route.is_archive && exit == 0 {
        let content_type = archive::CONTENT_TYPE.to_owned();
        return Ok(Answer { status: route.status, content_type, body: results, exit, remarks, asides });
    }
    if wants_text {
        // What went wrong is all there is to tell.
        if results.is_empty() && exit != 0 {
            let said: Vec<String> = asides.drain(..).chain(remarks.drain(..)).collect();
            results = format!("{}\n", said.join("\n")).into_bytes();
        }
        let status = if exit == 0 { route.status } else { 200 };
        return Ok(Answer { status, content_type: TEXT.to_owned(), body: results, exit, remarks, asides });
    }
    if results.is_empty() {
        results = b"{}\n".to_vec();
    }
    let is_one = serde_json::from_slice::<IgnoredAny>(&results).is_ok();
    let content_type = if is_one { JSON } else { JSON_LINES }.to_owned();
    let status = match exit {
        0 => route.status,
        _ => if is_one { status_within(&results) } else { None }.unwrap_or(200),
    };
    Ok(Answer { status, content_type, body: results, exit, remarks, asides })
}

/// The status of the error that a document speaks of, such as that of an entry which the ledger refused.
fn status_within(results: &[u8]) -> Option<u16> {
    let value: Value = serde_json::from_slice(results).ok()?;
    let name = value["error"]["code"].as_str()?;
    TABLE.iter().find(|row| row.name == name).map(|row| row.status)
}
