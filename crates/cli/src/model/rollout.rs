//! Pointers: where each stands, how it is moved, and which way a question takes by it. A move is one entry of the ledger, and
//! the row is written with it; of two who make the same move number one is recorded, and the other hears who was before him.

use actum_api::error;
use actum_contract::crash;
use actum_ledger::draft;
use actum_ledger::entry::Entry;
use actum_ledger::journal::{JournalError, Outcome};
use actum_ledger::pointer::{self as ledger, Action, Change, Pointed};
use actum_ledger::refusal::Code;
use actum_predict::Signature;
use actum_predict::evolve::Kind;
use actum_predict::pointer::{Pointer, Scope};

use serde_json::{Value, json};

use super::{catalogue, evidence};
use crate::failure::Failure;
use crate::run::shop::Open;
use crate::tool::register::By;

/// Where a test may stop the process.
const CRASH_POINTS: &[&str] = &["pointer.appending", "pointer.appended"];

/// A pointer as it stands.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    /// The newest change.
    pub n: u64,
    /// The change whose state it is.
    pub restores: u64,
    /// Of the entry of the newest change.
    pub seq: u64,
    pub pointer: Pointer,
}

impl Standing {
    /// Whether somebody went back to the state it is in.
    pub(crate) const fn is_restored(&self) -> bool {
        self.restores != self.n
    }
}

/// A change on record, with its place in the ledger and the time it was made.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    pub change: Change,
    pub seq: u64,
    pub at: String,
}

/// What is to become of a pointer.
#[derive(Debug)]
pub(crate) struct Move {
    pub action: Action,
    /// The change whose state is gone back to.
    pub restores: Option<u64>,
    pub after: Pointer,
    pub by: By,
    pub decision: Option<Value>,
}

/// Why a pointer was not moved.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Somebody else made that change.
    Conflict(Failure),
    Other(Failure),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Conflict(failure) | Refused::Other(failure) => failure,
        }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

impl From<JournalError> for Refused {
    fn from(e: JournalError) -> Self {
        Self::Other(e.into())
    }
}

/// The pointer of a signature, if it has one.
pub(crate) fn standing(open: &Open, signature: &str) -> Result<Option<Standing>, Failure> {
    // Ours are asked by the built-in agent as they are.
    if signature.starts_with(catalogue::OURS) || !ledger::is_signature(signature) {
        return Ok(None);
    }
    open.waiter.wait(open.pointers.pointer(&open.tenant, signature))?.map(read).transpose()
}

/// The same where there has to be one.
pub(crate) fn found(open: &Open, signature: &str) -> Result<Standing, Failure> {
    standing(open, signature)?.ok_or_else(|| {
        let failure = Failure::new(error::NOT_FOUND, format!("{signature} has no pointer"));
        failure.hint(format!("`actum pointer set {signature} --primary baseline --reason …` makes one"))
    })
}

pub(crate) fn all(open: &Open) -> Result<Vec<Standing>, Failure> {
    open.waiter.wait(open.pointers.pointers(&open.tenant))?.into_iter().map(read).collect()
}

fn read(row: Pointed) -> Result<Standing, Failure> {
    let value = serde_json::from_str(&row.body).unwrap_or_default();
    let pointer = state(&row.signature, &value)?;
    Ok(Standing { n: row.n, restores: row.restores, seq: row.seq, pointer })
}

/// A pointer that is on record, and says the version of the change that left it.
pub(crate) fn state(signature: &str, value: &Value) -> Result<Pointer, Failure> {
    let change = evidence::today(Kind::Pointer, json!({"version": value["version"], "after": value}))?;
    Pointer::read(&change["after"]).map_err(|flaws| {
        let lines: Vec<String> = flaws.iter().map(ToString::to_string).collect();
        let message = format!("the pointer of {signature} cannot be read by this program: {}", lines.join("; "));
        Failure::new(error::STORE_DAMAGED, message).hint("use the version of actum that wrote it, or a newer one")
    })
}

/// One change of a pointer.
pub(crate) fn past(open: &Open, signature: &str, n: u64) -> Result<Past, Failure> {
    let id = ledger::entry_id(signature, n);
    let damaged = |what: &str| Failure::new(error::STORE_DAMAGED, format!("the pointer names {id}, which {what}"));
    let bytes = open.waiter.wait(open.waiter.journal.entry(&open.tenant, &id))?;
    let bytes = bytes.ok_or_else(|| damaged("is not there"))?;
    evidence::payload_of(Kind::Pointer, &bytes)?;
    let read = ledger::change_of(&bytes).zip(Entry::open(&bytes).ok());
    let (change, Entry { seq, recorded_at: at, .. }) = read.ok_or_else(|| damaged("is no change of a pointer"))?;
    Ok(Past { change, seq, at })
}

