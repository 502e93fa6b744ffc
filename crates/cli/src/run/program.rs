//! A program in a cell on a run's stage: the agent, a tool of a script, a validation, a test.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actum_contract::agent::Agent;
use actum_contract::digest::Digest;
use actum_contract::execution::{Filesystem, FilesystemLevel, Host, Network, NetworkLevel, Redactor, Sandbox};
use actum_kernel::Desk;
use actum_sandbox::{
    Access, Captured, Cell, Egress, Ended, Grant, Pipes, Report, Room, Signals, Source, Stream, find_program, watch,
};
use actum_server::{Bridge, Offered};
use actum_workspace::{FileView, OverlayView, Stage, View, Workspace};

use super::book::Book;
use super::shop::{Shop, is_full};
use crate::cell::Wanted;
use crate::command::tool::TOOLS_URL;
use crate::failure::Failure;
use crate::model::gateway::Gateway;
use crate::tool::bridge;

/// What is kept of each stream for whoever asks what happened.
const STREAM_BYTES: usize = 256 << 10;
/// Between asking a program to end and ending it.
const GRACE_MS: u64 = 2_000;
/// Where the agent finds its request and leaves its response.
pub(super) const EXCHANGE: &str = "/run/actum";

/// Where a cell finds us, and our own program.
const BRIDGE_PORT: u16 = 47_800;
const PROGRAMS: &str = "/run/actum-bin";

/// What is offered to a program in its cell: tools, models, or both.
pub(super) struct Offer {
    pub book: Arc<Book>,
    pub desk: Option<Arc<bridge::Desk>>,
    pub models: Option<Arc<Gateway>>,
    /// Part of every address of a tool: on the machine's own network others might ask too.
    pub token: String,
    /// By which models are asked.
    pub key: String,
}

impl Offer {
    fn serve(&self, listener: std::net::TcpListener) -> std::io::Result<Bridge> {
        let tools = self.desk.clone().map(|desk| (self.token.clone(), desk as Arc<dyn actum_server::Tools>));
        let models = self.models.clone().map(|models| (self.key.clone(), models as Arc<dyn actum_server::Models>));
        Bridge::serve(listener, Offered { tools, models })
    }

    fn environment(&self, port: u16) -> Vec<(String, String)> {
        let base = format!("http://127.0.0.1:{port}");
        let here = "127.0.0.1,localhost".to_owned();
        let mut all = vec![("NO_PROXY", here.clone()), ("no_proxy", here)];
        if self.desk.is_some() {
            let url = format!("{base}/t/{}", self.token);
            all.extend([("ACTUM_MCP_URL", format!("{url}/mcp")), (TOOLS_URL, url)]);
        }
        if self.models.is_some() {
            // Each under the names that the clients of its provider look for.
            let openai = format!("{base}/v1");
            all.extend([
                ("OPENAI_BASE_URL", openai.clone()),
                ("OPENAI_API_BASE", openai),
                ("OPENAI_HOST", base.clone()),
                ("ANTHROPIC_BASE_URL", base.clone()),
                ("GOOGLE_GEMINI_BASE_URL", base),
            ]);
            all.extend(KEYS.map(|name| (name, self.key.clone())));
        }
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Whoever asked is gone: so is what he asked for.
    fn stop(&self) {
        if let Some(desk) = &self.desk {
            desk.stop();
        }
    }
}

/// Under which a key is looked for.
const KEYS: [&str; 3] = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"];

/// A program that is to be run.
pub(super) struct Program<'a> {
    pub command: &'a [String],
    pub agent: &'a Agent,
    /// Variables beside those of the agent.
    pub environment: BTreeMap<String, String>,
    /// A folder of ours that the program may write to, shown as `EXCHANGE`.
    pub exchange: Option<PathBuf>,
    /// What it may ask for.
    pub offer: Option<&'a Offer>,
    pub left_ms: u64,
    /// Whether it is the agent's, at work: validations, tests and repetitions reach nobody, know no secrets and see nothing
    /// that somebody had to agree to. A recording may come from anybody.
    pub is_agents: bool,
}

/// What came of it.
pub(super) struct Ran {
    pub program: String,
    /// Where it was found outside the workspace, and the BLAKE3 of its content.
    pub pinned: Option<(PathBuf, Digest)>,
    pub report: Report,
    pub output: Captured,
    pub errors: Captured,
    pub took_ms: u64,
}

impl Ran {
    /// What a person reads at the end: errors if there are any, else output.
    pub(super) fn tail(&self) -> String {
        let text = if self.errors.kept.is_empty() { &self.output.kept } else { &self.errors.kept };
        let text = String::from_utf8_lossy(text);
        let from = text.char_indices().rev().nth(TAIL_CHARS).map_or(0, |(at, _)| at);
        text[from..].trim_end().to_owned()
    }
}

const TAIL_CHARS: usize = 4_000;

