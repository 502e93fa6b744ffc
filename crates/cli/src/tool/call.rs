//! One call of a tool: looked up, checked, agreed to where that is needed, made, and told with its evidence. What is not
//! allowed is denied.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actum_adapters::mcp::{HttpLink, McpLink};
use actum_adapters::{
    Attempt, Hands, Http, Job, Link, McpCall, Outcome, Problem, Request, SdkCall, Servers, Stage, sdk, transform,
};
use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::execution::{End, Interpretation, NetworkLevel, Redactor, Sandbox, State, Violation};
use actum_contract::tool::{
    Adapter, DataAccess, Entry, Interface, Narrowed, Server, Went, arguments, check_chain, narrow,
};
use actum_ledger::registry::{Kind, Status};
use actum_sandbox::Spawner;
use serde_json::{Map, Value, json};

use super::cache::{self, Results};
use super::cells::{Ground, Programs, Stops, ToolCells};
use super::register::misfit;
use super::secret;
use super::shelf::{Found, Shelf};
use crate::approval;
use crate::capture::Evidence;
use crate::config::SandboxConfig;
use crate::failure::Failure;
use crate::workspace::LOCAL_TENANT;

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub tool: String,
    pub adapter: Option<String>,
    pub operation: Option<String>,
    pub params: Map<String, Value>,
}

/// What all calls of a session share.
pub(crate) struct Setting {
    pub shelf: Shelf,
    pub home: PathBuf,
    pub config: SandboxConfig,
    pub spawner: Arc<Spawner>,
    pub http: Http,
    pub servers: Servers,
    pub ground: Ground,
    pub stops: Arc<Stops>,
    pub programs: Programs,
    pub results: Arc<Results>,
    /// Names the session, if results are to be remembered.
    pub session: Option<String>,
    /// Limits of whoever calls.
    pub granted: Vec<(&'static str, u64)>,
    /// Tools that may be called; none: all that are registered.
    pub tools: Option<Vec<String>>,
    /// Whether a call waits for a person, or ends and is made again.
    pub waits: bool,
    /// When whoever calls has to be done.
    pub until: Option<Instant>,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("ground", &self.ground).finish_non_exhaustive()
    }
}

/// What a call came to, and the exit code that says so.
#[derive(Debug, Clone)]
pub(crate) struct Called {
    pub result: Value,
    pub code: u8,
}

/// A tool, the adapters that are tried, and what each may use.
struct Chosen {
    tool: Found<Entry>,
    chain: Vec<Found<Adapter>>,
    narrowed: Vec<Narrowed>,
    operation: Option<String>,
}

/// Attempts that one call may come to, for the time all of them may take.
const CALLS_MAX: u32 = 20;

/// How often a person's answer is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often it is looked whether a call is still wanted.
const LOOK_FOR_STOP: Duration = Duration::from_millis(50);

/// Parameters that are paths by their names; others say so in their schema, by `format: path`.
const PATHS: [&str; 9] =
    ["path", "paths", "file", "files", "directory", "dir", "folder", "working_directory", "output_path"];

