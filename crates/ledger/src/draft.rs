//! Reading one document that wants to become an entry: the envelope, all violations, and the parts prepared for
//! the writer, so that the store's one writing thread copies bytes instead of walking trees.

use std::borrow::Cow;

use actum_contract::canon;
use actum_contract::id::{Tenant, check_name};
use actum_contract::limit;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::access::{self, Token};
use crate::event::{self, Event, Fields};
use crate::head::{self, Head};
use crate::pointer::{self, Moved};
use crate::refusal::{Code, Refusal, Violation};
use crate::registry::{self, Registered};
use crate::reserved;

/// A document on its way to the ledger: valid by itself, or refused before the ledger was asked.
#[derive(Debug, Clone)]
pub enum Submission {
    Draft(Box<Draft>),
    Rejected(Box<Rejection>),
}

impl Submission {
    /// About how much memory it holds, for those who bound what waits.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Draft(draft) => draft.payload.len() + draft.lineage.as_ref().map_or(0, Vec::len),
            Self::Rejected(rejection) => rejection.document.len(),
        }
    }
}

/// A refused document as the dead-letter list keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Whose it is, as far as the document says so.
    pub tenant: Option<Tenant>,
    pub refusal: Refusal,
    /// Canonical text if it was JSON, else the bytes as they came, cut at a bound.
    pub document: Vec<u8>,
}

/// A valid document. Whether it may be appended depends on what the ledger holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub tenant: Tenant,
    /// The id it brings or, for an execution event, the id of its identity. Others get a fresh one.
    pub id: Option<String>,
    pub robot: Option<String>,
    pub module: String,
    pub source: String,
    pub kind: String,
    pub state: Option<String>,
    /// The producer's word, as text and as instant.
    pub created_at: Option<(String, Timestamp)>,
    /// Canonical text.
    pub payload: Vec<u8>,
    /// Canonical text.
    pub lineage: Option<Vec<u8>>,
    /// Sorted, without duplicates.
    pub depends_on: Vec<String>,
    pub supersedes: Vec<String>,
    pub event: Option<Event>,
    pub registered: Option<Box<Registered>>,
    pub moved: Option<Box<Moved>>,
    pub granted: Option<Box<Token>>,
    pub headed: Option<Box<Head>>,
}

const TOP: [&str; 10] =
    ["id", "tenantId", "robotId", "module", "source", "type", "state", "createdAt", "payload", "lineage"];

/// Reads one document that comes from outside. `now` is the reader's clock, for the bound on the producer's.
pub fn read(text: &[u8], now: Timestamp) -> Submission {
    if text.len() > limit::EVENT_BYTES_MAX {
        let message = format!("entry of {} bytes is larger than {}", text.len(), limit::EVENT_BYTES_MAX);
        return reject(None, vec![Violation::at(message, 1, 1)], text);
    }
    match canon::parse(text) {
        Ok(value) => match reserved::forged(&value) {
            None => read_value(value, now),
            Some(violation) => reject(tenant_of(&value), vec![violation], &written(&value)),
        },
        Err(e) => reject(None, vec![Violation::at(e.message, e.line, e.column)], text),
    }
}

/// Reads a document that is a value already, or one that was recorded.
pub fn read_value(value: Value, now: Timestamp) -> Submission {
    read_of(value, &Clock::Producer { now })
}

/// Reads a document of Actum's own. The store gives it its time, also if it is an execution event.
pub fn read_own(value: Value) -> Submission {
    read_of(value, &Clock::Store)
}

/// Whose clock gives an entry its `createdAt`.
enum Clock {
    /// The producer's; it may not be far ahead of `now`. Entries of other types than events may leave it out.
    Producer { now: Timestamp },
    /// The store's, unless the entry brings one.
    Store,
}

fn read_of(value: Value, clock: &Clock) -> Submission {
    let mut violations = Vec::new();
    let draft = match &value {
        // What is nested deeper could not be read back.
        deep if depth_exceeds(deep, limit::JSON_DEPTH_MAX) => {
            violations.push(Violation::new("", format!("nested deeper than {} levels", limit::JSON_DEPTH_MAX)));
            None
        }
        Value::Object(object) => read_object(object, clock, &mut violations),
        _ => {
            violations.push(Violation::new("", "must be an object"));
            None
        }
    };
    match draft {
        Some(draft) if violations.is_empty() => Submission::Draft(Box::new(draft)),
        _ => reject(tenant_of(&value), violations, &written(&value)),
    }
}

