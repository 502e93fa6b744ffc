//! An error on its way to a person or a program: which row of the table, what was wrong, where, what to do.

use std::fmt::Write as _;

use actum_api::error::{self, ErrorRow};
use actum_ledger::journal::JournalError;
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Failure {
    pub row: &'static ErrorRow,
    pub message: String,
    pub details: Value,
    pub hint: Option<String>,
    pub place: Option<Box<Place>>,
}

/// A position in a document, with the line as it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub file: String,
    pub line: usize,
    /// Counts bytes from one.
    pub column: usize,
    pub source: String,
}

/// Longest piece of a source line that is shown.
const SHOWN_BYTES: usize = 100;

impl Failure {
    pub(crate) fn new(name: &str, message: impl Into<String>) -> Self {
        Self { row: error::named(name), message: message.into(), details: Value::Null, hint: None, place: None }
    }

    /// Whether something that is needed does not answer now, and may later.
    pub(crate) fn is_passing(&self) -> bool {
        [error::STORE_UNAVAILABLE, error::BLOBS_UNAVAILABLE].contains(&self.row.name)
    }

    /// Whether this machine failed, and another one may not: its disk, open files or memory, its cells, its access to the
    /// object store.
    pub(crate) fn is_machines(&self) -> bool {
        let machines = [error::DISK_FULL, error::SANDBOX_UNAVAILABLE, error::MACHINE_FAULT, error::BLOBS_REFUSED];
        machines.contains(&self.row.name)
    }

    /// An error of the system while a file was used: the machine's, or of that file.
    pub(crate) fn of_io(message: impl Into<String>, e: &std::io::Error) -> Self {
        Self::new(machine_error(e).unwrap_or(error::FILE), message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    pub(crate) fn at(mut self, place: Place) -> Self {
        let Place { file, line, column, .. } = &place;
        if self.details.is_null() {
            self.details = json!({"file": file, "line": line, "column": column});
        }
        self.place = Some(Box::new(place));
        self
    }

    pub(crate) fn to_json(&self) -> Value {
        error::json(self.row, &self.message, &self.details, self.hint.as_deref())
    }

    pub(crate) fn to_text(&self) -> String {
        // Lines are ours; whatever else a terminal would obey may come from anywhere.
        let message = self.message.lines().map(crate::ui::clean).collect::<Vec<_>>().join("\n");
        let mut text = format!("error[{}]: {message}", self.row.code);
        if let Some(place) = &self.place {
            let _ = write!(text, "\n{}", place.to_text());
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "\n  = help: {hint}");
        }
        let _ = write!(text, "\n  = see: docs/errors/{}.md", self.row.code);
        text
    }
}

impl Place {
    /// The place in a text, given line and column counted from one.
    pub(crate) fn of(file: &str, text: &[u8], line: usize, column: usize) -> Self {
        let bytes = text.split(|b| *b == b'\n').nth(line.saturating_sub(1)).unwrap_or_default();
        Self { file: file.to_owned(), line, column, source: String::from_utf8_lossy(bytes).into_owned() }
    }

    /// Without the line itself: there may be something in it that nobody is to see.
    pub(crate) fn without_source(mut self) -> Self {
        self.source.clear();
        self
    }

    pub(crate) fn to_text(&self) -> String {
        let Self { file, line, column, source } = self;
        if source.is_empty() {
            return format!(" --> {file}:{line}:{column}");
        }
        let gutter = " ".repeat(line.to_string().len());
        let (shown, caret) = window(source, column.saturating_sub(1));
        format!("{gutter}--> {file}:{line}:{column}\n{gutter} |\n{line} | {shown}\n{gutter} | {}^", " ".repeat(caret))
    }
}

/// A piece of the line around a byte, and where in the piece that byte is shown. A line may be megabytes long.
fn window(source: &str, at: usize) -> (String, usize) {
    let border = |mut i: usize| {
        i = i.min(source.len());
        while !source.is_char_boundary(i) {
            i -= 1;
        }
        i
    };
    let start = border(at.saturating_sub(SHOWN_BYTES / 2));
    let end = border(start + SHOWN_BYTES);
    let lead = if start > 0 { "…" } else { "" };
    let tail = if end < source.len() { "…" } else { "" };
    // Line breaks are no part of one line; the caret below stays where it is.
    let clean = |s: &str| crate::ui::clean(&s.replace(char::is_control, " "));
    let caret = lead.chars().count() + source[start..border(at).max(start)].chars().count();
    (format!("{lead}{}{tail}", clean(&source[start..end])), caret)
}

/// Returns the error that an answer of the system stands for if the machine is to blame, whatever file it was about.
fn machine_error(e: &std::io::Error) -> Option<&'static str> {
    use rustix::io::Errno;

