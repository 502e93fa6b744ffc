//! From files to registered tools and adapters: read with positions, checked against each other, and entered as changes
//! that the ledger keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::execution::{Flaw, Verdict, allows};
use actum_contract::tool::{
    Adapter, Auth, Entry, Injection, Interface, Server, Settlement, Transport, check_chain, summary_of_adapter,
    summary_of_tool,
};
use actum_ledger::registry::{Action, BODY_BYTES_MAX, Change, Item, Kind, Status};
use serde_json::{Value, json};

use super::shelf::Shelf;
use crate::approval::{self, Request};
use crate::document::Document;
use crate::failure::Failure;
use crate::project::Project;

const SCHEMA_OF_ADAPTER: &str = "`actum schema adapter` prints what may stand in it";

/// Files in one folder; more than this is no folder of tools.
const FILES_MAX: usize = 20_000;

/// A file that was read.
pub(crate) struct Read {
    document: Document,
    is: Is,
    body: Value,
}

enum Is {
    Tool(Box<Entry>),
    Adapter(Box<Adapter>),
}

impl Read {
    pub(crate) fn kind(&self) -> Kind {
        match self.is {
            Is::Tool(_) => Kind::Tool,
            Is::Adapter(_) => Kind::Adapter,
        }
    }

    pub(crate) fn id(&self) -> &str {
        match &self.is {
            Is::Tool(entry) => &entry.tool_id,
            Is::Adapter(adapter) => &adapter.adapter_id,
        }
    }

    fn version(&self) -> &str {
        match &self.is {
            Is::Tool(entry) => &entry.version,
            Is::Adapter(adapter) => &adapter.version,
        }
    }

    fn wrong(&self, key: &str, message: impl Into<String>) -> Failure {
        let failure = Failure::new(error::INPUT, format!("{}: {}", self.id(), message.into()));
        placed(failure, &self.document, key)
    }
}

fn placed(failure: Failure, document: &Document, field: &str) -> Failure {
    match document.place_of_path(field) {
        Some((place, _)) => failure.at(place),
        None => failure,
    }
}

/// Reads files and whole folders. Tools come first, so that adapters find theirs.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Read>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() { gather(path, &mut files)? } else { files.push(path.clone()) }
    }
    if files.is_empty() {
        let message = "there is no tool or adapter in what was named";
        return Err(
            Failure::new(error::INPUT, message).hint("name files, or folders with .yaml or .json files in them")
        );
    }
    // A file that is named twice, or beside its folder, is one file.
    let mut known = BTreeSet::new();
    files.retain(|file| known.insert(file.canonicalize().unwrap_or_else(|_| file.clone())));
    let mut found: Vec<Read> = Vec::new();
    let mut seen: BTreeMap<(&str, String), String> = BTreeMap::new();
    for file in files {
        let one = read_one(&file)?;
        let name = one.document.name.clone();
        if let Some(other) = seen.insert((one.kind().word(), one.id().to_owned()), name) {
            let key = if one.kind() == Kind::Tool { "tool_id" } else { "adapter_id" };
            return Err(one.wrong(key, format!("the same id stands in {other}")).hint("give one of them another id"));
        }
        found.push(one);
    }
    found.sort_by_key(|one| one.kind() == Kind::Adapter);
    Ok(found)
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let unreadable = |e: std::io::Error| Failure::of_io(format!("cannot read {}: {e}", folder.display()), &e);
    let mut entries: Vec<_> = std::fs::read_dir(folder).map_err(unreadable)?.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Ok(kind) = entry.file_type() else { continue };
        let is_ours = ["yaml", "yml", "json"].iter().any(|ending| name.ends_with(&format!(".{ending}")));
        // Golden outputs and schemas are no tools.
        if kind.is_dir() && !name.starts_with('.') && name != "golden" {
            gather(&path, files)?;
        } else if kind.is_file() && is_ours && name != "schema.json" {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(Failure::new(error::INPUT, format!("there are more than {FILES_MAX} files")));
        }
    }
    Ok(())
}

