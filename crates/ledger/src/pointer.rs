//! Pointers: which way of asking a signature is live. One entry of the ledger for every change, and what is read off them.
//!
//! A change carries the pointer before and after it, so the newest entry of a signature is all there is to know, and
//! pointer and audit are one write. Its id names the signature and counts its changes: of two who make change n only one
//! is recorded, and the other hears of a conflict. Called by the store, which keeps the newest change of each signature
//! as a row, and by `cli`. What a pointer says beyond its signature is not asked here; `predict` reads it.

use std::fmt;

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::INTEGER_SAFE_MAX;
use serde_json::{Map, Value, json};

use crate::entry::Entry;
use crate::event::{Fields, whole, words};
use crate::journal::Work;

pub const TYPE: &str = "pointer_change";
pub const MODULE: &str = "predict";
pub const SOURCE: &str = "actum";

/// Version of the payload. Readers accept this and older ones; writers write this.
pub const VERSION: u64 = 1;

const SIGNATURE_BYTES_MAX: usize = 200;

/// A pointer, what an automatic move was decided by, and why a change was made; pointers and decisions in bytes of
/// canonical text. Together less than an entry from outside may have.
pub const BODY_BYTES_MAX: usize = 64 << 10;
pub const DECISION_BYTES_MAX: usize = 64 << 10;
pub const REASON_BYTES_MAX: usize = 4 << 10;

words!(
    /// What a change does.
    Action {
        Set = "set", SetCanary = "set_canary", ClearCanary = "clear_canary", Promote = "promote",
        Rollback = "rollback",
    }
);

/// One change of the pointer of one signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub tenant: Tenant,
    pub signature: String,
    /// 1 for the first change of a pointer, then counting up without a gap.
    pub n: u64,
    pub action: Action,
    /// The change whose state this one leaves: its own number, or the one a rollback went to.
    pub restores: u64,
    /// What the change before it left; nothing for the first.
    pub before: Option<Value>,
    /// The whole pointer as this change leaves it; an object.
    pub after: Value,
    pub actor: String,
    pub reason: String,
    /// What an automatic move was decided by; an object.
    pub decision: Option<Value>,
}

impl Change {
    /// The document for the ledger.
    pub fn document(&self) -> Value {
        let mut payload = json!({
            "version": VERSION, "signature_id": self.signature, "n": self.n, "action": self.action.word(),
            "restores": self.restores, "before": self.before, "after": self.after, "actor": self.actor,
            "reason": self.reason,
        });
        if let Some(decision) = &self.decision {
            payload["decision"] = decision.clone();
        }
        json!({
            "tenantId": self.tenant.as_str(), "module": MODULE, "source": SOURCE, "type": TYPE,
            "id": entry_id(&self.signature, self.n), "payload": payload,
        })
    }
}

/// The id of the entry with change `n` of a signature's pointer, whatever letters the signature's own has.
pub fn entry_id(signature: &str, n: u64) -> String {
    format!("{ID_PREFIX}{}:{n}", &Digest::sha256(signature.as_bytes()).to_hex()[..SIGNATURE_DIGITS])
}

/// Hex digits of its hash that stand for a signature.
const SIGNATURE_DIGITS: usize = 40;

const ID_PREFIX: &str = "rollout:pointer:";

/// Whether this may be the id of a signature that has a pointer.
pub fn is_signature(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= SIGNATURE_BYTES_MAX
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"@_-./".contains(&b))
}

/// A pointer as its newest change left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointed {
    pub signature: String,
    pub n: u64,
    pub restores: u64,
    /// The place of the entry `entry_id(signature, n)` in the log.
    pub seq: u64,
    /// The pointer as JSON text.
    pub body: String,
}

/// What one change leaves in the projection, but for its place in the log, which it does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    pub signature: String,
    pub n: u64,
    pub restores: u64,
    /// The pointer as canonical JSON text.
    pub body: String,
}

impl Moved {
    /// The id of the change that must be on record before this one.
    pub fn follows(&self) -> Option<String> {
        (self.n > 1).then(|| entry_id(&self.signature, self.n - 1))
    }

    /// The row, once the change has its place.
    pub fn at(&self, seq: u64) -> Pointed {
        let Self { signature, n, restores, body } = self.clone();
        Pointed { signature, n, restores, seq, body }
    }
}

/// The pointers of every tenant. Changes are made by appending `Change::document`.
pub trait Pointers: Send + Sync {
    /// One of them.
    fn pointer<'a>(&'a self, tenant: &'a Tenant, signature: &'a str) -> Work<'a, Option<Pointed>>;

    /// All of them, ordered by signature.
    fn pointers<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Pointed>>;
}

/// Checks the envelope and the payload of a change. Returns its id and its row if all it needs is usable; violations
/// may have been noted nonetheless.
pub(crate) fn read(top: &mut Fields<'_>, payload: &Map<String, Value>) -> Option<(String, Moved)> {
    top.literal("module", MODULE);
    top.literal("source", SOURCE);
    let id = top.get("id").and_then(Value::as_str);
    let mut p = Fields { object: payload, prefix: "payload.", violations: top.violations };
    let moved = read_payload(&mut p)?.moved();
    let expected = entry_id(&moved.signature, moved.n);
    if id != Some(&expected) {
        top.note("id", format!("must be {expected:?}"));
    }
    Some((expected, moved))
}

