//! `actum sandbox`: the cell alone, for any command. Its input, output, errors and exit code are the command's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use actum_api::error;
use actum_contract::execution::{
    End, Filesystem, FilesystemLevel, GRACE_MS, Host, Network, NetworkLevel, Sandbox as Limits, limit,
};
use actum_sandbox::{Ahead, Cell, Egress, Files, Log, News, Report, Rules, Signals, Wall};
use clap::Args;
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::cell::{self, Planned, Wanted};
use crate::failure::Failure;
use crate::project::Project;
use crate::protect::{self, Seen, Taken};
use crate::ui::{Out, clean, note};
use crate::workspace::new_id;
use crate::write_layer::{SettledLayers, WriteLayers};

#[derive(Debug, Args)]
#[command(
    after_help = "The command sees the system's programs, the current folder (to be read), and what it is granted here; an empty network; a home and a /tmp of its own. Exit codes: the command's own, 143 on timeout, 137 when out of memory, 153 when out of disk, 125 when there could be no sandbox.\n\nactum sandbox --write . -- cargo test\nactum sandbox --allow example.com -- curl https://example.com/"
)]
pub(crate) struct Sandbox {
    /// What it sees of the files: minimal, standard, extended or elevated
    #[arg(long, value_name = "LEVEL", default_value = "minimal", value_parser = filesystem_level)]
    level: FilesystemLevel,

    /// A path it may read
    #[arg(long, value_name = "PATH")]
    read: Vec<PathBuf>,

    /// A path it may change
    #[arg(long, value_name = "PATH")]
    write: Vec<PathBuf>,

    /// A path that it does not see, also within granted ones
    #[arg(long, value_name = "PATH")]
    deny: Vec<PathBuf>,

    /// Whom it reaches: offline, registry, api or open
    #[arg(long, value_name = "LEVEL", value_parser = network_level)]
    net: Option<NetworkLevel>,

    /// A host it may reach: name, name:port, *.name or an address. Means --net api
    #[arg(long, value_name = "HOST", value_parser = host)]
    allow: Vec<Host>,

    /// The address of a name, which is then not asked for
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = resolved)]
    resolve: Vec<(String, IpAddr)>,

    /// How long it may take
    #[arg(long, value_name = "N", default_value_t = limit("timeout_ms").default, value_parser = in_range("timeout_ms"))]
    timeout_ms: u64,

    /// Memory of all its processes together
    #[arg(long, value_name = "N", default_value_t = limit("memory_mb").default, value_parser = in_range("memory_mb"))]
    memory_mb: u64,

    /// Logical cores
    #[arg(long, value_name = "N", default_value_t = limit("cpu_cores").default, value_parser = in_range("cpu_cores"))]
    cpu_cores: u64,

    /// Processes beside the first
    #[arg(long, value_name = "N", default_value_t = limit("max_children").default, value_parser = in_range("max_children"))]
    max_children: u64,

    /// What it may write to disk
    #[arg(long, value_name = "N", default_value_t = limit("disk_mb").default, value_parser = in_range("disk_mb"))]
    disk_mb: u64,

    /// It may make no processes, only threads
    #[arg(long)]
    no_fork: bool,

    /// A variable of its environment, which is otherwise fixed
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Keep hooks and settings that it leaves in folders it may change, which are otherwise put aside
    #[arg(long)]
    keep_protected: bool,

    /// Put what it writes in place when it has ended and was looked at, and not at once
    #[arg(long)]
    at_end: bool,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

fn in_range(name: &'static str) -> clap::builder::RangedU64ValueParser {
    let limit = limit(name);
    clap::value_parser!(u64).range(limit.min..=limit.max)
}

fn filesystem_level(word: &str) -> Result<FilesystemLevel, String> {
    FilesystemLevel::named(word).ok_or_else(|| "minimal, standard, extended or elevated".to_owned())
}

fn network_level(word: &str) -> Result<NetworkLevel, String> {
    NetworkLevel::named(word).ok_or_else(|| "offline, registry, api or open".to_owned())
}

fn host(text: &str) -> Result<Host, String> {
    Host::parse(text).map_err(|e| e.to_string())
}

