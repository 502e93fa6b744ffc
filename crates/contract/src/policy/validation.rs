//! Validation policy: what a light or heavy validation means under each mode.

use crate::schema::Mode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterValidation {
    /// Mode `off`: it was not run and nothing follows from it.
    NotRun,
    Passed,
    /// Mode `warn`: the failure is recorded and shown; the run goes on.
    Recorded,
    /// A correction is tried.
    Correct,
    Fail,
}

/// Whether the validation has to be run at all.
pub fn runs(mode: Mode) -> bool {
    mode != Mode::Off
}

/// `attempts_used` counts the corrections already made of this kind, over all resumes of the run.
pub fn after_validation(mode: Mode, passed: bool, attempts_used: u64, attempts_max: u64) -> AfterValidation {
    match mode {
        Mode::Off => AfterValidation::NotRun,
        Mode::Warn | Mode::Enforce if passed => AfterValidation::Passed,
        Mode::Warn => AfterValidation::Recorded,
        Mode::Enforce if attempts_used < attempts_max => AfterValidation::Correct,
        Mode::Enforce => AfterValidation::Fail,
    }
}
