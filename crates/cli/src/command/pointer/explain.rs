//! `actum pointer explain`: one change of a pointer, and whether it follows from what is on record. What a guard decided is
//! judged again from the receipts and labels it had then. Changes nothing.

use actum_api::error;
use actum_ledger::pointer::Action;
use actum_predict::hash;
use actum_predict::pointer::Pointer;
use serde_json::{Value, json};

use super::found;
use super::look::{change_json, change_text, evidence_text};
use crate::command::Ended;
use crate::failure::Failure;
use crate::model::artifact;
use crate::model::guard::{self, Judgement, Watch};
use crate::model::rollout::{self, Past, Standing};
use crate::run::shop::Open;
use crate::ui::Out;

/// One thing that has to be so.
struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
}

impl Check {
    fn new(name: &'static str, ok: bool, detail: impl Into<String>) -> Self {
        Self { name, ok, detail: detail.into() }
    }

    fn to_json(&self) -> Value {
        json!({"name": self.name, "ok": self.ok, "detail": self.detail})
    }
}

pub(super) fn run(open: &Open, id: &str, n: u64, out: &mut Out) -> Ended {
    let newest = found(open, id)?.n;
    if n == 0 || n > newest {
        let failure = Failure::new(error::NOT_FOUND, format!("{id} is at revision {newest}; there is no revision {n}"));
        return Err(failure.hint(format!("`actum pointer history {id}` shows those there are")));
    }
    let past = rollout::past(open, id, n)?;
    let previous = if n > 1 { Some(rollout::past(open, id, n - 1)?) } else { None };
    let mut checks = vec![begins(&past, previous.as_ref()), ends(open, &past)?];
    checks.extend(artifacts(open, &past)?);
    let again = match (&past.change.decision, &previous) {
        (Some(decision), Some(previous)) => judged_again(open, &past, previous, decision, &mut checks)?,
        _ => None,
    };
    if again.is_none() {
        let is_of_guard = past.change.actor == guard::ACTOR || past.change.decision.is_some();
        let detail =
            if is_of_guard { "a guard is said to have made it, and there is none" } else { "a person made it" };
        checks.push(Check::new("decision", !is_of_guard, detail));
    }
    let identical = checks.iter().all(|check| check.ok);
    let recorded = past.change.decision.as_ref().map(|decision| &decision["evaluation_hash"]);
    let mut shown = change_json(&past.change);
    shown["at"] = json!(past.at);
    shown["seq"] = json!(past.seq);
    shown["checks"] = checks.iter().map(Check::to_json).collect();
    shown["again"] = again.as_ref().map_or(Value::Null, Judgement::to_json);
    shown["evaluation_hash"] = match (recorded, &again) {
        (None, None) => Value::Null,
        (recorded, again) => {
            json!({"recorded": recorded, "again": again.as_ref().map(|again| again.decision()["evaluation_hash"].clone())})
        }
    };
    shown["identical"] = json!(identical);
    out.result(&shown, || {
        let mut lines = vec![change_text(&past.change), format!("entry {} of the ledger, at {}", past.seq, past.at)];
        lines.extend(checks.iter().map(|check| {
            let mark = if check.ok { "✓" } else { "✗" };
            format!("  {mark} {}: {}", check.name, check.detail)
        }));
        lines.extend(again.as_ref().map(|again| evidence_text(again.evidence())));
        let same = if identical { "follows from what is on record" } else { "does NOT follow from what is on record" };
        lines.push(format!("revision {n} {same}"));
        lines.join("\n")
    });
    Ok(u8::from(!identical))
}

/// A change begins where the one before it ended.
fn begins(past: &Past, previous: Option<&Past>) -> Check {
    let change = &past.change;
    let Some(previous) = previous else { return Check::new("before", true, "it is the first") };
    let ok = change.before.as_ref() == Some(&previous.change.after) && previous.seq < past.seq;
    let word = if ok { "is" } else { "is NOT" };
    Check::new("before", ok, format!("{word} what revision {} left", previous.change.n))
}

