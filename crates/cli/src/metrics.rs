//! What a server shows at `/metrics`, in the text form of Prometheus: requests it has answered, the queue, leases, the store,
//! this process. Counted here by hand: a histogram and some lines of text. Names no tenant, no token and no run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use actum_contract::limit::RUN_CLOCK_SKEW_MAX_MS;
use actum_engine::MeasuredClock;
use actum_ledger::run::RunState;
use actum_server::api::Line;
use actum_store::Queue;

use crate::log;
use crate::telemetry::{self, REQUEST_BOUNDS_SECONDS};

/// Routes, methods and statuses together; there are fewer, but nobody has to believe that.
const SERIES_MAX: usize = 5_000;

#[derive(Debug, Default)]
pub(crate) struct Requests {
    seen: Mutex<BTreeMap<(&'static str, &'static str, u16), Series>>,
}

#[derive(Debug, Default, Clone)]
struct Series {
    /// Of each bound, without those of the bounds before; the last has no bound.
    counts: [u64; REQUEST_BOUNDS_SECONDS.len() + 1],
    sum: f64,
}

impl Requests {
    pub(crate) fn note(&self, line: &Line) {
        self.count(line.route, line.method, line.status, line.took);
    }

    fn count(&self, route: &'static str, method: &'static str, status: u16, took: Duration) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (route, method, status);
        if seen.len() >= SERIES_MAX && !seen.contains_key(&key) {
            return;
        }
        let (series, seconds) = (seen.entry(key).or_default(), took.as_secs_f64());
        let at = REQUEST_BOUNDS_SECONDS.iter().position(|bound| seconds <= *bound);
        series.counts[at.unwrap_or(REQUEST_BOUNDS_SECONDS.len())] += 1;
        series.sum += seconds;
    }

    fn write(&self, text: &mut Text) {
        let name = "actum_http_request_duration_seconds";
        text.begin(name, "histogram", "How long requests took.");
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((route, method, status), series) in seen {
            let labels = format!("method=\"{method}\",route=\"{}\",status=\"{status}\"", escaped(route));
            let mut before = 0;
            for (at, count) in series.counts.iter().enumerate() {
                before += count;
                let bound = REQUEST_BOUNDS_SECONDS.get(at).map_or("+Inf".to_owned(), ToString::to_string);
                text.line(&format!("{name}_bucket{{{labels},le=\"{bound}\"}} {before}"));
            }
            text.line(&format!("{name}_sum{{{labels}}} {}", series.sum));
            text.line(&format!("{name}_count{{{labels}}} {before}"));
        }
    }
}

/// Runs by their tenant (where that is told), state and error.
pub(crate) type RunCounts = BTreeMap<(Option<String>, RunState, Option<String>), u64>;

