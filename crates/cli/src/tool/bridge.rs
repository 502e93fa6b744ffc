//! What an agent in its cell may ask for: the tools it was given, level by level, and calls of them. Every call is an
//! execution that is counted while it runs, kept, and answered from the recording when the run is repeated.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::tool::Level;
use actum_kernel::ToolOp;
use actum_ledger::registry::{Item, Kind, Status};
use actum_server::{Call, Refused, Tools};
use serde_json::{Value, json};

use super::call::{Ask, Setting};
use super::change;
use crate::command::tool::{add_tools, item_at};
use crate::failure::Failure;
use crate::workspace::new_id;

/// Answers for the tools: by calling them, or from what is on record.
pub(crate) struct Desk {
    /// None when a run is repeated: then everything is on record.
    setting: Option<Setting>,
    book: Option<Book>,
}

/// What is kept of the calls of a run.
pub(crate) struct Book {
    /// How many calls may still be made.
    ops_left: u64,
    /// Answers of an earlier run that is repeated, in their order.
    recorded: Option<Answers>,
    /// The workspace's copy, if tools may change it.
    copy: Option<PathBuf>,
    made: AtomicU64,
    heard: Mutex<Heard>,
    /// Called when more was asked for than may be.
    exhausted: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// What an agent heard: what counts as operations, and everything, to be repeated.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub ops: Vec<ToolOp>,
    pub answers: Vec<Value>,
    pub is_exhausted: bool,
}

/// Recorded answers, each used once.
pub(crate) type Answers = Arc<Mutex<Vec<Value>>>;

impl Book {
    pub(crate) fn new(ops_left: u64, recorded: Option<Answers>, copy: Option<PathBuf>) -> Self {
        let (made, heard, exhausted) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Self { ops_left, recorded, copy, made, heard, exhausted }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    pub(crate) fn new(setting: Option<Setting>, book: Option<Book>) -> Self {
        Self { setting, book }
    }

    /// Ends what is still running.
    pub(crate) fn stop(&self) {
        if let Some(setting) = &self.setting {
            setting.stops.stop();
        }
    }

    /// What to do when more is asked for than may be.
    pub(crate) fn on_exhausted(&self, call: Box<dyn Fn() + Send>) {
        if let Some(book) = &self.book {
            *book.exhausted.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
        }
    }

    pub(crate) fn take_heard(&self) -> Heard {
        self.book.as_ref().map(|book| std::mem::take(&mut *book.heard())).unwrap_or_default()
    }

    fn setting(&self) -> Result<&Setting, Failure> {
        self.setting.as_ref().ok_or_else(|| Failure::new(error::INTERNAL, "a repetition asks nobody"))
    }

    fn see(&self, kind: Kind, id: &str, level: Level) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let item = setting.shelf.item(kind, id)?;
        if !setting.may(&item.tool) || item.status == Status::Blocked {
            return Err(Failure::new(error::NOT_FOUND, format!("no tool {id:?} was given to this agent")));
        }
        let mut shown = item_at(&setting.shelf, kind, &item, level)?;
        if kind == Kind::Adapter && level >= Level::L2 {
            add_tools(&mut shown, setting, &item.id)?;
        }
        Ok(shown)
    }

    fn all(&self, level: Level, tool: Option<&str>) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let usable = setting.shelf.items(Kind::Tool)?;
        let is_given = |of: &str| {
            let is_usable = |item: &Item| item.id == of && item.approved && item.status != Status::Blocked;
            setting.may(of) && tool.is_none_or(|tool| tool == of) && usable.iter().any(is_usable)
        };
        let mut shown = Vec::new();
        if level == Level::L0 {
            for head in setting.shelf.heads(Kind::Adapter)?.iter().filter(|head| is_given(&head.tool)) {
                shown.push(json!({"adapter_id": head.id, "name": head.name, "tool_id": head.tool, "type": head.form}));
            }
        } else {
            for item in setting.shelf.items(Kind::Adapter)?.iter().filter(|item| is_given(&item.tool)) {
                shown.push(item_at(&setting.shelf, Kind::Adapter, item, Level::L1)?);
            }
        }
        Ok(json!({"adapters": shown}))
    }

    /// Answers a question from the recording, or finds the answer and records it.
    fn answer(&self, input: &Value, find: impl FnOnce() -> Result<Value, Failure>) -> Result<Value, Failure> {
        let Some(book) = &self.book else { return find() };
        let answer = match &book.recorded {
            Some(recorded) => recall(recorded, input)?,
            None => match find() {
                Ok(result) => json!({"input": input, "result": result}),
                Err(failure) => json!({"input": input, "failure": failure.to_json()["error"]}),
            },
        };
        book.heard().answers.push(answer.clone());
        said(&answer)
    }

    /// One call: counted, made or recalled, and noted.
    fn make(&self, ask: &Ask, gone: &AtomicBool) -> Result<Value, Failure> {
        let input = json!({"call": {"tool": ask.tool, "adapter": ask.adapter, "operation": ask.operation, "params": ask.params}});
        let find = || {
            let setting = self.setting()?;
            let stop = || gone.load(Ordering::SeqCst);
            let copy = self.book.as_ref().and_then(|book| book.copy.as_ref()).filter(|_| setting.writes(&ask.tool));
            let before = copy.map(|copy| change::look(copy));
            let mut result = setting.call(&new_id(), ask, None, &stop)?.result;
            if let Some((copy, before)) = copy.zip(before) {
                result["changes"] = change::since(copy, &before);
            }
            Ok(result)
        };
        let Some(book) = &self.book else { return find() };
        let n = book.made.fetch_add(1, Ordering::SeqCst);
        if n >= book.ops_left {
            book.heard().is_exhausted = true;
            if let Some(call) = &*book.exhausted.lock().unwrap_or_else(PoisonError::into_inner) {
                call();
            }
            let message = "no tool operation is left to this work item";
            return Err(Failure::new(error::TOOL_DENIED, message).hint("raise max_tool_ops of the work item"));
        }
        let answered = self.answer(&input, find);
        if let (Some(copy), Some(_), Ok(result)) = (&book.copy, &book.recorded, &answered) {
            change::repeat(copy, &result["changes"]);
        }
        book.note(ask, &input, &answered);
        answered
    }
}

