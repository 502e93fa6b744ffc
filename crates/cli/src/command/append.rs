//! `actum ledger append`: one document or a stream of them, answered one by one as each becomes durable.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use actum_api::error;
use actum_contract::canon::{self, Flaw};
use actum_contract::id::Tenant;
use actum_contract::limit::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, EVENT_BYTES_MAX};
use actum_ledger::draft::{self, Rejection, Submission};
use actum_ledger::journal::{JournalError, Outcome, Work};
use actum_ledger::refusal::{Refusal, Violation};
use actum_store::Store;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use super::Ended;
use crate::failure::{Failure, Place};
use crate::ui::{self, Out};
use crate::workspace::LOCAL_TENANT;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  actum ledger append event.json\n  producer | actum ledger append --json -")]
pub(crate) struct Append {
    /// One JSON document, or one per line; stdin if left out or -
    #[arg(value_name = "FILE", default_value = "-", hide_default_value = true)]
    file: PathBuf,
}

/// Documents that are read before they are needed.
const READ_AHEAD_PIECES: usize = 16;

/// A document of the stream and the line on which it begins.
struct Piece {
    line: usize,
    text: Vec<u8>,
    /// The whole length; more than `text` holds if it was too long to keep.
    bytes: usize,
}

impl Append {
    /// `own`: whose entries these have to be, if not anybody's.
    pub(crate) async fn run(self, store: &Arc<dyn Store>, own: Option<&Tenant>, out: &mut Out) -> Ended {
        let local = Tenant::new(LOCAL_TENANT).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))?;
        let (began_at, began) = (store.time(own.unwrap_or(&local)).await?.clock, Instant::now());
        let now = || began_at.saturating_add(began.elapsed()).unwrap_or(began_at);
        let name = if self.file.as_os_str() == "-" { "stdin".to_owned() } else { self.file.display().to_string() };
        let input: Box<dyn BufRead + Send> = match self.file.as_os_str() == "-" {
            true if ui::stdin_is_terminal() => {
                return Err(Failure::new(error::USAGE, "there is nothing to append: name a file or pipe it in"));
            }
            true => Box::new(BufReader::new(io::stdin())),
            false => Box::new(BufReader::new(open(&self.file)?)),
        };
        // A producer may wait for one answer before it sends the next document, so reading and answering must not
        // wait for each other.
        let (sender, mut pieces) = mpsc::channel::<io::Result<Piece>>(READ_AHEAD_PIECES);
        std::thread::Builder::new()
            .name("actum-append-reader".into())
            .spawn(move || read_all(input, &|piece| sender.blocking_send(piece).is_ok()))
            .map_err(|e| Failure::new(error::INTERNAL, format!("cannot start reading: {e}")))?;

        let mut report = Report { name: name.clone(), ..Report::default() };
        let (mut waiting, mut bytes): (VecDeque<Waiting>, usize) = (VecDeque::new(), 0);
        let mut open = true;
        while open || !waiting.is_empty() {
            let room = waiting.len() < 2 * BATCH_ENTRIES_MAX && bytes < 2 * BATCH_BYTES_MAX;
            tokio::select! {
                piece = pieces.recv(), if open && room => match piece {
                    None => open = false,
                    Some(Err(e)) => return Err(Failure::of_io(format!("cannot read {name}: {e}"), &e)),
                    Some(Ok(piece)) => {
                        let (line, text) = (piece.line, piece.text.clone());
                        let submission = of_nobodys_run(of_tenant(piece.submission(now()), own, &text), store, &text).await?;
                        bytes += submission.bytes();
                        let place = place_of(&submission, &name, line, &text);
                        let (size, work) = (submission.bytes(), store.append(submission));
                        waiting.push_back(Waiting { line, place, bytes: size, work });
                    }
                },
                outcome = first(&mut waiting), if !waiting.is_empty() => {
                    let answered = waiting.pop_front();
                    bytes -= answered.as_ref().map_or(0, |w| w.bytes);
                    let (line, place) = answered.map_or((0, None), |w| (w.line, w.place));
                    report.take(line, place, outcome?, out);
                }
            }
        }
        report.finish(out)
    }
}

/// A document whose answer is awaited.
struct Waiting {
    line: usize,
    /// Where the text stops being JSON, if it does.
    place: Option<Place>,
    bytes: usize,
    work: Work<'static, Outcome>,
}

