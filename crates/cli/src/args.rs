//! What may be typed. Flags that every command takes may stand before or after it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use actum_api::error;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use serde_json::Value;

use crate::command::{
    apply, approvals, artifact, canon, compile, completions, config, contract, dataset, diff, doctor, eval, events,
    exec, gateway, init, key, ledger, logs, mcp, pointer, predict, prove, receipt, recover, resume, run, sandbox,
    schema, serve, signature, snapshot, spend, stage, status, store, token, tool, trace, undo, usage, webhook, worker,
    workspace,
};
use crate::seat::Seat;
use crate::ui;

/// Run AI agents under a contract: resolved, hashed, recorded, provable.
#[derive(Debug, Parser)]
#[command(name = "actum", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 bad input, 3 denied, 4 timeout, 5 contract mismatch, 6 conflict, 7 not found, 8 waiting for approval, 70 internal error"
)]
pub(crate) struct Parsed {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Flags of every command")]
pub(crate) struct Global {
    /// Print one JSON document on stdout, and errors as JSON on stderr
    #[arg(long, global = true)]
    pub json: bool,

    /// Where the store is: a SQLite file, or postgres://…
    /// [default: .actum/actum.db in the project root]
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,

    /// Work as if started in DIR
    #[arg(short = 'C', global = true, value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// Say only what was asked for
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// Say what is being done
    #[arg(short, long, global = true)]
    pub verbose: bool,

    /// Ask this server instead of working here: http://HOST:PORT, with a token in ACTUM_TOKEN
    /// [default: ACTUM_SERVER]
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,

    /// Read the token for --server from FILE
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Send the token to a server elsewhere over http, where others can read it
    #[arg(long, global = true)]
    pub insecure: bool,

