//! What a prediction has left of its budgets. Every call of a strategy goes through here, and none is made whose upper
//! bound is more than what is left.

use actum_contract::digest::Digest;
use serde_json::{Value, json};

use super::{Call, Limits, Model, Outcome, Purpose, Status, Stop, printable};
use crate::protocol::{Message, Prompt, Role, Usage};
use crate::signature::{self, Signature};
use crate::{depth, hash, policy};

/// Letters of what a model said that are kept in the trace of a call.
const SAID_CHARS_MAX: usize = 2_000;

/// Letters of a provider's word in a trace.
const WORD_CHARS_MAX: usize = 100;

/// Largest input that is kept in a trace, as canonical JSON.
const INPUT_BYTES_MAX: usize = 1 << 20;

/// What is set aside for a later call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) calls: u64,
    pub(super) tokens: u64,
}

/// Why no answer came: before a call there was too little left, or the call itself came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    Budget(Stop),
    Model(Stop),
}

impl Halt {
    pub(super) fn stop(self) -> Stop {
        match self {
            Self::Budget(stop) | Self::Model(stop) => stop,
        }
    }
}

/// What an answer must look like, and what that is called.
pub(super) type Form<'f> = Option<(&'f str, &'f Value)>;

pub(super) struct Purse<'p> {
    pub(super) limits: &'p Limits,
    model: &'p mut dyn Model,
    calls: u64,
    /// Read and written so far; where it is not known, what it can have been.
    tokens: u64,
    usage: Usage,
    log: Vec<Value>,
}

impl<'p> Purse<'p> {
    pub(super) fn new(limits: &'p Limits, model: &'p mut dyn Model) -> Self {
        Self { limits, model, calls: 0, tokens: 0, usage: Usage::default(), log: Vec::new() }
    }

    pub(super) fn tokens_left(&self) -> u64 {
        self.limits.tokens_max.saturating_sub(self.tokens)
    }

    pub(super) fn calls_left(&self) -> u64 {
        self.limits.calls_max.saturating_sub(self.calls)
    }

    /// Tokens that these messages are read as at most.
    pub(super) fn input_tokens_max(&self, messages: &[Message], form: Form<'_>) -> u64 {
        self.model.input_tokens_max(&self.prompt(messages.to_vec(), form))
    }

    fn prompt(&self, messages: Vec<Message>, form: Form<'_>) -> Prompt {
        let (name, schema) = form.unzip();
        Prompt {
            model: self.limits.model.clone(),
            messages,
            schema: schema.cloned(),
            schema_name: name.unwrap_or("answer").to_owned(),
            output_tokens: self.limits.output_tokens,
            temperature: self.limits.temperature,
            seed: self.limits.seed,
        }
    }

