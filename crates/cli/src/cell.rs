//! From what was agreed to a cell: which paths a level means here, what the environment is, what is protected. Used by
//! `sandbox` and `exec`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::execution::{FilesystemLevel, Host, NetworkLevel, Sandbox};
use actum_sandbox::{Access, Cell, Ended, Grant, Limits, Network, Rules, Source};

use crate::config::SandboxConfig;
use crate::failure::Failure;
use crate::obeyed;

/// Where programs are looked for.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where package managers keep what was installed, and not what signs in to them.
const DEPENDENCIES: &[&str] = &[
    "~/.cargo/bin",
    "~/.cargo/registry",
    "~/.cargo/git",
    "~/.rustup",
    "~/.npm",
    "~/.nvm",
    "~/.pyenv",
    "~/.cache/pip",
    "~/.cache/uv",
    "~/.local/bin",
    "~/.local/lib",
    "~/.local/share/uv",
    "~/go/bin",
    "~/go/pkg",
    "~/.m2/repository",
    "~/.gradle/caches",
];

/// What the level `elevated` leaves out of the system's paths: what is made new for every cell, and what is secret.
const NOT_ELEVATED: &[&str] =
    &["proc", "sys", "dev", "tmp", "run", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "lost+found"];
const SECRET: &[&str] = &[
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
];

/// Environment of every program, whatever the machine's is: the same call gives the same answer.
const FIXED: &[(&str, &str)] = &[
    ("HOME", "/home/actum"),
    ("USER", "actum"),
    ("LOGNAME", "actum"),
    ("SHELL", "/bin/sh"),
    ("TMPDIR", "/tmp"),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("TZ", "UTC"),
    ("SOURCE_DATE_EPOCH", "315532800"),
    ("PYTHONHASHSEED", "0"),
];

/// A cell's own folder for what is of no use later. Whoever works there sees nothing of the machine's.
pub(crate) const SCRATCH: &str = "/tmp";

/// What a cell is made from.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub program: Vec<OsString>,
    pub environment: BTreeMap<String, String>,
    /// Absolute, without links.
    pub folder: PathBuf,
    /// The workspace, if the level shows it.
    pub root: PathBuf,
    pub sandbox: &'a Sandbox,
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    pub deny: Vec<PathBuf>,
    /// Folders in which outputs are expected.
    pub outputs: Vec<PathBuf>,
    /// What is shown in the place of the workspace. Whoever acts in a copy may change all of it: what comes of that is
    /// looked at before anything is published.
    pub stage: Vec<Grant>,
    pub config: &'a SandboxConfig,
    pub grace_ms: u64,
    /// Programs of ours that are found before all others.
    pub programs: Option<PathBuf>,
    /// Where in the cell we listen.
    pub bridge: Option<u16>,
}

/// A cell, whom it may reach, and what is protected in the folders it may change.
#[derive(Debug)]
pub(crate) struct Planned {
    pub cell: Cell,
    pub rules: Rules,
    pub writable: Vec<PathBuf>,
    pub seen: crate::protect::Seen,
}

