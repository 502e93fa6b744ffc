//! What one draft does to a log: the single decision behind every append.
//!
//! A store fills a `Book` with the facts a batch of drafts needs, asks `decide` for one draft after the other, and
//! writes down what it answered, all in one transaction. The book sees its own decisions, so a batch behaves exactly
//! as its drafts would one by one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::access::Token;
use crate::draft::{self, Draft, Submission};
use crate::entry::{Entry, Seal, seal};
use crate::event::{self, Event};
use crate::gate::{self, Gated, gate};
use crate::head::Head;
use crate::merkle::{self, Frontier, Node};
use crate::pointer::Moved;
use crate::refusal::{Code, Refusal, Violation};
use crate::registry::Registered;
use crate::state::{Last, transition};
use crate::time::{self, Moment};

/// The head of one tenant's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    pub frontier: Frontier,
    /// Hash of the last entry; zeros before the first.
    pub head: Digest,
}

impl Default for Log {
    fn default() -> Self {
        Self { frontier: Frontier::default(), head: Digest::ZERO }
    }
}

/// What the book knows of an entry that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub seq: u64,
    pub created_ns: i64,
    /// Present for the entry under a draft's own id, absent for mere dependencies.
    pub body: Option<Arc<Vec<u8>>>,
}

/// An execution within its tenant.
pub type ExecutionKey = (String, String);

#[derive(Debug, Default)]
struct Pages {
    log: Log,
    /// When the last entry was recorded.
    recorded: Option<Timestamp>,
    entries: HashMap<String, Known>,
    executions: HashMap<ExecutionKey, Last>,
}

/// The facts of one batch, by tenant. What is not in it does not exist. A list, because a batch has few tenants.
#[derive(Debug, Default)]
pub struct Book {
    tenants: Vec<(Tenant, Pages)>,
    /// By their ids, of which there is one each among all tenants.
    tokens: BTreeMap<String, Token>,
}

/// An entry to be written, and what it changes in the projections.
#[derive(Debug, Clone)]
pub struct Appended {
    pub tenant: Tenant,
    pub seq: u64,
    pub id: String,
    pub kind: String,
    pub created_ns: i64,
    pub hash: Digest,
    pub body: Arc<Vec<u8>>,
    pub event: Option<Event>,
    pub registered: Option<Box<Registered>>,
    pub moved: Option<Box<Moved>>,
    pub granted: Option<Box<Token>>,
    pub headed: Option<Box<Head>>,
    pub supersedes: Vec<String>,
    /// Inner nodes of the tree to be kept.
    pub nodes: Vec<(Node, Digest)>,
}

/// What `decide` answers.
#[derive(Debug)]
pub enum Decision {
    Append(Box<Appended>),
    /// The same entry is there already.
    Idempotent {
        id: String,
        seq: u64,
    },
    Refuse(Refusal),
}

impl Book {
    pub fn learn_log(&mut self, tenant: &Tenant, log: Log) {
        self.pages(tenant).log = log;
    }

    /// When the last entry of a log was recorded: the next one is not recorded before that.
    pub fn learn_recorded(&mut self, tenant: &Tenant, at: Timestamp) {
        let pages = self.pages(tenant);
        pages.recorded = pages.recorded.max(Some(at));
    }

    pub fn learn_entry(&mut self, tenant: &Tenant, id: String, known: Known) {
        self.pages(tenant).entries.insert(id, known);
    }

    pub fn learn_execution(&mut self, tenant: &Tenant, key: ExecutionKey, last: Last) {
        self.pages(tenant).executions.insert(key, last);
    }

    pub fn learn_token(&mut self, token: Token) {
        self.tokens.insert(token.id.clone(), token);
    }

    /// The logs as they stand after all decisions so far.
    pub fn logs(&self) -> impl Iterator<Item = (&Tenant, &Log)> {
        self.tenants.iter().map(|(tenant, pages)| (tenant, &pages.log))
    }

    pub fn knows_log(&self, tenant: &Tenant) -> bool {
        self.find(tenant).is_some()
    }

    pub fn knows_entry(&self, tenant: &Tenant, id: &str) -> bool {
        self.find(tenant).is_some_and(|pages| pages.entries.contains_key(id))
    }

    pub fn knows_execution(&self, tenant: &Tenant, key: &ExecutionKey) -> bool {
        self.find(tenant).is_some_and(|pages| pages.executions.contains_key(key))
    }

    pub fn knows_token(&self, id: &str) -> bool {
        self.tokens.contains_key(id)
    }