fn read_one(file: &Path) -> Result<Read, Failure> {
    let document = Document::read(file)?;
    let value = document.value()?;
    if value.get("adapter_id").is_some() {
        let order = document.keys_of(&["interface", "cli", "arg_mapping"]);
        let adapter = Adapter::read(&value, &order).map_err(|flaws| flawed(&flaws, &document, "adapter"))?;
        let read = Read { is: Is::Adapter(Box::new(adapter)), body: Adapter::normal(&value, &order), document };
        if let Is::Adapter(adapter) = &read.is
            && let Some(problem) = actum_adapters::transform::check(adapter).into_iter().next()
        {
            let field = problem.path.clone().unwrap_or_else(|| "transforms".into());
            return Err(read.wrong(&field, format!("{field}: {problem}")).hint(SCHEMA_OF_ADAPTER));
        }
        return Ok(read);
    }
    let entry = Entry::read(&value).map_err(|flaws| flawed(&flaws, &document, "tool"))?;
    for (name, operation) in &entry.operations {
        for schema in [&operation.parameters, &operation.result].into_iter().flatten() {
            if let Err(problem) = actum_adapters::transform::check_schema(schema) {
                let failure = Failure::new(error::INPUT, format!("the schema of operation {name} is bad: {problem}"))
                    .hint("write it as JSON Schema 2020-12, with all it refers to in `$defs`");
                return Err(placed(failure, &document, &format!("operations.{name}")));
            }
        }
    }
    Ok(Read { is: Is::Tool(Box::new(entry)), body: value, document })
}

fn flawed(flaws: &[Flaw], document: &Document, what: &str) -> Failure {
    let lines: Vec<String> = flaws.iter().map(ToString::to_string).collect();
    let failure = Failure::new(error::INPUT, format!("the {what} is bad\n  {}", lines.join("\n  ")))
        .details(json!({"flaws": flaws}))
        .hint(format!("`actum schema {what}` prints what may stand in it"));
    let places: Vec<_> = flaws.iter().filter_map(|flaw| document.place_of_path(&flaw.field)).collect();
    // What stands there is shown rather than what is missing.
    let place = places.iter().find(|(_, is_there)| *is_there).or(places.first()).map(|(place, _)| place.clone());
    match place {
        Some(place) if flaws.iter().any(Flaw::is_hidden) => failure.at(place.without_source()),
        Some(place) => failure.at(place),
        None => failure,
    }
}

/// Who changes something, and why.
#[derive(Debug, Clone)]
pub(crate) struct By {
    pub actor: String,
    pub reason: String,
}

/// Registers what was read: each is new, a new version, or what it was already. Checked as a whole before the first.
pub(crate) fn register(shelf: &Shelf, project: &Project, all: &[Read], by: &By) -> Result<Vec<Value>, Failure> {
    for read in all {
        fits(shelf, read, all)?;
    }
    let mut changes = Vec::new();
    for read in all {
        changes.push((read, change(shelf, project, read, by)?));
    }
    let mut done = Vec::new();
    for (read, change) in changes {
        let action = change.as_ref().map_or("unchanged", |change| change.action.word());
        if let Some(change) = &change {
            shelf.change(change)?;
        }
        let mut shown =
            json!({"kind": read.kind().word(), "id": read.id(), "version": read.version(), "action": action});
        if let Some(change) = &change {
            shown["hash"] = json!(change.hash);
            shown["approved"] = json!(change.approved);
        }
        done.push(shown);
    }
    Ok(done)
}

/// Whether an adapter fits its tool and its fallbacks.
fn fits(shelf: &Shelf, read: &Read, all: &[Read]) -> Result<(), Failure> {
    let Is::Adapter(adapter) = &read.is else { return Ok(()) };
    let beside = all.iter().find_map(|other| match &other.is {
        Is::Tool(entry) if entry.tool_id == adapter.tool_id => Some((**entry).clone()),
        _ => None,
    });
    let tool = match beside {
        Some(entry) => entry,
        None => shelf.tool(&adapter.tool_id).map(|found| found.is).map_err(|failure| {
            let wrong = read.wrong("tool_id", failure.message);
            wrong.hint("add the tool first, or both at once: `actum tool add tools`")
        })?,
    };
    if let Some(problem) = misfit(adapter, &tool) {
        return Err(read.wrong(problem.0, problem.1).hint(problem.2));
    }
    let find = |id: &str| {
        let beside = all.iter().find_map(|other| match &other.is {
            Is::Adapter(adapter) if adapter.adapter_id == id => Some((**adapter).clone()),
            _ => None,
        });
        beside.or_else(|| shelf.adapter(id).ok().map(|found| found.is))
    };
    check_chain(adapter, &find).map(|_| ()).map_err(|e| {
        read.wrong("fallback", e.to_string())
            .hint("a fallback is another registered adapter of the same tool, and the way ends")
    })
}

