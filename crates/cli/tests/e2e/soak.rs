//! A worker over many runs: open files, packs and memory stay flat. `cargo xtask test --long` makes it 5,000.

use std::fs;

use serde_json::json;

use super::run::{asked, item, project};
use super::runs::{end, until};

/// Runs of one submission.
const BATCH: usize = 20;

fn runs() -> usize {
    std::env::var("ACTUM_SOAK_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(120)
}

/// Resident memory of a process in kibibytes.
fn resident(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn files_packs_and_memory_of_a_worker_stay_flat() {
    let actum = project(&[("a", "echo $ACTUM_RUN_ID > $ACTUM_WORK_ITEM_ID")]);
    let items: Vec<_> = (0..BATCH).map(|n| item(&format!("item-{n}"), "a")).collect();
    actum.file("work.json", json!(items).to_string());
    // Quiet: no one reads its lines, and a full pipe would stop it.
    let worker = actum.start(&["worker", "--slots", "2", "-q"], &[]);
    let open = || fs::read_dir(format!("/proc/{}/fd", worker.id())).unwrap().count();
    let packs = || {
        let names = fs::read_dir(actum.path(".actum/blobs/packs")).unwrap().flatten();
        names.filter(|name| name.path().extension().is_some_and(|end| end == "pack")).count()
    };
    let batches = runs().div_ceil(BATCH);
    let mut first = None;
    for batch in 1..=batches {
        assert_eq!(actum.run(&["run", "--detach", "-q", "work.json"]).code, 0);
        until("the batch is done", || {
            let counts = asked(&actum, &["status", "--json"])["runs"].clone();
            counts["succeeded"].as_u64() == Some((batch * BATCH) as u64)
        });
        // The first batches fill caches.
        if batch == batches.min(3) {
            first = Some((open(), resident(worker.id())));
        }
    }
    let (files, memory) = first.unwrap();
    assert!(open() <= files + 70, "{files} → {} open files", open());
    assert!(packs() <= 70, "{} packs", packs());
    assert!(resident(worker.id()) <= memory * 3 / 2 + 20_000, "{memory} → {} KiB", resident(worker.id()));
    end(worker);
}
