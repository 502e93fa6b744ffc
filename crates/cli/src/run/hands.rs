//! The hands of one run: freeze, stage, act, check, weigh, test, publish, each told as an event. In a repetition the same
//! hands work on a copy of the recorded input, and publish nothing.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::work::StageView;
use actum_engine::Agreement;
use actum_kernel::{Desk, Effect, End, Event, Finished, Hands, Recorded, State, Verdict, code};
use actum_ledger::capsule::Capsule;
use actum_ledger::journal::Outcome;
use actum_workspace::{
    Cause, Change, Freshness, Mode, NewStage, OpenFolder, Publication, Rules, Stage, TreePath, Workspace, deltas, diff,
    lookup, rebase,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::book::Answers;
use super::finish::RunFolder;
use super::program::{Ran, stage_grants};
use super::shop::{Shop, is_full};
use crate::failure::Failure;
use crate::model::Till;
use crate::obeyed_place::Place;
use crate::protect::ObeyedChanges;
use crate::tool::cache::Results;
use crate::workspace::{deltas_json, new_id, now_ms, rules};

/// What is known of the run at hand.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub run: String,
    pub item: String,
    pub submission: String,
    pub attempt: u64,
    pub epoch: u64,
    pub created_ms: i64,
    /// The machine and project it belongs to, or all of them.
    pub place: String,
    pub contract_hash: String,
    pub metadata: String,
    pub agreement: Agreement,
}

pub(crate) struct RunHands {
    pub(super) shop: Arc<Shop>,
    pub(super) facts: Facts,
    pub(super) workspace: Workspace,
    pub(super) rules: Rules,
    pub(super) folder: RunFolder,
    /// The publication that this attempt has begun.
    publication: Option<String>,
    pub(super) stage: Option<Stage>,
    /// Held as long as the stage is ours: nobody else runs anything in it or publishes it meanwhile.
    pub(super) still: Option<File>,
    /// Which rules of admission hold. A repetition goes by those of its recording.
    pub(super) admission: u64,
    /// The state that is repeated, if this is a repetition.
    pub(super) repeats: Option<Digest>,
    /// What the run that is repeated heard of its tools, if it was given some.
    pub(super) heard: Option<Answers>,
    pub(super) heard_tools: bool,
    /// As whom this repetition asks models anew, if it does.
    pub(super) live: Option<String>,
    /// What this repetition asked of tools that the run did not, and what the run had asked instead.
    pub(super) strange: Option<(Value, Value)>,
    /// Questions of this repetition that were answered because it was their turn.
    pub(super) by_order: u64,
    /// Questions beside the work that only the run or only this repetition asked.
    pub(super) asides: u64,
    /// What its models are asked through, once it has asked.
    pub(super) till: Option<Arc<Till>>,
    /// Calls of tools that whoever had the run before has made and not lived to record.
    pub(super) lost: u64,
    /// Results of tools, for as long as the run is in these hands.
    pub(super) results: Arc<Results>,
    /// Programs that the run started, by their content.
    pub(super) programs: Vec<Value>,
    pub(super) started: Timestamp,
    /// The same moment on the clock that is never set back.
    started_at: Instant,
    /// Held from the signing of a receipt until it is on record.
    pub(super) turn: Option<File>,
    /// The result on a workspace that has moved meanwhile, tested there, and the paths that moved.
    pub(super) merged: Option<Digest>,
    pub(super) moved: Vec<String>,
    /// Whether the finished steps were compared with the workspace by this process.
    is_fit_checked: bool,
    /// Why what was asked last could not be done now.
    pub(super) put_off: Option<String>,
    /// Whether that is because of this machine.
    is_machines_fault: bool,
    /// Whether a publication was begun, and its end could not be found out.
    is_outcome_unknown: bool,
    /// Why the agent was not answered in the act that is over, if the store was away.
    pub(super) silence: Option<String>,
}

/// Something that could not be done.
pub(super) type Done<T> = Result<T, Failure>;

