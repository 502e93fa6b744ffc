//! The recording of a run: everything that is needed to repeat it offline, and what it came to.

use actum_kernel::{ContractPeriod, State};
use actum_ledger::capsule::Capsule;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::hands::Facts;

/// The version this program writes; it reads older ones.
const VERSION: u64 = 1;

/// The rules by which this program admits results. Recordings of before they were numbered have 0.
pub(crate) const ADMISSION: u64 = PLACE_COUNTS;

/// From here on links that lead out of the workspace are denied.
pub(super) const LINKS_ARE_DENIED: u64 = 1;

/// From here on no run publishes files that other programs obey, also if they are declared.
pub(super) const OBEYED_WAIT: u64 = 2;

/// From here on repositories inside a workspace count as obeyed, and so do the names added to `data/obeyed.tsv` with it.
pub(crate) const REPOSITORIES_ARE_OBEYED: u64 = 3;

/// From here on a file counts as obeyed if a link with an obeyed name leads to it, at any depth and over other links.
pub(crate) const LINKS_ARE_FOLLOWED: u64 = 4;

/// From here on it counts where a workspace lies in its project, and what git's own configuration names.
pub(crate) const PLACE_COUNTS: u64 = 5;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recording {
    pub version: u64,
    pub run_id: String,
    pub item_id: String,
    pub attempt: u64,
    /// What was agreed: contract, work item, agent, workspace.
    pub metadata: Value,
    pub before: Option<String>,
    /// What the run came to.
    pub output: Option<String>,
    pub status: String,
    pub code: Option<String>,
    pub capsule: Value,
    /// Programs that were run, by their content.
    #[serde(default)]
    pub programs: Vec<Value>,
    /// Answers from outside that the run saw.
    #[serde(default)]
    pub answers: Vec<Value>,
    /// The rules by which the result was admitted.
    #[serde(default)]
    pub admission: u64,
    /// Whether the agent was given tools, also if it asked for none.
    #[serde(default)]
    pub tools: bool,
    /// Every contract of the run, oldest first, with the steps it governed. Empty if it had only that of the metadata.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contracts: Vec<ContractPeriod>,
}

impl Recording {
    pub(super) fn of(
        facts: &Facts,
        state: &State,
        verdict: &actum_kernel::Verdict,
        capsule: &Capsule,
        programs: &[Value],
        answers: Vec<Value>,
    ) -> Self {
        Self {
            version: VERSION,
            run_id: facts.run.clone(),
            item_id: facts.item.clone(),
            attempt: facts.attempt,
            metadata: serde_json::from_str(&facts.metadata).unwrap_or(Value::Null),
            before: state.before.clone(),
            output: state.current.clone(),
            status: verdict.status.word().to_owned(),
            code: verdict.code.clone(),
            capsule: capsule.to_json(),
            programs: programs.to_vec(),
            answers,
            admission: ADMISSION,
            tools: !state.answers.is_empty(),
            contracts: if state.contracts.len() > 1 { state.contracts.clone() } else { Vec::new() },
        }
    }

    /// The files that the run changed: `{op, path, …}` each.
    pub(crate) fn into_objects(mut self) -> Vec<Value> {
        serde_json::from_value(self.capsule["deltas"]["O"].take()).unwrap_or_default()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let recording: Self = serde_json::from_slice(bytes).map_err(|e| format!("it is no recording: {e}"))?;
        match recording.version {
            VERSION => Ok(recording),
            newer => Err(format!("it has version {newer}; use a newer actum")),
        }
    }
}
