//! Repeating a run: the recorded input in a scratch folder, the same item under the same contract, and a comparison of
//! what comes out. The workspace is never touched.

use std::sync::Arc;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_engine::{Submitter, read_agreement, rehearse};
use actum_kernel::{Hands as _, Phase, State, Status, Verdict};
use actum_workspace::{deltas, diff, leaves};
use serde_json::{Value, json};

use super::book::had_tools;
use super::finish::RunFolder;
use super::hands::{Facts, RunHands};
use super::offer::recorded;
use super::recording::Recording;
use super::shop::Shop;
use crate::failure::Failure;
use crate::workspace::new_id;

/// What a repetition came to.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub identical: bool,
    pub expected: String,
    pub actual: String,
    pub first_difference: Option<Value>,
    /// Programs of the machine that are no longer what they were.
    pub programs_changed: Vec<String>,
    /// Questions to models that were answered in their order, because their words were others.
    pub by_order: u64,
    /// Questions beside the work (they offer the model no tools, others do) that were asked only then, or only now.
    pub asides: u64,
}

impl Replayed {
    pub(crate) fn json(&self) -> Value {
        let mut shown =
            json!({"identical": self.identical, "expected_hash": self.expected, "actual_hash": self.actual});
        if let Some(difference) = &self.first_difference {
            shown["first_difference"] = difference.clone();
        }
        if !self.programs_changed.is_empty() {
            shown["programs_changed"] = json!(self.programs_changed);
        }
        if self.by_order > 0 {
            shown["answered_by_order"] = json!(self.by_order);
        }
        if self.asides > 0 {
            shown["asides_differ"] = json!(self.asides);
        }
        shown
    }
}

/// Repeats a recording. `input`: a tree to use in the place of the recorded one.
/// `live`: models are asked anew, and paid for, as if `by` had submitted it.
pub(crate) fn replay(
    shop: &Arc<Shop>,
    recording: &Recording,
    input: Option<Digest>,
    live: bool,
    by: Submitter,
) -> Result<Replayed, Failure> {
    let bad = |message: String| Failure::new(error::INPUT, message);
    let metadata = recording.metadata.to_string();
    let (contract, mut agreement, agreed) = read_agreement(&metadata).map_err(|e| {
        Failure::new(
            if e.code() == "UNSUPPORTED_CONTRACT" { error::UNSUPPORTED } else { error::MISMATCH },
            e.to_string(),
        )
    })?;
    let tree = |text: &Option<String>| text.as_deref().and_then(Digest::from_hex);
    let Some((before, expected)) = tree(&recording.before).zip(tree(&recording.output)) else {
        return Err(bad("the run did not get far enough to be repeated: it names no input".into()));
    };
    let expected_hash = expected.to_hex();
    let blobs = &*shop.blobs;
    let not_begun = |difference: Value| Replayed {
        identical: false,
        expected: expected_hash.clone(),
        actual: String::new(),
        programs_changed: Vec::new(),
        by_order: 0,
        asides: 0,
        first_difference: Some(difference),
    };
    if let Some(input) = input.filter(|input| *input != before) {
        let changed = diff(blobs, before, input)?;
        let path = deltas(&changed).next().map(|change| change.path.to_string());
        let (was, is) = (before.to_hex(), input.to_hex());
        return Ok(not_begun(json!({"what": "input", "path": path, "expected": was, "actual": is})));
    }
    if let Some(path) = first_missing(blobs, before)? {
        let why = "its recorded content is missing or damaged";
        return Ok(not_begun(json!({"what": "input", "path": path, "why": why})));
    }
    agreement.submitted_by = Some(by);
    let facts = Facts {
        run: recording.run_id.clone(),
        item: recording.item_id.clone(),
        submission: String::new(),
        attempt: recording.attempt,
        epoch: 0,
        created_ms: 0,
        place: shop.place.clone(),
        contract_hash: contract.hash.to_hex(),
        metadata,
        agreement,
    };
    let scratch = RunFolder::make(&shop.home, &format!(".replay-{}", new_id()))?;
    let mut hands = RunHands::repeating(Arc::clone(shop), facts, before, scratch.clone())?;
    hands.heard = recording.tools.then(|| recorded(recording.answers.clone()));
    hands.admission = recording.admission;
    // Another one than the run's: what was spent there is on record.
    hands.live = live.then(|| format!("replay-{}", new_id()));
    hands.heard_tools = recording.tools && had_tools(&recording.answers);
    let (state, _) = rehearse(agreed, &recording.contracts, &mut hands);
    let replayed = compare(recording, &state, &hands, expected, shop);
    hands.leave(&Verdict::success(false));
    let _ = std::fs::remove_dir_all(scratch.path(""));
    replayed
}

