//! `actum status` and `actum list`: where runs stand.

use actum_api::error;
use actum_contract::metadata::{self, Stored};
use actum_ledger::run::{Filter, Run as Row, RunState};
use clap::Args;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::Ended;
use super::run::{block, exit_code, run_json};
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::{Open, contract_periods, spent};
use crate::ui::{Out, clean, table};
use crate::workspace::time;

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The run, or the beginning of its id; without it, how many there are
    run: Option<String>,
}

impl Status {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self.run {
            None => counts(&open, out),
            Some(prefix) => {
                let row = open.run(&prefix)?;
                let shown = status(&open, &row)?;
                out.result(&shown, || text(&row, &shown, &open));
                Ok(0)
            }
        }
    }
}

fn counts(open: &Open, out: &mut Out) -> Ended {
    let counts = open.waiter.wait(open.waiter.runs.counts(&open.tenant))?;
    let mut states = Map::new();
    let mut errors = Map::new();
    for (state, code, number) in &counts {
        let add = |to: &mut Map<String, Value>, key: &str| {
            let sum = to.get(key).and_then(Value::as_u64).unwrap_or(0) + number;
            to.insert(key.to_owned(), json!(sum));
        };
        add(&mut states, state.word());
        if let Some(code) = code {
            add(&mut errors, code);
        }
    }
    let refused = |code: &str| errors.get(code).cloned().unwrap_or(json!(0));
    let metrics = json!({
        "actum_runs": states,
        "actum_run_errors_total": errors,
        "actum_contract_refusals_total": {
            "UNSUPPORTED_CONTRACT": refused("UNSUPPORTED_CONTRACT"), "CONTRACT_MISMATCH": refused("CONTRACT_MISMATCH"),
        },
    });
    out.result(&json!({"runs": states, "metrics": metrics}), || {
        let rows: Vec<Vec<String>> =
            states.iter().map(|(state, number)| vec![state.clone(), number.to_string()]).collect();
        if rows.is_empty() { "no runs yet".to_owned() } else { table(&["state", "runs"], &rows) }
    });
    Ok(0)
}

