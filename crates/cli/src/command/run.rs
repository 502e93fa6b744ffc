//! `actum run`: the main job. Submits the items of a work file and, unless detached, executes them here and waits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actum_api::error;
use actum_contract::Intent;
use actum_contract::agent::Agent;
use actum_contract::digest::Digest;
use actum_contract::work::{self, BadWork, Work, WorkItem, levels, with_dependencies};
use actum_contract::{Contract, Layers, Partial, resolve};
use actum_engine::{Engine, Settings, Submitted, Submitter, submit};
use actum_ledger::run::{Filter, Run as Row, RunState};
use actum_sandbox::Signals;
use actum_workspace::OpenFolder;
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::contract::{bad_config, environment};
use super::tool::actor;
use super::{Ended, signals};
use crate::approval::{self, Request};
use crate::args::Global;
use crate::config::AgentConfig;
use crate::document::Document;
use crate::failure::Failure;
use crate::folder;
use crate::progress::Progress;
use crate::project::Project;
use crate::run::{Open, Shop, Shops};
use crate::shared::{self, Named};
use crate::telemetry;
use crate::ui::{Out, clean, count};
use crate::workspace;

#[derive(Debug, Args)]
#[command(
    after_help = "A work file names items; each names an agent of actum.toml. `actum schema work` prints what may stand in it.\n\nExit codes: the worst of the runs: 0 success, 1 failure, 3 denied, 4 timeout, 5 contract, 6 conflict."
)]
pub(crate) struct Run {
    /// The work file: YAML or JSON; `-` reads JSON from stdin
    file: PathBuf,

    /// Only this item and what it depends on; may be given several times
    #[arg(long, value_name = "ID")]
    item: Vec<String>,

    #[command(flatten)]
    contract: Requested,

    /// Do everything but publish: the result is kept for `actum diff` and `actum apply`
    #[arg(long)]
    dry_run: bool,

    /// Allow a workspace outside the project or in a folder of the system
    #[arg(long)]
    allow_workspace: bool,

    /// Only submit; a worker does the rest
    #[arg(long, conflicts_with = "jobs")]
    detach: bool,

    /// Runs at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
}

/// A contract that is asked for on the command line.
#[derive(Debug, Args)]
pub(crate) struct Requested {
    /// Start from this profile: full, ci or smoke
    #[arg(long, value_name = "P")]
    profile: Option<String>,

    /// Set a field of the contract; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
}

impl Requested {
    /// Returns the profile and the fields that the command line sets, for an approval.
    pub(crate) fn asked(&self, intent: Intent) -> Value {
        json!({"profile": self.profile, "set": self.set, "intent": format!("{intent:?}")})
    }

    pub(crate) fn read(&self) -> Result<Partial, Failure> {
        let profile = self.profile.iter().map(|p| format!("profile={p}"));
        let words: Vec<_> = profile.chain(self.set.iter().cloned()).collect();
        Partial::read_words(words.iter().map(String::as_str)).map_err(|bad| bad_config(bad.fields, None))
    }
}

/// How long a lease is, and how it may be set for a test: never shorter than this.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
pub(crate) const LEASE_MIN: Duration = Duration::from_secs(15);

