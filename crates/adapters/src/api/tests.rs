//! Tests of calling services, against real servers on this machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use actum_contract::tool::Adapter;

use super::*;
use crate::call::Link;
use crate::testing::{Server, adapter, answer, certificate, json_answer, map, sandbox, soon, tool};

const SECRET: &str = "hunter2-and-more";

fn interface(base: &str, auth: Value) -> Value {
    let mut api = json!({"base_url": base, "endpoint_mapping": {"get": "GET /things/{id}", "make": "POST /things", "look": "HEAD /things"}});
    for (name, value) in auth.as_object().unwrap() {
        api[name] = value.clone();
    }
    api
}

/// All names of tests lead here.
fn http(roots: Option<&str>) -> Http {
    let here = "127.0.0.1".parse().unwrap();
    let hosts = ["api.test", "other.test", "token.test"].map(|name| (name.to_owned(), here)).into();
    Http::new(hosts, roots.map(str::as_bytes)).unwrap()
}

struct Asked {
    http: Http,
    adapter: Adapter,
    allow: Vec<String>,
    secrets: BTreeMap<String, String>,
    timeout_ms: u64,
    key: Option<&'static str>,
}

impl Asked {
    fn new(server: &Server, auth: Value) -> Self {
        let base = format!("http://api.test:{}", server.port());
        let secrets = [("api_key", SECRET), ("token", SECRET), ("client_id", "me-myself"), ("client_secret", SECRET)];
        Self {
            http: http(None),
            adapter: adapter("A", "api", &interface(&base, auth), |_| {}),
            allow: vec![format!("api.test:{}", server.port())],
            secrets: secrets.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            timeout_ms: 10_000,
            key: None,
        }
    }

    fn plain(server: &Server) -> Self {
        Self::new(server, json!({}))
    }

    fn ask(&self, operation: &str, params: Value) -> Attempt {
        self.ask_until(operation, params, &|| false)
    }

    fn ask_until(&self, operation: &str, params: Value, stop: &dyn Fn() -> bool) -> Attempt {
        let allow: Vec<&str> = self.allow.iter().map(String::as_str).collect();
        let mut sandbox = sandbox(&allow);
        sandbox.timeout_ms = self.timeout_ms;
        let link = Link { adapter: &self.adapter, sandbox };
        let params = map(params);
        let ask = Ask {
            link: &link,
            tool: &tool(),
            operation: Some(operation),
            params: &params,
            secrets: &self.secrets,
            deadline: soon(),
            stop,
            idempotency_key: self.key,
        };
        let attempt = self.http.attempt(&ask);
        assert!(!format!("{attempt:?}").contains(SECRET), "{attempt:?}");
        attempt
    }

    fn get(&self) -> Attempt {
        self.ask("get", json!({"id": 7}))
    }
}

#[test]
fn a_call_that_spends_is_known_by_its_key() {
    let server = Server::answers(&[&json_answer(&json!({}))]);
    let mut asked = Asked::plain(&server);
    asked.get();
    asked.key = Some("run-1-call");
    asked.get();
    let seen = server.seen();
    let keys: Vec<Option<&String>> = seen.iter().map(|seen| seen.headers.get("idempotency-key")).collect();
    assert_eq!(keys, [None, Some(&"run-1-call".to_owned())]);
}

#[test]
fn a_question_and_its_answer() {
    let server = Server::answers(&[&json_answer(&json!({"data": 1}))]);
    let asked = Asked::plain(&server);
    let attempt = asked.ask("get", json!({"id": "a/b", "q": "x y"}));
    assert_eq!((attempt.went, attempt.code, &attempt.output), (Went::Well, Some(200), &json!({"data": 1})));
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "GET /things/a%2Fb?q=x+y HTTP/1.1");
    assert_eq!(seen.headers["host"], format!("api.test:{}", server.port()));
    assert!(!seen.headers.contains_key("authorization") && !seen.headers.contains_key("referer"));
    let decision = &attempt.evidence["decisions"][0];
    assert_eq!(attempt.evidence["url"], format!("http://api.test:{}/things/a%2Fb", server.port()));
    assert_eq!((&decision["address"], &decision["allowed"]), (&json!("127.0.0.1"), &json!(true)));
    let made = asked.ask("make", json!({"name": "n"}));
    assert_eq!(made.went, Went::Well);
    assert_eq!(server.seen()[1].body, "{\"name\":\"n\"}");
    assert_eq!(asked.ask("look", json!({})).went, Went::Well, "a HEAD has no body");
}

