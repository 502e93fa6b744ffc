//! Money: who may spend how much, what is held for calls under way, what they cost. Declares the port `Spend`.
//!
//! Called by whoever makes calls that cost something; implemented in `store`, where every write goes through the same
//! queue as an append and `purse` decides it. Nothing is called here and nobody is paid: an amount is reserved before a
//! call, and settled after it.

mod audit;
mod document;
mod purse;

use std::fmt;

pub use actum_contract::id::is_currency;
use actum_contract::id::{Tenant, check_name};
use actum_contract::limit::INTEGER_SAFE_MAX;

use crate::draft::Submission;
use crate::event::words;
use crate::journal::Work;

pub use audit::{Sum, audit};
pub use document::{
    MODULE, REASON_BYTES_MAX, SOURCE, TOOL_SETTLEMENT, TYPE, document_of_authorization, document_of_overrun,
    document_of_reconciliation, document_of_revocation, document_of_tool_settlement, tool_receipt_id,
};
pub use purse::{Changes, Purse, Step};

/// The currency nobody has to name: millionths of a dollar.
pub const CURRENCY: &str = "usd_micros";

/// The largest amount, in the smallest unit of its currency: what every reader of a receipt reads without rounding.
pub const AMOUNT_MAX: u64 = INTEGER_SAFE_MAX;

/// How many authorizations may stand above one another.
pub const WITHIN_DEPTH_MAX: usize = 4;

/// The longest time a reservation may wait for its settlement, in milliseconds: about a thousand years.
pub const HOLD_MS_MAX: u64 = 1 << 45;

const DAY_MS: i64 = 86_400_000;
const ID_BYTES_MAX: usize = 64;

/// Why a reservation was taken out of its caller's hands.
pub const STALE: &str = "stale_reservation";

/// Why more was committed than reserved: it was spent already.
pub const OVERRUN: &str = "overrun";

words!(
    /// What an authorization allows.
    Mode {
        Interactive = "interactive", DelegatedBudget = "delegated_budget",
        DelegatedBudgetWithThreshold = "delegated_budget_with_threshold", Deny = "deny", System = "system",
    }
);
words!(
    /// Where a reservation stands.
    ReservationState {
        Reserved = "reserved", Committed = "committed", Released = "released", ReconcileRequired = "reconcile_required",
    }
);
words!(
    /// Whether a call whose outcome nobody knows may simply be made again.
    RetryClass { SafeRetry = "safe_retry", DedupeReconcileRequired = "dedupe_reconcile_required" }
);
words!(
    /// Why money is refused.
    Code {
        AuthorizationMissing = "AUTHORIZATION_MISSING", AuthorizationRevoked = "AUTHORIZATION_REVOKED",
        AuthorizationExpired = "AUTHORIZATION_EXPIRED", ExplicitDeny = "EXPLICIT_DENY",
        BudgetExhausted = "BUDGET_EXHAUSTED", PerCall = "PER_CALL", PerDay = "PER_DAY", Threshold = "THRESHOLD",
        ApprovalRequired = "APPROVAL_REQUIRED", IdempotencyConflict = "IDEMPOTENCY_CONFLICT",
        ReconcileRequired = "RECONCILE_REQUIRED", AlreadyFinalized = "ALREADY_FINALIZED",
        InvalidTransition = "INVALID_TRANSITION", InvalidAmount = "INVALID_AMOUNT",
        CurrencyMismatch = "CURRENCY_MISMATCH", NotFound = "NOT_FOUND", Entry = "ENTRY",
    }
);

impl Code {
    /// The code in the taxonomy of reasons: what a receipt gives.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::AuthorizationMissing => "policy_denied.authorization_missing",
            Self::AuthorizationRevoked => "policy_denied.authorization_revoked",
            Self::AuthorizationExpired => "policy_denied.authorization_expired",
            Self::BudgetExhausted => "policy_denied.budget_exhausted",
            Self::PerCall => "policy_denied.per_call_exceeded",
            Self::PerDay => "policy_denied.per_day_exceeded",
            Self::Threshold => "policy_denied.threshold_exceeded",
            Self::ApprovalRequired => "policy_denied.approval_required",
            Self::IdempotencyConflict => "policy_denied.idempotency_conflict",
            Self::ReconcileRequired => "policy_denied.reconcile_required",
            Self::ExplicitDeny
            | Self::AlreadyFinalized
            | Self::InvalidTransition
            | Self::InvalidAmount
            | Self::CurrencyMismatch
            | Self::NotFound
            | Self::Entry => "policy_denied.explicit_deny",
        }
    }
}