/// A run in full.
pub(crate) fn status(open: &Open, row: &Row) -> Result<Value, Failure> {
    let fields: Map<String, Value> = serde_json::from_str(&row.metadata).unwrap_or_default();
    let outcome: Value = row.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let get = |key: &str| fields.get(key).cloned().unwrap_or(Value::Null);
    let checked = metadata::check(&fields);
    let mut governance = match &checked {
        Ok(Stored::Contract(_)) => json!({"supported": true}),
        Ok(Stored::Legacy) => json!({"supported": true, "code": "EXECUTION_CONTRACT_MISSING"}),
        Err(e) => json!({"supported": false, "code": e.code(), "message": e.to_string(), "details": e.details()}),
    };
    if checked.is_ok()
        && let Some(bad) = actum_engine::refusal(&open.waiter, row)?
    {
        governance =
            json!({"supported": false, "code": bad.code(), "message": bad.to_string(), "details": bad.details()});
    }
    // What a worker refused stays visible, whatever the metadata says now.
    if let Some(refused) = outcome.get("governance").and_then(Value::as_object) {
        governance["supported"] = json!(false);
        for (key, value) in refused {
            governance[key.as_str()] = value.clone();
        }
    }
    let rows = open.waiter.wait(open.waiter.runs.events(&open.tenant, &row.id, 0))?;
    let mut shown = json!({
        "run_id": row.id, "item_id": row.item, "agent_id": row.robot, "submission": row.submission,
        "state": row.state.word(), "attempt": row.attempt,
        "created_at": time(u64::try_from(row.created_ms).unwrap_or(0)),
        "updated_at": time(u64::try_from(row.updated_ms).unwrap_or(0)),
        "contract": {
            "schemaVersion": get(metadata::SCHEMA_VERSION), "hash": get(metadata::HASH), "material": get(metadata::MATERIAL),
            "effectiveExecutionConfig": get(metadata::EFFECTIVE_CONFIG), "fallbackUsed": get(metadata::FALLBACK_USED),
            "fallbackFields": get(metadata::FALLBACK_FIELDS),
        },
        "governance": governance,
    });
    // Where the project is stored is not for other tenants.
    if !open.project.is_guest()? {
        shown["place"] = json!(row.place);
    }
    if let Ok((_, agreement, _)) = actum_engine::read_agreement(&row.metadata)
        && let Some(state) = actum_engine::state_of(&open.waiter, row)?
    {
        shown["progress"] = json!({
            "phase": state.phase.word(), "steps": state.steps.len(), "steps_done": state.steps_done,
            "files": state.files, "tool_ops": state.tool_ops(), "spent_ms": state.spent_ms,
            "runtime_corrections": state.runtime_corrections, "heavy_corrections": state.heavy_corrections,
            "contracts": contract_periods(&state),
        });
        if !state.failures.is_empty() {
            shown["failures"] = json!(state.failures);
        }
        shown["workspace"] = match &agreement.shared {
            Some(name) => json!(name),
            None => json!(agreement.workspace),
        };
        if let Some(by) = agreement.submitted_by {
            shown["submitted_by"] = json!(by);
        }
        if let Some(fork) = agreement.fork_of {
            shown["fork_of"] = json!(fork.run);
        }
    }
    let journal: Vec<Value> =
        rows.iter().map(|event| json!({"n": event.n, "attempt": event.attempt, "event": event.kind, "at": time(u64::try_from(event.at_ms).unwrap_or(0))})).collect();
    shown["events"] = json!(journal);
    if row.state == RunState::Blocked {
        let waits = open.waiter.wait(open.waiter.runs.dependencies(&open.tenant, &row.id))?;
        let waits: Vec<Value> = waits
            .into_iter()
            .filter(|(_, state)| *state != RunState::Succeeded)
            .map(|(run, state)| json!({"run_id": run, "state": state.word()}))
            .collect();
        shown["waits_for"] = json!(waits);
    }
    if let Some(waiting) = why_waiting(open, row, &outcome)? {
        shown["waiting"] = json!(waiting);
    }
    if !outcome["result"].is_null() {
        shown["result"] = outcome["result"].clone();
    }
    if let Some(spent) = spent::held(&open.waiter, &*open.spend, &open.tenant, &row.id)? {
        shown["spend"] = spent;
    }
    if !outcome["error"].is_null() {
        shown["error"] = outcome["error"].clone();
    }
    shown["warnings"] = outcome.get("warnings").cloned().unwrap_or(json!([]));
    if row.state.is_over() || row.state == RunState::Planned {
        // As `run` tells of it, for whoever waits elsewhere.
        (shown["run"], shown["exit"]) = (run_json(row), json!(exit_code(row)));
    }
    Ok(shown)
}

/// Why a run that is not over makes no progress, as far as that is known here.
pub(crate) fn why_waiting(open: &Open, row: &Row, outcome: &Value) -> Result<Option<String>, Failure> {
    Ok(match row.state {
        RunState::Queued => Some(match outcome["put_off"].as_str() {
            _ if !open.project.is_guest()? && !open.places()?.contains(&row.place) => format!(
                "for a worker that serves {}; workers of this project serve {}. If the object store has moved, name its \
                 earlier address in blobs.also of actum.toml",
                row.place,
                open.places()?.join(" and ")
            ),
            _ if !open.project.is_guest()? && unwell_workers(open).is_some() => {
                unwell_workers(open).unwrap_or_default()
            }
            // Reasons of a machine name its paths: not for other tenants.
            Some(_) if open.project.is_guest()? => "for a worker; the last one gave it back".to_owned(),
            Some(why) => format!("for a worker; the last one gave it back: {why}"),
            None => format!("for a worker: `actum worker` or `actum resume {}`", row.id),
        }),
        RunState::Running if open.is_abandoned(row)? => {
            Some(format!("its worker is gone: `actum worker` or `actum resume {}` continues it", row.id))
        }
        RunState::Blocked => {
            let on = open.waiter.wait(open.waiter.runs.dependencies(&open.tenant, &row.id))?;
            let open_ones = on.into_iter().filter(|(_, state)| *state != RunState::Succeeded);
            let named: Vec<String> = open_ones.map(|(run, state)| format!("run {run} ({state})")).collect();
            Some(format!("for {}", named.join(", ")))
        }
        _ => None,
    })
}

/// Returns why the workers of this machine claim nothing, if none of those that live does.
fn unwell_workers(open: &Open) -> Option<String> {
    let all = crate::run::local_workers(&open.project.root().join(".actum"));
    let living: Vec<_> = all.into_iter().filter(|worker| worker.alive).collect();
    let reasons: Vec<String> = living.iter().filter_map(|worker| worker.report.unwell.clone()).collect();
    let reason = reasons.first().filter(|_| reasons.len() == living.len())?;
    Some(match living.len() {
        1 => format!("for its worker, which claims nothing: {reason}"),
        count => format!("for a worker; all {count} on this machine claim nothing: {reason}"),
    })
}

