//! Whose money a call spends, and what the policy looks at before it does: shared by the till, which asks models, and by
//! tools behind which money is spent. Reserves nothing itself, and calls nobody.

use std::sync::{Arc, Mutex, PoisonError};

use actum_contract::id::Tenant;
use actum_ledger::journal::JournalError;
use actum_ledger::spend::{Authorization, CURRENCY, Mode, Scope, Spend, WITHIN_DEPTH_MAX, day_of, is_id};
use actum_predict::hash;
use actum_predict::policy::{self, Context, Decision, Inputs, Snapshot};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::OnceCell;

/// What nobody pays for needs no permission.
const FREE: &str = "system:free";
const POLICY: &str = "spend.authorization.v1";
/// Hex digits that stand for the name of a run.
const OWN_ID_DIGITS: usize = 40;
/// Who owns what is spent in a project.
pub(crate) const OWNER: &str = "project";

/// For whom money is spent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authorized {
    pub run: String,
    pub thread: Option<String>,
    pub autopilot: Option<String>,
    /// Part of the names of calls: whoever takes a run over does not take calls over.
    pub epoch: u64,
    /// What the work item allows, and in which currency.
    pub budget: Option<(u64, String)>,
    /// Whether a call waits for a person who has to agree, or is refused until he has.
    pub waits: bool,
    /// It was asked for over a server: a budget narrows what is allowed, and allows nothing by itself.
    pub is_served: bool,
    /// The run is only what whoever asks says: what is allowed to it is not allowed to him.
    pub is_run_hearsay: bool,
    /// What tells these calls from all others beside the same run, if they are none of its own.
    pub beside: Option<String>,
}

/// How the names of calls begin that are beside a run.
const BESIDE: &str = "beside-";

impl Authorized {
    /// The name of a call of its own.
    pub(crate) fn call(&self, ordinal: u64) -> String {
        match &self.beside {
            Some(own) => format!("{BESIDE}{own}-{ordinal}"),
            None => format!("e{}-{ordinal}", self.epoch),
        }
    }
}

/// Whether a call names a run that it is none of: somebody said so.
pub(crate) fn is_beside(call: &str) -> bool {
    call.starts_with(BESIDE)
}

/// What one run, or one who acts by himself, spends from.
pub(crate) struct Purse {
    pub spend: Arc<dyn Spend>,
    pub tenant: Tenant,
    pub who: Authorized,
    /// The permission that the work item's own budget is.
    own: OnceCell<String>,
    /// The same as it was last heard of. A reservation looks at what is so in the store, whatever stands here; and nobody is
    /// told no by it.
    known: Mutex<Option<Authorization>>,
}

impl std::fmt::Debug for Purse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Purse").field("who", &self.who).finish_non_exhaustive()
    }
}

impl Purse {
    pub(crate) fn new(spend: &Arc<dyn Spend>, tenant: &Tenant, who: Authorized) -> Self {
        Self { spend: Arc::clone(spend), tenant: tenant.clone(), who, own: OnceCell::new(), known: Mutex::default() }
    }

    pub(crate) fn known(&self) -> Option<Authorization> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers what was heard of the work item's own permission. Another one may be replaced by a nearer one any time.
    pub(crate) fn learn(&self, heard: &Authorization) {
        // What it is within is not heard of.
        if self.who.budget.is_some() && heard.within.is_none() {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard.clone());
        }
    }

    /// Whose money it is: the work item's own, or what was agreed on for whoever asks.
    pub(crate) async fn authorization(&self, currency: &str) -> Result<Option<Authorization>, JournalError> {
        let (spend, tenant) = (&self.spend, &self.tenant);
        let scope = Scope {
            owner: OWNER.to_owned(),
            autopilot: self.who.autopilot.clone(),
            thread: self.who.thread.clone(),
            run: (!self.who.is_run_hearsay).then(|| self.who.run.clone()),
        };
        let granted = match self.who.budget.is_some() {
            true => self.granted(&scope, currency).await?,
            false => None,
        };
        let nearest = match &self.who.budget {
            _ if granted.is_some() => granted,
            Some(budget) => match self.own.get_or_try_init(|| self.make_own(&scope, budget)).await {
                Ok(id) => spend.authorization(tenant, id).await?,
                Err(Unmade::Nobody) => None,
                Err(Unmade::Store(e)) => return Err(e),
            },
            None => spend.resolve(tenant, &scope, currency).await?,
        };
        let Some(mut found) = nearest else { return Ok(None) };
        // Everything it is within has a say, too: the policy looks at the strictest of all.
        let mut above = found.within.clone();
        for _ in 0..WITHIN_DEPTH_MAX {
            let Some(id) = above.take() else { break };
            let Some(broader) = spend.authorization(tenant, &id).await? else { break };
            above.clone_from(&broader.within);
            narrow(&mut found, &broader);
        }
        Ok(Some(found))
    }

    /// The permission that was given to this very run, if any. It takes the place of the work item's budget, and is within
    /// the permission of the project like that.
    async fn granted(&self, scope: &Scope, currency: &str) -> Result<Option<Authorization>, JournalError> {
        let found = self.spend.resolve(&self.tenant, scope, currency).await?;
        let own = own_id(&self.who.run);
        Ok(found.filter(|one| scope.run.is_some() && one.run == scope.run && one.id != own))
    }

    /// The permission that a budget is, within what covers it already.
    async fn make_own(&self, scope: &Scope, (max_total, currency): &(u64, String)) -> Result<String, Unmade> {
        let (spend, tenant) = (&self.spend, &self.tenant);
        let id = own_id(&self.who.run);
        if spend.authorization(tenant, &id).await?.is_some() {
            return Ok(id);
        }
        let within = spend.resolve(tenant, scope, currency).await?.map(|broader| broader.id);
        if self.who.is_served && within.is_none() {
            return Err(Unmade::Nobody);
        }
        let new = Authorization {
            id: id.clone(),
            run: Some(self.who.run.clone()),
            max_total: Some(*max_total),
            currency: currency.clone(),
            within,
            ..new_authorization(tenant.clone())
        };
        // Whoever was faster has written the same.
        let _ = spend.authorize(new, "actum", "the budget of the work item").await?;
        Ok(id)
    }
}

