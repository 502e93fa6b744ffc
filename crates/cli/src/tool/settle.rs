//! Calls of tools behind which money is spent: judged by the policy, reserved, called, settled with a receipt in the same
//! transaction. What was denied is never called; of what nobody knows the outcome the money stays held.

use actum_adapters::{Outcome, Problem, Stage};
use actum_contract::canon;
use actum_contract::crash;
use actum_contract::digest::Digest;
use actum_contract::execution::{End, Violation};
use actum_contract::tool::{BadAmount, Interface, RetryClass, Settlement, Went};
use actum_ledger::draft::{self, Submission};
use actum_ledger::spend::{
    self, Authorization, Filter, How, Refused, ReservationState, Reserve, Settle, document_of_tool_settlement,
};
use actum_predict::policy::{self, Context, Decision, Inputs, evaluate};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::call::{Ask, CALLS_MAX, Called, Chosen, Setting};
use super::tell::{refused, unfit};
use crate::capture::Evidence;
use crate::failure::Failure;
use crate::purse::{explain, inputs_of, snapshot};

/// Longer than a call may take, before its reservation is taken for stuck.
const HOLD_MS: u64 = 60_000;
/// Open reservations of one run that are looked through for an equal call.
const OPEN_MAX: usize = 10_000;
/// Equal calls at the same time, each of which wants the next number.
const RACES_MAX: usize = 1_000;
/// Characters of the digest that tells calls of a tool apart.
const CALL_DIGEST_CHARS: usize = 16;
/// The longest id by which a provider may call a settlement.
const CORRELATION_BYTES_MAX: usize = 256;
/// The longest reason that is written down.
const REASON_CHARS_MAX: usize = 500;
/// Where a result says what the provider calls the settlement.
const CORRELATIONS: [&str; 4] =
    ["provider_correlation_id", "settlement_correlation_id", "correlation_id", "message_id"];

/// Why nobody knows what became of a call that went well.
pub(super) const CORRELATION_MISSING: &str = "settlement_correlation_missing";

/// Places where tests stop the process for good while money is spent by a tool.
const CRASH_POINTS: &[&str] = &["settlement.reserved", "settlement.called", "settlement.settled"];

/// A call that spends, from the policy to the receipt.
#[derive(Debug)]
pub(super) struct Spending {
    execution: String,
    tool: (String, String),
    operation: Option<String>,
    settlement: Settlement,
    amount: u64,
    /// How the names of equal calls in the run begin.
    prefix: String,
    /// The name of this one, once something is reserved for it.
    call: Option<String>,
    authorization: Option<Authorization>,
    inputs: Inputs,
    decision: Decision,
    started: Timestamp,
    hold_ms: u64,
}

impl Spending {
    /// What a person has to agree to, if one has to.
    pub(super) fn wants(&self) -> Option<String> {
        let waits =
            matches!(self.decision.reason_code.as_str(), policy::APPROVAL_REQUIRED | policy::THRESHOLD_EXCEEDED);
        waits.then(|| format!("{} {}", self.amount, self.settlement.currency))
    }

    /// By which the provider recognises the call, however often it is tried.
    pub(super) fn key(&self, run: &str) -> Option<String> {
        self.call.as_ref().map(|call| format!("{run}-{call}"))
    }

    fn deny(&mut self, code: &str) {
        (self.inputs.decision, self.inputs.reason_code) = (Some("denied".to_owned()), Some(code.to_owned()));
        self.decision = evaluate(&self.inputs);
    }
}

/// How a call ended, for its receipt.
struct Ended<'a> {
    status: &'a str,
    /// Of the reservation, if there is one.
    state: Option<&'a str>,
    committed: u64,
    correlation: Option<&'a str>,
    reason: Option<&'a str>,
}

