//! `cargo xtask bench ledger`: the thing beside its floor, interleaved in one process, as ratios with their spread.
//!
//! Never a test: a shared machine is loud. Each figure is the median over rounds, with the range beside it.

mod append;
mod canon;
mod latency;
#[expect(dead_code, reason = "shared with benchmarks that need more of it")]
#[path = "../shared/measure.rs"]
mod measure;

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    if wants("canon") {
        canon::run();
    }
    if wants("decide") {
        append::decide();
    }
    if wants("sqlite") {
        append::sqlite();
    }
    if wants("postgres") {
        append::postgres();
    }
    if wants("latency") {
        latency::run();
    }
}
