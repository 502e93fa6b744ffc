//! The rules of money: who may reserve what, how it is settled, and that it always adds up.

use std::collections::BTreeMap;

use actum_contract::id::Tenant;
use actum_ledger::draft::{self, Submission};
use actum_ledger::spend::{
    AMOUNT_MAX, Authorization, CURRENCY, Code, Held, How, Mode, OVERRUN, Purse, Refused, Reservation, ReservationState,
    Reserve, RetryClass, STALE, Settle, Sum, TYPE, WITHIN_DEPTH_MAX, audit, day_of, document_of_authorization,
    document_of_overrun, document_of_reconciliation, document_of_revocation, is_currency, is_id,
};
use jiff::Timestamp;
use proptest::prelude::*;

const NOW: i64 = 1_767_225_600_000;
const DAY: i64 = 86_400_000;

fn tenant() -> Tenant {
    Tenant::new("t").unwrap()
}

fn authorization(id: &str) -> Authorization {
    Authorization {
        tenant: tenant(),
        id: id.into(),
        owner: "ada".into(),
        autopilot: None,
        thread: None,
        run: None,
        mode: Mode::DelegatedBudget,
        currency: CURRENCY.into(),
        max_total: Some(1_000),
        max_per_call: None,
        max_per_day: None,
        threshold: None,
        within: None,
        issued_ms: NOW,
        expires_ms: None,
        revoked_ms: None,
        spent: 0,
        reserved: 0,
        day: 0,
        day_held: 0,
    }
}

fn wish(authorization: &str, call: &str, amount: u64) -> Reserve {
    Reserve {
        tenant: tenant(),
        authorization: authorization.into(),
        run: "r".into(),
        call: call.into(),
        amount,
        currency: CURRENCY.into(),
        retry: RetryClass::SafeRetry,
        idempotency_key: None,
        approval: None,
        hold_ms: 60_000,
    }
}

fn settle(authorization: &str, call: &str, how: How) -> Settle {
    Settle {
        tenant: tenant(),
        authorization: authorization.into(),
        run: "r".into(),
        call: call.into(),
        how,
        reconciles: false,
        entries: Vec::new(),
    }
}

fn commit(amount: u64) -> How {
    How::Commit { amount, correlation: Some("c".into()) }
}

fn release() -> How {
    How::Release { reason: "not made".into() }
}

fn unknown() -> How {
    How::Unknown { reason: "timeout".into() }
}

/// A purse that applies what it decides, at a time that can be moved.
struct Play {
    purse: Purse,
    now: i64,
}

impl Play {
    fn with(all: &[Authorization]) -> Self {
        let mut play = Self { purse: Purse::default(), now: NOW };
        for one in all {
            play.authorize(one).unwrap();
        }
        play
    }

    fn authorize(&mut self, new: &Authorization) -> Result<Authorization, Box<Refused>> {
        let step = self.purse.authorize(new, self.now)?;
        Ok(self.purse.apply(step))
    }

    fn revoke(&mut self, id: &str) -> Result<Authorization, Box<Refused>> {
        let step = self.purse.revoke(&tenant(), id, self.now)?;
        Ok(self.purse.apply(step))
    }

    fn reserve(&mut self, wish: &Reserve) -> Result<Held, Box<Refused>> {
        let step = self.purse.reserve(wish, self.now)?;
        assert_eq!(step.is_replay(), step.answer.replayed);
        Ok(self.purse.apply(step))
    }

    fn settle(&mut self, settle: &Settle) -> Result<Held, Box<Refused>> {
        let step = self.purse.settle(settle, self.now)?;
        assert_eq!(step.is_replay(), step.answer.replayed);
        Ok(self.purse.apply(step))
    }

    fn stuck(&mut self, run: Option<&str>) -> Vec<Reservation> {
        let step = self.purse.mark_stuck(&tenant(), run, self.now);
        self.purse.apply(step)
    }

    fn get(&self, id: &str) -> &Authorization {
        self.purse.authorization(&tenant(), id).unwrap()
    }

    fn figures(&self, id: &str) -> (u64, u64, u64) {
        let a = self.get(id);
        (a.spent, a.reserved, a.day_held)
    }