/// And leaves what its action leaves.
fn ends(open: &Open, past: &Past) -> Result<Check, Failure> {
    let change = &past.change;
    let after = rollout::state(&change.signature, &change.after)?;
    let before = change.before.as_ref().map(|before| rollout::state(&change.signature, before)).transpose()?;
    let is_that_of = |expected: &Pointer| expected.to_json() == after.to_json();
    let (ok, detail) = match (change.action, &before) {
        (Action::Rollback, _) if change.restores != change.n => {
            let (restores, state) = rollout::left_by(open, &change.signature, change.restores)?;
            let ok = restores == change.restores && is_that_of(&state);
            (ok, format!("the state of revision {}", change.restores))
        }
        (Action::Rollback | Action::ClearCanary, Some(before)) => {
            (is_that_of(&before.without_canary()), "the same primary, and nothing tried beside it".to_owned())
        }
        (Action::Promote, Some(before)) => (
            is_that_of(&before.promoted(&after.primary_artifact)),
            "one artifact for all, the rest as it was".to_owned(),
        ),
        (Action::SetCanary, Some(before)) => {
            let ok = after.canary_artifact.is_some() && after.primary_artifact == before.primary_artifact;
            (ok, "an artifact is tried beside the same primary".to_owned())
        }
        (Action::Set, _) => (after.canary_artifact.is_none(), "one artifact for all".to_owned()),
        (_, None) => (false, "there was nothing before it".to_owned()),
    };
    let word = if ok { "is" } else { "is NOT" };
    Ok(Check::new("after", ok, format!("{word} what {} leaves: {detail}", change.action.word())))
}

/// What a pointer names is registered and fits.
fn artifacts(open: &Open, past: &Past) -> Result<Vec<Check>, Failure> {
    let signature = rollout::signature(open, &past.change.signature)?;
    let named = ["primary_artifact", "canary_artifact"].map(|field| past.change.after[field].as_str());
    let check = |id: &str| match artifact::fitting(open, &signature, id) {
        Ok(found) if found.id() == id => Check::new("artifact", true, format!("{id} is registered and fits")),
        Ok(found) => Check::new("artifact", false, format!("{id} is another one: {}", found.id())),
        Err(failure) => Check::new("artifact", false, failure.message),
    };
    Ok(named.into_iter().flatten().map(check).collect())
}

/// What the guard says of what it had then; nothing if there was no guard.
fn judged_again(
    open: &Open,
    past: &Past,
    previous: &Past,
    decision: &Value,
    checks: &mut Vec<Check>,
) -> Result<Option<Judgement>, Failure> {
    let change = &past.change;
    let standing = Standing {
        n: previous.change.n,
        restores: previous.change.restores,
        seq: previous.seq,
        pointer: rollout::state(&change.signature, &previous.change.after)?,
    };
    // Not beyond the change itself, whatever it says.
    let range = &decision["range"];
    let end = range["to_seq"].as_u64().map_or(0, |to| to.saturating_add(1)).min(past.seq);
    let Some(again) = Watch::default().judge_until(open, &standing, end)? else { return Ok(None) };
    let told = again.decision();
    let is_range = hash::of(range) == hash::of(&told["range"]);
    let (from, to) = (&told["range"]["from_seq"], &told["range"]["to_seq"]);
    let mark = |ok: bool| if ok { "" } else { "NOT " };
    checks.push(Check::new(
        "range",
        is_range,
        format!("entries {from} to {to} are {}those since revision {}", mark(is_range), standing.n),
    ));
    // As canonical text: a number that was kept may be written in another way.
    let fields = ["reason_code", "reason_codes_version", "evidence", "evaluation_hash"];
    let differ: Vec<&str> =
        fields.into_iter().filter(|field| hash::of(&decision[*field]) != hash::of(&told[*field])).collect();
    let detail = match &differ[..] {
        [] => format!("judged again it is the same: {}", again.says()),
        differ => format!("judged again it is NOT the same ({}): {}", differ.join(", "), again.says()),
    };
    checks.push(Check::new("decision", differ.is_empty() && change.actor == guard::ACTOR, detail));
    let follows = guard::consequence(open, &standing, again.verdict())?.is_some_and(|(action, restores, after)| {
        action == change.action && restores.unwrap_or(change.n) == change.restores && after.to_json() == change.after
    });
    let word = if follows { "follows" } else { "does NOT follow" };
    checks.push(Check::new("consequence", follows, format!("{} {word} from it", change.action.word())));
    Ok(Some(again))
}
