//! Rounds, medians, CPU time, and printing. Shared by the benchmarks.

use std::time::{Duration, Instant};

/// Wall and CPU time of one round, per operation, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub wall: f64,
    pub cpu: f64,
}

/// Runs a round of `operations` and divides.
pub(crate) fn cost(operations: usize, round: impl FnOnce()) -> Cost {
    let (cpu, wall) = (cpu_time(), Instant::now());
    round();
    let per = |d: Duration| d.as_secs_f64() * 1e6 / operations as f64;
    Cost { wall: per(wall.elapsed()), cpu: per(cpu_time() - cpu) }
}

/// CPU time of this process so far, all threads. In ticks of 10 ms, so rounds have to be long.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// How long some work takes.
pub(crate) fn milliseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<_> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Median and range of a value over rounds.
pub(crate) fn spread(values: &[f64]) -> String {
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    format!("{:.2} ({low:.2}–{high:.2})", median(values.iter().copied()))
}

/// One line of the verdict: what, the ratio with its range, the bar.
pub(crate) fn verdict(what: &str, ratios: &[f64], bar: f64, at_most: bool) {
    let middle = median(ratios.iter().copied());
    let met = if at_most { middle <= bar } else { middle >= bar };
    let sign = if at_most { "≤" } else { "≥" };
    print(&format!("  {what:<58} {:<22} bar {sign} {bar:<5} {}", spread(ratios), if met { "met" } else { "MISSED" }));
}

pub(crate) fn print(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}