/// Why a budget is no permission. Not for good: somebody may allow it later.
enum Unmade {
    Store(JournalError),
    /// Nobody allowed what it would narrow.
    Nobody,
}

impl From<JournalError> for Unmade {
    fn from(e: JournalError) -> Self {
        Self::Store(e)
    }
}

/// How the permission is called that a run's own budget is. The names of some runs are longer than those of permissions.
fn own_id(run: &str) -> String {
    let id = format!("auth_run_{run}");
    if is_id(&id) { id } else { format!("auth_run_{}", &hash::of(&Value::from(run))[..OWN_ID_DIGITS]) }
}

/// Takes over what is stricter in one that this one is within.
fn narrow(one: &mut Authorization, broader: &Authorization) {
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    let left = least(one.remaining(), broader.remaining());
    one.max_total = left.map(|left| left.saturating_add(one.spent).saturating_add(one.reserved));
    one.max_per_call = least(one.max_per_call, broader.max_per_call);
    one.threshold = least(one.threshold, broader.threshold);
    let today = day_of(Timestamp::now().as_millisecond());
    let of_day = |one: &Authorization| {
        let held = if one.day == today { one.day_held } else { 0 };
        one.max_per_day.map(|max| (max.saturating_sub(held), max, held))
    };
    if let Some((_, max, held)) = of_day(one).into_iter().chain(of_day(broader)).min() {
        (one.max_per_day, one.day_held, one.day) = (Some(max), held, today);
    }
    let strictness = |mode: Mode| match mode {
        Mode::System => 0,
        Mode::DelegatedBudget => 1,
        Mode::DelegatedBudgetWithThreshold => 2,
        Mode::Interactive => 3,
        Mode::Deny => 4,
    };
    if strictness(broader.mode) > strictness(one.mode) {
        one.mode = broader.mode;
    }
    let earliest = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
    one.revoked_ms = earliest(one.revoked_ms, broader.revoked_ms);
    one.expires_ms = earliest(one.expires_ms, broader.expires_ms);
}

/// Why the policy says no, in words that say what to do next. `is_served`: to somebody who came in over a server.
pub(crate) fn explain(decision: &Decision, budget: &Snapshot, is_served: bool) -> String {
    let (amount, currency) = (budget.amount, &budget.currency);
    let left = budget.remaining.map_or_else(|| "no limit".to_owned(), |left| left.to_string());
    match decision.reason_code.as_str() {
        policy::AUTHORIZATION_MISSING if is_served => {
            "no authorization to spend; over a server a budget only narrows what is allowed: ask an approver for `actum spend authorize`"
                .to_owned()
        }
        policy::AUTHORIZATION_MISSING => {
            "no authorization to spend: give the work item a budget (budget.spend.max_total), or `actum spend authorize`"
                .to_owned()
        }
        policy::AUTHORIZATION_REVOKED | policy::AUTHORIZATION_EXPIRED => {
            format!("{}: `actum spend list` shows which; a new `actum spend authorize` takes its place", decision.why)
        }
        policy::BUDGET_EXHAUSTED => {
            format!("the call may cost up to {amount} {currency}, and {left} is left of the budget")
        }
        policy::APPROVAL_REQUIRED | policy::THRESHOLD_EXCEEDED => {
            format!("a person has to agree to up to {amount} {currency}: `actum approvals list`")
        }
        policy::PER_CALL_EXCEEDED => format!("the call may cost up to {amount} {currency}, more than one call may"),
        policy::PER_DAY_EXCEEDED => format!("with up to {amount} {currency} the day's limit is exceeded"),
        _ => decision.why.clone(),
    }
}

