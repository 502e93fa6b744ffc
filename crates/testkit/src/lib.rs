//! Honest fakes, conformance suites and throwaway servers; tests only, never linked into the product.

pub mod access;
pub mod agents;
pub mod blobs;
pub mod conformance;
pub mod dice;
pub mod event;
pub mod fleet;
pub mod folder;
pub mod linters;
pub mod memory;
pub mod model;
pub mod objects;
mod packages;
pub mod pointer;
pub mod postgres;
pub mod program;
pub mod registry;
pub mod runs;
pub mod schemathesis;
mod served;
pub mod servers;
pub mod spend;
pub mod through;
pub mod tree;
pub mod upstream;
pub mod verifiers;
