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
use actum_ledger::journal::JournalError;
use actum_ledger::spend::{Authorization, CURRENCY, How, Mode, Refused, Reserve, RetryClass, Scope, Settle};
use actum_predict::policy::{self, Context, Decision, Inputs, Loops, Snapshot, evaluate};
use actum_predict::price::{Price, cost, estimate};
use actum_predict::protocol::{Meter, Metered, Question, Trouble};
use actum_predict::provider::{Kind, Provider};
use actum_predict::signature::{Hashes, Signature};
use actum_server::{Head, Teller};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::OnceCell;

use super::Counter;
use super::gateway::EVENTS;
use super::receipt::{self, Ended};
use super::recorded::Exchange;
use crate::approval;
use crate::failure::Failure;
use crate::workspace::{LOCAL_TENANT, new_id};

/// Longer than a call may take, before its reservation is taken for stuck.
const HOLD_MS: u64 = 60_000;
/// How often it is looked whether a person has agreed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What nobody pays for needs no permission.
const FREE: &str = "system:free";
const POLICY: &str = "spend.authorization.v1";
/// Who owns what is spent in a project.
pub(crate) const OWNER: &str = "project";

/// For whom models are asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authorized {
    pub run: String,
    pub thread: Option<String>,
    pub autopilot: Option<String>,
    /// Part of the names of calls: whoever takes a run over does not take calls over.
    pub epoch: u64,
    /// What the work item allows, and in which currency.
    pub budget: Option<(u64, String)>,
    /// Whether a call waits for a person who has to agree, or is refused until he has.
    pub waits: bool,
}

/// Which question it is, in the words of its receipt.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub prediction: String,
    pub parent: Option<String>,
    pub signature: String,
    pub strategy: String,
    pub hashes: Hashes,
    /// The provider that is wanted, if one is.
    pub provider: Option<String>,
}

