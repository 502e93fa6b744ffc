//! An attempt by a program in a cell: no shell between it and us, and nothing handed to an interpreter that could become a
//! program.

use std::time::Instant;

use actum_contract::execution::{End, STDIN_BYTES_MAX, Violation, is_dangerous, is_interpreter, shell_character};
use actum_contract::tool::{Cli, CliCall, Entry, Went, arguments};
use serde_json::{Map, Value, json};

use super::Ask;
use crate::cells::{Cells, Job, Ran};
use crate::result::{Attempt, Problem, Stage};

/// Shortest time a program gets; less is none.
const TIMEOUT_MS_MIN: u64 = 1;

/// In which a program finds what its call is known by.
pub const KEY_VARIABLE: &str = "ACTUM_IDEMPOTENCY_KEY";

pub(super) fn attempt(cells: &dyn Cells, cli: &Cli, ask: &Ask<'_>) -> Attempt {
    let Ask { link, tool, operation, params, secrets, deadline, .. } = *ask;
    let id = &link.adapter.adapter_id;
    let begun = Instant::now();
    let checked = operation_of(cli, operation)
        .and_then(|operation| check_text(cli, tool, params).map(|()| operation))
        .and_then(|operation| called(cli, tool, operation, params));
    let (mut call, stripped, stdin_cut_from) = match checked {
        Ok(checked) => checked,
        Err(problem) => return Attempt::failed(id, Went::Wrong(None), problem),
    };
    let left_ms = u64::try_from(deadline.saturating_duration_since(begun).as_millis()).unwrap_or(u64::MAX);
    if left_ms < TIMEOUT_MS_MIN {
        return Attempt::failed(id, Went::TimedOut, Problem::new(Stage::Call, "no time was left to call it"));
    }
    call.environment.extend(ask.idempotency_key.map(|key| (KEY_VARIABLE.to_owned(), key.to_owned())));
    let mut sandbox = link.sandbox.clone();
    sandbox.timeout_ms = sandbox.timeout_ms.min(left_ms);
    let job = Job {
        program: [vec![cli.executable.clone()], call.arguments].concat(),
        environment: call.environment,
        secrets: secrets.clone(),
        stdin: call.stdin.map(String::into_bytes),
        sandbox,
    };
    let ran = match cells.run(&job) {
        Ok(ran) => ran,
        Err(not_run) => {
            let stage = if not_run.is_denied { Stage::Denied } else { Stage::Call };
            let problem = Problem::new(stage, format!("{} cannot be run: {}", cli.executable, not_run.why));
            return Attempt::failed(id, Went::Unavailable, problem);
        }
    };
    let evidence = json!({"program": job.program, "stripped_environment": stripped, "stdin_cut_from": stdin_cut_from,
        "cell": ran.evidence});
    Attempt { evidence, ..told(id, cli, ran) }
}

/// An operation that the adapter has arguments for; one without operations of its own takes any.
fn operation_of<'a>(cli: &Cli, operation: Option<&'a str>) -> Result<Option<&'a str>, Problem> {
    match operation {
        Some(name) if !cli.operations.is_empty() && !cli.operations.contains_key(name) => {
            let names = cli.operations.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Err(Problem::new(Stage::Input, format!("operation {name} is not known; there are {names}")))
        }
        other => Ok(other),
    }
}

/// All that can be said against parameters before anything is run.
pub fn violations(cli: &Cli, tool: &Entry, operation: Option<&str>, params: &Map<String, Value>) -> Vec<Violation> {
    let told = |check, problem: Problem| Violation {
        check,
        field: problem.path.map_or_else(|| "params".to_owned(), |path| format!("params.{path}")),
        message: problem.message,
    };
    let mut found: Vec<Violation> =
        check_text(cli, tool, params).err().map(|problem| told("IV-02", problem)).into_iter().collect();
    match arguments(cli, operation, params) {
        Ok(call) => found.extend(check_size(cli, tool, &call).err().map(|problem| told("IV-05", problem))),
        Err(bad) => found.extend(bad.into_iter().map(|one| Violation {
            check: "IV-02",
            field: format!("params.{}", one.parameter),
            message: one.why,
        })),
    }
    found
}