    /// Every authorization is what its reservations come to.
    fn adds_up(&self) {
        let changes = self.purse.changes();
        let all: Vec<_> = changes.new_authorizations.iter().map(|a| (*a).clone()).collect();
        let mut sums: BTreeMap<(String, i64), Sum> = BTreeMap::new();
        for r in &changes.new_reservations {
            let empty =
                Sum { tenant: "t".into(), authorization: r.authorization.clone(), day: r.day, committed: 0, held: 0 };
            let sum = sums.entry((r.authorization.clone(), r.day)).or_insert(empty);
            sum.committed += r.committed.unwrap_or(0);
            sum.held += r.held();
        }
        let sums: Vec<_> = sums.into_values().collect();
        assert_eq!(audit(&all, &sums), Vec::<String>::new());
    }
}

fn code<T: std::fmt::Debug>(answer: Result<T, Box<Refused>>) -> Code {
    answer.unwrap_err().code
}

#[test]
fn names_and_reasons() {
    for good in ["auth_1", "7", "a.b-c"] {
        assert!(is_id(good));
    }
    for bad in ["", "_a", "a b", "a:b", "ä", &"x".repeat(65)] {
        assert!(!is_id(bad), "{bad}");
    }
    for (name, good) in
        [("sats", true), ("usd_micros", true), ("", false), ("USD", false), ("7s", false), ("a b", false)]
    {
        assert_eq!(is_currency(name), good, "{name}");
    }
    for code in Code::ALL {
        assert!(code.reason().starts_with("policy_denied."), "{code}");
    }
    assert_eq!(Code::PerDay.reason(), "policy_denied.per_day_exceeded");
    assert_eq!(Code::NotFound.reason(), Code::ExplicitDeny.reason());
    assert_eq!((day_of(0), day_of(-1), day_of(DAY)), (0, -1, 1));
}

#[test]
fn an_authorization_is_issued_once() {
    let mut play = Play::with(&[]);
    let lies =
        Authorization { spent: 7, reserved: 7, day_held: 7, revoked_ms: Some(1), issued_ms: 0, ..authorization("a") };
    let first = play.authorize(&lies).unwrap();
    assert_eq!(first, authorization("a"));
    play.now += 5;
    assert_eq!(play.authorize(&authorization("a")).unwrap(), first);
    let other = Authorization { max_total: Some(1_001), ..authorization("a") };
    assert_eq!(code(play.authorize(&other)), Code::IdempotencyConflict);
    assert_eq!(code(play.revoke("b")), Code::NotFound);
    assert_eq!(play.revoke("a").unwrap().revoked_ms, Some(NOW + 5));
    play.now += 5;
    assert_eq!(play.revoke("a").unwrap().revoked_ms, Some(NOW + 5));
    // What was revoked does not come back by being issued again.
    assert!(play.authorize(&authorization("a")).unwrap().revoked_ms.is_some());
}

#[test]
fn a_bad_authorization() {
    let a = || authorization("a");
    let cases = [
        (Authorization { id: "a:b".into(), ..a() }, Code::Entry),
        (Authorization { owner: " ".into(), ..a() }, Code::Entry),
        (Authorization { run: Some("a\0".into()), ..a() }, Code::Entry),
        (Authorization { thread: Some(String::new()), ..a() }, Code::Entry),
        (Authorization { autopilot: Some("x".repeat(300)), ..a() }, Code::Entry),
        (Authorization { currency: "US$".into(), ..a() }, Code::Entry),
        (Authorization { expires_ms: Some(i64::MIN), ..a() }, Code::Entry),
        (Authorization { max_total: Some(AMOUNT_MAX + 1), ..a() }, Code::InvalidAmount),
        (Authorization { max_per_call: Some(u64::MAX), ..a() }, Code::InvalidAmount),
        (Authorization { max_per_day: Some(u64::MAX), ..a() }, Code::InvalidAmount),
        (Authorization { threshold: Some(1), ..a() }, Code::InvalidAmount),
        (Authorization { mode: Mode::DelegatedBudgetWithThreshold, ..a() }, Code::InvalidAmount),
        (Authorization { within: Some("nobody".into()), ..a() }, Code::NotFound),
        (Authorization { within: Some("a".into()), ..a() }, Code::NotFound),
        (Authorization { within: Some("sats".into()), ..a() }, Code::CurrencyMismatch),
    ];
    let mut play = Play::with(&[Authorization { currency: "sats".into(), ..authorization("sats") }]);
    for (new, expected) in cases {
        assert_eq!(code(play.authorize(&new)), expected, "{new:?}");
    }
    let mut above: Option<String> = None;
    for n in 0..=WITHIN_DEPTH_MAX {
        play.authorize(&Authorization { within: above, ..authorization(&format!("d{n}")) }).unwrap();
        above = Some(format!("d{n}"));
    }
    assert_eq!(code(play.authorize(&Authorization { within: above, ..a() })), Code::InvalidTransition);
}

