//! One call of a tool: looked up, checked, agreed to where that is needed, made, and told with its evidence. What is not
//! allowed is denied.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use actum_adapters::call::violations;
use actum_adapters::{Hands, Http, Link, Problem, Request, Servers, transform};
use actum_api::error;
use actum_contract::execution::{NetworkLevel, Redactor, Sandbox, State, Violation};
use actum_contract::folder::FolderId;
use actum_contract::tool::{
    Adapter, DataAccess, Entry, Interface, Narrowed, Transform, TransformKind, check_chain, narrow,
};
use actum_ledger::registry::{Kind, Status};
use actum_sandbox::{Spawner, open_unlinked, path_of};
use serde_json::{Map, Value, json};

use super::cache::{self, Kept, Results};
use super::cells::{Ground, Programs, Stops, ToolCells};
use super::register::misfit;
use super::secret;
use super::settle::Spending;
use super::shelf::{Found, Shelf};
use super::speak::Speaker;
use super::tell::{clean, refused, remembered, told, unfit, without_secrets};
use crate::approval;
use crate::capture::Evidence;
use crate::config::SandboxConfig;
use crate::failure::Failure;
use crate::purse::Purse;
use crate::telemetry;

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub tool: String,
    pub adapter: Option<String>,
    pub operation: Option<String>,
    pub params: Map<String, Value>,
    /// What becomes the program's input, by whatever name its adapter has for it.
    pub input: Option<String>,
}

