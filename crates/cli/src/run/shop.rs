//! The workshop: what all runs of a project share, and hands for each of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use actum_api::error;
use actum_contract::digest::{Blake3, Digest};
use actum_contract::id::Tenant;
use actum_engine::{Agreement, NoHands, Waiter, Workshop};
use actum_kernel::{Hands, State};
use actum_ledger::access::Access;
use actum_ledger::head::Heads;
use actum_ledger::pointer::Pointers;
use actum_ledger::registry::Registry;
use actum_ledger::run::{Run, RunState, Runs, Written};
use actum_ledger::spend::Spend;
use actum_ledger::webhook::Webhooks;
use actum_sandbox::{Identity, Spawner};
use actum_store::Store;
use actum_store::blob::Folder as Blobs;
use actum_workspace::{Mode, OpenFolder, Stage, Workspace};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finish::RunFolder;
use super::hands::{Facts, RunHands};
use super::shared::bring_files;
use crate::active_config::ActiveConfig;
use crate::command::doctor;
use crate::config::{Config, SandboxConfig};
use crate::consent::OwnFiles;
use crate::contents;
use crate::failure::Failure;
use crate::key::Key;
use crate::known_head::KnownHead;
use crate::model::Counter;
use crate::progress::Progress;
use crate::project::Project;
use crate::seat::Seat;
use crate::tool::cells::Programs;
use crate::tool::shelf::Shelf;
use crate::ui::Out;
use crate::workspace::new_id;

/// How often a run may change while something is written down about it.
const NOTES_MAX: usize = 5;

/// A project whose store is open for runs.
pub(crate) struct Open {
    pub project: Project,
    pub waiter: Waiter,
    pub registry: Arc<dyn Registry>,
    pub spend: Arc<dyn Spend>,
    pub pointers: Arc<dyn Pointers>,
    pub access: Arc<dyn Access>,
    pub heads: Arc<dyn Heads>,
    pub store: Arc<dyn Store>,
    pub webhooks: Arc<dyn Webhooks>,
    pub tenant: Tenant,
    pub place: String,
}

impl Open {
    pub(crate) fn new(project: Project, out: &Out) -> Result<Self, Failure> {
        let (store, waiter) = match project.seat() {
            // Connections live where they were made, and are shared.
            Some(seat) => (Arc::clone(&seat.store), seat.waiter.clone()),
            None => {
                let runtime =
                    Waiter::runtime().map_err(|e| Failure::new(error::INTERNAL, format!("cannot start: {e}")))?;
                let store = runtime.block_on(project.open(out, false))?;
                let (runs, journal): (Arc<dyn Runs>, Arc<dyn actum_ledger::Journal>) = (store.clone(), store.clone());
                (store, Waiter::new(runtime, runs, journal))
            }
        };
        let registry: Arc<dyn Registry> = store.clone();
        let spend: Arc<dyn Spend> = store.clone();
        let pointers: Arc<dyn Pointers> = store.clone();
        let access: Arc<dyn Access> = store.clone();
        let heads: Arc<dyn Heads> = store.clone();
        let webhooks: Arc<dyn Webhooks> = store.clone();
        let tenant = project.tenant()?;
        let place = place_of(&project)?;
        Ok(Self { project, waiter, registry, spend, pointers, access, heads, webhooks, store, tenant, place })
    }

    /// The same project as another tenant has it.
    pub(crate) fn of_tenant(&self, tenant: Tenant, out: &Out) -> Result<Self, Failure> {
        let (store, config) = (Arc::clone(&self.store), Arc::clone(self.project.active_config()));
        let actor = self.project.actor().unwrap_or_else(|| "cli".to_owned());
        let seat = Seat::new(store, self.waiter.clone(), tenant, actor, config);
        Self::new(Project::seated(Arc::new(seat)), out)
    }