    fn find(&self, tenant: &Tenant) -> Option<&Pages> {
        self.tenants.iter().find(|(name, _)| name == tenant).map(|(_, pages)| pages)
    }

    fn pages(&mut self, tenant: &Tenant) -> &mut Pages {
        let at = self.tenants.iter().position(|(name, _)| name == tenant).unwrap_or_else(|| {
            self.tenants.push((tenant.clone(), Pages::default()));
            self.tenants.len() - 1
        });
        &mut self.tenants[at].1
    }

    /// Decides about one draft and takes note of the answer. `fresh_id` is used if the draft has no id of its own.
    pub fn decide(&mut self, draft: &Draft, fresh_id: impl FnOnce() -> String, now: &Moment) -> Decision {
        let pages = self.pages(&draft.tenant);
        if let Some(id) = &draft.id
            && let Some(known) = pages.entries.get(id)
        {
            return match conflict(draft, known) {
                None => Decision::Idempotent { id: id.clone(), seq: known.seq },
                Some(refusal) => Decision::Refuse(refusal),
            };
        }
        if let Err(refusal) = check_time(draft, pages.time(now.at)) {
            return Decision::Refuse(refusal);
        }
        let checked = check_lineage(draft, pages).and_then(|()| check_change(draft, pages));
        if let Err(refusal) = checked.and_then(|()| check_event(draft, pages)).and_then(|()| self.check_token(draft)) {
            return Decision::Refuse(refusal);
        }
        if let Some(token) = &draft.granted {
            self.learn_token(Token::clone(token));
        }
        Decision::Append(Box::new(self.pages(&draft.tenant).append(draft, fresh_id, now)))
    }
}

impl Book {
    /// A token has an id that no other has, whoever's; and whoever revokes one says what it is.
    fn check_token(&self, draft: &Draft) -> Result<(), Refusal> {
        let Some(token) = &draft.granted else { return Ok(()) };
        let Some(known) = self.tokens.get(&token.id) else { return Ok(()) };
        let fields = if token.n == 1 { vec!["token"] } else { known.differences(token) };
        if fields.is_empty() {
            return Ok(());
        }
        let (message, why) = match token.n {
            1 => (format!("there is a token {} already: make one with another id", token.id), "is taken"),
            _ => (format!("the change of token {} is about another one", token.id), "is not what it was made with"),
        };
        let violations = fields.iter().map(|field| Violation::new(format!("payload.{field}"), why)).collect();
        Err(Refusal::new(Code::IdempotencyConflict, message, violations))
    }
}

impl Pages {
    /// The time of the log: never before that of its last entry.
    fn time(&self, clock: Timestamp) -> Timestamp {
        self.recorded.map_or(clock, |last| last.max(clock))
    }

    /// When a draft is recorded. An event that leaves its time to the store is not created before its snapshot.
    fn moment(&self, draft: &Draft, clock: &Moment) -> Moment {
        let mut at = self.time(clock.at);
        if let (Some(event), None) = (&draft.event, &draft.created_at) {
            at = at.max(ceil_to_microsecond(event.snapshot_at));
        }
        if at == clock.at { clock.clone() } else { Moment::new(at) }
    }

    fn append(&mut self, draft: &Draft, fresh_id: impl FnOnce() -> String, now: &Moment) -> Appended {
        let now = &self.moment(draft, now);
        self.recorded = Some(now.at);
        let id = draft.id.clone().unwrap_or_else(fresh_id);
        let seq = self.log.frontier.size();
        let body = Arc::new(seal(draft, Seal { id: &id, seq, prev: self.log.head, recorded: now }));
        let hash = merkle::leaf(&body);
        let nodes = self.log.frontier.push(hash);
        self.log.head = hash;
        let created_ns = time::nanoseconds(draft.created_at.as_ref().map_or(now.at, |(_, at)| *at));
        self.entries.insert(id.clone(), Known { seq, created_ns, body: Some(Arc::clone(&body)) });
        if let Some(Event { robot, execution, state, attempt, .. }) = &draft.event {
            let last = Last { state: *state, attempt: *attempt };
            self.executions.insert((robot.clone(), execution.clone()), last);
        }
        Appended {
            tenant: draft.tenant.clone(),
            seq,
            id,
            kind: draft.kind.clone(),
            created_ns,
            hash,
            body,
            event: draft.event.clone(),
            registered: draft.registered.clone(),
            moved: draft.moved.clone(),
            granted: draft.granted.clone(),
            headed: draft.headed.clone(),
            supersedes: draft.supersedes.clone(),
            nodes,
        }
    }
}

