//! Letting go of what is older than `[retention]` of actum.toml keeps it, and looking after what nobody else looks after:
//! reservations whose caller is gone, guards of pointers. Called by `actum store gc` and, by the clock, by `actum serve`.
//! Never touches the ledger, receipts, heads, pointers, tokens or money, and nothing that a run not yet over may need.
//!
//! One at a time in a project, by a lock on a file. Whatever it is stopped in the middle of, the next one finishes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actum_contract::blob::Blobs as _;
use actum_contract::crash;
use actum_contract::digest::Digest;
use actum_ledger::access::forgotten_before;
use actum_ledger::journal::Range;
use actum_ledger::run::{Run, RunState};
use actum_store::blob::{Folder, Swept, Thoroughness};
use actum_store::{Forget, Store};
use actum_workspace::Limit;
use serde_json::{Value, json};

use crate::command::snapshot::{self, Sweep};
use crate::config::Retention;
use crate::execution;
use crate::failure::Failure;
use crate::model::{alive, guard, receipt, rollout};
use crate::project::Project;
use crate::run::Open;
use crate::ui::Out;

/// Places where tests stop the process for good.
const CRASH_POINTS: &[&str] = &["gc.file", "gc.runs", "gc.snapshots", "gc.traces"];
/// Why there may be nothing left of a run but its receipt.
pub(crate) const GONE: &str = "logs, patches and recordings are removed after the days of `[retention]` in actum.toml (docs/operations.md), \
                              and are not part of a copy of the store";

/// What stays in the folder of a run for good.
const OF_RECORD: [&str; 2] = ["RECEIPT.json", "receipt.statement.json"];
/// What stays in that of an execution: its name is taken, and what came of it is told to whoever asks again.
const OF_EXECUTION: [&str; 3] = ["result.json", "contract.json", "lock"];
const DAY_MS: u64 = 86_400_000;
/// Receipts read at a time.
const PAGE: usize = 500;
/// Entries are nearly in the order of their times; so far apart may two of them be.
const DISORDER_MS: u64 = 3_600_000;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub runs: u64,
    pub executions: u64,
    pub files_bytes: u64,
    pub snapshots: u64,
    pub publications: u64,
    pub contents: u64,
    pub contents_bytes: u64,
    /// Copies of workspaces on which stages are based.
    pub bases: u64,
    pub bases_bytes: u64,
    pub traces: u64,
    pub traces_bytes: u64,
    pub answers: u64,
    pub letters: u64,
}

impl Freed {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "runs": self.runs, "executions": self.executions, "files_bytes": self.files_bytes,
            "snapshots": self.snapshots, "publications": self.publications, "contents": self.contents,
            "contents_bytes": self.contents_bytes, "bases": self.bases, "bases_bytes": self.bases_bytes,
            "traces": self.traces, "traces_bytes": self.traces_bytes,
            "kept_answers": self.answers, "dead_letters": self.letters, "bytes": self.bytes(),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files_bytes + self.contents_bytes + self.bases_bytes + self.traces_bytes
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The turn to clean up in a project; gone with whoever has it.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "holding it is all")] File);

impl Turn {
    fn file(project: &Project) -> Result<File, Failure> {
        let path = project.folder()?.join("gc.lock");
        let opened = File::options().create(true).append(true).open(&path);
        opened.map_err(|e| Failure::of_io(format!("cannot open {}: {e}", path.display()), &e))
    }

    /// Waits for whoever is at it.
    pub(crate) fn wait(project: &Project) -> Result<Self, Failure> {
        let file = Self::file(project)?;
        file.lock().map_err(|e| Failure::of_io(format!("cannot lock gc.lock: {e}"), &e))?;
        Ok(Self(file))
    }

    /// Nothing if somebody is at it.
    pub(crate) fn take(project: &Project) -> Result<Option<Self>, Failure> {
        let file = Self::file(project)?;
        Ok(file.try_lock().is_ok().then_some(Self(file)))
    }
}

/// What is to be let go of, as of now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub retention: Retention,
    pub now_ms: u64,
    /// Only say what would go.
    pub dry: bool,
    /// Also contents that nothing refers to, whatever their age.
    pub sweeps: bool,
}

impl Plan {
    fn before(&self, days: Option<u64>) -> Option<u64> {
        days.map(|days| self.now_ms.saturating_sub(days.saturating_mul(DAY_MS)))
    }

