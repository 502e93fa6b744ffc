//! What an answer has used, read while it is passed on. The gateway feeds it every piece and hands on what comes out;
//! nothing is held back but a usage that only we have asked for.

use serde_json::Value;

use super::frame::{Frames, Step};
use super::gather::Gather;
use super::usage::Usage;
use super::{Protocol, Question};

/// A whole answer that is read; a longer one is passed on, and not believed.
const DOCUMENT_BYTES_MAX: usize = 64 << 20;

/// Letters of the model that has answered; it is the provider's word, and goes into receipts.
const ANSWERED_CHARS_MAX: usize = 200;

/// Reads one answer.
#[derive(Debug)]
pub struct Meter {
    protocol: Protocol,
    model: String,
    is_stream: bool,
    hides_usage: bool,
    form: Form,
    gather: Gather,
    flaw: Option<String>,
}

/// How the answer is written; its first letter tells.
#[derive(Debug)]
enum Form {
    Unknown(Vec<u8>),
    Document(Vec<u8>),
    TooLong,
    Events {
        frames: Frames,
        /// The bytes of an event that is not whole yet, as long as it may have to be hidden.
        held: Vec<u8>,
    },
}

/// What an answer came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Metered {
    /// Nothing: missing, or not to be believed; `flaw` says why.
    pub usage: Option<Usage>,
    /// What is wrong with the answer, first things first. There may be a usage all the same: that of another model, or of
    /// a stream that broke off after it.
    pub flaw: Option<String>,
    /// Who has answered, up to 200 letters.
    pub model: Option<String>,
    /// What the model said, up to 1 MiB.
    pub text: String,
    /// The calls of tools it asks for: `{name, arguments}`.
    pub calls: Vec<Value>,
    /// Whether stream or document came to its proper end.
    pub is_whole: bool,
    pub stop: Option<String>,
    /// What was held back when the stream ended, and is still to be passed on.
    pub rest: Vec<u8>,
}

impl Meter {
    /// For the answer to a question that has its limit by now: what else was asked for along with it is left out.
    pub fn new(question: &Question) -> Self {
        Self {
            protocol: question.protocol,
            model: question.asked_model().to_owned(),
            is_stream: question.stream,
            hides_usage: question.hides_usage(),
            form: Form::Unknown(Vec::new()),
            gather: Gather::new(question.protocol),
            flaw: None,
        }
    }

