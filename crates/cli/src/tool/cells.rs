//! Programs of tools, each in a cell of its own: what the tool's scope shows of the workspace and nothing else, the very
//! program that was approved, no variable that was not.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use actum_adapters::{Cells, Job, NotRun, Ran, Session};
use actum_contract::digest::Digest;
use actum_contract::execution::{End, FilesystemLevel, GRACE_MS, Redactor, STDERR_BYTES_MAX};
use actum_contract::folder::FolderId;
use actum_contract::tool::{Adapter, Checksum, DataAccess, Entry, Interface};
use actum_sandbox::{
    Access, Egress, Grant, Identity, Signals, Source, Spawner, find_program, open_beneath, open_unlinked, path_of,
};
use serde_json::{Map, Value, json};

use super::injection::{self, TrustBundle};
use crate::capture::{catch, hash, lost, sha256, tell_cell, tell_decisions, tell_end};
use crate::cell::{self, Planned, Wanted};
use crate::config::SandboxConfig;
use crate::failure::Failure;

/// What a tool is let loose on.
#[derive(Debug, Clone)]
pub(crate) enum Ground {
    /// A folder as it is.
    Folder(PathBuf),
    /// A run's copy of a folder, seen at the folder's own path.
    Copy { at: PathBuf, copy: PathBuf },
    /// The layers of a run's stage, seen at the folder's own path and read-only.
    Layers {
        at: PathBuf,
        /// The topmost first; it holds the changes.
        layers: Vec<PathBuf>,
        /// Ignored folders with layers of their own, by their path within the folder.
        inner: Vec<(PathBuf, Vec<PathBuf>)>,
        /// Large ignored files, which no layer holds, by their path within the folder.
        files: Vec<PathBuf>,
    },
}

impl Ground {
    pub(crate) fn at(&self) -> &Path {
        match self {
            Self::Folder(at) | Self::Copy { at, .. } | Self::Layers { at, .. } => at,
        }
    }

    /// Returns the grants that show a path of the folder, and ignored folders inside it. None if it is not there.
    fn grants(&self, path: &Path, access: Access) -> Vec<Grant> {
        let Ok(within) = path.strip_prefix(self.at()) else { return Vec::new() };
        let grant = |path: &Path, from: Source| Grant { path: path.to_owned(), access, from };
        let (layers, inner, files) = match self {
            Self::Folder(_) => return vec![Grant::same(path, access)],
            Self::Copy { copy, .. } => return vec![grant(path, Source::Folder(copy.join(within)))],
            Self::Layers { layers, inner, files, .. } => (layers, inner, files),
        };
        if files.iter().any(|file| file == within) {
            return vec![Grant::same(path, access)];
        }
        if let Some((place, layers)) = inner.iter().find(|(place, _)| within.starts_with(place)) {
            let within = within.strip_prefix(place).unwrap_or(within);
            return shown_layers(layers, within).map(|from| grant(path, from)).into_iter().collect();
        }
        let Some(from) = shown_layers(layers, within) else { return Vec::new() };
        let inside = inner.iter().filter(|(place, _)| place.starts_with(within));
        let inside = inside
            .filter_map(|(place, layers)| Some(grant(&self.at().join(place), shown_layers(layers, Path::new(""))?)));
        let files = files.iter().filter(|file| file.starts_with(within));
        let files = files.map(|file| Grant::same(self.at().join(file), Access::Read));
        std::iter::once(grant(path, from)).chain(inside).chain(files).collect()
    }

    /// Returns the folders that a path of the folder is looked up in, and the path within each of them.
    pub(crate) fn roots(&self, within: &Path) -> Vec<(PathBuf, PathBuf)> {
        match self {
            Self::Folder(at) => vec![(at.clone(), within.to_owned())],
            Self::Copy { copy, .. } => vec![(copy.clone(), within.to_owned())],
            Self::Layers { layers, inner, .. } => {
                let below = |root: &PathBuf| (root.clone(), within.to_owned());
                let mut roots: Vec<_> = layers.iter().map(below).collect();
                for (place, layers) in inner {
                    if let Ok(within) = within.strip_prefix(place) {
                        roots.extend(layers.iter().map(|root| (root.clone(), within.to_owned())));
                    } else if place.starts_with(within) {
                        roots.extend(layers.iter().map(|root| (root.clone(), PathBuf::new())));
                    }
                }
                roots
            }
        }
    }