/// A permission without limits or scope, to be filled in.
pub(crate) fn new_authorization(tenant: Tenant) -> Authorization {
    Authorization {
        tenant,
        id: String::new(),
        owner: OWNER.to_owned(),
        autopilot: None,
        thread: None,
        run: None,
        mode: Mode::DelegatedBudget,
        currency: CURRENCY.to_owned(),
        max_total: None,
        max_per_call: None,
        max_per_day: None,
        threshold: None,
        within: None,
        issued_ms: Timestamp::now().as_millisecond(),
        expires_ms: None,
        revoked_ms: None,
        spent: 0,
        reserved: 0,
        day: 0,
        day_held: 0,
    }
}

/// The money as it stands, for the policy.
pub(crate) fn snapshot(found: &Authorization, amount: u64, currency: &str) -> Snapshot {
    let today = day_of(Timestamp::now().as_millisecond());
    Snapshot {
        currency: currency.to_owned(),
        spent: found.spent,
        reserved: found.reserved,
        remaining: found.remaining(),
        amount,
        max_per_call: found.max_per_call,
        day_held: if found.day == today { found.day_held } else { 0 },
        max_per_day: found.max_per_day,
        threshold: found.threshold,
    }
}

/// What the policy looks at.
pub(crate) fn inputs_of(found: Option<&Authorization>, amount: u64, currency: &str, mut context: Context) -> Inputs {
    let now = Timestamp::now().as_millisecond();
    let is_past = |at: Option<i64>| at.is_some_and(|at| at <= now);
    context.is_revoked = found.is_some_and(|one| is_past(one.revoked_ms));
    context.is_expired = found.is_some_and(|one| is_past(one.expires_ms));
    let is_free = found.is_none() && amount == 0 && context.is_priced;
    let none = Snapshot { currency: currency.to_owned(), amount, ..Snapshot::default() };
    Inputs {
        policy_id: POLICY.to_owned(),
        authorization_id: found.map(|one| one.id.clone()).or_else(|| is_free.then(|| FREE.to_owned())),
        authorization_mode: found
            .map(|one| one.mode.word())
            .or_else(|| is_free.then(|| Mode::System.word()))
            .map(ToOwned::to_owned),
        decision: None,
        reason_code: None,
        budget: found.map_or(none, |one| snapshot(one, amount, currency)),
        context,
    }
}

#[cfg(test)]
mod tests {
    use actum_engine::Waiter;
    use actum_store::{Location, Older, Store};
    use actum_testkit::folder::Folder;

    use super::*;

    #[test]
    fn over_a_server_a_budget_only_narrows() {
        let folder = Folder::new();
        let runtime = Waiter::runtime().unwrap();
        let location = Location::Sqlite(folder.join("actum.db"));
        let store: Arc<dyn Store> = runtime.block_on(actum_store::open(&location, Older::Migrate)).unwrap();
        let spend: Arc<dyn Spend> = store;
        let tenant = Tenant::new("acme").unwrap();
        let purse = |run: &str, is_served: bool| {
            let budget = Some((500, CURRENCY.to_owned()));
            let who = Authorized { run: run.to_owned(), budget, is_served, ..Authorized::default() };
            Purse::new(&spend, &tenant, who)
        };
        let found = |purse: &Purse| runtime.block_on(purse.authorization(CURRENCY)).unwrap();
        let served = purse("served", true);
        assert_eq!(found(&served), None);
        assert_eq!(runtime.block_on(spend.authorizations(&tenant)).unwrap(), []);
        // Of this machine: as it always was.
        let own = found(&purse("own", false)).unwrap();
        assert_eq!((own.within, own.max_total), (None, Some(500)));
        // What is allowed later is not spent beyond the budget either.
        for (id, max_total, left) in [("little", 300, 300), ("all", 900, 500)] {
            let new = Authorization {
                id: id.to_owned(),
                max_total: Some(max_total),
                issued_ms: 0,
                ..new_authorization(tenant.clone())
            };
            runtime.block_on(spend.authorize(new, "ann", "")).unwrap().unwrap();
            let one = if id == "little" { found(&served) } else { found(&purse("other", true)) };
            let one = one.unwrap();
            assert_eq!((one.within.as_deref(), one.remaining()), (Some(id), Some(left)));
        }
    }

    #[test]
    fn what_is_allowed_to_a_run_is_not_had_by_naming_it() {
        let folder = Folder::new();
        let runtime = Waiter::runtime().unwrap();
        let location = Location::Sqlite(folder.join("actum.db"));
        let store: Arc<dyn Store> = runtime.block_on(actum_store::open(&location, Older::Migrate)).unwrap();
        let spend: Arc<dyn Spend> = store;
        let tenant = Tenant::new("acme").unwrap();
        let run = "r".to_owned();
        let new = Authorization { id: "its".into(), run: Some(run.clone()), ..new_authorization(tenant.clone()) };
        runtime.block_on(spend.authorize(new, "ann", "")).unwrap().unwrap();
        let found = |is_run_hearsay: bool| {
            let who = Authorized { run: run.clone(), is_run_hearsay, ..Authorized::default() };
            runtime.block_on(Purse::new(&spend, &tenant, who).authorization(CURRENCY)).unwrap()
        };
        assert!(found(false).is_some());
        assert_eq!(found(true), None);
    }
}
