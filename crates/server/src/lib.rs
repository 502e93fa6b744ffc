//! Serving: what an agent in its cell may ask for, the registered tools level by level, as JSON over HTTP and as MCP, and
//! models by the protocols of their providers; and the commands, for whoever has a token.
//!
//! Called by `cli`, which answers through the ports `Tools`, `Models` and `Face`. Decides nothing about a tool or a command;
//! bounds everything about whoever asks, because inside a cell that is somebody else's program, and outside anybody.

pub mod api;
pub mod bridge;
mod fields;
mod http;
mod mcp;
pub mod models;
mod offer;
mod paced;
mod turns;

pub use bridge::{Bridge, Call, Offered, Refused, Tools};
pub use http::{BODY_BYTES_MAX, is_same};
pub use models::{Asked, Head, Models, Teller};
pub use offer::{Commands, Stop, serve_commands};
pub use turns::CALLS_MAX;

#[cfg(test)]
mod tests;
