//! Whether a call may be made: ordered rules over facts, the first that matches decides; and the reasons there are.
//!
//! Called by whoever is about to reserve money for a call, and again by whoever doubts a receipt: the same inputs give
//! the same decision and the same hash. Never fetches a fact itself.

use std::collections::VecDeque;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::hash;

/// The list of reasons, by name; a code is never renamed, and no number is used twice.
pub const REASONS_VERSION: &str = "runtime-policy-reasons.v1";

/// The list itself, as it is published.
pub const REASONS_TEXT: &str = include_str!("runtime-policy-reasons.v1.json");

pub const ALLOWED: &str = "policy_allowed.default";
pub const EXPLICIT_DENY: &str = "policy_denied.explicit_deny";
pub const AUTHORIZATION_MISSING: &str = "policy_denied.authorization_missing";
pub const INVALID_AUTHORIZATION_MODE: &str = "policy_denied.invalid_authorization_mode";
pub const BUDGET_EXHAUSTED: &str = "policy_denied.budget_exhausted";
pub const AUTHORIZATION_EXPIRED: &str = "policy_denied.authorization_expired";
pub const AUTHORIZATION_REVOKED: &str = "policy_denied.authorization_revoked";
pub const THRESHOLD_EXCEEDED: &str = "policy_denied.threshold_exceeded";
pub const PER_CALL_EXCEEDED: &str = "policy_denied.per_call_exceeded";
pub const PER_DAY_EXCEEDED: &str = "policy_denied.per_day_exceeded";
pub const IDEMPOTENCY_CONFLICT: &str = "policy_denied.idempotency_conflict";
pub const RECONCILE_REQUIRED: &str = "policy_denied.reconcile_required";
pub const APPROVAL_REQUIRED: &str = "policy_denied.approval_required";
pub const UNPRICED: &str = "policy_denied.unpriced";
pub const NO_PROGRESS: &str = "loop_detected.no_progress";
pub const PRIVATE_ADDRESS: &str = "ssrf_block.private_address";
pub const INVALID_SCHEMA: &str = "manifest_validation.invalid_schema";
pub const PROVIDER_ERROR: &str = "comms_failed.provider_error";
pub const PROVIDER_CIRCUIT_OPEN: &str = "comms_failed.provider_circuit_open";
pub const INVALID_OUTPUT: &str = "predict_failed.invalid_output";
pub const INVALID_INPUT: &str = "predict_failed.invalid_input";
pub const BAD_PROMPT: &str = "predict_failed.bad_prompt";
pub const TIMEOUT: &str = "predict_failed.timeout";
pub const ITERATIONS_EXHAUSTED: &str = "predict_failed.iterations_exhausted";
pub const CALLS_EXHAUSTED: &str = "predict_failed.calls_exhausted";
pub const TOKENS_EXHAUSTED: &str = "predict_failed.tokens_exhausted";
pub const HASH_MISMATCH: &str = "artifact_incompatible.hash_mismatch";
pub const MISSING_HASH: &str = "artifact_incompatible.missing_hash";
pub const OVERRUN: &str = "spend.overrun";
pub const USAGE_MISSING: &str = "spend.usage_missing";
pub const GUARD_PROMOTED: &str = "rollout.guard_promoted";
pub const GUARD_ROLLED_BACK: &str = "rollout.guard_rolled_back";

/// Modes an authorization may have.
pub const MODES: [&str; 5] = ["delegated_budget", "delegated_budget_with_threshold", "interactive", "deny", "system"];

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub code: String,
    pub number: u32,
    pub domain: String,
    pub decision: Verdict,
    pub description: String,
}

#[derive(Deserialize)]
struct Taxonomy {
    reasons: Vec<Reason>,
}

static TAXONOMY: LazyLock<Taxonomy> =
    LazyLock::new(|| serde_json::from_str(REASONS_TEXT).expect("the list of reasons is read by a test"));

/// Every reason there is.
pub fn reasons() -> &'static [Reason] {
    &TAXONOMY.reasons
}