    match Errno::from_io_error(e)? {
        Errno::NOSPC | Errno::DQUOT => Some(error::DISK_FULL),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::IO | Errno::ROFS => {
            Some(error::MACHINE_FAULT)
        }
        _ => None,
    }
}

impl From<JournalError> for Failure {
    fn from(e: JournalError) -> Self {
        let name = match &e {
            JournalError::Unavailable(_) => error::STORE_UNAVAILABLE,
            JournalError::Damaged(_) => error::STORE_DAMAGED,
            JournalError::Tampered(_) => error::LEDGER_DAMAGED,
            JournalError::Unusable(_) => error::STORE_UNUSABLE,
            JournalError::ClockSkew(_) => error::CLOCK_SKEW,
        };
        let failure = Self::new(name, e.to_string());
        match e {
            JournalError::ClockSkew(_) => {
                failure.hint("set this machine's clock, for example by NTP; `actum doctor` shows the difference")
            }
            _ => failure,
        }
    }
}

impl From<actum_contract::blob::BlobError> for Failure {
    fn from(e: actum_contract::blob::BlobError) -> Self {
        actum_workspace::Error::from(e).into()
    }
}

impl From<actum_workspace::Error> for Failure {
    fn from(e: actum_workspace::Error) -> Self {
        use actum_contract::blob::BlobError;
        use actum_workspace::Error;

        let message = e.to_string();
        if let Some(name) = e.io_source().and_then(machine_error) {
            return Self::new(name, message);
        }
        match e {
            Error::Publisher { .. } => Self::new(error::FILE, message),
            Error::Conflict(conflict) => {
                let paths: Vec<_> = conflict.paths.iter().map(ToString::to_string).collect();
                let blocked: Vec<_> = conflict.in_the_way.iter().map(ToString::to_string).collect();
                let details = json!({"paths": paths, "in_the_way": blocked, "kept": conflict.kept});
                let failure = Self::new(error::PUBLISH_CONFLICT, message).details(details);
                if blocked.is_empty() {
                    failure
                } else {
                    failure.hint("move what is in the way elsewhere, and try again")
                }
            }
            Error::NotOwnFolder(_) | Error::Replaced(_) => Self::new(error::WORKSPACE_REPLACED, message)
                .hint("submit the work again if the folder is meant as it is now"),
            Error::Interrupted => {
                Self::new(error::WORKSPACE_REFUSED, message).hint("run the command again: it mends that")
            }
            Error::Busy(_) => Self::new(error::STAGE_BUSY, message).hint("wait for it, or end it"),
            Error::Applied(id) => Self::new(error::ALREADY_APPLIED, message)
                .hint(format!("`actum undo {id}` takes it back; `actum stage drop {id}` removes what is left of it")),
            Error::Unsaved(paths) => Self::new(error::UNSAVED, message)
                .details(json!({ "paths": paths }))
                .hint("`actum snapshot freeze` keeps them; `--discard` goes on without"),
            Error::Special(_) => Self::new(error::WORKSPACE_REFUSED, message)
                .hint("sockets, pipes and devices have no content; ignore them, or `--exclude` them"),
            Error::Changing(_) => {
                Self::new(error::WORKSPACE_REFUSED, message).hint("stop what is writing to it, or try again")
            }
            Error::TooManyMounts { .. } => Self::new(error::STAGING, message)
                .hint("set `view: live` in the work item to show the workspace itself"),
            Error::LinkedOutside(_) | Error::ForeignOverlay(..) | Error::Refused(_) => {
                Self::new(error::WORKSPACE_REFUSED, message)
            }
            Error::Pattern { .. } => Self::new(error::USAGE, message).hint("patterns are those of a .gitignore file"),
            Error::Ambiguous { .. } => Self::new(error::USAGE, message).hint("name more of it"),
            Error::Unknown { what, .. } => {
                let list = match what {
                    "stage" => "`actum stage list` shows the stages there are",
                    "publication" => "`actum stage list` and `actum ledger list` show what there is",
                    _ => "`actum snapshot list` shows the snapshots there are",
                };
                Self::new(error::NOT_FOUND, message).hint(list)
            }
            Error::Mode { .. } => {
                Self::new(error::STAGING, message).hint("`actum doctor` says what this machine offers")
            }
            Error::Newer(_) | Error::Blob(BlobError::Newer(_)) => {
                Self::new(error::STORE_UNUSABLE, message).hint("use a newer actum")
            }
            Error::Record(_) => Self::new(error::CONTENT_DAMAGED, message).hint("move the file away and try again"),
            Error::Blob(BlobError::Missing(_) | BlobError::Damaged(..)) | Error::Tree { .. } => {
                Self::new(error::CONTENT_DAMAGED, message)
                    .hint("`actum snapshot freeze --paranoid` stores again what is still in the workspace")
            }
            Error::Blob(BlobError::Unavailable(_)) => Self::new(error::BLOBS_UNAVAILABLE, message)
                .hint("nothing is lost: what was not sent yet is sent by the next command that keeps something"),
            Error::Blob(BlobError::Refused(_)) => Self::new(error::BLOBS_REFUSED, message)
                .hint("`actum doctor` tries it; it is named by [blobs] of actum.toml or by ACTUM_BLOBS"),
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Self::new(error::FILE, message).hint("give yourself access, or leave it out: .gitignore or `--exclude`")
            }
            Error::Io { .. } | Error::Blob(BlobError::Io { .. }) => Self::new(error::FILE, message),
        }
    }
}