impl Setting {
    pub(crate) fn new(
        shelf: Shelf,
        home: PathBuf,
        config: SandboxConfig,
        spawner: Arc<Spawner>,
        ground: Ground,
        stops: Arc<Stops>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            shelf,
            home,
            http: Http::new(config.hosts.clone(), None).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))?,
            servers: Servers::new(),
            config,
            spawner,
            ground,
            stops,
            programs: Programs::default(),
            results: Arc::default(),
            session: None,
            granted: Vec::new(),
            tools: None,
            waits: false,
            until: None,
        })
    }

    /// Whether a tool may change the workspace.
    pub(crate) fn writes(&self, tool: &str) -> bool {
        self.shelf.tool(tool).is_ok_and(|found| found.is.scope.data_access == DataAccess::Write)
    }

    /// Makes a call. `keep`: a folder for its streams. `stop`: whether whoever asked is gone.
    pub(crate) fn call(
        &self,
        id: &str,
        ask: &Ask,
        keep: Option<&Path>,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Called, Failure> {
        let mut evidence = Evidence::new();
        evidence.passed("Evidence capture initialized", keep.map(|folder| folder.display().to_string()));
        let chosen = match self.choose(ask, &mut evidence)? {
            Ok(chosen) => chosen,
            Err(violation) => return Ok(refused(id, ask, vec![violation], &evidence)),
        };
        let violations = self.check(&chosen, ask);
        let state = if violations.is_empty() { State::Passed } else { State::Failed };
        evidence.note("Inputs validated and sanitized", state, None);
        evidence.note("Allowlist permits the operation", state, None);
        if !violations.is_empty() {
            return Ok(refused(id, ask, violations, &evidence));
        }
        let key = self.key(&chosen, ask);
        if let Some((key, result)) = key.as_ref().and_then(|(key, _)| Some((key, self.results.get(key)?))) {
            return Ok(remembered(id, key, result));
        }
        // Last of all, so that an agreement for once is not used up by something that does not run.
        if let Some(approval) = self.approve(&chosen, ask, stop)? {
            evidence.details.insert("approval_id".into(), approval.into());
        }
        let secrets = secret::of_tool(&chosen.tool.is.tool_id, &chosen.tool.is.secrets)?;
        evidence.passed("Sandbox limits set appropriately", None);
        let redactor = Redactor::new(secrets.values().map(String::as_str));
        // Its own: whoever asked may be gone while others are still there.
        let own = Arc::new(Stops::default());
        let cells = ToolCells { stops: Arc::clone(&own), ..self.cells(&chosen.tool.is, keep) };
        let links: Vec<Link<'_>> = chosen
            .chain
            .iter()
            .zip(&chosen.narrowed)
            .map(|(found, narrowed)| Link { adapter: &found.is, sandbox: narrowed.sandbox.clone() })
            .collect();
        let stops = Arc::clone(&self.stops);
        let stop = move || stop() || stops.is_stopped();
        let speaker = Speaker { setting: self, cells: &cells, stop: &stop, tool_hash: &chosen.tool.item.hash };
        let hands = Hands { cells: &cells, http: &self.http, mcp: &speaker, sdk: &speaker };
        let longest = chosen.narrowed.iter().map(|one| one.sandbox.timeout_ms).max().unwrap_or_default();
        // All attempts of all adapters together.
        let deadline = Instant::now() + Duration::from_millis(longest) * CALLS_MAX;
        let deadline = self.until.map_or(deadline, |until| deadline.min(until));
        let request = Request {
            execution_id: id,
            chain: &links,
            tool: &chosen.tool.is,
            operation: chosen.operation.as_deref(),
            params: coerced(&ask.params, schema_of(&chosen.tool.is, chosen.operation.as_deref())),
            secrets,
            stop: &stop,
            deadline,
        };
        let is_done = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    if stop() {
                        return own.stop();
                    }
                    std::thread::park_timeout(LOOK_FOR_STOP);
                }
            });
            let outcome = actum_adapters::call::call(&request, &hands);
            is_done.store(true, Ordering::SeqCst);
            watch.thread().unpark();
            outcome
        });
        let called = told(id, ask, &chosen, &clean(outcome, &redactor), evidence);
        if let Some((key, before)) = key
            && called.code == 0
            && before.is_none_or(|before| self.files(&chosen.tool.is).is_some_and(|now| now == (before, true)))
        {
            self.results.put(key, &called.result);
        }
        Ok(called)
    }

    fn cells(&self, tool: &Entry, keep: Option<&Path>) -> ToolCells {
        ToolCells {
            spawner: Arc::clone(&self.spawner),
            config: self.config.clone(),
            ground: self.ground.clone(),
            tool: tool.clone(),
            stops: Arc::clone(&self.stops),
            programs: Arc::clone(&self.programs),
            keep: keep.map(Path::to_owned),
        }
    }

    /// Whether a tool is among those that may be called here at all.
    pub(crate) fn may(&self, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|known| known == tool || known == "*"))
    }

    /// Finds what is to be called; what is not registered, approved and in use is on no allowlist.
    fn choose(&self, ask: &Ask, evidence: &mut Evidence) -> Result<Result<Chosen, Violation>, Failure> {
        let denied =
            |field: &str, message: String| Ok(Err(Violation { check: "IV-01", field: field.to_owned(), message }));
        const REGISTERED: &str = "Tool is in registry and active";
        const ADAPTER: &str = "Adapter exists and matches tool version";
        evidence.note(REGISTERED, State::Failed, None);
        let tool = match self.shelf.tool(&ask.tool) {
            Ok(tool) if self.may(&tool.item.id) => tool,
            Ok(_) => return denied("tool_id", format!("{} is not among the tools that were given", ask.tool)),
            Err(failure) if failure.row.name == error::NOT_FOUND => return denied("tool_id", failure.message),
            Err(failure) => return Err(failure),
        };
        if tool.item.status == Status::Blocked {
            return denied("tool_id", format!("{} is blocked", tool.item.id));
        }
        if !tool.item.approved {
            let message = format!(
                "{} {} is not approved: `actum tool approve {}`",
                tool.item.id, tool.item.version, tool.item.id
            );
            return denied("tool_id", message);
        }
        let warning = (tool.item.status == Status::Deprecated).then(|| "deprecated".to_owned());
        evidence.passed(REGISTERED, warning);
        evidence.note(ADAPTER, State::Failed, None);
        let first = match self.adapter(&tool, ask) {
            Ok(first) => first,
            Err(failure) if failure.row.name == error::NOT_FOUND => return denied("adapter_id", failure.message),
            Err(failure) => return Err(failure),
        };
        let find = |id: &str| {
            self.shelf.adapter(id).ok().filter(|found| found.item.status != Status::Blocked).map(|found| found.is)
        };
        let chain = match check_chain(&first.is, &find) {
            Ok(chain) => chain,
            Err(e) => return denied("adapter_id", e.to_string()),
        };
        let mut found = vec![first];
        for adapter in &chain[1..] {
            found.push(self.shelf.adapter(&adapter.adapter_id)?);
        }
        for one in &found {
            if one.is.tool_id != tool.item.id {
                return denied("adapter_id", format!("{} calls {}, not {}", one.item.id, one.is.tool_id, tool.item.id));
            }
            if let Some((_, why, hint)) = misfit(&one.is, &tool.is) {
                return denied("adapter_id", format!("{}: {why}; {hint}", one.item.id));
            }
        }
        let versions: Vec<String> = found.iter().map(|one| format!("{} {}", one.item.id, one.item.version)).collect();
        evidence.passed(ADAPTER, versions.join(" → "));
        let operation = match operation_of(&found[0].is, &tool.is, ask.operation.as_deref()) {
            Ok(operation) => operation,
            Err(message) => return denied("operation", message),
        };
        let narrowed = found
            .iter()
            .map(|one| self.within(narrow(&tool.is, &self.granted, &one.is.override_, true)))
            .collect::<Vec<_>>();
        evidence.details.insert(
            "tool".into(),
            json!({"tool_id": tool.item.id, "version": tool.item.version, "hash": tool.item.hash}),
        );
        let adapters: Vec<Value> = found
            .iter()
            .map(|one| json!({"adapter_id": one.item.id, "version": one.item.version, "hash": one.item.hash}))
            .collect();
        evidence.details.insert("adapters".into(), json!(adapters));
        Ok(Ok(Chosen { tool, chain: found, narrowed, operation }))
    }

    /// Nothing takes longer than whoever calls has left.
    fn within(&self, mut narrowed: Narrowed) -> Narrowed {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            let left = u64::try_from(left).unwrap_or(u64::MAX).max(1);
            narrowed.sandbox.timeout_ms = narrowed.sandbox.timeout_ms.min(left);
        }
        narrowed
    }

    /// The adapter that was named, or the first one that knows the operation.
    fn adapter(&self, tool: &Found<Entry>, ask: &Ask) -> Result<Found<Adapter>, Failure> {
        let refuse = |message: String| {
            Err(Failure::new(error::NOT_FOUND, message).hint("`actum adapter list` shows what is registered"))
        };
        if let Some(name) = &ask.adapter {
            let found = self.shelf.adapter(name)?;
            return match found.item.status {
                Status::Blocked => refuse(format!("{name} is blocked")),
                _ => Ok(found),
            };
        }
        let mut last = None;
        for head in self.shelf.heads(Kind::Adapter)?.into_iter().filter(|head| head.tool == tool.item.id) {
            let found = self.shelf.adapter(&head.id)?;
            if found.item.status == Status::Blocked {
                continue;
            }
            let knows = operation_of(&found.is, &tool.is, ask.operation.as_deref()).is_ok();
            match (knows, found.item.status) {
                (true, Status::Active | Status::Experimental) => return Ok(found),
                // One that is out of fashion is better than none.
                (true, _) => last = Some(found),
                (false, _) => last = last.or(Some(found)),
            }
        }
        match last {
            Some(found) => Ok(found),
            None => refuse(format!("no adapter of {} is registered", tool.item.id)),
        }
    }

    /// What can be said against the parameters before anything is run.
    fn check(&self, chosen: &Chosen, ask: &Ask) -> Vec<Violation> {
        let mut found = Vec::new();
        let adapter = &chosen.chain[0].is;
        let schema = schema_of(&chosen.tool.is, chosen.operation.as_deref());
        let properties = schema.and_then(|schema| schema["properties"].as_object());
        for (name, value) in &ask.params {
            let is_path = PATHS.contains(&name.as_str())
                || properties.is_some_and(|all| all.get(name).is_some_and(|one| one["format"] == "path"));
            let is_program = matches!(adapter.interface, Interface::Cli(_) | Interface::Sdk(_) | Interface::Mcp(_));
            let texts: Vec<&str> = match value {
                Value::String(text) => vec![text],
                Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            };
            for text in texts.into_iter().filter(|_| is_path && is_program) {
                if let Err(message) = self.ground.holds(text) {
                    found.push(Violation { check: "IV-03", field: format!("params.{name}"), message });
                }
            }
        }
        if let Interface::Cli(cli) = &adapter.interface
            && let Ok(params) = transform::input(&adapter.input, schema, ask.params.clone())
            && let Err(bad) = arguments(cli, chosen.operation.as_deref(), &params)
        {
            let told = bad.into_iter().map(|one| Violation {
                check: "IV-02",
                field: format!("params.{}", one.parameter),
                message: one.why,
            });
            found.extend(told);
        }
        found
    }

    /// Files a tool can read, as they are now.
    fn files(&self, tool: &Entry) -> Option<(String, bool)> {
        let roots = match &self.ground {
            Ground::Folder(at) => vec![at.clone()],
            Ground::Copy { copy, .. } => vec![copy.clone()],
            Ground::Layers { upper, lower, .. } => vec![upper.clone(), lower.clone()],
        };
        let within = |root: &PathBuf| {
            let paths =
                tool.scope.filesystem.iter().map(|path| if path == "." { root.clone() } else { root.join(path) });
            paths.collect::<Vec<_>>()
        };
        cache::state_of(&roots.iter().flat_map(within).collect::<Vec<_>>())
    }

    /// Everything that determines the result, if it may be remembered; and the state of the files that are part of it.
    fn key(&self, chosen: &Chosen, ask: &Ask) -> Option<(String, Option<String>)> {
        let session = self.session.as_ref()?;
        let tool = &chosen.tool.is;
        let asks_only = |adapter: &Adapter| match &adapter.interface {
            Interface::Api(api) => {
                chosen.operation.as_ref().and_then(|name| api.endpoints.get(name)).is_some_and(|one| {
                    // Anything else does something each time.
                    ["GET", "HEAD"].iter().any(|method| one.method.eq_ignore_ascii_case(method))
                })
            }
            _ => true,
        };
        let waits = tool.first_use || tool.scope.elevated || tool.scope.open;
        if tool.scope.data_access == DataAccess::Write || waits || !chosen.chain.iter().all(|one| asks_only(&one.is)) {
            return None;
        }
        let reads =
            tool.scope.data_access == DataAccess::Read && !matches!(chosen.chain[0].is.interface, Interface::Api(_));
        let files = if reads { Some(self.files(tool)?) } else { None };
        let programs: Vec<Value> = chosen.chain.iter().map(|one| self.cells(tool, None).program_of(&one.is)).collect();
        let hashes: Vec<&String> = chosen.chain.iter().map(|one| &one.item.hash).collect();
        let limits: Vec<Value> = chosen.narrowed.iter().map(|one| limits_json(&one.sandbox)).collect();
        let parts = json!({
            "session": session, "tool": chosen.tool.item.hash, "adapters": hashes, "operation": chosen.operation,
            "params": ask.params, "files": files.as_ref().map(|(state, _)| state), "programs": programs, "limits": limits,
            "at": self.ground.at().display().to_string(), "actum": env!("CARGO_PKG_VERSION"),
        });
        Some((cache::key(&parts)?, files.map(|(state, _)| state)))
    }

    /// What waits for a person: levels that do, more than was granted, and the first use where that was wanted.
    fn approve(&self, chosen: &Chosen, ask: &Ask, stop: &dyn Fn() -> bool) -> Result<Option<String>, Failure> {
        let tool = &chosen.tool.is;
        let mut wants = Vec::new();
        if tool.scope.elevated {
            wants.push("filesystem elevated".to_owned());
        }
        if chosen.narrowed.iter().any(|one| one.sandbox.network.level == NetworkLevel::Open) {
            wants.push("network open".to_owned());
        }
        for (one, narrowed) in chosen.chain.iter().zip(&chosen.narrowed).filter(|(one, _)| !one.item.approved) {
            wants.extend(narrowed.widened.iter().map(|what| format!("{} {what}", one.item.id)));
        }
        let first = self.home.join("cache").join("first-use").join(format!(
            "{}-{}",
            self.session.as_deref().unwrap_or("here"),
            chosen.tool.item.hash
        ));
        let is_first = tool.first_use && !first.exists();
        if is_first {
            wants.push("first use".to_owned());
        }
        if wants.is_empty() {
            return Ok(None);
        }
        let hashes: Vec<&String> = chosen.chain.iter().map(|one| &one.item.hash).collect();
        let agreed = json!({
            "tool": chosen.tool.item.hash, "adapters": hashes, "operation": chosen.operation, "params": ask.params,
            "at": self.ground.at().display().to_string(),
        });
        let shown = json!({"adapter": chosen.chain[0].item.id, "operation": chosen.operation, "params": ask.params});
        let request =
            approval::Request { tool: tool.tool_id.clone(), tenant: LOCAL_TENANT, wants, agreed: &agreed, shown };
        let id = loop {
            match approval::take(&self.home, &request) {
                Err(failure)
                    if failure.row.name == error::APPROVAL_NEEDED
                        && self.waits
                        && !stop()
                        && !self.stops.is_stopped() =>
                {
                    std::thread::sleep(LOOK_EVERY);
                }
                answer => break answer?,
            }
        };
        if is_first {
            let _ = first.parent().map(std::fs::create_dir_all);
            let _ = std::fs::write(&first, &id);
        }
        Ok(Some(id))
    }
}