impl Run {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let document = Document::read(&self.file)?;
        let work = read(&document)?;
        let project =
            if document.name == "stdin" { Project::find(global)? } else { Project::of_file(&self.file, global)? };
        // The file may belong to another project than the one we are in.
        crate::recover::recover_quietly(&project, out);
        let items = with_dependencies(work.items.clone(), &self.item).map_err(|e| disordered(&e, &document))?;
        let levels = levels(&items).map_err(|e| disordered(&e, &document))?;
        if let Some(item) = items.iter().find(|item| self.dry_run && !item.dependencies.is_empty()) {
            let message = format!("--dry-run does not support items with dependencies: {}", item.id);
            return Err(Failure::new(error::USAGE, message)
                .hint("--item chooses items without dependencies; apply those, then go on"));
        }
        for item in &items {
            if let Some((command, word)) = item.looks_like_shell() {
                out.remark(&format!(
                    "{}: `{}` is not given to a shell, {word} is an argument; to have one: [\"sh\", \"-c\", \"…\"]",
                    item.id,
                    clean(&command.join(" "))
                ));
            }
        }
        let named = named_of(&document, &work)?;
        if project.is_guest()? && named.is_none() {
            let failure =
                Failure::new(error::FORBIDDEN, "the files of this project are not those of the token's tenant");
            return Err(
                failure.hint("name a shared workspace: `workspace: git+URL#COMMIT`, `snapshot:ID` or `shared:NAME`")
            );
        }
        let ground = match named {
            Some(named) => WorkPlace::Shared(named),
            None => WorkPlace::Folder(folder_of(&self.file, &document, &work, &project, self.allow_workspace)?),
        };
        let contract = self.agreed(&work, &document)?;
        let under = json!({"contract": contract.hash.to_hex(), "draft": self.dry_run});
        let items =
            self.with_agents(items, &json!({"workspace": work.workspace, "under": under}), &project, &document)?;
        // Before there are threads, which would get them instead.
        let signals = signals(global)?;
        let open = Open::new(project, out)?;
        report_outdated_config(&open.project, out);
        // Before anything is frozen or fetched: beyond the bound nothing is begun.
        open.waiter.checked_time(&open.tenant)?;
        let (place, workspace, id, shared, tree) = match ground {
            WorkPlace::Folder(folder) => {
                let id = folder::identity(&open.project, &folder)?;
                let rules = workspace::rules(folder.path(), Vec::new(), Vec::new())?;
                let opened = workspace::open(&open.project, folder, out)?;
                let tree = opened.workspace.freeze(&rules, false, workspace::now_ms())?.id;
                (open.place.clone(), opened.workspace.path().to_owned(), id, None, tree)
            }
            WorkPlace::Shared(named) => {
                let actor = open.project.actor().unwrap_or_else(|| "cli".to_owned());
                let head = open.head_of(&named, &actor)?;
                (open.shared_place()?, shared::seen_at(), None, Some(named.name()), head.tree)
            }
        };
        let names: Vec<Vec<String>> =
            levels.iter().map(|level| level.iter().map(|at| items[*at].0.id.clone()).collect()).collect();
        let wanted = actum_engine::Wanted {
            tenant: open.tenant.clone(),
            place,
            workspace,
            folder: id,
            shared,
            tree: tree.to_hex(),
            contract,
            items,
            draft: self.dry_run,
            by: submitter(&open.project),
            config: open.project.config()?.digest.map(Digest::to_hex),
            trace: trace_of(&open.project),
            once: open.project.seat().and_then(|seat| seat.once),
        };
        let submitted = submit(&open.waiter, wanted).map_err(|e| match e {
            actum_engine::SubmitError::Store(e) => Failure::from(e),
            actum_engine::SubmitError::Exists => Failure::new(error::IDEMPOTENCY_CONFLICT, e.to_string()),
            actum_engine::SubmitError::Refused(_) => Failure::new(error::INPUT, e.to_string()),
        })?;
        if self.detach {
            let runs: Vec<Value> =
                submitted.runs.iter().map(|(run, item)| json!({"run_id": run, "item_id": item})).collect();
            out.result(&json!({"submission": submitted.submission, "runs": runs}), || {
                submitted.runs.iter().map(|(run, item)| format!("{run}  {item}")).collect::<Vec<_>>().join("\n")
            });
            out.remark("`actum worker` executes them; `actum status RUN` shows how far one is");
            return Ok(0);
        }
        let watch = Arc::new(Progress::new(&names, out));
        work_on(&open, Some(submitted.submission.clone()), usize::from(self.jobs), LEASE, signals, watch)?;
        report(&open, &submitted, out)
    }

    fn agreed(&self, work: &Work, document: &Document) -> Result<Contract, Failure> {
        let requested = work.contract.clone().overlaid(&self.contract.read()?);
        let resolved = resolve(Layers { persisted: None, requested: &requested, env: &environment()? });
        resolved.map(|resolved| Contract::resolved(&resolved)).map_err(|bad| bad_config(bad.fields, Some(document)))
    }

    fn with_agents(
        &self,
        items: Vec<WorkItem>,
        of: &Value,
        project: &Project,
        document: &Document,
    ) -> Result<Vec<(WorkItem, Agent)>, Failure> {
        let config = project.config()?;
        let (tenant, is_guest) = (project.tenant()?, project.is_guest()?);
        // What is not offered is not there.
        let is_there = |config: &&AgentConfig| !is_guest || config.is_offered_to(&tenant);
        let mut found = Vec::new();
        for item in items {
            let Some(AgentConfig { agent, .. }) = config.agents.get(&item.agent_id).filter(is_there) else {
                let known: Vec<&str> =
                    config.agents.iter().filter(|(_, of)| is_there(of)).map(|(id, _)| id.as_str()).collect();
                let message = format!("item {} names the agent {}, which is not defined", item.id, item.agent_id);
                let failure = Failure::new(error::INPUT, message).hint(match (known.join(", "), is_guest) {
                    (known, true) => format!(
                        "offered to {} are: {}; the project's owner may offer others: `tenants` of an agent in actum.toml",
                        clean(tenant.as_str()),
                        if known.is_empty() { "none" } else { &known }
                    ),
                    (known, false) if known.is_empty() => format!(
                        "define it in actum.toml: `[agents.{}]`; `actum init` writes one to begin with",
                        item.agent_id
                    ),
                    (known, false) => format!("actum.toml defines {known}"),
                });
                return Err(match document.place_of_key(&item.agent_id) {
                    Some(place) => failure.at(place),
                    None => failure,
                });
            };
            approve(project, agent, &item, of)?;
            found.push((item, agent.clone()));
        }
        Ok(found)
    }
}