    /// Returns the run that a stage or a publication belongs to. `id`: of the run, or of one of its stages.
    pub(crate) fn run_behind(&self, id: &str) -> Result<Option<(Run, Agreement)>, Failure> {
        let prefix = id.split('.').next().unwrap_or(id);
        let Some(run) = self.named(prefix)? else { return Ok(None) };
        let agreed = actum_engine::read_without_contract(&run.metadata);
        Ok(agreed.ok().map(|agreement| (run, agreement)))
    }

    /// Writes down what was done about a run that is over. Tries again if the run changed meanwhile.
    pub(crate) fn note_done(&self, run: &Run, done: &actum_engine::Done) -> Result<(), Failure> {
        let mut run = run.clone();
        for _ in 0..NOTES_MAX {
            match actum_engine::note(&self.waiter, &run, done, None)? {
                Written::Done => return Ok(()),
                Written::Lost => run = self.find(&run.id)?,
                Written::Refused(refusal) => return Err(Failure::new(error::RUN_STATE, refusal.message)),
            }
        }
        Err(Failure::new(error::RUN_STATE, format!("run {} is being changed by another command", run.id))
            .hint("repeat the command"))
    }

    /// The run whose id begins so, if there is one. Empty and ambiguous ids are refused.
    pub(crate) fn named(&self, text: &str) -> Result<Option<Run>, Failure> {
        if text.is_empty() {
            return Err(Failure::new(error::USAGE, "the run id is empty")
                .hint("is a variable unset? `actum list` shows the runs there are"));
        }
        let mut found = self.waiter.wait(self.waiter.runs.runs_named(&self.tenant, text))?;
        match found.iter().position(|run| run.id == text) {
            Some(at) => Ok(Some(found.swap_remove(at))),
            None if found.len() > 1 => {
                Err(Failure::new(error::USAGE, format!("{text:?} is the beginning of several runs"))
                    .hint("give more of the id; `actum list` shows them"))
            }
            None => Ok(found.pop()),
        }
    }

    /// The run whose id begins so, if it worked on a shared workspace, and the name of that.
    pub(crate) fn run_on_shared(&self, id: &str) -> Result<Option<(Run, String)>, Failure> {
        let Some(run) = self.named(id)? else { return Ok(None) };
        let agreed = actum_engine::read_without_contract(&run.metadata);
        Ok(agreed.ok().and_then(|agreement| Some((run, agreement.shared?))))
    }

    /// The run whose id begins so.
    pub(crate) fn run(&self, prefix: &str) -> Result<Run, Failure> {
        let found = self.find(prefix)?;
        if found.state.is_over() {
            RunFolder::of(&self.project.folder()?, &found.id).settle(found.epoch);
        }
        Ok(found)
    }

    /// Where a run has left what it left. What another machine has is brought here first.
    pub(crate) fn left_by(&self, run: &Run) -> Result<RunFolder, Failure> {
        let home = self.project.folder()?;
        if !crate::shared::is_place(&run.place) {
            return Ok(RunFolder::of(&home, &run.id));
        }
        let folder = RunFolder::make(&home, &run.id)?;
        bring_files(&folder, run, &self.project.shelf(contents::Shelf::Files)?)?;
        Ok(folder)
    }

    /// The place under which other tenants know this one.
    pub(crate) fn place_for_others(&self) -> String {
        let root = self.project.root();
        place_for_others(&machine_name(), &root.canonicalize().unwrap_or_else(|_| root.to_owned()))
    }

    /// Whether whoever worked on it is known to be dead.
    pub(crate) fn is_abandoned(&self, run: &Run) -> Result<bool, Failure> {
        let home = self.project.folder()?;
        Ok(run.state == RunState::Running && run.owner.as_ref().is_some_and(|owner| gone(&home).contains(owner)))
    }

    fn find(&self, prefix: &str) -> Result<Run, Failure> {
        self.named(prefix)?.ok_or_else(|| {
            Failure::new(error::NOT_FOUND, format!("there is no run {prefix:?}"))
                .hint("`actum list` shows the runs there are")
        })
    }
}

