//! Events by way of the real binary: heard while a run runs, from every place, from another server after one was killed, by many at
//! once, and by the command line here and elsewhere.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use actum_testkit::event::signal;
use actum_testkit::postgres::shared_url;
use actum_testkit::program::{Program, Running};
use serde_json::{Value, json};

use super::actum;
use super::run::{asked, item, project};
use super::serve::{Server, of, token};

const SILENCE: Duration = Duration::from_secs(60);

/// Somebody who listens.
struct Ear {
    stream: BufReader<TcpStream>,
    head: String,
    text: String,
}

impl Ear {
    fn at(at: SocketAddr, token: &str, path: &str, last: Option<u64>) -> Self {
        let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\n{last}\r\n");
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let (mut stream, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
        Self { stream, head, text: String::new() }
    }

    /// The next event with its data; none at the end, or where the connection broke.
    fn next(&mut self) -> Option<(Option<u64>, String, Value)> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(ToOwned::to_owned);
                let told = field("event: ").map(|kind| {
                    let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                    (field("id: ").map(|id| id.parse().unwrap()), kind, data)
                });
                self.text = rest.to_owned();
                match told {
                    Some(told) => return Some(told),
                    None => continue,
                }
            }
            let mut size = String::new();
            self.stream.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok().filter(|size| *size > 0)?;
            let mut chunk = vec![0; size + 2];
            self.stream.read_exact(&mut chunk).ok()?;
            self.text.push_str(str::from_utf8(&chunk[..size]).unwrap());
        }
    }

    fn all(mut self) -> Vec<(Option<u64>, String, Value)> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

