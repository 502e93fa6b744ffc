//! One question to a model, from the policy to the receipt: judged, reserved, asked, paid for, receipted. In this order:
//! what was denied is never asked, and what was asked was reserved before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actum_adapters::model::{Failed, Incoming, Upstream};
use actum_api::error;
use actum_contract::execution::Redactor;
use actum_kernel::Denial;
use actum_ledger::draft::Submission;
use actum_ledger::journal::{JournalError, Outcome};
use actum_ledger::spend::{Authorization, CURRENCY, How, Refused, Reserve, RetryClass, Settle};
use actum_predict::Way;
use actum_predict::policy::{self, Context, Decision, Inputs, Loops, evaluate};
use actum_predict::price::{Price, cost, estimate};
use actum_predict::protocol::{Meter, Metered, Question, Trouble, Usage, is_same_model};
use actum_predict::provider::{Kind, Provider};
use actum_predict::receipt::Rollout;
use actum_predict::signature::Hashes;
use actum_server::{Head, Teller};
use jiff::Timestamp;
use serde_json::json;

use super::Counter;
use super::clean::{Clean, LEAK, Seam};
use super::gateway::EVENTS;
use super::receipt::{self, Ended};
use super::recorded::{Exchange, Recording};
use crate::approval;
use crate::failure::Failure;
use crate::purse::{self, Authorized, Purse, inputs_of, snapshot};
use crate::telemetry;
use crate::workspace::new_id;

/// Longer than a call may take, before its reservation is taken for stuck.
const HOLD_MS: u64 = 60_000;
/// How long a person has to agree.
const AGREED_WITHIN: Duration = Duration::from_secs(600);
/// How often it is looked whether a person has agreed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Which question it is, in the words of its receipt.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub prediction: String,
    pub parent: Option<String>,
    pub signature: String,
    pub strategy: String,
    pub compiled_id: String,
    pub hashes: Hashes,
    pub rollout: Rollout,
    /// The provider that is wanted, if one is.
    pub provider: Option<String>,
}

impl About {
    /// Of a signature that is asked this way, without a pointer.
    pub(crate) fn new(way: &Way) -> Self {
        Self {
            prediction: new_id(),
            parent: None,
            signature: way.signature.id(),
            strategy: way.signature.program.strategy.word().to_owned(),
            compiled_id: way.compiled_id.clone(),
            hashes: way.hashes.clone(),
            rollout: Rollout::default(),
            provider: None,
        }
    }
}

/// What came of a question.
#[derive(Debug)]
pub(crate) struct Asked {
    pub status: u16,
    pub content_type: String,
    /// The whole answer, without keys.
    pub body: Vec<u8>,
    pub metered: Option<Metered>,
    pub trouble: Option<(Trouble, Denial)>,
    /// Whether the trouble is a no of the policy.
    pub is_denied: bool,
    /// Whether whoever asked has heard all of it already.
    pub is_told: bool,
    /// As it stands on record.
    pub receipt: Option<String>,
    pub spent: u64,
    /// For a recording.
    pub exchange: Option<Exchange>,
    /// What the policy looked at, and what it said.
    pub judged: Option<(Inputs, Decision)>,
}

/// What is known of a call that was begun.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub ordinal: u64,
    pub call: String,
    pub started: Timestamp,
    pub at: Instant,
    pub about: About,
    pub question: Question,
    pub provider: String,
    pub price: Option<Price>,
    pub amount: u64,
    pub authorization: Option<Authorization>,
    pub inputs: Inputs,
    pub decision: Decision,
}

/// What one run, or one who asks by himself, asks and pays through.
pub(crate) struct Till {
    pub(super) counter: Arc<Counter>,
    pub(super) who: Authorized,
    purse: Purse,
    ordinal: AtomicU64,
    loops: Mutex<Loops>,
    /// Whether equal questions are a sign that it leads nowhere.
    looks_for_loops: bool,
    upstreams: Mutex<BTreeMap<String, Arc<Upstream>>>,
    pub(super) redactor: Redactor,
    /// Calls that were reserved and are not settled.
    open: Mutex<BTreeMap<u64, Begun>>,
    /// Where exchanges are kept besides, if anywhere.
    recording: Option<Arc<Recording>>,
    /// What the store said when it did not answer, since it was last asked for.
    silence: Mutex<Option<String>>,
}