fn resolved(text: &str) -> Result<(String, IpAddr), String> {
    let (name, address) = text.split_once('=').ok_or("NAME=ADDRESS")?;
    Ok((name.to_ascii_lowercase(), address.parse().map_err(|_| format!("{address} is no address"))?))
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE".to_owned()),
    }
}

/// A cell for this command, if the command line looks as if one were wanted.
pub(crate) fn ahead(arguments: &[OsString]) -> Option<Ahead> {
    let is_wanted = arguments.get(1).is_some_and(|word| word == "sandbox") && arguments.iter().any(|word| word == "--");
    is_wanted.then(|| Ahead::make(true).ok()).flatten()
}

/// The signal that ends a cell from outside.
const KILLED: i32 = 9;

/// When there could be no sandbox.
const NO_SANDBOX: u8 = 125;

impl Sandbox {
    pub(crate) fn run(self, global: &Global, ahead: Option<Ahead>, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let mut config = project.config()?.sandbox.clone();
        config.hosts.extend(self.resolve.iter().cloned());
        let here = std::env::current_dir().and_then(std::fs::canonicalize);
        let folder = here.map_err(|e| Failure::of_io(format!("cannot tell the current folder: {e}"), &e))?;
        let write = found(&self.write)?;
        let level = match self.net {
            None | Some(NetworkLevel::Offline) if !self.allow.is_empty() && self.net.is_none() => NetworkLevel::Api,
            level => level.unwrap_or_default(),
        };
        if level == NetworkLevel::Offline && !self.allow.is_empty() {
            let message = "--allow lists hosts, and --net offline reaches none";
            return Err(Failure::new(error::USAGE, message).hint("leave one of them out"));
        }
        let limits = Limits {
            timeout_ms: self.timeout_ms,
            memory_mb: self.memory_mb,
            cpu_cores: self.cpu_cores,
            disk_mb: self.disk_mb,
            filesystem: Filesystem { level: self.level, ..Filesystem::default() },
            network: Network { level, allow: self.allow, deny: Vec::new() },
            max_children: self.max_children,
            allow_fork: !self.no_fork,
        };
        let wanted = Wanted {
            program: self.program,
            environment: self.env.into_iter().collect::<BTreeMap<_, _>>(),
            root: project.root().canonicalize().unwrap_or_else(|_| folder.clone()),
            folder,
            sandbox: &limits,
            read: found(&self.read)?,
            write,
            deny: denied(&self.deny)?,
            outputs: Vec::new(),
            stage: Vec::new(),
            config: &config,
            grace_ms: GRACE_MS,
            programs: None,
            bridge: None,
        };
        let mut planned = wanted.cell()?;
        for (name, stream) in [
            ("input", std::io::stdin().as_fd().try_clone_to_owned()),
            ("output", std::io::stdout().as_fd().try_clone_to_owned()),
            ("error output", std::io::stderr().as_fd().try_clone_to_owned()),
        ] {
            if stream.and_then(|fd| std::fs::File::from(fd).metadata()).is_ok_and(|found| found.is_dir()) {
                let message = format!("the {name} is a folder; expected a file, a pipe or a terminal");
                return Err(Failure::new(error::USAGE, message).hint("redirect it to or from a file, or /dev/null"));
            }
        }
        let id = new_id();
        let without_layers = planned.cell.clone();
        let layers = match self.at_end {
            true => WriteLayers::put_over(&mut planned, &id),
            false => WriteLayers::none(planned.writable.clone()),
        };
        for layer in &layers.unfinished {
            out.warn(&format!(
                "{} holds what an earlier command wrote and what was not put in place; move it yourself, or remove it",
                layer.display()
            ));
        }
        if let Some(why) = &layers.why_direct {
            warn_direct(&layers.direct, why, out);
        }
        let Planned { cell, rules, writable, seen } = planned;
        let name = cell.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let _terminal = TerminalSettings::of_input();
        let mut ran = Ran::run(cell, &rules, ahead);
        let (mut direct, has_layers) = (layers.direct.clone(), !layers.is_empty());
        let mut settled = layers.settle(self.keep_protected, &id);
        if let Ok(Report { ended: actum_sandbox::Ended::NotBuilt(why), .. }) = &ran.report
            && (actum_sandbox::is_without_overlay(why) || has_layers && without_layers.weaker.contains(&Wall::Owners))
        {
            warn_direct(&writable, why, out);
            (direct, settled) = (writable, SettledLayers::default());
            ran = Ran::run(without_layers, &rules, None);
        }
        let Ran { report, was_started, log } = ran;
        let is_clean = self.keep_protected || put_aside(&direct, &seen, out);
        let is_clean = report_settled(&settled, out) && is_clean;
        match report {
            Ok(report) => {
                let code = tell(&report, &log, &name, &limits, out);
                // A script must not go on as if nothing had been left there.
                Ok(if code == 0 && !is_clean { NO_SANDBOX } else { code })
            }
            Err(e) if was_started => {
                out.warn(&format!("{name} did not end by itself: {e}"));
                Ok(End::Signalled(KILLED).code())
            }
            Err(e) => {
                out.fail(&cell::not_built(&e.to_string()));
                Ok(NO_SANDBOX)
            }
        }
    }
}

