//! `actum spend`: who may spend how much, what is set aside and spent, and what somebody has to find out.

use actum_api::error;
use actum_ledger::draft;
use actum_ledger::spend::{
    Authorization, CURRENCY, Filter, Held, How, Mode, Refused, Reservation, ReservationState, Settle,
    document_of_reconciliation,
};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ended;
use super::tool::Why;
use crate::args::Global;
use crate::failure::Failure;
use crate::model::{alive, new_authorization};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, table};
use crate::workspace::new_id;

/// Reservations that are listed.
const RESERVATIONS_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum AsMode {
    Interactive,
    DelegatedBudget,
    DelegatedBudgetWithThreshold,
    Deny,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Allow to spend: for the project, an agent, a submission or one run
    Authorize(Box<Authorize>),
    /// Take a permission back, from now on
    Revoke {
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// The permissions there are, with what is spent and set aside
    List,
    /// What was set aside, and what became of it; the newest first
    Reservations {
        /// Only of this permission
        #[arg(long, value_name = "ID")]
        authorization: Option<String>,
        /// Only of this run
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
        /// Only in this state: reserved, committed, released, reconcile_required
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        limit: u64,
    },
    /// Find stuck reservations, or settle a call with an unknown outcome
    Reconcile(Reconcile),
}

#[derive(Debug, Args)]
pub(crate) struct Authorize {
    /// All in all: a whole number in the currency's smallest unit, or an amount such as 2.50usd
    #[arg(long, value_name = "AMOUNT")]
    max_total: Option<String>,
    /// In one call
    #[arg(long, value_name = "AMOUNT")]
    max_per_call: Option<String>,
    /// In one day (UTC)
    #[arg(long, value_name = "AMOUNT")]
    max_per_day: Option<String>,
    /// Above this a person has to agree
    #[arg(long, value_name = "AMOUNT")]
    threshold: Option<String>,
    /// [default: delegated_budget; with --threshold delegated_budget_with_threshold]
    #[arg(long, value_enum)]
    mode: Option<AsMode>,
    #[arg(long, default_value = CURRENCY)]
    currency: String,
    /// Only for this agent
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// Only for the runs of this submission (`actum status RUN` names it)
    #[arg(long, value_name = "ID")]
    thread: Option<String>,
    /// Only for this run
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Allow it without any limit
    #[arg(long)]
    unlimited: bool,
    /// Every amount also counts against this permission [default: the nearest that covers it]
    #[arg(long, value_name = "ID", conflicts_with = "alone")]
    within: Option<String>,
    /// It counts against no other permission
    #[arg(long)]
    alone: bool,
    /// Good for so long: 30m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Its name; the same name with the same content changes nothing
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    /// The call; without one, what is stuck is found and listed
    call: Option<String>,
    /// Of this run, if several have a call of that name
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// It has cost this much
    #[arg(long, value_name = "AMOUNT", conflicts_with = "release")]
    commit: Option<String>,
    /// It has cost nothing
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    why: Why,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self {
            Self::Authorize(wanted) => authorize(&open, *wanted, out),
            Self::Revoke { id, why } => {
                let by = why.by();
                let done = open.waiter.wait(open.spend.revoke(&open.tenant, &id, &by.actor, &by.reason))?;
                let revoked = done.map_err(|refused| failure_of(&refused))?;
                out.result(&authorization_json(&revoked), || format!("revoked {}", revoked.id));
                Ok(0)
            }
            Self::List => {
                let all = open.waiter.wait(open.spend.authorizations(&open.tenant))?;
                let shown: Vec<Value> = all.iter().map(authorization_json).collect();
                out.result(&json!({"authorizations": shown}), || list(&all));
                Ok(0)
            }
            Self::Reservations { authorization, run, state, limit } => {
                let run = run.map(|run| run_named(&open, &run)).transpose()?;
                let state = state.map(|word| state_named(&word)).transpose()?;
                let limit = usize::try_from(limit).unwrap_or(RESERVATIONS_MAX);
                let filter = Filter { authorization, run, state, limit };
                let all = open.waiter.wait(open.spend.reservations(&open.tenant, filter))?;
                show(&all, out);
                Ok(0)
            }
            Self::Reconcile(wanted) => reconcile(&open, wanted, out),
        }
    }
}