#[test]
fn every_limit_is_kept() {
    let a = || authorization("a");
    let with_threshold = Authorization { mode: Mode::DelegatedBudgetWithThreshold, threshold: Some(10), ..a() };
    let cases = [
        (a(), 1_000, None),
        (a(), 1_001, Some(Code::BudgetExhausted)),
        (a(), AMOUNT_MAX + 1, Some(Code::InvalidAmount)),
        (Authorization { max_total: None, ..a() }, AMOUNT_MAX, None),
        (Authorization { max_per_call: Some(10), ..a() }, 10, None),
        (Authorization { max_per_call: Some(10), ..a() }, 11, Some(Code::PerCall)),
        (Authorization { max_per_day: Some(10), ..a() }, 10, None),
        (Authorization { max_per_day: Some(10), ..a() }, 11, Some(Code::PerDay)),
        (with_threshold.clone(), 10, None),
        (with_threshold.clone(), 11, Some(Code::Threshold)),
        // Nobody is asked to agree to what is refused anyway.
        (Authorization { max_per_day: Some(20), ..with_threshold }, 21, Some(Code::PerDay)),
        (Authorization { mode: Mode::Interactive, ..a() }, 1, Some(Code::ApprovalRequired)),
        (Authorization { mode: Mode::Interactive, ..a() }, 0, Some(Code::ApprovalRequired)),
        (Authorization { mode: Mode::System, ..a() }, 1, None),
        (Authorization { mode: Mode::Deny, ..a() }, 1, Some(Code::ExplicitDeny)),
        (Authorization { expires_ms: Some(NOW), ..a() }, 1, Some(Code::AuthorizationExpired)),
        (Authorization { expires_ms: Some(NOW + 1), ..a() }, 1, None),
        (Authorization { currency: "sats".into(), ..a() }, 1, Some(Code::CurrencyMismatch)),
        (Authorization { max_total: Some(0), ..a() }, 0, None),
        (Authorization { max_total: Some(0), ..a() }, 1, Some(Code::BudgetExhausted)),
    ];
    for (new, amount, expected) in cases {
        let mut play = Play::with(std::slice::from_ref(&new));
        let answer = play.reserve(&wish("a", "c", amount));
        assert_eq!(answer.as_ref().err().map(|refused| refused.code), expected, "{new:?} {amount}");
        let found = answer.err().and_then(|refused| refused.authorization);
        assert_eq!(found.is_some(), expected.is_some());
        // As if it were above another.
        let mut play = Play::with(std::slice::from_ref(&new));
        let below = Authorization {
            max_total: None,
            within: Some("a".into()),
            currency: new.currency.clone(),
            ..authorization("b")
        };
        play.authorize(&below).unwrap();
        let answer = play.reserve(&wish("b", "c", amount));
        assert_eq!(answer.err().map(|refused| refused.code), expected, "within {new:?} {amount}");
        play.adds_up();
    }
    let mut play = Play::with(&[Authorization { mode: Mode::Interactive, ..a() }]);
    assert!(play.reserve(&Reserve { approval: Some("yes-1".into()), ..wish("a", "c", 5) }).is_ok());
    assert_eq!(code(play.reserve(&wish("nobody", "c", 1))), Code::AuthorizationMissing);
    play.revoke("a").unwrap();
    let agreed = Reserve { approval: Some("yes-2".into()), ..wish("a", "d", 5) };
    assert_eq!(code(play.reserve(&agreed)), Code::AuthorizationRevoked);
}

