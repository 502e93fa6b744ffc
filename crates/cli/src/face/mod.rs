//! The commands, asked over HTTP: a request becomes the words of a command, the command runs in a seat, and what it would have
//! printed is the answer. Called by whoever serves. It prints nothing, changes no folder, and never ends the process.

pub(crate) mod client;
pub(crate) mod openapi;
mod request;
mod shape;
mod words;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use actum_api::error::{self, TABLE};
use actum_api::route::Route;
use actum_server::api::{Answer, Given};
use clap::FromArgMatches as _;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::args::Parsed;
use crate::command;
use crate::failure::Failure;
use crate::seat::Seat;
use crate::ui::{Kept, Out, RESULT_BYTES_MAX};
use words::Drawer;

pub(crate) const JSON: &str = "application/json";
pub(crate) const JSON_LINES: &str = "application/jsonl";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// Runs the command that a route stands for.
pub(crate) fn run(seat: Arc<Seat>, route: &'static Route, given: &Given) -> Answer {
    let mut drawer = Drawer::default();
    // Whatever goes wrong in one request is the end of that request only.
    let ran = catch_unwind(AssertUnwindSafe(|| perform(seat, route, given, &mut drawer)));
    let broken = || {
        let message = format!("the command failed in a way that nobody foresaw (request {})", given.request_id);
        Err(Failure::new(error::INTERNAL, message).hint("the log of the server says where"))
    };
    let answer = match ran.unwrap_or_else(|_| broken()) {
        Ok((code, kept)) => told(route, code, kept, given.wants_text),
        Err(failure) => Err(failure),
    };
    let answer = answer.unwrap_or_else(|failure| refused(&failure));
    Answer { body: drawer.hide(answer.body), ..answer }
}

/// The OpenAPI document of everything that may be asked.
pub(crate) fn openapi() -> Value {
    openapi::document()
}

fn perform(seat: Arc<Seat>, route: &'static Route, given: &Given, drawer: &mut Drawer) -> Result<(u8, Kept), Failure> {
    let missing = || Failure::new(error::INTERNAL, format!("no command stands behind {}", route.path));
    let form = shape::of(route).ok_or_else(missing)?;
    let words = words::of(form, given, &seat.actor, drawer)?;
    let matches = form.parser.clone().try_get_matches_from(words);
    let mut parsed = matches.and_then(|found| Parsed::from_arg_matches(&found)).map_err(|e| unusable(&e))?;
    parsed.global.json = !given.wants_text;
    parsed.global.seat = Some(seat);
    let mut out = Out::captured(!given.wants_text);
    let code = command::run(parsed, None, &mut out)?;
    Ok((code, out.taken()))
}

/// What the command line has to say of words that it does not take: the first sentence, without how to type them.
fn unusable(e: &clap::Error) -> Failure {
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    Failure::new(error::USAGE, message.trim_start_matches("error: ")).hint("/openapi.json says what may be given")
}

fn refused(failure: &Failure) -> Answer {
    let body = format!("{}\n", failure.to_json()).into_bytes();
    Answer { status: failure.row.status, content_type: JSON.to_owned(), body, exit: failure.row.exit }
}

/// The answer of a command that did what it was asked to, whatever its exit code says of what it found.
fn told(route: &Route, exit: u8, kept: Kept, wants_text: bool) -> Result<Answer, Failure> {
    let Kept { mut results, remarks, is_cut } = kept;
    if is_cut {
        let message = format!("the answer is larger than {RESULT_BYTES_MAX} bytes");
        return Err(Failure::new(error::USAGE, message).hint("ask for less of it"));
    }
    if wants_text {
        // What went wrong is all there is to tell.
        if results.is_empty() && exit != 0 {
            results = format!("{}\n", remarks.join("\n")).into_bytes();
        }
        let status = if exit == 0 { route.status } else { 200 };
        return Ok(Answer { status, content_type: TEXT.to_owned(), body: results, exit });
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
    Ok(Answer { status, content_type, body: results, exit })
}

/// The status of the error that a document speaks of, such as that of an entry which the ledger refused.
fn status_within(results: &[u8]) -> Option<u16> {
    let value: Value = serde_json::from_slice(results).ok()?;
    let name = value["error"]["code"].as_str()?;
    TABLE.iter().find(|row| row.name == name).map(|row| row.status)
}