type Misfit = (&'static str, String, &'static str);

/// In what an adapter goes beyond its tool, if it does: the field, what is wrong, what would be right.
pub(crate) fn misfit(adapter: &Adapter, tool: &Entry) -> Option<Misfit> {
    let scope = &tool.scope;
    if let Some(wanted) = &adapter.tool_version
        && let (Ok(wanted_), Ok(version)) = (semver::VersionReq::parse(wanted), semver::Version::parse(&tool.version))
        && !wanted_.matches(&version)
    {
        let why = format!("it is for versions {wanted} of {}, and {} is {}", tool.tool_id, tool.tool_id, tool.version);
        return Some(("tool_version", why, "register the version of the tool it was made for"));
    }
    let unknown = |operation: &&&str| !tool.operations.is_empty() && !tool.operations.contains_key(**operation);
    if let Some(operation) = adapter.interface.operations().iter().find(unknown) {
        let known = tool.operations.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let why = format!("{} has no operation {operation:?}; it has {known}", tool.tool_id);
        return Some(("interface", why, "write it into `operations` of the tool, or map another"));
    }
    match &adapter.interface {
        Interface::Api(api) if api.auth == Auth::Bearer && !tool.secrets.contains_key("token") => {
            let why = format!("{} has no secret `token` to sign in with", tool.tool_id);
            Some(("auth_method", why, "write `secrets: {token: env:NAME}` into the tool"))
        }
        Interface::Cli(cli) => {
            // Adapters need nobody's word, so the program itself has to be on the list.
            (!scope.commands.contains(&cli.executable)).then(|| {
                let why = format!("{} may not run {:?}", tool.tool_id, cli.executable);
                ("executable", why, "name it in `scope.commands` of the tool")
            })
        }
        Interface::Api(api) => reach(&api.base_url, tool)
            .map(|why| ("base_url", why, "name the host in `scope.endpoints`, with `network: on`")),
        // A function of a package can run anything its interpreter can.
        Interface::Sdk(sdk) => (!scope.commands.iter().any(|known| known == sdk.language.program())).then(|| {
            let why = format!("{} may not run {:?}", tool.tool_id, sdk.language.program());
            ("language", why, "name it in `scope.commands` of the tool")
        }),
        Interface::Mcp(mcp) => match (tool.servers.get(&mcp.server), mcp.transport) {
            (Some(Server::Command(_)), Transport::Stdio) => None,
            (Some(Server::Url(url)), Transport::Http) => {
                reach(url, tool).map(|why| ("server", why, "name the host in `scope.endpoints`, with `network: on`"))
            }
            (Some(_), _) => Some((
                "transport",
                format!("the server {:?} of {} speaks another transport", mcp.server, tool.tool_id),
                "stdio goes with a command, http with a url",
            )),
            (None, _) => Some((
                "server",
                format!("{} names no server {:?}", tool.tool_id, mcp.server),
                "name it in `servers` of the tool: its command or its url",
            )),
        },
    }
}

fn reach(url: &str, tool: &Entry) -> Option<String> {
    let (host, port) = place_of(url)?;
    let allowed = if tool.scope.network { tool.scope.endpoints.as_slice() } else { &[] };
    match allows(allowed, &[], &host, Some(port)) {
        Verdict::Allowed => None,
        Verdict::Blocked { why, .. } => Some(format!("{} may not reach {host}:{port}: {why}", tool.tool_id)),
    }
}

/// Host and port of an address.
pub(crate) fn place_of(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let place = rest.split(['/', '?', '#']).next()?;
    let usual = if scheme == "https" { 443 } else { 80 };
    match place.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            Some((host.trim_matches(['[', ']'].as_slice()).to_owned(), port.parse().ok()?))
        }
        _ => Some((place.trim_matches(['[', ']'].as_slice()).to_owned(), usual)),
    }
}