#[test]
fn the_same_triple_again() {
    let mut play = Play::with(&[authorization("a")]);
    let first = play.reserve(&wish("a", "c", 400)).unwrap();
    assert_eq!((first.reservation.deadline_ms, first.authorization.remaining()), (NOW + 60_000, Some(600)));
    let again = play.reserve(&wish("a", "c", 400)).unwrap();
    assert!(again.replayed && again.reservation == first.reservation);
    assert_eq!(code(play.reserve(&wish("a", "c", 399))), Code::IdempotencyConflict);
    let other = Reserve { currency: "sats".into(), ..wish("a", "c", 400) };
    assert_eq!(code(play.reserve(&other)), Code::IdempotencyConflict);
    // What is held stays held, also when nothing more is given.
    play.revoke("a").unwrap();
    assert!(play.reserve(&wish("a", "c", 400)).unwrap().replayed);
    play.settle(&settle("a", "c", unknown())).unwrap();
    for amount in [400, 399] {
        assert_eq!(code(play.reserve(&wish("a", "c", amount))), Code::ReconcileRequired);
    }
    play.settle(&Settle { reconciles: true, ..settle("a", "c", release()) }).unwrap();
    assert_eq!(code(play.reserve(&wish("a", "c", 400))), Code::AlreadyFinalized);
    assert_eq!(code(play.reserve(&wish("a", "c", 1))), Code::IdempotencyConflict);
    assert_eq!(play.figures("a"), (0, 0, 0));
    play.adds_up();
}

#[test]
fn settling() {
    let mut play = Play::with(&[authorization("a")]);
    assert_eq!(code(play.settle(&settle("a", "c", commit(1)))), Code::NotFound);
    assert_eq!(code(play.settle(&settle("nobody", "c", commit(1)))), Code::NotFound);
    play.reserve(&wish("a", "less", 400)).unwrap();
    assert_eq!(code(play.settle(&settle("a", "less", commit(AMOUNT_MAX + 1)))), Code::InvalidAmount);
    let reconciles = Settle { reconciles: true, ..settle("a", "less", release()) };
    assert_eq!(code(play.settle(&reconciles)), Code::InvalidTransition);
    let held = play.settle(&settle("a", "less", commit(150))).unwrap();
    assert_eq!((held.authorization.spent, held.authorization.reserved, held.authorization.day_held), (150, 0, 150));
    let Reservation { state, committed, correlation, reason, settled_ms, reconciled, .. } = held.reservation;
    assert_eq!((state, committed, correlation.as_deref()), (ReservationState::Committed, Some(150), Some("c")));
    assert_eq!((reason, settled_ms, reconciled), (None, Some(NOW), false));
    assert!(play.settle(&settle("a", "less", commit(150))).unwrap().replayed);
    assert_eq!(code(play.settle(&settle("a", "less", commit(151)))), Code::InvalidTransition);
    assert_eq!(code(play.settle(&settle("a", "less", release()))), Code::InvalidTransition);
    assert_eq!(code(play.settle(&settle("a", "less", unknown()))), Code::InvalidTransition);

    // More than was reserved was spent all the same.
    play.reserve(&wish("a", "more", 850)).unwrap();
    let held = play.settle(&settle("a", "more", commit(900))).unwrap();
    assert_eq!((held.reservation.reason.as_deref(), held.authorization.spent), (Some(OVERRUN), 1_050));
    assert_eq!(held.authorization.remaining(), Some(0));
    assert_eq!(code(play.reserve(&wish("a", "next", 1))), Code::BudgetExhausted);

    play.reserve(&wish("a", "free", 0)).unwrap();
    assert!(play.settle(&settle("a", "free", release())).is_ok());
    assert!(play.settle(&settle("a", "free", release())).unwrap().replayed);
    for how in [commit(0), unknown()] {
        assert_eq!(code(play.settle(&settle("a", "free", how))), Code::InvalidTransition);
    }
    play.adds_up();
}

#[test]
fn what_nobody_knows_waits() {
    let mut play = Play::with(&[authorization("a")]);
    play.reserve(&wish("a", "lost", 300)).unwrap();
    play.reserve(&wish("a", "late", 300)).unwrap();
    play.reserve(&Reserve { run: "other".into(), hold_ms: u64::MAX, ..wish("a", "c", 100) }).unwrap();
    let held = play.settle(&settle("a", "lost", unknown())).unwrap();
    assert_eq!((held.reservation.settled_ms, held.authorization.reserved), (None, 700));
    assert!(play.settle(&settle("a", "lost", unknown())).unwrap().replayed);
    assert!(play.stuck(None).is_empty());
    play.now += 60_000;
    let stuck = play.stuck(None);
    assert_eq!(stuck.iter().map(|r| r.call.as_str()).collect::<Vec<_>>(), ["late"]);
    assert_eq!(stuck[0].reason.as_deref(), Some(STALE));
    assert!(play.stuck(None).is_empty());
    assert_eq!(play.stuck(Some("other")).len(), 1);
    assert_eq!(play.figures("a"), (0, 700, 700));
    // The caller that comes back after that has lost its say.
    for how in [commit(10), release()] {
        assert_eq!(code(play.settle(&settle("a", "late", how))), Code::ReconcileRequired);
    }
    let held = play.settle(&Settle { reconciles: true, ..settle("a", "late", commit(300)) }).unwrap();
    assert!(held.reservation.reconciled && held.reservation.reason.as_deref() == Some(STALE));
    assert!(play.settle(&Settle { reconciles: true, ..settle("a", "late", commit(300)) }).unwrap().replayed);
    let held = play.settle(&Settle { reconciles: true, ..settle("a", "lost", release()) }).unwrap();
    assert!(held.reservation.reconciled);
    assert_eq!(play.figures("a"), (300, 100, 400));
    play.adds_up();
}

