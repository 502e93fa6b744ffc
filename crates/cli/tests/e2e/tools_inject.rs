//! Secrets of tools that write (D-513): added to requests for their hosts on the way out of the cell, and nowhere else.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use actum_testkit::program::Program;
use actum_testkit::tree::read;
use serde_json::{Value, json};

use super::actum;
use super::bridge::{agent, out, out_json, register, shell, wide};

const SECRET: &str = "hunter2-7d1e90";

/// A service that speaks TLS and remembers the requests it got, and its certificate.
struct Service {
    port: u16,
    certificate: String,
    heard: Arc<Mutex<Vec<String>>>,
}

fn service(name: &str) -> Service {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&heard);
    let serve = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let (mut text, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = stream.read(&mut piece) {
                text.extend_from_slice(&piece[..length]);
                // The body may come in a piece of its own.
                let has_body = text.starts_with(b"POST");
                if text.ends_with(b"\r\n\r\n") && !has_body || text.ends_with(b"the body") {
                    break;
                }
            }
            own.lock().unwrap().push(String::from_utf8_lossy(&text).into_owned());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    Service { port, certificate: made.cert.pem(), heard }
}

/// The agent plants a program that the tool runs, as a makefile would be.
const AGENT: &str = "printf 'curl -sS -H \"Authorization: Bearer mine\" https://api.test:%s/planted; echo; echo $API_TOKEN; env | grep -c hunter2\\n' $(cat port) > planted\n\
    actum tool call T1 --json > out/call; echo $? > out/code";

fn project(service: &Service, more: Value) -> Program {
    let at = format!("api.test:{}", service.port);
    let mut entry = json!({
        "scope": {"commands": ["sh"], "data_access": "write", "network": "on", "filesystem": ["."], "endpoints": [at]},
        "secrets": {"API_TOKEN": "env:REAL_TOKEN"},
    });
    entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let actum = actum();
    let script = format!(
        "curl -sS -d 'the body' https://{at}/post; echo; curl -sS https://{at}/again; echo; sh planted; echo done > written"
    );
    register(&actum, &[shell("T1", "write", &script, entry)]);
    agent(&actum, AGENT, "");
    let toml = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{toml}[sandbox]\nhosts = {{ \"api.test\" = \"127.0.0.1\" }}\n"));
    actum.file("port", service.port.to_string());
    let certificate = actum.file("certificate.pem", &service.certificate).display().to_string();
    actum.with_env("REAL_TOKEN", SECRET).with_env("SSL_CERT_FILE", &certificate).with_env("SSL_CERT_DIR", "")
}

fn inject(service: &Service) -> Value {
    json!({"inject": [{"secret": "API_TOKEN", "host": format!("api.test:{}", service.port)}]})
}

fn run(actum: &Program) -> Value {
    let ended = actum.run_with(&["run", "--json", "-"], wide().to_string().as_bytes());
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    ended.json()["runs"][0].clone()
}

#[test]
fn requests_get_the_secret_and_programs_do_not() {
    for as_nobody in [false, true] {
        let service = service("api.test");
        let actum = project(&service, inject(&service));
        let actum = if as_nobody { actum.owned_by_nobody() } else { actum };
        let shown = run(&actum);
        let call = out_json(&actum, "call");
        assert_eq!(out(&actum, "code").trim(), "0", "{call} {shown}");
        let output = call["output"].as_str().unwrap();
        assert_eq!(output, "hello\nhello\nhello\ninjected-by-actum\n0\n");
        let heard = service.heard.lock().unwrap().clone();
        assert_eq!(heard.len(), 3, "{heard:?}");
        for request in &heard {
            let header = format!("Authorization: Bearer {SECRET}\r\n");
            assert!(request.contains(&header) && !request.contains("Bearer mine"), "{request}");
        }
        assert!(heard[0].starts_with("POST /post HTTP/1.1\r\n") && heard[0].ends_with("the body"), "{}", heard[0]);
        assert_eq!(std::fs::read_to_string(actum.path("written")).unwrap(), "done\n");
        // Nothing that is kept holds it, and no file of ours is left.
        for (path, leaf) in read(actum.folder()) {
            let text = format!("{leaf:?}");
            assert!(!text.contains(SECRET), "{}", String::from_utf8_lossy(&path));
        }
        let logs = actum.run(&["logs", shown["run_id"].as_str().unwrap()]);
        assert!(!logs.stdout.contains(SECRET));
        assert_eq!(std::fs::read_dir(actum.path(".actum/cache/trust")).unwrap().count(), 0);
    }
}

#[test]
fn tools_that_write_get_no_bare_secret_on_an_agents_copy() {
    let service = service("api.test");
    let actum = project(&service, json!({}));
    run(&actum);
    let call = out_json(&actum, "call");
    assert_ne!(out(&actum, "code").trim(), "0", "{call}");
    assert!(call.to_string().contains("could read its secret API_TOKEN"), "{call}");
    assert_eq!(service.heard.lock().unwrap().len(), 0);
    assert!(!actum.path("written").exists());
}

#[test]
fn a_host_that_cannot_prove_its_name_gets_nothing() {
    let service = service("other.test");
    let actum = project(&service, inject(&service));
    run(&actum);
    let heard = service.heard.lock().unwrap().clone();
    assert!(heard.iter().all(|text| !text.contains(SECRET)), "{heard:?}");
    assert!(!out(&actum, "call").contains("hello"));
}

#[test]
fn injections_are_read_strictly() {
    let service = service("api.test");
    let at = format!("api.test:{}", service.port);
    for (bad, expected) in [
        (json!([{"secret": "OTHER", "host": at}]), "inject[0].secret"),
        (json!([{"secret": "API_TOKEN", "host": "elsewhere.test"}]), "inject[0].host"),
        (json!([{"secret": "API_TOKEN", "host": at, "header": "Host"}]), "inject[0].header"),
        (json!([{"secret": "API_TOKEN", "host": at, "header": "X: y\r\nZ"}]), "inject[0].header"),
        (json!([{"secret": "API_TOKEN", "host": at, "value": "constant"}]), "inject[0].value"),
        (json!("API_TOKEN"), "inject"),
    ] {
        let actum = actum();
        let entry = json!({
            "scope": {"commands": ["sh"], "network": "on", "endpoints": [at]},
            "secrets": {"API_TOKEN": "env:REAL_TOKEN"}, "inject": bad,
        });
        let (tool, _) = shell("T1", "write", "true", entry);
        actum.file("tool.json", tool.to_string());
        let ended = actum.run(&["tool", "add", "tool.json"]);
        assert!(ended.code == 2 && ended.stderr.contains(expected), "{bad}: {}", ended.stderr);
    }
}
