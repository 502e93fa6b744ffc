//! Telling what a call came to: the result as every execution has it, with its evidence.

use actum_adapters::{Attempt, Outcome, Problem, Stage};
use actum_contract::execution::{End, Interpretation, Redactor, State, Violation};
use actum_contract::tool::{Interface, Transport, Went};
use actum_ledger::registry::Status;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::call::{Ask, Called, Chosen};
use crate::capture::Evidence;

pub(super) fn refused(id: &str, ask: &Ask, violations: Vec<Violation>, evidence: &Evidence) -> Called {
    let interpretation = Interpretation {
        meaning: "Refused before it was run".into(),
        action: "Mend the call, or change what is registered".into(),
    };
    let result = json!({
        "execution_id": id, "tool_id": ask.tool, "adapter_id": ask.adapter, "operation": ask.operation,
        "status": "refused", "exit_code": null, "interpretation": interpretation, "stdout": "", "stderr": "",
        "output": null, "truncated": false, "output_files": [], "duration_ms": 0, "violations": violations,
        "evidence": evidence.json(),
    });
    Called { result, code: 3 }
}

/// What was said against a call, or went wrong with it, in a line.
pub(super) fn why(result: &Value) -> String {
    let violations = result["violations"].as_array().into_iter().flatten();
    let told = violations.map(|one| {
        format!("{} {}", one["field"].as_str().unwrap_or_default(), one["message"].as_str().unwrap_or_default())
    });
    let error = result["error"]["message"].as_str().map(ToOwned::to_owned);
    told.chain(error).collect::<Vec<_>>().join("; ")
}

/// Parameters that do not fit what the tool says about them.
pub(super) fn unfit(id: &str, ask: &Ask, problem: &Problem, evidence: &Evidence) -> Called {
    let Called { mut result, .. } = refused(id, ask, Vec::new(), evidence);
    result["interpretation"]["action"] = json!("Mend the parameters");
    result["error"] = json!({"stage": stage_word(problem.stage), "path": problem.path, "message": problem.message});
    Called { result, code: 2 }
}

pub(super) fn remembered(id: &str, key: &str, mut result: Value) -> Called {
    result["evidence"]["cache"] = json!({"hit": true, "key": key, "execution_id": result["execution_id"]});
    result["execution_id"] = json!(id);
    result["cached"] = json!(true);
    result["duration_ms"] = json!(0);
    Called { result, code: 0 }
}

pub(super) fn told(id: &str, chosen: &Chosen, outcome: &Outcome, mut evidence: Evidence) -> Called {
    let last = outcome.attempts.last();
    let called = chosen.chain.iter().find(|one| one.item.id == outcome.adapter_id).map(|one| &one.is.interface);
    let is_program = called.is_none_or(|is| matches!(is, Interface::Cli(_) | Interface::Sdk(_)));
    let is_web = called.is_some_and(|is| match is {
        Interface::Api(_) => true,
        Interface::Mcp(mcp) => mcp.transport == Transport::Http,
        Interface::Cli(_) | Interface::Sdk(_) => false,
    });
    let stage = outcome.problem.as_ref().map(|problem| problem.stage);
    let (status, code) = match (outcome.went, stage) {
        (Went::Well, None) => ("success", 0),
        (_, Some(Stage::Denied)) => ("refused", 3),
        (_, Some(Stage::Input)) => ("refused", 2),
        _ if outcome.is_stopped => ("interrupted", 1),
        (Went::TimedOut, _) => ("timeout", 4),
        (Went::Unavailable, _) => ("unavailable", 1),
        _ => (last.and_then(|attempt| attempt.end).map_or("failure", failure_word), 1),
    };
    let interpretation = interpretation_of(outcome, last, is_web);
    let ended = last.and_then(|attempt| attempt.end).map(End::code).map(u64::from);
    let exit_code =
        if is_program { ended.or(outcome.code) } else { Some(u64::from(code)).filter(|_| status != "refused") };
    let passed = |good: bool| if good { State::Passed } else { State::Failed };
    let ran = !matches!(stage, Some(Stage::Input | Stage::Denied));
    evidence.note("Timeout enforced", passed(ran), format!("{} ms", chosen.narrowed[0].sandbox.timeout_ms));
    evidence.note("Resource limits monitored", passed(ran), None);
    evidence.note("Output streams captured", passed(ran), None);
    evidence.note("Errors logged with context", State::Passed, outcome.problem.as_ref().map(ToString::to_string));
    evidence.note("Exit code interpreted", State::Passed, interpretation.meaning.clone());
    evidence.note("Outputs collected and validated", passed(stage != Some(Stage::Output)), None);
    evidence.note("Evidence captured", State::Passed, None);
    evidence.note("Cleanup performed", State::Passed, "the cells' processes, mounts and groups are gone".to_owned());
    // The last attempt's own evidence stands at the top, where that of every execution does.
    if let Some(Value::Object(details)) = last.map(|attempt| attempt.evidence.clone()) {
        for (name, value) in details {
            evidence.details.entry(name).or_insert(value);
        }
    }
    let attempts: Vec<Value> = outcome
        .attempts
        .iter()
        .map(|attempt| {
            json!({"adapter_id": attempt.adapter_id, "went": went_word(attempt.went), "code": attempt.code,
                "duration_ms": attempt.duration_ms, "problem": attempt.problem.as_ref().map(ToString::to_string)})
        })
        .collect();
    evidence.details.insert("attempts".into(), json!(attempts));
    let error = outcome
        .problem
        .as_ref()
        .map(|problem| json!({"stage": stage_word(problem.stage), "path": problem.path, "message": problem.message}));
    let mut result = json!({
        "execution_id": id, "tool_id": chosen.tool.item.id, "adapter_id": outcome.adapter_id,
        "operation": chosen.operation, "status": status, "exit_code": exit_code, "interpretation": interpretation,
        "stdout": outcome.stdout, "stderr": outcome.stderr, "output": outcome.output, "truncated": outcome.is_cut,
        "output_files": [], "duration_ms": outcome.duration_ms, "error": error, "cached": false,
        "evidence": evidence.json(),
    });
    if is_web {
        result["http_status"] = json!(outcome.code);
    }
    let warnings = warnings(chosen, &outcome.adapter_id);
    if !warnings.is_empty() {
        result["warnings"] = json!(warnings);
    }
    Called { result, code }
}