pub fn reason(code: &str) -> Option<&'static Reason> {
    reasons().iter().find(|reason| reason.code == code)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Allowed,
    Denied,
}

impl Verdict {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }
}

/// All that a decision depends on. Kept in the receipt, so that it can be decided again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    pub policy_id: String,
    pub authorization_id: Option<String>,
    pub authorization_mode: Option<String>,
    /// What the caller has decided already, with its reason.
    pub decision: Option<String>,
    pub reason_code: Option<String>,
    pub budget: Snapshot,
    pub context: Context,
}

/// The money as it stands, and what is wanted of it. Amounts are whole, in the smallest unit of the currency.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub currency: String,
    pub spent: u64,
    pub reserved: u64,
    /// Without: no limit.
    pub remaining: Option<u64>,
    /// What the call may cost at most.
    pub amount: u64,
    pub max_per_call: Option<u64>,
    /// Spent and reserved on this day.
    pub day_held: u64,
    pub max_per_day: Option<u64>,
    /// Above this a call needs approval.
    pub threshold: Option<u64>,
}

/// What else is known about the call. By default a call is not priced, and so is denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    pub manifest_validation_reason: Option<String>,
    pub loop_detected_reason: Option<String>,
    pub ssrf_block_reason: Option<String>,
    pub is_revoked: bool,
    pub is_expired: bool,
    pub is_priced: bool,
    /// Who or what approved of this call.
    pub approval: Option<String>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub decision: Verdict,
    pub reason_code: String,
    pub reason_codes_version: String,
    pub evaluation_hash: String,
    /// The rule that matched, and what it says.
    pub rule: u8,
    pub why: String,
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        self.decision == Verdict::Allowed
    }
}

type Matches = fn(&Inputs) -> Option<&str>;

/// The rules in their order: what each says, and the reason it gives if it matches.
const RULES: [(&str, Matches); 17] = [
    ("the manifest is not valid", |i| in_domain(&i.context.manifest_validation_reason, INVALID_SCHEMA)),
    ("the same is done again and again", |i| in_domain(&i.context.loop_detected_reason, NO_PROGRESS)),
    ("the address may not be reached", |i| in_domain(&i.context.ssrf_block_reason, PRIVATE_ADDRESS)),
    ("the caller denies it, and says why", |i| {
        let code = i.reason_code.as_deref().filter(|_| i.decision.as_deref() == Some(Verdict::Denied.word()))?;
        reason(code).filter(|reason| reason.decision == Verdict::Denied).map(|_| code)
    }),
    // A word that nobody knows is no permission.
    ("the caller denies it", |i| {
        i.decision.as_deref().filter(|word| *word != Verdict::Allowed.word()).map(|_| EXPLICIT_DENY)
    }),
    ("no authorization covers it", |i| given(&i.authorization_id).is_none().then_some(AUTHORIZATION_MISSING)),
    ("the mode of the authorization is not known", |i| {
        let mode = i.authorization_mode.as_deref()?;
        (!MODES.contains(&mode)).then_some(INVALID_AUTHORIZATION_MODE)
    }),
    ("the authorization was revoked", |i| i.context.is_revoked.then_some(AUTHORIZATION_REVOKED)),
    ("the authorization has expired", |i| i.context.is_expired.then_some(AUTHORIZATION_EXPIRED)),
    ("the authorization is one that denies", |i| is_mode(i, "deny").then_some(EXPLICIT_DENY)),
    ("the price is not known", |i| (!i.context.is_priced).then_some(UNPRICED)),
    ("it costs more than one call may", |i| exceeds(i, 0, i.budget.max_per_call).then_some(PER_CALL_EXCEEDED)),
    ("it costs more than is left of the day", |i| {
        exceeds(i, i.budget.day_held, i.budget.max_per_day).then_some(PER_DAY_EXCEEDED)
    }),
    ("it costs more than is left", |i| exceeds(i, 0, i.budget.remaining).then_some(BUDGET_EXHAUSTED)),
    ("every call needs approval, and this one has none", |i| {
        (is_mode(i, "interactive") && given(&i.context.approval).is_none()).then_some(APPROVAL_REQUIRED)
    }),
    ("it costs more than may be spent without approval, and has none", |i| {
        // Who asks for a threshold and names none wants to see everything that costs.
        let threshold = i.budget.threshold.or(is_mode(i, "delegated_budget_with_threshold").then_some(0));
        (exceeds(i, 0, threshold) && given(&i.context.approval).is_none()).then_some(THRESHOLD_EXCEEDED)
    }),
    ("nothing speaks against it", |_| Some(ALLOWED)),
];