/// The draft that a stored entry was made of. Nothing if no draft could have become this entry.
pub(crate) fn draft_of(entry: &Entry) -> Option<Box<Draft>> {
    let mut document = entry.to_json();
    let fields = document.as_object_mut()?;
    for added in ["seq", "recordedAt", "prev", "hash"] {
        fields.remove(added);
    }
    if entry.kind == event::TYPE {
        fields.remove("id");
    }
    // The bound on the producer's clock held when the entry was recorded; it must not fail a replay.
    match draft::read_value(document, Timestamp::MAX) {
        Submission::Draft(draft) => Some(draft),
        Submission::Rejected(_) => None,
    }
}

/// What an entry of a stored log had changed when it was appended, given the log before it; the log moves on.
/// This is how projections are made anew. Nothing if the stored text is not an entry that could have been appended.
pub fn replay(tenant: &Tenant, log: &mut Log, body: &[u8]) -> Option<Appended> {
    let entry = Entry::open(body).ok()?;
    let draft = draft_of(&entry)?;
    let hash = merkle::leaf(body);
    let nodes = log.frontier.push(hash);
    log.head = hash;
    Some(Appended {
        tenant: tenant.clone(),
        seq: entry.seq,
        id: entry.id,
        kind: entry.kind,
        created_ns: time::nanoseconds(time::parse(&entry.created_at).ok()?),
        hash,
        body: Arc::new(body.to_vec()),
        event: draft.event,
        registered: draft.registered,
        moved: draft.moved,
        granted: draft.granted,
        headed: draft.headed,
        supersedes: draft.supersedes,
        nodes,
    })
}

fn ceil_to_microsecond(at: Timestamp) -> Timestamp {
    let floor = Moment::new(at).at;
    if floor == at { at } else { floor.saturating_add(SignedDuration::from_micros(1)).unwrap_or(at) }
}

/// An event that leaves its time to the store brings none by its snapshot: a log does not follow a clock that is far ahead.
fn check_time(draft: &Draft, now: Timestamp) -> Result<(), Refusal> {
    let (Some(event), None) = (&draft.event, &draft.created_at) else { return Ok(()) };
    let max = SignedDuration::from_secs(limit::CLOCK_SKEW_MAX_SECONDS);
    match event.snapshot_at.duration_since(now) > max {
        false => Ok(()),
        true => {
            let why = format!("is more than {} seconds in the future", limit::CLOCK_SKEW_MAX_SECONDS);
            Err(Refusal::validation(vec![Violation::new("payload.snapshotAt", why)]))
        }
    }
}

/// Every dependency exists for the tenant and, for an event, was created at or before its snapshot.
fn check_lineage(draft: &Draft, pages: &Pages) -> Result<(), Refusal> {
    let snapshot = draft.event.as_ref().map(|e| time::nanoseconds(e.snapshot_at));
    let mut violations = Vec::new();
    for (field, ids) in [("dependsOnLedgerIds", &draft.depends_on), ("supersedes", &draft.supersedes)] {
        for id in ids {
            let message = match (pages.entries.get(id), snapshot) {
                (None, _) => format!("{id:?} is not in the ledger of this tenant"),
                (Some(known), Some(at)) if field == "dependsOnLedgerIds" && known.created_ns > at => {
                    format!("{id:?} was created after snapshotAt")
                }
                _ => continue,
            };
            violations.push(Violation::new(format!("lineage.{field}"), message));
        }
    }
    if violations.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = violations.iter().map(|v| v.message.as_str()).collect();
    let message = format!("lineage cannot be justified: {}", list.join("; "));
    Err(Refusal::new(Code::UnknownLineage, message, violations))
}

/// A change of the registry, of a pointer, of a token or of a head follows the one before it.
fn check_change(draft: &Draft, pages: &Pages) -> Result<(), Refusal> {
    let (follows, n, what) = if let Some(registered) = &draft.registered {
        let Registered { kind, item } = &**registered;
        (registered.follows(), item.n, format!("{kind} {:?}", item.id))
    } else if let Some(moved) = &draft.moved {
        (moved.follows(), moved.n, format!("the pointer of {:?}", moved.signature))
    } else if let Some(token) = &draft.granted {
        (token.follows(), token.n, format!("token {}", token.id))
    } else if let Some(head) = &draft.headed {
        (head.follows(), head.n, format!("the workspace {:?}", head.workspace))
    } else {
        return Ok(());
    };
    match follows.filter(|before| !pages.entries.contains_key(before)) {
        None => Ok(()),
        Some(before) => {
            let message = format!("change {n} of {what} cannot be made: there is no change {}", n - 1);
            let violation = Violation::new("payload.n", format!("{before:?} is not in the ledger of this tenant"));
            Err(Refusal::new(Code::UnknownLineage, message, vec![violation]))
        }
    }
}

