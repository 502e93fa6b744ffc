//! What is known of answers: labels, datasets, evals and reports, as entries of the ledger that never change. What is long
//! (examples, results example by example) lies in a store of contents of its own, and entries name it.

use std::collections::BTreeMap;

use actum_api::error;
use actum_contract::blob::Blobs as _;
use actum_contract::digest::Digest;
use actum_contract::execution::Redactor;
use actum_ledger::draft;
use actum_ledger::journal::{Outcome, Range};
use actum_predict::Signature;
use actum_predict::dataset::{Dataset, Example, LABEL_VERSION, Raw};
use actum_predict::evolve::{self, Kind};
use actum_predict::hash;
use actum_predict::sanitise::sanitise;
use actum_store::blob::Folder as Blobs;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::receipt;
use crate::contents::Shelf;
use crate::failure::Failure;
use crate::run::shop::Open;
use crate::tool::secret;

/// How the names of runs begin that try artifacts out: what they were answered is no example for others.
pub(crate) const TRIALS: &str = "improve-";

/// Hex digits of its hash that stand for a signature.
const SIGNATURE_DIGITS: usize = 16;
/// Entries read at a time.
const PAGE: usize = 500;
/// Hex digits by which a label is known among those of its receipt.
const LABEL_DIGITS: usize = 16;

/// What the answer of a receipt should have been, or what it is worth.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Label {
    pub expected: Option<Value>,
    pub score: Option<f64>,
}

/// Whether an entry is on record now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    New,
    /// The very same was there.
    Known,
    /// Something else was there, and stays.
    Other,
}

/// Puts an entry on record.
pub(crate) fn append(open: &Open, kind: Kind, id: &str, payload: Value) -> Result<Kept, Failure> {
    let mut document = json!({
        "id": id, "tenantId": open.tenant.as_str(), "module": "predict", "source": "actum", "type": kind.word(),
    });
    document["payload"] = payload;
    match open.waiter.wait(open.waiter.journal.append(draft::read_own(document)))? {
        Outcome::Created { .. } => Ok(Kept::New),
        Outcome::Idempotent { .. } => Ok(Kept::Known),
        Outcome::Refused(refusal) if refusal.code.name() == "IDEMPOTENCY_CONFLICT" => Ok(Kept::Other),
        Outcome::Refused(refusal) => {
            Err(Failure::new(error::INPUT, format!("{id}: {}", refusal.message)).details(refusal.details()))
        }
    }
}

/// The payload of one entry, as it is read today.
pub(crate) fn entry(open: &Open, kind: Kind, id: &str) -> Result<Option<Value>, Failure> {
    let bytes = open.waiter.wait(open.waiter.journal.entry(&open.tenant, id))?;
    bytes.map(|bytes| payload_of(kind, &bytes)).transpose()
}

/// All entries of a kind from a place in the ledger on, in their order.
pub(crate) fn each(
    open: &Open,
    kind: Kind,
    from: u64,
    take: &mut dyn FnMut(u64, Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    each_entry(open, kind, from, &mut |seq, mut entry| take(seq, today(kind, entry["payload"].take())?))
}

/// The same of all of them, each with the id it is on record under.
pub(crate) fn each_named(
    open: &Open,
    kind: Kind,
    take: &mut dyn FnMut(&str, Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    each_entry(open, kind, 0, &mut |_, mut entry| {
        let payload = today(kind, entry["payload"].take())?;
        take(entry["id"].as_str().unwrap_or_default(), payload)
    })
}

fn each_entry(
    open: &Open,
    kind: Kind,
    mut from: u64,
    take: &mut dyn FnMut(u64, Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let range = Range { from, limit: PAGE, backwards: false, kind: Some(kind.word().to_owned()) };
        let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, range))?;
        let Some(last) = rows.last().map(|row| row.seq) else { return Ok(()) };
        for row in rows {
            take(row.seq, parsed(kind, &row.body)?)?;
        }
        from = last + 1;
    }
}

/// The payload of an entry, as it is read today.
pub(crate) fn payload_of(kind: Kind, bytes: &[u8]) -> Result<Value, Failure> {
    today(kind, parsed(kind, bytes)?["payload"].take())
}

fn parsed(kind: Kind, bytes: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|e| Failure::new(error::LEDGER_DAMAGED, format!("an entry of type {}: {e}", kind.word())))
}

/// A payload, as it is read today; what is newer than this program is refused by name.
pub(crate) fn today(kind: Kind, payload: Value) -> Result<Value, Failure> {
    evolve::read(kind, payload)
        .map_err(|newer| Failure::new(error::STORE_UNUSABLE, newer.to_string()).hint("use a newer actum"))
}

