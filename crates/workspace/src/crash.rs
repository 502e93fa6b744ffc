//! The places in this crate where a test may stop the process for good.

/// Every place, in the order in which freeze, stage, publish, its way back, and thaw pass them.
pub const POINTS: &[&str] = &[
    "freeze.walked",
    "freeze.stored",
    "freeze.indexed",
    "freeze.recorded",
    "base.copied",
    "base.unrecorded",
    "base.updated",
    "stage.layered",
    "publish.marked",
    "publish.staged",
    "publish.synced",
    "publish.committed",
    "publish.taken",
    "publish.cleared",
    "publish.changed",
    "publish.applied",
    "publish.settled",
    "publish.aborted",
    "publish.reversed",
    "thaw.written",
    "thaw.named",
];

pub(crate) fn point(name: &str) {
    actum_contract::crash::pass(POINTS, name);
}
