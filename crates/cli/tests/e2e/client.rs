//! The command line as a client: a server in one folder, whoever asks it in another one without a project.

use actum_testkit::event;
use actum_testkit::program::{Program, Running};
use serde_json::{Value, json};

use super::actum;
use super::run::asked;

pub(crate) const AGENTS: &str = "[agents.a]\ntype = \"command\"\ncommand = [\"true\"]\n";
const WORK: &str = "items:\n  - {id: one, agent_id: a, description: Do it.}\n";
pub(crate) const SIGNATURE: &str = r#"
namespace: demo
name: Sentiment
version: 1
description: How a text feels.
input_schema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
output_schema: {type: object, properties: {label: {type: string}}, required: [label], additionalProperties: false}
prompt_template: "How does this feel? {{ text }}"
program_template: direct.v1
"#;

struct World {
    home: Program,
    away: Program,
    url: String,
    server: Running,
}

impl World {
    fn new() -> Self {
        let home = actum();
        home.file("actum.toml", AGENTS);
        let mut server = home.start(&["serve", "--listen", "127.0.0.1:0", "--workers", "0", "--json"], &[]);
        let shown: Value = serde_json::from_str(&server.line().unwrap()).unwrap();
        let url = shown["url"].as_str().unwrap().to_owned();
        let away = actum().with_env("ACTUM_SERVER", &url).with_env("ACTUM_TOKEN", shown["token"].as_str().unwrap());
        Self { home, away, url, server }
    }

    /// The same words here and there have the same answer.
    #[track_caller]
    fn is_same(&self, words: &[&str]) -> String {
        let (home, away) = (self.home.run(words), self.away.run(words));
        assert_eq!((away.code, &away.stdout, &away.stderr), (home.code, &home.stdout, &home.stderr), "{words:?}");
        away.stdout
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.signal("TERM");
        // Whoever asked has left nothing of a project behind.
        assert!(!self.away.path(".actum").exists());
    }
}

#[test]
fn runs_are_submitted_and_looked_at_from_elsewhere() {
    let world = World::new();
    let away = &world.away;
    away.file("work.yaml", WORK);
    let made = asked(away, &["run", "work.yaml", "--detach", "--profile", "ci", "--json"]);
    let id = made["runs"][0]["run_id"].as_str().unwrap();
    let shown = asked(away, &["status", id, "--json"]);
    assert_eq!((&shown["item_id"], &shown["state"]), (&json!("one"), &json!("queued")));
    assert_eq!(asked(away, &["list", "--json", "--limit", "1"])["runs"][0]["run_id"], id);
    assert_eq!(asked(away, &["logs", id, "--json"])["run_id"], id);
    assert!(world.is_same(&["status"]).contains("queued"));
    world.is_same(&["contract", "show", id]);
    world.is_same(&["gate", id, "--json"]);
    assert_eq!(asked(away, &["store", "check", "--json"])["valid"], true);
    assert_eq!(asked(away, &["store", "gc", "--dry-run", "--json"])["dry_run"], true);
    world.is_same(&["stage", "list"]);
    let piped = away.run_with(&["run", "-", "--detach"], WORK.as_bytes());
    assert_eq!(piped.code, 0, "{}", piped.stderr);
    assert_eq!(asked(away, &["list", "--json"])["runs"].as_array().unwrap().len(), 2);
    // What is said beside a result is heard here too, unless nobody wants to.
    world.is_same(&["list", "--limit", "1"]);
    let heard = |words: &[&str]| away.run(words).stderr;
    assert!(heard(&["list", "--limit", "1"]).contains("more with --cursor"));
    assert_eq!(heard(&["list", "--limit", "1", "--quiet"]) + &heard(&["list", "--limit", "1", "--json"]), "");
    assert_eq!(asked(away, &["cancel", id, "--json"])["cancelled"], true);
    let again = away.run(&["cancel", id, "--json"]);
    assert_eq!((again.code, &again.error()["code"]), (6, &json!("RUN_STATE")));
}

