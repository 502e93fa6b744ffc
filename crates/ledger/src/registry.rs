//! The registry of tools and adapters: one entry of the ledger for every change, and what is read off them.
//!
//! A change carries the whole document of the version in force, so the newest entry of an item is all there is to know.
//! Its id names the item and counts its changes: of two who make change n only one is recorded, and the other hears of a
//! conflict. Called by the store, which keeps the newest change of each item as a row, and by `cli`.

use std::fmt;

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::INTEGER_SAFE_MAX;
use serde_json::{Map, Value, json};

use crate::entry::Entry;
use crate::event::{Fields, whole, words};
use crate::journal::Work;

pub const TYPE: &str = "registry_change";
pub const MODULE: &str = "registry";
pub const SOURCE: &str = "actum";

/// What an adapter may speak.
pub const FORMS: [&str; 4] = ["cli", "api", "sdk", "mcp"];

const ID_BYTES_MAX: usize = 64;

/// What is shown of an item in a list, its whole document, and why it was changed; in bytes of canonical text. Together
/// less than an entry from outside may have.
pub const SUMMARY_BYTES_MAX: usize = 16 << 10;
pub const BODY_BYTES_MAX: usize = 512 << 10;
pub const REASON_BYTES_MAX: usize = 4 << 10;

words!(
    /// What is registered.
    Kind { Tool = "tool", Adapter = "adapter" }
);
words!(
    /// What a change does.
    Action {
        Add = "add", Version = "version", Scope = "scope", Approve = "approve", Activate = "activate",
        Deprecate = "deprecate", Block = "block", Remove = "remove",
    }
);
words!(
    /// Where an item stands after a change.
    Status {
        Active = "active", Deprecated = "deprecated", Blocked = "blocked", Experimental = "experimental",
        Removed = "removed",
    }
);

/// One change of one item.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub tenant: Tenant,
    pub kind: Kind,
    pub item: String,
    /// 1 for the first change of an item, then counting up without a gap, also beyond a removal.
    pub n: u64,
    pub action: Action,
    pub version: String,
    /// SHA-256 of the canonical body, as hex.
    pub hash: String,
    pub status: Status,
    pub approved: bool,
    pub name: String,
    /// The tool an adapter is for; for a tool its own id.
    pub tool: String,
    /// One of `FORMS` for an adapter, empty for a tool.
    pub form: String,
    /// What is shown of it in a list.
    pub summary: Value,
    /// The whole normalised document of the version in force; an object.
    pub body: Value,
    pub actor: String,
    pub reason: String,
    /// What allowed it, where something had to.
    pub approval: Option<String>,
}

impl Change {
    /// The document for the ledger.
    pub fn document(&self) -> Value {
        let mut payload = json!({
            "kind": self.kind.word(), "item": self.item, "n": self.n, "action": self.action.word(),
            "version": self.version, "hash": self.hash, "status": self.status.word(), "approved": self.approved,
            "name": self.name, "tool": self.tool, "form": self.form, "summary": self.summary, "body": self.body,
            "actor": self.actor, "reason": self.reason,
        });
        if let Some(approval) = &self.approval {
            payload["approval"] = json!(approval);
        }
        json!({
            "tenantId": self.tenant.as_str(), "module": MODULE, "source": SOURCE, "type": TYPE,
            "id": entry_id(self.kind, &self.item, self.n), "payload": payload,
        })
    }
}

/// The id of the entry with change `n` of an item.
pub fn entry_id(kind: Kind, item: &str, n: u64) -> String {
    format!("{ID_PREFIX}{kind}:{item}:{n}")
}

const ID_PREFIX: &str = "registry:";

/// Whether this may be the id of a tool or an adapter.
pub fn is_id(id: &str) -> bool {
    id.len() <= ID_BYTES_MAX
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Whether an entry's id has the form that changes have; nobody else may bring such an id.
pub(crate) fn is_entry_id(id: &str) -> bool {
    let mut parts = id.strip_prefix(ID_PREFIX).unwrap_or_default().split(':');
    let kind = parts.next().and_then(Kind::named);
    let item = parts.next().filter(|item| is_id(item));
    let n = parts.next().filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    kind.is_some() && item.is_some() && n.is_some() && parts.next().is_none()
}

/// What a list of everything shows of an item, and no more: it is read whole, and often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub id: String,
    pub name: String,
    pub tool: String,
    pub form: String,
}