impl Wanted<'_> {
    pub(crate) fn cell(self) -> Result<Planned, Failure> {
        let level = self.sandbox.filesystem.level;
        let rules = self.rules()?;
        let mut grants: BTreeMap<PathBuf, Access> = BTreeMap::new();
        let mut grant = |path: &Path, access: Access| {
            let entry = grants.entry(path.to_owned()).or_insert(access);
            *entry = (*entry).max(access);
        };
        let is_bare = self.folder == Path::new(SCRATCH);
        if self.stage.is_empty() && !is_bare {
            grant(&self.folder, if level == FilesystemLevel::Minimal { Access::Read } else { Access::Write });
            if level >= FilesystemLevel::Standard {
                grant(&self.root, Access::Read);
            }
        }
        let mut deny = self.deny;
        let mut path = PATH.to_owned();
        let mut environment = BTreeMap::new();
        let mut packages = Vec::new();
        if level >= FilesystemLevel::Extended {
            let usual = DEPENDENCIES.iter().map(|text| crate::config::expand((*text).to_owned()));
            for folder in usual.chain(self.config.dependencies.iter().cloned()) {
                if let Ok(found) = folder.canonicalize() {
                    // A run could have put a link in the place of a folder of the project.
                    let project = self.config.project.as_deref().unwrap_or(&self.root);
                    if is_through_link_in(&folder, project) || is_through_link_in(&folder, &self.root) {
                        let message = format!("[sandbox] dependencies: {} is reached through a link", folder.display());
                        return Err(Failure::new(error::CONFIG, message).hint("name the folder it leads to"));
                    }
                    grant(&found, Access::Read);
                    // A folder that the configuration names may be a part of a project, and is looked through.
                    if !self.config.dependencies.contains(&folder) {
                        packages.push(found);
                    }
                    // What is found first is never what a run could have put there.
                    match folder.ends_with("bin") {
                        true if folder.starts_with(project) || folder.starts_with(&self.root) => {
                            path = format!("{path}:{}", folder.display());
                        }
                        true => path = format!("{}:{path}", folder.display()),
                        false => {}
                    }
                }
            }
            tool_homes(&mut environment);
            self.outputs.iter().for_each(|folder| grant(folder, Access::Write));
        }
        if level == FilesystemLevel::Elevated {
            for entry in std::fs::read_dir("/").into_iter().flatten().flatten() {
                let is_left_out = NOT_ELEVATED.iter().any(|name| entry.file_name() == *name);
                if !is_left_out && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    grant(&entry.path(), Access::Look);
                }
            }
            grant(Path::new("/etc"), Access::Look);
        }
        self.read.iter().for_each(|path| grant(path, Access::Read));
        self.write.iter().for_each(|path| grant(path, Access::Write));
        for path in grants.keys() {
            refuse_whole(path)?;
        }
        let writable: Vec<PathBuf> =
            grants.iter().filter(|(_, access)| **access == Access::Write).map(|(path, _)| path.clone()).collect();
        if let Some(why) = writable.iter().find_map(|path| crate::protect::refuses(path, &self.root)) {
            return Err(
                Failure::new(error::USAGE, why).hint("grant the folder it lies in: the rest of that can be changed")
            );
        }
        let seen = crate::protect::look(&writable);
        for (path, access) in seen.grants(&writable) {
            grants.insert(path, access);
        }
        let root = if self.stage.is_empty() && !is_bare { Some(self.root.as_path()) } else { None };
        hide_own(&mut grants, &mut deny, root, &self.stage, &packages)?;
        let own = [self.root.as_path(), self.folder.as_path()];
        let named: Vec<&Path> = self.read.iter().chain(&self.write).map(PathBuf::as_path).chain(own).collect();
        hide_secrets(&grants, &named, &mut deny);
        deny.sort();
        deny.dedup();
        if let Some(folder) = &self.programs {
            path = format!("{}:{path}", folder.display());
        }
        environment.insert("PATH".to_owned(), path);
        environment.extend(FIXED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        environment.extend(self.environment);
        let network = match self.sandbox.network.level {
            NetworkLevel::Offline => Network::Off,
            NetworkLevel::Open => Network::Open,
            NetworkLevel::Registry | NetworkLevel::Api => Network::Listened { ports: rules.ports() },
        };
        let limits = Limits {
            timeout_ms: Some(self.sandbox.timeout_ms),
            grace_ms: self.grace_ms,
            memory_bytes: self.sandbox.memory_mb << 20,
            cores: u32::try_from(self.sandbox.cpu_cores).unwrap_or(u32::MAX),
            children: u32::try_from(self.sandbox.max_children).unwrap_or(u32::MAX),
            fork: self.sandbox.allow_fork,
            scratch_bytes: self.sandbox.memory_mb << 20,
            disk_bytes: self.sandbox.disk_mb << 20,
        };
        let cell = Cell {
            program: self.program,
            pinned: None,
            environment: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            folder: self.folder,
            grants: grants.into_iter().map(|(path, access)| Grant::same(path, access)).chain(self.stage).collect(),
            deny,
            limits,
            network,
            bridge: self.bridge,
            weaker: self.config.weaker.clone(),
        };
        Ok(Planned { cell, rules, writable, seen })
    }

    fn rules(&self) -> Result<Rules, Failure> {
        let network = &self.sandbox.network;
        let mut allow = network.allow.clone();
        if network.level == NetworkLevel::Registry {
            if self.config.registries.is_empty() {
                let message = "the network level registry reaches no host: no registries are configured";
                return Err(Failure::new(error::CONFIG, message)
                    .hint("name them in actum.toml: `[sandbox] registries = [\"host\"]`, or use --allow HOST"));
            }
            allow.extend(self.config.registries.iter().cloned());
        }
        allow.retain(|host| !Host::is_any(host) || network.level == NetworkLevel::Open);
        Ok(Rules {
            allow,
            deny: network.deny.clone(),
            hosts: self.config.hosts.clone(),
            bytes_max: self.config.egress_mb << 20,
            credentials: None,
        })
    }
}

