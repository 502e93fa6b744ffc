//! What an agent in its cell may ask for: the tools it was given, level by level, and calls of them. Every call is an
//! execution that is counted while it runs, kept, and answered from the recording when the run is repeated.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
use crate::command::tool::item_at;
use crate::failure::Failure;
use crate::workspace::new_id;

/// Answers for the tools: by calling them, or from what is on record.
pub(crate) struct Desk {
    /// None when a run is repeated: then everything is on record.
    setting: Option<Setting>,
    book: Option<Book>,
}

/// What is kept of the calls of an act.
pub(crate) struct Book {
    /// How many calls may still be made.
    ops_left: u64,
    /// Answers of an earlier run that is repeated, in their order.
    recorded: Option<Answers>,
    /// The workspace's copy, if tools may change it.
    copy: Option<PathBuf>,
    made: AtomicU64,
    /// Of all answers of the run so far.
    bytes: AtomicUsize,
    /// Where each call is noted before it is made: whoever dies in the middle has made it all the same.
    intents: Option<PathBuf>,
    heard: Mutex<Inside>,
    /// Called when more was asked for than may be.
    exhausted: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// What an agent heard: what counts as operations, and everything, to be repeated.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub ops: Vec<ToolOp>,
    pub answers: Vec<Value>,
    pub exhausted: Option<Exhausted>,
    /// What a repetition asked for without there being an answer.
    pub strange: Option<Value>,
    /// What the run had asked next at that moment.
    pub unasked: Value,
}

/// What an agent asked for too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exhausted {
    Ops,
    Bytes,
}

#[derive(Debug, Default)]
struct Inside {
    heard: Heard,
    /// The place of each operation's answer: those that ran at the same time end in another order each time.
    places: Vec<usize>,
    /// Answers of the registry by what was asked.
    looks: HashMap<String, Value>,
}

/// Answers that are kept of a run, in bytes of JSON: its recording has to be read again. An agent that asks for more has
/// asked for too much.
pub(crate) const ANSWERS_BYTES_MAX: usize = 40 << 20;

/// Recorded answers with their places, each used once. Those of one act end with `OVER`.
pub(crate) type Answers = Arc<Mutex<Vec<(usize, Value)>>>;

/// Separates the answers of an act from those of the next.
const OVER: &str = "act_is_over";

/// Different looks into the registry that are answered in one act.
const LOOKS_MAX: usize = 10_000;

/// How often it is looked whether the caller is gone who went before he was answered.
const CUT_LOOK: Duration = Duration::from_millis(20);

/// The mark behind the answers of an act.
pub(crate) fn over() -> Value {
    json!({ OVER: true })
}

impl Book {
    pub(crate) fn new(
        ops_left: u64,
        recorded: Option<Answers>,
        copy: Option<PathBuf>,
        intents: Option<PathBuf>,
        bytes: usize,
    ) -> Self {
        let (made, heard, exhausted) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Self { ops_left, recorded, copy, made, bytes: AtomicUsize::new(bytes), intents, heard, exhausted }
    }

