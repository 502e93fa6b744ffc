//! `actum predict`: one typed question to a model.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_ledger::receipt::{PREDICTION_TYPE, seal, statement_of, subject};
use actum_predict::signature::Strategy;
use actum_predict::strategy::Status;
use clap::Args;
use serde_json::{Map, Value, json};

use super::Ended;
use super::run::money;
use super::tool::plain;
use crate::args::Global;
use crate::config::Config;
use crate::document::Document;
use crate::failure::Failure;
use crate::key::Key;
use crate::model::alive::Alive;
use crate::model::line::Line;
use crate::model::predict::{Whom, predict, shown};
use crate::model::{Authorized, Counter, Recorded, Till, catalogue};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, note};
use crate::workspace::new_id;

/// What is read of standard input.
const INPUT_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// The signature: namespace/name.vN
    id: String,

    /// The input: a YAML or JSON file, or - for JSON on standard input
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// A member of the input: NAME=VALUE (text; a whole number, true and false are taken as such), or NAME:=JSON
    #[arg(long = "param", value_name = "NAME=VALUE")]
    params: Vec<String>,

    /// direct.v1 or rlm_lite.v1, if not the signature's own
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,

    /// The model, if not the signature's own
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// The provider, if several have the model
    #[arg(long, value_name = "ID")]
    provider: Option<String>,

    /// The run it belongs to, where permissions are for one
    #[arg(long, value_name = "ID")]
    run: Option<String>,

    /// For which agent, where permissions are for one
    #[arg(long, value_name = "ID")]
    agent: Option<String>,

    /// Adds what was asked and answered to a file, for a provider of type recorded
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Predict {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let input = self.read_input()?;
        let open = Open::new(Project::find(global)?, out)?;
        let mut signature = catalogue::find(&open.waiter, &open.tenant, &self.id)?;
        if let Some(word) = &self.strategy {
            signature.program.strategy = Strategy::read(word).ok_or_else(|| {
                let words = Strategy::ALL.map(Strategy::word).join(" or ");
                Failure::new(error::USAGE, format!("unsupported_strategy: {word:?}")).hint(format!("write {words}"))
            })?;
        }
        let config = Config::read(open.project.root())?;
        let places = (open.project.folder()?, open.project.root().to_owned());
        let counter = Counter::new(&open.waiter, &open.spend, &open.tenant, places, &config)?;
        let whom = Whom::of(&counter, self.model.as_deref(), self.provider.as_deref(), &signature.program)?;
        if let Err(flaws) = signature.check_input(&input) {
            out.detail(&flaws.join("\n"));
        }
        let run = self.run.clone().unwrap_or_else(|| format!("predict-{}", new_id()));
        // A run that is named is somebody else's.
        let _alive = match self.run {
            None => Some(Alive::enter(&counter.home, &run, open.waiter.journal.store_id())?),
            Some(_) => None,
        };
        let who = Authorized { run, autopilot: self.agent.clone(), ..Authorized::default() };
        let line = Line { till: Some(Arc::new(Till::open(&counter, who))), book: None };
        let predicted = predict(&line, &whom, &signature, &input, None)?;
        if let Some(path) = self.record.as_ref().filter(|_| !predicted.exchanges.is_empty()) {
            Recorded::add(path, &predicted.exchanges)?;
        }
        let mut shown = shown(&predicted);
        shown["receipt_path"] = json!(sealed(&open, &shown["receipt"])?);
        let outcome = &predicted.outcome;
        let code = match (outcome.status, &outcome.error) {
            (Status::Succeeded | Status::Partial, _) => 0,
            (_, Some(stop)) => {
                let name = match stop.reason_code.as_str() {
                    "predict_failed.invalid_input" => error::INPUT,
                    "policy_denied.approval_required" | "policy_denied.threshold_exceeded" => error::APPROVAL_NEEDED,
                    _ if stop.is_denied => error::SPEND_DENIED,
                    _ => error::PREDICT_FAILED,
                };
                let receipt = shown["receipt_id"].as_str().unwrap_or_default();
                let failure = Failure::new(name, format!("{}: {}", stop.reason_code, stop.message))
                    .details(json!({"reason_code": stop.reason_code, "receipt_id": receipt}));
                let failure = match name {
                    error::SPEND_DENIED => failure.hint(format!("`actum policy explain {receipt}` shows the rule")),
                    error::PREDICT_FAILED => failure.hint(format!("`actum trace show {receipt}` shows what was said")),
                    _ => failure,
                };
                if !global.json {
                    return Err(failure);
                }
                failure.row.exit
            }
            (_, None) => 1,
        };
        out.result(&shown, || serde_json::to_string_pretty(&outcome.output).unwrap_or_default());
        if outcome.status == Status::Partial && !out.is_json() {
            let why = outcome.error.as_ref().map(|stop| stop.message.clone()).unwrap_or_default();
            note(&format!("this is the best that could be had, not the whole: {why}"));
        }
        let budget = &shown["budget"];
        out.remark(&format!(
            "{} tokens, {}  receipt {}",
            budget["total_tokens"],
            money(budget["spent"].as_u64().unwrap_or(0), budget["currency"].as_str().unwrap_or_default()),
            shown["receipt_id"].as_str().unwrap_or_default()
        ));
        Ok(code)
    }

    fn read_input(&self) -> Result<Value, Failure> {
        let mut input = match self.input.as_deref() {
            None => Value::Object(Map::new()),
            Some(path) if path.as_os_str() == "-" => {
                let mut text = Vec::new();
                std::io::stdin()
                    .take(INPUT_BYTES_MAX)
                    .read_to_end(&mut text)
                    .map_err(|e| Failure::new(error::FILE, format!("cannot read standard input: {e}")))?;
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

/// Signs the receipt, for whoever wants to verify it elsewhere.
fn sealed(open: &Open, receipt: &Value) -> Result<String, Failure> {
    let key = Key::find_or_make(&open.project)?;
    let text = actum_predict::hash::canonical(receipt);
    let name = receipt["receipt_id"].as_str().unwrap_or_default();
    let of = subject(name, Digest::sha256(&text), &Digest::blake3(&text).to_hex());
    let said = statement_of(PREDICTION_TYPE, vec![of], json!({"receiptId": name, "prediction": receipt}));
    let envelope = seal(&said, &key.signing);
    let folder = open.project.folder()?.join("predictions");
    let path = folder.join(format!("{name}.json"));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, format!("{envelope}\n")));
    written.map_err(|e| Failure::new(error::FILE, format!("cannot write {}: {e}", path.display())))?;
    Ok(path.display().to_string())
}
