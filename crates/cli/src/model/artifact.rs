//! Artifacts as they are registered: entries of the ledger that never change, each under the hash of all that is in it.
//! Called by whoever names one: commands, pointers, compiles. Asks no model.

use actum_api::error;
use actum_predict::Signature;
use actum_predict::artifact::{Artifact, VERSION};
use actum_predict::evolve::Kind;
use serde_json::{Value, json};

use super::evidence::{self, Kept};
use crate::failure::Failure;
use crate::run::shop::Open;

/// How every id begins, and that of a report.
const PREFIX: &str = "art_";
const REPORT: &str = "cmp_";
/// Shorter beginnings of an id could be anything.
const ID_CHARACTERS_MIN: usize = 8;

/// The word for the signature's own way, which need not be registered before it is named.
pub(crate) const BASELINE: &str = "baseline";

fn entry_id(artifact: &str) -> String {
    format!("rollout:artifact:{artifact}")
}

/// Registers an artifact; whether it is new.
pub(crate) fn add(open: &Open, artifact: &Artifact) -> Result<bool, Failure> {
    let id = artifact.id();
    let payload = json!({"version": VERSION, "artifact_id": id, "artifact": artifact.to_json()});
    match evidence::append(open, Kind::Artifact, &entry_id(&id), payload)? {
        Kept::New => Ok(true),
        Kept::Known => Ok(false),
        Kept::Other => Err(damaged(format!("is another one, and on record as {id}"))),
    }
}

/// One by its id, by the beginning of it, or by its label; or the one that a compile has selected, by its report.
pub(crate) fn find(open: &Open, text: &str) -> Result<Artifact, Failure> {
    if text.starts_with(REPORT) {
        let report = evidence::report(open, text)?;
        return find(open, report["selected_artifact"].as_str().unwrap_or_default());
    }
    if let Some(payload) = evidence::entry(open, Kind::Artifact, &entry_id(text))? {
        return read(&entry_id(text), &payload);
    }
    let unknown = || {
        let failure = Failure::new(error::NOT_FOUND, format!("no artifact {text:?} is registered"));
        failure.hint("`actum artifact list` shows what is; `actum artifact add FILE` registers one")
    };
    let is_id = text.starts_with(PREFIX);
    if is_id && text.len() < ID_CHARACTERS_MIN {
        let failure = Failure::new(error::NOT_FOUND, format!("{text:?} is too short to tell an artifact by"));
        return Err(failure.hint(format!("give at least {ID_CHARACTERS_MIN} letters of its id")));
    }
    let is_meant = |artifact: &Artifact| match is_id {
        true => artifact.id().starts_with(text),
        false => artifact.label.as_deref() == Some(text),
    };
    let mut found = all(open, None)?.into_iter().filter(is_meant);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(unknown()),
        (Some(_), Some(_)) => {
            let failure = Failure::new(error::USAGE, format!("{text:?} may be one of several artifacts"));
            Err(failure.hint("give more of the id; `actum artifact list` shows them"))
        }
    }
}

/// What a signature may be pointed to by these words: a registered artifact that fits it, or its own way.
pub(crate) fn fitting(open: &Open, signature: &Signature, text: &str) -> Result<Artifact, Failure> {
    if text == BASELINE {
        return Ok(Artifact::of(signature));
    }
    let artifact = find(open, text)?;
    match artifact.bind(signature) {
        Ok(_) => Ok(artifact),
        Err(why) => Err(incompatible(&artifact, &why)),
    }
}

pub(crate) fn incompatible(artifact: &Artifact, why: &actum_predict::artifact::Incompatible) -> Failure {
    let id = artifact.id();
    Failure::new(error::ARTIFACT_INCOMPATIBLE, format!("{}: {id}: {why}", why.reason_code))
        .details(json!({"reason_code": why.reason_code, "artifact_id": id}))
        .hint(format!("`actum artifact show {id}` compares it with the signature"))
}

/// All that were registered, in the order in which they were.
pub(crate) fn all(open: &Open, signature: Option<&str>) -> Result<Vec<Artifact>, Failure> {
    let mut found = Vec::new();
    evidence::each_named(open, Kind::Artifact, &mut |id, payload| {
        let artifact = read(id, &payload)?;
        if signature.is_none_or(|signature| artifact.signature_id == signature) {
            found.push(artifact);
        }
        Ok(())
    })?;
    Ok(found)
}

fn damaged(why: String) -> Failure {
    let failure = Failure::new(error::LEDGER_DAMAGED, format!("an artifact in the ledger {why}"));
    failure.hint("`actum ledger verify` finds what was altered")
}

/// What is on record under an id; it has to be the one that has it.
fn read(entry: &str, payload: &Value) -> Result<Artifact, Failure> {
    let found = Artifact::read(&payload["artifact"])
        .map_err(|flaws| damaged(flaws.first().map(ToString::to_string).unwrap_or_default()))?;
    match entry == entry_id(&found.id()) {
        true => Ok(found),
        false => Err(damaged(format!("is {}, and on record as {entry}", found.id()))),
    }
}
