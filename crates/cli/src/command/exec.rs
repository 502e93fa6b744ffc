//! `actum exec`: one execution under the code execution contract: checked, run in a cell, captured, read, and kept with its
//! evidence.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::execution::{
    ARTIFACTS_BYTES_MAX, CheckedInputs, End, Execution, Facts, FilesystemLevel, GRACE_MS, Interpretation,
    OUTPUT_FILES_BYTES_MAX, Redactor, State, Tool, Violation, check, read,
};
use actum_sandbox::{
    Captured, Cell, Grant, Identity, Log, Report, Signals, Spawner, Watched, find_program, open_beneath, path_of,
    read_beneath,
};
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use super::tool::Given;
use crate::approval::{self, Request};
use crate::args::Global;
use crate::capture::{Caught, Evidence, catch, hash, is_secret, lost, sha256, shown, tell_cell, tell_end};
use crate::cell::{self, Planned, Wanted};
use crate::config::Config;
use crate::document::Document;
use crate::execution::{self, Claim};
use crate::failure::Failure;
use crate::project::Project;
use crate::protect::Taken;
use crate::purse::{Authorized, Purse};
use crate::run::shop::Open;
use crate::tool::cache::Results;
use crate::tool::call::{Ask, Setting};
use crate::tool::cells::{Ground, Stops};
use crate::tool::contract::{Registered, SHA256};
use crate::tool::shelf::Shelf;
use crate::ui::Out;
use crate::workspace::{self, new_id};

#[derive(Debug, Args)]
#[command(
    after_help = "The tool has to be registered and approved (`actum tool add`), or on the allowlist in actum.toml:\n\n[tools.TL-003]\ncommands = [\"rg\"]\n\nRelative paths of the contract are seen from its working_directory, and that from the project. `actum schema execution` prints what may stand in the file."
)]
pub(crate) struct Exec {
    /// The contract: YAML or JSON; `-` reads JSON from stdin
    #[arg(required_unless_present = "tool", conflicts_with = "tool")]
    file: Option<PathBuf>,

    /// Call a registered tool instead: its id, or id@version
    #[arg(long, value_name = "ID")]
    tool: Option<String>,

    /// The operation of the tool
    #[arg(long, value_name = "NAME", requires = "tool")]
    op: Option<String>,

    #[command(flatten)]
    given: Given,

    /// A file that becomes the tool's input; `-` reads stdin
    #[arg(long, value_name = "FILE", requires = "tool")]
    stdin: Option<PathBuf>,

    /// Remember results under this name for a day, and answer from them as long as nothing they were made of has changed
    #[arg(long, value_name = "NAME", requires = "tool")]
    session: Option<String>,
}

/// Paths of a contract as they are on the machine.
struct Paths {
    folder: PathBuf,
    inputs: Vec<PathBuf>,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    deny: Vec<PathBuf>,
    outputs: Vec<PathBuf>,
    /// Granted although they lie outside the project.
    outside: Vec<PathBuf>,
}

impl Exec {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let Some(file) = &self.file else { return self.call(global, out) };
        let project = Project::find(global)?;
        let document = Document::read(file)?;
        let value = document.value()?;
        let contract = read(&value).map_err(|bad| flawed(&bad, &document))?;
        let config = project.config()?;
        let id = contract.execution_id.clone().unwrap_or_else(new_id);
        execution::folder_of(&project, &id)?;
        // Before there are threads, which would get them instead.
        let signals = Signals::catch().map_err(|e| cell::not_built(&e.to_string()))?;
        // The ledger is reached before anything is done: what cannot be recorded is not done.
        let open = Open::new(Project::at(&project), out)?;
        let ledger = workspace::Ledger::over(&open);
        execution::settle(&project, &ledger)?;
        let text = canon::canonical(&value).map_err(|e| Failure::new(error::INPUT, e.to_string()))?;
        let digest = Digest::sha256(&text).to_hex();
        let claim = Claim::take(&project, &id, &json!({"tool_id": contract.tool_id, "contract_sha256": digest}))?;
        let mut evidence = Evidence::new();
        evidence.details.insert("contract_sha256".into(), digest.into());
        evidence.passed("Evidence capture initialized", claim.folder.display().to_string());
        let folder = claim.folder.clone();
        let agreed = agreed_on(&value);
        let registered = Registered::find(&open, &contract.tool_id)?;
        let run = Run { id, folder, project: &project, execution: contract, config, evidence, registered, agreed };
        let (result, code) = match run.go(signals, out) {
            Ok(done) => done,
            Err(failure) => {
                claim.give_back();
                return Err(failure);
            }
        };
        claim.finish(&result, &ledger)?;
        out.result(&result, || summary(&result));
        Ok(code)
    }
}

