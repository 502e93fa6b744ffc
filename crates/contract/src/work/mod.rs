//! Work items: what to do, who does it, within which limits, and how it is tested. Read from a work file; part of what a
//! run was agreed on, and of its receipt.

mod order;
mod read;

use serde::{Deserialize, Serialize};

use crate::schema::Partial;

pub use order::{BadOrder, levels, with_dependencies};
pub use read::{BadWork, read, read_item, schema};

/// A work file: where, under which contract, what.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The folder that is worked on, as seen from the file.
    pub workspace: Option<String>,
    pub contract: Partial,
    pub items: Vec<WorkItem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    pub id: String,
    pub agent_id: String,
    pub description: String,
    pub dependencies: Vec<String>,
    pub constraints: Constraints,
    pub budget: Budget,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_files: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_files: Vec<String>,
    /// Links that may lead out of the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    #[serde(default, skip_serializing_if = "Validation::is_empty")]
    pub validation: Validation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_command: Option<Vec<String>>,
    /// Where the result goes.
    #[serde(default, skip_serializing_if = "Publish::is_workspace")]
    pub publish: Publish,
    /// Whether the agent sees no ignored files, and the result is tested again if the workspace changed during the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Which state of the workspace the agent sees.
    #[serde(default, skip_serializing_if = "StageView::is_frozen")]
    pub view: StageView,
}

/// Which state of the workspace an agent sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StageView {
    /// The workspace as it was when the run began.
    #[default]
    Frozen,
    /// The workspace as it is: edits during the run show through, and become part of the result if the agent changes the
    /// same file.
    Live,
}

impl StageView {
    fn is_frozen(&self) -> bool {
        *self == Self::Frozen
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraints {
    pub max_files: u64,
    pub max_tool_ops: u64,
    pub max_delta_size: u64,
    pub timeout_ms: u64,
}

impl Default for Constraints {
    fn default() -> Self {
        Self { max_files: 10, max_tool_ops: 50, max_delta_size: 100, timeout_ms: 300_000 }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_estimate_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complexity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spend: Option<Spend>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spend {
    pub max_total: u64,
    pub currency: String,
}

/// Declared commands: fast ones after each step, thorough ones on the whole result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validation {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub light: Vec<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heavy: Vec<Vec<String>>,
}

impl Validation {
    pub fn is_empty(&self) -> bool {
        self.light.is_empty() && self.heavy.is_empty()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Publish {
    #[default]
    Workspace,
    /// By somebody outside: the run stays planned.
    External,
}

impl Publish {
    fn is_workspace(&self) -> bool {
        *self == Self::Workspace
    }
}

/// Words that mean something to a shell only.
const OPERATORS: [&str; 8] = ["&&", "||", "|", ";", ">", ">>", "<", "&"];

impl WorkItem {
    /// A command of the item with a word that a shell would obey, and that word: without a shell it is an argument, and a
    /// check may pass that checks nothing.
    pub fn looks_like_shell(&self) -> Option<(&[String], &str)> {
        let commands = self.validation.light.iter().chain(&self.validation.heavy).chain(&self.test_command);
        commands.into_iter().find_map(|command| {
            let word = command.iter().find(|word| OPERATORS.contains(&word.as_str()))?;
            Some((command.as_slice(), word.as_str()))
        })
    }
}

/// Whether a text can be the id of an item or an agent: `[a-z0-9][a-z0-9._-]{0,63}`.
pub fn is_id(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut bytes = text.bytes();
    text.len() <= 64 && bytes.next().is_some_and(legal) && bytes.all(|b| legal(b) || b"._-".contains(&b))
}
