//! `actum snapshot`: the workspace store alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::blob::{BlobError, Blobs as _};
use actum_contract::digest::Digest;
use actum_contract::metadata;
use actum_kernel::Event;
use actum_ledger::run::{Filter, Run, RunState};
use actum_store::blob::{Folder, Swept, Thoroughness};
use actum_workspace::{Kept, Limit, Rules, Snapshot, bases, diff, leaves, retain, thaw_new};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use super::diff::show;
use crate::args::Global;
use crate::failure::Failure;
use crate::folder;
use crate::project::Project;
use crate::run::Open;
use crate::ui::{Out, count, table};
use crate::workspace::{self, Ledger, Opened, deltas_json, deltas_text, new_id, now_ms, time};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Keep a folder as it is now: the project, or DIR
    Freeze(Freeze),
    /// Restore a snapshot into an empty folder, or bring a workspace back to it
    Thaw(Thaw),
    /// Compare two snapshots or folders
    Diff(Diff),
    /// The snapshots that are kept, newest first
    List,
    /// Remove contents that nothing refers to, and old snapshots and publications beyond a size
    Gc(Gc),
    /// Keep a snapshot regardless of its size
    Pin(Named),
    /// Let a pinned snapshot go again
    Unpin(Named),
    /// Take a snapshot off the list
    Forget(Named),
    /// Read every stored content and every snapshot
    Check,
}

#[derive(Debug, Args)]
pub(crate) struct Freeze {
    /// The folder; the project if left out
    dir: Option<PathBuf>,

    /// Take paths although .gitignore leaves them out
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,

    /// Leave paths out
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,

    /// Read every file again, also unchanged ones
    #[arg(long)]
    paranoid: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Thaw {
    /// The snapshot, or the beginning of its id
    id: String,

    /// A new or empty folder, or a workspace
    dir: PathBuf,

    /// Give up changes in DIR that no snapshot has
    #[arg(long)]
    discard: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// A snapshot, the beginning of its id, or a folder
    #[arg(id = "id", value_name = "A")]
    a: String,
    /// The same
    b: String,
    /// Only name the paths
    #[arg(long)]
    stat: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Give up the oldest snapshots and publications (which then cannot be undone) until the rest fits: 1000, 10k, 5M, 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The snapshot, or the beginning of its id
    id: String,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        other => return Err(format!("{other:?} is no unit; use k, M, G or T")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{digits:?} is no whole number; 1500k is one and a half M"))?;
    number.checked_mul(unit).ok_or_else(|| "that is more than any disk has".to_owned())
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        match self {
            Self::Freeze(freeze) => freeze.run(&project, out),
            Self::Thaw(thaw) => thaw.run(&project, out),
            Self::Diff(diff) => diff.run(&project, out),
            Self::List => list(&project, out),
            Self::Gc(gc) => gc.run(&project, out),
            Self::Pin(named) => named.change(&project, out, "pinned", |s, home| s.pin(home, true)),
            Self::Unpin(named) => named.change(&project, out, "unpinned", |s, home| s.pin(home, false)),
            Self::Forget(named) => named.change(&project, out, "forgot", |s, home| s.forget(home)),
            Self::Check => check(&project, out),
        }
    }
}

impl Freeze {
    fn run(self, project: &Project, out: &mut Out) -> Ended {
        let folder = self.dir.as_deref().unwrap_or(project.root());
        let rules = workspace::rules(folder, self.include, self.exclude)?;
        let opened = workspace::open(project, folder::open_named(folder)?, out)?;
        let frozen = opened.workspace.freeze(&rules, self.paranoid, now_ms())?;
        let (id, files, bytes) = (frozen.id.to_hex(), frozen.files, frozen.bytes);
        out.result(&json!({"id": id, "files": files, "bytes": bytes, "hashed_files": frozen.hashed_files}), || {
            id.clone()
        });
        let read = count(frozen.hashed_files, "file", "files");
        out.remark(&format!("{}, {}, {read} read", count(files, "file", "files"), size(bytes)));
        Ok(0)
    }
}

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => count(bytes, "byte", "bytes"),
    }
}