fn authorize(open: &Open, wanted: Authorize, out: &mut Out) -> Ended {
    let amount = |text: &Option<String>| text.as_deref().map(|text| amount(text, &wanted.currency)).transpose();
    let threshold = amount(&wanted.threshold)?;
    let mode = match (wanted.mode, threshold) {
        (Some(AsMode::Interactive), _) => Mode::Interactive,
        (Some(AsMode::Deny), _) => Mode::Deny,
        (Some(AsMode::DelegatedBudgetWithThreshold), _) | (None, Some(_)) => Mode::DelegatedBudgetWithThreshold,
        (Some(AsMode::DelegatedBudget) | None, _) => Mode::DelegatedBudget,
    };
    let bounds = [&wanted.max_total, &wanted.max_per_call, &wanted.max_per_day, &wanted.threshold];
    if mode == Mode::DelegatedBudget && bounds.iter().all(|bound| bound.is_none()) && !wanted.unlimited {
        let failure = Failure::new(error::USAGE, "that would allow to spend without any limit");
        return Err(failure.hint("name one, as --max-total 5usd or --max-per-day 1usd; or say --unlimited"));
    }
    let run = wanted.run.as_deref().map(|run| run_named(open, run)).transpose()?;
    let by = wanted.why.by();
    let new = new_authorization(open.tenant.clone());
    let expires_ms = wanted.expires.as_deref().map(duration).transpose()?.map(|ms| new.issued_ms + ms);
    let new = Authorization {
        id: wanted.id.unwrap_or_else(|| format!("auth_{}", new_id())),
        autopilot: wanted.agent,
        thread: wanted.thread,
        run,
        mode,
        currency: wanted.currency.clone(),
        max_total: amount(&wanted.max_total)?,
        max_per_call: amount(&wanted.max_per_call)?,
        max_per_day: amount(&wanted.max_per_day)?,
        threshold,
        expires_ms,
        ..new
    };
    let before = open.waiter.wait(open.spend.authorizations(&open.tenant))?;
    let covering = || in_force(&before).filter(|one| covers(one, &new)).max_by_key(|one| nearness(one));
    let within = match (wanted.within, wanted.alone) {
        (Some(id), _) => Some(id),
        (None, true) => None,
        // One that is known by its name stays what it was.
        (None, false) => match before.iter().find(|one| one.id == new.id) {
            Some(same) => same.within.clone(),
            None => covering().map(|one| one.id.clone()),
        },
    };
    let new = Authorization { within, ..new };
    let made = open.waiter.wait(open.spend.authorize(new, &by.actor, &by.reason))?;
    let made = made.map_err(|refused| failure_of(&refused))?;
    if let Some(replaced) = in_force(&before).find(|one| is_same_scope(one, &made) && one.id != made.id) {
        let hint = "to keep its limits too, name it by --within";
        out.remark(&format!("of one scope the newest counts: {} counts no more; {hint}", replaced.id));
    }
    let free: Vec<&str> = in_force(&before)
        .filter(|one| covers(&made, one) && one.within.as_deref() != Some(made.id.as_str()))
        .map(|one| one.id.as_str())
        .collect();
    if !free.is_empty() {
        out.remark(&format!(
            "nearer permissions are not bound by it: {}; revoke them, or create them again",
            free.join(", ")
        ));
    }
    let word = if made.mode == Mode::Deny { "denies" } else { "authorized" };
    let within = made.within.as_ref().map(|id| format!(", within {id}")).unwrap_or_default();
    out.result(&authorization_json(&made), || format!("{word} {}  {}{within}", made.id, limits(&made)));
    Ok(0)
}