impl Exec {
    /// One call of a registered tool.
    fn call(self, global: &Global, out: &mut Out) -> Ended {
        // Before there are threads, which would get them instead.
        let signals = Signals::catch().map_err(|e| cell::not_built(&e.to_string()))?;
        let open = Open::new(Project::find(global)?, out)?;
        let params = self.given.read()?;
        let input = self.stdin.as_deref().map(Document::read).transpose()?;
        let input = input.map(|document| String::from_utf8_lossy(&document.text).into_owned());
        let tool = self.tool.unwrap_or_default();
        let ask = Ask { tool, adapter: self.given.adapter, operation: self.op, params, input };
        call_tool(open, &ask, self.session, Some(signals), out)
    }
}

/// Where money is counted that tools spend without a run.
const DIRECT: &str = "tools";

/// Everything calls need that are made from the command line, on the project as it is.
pub(crate) fn setting(open: &Open, signals: Option<Signals>) -> Result<Setting, Failure> {
    let project = &open.project;
    let root = project.root().canonicalize().unwrap_or_else(|_| project.root().to_owned());
    let config = project.config()?;
    let spawner = Spawner::start(0).map_err(|e| cell::not_built(&e.to_string()))?;
    let stops = Arc::new(Stops::default());
    if let Some(signals) = signals {
        let stops = Arc::clone(&stops);
        let hear = move || {
            while signals.next() {
                stops.stop();
            }
        };
        // It waits for as long as the process lives, and dies with it.
        let heard = std::thread::Builder::new().name("signals".into()).spawn(hear);
        heard.map_err(|e| Failure::new(error::INTERNAL, format!("cannot start: {e}")))?;
    }
    let shelf = Shelf::new(&open.waiter, &open.registry, &open.tenant);
    // Calls that nobody made in a run are one another's neighbours: an equal one is found, whoever made it.
    let (autopilot, is_served) = (project.payer(), project.token().is_some());
    let who = Authorized { run: DIRECT.to_owned(), autopilot, is_served, ..Authorized::default() };
    let purse = Purse::new(&open.spend, &open.tenant, who);
    Setting::new(
        shelf,
        purse,
        project.folder()?,
        config.sandbox.clone(),
        Arc::new(spawner),
        Ground::Folder(root),
        stops,
    )
}

/// Calls a tool, keeps what came of it, and tells it.
pub(crate) fn call_tool(
    open: Open,
    ask: &Ask,
    session: Option<String>,
    signals: Option<Signals>,
    out: &mut Out,
) -> Ended {
    let mut setting = setting(&open, signals)?;
    if session.is_some() {
        setting.results = Arc::new(Results::kept(&setting.home));
    }
    setting.session = session;
    setting.is_served = open.project.seat().is_some();
    let ledger = workspace::Ledger::over(&open);
    execution::settle(&open.project, &ledger)?;
    let id = new_id();
    let asked = json!({"tool": ask.tool, "adapter": ask.adapter, "operation": ask.operation, "params": ask.params});
    let text = canon::canonical(&asked).map_err(|e| Failure::new(error::INPUT, e.to_string()))?;
    let digest = Digest::sha256(&text).to_hex();
    let claim = Claim::take(&open.project, &id, &json!({"tool_id": ask.tool, "contract_sha256": digest}))?;
    let folder = claim.folder.clone();
    match setting.call(&id, ask, Some(&folder), &|| false) {
        Ok(mut called) => {
            called.result["evidence"]["contract_sha256"] = json!(digest);
            claim.finish(&called.result, &ledger)?;
            out.detail(&format!("evidence: {}", folder.join("result.json").display()));
            super::tool::tell(&called.result, out);
            Ok(called.code)
        }
        Err(failure) => {
            claim.give_back();
            Err(failure)
        }
    }
}