fn limits_json(sandbox: &Sandbox) -> Value {
    let hosts: Vec<String> = sandbox.network.allow.iter().map(ToString::to_string).collect();
    json!([sandbox.timeout_ms, sandbox.memory_mb, sandbox.cpu_cores, sandbox.disk_mb, sandbox.max_children, hosts])
}

/// The schema of an operation's parameters, if somebody wrote one down.
pub(crate) fn schema_of<'e>(tool: &'e Entry, operation: Option<&str>) -> Option<&'e Value> {
    let only = (tool.operations.len() == 1).then(|| tool.operations.values().next()).flatten();
    let named = operation.and_then(|operation| tool.operations.get(operation));
    named.or(only.filter(|_| operation.is_none())).and_then(|operation| operation.parameters.as_ref())
}

/// The operation that is meant.
fn operation_of(adapter: &Adapter, tool: &Entry, wanted: Option<&str>) -> Result<Option<String>, String> {
    let known = adapter.interface.operations();
    let list = || if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    if let Interface::Cli(cli) = &adapter.interface {
        let commands = &tool.scope.commands;
        let runs = commands.contains(&cli.executable);
        let name = Path::new(&cli.executable).file_name().map(|name| name.to_string_lossy().into_owned());
        return match wanted {
            Some(wanted) if !known.is_empty() && !known.contains(&wanted) => {
                Err(format!("{} has no operation {wanted:?}; it has {}", adapter.adapter_id, list()))
            }
            Some(wanted) if commands.iter().any(|command| command == wanted) => Ok(Some(wanted.to_owned())),
            Some(wanted) if runs && (known.contains(&wanted) || name.as_deref() == Some(wanted)) => {
                Ok(Some(wanted.to_owned()))
            }
            Some(wanted) if runs && tool.operations.contains_key(wanted) => Ok(Some(wanted.to_owned())),
            Some(wanted) => {
                Err(format!("{wanted:?} is not among the commands of {}: {}", tool.tool_id, commands.join(", ")))
            }
            None if !known.is_empty() && known.len() == 1 && runs => Ok(Some(known[0].to_owned())),
            None if !known.is_empty() => Err(format!("name an operation: {}", list())),
            None if runs => Ok(None),
            None => Err(format!(
                "{} may not run {:?}; name one of its operations: {}",
                tool.tool_id,
                cli.executable,
                commands.join(", ")
            )),
        };
    }
    match wanted {
        Some(wanted) if known.contains(&wanted) => Ok(Some(wanted.to_owned())),
        Some(wanted) => Err(format!("{} has no operation {wanted:?}; it has {}", adapter.adapter_id, list())),
        None if known.len() == 1 => Ok(Some(known[0].to_owned())),
        None => Err(format!("name an operation: {}", list())),
    }
}

