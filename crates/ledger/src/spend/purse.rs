//! The rules of money: what a request does to authorizations and reservations, given what is stored of them.
//!
//! A store fills a `Purse` with the facts a batch needs, asks it about one request after the other, applies what it
//! answers, and writes every row that changed once, all in one transaction. The purse sees what was applied, so a batch
//! behaves exactly as its requests would one by one. Never writes, and never looks at a clock.

use std::collections::HashMap;

use actum_contract::id::Tenant;

use super::{
    AMOUNT_MAX, Authorization, Code, HOLD_MS_MAX, Held, How, Mode, OVERRUN, Refused, Reservation, ReservationState,
    Reserve, STALE, Settle, WITHIN_DEPTH_MAX, day_of,
};

/// A refusal on its way. Boxed, because most requests are not refused.
type Decided<T> = Result<Step<T>, Box<Refused>>;

/// What a request comes to: an answer, and the rows as they are after it.
#[derive(Debug)]
pub struct Step<T> {
    pub answer: T,
    authorizations: Vec<Authorization>,
    reservations: Vec<Reservation>,
}

impl<T> Step<T> {
    fn nothing(answer: T) -> Self {
        Self { answer, authorizations: Vec::new(), reservations: Vec::new() }
    }

    /// The same step with its answer in another form.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Step<U> {
        let Self { answer, authorizations, reservations } = self;
        Step { answer: form(answer), authorizations, reservations }
    }

    /// Whether there is nothing to write: the request came before.
    pub fn is_replay(&self) -> bool {
        self.authorizations.is_empty() && self.reservations.is_empty()
    }
}

/// A row, and whether the database has it like this.
#[derive(Debug)]
struct Kept<T> {
    row: T,
    new: bool,
    changed: bool,
}

/// Rows in the order in which they came to be known.
#[derive(Debug)]
struct Rows<K, T> {
    rows: Vec<Kept<T>>,
    at: HashMap<K, usize>,
}

impl<K, T> Default for Rows<K, T> {
    fn default() -> Self {
        Self { rows: Vec::new(), at: HashMap::new() }
    }
}

impl<K: std::hash::Hash + Eq, T> Rows<K, T> {
    fn learn(&mut self, key: K, row: T) {
        if !self.at.contains_key(&key) {
            self.at.insert(key, self.rows.len());
            self.rows.push(Kept { row, new: false, changed: false });
        }
    }

    fn put(&mut self, key: K, row: T) {
        match self.at.get(&key) {
            Some(at) => {
                let kept = &mut self.rows[*at];
                (kept.row, kept.changed) = (row, true);
            }
            None => {
                self.at.insert(key, self.rows.len());
                self.rows.push(Kept { row, new: true, changed: true });
            }
        }
    }

    fn changes(&self, new: bool) -> impl Iterator<Item = &T> {
        self.rows.iter().filter(move |kept| kept.changed && kept.new == new).map(|kept| &kept.row)
    }
}

/// Authorization, run and call.
type Triple = (String, String, String);

#[derive(Debug, Default)]
struct Pages {
    authorizations: Rows<String, Authorization>,
    reservations: Rows<Triple, Reservation>,
}

impl Pages {
    fn authorization(&self, id: &str) -> Option<&Authorization> {
        self.authorizations.at.get(id).map(|at| &self.authorizations.rows[*at].row)
    }

    fn reservation(&self, key: &Triple) -> Option<&Reservation> {
        self.reservations.at.get(key).map(|at| &self.reservations.rows[*at].row)
    }
}

/// The facts of one batch, by tenant. What is not in it does not exist. A list, because a batch has few tenants.
#[derive(Debug, Default)]
pub struct Purse(Vec<(Tenant, Pages)>);

/// Rows to be written, in the order in which they came to be.
#[derive(Debug, Default)]
pub struct Changes<'a> {
    pub new_authorizations: Vec<&'a Authorization>,
    pub authorizations: Vec<&'a Authorization>,
    pub new_reservations: Vec<&'a Reservation>,
    pub reservations: Vec<&'a Reservation>,
}

impl Changes<'_> {
    pub fn is_empty(&self) -> bool {
        self.new_authorizations.is_empty()
            && self.authorizations.is_empty()
            && self.new_reservations.is_empty()
            && self.reservations.is_empty()
    }
}

