//! The code execution contract: one tool call, what it may use, and how its end is to be read. Read by `cli` (and later
//! the engine) before anything is run; says nothing of how it is run.

mod check;
mod evidence;
mod exit;
mod host;
mod level;
mod limit;
mod read;
mod redact;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub use crate::part::Flaw;
pub use check::{
    Facts, Inputs as CheckedInputs, Tool, Violation, check, is_dangerous, is_interpreter, shell_character,
};
pub use evidence::{Item, Phase, State, checklist};
pub use exit::{End, Interpretation};
pub use host::{AddressKind, BadHost, Host, Verdict, allows, kind_of};
pub use level::{FilesystemLevel, NetworkLevel};
pub use limit::{LIMITS, Limit, limit};
pub use read::{BadExecution, read, schema};
pub use redact::Redactor;

/// Bytes of input and output, together where there may be several.
pub const STDIN_BYTES_MAX: u64 = 1 << 20;
pub const INPUT_FILES_BYTES_MAX: u64 = 10 << 20;
pub const STDOUT_BYTES_MAX: u64 = 1 << 20;
pub const STDERR_BYTES_MAX: u64 = 256 << 10;
pub const OUTPUT_FILES_BYTES_MAX: u64 = 10 << 20;
pub const ARTIFACTS_BYTES_MAX: u64 = 10 << 20;

/// Between asking a program to end and ending it.
pub const GRACE_MS: u64 = 2_000;

/// One tool call, as agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    pub execution_id: Option<String>,
    pub tool_id: String,
    pub adapter_id: Option<String>,
    pub inputs: Inputs,
    pub sandbox: Sandbox,
    pub outputs: Outputs,
    /// Whatever else the caller wants to have kept with it.
    pub metadata: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    pub command: String,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub working_directory: Option<String>,
    pub input_files: Vec<String>,
    pub stdin: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub timeout_ms: u64,
    pub memory_mb: u64,
    pub cpu_cores: u64,
    pub disk_mb: u64,
    pub filesystem: Filesystem,
    pub network: Network,
    pub max_children: u64,
    pub allow_fork: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filesystem {
    pub level: FilesystemLevel,
    pub read: Vec<String>,
    pub write: Vec<String>,
    pub deny: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    pub level: NetworkLevel,
    pub allow: Vec<Host>,
    pub deny: Vec<Host>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outputs {
    pub stdout: Expected,
    pub stderr: Expected,
    pub exit_code: Option<u8>,
    pub output_files: Vec<String>,
    pub artifacts: Vec<Artifact>,
}

/// What is wanted of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Expected {
    #[default]
    Captured,
    /// There has to be something.
    Something,
    Equals(String),
    Contains(String),
}

impl Expected {
    /// What is wrong with a stream, if anything is.
    pub fn judge(&self, stream: &str, found: &str) -> Option<String> {
        match self {
            Self::Captured => None,
            Self::Something if !found.is_empty() => None,
            Self::Something => Some(format!("{stream} is empty")),
            Self::Equals(wanted) if found == wanted => None,
            Self::Equals(_) => Some(format!("{stream} is not what was expected")),
            Self::Contains(wanted) if found.contains(wanted.as_str()) => None,
            Self::Contains(wanted) => Some(format!("{stream} does not contain {wanted:?}")),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    pub path: String,
    pub mime_type: Option<String>,
    pub metadata: Map<String, Value>,
}

impl Default for Sandbox {
    fn default() -> Self {
        let of = |name: &str| limit(name).default;
        Self {
            timeout_ms: of("timeout_ms"),
            memory_mb: of("memory_mb"),
            cpu_cores: of("cpu_cores"),
            disk_mb: of("disk_mb"),
            filesystem: Filesystem::default(),
            network: Network::default(),
            max_children: of("max_children"),
            allow_fork: true,
        }
    }
}
