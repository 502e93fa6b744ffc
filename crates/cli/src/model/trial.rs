//! Trying artifacts out on examples: every answer is a prediction like any other, paid for and receipted. What was answered
//! before, by whoever worked on the same job, is found in the ledger and not asked again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actum_api::error;
use actum_contract::execution::Redactor;
use actum_predict::artifact::Way;
use actum_predict::compile::Cell;
use actum_predict::dataset::Example;
use actum_predict::evolve::Kind;
use actum_predict::metric::Metric;
use actum_predict::receipt::Rollout;
use actum_predict::sanitise::sanitise;
use actum_predict::{hash, policy};
use actum_sandbox::Signals;
use actum_store::blob::Folder as Blobs;
use serde_json::{Value, json};

use super::alive::Alive;
use super::line::{Line, Within};
use super::predict::{Whom, predict};
use super::{Authorized, Counter, Recording, Till, evidence, receipt};
use crate::command::run::money;
use crate::failure::Failure;
use crate::run::shop::Open;
use crate::ui::{Out, note};
use crate::workspace::new_id;

/// Without an answer in a row, after which nobody is asked any more.
const FAILURES_MAX: usize = 20;
/// Hex digits of a label in the names of runs, and of a job in that of its file.
const LABEL_DIGITS: usize = 24;
/// The exit code of whoever was interrupted, as shells have it.
const INTERRUPTED: i32 = 130;
/// Letters of why there was no answer.
const MESSAGE_CHARS_MAX: usize = 200;
/// Longer than any prediction may take.
const PATIENCE: Duration = Duration::from_secs(86_400);
/// What somebody is told who wants it to stop, and who wants it again.
const ENDING: &str = "nothing more is asked, and what is under way is waited for; once more, and it is not";
const STOPPED: &str = "nothing is waited for: what it has cost has to be found out, `actum spend reconcile` shows it";
/// Reasons that tell of an answer that is no good. After all others there is none.
const ANSWERS: [&str; 6] = [
    policy::INVALID_OUTPUT,
    policy::INVALID_INPUT,
    policy::BAD_PROMPT,
    policy::ITERATIONS_EXHAUSTED,
    policy::CALLS_EXHAUSTED,
    policy::TOKENS_EXHAUSTED,
];

/// How it is asked.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub parallel: usize,
    /// What may be spent, if nothing else allows more, and in which currency.
    pub budget: Option<(u64, String)>,
    pub provider: Option<String>,
    pub record: Option<PathBuf>,
    /// Who may want it to stop.
    pub interrupts: Interrupts,
}

/// What somebody who wants it to stop has said so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupts {
    /// Whether there is something that has to be brought to an end.
    is_asking: Arc<AtomicBool>,
    /// Nothing more is to be asked; and nothing is to be waited for either.
    is_ending: Arc<AtomicBool>,
    is_stopped: Arc<AtomicBool>,
}

impl Interrupts {
    /// Listens from now on. Called before there are threads, which would get the signals instead.
    ///
    /// Before anything is asked the program just ends. Later it asks no more and waits for what is under way; asked again to
    /// stop, it does not wait.
    pub(crate) fn listen(is_told: bool) -> Result<Self, Failure> {
        let signals = Signals::catch().map_err(|e| crate::cell::not_built(&e.to_string()))?;
        let ours = Self::default();
        let Self { is_asking, is_ending, is_stopped } = ours.clone();
        let listen = move || {
            for (flag, says) in [(is_ending, ENDING), (is_stopped, STOPPED)] {
                if !signals.next() {
                    return;
                }
                if !is_asking.load(Ordering::SeqCst) {
                    std::process::exit(INTERRUPTED);
                }
                flag.store(true, Ordering::SeqCst);
                if is_told {
                    note(says);
                }
            }
        };
        let made = std::thread::Builder::new().name("signals".to_owned()).spawn(listen);
        made.map_err(|e| Failure::new(error::INTERNAL, format!("cannot wait for signals: {e}")))?;
        Ok(ours)
    }
}

/// What was asked: by which artifact, of whom, and the hash of the input.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    compiled_id: String,
    provider: String,
    model: String,
    params_hash: String,
}

