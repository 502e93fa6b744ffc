//! Planning and acting: the agent in its cell, told what is wanted, and what it did found out afterwards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use actum_contract::agent::AgentKind;
use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use actum_kernel::{Act, Acted, Changed, Desk, End, Event, Plan, State, Step, ToolOp, Totals, is_env_file};
use actum_sandbox::{Ended, read_beneath};
use actum_workspace::{Change, Kind, TreePath, deltas, diff, new_leaving_links, patch};
use serde_json::{Value, json};

use super::hands::{Done, RunHands};
use super::offer::Asked;
use super::program::{EXCHANGE, Program, Ran};
use super::recording::{LINKS_ARE_DENIED, LINKS_ARE_FOLLOWED, OBEYED_WAIT};
use crate::failure::Failure;
use crate::obeyed_place::Place;
use crate::protect::ObeyedChanges;

/// Steps that a plan may have.
const STEPS_MAX: usize = 100;
const RESPONSE_BYTES_MAX: u64 = 1 << 20;
/// Changes that are listed with an act.
const CHANGED_SHOWN: usize = 200;

impl RunHands {
    pub(super) fn plan(&mut self, state: &State, timeout_ms: u64, desk: &dyn Desk) -> Done<Event> {
        if let AgentKind::Script { script } = &self.facts.agreement.agent.kind {
            let step = |(at, text): (usize, &String)| {
                // `id: description`, or a description that gets an id.
                let (id, description) = match text.split_once(": ") {
                    Some((id, rest)) if actum_contract::work::is_id(id) => (id.to_owned(), rest.to_owned()),
                    _ => (format!("step-{}", at + 1), text.clone()),
                };
                Step { id, description }
            };
            let steps = script.plan.iter().enumerate().map(step).collect();
            return Ok(Event::Planned(Plan { steps, in_time: true, ..Plan::default() }));
        }
        if let AgentKind::Predict(agent) = self.facts.agreement.agent.kind.clone() {
            return self.plan_by_model(&agent, state, timeout_ms, desk);
        }
        let (ran, response, heard) = self.ask("plan", state, None, None, timeout_ms, desk)?;
        let in_time = ran.report.ended != Ended::TimedOut;
        let plan = |steps, failed| Plan {
            steps,
            in_time,
            failed,
            took_ms: ran.took_ms,
            answers: heard.answers.clone(),
            ops: heard.ops.clone(),
            exhausted: heard.exhausted.clone(),
            denied: heard.denied.clone(),
        };
        // Planning is looking: whatever was changed meanwhile is taken back.
        self.restore(state)?;
        let planned = match (failure_of(&ran), response) {
            (Some(why), _) => plan(Vec::new(), Some(why.1)),
            (None, None) => plan(Vec::new(), Some("the planner left no response".to_owned())),
            (None, Some(Err(why))) => plan(Vec::new(), Some(why)),
            (None, Some(Ok(response))) => match steps_of(&response) {
                Ok(steps) => plan(steps, None),
                Err(why) => plan(Vec::new(), Some(why)),
            },
        };
        Ok(Event::Planned(planned))
    }

    pub(super) fn act(
        &mut self,
        state: &State,
        act: &Act,
        feedback: Option<&Value>,
        left_ms: u64,
        ops_left: u64,
        desk: &dyn Desk,
    ) -> Done<Event> {
        self.folder.note(&match &act.correction {
            None => format!("── {} of {}: {}", act.index + 1, state.steps.len(), act.step.id),
            Some(correction) => format!("── correction {} of {}", correction.number, act.step.id),
        });
        let (end, ops, took_ms, answers) = match self.facts.agreement.agent.kind.clone() {
            AgentKind::Script { script } => {
                let (end, ops, took_ms) = self.play(&script, state, act, left_ms, ops_left, desk)?;
                (end, ops, took_ms, None)
            }
            AgentKind::Predict(agent) => {
                let (end, heard, took_ms) = self.act_by_model(&agent, state, act, feedback, left_ms, desk)?;
                (end, heard.ops, took_ms, heard.answers)
            }
            AgentKind::Command { .. } => {
                let phase = if act.correction.is_some() { "correct" } else { "step" };
                let (ran, _, heard) = self.ask(phase, state, Some(act), feedback, left_ms, desk)?;
                let end = match (heard.denied, heard.exhausted) {
                    (Some(denial), _) => End::Denied(denial),
                    (None, Some(why)) => End::OutOfOps { why: Some(why) },
                    (None, None) => end_of(&ran),
                };
                (end, heard.ops, ran.took_ms, heard.answers)
            }
        };
        self.acted(state, act, end, ops, took_ms, answers)
    }

