//! The hands of a run on a shared workspace: what it stands on is the head, and publishing moves the head, in one write with
//! the run's own journal: whoever has lost the run moves nothing. Also what a run leaves, kept where every machine finds it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use actum_api::error;
use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use actum_kernel::{Desk, Event, Recorded, State};
use actum_ledger::head::{Cause, Head, Move};
use actum_ledger::run::Run;
use actum_workspace::{Error, rebase};
use serde_json::{Map, Value};

use super::finish::RunFolder;
use super::hands::{Done, RunHands};
use super::shop::Shop;
use crate::failure::Failure;
use crate::shared::{NOTHING, publication, read_publication, shown};
use crate::workspace::new_id;

/// How often somebody else may be first before that counts as a conflict.
const TRIES_MAX: usize = 50;

/// What a run leaves that others want to see, the receipt last: where it lies, all that it names lies too.
const NAMES: [&str; 8] =
    ["recording.json", "diff.patch", "receipt.statement.json", "result.json", SCRIPT, "log", "test.log", RECEIPT];
const SCRIPT: &str = "replay.sh";
const RECEIPT: &str = "RECEIPT.json";
/// Only as far as they are of a size to be shown.
const LOGS: [&str; 2] = ["log", "test.log"];
const LOG_BYTES_MAX: u64 = 8 << 20;

impl RunHands {
    /// Where the shared workspace of the run is now; nothing if its workspace is a folder.
    pub(super) fn head(&self) -> Done<Option<Head>> {
        let Some(name) = self.facts.agreement.shared.as_ref().filter(|_| self.repeats.is_none()) else {
            return Ok(None);
        };
        let found = self.shop.waiter.wait(self.shop.heads.head(&self.shop.tenant, name))?;
        let gone = || Failure::new(error::NOT_FOUND, format!("there is no shared workspace {name:?}"));
        found.map(Some).ok_or_else(gone)
    }

    /// What belongs to a shared workspace although its own rules ignore it.
    pub(super) fn included(shop: &Shop, name: &str) -> Done<Vec<String>> {
        let first = actum_ledger::head::entry_id(name, 1);
        let body = shop.waiter.wait(shop.waiter.journal.entry(&shop.tenant, &first))?;
        Ok(body.and_then(|body| actum_ledger::head::move_of(&body)).map(|made| made.include).unwrap_or_default())
    }

    /// What the result is published onto: the head, for as long as nobody moves it.
    pub(super) fn publish_shared(&mut self, state: &State, desk: &dyn Desk) -> Done<Event> {
        if let Some(event) = self.published_before(state)? {
            return Ok(event);
        }
        let (before, current) = (Self::digest(state.before.as_ref())?, Self::digest(state.current.as_ref())?);
        for _ in 0..TRIES_MAX {
            let Some(head) = self.head()? else { break };
            if self.facts.agreement.work_item.strict
                && let Some(event) = self.rebase(state, desk)?
            {
                return Ok(event);
            }
            // A strict item was tested on what the stage stands on: if the head is elsewhere by now, once more.
            if self.facts.agreement.work_item.strict && self.stage(state)?.base != head.tree {
                continue;
            }
            if let Some(event) = self.obeyed_by_now(state, head.tree)? {
                return Ok(event);
            }
            let changes = self.changes(state)?;
            let rebased = match rebase(self.workspace.blobs(), before, &changes, head.tree, false) {
                Ok(rebased) => rebased,
                Err(Error::Conflict(conflict)) => {
                    return Ok(Event::Conflicted { paths: conflict.all_paths() });
                }
                Err(e) => return Err(e.into()),
            };
            // Contents that were sealed are stored; the tree they make now is too. Nobody has to move for nothing.
            if current == before || rebased.changes.is_empty() {
                let drift = shown(&rebased.drift);
                return Ok(Event::Published {
                    publication: NOTHING.to_owned(),
                    drift,
                    after: Some(head.tree.to_hex()),
                });
            }
            let (n, id) = (head.n + 1, new_id());
            let step = Move {
                tenant: self.shop.tenant.clone(),
                workspace: head.workspace.clone(),
                n,
                cause: Cause::Publish,
                before: Some(head.tree),
                after: rebased.after,
                publication: id.clone(),
                of: Some(self.facts.run.clone()),
                actor: self.facts.agreement.work_item.agent_id.clone(),
                drift: shown(&rebased.drift),
                include: Vec::new(),
            };
            let name = publication(n, &id);
            actum_contract::crash::pass(super::PUBLISH_POINTS, "run.publishing");
            match desk.record_with(Event::Publishing { publication: name.clone() }, step.document()) {
                Recorded::Done => {
                    actum_contract::crash::pass(super::PUBLISH_POINTS, "run.applied");
                    let drift = step.drift;
                    return Ok(Event::Published { publication: name, drift, after: Some(step.after.to_hex()) });
                }
                Recorded::Refused => {}
                Recorded::Lost => {
                    return Ok(Event::Stopped { cancelled: false, reason: "lease lost to another worker".into() });
                }
                Recorded::Unknown => return Err(silent()),
            }
        }
        Ok(Event::Conflicted { paths: vec!["the workspace kept moving while it was published".to_owned()] })
    }