impl Setting {
    /// The policy about a call that spends; nothing about one that does not. What is denied outright is told.
    pub(super) fn judge(
        &self,
        id: &str,
        chosen: &Chosen,
        ask: &Ask,
        evidence: &Evidence,
    ) -> Result<Result<Option<Spending>, Called>, Failure> {
        let Some(settlement) = &chosen.tool.is.settlement else { return Ok(Ok(None)) };
        let amount = match settlement.amount_of(&ask.params) {
            Ok(amount) => amount,
            Err(bad @ BadAmount::NoAmount(_)) => {
                let problem = Problem::at(Stage::Input, bad.parameter(), bad.to_string());
                return Ok(Err(unfit(id, ask, &problem, evidence)));
            }
            Err(bad @ BadAmount::TooMuch { .. }) => {
                let field = format!("params.{}", bad.parameter());
                let violation = Violation { check: "IV-05", field, message: bad.to_string() };
                return Ok(Err(refused(id, ask, vec![violation], evidence)));
            }
        };
        let (purse, waiter) = (&self.purse, self.shelf.waiter());
        let authorization = waiter.wait(Box::pin(purse.authorization(&settlement.currency)))?;
        let context = Context { is_priced: true, ..Context::default() };
        let inputs = inputs_of(authorization.as_ref(), amount, &settlement.currency, context);
        let decision = evaluate(&inputs);
        let same = json!({"operation": chosen.operation, "params": ask.params});
        let same = Digest::sha256(&canon::canonical(&same).unwrap_or_default()).to_hex();
        let longest = chosen.narrowed.iter().map(|one| one.sandbox.timeout_ms).max().unwrap_or_default();
        let mut spending = Spending {
            execution: id.to_owned(),
            tool: (chosen.tool.item.id.clone(), chosen.tool.item.version.clone()),
            operation: chosen.operation.clone(),
            settlement: settlement.clone(),
            amount,
            prefix: format!("{}-{}-", chosen.tool.item.id, &same[..CALL_DIGEST_CHARS.min(same.len())]),
            call: None,
            authorization,
            inputs,
            decision,
            started: Timestamp::now(),
            hold_ms: longest.saturating_mul(u64::from(CALLS_MAX)).saturating_add(HOLD_MS),
        };
        let message = match self.unsettled(&spending)? {
            Some((code, message)) if spending.decision.is_allowed() || spending.wants().is_some() => {
                spending.deny(code);
                message
            }
            _ if spending.decision.is_allowed() || spending.wants().is_some() => return Ok(Ok(Some(spending))),
            _ => explain(&spending.decision, &spending.inputs.budget, self.purse.who.is_served),
        };
        Ok(Err(self.denied(&spending, ask, &message, evidence)?))
    }

    /// Whether an equal call stands in the way: one that must not be made twice is not made again before it is known what
    /// became of the first.
    fn unsettled(&self, spending: &Spending) -> Result<Option<(&'static str, String)>, Failure> {
        if spending.settlement.retry == RetryClass::SafeRetry {
            return Ok(None);
        }
        let purse = &self.purse;
        for state in [ReservationState::ReconcileRequired, ReservationState::Reserved] {
            let run = Some(purse.who.run.clone());
            let filter = Filter { authorization: None, run, state: Some(state), limit: OPEN_MAX };
            let open = self.shelf.waiter().wait(purse.spend.reservations(&purse.tenant, filter))?;
            let Some(found) = open.iter().find(|one| one.call.starts_with(&spending.prefix)) else { continue };
            let call = &found.call;
            return Ok(Some(match state {
                ReservationState::ReconcileRequired => {
                    let next = "find out what it came to, then `actum spend reconcile`";
                    (policy::RECONCILE_REQUIRED, format!("nobody knows what became of the same call, {call}: {next}"))
                }
                _ => (policy::IDEMPOTENCY_CONFLICT, format!("the same call is under way: {call}")),
            }));
        }
        Ok(None)
    }

    /// A no, with its receipt.
    pub(super) fn denied(
        &self,
        spending: &Spending,
        ask: &Ask,
        message: &str,
        evidence: &Evidence,
    ) -> Result<Called, Failure> {
        let ended = Ended { status: "denied", state: None, committed: 0, correlation: None, reason: Some(message) };
        let waiter = self.shelf.waiter();
        waiter.wait(waiter.journal.append(self.receipt(spending, &ended)))?;
        let mut called = refused(&spending.execution, ask, Vec::new(), evidence);
        called.result["interpretation"]["action"] = json!("Allow it to spend, or do without");
        let code = &spending.decision.reason_code;
        called.result["error"] = json!({"stage": "policy", "reason_code": code, "message": message});
        called.result["spend"] = self.told(spending, &ended);
        Ok(called)
    }