fn warn_direct(folders: &[PathBuf], why: &str, out: &Out) {
    let folders: Vec<String> = folders.iter().map(|path| path.display().to_string()).collect();
    out.warn(&format!("{}: changes are written directly: {why}", folders.join(", ")));
}

/// A cell that was run.
struct Ran {
    report: std::io::Result<Report>,
    was_started: bool,
    log: Log,
}

impl Ran {
    fn run(cell: Cell, rules: &Rules, ahead: Option<Ahead>) -> Self {
        let ours = || -> std::io::Result<Files> {
            Ok(Files {
                input: std::io::stdin().as_fd().try_clone_to_owned()?,
                output: std::io::stdout().as_fd().try_clone_to_owned()?,
                errors: std::io::stderr().as_fd().try_clone_to_owned()?,
            })
        };
        let mut was_started = false;
        let mut egress = None;
        let signals = Signals::catch();
        let report = ours().and_then(|files| {
            let ahead = ahead.map_or_else(|| Ahead::make(false), Ok)?;
            let mut running = ahead.run(cell, files)?.ended_by(signals?);
            loop {
                match running.hear()? {
                    News::Started => was_started = true,
                    News::Listening(listeners) => egress = Some(Egress::serve(listeners.way_out, rules.clone())?),
                    News::Ended(report) => return Ok(report),
                }
            }
        });
        Self { report, was_started, log: egress.map(Egress::end).unwrap_or_default() }
    }
}

/// The settings of the caller's terminal, restored when this is dropped: a program that is killed leaves its own behind.
struct TerminalSettings {
    settings: Option<rustix::termios::Termios>,
    size: Option<rustix::termios::Winsize>,
    /// Of the input, the output and the error output, which others use as well.
    flags: [Option<rustix::fs::OFlags>; 3],
}

impl TerminalSettings {
    fn of_input() -> Self {
        let input = std::io::stdin();
        let flags = [
            rustix::fs::fcntl_getfl(std::io::stdin()).ok(),
            rustix::fs::fcntl_getfl(std::io::stdout()).ok(),
            rustix::fs::fcntl_getfl(std::io::stderr()).ok(),
        ];
        let settings = rustix::termios::tcgetattr(&input).ok();
        Self { settings, size: rustix::termios::tcgetwinsize(&input).ok(), flags }
    }
}

impl Drop for TerminalSettings {
    fn drop(&mut self) {
        let input = std::io::stdin();
        if let Some(settings) = &self.settings {
            let _ = rustix::termios::tcsetattr(&input, rustix::termios::OptionalActions::Now, settings);
        }
        if let Some(size) = self.size {
            let _ = rustix::termios::tcsetwinsize(&input, size);
        }
        let [of_input, of_output, of_errors] = self.flags;
        let _ = of_input.map(|flags| rustix::fs::fcntl_setfl(&input, flags));
        let _ = of_output.map(|flags| rustix::fs::fcntl_setfl(std::io::stdout(), flags));
        let _ = of_errors.map(|flags| rustix::fs::fcntl_setfl(std::io::stderr(), flags));
    }
}

/// Paths as they are on the machine: absolute, and without links.
fn found(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let one = |path: &PathBuf| {
        std::fs::canonicalize(path).map_err(|e| {
            Failure::of_io(format!("cannot grant {}: {e}", path.display()), &e)
                .hint("--read and --write take files and folders that are there; make it first")
        })
    };
    paths.iter().map(one).collect()
}

