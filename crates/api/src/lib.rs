//! The wire: what programs outside see of Actum. The one table of errors, and a small client for what is served.
//!
//! Called by `cli` and `server`; never decides anything.

pub mod client;
pub mod error;

pub use error::{ErrorRow, TABLE};
