//! What a run has spent: what its reservations come to, and its receipts in the ledger, which are hashed into what is
//! signed. Reads only.

use std::collections::BTreeMap;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_kernel::Spent;
use actum_ledger::journal::Range;
use actum_ledger::spend::{self, Filter, ReservationState, Spend};
use actum_predict::evolve::Kind;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::model::{evidence, receipt};
use crate::purse::is_beside;

/// Receipts read at a time.
const PAGE: usize = 50;
/// Reservations of one run that are summed up.
const RESERVATIONS_MAX: usize = 1_000_000;
/// How far clocks may differ: a receipt that is so much older than its run is not its.
const CLOCKS_MS: i64 = 3_600_000;

/// Where a search in the ledger ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Since {
    /// The run was made then.
    Created(i64),
    Entry(u64),
}

/// The receipts of a run, as they are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipts {
    pub spent: Spent,
    /// The SHA-256 of their ids, sorted, a line each.
    pub digest: String,
    /// The entry of the oldest.
    pub since: u64,
}

impl Receipts {
    pub(crate) fn json(&self) -> Value {
        let mut shown = json!(self.spent);
        shown["receipts"] = json!(self.digest);
        shown["since"] = json!(self.since);
        shown
    }
}

/// The receipts of a run's calls, of models and of tools, before a position in the ledger. None: it made no call.
pub(crate) fn receipts(
    waiter: &Waiter,
    tenant: &Tenant,
    run: &str,
    below: u64,
    since: Since,
) -> Result<Option<Receipts>, Failure> {
    let (mut ids, mut first, mut calls) = (Vec::new(), below, 0);
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for kind in [receipt::TYPE, spend::TYPE] {
        let mut from = below;
        'kind: loop {
            let range = Range { from, limit: PAGE, backwards: true, kind: Some(kind.to_owned()) };
            let rows = waiter.wait(waiter.journal.rows(tenant, range))?;
            let Some(last) = rows.last().map(|row| row.seq) else { break };
            for row in rows {
                let is_before = match since {
                    Since::Created(at_ms) => row.created_ns / 1_000_000 < at_ms.saturating_sub(CLOCKS_MS),
                    Since::Entry(seq) => row.seq < seq,
                };
                if is_before {
                    break 'kind;
                }
                let mut entry: Value = serde_json::from_slice(&row.body).unwrap_or_default();
                let mut payload = entry["payload"].take();
                if kind == receipt::TYPE {
                    payload = evidence::today(Kind::Receipt, payload)?;
                }
                let Some((id, currency, spent, is_call)) = told(&payload, run) else { continue };
                ids.push(id);
                first = first.min(row.seq);
                calls += u64::from(is_call);
                // What has no price has no currency either.
                let currency = if currency.is_empty() { spend::CURRENCY.to_owned() } else { currency };
                let sum = sums.entry(currency).or_default();
                *sum = sum.saturating_add(spent);
            }
            from = last;
        }
    }
    ids.sort_unstable();
    // One currency is what there is; of several the one of which most was spent.
    let Some((currency, spent)) = sums.iter().max_by_key(|(_, spent)| **spent) else { return Ok(None) };
    let others = sums.iter().filter(|(name, spent)| *name != currency && **spent > 0);
    let spent = Spent {
        currency: currency.clone(),
        spent: *spent,
        calls,
        others: others.map(|(name, spent)| (name.clone(), *spent)).collect(),
    };
    Ok(Some(Receipts { spent, digest: Digest::sha256(ids.join("\n").as_bytes()).to_hex(), since: first }))
}

/// Id, currency and cost of a receipt that is of a call of this run, and whether the call was made.
fn told(payload: &Value, run: &str) -> Option<(String, String, u64, bool)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let made = |status: &Value| status != "denied";
    if payload["action"] == spend::TOOL_SETTLEMENT && payload["run"] == run {
        let spent = payload["committed"].as_u64().unwrap_or(0);
        return Some((text(&payload["receipt_id"]), text(&payload["currency"]), spent, made(&payload["status"])));
    }
    let receipt = payload.get("receipt").filter(|one| one["run_id"] == run && one["kind"] == "call")?;
    let budget = &receipt["budget"];
    // Anybody may name a run; what that costs is none of the run's.
    if budget["call_id"].as_str().is_some_and(is_beside) {
        return None;
    }
    let spent = budget["spent"].as_u64().unwrap_or(0);
    Some((text(&receipt["receipt_id"]), text(&budget["currency"]), spent, made(&receipt["status"])))
}

/// What the reservations of a run come to; nothing if it has none.
pub(crate) fn held(waiter: &Waiter, spend: &dyn Spend, tenant: &Tenant, run: &str) -> Result<Option<Value>, Failure> {
    let filter = Filter { run: Some(run.to_owned()), limit: RESERVATIONS_MAX, ..Filter::default() };
    let all = waiter.wait(spend.reservations(tenant, filter))?;
    let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for one in all.iter().filter(|one| !is_beside(&one.call)) {
        let [spent, reserved, unknown] = sums.entry(&one.currency).or_default();
        let (sum, amount) = match one.state {
            ReservationState::Committed => (spent, one.committed.unwrap_or(0)),
            ReservationState::Reserved => (reserved, one.amount),
            ReservationState::ReconcileRequired => (unknown, one.amount),
            ReservationState::Released => continue,
        };
        *sum = sum.saturating_add(amount);
    }
    let json = |(currency, [spent, reserved, unknown]): (&str, [u64; 3])| json!({"currency": currency, "spent": spent, "reserved": reserved, "reconcile_required": unknown});
    let mut shown: Vec<Value> = sums.into_iter().map(json).collect();
    if shown.is_empty() {
        return Ok(None);
    }
    let mut first = shown.remove(0);
    if !shown.is_empty() {
        first["others"] = json!(shown);
    }
    Ok(Some(first))
}
