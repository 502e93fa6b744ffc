//! Honest fakes, conformance suites and throwaway servers; tests only, never linked into the product.

pub mod access;
pub mod agents;
pub mod blobs;
pub mod conformance;
pub mod dice;
pub mod event;
pub mod folder;
pub mod memory;
pub mod model;
pub mod pointer;
pub mod postgres;
pub mod program;
pub mod registry;
pub mod runs;
pub mod servers;
pub mod spend;
pub mod tree;
pub mod upstream;
pub mod verifiers;