/// Whether what a run was agreed on may be done once more, by whoever asks now. Another execution is agreed to anew, and an
/// agent is the project's to offer: one that is offered no longer, or is another by now, is not gone on with for others. `under`: what
/// is asked for beside what was agreed on.
pub(crate) fn may_again(open: &Open, run: &Row, is_another: bool, under: &Value) -> Result<(), Failure> {
    // What cannot be read is refused by whoever is to execute it.
    let Ok(agreement) = actum_engine::read_without_contract(&run.metadata) else { return Ok(()) };
    let (project, id) = (&open.project, &agreement.work_item.agent_id);
    if project.is_guest()? {
        let config = project.config()?;
        let is_same = |config: &AgentConfig| config.is_offered_to(&open.tenant) && config.agent == agreement.agent;
        if !config.agents.get(id).is_some_and(is_same) {
            let message = format!("the agent {} is not offered to you any more as it was", clean(id));
            return Err(Failure::new(error::FORBIDDEN, message)
                .hint("submit the work again: then the agent is what it is now, if it is offered"));
        }
    }
    // At the keyboard the user goes on with what the user has agreed to.
    match is_another || project.seat().is_some() {
        true => approve(project, &agreement.agent, &agreement.work_item, &json!({"run": run.id, "under": under})),
        false => Ok(()),
    }
}

/// Says so if a server goes on with a configuration that the project's files no longer hold.
fn report_outdated_config(project: &Project, out: &Out) {
    if project.seat().is_some() && project.active_config().is_outdated() {
        out.remark("actum.toml was changed and is not in force: an admin takes it into force by `actum config reload`");
    }
}

/// Who submits.
pub(crate) fn submitter(project: &Project) -> Submitter {
    Submitter { actor: actor(project.actor()), token: project.token().map(ToOwned::to_owned) }
}

