//! Recovery: before a command does anything else, what a dead process or a crashed machine left behind is completed or rolled
//! back, and the run it belongs to learns about it. `actum recover` does only that.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actum_api::error;
use actum_engine::{Done, Engine, Settings, Watch, events_of};
use actum_kernel::{Event, State, Verdict};
use actum_ledger::run::{Run, RunState};
use actum_workspace::{Cause, Lock, LockHolder, OpenFolder, PendingPublication, Publication, Workspace, pending};
use serde_json::{Value, json};

use crate::args::{Command, Global};
use crate::command::run::LEASE;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::{Open, Shop, Shops};
use crate::ui::Out;
use crate::workspace::{Ledger, Opened};

/// How long a command waits for a process that is changing the workspace before it goes on without recovery.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long `actum recover` waits.
const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// How often a lock is asked for that another process holds.
const ASKED_EVERY: Duration = Duration::from_millis(10);

/// What became of one pending publication.
#[derive(Debug)]
pub(crate) struct RecoveredPublication {
    pub id: String,
    pub folder: String,
    /// What was done, in a few words, if anything was.
    pub outcome: Option<String>,
    /// Whether folder, run and ledger agree about it by now.
    pub is_settled: bool,
}

/// Whether a command has to do with what a project keeps.
fn touches_project(command: &Command) -> bool {
    !matches!(
        command,
        Command::Canon(_)
            | Command::Schema(_)
            | Command::Completions(_)
            | Command::Reference
            | Command::Init(_)
            | Command::Sandbox(_)
            | Command::Recover(_)
    )
}

/// Completes or rolls back what is pending in the project that a command is about. In the usual case that is one look at a
/// folder that is empty or missing.
pub(crate) fn before(command: &Command, global: &Global, out: &Out) -> Result<(), Failure> {
    if !touches_project(command) {
        return Ok(());
    }
    let Ok(project) = Project::find(global) else { return Ok(()) };
    recover_quietly(&project, out);
    Ok(())
}

/// The same for a project that is known. What cannot be recovered now is named, and does not keep the command from its work.
pub(crate) fn recover_quietly(project: &Project, out: &Out) {
    let home = project.root().join(".actum");
    let found = match pending(&home) {
        Ok(found) if found.is_empty() => return,
        Ok(_) if project.is_guest().unwrap_or(true) => return,
        Ok(found) => found,
        Err(e) => return out.aside(&format!("cannot tell whether a publication was interrupted: {e}")),
    };
    if let Err(failure) = recover(project, found, PATIENCE, out) {
        out.aside(&format!("an interrupted publication could not be completed: {}", failure.message));
    }
}

/// Everything that is pending, with the patience of a boot script.
pub(crate) fn recover_all(project: &Project, out: &Out) -> Result<Vec<RecoveredPublication>, Failure> {
    let found = pending(&project.root().join(".actum"))?;
    recover(project, found, LONG_PATIENCE, out)
}

fn recover(
    project: &Project,
    found: Vec<PendingPublication>,
    patience: Duration,
    out: &Out,
) -> Result<Vec<RecoveredPublication>, Failure> {
    let open = Open::new(Project::at(project), out)?;
    let mut all = Vec::new();
    let mut failed = None;
    for marker in found {
        let (is_settled, outcome) = match recover_one(&open, &marker, patience, out) {
            Ok(done) => done,
            // One that cannot be recovered does not keep the others from it.
            Err(failure) => {
                failed.get_or_insert(failure);
                (false, None)
            }
        };
        if let Some(outcome) = &outcome {
            out.aside(&format!("{}: {outcome}", marker.folder.display()));
        }
        let folder = marker.folder.display().to_string();
        all.push(RecoveredPublication { id: marker.id, folder, outcome, is_settled });
    }
    failed.map_or(Ok(all), Err)
}

