//! The one decision: what is recorded, and what is done next.

use serde_json::{Value, json};

use crate::event::{Act, Event};
use crate::result::Verdict;
use crate::state::{Phase, State};

/// Something for the engine to do. Its outcome comes back as an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Snapshot of the workspace → `Frozen`, or `Stale`.
    Freeze,
    /// Private copy of the snapshot → `Staged`.
    Stage,
    /// → `Planned`.
    Plan { timeout_ms: u64 },
    /// → `Acted`, or `Conflicted` if finished steps no longer fit the workspace. `feedback`: what a correction has to answer. `ops_left`: tool operations until it is one too many.
    Act { act: Act, feedback: Option<Value>, left_ms: u64, ops_left: u64 },
    /// → `Checked`.
    Check { heavy: bool, left_ms: u64 },
    /// The capsule, weighed against history → `Weighed`.
    Weigh,
    /// → `Tested`.
    Test { left_ms: u64 },
    /// → `Published` or `Conflicted`, after `Publishing` was recorded.
    Publish,
    /// Receipt and result; the last thing there is to do.
    Finish(Verdict),
}

/// What is recorded, all of it or nothing, and what is due then.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub events: Vec<Event>,
    pub effects: Vec<Effect>,
}

/// Takes an event in. The state moves on with everything that follows from it.
pub fn decide(state: &mut State, event: Event) -> Decision {
    let mut events = Vec::new();
    let mut waiting = vec![event];
    while let Some(event) = waiting.pop() {
        let mut follows = state.apply(&event);
        events.push(event);
        // In their order, each with what follows from it before the next.
        follows.reverse();
        waiting.append(&mut follows);
    }
    Decision { events, effects: next(state).into_iter().collect() }
}

/// What is due in a state: nothing before it was begun.
pub fn next(state: &State) -> Option<Effect> {
    let left_ms = state.left_ms();
    Some(match &state.phase {
        Phase::Begin => return None,
        Phase::Freeze => Effect::Freeze,
        Phase::Stage => Effect::Stage,
        Phase::Plan => Effect::Plan { timeout_ms: state.agreed.config.planner_timeout_ms.min(left_ms) },
        Phase::Act(act) => Effect::Act {
            act: act.clone(),
            feedback: act.correction.as_ref().map(|correction| {
                json!({"correction": correction, "failures": state.failures, "answers": if correction.heavy { "heavy" } else { "light" }})
            }),
            left_ms,
            ops_left: state.agreed.item.constraints.max_tool_ops.saturating_sub(state.tool_ops()),
        },
        Phase::Light => Effect::Check { heavy: false, left_ms },
        Phase::Heavy => Effect::Check { heavy: true, left_ms },
        Phase::Weigh => Effect::Weigh,
        Phase::Test => Effect::Test { left_ms },
        Phase::Publish => Effect::Publish,
        Phase::Over(verdict) => Effect::Finish(verdict.clone()),
    })
}