/// What registering comes to; nothing if it is registered so already.
fn change(shelf: &Shelf, project: &Project, read: &Read, by: &By) -> Result<Option<Change>, Failure> {
    let text = canon::canonical(&read.body).map_err(|e| Failure::new(error::INPUT, e.to_string()))?;
    if text.len() > BODY_BYTES_MAX {
        let message = format!("it is {} bytes long, at most {BODY_BYTES_MAX} are kept", text.len());
        return Err(read.wrong("name", message).hint("make it shorter"));
    }
    let hash = Digest::sha256(&text).to_hex();
    let before = shelf.record(read.kind(), read.id())?;
    let in_force = before.as_ref().filter(|item| item.status != Status::Removed);
    if let Some(item) = in_force {
        if item.hash == hash {
            return Ok(None);
        }
        if item.version == read.version() {
            let message = format!("version {} is registered with other content", item.version);
            return Err(Failure { row: error::named(error::REGISTRY_CONFLICT), ..read.wrong("version", message) }
                .hint("a version never changes: give the new content a new one"));
        }
    }
    if let Some(item) = &before {
        reused(shelf, read, item, &hash)?;
    }
    let mut change = draft(shelf, read, before.as_ref(), hash, by);
    // Also compared with what was removed: to take something away and bring it back is no way around anybody.
    let known = before.as_ref().map(|item| shelf.body(read.kind(), item)).transpose()?;
    let was = known.and_then(|body| Entry::read(&body).ok());
    if let (Some(item), Some(was), Is::Tool(entry)) = (&before, was, &read.is) {
        let widened = widened(entry, &was);
        if in_force.is_none() {
            // It is added again.
        } else if entry.scope != was.scope || !widened.is_empty() {
            change.action = Action::Scope;
        }
        if !widened.is_empty() {
            let agreed = json!({"id": change.item, "version": change.version, "hash": change.hash, "from": item.hash});
            let wants = widened.clone();
            let shown = json!({"change": "scope", "version": change.version, "wider": widened});
            let request = Request {
                tool: change.item.clone(),
                tenant: &shelf.tenant,
                wants,
                agreed: &agreed,
                shown,
                configured: Value::Null,
                exact: Value::Null,
            };
            change.approval = Some(approval::take(&project.folder()?, &request)?);
            change.approved = true;
        }
    }
    // What somebody has put out of use stays so, whatever the file says.
    if in_force.is_some_and(|item| item.status == Status::Blocked) {
        change.status = Status::Blocked;
    }
    Ok(Some(change))
}

/// In what a tool may do more than before, or is watched less.
fn widened(now: &Entry, was: &Entry) -> Vec<String> {
    let mut found: Vec<String> = now.scope.widens(&was.scope).into_iter().map(|what| format!("scope {what}")).collect();
    let other_secret = |(name, reference): &(&String, &String)| was.secrets.get(*name) != Some(*reference);
    found.extend(now.secrets.iter().filter(other_secret).map(|(name, reference)| format!("secret {name} {reference}")));
    found.extend(now.injections.iter().filter(|one| !was.injections.contains(one)).map(Injection::summary));
    // One that its programs did not get before, and get now.
    let is_bared = |name: &&String| now.is_variable(name) && was.secrets.contains_key(*name) && !was.is_variable(name);
    found.extend(now.secrets.keys().filter(is_bared).map(|name| format!("secret {name} as a variable")));
    let other_server = |(name, server): &(&String, &Server)| was.servers.get(*name) != Some(*server);
    found.extend(now.servers.iter().filter(other_server).map(|(name, _)| format!("server {name}")));
    if was.provenance.checksum.is_some() && now.provenance.checksum.is_none() {
        found.push("no checksum".into());
    }
    found.extend(Settlement::widens(now.settlement.as_ref(), was.settlement.as_ref()));
    if was.first_use && !now.first_use {
        found.push("first use without a person".into());
    }
    found
}