impl Thaw {
    fn run(self, project: &Project, out: &mut Out) -> Ended {
        let home = project.folder()?;
        let snapshot = find(project, &self.id)?;
        refuse_own(&self.dir)?;
        let is_new = match std::fs::read_dir(&self.dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => true,
            Err(e) => {
                return Err(Failure::of_io(format!("cannot look into {}: {e}", self.dir.display()), &e));
            }
        };
        let id = snapshot.id.to_hex();
        if is_new {
            thaw_new(&home, &*project.blobs()?, snapshot.id, &self.dir)?;
            out.result(&json!({"id": id, "folder": self.dir.display().to_string(), "files": snapshot.files}), || {
                format!("restored {} to {}", count(snapshot.files, "file", "files"), self.dir.display())
            });
            return Ok(0);
        }
        // The workspace is looked at as it was when the snapshot was taken: what was left out then is left alone now.
        let Rules { include, exclude, .. } = snapshot.rules;
        let rules = workspace::rules(&self.dir, include, exclude)?;
        let opened = workspace::open(project, folder::open_named(&self.dir)?, out)?;
        let ledger = Ledger::open(project, out)?;
        opened.workspace.may_thaw(snapshot.id, &rules, self.discard)?;
        let lock = workspace::lock(project, &opened, out)?;
        let publication = opened.workspace.thaw(&lock, snapshot.id, &rules, &new_id(), now_ms(), self.discard)?;
        ledger.record(&opened, &publication, out)?;
        opened.workspace.forget_pending(&publication.id)?;
        out.result(
            &json!({
                "id": id,
                "folder": self.dir.display().to_string(),
                "publication": publication.id,
                "before": publication.before.to_hex(),
                "deltas": deltas_json(&publication.changes),
            }),
            || deltas_text(&publication.changes),
        );
        if !publication.changes.is_empty() {
            let before = &publication.before.to_hex()[..16];
            out.remark(&format!("`actum snapshot thaw {before} {}` brings back what was there", self.dir.display()));
        }
        Ok(0)
    }
}

/// Our own folder and git's are nobody's target.
fn refuse_own(dir: &Path) -> Result<(), Failure> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = std::fs::canonicalize(dir).or_else(|_| std::fs::canonicalize(parent).map(|p| p.join(dir)));
    let whole = whole.unwrap_or_else(|_| dir.to_owned());
    match whole.iter().find(|name| *name == ".actum" || *name == ".git") {
        None => Ok(()),
        Some(own) => {
            let message = format!("{} lies in {}, where nothing is restored to", dir.display(), own.display());
            Err(Failure::new(error::WORKSPACE_REFUSED, message))
        }
    }
}

impl Diff {
    fn run(self, project: &Project, out: &mut Out) -> Ended {
        let opened = workspace::open(project, folder::open_root(project)?, out)?;
        let (a, b) = (id_of(project, &self.a, out)?, id_of(project, &self.b, out)?);
        let changes = diff(opened.workspace.blobs(), a, b)?;
        show(
            &opened,
            &changes,
            self.stat,
            out,
            || json!({"before": a.to_hex(), "after": b.to_hex(), "deltas": deltas_json(&changes)}),
        )?;
        Ok(0)
    }
}

/// A snapshot on the list; or, by its whole id, one that another machine has made: its contents are all there is of it.
fn find(project: &Project, text: &str) -> Result<Snapshot, Failure> {
    let home = project.folder()?;
    let unknown = match Snapshot::find(&home, text) {
        Err(e @ actum_workspace::Error::Unknown { .. }) => e,
        found => return Ok(found?),
    };
    let Some(id) = Digest::from_hex(text) else { return Err(unknown.into()) };
    let blobs = project.blobs()?;
    if !blobs.contains(id)? {
        return Err(unknown.into());
    }
    let files = leaves(&*blobs, id)?.len() as u64;
    Ok(Snapshot { id, at_ms: now_ms(), folder: home, files, bytes: 0, pinned: false, rules: Rules::default() })
}

