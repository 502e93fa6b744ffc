//! Asking a model: what is asked, by which protocol, at what price, under which policy, and what is left of it.
//!
//! Called by `adapters`, `server` and `cli`. Never calls anybody: the world comes through ports, and times and ids arrive.

mod depth;
pub mod hash;
pub mod parse;
pub mod policy;
pub mod price;
pub mod protocol;
pub mod provider;
pub mod receipt;
pub mod sanitise;
pub mod signature;
pub mod strategy;
pub mod trace;

pub use receipt::Receipt;
pub use signature::Signature;
pub use trace::Trace;