impl std::fmt::Debug for Till {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Till").field("who", &self.who).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a question was not answered, and nothing of it is on record.
fn broken(trouble: Trouble, reason_code: &str, message: impl Into<String>) -> Asked {
    let denial = Denial { reason_code: reason_code.to_owned(), message: message.into() };
    Asked {
        status: 0,
        content_type: String::new(),
        body: Vec::new(),
        metered: None,
        trouble: Some((trouble, denial)),
        is_denied: false,
        is_told: false,
        receipt: None,
        spent: 0,
        exchange: None,
        judged: None,
    }
}

impl Till {
    fn stopped(&self, e: &JournalError) -> Asked {
        if matches!(e, JournalError::Unavailable(_)) {
            *lock(&self.silence) = Some(e.to_string());
        }
        let message = format!("the store does not answer, so nothing is spent: {e}");
        broken(Trouble::Upstream, policy::PROVIDER_ERROR, message)
    }

    /// Whether the store was away when somebody asked, and what it said. Told once.
    pub(crate) fn silence(&self) -> Option<String> {
        lock(&self.silence).take()
    }

    pub(crate) fn open(counter: &Arc<Counter>, who: Authorized) -> Self {
        Self {
            counter: Arc::clone(counter),
            purse: Purse::new(&counter.spend, &counter.tenant, who.clone()),
            redactor: counter.redactor(),
            who,
            ordinal: AtomicU64::new(0),
            loops: Mutex::default(),
            looks_for_loops: true,
            upstreams: Mutex::default(),
            open: Mutex::default(),
            recording: None,
            silence: Mutex::default(),
        }
    }

    /// Keeps every whole exchange in a file, too.
    pub(crate) fn recorded(self, recording: Option<Arc<Recording>>) -> Self {
        Self { recording, ..self }
    }

    /// Whoever tries something out asks the same as often as there are examples for it.
    pub(crate) fn repeating(self) -> Self {
        Self { looks_for_loops: false, ..self }
    }

    pub(crate) fn run(&self) -> &str {
        &self.who.run
    }

    pub(crate) fn robot(&self) -> Option<&str> {
        self.who.autopilot.as_deref()
    }

    /// The place of the next receipt in its run.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.ordinal.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn counter(&self) -> &Arc<Counter> {
        &self.counter
    }

    /// Asks once. With a teller the answer goes there as it comes, but for its end: that is told when it is paid for.
    pub(crate) async fn ask(
        &self,
        question: Question,
        about: &About,
        headers: &[(String, String)],
        teller: Option<&mut Teller>,
    ) -> Asked {
        let provider = self.counter.provider(question.protocol, &question.model, about.provider.as_deref());
        let provider = provider.map_or("-", |provider| provider.kind.known_as().unwrap_or(&provider.id));
        let operation = telemetry::chat(&self.who.run, &question.model, provider);
        let asked = self.ask_quietly(question, about, headers, teller).await;
        let metered = asked.metered.as_ref();
        let answered = telemetry::Answered {
            model: metered.and_then(|metered| metered.model.as_deref()),
            tokens: metered.and_then(|metered| metered.usage.as_ref()).map(|usage| (usage.input, usage.output)),
            spent: (asked.spent, asked.judged.as_ref().map_or(CURRENCY, |(inputs, _)| &inputs.budget.currency)),
            error: asked.trouble.as_ref().map(|(_, denial)| denial.reason_code.as_str()),
        };
        telemetry::chat_ended(operation, &self.who.run, &answered);
        asked
    }

