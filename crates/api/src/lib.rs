//! The wire: what programs outside see of Actum. So far the one table of errors.
//!
//! Called by `cli` (and later `server`); never decides anything.

pub mod error;

pub use error::{ErrorRow, TABLE};