/// The next recorded answer to what is asked.
fn recall(recorded: &Answers, input: &Value) -> Result<Value, Failure> {
    let mut left = recorded.lock().unwrap_or_else(PoisonError::into_inner);
    match left.iter().position(|answer| answer["input"] == *input) {
        Some(at) => Ok(left.remove(at)),
        None => {
            let message = "the recording has no answer to this";
            Err(Failure::new(error::TOOL_DENIED, message)
                .hint("the run asks for something that it did not ask for before"))
        }
    }
}

/// What an answer says: a result, or a refusal as it was told.
fn said(answer: &Value) -> Result<Value, Failure> {
    let Some(failure) = answer.get("failure") else { return Ok(answer["result"].clone()) };
    let text = |key: &str| failure[key].as_str().unwrap_or_default().to_owned();
    let told = Failure::new(&text("code"), text("message")).details(failure["details"].clone());
    Err(match failure["hint"].as_str() {
        Some(hint) => told.hint(hint),
        None => told,
    })
}

impl Book {
    /// What the trace says of a call. What differs each time is not part of it.
    fn note(&self, ask: &Ask, input: &Value, answered: &Result<Value, Failure>) {
        let (result, refusal) = match answered {
            Ok(result) => (result.clone(), Value::Null),
            Err(failure) => (Value::Null, json!(failure.message)),
        };
        let known = |key: &str| result["evidence"][key].clone();
        let lasting = json!({
            "status": result["status"], "output": result["output"], "stdout": result["stdout"], "error": result["error"],
            "refusal": refusal, "changes": result["changes"],
        });
        let output = canon::canonical(&lasting).map(|text| Digest::blake3(&text).to_hex()).unwrap_or_default();
        let is_well = result["status"] == "success";
        let op = ToolOp {
            name: format!("tool {}", ask.tool),
            input: json!({"call": input["call"], "tool": known("tool"), "adapters": known("adapters")}),
            status: if is_well { "success".into() } else { "error".into() },
            exit_code: result["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok()),
            output: Some(output),
        };
        self.heard().ops.push(op);
    }
}

fn refused(failure: &Failure) -> Refused {
    Refused { status: failure.row.status, body: failure.to_json() }
}

impl Tools for Desk {
    fn list(&self, level: &str, tool: Option<&str>) -> Result<Value, Refused> {
        let level = Level::named(level).unwrap_or(Level::L0);
        let input = json!({"list": level.word(), "tool": tool});
        self.answer(&input, || self.all(level, tool)).map_err(|failure| refused(&failure))
    }

    fn show(&self, id: &str, level: &str) -> Result<Value, Refused> {
        let level = Level::named(level).unwrap_or(Level::L1);
        let input = json!({"show": id, "level": level.word()});
        let find = || self.see(Kind::Tool, id, level).or_else(|_| self.see(Kind::Adapter, id, level));
        self.answer(&input, find).map_err(|failure| refused(&failure))
    }

    fn call(&self, call: Call, cancelled: &Arc<AtomicBool>) -> Result<Value, Refused> {
        let Call { tool, adapter, operation, params } = call;
        let made = self.make(&Ask { tool, adapter, operation, params }, cancelled);
        let mut result = made.map_err(|failure| refused(&failure))?;
        // What the host saw of the cell is no business of the agent's.
        if let Some(fields) = result.as_object_mut() {
            ["evidence", "changes"].iter().for_each(|name| drop(fields.remove(*name)));
        }
        Ok(result)
    }
}