/// The trace that whoever submits is in: told with the request, or where this process was started.
fn trace_of(project: &Project) -> Option<String> {
    let named = match project.seat() {
        Some(seat) => seat.trace.clone(),
        None => std::env::var("TRACEPARENT").ok(),
    };
    named.filter(|text| telemetry::trace::parse(text).is_some())
}

/// Fails unless a person has agreed to the levels of an agent that wait for one. Over a server the agreement is bound to all that
/// the agent is to do and to the caller; at the keyboard, to the agent. `of`: the workspace, or the run that is gone on with, and
/// the contract that is in force.
fn approve(project: &Project, agent: &Agent, item: &WorkItem, of: &Value) -> Result<(), Failure> {
    let mut wants = Vec::new();
    if agent.filesystem == "elevated" {
        wants.push("filesystem elevated".to_owned());
    }
    if agent.network == "open" {
        wants.push("network open".to_owned());
    }
    if wants.is_empty() {
        return Ok(());
    }
    let id = &item.agent_id;
    let definition = serde_json::to_value(agent).unwrap_or(Value::Null);
    let configured = json!({"definition": definition});
    let (agreed, shown) = match project.seat() {
        None => (definition, json!({"agent": id})),
        Some(_) => {
            let whole = json!({"work_item": item, "of": of, "submitted_by": submitter(project)});
            let shown = json!({"agent": id, "request": whole});
            (json!({"definition": definition, "request": whole}), shown)
        }
    };
    let tenant = project.tenant()?;
    let request = Request {
        tool: format!("agent:{id}"),
        tenant: &tenant,
        wants,
        agreed: &agreed,
        shown,
        configured,
        exact: Value::Null,
    };
    approval::take(&project.folder()?, &request).map(drop)
}

fn read(document: &Document) -> Result<Work, Failure> {
    let value = document.value_of_work()?;
    work::read(&value).map_err(|bad| match bad {
        BadWork::Contract(bad) => bad_config(bad.fields, Some(document)),
        BadWork::Flaws(flaws) => {
            let lines: Vec<String> = flaws.iter().map(ToString::to_string).collect();
            let failure = Failure::new(error::INPUT, format!("the work file is bad\n  {}", lines.join("\n  ")))
                .details(json!({"flaws": flaws}))
                .hint("`actum schema work` prints what may stand in it");
            match flaws.first().and_then(|flaw| document.place_of_field(&flaw.field)) {
                Some(place) => failure.at(place),
                None => failure,
            }
        }
    })
}

fn disordered(bad: &work::BadOrder, document: &Document) -> Failure {
    let failure = match bad {
        work::BadOrder::NoItem(_) => Failure::new(error::USAGE, bad.to_string()).hint("--item takes ids of the file"),
        _ => Failure::new(error::INPUT, bad.to_string()),
    };
    match document.place_of_key(bad.item()) {
        Some(place) if !matches!(bad, work::BadOrder::NoItem(_)) => failure.at(place),
        _ => failure,
    }
}

/// The shared workspace that is worked on, if the file names one.
fn named_of(document: &Document, work: &Work) -> Result<Option<Named>, Failure> {
    let named = work.workspace.as_deref().and_then(Named::read).transpose();
    named.map_err(|failure| match document.place_of_key("workspace") {
        Some(place) => failure.at(place),
        None => failure,
    })
}

/// What a work file works on.
enum WorkPlace {
    Folder(OpenFolder),
    Shared(Named),
}