impl About {
    pub(crate) fn new(signature: &Signature, strategy: &str) -> Self {
        Self {
            prediction: new_id(),
            parent: None,
            signature: signature.id(),
            strategy: strategy.to_owned(),
            hashes: signature.hashes(),
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
    /// The permission that the work item's own budget is.
    own: OnceCell<Option<String>>,
    ordinal: AtomicU64,
    loops: Mutex<Loops>,
    upstreams: Mutex<BTreeMap<String, Arc<Upstream>>>,
    pub(super) redactor: Redactor,
    /// Calls that were reserved and are not settled.
    open: Mutex<BTreeMap<u64, Begun>>,
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

fn stopped(e: &JournalError) -> Asked {
    broken(Trouble::Upstream, PROVIDER_ERROR, format!("the store does not answer, so nothing is spent: {e}"))
}

const PROVIDER_ERROR: &str = "comms_failed.provider_error";
const CIRCUIT_OPEN: &str = "comms_failed.provider_circuit_open";

impl Till {
    pub(crate) fn open(counter: &Arc<Counter>, who: Authorized) -> Self {
        Self {
            counter: Arc::clone(counter),
            redactor: counter.redactor(),
            who,
            own: OnceCell::new(),
            ordinal: AtomicU64::new(0),
            loops: Mutex::default(),
            upstreams: Mutex::default(),
            open: Mutex::default(),
        }
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
        mut question: Question,
        about: &About,
        headers: &[(String, String)],
        teller: Option<&mut Teller>,
    ) -> Asked {
        let counter = &self.counter;
        let Some(provider) = counter.provider(question.protocol, &question.model, about.provider.as_deref()) else {
            let message = format!("no provider is set up for the model {:?} by this protocol", question.model);
            return broken(Trouble::NotFound, policy::EXPLICIT_DENY, message);
        };
        question.limit_output(provider.output_tokens, &provider.limit_field);
        let begun = match self.judge(question, about, provider).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(denied)) => return denied,
            Err(e) => return stopped(&e),
        };
        if provider.kind == Kind::Recorded {
            return self.recall(begun, provider).await;
        }
        let upstream = match self.upstream(provider) {
            Ok(upstream) => upstream,
            Err(failure) => {
                let how = How::Release { reason: failure.message.clone() };
                let ended = Ended::failed(PROVIDER_ERROR, &failure.message);
                return self
                    .settle(begun, how, ended, broken(Trouble::Upstream, PROVIDER_ERROR, failure.message))
                    .await;
            }
        };
        let body = begun.question.bytes().into();
        match upstream.send(&begun.question.path(), body, &begun.call_key(&self.who.run), headers).await {
            Ok(incoming) => self.hear(begun, incoming, teller).await,
            Err(failed) => {
                let (how, ended, trouble, code, message) = match failed {
                    Failed::NeverSent(why) => {
                        let ended = Ended::failed(PROVIDER_ERROR, &why);
                        (How::Release { reason: why.clone() }, ended, Trouble::Upstream, PROVIDER_ERROR, why)
                    }
                    Failed::CircuitOpen { for_ms } => {
                        let why = format!("the provider failed too often; it is asked again in {for_ms} ms");
                        let ended = Ended::failed(CIRCUIT_OPEN, &why);
                        (How::Release { reason: why.clone() }, ended, Trouble::CircuitOpen, CIRCUIT_OPEN, why)
                    }
                    Failed::Unknown(why) => {
                        let ended = Ended::unknown(&why);
                        (How::Unknown { reason: why.clone() }, ended, Trouble::Upstream, PROVIDER_ERROR, why)
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
    ) -> Result<Result<Begun, Asked>, JournalError> {
        let counter = &self.counter;
        let ordinal = self.next_ordinal();
        let free = || Price { input: 0, output: 0, cached: None, cache_write: None, currency: CURRENCY.to_owned() };
        let price = match provider.kind {
            Kind::Recorded => Some(free()),
            _ => counter.prices.find(&provider.id, &question.model).cloned(),
        };
        let tokens_out =
            question.output_tokens.unwrap_or(provider.output_tokens).saturating_mul(question.choices.max(1));
        let amount = price.as_ref().map_or(0, |price| estimate(price, question.input_tokens_max(), tokens_out));
        let currency = price.as_ref().map_or(CURRENCY, |price| price.currency.as_str()).to_owned();
        let authorization = self.authorization(&currency).await?;
        let loops = lock(&self.loops).note(&question.exact_key());
        let context = Context {
            loop_detected_reason: loops.map(ToOwned::to_owned),
            // What the provider adds itself has no bound, and so no price.
            is_priced: price.is_some() && question.unbounded().is_none(),
            ..Context::default()
        };
        let mut inputs = inputs_of(authorization.as_ref(), amount, &currency, context);
        let mut decision = evaluate(&inputs);
        if matches!(decision.reason_code.as_str(), policy::APPROVAL_REQUIRED | policy::THRESHOLD_EXCEEDED) {
            match self.agreement(ordinal, amount, authorization.as_ref(), &question).await {
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
        let call = format!("e{}-{ordinal}", self.who.epoch);
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
        match counter.spend.reserve(reserve).await? {
            Ok(held) => {
                begun.authorization = Some(held.authorization);
                lock(&self.open).insert(ordinal, begun.clone());
                actum_contract::crash::pass(CRASH_POINTS, "model.reserved");
                Ok(Ok(begun))
            }
            Err(Refused { code, message, authorization }) => {
                // Somebody else was faster, or what was looked at has changed since: judged again as it was found.
                if let Some(found) = authorization {
                    begun.inputs.budget = snapshot(&found, begun.amount, &begun.inputs.budget.currency);
                    begun.authorization = Some(found);
                }
                (begun.inputs.decision, begun.inputs.reason_code) =
                    (Some("denied".into()), Some(code.reason().to_owned()));
                begun.decision = evaluate(&begun.inputs);
                Ok(Err(self.deny(begun, message).await))
            }
        }
    }

    /// Whose money it is: the work item's own, or what was agreed on for whoever asks.
    async fn authorization(&self, currency: &str) -> Result<Option<Authorization>, JournalError> {
        let (spend, tenant) = (&self.counter.spend, &self.counter.tenant);
        let scope = Scope {
            owner: OWNER.to_owned(),
            autopilot: self.who.autopilot.clone(),
            thread: self.who.thread.clone(),
            run: Some(self.who.run.clone()),
        };
        let own = self.own.get_or_try_init(async || {
            let Some((max_total, currency)) = &self.who.budget else { return Ok(None) };
            let id = format!("auth_run_{}", self.who.run);
            if spend.authorization(tenant, &id).await?.is_none() {
                let within = spend.resolve(tenant, &scope, currency).await?.map(|broader| broader.id);
                let new = Authorization {
                    id: id.clone(),
                    run: scope.run.clone(),
                    max_total: Some(*max_total),
                    currency: currency.clone(),
                    within,
                    ..new_authorization(tenant.clone())
                };
                // Whoever was faster has written the same.
                let _ = spend.authorize(new, "actum", "the budget of the work item").await?;
            }
            Ok::<_, JournalError>(Some(id))
        });
        match own.await? {
            Some(id) => spend.authorization(tenant, id).await,
            None => spend.resolve(tenant, &scope, currency).await,
        }
    }

    /// A person's word, asked for and waited for.
    async fn agreement(
        &self,
        ordinal: u64,
        amount: u64,
        authorization: Option<&Authorization>,
        question: &Question,
    ) -> Result<String, Failure> {
        let id = authorization.map(|one| one.id.as_str());
        let currency = authorization.map_or(CURRENCY, |one| one.currency.as_str());
        let agreed =
            json!({"authorization": id, "run": self.who.run, "question": question.exact_key(), "ordinal": ordinal});
        let agreed =
            if self.who.waits { agreed } else { json!({"authorization": id, "question": question.exact_key()}) };
        let shown = json!({"model": question.model, "up_to": amount, "currency": currency, "authorization": id, "run": self.who.run});
        let request = approval::Request {
            tool: format!("model {}", question.model),
            tenant: LOCAL_TENANT,
            wants: vec![format!("up to {amount} {currency}")],
            agreed: &agreed,
            shown,
        };
        loop {
            match approval::take(&self.counter.home, &request) {
                Err(failure) if failure.row.name == error::APPROVAL_NEEDED && self.who.waits => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                taken => return taken,
            }
        }
    }

    fn explain(&self, begun: &Begun) -> String {
        let budget = &begun.inputs.budget;
        let (amount, currency) = (budget.amount, &budget.currency);
        let left = budget.remaining.map_or_else(|| "no limit".to_owned(), |left| left.to_string());
        let model = &begun.question.model;
        match begun.decision.reason_code.as_str() {
            policy::AUTHORIZATION_MISSING => {
                "nobody allowed to spend: give the work item a budget (budget.spend.max_total), or `actum spend authorize`"
                    .to_owned()
            }
            policy::BUDGET_EXHAUSTED => {
                format!("the call may cost up to {amount} {currency}, and {left} is left of the budget")
            }
            policy::UNPRICED => match begun.question.unbounded() {
                Some(what) => format!("what {what} adds to the question cannot be known, so it has no price"),
                None => format!("the model {model} has no price: name one in [prices] of actum.toml"),
            },
            policy::APPROVAL_REQUIRED | policy::THRESHOLD_EXCEEDED => {
                format!("a person has to agree to up to {amount} {currency}: `actum approvals list`")
            }
            policy::PER_CALL_EXCEEDED => {
                format!("the call may cost up to {amount} {currency}, more than one call may")
            }
            policy::PER_DAY_EXCEEDED => format!("with up to {amount} {currency} the day's limit is exceeded"),
            policy::NO_PROGRESS => "the same question was asked again and again".to_owned(),
            _ => begun.decision.why.clone(),
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
            Err(failure) => return broken(Trouble::Upstream, PROVIDER_ERROR, failure.message),
        };
        if let Err(e) = self.counter.waiter.journal.append(entry).await {
            return stopped(&e);
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
                let (how, ended) = (How::Release { reason: why.clone() }, Ended::failed(PROVIDER_ERROR, &why));
                return self.settle(begun, how, ended, broken(Trouble::NotRecorded, PROVIDER_ERROR, why)).await;
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
        let content_type = incoming.content_type.clone().unwrap_or_else(|| "application/json".to_owned());
        let mut meter = Meter::new(&begun.question);
        let mut clean = Clean { redactor: &self.redactor, held: Vec::new() };
        let (mut body, mut last, mut is_whole) = (Vec::new(), Vec::new(), true);
        let is_stream = is_well && content_type.starts_with(EVENTS);
        if let (true, Some(teller)) = (is_stream, teller.as_deref_mut()) {
            teller.begin(Head { status, content_type: content_type.clone(), headers: Vec::new() });
        }
        loop {
            match incoming.piece().await {
                Ok(Some(piece)) => {
                    let piece = clean.feed(&meter.feed(&piece));
                    body.extend_from_slice(&piece);
                    if let (true, Some(teller)) = (is_stream, teller.as_deref_mut()) {
                        // The end of an answer is told when it is paid for: the next question finds the right balance.
                        let before = std::mem::replace(&mut last, piece);
                        teller.tell(before.into()).await;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        let mut metered = meter.end();
        let rest = [clean.feed(&std::mem::take(&mut metered.rest)), clean.rest()].concat();
        body.extend_from_slice(&rest);
        last.extend_from_slice(&rest);
        actum_contract::crash::pass(CRASH_POINTS, "model.answered");
        let asked = Asked {
            status,
            content_type: content_type.clone(),
            exchange: Some(Exchange::new(&begun.question, status, &content_type, &body)),
            is_told: is_stream && teller.is_some(),
            ..broken(Trouble::Upstream, "", "")
        };
        let asked = self.conclude(begun, asked, metered, body, is_whole).await;
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
            (How::Release { reason: why.clone() }, Ended::failed(PROVIDER_ERROR, &why))
        } else if !is_whole || !metered.is_whole {
            let why = metered.flaw.clone().unwrap_or_else(|| "the answer was broken off".to_owned());
            (How::Unknown { reason: why.clone() }, Ended::unknown(&why))
        } else {
            let price = begun.price.as_ref();
            // What was not said is taken to be the most it can have been.
            let amount = match (&metered.usage, price) {
                (Some(usage), Some(price)) => cost(price, usage),
                _ => begun.amount,
            };
            (How::Commit { amount, correlation: None }, Ended::answered(&metered, amount, begun.amount))
        };
        asked.trouble = match &how {
            How::Unknown { reason } => {
                Some((Trouble::Upstream, Denial { reason_code: PROVIDER_ERROR.into(), message: reason.clone() }))
            }
            _ => None,
        };
        asked.metered = Some(metered);
        self.settle(begun, how, ended, asked).await
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
            Err(failure) => return broken(Trouble::Upstream, PROVIDER_ERROR, failure.message),
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
                    Ok(Ok(_)) => Ok(()),
                    // Taken for stuck meanwhile: the money waits for a person, and the receipt says so.
                    Ok(Err(refused)) => {
                        let late = receipt::entry(self, &begun, &Ended::unknown(&refused.message));
                        match late {
                            Ok((_, entry)) => self.counter.waiter.journal.append(entry).await.map(drop),
                            Err(_) => Ok(()),
                        }
                    }
                    Err(e) => Err(e),
                }
            }
            _ => self.counter.waiter.journal.append(entry).await.map(drop),
        };
        actum_contract::crash::pass(CRASH_POINTS, "model.settled");
        match done {
            Ok(()) => asked,
            Err(e) => Asked { is_told: asked.is_told, ..stopped(&e) },
        }
    }

    /// What was cut off in the middle: nobody knows what it cost. Called when nobody asks any more.
    pub(crate) async fn abandon(&self) -> Result<(), JournalError> {
        let open = std::mem::take(&mut *lock(&self.open));
        for begun in open.into_values() {
            let why = "whoever asked was gone before the answer was whole";
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

/// A permission without limits or scope, to be filled in.
pub(crate) fn new_authorization(tenant: actum_contract::id::Tenant) -> Authorization {
    Authorization {
        tenant,
        id: String::new(),
        owner: OWNER.to_owned(),
        autopilot: None,
        thread: None,
        run: None,
        mode: Mode::DelegatedBudget,
        currency: CURRENCY.to_owned(),
        max_total: None,
        max_per_call: None,
        max_per_day: None,
        threshold: None,
        within: None,
        issued_ms: Timestamp::now().as_millisecond(),
        expires_ms: None,
        revoked_ms: None,
        spent: 0,
        reserved: 0,
        day: 0,
        day_held: 0,
    }
}

fn snapshot(found: &Authorization, amount: u64, currency: &str) -> Snapshot {
    let today = actum_ledger::spend::day_of(Timestamp::now().as_millisecond());
    Snapshot {
        currency: currency.to_owned(),
        spent: found.spent,
        reserved: found.reserved,
        remaining: found.remaining(),
        amount,
        max_per_call: found.max_per_call,
        day_held: if found.day == today { found.day_held } else { 0 },
        max_per_day: found.max_per_day,
        threshold: found.threshold,
    }
}

fn inputs_of(found: Option<&Authorization>, amount: u64, currency: &str, mut context: Context) -> Inputs {
    let now = Timestamp::now().as_millisecond();
    let is_past = |at: Option<i64>| at.is_some_and(|at| at <= now);
    context.is_revoked = found.is_some_and(|one| is_past(one.revoked_ms));
    context.is_expired = found.is_some_and(|one| is_past(one.expires_ms));
    let is_free = found.is_none() && amount == 0 && context.is_priced;
    let none = Snapshot { currency: currency.to_owned(), amount, ..Snapshot::default() };
    Inputs {
        policy_id: POLICY.to_owned(),
        authorization_id: found.map(|one| one.id.clone()).or_else(|| is_free.then(|| FREE.to_owned())),
        authorization_mode: found
            .map(|one| one.mode.word())
            .or_else(|| is_free.then(|| Mode::System.word()))
            .map(ToOwned::to_owned),
        decision: None,
        reason_code: None,
        budget: found.map_or(none, |one| snapshot(one, amount, currency)),
        context,
    }
}

/// Takes keys out of an answer as it passes, also where a piece ends in the middle of one.
struct Clean<'r> {
    redactor: &'r Redactor,
    held: Vec<u8>,
}

impl Clean<'_> {
    fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let keep = self.redactor.begun(&self.held);
        let rest = self.held.split_off(self.held.len() - keep);
        let clean = self.redactor.redact_values(&self.held).0;
        self.held = rest;
        clean
    }

    fn rest(&mut self) -> Vec<u8> {
        self.redactor.redact_values(&std::mem::take(&mut self.held)).0
    }
}