/// An item as its newest change left it. Its body is in the entry `entry_id(kind, id, n)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub id: String,
    pub name: String,
    pub tool: String,
    pub form: String,
    pub n: u64,
    pub version: String,
    pub hash: String,
    pub status: Status,
    pub approved: bool,
    /// JSON text.
    pub summary: String,
}

/// What one change leaves in the projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    pub kind: Kind,
    pub item: Item,
}

impl Registered {
    /// The id of the change that must be on record before this one.
    pub fn follows(&self) -> Option<String> {
        let Item { id, n, .. } = &self.item;
        (*n > 1).then(|| entry_id(self.kind, id, n - 1))
    }
}

/// What is registered, for every tenant. Changes are made by appending `Change::document`.
pub trait Registry: Send + Sync {
    /// What is there, ordered by id, without what was removed.
    fn heads<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Head>>;

    /// The same with all that is known but the bodies.
    fn items<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Item>>;

    /// One of them, also if it was removed.
    fn item<'a>(&'a self, tenant: &'a Tenant, kind: Kind, id: &'a str) -> Work<'a, Option<Item>>;
}

/// Checks the envelope and the payload of a change. Returns its id and its row if all it needs is usable; violations
/// may have been noted nonetheless.
pub(crate) fn read(top: &mut Fields<'_>, payload: &Map<String, Value>) -> Option<(String, Registered)> {
    top.literal("module", MODULE);
    top.literal("source", SOURCE);
    let id = top.get("id").and_then(Value::as_str);
    let mut p = Fields { object: payload, prefix: "payload.", violations: top.violations };
    let registered = read_payload(&mut p)?.registered();
    let expected = entry_id(registered.kind, &registered.item.id, registered.item.n);
    if id != Some(&expected) {
        top.note("id", format!("must be {expected:?}"));
    }
    Some((expected, registered))
}

/// A stored entry read back as the change it records; nothing if it records none.
pub fn body_of(entry_bytes: &[u8]) -> Option<Change> {
    let entry = Entry::open(entry_bytes).ok().filter(|entry| entry.kind == TYPE)?;
    let tenant = Tenant::new(entry.tenant.as_str()).ok()?;
    let mut violations = Vec::new();
    let mut p = Fields { object: entry.payload.as_object()?, prefix: "payload.", violations: &mut violations };
    let change = read_payload(&mut p)?.change(tenant);
    violations.is_empty().then_some(change)
}

/// A payload, read.
struct Read<'a> {
    kind: Kind,
    item: &'a str,
    n: u64,
    action: Action,
    version: &'a str,
    hash: &'a str,
    status: Status,
    approved: bool,
    name: &'a str,
    tool: &'a str,
    form: &'a str,
    summary: &'a Value,
    summary_text: String,
    body: &'a Value,
    actor: &'a str,
    reason: &'a str,
    approval: Option<&'a str>,
}

impl Read<'_> {
    fn registered(self) -> Registered {
        let item = Item {
            id: self.item.to_owned(),
            name: self.name.to_owned(),
            tool: self.tool.to_owned(),
            form: self.form.to_owned(),
            n: self.n,
            version: self.version.to_owned(),
            hash: self.hash.to_owned(),
            status: self.status,
            approved: self.approved,
            summary: self.summary_text,
        };
        Registered { kind: self.kind, item }
    }

    fn change(self, tenant: Tenant) -> Change {
        Change {
            tenant,
            kind: self.kind,
            item: self.item.to_owned(),
            n: self.n,
            action: self.action,
            version: self.version.to_owned(),
            hash: self.hash.to_owned(),
            status: self.status,
            approved: self.approved,
            name: self.name.to_owned(),
            tool: self.tool.to_owned(),
            form: self.form.to_owned(),
            summary: self.summary.clone(),
            body: self.body.clone(),
            actor: self.actor.to_owned(),
            reason: self.reason.to_owned(),
            approval: self.approval.map(str::to_owned),
        }
    }
}