/// Whether lists and objects stand in each other more often than that.
fn depth_exceeds(value: &Value, levels: usize) -> bool {
    let Some(left) = levels.checked_sub(1) else { return value.is_array() || value.is_object() };
    match value {
        Value::Array(all) => all.iter().any(|one| depth_exceeds(one, left)),
        Value::Object(all) => all.values().any(|one| depth_exceeds(one, left)),
        _ => false,
    }
}

fn tenant_of(document: &Value) -> Option<Tenant> {
    document.get("tenantId").and_then(Value::as_str).and_then(|t| Tenant::new(t).ok())
}

fn written(document: &Value) -> Vec<u8> {
    canon::canonical(document).unwrap_or_else(|_| document.to_string().into_bytes())
}

fn reject(tenant: Option<Tenant>, violations: Vec<Violation>, text: &[u8]) -> Submission {
    let document = text[..text.len().min(limit::DEAD_LETTER_BYTES_MAX)].to_vec();
    Submission::Rejected(Box::new(Rejection { tenant, refusal: Refusal::validation(violations), document }))
}

fn read_object(object: &Map<String, Value>, clock: &Clock, violations: &mut Vec<Violation>) -> Option<Draft> {
    let mut top = Fields { object, prefix: "", violations };
    for key in object.keys().filter(|k| !TOP.contains(&k.as_str())) {
        top.note(key, "is not a field of an entry; put it into payload");
    }
    let tenant = top.name("tenantId").and_then(|t| Tenant::new(t).ok());
    let kind = top.text("type");
    let is_event = kind == Some(event::TYPE);
    let created_at = match top.get("createdAt") {
        None if !is_event || matches!(clock, Clock::Store) => None,
        _ => top.timestamp("createdAt"),
    };
    if let (Some((_, at)), Clock::Producer { now }) = (&created_at, clock)
        && *at > now.saturating_add(SignedDuration::from_secs(limit::CLOCK_SKEW_MAX_SECONDS)).unwrap_or(*now)
    {
        top.note("createdAt", format!("lies more than {} seconds in the future", limit::CLOCK_SKEW_MAX_SECONDS));
    }
    let empty = Map::new();
    let payload = match top.get("payload") {
        Some(Value::Object(payload)) => payload,
        None => {
            top.note("payload", "is missing; it must be an object");
            &empty
        }
        Some(_) => {
            top.note("payload", "must be an object");
            &empty
        }
    };

    let (mut event, mut registered, mut moved, mut granted, mut headed) = (None, None, None, None, None);
    let id = if is_event {
        event = event::read(&mut top, payload, created_at.map(|(_, at)| at));
        if top.get("id").is_some() {
            top.note("id", "must not be present: execution events get their id from the ledger");
        }
        event.as_ref().map(Event::id)
    } else if kind == Some(registry::TYPE) {
        let (id, row) = registry::read(&mut top, payload).unzip();
        registered = row.map(Box::new);
        id
    } else if kind == Some(pointer::TYPE) {
        let (id, row) = pointer::read(&mut top, payload).unzip();
        moved = row.map(Box::new);
        id
    } else if kind == Some(access::TYPE) {
        let (id, row) = access::read(&mut top, payload, tenant.as_ref()).unzip();
        granted = row.map(Box::new);
        id
    } else if kind == Some(head::TYPE) {
        let (id, row) = head::read(&mut top, payload).unzip();
        headed = row.map(Box::new);
        id
    } else {
        read_other(&mut top, kind)
    };
    let (depends_on, supersedes) = read_lineage(&mut top, is_event);

    // Entries are read again from their own text: by a replay, and to be compared.
    for field in ["payload", "lineage"] {
        let found = top.get(field).map(|value| canon::unsafe_doubles(value, field));
        for (path, number) in found.unwrap_or_default() {
            top.note(&path, format!("number {number} has more digits than a double keeps: write it as a string"));
        }
    }

    let text = |field: &str| object.get(field).and_then(Value::as_str).map(str::to_owned);
    let lineage = object.get("lineage").map(canon::canonical).transpose().ok()?;
    Some(Draft {
        tenant: tenant?,
        id,
        robot: text("robotId"),
        module: text("module")?,
        source: text("source")?,
        kind: text("type")?,
        state: text("state"),
        created_at: created_at.map(|(text, at)| (text.to_owned(), at)),
        payload: canon::canonical(object.get("payload")?).ok()?,
        lineage,
        depends_on,
        supersedes,
        event,
        registered,
        moved,
        granted,
        headed,
    })
}

