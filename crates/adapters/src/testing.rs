//! What tests need: a real server of HTTP on this machine, adapters and tools for it, and cells that are not there.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actum_contract::execution::{End, Host, Network, NetworkLevel, Sandbox};
use actum_contract::tool::{Adapter, Entry};
use serde_json::{Map, Value, json};

use crate::call::{Ask, Others};
use crate::cells::{Cells, Job, Ran, Session};
use crate::result::{Attempt, Problem, Stage};

/// A request as a server has seen it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

type Handler = dyn Fn(&Seen, &mut dyn Write) -> std::io::Result<()> + Send + Sync;

/// A server on a port of its own, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn new(handler: impl Fn(&Seen, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        Self::with(None, handler)
    }

    /// One answer for each request, in order; the last one again and again.
    pub(crate) fn answers(answers: &[&str]) -> Self {
        let answers: Vec<String> = answers.iter().map(|text| (*text).to_owned()).collect();
        let next = Mutex::new(0);
        Self::new(move |_, out| {
            let at = {
                let mut next = next.lock().unwrap();
                *next += 1;
                (*next - 1).min(answers.len() - 1)
            };
            out.write_all(answers[at].as_bytes())
        })
    }

    pub(crate) fn with(
        tls: Option<Arc<rustls::ServerConfig>>,
        handler: impl Fn(&Seen, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, is_over) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let (own, end, handler) = (Arc::clone(&seen), Arc::clone(&is_over), Arc::new(handler));
        let serving = move || {
            for stream in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (own, handler, tls) = (Arc::clone(&own), Arc::clone(&handler), tls.clone());
                let answering = move || {
                    let _ = match (stream, tls) {
                        (Ok(stream), None) => serve(stream, &own, &*handler),
                        (Ok(stream), Some(tls)) => {
                            let connection = rustls::ServerConnection::new(tls).unwrap();
                            serve(rustls::StreamOwned::new(connection, stream), &own, &*handler)
                        }
                        (Err(e), _) => Err(e),
                    };
                };
                std::thread::Builder::new().spawn(answering).unwrap();
            }
        };
        std::thread::Builder::new().spawn(serving).unwrap();
        Self { address, seen, is_over }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: impl Read + Write, seen: &Mutex<Vec<Seen>>, handler: &Handler) -> std::io::Result<()> {
    let mut reader = BufReader::new(&mut stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut text = String::new();
        reader.read_line(&mut text)?;
        let Some((name, value)) = text.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request = Seen { line: line.trim_end().to_owned(), headers, body: String::from_utf8_lossy(&body).into_owned() };
    seen.lock().unwrap().push(request.clone());
    handler(&request, &mut stream)?;
    stream.flush()
}

/// An answer with a body.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> String {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

pub(crate) fn json_answer(value: &Value) -> String {
    answer(200, &[("Content-Type", "application/json")], &value.to_string())
}

/// A certificate for a name, as a server has it and as PEM.
pub(crate) fn certificate(name: &str) -> (Arc<rustls::ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    (Arc::new(config), made.cert.pem())
}

pub(crate) fn tool() -> Entry {
    let document = json!({
        "tool_id": "T", "name": "t", "version": "1.0.0", "owner": "me",
        "provenance": {"repo_url": "https://example.com/t", "commit_or_tag": "1", "license": "MIT"},
        "scope": {"commands": ["x"], "data_access": "read", "network": "off", "filesystem": ["."],
            "environment": ["LEVEL", "LD_PRELOAD"]},
    });
    Entry::read(&document).unwrap()
}

pub(crate) fn adapter(id: &str, form: &str, interface: &Value, change: impl FnOnce(&mut Value)) -> Adapter {
    let mut document = json!({"adapter_id": id, "name": "a", "version": "1.0.0", "tool_id": "T", "type": form,
        "interface": {form: interface}, "transforms": {"input": [], "output": []}, "errors": {}});
    change(&mut document);
    Adapter::read(&document, &[]).unwrap()
}

pub(crate) fn sandbox(allow: &[&str]) -> Sandbox {
    let allow = allow.iter().map(|text| Host::parse(text).unwrap()).collect();
    let network = Network { level: NetworkLevel::Api, allow, deny: vec![] };
    Sandbox { timeout_ms: 10_000, network, ..Sandbox::default() }
}

pub(crate) fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Cells that give one end after the other, and remember what they were asked.
#[derive(Debug, Default)]
pub(crate) struct FakeCells {
    ends: Mutex<Vec<(Option<End>, String)>>,
    pub(crate) jobs: Mutex<Vec<Job>>,
}

impl FakeCells {
    pub(crate) fn new(ends: &[(Option<End>, &str)]) -> Self {
        let ends = ends.iter().rev().map(|(end, text)| (*end, (*text).to_owned())).collect();
        Self { ends: Mutex::new(ends), jobs: Mutex::default() }
    }
}

impl Cells for FakeCells {
    fn run(&self, job: &Job) -> Result<Ran, crate::NotRun> {
        self.jobs.lock().unwrap().push(job.clone());
        let (end, stdout) = self.ends.lock().unwrap().pop().ok_or_else(|| "no cell is left".to_owned())?;
        let error = end.is_none().then(|| "no cell here".to_owned());
        let stdout = stdout.into_bytes();
        Ok(Ran { end, stdout, stderr: b"told".to_vec(), is_cut: false, duration_ms: 1, error, evidence: json!({}) })
    }

    fn start(&self, _: &Job) -> Result<Box<dyn Session>, String> {
        Err("no protocol here".into())
    }
}

/// Nobody who could be asked.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Others for Nobody {
    fn attempt(&self, ask: &Ask<'_>) -> Attempt {
        let problem = Problem::new(Stage::Call, "no transport");
        Attempt::failed(&ask.link.adapter.adapter_id, actum_contract::tool::Went::Unavailable, problem)
    }
}