/// What one prediction came to.
#[derive(Debug, Clone)]
struct Answer {
    output: Value,
    status: String,
    reason: Option<String>,
    message: String,
    tokens: u64,
    spent: u64,
    currency: String,
    latency_ms: u64,
    receipt: String,
}

/// One job under way.
pub(crate) struct Trial<'o> {
    open: &'o Open,
    /// Below which its runs are found, and those of others who have tried something.
    thread: String,
    /// Who is asked for each artifact.
    whom: BTreeMap<String, Whom>,
    interrupts: Interrupts,
    /// Who says what an answer is worth, if the metric does not.
    judge: Option<(Way, Metric)>,
    line: Line,
    provider: Option<String>,
    parallel: usize,
    recording: Option<Arc<Recording>>,
    redactor: Redactor,
    /// Of each the first on record. Whoever works on the same job at the same time finds the same ones.
    answers: BTreeMap<Key, Answer>,
    /// From where on the ledger was not read yet.
    from: u64,
    /// Asked anew, and what that cost.
    asked: usize,
    spent: u64,
    is_shown: bool,
    _alive: Alive,
    _turn: Turn,
}

/// Where a job stands, for whoever asks and whoever watches.
struct Board {
    what: String,
    total: usize,
    done: usize,
    failed: usize,
    in_a_row: usize,
    spent: u64,
    /// Why it does not go on.
    stop: Option<Failure>,
    last: String,
    is_shown: bool,
}

impl<'o> Trial<'o> {
    /// `job`: only one works on it at a time. `label`: answers to others under the same label are not asked for again.
    pub(crate) fn begin(
        open: &'o Open,
        (job, label): (&str, Option<&str>),
        judge: Option<(Way, Metric)>,
        options: Options,
        out: &Out,
    ) -> Result<Self, Failure> {
        let config = open.project.config()?;
        let places = (open.project.folder()?, open.project.root().to_owned());
        let counter = Counter::new(&open.waiter, &open.spend, &open.tenant, places, &config)?;
        let turn = Turn::take(&counter.home, job, out)?;
        let thread = format!("{}{}", evidence::TRIALS, &hash::of(&json!({ "label": label }))[..LABEL_DIGITS]);
        let run = format!("{thread}-{}", new_id());
        let alive = Alive::enter(&counter.home, &run, open.waiter.journal.store_id())?;
        let is_served = open.project.token().is_some();
        let who = Authorized {
            run,
            // By its label anybody could name it.
            thread: (!is_served).then(|| thread.clone()),
            autopilot: open.project.payer(),
            budget: options.budget,
            is_served,
            ..Authorized::default()
        };
        let recording = options.record.as_deref().map(Recording::open).transpose()?.map(Arc::new);
        let till = Till::open(&counter, who).recorded(recording.clone()).repeating();
        let mut trial = Self {
            open,
            thread,
            whom: BTreeMap::new(),
            interrupts: options.interrupts,
            judge,
            line: Line { till: Some(Arc::new(till)), book: None },
            provider: options.provider,
            parallel: options.parallel.max(1),
            recording,
            redactor: counter.redactor(),
            answers: BTreeMap::new(),
            from: 0,
            asked: 0,
            spent: 0,
            is_shown: !out.quiet() && !out.is_json() && !out.is_captured(),
            _alive: alive,
            _turn: turn,
        };
        // From here on there is something to bring to an end.
        trial.interrupts.is_asking.store(true, Ordering::SeqCst);
        trial.read()?;
        Ok(trial)
    }

    /// Finds out who is asked for an artifact.
    fn know(&mut self, way: &Way) -> Result<(), Failure> {
        let Some(till) = self.line.till.as_ref().filter(|_| !self.whom.contains_key(&way.compiled_id)) else {
            return Ok(());
        };
        let found = Whom::of(till.counter(), None, self.provider.as_deref(), &way.signature.program)?;
        self.whom.insert(way.compiled_id.clone(), found);
        Ok(())
    }

    fn key(&self, way: &Way, params_hash: &str) -> Key {
        let whom = self.whom.get(&way.compiled_id);
        Key {
            compiled_id: way.compiled_id.clone(),
            provider: whom.and_then(|whom| whom.provider.clone()).unwrap_or_default(),
            model: whom.map(|whom| whom.model.clone()).unwrap_or_default(),
            params_hash: params_hash.to_owned(),
        }
    }