/// Whoever speaks for one tenant writes nothing into the ledger of another, and leaves nothing refused there.
fn of_tenant(submission: Submission, own: Option<&Tenant>, text: &[u8]) -> Submission {
    let Some(own) = own else { return submission };
    match submission {
        Submission::Draft(draft) if draft.tenant == *own => Submission::Draft(draft),
        Submission::Draft(_) => {
            let violation = Violation::new("tenantId", format!("must be {:?}, the tenant you speak for", own.as_str()));
            rejected(Some(own.clone()), violation, text)
        }
        Submission::Rejected(rejection) => {
            Submission::Rejected(Box::new(Rejection { tenant: Some(own.clone()), ..*rejection }))
        }
    }
}

/// What has happened to a run of this store is told by whoever executes it, and by nobody else: an end that somebody made up
/// would keep the real one out. What is recorded already may come again.
async fn of_nobodys_run(
    submission: Submission,
    store: &Arc<dyn Store>,
    text: &[u8],
) -> Result<Submission, JournalError> {
    let Submission::Draft(draft) = &submission else { return Ok(submission) };
    let (Some(event), Some(id)) = (&draft.event, &draft.id) else { return Ok(submission) };
    let runs = store.runs_named(&draft.tenant, &event.execution).await?;
    let is_ours = runs.iter().any(|run| run.id == event.execution);
    if !is_ours || store.entry(&draft.tenant, id).await?.is_some() {
        return Ok(submission);
    }
    let message = format!("{} is a run of this store: its events are written by its worker", event.execution);
    let violation = Violation::new("payload.executionId", message);
    Ok(rejected(Some(draft.tenant.clone()), violation, text))
}

fn rejected(tenant: Option<Tenant>, violation: Violation, text: &[u8]) -> Submission {
    let mut document = text.to_vec();
    document.truncate(actum_contract::limit::DEAD_LETTER_BYTES_MAX);
    Submission::Rejected(Box::new(Rejection { tenant, refusal: Refusal::validation(vec![violation]), document }))
}

fn place_of(submission: &Submission, name: &str, first_line: usize, text: &[u8]) -> Option<Place> {
    let Submission::Rejected(rejection) = submission else { return None };
    let (line, column) = rejection.refusal.violations.iter().find_map(|v| Some((v.line?, v.column?)))?;
    // The document knows its own lines, the reader of the message those of the file.
    let shown = Place::of(name, text, line - (first_line - 1), column);
    Some(Place { line, ..shown })
}

async fn first(waiting: &mut VecDeque<Waiting>) -> Result<Outcome, Failure> {
    match waiting.front_mut() {
        Some(first) => Ok(first.work.as_mut().await?),
        None => Err(Failure::new(error::INTERNAL, "nothing is under way")),
    }
}

fn open(path: &Path) -> Result<std::fs::File, Failure> {
    std::fs::File::open(path).map_err(|e| Failure::of_io(format!("cannot read {}: {e}", path.display()), &e))
}

impl Piece {
    /// `now` is the store's time: what a producer dates far ahead of it is refused.
    fn submission(self, now: Timestamp) -> Submission {
        let mut submission = if self.bytes > EVENT_BYTES_MAX {
            let message = format!("entry of {} bytes is larger than {EVENT_BYTES_MAX}", self.bytes);
            let refusal = Refusal::validation(vec![Violation::at(message, 1, EVENT_BYTES_MAX + 1)]);
            let mut document = self.text;
            document.truncate(actum_contract::limit::DEAD_LETTER_BYTES_MAX);
            Submission::Rejected(Box::new(Rejection { tenant: None, refusal, document }))
        } else {
            draft::read(&self.text, now)
        };
        // Positions count from the beginning of the stream, not of the document.
        if let Submission::Rejected(rejection) = &mut submission {
            for violation in &mut rejection.refusal.violations {
                violation.line = violation.line.map(|line| line + self.line - 1);
            }
        }
        submission
    }
}