/// Hides what Actum keeps for itself: who reads it could sign in the user's name, who writes to it could approve. `packages`
/// are folders of package managers, which are granted on every call and not looked through.
fn hide_own(
    grants: &mut BTreeMap<PathBuf, Access>,
    deny: &mut Vec<PathBuf>,
    root: Option<&Path>,
    stage: &[Grant],
    packages: &[PathBuf],
) -> Result<(), Failure> {
    // Made before the cell is: what comes into being while a command runs could not be covered.
    if let Some(root) = root.filter(|root| root.join(crate::active_config::NAME).is_file()) {
        let _ = actum_workspace::make_own_folder(&root.join(OWN));
    }
    let state = crate::project::state_folder();
    if let Some(state) = state.as_ref().filter(|state| grants.keys().any(|path| state.starts_with(path))) {
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
    }
    // Signing keys are in the user's state folder, wherever that is.
    let state = state.and_then(|state| state.canonicalize().ok());
    let is_own = |path: &Path| {
        path.iter().any(|part| part == OWN) || state.as_ref().is_some_and(|state| path.starts_with(state))
    };
    let holds = |path: &Path| state.as_ref().filter(|state| state.starts_with(path)).cloned();
    deny.extend(grants.keys().chain(stage.iter().map(|grant| &grant.path)).filter_map(|path| holds(path)));
    grants.retain(|path, _| !path.ends_with(OWN));
    if let Some(path) = grants.keys().find(|path| is_own(path)) {
        let message = format!("{} is part of what Actum keeps for itself", path.display());
        return Err(Failure::new(error::USAGE, message).hint("leave it out"));
    }
    deny.extend(root.map(|root| root.join(OWN)));
    let mut hidden = HiddenEntries { left: OWN_ENTRIES_MAX, found: deny };
    let mut above: Option<&Path> = None;
    for (path, access) in grants.iter().filter(|(path, _)| !packages.contains(path)) {
        if above.is_some_and(|above| path.starts_with(above)) {
            continue;
        }
        let as_other = *access == Access::Look && actum_sandbox::is_root();
        above = if as_other { above } else { Some(path) };
        hidden.find(path, path, as_other)?;
    }
    for grant in stage {
        let lowers = match &grant.from {
            Source::Overlay { lowers, .. } | Source::Layers { lowers } => lowers.as_slice(),
            Source::Folder(folder) => std::slice::from_ref(folder),
            Source::Same | Source::Outer => continue,
        };
        // Layers and copies that Actum made have nothing to hide; a folder that is shown as it is may have.
        for live in lowers.iter().filter(|lower| !is_own(lower)) {
            hidden.find(live, &grant.path, false)?;
        }
    }
    deny.retain(|path| path.symlink_metadata().is_ok());
    Ok(())
}

