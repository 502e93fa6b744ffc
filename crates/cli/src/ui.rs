//! Everything that is printed. Results go to stdout, everything else to stderr; what a command says in a seat is collected
//! instead, and goes to whoever asked.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::args::Global;
use crate::failure::Failure;
use crate::terminal::{self, Marker, is_deceiving};

#[derive(Debug)]
pub(crate) struct Out {
    pub json: bool,
    quiet: bool,
    verbose: bool,
    stdout: io::Stdout,
    /// Marks what a terminal would obey, if stdout is one.
    marker: Option<Marker>,
    /// The reader has seen enough and is gone; work goes on without it.
    unread: bool,
    kept: Option<Mutex<Kept>>,
}

/// What a command would have printed.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub results: Vec<u8>,
    /// What would have gone to stderr, line by line: what is good to know, and what has to be known.
    pub remarks: Vec<String>,
    pub asides: Vec<String>,
    /// There was more than is kept.
    pub is_cut: bool,
}

/// The argument by which results reach a terminal unmarked.
pub(crate) const RAW: &str = "raw";
/// What is kept of the results of a command.
pub(crate) const RESULT_BYTES_MAX: usize = 64 << 20;
/// Lines that are kept of each.
const REMARKS_MAX: usize = 1_000;

impl Out {
    pub(crate) fn new(global: &Global) -> Self {
        let Global { json, quiet, verbose, .. } = *global;
        let stdout = io::stdout();
        let marker = stdout.is_terminal().then(|| if json { Marker::of_json() } else { Marker::default() });
        Self { json, quiet, verbose, stdout, marker, unread: false, kept: None }
    }

    /// Passes results on to a terminal as they are.
    pub(crate) fn set_raw(&mut self) {
        self.marker = None;
    }

    /// Prints what was held back because the rest of it could still come.
    pub(crate) fn finish(&mut self) {
        if let Some(rest) = self.marker.take().map(|mut marker| marker.end()).filter(|rest| !rest.is_empty()) {
            self.bytes(rest.as_bytes());
        }
    }

    /// Collects instead of printing.
    pub(crate) fn captured(json: bool) -> Self {
        let kept = Some(Mutex::default());
        Self { json, quiet: false, verbose: false, stdout: io::stdout(), marker: None, unread: false, kept }
    }

    /// What was collected.
    pub(crate) fn taken(self) -> Kept {
        self.kept.map(|kept| kept.into_inner().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.kept.is_some()
    }

    /// Prints bytes: as they are, or marked if they go to a terminal.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if let Some(kept) = &mut self.kept {
            let kept = kept.get_mut().unwrap_or_else(PoisonError::into_inner);
            match kept.results.len() + bytes.len() <= RESULT_BYTES_MAX {
                true => kept.results.extend_from_slice(bytes),
                false => kept.is_cut = true,
            }
            return;
        }
        if self.unread {
            return;
        }
        let marked = self.marker.as_mut().map(|marker| marker.mark(bytes));
        let bytes = marked.as_deref().map_or(bytes, str::as_bytes);
        match self.stdout.write_all(bytes).and_then(|()| self.stdout.flush()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.unread = true,
            Err(e) => {
                // A full disk behind a redirection: whoever reads the result must not take it for whole.
                note(&format!("cannot write to stdout: {e}"));
                std::process::exit(70);
            }
        }
    }

    pub(crate) fn line(&mut self, text: &str) {
        self.bytes(format!("{text}\n").as_bytes());
    }

    /// One result: as JSON, or as the text for people.
    pub(crate) fn result(&mut self, json: &Value, text: impl FnOnce() -> String) {
        let shown = if self.json { json.to_string() } else { text() };
        self.line(&shown);
    }

    /// Something good to know that nobody asked for.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet && !self.json {
            self.said(text, |kept| &mut kept.remarks);
        }
    }

    /// Something that has to be known, asked for or not.
    pub(crate) fn aside(&self, text: &str) {
        self.said(text, |kept| &mut kept.asides);
    }

    fn said(&self, text: &str, among: fn(&mut Kept) -> &mut Vec<String>) {
        let Some(kept) = &self.kept else { return note(text) };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let among = among(&mut kept);
        if among.len() < REMARKS_MAX {
            among.push(text.to_owned());
        }
    }

    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.aside(text);
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn fail(&self, failure: &Failure) -> ExitCode {
        note(&if self.json { failure.to_json().to_string() } else { failure.to_text() });
        ExitCode::from(failure.row.exit)
    }
}

/// Prints a line on stderr, marked if that is a terminal. If it cannot be written, there is no one left to read it.
pub(crate) fn note(text: &str) {
    let _ = match io::stderr().is_terminal() {
        true => writeln!(io::stderr(), "{}", terminal::mark(text)),
        false => writeln!(io::stderr(), "{text}"),
    };
}

pub(crate) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Returns text that others have chosen, such as names of files and words of agents, for one line: what a terminal would obey or
/// a reader would not see is replaced.
pub(crate) fn clean(text: &str) -> String {
    let mut before = None;
    let replaced = text.chars().map(|c| {
        let shown = if is_deceiving(c, before) { '\u{fffd}' } else { c };
        before = Some(shown);
        shown
    });
    replaced.collect()
}

/// A number with its noun.
pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Rows under headings, columns aligned; the last column is free.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let columns = headings.len();
    let mut widths: Vec<_> = headings.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(i, cell)| match i + 1 == columns {
            true => cell.clone(),
            false => format!("{cell}{}", " ".repeat(widths[i] - cell.chars().count())),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let headings: Vec<_> = headings.iter().map(|h| (*h).to_owned()).collect();
    std::iter::once(&headings).chain(rows).map(|r| line(r)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn nothing_is_left_that_a_terminal_would_obey() {
        for c in "\u{61c}\u{200b}\u{feff}\u{ad}\u{e0041}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\0\t\n\r\u{1b}\u{7f}\u{9b}".chars() {
            assert_eq!(clean(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        // Words of any direction, and letters that are put together, are words.
        for text in ["שלום", "مرحبا", "é e\u{301}", "👩\u{200d}💻", "a b"] {
            assert_eq!(clean(text), text);
        }
    }
}
