//! Letting go of what is old in a shared store, and a look at the queue. What somebody else has in hand is left for the next
//! time, so that nobody waits for us, nor we for anybody.

use actum_ledger::journal::JournalError;
use tokio_postgres::Client;

use super::failed;
use crate::retention::{FORGET_ROWS_MAX, Forget, Forgotten, LEASES, QUEUED, Queue};

pub(super) async fn queue(client: &Client, now_ms: i64) -> Result<Queue, JournalError> {
    let queued = client.query_one(QUEUED, &[]).await.map_err(failed)?;
    let leases = client.query_one(LEASES, &[&now_ms]).await.map_err(failed)?;
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(Queue {
        queued: number(queued.get(0)),
        oldest_ms: queued.get(1),
        leases: number(leases.get(0)),
        leases_over: number(leases.get(1)),
    })
}

pub(super) async fn forget(client: &Client, what: &Forget) -> Result<Forgotten, JournalError> {
    let old = async |table: &str, key: &str, column: &str, before: Option<i64>| -> Result<u64, JournalError> {
        let Some(before) = before else { return Ok(0) };
        if what.dry {
            let sql = format!("SELECT count(*) FROM {table} WHERE {column} < $1");
            let counted: i64 = client.query_one(&sql, &[&before]).await.map_err(failed)?.get(0);
            return Ok(u64::try_from(counted).unwrap_or(0));
        }
        let sql = format!(
            "DELETE FROM {table} WHERE ({key}) IN
             (SELECT {key} FROM {table} WHERE {column} < $1 LIMIT {FORGET_ROWS_MAX} FOR UPDATE SKIP LOCKED)"
        );
        let mut gone = 0;
        loop {
            match client.execute(&sql, &[&before]).await.map_err(failed)? {
                0 => return Ok(gone),
                some => gone += some,
            }
        }
    };
    Ok(Forgotten {
        answers: old("kept_answer", "tenant, token, key", "at_ms", what.answers_before_ms).await?,
        letters: old("dead_letter", "n", "recorded_ns", what.letters_before_ns).await?,
    })
}
