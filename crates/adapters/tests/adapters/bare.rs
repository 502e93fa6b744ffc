//! Programs without a cell, and where the programs of others are.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actum_adapters::{Cells, Job, Ran, Session};
use actum_contract::execution::{End, Sandbox};
use actum_testkit::servers::Servers;
use serde_json::Value;

/// Runs programs as they are, in a folder.
#[derive(Debug, Default)]
pub(crate) struct Bare {
    pub(crate) folder: Option<PathBuf>,
    pub(crate) started: AtomicUsize,
    /// Process ids of all that were started to be spoken to.
    pub(crate) processes: Mutex<Vec<u32>>,
}

impl Bare {
    pub(crate) fn within(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..Self::default() }
    }

    fn spawn(&self, job: &Job) -> std::io::Result<Child> {
        let mut command = Command::new(&job.program[0]);
        command.args(&job.program[1..]).env_clear().envs(&job.environment).envs(&job.secrets);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }

    /// Whether a process that was started is still there.
    pub(crate) fn alive(&self) -> usize {
        let processes = self.processes.lock().unwrap();
        processes.iter().filter(|id| PathBuf::from(format!("/proc/{id}")).exists()).count()
    }
}

fn end(status: ExitStatus) -> End {
    match status.code() {
        Some(code) => End::Exited(u8::try_from(code).unwrap_or(255)),
        None => End::Signalled(status.signal().unwrap_or(9)),
    }
}

fn ran(end: Option<End>, stdout: Vec<u8>, stderr: Vec<u8>) -> Ran {
    Ran { end, stdout, stderr, is_cut: false, duration_ms: 0, error: None, evidence: Value::Null }
}

impl Cells for Bare {
    fn run(&self, job: &Job) -> Result<Ran, actum_adapters::NotRun> {
        let mut child = match self.spawn(job) {
            Ok(child) => child,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
                return Ok(ran(Some(End::NotFound), Vec::new(), Vec::new()));
            }
            Err(why) => return Err(why.to_string().into()),
        };
        let mut input = child.stdin.take().unwrap();
        let text = job.stdin.clone().unwrap_or_default();
        let feeder = std::thread::Builder::new().spawn(move || drop(input.write_all(&text))).unwrap();
        let timed_out = Arc::new(Mutex::new(false));
        let until = Instant::now() + Duration::from_millis(job.sandbox.timeout_ms);
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let errors = std::thread::Builder::new().spawn(move || drain(&mut err)).unwrap();
        let output = std::thread::Builder::new().spawn(move || drain(&mut out)).unwrap();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > until {
                *timed_out.lock().unwrap() = true;
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        feeder.join().unwrap();
        let end = if *timed_out.lock().unwrap() { End::TimedOut } else { end(status) };
        Ok(ran(Some(end), output.join().unwrap(), errors.join().unwrap()))
    }

    fn start(&self, job: &Job) -> Result<Box<dyn Session>, String> {
        let mut child = self.spawn(job).map_err(|why| format!("{}: {why}", job.program[0]))?;
        self.started.fetch_add(1, Ordering::SeqCst);
        self.processes.lock().unwrap().push(child.id());
        let mut errors = child.stderr.take().unwrap();
        let errors = std::thread::Builder::new().spawn(move || drain(&mut errors)).unwrap();
        Ok(Box::new(Spoken { child, errors: Some(errors) }))
    }
}

fn drain(from: &mut dyn Read) -> Vec<u8> {
    let mut all = Vec::new();
    // What was read so far is enough.
    drop(from.read_to_end(&mut all));
    all
}

#[derive(Debug)]
struct Spoken {
    child: Child,
    errors: Option<JoinHandle<Vec<u8>>>,
}

impl Session for Spoken {
    fn pipes(&mut self) -> Option<(OwnedFd, OwnedFd)> {
        Some((self.child.stdin.take()?.into(), self.child.stdout.take()?.into()))
    }

    fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn stop(mut self: Box<Self>) -> Ran {
        drop(self.child.kill());
        let status = self.child.wait().unwrap();
        let stderr = self.errors.take().map(|errors| errors.join().unwrap()).unwrap_or_default();
        ran(Some(end(status)), Vec::new(), stderr)
    }
}

pub(crate) fn job(program: &[&str]) -> Job {
    let mut environment = BTreeMap::new();
    for name in ["PATH", "HOME"] {
        environment.insert(name.to_owned(), std::env::var(name).unwrap_or_default());
    }
    Job {
        program: program.iter().map(|word| (*word).to_owned()).collect(),
        environment,
        secrets: BTreeMap::new(),
        stdin: None,
        sandbox: Sandbox::default(),
    }
}

/// Where servers and packages of others are.
pub(crate) fn others() -> PathBuf {
    Servers::find().folder().to_owned()
}

/// A folder of its own for a test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
