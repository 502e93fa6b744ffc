//! A million runs, quickly: two real ones (one that succeeded, one that failed) are multiplied in the store's own tables, with
//! their texts and journals, an id and a time each. The ledger is not multiplied: its entries are chained by their hashes, and
//! none of what is asked here reads it. So `store check` stays true: runs are records of their own, not made from it.

use actum_testkit::program::Program;
use tokio_postgres::NoTls;

use crate::http::runtime;
use crate::site::{Site, work};

/// Of the ids, as they would be: one every so often, the newest a while ago.
const STEP_MS: u64 = 2_500;
/// One run in so many failed, and one in so many waits for a worker elsewhere.
const FAILED_ONE_IN: u64 = 50;
const QUEUED_ONE_IN: u64 = 100;
/// Runs that are written in one transaction.
const PAGE: u64 = 50_000;

/// What was stored.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub runs: u64,
    first_ms: u64,
}

impl Stored {
    pub(crate) fn id(&self, n: u64) -> String {
        let ms = self.first_ms + n * STEP_MS;
        format!("{:08x}-{:04x}-7000-8000-{n:012x}", ms >> 16, ms & 0xffff)
    }
}

/// The two runs that are multiplied: their ids.
fn originals(actum: &Program) -> [String; 2] {
    ["writes", "fails"].map(|agent| {
        let file = actum.file("work.json", work(agent, 1).to_string());
        let ended = actum.run(&["run", "--json", file.to_str().expect("a path")]);
        let list = actum.run(&["list", "--json", "--limit", "1"]).json();
        let run = &list["runs"][0];
        let is_well = (run["state"] == "succeeded") == (agent == "writes");
        assert!(is_well, "{run} {}", ended.stderr);
        run["run_id"].as_str().expect("an id").to_owned()
    })
}

pub(crate) fn fill(site: &Site, runs: u64) -> Stored {
    let originals = originals(&site.actum);
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_millis();
    let now_ms = u64::try_from(now_ms).expect("a time");
    let stored = Stored { runs, first_ms: now_ms - (runs + 1_000) * STEP_MS };
    match &site.url {
        None => sqlite(&site.actum, &stored, &originals),
        Some(url) => postgres(url, &stored, &originals),
    }
    stored
}

/// Columns of a run that are those of its original.
const SAME: &str = "t.item, t.robot, t.attempt, t.epoch, t.version, t.waits, t.cancel";

fn sqlite(actum: &Program, stored: &Stored, [good, bad]: &[String; 2]) {
    let c = rusqlite::Connection::open(actum.path(".actum/actum.db")).expect("the store");
    c.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; PRAGMA wal_autocheckpoint = 10000")
        .expect("settings");
    let first = stored.first_ms;
    for from in (0..stored.runs).step_by(PAGE as usize) {
        let to = (from + PAGE).min(stored.runs);
        // What is new of each run, and which of the two it is made of.
        let head = format!(
            "WITH RECURSIVE i (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM i WHERE i < {to} - 1),
             k (i, n, ms, id, submission, is_queued, original) AS (
                 SELECT i, 1000 + i, {first} + i * {STEP_MS},
                        printf('%08x-%04x-7000-8000-%012x', ({first} + i * {STEP_MS}) / 65536, ({first} + i * {STEP_MS}) % 65536, i),
                        printf('%08x-%04x-7001-8000-%012x', ({first} + i * {STEP_MS}) / 65536, ({first} + i * {STEP_MS}) % 65536, i / 10),
                        i % {QUEUED_ONE_IN} = 1, CASE WHEN i % {FAILED_ONE_IN} = 0 THEN '{bad}' ELSE '{good}' END
                 FROM i)"
        );
        let texts = [("run_text", "metadata", "true"), ("run_outcome", "outcome", "NOT k.is_queued")];
        let mut sql = format!(
            "BEGIN;
             INSERT INTO run (n, tenant, id, submission, item, robot, attempt, epoch, version, waits, cancel, place, state, created_ms, updated_ms, error)
             {head} SELECT k.n, 'local', k.id, k.submission, {SAME}, CASE WHEN k.is_queued THEN 'elsewhere:/p' ELSE t.place END,
                    CASE WHEN k.is_queued THEN 'queued' ELSE t.state END, k.ms, k.ms + 900, t.error
             FROM k CROSS JOIN run t ON t.tenant = 'local' AND t.id = k.original;"
        );
        for (table, column, which) in texts {
            sql += &format!(
                "INSERT INTO {table} (n, {column})
                 {head} SELECT k.n, replace(x.{column}, k.original, k.id) FROM k CROSS JOIN run t ON t.tenant = 'local' AND t.id = k.original
                 JOIN {table} x ON x.n = t.n WHERE {which};"
            );
        }
        sql += &format!(
            "INSERT INTO run_event (run, n, attempt, at_ms, kind, body)
             {head} SELECT k.n, e.n, e.attempt, k.ms + e.n, e.kind, e.body FROM k CROSS JOIN run t ON t.tenant = 'local' AND t.id = k.original
             JOIN run_event e ON e.run = t.n WHERE NOT k.is_queued;
             COMMIT;"
        );
        c.execute_batch(&sql).expect("rows");
    }
    c.execute_batch("PRAGMA journal_mode = WAL").expect("a setting");
}