/// Returns the name of this machine and project: a worker there can reach what a run works on. Entries of other tenants
/// hold it, and where the project lies is not told to them.
pub(crate) fn place_of(project: &Project) -> Result<String, Failure> {
    let machine = machine_name();
    let root = project.root().canonicalize().unwrap_or_else(|_| project.root().to_owned());
    Ok(match project.is_guest()? {
        true => place_for_others(&machine, &root),
        false => format!("{machine}:{}", root.display()),
    })
}

/// The place of a project without its path.
fn place_for_others(machine: &str, root: &Path) -> String {
    format!("{machine}:{}", &Digest::blake3(root.as_os_str().as_encoded_bytes()).to_hex()[..16])
}

fn machine_name() -> String {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    // Several that see the same files at the same path may go by one name: containers on one volume, what was restored elsewhere.
    let named = std::env::var("ACTUM_MACHINE").ok().filter(|name| !name.is_empty());
    if let Some(named) = named {
        named
    } else if machine.trim().is_empty() {
        fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
    } else {
        machine.trim().chars().take(12).collect()
    }
}

/// What all runs of a project share.
pub(crate) struct Shop {
    pub home: PathBuf,
    pub root: PathBuf,
    pub blobs: Arc<Blobs>,
    /// What runs on shared workspaces leave.
    pub files: Arc<Blobs>,
    pub waiter: Waiter,
    pub tenant: Tenant,
    pub place: String,
    /// All places whose runs it takes.
    places: Vec<String>,
    pub spawner: Arc<Spawner>,
    pub shelf: Shelf,
    pub spend: Arc<dyn Spend>,
    pub heads: Arc<dyn Heads>,
    /// Files of the project that Actum obeys.
    pub own_files: OwnFiles,
    /// As it was in force when this was made.
    pub config: Arc<Config>,
    counter: OnceLock<Arc<Counter>>,
    mode: Mode,
    /// Workspaces that were looked through for files of other owners, and what that means for them.
    modes: Mutex<BTreeMap<PathBuf, Mode>>,
    /// Programs whose content was read.
    programs: Mutex<Vec<(Identity, Digest)>>,
    /// What is known of programs of tools.
    pub tool_programs: Programs,
    pub sandbox: SandboxConfig,
    pub key: Key,
    pub known_head: KnownHead,
    pub program: PathBuf,
    /// By which others know that this worker lives.
    pub owner: String,
    /// Nothing if the file is with the shop that this one is beside.
    alive: Option<File>,
    /// Where the progress of copies is shown.
    progress: OnceLock<Arc<Progress>>,
}

