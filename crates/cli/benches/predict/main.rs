//! `cargo xtask bench predict [AREA…]`: what a call of a model costs beyond the call: the money.
//!
//! Never a test: a shared machine is loud. Each figure is the median over rounds, with the range beside it.

#[expect(dead_code, reason = "shared with benchmarks that need more of it")]
#[path = "../shared/measure.rs"]
mod measure;
mod spend;

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    if wants("spend") {
        spend::run();
    }
}
