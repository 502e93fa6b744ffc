//! What happens to a run, as its journal keeps it. Every field that later decisions or the receipt need is here; times
//! and digests arrive, nothing is measured.

use actum_contract::ExecutionConfig;
use serde::{Deserialize, Serialize};

use crate::correct::{Correction, Kind};
use crate::result::{Status, Verdict};
use crate::state::last_line;

/// One event of a run. Stored as text: variants and fields are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An attempt begins, or is taken over from a worker that was lost.
    Begun {
        attempt: u64,
        worker: String,
    },
    /// The workspace as it was found: its tree, and the commit it stood on if it is a repository.
    Frozen {
        before: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<String>,
    },
    /// The private copy is complete.
    Staged {
        stage: String,
        /// What it shows: `frozen`, `strict` or `live`. Stages of the first version were live.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        view: Option<String>,
    },
    Planned(Plan),
    Acted(Box<Acted>),
    Checked(Checked),
    /// The capsule, and the earlier run that was admitted with the same.
    Weighed {
        capsule: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duplicate_of: Option<String>,
        /// Declared outputs that are not there.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<String>,
    },
    Tested(Tested),
    /// From here on the workspace may have been changed.
    Publishing {
        publication: String,
    },
    /// The publication that had begun was rolled back: the workspace is as it was before.
    Reverted {
        publication: String,
    },
    Published {
        publication: String,
        /// Paths of others that changed meanwhile.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drift: Vec<String>,
        /// The workspace's tree then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Others changed the same paths: nothing was published.
    Conflicted {
        paths: Vec<String>,
    },
    /// The inputs are not what the run was planned on.
    Stale {
        paths: Vec<String>,
    },
    /// Somebody wants the run to end: for good, or to go on later.
    Stopped {
        cancelled: bool,
        reason: String,
    },
    /// Something could not be done that is none of the agent's doing.
    Faulted {
        code: String,
        message: String,
        retryable: bool,
    },
    /// The machine of a worker could not go on with the run: it goes back to the queue, for another one.
    SetBack(SetBack),
    /// Worth knowing, and of no consequence.
    Warned {
        what: String,
    },
    /// The run's contract was overridden. `from` governs every event before this one, `to` every event after it.
    ContractChanged {
        from: Box<GoverningContract>,
        to: Box<GoverningContract>,
    },
    /// How it ended. The last event of an attempt.
    Ended(Verdict),
}

impl Event {
    /// The word by which it is listed.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Begun { .. } => "begun",
            Self::Frozen { .. } => "frozen",
            Self::Staged { .. } => "staged",
            Self::Planned(_) => "planned",
            Self::Acted(_) => "acted",
            Self::Checked(_) => "checked",
            Self::Weighed { .. } => "weighed",
            Self::Tested(_) => "tested",
            Self::Publishing { .. } => "publishing",
            Self::Reverted { .. } => "reverted",
            Self::Published { .. } => "published",
            Self::Conflicted { .. } => "conflicted",
            Self::Stale { .. } => "stale",
            Self::Stopped { .. } => "stopped",
            Self::Faulted { .. } => "faulted",
            Self::SetBack(_) => "set_back",
            Self::Warned { .. } => "warned",
            Self::ContractChanged { .. } => "contract_changed",
            Self::Ended(_) => "ended",
        }
    }
}

/// A machine that could not go on with a run, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBack {
    pub machine: String,
    pub worker: String,
    pub reason: String,
}

/// The contract that governs a part of a run's journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoverningContract {
    pub hash: String,
    pub config: ExecutionConfig,
}

/// What the planner came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub in_time: bool,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    pub took_ms: u64,
    /// What the planner heard of its tools, if it was given some: the digest of what is kept of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<ToolOp>,
    /// How it asked its tools for more than it may, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<String>,
    /// What was denied to it, if it asked a model for something it may not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
}

/// A no of the policy that ends a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Of the taxonomy of reasons: `policy_denied.budget_exhausted`.
    pub reason_code: String,
    pub message: String,
}

impl Denial {
    pub(crate) fn ends(&self) -> Event {
        let message = format!("{}: {}", self.reason_code, self.message);
        Event::Ended(Verdict::ended(Status::Denied, &self.reason_code, message))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub id: String,
    pub description: String,
}

/// An act that is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// Which step, counted from 0.
    pub index: usize,
    pub step: Step,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
}

/// What the agent did in one act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acted {
    pub act: Act,
    pub end: End,
    /// The stage's tree afterwards.
    pub state: String,
    /// What this act changed, as far as it is listed; `totals.changed` is how many there were.
    pub changed: Vec<Changed>,
    pub totals: Totals,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<ToolOp>,
    pub took_ms: u64,
    /// What the agent heard of its tools, if it was given some: the digest of what is kept of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<String>,
}

/// How an act ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    Done,
    /// The agent or a tool of its failed.
    Failed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<u8>,
        message: String,
    },
    TimedOut,
    /// It asked its tools for more than it may.
    OutOfOps {
        /// How, if it is not by the number of its operations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// It asked a model for something it may not have: no budget, no permission.
    Denied(Denial),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub path: String,
    pub verb: String,
    pub bytes: u64,
}

/// Sums that limits are about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// By this act: paths, size of the whole diff, size of the largest file.
    pub changed: u64,
    pub diff_bytes: u64,
    pub largest_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest: Option<String>,
    /// Since the beginning: paths that differ from the frozen state.
    pub files: u64,
    pub deltas: u64,
    /// Files obeyed by other programs that were changed without being declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
    /// Files obeyed by other programs that were changed and are declared. Not the run publishes them, but a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obeyed: Vec<String>,
    /// Links that lead out of the workspace since the run began, and are not declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<String>,
    /// Environment files that were changed, also if they are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<String>,
}

/// One tool operation of the agent, as the trace keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOp {
    pub name: String,
    /// Content only: what was asked, without ids and times.
    pub input: serde_json::Value,
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// BLAKE3 of what came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// How the names of operations begin that are calls of models.
pub const MODEL: &str = "model ";

impl ToolOp {
    /// Whether it is a tool operation of the work item's limit. Calls of models have a budget of their own.
    pub fn is_tools(&self) -> bool {
        !self.name.starts_with(MODEL)
    }
}

/// What a validation came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub heavy: bool,
    pub failures: Vec<Failed>,
    /// Time ran out before all were run.
    #[serde(default)]
    pub timed_out: bool,
    pub took_ms: u64,
}

/// One thing that is wrong with the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What found it: a built-in check, or a command.
    pub check: String,
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The end of what was put out.
    pub message: String,
}

impl Failed {
    /// The finding in one line: the file, the reason and the check that found it.
    pub fn shown(&self) -> String {
        match &self.path {
            Some(path) => format!("{path} {} ({})", last_line(&self.message), self.check),
            None => format!("{}: {}", self.check, last_line(&self.message)),
        }
    }
}

/// What the test command came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    pub passed: bool,
    #[serde(default)]
    pub timed_out: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_passed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_failed: Option<u64>,
    /// The end of what was put out.
    pub output: String,
    pub took_ms: u64,
}