impl std::fmt::Debug for Shop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shop").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Shop {
    pub(crate) fn open(open: &Open, ready: usize) -> Result<Arc<Self>, Failure> {
        let spawner = Spawner::start(ready).map_err(|e| crate::cell::not_built(&e.to_string()))?;
        let (owner, alive) = enter(&open.project.folder()?)?;
        Self::furnish(open, Arc::new(spawner), owner, Some(alive))
    }

    /// The same worker for another tenant: what lies beside the store is that tenant's own.
    fn beside(&self, open: &Open) -> Result<Arc<Self>, Failure> {
        Self::furnish(open, Arc::clone(&self.spawner), self.owner.clone(), None)
    }

    fn furnish(open: &Open, spawner: Arc<Spawner>, owner: String, alive: Option<File>) -> Result<Arc<Self>, Failure> {
        let project = &open.project;
        let home = project.folder()?;
        let mode = doctor::best(project)?;
        let config = project.config()?;
        let root = project.root().canonicalize().unwrap_or_else(|_| project.root().to_owned());
        let shop = Self {
            own_files: OwnFiles::of(&root, &config),
            root,
            blobs: project.blobs()?,
            files: Arc::new(project.shelf(contents::Shelf::Files)?),
            waiter: open.waiter.clone(),
            tenant: open.tenant.clone(),
            place: open.place.clone(),
            places: open.places()?,
            spawner,
            shelf: Shelf::new(&open.waiter, &open.registry, &open.tenant),
            spend: Arc::clone(&open.spend),
            heads: Arc::clone(&open.heads),
            counter: OnceLock::new(),
            mode,
            modes: Mutex::default(),
            programs: Mutex::default(),
            tool_programs: Programs::default(),
            sandbox: config.sandbox.clone(),
            config,
            key: Key::find_or_make(project)?,
            known_head: KnownHead::of(project, &open.tenant),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("actum")),
            owner,
            home,
            alive,
            progress: OnceLock::new(),
        };
        if project.contents_name()?.is_some() {
            shop.key.announce(open)?;
        }
        shop.tidy();
        // What is past its deadline is somebody's to find out about; it stays held either way.
        let _ = shop.waiter.wait(shop.spend.mark_stuck(&shop.tenant, None));
        Ok(Arc::new(shop))
    }

    /// Through which models are asked; made when the first is.
    pub(super) fn counter(&self) -> Result<Arc<Counter>, Failure> {
        if let Some(counter) = self.counter.get() {
            return Ok(Arc::clone(counter));
        }
        let places = (self.home.clone(), self.root.clone());
        let made = Counter::new(&self.waiter, &self.spend, &self.tenant, places, &self.config)?;
        Ok(Arc::clone(self.counter.get_or_init(|| made)))
    }

    /// The BLAKE3 of a program, read once as long as the file is the same.
    pub(super) fn digest_of(&self, file: &File) -> Option<Digest> {
        let identity = Identity::of(&file.metadata().ok()?);
        let mut known = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, digest)) = known.iter().find(|(of, _)| *of == identity) {
            return Some(*digest);
        }
        let (mut hash, mut piece, mut file) = (Blake3::default(), vec![0; 256 << 10], file.try_clone().ok()?);
        loop {
            match std::io::Read::read(&mut file, &mut piece).ok()? {
                0 => break,
                length => hash.update(&piece[..length]),
            }
        }
        let digest = hash.finish();
        known.push((identity, digest));
        Some(digest)
    }

    /// Shows the progress of copies there from now on.
    pub(crate) fn show_copies(&self, progress: &Arc<Progress>) {
        let _ = self.progress.set(Arc::clone(progress));
    }

    /// Reports how many files of a stage have been copied.
    pub(super) fn report_copy(&self, item: &str, done: u64, all: u64) {
        if let Some(progress) = self.progress.get() {
            progress.copying(item, done, all);
        }
    }

    /// How stages of a workspace are made. A cell knows one owner and one group; through an overlay it could not change
    /// what belongs to others, in a copy everything is its own.
    pub(crate) fn mode_for(&self, folder: &Path) -> Mode {
        if self.mode != Mode::Overlay {
            return self.mode;
        }
        let mut modes = self.modes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = |folder: &Path| if has_other_owners(folder) { Mode::Copy } else { Mode::Overlay };
        *modes.entry(folder.to_owned()).or_insert_with_key(|folder| found(folder))
    }

    pub(crate) fn workspace(&self, folder: OpenFolder) -> Result<Workspace, actum_workspace::Error> {
        let blobs: Arc<dyn actum_contract::blob::Blobs> = self.blobs.clone();
        Workspace::at(folder, &self.home, blobs)
    }

    /// A folder that holds nothing: where a workspace that no machine has would be.
    pub(super) fn no_folder(&self) -> Result<OpenFolder, Failure> {
        let folder = self.home.join("shared");
        let unwritable = |e| Failure::of_io(format!("cannot make {}: {e}", folder.display()), &e);
        fs::create_dir_all(&folder).map_err(unwritable)?;
        crate::folder::open_named(&folder)
    }

    /// The turn to sign a receipt, among all workers of the project. Nobody waits for good for one who stands still: then
    /// two receipts may name the same predecessor, and both are true.
    pub(super) fn turn(&self) -> Option<File> {
        let file = File::create(self.home.join("receipts.lock")).ok()?;
        let end = Instant::now() + TURN_MAX;
        while file.try_lock().is_err() {
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(TURN_EVERY);
        }
        Some(file)
    }

    /// Removes stages; what cannot be removed now is removed by whoever cleans up later.
    pub(super) fn remove_stages(&self, of: &dyn Fn(&str) -> bool) {
        for id in Stage::ids(&self.home).unwrap_or_default().iter().filter(|id| of(id)) {
            let _ = Stage::remove(&self.home, id);
        }
    }

    /// Removes what the dead have left of runs that are over: nobody takes those up again. A kept result stays.
    fn tidy(&self) {
        self.remove_stages(&|id| {
            let Some((run, epoch)) = id.rsplit_once('.') else { return false };
            let found = self.waiter.wait(self.waiter.runs.runs_named(&self.tenant, run)).unwrap_or_default();
            let Some(run) = found.into_iter().find(|found| found.id == run) else { return false };
            let outcome: Value =
                run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let kept = outcome["verdict"]["kept"] == true && epoch == run.epoch.to_string();
            run.state.is_over() && !kept
        });
    }

    /// Its runs are over or given back: nobody has to find out that it is gone.
    pub(crate) fn close(&self) {
        if self.alive.is_none() {
            return;
        }
        let _ = fs::remove_file(workers(&self.home).join(&self.owner));
    }
}