/// A snapshot by its id, or a folder as it is now.
fn id_of(project: &Project, text: &str, out: &Out) -> Result<Digest, Failure> {
    match find(project, text) {
        Err(e) if e.row.name == error::NOT_FOUND && project.seat().is_none() && Path::new(text).is_dir() => {
            let folder = Path::new(text);
            let rules = workspace::rules(folder, Vec::new(), Vec::new())?;
            let Opened { workspace, .. } = workspace::open(project, folder::open_named(folder)?, out)?;
            Ok(workspace.state(&rules)?)
        }
        found => Ok(found?.id),
    }
}

fn list(project: &Project, out: &mut Out) -> Ended {
    let snapshots = Snapshot::list(&project.folder()?)?;
    let shown = |s: &Snapshot| {
        json!({
            "id": s.id.to_hex(), "frozen_at": time(s.at_ms), "folder": s.folder.display().to_string(),
            "files": s.files, "bytes": s.bytes, "pinned": s.pinned,
        })
    };
    out.result(&json!({"snapshots": snapshots.iter().map(shown).collect::<Vec<_>>()}), || {
        let row = |s: &Snapshot| {
            let pinned = if s.pinned { "pinned" } else { "" };
            let id = s.id.to_hex()[..16].to_owned();
            vec![
                id,
                time(s.at_ms),
                s.files.to_string(),
                size(s.bytes),
                pinned.to_owned(),
                s.folder.display().to_string(),
            ]
        };
        let headings = ["SNAPSHOT", "FROZEN", "FILES", "SIZE", "", "FOLDER"];
        table(&headings, &snapshots.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

/// What others than snapshots refer to: what runs stand on and have come to, and what shared workspaces were.
#[derive(Default)]
struct Needed {
    trees: BTreeSet<Digest>,
    /// How far each shared workspace was followed.
    moves: BTreeMap<String, u64>,
    /// Whether somebody is at work, and may have stored what he has told nobody yet.
    is_busy: bool,
}

impl Needed {
    /// Runs that are not over, can be gone on with, or whose result waits for somebody to take it.
    const ALL: [RunState; 5] =
        [RunState::Queued, RunState::Running, RunState::Blocked, RunState::Failed, RunState::Succeeded];
    /// Those of them that change by themselves.
    const UNDER_WAY: [RunState; 3] = [RunState::Queued, RunState::Running, RunState::Blocked];

    fn learn(&mut self, open: &Open, states: &[RunState]) -> Result<(), Failure> {
        for state in states {
            let mut before = None;
            loop {
                let only = (*state == RunState::Succeeded).then_some(metadata::HASH);
                let filter = Filter { state: Some(*state), before, limit: RUNS_PAGE, only, ..Filter::default() };
                let runs = open.waiter.wait(open.waiter.runs.runs(&open.tenant, filter))?;
                let Some(last) = runs.last() else { break };
                before = Some(last.id.clone());
                self.is_busy |= *state == RunState::Running;
                for run in &runs {
                    match state {
                        RunState::Succeeded => self.learn_kept(run),
                        _ => self.learn_run(open, run)?,
                    }
                }
            }
        }
        for head in open.waiter.wait(open.heads.heads_of(&open.tenant))? {
            // What a shared workspace was may be wanted back.
            let known = self.moves.entry(head.workspace.clone()).or_default();
            for n in *known + 1..=head.n {
                self.trees.extend(open.made(&head.workspace, n)?.map(|made| made.after));
            }
            *known = head.n;
        }
        // Whatever a run was seen to have come to, it does not need what it stood on again.
        Ok(open.waiter.wait(open.waiter.journal.settled())?)
    }

    /// A fork stands on what its source has done.
    fn learn_run(&mut self, open: &Open, run: &Run) -> Result<(), Failure> {
        for event in actum_engine::full_history(&open.waiter, run)? {
            let tree = match &event {
                Event::Frozen { before, .. } => before,
                Event::Acted(acted) => &acted.state,
                _ => continue,
            };
            self.trees.extend(Digest::from_hex(tree));
        }
        Ok(())
    }

    /// A result for a shared workspace that nobody has applied yet; one for a folder has a stage, or a publication, of its own.
    fn learn_kept(&mut self, run: &Run) {
        let is_kept = |text: &&str| text.contains("\"kept\":true") && crate::shared::is_place(&run.place);
        let Some(text) = run.outcome.as_deref().filter(is_kept) else { return };
        let outcome: Value = serde_json::from_str(text).unwrap_or_default();
        if outcome["verdict"]["kept"] == true {
            let trees = [&outcome["before"], &outcome["current"]].into_iter().filter_map(Value::as_str);
            self.trees.extend(trees.filter_map(Digest::from_hex));
        }
    }
}

/// Runs read at a time.
const RUNS_PAGE: usize = 200;
/// How long somebody at work may take from storing something to telling of it.
const YOUNG_MS: u64 = 3_600_000;

/// What a sweep of the snapshots came to.
#[derive(Debug)]
pub(crate) struct Sweep {
    pub swept: Swept,
    pub kept: Kept,
}

/// Removes what nothing refers to; of the rest what is beyond the limit.
pub(crate) fn sweep(project: &Project, limit: Limit, out: &Out) -> Result<Sweep, Failure> {
    let opened = workspace::open(project, folder::open_root(project)?, out)?;
    let mut kept = None;
    // Nothing is published meanwhile: what is under way could not be seen as a whole.
    let _still = workspace::lock(project, &opened, out)?;
    let open = Open::new(Project::at(project), out)?;
    // Most of it while others may still store; then, while nobody does, what has come since.
    let (mut needed, begun_ms) = (Needed::default(), opened.blobs.clock_ms()?);
    needed.learn(&open, &Needed::ALL)?;
    let mut reach = |blobs: &Folder| -> Result<Kept, Failure> {
        needed.learn(&open, &Needed::UNDER_WAY)?;
        // One that is gone already cannot be kept any more.
        let trees: Vec<Digest> =
            needed.trees.iter().copied().filter(|tree| blobs.contains(*tree).unwrap_or(false)).collect();
        let cost = |digest| blobs.cost(digest);
        let mut kept = retain(&opened.workspace, blobs, &trees, &cost, limit)?;
        // And whatever was stored meanwhile, by runs that may be over by now; of who is at work, also what he stored before.
        let young_ms = if needed.is_busy { YOUNG_MS } else { 0 };
        kept.contents.extend(blobs.stored_since(begun_ms.saturating_sub(young_ms))?);
        Ok(kept)
    };
    if limit.dry {
        let kept = reach(&opened.blobs)?;
        return Ok(Sweep { swept: opened.blobs.would_sweep(&kept.contents)?, kept });
    }
    let how = if limit.bytes_max.is_some() { Thoroughness::Exact } else { Thoroughness::Cheap };
    let swept = opened.blobs.sweep(how, |blobs| {
        let found = reach(blobs)?;
        let contents = found.contents.clone();
        kept = Some(found);
        Ok::<_, Failure>(contents)
    })?;
    Ok(Sweep { swept, kept: kept.unwrap_or_default() })
}

impl Gc {
    fn run(self, project: &Project, out: &mut Out) -> Ended {
        let limit = Limit { bytes_max: self.max_bytes, ..Limit::default() };
        let Sweep { swept, kept } = sweep(project, limit, out)?;
        let forgotten: Vec<_> = kept.forgotten.iter().map(|id| id.to_hex()).collect();
        let late: Vec<_> = kept.late_writes.iter().map(|path| path.display().to_string()).collect();
        let bases_bytes: u64 = bases(&project.folder()?)?.iter().map(|base| base.bytes).sum();
        out.result(
            &json!({
                "removed_contents": swept.contents, "removed_bytes": swept.bytes, "bytes": swept.bytes_left,
                "forgotten_snapshots": forgotten, "forgotten_publications": kept.forgotten_publications,
                "removed_bases": kept.bases.count, "removed_bases_bytes": kept.bases.bytes,
                "bases_bytes": bases_bytes, "late_writes": late,
                "missing_contents": kept.missing.iter().map(|digest| digest.to_hex()).collect::<Vec<_>>(),
            }),
            || {
                let removed = count(swept.contents, "content", "contents");
                format!("removed {removed}, {}; {} left", size(swept.bytes), size(swept.bytes_left))
            },
        );
        if kept.bases.count > 0 || bases_bytes > 0 {
            let removed = count(kept.bases.count, "base", "bases");
            let (freed, left) = (size(kept.bases.bytes), size(bases_bytes));
            out.remark(&format!("removed {removed} of stages, {freed}; {left} left"));
        }
        if !forgotten.is_empty() || !kept.forgotten_publications.is_empty() {
            let snapshots = count(forgotten.len() as u64, "snapshot", "snapshots");
            let publications = count(kept.forgotten_publications.len() as u64, "publication", "publications");
            out.remark(&format!("gave up {snapshots} and {publications} to fit"));
        }
        if !kept.missing.is_empty() {
            let many = count(kept.missing.len() as u64, "content is", "contents are");
            out.remark(&format!("{many} referred to and not there; `actum snapshot check` says by what"));
        }
        for path in late {
            out.remark(&format!("kept {path}: it was written to after it had been replaced"));
        }
        if self.max_bytes.is_some_and(|max| swept.bytes_left > max) {
            out.remark("what stages, pins and publications refer to does not fit; it was kept");
        }
        Ok(0)
    }
}

impl Named {
    fn change(
        self,
        project: &Project,
        out: &mut Out,
        done: &str,
        change: impl FnOnce(Snapshot, &Path) -> actum_workspace::Result<()>,
    ) -> Ended {
        let home = project.folder()?;
        let snapshot = Snapshot::find(&home, &self.id)?;
        let id = snapshot.id.to_hex();
        change(snapshot, &home)?;
        out.result(&json!({"id": id, "done": done}), || format!("{done} {id}"));
        Ok(0)
    }
}

/// Every content is what its digest says, and every snapshot has all of its contents.
fn check(project: &Project, out: &mut Out) -> Ended {
    let blobs = project.blobs()?;
    let (contents, bad) = blobs.check()?;
    let snapshots = Snapshot::list(&project.folder()?)?;
    let mut broken = Vec::new();
    for snapshot in &snapshots {
        match actum_workspace::is_whole(&*blobs, snapshot.id) {
            Ok(()) => {}
            Err(actum_workspace::Error::Blob(e @ (BlobError::Missing(_) | BlobError::Damaged(..)))) => {
                broken.push((snapshot.id.to_hex(), e.to_string()));
            }
            Err(e) => return Err(e.into()),
        }
    }
    let ok = bad.is_empty() && broken.is_empty();
    let bad: Vec<_> = bad.iter().map(|digest| digest.to_hex()).collect();
    let broken_json: Vec<_> = broken.iter().map(|(id, why)| json!({"id": id, "why": why})).collect();
    let shown = json!({
        "valid": ok, "contents": contents, "snapshots": snapshots.len(), "damaged": bad, "broken_snapshots": broken_json,
    });
    out.result(&shown, || {
        let (contents, snapshots) =
            (count(contents, "content", "contents"), count(snapshots.len() as u64, "snapshot", "snapshots"));
        format!("read {contents} and {snapshots}")
    });
    match (ok, out.json) {
        (true, _) => Ok(0),
        (false, true) => Ok(error::named(error::CONTENT_DAMAGED).exit),
        (false, false) => {
            let first = broken.first().map(|(id, why)| format!("snapshot {} is broken: {why}", &id[..16]));
            let message = first.unwrap_or_else(|| format!("{} stored contents are damaged", bad.len()));
            Err(Failure::new(error::CONTENT_DAMAGED, message))
        }
    }
}