fn reconcile(open: &Open, mut wanted: Reconcile, out: &mut Out) -> Ended {
    wanted.run = wanted.run.map(|run| run_named(open, &run)).transpose()?;
    let Some(call) = wanted.call else {
        if wanted.commit.is_some() || wanted.release {
            return Err(Failure::new(error::USAGE, "which call?").hint("`actum spend reconcile` lists what waits"));
        }
        open.waiter.wait(open.spend.mark_stuck(&open.tenant, None))?;
        let home = open.project.folder()?;
        for run in alive::gone(&home, open.waiter.journal.store_id()) {
            open.waiter.wait(open.spend.mark_stuck(&open.tenant, Some(&run)))?;
            alive::forget(&home, &run);
        }
        let state = Some(ReservationState::ReconcileRequired);
        let filter = Filter { authorization: None, run: wanted.run, state, limit: RESERVATIONS_MAX };
        let all = open.waiter.wait(open.spend.reservations(&open.tenant, filter))?;
        show(&all, out);
        return Ok(0);
    };
    let filter = Filter { authorization: None, run: wanted.run, state: None, limit: RESERVATIONS_MAX };
    let all = open.waiter.wait(open.spend.reservations(&open.tenant, filter))?;
    let mut found = all.into_iter().filter(|one| one.call == call);
    let (Some(one), None) = (found.next(), found.next()) else {
        let failure = Failure::new(error::NOT_FOUND, format!("no single call {call:?} was reserved"));
        return Err(failure.hint("`actum spend reservations` shows them; name its run by --run"));
    };
    let by = wanted.why.by();
    let reason = format!("{} ({})", if by.reason.is_empty() { "reconciled" } else { &by.reason }, by.actor);
    let how = match (&wanted.commit, wanted.release) {
        (Some(text), _) => How::Commit { amount: amount(text, &one.currency)?, correlation: None },
        (None, true) => How::Release { reason },
        (None, false) => {
            let failure = Failure::new(error::USAGE, format!("what has {call} cost?"));
            return Err(failure.hint("ask the provider, then --commit AMOUNT or --release"));
        }
    };
    let settled = || Failure::new(error::SPEND_CONFLICT, format!("{call} is settled already"));
    match one.state {
        ReservationState::ReconcileRequired => {}
        ReservationState::Reserved => {
            let failure = Failure::new(error::SPEND_CONFLICT, format!("{call} is still under way"));
            return Err(failure.hint("`actum spend reconcile` finds it once it is stuck"));
        }
        ReservationState::Committed | ReservationState::Released => {
            return Err(settled().hint("`actum spend reservations` shows what it came to"));
        }
    }
    let told = draft::read_own(document_of_reconciliation(&one, &how, Some(&by.actor)));
    let settle = Settle {
        tenant: open.tenant.clone(),
        authorization: one.authorization,
        run: one.run,
        call: one.call,
        how,
        reconciles: true,
        entries: vec![told],
    };
    let done = open.waiter.wait(open.spend.settle(settle))?;
    let Held { reservation, replayed, .. } = done.map_err(|refused| failure_of(&refused))?;
    // Somebody else said the same at the same time.
    if replayed {
        return Err(settled());
    }
    out.result(&reservation_json(&reservation), || {
        format!("{} {} of run {}", reservation.state.word(), reservation.call, reservation.run)
    });
    Ok(0)
}

/// A run by the beginning of its id; predictions and gateways have ids that are in no list of runs.
fn run_named(open: &Open, text: &str) -> Result<String, Failure> {
    Ok(open.named(text)?.map_or_else(|| text.to_owned(), |run| run.id))
}

fn is_same_scope(a: &Authorization, b: &Authorization) -> bool {
    let scope = |one: &Authorization| {
        (one.owner.clone(), one.autopilot.clone(), one.thread.clone(), one.run.clone(), one.currency.clone())
    };
    scope(a) == scope(b)
}

/// Whether one is for everything that the other is for, and more.
fn covers(broader: &Authorization, new: &Authorization) -> bool {
    let now = Timestamp::now().as_millisecond();
    let is_past = |at: Option<i64>| at.is_some_and(|at| at <= now);
    let fits = |wide: &Option<String>, narrow: &Option<String>| wide.is_none() || wide == narrow;
    let is_wider = fits(&broader.run, &new.run)
        && fits(&broader.thread, &new.thread)
        && fits(&broader.autopilot, &new.autopilot)
        && !is_same_scope(broader, new);
    is_wider
        && broader.owner == new.owner
        && broader.currency == new.currency
        && !is_past(broader.revoked_ms)
        && !is_past(broader.expires_ms)
}

