//! Letting go of what is old in the file, and a look at the queue. Works on connections of its own, a thousand rows at a
//! time: the writer gets its turn in between.

use actum_ledger::journal::JournalError;
use rusqlite::{Connection, params};

use super::failed;
use crate::retention::{FORGET_ROWS_MAX, Forget, Forgotten, LEASES, QUEUED, Queue};

pub(super) fn queue(c: &Connection, now_ms: i64) -> Result<Queue, JournalError> {
    let (queued, oldest_ms) =
        c.query_row(QUEUED, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))).map_err(failed)?;
    let (leases, over) = c
        .query_row(LEASES, params![now_ms], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        .map_err(failed)?;
    Ok(Queue { queued: queued as u64, oldest_ms, leases: leases as u64, leases_over: over as u64 })
}

pub(super) fn forget(c: &Connection, what: &Forget) -> Result<Forgotten, JournalError> {
    let old = |table: &str, column: &str, before: Option<i64>| -> Result<u64, JournalError> {
        let Some(before) = before else { return Ok(0) };
        if what.dry {
            let sql = format!("SELECT count(*) FROM {table} WHERE {column} < ?1");
            return c.query_row(&sql, params![before], |row| row.get::<_, i64>(0)).map(|n| n as u64).map_err(failed);
        }
        let sql = format!(
            "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {column} < ?1 LIMIT {FORGET_ROWS_MAX})"
        );
        let mut gone = 0;
        loop {
            match c.execute(&sql, params![before]).map_err(failed)? {
                0 => return Ok(gone),
                some => gone += some as u64,
            }
        }
    };
    Ok(Forgotten {
        answers: old("kept_answer", "at_ms", what.answers_before_ms)?,
        letters: old("dead_letter", "recorded_ns", what.letters_before_ns)?,
    })
}
