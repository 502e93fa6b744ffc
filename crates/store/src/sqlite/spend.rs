//! Writing about money: requests are decided one after the other by the purse, and of every row only what is so at the end
//! of the batch is written. However many calls share an authorization, it is one row.

use actum_contract::id::Tenant;
use actum_ledger::journal::JournalError;
use actum_ledger::spend::{Authorization, Reservation, WITHIN_DEPTH_MAX};
use rusqlite::params;

use super::failed;
use super::run::Answer;
use super::spend_read::{authorization, reservations};
use super::write::Writing;
use crate::batch::NotTaken;
use crate::crash;
use crate::queue::Done;
use crate::spend::{Planned, STUCK_MAX, SpendRequest, stored};

impl<'r> Writing<'_, 'r> {
    pub(super) fn spend(&mut self, request: &'r SpendRequest) -> Answer {
        self.learn_money(request)?;
        let Planned { step, entries } = match request.decide(&self.purse, self.now_ms) {
            Ok(planned) => planned,
            Err(answer) => return Ok(Ok(Done::Spent(answer))),
        };
        if !entries.is_empty() {
            match self.decide_all(&entries)? {
                Ok(taken) => taken.into_iter().try_for_each(|entry| self.put_entry(entry)).map_err(failed)?,
                Err(NotTaken { refusal, spoiled: true }) => return Ok(Err(refusal)),
                Err(NotTaken { refusal, spoiled: false }) => {
                    return Ok(Ok(Done::Spent(request.not_taken(&refusal.message))));
                }
            }
        }
        Ok(Ok(Done::Spent(self.purse.apply(step))))
    }

    /// Tells the purse what the rules will ask about this request.
    fn learn_money(&mut self, request: &SpendRequest) -> Result<(), JournalError> {
        let tenant = request.tenant();
        for id in request.authorizations() {
            self.learn_chain(tenant, id)?;
        }
        if let Some([authorization, run, call]) = request.reservation()
            && self.purse.reservation(tenant, authorization, run, call).is_none()
        {
            let which = "tenant = ?1 AND run = ?2 AND call = ?3 AND authorization_id = ?4";
            let found = reservations(self.tx, which, params![tenant.as_str(), run, call, authorization])?;
            found.into_iter().for_each(|row| self.purse.learn_reservation(row));
        }
        if let SpendRequest::Stuck { tenant, run } = request {
            let until = if run.is_some() { i64::MAX } else { self.now_ms };
            let which = "tenant = ?1 AND state = 'reserved' AND deadline_ms <= ?2 AND (?3 IS NULL OR run = ?3)
                         ORDER BY deadline_ms LIMIT ?4";
            let found = reservations(self.tx, which, params![tenant.as_str(), until, run, STUCK_MAX as i64])?;
            found.into_iter().for_each(|row| self.purse.learn_reservation(row));
        }
        Ok(())
    }

    /// An authorization and everything it is within.
    fn learn_chain(&mut self, tenant: &Tenant, id: &str) -> Result<(), JournalError> {
        let mut next = Some(id.to_owned());
        for _ in 0..=WITHIN_DEPTH_MAX {
            let Some(id) = next else { break };
            if let Some(known) = self.purse.authorization(tenant, &id) {
                next = known.within.clone();
                continue;
            }
            let Some(found) = authorization(self.tx, tenant, &id)? else { break };
            next = found.within.clone();
            self.purse.learn_authorization(found);
        }
        Ok(())
    }

    /// Writes what the batch has come to.
    pub(super) fn settle_money(&self) -> rusqlite::Result<()> {
        let changes = self.purse.changes();
        if changes.is_empty() {
            return Ok(());
        }
        changes.new_authorizations.into_iter().try_for_each(|row| self.insert_authorization(row))?;
        changes.authorizations.into_iter().try_for_each(|row| self.update_authorization(row))?;
        changes.new_reservations.into_iter().try_for_each(|row| self.insert_reservation(row))?;
        changes.reservations.into_iter().try_for_each(|row| self.update_reservation(row))?;
        crash::point("spend.written");
        Ok(())
    }

    fn insert_authorization(&self, row: &Authorization) -> rusqlite::Result<()> {
        let sql = "INSERT INTO spend_authorization (tenant, id, owner, autopilot, thread, run, mode, currency, max_total,
                   max_per_call, max_per_day, threshold, within, issued_ms, expires_ms, revoked_ms, spent, reserved, day,
                   day_held) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)";
        let limit = |limit: Option<u64>| limit.map(|limit| limit as i64);
        let values = params![
            row.tenant.as_str(),
            row.id,
            row.owner,
            stored(&row.autopilot),
            stored(&row.thread),
            stored(&row.run),
            row.mode.word(),
            row.currency,
            limit(row.max_total),
            limit(row.max_per_call),
            limit(row.max_per_day),
            limit(row.threshold),
            row.within,
            row.issued_ms,
            row.expires_ms,
            row.revoked_ms,
            row.spent as i64,
            row.reserved as i64,
            row.day,
            row.day_held as i64,
        ];
        self.execute(sql, values).map(|_| ())
    }

    fn update_authorization(&self, row: &Authorization) -> rusqlite::Result<()> {
        let sql = "UPDATE spend_authorization SET revoked_ms = ?3, spent = ?4, reserved = ?5, day = ?6, day_held = ?7
                   WHERE tenant = ?1 AND id = ?2";
        let (spent, reserved, day_held) = (row.spent as i64, row.reserved as i64, row.day_held as i64);
        let values = params![row.tenant.as_str(), row.id, row.revoked_ms, spent, reserved, row.day, day_held];
        self.execute(sql, values).map(|_| ())
    }

    fn insert_reservation(&self, row: &Reservation) -> rusqlite::Result<()> {
        let sql = "INSERT INTO spend_reservation (tenant, authorization_id, run, call, amount, currency, state, retry,
                   idempotency_key, correlation, committed, reason, approval, day, reserved_ms, deadline_ms, settled_ms,
                   reconciled) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";
        let values = params![
            row.tenant.as_str(),
            row.authorization,
            row.run,
            row.call,
            row.amount as i64,
            row.currency,
            row.state.word(),
            row.retry.word(),
            row.idempotency_key,
            row.correlation,
            row.committed.map(|amount| amount as i64),
            row.reason,
            row.approval,
            row.day,
            row.reserved_ms,
            row.deadline_ms,
            row.settled_ms,
            row.reconciled,
        ];
        self.execute(sql, values).map(|_| ())
    }

    fn update_reservation(&self, row: &Reservation) -> rusqlite::Result<()> {
        let sql =
            "UPDATE spend_reservation SET state = ?5, correlation = ?6, committed = ?7, reason = ?8, settled_ms = ?9,
                   reconciled = ?10 WHERE tenant = ?1 AND run = ?2 AND call = ?3 AND authorization_id = ?4";
        let values = params![
            row.tenant.as_str(),
            row.run,
            row.call,
            row.authorization,
            row.state.word(),
            row.correlation,
            row.committed.map(|amount| amount as i64),
            row.reason,
            row.settled_ms,
            row.reconciled,
        ];
        self.execute(sql, values).map(|_| ())
    }
}
