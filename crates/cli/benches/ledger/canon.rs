//! Canonical JSON and SHA-256 of a document of 1 KB, beside raw SHA-256 and the public crates.

use std::hint::black_box;

use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_testkit::event::padded;
use serde_json::{Value, json};

use crate::measure::{Cost, cost, median, print, verdict};

const ROUNDS: usize = 15;
const OPERATIONS: usize = 40_000;

/// An event as they come: nested objects, short strings, a sentence or two, a few numbers. About 1 KB.
fn document() -> Value {
    let mut event = padded("t-001", "exec-001", 0);
    event["payload"]["externalRefs"] = json!({
        "ticket": "PROJ-1234", "commit": "0123456789abcdef0123456789abcdef01234567", "branch": "feature/greeting",
        "reviewers": ["ann", "bob", "cléo"], "url": "https://example.com/runs/42?attempt=1",
    });
    event["payload"]["result"] = json!({
        "summary": "added a greeting module and its test", "files": 3, "ratio": 0.75, "durationMs": 12345,
        "tests": {"passed": 41, "failed": 0, "skipped": 2},
        "message": "The greeting is built from the name given on the command line; an empty name is refused with a \
                    message that says so. The test covers both, and the documentation shows one call of each kind.",
    });
    event
}

pub(crate) fn run() {
    let document = document();
    let text = canon::canonical(&document).expect("canonical");
    print(&format!("canonical JSON + sha256 of {} bytes, {ROUNDS} rounds of {OPERATIONS}", text.len()));
    type Way<'a> = (&'static str, Box<dyn Fn() -> Digest + 'a>);
    let peers: Vec<Way<'_>> = vec![
        ("raw sha256", Box::new(|| Digest::sha256(black_box(&text)))),
        ("actum", Box::new(|| Digest::sha256(&canon::canonical(black_box(&document)).expect("canonical")))),
        ("serde_jcs", Box::new(|| Digest::sha256(&serde_jcs::to_vec(black_box(&document)).expect("canonical")))),
        (
            "serde_json_canonicalizer",
            Box::new(|| Digest::sha256(&serde_json_canonicalizer::to_vec(black_box(&document)).expect("canonical"))),
        ),
        ("json-canon", Box::new(|| Digest::sha256(&json_canon::to_vec(black_box(&document)).expect("canonical")))),
    ];
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); peers.len()];
    for _ in 0..ROUNDS {
        for ((_, way), costs) in peers.iter().zip(&mut costs) {
            costs.push(cost(OPERATIONS, || {
                for _ in 0..OPERATIONS {
                    black_box(way());
                }
            }));
        }
    }
    assert_eq!(peers[0].1(), peers[3].1(), "the peers agree on the text");
    for ((name, _), costs) in peers.iter().zip(&costs) {
        print(&format!("  {name:<26} {:>7.2} µs", median(costs.iter().map(|c| c.wall))));
    }
    let ratio = |a: usize, b: usize| costs[a].iter().zip(&costs[b]).map(|(a, b)| a.wall / b.wall).collect::<Vec<_>>();
    verdict("actum / raw sha256", &ratio(1, 0), 4.0, true);
    for (i, (name, _)) in peers.iter().enumerate().skip(2) {
        verdict(&format!("{name} / actum"), &ratio(i, 1), 3.0, false);
    }
}
