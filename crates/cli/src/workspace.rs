//! The workspace of a project, opened: what a dead process has left is finished and recorded first.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_sandbox::{InnerMount, Layers};
use actum_store::blob::Folder as Blobs;
use actum_workspace::{
    Cause, Change, FileView, Lock, Node, OpenFolder, OverlayView, Publication, Rules, Stage, TreePath, Verb, View,
    Workspace, deltas,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::project::{Project, is_inside};
use crate::run::Open;
use crate::ui::{Out, count};

/// Whose ledger a machine keeps for itself.
pub(crate) const LOCAL_TENANT: &str = "local";

/// A workspace with its contents.
#[derive(Debug)]
pub(crate) struct Opened {
    pub workspace: Workspace,
    pub blobs: Arc<Blobs>,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// A time in milliseconds, as it is written.
fn timestamp(at_ms: u64) -> Timestamp {
    Timestamp::from_millisecond(i64::try_from(at_ms).unwrap_or(0)).unwrap_or_default()
}

/// A time in milliseconds, for lists.
pub(crate) fn time(at_ms: u64) -> String {
    format!("{:.0}", timestamp(at_ms))
}

/// An id for something new; later ones sort after earlier ones.
pub(crate) fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Opens a workspace and carries what a dead process has left there to its end.
pub(crate) fn open(project: &Project, folder: OpenFolder, out: &Out) -> Result<Opened, Failure> {
    let blobs = project.blobs()?;
    let opened = Opened { workspace: Workspace::at(folder, &project.folder()?, blobs.clone())?, blobs };
    if opened.workspace.is_interrupted()? {
        lock(project, &opened, out)?;
    }
    Ok(opened)
}

/// Locks a workspace that is to be changed. Whoever held the lock before may have died in the middle: what he left is
/// carried to its end first.
pub(crate) fn lock(project: &Project, opened: &Opened, out: &Out) -> Result<Lock, Failure> {
    // Runs first: what one of them has published is written down with its end.
    crate::recover::recover_quietly(project, out);
    let lock = opened.workspace.lock()?;
    let recovered = opened.workspace.recover(&lock)?;
    for publication in recovered.applied {
        let (id, word, of) = (&publication.id, publication.cause.word(), &publication.of);
        out.remark(&format!("finished {word} {id}, which had been interrupted"));
        // The workspace is whole either way; what the ledger lacks it gets from whoever opens it next.
        if let Err(e) = Ledger::open(project, out).and_then(|ledger| ledger.record(opened, &publication, out)) {
            out.remark(&format!("{word} {id} is not in the ledger yet: {}", e.message));
        }
        if publication.cause == Cause::Publish && Stage::find(&project.folder()?, of).is_ok() {
            out.remark(&format!("its stage is still there; `actum stage drop {of}` removes it"));
        }
    }
    for conflict in recovered.taken_back {
        out.remark("took back a publication that had been interrupted");
        for kept in conflict.kept {
            out.remark(&format!("kept: {kept}"));
        }
    }
    Ok(lock)
}

/// Where a stage is to be seen, in the words of the sandbox.
pub(crate) fn view(opened: &Opened, stage: &Stage) -> actum_sandbox::View {
    match stage.view(&opened.workspace) {
        View::Folder(folder) => actum_sandbox::View::Folder(folder),
        View::Overlay { overlay, folders, files } => {
            let layers = |OverlayView { lowers, upper, work, at }: OverlayView| {
                let name = format!("actum-stage-{}", stage.id);
                Layers { lowers, upper, work, at, name, inner: Vec::new() }
            };
            let folders = folders.into_iter().map(|folder| InnerMount::Overlay(layers(folder)));
            let files = files.into_iter().map(|FileView { from, at }| InnerMount::File { from, at });
            let inner = folders.chain(files).collect();
            actum_sandbox::View::Overlay(Layers { inner, ..layers(overlay) })
        }
    }
}

/// Makes sure that a stage stands still, also against programs that closed what they inherited.
pub(crate) fn settle(opened: &Opened, stage: &Stage) -> Result<File, Failure> {
    let still = stage.settle()?;
    let busy = match view(opened, stage) {
        actum_sandbox::View::Folder(folder) => actum_sandbox::is_in_use("", &folder),
        actum_sandbox::View::Overlay(layers) => actum_sandbox::is_in_use(&layers.name, &layers.upper),
    };
    if busy { Err(actum_workspace::Error::Busy(stage.id.clone()).into()) } else { Ok(still) }
}

/// Removes a stage that is no longer needed. What is left of it is nobody's loss, and `gc` tries again.
pub(crate) fn drop_stage(stage: Stage, still: File, out: &Out) {
    if let Err(e) = stage.drop(still) {
        out.remark(&format!("the stage could not be removed: {e}"));
    }
}

/// The ledger, reached before anything is changed: what cannot be recorded is not done.
pub(crate) struct Ledger {
    waiter: Waiter,
    tenant: Tenant,
}

impl Ledger {
    pub(crate) fn open(project: &Project, out: &Out) -> Result<Self, Failure> {
        Ok(Self::over(&Open::new(Project::at(project), out)?))
    }

    /// That of a store that is open already.
    pub(crate) fn over(open: &Open) -> Self {
        Self { waiter: open.waiter.clone(), tenant: open.tenant.clone() }
    }

    /// Writes a publication into the ledger, then lets it become history. Doing it twice is doing it once.
    pub(crate) fn record(&self, opened: &Opened, publication: &Publication, out: &Out) -> Result<(), Failure> {
        if publication.changes.is_empty() {
            return Ok(());
        }
        let submission = draft::read_own(entry(publication, &self.tenant));
        let word = publication.cause.word();
        let outcome = self.waiter.wait(self.waiter.journal.append(submission)).map_err(|e| {
            let e = Failure::from(e);
            let message = format!("the {word} is done but not in the ledger yet: {}", e.message);
            Failure { message, ..e }.hint("the next command that opens the workspace records it")
        })?;
        for late in opened.workspace.settle(publication)? {
            let late = late.display();
            out.remark(&format!("a file was written to after it had been replaced; it is kept as {late}"));
        }
        match outcome {
            Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(()),
            Outcome::Refused(refusal) => {
                let message = format!("the ledger refused {word} {}: {refusal:?}", publication.id);
                Err(Failure::new(error::INTERNAL, message))
            }
        }
    }
}

impl Ledger {
    /// Writes down that there was an execution, how it ended, and by its digest everything that is known of it.
    pub(crate) fn record_execution(&self, result: &Value, evidence: Digest) -> Result<(), Failure> {
        let id = result["execution_id"].as_str().unwrap_or_default();
        let entry = json!({
            "id": format!("execution:{}", Digest::sha256(id.as_bytes()).to_hex()),
            "tenantId": self.tenant.as_str(),
            "module": "sandbox",
            "source": "actum",
            "type": "tool_execution",
            "payload": {
                "executionId": id,
                "toolId": result["tool_id"],
                "status": result["status"],
                "exitCode": result["exit_code"],
                "contract": result["evidence"]["contract_sha256"],
                "evidence": evidence.to_hex(),
            },
        });
        let submission = draft::read_own(entry);
        match self.waiter.wait(self.waiter.journal.append(submission))? {
            Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(()),
            Outcome::Refused(refusal) => {
                Err(Failure::new(error::INTERNAL, format!("the ledger refused execution {id}: {refusal:?}")))
            }
        }
    }
}

/// A publication as the ledger keeps it.
pub(crate) fn entry(publication: &Publication, tenant: &Tenant) -> Value {
    let by_verb = |verb| deltas(&publication.changes).filter(|change| change.verb() == verb).count();
    json!({
        "id": format!("publication:{}", publication.id),
        "tenantId": tenant.as_str(),
        "module": "workspace",
        "source": "actum",
        "type": "workspace_publication",
        "payload": {
            "publicationId": publication.id,
            "cause": publication.cause.word(),
            "of": publication.of,
            "before": publication.before.to_hex(),
            "after": publication.after.to_hex(),
            "deltas": deltas(&publication.changes).count(),
            "added": by_verb(Verb::Add),
            "deleted": by_verb(Verb::Delete),
            "baseDrift": publication.drift.len(),
            "kept": publication.kept.len(),
        },
    })
}

/// The rules for a folder; refuses one that nobody can mean.
pub(crate) fn rules(folder: &Path, include: Vec<String>, exclude: Vec<String>) -> Result<Rules, Failure> {
    let folder = std::fs::canonicalize(folder)
        .map_err(|e| Failure::of_io(format!("cannot find {}: {e}", folder.display()), &e))?;
    let home = std::env::var_os("HOME").and_then(|home| std::fs::canonicalize(home).ok());
    if let Some(own) = folder.iter().find(|name| *name == ".actum" || *name == ".git") {
        let message = format!("{} lies in {}, which is not part of any workspace", folder.display(), own.display());
        return Err(Failure::new(error::WORKSPACE_REFUSED, message));
    }
    // A folder made for a test or a container may well be both home and workspace; one that a person lives in is not.
    let is_lived_in = || [".bashrc", ".profile", ".zshrc", ".ssh"].iter().any(|name| folder.join(name).exists());
    if folder.parent().is_none() || (home.as_deref() == Some(&*folder) && is_lived_in()) {
        let message = format!("{} is a whole home folder or disk, not a workspace", folder.display());
        return Err(Failure::new(error::WORKSPACE_REFUSED, message).hint("name a folder in it, or go there with -C"));
    }
    // A snapshot of it would hold the user's signing keys.
    if crate::project::state_folder().is_some_and(|state| state.is_dir() && is_inside(&state, &folder)) {
        let message = format!("{} holds the folder in which Actum keeps your signing keys", folder.display());
        return Err(Failure::new(error::WORKSPACE_REFUSED, message)
            .hint("name a folder in it, or keep Actum's state elsewhere with XDG_STATE_HOME"));
    }
    Ok(Rules::of(&folder, include, exclude)?)
}

/// The path as it is if it is UTF-8, else as it is shown.
pub(crate) fn path_json(path: &TreePath) -> Value {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => json!(text),
        Err(_) => json!(path.to_string()),
    }
}

pub(crate) fn paths_json(paths: &[TreePath]) -> Value {
    paths.iter().map(path_json).collect()
}

/// The changes that count, for programs. A path that is not UTF-8 is also given as it is, in hex.
pub(crate) fn deltas_json(changes: &[Change]) -> Value {
    let node = |node: &Node| json!({"kind": node.kind.word(), "hash": node.digest.to_hex()});
    let delta = |change: &Change| {
        let mut delta = json!({
            "op": change.verb().word(),
            "path": path_json(&change.path),
            "before": change.before.as_ref().map(node),
            "after": change.after.as_ref().map(node),
        });
        if std::str::from_utf8(change.path.as_bytes()).is_err() {
            delta["path_hex"] = json!(hex::encode(change.path.as_bytes()));
        }
        delta
    };
    deltas(changes).map(delta).collect()
}

/// One line per change and a sum, for people.
pub(crate) fn deltas_text(changes: &[Change]) -> String {
    let renames = actum_workspace::renames(changes);
    let to: HashMap<_, _> = renames.iter().map(|rename| (&rename.to, &rename.from)).collect();
    let from: HashSet<_> = renames.iter().map(|rename| &rename.from).collect();
    let mut lines = Vec::new();
    for change in deltas(changes) {
        if let Some(from) = to.get(&change.path) {
            lines.push(format!("rename  {from} → {}", change.path));
        } else if !from.contains(&change.path) {
            let slash =
                if change.before.or(change.after).is_some_and(|n| n.kind.word() == "folder") { "/" } else { "" };
            lines.push(format!("{:6}  {}{slash}", change.verb().word(), change.path));
        }
    }
    lines.push(sum(changes));
    lines.join("\n")
}

pub(crate) fn sum(changes: &[Change]) -> String {
    count(deltas(changes).count() as u64, "change", "changes")
}