/// What whoever calls should know, although it went well.
fn warnings(chosen: &Chosen, adapter: &str) -> Vec<String> {
    let mut found = Vec::new();
    if chosen.tool.item.status == Status::Deprecated {
        found.push(format!("{} is deprecated", chosen.tool.item.id));
    }
    let old = chosen.chain.iter().find(|one| one.item.id == adapter && one.item.status == Status::Deprecated);
    found.extend(old.map(|one| format!("{} is deprecated", one.item.id)));
    let today = Timestamp::now().to_string();
    if let Some(date) = chosen.tool.is.next_review.as_ref().filter(|date| date.as_str() < &today[..10]) {
        found.push(format!("the review of {} was due on {date}", chosen.tool.item.id));
    }
    found
}

fn failure_word(end: End) -> &'static str {
    match end {
        End::Exited(_) => "failure",
        other => other.status(),
    }
}

fn interpretation_of(outcome: &Outcome, last: Option<&Attempt>, is_web: bool) -> Interpretation {
    let of = |meaning: &str, action: &str| Interpretation { meaning: meaning.into(), action: action.into() };
    if outcome.is_stopped {
        return of("Ended from outside", "Run it again");
    }
    if let Some(problem) = &outcome.problem {
        match problem.stage {
            Stage::Input => return of("Refused before it was run", "Mend the parameters"),
            Stage::Denied if !is_web => {
                return of("Refused: it is not the program that was approved", "Register it again, if it is right");
            }
            Stage::Denied => return of("Refused: a host may not be reached", "Ask for it in the tool's scope"),
            Stage::Output if outcome.went != Went::Well => {
                return of("What came out is not what was expected", "Log and handle");
            }
            _ => {}
        }
    }
    match (last.and_then(|attempt| attempt.end), outcome.went, outcome.code) {
        (Some(end), _, _) => end.interpretation(),
        (None, Went::Well, _) => of("Success", "Continue workflow"),
        (None, Went::TimedOut, _) => End::TimedOut.interpretation(),
        (None, Went::Unavailable, _) => of("It could not be reached", "Check that it is there, and try again"),
        (None, Went::Wrong(_), Some(status)) if is_web => {
            of(&format!("Answered with status {status}"), "Log and handle")
        }
        (None, Went::Wrong(_), _) => of("Tool-specific error", "Log and handle"),
    }
}

fn went_word(went: Went) -> &'static str {
    match went {
        Went::Well => "well",
        Went::Wrong(_) => "wrong",
        Went::TimedOut => "timed_out",
        Went::Unavailable => "unavailable",
    }
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Input => "input",
        Stage::Call => "call",
        Stage::Output => "output",
        Stage::Denied => "denied",
    }
}

/// Without secrets, whoever said them: servers answer without anybody listening in between.
pub(super) fn clean(mut outcome: Outcome, redactor: &Redactor) -> Outcome {
    let text = |text: &str| String::from_utf8_lossy(&redactor.redact_values(text.as_bytes()).0).into_owned();
    let value = |value: &Value| without(value, &text);
    outcome.output = value(&outcome.output);
    (outcome.stdout, outcome.stderr) = (text(&outcome.stdout), text(&outcome.stderr));
    let problem = |found: &mut Option<Problem>| {
        if let Some(problem) = found {
            problem.message = text(&problem.message);
        }
    };
    problem(&mut outcome.problem);
    for attempt in &mut outcome.attempts {
        attempt.evidence = value(&attempt.evidence);
        problem(&mut attempt.problem);
    }
    outcome
}

/// A value without what must not be seen.
pub(super) fn without_secrets(value: &Value, redactor: &Redactor) -> Value {
    without(value, &|text| String::from_utf8_lossy(&redactor.redact_values(text.as_bytes()).0).into_owned())
}

/// A value with its texts changed; a number that has to be changed becomes text.
fn without(value: &Value, text: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(own) => text(own).into(),
        Value::Array(items) => items.iter().map(|item| without(item, text)).collect(),
        Value::Object(fields) => fields.iter().map(|(name, own)| (text(name), without(own, text))).collect(),
        Value::Number(number) => match text(&number.to_string()) {
            same if same == number.to_string() => value.clone(),
            changed => changed.into(),
        },
        Value::Null | Value::Bool(_) => value.clone(),
    }
}