fn refused(id: &str, ask: &Ask, violations: Vec<Violation>, evidence: &Evidence) -> Called {
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

fn remembered(id: &str, key: &str, mut result: Value) -> Called {
    result["evidence"]["cache"] = json!({"hit": true, "key": key, "execution_id": result["execution_id"]});
    result["execution_id"] = json!(id);
    result["cached"] = json!(true);
    result["duration_ms"] = json!(0);
    Called { result, code: 0 }
}

fn told(id: &str, ask: &Ask, chosen: &Chosen, outcome: &Outcome, mut evidence: Evidence) -> Called {
    let last = outcome.attempts.last();
    let is_program = chosen
        .chain
        .iter()
        .find(|one| one.item.id == outcome.adapter_id)
        .is_none_or(|one| matches!(one.is.interface, Interface::Cli(_) | Interface::Sdk(_)));
    let stage = outcome.problem.as_ref().map(|problem| problem.stage);
    let (status, code) = match (outcome.went, stage) {
        (Went::Well, None) => ("success", 0),
        (_, Some(Stage::Denied)) => ("refused", 3),
        (_, Some(Stage::Input)) => ("refused", 2),
        (Went::TimedOut, _) => ("timeout", 4),
        (Went::Unavailable, _) => ("unavailable", 1),
        _ => (last.and_then(|attempt| attempt.end).map_or("failure", failure_word), 1),
    };
    let interpretation = interpretation_of(outcome, last, is_program);
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
    if !is_program {
        result["http_status"] = json!(outcome.code);
    }
    if ask.adapter.is_none() && chosen.tool.item.status == Status::Deprecated {
        result["warning"] = json!(format!("{} is deprecated", chosen.tool.item.id));
    }
    Called { result, code }
}

fn failure_word(end: End) -> &'static str {
    match end {
        End::Exited(_) => "failure",
        other => other.status(),
    }
}