struct Run<'a> {
    id: String,
    folder: PathBuf,
    project: &'a Project,
    execution: Execution,
    config: Arc<Config>,
    evidence: Evidence,
    /// The tool as it is registered, if it is.
    registered: Option<Registered>,
    /// The contract without what only names it: what an approval is for.
    agreed: Value,
}

impl Run<'_> {
    /// The result, and the exit code that says so.
    fn go(mut self, signals: Signals, out: &mut Out) -> Result<(Value, u8), Failure> {
        let root = self.project.root().canonicalize().unwrap_or_else(|_| self.project.root().to_owned());
        // Who keeps a list of his own is bound by that one; what was blocked for all stays blocked.
        let own = self.config.tools.get(&self.execution.tool_id).cloned();
        let registered = self.registered.take().filter(|registered| own.is_none() || registered.tool.blocked);
        let beyond = registered.as_ref().map(|registered| registered.bound(&mut self.execution)).unwrap_or_default();
        let tool = registered.map(|registered| registered.tool).or(own);
        let (paths, facts) = resolve(&self.execution, &root);
        let (inputs, mut violations) = check(&self.execution, tool.as_ref(), &facts);
        violations.extend(beyond);
        self.note_checks(tool.as_ref(), &inputs, &violations);
        if !violations.is_empty() {
            return Ok((self.refused(&violations), 3));
        }
        let Some((paths, tool)) = paths.zip(tool) else { return Ok((self.refused(&violations), 3)) };
        let mut planned = self.plan(&inputs, &paths, &root)?;
        self.pin(&mut planned.cell, &tool)?;
        // Last of all, so that an agreement for once is not used up by something that does not run.
        self.approve(&paths)?;
        tell_cell(&planned.cell, &planned.rules, &self.execution.sandbox, &mut self.evidence.details);
        let redactor = redactor_of(&inputs);
        let shown = Shown { redactor, grants: planned.cell.grants.clone(), deny: planned.cell.deny.clone() };
        let done = self.execute(planned, &inputs, signals)?;
        let result = self.result(done, &paths, &shown);
        let code = match result["status"].as_str() {
            Some("success") => 0,
            Some("timeout") => 4,
            _ => 1,
        };
        out.detail(&format!("evidence: {}", self.folder.join("result.json").display()));
        Ok((result, code))
    }

    fn note_checks(&mut self, tool: Option<&Tool>, inputs: &CheckedInputs, violations: &[Violation]) {
        let state = |bad: bool| if bad { State::Failed } else { State::Passed };
        let of = |check: &str| violations.iter().any(|violation| violation.check == check);
        let active = tool.is_some_and(|tool| !tool.blocked);
        self.evidence.note("Tool is in registry and active", state(!active), None);
        self.evidence.note("Allowlist permits the operation", state(of("IV-01")), None);
        if let Some(adapter) = &self.execution.adapter_id {
            let detail = format!("{adapter} was not looked up: the command is the contract's own");
            self.evidence.note("Adapter exists and matches tool version", State::NotApplicable, detail);
        }
        let stripped = (!inputs.stripped.is_empty()).then(|| format!("taken out: {}", inputs.stripped.join(", ")));
        self.evidence.note("Inputs validated and sanitized", state(!violations.is_empty()), stripped);
        let details = &mut self.evidence.details;
        details.insert("environment_stripped".into(), json!(inputs.stripped));
        if let Some(length) = inputs.stdin_cut_from {
            details.insert("stdin_cut_from_bytes".into(), json!(length));
        }
    }

    fn refused(&self, violations: &[Violation]) -> Value {
        let action = "Mend the contract, or allow it: `actum tool approve`, or [tools] of actum.toml";
        let interpretation = Interpretation { meaning: "Refused before it was run".into(), action: action.into() };
        json!({
            "execution_id": self.id, "tool_id": self.execution.tool_id, "status": "refused", "exit_code": null,
            "interpretation": interpretation, "stdout": "", "stderr": "", "truncated": false, "output_files": [],
            "duration_ms": 0, "violations": violations, "evidence": self.evidence.json(),
        })
    }

    /// Levels that wait for a person.
    fn approve(&mut self, paths: &Paths) -> Result<(), Failure> {
        let sandbox = &self.execution.sandbox;
        let mut wants = Vec::new();
        if sandbox.filesystem.level.waits_for_approval() || !paths.outside.is_empty() {
            wants.push(format!("filesystem {}", FilesystemLevel::Elevated.word()));
        }
        if sandbox.network.level.waits_for_approval() {
            wants.push(format!("network {}", sandbox.network.level.word()));
        }
        let private = sandbox.network.allow.iter().filter(|host| host.is_private()).map(ToString::to_string);
        wants.extend(private.map(|host| format!("network {host}")));
        if wants.is_empty() {
            return Ok(());
        }
        let inputs = &self.execution.inputs;
        let shown = json!({
            "command": inputs.command, "arguments": inputs.arguments, "working_directory": inputs.working_directory,
            "read": sandbox.filesystem.read, "write": sandbox.filesystem.write,
            "allow": sandbox.network.allow.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        let tenant = self.project.tenant()?;
        let request = Request {
            tool: self.execution.tool_id.clone(),
            tenant: &tenant,
            wants,
            agreed: &self.agreed,
            shown,
            configured: Value::Null,
            exact: Value::Null,
        };
        let id = approval::take(&self.project.folder()?, &request)?;
        self.evidence.details.insert("approval_id".into(), id.into());
        Ok(())
    }

    fn plan(&self, inputs: &CheckedInputs, paths: &Paths, root: &Path) -> Result<Planned, Failure> {
        let given = &self.execution.inputs;
        let program = std::iter::once(&given.command).chain(&given.arguments).map(Into::into).collect();
        let wanted = Wanted {
            program,
            environment: inputs.environment.clone(),
            folder: paths.folder.clone(),
            root: root.to_owned(),
            sandbox: &self.execution.sandbox,
            read: paths.read.iter().chain(&paths.inputs).cloned().collect(),
            write: paths.write.clone(),
            deny: paths.deny.clone(),
            outputs: paths.outputs.clone(),
            stage: Vec::new(),
            config: &self.config.sandbox,
            grace_ms: GRACE_MS,
            programs: None,
            bridge: None,
        };
        wanted.cell()
    }

    /// The very program that is run is the one whose content is on record.
    fn pin(&mut self, cell: &mut Cell, tool: &Tool) -> Result<(), Failure> {
        let path = cell.environment.iter().find(|(name, _)| name == "PATH");
        let path = path.map(|(_, value)| value.clone()).unwrap_or_default();
        let name = self.execution.inputs.command.as_ref();
        let found = find_program(name, &path, &cell.folder).and_then(|(place, mut file)| {
            let identity = Identity::of(&file.metadata()?);
            let digest = hash(&mut file)?;
            let of_another_kind = match tool.pinned.as_ref().filter(|wanted| wanted.starts_with(SHA256)) {
                Some(_) => Some(format!("{SHA256}{}", sha256(&mut file)?)),
                None => None,
            };
            Ok((place, identity, digest, of_another_kind))
        });
        let (place, identity, digest, of_another_kind) = match found {
            Ok(found) => found,
            // One that is not there is told by its exit code; one that has to be the right one is not tried.
            Err(_) if tool.pinned.is_none() => return Ok(()),
            Err(e) => {
                let message = format!("{} cannot be looked into: {e}", self.execution.inputs.command);
                return Err(
                    Failure::new(error::EXECUTION_REFUSED, message).hint("only the approved program may be run")
                );
            }
        };
        let content = of_another_kind.unwrap_or_else(|| digest.to_hex());
        if let Some(wanted) = tool.pinned.as_ref().filter(|wanted| **wanted != content) {
            let message = format!("{} is not the program that was approved for {}", place.display(), tool.id);
            return Err(Failure::new(error::EXECUTION_REFUSED, message)
                .details(
                    json!({"violations": [{"check": "IV-01", "field": "inputs.command", "message": "content differs"}],
                    "wanted": wanted, "found": content}),
                )
                .hint(
                    "approve the new version: set `blake3` of the tool in actum.toml, or register it with its checksum",
                ));
        }
        let program =
            json!({"path": place.display().to_string(), "blake3": digest.to_hex(), "pinned": tool.pinned.is_some()});
        self.evidence.details.insert("program".into(), program);
        cell.pinned = Some(identity);
        Ok(())
    }

    fn execute(&self, planned: Planned, inputs: &CheckedInputs, signals: Signals) -> Result<Caught, Failure> {
        // A process of its own: the store has threads by now.
        let spawner = Spawner::start(0).map_err(|e| cell::not_built(&e.to_string()))?;
        let stdin = inputs.stdin.as_deref().map(str::as_bytes);
        catch(planned, &spawner, stdin, &redactor_of(inputs), Some(&self.folder), signals)
    }

    fn result(&mut self, done: Caught, paths: &Paths, shown_paths: &Shown) -> Value {
        let Caught { watched, log, duration, texts, taken, is_partial } = done;
        let interrupted = watched.as_ref().err().map(ToString::to_string);
        let Watched { report, output, errors } = watched.unwrap_or_else(lost);
        self.evidence.details.insert("protection_is_partial".into(), is_partial.into());
        let end = cell::end_of(&report.ended);
        self.note_end(&report, &log, &taken);
        let mut problems = Vec::new();
        let [stdout, stderr] =
            [(&output, &texts[0].0), (&errors, &texts[1].0)].map(|(captured, text)| shown(captured, text));
        let wanted = &self.execution.outputs;
        problems.extend(wanted.stdout.judge("stdout", &stdout));
        problems.extend(wanted.stderr.judge("stderr", &stderr));
        let mut files = Vec::new();
        let mut artifacts = Vec::new();
        if end.is_some() {
            let named = wanted.output_files.iter().map(|path| (path.as_str(), None)).collect();
            files = self.collect(named, paths, OUTPUT_FILES_BYTES_MAX, "files", shown_paths, &mut problems);
            let outputs = &self.execution.outputs;
            let named = outputs.artifacts.iter().map(|a| (a.path.as_str(), Some(a))).collect();
            artifacts = self.collect(named, paths, ARTIFACTS_BYTES_MAX, "artifacts", shown_paths, &mut problems);
        }
        let expected = self.execution.outputs.exit_code.unwrap_or(0);
        let status = match end {
            None if interrupted.is_some() => "interrupted",
            None => "unavailable",
            Some(End::Exited(code)) if code == expected && problems.is_empty() => "success",
            Some(End::Exited(_)) => "failure",
            Some(end) => end.status(),
        };
        let interpretation = end.map_or_else(
            || match &interrupted {
                Some(_) => Interpretation { meaning: "Ended from outside".into(), action: "Run it again".into() },
                None => Interpretation { meaning: "There was no sandbox".into(), action: "See `actum doctor`".into() },
            },
            End::interpretation,
        );
        let detail = (!problems.is_empty()).then(|| problems.join("; "));
        let state = if problems.is_empty() { State::Passed } else { State::Failed };
        self.evidence.note("Outputs collected and validated", state, detail);
        if !artifacts.is_empty() {
            self.evidence.passed("Artifacts stored", format!("{} of them", artifacts.len()));
        }
        let known = if end.is_some() { State::Passed } else { State::Failed };
        self.evidence.note("Exit code interpreted", known, interpretation.meaning.clone());
        self.evidence.note("Evidence captured", known, None);
        self.evidence.note("Cleanup performed", known, "the cell's processes, mounts and groups are gone".to_owned());
        let stream = |captured: &Captured, redacted: u64| json!({"bytes": captured.bytes, "blake3": captured.digest.to_hex(), "truncated": captured.is_cut(), "redacted": redacted});
        let streams = json!({"stdout": stream(&output, texts[0].1), "stderr": stream(&errors, texts[1].1)});
        self.evidence.details.insert("streams".into(), streams);
        json!({
            "execution_id": self.id, "tool_id": self.execution.tool_id, "status": status,
            "exit_code": end.map(End::code), "interpretation": interpretation, "stdout": stdout, "stderr": stderr,
            "truncated": output.is_cut() || errors.is_cut(), "output_files": files, "artifacts": artifacts,
            "duration_ms": u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), "problems": problems,
            "error": match &report.ended {
                _ if interrupted.is_some() => json!({"code": error::EXECUTION_INTERRUPTED, "message": interrupted}),
                actum_sandbox::Ended::NotBuilt(why) => json!({"code": error::SANDBOX_UNAVAILABLE, "message": why}),
                _ => Value::Null,
            },
            "evidence": self.evidence.json(),
        })
    }

    fn note_end(&mut self, report: &Report, log: &Log, taken: &[Taken]) {
        let built = !matches!(report.ended, actum_sandbox::Ended::NotBuilt(_));
        let state = if built { State::Passed } else { State::Failed };
        let sandbox = &self.execution.sandbox;
        self.evidence.note("Timeout enforced", state, format!("{} ms", sandbox.timeout_ms));
        let walls: Vec<&str> = report.kept.iter().map(|kept| kept.wall.word()).collect();
        let weaker = report.kept.iter().any(|kept| kept.weaker);
        self.evidence.note(
            "Sandbox limits set appropriately",
            state,
            weaker.then(|| "weaker than they should be".to_owned()),
        );
        self.evidence.note("Resource limits monitored", state, walls.join(", "));
        self.evidence.note("Output streams captured", state, None);
        let error = match &report.ended {
            actum_sandbox::Ended::NotBuilt(why) => Some(why.clone()),
            _ => None,
        };
        self.evidence.note("Errors logged with context", State::Passed, error);
        tell_end(report, log, taken, &mut self.evidence.details);
    }

    /// Takes files that were agreed on into the execution's own folder.
    fn collect(
        &self,
        named: Vec<(&str, Option<&actum_contract::execution::Artifact>)>,
        paths: &Paths,
        room: u64,
        into: &str,
        shown: &Shown,
        problems: &mut Vec<String>,
    ) -> Vec<Value> {
        let root = self.project.root().canonicalize().unwrap_or_default();
        let mut left = room;
        let mut found = Vec::new();
        for (at, (name, artifact)) in named.into_iter().enumerate() {
            let path = paths.folder.join(name);
            let taken = read_beneath(&root, &path, left, &|real| shown.allows(real)).and_then(|bytes| {
                let place = self.folder.join(into);
                fs::create_dir_all(&place)?;
                // Kept without secrets, by their looks only in what is no machine's; its digest is that of the file as it was.
                let is_text = !bytes.iter().take(8 << 10).any(|b| *b == 0);
                let kept =
                    if is_text { shown.redactor.redact(&bytes).0 } else { shown.redactor.redact_values(&bytes).0 };
                fs::write(place.join(at.to_string()), &kept)?;
                Ok(bytes)
            });
            match taken {
                Ok(bytes) => {
                    left -= bytes.len() as u64;
                    let mut entry = json!({
                        "path": name, "bytes": bytes.len(), "blake3": Digest::blake3(&bytes).to_hex(),
                        "kept": format!("{into}/{at}"),
                    });
                    if let Some(artifact) = artifact {
                        entry["mime_type"] = json!(artifact.mime_type);
                        entry["metadata"] = json!(artifact.metadata);
                    }
                    found.push(entry);
                }
                Err(e) => problems.push(format!("{name:?} {}", wrong(&e))),
            }
        }
        found
    }
}