    /// For whom the command runs, if it is not whoever types it.
    #[arg(skip)]
    pub seat: Option<Arc<Seat>>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create actum.toml and a work file, and propose an agent
    Init(init::Init),
    /// Run the items of a work file and wait for the results
    Run(run::Run),
    /// Complete or roll back publications that a crash interrupted
    Recover(recover::Recover),
    /// Show the status of a run, or run counts
    #[command(visible_alias = "show")]
    Status(status::Status),
    /// List runs, newest first
    List(status::List),
    /// Resume a run, or fork it with a changed contract
    Resume(resume::Resume),
    /// Cancel a run
    Cancel(resume::Cancel),
    /// Repeat a run offline and compare the results
    Replay(prove::Replay),
    /// Verify receipts: signature, hashes, chain, ledger
    Verify(prove::Verify),
    /// Print the signed receipt of a run
    Receipt(receipt::Show),
    /// Print the governance decision on a run: exit 0 on PASS, 1 on FAIL
    Gate(prove::Gate),
    /// Execute queued runs until stopped
    Worker(worker::Worker),
    /// Show the changes of a run or stage as a patch
    Diff(diff::Diff),
    /// Publish a kept result, all of it or nothing
    Apply(apply::Apply),
    /// Revert a publication; files edited since are kept
    Undo(undo::Undo),
    /// Manage stages: private copies of the workspace
    #[command(subcommand)]
    Stage(stage::Verb),
    /// Manage snapshots: freeze, thaw, compare, list, collect garbage
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    /// Manage shared workspaces: add, list, show, check out
    #[command(subcommand)]
    Workspace(workspace::Verb),
    /// Run one tool call under the code execution contract
    Exec(exec::Exec),
    /// Print the output of a run or execution
    Logs(logs::Logs),
    /// Print events, and follow new ones
    Events(events::Events),
    /// Manage tools that agents may call
    #[command(subcommand)]
    Tool(tool::Verb),
    /// Manage adapters: how tools are called
    #[command(subcommand)]
    Adapter(tool::Verb),
    /// Manage signatures: typed questions to models
    #[command(subcommand)]
    Signature(signature::Verb),
    /// Manage artifacts: compiled ways to ask a signature
    #[command(subcommand)]
    Artifact(artifact::Verb),
    /// Manage pointers: which artifact of a signature is live
    #[command(subcommand)]
    Pointer(pointer::Verb),
    /// Call a model through a signature
    Predict(Box<predict::Predict>),
    /// Manage datasets: labelled examples from receipts or files
    #[command(subcommand)]
    Dataset(dataset::Verb),
    /// Search for a better artifact of a signature on a dataset
    Compile(compile::Compile),
    /// Evaluate an artifact on a dataset, or compare two
    Eval(Box<eval::Eval>),
    /// Manage budgets: authorizations, reservations, reconciliation
    #[command(subcommand)]
    Spend(spend::Verb),
    /// Explain policy decisions
    #[command(subcommand)]
    Policy(trace::PolicyVerb),
    /// Show recorded model calls
    #[command(subcommand)]
    Trace(trace::Verb),
    /// Serve the HTTP API
    Serve(serve::Serve),
    /// Manage webhooks
    #[command(subcommand)]
    Webhook(webhook::Verb),
    /// Serve models to programs on this machine, metered and within a budget
    Gateway(gateway::Serve),
    /// Serve runs and tools over MCP on stdin and stdout
    Mcp(mcp::Mcp),
    /// List and show requests for approval
    #[command(subcommand)]
    Approvals(approvals::Verb),
    /// Approve a request
    Approve(approvals::Approve),
    /// Deny a request
    Deny(approvals::Deny),
    /// Run any command in a sandbox
    Sandbox(sandbox::Sandbox),
    /// Check this machine and this project
    Doctor(doctor::Doctor),
    /// Resolve, hash, compare and explain contracts
    #[command(subcommand)]
    Contract(contract::Verb),
    /// Print a document as canonical JSON (RFC 8785), or its hash
    Canon(canon::Canon),
    /// Append to the ledger, list, verify and prove entries
    #[command(subcommand)]
    Ledger(ledger::Verb),
    /// Migrate, check, rebuild and back up the store
    #[command(subcommand)]
    Store(store::Verb),
    /// Manage the server's tokens
    #[command(subcommand)]
    Token(token::Verb),
    /// Show, trust and rotate signing keys
    #[command(subcommand)]
    Key(key::Verb),
    /// Show the configuration in force, or reload it in a server
    #[command(subcommand)]
    Config(config::Verb),
    /// Show used storage and quotas
    Usage(usage::Usage),
    /// Print the JSON Schema of a document
    Schema(schema::Schema),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// The reference of all commands as Markdown
    #[command(hide = true)]
    Reference,
}

/// The one command that is started so often, and is so short, that reading the names of all others would be felt.
#[derive(Debug, Parser)]
#[command(name = "actum", disable_help_subcommand = true)]
struct Hasty {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: HastyCommand,
}

#[derive(Debug, Subcommand)]
enum HastyCommand {
    Sandbox(sandbox::Sandbox),
}

/// Reads the command line: what is meant, and what was typed. Help and version are printed here; a mistake becomes an error
/// like any other.
pub(crate) fn parse(arguments: &[OsString]) -> Result<(Parsed, ArgMatches), ExitCode> {
    if arguments.get(1).is_some_and(|word| word == "sandbox") {
        let matches = Hasty::command().try_get_matches_from(arguments);
        // Whatever is not plain goes the usual way, and is told there.
        if let Ok((Hasty { global, command: HastyCommand::Sandbox(sandbox) }, matches)) =
            matches.and_then(|matches| Ok((Hasty::from_arg_matches(&matches)?, matches)))
        {
            return Ok((Parsed { global, command: Command::Sandbox(sandbox) }, matches));
        }
    }
    let matches = Parsed::command().try_get_matches_from(arguments);
    matches.and_then(|m| Ok((Parsed::from_arg_matches(&m)?, m))).map_err(|e| refuse(&e, arguments))
}

fn refuse(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let row = error::named(error::USAGE);
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        _ if arguments.iter().any(|a| a == "--json") => {
            let text = error.to_string();
            let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            ui::note(&error::json(row, message, &Value::Null, Some("run the command with --help")).to_string());
        }
        _ => {
            let text = error.render().to_string();
            let text = text.replacen("error: ", &format!("error[{}]: ", row.code), 1);
            ui::note(&format!("{}\n  = see: docs/errors/{}.md", text.trim_end(), row.code));
        }
    }
    ExitCode::from(row.exit)
}
