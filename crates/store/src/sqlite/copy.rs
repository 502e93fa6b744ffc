//! A fresh SQLite store filled from another store: the backup of a shared one.

use std::path::Path;

use actum_contract::id::Tenant;
use actum_ledger::append::{Appended, Log};
use actum_ledger::journal::{DeadLetter, JournalError};
use actum_ledger::time;
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use super::{failed, open, rows};
use crate::Older;

/// A copy under way. Nothing of it is valid before `finish`.
#[derive(Debug)]
pub(crate) struct Copy(Connection);

impl Copy {
    pub(crate) fn create(path: &Path, store_id: &str) -> Result<Self, JournalError> {
        let connection = open::open(path, Older::Migrate)?.writer;
        let connection = connection.ok_or_else(|| JournalError::Unusable("the copy cannot be written".into()))?;
        connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
        connection.execute("UPDATE store SET id = ?1", params![store_id]).map_err(failed)?;
        Ok(Self(connection))
    }

    pub(crate) fn entry(&self, entry: &Appended) -> Result<(), JournalError> {
        rows::insert_entry(&self.0, entry).and_then(|()| rows::project(&self.0, entry)).map_err(failed)
    }

    pub(crate) fn log(&self, tenant: &Tenant, log: &Log) -> Result<(), JournalError> {
        rows::put_log(&self.0, tenant.as_str(), log).map_err(failed)
    }

    pub(crate) fn checkpoint(&self, tenant: &Tenant, size: i64, note: &str) -> Result<(), JournalError> {
        let sql = "INSERT INTO checkpoint (tenant, size, note) VALUES (?1, ?2, ?3)";
        self.0.execute(sql, params![tenant.as_str(), size, note]).map(|_| ()).map_err(failed)
    }

    pub(crate) fn letter(&self, letter: &DeadLetter) -> Result<(), JournalError> {
        let sql = "INSERT INTO dead_letter (tenant, recorded_ns, code, refusal, document) VALUES (?1, ?2, ?3, ?4, ?5)";
        let DeadLetter { tenant, recorded_at, code, refusal, document } = letter;
        let values = params![tenant, time::nanoseconds(*recorded_at), code, refusal, document];
        self.0.execute(sql, values).map(|_| ()).map_err(failed)
    }

    /// A row of one of the tables about runs.
    pub(crate) fn row(
        &self,
        table: &str,
        columns: &str,
        insert: Option<&str>,
        values: Vec<Value>,
    ) -> Result<(), JournalError> {
        let plain = || format!("INSERT INTO {table} ({columns}) VALUES ({})", vec!["?"; values.len()].join(", "));
        let sql = insert.map_or_else(plain, ToOwned::to_owned);
        let inserted = self.0.prepare_cached(&sql).and_then(|mut s| s.execute(params_from_iter(values)));
        inserted.map(|_| ()).map_err(failed)
    }

    pub(crate) fn finish(self) -> Result<(), JournalError> {
        self.0.execute_batch("COMMIT").map_err(failed)?;
        self.0.close().map_err(|(_, e)| failed(e))
    }
}
