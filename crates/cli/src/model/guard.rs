//! Guards: what receipts and labels say of the artifact that is tried, and the move that follows. Called after every
//! prediction by way of a pointer, and by `actum pointer guard`. Decides nothing itself: `predict::guard` does.

use std::collections::BTreeMap;

use actum_api::error;
use actum_ledger::journal::Range;
use actum_ledger::pointer::{Action, Change};
use actum_predict::evolve::Kind;
use actum_predict::guard::{Guard, Judged, Sample, Verdict, judge};
use actum_predict::pointer::Pointer;
use actum_predict::policy::{self, REASONS_VERSION};
use serde_json::{Value, json};

use super::evidence::{self, Label};
use super::rollout::{self, Move, Refused, Standing};
use super::{artifact, receipt};
use crate::failure::Failure;
use crate::run::shop::Open;
use crate::tool::register::By;

/// Receipts read at a time.
const PAGE: usize = 500;
/// In whose name a guard moves a pointer.
pub(crate) const ACTOR: &str = "guard";

/// What was seen so far of one revision of a pointer: whoever asks often reads only what is new.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    signature: String,
    n: u64,
    /// Where the next receipts and labels are.
    next: u64,
    seen: Vec<Seen>,
    /// Whether it goes on without answers whose traces are gone; who judges again has to have them all.
    is_live: bool,
}

/// One prediction that counts.
#[derive(Debug)]
struct Seen {
    receipt_id: String,
    sample: Sample,
    /// What was answered, as far as it is known here.
    output: Option<Value>,
}

/// A verdict, and where in the ledger it was found.
#[derive(Debug)]
pub(crate) struct Judgement {
    judged: Judged,
    from_seq: u64,
    to_seq: u64,
}

impl Watch {
    /// What the guard of a pointer says now; nothing if it has none.
    pub(crate) fn judge(&mut self, open: &Open, standing: &Standing) -> Result<Option<Judgement>, Failure> {
        let end = open.waiter.wait(open.waiter.journal.log(&open.tenant))?.frontier.size();
        self.is_live = true;
        self.judge_until(open, standing, end)
    }

    /// What it said, or would have, when the ledger had so many entries.
    pub(crate) fn judge_until(
        &mut self,
        open: &Open,
        standing: &Standing,
        end: u64,
    ) -> Result<Option<Judgement>, Failure> {
        let pointer = &standing.pointer;
        let Some(value) = pointer.guard.as_ref().filter(|_| pointer.canary_artifact.is_some()) else { return Ok(None) };
        let mut guard = Guard::read(value).map_err(|flaws| {
            let why = flaws.first().map(ToString::to_string).unwrap_or_default();
            let message = format!("the guard of {} cannot be read by this program: {why}", pointer.signature_id);
            Failure::new(error::STORE_DAMAGED, message).hint("use the version of actum that wrote it, or a newer one")
        })?;
        // Whoever went back to this state decides himself what comes after it.
        guard.promote &= !standing.is_restored();
        let from_seq = standing.seq + 1;
        if (self.n, &self.signature) != (standing.n, &pointer.signature_id) {
            *self = Self {
                signature: pointer.signature_id.clone(),
                n: standing.n,
                next: from_seq,
                seen: Vec::new(),
                ..*self
            };
        }
        let labelled_from = self.next;
        self.read(open, end)?;
        // Not beyond the end: whoever judges again has to find what is counted here.
        let labels = evidence::labels(open, labelled_from..end)?;
        self.score(open, &guard, &labels)?;
        let samples: Vec<Sample> = self.seen.iter().map(|seen| seen.sample.clone()).collect();
        let judged = judge(&guard, &samples);
        Ok(Some(Judgement { judged, from_seq, to_seq: end.saturating_sub(1) }))
    }

