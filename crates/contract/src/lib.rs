//! What was agreed: the execution contract, its canonical form and its hash.
//!
//! Called by every other crate; calls none of ours. Pure: never reads a clock, a file, the environment or a
//! random number. Everything here is a function of its arguments.

pub mod agent;
pub mod bad;
pub mod blob;
pub mod branching;
pub mod canon;
pub mod change;
pub mod crash;
pub mod digest;
pub mod execution;
pub mod folder;
pub mod id;
pub mod limit;
pub mod metadata;
pub mod part;
pub mod policy;
pub mod resolve;
pub mod schema;
pub mod tool;
pub mod version;
pub mod work;

pub use bad::{BadConfig, BadField};
pub use change::{Change, FieldDiff, Intent, diff};
pub use id::Tenant;
pub use metadata::{ContractError, Stored};
pub use resolve::{Layers, Resolved, Source, resolve};
pub use schema::{ExecutionConfig, Field, Mode, Partial, Profile};
pub use version::{Contract, Material};
