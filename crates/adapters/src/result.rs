//! How one attempt at a call went.

use actum_contract::execution::End;
use actum_contract::tool::Went;
use serde_json::Value;

/// What one attempt came to.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub adapter_id: String,
    pub went: Went,
    /// What came out, before the adapter's output transforms: text of a program, JSON of a service.
    pub output: Value,
    pub stdout: String,
    pub stderr: String,
    pub is_cut: bool,
    /// The exit code, or the status of HTTP.
    pub code: Option<u64>,
    pub duration_ms: u64,
    /// How long the other side asks to be left alone.
    pub retry_after_ms: Option<u64>,
    pub problem: Option<Problem>,
    pub evidence: Value,
    /// How the program ended, if one was run.
    pub end: Option<End>,
}

impl Attempt {
    /// An attempt of which nothing more is known yet.
    pub fn new(adapter_id: &str, went: Went) -> Self {
        Self {
            adapter_id: adapter_id.to_owned(),
            went,
            output: Value::Null,
            stdout: String::new(),
            stderr: String::new(),
            is_cut: false,
            code: None,
            duration_ms: 0,
            retry_after_ms: None,
            problem: None,
            evidence: Value::Null,
            end: None,
        }
    }

    /// An attempt that came to nothing.
    pub fn failed(adapter_id: &str, went: Went, problem: Problem) -> Self {
        Self { problem: Some(problem), ..Self::new(adapter_id, went) }
    }
}

/// What was wrong, and where on the way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    pub stage: Stage,
    /// The path in the parameters or the output that is to blame, if one is.
    pub path: Option<String>,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The parameters.
    Input,
    /// The call itself.
    Call,
    /// What came out.
    Output,
    /// Somebody may not be reached.
    Denied,
}

impl Problem {
    pub fn new(stage: Stage, message: impl Into<String>) -> Self {
        Self { stage, path: None, message: message.into() }
    }

    pub fn at(stage: Stage, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { stage, path: Some(path.into()), message: message.into() }
    }
}