/// What every rule says, in order; a decision's `rule` counts from one.
pub fn rules() -> impl ExactSizeIterator<Item = &'static str> {
    RULES.iter().map(|(says, _)| *says)
}

/// Decides. The first rule that matches wins.
pub fn evaluate(inputs: &Inputs) -> Decision {
    let matched = RULES.iter().enumerate().find_map(|(at, (says, rule))| Some((at, *says, rule(inputs)?)));
    let (at, says, code) = matched.unwrap_or((RULES.len(), "no rule matched", EXPLICIT_DENY));
    let decision = if code == ALLOWED { Verdict::Allowed } else { Verdict::Denied };
    Decision {
        decision,
        reason_code: code.to_owned(),
        reason_codes_version: REASONS_VERSION.to_owned(),
        evaluation_hash: hash::of(&json!({"decision": decision, "reason_code": code, "inputs": inputs})),
        rule: u8::try_from(at + 1).unwrap_or(u8::MAX),
        why: says.to_owned(),
    }
}

/// A reason of the domain is kept; whatever else stands there becomes the domain's own.
fn in_domain<'i>(given_code: &'i Option<String>, default: &'static str) -> Option<&'i str> {
    let code = given(given_code)?;
    let domain = default.split('.').next();
    Some(reason(code).filter(|reason| Some(reason.domain.as_str()) == domain).map_or(default, |_| code))
}

fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.trim().is_empty())
}

fn is_mode(inputs: &Inputs, mode: &str) -> bool {
    inputs.authorization_mode.as_deref() == Some(mode)
}

fn exceeds(inputs: &Inputs, held: u64, limit: Option<u64>) -> bool {
    // What costs nothing exceeds nothing, also where more is held than may be.
    let amount = inputs.budget.amount;
    limit.is_some_and(|limit| amount > 0 && held.saturating_add(amount) > limit)
}

/// Questions that are remembered, and how many equal ones among them are too many.
pub const LOOP_WINDOW: usize = 30;
pub const LOOP_EQUAL_MAX: usize = 20;

/// Sees whether somebody asks the same again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loops {
    keys: VecDeque<String>,
}