fn postgres(url: &str, stored: &Stored, [good, bad]: &[String; 2]) {
    let first = stored.first_ms;
    let runtime = runtime();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
        #[expect(clippy::disallowed_methods, reason = "the driver of the connection")]
        tokio::spawn(connection);
        client.batch_execute("SET search_path = actum; SET synchronous_commit = off").await.expect("settings");
        for from in (0..stored.runs).step_by(PAGE as usize) {
            let to = (from + PAGE).min(stored.runs) - 1;
            let head = format!(
                "WITH k AS (
                     SELECT i, ms, lpad(to_hex(ms / 65536), 8, '0') || '-' || lpad(to_hex(ms % 65536), 4, '0') || '-7000-8000-' || lpad(to_hex(i), 12, '0') AS id,
                            lpad(to_hex(ms / 65536), 8, '0') || '-' || lpad(to_hex(ms % 65536), 4, '0') || '-7001-8000-' || lpad(to_hex(i / 10), 12, '0') AS submission,
                            i % {QUEUED_ONE_IN} = 1 AS is_queued, CASE WHEN i % {FAILED_ONE_IN} = 0 THEN '{bad}' ELSE '{good}' END AS original
                     FROM (SELECT i, {first} + i * {STEP_MS} AS ms FROM generate_series({from}::bigint, {to}::bigint) i) s)"
            );
            let mut sql = format!(
                "INSERT INTO run (tenant, id, submission, item, robot, attempt, epoch, version, waits, cancel, place, state, created_ms, updated_ms, error)
                 {head} SELECT 'local', k.id, k.submission, {SAME}, CASE WHEN k.is_queued THEN 'elsewhere:/p' ELSE t.place END,
                        CASE WHEN k.is_queued THEN 'queued' ELSE t.state END, k.ms, k.ms + 900, t.error
                 FROM k JOIN run t ON t.tenant = 'local' AND t.id = k.original;"
            );
            for (table, column, which) in [("run_text", "metadata", "true"), ("run_outcome", "outcome", "NOT k.is_queued")] {
                sql += &format!(
                    "INSERT INTO {table} (tenant, id, {column})
                     {head} SELECT 'local', k.id, replace(x.{column}, k.original, k.id)
                     FROM k JOIN {table} x ON x.tenant = 'local' AND x.id = k.original WHERE {which};"
                );
            }
            sql += &format!(
                "INSERT INTO run_event (tenant, run, n, attempt, at_ms, kind, body)
                 {head} SELECT 'local', k.id, e.n, e.attempt, k.ms + e.n, e.kind, e.body
                 FROM k JOIN run_event e ON e.tenant = 'local' AND e.run = k.original WHERE NOT k.is_queued;"
            );
            client.batch_execute(&sql).await.expect("rows");
        }
        // What the server does by itself within minutes.
        client.batch_execute("VACUUM ANALYZE").await.expect("statistics");
        client.batch_execute("CHECKPOINT").await.expect("a checkpoint");
    });
}