    /// Whether a path that somebody names stays within it, links and all.
    pub(crate) fn holds(&self, path: &str) -> Result<(), String> {
        let path = Path::new(path);
        if path.components().any(|part| part == std::path::Component::ParentDir) {
            return Err(format!("{path:?} goes up with `..`"));
        }
        let out = || format!("{path:?} leads out of the workspace");
        let within = match path.is_absolute() {
            true => path.strip_prefix(self.at()).map_err(|_| out())?,
            false => path,
        };
        let crosses = |(root, within): &(PathBuf, PathBuf)| {
            open_beneath(root, &root.join(within)).is_err_and(|e| e.kind() == std::io::ErrorKind::CrossesDevices)
        };
        if self.roots(within).iter().any(crosses) { Err(out()) } else { Ok(()) }
    }
}

/// Returns what shows a path of a stack of layers; none if it is not there.
fn shown_layers(layers: &[PathBuf], within: &Path) -> Option<Source> {
    let mut shown = visible_layers(layers, within);
    match shown.len() {
        0 => None,
        1 => shown.pop().map(Source::Folder),
        _ => Some(Source::Layers { lowers: shown }),
    }
}

/// Returns what a path is in each layer that shows it, the topmost first: several folders, or one file. An entry that is
/// removed or replaced in a layer hides those below.
fn visible_layers(layers: &[PathBuf], within: &Path) -> Vec<PathBuf> {
    let mut shown = layers.to_vec();
    let mut parts = within.components().peekable();
    while let Some(part) = parts.next() {
        let mut next = Vec::new();
        for folder in shown {
            let path = folder.join(part);
            let Ok(kind) = std::fs::symlink_metadata(&path).map(|found| found.file_type()) else { continue };
            if kind.is_dir() {
                let hides = is_opaque(&path);
                next.push(path);
                if hides {
                    break;
                }
                continue;
            }
            // Over a file there is nothing to merge; below one nothing shows.
            if kind.is_file() && next.is_empty() {
                return if parts.peek().is_none() { vec![path] } else { Vec::new() };
            }
            break;
        }
        shown = next;
    }
    shown
}

/// Whether a folder of changes hides what lies below it.
fn is_opaque(folder: &Path) -> bool {
    ["user.overlay.opaque", "trusted.overlay.opaque"].iter().any(|name| {
        let mut value = [0_u8; 4];
        rustix::fs::lgetxattr(folder, *name, &mut value).is_ok_and(|length| value[..length] == *b"y")
    })
}

/// Ends what runs when somebody wants it to.
#[derive(Debug, Default)]
pub(crate) struct Stops(Mutex<(bool, Vec<actum_sandbox::Stopper>)>);

