//! What an operator sees of a server and its workers: lines of a log, `/metrics` for Prometheus.

use actum_testkit::linters::Linters;
use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::run::{item, project};
use super::runs::{self, until};
use super::serve::Server;

fn hello() -> Program {
    project(&[("a", "echo hello > made")])
}

fn lines(errors: &[String]) -> Vec<Value> {
    errors.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn a_server_tells_every_request_and_every_run_as_a_line() {
    let actum = hello();
    let server = Server::start(&actum, &["--log", "json", "-q"]);
    let token = server.told["token"].as_str().unwrap().to_owned();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [("authorization", &*format!("Bearer {token}")), ("traceparent", parent), ("x-request-id", "mine")];
    let answer = server.ask_with("POST", "/v1/runs", &headers, &item("first", "a").to_string()).is(202);
    let run = answer["runs"][0]["run_id"].as_str().unwrap().to_owned();
    until("the run is over", || server.get(&token, &format!("/v1/runs/{run}")).is(200)["state"] == "succeeded");
    server.get("actum_no_token", "/v1/runs").is(401);
    let (code, errors) = server.stop();
    assert_eq!(code, 0, "{errors:?}");
    let told = lines(&errors);
    for line in &told {
        for field in ["time", "level", "event"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
    let asked = told.iter().find(|line| line["request_id"] == "mine").unwrap();
    assert_eq!(
        (&asked["event"], &asked["method"], &asked["route"], &asked["status"]),
        (&json!("request"), &json!("POST"), &json!("/v1/runs"), &json!(202)),
        "{asked}"
    );
    assert_eq!((&asked["level"], &asked["tenant"]), (&json!("info"), &json!("local")), "{asked}");
    assert!(asked["ms"].is_u64() && asked["token"].is_string(), "{asked}");
    let of_run = |event: &str| told.iter().find(|line| line["event"] == event && line["run"] == run.as_str()).cloned();
    let (taken, ended) = (of_run("run.taken").unwrap(), of_run("run.ended").unwrap());
    assert_eq!((&ended["end"], &ended["item"], &ended["agent"]), (&json!("success"), &json!("first"), &json!("a")));
    for line in [asked, &taken, &ended] {
        assert_eq!(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736", "{line}");
    }
    assert!(told.iter().any(|line| line["status"] == 401 && line.get("token").is_none()));
    assert!(!errors.concat().contains(&token), "a token is in the log");
}

#[test]
fn a_worker_tells_as_much_as_it_is_asked_for() {
    for (level, form, taken, steps) in
        [("debug", "json", true, true), ("info", "text", true, false), ("error", "json", false, false)]
    {
        let actum = runs::project("echo $1 >> lines");
        actum.file("work.yaml", json!({"items": [item("first", "b")]}).to_string());
        let run = runs::submit(&actum, &[]).remove(0);
        let worker = actum.start(&["worker", "-q", "--log", form], &[("ACTUM_LOG", level)]);
        until("the run is over", || runs::is_over(&actum, &run));
        worker.signal("TERM");
        let (code, _, errors) = worker.finish();
        assert_eq!(code, 0, "{errors:?}");
        let has = |event: &str| errors.iter().any(|line| line.contains(event) && line.contains(&run));
        assert_eq!((has("run.taken"), has("run.step")), (taken, steps), "{level} {errors:#?}");
        if form == "json" {
            lines(&errors);
        }
    }
    let actum = hello();
    let worker = actum.start(&["worker", "-q", "--log"], &[("ACTUM_LOG", "loud")]);
    let mut worker = worker;
    let line = worker.error_line().unwrap();
    assert!(line.contains("log.level") && line.contains("loud"), "{line}");
    worker.signal("TERM");
    assert_eq!(worker.finish().0, 0);
    let refused = actum.run(&["worker", "--log", "xml"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

/// A text as Prometheus reads it: every sample of a family that was announced, none twice.
fn samples(text: &str) -> Vec<(String, f64)> {
    let (mut families, mut found) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(!families.contains(&name.to_owned()), "twice: {line}");
            families.push(name.to_owned());
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let is_of = |family: &String| {
            name.strip_prefix(family.as_str()).is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
        };
        assert!(families.last().is_some_and(is_of), "no family before {line}");
        found.push((series.to_owned(), value.parse().unwrap_or_else(|e| panic!("{e}: {line}"))));
    }
    let mut names: Vec<&String> = found.iter().map(|(name, _)| name).collect();
    names.sort();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "a series twice:\n{text}");
    found
}

#[test]
fn metrics_are_such_that_prometheus_can_read_them() {
    let actum = hello();
    let server = Server::start(&actum, &["--workers", "0"]);
    let token = server.told["token"].as_str().unwrap().to_owned();
    server.post(&token, "/v1/runs", item("first", "a")).is(202);
    server.get(&token, "/v1/runs/none").is(404);
    let shown = server.get(&token, "/metrics");
    assert_eq!(shown.status, 200);
    let found = samples(&shown.body);
    let value = |name: &str| found.iter().find(|(series, _)| series == name).map(|(_, value)| *value);
    for (name, expected) in [
        ("actum_runs{state=\"queued\",tenant=\"local\"}", 1.0),
        ("actum_queue_runs", 1.0),
        ("actum_leases", 0.0),
        ("actum_leases_over", 0.0),
        ("actum_store_up", 1.0),
        ("actum_store_errors_total", 0.0),
        ("actum_http_request_duration_seconds_count{method=\"POST\",route=\"/v1/runs\",status=\"202\"}", 1.0),
        (
            "actum_http_request_duration_seconds_bucket{method=\"POST\",route=\"/v1/runs\",status=\"202\",le=\"+Inf\"}",
            1.0,
        ),
        ("actum_http_request_duration_seconds_count{method=\"GET\",route=\"/v1/runs/{run}\",status=\"404\"}", 1.0),
    ] {
        assert_eq!(value(name), Some(expected), "{name} in\n{}", shown.body);
    }
    for name in [
        "actum_queue_oldest_seconds",
        "actum_clock_skew_max_seconds",
        "actum_ledger_ahead_seconds",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(value(name).is_some_and(|value| value >= 0.0), "{name} in\n{}", shown.body);
    }
    assert!(value("process_cpu_seconds_total").is_some());
    // Negative if this machine's clock is behind.
    assert!(value("actum_clock_skew_seconds").is_some_and(|seconds| seconds.abs() < 5.0), "{}", shown.body);
    // Also by the parser that others use.
    let read = by_their_parser(&shown.body);
    for name in ["actum_http_request_duration_seconds", "actum_store_errors", "process_cpu_seconds", "actum_runs"] {
        assert!(read.iter().any(|found| found == name), "{name} in {read:?}");
    }
}

/// The families that `prometheus_client` finds.
fn by_their_parser(text: &str) -> Vec<String> {
    let script = "import sys\nfrom prometheus_client.parser import text_string_to_metric_families as families\n\
                  for family in families(sys.stdin.read()): print(family.name)";
    let mut command = Linters::find().python();
    command.args(["-c", script]);
    let ended = actum_testkit::program::run(command, text.as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout.lines().map(ToOwned::to_owned).collect()
}
