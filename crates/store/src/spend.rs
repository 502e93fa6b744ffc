//! What may be asked of the writer about money, and what it comes to. Shared by the dialects, which fetch and write.
//!
//! The rules are `actum_ledger::spend::Purse`; here a request meets them together with the entries it brings along.

use std::borrow::Cow;

use actum_contract::id::Tenant;
use actum_ledger::draft::{self, Submission};
use actum_ledger::journal::JournalError;
use actum_ledger::spend::{
    Answer, Authorization, Held, How, Mode, Purse, REASON_BYTES_MAX, Refused, Reservation, ReservationState, Reserve,
    RetryClass, Scope, Settle, Step, document_of_authorization, document_of_overrun, document_of_reconciliation,
    document_of_revocation,
};

use crate::request::{keys, texts};

/// Reservations that one request gives up; whoever asks comes back for more.
pub(crate) const STUCK_MAX: usize = 1_000;

/// Reservations that one list may have.
pub(crate) const LIST_RESERVATIONS_MAX: usize = 10_000;

/// The columns of an authorization and of a reservation, in the order in which they are read.
pub(crate) const AUTHORIZATION: &str = "tenant, id, owner, autopilot, thread, run, mode, currency, max_total,
    max_per_call, max_per_day, threshold, within, issued_ms, expires_ms, revoked_ms, spent, reserved, day, day_held";
pub(crate) const RESERVATION: &str = "tenant, authorization_id, run, call, amount, currency, state, retry,
    idempotency_key, correlation, committed, reason, approval, day, reserved_ms, deadline_ms, settled_ms, reconciled";

/// A write about money.
#[derive(Debug)]
pub(crate) enum SpendRequest {
    Authorize { new: Box<Authorization>, entry: Submission },
    Revoke { tenant: Tenant, id: String, entry: Submission },
    Reserve(Box<Reserve>),
    Settle(Box<Settle>),
    Stuck { tenant: Tenant, run: Option<String> },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Spent {
    Authorization(Box<Answer<Authorization>>),
    Held(Box<Answer<Held>>),
    Stuck(Vec<Reservation>),
}

impl SpendRequest {
    pub(crate) fn authorize(new: Authorization, actor: &str, why: &str) -> Result<Self, JournalError> {
        let document = document_of_authorization(&new, actor, &plain(why));
        keys(&new.within)?;
        Ok(Self::Authorize { new: Box::new(new), entry: draft::read_own(document) })
    }

    pub(crate) fn revoke(tenant: &Tenant, id: &str, actor: &str, why: &str) -> Result<Self, JournalError> {
        let entry = draft::read_own(document_of_revocation(tenant, id, actor, &plain(why)));
        let (tenant, id) = (tenant.clone(), id.to_owned());
        keys([&id])?;
        Ok(Self::Revoke { tenant, id, entry })
    }

    pub(crate) fn reserve(wish: Reserve) -> Result<Self, JournalError> {
        keys([&wish.authorization, &wish.run, &wish.call])?;
        keys(wish.idempotency_key.iter().chain(&wish.approval))?;
        texts([&wish.currency])?;
        Ok(Self::Reserve(Box::new(wish)))
    }

    pub(crate) fn settle(mut settle: Settle) -> Result<Self, JournalError> {
        keys([&settle.authorization, &settle.run, &settle.call])?;
        match &mut settle.how {
            How::Commit { correlation, .. } => keys(correlation.iter())?,
            How::Release { reason } | How::Unknown { reason } => *reason = plain(reason),
        }
        Ok(Self::Settle(Box::new(settle)))
    }

    pub(crate) fn stuck(tenant: &Tenant, run: Option<&str>) -> Result<Self, JournalError> {
        let (tenant, run) = (tenant.clone(), run.map(str::to_owned));
        keys(&run)?;
        Ok(Self::Stuck { tenant, run })
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        match self {
            Self::Authorize { new, .. } => &new.tenant,
            Self::Revoke { tenant, .. } | Self::Stuck { tenant, .. } => tenant,
            Self::Reserve(wish) => &wish.tenant,
            Self::Settle(settle) => &settle.tenant,
        }
    }