/// Opens the folder that is worked on: as the file says, seen from where the file is.
fn folder_of(
    file: &Path,
    document: &Document,
    work: &Work,
    project: &Project,
    is_allowed: bool,
) -> Result<OpenFolder, Failure> {
    let at_key = |failure: Failure| match document.place_of_key("workspace") {
        Some(place) => failure.at(place),
        None => failure,
    };
    let wanted = work.workspace.as_deref().unwrap_or_default();
    // Whoever is not at the keyboard works in the project, and learns nothing of the rest of this machine.
    if project.seat().is_some() {
        return folder::open_beneath(project, Path::new(wanted));
    }
    let base = match document.name == "stdin" {
        true => project.root().to_owned(),
        false => file.parent().filter(|p| !p.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned),
    };
    let found = folder::open_named(&base.join(wanted)).map_err(at_key)?;
    if !is_allowed && let Some(why) = folder::consent_needed(project, &found)? {
        let message = format!("the workspace {} {why}", found.path().display());
        return Err(at_key(Failure::new(error::WORKSPACE_REFUSED, message))
            .hint("--allow-workspace allows it for this command, if that is meant"));
    }
    Ok(found)
}

/// Works on runs until they are over, or until somebody wants to stop.
pub(crate) fn work_on(
    open: &Open,
    submission: Option<String>,
    jobs: usize,
    lease: Duration,
    signals: Option<Signals>,
    watch: Arc<Progress>,
) -> Result<(), Failure> {
    let shop = Shop::open(open, jobs.min(4))?;
    shop.show_copies(&watch);
    shop.report_health(None);
    let places = open.places()?;
    let settings = Settings { owner: shop.owner.clone(), places, lease, jobs, submission };
    let workshop = Arc::new(Shops::new(open, Arc::clone(&shop)));
    let watch = telemetry::watched(watch);
    let engine = Arc::new(Engine::new(open.waiter.clone(), workshop, watch, settings));
    let (asked, told) = (Arc::clone(&engine), Arc::new(AtomicBool::new(false)));
    let heeding = std::thread::Builder::new().name("actum-signals".into()).spawn(move || {
        while signals.as_ref().is_some_and(Signals::next) {
            // Whoever asks twice does not want to wait.
            if told.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            actum_store::blob::stop_waiting();
            asked.interrupt();
        }
    });
    heeding.map_err(|e| Failure::new(error::INTERNAL, format!("cannot start a thread: {e}")))?;
    engine.work()?;
    // The next worker of this machine finds the runs that this one may still hold: its name is there, and not locked any more.
    if !open.waiter.has_given_up() {
        shop.close();
    }
    Ok(())
}

/// The exit code that a run comes to.
pub(crate) fn exit_code(row: &Row) -> u8 {
    let outcome: Value = row.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let code = outcome["error"]["code"].as_str().unwrap_or_default();
    match (row.state, outcome["verdict"]["status"].as_str()) {
        (RunState::Succeeded | RunState::Planned, _) => 0,
        (_, Some("denied")) => 3,
        (_, Some("timeout")) => 4,
        _ if code == "CONTRACT_MISMATCH" || code == "UNSUPPORTED_CONTRACT" => 5,
        _ if code == "PUBLISH_CONFLICT" => 6,
        _ => 1,
    }
}

/// What is shown of an outcome. The rest of it is long, and lists would build it for nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    result: Value,
    verdict: Value,
    error: Value,
    warnings: Option<Value>,
    drift: Option<Value>,
    undone: Value,
    put_off: Option<String>,
}

/// What is shown of the metadata; by the name in `metadata::HASH`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Agreed {
    #[serde(rename = "executionContractHash")]
    contract_hash: Value,
}