    /// Receipts of predictions under this revision, up to an end.
    fn read(&mut self, open: &Open, end: u64) -> Result<(), Failure> {
        let mut from = self.next;
        // Most receipts are of others: those need not be read, only looked through. Entries have no spaces in them.
        let mark = format!("\"pointer_revision\":{}", self.n);
        while from < end {
            let range = Range { from, limit: PAGE, backwards: false, kind: Some(receipt::TYPE.to_owned()) };
            let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, range))?;
            let Some(last) = rows.last().map(|row| row.seq) else { break };
            let is_marked = |body: &[u8]| std::str::from_utf8(body).is_ok_and(|text| text.contains(&mark));
            for row in rows.iter().filter(|row| row.seq < end && is_marked(&row.body)) {
                let payload = payload_of(&row.body)?;
                let receipt = &payload["receipt"];
                let is_ours = receipt["kind"] == "prediction"
                    && receipt["signature_id"] == self.signature.as_str()
                    && receipt["policy"]["pointer_revision"] == self.n;
                // What was not allowed, or asked wrongly, says nothing of the way it would have been asked.
                let is_asked_well = receipt["error"]["reason_code"] != policy::INVALID_INPUT;
                if is_ours && receipt["status"] != "denied" && is_asked_well {
                    let receipt_id = receipt["receipt_id"].as_str().unwrap_or_default().to_owned();
                    // What lies elsewhere is fetched if somebody has labelled it.
                    let output = payload["trace"]["payload"].get("output").cloned();
                    self.seen.push(Seen { receipt_id, sample: sample_of(receipt), output });
                }
            }
            from = last + 1;
        }
        self.next = end;
        Ok(())
    }

    /// Puts in what the answers are worth, as far as somebody said.
    fn score(&mut self, open: &Open, guard: &Guard, labels: &BTreeMap<String, Label>) -> Result<(), Failure> {
        let is_live = self.is_live;
        for Seen { receipt_id, sample, output } in &mut self.seen {
            let Some(label) = labels.get(receipt_id) else { continue };
            sample.score = match (label.score, &label.expected) {
                // No answer is worth nothing, whatever was said of it before.
                (Some(_), _) if sample.is_error => Some(0.0),
                (Some(score), _) => Some(score),
                (None, Some(expected)) => {
                    if output.is_none() {
                        let id = receipt::entry_id(receipt_id);
                        let bytes = open.waiter.wait(open.waiter.journal.entry(&open.tenant, &id))?;
                        let payload = bytes.map(|bytes| payload_of(&bytes)).transpose()?.unwrap_or_default();
                        let answered = evidence::answer(open, &payload).map(|known| known.map(|(_, output)| output));
                        *output = if is_live { answered.unwrap_or_default() } else { answered? };
                    }
                    match output.as_ref().filter(|output| !output.is_null()) {
                        Some(output) => guard.score.score(output, expected),
                        // Who gave no answer has said nothing right; of one that is not kept nothing is known.
                        None => sample.is_error.then_some(0.0),
                    }
                }
                (None, None) => None,
            };
        }
        Ok(())
    }
}

fn payload_of(bytes: &[u8]) -> Result<Value, Failure> {
    evidence::payload_of(Kind::Receipt, bytes)
}

fn sample_of(receipt: &Value) -> Sample {
    Sample {
        is_canary: receipt["policy"]["artifact_variant"] == "canary",
        is_error: receipt["status"] == "failed" || receipt["status"] == "unknown",
        spent: receipt["budget"]["spent"].as_u64().unwrap_or(0),
        latency_ms: receipt["timing"]["latency_ms"].as_u64().unwrap_or(0),
        score: None,
    }
}