    /// The authorizations it is about; what they are within has to be known, too.
    pub(crate) fn authorizations(&self) -> impl Iterator<Item = &str> {
        let (own, above) = match self {
            Self::Authorize { new, .. } => (Some(new.id.as_str()), new.within.as_deref()),
            Self::Revoke { id, .. } => (Some(id.as_str()), None),
            Self::Reserve(wish) => (Some(wish.authorization.as_str()), None),
            Self::Settle(settle) => (Some(settle.authorization.as_str()), None),
            Self::Stuck { .. } => (None, None),
        };
        own.into_iter().chain(above)
    }

    /// Authorization, run and call of the reservation it is about.
    pub(crate) fn reservation(&self) -> Option<[&str; 3]> {
        match self {
            Self::Reserve(wish) => Some([&wish.authorization, &wish.run, &wish.call]),
            Self::Settle(settle) => Some([&settle.authorization, &settle.run, &settle.call]),
            Self::Authorize { .. } | Self::Revoke { .. } | Self::Stuck { .. } => None,
        }
    }

    /// What it wants to have in the ledger.
    pub(crate) fn entries(&self) -> &[Submission] {
        match self {
            Self::Authorize { entry, .. } | Self::Revoke { entry, .. } => std::slice::from_ref(entry),
            Self::Settle(settle) => &settle.entries,
            Self::Reserve(_) | Self::Stuck { .. } => &[],
        }
    }

    /// About how much memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        let own = match self {
            Self::Reserve(wish) => wish.run.len() + wish.call.len(),
            Self::Settle(settle) => settle.run.len() + settle.call.len(),
            Self::Authorize { .. } | Self::Revoke { .. } | Self::Stuck { .. } => 0,
        };
        own + self.entries().iter().map(Submission::bytes).sum::<usize>()
    }

    /// The answer if the ledger does not take its entries.
    pub(crate) fn not_taken(&self, message: &str) -> Spent {
        self.refused(Box::new(Refused::entry(message)))
    }

    fn refused(&self, refused: Box<Refused>) -> Spent {
        match self {
            Self::Authorize { .. } | Self::Revoke { .. } => Spent::Authorization(Box::new(Err(*refused))),
            Self::Reserve(_) | Self::Settle(_) => Spent::Held(Box::new(Err(*refused))),
            Self::Stuck { .. } => Spent::Stuck(Vec::new()),
        }
    }

    /// What it comes to, given what the purse knows: an answer; or a step that waits for its entries to be taken.
    pub(crate) fn decide(&self, purse: &Purse, now_ms: i64) -> Result<Planned<'_>, Spent> {
        let authorization = |answer| Spent::Authorization(Box::new(Ok(answer)));
        let held = |answer| Spent::Held(Box::new(Ok(answer)));
        let refused = |refused| self.refused(refused);
        let step = match self {
            Self::Authorize { new, .. } => purse.authorize(new, now_ms).map_err(refused)?.map(authorization),
            Self::Revoke { tenant, id, .. } => purse.revoke(tenant, id, now_ms).map_err(refused)?.map(authorization),
            Self::Reserve(wish) => purse.reserve(wish, now_ms).map_err(refused)?.map(held),
            Self::Settle(settle) => {
                let step = purse.settle(settle, now_ms).map_err(refused)?;
                let own = if step.is_replay() { None } else { own_entry(purse, settle, &step.answer) };
                let entries = match own {
                    Some(own) => Cow::Owned(settle.entries.iter().cloned().chain([own]).collect()),
                    None => Cow::Borrowed(settle.entries.as_slice()),
                };
                return planned(step.map(held), entries);
            }
            Self::Stuck { tenant, run } => purse.mark_stuck(tenant, run.as_deref(), now_ms).map(Spent::Stuck),
        };
        planned(step, Cow::Borrowed(self.entries()))
    }
}

/// A step, and the entries without which it is not made.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub step: Step<Spent>,
    pub entries: Cow<'a, [Submission]>,
}

