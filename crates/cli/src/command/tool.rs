//! `actum tool` and `actum adapter`: the registry, what is shown of it level by level, calls, golden outputs. Inside a cell
//! the same words reach what the agent was given.

use std::path::PathBuf;
use std::time::Duration;

use actum_api::client;
use actum_api::error;
use actum_contract::tool::{Level, disclose_adapter, disclose_tool};
use actum_ledger::registry::{Action, Item, Kind};
use actum_sandbox::Signals;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::exec::call_tool;
use super::{Ended, signals};
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::shop::Open;
use crate::tool::cache::Kept;
use crate::tool::call::{Ask, Setting};
use crate::tool::golden;
use crate::tool::register::{self, By};
use crate::tool::shelf::Shelf;
use crate::ui::{Out, table};

/// Where a cell finds the tools it was given.
pub(crate) const TOOLS_URL: &str = "ACTUM_TOOLS_URL";

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum AtLevel {
    L0,
    L1,
    L2,
    L3,
}

impl AtLevel {
    const fn level(self) -> Level {
        match self {
            Self::L0 => Level::L0,
            Self::L1 => Level::L1,
            Self::L2 => Level::L2,
            Self::L3 => Level::L3,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Why {
    /// Who changes it, if it is not the user
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,

    /// Why; kept in the ledger with the change
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Why {
    pub(crate) fn by(self) -> By {
        By { actor: actor(self.actor), reason: self.reason.unwrap_or_default() }
    }
}

/// Who acts: the one that is named, else the user.
pub(crate) fn actor(named: Option<String>) -> String {
    let user = || ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    let number = || format!("user {}", rustix::process::getuid().as_raw());
    named.or_else(user).unwrap_or_else(number)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Register tools and adapters from files, or new versions of them
    Add {
        /// YAML or JSON files, or folders of them
        #[arg(default_value = "tools")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        why: Why,
    },
    /// What is registered
    List {
        /// How much of each is shown
        #[arg(long, value_enum, default_value = "L0", ignore_case = true)]
        level: AtLevel,
    },
    /// One of them, as much of it as is wanted
    Show {
        id: String,
        #[arg(long, value_enum, default_value = "L1", ignore_case = true)]
        level: AtLevel,
        /// All its changes, the newest first
        #[arg(long)]
        history: bool,
    },
    /// Approve the version in force: of a tool, that it is called; of an adapter, that it goes beyond what was granted
    Approve {
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// Put it in use again
    Activate {
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// It is still called, and says that it should not be
    Deprecate {
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// It is no longer called
    Block {
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// Take it out of the registry; its history stays
    Remove {
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// Call a tool: one execution. In a cell this is how an agent calls what it was given
    Call(CallArgs),
    /// Outputs that are right: record them, and compare with them
    #[command(subcommand)]
    Golden(GoldenVerb),
    /// Forget what was found out about tools and servers, and results of sessions
    Refresh,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GoldenVerb {
    /// Call every example of the adapters, and keep what comes out
    Record {
        /// Adapters; all that have examples if none is named
        adapters: Vec<String>,
        /// Replace outputs that are kept and differ
        #[arg(long)]
        update: bool,
    },
    /// Call every example again, and compare
    Check {
        /// Adapters; all that have examples if none is named
        adapters: Vec<String>,
    },
}

/// What is called, and with what.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The tool, or tool@version
    tool: String,

    /// The operation, if the adapter has several
    operation: Option<String>,

    #[command(flatten)]
    given: Given,
}

/// Parameters as they are typed.
#[derive(Debug, Args, Clone)]
pub(crate) struct Given {
    /// The adapter, if not the first that fits
    #[arg(long, value_name = "ID")]
    pub adapter: Option<String>,

    /// A parameter: NAME=VALUE (text; a whole number, true and false are taken as such), or NAME:=JSON
    #[arg(long = "param", id = "param", value_name = "NAME=VALUE")]
    pub params: Vec<String>,

    /// All parameters as one JSON object
    #[arg(long = "params-json", id = "params", value_name = "JSON")]
    pub params_json: Option<String>,
}

impl Given {
    pub(crate) fn read(&self) -> Result<Map<String, Value>, Failure> {
        let bad = |message: String| {
            Failure::new(error::USAGE, message).hint("write --param NAME=VALUE, or --param NAME:=JSON")
        };
        let mut params = match &self.params_json {
            None => Map::new(),
            Some(text) => match actum_contract::canon::parse(text.as_bytes()) {
                Ok(Value::Object(fields)) => fields,
                Ok(_) => return Err(bad("--params-json is no object".into())),
                Err(e) => return Err(bad(format!("--params-json is no JSON: {}", e.message))),
            },
        };
        for text in &self.params {
            let Some((name, value)) = text.split_once('=') else { return Err(bad(format!("{text:?} has no `=`"))) };
            let value = match name.strip_suffix(':') {
                None => plain(value),
                Some(_) => actum_contract::canon::parse(value.as_bytes())
                    .map_err(|e| bad(format!("{text:?} is no JSON: {}", e.message)))?,
            };
            params.insert(name.trim_end_matches(':').to_owned(), value);
        }
        Ok(params)
    }
}

/// Whole numbers that JSON keeps, and truth values, are what they look like; everything else is text.
pub(crate) fn plain(text: &str) -> Value {
    match (text, text.parse::<i64>()) {
        ("true", _) => Value::Bool(true),
        ("false", _) => Value::Bool(false),
        (_, Ok(number)) if number.to_string() == text && number.unsigned_abs() < 1 << 53 => number.into(),
        _ => text.into(),
    }
}

impl CallArgs {
    fn ask(&self) -> Result<Ask, Failure> {
        let (tool, operation) = (self.tool.clone(), self.operation.clone());
        Ok(Ask { tool, adapter: self.given.adapter.clone(), operation, params: self.given.read()?, input: None })
    }
}

impl Verb {
    pub(crate) fn run(self, kind: Kind, global: &Global, out: &mut Out) -> Ended {
        let given_by = std::env::var(TOOLS_URL).ok().filter(|url| !url.is_empty() && global.seat.is_none());
        if let Some(url) = given_by {
            return self.ask(kind, &url, out);
        }
        let signals = match &self {
            // Before there are threads, which would get them instead.
            Self::Call(_) | Self::Golden(_) => signals(global)?,
            _ => None,
        };
        let project = Project::find(global)?;
        if let Self::Refresh = self {
            let home = project.folder()?;
            Kept::schemas(&home).clear();
            Kept::metadata(&home).clear();
            Kept::results(&home).clear();
            out.result(&json!({"refreshed": true}), || "forgotten; it is found out again when it is needed".to_owned());
            return Ok(0);
        }
        let open = Open::new(project, out)?;
        let shelf = Shelf::new(&open.waiter, &open.registry, &open.tenant);
        let (action, id, why) = match self {
            Self::Add { files, why } => return add(&shelf, &open, &files, why, out),
            Self::List { level } => return list(&shelf, kind, level.level(), out),
            Self::Show { id, level, history } => return show(&shelf, &open, kind, &id, level.level(), history, out),
            Self::Call(call) => return call_tool(open, &call.ask()?, None, signals, out),
            Self::Golden(verb) => return golden_verb(open, verb, signals, out),
            Self::Refresh => return Ok(0),
            Self::Approve { id, why } => (Action::Approve, id, why),
            Self::Activate { id, why } => (Action::Activate, id, why),
            Self::Deprecate { id, why } => (Action::Deprecate, id, why),
            Self::Block { id, why } => (Action::Block, id, why),
            Self::Remove { id, why } => (Action::Remove, id, why),
        };
        let item = register::turn(&shelf, kind, &id, action, &why.by())?;
        out.result(&item_json(&item), || {
            let approved = if item.approved { "approved" } else { "not approved" };
            format!("{} {} {}, {approved}", item.id, item.version, item.status.word())
        });
        Ok(0)
    }

    /// Asks whoever gave the tools to this cell.
    fn ask(self, kind: Kind, url: &str, out: &mut Out) -> Ended {
        let (method, path, body) = match &self {
            Self::List { level } => ("GET", format!("/v1/adapters?level={}", level.level().word()), None),
            Self::Show { id, level, .. } => ("GET", format!("/v1/tools/{id}?level={}", level.level().word()), None),
            Self::Call(call) => {
                let Ask { tool, adapter, operation, params, .. } = call.ask()?;
                let body = json!({"tool": tool, "adapter": adapter, "operation": operation, "params": params});
                ("POST", "/v1/call".to_owned(), Some(body))
            }
            _ => {
                let message = "an agent in its cell may list, show and call tools, and nothing else";
                return Err(Failure::new(error::TOOL_DENIED, message));
            }
        };
        let _ = kind;
        let (status, answer) = client::ask(url, method, &path, body.as_ref(), ASK_FOR)
            .map_err(|e| Failure::new(error::INTERNAL, format!("the tool service does not answer: {e}")))?;
        if let Some(wrong) = answer.get("error").filter(|wrong| status >= 400 && wrong.is_object()) {
            let text = |key: &str| wrong[key].as_str().unwrap_or_default().to_owned();
            let failure = Failure::new(&text("code"), text("message")).details(wrong["details"].clone());
            return Err(match wrong["hint"].as_str() {
                Some(hint) => failure.hint(hint),
                None => failure,
            });
        }
        let code = match (&self, answer["status"].as_str()) {
            (Self::Call(_), Some("success")) => 0,
            (Self::Call(_), Some("refused")) if answer["error"]["stage"] == "input" => 2,
            (Self::Call(_), Some("refused")) => 3,
            (Self::Call(_), Some("timeout")) => 4,
            (Self::Call(_), _) => 1,
            _ => 0,
        };
        match &self {
            Self::Call(_) => tell(&answer, out),
            _ => out.result(&answer, || serde_json::to_string_pretty(&answer).unwrap_or_default()),
        }
        Ok(code)
    }
}

/// A call may take as long as its tool may, and wait for a person.
const ASK_FOR: Duration = Duration::from_secs(4 * 3_600);

/// Tells a person or an agent what came out; what went wrong goes where errors go, so that nobody takes it for output.
pub(crate) fn tell(result: &Value, out: &mut Out) {
    if result["status"] == "success" || out.is_json() {
        out.result(result, || match &result["output"] {
            Value::String(text) => text.trim_end().to_owned(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        });
    } else {
        out.aside(&super::exec::summary(result));
    }
    for warning in result["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        out.remark(&format!("note: {warning}"));
    }
}

fn item_json(item: &Item) -> Value {
    json!({
        "id": item.id, "name": item.name, "tool_id": item.tool, "type": item.form, "version": item.version,
        "hash": item.hash, "status": item.status.word(), "approved": item.approved, "change": item.n,
    })
}

fn add(shelf: &Shelf, open: &Open, files: &[PathBuf], why: Why, out: &mut Out) -> Ended {
    let files: Vec<PathBuf> = match files {
        [only] if only == &PathBuf::from("tools") && !only.exists() => vec![open.project.root().join("tools")],
        files => files.to_vec(),
    };
    let read = register::read(&files)?;
    let done = register::register(shelf, &open.project, &read, &why.by())?;
    out.result(&json!({"registered": done}), || {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let lines = done.iter().map(|one| {
            let waits = one["kind"] == "tool" && one["approved"] == false;
            let note =
                if waits { format!("; not approved: `actum tool approve {}`", text(one, "id")) } else { String::new() };
            format!("{} {} {}: {}{note}", text(one, "kind"), text(one, "id"), text(one, "version"), text(one, "action"))
        });
        lines.collect::<Vec<_>>().join("\n")
    });
    Ok(0)
}

/// Level L0 asks for nothing but names.
fn list(shelf: &Shelf, kind: Kind, level: Level, out: &mut Out) -> Ended {
    let plural = format!("{}s", kind.word());
    if level == Level::L0 && kind == Kind::Adapter {
        let heads = shelf.heads(kind)?;
        if out.is_json() {
            out.bytes(heads_json(&plural, &heads).as_bytes());
            return Ok(0);
        }
        let rows: Vec<Vec<String>> = heads
            .iter()
            .map(|head| vec![head.id.clone(), head.name.clone(), head.tool.clone(), head.form.clone()])
            .collect();
        out.result(&Value::Null, || table(&["ADAPTER", "NAME", "TOOL", "TYPE"], &rows));
        return Ok(0);
    }
    let items = shelf.items(kind)?;
    let mut shown = Vec::new();
    for item in &items {
        shown.push(item_at(shelf, kind, item, level)?);
    }
    out.result(&json!({plural: shown}), || {
        let approved = |item: &Item| {
            if kind == Kind::Adapter {
                ""
            } else if item.approved {
                "yes"
            } else {
                "no"
            }
        };
        let row = |item: &Item| {
            vec![
                item.id.clone(),
                item.name.clone(),
                item.version.clone(),
                item.status.word().to_owned(),
                approved(item).to_owned(),
                item.form.clone(),
            ]
        };
        table(&["ID", "NAME", "VERSION", "STATUS", "APPROVED", "TYPE"], &items.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

/// Ten thousand of them are written without a tree in between.
fn heads_json(plural: &str, heads: &[actum_ledger::registry::Head]) -> String {
    let mut text = String::with_capacity(heads.len() * 120 + 32);
    text.push_str(&format!("{{\"{plural}\":["));
    for (at, head) in heads.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        let quoted = |value: &str| Value::from(value).to_string();
        text.push_str(&format!(
            "{{\"adapter_id\":{},\"name\":{},\"tool_id\":{},\"type\":{}}}",
            quoted(&head.id),
            quoted(&head.name),
            quoted(&head.tool),
            quoted(&head.form)
        ));
    }
    text.push_str("]}\n");
    text
}

/// One of them at a level. L0 and L1 are on record beside it; more means reading it.
pub(crate) fn item_at(shelf: &Shelf, kind: Kind, item: &Item, level: Level) -> Result<Value, Failure> {
    let summary = || -> Map<String, Value> { serde_json::from_str(&item.summary).unwrap_or_default() };
    let mut shown = match (kind, level) {
        (Kind::Adapter, Level::L0 | Level::L1) => {
            let mut shown = json!({"adapter_id": item.id, "name": item.name, "tool_id": item.tool, "type": item.form});
            if let (Level::L1, Some(fields)) = (level, shown.as_object_mut()) {
                fields.extend(summary());
            }
            shown
        }
        (Kind::Tool, Level::L0 | Level::L1) => {
            let known = summary();
            let line = known.get("description").and_then(Value::as_str).and_then(|text| text.lines().next());
            let mut shown = json!({"tool_id": item.id, "name": item.name, "summary": line.unwrap_or_default(), "owner": known.get("owner")});
            if let (Level::L1, Some(fields)) = (level, shown.as_object_mut()) {
                fields.extend(known);
            }
            shown
        }
        (Kind::Adapter, _) => {
            let found = shelf.adapter(&item.id)?;
            disclose_adapter(&found.is, &found.body, level, record_json(item))
        }
        (Kind::Tool, _) => {
            let found = shelf.tool(&item.id)?;
            disclose_tool(&found.is, &found.body, level, record_json(item))
        }
    };
    // What is in force, not what the file once said.
    if level >= Level::L1 {
        shown["status"] = item.status.word().into();
    }
    if level >= Level::L1 && kind == Kind::Tool {
        shown["approved"] = item.approved.into();
    }
    Ok(shown)
}

/// What an MCP server says of the tools behind an adapter's operations.
fn add_tools(shown: &mut Value, setting: &Setting, id: &str) -> Result<(), Failure> {
    let found = setting.shelf.adapter(id)?;
    match setting.schemas_of(&found) {
        None => {}
        Some(Ok(tools)) => shown["tools"] = tools,
        Some(Err(why)) => shown["tools_unknown"] = json!(why),
    }
    Ok(())
}

fn record_json(item: &Item) -> Value {
    json!({"registry": {"hash": item.hash, "status": item.status.word(), "approved": item.approved, "change": item.n}})
}

fn show(shelf: &Shelf, open: &Open, kind: Kind, id: &str, level: Level, history: bool, out: &mut Out) -> Ended {
    let item = shelf.item(kind, id)?;
    let mut shown = item_at(shelf, kind, &item, level)?;
    if level >= Level::L2 {
        let setting = super::exec::setting(open, None)?;
        match kind {
            Kind::Adapter => add_tools(&mut shown, &setting, &item.id)?,
            Kind::Tool => shown["programs"] = setting.programs_of(&shelf.tool(&item.id)?),
        }
    }
    if level == Level::L3 && kind == Kind::Adapter {
        shown["golden"] = golden::kept(&open.project, &item.id);
    }
    if history {
        let changes = shelf.history(kind, &item)?;
        let line = |change: &actum_ledger::registry::Change| {
            json!({"change": change.n, "action": change.action.word(), "version": change.version, "hash": change.hash,
                "status": change.status.word(), "approved": change.approved, "actor": change.actor,
                "reason": change.reason, "approval": change.approval})
        };
        shown["history"] = changes.iter().map(line).collect();
    }
    out.result(&shown, || serde_json::to_string_pretty(&shown).unwrap_or_default());
    Ok(0)
}

fn golden_verb(open: Open, verb: GoldenVerb, signals: Option<Signals>, out: &mut Out) -> Ended {
    let (adapters, how) = match verb {
        GoldenVerb::Record { adapters, update } => (adapters, golden::How::Record { update }),
        GoldenVerb::Check { adapters } => (adapters, golden::How::Check),
    };
    let setting = super::exec::setting(&open, signals)?;
    let cases = golden::go(&open.project, &setting, &adapters, how)?;
    let is_good = cases.iter().all(|case| case["ok"] == true);
    out.result(&json!({"ok": is_good, "cases": cases}), || {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let lines = cases.iter().map(|case| {
            let detail = text(case, "detail");
            let tail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
            format!("{} {}/{}{tail}", text(case, "did"), text(case, "adapter_id"), text(case, "name"))
        });
        lines.collect::<Vec<_>>().join("\n")
    });
    Ok(u8::from(!is_good))
}