/// What the program could see.
struct Shown {
    redactor: Redactor,
    grants: Vec<Grant>,
    deny: Vec<PathBuf>,
}

impl Shown {
    fn allows(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| path.starts_with(&grant.path))
            && !self.deny.iter().any(|denied| path.starts_with(denied))
    }
}

/// What a person agrees to when he agrees to a contract.
fn agreed_on(contract: &Value) -> Value {
    let mut agreed = contract.clone();
    if let Some(fields) = agreed.as_object_mut() {
        ["execution_id", "metadata"].iter().for_each(|name| drop(fields.remove(*name)));
    }
    agreed
}

/// What the program was given and nobody else is to see.
fn redactor_of(inputs: &CheckedInputs) -> Redactor {
    let secret = inputs.environment.iter().filter(|(name, _)| is_secret(name));
    Redactor::new(secret.map(|(_, value)| value.as_str()))
}

fn flawed(bad: &actum_contract::execution::BadExecution, document: &Document) -> Failure {
    let lines: Vec<String> = bad.flaws.iter().map(ToString::to_string).collect();
    let failure = Failure::new(error::INPUT, format!("the contract is bad\n  {}", lines.join("\n  ")))
        .details(json!({"flaws": bad.flaws}))
        .hint("`actum schema execution` prints what may stand in it");
    let key = bad.flaws.first().map(|flaw| flaw.field.rsplit('.').next().unwrap_or_default().to_owned());
    match key.and_then(|key| document.place_of_key(&key)) {
        Some(place) => failure.at(place),
        None => failure,
    }
}

