//! What may be asked of the writer about runs, checked before it takes a place in the queue.
//!
//! What one database would refuse must not reach a batch, where it would take its neighbours down with it.

use actum_contract::id::Tenant;
use actum_ledger::draft::Submission;
use actum_ledger::journal::JournalError;
use actum_ledger::run::{Claim, Commit, End, Held, NewEvent, NewRun, RunState, Settle};
use serde_json::Value;

/// Runs that one claim may take.
const CLAIM_RUNS_MAX: usize = 1_000;

/// Text that becomes part of a key, in bytes: what PostgreSQL's indexes hold, with room for three of them.
const KEY_BYTES_MAX: usize = 800;

/// The longest lease, in milliseconds: about a thousand years, and far from where adding to it would overflow.
const LEASE_MS_MAX: u64 = 1 << 45;

/// A write about runs.
#[derive(Debug)]
pub(crate) enum RunRequest {
    Submit { runs: Vec<NewRun>, entries: Vec<Submission> },
    Claim(Claim),
    Commit(Box<Commit>, Code),
    Settle(Box<Settle>, Code),
    Renew { lease_ms: i64, held: Vec<Held> },
    Cancel { tenant: Tenant, run: String },
}

/// The code of the error in an outcome. Read where the request is made, not by the one thread that writes.
#[derive(Debug)]
pub(crate) struct Code(pub(crate) Option<String>);

impl Code {
    fn of(outcome: Option<&str>) -> Self {
        // Most outcomes have no error and need not be read for it.
        let read = |text: &str| serde_json::from_str::<Value>(text).ok();
        let value = outcome.filter(|text| text.contains("\"error\"")).and_then(read);
        Self(value.and_then(|v| v.pointer("/error/code").and_then(Value::as_str).map(str::to_owned)))
    }
}

impl RunRequest {
    pub(crate) fn submit(runs: Vec<NewRun>, entries: Vec<Submission>) -> Result<Self, JournalError> {
        for NewRun { tenant: _, id, submission, item, robot, place, planned: _, metadata, depends_on } in &runs {
            keys([id, submission, place].into_iter().chain(depends_on))?;
            texts([item, robot, metadata])?;
        }
        Ok(Self::Submit { runs, entries })
    }

    pub(crate) fn claim(mut claim: Claim) -> Result<Self, JournalError> {
        keys([&claim.place, &claim.owner].into_iter().chain(&claim.submission).chain(&claim.run).chain(&claim.dead))?;
        claim.runs_max = claim.runs_max.min(CLAIM_RUNS_MAX);
        claim.lease_ms = claim.lease_ms.min(LEASE_MS_MAX);
        Ok(Self::Claim(claim))
    }

    pub(crate) fn commit(commit: Commit) -> Result<Self, JournalError> {
        keys([&commit.held.run])?;
        texts(&commit.metadata)?;
        events(&commit.events)?;
        let mut code = Code(None);
        if let Some(End { state, outcome, capsule }) = &commit.end {
            if !state.is_over() && *state != RunState::Queued {
                return Err(JournalError::Unusable(format!("a run cannot end as {state}")));
            }
            keys(capsule)?;
            texts(outcome)?;
            code = Code::of(outcome.as_deref());
        }
        Ok(Self::Commit(Box::new(commit), code))
    }

    pub(crate) fn settle(settle: Settle) -> Result<Self, JournalError> {
        if settle.to == RunState::Running {
            return Err(JournalError::Unusable("a run begins to run by being claimed".into()));
        }
        keys([&settle.run])?;
        texts(settle.metadata.iter().chain(&settle.outcome))?;
        events(&settle.events)?;
        let code = Code::of(settle.outcome.as_deref());
        Ok(Self::Settle(Box::new(settle), code))
    }

    pub(crate) fn renew(lease_ms: u64, held: Vec<Held>) -> Result<Self, JournalError> {
        keys(held.iter().map(|h| &h.run))?;
        Ok(Self::Renew { lease_ms: lease_ms.min(LEASE_MS_MAX) as i64, held })
    }

    pub(crate) fn cancel(tenant: &Tenant, run: &str) -> Result<Self, JournalError> {
        let (tenant, run) = (tenant.clone(), run.to_owned());
        keys([&run])?;
        Ok(Self::Cancel { tenant, run })
    }

    /// What it wants to have in the ledger.
    pub(crate) fn entries(&self) -> &[Submission] {
        match self {
            Self::Submit { entries, .. } => entries,
            Self::Commit(commit, _) => &commit.entries,
            Self::Settle(settle, _) => &settle.entries,
            Self::Claim(_) | Self::Renew { .. } | Self::Cancel { .. } => &[],
        }
    }

    /// Whether it changes nothing but runs of its own, which stay what they are to all others.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            Self::Claim(_) | Self::Renew { .. } | Self::Cancel { .. } => true,
            Self::Commit(commit, _) => commit.entries.is_empty() && commit.end.is_none(),
            Self::Submit { .. } | Self::Settle(..) => false,
        }
    }

    /// About how much memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let events = |events: &[NewEvent]| events.iter().map(|e| e.kind.len() + e.body.len()).sum::<usize>();
        let own = match self {
            Self::Submit { runs, .. } => runs.iter().map(|r| r.id.len() + r.metadata.len()).sum(),
            Self::Commit(commit, _) => {
                let outcome = commit.end.as_ref().map_or(0, |end| text(&end.outcome));
                events(&commit.events) + text(&commit.metadata) + outcome
            }
            Self::Settle(settle, _) => events(&settle.events) + text(&settle.metadata) + text(&settle.outcome),
            Self::Renew { held, .. } => held.iter().map(|h| h.run.len()).sum(),
            Self::Claim(_) | Self::Cancel { .. } => 0,
        };
        own + self.entries().iter().map(Submission::bytes).sum::<usize>()
    }
}

pub(crate) fn keys<'a>(all: impl IntoIterator<Item = &'a String>) -> Result<(), JournalError> {
    for key in all {
        if key.len() > KEY_BYTES_MAX {
            return Err(JournalError::Unusable(format!("a name of {} bytes is too long to be a key", key.len())));
        }
        texts([key])?;
    }
    Ok(())
}

pub(crate) fn texts<'a>(all: impl IntoIterator<Item = &'a String>) -> Result<(), JournalError> {
    match all.into_iter().any(|text| text.contains('\0')) {
        true => Err(JournalError::Unusable("text with a NUL in it cannot be stored".into())),
        false => Ok(()),
    }
}

fn events(all: &[NewEvent]) -> Result<(), JournalError> {
    texts(all.iter().flat_map(|event| [&event.kind, &event.body]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error() {
        let code = |text: &str| Code::of(Some(text)).0;
        assert_eq!(code(r#"{"error":{"code":"X","message":"m"}}"#).as_deref(), Some("X"));
        assert_eq!(code(r#"{"result":{"error":{"code":"X"}}}"#), None);
        assert_eq!(code(r#"{"error":null}"#), None);
        assert_eq!(code("not JSON, \"error\""), None);
        assert_eq!(Code::of(None).0, None);
    }

    #[test]
    fn what_no_database_would_hold_is_turned_away() {
        let tenant = Tenant::new("t").unwrap();
        assert!(RunRequest::cancel(&tenant, "a\0b").is_err());
        assert!(RunRequest::cancel(&tenant, &"x".repeat(KEY_BYTES_MAX + 1)).is_err());
        assert!(RunRequest::cancel(&tenant, &"x".repeat(KEY_BYTES_MAX)).is_ok());
    }
}