impl Stops {
    pub(crate) fn stop(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 = true;
        held.1.drain(..).for_each(|stopper| stopper.stop());
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn signals(&self) -> std::io::Result<Signals> {
        let (signals, stopper) = Signals::own()?;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0 {
            stopper.stop();
        }
        held.1.push(stopper);
        Ok(signals)
    }
}

/// Programs whose contents are known; more than this many are looked into again.
const PROGRAMS_MAX: usize = 256;

/// Contents of programs that were looked into, by the file: the cache of what is known about tools.
pub(crate) type Programs = Arc<Mutex<Vec<(Identity, Digest, Option<String>)>>>;

/// Runs the programs of one tool.
#[derive(Debug, Clone)]
pub(crate) struct ToolCells {
    pub spawner: Arc<Spawner>,
    pub config: SandboxConfig,
    pub ground: Ground,
    /// Which folder the workspace is, if that was agreed on.
    pub folder: Option<FolderId>,
    pub tool: Entry,
    pub stops: Arc<Stops>,
    pub programs: Programs,
    /// Where streams go as they come.
    pub keep: Option<PathBuf>,
    /// Where Actum keeps what belongs to the tenant.
    pub home: PathBuf,
}

impl ToolCells {
    fn plan(&self, job: &Job, details: &mut Map<String, Value>) -> Result<(Planned, Option<TrustBundle>), Failure> {
        self.refuse_bare_secrets(job)?;
        let mut environment = job.environment.clone();
        environment.extend(injection::variables(&self.tool, &job.secrets));
        let root = self.ground.at().to_owned();
        let may_write =
            self.tool.scope.data_access == DataAccess::Write && !matches!(self.ground, Ground::Layers { .. });
        let access = if may_write { Access::Write } else { Access::Read };
        let (mut paths, mut read, mut write) = (Vec::new(), Vec::new(), Vec::new());
        if self.tool.scope.data_access != DataAccess::None {
            for name in &self.tool.scope.filesystem {
                let path = match &self.ground {
                    Ground::Folder(_) => match self.open_scope(name)? {
                        Some(path) => path,
                        None => continue,
                    },
                    _ if name == "." => root.clone(),
                    _ => root.join(name),
                };
                paths.push(path);
            }
        }
        let folder = match paths.iter().find(|path| **path == root).or(paths.first()) {
            Some(path) if path.is_dir() || !matches!(self.ground, Ground::Folder(_)) => path.clone(),
            Some(path) => path.parent().unwrap_or(path).to_owned(),
            None => PathBuf::from(cell::SCRATCH),
        };
        let mut sandbox = job.sandbox.clone();
        let is_plain = matches!(self.ground, Ground::Folder(_)) && paths.contains(&root);
        let mut stage = Vec::new();
        if is_plain {
            sandbox.filesystem.level = match (sandbox.filesystem.level, may_write) {
                (FilesystemLevel::Elevated, _) => FilesystemLevel::Elevated,
                (_, true) => FilesystemLevel::Standard,
                (_, false) => FilesystemLevel::Minimal,
            };
        } else {
            match (&self.ground, may_write) {
                // As they are, what has to be hidden in them is hidden, and protected where they may be written to.
                (Ground::Folder(_), true) => write = paths,
                (Ground::Folder(_), false) => read = paths,
                _ => stage = paths.iter().flat_map(|path| self.ground.grants(path, access)).collect(),
            }
            if sandbox.filesystem.level != FilesystemLevel::Elevated {
                sandbox.filesystem.level = FilesystemLevel::Minimal;
            }
        }
        let wanted = Wanted {
            program: job.program.iter().map(OsString::from).collect(),
            environment,
            folder,
            root,
            sandbox: &sandbox,
            read,
            write,
            deny: Vec::new(),
            outputs: Vec::new(),
            stage,
            config: &self.config,
            grace_ms: GRACE_MS,
            programs: None,
            bridge: None,
        };
        let mut planned = wanted.cell()?;
        let bundle = injection::inject(&self.tool, &job.secrets, &mut planned, &self.home)?;
        self.pin(&mut planned, job, details)?;
        tell_cell(&planned.cell, &planned.rules, &sandbox, details);
        Ok((planned, bundle))
    }