#[test]
fn keys_and_tokens() {
    let header = |seen: &Server, name: &str| seen.seen()[0].headers.get(name).cloned();
    for (auth, name, expected) in [
        (json!({"auth_method": "api_key"}), "x-api-key", SECRET.to_owned()),
        (json!({"auth_method": "api_key", "auth": {"header": "X-Mine"}}), "x-mine", SECRET.to_owned()),
        (json!({"auth_method": "bearer"}), "authorization", format!("Bearer {SECRET}")),
    ] {
        // A service that sends back what it was sent.
        let server = Server::new(|seen, out| {
            out.write_all(json_answer(&json!({"said": seen.headers, "line": seen.line})).as_bytes())
        });
        let attempt = Asked::new(&server, auth).get();
        assert_eq!(attempt.went, Went::Well);
        assert_eq!(header(&server, name), Some(expected));
        assert!(attempt.output["said"][name].as_str().unwrap().contains("[REDACTED]"), "{:?}", attempt.output);
    }
    let server = Server::answers(&[&json_answer(&json!(1))]);
    let by_query = Asked::new(&server, json!({"auth_method": "api_key", "auth": {"query": "key"}}));
    assert_eq!(by_query.get().went, Went::Well);
    assert_eq!(server.seen()[0].line, format!("GET /things/7?key={SECRET} HTTP/1.1"));
    let mut without = Asked::new(&server, json!({"auth_method": "bearer"}));
    without.secrets.clear();
    let problem = without.get().problem.unwrap();
    assert!(problem.message.contains("secret token is missing"), "{problem}");
}

fn oauth(tokens: &Server, service: &Server) -> Asked {
    let url = format!("http://token.test:{}/token", tokens.port());
    let mut asked = Asked::new(service, json!({"auth_method": "oauth", "auth": {"token_url": url, "scope": "read"}}));
    asked.allow.push(format!("token.test:{}", tokens.port()));
    asked
}

#[test]
fn a_token_is_fetched_kept_and_fetched_again() {
    let count = AtomicU64::new(0);
    let tokens = Server::new(move |_, out| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        out.write_all(json_answer(&json!({"access_token": format!("tok-number-{n}"), "expires_in": 3600})).as_bytes())
    });
    let bad = Arc::new(Mutex::new(String::new()));
    let taken_back = Arc::clone(&bad);
    let service = Server::new(move |seen, out| {
        let said = seen.headers.get("authorization").cloned().unwrap_or_default();
        let is_bad = said == *taken_back.lock().unwrap();
        out.write_all(answer(if is_bad { 401 } else { 200 }, &[], &said).as_bytes())
    });
    let asked = oauth(&tokens, &service);
    let attempt = asked.get();
    assert_eq!((attempt.went, &attempt.output), (Went::Well, &json!("Bearer [REDACTED]")));
    assert_eq!(asked.get().went, Went::Well);
    assert_eq!(tokens.seen().len(), 1, "the second call uses the same");
    let form = format!("grant_type=client_credentials&client_id=me-myself&client_secret={SECRET}&scope=read");
    assert_eq!(tokens.seen()[0].body, form);
    *bad.lock().unwrap() = "Bearer tok-number-0".into();
    assert_eq!(asked.get().went, Went::Well);
    assert_eq!((tokens.seen().len(), service.seen().len()), (2, 4));
    // With nothing kept yet.
    let refused = oauth(&tokens, &service);
    *bad.lock().unwrap() = "Bearer tok-number-2".into();
    assert_eq!(refused.get().went, Went::Wrong(Some(401)), "a new one that is refused is refused");
    assert_eq!((tokens.seen().len(), service.seen().len()), (3, 5));
    assert_eq!(refused.get().went, Went::Well);
    assert_eq!((tokens.seen().len(), service.seen().len()), (4, 6), "and is not tried again");
}

