//! The built-in agent at work: it asks a model for operations, performs them on the stage, tells what came of them, and
//! asks again. Called by `act` where an agent of type `predict` has the item. It asks by way of the line only, so that
//! every question is judged, paid for and kept; a repetition performs the same answers and asks nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actum_contract::agent::{self, Predict};
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::execution::Redactor;
use actum_kernel::{Act, Denial, Desk, End, Event, Plan, State};
use actum_predict::Way;
use actum_predict::policy;
use actum_predict::receipt::Rollout;
use actum_predict::signature::{Program, Signature, Strategy};
use actum_predict::strategy::{Status, Stop};
use actum_sandbox::Ended;
use actum_server::{Call, Refused, Tools as _};
use serde_json::{Map, Value, json};

use super::act::{failure_of, steps_of};
use super::book::{Book, Exhausted};
use super::hands::{Done, RunHands};
use super::look::{Seen, View, cut, path_of};
use super::offer::{Opened, Taken};
use super::program::Ran;
use super::script::done;
use crate::failure::Failure;
use crate::model::agent::{self as own, Answer, Operation};
use crate::model::line::{Line, Within};
use crate::model::predict::{Predicted, Whom, predict};
use crate::tool::bridge;

/// What is shown of one operation, and of all that came before. Older turns make room for newer ones.
const SEEN_BYTES_MAX: usize = 48 << 10;
const HISTORY_BYTES_MAX: usize = 160 << 10;
/// Of each stream of a program, its end.
const OUTPUT_BYTES_MAX: usize = 8 << 10;
/// What is told of what was asked for: contents are known to whoever wrote them.
const DID_BYTES_MAX: usize = 600;
const THOUGHT_BYTES_MAX: usize = 1_000;
/// Words of a command, and bytes of all of them.
const WORDS_MAX: usize = 256;
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// What holds for one act.
struct Session {
    line: Line,
    whom: Whom,
    book: Arc<Book>,
    tools: Option<Arc<bridge::Desk>>,
    within: Within,
    /// Operations that may be made, and were.
    ops_left: u64,
    ops_made: u64,
    /// Knows the keys of providers; in a repetition there are none.
    redactor: Redactor,
    gone: Arc<AtomicBool>,
}

/// One operation with what came of it, as the model is told.
struct Did {
    did: String,
    saw: String,
}

/// What an operation led to.
enum After {
    Saw(Seen),
    Ended(End),
}

fn failed(message: impl std::fmt::Display) -> End {
    End::Failed { exit_code: None, message: format!("the agent failed: {message}") }
}

fn stopped() -> End {
    End::Failed { exit_code: None, message: "it was asked to stop".into() }
}

