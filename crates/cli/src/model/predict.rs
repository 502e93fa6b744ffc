//! Predictions: a signature answered by a strategy, each of its calls by way of the line, and a receipt above them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actum_api::error;
use actum_predict::artifact::Incompatible;
use actum_predict::policy::{self, Context, Decision, Inputs};
use actum_predict::protocol::{Prompt, Protocol, Said, Structured, Usage, compose, extract};
use actum_predict::provider::Provider;
use actum_predict::receipt::{Budget, Failure as Reason, Kind, Receipt, Rollout, Status};
use actum_predict::sanitise::sanitise;
use actum_predict::strategy::{self, Call, Limits, Model, Outcome, Stop};
use actum_predict::{Way, hash, trace};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::line::{Line, Reply, Within};
use super::receipt;
use super::recorded::Exchange;
use super::till::About;
use super::{Counter, Till};
use crate::failure::Failure;
use crate::workspace::new_id;

/// Who is asked.
#[derive(Debug, Clone)]
pub(crate) struct Whom {
    pub model: String,
    pub provider: Option<String>,
    pub protocol: Protocol,
    pub structured: Structured,
    /// The most a call may be answered with.
    pub output_tokens: u64,
}

impl Whom {
    /// The model a signature is asked of: the one named by the caller, by the program, or the only one there is.
    pub(crate) fn of(
        counter: &Counter,
        model: Option<&str>,
        provider: Option<&str>,
        program: &actum_predict::signature::Program,
    ) -> Result<Self, Failure> {
        let provider = provider.or(program.provider.as_deref());
        let wanted = || counter.providers.iter().filter(|one| provider.is_none_or(|id| one.id == id));
        if let Some(id) = provider.filter(|_| wanted().next().is_none()) {
            let failure = Failure::new(error::NOT_FOUND, format!("there is no provider {id:?}"));
            return Err(failure.hint("add [providers.NAME] to actum.toml: `actum schema config` prints how"));
        }
        let only = || {
            let mut named: Vec<&String> =
                wanted().flat_map(|one| &one.models).filter(|name| !name.contains('*')).collect();
            named.dedup();
            match named[..] {
                [one] => Some(one.clone()),
                _ => None,
            }
        };
        let model = model.map(ToOwned::to_owned).or_else(|| program.model.clone()).or_else(only).ok_or_else(|| {
            Failure::new(error::USAGE, "which model is to be asked?")
                .hint("name it by --model, in the signature's program_template, or as the only one of a provider")
        })?;
        let fits = |one: &&Provider| one.fits(&model).is_some();
        let best = wanted().filter(fits).max_by_key(|one| (one.fits(&model), std::cmp::Reverse(&one.id)));
        let Some(found) = best else {
            let failure = Failure::new(error::NOT_FOUND, format!("no provider is set up for the model {model:?}"));
            return Err(failure.hint("add [providers.NAME] to actum.toml: `actum schema config` prints how"));
        };
        let same =
            wanted().filter(|one| one.fits(&model) == found.fits(&model) && one.id != found.id).map(|one| &one.id);
        if let Some(other) = same.min() {
            let message = format!("the providers {} and {other} both have the model {model:?}", found.id);
            return Err(
                Failure::new(error::USAGE, message).hint("name one by --provider, or say in `models` what each has")
            );
        }
        // Before anything is set aside.
        counter.key(found)?;
        Ok(Self {
            model,
            provider: Some(found.id.clone()),
            protocol: found.kind.protocol(),
            structured: found.structured,
            output_tokens: found.output_tokens,
        })
    }
}

impl Whom {
    /// Who would be asked by a program, where nobody is.
    pub(crate) fn nobody(program: &actum_predict::signature::Program) -> Self {
        Self {
            model: program.model.clone().unwrap_or_default(),
            provider: program.provider.clone(),
            protocol: Protocol::Chat,
            structured: Structured::Nothing,
            output_tokens: 0,
        }
    }

    /// As it is kept, so that a run can be repeated without the settings.
    pub(crate) fn to_json(&self) -> Value {
        let structured = match self.structured {
            Structured::JsonSchema => "json_schema",
            Structured::JsonObject => "json_object",
            Structured::Nothing => "none",
        };
        json!({
            "model": self.model, "provider": self.provider, "protocol": self.protocol.word(), "structured": structured,
            "output_tokens": self.output_tokens,
        })
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().map(ToOwned::to_owned);
        Some(Self {
            model: text("model")?,
            provider: text("provider"),
            protocol: Protocol::from_word(value["protocol"].as_str()?)?,
            structured: match value["structured"].as_str()? {
                "json_schema" => Structured::JsonSchema,
                "json_object" => Structured::JsonObject,
                _ => Structured::Nothing,
            },
            output_tokens: value["output_tokens"].as_u64()?,
        })
    }
}

/// What came of a prediction.
#[derive(Debug)]
pub(crate) struct Predicted {
    pub prediction: String,
    pub outcome: Outcome,
    /// As it stands on record; nothing in a repetition.
    pub receipt: Option<Value>,
    /// For a recording.
    pub exchanges: Vec<Exchange>,
    pub took_ms: u64,
}

