//! What is shown of pointers: where they stand, who moved them, what somebody would get, what a guard says.

use actum_api::error;
use actum_ledger::pointer::Change;
use actum_predict::pointer::{BUCKET_ALGO, Keys, Pointer, Scope};
use serde_json::{Value, json};

use super::{SelectKeys, found};
use crate::command::Ended;
use crate::failure::Failure;
use crate::model::guard::{self, Watch};
use crate::model::rollout::{self, Past, Standing};
use crate::run::shop::Open;
use crate::ui::{Out, clean, table};

pub(super) fn list(open: &Open, out: &mut Out) -> Ended {
    let all = rollout::all(open)?;
    let shown: Vec<Value> = all.iter().map(standing_json).collect();
    out.result(&json!({"pointers": shown}), || {
        let row = |Standing { n, pointer, .. }: &Standing| {
            let guard = if pointer.guard.is_some() { "guarded" } else { "-" };
            let tried = pointer.canary_artifact.clone().unwrap_or_else(|| "-".to_owned());
            let percent = format!("{} %", pointer.canary_percent);
            let primary = pointer.primary_artifact.clone();
            vec![pointer.signature_id.clone(), n.to_string(), primary, tried, percent, guard.to_owned()]
        };
        let headings = ["SIGNATURE", "REVISION", "PRIMARY", "CANARY", "PERCENT", "GUARD"];
        table(&headings, &all.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

pub(super) fn history(open: &Open, id: &str, out: &mut Out) -> Ended {
    let all = rollout::history(open, id, found(open, id)?.n)?;
    let line = |Past { change, at, .. }: &Past| {
        let mut shown = change_json(change);
        shown["at"] = json!(at);
        shown
    };
    let shown: Vec<Value> = all.iter().map(line).collect();
    out.result(&json!({"signature_id": id, "history": shown}), || {
        let row = |Past { change, at, .. }: &Past| {
            let action = match change.restores == change.n {
                true => change.action.word().to_owned(),
                false => format!("{} to {}", change.action.word(), change.restores),
            };
            vec![
                change.n.to_string(),
                action,
                clean(&change.actor),
                at.clone(),
                left(&change.after),
                clean(&change.reason),
            ]
        };
        table(&["REVISION", "ACTION", "ACTOR", "AT", "POINTS TO", "REASON"], &all.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

pub(super) fn select(open: &Open, id: &str, given: SelectKeys, out: &mut Out) -> Ended {
    let Standing { n, pointer, .. } = found(open, id)?;
    let SelectKeys { key, run, thread, autopilot, user } = given;
    let mut keys = Keys { key: None, run, thread, autopilot, user };
    let is_nobody = [&key, &keys.run, &keys.thread, &keys.autopilot, &keys.user].iter().all(|one| one.is_none());
    let goes_by_itself = match pointer.key_scope {
        Scope::Auto => is_nobody,
        Scope::Run => key.is_none() && keys.run.is_none(),
        Scope::Thread | Scope::Autopilot | Scope::User => false,
    };
    if goes_by_itself {
        let failure = Failure::new(error::USAGE, "no caller given: calls without one are assigned at random each time");
        return Err(failure.hint(match pointer.key_scope {
            Scope::Run => "give --run",
            _ => "give --key, --run, --thread, --autopilot or --user",
        }));
    }
    if key.is_some() {
        match pointer.key_scope {
            Scope::Auto => keys.key = key,
            Scope::Run => keys.run = key,
            Scope::Thread => keys.thread = key,
            Scope::Autopilot => keys.autopilot = key,
            Scope::User => keys.user = key,
        }
    }
    let selected = pointer.select(&keys);
    let shown = json!({
        "signature_id": id, "revision": n, "artifact": selected.artifact, "variant": selected.variant.word(),
        "bucket": selected.bucket, "canary_percent": pointer.canary_percent, "key_scope": pointer.key_scope.word(),
        "scope": selected.scope, "bucket_algo": BUCKET_ALGO, "rollout_seed": pointer.rollout_seed,
        "why": selected.why,
    });
    out.result(&shown, || {
        let bucket = selected.bucket.map_or_else(|| "-".to_owned(), |bucket| bucket.to_string());
        let rows = [
            ("artifact", selected.artifact.clone()),
            ("variant", selected.variant.word().to_owned()),
            ("bucket", bucket),
            ("percent", pointer.canary_percent.to_string()),
            ("scope", format!("{} (key_scope {})", selected.scope, pointer.key_scope.word())),
            ("seed", clean(&pointer.rollout_seed)),
            ("algorithm", BUCKET_ALGO.to_owned()),
            ("revision", n.to_string()),
            ("why", clean(&selected.why)),
        ];
        rows.map(|(name, value)| format!("{name:<9}  {value}")).join("\n")
    });
    Ok(0)
}

pub(super) fn judge(open: &Open, id: &str, dry_run: bool, out: &mut Out) -> Ended {
    let standing = found(open, id)?;
    let Some(judged) = Watch::default().judge(open, &standing)? else {
        let failure = Failure::new(error::NOT_FOUND, format!("the pointer of {id} has no guard"));
        return Err(failure.hint("declare one with what is tried: `actum pointer canary … --guard FILE`"));
    };
    let moved = if dry_run { None } else { guard::act(open, &standing, &judged)? };
    let mut shown = judged.to_json();
    shown["signature_id"] = json!(id);
    shown["revision"] = json!(standing.n);
    shown["dry_run"] = json!(dry_run);
    shown["change"] = moved.as_ref().map_or(Value::Null, change_json);
    out.result(&shown, || {
        let done = moved.as_ref().map(|change| format!("\n{}", change_text(change))).unwrap_or_default();
        format!("{}: {}\n{}{done}", judged.word(), judged.says(), evidence_text(judged.evidence()))
    });
    Ok(0)
}

/// What was measured on both sides, and each bound.
pub(super) fn evidence_text(evidence: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let sides = ["primary", "canary"].map(|side| {
        let cells = MEASURED.map(|name| text(&evidence[side][name]));
        [vec![side.to_owned()], cells.to_vec()].concat()
    });
    let bounds = evidence["bounds"].as_array().into_iter().flatten().map(|bound| {
        let of = if bound["ratio_to_primary"] == true { "ratio to primary" } else { "canary" };
        let holds = match bound["holds"].as_bool() {
            Some(true) => "holds",
            Some(false) => "BROKEN",
            None => "not enough samples",
        };
        let value = if bound["unbounded"] == true { "unbounded".to_owned() } else { text(&bound["value"]) };
        let [metric, min, max, samples] = ["metric", "min", "max", "samples"].map(|name| text(&bound[name]));
        vec![metric, of.to_owned(), min, max, value, samples, holds.to_owned()]
    });
    let sides = table(&["", "SAMPLES", "ERROR_RATE", "COST", "MEAN_MS", "P95_MS", "SCORE", "SCORED"], &sides);
    let bounds = table(&["BOUND", "OF", "MIN", "MAX", "VALUE", "SAMPLES", ""], &bounds.collect::<Vec<_>>());
    format!("{sides}\n{bounds}")
}

const MEASURED: [&str; 7] = ["samples", "error_rate", "cost", "latency_mean_ms", "latency_p95_ms", "score", "scored"];

/// Where a pointer stands, line by line.
pub(super) fn standing_text(standing: &Standing) -> String {
    let Standing { n, restores, pointer, .. } = standing;
    let tried = match &pointer.canary_artifact {
        Some(tried) => format!("{tried} for {} of 100", pointer.canary_percent),
        None => "none".to_owned(),
    };
    let revision = if standing.is_restored() { format!("{n}, back to what {restores} left") } else { n.to_string() };
    let mut rows = vec![
        ("signature", pointer.signature_id.clone()),
        ("revision", revision),
        ("primary", pointer.primary_artifact.clone()),
        ("canary", tried),
        ("key scope", pointer.key_scope.word().to_owned()),
        ("seed", clean(&pointer.rollout_seed)),
    ];
    if let Some(guard) = &pointer.guard {
        let bounds = guard["bounds"].as_array().into_iter().flatten().map(|bound| {
            let of = if bound["ratio_to_primary"] == true { " of the primary's" } else { "" };
            let min = bound["min"].as_f64().map(|min| format!(" from {min}")).unwrap_or_default();
            let max = bound["max"].as_f64().map(|max| format!(" to {max}")).unwrap_or_default();
            format!("{}{min}{max}{of}", bound["metric"].as_str().unwrap_or_default())
        });
        let bounds = bounds.collect::<Vec<_>>().join(", ");
        rows.push(("guard", format!("{bounds}; after {} samples", guard["samples"])));
    }
    if !pointer.metadata.is_empty() {
        rows.push(("metadata", clean(&Value::Object(pointer.metadata.clone()).to_string())));
    }
    rows.iter().map(|(name, value)| format!("{name:<9}  {value}")).collect::<Vec<_>>().join("\n")
}

pub(super) fn standing_json(standing: &Standing) -> Value {
    let mut shown = standing.pointer.to_json();
    shown["revision"] = json!(standing.n);
    shown["restores"] = json!(standing.restores);
    shown
}

pub(crate) fn change_json(change: &Change) -> Value {
    json!({
        "signature_id": change.signature, "revision": change.n, "action": change.action.word(),
        "restores": change.restores, "before": change.before, "after": change.after, "actor": change.actor,
        "reason": change.reason, "decision": change.decision,
    })
}

/// What a change left, in one line.
fn left(after: &Value) -> String {
    let text = |name: &str| after[name].as_str().unwrap_or_default().to_owned();
    match after["canary_artifact"].as_str() {
        None => text("primary_artifact"),
        Some(tried) => format!("{}, {} % {tried}", text("primary_artifact"), after["canary_percent"]),
    }
}

/// What a change did, field by field; the first one beside a pointer that says nothing.
pub(super) fn change_text(change: &Change) -> String {
    let (action, actor, reason) = (change.action.word(), clean(&change.actor), clean(&change.reason));
    let mut lines = vec![format!("{}  revision {}  {action} by {actor}: {reason}", change.signature, change.n)];
    let blank = Pointer::new(&change.signature, "none").to_json();
    let before = change.before.as_ref().unwrap_or(&blank);
    for (name, after) in change.after.as_object().into_iter().flatten() {
        let text = |value: &Value| match value {
            Value::Null => "none".to_owned(),
            Value::String(text) => clean(text),
            other => other.to_string(),
        };
        if before[name] != *after {
            lines.push(format!("  {name:<16}  {} → {}", text(&before[name]), text(after)));
        }
    }
    lines.join("\n")
}