fn recover_one(
    open: &Open,
    marker: &PendingPublication,
    patience: Duration,
    out: &Out,
) -> Result<(bool, Option<String>), Failure> {
    let home = open.project.folder()?;
    let blobs = open.project.blobs()?;
    match std::fs::metadata(&marker.folder) {
        Ok(found) if found.is_dir() => {}
        // Gone for good, and not only out of reach: what it lies in is there.
        Err(e) if e.kind() == ErrorKind::NotFound && marker.folder.parent().is_some_and(Path::is_dir) => {
            actum_workspace::forget_marker(&home, &marker.id)?;
            return Ok((true, Some("the folder of an interrupted publication is gone".to_owned())));
        }
        _ => {
            let message = format!("cannot reach {}, whose publication was interrupted", marker.folder.display());
            return Err(Failure::new(error::FILE, message));
        }
    }
    // Whoever publishes holds a lock in that folder before the marker is written. Nothing is made in one that has none.
    let root = open.project.root().canonicalize().unwrap_or_default();
    if marker.folder != root && !actum_workspace::is_own_folder(&marker.folder.join(".actum")) {
        actum_workspace::forget_marker(&home, &marker.id)?;
        return Ok((true, None));
    }
    let opened = Opened { workspace: Workspace::at(OpenFolder::anchor(&marker.folder)?, &home, blobs.clone())?, blobs };
    let lock = match lock_within(&opened.workspace, patience)? {
        Ok(lock) => lock,
        Err(holder) => {
            out.aside(&format!("{} is being changed by {holder}", marker.folder.display()));
            return Ok((false, None));
        }
    };
    let was_torn = opened.workspace.is_torn(&marker.id);
    let conflicts = finish_all(open, &opened, &lock, out)?;
    let publication = opened.workspace.publications()?.into_iter().find(|known| known.id == marker.id);
    let Some(publication) = publication else {
        opened.workspace.forget_pending(&marker.id)?;
        let kept = if conflicts.is_empty() { String::new() } else { format!(" (kept: {})", conflicts.join(", ")) };
        return Ok((true, was_torn.then(|| format!("rolled back an interrupted publication{kept}"))));
    };
    let word = publication.cause.word();
    let agreed = agree(open, &opened, &publication)?;
    drop(lock);
    let about = match agreed {
        Agreed::Already => None,
        Agreed::Noted(run) => Some(format!("recorded {word} {} with run {run}", publication.id)),
        // Its process is about to write it down.
        Agreed::ByItsWorker => return Ok((false, was_torn.then(|| format!("completed {word} {}", publication.id)))),
        Agreed::ToBeFinished(run) => match finish_run(open, &run)? {
            Some(state) => Some(format!("run {} had published when its process ended: it is {state}", run.id)),
            None => return Ok((false, was_torn.then(|| format!("completed {word} {}", publication.id)))),
        },
    };
    opened.workspace.forget_pending(&marker.id)?;
    Ok((true, about.or_else(|| was_torn.then(|| format!("completed an interrupted {word}")))))
}

/// Locks a workspace within a moment, or returns the process that holds its lock.
pub(crate) fn lock_within(workspace: &Workspace, patience: Duration) -> Result<Result<Lock, LockHolder>, Failure> {
    let until = Instant::now() + patience;
    loop {
        match workspace.try_lock()? {
            Err(_) if Instant::now() < until => std::thread::sleep(ASKED_EVERY),
            locked => return Ok(locked),
        }
    }
}

/// Carries all transactions of a folder to their ends and records those that were applied. What could not go back to its
/// place is returned.
pub(crate) fn finish_all(open: &Open, opened: &Opened, lock: &Lock, out: &Out) -> Result<Vec<String>, Failure> {
    let recovered = opened.workspace.recover(lock)?;
    for publication in recovered.applied {
        Ledger::over(open).record(opened, &publication, out)?;
    }
    Ok(recovered.taken_back.into_iter().flat_map(|conflict| conflict.kept).collect())
}

/// How the record of a run stands to a publication.
enum Agreed {
    /// It says the same, or no run is concerned.
    Already,
    /// It says the same by now.
    Noted(String),
    /// The worker of the run lives and will write it down.
    ByItsWorker,
    /// The run has published, its worker is gone, and its end is still to be written.
    ToBeFinished(Box<Run>),
}