#[test]
fn whoever_does_not_detach_waits_and_is_told_what_came_of_it() {
    let home = actum();
    let failing = "[agents.b]\ntype = \"command\"\ncommand = [\"false\"]\n";
    home.file("actum.toml", format!("{AGENTS}\n{failing}"));
    let mut server = home.start(&["serve", "--listen", "127.0.0.1:0", "--workers", "2", "--json"], &[]);
    let shown: Value = serde_json::from_str(&server.line().unwrap()).unwrap();
    let (url, token) = (shown["url"].as_str().unwrap(), shown["token"].as_str().unwrap());
    let away = actum().with_env("ACTUM_SERVER", url).with_env("ACTUM_TOKEN", token);
    away.file("work.yaml", WORK);
    let ended = away.run(&["run", "work.yaml", "--json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let run = &ended.json()["runs"][0];
    assert_eq!((&run["item_id"], &run["status"]), (&json!("one"), &json!("success")), "{run}");
    // The same that is told where the run is.
    let there = asked(&home, &["status", run["run_id"].as_str().unwrap(), "--json"]);
    assert_eq!(&there["run"], run);
    let text = away.run(&["run", "work.yaml"]);
    assert!(text.code == 0 && text.stdout.contains("one"), "{text:?}");
    away.file("bad.yaml", WORK.replace("agent_id: a", "agent_id: b"));
    let failed = away.run(&["run", "bad.yaml", "--json"]);
    assert_eq!((failed.code, &failed.json()["runs"][0]["error_code"]), (1, &json!("AGENT_FAILED")), "{failed:?}");
    let id = failed.json()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    assert_eq!(away.run(&["resume", &id]).code, 1);
    server.signal("TERM");
    assert_eq!(server.finish().0, 0);
}

#[test]
fn whoever_has_the_token_is_the_actor() {
    let world = World::new();
    let away = &world.away;
    away.file("s.yaml", SIGNATURE);
    asked(away, &["signature", "add", "s.yaml", "--json"]);
    let list = world.is_same(&["signature", "list"]);
    assert!(list.contains("demo/Sentiment.v1"), "{list}");
    let set = ["pointer", "set", "demo/Sentiment.v1", "--primary", "baseline", "--reason", "first", "--if", "0"];
    let moved = asked(away, &[&set[..], &["--json"]].concat());
    assert_eq!((&moved["actor"], &moved["reason"]), (&json!("first"), &json!("first")));
    let stale = away.run(&set);
    assert_eq!((stale.code, stale.stdout.as_str()), (6, ""), "{}", stale.stderr);
    assert!(stale.stderr.starts_with("error[") && stale.stderr.contains("= see: docs/errors/"), "{}", stale.stderr);
    let forged = away.run(&[&set[..], &["--actor", "root"]].concat());
    assert_eq!(forged.code, 2);
    assert!(forged.stderr.contains("whose token it is"), "{}", forged.stderr);
    world.is_same(&["pointer", "show", "demo/Sentiment.v1"]);
    world.is_same(&["pointer", "history", "demo/Sentiment.v1", "--json"]);
}

#[test]
fn entries_are_appended_from_elsewhere() {
    let world = World::new();
    let away = &world.away;
    let entry = |tenant: &str, id: &str| event::signal(tenant, id).to_string();
    away.file("one.json", entry("local", "s-1"));
    assert!(away.run(&["ledger", "append", "one.json"]).ok().starts_with("recorded s-1"));
    let many = format!("{}\n{}\n", entry("local", "s-2"), entry("local", "s-3"));
    let piped = away.run_with(&["ledger", "append", "--json"], many.as_bytes());
    assert_eq!((piped.code, piped.json_lines().len()), (0, 2), "{}", piped.stderr);
    // A refused entry is a result, as it is here.
    let refused = away.run_with(&["ledger", "append", "-", "--json"], b"{}");
    assert_eq!((refused.code, &refused.json()["error"]["code"]), (2, &json!("VALIDATION_ERROR")), "{}", refused.stderr);
    let listed = world.is_same(&["ledger", "list", "--json", "--type", "signal"]);
    assert!(!listed.is_empty());
    world.is_same(&["ledger", "list"]);
    world.is_same(&["ledger", "show", "s-2"]);
    assert!(world.is_same(&["ledger", "verify", "--json"]).contains("true"));
}

#[test]
fn what_goes_wrong_is_told_as_it_is_here() {
    let world = World::new();
    let away = &world.away;
    for words in [&["status", "nowhere"][..], &["status", "nowhere", "--json"], &["ledger", "show", "s", "--json"]] {
        let (there, here) = (away.run(words), world.home.run(words));
        assert_eq!((there.code, &there.stdout, &there.stderr), (7, &here.stdout, &here.stderr));
    }
    let unknown = away.run(&["store", "rebuild", "--json"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.error()["hint"].as_str().unwrap().contains("leave out --server"), "{}", unknown.stderr);
    assert_eq!(away.run(&["list", "--store", "x.db"]).code, 2);
    // What is of this machine needs nobody.
    assert!(away.run(&["schema", "--list"]).ok().contains("work"));
    assert_eq!(away.run_with(&["canon"], b"{ }").ok().trim_end(), "{}");
    let cursor = away.run(&["list", "--cursor", "zzz", "--json"]);
    assert_eq!(cursor.code, 2);
    assert!(cursor.error()["message"].as_str().unwrap().contains("no cursor"), "{}", cursor.stderr);

    let world_url = world.url.as_str();
    // Who says which server is told that nobody is asked; and what is none.
    for words in [["doctor", "--server", world_url], ["list", "--server", "banana"]] {
        let refused = away.run(&words);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(!refused.stderr.contains("--insecure"), "{}", refused.stderr);
    }
    let other = actum();
    let none = other.run(&["list", "--server", world_url, "--json"]);
    assert_eq!((none.code, &none.error()["code"]), (3, &json!("UNAUTHORIZED")), "{}", none.stderr);
    let secret = format!("actum_0123456789abcdef_{}", "0".repeat(64));
    other.file("token", format!("{secret}\n"));
    let wrong = other.run(&["list", "--server", world_url, "--token-file", "token", "--json"]);
    assert_eq!((wrong.code, &wrong.error()["code"]), (3, &json!("UNAUTHORIZED")), "{}", wrong.stderr);
    assert!(!wrong.stderr.contains(&secret));
    let reader = asked(&world.home, &["token", "create", "--role", "reader", "--json"]);
    other.file("token", reader["token"].as_str().unwrap());
    let with = |words: &[&str]| other.run(&[words, &["--server", world_url, "--token-file", "token"]].concat());
    assert_eq!(with(&["list"]).ok(), "no runs\n");
    let forbidden = with(&["ledger", "checkpoint", "--json"]);
    assert_eq!((forbidden.code, &forbidden.error()["code"]), (3, &json!("FORBIDDEN")), "{}", forbidden.stderr);
}

/// What stands before a server where others are on the way: speaks TLS to whoever comes, and plainly to the server.
fn before(server: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};

    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let config = std::sync::Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let at = server.trim_start_matches("http://").to_owned();
    let serve = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut outer = rustls::StreamOwned::new(connection, stream);
            let mut inner = std::net::TcpStream::connect(&at).unwrap();
            // One question is sent at once, and has an end that the server knows.
            let (mut question, mut piece) = (Vec::new(), [0; 16 << 10]);
            while let Ok(read @ 1..) = outer.read(&mut piece) {
                question.extend_from_slice(&piece[..read]);
                if question.windows(4).any(|four| four == b"\r\n\r\n") {
                    break;
                }
            }
            let _ = inner.write_all(&question);
            let mut answer = Vec::new();
            let _ = inner.read_to_end(&mut answer);
            let _ = outer.write_all(&answer);
            outer.conn.send_close_notify();
            let _ = outer.flush();
        }
    };
    std::thread::Builder::new().name("before".into()).spawn(serve).unwrap();
    (port, made.cert.pem())
}

#[test]
fn over_https_a_server_is_asked_only_if_it_is_who_it_should_be() {
    let world = World::new();
    let (port, certificate) = before(&world.url);
    let (name, address) = (format!("https://localhost:{port}"), format!("https://127.0.0.1:{port}"));
    let strange = world.away.run(&["list", "--server", &name]);
    assert_eq!(strange.code, 2, "{strange:?}");
    assert!(strange.stderr.contains("TLS verification failed for localhost"), "{}", strange.stderr);
    let file = world.away.file("certificate.pem", certificate);
    let trusting = |url: &str| {
        let running = world
            .away
            .start(&["list", "--server", url], &[("SSL_CERT_FILE", file.to_str().unwrap()), ("SSL_CERT_DIR", "")]);
        running.finish()
    };
    let (code, lines, errors) = trusting(&name);
    assert_eq!((code, lines), (0, vec!["no runs".to_owned()]), "{errors:?}");
    let (code, _, errors) = trusting(&address);
    assert_eq!(code, 2, "the certificate is for another name: {errors:?}");
}