/// Looks all paths up beneath the project. What leads out or to nothing becomes a fact for the check.
fn resolve(execution: &Execution, root: &Path) -> (Option<Paths>, Facts) {
    let mut facts = Facts::default();
    let inputs = &execution.inputs;
    let filesystem = &execution.sandbox.filesystem;
    let mut bad = |field: String, path: &str, e: &dyn std::fmt::Display| {
        // The plain reading has its own message for these.
        if !path.split('/').any(|part| part == "..") && !path.is_empty() {
            facts.bad_paths.push((field, format!("{path:?} {e}")));
        }
    };
    let beneath = |base: &Path, path: &str| -> std::io::Result<(PathBuf, File)> {
        let file = open_beneath(root, &base.join(path))?;
        Ok((path_of(&file)?, file))
    };
    let directory = inputs.working_directory.as_deref().unwrap_or(".");
    let folder = match beneath(root, directory) {
        Ok((path, file)) if file.metadata().is_ok_and(|m| m.is_dir()) => Some(path),
        Ok(_) => {
            bad("inputs.working_directory".into(), directory, &"is no folder");
            None
        }
        Err(e) => {
            bad("inputs.working_directory".into(), directory, &wrong(&e));
            None
        }
    };
    let Some(folder) = folder else { return (None, facts) };
    let mut bytes = 0;
    let mut found_inputs = Vec::new();
    for (at, path) in inputs.input_files.iter().enumerate() {
        match beneath(&folder, path) {
            Ok((path, file)) if file.metadata().is_ok_and(|found| found.is_file()) => {
                bytes += file.metadata().map_or(0, |found| found.len());
                found_inputs.push(path);
            }
            Ok(_) => bad(format!("inputs.input_files[{at}]"), path, &"is no plain file"),
            Err(e) => bad(format!("inputs.input_files[{at}]"), path, &wrong(&e)),
        }
    }
    let mut outside = Vec::new();
    let mut grants = |field: &str, paths: &[String]| {
        let mut found = Vec::new();
        for (at, path) in paths.iter().enumerate() {
            let expanded = crate::config::expand(path.clone());
            match beneath(&folder, &expanded.to_string_lossy()) {
                Ok((path, _)) => found.push(path),
                // A whole path that leads elsewhere is a wish for more, and somebody has to agree to it.
                Err(e) if expanded.is_absolute() && leads_out(&e) => match expanded.canonicalize() {
                    Ok(path) => {
                        outside.push(path.clone());
                        found.push(path);
                    }
                    Err(e) => bad(format!("{field}[{at}]"), path, &wrong(&e)),
                },
                Err(e) => bad(format!("{field}[{at}]"), path, &wrong(&e)),
            }
        }
        found
    };
    let read = grants("sandbox.filesystem.read", &filesystem.read);
    let write = grants("sandbox.filesystem.write", &filesystem.write);
    let deny = {
        let mut found = Vec::new();
        for (at, path) in filesystem.deny.iter().enumerate() {
            match folder.join(crate::config::expand(path.clone())).canonicalize() {
                Ok(path) => found.push(path),
                // What is not there cannot be hidden, and could be made.
                Err(e) => bad(format!("sandbox.filesystem.deny[{at}]"), path, &wrong(&e)),
            }
        }
        found
    };
    // Folders of outputs, which may be written to at some levels: only such as lie in the project.
    let mut outputs = Vec::new();
    let given = &execution.outputs;
    let files = given.output_files.iter().enumerate().map(|(at, path)| (format!("outputs.output_files[{at}]"), path));
    let artifacts = given.artifacts.iter().enumerate().map(|(at, a)| (format!("outputs.artifacts[{at}]"), &a.path));
    for (field, path) in files.chain(artifacts) {
        let above = Path::new(path).parent().map(|above| above.to_string_lossy().into_owned()).unwrap_or_default();
        match beneath(&folder, &above) {
            Ok((path, _)) => outputs.push(path),
            Err(e) if leads_out(&e) => bad(field, path, &wrong(&e)),
            // It may be made by the program.
            Err(_) => {}
        }
    }
    facts.input_files_bytes = bytes;
    (Some(Paths { folder, inputs: found_inputs, read, write, deny, outputs, outside }), facts)
}

