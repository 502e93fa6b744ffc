//! The receipt of one call, as an entry for the ledger, with its trace: in it, or beside it in the store of contents.

use std::collections::BTreeMap;

use actum_api::error;
use actum_contract::blob::Blobs as _;
use actum_contract::digest::Digest;
use actum_contract::execution::Redactor;
use actum_ledger::draft::{self, Submission};
use actum_predict::policy::{self, OVERRUN, USAGE_MISSING};
use actum_predict::protocol::{Metered, Question, Usage};
use actum_predict::receipt::{Budget, Failure as Reason, Kind, Receipt, Status, Timing};
use actum_predict::sanitise::sanitise;
use actum_predict::trace::{self, Storage, Trace};
use actum_predict::{hash, receipt};
use actum_store::blob::Folder as Blobs;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Counter;
use super::till::{Begun, Till};
use crate::contents::Shelf;
use crate::failure::Failure;
use crate::project::Project;

pub(crate) const TYPE: &str = "prediction_receipt";
/// Stands where a part of a trace is kept by itself.
const BLOB: &str = "$blob";
/// Shorter questions are kept in one piece.
const SPLIT_BYTES_MIN: usize = 8 << 10;
/// Parts of a question that are shorter stay where they are.
const PART_BYTES_MIN: usize = 512;
/// The lists in a question that grow with every turn, or are the same each time.
const LISTS: [&str; 4] = ["messages", "input", "contents", "tools"];

/// The id of the entry with a receipt.
pub(crate) fn entry_id(receipt: &str) -> String {
    format!("prediction:{receipt}")
}

/// Letters of why a trace was not kept.
const OMITTED_CHARS_MAX: usize = 500;

/// How a call ended.
#[derive(Debug)]
pub(super) struct Ended {
    status: Status,
    reason: Option<Reason>,
    spent: u64,
    overrun: Option<u64>,
    /// Of the reservation, if there is one.
    state: &'static str,
    usage: Usage,
    model: Option<String>,
    output_hash: Option<String>,
    answer: Value,
}

impl Ended {
    fn new(status: Status, state: &'static str, reason: Option<Reason>) -> Self {
        let (usage, model, output_hash, answer) = (Usage::default(), None, None, Value::Null);
        Self { status, reason, spent: 0, overrun: None, state, usage, model, output_hash, answer }
    }

    fn with(status: Status, state: &'static str, code: &str, message: &str) -> Self {
        Self::new(status, state, Some(Reason { reason_code: code.to_owned(), message: message.to_owned() }))
    }

    pub(super) fn denied(code: &str, message: &str) -> Self {
        Self::with(Status::Denied, "", code, message)
    }

    pub(super) fn failed(code: &str, message: &str) -> Self {
        Self::with(Status::Failed, "released", code, message)
    }

    pub(super) fn unknown(message: &str) -> Self {
        Self::with(Status::Unknown, "reconcile_required", policy::PROVIDER_ERROR, message)
    }

    /// An answer, and what it cost. What nobody believes, or goes beyond what was set aside, is said.
    pub(super) fn answered(metered: &Metered, spent: u64, reserved: u64) -> Self {
        let overrun = spent.checked_sub(reserved).filter(|over| *over > 0);
        let reason = |code: &str, message: String| Some(Reason { reason_code: code.to_owned(), message });
        let reason = match (&metered.usage, overrun) {
            (None, _) => {
                let why = metered.flaw.clone().unwrap_or_else(|| "the provider did not say what was used".to_owned());
                reason(USAGE_MISSING, format!("{why}: all that was set aside is taken"))
            }
            (_, Some(over)) => reason(OVERRUN, format!("the provider used {over} more than was set aside")),
            _ => metered.flaw.clone().and_then(|flaw| reason(policy::PROVIDER_ERROR, flaw)),
        };
        Self { spent, overrun, ..Self::new(Status::Succeeded, "committed", reason) }
    }

    pub(super) fn heard(&mut self, metered: &Metered) {
        self.usage = metered.usage.unwrap_or_default();
        self.model.clone_from(&metered.model);
        let said = json!({"text": metered.text, "calls": metered.calls});
        self.output_hash = (metered.is_whole || !metered.text.is_empty()).then(|| hash::of(&said));
        self.answer = json!({"text": metered.text, "calls": metered.calls, "stop": metered.stop, "usage": self.usage});
    }
}