fn interpretation_of(outcome: &Outcome, last: Option<&Attempt>, is_program: bool) -> Interpretation {
    let of = |meaning: &str, action: &str| Interpretation { meaning: meaning.into(), action: action.into() };
    if let Some(problem) = &outcome.problem {
        match problem.stage {
            Stage::Input => return of("Refused before it was run", "Mend the parameters"),
            Stage::Denied => return of("Refused: somebody may not be reached", "Ask for it in the tool's scope"),
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
        (None, Went::Wrong(_), Some(status)) if !is_program => {
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
fn clean(mut outcome: Outcome, redactor: &Redactor) -> Outcome {
    let text = |text: &str| String::from_utf8_lossy(&redactor.redact_values(text.as_bytes()).0).into_owned();
    let value = |value: &Value| serde_json::from_str(&text(&value.to_string())).unwrap_or(Value::Null);
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

/// Numbers and truth values where a schema wants text: whoever types parameters cannot tell them apart.
fn coerced(params: &Map<String, Value>, schema: Option<&Value>) -> Map<String, Value> {
    let is_text = |name: &String| schema.is_some_and(|schema| schema["properties"][name]["type"] == "string");
    let mend = |(name, value): (&String, &Value)| match value {
        Value::Number(_) | Value::Bool(_) if is_text(name) => (name.clone(), value.to_string().into()),
        _ => (name.clone(), value.clone()),
    };
    params.iter().map(mend).collect()
}

/// Speaks to servers and packages for one call.
struct Speaker<'a> {
    setting: &'a Setting,
    cells: &'a ToolCells,
    stop: &'a (dyn Fn() -> bool + Sync),
    tool_hash: &'a str,
}

impl std::fmt::Debug for Speaker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Speaker")
    }
}

impl Speaker<'_> {
    fn job(&self, program: &[String], link: &Link<'_>, secrets: &BTreeMap<String, String>) -> Job {
        Job {
            program: program.to_vec(),
            environment: BTreeMap::new(),
            secrets: secrets.clone(),
            stdin: None,
            sandbox: link.sandbox.clone(),
        }
    }
}

impl McpCall for Speaker<'_> {
    fn attempt(
        &self,
        link: &Link<'_>,
        tool: &Entry,
        operation: Option<&str>,
        params: &Map<String, Value>,
        secrets: &BTreeMap<String, String>,
        deadline: Instant,
    ) -> Attempt {
        let adapter = &link.adapter.adapter_id;
        let failed = |message: String| Attempt::failed(adapter, Went::Unavailable, Problem::new(Stage::Call, message));
        let Interface::Mcp(mcp) = &link.adapter.interface else {
            return failed("the adapter is of another type".into());
        };
        let Some(server) = tool.servers.get(&mcp.server) else {
            return failed(format!("{} names no server {:?}", tool.tool_id, mcp.server));
        };
        let program: &[String] = match server {
            Server::Command(command) => command,
            Server::Url(_) => &[],
        };
        let job = self.job(program, link, secrets);
        // All that makes a difference; what the secrets are is told by their digest alone.
        let secret = Digest::sha256(format!("{secrets:?}").as_bytes()).to_hex();
        let key = format!("{} {} {:?} {secret} {:?}", self.tool_hash, mcp.server, link.sandbox, self.setting.ground);
        let headers = BTreeMap::new();
        let client_for = |url: &str| self.setting.http.client_for(&link.sandbox.network, url);
        let http =
            HttpLink { headers: &headers, bearer: secrets.get("token").map(String::as_str), client_for: &client_for };
        let reached = McpLink { adapter_id: adapter, mcp, server, key: &key, job: &job, http: Some(http) };
        let left = deadline.saturating_duration_since(Instant::now());
        let operation = operation.unwrap_or_default();
        self.setting.servers.attempt(self.cells, &reached, operation, params.clone(), left, self.stop)
    }
}

impl SdkCall for Speaker<'_> {
    fn attempt(
        &self,
        link: &Link<'_>,
        _: &Entry,
        operation: Option<&str>,
        params: &Map<String, Value>,
        secrets: &BTreeMap<String, String>,
        deadline: Instant,
    ) -> Attempt {
        let adapter = &link.adapter.adapter_id;
        let Interface::Sdk(package) = &link.adapter.interface else {
            let problem = Problem::new(Stage::Call, "the adapter is of another type");
            return Attempt::failed(adapter, Went::Unavailable, problem);
        };
        let mut job = self.job(&[], link, secrets);
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        job.sandbox.timeout_ms = job.sandbox.timeout_ms.min(u64::try_from(left).unwrap_or(u64::MAX)).max(1);
        sdk::attempt(self.cells, adapter, package, operation.unwrap_or_default(), params, job)
    }
}