    /// How many were asked anew, and what they cost together.
    pub(crate) fn cost(&self) -> (usize, u64) {
        (self.asked, self.spent)
    }

    /// What a prediction was paid in, if all were paid in the same.
    pub(crate) fn currency(&self) -> Option<&str> {
        let mut all = self.answers.values().map(|answer| answer.currency.as_str()).filter(|word| !word.is_empty());
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// What is missing from the recording, if one was wanted.
    pub(crate) fn lost(&self) -> Option<(u64, String)> {
        self.recording.as_ref().and_then(|recording| recording.lost())
    }

    /// Every artifact on every example, scored, in the order of both.
    pub(crate) fn cells(
        &mut self,
        what: &str,
        ways: &[&Way],
        examples: &[&Example],
        metric: &Metric,
    ) -> Result<Vec<Vec<Cell>>, Failure> {
        let inputs: Vec<Cow<'_, Value>> = examples.iter().map(|one| Cow::Borrowed(&one.input)).collect();
        self.ask(what, ways, &inputs)?;
        if let Some((judge, _)) = self.judge.clone() {
            let mut questions = Vec::new();
            for way in ways {
                for example in examples {
                    let answer = self.answer(way, &example.input)?;
                    if !answer.output.is_null() {
                        let question = Metric::judge_input(&example.input, &answer.output, &example.expected);
                        questions.push(Cow::Owned(question));
                    }
                }
            }
            self.ask(&format!("{what}, judged"), &[&judge], &questions)?;
        }
        ways.iter().map(|way| examples.iter().map(|example| self.cell(way, example, metric)).collect()).collect()
    }

    fn answer(&self, way: &Way, input: &Value) -> Result<&Answer, Failure> {
        let key = self.key(way, &hash::of(input));
        self.answers
            .get(&key)
            .ok_or_else(|| Failure::new(error::INTERNAL, format!("{} was not asked about an example", key.compiled_id)))
    }

    fn cell(&self, way: &Way, example: &Example, metric: &Metric) -> Result<Cell, Failure> {
        let answer = self.answer(way, &example.input)?;
        let score = match (answer.output.is_null(), &self.judge) {
            (true, _) => 0.0,
            (false, None) => metric.score(&answer.output, &example.expected).unwrap_or(0.0),
            (false, Some((judge, _))) => {
                let question = Metric::judge_input(&example.input, &answer.output, &example.expected);
                let said = self.answer(judge, &question)?;
                metric.judged(&said.output).map_err(|why| {
                    Failure::new(error::PREDICT_FAILED, format!("the judge of {} {why}", example.id))
                        .hint("its output needs a number from 0 to 1, or true or false, where the metric looks for it")
                })?
            }
        };
        Ok(Cell {
            example_id: example.id.clone(),
            score,
            output: answer.output.clone(),
            status: answer.status.clone(),
            reason_code: answer.reason.clone(),
            tokens: answer.tokens,
            spent: answer.spent,
            latency_ms: answer.latency_ms,
            receipt_id: answer.receipt.clone(),
        })
    }

    /// Whether this is an answer: a judge who says nothing that can be read has not judged.
    fn is_answer(&self, compiled: &str, status: &str, reason: &str, output: &Value) -> bool {
        let is_well = matches!(status, "succeeded" | "partial");
        match self.judge.as_ref().filter(|(judge, _)| judge.compiled_id == compiled) {
            Some((_, metric)) => is_well && metric.judged(output).is_ok(),
            None => is_well || ANSWERS.contains(&reason),
        }
    }

    /// Reads what was answered in runs of this job since it was last looked for.
    fn read(&mut self) -> Result<(), Failure> {
        let traces: Blobs = receipt::traces(&self.open.project)?;
        let begins = format!("{}-", self.thread);
        let (mut found, mut from) = (Vec::new(), self.from);
        evidence::each(self.open, Kind::Receipt, self.from, &mut |seq, payload| {
            from = seq + 1;
            let kept = &payload["receipt"];
            let text = |name: &str| kept[name].as_str().unwrap_or_default();
            let reason = kept["error"]["reason_code"].as_str().unwrap_or_default();
            let is_ours = text("kind") == "prediction" && text("run_id").starts_with(&begins);
            if !is_ours {
                return Ok(());
            }
            let key = Key {
                compiled_id: text("compiled_id").to_owned(),
                provider: text("provider").to_owned(),
                model: text("model").to_owned(),
                params_hash: text("params_hash").to_owned(),
            };
            // A trace that is gone is asked for anew.
            let Ok(whole) = receipt::whole(&payload, &traces) else { return Ok(()) };
            let output = whole["trace"]["payload"].get("output").cloned();
            let is_answer = |output: &Value| self.is_answer(text("compiled_id"), text("status"), reason, output);
            found.extend(output.filter(is_answer).map(|output| (key, answer_of(kept, output))));
            Ok(())
        })?;
        self.from = from;
        for (key, answer) in found {
            self.answers.entry(key).or_insert(answer);
        }
        Ok(())
    }

    /// Asks every way about every input, as far as that was not answered yet; several at a time.
    fn ask(&mut self, what: &str, ways: &[&Way], inputs: &[Cow<'_, Value>]) -> Result<(), Failure> {
        let hashes: Vec<String> = inputs.iter().map(|input| hash::of(input)).collect();
        let mut once = BTreeSet::new();
        // The same question twice is one.
        let first: Vec<usize> = (0..inputs.len()).filter(|at| once.insert(&hashes[*at])).collect();
        let mut missing: Vec<(&Way, usize)> = Vec::new();
        for way in ways {
            self.know(way)?;
            let is_new = |at: &usize| !self.answers.contains_key(&self.key(way, &hashes[*at]));
            missing.extend(first.iter().filter(|at| is_new(at)).map(|at| (*way, *at)));
        }
        let board = Mutex::new(Board {
            what: what.to_owned(),
            total: missing.len(),
            done: 0,
            failed: 0,
            in_a_row: 0,
            spent: 0,
            stop: None,
            last: String::new(),
            is_shown: self.is_shown && std::io::stderr().is_terminal(),
        });
        let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let new = Mutex::new(Vec::new());
        let work = || {
            while !is_over.load(Ordering::SeqCst) && !self.interrupts.is_ending.load(Ordering::SeqCst) {
                let Some((way, at)) = missing.get(next.fetch_add(1, Ordering::SeqCst)) else { return };
                let Some(whom) = self.whom.get(&way.compiled_id) else { return };
                let answered = self.ask_one(whom, way, &inputs[*at]);
                let is_answer = answered.as_ref().is_ok_and(|(answer, _)| {
                    let reason = answer.reason.as_deref().unwrap_or_default();
                    self.is_answer(&way.compiled_id, &answer.status, reason, &answer.output)
                });
                let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(answer) = board.note(answered, is_answer) {
                    new.lock().unwrap_or_else(PoisonError::into_inner).push((self.key(way, &hashes[*at]), answer));
                }
                if board.stop.is_some() || board.in_a_row >= FAILURES_MAX {
                    is_over.store(true, Ordering::SeqCst);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.parallel.min(missing.len()) {
                scope.spawn(work);
            }
        });
        let board = board.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.asked += board.done;
        self.spent += board.spent;
        self.read()?;
        for (key, answer) in new.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.answers.entry(key).or_insert(answer);
        }
        board.end(self.interrupts.is_ending.load(Ordering::SeqCst))
    }

    /// Asks once; whether the policy said no.
    fn ask_one(&self, whom: &Whom, way: &Way, input: &Value) -> Result<(Answer, bool), Failure> {
        let rollout = Rollout { variant: "pinned", ..Rollout::default() };
        // The signature has a time of its own.
        let within = Within { until: Instant::now() + PATIENCE, stopped: Arc::clone(&self.interrupts.is_stopped) };
        let predicted = predict(&self.line, whom, way, &rollout, input, Some(&within))?;
        let is_denied = predicted.outcome.error.as_ref().is_some_and(|stop| stop.is_denied);
        let receipt = predicted.receipt.unwrap_or_default();
        // As it will be found on record.
        let output = sanitise(&predicted.outcome.output, &self.redactor);
        actum_contract::crash::pass(CRASH_POINTS, "trial.answered");
        Ok((answer_of(&receipt, output), is_denied))
    }
}

/// Who works on a job; others wait for him, and find what he was told.
#[derive(Debug)]
struct Turn {
    _file: File,
}

impl Turn {
    fn take(home: &Path, job: &str, out: &Out) -> Result<Self, Failure> {
        let folder = home.join("trials");
        let path = folder.join(&hash::of(&json!(job))[..LABEL_DIGITS]);
        let taken = || -> std::io::Result<File> {
            std::fs::create_dir_all(&folder)?;
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            if file.try_lock().is_err() {
                out.remark("another process works on the same here: waiting for it");
                file.lock()?;
            }
            Ok(file)
        };
        let cannot = |e: std::io::Error| Failure::of_io(format!("cannot use {}: {e}", path.display()), &e);
        Ok(Self { _file: taken().map_err(cannot)? })
    }
}

impl Board {
    /// Takes note of an answer; gives it back if it is one.
    fn note(&mut self, answered: Result<(Answer, bool), Failure>, is_answer: bool) -> Option<Answer> {
        let kept = match answered {
            Err(failure) => {
                self.stop.get_or_insert(failure);
                None
            }
            Ok((answer, is_denied)) => {
                self.done += 1;
                self.spent += answer.spent;
                let reason = answer.reason.clone().unwrap_or_default();
                if is_answer {
                    self.in_a_row = 0;
                    Some(answer)
                } else {
                    self.failed += 1;
                    self.in_a_row += 1;
                    let message: String = answer.message.chars().take(MESSAGE_CHARS_MAX).collect();
                    self.last = format!("{reason}: {message} (receipt {})", answer.receipt);
                    if is_denied {
                        let message = format!("{reason}: {message} (receipt {})", answer.receipt);
                        let failure = Failure::new(error::SPEND_DENIED, message)
                            .details(json!({"reason_code": reason, "receipt_id": answer.receipt}))
                            .hint(
                                "what was answered is kept: run it again with more money, and only the rest is asked",
                            );
                        self.stop.get_or_insert(failure);
                    }
                    None
                }
            }
        };
        if self.is_shown {
            let Self { what, total, done, failed, .. } = self;
            let spent = money(self.spent, actum_ledger::spend::CURRENCY);
            let _ = write!(std::io::stderr(), "\r{what}  {done}/{total}  {failed} without an answer  {spent} ");
        }
        kept
    }

    fn end(self, is_ending: bool) -> Result<(), Failure> {
        if self.is_shown && self.total > 0 {
            let _ = writeln!(std::io::stderr());
        }
        if let Some(stop) = self.stop {
            return Err(stop);
        }
        let missing = self.total - (self.done - self.failed);
        if missing > 0 && is_ending {
            let message = format!("{}: stopped when {missing} of {} were still to be answered", self.what, self.total);
            return Err(Failure::new(error::PREDICT_FAILED, message)
                .hint("what was answered is kept: run it again, and only the rest is asked"));
        }
        if missing > 0 {
            let message = format!("{}: {missing} of {} got no answer, the last: {}", self.what, self.total, self.last);
            return Err(Failure::new(error::PREDICT_FAILED, message)
                .hint("what was answered is kept: run it again, and only the rest is asked"));
        }
        Ok(())
    }
}

/// Places where tests stop the process for good while artifacts are tried.
const CRASH_POINTS: &[&str] = &["trial.answered"];

fn answer_of(receipt: &Value, output: Value) -> Answer {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    Answer {
        output,
        status: text(&receipt["status"]),
        reason: receipt["error"]["reason_code"].as_str().map(ToOwned::to_owned),
        message: text(&receipt["error"]["message"]),
        tokens: number(&receipt["budget"]["total_tokens"]),
        spent: number(&receipt["budget"]["spent"]),
        currency: text(&receipt["budget"]["currency"]),
        latency_ms: number(&receipt["timing"]["latency_ms"]),
        receipt: text(&receipt["receipt_id"]),
    }
}