    /// A person's no, or nobody's yes: on record before it is told.
    pub(super) fn not_agreed(&self, spending: Option<Spending>, failure: &Failure) -> Result<(), Failure> {
        let Some(mut spending) = spending else { return Ok(()) };
        if failure.row.name == actum_api::error::APPROVAL_DENIED {
            spending.deny(policy::EXPLICIT_DENY);
        }
        let reason = Some(failure.message.as_str()).filter(|_| !spending.decision.is_allowed());
        if reason.is_some() {
            let ended = Ended { status: "denied", state: None, committed: 0, correlation: None, reason };
            let waiter = self.shelf.waiter();
            waiter.wait(waiter.journal.append(self.receipt(&spending, &ended)))?;
        }
        Ok(())
    }

    /// Holds the amount, under a name that no other call has. `approval`: what a person has agreed to.
    pub(super) fn reserve(
        &self,
        mut spending: Spending,
        approval: Option<&str>,
        ask: &Ask,
        evidence: &Evidence,
    ) -> Result<Result<Spending, Called>, Failure> {
        if spending.wants().is_some() {
            spending.inputs.context.approval = approval.map(ToOwned::to_owned);
            spending.decision = evaluate(&spending.inputs);
        }
        let authorization = spending.authorization.as_ref().filter(|_| spending.decision.is_allowed());
        let Some(authorization) = authorization.map(|one| one.id.clone()) else {
            let message = explain(&spending.decision, &spending.inputs.budget, self.purse.who.is_served);
            return Ok(Err(self.denied(&spending, ask, &message, evidence)?));
        };
        let (purse, waiter) = (&self.purse, self.shelf.waiter());
        let first = self.next(&authorization, &spending.prefix)?;
        let mut told = "too many equal calls at once".to_owned();
        for n in first..first.saturating_add(RACES_MAX) {
            let call = format!("{}{n}", spending.prefix);
            let reserve = Reserve {
                tenant: purse.tenant.clone(),
                authorization: authorization.clone(),
                run: purse.who.run.clone(),
                call: call.clone(),
                amount: spending.amount,
                currency: spending.settlement.currency.clone(),
                retry: retry_of(spending.settlement.retry),
                idempotency_key: Some(format!("{}-{call}", purse.who.run)),
                approval: spending.inputs.context.approval.clone(),
                hold_ms: spending.hold_ms,
            };
            match waiter.wait(purse.spend.reserve(reserve))? {
                Ok(held) if !held.replayed => {
                    spending.authorization = Some(held.authorization);
                    spending.call = Some(call);
                    crash::pass(CRASH_POINTS, "settlement.reserved");
                    return Ok(Ok(spending));
                }
                // Somebody else took the number meanwhile.
                Ok(_) if spending.settlement.retry == RetryClass::SafeRetry => continue,
                Ok(_) => {
                    spending.deny(policy::IDEMPOTENCY_CONFLICT);
                    told = format!("the same call is under way: {call}");
                }
                Err(Refused { code: spend::Code::AlreadyFinalized, .. }) => continue,
                Err(Refused { code, message, authorization }) => {
                    // What was looked at has changed since: judged again as it was found.
                    if let Some(found) = authorization {
                        spending.inputs.budget = snapshot(&found, spending.amount, &spending.settlement.currency);
                        spending.authorization = Some(found);
                    }
                    spending.deny(code.reason());
                    told = message;
                }
            }
            break;
        }
        if spending.decision.is_allowed() {
            spending.deny(policy::IDEMPOTENCY_CONFLICT);
        }
        Ok(Err(self.denied(&spending, ask, &told, evidence)?))
    }

    /// The first number that no equal call of the run has: they follow one another.
    fn next(&self, authorization: &str, prefix: &str) -> Result<usize, Failure> {
        let (purse, waiter) = (&self.purse, self.shelf.waiter());
        let exists = |n: usize| -> Result<bool, Failure> {
            let call = format!("{prefix}{n}");
            let found = purse.spend.reservation(&purse.tenant, authorization, &purse.who.run, &call);
            Ok(waiter.wait(found)?.is_some())
        };
        let (mut known, mut free) = (0, 0);
        while exists(free)? {
            (known, free) = (free, free * 2 + 1);
        }
        while free > known + 1 {
            let middle = known + (free - known) / 2;
            if exists(middle)? { known = middle } else { free = middle }
        }
        Ok(free)
    }