/// A run as `run --json` shows it: who it was, and its result.
pub(crate) fn run_json(row: &Row) -> Value {
    let outcome: Told = row.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let metadata: Agreed = serde_json::from_str(&row.metadata).unwrap_or_default();
    let Told { result, verdict, error, warnings, drift, undone, put_off } = outcome;
    let mut shown = json!({
        "run_id": row.id, "item_id": row.item, "state": row.state.word(), "attempt": row.attempt,
        "contract_hash": metadata.contract_hash,
    });
    match (shown.as_object_mut(), result) {
        (Some(fields), Value::Object(result)) => fields.extend(result),
        _ => {
            shown["status"] = verdict.get("status").cloned().unwrap_or(json!(null));
            shown["error"] = error["message"].clone();
        }
    }
    // It waits in the queue, and for this reason.
    if let Some(why) = put_off {
        shown["error"] = json!(why);
    }
    shown["error_code"] = error["code"].clone();
    shown["warnings"] = warnings.unwrap_or(json!([]));
    shown["kept"] = verdict.get("kept").cloned().unwrap_or(json!(false));
    shown["base_drift"] = drift.unwrap_or(json!([]));
    if undone == true {
        shown["undone"] = json!(true);
    }
    if row.metadata.is_empty() {
        shown["damaged"] = json!(true);
        shown["error_code"] = json!(error::STORE_DAMAGED);
        shown["error"] = json!("the store has lost what the run was agreed on");
    }
    shown
}

fn report(open: &Open, submitted: &Submitted, out: &mut Out) -> Ended {
    let filter = Filter { submission: Some(submitted.submission.clone()), limit: 10_000, ..Filter::default() };
    let rows = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
    let in_order: Vec<&Row> =
        submitted.runs.iter().filter_map(|(id, _)| rows.iter().find(|row| row.id == *id)).collect();
    let code = in_order.iter().map(|row| exit_code(row)).max().unwrap_or(0);
    let runs: Vec<Value> = in_order.iter().map(|row| run_json(row)).collect();
    out.result(&json!({ "runs": runs }), || screen(&in_order, open));
    Ok(code)
}

/// What a person sees at the end: one block for each run.
fn screen(rows: &[&Row], open: &Open) -> String {
    let mut blocks: Vec<String> = rows.iter().map(|row| block(row, open)).collect();
    if rows.len() > 1 {
        let good = rows.iter().filter(|row| row.state == RunState::Succeeded).count() as u64;
        blocks.push(format!("{} of {}", count(good, "run succeeded", "runs succeeded"), rows.len()));
    }
    blocks.join("\n")
}

