//! Following what a server tells: `actum events -f` and `actum logs -f` with `--server`. A connection that breaks is made anew from
//! where it was, so often in a row and no oftener. Called by `client`; it opens no project and no store.

use std::time::Duration;

use actum_api::client::{self, Answer};
use actum_api::error;
use actum_api::stream::{self, Opened};
use actum_ledger::run::RunState;
use actum_server::api::Event;
use serde_json::{Value, json};

use super::JSON;
use super::client::{ask_for, failure, strange as no_server, tell, unanswered};
use super::request::Request;
use crate::command::{Ended, events};
use crate::failure::Failure;
use crate::ui::{Out, RESULT_BYTES_MAX};

/// Attempts in a row of which nothing comes.
const TRIES_MAX: u32 = 30;
const TRY_EVERY: Duration = Duration::from_secs(2);
/// A server gives a sign of life three times as often.
const SILENCE: Duration = Duration::from_secs(45);
/// How often a log is asked for more.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Tells events as they come, until there are no more of them.
pub(super) fn events(server: &str, token: &str, request: &Request, out: &mut Out) -> Ended {
    let (entry, target) = (format!("Bearer {token}"), request.target());
    let (mut last, mut tries) = (None::<String>, 0);
    let is_of_run = request.form.route.path_names().any(|name| name == "run");
    loop {
        let mut headers = vec![("authorization", entry.as_str()), ("accept", "text/event-stream")];
        if let Some(last) = &last {
            headers.push(("last-event-id", last));
        }
        let asked = client::Request {
            url: server,
            method: request.form.route.method.word(),
            path: &target,
            headers: &headers,
            content: None,
            silence: SILENCE,
            answer_bytes_max: RESULT_BYTES_MAX as u64,
        };
        tries += 1;
        let broken = match stream::open(&asked) {
            Ok(Opened::Answer(answer)) if !is_for_now(&answer) => return tell(&answer, out),
            Ok(Opened::Answer(answer)) if tries >= TRIES_MAX => return tell(&answer, out),
            Ok(Opened::Answer(answer)) => format!("status {}", answer.status),
            Ok(Opened::Stream(mut incoming)) => loop {
                let told = match incoming.told() {
                    Ok(Some(told)) => told,
                    Ok(None) => break "it has ended the stream".to_owned(),
                    Err(e) => break e.to_string(),
                };
                match (told.kind.as_str(), told.id.as_deref().map(str::parse)) {
                    // That of a run has an end; an entry of the ledger may be called anything.
                    ("end", _) if is_of_run => return Ok(0),
                    // A sign of life.
                    ("", _) => tries = 0,
                    (kind, Some(Ok(id))) => {
                        events::tell(&Event { id, kind: kind.to_owned(), data: told.data }, out);
                        last = told.id;
                        tries = 0;
                    }
                    _ => return Err(strange(server)),
                }
            },
            Err(e @ (client::ClientError::Address(_) | client::ClientError::Header(_))) => {
                return Err(unanswered(server, &e));
            }
            Err(e) if tries >= TRIES_MAX => return Err(unanswered(server, &e)),
            Err(e) => e.to_string(),
        };
        if tries >= TRIES_MAX {
            let failure = Failure::new(error::STORE_UNAVAILABLE, format!("{server} tells nothing more: {broken}"));
            return Err(match last {
                Some(last) => failure.hint(format!("go on later with --after {last}: nothing is lost")),
                None => failure,
            });
        }
        out.detail(&format!("{server}: {broken}; asking again"));
        std::thread::sleep(TRY_EVERY);
    }
}

fn strange(server: &str) -> Failure {
    let message = format!("{server} tells of an event without a number");
    Failure::new(error::STORE_UNAVAILABLE, message).hint("check the address behind --server")
}