/// A version that was in force before may come back as it was, and not as something else; not even after a removal.
fn reused(shelf: &Shelf, read: &Read, item: &Item, hash: &str) -> Result<(), Failure> {
    let earlier = shelf.history(read.kind(), item)?.into_iter().find(|change| change.version == read.version());
    match earlier {
        Some(change) if change.hash != hash => {
            let message = format!("version {} was registered with other content before", change.version);
            Err(Failure { row: error::named(error::REGISTRY_CONFLICT), ..read.wrong("version", message) }
                .hint("a version never changes: give the new content a new one"))
        }
        _ => Ok(()),
    }
}

fn draft(shelf: &Shelf, read: &Read, before: Option<&Item>, hash: String, by: &By) -> Change {
    let (name, tool, form, summary, status, approved) = match &read.is {
        Is::Tool(entry) => (
            entry.name.clone(),
            entry.tool_id.clone(),
            String::new(),
            summary_of_tool(entry),
            entry.status.word(),
            entry.approval.is_some(),
        ),
        Is::Adapter(adapter) => (
            adapter.name.clone(),
            adapter.tool_id.clone(),
            adapter.interface.word().to_owned(),
            summary_of_adapter(adapter),
            adapter.status.word(),
            // To stay within what its tool may do needs nobody's word; to go beyond it does.
            false,
        ),
    };
    let is_new = before.is_none_or(|item| item.status == Status::Removed);
    Change {
        tenant: shelf.tenant.clone(),
        kind: read.kind(),
        item: read.id().to_owned(),
        n: before.map_or(1, |item| item.n + 1),
        action: if is_new { Action::Add } else { Action::Version },
        version: read.version().to_owned(),
        hash,
        status: Status::named(status).unwrap_or(Status::Active),
        approved,
        name,
        tool,
        form,
        summary,
        body: read.body.clone(),
        actor: by.actor.clone(),
        reason: by.reason.clone(),
        approval: None,
    }
}

/// A change of what is registered already: approved, blocked, and so on.
pub(crate) fn turn(shelf: &Shelf, kind: Kind, name: &str, action: Action, by: &By) -> Result<Item, Failure> {
    let item = shelf.item(kind, name)?;
    let status = match action {
        Action::Block => Status::Blocked,
        Action::Deprecate => Status::Deprecated,
        Action::Activate => Status::Active,
        Action::Remove => Status::Removed,
        _ => item.status,
    };
    let approved = item.approved || action == Action::Approve;
    if (status, approved) == (item.status, item.approved) {
        return Ok(item);
    }
    if action == Action::Remove && kind == Kind::Tool {
        let users: Vec<String> =
            shelf.heads(Kind::Adapter)?.into_iter().filter(|head| head.tool == item.id).map(|head| head.id).collect();
        if !users.is_empty() {
            let message = format!("{} is still called by {}", item.id, users.join(", "));
            return Err(Failure::new(error::REGISTRY_CONFLICT, message).hint("remove the adapters first"));
        }
    }
    if action == Action::Remove && kind == Kind::Adapter {
        let mut users = Vec::new();
        for head in shelf.heads(Kind::Adapter)?.into_iter().filter(|head| head.tool == item.tool) {
            let fallback = shelf.adapter(&head.id)?.is.fallback;
            users.extend(fallback.filter(|fallback| fallback.adapter_id == item.id).map(|_| head.id));
        }
        if !users.is_empty() {
            let message = format!("{} still fall back on {}", users.join(", "), item.id);
            return Err(Failure::new(error::REGISTRY_CONFLICT, message)
                .hint("remove them first, or register versions of them that do not"));
        }
    }
    let body = shelf.body(kind, &item)?;
    let change = Change {
        tenant: shelf.tenant.clone(),
        kind,
        item: item.id.clone(),
        n: item.n + 1,
        action,
        version: item.version.clone(),
        hash: item.hash.clone(),
        status,
        approved,
        name: item.name.clone(),
        tool: item.tool.clone(),
        form: item.form.clone(),
        summary: serde_json::from_str(&item.summary).unwrap_or(Value::Null),
        body: (*body).clone(),
        actor: by.actor.clone(),
        reason: by.reason.clone(),
        approval: None,
    };
    shelf.change(&change)?;
    shelf.record(kind, &item.id)?.ok_or_else(|| Failure::new(error::INTERNAL, "the change is not there"))
}
