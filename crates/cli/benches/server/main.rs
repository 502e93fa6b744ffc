//! What a server bears: requests beside a million runs, a thousand listeners, and runs shared out among workers.
//! `cargo xtask bench server [load|listen|workers] [sqlite|postgres] [seconds=N] [rounds=N] [runs=N]`.
//! Ends with 1 if a bar is missed.

#![expect(clippy::expect_used, reason = "a benchmark that cannot go on has nothing to say")]

mod fill;
mod http;
mod listen;
mod load;
#[path = "../shared/measure.rs"]
#[expect(dead_code, reason = "shared with benchmarks that measure other things")]
mod measure;
#[path = "../runs/noop.rs"]
#[expect(dead_code, reason = "only what does nothing is needed of it here")]
mod noop;
mod site;
mod workers;

use std::process::ExitCode;

use crate::measure::{median, print, spread};

/// What was asked for on the command line.
#[derive(Debug)]
pub(crate) struct Wanted {
    words: Vec<String>,
    /// How long one load lasts.
    pub seconds: u64,
    pub rounds: usize,
    /// Runs that are stored before anything is asked.
    pub runs: u64,
}

impl Wanted {
    fn read(words: Vec<String>) -> Self {
        let number = |name: &str, otherwise: u64| {
            let said = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            said.map_or(otherwise, |text| text.parse().expect("a number"))
        };
        let (seconds, runs) = (number("seconds", 60), number("runs", 1_000_000));
        let rounds = usize::try_from(number("rounds", 3)).expect("a number");
        Self { seconds, rounds, runs, words }
    }

    /// Whether one of these is to be done: all are, unless some are named.
    pub(crate) fn has(&self, all: &[&str], name: &str) -> bool {
        let is_named = |name: &&str| self.words.iter().any(|word| word == name);
        !all.iter().any(&is_named) || is_named(&name)
    }

    pub(crate) fn stores(&self) -> impl Iterator<Item = &'static str> {
        STORES.into_iter().filter(|store| self.has(&STORES, store))
    }
}

const STORES: [&str; 2] = ["sqlite", "postgres"];
const PARTS: [&str; 3] = ["load", "listen", "workers"];

/// The bars, and what was found of each.
#[derive(Debug, Default)]
pub(crate) struct Bars(Vec<(String, String, String, bool)>);

impl Bars {
    /// The figures of all rounds; the middle one counts.
    pub(crate) fn judge(&mut self, what: impl Into<String>, figures: &[f64], bar: f64, at_most: bool) {
        let middle = median(figures.iter().copied());
        let is_met = if at_most { middle <= bar } else { middle >= bar };
        let bar = format!("{} {bar}", if at_most { "≤" } else { "≥" });
        self.0.push((what.into(), bar, spread(figures), is_met));
    }

    fn tell(&self) -> ExitCode {
        print(
            "\nbar                                                                 wanted    found, median (lowest–highest)",
        );
        for (what, bar, found, is_met) in &self.0 {
            print(&format!("{what:<67} {bar:<9} {found:<28} {}", if *is_met { "met" } else { "MISSED" }));
        }
        if self.0.iter().all(|(.., is_met)| *is_met) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// How busy the machine is, whoever keeps it so.
pub(crate) fn weather() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load {}", text.split(' ').next().unwrap_or("?"))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    match words.first().map(String::as_str) {
        Some("serve-bare") => return load::bare(),
        Some("work-idle") => return workers::idle(&words[1..]),
        _ => {}
    }
    let wanted = Wanted::read(words);
    let mut bars = Bars::default();
    if wanted.has(&PARTS, "load") {
        load::run(&wanted, &mut bars);
    }
    if wanted.has(&PARTS, "listen") {
        listen::run(&wanted, &mut bars);
    }
    if wanted.has(&PARTS, "workers") {
        workers::run(&wanted, &mut bars);
    }
    bars.tell()
}
