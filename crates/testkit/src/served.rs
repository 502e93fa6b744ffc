//! A server of a test's own, for calls that go by way of one: started with the first of them, gone with the program. Used by
//! `program`; which calls these are is said in `through`.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::program::{Ended, Program, Running};
use crate::through::{self, HERE, MAY_NAME_FILES};

/// How the client says that there is no route for what was typed.
const NO_ROUTE: [&str; 2] = ["does not work over a server", "does not work like this over a server"];
const LOCAL: &str = "local";

#[derive(Debug, Default)]
pub(crate) struct Served {
    server: OnceLock<Option<Server>>,
}

#[derive(Debug)]
struct Server {
    url: String,
    running: Mutex<Option<Running>>,
    /// By their tenants.
    tokens: Mutex<BTreeMap<String, String>>,
}

impl Served {
    /// Nothing where the call is not one for a server.
    pub(crate) fn run_with(&self, program: &Program, arguments: &[&str], input: &[u8]) -> Option<Ended> {
        if !through::is_on() || !is_for_server(arguments) || names_disk(program, arguments) {
            return None;
        }
        let server = self.server.get_or_init(|| Server::start(program)).as_ref()?;
        let (tenant, arguments) = whose(program, arguments, input);
        let token = server.token(program, &tenant)?;
        let env = [("ACTUM_SERVER", server.url.as_str()), ("ACTUM_TOKEN", token.as_str())];
        let ended = program.away(&arguments, &env, input);
        let has_route = !NO_ROUTE.iter().any(|said| ended.stderr.contains(said));
        has_route.then_some(ended)
    }
}

impl Server {
    fn start(program: &Program) -> Option<Self> {
        let words = ["serve", "--json", "--rate", "0", "--workers", "0", "--listen", "127.0.0.1:0"];
        let mut running = program.start(&words, &[]);
        // A project that cannot be served is one in which the call is to fail in its own way.
        let line = running.line()?;
        let told: Value = serde_json::from_str(&line).ok()?;
        let tokens = told["token"].as_str().map(|token| (LOCAL.to_owned(), token.to_owned())).into_iter().collect();
        let url = told["url"].as_str()?.to_owned();
        Some(Self { url, running: Mutex::new(Some(running)), tokens: Mutex::new(tokens) })
    }

    fn token(&self, program: &Program, tenant: &str) -> Option<String> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = tokens.get(tenant) {
            return Some(token.clone());
        }
        let made =
            program.here(&["token", "create", "--json", "--role", "admin", "--name", "test", "--tenant", tenant]);
        let made: Value = serde_json::from_str(&made.stdout).ok()?;
        let token = made["token"].as_str()?.to_owned();
        tokens.insert(tenant.to_owned(), token.clone());
        Some(token)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        running.take().map(Running::kill);
    }
}

/// Whoever names a store or a server means that one.
fn is_for_server(arguments: &[&str]) -> bool {
    let names = |flag: &&str| ["--store", "--server", "--help", "--version", "-C"].contains(flag);
    let is_here = HERE.iter().any(|(words, _)| arguments.starts_with(words));
    !is_here && !arguments.iter().any(names)
}

/// Whether what is meant lies on the disk of whoever asks.
fn names_disk(program: &Program, arguments: &[&str]) -> bool {
    let may_name_files = arguments.first().is_some_and(|word| MAY_NAME_FILES.contains(word));
    let mut paths = arguments.iter().skip(1).map(|word| program.path(word));
    paths.any(|path| path.is_dir() || (may_name_files && path.exists()))
        || (may_name_files && arguments.iter().any(|word| word.contains('/')))
}

/// The tenant that is meant, and the words without it: over a server it is the token's.
fn whose<'a>(program: &Program, arguments: &[&'a str], input: &[u8]) -> (String, Vec<&'a str>) {
    let mut words = arguments.to_vec();
    if let Some(at) = words.iter().position(|word| *word == "--tenant").filter(|at| at + 1 < words.len()) {
        let tenant = words[at + 1].to_owned();
        words.drain(at..=at + 1);
        return (tenant, words);
    }
    let file = words.get(2).filter(|_| words.starts_with(&["ledger", "append"]));
    let text = file.map(|name| program.path(name)).and_then(|path| std::fs::read(path).ok());
    let text = text.unwrap_or_else(|| input.to_vec());
    let tenant = tenant_in(&String::from_utf8_lossy(&text)).filter(|_| words.starts_with(&["ledger", "append"]));
    (tenant.unwrap_or_else(|| LOCAL.to_owned()), words)
}

/// The first tenant that a document names.
fn tenant_in(text: &str) -> Option<String> {
    let (_, after) = text.split_once("\"tenantId\"")?;
    after.split('"').nth(1).filter(|name| !name.is_empty() && name.len() < 100).map(str::to_owned)
}