    async fn ask_quietly(
        &self,
        mut question: Question,
        about: &About,
        headers: &[(String, String)],
        teller: Option<&mut Teller>,
    ) -> Asked {
        let counter = &self.counter;
        let Some(provider) = counter.provider(question.protocol, &question.model, about.provider.as_deref()) else {
            let message = format!("no provider is set up for the model {:?} by this protocol", question.model);
            return broken(Trouble::NotFound, policy::PROVIDER_ERROR, message);
        };
        question.limit_output(provider.output_tokens, &provider.limit_field);
        let left = teller.as_deref();
        let begun = match self.judge(question, about, provider, &|| left.is_some_and(Teller::is_gone)).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(denied)) => return denied,
            Err(e) => return self.stopped(&e),
        };
        if provider.kind == Kind::Recorded {
            return self.recall(begun, provider).await;
        }
        let upstream = match self.upstream(provider) {
            Ok(upstream) => upstream,
            Err(failure) => {
                let how = How::Release { reason: failure.message.clone() };
                let ended = Ended::failed(policy::PROVIDER_ERROR, &failure.message);
                return self
                    .settle(begun, how, ended, broken(Trouble::Upstream, policy::PROVIDER_ERROR, failure.message))
                    .await;
            }
        };
        let body = begun.question.bytes().into();
        match upstream.send(&begun.question.path(), body, &begun.call_key(&self.who.run), headers).await {
            Ok(incoming) => {
                let mut asked = self.hear(begun, incoming, teller).await;
                let whole = asked.exchange.as_ref().filter(|_| asked.trouble.is_none());
                // It is paid for, and whoever wanted it kept has to know that it is not.
                if let Err(failure) = counter.keep(provider, whole) {
                    let denial = Denial { reason_code: policy::PROVIDER_ERROR.to_owned(), message: failure.message };
                    asked.trouble.get_or_insert((Trouble::Upstream, denial));
                }
                asked
            }
            Err(failed) => {
                let (how, ended, trouble, code, message) = match failed {
                    Failed::NeverSent(why) => {
                        let ended = Ended::failed(policy::PROVIDER_ERROR, &why);
                        (How::Release { reason: why.clone() }, ended, Trouble::Upstream, policy::PROVIDER_ERROR, why)
                    }
                    Failed::CircuitOpen { for_ms } => {
                        let why = format!("the provider failed too often; it is asked again in {for_ms} ms");
                        let ended = Ended::failed(policy::PROVIDER_CIRCUIT_OPEN, &why);
                        (
                            How::Release { reason: why.clone() },
                            ended,
                            Trouble::CircuitOpen,
                            policy::PROVIDER_CIRCUIT_OPEN,
                            why,
                        )
                    }
                    Failed::Unknown(why) => {
                        let ended = Ended::unknown(&why);
                        (How::Unknown { reason: why.clone() }, ended, Trouble::Upstream, policy::PROVIDER_ERROR, why)
                    }
                };
                self.settle(begun, how, ended, broken(trouble, code, message)).await
            }
        }
    }

    /// The policy, and then the money.
    async fn judge(
        &self,
        question: Question,
        about: &About,
        provider: &Provider,
        is_gone: &(dyn Fn() -> bool + Sync),
    ) -> Result<Result<Begun, Asked>, JournalError> {
        let counter = &self.counter;
        let ordinal = self.next_ordinal();
        let free = || Price {
            input: 0,
            output: 0,
            cached: None,
            cache_write: None,
            cache_write_1h: None,
            image_tokens: None,
            currency: CURRENCY.to_owned(),
        };
        let price = match provider.kind {
            Kind::Recorded => Some(free()),
            _ => counter.prices.find(&provider.id, &question.model).cloned(),
        };
        let tokens_out =
            question.output_tokens.unwrap_or(provider.output_tokens).saturating_mul(question.choices.max(1));
        let most = |price: &Price| {
            let tokens_in = question.input_tokens_max_with(price.image_tokens_max());
            estimate(price, tokens_in, tokens_out, question.is_kept_long())
        };
        let amount = price.as_ref().map_or(0, most);
        let currency = price.as_ref().map_or(CURRENCY, |price| price.currency.as_str()).to_owned();
        let known = self.purse.known();
        let is_known = known.is_some();
        let mut authorization = match known {
            Some(known) => Some(known),
            None => self.purse.authorization(&currency).await?,
        };
        let loops = lock(&self.loops).note(&question.exact_key()).filter(|_| self.looks_for_loops);
        let context = Context {
            loop_detected_reason: loops.map(ToOwned::to_owned),
            // What the provider adds itself has no bound, and so no price.
            is_priced: price.is_some() && question.unbounded().is_none(),
            ..Context::default()
        };
        let mut inputs = inputs_of(authorization.as_ref(), amount, &currency, context);
        let mut decision = evaluate(&inputs);
        if is_known && !decision.is_allowed() {
            authorization = self.purse.authorization(&currency).await?;
            inputs = inputs_of(authorization.as_ref(), amount, &currency, inputs.context);
            decision = evaluate(&inputs);
        }
        if matches!(decision.reason_code.as_str(), policy::APPROVAL_REQUIRED | policy::THRESHOLD_EXCEEDED) {
            match self.agreement(ordinal, amount, authorization.as_ref(), &question, is_gone).await {
                Ok(id) => {
                    inputs.context.approval = Some(id);
                    decision = evaluate(&inputs);
                }
                Err(failure) if failure.row.name == error::APPROVAL_DENIED => {
                    (inputs.decision, inputs.reason_code) = (Some("denied".into()), Some(policy::EXPLICIT_DENY.into()));
                    decision = evaluate(&inputs);
                }
                Err(_) => {}
            }
        }
        let call = self.who.call(ordinal);
        let mut begun = Begun {
            ordinal,
            call,
            started: Timestamp::now(),
            at: Instant::now(),
            about: about.clone(),
            question,
            provider: provider.id.clone(),
            price,
            amount,
            authorization,
            inputs,
            decision,
        };
        if !begun.decision.is_allowed() {
            let message = self.explain(&begun);
            return Ok(Err(self.deny(begun, message).await));
        }
        let Some(authorization) = begun.authorization.as_ref() else { return Ok(Ok(begun)) };
        let reserve = Reserve {
            tenant: counter.tenant.clone(),
            authorization: authorization.id.clone(),
            run: self.who.run.clone(),
            call: begun.call.clone(),
            amount,
            currency,
            retry: RetryClass::DedupeReconcileRequired,
            idempotency_key: Some(begun.call_key(&self.who.run)),
            approval: begun.inputs.context.approval.clone(),
            hold_ms: provider.total_ms.saturating_mul(provider.attempts).saturating_add(HOLD_MS),
        };
        let reserved = counter.spend.reserve(reserve).await?;
        let refused = match reserved {
            Ok(held) if !held.replayed => {
                self.purse.learn(&held.authorization);
                begun.authorization = Some(held.authorization);
                lock(&self.open).insert(ordinal, begun.clone());
                actum_contract::crash::pass(CRASH_POINTS, "model.reserved");
                return Ok(Ok(begun));
            }
            // What one call has set aside pays for one.
            Ok(_) => (policy::IDEMPOTENCY_CONFLICT, format!("the same call is under way: {}", begun.call)),
            Err(Refused { code, message, .. }) => (code.reason(), message),
        };
        // Somebody else was faster, or what was looked at has changed since: judged again as it is now.
        let (reason, message) = refused;
        let currency = begun.inputs.budget.currency.clone();
        if let Some(found) = self.purse.authorization(&currency).await? {
            begun.inputs.budget = snapshot(&found, begun.amount, &currency);
            begun.authorization = Some(found);
        }
        (begun.inputs.decision, begun.inputs.reason_code) = (Some("denied".into()), Some(reason.to_owned()));
        begun.decision = evaluate(&begun.inputs);
        Ok(Err(self.deny(begun, message).await))
    }

    /// A person's word, asked for and waited for.
    async fn agreement(
        &self,
        ordinal: u64,
        amount: u64,
        authorization: Option<&Authorization>,
        question: &Question,
        is_gone: &(dyn Fn() -> bool + Sync),
    ) -> Result<String, Failure> {
        let until = Instant::now() + AGREED_WITHIN;
        let id = authorization.map(|one| one.id.as_str());
        let currency = authorization.map_or(CURRENCY, |one| one.currency.as_str());
        let agreed =
            json!({"authorization": id, "run": self.who.run, "question": question.exact_key(), "ordinal": ordinal});
        let agreed =
            if self.who.waits { agreed } else { json!({"authorization": id, "question": question.exact_key()}) };
        let shown = json!({"model": question.model, "up_to": amount, "currency": currency, "authorization": id, "run": self.who.run});
        let request = approval::Request {
            tool: format!("model {}", question.model),
            tenant: &self.counter.tenant,
            wants: vec![format!("up to {amount} {currency}")],
            agreed: &agreed,
            shown,
            configured: serde_json::Value::Null,
            exact: serde_json::Value::Null,
        };
        loop {
            match approval::take(&self.counter.home, &request) {
                // Stops waiting for approval when the caller disconnects; no charge follows.
                Err(failure)
                    if failure.row.name == error::APPROVAL_NEEDED
                        && self.who.waits
                        && !is_gone()
                        && Instant::now() < until =>
                {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                taken => return taken,
            }
        }
    }

    fn explain(&self, begun: &Begun) -> String {
        let model = &begun.question.model;
        match begun.decision.reason_code.as_str() {
            policy::UNPRICED => match begun.question.unbounded() {
                Some(what) => format!("what {what} adds to the question cannot be known, so it has no price"),
                None => format!("the model {model} has no price: name one in [prices] of actum.toml"),
            },
            policy::NO_PROGRESS => "the same question was asked again and again".to_owned(),
            _ => purse::explain(&begun.decision, &begun.inputs.budget, self.who.is_served),
        }
    }

    async fn deny(&self, begun: Begun, message: String) -> Asked {
        let code = begun.decision.reason_code.clone();
        let trouble = match code.as_str() {
            policy::BUDGET_EXHAUSTED | policy::PER_CALL_EXCEEDED | policy::PER_DAY_EXCEEDED => Trouble::BudgetExhausted,
            policy::APPROVAL_REQUIRED | policy::THRESHOLD_EXCEEDED => Trouble::ApprovalRequired,
            _ => Trouble::Denied,
        };
        let ended = Ended::denied(&code, &message);
        let (id, entry) = match receipt::entry(self, &begun, &ended) {
            Ok(made) => made,
            Err(failure) => return broken(Trouble::Upstream, policy::PROVIDER_ERROR, failure.message),
        };
        if let Err(e) = self.append(entry).await {
            return self.stopped(&e);
        }
        let judged = Some((begun.inputs, begun.decision));
        Asked { is_denied: true, receipt: Some(id), judged, ..broken(trouble, &code, message) }
    }

    /// From a file, and nobody is asked.
    async fn recall(&self, begun: Begun, provider: &Provider) -> Asked {
        let found = self.counter.recording(provider);
        let found = match found.as_ref().map(|recorded| recorded.answer(&begun.question)) {
            Ok(Some(found)) => found,
            other => {
                let why = match other {
                    Err(failure) => failure.message.clone(),
                    _ => format!("the recording of provider {} has no answer to this", provider.id),
                };
                let (how, ended) = (How::Release { reason: why.clone() }, Ended::failed(policy::PROVIDER_ERROR, &why));
                return self.settle(begun, how, ended, broken(Trouble::NotRecorded, policy::PROVIDER_ERROR, why)).await;
            }
        };
        let mut meter = Meter::new(&begun.question);
        let mut body = meter.feed(found.body.as_bytes());
        let metered = meter.end();
        body.extend_from_slice(&metered.rest);
        let asked = Asked {
            status: found.status,
            content_type: found.content_type.clone(),
            exchange: Some(found),
            ..broken(Trouble::Upstream, "", "")
        };
        self.conclude(begun, asked, metered, body, true).await
    }

    /// Hears an answer out, tells it on, and pays.
    async fn hear(&self, begun: Begun, mut incoming: Incoming, mut teller: Option<&mut Teller>) -> Asked {
        let status = incoming.status;
        let is_well = (200..300).contains(&status);
        // Also what stands before an answer may say a key.
        let content_type = incoming.content_type.as_deref().unwrap_or("application/json").as_bytes();
        let content_type = String::from_utf8_lossy(&self.redactor.redact_values(content_type).0).into_owned();
        let mut meter = Meter::new(&begun.question);
        let mut clean = Clean::new(&self.redactor);
        let (mut body, mut last, mut is_whole, mut is_leaking) = (Vec::new(), Vec::new(), true, false);
        let is_stream = is_well && content_type.to_ascii_lowercase().starts_with(EVENTS);
        if let (true, Some(teller)) = (is_stream, teller.as_deref_mut()) {
            teller.begin(Head { status, content_type: content_type.clone(), headers: Vec::new() });
        }
        loop {
            match incoming.piece().await {
                Ok(Some(piece)) => {
                    is_leaking |= is_stream && clean.spells(&piece);
                    let piece = meter.feed(&clean.feed(&piece));
                    last.extend_from_slice(&piece);
                    let seam = if is_stream { clean.seam(&meter) } else { Seam::None };
                    is_leaking |= seam == Seam::Key;
                    // The end of an answer is told when it is paid for: the next question finds the right balance.
                    if is_leaking || seam == Seam::Begun || meter.is_ending() {
                        continue;
                    }
                    body.extend_from_slice(&last);
                    let piece = std::mem::take(&mut last);
                    if let (true, Some(teller)) = (is_stream, teller.as_deref_mut()) {
                        teller.tell(piece.into()).await;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        last.extend_from_slice(&meter.feed(&clean.rest()));
        is_leaking |=
            clean.seam(&meter) == Seam::Key || (!is_stream && clean.is_told_otherwise(&[&body[..], &last].concat()));
        let mut metered = meter.end();
        last.append(&mut metered.rest);
        if is_leaking {
            // It is paid for all the same.
            last.clear();
            if !is_stream {
                body.clear();
            }
            metered.flaw = Some(LEAK.to_owned());
        }
        body.extend_from_slice(&last);
        actum_contract::crash::pass(CRASH_POINTS, "model.answered");
        let asked = Asked {
            status,
            content_type: content_type.clone(),
            exchange: Some(Exchange::new(&begun.question, status, &content_type, &body)),
            is_told: is_stream && teller.is_some(),
            ..broken(Trouble::Upstream, "", "")
        };
        let mut asked = self.conclude(begun, asked, metered, body, is_whole).await;
        if is_leaking {
            let denial = Denial { reason_code: policy::PROVIDER_ERROR.into(), message: LEAK.into() };
            asked.trouble = Some((Trouble::Upstream, denial));
        }
        if let (Some(recording), Some(exchange)) = (&self.recording, asked.exchange.as_ref().filter(|_| is_whole)) {
            recording.add(exchange);
        }
        if let (true, Some(teller)) = (is_stream, teller) {
            teller.tell(last.into()).await;
        }
        asked
    }

    async fn conclude(&self, begun: Begun, mut asked: Asked, metered: Metered, body: Vec<u8>, is_whole: bool) -> Asked {
        let is_well = (200..300).contains(&asked.status);
        asked.body = body;
        let (how, ended) = if !is_well {
            // What a provider refuses costs nothing.
            let why = format!("the provider answered with status {}", asked.status);
            (How::Release { reason: why.clone() }, Ended::failed(policy::PROVIDER_ERROR, &why))
        } else if !is_whole || !metered.is_whole {
            let why = metered.flaw.clone().unwrap_or_else(|| "the answer was broken off".to_owned());
            (How::Unknown { reason: why.clone() }, Ended::unknown(&why))
        } else {
            let price = begun.price.as_ref();
            // What was not said is taken to be the most it can have been.
            let amount = match (&metered.usage, price) {
                (Some(usage), Some(price)) => cost(price, usage).max(self.cost_of_other(&begun, &metered, usage)),
                _ => begun.amount,
            };
            (How::Commit { amount, correlation: None }, Ended::answered(&metered, amount, begun.amount))
        };
        asked.trouble = match &how {
            How::Unknown { reason } => Some((
                Trouble::Upstream,
                Denial { reason_code: policy::PROVIDER_ERROR.into(), message: reason.clone() },
            )),
            _ => None,
        };
        asked.metered = Some(metered);
        self.settle(begun, how, ended, asked).await
    }

    /// What an answer costs at the price of another model, if one has answered: nobody is billed for the one he asked.
    fn cost_of_other(&self, begun: &Begun, metered: &Metered, usage: &Usage) -> u64 {
        let Some(other) = metered.model.as_deref() else { return 0 };
        let currency = begun.price.as_ref().map(|price| &price.currency);
        let found = self.counter.prices.find(&begun.provider, other).filter(|price| Some(&price.currency) == currency);
        match (found, is_same_model(&begun.question.model, other)) {
            (Some(price), _) => cost(price, usage),
            (None, true) => 0,
            (None, false) => begun.amount,
        }
    }

    /// Pays, or gives back, with the receipt in the same transaction.
    async fn settle(&self, begun: Begun, how: How, mut ended: Ended, mut asked: Asked) -> Asked {
        if let How::Commit { amount, .. } = &how {
            asked.spent = *amount;
        }
        if let Some(metered) = &asked.metered {
            ended.heard(metered);
        }
        let (id, entry) = match receipt::entry(self, &begun, &ended) {
            Ok(made) => made,
            Err(failure) => return broken(Trouble::Upstream, policy::PROVIDER_ERROR, failure.message),
        };
        asked.receipt = Some(id);
        asked.judged = Some((begun.inputs.clone(), begun.decision.clone()));
        let reserved = lock(&self.open).remove(&begun.ordinal).is_some();
        let done = match (&begun.authorization, reserved) {
            (Some(authorization), true) => {
                let settle = Settle {
                    tenant: self.counter.tenant.clone(),
                    authorization: authorization.id.clone(),
                    run: self.who.run.clone(),
                    call: begun.call.clone(),
                    how,
                    reconciles: false,
                    entries: vec![entry],
                };
                match self.counter.spend.settle(settle).await {
                    Ok(Ok(held)) => {
                        self.purse.learn(&held.authorization);
                        Ok(())
                    }
                    // Taken for stuck meanwhile: the money waits for a person, and the receipt says so.
                    Ok(Err(refused)) => {
                        asked.spent = 0;
                        let late = receipt::entry(self, &begun, &Ended::unknown(&refused.message));
                        match late {
                            Ok((id, entry)) => {
                                asked.receipt = Some(id);
                                self.append(entry).await
                            }
                            Err(_) => Ok(()),
                        }
                    }
                    Err(e) => Err(e),
                }
            }
            _ => self.append(entry).await,
        };
        actum_contract::crash::pass(CRASH_POINTS, "model.settled");
        match done {
            Ok(()) => asked,
            Err(e) => Asked { is_told: asked.is_told, ..self.stopped(&e) },
        }
    }

    /// A receipt that is refused is none.
    async fn append(&self, entry: Submission) -> Result<(), JournalError> {
        match self.counter.waiter.journal.append(entry).await? {
            Outcome::Refused(refusal) => Err(JournalError::Unusable(refusal.message)),
            Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(()),
        }
    }

    /// What was cut off in the middle: nobody knows what it cost. Called when nobody asks any more, or for one prediction that
    /// is over while others go on.
    pub(crate) async fn abandon(&self, prediction: Option<&str>) -> Result<(), JournalError> {
        let is_meant = |begun: &Begun| prediction.is_none_or(|id| begun.about.parent.as_deref() == Some(id));
        let open: BTreeMap<u64, Begun> = lock(&self.open).extract_if(.., |_, begun| is_meant(begun)).collect();
        for begun in open.into_values() {
            let why = "the caller disconnected before the answer was complete";
            let Ok((_, entry)) = receipt::entry(self, &begun, &Ended::unknown(why)) else { continue };
            let Some(authorization) = &begun.authorization else { continue };
            let settle = Settle {
                tenant: self.counter.tenant.clone(),
                authorization: authorization.id.clone(),
                run: self.who.run.clone(),
                call: begun.call.clone(),
                how: How::Unknown { reason: why.to_owned() },
                reconciles: false,
                entries: vec![entry],
            };
            let _ = self.counter.spend.settle(settle).await?;
        }
        Ok(())
    }

    fn upstream(&self, provider: &Provider) -> Result<Arc<Upstream>, Failure> {
        if let Some(known) = lock(&self.upstreams).get(&provider.id) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.counter.upstream(provider)?);
        lock(&self.upstreams).insert(provider.id.clone(), Arc::clone(&made));
        Ok(made)
    }

    /// Connections belong to whoever runs them: another runtime makes new ones.
    pub(crate) fn hang_up(&self) {
        lock(&self.upstreams).clear();
    }
}

/// Places where tests stop the process for good while a model is asked.
const CRASH_POINTS: &[&str] = &["model.reserved", "model.answered", "model.settled"];

impl Begun {
    /// By which a provider recognises a question that is asked again.
    fn call_key(&self, run: &str) -> String {
        format!("{run}-{}", self.call)
    }
}