impl RunHands {
    pub(crate) fn new(shop: Arc<Shop>, facts: Facts) -> Done<Self> {
        let folder = RunFolder::make(&shop.home, &facts.run)?;
        // What workers that were lost have left is of no use: its state is on record.
        shop.remove_stages(&|id| id.strip_prefix(&facts.run).is_some_and(|rest| rest.starts_with('.')));
        folder.drop_ends();
        if facts.epoch > 1 {
            let stuck = shop.waiter.wait(shop.spend.mark_stuck(&shop.tenant, Some(&facts.run)))?;
            if !stuck.is_empty() {
                let calls = crate::ui::count(stuck.len() as u64, "call", "calls");
                folder.note(&format!(
                    "── {calls} of a worker that is gone: the cost is unknown; see `actum spend reconcile`"
                ));
            }
        }
        let at = match facts.agreement.shared {
            Some(_) => shop.no_folder()?,
            None => crate::folder::open_agreed(&shop.root, &facts.agreement)?,
        };
        Self::with(shop, facts, at, folder, None)
    }

    /// Hands that repeat a run on a copy of its input.
    pub(super) fn repeating(shop: Arc<Shop>, facts: Facts, before: Digest, folder: RunFolder) -> Done<Self> {
        let at = match facts.agreement.shared {
            Some(_) => shop.no_folder()?,
            None => crate::folder::open_named(&shop.root)?,
        };
        Self::with(shop, facts, at, folder, Some(before))
    }

    fn with(shop: Arc<Shop>, facts: Facts, at: OpenFolder, folder: RunFolder, repeats: Option<Digest>) -> Done<Self> {
        let rules = match &facts.agreement.shared {
            Some(name) => Rules::alone(Self::included(&shop, name)?, Vec::new())?,
            None => rules(at.path(), Vec::new(), Vec::new())?,
        };
        Ok(Self {
            workspace: shop.workspace(at)?,
            rules,
            shop,
            facts,
            folder,
            stage: None,
            still: None,
            admission: super::recording::ADMISSION,
            repeats,
            heard: None,
            heard_tools: false,
            live: None,
            strange: None,
            by_order: 0,
            asides: 0,
            till: None,
            lost: 0,
            results: Arc::default(),
            programs: Vec::new(),
            started: Timestamp::now(),
            started_at: Instant::now(),
            turn: None,
            merged: None,
            moved: Vec::new(),
            publication: None,
            is_fit_checked: false,
            put_off: None,
            is_machines_fault: false,
            is_outcome_unknown: false,
            silence: None,
        })
    }

    /// Returns the time, never before the start of the run also if the clock was set back meanwhile.
    pub(super) fn now(&self) -> Timestamp {
        self.started.checked_add(self.started_at.elapsed()).unwrap_or(self.started)
    }

    /// Where programs see the stage. The same path in a repetition, wherever that is done.
    pub(super) fn at(&self) -> PathBuf {
        self.facts.agreement.workspace.clone()
    }

    pub(super) fn digest(text: Option<&String>) -> Done<Digest> {
        text.and_then(|text| Digest::from_hex(text))
            .ok_or_else(|| Failure::new(error::STORE_DAMAGED, "the journal of the run names no tree where it should"))
    }