    /// Makes a call if there is enough for it beside what is kept. The answer is made shorter if need be.
    pub(super) fn ask(
        &mut self,
        messages: Vec<Message>,
        form: Form<'_>,
        purpose: Purpose,
        kept: Kept,
    ) -> Result<String, Halt> {
        let budget = |code: &str, message: String| Err(Halt::Budget(Stop::failed(code, message)));
        let limits = self.limits;
        if self.model.elapsed_ms() >= limits.timeout_ms {
            return budget(policy::TIMEOUT, format!("the {} ms of the prediction are over", limits.timeout_ms));
        }
        if self.calls_left() <= kept.calls {
            return budget(policy::CALLS_EXHAUSTED, format!("the prediction has {} calls", limits.calls_max));
        }
        let mut prompt = self.prompt(messages, form);
        let input_max = self.model.input_tokens_max(&prompt);
        let output_max =
            self.tokens_left().saturating_sub(kept.tokens).saturating_sub(input_max).min(limits.output_tokens);
        if output_max == 0 {
            let left = self.tokens_left();
            let message = format!(
                "of {} tokens {left} are left, {} of them for the answer; the next call may read {input_max}",
                limits.tokens_max, kept.tokens
            );
            return budget(policy::TOKENS_EXHAUSTED, message);
        }
        prompt.output_tokens = output_max;
        self.calls += 1;
        let call = Call { prompt, purpose };
        let answer = self.model.ask(&call);
        let said_usage = answer.as_ref().ok().and_then(|said| said.usage);
        // What is not known is taken for the most it can have been: the provider may ask for it.
        let most = Usage { input: input_max, output: output_max, ..Usage::default() };
        if !answer.as_ref().is_err_and(|stop| stop.is_denied) {
            let Usage { input, output, .. } = said_usage.unwrap_or(most);
            self.tokens = self.tokens.saturating_add(input).saturating_add(output);
        }
        let Usage { input, cached, cache_write, cache_write_long, output } = said_usage.unwrap_or_default();
        self.usage.input = self.usage.input.saturating_add(input);
        self.usage.cached = self.usage.cached.saturating_add(cached);
        self.usage.cache_write = self.usage.cache_write.saturating_add(cache_write);
        self.usage.cache_write_long = self.usage.cache_write_long.saturating_add(cache_write_long);
        self.usage.output = self.usage.output.saturating_add(output);
        let mut noted = json!({
            "n": self.calls,
            "purpose": purpose.word(),
            "prompt_hash": hash::of(&messages_json(&call.prompt.messages)),
            "input_tokens_max": input_max,
            "output_tokens_max": output_max,
            "usage": said_usage,
        });
        if let Purpose::Iterate { n } | Purpose::Sub { n } = purpose {
            noted["of_purpose"] = json!(n);
        }
        match &answer {
            Ok(said) => {
                noted["said"] = json!(printable(&said.text, SAID_CHARS_MAX));
                noted["said_hash"] = json!(hash::of(&json!(said.text)));
                noted["model"] = json!(said.model.as_deref().map(|model| printable(model, WORD_CHARS_MAX)));
                noted["stop"] = json!(said.stop.as_deref().map(|stop| printable(stop, WORD_CHARS_MAX)));
            }
            Err(stop) => noted["stopped"] = stop_json(stop),
        }
        self.log.push(noted);
        answer.map(|said| said.text).map_err(Halt::Model)
    }

    /// Adds to the last call what was wrong with its answer.
    pub(super) fn note_flaw(&mut self, why: &str) {
        if let Some(last) = self.log.last_mut() {
            last["flaw"] = json!(printable(why, SAID_CHARS_MAX));
        }
    }

    /// What came of it all. `trace`: fields of the strategy's own.
    pub(super) fn close(self, signature: &Signature, input: &Value, ended: Ended, trace: Value) -> Outcome {
        let Ended { status, output, error } = ended;
        let read = hash::canonical(input);
        let mut whole = json!({
            "strategy_id": signature.program.strategy.word(),
            "signature_id": signature.id(),
            "input_hash": Digest::sha256(&read).to_hex(),
            "output_hash": hash::of(&output),
            "output": output,
            "calls": self.log,
            "stopped": error.as_ref().map(stop_json),
        });
        // What is refused for being too deep could not be read again either.
        if read.len() > INPUT_BYTES_MAX || depth::is_deeper(input, signature::LEVELS_MAX) {
            whole["input_omitted"] = json!(read.len());
        } else {
            whole["input"] = input.clone();
        }
        if let (Value::Object(whole), Value::Object(own)) = (&mut whole, trace) {
            whole.extend(own);
        }
        Outcome { status, output, error, calls: self.calls, usage: self.usage, trace: whole }
    }
}

/// How a strategy ended.
pub(super) struct Ended {
    status: Status,
    output: Value,
    error: Option<Stop>,
}

impl Ended {
    pub(super) fn well(output: Value) -> Self {
        Self { status: Status::Succeeded, output, error: None }
    }

    /// With an answer that could have been better.
    pub(super) fn partly(output: Value, stop: Stop) -> Self {
        Self { status: Status::Partial, output, error: Some(stop) }
    }

    pub(super) fn badly(stop: Stop) -> Self {
        let status = if stop.is_denied { Status::Denied } else { Status::Failed };
        Self { status, output: Value::Null, error: Some(stop) }
    }
}

fn messages_json(messages: &[Message]) -> Value {
    let one = |message: &Message| json!({"role": Role::word(message.role), "content": message.content});
    messages.iter().map(one).collect()
}

fn stop_json(stop: &Stop) -> Value {
    let message = printable(&stop.message, SAID_CHARS_MAX);
    json!({"reason_code": stop.reason_code, "message": message, "is_denied": stop.is_denied})
}