fn text(row: &Row, shown: &Value, open: &Open) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let mut lines = Vec::new();
    if row.state.is_over() {
        lines.push(block(row, open));
    } else {
        lines.push(format!("{} {}  (run {})", row.item, row.state, row.id));
    }
    lines.push(format!("  state     {}, attempt {}", row.state, row.attempt));
    lines.push(format!("  agent     {}", row.robot));
    lines.push(format!("  contract  {}", word(&shown["contract"]["hash"])));
    let governance = &shown["governance"];
    if let Some(code) = governance["code"].as_str() {
        lines.push(format!("  refused   {code}: {}", word(&shown["error"]["message"])));
    }
    if let Some(progress) = shown.get("progress") {
        lines.push(format!(
            "  progress  {}, {} of {} steps, {} files, {} operations",
            word(&progress["phase"]),
            progress["steps_done"],
            progress["steps"],
            progress["files"],
            progress["tool_ops"]
        ));
    }
    if let Some(spent) = shown.get("spend") {
        lines.push(format!(
            "  spend     {} {}, {} set aside, {} to be reconciled",
            spent["spent"],
            word(&spent["currency"]),
            spent["reserved"],
            spent["reconcile_required"]
        ));
    }
    for failure in shown["failures"].as_array().into_iter().flatten() {
        let failed: Option<actum_kernel::Failed> = serde_json::from_value(failure.clone()).ok();
        lines.extend(failed.map(|failed| format!("  found     {}", clean(&failed.shown()))));
    }
    if let Some(waiting) = shown["waiting"].as_str() {
        lines.push(format!("  waits     {}", clean(waiting)));
    }
    for waits in shown["waits_for"].as_array().into_iter().flatten() {
        lines.push(format!("  waits for {} ({})", word(&waits["run_id"]), word(&waits["state"])));
    }
    lines.join("\n")
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only runs in this state: blocked, planned, queued, running, succeeded, failed, cancelled
    #[arg(long, value_name = "S")]
    state: Option<String>,

    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// Go on from the `next` of an earlier list
    #[arg(long, value_name = "C")]
    cursor: Option<String>,
}

impl List {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let state = match &self.state {
            None => None,
            Some(word) => Some(RunState::named(word).ok_or_else(|| {
                let words = RunState::ALL.map(RunState::word).join(", ");
                Failure::new(error::USAGE, format!("{word:?} is no state of a run")).hint(format!("one of {words}"))
            })?),
        };
        if let Some(cursor) = self.cursor.as_ref().filter(|cursor| Uuid::try_parse(cursor).is_err()) {
            let failure = Failure::new(error::USAGE, format!("{cursor:?} is no cursor"));
            return Err(failure.hint("take the `next` of an earlier list, or leave it out to begin at the newest"));
        }
        let open = Open::new(Project::find(global)?, out)?;
        let limit = usize::from(self.limit);
        let only = Some(metadata::HASH);
        let filter = Filter { state, before: self.cursor, limit: limit + 1, only, ..Filter::default() };
        let mut rows = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|row| row.id.clone());
        let runs: Vec<Value> = rows
            .iter()
            .map(|row| {
                let mut run = run_json(row);
                run["created_at"] = json!(time(u64::try_from(row.created_ms).unwrap_or(0)));
                run["agent_id"] = json!(row.robot);
                run
            })
            .collect();
        out.result(&json!({"runs": runs, "next": next}), || {
            let cells = |(row, run): (&Row, &Value)| {
                let code = run["error_code"].as_str().unwrap_or_default().to_owned();
                vec![
                    row.id.clone(),
                    row.item.clone(),
                    row.state.to_string(),
                    run["created_at"].as_str().unwrap_or_default().to_owned(),
                    code,
                ]
            };
            let lines: Vec<Vec<String>> = rows.iter().zip(&runs).map(cells).collect();
            if lines.is_empty() {
                "no runs".to_owned()
            } else {
                table(&["run", "item", "state", "created", "error"], &lines)
            }
        });
        if let Some(next) = next {
            out.remark(&format!("more with --cursor {next}"));
        }
        Ok(0)
    }
}