    /// Notes a call that is about to be made. What cannot be noted is not made.
    fn intend(&self) -> Result<(), Failure> {
        let Some(path) = &self.intents else { return Ok(()) };
        let note = || -> std::io::Result<()> {
            let mut file = std::fs::File::options().append(true).create(true).open(path)?;
            file.write_all(b"call\n")?;
            file.sync_data()
        };
        note().map_err(|e| Failure::new(error::FILE, format!("a call cannot be noted: {e}")))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look: asked twice in an act, it is answered alike, and kept once.
    fn look(&self, input: &Value, find: impl FnOnce() -> Result<Value, Failure>) -> Result<Value, Failure> {
        let asked = input.to_string();
        if let Some(known) = self.inside().looks.get(&asked) {
            return said(known);
        }
        let answer = match &self.recorded {
            Some(recorded) => match recall(recorded, input) {
                Some((_, answer)) => answer,
                None => return Err(self.wonder(input)),
            },
            None => answer_of(input, &find()),
        };
        let mut inside = self.inside();
        if let Some(known) = inside.looks.get(&asked) {
            return said(known);
        }
        let bytes = answer.to_string().len();
        if inside.looks.len() >= LOOKS_MAX || self.bytes.load(Ordering::SeqCst) + bytes > ANSWERS_BYTES_MAX {
            return Err(Failure::new(error::TOOL_DENIED, "there were too many questions"));
        }
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        inside.heard.answers.push(answer.clone());
        inside.looks.insert(asked, answer.clone());
        said(&answer)
    }

    /// A call of a run that is repeated.
    fn repeat(&self, recorded: &Answers, input: &Value, gone: &AtomicBool) -> Result<Value, Failure> {
        match recall(recorded, input) {
            Some((place, answer)) => {
                self.change(&answer);
                self.note(place, &answer);
                // Whoever asked was gone before he heard anything, and goes again.
                while answer["cut"] == true && !gone.load(Ordering::SeqCst) {
                    std::thread::sleep(CUT_LOOK);
                }
                said(&answer)
            }
            None if first_act(&lock(recorded)).iter().any(|(_, answer)| answer["exhausted"] == true) => {
                Err(self.exhaust(Exhausted::Ops))
            }
            None => {
                let failure = self.wonder(input);
                self.note(usize::MAX, &answer_of(input, &Err(Failure::new(error::TOOL_DENIED, &failure.message))));
                Err(failure)
            }
        }
    }

    /// Something that was not asked for before.
    fn wonder(&self, input: &Value) -> Failure {
        let next = self.recorded.as_ref().map(|recorded| {
            first_act(&lock(recorded)).first().map_or(Value::Null, |(_, answer)| answer["input"].clone())
        });
        let mut inside = self.inside();
        if inside.heard.strange.is_none() {
            inside.heard.strange = Some(input.clone());
            inside.heard.unasked = next.unwrap_or_default();
        }
        Failure::new(error::TOOL_DENIED, "the recording has no answer to this")
            .hint("the run asks for something that it did not ask for before")
    }

    fn exhaust(&self, how: Exhausted) -> Failure {
        let is_first = {
            let mut inside = self.inside();
            let is_first = inside.heard.exhausted.is_none();
            inside.heard.exhausted.get_or_insert(how);
            is_first
        };
        if is_first {
            self.inside().heard.answers.push(json!({"exhausted": true}));
            // Once: who is asked twice is not waited for.
            if let Some(call) = &*self.exhausted.lock().unwrap_or_else(PoisonError::into_inner) {
                call();
            }
        }
        let (message, hint) = match how {
            Exhausted::Ops => ("no tool operation is left to this work item", "raise max_tool_ops of the work item"),
            Exhausted::Bytes => ("the answers of this run are too much together", "ask for less at a time"),
        };
        Failure::new(error::TOOL_DENIED, message).hint(hint)
    }

    fn note(&self, place: usize, answer: &Value) {
        let bytes = answer.to_string().len();
        // The same answers are too much again when the run is repeated.
        if self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes > ANSWERS_BYTES_MAX {
            drop(self.exhaust(Exhausted::Bytes));
        }
        let mut inside = self.inside();
        inside.heard.answers.push(answer.clone());
        inside.heard.ops.push(op_of(answer));
        inside.places.push(place);
    }

    /// Changes the copy as the tool did.
    fn change(&self, answer: &Value) {
        if let Some(copy) = &self.copy {
            change::repeat(copy, &answer["result"]["changes"]);
        }
    }

    /// Everything, when the act is over. What nobody waited for any more is repeated without being asked for: whether it
    /// is depends on who is faster.
    fn take(&self) -> Heard {
        if let Some(recorded) = &self.recorded {
            let mut left = lock(recorded);
            // Recordings without marks hold the answers of later acts too.
            let end = left.iter().position(|(_, answer)| answer[OVER] == true);
            let rest: Vec<_> = left.drain(..end.map_or(0, |end| end + 1)).collect();
            drop(left);
            let is_exhausted = self.inside().heard.exhausted.is_some();
            let unheard =
                |answer: &Value| answer["input"]["call"].is_object() && (answer["cut"] == true || is_exhausted);
            for (place, answer) in rest.iter().filter(|(_, answer)| unheard(answer)) {
                self.change(answer);
                self.note(*place, answer);
            }
        }
        let Inside { mut heard, places, .. } = std::mem::take(&mut *self.inside());
        let mut ops: Vec<_> = places.into_iter().zip(heard.ops).collect();
        ops.sort_by_key(|(place, _)| *place);
        heard.ops = ops.into_iter().map(|(_, op)| op).collect();
        heard
    }
}

fn lock(recorded: &Answers) -> MutexGuard<'_, Vec<(usize, Value)>> {
    recorded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is left of the act at hand.
fn first_act(left: &[(usize, Value)]) -> &[(usize, Value)] {
    let end = left.iter().position(|(_, answer)| answer[OVER] == true);
    &left[..end.unwrap_or(left.len())]
}

/// Whether a tool may be called at all.
pub(crate) fn is_usable(tool: &Item) -> bool {
    tool.approved && tool.status != Status::Blocked
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
        self.book.as_ref().map(Book::take).unwrap_or_default()
    }