    fn freeze(&mut self) -> Done<Event> {
        if let Some(before) = self.repeats {
            return Ok(Event::Frozen { before: before.to_hex(), commit: None });
        }
        // Known before the agent is paid. A draft is published by another command, maybe after a repair.
        if self.facts.agreement.shared.is_none() && !self.facts.agreement.draft {
            self.workspace.check_publishing()?;
        }
        let now = self.ground()?;
        let item = &self.facts.agreement.work_item;
        if let Some(planned) = self.facts.agreement.lineage.snapshot.as_ref().and_then(|id| Digest::from_hex(id))
            && planned != now
        {
            let blobs = self.workspace.blobs();
            let mut moved = Vec::new();
            for path in &item.input_files {
                let Some(tree_path) = TreePath::new(path.as_bytes()) else { continue };
                // A snapshot that was given up meanwhile cannot be compared, and then counts as the same.
                let was = lookup(blobs, planned, &tree_path);
                if was.is_ok_and(|was| lookup(blobs, now, &tree_path).is_ok_and(|is| is != was)) {
                    moved.push(path.clone());
                }
            }
            if !moved.is_empty() {
                return Ok(Event::Stale { paths: moved });
            }
        }
        for path in &item.input_files {
            let tree_path = TreePath::new(path.as_bytes());
            let found = tree_path.map(|path| lookup(self.workspace.blobs(), now, &path)).transpose()?.flatten();
            if found.is_none() {
                let message = format!("the input file {path} is not there");
                return Ok(Event::Faulted { code: "INPUT_MISSING".into(), message, retryable: true });
            }
        }
        let commit = match &self.facts.agreement.shared {
            Some(name) => crate::shared::commit_of(name),
            None => commit_of(self.workspace.path()),
        };
        Ok(Event::Frozen { before: now.to_hex(), commit })
    }

    /// What the workspace is now, and kept.
    pub(super) fn ground(&self) -> Done<Digest> {
        if let Some(head) = self.head()? {
            return Ok(head.tree);
        }
        self.recover()?;
        Ok(self.workspace.freeze(&self.rules, false, now_ms())?.id)
    }

    /// How stages are made.
    pub(super) fn mode(&self) -> Mode {
        match self.facts.agreement.shared.is_some() || self.repeats.is_some() {
            true => Mode::Copy,
            false => self.shop.mode_for(&self.facts.agreement.workspace),
        }
    }

    /// The stage in the state that is on record, made if there is none yet.
    pub(super) fn stage(&mut self, state: &State) -> Done<&Stage> {
        if self.stage.is_none() {
            let base = Self::digest(state.before.as_ref())?;
            let current = Self::digest(state.current.as_ref())?;
            let mode = match self.mode() {
                // Two cells cannot both change one overlay.
                Mode::Overlay if self.tools()? == (true, true) => Mode::Copy,
                mode => mode,
            };
            let id = match self.repeats {
                Some(_) => format!("replay-{}", new_id()),
                None => format!("{}.{}", self.facts.run, self.facts.epoch),
            };
            let is_nowhere = self.facts.agreement.shared.is_some() || self.repeats.is_some();
            let freshness = match (&self.facts.agreement.work_item, mode) {
                (item, _) if item.strict || is_nowhere => Freshness::Strict,
                (item, Mode::Overlay) if item.view == StageView::Live => Freshness::Live,
                (item, _) => {
                    if item.view == StageView::Live {
                        self.folder.note("view: live needs an overlay, which is not possible here: the view is frozen");
                    }
                    Freshness::Frozen
                }
            };
            if is_nowhere {
                crate::shared::bring(self.workspace.blobs(), base)?;
            }
            let wanted = NewStage { id: id.clone(), mode, freshness, rules: self.rules.clone(), at_ms: now_ms() };
            let item = &self.facts.agreement.work_item.id;
            let stage = Stage::new(&self.workspace, base, wanted, &|done, all| self.shop.report_copy(item, done, all))?;
            self.still = Some(stage.settle()?);
            if current != base {
                stage.bring(&self.workspace, base, current)?;
                let sealed = stage.seal(&self.workspace)?;
                if sealed.after != current {
                    let message = "the stage could not be brought to the state that is on record";
                    return Err(Failure::new(error::INTERNAL, message));
                }
            }
            self.stage = Some(stage);
        }
        self.stage.as_ref().ok_or_else(|| Failure::new(error::INTERNAL, "there is no stage"))
    }

    /// Returns the grants by which a program sees the stage.
    pub(super) fn grants(&mut self, state: &State) -> Done<Vec<actum_sandbox::Grant>> {
        let at = self.at();
        self.stage(state)?;
        let stage = self.stage.as_ref().ok_or_else(|| Failure::new(error::INTERNAL, "there is no stage"))?;
        Ok(stage_grants(stage, &self.workspace, &at))
    }

