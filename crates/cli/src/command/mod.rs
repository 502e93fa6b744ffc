//! One file per verb. Each is thin: read what was given, ask the library, print the answer.

pub(crate) mod append;
pub(crate) mod apply;
pub(crate) mod approvals;
pub(crate) mod artifact;
pub(crate) mod canon;
pub(crate) mod compile;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod contract;
pub(crate) mod dataset;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod gateway;
pub(crate) mod gc;
pub(crate) mod init;
pub(crate) mod key;
pub(crate) mod ledger;
pub(crate) mod logs;
pub(crate) mod mcp;
pub(crate) mod objects;
pub(crate) mod pointer;
pub(crate) mod predict;
pub(crate) mod prove;
pub(crate) mod receipt;
pub(crate) mod recover;
pub(crate) mod resume;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod signature;
pub(crate) mod snapshot;
pub(crate) mod spend;
pub(crate) mod stage;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod tool;
pub(crate) mod trace;
pub(crate) mod undo;
pub(crate) mod usage;
pub(crate) mod verify;
pub(crate) mod webhook;
pub(crate) mod worker;
pub(crate) mod workspace;

use actum_api::error;
use actum_ledger::registry::Kind;
use actum_sandbox::{Ahead, Signals};
use clap::CommandFactory as _;

use crate::args::{Command, Global, Parsed};
use crate::failure::Failure;
use crate::ui::Out;

/// The exit code of a command that did what it was asked to.
pub(crate) type Ended = Result<u8, Failure>;

pub(crate) fn run(parsed: Parsed, ahead: Option<Ahead>, out: &mut Out) -> Ended {
    let Parsed { global, command } = parsed;
    go(&global)?;
    crate::recover::before(&command, &global, out)?;
    match command {
        Command::Init(init) => init.run(&global, out),
        Command::Run(run) => run.run(&global, out),
        Command::Recover(recover) => recover.run(&global, out),
        Command::Signature(verb) => verb.run(&global, out),
        Command::Artifact(verb) => verb.run(&global, out),
        Command::Pointer(verb) => verb.run(&global, out),
        Command::Predict(predict) => predict.run(&global, out),
        Command::Dataset(verb) => verb.run(&global, out),
        Command::Compile(compile) => compile.run(&global, out),
        Command::Eval(eval) => eval.run(&global, out),
        Command::Spend(verb) => verb.run(&global, out),
        Command::Policy(verb) => verb.run(&global, out),
        Command::Trace(verb) => verb.run(&global, out),
        Command::Serve(serve) => serve.run(&global, out),
        Command::Gateway(gateway) => gateway.run(&global, out),
        Command::Status(status) => status.run(&global, out),
        Command::List(list) => list.run(&global, out),
        Command::Resume(resume) => resume.run(&global, out),
        Command::Cancel(cancel) => cancel.run(&global, out),
        Command::Replay(replay) => replay.run(&global, out),
        Command::Verify(verify) => verify.run(&global, out),
        Command::Receipt(receipt) => receipt.run(&global, out),
        Command::Gate(gate) => gate.run(&global, out),
        Command::Worker(worker) => worker.run(&global, out),
        Command::Diff(diff) => diff.run(&global, out),
        Command::Apply(apply) => apply.run(&global, out),
        Command::Undo(undo) => undo.run(&global, out),
        Command::Stage(verb) => verb.run(&global, out),
        Command::Snapshot(verb) => verb.run(&global, out),
        Command::Workspace(verb) => verb.run(&global, out),
        Command::Exec(exec) => exec.run(&global, out),
        Command::Tool(verb) => verb.run(Kind::Tool, &global, out),
        Command::Adapter(verb) => verb.run(Kind::Adapter, &global, out),
        Command::Mcp(mcp) => mcp.run(&global, out),
        Command::Logs(logs) => logs.run(&global, out),
        Command::Events(events) => events.run(&global, out),
        Command::Webhook(verb) => verb.run(&global, out),
        Command::Approvals(verb) => verb.run(&global, out),
        Command::Approve(approve) => approve.run(&global, out),
        Command::Deny(deny) => deny.run(&global, out),
        Command::Sandbox(sandbox) => sandbox.run(&global, ahead, out),
        Command::Doctor(doctor) => doctor.run(&global, out),
        Command::Canon(canon) => canon.run(out),
        Command::Contract(verb) => verb.run(&global, out),
        Command::Schema(schema) => schema.run(out),
        Command::Completions(completions) => completions.run(out),
        Command::Token(verb) => verb.run(&global, out),
        Command::Key(verb) => verb.run(&global, out),
        Command::Config(verb) => verb.run(&global, out),
        Command::Usage(usage) => usage.run(&global, out),
        Command::Ledger(ledger::Verb::Witness(whose)) => whose.witness(&global, out),
        Command::Ledger(verb) => match global.seat.clone() {
            Some(seat) => seat.waiter.block(Box::pin(verb.run(&global, out))),
            None => block_on(verb.run(&global, out)),
        },
        Command::Store(store::Verb::Gc(gc)) => gc.run(&global, out),
        Command::Store(verb) => match (verb.prepared(&global, out)?, global.seat.clone()) {
            (verb, Some(seat)) => seat.waiter.block(Box::pin(verb.run(&global, out))),
            (verb, None) => block_on(verb.run(&global, out)),
        },
        Command::Reference => {
            out.bytes(crate::reference::markdown(Parsed::command()).as_bytes());
            Ok(0)
        }
    }
}

/// Goes where the command is to work; whoever runs in a seat stays where he is.
pub(crate) fn go(global: &Global) -> Result<(), Failure> {
    let Some(directory) = global.directory.as_ref().filter(|_| global.seat.is_none()) else { return Ok(()) };
    std::env::set_current_dir(directory)
        .map_err(|e| Failure::of_io(format!("cannot go to {}: {e}", directory.display()), &e))
}

/// Signals to this program, caught. A command in a seat has no terminal that could send any; those of the process are for
/// whoever serves.
pub(crate) fn signals(global: &Global) -> Result<Option<Signals>, Failure> {
    match global.seat {
        Some(_) => Ok(None),
        None => Signals::catch().map(Some).map_err(|e| crate::cell::not_built(&e.to_string())),
    }
}

/// Waits for work on the store.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Failure::new(error::INTERNAL, format!("cannot start: {e}")))?.block_on(work)
}