impl RunHands {
    pub(super) fn plan_by_model(
        &mut self,
        agent: &Predict,
        state: &State,
        timeout_ms: u64,
        desk: &dyn Desk,
    ) -> Done<Event> {
        let began = Instant::now();
        let (opened, session) = self.sit_down(agent, state, timeout_ms, desk)?;
        let planned = match &session {
            Err(why) => Err(failed(why)),
            Ok(session) => {
                let list = || session.tools.as_ref().and_then(|tools| tools.list("L0", None).ok());
                let tools = list().map(|list| cut(&list.to_string(), SEEN_BYTES_MAX)).unwrap_or_default();
                let input = json!({"task": self.task(), "files": self.files(state)?, "tools": tools});
                session.ask(&own::plan(), &input)?
            }
        };
        let (end, heard) = self.get_up(session.ok(), &opened, state, planned.as_ref().err().cloned())?;
        let in_time = end != Some(End::TimedOut);
        let no = match &end {
            Some(End::Denied(denial)) => Some(denial.clone()),
            _ => None,
        };
        let steps = match (planned, end) {
            (Ok(output), None) => steps_of(&output),
            (_, Some(End::Failed { message, .. })) => Err(message),
            (_, end) => Err(format!("there is no plan: {}", end.as_ref().map_or("", word_of))),
        };
        let (steps, failed) = match steps {
            Ok(steps) => (steps, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let Taken { ops, exhausted, denied, answers } = heard;
        let denied = denied.or(no);
        let took_ms = millis(began.elapsed());
        Ok(Event::Planned(Plan { steps, in_time, failed, took_ms, answers, ops, exhausted, denied }))
    }

    /// One step or correction: how it ended, what was heard and done, how long it took.
    pub(super) fn act_by_model(
        &mut self,
        agent: &Predict,
        state: &State,
        act: &Act,
        feedback: Option<&Value>,
        left_ms: u64,
        desk: &dyn Desk,
    ) -> Done<(End, Taken, u64)> {
        let began = Instant::now();
        let (opened, session) = self.sit_down(agent, state, left_ms, desk)?;
        let (end, session) = match session {
            Err(why) => (failed(why), None),
            Ok(mut session) => {
                let end = self.take_turns(&mut session, agent, state, act, feedback, desk)?;
                (end, Some(session))
            }
        };
        let (end, heard) = self.get_up(session, &opened, state, Some(end))?;
        Ok((end.unwrap_or(End::Done), heard, millis(began.elapsed())))
    }

    /// Opens the book of an act and finds out who is asked. The error is one of the settings, and is kept too.
    fn sit_down(
        &mut self,
        agent: &Predict,
        state: &State,
        left_ms: u64,
        desk: &dyn Desk,
    ) -> Done<(Arc<Book>, Result<Session, String>)> {
        let until = Instant::now() + Duration::from_millis(left_ms);
        let Opened { book, desk: tools, ops_left } = self.open_book(state, left_ms)?;
        let till = if self.repeats.is_some() && self.live.is_none() { None } else { Some(self.till()?) };
        // What the settings say may be another thing when the run is repeated.
        let asked = json!({"built_in": {"model": agent.model, "provider": agent.provider}});
        let found = book.look(&asked, || {
            let counter = till.as_ref().map(|till| Arc::clone(till.counter()));
            let counter =
                counter.ok_or_else(|| Failure::new(actum_api::error::INTERNAL, "no model provider is available"))?;
            let program = Program::new(Strategy::Direct);
            let mut whom = Whom::of(&counter, Some(&agent.model), agent.provider.as_deref(), &program)?;
            whom.output_tokens = whom.output_tokens.min(agent.output_tokens);
            Ok(json!({"whom": whom.to_json(), "ops_left": ops_left}))
        });
        let agreed = found.map_err(|failure| failure.message).and_then(|found| {
            let whom = Whom::from_json(&found["whom"]).zip(found["ops_left"].as_u64());
            whom.ok_or_else(|| "what is on record of its model cannot be read".to_owned())
        });
        let (whom, ops_left) = match agreed {
            Ok(agreed) => agreed,
            Err(why) => return Ok((book, Err(why))),
        };
        let gone = Arc::new(AtomicBool::new(false));
        let (stop, offered) = (Arc::clone(&gone), tools.clone());
        desk.on_stop(Box::new(move || {
            stop.store(true, Ordering::SeqCst);
            if let Some(tools) = offered {
                tools.stop();
            }
        }));
        let session = Session {
            redactor: till.as_ref().map(|till| till.counter().redactor()).unwrap_or_default(),
            line: Line { till, book: Some(Arc::clone(&book)) },
            whom,
            book: Arc::clone(&book),
            tools,
            within: Within { until, stopped: Arc::clone(&gone) },
            ops_left,
            ops_made: 0,
            gone,
        };
        Ok((book, Ok(session)))
    }

    /// Settles what was cut off, and keeps what was heard. What was denied or too much is how it ended.
    fn get_up(
        &mut self,
        session: Option<Session>,
        book: &Book,
        state: &State,
        end: Option<End>,
    ) -> Done<(Option<End>, Taken)> {
        if let Some(till) = session.and_then(|session| session.line.till) {
            // What cannot be written down now is found by its deadline.
            till.counter().waiter.wait(Box::pin(till.abandon(None))).unwrap_or_default();
        }
        let heard = self.taken(Some(book), state)?;
        let end = match (&heard.denied, &heard.exhausted) {
            (Some(denial), _) => Some(End::Denied(denial.clone())),
            (None, Some(why)) => Some(End::OutOfOps { why: Some(why.clone()) }),
            (None, None) => end,
        };
        Ok((end, heard))
    }

    /// What the item asks for, in what stays the same each time.
    fn task(&self) -> Value {
        let item = &self.facts.agreement.work_item;
        json!({
            "description": item.description, "input_files": item.input_files, "output_files": item.output_files,
            "checks": item.validation, "test_command": item.test_command,
        })
    }

    fn files(&self, state: &State) -> Done<String> {
        let view = View { blobs: self.workspace.blobs(), tree: Self::digest(state.current.as_ref())? };
        Ok(cut(&view.list("").unwrap_or_else(|why| why), SEEN_BYTES_MAX))
    }

    fn take_turns(
        &mut self,
        session: &mut Session,
        agent: &Predict,
        state: &State,
        act: &Act,
        feedback: Option<&Value>,
        desk: &dyn Desk,
    ) -> Done<End> {
        let config = &state.agreed.config;
        let mut limits = json!({
            "max_files_per_step": config.max_files_per_step, "max_file_bytes": config.max_file_bytes,
            "max_total_diff_bytes": config.max_total_diff_bytes, "operations_left": session.ops_left,
        });
        if let Some(correction) = &act.correction {
            limits["max_files_per_step"] = json!(correction.max_files);
            limits["max_total_diff_bytes"] = json!(correction.max_diff_bytes);
        }
        let mut input = json!({
            "task": self.task(), "files": self.files(state)?, "has_tools": session.tools.is_some(), "limits": limits,
            "step": {
                "number": act.index + 1, "of": state.steps.len(), "id": act.step.id, "description": act.step.description,
            },
        });
        let signature = match &act.correction {
            None => own::act(),
            Some(_) => {
                input["failures"] = feedback.map(|told| told["failures"].clone()).unwrap_or_else(|| json!([]));
                own::correct()
            }
        };
        let mut current = Self::digest(state.current.as_ref())?;
        let mut history: Vec<(String, Vec<Did>)> = Vec::new();
        let mut before = None;
        for turn in 1..=agent.turns {
            if desk.stopped().is_some() {
                return Ok(stopped());
            }
            input["turn"] = json!(turn);
            input["turns"] = json!(agent.turns);
            input["history"] = told(&history);
            let answer = match session.ask(&signature, &input)? {
                Ok(output) => output,
                Err(end) => return Ok(end),
            };
            let Ok(Answer { thought, operations }) = serde_json::from_value::<Answer>(answer.clone()) else {
                return Ok(failed("the answer fits its form and is none"));
            };
            self.folder.note(&format!("── turn {turn} of {}: {}", agent.turns, cut(&thought, DID_BYTES_MAX)));
            let mut all = Vec::new();
            let mut end = None;
            for (at, operation) in operations.iter().enumerate() {
                if session.book.is_exhausted() {
                    return Ok(End::OutOfOps { why: None });
                }
                if desk.stopped().is_some() {
                    return Ok(stopped());
                }
                let saw = match self.perform_one(session, operation, state, &mut current, desk)? {
                    After::Saw(saw) => saw,
                    After::Ended(ended) => {
                        end = Some(ended);
                        break;
                    }
                };
                let is_good = saw.is_ok();
                let saw = saw.unwrap_or_else(|why| format!("FAILED: {why}"));
                all.push(Did { did: did(operation), saw: cut(&session.clean(&saw), SEEN_BYTES_MAX) });
                let rest = operations.len() - at - 1;
                if !is_good && rest > 0 {
                    let saw = "they were not performed: the one before them failed".to_owned();
                    all.push(Did { did: format!("{rest} more operations"), saw });
                    break;
                }
            }
            if let Some(end) = end {
                return Ok(end);
            }
            // The same again, on the same files, with the same outcome, leads nowhere.
            let seen = all.iter().map(|one| one.saw.as_str()).collect::<Vec<_>>();
            let key = json!({"operations": answer["operations"], "tree": current.to_hex(), "seen": seen});
            let key = canon::canonical(&key).map(|text| Digest::blake3(&text)).ok();
            if key.is_some() && key == before {
                let message = format!("turn {turn} did the same as the one before it, and nothing has changed");
                return Ok(End::Denied(Denial { reason_code: policy::NO_PROGRESS.to_owned(), message }));
            }
            before = key;
            history.push((cut(&thought, THOUGHT_BYTES_MAX), all));
        }
        let turns = agent.turns;
        Ok(failed(format!("it is not done after {turns} turns; raise turns of the agent, or ask for less at a time")))
    }

    fn perform_one(
        &mut self,
        session: &mut Session,
        operation: &Operation,
        state: &State,
        current: &mut Digest,
        desk: &dyn Desk,
    ) -> Done<After> {
        if operation.counts() && !session.count(operation) {
            return Ok(After::Ended(End::OutOfOps { why: None }));
        }
        let view = View { blobs: self.workspace.blobs(), tree: *current };
        let edit = match operation {
            Operation::Done { summary } => {
                self.folder.note(&format!("── done: {}", cut(summary, DID_BYTES_MAX)));
                return Ok(After::Ended(End::Done));
            }
            Operation::List { path } => return Ok(After::Saw(view.list(path))),
            Operation::Read { path, from, lines } => return Ok(After::Saw(view.read(path, *from, *lines))),
            Operation::Search { pattern, path } => return Ok(After::Saw(view.search(pattern, path))),
            Operation::ToolsList { level } => return Ok(After::Saw(session.tool(|desk| desk.list(level, None)))),
            Operation::ToolShow { id, level } => return Ok(After::Saw(session.tool(|desk| desk.show(id, level)))),
            Operation::ToolCall { tool, adapter, operation, params } => {
                let saw = session.call(tool, adapter.as_ref(), operation.as_ref(), params);
                self.settle(state, current)?;
                return Ok(After::Saw(saw));
            }
            Operation::Run { command } => return self.run_for(session, command, state, current, desk),
            Operation::Write { path, content, executable } => {
                agent::Operation::Write { path: path.clone(), content: content.clone(), executable: *executable }
            }
            Operation::Replace { path, old, new } => {
                agent::Operation::Replace { path: path.clone(), old: old.clone(), new: new.clone() }
            }
            Operation::Delete { path } => agent::Operation::Delete { path: path.clone() },
        };
        let saw = allowed(&view, &edit, state.agreed.config.max_file_bytes)
            .and_then(|()| self.edit(&edit, state, *current).map_err(|failure| failure.message));
        let status = if saw.is_ok() { "success" } else { "error" };
        session.book.add(done(&edit, status, None, None));
        if saw.is_err() {
            // It may have been begun.
            self.settle(state, current)?;
        }
        Ok(After::Saw(saw.map(|after| {
            let is_same = after == *current;
            *current = after;
            if is_same { "done; it was the same before".to_owned() } else { "done".to_owned() }
        })))
    }

    fn run_for(
        &mut self,
        session: &Session,
        command: &[String],
        state: &State,
        current: &mut Digest,
        desk: &dyn Desk,
    ) -> Done<After> {
        let bytes: usize = command.iter().map(String::len).sum();
        let is_word = |word: &String| !word.contains('\0');
        let is_good = command.first().is_some_and(|first| !first.is_empty()) && command.iter().all(is_word);
        if !is_good || command.len() > WORDS_MAX || bytes > COMMAND_BYTES_MAX {
            let operation = agent::Operation::Run { command: vec![cut(&command.join(" "), DID_BYTES_MAX)] };
            session.book.add(done(&operation, "error", None, None));
            return Ok(After::Saw(Err("this is no command: a program and its arguments, one by one".to_owned())));
        }
        let left = session.within.until.saturating_duration_since(Instant::now());
        let (op, ran) = self.run_program(command, state, millis(left).max(1), desk)?;
        session.book.add(op);
        self.settle(state, current)?;
        Ok(match &ran.report.ended {
            Ended::TimedOut => After::Ended(End::TimedOut),
            Ended::Cancelled => After::Ended(stopped()),
            Ended::Exited(0) => After::Saw(Ok(put_out(&ran))),
            Ended::Exited(code) => After::Saw(Err(format!("it ended with code {code}\n{}", put_out(&ran)))),
            _ => {
                let why = failure_of(&ran).map(|(_, why)| why).unwrap_or_default();
                After::Saw(Err(format!("{why}\n{}", put_out(&ran))))
            }
        })
    }

    /// What others have made of the stage is what the next operation stands on.
    fn settle(&mut self, state: &State, current: &mut Digest) -> Done<()> {
        self.stage(state)?;
        if let Some(stage) = &self.stage {
            *current = stage.seal(&self.workspace)?.after;
        }
        Ok(())
    }
}

impl Session {
    /// Asks; what is no answer is how the act ends.
    fn ask(&self, signature: &Signature, input: &Value) -> Done<Result<Value, End>> {
        let (way, rollout) = (Way::catalogue(signature.clone()), Rollout::default());
        let Predicted { outcome, .. } = predict(&self.line, &self.whom, &way, &rollout, input, Some(&self.within))?;
        if matches!(outcome.status, Status::Succeeded | Status::Partial) {
            return Ok(Ok(outcome.output));
        }
        let Some(Stop { reason_code, message, is_denied }) = outcome.error else {
            return Ok(Err(failed("no model answered")));
        };
        Ok(Err(if is_denied {
            End::Denied(Denial { reason_code, message })
        } else if self.gone.load(Ordering::SeqCst) {
            stopped()
        } else if reason_code == policy::TIMEOUT {
            End::TimedOut
        } else {
            failed(format!("{reason_code}: {message}"))
        }))
    }

    /// Counts an operation; whether it may be made.
    fn count(&mut self, operation: &Operation) -> bool {
        // A call of a tool is counted once more where it is made, with the same outcome.
        let is_call = matches!(operation, Operation::ToolCall { .. }) && self.tools.is_some();
        let is_repeated = self.book.recorded().is_some();
        if self.ops_made >= self.ops_left || !is_call && !is_repeated && !self.book.count() {
            drop(self.book.exhaust(Exhausted::Ops));
            return false;
        }
        self.ops_made += 1;
        true
    }

    fn clean(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.redactor.redact_values(text.as_bytes()).0).into_owned()
    }

    fn tool(&self, ask: impl FnOnce(&bridge::Desk) -> Result<Value, Refused>) -> Seen {
        let tools = self.tools.as_ref().ok_or("there are no tools to be called")?;
        match ask(tools) {
            Ok(value) => Ok(value.to_string()),
            Err(refused) => {
                let told = &refused.body["error"];
                let text = |name: &str| told[name].as_str().unwrap_or_default();
                Err([text("message"), text("hint")].join("; ").trim_end_matches("; ").to_owned())
            }
        }
    }

    fn call(&self, tool: &str, adapter: Option<&String>, operation: Option<&String>, params: &str) -> Seen {
        let read = canon::parse(params.as_bytes()).ok().and_then(|value| match value {
            Value::Object(fields) => Some(fields),
            Value::Null => Some(Map::new()),
            _ => None,
        });
        // Whatever comes of it, it was an operation, and stands in the trace.
        let refuse = |why: &str| {
            let input = json!({"call": {"tool": tool, "adapter": adapter, "operation": operation, "params": params}});
            let name = format!("tool {tool}");
            self.book.add(actum_kernel::ToolOp { name, input, status: "error".into(), exit_code: None, output: None });
            Err(why.to_owned())
        };
        if self.tools.is_none() {
            return refuse("there are no tools to be called");
        }
        let Some(params) = read else { return refuse("params is no JSON object, written as a text") };
        let call = Call { tool: tool.to_owned(), adapter: adapter.cloned(), operation: operation.cloned(), params };
        self.tool(|desk| desk.call(call, &self.gone))
    }
}

/// Whether an edit may be made, before anything is touched.
fn allowed(view: &View<'_>, edit: &agent::Operation, file_bytes_max: u64) -> Result<(), String> {
    let (agent::Operation::Write { path, .. }
    | agent::Operation::Replace { path, .. }
    | agent::Operation::Delete { path }) = edit
    else {
        return Err("this is no edit".to_owned());
    };
    let tree_path = path_of(path)?;
    if tree_path.is_root() {
        return Err("the workspace itself is not a file".to_owned());
    }
    let size = match edit {
        agent::Operation::Write { content, .. } => content.len(),
        agent::Operation::Replace { new, .. } => new.len(),
        _ => 0,
    };
    if size as u64 > file_bytes_max {
        return Err(format!("{size} bytes are too much for a file, which may have {file_bytes_max}"));
    }
    match edit {
        // A link can be removed; it is not followed.
        agent::Operation::Delete { .. } => tree_path.parent().map_or(Ok(()), |folder| view.may_change(&folder)),
        _ => view.may_change(&tree_path),
    }
}

/// An operation in one line, without the contents it brings.
fn did(operation: &Operation) -> String {
    let mut value = serde_json::to_value(operation).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        for name in ["content", "old", "new"] {
            if let Some(text) = fields.get(name).and_then(Value::as_str) {
                let shown = format!("({} bytes)", text.len());
                fields.insert(name.to_owned(), json!(shown));
            }
        }
    }
    cut(&value.to_string(), DID_BYTES_MAX)
}