const TURN_MAX: Duration = Duration::from_secs(5);
const TURN_EVERY: Duration = Duration::from_millis(5);

/// Entries that are looked at; who has more is taken to own all of them.
const ENTRIES_MAX: usize = 300_000;

/// Whether something in a folder belongs to another user or group than the folder itself.
fn has_other_owners(top: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    let Ok(owner) = fs::metadata(top).map(|found| (found.uid(), found.gid())) else { return false };
    let mut waiting = vec![top.to_owned()];
    let mut entries = 0;
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            let Ok(found) = entry.metadata() else { continue };
            if entries > ENTRIES_MAX {
                return false;
            }
            if (found.uid(), found.gid()) != owner {
                return true;
            }
            // What git and we keep for ourselves is nobody's work.
            if found.is_dir() && entry.file_name() != ".git" && entry.file_name() != ".actum" {
                waiting.push(entry.path());
            }
        }
    }
    false
}

fn workers(home: &Path) -> PathBuf {
    home.join("workers")
}

/// A worker's own file, locked as long as it lives.
fn enter(home: &Path) -> Result<(String, File), Failure> {
    let folder = workers(home);
    let unwritable = |e: std::io::Error| Failure::of_io(format!("cannot write {}: {e}", folder.display()), &e);
    fs::create_dir_all(&folder).map_err(unwritable)?;
    let owner = format!("worker-{}-{}", std::process::id(), new_id());
    // It gets its name when it is locked: nobody ever sees a living worker's file free.
    let aside = folder.join(format!("{NOT_YET}{owner}"));
    let file = File::create(&aside).map_err(unwritable)?;
    file.lock().and_then(|()| fs::rename(&aside, folder.join(&owner))).map_err(unwritable)?;
    Ok((owner, file))
}

/// What a worker says of itself in its file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkerReport {
    pub places: Vec<String>,
    pub agents: Vec<String>,
    /// Why it claims nothing for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwell: Option<String>,
}

/// A worker of this machine and project.
#[derive(Debug, Serialize)]
pub(crate) struct LocalWorker {
    pub worker: String,
    /// Whether its process lives.
    pub alive: bool,
    #[serde(flatten)]
    pub report: WorkerReport,
}

