//! What moves: runs are submitted, claimed, driven from effect to effect, kept alive, taken over and ended.
//!
//! Decides nothing about a run (`kernel` does) and touches no file (hands do): it records what happened before the next
//! thing begins, and stops the moment lease lost to another worker. The same code serves one command and a fleet of
//! workers. Joined in `cli`.

mod agreement;
mod change;
mod desk;
mod drive;
mod entry;
mod gate;
mod history;
mod submit;
mod wait;
mod worker;

pub use agreement::{
    Agreement, BadAgreement, ForkOf, Lineage, Submitter, read_agreement, read_without_contract, refusal,
};
pub use change::{CancelError, Cancelled, Done, ResumeError, Resumed, cancel, note, resume};
pub use drive::{CRASH_POINTS, NoHands, Workshop, rehearse};
pub use gate::{Governed, govern};
pub use history::{events_of, full_history, state_of};
pub use submit::{SubmitError, Submitted, Wanted, submit};
pub use wait::{MeasuredClock, Waiter};
pub use worker::{Engine, Settings, Watch};
