//! Honest fakes, conformance suites and throwaway servers; tests only, never linked into the product.

pub mod postgres;