/// Submits runs and waits until they are over; they go on if nobody waits. The exit code is the worst of theirs.
pub(super) fn runs(server: &str, token: &str, request: &Request, out: &mut Out) -> Ended {
    let answer = ask_for(server, token, request, JSON)?;
    if answer.status >= 300 {
        return tell(&answer, out);
    }
    let told: Value = serde_json::from_slice(&answer.content).unwrap_or_default();
    let id = |run: &Value| run["run_id"].as_str().map(ToOwned::to_owned);
    let ids: Vec<String> = match told["runs"].as_array() {
        Some(runs) => runs.iter().filter_map(id).collect(),
        None => id(&told).into_iter().collect(),
    };
    if ids.is_empty() {
        return Err(no_server(&answer));
    }
    let (mut shown, mut code) = (Vec::new(), 0);
    for id in ids {
        out.remark(&format!("submitted {id}; it continues without this command"));
        let status = over(server, token, &id, JSON, out)?;
        let status: Value = serde_json::from_slice(&status).unwrap_or_default();
        code = code.max(status["exit"].as_u64().and_then(|exit| u8::try_from(exit).ok()).unwrap_or(1));
        match out.is_json() {
            true => shown.push(status["run"].clone()),
            false => out.bytes(&over(server, token, &id, "text/plain", out)?),
        }
    }
    if out.is_json() {
        let result = if told["runs"].is_array() { json!({"runs": shown}) } else { shown.pop().unwrap_or_default() };
        out.bytes(format!("{result}\n").as_bytes());
    }
    Ok(code)
}

/// The status of a run that is over. A server that does not answer is asked again, so often in a row and no oftener.
fn over(server: &str, token: &str, id: &str, accept: &str, out: &Out) -> Result<Vec<u8>, Failure> {
    let (entry, path) = (format!("Bearer {token}"), format!("/v1/runs/{id}"));
    let mut tries = 0;
    loop {
        let look = |accept: &str| {
            client::send(&client::Request {
                url: server,
                method: "GET",
                path: &path,
                headers: &[("authorization", &entry), ("accept", accept)],
                content: None,
                silence: SILENCE,
                answer_bytes_max: RESULT_BYTES_MAX as u64,
            })
        };
        match look(JSON) {
            Ok(answer) if answer.status == 200 => {
                tries = 0;
                let status: Value = serde_json::from_slice(&answer.content).unwrap_or_default();
                if !status["state"].is_string() {
                    return Err(no_server(&answer));
                }
                // A state that only a newer server knows is none to wait for.
                let is_over = status["state"].as_str().and_then(RunState::named).is_none_or(RunState::is_over);
                let is_left = status["state"] == RunState::Planned.word();
                if is_over || is_left {
                    let again = |e| unanswered(server, &e);
                    return if accept == JSON { Ok(answer.content) } else { Ok(look(accept).map_err(again)?.content) };
                }
            }
            Ok(answer) if !is_for_now(&answer) || tries >= TRIES_MAX => {
                let told: Value = serde_json::from_slice(&answer.content).unwrap_or_default();
                return Err(failure(&told["error"]));
            }
            Err(e) if tries >= TRIES_MAX => {
                let failure = unanswered(server, &e);
                return Err(failure.hint(format!("the run goes on: `actum status {id}` tells of it")));
            }
            Ok(_) | Err(_) => {
                tries += 1;
                out.detail(&format!("{server} does not answer; asking again"));
                std::thread::sleep(TRY_EVERY);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether the same may be answered otherwise in a moment.
fn is_for_now(answer: &Answer) -> bool {
    answer.status >= 500 || answer.status == 429
}

/// Prints what a run or an execution puts out, until it is over.
pub(super) fn logs(server: &str, token: &str, request: &Request, out: &mut Out) -> Ended {
    let (mut shown, mut aside, mut tries) = (0, 0, 0);
    loop {
        let answer = match ask_for(server, token, request, JSON) {
            Ok(answer) if answer.status == 200 => answer,
            Ok(answer) if !is_for_now(&answer) || tries >= TRIES_MAX => return tell(&answer, out),
            Err(failure) if tries >= TRIES_MAX || failure.row.name != error::STORE_UNAVAILABLE => return Err(failure),
            Ok(_) | Err(_) => {
                tries += 1;
                out.detail(&format!("{server} does not answer; asking again"));
                std::thread::sleep(TRY_EVERY);
                continue;
            }
        };
        tries = 0;
        let told: Value = serde_json::from_slice(&answer.content).unwrap_or_default();
        let is_over = told["over"] != false;
        // A letter of which only the first bytes are there yet is none so far.
        let text = |field: &str| {
            let text = told[field].as_str().unwrap_or_default();
            if is_over { text } else { text.trim_end_matches('\u{fffd}') }.to_owned()
        };
        let (output, errors) = match told.get("log") {
            Some(_) => (text("log"), String::new()),
            None => (text("stdout"), text("stderr")),
        };
        out.bytes(output.as_bytes().get(shown..).unwrap_or_default());
        if let Some(new) = errors.get(aside..).filter(|new| !new.is_empty()) {
            out.aside(new.trim_end_matches('\n'));
        }
        (shown, aside) = (output.len().max(shown), errors.len().max(aside));
        if is_over {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
