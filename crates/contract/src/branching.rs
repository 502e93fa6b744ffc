//! The branching guard: every policy's decisions over their whole domain, as a table whose digest is pinned.
//!
//! Code that changes a branch changes a table. Its digest then no longer equals the one pinned for the policy's
//! version, and the test below fails until the version is raised and the new digest is pinned beside the old ones.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::digest::Digest;
use crate::policy::correction::{AfterCorrection, after_audit, after_convergence};
use crate::policy::determinism::{Given, Named, source};
use crate::policy::planner::{AfterPlan, Planned, after_plan};
use crate::policy::validation::{AfterValidation, after_validation};
use crate::resolve::Source;
use crate::schema::{Field, Mode, Profile, Range};
use crate::version;

/// All decisions of one policy: a line for each point of the domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub policy: &'static str,
    pub version: u64,
    pub rows: String,
}

impl Table {
    pub fn digest(&self) -> Digest {
        Digest::sha256(self.rows.as_bytes())
    }
}

/// A released version of a policy and the digest of its table. Rows are only ever added.
#[derive(Debug, Clone, Copy)]
pub struct Pin {
    pub policy: &'static str,
    pub version: u64,
    pub digest: &'static str,
}

#[rustfmt::skip]
pub const PINS: &[Pin] = &[
    Pin { policy: "determinism", version: 1, digest: "b3c95cd4a08e39b68c76935264e7c6633ff3feafed7083b1da6cec7b9bbdf001" },
    Pin { policy: "planner", version: 1, digest: "ac5bc48249c92457556ff625c364869ccefbfd59f24723ba44338143cbe045e0" },
    Pin { policy: "validation", version: 1, digest: "35d28831164a48f45a4a7a77df5d48a822af3471069dac12af0e6fedb56e4b8a" },
    Pin { policy: "correction", version: 1, digest: "f45eb0d5e87a8e30661365c7fd28aac0e0d86dc1ed4a09979e3c780fdf6c24ab" },
];

/// The tables of this runtime.
pub fn tables() -> [Table; 4] {
    [determinism(source), planner(after_plan), validation(after_validation), correction(after_audit, after_convergence)]
}

/// Whether a table is the one pinned for its version; the sentence says what to do if not.
pub fn guard(table: &Table, pins: &[Pin]) -> Result<(), String> {
    let Table { policy, version, .. } = table;
    let digest = table.digest().to_hex();
    let last = pins.iter().filter(|p| p.policy == *policy).map(|p| p.version).max();
    match pins.iter().find(|p| p.policy == *policy && p.version == *version) {
        Some(pin) if pin.digest == digest => Ok(()),
        Some(pin) => Err(format!(
            "decisions of the {policy} policy changed (digest {digest}, pinned {}) but its version is still {version}: \
             raise the version in contract::version and pin the new digest beside the old one",
            pin.digest
        )),
        None if last.is_none_or(|last| *version > last) => {
            Err(format!("version {version} of the {policy} policy is not pinned yet: add digest {digest} to PINS"))
        }
        None => Err(format!("version {version} of the {policy} policy went backwards: raise it instead")),
    }
}

const BOTH: [bool; 2] = [false, true];

fn determinism(decide: impl Fn(Given) -> Source) -> Table {
    let mut rows = String::new();
    for persisted in BOTH {
        for explicit in BOTH {
            for profile in [Named::Nobody, Named::Request, Named::Environment] {
                for preset in BOTH {
                    for env in BOTH {
                        let given = Given { persisted, explicit, profile, preset, env };
                        let _ = writeln!(rows, "{given:?} => {:?}", decide(given));
                    }
                }
            }
        }
    }
    // Defaults, ranges and presets steer every branch behind them, so they belong to the table.
    for field in Field::all() {
        let range = match field.range() {
            Range::Integer { min, max } => format!("{min}..={max}"),
            other => format!("{other:?}"),
        };
        let _ = write!(rows, "{} {range} default {}", field.name(), field.default_value());
        for profile in Profile::ALL {
            if let Some(value) = profile.preset().get(field) {
                let _ = write!(rows, " {} {value}", profile.name());
            }
        }
        rows.push('\n');
    }
    Table { policy: "determinism", version: version::DETERMINISM_POLICY, rows }
}

