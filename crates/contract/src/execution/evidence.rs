//! The checklists of the seed as data on each execution: what was looked at before, during and after, and what came of it.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    PreExecution,
    DuringExecution,
    PostExecution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Passed,
    Failed,
    NotApplicable,
}

/// One line of a checklist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    pub phase: Phase,
    pub item: &'static str,
    pub state: State,
    /// RFC 3339; none if it was never looked at.
    pub at: Option<String>,
    pub detail: Option<String>,
}

const ITEMS: [(Phase, &str); 15] = [
    (Phase::PreExecution, "Tool is in registry and active"),
    (Phase::PreExecution, "Adapter exists and matches tool version"),
    (Phase::PreExecution, "Inputs validated and sanitized"),
    (Phase::PreExecution, "Sandbox limits set appropriately"),
    (Phase::PreExecution, "Allowlist permits the operation"),
    (Phase::PreExecution, "Evidence capture initialized"),
    (Phase::DuringExecution, "Timeout enforced"),
    (Phase::DuringExecution, "Resource limits monitored"),
    (Phase::DuringExecution, "Output streams captured"),
    (Phase::DuringExecution, "Errors logged with context"),
    (Phase::PostExecution, "Exit code interpreted"),
    (Phase::PostExecution, "Outputs collected and validated"),
    (Phase::PostExecution, "Artifacts stored"),
    (Phase::PostExecution, "Evidence captured"),
    (Phase::PostExecution, "Cleanup performed"),
];

/// All lines, none of them looked at yet.
pub fn checklist() -> Vec<Item> {
    let line = |(phase, item)| Item { phase, item, state: State::NotApplicable, at: None, detail: None };
    ITEMS.into_iter().map(line).collect()
}