/// What somebody may spend, and what of it is spent or held. Limits that are not there do not limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization {
    pub tenant: Tenant,
    pub id: String,
    pub owner: String,
    /// For these only, where they are named.
    pub autopilot: Option<String>,
    pub thread: Option<String>,
    pub run: Option<String>,
    pub mode: Mode,
    pub currency: String,
    pub max_total: Option<u64>,
    pub max_per_call: Option<u64>,
    pub max_per_day: Option<u64>,
    /// Above it somebody has to agree; there with mode `delegated_budget_with_threshold`, and only then.
    pub threshold: Option<u64>,
    /// Another authorization that every amount also counts against: same tenant, same currency.
    pub within: Option<String>,
    /// 0 or less in a new one: the store's clock.
    pub issued_ms: i64,
    pub expires_ms: Option<i64>,
    pub revoked_ms: Option<i64>,
    pub spent: u64,
    pub reserved: u64,
    /// The last UTC day on which something was reserved, in days since 1970, and what that day holds: amounts reserved
    /// on it, at what they came to once that is known.
    pub day: i64,
    pub day_held: u64,
}

impl Authorization {
    /// What can still be reserved; nothing if there is no end to it.
    pub fn remaining(&self) -> Option<u64> {
        self.max_total.map(|max| max.saturating_sub(self.spent).saturating_sub(self.reserved))
    }