/// The receipt's id, and the entry that holds it.
pub(super) fn entry(till: &Till, begun: &Begun, ended: &Ended) -> Result<(String, Submission), Failure> {
    // Money is not left open because a trace cannot be kept: then the receipt says that there is none, and why.
    let why = match made(till, begun, ended, None) {
        Ok((id, entry @ Submission::Draft(_))) => return Ok((id, entry)),
        Ok((_, Submission::Rejected(rejection))) => rejection.refusal.message.clone(),
        Err(failure) => failure.message,
    };
    made(till, begun, ended, Some(&why))
}

fn made(till: &Till, begun: &Begun, ended: &Ended, omitted: Option<&str>) -> Result<(String, Submission), Failure> {
    let (question, about) = (&begun.question, &begun.about);
    let mut payload = json!({
        "strategy_id": about.strategy, "signature_id": about.signature, "protocol": question.protocol.word(),
        "provider": begun.provider, "model": question.model, "ordinal": begun.ordinal,
    });
    match omitted {
        None => {
            payload["request"] = split(&till.counter, &till.redactor, question)?;
            payload["response"] = ended.answer.clone();
        }
        Some(why) => payload["omitted"] = json!(why.chars().take(OMITTED_CHARS_MAX).collect::<String>()),
    }
    let trace = keep(&till.counter, trace::capture(&till.who.run, &about.signature, &payload, &till.redactor))?;
    let price = begun.price.as_ref();
    let is_reserved = begun.authorization.is_some() && ended.status != Status::Denied;
    let budget = Budget {
        spent: ended.spent,
        reserved: if is_reserved { begun.amount } else { 0 },
        remaining: remaining(begun, ended),
        call_id: Some(begun.call.clone()),
        state: is_reserved.then(|| ended.state.to_owned()),
        overrun: ended.overrun,
        ..Budget::of(price.map_or("", |price| price.currency.as_str()), &ended.usage)
    };
    let receipt = Receipt {
        kind: Kind::Call,
        run_id: &till.who.run,
        ordinal: begun.ordinal,
        prediction_id: &about.prediction,
        parent_prediction_id: about.parent.as_deref(),
        signature_id: &about.signature,
        strategy_id: &about.strategy,
        compiled_id: &about.compiled_id,
        rollout: &about.rollout,
        hashes: &about.hashes,
        params_hash: &question.exact_key(),
        output_hash: ended.output_hash.as_deref(),
        inputs: &begun.inputs,
        decision: &begun.decision,
        budget,
        timing: timing(begun.started, begun.at.elapsed().as_millis()),
        trace: Some(&trace),
        status: ended.status,
        error: ended.reason.clone(),
        provider: Some(&begun.provider),
        model: Some(ended.model.as_deref().unwrap_or(&question.model)),
        protocol: Some(question.protocol.word()),
    };
    let receipt = receipt.to_json();
    submit(&till.counter, till.who.autopilot.as_deref(), receipt, trace)
}

/// What is left, as far as this call knows: others may spend at the same time.
fn remaining(begun: &Begun, ended: &Ended) -> Option<u64> {
    let authorization = begun.authorization.as_ref()?;
    let left = authorization.remaining()?;
    match ended.status {
        Status::Denied | Status::Unknown => Some(left),
        _ => Some(left.saturating_add(begun.amount).saturating_sub(ended.spent)),
    }
}

pub(crate) fn timing(started: Timestamp, latency_ms: u128) -> Timing {
    Timing {
        started_at: format!("{started:.3}"),
        completed_at: format!("{:.3}", Timestamp::now()),
        latency_ms: u64::try_from(latency_ms).unwrap_or(u64::MAX),
    }
}

/// A receipt with its trace, as an entry.
pub(crate) fn submission(
    counter: &Counter,
    robot: Option<&str>,
    receipt: &Value,
    trace: &Trace,
) -> Result<(String, Submission), Failure> {
    submit(counter, robot, receipt.clone(), trace.clone())
}

