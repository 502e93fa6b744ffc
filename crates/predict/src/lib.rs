//! Asking a model: what is asked, by which protocol, at what price, under which policy, and what is left of it.
//!
//! Called by `adapters`, `server` and `cli`. Never calls anybody: the world comes through ports, and times and ids arrive.

pub mod artifact;
pub mod compile;
pub mod dataset;
mod depth;
pub mod evolve;
pub mod guard;
pub mod hash;
pub mod metric;
pub mod parse;
pub mod pointer;
pub mod policy;
pub mod price;
pub mod protocol;
pub mod provider;
pub mod receipt;
pub mod sanitise;
pub mod signature;
pub mod statistics;
pub mod strategy;
pub mod trace;

pub use artifact::{Artifact, Way};
pub use pointer::Pointer;
pub use receipt::Receipt;
pub use signature::Signature;
pub use trace::Trace;