    /// Which programs of the machine a run has used, for its recording.
    pub(super) fn remember(&mut self, ran: &Ran) {
        if let Some((place, digest)) = &ran.pinned {
            let program = json!({"path": place.display().to_string(), "blake3": digest.to_hex()});
            if !self.programs.contains(&program) {
                self.programs.push(program);
            }
        }
    }

    /// Takes back what checks and tests have changed: only the agent's work is the result.
    pub(super) fn restore(&mut self, state: &State) -> Done<()> {
        let result = self.result_tree(state)?;
        let Some(stage) = &self.stage else { return Ok(()) };
        let sealed = stage.seal(&self.workspace)?;
        if sealed.after != result {
            stage.bring(&self.workspace, sealed.after, result)?;
        }
        Ok(())
    }

    /// What the stage has to hold: what the agent did, on the workspace as it was, or as it has become meanwhile.
    pub(super) fn result_tree(&self, state: &State) -> Done<Digest> {
        match self.merged {
            Some(merged) => Ok(merged),
            None => Self::digest(state.current.as_ref()),
        }
    }

    /// What the run has come to, from the beginning.
    pub(super) fn changes(&self, state: &State) -> Done<Vec<Change>> {
        let (Some(before), Some(current)) = (&state.before, &state.current) else { return Ok(Vec::new()) };
        let (before, current) = (Self::digest(Some(before))?, Self::digest(Some(current))?);
        Ok(diff(self.workspace.blobs(), before, current)?)
    }

    pub(super) fn capsule(&self, state: &State) -> Done<Capsule> {
        let changes = self.changes(state)?;
        let item = serde_json::to_value(&self.facts.agreement.work_item).unwrap_or(Value::Null);
        let deltas_o = deltas_json(&changes).as_array().cloned().unwrap_or_default();
        let artifacts = deltas(&changes)
            .filter_map(|change| {
                let node = change.after?;
                let kind = if change.before.is_some() { "edit" } else { "create" };
                Some(json!({"type": kind, "path": change.path.to_string(), "hash": node.digest.to_hex()}))
            })
            .collect();
        let mended = |what: &String| json!({"op": "modify", "target": format!("validation:{what}"), "before": "failed", "after": "passed"});
        Ok(Capsule {
            work_item: item,
            contract_hash: self.facts.contract_hash.clone(),
            before: state.before.clone().unwrap_or_default(),
            delta_o: deltas_o,
            delta_pi: Vec::new(),
            delta_lambda: Vec::new(),
            delta_q: state.mended.iter().map(mended).collect(),
            tool_trace: state.ops.iter().map(|op| json!(op)).collect(),
            artifacts,
        })
    }

    fn weigh(&mut self, state: &State) -> Done<Event> {
        let capsule = self.capsule(state)?;
        let hash = capsule
            .hash()
            .ok_or_else(|| Failure::new(error::INPUT, "what the run did cannot be written as canonical JSON"))?;
        let hash = hash.to_hex();
        let current = Self::digest(state.current.as_ref())?;
        let mut missing = Vec::new();
        for path in &self.facts.agreement.work_item.output_files {
            let tree_path = TreePath::new(path.as_bytes());
            let found = tree_path.map(|path| lookup(self.workspace.blobs(), current, &path)).transpose()?.flatten();
            if found.is_none() {
                missing.push(path.clone());
            }
        }
        let duplicate_of = match capsule.is_empty() || self.repeats.is_some() {
            true => None,
            false => self.duplicate_of(state, &hash)?,
        };
        Ok(Event::Weighed { capsule: hash, duplicate_of, missing })
    }

    /// The run that was admitted with the same capsule, as long as what it published is in place (D-505).
    fn duplicate_of(&self, state: &State, hash: &str) -> Done<Option<String>> {
        let waiter = &self.shop.waiter;
        let known = waiter.wait(waiter.runs.admitted(&self.shop.tenant, &self.facts.place, hash))?;
        // The run itself, if it was interrupted behind its own admission.
        let Some(run) = known.filter(|run| *run != self.facts.run) else { return Ok(None) };
        let Some(run) = self.on_the_same(run)? else { return Ok(None) };
        // The same capsule means the same changes: in place is what is in the workspace as we would leave it.
        let (blobs, now) = (self.workspace.blobs(), self.ground()?);
        for change in deltas(&self.changes(state)?) {
            if lookup(blobs, now, &change.path)? != change.after {
                return Ok(None);
            }
        }
        Ok(Some(run))
    }

