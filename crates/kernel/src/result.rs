//! How a run ended, and the result that is handed out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Stable words for why a run did not succeed; what programs branch on.
pub mod code {
    pub const ADMISSION_DENIED: &str = "ADMISSION_DENIED";
    pub const DUPLICATE_CAPSULE: &str = "DUPLICATE_CAPSULE";
    pub const PROTECTED_FILE: &str = "PROTECTED_FILE";
    pub const LINK_LEAVES: &str = "LINK_LEAVES_WORKSPACE";
    pub const TIMEOUT: &str = "TIMEOUT";
    pub const AGENT_FAILED: &str = "AGENT_FAILED";
    pub const PLAN_EMPTY: &str = "PLAN_EMPTY";
    pub const PLAN_TIMEOUT: &str = "PLAN_TIMEOUT";
    pub const PLAN_FAILED: &str = "PLAN_FAILED";
    pub const MACHINE_FAILED: &str = "MACHINE_FAILED";
    pub const STEP_LIMIT: &str = "STEP_LIMIT_EXCEEDED";
    pub const LIGHT_FAILED: &str = "LIGHT_VALIDATION_FAILED";
    pub const HEAVY_FAILED: &str = "HEAVY_VALIDATION_FAILED";
    pub const CORRECTION_POLICY: &str = "CORRECTION_POLICY_VIOLATION";
    pub const NOT_CONVERGING: &str = "CORRECTION_NOT_CONVERGING";
    pub const OUTPUT_MISSING: &str = "OUTPUT_MISSING";
    pub const TESTS_FAILED: &str = "TESTS_FAILED";
    pub const PUBLISH_CONFLICT: &str = "PUBLISH_CONFLICT";
    pub const COHERENCE_BLOCKED: &str = "COHERENCE_BLOCKED";
    pub const DEPENDENCY_FAILED: &str = "DEPENDENCY_FAILED";
    pub const CANCELLED: &str = "CANCELLED";
    pub const INTERRUPTED: &str = "INTERRUPTED";
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Success,
    Failure,
    Denied,
    Timeout,
}

impl Status {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Denied => "denied",
            Self::Timeout => "timeout",
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub status: Status,
    /// Nothing for success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether trying again may help.
    #[serde(default)]
    pub retryable: bool,
    /// The result is kept and not published: as a draft, or because others were in the way.
    #[serde(default)]
    pub kept: bool,
    #[serde(default)]
    pub cancelled: bool,
}

impl Verdict {
    pub const fn success(kept: bool) -> Self {
        Self { status: Status::Success, code: None, message: None, retryable: false, kept, cancelled: false }
    }

    pub fn ended(status: Status, code: &str, message: impl Into<String>) -> Self {
        // Limits of time and failures of programs may go away; what was denied stays denied.
        let retryable = status != Status::Denied;
        Self {
            status,
            code: Some(code.to_owned()),
            message: Some(message.into()),
            retryable,
            kept: false,
            cancelled: false,
        }
    }
}

/// What a run hands out, in the words of its contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    pub status: Status,
    pub receipt_id: String,
    pub receipt_path: String,
    pub modified_files: Vec<String>,
    pub created_files: Vec<String>,
    pub deleted_files: Vec<String>,
    pub output_hash: String,
    pub artifact_hashes: BTreeMap<String, String>,
    pub metrics: Metrics,
    /// What its models and tools cost, if it asked any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spend: Option<Spent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof_script: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denial_reason: Option<String>,
}

/// What a run has spent, as its receipts say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub currency: String,
    /// In the smallest unit of the currency.
    pub spent: u64,
    /// Calls that were made.
    pub calls: u64,
    /// What was spent in other currencies.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    pub execution_time_ms: u64,
    pub tool_ops_count: u64,
    pub delta_size: u64,
    pub files_touched: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_passed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_failed: Option<u64>,
}
