//! Functions of packages: a small program of ours in the package's language calls them in a cell, JSON in and JSON out.
//!
//! What a function prints goes to the errors; its answer is the one document behind a mark. Python and Node take any function.
//! Go and Rust have to be built, so there the function has one shape: JSON text in, JSON text out —
//! `func(string) (string, error)` and `fn(&str) -> String`.

use actum_contract::execution::End;
use actum_contract::tool::{Language, Sdk, Went};
use serde_json::{Map, Value, json};

use crate::cells::{Cells, Job, Ran};
use crate::result::{Attempt, Problem, Stage};

/// Stands before the answer.
const MARK: &str = "actum-result:";

/// The parameter whose items are given by place, not by name.
const BY_PLACE: &str = "args";

/// Characters of a message that somebody else wrote, and of the errors of a program that ended without an answer.
const TEXT_MAX: usize = 2_000;

const PYTHON: &str = include_str!("sdk/runner.py");
const NODE: &str = include_str!("sdk/runner.mjs");
const GO: &str = include_str!("sdk/runner.go");
const GO_BUILD: &str = include_str!("sdk/runner_go.sh");
const RUST_BUILD: &str = include_str!("sdk/runner_rust.sh");

/// Calls a function. `job` says in what surroundings; its program and its input are replaced.
pub fn attempt(
    cells: &dyn Cells,
    adapter_id: &str,
    sdk: &Sdk,
    operation: &str,
    params: &Map<String, Value>,
    job: Job,
) -> Attempt {
    let mut attempt = Attempt::new(adapter_id, Went::Wrong(None));
    let job = match prepared(sdk, operation, params, job) {
        Ok(job) => job,
        Err(problem) => {
            attempt.problem = Some(problem);
            return attempt;
        }
    };
    match cells.run(&job) {
        Ok(ran) => judge(sdk, operation, ran, &mut attempt),
        Err(not_run) => {
            let stage = if not_run.is_denied { Stage::Denied } else { Stage::Call };
            attempt.went = Went::Unavailable;
            attempt.problem = Some(Problem::new(stage, not_run.why));
        }
    }
    attempt
}

