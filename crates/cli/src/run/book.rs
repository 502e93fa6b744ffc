//! What an agent heard while it acted, of its tools and of models: kept, counted and bounded, so that the run can be
//! repeated from it; and in a repetition, where the answers come from.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_kernel::{Denial, MODEL, ToolOp};
use actum_predict::protocol::Question;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::tool::change;

/// What is kept of what an act asked for.
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
    /// Whether models were offered tools in the run that is repeated: then that is the work, and the rest beside it.
    has_work: bool,
    /// Ends the agent, who asked for more than he may have.
    stop: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Whether it was told to: told twice it would be killed, and could not say how it ended.
    is_ended: AtomicBool,
}

/// What an agent heard: what counts as operations, and everything, to be repeated.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub ops: Vec<ToolOp>,
    pub answers: Vec<Value>,
    pub exhausted: Option<Exhausted>,
    /// What the policy said no to.
    pub denied: Option<Denial>,
    /// Questions of a repetition that were answered because it was their turn: by their words they were others.
    pub by_order: u64,
    /// Questions beside the work that were asked in the run or in its repetition, and not in both.
    pub asides: u64,
    /// What a repetition asked for without there being an answer.
    pub strange: Option<Value>,
    /// What the run had asked next at that moment.
    pub unasked: Value,
    /// Why it was not answered although it could have been: the store was away.
    pub silence: Option<String>,
}

/// By what a question to a model is found again.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    pub exact: String,
    /// The same for all that ask the same model with the same tools.
    pub kind: String,
    /// Whether it offers no tools.
    pub is_aside: bool,
}

