//! A planned cell on its way to a result: run, taken in without secrets, and told as evidence. Shared by executions under a
//! contract and by calls of tools.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use actum_contract::digest::{Blake3, Digest};
use actum_contract::execution::{
    Item, NetworkLevel, Redactor, STDERR_BYTES_MAX, STDOUT_BYTES_MAX, Sandbox, State, checklist,
};
use actum_sandbox::{
    Captured, Cell, Egress, Log, Pipes, Report, Room, Rules, Signals, Spawner, Stream, Watched, watch,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::cell::{self, Planned};
use crate::failure::Failure;
use crate::protect::{self, Taken};
use crate::workspace::new_id;

/// What is known of an execution so far.
#[derive(Debug)]
pub(crate) struct Evidence {
    items: Vec<Item>,
    pub details: Map<String, Value>,
}

impl Evidence {
    pub(crate) fn new() -> Self {
        Self { items: checklist(), details: Map::new() }
    }

    pub(crate) fn note(&mut self, item: &str, state: State, detail: impl Into<Option<String>>) {
        if let Some(found) = self.items.iter_mut().find(|known| known.item == item) {
            found.state = state;
            found.at = Some(format!("{:.3}", Timestamp::now()));
            found.detail = detail.into();
        }
    }

    pub(crate) fn passed(&mut self, item: &str, detail: impl Into<Option<String>>) {
        self.note(item, State::Passed, detail);
    }

    pub(crate) fn json(&self) -> Value {
        let mut all = self.details.clone();
        all.insert("checklist".into(), json!(self.items));
        Value::Object(all)
    }
}

/// What came of a cell.
#[derive(Debug)]
pub(crate) struct Caught {
    pub watched: std::io::Result<Watched>,
    pub log: Log,
    pub duration: Duration,
    /// What is left of both streams without secrets, and how many there were.
    pub texts: [(Vec<u8>, u64); 2],
    pub taken: Vec<Taken>,
    pub is_partial: bool,
}

/// Runs a cell to its end. Its streams go into files of `keep` as they come, if it is given.
pub(crate) fn catch(
    planned: Planned,
    spawner: &Spawner,
    stdin: Option<&[u8]>,
    redactor: &Redactor,
    keep: Option<&Path>,
    signals: Signals,
) -> Result<Caught, Failure> {
    let Planned { cell, rules, writable, seen } = planned;
    let failed = |e: std::io::Error| cell::not_built(&e.to_string());
    let mut streams = [Kept::new(keep, "stdout", redactor)?, Kept::new(keep, "stderr", redactor)?];
    let limit = cell.limits.timeout_ms.map(|ms| Duration::from_millis(ms + cell.limits.grace_ms));
    let room = Room { output_bytes: STDOUT_BYTES_MAX as usize, errors_bytes: STDERR_BYTES_MAX as usize };
    let (pipes, files) = Pipes::new(stdin.is_some()).map_err(failed)?;
    let started = Instant::now();
    let running = spawner.run(cell, files).map_err(failed)?.ended_by(signals);
    let mut egress = None;
    let watched = watch(
        running,
        pipes,
        stdin.unwrap_or_default(),
        room,
        limit,
        &mut |stream, piece| match stream {
            Stream::Output => streams[0].add(piece),
            Stream::Errors => streams[1].add(piece),
        },
        &mut |listeners| egress = Egress::serve(listeners.way_out, rules.clone()).ok(),
    );
    let duration = started.elapsed();
    let log = egress.map(Egress::end).unwrap_or_default();
    let (taken, is_partial) = protect::take_away(&writable, &seen, &new_id());
    let [output, errors] = streams.map(Kept::finish);
    Ok(Caught { watched, log, duration, texts: [output, errors], taken, is_partial: is_partial || seen.is_partial })
}

/// A stream on its way to its file, without secrets.
struct Kept<'r> {
    file: Option<File>,
    redactor: &'r Redactor,
    pending: Vec<u8>,
    whole: Vec<u8>,
    count: u64,
}

impl<'r> Kept<'r> {
    fn new(keep: Option<&Path>, name: &str, redactor: &'r Redactor) -> Result<Self, Failure> {
        let make = |folder: &Path| {
            let path = folder.join(name);
            File::create(&path).map_err(|e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e))
        };
        let file = keep.map(make).transpose()?;
        Ok(Self { file, redactor, pending: Vec::new(), whole: Vec::new(), count: 0 })
    }

    fn add(&mut self, piece: &[u8]) {
        self.pending.extend_from_slice(piece);
        let settled = self.redactor.settled(&self.pending);
        self.write(settled);
    }

    fn write(&mut self, length: usize) {
        if length > 0 {
            let (clean, count) = self.redactor.redact(&self.pending[..length]);
            self.pending.drain(..length);
            self.count += count;
            if let Some(file) = &mut self.file {
                let _ = file.write_all(&clean);
            }
            self.whole.extend_from_slice(&clean);
        }
    }

    fn finish(mut self) -> (Vec<u8>, u64) {
        self.write(self.pending.len());
        (self.whole, self.count)
    }
}