/// What came before, the newest first to be shown whole.
fn told(history: &[(String, Vec<Did>)]) -> Value {
    let mut left = HISTORY_BYTES_MAX;
    let mut turns: Vec<Value> = Vec::new();
    for (at, (thought, all)) in history.iter().enumerate().rev() {
        let bytes: usize = all.iter().map(|one| one.saw.len()).sum();
        let fits = left.checked_sub(bytes);
        left = fits.unwrap_or_default();
        let one = |one: &Did| {
            let saw = if fits.is_some() { one.saw.as_str() } else { "(left out; look again if you need it)" };
            json!({"did": one.did, "saw": saw})
        };
        let operations: Vec<Value> = all.iter().map(one).collect();
        turns.push(json!({"turn": at + 1, "thought": thought, "operations": operations}));
    }
    turns.reverse();
    Value::Array(turns)
}

/// The ends of what a program put out.
fn put_out(ran: &Ran) -> String {
    let end = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let from = text.ceil_char_boundary(text.len().saturating_sub(OUTPUT_BYTES_MAX));
        let cut = if from > 0 { "(only its end)\n" } else { "" };
        format!("{cut}{}", &text[from..])
    };
    let (output, errors) = (end(&ran.output.kept), end(&ran.errors.kept));
    match (output.trim().is_empty(), errors.trim().is_empty()) {
        (true, true) => "(it put out nothing)".to_owned(),
        (false, true) => output,
        (true, false) => format!("errors:\n{errors}"),
        (false, false) => format!("{output}\nerrors:\n{errors}"),
    }
}

