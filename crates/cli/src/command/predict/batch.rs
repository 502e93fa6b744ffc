//! Many questions by one signature, one after the other, from JSON lines. All lines are checked before the first is asked.

use std::io::Read as _;
use std::path::Path;

use actum_api::error;
use actum_contract::canon;
use actum_contract::part::{Flaw, Part};
use serde_json::{Value, json};

use super::desk::{Desk, Told, Wanted, Who, refuse_trials};
use super::{INPUT_BYTES_MAX, money};
use crate::command::Ended;
use crate::failure::Failure;
use crate::model::evidence;
use crate::ui::{Out, clean, count};

/// Questions of one batch.
const LINES_MAX: usize = 100_000;
/// Lines of a flawed file that are told.
const LINES_SHOWN_MAX: usize = 20;

/// A question, and the line it stands in.
#[derive(Debug)]
pub(super) struct Line {
    number: usize,
    wanted: Wanted,
}

/// Reads the lines. `who`: for whom those ask that do not say.
pub(super) fn read(path: &Path, who: &Who) -> Result<Vec<Line>, Failure> {
    let name = if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() };
    let mut text = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().lock().take(INPUT_BYTES_MAX + 1).read_to_end(&mut text),
        false => std::fs::File::open(path).and_then(|file| file.take(INPUT_BYTES_MAX + 1).read_to_end(&mut text)),
    };
    read.map_err(|e| Failure::of_io(format!("cannot read {name}: {e}"), &e))?;
    if text.len() as u64 > INPUT_BYTES_MAX {
        let message = format!("{name} is larger than {INPUT_BYTES_MAX} bytes");
        return Err(Failure::new(error::FILE, message).hint("make several files of it"));
    }
    let (mut lines, mut flaws) = (Vec::new(), Vec::new());
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match read_line(at + 1, line, who) {
            Ok(wanted) => lines.push(Line { number: at + 1, wanted }),
            Err(why) => flaws.push((at + 1, why)),
        }
        if lines.len() > LINES_MAX {
            let message = format!("{name} has more than {LINES_MAX} lines");
            return Err(Failure::new(error::INPUT, message).hint("make several files of it"));
        }
    }
    refuse(&name, &flaws)?;
    if lines.is_empty() {
        return Err(Failure::new(error::INPUT, format!("{name} has no line")).hint(HINT));
    }
    Ok(lines)
}

const HINT: &str = "a line is such as {\"input\": {…}, \"user\": \"u1\", \"expected\": {…}}";

fn refuse(name: &str, flaws: &[(usize, String)]) -> Result<(), Failure> {
    let Some((first, _)) = flaws.first() else { return Ok(()) };
    let mut told: Vec<String> =
        flaws.iter().take(LINES_SHOWN_MAX).map(|(number, why)| format!("line {number}: {why}")).collect();
    if flaws.len() > LINES_SHOWN_MAX {
        told.push(format!("and {} more", flaws.len() - LINES_SHOWN_MAX));
    }
    let failure = Failure::new(error::INPUT, format!("{name}: {}", told.join("\n  ")));
    Err(failure.details(json!({"line": first})).hint(HINT))
}

fn read_line(number: usize, line: &[u8], who: &Who) -> Result<Wanted, String> {
    let value = canon::parse(line).map_err(|e| format!("no JSON: {}", e.message))?;
    let mut flaws: Vec<Flaw> = Vec::new();
    let part = &mut Part::new(&value, "", "a line of a batch", &mut flaws);
    let input = part.take("input");
    if input.is_none() {
        part.bad("input", &Value::Null, "what is asked");
    }
    let mut text = |name: &str, usual: &Option<String>| {
        let found = part.text(name).or_else(|| usual.clone());
        if found.as_deref() == Some("") {
            part.bad(name, &json!(""), "text that is not empty");
        }
        found
    };
    let who = Who {
        key: text("key", &who.key),
        user: text("user", &who.user),
        run: text("run", &who.run),
        thread: text("thread", &who.thread),
        agent: text("agent", &who.agent),
    };
    let expected = part.take("expected");
    let score = part.take("score").and_then(|value| {
        let found = value.as_f64().filter(|score| (0.0..=1.0).contains(score));
        if found.is_none() {
            part.bad("score", &value, "a number from 0 to 1");
        }
        found
    });
    part.finish();
    match (input, flaws.is_empty()) {
        (Some(input), true) => Ok(Wanted { input, who, expected, score, reason: format!("line {number} of a batch") }),
        _ => Err(flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    }
}

/// Asks all of them; the exit code is that of the worst.
pub(super) fn run(desk: &mut Desk<'_>, lines: &[Line], out: &mut Out) -> Ended {
    let mut flaws = Vec::new();
    for Line { number, wanted } in lines {
        if let Err(why) = desk.signature.check_input(&wanted.input) {
            flaws.push((*number, format!("the input does not fit its schema: {}", why.join("; "))));
        }
    }
    let redactor = evidence::redactor(desk.open)?;
    for Line { number, wanted } in lines {
        if let Err(failure) = refuse_trials(&wanted.who) {
            flaws.push((*number, failure.message));
        }
        if wanted.expected.as_ref().is_some_and(|expected| !evidence::is_comparable(expected, &redactor)) {
            let why = "what is expected holds a secret or personal data, which is not kept; give score instead";
            flaws.push((*number, why.to_owned()));
        }
    }
    refuse("the batch", &flaws)?;
    // One key is like the other.
    if let Some(Line { wanted, .. }) = lines.iter().find(|line| line.wanted.who.key.is_some()) {
        desk.check(&wanted.who)?;
    }
    let (mut code, mut failed) = (0, 0);
    for Line { number, wanted } in lines {
        let Told { mut shown, failure, moved, warning, .. } = desk.ask(wanted)?;
        if let Some(warning) = warning {
            out.aside(&warning);
        }
        if let Some(failure) = &failure {
            code = code.max(failure.row.exit);
            failed += 1;
        }
        shown["line"] = json!(number);
        out.result(&shown, || row(*number, &shown));
        if let Some(moved) = moved {
            out.remark(&moved);
        }
    }
    let asked = count(lines.len() as u64, "question", "questions");
    out.remark(&format!("{asked} asked, {failed} without an answer"));
    Ok(code)
}

fn row(number: usize, shown: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spent = money(shown["budget"]["spent"].as_u64().unwrap_or(0), &text(&shown["budget"]["currency"]));
    let (artifact, said) =
        (&shown["artifact"], if shown["error"].is_null() { &shown["output"] } else { &shown["error"] });
    let said: String = clean(&said.to_string()).chars().take(SAID_CHARS_MAX).collect();
    format!(
        "{number:>5}  {:<9}  {:<7}  {}  {:>6} tokens  {spent}  {}  {said}",
        text(&shown["status"]),
        text(&artifact["variant"]),
        text(&artifact["compiled_id"]),
        shown["budget"]["total_tokens"],
        text(&shown["receipt_id"]),
    )
}

/// Letters of an answer in a table.
const SAID_CHARS_MAX: usize = 60;
