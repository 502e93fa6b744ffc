//! A call from beginning to end: parameters transformed, an attempt and others after it, what came out transformed, and the
//! next adapter where that was agreed.

mod program;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use actum_contract::execution::Sandbox;
use actum_contract::tool::{Adapter, Entry, Interface, Went};
use serde_json::{Map, Value};

use crate::api::Http;
use crate::cells::Cells;
use crate::result::{Attempt, Problem, Stage};
use crate::{retry, transform};

pub use program::{KEY_VARIABLE, violations};

/// Between two looks at whether somebody still waits.
const WAIT_SLICE: Duration = Duration::from_millis(50);

/// Bytes of each stream that are kept of an attempt that was followed by another.
const ATTEMPT_TEXT_BYTES_MAX: usize = 4 << 10;

/// Bytes that what is kept of an attempt may take as JSON; what is longer is left out.
const EVIDENCE_BYTES_MAX: usize = 64 << 10;

/// One adapter of a chain, and what it may use.
#[derive(Debug, Clone)]
pub struct Link<'a> {
    pub adapter: &'a Adapter,
    /// Narrowed already.
    pub sandbox: Sandbox,
}

/// What is to be called with what.
pub struct Request<'a> {
    pub execution_id: &'a str,
    /// The adapters in the order of their fallbacks, without a circle.
    pub chain: &'a [Link<'a>],
    pub tool: &'a Entry,
    pub operation: Option<&'a str>,
    pub params: Map<String, Value>,
    /// Resolved values, by their names in the tool's entry.
    pub secrets: BTreeMap<String, String>,
    /// Whether nobody waits any more. Asked between attempts, while waiting, and while a service is.
    pub stop: &'a dyn Fn() -> bool,
    /// Of everything together.
    pub deadline: Instant,
    /// By which the tool recognises this call, however often it is tried.
    pub idempotency_key: Option<&'a str>,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of secrets are in it.
        f.debug_struct("Request").field("execution_id", &self.execution_id).finish_non_exhaustive()
    }
}

/// Who makes attempts.
#[derive(Debug, Clone, Copy)]
pub struct Hands<'a> {
    pub cells: &'a dyn Cells,
    pub http: &'a Http,
    pub others: &'a dyn Others,
}

/// Who speaks to MCP servers and calls functions of packages.
pub trait Others: Send + Sync + fmt::Debug {
    fn attempt(&self, ask: &Ask<'_>) -> Attempt;
}

/// One attempt that is to be made.
pub struct Ask<'a> {
    pub link: &'a Link<'a>,
    pub tool: &'a Entry,
    pub operation: Option<&'a str>,
    pub params: &'a Map<String, Value>,
    /// Resolved values, by their names in the tool's entry.
    pub secrets: &'a BTreeMap<String, String>,
    pub deadline: Instant,
    /// Whether nobody waits any more.
    pub stop: &'a dyn Fn() -> bool,
    /// The same for all attempts of a call that spends.
    pub idempotency_key: Option<&'a str>,
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of secrets are in it.
        f.debug_struct("Ask").field("operation", &self.operation).finish_non_exhaustive()
    }
}

/// What a call came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Each attempt of each adapter in order, with what is kept of it: long outputs are left out.
    pub attempts: Vec<Attempt>,
    /// Who was called last.
    pub adapter_id: String,
    pub went: Went,
    /// What came out, transformed; as it came where it did not go well.
    pub output: Value,
    pub problem: Option<Problem>,
    pub stdout: String,
    pub stderr: String,
    /// The exit code, or the status of HTTP.
    pub code: Option<u64>,
    pub duration_ms: u64,
    pub is_cut: bool,
    /// Nobody waited any more.
    pub is_stopped: bool,
}

/// Calls a tool by its adapters, one after the other.
pub fn call(request: &Request<'_>, hands: &Hands<'_>) -> Outcome {
    let begun = Instant::now();
    let mut attempts = Vec::new();
    let mut links = request.chain.iter().peekable();
    let mut last = None;
    while let Some(link) = links.next() {
        let (attempt, is_stopped) = one(request, link, hands, &mut attempts);
        let fallback = link.adapter.fallback.as_ref().filter(|fallback| fallback.condition.holds(attempt.went));
        let goes_on = fallback.zip(links.peek()).is_some_and(|(to, next)| to.adapter_id == next.adapter.adapter_id);
        let is_late = Instant::now() >= request.deadline;
        last = Some((attempt, is_stopped));
        if !goes_on || is_stopped || is_late {
            break;
        }
    }
    let (last, is_stopped) = last.unwrap_or_else(|| {
        let problem = Problem::new(Stage::Call, "there is no adapter to call the tool by");
        (Attempt::failed("", Went::Unavailable, problem), false)
    });
    Outcome {
        attempts,
        adapter_id: last.adapter_id,
        went: last.went,
        output: last.output,
        problem: last.problem,
        stdout: last.stdout,
        stderr: last.stderr,
        code: last.code,
        duration_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        is_cut: last.is_cut,
        is_stopped,
    }
}