/// Answers for a strategy, call by call.
struct Asking<'l> {
    line: &'l Line,
    wait: &'l dyn Fn(Waiting<'_>) -> Reply,
    whom: &'l Whom,
    within: Within,
    about: About,
    began: Instant,
    judged: Option<(Inputs, Decision)>,
    spent: u64,
    /// After the last call, as far as it knew.
    remaining: Option<u64>,
    exchanges: Vec<Exchange>,
}

impl Model for Asking<'_> {
    fn ask(&mut self, call: &Call) -> Result<Said, Stop> {
        let question = compose(self.whom.protocol, &call.prompt, self.whom.structured);
        let about = About { prediction: new_id(), parent: Some(self.about.prediction.clone()), ..self.about.clone() };
        let reply = (self.wait)(match &self.line.till {
            Some(_) => Box::pin(self.line.ask_within(question, &about, &self.within)),
            None => Box::pin(self.line.ask(question, &about, &[], None)),
        });
        if let (Some(till), Some((_, denial))) = (&self.line.till, &reply.trouble)
            && denial.reason_code == policy::TIMEOUT
        {
            // What it cost is not known, and is found out by somebody else.
            till.counter().waiter.wait(Box::pin(till.abandon(Some(&self.about.prediction)))).unwrap_or_default();
        }
        if let Some(asked) = &reply.asked {
            self.spent = self.spent.saturating_add(asked.spent);
            self.judged.clone_from(&asked.judged);
            let left = asked.judged.as_ref().and_then(|(inputs, _)| inputs.budget.remaining);
            self.remaining = left.map(|left| left.saturating_sub(asked.spent));
            self.exchanges.extend(asked.exchange.clone());
        }
        // What others say may hold what must not be kept.
        let cleaned = |message: String| match &self.line.till {
            Some(till) => match sanitise(&Value::String(message), &till.redactor) {
                Value::String(clean) => clean,
                other => other.to_string(),
            },
            None => message,
        };
        let stop = |code: &str, message: String, is_denied| Stop {
            reason_code: code.to_owned(),
            message: cleaned(message),
            is_denied,
        };
        if let Some((_, denial)) = &reply.trouble {
            return Err(stop(&denial.reason_code, denial.message.clone(), reply.is_denied));
        }
        if !(200..300).contains(&reply.status) {
            // Cleaned while it is whole: half a secret is not known for one.
            let body = cleaned(String::from_utf8_lossy(&reply.body).into_owned());
            let body: String = body.chars().take(ERROR_CHARS_MAX).collect();
            let hint = match (reply.status, self.whom.protocol) {
                (404, Protocol::Chat) => " (is base_url right? for openai it ends in /v1)",
                (404, _) => " (is base_url right? it ends before /v1)",
                _ => "",
            };
            let message = format!("the provider answered with status {}{hint}: {body}", reply.status);
            return Err(stop(policy::PROVIDER_ERROR, message, false));
        }
        extract(self.whom.protocol, &reply.body).map_err(|why| stop(policy::PROVIDER_ERROR, why, false))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn input_tokens_max(&self, prompt: &Prompt) -> u64 {
        compose(self.whom.protocol, prompt, self.whom.structured).input_tokens_max()
    }
}

/// Letters of a provider's error that are told.
const ERROR_CHARS_MAX: usize = 500;

/// Asks. `rollout`: how it came to be this way. `within`: how long whoever asks waits for one answer, beside the limits of
/// the signature.
pub(crate) fn predict(
    line: &Line,
    whom: &Whom,
    way: &Way,
    rollout: &Rollout,
    input: &Value,
    within: Option<&Within>,
) -> Result<Predicted, Failure> {
    attempt(line, whom, (way, rollout), input, within, None)
}

/// Asks nobody: the artifact was made for another form of the signature. What is left of it is a receipt.
pub(crate) fn refuse(
    line: &Line,
    whom: &Whom,
    (way, rollout): (&Way, &Rollout),
    input: &Value,
    why: &Incompatible,
) -> Result<Predicted, Failure> {
    let stop = Stop { reason_code: why.reason_code.to_owned(), message: why.message.clone(), is_denied: false };
    let trace = json!({
        "signature_id": way.signature.id(), "compiled_id": way.compiled_id, "input_hash": hash::of(input),
        "stopped": {"reason_code": why.reason_code, "message": why.message},
    });
    let (status, usage) = (strategy::Status::Failed, Usage::default());
    let refused = Outcome { status, output: Value::Null, error: Some(stop), calls: 0, usage, trace };
    attempt(line, whom, (way, rollout), input, None, Some(refused))
}

