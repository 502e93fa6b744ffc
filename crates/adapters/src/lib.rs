//! Other people's services: calling a registered tool by its adapter, and models by their providers.
//!
//! A `Request` says what is to be called with what; `call` tries its adapters one after the other and says how it went. What
//! runs programs comes through the port `Cells`, joined in `cli`; secrets arrive resolved. Decides nothing about who may
//! call what: that was checked before. Keeps nothing.

pub mod api;
pub mod call;
pub mod cells;
pub mod collector;
pub mod mcp;
pub mod model;
pub mod result;
pub mod retry;
pub mod sdk;
pub mod secure;
pub mod transform;
pub mod webhook;
pub mod witness;

pub use api::{BadHttp, Http};
pub use call::{Ask, Hands, Link, Others, Outcome, Request, call};
pub use cells::{Cells, Job, NotRun, Ran, Session};
pub use mcp::Servers;
pub use result::{Attempt, Problem, Stage};
pub use secure::secure;

#[cfg(test)]
mod testing;
