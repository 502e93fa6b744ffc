//! The port through which programs are run: each in a cell of its own. Implemented in `cli` on top of the sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;

use actum_contract::execution::{End, Sandbox};
use serde_json::Value;

/// A program that is to be run.
#[derive(Debug, Clone)]
pub struct Job {
    pub program: Vec<String>,
    pub environment: BTreeMap<String, String>,
    /// Values that must not be seen anywhere; added to the environment.
    pub secrets: BTreeMap<String, String>,
    pub stdin: Option<Vec<u8>>,
    pub sandbox: Sandbox,
}

/// What came of it, without secrets.
#[derive(Debug, Clone)]
pub struct Ran {
    /// None: there was no cell.
    pub end: Option<End>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub is_cut: bool,
    pub duration_ms: u64,
    /// Why there was no cell, if there was none.
    pub error: Option<String>,
    /// What whoever watched over it has to say.
    pub evidence: Value,
}

/// Why nothing was run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRun {
    pub why: String,
    /// It may not be run, whoever tries again.
    pub is_denied: bool,
}

impl From<String> for NotRun {
    fn from(why: String) -> Self {
        Self { why, is_denied: false }
    }
}

/// Who runs programs.
pub trait Cells: Send + Sync + fmt::Debug {
    /// Runs a program to its end.
    fn run(&self, job: &Job) -> Result<Ran, NotRun>;

    /// Starts a program to be spoken to.
    fn start(&self, job: &Job) -> Result<Box<dyn Session>, String>;
}

/// A program that is spoken to through its input and output.
pub trait Session: Send + fmt::Debug {
    /// Its input and its output, both non-blocking; once.
    fn pipes(&mut self) -> Option<(OwnedFd, OwnedFd)>;

    /// Whether it has ended by itself.
    fn is_over(&mut self) -> bool;

    /// What whoever watches over it has to say so far; nothing if nobody does.
    fn evidence(&self) -> Value {
        Value::Null
    }

    /// Ends it, if it has not ended, and says how it was.
    fn stop(self: Box<Self>) -> Ran;
}
