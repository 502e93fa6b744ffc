//! `actum trace` and `actum policy`: what was asked and answered, and why it was allowed or not.

use actum_api::error;
use actum_ledger::journal::Range;
use actum_ledger::spend;
use actum_predict::evolve::Kind;
use actum_predict::policy::{self, Inputs, REASONS_VERSION};
use clap::Subcommand;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::model::{evidence, receipt};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, table};

/// Receipts read at a time.
const PAGE: usize = 500;
/// Beyond every entry.
const END: u64 = i64::MAX as u64;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// What was asked and answered, without secrets
    Show {
        /// A receipt (pred_…), a trace (trace:…), or the id of a prediction
        id: String,
    },
    /// Receipts of calls and predictions, the newest first
    List {
        /// Only of this run
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        limit: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyVerb {
    /// Evaluate the policy again from what is on record, rule by rule, and compare
    Explain {
        /// A receipt (pred_…, spend:tool:…), the id of a prediction, or the execution of a tool that spends
        id: String,
    },
    /// The reason codes there are
    Reasons,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self {
            Self::Show { id } => show(&open, &id, out),
            Self::List { run, limit } => list(&open, run.as_deref(), limit, out),
        }
    }
}

fn list(open: &Open, run: Option<&str>, limit: u64, out: &mut Out) -> Ended {
    let mut found = Vec::new();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    each(open, &mut |payload| {
        let receipt = &payload["receipt"];
        if run.is_none_or(|run| receipt["run_id"].as_str().is_some_and(|id| id.starts_with(run))) {
            found.push(receipt.clone());
        }
        found.len() >= limit
    })?;
    out.result(&json!({"receipts": found}), || {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let row = |one: &Value| {
            let cells = [
                &one["receipt_id"],
                &one["kind"],
                &one["status"],
                &one["signature_id"],
                &one["model"],
                &one["budget"]["total_tokens"],
                &one["budget"]["spent"],
                // Why it went wrong says more than why it was allowed.
                if one["error"].is_null() { &one["policy"]["reason_code"] } else { &one["error"]["reason_code"] },
                &one["timing"]["started_at"],
                &one["run_id"],
            ];
            cells.map(text).to_vec()
        };
        let headings = ["RECEIPT", "KIND", "STATUS", "SIGNATURE", "MODEL", "TOKENS", "SPENT", "REASON", "AT", "RUN"];
        table(&headings, &found.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

fn show(open: &Open, id: &str, out: &mut Out) -> Ended {
    let payload = find(open, id)?;
    let traces = receipt::traces(&open.project)?;
    let mut shown = receipt::whole(&payload, &traces)?;
    // What a prediction asked is with its calls.
    if payload["receipt"]["kind"] == "prediction" {
        let (above, mut calls) = (payload["receipt"]["prediction_id"].clone(), Vec::new());
        let since = payload["receipt"]["timing"]["started_at"].as_str().unwrap_or_default().to_owned();
        each(open, &mut |other| {
            let receipt = &other["receipt"];
            if receipt["parent_prediction_id"] == above {
                calls.push(other.clone());
            }
            receipt["timing"]["completed_at"].as_str().is_some_and(|at| at < since.as_str())
        })?;
        calls.reverse();
        shown["calls"] = calls.iter().map(|call| receipt::whole(call, &traces)).collect::<Result<Value, _>>()?;
    }
    out.result(&shown, || serde_json::to_string_pretty(&shown).unwrap_or_default());
    Ok(0)
}

impl PolicyVerb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        match self {
            Self::Reasons => {
                let text = policy::REASONS_TEXT;
                let json: Value = serde_json::from_str(text).unwrap_or_default();
                out.result(&json, || {
                    let row = |one: &policy::Reason| {
                        vec![one.code.clone(), one.decision.word().to_owned(), one.description.clone()]
                    };
                    table(&["CODE", "DECISION", "MEANING"], &policy::reasons().iter().map(row).collect::<Vec<_>>())
                });
                Ok(0)
            }
            Self::Explain { id } => explain(&Open::new(Project::find(global)?, out)?, &id, out),
        }
    }
}

fn explain(open: &Open, id: &str, out: &mut Out) -> Ended {
    let payload = find(open, id)?;
    let decided = &payload["receipt"]["policy"];
    check_reasons(decided)?;
    let inputs: Inputs = serde_json::from_value(decided["inputs"].clone())
        .map_err(|e| Failure::new(error::LEDGER_DAMAGED, format!("the receipt of {id} has no inputs: {e}")))?;
    let again = policy::evaluate(&inputs);
    let identical = decided["evaluation_hash"] == again.evaluation_hash.as_str()
        && decided["reason_code"] == again.reason_code.as_str();
    let rules: Vec<Value> = policy::rules()
        .enumerate()
        .map(|(at, says)| {
            let outcome = match (at + 1).cmp(&usize::from(again.rule)) {
                std::cmp::Ordering::Less => "no",
                std::cmp::Ordering::Equal => "matched",
                std::cmp::Ordering::Greater => "not asked",
            };
            json!({"rule": at + 1, "says": says, "outcome": outcome})
        })
        .collect();
    let shown = json!({
        "receipt_id": payload["receipt"]["receipt_id"], "decision": again.decision.word(), "reason_code": again.reason_code,
        "reason_codes_version": again.reason_codes_version, "rule": again.rule, "why": again.why,
        "evaluation_hash": {"recorded": decided["evaluation_hash"], "again": again.evaluation_hash}, "identical": identical,
        "inputs": inputs, "rules": rules,
    });
    out.result(&shown, || {
        let mut lines = vec![format!("{}  {}", again.decision.word(), again.reason_code)];
        for rule in &rules {
            let mark = match rule["outcome"].as_str() {
                Some("matched") => "yes →",
                Some("no") => "no",
                _ => "-",
            };
            lines.push(format!("{mark:>5} {:>2}  {}", rule["rule"], rule["says"].as_str().unwrap_or_default()));
        }
        let budget = serde_json::to_string(&inputs.budget).unwrap_or_default();
        lines.push(format!("budget then  {budget}"));
        let same = if identical { "the same as recorded" } else { "NOT what was recorded" };
        lines.push(format!("evaluation   {}  {same}", again.evaluation_hash));
        lines.join("\n")
    });
    Ok(u8::from(!identical))
}

/// What was decided by other reasons is not decided again by these.
fn check_reasons(decided: &Value) -> Result<(), Failure> {
    let version = &decided["reason_codes_version"];
    if *version == REASONS_VERSION {
        return Ok(());
    }
    let message =
        format!("it was decided by the reasons {version}, and {REASONS_VERSION} are those that this program knows");
    Err(Failure::new(error::STORE_UNUSABLE, message).hint("use the version of actum that wrote it, or a newer one"))
}

/// What is on record of a receipt, of a trace, or of the newest receipt of a prediction.
fn find(open: &Open, id: &str) -> Result<Value, Failure> {
    if id.starts_with("pred_") {
        let bytes = open.waiter.wait(open.waiter.journal.entry(&open.tenant, &receipt::entry_id(id)))?;
        if let Some(bytes) = bytes {
            return evidence::payload_of(Kind::Receipt, &bytes);
        }
    }
    // A call of a tool that spends, by its execution or by its receipt.
    let of_tool = if id.starts_with(&spend::tool_receipt_id("")) { id.to_owned() } else { spend::tool_receipt_id(id) };
    let bytes = open.waiter.wait(open.waiter.journal.entry(&open.tenant, &of_tool))?;
    if let Some(entry) = bytes.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()) {
        return Ok(json!({"receipt": entry["payload"]}));
    }
    let mut found = None;
    if id.len() >= ID_CHARACTERS_MIN {
        each(open, &mut |payload| {
            let receipt = &payload["receipt"];
            let begins = |key: &str| receipt[key].as_str().is_some_and(|own| own.starts_with(id));
            if begins("receipt_id") || begins("prediction_id") || receipt["trace_ref"] == id {
                // Of a prediction its own receipt rather than that of a call.
                let is_better = found.is_none() || receipt["kind"] == "prediction";
                if is_better {
                    found = Some(payload.clone());
                }
            }
            found
                .as_ref()
                .is_some_and(|found: &Value| found["receipt"]["kind"] == "prediction" || id.starts_with("pred_"))
        })?;
    }
    found.ok_or_else(|| {
        let failure = Failure::new(error::NOT_FOUND, format!("there is no receipt or trace {id:?}"));
        failure.hint("`actum trace list` shows the receipts there are")
    })
}

/// Shorter ones could be anything.
const ID_CHARACTERS_MIN: usize = 8;

/// All receipts, the newest first, until it is enough.
fn each(open: &Open, enough: &mut dyn FnMut(&Value) -> bool) -> Result<(), Failure> {
    let mut from = END;
    loop {
        let range = Range { from, limit: PAGE, backwards: true, kind: Some(receipt::TYPE.to_owned()) };
        let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, range))?;
        let Some(last) = rows.last().map(|row| row.seq) else { return Ok(()) };
        for row in rows {
            if enough(&evidence::payload_of(Kind::Receipt, &row.body)?) {
                return Ok(());
            }
        }
        from = last;
    }
}