fn word_of(end: &End) -> &str {
    match end {
        End::Denied(denial) => &denial.message,
        End::TimedOut => "it took too long",
        End::OutOfOps { why } => why.as_deref().unwrap_or("there are no operations left"),
        End::Failed { message, .. } => message,
        End::Done => "",
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(saw: usize) -> (String, Vec<Did>) {
        ("t".to_owned(), vec![Did { did: "list".to_owned(), saw: "x".repeat(saw) }])
    }

    #[test]
    fn older_turns_make_room() {
        let shown = told(&[turn(10), turn(HISTORY_BYTES_MAX - 5), turn(5)]);
        let length = |at: usize| shown[at]["operations"][0]["saw"].as_str().unwrap().len();
        assert!(length(0) > 10 && length(0) < 100, "the oldest is left out");
        assert_eq!((length(1), length(2)), (HISTORY_BYTES_MAX - 5, 5));
        assert_eq!(shown[2]["turn"], 3);
    }

    #[test]
    fn contents_are_not_told_twice() {
        let shown = did(&Operation::Write { path: "a".to_owned(), content: "secret".to_owned(), executable: false });
        assert!(shown.contains("(6 bytes)") && !shown.contains("secret"), "{shown}");
        let long = did(&Operation::List { path: "x".repeat(10_000) });
        assert!(long.len() < 2 * DID_BYTES_MAX);
    }
}