/// Splits the input into documents: one per line, unless its first line is the beginning of a longer document.
fn read_all(mut input: Box<dyn BufRead + Send>, send: &dyn Fn(io::Result<Piece>) -> bool) {
    let mut line = 0;
    let (mut held, mut held_bytes): (Vec<Piece>, usize) = (Vec::new(), 0);
    let mut undecided = true;
    loop {
        let piece = match read_line(&mut input) {
            Ok(None) => break,
            Ok(Some((text, bytes))) => {
                line += 1;
                Piece { line, text, bytes }
            }
            Err(e) => {
                send(Err(e));
                return;
            }
        };
        if piece.text.iter().all(u8::is_ascii_whitespace) && held.is_empty() {
            continue;
        }
        if undecided {
            let longer = match held.is_empty() {
                true => matches!(canon::parse(&piece.text), Err(e) if e.flaw == Flaw::Truncated),
                // A whole document at the beginning of a line: these are lines after all, and somebody may be waiting.
                false => !is_document(&piece.text),
            };
            held_bytes += piece.bytes + 1;
            if longer {
                // Beyond the bound nothing more is kept, only counted: it is one document that is too large.
                if held_bytes <= EVENT_BYTES_MAX || held.is_empty() {
                    held.push(piece);
                }
                continue;
            }
            undecided = false;
            held_bytes -= piece.bytes + 1;
            if !send_held(std::mem::take(&mut held), held_bytes, true, send) {
                return;
            }
        }
        if piece.text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        if !send(Ok(piece)) {
            return;
        }
    }
    // The input ended while it still looked like one document over many lines.
    send_held(held, held_bytes, false, send);
}

/// Sends what was held back: line by line if these turned out to be lines, else as one document. What is larger than
/// the bound was one document either way, and is refused as such.
fn send_held(held: Vec<Piece>, bytes: usize, lines: bool, send: &dyn Fn(io::Result<Piece>) -> bool) -> bool {
    let Some(first) = held.first().map(|piece| piece.line) else { return true };
    if lines && bytes <= EVENT_BYTES_MAX {
        let blank = |piece: &Piece| piece.text.iter().all(u8::is_ascii_whitespace);
        return held.into_iter().filter(|piece| !blank(piece)).all(|piece| send(Ok(piece)));
    }
    let text: Vec<u8> = held.iter().map(|p| p.text.as_slice()).collect::<Vec<_>>().join(&b'\n');
    let bytes = if bytes > EVENT_BYTES_MAX { bytes } else { text.len() };
    send(Ok(Piece { line: first, text, bytes }))
}

fn is_document(text: &[u8]) -> bool {
    text.starts_with(b"{") && text.trim_ascii_end().ends_with(b"}") && canon::parse(text).is_ok_and(|v| v.is_object())
}

/// One line without its end, and its whole length; what is beyond the bound is read but not kept.
fn read_line(input: &mut dyn BufRead) -> io::Result<Option<(Vec<u8>, usize)>> {
    let (mut text, mut bytes, mut any) = (Vec::new(), 0, false);
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(any.then_some((text, bytes)));
        }
        any = true;
        let end = buffer.iter().position(|b| *b == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let room = (EVENT_BYTES_MAX + 1).saturating_sub(text.len());
        text.extend_from_slice(&part[..part.len().min(room)]);
        bytes += part.len();
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            if text.last() == Some(&b'\r') {
                text.pop();
                bytes -= 1;
            }
            return Ok(Some((text, bytes)));
        }
    }
}

/// What has become of the documents so far.
#[derive(Default)]
struct Report {
    name: String,
    created: u64,
    idempotent: u64,
    refused: u64,
    worst: u8,
}

impl Report {
    fn take(&mut self, line: usize, place: Option<Place>, outcome: Outcome, out: &mut Out) {
        match outcome {
            Outcome::Created { id, seq } => {
                self.created += 1;
                self.accepted(line, &id, seq, false, out);
            }
            Outcome::Idempotent { id, seq } => {
                self.idempotent += 1;
                self.accepted(line, &id, seq, true, out);
            }
            Outcome::Refused(refusal) => {
                self.refused += 1;
                self.refuse(line, place, &refusal, out);
            }
        }
    }

    fn accepted(&self, line: usize, id: &str, seq: u64, idempotent: bool, out: &mut Out) {
        let json = json!({"ok": true, "id": id, "seq": seq, "idempotent": idempotent, "line": line});
        if out.json || !out.quiet() {
            let what = if idempotent { "already recorded" } else { "recorded" };
            out.result(&json, || format!("{what} {id} as entry {seq}"));
        }
    }