/// What is wrong with a path, for a sentence that begins with it.
fn wrong(e: &std::io::Error) -> String {
    match e.kind() {
        _ if leads_out(e) => "leads out of the project".to_owned(),
        std::io::ErrorKind::NotFound => "is not there".to_owned(),
        std::io::ErrorKind::InvalidInput | std::io::ErrorKind::FileTooLarge => e.to_string(),
        _ => format!("cannot be opened: {e}"),
    }
}

/// What the kernel says of a path that does not stay beneath its root.
fn leads_out(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::CrossesDevices
}

pub(crate) fn summary(result: &Value) -> String {
    let text = |key: &str| result[key].as_str().unwrap_or_default().to_owned();
    let mut lines = vec![format!("{} {} ({} ms)", text("execution_id"), text("status"), result["duration_ms"])];
    if let Some(code) = result["exit_code"].as_u64() {
        let read = &result["interpretation"];
        let word = |key: &str| read[key].as_str().unwrap_or_default();
        lines.push(format!("exit {code}: {}. {}.", word("meaning"), word("action")));
    }
    for violation in result["violations"].as_array().into_iter().flatten() {
        let word = |key: &str| violation[key].as_str().unwrap_or_default();
        lines.push(format!("{}: {} {}", word("check"), word("field"), word("message")));
    }
    if result["status"] == "refused" && result["error"]["stage"] != "denied" {
        lines.push(format!("nothing was run. {}.", result["interpretation"]["action"].as_str().unwrap_or_default()));
    }
    if let Some(message) = result["error"]["message"].as_str() {
        let path = result["error"]["path"].as_str().filter(|path| !message.contains(*path));
        let at = path.map(|path| format!(" at {path}")).unwrap_or_default();
        lines.push(format!("{}{at}", message.trim_end()));
    }
    for problem in result["problems"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        lines.push(format!("problem: {problem}"));
    }
    for (name, stream) in [("stdout", text("stdout")), ("stderr", text("stderr"))] {
        if !stream.is_empty() {
            lines.push(format!("--- {name}\n{}", stream.trim_end()));
        }
    }
    lines.join("\n")
}