    /// Finds out what an act has come to.
    fn acted(
        &mut self,
        state: &State,
        act: &Act,
        end: End,
        ops: Vec<ToolOp>,
        took_ms: u64,
        answers: Option<String>,
    ) -> Done<Event> {
        let before = Self::digest(state.before.as_ref())?;
        let last = Self::digest(state.current.as_ref())?;
        self.stage(state)?;
        let Some(stage) = &self.stage else {
            return Err(Failure::new(actum_api::error::INTERNAL, "there is no stage"));
        };
        let sealed = stage.seal(&self.workspace)?;
        let blobs = self.workspace.blobs();
        let changes = diff(blobs, last, sealed.after)?;
        let mut changed = Vec::new();
        let mut totals = Totals::default();
        let mut unseen = 0;
        for change in deltas(&changes) {
            let bytes = size_of(blobs, change)?;
            totals.changed += 1;
            // A patch shows no bytes of these, and they are changed all the same.
            if bytes > PATCH_BYTES_MAX || is_binary(blobs, change)? {
                unseen += bytes;
            }
            if bytes > totals.largest_bytes {
                (totals.largest_bytes, totals.largest) = (bytes, Some(change.path.to_string()));
            }
            if changed.len() < CHANGED_SHOWN {
                changed.push(Changed { path: change.path.to_string(), verb: change.verb().word().to_owned(), bytes });
            }
        }
        let config = &state.agreed.config;
        // A diff is made only of what could still be within its limit.
        totals.diff_bytes =
            if totals.largest_bytes > config.max_file_bytes || totals.changed > config.max_files_per_step {
                totals.largest_bytes
            } else {
                patch(blobs, &changes)?.len() as u64 + unseen
            };
        let all = diff(blobs, before, sealed.after)?;
        totals.files = deltas(&all).count() as u64;
        totals.deltas = totals.files;
        let declared = &self.facts.agreement.work_item.output_files;
        let agreement = &self.facts.agreement;
        let folder = agreement.shared.is_none().then_some(&*agreement.workspace);
        let place = Place { folder, root: &self.shop.root };
        let obeyed = ObeyedChanges::find(blobs, [before, sealed.after], (place, None), &all, self.admission)?;
        for change in deltas(&all) {
            let path = change.path.to_string();
            let is_own = self.admission >= OBEYED_WAIT && self.shop.own_files.contain(folder, change.path.as_path());
            if is_own || obeyed.contain(&change.path) {
                match declared.contains(&path) {
                    false => totals.protected.push(path),
                    true if self.admission >= OBEYED_WAIT => totals.obeyed.push(path),
                    true => {}
                }
            }
        }
        if self.admission >= LINKS_ARE_DENIED {
            let mut links = new_leaving_links(blobs, before, sealed.after, &all)?;
            if let Some(folder) = folder.filter(|_| self.admission >= LINKS_ARE_FOLLOWED) {
                links.extend(links_that_leave_on_disk(blobs, folder, &all)?);
                links.sort_unstable();
                links.dedup();
            }
            let links = links.iter().map(ToString::to_string);
            totals.leaving = links.filter(|path| !self.facts.agreement.work_item.links.contains(path)).collect();
        }
        let touched = deltas(&changes).map(|change| change.path.to_string());
        let left_out = sealed.left_out.iter().map(ToString::to_string);
        totals.env_files = touched.chain(left_out).filter(|path| is_env_file(path)).take(CHANGED_SHOWN).collect();
        let acted =
            Acted { act: act.clone(), end, state: sealed.after.to_hex(), changed, totals, ops, took_ms, answers };
        Ok(Event::Acted(Box::new(acted)))
    }

