//! `cargo xtask bench predict [AREA…]`: what the gateway adds to a call of a model, beside a bare pass-through and LiteLLM's
//! proxy; and what the money of it takes.
//!
//! Never a test: a shared machine is loud. Each figure is the median over rounds, with the range beside it.

mod gateway;
#[path = "../shared/measure.rs"]
mod measure;
mod spend;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    // The servers beside ours are this program again, each in a process of its own so that its CPU time can be told.
    if let Some((role, rest)) = arguments.split_first().filter(|(role, _)| role.starts_with("serve-")) {
        wire::serve(role, rest);
        return ExitCode::SUCCESS;
    }
    let wanted = |area: &str| arguments.is_empty() || arguments.iter().any(|word| word == area);
    if wanted("gateway") {
        gateway::run();
    }
    if wanted("spend") {
        spend::run();
    }
    ExitCode::SUCCESS
}