    /// Pays, gives back, or holds on, with the receipt in the same transaction.
    pub(super) fn settle(
        &self,
        spending: &Spending,
        outcome: &Outcome,
        chosen: &Chosen,
        called: &mut Called,
    ) -> Result<(), Failure> {
        crash::pass(CRASH_POINTS, "settlement.called");
        let (Some(authorization), Some(call)) = (&spending.authorization, &spending.call) else { return Ok(()) };
        let is_well = called.code == 0;
        let correlation = if is_well { correlation_of(&outcome.output) } else { None };
        let why = || {
            let problem = outcome.problem.as_ref().map(ToString::to_string);
            let why = problem.unwrap_or_else(|| called.result["status"].as_str().unwrap_or_default().to_owned());
            why.chars().take(REASON_CHARS_MAX).collect::<String>()
        };
        let how = match (&correlation, is_well) {
            (Some(_), _) => How::Commit { amount: spending.amount, correlation: correlation.clone() },
            (None, true) => How::Unknown { reason: CORRELATION_MISSING.to_owned() },
            (None, false) if never_ran(outcome, chosen) || spending.settlement.retry == RetryClass::SafeRetry => {
                How::Release { reason: why() }
            }
            (None, false) => How::Unknown { reason: why() },
        };
        if is_well && correlation.is_none() {
            let names = CORRELATIONS.join(", ");
            let message =
                format!("{CORRELATION_MISSING}: the result has none of {names}, so it waits to be reconciled");
            called.result["status"] = json!("failure");
            called.result["error"] = json!({"stage": "settlement", "path": null, "message": message});
            called.result["interpretation"] =
                json!({"meaning": "Nobody knows whether it was settled", "action": "`actum spend reconcile`"});
            called.code = 1;
        }
        let status = called.result["status"].as_str().unwrap_or_default().to_owned();
        let ended = ended_of(&how, &status, correlation.as_deref());
        let (purse, waiter) = (&self.purse, self.shelf.waiter());
        let settle = Settle {
            tenant: purse.tenant.clone(),
            authorization: authorization.id.clone(),
            run: purse.who.run.clone(),
            call: call.clone(),
            how: how.clone(),
            reconciles: false,
            entries: vec![self.receipt(spending, &ended)],
        };
        called.result["spend"] = match waiter.wait(purse.spend.settle(settle))? {
            Ok(_) => self.told(spending, &ended),
            // Taken for stuck meanwhile: the money waits for a person, and the receipt says so.
            Err(refused) => {
                let unknown = How::Unknown { reason: refused.message };
                let ended = ended_of(&unknown, &status, None);
                waiter.wait(waiter.journal.append(self.receipt(spending, &ended)))?;
                self.told(spending, &ended)
            }
        };
        crash::pass(CRASH_POINTS, "settlement.settled");
        Ok(())
    }

    /// What whoever called is told of the money.
    fn told(&self, spending: &Spending, ended: &Ended<'_>) -> Value {
        json!({
            "receipt_id": spend::tool_receipt_id(&spending.execution), "call_id": spending.call,
            "authorization_id": spending.inputs.authorization_id, "currency": spending.settlement.currency,
            "amount": spending.amount, "committed": ended.committed, "state": ended.state,
            "reason_code": spending.decision.reason_code,
        })
    }