    /// Takes a piece, cut anywhere; what comes out is to be passed on.
    pub fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        match &mut self.form {
            Form::Unknown(space) => {
                let first = piece.iter().position(|byte| !byte.is_ascii_whitespace());
                let Some(first) = first else {
                    // So much space before an answer is nobody's answer.
                    if space.len() < 1 << 10 {
                        space.extend_from_slice(piece);
                    }
                    return piece.to_vec();
                };
                let is_document = !self.is_stream || b"{[".contains(&piece[first]);
                self.form = match is_document {
                    true => Form::Document(Vec::new()),
                    false => {
                        let mut frames = Frames::default();
                        // Space has been passed on already, and is no event.
                        space.iter().for_each(|byte| drop(frames.take(*byte)));
                        Form::Events { frames, held: Vec::new() }
                    }
                };
                self.feed(piece)
            }
            Form::Document(document) if document.len() + piece.len() <= DOCUMENT_BYTES_MAX => {
                document.extend_from_slice(piece);
                piece.to_vec()
            }
            Form::Document(_) => {
                self.form = Form::TooLong;
                piece.to_vec()
            }
            Form::TooLong => piece.to_vec(),
            Form::Events { .. } => {
                let mut out = Vec::new();
                let mut rest = piece;
                while !rest.is_empty() {
                    rest = self.take(rest, &mut out);
                }
                if self.hides_usage { out } else { piece.to_vec() }
            }
        }
    }

    /// Takes up to the next end of a line, and returns what is left; `out` gets what may be passed on by now.
    fn take<'a>(&mut self, piece: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let Form::Events { frames, held, .. } = &mut self.form else { return &[] };
        let count = frames.take_run(piece);
        if self.hides_usage {
            held.extend_from_slice(&piece[..count]);
            // An event that is too long cannot be the one to be hidden.
            if held.len() > super::frame::EVENT_BYTES_MAX {
                out.append(held);
            }
        }
        let Some((byte, rest)) = piece[count..].split_first() else { return &[] };
        let taken = frames.take(*byte);
        self.release(taken.before, out);
        if let Form::Events { held, .. } = &mut self.form
            && self.hides_usage
        {
            held.push(*byte);
        }
        self.release(taken.after, out);
        rest
    }

    fn release(&mut self, step: Step, out: &mut Vec<u8>) {
        let is_within = step == Step::Within;
        let is_hidden = self.step(step);
        match &mut self.form {
            Form::Events { held, .. } if is_hidden => held.clear(),
            Form::Events { held, .. } if !is_within => out.append(held),
            _ => {}
        }
    }

    /// Reads an event. Whether it says nothing but the usage.
    fn step(&mut self, step: Step) -> bool {
        let data = match step {
            Step::Within | Step::Event(None) => return false,
            Step::TooLong => {
                self.note("an event of the stream is too long to be read");
                return false;
            }
            Step::Event(Some(data)) => data,
        };
        match data.trim_ascii() {
            b"" => return false,
            b"[DONE]" => {
                self.gather.done();
                return false;
            }
            data => match serde_json::from_slice::<Value>(data) {
                Ok(event) => {
                    self.gather.event(&event);
                    let is_empty = event.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
                    return is_empty && event.get("usage").is_some_and(Value::is_object);
                }
                Err(_) => self.note("an event of the stream is invalid JSON"),
            },
        }
        false
    }

    fn note(&mut self, flaw: &str) {
        self.flaw.get_or_insert_with(|| flaw.to_owned());
    }

    /// The last bytes of what a stream's pieces come to when they are put together: of the text, and of a call.
    pub fn ends(&self, bytes: usize) -> [&[u8]; 2] {
        self.gather.ends(bytes)
    }

    /// Whether a stream has said that the model has stopped: what comes now is its end.
    pub fn is_ending(&self) -> bool {
        self.gather.is_whole || self.gather.stop.is_some()
    }

    /// The answer is over, or broken off.
    pub fn end(mut self) -> Metered {
        let mut rest = Vec::new();
        let mut is_readable = true;
        match std::mem::replace(&mut self.form, Form::TooLong) {
            Form::Unknown(_) => self.note("there is no answer"),
            Form::TooLong => self.note("the answer is too long to be read"),
            Form::Document(document) => match serde_json::from_slice::<Value>(&document) {
                Ok(document) => self.gather.document(&document),
                Err(_) => {
                    is_readable = false;
                    self.note("the answer is invalid JSON");
                }
            },
            Form::Events { mut frames, held } => {
                let last = frames.finish();
                self.form = Form::Events { frames, held: Vec::new() };
                if !(self.step(last) && self.hides_usage) {
                    rest = held;
                }
            }
        }
        self.gather.over();
        let is_whole = self.gather.is_whole && is_readable;
        if let Some(error) = self.gather.error.take() {
            self.note(&error);
        }
        if !is_whole {
            self.note(if self.is_stream { "the stream has no end" } else { "the answer is not whole" });
        }
        // In chat completions it comes last.
        let is_counted = self.protocol == Protocol::Chat && self.gather.stop.is_some();
        let usage = match self.gather.told.usage(self.protocol, self.gather.has_said()) {
            // What a broken stream has counted so far is not what it has cost.
            Ok(_) if !is_whole && !is_counted => None,
            Ok(usage) => Some(usage),
            Err(flaw) => {
                self.note(&flaw);
                None
            }
        };
        let whole = self.gather.model.take();
        let is_other = whole.as_deref().is_some_and(|model| !is_same_model(&self.model, model));
        let model = whole.map(|model| model.chars().take(ANSWERED_CHARS_MAX).collect::<String>());
        if let Some(other) = model.as_deref().filter(|_| is_other) {
            let flaw = format!("another model has answered: {other} instead of {}", self.model);
            self.note(&flaw);
        }
        Metered {
            usage,
            flaw: self.flaw,
            model,
            text: self.gather.text(),
            calls: self.gather.calls(),
            is_whole,
            stop: self.gather.stop.take(),
            rest,
        }
    }
}

/// Whether an answer's model is the one that was asked: providers answer with the dated name, and without a vendor.
pub fn is_same_model(asked: &str, answered: &str) -> bool {
    let plain = |name: &str| {
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let (name, tag) = name.split_once([':', '@']).unwrap_or((&name, ""));
        (name.strip_suffix("-latest").unwrap_or(name).to_owned(), tag.to_owned())
    };
    let ((asked, asked_tag), (answered, tag)) = (plain(asked), plain(answered));
    if !asked_tag.is_empty() && !tag.is_empty() && asked_tag != tag {
        return false;
    }
    let is_version = |rest: &str| {
        const WORDS: [&str; 5] = ["preview", "exp", "latest", "stable", "beta"];
        let is_part = |part: &str| {
            let digits = part.strip_prefix('v').unwrap_or(part);
            WORDS.contains(&part) || !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|rest| rest.split(['-', '.']).all(is_part))
    };
    let either = |long: &str, short: &str| long.strip_prefix(short).is_some_and(is_version);
    either(&answered, &asked) || either(&asked, &answered)
}
