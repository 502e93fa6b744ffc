//! What happened: entries and execution events, the rules they obey, the chain and the proofs over them.
//!
//! Called by the store, which makes each append atomic, and by `cli`. Pure: times and ids arrive as arguments.
//! `draft` reads and validates one document, `append` decides what it does to the log, `verify` walks a stored log.

pub mod access;
pub mod append;
pub mod capsule;
pub mod checkpoint;
pub mod coherence;
pub mod draft;
pub mod entry;
pub mod event;
pub mod gate;
pub mod head;
pub mod journal;
pub mod merkle;
pub mod pointer;
pub mod receipt;
pub mod refusal;
pub mod registry;
mod reserved;
pub mod run;
pub mod schema;
pub mod spend;
pub mod state;
pub mod time;
pub mod verify;
pub mod webhook;
pub mod witness;

pub use access::Access;
pub use append::{Book, Decision};
pub use draft::{Draft, Submission};
pub use entry::Entry;
pub use event::{Coherence, CoherencePolicy, State};
pub use head::Heads;
pub use journal::Journal;
pub use pointer::Pointers;
pub use refusal::{Code, Refusal, Violation};
pub use registry::Registry;
pub use run::Runs;
pub use spend::Spend;
pub use webhook::Webhooks;