/// The job that makes the call.
fn prepared(sdk: &Sdk, operation: &str, params: &Map<String, Value>, mut job: Job) -> Result<Job, Problem> {
    let function = sdk.functions.get(operation).ok_or_else(|| {
        let known = sdk.functions.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        Problem::new(Stage::Input, format!("no operation {operation:?}; there are: {known}"))
    })?;
    let mut named = params.clone();
    let is_built = matches!(sdk.language, Language::Go | Language::Rust);
    let by_place = match named.get(BY_PLACE) {
        Some(Value::Array(items)) if !is_built => {
            let items = items.clone();
            named.remove(BY_PLACE);
            items
        }
        Some(other) if !is_built => {
            let text = format!("{BY_PLACE} has to be a list, whose items are given by place; it is {other}");
            return Err(Problem::at(Stage::Input, format!("/{BY_PLACE}"), text));
        }
        _ => Vec::new(),
    };
    let words = match sdk.language {
        Language::Python => words(&["python3", "-c", PYTHON, MARK, &sdk.import_path, function]),
        // Everything after `--` belongs to us, whatever it looks like.
        Language::Node => words(&["node", "--input-type=module", "-e", NODE, "--", MARK, &sdk.import_path, function]),
        Language::Go => words(&["/bin/sh", "-c", GO_BUILD, "sh", MARK, &go(sdk, function)?, folder(&sdk.package)]),
        Language::Rust => {
            let (main, manifest) = rust(sdk, function)?;
            words(&["/bin/sh", "-c", RUST_BUILD, "sh", MARK, &main, &manifest, &sdk.package])
        }
    };
    job.program = words;
    let input = if is_built { Value::Object(named) } else { json!({"params": named, "args": by_place}) };
    job.stdin = Some(input.to_string().into_bytes());
    Ok(job)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Whether a text is a name of a program in Go or Rust: names become part of a program text here.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether a text can stand between quotes in Go, in TOML and in a shell's text.
fn is_path(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/@".contains(&b))
}

/// A package that lies in a folder; any other is found from the working folder.
fn folder(package: &str) -> &str {
    if package.starts_with(['.', '/']) { package } else { "" }
}

fn go(sdk: &Sdk, function: &str) -> Result<String, Problem> {
    let wrong = |what: &str, text: &str, right: &str| {
        Err(Problem::new(Stage::Input, format!("{what} {text:?} is not {right}")))
    };
    if !is_name(function) {
        return wrong("the function", function, "the name of a function of Go");
    }
    if !is_path(&sdk.import_path) || sdk.import_path.starts_with(['.', '/']) {
        return wrong("import_path", &sdk.import_path, "the path by which Go imports the package");
    }
    if !is_path(&sdk.package) {
        return wrong("package", &sdk.package, "a folder or a path of Go");
    }
    Ok(GO.replace("@IMPORT@", &sdk.import_path).replace("@FUNCTION@", function))
}

/// The program, and the manifest up to the folder of the crate.
fn rust(sdk: &Sdk, function: &str) -> Result<(String, String), Problem> {
    if !is_path(&sdk.package) {
        let text = format!(
            "package {:?} is not the folder of a crate: only a crate of the project can be called",
            sdk.package
        );
        return Err(Problem::new(Stage::Input, text));
    }
    let name = sdk.import_path.rsplit('/').next().unwrap_or_default();
    let path: Vec<&str> = function.split("::").collect();
    if !is_name(&name.replace('-', "_")) || !path.iter().all(|part| is_name(part)) {
        let text = format!("{}::{function} is not the path of a function of Rust", name.replace('-', "_"));
        return Err(Problem::new(Stage::Input, text));
    }
    let main = format!(
        "//! Calls one function.\n\nuse std::io::Read;\n\nfn main() {{\n    let mut asked = String::new();\n    \
         std::io::stdin().read_to_string(&mut asked).expect(\"no input\");\n    \
         let answer: String = called::{}(&asked);\n    \
         let mark = std::env::args().nth(1).unwrap_or_default();\n    \
         println!(\"\\n{{mark}}{{{{\\\"ok\\\":{{answer}}}}}}\");\n}}\n",
        path.iter().map(|part| format!("r#{part}")).collect::<Vec<_>>().join("::")
    );
    let manifest = format!(
        "[package]\nname = \"actum-runner\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n\n[dependencies]\n\
         called = {{ package = \"{name}\", path = "
    );
    Ok((main, manifest))
}

fn judge(sdk: &Sdk, operation: &str, ran: Ran, attempt: &mut Attempt) {
    let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
    attempt.stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    (attempt.is_cut, attempt.duration_ms) = (ran.is_cut, ran.duration_ms);
    attempt.end = ran.end;
    attempt.code = ran.end.map(|end| u64::from(end.code()));
    attempt.evidence = json!({
        "language": sdk.language.word(), "package": sdk.package, "function": sdk.functions.get(operation),
        "cell": ran.evidence,
    });
    let mark = format!("\n{MARK}");
    let (printed, document) = match stdout.rsplit_once(&mark) {
        Some((printed, document)) => (printed, Some(document.trim())),
        None => (stdout.as_str(), None),
    };
    attempt.stdout = printed.to_owned();
    let wrong = |stage, message: String| Some(Problem::new(stage, message));
    match (ran.end, &ran.error) {
        (None, why) => {
            attempt.went = Went::Unavailable;
            let why = why.as_deref().unwrap_or("there was no cell");
            attempt.problem = wrong(Stage::Call, why.to_owned());
            return;
        }
        (Some(End::NotFound | End::NotExecutable), _) => return unavailable(sdk, attempt),
        (Some(End::TimedOut | End::Cancelled), _) => {
            attempt.went = Went::TimedOut;
            attempt.problem = wrong(Stage::Call, "the function did not return in time".into());
            return;
        }
        _ => attempt.went = Went::Wrong(attempt.code),
    }
    let answer = document.map(serde_json::from_str::<Value>);
    match answer {
        Some(Ok(Value::Object(mut fields))) if fields.contains_key("ok") => {
            attempt.went = Went::Well;
            attempt.output = fields.remove("ok").unwrap_or(Value::Null);
        }
        Some(Ok(answer)) if answer["error"].is_object() => failed(sdk, &answer["error"], attempt),
        Some(_) if ran.is_cut => {
            attempt.problem = wrong(Stage::Output, "the answer is longer than the limit on output".into());
        }
        Some(Ok(_)) => attempt.problem = wrong(Stage::Output, "the answer was changed on its way".into()),
        Some(Err(why)) => attempt.problem = wrong(Stage::Output, format!("the function's answer is no JSON: {why}")),
        None if ran.is_cut => {
            attempt.problem =
                wrong(Stage::Output, "the output is longer than its limit, and the answer was lost".into());
        }
        None => {
            let text = match attempt.stderr.trim() {
                "" => String::new(),
                errors => format!(": {}", last(errors)),
            };
            let code = attempt.code.unwrap_or_default();
            attempt.problem =
                wrong(Stage::Call, format!("the program ended with code {code} before the function returned{text}"));
        }
    }
}

/// What the runner has to say about a call that failed.
fn failed(sdk: &Sdk, error: &Value, attempt: &mut Attempt) {
    let text = |field: &str| error[field].as_str().unwrap_or_default().chars().take(TEXT_MAX).collect::<String>();
    let (kind, class, message) = (text("kind"), text("type"), text("message"));
    let (stage, message) = match kind.as_str() {
        "toolchain" => return unavailable(sdk, attempt),
        "package" => {
            attempt.went = Went::Unavailable;
            let tail = if message.is_empty() { String::new() } else { format!(": {message}") };
            (Stage::Call, format!("the package {} is not there{tail}", sdk.import_path))
        }
        "build" => {
            attempt.went = Went::Unavailable;
            let errors = attempt.stderr.trim();
            (Stage::Call, format!("the package {} does not build: {}", sdk.package, last(errors)))
        }
        "name" => (Stage::Call, format!("{} has no such function: {message}", sdk.import_path)),
        "arguments" => (Stage::Input, format!("the function does not take these parameters: {message}")),
        "result" => (Stage::Output, format!("the function's result is no JSON: {message}")),
        _ => (Stage::Call, if class.is_empty() { message } else { format!("{class}: {message}") }),
    };
    attempt.problem = Some(Problem::new(stage, message));
}

fn unavailable(sdk: &Sdk, attempt: &mut Attempt) {
    let what = match sdk.language {
        Language::Python => "run functions of Python",
        Language::Node => "run functions of JavaScript",
        Language::Go => "build functions of Go",
        Language::Rust => "build functions of Rust",
    };
    attempt.went = Went::Unavailable;
    let program = sdk.language.program();
    let text = format!("{program} is not installed: it is needed in the cell to {what}");
    attempt.problem = Some(Problem::new(Stage::Call, text));
}

/// The end of what a program had to say.
fn last(text: &str) -> String {
    let characters = text.chars().count();
    text.chars().skip(characters.saturating_sub(TEXT_MAX)).collect()
}