impl Loops {
    /// Notes a question by its exact key; the reason if it leads nowhere.
    pub fn note(&mut self, key: &str) -> Option<&'static str> {
        if self.keys.len() == LOOP_WINDOW {
            self.keys.pop_front();
        }
        self.keys.push_back(key.to_owned());
        (self.keys.iter().filter(|known| *known == key).count() >= LOOP_EQUAL_MAX).then_some(NO_PROGRESS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Numbers are for good. What is added gets a new one; nothing here is ever changed.
    #[test]
    fn codes_keep_their_numbers() {
        let pinned = [
            ("policy_allowed.default", 1),
            ("policy_denied.explicit_deny", 100),
            ("policy_denied.authorization_missing", 101),
            ("policy_denied.invalid_authorization_mode", 102),
            ("policy_denied.budget_exhausted", 103),
            ("policy_denied.consent_required", 104),
            ("policy_denied.suppressed_recipient", 105),
            ("policy_denied.authorization_expired", 106),
            ("policy_denied.authorization_revoked", 107),
            ("policy_denied.threshold_exceeded", 108),
            ("policy_denied.per_call_exceeded", 109),
            ("policy_denied.per_day_exceeded", 110),
            ("policy_denied.idempotency_conflict", 111),
            ("policy_denied.reconcile_required", 112),
            ("policy_denied.approval_required", 113),
            ("policy_denied.unpriced", 114),
            ("loop_detected.no_progress", 200),
            ("ssrf_block.private_address", 300),
            ("ssrf_block.metadata_endpoint", 301),
            ("ssrf_block.host_not_allowed", 302),
            ("ssrf_block.invalid_url", 303),
            ("ssrf_block.dns_resolution_failed", 304),
            ("ssrf_block.dns_pin_mismatch", 305),
            ("ssrf_block.redirect_limit_exceeded", 306),
            ("ssrf_block.redirect_missing_location", 307),
            ("ssrf_block.redirect_invalid_location", 308),
            ("manifest_validation.invalid_schema", 400),
            ("comms_failed.provider_error", 500),
            ("comms_failed.provider_circuit_open", 501),
            ("comms_failed.fallback_exhausted", 502),
            ("coding_failed.provider_error", 503),
            ("coding_failed.provider_circuit_open", 504),
            ("predict_failed.invalid_output", 600),
            ("predict_failed.invalid_input", 601),
            ("predict_failed.timeout", 602),
            ("predict_failed.iterations_exhausted", 603),
            ("predict_failed.calls_exhausted", 604),
            ("predict_failed.tokens_exhausted", 605),
            ("predict_failed.bad_prompt", 606),
            ("artifact_incompatible.hash_mismatch", 700),
            ("artifact_incompatible.missing_hash", 701),
            ("spend.overrun", 800),
            ("spend.usage_missing", 801),
            ("rollout.guard_promoted", 900),
            ("rollout.guard_rolled_back", 901),
        ];
        let found: Vec<(&str, u32)> = reasons().iter().map(|reason| (reason.code.as_str(), reason.number)).collect();
        assert_eq!(found, pinned);
        let whole: Value = serde_json::from_str(REASONS_TEXT).unwrap();
        assert_eq!(whole["taxonomy"], REASONS_VERSION);
        for (at, one) in reasons().iter().enumerate() {
            assert_eq!(one.code.split_once('.').unwrap().0, one.domain);
            assert!(!one.description.is_empty());
            assert!(reasons()[..at].iter().all(|other| other.number != one.number && other.code != one.code));
        }
        // All others deny.
        let allowing: Vec<u32> =
            reasons().iter().filter(|one| one.decision == Verdict::Allowed).map(|one| one.number).collect();
        assert_eq!(allowing, [1, 800, 801, 900]);
    }

    /// Whatever this program may put into a receipt is in the list.
    #[test]
    fn every_constant_is_in_the_list() {
        let constants = include_str!("policy.rs").lines().filter_map(|line| {
            let (_, code) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
            code.strip_suffix("\";").filter(|code| *code != REASONS_VERSION)
        });
        let constants: Vec<&str> = constants.collect();
        assert!(constants.len() >= 31, "{constants:?}");
        for code in constants {
            assert!(reason(code).is_some(), "{code} is no reason");
        }
    }

    fn good() -> Inputs {
        Inputs {
            policy_id: "spend.authorization.v1".to_owned(),
            authorization_id: Some("auth_1".to_owned()),
            authorization_mode: Some("delegated_budget".to_owned()),
            budget: Snapshot {
                currency: "usd_micros".to_owned(),
                remaining: Some(100),
                amount: 10,
                ..Snapshot::default()
            },
            context: Context { is_priced: true, ..Context::default() },
            ..Inputs::default()
        }
    }

    fn told(change: impl FnOnce(&mut Inputs)) -> String {
        let mut inputs = good();
        change(&mut inputs);
        evaluate(&inputs).reason_code
    }

    #[test]
    fn each_rule_decides() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(told(|_| ()), ALLOWED);
        assert_eq!(told(|i| i.context.manifest_validation_reason = some("anything")), INVALID_SCHEMA);
        assert_eq!(told(|i| i.context.manifest_validation_reason = some(" ")), ALLOWED);
        assert_eq!(told(|i| i.context.loop_detected_reason = some("ssrf_block.invalid_url")), NO_PROGRESS);
        assert_eq!(told(|i| i.context.ssrf_block_reason = some("ssrf_block.invalid_url")), "ssrf_block.invalid_url");
        assert_eq!(told(|i| i.context.ssrf_block_reason = some("ssrf_block.unheard_of")), PRIVATE_ADDRESS);
        let denied = |code: Option<&str>| {
            let code = code.map(ToOwned::to_owned);
            told(|i| (i.decision, i.reason_code) = (some("denied"), code))
        };
        assert_eq!(denied(Some("policy_denied.consent_required")), "policy_denied.consent_required");
        assert_eq!(denied(Some(ALLOWED)), EXPLICIT_DENY);
        assert_eq!(denied(Some("x")), EXPLICIT_DENY);
        assert_eq!(denied(None), EXPLICIT_DENY);
        assert_eq!(told(|i| i.decision = some("perhaps")), EXPLICIT_DENY);
        assert_eq!(told(|i| i.decision = some("allowed")), ALLOWED);
        assert_eq!(told(|i| i.authorization_id = None), AUTHORIZATION_MISSING);
        assert_eq!(told(|i| i.authorization_id = some(" ")), AUTHORIZATION_MISSING);
        assert_eq!(told(|i| i.authorization_mode = some("free")), INVALID_AUTHORIZATION_MODE);
        assert_eq!(told(|i| i.authorization_mode = None), ALLOWED);
        assert_eq!(told(|i| i.authorization_mode = some("system")), ALLOWED);
        assert_eq!(told(|i| i.authorization_mode = some("deny")), EXPLICIT_DENY);
        assert_eq!(told(|i| i.context.is_revoked = true), AUTHORIZATION_REVOKED);
        assert_eq!(told(|i| i.context.is_expired = true), AUTHORIZATION_EXPIRED);
        assert_eq!(told(|i| i.context.is_priced = false), UNPRICED);
        assert_eq!(told(|i| i.budget.max_per_call = Some(9)), PER_CALL_EXCEEDED);
        assert_eq!(told(|i| i.budget.max_per_call = Some(10)), ALLOWED);
        assert_eq!(told(|i| (i.budget.max_per_day, i.budget.day_held) = (Some(20), 11)), PER_DAY_EXCEEDED);
        assert_eq!(told(|i| (i.budget.max_per_day, i.budget.day_held) = (Some(20), 10)), ALLOWED);
        assert_eq!(
            told(|i| (i.budget.max_per_day, i.budget.day_held) = (Some(u64::MAX - 1), u64::MAX)),
            PER_DAY_EXCEEDED
        );
        assert_eq!(told(|i| i.budget.remaining = Some(9)), BUDGET_EXHAUSTED);
        assert_eq!(told(|i| i.budget.remaining = Some(10)), ALLOWED);
        assert_eq!(told(|i| i.budget.remaining = None), ALLOWED);
        assert_eq!(told(|i| (i.budget.remaining, i.budget.amount) = (Some(0), 0)), ALLOWED);
        assert_eq!(told(|i| i.authorization_mode = some("interactive")), APPROVAL_REQUIRED);
        let approved = |mode: &str, threshold: Option<u64>, approval: Option<&str>| {
            told(|i| {
                i.authorization_mode = some(mode);
                i.budget.threshold = threshold;
                i.context.approval = approval.map(ToOwned::to_owned);
            })
        };
        assert_eq!(approved("interactive", None, Some("apr_1")), ALLOWED);
        assert_eq!(approved("delegated_budget_with_threshold", Some(10), None), ALLOWED);
        assert_eq!(approved("delegated_budget_with_threshold", Some(9), None), THRESHOLD_EXCEEDED);
        assert_eq!(approved("delegated_budget_with_threshold", Some(9), Some("apr_1")), ALLOWED);
        assert_eq!(approved("delegated_budget_with_threshold", None, None), THRESHOLD_EXCEEDED);
    }

