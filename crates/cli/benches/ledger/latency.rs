//! Append and list-page latency on a store of 1,000,000 entries beside one of 1,000.

use std::sync::Arc;
use std::time::Instant;

use actum_contract::Tenant;
use actum_ledger::Journal;
use actum_ledger::draft;
use actum_ledger::journal::Range;
use actum_store::{Location, Older, open};
use actum_testkit::event::{padded, signal};
use actum_testkit::folder::Folder;
use actum_testkit::postgres::shared_url;
use jiff::Timestamp;

use crate::measure::{median, print, verdict};

const SMALL: usize = 1_000;
const LARGE: usize = 1_000_000;
const ROUNDS: usize = 15;
const OPERATIONS: usize = 200;
const AHEAD: usize = 2_000;
const PAGE: usize = 100;

struct Filled {
    journal: Arc<dyn Journal>,
    tenant: Tenant,
    next: usize,
}

impl Filled {
    async fn new(location: Location, entries: usize) -> Self {
        let journal: Arc<dyn Journal> = open(&location, Older::Migrate).await.expect("a store");
        let mut filled = Self { journal, tenant: Tenant::new("bench").expect("a tenant"), next: 0 };
        filled.append(signal("bench", "signal").to_string().into_bytes()).await;
        while filled.next < entries {
            let some: Vec<_> = (0..AHEAD.min(entries - filled.next)).map(|_| filled.submit()).collect();
            for answer in some {
                answer.await.expect("an answer");
            }
        }
        filled
    }

    fn submit(&mut self) -> actum_ledger::journal::Work<'static, actum_ledger::journal::Outcome> {
        let text = padded("bench", &format!("exec-{:08}", self.next), 700).to_string();
        self.next += 1;
        self.journal.append(draft::read(text.as_bytes(), Timestamp::now()))
    }

    async fn append(&self, text: Vec<u8>) {
        self.journal.append(draft::read(&text, Timestamp::now())).await.expect("an answer");
    }

    /// Microseconds of one append, and of one page somewhere in the middle.
    async fn sample(&mut self) -> (f64, f64) {
        let (mut appends, mut pages) = (Vec::new(), Vec::new());
        for n in 0..OPERATIONS {
            let start = Instant::now();
            self.submit().await.expect("an answer");
            appends.push(start.elapsed().as_secs_f64() * 1e6);
            let from = (self.next * (n * 37 % 100) / 100) as u64;
            let start = Instant::now();
            let rows = self.journal.rows(&self.tenant, Range::forwards(from, PAGE)).await.expect("a page");
            pages.push(start.elapsed().as_secs_f64() * 1e6);
            assert!(!rows.is_empty());
        }
        (median(appends.into_iter()), median(pages.into_iter()))
    }
}

pub(crate) fn run() {
    let folder = Folder::new();
    let at = |name: &str| Location::Sqlite(folder.join(name));
    compare("SQLite", at("small.db"), at("large.db"));
    compare("PostgreSQL", Location::Postgres(shared_url()), Location::Postgres(shared_url()));
}

fn compare(name: &str, small: Location, large: Location) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut small = Filled::new(small, SMALL).await;
        let start = Instant::now();
        let mut large = Filled::new(large, LARGE).await;
        let rate = LARGE as f64 / start.elapsed().as_secs_f64() / 1e3;
        print(&format!("{name}: latency at {LARGE} entries beside {SMALL} (filled at {rate:.1} thousand/s), medians of {ROUNDS} rounds"));
        let (mut appends, mut pages) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let ((small_append, small_page), (large_append, large_page)) = (small.sample().await, large.sample().await);
            appends.push((small_append, large_append));
            pages.push((small_page, large_page));
        }
        for (what, pairs) in [("append", &appends), ("page of 100", &pages)] {
            let (s, l) = (median(pairs.iter().map(|p| p.0)), median(pairs.iter().map(|p| p.1)));
            verdict(&format!("{what}: {s:.0} µs → {l:.0} µs"), &pairs.iter().map(|(s, l)| l / s).collect::<Vec<_>>(), 1.5, true);
        }
    });
}