fn read_payload<'a>(p: &mut Fields<'a>) -> Option<Read<'a>> {
    let kind = p.word("kind", Kind::named, &Kind::ALL.map(Kind::word));
    let item = read_id(p, "item");
    let n = p.get("n").and_then(whole).filter(|n| (1..=INTEGER_SAFE_MAX).contains(n));
    if n.is_none() {
        p.note("n", "must be a whole number of at least 1");
    }
    let action = p.word("action", Action::named, &Action::ALL.map(Action::word));
    let status = p.word("status", Status::named, &Status::ALL.map(Status::word));
    let approved = p.get("approved").and_then(Value::as_bool);
    if approved.is_none() {
        p.note("approved", "must be true or false");
    }
    let (version, name, actor) = (p.name("version"), p.name("name"), p.name("actor"));
    let reason = p.get("reason").and_then(Value::as_str).filter(|text| text.len() <= REASON_BYTES_MAX);
    if reason.is_none() {
        p.note("reason", format!("must be a string of at most {REASON_BYTES_MAX} bytes"));
    }
    let approval = p.get("approval").and_then(|_| p.name("approval"));
    let (tool, form) = (read_id(p, "tool"), read_form(p, kind));
    if kind == Some(Kind::Tool) && tool.is_some() && tool != item {
        p.note("tool", "must be the tool's own id");
    }
    check_action(p, action, n, status, approved);
    let (summary, summary_text) = read_summary(p).unzip();
    let (body, hash) = read_body(p).unzip();
    Some(Read {
        kind: kind?,
        item: item?,
        n: n?,
        action: action?,
        version: version?,
        hash: hash?,
        status: status?,
        approved: approved?,
        name: name?,
        tool: tool?,
        form: form?,
        summary: summary?,
        summary_text: summary_text?,
        body: body?,
        actor: actor?,
        reason: reason?,
        approval,
    })
}

fn read_id<'a>(p: &mut Fields<'a>, field: &str) -> Option<&'a str> {
    let id = p.get(field).and_then(Value::as_str).filter(|id| is_id(id));
    if id.is_none() {
        p.note(field, "must be 1 to 64 letters, digits or . _ - and begin with a letter or a digit");
    }
    id
}

fn read_form<'a>(p: &mut Fields<'a>, kind: Option<Kind>) -> Option<&'a str> {
    let form = p.get("form").and_then(Value::as_str);
    match kind {
        Some(Kind::Tool) if form != Some("") => p.note("form", "must be empty for a tool"),
        Some(Kind::Adapter) if form.is_none_or(|form| !FORMS.contains(&form)) => {
            p.note("form", format!("must be one of {}", FORMS.join(", ")));
        }
        _ => {}
    }
    form
}

/// An action and what it comes to must not say two things.
fn check_action(
    p: &mut Fields<'_>,
    action: Option<Action>,
    n: Option<u64>,
    status: Option<Status>,
    approved: Option<bool>,
) {
    let (Some(action), Some(status)) = (action, status) else { return };
    let expected = match action {
        Action::Activate => Some(Status::Active),
        Action::Deprecate => Some(Status::Deprecated),
        Action::Block => Some(Status::Blocked),
        Action::Remove => Some(Status::Removed),
        Action::Add | Action::Version | Action::Scope | Action::Approve => None,
    };
    if let Some(expected) = expected.filter(|expected| *expected != status) {
        p.note("status", format!("must be {expected} when action is {action}"));
    }
    if expected.is_none() && status == Status::Removed {
        p.note("status", "may be removed only when action is remove");
    }
    if action == Action::Approve && approved == Some(false) {
        p.note("approved", "must be true when action is approve");
    }
    if n == Some(1) && action != Action::Add {
        p.note("action", "must be add for the first change of an item");
    }
}

/// The summary, and its canonical text.
fn read_summary<'a>(p: &mut Fields<'a>) -> Option<(&'a Value, String)> {
    let Some(summary) = p.get("summary") else {
        p.note("summary", "is missing");
        return None;
    };
    let text = canon::canonical(summary).ok().and_then(|text| String::from_utf8(text).ok())?;
    if text.len() > SUMMARY_BYTES_MAX {
        p.note("summary", format!("must not be longer than {SUMMARY_BYTES_MAX} bytes"));
    }
    Some((summary, text))
}

/// The body, and the hash it has.
fn read_body<'a>(p: &mut Fields<'a>) -> Option<(&'a Value, &'a str)> {
    let Some(body) = p.get("body").filter(|body| body.is_object()) else {
        p.note("body", "must be an object");
        return None;
    };
    let text = canon::canonical(body).ok()?;
    if text.len() > BODY_BYTES_MAX {
        p.note("body", format!("must not be longer than {BODY_BYTES_MAX} bytes"));
    }
    let hash = p.get("hash").and_then(Value::as_str);
    if hash != Some(&Digest::sha256(&text).to_hex()) {
        p.note("hash", "must be the SHA-256 of the canonical body, as 64 hex digits");
    }
    Some((body, hash?))
}