    #[test]
    fn the_first_rule_wins() {
        let mut inputs = Inputs { decision: Some("denied".to_owned()), ..Inputs::default() };
        inputs.context.loop_detected_reason = Some(NO_PROGRESS.to_owned());
        assert_eq!((evaluate(&inputs).reason_code.as_str(), evaluate(&inputs).rule), (NO_PROGRESS, 2));
        inputs.context.loop_detected_reason = None;
        assert_eq!((evaluate(&inputs).reason_code.as_str(), evaluate(&inputs).rule), (EXPLICIT_DENY, 5));
        inputs.decision = None;
        assert_eq!((evaluate(&inputs).reason_code.as_str(), evaluate(&inputs).rule), (AUTHORIZATION_MISSING, 6));
        assert_eq!((evaluate(&good()).rule as usize, rules().len()), (17, 17));
        assert_eq!(rules().nth(5), Some(evaluate(&inputs).why.as_str()));
    }

    #[test]
    fn a_hash_covers_all_inputs() {
        let first = evaluate(&good());
        let mut other = good();
        other.policy_id = "else".to_owned();
        assert_ne!(first.evaluation_hash, evaluate(&other).evaluation_hash);
        let expected = json!({"decision": "allowed", "reason_code": ALLOWED, "inputs": good()});
        assert_eq!(first.evaluation_hash, hash::of(&expected));
    }

