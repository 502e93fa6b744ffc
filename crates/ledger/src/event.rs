//! The execution event: its words, and the rules of its fields. Reports every violation, not the first.

use std::fmt;

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::id::check_name;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::refusal::Violation;
use crate::time;

pub const TYPE: &str = "execution_event";
pub const MODULE: &str = "agent-builder";
pub const CONTRACT_VERSION: &str = "v1";
pub const COHERENCE_BLOCKED: &str = "COHERENCE_BLOCKED";

/// A closed set of words as they stand in documents.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|v| v.word() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}
pub(crate) use words;

words!(
    /// Where an execution stands.
    State { Planned = "planned", Running = "running", Succeeded = "succeeded", Failed = "failed", Cancelled = "cancelled" }
);
words!(
    /// How well the inputs of an execution fit together at its snapshot.
    Coherence { Coherent = "coherent", Partial = "partial", Stale = "stale" }
);
words!(
    /// What to do about partial inputs.
    CoherencePolicy { Block = "block", DraftOnly = "draft_only" }
);

/// What the rules need to know of an accepted event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub robot: String,
    pub execution: String,
    pub attempt: u64,
    pub state: State,
    pub coherence: Coherence,
    pub policy: CoherencePolicy,
    pub dry_run: bool,
    pub snapshot_at: Timestamp,
    /// `failed` with COHERENCE_BLOCKED, retryable false.
    pub reports_block: bool,
}

impl Event {
    /// The id that the identity (robot, execution, attempt, state) has in its tenant's ledger. Being a function of
    /// the identity, the store's one unique key on ids makes the same event impossible to record twice.
    pub fn id(&self) -> String {
        id_of(&self.robot, &self.execution, self.attempt, self.state)
    }
}

/// The id of the event with this identity.
pub fn id_of(robot: &str, execution: &str, attempt: u64, state: State) -> String {
    let identity = json!([robot, execution, attempt, state.word()]);
    let text = canon::canonical(&identity).unwrap_or_default();
    format!("{ID_PREFIX}{}", &Digest::sha256(&text).to_hex()[..ID_HEX])
}

const ID_PREFIX: &str = "event:";
const ID_HEX: usize = 32;

/// Whether an id has the form that execution events get from the store; nobody else may bring such an id.
pub fn is_event_id(id: &str) -> bool {
    id.strip_prefix(ID_PREFIX)
        .is_some_and(|hex| hex.len() == ID_HEX && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Reads fields of one object and notes everything that is wrong with them.
pub(crate) struct Fields<'a> {
    pub object: &'a Map<String, Value>,
    pub prefix: &'static str,
    pub violations: &'a mut Vec<Violation>,
}

impl<'a> Fields<'a> {
    pub(crate) fn note(&mut self, field: &str, message: impl Into<String>) {
        self.violations.push(Violation::new(format!("{}{field}", self.prefix), message));
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field)
    }

    /// A required string that is not blank.
    pub(crate) fn text(&mut self, field: &str) -> Option<&'a str> {
        match self.get(field) {
            None => self.note(field, "is missing; it must be a non-empty string"),
            Some(Value::String(s)) if !s.trim().is_empty() => return Some(s),
            Some(_) => self.note(field, "must be a non-empty string"),
        }
        None
    }

    /// A required string that becomes a key.
    pub(crate) fn name(&mut self, field: &str) -> Option<&'a str> {
        let text = self.text(field)?;
        match check_name(text) {
            Ok(()) => Some(text),
            Err(e) => {
                self.note(field, e.to_string());
                None
            }
        }
    }

    pub(crate) fn literal(&mut self, field: &str, expected: &str) {
        if self.get(field).and_then(Value::as_str) != Some(expected) {
            self.note(field, format!("must be {expected:?}"));
        }
    }

    pub(crate) fn word<T>(&mut self, field: &str, named: impl Fn(&str) -> Option<T>, all: &[&str]) -> Option<T> {
        let found = self.get(field).and_then(Value::as_str).and_then(named);
        if found.is_none() {
            self.note(field, format!("must be one of {}", all.join(", ")));
        }
        found
    }

    pub(crate) fn timestamp(&mut self, field: &str) -> Option<(&'a str, Timestamp)> {
        let text = self.text(field)?;
        match time::parse(text) {
            Ok(at) => Some((text, at)),
            Err(e) => {
                self.note(field, e.to_string());
                None
            }
        }
    }

    /// An optional field that must be an object where it is present.
    fn optional_object(&mut self, field: &str) -> Option<&'a Map<String, Value>> {
        match self.get(field) {
            None => None,
            Some(Value::Object(object)) => Some(object),
            Some(_) => {
                self.note(field, "must be an object");
                None
            }
        }
    }
}