const OWN: &str = ".actum";

/// Entries that are looked through for what has to be hidden. A cell that would show more is refused.
const OWN_ENTRIES_MAX: u64 = 2_000_000;

/// Finds what Actum keeps for itself, of this project and of others, and sockets on which the machine answers.
struct HiddenEntries<'a> {
    left: u64,
    found: &'a mut Vec<PathBuf>,
}

impl HiddenEntries<'_> {
    /// Looks through `top`, which the cell knows as `shown`. With `as_other`, the cell enters only what everybody may.
    fn find(&mut self, top: &Path, shown: &Path, as_other: bool) -> Result<(), Failure> {
        let mut waiting = vec![top.to_owned()];
        while let Some(folder) = waiting.pop() {
            // The system's programs; no cell looks behind what it may not enter.
            if folder.starts_with("/usr") || (as_other && !may_everybody_enter(&folder)) {
                continue;
            }
            let listed = match std::fs::read_dir(&folder) {
                Ok(listed) => listed,
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    // It cannot be listed, but entered by name: it is hidden as a whole. The top is what the user grants.
                    let hidden = if folder == top { folder.join(OWN) } else { folder };
                    let shown = hidden.strip_prefix(top).map_or_else(|_| hidden.clone(), |inner| shown.join(inner));
                    self.found.extend(hidden.symlink_metadata().is_ok().then_some(shown));
                    continue;
                }
                // It was removed meanwhile.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                // A file is granted by its own name.
                Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => continue,
                Err(e) => {
                    // The path may be as long as a program could make it.
                    let message = format!("{} cannot be searched for what has to be hidden: {e}", top.display());
                    return Err(Failure::of_io(message, &e));
                }
            };
            for entry in listed.flatten() {
                self.left = self.left.checked_sub(1).ok_or_else(|| {
                    let message = format!(
                        "{} holds more than {OWN_ENTRIES_MAX} entries: Actum's own folders in it cannot be hidden",
                        top.display()
                    );
                    Failure::new(error::USAGE, message).hint("grant a smaller folder")
                })?;
                let Ok(kind) = entry.file_type() else { continue };
                let is_hidden = entry.file_name() == OWN || std::os::unix::fs::FileTypeExt::is_socket(&kind);
                if is_hidden {
                    let path = entry.path();
                    self.found.push(path.strip_prefix(top).map_or_else(|_| path.clone(), |inner| shown.join(inner)));
                } else if kind.is_dir() {
                    waiting.push(entry.path());
                }
            }
        }
        Ok(())
    }
}

fn may_everybody_enter(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
}

/// Hides keys and passwords in the usual places from programs, unless the user has named them or a folder in them.
fn hide_secrets(grants: &BTreeMap<PathBuf, Access>, named: &[&Path], deny: &mut Vec<PathBuf>) {
    let home = std::env::var_os("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    let home = home.filter(|home| grants.keys().any(|grant| grant.starts_with(home) || home.starts_with(grant)));
    let in_home = home.iter().flat_map(|home| obeyed::secrets_of(home));
    for secret in SECRET.iter().map(PathBuf::from).chain(in_home) {
        let Ok(path) = secret.canonicalize() else { continue };
        let is_shown = grants.keys().any(|grant| path.starts_with(grant));
        // `--read ~/.codex` means what is in it; `--read ~/.config` does not mean the keys of all programs.
        let is_folder_of = |named: &Path| {
            path.parent() == Some(named)
                && home.as_ref().is_some_and(|home| named.parent() == Some(home) && !is_shared(named))
        };
        let is_named = named.iter().any(|named| named.starts_with(&path) || is_folder_of(named));
        if is_shown && !is_named {
            deny.push(path);
        }
    }
}

/// Whether the way to `path` leads through a link that is in `folder`.
fn is_through_link_in(path: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let links = links_on_the_way(path);
    links.len() >= LINKS_MAX || links.iter().any(|link| link.starts_with(&folder) && *link != folder)
}

/// The links that are followed on the way to a path, the path itself among them.
pub(crate) fn links_on_the_way(path: &Path) -> Vec<PathBuf> {
    let mut left: Vec<OsString> = path.iter().rev().map(OsString::from).collect();
    let (mut at, mut found) = (PathBuf::new(), Vec::new());
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match std::fs::read_link(&next) {
            Ok(_) if found.len() >= LINKS_MAX => return found,
            Ok(target) => {
                found.push(next);
                left.extend(target.iter().rev().filter(|part| *part != ".").map(OsString::from));
            }
            Err(_) => at = next,
        }
    }
    found
}