    fn setting(&self) -> Result<&Setting, Failure> {
        self.setting.as_ref().ok_or_else(|| Failure::new(error::INTERNAL, "a repetition asks nobody"))
    }

    fn see(&self, kind: Kind, id: &str, level: Level) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let item = setting.shelf.item(kind, id)?;
        let is_given = match kind {
            Kind::Tool => is_usable(&item),
            Kind::Adapter => {
                item.status != Status::Blocked
                    && setting.shelf.item(Kind::Tool, &item.tool).is_ok_and(|tool| is_usable(&tool))
            }
        };
        if !setting.may(&item.tool) || !is_given {
            // The same words as for one that is not there.
            let failure = Failure::new(error::NOT_FOUND, format!("no {} {id:?} is registered", kind.word()));
            return Err(failure.hint("`actum adapter list` shows what is"));
        }
        let mut shown = item_at(&setting.shelf, kind, &item, level)?;
        if kind == Kind::Adapter && level >= Level::L2 {
            // Whoever only looks starts nothing: what is known already is shown.
            if let Some(tools) = setting.schemas_known(&setting.shelf.adapter(&item.id)?) {
                shown["tools"] = tools;
            }
        }
        Ok(shown)
    }

    fn all(&self, level: Level, tool: Option<&str>) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let usable = setting.shelf.items(Kind::Tool)?;
        let is_given = |item: &&Item| {
            let of = &item.tool;
            let is_usable = |tool: &Item| tool.id == *of && is_usable(tool);
            let is_wanted = setting.may(of) && tool.is_none_or(|tool| tool == of);
            is_wanted && item.status != Status::Blocked && usable.iter().any(is_usable)
        };
        let mut shown = Vec::new();
        for item in setting.shelf.items(Kind::Adapter)?.iter().filter(is_given) {
            shown.push(item_at(&setting.shelf, Kind::Adapter, item, level.min(Level::L1))?);
        }
        Ok(json!({"adapters": shown}))
    }

    fn look(&self, input: &Value, find: impl FnOnce() -> Result<Value, Failure>) -> Result<Value, Failure> {
        match &self.book {
            None => find(),
            Some(book) => book.look(input, find),
        }
    }

    /// One call: counted, made or recalled, and noted.
    fn make(&self, ask: &Ask, gone: &AtomicBool) -> Result<Value, Failure> {
        let Some(book) = &self.book else { return self.find(ask, gone) };
        let input = json!({"call": {"tool": ask.tool, "adapter": ask.adapter, "operation": ask.operation, "params": ask.params}});
        // What cannot be hashed cannot be traced.
        canon::canonical(&input).map_err(|e| Failure::new(error::INPUT, e.to_string()))?;
        if let Some(recorded) = &book.recorded {
            return book.repeat(recorded, &input, gone);
        }
        if book.made.fetch_add(1, Ordering::SeqCst) >= book.ops_left {
            return Err(book.exhaust(Exhausted::Ops));
        }
        book.intend()?;
        let found = self.find(ask, gone);
        let mut answer = answer_of(&input, &found);
        if gone.load(Ordering::SeqCst) || self.setting.as_ref().is_some_and(|setting| setting.stops.is_stopped()) {
            answer["cut"] = json!(true);
        }
        book.note(usize::MAX, &answer);
        found
    }

    fn find(&self, ask: &Ask, gone: &AtomicBool) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let stop = || gone.load(Ordering::SeqCst);
        let copy = self.book.as_ref().and_then(|book| book.copy.as_ref()).filter(|_| setting.writes(&ask.tool));
        let before = copy.map(|copy| change::look(copy));
        let mut result = setting.call(&new_id(), ask, None, &stop)?.result;
        if let Some((copy, before)) = copy.zip(before) {
            result["changes"] = change::since(copy, &before);
        }
        Ok(result)
    }
}