/// All changes of a pointer, the newest first.
pub(crate) fn history(open: &Open, signature: &str, newest: u64) -> Result<Vec<Past>, Failure> {
    (1..=newest).rev().map(|n| past(open, signature, n)).collect()
}

/// Makes the next change after what was looked at.
pub(crate) fn make(open: &Open, signature: &str, before: Option<&Standing>, wanted: Move) -> Result<Change, Refused> {
    // What cannot be read again is not written.
    Pointer::read(&wanted.after.to_json()).map_err(|flaws| {
        let lines: Vec<String> = flaws.iter().map(ToString::to_string).collect();
        Failure::new(error::INPUT, lines.join("\n  ")).hint("`actum pointer canary --help` says what may be given")
    })?;
    let n = before.map_or(0, |before| before.n) + 1;
    let change = Change {
        tenant: open.tenant.clone(),
        signature: signature.to_owned(),
        n,
        action: wanted.action,
        restores: wanted.restores.unwrap_or(n),
        before: before.map(|before| before.pointer.to_json()),
        after: wanted.after.to_json(),
        actor: wanted.by.actor,
        reason: wanted.by.reason,
        decision: wanted.decision,
    };
    let submission = draft::read_own(change.document());
    crash::pass(CRASH_POINTS, "pointer.appending");
    let outcome = open.waiter.wait(open.waiter.journal.append(submission))?;
    crash::pass(CRASH_POINTS, "pointer.appended");
    match outcome {
        Outcome::Created { .. } => Ok(change),
        // Somebody of the same name has said the very same at once: one change is made, and it was his.
        Outcome::Idempotent { .. } => Err(Refused::Conflict(conflict(open, signature, n)?)),
        Outcome::Refused(refusal) if refusal.code == Code::IdempotencyConflict => {
            Err(Refused::Conflict(conflict(open, signature, n)?))
        }
        Outcome::Refused(refusal) => {
            Err(Failure::new(error::INPUT, refusal.message.clone()).details(refusal.details()).into())
        }
    }
}

/// Who did what in the place of whoever wanted to.
pub(crate) fn conflict(open: &Open, signature: &str, n: u64) -> Result<Failure, Failure> {
    let Past { change, at, .. } = past(open, signature, n)?;
    let message = format!(
        "{signature} is at revision {n} by now: {} by {} at {at}: {}",
        change.action.word(),
        change.actor,
        change.reason
    );
    let details = json!({
        "signature_id": signature, "revision": n, "action": change.action.word(), "actor": change.actor,
        "reason": change.reason, "at": at, "after": change.after,
    });
    let hint = format!("`actum pointer show {signature}` shows where it stands; then make the change again, with --if");
    Ok(Failure::new(error::POINTER_CONFLICT, message).details(details).hint(hint))
}

/// The state before the one that stands: what the change before the one it is of has left.
pub(crate) fn earlier(open: &Open, signature: &str, restores: u64) -> Result<Option<(u64, Pointer)>, Failure> {
    match restores {
        0 | 1 => Ok(None),
        n => left_by(open, signature, n - 1).map(Some),
    }
}

/// The state that a change has left, and the change it is of.
pub(crate) fn left_by(open: &Open, signature: &str, n: u64) -> Result<(u64, Pointer), Failure> {
    let Past { change, .. } = past(open, signature, n)?;
    Ok((change.restores, state(signature, &change.after)?))
}

/// The newest state before the one that stands with the same primary and nothing tried beside it.
pub(crate) fn without_canary(open: &Open, standing: &Standing) -> Result<Option<(u64, Pointer)>, Failure> {
    let signature = &standing.pointer.signature_id;
    let mut restores = standing.restores;
    while let Some((n, pointer)) = earlier(open, signature, restores)? {
        if pointer.primary_artifact == standing.pointer.primary_artifact && pointer.canary_artifact.is_none() {
            return Ok(Some((n, pointer)));
        }
        restores = n;
    }
    Ok(None)
}

/// Which signature a pointer may be made for: one that is registered and not ours.
pub(crate) fn signature(open: &Open, id: &str) -> Result<Signature, Failure> {
    refuse_ours(id)?;
    catalogue::find(&open.waiter, &open.tenant, id)
}

pub(crate) fn refuse_ours(id: &str) -> Result<(), Failure> {
    if id.starts_with(catalogue::OURS) {
        let message =
            format!("{id}: the built-in agent asks by signatures of {:?}; they have no pointers", catalogue::OURS);
        return Err(Failure::new(error::INPUT, message).hint("point signatures of your own"));
    }
    Ok(())
}

/// The flag by which a key of a scope is given.
pub(crate) const fn flag_of(scope: Scope) -> &'static str {
    match scope {
        Scope::Auto => "--key",
        Scope::Run => "--run",
        Scope::Thread => "--thread",
        Scope::Autopilot => "--agent",
        Scope::User => "--user",
    }
}