/// Takes out of what is kept the keys of all providers; the rest goes by its looks.
pub(crate) fn redactor(open: &Open) -> Result<Redactor, Failure> {
    let config = open.project.config()?;
    let keys: Vec<String> = config
        .providers
        .iter()
        .filter_map(|one| one.key.as_deref().and_then(secret::look_up).and_then(Result::ok))
        .collect();
    Ok(Redactor::new(keys.iter().map(String::as_str)))
}

/// The labels of receipts in a stretch of the ledger, of each the newest.
pub(crate) fn labels(open: &Open, stretch: std::ops::Range<u64>) -> Result<BTreeMap<String, Label>, Failure> {
    let mut found = BTreeMap::new();
    each(open, Kind::Label, stretch.start, &mut |seq, payload| {
        if seq >= stretch.end {
            return Ok(());
        }
        let label = Label { expected: payload.get("expected").cloned(), score: payload["score"].as_f64() };
        found.insert(payload["receipt_id"].as_str().unwrap_or_default().to_owned(), label);
        Ok(())
    })?;
    Ok(found)
}

/// Keeps a label. What was kept before under the same receipt counts no more.
pub(crate) fn label(
    open: &Open,
    receipt: &str,
    expected: Option<&Value>,
    score: Option<f64>,
    (actor, reason): (&str, &str),
) -> Result<(), Failure> {
    let mut payload = json!({"version": LABEL_VERSION, "receipt_id": receipt, "actor": actor, "reason": reason});
    if let Some(expected) = expected {
        if !is_comparable(expected, &redactor(open)?) {
            let message =
                "what is expected holds a secret or personal data, which is not kept and so cannot be compared";
            return Err(Failure::new(error::INPUT, message)
                .hint("compare them yourself, and say what the answer is worth: score"));
        }
        payload["expected"] = expected.clone();
    }
    if let Some(score) = score {
        payload["score"] = json!(score);
    }
    // Somebody may change his mind, and change it back.
    payload["at"] = json!(format!("{:.3}", Timestamp::now()));
    let id = format!("rollout:label:{receipt}:{}", &hash::of(&payload)[..LABEL_DIGITS]);
    append(open, Kind::Label, &id, payload).map(|_| ())
}

/// Whether a value is kept as it is: what both sides are stripped of would be equal.
pub(crate) fn is_comparable(expected: &Value, redactor: &Redactor) -> bool {
    sanitise(expected, redactor) == *expected && !is_redacted(expected)
}

/// Whether something was taken out of a value before it was kept.
pub(crate) fn is_redacted(value: &Value) -> bool {
    value.to_string().contains("[REDACTED")
}

/// What was asked and answered by a prediction, without secrets; nothing if that is not known.
pub(crate) fn answer(open: &Open, payload: &Value) -> Result<Option<(Value, Value)>, Failure> {
    let traces = receipt::traces(&open.project)?;
    let whole = receipt::whole(payload, &traces)?;
    let said = &whole["trace"]["payload"];
    Ok(said.get("input").zip(said.get("output")).map(|(input, output)| (input.clone(), output.clone())))
}

fn contents(open: &Open) -> Result<Blobs, Failure> {
    open.project.shelf(Shelf::Evidence)
}

/// Keeps a content; its digest.
pub(crate) fn keep(open: &Open, bytes: &[u8]) -> Result<String, Failure> {
    let contents = contents(open)?;
    let batch = contents.batch()?;
    let digest = Digest::blake3(bytes);
    batch.put(digest, bytes)?;
    batch.commit()?;
    Ok(digest.to_hex())
}

/// A content that an entry names.
pub(crate) fn content(open: &Open, digest: &str) -> Result<Vec<u8>, Failure> {
    let named = Digest::from_hex(digest)
        .ok_or_else(|| Failure::new(error::LEDGER_DAMAGED, format!("{digest:?} is no address of a content")))?;
    contents(open)?.read(named).map_err(|e| {
        Failure::from(e)
            .hint("examples and results are stored beside the store, in .actum/evidence: move both together")
    })
}

/// Registers a dataset; what is known of it if it was there already.
pub(crate) fn add_dataset(open: &Open, dataset: &Dataset) -> Result<Option<Value>, Failure> {
    let mut payload = dataset.manifest();
    payload["examples"] = json!(keep(open, &dataset.lines())?);
    let signature = hash::of(&json!(dataset.signature_id));
    let id = format!("rollout:dataset:{}:{}", &signature[..SIGNATURE_DIGITS], dataset.hash());
    // The same examples under another name, or with others left out, are the same dataset.
    match append(open, Kind::Dataset, &id, payload)? {
        Kept::New => Ok(None),
        Kept::Known | Kept::Other => entry(open, Kind::Dataset, &id),
    }
}

