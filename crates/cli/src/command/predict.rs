//! `actum predict`: typed questions to a model, one or many. Which way they are asked is the pointer's to say, unless somebody
//! names an artifact, a strategy or a model.

mod batch;
mod desk;

use std::io::Read as _;
use std::path::PathBuf;

use actum_api::error;
use actum_predict::strategy::Status;
use clap::Args;
use serde_json::{Map, Value};

use super::Ended;
use super::run::money;
use super::tool::plain;
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::Out;

use desk::{Desk, Wanted, Who};

/// What is read of standard input.
const INPUT_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// The signature: namespace/name.vN
    #[arg(id = "signature", value_name = "ID")]
    id: String,

    /// The input: a YAML or JSON file, or - for JSON on standard input
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// A member of the input: NAME=VALUE (text; a whole number, true and false are taken as such), or NAME:=JSON
    #[arg(long = "param", value_name = "NAME=VALUE")]
    params: Vec<String>,

    /// Many questions, one after the other: JSON lines with input, and if need be key, user, run, thread, agent, expected,
    /// score; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "params"])]
    batch: Option<PathBuf>,

    /// Use this artifact instead of the pointer's: its id, or the start of it
    #[arg(long, value_name = "ID", conflicts_with_all = ["strategy", "model"])]
    artifact: Option<String>,

    /// direct.v1 or rlm_lite.v1, if not the signature's own; goes around the pointer
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,

    /// The model, if not the signature's own; goes around the pointer
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// The provider, if several have the model
    #[arg(long, value_name = "ID")]
    provider: Option<String>,

    /// Who asks, for a pointer whose key_scope is auto: the same key gets the same artifact
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// The user it is for, where a pointer goes by users
    #[arg(long, value_name = "ID")]
    user: Option<String>,

    /// The run it belongs to, where permissions are for one, or a pointer goes by runs
    #[arg(long, value_name = "ID")]
    run: Option<String>,

    /// The thread it belongs to, where permissions are for one, or a pointer goes by threads
    #[arg(long, value_name = "ID")]
    thread: Option<String>,

    /// For which agent, where permissions are for one, or a pointer goes by autopilots
    #[arg(long, value_name = "ID")]
    agent: Option<String>,

    /// Adds what was asked and answered to a file, for a provider of type recorded
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Predict {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        if let Some(path) = &self.batch {
            let lines = batch::read(path, &self.who())?;
            let open = Open::new(Project::find(global)?, out)?;
            return batch::run(&mut Desk::open(&open, &self, out)?, &lines, out);
        }
        let input = self.read_input()?;
        let open = Open::new(Project::find(global)?, out)?;
        let mut desk = Desk::open(&open, &self, out)?;
        if let Err(flaws) = desk.signature.check_input(&input) {
            out.detail(&flaws.join("\n"));
        }
        let told = desk.ask(&Wanted { input, who: self.who(), expected: None, score: None, reason: String::new() })?;
        if let Some(warning) = &told.warning {
            out.aside(warning);
        }
        if let Some(moved) = &told.moved {
            out.remark(moved);
        }
        let (shown, outcome) = (&told.shown, &told.outcome);
        let code = match told.failure {
            Some(failure) if !global.json => return Err(failure),
            Some(failure) => failure.row.exit,
            None => 0,
        };
        out.result(shown, || serde_json::to_string_pretty(&outcome.output).unwrap_or_default());
        if outcome.status == Status::Partial && !out.is_json() {
            let why = outcome.error.as_ref().map(|stop| stop.message.clone()).unwrap_or_default();
            out.aside(&format!("this is the best that could be had, not the whole: {why}"));
        }
        let budget = &shown["budget"];
        let spent = money(budget["spent"].as_u64().unwrap_or(0), budget["currency"].as_str().unwrap_or_default());
        let receipt = shown["receipt_id"].as_str().unwrap_or_default();
        let by = match shown["artifact"]["pointer_revision"].as_u64() {
            Some(_) => format!("  {}", shown["artifact"]["variant"].as_str().unwrap_or_default()),
            None => String::new(),
        };
        out.remark(&format!("{} tokens, {spent}{by}  receipt {receipt}", budget["total_tokens"]));
        Ok(code)
    }

    fn who(&self) -> Who {
        Who {
            key: self.key.clone(),
            user: self.user.clone(),
            run: self.run.clone(),
            thread: self.thread.clone(),
            agent: self.agent.clone(),
        }
    }

    fn read_input(&self) -> Result<Value, Failure> {
        let mut input = match self.input.as_deref() {
            None => Value::Object(Map::new()),
            Some(path) if path.as_os_str() == "-" => {
                let mut text = Vec::new();
                std::io::stdin()
                    .take(INPUT_BYTES_MAX)
                    .read_to_end(&mut text)
                    .map_err(|e| Failure::of_io(format!("cannot read standard input: {e}"), &e))?;
                actum_contract::canon::parse(&text)
                    .map_err(|e| Failure::new(error::INPUT, format!("standard input is no JSON: {e}")))?
            }
            Some(path) => Document::read(path)?.value()?,
        };
        for text in &self.params {
            let bad = |message: String| {
                Failure::new(error::USAGE, message).hint("write --param NAME=VALUE, or --param NAME:=JSON")
            };
            let Some((name, value)) = text.split_once('=') else { return Err(bad(format!("{text:?} has no `=`"))) };
            let (name, value) = match name.strip_suffix(':') {
                None => (name, plain(value)),
                Some(name) => {
                    let value = actum_contract::canon::parse(value.as_bytes())
                        .map_err(|e| bad(format!("{text:?} is no JSON: {}", e.message)))?;
                    (name, value)
                }
            };
            let Some(fields) = input.as_object_mut() else {
                return Err(bad("the input is no object, so it has no members".into()));
            };
            fields.insert(name.to_owned(), value);
        }
        Ok(input)
    }
}