/// One adapter, as often as it may be asked. The last attempt, transformed, and whether it was stopped.
fn one(request: &Request<'_>, link: &Link<'_>, hands: &Hands<'_>, attempts: &mut Vec<Attempt>) -> (Attempt, bool) {
    let adapter = link.adapter;
    let failed = |problem: Problem| Attempt::failed(&adapter.adapter_id, Went::Wrong(None), problem);
    let stopped = || failed(Problem::new(Stage::Call, "stopped before it was called"));
    let operation = request.operation.and_then(|name| request.tool.operations.get(name));
    let schema = operation.and_then(|operation| operation.parameters.as_ref());
    let params = match transform::input(&adapter.input, schema, request.params.clone()) {
        Ok(params) => params,
        Err(problem) => {
            let attempt = failed(problem);
            attempts.push(kept(&attempt));
            return (attempt, false);
        }
    };
    let mut count = 0;
    loop {
        if (request.stop)() {
            return (stopped(), true);
        }
        count += 1;
        let mut attempt = try_once(request, link, hands, &params);
        let is_over = attempt.went == Went::Well || count >= adapter.retry.max_attempts;
        let delay = match is_over || !retry::is_retryable(&adapter.retry, &attempt) {
            true => None,
            false => retry::delay_ms(&adapter.retry, request.execution_id, count, attempt.retry_after_ms),
        };
        let until = delay.map(|delay| Instant::now() + Duration::from_millis(delay));
        let Some(until) = until.filter(|until| *until < request.deadline) else {
            // Whoever is stopped in the middle of it ends with a failure of its own.
            let is_stopped = attempt.went != Went::Well && (request.stop)();
            transform_output(adapter, &mut attempt);
            attempts.push(kept(&attempt));
            return (attempt, is_stopped);
        };
        attempts.push(kept(&attempt));
        if !wait(until, request.stop) {
            return (attempt, true);
        }
    }
}

fn try_once(request: &Request<'_>, link: &Link<'_>, hands: &Hands<'_>, params: &Map<String, Value>) -> Attempt {
    let deadline = request.deadline.min(Instant::now() + Duration::from_millis(link.sandbox.timeout_ms));
    let Request { tool, operation, secrets, stop, idempotency_key, .. } = request;
    let (operation, stop, idempotency_key) = (*operation, *stop, *idempotency_key);
    let ask = Ask { link, tool, operation, params, secrets, deadline, stop, idempotency_key };
    match &link.adapter.interface {
        Interface::Cli(cli) => program::attempt(hands.cells, cli, &ask),
        Interface::Api(_) => hands.http.attempt(&ask),
        Interface::Sdk(_) | Interface::Mcp(_) => hands.others.attempt(&ask),
    }
}

/// What went well is transformed; a transform that fails makes it a failure.
fn transform_output(adapter: &Adapter, attempt: &mut Attempt) {
    if attempt.went != Went::Well || adapter.output.is_empty() {
        return;
    }
    match transform::output(&adapter.output, attempt.output.clone()) {
        Ok(output) => attempt.output = output,
        Err(mut problem) => {
            if attempt.is_cut {
                problem.message.push_str(" (the output was too long and was cut)");
            }
            attempt.went = Went::Wrong(None);
            attempt.problem = Some(problem);
        }
    }
}

/// Waits in slices. Whether the time was reached: not if nobody waits any more.
fn wait(until: Instant, stop: &dyn Fn() -> bool) -> bool {
    loop {
        if stop() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(WAIT_SLICE));
    }
}

/// What is kept of an attempt besides the last one's output.
fn kept(attempt: &Attempt) -> Attempt {
    let cut = |text: &str| {
        let end = (0..=text.len().min(ATTEMPT_TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        text[..end.unwrap_or(0)].to_owned()
    };
    let is_short = |value: &Value| serde_json::to_vec(value).is_ok_and(|bytes| bytes.len() <= EVIDENCE_BYTES_MAX);
    let short = |value: &Value| if is_short(value) { value.clone() } else { Value::from("left out: too long") };
    Attempt {
        adapter_id: attempt.adapter_id.clone(),
        went: attempt.went,
        output: if attempt.went == Went::Well { Value::Null } else { short(&attempt.output) },
        stdout: cut(&attempt.stdout),
        stderr: cut(&attempt.stderr),
        is_cut: attempt.is_cut,
        code: attempt.code,
        duration_ms: attempt.duration_ms,
        retry_after_ms: attempt.retry_after_ms,
        problem: attempt.problem.clone(),
        evidence: short(&attempt.evidence),
        end: attempt.end,
    }
}

#[cfg(test)]
mod tests;
