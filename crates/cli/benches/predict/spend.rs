//! Reserving and committing by 32 callers under one authorization, beside the barest group commit of the same two row
//! writes. Durable on both sides: every answer is on disk.

use std::pin::Pin;
use std::sync::Arc;

use actum_ledger::spend::{Authorization, Spend};
use actum_store::{Location, Older, open};
use actum_testkit::folder::Folder;
use actum_testkit::spend::{authorization, commit, end, wish};
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::measure::{Cost, cost, median, print, spread, verdict};

const CALLERS: usize = 32;
const ROUNDS: usize = 5;
const PAIRS: usize = 20_000;
const BATCH_MAX: usize = 256;
const BAR_PAIRS_PER_SECOND: f64 = 5_000.0;

/// Reserves and commits for the n-th call, and answers once both are durable.
type Pair = Arc<dyn Fn(usize) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// The callers share the pairs among them, each waiting for its answers before the next.
async fn round(pair: &Pair, first: usize) {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let pair = Arc::clone(pair);
        callers.spawn(async move {
            for n in (caller..PAIRS).step_by(CALLERS) {
                pair(first + n).await;
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("no caller fails");
    }
}

fn ours(spend: Arc<dyn Spend>) -> Pair {
    Arc::new(move |n| {
        let spend = Arc::clone(&spend);
        Box::pin(async move {
            let call = format!("call-{n:08}");
            spend.reserve(wish("bench", "hot", &call, 10)).await.expect("an answer").expect("reserved");
            let held = spend.settle(end("bench", "hot", &call, commit(7))).await.expect("an answer").expect("settled");
            assert!(!held.replayed);
        })
    })
}

/// What the floor writes: a row, or its end.
enum Write {
    Insert(usize),
    Update(usize),
}

/// A writer thread that commits whatever waits, and nothing else.
fn floor(mut connection: Connection) -> Pair {
    let table = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 10000;
        PRAGMA cache_size = -65536;
        CREATE TABLE budget (id INTEGER PRIMARY KEY, spent INTEGER NOT NULL, reserved INTEGER NOT NULL);
        INSERT INTO budget VALUES (1, 0, 0);
        CREATE TABLE call (n INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, amount INTEGER NOT NULL, state TEXT NOT NULL)";
    connection.execute_batch(table).expect("tables");
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Write, oneshot::Sender<()>)>();
    let run = move || {
        while let Some(first) = receiver.blocking_recv() {
            let mut all = vec![first];
            while all.len() < BATCH_MAX
                && let Ok(next) = receiver.try_recv()
            {
                all.push(next);
            }
            let tx = connection.transaction().expect("a transaction");
            for (write, _) in &all {
                let (sql, n) = match write {
                    Write::Insert(n) => ("INSERT INTO call (key, amount, state) VALUES (?1, 10, 'reserved')", n),
                    Write::Update(n) => ("UPDATE call SET amount = 7, state = 'committed' WHERE key = ?1", n),
                };
                let key = format!("bench/hot/r/call-{n:08}");
                tx.prepare_cached(sql).and_then(|mut s| s.execute(params![key])).expect("a row");
            }
            let sql = "UPDATE budget SET spent = spent + ?1, reserved = reserved + ?1 WHERE id = 1";
            tx.prepare_cached(sql).and_then(|mut s| s.execute(params![all.len() as i64])).expect("a row");
            tx.commit().expect("a commit");
            for (_, answer) in all {
                let _ = answer.send(());
            }
        }
    };
    std::thread::Builder::new().name("floor".into()).spawn(run).expect("a thread");
    Arc::new(move |n| {
        let sender = sender.clone();
        Box::pin(async move {
            for write in [Write::Insert(n), Write::Update(n)] {
                let (answer, answered) = oneshot::channel();
                let _ = sender.send((write, answer));
                let _ = answered.await;
            }
        })
    })
}

pub(crate) fn run() {
    let folder = Folder::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let floor = floor(Connection::open(folder.join("floor.db")).expect("a database"));
    let store = runtime.block_on(async {
        let store = open(&Location::Sqlite(folder.join("actum.db")), Older::Migrate).await.expect("a store");
        let hot = Authorization { max_total: Some(u64::from(u32::MAX)), ..authorization("bench", "hot") };
        store.authorize(hot, "bench", "a benchmark").await.expect("an answer").expect("issued");
        store
    });
    let ours = ours(store);
    let (mut floors, mut ourss): (Vec<Cost>, Vec<Cost>) = (Vec::new(), Vec::new());
    // The first round of each warms caches and statements; it is not counted.
    for i in 0..=ROUNDS {
        floors.push(cost(PAIRS, || runtime.block_on(round(&floor, i * PAIRS))));
        ourss.push(cost(PAIRS, || runtime.block_on(round(&ours, i * PAIRS))));
    }
    print(&format!("SQLite, reserve + commit, one authorization: {CALLERS} callers, {ROUNDS} rounds of {PAIRS} pairs"));
    let rates = |costs: &[Cost]| costs[1..].iter().map(|c| 1e6 / c.wall).collect::<Vec<_>>();
    for (who, costs) in [("floor", &floors), ("actum", &ourss)] {
        let cpu = median(costs[1..].iter().map(|c| c.cpu));
        print(&format!("  {who:<8} {} pairs/s, {cpu:.0} µs CPU each (this process)", spread(&rates(costs))));
    }
    verdict("pairs per second", &rates(&ourss), BAR_PAIRS_PER_SECOND, false);
}
