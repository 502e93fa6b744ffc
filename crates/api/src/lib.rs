//! The wire: what programs outside see of Actum. The one table of errors, the one of routes, and a small
//! client for what is served.
//!
//! Called by `cli` and `server`; never decides anything.

pub mod client;
pub mod error;
pub mod route;
pub mod stream;

pub use error::{ErrorRow, TABLE};