fn check_event(draft: &Draft, pages: &Pages) -> Result<(), Refusal> {
    let Some(event) = &draft.event else { return Ok(()) };
    judge(pages.executions.get(&(event.robot.clone(), event.execution.clone())).copied(), event)
}

/// Whether an event may follow what its execution was last in: the state machine and the gate.
pub(crate) fn judge(last: Option<Last>, event: &Event) -> Result<(), Refusal> {
    // Whether a first event may be `failed` is the gate's doing; whether it reports the block rightly is judged below.
    let blocks = gate::blocks(event.coherence, event.policy);
    transition(last, event.state, event.attempt, blocks).map_err(|why| {
        let from = last.map_or("nothing".to_owned(), |l| format!("{} (attempt {})", l.state, l.attempt));
        let message = format!("{from} cannot be followed by {} (attempt {}): {why}", event.state, event.attempt);
        Refusal::new(Code::InvalidTransition, message, vec![Violation::new("state", why)])
    })?;
    gate(Gated {
        coherence: event.coherence,
        policy: event.policy,
        dry_run: event.dry_run,
        state: event.state,
        reports_block: event.reports_block,
    })
    .map_err(|why| Refusal::new(Code::CoherenceBlocked, why, vec![Violation::new("payload.coherenceStatus", why)]))
}

/// The differing paths, if the draft is not the entry already stored under its id.
fn conflict(draft: &Draft, known: &Known) -> Option<Refusal> {
    let stored = match known.body.as_deref().map(|body| Entry::open(body)) {
        Some(Ok(entry)) => entry,
        _ => return Some(conflict_at(vec![Violation::new("", "the stored entry cannot be read")])),
    };
    let Some(ours) = content(draft) else {
        return Some(conflict_at(vec![Violation::new("payload", "cannot be read again")]));
    };
    let theirs = json!({
        "robotId": stored.robot, "module": stored.module, "source": stored.source, "type": stored.kind,
        "state": stored.state, "payload": stored.payload, "lineage": stored.lineage.map(as_set),
    });
    let mut violations = Vec::new();
    differences(&theirs, &ours, "", &mut violations);
    (!violations.is_empty()).then(|| conflict_at(violations))
}

fn conflict_at(violations: Vec<Violation>) -> Refusal {
    let paths: Vec<_> = violations.iter().map(|v| v.path.as_str()).collect();
    let message = format!("a different entry is recorded under the same identity; it differs in {}", paths.join(", "));
    Refusal::new(Code::IdempotencyConflict, message, violations)
}

/// What makes two documents under one identity the same: everything but the clock of the producer.
fn content(draft: &Draft) -> Option<Value> {
    let lineage = draft.lineage.as_deref().map(canon::parse).transpose().ok()?;
    Some(json!({
        "robotId": draft.robot, "module": draft.module, "source": draft.source, "type": draft.kind,
        "state": draft.state, "payload": canon::parse(&draft.payload).ok()?, "lineage": lineage.map(as_set),
    }))
}

/// Dependency ids are a set: order and repetition carry no meaning.
fn as_set(mut lineage: Value) -> Value {
    if let Some(Value::Array(ids)) = lineage.get_mut("dependsOnLedgerIds") {
        ids.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        ids.dedup();
    }
    lineage
}

/// Paths at which two values differ, by canonical text (so that 1 and 1.0 do not).
fn differences(stored: &Value, given: &Value, path: &str, out: &mut Vec<Violation>) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (stored, given) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                differences(a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), &join(key), out);
                // Null and absent are different documents.
                if a.contains_key(key) != b.contains_key(key) && out.last().is_none_or(|v| v.path != join(key)) {
                    out.push(Violation::new(join(key), "is present in only one of the two"));
                }
            }
        }
        _ if canon::canonical(stored) == canon::canonical(given) => {}
        _ => out.push(Violation::new(path, format!("recorded as {}, given as {}", short(stored), short(given)))),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((cut, _)) => format!("{}…", &text[..cut]),
    }
}
