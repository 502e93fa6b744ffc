//! Models behind `actum serve`: by the protocols of their providers, for whoever has a token that may spend, paid for by his
//! tenant; and what a server shows of it afterwards. Also tokens, made and taken back over HTTP.

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::gateway::{ENOUGH, KEY, cost, program, providers};
use super::run::asked;
use super::serve::{Server, token};

const USAGE: (u64, u64) = (40, 6);

fn started(turns: usize) -> (Upstream, Program, Server) {
    let usage = Usage::new(USAGE.0, USAGE.1);
    let script = (0..turns).fold(Script::default(), |script, _| script.turn(Turn::text("hello"), usage));
    let upstream = Upstream::start(script);
    let actum = program();
    actum.file("actum.toml", providers(&upstream.url(), ""));
    let server = Server::start(&actum, &["--workers", "0"]);
    (upstream, actum, server)
}

fn chat(server: &Server, headers: &[(&str, &str)]) -> super::serve::Reply {
    let question = json!({"model": "stub-1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20});
    server.ask_with("POST", "/gateway/openai/v1/chat/completions", headers, &question.to_string())
}

fn messages(server: &Server, headers: &[(&str, &str)]) -> super::serve::Reply {
    let question = json!({"model": "stub-1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20});
    server.ask_with("POST", "/gateway/anthropic/v1/messages", headers, &question.to_string())
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn whoever_may_spend_asks_models_and_his_tenant_pays() {
    let (upstream, actum, server) = started(3);
    let operator = token(&actum, "operator", &[]);
    let entry = bearer(&operator);
    // Nobody has allowed anything yet.
    let denied = chat(&server, &[("authorization", &entry)]);
    assert!(denied.status >= 400, "{denied:?}");
    asked(&actum, &["spend", "authorize", "--max-total", &ENOUGH.to_string(), "--json"]);
    let answered = chat(&server, &[("authorization", &entry)]);
    assert_eq!(answered.status, 200, "{answered:?}");
    assert_eq!(answered.json()["choices"][0]["message"]["content"], "hello");
    // As the clients of the other provider bring their keys.
    let answered = messages(&server, &[("x-api-key", &operator), ("anthropic-version", "2023-06-01")]);
    assert_eq!(answered.status, 200, "{answered:?}");
    assert_eq!(answered.json()["content"][0]["text"], "hello");
    let listed = server.ask(&operator, "GET", "/gateway/openai/v1/models", "");
    assert_eq!(listed.status, 200, "{listed:?}");
    let receipts = asked(&actum, &["trace", "list", "--json"])["receipts"].as_array().unwrap().clone();
    let paid: u64 = receipts.iter().filter_map(|receipt| receipt["amount"].as_u64()).sum();
    let spent = asked(&actum, &["spend", "list", "--json"])["authorizations"][0].clone();
    assert_eq!(
        spent["committed"].as_u64().or(spent["spent"].as_u64()),
        Some(2 * cost(Usage::new(USAGE.0, USAGE.1))),
        "{spent} {paid}"
    );
    assert!(!format!("{answered:?}{listed:?}").contains(KEY));
    drop(upstream);
    assert_eq!(server.stop().0, 0);
}

#[test]
fn who_may_not_spend_reaches_no_model() {
    let (upstream, actum, server) = started(1);
    asked(&actum, &["spend", "authorize", "--max-total", &ENOUGH.to_string(), "--json"]);
    let (reader, stranger) = (token(&actum, "reader", &[]), token(&actum, "operator", &["--tenant", "acme"]));
    for (headers, status) in [
        (vec![], 401),
        (vec![("authorization", "Bearer actum_0_0".to_owned())], 401),
        (vec![("x-api-key", "nonsense".to_owned())], 401),
        (vec![("x-api-key", stranger.clone()), ("x-goog-api-key", stranger.clone())], 401),
        (vec![("authorization", bearer(&reader))], 403),
    ] {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let refused = chat(&server, &headers);
        assert_eq!(refused.status, status, "{headers:?}: {refused:?}");
    }
    let by_query = server.ask_with("POST", &format!("/gateway/openai/v1/chat/completions?key={stranger}"), &[], "{}");
    assert_eq!(by_query.status, 401, "{by_query:?}");
    // Another tenant's money is not spent: it has none.
    let refused = chat(&server, &[("authorization", &bearer(&stranger))]);
    assert!(refused.status >= 400, "{refused:?}");
    for path in
        ["/gateway/openai", "/gateway/other/v1/models", "/gateway/openai/../v1/runs", "/gateway/openai/v1/nothing"]
    {
        let answer = server.get(&stranger, path);
        assert!(answer.status == 404 || answer.status == 400, "{path}: {answer:?}");
    }
    assert!(upstream.requests().is_empty(), "nobody was asked");
}

/// Questions of one tenant that never end leave room for those of others.
#[test]
fn one_tenant_does_not_keep_models_from_others() {
    use std::io::Write as _;

    let (_upstream, actum, server) = started(1);
    asked(&actum, &["spend", "authorize", "--max-total", &ENOUGH.to_string(), "--json"]);
    let (own, other) = (token(&actum, "operator", &[]), token(&actum, "operator", &["--tenant", "acme"]));
    let silent: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(server.at).unwrap();
            write!(
                stream,
                "POST /gateway/openai/v1/chat/completions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {other}\r\n\
                 content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n",
                server.at
            )
            .unwrap();
            stream
        })
        .collect();
    // Its turn comes while all of them wait, or not within the time that a question waits for room.
    let answered = chat(&server, &[("authorization", &bearer(&own))]);
    assert_eq!(answered.status, 200, "{answered:?}");
    drop(silent);
}

/// Questions are kept, so they count for the quotas of storage.
#[test]
fn questions_for_models_count_for_quotas() {
    let (_upstream, actum, server) = started(0);
    assert_eq!(server.stop().0, 0);
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{text}\n[server]\ntoken_storage_mb = 1\n"));
    let server = Server::start(&actum, &["--workers", "0"]);
    let entry = bearer(&token(&actum, "operator", &[]));
    let question =
        json!({"model": "stub-1", "messages": [{"role": "user", "content": "x".repeat(400_000)}]}).to_string();
    let ask =
        || server.ask_with("POST", "/gateway/openai/v1/chat/completions", &[("authorization", &entry)], &question);
    let statuses: Vec<u16> = (0..4).map(|_| ask().status).collect();
    assert!(statuses[..2].iter().all(|status| *status != 507) && statuses[3] == 507, "{statuses:?}");
}

#[test]
fn tokens_are_made_listed_and_taken_back_over_http() {
    let (_upstream, actum, server) = started(0);
    let admin = token(&actum, "admin", &["--tenant", "acme"]);
    let made = server.post(&admin, "/v1/tokens", json!({"role": "operator", "name": "ci"})).is(201);
    assert_eq!((&made["tenant"], &made["role"]), (&json!("acme"), &json!("operator")), "{made}");
    let fresh = made["token"].as_str().unwrap();
    server.get(fresh, "/v1/runs").is(200);
    assert_eq!(server.get(fresh, "/v1/tokens").status, 403, "only who may do everything sees them");
    let listed = server.get(&admin, "/v1/tokens").is(200);
    assert_eq!(listed["tokens"].as_array().map(Vec::len), Some(2), "{listed}");
    assert!(!listed.to_string().contains(fresh.rsplit('_').next().unwrap()), "{listed}");
    let id = made["id"].as_str().unwrap();
    server.ask(&admin, "DELETE", &format!("/v1/tokens/{id}"), "").is(200);
    assert_eq!(server.get(fresh, "/v1/runs").status, 401);
    // What is made with one that ends does not outlive it.
    let brief = token(&actum, "admin", &["--tenant", "acme", "--expires", "1h"]);
    let end = |made: &Value| made["expires_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let of_maker = server.get(&admin, "/v1/tokens").is(200)["tokens"].as_array().unwrap().clone();
    let of_maker = end(of_maker.iter().find(|one| brief.contains(one["id"].as_str().unwrap())).unwrap());
    let made = server.post(&brief, "/v1/tokens", json!({"role": "admin"})).is(201);
    assert_eq!(end(&made), of_maker);
    let made = server.post(&brief, "/v1/tokens", json!({"role": "admin", "expires": "30m"})).is(201);
    assert!(end(&made) < of_maker, "{made}");
    let refused = server.post(&brief, "/v1/tokens", json!({"role": "admin", "expires": "2h"}));
    assert!(refused.status == 403 && refused.body.contains("outlive"), "{refused:?}");
    // Another tenant's is none of his.
    let local = token(&actum, "operator", &[]);
    let other = asked(&actum, &["token", "list", "--json"])["tokens"].as_array().unwrap().clone();
    let other: Vec<&Value> = other.iter().filter(|token| token["role"] == "operator").collect();
    let id = other[0]["id"].as_str().unwrap();
    assert_eq!(server.ask(&admin, "DELETE", &format!("/v1/tokens/{id}"), "").status, 404);
    server.get(&local, "/v1/runs").is(200);
}