/// Returns the grants by which a cell sees a stage at `at`, the stage itself first.
pub(super) fn stage_grants(stage: &Stage, workspace: &Workspace, at: &Path) -> Vec<Grant> {
    let write = |path: PathBuf, from: Source| Grant { path, access: Access::Write, from };
    let (overlay, folders, files) = match stage.view(workspace) {
        View::Folder(folder) => return vec![write(at.to_owned(), Source::Folder(folder))],
        View::Overlay { overlay, folders, files } => (overlay, folders, files),
    };
    let root = workspace.path();
    let place = |path: &Path| path.strip_prefix(root).map_or_else(|_| path.to_owned(), |inner| at.join(inner));
    let source = |OverlayView { lowers, upper, work, .. }: OverlayView| Source::Overlay { lowers, upper, work };
    let mut grants = vec![write(at.to_owned(), source(overlay))];
    grants.extend(folders.into_iter().map(|folder| write(place(&folder.at), source(folder))));
    let read = |file: FileView| Grant { path: place(&file.at), access: Access::Read, from: Source::Folder(file.from) };
    grants.extend(files.into_iter().map(read));
    grants
}

impl Program<'_> {
    /// Runs it in a cell on the stage. Its output goes into `log` as it comes, without secrets.
    pub(super) fn run(self, shop: &Shop, stage: Vec<Grant>, log: &Path, desk: &dyn Desk) -> Result<Ran, Failure> {
        let failed = |e: std::io::Error| crate::cell::not_built(&e.to_string());
        let secrets = if self.is_agents { secrets(self.agent)? } else { BTreeMap::new() };
        let redactor = Redactor::new(secrets.values().map(String::as_str));
        let folder = stage.first().map(|grant| grant.path.clone()).unwrap_or_default();
        let mut grants = stage;
        if let Some(exchange) = &self.exchange {
            let from = Source::Folder(exchange.clone());
            grants.push(Grant { path: PathBuf::from(EXCHANGE), access: Access::Write, from });
        }
        let mut environment = self.environment;
        // An agent on the machine's own network finds us there.
        let is_open = self.is_agents && self.agent.network == "open";
        let mut served: Option<Bridge> = None;
        if let Some(offer) = self.offer {
            let place = PathBuf::from(PROGRAMS).join("actum");
            grants.push(Grant { path: place, access: Access::Read, from: Source::Folder(shop.program.clone()) });
            let port = if is_open {
                let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
                let port = listener.local_addr().map_err(failed)?.port();
                served = Some(offer.serve(listener).map_err(failed)?);
                port
            } else {
                BRIDGE_PORT
            };
            environment.extend(offer.environment(port));
        }
        for (name, value) in &self.agent.environment {
            let is_secret = value.starts_with("env:") || value.starts_with("file:");
            match (is_secret, secrets.get(name)) {
                (false, _) => drop(environment.insert(name.clone(), value.clone())),
                (true, Some(secret)) => drop(environment.insert(name.clone(), secret.clone())),
                (true, None) => {}
            }
        }
        let sandbox = sandbox_of(self.agent, self.left_ms, self.is_agents);
        let wanted = Wanted {
            program: self.command.iter().map(OsString::from).collect(),
            environment,
            folder: folder.clone(),
            root: folder,
            sandbox: &sandbox,
            read: Vec::new(),
            write: Vec::new(),
            deny: Vec::new(),
            outputs: Vec::new(),
            stage: grants,
            config: &shop.sandbox,
            grace_ms: GRACE_MS,
            programs: self.offer.map(|_| PathBuf::from(PROGRAMS)),
            bridge: self.offer.filter(|_| !is_open).map(|_| BRIDGE_PORT),
        };
        let planned = wanted.cell()?;
        let pinned = pin(shop, &planned.cell, self.command);
        let (pipes, files) = Pipes::new(false).map_err(failed)?;
        let (signals, stopper) = Signals::own().map_err(failed)?;
        let stopper = Arc::new(stopper);
        let started = Instant::now();
        let running = shop.spawner.run(planned.cell, files).map_err(failed)?.ended_by(signals);
        let asked = Arc::clone(&stopper);
        let offered = self.offer.and_then(|offer| offer.desk.clone());
        desk.on_stop(Box::new(move || {
            asked.stop();
            if let Some(desk) = offered {
                desk.stop();
            }
        }));
        if let Some(offer) = self.offer {
            let asked = Arc::clone(&stopper);
            offer.book.on_end(Box::new(move || asked.stop()));
        }
        let mut log = Log::open(log, &redactor)?;
        let mut egress = None;
        let rules = planned.rules;
        let watched = watch(
            running,
            pipes,
            &[],
            Room { output_bytes: STREAM_BYTES, errors_bytes: STREAM_BYTES },
            Some(Duration::from_millis(self.left_ms + GRACE_MS)),
            &mut |stream, piece| log.add(stream, piece),
            &mut |listeners| {
                if !listeners.way_out.is_empty() {
                    egress = Egress::serve(listeners.way_out, rules.clone()).ok();
                }
                if let Some((offer, listener)) = self.offer.zip(listeners.bridge) {
                    served = offer.serve(listener).ok();
                }
            },
        );
        if let Some(offer) = self.offer {
            offer.stop();
        }
        if let Some(served) = served {
            served.end();
        }
        if let Some(models) = self.offer.and_then(|offer| offer.models.as_ref()) {
            models.close();
        }
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        drop(egress.map(Egress::end));
        log.finish();
        let watched = watched.map_err(failed)?;
        drop(stopper);
        // Nothing was run: that is the machine's doing and not the program's.
        if let Some(why) = machines_fault(&watched.report.ended) {
            return Err(crate::cell::not_built(&why));
        }
        // A program that fails where there is no room fails for want of it.
        if watched.report.ended != Ended::Exited(0) && is_full(&shop.home) {
            let message = format!("the disk of {} is full", shop.home.display());
            return Err(Failure::new(actum_api::error::DISK_FULL, message));
        }
        let clean = |captured: Captured| Captured { kept: redactor.redact(&captured.kept).0, ..captured };
        let program = self.command.first().cloned().unwrap_or_default();
        for (name, stream) in [("output", &watched.output), ("errors", &watched.errors)] {
            if stream.is_cut() {
                let (kept, all) = (stream.kept.len(), stream.bytes);
                log.say(&format!(
                    "── truncated: {kept} of {all} bytes of its {name} are kept, BLAKE3 of all {}",
                    stream.digest
                ));
            }
        }
        Ok(Ran {
            program,
            pinned,
            report: watched.report,
            output: clean(watched.output),
            errors: clean(watched.errors),
            took_ms,
        })
    }
}