/// The input is within its limit, or may be cut.
fn check_size(cli: &Cli, tool: &Entry, call: &CliCall) -> Result<(), Problem> {
    let length = call.stdin.as_ref().map_or(0, |text| text.len() as u64);
    if length <= STDIN_BYTES_MAX || tool.scope.cuts_input {
        return Ok(());
    }
    let message = format!("the input is {length} bytes, at most {STDIN_BYTES_MAX} are taken");
    Err(Problem { stage: Stage::Input, path: cli.stdin.clone(), message })
}

/// Parameters of an interpreter have nothing in them that makes a text a program.
fn check_text(cli: &Cli, tool: &Entry, params: &Map<String, Value>) -> Result<(), Problem> {
    if tool.scope.any_arguments || !is_interpreter(&cli.executable) {
        return Ok(());
    }
    for (name, value) in params {
        let texts: Vec<String> = match value {
            Value::String(text) => vec![text.clone()],
            Value::Array(items) => {
                items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), ToOwned::to_owned)).collect()
            }
            other => vec![other.to_string()],
        };
        if let Some(c) = texts.iter().find_map(|text| shell_character(text)) {
            let message = format!(
                "parameter {name} contains {c:?}, and {} takes text for a program; `arguments: any` in the tool's scope allows that",
                cli.executable
            );
            return Err(Problem::at(Stage::Input, name, message));
        }
    }
    Ok(())
}

/// The command line, what was taken out of the environment, and how long the input was before it was cut.
type Called = (CliCall, Vec<String>, Option<u64>);

fn called(cli: &Cli, tool: &Entry, operation: Option<&str>, params: &Map<String, Value>) -> Result<Called, Problem> {
    let mut call = arguments(cli, operation, params).map_err(|all| {
        let told: Vec<String> = all.iter().map(ToString::to_string).collect();
        let path = all.first().map(|bad| bad.parameter.clone());
        Problem { stage: Stage::Input, path, message: told.join("; ") }
    })?;
    let scope = &tool.scope;
    let mut stripped = Vec::new();
    call.environment.retain(|name, _| {
        let stays = scope.scoped.contains(name) || (scope.environment.contains(name) && !is_dangerous(name));
        if !stays {
            stripped.push(name.clone());
        }
        stays
    });
    let length = call.stdin.as_ref().map_or(0, |text| text.len() as u64);
    if length <= STDIN_BYTES_MAX {
        return Ok((call, stripped, None));
    }
    check_size(cli, tool, &call)?;
    if let Some(text) = &mut call.stdin {
        let end = (0..=STDIN_BYTES_MAX as usize).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    Ok((call, stripped, Some(length)))
}

fn told(id: &str, cli: &Cli, ran: Ran) -> Attempt {
    let code = ran.end.map(|end| u64::from(end.code()));
    let went = match ran.end {
        None | Some(End::NotFound) => Went::Unavailable,
        Some(End::TimedOut) => Went::TimedOut,
        Some(End::Exited(code)) if code == 0 || cli.success_codes.contains(&code) => Went::Well,
        Some(end) => Went::Wrong(Some(u64::from(end.code()))),
    };
    let problem = (went != Went::Well).then(|| {
        let why = match ran.end {
            None => ran.error.clone().unwrap_or_else(|| "there was no cell".into()),
            Some(end) => format!("exit code {}: {}", end.code(), end.interpretation().meaning),
        };
        Problem::new(Stage::Call, format!("{} did not end well: {why}", cli.executable))
    });
    let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
    Attempt {
        output: Value::String(stdout.clone()),
        stdout,
        stderr: String::from_utf8_lossy(&ran.stderr).into_owned(),
        is_cut: ran.is_cut,
        code,
        duration_ms: ran.duration_ms,
        problem,
        end: ran.end,
        ..Attempt::new(id, went)
    }
}