pub(crate) fn block(row: &Row, open: &Open) -> String {
    let run = run_json(row);
    let text = |key: &str| run[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| run["metrics"][key].as_u64().unwrap_or(0);
    let undone = run["undone"] == true;
    let (mark, word) = match (row.state, text("status").as_str()) {
        _ if undone => ("↶", "undone".to_owned()),
        (RunState::Succeeded, _) if number("files_touched") == 0 => ("✓", "nothing to change".to_owned()),
        (RunState::Succeeded, _) if run["kept"] == true => ("✓", "kept as a draft".to_owned()),
        (RunState::Succeeded, _) => ("✓", "published".to_owned()),
        (RunState::Planned, _) => ("…", "planned, to be published outside".to_owned()),
        (RunState::Cancelled, _) => ("✗", "cancelled".to_owned()),
        (_, "") => ("✗", row.state.word().to_owned()),
        (_, status) => ("✗", status.to_owned()),
    };
    let mut facts = vec![count(number("files_touched"), "file", "files")];
    if number("tool_ops_count") > 0 {
        facts.push(count(number("tool_ops_count"), "tool operation", "tool operations"));
    }
    match (run["metrics"]["tests_passed"].as_u64(), run.get("test_output").filter(|v| !v.is_null())) {
        (Some(passed), _) => {
            let failed = run["metrics"]["tests_failed"].as_u64().unwrap_or(0);
            facts.push(format!("tests: {passed} passed, {failed} failed"));
        }
        (None, Some(_)) if row.state == RunState::Succeeded => facts.push("tests passed".to_owned()),
        _ => {}
    }
    if let Some(spent) = run["spend"]["spent"].as_u64() {
        facts.push(money(spent, run["spend"]["currency"].as_str().unwrap_or_default()));
    }
    facts.push(seconds(number("execution_time_ms")));
    let mut lines = vec![format!("{mark} {}  {word}  {}", row.item, facts.join(" · "))];
    for (sign, key) in [("+", "created_files"), ("~", "modified_files"), ("-", "deleted_files")] {
        let paths: Vec<&str> = run[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for path in paths.iter().take(PATHS_SHOWN) {
            let root = open.project.root().canonicalize().unwrap_or_default();
            let short = Path::new(path).strip_prefix(root).map_or((*path).to_owned(), |p| p.display().to_string());
            lines.push(format!("  {sign} {}", clean(&short)));
        }
        if paths.len() > PATHS_SHOWN {
            lines.push(format!("  {sign} … and {} more", paths.len() - PATHS_SHOWN));
        }
    }
    let outcome: Value = row.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    if let Ok(Some(waiting)) = super::status::why_waiting(open, row, &outcome) {
        lines.push(format!("  waits {}", clean(&waiting)));
    }
    let reason = run["error"].as_str().or(run["denial_reason"].as_str());
    if let Some(reason) = reason {
        let code = text("error_code");
        let reason = clean(reason);
        lines.push(format!("  {reason}{}", if code.is_empty() { String::new() } else { format!(" ({code})") }));
    }
    for warning in run["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        lines.push(format!("  warning: {}", clean(warning)));
    }
    let drift: Vec<&str> = run["base_drift"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(first) = drift.first() {
        let many = count(drift.len() as u64, "other path was", "other paths were");
        lines.push(format!("  {many} changed by others meanwhile, the first: {}", clean(first)));
    }
    lines.push(format!("  run {}", row.id));
    let id = &row.id;
    match (text("error_code").as_str(), row.state) {
        _ if undone => {}
        ("PUBLISH_CONFLICT", _) if run["kept"] == true => lines.push(format!(
            "  `actum diff {id}` shows the result; `actum apply {id}` publishes it once your own change is out of the way"
        )),
        ("PROTECTED_FILE", _) if run["kept"] == true => lines.push(format!(
            "  `actum diff {id}` shows the result; `actum apply {id} --protected` asks about these files and publishes it"
        )),
        _ if run["kept"] == true => {
            lines.push(format!("  `actum diff {id}` shows the result, `actum apply {id}` publishes it"));
        }
        (_, RunState::Succeeded) if number("files_touched") > 0 => {
            lines.push(format!("  `actum undo {id}` takes it back"));
        }
        ("DUPLICATE_CAPSULE", _) => lines.push("  `actum undo` of the earlier run lets it be done again".to_owned()),
        ("DEPENDENCY_FAILED", _) => lines.push(format!("  resume what it depends on first, then `actum resume {id}`")),
        ("STEP_LIMIT_EXCEEDED", _) => lines.push("  `--set FIELD=VALUE` allows more; `actum contract explain` lists the fields".to_owned()),
        (code, RunState::Failed) if code.starts_with("policy_denied.") || code.starts_with("loop_detected.") => {
            lines.push(format!("  `actum trace list --run {id}` shows what it asked, `actum policy explain` of the denied one why not"));
            lines.push(format!("  `actum spend authorize --run {id} --max-total AMOUNT` allows more, then `actum resume {id}`"));
        }
        (_, RunState::Failed) if text("status") == "denied" => {
            lines.push(format!("  `actum logs {id}` shows what it said; its work item says what is allowed"));
        }
        (_, RunState::Failed) => {
            lines.push(format!("  `actum logs {id}` shows what it said, `actum resume {id}` goes on with it"));
        }
        _ => {}
    }
    lines.join("\n")
}

const PATHS_SHOWN: usize = 10;

/// An amount as people read it; what is not dollars stays in its smallest unit.
pub(crate) fn money(amount: u64, currency: &str) -> String {
    match currency {
        actum_ledger::spend::CURRENCY => format!("${}.{:06}", amount / 1_000_000, amount % 1_000_000),
        _ => format!("{amount} {currency}"),
    }
}

pub(crate) fn seconds(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{:.1} s", ms as f64 / 1_000.0) }
}