    /// A run that worked on the same workspace: the same done to another is no repetition.
    fn on_the_same(&self, run: String) -> Done<Option<String>> {
        let found = self.shop.waiter.wait(self.shop.waiter.runs.runs_named(&self.shop.tenant, &run))?;
        let other = found.iter().find(|found| found.id == run);
        let agreed = other.and_then(|other| actum_engine::read_agreement(&other.metadata).ok());
        Ok(Some(run).filter(|_| agreed.is_none_or(|(_, agreed, _)| agreed.shared == self.facts.agreement.shared)))
    }

    /// Finishes what a dead process has left in the workspace, under its lock.
    fn recover(&self) -> Done<()> {
        if self.workspace.is_interrupted()? {
            let lock = self.workspace.lock()?;
            self.recover_held(&lock)?;
        }
        Ok(())
    }

    fn recover_held(&self, lock: &actum_workspace::Lock) -> Done<()> {
        for publication in self.workspace.recover(lock)?.applied {
            self.record(&publication)?;
        }
        Ok(())
    }

    fn record(&self, publication: &Publication) -> Done<()> {
        if publication.changes.is_empty() {
            return Ok(());
        }
        let entry = crate::workspace::entry(publication, &self.shop.tenant);
        let entry = actum_ledger::draft::read_own(entry);
        if let Outcome::Refused(refusal) = self.shop.waiter.wait(self.shop.waiter.journal.append(entry))? {
            let message = format!("the ledger refused publication {}: {}", publication.id, refusal.message);
            return Err(Failure::new(error::INTERNAL, message));
        }
        self.workspace.settle(publication)?;
        Ok(())
    }

    /// Returns a conflict if others changed what the finished steps of a resumed run have changed: known before the agent
    /// is paid for the next one.
    fn conflict_of_finished_steps(&mut self, state: &State) -> Done<Option<Event>> {
        let is_first_act = !std::mem::replace(&mut self.is_fit_checked, true);
        let (before, current) = (Self::digest(state.before.as_ref())?, Self::digest(state.current.as_ref())?);
        if !is_first_act || before == current || self.repeats.is_some() {
            return Ok(None);
        }
        let changes = self.changes(state)?;
        let conflict = match self.head()? {
            Some(head) => match rebase(self.workspace.blobs(), before, &changes, head.tree, false) {
                Ok(_) => None,
                Err(actum_workspace::Error::Conflict(conflict)) => Some(conflict),
                Err(e) => return Err(e.into()),
            },
            None => {
                self.recover()?;
                self.workspace.find_conflict(before, &changes, &self.rules)?
            }
        };
        Ok(conflict.map(|conflict| Event::Conflicted { paths: conflict.all_paths() }))
    }