const fn nearness(one: &Authorization) -> (bool, bool, bool) {
    (one.run.is_some(), one.thread.is_some(), one.autopilot.is_some())
}

/// Of each scope the one that counts: the newest.
fn in_force(all: &[Authorization]) -> impl Iterator<Item = &Authorization> {
    let is_newer = |one: &Authorization, other: &Authorization| (one.issued_ms, &one.id) > (other.issued_ms, &other.id);
    all.iter().filter(move |one| !all.iter().any(|other| is_same_scope(one, other) && is_newer(other, one)))
}

/// What a refusal about money is to whoever asked.
pub(crate) fn failure_of(refused: &Refused) -> Failure {
    use actum_ledger::spend::Code as C;

    let name = match refused.code {
        C::NotFound | C::AuthorizationMissing => error::NOT_FOUND,
        C::InvalidAmount | C::CurrencyMismatch | C::Entry => error::INPUT,
        C::IdempotencyConflict | C::AlreadyFinalized | C::InvalidTransition | C::ReconcileRequired => {
            error::SPEND_CONFLICT
        }
        C::ApprovalRequired | C::Threshold => error::APPROVAL_NEEDED,
        _ => error::SPEND_DENIED,
    };
    Failure::new(name, refused.message.clone()).details(json!({"reason_code": refused.code.reason()}))
}

fn state_named(word: &str) -> Result<ReservationState, Failure> {
    ReservationState::named(word).ok_or_else(|| {
        let words = ReservationState::ALL.map(ReservationState::word).join(", ");
        Failure::new(error::USAGE, format!("there is no state {word:?}")).hint(format!("there are {words}"))
    })
}

/// A whole number in the smallest unit, or an amount of dollars.
pub(crate) fn amount(text: &str, currency: &str) -> Result<u64, Failure> {
    let bad = || {
        Failure::new(error::USAGE, format!("{text:?} is no amount of {currency}"))
            .hint("write a whole number in its smallest unit, or with usd_micros an amount such as 2.50usd")
    };
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let dollars = text.strip_suffix("usd").filter(|_| currency == CURRENCY).ok_or_else(bad)?;
    let (whole, part) = dollars.split_once('.').unwrap_or((dollars, ""));
    let is_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(part) || part.len() > 6 {
        return Err(bad());
    }
    let micros: u64 = format!("{part:0<6}").parse().map_err(|_| bad())?;
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(micros)).ok_or_else(bad)
}

/// A time as people write it, in milliseconds.
pub(crate) fn duration(text: &str) -> Result<i64, Failure> {
    let bad = || Failure::new(error::USAGE, format!("{text:?} is no time")).hint("write 30m, 12h or 7d");
    let unit = text.chars().next_back().ok_or_else(bad)?;
    let number: i64 =
        text[..text.len() - unit.len_utf8()].parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(bad)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    Ok(number * seconds * 1_000)
}

pub(crate) fn time(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).map(|at| format!("{at:.3}")).unwrap_or_default()
}

pub(crate) fn authorization_json(one: &Authorization) -> Value {
    let Authorization { tenant: _, id, owner, autopilot, thread, run, mode, currency, .. } = one;
    json!({
        "authorization_id": id, "owner": owner, "autopilot_id": autopilot, "thread_id": thread, "run_id": run,
        "mode": mode.word(), "currency": currency, "max_total": one.max_total, "max_per_call": one.max_per_call,
        "max_per_day": one.max_per_day, "threshold": one.threshold, "within": one.within,
        "spent": one.spent, "reserved": one.reserved, "remaining": one.remaining(),
        "issued_at": time(one.issued_ms), "expires_at": one.expires_ms.map(time), "revoked_at": one.revoked_ms.map(time),
    })
}