    /// The files of a project: those of its runs and executions, and its snapshots.
    pub(crate) fn files(&self, open: &Open, out: &Out, freed: &mut Freed) -> Result<(), Failure> {
        let home = open.project.folder()?;
        if let Some(before_ms) = self.before(self.retention.runs_days) {
            self.runs(open, &home, before_ms, freed)?;
            self.executions(&home, before_ms, freed);
            crash::pass(CRASH_POINTS, "gc.runs");
        }
        let before_ms = self.before(self.retention.snapshots_days);
        if self.sweeps || before_ms.is_some() {
            let limit = Limit { bytes_max: None, before_ms, dry: self.dry };
            let Sweep { swept, kept } = snapshot::sweep(&open.project, limit, out)?;
            freed.snapshots += kept.forgotten.len() as u64;
            freed.publications += kept.forgotten_publications.len() as u64;
            freed.contents += swept.contents;
            freed.contents_bytes += swept.bytes;
            freed.bases += kept.bases.count;
            freed.bases_bytes += kept.bases.bytes;
            crash::pass(CRASH_POINTS, "gc.snapshots");
        }
        Ok(())
    }

    /// The traces of one tenant.
    pub(crate) fn traces(&self, open: &Open, freed: &mut Freed) -> Result<(), Failure> {
        let home = open.project.folder()?;
        let Some(before_ms) = self.before(self.retention.traces_days).filter(|_| home.join("traces").is_dir()) else {
            return Ok(());
        };
        let traces = receipt::traces(&open.project)?;
        let reach = |traces: &Folder| -> Result<HashSet<Digest>, Failure> {
            // Also what was just written, and whose receipt is on its way.
            let mut living = traces.written_since(before_ms)?;
            named_since(open, before_ms, traces, &mut living)?;
            Ok(living)
        };
        let Swept { contents, bytes, .. } = match self.dry {
            true => traces.would_sweep(&reach(&traces)?)?,
            false => traces.sweep(Thoroughness::Cheap, reach)?,
        };
        freed.traces += contents;
        freed.traces_bytes += bytes;
        crash::pass(CRASH_POINTS, "gc.traces");
        Ok(())
    }

    /// Rows of the store, of all tenants.
    pub(crate) fn forget(&self) -> Forget {
        let millis = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let letters = self.before(self.retention.dead_letters_days);
        Forget {
            answers_before_ms: Some(forgotten_before(millis(self.now_ms))),
            letters_before_ns: letters.map(|ms| millis(ms).saturating_mul(1_000_000)),
            dry: self.dry,
        }
    }

    pub(crate) fn rows(&self, open: &Open, store: &dyn Store, freed: &mut Freed) -> Result<(), Failure> {
        let forgotten = open.waiter.wait(store.forget(self.forget()))?;
        freed.answers += forgotten.answers;
        freed.letters += forgotten.letters;
        Ok(())
    }

    fn runs(&self, open: &Open, home: &Path, before_ms: u64, freed: &mut Freed) -> Result<(), Failure> {
        for entry in fs::read_dir(home.join("runs")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Ids say when they were made; what is younger need not be looked up.
            let is_old = uuid::Uuid::parse_str(&name).is_ok_and(|id| {
                id.get_timestamp().is_some_and(|at| {
                    let (seconds, nanos) = at.to_unix();
                    seconds * 1_000 + u64::from(nanos) / 1_000_000 < before_ms
                })
            });
            if !is_old || beside(&entry.path(), &OF_RECORD).is_empty() {
                continue;
            }
            let found = open.waiter.wait(open.waiter.runs.runs_named(&open.tenant, &name))?;
            if found.iter().find(|run| run.id == name).is_some_and(|run| may_go(run, before_ms)) {
                let bytes = self.empty(&entry.path(), &OF_RECORD);
                freed.files_bytes += bytes;
                freed.runs += 1;
            }
        }
        Ok(())
    }

    fn executions(&self, home: &Path, before_ms: u64, freed: &mut Freed) {
        for entry in fs::read_dir(home.join("executions")).into_iter().flatten().flatten() {
            let folder = entry.path();
            let ended = fs::metadata(folder.join("result.json")).and_then(|file| file.modified());
            let is_old = ended.is_ok_and(|at| millis_of(at) < before_ms);
            if is_old && !execution::is_under_way(&folder) && !beside(&folder, &OF_EXECUTION).is_empty() {
                freed.files_bytes += self.empty(&folder, &OF_EXECUTION);
                freed.executions += 1;
            }
        }
    }

    /// Removes what is in a folder, but for some; how many bytes that were.
    fn empty(&self, folder: &Path, but: &[&str]) -> u64 {
        let mut bytes = 0;
        for path in beside(folder, but) {
            bytes += size_of(&path);
            if self.dry {
                continue;
            }
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir());
            // What cannot be removed is there the next time.
            let _ = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            crash::pass(CRASH_POINTS, "gc.file");
        }
        bytes
    }
}

/// Over for good, long enough ago, and nothing of it is still to be published.
fn may_go(run: &Run, before_ms: u64) -> bool {
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let is_kept = outcome["verdict"]["kept"] == true;
    let is_old = u64::try_from(run.updated_ms).is_ok_and(|at| at < before_ms);
    // One that failed can be gone on with.
    matches!(run.state, RunState::Succeeded | RunState::Cancelled) && is_old && !is_kept
}

