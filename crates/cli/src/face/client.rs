//! The command line as a client: with `--server`, what was typed is asked of a server, and what it answers is printed as if it
//! had been done here. Called by `main`, and by nobody who runs in a seat. It opens no project and no store.

use std::io::{self, IsTerminal as _, Read as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use actum_api::client::{self, Answer, ClientError, Line};
use actum_api::error::{self, TABLE};
use clap::ArgMatches;
use serde_json::Value;

use super::follow;
use super::request::{self, Request};
use super::{JSON, JSON_LINES};
use crate::archive::NOT_TO_READ;
use crate::args::{Global, Parsed};
use crate::command::{self, Ended};
use crate::failure::Failure;
use crate::ui::{Out, RESULT_BYTES_MAX};
use crate::workspace::new_id;

/// Where the server is, if it is not named.
const SERVER: &str = "ACTUM_SERVER";
/// By which somebody may enter.
const TOKEN: &str = "ACTUM_TOKEN";
const TOKEN_BYTES_MAX: usize = 1 << 10;
/// The longest command there is: a compilation asks models for as long as its budget lasts.
const SILENCE: Duration = Duration::from_secs(3_600);
/// How often a request is sent whose connection breaks, if doing it twice is doing it once.
const TRIES_MAX: usize = 2;
const EXIT: &str = "x-actum-exit";
const REMARKS: &str = "x-actum-remarks";
const ASIDES: &str = "x-actum-asides";

/// Commands that work on this machine whoever else is asked.
const LOCAL: [&str; 9] =
    ["canon", "completions", "contract", "doctor", "init", "reference", "sandbox", "schema", "serve"];

/// The server that is to be asked; none if the command works here.
pub(crate) fn server(parsed: &Parsed, typed: &ArgMatches) -> Result<Option<String>, Failure> {
    let global = &parsed.global;
    let named = std::env::var(SERVER).ok().filter(|url| !url.is_empty());
    chosen(global, named, typed)
}

fn chosen(global: &Global, named: Option<String>, typed: &ArgMatches) -> Result<Option<String>, Failure> {
    let (names, leaf) = request::leaf(typed);
    // The contract of a run is where the run is.
    let is_of_run = names == ["contract", "show"] && leaf.contains_id("run");
    if let Some(name) = names.first().filter(|name| LOCAL.contains(name) && !is_of_run) {
        return match global.server {
            // Whoever says it expects that the server is meant; a variable may stand there for other commands.
            Some(_) => {
                let failure =
                    Failure::new(error::USAGE, format!("`actum {name}` works on this machine only and has no route"));
                Err(failure.hint("leave out --server"))
            }
            None => Ok(None),
        };
    }
    let Some(url) = global.server.clone().or(named) else {
        return match global.token_file {
            Some(_) => Err(Failure::new(error::USAGE, "--token-file opens nothing without --server")),
            None => Ok(None),
        };
    };
    if global.store.is_some() {
        let failure = Failure::new(error::USAGE, "--store is here, and the server has a store of its own");
        return Err(failure.hint(format!("leave out --store, or --server and {SERVER}")));
    }
    if !url.contains("://") {
        let failure = Failure::new(error::USAGE, format!("{url} is no address of a server"));
        return Err(failure.hint("http://127.0.0.1:7070 is one, and so is https://actum.example"));
    }
    let is_secure = url.get(..8).is_some_and(|begin| begin.eq_ignore_ascii_case("https://"));
    if !is_secure && !global.insecure && !is_near(&url) {
        let message = format!("{url} is elsewhere, and over http others on the way can read the token");
        let failure = Failure::new(error::USAGE, message);
        return Err(failure.hint("use https, a tunnel that ends at http://127.0.0.1:PORT, or say --insecure"));
    }
    Ok(Some(url))
}

/// Whether it is this machine that is asked. What is no address at all is told of later.
fn is_near(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    let is_loopback = |address: std::net::IpAddr| address.to_canonical().is_loopback();
    host.is_empty() || host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// Asks the server, and prints what it answers.
pub(crate) fn run(server: &str, global: &Global, typed: &ArgMatches, out: &mut Out) -> Ended {
    command::go(global)?;
    client::speak_securely(secure);
    let request = request::of(typed)?;
    if request.form.route.is_archive && io::stdout().is_terminal() {
        return Err(Failure::new(error::USAGE, NOT_TO_READ).hint("send it into a file with `>`, or into `tar x`"));
    }
    let token = token(global.token_file.as_deref())?;
    out.detail(&format!("{} {server}{}", request.form.route.method.word(), request.target()));
    if request.is_raw {
        out.set_raw();
    }
    if request.follows {
        return match request.form.route.streams {
            true => follow::events(server, &token, &request, out),
            false => follow::logs(server, &token, &request, out),
        };
    }
    if request.waits {
        return follow::runs(server, &token, &request, out);
    }
    let accept = if out.is_json() { format!("{JSON}, {JSON_LINES}") } else { "text/plain".to_owned() };
    let answer = ask_for(server, &token, &request, &accept)?;
    tell(&answer, out)
}

fn secure(stream: TcpStream, name: &str) -> io::Result<Box<dyn Line>> {
    Ok(Box::new(actum_adapters::secure(stream, name)?))
}

fn token(file: Option<&Path>) -> Result<String, Failure> {
    let hint = format!("put it into {TOKEN}, or into a file and name that with --token-file");
    let text = match file {
        None => std::env::var(TOKEN).unwrap_or_default(),
        Some(path) => {
            let mut text = String::new();
            let limit = TOKEN_BYTES_MAX as u64 + 1;
            let read = std::fs::File::open(path).and_then(|file| file.take(limit).read_to_string(&mut text));
            read.map_err(|e| Failure::of_io(format!("cannot read {}: {e}", path.display()), &e))?;
            text
        }
    };
    let token = text.trim();
    if token.is_empty() {
        return Err(Failure::new(error::UNAUTHORIZED, "a server is asked with a token, and there is none").hint(hint));
    }
    if token.len() > TOKEN_BYTES_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::new(error::UNAUTHORIZED, "this is no token").hint(hint));
    }
    Ok(token.to_owned())
}