/// Links that are followed on one way.
const LINKS_MAX: usize = 40;

/// Whether many programs keep their things in a folder of a home.
fn is_shared(folder: &Path) -> bool {
    [".config", ".local", ".cache", "snap", ".var"].iter().any(|name| folder.ends_with(name))
}

/// Where tools that live in a home look for their own things.
fn tool_homes(environment: &mut BTreeMap<String, String>) {
    let Some(home) = std::env::var_os("HOME").map(PathBuf::from) else { return };
    for (name, folder) in [("RUSTUP_HOME", ".rustup"), ("PYENV_ROOT", ".pyenv"), ("NVM_DIR", ".nvm")] {
        let path = home.join(folder);
        if path.is_dir() {
            environment.insert(name.to_owned(), path.display().to_string());
        }
    }
    // The registry is read only, the rest of cargo's home is the cell's own.
    let registry = home.join(".cargo/registry");
    if registry.is_dir() {
        environment.insert("CARGO_HOME".to_owned(), home.join(".cargo").display().to_string());
    }
}

/// A cell in which everything is granted is none.
fn refuse_whole(path: &Path) -> Result<(), Failure> {
    let whole = ["/", "/proc", "/sys", "/dev", "/run", "/tmp"];
    if whole.iter().any(|name| path == Path::new(name)) || path.starts_with("/proc") || path.starts_with("/sys") {
        let message =
            format!("{} as a whole cannot be shown to a program: too much of others lies in it", path.display());
        return Err(Failure::new(error::USAGE, message).hint("go to a folder of your own, or name one in it"));
    }
    Ok(())
}

/// How an end is told by the contract.
pub(crate) fn end_of(ended: &Ended) -> Option<actum_contract::execution::End> {
    use actum_contract::execution::End;
    const NO_ENTRY: i32 = 2;
    const NOT_A_FOLDER: i32 = 20;
    Some(match ended {
        Ended::Exited(code) => End::Exited(*code),
        Ended::Signalled(signal) => End::Signalled(*signal),
        Ended::NotStarted(NO_ENTRY | NOT_A_FOLDER) => End::NotFound,
        Ended::NotStarted(_) => End::NotExecutable,
        Ended::TimedOut => End::TimedOut,
        Ended::OutOfMemory => End::OutOfMemory,
        Ended::OutOfDisk => End::OutOfDisk,
        // As after a kill; the message says why.
        Ended::Uncovered => End::Signalled(9),
        Ended::Cancelled => End::Cancelled,
        Ended::NotBuilt(_) => return None,
    })
}

/// Why there was no cell.
pub(crate) fn not_built(why: &str) -> Failure {
    let wall = actum_sandbox::Wall::ALL.into_iter().find(|wall| why.starts_with(&format!("{}:", wall.word())));
    let failure = Failure::new(error::SANDBOX_UNAVAILABLE, format!("no sandbox: {why}"));
    match wall {
        Some(wall) => failure.hint(format!(
            "`actum doctor` says what this machine enforces; to go on without: `[sandbox] weaker = [\"{}\"]` in actum.toml",
            wall.word()
        )),
        None => failure.hint("`actum doctor` says what is missing on this machine and how to get it"),
    }
}