/// `known`: what comes of it, where nobody has to be asked.
fn attempt(
    line: &Line,
    whom: &Whom,
    (way, rollout): (&Way, &Rollout),
    input: &Value,
    within: Option<&Within>,
    known: Option<Outcome>,
) -> Result<Predicted, Failure> {
    let started = Timestamp::now();
    let signature = &way.signature;
    let mut limits = Limits::of(&signature.program, &whom.model);
    limits.model.clone_from(&whom.model);
    limits.output_tokens = limits.output_tokens.min(whom.output_tokens);
    let about = About { provider: whom.provider.clone(), rollout: rollout.clone(), ..About::new(way) };
    let waiter = line.till.as_ref().map(|till| till.counter().waiter.clone());
    let wait = |work: Waiting<'_>| match &waiter {
        Some(waiter) => waiter.block(work),
        // Nobody is asked: there is nothing to wait for.
        None => now(work),
    };
    let own = Instant::now() + Duration::from_millis(limits.timeout_ms);
    let within = match within {
        Some(within) => Within { until: within.until.min(own), ..within.clone() },
        None => Within { until: own, stopped: Arc::default() },
    };
    let mut asking = Asking {
        line,
        wait: &wait,
        whom,
        within,
        about,
        began: Instant::now(),
        judged: None,
        spent: 0,
        remaining: None,
        exchanges: Vec::new(),
    };
    let outcome = known.unwrap_or_else(|| strategy::run(signature, input, &limits, &mut asking));
    let took_ms = asking.elapsed_ms();
    let receipt = match &line.till {
        None => None,
        Some(till) => Some(record(till, input, &outcome, &asking, started)?),
    };
    let Asking { about, exchanges, .. } = asking;
    Ok(Predicted { prediction: about.prediction, outcome, receipt, exchanges, took_ms })
}

/// The receipt above the calls.
fn record(
    till: &Till,
    input: &Value,
    outcome: &Outcome,
    asking: &Asking<'_>,
    started: Timestamp,
) -> Result<Value, Failure> {
    let counter = till.counter();
    let run = till.run();
    let trace = trace::capture(run, &asking.about.signature, &outcome.trace, &counter.redactor());
    let trace = receipt::keep(counter, trace)?;
    // Without a call there was nothing to judge.
    let (inputs, decision) = asking.judged.clone().unwrap_or_else(|| {
        let context = Context { is_priced: true, ..Context::default() };
        let inputs = Inputs { policy_id: "ds.predict.v1".into(), context, ..Inputs::default() };
        let decision = policy::evaluate(&inputs);
        (inputs, decision)
    });
    let output_hash = (!outcome.output.is_null()).then(|| hash::of(&outcome.output));
    let budget = Budget {
        spent: asking.spent,
        remaining: asking.remaining,
        ..Budget::of(&inputs.budget.currency, &outcome.usage)
    };
    let error = outcome.error.as_ref();
    let made = Receipt {
        kind: Kind::Prediction,
        run_id: run,
        ordinal: till.next_ordinal(),
        prediction_id: &asking.about.prediction,
        parent_prediction_id: None,
        signature_id: &asking.about.signature,
        strategy_id: &asking.about.strategy,
        compiled_id: &asking.about.compiled_id,
        rollout: &asking.about.rollout,
        hashes: &asking.about.hashes,
        params_hash: &hash::of(input),
        output_hash: output_hash.as_deref(),
        inputs: &inputs,
        decision: &decision,
        budget,
        timing: receipt::timing(started, asking.began.elapsed().as_millis()),
        trace: Some(&trace),
        status: match outcome.status {
            strategy::Status::Succeeded => Status::Succeeded,
            strategy::Status::Partial => Status::Partial,
            strategy::Status::Denied => Status::Denied,
            strategy::Status::Failed => Status::Failed,
        },
        error: error.map(|stop| Reason { reason_code: stop.reason_code.clone(), message: stop.message.clone() }),
        provider: asking.whom.provider.as_deref(),
        model: Some(asking.whom.model.as_str()).filter(|model| !model.is_empty()),
        protocol: Some(asking.whom.protocol.word()),
    };
    let shown = made.to_json();
    let (_, entry) = receipt::submission(counter, till.robot(), &shown, &trace)?;
    counter.waiter.wait(counter.waiter.journal.append(entry))?;
    Ok(shown)
}

/// A call under way.
type Waiting<'w> = Pin<Box<dyn Future<Output = Reply> + Send + 'w>>;

/// What is over at once.
fn now(mut work: Waiting<'_>) -> Reply {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(reply) = work.as_mut().poll(&mut context) {
            return reply;
        }
    }
}

/// What a caller is shown.
pub(crate) fn shown(predicted: &Predicted) -> Value {
    let outcome = &predicted.outcome;
    let receipt = predicted.receipt.clone().unwrap_or_default();
    let mut shown = json!({
        "prediction_id": predicted.prediction, "receipt_id": receipt["receipt_id"], "status": receipt["status"],
        "output": outcome.output, "calls": outcome.calls, "usage": outcome.usage, "duration_ms": predicted.took_ms,
        "budget": receipt["budget"], "policy": receipt["policy"], "trace_ref": receipt["trace_ref"], "receipt": receipt,
    });
    if let Some(stop) = &outcome.error {
        shown["error"] = json!({"reason_code": stop.reason_code, "message": stop.message});
    }
    shown
}