    fn refuse(&mut self, line: usize, place: Option<Place>, refusal: &Refusal, out: &mut Out) {
        let row = error::named(refusal.code.name());
        self.worst = self.worst.max(row.exit);
        if out.json {
            let error =
                json!({"code": row.name, "ref": row.code, "message": refusal.message, "details": refusal.details()});
            out.line(&json!({"ok": false, "id": null, "idempotent": false, "line": line, "error": error}).to_string());
            return;
        }
        // Several violations are listed below; a single one is the message itself.
        let listed = refusal.violations.len() > 1;
        let headline = if listed { refusal.message.split(':').next().unwrap_or_default() } else { &refusal.message };
        let place = place.map_or_else(|| format!(" --> {}:{line}", self.name), |place| place.to_text());
        let mut text = format!("error[{}]: {}: {headline}\n{place}", row.code, row.name);
        let news = |v: &&Violation| listed || !(v.path.is_empty() || refusal.message.contains(&v.message));
        for v in refusal.violations.iter().filter(news) {
            text.push_str(&format!("\n  - {}: {}", v.path, v.message));
        }
        text.push_str(&format!("\n  = see: docs/errors/{}.md", row.code));
        out.aside(&text);
    }

    fn finish(self, out: &mut Out) -> Ended {
        let Self { created, idempotent, refused, worst, .. } = self;
        if created + idempotent + refused == 0 {
            return Err(Failure::new(error::INPUT, format!("{} holds no document", self.name)));
        }
        if created + idempotent + refused > 1 {
            out.remark(&format!("{created} recorded, {idempotent} already recorded, {refused} refused"));
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn pieces(input: &str) -> Vec<(usize, String)> {
        let found = RefCell::new(Vec::new());
        read_all(Box::new(io::Cursor::new(input.as_bytes().to_vec())), &|piece| {
            let piece = piece.unwrap();
            found.borrow_mut().push((piece.line, String::from_utf8(piece.text).unwrap()));
            true
        });
        found.into_inner()
    }

    #[test]
    fn lines_and_longer_documents_are_told_apart() {
        assert_eq!(pieces("{\"a\":1}\n\n{\"b\":2}\r\n"), [(1, "{\"a\":1}".into()), (3, "{\"b\":2}".into())]);
        assert_eq!(pieces("{\n  \"a\": 1\n}\n"), [(1, "{\n  \"a\": 1\n}".into())]);
        assert_eq!(pieces("\n{\n\n\"a\": 1}"), [(2, "{\n\n\"a\": 1}".into())]);
        // A first line that is cut off among good ones is one bad line, also when the good ones end in blanks.
        assert_eq!(pieces("{\"a\":\n{\"b\":2} \n").len(), 2);
        assert_eq!(pieces("{\"a\":\n{\"b\":2}\n"), [(1, "{\"a\":".into()), (2, "{\"b\":2}".into())]);
        assert_eq!(pieces("{\"a\":\n"), [(1, "{\"a\":".into())]);
        assert_eq!(pieces("nonsense\n{}\n").len(), 2);
        assert!(pieces("\n \n").is_empty());
    }

    #[test]
    fn a_document_over_many_lines_that_is_too_large_is_one_document() {
        let long = format!("{{\n\"a\": [\n{}0]\n}}\n", "1,\n".repeat(EVENT_BYTES_MAX / 2));
        let found = RefCell::new(Vec::new());
        read_all(Box::new(io::Cursor::new(format!("{long}{{\"b\":2}}\n{{\"c\":3}}\n").into_bytes())), &|piece| {
            let piece = piece.unwrap();
            found.borrow_mut().push((piece.line, piece.bytes, piece.text.len() <= EVENT_BYTES_MAX));
            true
        });
        let lines = EVENT_BYTES_MAX / 2 + 4;
        assert_eq!(found.into_inner(), [(1, long.len(), true), (lines + 1, 7, true), (lines + 2, 7, true)]);
    }

    #[test]
    fn a_line_beyond_the_bound_is_measured_but_not_kept() {
        let long = format!("{{\"a\": \"{}\"}}\n{{}}\n", "x".repeat(3 * EVENT_BYTES_MAX));
        let mut input = io::Cursor::new(long.into_bytes());
        let (text, bytes) = read_line(&mut input).unwrap().unwrap();
        assert_eq!((text.len(), bytes), (EVENT_BYTES_MAX + 1, 3 * EVENT_BYTES_MAX + 9));
        assert_eq!(read_line(&mut input).unwrap(), Some((b"{}".to_vec(), 2)));
    }
}