/// What the store was asked for; nothing where it did not answer.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub runs: RunCounts,
    pub queue: Option<Queue>,
    pub now_ms: i64,
    pub clock: Option<MeasuredClock>,
    /// Workers of this machine by what they are: well, unwell, gone.
    pub workers: BTreeMap<&'static str, u64>,
    /// Whether actum.toml was changed since the server has read it.
    pub is_outdated: bool,
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        self.line(&format!("# HELP {name} {help}"));
        self.line(&format!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: &str) {
        // Writing to a text never fails.
        let _ = writeln!(self.0, "{line}");
    }

    fn runs(&mut self, runs: &RunCounts) {
        self.begin("actum_runs", "gauge", "Runs by their state.");
        for ((tenant, state, code), number) in runs {
            let label = |name: &str, value: &Option<String>| {
                value.as_ref().map(|value| format!(",{name}=\"{}\"", escaped(value))).unwrap_or_default()
            };
            let more = format!("{}{}", label("error", code), label("tenant", tenant));
            self.line(&format!("actum_runs{{state=\"{}\"{more}}} {number}", state.word()));
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.begin(name, kind, help);
        self.line(&format!("{name} {value}"));
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the numbers of runs alone.
pub(crate) fn of_runs(runs: &RunCounts) -> String {
    let mut text = Text::default();
    text.runs(runs);
    text.0
}

pub(crate) fn text(facts: &Facts, requests: &Requests) -> String {
    let mut text = Text::default();
    text.runs(&facts.runs);
    if let Some(queue) = &facts.queue {
        text.one("actum_queue_runs", "gauge", "Runs that wait for a worker.", queue.queued);
        let age = queue.oldest_ms.map_or(0, |oldest| facts.now_ms.saturating_sub(oldest).max(0));
        let age = age as f64 / 1_000.0;
        text.one("actum_queue_oldest_seconds", "gauge", "How long ago the oldest of them was submitted.", age);
        text.one("actum_leases", "gauge", "Runs that a worker holds.", queue.leases);
        text.one("actum_leases_over", "gauge", "Runs whose worker was not heard of in time.", queue.leases_over);
    }
    text.begin("actum_workers", "gauge", "Workers of this machine and project, by their state.");
    for (state, number) in &facts.workers {
        text.line(&format!("actum_workers{{state=\"{state}\"}} {number}"));
    }
    let help = "1 if actum.toml differs from the configuration in force.";
    text.one("actum_config_outdated", "gauge", help, u64::from(facts.is_outdated));
    if let Some(clock) = &facts.clock {
        let seconds = |ms: i64| ms as f64 / 1_000.0;
        let help = "How far this process's clock is ahead of the store's, which is the reference.";
        text.one("actum_clock_skew_seconds", "gauge", help, seconds(clock.skew_ms));
        let help = "The largest difference with which runs are executed.";
        text.one("actum_clock_skew_max_seconds", "gauge", help, seconds(RUN_CLOCK_SKEW_MAX_MS));
        let help = "How far the ledger's last entry is ahead of the store's clock.";
        text.one("actum_ledger_ahead_seconds", "gauge", help, seconds(clock.log_ahead_ms()));
    }
    text.one("actum_store_up", "gauge", "Whether the store answered just now.", u8::from(facts.queue.is_some()));
    text.one(
        "actum_store_errors_total",
        "counter",
        "Times that the store did not answer this process.",
        log::store_errors(),
    );
    requests.write(&mut text);
    let (sent, failed) = telemetry::posts();
    text.begin("actum_telemetry_posts_total", "counter", "Posts to the collector, by whether they got through.");
    text.line(&format!("actum_telemetry_posts_total{{result=\"sent\"}} {sent}"));
    text.line(&format!("actum_telemetry_posts_total{{result=\"failed\"}} {failed}"));
    text.begin("actum_build_info", "gauge", "The version of this program.");
    text.line(&format!("actum_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
    process(&mut text);
    text.0
}

/// By the names that every exporter has for them.
fn process(text: &mut Text) {
    let Some(stat) = std::fs::read_to_string("/proc/self/stat").ok() else { return };
    // Its name may hold anything; after the last bracket there are numbers, the third field first.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    if let (Some(user), Some(system)) = (number(11), number(12)) {
        let seconds = (user + system) as f64 / ticks as f64;
        text.one("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", seconds);
    }
    if let Some(pages) = number(21) {
        let bytes = pages.saturating_mul(rustix::param::page_size() as u64);
        text.one("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", bytes);
    }
    if let Some(threads) = number(17) {
        text.one("process_threads", "gauge", "Number of threads.", threads);
    }
    let fds = std::fs::read_dir("/proc/self/fd").map(|names| names.count()).unwrap_or_default();
    text.one("process_open_fds", "gauge", "Number of open file descriptors.", fds);
    let begun = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = begun.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    if let (Some(boot), Some(since)) = (boot, number(19)) {
        let seconds = boot as f64 + since as f64 / ticks as f64;
        let help = "Start time of the process since unix epoch in seconds.";
        text.one("process_start_time_seconds", "gauge", help, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_adds_up() {
        let requests = Requests::default();
        for ms in [1, 4, 6, 20_000] {
            requests.count("/v1/runs/{id}", "GET", 200, Duration::from_millis(ms));
        }
        requests.count("-", "-", 404, Duration::ZERO);
        let facts = Facts {
            runs: BTreeMap::from([((None, RunState::Failed, Some("A\"B\\C\n".to_owned())), 3)]),
            queue: Some(Queue { queued: 2, oldest_ms: Some(500), leases: 1, leases_over: 0 }),
            now_ms: 2_000,
            clock: None,
            workers: BTreeMap::new(),
            is_outdated: false,
        };
        let shown = text(&facts, &requests);
        for line in [
            "actum_runs{state=\"failed\",error=\"A\\\"B\\\\C\\n\"} 3",
            "actum_queue_oldest_seconds 1.5",
            "actum_store_up 1",
            "actum_http_request_duration_seconds_bucket{method=\"GET\",route=\"/v1/runs/{id}\",status=\"200\",le=\"0.005\"} 2",
            "actum_http_request_duration_seconds_bucket{method=\"GET\",route=\"/v1/runs/{id}\",status=\"200\",le=\"10\"} 3",
            "actum_http_request_duration_seconds_bucket{method=\"GET\",route=\"/v1/runs/{id}\",status=\"200\",le=\"+Inf\"} 4",
            "actum_http_request_duration_seconds_count{method=\"GET\",route=\"/v1/runs/{id}\",status=\"200\"} 4",
        ] {
            assert!(shown.lines().any(|one| one == line), "{line} is not in\n{shown}");
        }
        let empty = text(&Facts::default(), &Requests::default());
        assert!(empty.contains("actum_store_up 0") && !empty.contains("actum_queue_runs"));
    }
}