/// What is known of the datasets there are, in the order in which they were made.
pub(crate) fn datasets(open: &Open) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    each(open, Kind::Dataset, 0, &mut |_, payload| {
        found.push(payload);
        Ok(())
    })?;
    Ok(found)
}

/// The dataset whose hash begins so, or that has this name: then the newest. `signature`: whose it has to be; examples of
/// another one are taken if they fit, and are not registered by that.
pub(crate) fn dataset(open: &Open, wanted: &str, signature: Option<&Signature>) -> Result<Dataset, Failure> {
    let all = datasets(open)?;
    let is_own = |one: &&Value| signature.is_none_or(|signature| one["signature_id"] == signature.id().as_str());
    let own: Vec<&Value> = all.iter().filter(is_own).collect();
    let others: Vec<&Value> = all.iter().collect();
    let found = match named(&own, wanted)? {
        Some(found) => Some(found),
        None => named(&others, wanted)?,
    };
    let manifest = found.ok_or_else(|| {
        Failure::new(error::NOT_FOUND, format!("there is no dataset {wanted:?}")).hint(
            "`actum dataset list` shows those there are; `actum dataset import FILE` and `actum dataset export` make one",
        )
    })?;
    let lines = content(open, manifest["examples"].as_str().unwrap_or_default())?;
    let found = Dataset::read(manifest, &lines)
        .map_err(|e| Failure::new(error::CONTENT_DAMAGED, format!("the dataset {wanted}: {e}")))?;
    let Some(signature) = signature.filter(|signature| signature.id() != found.signature_id) else { return Ok(found) };
    let raw = |one: Example| Raw {
        at: one.id,
        input: one.input,
        expected: one.expected,
        receipt_id: one.receipt_id,
        is_labelled: one.is_labelled,
    };
    let raw: Vec<Raw> = found.examples.into_iter().map(raw).collect();
    let taken = Dataset::build(&found.name, signature, raw, found.split, &found.split_seed, None, Vec::new());
    let taken = taken.map_err(|e| {
        let message = format!("the dataset {wanted} of {} does not fit {}: {e}", found.signature_id, signature.id());
        Failure::new(error::INPUT, message)
    })?;
    // Half of it would be another examination.
    let Some(first) = taken.skipped.first() else { return Ok(taken) };
    let message = format!(
        "{} of the {} examples of the dataset {wanted} of {} do not fit {}: {}",
        taken.skipped.len(),
        taken.skipped.len() + taken.examples.len(),
        found.signature_id,
        signature.id(),
        first.detail
    );
    Err(Failure::new(error::INPUT, message).hint("`actum dataset import FILE --signature ID` takes those that do"))
}

/// The one that is meant, if only one can be.
fn named<'d>(all: &[&'d Value], wanted: &str) -> Result<Option<&'d Value>, Failure> {
    let begins = |one: &&&Value| {
        wanted.len() >= HASH_DIGITS_MIN && one["dataset_hash"].as_str().is_some_and(|hash| hash.starts_with(wanted))
    };
    let found: Vec<&Value> = all.iter().filter(begins).copied().collect();
    let Some(first) = found.first() else {
        return Ok(all.iter().rev().find(|one| one["name"] == wanted).copied());
    };
    if found.iter().any(|one| one["dataset_hash"] != first["dataset_hash"]) {
        let failure = Failure::new(error::USAGE, format!("{wanted:?} is the beginning of several datasets"));
        return Err(failure.hint("give more of the hash; `actum dataset list` shows them"));
    }
    // The same examples of several signatures are the same examples.
    Ok(Some(first))
}

/// Shorter ones could be anything.
const HASH_DIGITS_MIN: usize = 6;

/// The reports there are, in the order in which they were made.
pub(crate) fn reports(open: &Open) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    each(open, Kind::Compile, 0, &mut |_, payload| {
        found.push(payload);
        Ok(())
    })?;
    Ok(found)
}

/// The report whose id begins so.
pub(crate) fn report(open: &Open, id: &str) -> Result<Value, Failure> {
    let begins =
        |one: &Value| id.len() >= HASH_DIGITS_MIN && one["report_id"].as_str().is_some_and(|own| own.starts_with(id));
    let mut found: Vec<Value> = reports(open)?.into_iter().filter(begins).collect();
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => Err(Failure::new(error::USAGE, format!("{id:?} is the beginning of several reports"))
            .hint("give more of the id; `actum compile --list` shows them")),
        (None, _) => Err(Failure::new(error::NOT_FOUND, format!("there is no report {id:?}"))
            .hint("`actum compile --list` shows those there are")),
    }
}
