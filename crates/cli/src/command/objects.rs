//! `actum store check --objects`: whether the object store has what the ledger refers to. Asks the object store itself: what
//! this machine has beside it says nothing about the others.

use std::collections::BTreeSet;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_ledger::run::{Filter, RunState};
use actum_store::Check;
use actum_store::blob::Folder as Blobs;
use actum_workspace::{Snapshot, tree_contents};
use serde_json::Value;

use crate::contents::Shelf;
use crate::failure::Failure;
use crate::run::Open;

/// Runs read at a time.
const RUNS_PAGE: usize = 200;
/// Missing contents that are named.
const NAMED_MAX: usize = 5;

/// One check for heads of shared workspaces, snapshots, and receipts and recordings of runs.
pub(crate) fn check(open: &Open) -> Result<Vec<Check>, Failure> {
    if open.project.contents_name()?.is_none() {
        return Err(Failure::new(error::USAGE, "there is no object store to compare with")
            .hint("name one in [blobs] of actum.toml, or leave --objects out"));
    }
    let (blobs, files) = (open.project.blobs()?, open.project.shelf(Shelf::Files)?);
    let heads = open.waiter.wait(open.heads.heads_of(&open.tenant))?;
    let heads: BTreeSet<Digest> = heads.into_iter().map(|head| head.tree).collect();
    let snapshots = Snapshot::list(&open.project.folder()?)?.into_iter().map(|snapshot| snapshot.id).collect();
    Ok(vec![
        checked("heads", &blobs, all_of(&blobs, &heads)?)?,
        checked("snapshots", &blobs, all_of(&blobs, &snapshots)?)?,
        checked("receipts and recordings", &files, left_by_runs(open)?)?,
    ])
}

/// Every content of these trees, folders among them. A folder that cannot be read is named itself.
fn all_of(blobs: &Blobs, trees: &BTreeSet<Digest>) -> Result<BTreeSet<Digest>, Failure> {
    let mut all = BTreeSet::new();
    for tree in trees {
        tree_contents(blobs, *tree, &mut all)?;
    }
    Ok(all)
}

/// What runs on shared workspaces have left: receipt, recording, result, diff, logs.
fn left_by_runs(open: &Open) -> Result<BTreeSet<Digest>, Failure> {
    let mut all = BTreeSet::new();
    for state in [RunState::Succeeded, RunState::Failed, RunState::Cancelled] {
        let mut before = None;
        loop {
            let filter = Filter { state: Some(state), before, limit: RUNS_PAGE, ..Filter::default() };
            let runs = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
            let Some(last) = runs.last() else { break };
            before = Some(last.id.clone());
            for text in runs.iter().filter_map(|run| run.outcome.as_deref()) {
                let outcome: Value = serde_json::from_str(text).unwrap_or_default();
                let files = outcome["files"].as_object().into_iter().flatten();
                all.extend(files.filter_map(|(_, digest)| Digest::from_hex(digest.as_str()?)));
            }
        }
    }
    Ok(all)
}

fn checked(name: &'static str, blobs: &Blobs, wanted: BTreeSet<Digest>) -> Result<Check, Failure> {
    let wanted: Vec<Digest> = wanted.into_iter().collect();
    let missing = blobs.missing_behind(&wanted)?;
    let detail = match missing.len() {
        0 => format!("the object store has all {} contents", wanted.len()),
        n => {
            let first: Vec<String> = missing.iter().take(NAMED_MAX).map(|digest| digest.to_hex()).collect();
            format!("the object store lacks {n} of {} contents, the first: {}", wanted.len(), first.join(", "))
        }
    };
    Ok(Check { name, ok: missing.is_empty(), detail })
}