    #[test]
    fn loops_are_seen_within_the_window() {
        let mut loops = Loops::default();
        for _ in 1..LOOP_EQUAL_MAX {
            assert_eq!(loops.note("a"), None);
        }
        assert_eq!(loops.note("b"), None);
        assert_eq!(loops.note("a"), Some(NO_PROGRESS));
        let mut loops = Loops::default();
        // Every second one is another: fifteen equal ones in any window.
        assert!((0..1000).all(|n| loops.note(if n % 2 == 0 { "a" } else { "b" }).is_none()));
        assert_eq!(loops.keys.len(), LOOP_WINDOW);
    }

    fn any_inputs() -> impl Strategy<Value = Inputs> {
        let limit = || prop::option::of(0..50u64);
        let mode =
            prop::option::of(prop::sample::select(&["delegated_budget", "interactive", "deny", "system", "x"][..]));
        let word =
            || prop::option::of(prop::sample::select(&["", "denied", "allowed", ALLOWED, NO_PROGRESS, UNPRICED][..]));
        let budget = (limit(), 0..50u64, limit(), 0..50u64, limit(), limit());
        let flags = (any::<bool>(), prop::bool::weighted(0.1), prop::bool::weighted(0.1));
        (mode, word(), word(), word(), word(), budget, flags).prop_map(
            |(
                mode,
                id,
                decision,
                code,
                context,
                (remaining, amount, call, held, day, threshold),
                (priced, revoked, expired),
            )| {
                let text = |word: Option<&str>| word.map(ToOwned::to_owned);
                Inputs {
                    policy_id: "p".to_owned(),
                    authorization_id: text(id),
                    authorization_mode: text(mode),
                    decision: text(decision),
                    reason_code: text(code),
                    budget: Snapshot {
                        remaining,
                        amount,
                        max_per_call: call,
                        day_held: held,
                        max_per_day: day,
                        threshold,
                        ..Snapshot::default()
                    },
                    context: Context {
                        loop_detected_reason: text(context).filter(|_| revoked),
                        is_priced: priced,
                        is_revoked: revoked,
                        is_expired: expired,
                        ..Context::default()
                    },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_kept_is_decided_again(inputs in any_inputs()) {
            let decision = evaluate(&inputs);
            let kept: Inputs = serde_json::from_str(&serde_json::to_string(&inputs).unwrap()).unwrap();
            prop_assert_eq!(evaluate(&kept), decision.clone());
            prop_assert!(reason(&decision.reason_code).is_some_and(|reason| reason.decision == decision.decision));
            if decision.is_allowed() {
                prop_assert!(inputs.budget.remaining.is_none_or(|left| inputs.budget.amount <= left));
                prop_assert!(inputs.context.is_priced && !inputs.context.is_revoked && !inputs.context.is_expired);
                prop_assert!(inputs.authorization_id.is_some());
            }
        }
    }
}