    fn publish(&mut self, state: &State, desk: &dyn Desk) -> Done<Event> {
        if self.repeats.is_some() {
            return Ok(Event::Published { publication: "none".into(), drift: Vec::new(), after: None });
        }
        if self.facts.agreement.shared.is_some() {
            return self.publish_shared(state, desk);
        }
        if let Some(event) = self.look_up_publication(state, desk)? {
            return Ok(event);
        }
        let lock = match self.lock_for(state, desk)? {
            Ok(lock) => lock,
            Err(event) => return Ok(event),
        };
        self.recover_held(&lock)?;
        let now = self.workspace.state_held(&lock, &self.rules)?;
        if let Some(event) = self.obeyed_by_now(state, now)? {
            return Ok(event);
        }
        let result = self.result_tree(state)?;
        self.stage(state)?;
        let Some(stage) = &self.stage else {
            return Err(Failure::new(error::INTERNAL, "there is no stage"));
        };
        if stage.seal(&self.workspace)?.after != result {
            let message = "the stage changed after it was admitted";
            return Ok(Event::Faulted { code: "STAGE_CHANGED".into(), message: message.into(), retryable: true });
        }
        let id = new_id();
        // Whoever has lost the run does not get past this, and nobody else past the lock.
        match desk.record(Event::Publishing { publication: id.clone() }) {
            Recorded::Done => {}
            Recorded::Unknown => return Err(super::shared::silent()),
            Recorded::Lost | Recorded::Refused => {
                return Ok(Event::Stopped { cancelled: false, reason: "lease lost to another worker".into() });
            }
        }
        actum_contract::crash::pass(super::PUBLISH_POINTS, "run.publishing");
        self.publication = Some(id.clone());
        match self.workspace.publish(&lock, stage, &id, now_ms()) {
            Ok((publication, _)) => {
                actum_contract::crash::pass(super::PUBLISH_POINTS, "run.applied");
                // Two runs may have done the same at the same time: neither was admitted when the other was weighed.
                if publication.changes.is_empty()
                    && let Some(run) = self.published_by_another(state)?
                {
                    note_reverted(&id, desk);
                    let capsule = state.capsule.clone().unwrap_or_default();
                    return Ok(Event::Weighed { capsule, duplicate_of: Some(run), missing: Vec::new() });
                }
                // It is done. What the ledger lacks it gets from whoever opens the workspace next.
                let _ = self.record(&publication);
                let mut event = published_as(&publication);
                if let Event::Published { drift, .. } = &mut event {
                    drift.extend(self.moved.iter().take(DRIFT_SHOWN).cloned());
                }
                Ok(event)
            }
            Err(actum_workspace::Error::Conflict(conflict)) => Ok(Event::Conflicted { paths: conflict.all_paths() }),
            Err(e) => self.after_failure(&lock, &id, e, desk),
        }
    }

    /// Returns an end if programs obey a change of this run only since the workspace has changed: a link leads to it now.
    pub(super) fn obeyed_by_now(&self, state: &State, now: Digest) -> Done<Option<Event>> {
        let (before, current) = (Self::digest(state.before.as_ref())?, Self::digest(state.current.as_ref())?);
        if now == before {
            return Ok(None);
        }
        let (blobs, changes) = (self.workspace.blobs(), self.changes(state)?);
        let folder = self.facts.agreement.shared.is_none().then(|| self.workspace.path());
        let place = Place { folder, root: &self.shop.root };
        let find = |onto| ObeyedChanges::find(blobs, [before, current], (place, onto), &changes, self.admission);
        let (then, by_now) = (find(None)?, find(Some(now))?);
        let found = deltas(&changes).find(|change| by_now.contain(&change.path) && !then.contain(&change.path));
        Ok(found.map(|change| Event::Faulted {
            code: code::PROTECTED_FILE.to_owned(),
            message: format!(
                "{} is obeyed by other programs by now, because a link leads to it; run the work item again",
                change.path
            ),
            retryable: true,
        }))
    }

