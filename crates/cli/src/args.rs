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
    /// Begin: write actum.toml and a work file, and propose an agent
    Init(init::Init),
    /// The main job: submit the items of a work file, execute them, wait
    Run(run::Run),
    /// Complete or roll back what a crash left behind
    Recover(recover::Recover),
    /// Show the status of a run, or run counts
    #[command(visible_alias = "show")]
    Status(status::Status),
    /// The runs there are, newest first
    List(status::List),
    /// Go on with a run, or go elsewhere from it
    Resume(resume::Resume),
    /// Stop a run for good
    Cancel(resume::Cancel),
    /// Repeat a run offline, and compare what comes out
    Replay(prove::Replay),
    /// Check receipts: signature, hashes, chain, ledger
    Verify(prove::Verify),
    /// The signed receipt of a run, as it was given out
    Receipt(receipt::Show),
    /// The governance decision on a run: exit 0 on PASS, 1 on FAIL
    Gate(prove::Gate),
    /// Execute what was submitted elsewhere, until stopped
    Worker(worker::Worker),
    /// Show what a run or a stage has come to, as a patch
    Diff(diff::Diff),
    /// Publish a kept result: all of it or nothing
    Apply(apply::Apply),
    /// Take a publication back, wherever what it left still stands
    Undo(undo::Undo),
    /// Private copies of the workspace: make, act in, list, drop
    #[command(subcommand)]
    Stage(stage::Verb),
    /// The workspace store alone: freeze, thaw, compare, list, clean up
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    /// Workspaces that no machine owns: make, list, show, put into a folder
    #[command(subcommand)]
    Workspace(workspace::Verb),
    /// One execution under the code execution contract
    Exec(exec::Exec),
    /// What a run or an execution has put out
    Logs(logs::Logs),
    /// What has happened, event by event, and what happens
    Events(events::Events),
    /// What an agent may call: registered, approved, shown level by level
    #[command(subcommand)]
    Tool(tool::Verb),
    /// How tools are called: programs, services, packages, MCP servers
    #[command(subcommand)]
    Adapter(tool::Verb),
    /// Typed questions to models: register, list, show
    #[command(subcommand)]
    Signature(signature::Verb),
    /// Ways of asking a signature, registered for good
    #[command(subcommand)]
    Artifact(artifact::Verb),
    /// Which artifact of a signature is live, which is tried, who moved it
    #[command(subcommand)]
    Pointer(pointer::Verb),
    /// Ask a model by a signature: checked, paid for, receipted
    Predict(Box<predict::Predict>),
    /// Labelled examples, out of receipts or files, in three parts that never mix
    #[command(subcommand)]
    Dataset(dataset::Verb),
    /// Candidates for a signature, scored on a dataset, and the best of them
    Compile(compile::Compile),
    /// An artifact on a dataset, or two against each other; a gate by its exit code
    Eval(Box<eval::Eval>),
    /// Money: who may spend how much, what was spent, what is unknown
    #[command(subcommand)]
    Spend(spend::Verb),
    /// Why a question to a model was allowed or denied
    #[command(subcommand)]
    Policy(trace::PolicyVerb),
    /// What was asked of models, and answered
    #[command(subcommand)]
    Trace(trace::Verb),
    /// The commands over HTTP, for whoever has a token
    Serve(serve::Serve),
    /// Who is told what happens: addresses, added, listed, removed
    #[command(subcommand)]
    Webhook(webhook::Verb),
    /// Models for programs outside a cell, metered and within a budget
    Gateway(gateway::Serve),
    /// Runs and registered tools as an MCP server on stdin and stdout
    Mcp(mcp::Mcp),
    /// What waits for a person
    #[command(subcommand)]
    Approvals(approvals::Verb),
    /// Agree to what waits
    Approve(approvals::Approve),
    /// Refuse what waits
    Deny(approvals::Deny),
    /// The sandbox alone, for any command
    Sandbox(sandbox::Sandbox),
    /// Say what this machine can do, and how to get the rest
    Doctor(doctor::Doctor),
    /// The contract alone: resolve, hash, compare, explain, check
    #[command(subcommand)]
    Contract(contract::Verb),
    /// Canonical JSON (RFC 8785) of a document, or its hash
    Canon(canon::Canon),
    /// The ledger alone: append, look, verify, prove
    #[command(subcommand)]
    Ledger(ledger::Verb),
    /// Upkeep of the store: migrate, check, rebuild, backup
    #[command(subcommand)]
    Store(store::Verb),
    /// Who may ask the server: tokens, made, listed, revoked
    #[command(subcommand)]
    Token(token::Verb),
    /// Who signs
    #[command(subcommand)]
    Key(key::Verb),
    /// The configuration in force, and taking a changed one into force
    #[command(subcommand)]
    Config(config::Verb),
    /// Show the storage that is used, and the quota if there is one
    Usage(usage::Usage),
    /// JSON Schema of a document
    Schema(schema::Schema),
    /// Completion script for a shell
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