    /// By whoever had the run before, in this attempt: the move and the word of it were one write.
    fn published_before(&self, state: &State) -> Done<Option<Event>> {
        let Some((n, id)) = state.publishing.as_deref().and_then(read_publication) else { return Ok(None) };
        let name = self.facts.agreement.shared.as_deref().unwrap_or_default();
        let entry = actum_ledger::head::entry_id(name, n);
        let body = self.shop.waiter.wait(self.shop.waiter.journal.entry(&self.shop.tenant, &entry))?;
        let made = body.and_then(|body| actum_ledger::head::move_of(&body)).filter(|made| made.publication == id);
        Ok(made.map(|made| Event::Published {
            publication: publication(n, id),
            drift: made.drift,
            after: Some(made.after.to_hex()),
        }))
    }

    /// Keeps the files of an end where every machine finds them; what they are, by name.
    pub(super) fn share_files(&self, end: &RunFolder) -> Done<Value> {
        let blobs = &self.shop.files;
        let batch = blobs.batch()?;
        let mut files = Map::new();
        for name in NAMES {
            let own = [end.path(name), self.folder.path(name)].into_iter().find(|path| path.is_file());
            let is_too_long = |path: &PathBuf| {
                LOGS.contains(&name) && fs::metadata(path).is_ok_and(|found| found.len() > LOG_BYTES_MAX)
            };
            let Some(path) = own.filter(|path| !is_too_long(path)) else { continue };
            let bytes =
                fs::read(&path).map_err(|e| Failure::of_io(format!("cannot read {}: {e}", path.display()), &e))?;
            let digest = Digest::blake3(&bytes);
            batch.put(digest, &bytes)?;
            files.insert(name.to_owned(), digest.to_hex().into());
        }
        batch.commit()?;
        Ok(Value::Object(files))
    }
}

/// The store did not say whether something is on record.
pub(super) fn silent() -> Failure {
    Failure::new(error::STORE_UNAVAILABLE, "the store does not answer")
}

/// Brings the files of a run here that ended on another machine.
pub(crate) fn bring_files(folder: &RunFolder, run: &Run, blobs: &dyn Blobs) -> Done<()> {
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Some(files) = outcome["files"].as_object().filter(|_| run.state.is_over()) else { return Ok(()) };
    // One that is here already is looked at, not believed: it may be that of an earlier attempt.
    let is_here =
        |name: &str, digest: Digest| fs::read(folder.path(name)).is_ok_and(|bytes| Digest::blake3(&bytes) == digest);
    let receipt = files.get(RECEIPT).and_then(Value::as_str).and_then(Digest::from_hex);
    if receipt.is_some_and(|digest| is_here(RECEIPT, digest)) {
        return Ok(());
    }
    for (name, digest) in NAMES.iter().filter_map(|name| Some((*name, files.get(*name)?))) {
        let Some(digest) = digest.as_str().and_then(Digest::from_hex) else { continue };
        if !is_here(name, digest) {
            folder.write(name, &blobs.read(digest)?)?;
            if name == SCRIPT {
                // Without it, it is read and not run.
                let _ = fs::set_permissions(folder.path(name), fs::Permissions::from_mode(0o755));
            }
        }
    }
    Ok(())
}