    /// Returns the run that has published the same capsule to this workspace, if there is one.
    fn published_by_another(&self, state: &State) -> Done<Option<String>> {
        let Some(own) = state.capsule.as_ref().filter(|_| state.deltas > 0) else { return Ok(None) };
        let mut publications = self.workspace.publications()?;
        publications.retain(|made| made.cause == Cause::Publish && !made.changes.is_empty());
        publications.sort_by_key(|made| std::cmp::Reverse(made.at_ms));
        for made in publications.into_iter().take(RECENT_PUBLICATIONS) {
            let run = made.of.split('.').next().unwrap_or(&made.of).to_owned();
            if run == self.facts.run {
                continue;
            }
            let waiter = &self.shop.waiter;
            let rows = waiter.wait(waiter.runs.events(&self.shop.tenant, &run, 0))?;
            let events = actum_engine::events_of(&rows).unwrap_or_default();
            if events.iter().any(|event| matches!(event, Event::Weighed { capsule, .. } if capsule == own)) {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// What this attempt has published already, if it had begun to: by this process before, or by another one. Asked
    /// before anything else, also if the run is to stop.
    fn look_up_publication(&mut self, state: &State, desk: &dyn Desk) -> Done<Option<Event>> {
        let Some(id) = &state.publishing else { return Ok(None) };
        let looked = self.workspace.lock().map_err(Failure::from).and_then(|lock| {
            self.recover_held(&lock)?;
            Ok(self.workspace.publications()?.into_iter().find(|known| known.id == *id))
        });
        self.publication = Some(id.clone());
        match looked {
            Ok(Some(publication)) => {
                let _ = self.record(&publication);
                Ok(Some(published_as(&publication)))
            }
            Ok(None) => {
                note_reverted(id, desk);
                let is_stopped = desk.stopped().is_some();
                Ok(is_stopped.then(|| Event::Stopped { cancelled: false, reason: String::new() }))
            }
            // It is unknown what the folder holds: the run has no end yet.
            Err(failure) => {
                (self.put_off, self.is_outcome_unknown) = (Some(failure.message.clone()), true);
                Err(failure)
            }
        }
    }

    /// Publishing failed for no conflict: the disk, permissions. What is between two states is carried to an end first; the
    /// run ends by what that is.
    fn after_failure(
        &mut self,
        lock: &actum_workspace::Lock,
        id: &str,
        e: actum_workspace::Error,
        desk: &dyn Desk,
    ) -> Done<Event> {
        let failure = Failure::from(e);
        let found = self
            .recover_held(lock)
            .and_then(|()| Ok(self.workspace.publications()?.into_iter().find(|known| known.id == *id)));
        match found {
            Ok(Some(publication)) => Ok(published_as(&publication)),
            Ok(None) => {
                note_reverted(id, desk);
                Err(failure)
            }
            Err(_) => {
                (self.put_off, self.is_outcome_unknown) = (Some(failure.message.clone()), true);
                Err(failure)
            }
        }
    }
}

impl RunHands {
    /// What does not answer now is nobody's failure: the run is put off.
    fn note_trouble(&mut self, failure: &Failure) {
        // Where there is no room, anything may fail for want of it, under any name.
        let is_machines = self.repeats.is_none() && (failure.is_machines() || is_full(&self.shop.home));
        if failure.is_passing() || is_machines {
            self.put_off = Some(failure.message.clone());
            self.is_machines_fault = is_machines;
        }
    }
}

/// Records that a publication was rolled back, so that the run can be cancelled, overridden or failed like one that never
/// began to publish. If this is not written, the next worker looks the publication up.
fn note_reverted(id: &str, desk: &dyn Desk) {
    let _ = desk.record(Event::Reverted { publication: id.to_owned() });
}

fn published_as(publication: &Publication) -> Event {
    let drift = publication.drift.iter().take(DRIFT_SHOWN).map(ToString::to_string).collect();
    Event::Published { publication: publication.id.clone(), drift, after: Some(publication.after.to_hex()) }
}

/// Publications that are looked at for one of the same capsule by a run that is not over.
const RECENT_PUBLICATIONS: usize = 16;

/// Paths of others that are listed on a receipt.
const DRIFT_SHOWN: usize = 100;

/// Whether an agent came to an end that is not its work's.
fn is_failed(event: &Event) -> bool {
    match event {
        Event::Planned(plan) => plan.failed.is_some(),
        Event::Acted(acted) => matches!(acted.end, End::Failed { .. } | End::TimedOut),
        _ => false,
    }
}

impl Hands for RunHands {
    fn perform(&mut self, effect: &Effect, state: &State, desk: &dyn Desk) -> Event {
        let done = match effect {
            Effect::Freeze => self.freeze(),
            Effect::Stage => self.stage(state).map(|stage| Event::Staged {
                stage: stage.id.clone(),
                view: Some(stage.freshness.as_str().to_owned()),
            }),
            Effect::Plan { timeout_ms } => self.plan(state, *timeout_ms, desk),
            Effect::Act { act, feedback, left_ms, ops_left } => match self.conflict_of_finished_steps(state) {
                Ok(None) => self.act(state, act, feedback.as_ref(), *left_ms, *ops_left, desk),
                Ok(Some(event)) => Ok(event),
                Err(failure) => Err(failure),
            },
            Effect::Check { heavy, left_ms } => self.check(state, *heavy, *left_ms, desk),
            Effect::Weigh => self.weigh(state),
            Effect::Test { left_ms } => self.test(state, *left_ms, desk),
            Effect::Publish => self.publish(state, desk),
            Effect::Finish(_) => Err(Failure::new(error::INTERNAL, "an end is not performed")),
        };
        // An agent that failed because we could not answer has not failed. One that went on all the same has not, either.
        if let Some(why) = self.silence.take().filter(|_| done.as_ref().is_ok_and(is_failed)) {
            self.put_off = Some(why);
        }
        done.unwrap_or_else(|failure| {
            self.note_trouble(&failure);
            Event::Faulted { code: failure.row.name.to_owned(), message: failure.message, retryable: true }
        })
    }

    fn put_off(&self) -> Option<String> {
        self.put_off.clone()
    }

    fn is_machines_fault(&self) -> bool {
        self.is_machines_fault
    }

    fn is_outcome_unknown(&self) -> bool {
        self.is_outcome_unknown
    }

    fn finish(&mut self, verdict: &Verdict, state: &State) -> Result<Finished, String> {
        if self.repeats.is_none() {
            self.folder.settle_calls(state.answers.len());
        }
        // What is kept has to be there, also if whoever made it is gone.
        if verdict.kept && self.facts.agreement.shared.is_none() {
            let staged = self.stage(state).map(|_| ());
            staged.map_err(|failure| {
                self.note_trouble(&failure);
                failure.message
            })?;
        }
        self.receipt(verdict, state).map_err(|failure| {
            self.note_trouble(&failure);
            self.folder.drop_end(self.facts.epoch);
            failure.message
        })
    }

    fn leave(&mut self, verdict: &Verdict) {
        self.turn = None;
        // The end is on record: folder, run and ledger agree.
        if let Some(id) = self.publication.take().filter(|id| self.workspace.is_settled(id)) {
            let _ = self.workspace.forget_pending(&id);
        }
        if self.repeats.is_none() {
            self.folder.settle(self.facts.epoch);
            let _ = std::fs::remove_dir_all(self.folder.path("exchange"));
        }
        let still = self.still.take();
        if let Some((stage, still)) =
            self.stage.take().zip(still).filter(|_| !verdict.kept || self.facts.agreement.shared.is_some())
        {
            // What cannot be removed now is removed by whoever cleans up.
            let _ = stage.drop(still);
        }
    }
}

/// Hands that were let go of without an end, because the run is lost or the store is, leave no stage behind.
impl Drop for RunHands {
    fn drop(&mut self) {
        if let Some((stage, still)) = self.stage.take().zip(self.still.take()) {
            let _ = stage.drop(still);
        }
    }
}

/// The commit a repository stands on, read from its own files.
fn commit_of(folder: &Path) -> Option<String> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let mut git = folder.ancestors().map(|above| above.join(".git")).find(|git| git.exists())?;
    if git.is_file() {
        let text = read(&git)?;
        git = git.parent()?.join(text.trim().strip_prefix("gitdir: ")?);
    }
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.trim().strip_prefix("ref: ") else { return is_commit(head.trim()) };
    let common = read(&git.join("commondir")).map_or_else(|| git.clone(), |text| git.join(text.trim()));
    if let Some(found) = read(&common.join(name)).and_then(|text| is_commit(text.trim())) {
        return Some(found);
    }
    let packed = read(&common.join("packed-refs"))?;
    packed.lines().find_map(|line| is_commit(line.strip_suffix(name)?.trim_end()))
}

fn is_commit(text: &str) -> Option<String> {
    let is_hex = text.len() >= 40 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| text.to_owned())
}