    /// Returns where a path of the tool's scope is in the workspace; None if there is nothing. A run may have put a link there, or
    /// in the place of the workspace itself: no link is followed.
    fn open_scope(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
        let root = self.ground.at();
        match open_unlinked(root, Path::new(name), self.folder).and_then(|file| path_of(&file)) {
            Ok(path) => Ok(Some(path)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => {
                let message = format!("{} cannot use {name} of {}: {e}", self.tool.tool_id, root.display());
                Err(Failure::new(actum_api::error::EXECUTION_REFUSED, message)
                    .hint("a tool sees files and folders of its scope only, and no links to them"))
            }
        }
    }

    /// A tool that may write to an agent's copy runs what the agent has left there: a makefile, a configuration, a hook. It gets
    /// no secret that such a program could read.
    fn refuse_bare_secrets(&self, job: &Job) -> Result<(), Failure> {
        let is_agents = !matches!(self.ground, Ground::Folder(_));
        let may_write = self.tool.scope.data_access == DataAccess::Write;
        match job.secrets.keys().find(|name| self.tool.is_variable(name)) {
            Some(name) if is_agents && may_write => {
                let message = format!(
                    "{} may write to the agent's copy, where programs of the agent could read its secret {name}",
                    self.tool.tool_id
                );
                Err(Failure::new(actum_api::error::EXECUTION_REFUSED, message).hint(
                    "add the secret to requests instead: `inject` of the tool; or give the tool `data_access: none`",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The very program that is run is the one that was approved.
    fn pin(&self, planned: &mut Planned, job: &Job, details: &mut Map<String, Value>) -> Result<(), Failure> {
        let refuse = |message: String| {
            Failure::new(actum_api::error::EXECUTION_REFUSED, message)
                .hint("register a new version of the tool with the new checksum")
        };
        let cell = &mut planned.cell;
        let path = cell.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let name = job.program.first().map_or("", String::as_str);
        let wanted = self.tool.provenance.checksum.as_ref();
        let found = find_program(name.as_ref(), &path.unwrap_or_default(), &cell.folder);
        let (place, file) = match (found, wanted) {
            (Ok(found), _) => found,
            // One that is not there is told by its exit code; one that has to be the right one is not tried.
            (Err(_), None) => return Ok(()),
            (Err(e), Some(_)) => return Err(refuse(format!("{name} cannot be looked into: {e}"))),
        };
        // What lies in a copy of the workspace is another file there, and the agent's own.
        if !matches!(self.ground, Ground::Folder(_)) && place.starts_with(self.ground.at()) {
            return match wanted {
                None => Ok(()),
                Some(_) => {
                    Err(refuse(format!("{} lies in the workspace, where the agent could change it", place.display())))
                }
            };
        }
        let Some((identity, blake3, sha256)) = self.digests(&file, matches!(wanted, Some(Checksum::Sha256(_)))) else {
            return Err(refuse(format!("{} cannot be read", place.display())));
        };
        let is_right = match wanted {
            None => true,
            Some(Checksum::Blake3(hex)) => *hex == blake3.to_hex(),
            Some(Checksum::Sha256(hex)) => Some(hex) == sha256.as_ref(),
        };
        if !is_right {
            return Err(refuse(format!(
                "{} is not the program that was approved for {}",
                place.display(),
                self.tool.tool_id
            )));
        }
        details.insert(
            "program".into(),
            json!({"path": place.display().to_string(), "blake3": blake3.to_hex(), "pinned": wanted.is_some()}),
        );
        cell.pinned = Some(identity);
        Ok(())
    }

    /// Which program an adapter would run, for who wants to know whether it is still the same.
    pub(crate) fn program_of(&self, adapter: &Adapter) -> Value {
        match &adapter.interface {
            Interface::Cli(cli) => self.program_named(&cli.executable),
            _ => Value::Null,
        }
    }

    /// Where a program is, and what is in it.
    pub(crate) fn program_named(&self, name: &str) -> Value {
        let found = find_program(name.as_ref(), cell::PATH.as_ref(), self.ground.at());
        let digests = found.ok().and_then(|(place, file)| Some((place, self.digests(&file, false)?)));
        digests.map_or(Value::Null, |(place, (_, blake3, _))| json!([place.display().to_string(), blake3.to_hex()]))
    }

    fn digests(&self, file: &File, with_sha256: bool) -> Option<(Identity, Digest, Option<String>)> {
        let identity = Identity::of(&file.metadata().ok()?);
        let known = || self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(of, _, sha256): &&(Identity, Digest, Option<String>)| {
            *of == identity && (sha256.is_some() || !with_sha256)
        };
        if let Some(found) = known().iter().find(fits) {
            return Some(found.clone());
        }
        // Nobody else waits while a large program is read.
        let blake3 = hash(&mut file.try_clone().ok()?).ok()?;
        let sha256 = if with_sha256 { Some(sha256(&mut file.try_clone().ok()?).ok()?) } else { None };
        let found = (identity, blake3, sha256);
        let mut known = known();
        if known.len() >= PROGRAMS_MAX {
            known.clear();
        }
        known.push(found.clone());
        Some(found)
    }
}

impl Cells for ToolCells {
    fn run(&self, job: &Job) -> Result<Ran, NotRun> {
        let mut details = Map::new();
        let (planned, _bundle) = self.plan(job, &mut details).map_err(|failure| NotRun {
            is_denied: failure.row.name == actum_api::error::EXECUTION_REFUSED,
            why: failure.message,
        })?;
        let redactor = Redactor::new(job.secrets.values().map(String::as_str));
        let signals = self.stops.signals().map_err(|e| e.to_string())?;
        let caught = catch(planned, &self.spawner, job.stdin.as_deref(), &redactor, self.keep.as_deref(), signals)
            .map_err(|failure| failure.message)?;
        let broken = caught.watched.as_ref().err().map(ToString::to_string);
        let watched = caught.watched.unwrap_or_else(lost);
        tell_end(&watched.report, &caught.log, &caught.taken, &mut details);
        details.insert("protection_is_partial".into(), caught.is_partial.into());
        let [(stdout, hidden_out), (stderr, hidden_err)] = caught.texts;
        let stream = |captured: &actum_sandbox::Captured, redacted: u64| json!({"bytes": captured.bytes, "blake3": captured.digest.to_hex(), "truncated": captured.is_cut(), "redacted": redacted});
        let streams =
            json!({"stdout": stream(&watched.output, hidden_out), "stderr": stream(&watched.errors, hidden_err)});
        details.insert("streams".into(), streams);
        let not_built = match &watched.report.ended {
            actum_sandbox::Ended::NotBuilt(why) => Some(why.clone()),
            _ => None,
        };
        Ok(Ran {
            end: cell::end_of(&watched.report.ended),
            stdout,
            stderr,
            is_cut: watched.output.is_cut() || watched.errors.is_cut(),
            duration_ms: u64::try_from(caught.duration.as_millis()).unwrap_or(u64::MAX),
            error: broken.or(not_built),
            evidence: Value::Object(details),
        })
    }

    fn start(&self, job: &Job) -> Result<Box<dyn Session>, String> {
        let mut details = Map::new();
        let (mut planned, bundle) = self.plan(job, &mut details).map_err(|failure| failure.message)?;
        // A server lives as long as it is used; calls have the limit.
        planned.cell.limits.timeout_ms = None;
        let rules = planned.rules;
        let egress: Arc<Mutex<Option<Egress>>> = Arc::default();
        let held = Arc::clone(&egress);
        let inner =
            actum_sandbox::Session::start(&self.spawner, planned.cell, STDERR_BYTES_MAX as usize, move |listeners| {
                if !listeners.way_out.is_empty() {
                    *held.lock().unwrap_or_else(PoisonError::into_inner) = Egress::serve(listeners.way_out, rules).ok();
                }
            })
            .map_err(|e| e.to_string())?;
        let redactor = Redactor::new(job.secrets.values().map(String::as_str));
        let started = std::time::Instant::now();
        Ok(Box::new(Live { inner, egress, details, redactor, started, _bundle: bundle }))
    }
}

struct Live {
    inner: actum_sandbox::Session,
    egress: Arc<Mutex<Option<Egress>>>,
    details: Map<String, Value>,
    redactor: Redactor,
    started: std::time::Instant,
    _bundle: Option<TrustBundle>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Live")
    }
}

impl Session for Live {
    fn pipes(&mut self) -> Option<(OwnedFd, OwnedFd)> {
        self.inner.take_pipes()
    }

    fn is_over(&mut self) -> bool {
        self.inner.is_over()
    }

    fn evidence(&self) -> Value {
        let mut details = self.details.clone();
        let egress = self.egress.lock().unwrap_or_else(PoisonError::into_inner);
        tell_decisions(&egress.as_ref().map(Egress::log).unwrap_or_default(), &mut details);
        Value::Object(details)
    }

    fn stop(self: Box<Self>) -> Ran {
        let Self { inner, egress, mut details, redactor, started, _bundle } = *self;
        inner.stop();
        let ended = inner.end();
        let log = egress.lock().unwrap_or_else(PoisonError::into_inner).take().map(Egress::end).unwrap_or_default();
        let (end, errors, error): (Option<End>, Vec<u8>, Option<String>) = match ended {
            Ok((report, errors)) => {
                tell_end(&report, &log, &[], &mut details);
                (cell::end_of(&report.ended), redactor.redact(&errors.kept).0, None)
            }
            Err(e) => (None, Vec::new(), Some(e.to_string())),
        };
        Ran {
            end,
            stdout: Vec::new(),
            stderr: errors,
            is_cut: false,
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            error,
            evidence: Value::Object(details),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ignored_files_are_shown_beside_the_layers() {
        let folder = actum_testkit::folder::Folder::new();
        let at = folder.join("at");
        for path in ["at", "layer/models"] {
            std::fs::create_dir_all(folder.join(path)).unwrap();
        }
        let file = PathBuf::from("models/large.bin");
        let ground = Ground::Layers {
            at: at.clone(),
            layers: vec![folder.join("layer")],
            inner: vec![],
            files: vec![file.clone()],
        };
        let shown = |path: &Path| -> Vec<PathBuf> {
            ground
                .grants(path, Access::Read)
                .into_iter()
                .filter(|grant| grant.from == Source::Same)
                .map(|g| g.path)
                .collect()
        };
        for path in [at.clone(), at.join("models"), at.join(&file)] {
            assert_eq!(shown(&path), [at.join(&file)], "{}", path.display());
        }
        assert!(shown(&at.join("other")).is_empty());
    }
}
