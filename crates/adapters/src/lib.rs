//! Other people's services: calling a registered tool by its adapter.
//!
//! A `Request` says what is to be called with what; `call` tries its adapters one after the other and says how it went. What
//! runs programs comes through the port `Cells`, joined in `cli`; secrets arrive resolved. Decides nothing about who may
//! call what: that was checked before. Keeps nothing.

pub mod cells;
pub mod mcp;
pub mod result;
pub mod sdk;
pub mod transform;

pub use cells::{Cells, Job, Ran, Session};
pub use result::{Attempt, Problem, Stage};