/// The next recorded answer of this act to what is asked, with its place.
fn recall(recorded: &Answers, input: &Value) -> Option<(usize, Value)> {
    let mut left = lock(recorded);
    let at = first_act(&left).iter().position(|(_, answer)| answer["input"] == *input)?;
    Some(left.remove(at))
}

fn answer_of(input: &Value, found: &Result<Value, Failure>) -> Value {
    match found {
        Ok(result) => {
            let mut result = result.clone();
            // What came out as it is, is not kept twice.
            if result["output"].is_string() && result["output"] == result["stdout"] {
                result["stdout"] = Value::Null;
            }
            json!({"input": input, "result": result})
        }
        Err(failure) => json!({"input": input, "failure": failure.to_json()["error"]}),
    }
}

/// What an answer says: a result, or a refusal as it was told.
fn said(answer: &Value) -> Result<Value, Failure> {
    let Some(failure) = answer.get("failure") else {
        let mut result = answer["result"].clone();
        if result.get("stdout").is_some_and(Value::is_null) {
            result["stdout"] = result["output"].clone();
        }
        return Ok(result);
    };
    let text = |key: &str| failure[key].as_str().unwrap_or_default().to_owned();
    let told = Failure::new(&text("code"), text("message")).details(failure["details"].clone());
    Err(match failure["hint"].as_str() {
        Some(hint) => told.hint(hint),
        None => told,
    })
}

/// What the trace says of a call. What differs each time is not part of it.
fn op_of(answer: &Value) -> ToolOp {
    let (call, result) = (&answer["input"]["call"], &answer["result"]);
    let known = |key: &str| result["evidence"][key].clone();
    let lasting = json!({
        "status": result["status"], "output": result["output"], "stdout": result["stdout"], "error": result["error"],
        "refusal": answer["failure"]["message"], "changes": result["changes"],
    });
    let output = canon::canonical(&lasting).map(|text| Digest::blake3(&text).to_hex()).unwrap_or_default();
    let is_well = result["status"] == "success";
    ToolOp {
        name: format!("tool {}", call["tool"].as_str().unwrap_or_default()),
        input: json!({"call": call, "tool": known("tool"), "adapters": known("adapters")}),
        status: if is_well { "success".into() } else { "error".into() },
        exit_code: result["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok()),
        output: Some(output),
    }
}

fn refused(failure: &Failure) -> Refused {
    Refused { status: failure.row.status, body: failure.to_json() }
}

impl Tools for Desk {
    fn list(&self, level: &str, tool: Option<&str>) -> Result<Value, Refused> {
        let level = Level::named(level).unwrap_or(Level::L0);
        let input = json!({"list": level.word(), "tool": tool});
        self.look(&input, || self.all(level, tool)).map_err(|failure| refused(&failure))
    }

    fn show(&self, id: &str, level: &str) -> Result<Value, Refused> {
        let level = Level::named(level).unwrap_or(Level::L1);
        let input = json!({"show": id, "level": level.word()});
        let find = || self.see(Kind::Tool, id, level).or_else(|_| self.see(Kind::Adapter, id, level));
        self.look(&input, find).map_err(|failure| refused(&failure))
    }

    fn call(&self, call: Call, cancelled: &Arc<AtomicBool>) -> Result<Value, Refused> {
        let Call { tool, adapter, operation, params } = call;
        let made = self.make(&Ask { tool, adapter, operation, params, input: None }, cancelled);
        let mut result = made.map_err(|failure| refused(&failure))?;
        // What the host saw of the cell is no business of the agent's.
        if let Some(fields) = result.as_object_mut() {
            ["evidence", "changes"].iter().for_each(|name| drop(fields.remove(*name)));
        }
        Ok(result)
    }
}