/// Hears a sentence.
pub(crate) type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// What all calls of a session share.
pub(crate) struct Setting {
    pub shelf: Shelf,
    /// What tools behind which money is spent spend from.
    pub purse: Purse,
    pub home: PathBuf,
    pub config: SandboxConfig,
    pub spawner: Arc<Spawner>,
    pub http: Http,
    pub servers: Servers,
    pub ground: Ground,
    /// Which folder the workspace of a run is, if that was agreed on.
    pub folder: Option<FolderId>,
    /// The caller came in over a server.
    pub is_served: bool,
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
    /// Hears what a person should know while a call waits.
    pub tell: Option<Tell>,
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
pub(super) struct Chosen {
    pub tool: Found<Entry>,
    pub chain: Vec<Found<Adapter>>,
    pub narrowed: Vec<Narrowed>,
    pub operation: Option<String>,
}

/// Attempts that one call may come to, for the time all of them may take.
pub(super) const CALLS_MAX: u32 = 20;

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
        purse: Purse,
        home: PathBuf,
        config: SandboxConfig,
        spawner: Arc<Spawner>,
        ground: Ground,
        stops: Arc<Stops>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            shelf,
            purse,
            home,
            http: Http::new(config.hosts.clone(), None).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))?,
            servers: Servers::new(),
            config,
            spawner,
            ground,
            folder: None,
            is_served: false,
            stops,
            programs: Programs::default(),
            results: Arc::default(),
            session: None,
            granted: Vec::new(),
            tools: None,
            waits: false,
            until: None,
            tell: None,
        })
    }

    /// What the server of an MCP adapter says of the tools it maps to: from what is known, or by asking it. Nothing for
    /// adapters of other types; an error in a sentence if it does not answer.
    pub(crate) fn schemas_of(&self, found: &Found<Adapter>) -> Option<Result<Value, String>> {
        let Interface::Mcp(mcp) = &found.is.interface else { return None };
        let ask = || -> Result<Value, String> {
            let tool = self.shelf.tool(&found.is.tool_id).map_err(|failure| failure.message)?;
            if !tool.item.approved || tool.item.status == Status::Blocked {
                return Err(format!("{} may not be called", tool.item.id));
            }
            if let Some(known) = self.schemas_known(found) {
                return Ok(known);
            }
            // To look is not to call: nobody has agreed to anything yet.
            if tool.is.scope.elevated || tool.is.scope.open || tool.is.first_use {
                return Err("its server is started by a call only, which a person has to agree to".into());
            }
            let narrowed = self.within(narrow(&tool.is, &self.granted, &found.is.override_, false));
            let link = Link { adapter: &found.is, sandbox: narrowed.sandbox };
            let secrets = secret::of_tool(&tool.item.id, &tool.is.secrets).map_err(|failure| failure.message)?;
            let cells = self.cells(&tool.is, None);
            let stop = || self.stops.is_stopped();
            let speaker = Speaker { setting: self, cells: &cells, stop: &stop, tool_hash: &tool.item.hash };
            let all = speaker.list(&link, &tool.is, mcp, &secrets)?;
            let is_mapped = |one: &Value| mcp.tools.values().any(|name| one["name"] == name.as_str());
            let tools: Value = all.into_iter().filter(is_mapped).collect();
            let tools = without_secrets(&tools, &Redactor::new(secrets.values().map(String::as_str)));
            Kept::schemas(&self.home).put(&schema_key(&tool.item.hash, &found.item.hash), &tools);
            Ok(tools)
        };
        Some(ask())
    }

    /// What is known already of the tools behind an MCP adapter.
    pub(crate) fn schemas_known(&self, found: &Found<Adapter>) -> Option<Value> {
        let tool = self.shelf.item(Kind::Tool, &found.is.tool_id).ok()?;
        Kept::schemas(&self.home).get(&schema_key(&tool.hash, &found.item.hash))
    }

    /// The programs a tool may run, as they are on this machine.
    pub(crate) fn programs_of(&self, tool: &Found<Entry>) -> Value {
        let kept = Kept::metadata(&self.home);
        let key = cache::key(&json!(tool.item.hash)).unwrap_or_default();
        if let Some(known) = kept.get(&key) {
            return known;
        }
        let cells = self.cells(&tool.is, None);
        let of = |name: &String| json!({"command": name, "program": cells.program_named(name)});
        let found: Value = tool.is.scope.commands.iter().map(of).collect();
        kept.put(&key, &found);
        found
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
        let run = &self.purse.who.run;
        let operation = telemetry::tool(run, &ask.tool);
        let called = self.call_quietly(id, ask, keep, stop);
        let error = match &called {
            Ok(called) if called.code == 0 => None,
            Ok(called) => Some(called.result["status"].as_str().unwrap_or("_OTHER")),
            Err(failure) => Some(failure.row.name),
        };
        telemetry::tool_ended(operation, run, id, error);
        called
    }

    fn call_quietly(
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
        let named = match named_input(&chosen.chain[0].is, ask) {
            Ok(named) => named,
            Err(violation) => return Ok(refused(id, ask, vec![violation], &evidence)),
        };
        let ask = named.as_ref().unwrap_or(ask);
        let violations = self.check(&chosen, ask);
        let state = if violations.is_empty() { State::Passed } else { State::Failed };
        evidence.note("Inputs validated and sanitized", state, None);
        evidence.note("Allowlist permits the operation", state, None);
        if !violations.is_empty() {
            return Ok(refused(id, ask, violations, &evidence));
        }
        if let Err(problem) = fits_schema(&chosen, ask) {
            evidence.note("Inputs validated and sanitized", State::Failed, problem.message.clone());
            return Ok(unfit(id, ask, &problem, &evidence));
        }
        let key = self.key(&chosen, ask);
        if let Some((key, result)) = key.as_ref().and_then(|(key, _)| Some((key, self.results.get(key)?))) {
            return Ok(remembered(id, key, result));
        }
        let secrets = secret::of_tool(&chosen.tool.is.tool_id, &chosen.tool.is.secrets)?;
        let spending = match self.judge(id, &chosen, ask, &evidence)? {
            Ok(spending) => spending,
            Err(denied) => return Ok(denied),
        };
        // Last of all, so that an agreement for once is not used up by something that does not run.
        let approval = match self.approve(&chosen, ask, spending.as_ref(), stop) {
            Ok(approval) => approval,
            Err(failure) => {
                self.not_agreed(spending, &failure)?;
                return Err(failure);
            }
        };
        if let Some(approval) = &approval {
            evidence.details.insert("approval_id".into(), approval.clone().into());
        }
        let spending = match spending.map(|spending| self.reserve(spending, approval.as_deref(), ask, &evidence)) {
            None => None,
            Some(reserved) => match reserved? {
                Ok(spending) => Some(spending),
                Err(denied) => return Ok(denied),
            },
        };
        let idempotency_key = spending.as_ref().and_then(|spending| spending.key(&self.purse.who.run));
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
        let hands = Hands { cells: &cells, http: &self.http, others: &speaker };
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
            idempotency_key: idempotency_key.as_deref(),
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
            // Also if the call panics: nobody would ever end the watch.
            let _over = Over { is_done: &is_done, watch: watch.thread().clone() };
            actum_adapters::call::call(&request, &hands)
        });
        let outcome = clean(outcome, &redactor);
        let mut called = told(id, &chosen, &outcome, evidence);
        if let Some(spending) = &spending {
            self.settle(spending, &outcome, &chosen, &mut called)?;
        }
        if let Some((key, before)) = key
            && called.code == 0
            && before.is_none_or(|before| self.files(&chosen.tool.is).is_some_and(|now| now == (before, true)))
        {
            self.results.put(key, &called.result);
        }
        Ok(called)
    }

    /// Where a tool works. One that knows secrets or reaches somebody is not let loose on what an agent has made of the
    /// workspace: a script in it would know them too. It sees the workspace itself.
    fn ground_of(&self, tool: &Entry) -> Ground {
        let scope = &tool.scope;
        let is_trusted = !tool.secrets.is_empty() || scope.network || scope.elevated || scope.open;
        match (&self.ground, is_trusted && scope.data_access != DataAccess::Write) {
            (Ground::Copy { at, .. } | Ground::Layers { at, .. }, true) => Ground::Folder(at.clone()),
            (ground, _) => ground.clone(),
        }
    }

    fn cells(&self, tool: &Entry, keep: Option<&Path>) -> ToolCells {
        ToolCells {
            spawner: Arc::clone(&self.spawner),
            config: self.config.clone(),
            ground: self.ground_of(tool),
            folder: self.folder,
            tool: tool.clone(),
            stops: Arc::clone(&self.stops),
            programs: Arc::clone(&self.programs),
            keep: keep.map(Path::to_owned),
            home: self.home.clone(),
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
        let (mut last, mut is_blocked) = (None, false);
        for head in self.shelf.heads(Kind::Adapter)?.into_iter().filter(|head| head.tool == tool.item.id) {
            let found = self.shelf.adapter(&head.id)?;
            if found.item.status == Status::Blocked {
                is_blocked = true;
                continue;
            }
            let fits = misfit(&found.is, &tool.is).is_none();
            let knows = fits && operation_of(&found.is, &tool.is, ask.operation.as_deref()).is_ok();
            match (knows, found.item.status) {
                (true, Status::Active | Status::Experimental) => return Ok(found),
                // One that is out of fashion is better than none.
                (true, _) => last = Some(found),
                (false, _) => last = last.or(Some(found)),
            }
        }
        match last {
            Some(found) => Ok(found),
            None if is_blocked => refuse(format!("all adapters of {} are blocked", tool.item.id)),
            None => refuse(format!("no adapter of {} is registered", tool.item.id)),
        }
    }

    /// What can be said against the parameters before anything is run.
    fn check(&self, chosen: &Chosen, ask: &Ask) -> Vec<Violation> {
        let mut found = Vec::new();
        let adapter = &chosen.chain[0].is;
        let schema = schema_of(&chosen.tool.is, chosen.operation.as_deref());
        let properties = schema.and_then(|schema| schema["properties"].as_object());
        // As they were given, and as each adapter calls them.
        let changed = |one: &Found<Adapter>| transform::input(&one.is.input, schema, ask.params.clone()).ok();
        let changed: Vec<Map<String, Value>> = chosen.chain.iter().filter_map(changed).collect();
        for (name, value) in ask.params.iter().chain(changed.iter().flatten()) {
            let is_path = PATHS.contains(&name.as_str())
                || properties.is_some_and(|all| all.get(name).is_some_and(|one| one["format"] == "path"));
            let is_program = matches!(adapter.interface, Interface::Cli(_) | Interface::Sdk(_) | Interface::Mcp(_));
            let texts: Vec<&str> = match value {
                Value::String(text) => vec![text],
                Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            };
            for text in texts.into_iter().filter(|_| is_path && is_program) {
                let field = format!("params.{name}");
                let is_known = |known: &Violation| known.field == field;
                if let (Err(message), false) = (self.ground.holds(text), found.iter().any(is_known)) {
                    found.push(Violation { check: "IV-03", field, message });
                }
            }
        }
        if let Interface::Cli(cli) = &adapter.interface
            && let Ok(params) = transform::input(&adapter.input, schema, ask.params.clone())
        {
            found.extend(violations(cli, &chosen.tool.is, chosen.operation.as_deref(), &params));
        }
        found
    }

    /// Files a tool can read, as they are now.
    fn files(&self, tool: &Entry) -> Option<(String, bool)> {
        let roots = match &self.ground {
            // As a cell is given them: what a link leads to, not the link.
            Ground::Folder(at) => {
                let real = |path: &String| {
                    open_unlinked(at, Path::new(path), self.folder).and_then(|file| path_of(&file)).ok()
                };
                let real: Vec<PathBuf> = tool.scope.filesystem.iter().filter_map(real).collect();
                return cache::state_of(&real);
            }
            ground => {
                let within = |path: &String| Path::new(if path == "." { "" } else { path }).to_owned();
                tool.scope.filesystem.iter().flat_map(|path| ground.roots(&within(path))).collect::<Vec<_>>()
            }
        };
        cache::state_of(&roots.iter().map(|(root, within)| root.join(within)).collect::<Vec<_>>())
    }

    /// Everything that determines the result, if it may be remembered; and the state of the files that are part of it.
    fn key(&self, chosen: &Chosen, ask: &Ask) -> Option<(String, Option<String>)> {
        let session = self.session.as_ref()?;
        let tool = &chosen.tool.is;
        let waits = tool.first_use || tool.scope.elevated || tool.scope.open;
        let is_wider = chosen.narrowed.iter().any(|one| !one.widened.is_empty());
        if tool.scope.data_access == DataAccess::Write || waits || is_wider || tool.settlement.is_some() {
            return None;
        }
        // What somebody else answers, or a server that remembers, depends on more than can be seen from here.
        let is_alone = |one: &Found<Adapter>| matches!(one.is.interface, Interface::Cli(_) | Interface::Sdk(_));
        let is_offline = chosen.narrowed.iter().all(|one| one.sandbox.network.level == NetworkLevel::Offline);
        if !chosen.chain.iter().all(is_alone) || !is_offline || !tool.secrets.is_empty() {
            return None;
        }
        let reads = tool.scope.data_access == DataAccess::Read;
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

    /// Whether programs of a call get secrets and the run's workspace: earlier runs may have published a makefile or a
    /// configuration there that such a program would obey.
    fn is_secret_beside_results(&self, chosen: &Chosen) -> bool {
        let tool = &chosen.tool.is;
        let is_program = |one: &Found<Adapter>| !matches!(one.is.interface, Interface::Api(_));
        // At the keyboard the user calls it on files that the user has. An agent's own copy is refused if it may be written to.
        let is_results = match self.ground {
            Ground::Folder(_) => self.is_served && tool.scope.data_access != DataAccess::None,
            _ => tool.scope.data_access == DataAccess::Read,
        };
        is_results && tool.secrets.keys().any(|name| tool.is_variable(name)) && chosen.chain.iter().any(is_program)
    }

    /// What waits for a person: levels that do, more than was granted, and the first use where that was wanted.
    fn approve(
        &self,
        chosen: &Chosen,
        ask: &Ask,
        spending: Option<&Spending>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<String>, Failure> {
        let tool = &chosen.tool.is;
        // Together with all the rest: who has to agree twice to one call would be asked without end.
        let mut wants: Vec<String> = spending.and_then(Spending::wants).into_iter().collect();
        if tool.scope.elevated {
            wants.push("filesystem elevated".to_owned());
        }
        if self.is_secret_beside_results(chosen) {
            wants.push("secrets beside files that runs have published".to_owned());
        }
        if chosen.narrowed.iter().any(|one| one.sandbox.network.level == NetworkLevel::Open) {
            wants.push("network open".to_owned());
        }
        for (one, narrowed) in chosen.chain.iter().zip(&chosen.narrowed).filter(|(one, _)| !one.item.approved) {
            wants.extend(narrowed.widened.iter().map(|what| format!("{} {what}", one.item.id)));
        }
        let session = self.session.as_deref().unwrap_or("here");
        let name = cache::key(&json!([session, chosen.tool.item.hash])).unwrap_or_default();
        let first = self.home.join("cache").join("first-use").join(name);
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
        let request = approval::Request {
            tool: tool.tool_id.clone(),
            tenant: &self.shelf.tenant,
            wants,
            agreed: &agreed,
            shown,
            configured: Value::Null,
            exact: Value::Null,
        };
        let mut is_told = false;
        let id = loop {
            match approval::take(&self.home, &request) {
                Err(failure)
                    if failure.row.name == error::APPROVAL_NEEDED
                        && self.waits
                        && !stop()
                        && !self.stops.is_stopped() =>
                {
                    if let Some(tell) = self.tell.as_ref().filter(|_| !is_told) {
                        let id = failure.details["approval_id"].as_str().unwrap_or_default();
                        tell(&format!("── {}: `actum approve {id}`, or `actum deny {id}`", failure.message));
                    }
                    is_told = true;
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

/// The call with its input among the parameters, if it has one.
fn named_input(adapter: &Adapter, ask: &Ask) -> Result<Option<Ask>, Violation> {
    let Some(text) = &ask.input else { return Ok(None) };
    let name = match &adapter.interface {
        Interface::Cli(cli) => cli.stdin.clone(),
        _ => None,
    };
    let Some(name) = name else {
        let message = format!("{} takes no input: it names no parameter for it with `stdin`", adapter.adapter_id);
        return Err(Violation { check: "IV-05", field: "stdin".into(), message });
    };
    let mut named = Ask { input: None, ..ask.clone() };
    named.params.insert(name, text.clone().into());
    Ok(Some(named))
}

/// Ends whoever watches a call when it is over.
struct Over<'a> {
    is_done: &'a AtomicBool,
    watch: Thread,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::SeqCst);
        self.watch.unpark();
    }
}

fn schema_key(tool: &str, adapter: &str) -> String {
    cache::key(&json!([tool, adapter])).unwrap_or_default()
}

/// Whether the parameters are what the tool says about its operation, whatever the adapter makes of them.
fn fits_schema(chosen: &Chosen, ask: &Ask) -> Result<(), Problem> {
    let Some(schema) = schema_of(&chosen.tool.is, chosen.operation.as_deref()) else { return Ok(()) };
    let check = Transform { kind: TransformKind::Validate, spec: schema.clone() };
    transform::input(&[check], None, coerced(&ask.params, Some(schema))).map(drop)
}

fn limits_json(sandbox: &Sandbox) -> Value {
    let hosts: Vec<String> = sandbox.network.allow.iter().map(ToString::to_string).collect();
    // How long it may take makes no difference to what was in time.
    json!([sandbox.memory_mb, sandbox.cpu_cores, sandbox.disk_mb, sandbox.max_children, hosts])
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
    // Where the tool says what it can be asked for, nothing else is asked of it.
    let named: Vec<&str> = tool.operations.keys().map(String::as_str).collect();
    match wanted {
        Some(wanted) if !named.is_empty() && !named.contains(&wanted) => {
            return Err(format!("{} has no operation {wanted:?}; it has {}", tool.tool_id, named.join(", ")));
        }
        None if named.len() == 1 && (known.is_empty() || known.contains(&named[0])) => {
            return operation_of(adapter, tool, Some(named[0]));
        }
        None if named.len() > 1 && known.is_empty() => return Err(format!("name an operation: {}", named.join(", "))),
        _ => {}
    }
    if let Interface::Cli(cli) = &adapter.interface {
        let commands = &tool.scope.commands;
        let runs = commands.contains(&cli.executable);
        let name = Path::new(&cli.executable).file_name().map(|name| name.to_string_lossy().into_owned());
        return match wanted {
            Some(wanted) if !known.is_empty() && !known.contains(&wanted) => {
                Err(format!("{} has no operation {wanted:?}; it has {}", adapter.adapter_id, list()))
            }
            Some(wanted) if runs && (known.contains(&wanted) || name.as_deref() == Some(wanted)) => {
                Ok(Some(wanted.to_owned()))
            }
            Some(wanted) if runs && tool.operations.contains_key(wanted) => Ok(Some(wanted.to_owned())),
            Some(wanted) if runs && commands.iter().any(|command| command == wanted) => Ok(Some(wanted.to_owned())),
            Some(wanted) => {
                Err(format!("{wanted:?} is not among the commands of {}: {}", tool.tool_id, commands.join(", ")))
            }
            None if !known.is_empty() && known.len() == 1 && runs => Ok(Some(known[0].to_owned())),
            None if !known.is_empty() => Err(format!("name an operation: {}", list())),
            None if runs => Ok(None),
            None => Err(format!("{} may not run {:?}, only {}", tool.tool_id, cli.executable, commands.join(", "))),
        };
    }
    match wanted {
        Some(wanted) if known.contains(&wanted) => Ok(Some(wanted.to_owned())),
        Some(wanted) => Err(format!("{} has no operation {wanted:?}; it has {}", adapter.adapter_id, list())),
        None if known.len() == 1 => Ok(Some(known[0].to_owned())),
        None => Err(format!("name an operation: {}", list())),
    }
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
