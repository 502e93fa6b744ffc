//! Correction policy: what the audit of a correction and its convergence mean under each mode.

use std::cmp::Ordering;

use crate::schema::Mode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterCorrection {
    Continue,
    /// Recorded and shown; the run goes on.
    Warn,
    /// The run fails now, whatever attempts remain.
    Fail,
}

/// The audit compares the correction's real diff with the limits it declared.
pub fn after_audit(mode: Mode, within_limits: bool) -> AfterCorrection {
    judge(mode, within_limits)
}

/// A correction converges if it changed the failure and left fewer blocking failures than before.
/// `blocking` is the count after the correction compared with the count before it.
pub fn after_convergence(mode: Mode, same_failure: bool, blocking: Ordering) -> AfterCorrection {
    judge(mode, !same_failure && blocking == Ordering::Less)
}

fn judge(mode: Mode, good: bool) -> AfterCorrection {
    match mode {
        Mode::Off => AfterCorrection::Continue,
        Mode::Warn | Mode::Enforce if good => AfterCorrection::Continue,
        Mode::Warn => AfterCorrection::Warn,
        Mode::Enforce => AfterCorrection::Fail,
    }
}