    /// Runs the agent's program for one phase, within so much time. Its response, if it left
    /// one, and what it heard of its tools.
    fn ask(
        &mut self,
        phase: &str,
        state: &State,
        act: Option<&Act>,
        feedback: Option<&Value>,
        left_ms: u64,
        desk: &dyn Desk,
    ) -> Done<Asked> {
        let offer = self.offer(state, left_ms)?;
        let agreement = &self.facts.agreement;
        let AgentKind::Command { command } = &agreement.agent.kind else {
            return Err(Failure::new(actum_api::error::INTERNAL, "only a program is asked"));
        };
        let item = &agreement.work_item;
        let mut request = json!({
            "phase": phase,
            "work_item": item,
            "limits": {
                "timeout_ms": left_ms, "constraints": item.constraints,
                "max_files_per_step": state.agreed.config.max_files_per_step,
                "max_total_diff_bytes": state.agreed.config.max_total_diff_bytes,
                "max_file_bytes": state.agreed.config.max_file_bytes,
            },
        });
        if let Some(act) = act {
            request["step"] = json!({"index": act.index, "of": state.steps.len(), "id": act.step.id, "description": act.step.description});
        }
        if let Some(feedback) = feedback {
            request["feedback"] = feedback.clone();
        }
        let exchange = self.folder.exchange(&request)?;
        let description = act.map_or(item.description.as_str(), |act| act.step.description.as_str());
        let fill = |word: &String| {
            word.replace("{description}", description)
                .replace("{work_item}", &item.id)
                .replace("{phase}", phase)
                .replace("{run}", &self.facts.run)
        };
        let command: Vec<String> = command.iter().map(fill).collect();
        let environment = BTreeMap::from([
            ("ACTUM_RUN_ID".to_owned(), self.facts.run.clone()),
            ("ACTUM_WORK_ITEM_ID".to_owned(), item.id.clone()),
            ("ACTUM_PHASE".to_owned(), phase.to_owned()),
            ("ACTUM_ATTEMPT".to_owned(), self.facts.attempt.to_string()),
            ("ACTUM_REQUEST".to_owned(), format!("{EXCHANGE}/request.json")),
            ("ACTUM_RESPONSE".to_owned(), format!("{EXCHANGE}/response.json")),
        ]);
        let agent = agreement.agent.clone();
        let program = Program {
            command: &command,
            agent: &agent,
            environment,
            exchange: Some(exchange.clone()),
            offer: offer.as_ref(),
            left_ms,
            is_agents: self.repeats.is_none(),
        };
        let grants = self.grants(state)?;
        let ran = program.run(&self.shop, grants, &self.folder.log(), desk)?;
        self.remember(&ran);
        let taken = self.taken(offer.as_ref().map(|offer| &*offer.book), state)?;
        Ok((ran, response(&exchange), taken))
    }
}

/// What the agent has left in the folder it was given. Never through a link, and never more than it may be.
fn response(exchange: &Path) -> Option<Result<Value, String>> {
    let path = exchange.join("response.json");
    std::fs::symlink_metadata(&path).ok()?;
    let read = read_beneath(exchange, &path, RESPONSE_BYTES_MAX, &|_| true);
    Some(match read {
        Err(e) => Err(format!("its response cannot be read: {e}")),
        Ok(bytes) => actum_contract::canon::parse(&bytes).map_err(|e| format!("its response is no JSON: {e}")),
    })
}

