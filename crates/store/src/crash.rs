//! The places in this crate where a test may stop the process for good.

/// Every place, in the order in which an append, a run, money, the upkeep and the blobs pass them.
pub const POINTS: &[&str] = &[
    "migrate.applied",
    "append.begun",
    "append.inserted",
    "run.submitted",
    "run.claimed",
    "run.committed",
    "spend.written",
    "append.written",
    "append.committed",
    "checkpoint.written",
    "rebuild.compared",
    "rebuild.replaced",
    "blobs.written",
    "blobs.packed",
    "blobs.indexed",
    "blobs.sending",
    "blobs.sent",
    "blobs.marked",
    "sweep.copied",
    "sweep.removed",
];

pub(crate) fn point(name: &str) {
    actum_contract::crash::pass(POINTS, name);
}