/// The rules for entries that are not execution events. Returns the id the entry brings along.
fn read_other(top: &mut Fields<'_>, kind: Option<&str>) -> Option<String> {
    if kind.is_some_and(|k| !is_lower_snake(k)) {
        top.note("type", "must be execution_event or another lower_snake name");
    }
    top.text("module");
    top.text("source");
    if top.get("robotId").is_some() {
        top.name("robotId");
    }
    if top.get("state").is_some() {
        top.name("state");
    }
    top.get("id")?;
    let id = top.text("id")?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    if id.len() > limit::ENTRY_ID_BYTES_MAX || !id.bytes().all(allowed) {
        top.note("id", "must be 1 to 128 letters, digits or . _ : -");
    } else if event::is_event_id(id) {
        top.note("id", "has the form reserved for execution events");
    }
    Some(id.to_owned())
}

fn is_lower_snake(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

fn read_lineage(top: &mut Fields<'_>, is_event: bool) -> (Vec<String>, Vec<String>) {
    let lineage = match top.get("lineage") {
        Some(Value::Object(lineage)) => lineage,
        None if !is_event => return Default::default(),
        None => {
            top.note("lineage", "is missing; it must be an object");
            return Default::default();
        }
        Some(_) => {
            top.note("lineage", "must be an object");
            return Default::default();
        }
    };
    let mut l = Fields { object: lineage, prefix: "lineage.", violations: top.violations };
    if l.get("rerunOfExecutionId").is_some() {
        l.text("rerunOfExecutionId");
    }
    (read_ids(&mut l, "dependsOnLedgerIds", is_event), read_ids(&mut l, "supersedes", false))
}

fn read_ids(l: &mut Fields<'_>, field: &str, required: bool) -> Vec<String> {
    let items = match l.get(field) {
        Some(Value::Array(items)) if items.len() <= limit::LINEAGE_IDS_MAX => items,
        Some(Value::Array(_)) => {
            l.note(field, format!("must not name more than {} entries", limit::LINEAGE_IDS_MAX));
            return Vec::new();
        }
        None if !required => return Vec::new(),
        _ => {
            l.note(field, "must be a list of ledger ids");
            return Vec::new();
        }
    };
    if items.is_empty() && required {
        l.note(field, "must not be empty");
    }
    let mut ids = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        match item.as_str().map(|id| (id, check_name(id))) {
            Some((id, Ok(()))) => ids.push(id.to_owned()),
            Some((_, Err(e))) => l.note(&format!("{field}[{i}]"), e.to_string()),
            None => l.note(&format!("{field}[{i}]"), "must be a non-empty string"),
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

impl Draft {
    /// The ids of other entries that the rules will ask about.
    pub fn asks_about(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let registered = self.registered.as_ref().and_then(|registered| registered.follows());
        let moved = || self.moved.as_ref().and_then(|moved| moved.follows());
        let granted = || self.granted.as_ref().and_then(|token| token.follows());
        let headed = || self.headed.as_ref().and_then(|head| head.follows());
        let follows = registered.or_else(moved).or_else(granted).or_else(headed);
        let named = self.depends_on.iter().chain(&self.supersedes).map(|id| Cow::Borrowed(id.as_str()));
        named.chain(follows.map(Cow::Owned))
    }

    /// The token that the rules will ask about, whoever has one of that id.
    pub fn asks_about_token(&self) -> Option<&str> {
        self.granted.as_ref().map(|token| token.id.as_str())
    }

    /// The document again, for the dead-letter list.
    pub fn document(&self) -> Vec<u8> {
        let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap_or_default();
        let mut document = json!({
            "tenantId": self.tenant.as_str(), "module": self.module, "source": self.source, "type": self.kind,
            "payload": parse(&self.payload),
        });
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                document[key] = value;
            }
        };
        put("id", self.id.clone().filter(|_| self.event.is_none()).map(Value::String));
        put("robotId", self.robot.clone().map(Value::String));
        put("state", self.state.clone().map(Value::String));
        put("createdAt", self.created_at.as_ref().map(|(text, _)| json!(text)));
        put("lineage", self.lineage.as_deref().map(parse));
        canon::canonical(&document).unwrap_or_default()
    }

    /// A valid draft that the ledger refused, as the dead-letter list keeps it.
    pub fn rejected(&self, refusal: Refusal) -> Rejection {
        debug_assert_ne!(refusal.code, Code::Validation);
        let mut document = self.document();
        document.truncate(limit::DEAD_LETTER_BYTES_MAX);
        Rejection { tenant: Some(self.tenant.clone()), refusal, document }
    }
}