/// As `found`, but what is not there cannot be hidden, and would be free to be made.
fn denied(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let one = |path: &PathBuf| {
        std::fs::canonicalize(path).map_err(|e| {
            Failure::of_io(format!("cannot deny {}: {e}", path.display()), &e)
                .hint("only what is there can be denied; what is granted nowhere needs no denying")
        })
    };
    paths.iter().map(one).collect()
}

/// Puts aside what the command made and other programs obey. Returns false if some of it is still there.
fn put_aside(writable: &[PathBuf], seen: &Seen, out: &Out) -> bool {
    if writable.is_empty() {
        return true;
    }
    let (taken, is_partial) = protect::take_away(writable, seen, &new_id());
    report_taken(&taken, is_partial || seen.is_partial, out)
}

/// Returns false if some of it is still where other programs obey it.
fn report_taken(taken: &[Taken], is_partial: bool, out: &Out) -> bool {
    for one in taken {
        let now =
            one.now.as_ref().map_or("AND COULD NOT BE MOVED".to_owned(), |now| format!("and is now {}", now.display()));
        out.warn(&format!("{} was made by the command, is obeyed by other programs, {now}", one.path.display()));
    }
    if !taken.is_empty() {
        out.warn("--keep-protected leaves such files where they are");
    }
    if is_partial {
        out.warn("there are too many files to look at all of them: some that are obeyed by others may have been left");
    }
    taken.iter().all(|one| one.now.is_some())
}

/// Returns false if not all that the command wrote is in its place.
fn report_settled(settled: &SettledLayers, out: &Out) -> bool {
    let is_clean = report_taken(&settled.taken, settled.is_partial, out);
    for (path, now) in &settled.conflicts {
        let version = now.as_ref().map_or("removed it".to_owned(), |now| format!("wrote {}", now.display()));
        out.warn(&format!("{} was changed by others meanwhile and is kept; the command {version}", path.display()));
    }
    for (path, why) in &settled.left {
        out.warn(&format!("{} could not be put in place: {why}", path.display()));
    }
    for layer in &settled.kept {
        out.warn(&format!("what could not be put in place is in {}", layer.display()));
    }
    is_clean && settled.conflicts.is_empty() && settled.left.is_empty()
}

/// Says what the exit code alone does not say.
fn tell(report: &Report, log: &Log, name: &str, limits: &Limits, out: &mut Out) -> u8 {
    for decision in log.decisions.iter().filter(|decision| !decision.allowed) {
        let port = decision.port.map(|port| format!(":{port}")).unwrap_or_default();
        out.warn(&format!("{}{port} was not reached: {} ({})", decision.host, decision.why, decision.code));
    }
    for kept in &report.kept {
        let mark = if kept.weaker { " (weaker than it should be)" } else { "" };
        out.detail(&format!("{}: {}{mark}", kept.wall.word(), kept.by));
    }
    let Some(end) = cell::end_of(&report.ended) else {
        if let actum_sandbox::Ended::NotBuilt(why) = &report.ended {
            out.fail(&cell::not_built(why));
        }
        return NO_SANDBOX;
    };
    if report.ended == actum_sandbox::Ended::Uncovered {
        out.warn(&format!("{name} was ended: {}", crate::run::UNCOVERED));
    }
    match end {
        End::TimedOut => out.warn(&format!("{name} took longer than --timeout-ms {}", limits.timeout_ms)),
        End::OutOfMemory => out.warn(&format!("{name} needed more than --memory-mb {}", limits.memory_mb)),
        End::OutOfDisk => out.warn(&format!("{name} wrote more than --disk-mb {}", limits.disk_mb)),
        End::NotFound => out.warn(&format!("{name}: not found in the sandbox; --read shows it more")),
        End::NotExecutable => out.warn(&format!("{name}: cannot be run")),
        _ => {}
    }
    out.detail(
        &json!({"cpu_ms": report.used.cpu_us / 1000, "memory_bytes_peak": report.used.memory_bytes_peak}).to_string(),
    );
    end.code()
}

impl Out {
    /// Something the user should know though nothing failed.
    fn warn(&self, text: &str) {
        if !self.quiet() {
            note(&format!("actum: {}", clean(text)));
        }
    }
}