fn append(actum: &Program, ids: std::ops::Range<u64>) {
    let lines: Vec<String> = ids.map(|n| signal("local", &format!("s-{n}")).to_string()).collect();
    let ended = actum.run_with(&["ledger", "append", "-"], lines.join("\n").as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn first(server: &Server) -> String {
    server.told["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_is_heard_while_it_runs_and_from_every_place_afterwards() {
    let actum = project(&[("a", "while [ ! -e go ]; do sleep 0.05; done")]);
    let mut server = Server::start(&actum, &["--workers", "1"]);
    let key = first(&server);
    let run = server.post(&key, "/v1/runs", item("i", "a")).is(202)["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events");
    let mut ear = Ear::at(server.at, &key, &path, None);
    // Some of it is heard while the run is under way.
    let mut heard = vec![ear.next().unwrap()];
    assert!(!ear.head.to_lowercase().contains("content-length"));
    server.post(&key, &format!("/v1/runs/{run}/cancel"), json!({}));
    while let Some(told) = ear.next() {
        heard.push(told);
    }
    let (_, kind, data) = heard.pop().unwrap();
    assert_eq!((kind.as_str(), &data["run_id"]), ("end", &json!(run)));
    assert_eq!(data["state"], "cancelled");
    let ids: Vec<u64> = heard.iter().map(|told| told.0.unwrap()).collect();
    assert_eq!(ids, (0..ids.len() as u64).collect::<Vec<_>>());
    for (at, id) in ids.iter().enumerate() {
        let rest = Ear::at(server.at, &key, &path, Some(*id)).all();
        assert_eq!(rest[..rest.len() - 1], heard[at + 1..], "{id}");
        assert_eq!(rest.last().unwrap().1, "end");
    }
    // The same here, and over the server when nobody goes on listening.
    let lines = actum.run(&["events", &run, "--json"]).json_lines();
    let told = |line: &Value| (line["id"].as_u64(), line["type"].as_str().unwrap().to_owned(), line["data"].clone());
    assert_eq!(lines.iter().map(told).collect::<Vec<_>>(), heard);
    let last = ids.len() - 1;
    let few = actum.run(&["events", &run, "--json", "--after", "0", "--limit", "1"]).json_lines();
    assert_eq!((few.len(), &few[0]["id"]), (1, &json!(1)));
    for bad in [&["--after", "x"][..], &["--after", "-1"], &["--after", "999999"]] {
        assert_eq!(actum.run(&[&["events", &run], bad].concat()).code, 2, "{bad:?}");
    }
    for query in ["after=x", "after=-1", "after=999999", "limit=1", "from=1", "after=1&after=2"] {
        let headers = [("authorization", format!("Bearer {key}")), ("accept", "text/event-stream".to_owned())];
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let refused = server.ask_with("GET", &format!("{path}?{query}"), &headers, "");
        // Of the form that the document shows, and refused for what they say.
        let status = if ["after=999999", "limit=1"].contains(&query) { 422 } else { 400 };
        assert_eq!(refused.status, status, "{query}: {refused:?}");
    }
    assert_eq!(server.get(&key, &format!("{path}?after={last}")).body, "{}\n");
    // Another tenant's are not there.
    let acme = of(&actum, "acme");
    for accept in ["text/event-stream", "application/json"] {
        let headers = [("authorization", format!("Bearer {acme}")), ("accept", accept.to_owned())];
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(server.ask_with("GET", &path, &headers, "").status, 404);
    }
    server.running.take().map(Running::kill);
}

#[test]
fn the_ledger_is_heard_by_types_and_a_revoked_token_hears_no_more() {
    let actum = actum();
    let server = Server::start(&actum, &["--workers", "0"]);
    let reader = token(&actum, "reader", &[]);
    let mut ear = Ear::at(server.at, &reader, "/v1/events?types=signal,other", None);
    append(&actum, 0..3);
    for n in 0..3 {
        let (id, kind, data) = ear.next().unwrap();
        assert_eq!((kind.as_str(), data["id"].as_str().unwrap()), ("signal", format!("s-{n}").as_str()));
        let shown = asked(&actum, &["ledger", "show", &format!("s-{n}"), "--json"]);
        assert_eq!(shown["payload"], data["payload"]);
        assert!(id.is_some());
    }
    let shown = actum.run(&["events", "--types", "signal"]).ok();
    assert_eq!(shown.lines().count(), 3, "{shown}");
    let id = reader.split('_').nth(1).unwrap();
    asked(&actum, &["token", "revoke", id, "--json"]);
    assert_eq!(ear.next(), None);
    assert!(ear.text.is_empty());
    // Told to stop, it says so and is gone at once, with somebody listening.
    let mut ear = Ear::at(server.at, &first(&server), "/v1/events", None);
    assert_eq!(ear.next().unwrap().0, Some(0));
    let (code, _) = server.stop();
    assert_eq!(code, 0);
    assert!(ear.all().len() < 6);
}

/// One server is killed while it tells; whoever listened goes on at another one, and has heard each entry once.
#[test]
fn another_server_goes_on_where_one_was_killed() {
    const ENTRIES: u64 = 200;
    let url = shared_url();
    let (one, two) = (actum().on_store(&url), actum().on_store(&url));
    let mut server = Server::start(&one, &["--workers", "0"]);
    let other = Server::start(&two, &["--workers", "0"]);
    let key = first(&server);
    append(&two, 0..ENTRIES / 2);
    let mut ear = Ear::at(server.at, &key, "/v1/events", None);
    let mut heard: Vec<(u64, String)> = Vec::new();
    while heard.len() < 40 {
        let (id, _, data) = ear.next().unwrap();
        heard.push((id.unwrap(), data["id"].as_str().unwrap().to_owned()));
    }
    server.running.take().map(Running::kill);
    append(&two, ENTRIES / 2..ENTRIES);
    // What had arrived by then counts.
    while let Some((id, _, data)) = ear.next() {
        heard.push((id.unwrap(), data["id"].as_str().unwrap().to_owned()));
    }
    let mut ear = Ear::at(other.at, &key, "/v1/events", heard.last().map(|told| told.0));
    // The making of the first token stands before them.
    while heard.len() < ENTRIES as usize + 1 {
        let (id, _, data) = ear.next().unwrap();
        heard.push((id.unwrap(), data["id"].as_str().unwrap().to_owned()));
    }
    assert!(heard.iter().enumerate().all(|(at, (id, _))| at as u64 == *id), "{heard:?}");
    let signals: Vec<&str> = heard.iter().map(|told| told.1.as_str()).filter(|id| id.starts_with("s-")).collect();
    assert_eq!(signals, (0..ENTRIES).map(|n| format!("s-{n}")).collect::<Vec<_>>());
}

#[test]
fn the_command_line_follows_from_elsewhere_and_comes_back() {
    let home = project(&[("a", "echo hello; echo there")]);
    let mut server = Server::start(&home, &["--workers", "1"]);
    let (at, key) = (server.at, first(&server));
    let away = actum().with_env("ACTUM_SERVER", &format!("http://{at}")).with_env("ACTUM_TOKEN", &key);
    let mut following = away.start(&["events", "-f", "--json", "--types", "signal"], &[]);
    append(&home, 0..2);
    let mut next = |expected: u64| {
        let line: Value = serde_json::from_str(&following.line().unwrap()).unwrap();
        assert_eq!(line["data"]["id"], format!("s-{expected}"));
    };
    next(0);
    next(1);
    server.running.take().map(Running::kill);
    append(&home, 2..4);
    let server = Server::start(&home, &["--workers", "1", "--listen", &at.to_string()]);
    next(2);
    next(3);
    following.kill();

    // A run that ends is followed to its end, events and output alike.
    let run = server.post(&key, "/v1/runs", item("i", "a")).is(202)["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let followed = away.run(&["events", &run, "-f", "--json"]);
    assert_eq!(followed.code, 0, "{}", followed.stderr);
    assert_eq!(followed.stdout, home.run(&["events", &run, "--json"]).stdout);
    let text = away.run(&["events", &run]);
    assert_eq!(text.stdout, home.run(&["events", &run]).stdout);
    let logs = away.run(&["logs", &run, "-f"]);
    assert_eq!((logs.code, &logs.stdout), (0, &home.run(&["logs", &run, "-f"]).stdout), "{}", logs.stderr);
    assert!(!logs.stdout.is_empty());
    let missing = away.run(&["events", "nothing", "-f", "--json"]);
    assert_eq!((missing.code, &missing.error()["code"]), (7, &json!("NOT_FOUND")), "{}", missing.stderr);
}

/// Two hundred who listen to one server, and how much memory that takes.
#[test]
fn many_listen_to_one_server_in_little_memory() {
    const LISTENERS: usize = 200;
    const BYTES_MAX: u64 = 200 << 20;
    const BYTES_EACH_MAX: u64 = 200 << 10;
    let actum = actum();
    let server = Server::start(&actum, &["--workers", "0"]);
    let key = first(&server);
    let pid = server.running.as_ref().unwrap().id();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    drop(Ear::at(server.at, &key, "/v1/events", None));
    let before = memory();
    let mut ears: Vec<_> = (0..LISTENERS).map(|_| Ear::at(server.at, &key, "/v1/events?types=signal", None)).collect();
    append(&actum, 0..5);
    for ear in &mut ears {
        for n in 0..5 {
            assert_eq!(ear.next().unwrap().2["id"], format!("s-{n}"));
        }
    }
    let after = memory();
    assert!(after < BYTES_MAX, "{after} bytes");
    let each = after.saturating_sub(before) / LISTENERS as u64;
    assert!(each < BYTES_EACH_MAX, "{each} bytes each");
    // Whoever only asks is answered all the same.
    assert_eq!(server.get(&key, "/v1/runs").status, 200);
}