/// The same with what is its own now: every call has one, and nothing of it is copied.
fn submit(
    counter: &Counter,
    robot: Option<&str>,
    receipt: Value,
    trace: Trace,
) -> Result<(String, Submission), Failure> {
    receipt::check(&receipt)
        .map_err(|flaws| Failure::new(error::INTERNAL, format!("a receipt is not whole: {}", flaws.join(", "))))?;
    let id = receipt["receipt_id"].as_str().unwrap_or_default().to_owned();
    let mut document = json!({
        "id": entry_id(&id), "tenantId": counter.tenant.as_str(), "module": "predict", "source": "actum", "type": TYPE,
        "payload": {},
    });
    document["payload"]["receipt"] = receipt;
    document["payload"]["trace"] = trace.into_json();
    if let Some(robot) = robot {
        document["robotId"] = json!(robot);
    }
    Ok((id, draft::read_own(document)))
}

/// Puts a trace that is too long to stand in a receipt where it can be found.
pub(crate) fn keep(counter: &Counter, mut trace: Trace) -> Result<Trace, Failure> {
    if trace.storage == Storage::External {
        let digest = store(counter, &[trace.bytes.clone()])?;
        trace.artifact_uri = digest.first().map(|digest| format!("blob:blake3:{digest}"));
    }
    Ok(trace)
}

fn store(counter: &Counter, all: &[Vec<u8>]) -> Result<Vec<String>, Failure> {
    let batch = counter.traces.batch()?;
    let mut digests = Vec::new();
    for bytes in all {
        let digest = Digest::blake3(bytes);
        batch.put(digest, bytes)?;
        digests.push(digest.to_hex());
    }
    batch.commit()?;
    Ok(digests)
}

/// A long conversation is asked anew with every turn: its parts are kept once, and named.
fn split(counter: &Counter, redactor: &Redactor, question: &Question) -> Result<Value, Failure> {
    let mut body = Value::clone(&question.body);
    if question.len_bytes() < SPLIT_BYTES_MIN {
        return Ok(body);
    }
    let mut parts: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for name in LISTS {
        for part in body.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten() {
            let clean = sanitise(part, redactor);
            let bytes = hash::canonical(&clean);
            if bytes.len() >= PART_BYTES_MIN {
                let digest = Digest::blake3(&bytes).to_hex();
                *part = json!({ BLOB: digest, "bytes": bytes.len() });
                parts.insert(digest, bytes);
            }
        }
    }
    let parts: Vec<Vec<u8>> = parts.into_values().collect();
    store(counter, &parts)?;
    Ok(body)
}

/// Where traces lie that do not stand in their receipts.
pub(crate) fn traces(project: &Project) -> Result<Blobs, Failure> {
    project.shelf(Shelf::Traces)
}

/// A receipt with its whole trace, wherever that lies.
pub(crate) fn whole(payload: &Value, traces: &Blobs) -> Result<Value, Failure> {
    let (receipt, mut trace) = (payload["receipt"].clone(), payload["trace"].clone());
    let id = receipt["receipt_id"].as_str().unwrap_or_default();
    if trace["storage"] == "external" {
        let uri = trace["artifact_uri"].as_str().unwrap_or_default();
        let digest = uri.strip_prefix("blob:blake3:").and_then(Digest::from_hex).ok_or_else(|| {
            Failure::new(error::LEDGER_DAMAGED, format!("the trace of {id} lies at {uri:?}, which is no address"))
        })?;
        let bytes = traces.read(digest).map_err(|e| {
            Failure::from(e).hint("long traces are stored beside the store, in .actum/traces: move both together")
        })?;
        let is_right = trace["trace_hash"] == Digest::sha256(&bytes).to_hex();
        let text = serde_json::from_slice(&bytes).ok().filter(|_| is_right);
        trace["payload"] =
            text.ok_or_else(|| Failure::new(error::CONTENT_DAMAGED, format!("the trace of {id} is not what it was")))?;
    }
    fill(&mut trace["payload"], traces, DEPTH_MAX);
    Ok(json!({"receipt": receipt, "trace": trace}))
}

/// Parts of a trace within parts of it.
const DEPTH_MAX: usize = 32;

/// Puts parts that are kept by themselves where they belong.
fn fill(value: &mut Value, traces: &Blobs, depth: usize) {
    let named = value[BLOB].as_str().and_then(Digest::from_hex);
    if let Some(part) = named.and_then(|digest| serde_json::from_slice(&traces.read(digest).ok()?).ok()) {
        *value = part;
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| fill(one, traces, depth)),
        Value::Object(all) => all.values_mut().for_each(|one| fill(one, traces, depth)),
        _ => {}
    }
}