#[test]
fn who_gives_out_no_token_or_may_not_be_reached() {
    let refusing = Server::answers(&[&answer(
        400,
        &[("Content-Type", "application/json")],
        &json!({"error": "invalid_client", "error_description": format!("{SECRET} is wrong")}).to_string(),
    )]);
    let service = Server::answers(&[&json_answer(&json!(1))]);
    let attempt = oauth(&refusing, &service).get();
    assert_eq!((attempt.went, attempt.code), (Went::Wrong(Some(400)), Some(400)));
    assert!(attempt.problem.unwrap().message.contains("invalid_client [REDACTED] is wrong"));
    let mut asked = oauth(&refusing, &service);
    asked.allow.pop();
    let attempt = asked.get();
    assert_eq!(attempt.problem.unwrap().stage, Stage::Denied);
    assert!(service.seen().is_empty());
}

#[test]
fn who_is_not_listed_is_not_reached() {
    let server = Server::answers(&[&json_answer(&json!(1))]);
    for (allow, code) in [
        (vec![], "ssrf_block.host_not_allowed"),
        (vec!["other.test".to_owned()], "ssrf_block.host_not_allowed"),
        (vec!["api.test".to_owned()], "ssrf_block.port_not_allowed"),
    ] {
        let mut asked = Asked::plain(&server);
        asked.allow = allow;
        let attempt = asked.get();
        assert_eq!((attempt.went, attempt.problem.unwrap().stage), (Went::Wrong(None), Stage::Denied));
        assert_eq!(attempt.evidence["decisions"][0]["code"], code);
    }
    assert!(server.seen().is_empty());
}

#[test]
fn a_redirect_is_judged_like_any_other() {
    let inner = Server::answers(&[&json_answer(&json!("inside"))]);
    for (to, allow, code) in [
        (format!("http://127.0.0.1:{}/", inner.port()), None, "ssrf_block.private_address"),
        (format!("http://localhost:{}/", inner.port()), Some("localhost"), "ssrf_block.private_address"),
        (format!("http://0x7f000001:{}/", inner.port()), None, "ssrf_block.private_address"),
        ("http://169.254.169.254/latest".to_owned(), None, "ssrf_block.metadata_endpoint"),
        (format!("http://other.test:{}/", inner.port()), None, "ssrf_block.host_not_allowed"),
        ("file:///etc/passwd".to_owned(), None, "ssrf_block.invalid_url"),
        ("http://u:p@api.test/".to_owned(), None, "ssrf_block.invalid_url"),
    ] {
        let server = Server::answers(&[&answer(302, &[("Location", &to)], "")]);
        let mut asked = Asked::plain(&server);
        asked.allow.extend(allow.map(|name| format!("{name}:{}", inner.port())));
        let attempt = asked.get();
        let decision = &attempt.evidence["decisions"][1];
        assert_eq!((&decision["code"], &decision["allowed"]), (&json!(code), &json!(false)), "{to}");
        let problem = attempt.problem.unwrap();
        assert_eq!(problem.stage, Stage::Denied, "{to}");
        assert!(problem.message.contains(code), "{problem}");
    }
    assert!(inner.seen().is_empty(), "nobody was asked");
}

#[test]
fn what_signs_goes_to_no_other_origin() {
    for auth in [
        json!({"auth_method": "bearer"}),
        json!({"auth_method": "api_key"}),
        json!({"auth_method": "api_key", "auth": {"query": "key"}}),
    ] {
        let to = Arc::new(Mutex::new(Vec::new()));
        let ways = Arc::clone(&to);
        // Both go on to the next place of the list, and at its end there is an answer.
        let next = move |_: &crate::testing::Seen, out: &mut dyn io::Write| {
            let place: Option<String> = ways.lock().unwrap().pop();
            let found = place.map_or_else(|| json_answer(&json!("end")), |to| answer(302, &[("Location", &to)], ""));
            out.write_all(found.as_bytes())
        };
        let (home, away) = (Server::new(next.clone()), Server::new(next));
        let there = format!("http://other.test:{}/x", away.port());
        *to.lock().unwrap() = vec![format!("http://api.test:{}/back", home.port()), there, "/things/8".to_owned()];
        let mut asked = Asked::new(&home, auth);
        asked.allow.push(format!("other.test:{}", away.port()));
        let attempt = asked.get();
        assert_eq!((attempt.output, &attempt.evidence["redirects"]), (json!("end"), &json!(3)));
        let has_secret = |server: &Server, at: usize| format!("{:?}", server.seen()[at]).contains(SECRET);
        assert!(has_secret(&home, 0) && has_secret(&home, 1), "at home it is signed");
        assert!(!has_secret(&away, 0), "away it is not");
        assert!(!has_secret(&home, 2), "nor where somebody else has sent us");
    }
}