/// The workers that have their files in this project.
pub(crate) fn local_workers(home: &Path) -> Vec<LocalWorker> {
    let gone = gone(home);
    let mut all = Vec::new();
    for entry in fs::read_dir(workers(home)).into_iter().flatten().flatten() {
        let worker = entry.file_name().to_string_lossy().into_owned();
        if worker.starts_with(NOT_YET) {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let report = serde_json::from_str(text.trim_end()).unwrap_or_default();
        all.push(LocalWorker { alive: !gone.contains(&worker), worker, report });
    }
    all.sort_by(|a, b| a.worker.cmp(&b.worker));
    all
}

/// Bytes of a worker's file. Written as a whole at the start, so that a full disk does not keep it from saying so.
const REPORT_BYTES: usize = 4_096;

impl Shop {
    /// Writes into the file of this worker what it serves, and why it claims nothing if so.
    pub(crate) fn report_health(&self, unwell: Option<&str>) {
        use std::os::unix::fs::FileExt as _;

        let Some(file) = &self.alive else { return };
        let cut = |text: &str| text.chars().take(500).collect::<String>();
        let report = WorkerReport {
            places: self.places.clone(),
            agents: self.config.agents.keys().cloned().collect(),
            unwell: unwell.map(cut),
        };
        let mut text = serde_json::to_vec(&report).unwrap_or_default();
        if text.len() < REPORT_BYTES {
            text.resize(REPORT_BYTES, b' ');
            let _ = file.write_all_at(&text, 0);
        }
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.close();
    }
}

/// How the file of a worker begins that is not there yet.
const NOT_YET: &str = ".";

/// Workers of this project whose file nobody holds any more.
fn gone(home: &Path) -> Vec<String> {
    let mut gone = Vec::new();
    for entry in fs::read_dir(workers(home)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_free = File::open(entry.path()).is_ok_and(|file| file.try_lock_shared().is_ok());
        if !name.starts_with(NOT_YET) && is_free {
            gone.push(name);
        }
    }
    gone
}

/// The shops of one worker: that of whoever started it, and those of other tenants whose runs it takes.
pub(crate) struct Shops {
    own: Arc<Shop>,
    config: Arc<ActiveConfig>,
    store: Arc<dyn Store>,
    waiter: Waiter,
    others: Mutex<BTreeMap<Tenant, Arc<Shop>>>,
}

impl Shops {
    pub(crate) fn new(open: &Open, own: Arc<Shop>) -> Self {
        let (store, waiter) = (Arc::clone(&open.store), open.waiter.clone());
        Self { own, config: Arc::clone(open.project.active_config()), store, waiter, others: Mutex::default() }
    }

    fn of(&self, tenant: &Tenant) -> Result<Arc<Shop>, Failure> {
        // One that was made under an earlier configuration only ends what it has begun.
        let in_force = self.config.current()?.digest;
        if *tenant == self.own.tenant && self.own.config.digest == in_force {
            return Ok(Arc::clone(&self.own));
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shop) = others.get(tenant).filter(|shop| shop.config.digest == in_force) {
            return Ok(Arc::clone(shop));
        }
        let (store, waiter, config) = (Arc::clone(&self.store), self.waiter.clone(), Arc::clone(&self.config));
        let seat = Seat::new(store, waiter, tenant.clone(), "worker".to_owned(), config);
        let open = Open::new(Project::seated(Arc::new(seat)), &Out::captured(true))?;
        let shop = self.own.beside(&open)?;
        others.insert(tenant.clone(), Arc::clone(&shop));
        Ok(shop)
    }
}

/// Room that a machine must have on its disk to execute runs.
const ROOM_BYTES_MIN: usize = 4 << 20;
/// Files that a machine must be able to open.
const FILES_MIN: usize = 64;

/// Room below which a disk counts as full.
const FULL_BELOW_BYTES: u64 = 1 << 20;

/// Whether the disk of a folder has no room left.
pub(super) fn is_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < FULL_BELOW_BYTES)
}