pub(super) fn steps_of(response: &Value) -> Result<Vec<Step>, String> {
    let Some(steps) = response["steps"].as_array() else { return Err("its response has no list of steps".into()) };
    if steps.len() > STEPS_MAX {
        return Err(format!("the plan has {} steps, at most {STEPS_MAX} are taken", steps.len()));
    }
    let mut found: Vec<Step> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let text = |key: &str| step[key].as_str().map(ToOwned::to_owned);
        let description = text("description").unwrap_or_default();
        let id = text("id").filter(|id| !id.is_empty() && id.len() <= 80 && !id.contains(char::is_control));
        let Some(id) = id else { return Err(format!("step {} of the plan has no usable id", at + 1)) };
        if found.iter().any(|known| known.id == id) {
            return Err(format!("two steps of the plan are called {id:?}"));
        }
        found.push(Step { id, description });
    }
    Ok(found)
}

/// Returns the changed links that lead out of the workspace by way of files that its rules leave out, which are in no tree.
fn links_that_leave_on_disk(blobs: &dyn Blobs, folder: &Path, changes: &[Change]) -> Done<Vec<TreePath>> {
    let Ok(root) = folder.canonicalize() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for change in deltas(changes) {
        let Some(node) = change.after.filter(|node| node.kind == Kind::Symlink) else { continue };
        let target = PathBuf::from(OsString::from_vec(blobs.read(node.digest)?));
        let above = change.path.as_path().parent().unwrap_or(Path::new("")).to_owned();
        if root.join(above).join(target).canonicalize().is_ok_and(|real| !real.starts_with(&root)) {
            found.push(change.path.clone());
        }
    }
    Ok(found)
}

/// Why a cell ended that lost one of its covers.
pub(crate) const UNCOVERED: &str =
    "a file that is hidden from it, or that it may only read, was replaced outside of the sandbox meanwhile";

/// The exit code and a sentence, if a program did not do what it was asked to.
pub(super) fn failure_of(ran: &Ran) -> Option<(Option<u8>, String)> {
    let why = match &ran.report.ended {
        Ended::Exited(0) => return None,
        Ended::Exited(code) => return Some((Some(*code), with_tail(format!("it ended with code {code}"), ran))),
        Ended::Signalled(signal) => format!("it was ended by signal {signal}"),
        Ended::NotStarted(error) => {
            let why = std::io::Error::from_raw_os_error(*error);
            let advice = if why.kind() == std::io::ErrorKind::NotFound {
                "; what lies outside the workspace and the system's folders is seen at the filesystem level extended"
            } else {
                ""
            };
            format!("{} could not be started: {why}{advice}", ran.program)
        }
        Ended::TimedOut => "it took too long".to_owned(),
        Ended::OutOfMemory => "it needed more memory than it may".to_owned(),
        Ended::OutOfDisk => "it wrote more than it may".to_owned(),
        Ended::Uncovered => UNCOVERED.to_owned(),
        Ended::Cancelled => "it was asked to stop".to_owned(),
        Ended::NotBuilt(why) => format!("there was no sandbox for it: {why}"),
    };
    Some((None, with_tail(why, ran)))
}

fn with_tail(why: String, ran: &Ran) -> String {
    let tail = ran.tail();
    let line = tail.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let line: String = line.chars().take(300).collect();
    if line.is_empty() { why } else { format!("{why}: {line}") }
}

pub(super) fn end_of(ran: &Ran) -> End {
    match (&ran.report.ended, failure_of(ran)) {
        (Ended::TimedOut, _) => End::TimedOut,
        (_, None) => End::Done,
        (_, Some((exit_code, why))) => End::Failed { exit_code, message: format!("the agent failed: {why}") },
    }
}

/// Larger contents are only named in a patch.
const PATCH_BYTES_MAX: u64 = 1 << 20;

fn is_binary(blobs: &dyn Blobs, change: &Change) -> Done<bool> {
    match change.after {
        Some(node) if node.kind.is_file() => Ok(blobs.read(node.digest)?.iter().take(8 << 10).any(|b| *b == 0)),
        _ => Ok(false),
    }
}

/// Bytes of a path after a change.
fn size_of(blobs: &dyn Blobs, change: &Change) -> Done<u64> {
    struct Count(u64);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    match change.after {
        Some(node) if node.kind.is_file() && node.digest != Digest::ZERO => {
            let mut count = Count(0);
            Ok(blobs.copy(node.digest, &mut count)?)
        }
        _ => Ok(0),
    }
}