#[test]
fn a_day_ends() {
    let mut play = Play::with(&[Authorization { max_per_day: Some(100), ..authorization("a") }]);
    play.reserve(&wish("a", "1", 60)).unwrap();
    play.reserve(&wish("a", "2", 40)).unwrap();
    assert_eq!(code(play.reserve(&wish("a", "3", 1))), Code::PerDay);
    // What comes to less makes room on the same day.
    play.settle(&settle("a", "1", commit(50))).unwrap();
    play.reserve(&wish("a", "3", 10)).unwrap();
    assert_eq!(code(play.reserve(&wish("a", "4", 1))), Code::PerDay);
    play.now += DAY;
    play.reserve(&wish("a", "4", 100)).unwrap();
    // What is given back of yesterday is no money of today.
    play.settle(&settle("a", "2", release())).unwrap();
    assert_eq!(code(play.reserve(&wish("a", "5", 1))), Code::PerDay);
    assert_eq!(play.figures("a"), (50, 110, 100));
    // Nor does a clock that is set back give yesterday's money once more.
    play.now -= DAY;
    assert_eq!(code(play.reserve(&wish("a", "5", 1))), Code::PerDay);
    play.adds_up();
}

#[test]
fn an_amount_counts_all_the_way_up() {
    let top = Authorization { max_total: Some(100), ..authorization("top") };
    let below = |id: &str| Authorization { within: Some("top".into()), ..authorization(id) };
    let mut play = Play::with(&[top, below("a"), below("b")]);
    play.reserve(&wish("a", "1", 60)).unwrap();
    let refused = play.reserve(&wish("b", "2", 41)).unwrap_err();
    assert_eq!((refused.code, refused.authorization.unwrap().id.as_str()), (Code::BudgetExhausted, "top"));
    play.reserve(&wish("b", "2", 40)).unwrap();
    play.settle(&settle("a", "1", commit(70))).unwrap();
    play.settle(&settle("b", "2", release())).unwrap();
    assert_eq!((play.figures("top"), play.figures("a"), play.figures("b")), ((70, 0, 70), (70, 0, 70), (0, 0, 0)));
    play.adds_up();
    play.revoke("top").unwrap();
    assert_eq!(code(play.reserve(&wish("b", "3", 1))), Code::AuthorizationRevoked);
}

#[test]
fn rows_are_written_once() {
    let mut play = Play::with(&[authorization("a")]);
    let mut fresh = Purse::default();
    fresh.learn_authorization(play.get("a").clone());
    play.purse = fresh;
    for n in 0..100 {
        play.reserve(&wish("a", &n.to_string(), 1)).unwrap();
        play.settle(&settle("a", &n.to_string(), commit(1))).unwrap();
    }
    let changes = play.purse.changes();
    assert_eq!((changes.new_authorizations.len(), changes.authorizations.len()), (0, 1));
    assert_eq!((changes.new_reservations.len(), changes.reservations.len()), (100, 0));
    assert!(changes.new_reservations.iter().enumerate().all(|(n, r)| r.call == n.to_string()));
    let reread = changes.new_reservations[0].clone();
    let mut purse = Purse::default();
    assert!(purse.changes().is_empty());
    purse.learn_reservation(reread.clone());
    // What is known is not forgotten for what is stored.
    purse.learn_reservation(Reservation { amount: 7, ..reread.clone() });
    assert_eq!(purse.reservation(&tenant(), "a", "r", "0"), Some(&reread));
    assert!(purse.changes().is_empty());
}

