//! The branches that a contract's policy versions stand for: one file per policy, each a few total functions.
//!
//! The kernel decides by calling these; `branching` pins what they answer. A changed answer needs a raised version.

pub mod correction;
pub mod determinism;
pub mod planner;
pub mod validation;