pub(super) fn ask_for(server: &str, token: &str, request: &Request, accept: &str) -> Result<Answer, Failure> {
    let route = request.form.route;
    let (entry, key, target) = (format!("Bearer {token}"), new_id(), request.target());
    let mut headers = vec![("authorization", entry.as_str()), ("accept", accept)];
    if route.creates {
        headers.push(("idempotency-key", key.as_str()));
    }
    if let Some((kind, _)) = &request.content {
        headers.push(("content-type", kind));
    }
    let asked = client::Request {
        url: server,
        method: route.method.word(),
        path: &target,
        headers: &headers,
        content: request.content.as_ref().map(|(_, content)| content.as_slice()),
        silence: SILENCE,
        answer_bytes_max: RESULT_BYTES_MAX as u64,
    };
    // Of what is done, only a submission of runs is done once whoever dies in between.
    let is_once = route.command == ["run"] || route.method == actum_api::route::Method::Get;
    let mut tries = 1;
    loop {
        match client::send(&asked) {
            Err(ClientError::Broken(_)) if is_once && tries < TRIES_MAX => tries += 1,
            ended => return ended.map_err(|e| unanswered(server, &e)),
        }
    }
}

pub(super) fn unanswered(server: &str, e: &ClientError) -> Failure {
    match e {
        ClientError::Address(_) => {
            let message = format!("{server:?} is no address of a server");
            Failure::new(error::USAGE, message).hint("write http://HOST:PORT or https://HOST")
        }
        ClientError::Insecure { .. } => Failure::new(error::USAGE, format!("{server} is not asked: {e}"))
            .hint("its certificate must be one that this machine believes, for that name; SSL_CERT_FILE names others"),
        ClientError::TooLarge(_) => Failure::new(error::USAGE, e.to_string()).hint("ask for less of it"),
        ClientError::Unreachable { .. } | ClientError::Nowhere(_) => {
            let failure = Failure::new(error::STORE_UNAVAILABLE, format!("{server} does not answer: {e}"));
            failure.hint("see whether `actum serve` runs there, and listens where it is asked")
        }
        _ => {
            let failure = Failure::new(error::STORE_UNAVAILABLE, format!("{server} gave no answer: {e}"));
            failure.hint("what was asked may be done all the same: look before asking again")
        }
    }
}

pub(super) fn tell(answer: &Answer, out: &mut Out) -> Ended {
    let told = tell_result(answer, out);
    let said = |name: &str| {
        let lines = answer.header(name).and_then(|text| serde_json::from_str::<Vec<String>>(text).ok());
        lines.unwrap_or_default().into_iter().map(|line| crate::ui::clean(&line)).collect::<Vec<_>>()
    };
    said(ASIDES).iter().for_each(|line| out.aside(line));
    said(REMARKS).iter().for_each(|line| out.remark(line));
    told
}

fn tell_result(answer: &Answer, out: &mut Out) -> Ended {
    let exit = answer.header(EXIT).and_then(|code| code.parse::<u8>().ok());
    if answer.status < 400 {
        // A page that asks to sign in is an answer too, and not ours.
        let Some(exit) = exit.filter(|_| (200..300).contains(&answer.status)) else { return Err(strange(answer)) };
        out.bytes(&answer.content);
        return Ok(exit);
    }
    let body: Value = serde_json::from_slice(&answer.content).unwrap_or_default();
    let is_error = body.as_object().is_some_and(|fields| fields.len() == 1) && body["error"].is_object();
    match (is_error, exit) {
        // A result that speaks of an error, such as that of an entry which the ledger refused.
        (false, Some(code)) if body.is_object() => {
            out.bytes(&answer.content);
            Ok(code)
        }
        (false, _) => Err(strange(answer)),
        (true, exit) => {
            let failure = failure(&body["error"]);
            let code = exit.unwrap_or(failure.row.exit);
            if code == failure.row.exit {
                return Err(failure);
            }
            let _ = out.fail(&failure);
            Ok(code)
        }
    }
}

/// The error that a server tells of.
pub(super) fn failure(told: &Value) -> Failure {
    let row = TABLE.iter().find(|row| told["code"] == row.name);
    let message = told["message"].as_str().unwrap_or("the server does not say what is wrong");
    let message = match row {
        Some(_) => message.to_owned(),
        // A newer server may know errors that we do not.
        None => format!("{}: {message}", told["code"].as_str().unwrap_or("an unknown error")),
    };
    let name = row.map_or(error::INTERNAL, |row| row.name);
    let failure = Failure::new(name, message).details(told["details"].clone());
    match told["hint"].as_str() {
        Some(hint) => failure.hint(crate::ui::clean(hint)),
        None => failure,
    }
}

pub(super) fn strange(answer: &Answer) -> Failure {
    let message = format!("what answered (status {}) does not speak as a server of actum", answer.status);
    Failure::new(error::STORE_UNAVAILABLE, message).hint("check the address behind --server")
}

#[cfg(test)]
mod tests;