/// As text. What was cut is cut between two characters.
pub(crate) fn shown(captured: &Captured, text: &[u8]) -> String {
    let end = match std::str::from_utf8(text) {
        Err(e) if captured.is_cut() && e.error_len().is_none() => e.valid_up_to(),
        _ => text.len(),
    };
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// What is known of a cell that was ended by somebody else.
pub(crate) fn lost(e: std::io::Error) -> Watched {
    let nothing = || Captured { kept: Vec::new(), bytes: 0, digest: Digest::blake3(b"") };
    let report = Report {
        ended: actum_sandbox::Ended::NotBuilt(e.to_string()),
        used: actum_sandbox::Used::default(),
        kept: Vec::new(),
    };
    Watched { report, output: nothing(), errors: nothing() }
}

/// Whether a variable holds a secret, by its name.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH"].iter().any(|word| name.contains(word))
}

/// SHA-256 of a file's content, in hexadecimal digits.
pub(crate) fn sha256(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::io::Seek::rewind(file)?;
    file.read_to_end(&mut bytes)?;
    Ok(Digest::sha256(&bytes).to_hex())
}

/// BLAKE3 of a file's content.
pub(crate) fn hash(file: &mut File) -> std::io::Result<Digest> {
    let mut hash = Blake3::default();
    let mut piece = vec![0; 256 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hash.finish()),
            length => hash.update(&piece[..length]),
        }
    }
}

/// What a cell was to be, for the evidence.
pub(crate) fn tell_cell(cell: &Cell, rules: &Rules, sandbox: &Sandbox, into: &mut Map<String, Value>) {
    let limits = json!({
        "timeout_ms": sandbox.timeout_ms, "memory_mb": sandbox.memory_mb, "cpu_cores": sandbox.cpu_cores,
        "max_children": sandbox.max_children, "allow_fork": sandbox.allow_fork, "disk_mb": sandbox.disk_mb,
    });
    let word = |access: &actum_sandbox::Access| if *access <= actum_sandbox::Access::Read { "read" } else { "write" };
    let grants: Vec<Value> =
        cell.grants.iter().map(|g| json!({"path": g.path.display().to_string(), "access": word(&g.access)})).collect();
    let deny: Vec<String> = cell.deny.iter().map(|path| path.display().to_string()).collect();
    let hosts: Vec<String> = rules.allow.iter().map(ToString::to_string).collect();
    let names: Vec<String> = cell.environment.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    into.insert("limits".into(), limits);
    into.insert("filesystem".into(), json!({"level": sandbox.filesystem.level.word(), "grants": grants, "deny": deny}));
    let is_logged = sandbox.network.level != NetworkLevel::Open;
    let network = json!({"level": sandbox.network.level.word(), "allow": hosts, "logged": is_logged});
    into.insert("network".into(), network);
    into.insert("environment".into(), json!(names));
}

/// How a cell was, for the evidence.
pub(crate) fn tell_end(report: &Report, log: &Log, taken: &[Taken], into: &mut Map<String, Value>) {
    let walls: Vec<Value> =
        report.kept.iter().map(|k| json!({"wall": k.wall.word(), "by": k.by, "weaker": k.weaker})).collect();
    let used = json!({
        "memory_bytes_peak": report.used.memory_bytes_peak, "cpu_us": report.used.cpu_us,
        "processes_peak": report.used.processes_peak,
        "disk_bytes_written": report.used.disk_bytes,
    });
    let put_aside: Vec<Value> = taken
        .iter()
        .map(|one| json!({"path": one.path.display().to_string(), "now": one.now.as_ref().map(|now| now.display().to_string())}))
        .collect();
    into.insert("walls".into(), json!(walls));
    into.insert("used".into(), used);
    tell_decisions(log, into);
    into.insert("put_aside".into(), json!(put_aside));
}

/// Whom a cell has reached, or wanted to, for the evidence.
pub(crate) fn tell_decisions(log: &Log, into: &mut Map<String, Value>) {
    let decisions: Vec<Value> = log
        .decisions
        .iter()
        .map(|d| {
            json!({"after_ms": d.after_ms, "by": d.by, "host": d.host, "port": d.port,
                "address": d.address.map(|a| a.to_string()), "allowed": d.allowed, "code": d.code, "why": d.why,
                "sent_bytes": d.sent_bytes, "received_bytes": d.received_bytes,
                "credential": d.has_credential})
        })
        .collect();
    into.insert("decisions".into(), json!(decisions));
    into.insert("decisions_left_out".into(), json!(log.left_out));
}
