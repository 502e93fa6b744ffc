//! Durable appends by 32 concurrent callers, beside the barest thing with the same size and durability.

use std::sync::Arc;

use actum_ledger::Journal;
use actum_ledger::append::{Book, Decision};
use actum_ledger::draft::{self, Submission};
use actum_ledger::journal::Outcome;
use actum_ledger::time::Moment;
use actum_store::{Location, Older, open};
use actum_testkit::event::{padded, signal};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::measure::{Cost, cost, median, print, spread, verdict};

const CALLERS: usize = 32;
const ROUNDS: usize = 9;
const BATCH_MAX: usize = 256;

/// Bytes of an event as it arrives; stored it is about 250 more.
const EVENT_BYTES: usize = 700;

/// Text of the n-th event; every one begins an execution of its own.
fn text(n: usize) -> Vec<u8> {
    padded("bench", &format!("exec-{n:08}"), EVENT_BYTES).to_string().into_bytes()
}

/// Something that takes a text and answers once it is durable.
type Append = Arc<dyn Fn(Vec<u8>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// One round: the callers share `operations` among them, each waiting for its answer before the next.
async fn round(append: &Append, first: usize, operations: usize) {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let append = Arc::clone(append);
        callers.spawn(async move {
            for n in (caller..operations).step_by(CALLERS) {
                append(text(first + n)).await;
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("no caller fails");
    }
}

fn ours(journal: Arc<dyn Journal>) -> Append {
    Arc::new(move |text| {
        let journal = Arc::clone(&journal);
        Box::pin(async move {
            let outcome = journal.append(draft::read(&text, Timestamp::now())).await.expect("an answer");
            assert!(matches!(outcome, Outcome::Created { .. }), "{outcome:?}");
        })
    })
}

/// A writer thread that hands whatever waits to `commit`, and nothing else: group commit at its barest.
fn bare(mut commit: impl FnMut(&[(Vec<u8>, Vec<u8>)]) + Send + 'static) -> Append {
    type Item = ((Vec<u8>, Vec<u8>), oneshot::Sender<()>);
    let (sender, mut receiver) = mpsc::unbounded_channel::<Item>();
    let run = move || {
        while let Some(first) = receiver.blocking_recv() {
            let (mut rows, mut answers) = (vec![first.0], vec![first.1]);
            while rows.len() < BATCH_MAX
                && let Ok((row, answer)) = receiver.try_recv()
            {
                rows.push(row);
                answers.push(answer);
            }
            commit(&rows);
            for answer in answers {
                let _ = answer.send(());
            }
        }
    };
    std::thread::Builder::new().name("floor".into()).spawn(run).expect("a thread");
    Arc::new(move |text| {
        let (answer, answered) = oneshot::channel();
        // A unique key as long as ours, and a body as long as what we store.
        let key = blake3_key(&text);
        let mut body = text;
        body.resize(body.len() + 250, b' ');
        let _ = sender.send(((key, body), answer));
        Box::pin(async move {
            let _ = answered.await;
        })
    })
}

fn blake3_key(text: &[u8]) -> Vec<u8> {
    actum_contract::digest::Digest::blake3(text).to_hex().as_bytes()[..38].to_vec()
}

fn compare(name: &str, floor: &Append, ours: &Append, operations: usize, bars: (f64, Option<f64>)) {
    let runtime = runtime();
    let (mut floors, mut ourss): (Vec<Cost>, Vec<Cost>) = (Vec::new(), Vec::new());
    // The first round of each warms caches and statements; it is not counted.
    for i in 0..=ROUNDS {
        let first = i * operations;
        floors.push(cost(operations, || runtime.block_on(round(floor, first, operations))));
        ourss.push(cost(operations, || runtime.block_on(round(ours, first, operations))));
    }
    let (floors, ourss) = (&floors[1..], &ourss[1..]);
    print(&format!("{name}: {CALLERS} callers, {ROUNDS} rounds of {operations}"));
    for (who, costs) in [("floor", floors), ("actum", ourss)] {
        let rates: Vec<_> = costs.iter().map(|c| 1e6 / c.wall / 1e3).collect();
        let cpu = median(costs.iter().map(|c| c.cpu));
        print(&format!("  {who:<8} {} thousand/s, {cpu:.0} µs CPU each (this process)", spread(&rates)));
    }
    let pairs = || floors.iter().zip(ourss);
    verdict("throughput, actum / floor", &pairs().map(|(f, o)| f.wall / o.wall).collect::<Vec<_>>(), bars.0, false);
    if let Some(bar) = bars.1 {
        verdict("CPU per append, actum / floor", &pairs().map(|(f, o)| o.cpu / f.cpu).collect::<Vec<_>>(), bar, true);
    }
}

async fn store(location: Location) -> Arc<dyn Journal> {
    let store = open(&location, Older::Migrate).await.expect("a store");
    store
        .append(draft::read(signal("bench", "signal").to_string().as_bytes(), Timestamp::now()))
        .await
        .expect("an answer");
    store
}

/// What an append costs before any database: reading, rules, stored form, hash.
pub(crate) fn decide() {
    const OPERATIONS: usize = 20_000;
    let mut book = Book::default();
    let texts: Vec<_> = (0..OPERATIONS).map(text).collect();
    let mut drafts = Vec::with_capacity(OPERATIONS);
    let reading = cost(OPERATIONS, || {
        drafts.extend(texts.iter().map(|text| draft::read(text, Timestamp::now())));
    });
    let dependency = draft::read(signal("bench", "signal").to_string().as_bytes(), Timestamp::now());
    let now = Moment::new(Timestamp::now());
    let deciding = cost(OPERATIONS, || {
        for submission in std::iter::once(&dependency).chain(&drafts) {
            let Submission::Draft(draft) = submission else { panic!("{submission:?}") };
            assert!(matches!(book.decide(draft, String::new, &now), Decision::Append(_)));
        }
    });
    print(&format!(
        "without a database: reading {:.1} µs, deciding {:.1} µs for {} bytes",
        reading.wall,
        deciding.wall,
        texts[0].len()
    ));
}

pub(crate) fn sqlite() {
    let folder = Folder::new();
    let mut floor = rusqlite::Connection::open(folder.join("floor.db")).expect("a database");
    floor
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 10000; PRAGMA cache_size = -65536;
             CREATE TABLE event (n INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
        )
        .expect("a table");
    let floor = bare(move |rows| {
        let tx = floor.transaction().expect("a transaction");
        {
            let mut insert = tx.prepare_cached("INSERT INTO event (key, body) VALUES (?1, ?2)").expect("a statement");
            rows.iter().for_each(|(key, body)| {
                insert.execute((key, body)).expect("a row");
            });
        }
        tx.commit().expect("a commit");
    });
    let runtime = runtime();
    let ours = ours(runtime.block_on(store(Location::Sqlite(folder.join("actum.db")))));
    compare("SQLite, durable appends", &floor, &ours, 16_000, (0.6, Some(3.0)));
}

pub(crate) fn postgres() {
    let url = shared_url();
    let floor_url = url.clone();
    let floor_runtime = runtime();
    let client = floor_runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&floor_url, tokio_postgres::NoTls).await.expect("a server");
        #[expect(clippy::disallowed_methods, reason = "the driver of the floor's connection")]
        tokio::spawn(connection);
        let table = "CREATE TABLE event (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bytea NOT NULL UNIQUE, body bytea NOT NULL)";
        client.batch_execute(table).await.expect("a table");
        client
    });
    let floor = bare(move |rows| {
        let (keys, bodies): (Vec<_>, Vec<_>) = rows.iter().map(|(key, body)| (key.as_slice(), body.as_slice())).unzip();
        floor_runtime.block_on(async {
            let sql = "INSERT INTO event (key, body) SELECT * FROM unnest($1::bytea[], $2::bytea[])";
            client.execute(sql, &[&keys, &bodies]).await.expect("rows");
        });
    });
    let runtime = runtime();
    let ours = ours(runtime.block_on(store(Location::Postgres(url))));
    compare("PostgreSQL, durable appends", &floor, &ours, 16_000, (0.5, None));
}