/// Brings the record of the run behind a publication in line with the folder. A publication is never half known: `apply` and
/// `undo` are written down here if their process died before it could.
fn agree(open: &Open, opened: &Opened, publication: &Publication) -> Result<Agreed, Failure> {
    match publication.cause {
        Cause::Thaw => Ok(Agreed::Already),
        Cause::Publish => match open.run_behind(&publication.of)? {
            Some((run, _)) => agree_published(open, run, publication),
            None => Ok(Agreed::Already),
        },
        Cause::Undo => {
            let earlier = opened.workspace.publications()?.into_iter().find(|known| known.id == publication.of);
            let Some(earlier) = earlier else { return Ok(Agreed::Already) };
            Ok(match crate::command::undo::note_run(open, opened, &earlier, publication)? {
                Some(run) => Agreed::Noted(run),
                None => Agreed::Already,
            })
        }
    }
}

/// Whether the record of a run says that it made this publication.
pub(crate) fn names_publication(open: &Open, run: &Run, id: &str) -> Result<bool, Failure> {
    let rows = open.waiter.wait(open.waiter.runs.events(&open.tenant, &run.id, 0))?;
    let is_this = |event: &Event| matches!(event, Event::Published { publication, .. } if publication == id);
    Ok(events_of(&rows).unwrap_or_default().iter().any(is_this))
}

fn agree_published(open: &Open, run: Run, publication: &Publication) -> Result<Agreed, Failure> {
    if run.state.is_over() {
        let outcome: Value =
            run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if names_publication(open, &run, &publication.id)? || outcome["verdict"]["kept"] != true {
            return Ok(Agreed::Already);
        }
        let drift = publication.drift.iter().map(ToString::to_string).collect();
        open.note_done(&run, &Done::Applied { publication: publication.id.clone(), drift })?;
        return Ok(Agreed::Noted(run.id));
    }
    // Also one whose worker lost its lease; the claim looks again.
    let now_ms = open.waiter.store_time(&open.tenant)?.as_millisecond();
    let is_over_due = run.lease_until_ms.is_some_and(|until| until <= now_ms);
    match run.state == RunState::Queued || is_over_due || open.is_abandoned(&run)? {
        true => Ok(Agreed::ToBeFinished(Box::new(run))),
        false => Ok(Agreed::ByItsWorker),
    }
}

/// Drives a run that has published to its end: receipt, outcome, ledger. Its state then; nothing if another process has it.
fn finish_run(open: &Open, run: &Run) -> Result<Option<RunState>, Failure> {
    let shop = Shop::open(open, 1)?;
    let workshop = Arc::new(Shops::new(open, Arc::clone(&shop)));
    let settings = Settings {
        owner: shop.owner.clone(),
        places: vec![open.place.clone()],
        lease: LEASE,
        jobs: 1,
        submission: None,
    };
    let engine = Engine::new(open.waiter.clone(), workshop, Arc::new(Silent), settings);
    let taken = engine.take_over(run)?;
    drop(engine);
    shop.close();
    let now = open.run(&run.id)?;
    Ok((taken && now.state.is_over()).then_some(now.state))
}

/// An observer that reports nothing.
struct Silent;

impl Watch for Silent {
    fn see(&self, _: &Run, _: &State) {}
    fn ended(&self, _: &Run, _: &Verdict) {}
    fn remark(&self, _: &Run, _: &str) {}
}

/// The publications that were recovered, as JSON.
pub(crate) fn shown(all: &[RecoveredPublication]) -> Value {
    let row = |one: &RecoveredPublication| json!({"publication": one.id, "folder": one.folder, "outcome": one.outcome, "pending": !one.is_settled});
    json!({"recovered": all.iter().map(row).collect::<Vec<_>>()})
}

/// Whether a path has anything of ours, so that nothing is made where there is no project.
pub(crate) fn has_home(root: &Path) -> bool {
    root.join(".actum").is_dir()
}