impl Purse {
    pub fn learn_authorization(&mut self, row: Authorization) {
        self.pages_of(&row.tenant.clone()).authorizations.learn(row.id.clone(), row);
    }

    pub fn learn_reservation(&mut self, row: Reservation) {
        self.pages_of(&row.tenant.clone()).reservations.learn(key_of(&row), row);
    }

    pub fn authorization(&self, tenant: &Tenant, id: &str) -> Option<&Authorization> {
        self.pages(tenant)?.authorization(id)
    }

    pub fn reservation(&self, tenant: &Tenant, authorization: &str, run: &str, call: &str) -> Option<&Reservation> {
        self.pages(tenant)?.reservation(&triple(authorization, run, call))
    }

    pub fn changes(&self) -> Changes<'_> {
        let mut all = Changes::default();
        for (_, pages) in &self.0 {
            all.new_authorizations.extend(pages.authorizations.changes(true));
            all.authorizations.extend(pages.authorizations.changes(false));
            all.new_reservations.extend(pages.reservations.changes(true));
            all.reservations.extend(pages.reservations.changes(false));
        }
        all
    }

    /// Takes note of what was decided.
    pub fn apply<T>(&mut self, step: Step<T>) -> T {
        for row in step.authorizations {
            self.pages_of(&row.tenant.clone()).authorizations.put(row.id.clone(), row);
        }
        for row in step.reservations {
            self.pages_of(&row.tenant.clone()).reservations.put(key_of(&row), row);
        }
        step.answer
    }

    pub fn authorize(&self, new: &Authorization, now_ms: i64) -> Decided<Authorization> {
        new.check().map_err(|(code, message)| refuse(code, message, None))?;
        if let Some(stored) = self.authorization(&new.tenant, &new.id) {
            return match stored.agrees_with(new) {
                true => Ok(Step::nothing(stored.clone())),
                false => {
                    let message =
                        format!("authorization {} is issued already on other terms; choose another id", new.id);
                    Err(refuse(Code::IdempotencyConflict, message, Some(stored)))
                }
            };
        }
        let issued_ms = if new.issued_ms > 0 { new.issued_ms } else { now_ms };
        let row =
            Authorization { issued_ms, revoked_ms: None, spent: 0, reserved: 0, day: 0, day_held: 0, ..new.clone() };
        for above in self.chain(&row)?.into_iter().skip(1) {
            if above.currency != row.currency {
                let message = format!("{} is in {}, {} in {}", row.id, row.currency, above.id, above.currency);
                return Err(refuse(Code::CurrencyMismatch, message, Some(above)));
            }
        }
        Ok(Step { answer: row.clone(), authorizations: vec![row], reservations: Vec::new() })
    }

    pub fn revoke(&self, tenant: &Tenant, id: &str, now_ms: i64) -> Decided<Authorization> {
        let Some(stored) = self.authorization(tenant, id) else {
            return Err(refuse(Code::NotFound, format!("there is no authorization {id}"), None));
        };
        if stored.revoked_ms.is_some() {
            return Ok(Step::nothing(stored.clone()));
        }
        let row = Authorization { revoked_ms: Some(now_ms), ..stored.clone() };
        Ok(Step { answer: row.clone(), authorizations: vec![row], reservations: Vec::new() })
    }

    pub fn reserve(&self, wish: &Reserve, now_ms: i64) -> Decided<Held> {
        let Reserve { tenant, authorization: id, run, call, amount, .. } = wish;
        let Some(own) = self.authorization(tenant, id) else {
            return Err(refuse(Code::AuthorizationMissing, format!("there is no authorization {id}"), None));
        };
        check_amount(*amount, own)?;
        if let Some(found) = self.reservation(tenant, id, run, call) {
            return again(wish, found, own);
        }
        let chain = self.chain(own)?;
        // Never back: a clock that is set back must not give a day's money twice.
        let day = chain.iter().map(|one| one.day).fold(day_of(now_ms), i64::max);
        for one in &chain {
            allows(one, wish, now_ms, day)?;
        }
        // Nobody is asked to agree to what is refused anyway.
        for one in &chain {
            agreed(one, wish)?;
        }
        let mut authorizations = Vec::with_capacity(chain.len());
        for one in chain {
            let reserved = sum(one, one.reserved, *amount)?;
            // Everything that is spent or held together must still be a number.
            sum(one, one.spent, reserved)?;
            let day_held = sum(one, held_on(one, day), *amount)?;
            authorizations.push(Authorization { reserved, day, day_held, ..one.clone() });
        }
        let reservation = Reservation {
            tenant: tenant.clone(),
            authorization: id.clone(),
            run: run.clone(),
            call: call.clone(),
            amount: *amount,
            currency: wish.currency.clone(),
            state: ReservationState::Reserved,
            retry: wish.retry,
            idempotency_key: wish.idempotency_key.clone(),
            correlation: None,
            committed: None,
            reason: None,
            approval: wish.approval.clone(),
            day,
            reserved_ms: now_ms,
            deadline_ms: now_ms.saturating_add(wish.hold_ms.min(HOLD_MS_MAX) as i64),
            settled_ms: None,
            reconciled: false,
        };
        let answer =
            Held { reservation: reservation.clone(), authorization: authorizations[0].clone(), replayed: false };
        Ok(Step { answer, authorizations, reservations: vec![reservation] })
    }

    pub fn settle(&self, settle: &Settle, now_ms: i64) -> Decided<Held> {
        let Settle { tenant, authorization: id, run, call, how, reconciles, .. } = settle;
        let found = self.reservation(tenant, id, run, call).zip(self.authorization(tenant, id));
        let Some((before, own)) = found else {
            let message = format!("nothing is reserved under {id} for call {call} of run {run}");
            return Err(refuse(Code::NotFound, message, self.authorization(tenant, id)));
        };
        if let How::Commit { amount, .. } = how {
            check_amount(*amount, own)?;
        }
        if !may_settle(before, how, *reconciles, own)? {
            return Ok(Step::nothing(Held { reservation: before.clone(), authorization: own.clone(), replayed: true }));
        }
        let mut after = before.clone();
        match how {
            How::Commit { amount, correlation } => {
                after.state = ReservationState::Committed;
                after.committed = Some(*amount);
                after.correlation.clone_from(correlation);
                if *amount > before.amount {
                    after.reason = Some(OVERRUN.to_owned());
                }
            }
            How::Release { reason } => {
                after.state = ReservationState::Released;
                after.reason = Some(reason.clone());
            }
            How::Unknown { reason } => {
                after.state = ReservationState::ReconcileRequired;
                after.reason = Some(reason.clone());
            }
        }
        let mut authorizations = Vec::new();
        if after.state == ReservationState::ReconcileRequired {
            let answer = Held { reservation: after.clone(), authorization: own.clone(), replayed: false };
            return Ok(Step { answer, authorizations, reservations: vec![after] });
        }
        after.settled_ms = Some(now_ms);
        after.reconciled = before.state == ReservationState::ReconcileRequired;
        let committed = after.committed.unwrap_or(0);
        for one in self.chain(own)? {
            let mut row = one.clone();
            row.reserved = row.reserved.saturating_sub(before.amount);
            row.spent = total(one, row.spent, committed)?;
            if row.day == before.day {
                row.day_held = total(one, row.day_held.saturating_sub(before.amount), committed)?;
            }
            authorizations.push(row);
        }
        let answer = Held { reservation: after.clone(), authorization: authorizations[0].clone(), replayed: false };
        Ok(Step { answer, authorizations, reservations: vec![after] })
    }

    /// Of the reservations that are known: those past their deadline, or all of a run.
    pub fn mark_stuck(&self, tenant: &Tenant, run: Option<&str>, now_ms: i64) -> Step<Vec<Reservation>> {
        let stuck = |row: &&Reservation| {
            let over = run.map_or(row.deadline_ms <= now_ms, |run| row.run == run);
            row.state == ReservationState::Reserved && over
        };
        let marked = |row: &Reservation| Reservation {
            state: ReservationState::ReconcileRequired,
            reason: Some(STALE.to_owned()),
            ..row.clone()
        };
        let known = self.pages(tenant).into_iter().flat_map(|pages| &pages.reservations.rows);
        let all: Vec<_> = known.map(|kept| &kept.row).filter(stuck).map(marked).collect();
        Step { answer: all.clone(), authorizations: Vec::new(), reservations: all }
    }

    /// An authorization and everything it is within, from itself upwards.
    fn chain<'a>(&'a self, own: &'a Authorization) -> Result<Vec<&'a Authorization>, Box<Refused>> {
        let mut chain = vec![own];
        let mut next = own.within.as_deref();
        while let Some(id) = next {
            let Some(above) = self.authorization(&own.tenant, id).filter(|above| above.id != own.id) else {
                let message = format!("{} is within {id}, and there is no such authorization", own.id);
                return Err(refuse(Code::NotFound, message, Some(own)));
            };
            if chain.len() > WITHIN_DEPTH_MAX {
                let message = format!("{} is within more than {WITHIN_DEPTH_MAX} others, one above the other", own.id);
                return Err(refuse(Code::InvalidTransition, message, Some(own)));
            }
            chain.push(above);
            next = above.within.as_deref();
        }
        Ok(chain)
    }

    fn pages(&self, tenant: &Tenant) -> Option<&Pages> {
        self.0.iter().find(|(name, _)| name == tenant).map(|(_, pages)| pages)
    }

    fn pages_of(&mut self, tenant: &Tenant) -> &mut Pages {
        let at = self.0.iter().position(|(name, _)| name == tenant).unwrap_or_else(|| {
            self.0.push((tenant.clone(), Pages::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

fn key_of(row: &Reservation) -> Triple {
    triple(&row.authorization, &row.run, &row.call)
}

fn triple(authorization: &str, run: &str, call: &str) -> Triple {
    (authorization.to_owned(), run.to_owned(), call.to_owned())
}

fn refuse(code: Code, message: String, found: Option<&Authorization>) -> Box<Refused> {
    Box::new(Refused { code, message, authorization: found.cloned() })
}

impl Refused {
    /// The refusal of entries that were to be written with a request about money.
    pub fn entry(message: &str) -> Self {
        Self {
            code: Code::Entry,
            message: format!("the ledger does not take the entry: {message}"),
            authorization: None,
        }
    }
}

fn check_amount(amount: u64, own: &Authorization) -> Result<(), Box<Refused>> {
    match amount > AMOUNT_MAX {
        true => {
            let message = format!("{amount} is more than {AMOUNT_MAX}, the largest amount");
            Err(refuse(Code::InvalidAmount, message, Some(own)))
        }
        false => Ok(()),
    }
}

/// The sum of two amounts that is still an amount.
fn sum(of: &Authorization, a: u64, b: u64) -> Result<u64, Box<Refused>> {
    a.checked_add(b).filter(|sum| *sum <= AMOUNT_MAX).ok_or_else(|| too_much(of))
}

/// The sum of what is spent already: it may grow beyond what may be reserved, but must fit where it is stored.
fn total(of: &Authorization, a: u64, b: u64) -> Result<u64, Box<Refused>> {
    a.checked_add(b).filter(|sum| *sum <= i64::MAX as u64).ok_or_else(|| too_much(of))
}

fn too_much(of: &Authorization) -> Box<Refused> {
    refuse(Code::InvalidAmount, format!("what {} holds would be more than can be counted", of.id), Some(of))
}

/// A wish for a triple that exists.
fn again(wish: &Reserve, found: &Reservation, own: &Authorization) -> Decided<Held> {
    let Reserve { run, call, amount, .. } = wish;
    let named = format!("call {call} of run {run}");
    let (code, message) = match found.state {
        // Whatever is asked for now: nobody knows yet what the first one came to.
        ReservationState::ReconcileRequired => {
            let message = "waits for somebody to find out what it came to: use `actum spend reconcile`";
            (Code::ReconcileRequired, format!("{named} {message}"))
        }
        _ if found.amount != *amount || found.currency != wish.currency => {
            let (before, now) = (&found.currency, &wish.currency);
            let message = format!("{named} reserved {} {before} before, not {amount} {now}", found.amount);
            (Code::IdempotencyConflict, message)
        }
        ReservationState::Reserved => {
            let held = Held { reservation: found.clone(), authorization: own.clone(), replayed: true };
            return Ok(Step::nothing(held));
        }
        state @ (ReservationState::Committed | ReservationState::Released) => {
            (Code::AlreadyFinalized, format!("{named} is {state} already; a new call needs an id of its own"))
        }
    };
    Err(refuse(code, message, Some(own)))
}

/// What an authorization holds on a day that is not before its own.
fn held_on(one: &Authorization, day: i64) -> u64 {
    if one.day == day { one.day_held } else { 0 }
}

/// Whether an authorization allows a new reservation, but for what somebody must agree to.
fn allows(one: &Authorization, wish: &Reserve, now_ms: i64, day: i64) -> Result<(), Box<Refused>> {
    let Authorization { id, currency, .. } = one;
    let amount = wish.amount;
    let left_today = one.max_per_day.map(|max| max.saturating_sub(held_on(one, day)));
    let (code, message) = if one.revoked_ms.is_some() {
        (Code::AuthorizationRevoked, format!("{id} was revoked"))
    } else if one.expires_ms.is_some_and(|at| at <= now_ms) {
        (Code::AuthorizationExpired, format!("{id} has expired"))
    } else if one.mode == Mode::Deny {
        (Code::ExplicitDeny, format!("{id} allows nothing"))
    } else if *currency != wish.currency {
        (Code::CurrencyMismatch, format!("{id} is in {currency}, not in {}", wish.currency))
    } else if let Some(max) = one.max_per_call.filter(|max| amount > *max) {
        (Code::PerCall, format!("{id} allows {max} {currency} for one call, not {amount}"))
    } else if let Some(left) = one.remaining().filter(|left| amount > *left) {
        (Code::BudgetExhausted, format!("{left} {currency} are left of {id}, not {amount}"))
    } else if let Some(left) = left_today.filter(|left| amount > *left) {
        (Code::PerDay, format!("{left} {currency} are left of {id} today, not {amount}"))
    } else {
        return Ok(());
    };
    Err(refuse(code, message, Some(one)))
}

/// Whether somebody has agreed where somebody must.
fn agreed(one: &Authorization, wish: &Reserve) -> Result<(), Box<Refused>> {
    if wish.approval.is_some() {
        return Ok(());
    }
    let Authorization { id, currency, .. } = one;
    let above = one.threshold.filter(|threshold| wish.amount > *threshold);
    let (code, message) = match (one.mode, above) {
        (Mode::Interactive, _) => (Code::ApprovalRequired, format!("{id} spends nothing that nobody has agreed to")),
        (_, Some(threshold)) => {
            let message =
                format!("above {threshold} {currency} somebody has to agree: {id} is asked for {}", wish.amount);
            (Code::Threshold, message)
        }
        _ => return Ok(()),
    };
    Err(refuse(code, message, Some(one)))
}

/// Whether there is something to do; nothing if it was done before.
fn may_settle(before: &Reservation, how: &How, reconciles: bool, own: &Authorization) -> Result<bool, Box<Refused>> {
    use ReservationState as S;
    let named = format!("call {} of run {}", before.call, before.run);
    let (code, message) = match (before.state, how) {
        (S::Reserved, _) if !reconciles => return Ok(true),
        (S::Reserved, _) => {
            (Code::InvalidTransition, format!("{named} may still be under way; there is nothing to reconcile yet"))
        }
        (S::ReconcileRequired, How::Unknown { .. }) => return Ok(false),
        (S::ReconcileRequired, _) if reconciles => return Ok(true),
        (S::ReconcileRequired, _) => {
            let message =
                "was given up, and waits for somebody to find out what it came to: use `actum spend reconcile`";
            (Code::ReconcileRequired, format!("{named} {message}"))
        }
        (S::Committed, How::Commit { amount, .. }) if before.committed == Some(*amount) => return Ok(false),
        (S::Released, How::Release { .. }) => return Ok(false),
        (S::Committed, _) => {
            let amount = before.committed.unwrap_or(0);
            (Code::InvalidTransition, format!("{named} is committed already, at {amount} {}", before.currency))
        }
        (S::Released, _) => (Code::InvalidTransition, format!("{named} is released already")),
    };
    Err(refuse(code, message, Some(own)))
}