    /// Whether two say the same, whatever has been spent since.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let terms =
            |a: &Self| Self { issued_ms: 0, revoked_ms: None, spent: 0, reserved: 0, day: 0, day_held: 0, ..a.clone() };
        terms(self) == terms(other)
    }

    /// What is wrong with it by itself.
    fn check(&self) -> Result<(), (Code, String)> {
        if !is_id(&self.id) {
            let form = "must be 1 to 64 letters, digits or . _ - and begin with a letter or a digit";
            return Err((Code::Entry, format!("the id {:?} {form}", self.id)));
        }
        let names = [("owner", Some(&self.owner)), ("autopilot", self.autopilot.as_ref())];
        let names = names.into_iter().chain([("thread", self.thread.as_ref()), ("run", self.run.as_ref())]);
        for (field, name) in names.filter_map(|(field, name)| Some((field, name?))) {
            check_name(name).map_err(|e| (Code::Entry, format!("{field} {e}")))?;
        }
        if !is_currency(&self.currency) {
            let form = "must be a name of 1 to 32 lower-case letters, digits or _, such as usd_micros";
            return Err((Code::Entry, format!("the currency {:?} {form}", self.currency)));
        }
        let limits = [self.max_total, self.max_per_call, self.max_per_day, self.threshold];
        if let Some(amount) = limits.into_iter().flatten().find(|amount| *amount > AMOUNT_MAX) {
            return Err((Code::InvalidAmount, format!("{amount} is more than {AMOUNT_MAX}, the largest amount")));
        }
        if let Some(at) = self.expires_ms.filter(|at| at.unsigned_abs() > INTEGER_SAFE_MAX) {
            return Err((Code::Entry, format!("it cannot expire at {at}: that is no time in milliseconds since 1970")));
        }
        match (self.mode, self.threshold) {
            (Mode::DelegatedBudgetWithThreshold, None) => {
                Err((Code::InvalidAmount, format!("mode {} needs a threshold", self.mode)))
            }
            (mode, Some(_)) if mode != Mode::DelegatedBudgetWithThreshold => {
                let needed = Mode::DelegatedBudgetWithThreshold;
                Err((Code::InvalidAmount, format!("mode {mode} takes no threshold; {needed} does")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether this may be the id of an authorization.
pub fn is_id(id: &str) -> bool {
    id.len() <= ID_BYTES_MAX
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The UTC day of an instant, in days since 1970.
pub fn day_of(at_ms: i64) -> i64 {
    at_ms.div_euclid(DAY_MS)
}

/// Who wants to spend, and in the course of what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    pub owner: String,
    pub autopilot: Option<String>,
    pub thread: Option<String>,
    pub run: Option<String>,
}

/// An amount held for one call, and what became of it. Authorization, run and call name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub tenant: Tenant,
    pub authorization: String,
    pub run: String,
    pub call: String,
    pub amount: u64,
    pub currency: String,
    pub state: ReservationState,
    pub retry: RetryClass,
    pub idempotency_key: Option<String>,
    /// What the provider calls it.
    pub correlation: Option<String>,
    /// What it came to, once committed.
    pub committed: Option<u64>,
    pub reason: Option<String>,
    /// The agreement of a person under which it was made.
    pub approval: Option<String>,
    /// The UTC day it counts for.
    pub day: i64,
    pub reserved_ms: i64,
    /// After this nobody believes any more that its caller lives.
    pub deadline_ms: i64,
    pub settled_ms: Option<i64>,
    pub reconciled: bool,
}

impl Reservation {
    /// What it takes of the reserved amount of its authorization.
    pub fn held(&self) -> u64 {
        match self.state {
            ReservationState::Reserved | ReservationState::ReconcileRequired => self.amount,
            ReservationState::Committed | ReservationState::Released => 0,
        }
    }
}

/// A wish to hold an amount. 0 is an amount: free calls are on record too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    pub tenant: Tenant,
    pub authorization: String,
    pub run: String,
    pub call: String,
    pub amount: u64,
    pub currency: String,
    pub retry: RetryClass,
    pub idempotency_key: Option<String>,
    /// The id of a person's agreement.
    pub approval: Option<String>,
    /// How long it may take until it is settled.
    pub hold_ms: u64,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// It cost this much: less than reserved frees the rest, more is an overrun.
    Commit { amount: u64, correlation: Option<String> },
    /// It cost nothing.
    Release { reason: String },
    /// Nobody knows: the amount stays held until somebody has found out.
    Unknown { reason: String },
}

/// The end of a reservation, and what goes into the ledger in the same transaction.
#[derive(Debug, Clone)]
pub struct Settle {
    pub tenant: Tenant,
    pub authorization: String,
    pub run: String,
    pub call: String,
    pub how: How,
    /// Somebody has found out what became of it. Without entries of its own the ledger gets one that says so.
    pub reconciles: bool,
    /// Receipts. A replay appends nothing: the first time did.
    pub entries: Vec<Submission>,
}

/// A reservation as a request left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub reservation: Reservation,
    /// As it is after that.
    pub authorization: Authorization,
    /// The request came before, and nothing was done now.
    pub replayed: bool,
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    pub code: Code,
    pub message: String,
    /// The authorization that stands in the way, as it was found.
    pub authorization: Option<Authorization>,
}

pub type Answer<T> = Result<T, Refused>;

/// Which reservations are listed, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub authorization: Option<String>,
    pub run: Option<String>,
    pub state: Option<ReservationState>,
    pub limit: usize,
}

/// The money of every tenant. Whatever a write says is durable when it returns.
pub trait Spend: Send + Sync {
    /// Issues an authorization, with an entry in the ledger that says who did and why. The same again is answered the
    /// same; other terms under the same id are a conflict. What it says of spending is not taken over.
    fn authorize<'a>(&'a self, new: Authorization, actor: &str, why: &str) -> Work<'a, Answer<Authorization>>;

    /// Ends an authorization: nothing more is reserved under it. What is held can still be settled.
    fn revoke<'a>(&'a self, tenant: &Tenant, id: &str, actor: &str, why: &str) -> Work<'a, Answer<Authorization>>;

    fn authorization<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Authorization>>;

    /// All of a tenant, ordered by id.
    fn authorizations<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Authorization>>;

    /// The most specific one for a scope: for the run, then for the thread, then for the autopilot, then for the owner;
    /// the newest among equals. Also if it is revoked, expired or denies: then nothing broader is tried.
    fn resolve<'a>(
        &'a self,
        tenant: &'a Tenant,
        scope: &'a Scope,
        currency: &'a str,
    ) -> Work<'a, Option<Authorization>>;

    /// Holds an amount, if the authorization and everything it is within allow it at this moment.
    fn reserve(&self, reserve: Reserve) -> Work<'static, Answer<Held>>;

    /// Ends a reservation and appends its entries, both or neither. One that was given up as stuck meanwhile is refused
    /// with `ReconcileRequired`, and the entries with it: the caller appends its receipt by itself then, with the outcome
    /// unknown, because the money waits for `reconciles`.
    fn settle(&self, settle: Settle) -> Work<'static, Answer<Held>>;

    fn reservation<'a>(
        &'a self,
        tenant: &'a Tenant,
        authorization: &'a str,
        run: &'a str,
        call: &'a str,
    ) -> Work<'a, Option<Reservation>>;

    fn reservations<'a>(&'a self, tenant: &'a Tenant, filter: Filter) -> Work<'a, Vec<Reservation>>;

    /// Marks what is still reserved past its deadline as in need of reconciling; with a run, all that is reserved for
    /// that run, because its worker is known to be dead. Returns what was changed.
    fn mark_stuck<'a>(&'a self, tenant: &'a Tenant, run: Option<&'a str>) -> Work<'a, Vec<Reservation>>;
}