#[test]
fn what_the_ledger_is_told() {
    let mut play = Play::with(&[authorization("a")]);
    let reservation = play.reserve(&wish("a", "c", 5)).unwrap().reservation;
    let documents = [
        document_of_authorization(&authorization("a"), "ada", "a try"),
        document_of_revocation(&tenant(), "a", "ada", "enough"),
        document_of_reconciliation(&reservation, &commit(7), Some("ada")),
        document_of_reconciliation(&reservation, &release(), None),
        document_of_overrun(&reservation, 7),
    ];
    for document in documents {
        assert_eq!(document["type"], TYPE);
        let text = document.to_string();
        // Ours is taken, and nobody else's.
        assert!(matches!(draft::read_value(document, Timestamp::UNIX_EPOCH), Submission::Draft(_)), "{text}");
        assert!(matches!(draft::read(text.as_bytes(), Timestamp::UNIX_EPOCH), Submission::Rejected(_)), "{text}");
    }
    let document = document_of_authorization(&authorization("a"), "ada", "a try");
    assert_eq!(document["id"], "spend:authorization:a:authorize");
    assert_eq!(document["payload"]["authorization"]["max_total"], 1_000);
    assert!(document["payload"]["authorization"].get("within").is_none());
    let document = document_of_reconciliation(&reservation, &commit(7), Some("ada"));
    assert_eq!((&document["payload"]["reserved"], &document["payload"]["committed"]), (&5.into(), &7.into()));
}

#[test]
fn an_audit_finds_what_does_not_add_up() {
    let a = Authorization { spent: 5, ..authorization("a") };
    let sum = |authorization: &str| Sum {
        tenant: "t".into(),
        authorization: authorization.into(),
        day: 3,
        committed: 5,
        held: 2,
    };
    assert_eq!(audit(std::slice::from_ref(&a), &[sum("a")]).len(), 1, "it says nothing is reserved");
    assert_eq!(audit(std::slice::from_ref(&a), &[]).len(), 1);
    assert_eq!(audit(&[Authorization { reserved: 2, ..a.clone() }], &[sum("a")]).len(), 0);
    assert_eq!(audit(&[Authorization { reserved: 2, day: 3, ..a.clone() }], &[sum("a")]).len(), 1);
    assert_eq!(audit(&[Authorization { reserved: 2, day: 3, day_held: 7, ..a }], &[sum("a")]).len(), 0);
    assert_eq!(audit(&[], &[sum("gone")]).len(), 1);
}

#[derive(Debug, Clone)]
struct Move {
    kind: u8,
    whose: usize,
    call: u8,
    amount: u64,
    flag: bool,
}

proptest! {
    #[test]
    fn nothing_exceeds_a_limit_but_by_overruns(
        moves in prop::collection::vec(
            (0..8_u8, 0..3_usize, 0..12_u8, 0..60_u64, any::<bool>())
                .prop_map(|(kind, whose, call, amount, flag)| Move { kind, whose, call, amount, flag }),
            1..80,
        )
    ) {
        let ids = ["top", "a", "b"];
        let top = Authorization { max_total: Some(150), max_per_day: Some(90), ..authorization("top") };
        let below = |id: &str| Authorization { within: Some("top".into()), max_total: Some(100), ..authorization(id) };
        let mut play = Play::with(&[top, below("a"), below("b")]);
        let mut over = 0_u64;
        for m in moves {
            let (id, call) = (ids[m.whose], m.call.to_string());
            let before = play.purse.reservation(&tenant(), id, "r", &call).map_or(0, |r| r.amount);
            let how = match m.kind {
                0..=2 => { let _ = play.reserve(&wish(id, &call, m.amount)); None }
                3 | 4 => Some(commit(m.amount)),
                5 => Some(release()),
                6 => Some(unknown()),
                _ if m.flag => { play.stuck(Some("r")); None }
                _ => { play.now += DAY / 2; None }
            };
            if let Some(how) = how {
                let held = play.settle(&Settle { reconciles: m.flag, ..settle(id, &call, how) });
                if let Some(committed) = held.ok().filter(|h| !h.replayed).and_then(|h| h.reservation.committed) {
                    over += committed.saturating_sub(before);
                }
            }
            for id in ids {
                let a = play.get(id);
                prop_assert!(a.spent + a.reserved <= a.max_total.unwrap() + over);
                prop_assert!(a.max_per_day.is_none_or(|max| a.day_held <= max + over));
            }
            play.adds_up();
        }
    }
}