/// What came before appends nothing again.
fn planned(step: Step<Spent>, entries: Cow<'_, [Submission]>) -> Result<Planned<'_>, Spent> {
    if step.is_replay() { Err(step.answer) } else { Ok(Planned { step, entries }) }
}

/// What the ledger has to be told besides what the caller brings: that a call cost more than was reserved for it, and that
/// somebody found out about one. Both are rare, and only here it is known what was reserved.
fn own_entry(purse: &Purse, settle: &Settle, held: &Held) -> Option<Submission> {
    let before = purse.reservation(&settle.tenant, &settle.authorization, &settle.run, &settle.call)?;
    let committed = held.reservation.committed.unwrap_or(0);
    let document = match settle.reconciles {
        true if settle.entries.is_empty() => document_of_reconciliation(before, &settle.how, None),
        _ if committed > before.amount => document_of_overrun(before, committed),
        _ => return None,
    };
    Some(draft::read_own(document))
}

/// Why somebody did something, as it can be kept: money must not stay held for the sake of a long message.
fn plain(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].replace('\0', "\u{fffd}")
}

/// The scopes an authorization may have to be meant, the most specific first: run, thread and autopilot, empty where
/// they are not narrowed.
pub(crate) fn scopes(scope: &Scope) -> Vec<[&str; 3]> {
    fn names(name: &Option<String>) -> impl Iterator<Item = &str> {
        name.as_deref().into_iter().chain([""])
    }
    let mut all = Vec::with_capacity(8);
    for run in names(&scope.run) {
        for thread in names(&scope.thread) {
            all.extend(names(&scope.autopilot).map(|autopilot| [run, thread, autopilot]));
        }
    }
    all
}

/// Words out of the tables.
pub(crate) fn mode_named(id: &str, word: &str) -> Result<Mode, JournalError> {
    Mode::named(word).ok_or_else(|| JournalError::Damaged(format!("authorization {id} has no known mode")))
}

pub(crate) fn state_named(call: &str, word: &str) -> Result<ReservationState, JournalError> {
    let damaged = || JournalError::Damaged(format!("the reservation of call {call} has no known state"));
    ReservationState::named(word).ok_or_else(damaged)
}

pub(crate) fn retry_named(call: &str, word: &str) -> Result<RetryClass, JournalError> {
    let damaged = || JournalError::Damaged(format!("the reservation of call {call} has no known retry class"));
    RetryClass::named(word).ok_or_else(damaged)
}

/// A name of a scope as it is stored, and back.
pub(crate) fn stored(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or("")
}

pub(crate) fn named(stored: String) -> Option<String> {
    (!stored.is_empty()).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_scope_first() {
        let scope = |run: Option<&str>, thread: Option<&str>, autopilot: Option<&str>| Scope {
            owner: "ada".into(),
            autopilot: autopilot.map(str::to_owned),
            thread: thread.map(str::to_owned),
            run: run.map(str::to_owned),
        };
        assert_eq!(scopes(&scope(None, None, None)), [["", "", ""]]);
        assert_eq!(scopes(&scope(None, Some("t"), None)), [["", "t", ""], ["", "", ""]]);
        let all = scope(Some("r"), Some("t"), Some("a"));
        let all = scopes(&all);
        assert_eq!((all.len(), all[0], all[1], all[7]), (8, ["r", "t", "a"], ["r", "t", ""], ["", "", ""]));
        assert_eq!(all[3], ["r", "", ""], "a run comes before a thread");
    }

    #[test]
    fn a_reason_is_kept_as_far_as_it_can_be() {
        assert_eq!(plain("a\0b"), "a\u{fffd}b");
        let long = "ä".repeat(REASON_BYTES_MAX);
        assert_eq!(plain(&long).len(), REASON_BYTES_MAX);
        assert!(plain(&format!("x{long}")).len() <= REASON_BYTES_MAX);
    }

    #[test]
    fn what_no_database_would_hold_is_turned_away() {
        let tenant = Tenant::new("t").unwrap();
        assert!(SpendRequest::stuck(&tenant, Some("a\0")).is_err());
        assert!(SpendRequest::revoke(&tenant, &"x".repeat(1_000), "ada", "").is_err());
        assert!(SpendRequest::stuck(&tenant, None).is_ok());
    }
}