    fn receipt(&self, spending: &Spending, ended: &Ended<'_>) -> Submission {
        let who = &self.purse.who;
        let Spending { inputs, decision, settlement, .. } = spending;
        let told = json!({
            "receipt_id": spend::tool_receipt_id(&spending.execution),
            "run": who.run, "call": spending.call, "execution_id": spending.execution, "status": ended.status,
            "tool": {"tool_id": spending.tool.0, "version": spending.tool.1}, "operation": spending.operation,
            "policy": {
                "policy_id": inputs.policy_id, "authorization_id": inputs.authorization_id,
                "authorization_mode": inputs.authorization_mode, "decision": decision.decision,
                "reason_code": decision.reason_code, "reason_codes_version": decision.reason_codes_version,
                "evaluation_hash": decision.evaluation_hash, "inputs": inputs,
            },
            "authorization": inputs.authorization_id, "currency": settlement.currency, "amount": spending.amount,
            "reserved": if spending.call.is_some() { spending.amount } else { 0 }, "committed": ended.committed,
            "state": ended.state, "retry_class": settlement.retry.word(),
            "provider_idempotency_key": spending.key(&who.run), "provider_correlation_id": ended.correlation,
            "reason": ended.reason, "started_at": format!("{:.3}", spending.started),
            "completed_at": format!("{:.3}", Timestamp::now()),
        });
        let told = match told {
            Value::Object(told) => told.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        };
        let document =
            document_of_tool_settlement(&self.purse.tenant, who.autopilot.as_deref(), &spending.execution, told);
        draft::read_own(document)
    }
}

fn retry_of(class: RetryClass) -> spend::RetryClass {
    match class {
        RetryClass::SafeRetry => spend::RetryClass::SafeRetry,
        RetryClass::DedupeReconcileRequired => spend::RetryClass::DedupeReconcileRequired,
    }
}

fn ended_of<'a>(how: &'a How, status: &'a str, correlation: Option<&'a str>) -> Ended<'a> {
    let (state, committed, reason) = match how {
        How::Commit { amount, .. } => (ReservationState::Committed, *amount, None),
        How::Release { reason } => (ReservationState::Released, 0, Some(reason.as_str())),
        How::Unknown { reason } => (ReservationState::ReconcileRequired, 0, Some(reason.as_str())),
    };
    Ended { status, state: Some(state.word()), committed, correlation, reason }
}

/// What the provider calls the settlement, if the result says so: at its top, or under `output`.
fn correlation_of(output: &Value) -> Option<String> {
    let read;
    let output = match output {
        Value::String(text) => {
            read = serde_json::from_str::<Value>(text.trim()).ok()?;
            &read
        }
        other => other,
    };
    let named = |within: &Value| {
        CORRELATIONS.iter().find_map(|name| match within.get(*name)? {
            Value::String(text) => Some(text.trim().to_owned()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        })
    };
    let found = named(output).or_else(|| named(output.get("output")?))?;
    (1..=CORRELATION_BYTES_MAX).contains(&found.len()).then_some(found)
}

/// Whether certainly nobody was asked anything.
fn never_ran(outcome: &Outcome, chosen: &Chosen) -> bool {
    outcome.attempts.iter().all(|attempt| {
        let called = chosen.chain.iter().find(|one| one.item.id == attempt.adapter_id).map(|one| &one.is.interface);
        // Who was sent on somewhere was heard before.
        let is_first = attempt.evidence["redirects"].as_u64().unwrap_or(0) == 0;
        let is_refused = matches!(&attempt.problem, Some(Problem { stage: Stage::Input | Stage::Denied, .. }));
        let is_absent = attempt.went == Went::Unavailable
            && match called {
                Some(Interface::Api(_)) => true,
                Some(Interface::Cli(_)) => matches!(attempt.end, None | Some(End::NotFound)),
                _ => false,
            };
        is_first && (is_refused || is_absent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_are_found_where_they_may_be() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(correlation_of(&json!({"correlation_id": "a"})), some("a"));
        assert_eq!(correlation_of(&json!({"output": {"message_id": 7}})), some("7"));
        assert_eq!(correlation_of(&json!("{\"provider_correlation_id\": \" p \"}\n")), some("p"));
        let both = json!({"message_id": "m", "settlement_correlation_id": "s", "output": {"correlation_id": "x"}});
        assert_eq!(correlation_of(&both), some("s"));
        for none in [
            json!(null),
            json!("paid"),
            json!({}),
            json!({"correlation_id": ""}),
            json!({"correlation_id": null}),
            json!({"correlation_id": {"id": 1}}),
            json!({"result": {"correlation_id": "a"}}),
            json!([{"correlation_id": "a"}]),
            json!({"correlation_id": "x".repeat(CORRELATION_BYTES_MAX + 1)}),
        ] {
            assert_eq!(correlation_of(&none), None, "{none}");
        }
    }
}