/// Whether this machine can execute runs, found out by doing what they need: room on the disk, open files, a cell.
fn self_check(home: &Path, spawner: &Spawner) -> Result<(), String> {
    // A folder of its own: the cell counts what changes in what it may write to.
    let folder = home.join(format!("workers/.self-check-{}", std::process::id()));
    let checked = check_in(&folder, home, spawner);
    let _ = fs::remove_dir_all(&folder);
    checked
}

fn check_in(folder: &Path, home: &Path, spawner: &Spawner) -> Result<(), String> {
    let path = folder.join("room");
    let written = fs::create_dir_all(folder).and_then(|()| {
        fs::write(&path, vec![0; ROOM_BYTES_MIN])?;
        File::open(&path)?.sync_all()?;
        fs::remove_file(&path)
    });
    written.map_err(|e| format!("cannot write to {}: {e}", home.display()))?;
    let files: Result<Vec<File>, _> = (0..FILES_MIN).map(|_| File::open("/dev/null")).collect();
    drop(files.map_err(|e| format!("cannot open files: {e}"))?);
    let ended = actum_sandbox::Pipes::new(false).and_then(|(_pipes, files)| {
        let mut running = spawner.run(actum_sandbox::probe_cell(folder), files)?;
        loop {
            if let actum_sandbox::News::Ended(report) = running.hear()? {
                return Ok(report.ended);
            }
        }
    });
    match ended.map_err(|e| format!("cannot make a cell: {e}"))? {
        actum_sandbox::Ended::Exited(0) => Ok(()),
        other => Err(format!("`true` did not run in a cell: {other:?}")),
    }
}

fn no_hands(failure: Failure, home: &Path) -> NoHands {
    if failure.row.name == error::WORKSPACE_REPLACED {
        return NoHands::Refused { code: error::WORKSPACE_REPLACED, message: failure.message };
    }
    match (failure.is_passing(), failure.is_machines() || is_full(home)) {
        (true, _) => NoHands::PutOff(failure.message),
        (false, true) => NoHands::Machine(failure.message),
        (false, false) => NoHands::Never(failure.message),
    }
}

impl Workshop for Shops {
    fn take_up(
        &self,
        run: &Run,
        contract_hash: &str,
        agreement: &Agreement,
        _: &State,
    ) -> Result<Box<dyn Hands>, NoHands> {
        let facts = Facts {
            run: run.id.clone(),
            item: run.item.clone(),
            submission: run.submission.clone(),
            attempt: run.attempt,
            epoch: run.epoch,
            created_ms: run.created_ms,
            place: run.place.clone(),
            contract_hash: contract_hash.to_owned(),
            metadata: run.metadata.clone(),
            agreement: agreement.clone(),
        };
        let hands = self.of(&run.tenant).and_then(|shop| RunHands::new(shop, facts));
        Ok(Box::new(hands.map_err(|failure| no_hands(failure, &self.own.home))?))
    }

    fn tenant(&self) -> Tenant {
        self.own.tenant.clone()
    }

    fn machine(&self) -> String {
        self.own.place.split(':').next().unwrap_or_default().to_owned()
    }

    fn self_check(&self) -> Result<(), String> {
        self_check(&self.own.home, &self.own.spawner)?;
        // Contents that cannot be kept or fetched would fail every run.
        match self.config.blobs().and_then(|blobs| contents::far(blobs, &self.own.root)) {
            Ok(Some(far)) => far.probe().map_err(|e| e.to_string()),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure.message),
        }
    }

    fn report_health(&self, unwell: Option<&str>) {
        self.own.report_health(unwell);
    }

    /// Theirs are taken over at once.
    fn gone(&self) -> Vec<String> {
        gone(&self.own.home)
    }

    fn forget(&self, gone: &[String]) {
        for name in gone {
            let _ = fs::remove_file(workers(&self.own.home).join(name));
        }
        self.own.tidy();
    }
}
