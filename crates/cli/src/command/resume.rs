//! `actum resume` and `actum cancel`: go on with a run, go elsewhere from it, stop it.

use std::collections::BTreeMap;
use std::sync::Arc;

use actum_api::error;
use actum_contract::Intent;
use actum_contract::change::ChangeError;
use actum_engine::{CancelError, Cancelled, ResumeError, Resumed, cancel, resume};
use actum_ledger::run::{Filter, Run as Row, RunState};
use actum_workspace::{Lock, Workspace};
use clap::Args;
use serde_json::{Value, json};

use super::contract::bad_config;
use super::run::{LEASE, Requested, block, exit_code, may_again, run_json, submitter, work_on};
use super::{Ended, signals};
use crate::args::Global;
use crate::failure::Failure;
use crate::folder;
use crate::progress::Progress;
use crate::project::Project;
use crate::recover::{PATIENCE, lock_within};
use crate::run::Open;
use crate::ui::Out;

#[derive(Debug, Args)]
#[command(
    after_help = "A run keeps its contract. One that asks for another is refused, unless --override-execution-config changes this run or --fork starts a new one from it."
)]
pub(crate) struct Resume {
    /// The run, or the beginning of its id
    run: String,

    #[command(flatten)]
    contract: Requested,

    /// Change the contract of this run, then go on with it
    #[arg(long, conflicts_with = "fork")]
    override_execution_config: bool,

    /// Start a new run from where this one is
    #[arg(long)]
    fork: bool,

    /// Only put it into the queue; a worker does the rest
    #[arg(long)]
    detach: bool,
}

impl Resume {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let requested = self.contract.read()?;
        let intent = match (self.fork, self.override_execution_config) {
            (true, _) => Intent::Fork,
            (_, true) => Intent::Override,
            _ => Intent::Resume,
        };
        let project = Project::find(global)?;
        let signals = signals(global)?;
        let open = Open::new(project, out)?;
        let row = open.run(&self.run)?;
        open.waiter.checked_time(&open.tenant)?;
        may_again(&open, &row, self.fork, &self.contract.asked(intent))?;
        let still = hold_kept_result(&open, &row)?;
        // Read again under the lock: `apply` may have been first.
        let row = if still.is_some() { open.run(&row.id)? } else { row };
        let resumed = match resume(&open.waiter, &row, &requested, intent, submitter(&open.project)) {
            // Nobody works on it any more: it is there for the taking.
            Err(ResumeError::State(RunState::Running, _)) if intent == Intent::Resume && open.is_abandoned(&row)? => {
                Resumed::Queued
            }
            resumed => resumed.map_err(refused)?,
        };
        drop(still);
        let id = match &resumed {
            Resumed::Forked(id) => id.clone(),
            _ => row.id.clone(),
        };
        let before = progress_of(&open, &open.run(&id)?.submission)?;
        if resumed == Resumed::Complete {
            out.remark("the run had succeeded: there is nothing to go on with");
        } else if self.detach {
            out.result(&json!({"run_id": id, "forked": id != row.id}), || id.clone());
            return Ok(0);
        } else {
            let row = open.run(&id)?;
            let names = [vec![row.item.clone()]];
            let watch = Arc::new(Progress::new(&names, out));
            // Siblings that wait for it go on too: they are of the same submission.
            work_on(&open, Some(row.submission), 2, LEASE, signals, watch)?;
        }
        let row = open.run(&id)?;
        // What depends on it may have gone on too, and is told as well.
        let filter = Filter { submission: Some(row.submission.clone()), limit: 10_000, ..Filter::default() };
        let others = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
        let has_moved = |other: &Row| before.get(&other.id) != Some(&(other.version, other.attempt));
        let others = others.into_iter().rev().filter(|other| other.id != id && has_moved(other));
        let rows: Vec<_> = std::iter::once(row).chain(others).collect();
        out.result(&json!({"runs": rows.iter().map(run_json).collect::<Vec<_>>()}), || {
            rows.iter().map(|row| block(row, &open)).collect::<Vec<_>>().join("\n")
        });
        Ok(rows.iter().map(exit_code).max().unwrap_or(0))
    }
}