impl Words {
    pub(crate) fn of(question: &Question) -> Self {
        Self { exact: question.exact_key(), kind: question.kind_key(), is_aside: !question.has_tools() }
    }
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

/// A look at which models there are.
pub(crate) const MODELS: &str = "models";

/// Stands before the answers of an act without tools.
const TOOLS: &str = "tools";

/// Separates the answers of an act from those of the next.
const OVER: &str = "act_is_over";

/// Different looks into the registry that are answered in one act.
const LOOKS_MAX: usize = 10_000;

/// How often it is looked whether the caller is gone who went before he was answered.
const CUT_LOOK: Duration = Duration::from_millis(20);

/// Whether a recorded run was offered tools. Recordings say so only if it was not.
pub(crate) fn had_tools(answers: &[Value]) -> bool {
    !answers.iter().any(|answer| answer[TOOLS] == false)
}

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
        let (made, heard, stop) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        let is_work = |answer: &Value| answer["input"]["model"].is_object() && answer["aside"] != true;
        let has_work = recorded.as_ref().is_some_and(|left| lock(left).iter().any(|(_, answer)| is_work(answer)));
        let (bytes, is_ended) = (AtomicUsize::new(bytes), AtomicBool::new(false));
        Self { ops_left, recorded, copy, made, bytes, intents, heard, has_work, stop, is_ended }
    }

    /// The agent was told that something failed, and what failed is the store.
    pub(crate) fn fell_silent(&self, why: &str) {
        self.inside().heard.silence.get_or_insert_with(|| why.to_owned());
    }

    /// Notes a call that is about to be made. What cannot be noted is not made.
    pub(crate) fn intend(&self) -> Result<(), Failure> {
        let Some(path) = &self.intents else { return Ok(()) };
        let note = || -> std::io::Result<()> {
            let mut file = std::fs::File::options().append(true).create(true).open(path)?;
            file.write_all(b"call\n")?;
            file.sync_data()
        };
        note().map_err(|e| Failure::of_io(format!("a call cannot be noted: {e}"), &e))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look: asked twice in an act, it is answered alike, and kept once.
    pub(crate) fn look(&self, input: &Value, find: impl FnOnce() -> Result<Value, Failure>) -> Result<Value, Failure> {
        let asked = input.to_string();
        if let Some(known) = self.inside().looks.get(&asked) {
            return said(known);
        }
        let answer = match &self.recorded {
            Some(recorded) => match recall(recorded, input) {
                Some((_, answer)) => answer,
                // Some clients look only if they have the time, and none of them works by that.
                None if input.get(MODELS).is_some() => return Err(not_recorded()),
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
    pub(crate) fn repeat(&self, recorded: &Answers, input: &Value, gone: &AtomicBool) -> Result<Value, Failure> {
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

    /// Whether this is a repetition, and where its answers are.
    pub(crate) fn recorded(&self) -> Option<&Answers> {
        self.recorded.as_ref()
    }

    /// The workspace's copy, if tools may change it.
    pub(crate) fn copy(&self) -> Option<&PathBuf> {
        self.copy.as_ref()
    }

    /// Counts a call that is about to be made; whether it may be.
    pub(crate) fn count(&self) -> bool {
        self.made.fetch_add(1, Ordering::SeqCst) < self.ops_left
    }

    /// What to do with an agent that asks for more than it may have.
    pub(crate) fn on_end(&self, stop: Box<dyn Fn() + Send>) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop);
        self.is_ended.store(false, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = stop.as_ref().filter(|_| !self.is_ended.swap(true, Ordering::SeqCst)) {
            stop();
        }
    }

    /// Notes that no tools were offered, for whoever repeats this.
    pub(crate) fn without_tools(&self) {
        self.inside().heard.answers.push(json!({ TOOLS: false }));
    }

    /// Keeps a no of the policy: the first one counts.
    pub(crate) fn deny(&self, denial: Denial) {
        self.inside().heard.denied.get_or_insert(denial);
    }

    pub(crate) fn denied(&self) -> Option<Denial> {
        self.inside().heard.denied.clone()
    }

    /// What a model answered in the run that is repeated: to the very same question, to one that differs only in what
    /// differs each time, or to the next one of its kind.
    pub(crate) fn recall_model(&self, asked: &Value, words: &Words) -> Option<(usize, Value)> {
        let mut left = lock(self.recorded.as_ref()?);
        let act = first_act(&left);
        let find = |is: &dyn Fn(&Value) -> bool| {
            act.iter().position(|(_, answer)| answer["input"]["model"].is_object() && is(answer))
        };
        let same = |answer: &Value| answer["input"] == *asked;
        let kind = |answer: &Value| answer["kind"] == words.kind;
        let by_words = find(&|answer| same(answer) && answer["exact"] == words.exact).or_else(|| find(&same));
        let at = by_words.or_else(|| find(&kind))?;
        let found = left.remove(at);
        drop(left);
        if by_words.is_none() {
            self.inside().heard.by_order += 1;
        }
        Some(found)
    }

    /// A question that was not asked before. Beside the work it is nobody's loss: whether a client gets to ask for a title
    /// before it has ended depends on who is faster. If it had consequences, they are seen.
    pub(crate) fn wonder_at_model(&self, input: &Value, words: &Words) -> Failure {
        if words.is_aside && self.has_work {
            self.inside().heard.asides += 1;
            return not_recorded();
        }
        self.wonder(input)
    }

    /// Something that was not asked for before.
    pub(crate) fn wonder(&self, input: &Value) -> Failure {
        let next = self.recorded.as_ref().map(|recorded| {
            first_act(&lock(recorded)).first().map_or(Value::Null, |(_, answer)| answer["input"].clone())
        });
        let mut inside = self.inside();
        if inside.heard.strange.is_none() {
            inside.heard.strange = Some(input.clone());
            inside.heard.unasked = next.unwrap_or_default();
        }
        not_recorded().hint("the run asks for something that it did not ask for before")
    }

    pub(crate) fn exhaust(&self, how: Exhausted) -> Failure {
        let is_first = {
            let mut inside = self.inside();
            let is_first = inside.heard.exhausted.is_none();
            inside.heard.exhausted.get_or_insert(how);
            is_first
        };
        if is_first {
            self.inside().heard.answers.push(json!({"exhausted": true}));
            // Once: who is asked twice is not waited for.
            self.end();
        }
        let (message, hint) = match how {
            Exhausted::Ops => ("no tool operation is left to this work item", "raise max_tool_ops of the work item"),
            Exhausted::Bytes => ("the answers of this run are too much together", "ask for less at a time"),
        };
        Failure::new(error::TOOL_DENIED, message).hint(hint)
    }

    /// Whether more was asked for than there is.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.inside().heard.exhausted.is_some()
    }

    /// Notes an operation that is done again when the run is repeated, in its place among those that are not.
    pub(crate) fn add(&self, op: ToolOp) {
        let mut inside = self.inside();
        let place = inside.places.last().copied().unwrap_or_default();
        inside.heard.ops.push(op);
        inside.places.push(place);
    }

    pub(crate) fn note(&self, place: usize, answer: &Value) {
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
    pub(crate) fn take(&self) -> Heard {
        if let Some(recorded) = &self.recorded {
            let mut left = lock(recorded);
            // Recordings without marks hold the answers of later acts too.
            let end = left.iter().position(|(_, answer)| answer[OVER] == true);
            let rest: Vec<_> = left.drain(..end.map_or(0, |end| end + 1)).collect();
            drop(left);
            let is_ended = {
                let heard = &self.inside().heard;
                heard.exhausted.is_some() || heard.denied.is_some()
            };
            let counts = |answer: &Value| answer["input"]["call"].is_object() || answer["input"]["model"].is_object();
            let is_aside = |answer: &Value| answer["aside"] == true && self.has_work;
            let unheard = |answer: &Value| counts(answer) && (answer["cut"] == true || is_ended || is_aside(answer));
            for (place, answer) in rest.iter().filter(|(_, answer)| unheard(answer)) {
                self.change(answer);
                self.note(*place, answer);
                if is_aside(answer) && !is_ended {
                    self.inside().heard.asides += 1;
                    let denial = serde_json::from_value(answer["trouble"].clone()).ok();
                    denial.filter(|_| answer["denied"] == true).map(|denial| self.deny(denial)).unwrap_or_default();
                }
            }
        }
        let Inside { mut heard, places, .. } = std::mem::take(&mut *self.inside());
        let mut ops: Vec<_> = places.into_iter().zip(heard.ops).collect();
        ops.sort_by_key(|(place, _)| *place);
        heard.ops = ops.into_iter().map(|(_, op)| op).collect();
        heard
    }
}

fn not_recorded() -> Failure {
    Failure::new(error::TOOL_DENIED, "the recording has no answer to this")
}

fn lock(recorded: &Answers) -> MutexGuard<'_, Vec<(usize, Value)>> {
    recorded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is left of the act at hand.
fn first_act(left: &[(usize, Value)]) -> &[(usize, Value)] {
    let end = left.iter().position(|(_, answer)| answer[OVER] == true);
    &left[..end.unwrap_or(left.len())]
}

/// The next recorded answer of this act to what is asked, with its place.
fn recall(recorded: &Answers, input: &Value) -> Option<(usize, Value)> {
    let mut left = lock(recorded);
    let at = first_act(&left).iter().position(|(_, answer)| answer["input"] == *input)?;
    Some(left.remove(at))
}

pub(crate) fn answer_of(input: &Value, found: &Result<Value, Failure>) -> Value {
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
    if answer["input"]["model"].is_object() {
        return model_op(answer);
    }
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

/// The same for a question to a model. What differs each time is masked in its key.
fn model_op(answer: &Value) -> ToolOp {
    let (asked, told) = (&answer["input"]["model"], &answer["answer"]);
    let body = told["body"].as_str().or_else(|| told["hex"].as_str()).unwrap_or_default();
    let is_well = told["status"].as_u64().is_some_and(|status| (200..300).contains(&status));
    ToolOp {
        name: format!("{MODEL}{}", asked["model"].as_str().unwrap_or_default()),
        input: asked.clone(),
        status: if is_well { "success".into() } else { "error".into() },
        exit_code: None,
        output: Some(Digest::blake3(body.as_bytes()).to_hex()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(exact: &str, kind: &str) -> Words {
        Words { exact: exact.into(), kind: kind.into(), is_aside: kind == "title" }
    }

    fn asked(key: &str) -> Value {
        json!({"model": {"protocol": "chat_completions", "model": "m", "key": key}})
    }

    /// An exchange as it is kept.
    fn kept(key: &str, exact: &str, kind: &str) -> Value {
        let answer = json!({"status": 200, "content_type": "application/json", "body": exact});
        let mut kept = json!({"input": asked(key), "exact": exact, "kind": kind, "answer": answer});
        if kind == "title" {
            kept["aside"] = json!(true);
        }
        kept
    }

    fn book(answers: &[Value]) -> Book {
        let answers = answers.iter().cloned().chain([over()]).enumerate().collect();
        Book::new(10, Some(Arc::new(Mutex::new(answers))), None, None, 0)
    }

    fn recall(book: &Book, key: &str, words: &Words) -> Option<String> {
        let (place, kept) = book.recall_model(&asked(key), words)?;
        book.note(place, &kept);
        kept["exact"].as_str().map(ToOwned::to_owned)
    }

    #[test]
    fn the_same_words_come_first_then_the_same_but_for_masks_then_the_order() {
        let book = book(&[kept("k", "one", "work"), kept("k", "two", "work"), kept("l", "three", "work")]);
        assert_eq!(recall(&book, "k", &words("two", "work")).as_deref(), Some("two"));
        assert_eq!(recall(&book, "l", &words("other", "work")).as_deref(), Some("three"));
        assert_eq!(recall(&book, "strange", &words("other", "work")).as_deref(), Some("one"));
        assert_eq!(recall(&book, "k", &words("one", "work")), None, "each is told once");
        let heard = book.take();
        assert_eq!((heard.by_order, heard.asides, heard.ops.len()), (1, 0, 3));
        let outputs: Vec<_> = heard.ops.into_iter().filter_map(|op| op.output).collect();
        let expected = ["one", "two", "three"].map(|body| Digest::blake3(body.as_bytes()).to_hex());
        assert_eq!(outputs, expected, "in the order of the run");
    }

    #[test]
    fn a_question_beside_the_work_never_gets_the_answer_of_the_work() {
        let book = book(&[kept("k", "one", "work")]);
        assert_eq!(recall(&book, "t", &words("title please", "title")), None);
        drop(book.wonder_at_model(&asked("t"), &words("title please", "title")));
        assert_eq!(recall(&book, "k", &words("one", "work")).as_deref(), Some("one"));
        let heard = book.take();
        assert_eq!((heard.asides, heard.by_order, heard.strange), (1, 0, None));
        assert_eq!(heard.ops.len(), 1, "the trace is that of the run");
    }

    #[test]
    fn a_question_beside_the_work_that_is_not_asked_again_stays_in_the_trace() {
        let book = book(&[kept("t", "title please", "title"), kept("k", "one", "work"), kept("k", "two", "work")]);
        assert_eq!(recall(&book, "k", &words("one", "work")).as_deref(), Some("one"));
        let heard = book.take();
        // The second question of the work is missing, and that is a difference.
        assert_eq!((heard.asides, heard.ops.len()), (1, 2));
    }

    #[test]
    fn where_nothing_is_the_work_everything_is() {
        let book = book(&[kept("t", "one", "title"), kept("t", "two", "title")]);
        assert_eq!(recall(&book, "t", &words("one", "title")).as_deref(), Some("one"));
        drop(book.wonder_at_model(&asked("x"), &words("new", "title")));
        let heard = book.take();
        assert_eq!((heard.asides, heard.ops.len(), heard.strange.is_some()), (0, 1, true));
    }
}