fn planner(decide: impl Fn(Planned) -> AfterPlan) -> Table {
    let mut rows = String::new();
    for in_time in BOTH {
        for planned in [
            Planned::Failed { in_time },
            Planned::Steps { none: true, in_time },
            Planned::Steps { none: false, in_time },
        ] {
            let _ = writeln!(rows, "{planned:?} => {:?}", decide(planned));
        }
    }
    Table { policy: "planner", version: version::PLANNER_POLICY, rows }
}

fn validation(decide: impl Fn(Mode, bool, u64, u64) -> AfterValidation) -> Table {
    let mut rows = String::new();
    // Five is the largest number of attempts any field allows.
    for mode in Mode::ALL {
        for passed in BOTH {
            for max in 0..=5 {
                for used in 0..=max {
                    let answer = decide(mode, passed, used, max);
                    let _ = writeln!(rows, "{mode:?} passed={passed} used={used} max={max} => {answer:?}");
                }
            }
        }
    }
    Table { policy: "validation", version: version::VALIDATION_POLICY, rows }
}

fn correction(
    audit: impl Fn(Mode, bool) -> AfterCorrection,
    convergence: impl Fn(Mode, bool, Ordering) -> AfterCorrection,
) -> Table {
    let mut rows = String::new();
    for mode in Mode::ALL {
        for flag in BOTH {
            let _ = writeln!(rows, "audit {mode:?} within={flag} => {:?}", audit(mode, flag));
            for blocking in [Ordering::Less, Ordering::Equal, Ordering::Greater] {
                let answer = convergence(mode, flag, blocking);
                let _ = writeln!(rows, "convergence {mode:?} same={flag} blocking={blocking:?} => {answer:?}");
            }
        }
    }
    Table { policy: "correction", version: version::CORRECTION_RECIPE, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_those_pinned_for_their_version() {
        let failures: Vec<_> = tables().iter().filter_map(|table| guard(table, PINS).err()).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    /// One decision is changed in each policy in turn; the guard must notice every one of them.
    #[test]
    fn a_changed_decision_without_a_raised_version_fails() {
        let changed = [
            determinism(|given| match given {
                Given { persisted: true, explicit: false, profile: Named::Nobody, preset: false, env: true } => {
                    Source::Env
                }
                other => source(other),
            }),
            planner(|planned| match planned {
                Planned::Steps { none: true, in_time: true } => AfterPlan::Proceed,
                other => after_plan(other),
            }),
            validation(|mode, passed, used, max| match (mode, passed, used, max) {
                (Mode::Warn, false, 0, 5) => AfterValidation::Correct,
                _ => after_validation(mode, passed, used, max),
            }),
            correction(after_audit, |mode, same, blocking| match (mode, same, blocking) {
                (Mode::Enforce, false, Ordering::Equal) => AfterCorrection::Continue,
                _ => after_convergence(mode, same, blocking),
            }),
        ];
        for table in changed {
            let message = guard(&table, PINS).expect_err(table.policy);
            assert!(message.contains("raise the version"), "{message}");
            // With the version raised it asks for the pin, and with the pin it is content.
            let raised = Table { version: table.version + 1, ..table };
            assert!(guard(&raised, PINS).unwrap_err().contains("is not pinned yet"));
            let digest: &'static str = raised.digest().to_hex().leak();
            let pin = Pin { policy: raised.policy, version: raised.version, digest };
            assert_eq!(guard(&raised, &[PINS, &[pin]].concat()), Ok(()));
            // Going back below a released version is no way out.
            let lowered = Table { version: 0, ..raised };
            assert!(guard(&lowered, PINS).unwrap_err().contains("went backwards"));
        }
    }
}