/// Why the machine could not run a program, if that is why it was not run.
fn machines_fault(ended: &Ended) -> Option<String> {
    use rustix::io::Errno;

    const EXHAUSTED: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    match ended {
        Ended::NotBuilt(why) => Some(why.clone()),
        Ended::NotStarted(error) if EXHAUSTED.iter().any(|errno| errno.raw_os_error() == *error) => {
            Some(std::io::Error::from_raw_os_error(*error).to_string())
        }
        _ => None,
    }
}

/// Which program it is, if it is one of the machine's: those of the workspace are part of the input.
fn pin(shop: &Shop, cell: &Cell, command: &[String]) -> Option<(PathBuf, Digest)> {
    let path = cell.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone())?;
    let name = command.first()?;
    if name.contains('/') && !name.starts_with('/') {
        return None;
    }
    let (place, file) = find_program(name.as_ref(), &path, &cell.folder).ok()?;
    if place.starts_with(&cell.folder) {
        return None;
    }
    shop.digest_of(&file).map(|digest| (place, digest))
}

/// Values of variables that are only referred to.
fn secrets(agent: &Agent) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    for (name, value) in &agent.environment {
        match crate::tool::secret::look_up(value) {
            None => {}
            Some(Ok(secret)) => drop(found.insert(name.clone(), secret)),
            Some(Err(what)) => {
                let message = format!("the secret {value} of the agent's environment.{name} {what}");
                return Err(Failure::new(actum_api::error::INPUT, message).hint("set it where the worker runs"));
            }
        }
    }
    Ok(found)
}

fn sandbox_of(agent: &Agent, left_ms: u64, is_agents: bool) -> Sandbox {
    let network = if is_agents { NetworkLevel::named(&agent.network) } else { None };
    let level = FilesystemLevel::named(&agent.filesystem).unwrap_or_default();
    Sandbox {
        timeout_ms: left_ms,
        memory_mb: agent.memory_mb,
        cpu_cores: agent.cpu_cores,
        disk_mb: agent.disk_mb,
        max_children: agent.max_children,
        allow_fork: true,
        filesystem: Filesystem {
            level: if is_agents { level } else { level.min(FilesystemLevel::Extended) },
            read: Vec::new(),
            write: Vec::new(),
            deny: Vec::new(),
        },
        network: Network {
            level: network.unwrap_or(NetworkLevel::Offline),
            allow: agent.allow.iter().filter_map(|text| Host::parse(text).ok()).collect(),
            deny: Vec::new(),
        },
    }
}

/// The log of a run: everything its programs put out, in the order in which it came.
struct Log<'r> {
    file: File,
    redactor: &'r Redactor,
    pending: [Vec<u8>; 2],
}

impl<'r> Log<'r> {
    fn open(path: &Path, redactor: &'r Redactor) -> Result<Self, Failure> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|e| Failure::new(actum_api::error::FILE, format!("cannot write {}: {e}", path.display())))?;
        Ok(Self { file, redactor, pending: [Vec::new(), Vec::new()] })
    }

    fn add(&mut self, stream: Stream, piece: &[u8]) {
        let at = usize::from(stream == Stream::Errors);
        self.pending[at].extend_from_slice(piece);
        let settled = self.redactor.settled(&self.pending[at]);
        self.write(at, settled);
    }

    fn write(&mut self, at: usize, length: usize) {
        if length > 0 {
            let clean = self.redactor.redact(&self.pending[at][..length]).0;
            self.pending[at].drain(..length);
            // A log that cannot be written is no reason to end a run.
            let _ = self.file.write_all(&clean);
        }
    }

    /// A line of our own.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.file, "\n{line}");
    }

    fn finish(&mut self) {
        for at in [0, 1] {
            self.write(at, self.pending[at].len());
        }
    }
}
