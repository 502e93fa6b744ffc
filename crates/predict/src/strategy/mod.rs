//! Strategies: ways from an input to an answer that is valid. Each budget is checked before the call it would pay for.
//!
//! Called by `cli` with a `Model` behind which policy, money and recording are. Never calls a provider, reads no clock:
//! what a strategy does depends on its arguments and on what the model says.

mod direct;
mod operation;
mod purse;
mod rlm_lite;
mod variable;

use serde_json::Value;

use crate::policy;
use crate::protocol::{Message, Prompt, Protocol, Role, Said, Structured, Usage, compose};
use crate::signature::{ITERATIONS_DEFAULT, ITERATIONS_MAX, Program, Signature, Strategy};

/// Somebody who answers. Policy, reservation, receipt and recording of each call are behind this port.
pub trait Model {
    fn ask(&mut self, call: &Call) -> Result<Said, Stop>;

    /// Since the prediction began.
    fn elapsed_ms(&self) -> u64;

    /// At least as many tokens as the prompt is read as. Who knows the protocol can say it closer.
    fn input_tokens_max(&self, prompt: &Prompt) -> u64 {
        let of = |protocol| compose(protocol, prompt, Structured::JsonSchema).input_tokens_max();
        Protocol::ALL.into_iter().map(of).max().unwrap_or(u64::MAX)
    }
}

/// One call that is about to be made; there are tokens, calls and time for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub prompt: Prompt,
    pub purpose: Purpose,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Answer,
    /// The answer before was no good.
    Repair,
    /// The next operation, in this round.
    Iterate {
        n: u64,
    },
    /// A question about a variable, the nth of the prediction.
    Sub {
        n: u64,
    },
}

impl Purpose {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Repair => "repair",
            Self::Iterate { .. } => "iterate",
            Self::Sub { .. } => "sub",
        }
    }
}

/// Why it does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    pub reason_code: String,
    pub message: String,
    /// Policy said no; what failed otherwise was allowed.
    pub is_denied: bool,
}

impl Stop {
    pub fn failed(reason_code: &str, message: impl Into<String>) -> Self {
        Self { reason_code: reason_code.to_owned(), message: message.into(), is_denied: false }
    }
}

/// How far a prediction may go.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    pub model: String,
    pub temperature: Option<f64>,
    pub seed: Option<u64>,
    /// Of one call.
    pub output_tokens: u64,
    pub calls_max: u64,
    /// Of all calls, read and written.
    pub tokens_max: u64,
    pub iterations_max: u64,
    /// Characters of variables that are put into prompts, each time they are.
    pub chars_shown_max: u64,
    pub timeout_ms: u64,
}

const OUTPUT_TOKENS_DEFAULT: u64 = 1_024;
const CALLS_DEFAULT: u64 = 2;
const CALLS_DEFAULT_RLM: u64 = 16;
const TOKENS_DEFAULT: u64 = 1_000_000;
const CHARS_SHOWN_DEFAULT: u64 = 40_000;
const TIMEOUT_MS_DEFAULT: u64 = 120_000;

impl Limits {
    /// What a program says, and where it says nothing, what is usual. `model`: if the program names none.
    pub fn of(program: &Program, model: &str) -> Self {
        let calls = if program.strategy == Strategy::RlmLite { CALLS_DEFAULT_RLM } else { CALLS_DEFAULT };
        Self {
            model: program.model.clone().unwrap_or_else(|| model.to_owned()),
            temperature: program.temperature,
            seed: program.seed,
            output_tokens: program.max_output_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT),
            calls_max: program.max_calls.unwrap_or(calls),
            tokens_max: program.max_tokens.unwrap_or(TOKENS_DEFAULT),
            iterations_max: program.max_iterations.unwrap_or(ITERATIONS_DEFAULT).min(ITERATIONS_MAX),
            chars_shown_max: program.max_chars_shown.unwrap_or(CHARS_SHOWN_DEFAULT),
            timeout_ms: program.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Succeeded,
    /// A valid answer, made with less than it needed; the error says of what there was too little.
    Partial,
    Denied,
    Failed,
}

/// What came of a prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub status: Status,
    /// Valid against the signature, or null.
    pub output: Value,
    pub error: Option<Stop>,
    pub calls: u64,
    /// Of all calls whose provider said it.
    pub usage: Usage,
    /// How it came about, not yet sanitised.
    pub trace: Value,
}

/// Answers a signature for an input, by the strategy it names.
pub fn run(signature: &Signature, input: &Value, limits: &Limits, model: &mut dyn Model) -> Outcome {
    match signature.program.strategy {
        Strategy::Direct => direct::run(signature, input, limits, model),
        Strategy::RlmLite => rlm_lite::run(signature, input, limits, model),
    }
}

/// Whether an input is right; else why nothing is asked.
fn check_input(signature: &Signature, input: &Value) -> Result<(), Stop> {
    signature.check_input(input).map_err(|flaws| {
        Stop::failed(policy::INVALID_INPUT, format!("the input does not fit its schema: {}", flaws.join("; ")))
    })
}

/// The value in what a model said, if it fits.
fn read_output(signature: &Signature, text: &str) -> Result<Value, String> {
    let value = crate::parse::parse(text)?;
    signature.check_output(&value).map_err(|flaws| format!("it does not fit the schema: {}", flaws.join("; ")))?;
    Ok(value)
}

/// Letters of a bad answer that are shown again.
const REPAIR_CHARS_MAX: usize = 4_000;

/// The conversation with a bad answer, and what is wrong with it.
fn repair(mut messages: Vec<Message>, said: &str, why: &str) -> Vec<Message> {
    let said = printable(said, REPAIR_CHARS_MAX);
    let said = if said.trim().is_empty() { "(nothing)".to_owned() } else { said };
    let why = format!("That cannot be used: {why}\nWrite the whole answer again, as JSON only, with this mended.");
    messages.push(Message { role: Role::Assistant, content: said });
    messages.push(Message { role: Role::User, content: why });
    messages
}

/// The beginning of a text, without what no provider takes.
fn printable(text: &str, chars_max: usize) -> String {
    let good = |c: char| if c.is_control() && !matches!(c, '\n' | '\t' | '\r') { '\u{fffd}' } else { c };
    text.chars().take(chars_max).map(good).collect()
}

#[cfg(test)]
mod tests;