impl Judgement {
    pub(crate) const fn word(&self) -> &'static str {
        self.judged.verdict.word()
    }

    pub(crate) const fn evidence(&self) -> &Value {
        &self.judged.evidence
    }

    /// The verdict in a sentence.
    pub(crate) fn says(&self) -> String {
        let evidence = &self.judged.evidence;
        let samples = format!("{} samples", evidence["canary"]["samples"]);
        let bounds = |holds: Value| {
            evidence["bounds"].as_array().into_iter().flatten().filter(move |bound| bound["holds"] == holds)
        };
        match self.judged.verdict {
            Verdict::Wait => {
                let needed = &evidence["guard"]["samples"];
                let waits = bounds(Value::Null).map(|bound| {
                    format!(
                        "{} has {} of {needed} samples",
                        bound["metric"].as_str().unwrap_or_default(),
                        bound["samples"]
                    )
                });
                waits.collect::<Vec<_>>().join(", ")
            }
            Verdict::Keep => format!("all bounds hold after {samples}; a person decides"),
            Verdict::Promote => format!("all bounds hold after {samples}"),
            Verdict::Rollback => {
                let broken: Vec<String> = bounds(json!(false)).map(broken_bound).collect();
                format!("{} after {samples}", broken.join(", "))
            }
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut shown = self.decision();
        shown["verdict"] = json!(self.word());
        shown["says"] = json!(self.says());
        shown
    }

    pub(crate) const fn verdict(&self) -> Verdict {
        self.judged.verdict
    }

    /// As it stands in the entry of the move.
    pub(crate) fn decision(&self) -> Value {
        json!({
            "reason_code": self.judged.reason_code, "reason_codes_version": REASONS_VERSION,
            "evaluation_hash": self.judged.evaluation_hash, "evidence": self.judged.evidence,
            "range": {"from_seq": self.from_seq, "to_seq": self.to_seq},
        })
    }
}

fn broken_bound(bound: &Value) -> String {
    let metric = bound["metric"].as_str().unwrap_or_default();
    let of = if bound["ratio_to_primary"] == true { " of the primary's" } else { "" };
    let value = if bound["value"].is_null() { "without bound".to_owned() } else { bound["value"].to_string() };
    let number = |name: &str| bound[name].as_f64();
    match (bound["value"].as_f64(), number("min"), number("max")) {
        (Some(found), Some(min), _) if found < min => format!("{metric} is {value}{of}, below {min}"),
        (_, _, Some(max)) => format!("{metric} is {value}{of}, above {max}"),
        _ => format!("{metric} is {value}{of}"),
    }
}

/// What follows from a verdict: the action, whose state it goes back to, and the pointer it leaves.
pub(crate) fn consequence(
    open: &Open,
    standing: &Standing,
    verdict: Verdict,
) -> Result<Option<(Action, Option<u64>, Pointer)>, Failure> {
    let pointer = &standing.pointer;
    Ok(match (verdict, &pointer.canary_artifact) {
        (Verdict::Promote, Some(tried)) => Some((Action::Promote, None, pointer.promoted(tried))),
        (Verdict::Rollback, Some(_)) => Some(match rollout::without_canary(open, standing)? {
            Some((n, earlier)) => (Action::Rollback, Some(n), earlier),
            None => (Action::Rollback, None, pointer.without_canary()),
        }),
        _ => None,
    })
}

/// Does what a guard says; nothing if it has nothing to say, or if somebody else moved the pointer meanwhile.
pub(crate) fn act(open: &Open, standing: &Standing, judgement: &Judgement) -> Result<Option<Change>, Failure> {
    let Some((action, restores, after)) = consequence(open, standing, judgement.verdict())? else { return Ok(None) };
    if action == Action::Promote {
        // What no longer fits is not promoted, whatever was measured.
        let signature = rollout::signature(open, &after.signature_id)?;
        artifact::fitting(open, &signature, &after.primary_artifact)?;
    }
    let by = By { actor: ACTOR.to_owned(), reason: judgement.says() };
    let wanted = Move { action, restores, after, by, decision: Some(judgement.decision()) };
    match rollout::make(open, &standing.pointer.signature_id, Some(standing), wanted) {
        Ok(change) => Ok(Some(change)),
        Err(Refused::Conflict(_)) => Ok(None),
        Err(Refused::Other(failure)) => Err(failure),
    }
}