/// A whole number, also when it is written with a fraction of zero.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0 && *n < 9e15).map(|n| n as u64))
}

/// Checks the state and the payload of an event; the envelope around them is `draft`'s. Returns the event if the
/// fields that identify it are all usable; violations may have been noted nonetheless.
pub(crate) fn read(top: &mut Fields<'_>, payload: &Map<String, Value>, created_at: Option<Timestamp>) -> Option<Event> {
    let state = top.word("state", State::named, &State::ALL.map(State::word));
    let robot = top.name("robotId");
    top.literal("module", MODULE);
    top.literal("source", MODULE);

    let mut p = Fields { object: payload, prefix: "payload.", violations: top.violations };
    let execution = p.name("executionId");
    for field in ["workflowVersion", "agentVersion", "target", "action"] {
        p.text(field);
    }
    p.literal("executionContractVersion", CONTRACT_VERSION);
    let attempt = p.get("attempt").and_then(whole).filter(|n| *n >= 1);
    if attempt.is_none() {
        p.note("attempt", "must be a whole number of at least 1");
    }
    let snapshot_at = p.timestamp("snapshotAt").map(|(_, at)| at);
    if let (Some(snapshot), Some(created)) = (snapshot_at, created_at)
        && snapshot > created
    {
        p.note("snapshotAt", "must not be later than createdAt");
    }
    let coherence = p.word("coherenceStatus", Coherence::named, &Coherence::ALL.map(Coherence::word));
    let dry_run = p.get("dryRun").and_then(Value::as_bool);
    if dry_run.is_none() {
        p.note("dryRun", "must be true or false");
    }
    let policy = match p.get("coherencePolicy") {
        None => Some(CoherencePolicy::Block),
        Some(_) => p.word("coherencePolicy", CoherencePolicy::named, &CoherencePolicy::ALL.map(CoherencePolicy::word)),
    };
    p.optional_object("externalRefs");
    if p.get("durationMs").is_some_and(|v| v.as_f64().is_none_or(|n| n < 0.0)) {
        p.note("durationMs", "must be a number of at least 0");
    }
    let reports_block = read_outcome(&mut p, state, coherence);
    Some(Event {
        robot: robot?.to_owned(),
        execution: execution?.to_owned(),
        attempt: attempt?,
        state: state?,
        coherence: coherence?,
        policy: policy?,
        dry_run: dry_run?,
        snapshot_at: snapshot_at?,
        reports_block,
    })
}

/// `result`, `error` and `cancelReason` against the state. Tells whether the event reports a blocked gate.
fn read_outcome(p: &mut Fields<'_>, state: Option<State>, coherence: Option<Coherence>) -> bool {
    p.optional_object("result");
    let error = p.optional_object("error");
    if let Some(error) = error {
        let mut e = Fields { object: error, prefix: "payload.error.", violations: p.violations };
        e.text("code");
        e.text("message");
        if e.get("retryable").is_none_or(|v| !v.is_boolean()) {
            e.note("retryable", "must be true or false");
        }
    }
    if p.get("cancelReason").is_some() {
        p.text("cancelReason");
    }
    let has = |p: &Fields<'_>, field| p.get(field).is_some();
    match state {
        Some(State::Failed) if !has(p, "error") => p.note("error", "must be present when state is failed"),
        Some(State::Cancelled) if !has(p, "cancelReason") => {
            p.note("cancelReason", "must be present when state is cancelled");
        }
        _ => {}
    }
    if matches!(state, Some(State::Failed | State::Cancelled)) && has(p, "result") {
        p.note("result", "must not be present when state is failed or cancelled");
    }
    if state.is_some_and(|s| s != State::Failed) && has(p, "error") {
        p.note("error", "may be present only when state is failed");
    }
    if state.is_some_and(|s| s != State::Cancelled) && has(p, "cancelReason") {
        p.note("cancelReason", "may be present only when state is cancelled");
    }

    let code = error.and_then(|e| e.get("code")).and_then(Value::as_str);
    let retryable = error.and_then(|e| e.get("retryable")).and_then(Value::as_bool);
    if coherence == Some(Coherence::Stale) {
        if state.is_some_and(|s| s != State::Failed) {
            p.note("coherenceStatus", "stale requires state failed");
        }
        if code != Some(COHERENCE_BLOCKED) {
            p.note("error.code", "must be COHERENCE_BLOCKED when coherenceStatus is stale");
        }
        if retryable != Some(false) {
            p.note("error.retryable", "must be false when coherenceStatus is stale");
        }
    }
    state == Some(State::Failed) && code == Some(COHERENCE_BLOCKED) && retryable == Some(false)
}
