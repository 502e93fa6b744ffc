//! Why the ledger refuses an entry: one code, and everything that is wrong with it.

use serde::Serialize;
use serde_json::{Value, json};

/// The refusal codes, in the order in which they are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    Validation,
    IdempotencyConflict,
    UnknownLineage,
    InvalidTransition,
    CoherenceBlocked,
}

impl Code {
    pub const ALL: [Self; 5] = [
        Self::Validation,
        Self::IdempotencyConflict,
        Self::UnknownLineage,
        Self::InvalidTransition,
        Self::CoherenceBlocked,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Validation => "VALIDATION_ERROR",
            Self::IdempotencyConflict => "IDEMPOTENCY_CONFLICT",
            Self::UnknownLineage => "UNKNOWN_LINEAGE",
            Self::InvalidTransition => "INVALID_TRANSITION",
            Self::CoherenceBlocked => "COHERENCE_BLOCKED",
        }
    }
}

/// One rule that one place of the document breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Dotted path into the document; empty for the document itself.
    pub path: String,
    pub message: String,
    /// Position in the text, for documents that are not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl Violation {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), line: None, column: None }
    }

    pub fn at(message: impl Into<String>, line: usize, column: usize) -> Self {
        Self { path: String::new(), message: message.into(), line: Some(line), column: Some(column) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub violations: Vec<Violation>,
}

impl Refusal {
    pub fn validation(violations: Vec<Violation>) -> Self {
        let message = match violations.as_slice() {
            [one] if one.path.is_empty() => one.message.clone(),
            [one] => format!("{} {}", one.path, one.message),
            many => format!("{} violations: {}", many.len(), list(many)),
        };
        Self { code: Code::Validation, message, violations }
    }

    pub fn new(code: Code, message: impl Into<String>, violations: Vec<Violation>) -> Self {
        Self { code, message: message.into(), violations }
    }

    pub fn details(&self) -> Value {
        json!({ "violations": self.violations })
    }
}

fn list(violations: &[Violation]) -> String {
    let paths: Vec<_> =
        violations.iter().map(|v| if v.path.is_empty() { "document" } else { v.path.as_str() }).collect();
    paths.join(", ")
}