fn compare(
    recording: &Recording,
    state: &State,
    hands: &RunHands,
    expected: Digest,
    shop: &Shop,
) -> Result<Replayed, Failure> {
    let verdict = match &state.phase {
        Phase::Over(verdict) => verdict.clone(),
        _ => Verdict::ended(Status::Failure, "INTERNAL_ERROR", "the repetition has no end"),
    };
    let actual = state.current.clone().unwrap_or_default();
    let path = |program: &Value| program["path"].as_str().unwrap_or_default().to_owned();
    let programs_changed: Vec<String> =
        recording.programs.iter().filter(|program| !hands.programs.contains(program)).map(path).collect();
    let replayed = |first_difference: Option<Value>| Replayed {
        identical: first_difference.is_none(),
        expected: expected.to_hex(),
        actual: actual.clone(),
        first_difference,
        programs_changed: programs_changed.clone(),
        by_order: hands.by_order,
        asides: hands.asides,
    };
    // Everything that differs after this may differ because of it.
    if let Some((asked, expected)) = &hands.strange {
        return Ok(replayed(Some(json!({
            "what": "question", "expected": expected, "actual": asked, "why": "the run did not ask its tools for this",
            "status": verdict.status, "message": verdict.message,
        }))));
    }
    if let Some(actual_tree) = Digest::from_hex(&actual)
        && actual_tree != expected
    {
        let changed = diff(&*shop.blobs, expected, actual_tree)?;
        let first = deltas(&changed).next();
        let path = first.map(|change| change.path.to_string());
        let node = |node: Option<actum_workspace::Node>| node.map(|node| node.digest.to_hex());
        return Ok(replayed(Some(json!({
            "what": "file", "path": path,
            "expected": first.and_then(|change| node(change.before)),
            "actual": first.and_then(|change| node(change.after)),
            "status": verdict.status, "message": verdict.message,
        }))));
    }
    if verdict.status.word() != recording.status || verdict.code != recording.code {
        return Ok(replayed(Some(json!({
            "what": "status", "expected": [recording.status, recording.code], "actual": [verdict.status.word(), verdict.code],
            "message": verdict.message,
        }))));
    }
    let capsule = hands.capsule(state)?.to_json();
    for part in ["toolTrace", "artifacts", "deltas", "contractHash"] {
        if capsule[part] != recording.capsule[part] {
            let (ours, theirs) = (&capsule[part], &recording.capsule[part]);
            let call = match (ours.as_array(), theirs.as_array()) {
                (Some(ours), Some(theirs)) => {
                    (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))
                }
                _ => None,
            };
            let at = |value: &Value| call.map_or_else(|| value.clone(), |call| value[call].clone());
            return Ok(replayed(Some(json!({"what": part, "call": call, "expected": at(theirs), "actual": at(ours)}))));
        }
    }
    Ok(replayed(None))
}

/// The first file of a tree whose content cannot be had.
fn first_missing(blobs: &dyn actum_contract::blob::Blobs, tree: Digest) -> Result<Option<String>, Failure> {
    for (path, node) in leaves(blobs, tree)? {
        if node.kind != actum_workspace::Kind::Folder && blobs.copy(node.digest, &mut std::io::sink()).is_err() {
            return Ok(Some(path.to_string()));
        }
    }
    Ok(None)
}
