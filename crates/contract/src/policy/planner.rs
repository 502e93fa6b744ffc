//! Planner policy: what the outcome of planning means for the run.

/// How planning ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// The planner produced this many steps, in time or not.
    Steps { none: bool, in_time: bool },
    /// The planner failed by itself.
    Failed { in_time: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPlan {
    Proceed,
    FailEmpty,
    FailTimeout,
    FailPlanner,
}

/// A plan has at least one step and arrives within `plannerTimeoutMs`; a late plan is not used, however good.
pub fn after_plan(planned: Planned) -> AfterPlan {
    match planned {
        Planned::Steps { in_time: false, .. } | Planned::Failed { in_time: false } => AfterPlan::FailTimeout,
        Planned::Failed { in_time: true } => AfterPlan::FailPlanner,
        Planned::Steps { none: true, in_time: true } => AfterPlan::FailEmpty,
        Planned::Steps { none: false, in_time: true } => AfterPlan::Proceed,
    }
}