impl From<actum_contract::BadConfig> for Failure {
    fn from(bad: actum_contract::BadConfig) -> Self {
        let count = bad.fields.len();
        let mut message = if count == 1 {
            "one field of the execution config is bad".to_owned()
        } else {
            format!("{count} fields of the execution config are bad")
        };
        for field in &bad.fields {
            let _ = write!(message, "\n  {field}");
        }
        Self::new(error::CONFIG, message)
            .details(json!({"fields": bad.fields}))
            .hint("`actum contract explain` shows every field with its range")
    }
}

impl From<actum_contract::ContractError> for Failure {
    fn from(e: actum_contract::ContractError) -> Self {
        Self::new(e.code(), e.to_string()).details(e.details())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_machine_are_told_from_those_of_a_file() {
        use rustix::io::Errno;

        for (errno, name, is_machines) in [
            (Errno::NOSPC, error::DISK_FULL, true),
            (Errno::DQUOT, error::DISK_FULL, true),
            (Errno::MFILE, error::MACHINE_FAULT, true),
            (Errno::IO, error::MACHINE_FAULT, true),
            (Errno::ROFS, error::MACHINE_FAULT, true),
            (Errno::ACCESS, error::FILE, false),
            (Errno::NOENT, error::FILE, false),
        ] {
            let failure = Failure::of_io("cannot write x", &errno.into());
            assert_eq!((failure.row.name, failure.is_machines()), (name, is_machines), "{errno}");
        }
    }

    #[test]
    fn a_place_shows_its_line_and_points_at_the_column() {
        let failure = Failure::new(error::INPUT, "duplicate key \"a\"")
            .at(Place::of("x.json", b"{\n  \"a\": 1, \"a\": 2}\n", 2, 13))
            .hint("keep one of them");
        assert_eq!(
            failure.to_text(),
            "error[A0101]: duplicate key \"a\"\n --> x.json:2:13\n  |\n2 |   \"a\": 1, \"a\": 2}\n  |             ^\n  \
             = help: keep one of them\n  = see: docs/errors/A0101.md"
        );
        assert_eq!(failure.to_json()["error"]["details"], json!({"file": "x.json", "line": 2, "column": 13}));
    }

    #[test]
    fn a_long_line_is_shown_around_the_column_and_characters_are_never_cut() {
        let (shown, caret) = window(&"é".repeat(1_000_000), 1_000_001);
        assert!(shown.starts_with('…') && shown.ends_with('…') && shown.len() < 200);
        assert_eq!(shown.chars().nth(caret), Some('é'));
        assert_eq!(window("ab", 7), ("ab".into(), 2));
        assert_eq!(window("", 0), (String::new(), 0));
    }
}