pub(crate) fn reservation_json(one: &Reservation) -> Value {
    json!({
        "authorization_id": one.authorization, "run_id": one.run, "call_id": one.call, "amount": one.amount,
        "currency": one.currency, "state": one.state.word(), "committed": one.committed, "retry_class": one.retry.word(),
        "provider_idempotency_key": one.idempotency_key, "provider_correlation_id": one.correlation,
        "failure_reason": one.reason, "approval_id": one.approval, "reserved_at": time(one.reserved_ms),
        "deadline": time(one.deadline_ms), "settled_at": one.settled_ms.map(time), "reconciled": one.reconciled,
    })
}

fn limits(one: &Authorization) -> String {
    let mut all = Vec::new();
    let parts = [
        ("in all", one.max_total),
        ("a call", one.max_per_call),
        ("a day", one.max_per_day),
        ("without asking", one.threshold),
    ];
    for (words, limit) in parts {
        all.extend(limit.map(|limit| format!("{limit} {words}")));
    }
    let text = if all.is_empty() { "no limit".to_owned() } else { all.join(", ") };
    format!("{text} ({})", one.currency)
}

fn list(all: &[Authorization]) -> String {
    let now = Timestamp::now().as_millisecond();
    let state = |one: &Authorization| {
        let is_past = |at: Option<i64>| at.is_some_and(|at| at <= now);
        match (is_past(one.revoked_ms), is_past(one.expires_ms), one.mode) {
            (true, ..) => "revoked".to_owned(),
            (_, true, _) => "expired".to_owned(),
            (_, _, mode) => mode.word().to_owned(),
        }
    };
    let scope = |one: &Authorization| {
        let parts = [("run", &one.run), ("thread", &one.thread), ("agent", &one.autopilot)];
        let named = parts.iter().filter_map(|(word, id)| id.as_ref().map(|id| format!("{word} {id}")));
        let all = named.collect::<Vec<_>>().join(", ");
        if all.is_empty() { one.owner.clone() } else { all }
    };
    let counts: Vec<&String> = in_force(all).map(|one| &one.id).collect();
    let row = |one: &Authorization| {
        let numbers = [one.spent.to_string(), one.reserved.to_string()];
        let [spent, reserved] = numbers;
        let counts = if counts.contains(&&one.id) { "yes" } else { "no, a newer one does" };
        vec![one.id.clone(), scope(one), state(one), counts.to_owned(), limits(one), spent, reserved]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    table(&["AUTHORIZATION", "FOR", "STATE", "COUNTS", "LIMITS", "SPENT", "SET ASIDE"], &rows)
}

fn show(all: &[Reservation], out: &mut Out) {
    let shown: Vec<Value> = all.iter().map(reservation_json).collect();
    out.result(&json!({"reservations": shown}), || {
        let row = |one: &Reservation| {
            let cost = one.committed.map(|n| n.to_string()).unwrap_or_default();
            let reason = one.reason.clone().unwrap_or_default().chars().take(60).collect();
            let (state, at) = (one.state.word().to_owned(), time(one.reserved_ms));
            vec![
                one.run.clone(),
                one.call.clone(),
                state,
                one.amount.to_string(),
                cost,
                one.currency.clone(),
                at,
                reason,
            ]
        };
        let headings = ["RUN", "CALL", "STATE", "SET ASIDE", "COST", "CURRENCY", "AT", "WHY"];
        table(&headings, &all.iter().map(row).collect::<Vec<_>>())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_whole_numbers_or_dollars() {
        assert_eq!(amount("5", "sats").unwrap(), 5);
        assert_eq!(amount("2.50usd", CURRENCY).unwrap(), 2_500_000);
        assert_eq!(amount("0.000001usd", CURRENCY).unwrap(), 1);
        for bad in ["", "-1", "1.5", "1.0000001usd", "usd", ".5usd", "1,5usd", "99999999999999999999usd"] {
            assert!(amount(bad, CURRENCY).is_err(), "{bad}");
        }
        assert!(amount("1usd", "sats").is_err());
        assert_eq!(duration("12h").unwrap(), 43_200_000);
        for bad in ["", "h", "1x", "-1h", "0m"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