#[test]
fn redirects_have_an_end_and_only_questions_are_sent_on() {
    let round = Server::answers(&[&answer(302, &[("Location", "/again")], "")]);
    let attempt = Asked::plain(&round).get();
    assert_eq!((attempt.went, round.seen().len()), (Went::Wrong(Some(302)), REDIRECTS_MAX + 1));
    let made = Asked::plain(&round).ask("make", json!({}));
    assert_eq!((made.went, round.seen().len()), (Went::Wrong(Some(302)), REDIRECTS_MAX + 2));
}

#[test]
fn slow_ones_time_out_and_can_be_stopped() {
    let slow = Server::new(|_, out| {
        write!(out, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n")?;
        loop {
            out.write_all(b"x")?;
            out.flush()?;
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut asked = Asked::plain(&slow);
    asked.timeout_ms = 300;
    let attempt = asked.get();
    assert_eq!(attempt.went, Went::TimedOut);
    assert!((300..2_000).contains(&attempt.duration_ms), "{}", attempt.duration_ms);
    assert_eq!(attempt.evidence["decisions"][0]["allowed"], true, "what was decided is known all the same");
    asked.timeout_ms = 10_000;
    let begun = Instant::now();
    let attempt = asked.ask_until("get", json!({"id": 1}), &|| begun.elapsed() > Duration::from_millis(200));
    assert!(attempt.problem.unwrap().message.contains("stopped"));
    assert!(begun.elapsed() < Duration::from_secs(3));
}

#[test]
fn what_has_no_end_is_cut() {
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let huge = Server::new(move |seen, out| {
        let kind = if seen.line.contains("json") { "application/json" } else { "text/plain" };
        write!(out, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", 2_u64 << 30)?;
        let piece = [b'['; 64 << 10];
        for _ in 0..(2_u64 << 30) / piece.len() as u64 {
            out.write_all(&piece)?;
            count.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    });
    let asked = Asked::plain(&huge);
    let attempt = asked.get();
    assert_eq!((attempt.went, attempt.is_cut), (Went::Well, true));
    assert_eq!(attempt.output.as_str().unwrap().len(), 1 << 20);
    assert!(written.load(Ordering::Relaxed) < 64 << 20, "the rest was left with the service");
    let attempt = asked.ask("get", json!({"id": "json"}));
    assert_eq!((attempt.went, attempt.is_cut), (Went::Wrong(None), true));
    let problem = attempt.problem.unwrap();
    assert!(problem.stage == Stage::Output && problem.message.contains("was cut"), "{problem}");
}

#[test]
fn answers_that_are_not_what_they_say() {
    let of = |text: &str| Asked::plain(&Server::answers(&[text])).get();
    let broken = of(&answer(200, &[("Content-Type", "application/json; charset=utf-8")], "{\"a\": \n}"));
    let problem = broken.problem.unwrap();
    assert_eq!(
        (broken.went, problem.stage, problem.path.as_deref()),
        (Went::Wrong(None), Stage::Output, Some("line 2 column 1"))
    );
    let text = of(&answer(200, &[("Content-Type", "text/html")], "{\"a\": 1}"));
    assert_eq!((text.went, text.output), (Went::Well, json!("{\"a\": 1}")));
    assert_eq!(of("HTTP/1.1 204 No Content\r\n\r\n").output, Value::Null);
    let missing = of(&answer(404, &[("Content-Type", "application/problem+json")], "{\"title\": \"none\"}"));
    assert_eq!((missing.went, &missing.output["title"]), (Went::Wrong(Some(404)), &json!("none")));
    let wait = of(&answer(429, &[("Retry-After", "2")], ""));
    assert_eq!((wait.went, wait.retry_after_ms), (Went::Wrong(Some(429)), Some(2_000)));
    for text in ["", "HTTP/1.1 banana\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"] {
        let attempt = of(text);
        assert_eq!(attempt.went, Went::Wrong(None), "{text:?}");
        assert!(attempt.problem.is_some());
    }
}

#[test]
fn nobody_there() {
    let server = Server::answers(&[""]);
    let mut asked = Asked::plain(&server);
    let port = server.port();
    drop(server);
    std::thread::sleep(Duration::from_millis(100));
    let attempt = asked.get();
    assert_eq!(attempt.went, Went::Unavailable, "{:?}", attempt.problem);
    asked.adapter = adapter("A", "api", &interface(&format!("http://nobody.invalid:{port}"), json!({})), |_| {});
    asked.allow = vec![format!("nobody.invalid:{port}")];
    let attempt = asked.get();
    assert_eq!(attempt.went, Went::Unavailable, "{:?}", attempt.problem);
    assert_eq!(attempt.evidence["decisions"][0]["code"], "ssrf_block.dns_resolution_failed");
}

#[test]
fn certificates_are_checked() {
    let (config, pem) = certificate("api.test");
    let server = Server::with(Some(config), |_, out| out.write_all(json_answer(&json!("safe")).as_bytes()));
    let base = format!("https://api.test:{}", server.port());
    let mut asked = Asked::plain(&server);
    asked.adapter = adapter("A", "api", &interface(&base, json!({})), |_| {});
    let unknown = asked.get();
    assert_eq!(unknown.went, Went::Unavailable);
    assert!(unknown.problem.unwrap().message.contains("certificate"));
    assert!(server.seen().is_empty(), "nothing was said to whom we do not know");
    asked.http = http(Some(&pem));
    assert_eq!(asked.get().output, json!("safe"));
    asked.adapter = adapter("A", "api", &interface(&base.replace("api", "other"), json!({})), |_| {});
    asked.allow = vec![format!("other.test:{}", server.port())];
    let other = asked.get();
    assert_eq!(other.went, Went::Unavailable);
    assert!(other.problem.unwrap().message.contains("certificate"), "of another name");
}

#[test]
fn no_redirect_leads_out_of_encryption() {
    let plain = Server::answers(&[&json_answer(&json!("plain"))]);
    let to = format!("http://api.test:{}/", plain.port());
    let (config, pem) = certificate("api.test");
    let server =
        Server::with(Some(config), move |_, out| out.write_all(answer(302, &[("Location", &to)], "").as_bytes()));
    let mut asked = Asked::plain(&server);
    asked.allow.push(format!("api.test:{}", plain.port()));
    asked.http = http(Some(&pem));
    asked.adapter = adapter("A", "api", &interface(&format!("https://api.test:{}", server.port()), json!({})), |_| {});
    assert_eq!(asked.get().problem.unwrap().stage, Stage::Denied);
    assert!(plain.seen().is_empty());
}

#[test]
fn roots_are_read_or_refused() {
    assert!(Http::new(BTreeMap::new(), Some(b"no certificate")).is_err());
    assert!(Http::new(BTreeMap::new(), None).is_ok());
}

#[test]
fn many_at_once() {
    let server = Server::new(|_, out| {
        std::thread::sleep(Duration::from_millis(200));
        out.write_all(json_answer(&json!(1)).as_bytes())
    });
    let asked = Asked::plain(&server);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(asked.get().went, Went::Well));
        }
    });
    assert!(begun.elapsed() < Duration::from_millis(1_500), "one does not wait for another: {:?}", begun.elapsed());
}

#[test]
fn from_inside_a_runtime() {
    let server = Server::answers(&[&json_answer(&json!(1))]);
    let asked = Asked::plain(&server);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(async { asked.get().went }), Went::Well);
}