fn beside(folder: &Path, but: &[&str]) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let goes = |entry: &fs::DirEntry| !but.iter().any(|name| entry.file_name() == *name);
    all.filter(goes).map(|entry| entry.path()).collect()
}

fn size_of(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size_of(&entry.path())).sum()
        }
        Ok(about) => about.len(),
        Err(_) => 0,
    }
}

fn millis_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The contents that receipts since a moment name, and those that are named in these.
fn named_since(open: &Open, since_ms: u64, traces: &Folder, living: &mut HashSet<Digest>) -> Result<(), Failure> {
    let least = i64::try_from(since_ms.saturating_sub(DISORDER_MS).saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    let mut from = open.waiter.wait(open.waiter.journal.log(&open.tenant))?.frontier.size();
    let mut open_ends = Vec::new();
    loop {
        let range = Range { from, limit: PAGE, backwards: true, kind: Some(receipt::TYPE.to_owned()) };
        let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, range))?;
        let Some(last) = rows.last() else { break };
        from = last.seq;
        rows.iter().for_each(|row| open_ends.extend(digests_in(&row.body)));
        if rows.iter().all(|row| row.created_ns < least) {
            break;
        }
    }
    let mut seen = HashSet::new();
    while let Some(digest) = open_ends.pop() {
        if seen.insert(digest) && traces.contains(digest)? {
            living.insert(digest);
            // What cannot be read names nothing more.
            open_ends.extend(digests_in(&traces.read(digest).unwrap_or_default()));
        }
    }
    Ok(())
}

/// Everything in a text that could name a content; too many do no harm.
fn digests_in(text: &[u8]) -> Vec<Digest> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let words = text.split(|byte| !is_digit(byte)).filter(|word| word.len() == 64);
    words.filter_map(|word| std::str::from_utf8(word).ok().and_then(Digest::from_hex)).collect()
}

/// What was found out about one tenant.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Reservations that a person has to look at now.
    pub stuck: u64,
    /// Signatures whose pointers were moved by their guards.
    pub moved: Vec<String>,
}

/// Marks reservations whose caller is gone, and asks every guard.
pub(crate) fn look_after(open: &Open) -> Result<Looked, Failure> {
    let mut looked = Looked::default();
    let home = open.project.folder()?;
    looked.stuck += open.waiter.wait(open.spend.mark_stuck(&open.tenant, None))?.len() as u64;
    for run in alive::gone(&home, open.waiter.journal.store_id()) {
        looked.stuck += open.waiter.wait(open.spend.mark_stuck(&open.tenant, Some(&run)))?.len() as u64;
        alive::forget(&home, &run);
    }
    for standing in rollout::all(open)? {
        if standing.pointer.guard.is_none() {
            continue;
        }
        if let Some(judgement) = guard::Watch::default().judge(open, &standing)?
            && guard::act(open, &standing, &judgement)?.is_some()
        {
            looked.moved.push(standing.pointer.signature_id.clone());
        }
    }
    Ok(looked)
}

/// Not all servers at once: somewhere within a tenth of the time, earlier or later.
pub(crate) fn jittered(every: Duration) -> Duration {
    let mut byte = [0_u8; 1];
    // Without randomness they may meet, and one of them finds the turn taken.
    let _ = getrandom::fill(&mut byte);
    every.mul_f64(0.9 + 0.2 * f64::from(byte[0]) / 255.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_found_wherever_they_stand() {
        let (a, b) = (Digest::blake3(b"a"), Digest::blake3(b"b"));
        let text =
            format!("{{\"uri\":\"blob:blake3:{}\",\"x\":[\"{}\"],\"y\":\"{}0\"}}", a.to_hex(), b.to_hex(), a.to_hex());
        assert_eq!(digests_in(text.as_bytes()), [a, b]);
        assert!(digests_in(&[0xff; 100]).is_empty() && digests_in(b"").is_empty());
    }

    #[test]
    fn days_are_counted_back_and_never_beyond_the_beginning() {
        let plan = |now_ms| Plan { retention: Retention::default(), now_ms, dry: false, sweeps: false };
        assert_eq!(plan(3 * DAY_MS).before(Some(1)), Some(2 * DAY_MS));
        assert_eq!(plan(1).before(Some(36_500)), Some(0));
        assert_eq!(plan(1).before(None), None);
        assert_eq!(plan(0).forget().letters_before_ns, None);
        let every = Duration::from_secs(3_600);
        assert!((0..100).map(|_| jittered(every)).all(|one| one >= every.mul_f64(0.89) && one <= every.mul_f64(1.11)));
    }
}