/// Locks the workspace of a run that keeps a result. `apply` holds the same lock from its checks until the run's record names the
/// publication, so a result is never published by it and produced again.
fn hold_kept_result(open: &Open, run: &Row) -> Result<Option<Lock>, Failure> {
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Some((_, agreement)) = open.run_behind(&run.id)? else { return Ok(None) };
    // The folder of another machine cannot be locked here.
    if outcome["verdict"]["kept"] != true || agreement.shared.is_some() || run.place != open.place {
        return Ok(None);
    }
    let folder = folder::open_agreed(open.project.root(), &agreement)?;
    let workspace = Workspace::at(folder, &open.project.folder()?, open.project.blobs()?)?;
    match lock_within(&workspace, PATIENCE)? {
        Ok(lock) => Ok(Some(lock)),
        Err(holder) => {
            let message = format!("the workspace of run {} is being changed by {holder}", run.id);
            Err(Failure::new(error::RUN_STATE, message).hint("its result may be about to be applied; wait for that"))
        }
    }
}

/// How far each run of a submission is: its journal's version and its attempt.
fn progress_of(open: &Open, submission: &str) -> Result<BTreeMap<String, (u64, u64)>, Failure> {
    let filter = Filter { submission: Some(submission.to_owned()), limit: 10_000, ..Filter::default() };
    let runs = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
    Ok(runs.into_iter().map(|run| (run.id, (run.version, run.attempt))).collect())
}

fn refused(e: ResumeError) -> Failure {
    match e {
        ResumeError::Change(ChangeError::Bad(bad)) => bad_config(bad.fields, None),
        ResumeError::Change(mismatch) => Failure::new(error::MISMATCH, mismatch.to_string())
            .details(mismatch.details())
            .hint("--override-execution-config changes this run, --fork starts a new one; without flags it keeps its contract"),
        ResumeError::Contract(message, code, details) => {
            let is_unsupported = code == error::UNSUPPORTED;
            let name = match code {
                error::UNSUPPORTED => error::UNSUPPORTED,
                error::STORE_DAMAGED => error::STORE_DAMAGED,
                _ => error::MISMATCH,
            };
            let failure = Failure::new(name, message).details(details);
            match is_unsupported {
                true => failure.hint("`resume RUN --fork` starts a new run of the same work under the present versions"),
                false => failure,
            }
        }
        ResumeError::State(..) => Failure::new(error::RUN_STATE, e.to_string()),
        ResumeError::Lost => Failure::new(error::RUN_STATE, e.to_string()),
        ResumeError::Refused(_) => Failure::new(error::RUN_STATE, e.to_string()),
        ResumeError::Store(e) => e.into(),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The run, or the beginning of its id
    run: String,
}

/// How often somebody else may be at a run that is to be cancelled.
const CANCELS_MAX: usize = 5;

impl Cancel {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let mut row = open.run(&self.run)?;
        let mut cancelled = cancel(&open.waiter, &row);
        // A worker that takes it at this very moment is asked instead.
        for _ in 0..CANCELS_MAX {
            if cancelled == Err(CancelError::Lost) {
                row = open.run(&row.id)?;
                cancelled = cancel(&open.waiter, &row);
            }
        }
        let cancelled = cancelled.map_err(|e| match e {
            CancelError::Store(e) => Failure::from(e),
            other => Failure::new(error::RUN_STATE, other.to_string()),
        })?;
        let word = match cancelled {
            Cancelled::AtOnce => "cancelled",
            Cancelled::Asked => "asked to stop",
        };
        let filter = Filter { submission: Some(row.submission.clone()), limit: 1_000, ..Filter::default() };
        let others = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
        out.result(&json!({"run_id": row.id, "cancelled": cancelled == Cancelled::AtOnce, "asked": cancelled == Cancelled::Asked}), || {
            format!("{} {word}", row.id)
        });
        if others.iter().any(|other| other.state == RunState::Blocked) {
            out.remark("runs that depend on it will fail");
        }
        Ok(0)
    }
}