/// A stored entry read back as the change it records; nothing if it records none.
pub fn change_of(entry_bytes: &[u8]) -> Option<Change> {
    let entry = Entry::open(entry_bytes).ok().filter(|entry| entry.kind == TYPE)?;
    let tenant = Tenant::new(entry.tenant.as_str()).ok()?;
    let mut violations = Vec::new();
    let mut p = Fields { object: entry.payload.as_object()?, prefix: "payload.", violations: &mut violations };
    let change = read_payload(&mut p)?.change(tenant);
    violations.is_empty().then_some(change)
}

/// A payload, read.
struct Read<'a> {
    signature: &'a str,
    n: u64,
    action: Action,
    restores: u64,
    before: Option<&'a Value>,
    after: &'a Value,
    after_text: String,
    actor: &'a str,
    reason: &'a str,
    decision: Option<&'a Value>,
}

impl Read<'_> {
    fn moved(self) -> Moved {
        let Self { signature, n, restores, after_text: body, .. } = self;
        Moved { signature: signature.to_owned(), n, restores, body }
    }

    fn change(self, tenant: Tenant) -> Change {
        Change {
            tenant,
            signature: self.signature.to_owned(),
            n: self.n,
            action: self.action,
            restores: self.restores,
            before: self.before.cloned(),
            after: self.after.clone(),
            actor: self.actor.to_owned(),
            reason: self.reason.to_owned(),
            decision: self.decision.cloned(),
        }
    }
}

fn read_payload<'a>(p: &mut Fields<'a>) -> Option<Read<'a>> {
    check_version(p);
    let signature = p.get("signature_id").and_then(Value::as_str).filter(|id| is_signature(id));
    if signature.is_none() {
        p.note("signature_id", format!("must be 1 to {SIGNATURE_BYTES_MAX} letters, digits or @ _ - . /"));
    }
    let (n, restores) = (read_number(p, "n"), read_number(p, "restores"));
    let action = p.word("action", Action::named, &Action::ALL.map(Action::word));
    check_action(p, action, n, restores);
    let before = read_before(p, n, signature);
    let (after, after_text) = read_pointer(p, "after", signature).unzip();
    let actor = p.name("actor");
    let reason = p.text("reason");
    if reason.is_some_and(|text| text.len() > REASON_BYTES_MAX) {
        p.note("reason", format!("must not be longer than {REASON_BYTES_MAX} bytes"));
    }
    let decision = p.get("decision").inspect(|decision| check_decision(p, decision));
    Some(Read {
        signature: signature?,
        n: n?,
        action: action?,
        restores: restores?,
        before,
        after: after?,
        after_text: after_text?,
        actor: actor?,
        reason: reason?,
        decision,
    })
}

fn check_version(p: &mut Fields<'_>) {
    match p.get("version").and_then(whole) {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => {
            p.note("version", format!("is {newer}, this program knows versions up to {VERSION}: use a newer actum"));
        }
        _ => p.note("version", format!("must be {VERSION}")),
    }
}

fn read_number(p: &mut Fields<'_>, field: &str) -> Option<u64> {
    let number = p.get(field).and_then(whole).filter(|n| (1..=INTEGER_SAFE_MAX).contains(n));
    if number.is_none() {
        p.note(field, "must be a whole number of at least 1");
    }
    number
}

/// An action must be possible at its place, and only a rollback goes back.
fn check_action(p: &mut Fields<'_>, action: Option<Action>, n: Option<u64>, restores: Option<u64>) {
    if n == Some(1) && action.is_some_and(|action| action != Action::Set) {
        p.note("action", "must be set for the first change of a pointer");
    }
    let (Some(n), Some(restores)) = (n, restores) else { return };
    if restores > n {
        p.note("restores", "must not be a later change");
    } else if restores < n && action.is_some_and(|action| action != Action::Rollback) {
        p.note("restores", format!("must be {n}: only a rollback leaves the state of another change"));
    }
}

/// What stood there before: nothing exactly for the first change.
fn read_before<'a>(p: &mut Fields<'a>, n: Option<u64>, signature: Option<&str>) -> Option<&'a Value> {
    let is_null = p.get("before").is_some_and(Value::is_null);
    match n {
        Some(1) if !is_null => p.note("before", "must be null for the first change of a pointer"),
        Some(1) => {}
        // A number that is wrong does not say which of both it had to be.
        None if is_null => {}
        _ => return read_pointer(p, "before", signature).map(|(before, _)| before),
    }
    None
}

/// A pointer of the signature, and its canonical text.
fn read_pointer<'a>(p: &mut Fields<'a>, field: &str, signature: Option<&str>) -> Option<(&'a Value, String)> {
    let Some(pointer) = p.get(field).filter(|pointer| pointer.is_object()) else {
        p.note(field, "must be an object");
        return None;
    };
    let text = canon::canonical(pointer).ok().and_then(|text| String::from_utf8(text).ok())?;
    if text.len() > BODY_BYTES_MAX {
        p.note(field, format!("must not be longer than {BODY_BYTES_MAX} bytes"));
    }
    let named = pointer.get("signature_id").and_then(Value::as_str);
    if signature.is_some() && named != signature {
        p.note(&format!("{field}.signature_id"), "must be the signature whose pointer it is");
    }
    Some((pointer, text))
}

fn check_decision(p: &mut Fields<'_>, decision: &Value) {
    if !decision.is_object() {
        p.note("decision", "must be an object");
    } else if canon::canonical(decision).is_ok_and(|text| text.len() > DECISION_BYTES_MAX) {
        p.note("decision", format!("must not be longer than {DECISION_BYTES_MAX} bytes"));
    }
}
