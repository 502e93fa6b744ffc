//! The real binary, end to end. One test binary; one module per family of commands.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod agents;
mod artifact;
mod attack;
mod backup;
mod bad_input;
mod bridge;
mod bridge_end;
mod bridge_hostile;
mod bridge_replay;
mod builtin;
mod client;
mod clock;
mod compile;
mod compile_again;
mod concurrent;
mod conform;
mod contract;
mod contract_change;
mod crash;
mod dataset;
mod deploy;
mod eval;
mod events;
mod evolution;
mod examples;
mod execution;
mod fleet;
mod frozen;
mod gateway;
mod gateway_end;
mod gateway_protocol;
mod gateway_secret;
mod gateway_upstream;
mod ledger;
mod mcp;
mod mcp_agents;
mod money;
mod moved;
mod obeyed;
mod objects;
mod operations;
mod outcome;
mod own_folders;
mod paths;
mod pointer;
mod pointer_explain;
mod pointer_guard;
mod pointer_race;
mod predict;
mod publish_errors;
mod publish_kill;
mod receipt;
mod reload;
mod retention;
mod rollout;
mod rollout_fence;
mod rollout_race;
mod run;
mod run_again;
mod run_change;
mod run_crash;
mod run_fence;
mod runs;
mod sandbox;
mod sandbox_attack;
mod sandbox_network;
mod sandbox_shares;
mod serve;
mod serve_gateway;
mod serve_money;
mod services;
mod services_mcp;
mod services_sdk;
mod settlement;
mod shared;
mod soak;
mod spend;
mod store;
mod tamper;
mod telemetry;
mod terminal;
mod token;
mod tools;
mod tools_fence;
mod tools_inject;
mod tools_input;
mod tools_program;
mod tools_registry;
mod tools_trust;
mod trial_fence;
mod trust;
mod unwell;
mod webhook;
mod workspace;
mod workspace_crash;
mod workspace_hostile;
mod workspace_undo;

use actum_testkit::program::Program;

/// The binary in a folder of its own.
fn actum() -> Program {
    Program::new(env!("CARGO_BIN_EXE_actum"))
}
