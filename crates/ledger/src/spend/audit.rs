//! Whether what authorizations say of themselves is what their reservations come to. Called by the upkeep of a store.
//! Never mends anything.

use std::collections::HashMap;

use super::{Authorization, WITHIN_DEPTH_MAX};

/// What the reservations of one authorization that count for one day come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    pub tenant: String,
    pub authorization: String,
    pub day: i64,
    pub committed: u64,
    pub held: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Total {
    spent: u64,
    reserved: u64,
    day_held: u64,
}

/// Everything that does not agree, in sentences; nothing if all does. An amount counts for the authorization it was
/// reserved under and for everything that one is within.
pub fn audit(all: &[Authorization], sums: &[Sum]) -> Vec<String> {
    let known: HashMap<(&str, &str), &Authorization> =
        all.iter().map(|a| ((a.tenant.as_str(), a.id.as_str()), a)).collect();
    let mut totals: HashMap<(&str, &str), Total> = HashMap::new();
    let mut wrong = Vec::new();
    for sum in sums {
        let mut next = Some(sum.authorization.as_str());
        for _ in 0..=WITHIN_DEPTH_MAX {
            let Some(id) = next else { break };
            let Some(authorization) = known.get(&(sum.tenant.as_str(), id)) else {
                wrong.push(format!("{} of {} has reservations and does not exist", id, sum.tenant));
                break;
            };
            let total = totals.entry((authorization.tenant.as_str(), &authorization.id)).or_default();
            total.spent = total.spent.saturating_add(sum.committed);
            total.reserved = total.reserved.saturating_add(sum.held);
            if sum.day == authorization.day {
                total.day_held = total.day_held.saturating_add(sum.committed).saturating_add(sum.held);
            }
            next = authorization.within.as_deref();
        }
    }
    for a in all {
        let total = totals.get(&(a.tenant.as_str(), a.id.as_str())).copied().unwrap_or_default();
        let figures = [
            ("spent", a.spent, total.spent),
            ("reserved", a.reserved, total.reserved),
            ("held on its day", a.day_held, total.day_held),
        ];
        for (what, says, is) in figures.into_iter().filter(|(_, says, is)| says != is) {
            wrong.push(format!("{} of {} says {says} {what}, its reservations come to {is}", a.id, a.tenant));
        }
    }
    wrong
}
